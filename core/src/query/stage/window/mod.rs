//! `$setWindowFields`: fields that are computed of the documents around each document.
//!
//! * [`bounds`] are those of windows; [`partition`] has the documents, and readers that go through them.
//! * [`tally`] is what a function keeps of a window's documents. Accumulators do that; [`removable`] and [`running`] are those that
//!   only windows have.
//! * [`function`] is a parsed function. [`sliding`] moves its window, and [`filling`] looks for known values.
//! * [`table`] lists the functions with their parsers. A new function is a row there, and its tally.
//! * [`stage`] puts all of it together.

mod bounds;

mod partition;
mod tally;

mod removable;
mod running;

mod function;

mod filling;
mod sliding;

mod table;

mod stage;

pub(super) use stage::set_window_fields;
pub use table::{WINDOW_FUNCTIONS, WindowOperator};
