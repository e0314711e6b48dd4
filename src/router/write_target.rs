//! Finds the shards, and the document, that a write goes to.
//!
//! A write of many documents goes to every shard that the filter concerns. A write of one goes to that shard at once if
//! there is only one. If there are several, it has two phases: all of them are asked for a candidate at the same time, and the
//! write is then confined to the shard key and `_id` of one, the first in the order if there is one. There the shard checks the
//! filter, and the candidate's place in the order, once more. If the candidate has changed or gone meanwhile, nothing is
//! written, and the caller searches again.

use super::destination::{self, Destination};
use super::dispatch::writing::LockRange;
use super::execute;
use super::insert::Storable;
use super::options::FindOptions;
use super::order::column_order;
use super::plan::conditions::Conditions;
use super::plan::document_key::DocumentKey;
use super::plan::search::Search;
use super::plan::{self, Allowed};
use super::query::Query;
use super::statement::Parameter;
use crate::catalog::model::Collection;
use crate::pg::error::{Error, Result};
use crate::pg::fault;
use crate::protocol::sql;
use docshard_core::error::Kind;
use docshard_core::query::projection::Projection;
use docshard_core::query::sort::Sort;
use docshard_core::values::document::raw;
use serde_json::Value as Json;

/// What decides where a write goes.
#[derive(Debug)]
pub struct TargetSearch<'a> {
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
pub struct WriteTarget<'a> {
    /// what it searches for there
    pub search: Search<'a>,
    /// the shards
    pub destinations: Vec<Destination>,
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

impl<'a> WriteTarget<'a> {
    /// Shards that are known before anything has been read.
    fn by_filter(search: Search<'a>, destinations: Vec<Destination>) -> Option<Self> {
        (!destinations.is_empty()).then_some(Self { search, destinations, has_candidate: false, candidate: None })
    }

    /// The shard of one document.
    fn confined(search: Search<'a>, destination: Destination, candidate: Candidate) -> Self {
        Self { search, destinations: vec![destination], has_candidate: true, candidate: Some(candidate) }
    }

    /// True if a matching document was seen at one of several shards. If none is written there, it has changed since, and others
    /// may match.
    pub fn has_candidate(&self) -> bool {
        self.has_candidate
    }

    /// The range of shard keys that it may write to.
    pub fn lock_range(&self) -> LockRange {
        match &self.candidate {
            Some(candidate) => LockRange::of_key(&candidate.skey),
            None => LockRange::of(&self.search.keys),
        }
    }

    /// True if the filter alone says which documents come into question.
    pub fn is_by_filter(&self) -> bool {
        self.candidate.is_none()
    }

    /// The key of the one document that a write can concern. None where it has to be searched for in other ways.
    pub fn key(&self) -> Option<DocumentKey> {
        let query = self.search.query;
        let Some(Candidate { skey, id, place }) = &self.candidate else { return DocumentKey::of_search(&self.search) };
        let is_key = query.hint.is_none() && place.is_none();
        is_key.then(|| DocumentKey { skey: skey.clone(), id: Some(id.clone()), filter: Some(query.text.clone()) })
    }

    /// The WHERE clause of its statement.
    ///
    /// # Errors
    /// Those of [`Conditions::of_search`].
    pub fn conditions(&self) -> Result<Conditions> {
        let mut conditions = Conditions::of_search(&self.search)?;
        let Some(Candidate { skey, id, place }) = &self.candidate else { return Ok(conditions) };
        for (column, key) in [("t.skey", skey), ("t.id", id)] {
            let key = conditions.param(Parameter::Bytes(key.clone()));
            conditions.and(format!("{column} = {key}"));
        }
        if let Some((sort, key)) = place {
            let (sort, key) =
                (conditions.param(Parameter::Text(sort.clone())), conditions.param(Parameter::Bytes(key.clone())));
            conditions.and(sql::sort_key("t.doc", sort) + " = " + &key);
        }
        Ok(conditions)
    }
}

/// Finds a write's target. None: there is nothing that it could write to.
///
/// # Errors
/// `ShardKeyNotFound` for an upsert of many that does not give the full shard key; those of reading.
pub fn find<'a>(collection: &'a Collection, wanted: &TargetSearch<'a>) -> Result<Option<WriteTarget<'a>>> {
    let search = Search::new(collection, wanted.query)?;
    if wanted.many && wanted.upsert && !collection.key.is_unsharded() && search.keys.as_point().is_none() {
        return Err(untargeted_upsert(collection));
    }
    let destinations = search.destinations()?;
    if wanted.many || destinations.len() < 2 {
        return Ok(WriteTarget::by_filter(search, destinations));
    }
    let target = match wanted.sort {
        Some(sort) => first_candidate(search, sort),
        None if wanted.misses == 0 => any_candidate(search),
        None => any_shard(search, wanted.misses),
    }?;
    if target.is_some() {
        fault::point("aim.found")?;
    }
    Ok(target)
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
pub fn matches_anywhere(collection: &Collection, query: &Query) -> Result<bool> {
    any_candidate(Search::new(collection, query)?).map(|found| found.is_some())
}

/// Looks for a document that matches.
fn any_candidate(search: Search<'_>) -> Result<Option<WriteTarget<'_>>> {
    let plan = plan::candidate(&search)?;
    let streams = execute::rows(search.collection, &plan)?.unwrap_or_default();
    for (mut stream, destination) in streams.into_iter().zip(plan.destinations) {
        if let Some(row) = stream.next_row()? {
            let bytes = |column| row.get(column).unwrap_or_default().to_vec();
            let candidate = Candidate { skey: bytes(0), id: bytes(1), place: None };
            return Ok(Some(WriteTarget::confined(search, destination, candidate)));
        }
    }
    Ok(None)
}

/// Looks for a shard that has a document which matches. Where many clients take documents that they all find, such as jobs, they all
/// meet at one: who has missed one goes by the filter, which lets the shard go on to the next, and to another shard than others.
fn any_shard(search: Search<'_>, misses: usize) -> Result<Option<WriteTarget<'_>>> {
    let plan = plan::candidate(&search)?;
    let streams = execute::rows(search.collection, &plan)?.unwrap_or_default();
    let mut found = Vec::new();
    for (mut stream, destination) in streams.into_iter().zip(plan.destinations) {
        if stream.next_row()?.is_some() {
            found.push(destination);
        }
    }
    if found.is_empty() {
        return Ok(None);
    }
    let chosen = (std::process::id() as usize + misses) % found.len();
    let target = WriteTarget::by_filter(search, vec![found.swap_remove(chosen)]);
    Ok(target.map(|target| WriteTarget { has_candidate: true, ..target }))
}

/// Looks for the first document in an order, as a find does.
fn first_candidate<'a>(search: Search<'a>, sort: &(Sort, String)) -> Result<Option<WriteTarget<'a>>> {
    let (collection, query) = (search.collection, search.query);
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
    let plan = plan::find(&search, &options, Allowed::Planned)?;
    let Some(row) = execute::merged(collection, &plan)?.next_row()? else { return Ok(None) };
    let bytes = row.get(0).unwrap_or_default();
    if row.is_foreign() {
        raw::validate(bytes)?;
    }
    let found = Storable::new(bytes)?;
    let skey = found.shard_key(collection)?;
    // Where columns are in the order of the sort, they are the place.
    let place = column_order(collection, &query.filter, &sort.0)
        .is_none()
        .then(|| (sort.1.clone(), row.get(1).unwrap_or_default().to_vec()));
    let destination = destination::destination_of(collection, &skey)?;
    let candidate = Candidate { skey, id: found.id_key().to_vec(), place };
    Ok(Some(WriteTarget::confined(search, destination, candidate)))
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
