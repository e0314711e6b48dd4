//! Removes a shard that is lost permanently, with all its documents.
//!
//! First all its moves end. An undecided move is aborted. A decided one ends so that the documents are saved, if the other shard
//! still has them: a donor that has prepared and not committed rolls back and keeps the range; a recipient that has prepared
//! commits. Then the remaining ranges of the lost shard are assigned to other shards, empty.
//!
//! If the caller's transaction fails, what was committed or rolled back on the other shards of decided moves stays so;
//! the same call then continues from there.

use super::names;
use super::record::{self, Record};
use super::settle::{flip, require_ended_at};
use super::shard::{RECOVERY, ShardSession};
use crate::catalog::cluster::identity::{cluster_id, require_kept};
use crate::catalog::cluster::lost;
use crate::catalog::cluster::shard::Shard;
use crate::catalog::cluster::shards::remove::{begin_removal, forget_lost};
use crate::catalog::{cache, change};
use crate::pg::error::{Error, Result};
use crate::pg::server;
use crate::remote::{Session, hung};
use crate::storage::lock::{self, Mode, Tag};
use crate::store::{collections, databases};
use docshard_core::cluster::chunk_map::ShardId;
use docshard_core::cluster::migration::{Found, State};
use docshard_core::error::{Kind, error};
use docshard_core::routing::protocol::Call;
use docshard_core::routing::protocol::shard_tables::{ReadNode, ReadRelations};
use pgrx::pg_sys::Oid;
use serde_json::{Value as Json, json};
use std::time::Duration;

/// A shard counts as lost if one of its answers takes longer.
const PATIENCE: Duration = Duration::from_secs(10);

/// What to do if the other shard of a move does not answer either.
const ALSO_LOST: &str =
    "Run it again when that shard answers. If it is lost, too, give its own token in the option alsoLost.";

/// Why a move is given up.
const GIVEN_UP: &str = "a shard was removed as lost";

/// Reports the documents and chunks that would be lost with a shard, and a token that confirms the removal.
///
/// # Errors
/// `ShardNotFound`; `IllegalOperation` for the router's own shard, the last one, or one that answers.
pub fn announce(name: &str) -> Result<Json> {
    let shard = begin_removal(name)?;
    check_lost(&shard)?;
    let databases = databases::of_primary(shard.id)?;
    Ok(json!({
        "msg": "all documents on this shard would be lost; to confirm, call the function again with the token within \
         ten minutes",
        "state": "lost", "shard": name, "lost": lost::loss(shard.id)?, "dbsToMove": databases,
        "token": lost::give_token(&shard)?, "ok": 1,
    }))
}

/// Removes a lost shard. `others`: the names and tokens of shards that are lost with it. `end_changes` gets the numbers
/// of all lost shards, and ends the changes of layout that depend on them; it is called before the moves are ended and
/// the shard is removed.
///
/// # Errors
/// Those of [`announce`]; `BadValue` for an invalid token; `ConflictingOperationInProgress`; errors of the other shards.
pub fn remove(
    name: &str,
    token: &str,
    others: &[(&str, &str)],
    end_changes: impl FnOnce(&[ShardId]) -> Result<()>,
) -> Result<Json> {
    if server::in_transaction_block() {
        let message = "a lost shard cannot be removed inside a transaction block";
        return Err(Error::new(Kind::OperationNotSupportedInTransaction, message));
    }
    let shard = begin_removal(name)?;
    lost::check_token(&shard, token)?;
    check_lost(&shard)?;
    let gone = lost_with(&shard, others)?;
    let heirs = lost::heirs(shard.id)?;
    end_changes(&gone)?;
    let namespaces = collections::on_or_moving_to(shard.id)?;
    for namespace in &namespaces {
        let locked = change::lock(namespace)?;
        end_moves(locked.id, &shard, &gone)?;
    }
    let loss = lost::loss(shard.id)?;
    let databases = lost::move_databases(shard.id, &heirs)?;
    for namespace in &namespaces {
        lost::reassign(namespace, shard.id, &heirs)?;
    }
    forget_lost(&shard)?;
    lost::note_removed(shard.id)?;
    change::log("removeShard.lost", None, &json!({"shard": name, "lost": loss, "databases": databases}))?;
    change::announce();
    Ok(json!({
        "msg": "the lost shard is removed", "state": "completed", "shard": name, "lost": loss, "dbsMoved": databases, "ok": 1,
    }))
}

/// Checks the tokens of the other lost shards, and returns the numbers of all lost shards. Moves and changes of layout end without waiting for any
/// of these.
fn lost_with(shard: &Shard, others: &[(&str, &str)]) -> Result<Vec<ShardId>> {
    let mut gone = vec![shard.id];
    for (name, token) in others {
        let other = cache::shard_named(name)?;
        lost::check_token(&other, token)?;
        check_lost(&other)?;
        gone.push(other.id);
    }
    Ok(gone)
}

/// Returns an error for a shard that is not lost.
fn check_lost(shard: &Shard) -> Result<()> {
    let Some(oid) = shard.oid() else {
        return Err(error!(Kind::IllegalOperation, "the router's own database is not lost")
            .with_hint("docshard.remove_shard('local') drains it."));
    };
    if is_usable(shard, oid) {
        return Err(error!(Kind::IllegalOperation, "shard \"{}\" is not lost: it answers", shard.name)
            .with_hint("docshard.remove_shard(name) drains it."));
    }
    Ok(())
}

/// True for a shard that answers, reports what it has, and lets this router take its lock.
fn is_usable(shard: &Shard, server: Oid) -> bool {
    let _limit = hung::limit(PATIENCE);
    let reports = || {
        let mut session = Session::open(server)?;
        let nodes = ReadNode {}.call(&mut session)?;
        ReadRelations {}.call(&mut session)?;
        Ok::<_, Error>(nodes.iter().any(|node| node.shard == shard.name))
    };
    reports().is_ok_and(|is_shard| is_shard) && require_kept([shard]).is_ok()
}

/// Ends all moves of a collection, whose row is locked. `gone`: see [`lost_with`].
fn end_moves(collection: i32, lost: &Shard, gone: &[ShardId]) -> Result<()> {
    for record in record::unfinished()?.into_iter().filter(|record| record.collection == collection) {
        let concerns = record.donor == lost.id || record.recipient == lost.id;
        match record.state {
            // Another server may have decided the move, so it ends like a decided one.
            State::Running if !record::is_of_this_server(record.id)? => {
                if !concerns {
                    return Err(still_moving(&record));
                }
                let other = if record.donor == lost.id { record.recipient } else { record.donor };
                if !gone.contains(&other) && !record::is_of_this_router(record.id)? {
                    require_ended_at(&*cache::shard(other)?)?;
                }
                if !record::advance(record.id, State::Running, State::Committed)? {
                    return Err(still_moving(&record));
                }
                save_locked(&record, lost, gone)?;
            }
            // After this, the coordinator cannot decide the move.
            State::Running => {
                let why = error!(Kind::Interrupted, "shard \"{}\" was removed as lost", lost.name);
                record::note_error(record.id, &why)?;
                if !record::abort(record.id)? {
                    return Err(still_moving(&record));
                }
                super::abort::interrupt_coordinator(record.id)?;
            }
            State::Committed if concerns => save_locked(&record, lost, gone)?,
            State::Committed => return Err(still_moving(&record)),
            // Only cleaning up remains, which skips a removed shard.
            State::Moved | State::Aborted | State::Done => {}
        }
    }
    Ok(())
}

/// Calls [`save`]; returns an error if another process works on the move.
fn save_locked(record: &Record, lost: &Shard, gone: &[ShardId]) -> Result<()> {
    let tag = Tag::Coordinator(record.id);
    if !lock::try_acquire_for_session(tag, Mode::Exclusive) {
        return Err(still_moving(record));
    }
    let saved = save(record, lost, gone);
    lock::release_for_session(tag, Mode::Exclusive);
    saved
}

fn still_moving(record: &Record) -> Error {
    error!(
        Kind::ConflictingOperationInProgress,
        "a chunk of {} is being moved (migration {})", record.namespace, record.id
    )
    .with_hint("Run it again in a moment.")
}

/// Ends a decided move if one of its shards is lost, or both.
fn save(record: &Record, lost: &Shard, gone: &[ShardId]) -> Result<()> {
    let cluster = cluster_id()?;
    let donor_is_lost = record.donor == lost.id;
    let (other, gid) = if donor_is_lost {
        (record.recipient, names::recipient_gid(cluster, record.id))
    } else {
        (record.donor, names::donor_gid(cluster, record.id))
    };
    if gone.contains(&other) {
        return record::give_up(record.id, GIVEN_UP);
    }
    let mut other =
        ShardSession::open(&*cache::shard(other)?, RECOVERY).map_err(|error| match error.is_out_of_reach() {
            true => error.with_hint(ALSO_LOST),
            false => error,
        })?;
    match (other.find_part(record, &gid)?, donor_is_lost) {
        // The recipient has the documents.
        (Found::Prepared, true) => {
            other.commit_prepared(&gid)?;
            flip(record)
        }
        // The recipient has committed and owns the range; if it is the lost shard, the documents are lost.
        (Found::Committed, _) | (Found::After, true) => flip(record),
        // The donor still has the documents.
        (Found::Prepared, false) => {
            other.rollback_prepared(&gid)?;
            record::give_up(record.id, GIVEN_UP)
        }
        (Found::Before | Found::Gone, _) | (Found::After, false) => record::give_up(record.id, GIVEN_UP),
    }
}
