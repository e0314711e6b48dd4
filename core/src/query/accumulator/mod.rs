//! Accumulators: aggregate functions over values, with states that can be serialized and merged.
//!
//! * [`state`] has the trait of accumulators, and the format of their states.
//! * [`sum`], [`numbers`], [`choice`], [`several`], [`collection`] and [`percentile`] are the accumulators.
//! * [`table`] lists the accumulators. [`Accumulation`] there is the state of one accumulator for one group.
//!
//! The expressions of the same names, such as `$sum`, apply accumulators to their arguments.

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
