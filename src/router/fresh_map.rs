//! Runs a statement again after a shard has reported that its chunk map is stale.
//!
//! The donor of a move reports a stale map as soon as its part of the move is committed. When the move is over, the next attempt uses the
//! map in the catalog. Until then it uses the *foreseen* map, the one that the decided move will make. Shards accept that one as soon as
//! the recipient's part is committed, too.
//!
//! If a failover has lost commits of a shard, the shard stays behind the catalog, and the statement fails at once. Core's [`Attempts`]
//! decides what follows an attempt.

use super::gate;
use crate::catalog::cache;
use crate::catalog::cluster::behind::{self, Suspicion};
use crate::catalog::cluster::holder;
use crate::catalog::cluster::identity::{self, check_router};
use crate::catalog::collections::views;
use crate::migration::foresight::Foreseen;
use crate::migration::{jobs, recovery};
use crate::pg::error::{Error, Result};
use crate::pg::security::user::as_extension_owner;
use crate::pg::server::wal::in_recovery;
use crate::pg::server::{is_background_worker, is_superuser, sleep_ms};
use crate::pg::transaction::snapshot;
use crate::pg::version::local_transaction;
use crate::remote;
use docshard_core::cluster::standing::Standing;
use docshard_core::error::sqlstate::{self, SqlState};
use docshard_core::error::{Kind, Retry, error};
use docshard_core::routing::attempts::{self, Attempts, LASTING, MISMATCH_PATIENCE, Surroundings};
use docshard_core::routing::model::Collection;
use std::cell::RefCell;
use std::rc::Rc;
use std::time::{Duration, Instant};

/// Runs `attempt` with the newest chunk map, and again while a shard answers that the map is stale.
///
/// Fails with `WriteConflict` (40001) if only the whole transaction can run again, with `StaleShardVersion` (40001) if a move takes longer
/// than a minute, and with `StaleShardVersion` (55000) if no move explains the stale map, or if a shard has lost commits that the catalog
/// has.
///
/// Fails with `CommandNotSupportedOnView` for a view.
pub fn with_fresh_map<T>(namespace: &str, attempt: impl FnMut(Option<Rc<Collection>>) -> Result<T>) -> Result<T> {
    run(namespace, true, || views::refuse(namespace), attempt)
}

/// Like [`with_fresh_map`], for a read of a namespace that has just been found to be no view. If another session has created a view of that
/// name since, the read finds nothing, as if it had come before the view.
pub fn read_with_fresh_map<T>(namespace: &str, attempt: impl FnMut(Option<Rc<Collection>>) -> Result<T>) -> Result<T> {
    run(namespace, false, || Ok(()), attempt)
}

/// `missing` is called if there is no collection. `gated`: before an attempt, waits at the collection's gate (see [`gate`]).
fn run<T>(
    namespace: &str,
    gated: bool,
    missing: impl Fn() -> Result<()>,
    mut attempt: impl FnMut(Option<Rc<Collection>>) -> Result<T>,
) -> Result<T> {
    let mut attempts = Attempts::default();
    let mut refused = Refused::new(namespace);
    loop {
        let mut known = cache::find(namespace)?;
        if gated && known.as_ref().is_some_and(|known| gate::pass(known.id)) {
            known = cache::find(namespace)?;
        }
        if known.as_ref().is_some_and(|known| known.is_undecided) {
            known = await_decision(namespace)?;
        }
        if known.is_none() {
            // This node may be a shard, which has no namespaces. The collection must then not appear to be empty.
            check_router()?;
            missing()?;
        }
        let goes_ahead = attempts.begin(known.as_ref().map(|c| c.revision));
        let foreseen = refused.foreseen.take().filter(|_| goes_ahead);
        let collection = foreseen.map(|foreseen| foreseen.collection).or_else(|| known.clone());
        refused.known = known;
        let error = match attempt(collection) {
            Err(error) if is_stale(&error) => error,
            Err(error) if error.retry == Retry::Transaction => {
                return Err(lasting(namespace, refused.known.as_deref(), error)?);
            }
            other => return other,
        };
        if !snapshot::per_statement() || remote::has_failed() {
            return Err(lasting(namespace, refused.known.as_deref(), conflict(&error))?);
        }
        attempts.wait(error, &mut refused)?;
    }
}

/// Waits until it is known whether the router's former server has decided a change of the collection's layout. Until then the
/// former layout may be obsolete at the shards and at the router, and what is written by it may be lost. On a standby or a copy
/// of the router, returns the former layout without waiting.
fn await_decision(namespace: &str) -> Result<Option<Rc<Collection>>> {
    let began = Instant::now();
    loop {
        let known = cache::find(namespace)?;
        let is_undecided = known.as_ref().is_some_and(|known| known.is_undecided);
        if !is_undecided || in_recovery() || as_extension_owner(identity::standing)? != Standing::Router {
            return Ok(known);
        }
        // A background worker must not wait: it may be the worker that ends the change.
        if is_background_worker() || began.elapsed() > UNDECIDED_PATIENCE {
            return Err(error!(
                Kind::ConflictingOperationInProgress,
                "the router's former server may have decided a change of the layout of {namespace}"
            )
            .with_hint(
                "docshard.resharding shows why it has not ended. Without a background worker docshard.recover_moves() ends it.",
            ));
        }
        sleep_ms(20);
    }
}

/// How long a statement waits in [`await_decision`].
const UNDECIDED_PATIENCE: Duration = Duration::from_secs(10);

/// A statement that a shard has refused.
struct Refused<'a> {
    namespace: &'a str,
    started: Instant,
    /// the collection as the catalog had it when the attempt began
    known: Option<Rc<Collection>>,
    foreseen: Option<Foreseen>,
    suspicion: Suspicion,
}

impl<'a> Refused<'a> {
    fn new(namespace: &'a str) -> Self {
        Self { namespace, started: Instant::now(), known: None, foreseen: None, suspicion: Suspicion::default() }
    }

    /// Calls `ask` with the known collection; returns `otherwise` if there is none.
    fn of_known<T>(&self, otherwise: T, ask: impl FnOnce(&Collection) -> Result<T>) -> Result<T> {
        self.known.as_deref().map_or(Ok(otherwise), ask)
    }
}

impl Surroundings for Refused<'_> {
    fn elapsed(&self) -> Duration {
        self.started.elapsed()
    }

    fn sleep(&mut self, ms: u64) {
        sleep_ms(ms.cast_signed());
    }

    fn is_known(&self) -> bool {
        self.known.is_some()
    }

    fn is_assumed(&self) -> Result<bool> {
        let assumed = self.known.as_ref().map(|c| c.revision);
        Ok(cache::find(self.namespace)?.map(|c| c.revision) == assumed)
    }

    fn is_decided(&self) -> Result<bool> {
        self.of_known(false, |known| recovery::is_decided(known.id))
    }

    fn may_change(&self) -> Result<bool> {
        self.of_known(false, may_change)
    }

    fn confirm_loss(&mut self, refusal: &Error) -> Result<()> {
        let Some(known) = self.known.as_deref() else { return Ok(()) };
        self.suspicion.confirm(known, refusal)?.map_or(Ok(()), Err)
    }

    fn foresee(&mut self) -> Result<Option<attempts::Foreseen>> {
        let Some(known) = self.known.as_deref() else { return Ok(None) };
        self.foreseen = Foreseen::of(known)?;
        let Some(ahead) = &self.foreseen else { return Ok(None) };
        match ahead.lost_part() {
            Some(lost) => Err(lost),
            None => Ok(Some(attempts::Foreseen { revision: known.revision, is_late: ahead.is_late })),
        }
    }

    fn is_being_settled(&self) -> bool {
        self.foreseen.as_ref().is_some_and(Foreseen::is_being_settled)
    }

    fn complete_moves(&mut self) -> Result<()> {
        match complete_decided_moves(self.namespace) {
            // No background worker is free. Another process or the next attempt may complete the move.
            Err(error) if error.sqlstate == sqlstate::OUT_OF_MEMORY => Ok(()),
            completed => completed,
        }
    }

    fn disagreement(&self, refusal: &Error, sqlstate: SqlState) -> Error {
        disagreement(self.namespace, refusal, sqlstate)
    }
}

/// True if an unfinished move or distributed transaction may explain that a shard's version differs from the catalog's, so that
/// waiting helps. Always false on a copy of the router, which does not learn of moves.
fn may_change(collection: &Collection) -> Result<bool> {
    let is_copy = as_extension_owner(identity::standing)? != Standing::Router;
    Ok(!is_copy && recovery::may_change_placement(collection.id)?)
}

/// The first transaction of this session that met a stale map which no move explains.
struct Unexplained {
    namespace: String,
    revision: i64,
    at: Instant,
    transaction: u32,
}

thread_local! {
    static UNEXPLAINED: RefCell<Option<Unexplained>> = const { RefCell::new(None) };
}

/// The error of a transaction that has met a stale map. It is `conflict` at first, so that the client retries the transaction,
/// which helps after a move. If a later transaction meets the same map more than [`MISMATCH_PATIENCE`] later, and no move
/// explains it, the error is one after which clients do not retry.
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
    match as_extension_owner(identity::standing) {
        // A copy of the router meets this after the router has moved chunks.
        Ok(Standing::Copy(reason)) => {
            message = format!("{message}; this database is a copy of the cluster's router: {reason}");
            hint = format!("Connect to the cluster's router{}.", holder::place(&reason));
        }
        _ => {
            let ahead = cache::find(namespace).ok().flatten().map(|known| behind::explain_ahead(&known, error));
            if let Some(Ok(Some(ahead))) = ahead {
                (message, hint) = (ahead.message.clone(), ahead.hint.clone().unwrap_or(hint));
            }
        }
    }
    Error::new(Kind::StaleShardVersion, message).with_sqlstate(sqlstate).with_hint(hint)
}

const DISAGREE: &str = "A shard and the catalog disagree. One of them may have been restored from a backup. \
     See docshard.status() and the unfinished rows of docshard.migrations.";

/// Completes the collection's decided moves, whose coordinators may be gone. This is needed without `shared_preload_libraries`, where no
/// worker completes them. Completing is idempotent. Does nothing unless the user is a superuser.
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

/// Returns the error of a statement that a shard has refused and that cannot be repeated without its transaction.
pub(super) fn conflict(error: &Error) -> Error {
    let what = match error.retry {
        // The catalog may be an older copy. Then running the transaction again does not help.
        Retry::NewHandshake => return error.clone(),
        Retry::OtherHost => "a shard's first host was refused",
        Retry::NewMap | Retry::None | Retry::Transaction => {
            "a chunk was moved, or the collection's layout was changed,"
        }
    };
    let message = format!("could not serialize access: {what} while this transaction ran");
    let mut conflict = Error::new(Kind::WriteConflict, message).with_hint("Run the transaction again.");
    if error.retry != Retry::OtherHost {
        conflict.retry = Retry::Transaction;
    }
    conflict
}
