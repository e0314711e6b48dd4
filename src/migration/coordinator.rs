//! The coordinator of a move: executes all its steps, which docs/architecture/migration.md lists by number.

use super::attempt::Attempt;
use super::copy::{Copy, HandOver};
use super::record;
use super::request::{MoveRequest, MoveResult};
use super::shard::Sides;
use super::standbys::{self, Standbys};
use super::{donor, names, pieces, recipient, recovery, register, settle, stall};
use crate::catalog::cluster::identity::cluster_id;
use crate::catalog::cluster::settings;
use crate::pg::error::{Error, Result};
use crate::pg::fault;
use crate::pg::server::sleep_ms;
use crate::pg::{process::job, transaction};
use crate::remote::hung;
use crate::storage::lock::{self, Mode, Tag};
use docshard_core::cluster::migration::State;
use docshard_core::error::{Kind, error};
use docshard_core::sql::quote::quote_literal;
use std::time::{Duration, Instant};

/// Standbys get at least this time to follow before writers are excluded, however short `docshard.max_write_stall` is.
const LEAST_SHARE: Duration = Duration::from_millis(50);

/// After this many hand-overs in which the donor did not delete the documents in time, the chunk is split.
const MAX_SLOW_DELETES: i32 = 2;

/// Moves a chunk, or several neighbours of one owner: the request has their common bounds. Runs in a background worker, outside
/// any transaction; an interrupt of its waits must raise an ERROR, or end the process (then [`recovery::recover`] cleans up). A
/// chunk that cannot be handed over within `docshard.max_write_stall` is split, and its parts move one after the other.
///
/// # Errors
/// `NamespaceNotFound`, `ShardNotFound`, `ConflictingOperationInProgress`, `ChunkTooBig` (jumbo), `IllegalOperation` (draining,
/// no prepared transactions), `LockTimeout` (a transaction writes to the chunk and does not end, or the chunk cannot be handed
/// over in time), and errors of the shards. After an error the chunk is still at the donor, unless the move was decided: then
/// recovery completes it.
pub fn run(request: &MoveRequest) -> Result<MoveResult> {
    let pieces = match run_once(request, true)? {
        Ended::Decided(result) => return Ok(result),
        Ended::TooLarge { pieces, .. } => pieces,
    };
    let parts = pieces::split(request, pieces)?.unwrap_or_else(|| vec![request.clone()]);
    let run = |part: &MoveRequest| match run_once(part, false)? {
        Ended::Decided(result) => Ok(result),
        Ended::TooLarge { .. } => Err(error!(Kind::InternalError, "a chunk should be split but cannot be")),
    };
    MoveResult::of_all(&parts, "parts of the chunk", run).map(|(sum, _)| sum)
}

/// The result of an attempt.
enum Ended<T> {
    Decided(T),
    /// Nothing has changed, as the chunk should be split first: its estimated number of documents, and the number of pieces.
    TooLarge {
        documents: i64,
        pieces: usize,
    },
}

fn run_once(request: &MoveRequest, may_split: bool) -> Result<Ended<MoveResult>> {
    let began = Instant::now();
    // A user who has begun a move can cancel it. Nobody waits for a move of the balancer, so its statements have a time limit. The limit is
    // long, because a statement may read or write a whole chunk.
    let _limit = (!request.is_of_user()).then(|| hung::limit(hung::worker_timeout() * 12));
    recovery::recover_collection(&request.namespace)?;
    let Some(checked) = register::check(request)? else {
        return Ok(Ended::Decided(MoveResult::default()));
    };
    let attempt = register::register(request, checked)?;
    let id = attempt.record.id;
    let ended = match transaction::guarded(|| copy_and_decide(attempt, request.bytes_per_second, may_split)) {
        Ok(Ended::Decided(decided)) => transaction::guarded(|| finish(decided)).map(Ended::Decided),
        Ok(Ended::TooLarge { documents, pieces }) => {
            take_back(id, stall::is_split_first(documents));
            Ok(Ended::TooLarge { documents, pieces })
        }
        Err(cause) => Err(take_back(id, cause)),
    };
    lock::release_for_session(Tag::Coordinator(id), Mode::Exclusive);
    Ok(match ended? {
        Ended::TooLarge { documents, pieces } => Ended::TooLarge { documents, pieces },
        Ended::Decided((documents, bytes)) => {
            let millis = i64::try_from(began.elapsed().as_millis()).unwrap_or(i64::MAX);
            Ended::Decided(MoveResult { moved: true, documents, bytes, millis })
        }
    })
}

/// Executes the steps 2 to 7. After an error the sessions are dropped, which rolls back their transactions.
fn copy_and_decide(mut attempt: Attempt, bytes_per_second: u64, may_split: bool) -> Result<Ended<Attempt>> {
    let id = attempt.record.id;
    let cluster = transaction::run(cluster_id)?;
    // Cleaning up finds the sessions by this name.
    let application = quote_literal(&names::application(cluster, id));
    for session in [&mut attempt.donor, &mut attempt.loader, &mut attempt.puller] {
        fault::point("move.registering")?;
        session.execute(&format!("SET application_name = {application}"))?;
    }
    attempt.see_standbys()?;
    // The pull session writes only to the staging table, which is useless after a crash.
    attempt.puller.execute("SET synchronous_commit = off")?;
    let step = |name: &str| transaction::run(|| record::note_step(id, name));

    fault::point("move.registered")?;
    step("preparing the recipient")?;
    let rows = recipient::part_rows(attempt.sample_document_size()?);
    let estimated = attempt.estimate_documents()?;
    donor::check_version(&mut attempt.donor, &attempt.record, attempt.record.donor_version)?;
    attempt.start_dividing(rows)?;
    attempt.place()?;
    fault::point("move.placed")?;
    donor::check_version(&mut attempt.loader, &attempt.record, attempt.record.recipient_version)?;
    attempt.prepare_staging(rows)?;
    let parts = attempt.finish_dividing()?;
    fault::point("move.staged")?;
    // An estimate: all parts but the last have `rows` documents, or fewer if some documents are very large.
    let documents = (parts - 1).max(0) * rows;
    let pieces = transaction::run(|| stall::pieces(attempt.record.donor, documents))?;
    if let Some(pieces) = pieces.filter(|_| may_split) {
        return Ok(Ended::TooLarge { documents, pieces });
    }

    let patience = transaction::run(|| {
        record::set_estimate(id, estimated)?;
        record::note_step(id, "waiting for writers")?;
        settings::integer("move_wait_ms")
    })?;
    let patience = Duration::from_millis(u64::try_from(patience).unwrap_or(0));
    attempt.begin_capture()?;
    fault::point("move.captured")?;
    attempt.wait_for_writers(Instant::now() + patience)?;
    fault::point("move.writers_gone")?;

    step("cloning")?;
    let mut copy = Copy::new(attempt, parts)?;
    // The documents are located again before the hand-over. This first pass makes the second one cheap, because it
    // already writes their pages into WAL. The donor session would otherwise be idle now.
    copy.attempt.start_locating()?;
    copy.clone_range(bytes_per_second)?;
    fault::point("move.cloned")?;
    step("catching up")?;
    copy.attempt.finish_locating()?;

    let limit = stall::limit();
    let (mut attempts, mut slow_deletes) = (0, 0);
    let (mut lagging_since, mut followed): (Option<Instant>, bool) = (None, false);
    let (frozen, micros) = loop {
        let mut is_close = copy.catch_up(limit)?;
        if is_close {
            // A standby that lags would prolong the exclusion of writers. So until it follows closely, the move only
            // catches up.
            let quick = standbys::share(limit.unwrap_or(patience)).max(LEAST_SHARE);
            followed = match copy.attempt.await_standbys(true, Instant::now() + quick)? {
                Standbys::Lag(lagging) => {
                    if lagging_since.get_or_insert_with(Instant::now).elapsed() >= patience {
                        return Err(lagging.gave_way());
                    }
                    step("waiting for standbys")?;
                    continue;
                }
                Standbys::FollowClosely => true,
                Standbys::None => false,
            };
            lagging_since = None;
            copy.locate()?;
            is_close = copy.catch_up(limit)?;
        }
        if is_close {
            transaction::run(|| copy.store_progress())?;
            fault::point("move.caught_up")?;
            step("handing over")?;
            if copy.exclude_writers(Instant::now() + patience, limit)? {
                let frozen = Instant::now();
                let limit = limit.map(|limit| if followed { limit - standbys::share(limit) } else { limit });
                match copy.hand_over(frozen, limit, cluster)? {
                    HandOver::Prepared { micros } => break (frozen, micros),
                    HandOver::TimedOut { in_delete } => slow_deletes += i32::from(in_delete),
                }
            }
        }
        attempts += 1;
        transaction::run(|| record::note_attempt(id, attempts))?;
        fault::point("move.resumed")?;
        if slow_deletes == MAX_SLOW_DELETES && may_split && copy.documents > 1 {
            return Ok(Ended::TooLarge { documents: copy.documents, pieces: 4 });
        }
        if attempts >= record::MAX_ATTEMPTS {
            return Err(stall::gave_up());
        }
        sleep_ms((20 * i64::from(attempts)).min(500));
    };

    let deadline = frozen + limit.unwrap_or(patience);
    if followed && let Standbys::Lag(lagging) = copy.attempt.await_standbys(false, deadline)? {
        return Err(lagging.gave_way());
    }
    fault::point("move.replicated")?;
    let is_decided = transaction::run(|| {
        copy.store_progress()?;
        record::set_stall(id, i64::try_from(frozen.elapsed().as_millis()).unwrap_or(i64::MAX), micros)?;
        job::check_wanted()?;
        record::advance(id, State::Running, State::Committed)
    })?;
    if !is_decided {
        return Err(record::interrupted());
    }
    fault::point("move.decided")?;
    let Copy { mut attempt, documents, bytes, .. } = copy;
    let record = &mut attempt.record;
    (record.state, record.documents, record.bytes) = (State::Committed, documents, bytes);
    Ok(Ended::Decided(attempt))
}

/// Executes step 8. Retries for a while, because the move is decided: readers and writers wait for its end.
fn finish(decided: Attempt) -> Result<(i64, i64)> {
    let Attempt { record, donor, loader, puller, .. } = decided;
    let result = (record.documents, record.bytes);
    let mut sides = Sides { donor: Some(donor), recipient: Some(loader), puller: Some(puller) };
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

/// Aborts the attempt and cleans up; returns the cause.
fn take_back(id: i64, cause: Error) -> Error {
    let aborted = transaction::run(|| {
        record::note_error(id, &cause)?;
        let aborted = record::abort(id)?;
        if aborted {
            record::log_if_given_up(id, &cause)?;
        }
        Ok(aborted)
    });
    // Recovery cleans up everything that cannot be cleaned up now.
    if aborted.is_ok() && transaction::guarded(|| fault::point("move.aborted")).is_ok() {
        let _ = settle::settle(id);
    }
    // Another process may have aborted the move and then interrupted this one, or considered it dead.
    let by_another = matches!(aborted, Ok(false)) && settle::clean_late(id).unwrap_or(false);
    if by_another { record::interrupted() } else { cause }
}
