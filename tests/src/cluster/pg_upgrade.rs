//! Runs the shell examples of docs/operations.md that upgrade a server to another version of PostgreSQL.

use super::Cluster;
use super::node::Node;
use crate::installation::Installation;
use crate::process::run;
use crate::release::Release;
use std::fs;
use std::process::Command;

impl Cluster {
    /// True if pg_upgrade can upgrade a server without docshard. It cannot if the newer version's minor release is the older one:
    /// PostgreSQL 15.20 and 17.12 dump an option of columns that 18.6 does not know.
    ///
    /// # Panics
    /// If the old server cannot be made.
    pub fn can_upgrade(old: &'static Installation, new: &'static Installation) -> bool {
        let mut cluster = Self::create(&[old], &Release::present());
        let node = &mut cluster.router;
        node.psql("CREATE TABLE plain (n integer)");
        node.stop();
        node.configure("shared_preload_libraries = ''");
        let (from, to) = (old.bindir().display(), new.bindir().display());
        let script = format!(
            "{from}/pg_checksums --enable -D data\n\
             {to}/initdb -D new -U postgres --encoding=UTF8 --locale=C.UTF-8 --data-checksums\n\
             {to}/pg_upgrade -U postgres -b {from} -B {to} -d data -D new"
        );
        node.shell_command(new, &script).output().expect("bash runs").status.success()
    }
}

impl Node {
    /// Runs a script as the server's user, with the programs of an installation, and PostgreSQL's defaults naming this server.
    ///
    /// # Panics
    /// If one of its commands fails.
    pub fn shell(&self, installation: &Installation, script: &str) -> String {
        run(self.shell_command(installation, script))
    }

    fn shell_command(&self, installation: &Installation, script: &str) -> Command {
        let mut shell = installation.program("/bin/bash");
        // chroot enters the new root's folder: the script enters its own, to which programs may write.
        let folder = self.data().parent().expect("it is in the node's folder");
        let script = format!("cd '{}'\nPATH={}:$PATH\n{script}", folder.display(), installation.bindir().display());
        // An older version may lack libraries in the newer one's Debian: `.ci/test_all` puts them beside it.
        shell.env("LD_LIBRARY_PATH", self.installation.bindir().with_file_name("needed"));
        shell.args(["-euo", "pipefail", "-c", &script]);
        shell.env("PGHOST", "127.0.0.1").env("PGPORT", self.port.to_string()).env("PGUSER", "postgres");
        // pg_upgrade starts servers on these.
        shell.env("PGPORTOLD", self.port.to_string()).env("PGPORTNEW", self.port.to_string());
        shell
    }

    /// Runs a part of an upgrade from PostgreSQL 15 to 17 with its own version and data, and with `new` and a new data directory.
    /// `systemctl` stops the old server and starts the new one.
    ///
    /// # Panics
    /// If a command fails.
    pub fn run_upgrade(&mut self, new: &'static Installation, script: &str) {
        let new_data = self.data.with_file_name("new");
        let in_path = |path: &std::path::Path| path.to_str().expect("a path in UTF-8").to_owned();
        let script = script
            .replace("/usr/lib/postgresql/15/bin", &in_path(self.installation.bindir()))
            .replace("/usr/lib/postgresql/17/bin", &in_path(new.bindir()))
            .replace("/var/lib/postgresql/15/main", &in_path(&self.data))
            .replace("/var/lib/postgresql/17/main", &in_path(&new_data));
        let mut commands = String::new();
        for line in script.lines().chain(["systemctl"]) {
            if !line.starts_with("systemctl") {
                commands.push_str(line);
                commands.push('\n');
                continue;
            }
            self.shell(new, &std::mem::take(&mut commands));
            match line.split(' ').nth(1) {
                Some("stop") => self.stop(),
                Some("start") => {
                    fs::remove_dir_all(&self.data).expect("the old data");
                    fs::rename(&new_data, &self.data).expect("the new data");
                    self.installation = new;
                    let folder = self.data.ancestors().nth(2).expect("it is in the cluster's folder");
                    self.configure(&format!("unix_socket_directories = '{}'", folder.display()));
                    self.start();
                }
                _ => {}
            }
        }
    }
}
