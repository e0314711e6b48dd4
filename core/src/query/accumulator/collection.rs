//! Accumulators that keep all values: `$push` and `$addToSet`, `$concatArrays` and `$setUnion`, which add the elements of arrays, and
//! `$mergeObjects`. The size of their states is limited.

use super::state::{Accumulator, damaged, grow};
use crate::budget;
use crate::error::{Kind, Result, bail};
use crate::query::document_builder::DocumentBuilder;
use crate::query::operand::Operand;
use crate::values::collation::Collator;
use crate::values::document::value::Value;
use crate::values::key::encode::encoded_under;
use crate::values::order::Strings;
use std::collections::HashSet;

/// Calls `put` with a document's value, or with `ELEMENTS` with each element of it; not at all if the value is missing.
///
/// # Errors
/// `TypeMismatch` if it must be an array and is none; those of `put`.
fn each<const ELEMENTS: bool>(value: Operand<'_>, name: &str, put: impl FnMut(Value) -> Result<()>) -> Result<()> {
    let type_name = value.type_name();
    match value.into_option() {
        Some(Value::Array(elements)) if ELEMENTS => elements.into_iter().try_for_each(put),
        Some(_) if ELEMENTS => {
            bail!(Kind::TypeMismatch, "{name} requires array inputs, but input is of type {type_name}")
        }
        value => value.into_iter().try_for_each(put),
    }
}

/// Calls `put` with each value of a state.
fn each_of_state(state: Value, put: impl FnMut(Value) -> Result<()>) -> Result<()> {
    let Value::Array(values) = state else { return Err(damaged()) };
    values.into_iter().try_for_each(put)
}

/// All values in their order; with `ELEMENTS` the elements of all arrays. Missing values are ignored.
#[derive(Clone, Debug, Default)]
pub(crate) struct List<const ELEMENTS: bool> {
    values: Vec<Value>,
    bytes: usize,
}

impl<const ELEMENTS: bool> List<ELEMENTS> {
    const NAME: &'static str = if ELEMENTS { "$concatArrays" } else { "$push" };

    fn put(&mut self, value: Value) -> Result<()> {
        grow(&mut self.bytes, &value, Self::NAME)?;
        self.values.push(value);
        Ok(())
    }
}

impl<'a, const ELEMENTS: bool> Accumulator<'a> for List<ELEMENTS> {
    fn wants(&self, value: &Operand<'_>, _: Strings<'_>) -> bool {
        !value.is_missing()
    }

    fn add(&mut self, value: Operand<'a>, _: Strings<'_>) -> Result<()> {
        each::<ELEMENTS>(value, Self::NAME, |value| self.put(value))
    }

    fn merge(&mut self, later: Self, _: Strings<'_>) -> Result<()> {
        later.values.into_iter().try_for_each(|value| self.put(value))
    }

    fn finish(self) -> Operand<'a> {
        Operand::Made(Value::fixed_array(self.values))
    }

    fn bytes(&self) -> usize {
        self.bytes
    }

    fn state(&self) -> Value {
        Value::fixed_array(budget::copying(|| self.values.clone()))
    }

    fn from_state(state: Value, _: Strings<'_>) -> Result<Self> {
        let mut list = Self::default();
        each_of_state(state, |value| list.put(value))?;
        Ok(list)
    }
}

/// The distinct values, in the order of their first occurrence; with `ELEMENTS` those of all arrays. Missing values are ignored.
#[derive(Clone, Debug, Default)]
pub(crate) struct Set<const ELEMENTS: bool> {
    values: Vec<Value>,
    bytes: usize,
    /// the encodings of the values
    keys: HashSet<Vec<u8>>,
}

impl<const ELEMENTS: bool> Set<ELEMENTS> {
    const NAME: &'static str = if ELEMENTS { "$setUnion" } else { "$addToSet" };

    /// Adds a value unless an equal one was added before.
    fn put(&mut self, value: Value, strings: Option<&Collator>) -> Result<()> {
        let key = encoded_under(&value, strings);
        let length = key.len();
        if self.keys.insert(key) {
            self.bytes += size_of::<Vec<u8>>() + length;
            grow(&mut self.bytes, &value, Self::NAME)?;
            self.values.push(value);
        }
        Ok(())
    }
}

impl<'a, const ELEMENTS: bool> Accumulator<'a> for Set<ELEMENTS> {
    fn wants(&self, value: &Operand<'_>, _: Strings<'_>) -> bool {
        !value.is_missing()
    }

    fn add(&mut self, value: Operand<'a>, strings: Strings<'_>) -> Result<()> {
        each::<ELEMENTS>(value, Self::NAME, |value| self.put(value, strings))
    }

    fn merge(&mut self, later: Self, strings: Strings<'_>) -> Result<()> {
        later.values.into_iter().try_for_each(|value| self.put(value, strings))
    }

    fn finish(self) -> Operand<'a> {
        Operand::Made(Value::fixed_array(self.values))
    }

    fn bytes(&self) -> usize {
        self.bytes
    }

    fn state(&self) -> Value {
        Value::fixed_array(budget::copying(|| self.values.clone()))
    }

    fn from_state(state: Value, strings: Strings<'_>) -> Result<Self> {
        let mut set = Self::default();
        each_of_state(state, |value| set.put(value, strings))?;
        Ok(set)
    }
}

/// The fields of all documents; the last value of each name wins. Null and missing values are ignored.
#[derive(Clone, Debug, Default)]
pub(crate) struct Merged {
    fields: DocumentBuilder,
    bytes: usize,
}

impl<'a> Accumulator<'a> for Merged {
    fn wants(&self, value: &Operand<'_>, _: Strings<'_>) -> bool {
        !value.is_nullish()
    }

    fn add(&mut self, value: Operand<'a>, _: Strings<'_>) -> Result<()> {
        if value.is_nullish() {
            return Ok(());
        }
        let type_name = value.type_name();
        let Some(fields) = value.into_fields() else {
            bail!(40400, "$mergeObjects requires object inputs, but input is of type {type_name}")
        };
        for (name, value) in fields {
            let value = value.into_value();
            grow(&mut self.bytes, &value, "$mergeObjects")?;
            self.fields.put(name, value);
        }
        Ok(())
    }

    fn merge(&mut self, later: Self, strings: Strings<'_>) -> Result<()> {
        self.add(Operand::Made(later.fields.into_value()), strings)
    }

    fn finish(self) -> Operand<'a> {
        Operand::Made(self.fields.into_value())
    }

    fn bytes(&self) -> usize {
        self.bytes
    }

    fn state(&self) -> Value {
        budget::copying(|| self.fields.to_value())
    }

    fn from_state(state: Value, _: Strings<'_>) -> Result<Self> {
        let mut merged = Self::default();
        match state {
            Value::Object(_) => merged.add(Operand::Made(state), None).map(|()| merged),
            _ => Err(damaged()),
        }
    }
}
