//! `$setWindowFields`: computes fields from the documents around each document.
//!
//! * [`bounds`] has the bounds of windows; [`partition`] holds the documents of a partition, and their readers.
//! * [`tally`] is the state of a function over a window. Accumulators implement it; [`removable`] and [`running`] have states that
//!   only windows use.
//! * [`function`] is a parsed function. [`sliding`] moves its window; [`linear_fill`] computes `$linearFill`.
//! * [`table`] lists the functions with their parsers. A new function is a row there, and its tally.
//! * [`stage`] is the stage itself.

mod bounds;

mod partition;
mod tally;

mod removable;
mod running;

mod function;

mod linear_fill;
mod sliding;

mod table;

mod stage;

pub(in crate::query::stage) use stage::set_window_fields;
pub use table::{WINDOW_FUNCTIONS, WindowOperator};
