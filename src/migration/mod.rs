//! Moving a chunk from one shard to another, with two-phase commit between them and one decision in the catalog.
//!
//! # Sessions
//! *T* hands over (donor), *S* pulls (recipient, through postgres_fdw, so documents cross the network once), *R* loads
//! (recipient). A transaction that touched postgres_fdw can't be prepared, hence S beside R.
//!
//! # Steps
//! 1. [`register`]: the attempt, *running*, durable before any side effect; its coordinator holds a lock on it.
//! 2. The recipient gets the collection's table and indexes, and foreign tables over what the donor packs and captures.
//!    Meanwhile the donor divides the range into parts.
//! 3. Capture: the donor commits a capture row. From now on writers to the range share the migration's lock. Then wait,
//!    by watching, for the transactions that held the collection's lock before.
//! 4. Clone: S pulls into a staging table, part by part ([`crate::ownership::parts`]). R loads from there, in one transaction that nobody sees.
//!    Meanwhile the row trigger, [`crate::ownership::capture`], logs the keys that change in the range; and T's session
//!    writes the pages of the documents that it is to delete into the WAL ([`crate::ownership::leaving`]).
//! 5. Catch up: S pulls the logged keys with their present documents, R applies them; again and again, until a round is
//!    small.
//! 6. Hand over: T takes the migration's lock exclusively, which it asks for only while nobody stays in the way: now
//!    writers to the range wait, reads go on. A last round; R advances the recipient's version. T deletes the range,
//!    compares and sets the donor's version, and deletes capture and log. T's deleted count must equal R's. Both prepare.
//! 7. Decide: one catalog commit, *running → committed*, compared and set.
//! 8. [`settle`]: T commits, then R, then the map flips (*moved*), then what is left is dropped (*done*).
//!
//! Writers to the range wait from 6 until the map flips, other writers never. One that stays in a transaction after it
//! wrote to the range postpones 6, and so ends the move after `move_wait_ms`; it is never cut.
//!
//! # Invariants (of ownership)
//! 1. Rows and version change in the same commit, on each shard: T's delete with the donor's version, R's insert with
//!    the recipient's.
//! 2. T commits before R, and both before the map changes, so a statement with the old map is told that it is stale, by
//!    T's version, before the recipient can take a write; and one with the new map finds both shards at its version.
//! 3. Before the decision nothing is committed on a shard but the capture and its log, the staging tables and perhaps an empty
//!    table: an abort changes no document. After it nobody aborts.
//! 4. Versions are given out under the collection's lock, and never again, even if the attempt aborts.
//! 5. A coordinator that vanished, at any step, is replaced by [`recovery`], which follows the catalog's decision.

mod abort;
mod copy;
mod donor;
pub mod foresight;
pub mod jobs;
pub mod lost;
mod median;
mod range;
mod recipient;
mod record;
pub mod recovery;
mod register;
mod settle;
pub mod shard;

use crate::catalog::settings;
use crate::catalog::shards::cluster_id;
use crate::pg::error::{Error, Result};
use crate::pg::fault;
use crate::pg::lock::{self, Mode, Tag};
use crate::pg::{background, transaction};
use copy::Copy;
use docshard_core::chunk_map::ShardId;
use docshard_core::migration::State;
use record::Record;
use register::Registered;
use settle::Sides;
use std::time::{Duration, Instant};

pub use abort::Aborted;
pub use donor::{end_hand_over, exclude_writers_to_range};
pub use jobs::init;
pub use median::median;
pub use range::RangeRequest;
pub use record::{shards_of_undecided, undecided, undecided_of_balancer};

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
    /// copy at most so many bytes a second on average; 0: no limit
    pub bytes_per_second: u64,
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
    let result = transaction::guarded(|| attempt(registered, request.bytes_per_second));
    let result = match result {
        Ok(decided) => transaction::guarded(|| finish(decided)),
        Err(cause) => Err(take_back(id, cause)),
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
fn attempt(registered: Registered, bytes_per_second: u64) -> Result<Decided> {
    let Registered { record, end, mut donor, mut recipient, mut puller, index_on_id, place, application } = registered;
    let id = record.id;
    for session in [&mut donor, &mut recipient, &mut puller] {
        fault::point("move.registering")?;
        session.execute(&format!("SET application_name = {}", crate::pg::sql::quote_literal(&application)))?;
    }
    // What S writes is staging, of no use after a crash.
    puller.execute("SET synchronous_commit = off")?;
    let step = |name: &str| transaction::run(|| record::note_step(id, name));

    fault::point("move.registered")?;
    step("preparing the recipient")?;
    let end = end.as_deref();
    let rows = recipient::batch_rows(donor::size_of_documents(&mut donor, &record, end)?);
    let estimated = donor::estimate(&mut donor, &record, end)?;
    donor::check_version(&mut donor, &record, record.donor_version)?;
    donor::start_dividing(&mut donor, &record, end, rows)?;
    if place {
        recipient::place(&mut recipient, &record, index_on_id)?;
        register::placed(&record)?;
    }
    fault::point("move.placed")?;
    donor::check_version(&mut recipient, &record, record.recipient_version)?;
    recipient::prepare_staging(&mut puller, &record, &donor.server, rows)?;
    let unique = recipient::has_unique_index(&record)?;
    let parts = donor::finish_dividing(&mut donor)?;
    fault::point("move.staged")?;

    transaction::run(|| {
        record::note_estimate(id, estimated)?;
        record::note_step(id, "waiting for writers")
    })?;
    let patience = transaction::run(|| settings::integer("move_wait_ms"))?;
    let patience = Duration::from_millis(u64::try_from(patience).unwrap_or(0));
    donor::begin_capture(&mut donor, &record, end)?;
    fault::point("move.captured")?;
    donor::wait_for_writers(&mut donor, &record, Instant::now() + patience)?;
    fault::point("move.writers_gone")?;

    step("cloning")?;
    let mut copy = Copy::new(&record, end, &mut donor, &mut recipient, &mut puller, parts, unique)?;
    // T's session has nothing else to do meanwhile: most of the work is writing pages into the WAL, and done once. What it
    // finds is found again below, as late as can be, so that the comparison of counts also tells of documents that came
    // without being captured.
    donor::start_noting(copy.donor, &record, end)?;
    copy.clone_range(bytes_per_second)?;
    fault::point("move.cloned")?;
    step("catching up")?;
    donor::finish_noting(copy.donor)?;
    copy.catch_up()?;
    donor::start_noting(copy.donor, &record, end)?;
    donor::finish_noting(copy.donor)?;
    copy.catch_up()?;
    copy.note_now()?;
    fault::point("move.caught_up")?;

    step("handing over")?;
    copy.exclude_writers(Instant::now() + patience)?;
    let stalled = Instant::now();
    fault::point("move.frozen")?;
    donor::start_delete(copy.donor, &record, end)?;
    fault::point("move.deleting")?;
    copy.apply_changes()?;
    fault::point("move.last_round")?;
    donor::set_version(copy.recipient, &record, record.recipient_version)?;
    let cluster = transaction::run(cluster_id)?;
    settle::prepare(copy.recipient, &record::names::recipient_gid(cluster, id))?;
    fault::point("move.recipient_prepared")?;
    donor::hand_over(copy.donor, &record, copy.documents)?;
    settle::prepare(copy.donor, &record::names::donor_gid(cluster, id))?;
    fault::point("move.prepared")?;

    let (documents, bytes) = (copy.documents, copy.bytes);
    let decided = transaction::run(|| {
        copy.note_size()?;
        record::note_stall(id, i64::try_from(stalled.elapsed().as_millis()).unwrap_or(i64::MAX))?;
        background::check_wanted()?;
        record::advance(id, State::Running, State::Committed)
    })?;
    if !decided {
        return Err(abort::interrupted());
    }
    fault::point("move.decided")?;
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
fn take_back(id: i64, cause: Error) -> Error {
    let aborted = transaction::run(|| {
        record::note_error(id, &cause)?;
        record::advance(id, State::Running, State::Aborted)
    });
    // What cannot be cleaned now is cleaned by recovery.
    if aborted.is_ok() && transaction::guarded(|| fault::point("move.aborted")).is_ok() {
        let _ = settle::settle(id);
    }
    // Somebody else had aborted it, and then interrupted this process, or taken it for dead.
    let by_somebody_else = matches!(aborted, Ok(false)) && settle::clean_late(id).unwrap_or(false);
    if by_somebody_else { abort::interrupted() } else { cause }
}
