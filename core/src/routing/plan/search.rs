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
}

impl<'a> Search<'a> {
    /// The search for a query; `notablescan` is the setting `docshard.notablescan`.
    pub fn new(collection: &'a Collection, query: &'a Query, notablescan: bool) -> Result<Self> {
        let restriction = IndexRestriction::of_query(collection, query, notablescan)?;
        Ok(Self { collection, query, restriction, keys: query.keys(collection) })
    }

    pub fn filter(&self) -> &'a Filter {
        &self.query.filter
    }

    /// The shards that can have matching documents.
    pub fn destinations(&self) -> Result<Vec<Destination>> {
        destination::destinations(self.collection, &self.keys)
    }
}
