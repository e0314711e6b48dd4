//! What a statement searches for, before it is decided how.

use super::index_restriction::IndexRestriction;
use crate::catalog::model::Collection;
use crate::pg::error::Result;
use crate::router::destination::{self, Destination};
use crate::router::query::Query;
use docshard_core::query::filter::Filter;
use docshard_core::values::key::KeyRanges;

/// A search in a collection.
#[derive(Debug)]
pub struct Search<'a> {
    /// where
    pub collection: &'a Collection,
    /// for what
    pub query: &'a Query,
    /// the indexes that may serve it
    pub restriction: IndexRestriction<'a>,
    /// the shard keys that matching documents can have
    pub keys: KeyRanges,
}

impl<'a> Search<'a> {
    /// Finds out which indexes may serve, and which shard keys documents can have.
    ///
    /// # Errors
    /// Those of [`IndexRestriction::of_query`].
    pub fn new(collection: &'a Collection, query: &'a Query) -> Result<Self> {
        let restriction = IndexRestriction::of_query(collection, query)?;
        Ok(Self { collection, query, restriction, keys: query.keys(collection) })
    }

    /// The filter.
    pub fn filter(&self) -> &'a Filter {
        &self.query.filter
    }

    /// The shards that can hold matching documents.
    ///
    /// # Errors
    /// As [`destination::destinations`].
    pub fn destinations(&self) -> Result<Vec<Destination>> {
        destination::destinations(self.collection, &self.keys)
    }
}
