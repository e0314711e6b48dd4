//! Data directories: initdb runs once for a process, and each server gets a copy.

use crate::installation::Installation;
use crate::process::{Watchdog, hand_over, run};
use std::fs::{self, File};
use std::hash::{BuildHasher, RandomState};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Settings of all servers. Tests need no protection from a crash of the machine, and share its memory.
const CONFIGURATION: &str = "
listen_addresses = '127.0.0.1'
shared_preload_libraries = 'docshard'
fsync = off
shared_buffers = 32MB
log_line_prefix = '%m [%p] %q%a '
timezone = 'UTC'
docshard.max_write_stall = '1min'
";

/// A new folder that servers can use, with a path that is short enough for a socket.
pub(super) fn scratch_folder() -> PathBuf {
    static COUNT: AtomicUsize = AtomicUsize::new(0);
    let number = COUNT.fetch_add(1, Ordering::Relaxed);
    let folder = std::env::temp_dir().join(format!("docshard-tests.{}.{number}", std::process::id()));
    fs::create_dir(&folder).unwrap_or_else(|e| panic!("{}: {e}", folder.display()));
    hand_over(&folder);
    folder
}

/// Creates a data directory with its own system identifier, as a copy of the template: that takes a fifth of initdb's time.
pub(super) fn init(installation: &Installation, data: &Path) {
    let mut copy = Command::new("cp");
    copy.arg("-a").arg(template(installation)).arg(data);
    run(copy);
    set_new_system_identifier(installation, data);
}

/// Gives a stopped server another system identifier.
pub(super) fn set_new_system_identifier(installation: &Installation, data: &Path) {
    // pg_control begins with the identifier. pg_resetwal computes its checksum, and creates WAL with that identifier.
    let mut control = File::options().write(true).open(data.join("global/pg_control")).expect("initdb made it");
    let identifier = RandomState::new().hash_one(data).to_ne_bytes();
    control.write_all(&identifier).expect("it can be written");
    let mut reset = installation.program("pg_resetwal");
    reset.args(["--force", "--pgdata"]).arg(data);
    run(reset);
}

/// The installation's template, which is made when it is first needed.
fn template(installation: &Installation) -> &Path {
    let (data, _) = installation.template.get_or_init(|| {
        let folder = scratch_folder();
        let (watchdog, data) = (Watchdog::new(&folder), folder.join("data"));
        let mut initdb = installation.program("initdb");
        let arguments = ["-U", "postgres", "-A", "trust", "--encoding=UTF8", "--locale=C.UTF-8", "--no-sync", "-D"];
        initdb.args(arguments).arg(&data);
        run(initdb);
        let path = data.join("postgresql.conf");
        let configuration = fs::read_to_string(&path).expect("initdb wrote it");
        fs::write(&path, configuration + CONFIGURATION).expect("a configuration");
        // pg_resetwal creates new segments in each copy.
        for segment in fs::read_dir(data.join("pg_wal")).expect("there is one").flatten() {
            if segment.file_type().is_ok_and(|kind| kind.is_file()) {
                fs::remove_file(segment.path()).expect("it can be removed");
            }
        }
        (data, watchdog)
    });
    data
}
