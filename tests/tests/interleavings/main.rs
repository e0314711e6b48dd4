//! The known interleavings of a move with other processes, one order of events per test: each process is held at a named point of
//! the source until the others have reached theirs. The numbers are those of the list in `docs/architecture/tests.md`.

mod building;
mod crashes;
mod ddl;
mod failover;
mod numbered;
mod single;
mod staging;
mod switches;
mod whole;
mod writers;

use docshard_tests::Fault;
use docshard_tests::moving::{Moving, NS, Pending};

/// Runs a client's statement with the chunk map that it has cached: it is held at the router, right before it sends.
fn with_old_map<T>(moving: &Moving, start: impl FnOnce() -> Pending<T>) -> Pending<T> {
    moving.cluster.router.arm("dispatch.sending", Fault::Pause);
    let pending = start();
    moving.cluster.router.await_fault("dispatch.sending");
    pending
}

fn upsert(k: i64) -> String {
    format!(
        "SELECT docshard.update_one('{NS}', '{{\"k\": {k}, \"_id\": {k}}}', '{{\"$inc\": {{\"n\": 1}}}}', \
         '{{\"upsert\": true}}')"
    )
}

fn point_read(k: i64) -> String {
    format!("SELECT (d->>'n')::int8 FROM docshard.find('{NS}', '{{\"k\": {k}, \"_id\": {k}}}') d")
}

/// The points of a move's coordinator before its decision, in order.
const BEFORE_THE_DECISION: [&str; 15] = [
    "move.registered",
    "move.placed",
    "move.staged",
    "move.captured",
    "move.writers_gone",
    "move.cloning",
    "move.cloned",
    "move.pulled",
    "move.applied",
    "move.caught_up",
    "move.frozen",
    "move.deleting",
    "move.last_round",
    "move.recipient_prepared",
    "move.prepared",
];

/// The points after the decision.
const AFTER_THE_DECISION: [&str; 5] =
    ["move.decided", "move.donor_committed", "move.recipient_committed", "move.flipped", "move.cleaned"];
