//! Updates: a replacement, operators applied to jsonb's bytes, or a pipeline.
//!
//! * [`parse`] parses JSON into a tree of modifiers along their paths; its table lists the supported operators. Errors that do not depend
//!   on a document are raised here.
//! * [`pipeline`] is an update by stages.
//! * [`tree`] is the tree, and its single walk over a document, which copies everything that no path touches.
//! * [`modifier`] changes a single value, [`array`] whole arrays; [`context`] is their context.
//! * [`storable`] reads an update's values, and checks names at the root of changed documents.
//! * [`apply`] is the whole update.
//! * [`instruction`] is the form in which an update is sent to a shard, with its time and its environment.
//! * [`message`] formats parts of documents for MongoDB's messages.

mod message;
mod storable;

mod context;

mod array;
mod modifier;

mod tree;

mod parse;
mod pipeline;

mod apply;
mod instruction;

pub use apply::{Update, changes_any};
pub use instruction::{Compiled, Instruction, Style, read};
pub(crate) use parse::operator_names;
