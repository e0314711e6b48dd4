//! A certificate authority for a cluster's servers, by openssl.

use crate::process::run;
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A certificate authority, and the certificate of all servers of a cluster, for 127.0.0.1.
#[derive(Debug)]
pub(crate) struct Authority {
    /// The authority's certificate, which clients have.
    pub(crate) root: PathBuf,
    /// The servers' certificate.
    pub(crate) certificate: PathBuf,
    /// The servers' private key.
    pub(crate) key: PathBuf,
}

impl Authority {
    /// Creates them in a folder, for one day.
    pub(crate) fn new(folder: &Path) -> Self {
        let path = |name: &str| folder.join(name);
        let openssl = |arguments: &str, files: &[&Path]| {
            let mut files = files.iter();
            let mut command = Command::new("openssl");
            for argument in arguments.split(' ') {
                match argument {
                    "FILE" => command.arg(files.next().expect("a file")),
                    other => command.arg(other),
                };
            }
            run(command);
        };
        let (root, root_key) = (path("root.crt"), path("root.key"));
        let (certificate, key, request) = (path("server.crt"), path("server.key"), path("server.csr"));
        let new_key = "-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes";
        openssl(
            &format!("req -x509 {new_key} -days 1 -subj /CN=authority -keyout FILE -out FILE"),
            &[&root_key, &root],
        );
        openssl(&format!("req {new_key} -subj /CN=127.0.0.1 -keyout FILE -out FILE"), &[&key, &request]);
        let names = path("names");
        fs::write(&names, "subjectAltName = IP:127.0.0.1\n").expect("a file");
        openssl(
            "x509 -req -days 1 -CAcreateserial -in FILE -CA FILE -CAkey FILE -extfile FILE -out FILE",
            &[&request, &root, &root_key, &names, &certificate],
        );
        // Servers run as another user.
        fs::set_permissions(&root, Permissions::from_mode(0o644)).expect("its permissions");
        Self { root, certificate, key }
    }
}
