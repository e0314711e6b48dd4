//! The statistics that a pipeline's first stage returns instead of a collection's documents.

/// The requested statistics of a collection or of the cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Statistics {
    /// `$collStats`: a document for each shard
    Collection {
        /// true if the number of documents is requested
        count: bool,
        /// the number by which the collection's sizes are divided; None if sizes are not requested
        storage: Option<i64>,
    },
    /// `$indexStats`: a document for each index at each shard
    Indexes,
    /// `$listClusterCatalog`: a document for each collection and view
    Catalog(CatalogParts),
    /// `$shardedDataDistribution`: a document for each sharded collection
    Distribution,
    /// `$currentOp`: a document for each running statement
    Operations {
        /// true: also for sessions without a statement
        idle: bool,
        /// true: also those of other users
        all_users: bool,
    },
}

/// What `$listClusterCatalog` shows besides names and options.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CatalogParts {
    /// whether to show the shards of each collection
    pub shards: bool,
    /// whether to show if a collection is in the catalog of sharded collections
    pub tracked: bool,
    /// whether to show if the balancer may move a collection
    pub balancing: bool,
}

impl Statistics {
    /// True for statistics of the pipeline's collection, false for statistics of the cluster.
    pub fn are_of_collection(&self) -> bool {
        matches!(self, Self::Collection { .. } | Self::Indexes)
    }

    /// True if the pipeline must run in the database `admin`.
    pub fn are_of_admin(&self) -> bool {
        matches!(self, Self::Distribution | Self::Operations { .. })
    }
}
