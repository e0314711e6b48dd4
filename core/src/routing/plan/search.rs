//! The input of the planner: a collection, a query, and the shard keys that matching documents can have.

use super::destination::{self, Destination};
use super::index_restriction::IndexRestriction;
use crate::error::Result;
use crate::query::filter::Filter;
use crate::routing::model::Collection;
use crate::routing::request::query::Query;
use crate::values::key::KeyRanges;

/// What a statement searches for, before an access path is chosen.
#[derive(Debug)]
pub struct Search<'a> {
    pub collection: &'a Collection,
    pub query: &'a Query,
    pub restriction: IndexRestriction<'a>,
    /// the shard keys that matching documents can have
    pub keys: KeyRanges,
    /// the shards count the statement for the chunks with these keys, or, if there are no keys, for no chunk in particular; None: they
    /// do not count it
    pub counted_at: Option<Vec<Vec<u8>>>,
}

/// The most chunks for which a read is counted. A read of more counts as a read of most of the collection, for no chunk in
/// particular.
const MAX_COUNTED: usize = 8;

impl<'a> Search<'a> {
    /// The search for a query; `notablescan` is the setting `docshard.notablescan`.
    pub fn new(collection: &'a Collection, query: &'a Query, notablescan: bool) -> Result<Self> {
        let restriction = IndexRestriction::of_query(collection, query, notablescan)?;
        Ok(Self { collection, query, restriction, keys: query.keys(collection), counted_at: None })
    }

    /// The search of a read that the shards count for the load of chunks: once for each chunk.
    #[must_use]
    pub fn counted(self) -> Self {
        let keys = self.collection.map.keys_in(&self.keys, MAX_COUNTED).unwrap_or_default();
        Self { counted_at: Some(keys), ..self }
    }

    pub fn filter(&self) -> &'a Filter {
        &self.query.filter
    }

    /// The shards that can have matching documents.
    pub fn destinations(&self) -> Result<Vec<Destination>> {
        destination::destinations(self.collection, &self.keys)
    }
}
