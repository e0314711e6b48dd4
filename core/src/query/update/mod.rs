//! Updates: a replacement, or operators applied to jsonb's bytes.
//!
//! * [`parse`] turns JSON into a tree of modifiers along their paths; its table of operators is the list of what is
//!   understood. Whatever can be refused without a document is refused there.
//! * [`pipeline`] is an update by stages.
//! * [`tree`] is that tree and its one walk over a document: what no path touches is copied as it lies.
//! * [`modifier`] is what happens at one place, [`array`] what happens to whole arrays; [`context`] is what they know.
//! * [`apply`] is the update as a whole.
//! * [`instruction`] is an update on its way to a shard, with the time and whatever else belongs to it.
//! * [`message`] words what MongoDB says about elements of documents.

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

pub use apply::{Update, moves};
pub use instruction::{Compiled, Instruction, Style, read};
pub(crate) use parse::operator_names;
