//! Updating, replacing and deleting.
//!
//! A statement for one document must say which: by the full shard key or by `_id`. By `_id` alone several shards may
//! have candidates; then the document is looked up first and the statement aimed at its key, again if it went away in
//! between.

use super::condition::{Bound, Conditions};
use super::dispatch::{self, Destination, LockRange, with_fresh_map};
use super::insert::{self, Storable};
use super::read::Query;
use super::statement::Statement;
use crate::catalog::collections;
use crate::catalog::model::Collection;
use crate::pg::error::{Error, Result};
use docshard_core::document::value::Value;
use docshard_core::error::Kind;
use docshard_core::key::{KeyRange, KeyRanges};
use docshard_core::targeting;
use docshard_core::update::Update;

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
pub struct Change<'a> {
    /// which documents
    pub query: &'a Query,
    /// what is done to them
    pub update: &'a Update,
    /// its text, which shards are sent
    pub update_text: &'a str,
    /// all that match, or one
    pub many: bool,
    /// insert a document if none matched
    pub upsert: bool,
}

/// A document that went away between being found and being written is looked for again, so often.
const ATTEMPTS: usize = 20;

/// Runs an update.
///
/// # Errors
/// Targeting errors, `ImmutableField`, `DuplicateKey`, stale maps beyond patience, whatever the shards raise.
pub fn update(namespace: &str, change: &Change<'_>) -> Result<Updated> {
    for _ in 0..ATTEMPTS {
        let done = with_fresh_map(namespace, |collection| {
            let collection = match collection {
                Some(collection) => collection,
                None if change.upsert => collections::create_implicitly(namespace)?,
                None => return Ok(Some(Updated::default())),
            };
            update_once(&collection, change).map_err(|error| insert::translate_duplicate(&collection, error))
        })?;
        if let Some(updated) = done {
            return Ok(updated);
        }
    }
    Err(contention(namespace))
}

/// One attempt; None: the document went away in between, try again.
fn update_once(collection: &Collection, change: &Change<'_>) -> Result<Option<Updated>> {
    let Some((destinations, keys, aim)) = aim(collection, change.query, change.many, "update", change.upsert)? else {
        return upsert(collection, change);
    };
    let statement = update_statement(collection, change, aim.as_ref());
    let written = dispatch::write(collection, &destinations, &LockRange::of(&keys), |_| statement.at_version(0))?;
    let mut updated = Updated::default();
    for row in written.iter().flat_map(|written| &written.rows) {
        updated.matched += row.i64(0);
        updated.modified += row.i64(1);
    }
    match (updated.matched, aim) {
        (0, Some(_)) => Ok(None),
        (0, None) => upsert(collection, change),
        _ => Ok(Some(updated)),
    }
}

fn upsert(collection: &Collection, change: &Change<'_>) -> Result<Option<Updated>> {
    if !change.upsert {
        return Ok(Some(Updated::default()));
    }
    let document = Storable::new(&change.update.upsert(&change.query.filter)?)?;
    // Somebody else may have inserted it meanwhile: then there is something to update after all.
    let inserted = insert::insert_if_absent(collection, &document)?;
    Ok(inserted.then_some(Updated { matched: 0, modified: 0, upserted: Some(document.id) }))
}

/// A document's place: its shard key and its `_id`, encoded.
struct Aim {
    skey: Vec<u8>,
    id: Vec<u8>,
}

type Aimed = (Vec<Destination>, KeyRanges, Option<Aim>);

/// Where a write goes: its shards, the keys that it may touch, and the one document where that had to be looked up.
/// None: it was looked up, and there is none.
fn aim(collection: &Collection, query: &Query, many: bool, what: &str, upsert: bool) -> Result<Option<Aimed>> {
    let keys = query.keys(collection);
    let sharded = !collection.key.is_unsharded();
    let exact = targeting::exact_key(&collection.key, &query.filter).is_some();
    if sharded && upsert && !exact {
        return Err(Error::new(
            Kind::ShardKeyNotFound,
            format!(
                "An {{upsert: true}} {what} on the sharded collection {} must target a single shard by the full shard key {}",
                collection.namespace,
                collection.key.to_json()
            ),
        ));
    }
    let destinations = dispatch::destinations(collection, &keys)?;
    if many || !sharded || exact {
        return Ok(if destinations.is_empty() { None } else { Some((destinations, keys, None)) });
    }
    if query.filter.equality_of("_id").is_none() {
        let (kind, subject) = match what {
            "delete" => (Kind::ShardKeyNotFound, "A single delete"),
            _ => (Kind::InvalidOptions, "A {multi:false} update"),
        };
        return Err(Error::new(
            kind,
            format!(
                "{subject} on a sharded collection must contain an exact match on _id or target a single shard by the \
                 full shard key {}",
                collection.key.to_json()
            ),
        ));
    }
    // By _id alone: find the one document first.
    let conditions = Conditions::of_filter(collection, &query.filter, &query.text);
    let sql = format!("SELECT t.skey, t.id FROM {} t WHERE {} LIMIT 1", collection.table(), conditions.sql());
    let statement = Statement { sql, params: conditions.params };
    let streams = dispatch::read(collection, &destinations, &statement)?;
    for (mut stream, destination) in streams.into_iter().zip(destinations) {
        if let Some(row) = stream.next_row()? {
            let aim =
                Aim { skey: row.get(0).unwrap_or_default().to_vec(), id: row.get(1).unwrap_or_default().to_vec() };
            let keys = KeyRanges::new(vec![KeyRange::point(&aim.skey)]);
            return Ok(Some((vec![destination], keys, Some(aim))));
        }
    }
    Ok(None)
}

fn conditions(collection: &Collection, query: &Query, aim: Option<&Aim>) -> Conditions {
    let mut conditions = Conditions::of_filter(collection, &query.filter, &query.text);
    if let Some(aim) = aim {
        let skey = conditions.param(Bound::Bytes(aim.skey.clone()));
        let id = conditions.param(Bound::Bytes(aim.id.clone()));
        conditions.and(format!("t.skey = {skey} AND t.id = {id}"));
    }
    conditions
}

/// Matches and locks, applies, writes what changed; answers how many matched and how many changed. Joined by the primary
/// key, not by ctid: a row that another transaction has just changed is found again by its key.
fn update_statement(collection: &Collection, change: &Change<'_>, aim: Option<&Aim>) -> Statement {
    let mut conditions = conditions(collection, change.query, aim);
    let update = conditions.param(Bound::Text(change.update_text.to_owned()));
    let immutable =
        conditions.param(Bound::TextArray(collection.key.fields.iter().map(|(path, _)| path.clone()).collect()));
    let replace = change.update.is_replacement();
    let limit = if change.many { "" } else { " LIMIT 1" };
    let table = collection.table();
    let sql = format!(
        "WITH matched AS MATERIALIZED (\
           SELECT t.skey, t.id, docshard_internal.apply_update(t.doc, {update}, {replace}, {immutable}) AS doc \
           FROM {table} t WHERE {}{limit} FOR UPDATE), \
         changed AS (\
           UPDATE {table} t SET doc = matched.doc FROM matched \
           WHERE t.skey = matched.skey AND t.id = matched.id AND matched.doc IS NOT NULL RETURNING 1) \
         SELECT (SELECT count(*) FROM matched), (SELECT count(*) FROM changed)",
        conditions.sql()
    );
    Statement { sql, params: conditions.params }
}

/// Deletes documents; answers how many.
///
/// # Errors
/// As [`update`].
pub fn delete(namespace: &str, query: &Query, many: bool) -> Result<i64> {
    for _ in 0..ATTEMPTS {
        let done = with_fresh_map(namespace, |collection| {
            let Some(collection) = collection else { return Ok(Some(0)) };
            let Some((destinations, keys, aim)) = aim(&collection, query, many, "delete", false)? else {
                return Ok(Some(0));
            };
            let conditions = conditions(&collection, query, aim.as_ref());
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
            let statement = Statement { sql, params: conditions.params };
            let written =
                dispatch::write(&collection, &destinations, &LockRange::of(&keys), |_| statement.at_version(0))?;
            let deleted: u64 = written.iter().map(|written| written.affected).sum();
            Ok(if deleted == 0 && aim.is_some() { None } else { Some(i64::try_from(deleted).unwrap_or(i64::MAX)) })
        })?;
        if let Some(deleted) = done {
            return Ok(deleted);
        }
    }
    Err(contention(namespace))
}

fn contention(namespace: &str) -> Error {
    Error::new(
        Kind::WriteConflict,
        format!("{namespace}: the document changed again and again while it was being written"),
    )
    .with_hint("Run the statement again.")
}
