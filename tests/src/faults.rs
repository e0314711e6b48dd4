//! Fault points: pauses, errors and crashes of a server's process at a named place, and mechanisms that are switched off.
//!
//! They need a build of the extension with the feature `fault_points`. `src/pg/fault_points.txt` lists the names, and
//! `src/pg/fault.rs` describes the mechanism.

use crate::cluster::Node;
use crate::process::{children, hand_over, is_known, signal, signal_all};
use crate::wait_until;
use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// All points and mechanisms.
const TABLE: &str = include_str!("../../src/pg/fault_points.txt");

/// Limit for a process to reach an expected point.
const PATIENCE: Duration = Duration::from_secs(60);

/// The effect on the first process that reaches a point.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// waits until [`Node::release`]
    Pause,
    /// raises an ERROR
    Error,
    /// dies by SIGKILL, and with it all sessions of its server
    Kill,
}

impl Fault {
    fn order(self) -> &'static str {
        match self {
            Fault::Pause => "pause",
            Fault::Error => "error",
            Fault::Kill => "kill",
        }
    }
}

/// The names of that kind (`point`, `mechanism`) at that place (`router`, `shard`).
pub fn names(kind: &str, place: &str) -> Vec<&'static str> {
    let rows = TABLE.lines().filter(|line| !line.starts_with('#')).map(|line| line.split('\t').collect::<Vec<_>>());
    rows.filter(|row| row[0] == kind && row[2] == place).map(|row| row[1]).collect()
}

fn check(kind: &str, name: &str) {
    let known = ["router", "shard"].iter().any(|place| names(kind, place).contains(&name));
    assert!(known, "no {kind} {name} in src/pg/fault_points.txt");
}

impl Node {
    /// Arms a point: the first process of this server that reaches it pauses, fails or dies. Processes that reached it before are
    /// forgotten. The server need not run.
    ///
    /// # Panics
    /// If there is no such point, or the server runs and its build has none at all.
    pub fn arm(&self, point: &str, fault: Fault) {
        check("point", point);
        if self.pid().is_some() {
            let shown = self.client().query_opt("SHOW docshard.fault_points", &[]);
            assert!(
                shown.is_ok(),
                "the installed docshard has no fault points: cargo pgrx install --features fault_points --pg-config \
                 .pgrx/bin/pg_config"
            );
        }
        let _ = fs::remove_file(self.fault_file(point, ".reached"));
        self.order(point, fault);
    }

    /// Arms a point again, and then resumes the process that pauses there: it may be the next one that reaches the point.
    pub fn rearm(&self, point: &str, fault: Fault) {
        self.order(point, fault);
        let _ = fs::remove_file(self.fault_file(point, ".reached"));
    }

    fn order(&self, point: &str, fault: Fault) {
        // Renamed, so that it is never read half written.
        let new = self.fault_file(point, ".new");
        fs::write(&new, fault.order()).expect("a file in the data directory");
        hand_over(&new);
        fs::rename(&new, self.fault_file(point, "")).expect("a file in the data directory");
    }

    /// The process that reached an armed point, if there is one.
    pub fn reached(&self, point: &str) -> Option<u32> {
        fs::read_to_string(self.fault_file(point, ".reached")).ok()?.trim().parse().ok()
    }

    /// Waits until a process has reached an armed point, and returns its id.
    ///
    /// # Panics
    /// If none does in a long time.
    pub fn await_fault(&self, point: &str) -> u32 {
        let mut found = None;
        wait_until(&format!("{} gets to {point}", self.name), PATIENCE, || {
            found = self.reached(point);
            found.is_some()
        });
        found.expect("waited for")
    }

    /// Disarms a point, and resumes the process that pauses there.
    pub fn release(&self, point: &str) {
        check("point", point);
        for suffix in ["", ".reached"] {
            let _ = fs::remove_file(self.fault_file(point, suffix));
        }
    }

    /// Disarms all points, resumes pausing processes, and switches all mechanisms on.
    pub fn clear_faults(&self) {
        let _ = fs::remove_dir_all(self.fault_folder());
    }

    /// Switches a mechanism off, for this server's processes.
    ///
    /// # Panics
    /// If there is no such mechanism.
    pub fn switch_off(&self, mechanism: &str) {
        check("mechanism", mechanism);
        fs::write(self.fault_file(mechanism, ".off"), "").expect("a file in the data directory");
    }

    /// Switches it on again.
    pub fn switch_on(&self, mechanism: &str) {
        let _ = fs::remove_file(self.fault_file(mechanism, ".off"));
    }

    /// Stops a process of this server with SIGSTOP, as on a stalled machine: it does not answer.
    pub fn freeze(&self, pid: u32) {
        signal(pid, "STOP");
    }

    /// Stops all processes of this server with SIGSTOP: the system accepts connections, but no process answers.
    ///
    /// # Panics
    /// If it doesn't run.
    pub fn freeze_all(&self) {
        let postmaster = self.pid().expect("it runs");
        signal(postmaster, "STOP");
        signal_all(&children(postmaster), "STOP");
    }

    /// Resumes all of them.
    ///
    /// # Panics
    /// If it doesn't run.
    pub fn thaw_all(&self) {
        let postmaster = self.pid().expect("it runs");
        signal_all(&children(postmaster), "CONT");
        signal(postmaster, "CONT");
    }

    /// Kills a process of this server by SIGKILL, and waits until the server has restarted all processes. False if the process
    /// ended by itself before: then the server goes on.
    ///
    /// # Panics
    /// If that takes too long.
    pub fn kill(&self, pid: u32) -> bool {
        /// Longer than a postmaster that has waited for a killed process takes to end the other ones.
        const GRACE: Duration = Duration::from_secs(5);
        let mut witness = self.client();
        signal(pid, "KILL");
        let (mut down, mut gone) = (false, None);
        // The postmaster accepts sessions until it notices.
        wait_until(&format!("{} goes down", self.name), PATIENCE, || {
            if gone.is_none() && !is_known(pid) {
                gone = Some(Instant::now());
            }
            down = witness.batch_execute("SELECT 1").is_err();
            down || gone.is_some_and(|since| since.elapsed() > GRACE)
        });
        wait_until(&format!("{} is back", self.name), PATIENCE, || self.try_client().is_ok());
        down
    }

    /// Resumes it.
    pub fn thaw(&self, pid: u32) {
        signal(pid, "CONT");
    }

    fn fault_folder(&self) -> PathBuf {
        self.data().join("docshard_fault_points")
    }

    fn fault_file(&self, name: &str, suffix: &str) -> PathBuf {
        let folder = self.fault_folder();
        if !folder.is_dir() {
            fs::create_dir_all(&folder).expect("a folder in the data directory");
            hand_over(&folder);
        }
        folder.join(format!("{name}{suffix}"))
    }
}
