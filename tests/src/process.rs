//! Processes: runs programs, and ensures that none are left behind.

use std::fs;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::OnceLock;

/// The project's root.
pub(crate) fn project() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("tests/ is in the project")
}

/// True if this process belongs to root, as which PostgreSQL refuses to run.
pub(crate) fn am_root() -> bool {
    use std::os::unix::fs::MetadataExt;
    static ROOT: OnceLock<bool> = OnceLock::new();
    *ROOT.get_or_init(|| fs::metadata("/proc/self").is_ok_and(|m| m.uid() == 0))
}

/// Runs a command to its end.
///
/// # Panics
/// If it fails, with its output.
pub(crate) fn run(mut command: Command) -> String {
    let output = command.output().unwrap_or_else(|e| panic!("{command:?}: {e}"));
    let stdout = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success(),
        "{command:?}: {}\n{stdout}{}",
        output.status,
        String::from_utf8_lossy(&output.stderr)
    );
    stdout.into_owned()
}

/// Gives `path` to the user postgres, if servers run as that.
pub(crate) fn hand_over(path: &Path) {
    if am_root() {
        let mut chown = Command::new("chown");
        chown.arg("postgres:postgres").arg(path);
        run(chown);
    }
}

/// Sends a signal, such as `KILL`. A process that is gone already is no error.
pub(crate) fn signal(pid: u32, name: &str) {
    signal_all(&[pid], name);
}

/// Sends a signal to several.
pub(crate) fn signal_all(pids: &[u32], name: &str) {
    let pids = pids.iter().map(u32::to_string);
    let _ = Command::new("kill").arg(format!("-{name}")).args(pids).stderr(Stdio::null()).status();
}

/// Its living child processes.
pub(crate) fn children(pid: u32) -> Vec<u32> {
    let processes = fs::read_dir("/proc").expect("there is /proc");
    let pids = processes.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    pids.filter(|&child| stat(child).is_some_and(|stat| stat.split(' ').nth(1) == Some(&pid.to_string()))).collect()
}

/// The system's information about a process: its state, its parent …
fn stat(pid: u32) -> Option<String> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The fields follow the name in parentheses, which may itself contain parentheses.
    Some(stat.rsplit(')').next()?.trim_start().to_owned())
}

/// True if the process runs (one that ended but was not yet waited for doesn't).
pub fn is_alive(pid: u32) -> bool {
    stat(pid).is_some_and(|stat| !stat.starts_with(['Z', 'X']))
}

/// True while the system knows the process: until its parent has waited for its end.
pub(crate) fn is_known(pid: u32) -> bool {
    stat(pid).is_some()
}

/// Kills the servers of a folder and deletes it after this process has ended in any way: a shell waits for the end of its input,
/// which the kernel closes.
#[derive(Debug)]
pub(crate) struct Watchdog {
    shell: Child,
    input: Option<ChildStdin>,
}

impl Watchdog {
    pub(crate) fn new(folder: &Path) -> Self {
        // A pid file may name an unrelated process: only a postmaster's working directory is its data directory.
        const SCRIPT: &str = r#"
            read -r _
            for data in "$1"/*/data; do
              pid=$(head -n 1 "$data/postmaster.pid" 2>/dev/null) || continue
              if [ "/proc/$pid/cwd" -ef "$data" ]; then kill -QUIT "$pid"; kill -CONT "$pid"; fi
            done
            sleep 0.2
            rm -rf "$1"
        "#;
        let mut shell = Command::new("bash")
            .args(["-c", SCRIPT, "watchdog"])
            .arg(folder)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            // An interrupt at the terminal must not reach it.
            .process_group(0)
            .spawn()
            .expect("bash starts");
        let input = shell.stdin.take();
        Self { shell, input }
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        drop(self.input.take());
        let _ = self.shell.wait();
    }
}
