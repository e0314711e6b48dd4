//! Accumulators that keep all values: `$push`, `$addToSet`, `$mergeObjects`. The size of their states is limited.

use super::state::{Accumulator, damaged, grow};
use crate::budget;
use crate::error::{Result, bail};
use crate::query::document_builder::DocumentBuilder;
use crate::query::operand::Operand;
use crate::values::collation::Collator;
use crate::values::document::value::Value;
use crate::values::key::encode::encoded_under;
use crate::values::order::Strings;
use std::collections::HashSet;

/// Rebuilds an accumulator by adding each value of a state to an empty one.
fn kept<'a, A: Accumulator<'a>>(mut empty: A, state: Value, strings: Strings<'_>) -> Result<A> {
    let Value::Array(values) = state else { return Err(damaged()) };
    values.into_iter().try_for_each(|value| empty.add(Operand::Made(value), strings))?;
    Ok(empty)
}

/// All values in their order. Missing values are ignored.
#[derive(Clone, Debug, Default)]
pub(crate) struct List {
    values: Vec<Value>,
    bytes: usize,
}

impl<'a> Accumulator<'a> for List {
    fn wants(&self, value: &Operand<'_>, _: Strings<'_>) -> bool {
        !value.is_missing()
    }

    fn add(&mut self, value: Operand<'a>, _: Strings<'_>) -> Result<()> {
        if let Some(value) = value.into_option() {
            grow(&mut self.bytes, &value, "$push")?;
            self.values.push(value);
        }
        Ok(())
    }

    fn merge(&mut self, later: Self, strings: Strings<'_>) -> Result<()> {
        later.values.into_iter().try_for_each(|value| self.add(Operand::Made(value), strings))
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
        kept(Self::default(), state, strings)
    }
}

/// The distinct values, in the order of their first occurrence. Missing values are ignored.
#[derive(Clone, Debug, Default)]
pub(crate) struct Set {
    list: List,
    /// the encodings of the values
    keys: HashSet<Vec<u8>>,
}

impl Set {
    /// Adds a value unless an equal one was added before.
    fn put(&mut self, value: Value, strings: Option<&Collator>) -> Result<()> {
        let key = encoded_under(&value, strings);
        let length = key.len();
        if self.keys.insert(key) {
            self.list.bytes += size_of::<Vec<u8>>() + length;
            grow(&mut self.list.bytes, &value, "$addToSet")?;
            self.list.values.push(value);
        }
        Ok(())
    }
}

impl<'a> Accumulator<'a> for Set {
    fn wants(&self, value: &Operand<'_>, _: Strings<'_>) -> bool {
        !value.is_missing()
    }

    fn add(&mut self, value: Operand<'a>, strings: Strings<'_>) -> Result<()> {
        value.into_option().map_or(Ok(()), |value| self.put(value, strings))
    }

    fn merge(&mut self, later: Self, strings: Strings<'_>) -> Result<()> {
        later.list.values.into_iter().try_for_each(|value| self.put(value, strings))
    }

    fn finish(self) -> Operand<'a> {
        self.list.finish()
    }

    fn bytes(&self) -> usize {
        self.list.bytes
    }

    fn state(&self) -> Value {
        Accumulator::<'a>::state(&self.list)
    }

    fn from_state(state: Value, strings: Strings<'_>) -> Result<Self> {
        kept(Self::default(), state, strings)
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
