//! Where a write goes.
//!
//! A write of many documents goes to every shard that the filter concerns. A write of one goes to that shard at once if
//! there is only one. If there are several, it has two phases: all of them are asked for a candidate at the same time, and the
//! write is then aimed at the shard key and `_id` of one, the first in the order if there is one. There the shard checks the
//! filter, and the candidate's place in the order, once more. If the candidate has changed or gone meanwhile, nothing is
//! written, and the caller aims again.

use super::call::Call;
use super::choice;
use super::condition::{Bound, Conditions};
use super::dispatch::{self, Destination};
use super::hint;
use super::insert::Storable;
use super::merge::Merged;
use super::options::FindOptions;
use super::read::Query;
use super::statement::{self, Statement};
use crate::catalog::model::Collection;
use crate::pg::error::{Error, Result};
use crate::pg::fault;
use docshard_core::cluster::targeting;
use docshard_core::error::Kind;
use docshard_core::query::projection::Projection;
use docshard_core::query::sort::Sort;
use docshard_core::values::document::raw;
use docshard_core::values::key::{KeyRange, KeyRanges};
use serde_json::Value as Json;

/// A write that looks for its target.
#[derive(Debug)]
pub struct Shot<'a> {
    /// which documents
    pub query: &'a Query,
    /// all of them, or one
    pub many: bool,
    /// a document is inserted if there is none
    pub upsert: bool,
    /// of one: the first in this order, and its text
    pub sort: Option<&'a (Sort, String)>,
    /// how many candidates have been missed: they changed before they were written
    pub misses: usize,
}

/// Where a write goes.
#[derive(Debug)]
pub struct Aim {
    /// the shards
    pub destinations: Vec<Destination>,
    /// the keys that it may touch
    pub keys: KeyRanges,
    /// one of several shards was chosen, where a matching document was seen
    has_candidate: bool,
    /// the one document that it is confined to
    candidate: Option<Candidate>,
}

/// A document that matched when it was read.
#[derive(Debug)]
struct Candidate {
    /// its shard key, encoded
    skey: Vec<u8>,
    /// its `_id`, encoded
    id: Vec<u8>,
    /// the text of a sort, and the document's key in it, which it must still have
    place: Option<(String, Vec<u8>)>,
}

impl Aim {
    /// Of shards that are known before anything has been read.
    fn by_filter(destinations: Vec<Destination>, keys: KeyRanges) -> Option<Self> {
        (!destinations.is_empty()).then_some(Self { destinations, keys, has_candidate: false, candidate: None })
    }

    /// True if a matching document was seen at one of several shards. If none is written there, it has changed since, and others
    /// may match.
    pub fn has_candidate(&self) -> bool {
        self.has_candidate
    }

    /// True if the filter alone says which documents come into question.
    pub fn is_by_filter(&self) -> bool {
        self.candidate.is_none()
    }

    /// The key of the one document that a write can concern. None where it has to be searched for in other ways.
    pub fn key(&self, collection: &Collection, query: &Query) -> Option<OneKey> {
        let Some(Candidate { skey, id, place }) = &self.candidate else {
            return one_key(collection, query, &self.keys);
        };
        let is_key = query.hint.is_none() && place.is_none();
        is_key.then(|| OneKey { skey: skey.clone(), id: Some(id.clone()), filter: Some(query.text.clone()) })
    }

    /// The WHERE clause of its statement.
    ///
    /// # Errors
    /// Those of [`Conditions::of_query`].
    pub fn conditions(&self, collection: &Collection, query: &Query) -> Result<Conditions> {
        let mut conditions = Conditions::of_query(collection, query)?;
        let Some(Candidate { skey, id, place }) = &self.candidate else { return Ok(conditions) };
        for (column, key) in [("t.skey", skey), ("t.id", id)] {
            let key = conditions.param(Bound::Bytes(key.clone()));
            conditions.and(format!("{column} = {key}"));
        }
        if let Some((sort, key)) = place {
            let (sort, key) =
                (conditions.param(Bound::Text(sort.clone())), conditions.param(Bound::Bytes(key.clone())));
            conditions.and(format!("docshard_internal.sort_key(t.doc, {sort}) = {key}"));
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
/// `ShardKeyNotFound` for an upsert of many that does not give the full shard key; those of reading.
pub fn aim(collection: &Collection, shot: &Shot<'_>) -> Result<Option<Aim>> {
    let query = shot.query;
    hint::means(collection, query)?;
    let keys = query.keys(collection);
    if shot.many && shot.upsert && !collection.key.is_unsharded() && keys.as_point().is_none() {
        return Err(untargeted_upsert(collection));
    }
    let destinations = dispatch::destinations(collection, &keys)?;
    if shot.many || destinations.len() < 2 {
        return Ok(Aim::by_filter(destinations, keys));
    }
    let aim = match shot.sort {
        Some(sort) => first_candidate(collection, query, sort, destinations),
        None if shot.misses == 0 => any_candidate(collection, query, destinations),
        None => any_shard(collection, shot, destinations, keys),
    }?;
    if aim.is_some() {
        fault::point("aim.found")?;
    }
    Ok(aim)
}

/// MongoDB's answer to an upsert that does not say on which shard.
fn untargeted_upsert(collection: &Collection) -> Error {
    Error::new(
        Kind::ShardKeyNotFound,
        format!(
            "An {{upsert: true}} update on the sharded collection {} must target a single shard by the full shard key {}",
            collection.namespace,
            collection.key.to_json()
        ),
    )
}

/// True if there is a document that matches, at any shard.
///
/// # Errors
/// Those of reading.
pub fn matches_anywhere(collection: &Collection, query: &Query) -> Result<bool> {
    any_candidate(collection, query, query.destinations(collection)?).map(|found| found.is_some())
}

/// Looks for a document that matches.
fn any_candidate(collection: &Collection, query: &Query, destinations: Vec<Destination>) -> Result<Option<Aim>> {
    let streams = dispatch::read(collection, &destinations, &look(collection, query)?)?;
    for (mut stream, destination) in streams.into_iter().zip(destinations) {
        if let Some(row) = stream.next_row()? {
            let bytes = |column| row.get(column).unwrap_or_default().to_vec();
            return Ok(Some(confined(destination, Candidate { skey: bytes(0), id: bytes(1), place: None })));
        }
    }
    Ok(None)
}

/// Looks for a shard that has a document which matches. Where many clients take documents that they all find, such as jobs, they all
/// meet at one: who has missed one goes by the filter, which lets the shard go on to the next, and to another shard than others.
fn any_shard(
    collection: &Collection,
    shot: &Shot<'_>,
    destinations: Vec<Destination>,
    keys: KeyRanges,
) -> Result<Option<Aim>> {
    let streams = dispatch::read(collection, &destinations, &look(collection, shot.query)?)?;
    let mut found = Vec::new();
    for (mut stream, destination) in streams.into_iter().zip(destinations) {
        if stream.next_row()?.is_some() {
            found.push(destination);
        }
    }
    if found.is_empty() {
        return Ok(None);
    }
    let chosen = (std::process::id() as usize + shot.misses) % found.len();
    let destinations = vec![found.swap_remove(chosen)];
    Ok(Some(Aim { destinations, keys, has_candidate: true, candidate: None }))
}

/// One document at each shard.
fn look(collection: &Collection, query: &Query) -> Result<Statement> {
    let conditions = Conditions::of_query(collection, query)?;
    let sql = format!("SELECT t.skey, t.id FROM {} t WHERE {} LIMIT 1", collection.table(), conditions.sql());
    Ok(Statement { sql, params: conditions.params })
}

/// Looks for the first document in an order, as a find does.
fn first_candidate(
    collection: &Collection,
    query: &Query,
    sort: &(Sort, String),
    destinations: Vec<Destination>,
) -> Result<Option<Aim>> {
    let projection = key_projection(collection);
    let options = FindOptions {
        sort: Some(sort.clone()),
        included: Projection::parse(&projection)?.included(),
        projection: Some(projection.to_string()),
        setting: query.setting.clone(),
        limit: Some(1),
        hint: query.hint.clone(),
        ..FindOptions::default()
    };
    let (statement, order) = statement::find(collection, query, &options, false)?;
    let streams = dispatch::read_at_most(collection, &destinations, &statement, Some(1))?;
    let Some(row) = Merged::new(streams, order).next_row()? else { return Ok(None) };
    let bytes = row.get(0).unwrap_or_default();
    if row.is_foreign() {
        raw::validate(bytes)?;
    }
    let found = Storable::new(bytes)?;
    let skey = found.shard_key(collection)?;
    // Where columns are in the order of the sort, they are the place.
    let place = (!statement::is_order_of_keys(collection, &query.filter, &sort.0))
        .then(|| (sort.1.clone(), row.get(1).unwrap_or_default().to_vec()));
    let destination = dispatch::destination_of(collection, &skey)?;
    Ok(Some(confined(destination, Candidate { skey, id: found.id_key().to_vec(), place })))
}

/// Shard key and `_id` of a document are in this part of it.
fn key_projection(collection: &Collection) -> Json {
    let mut paths: Vec<&str> = vec!["_id"];
    for (path, _) in &collection.key.fields {
        let is_in =
            |whole: &&str| path.strip_prefix(*whole).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'));
        if !paths.iter().any(is_in) {
            paths.push(path);
        }
    }
    Json::Object(paths.into_iter().map(|path| (path.to_owned(), Json::from(1))).collect())
}

fn confined(destination: Destination, candidate: Candidate) -> Aim {
    let keys = KeyRanges::new(vec![KeyRange::point(&candidate.skey)]);
    Aim { destinations: vec![destination], keys, has_candidate: true, candidate: Some(candidate) }
}
