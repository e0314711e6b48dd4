//! What the first stage of a pipeline wants to know of a collection instead of its documents.

/// What is wanted of a collection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Statistics {
    /// `$collStats`: a document for each shard
    Collection {
        /// the number of its documents
        count: bool,
        /// its sizes, in units of this many bytes
        storage: Option<i64>,
    },
    /// `$indexStats`: a document for each index at each shard
    Indexes,
}
