//! The trait of accumulators, and the format of their states.

use crate::budget;
use crate::error::{Error, Kind, Result, error};
use crate::query::operand::Operand;
use crate::values::document::number::Number;
use crate::values::document::value::Value;
use crate::values::order::Strings;

/// The state of one accumulator over some of a group's values.
///
/// RULE: adding all values of a group in order gives the same result as merging the states of its parts in order, apart from the rounding
/// of standard deviations.
pub(crate) trait Accumulator<'a>: Sized {
    /// False if adding the value would change nothing, so that it need not be copied.
    fn wants(&self, _value: &Operand<'_>, _strings: Strings<'_>) -> bool {
        true
    }

    /// Adds a borrowed value, without keeping it. Returns false if the accumulator must keep the value: then the caller copies it and
    /// calls [`add`](Self::add).
    fn add_lent(&mut self, _value: &Operand<'_>) -> bool {
        false
    }

    /// Adds a value.
    ///
    /// # Errors
    /// Those of the operator; `ExceededMemoryLimit` if the state grows too large.
    fn add(&mut self, value: Operand<'a>, strings: Strings<'_>) -> Result<()>;

    /// Merges the state of later values into this one.
    ///
    /// # Errors
    /// Those of [`add`](Self::add).
    fn merge(&mut self, later: Self, strings: Strings<'_>) -> Result<()>;

    /// The result.
    fn finish(self) -> Operand<'a>;

    /// Returns the approximate memory of the state besides its own size, in bytes.
    fn bytes(&self) -> usize {
        0
    }

    /// The state as a value.
    fn state(&self) -> Value;

    /// Reads what [`state`](Self::state) wrote.
    ///
    /// # Errors
    /// `BadValue` if the value cannot be a state.
    fn from_state(state: Value, strings: Strings<'_>) -> Result<Self>;
}

/// The largest state of one accumulator for one group, in bytes: MongoDB's limit.
const MAX_STATE_BYTES: usize = 100 << 20;

/// Returns the approximate memory of a value, in bytes.
pub(crate) fn size_of_value(value: &Value) -> usize {
    let inside = match value {
        Value::String(text) | Value::Symbol(text) | Value::Code(text) => text.len(),
        Value::Binary(_, bytes) => bytes.len(),
        Value::Regex(pattern, options) => pattern.len() + options.len(),
        Value::Array(items) => items.iter().map(size_of_value).sum(),
        Value::Object(fields) => size_of_fields(fields),
        Value::CodeWithScope(_, scope) => size_of_fields(scope),
        _ => 0,
    };
    size_of::<Value>() + inside
}

fn size_of_fields(fields: &[(String, Value)]) -> usize {
    fields.iter().map(|(name, value)| size_of::<String>() + name.len() + size_of_value(value)).sum()
}

/// Adds the size of a value to that of a state.
///
/// # Errors
/// `ExceededMemoryLimit` above [`MAX_STATE_BYTES`].
pub(super) fn grow(bytes: &mut usize, value: &Value, name: &str) -> Result<()> {
    grow_by(bytes, size_of_value(value), name)
}

/// Like [`grow`], for a number of bytes.
///
/// # Errors
/// Those of [`grow`].
pub(crate) fn grow_by(bytes: &mut usize, more: usize, name: &str) -> Result<()> {
    *bytes += more;
    budget::bytes(more);
    if *bytes > MAX_STATE_BYTES { Err(too_large(name)) } else { Ok(()) }
}

#[cold]
fn too_large(name: &str) -> Error {
    error!(
        Kind::ExceededMemoryLimit,
        "{name} used too much memory and cannot spill to disk. Memory limit: {MAX_STATE_BYTES} bytes"
    )
}

#[cold]
pub(super) fn damaged() -> Error {
    error!(Kind::BadValue, "malformed state of an accumulator")
}

/// Reads the parts of a state that is an array.
pub(super) struct Parts<'v>(std::slice::Iter<'v, Value>);

impl<'v> Parts<'v> {
    pub(super) fn of(state: &'v Value) -> Result<Self> {
        match state {
            Value::Array(parts) => Ok(Self(parts.iter())),
            _ => Err(damaged()),
        }
    }

    pub(super) fn next(&mut self) -> Result<&'v Value> {
        self.0.next().ok_or_else(damaged)
    }

    pub(super) fn int(&mut self) -> Result<i64> {
        match self.next()? {
            Value::Number(Number::Int(value, _)) => Ok(*value),
            _ => Err(damaged()),
        }
    }

    /// A double, which is written as its bits.
    pub(super) fn double(&mut self) -> Result<f64> {
        Ok(f64::from_bits(self.int()?.cast_unsigned()))
    }

    pub(super) fn bool(&mut self) -> Result<bool> {
        match self.next()? {
            Value::Bool(value) => Ok(*value),
            _ => Err(damaged()),
        }
    }

    pub(super) fn text(&mut self) -> Result<&'v str> {
        match self.next()? {
            Value::String(text) => Ok(text),
            _ => Err(damaged()),
        }
    }
}
