//! Copies of a server: standbys, backups, and clones of its disk.

use super::PATIENCE;
use super::node::Node;
use crate::process::hand_over;
use crate::wait_until;
use std::fs;
use std::path::Path;

impl Node {
    /// Starts a synchronous standby: from now on no commit is acknowledged before the standby has it.
    ///
    /// # Panics
    /// If the standby does not start.
    pub fn standby(&self) -> Standby {
        let mut node = self.copy("standby", &["--write-recovery-conf"]);
        node.start_on_free_port();
        self.psql("ALTER SYSTEM SET synchronous_standby_names = '*'");
        self.psql("SELECT pg_reload_conf()");
        wait_until("the standby is synchronous", PATIENCE, || {
            self.value::<i64>("SELECT count(*) FROM pg_stat_replication WHERE sync_state = 'sync'") == 1
        });
        Standby(node)
    }

    /// Starts an asynchronous standby.
    ///
    /// # Panics
    /// If the standby does not start.
    pub fn asynchronous_standby(&self) -> Standby {
        let standby = self.standby();
        self.psql("ALTER SYSTEM RESET synchronous_standby_names");
        self.psql("SELECT pg_reload_conf()");
        standby
    }

    /// Ends the connections of receivers of WAL that do not answer for three seconds. To be called before there are any, because it ends idle ones,
    /// too.
    ///
    /// # Panics
    /// If the configuration cannot be changed.
    pub fn drop_silent_receivers(&self) {
        self.psql("ALTER SYSTEM SET wal_sender_timeout = '3s'");
        self.psql("SELECT pg_reload_conf()");
    }

    /// Waits until that many receivers of WAL are connected.
    ///
    /// # Panics
    /// If it takes too long.
    pub fn await_receivers(&self, number: i64) {
        wait_until("receivers of WAL are connected", PATIENCE, || {
            self.value::<i64>("SELECT count(*) FROM pg_stat_replication WHERE state <> 'startup'") == number
        });
    }

    /// Makes each commit wait, until [`Node::forget_standbys`], for a standby that does not exist.
    ///
    /// # Panics
    /// If the configuration cannot be changed.
    pub fn hold_commits(&self) {
        self.psql("ALTER SYSTEM SET synchronous_standby_names = 'nobody'");
        self.psql("SELECT pg_reload_conf()");
        // When the checkpointer has read this, nothing shows but a commit that waits.
        let mut client = self.client();
        let pid: i32 = client.query_one("SELECT pg_backend_pid()", &[]).expect("its process").get(0);
        let committing = std::thread::spawn(move || {
            while client.batch_execute("SELECT pg_catalog.pg_logical_emit_message(true, '', '')").is_ok() {}
        });
        let waits = format!("SELECT count(*) FROM pg_stat_activity WHERE pid = {pid} AND wait_event = 'SyncRep'");
        wait_until("commits wait", PATIENCE, || self.value::<i64>(&waits) == 1);
        self.psql(&format!("SELECT pg_terminate_backend({pid})"));
        committing.join().expect("it ends");
    }

    /// Makes commits wait for no standby.
    ///
    /// # Panics
    /// If the configuration cannot be changed.
    pub fn forget_standbys(&self) {
        self.psql("ALTER SYSTEM RESET synchronous_standby_names");
        self.psql("SELECT pg_reload_conf()");
    }

    /// Takes a base backup, for [`Node::restore`].
    ///
    /// # Panics
    /// If pg_basebackup fails.
    pub fn backup(&self) -> Backup {
        Backup(self.copy("backup", &[]))
    }

    /// Starts a second server from a copy of its files, as from a cloned disk.
    ///
    /// # Panics
    /// If the clone does not start.
    pub fn clone_disk(&self) -> DiskClone {
        let mut node = self.copy("clone", &[]);
        node.start_on_free_port();
        DiskClone(node)
    }

    /// Copies its database by CREATE DATABASE … TEMPLATE, as another database of its server.
    ///
    /// # Panics
    /// If other sessions stay for a minute.
    pub fn copy_database(&self, name: &str) {
        let mut client = self.try_client_as("postgres", "template1").expect("a session in template1");
        client.batch_execute("ALTER DATABASE postgres ALLOW_CONNECTIONS false").expect("no new sessions");
        wait_until("nobody uses the database", PATIENCE, || {
            let end = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE datname = 'postgres'";
            client.batch_execute(end).expect("its sessions are ended");
            client.batch_execute(&format!("CREATE DATABASE {name} TEMPLATE postgres")).is_ok()
        });
        client.batch_execute("ALTER DATABASE postgres ALLOW_CONNECTIONS true").expect("sessions again");
    }

    /// A node with a copy of this node's data directory, in a folder of its own. It is not started.
    fn copy(&self, what: &str, options: &[&str]) -> Self {
        let name = format!("{}-{what}", self.name);
        let folder = self.data.parent().and_then(Path::parent).expect("it is in the cluster's folder");
        let home = (0..)
            .map(|number| folder.join(format!("{name}{number}")))
            .find(|home| !home.exists())
            .expect("there is no end of numbers");
        fs::create_dir(&home).expect("a new folder");
        hand_over(&home);
        let data = home.join("data");
        let path = data.to_str().expect("a path in UTF-8");
        let mut arguments = vec!["-D", path, "--checkpoint=fast", "--no-sync"];
        arguments.extend(options);
        self.program("pg_basebackup", &arguments);
        // Fault points that are armed in the original are not in the copy.
        let _ = fs::remove_dir_all(data.join("docshard_fault_points"));
        Self {
            name,
            port: self.port,
            password: self.password.clone(),
            authority: self.authority.clone(),
            installation: self.installation,
            data,
            process: None,
        }
    }

    /// Crashes this server, if it runs, and promotes a standby, which takes over the server's address: all sessions are lost.
    ///
    /// # Panics
    /// If the standby does not start.
    pub fn fail_over(&mut self, standby: Standby) {
        if self.process.is_some() {
            self.crash();
        }
        self.replace_by(standby);
    }

    fn replace_by(&mut self, mut standby: Standby) {
        standby.0.psql("SELECT pg_promote()");
        standby.0.stop();
        let old = std::mem::replace(&mut self.data, standby.0.data.clone());
        let _ = fs::remove_dir_all(old);
        self.start();
    }

    /// Like [`Node::fail_over`], to a standby that has stopped receiving: what it has not written is lost.
    ///
    /// # Panics
    /// If the standby does not start.
    pub fn fail_over_without(&mut self, standby: Standby, receiver: &FrozenReceiver) {
        self.crash();
        standby.0.kill(receiver.0);
        self.replace_by(standby);
    }

    /// Crashes this server, deletes its data, and promotes a standby, which keeps the standby's own address.
    ///
    /// # Panics
    /// If the promotion fails.
    pub fn fail_over_to(&mut self, mut standby: Standby) {
        self.crash();
        standby.0.psql("SELECT pg_promote()");
        let _ = fs::remove_dir_all(std::mem::replace(&mut self.data, standby.0.data.clone()));
        self.port = standby.0.port;
        self.process = standby.0.process.take();
    }

    /// Ends replication to a standby, and stops the standby.
    ///
    /// # Panics
    /// If the configuration cannot be changed.
    pub fn remove_standby(&self, standby: Standby) {
        self.psql("ALTER SYSTEM RESET synchronous_standby_names");
        self.psql("SELECT pg_reload_conf()");
        drop(standby);
    }

    /// Replaces its data with a backup.
    ///
    /// # Panics
    /// If it does not start again.
    pub fn restore(&mut self, backup: Backup) {
        self.stop_immediately();
        self.data = backup.0.data.clone();
        self.start();
    }
}

/// A standby of a server. It is stopped when it is dropped.
#[derive(Debug)]
pub struct Standby(Node);

impl Standby {
    /// Ends its replication.
    ///
    /// # Panics
    /// If the configuration cannot be changed.
    pub fn cut_off(&self) {
        self.0.psql("ALTER SYSTEM SET primary_conninfo = 'host=127.0.0.1 port=1'");
        self.0.psql("SELECT pg_reload_conf()");
        wait_until("the standby receives nothing", PATIENCE, || {
            self.0.value::<i64>("SELECT count(*) FROM pg_stat_wal_receiver WHERE status = 'streaming'") == 0
        });
    }

    /// Stops the process that receives WAL, as on a stalled machine. To the primary the standby is still connected, but confirms nothing.
    ///
    /// # Panics
    /// If there is no such process.
    pub fn freeze_receiver(&self) -> FrozenReceiver {
        let pid = self.0.value::<i32>("SELECT pid FROM pg_stat_wal_receiver").unsigned_abs();
        self.0.freeze(pid);
        FrozenReceiver(pid)
    }

    /// Resumes the process that receives WAL.
    pub fn thaw_receiver(&self, receiver: &FrozenReceiver) {
        self.0.thaw(receiver.0);
    }

    /// The port on which it listens, at 127.0.0.1.
    pub fn port(&self) -> u16 {
        self.0.port
    }

    /// Promotes it at its own address.
    ///
    /// # Panics
    /// If the promotion fails.
    pub fn promote(&self) {
        self.0.psql("SELECT pg_promote()");
    }

    /// Makes commits on this standby, once it is promoted, wait for no standby of its own.
    ///
    /// # Panics
    /// If the configuration cannot be changed.
    pub fn forget_standbys(&self) {
        self.0.forget_standbys();
    }

    /// Ends the sessions whose `application_name` matches a pattern.
    ///
    /// # Panics
    /// If that fails.
    pub fn end_sessions(&self, pattern: &str) {
        self.0.psql(&format!(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name LIKE '{pattern}'"
        ));
    }

    /// Ends the session of the router's keeper, which connects again.
    ///
    /// # Panics
    /// If that fails.
    pub fn end_keeper_session(&self) {
        self.0
            .psql("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'docshard keeper'");
    }
}

/// A standby's process that receives WAL, stopped.
#[derive(Debug)]
pub struct FrozenReceiver(u32);

impl Drop for Standby {
    fn drop(&mut self) {
        self.0.stop_immediately();
    }
}

/// A server that runs from a copy of another one's files. It is stopped when it is dropped.
#[derive(Debug)]
pub struct DiskClone(pub Node);

impl Drop for DiskClone {
    fn drop(&mut self) {
        self.0.stop_immediately();
    }
}

/// A base backup of a server.
#[derive(Debug)]
pub struct Backup(Node);

impl Backup {
    /// Switches a mechanism off for the server that is restored from it.
    pub fn switch_off(&self, mechanism: &str) {
        self.0.switch_off(mechanism);
    }
}
