//! What a window function keeps of the documents in its window.

use crate::error::Result;
use crate::query::accumulator::Accumulation;
use crate::query::operand::Operand;
use crate::values::document::value::Value;
use std::fmt;

/// A function's state over the values of a window, in their order.
pub(super) trait Tally: fmt::Debug {
    /// Adds a value behind the others.
    ///
    /// # Errors
    /// Those of the function; `ExceededMemoryLimit` if the state grows too large.
    fn add(&mut self, value: Operand<'_>) -> Result<()>;

    /// Takes the first value away. Only of functions for which the table says so.
    fn remove(&mut self, _value: Operand<'_>) {}

    /// The result over the values that are there.
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
