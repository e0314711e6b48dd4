//! Starts real clusters for the tests: a router and some shards, each a PostgreSQL server of its own on a free loopback
//! port, with docshard preloaded.
//!
//! The servers run from the private PostgreSQL installation that `.ci/pg_private` makes, in which
//! `make test-part` and `make test` install the extension. All files of a cluster are in one folder of the system's temporary
//! folder. Servers are children of the test's process. They stop when their [`Cluster`] is dropped, and also when the process
//! dies.
//!
//! ```no_run
//! use docshard_tests::Cluster;
//! let mut cluster = Cluster::start(3);
//! let mut client = cluster.router.client();
//! client.execute("SELECT docshard.insert_one('db.c', '{\"a\": 1}')", &[]).unwrap();
//! cluster.shards[1].kill9();
//! cluster.shards[1].start();
//! ```

mod cluster;
pub mod conformance;
mod data;
pub mod faults;
mod gateway;
pub mod history;
pub mod impostor;
mod installation;
pub mod logins;
pub mod moving;
mod process;
mod proxy;
mod release;

pub use cluster::{Authority, Backup, Cluster, DiskClone, FrozenReceiver, Node, Standby, Started};
pub use data::{docs, shared_data};
pub use faults::Fault;
pub use gateway::{Gateway, python};
pub use installation::Installation;
pub use process::is_alive;
pub use proxy::{Conditions, Proxy};
pub use release::Release;

use std::time::{Duration, Instant};

/// True for `make test-all`, which takes its time: tests with thousands of cases then do all of them instead of a sample, and long ones
/// run.
pub fn is_thorough() -> bool {
    std::env::var_os("DOCSHARD_THOROUGH").is_some()
}

/// Waits until `condition` holds.
///
/// # Panics
/// If it does not hold within `limit`.
pub fn wait_until(what: &str, limit: Duration, mut condition: impl FnMut() -> bool) {
    let began = Instant::now();
    while !condition() {
        let waited = began.elapsed();
        assert!(waited < limit, "not within {limit:?}: {what}");
        // Most conditions open a session, which takes longer than a short pause: what is waited for would wait for the processor.
        std::thread::sleep((waited / 8).clamp(Duration::from_millis(20), Duration::from_millis(300)));
    }
}
