//! Starts real clusters for the tests: a router and some shards, each a PostgreSQL server of its own on a free loopback
//! port, with docshard preloaded.
//!
//! The servers run from the private PostgreSQL installation that `.ci/pg_private` makes (or from `PG_BINDIR`), in which
//! `make test-cluster` installs the extension. Everything of a cluster is in one folder in the system's temporary one.
//! Servers are children of the test's process: a test can kill them and start them again, and when a [`Cluster`] goes
//! out of scope, or the process dies in whatever way, they are gone.
//!
//! ```no_run
//! use docshard_tests::Cluster;
//! let mut cluster = Cluster::start(3);
//! let mut client = cluster.router.client();
//! client.execute("SELECT docshard.insert_one('db.c', '{\"a\": 1}')", &[]).unwrap();
//! cluster.shards[1].kill9();
//! cluster.shards[1].start();
//! ```

mod authority;
mod cluster;
pub mod conformance;
mod data;
pub mod faults;
pub mod history;
pub mod history_check;
pub mod history_run;
pub mod moving;
pub mod nemesis;
mod process;
mod proxy;
mod release;
pub mod workload;

pub use cluster::{Backup, Cluster, Node, Standby, Twin};
pub use data::{docs, shared_data};
pub use faults::Fault;
pub use process::is_alive;
pub use proxy::{Proxy, Weather};
pub use release::Release;

use std::time::{Duration, Instant};

/// Looks again and again until `condition` holds.
///
/// # Panics
/// If it doesn't within `limit`.
pub fn wait_until(what: &str, limit: Duration, mut condition: impl FnMut() -> bool) {
    let began = Instant::now();
    while !condition() {
        assert!(began.elapsed() < limit, "not within {limit:?}: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}
