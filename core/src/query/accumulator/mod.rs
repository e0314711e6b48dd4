//! Accumulators: what becomes of many values, one after the other, or in parts that are merged.
//!
//! * [`state`] says what an accumulator is, and how its state is written.
//! * [`sum`], [`numbers`], [`choice`], [`several`], [`collection`] and [`percentile`] are the accumulators.
//! * [`table`] lists them, and is one of them while a group is read.
//!
//! Expressions of the same names accumulate over their arguments.

mod state;

mod sum;

mod choice;
mod collection;
mod numbers;
mod percentile;
mod several;

mod table;

pub(crate) use choice::Extreme;
pub(crate) use collection::Merged;
pub(crate) use numbers::{Average, Deviation};
pub use percentile::Method;
pub(crate) use percentile::{sorted_numbers, wanted_parts};
pub(crate) use state::{Accumulator, grow_by, size_of_value};
pub(crate) use sum::Sum;
pub use table::{ACCUMULATORS, Accumulation, AccumulatorOperator, Argument, Parameters, find};
