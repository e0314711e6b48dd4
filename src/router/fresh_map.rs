//! Runs a statement again after a shard has reported that its chunk map is stale.
//!
//! A shard reports that once the donor's part of a move is committed. When the move is over, the next attempt uses the map in
//! the catalog. Until then it uses the *foreseen* map, the one that the decided move will make; shards accept that one as soon
//! as the recipient's part is committed, too.
//!
//! A shard that is behind the catalog, as after a failover that has lost commits, stays so: the statement fails at once.

use crate::catalog::behind::Suspicion;
use crate::catalog::cluster::{self, check_router};
use crate::catalog::model::Collection;
use crate::catalog::{cache, holder, views};
use crate::migration::foresight::Foreseen;
use crate::migration::{jobs, recovery};
use crate::pg::error::{Error, Result};
use crate::pg::security::user::as_extension_owner;
use crate::pg::server::{is_superuser, sleep_ms};
use crate::pg::transaction::snapshot;
use crate::pg::version::local_transaction;
use crate::remote::{self, REFUSED_AHEAD};
use docshard_core::cluster::standing::Standing;
use docshard_core::error::sqlstate::{self, SqlState};
use docshard_core::error::{Kind, Retry, error};
use std::cell::RefCell;
use std::rc::Rc;
use std::time::{Duration, Instant};

/// How long a statement waits for a move that is being decided.
const PATIENCE: Duration = Duration::from_secs(60);
/// A statement that waits for a decided move tries to complete it this often.
const COMPLETION_INTERVAL: Duration = Duration::from_millis(500);
/// How long a statement waits if the catalog knows of no move that could explain the disagreement.
const MISMATCH_PATIENCE: Duration = Duration::from_secs(2);
/// The first wait for a newer map, or for shards to accept the foreseen one. A short pause keeps the statements that a move has
/// blocked from taking the processors which the end of the move needs.
const FIRST_PAUSE_MS: u64 = 8;
const LAST_PAUSE_MS: u64 = 50;

/// Runs `attempt` with the newest chunk map, and again while a shard answers that the map is stale.
///
/// Fails with `WriteConflict` (40001) if only the whole transaction can run again, with `StaleShardVersion` (40001) after a minute of a
/// move, and with `StaleShardVersion` (55000) if no move explains the stale map, or if a shard has lost commits that the catalog has.
///
/// Fails with `CommandNotSupportedOnView` for a view.
pub fn with_fresh_map<T>(namespace: &str, attempt: impl FnMut(Option<Rc<Collection>>) -> Result<T>) -> Result<T> {
    run(namespace, || views::refuse(namespace), attempt)
}

/// As [`with_fresh_map`], for a read of a namespace that has just been found to be no view. A view that another session has created
/// since is not there yet: the read comes before it, and finds nothing.
pub fn read_with_fresh_map<T>(namespace: &str, attempt: impl FnMut(Option<Rc<Collection>>) -> Result<T>) -> Result<T> {
    run(namespace, || Ok(()), attempt)
}

/// `missing` is called if there is no collection.
fn run<T>(
    namespace: &str,
    missing: impl Fn() -> Result<()>,
    mut attempt: impl FnMut(Option<Rc<Collection>>) -> Result<T>,
) -> Result<T> {
    let started = Instant::now();
    let mut pause = FIRST_PAUSE_MS;
    let mut helped: Option<Instant> = None;
    let mut foreseen: Option<Foreseen> = None;
    let mut refused_ahead = 0;
    let mut suspicion = Suspicion::default();
    loop {
        let known = cache::find(namespace)?;
        if known.is_none() {
            // This node may be a shard, which has no namespaces. The collection must then not appear to be empty.
            check_router()?;
            missing()?;
        }
        let assumed = known.as_ref().map(|c| c.revision);
        // The foreseen map counts only until the catalog's map changes.
        let ahead = foreseen.take().filter(|ahead| assumed == Some(ahead.collection.revision));
        let went_ahead = ahead.is_some();
        let collection = ahead.map(|ahead| ahead.collection).or_else(|| known.clone());
        let error = match attempt(collection) {
            Err(error) if is_stale(&error) => error,
            Err(error) if error.retry == Retry::Transaction => {
                return Err(lasting(namespace, known.as_deref(), error)?);
            }
            other => return other,
        };
        if !snapshot::per_statement() || remote::has_failed() {
            return Err(lasting(namespace, known.as_deref(), conflict(&error))?);
        }
        match error.retry {
            Retry::OtherHost => continue,
            Retry::NewHandshake if refused_ahead == REFUSED_AHEAD => return Err(error),
            Retry::NewHandshake => {
                refused_ahead += 1;
                continue;
            }
            Retry::NewMap | Retry::None | Retry::Transaction => {}
        }
        let is_assumed = || -> Result<bool> { Ok(cache::find(namespace)?.map(|c| c.revision) == assumed) };
        let is_lost = |collection: &Collection| -> Result<bool> {
            Ok(started.elapsed() > MISMATCH_PATIENCE && !may_change(collection)? && is_assumed()?)
        };
        // Repeating does not help if a shard has lost what the catalog has.
        if let Some(known) = known.as_deref().filter(|_| !went_ahead)
            && is_assumed()?
            && !recovery::is_decided(known.id)?
            && let Some(behind) = suspicion.confirm(known, &error)?
        {
            return Err(behind);
        }
        if known.as_deref().map_or(Ok(false), is_lost)? {
            return Err(disagreement(namespace, &error, LASTING));
        }
        if started.elapsed() > PATIENCE {
            return Err(disagreement(namespace, &error, sqlstate::SERIALIZATION_FAILURE));
        }
        if !is_assumed()? {
            continue;
        }
        if let Some(known) = &known {
            foreseen = Foreseen::of(known)?;
            if let Some(lost) = foreseen.as_ref().and_then(Foreseen::lost_part) {
                return Err(lost);
            }
        }
        // Reading the catalog is cheap, another request to the shards is not.
        let (asleep, wait) = (Instant::now(), Duration::from_millis(pause));
        let is_worth_asking = || !went_ahead && foreseen.as_ref().is_some_and(|ahead| !ahead.is_being_settled());
        while asleep.elapsed() < wait && !is_worth_asking() && is_assumed()? {
            sleep_ms((pause / 8).clamp(1, 5).cast_signed());
        }
        pause = (pause * 2).min(LAST_PAUSE_MS);
        // Try again later: the process that completes the move may die, too.
        let is_late = pause == LAST_PAUSE_MS || foreseen.as_ref().is_some_and(|ahead| ahead.is_late);
        if is_late && helped.is_none_or(|at| at.elapsed() >= COMPLETION_INTERVAL) {
            helped = Some(Instant::now());
            match complete_decided_moves(namespace) {
                // No background worker is free. Another process or the next attempt may complete the move.
                Err(error) if error.sqlstate == sqlstate::OUT_OF_MEMORY => {}
                completed => completed?,
            }
        }
    }
}

/// True if the shards' versions of a collection may be about to become those of the catalog. A copy of the router does not learn of moves.
fn may_change(collection: &Collection) -> Result<bool> {
    let is_copy = matches!(as_extension_owner(cluster::standing)?, Standing::Copy(_));
    Ok(!is_copy && recovery::may_change_placement(collection.id)?)
}

/// SQLSTATE of a disagreement that no move explains. Clients run statements again that fail with 40001, and would do so for ever.
const LASTING: SqlState = sqlstate::OBJECT_NOT_IN_PREREQUISITE_STATE;

/// The first transaction of this session that a shard refused as its map was stale, though no move explains that.
struct Unexplained {
    namespace: String,
    revision: i64,
    at: Instant,
    transaction: u32,
}

thread_local! {
    static UNEXPLAINED: RefCell<Option<Unexplained>> = const { RefCell::new(None) };
}

/// The error of a transaction that has met a stale map: `conflict`, so that the client runs it again, which helps after a move. If the next
/// transactions meet the same map, and no move explains it, an error that ends a client's retries.
fn lasting(namespace: &str, known: Option<&Collection>, conflict: Error) -> Result<Error> {
    let Some(known) = known.filter(|_| conflict.retry == Retry::Transaction) else { return Ok(conflict) };
    if may_change(known)? || cache::find(namespace)?.is_none_or(|found| found.revision != known.revision) {
        UNEXPLAINED.set(None);
        return Ok(conflict);
    }
    let is_again = UNEXPLAINED.with_borrow_mut(|first| match first {
        Some(first) if first.namespace == namespace && first.revision == known.revision => {
            first.transaction != local_transaction() && first.at.elapsed() > MISMATCH_PATIENCE
        }
        _ => {
            let (namespace, revision) = (namespace.to_owned(), known.revision);
            *first = Some(Unexplained { namespace, revision, at: Instant::now(), transaction: local_transaction() });
            false
        }
    });
    let stale = error!(Kind::StaleShardVersion, "a shard has another version of the collection than the catalog");
    Ok(if is_again { disagreement(namespace, &stale, LASTING) } else { conflict })
}

fn disagreement(namespace: &str, error: &Error, sqlstate: SqlState) -> Error {
    let (mut message, mut hint) = (format!("{namespace}: {}", error.message), DISAGREE.to_owned());
    // As on a copy after the router has moved chunks.
    if let Ok(Standing::Copy(reason)) = as_extension_owner(cluster::standing) {
        message = format!("{message}; this database is a copy of the cluster's router: {reason}");
        hint = format!("Connect to the cluster's router{}.", holder::place(&reason));
    }
    Error::new(Kind::StaleShardVersion, message).with_sqlstate(sqlstate).with_hint(hint)
}

const DISAGREE: &str = "A shard and the catalog disagree. One of them may have been restored from a backup. \
     See docshard.status() and the unfinished rows of docshard.migrations.";

/// Completes decided moves whose coordinator is gone, if no worker will do it soon: without `shared_preload_libraries` there is
/// no worker. Completing is idempotent. Only superusers may do it.
fn complete_decided_moves(namespace: &str) -> Result<()> {
    if let Some(collection) = cache::find(namespace)?
        && is_superuser()
    {
        for migration in recovery::decided(collection.id)? {
            jobs::complete_in_background(migration)?;
        }
    }
    Ok(())
}

/// True for answers after which the statement runs again: the shard's version differs, its table is missing, this host of
/// the shard is not its primary, or the handshake was older than the shard's counter.
pub(super) fn is_stale(error: &Error) -> bool {
    !matches!(error.retry, Retry::None | Retry::Transaction) || error.sqlstate == sqlstate::UNDEFINED_TABLE
}

/// Returns the error of a statement that cannot be repeated alone after such an answer.
pub(super) fn conflict(error: &Error) -> Error {
    let what = match error.retry {
        // Where the catalog is an older copy, running the transaction again does not help.
        Retry::NewHandshake => return error.clone(),
        Retry::OtherHost => "a shard's first host was refused",
        Retry::NewMap | Retry::None | Retry::Transaction => "a chunk was moved",
    };
    let message = format!("could not serialize access: {what} while this transaction ran");
    let mut conflict = Error::new(Kind::WriteConflict, message).with_hint("Run the transaction again.");
    if error.retry != Retry::OtherHost {
        conflict.retry = Retry::Transaction;
    }
    conflict
}
