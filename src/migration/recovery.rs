//! Completing or taking back moves whose coordinator is gone.
//!
//! A coordinator holds a lock on its migration as long as its process lives, so whoever gets that lock knows that the
//! attempt is nobody's, and is alone in working on it.

use super::record::{self, Record, names};
use super::settle::settle;
use super::shard::Remote;
use crate::catalog::cache;
use crate::catalog::cluster;
use crate::catalog::model::Place;
use crate::catalog::shards::cluster_id;
use crate::pg::error::Result;
use crate::pg::fault;
use crate::pg::spi::param::Param;
use crate::pg::transaction;
use crate::storage::lock::{self, Mode, Tag};
use crate::store::transactions;
use std::cell::{Cell, RefCell};
use std::collections::HashSet;
use std::time::{Duration, Instant};

/// How often a process that recovers again and again also sweeps.
const SWEEP: Duration = Duration::from_secs(300);

thread_local! {
    static SWEPT: Cell<Option<Instant>> = const { Cell::new(None) };
    /// Parts of other routers' moves of which the log has been told.
    static TOLD: RefCell<HashSet<String>> = RefCell::default();
}

/// Brings every attempt without a living coordinator to its end, and [`sweep`]s now and then. A shard that cannot be reached leaves its attempts
/// where they are, with the error in their rows; returns how many. Runs outside any transaction.
///
/// # Errors
/// Internal ones of the catalog.
pub fn recover() -> Result<usize> {
    let left = recover_some(|_| true)?;
    if SWEPT.get().is_none_or(|at| at.elapsed() >= SWEEP) {
        SWEPT.set(Some(Instant::now()));
        sweep()?;
    }
    Ok(left)
}

/// As [`recover`], for the attempts of one collection.
///
/// # Errors
/// As [`recover`].
pub fn recover_collection(namespace: &str) -> Result<usize> {
    recover_some(|record| record.namespace == namespace)
}

/// As [`recover`], for one attempt; where somebody else works on it, nothing is done.
///
/// # Errors
/// As [`recover`].
pub(super) fn recover_one(id: i64) -> Result<usize> {
    recover_some(|record| record.id == id)
}

/// True if a process works on the attempt: its coordinator, or one that recovers it. Runs in the caller's transaction.
///
/// # Errors
/// Internal ones.
pub(super) fn is_in_hands(id: i64) -> Result<bool> {
    // Taking the lock for a look could keep the one away who wants to recover.
    Ok(!lock::holding_processes(Tag::Coordinator(id))?.is_empty())
}

fn recover_some(wanted: impl Fn(&Record) -> bool) -> Result<usize> {
    let mut left = 0;
    for found in transaction::run(record::unfinished)?.into_iter().filter(wanted) {
        let tag = Tag::Coordinator(found.id);
        let mine = transaction::guarded(|| Ok(lock::try_acquire_for_session(tag, Mode::Exclusive)))?;
        if !mine && !fault::is_off("coordinator_lock") {
            continue;
        }
        let ended = transaction::guarded(|| fault::point("recover.begin")).and_then(|()| settle(found.id));
        if let Err(error) = ended {
            left += 1;
            let _ = transaction::run(|| record::note_error(found.id, &error));
        }
        if mine {
            lock::release_for_session(tag, Mode::Exclusive);
        }
    }
    Ok(left)
}

/// Removes from every shard what belongs to moves that are over: prepared transactions, captures and
/// their log, staging tables. There
/// is nothing of the kind unless a coordinator was paused for so long that it was taken for dead (a router that failed
/// over, say), and went on afterwards. Shards that cannot be reached are left out; returns how many. Runs outside any
/// transaction.
///
/// # Errors
/// Internal ones of the catalog.
pub fn sweep() -> Result<usize> {
    let shards = transaction::run(cache::shards)?;
    let mut left = 0;
    for shard in shards.values() {
        let swept = transaction::guarded(|| {
            if shard.place != Place::Local && !transaction::run(|| Ok(cluster::may_finish(shard.id)))? {
                return Ok(());
            }
            let cluster = transaction::run(cluster_id)?;
            let mut session = transaction::run(|| Remote::open(shard, "docshard recovery"))?;
            sweep_shard(&mut session, cluster)
        });
        left += usize::from(swept.is_err());
    }
    Ok(left)
}

/// INVARIANT: looks at the shard first and at the catalog afterwards. A move's row is durable before it touches a shard,
/// so what was seen and has no row, or one that is over, is nobody's.
fn sweep_shard(shard: &mut Remote, cluster: i64) -> Result<()> {
    let prefix = names::gid_prefix(cluster);
    let prepared: Vec<(String, i64)> = shard
        .query(
            "SELECT gid FROM pg_catalog.pg_prepared_xacts WHERE starts_with(gid, $1) AND database = current_database()",
            &[Param::Text(&prefix)],
        )?
        .iter()
        .filter_map(|row| {
            let gid = row.text(0)?;
            let id = gid[prefix.len()..].split('_').next()?.parse().ok()?;
            Some((gid.to_owned(), id))
        })
        .collect();
    let captures: Vec<i64> = shard
        .query(
            "SELECT migration_id FROM docshard_data.capture UNION SELECT migration_id FROM docshard_data.capture_log \
             UNION SELECT migration_id FROM docshard_data.capture_parts",
            &[],
        )?
        .iter()
        .filter_map(|row| row.i64(0))
        .collect();
    let tables: Vec<(String, String, i64)> = shard
        .query(
            "SELECT relname::text, relkind::text, substring(relname, '^m([0-9]+)_')::int8 FROM pg_catalog.pg_class \
             WHERE relnamespace = 'docshard_data'::regnamespace AND relname ~ '^m[0-9]{1,18}_(identity|source|changes|staging)$'",
            &[],
        )?
        .iter()
        .filter_map(|row| Some((row.text(0)?.to_owned(), row.text(1)?.to_owned(), row.i64(2)?)))
        .collect();
    if prepared.is_empty() && captures.is_empty() && tables.is_empty() {
        return Ok(());
    }
    let mut alive: HashSet<i64> =
        transaction::run(|| Ok(record::unfinished()?.into_iter().map(|record| record.id).collect()))?;
    for (gid, id) in &prepared {
        if alive.contains(id) {
            continue;
        }
        if !transaction::run(|| record::is_own(*id))? {
            // Of a router that this one has replaced, which may have decided it: all of it stays.
            if TOLD.with_borrow_mut(|told| told.insert(gid.clone())) {
                pgrx::log!(
                    "docshard: prepared transaction {gid} at shard \"{}\" is of a move by a router that this one has \
                     replaced; an administrator has to end it",
                    shard.name
                );
            }
            alive.insert(*id);
            continue;
        }
        shard.execute(&format!("ROLLBACK PREPARED {}", crate::pg::spi::quote::quote_literal(gid)))?;
    }
    for id in captures.iter().filter(|id| !alive.contains(id)) {
        for table in ["capture", "capture_log", "capture_parts"] {
            shard.query(&format!("DELETE FROM docshard_data.{table} WHERE migration_id = $1"), &[Param::Int8(*id)])?;
        }
    }
    for (table, kind, _) in tables.iter().filter(|(_, _, id)| !alive.contains(id)) {
        let foreign = if kind == "f" { "FOREIGN " } else { "" };
        shard.execute(&format!("DROP {foreign}TABLE IF EXISTS docshard_data.{table}"))?;
    }
    Ok(())
}

/// The moves of the collection that are decided but not yet in the map: then a stale answer is no error but a reason to
/// wait. Runs in the caller's transaction.
///
/// # Errors
/// Internal ones.
pub fn decided(collection: i32) -> Result<Vec<i64>> {
    Ok(record::decided(collection)?.into_iter().map(|migration| migration.id).collect())
}

/// True if something is under way that changes, or has just changed, at which version a shard is of the collection: a
/// move, or a transaction that is decided and that some shard has perhaps not committed yet. If not, a shard that differs
/// from the map will not come round. Runs in the caller's transaction.
///
/// # Errors
/// Internal ones.
pub fn may_change_placement(collection: i32) -> Result<bool> {
    Ok(!record::undecided(collection)?.is_empty() || transactions::exist()?)
}
