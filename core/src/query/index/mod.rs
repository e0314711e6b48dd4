//! The keys that an index stores for a document, and the keys that a filter searches for.
//!
//! An index consists of two PostgreSQL indexes. The b-tree has a column for each field with the key of its value, exact and in the order of
//! sorts. A document with an array on one of the index's paths, or with a value too long for a page of a b-tree, is stored there as
//! [`IN_ENTRIES`](columns::IN_ENTRIES), above every key. Its keys, one for each element of the array, are its [`entries`] in the second,
//! inverted index, which holds only such documents. A search uses both indexes ([`wanted`]), and the filter is evaluated on the documents
//! found. Equal keys can represent different values (2 and 2.0). The last column of the b-tree distinguishes them ([`types`]), so that a
//! query of indexed values alone does not read documents.
//!
//! A unique index also has a third index, in which each key occurs in at most one document: see [`unique`].
//!
//! Two kinds have only one of the indexes. A hashed index has the b-tree: it refuses arrays, and truncates long values. A [`Wildcard`]
//! index has entries for all documents.

mod types;
mod wildcard;

mod keys;

mod columns;
mod partial;

mod bounds;
mod composed;
mod entries;
pub mod unique;
mod wanted;
mod wildcard_entries;

pub use bounds::{Bounds, Span};
pub use columns::IN_ENTRIES;
pub use keys::{IndexKeys, MAX_FIELDS};
pub use partial::Partial;
pub use wanted::{RowBounds, Wanted};
pub use wildcard::Wildcard;
