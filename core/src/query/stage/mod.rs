//! The stages of pipelines.
//!
//! * [`fields`] says which fields a stage reads and writes.
//! * [`stream`] is documents one after the other, and where a stage puts more than its memory holds; [`rows`] and
//!   [`sorter`] are such places. [`sorted_partitions`] documents are sorted by partitions, and by [`position`].
//! * [`resources`] has what stages use: memory and other collections; [`database`] implements both in memory.
//! * [`sink`] is the target of a pipeline that writes its documents.
//! * [`statistics`] says which statistics of its collection a pipeline begins with.
//! * [`operation`] has the types of a stage: its row in the table, its argument, its operation.
//! * [`per_document`], [`limit_skip`], [`unwind`], [`sort`], [`group`] with [`accumulating`], [`bucket_auto`] with [`granularity`],
//!   [`window`], [`derived`], [`documents`], [`facet`], [`fill`], [`densify`], [`lookup`] with [`equality`], [`query_cache`] and
//!   [`attached`], [`graph_lookup`], [`union_with`], [`collection_statistics`] and [`merge`] are the stages.
//! * [`table`] lists them with their parsers and properties. A new stage is a row there, and its operation.
//! * [`rearrange`] reorders stages so that they process fewer documents; [`division`] divides them between shards and router.
//!   Both use the properties in the table.
//! * [`measured`] runs and measures stages for `explain`.
//! * [`pipeline`] is the parsed pipeline.

mod fields;
mod position;
mod rows;
mod sorter;
mod stream;

mod resources;
mod sink;
mod sorted_partitions;
mod statistics;

mod operation;

mod needed;

mod accumulating;
mod collection_statistics;
mod derived;
mod documents;
mod facet;
mod fill;
mod granularity;
mod limit_skip;
mod merge;
mod per_document;
mod sort;
mod unwind;

mod attached;
mod equality;
mod query_cache;

mod bucket_auto;
mod densify;
mod graph_lookup;
mod group;
mod lookup;
mod union_with;
mod window;

mod table;

mod conjunction;
mod joins;
mod rearrange;

mod division;

mod measured;

mod pipeline;

mod database;

pub use database::Database;
pub use division::Find;
pub use fields::{Fields, Written};
pub use measured::{Measured, Measurements};
pub use operation::{Merge, Stage, StageOperator};
pub use pipeline::{Division, Pipeline};
pub use resources::{Collections, NoCollections, Resources};
pub use rows::Rows;
pub use sink::{Merging, Sink, TargetCollection, WhenMatched, WhenNotMatched, target_filter};
pub use sorter::{MemorySorter, Sorter};
pub use statistics::{CatalogParts, Statistics};
pub use stream::{InMemory, Input, IterStream, Memory, Stream};
pub use table::STAGES;
pub use window::{WINDOW_FUNCTIONS, WindowOperator};
