//! The input of the planner: a collection, a query, and the shard keys that matching documents can have.

use super::index_restriction::IndexRestriction;
use crate::catalog::model::Collection;
use crate::pg::error::Result;
use crate::router::destination::{self, Destination};
use crate::router::query::Query;
use docshard_core::query::filter::Filter;
use docshard_core::values::key::KeyRanges;

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
    pub fn new(collection: &'a Collection, query: &'a Query) -> Result<Self> {
        let restriction = IndexRestriction::of_query(collection, query)?;
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
