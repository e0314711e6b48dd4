//! The stages of pipelines.
//!
//! * [`fields`]: the type for the fields that one stage reads and writes.
//! * [`runtime`]: streams of documents, and the traits of the storage to which a stage writes when its memory is full.
//! * [`operation`]: the types of a stage: its row in the table, its argument, its operation.
//! * [`needed`]: the fields that a pipeline needs of its input, so that the others can be left out.
//! * [`operators`]: the stages. Related stages share a file.
//! * [`table`]: lists the stages with their parsers and properties. To add a stage, add a row there and write its operation.
//! * [`rearranging`]: reorders stages, and divides a pipeline into a part for shards and a part for the router.
//! * [`measured`]: runs and measures stages for `explain`.
//! * [`pipeline`]: the parsed pipeline.
//! * [`database`]: collections in memory, for tests and fuzzers.

mod fields;

mod runtime;

mod operation;

mod needed;

mod operators;

mod table;

mod rearranging;

mod measured;

mod pipeline;

mod database;

pub use database::Database;
pub use fields::{Fields, Written};
pub use measured::{Measured, Measurements};
pub use operation::{Merge, Stage, StageOperator};
pub use operators::window::{WINDOW_FUNCTIONS, WindowOperator};
pub use pipeline::{Division, Pipeline};
pub use rearranging::division::Find;
pub use runtime::resources::{Collections, NoCollections, Resources};
pub use runtime::rows::Rows;
pub use runtime::sink::{Merging, Sink, TargetCollection, WhenMatched, WhenNotMatched, target_filter, with_nulls};
pub use runtime::sorter::{MemorySorter, Sorter};
pub use runtime::statistics::{CatalogParts, Statistics};
pub use runtime::stream::{InMemory, Input, IterStream, Memory, Stream};
pub use table::STAGES;
