//! Updates many documents, each by its key: one statement for each shard, so that a batch takes one round trip, or two if it goes to
//! several shards and finds documents by an index. `$merge` writes its documents this way.
//!
//! The key is the shard key with `_id`, a unique shard key alone, or all fields of a unique index that is not partial and, if the
//! collection is sharded, the shard key. At most one document has the key. With a unique index, the statement first finds the
//! document, in its own snapshot, and then updates it by shard key and `_id`, if its newest version still matches the query.

use crate::catalog::collections::duplicate;
use crate::catalog::collections::namespace::check_writable;
use crate::pg::error::{Error, Result};
use crate::router::dispatch::writing::{self, LockRange};
use crate::router::fresh_map::with_fresh_map;
use crate::router::sampling;
use crate::router::session;
use docshard_core::cluster::chunk_map::ShardId;
use docshard_core::routing::model::Collection;
use docshard_core::routing::model::Index;
use docshard_core::routing::plan::conditions::Conditions;
use docshard_core::routing::plan::destination::{self, Destination};
use docshard_core::routing::plan::document_key::DocumentKey;
use docshard_core::routing::plan::index_choice::unique_index_for;
use docshard_core::routing::plan::search::Search;
use docshard_core::routing::plan::statement::{NUMBER, Statement, first_params};
use docshard_core::routing::protocol::checked::Parameter;
use docshard_core::routing::protocol::documents::UpdateDocument;
use docshard_core::routing::request::modification::Modification;
use docshard_core::routing::request::query::Query;
use docshard_core::values::key::{KeyRange, KeyRanges};
use std::collections::BTreeMap;

/// An update of one document.
#[derive(Debug)]
pub struct KeyedUpdate {
    pub query: Query,
    /// must not change the shard key
    pub modification: Modification,
}

/// What became of an update.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyedOutcome {
    /// there is a document
    Matched,
    /// there is none
    Missing,
    /// nothing was done: the query does not name the document's key, or names it otherwise than the batch's first query does, or the
    /// document has changed since it was found
    NotKeyed,
}

/// Updates the documents whose keys are in the queries, in the given order; of equal keys, the later update sees the earlier one. All
/// are updated, or none after an error.
pub fn update(namespace: &str, updates: &[KeyedUpdate]) -> Result<Vec<KeyedOutcome>> {
    check_writable(namespace)?;
    with_fresh_map(namespace, |collection| match collection {
        None => Ok(vec![KeyedOutcome::Missing; updates.len()]),
        Some(collection) => update_in(&collection, updates).map_err(|error| duplicate::translate(&collection, error)),
    })
}

/// How the documents of a batch are found.
#[derive(Clone, Copy)]
enum Access<'a> {
    /// by shard key and `_id`
    DocumentKey,
    /// by the unique shard key
    ShardKey,
    /// by a unique index
    Index(&'a Index),
}

/// The key of an update's document.
struct Key {
    skey: Vec<u8>,
    filter: Option<String>,
    /// for [`Access::Index`]: the keys of the index's columns, then both ends of each range of entries; otherwise the `_id`, if the key has
    /// one
    values: Vec<Vec<u8>>,
}

impl<'a> Access<'a> {
    /// Chooses how to find the document of a query; None if its key is not known.
    fn of_search(search: &Search<'a>) -> Option<(Self, Key)> {
        let collection = search.collection;
        match DocumentKey::of_search(search) {
            Some(DocumentKey { skey, id: Some(id), filter }) => {
                return Some((Self::DocumentKey, Key { skey, filter, values: vec![id] }));
            }
            Some(DocumentKey { skey, id: None, filter }) if collection.unique => {
                return Some((Self::ShardKey, Key { skey, filter, values: Vec::new() }));
            }
            _ => {}
        }
        let skey = if collection.key.is_unsharded() { Vec::new() } else { search.keys.as_point()?.to_vec() };
        let (index, wanted) = unique_index_for(search)?;
        let points = wanted.columns.iter().map(|ranges| ranges.as_point().map(<[u8]>::to_vec));
        let mut values = points.collect::<Option<Vec<_>>>()?;
        for range in wanted.entries.as_slice() {
            values.extend([range.lo.clone(), range.hi.clone()?]);
        }
        Some((Self::Index(index), Key { skey, filter: Some(search.query.text()), values }))
    }

    fn is_same(self, other: Access<'_>) -> bool {
        match (self, other) {
            (Self::DocumentKey, Access::DocumentKey) | (Self::ShardKey, Access::ShardKey) => true,
            (Self::Index(one), Access::Index(other)) => one.id == other.id,
            _ => false,
        }
    }
}

/// The updates at one shard: their positions, and the columns of the statement.
#[derive(Default)]
struct Group {
    positions: Vec<usize>,
    skeys: Vec<Vec<u8>>,
    filters: Vec<String>,
    updates: Vec<String>,
    /// the columns of [`Key::values`]
    values: Vec<Vec<Vec<u8>>>,
}

fn update_in(collection: &Collection, updates: &[KeyedUpdate]) -> Result<Vec<KeyedOutcome>> {
    let mut outcomes = vec![KeyedOutcome::NotKeyed; updates.len()];
    let mut groups: BTreeMap<ShardId, Group> = BTreeMap::new();
    let mut keys = Vec::new();
    // The queries of a batch differ in their values only, so nearly all have the access of the first one.
    let mut chosen: Option<(Access<'_>, usize)> = None;
    for (position, update) in updates.iter().enumerate() {
        let Some((access, Key { skey, filter, values })) =
            Access::of_search(&session::search(collection, &update.query)?)
        else {
            continue;
        };
        let (first, columns) = *chosen.get_or_insert((access, values.len()));
        if !access.is_same(first) || values.len() != columns {
            continue;
        }
        keys.push(KeyRange::point(&skey));
        sampling::keyed_write(collection, || update.query.text(), Some(&update.modification));
        let group = groups.entry(collection.map.owner(&skey)).or_default();
        group.positions.push(position);
        group.skeys.push(skey);
        group.filters.push(filter.unwrap_or_default());
        group.updates.push(update.modification.text.clone());
        group.values.resize_with(columns, Vec::new);
        group.values.iter_mut().zip(values).for_each(|(column, value)| column.push(value));
    }
    let Some((access, _)) = chosen else { return Ok(outcomes) };
    let all = destination::destinations(collection, &KeyRanges::all())?;
    let destinations: Vec<Destination> = all.into_iter().filter(|d| groups.contains_key(&d.shard)).collect();
    let range = LockRange::of(&KeyRanges::new(keys));
    let (positions, statements): (Vec<_>, Vec<_>) =
        groups.into_values().map(|group| group.into_statement(collection, access)).unzip();
    let written = match access {
        // The shard's function locks and checks, but here it runs after the search in the index. So a statement before that one
        // locks and checks.
        Access::Index(_) => writing::write(collection, &destinations, &range, |at| &statements[at])?,
        _ => writing::write_checked(collection, &destinations, &range, false, |at| &statements[at])?,
    };
    for (positions, written) in positions.into_iter().zip(written) {
        if positions.len() != written.rows.len() {
            return Err(Error::protocol_violation("a shard has not answered each update"));
        }
        for (position, row) in positions.into_iter().zip(&written.rows) {
            outcomes[position] = match row.i64(0) {
                NOT_FOUND => KeyedOutcome::Missing,
                // The index found the document, but it has changed since.
                0 if matches!(access, Access::Index(_)) => KeyedOutcome::NotKeyed,
                0 => KeyedOutcome::Missing,
                _ => KeyedOutcome::Matched,
            };
        }
    }
    Ok(outcomes)
}

/// The answer for an update whose document the index did not find. Other answers are those of `update_document`.
const NOT_FOUND: i64 = -1;

impl Group {
    /// Returns the updates' positions, and the statement. Its rows are the answers in the same order.
    fn into_statement(self, collection: &Collection, access: Access<'_>) -> (Vec<usize>, Statement) {
        let Self { positions, skeys, filters, updates, values } = self;
        let fixed = collection.key.fields.iter().map(|(path, _)| path.clone()).collect();
        let mut params = first_params(collection);
        params.push(Parameter::BytesArray(skeys));
        params.extend([filters, updates, fixed].map(Parameter::TextArray));
        let (mut columns, mut arrays) = (String::new(), String::new());
        for (column, values) in values.into_iter().enumerate() {
            params.push(Parameter::BytesArray(values));
            columns += &format!(", v{column}");
            arrays += &format!(", ${}::bytea[]", params.len());
        }
        let update = |skey, id| UpdateDocument::for_rows(collection.id, [skey, id, "u.filter", "u.change", "$6"]);
        // An empty text stands for no filter.
        let rows = format!(
            "(SELECT skey, CASE WHEN filter <> '' THEN filter END AS filter, change{columns} \
             FROM unnest($3::bytea[], $4::text[], $5::text[]{arrays}) AS t (skey, filter, change{columns})) u"
        );
        let sql = match access {
            Access::DocumentKey => format!("SELECT {} FROM {rows}", update("u.skey", "u.v0")),
            Access::ShardKey => format!("SELECT {} FROM {rows}", update("u.skey", "NULL::bytea")),
            Access::Index(index) => {
                let found = Conditions::of_joined_key(collection, index, "u", columns.matches(',').count());
                format!(
                    "SELECT CASE WHEN f.id IS NULL THEN {NOT_FOUND}::int8 ELSE {} END FROM {rows} LEFT JOIN LATERAL \
                     (SELECT t.skey, t.id FROM {} t WHERE {found} LIMIT 1) f ON true",
                    update("f.skey", "f.id"),
                    collection.table()
                )
            }
        };
        (positions, Statement { sql, params, columns: NUMBER })
    }
}
