//! Removes what moves have left on shards: sessions, prepared transactions, captures, tables. [`clean`] is called after each
//! attempt; [`sweep`] is called regularly, and ends or removes everything that belongs to no running move.

use super::names;
use super::record::{self, Record};
use super::shard::{RECOVERY, ShardSession, Sides};
use crate::catalog::cache;
use crate::catalog::cluster::identity;
use crate::catalog::cluster::identity::cluster_id;
use crate::pg::error::Result;
use crate::pg::{fault, transaction};
use crate::shard::leftovers;
use crate::store::{self, collections, migrations, placements, resharding};
use docshard_core::cluster::chunk_map::ShardId;
use docshard_core::cluster::migration::{Outcome, State};
use docshard_core::cluster::take_over::last_number_that_counts;
use docshard_core::error::{Kind, bail};
use docshard_core::routing::protocol::Call;
use docshard_core::routing::protocol::node::ReadPrepared;
use docshard_core::routing::protocol::shard_tables::{
    DeleteCaptures, FindDocument, HoldPlacement, ReadCapturedMoves, ReadMoveTables, TableRange,
};
use docshard_core::routing::protocol::table::{DropTable, ExcludeWriters};
use std::cell::RefCell;
use std::collections::HashSet;

thread_local! {
    /// The prepared transactions of other routers' moves that have been logged.
    static REPORTED: RefCell<HashSet<String>> = RefCell::default();
}

/// Removes what a move has left on its shards. If one shard cannot be reached the other is cleaned nevertheless; a shard that
/// was removed as lost is skipped.
pub(super) fn clean(record: &Record, cluster: i64, sides: &mut Sides) -> Result<()> {
    let shards = transaction::run(cache::shards)?;
    let donor = transaction::guarded(|| {
        if !shards.contains_key(&record.donor) {
            return Ok(());
        }
        let shard = sides.donor(record)?;
        end_attempt(shard, record, cluster, &names::donor_gid(cluster, record.id))?;
        // A writer that read the capture may log more rows until it ends; the sweep deletes those.
        delete_captures(shard, record.id)
    });
    // Closed explicitly, so that its connections of postgres_fdw are closed first.
    if let Some(puller) = sides.puller.take() {
        let _ = transaction::guarded(|| {
            puller.leave();
            Ok(())
        });
    }
    let recipient = transaction::guarded(|| {
        if !shards.contains_key(&record.recipient) {
            return Ok(());
        }
        let shard = sides.recipient(record)?;
        end_attempt(shard, record, cluster, &names::recipient_gid(cluster, record.id))?;
        shard.execute(&leftovers::drop_tables(record.id))?;
        transaction::run(|| drop_unplaced(shard, record))
    });
    let result = donor.and(recipient);
    if let Err(error) = &result {
        let _ = transaction::run(|| record::note_error(record.id, error));
    }
    result
}

fn delete_captures(donor: &mut ShardSession, migration: i64) -> Result<()> {
    DeleteCaptures { migration: Some(migration), collection: None }.call(donor).map(drop)
}

/// Ends the move's sessions on a shard, and rolls back what it has prepared for the move.
pub(super) fn roll_back(shard: &mut ShardSession, record: &Record, cluster: i64, gid: &str) -> Result<()> {
    let aborted = Record { state: State::Aborted, ..record.clone() };
    end_attempt(shard, &aborted, cluster, gid)
}

/// Ends the move's sessions on a shard, so that none can prepare any more. Rolls back prepared transactions of an aborted move.
fn end_attempt(shard: &mut ShardSession, record: &Record, cluster: i64, gid: &str) -> Result<()> {
    end_sessions(shard, record, cluster)?;
    if record.state == State::Aborted && shard.is_prepared(gid)? {
        shard.rollback_prepared(gid)?;
    }
    Ok(())
}

/// Ends the move's sessions on a shard, so that none can prepare any more.
pub(super) fn end_sessions(shard: &mut ShardSession, record: &Record, cluster: i64) -> Result<()> {
    let mut application = names::application(cluster, record.id);
    if fault::is_off("end_sessions") {
        application.push_str(" (nobody)");
    }
    if shard.end_sessions(&application)? > 0 {
        bail!(Kind::OperationFailed, "sessions of migration {} on shard \"{}\" do not end", record.id, shard.name);
    }
    Ok(())
}

/// The outcome of the move that has prepared a transaction at a shard; None if the catalog does not have that move: its
/// row of that number may be a move between other shards.
fn outcome_at(id: i64, at: ShardId, gid: &str, cluster: i64) -> Result<Option<Outcome>> {
    if !migrations::exists(id)? {
        return Ok(None);
    }
    let record = record::load(id)?;
    let side = if gid == names::donor_gid(cluster, id) { record.donor } else { record.recipient };
    if side == at { record::outcome(id) } else { Ok(None) }
}

/// Prevents that the next move gets the number of a move that has prepared something on a shard, and that the catalog has lost: their prepared
/// transactions would have the same names.
pub(super) fn skip_lost_moves(shard: &mut ShardSession, cluster: i64) -> Result<()> {
    for gid in (ReadPrepared { prefixes: &[&names::gid_prefix(cluster)] }).call(shard)? {
        if let Some(id) = names::move_of(&gid, cluster)
            && !migrations::exists(id)?
        {
            skip_number(id)?;
        }
    }
    Ok(())
}

/// Makes the next move's number greater than that of a move that the catalog has lost, unless another router has begun it. Any role of a
/// shard may choose the names of its prepared transactions, so a number that is far away is not followed: no move will have it soon.
fn skip_number(id: i64) -> Result<()> {
    let last = store::last_number("migrations")?;
    if record::is_of_this_router(id)? && last <= id && id <= last_number_that_counts(last) {
        store::skip_numbers("migrations", id)?;
    }
    Ok(())
}

/// Drops the table that an aborted move created, unless it is in the catalog. Holds the collection's lock, so that no other
/// move creates the table at the same time.
///
/// INVARIANT: a table is dropped only if it has the version of this very move and no documents, and no other move may bring documents
/// there. After a restore of the router, a later router may have moved documents there. Such a table stays, as one that the catalog does
/// not know.
fn drop_unplaced(recipient: &mut ShardSession, record: &Record) -> Result<()> {
    if record.state != State::Aborted {
        return Ok(());
    }
    collections::lock_id(record.collection)?;
    let (id, shard) = (record.collection, record.recipient);
    if placements::version(id, shard)?.is_some() || migrations::may_bring(id, shard)? {
        return Ok(());
    }
    recipient.execute("BEGIN")?;
    let created = HoldPlacement { collection: id, token: record.token, version: record.recipient_version };
    let is_unused = !created.call(recipient)?.is_empty() && {
        ExcludeWriters { collection: id }.call(recipient)?;
        FindDocument(TableRange { collection: id, lo: &[], hi: None }).call(recipient)?.is_empty()
    };
    if is_unused {
        DropTable { collection: id }.call(recipient)?;
    }
    recipient.execute("COMMIT")
}

/// On every shard, ends the prepared transactions of moves that have ended (commits or rolls back, as the move ended), and removes their
/// captures and tables. Such objects exist only if a coordinator continued after another process had considered it dead, perhaps after a
/// failover of the router; or if a shard has lost its last commits in a failover.
/// Returns how many shards could not be swept. Must be called outside any transaction.
pub fn sweep() -> Result<usize> {
    let shards = transaction::run(cache::shards)?;
    let mut left = 0;
    for shard in shards.values() {
        let swept = transaction::guarded(|| {
            if !shard.is_local() && !transaction::run(|| Ok(identity::may_finish(shard.id)))? {
                return Ok(());
            }
            let cluster = transaction::run(cluster_id)?;
            let mut session = transaction::run(|| ShardSession::open(shard, RECOVERY))?;
            sweep_shard(&mut session, shard.id, cluster)
        });
        left += usize::from(swept.is_err());
    }
    Ok(left)
}

/// INVARIANT: reads the shard first and the catalog afterwards. A move's row is durable before the move changes a shard, so an
/// object whose move has no row, or has ended, belongs to no running move of this server. But a router that was promoted without its last
/// commits, or restored, lacks rows of moves that may have been decided: what these have prepared may be the only copy of documents.
fn sweep_shard(shard: &mut ShardSession, at: ShardId, cluster: i64) -> Result<()> {
    let gids = ReadPrepared { prefixes: &[&names::gid_prefix(cluster)] }.call(shard)?;
    let prepared: Vec<(&str, i64)> =
        gids.iter().filter_map(|gid| Some((gid.as_str(), names::move_of(gid, cluster)?))).collect();
    let captures = ReadCapturedMoves {}.call(shard)?;
    let tables = ReadMoveTables { names: &leftovers::move_tables() }.call(shard)?;
    if prepared.is_empty() && captures.is_empty() && tables.is_empty() {
        return Ok(());
    }
    let mut alive: HashSet<i64> =
        transaction::run(|| Ok(record::unfinished()?.into_iter().map(|record| record.id).collect()))?;
    // Changes of a collection's layout have numbers of the same kind.
    alive.extend(transaction::run(resharding::unfinished)?.into_iter().map(|change| change.id));
    for (gid, id) in prepared {
        if alive.contains(&id) {
            continue;
        }
        // A shard that was promoted without its last commits may again have the prepared transaction of a move that has
        // ended.
        let Some(outcome) = transaction::run(|| outcome_at(id, at, gid, cluster))? else {
            // A router that this one has replaced prepared it, or a former server of this one, and may have decided the move: all objects of
            // this move are kept.
            if REPORTED.with_borrow_mut(|reported| reported.insert(gid.to_owned())) {
                pgrx::log!(
                    "docshard: prepared transaction {gid} at shard \"{}\" belongs to a move that the catalog does not have; \
                     an administrator must end it",
                    shard.name
                );
            }
            // A new move must not have that number, and with it the name of the prepared transaction.
            transaction::run(|| skip_number(id))?;
            alive.insert(id);
            continue;
        };
        match outcome {
            Outcome::Committed => shard.commit_prepared(gid)?,
            _ => shard.rollback_prepared(gid)?,
        }
    }
    for id in captures.iter().filter(|id| !alive.contains(id)) {
        delete_captures(shard, *id)?;
    }
    // If a table cannot be dropped, as it belongs to another owner, the others are dropped nevertheless.
    let mut dropped = Ok(());
    for table in tables.iter().filter(|table| !alive.contains(&table.migration)) {
        dropped = dropped.and(shard.execute(&table.drop()));
    }
    dropped
}
