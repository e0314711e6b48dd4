//! Moving a chunk from one shard to another, with two-phase commit between them and one decision in the catalog.
//!
//! # Sessions
//! *T* hands over (donor), *S* pulls (recipient, through postgres_fdw, so documents cross the network once), *R* loads
//! (recipient). A transaction that touched postgres_fdw can't be prepared, hence S beside R.
//!
//! # Steps
//! 1. [`register`]: the attempt, *running*, durable before any side effect; its coordinator holds a lock on it.
//! 2. The recipient gets the collection's table and indexes, and a foreign table over the donor's.
//! 3. Capture: the donor commits a capture row. From now on writers to the range share the migration's lock. Then wait,
//!    by watching, for the transactions that held the collection's lock before.
//! 4. T takes the migration's lock exclusively: the range is frozen, reads go on.
//! 5. Clone: S pulls into a staging table. R loads from there, in a transaction of its own, together with the
//!    recipient's new version.
//! 6. Hand over: T deletes the range, compares and sets the donor's version, and deletes the capture row. T's deleted
//!    count must equal R's. R and T prepare.
//! 7. Decide: one catalog commit, *running → committed*, compared and set.
//! 8. [`settle`]: T commits, then R, then the map flips (*moved*), then what is left is dropped (*done*).
//!
//! A step that catches up with changes made during the clone would stand between 5 and 6, and 4 after it; today writers
//! to the range wait from 4 on.
//!
//! # Invariants (of ownership)
//! 1. Rows and version change in the same commit, on each shard: T's delete with the donor's version, R's insert with
//!    the recipient's.
//! 2. T commits before R, and both before the map changes, so a statement with the old map is told that it is stale, by
//!    T's version, before the recipient can take a write; and one with the new map finds both shards at its version.
//! 3. Before the decision nothing is committed on a shard but the capture row, the staging tables and perhaps an empty
//!    table: an abort changes no document. After it nobody aborts.
//! 4. Versions are given out under the collection's lock, and never again, even if the attempt aborts.
//! 5. A coordinator that vanished, at any step, is replaced by [`recovery`], which follows the catalog's decision.

mod donor;
pub mod jobs;
mod median;
mod recipient;
mod record;
pub mod recovery;
mod register;
mod settle;
mod shard;

use crate::catalog::settings;
use crate::catalog::shards::cluster_id;
use crate::pg::error::{Error, Result};
use crate::pg::lock::{self, Mode, Tag};
use crate::pg::transaction;
use docshard_core::chunk_map::ShardId;
use docshard_core::migration::State;
use record::Record;
use register::Registered;
use settle::Sides;
use std::time::{Duration, Instant};

pub use donor::exclude_writers_to_range;
pub use jobs::init;
pub use median::median;
pub use record::undecided;

/// What is to be moved.
#[derive(Clone, Debug)]
pub struct MoveRequest {
    /// the collection
    pub namespace: String,
    /// the chunk's lower bound
    pub min: Vec<u8>,
    /// the chunk's upper bound
    pub max: Vec<u8>,
    /// the new owner
    pub to: ShardId,
    /// also a chunk that is marked jumbo
    pub force_jumbo: bool,
    /// who wants it, for the changelog: `manual`, `balancer`, `draining` …
    pub reason: String,
}

/// What was moved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// false if the chunk was there already
    pub moved: bool,
    /// documents
    pub documents: i64,
    /// their bytes, as stored
    pub bytes: i64,
    /// how long it took, in milliseconds
    pub millis: i64,
}

/// Moves a chunk. Runs in a background worker, outside any transaction; whatever interrupts its waits must raise an
/// ERROR, or end the process (then [`recovery::recover`] cleans up).
///
/// # Errors
/// `NamespaceNotFound`, `ShardNotFound`, `ConflictingOperationInProgress`, `ChunkTooBig` (jumbo), `IllegalOperation`
/// (draining, no prepared transactions), `LockTimeout` (somebody writes to the chunk and does not end), and what the
/// shards answer. After an error the chunk is where it was, unless the move was decided: then recovery completes it.
pub fn run(request: &MoveRequest) -> Result<Outcome> {
    let began = Instant::now();
    recovery::recover_collection(&request.namespace)?;
    let prepared = register::look(request)?;
    let Some(prepared) = prepared else {
        return Ok(Outcome { moved: false, documents: 0, bytes: 0, millis: 0 });
    };
    let registered = register::register(request, prepared)?;
    let id = registered.record.id;
    let result = transaction::guarded(|| attempt(registered));
    let result = match result {
        Ok(decided) => transaction::guarded(|| finish(decided)),
        Err(cause) => Err(abort(id, cause)),
    };
    lock::release_for_session(Tag::Coordinator(id), Mode::Exclusive);
    result.map(|(documents, bytes)| {
        let millis = i64::try_from(began.elapsed().as_millis()).unwrap_or(i64::MAX);
        Outcome { moved: true, documents, bytes, millis }
    })
}

/// A move whose decision is in the catalog, with the sessions that prepared it.
struct Decided {
    record: Record,
    sides: Sides,
}

/// Steps 2 to 7. On an error the sessions are dropped, which rolls back what they have open.
fn attempt(registered: Registered) -> Result<Decided> {
    let Registered { record, end, mut donor, mut recipient, mut puller, index_on_id, place } = registered;
    let id = record.id;
    let step = |name: &str| transaction::run(|| record::note_step(id, name));

    step("preparing the recipient")?;
    if place {
        recipient::place(&mut recipient, &record, index_on_id)?;
        register::placed(&record)?;
    }
    let size = donor::size_of_documents(&mut donor, &record, end.as_deref())?;
    recipient::prepare_staging(&mut puller, &record, &donor.server, size)?;

    step("waiting for writers")?;
    let patience = transaction::run(|| settings::integer("move_wait_ms"))?;
    let deadline = Instant::now() + Duration::from_millis(u64::try_from(patience).unwrap_or(0));
    donor::capture(&mut donor, &record, end.as_deref())?;
    donor::wait_for_writers(&mut donor, &record, deadline)?;
    donor::freeze(&mut donor, &record, deadline)?;

    step("cloning")?;
    let (documents, bytes) = recipient::pull(&mut puller, &record, end.as_deref())?;
    transaction::run(|| {
        record::note_size(id, documents, bytes)?;
        record::note_step(id, "loading")
    })?;
    recipient::load(&mut recipient, &record, end.as_deref(), documents)?;

    step("handing over")?;
    donor::hand_over(&mut donor, &record, end.as_deref(), documents)?;
    let cluster = transaction::run(cluster_id)?;
    settle::prepare(&mut recipient, &record::names::recipient_gid(cluster, id))?;
    settle::prepare(&mut donor, &record::names::donor_gid(cluster, id))?;

    if !transaction::run(|| record::advance(id, State::Running, State::Committed))? {
        return Err(Error::new(
            docshard_core::error::Kind::OperationFailed,
            "the move was aborted by somebody else while it was running",
        ));
    }
    let record = Record { state: State::Committed, documents, bytes, ..record };
    Ok(Decided { record, sides: Sides { donor: Some(donor), recipient: Some(recipient) } })
}

/// Step 8, with some patience: the decision stands, so everybody who reads waits for it.
fn finish(decided: Decided) -> Result<(i64, i64)> {
    let Decided { record, sides } = decided;
    let result = (record.documents, record.bytes);
    let mut sides = sides;
    let mut failed = match transaction::guarded(|| settle::finish_prepared(&record, &mut sides)) {
        Ok(()) => return Ok(result),
        Err(error) => error,
    };
    drop(sides);
    for pause in [50, 200, 500, 1000, 2000, 4000] {
        match settle::settle(record.id) {
            Ok(()) => return Ok(result),
            Err(error) => failed = error,
        }
        let _ = transaction::guarded(|| {
            crate::pg::server::sleep_ms(pause);
            Ok(())
        });
    }
    let _ = transaction::run(|| record::note_error(record.id, &failed));
    Err(failed.with_hint("The move is decided and will be completed as soon as both shards can be reached."))
}

/// Takes the attempt back, and returns the cause.
fn abort(id: i64, cause: Error) -> Error {
    let aborted = transaction::run(|| {
        record::note_error(id, &cause)?;
        record::advance(id, State::Running, State::Aborted)
    });
    // What cannot be cleaned now is cleaned by recovery.
    if aborted.is_ok() {
        let _ = settle::settle(id);
    }
    cause
}
