//! What stages run with.
//!
//! * [`stream`]: streams of documents, and the trait [`Memory`](stream::Memory), which makes the storage of stages: [`rows`] and
//!   [`sorter`].
//! * [`sorted_partitions`]: sorts documents by partition; [`position`]: a value by which documents are sorted.
//! * [`resources`]: what stages use: memory and other collections.
//! * [`sink`]: the target of a pipeline that writes its documents.
//! * [`statistics`]: the statistics that a pipeline's first stage returns instead of documents.

pub mod position;
pub mod rows;
pub mod sorter;
pub mod stream;

pub mod resources;
pub mod sink;
pub mod sorted_partitions;
pub mod statistics;
