//! What stages run with.
//!
//! * [`stream`] has streams of documents, and the traits of the storage for more documents than a stage's memory holds; [`rows`] and
//!   [`sorter`] are such storage.
//! * [`sorted_partitions`] sorts documents by partition; [`position`] is a value by which documents are sorted.
//! * [`resources`] has what stages use: memory and other collections.
//! * [`sink`] is the target of a pipeline that writes its documents.
//! * [`statistics`] says which statistics of its collection a pipeline begins with.

pub mod position;
pub mod rows;
pub mod sorter;
pub mod stream;

pub mod resources;
pub mod sink;
pub mod sorted_partitions;
pub mod statistics;
