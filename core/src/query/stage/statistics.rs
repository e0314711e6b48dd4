//! The statistics that `$collStats` and `$indexStats` return instead of a collection's documents.

/// The requested statistics of a collection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Statistics {
    /// `$collStats`: a document for each shard
    Collection {
        /// true if the number of documents is requested
        count: bool,
        /// its sizes, divided by this number; None if they are not requested
        storage: Option<i64>,
    },
    /// `$indexStats`: a document for each index at each shard
    Indexes,
}
