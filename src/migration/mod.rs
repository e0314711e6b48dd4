//! Moves a chunk from one shard to another, with two-phase commit between them and one decision in the catalog.
//!
//! docs/architecture/migration.md has its sessions, its steps and why they are correct. [`coordinator`] runs all of them;
//! [`register`] is step 1, [`donor`] and [`recipient`] have what steps 2 to 6 do at either shard, [`copy`] has steps 4 to 6, [`settle`] is
//! step 8. *The donor's part* is the transaction that deletes the range, *the recipient's part* the one that has loaded it.
//!
//! # Invariants (of ownership)
//! 1. Rows and version change in the same commit, on each shard, in its part of the move.
//! 2. The donor's part commits before the recipient's, and both before the map changes. So a statement with the old map is stale by the
//!    donor's version before the recipient can take a write; and a statement with the new map finds both shards at its version.
//! 3. Before the decision nothing is committed on a shard except the capture and its log, the parts of the range, the
//!    staging tables, copied numbered writes and perhaps an empty table: an abort changes no document. After the
//!    decision a move cannot be aborted.
//! 4. Versions are assigned under the collection's lock, and never reused, even if the move aborts.
//! 5. If a coordinator ends, at any step, [`recovery`] replaces it and follows the catalog's decision.

pub mod abort;
mod adopt;
mod attempt;
mod cleanup;
mod coordinator;
mod copy;
mod donor;
pub mod follow;
pub mod foresight;
pub mod jobs;
pub mod lost;
mod median;
pub mod names;
pub mod numbered;
mod pieces;
pub mod pulling;
mod range;
mod recipient;
mod record;
pub mod recovery;
pub mod register;
mod request;
mod settle;
pub mod shard;
pub mod stall;
pub mod standbys;

pub use cleanup::sweep;
pub use coordinator::run;
pub use donor::{exclude_range_writers, release_range_writers};
pub use follow::HOW_TO_END;
pub use median::median;
pub use record::{busy_shards, is_in_catalog, resting_ranges, running_of_balancer, undecided};
pub use request::{MANUAL, MOVE_PRIMARY, MoveRequest, MoveResult, RangeRequest};

/// Called from `_PG_init`.
pub fn init() {
    stall::init();
    jobs::init();
}
