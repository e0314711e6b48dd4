//! Gives a collection another layout (shard key, chunks, shards) while it is read and written.
//!
//! The documents are copied into a second collection, the *copy*, which nobody reads: see [`layout`](crate::catalog::collections::layout).
//! Every shard with documents is a donor, every shard of the new layout a recipient; both may be the same one.
//! docs/architecture/resharding.md has the steps and why they are correct. [`coordinator`] runs them; [`register`] begins, [`space`]
//! estimates the space that is needed, [`sessions`] prepares donors and recipients, [`copying`] clones and catches up, [`decision`]
//! excludes writers, compares and decides, [`settle`] cleans up.
//!
//! # Invariants
//! 1. Before the decision no document of the collection changes: an abort drops the copy.
//! 2. The decision is one transaction of all nodes, which commits only if the row was *running*: either the collection is the copy
//!    with all documents, or it is as before.
//! 3. From the exclusion of writers to the end of that transaction nobody writes to the collection; so the rounds that find the logs
//!    empty within it have made the copy equal.
//! 4. A row of a donor's log is deleted only after every recipient has applied it.
//! 5. If a coordinator ends, at any step, [`settle::recover`] follows the catalog's row.

mod abort;
mod coordinator;
mod copying;
mod decision;
mod evidence;
pub mod jobs;
mod plan;
mod refused;
mod register;
mod request;
mod restored;
mod sessions;
mod settle;
mod space;

pub use request::{Range, Request, Resharded, Target};
pub use settle::{Answer, confirm, end_without, exist_unfinished, recover};

/// Called from `_PG_init`.
pub fn init() {
    jobs::init();
}
