//! A certificate authority, by openssl.

use crate::process::run;
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The options of openssl for a new key.
const NEW_KEY: &str = "-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes";

/// A certificate authority, and the certificate of all servers of a cluster, for 127.0.0.1.
#[derive(Debug)]
pub struct Authority {
    /// The authority's certificate, which clients have.
    pub root: PathBuf,
    /// The servers' certificate.
    pub certificate: PathBuf,
    /// The servers' private key.
    pub key: PathBuf,
}

/// Runs openssl with arguments divided by spaces. `FILE` stands for the next one of the files.
fn openssl(arguments: &str, files: &[&Path]) {
    let mut files = files.iter();
    let mut command = Command::new("openssl");
    for argument in arguments.split(' ') {
        match argument {
            "FILE" => command.arg(files.next().expect("a file")),
            other => command.arg(other),
        };
    }
    run(command);
}

impl Authority {
    /// Creates them in a folder, for one day.
    ///
    /// # Panics
    /// If openssl fails.
    pub fn new(folder: &Path) -> Self {
        let (root, root_key) = (folder.join("root.crt"), folder.join("root.key"));
        openssl(
            &format!("req -x509 {NEW_KEY} -days 1 -subj /CN=authority -keyout FILE -out FILE"),
            &[&root_key, &root],
        );
        let authority = Self::of(&root);
        authority.certify("server", "/CN=127.0.0.1", "subjectAltName = IP:127.0.0.1");
        // Servers run as another user.
        fs::set_permissions(&root, Permissions::from_mode(0o644)).expect("its permissions");
        authority
    }

    /// The authority that has created this certificate of its own.
    pub fn of(root: &Path) -> Self {
        let beside = |name: &str| root.with_file_name(name);
        Self { root: root.to_owned(), certificate: beside("server.crt"), key: beside("server.key") }
    }

    /// Creates another certificate for one day, the files `NAME.crt`, `NAME.key`, and `NAME.pem` with both, and returns the path of the last
    /// one.
    ///
    /// # Panics
    /// If openssl fails.
    pub fn certify(&self, name: &str, subject: &str, extensions: &str) -> PathBuf {
        let path = |ending: &str| self.root.with_file_name(format!("{name}.{ending}"));
        let (certificate, key, request) = (path("crt"), path("key"), path("csr"));
        let root_key = self.root.with_extension("key");
        openssl(
            &format!("req {NEW_KEY} -utf8 -subj FILE -keyout FILE -out FILE"),
            &[Path::new(subject), &key, &request],
        );
        let file = path("extensions");
        fs::write(&file, format!("{extensions}\n")).expect("a file");
        openssl(
            "x509 -req -days 1 -CAcreateserial -in FILE -CA FILE -CAkey FILE -extfile FILE -out FILE",
            &[&request, &self.root, &root_key, &file, &certificate],
        );
        let both = [&key, &certificate].map(|file| fs::read_to_string(file).expect("a file")).concat();
        fs::write(path("pem"), both).expect("a file");
        path("pem")
    }
}
