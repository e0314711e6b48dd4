//! States of window functions that are not accumulators of `$group`. Values can only be added: when the beginning of the window moves,
//! the state is computed again.

use super::tally::Tally;
use crate::error::{Result, ensure, error};
use crate::query::accumulator::Sum;
use crate::query::expression::{difference, product_of};
use crate::query::operand::Operand;
use crate::values::document::number::{Decimal, Number, quotient};
use crate::values::document::value::Value;

fn int(value: i64) -> Value {
    Value::Number(Number::int(value))
}

/// How documents with equal sort keys are counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ranking {
    /// `$rank`: equal keys share a rank, and a gap follows
    Gaps,
    /// `$denseRank`: equal keys share a rank, without gaps
    Dense,
    /// `$documentNumber`: each document has its own
    Each,
}

/// The rank of the last document added. Values are sort keys.
#[derive(Debug)]
pub(super) struct Rank {
    ranking: Ranking,
    last: Option<Value>,
    rank: i64,
    count: i64,
}

impl Rank {
    pub fn new(ranking: Ranking) -> Self {
        Self { ranking, last: None, rank: 0, count: 0 }
    }
}

impl Tally for Rank {
    fn add(&mut self, value: Operand<'_>) -> Result<()> {
        let key = value.into_value();
        self.count += 1;
        let is_equal = self.last.as_ref() == Some(&key);
        self.rank = match self.ranking {
            Ranking::Each => self.count,
            _ if is_equal => self.rank,
            Ranking::Gaps => self.count,
            Ranking::Dense => self.rank + 1,
        };
        self.last = Some(key);
        Ok(())
    }

    fn result(&self) -> Result<Value> {
        Ok(int(self.rank))
    }
}

/// `$locf`: the last value that is not null or missing.
#[derive(Debug)]
pub(super) struct LastKnown(pub Value);

impl Tally for LastKnown {
    fn add(&mut self, value: Operand<'_>) -> Result<()> {
        if !value.is_nullish() {
            self.0 = value.into_value();
        }
        Ok(())
    }

    fn result(&self) -> Result<Value> {
        Ok(self.0.clone())
    }
}

/// `$expMovingAvg`: `alpha` × number + (1 − `alpha`) × the average before. It is computed in decimals, as in MongoDB.
#[derive(Debug)]
pub(super) struct ExponentialAverage {
    alpha: Number,
    rest: Number,
    average: Option<Number>,
    has_decimal: bool,
}

impl ExponentialAverage {
    pub fn new(alpha: &Number) -> Result<Self> {
        let alpha = Number::Decimal(alpha.to_decimal());
        let rest = difference(&Number::int(1), &alpha)?;
        Ok(Self { alpha, rest, average: None, has_decimal: false })
    }
}

impl Tally for ExponentialAverage {
    fn add(&mut self, value: Operand<'_>) -> Result<()> {
        let Some(number) = value.number() else { return Ok(()) };
        self.has_decimal |= matches!(number, Number::Decimal(_));
        let number = Number::Decimal(number.to_decimal());
        self.average = Some(match &self.average {
            None => number,
            Some(average) => number.multiply(&self.alpha)?.add(&average.multiply(&self.rest)?)?,
        });
        Ok(())
    }

    fn result(&self) -> Result<Value> {
        Ok(match &self.average {
            None => Value::Null,
            Some(average) if self.has_decimal => Value::Number(average.clone()),
            Some(average) => Value::Number(Number::Double(average.to_f64())),
        })
    }
}

/// `$covariancePop` or (`is_sample`) `$covarianceSamp` of pairs of numbers, by Welford's method. Other values are ignored.
#[derive(Debug, Default)]
pub(super) struct Covariance {
    is_sample: bool,
    count: i64,
    x: Sum,
    y: Sum,
    /// the sum of the products of deviations from the means
    products: Sum,
}

impl Covariance {
    pub fn new(is_sample: bool) -> Self {
        Self { is_sample, ..Self::default() }
    }
}

/// Returns the numbers of a pair; None for other values.
fn pair(value: Operand<'_>) -> Option<(Number, Number)> {
    match value.into_items()?.as_slice() {
        [x, y] => Some((x.number()?, y.number()?)),
        _ => None,
    }
}

fn is_finite(number: &Number) -> bool {
    match number {
        Number::Int(..) | Number::Decimal(Decimal::Finite(_)) => true,
        number => number.to_f64().is_finite(),
    }
}

/// Returns what a pair with NaN or an infinity adds to the sum.
fn not_finite(x: &Number, y: &Number) -> Number {
    let special = |number: &Number| if is_finite(number) { 0.0 } else { number.to_f64() };
    let sum = special(x) + special(y);
    match (x, y) {
        (Number::Decimal(_), _) | (_, Number::Decimal(_)) => Number::Decimal(Decimal::of_result(sum)),
        _ => Number::Double(sum),
    }
}

impl Tally for Covariance {
    fn add(&mut self, value: Operand<'_>) -> Result<()> {
        let Some((x, y)) = pair(value) else { return Ok(()) };
        if !is_finite(&x) || !is_finite(&y) {
            self.products.add(&not_finite(&x, &y));
            return Ok(());
        }
        let before = self.count;
        let mean_x = quotient(&self.x.total(), &Number::int(before.max(1)));
        self.count += 1;
        self.x.add(&x);
        self.y.add(&y);
        let mean_y = quotient(&self.y.total(), &Number::int(self.count));
        // The first pair has no deviation from the mean.
        if before > 0 {
            self.products.add(&product_of(&difference(&x, &mean_x)?, &difference(&y, &mean_y)?)?);
        }
        Ok(())
    }

    fn result(&self) -> Result<Value> {
        let divisor = self.count - i64::from(self.is_sample);
        Ok(match (self.count, divisor) {
            (_, ..=0) => Value::Null,
            (1, _) => Value::Number(Number::Double(0.0)),
            _ => Value::Number(quotient(&self.products.total(), &Number::int(divisor))),
        })
    }
}

/// `$integral`, by the trapezoidal rule. Values are pairs of a position (a date or a number) and a number.
#[derive(Debug, Default)]
pub(super) struct Integral {
    /// the unit in milliseconds, if positions are dates
    unit: Option<i64>,
    last: Option<(Number, Number)>,
    sum: Sum,
    has_nan: bool,
}

impl Integral {
    pub fn new(unit: Option<i64>) -> Self {
        Self { unit, ..Self::default() }
    }
}

impl Tally for Integral {
    fn add(&mut self, value: Operand<'_>) -> Result<()> {
        let (position, number) = match value.into_items().as_deref() {
            Some([position, number]) => (position.number().ok_or(position.date()), number.number()),
            _ => (Err(None), None),
        };
        let (position, number) = match (position, number) {
            (Ok(position), Some(number)) => {
                ensure!(self.unit.is_none(), 5423901, "$integral with 'unit' expects the sortBy field to be a Date");
                (position, number)
            }
            (Err(Some(millis)), Some(number)) => {
                let has_unit = self.unit.is_some();
                ensure!(has_unit, 5423902, "$integral (with no 'unit') expects the sortBy field to be numeric");
                (Number::int(millis), number)
            }
            _ => {
                return Err(error!(
                    5423900,
                    "The input value of $integral must be numeric, and the sortBy field numeric or a date"
                ));
            }
        };
        self.has_nan |= position.is_nan() || number.is_nan();
        if let Some((last_position, last_number)) = &self.last {
            let mut heights = Sum::default();
            heights.add(&number);
            heights.add(last_number);
            let area = product_of(&heights.total(), &difference(&position, last_position)?)?;
            if !position.is_nan() && !last_position.is_nan() && !number.is_nan() && !last_number.is_nan() {
                self.sum.add(&quotient(&area, &Number::Double(2.0)));
            }
        }
        self.last = Some((position, number));
        Ok(())
    }

    fn result(&self) -> Result<Value> {
        if self.last.is_none() {
            return Ok(Value::Null);
        }
        let total = match (self.has_nan, self.unit) {
            (true, _) => Number::Double(f64::NAN),
            (false, None) => self.sum.total(),
            (false, Some(unit)) => quotient(&self.sum.total(), &Number::int(unit)),
        };
        Ok(Value::Number(total))
    }
}
