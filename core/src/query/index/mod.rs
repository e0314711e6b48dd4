//! What an index stores of a document, and which of its keys a filter can want.
//!
//! An index is two of PostgreSQL's. A b-tree has a column for each field, with the key of its value: that is exact, and in
//! the order that sorts ask for. But a document with an array anywhere on one of the index's paths, or with a value too
//! long for a page of a b-tree, stands [`APART`](columns::APART) there, above every key; its keys, one for each element of the array, are
//! [`entries`] of a second, inverted index, which holds such documents alone. A search looks in both ([`wanted`]), and the
//! filter, run on what is found, decides. Equal keys can stand for different values (2 and 2.0). The last column of the
//! b-tree tells them apart ([`types`]), so that a search that needs only indexed values does not read documents.
//!
//! A unique index also has a third index, in which each key may occur in one document only: see [`unique`].
//!
//! Two kinds have one half alone. A hashed index has the b-tree: it takes no arrays, and cuts long values. A [`Wildcard`]
//! index has entries of every document.

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
pub use columns::APART;
pub use keys::{IndexKeys, MAX_FIELDS};
pub use partial::Partial;
pub use wanted::{Row, Wanted};
pub use wildcard::Wildcard;
