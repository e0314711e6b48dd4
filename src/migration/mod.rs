//! Moves a chunk from one shard to another, with two-phase commit between them and one decision in the catalog.
//!
//! # Sessions
//! *T* hands over (on the donor), *S* pulls (on the recipient, through postgres_fdw, so documents cross the network once), *R*
//! loads (on the recipient). S is separate from R as a transaction that used postgres_fdw can't be prepared.
//!
//! # Steps
//! 1. [`register`]: inserts the catalog row, *running*, durably before any side effect; the coordinator holds a lock on it.
//! 2. The recipient gets the collection's table and indexes, and foreign tables over the donor's table and captured changes.
//!    Meanwhile the donor divides the range into parts.
//! 3. Capture: the donor commits a capture row. From now on writers to the range share the migration's lock. Then the
//!    coordinator polls until the transactions that held the collection's lock before have ended.
//! 4. Clone: S pulls into a staging table, part by part ([`crate::ownership::clone_parts`]). R loads from there, in one
//!    uncommitted transaction. Meanwhile the row trigger, [`crate::storage::rows::capture`], logs the keys that change in the
//!    range, and T's session locates the documents that it will delete ([`crate::ownership::donor_delete`]).
//! 5. Catch up: S pulls the logged keys with their current documents, R applies them by key. This repeats until a round is
//!    small.
//! 6. Hand over: T takes the migration's lock exclusively, when no writer holds it for long: now writers to the range wait,
//!    reads continue. A last round follows; T deletes the range, compares and sets the donor's version, and deletes capture and
//!    log. T's deleted count must equal R's. If that takes longer than `docshard.max_write_stall` ([`stall`]), T is rolled back,
//!    writers continue, and 5 is repeated. R advances the recipient's version. Both prepare.
//!    Then the standbys that stream from the two shards must have what these have prepared ([`standbys`]).
//! 7. Decide: one catalog commit, *running → committed*, by compare-and-set.
//! 8. [`settle`]: T commits, then R, then the map changes (*moved*), then the move's remains are dropped (*done*).
//!
//! Writers to the range wait from 6 until the map changes, other writers never. A transaction that wrote to the range and stays
//! open delays step 6; after `move_wait_ms` the move gives up. The transaction is never cancelled.
//!
//! # Invariants (of ownership)
//! 1. Rows and version change in the same commit, on each shard: T's delete with the donor's version, R's insert with
//!    the recipient's.
//! 2. T commits before R, and both before the map changes. So a statement with the old map is stale by T's version before the
//!    recipient can take a write; and a statement with the new map finds both shards at its version.
//! 3. Before the decision nothing is committed on a shard except the capture and its log, the staging tables and perhaps an
//!    empty table: an abort changes no document. After the decision a move cannot be aborted.
//! 4. Versions are assigned under the collection's lock, and never reused, even if the move aborts.
//! 5. If a coordinator ends, at any step, [`recovery`] replaces it and follows the catalog's decision.

mod abort;
mod adopt;
mod attempt;
mod cleanup;
mod coordinator;
mod copy;
mod donor;
pub mod foresight;
pub mod jobs;
pub mod lost;
mod median;
mod names;
mod pieces;
mod range;
mod recipient;
mod record;
pub mod recovery;
mod register;
mod request;
mod settle;
pub mod shard;
mod stall;
mod standbys;

pub use cleanup::sweep;
pub use coordinator::run;
pub use donor::{exclude_range_writers, release_range_writers};
pub use median::median;
pub use record::{busy_shards, resting_ranges, running_of_balancer, undecided};
pub use request::{MoveRequest, MoveResult, RangeRequest};

/// Called from `_PG_init`.
pub fn init() {
    stall::init();
    jobs::init();
}
