//! The gateway, and clients as users have them, which are programs of other projects.

use crate::cluster::Node;
use crate::process::{project, run};
use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// The time within which a gateway must start.
const PATIENCE: Duration = Duration::from_secs(60);

/// A running gateway. It is stopped when dropped.
#[derive(Debug)]
pub struct Gateway {
    /// Its port at 127.0.0.1.
    pub port: u16,
    /// None if a server runs it
    process: Option<Child>,
    log: PathBuf,
}

/// Builds the program once.
fn program() -> &'static PathBuf {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    PROGRAM.get_or_init(|| {
        let mut build = Command::new(env!("CARGO"));
        build.current_dir(project()).args(["build", "-q", "-p", "docshard-gateway"]);
        if cfg!(feature = "fault_points") {
            build.args(["--features", "docshard-gateway/fault_points"]);
        }
        run(build);
        project().join("target/debug/docshard-gateway")
    })
}

/// A program of `tests/tests` with the clients of `.ci/clients`.
fn python_command(program: &str) -> Command {
    let mut python = Command::new(clients().join("venv/bin/python"));
    python.env("PYTHONDONTWRITEBYTECODE", "1").arg(project().join("tests/tests").join(program));
    python
}

/// Runs such a program, and returns what it prints.
///
/// # Panics
/// If it fails.
pub fn python(program: &str, arguments: &[&str]) -> String {
    let mut python = python_command(program);
    python.args(arguments);
    run(python)
}

/// Installs clients once, and returns their folder.
fn clients() -> &'static PathBuf {
    static CLIENTS: OnceLock<PathBuf> = OnceLock::new();
    CLIENTS.get_or_init(|| {
        run(Command::new(project().join(".ci/clients")));
        project().join("target/clients")
    })
}

impl Gateway {
    /// Starts a gateway for a router, with further options.
    ///
    /// # Panics
    /// If it does not start.
    pub fn start(router: &Node, options: &[&str]) -> Self {
        let address = format!("postgresql://127.0.0.1:{}/postgres", router.port);
        Self::start_for(router, &address, options)
    }

    /// Like [`Gateway::start`], with this connection string of the router.
    ///
    /// # Panics
    /// If it does not start.
    pub fn start_for(router: &Node, address: &str, options: &[&str]) -> Self {
        let log = router.scratch_file("gateway.log");
        let mut command = Command::new(program());
        command.args(["--router", address, "--listen", "127.0.0.1:0"]);
        command.args(options).stdin(Stdio::null()).stdout(Stdio::null()).stderr(File::create(&log).expect("a log"));
        let process = command.spawn().expect("the gateway can be started");
        let mut gateway = Self { port: 0, process: Some(process), log };
        gateway.await_start(0);
        gateway
    }

    /// The gateway that a server itself runs. Waits until it has started at least `starts` times, according to the server's log.
    ///
    /// # Panics
    /// If it does not start.
    pub fn of_server(server: &Node, starts: usize) -> Self {
        let mut gateway = Self { port: 0, process: None, log: server.log_path() };
        gateway.await_start(starts - 1);
        gateway
    }

    fn await_start(&mut self, before: usize) {
        let began = Instant::now();
        while self.port == 0 {
            assert!(began.elapsed() < PATIENCE, "the gateway does not start: {}", self.log());
            std::thread::sleep(Duration::from_millis(20));
            let lines = BufReader::new(File::open(&self.log).expect("a log")).lines().map_while(Result::ok);
            let mut listening = lines.filter_map(|line| {
                line.rsplit_once("docshard-gateway: listening on 127.0.0.1:").map(|(_, port)| port.to_owned())
            });
            self.port = listening.nth(before).and_then(|port| port.parse().ok()).unwrap_or(0);
        }
    }

    /// The path of the program.
    pub fn path() -> &'static PathBuf {
        program()
    }

    /// What it has logged.
    ///
    /// # Panics
    /// If the log cannot be read.
    pub fn log(&self) -> String {
        String::from_utf8_lossy(&fs::read(&self.log).expect("a log")).into_owned()
    }

    /// True while the process runs.
    pub fn is_running(&mut self) -> bool {
        self.process.as_mut().is_some_and(|process| process.try_wait().is_ok_and(|status| status.is_none()))
    }

    /// Its process id.
    ///
    /// # Panics
    /// If a server runs it.
    pub fn pid(&self) -> u32 {
        self.process.as_ref().expect("a process of the test").id()
    }

    /// Kills it.
    ///
    /// # Panics
    /// If a server runs it.
    pub fn kill(&mut self) {
        let process = self.process.as_mut().expect("a process of the test");
        process.kill().expect("it can be killed");
        process.wait().expect("it has ended");
    }

    /// The connection string of a user.
    pub fn uri(&self, user: &str, password: &str) -> String {
        let password: String = password.bytes().map(|byte| format!("%{byte:02X}")).collect();
        format!("mongodb://{user}:{password}@127.0.0.1:{}/?serverSelectionTimeoutMS=20000", self.port)
    }

    /// Runs a program of `tests/tests/gateway` with pymongo, and returns what it prints.
    ///
    /// # Panics
    /// If it fails.
    pub fn python(&self, program: &str, arguments: &[&str]) -> String {
        run(self.python_command(program, arguments))
    }

    /// Starts such a program, with pipes to its input and output.
    ///
    /// # Panics
    /// If it cannot be started.
    pub fn start_python(&self, program: &str, arguments: &[&str]) -> Child {
        let mut python = self.python_command(program, arguments);
        python.stdin(Stdio::piped()).stdout(Stdio::piped());
        python.spawn().expect("python can be started")
    }

    fn python_command(&self, program: &str, arguments: &[&str]) -> Command {
        let mut python = python_command(&format!("gateway/{program}"));
        python.arg(self.port.to_string()).args(arguments);
        python
    }

    /// Runs a script of `tests/tests/gateway` by node, with the driver and mongoose, and returns what it prints.
    ///
    /// # Panics
    /// If it fails.
    pub fn node(&self, script: &str, uri: &str) -> String {
        let mut node = Command::new("node");
        node.env("NODE_PATH", clients().join("node/node_modules"));
        node.arg(project().join("tests/tests/gateway").join(script)).arg(uri);
        run(node)
    }

    /// The path of mongosh.
    pub fn mongosh_path() -> PathBuf {
        clients().join("node_modules/.bin/mongosh")
    }

    /// Runs a script of `tests/tests/gateway` in mongosh, and returns what it prints.
    ///
    /// # Panics
    /// If it fails.
    pub fn mongosh(&self, script: &str, uri: &str) -> String {
        let mut shell = Command::new(Self::mongosh_path());
        shell.env("HOME", self.log.parent().expect("a folder"));
        shell.args([uri, "--quiet", "--norc", "--file"]).arg(project().join("tests/tests/gateway").join(script));
        run(shell)
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        if let Some(process) = &mut self.process {
            let _ = process.kill();
            let _ = process.wait();
        }
    }
}
