//! Stages of pipelines: what becomes of documents, one after the other.
//!
//! * [`fields`] says which fields a stage looks at and which it changes.
//! * [`stream`] is documents one after the other, and where a stage puts more than its memory holds; [`rows`] is one such place. [`arranged`] documents are
//!   sorted by partitions, and by [`position`].
//! * [`sink`] is where the documents of a pipeline go that writes them.
//! * [`operation`] is what a stage is: its row, its argument, what it does.
//! * [`single`], [`bounded`], [`unwind`], [`sort`], [`group`] with [`accumulating`], [`bucket_auto`] with [`granularity`], [`window`], [`derived`],
//!   [`documents`], [`facet`], [`fill`], [`densify`] and [`merge`] are the stages.
//! * [`table`] lists them with their parsers and properties. A new stage is a row there, and its operation.
//! * [`rearrange`] moves stages so that there is less to do; [`division`] divides them between shards and the place where the
//!   shards' documents come together. Both follow from the table's properties.
//! * [`measured`] runs stages for an explanation.
//! * [`pipeline`] puts all of it together.

mod fields;
mod position;
mod rows;
mod stream;

mod arranged;
mod sink;

mod operation;

mod accumulating;
mod bounded;
mod derived;
mod documents;
mod facet;
mod fill;
mod granularity;
mod merge;
mod single;
mod sort;
mod unwind;

mod bucket_auto;
mod densify;
mod group;
mod window;

mod table;

mod rearrange;

mod division;

mod measured;

mod pipeline;

pub use division::Find;
pub use fields::{Fields, Written};
pub use measured::{Measured, Measurements};
pub use operation::{Merge, Stage, StageOperator};
pub use pipeline::{Division, Pipeline};
pub use rows::Rows;
pub use sink::{Merging, Sink, Target, WhenMatched, WhenNotMatched, matching};
pub use stream::{Given, InMemory, Input, Memory, Sorter, Stream};
pub use table::STAGES;
pub use window::{WINDOW_FUNCTIONS, WindowOperator};
