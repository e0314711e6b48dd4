//! Adopts a shard that has lost commits, for example in a failover to an asynchronous standby: brings it to the catalog's versions.
//!
//! The catalog has the ranges of every shard; the promoted shard has the ranges and documents of an earlier moment. For each collection:
//!
//! 1. Moves end according to what the shards still have of them. A decided move whose parts are there is completed. Any other ends so that
//!    the range stays with the shard that has the documents (`core::cluster::migration::salvage`).
//! 2. If the owner of a range has lost it, and another shard still has the documents because it has lost its part of the move, too, the
//!    range goes back to that shard ([`give_back`]). Otherwise step 3 would delete the only copy there.
//! 3. On the shard, in one transaction: documents outside of its ranges are deleted, missing tables and indexes created, indexes that the
//!    catalog does not have dropped, and the placement gets the catalog's version.
//!
//! If the shard is *ahead* of the catalog instead, because the router has lost commits, the catalog first follows all shards of the collection
//! ([`super::follow`]). A collection for which this fails does not prevent the others from being adopted.
//!
//! The catalog changes before the shard, and the shard's version last. So after a failure at any point, the same call continues. Moves,
//! index builds and drops of the collection are excluded meanwhile. The shard refuses the collection's statements, because of its old
//! version, until step 3 commits.

use super::record::{self, Record};
use super::settle::{flip, settle};
use super::shard::{RECOVERY, ShardSession, Sides, connect};
use super::{cleanup, follow, names, recovery};
use crate::catalog::cluster::identity::{cluster_id, require_router};
use crate::catalog::cluster::shard::Shard;
use crate::catalog::cluster::{access, behind, contacts, move_exclusion};
use crate::catalog::collections::validation;
use crate::catalog::{cache, change};
use crate::pg::error::{Error, Result};
use crate::pg::server::sleep_ms;
use crate::pg::{fault, transaction};
use crate::storage::lock::{self, Mode, Tag};
use crate::store::chunks::{self, VersionedChunk};
use crate::store::collections::{self, Identified};
use crate::store::{changelog, migrations, placements};
use docshard_core::cluster::chunk_map::ShardId;
use docshard_core::cluster::migration::{Action, Part, State, salvage};
use docshard_core::error::sqlstate;
use docshard_core::error::{Kind, error};
use docshard_core::routing::model::Collection;
use docshard_core::routing::names as relations;
use docshard_core::routing::protocol::Call;
use docshard_core::routing::protocol::migration::BypassCapture;
use docshard_core::routing::protocol::shard_tables::{
    CountDocuments, DeleteDocuments, FindDocument, FindRelations, ReadPlacements, ReadValidIndexes, TableRange,
};
use docshard_core::routing::protocol::table::{CreateIndex, CreateTable, DropIndex, ExcludeWriters};
use serde_json::{Value as Json, json};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// How long the coordinator of a decided move may take to end.
const PATIENCE: Duration = Duration::from_secs(20);

/// Errors that concern one collection only, so the other collections are adopted nevertheless.
const OF_ONE_COLLECTION: [Kind; 3] = [Kind::IllegalOperation, Kind::ConflictingOperationInProgress, Kind::LockTimeout];

/// The size of the report from which on further ranges and collections are only counted.
const MAX_REPORT: usize = 32 * 1024;

/// Adopts a shard; returns what was lost and changed. Runs in a background worker, outside any transaction.
///
/// # Errors
/// `ShardNotFound`; `IllegalOperation` for the router's own database; `NotWritablePrimary` at a copy of the router;
/// `ConflictingOperationInProgress` while a coordinator completes a move; errors of the shards. If nothing was adopted, those of the first
/// collection that could not be: see [`follow::follow`].
pub(super) fn run(name: &str) -> Result<Json> {
    transaction::run(require_router)?;
    // From `accept` on, the router no longer refuses the shard.
    let (shard, mut said) = transaction::run(|| Ok((cache::shard_named(name)?, contacts::accept(name)?)))?;
    recovery::recover()?;
    end_damaged_moves(&shard)?;
    cleanup::sweep()?;
    fault::point("adopt.moves_ended")?;
    let mut session = connect(shard.id, RECOVERY)?;
    transaction::run(|| access::make_roles(&mut session))?;
    let mut first_error = None;
    let (mut adopted, mut failed, mut size, mut more) = (Vec::new(), Vec::new(), 0, 0);
    for (namespace, version) in namespaces(&shard, &mut session)? {
        let (list, changes) = match adopt_one(&shard, &mut session, &namespace, version) {
            Ok(None) => continue,
            Ok(Some(changes)) => (&mut adopted, changes),
            Err(error) if !OF_ONE_COLLECTION.contains(&error.kind) => return Err(error),
            Err(error) => {
                session = connect(shard.id, RECOVERY)?;
                let one =
                    json!({"ns": namespace, "code": error.kind.code(), "errmsg": error.message, "hint": error.hint});
                first_error = first_error.or(Some(error));
                (&mut failed, one)
            }
        };
        size += changes.to_string().len();
        if size <= MAX_REPORT {
            list.push(changes);
        } else {
            more += 1;
        }
    }
    if let Some(error) = first_error.filter(|_| adopted.is_empty()) {
        return Err(error);
    }
    said["adopted"] = adopted.into();
    if !failed.is_empty() {
        said["failed"] = failed.into();
    }
    if more > 0 {
        said["more"] = more.into();
    }
    transaction::run(|| {
        change::log("adoptShard", None, &said)?;
        change::announce();
        Ok(())
    })?;
    Ok(said)
}

/// The collections that the shard has or should have, each with the shard's version in the catalog (None: not placed
/// there).
fn namespaces(shard: &Shard, session: &mut ShardSession) -> Result<BTreeMap<String, Option<i64>>> {
    let there = ReadPlacements { collection: None }.call(session)?;
    transaction::run(|| {
        let is_there = |one: &Identified| there.iter().any(|row| (row.collection_id, row.token) == (one.id, one.token));
        let found = collections::identities()?.into_iter().filter(is_there).map(|one| (one.namespace, None));
        let mut all: BTreeMap<_, _> = found.collect();
        all.extend(placements::of_shard(shard.id)?.into_iter().map(|one| (one.namespace, Some(one.version))));
        Ok(all)
    })
}

/// Adopts a collection of the shard; `version` is the shard's version in the catalog. None if there was nothing to do.
fn adopt_one(shard: &Shard, session: &mut ShardSession, namespace: &str, version: Option<i64>) -> Result<Option<Json>> {
    let found = transaction::run(|| match cache::find(namespace)? {
        Some(collection) => version_at(session, &collection),
        None => Ok(None),
    })?;
    let followed = if found > version { follow::follow(namespace)? } else { None };
    if found < version {
        give_back(namespace)?;
    }
    let adopted = adopt(shard, session, namespace)?;
    let Some(followed) = followed else { return Ok(adopted) };
    let mut changes = adopted.unwrap_or_else(|| json!({"ns": namespace}));
    changes["followed"] = followed;
    Ok(Some(changes))
}

/// Ends the decided moves of a shard that recovery could not end, as one of their parts is lost.
fn end_damaged_moves(shard: &Shard) -> Result<()> {
    let concerns = |record: &Record| record.donor == shard.id || record.recipient == shard.id;
    for record in transaction::run(record::unfinished)?.into_iter().filter(concerns) {
        if record.state != State::Committed {
            continue;
        }
        let (tag, began) = (Tag::Coordinator(record.id), Instant::now());
        while !transaction::guarded(|| Ok(lock::try_acquire_for_session(tag, Mode::Exclusive)))? {
            if began.elapsed() > PATIENCE {
                let message = format!("migration {} of {} is being completed", record.id, record.namespace);
                return Err(
                    Error::new(Kind::ConflictingOperationInProgress, message).with_hint("Run it again in a moment.")
                );
            }
            sleep_ms(100);
        }
        let ended = transaction::guarded(|| end_damaged(&record));
        lock::release_for_session(tag, Mode::Exclusive);
        ended?;
    }
    Ok(())
}

fn end_damaged(record: &Record) -> Result<()> {
    let cluster = transaction::run(cluster_id)?;
    let (donor_gid, recipient_gid) = (names::donor_gid(cluster, record.id), names::recipient_gid(cluster, record.id));
    let mut sides = Sides::default();
    let donor = sides.donor(record)?.part(record, &donor_gid)?;
    let recipient = sides.recipient(record)?.part(record, &recipient_gid)?;
    match salvage(donor, recipient) {
        Action::Flip => transaction::run(|| flip(record))?,
        Action::GiveUp => {
            if donor == Part::Prepared {
                sides.donor(record)?.rollback_prepared(&donor_gid)?;
            }
            if recipient == Part::Prepared {
                sides.recipient(record)?.rollback_prepared(&recipient_gid)?;
            }
            return transaction::run(|| record::give_up(record.id, "a shard has lost its part in a failover"));
        }
        _ => {}
    }
    settle(record.id)
}

/// Assigns ranges that their owner has lost to shards that still have the documents. If several have them, the shard at the newest version
/// gets the range: its documents are the latest. The former and the new owner stay behind the catalog until they are adopted.
fn give_back(namespace: &str) -> Result<()> {
    transaction::run(|| {
        let locked = match move_exclusion::lock(namespace) {
            Err(error) if is_gone(&error) => return Ok(()),
            locked => locked?,
        };
        let collection = cache::get(namespace)?;
        // The shards that are behind the catalog, each with a session and its version.
        let mut behind: BTreeMap<ShardId, (ShardSession, Option<i64>)> = BTreeMap::new();
        for (id, version) in &collection.placements {
            let shard = cache::shard(*id)?;
            if shard.is_local() {
                continue;
            }
            let mut session = ShardSession::open(&shard, RECOVERY)?;
            let found = version_at(&mut session, &collection)?;
            if found < Some(*version) {
                behind.insert(*id, (session, found));
            }
        }
        if behind.len() < 2 {
            return Ok(());
        }
        let has_lost =
            |chunk: &VersionedChunk| behind.get(&chunk.shard).is_some_and(|(_, found)| *found < Some(chunk.version));
        let lost: Vec<_> = chunks::with_versions(locked.id)?.into_iter().filter(has_lost).collect();
        let mut returned: Vec<(VersionedChunk, ShardId)> = Vec::new();
        for chunk in lost {
            let mut best: Option<(i64, ShardId)> = None;
            for (id, (session, found)) in &mut behind {
                let Some(found) = found.filter(|found| *found < chunk.version && *id != chunk.shard) else { continue };
                if best.is_none_or(|(best, _)| found > best) && has_documents(session, &collection, &chunk)? {
                    best = Some((found, *id));
                }
            }
            returned.extend(best.map(|(_, id)| (chunk, id)));
        }
        if returned.is_empty() {
            return Ok(());
        }
        let version = change::next_version(locked.id)?;
        for (chunk, to) in &returned {
            chunks::set_owner(locked.id, (&chunk.min, &chunk.max), chunk.shard, *to, version)?;
            placements::set_version(locked.id, &[chunk.shard, *to], version)?;
        }
        change::touch(locked.id)?;
        change::log("adoptShard.returned", Some(namespace), &json!({"chunks": returned.len(), "version": version}))
    })
}

fn is_gone(error: &Error) -> bool {
    error.sqlstate == sqlstate::UNDEFINED_TABLE
}

/// Returns the version of a collection at a shard; None if the shard has no version of it.
/// Errors: `IllegalOperation` if the version belongs to another collection.
fn version_at(session: &mut ShardSession, collection: &Collection) -> Result<Option<i64>> {
    let found = ReadPlacements { collection: Some(collection.id) }.call(session)?;
    let Some(placed) = found.first() else { return Ok(None) };
    if placed.token == collection.token {
        return Ok(Some(placed.version));
    }
    Err(error!(
        Kind::IllegalOperation,
        "shard \"{}\" has another collection in the place of {}", session.name, collection.namespace
    )
    .with_hint("The router or the shard was restored from a backup."))
}

/// The range of a chunk in statements for shards.
fn range<'a>(collection: &Collection, min: &'a [u8], max: &'a [u8]) -> TableRange<'a> {
    TableRange { collection: collection.id, lo: min, hi: (max != collection.key.max_bound()).then_some(max) }
}

fn has_documents(session: &mut ShardSession, collection: &Collection, chunk: &VersionedChunk) -> Result<bool> {
    Ok(!FindDocument(range(collection, &chunk.min, &chunk.max)).call(session)?.is_empty())
}

/// Brings one collection of the shard to the catalog's version; None if there was nothing to do.
fn adopt(shard: &Shard, session: &mut ShardSession, namespace: &str) -> Result<Option<Json>> {
    transaction::run(|| {
        let locked = match move_exclusion::lock(namespace) {
            Err(error) if is_gone(&error) => return Ok(None),
            locked => locked?,
        };
        change::refuse_while_building(locked.id, namespace)?;
        let collection = cache::get(namespace)?;
        let Some(&version) = collection.placements.get(&shard.id) else { return Ok(None) };
        let table = relations::table(locked.id);
        let has_table = !FindRelations { relations: &[relations::unqualified(&table)] }.call(session)?.is_empty();
        // A version without the table does not count.
        let found = version_at(session, &collection)?.filter(|_| has_table);
        if found.is_some_and(|found| found > version) {
            let message = format!("shard \"{}\" is ahead of the catalog: {namespace}", shard.name);
            return Err(Error::new(Kind::IllegalOperation, message).with_hint("Run it again in a moment."));
        }
        if found.is_none() {
            behind::check_may_create(&shard.name, &collection)?;
        }
        session.execute("BEGIN ISOLATION LEVEL READ COMMITTED")?;
        ExcludeWriters { collection: locked.id }.call(session)?;
        BypassCapture {}.call(session)?;
        let is_behind = found.is_none_or(|found| found < version);
        let mut changes = json!({"ns": namespace});
        if is_behind {
            let (lost, returned) = lost_ranges(session, &collection, shard.id, found)?;
            if returned > 0 {
                changes["returned"] = returned.into();
            }
            let removed = if found.is_some() { delete_outside(session, &collection, shard.id)? } else { 0 };
            let id_index = !collection.key.is_in_order_of_id();
            CreateTable { collection: locked.id, token: collection.token, version, id_index }.call(session)?;
            access::for_new_table(namespace, locked.id, |access| access.call(session))?;
            (changes["from"], changes["to"]) = (found.into(), version.into());
            (changes["removed"], changes["lost"]) = (removed.into(), lost);
        }
        // Even a shard at the catalog's version may have lost a change of the validator.
        validation::place_by(locked.id, collection.token, collection.validation.as_deref(), |set| set.call(session))?;
        let is_repaired = repair_indexes(session, &collection, &mut changes)?;
        fault::point("adopt.adopting")?;
        session.execute("COMMIT")?;
        Ok((is_behind || is_repaired).then_some(changes))
    })
}

/// Deletes the documents of ranges that the shard does not own, range by range; returns the number of deleted documents.
fn delete_outside(session: &mut ShardSession, collection: &Collection, shard: ShardId) -> Result<i64> {
    let mut outside: Vec<(Vec<u8>, Vec<u8>)> = Vec::new();
    for chunk in collection.map.chunks().filter(|chunk| chunk.shard != shard) {
        match outside.last_mut() {
            Some(last) if last.1 == chunk.min => last.1 = chunk.max,
            _ => outside.push((chunk.min, chunk.max)),
        }
    }
    let mut removed = 0;
    for (min, max) in &outside {
        removed += DeleteDocuments(range(collection, min, max)).call(session)?;
    }
    Ok(removed)
}

/// Returns the ranges that came to the shard after its version `found`, each with the number of documents that a move brought (null if it
/// is not known) and the number that the shard has. Ranges that [`give_back`] returned to the shard are left out; the second value is their
/// number.
fn lost_ranges(
    session: &mut ShardSession,
    collection: &Collection,
    shard: ShardId,
    found: Option<i64>,
) -> Result<(Json, usize)> {
    let mut ranges: Vec<VersionedChunk> = Vec::new();
    let is_lost = |chunk: &VersionedChunk| chunk.shard == shard && found.is_none_or(|found| found < chunk.version);
    for chunk in chunks::with_versions(collection.id)?.into_iter().filter(is_lost) {
        match ranges.last_mut() {
            Some(last) if last.max == chunk.min && last.version == chunk.version => last.max = chunk.max,
            _ => ranges.push(chunk),
        }
    }
    let all = ranges.len();
    let mut returned = BTreeMap::new();
    for version in ranges.iter().map(|range| range.version) {
        returned.insert(version, changelog::has_returned(&collection.namespace, version)?);
    }
    ranges.retain(|range| !returned[&range.version]);
    let (mut lost, mut size) = (Vec::new(), 0);
    for range in &ranges {
        let there = match found {
            None => 0,
            Some(_) => CountDocuments(self::range(collection, &range.min, &range.max)).call(session)?,
        };
        let moved = migrations::brought(collection.id, shard, range.version)?;
        let bound =
            |bound: &[u8]| if collection.key.is_unsharded() { Json::Null } else { collection.key.bound_to_json(bound) };
        let one = json!({"min": bound(&range.min), "max": bound(&range.max), "moved": moved, "found": there});
        size += one.to_string().len();
        if size > MAX_REPORT / 4 {
            break;
        }
        lost.push(one);
    }
    let left = ranges.len() - lost.len();
    if left > 0 {
        lost.push(json!({"more": left}));
    }
    Ok((lost.into(), all - ranges.len()))
}

/// Creates the indexes that the shard lacks, and drops those that the catalog does not have. Reports both in `changes`, and indexes that
/// cannot be created. True if there is anything to report.
fn repair_indexes(session: &mut ShardSession, collection: &Collection, changes: &mut Json) -> Result<bool> {
    let present = ReadValidIndexes { collection: collection.id }.call(session)?;
    let (mut created, mut dropped, mut failed) = (Vec::new(), Vec::new(), Vec::new());
    for index in &collection.indexes {
        let mut needed = relations::relations(index.id, &index.keys, index.unique).into_iter();
        if needed.all(|relation| present.contains(&relation)) {
            continue;
        }
        session.execute("SAVEPOINT before_index")?;
        let creation = DropIndex { index: index.id }
            .call(session)
            .and_then(|()| CreateIndex::of(collection.id, index).call(session));
        match creation {
            Ok(()) => created.push(index.name.clone()),
            Err(error) => {
                session.execute("ROLLBACK TO SAVEPOINT before_index")?;
                failed.push(json!({"name": index.name, "errmsg": error.message}));
            }
        }
    }
    let mut strays: Vec<i32> = present.iter().filter_map(|relation| relations::index_of(relation)).collect();
    strays.retain(|id| collection.indexes.iter().all(|index| index.id != *id));
    strays.sort_unstable();
    strays.dedup();
    for index in strays {
        DropIndex { index }.call(session)?;
        dropped.push(relations::index(index));
    }
    let is_repaired = !(created.is_empty() && dropped.is_empty() && failed.is_empty());
    for (field, values) in
        [("indexesCreated", json!(created)), ("indexesDropped", json!(dropped)), ("indexesFailed", json!(failed))]
    {
        if values != json!([]) {
            changes[field] = values;
        }
    }
    Ok(is_repaired)
}
