//! Accumulators whose result is one of the values: `$min`, `$max`, `$first`, `$last`.

use super::state::{Accumulator, Parts, size_of_value};
use crate::error::Result;
use crate::query::operand::Operand;
use crate::values::document::value::Value;
use crate::values::order::Strings;

/// The least value, or (`LARGEST`) the largest; the first of equal ones. Null and missing values are ignored.
#[derive(Clone, Debug, Default)]
pub(crate) struct Extreme<'a, const LARGEST: bool> {
    best: Option<Operand<'a>>,
}

impl<'a, const LARGEST: bool> Accumulator<'a> for Extreme<'a, LARGEST> {
    fn wants(&self, value: &Operand<'_>, strings: Strings<'_>) -> bool {
        let is_better = |best: &Operand<'_>| {
            let order = value.compare(best, strings);
            if LARGEST { order.is_gt() } else { order.is_lt() }
        };
        !value.is_nullish() && self.best.as_ref().is_none_or(is_better)
    }

    fn add(&mut self, value: Operand<'a>, strings: Strings<'_>) -> Result<()> {
        if self.wants(&value, strings) {
            self.best = Some(value);
        }
        Ok(())
    }

    fn merge(&mut self, later: Self, strings: Strings<'_>) -> Result<()> {
        later.best.map_or(Ok(()), |best| self.add(best, strings))
    }

    fn finish(self) -> Operand<'a> {
        self.best.unwrap_or(Operand::NULL)
    }

    fn bytes(&self) -> usize {
        kept_bytes(self.best.as_ref())
    }

    fn state(&self) -> Value {
        write_state(self.best.as_ref())
    }

    fn from_state(state: Value, _: Strings<'_>) -> Result<Self> {
        Ok(Self { best: read_state(state)? })
    }
}

/// The first value, or (`LAST`) the last. A missing value counts and gives null.
#[derive(Clone, Debug, Default)]
pub(crate) struct FirstOrLast<'a, const LAST: bool> {
    value: Option<Operand<'a>>,
}

impl<'a, const LAST: bool> Accumulator<'a> for FirstOrLast<'a, LAST> {
    fn wants(&self, _: &Operand<'_>, _: Strings<'_>) -> bool {
        LAST || self.value.is_none()
    }

    fn add(&mut self, value: Operand<'a>, strings: Strings<'_>) -> Result<()> {
        if self.wants(&value, strings) {
            self.value = Some(value);
        }
        Ok(())
    }

    fn merge(&mut self, later: Self, strings: Strings<'_>) -> Result<()> {
        later.value.map_or(Ok(()), |value| self.add(value, strings))
    }

    fn finish(self) -> Operand<'a> {
        match self.value {
            None | Some(Operand::Missing) => Operand::NULL,
            Some(value) => value,
        }
    }

    fn bytes(&self) -> usize {
        kept_bytes(self.value.as_ref())
    }

    fn state(&self) -> Value {
        write_state(self.value.as_ref())
    }

    fn from_state(state: Value, _: Strings<'_>) -> Result<Self> {
        Ok(Self { value: read_state(state)? })
    }
}

/// The memory of a kept value, in bytes. A borrowed value takes none.
fn kept_bytes(value: Option<&Operand<'_>>) -> usize {
    match value {
        Some(Operand::Made(value)) => size_of_value(value),
        _ => 0,
    }
}

/// Writes an optional value as a state: `[]` for none, `[[value]]` for a value, `[[]]` for a missing one.
fn write_state(value: Option<&Operand<'_>>) -> Value {
    Value::fixed_array(
        value.map(|value| Value::fixed_array(value.clone().into_option().into_iter().collect())).into_iter().collect(),
    )
}

fn read_state<'a>(state: Value) -> Result<Option<Operand<'a>>> {
    let mut parts = Parts::of(&state)?;
    Ok(match parts.next() {
        Err(_) => None,
        Ok(value) => Some(Parts::of(value)?.next().map_or(Operand::Missing, |value| Operand::Made(value.clone()))),
    })
}
