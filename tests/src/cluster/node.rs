//! One PostgreSQL server: how it is configured, started, stopped and killed.

use super::PATIENCE;
use super::data_directory::{init, set_new_system_identifier};
use crate::installation::Installation;
use crate::process::{self, hand_over};
use crate::release::Release;
use crate::wait_until;
use std::fs::{self, File};
use std::hash::{BuildHasher, RandomState};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Child;
use std::thread;
use std::time::{Duration, Instant};

/// One PostgreSQL server.
#[derive(Debug)]
pub struct Node {
    /// `router`, `shard0` ….
    pub name: String,
    /// The port on which it listens, at 127.0.0.1.
    pub port: u16,
    /// The superuser's password, where the server requires one.
    pub(super) password: Option<String>,
    /// The certificate of the authority, where the server requires TLS.
    pub(super) authority: Option<PathBuf>,
    pub(super) installation: &'static Installation,
    pub(super) data: PathBuf,
    pub(super) process: Option<Child>,
}

impl Node {
    /// Creates a server and starts it on a free port.
    pub(super) fn create(folder: &Path, name: String, installation: &'static Installation, release: &Release) -> Self {
        let home = folder.join(&name);
        fs::create_dir(&home).expect("a new folder");
        hand_over(&home);
        let data = home.join("data");
        init(installation, &data);
        let mut node = Self { name, port: 0, password: None, authority: None, installation, data, process: None };
        node.configure(&format!("unix_socket_directories = '{}'", folder.display()));
        node.use_library(release);
        node.start_on_free_port();
        node
    }

    /// Starts it on a random port, and tries others while the port is in use.
    pub(super) fn start_on_free_port(&mut self) {
        for _ in 0..8 {
            self.port = random_port();
            if self.try_start() {
                return;
            }
            let log = self.log_tail(20);
            assert!(log.contains("Address already in use"), "{} does not start:\n{log}", self.name);
        }
        panic!("no free port for {}", self.name);
    }

    /// Adds lines to postgresql.conf, for the next start.
    pub fn configure(&self, lines: &str) {
        let path = self.data.join("postgresql.conf");
        let configuration = fs::read_to_string(&path).expect("a configuration");
        fs::write(&path, format!("{configuration}{lines}\n")).expect("a configuration");
    }

    /// Makes it use the library of a release from its next start.
    pub fn use_library(&self, release: &Release) {
        let path = release.folder.as_ref().map_or_else(String::new, |folder| format!("$libdir/{folder}:")) + "$libdir";
        self.configure(&format!("dynamic_library_path = '{path}'"));
    }

    /// The whole server log.
    ///
    /// # Panics
    /// If there is none.
    pub fn log(&self) -> String {
        String::from_utf8_lossy(&fs::read(self.log_path()).expect("a log")).into_owned()
    }

    /// The last lines of the server log.
    pub fn log_tail(&self, lines: usize) -> String {
        let log = fs::read(self.log_path()).unwrap_or_default();
        let log = String::from_utf8_lossy(&log);
        let all: Vec<&str> = log.lines().collect();
        all[all.len().saturating_sub(lines)..].join("\n")
    }

    /// The process id of its postmaster, if it runs.
    pub fn pid(&self) -> Option<u32> {
        self.process.as_ref().map(Child::id)
    }

    /// Starts it again, on the same port.
    ///
    /// # Panics
    /// If it does not start in time.
    pub fn start(&mut self) {
        assert!(self.process.is_none(), "{} runs already", self.name);
        // Backends of a killed postmaster keep the shared memory in use until they notice.
        let began = Instant::now();
        while !self.try_start() {
            assert!(began.elapsed() < PATIENCE, "{} does not start:\n{}", self.name, self.log_tail(20));
            thread::sleep(Duration::from_millis(100));
        }
    }

    /// Stops it as `pg_ctl stop -m fast` does.
    ///
    /// # Panics
    /// If it does not stop in time.
    pub fn stop(&mut self) {
        let mut process = self.process.take().unwrap_or_else(|| panic!("{} does not run", self.name));
        process::signal(process.id(), "INT");
        wait_until(&format!("{} stops", self.name), PATIENCE, || !matches!(process.try_wait(), Ok(None)));
    }

    /// Kills the postmaster. Sessions end when they notice that; until then they may still do something.
    ///
    /// # Panics
    /// If it does not run.
    pub fn kill9(&mut self) {
        let mut process = self.process.take().unwrap_or_else(|| panic!("{} does not run", self.name));
        process.kill().expect("a process of ours can be killed");
        process.wait().expect("a process of ours can be waited for");
    }

    /// Kills all of its processes at once, as a crash of the machine does.
    ///
    /// # Panics
    /// If it does not run.
    pub fn crash(&mut self) {
        let mut process = self.process.take().unwrap_or_else(|| panic!("{} does not run", self.name));
        // All processes are stopped first, so that none reacts to the death of another.
        process::signal(process.id(), "STOP");
        let children = process::children(process.id());
        process::signal_all(&children, "STOP");
        process::signal_all(&children, "KILL");
        process.kill().expect("a process of ours can be killed");
        process.wait().expect("a process of ours can be waited for");
    }

    /// Restarts it with another system identifier, as pg_upgrade does.
    ///
    /// # Panics
    /// If it does not start again.
    pub fn change_system_identifier(&mut self) {
        self.stop();
        set_new_system_identifier(self.installation, &self.data);
        self.start();
    }

    /// Stops it, if it runs, as `pg_ctl stop -m immediate` does: it recovers when it starts again.
    pub fn stop_immediately(&mut self) {
        if let Some(mut process) = self.process.take() {
            process::signal(process.id(), "QUIT");
            // The server's processes may be frozen.
            process::signal_all(&process::children(process.id()), "CONT");
            process::signal(process.id(), "CONT");
            let began = Instant::now();
            while matches!(process.try_wait(), Ok(None)) {
                if began.elapsed() > Duration::from_secs(10) {
                    let _ = process.kill();
                }
                thread::sleep(Duration::from_millis(5));
            }
        }
    }

    /// Starts the server; false if it ended instead of becoming ready.
    pub(super) fn try_start(&mut self) -> bool {
        let log = File::options().create(true).append(true).open(self.log_path()).expect("a log file");
        let mut process = self
            .installation
            .program("postgres")
            .arg("-D")
            .arg(&self.data)
            .arg("-p")
            .arg(self.port.to_string())
            .stdout(log.try_clone().expect("a log file"))
            .stderr(log)
            // An interrupt at the terminal must not reach it.
            .process_group(0)
            .spawn()
            .expect("PostgreSQL starts");
        let began = Instant::now();
        loop {
            if process.try_wait().expect("a process of ours can be waited for").is_some() {
                return false;
            }
            if self.is_ready(process.id()) {
                self.process = Some(process);
                return true;
            }
            if began.elapsed() > PATIENCE {
                let _ = process.kill();
                let _ = process.wait();
                return false;
            }
            thread::sleep(Duration::from_millis(10));
        }
    }

    /// The postmaster writes its state into the eighth line of its pid file.
    fn is_ready(&self, pid: u32) -> bool {
        let Ok(file) = fs::read_to_string(self.data.join("postmaster.pid")) else { return false };
        let mut lines = file.lines();
        lines.next() == Some(&pid.to_string()) && lines.nth(6).is_some_and(|state| state.trim() == "ready")
    }

    /// Its data directory.
    pub fn data(&self) -> &Path {
        &self.data
    }

    pub(crate) fn log_path(&self) -> PathBuf {
        self.data.with_file_name("log")
    }
}

/// A port below the range of outgoing connections, so that a server finds its port free when it starts again.
fn random_port() -> u16 {
    let random = RandomState::new().hash_one(std::process::id());
    15_000 + u16::try_from(random % 15_000).expect("it is small")
}
