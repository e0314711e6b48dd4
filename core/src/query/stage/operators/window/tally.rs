//! The state of a window function over the values in its window.

use crate::error::Result;
use crate::query::accumulator::Accumulation;
use crate::query::operand::Operand;
use crate::values::document::value::Value;
use std::fmt;

/// The state of a window function. Values are added in the order of their documents.
pub(super) trait Tally: fmt::Debug {
    /// Adds the next value.
    ///
    /// # Errors
    /// Those of the function; `ExceededMemoryLimit` if the state grows too large.
    fn add(&mut self, value: Operand<'_>) -> Result<()>;

    /// Removes the first value. Only called for states that the [table](super::table) lists as moving.
    fn remove(&mut self, _value: Operand<'_>) {}

    /// Returns the result over the present values.
    ///
    /// # Errors
    /// Those of the function.
    fn result(&self) -> Result<Value>;
}

impl Tally for Accumulation {
    fn add(&mut self, value: Operand<'_>) -> Result<()> {
        self.add_operand(value)
    }

    fn result(&self) -> Result<Value> {
        Ok(Accumulation::result(self))
    }
}
