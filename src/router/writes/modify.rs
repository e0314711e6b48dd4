//! Updates, replaces and deletes documents.
//!
//! [`super::target`] finds the shards and, for a write of one document, the document. [`super::locked`] writes a document that the
//! statement returns, that a sort chooses, or whose shard key may change; [`super::skip_locked`] finds one that is not locked. For other
//! writes the shard gets either the key of the document, and then writes it without PostgreSQL's planner, or a statement that finds and
//! writes the documents.

use super::locked;
use super::once;
use super::skip_locked;
use super::upsert;
use crate::catalog::collections::namespace::check_writable;
use crate::catalog::collections::{collection, duplicate};
use crate::pg::error::Result;
use crate::router::dispatch::writing;
use crate::router::fresh_map::with_fresh_map;
use crate::router::sampling;
use crate::router::session;
use crate::router::writes::target::{self, WriteTarget};
use docshard_core::cluster::targeting;
use docshard_core::error::{Kind, error};
use docshard_core::routing::model::Collection;
use docshard_core::routing::plan::destination::Destination;
use docshard_core::routing::plan::document_key::DocumentKey;
use docshard_core::routing::plan::statement::{Statement, TWO_NUMBERS};
use docshard_core::routing::protocol::checked::Parameter;
use docshard_core::routing::protocol::sql;
use docshard_core::routing::request::modification::{Modification, Write, WriteResult};

/// How often a write searches again if another client has changed its document between search and write. Clients may compete for
/// the same first document; in each round one of them succeeds.
const ATTEMPTS: usize = 1000;

/// Runs a write. Concurrent writes to one document are serialized; no update is lost.
pub fn write(namespace: &str, write: &Write<'_>) -> Result<WriteResult> {
    check_writable(namespace)?;
    if write.upsert {
        write.query.filter.check_upsert()?;
    }
    let mut collisions = 0;
    for misses in 0..ATTEMPTS {
        let done = with_fresh_map(namespace, |collection| {
            let collection = match collection {
                Some(collection) => collection,
                None if write.upsert => collection::create_implicitly(namespace)?,
                None => return Ok(Some(WriteResult::default())),
            };
            sampling::write(&collection, write);
            once::claim_for(&collection, write.query, || written_key(&collection, write))?;
            write_once(&collection, write, misses, &mut collisions)
                .map_err(|error| duplicate::translate(&collection, error))
        })?;
        if let Some(result) = done {
            return Ok(result);
        }
    }
    Err(error!(Kind::WriteConflict, "{namespace}: the document was changed concurrently too often")
        .with_hint("Run the statement again."))
}

/// Makes one attempt. None if another attempt is needed because another client has changed the document or inserted one meanwhile.
fn write_once(
    collection: &Collection,
    write: &Write<'_>,
    misses: usize,
    collisions: &mut u32,
) -> Result<Option<WriteResult>> {
    if write.skip_locked {
        return skip_locked::write(collection, write).map(Some);
    }
    if let Some(target) = target::find(collection, write, misses)? {
        let result = if locks_document(collection, write) {
            locked::write(write, &target)?
        } else {
            write_directly(collection, write, &target)?
        };
        if result.matched > 0 {
            return Ok(Some(result));
        }
        if target.has_candidate() {
            return Ok(None);
        }
    }
    let Some(modification) = write.modification.filter(|_| write.upsert) else {
        return Ok(Some(WriteResult::default()));
    };
    let inserted = upsert::insert(collection, write.query, &modification.update, collisions)?;
    Ok(inserted.map(|document| WriteResult {
        after: Some(document.bytes),
        upserted: Some(document.id),
        ..WriteResult::default()
    }))
}

fn locks_document(collection: &Collection, write: &Write<'_>) -> bool {
    let may_move = || write.modification.is_some_and(|modification| may_change_key(collection, write, modification));
    write.images || !write.many && (write.locks || write.sort.is_some() || may_move())
}

/// The key of the document if [`write_directly`] sends the write as one call by this key; otherwise None.
fn written_key(collection: &Collection, write: &Write<'_>) -> Result<Option<DocumentKey>> {
    if write.many || write.upsert || write.skip_locked || locks_document(collection, write) {
        return Ok(None);
    }
    Ok(DocumentKey::of_search(&session::search(collection, write.query)?))
}

/// True if the update names a field of the shard key.
pub(in crate::router) fn touches_key(collection: &Collection, modification: &Modification) -> bool {
    collection.key.fields.iter().any(|(path, _)| modification.update.touches(path))
}

/// True if the update could give a document another shard key.
fn may_change_key(collection: &Collection, write: &Write<'_>, modification: &Modification) -> bool {
    if modification.update.keeps_key() || !touches_key(collection, modification) {
        return false;
    }
    let stays = modification.update.replacement().is_some_and(|replacement| {
        let old = targeting::exact_key(&collection.key, &write.query.filter);
        old.is_some() && collection.key.key_of(replacement).ok() == old
    });
    !stays
}

fn write_directly(collection: &Collection, write: &Write<'_>, target: &WriteTarget<'_>) -> Result<WriteResult> {
    let destinations = &target.destinations;
    if let Some(key) = target.key().filter(|_| !write.many) {
        return match write.modification {
            Some(modification) => {
                update_by_key(collection, destinations, modification, key, write.sole && !write.upsert)
            }
            None => delete_by_key(collection, destinations, key, write.sole),
        };
    }
    let statement = match write.modification {
        Some(modification) => update_statement(write, modification, target)?,
        None => delete_statement(write, target)?,
    };
    let mut result = WriteResult::default();
    for answer in writing::write(collection, destinations, &target.lock_range(), |_| &statement)? {
        if write.modification.is_none() {
            result.matched = result.matched.saturating_add_unsigned(answer.affected);
        }
        for row in &answer.rows {
            result.matched = result.matched.saturating_add(row.i64(0));
            result.modified = result.modified.saturating_add(row.i64(1));
        }
    }
    Ok(result)
}

/// Updates the document of a key: see `shard::documents`. `is_last`: see [`writing::write_checked`].
pub(in crate::router) fn update_by_key(
    collection: &Collection,
    destinations: &[Destination],
    modification: &Modification,
    key: DocumentKey,
    is_last: bool,
) -> Result<WriteResult> {
    let skey = key.skey.clone();
    // The shard need not compare fields that the update does not name.
    let touched = |(path, _): &&(String, _)| modification.update.touches(path);
    let fixed = collection.key.fields.iter().filter(touched).map(|(path, _)| path.clone()).collect();
    let call = key.update(collection, modification.text.clone(), fixed);
    let written = once::write(collection, destinations, &skey, is_last, call)?;
    Ok(WriteResult { matched: written.min(1), modified: (written - 1).max(0), ..WriteResult::default() })
}

/// Deletes the document of a key: see `shard::documents`.
pub(in crate::router) fn delete_by_key(
    collection: &Collection,
    destinations: &[Destination],
    key: DocumentKey,
    is_last: bool,
) -> Result<WriteResult> {
    let skey = key.skey.clone();
    let matched = once::write(collection, destinations, &skey, is_last, key.delete(collection))?;
    Ok(WriteResult { matched, ..WriteResult::default() })
}

/// Returns the statement of an update; its result is how many documents matched and how many changed. For one document, it locks
/// the document before the update. If the document changes meanwhile and no longer matches, it finds another. For many, it locks
/// matching documents before the update only if the write asks for that; otherwise it locks only those that change.
fn update_statement(write: &Write<'_>, modification: &Modification, target: &WriteTarget<'_>) -> Result<Statement> {
    let collection = target.search.collection;
    let mut conditions = target.conditions()?;
    let filter = conditions.param(Parameter::Text(write.query.text()));
    let update = conditions.param(Parameter::Text(modification.text.clone()));
    let fixed =
        conditions.param(Parameter::TextArray(collection.key.fields.iter().map(|(path, _)| path.clone()).collect()));
    let mut found = format!("{} t WHERE {}", collection.table(), conditions.sql());
    if !write.many || write.locks {
        let limit = if write.many { "" } else { " LIMIT 1" };
        found = format!("(SELECT t.ctid, t.skey, t.id, t.doc FROM {found}{limit} FOR UPDATE) t");
    }
    let id = collection.id;
    let sql = format!(
        "SELECT done[1], done[2] FROM (SELECT {} AS done FROM {found}) w WHERE {}",
        sql::update_found(id, "t.ctid", "t.skey", "t.id", "t.doc", filter, update, fixed),
        sql::may_update(id)
    );
    Ok(conditions.into_statement(sql, TWO_NUMBERS))
}

fn delete_statement(write: &Write<'_>, target: &WriteTarget<'_>) -> Result<Statement> {
    let conditions = target.conditions()?;
    let (table, terms) = (target.search.collection.table(), conditions.sql());
    let sql = if write.many {
        format!("DELETE FROM {table} t WHERE {terms}")
    } else {
        format!(
            "WITH matched AS MATERIALIZED (SELECT t.skey, t.id FROM {table} t WHERE {terms} LIMIT 1 FOR UPDATE) \
             DELETE FROM {table} t USING matched WHERE t.skey = matched.skey AND t.id = matched.id"
        )
    };
    Ok(conditions.into_statement(sql, &[]))
}
