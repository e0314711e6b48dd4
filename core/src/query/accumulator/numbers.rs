//! Accumulators of numbers, which ignore other values, and `$count`.

use super::state::{Accumulator, Parts, damaged};
use super::sum::Sum;
use crate::error::Result;
use crate::query::operand::Operand;
use crate::values::document::number::{Number, quotient};
use crate::values::document::value::Value;
use crate::values::order::Strings;

impl<'a> Accumulator<'a> for Sum {
    fn add_lent(&mut self, value: &Operand<'_>) -> bool {
        if let Some(number) = value.number() {
            Sum::add(self, &number);
        }
        true
    }

    fn add(&mut self, value: Operand<'a>, _: Strings<'_>) -> Result<()> {
        self.add_lent(&value);
        Ok(())
    }

    fn merge(&mut self, later: Self, _: Strings<'_>) -> Result<()> {
        Sum::merge(self, later);
        Ok(())
    }

    fn finish(self) -> Operand<'a> {
        Operand::number_of(self.total())
    }

    fn bytes(&self) -> usize {
        self.digit_bytes()
    }

    fn state(&self) -> Value {
        Sum::state(self)
    }

    fn from_state(state: Value, _: Strings<'_>) -> Result<Self> {
        Sum::from_state(&state)
    }
}

fn int(value: i64) -> Value {
    Value::Number(Number::int(value))
}

/// Reads the number of values from a state; an error if it is negative.
fn count(parts: &mut Parts<'_>) -> Result<i64> {
    parts.int().and_then(|count| if count < 0 { Err(damaged()) } else { Ok(count) })
}

/// The average; null if there are no numbers.
#[derive(Clone, Debug, Default)]
pub(crate) struct Average {
    sum: Sum,
    count: i64,
}

impl<'a> Accumulator<'a> for Average {
    fn add_lent(&mut self, value: &Operand<'_>) -> bool {
        if let Some(number) = value.number() {
            self.sum.add(&number);
            self.count += 1;
        }
        true
    }

    fn add(&mut self, value: Operand<'a>, _: Strings<'_>) -> Result<()> {
        self.add_lent(&value);
        Ok(())
    }

    fn merge(&mut self, later: Self, _: Strings<'_>) -> Result<()> {
        self.sum.merge(later.sum);
        self.count = self.count.saturating_add(later.count);
        Ok(())
    }

    fn finish(self) -> Operand<'a> {
        match self.count {
            0 => Operand::NULL,
            count => Operand::number_of(quotient(&self.sum.total(), &Number::int(count))),
        }
    }

    fn bytes(&self) -> usize {
        self.sum.digit_bytes()
    }

    fn state(&self) -> Value {
        Value::fixed_array(vec![int(self.count), self.sum.state()])
    }

    fn from_state(state: Value, _: Strings<'_>) -> Result<Self> {
        let mut parts = Parts::of(&state)?;
        Ok(Self { count: count(&mut parts)?, sum: Sum::from_state(parts.next()?)? })
    }
}

/// The standard deviation of a population, or (`SAMPLE`) of a sample, by Welford's method. States are merged by Chan's formula, so
/// the last digits depend on how the values are divided among states, as in MongoDB.
#[derive(Clone, Debug, Default)]
pub(crate) struct Deviation<const SAMPLE: bool> {
    count: i64,
    mean: f64,
    /// the sum of squared deviations from the mean
    squares: f64,
}

impl<'a, const SAMPLE: bool> Accumulator<'a> for Deviation<SAMPLE> {
    fn add_lent(&mut self, value: &Operand<'_>) -> bool {
        if let Some(number) = value.number() {
            let value = number.to_f64();
            self.count += 1;
            let delta = value - self.mean;
            self.mean += delta / self.count as f64;
            self.squares += delta * (value - self.mean);
        }
        true
    }

    fn add(&mut self, value: Operand<'a>, _: Strings<'_>) -> Result<()> {
        self.add_lent(&value);
        Ok(())
    }

    fn merge(&mut self, later: Self, _: Strings<'_>) -> Result<()> {
        if self.count == 0 {
            *self = later;
        } else if later.count > 0 {
            let (own, other) = (self.count as f64, later.count as f64);
            let delta = later.mean - self.mean;
            self.count = self.count.saturating_add(later.count);
            self.mean += delta * other / (own + other);
            // Divides before it multiplies: delta² · own · other can overflow although the term does not.
            self.squares += later.squares + delta * (delta * (own / (own + other) * other));
        }
        Ok(())
    }

    fn finish(self) -> Operand<'a> {
        match self.count - i64::from(SAMPLE) {
            ..=0 => Operand::NULL,
            divisor => Operand::double((self.squares / divisor as f64).sqrt()),
        }
    }

    fn state(&self) -> Value {
        let bits = |value: f64| int(value.to_bits().cast_signed());
        Value::fixed_array(vec![int(self.count), bits(self.mean), bits(self.squares)])
    }

    fn from_state(state: Value, _: Strings<'_>) -> Result<Self> {
        let mut parts = Parts::of(&state)?;
        Ok(Self { count: count(&mut parts)?, mean: parts.double()?, squares: parts.double()? })
    }
}

/// The number of values of any type, including missing ones.
#[derive(Clone, Debug, Default)]
pub(crate) struct Count(i64);

impl<'a> Accumulator<'a> for Count {
    fn add(&mut self, _: Operand<'a>, _: Strings<'_>) -> Result<()> {
        self.0 += 1;
        Ok(())
    }

    fn merge(&mut self, later: Self, _: Strings<'_>) -> Result<()> {
        self.0 = self.0.saturating_add(later.0);
        Ok(())
    }

    fn finish(self) -> Operand<'a> {
        Operand::int(self.0)
    }

    fn state(&self) -> Value {
        Value::fixed_array(vec![int(self.0)])
    }

    fn from_state(state: Value, _: Strings<'_>) -> Result<Self> {
        Ok(Self(count(&mut Parts::of(&state)?)?))
    }
}
