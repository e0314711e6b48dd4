//! At a recipient of a collection that is copied into another layout: stores the documents that are pulled, and later applies changes.
//! Nothing reads the copy's table yet, so each batch is committed at once.
//!
//! Batches come from different snapshots. So a document may conflict with another one that had the same key at another time, in the primary
//! key or in a unique index. It is then *refused*, and its key is reported; the coordinator has it copied again. If a document is refused
//! while all writers are excluded, two documents really have the same key.
//!
//! Neither the donor nor the staging table is trusted: each document is checked, and its key is computed from it.

use super::recipient_load::{
    DOC, FIELD_ORDER, ID, PACKED, SKEY, check_document, read_key, refused, staging, with_order,
};
use super::stored::document;
use super::{clone_parts, table};
use crate::pg::error::Result;
use crate::pg::memory::allocator;
use crate::pg::memory::context::OwnContext;
use crate::pg::security::bypass;
use crate::pg::transaction::snapshot::ActiveSnapshot;
use crate::pg::transaction::subtransaction::attempt;
use crate::storage::rows::{Change, Purpose, TableRow};
use crate::storage::scan::{self, Bound, Look, by_int4};
use docshard_core::cluster::share::Share;
use docshard_core::error::sqlstate::UNIQUE_VIOLATION;
use docshard_core::routing::protocol::resharding::{ApplyShare, LoadShare, Stored};
use docshard_core::values::document::raw;
use docshard_core::values::key::KeyPattern;

/// The size in bytes of the batches in which changed documents are inserted.
const BATCH_BYTES: usize = 4 << 20;

/// A document with its key at the donor.
struct Arrived {
    old_skey: Vec<u8>,
    id: Vec<u8>,
    doc: Vec<u8>,
}

/// The recipient's collection, its shard key, and the recipient's share of it.
struct Target<'a> {
    collection: i32,
    key: &'a KeyPattern,
    share: &'a Share,
}

impl Target<'_> {
    /// The shard key of a document in the new layout; None if another recipient gets the document.
    ///
    /// # Errors
    /// `ShardKeyNotFound`, `KeyTooLong` for a document that cannot have the shard key; those of [`check_document`].
    fn key_of(&self, id: &[u8], doc: &[u8]) -> Result<Option<Vec<u8>>> {
        let skey = self.key.key_of(check_document(id, doc)?)?;
        Ok(self.share.contains(&skey).then_some(skey))
    }

    /// Stores documents; returns the positions of those that are refused. The validator does not check them: the collection may have
    /// documents that are older than its validator, or were written by a role that may bypass it, and keeps them.
    fn store(&self, rows: &[TableRow<'_>]) -> Result<Vec<usize>> {
        // Each batch has a memory context of its own, because one statement stores many batches.
        OwnContext::of_transaction(c"docshard load").within(|| self.store_within(rows))
    }

    fn store_within(&self, rows: &[TableRow<'_>]) -> Result<Vec<usize>> {
        let insert = |rows: &[TableRow<'_>]| {
            bypass::during(true, || {
                let mut writer = table::writer(self.collection, Purpose::Insert)?;
                writer.insert_by(rows.len().max(1), rows)?;
                writer.finish();
                Ok(())
            })
        };
        match attempt(|| insert(rows)) {
            Err(error) if error.sqlstate == UNIQUE_VIOLATION => {}
            stored => return stored.map(|()| Vec::new()),
        }
        let mut kept_out = Vec::new();
        for (position, row) in rows.iter().enumerate() {
            match attempt(|| insert(std::slice::from_ref(row))) {
                Err(error) if error.sqlstate == UNIQUE_VIOLATION => kept_out.push(position),
                stored => stored?,
            }
        }
        Ok(kept_out)
    }

    /// The shard keys in the new layout of the visible documents that have this `_id`, and this shard key at the donor.
    fn keys_of(&self, old: &KeyPattern, old_skey: &[u8], id: &[u8]) -> Result<Vec<Vec<u8>>> {
        let (relation, primary) = table::oids(self.collection)?;
        let own_key = if self.key.is_unsharded() { &[][..] } else { id };
        let (index, bounds) = match table::id_index(self.collection) {
            Some(index) => (index, vec![Bound::Is(id)]),
            // Without such an index, the shard key is `_id`, or the collection is unsharded.
            None => (primary, vec![Bound::Is(own_key), Bound::Is(id)]),
        };
        let (mut keys, mut outcome) = (Vec::new(), Ok(()));
        scan::by_key(relation, index, &bounds, |row| {
            outcome = document(row.slice(DOC - SKEY)).and_then(|doc| {
                if old.key_of(doc)? == old_skey {
                    keys.extend(row.bytes(0));
                }
                Ok(())
            });
            outcome.is_ok()
        });
        outcome.map(|()| keys)
    }
}

/// Adds a key to a list of refused ones.
fn report(refused: &mut Vec<u8>, skey: &[u8], id: &[u8]) {
    for part in [skey, id] {
        refused.extend(u32::try_from(part.len()).unwrap_or(u32::MAX).to_le_bytes());
        refused.extend(part);
    }
}

/// Loads a batch of packed documents, one packed value after another.
///
/// # Errors
/// `OperationFailed` for a document of another share; those of [`Target::key_of`].
pub fn load(loading: &LoadShare<'_>) -> Result<Stored> {
    let &LoadShare { resharding, collection, batch, key, share } = loading;
    let target = Target { collection, key: &read_key(key)?, share: &Share::decode(share)? };
    let (staging, index) = staging(resharding)?;
    allocator::keep_large_blocks();
    let (mut stored, mut outcome) = (Stored { documents: 0, refused: Vec::new() }, Ok(()));
    by_int4(staging, index, batch, Look::Active, |row| {
        if outcome.is_ok() {
            outcome = row.bytes(PACKED).map_or(Ok(()), |packed| load_packed(&target, &packed, &mut stored));
        }
    });
    outcome.map(|()| stored)
}

fn load_packed(target: &Target<'_>, packed: &[u8], stored: &mut Stored) -> Result<()> {
    let arrived = clone_parts::unpack(packed)?;
    let mut keys = Vec::with_capacity(arrived.len());
    for row in &arrived {
        raw::validate(row.doc)?;
        let skey = target.key_of(row.id, row.doc)?;
        keys.push(skey.ok_or_else(|| refused("a key of another shard", row.id))?);
    }
    let rows: Vec<TableRow<'_>> =
        arrived.iter().zip(&keys).map(|(row, skey)| TableRow { skey, id: row.id, doc: row.doc }).collect();
    let kept_out = target.store(&rows)?;
    stored.documents += count(rows.len() - kept_out.len());
    kept_out.iter().for_each(|at| report(&mut stored.refused, arrived[*at].skey, arrived[*at].id));
    Ok(())
}

fn count(rows: usize) -> i64 {
    i64::try_from(rows).unwrap_or(i64::MAX)
}

/// Applies a batch of changes. Deletes all changed documents before it stores new versions, as documents may have exchanged keys.
///
/// # Errors
/// Those of [`Target::key_of`].
pub fn apply(changes: &ApplyShare<'_>) -> Result<Stored> {
    let &ApplyShare { resharding, collection, batch, old_key, key, share } = changes;
    let target = Target { collection, key: &read_key(key)?, share: &Share::decode(share)? };
    let (staging, index) = staging(resharding)?;
    let mut keys: Vec<(Vec<u8>, Vec<u8>)> = Vec::new();
    by_int4(staging, index, batch, Look::Active, |row| keys.extend(row.bytes(SKEY).zip(row.bytes(ID))));
    keys.sort_unstable();
    keys.dedup();
    let mut stored = Stored { documents: -delete(&target, &read_key(old_key)?, &keys)?, refused: Vec::new() };
    // A new snapshot, which does not show the rows that have just been deleted.
    let _snapshot = ActiveSnapshot::of_statement();
    let mut pending: std::collections::HashSet<(Vec<u8>, Vec<u8>)> = keys.into_iter().collect();
    let (mut held, mut bytes, mut outcome) = (Vec::new(), 0, Ok(()));
    by_int4(staging, index, batch, Look::Active, |row| {
        let Some(((old_skey, id), doc)) = row.bytes(SKEY).zip(row.bytes(ID)).zip(row.bytes(DOC)) else { return };
        let key = (old_skey, id);
        // A key that changed several times has several rows in the batch, all with the document that was current when they were
        // pulled.
        if outcome.is_err() || !pending.remove(&key) {
            return;
        }
        let doc = match with_order(doc, row.opt_bytes(FIELD_ORDER)) {
            Ok(doc) => doc,
            Err(error) => {
                outcome = Err(error);
                return;
            }
        };
        bytes += doc.len();
        held.push(Arrived { old_skey: key.0, id: key.1, doc });
        if bytes >= BATCH_BYTES {
            bytes = 0;
            outcome = insert(&target, &mut held, &mut stored);
        }
    });
    outcome?;
    insert(&target, &mut held, &mut stored)?;
    Ok(stored)
}

/// Deletes the stored documents that have these keys at the donors; returns their number.
fn delete(target: &Target<'_>, old: &KeyPattern, keys: &[(Vec<u8>, Vec<u8>)]) -> Result<i64> {
    let (_, primary) = table::oids(target.collection)?;
    let mut writer = table::writer(target.collection, Purpose::Delete)?;
    let mut deleted = 0;
    for (old_skey, id) in keys {
        for skey in target.keys_of(old, old_skey, id)? {
            let found = writer.change_one(primary, &skey, Some(id), |_| Ok(Some((Change::Delete, ()))))?;
            deleted += i64::from(found.is_some());
        }
    }
    writer.finish();
    Ok(deleted)
}

/// Stores the held documents that belong to the share, and clears `held`.
fn insert(target: &Target<'_>, held: &mut Vec<Arrived>, stored: &mut Stored) -> Result<()> {
    let mut keyed = Vec::with_capacity(held.len());
    for arrived in &*held {
        if let Some(skey) = target.key_of(&arrived.id, &arrived.doc)? {
            keyed.push((skey, arrived));
        }
    }
    let rows: Vec<TableRow<'_>> =
        keyed.iter().map(|(skey, arrived)| TableRow { skey, id: &arrived.id, doc: &arrived.doc }).collect();
    if !rows.is_empty() {
        let kept_out = target.store(&rows)?;
        stored.documents += count(rows.len() - kept_out.len());
        for at in kept_out {
            let Arrived { old_skey, id, .. } = keyed[at].1;
            report(&mut stored.refused, old_skey, id);
        }
    }
    held.clear();
    Ok(())
}
