//! Running a statement again while its map is stale.
//!
//! A shard tells that the map is stale when the donor's part of a move has been committed. The map to go by is the
//! catalog's, once the move is over; until then the one that the decided move is about to make, which shards accept as
//! soon as the recipient's part is committed, too.

use crate::catalog::cache;
use crate::catalog::cluster::check_router;
use crate::catalog::model::Collection;
use crate::migration::foresight::Foreseen;
use crate::migration::{jobs, recovery};
use crate::pg::error::{Error, Result};
use crate::pg::server::{is_superuser, sleep_ms};
use crate::pg::transaction::snapshot;
use crate::remote;
use docshard_core::error::Kind;
use std::rc::Rc;
use std::time::{Duration, Instant};

/// How long a statement waits for a move that is being decided, before it gives up.
const PATIENCE: Duration = Duration::from_secs(60);
/// How often who waits for a decided move looks whether somebody completes it.
const HELP: Duration = Duration::from_millis(500);
/// As [`PATIENCE`], while the catalog knows of nothing under way that could end the disagreement.
const DOUBT: Duration = Duration::from_secs(2);
/// How long a statement that met a move at first waits for a newer map, or until the shards may take the foreseen one, before
/// it asks them again. All that the move has kept waiting comes at once, while what ends it needs the processors more.
const FIRST_PAUSE_MS: u64 = 8;
/// The longest pause.
const LAST_PAUSE_MS: u64 = 50;

/// Runs `attempt` with the collection's newest map, again and again while its answer is that the map is stale.
///
/// # Errors
/// What `attempt` answers; `WriteConflict` (40001) where running again cannot help; `StaleShardVersion` after a minute.
pub fn with_fresh_map<T>(namespace: &str, mut attempt: impl FnMut(Option<Rc<Collection>>) -> Result<T>) -> Result<T> {
    let started = Instant::now();
    let mut pause = FIRST_PAUSE_MS;
    let mut helped: Option<Instant> = None;
    let mut foreseen: Option<Foreseen> = None;
    loop {
        let known = cache::find(namespace)?;
        if known.is_none() {
            // At a shard every namespace is unknown, which must not read as empty.
            check_router()?;
        }
        let assumed = known.as_ref().map(|c| c.revision);
        // A newer map than it was foreseen from is the better one.
        let ahead = foreseen.take().filter(|ahead| assumed == Some(ahead.collection.revision));
        let went_ahead = ahead.is_some();
        let collection = ahead.map(|ahead| ahead.collection).or_else(|| known.clone());
        let error = match attempt(collection) {
            Err(error) if is_stale(&error) => error,
            other => return other,
        };
        if !snapshot::per_statement() || remote::has_failed() {
            return Err(conflict(&error));
        }
        if error.has_other_host() {
            continue;
        }
        let is_assumed = || -> Result<bool> { Ok(cache::find(namespace)?.map(|c| c.revision) == assumed) };
        let is_lost = |collection: &Collection| -> Result<bool> {
            Ok(started.elapsed() > DOUBT && !recovery::may_change_placement(collection.id)? && is_assumed()?)
        };
        if started.elapsed() > PATIENCE || known.as_deref().map_or(Ok(false), is_lost)? {
            return Err(Error::new(Kind::StaleShardVersion, format!("{namespace}: {}", error.message)).with_hint(
                "A shard does not agree with the catalog. Was it, or the router, restored from a backup? \
                 See docshard.status() and the unfinished rows of docshard.migrations.",
            ));
        }
        if !is_assumed()? {
            continue;
        }
        if let Some(known) = &known {
            foreseen = Foreseen::of(known)?;
        }
        // To ask here is cheap, to ask the shards again is not.
        let (asleep, wait) = (Instant::now(), Duration::from_millis(pause));
        let is_worth_asking = || !went_ahead && foreseen.as_ref().is_some_and(|ahead| !ahead.is_being_settled());
        while asleep.elapsed() < wait && !is_worth_asking() && is_assumed()? {
            sleep_ms((pause / 8).clamp(1, 5).cast_signed());
        }
        pause = (pause * 2).min(LAST_PAUSE_MS);
        // Again and again: the helper may die, too.
        let is_late = pause == LAST_PAUSE_MS || foreseen.as_ref().is_some_and(|ahead| ahead.is_late);
        if is_late && helped.is_none_or(|at| at.elapsed() >= HELP) {
            helped = Some(Instant::now());
            match complete_decided_moves(namespace) {
                // No background worker is free: one of others may complete it, else the next attempt.
                Err(error) if &error.sqlstate == b"53200" => {}
                completed => completed?,
            }
        }
    }
}

/// Completes moves that are decided but whose process is gone, where nobody else may do so soon: without preloading
/// there is no worker. Completing is idempotent, and left to others by roles that may not.
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

/// A shard's answer after which the statement is run again: that the map is stale, as a version differs, or a table is not there;
/// or that this host of the shard is not its primary.
pub(super) fn is_stale(error: &Error) -> bool {
    error.is_stale() || &error.sqlstate == b"42P01" || error.has_other_host()
}

/// The error of a statement that was given such an answer, and that cannot be run again by itself.
pub(super) fn conflict(error: &Error) -> Error {
    let what = if error.has_other_host() { "a shard's first host was refused" } else { "a chunk was moved" };
    Error::new(Kind::WriteConflict, format!("could not serialize access: {what} while this transaction ran"))
        .with_hint("Run the transaction again.")
}
