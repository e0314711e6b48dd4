//! Stages of pipelines: what becomes of documents, one after the other.
//!
//! * [`fields`] says which fields a stage looks at and which it changes.
//! * [`operation`] is what a stage does with a document.
//! * [`table`] lists the stages with their parsers and properties. A new stage is a row there, and its operation.
//! * [`pipeline`] runs stages, and divides them between shards and the one that merges.

mod fields;

mod operation;

mod table;

mod pipeline;

pub use fields::{Fields, Written};
pub use pipeline::{Division, Pipeline, Run};
pub use table::{Merge, STAGES, StageOperator};
