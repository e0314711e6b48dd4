//! The coordinator of a move: takes it through all its steps, which are listed in the header of [`super`].

use super::copy::{Copy, HandOver};
use super::record::{self, Record};
use super::register::{self, Registered};
use super::request::{MoveRequest, MoveResult};
use super::sides::Sides;
use super::{donor, pieces, recipient, recovery, settle, stall};
use crate::catalog::cluster::cluster_id;
use crate::catalog::settings;
use crate::pg::error::{Error, Result};
use crate::pg::fault;
use crate::pg::server::sleep_ms;
use crate::pg::spi::quote::quote_literal;
use crate::pg::{process::job, transaction};
use crate::storage::lock::{self, Mode, Tag};
use docshard_core::cluster::migration::State;
use docshard_core::error::Kind;
use std::time::{Duration, Instant};

/// After so many hand-overs in which the donor did not remove the documents in time, the chunk is split.
const SLOW_REMOVALS: i32 = 2;

/// Moves a chunk; or several neighbours of one owner, whose bounds the request has. Runs in a background worker, outside any
/// transaction; whatever interrupts its waits must raise an ERROR, or end the process (then [`recovery::recover`] cleans up).
/// A chunk that cannot be handed over within `docshard.max_write_stall` is split, and its parts move one after the other.
///
/// # Errors
/// `NamespaceNotFound`, `ShardNotFound`, `ConflictingOperationInProgress`, `ChunkTooBig` (jumbo), `IllegalOperation`
/// (draining, no prepared transactions), `LockTimeout` (somebody writes to the chunk and does not end, or it cannot be handed
/// over in time), and what the shards answer. After an error the chunk is where it was, unless the move was decided: then
/// recovery completes it.
pub fn run(request: &MoveRequest) -> Result<MoveResult> {
    match run_whole(request, true)? {
        Ended::Moved(outcome) => Ok(outcome),
        Ended::TooLarge(pieces) => match pieces::split(request, pieces)? {
            Some(parts) => MoveResult::of_all(&parts, "parts of the chunk", run_undivided).map(|(sum, _)| sum),
            None => run_undivided(request),
        },
    }
}

/// As [`run`], whatever is expected of the chunk's size.
fn run_undivided(request: &MoveRequest) -> Result<MoveResult> {
    match run_whole(request, false)? {
        Ended::Moved(outcome) => Ok(outcome),
        Ended::TooLarge(_) => Err(Error::new(Kind::InternalError, "a chunk that cannot be split was to be split")),
    }
}

/// How an attempt ended.
enum Ended {
    Moved(MoveResult),
    /// nothing has changed: it should be split into so many pieces
    TooLarge(usize),
}

fn run_whole(request: &MoveRequest, may_split: bool) -> Result<Ended> {
    let began = Instant::now();
    recovery::recover_collection(&request.namespace)?;
    let prepared = register::look(request)?;
    let Some(prepared) = prepared else {
        return Ok(Ended::Moved(MoveResult::default()));
    };
    let registered = register::register(request, prepared)?;
    let id = registered.record.id;
    let result = transaction::guarded(|| attempt(registered, request.bytes_per_second, may_split));
    let result = match result {
        Ok(Attempted::Decided(decided)) => transaction::guarded(|| finish(*decided)).map(Some),
        Ok(Attempted::TooLarge { documents, pieces }) => {
            take_back(id, stall::is_split_first(documents));
            lock::release_for_session(Tag::Coordinator(id), Mode::Exclusive);
            return Ok(Ended::TooLarge(pieces));
        }
        Err(cause) => Err(take_back(id, cause)),
    };
    lock::release_for_session(Tag::Coordinator(id), Mode::Exclusive);
    let (documents, bytes) = result?.unwrap_or_default();
    let millis = i64::try_from(began.elapsed().as_millis()).unwrap_or(i64::MAX);
    Ok(Ended::Moved(MoveResult { moved: true, documents, bytes, millis }))
}

/// A move whose decision is in the catalog, with the sessions that prepared it.
struct Decided {
    record: Record,
    sides: Sides,
}

/// What came of steps 2 to 7.
enum Attempted {
    Decided(Box<Decided>),
    /// so many documents should not be handed over at once
    TooLarge {
        documents: i64,
        pieces: usize,
    },
}

/// Steps 2 to 7. On an error the sessions are dropped, which rolls back what they have open.
fn attempt(registered: Registered, bytes_per_second: u64, may_split: bool) -> Result<Attempted> {
    let Registered { record, end, mut donor, mut recipient, mut puller, index_on_id, place, application } = registered;
    let id = record.id;
    for session in [&mut donor, &mut recipient, &mut puller] {
        fault::point("move.registering")?;
        session.execute(&format!("SET application_name = {}", quote_literal(&application)))?;
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
    // All parts but the last have as many documents.
    let counted = (parts - 1).max(0) * rows;
    if let Some(pieces) = transaction::run(|| stall::pieces(record.donor, counted))?.filter(|_| may_split) {
        return Ok(Attempted::TooLarge { documents: counted, pieces });
    }

    transaction::run(|| {
        record::set_estimate(id, estimated)?;
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
    // T's session has nothing else to do meanwhile: most of the work is writing pages into the WAL, and done once.
    donor::start_noting(copy.donor, &record, end)?;
    copy.clone_range(bytes_per_second)?;
    fault::point("move.cloned")?;
    step("catching up")?;
    donor::finish_noting(copy.donor)?;

    let cluster = transaction::run(cluster_id)?;
    let limit = stall::limit();
    let (mut attempts, mut slow_removals) = (0, 0);
    let (frozen, micros) = loop {
        let close = copy.catch_up(limit)? && {
            copy.note_leaving()?;
            copy.catch_up(limit)?
        };
        if close {
            copy.note_now()?;
            fault::point("move.caught_up")?;
            step("handing over")?;
            if copy.exclude_writers(Instant::now() + patience, limit)? {
                let frozen = Instant::now();
                match copy.hand_over(frozen, limit, cluster)? {
                    HandOver::Prepared { micros } => break (frozen, micros),
                    HandOver::Late { removing } => slow_removals += i32::from(removing),
                }
            }
        }
        attempts += 1;
        transaction::run(|| record::note_attempt(id, attempts))?;
        fault::point("move.resumed")?;
        if slow_removals == SLOW_REMOVALS && may_split && copy.documents > 1 {
            return Ok(Attempted::TooLarge { documents: copy.documents, pieces: 4 });
        }
        if attempts >= record::MAX_ATTEMPTS {
            return Err(stall::gave_up());
        }
        sleep_ms((20 * i64::from(attempts)).min(500));
    };

    let (documents, bytes) = (copy.documents, copy.bytes);
    let decided = transaction::run(|| {
        copy.note_size()?;
        record::set_stall(id, i64::try_from(frozen.elapsed().as_millis()).unwrap_or(i64::MAX), micros)?;
        job::check_wanted()?;
        record::advance(id, State::Running, State::Committed)
    })?;
    if !decided {
        return Err(record::interrupted());
    }
    fault::point("move.decided")?;
    let record = Record { state: State::Committed, documents, bytes, ..record };
    let sides = Sides { donor: Some(donor), recipient: Some(recipient), puller: Some(puller) };
    Ok(Attempted::Decided(Box::new(Decided { record, sides })))
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
            sleep_ms(pause);
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
        let aborted = record::advance(id, State::Running, State::Aborted)?;
        if aborted {
            record::log_if_given_up(id, &cause)?;
        }
        Ok(aborted)
    });
    // What cannot be cleaned now is cleaned by recovery.
    if aborted.is_ok() && transaction::guarded(|| fault::point("move.aborted")).is_ok() {
        let _ = settle::settle(id);
    }
    // Somebody else had aborted it, and then interrupted this process, or taken it for dead.
    let by_somebody_else = matches!(aborted, Ok(false)) && settle::clean_late(id).unwrap_or(false);
    if by_somebody_else { record::interrupted() } else { cause }
}
