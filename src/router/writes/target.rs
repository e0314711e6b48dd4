//! Finds the target of a write: shards, and for a write of one document the document.
//!
//! A write of many documents goes to every shard that the filter concerns. A write of one document goes to the only such shard, if there is
//! only one. If there are several, the write has two phases: first all of them return a candidate at the same time; then the write is
//! confined to the shard key and `_id` of one candidate. With a sort this is the first candidate. The shard checks the filter, and the
//! candidate's place in the order, once more. If the candidate has changed meanwhile, nothing is written, and the caller searches again.

use crate::pg::error::{Error, Result};
use crate::pg::fault;
use crate::router::dispatch::writing::LockRange;
use crate::router::execute;
use crate::router::session;
use crate::router::writes::insert::Storable;
use docshard_core::cluster::targeting;
use docshard_core::error::{Kind, error};
use docshard_core::query::projection::Projection;
use docshard_core::query::sort::Sort;
use docshard_core::routing::model::Collection;
use docshard_core::routing::plan::conditions::Conditions;
use docshard_core::routing::plan::destination::{self, Destination};
use docshard_core::routing::plan::document_key::DocumentKey;
use docshard_core::routing::plan::order::column_order;
use docshard_core::routing::plan::search::Search;
use docshard_core::routing::plan::{self, Allowed};
use docshard_core::routing::protocol::checked::Parameter;
use docshard_core::routing::protocol::sql;
use docshard_core::routing::request::modification::Write;
use docshard_core::routing::request::options::FindOptions;
use docshard_core::routing::request::query::Query;
use serde_json::Value as Json;

#[derive(Debug)]
pub struct WriteTarget<'a> {
    pub search: Search<'a>,
    pub destinations: Vec<Destination>,
    /// see [`WriteTarget::has_candidate`]
    has_candidate: bool,
    /// the one document that the write is confined to
    candidate: Option<Candidate>,
}

/// A document that matched when it was read. Its keys are encoded.
#[derive(Debug)]
struct Candidate {
    skey: Vec<u8>,
    id: Vec<u8>,
    /// the text of a sort, and the key by which the document must still sort
    place: Option<(String, Vec<u8>)>,
}

impl<'a> WriteTarget<'a> {
    fn by_filter(search: Search<'a>, destinations: Vec<Destination>) -> Option<Self> {
        (!destinations.is_empty()).then_some(Self { search, destinations, has_candidate: false, candidate: None })
    }

    fn confined(search: Search<'a>, destination: Destination, candidate: Candidate) -> Self {
        Self { search, destinations: vec![destination], has_candidate: true, candidate: Some(candidate) }
    }

    /// True if this shard was chosen among several because a search found a matching document there. If the write then finds
    /// none, the document has changed, and another one may match.
    pub fn has_candidate(&self) -> bool {
        self.has_candidate
    }

    pub fn lock_range(&self) -> LockRange {
        match &self.candidate {
            Some(candidate) => LockRange::of_key(&candidate.skey),
            None => LockRange::of(&self.search.keys),
        }
    }

    pub fn is_by_filter(&self) -> bool {
        self.candidate.is_none()
    }

    /// Returns the key of the only document that the write can concern; None if a search is needed.
    pub fn key(&self) -> Option<DocumentKey> {
        let query = self.search.query;
        let Some(Candidate { skey, id, place }) = &self.candidate else { return DocumentKey::of_search(&self.search) };
        let is_key = query.hint.is_none() && place.is_none();
        is_key.then(|| DocumentKey { skey: skey.clone(), id: Some(id.clone()), filter: Some(query.text()) })
    }

    /// The WHERE clause of the write.
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

/// Finds the target of a write; None if no document can match. `misses`: how many candidates changed before they could be
/// written.
pub fn find<'a>(collection: &'a Collection, write: &Write<'a>, misses: usize) -> Result<Option<WriteTarget<'a>>> {
    let search = session::search(collection, write.query)?;
    if write.upsert && !collection.key.is_unsharded() {
        let is_replacement = write.modification.is_some_and(|modification| modification.update.is_replacement());
        let by_regex = !is_replacement && targeting::has_regex(&collection.key, &write.query.filter);
        if by_regex || write.many && search.keys.as_point().is_none() {
            return Err(untargeted_upsert(collection));
        }
    }
    let destinations = search.destinations()?;
    if write.many || destinations.len() < 2 {
        return Ok(WriteTarget::by_filter(search, destinations));
    }
    let target = match &write.sort {
        Some(sort) => first_candidate(search, sort),
        None if misses == 0 => any_candidate(search),
        None => any_shard(search, misses),
    }?;
    if target.is_some() {
        fault::point("write_target.found")?;
    }
    Ok(target)
}

fn untargeted_upsert(collection: &Collection) -> Error {
    error!(
        Kind::ShardKeyNotFound,
        "An {{upsert: true}} update on the sharded collection {} must target a single shard by the full shard key {}",
        collection.namespace,
        collection.key.to_json()
    )
}

pub fn matches_anywhere(collection: &Collection, query: &Query) -> Result<bool> {
    any_candidate(session::search(collection, query)?).map(|found| found.is_some())
}

/// Looks for a matching document on all shards; None if there is none.
fn any_candidate(search: Search<'_>) -> Result<Option<WriteTarget<'_>>> {
    let plan = plan::candidate(&search)?;
    let streams = execute::rows(search.collection, &plan)?.unwrap_or_default();
    for (mut stream, destination) in streams.into_iter().zip(plan.destinations) {
        if let Some(row) = stream.next_row()? {
            let candidate = Candidate { skey: row.bytes(0).to_vec(), id: row.bytes(1).to_vec(), place: None };
            return Ok(Some(WriteTarget::confined(search, destination, candidate)));
        }
    }
    Ok(None)
}

/// Chooses a shard that has a matching document; None if none has. If many clients take documents that match the same filter, for
/// example jobs, all of them find the same candidate. So after a miss, this process sends the write with the filter to one of these shards,
/// chosen by its process id. There the write waits for the first matching document, and takes the next one if another client has taken it.
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

/// Finds the first matching document in an order; None if there is none.
fn first_candidate<'a>(search: Search<'a>, sort: &(Sort, String)) -> Result<Option<WriteTarget<'a>>> {
    let (collection, query) = (search.collection, search.query);
    let projection = key_projection(collection);
    let options = FindOptions {
        sort: Some(sort.clone()),
        included: Projection::parse(&projection)?.included(),
        projection: Some(projection.to_string()),
        environment: query.environment.clone(),
        limit: Some(1),
        hint: query.hint.clone(),
        ..FindOptions::default()
    };
    let plan = plan::find(&search, &options, Allowed::Planned)?;
    let Some(row) = execute::merged(collection, &plan)?.next_row()? else { return Ok(None) };
    let found = Storable::of_stored(row.document(0)?.unwrap_or_default())?;
    let skey = found.shard_key(collection)?;
    // If columns are in the order of the sort, the conditions on the keys already confirm the place.
    let place =
        column_order(collection, &query.filter, &sort.0).is_none().then(|| (sort.1.clone(), row.bytes(1).to_vec()));
    let destination = destination::destination_of(collection, &skey)?;
    let candidate = Candidate { skey, id: found.id_key().to_vec(), place };
    Ok(Some(WriteTarget::confined(search, destination, candidate)))
}

/// A projection that includes the shard key and the `_id`.
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
