//! Where a write goes.
//!
//! A write to one document must say which: by the full shard key, by `_id`, or, as a replacement, by the shard key of the
//! new document. By `_id` alone several shards may have candidates; then the document is looked up first and the write
//! aimed at its key, and the caller tries again if the document went away in between.

use super::call::Call;
use super::choice;
use super::condition::{Bound, Conditions};
use super::dispatch::{self, Destination};
use super::hint;
use super::options;
use super::read::Query;
use super::statement::Statement;
use crate::catalog::model::Collection;
use crate::pg::error::{Error, Result};
use docshard_core::document::raw::RawObject;
use docshard_core::error::Kind;
use docshard_core::key::{KeyRange, KeyRanges};
use docshard_core::targeting;

/// What wants to write, for messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// update and replacement
    Update,
    /// deletion
    Delete,
    /// either, with the document as the answer
    FindAndModify,
}

impl Operation {
    /// MongoDB's answer to one that does not say which document.
    fn untargeted(self, collection: &Collection) -> Error {
        let key = collection.key.to_json();
        let either = format!("must contain an exact match on _id or target a single shard by the full shard key {key}");
        match self {
            Operation::Update => {
                Error::new(Kind::InvalidOptions, format!("A {{multi:false}} update on a sharded collection {either}"))
            }
            Operation::Delete => {
                Error::new(Kind::ShardKeyNotFound, format!("A single delete on a sharded collection {either}"))
            }
            Operation::FindAndModify => Error::new(
                Kind::ShardKeyNotFound,
                format!("Query for sharded findAndModify must contain the shard key {key}"),
            )
            .with_hint("Give an exact match on every field of the shard key, or on _id."),
        }
    }

    /// MongoDB's answer to an upsert that does not say on which shard.
    fn untargeted_upsert(self, collection: &Collection) -> Error {
        let key = collection.key.to_json();
        let message = match self {
            Operation::FindAndModify => format!("Query for sharded findAndModify must contain the shard key {key}"),
            _ => format!(
                "An {{upsert: true}} update on the sharded collection {} must target a single shard by the full shard key \
                 {key}",
                collection.namespace
            ),
        };
        Error::new(Kind::ShardKeyNotFound, message)
    }
}

/// A write that looks for its target.
#[derive(Debug)]
pub struct Shot<'a> {
    /// which documents
    pub query: &'a Query,
    /// all of them, or one
    pub many: bool,
    /// a document is inserted if there is none
    pub upsert: bool,
    /// what is put in place of the document
    pub replacement: Option<RawObject<'a>>,
    /// who asks
    pub operation: Operation,
}

/// Where a write goes.
#[derive(Debug)]
pub struct Aim {
    /// the shards
    pub destinations: Vec<Destination>,
    /// the keys that it may touch
    pub keys: KeyRanges,
    /// the shard key that it is confined to, encoded, where the filter does not say so
    skey: Option<Vec<u8>>,
    /// the encoded `_id` of the document that was looked up
    id: Option<Vec<u8>>,
}

impl Aim {
    /// True if a document was looked up; it may have gone away since.
    pub fn is_looked_up(&self) -> bool {
        self.id.is_some()
    }

    /// True if the filter alone says which documents come into question.
    pub fn is_by_filter(&self) -> bool {
        self.skey.is_none() && self.id.is_none()
    }

    /// The key of the one document that a write can concern. None where it has to be searched for in other ways.
    pub fn key(&self, collection: &Collection, query: &Query) -> Option<OneKey> {
        if query.hint.is_some() {
            return None;
        }
        let key = match &self.skey {
            Some(skey) => OneKey { skey: skey.clone(), id: one_id(query), filter: Some(query.text.clone()) },
            None => one_key(collection, query, &self.keys)?,
        };
        Some(OneKey { id: self.id.clone().or(key.id), ..key })
    }

    /// The WHERE clause of its statement.
    ///
    /// # Errors
    /// Those of [`Conditions::of_query`].
    pub fn conditions(&self, collection: &Collection, query: &Query) -> Result<Conditions> {
        let mut conditions = Conditions::of_query(collection, query)?;
        for (column, key) in [("t.skey", &self.skey), ("t.id", &self.id)] {
            if let Some(key) = key {
                let key = conditions.param(Bound::Bytes(key.clone()));
                conditions.and(format!("{column} = {key}"));
            }
        }
        Ok(conditions)
    }
}

/// What a shard finds a document by without looking for an index.
#[derive(Debug)]
pub struct OneKey {
    /// the shard key, encoded
    pub skey: Vec<u8>,
    /// the `_id`, encoded, if it is given
    pub id: Option<Vec<u8>>,
    /// the text of the filter that a document with these must match; None: it does
    pub filter: Option<String>,
}

impl OneKey {
    /// Adds these to a call's arguments.
    pub fn arguments_of(self, call: Call) -> Call {
        call.argument(Bound::Bytes(self.skey)).argument(Bound::OptBytes(self.id)).argument(Bound::OptText(self.filter))
    }
}

/// The one shard key, and the one `_id`, if the filter says it, that matching documents can have. `keys` are the shard keys that
/// they can have. None if that is not one, or an index is to be used, or serves the search for the document.
pub fn one_key(collection: &Collection, query: &Query, keys: &KeyRanges) -> Option<OneKey> {
    if query.hint.is_some() {
        return None;
    }
    let id = one_id(query);
    let skey = if collection.key.is_unsharded() {
        id.as_ref()?;
        &[]
    } else {
        keys.as_point()?
    };
    let told = targeting::key_tells_all(&collection.key, &query.filter, id.is_some());
    if !told && id.is_none() && choice::beside_keys(collection, &query.filter, keys).is_some() {
        return None;
    }
    Some(OneKey { skey: skey.to_vec(), id, filter: (!told).then(|| query.text.clone()) })
}

/// The one `_id` that matching documents can have, encoded.
pub fn one_id(query: &Query) -> Option<Vec<u8>> {
    query.filter.ranges_of("_id").as_point().map(<[u8]>::to_vec)
}

/// Finds a write's target. None: there is nothing that it could write to.
///
/// # Errors
/// `ShardKeyNotFound` and `InvalidOptions` if it does not say which document; those of reading.
pub fn aim(collection: &Collection, shot: &Shot<'_>) -> Result<Option<Aim>> {
    let query = shot.query;
    hint::means(collection, query)?;
    let keys = query.keys(collection);
    let sharded = !collection.key.is_unsharded();
    let exact = sharded && keys.as_point().is_some();
    if sharded && shot.upsert && !exact {
        return Err(shot.operation.untargeted_upsert(collection));
    }
    let destinations = dispatch::destinations(collection, &keys)?;
    if shot.many || !sharded || exact {
        return Ok((!destinations.is_empty()).then_some(Aim { destinations, keys, skey: None, id: None }));
    }
    if query.filter.equality_of("_id").is_some() || names_one_id(collection, query)? {
        return look_up(collection, query, destinations);
    }
    match shot.replacement {
        Some(replacement) if collection.key.is_complete(replacement) => {
            let skey = collection.key.key_of(replacement)?;
            let keys = KeyRanges::new(vec![KeyRange::point(&skey)]).intersect(&keys);
            let destinations = dispatch::destinations(collection, &keys)?;
            Ok((!destinations.is_empty()).then_some(Aim { destinations, keys, skey: Some(skey), id: None }))
        }
        _ => Err(shot.operation.untargeted(collection)),
    }
}

/// True for an equality on `_id` under the collection's own collation, as in MongoDB under that only.
fn names_one_id(collection: &Collection, query: &Query) -> Result<bool> {
    let (Some(own), Some(setting)) = (&collection.collation, &query.setting) else { return Ok(false) };
    let alike = options::parsed_setting(Some(setting))?.collator() == Some(own);
    Ok(alike && query.filter.demands_one("_id"))
}

/// Looks for the one document.
fn look_up(collection: &Collection, query: &Query, destinations: Vec<Destination>) -> Result<Option<Aim>> {
    let conditions = Conditions::of_query(collection, query)?;
    let sql = format!("SELECT t.skey, t.id FROM {} t WHERE {} LIMIT 1", collection.table(), conditions.sql());
    let statement = Statement { sql, params: conditions.params };
    let streams = dispatch::read(collection, &destinations, &statement)?;
    for (mut stream, destination) in streams.into_iter().zip(destinations) {
        if let Some(row) = stream.next_row()? {
            let bytes = |column| row.get(column).unwrap_or_default().to_vec();
            let (skey, id) = (bytes(0), bytes(1));
            let keys = KeyRanges::new(vec![KeyRange::point(&skey)]);
            return Ok(Some(Aim { destinations: vec![destination], keys, skey: Some(skey), id: Some(id) }));
        }
    }
    Ok(None)
}
