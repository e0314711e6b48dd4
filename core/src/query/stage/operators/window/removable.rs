//! States from which the first value can be removed, so that a window need not be read again when it moves.

use super::tally::Tally;
use crate::budget;
use crate::error::Result;
use crate::query::accumulator::{Sum, grow_by, size_of_value};
use crate::query::operand::Operand;
use crate::values::collation::Collator;
use crate::values::document::number::{Decimal, Number, quotient};
use crate::values::document::value::Value;
use std::collections::VecDeque;
use std::sync::Arc;

/// `$sum` and (`AVERAGE`) `$avg`. The sum of finite numbers is exact, so removing a number leaves no rounding error. NaN and
/// infinities, which cannot be subtracted, are counted.
#[derive(Debug, Default)]
pub(super) struct MovingSum<const AVERAGE: bool> {
    finite: Sum,
    /// how many values in the window are numbers
    count: i64,
    doubles: i64,
    decimals: i64,
    nans: i64,
    /// how many values are negative infinities, and how many are positive ones
    infinities: [i64; 2],
}

impl<const AVERAGE: bool> MovingSum<AVERAGE> {
    /// Counts a number that is added (`by` 1) or removed (-1); true if it is finite.
    fn count(&mut self, number: &Number, by: i64) -> bool {
        self.count += by;
        match number {
            Number::Int(..) => return true,
            Number::Double(_) => self.doubles += by,
            Number::Decimal(_) => self.decimals += by,
        }
        let value = match number {
            Number::Decimal(Decimal::Finite(_)) => return true,
            number => number.to_f64(),
        };
        if value.is_nan() {
            self.nans += by;
        } else if value.is_infinite() {
            self.infinities[usize::from(value > 0.0)] += by;
        }
        value.is_finite()
    }

    fn total(&self) -> Number {
        let special = match (self.nans, self.infinities) {
            (0, [0, 0]) => return self.finite.total(),
            (0, [0, _]) => f64::INFINITY,
            (0, [_, 0]) => f64::NEG_INFINITY,
            _ => f64::NAN,
        };
        if self.decimals > 0 { Number::Decimal(Decimal::of_result(special)) } else { Number::Double(special) }
    }
}

impl<const AVERAGE: bool> Tally for MovingSum<AVERAGE> {
    fn add(&mut self, value: Operand<'_>) -> Result<()> {
        if let Some(number) = value.number()
            && self.count(&number, 1)
        {
            self.finite.add(&number);
        }
        Ok(())
    }

    fn remove(&mut self, value: Operand<'_>) {
        let Some(number) = value.number() else { return };
        if self.count(&number, -1) {
            self.finite.subtract(&number);
        }
        self.finite.set_types(self.doubles > 0, self.decimals > 0);
    }

    fn result(&self) -> Result<Value> {
        Ok(match (AVERAGE, self.count) {
            (false, _) => Value::Number(self.total()),
            (true, 0) => Value::Null,
            (true, count) => Value::Number(quotient(&self.total(), &Number::int(count))),
        })
    }
}

/// `$count`.
#[derive(Debug, Default)]
pub(super) struct MovingCount(i64);

impl Tally for MovingCount {
    fn add(&mut self, _: Operand<'_>) -> Result<()> {
        self.0 += 1;
        Ok(())
    }

    fn remove(&mut self, _: Operand<'_>) {
        self.0 -= 1;
    }

    fn result(&self) -> Result<Value> {
        Ok(Value::Number(Number::int(self.0)))
    }
}

/// `$min` or (`LARGEST`) `$max`. A value is dropped when a better one is added, as it can no longer be the best of the window.
#[derive(Debug)]
pub(super) struct MovingExtreme<const LARGEST: bool> {
    /// the remaining values, best first, each with its ordinal among those added
    candidates: VecDeque<(u64, Value)>,
    /// how many values were added, and how many were removed
    added: u64,
    removed: u64,
    bytes: usize,
    collator: Option<Arc<Collator>>,
}

impl<const LARGEST: bool> MovingExtreme<LARGEST> {
    pub fn new(collator: Option<Arc<Collator>>) -> Self {
        Self { candidates: VecDeque::new(), added: 0, removed: 0, bytes: 0, collator }
    }

    /// True if a value is better than another one.
    fn is_better(&self, value: &Operand<'_>, other: &Value) -> bool {
        let order = value.compare(&Operand::Given(other), self.collator.as_deref());
        if LARGEST { order.is_gt() } else { order.is_lt() }
    }
}

impl<const LARGEST: bool> Tally for MovingExtreme<LARGEST> {
    fn add(&mut self, value: Operand<'_>) -> Result<()> {
        self.added += 1;
        if value.is_nullish() {
            return Ok(());
        }
        while let Some((_, last)) = self.candidates.back()
            && self.is_better(&value, last)
        {
            budget::step();
            self.bytes -= self.candidates.pop_back().map_or(0, |(_, value)| size_of_value(&value));
        }
        let value = budget::copying(|| value.into_value());
        grow_by(&mut self.bytes, size_of_value(&value), if LARGEST { "$max" } else { "$min" })?;
        self.candidates.push_back((self.added, value));
        Ok(())
    }

    fn remove(&mut self, _: Operand<'_>) {
        self.removed += 1;
        if self.candidates.front().is_some_and(|(number, _)| *number <= self.removed) {
            self.bytes -= self.candidates.pop_front().map_or(0, |(_, value)| size_of_value(&value));
        }
    }

    fn result(&self) -> Result<Value> {
        Ok(self.candidates.front().map_or(Value::Null, |(_, value)| value.clone()))
    }
}
