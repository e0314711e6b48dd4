//! Updates many documents, each by its key: one statement for each shard, so that a batch takes one round trip. `$merge` writes its
//! documents this way.

use super::destination::{self, Destination};
use super::dispatch::writing::{self, LockRange};
use super::fresh_map::with_fresh_map;
use super::modification::Modification;
use super::plan::document_key::DocumentKey;
use super::plan::search::Search;
use super::query::Query;
use super::statement::{Parameter, Statement, first_params};
use crate::catalog::duplicate;
use crate::catalog::model::Collection;
use crate::catalog::namespace::check_writable;
use crate::pg::error::{Error, Result};
use crate::protocol::documents::UpdateDocument;
use docshard_core::cluster::chunk_map::ShardId;
use docshard_core::error::Kind;
use docshard_core::values::key::{KeyRange, KeyRanges};
use std::collections::BTreeMap;

/// An update of one document.
#[derive(Debug)]
pub struct KeyedUpdate {
    pub query: Query,
    /// it must keep the shard key
    pub modification: Modification,
}

/// What became of an update.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// there is a document
    Matched,
    /// there is none
    Missing,
    /// the query does not name the document's key, so nothing was done
    NotKeyed,
}

/// Updates the documents whose keys are in the queries, in the given order; of equal keys, the later update sees the earlier one. All
/// are updated, or none after an error.
pub fn update(namespace: &str, updates: &[KeyedUpdate]) -> Result<Vec<Outcome>> {
    check_writable(namespace)?;
    with_fresh_map(namespace, |collection| match collection {
        None => Ok(vec![Outcome::Missing; updates.len()]),
        Some(collection) => update_in(&collection, updates).map_err(|error| duplicate::translate(&collection, error)),
    })
}

/// The updates at one shard: their positions, and the columns of the statement.
#[derive(Default)]
struct Group {
    positions: Vec<usize>,
    skeys: Vec<Vec<u8>>,
    ids: Vec<Vec<u8>>,
    filters: Vec<String>,
    updates: Vec<String>,
}

fn update_in(collection: &Collection, updates: &[KeyedUpdate]) -> Result<Vec<Outcome>> {
    let mut outcomes = vec![Outcome::NotKeyed; updates.len()];
    let mut groups: BTreeMap<ShardId, Group> = BTreeMap::new();
    let mut keys = Vec::new();
    for (position, update) in updates.iter().enumerate() {
        let key = DocumentKey::of_search(&Search::new(collection, &update.query)?);
        let Some(DocumentKey { skey, id: Some(id), filter }) = key else { continue };
        keys.push(KeyRange::point(&skey));
        let group = groups.entry(collection.map.owner(&skey)).or_default();
        group.positions.push(position);
        group.skeys.push(skey);
        group.ids.push(id);
        group.filters.push(filter.unwrap_or_default());
        group.updates.push(update.modification.text.clone());
    }
    if groups.is_empty() {
        return Ok(outcomes);
    }
    let all = destination::destinations(collection, &KeyRanges::all())?;
    let destinations: Vec<Destination> = all.into_iter().filter(|d| groups.contains_key(&d.shard.id)).collect();
    let range = LockRange::of(&KeyRanges::new(keys));
    let (positions, statements): (Vec<_>, Vec<_>) =
        groups.into_values().map(|group| group.into_statement(collection)).unzip();
    let written = writing::write_checked(collection, &destinations, &range, false, |at| &statements[at])?;
    for (positions, written) in positions.into_iter().zip(written) {
        if positions.len() != written.rows.len() {
            return Err(Error::new(Kind::InternalError, "a shard has not answered each update"));
        }
        for (position, row) in positions.into_iter().zip(&written.rows) {
            outcomes[position] = if row.i64(0) > 0 { Outcome::Matched } else { Outcome::Missing };
        }
    }
    Ok(outcomes)
}

impl Group {
    /// The statement, whose rows are the answers of `update_document` in order.
    fn into_statement(self, collection: &Collection) -> (Vec<usize>, Statement) {
        let Self { positions, skeys, ids, filters, updates } = self;
        let fixed = collection.key.fields.iter().map(|(path, _)| path.clone()).collect();
        let mut params = first_params(collection);
        params.extend([Parameter::BytesArray(skeys), Parameter::BytesArray(ids)]);
        params.extend([filters, updates, fixed].map(Parameter::TextArray));
        let update = UpdateDocument::for_rows(collection.id, ["skey", "id", "filter", "change", "$7"]);
        // An empty filter is none.
        let sql = format!(
            "SELECT {update} FROM (SELECT skey, id, CASE WHEN filter <> '' THEN filter END AS filter, change \
             FROM unnest($3::bytea[], $4::bytea[], $5::text[], $6::text[]) AS t (skey, id, filter, change)) u"
        );
        (positions, Statement { sql, params })
    }
}
