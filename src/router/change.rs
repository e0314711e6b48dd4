//! Updating, replacing and deleting.
//!
//! Where they go is found by [`super::write_target`]; one document whose shard key may change is written by
//! [`super::single_write`].

use super::destination::Destination;
use super::dispatch::writing::{self, LockRange};
use super::fresh_map::with_fresh_map;
use super::modification::{ATTEMPTS, Modification, contention};
use super::plan::document_key::DocumentKey;
use super::query::Query;
use super::single_write::{self, OneWrite, OneWritten};
use super::statement::{Parameter, Statement};
use super::write_target::{self, TargetSearch, WriteTarget};
use crate::catalog::model::Collection;
use crate::catalog::namespace::check_writable;
use crate::catalog::{collections, duplicate};
use crate::pg::error::Result;
use crate::protocol::sql;
use docshard_core::cluster::targeting;
use docshard_core::query::sort::Sort;
use docshard_core::values::document::value::Value;

/// What an update did.
#[derive(Debug, Default)]
pub struct Updated {
    /// documents that matched
    pub matched: i64,
    /// documents that changed
    pub modified: i64,
    /// the `_id` of the inserted document
    pub upserted: Option<Value>,
}

/// An update of one or many documents.
#[derive(Debug)]
pub struct Change<'a> {
    /// which documents
    pub query: &'a Query,
    /// what is done to them
    pub modification: &'a Modification,
    /// all that match, or one
    pub many: bool,
    /// insert a document if none matched
    pub upsert: bool,
    /// of one: the first in this order, and its text
    pub sort: Option<(Sort, String)>,
}

/// Runs an update.
pub fn update(namespace: &str, change: &Change<'_>) -> Result<Updated> {
    check_writable(namespace)?;
    if change.upsert {
        change.query.filter.check_upsert()?;
    }
    let mut collisions = 0;
    for misses in 0..ATTEMPTS {
        let mut alone = false;
        let done = with_fresh_map(namespace, |collection| {
            let collection = match collection {
                Some(collection) => collection,
                None if change.upsert => collections::create_implicitly(namespace)?,
                None => return Ok(Some(Updated::default())),
            };
            alone = !change.many && (change.sort.is_some() || may_move(&collection, change));
            if alone {
                return Ok(None);
            }
            update_once(&collection, change, misses, &mut collisions)
                .map_err(|error| duplicate::translate(&collection, error))
        })?;
        if alone {
            return update_alone(namespace, change);
        }
        if let Some(updated) = done {
            return Ok(updated);
        }
    }
    Err(contention(namespace))
}

/// True if the update names a field of the shard key.
pub(super) fn touches_key(collection: &Collection, modification: &Modification) -> bool {
    collection.key.fields.iter().any(|(path, _)| modification.update.touches(path))
}

/// True if the update could give a document another shard key.
fn may_move(collection: &Collection, change: &Change<'_>) -> bool {
    if !touches_key(collection, change.modification) {
        return false;
    }
    let stays = change.modification.update.replacement().is_some_and(|replacement| {
        let old = targeting::exact_key(&collection.key, &change.query.filter);
        old.is_some() && collection.key.key_of(replacement).ok() == old
    });
    !stays
}

fn update_alone(namespace: &str, change: &Change<'_>) -> Result<Updated> {
    let write = OneWrite {
        query: change.query,
        sort: change.sort.as_ref(),
        modification: Some(change.modification),
        upsert: change.upsert,
        images: false,
    };
    let OneWritten { matched, modified, upserted, .. } = single_write::write(namespace, &write)?;
    Ok(Updated { matched: matched.into(), modified: modified.into(), upserted })
}

/// One attempt. None: the document was changed by others meanwhile, or one was inserted; the caller tries again.
fn update_once(
    collection: &Collection,
    change: &Change<'_>,
    misses: usize,
    collisions: &mut u32,
) -> Result<Option<Updated>> {
    let wanted = TargetSearch { query: change.query, many: change.many, upsert: change.upsert, sort: None, misses };
    let mut updated = Updated::default();
    if let Some(target) = write_target::find(collection, &wanted)? {
        if let Some(key) = target.key().filter(|_| !change.many) {
            updated = update_by_key(collection, &target.destinations, change.modification, key, !change.upsert)?;
        } else {
            let statement = update_statement(change, &target)?;
            let range = target.lock_range();
            let written = writing::write(collection, &target.destinations, &range, |_| &statement)?;
            for row in written.iter().flat_map(|written| &written.rows) {
                updated.matched += row.i64(0);
                updated.modified += row.i64(1);
            }
        }
        if updated.matched == 0 && target.has_candidate() {
            return Ok(None);
        }
    }
    if updated.matched > 0 || !change.upsert {
        return Ok(Some(updated));
    }
    let inserted = single_write::upsert_once(collection, change.query, change.modification, collisions)?;
    Ok(inserted.map(|document| Updated { upserted: Some(document.id), ..updated }))
}

/// Updates one document of that key, at once: see `ownership::documents`. `is_last`: as for [`writing::write_checked`].
pub(super) fn update_by_key(
    collection: &Collection,
    destinations: &[Destination],
    modification: &Modification,
    key: DocumentKey,
    is_last: bool,
) -> Result<Updated> {
    let range = LockRange::of_key(&key.skey);
    // A shard need not look whether the key stays where the update does not name it.
    let touched = |(path, _): &&(String, _)| modification.update.touches(path);
    let fixed = collection.key.fields.iter().filter(touched).map(|(path, _)| path.clone()).collect();
    let call = key.update(collection, modification.text.clone(), fixed);
    let written = write_by_key(collection, destinations, &range, is_last, call)?;
    Ok(Updated { matched: written.min(1), modified: (written - 1).max(0), upserted: None })
}

/// Deletes one document of that key, at once: see `ownership::documents`. Answers how many that were.
pub(super) fn delete_by_key(collection: &Collection, destinations: &[Destination], key: DocumentKey) -> Result<i64> {
    let range = LockRange::of_key(&key.skey);
    write_by_key(collection, destinations, &range, true, key.delete(collection))
}

/// The number that the one shard answers which can have the document.
fn write_by_key(
    collection: &Collection,
    destinations: &[Destination],
    range: &LockRange,
    is_last: bool,
    call: impl Into<Statement>,
) -> Result<i64> {
    let statement = call.into();
    let written = writing::write_checked(collection, destinations, range, is_last, |_| &statement)?;
    Ok(written.iter().flat_map(|written| &written.rows).map(|row| row.i64(0)).sum())
}

/// Updates what it finds; answers how many matched and how many changed. Where one is enough, it is locked first: so
/// another one is found if it is changed meanwhile.
fn update_statement(change: &Change<'_>, target: &WriteTarget<'_>) -> Result<Statement> {
    let collection = target.search.collection;
    let mut conditions = target.conditions()?;
    let filter = conditions.param(Parameter::Text(change.query.text.clone()));
    let update = conditions.param(Parameter::Text(change.modification.text.clone()));
    let fixed =
        conditions.param(Parameter::TextArray(collection.key.fields.iter().map(|(path, _)| path.clone()).collect()));
    let mut found = format!("{} t WHERE {}", collection.table(), conditions.sql());
    if !change.many {
        found = format!("(SELECT t.ctid, t.skey, t.id, t.doc FROM {found} LIMIT 1 FOR UPDATE) t");
    }
    let id = collection.id;
    let sql = format!(
        "SELECT done[1], done[2] FROM (SELECT {} AS done FROM {found}) w WHERE {}",
        sql::update_found(id, "t.ctid", "t.skey", "t.id", "t.doc", filter, update, fixed),
        sql::may_update(id)
    );
    Ok(conditions.into_statement(sql))
}

/// Deletes documents; answers how many.
pub fn delete(namespace: &str, query: &Query, many: bool) -> Result<i64> {
    check_writable(namespace)?;
    for misses in 0..ATTEMPTS {
        let done = with_fresh_map(namespace, |collection| {
            let Some(collection) = collection else { return Ok(Some(0)) };
            let wanted = TargetSearch { query, many, upsert: false, sort: None, misses };
            let Some(target) = write_target::find(&collection, &wanted)? else { return Ok(Some(0)) };
            if let Some(key) = target.key().filter(|_| !many) {
                let deleted = delete_by_key(&collection, &target.destinations, key)?;
                return Ok((deleted > 0 || !target.has_candidate()).then_some(deleted));
            }
            let conditions = target.conditions()?;
            let table = collection.table();
            let sql = if many {
                format!("DELETE FROM {table} t WHERE {}", conditions.sql())
            } else {
                format!(
                    "WITH matched AS MATERIALIZED (SELECT t.skey, t.id FROM {table} t WHERE {} LIMIT 1 FOR UPDATE) \
                     DELETE FROM {table} t USING matched WHERE t.skey = matched.skey AND t.id = matched.id",
                    conditions.sql()
                )
            };
            let statement = conditions.into_statement(sql);
            let range = target.lock_range();
            let written = writing::write(&collection, &target.destinations, &range, |_| &statement)?;
            let deleted: u64 = written.iter().map(|written| written.affected).sum();
            let gone = deleted == 0 && target.has_candidate();
            Ok((!gone).then(|| i64::try_from(deleted).unwrap_or(i64::MAX)))
        })?;
        if let Some(deleted) = done {
            return Ok(deleted);
        }
    }
    Err(contention(namespace))
}
