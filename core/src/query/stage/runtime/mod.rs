//! What stages run with.
//!
//! * [`stream`] is documents one after the other, and where a stage puts more than its memory holds; [`rows`] and
//!   [`sorter`] are such places. [`sorted_partitions`] documents are sorted by partitions, and by [`position`].
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
