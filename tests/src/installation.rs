//! Installations of PostgreSQL from which servers run: the private one that `.ci/pg_private` makes, and others of other versions.
//!
//! `DOCSHARD_PG17_BINDIR` names the folder of programs of a PostgreSQL 17 that has docshard. With `DOCSHARD_PG17_ROOT` as well its
//! programs run inside that chroot, where the folder and the tests' temporary folder have the same paths. `.ci/test_all` makes such
//! chroots. `DOCSHARD_PGRX_HOME` names another private one, as `.ci/test_checked` does.

use crate::process::{Watchdog, am_root, project, run};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;

/// The versions that docshard supports: those of `.ci/lib.sh`, the oldest first.
const SUPPORTED: [u32; 3] = [15, 17, 18];

/// An installation of PostgreSQL with docshard.
#[derive(Debug)]
pub struct Installation {
    major: OnceLock<u32>,
    bindir: PathBuf,
    /// the chroot in which its programs run
    root: Option<PathBuf>,
    /// The data directory of a server that was never started. It is removed with this process.
    pub(crate) template: OnceLock<(PathBuf, Watchdog)>,
}

impl Installation {
    fn new(bindir: PathBuf, root: Option<PathBuf>) -> Self {
        Self { major: OnceLock::new(), bindir, root, template: OnceLock::new() }
    }

    /// The private one, into which the tests install docshard.
    pub fn private() -> &'static Self {
        static PRIVATE: OnceLock<Installation> = OnceLock::new();
        PRIVATE.get_or_init(|| {
            let home = std::env::var_os("DOCSHARD_PGRX_HOME").map_or_else(|| project().join(".pgrx"), PathBuf::from);
            let postgres = home.join("bin/postgres");
            let postgres = fs::canonicalize(&postgres)
                .unwrap_or_else(|e| panic!("{}: {e}: run `make deps` first", postgres.display()));
            Self::new(postgres.parent().expect("a program is in a folder").to_owned(), None)
        })
    }

    /// The private one and those that the environment names, the oldest version first.
    pub fn all() -> &'static [&'static Self] {
        static ALL: OnceLock<Vec<&'static Installation>> = OnceLock::new();
        ALL.get_or_init(|| {
            let path = |major: u32, what| std::env::var_os(format!("DOCSHARD_PG{major}_{what}")).map(PathBuf::from);
            let installation = |&major: &u32| {
                if major == Self::private().major() {
                    return Some(Self::private());
                }
                let other: &Self = Box::leak(Box::new(Self::new(path(major, "BINDIR")?, path(major, "ROOT"))));
                assert_eq!(other.major(), major, "{other:?}");
                Some(other)
            };
            SUPPORTED.iter().filter_map(installation).collect()
        })
    }

    /// Its major version.
    ///
    /// # Panics
    /// If its programs do not run.
    pub fn major(&self) -> u32 {
        *self.major.get_or_init(|| {
            let mut postgres = self.program("postgres");
            postgres.arg("--version");
            // postgres (PostgreSQL) 17.12 (Debian 17.12-0+deb13u1)
            let version = run(postgres);
            let numbers = version.split_whitespace().nth(2).expect("a version");
            let digits = numbers.split(|c: char| !c.is_ascii_digit()).next();
            digits.and_then(|digits| digits.parse().ok()).expect("a number")
        })
    }

    /// The folder of its programs, as they see it.
    pub(crate) fn bindir(&self) -> &Path {
        &self.bindir
    }

    /// One of its programs, to be run as the user postgres if we are root, and with nothing in its environment that would
    /// change what it does: other defaults for connections, other libraries. Backtraces are asked for, as some server's
    /// environment will: no error may have one.
    pub(crate) fn program(&self, name: &str) -> Command {
        let program = self.bindir.join(name);
        let mut command = match &self.root {
            Some(root) => {
                let mut command = Command::new("chroot");
                command.arg("--userspec=postgres:postgres").arg(root).arg(program);
                command
            }
            None if am_root() => {
                let mut command = Command::new("setpriv");
                command.args(["--reuid=postgres", "--regid=postgres", "--init-groups"]).arg(program);
                command
            }
            None => Command::new(program),
        };
        for (variable, _) in std::env::vars_os() {
            if variable.as_encoded_bytes().starts_with(b"PG") {
                command.env_remove(variable);
            }
        }
        command.env("RUST_BACKTRACE", "1").env_remove("RUST_LIB_BACKTRACE").env_remove("LD_LIBRARY_PATH");
        // A folder that the user postgres can enter. At home libpq looks for certificates.
        command.env("HOME", "/").current_dir("/").stdin(Stdio::null());
        command
    }
}
