//! The stages of pipelines.
//!
//! * [`fields`] says which fields a stage reads and writes.
//! * [`runtime`] is what stages run with: streams, and the storage for more documents than a stage's memory holds.
//! * [`database`] holds collections in memory, for tests.
//! * [`needed`] finds the fields that stages need.
//! * [`operation`] has the types of a stage: its row in the table, its argument, its operation.
//! * [`operators`] are the stages, a file each.
//! * [`table`] lists them with their parsers and properties. A new stage is a row there, and its operation.
//! * [`rearranging`] reorders stages, and divides them between shards and router.
//! * [`measured`] runs and measures stages for `explain`.
//! * [`pipeline`] is the parsed pipeline.

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
pub use runtime::sink::{Merging, Sink, TargetCollection, WhenMatched, WhenNotMatched, target_filter};
pub use runtime::sorter::{MemorySorter, Sorter};
pub use runtime::statistics::{CatalogParts, Statistics};
pub use runtime::stream::{InMemory, Input, IterStream, Memory, Stream};
pub use table::STAGES;
