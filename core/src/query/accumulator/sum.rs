//! Exact sums, so that a sum does not depend on the order of what is added, nor on how it was divided.

use super::state::{Parts, damaged};
use crate::error::Result;
use crate::values::document::number::{Decimal, Number};
use crate::values::document::value::Value;
use bigdecimal::num_bigint::BigInt;
use bigdecimal::{BigDecimal, ToPrimitive};

/// Doubles from here on are added apart, scaled down, so that no partial sum overflows: 2^900.
const LARGE: f64 = f64::from_bits((1023 + 900) << 52);
/// 2^-200.
const SCALE: f64 = f64::from_bits((1023 - 200) << 52);
/// The least double that [`SCALE`] leaves exact, as it is no multiple of anything below 2^-1022: 2^-760.
const LEAST_SCALED: f64 = f64::from_bits((1023 - 760) << 52);

/// The sum of finite doubles without any rounding, as doubles whose digits do not overlap, the least first. Source: Shewchuk,
/// "Adaptive Precision Floating-Point Arithmetic" (1997), grow-expansion.
#[derive(Clone, Debug, Default)]
struct Expansion(Vec<f64>);

impl Expansion {
    /// Adds a double.
    fn add(&mut self, mut value: f64) {
        let mut kept = 0;
        for at in 0..self.0.len() {
            let (sum, lost) = two_sum(value, self.0[at]);
            if lost != 0.0 {
                self.0[kept] = lost;
                kept += 1;
            }
            value = sum;
        }
        self.0.truncate(kept);
        if value != 0.0 {
            self.0.push(value);
        }
    }

    /// The double nearest to the sum, half to even.
    fn rounded(&self) -> f64 {
        let mut parts = self.0.iter().rev().copied();
        let Some(mut sum) = parts.next() else { return 0.0 };
        while let Some(part) = parts.next() {
            let (next, lost) = two_sum(sum, part);
            sum = next;
            if lost == 0.0 {
                continue;
            }
            // What is below `lost` decides where `lost` is half of a last digit.
            if let Some(below) = parts.next()
                && (lost > 0.0) == (below > 0.0)
            {
                let (twice, up) = (lost * 2.0, sum + lost * 2.0);
                if twice == up - sum {
                    sum = up;
                }
            }
            break;
        }
        sum
    }
}

/// The rounded sum and what rounding took.
fn two_sum(a: f64, b: f64) -> (f64, f64) {
    let sum = a + b;
    let part = sum - a;
    (sum, (a - (sum - part)) + (b - part))
}

/// A sum of numbers: of integers alone a long if it fits one, with a double a double, with a decimal a decimal.
#[derive(Clone, Debug, Default)]
pub(crate) struct Sum {
    integers: i128,
    doubles: Expansion,
    /// large ones, scaled by [`SCALE`]
    large: Expansion,
    /// NaN and infinities
    special: f64,
    has_double: bool,
    /// exact, too
    decimal: Option<Box<BigDecimal>>,
    /// infinite decimals and NaN, as doubles add
    special_decimal: Option<f64>,
}

impl Sum {
    /// Adds a number.
    pub(crate) fn add(&mut self, number: &Number) {
        match number {
            Number::Int(value) => self.integers += i128::from(*value),
            Number::Double(value) => self.add_double(*value),
            Number::Decimal(Decimal::Finite(value)) => self.add_decimal(value),
            Number::Decimal(special) => {
                self.special_decimal = Some(self.special_decimal.unwrap_or(0.0) + special.to_f64());
            }
        }
    }

    fn add_double(&mut self, value: f64) {
        self.has_double = true;
        if !value.is_finite() {
            self.special += value;
        } else if value.abs() >= LARGE {
            self.large.add(value * SCALE);
        } else {
            self.doubles.add(value);
        }
    }

    fn add_decimal(&mut self, value: &BigDecimal) {
        self.decimal = Some(match self.decimal.take() {
            None => Box::new(value.clone()),
            Some(sum) => Box::new(*sum + value),
        });
    }

    /// Takes away a finite number that has been added.
    pub(crate) fn subtract(&mut self, number: &Number) {
        match number {
            Number::Int(value) => self.integers -= i128::from(*value),
            Number::Double(value) => self.add_double(-value),
            Number::Decimal(Decimal::Finite(value)) => self.add_decimal(&-&**value),
            Number::Decimal(_) => {}
        }
    }

    /// Says numbers of which types are left. As sums are exact, those of types that are not left are zero.
    pub(crate) fn set_types(&mut self, has_double: bool, has_decimal: bool) {
        self.has_double = has_double;
        self.decimal = self.decimal.take().filter(|_| has_decimal);
    }

    /// Adds another sum.
    pub(crate) fn merge(&mut self, other: Sum) {
        self.integers += other.integers;
        other.doubles.0.iter().for_each(|part| self.doubles.add(*part));
        other.large.0.iter().for_each(|part| self.large.add(*part));
        self.special += other.special;
        self.has_double |= other.has_double;
        if let Some(decimal) = other.decimal {
            self.add_decimal(&decimal);
        }
        if let Some(special) = other.special_decimal {
            self.special_decimal = Some(self.special_decimal.unwrap_or(0.0) + special);
        }
    }

    /// The sum, rounded once.
    pub(crate) fn total(&self) -> Number {
        let has_decimal = self.decimal.is_some() || self.special_decimal.is_some();
        if !self.has_double
            && !has_decimal
            && let Ok(long) = i64::try_from(self.integers)
        {
            return Number::Int(long);
        }
        if !has_decimal {
            return Number::Double(self.double(self.integers));
        }
        let special = self.special_decimal.unwrap_or(0.0) + self.special;
        if special != 0.0 {
            return Number::Decimal(Decimal::of_f64(special));
        }
        let exact = self.decimal.as_deref().cloned().unwrap_or_default() + BigDecimal::from(self.integers);
        // Doubles are rounded to a double first, and that to 15 digits, as any double that becomes a decimal.
        let doubles = if self.has_double {
            Decimal::of_f64(self.double(0))
        } else {
            return Number::Decimal(Decimal::rounded(exact));
        };
        Number::Decimal(match doubles {
            Decimal::Finite(doubles) => Decimal::rounded(exact + *doubles),
            special => special,
        })
    }

    /// The sum of doubles and integers, rounded.
    fn double(&self, integers: i128) -> f64 {
        if self.special != 0.0 {
            return self.special;
        }
        if integers == 0 && self.large.0.is_empty() {
            return self.doubles.rounded();
        }
        // A double holds 53 bits exactly, so an integer is added as two parts: its lower 32 bits, and the rest.
        let (high, low) = (integers >> 32 << 32, integers & 0xFFFF_FFFF);
        let mut doubles = self.doubles.clone();
        for part in [high.to_f64().unwrap_or(f64::NAN), low.to_f64().unwrap_or(f64::NAN)] {
            doubles.add(part);
        }
        if self.large.0.is_empty() {
            return doubles.rounded();
        }
        // What would lose digits is beyond any digit of a large sum.
        let mut all = self.large.clone();
        doubles.0.iter().filter(|part| part.abs() >= LEAST_SCALED).for_each(|part| all.add(part * SCALE));
        all.rounded() / SCALE
    }

    /// The state, as [`from_state`](Self::from_state) reads it.
    pub(crate) fn state(&self) -> Value {
        let whole = |value: i64| Value::Number(Number::Int(value));
        // Bits as an integer: every double stays what it is.
        let bits = |value: f64| whole(value.to_bits().cast_signed());
        let parts = |expansion: &Expansion| Value::Array(expansion.0.iter().map(|part| bits(*part)).collect());
        let decimal = self.decimal.as_deref().map_or(Value::Null, |decimal| {
            let (digits, scale) = decimal.as_bigint_and_scale();
            Value::Array(vec![Value::String(digits.to_string()), whole(scale)])
        });
        #[allow(clippy::cast_possible_truncation)] // halves of 128 bits
        Value::Array(vec![
            whole((self.integers >> 64) as i64),
            whole(self.integers as i64),
            parts(&self.doubles),
            parts(&self.large),
            bits(self.special),
            Value::Bool(self.has_double),
            decimal,
            self.special_decimal.map_or(Value::Null, bits),
        ])
    }

    /// Reads what [`state`](Self::state) wrote.
    ///
    /// # Errors
    /// `BadValue` for what it cannot have written.
    pub(crate) fn from_state(state: &Value) -> Result<Sum> {
        let mut parts = Parts::of(state)?;
        let (high, low) = (parts.int()?, parts.int()?);
        Ok(Sum {
            integers: i128::from(high) << 64 | i128::from(low.cast_unsigned()),
            doubles: expansion(parts.next()?)?,
            large: expansion(parts.next()?)?,
            special: parts.double()?,
            has_double: parts.bool()?,
            decimal: match parts.next()? {
                Value::Null => None,
                decimal => Some(Box::new(exact_decimal(decimal)?)),
            },
            special_decimal: match parts.next()? {
                Value::Null => None,
                bits => Some(bits_of(bits)?),
            },
        })
    }
}

fn bits_of(value: &Value) -> Result<f64> {
    match value {
        Value::Number(Number::Int(bits)) => Ok(f64::from_bits(bits.cast_unsigned())),
        _ => Err(damaged()),
    }
}

/// More parts than these no sum of doubles has: 2,100 binary digits in parts of 53, and some zeros between them.
const MAX_PARTS: usize = 64;

fn expansion(state: &Value) -> Result<Expansion> {
    let Value::Array(parts) = state else { return Err(damaged()) };
    if parts.len() > MAX_PARTS {
        return Err(damaged());
    }
    let mut sum = Expansion::default();
    for part in parts {
        let part = bits_of(part)?;
        if !part.is_finite() || part.abs() >= LARGE / SCALE {
            return Err(damaged());
        }
        sum.add(part);
    }
    Ok(sum)
}

/// No sum of decimals has more digits, on either side of the point.
const MAX_DIGITS: usize = 12_500;

fn exact_decimal(state: &Value) -> Result<BigDecimal> {
    let mut parts = Parts::of(state)?;
    let (digits, scale) = (parts.text()?, parts.int()?);
    if digits.len() > MAX_DIGITS || scale.unsigned_abs() > MAX_DIGITS as u64 {
        return Err(damaged());
    }
    Ok(BigDecimal::new(digits.parse::<BigInt>().map_err(|_| damaged())?, scale))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn sum(numbers: &[Number]) -> Sum {
        let mut sum = Sum::default();
        numbers.iter().for_each(|number| sum.add(number));
        sum
    }

    fn double(number: Number) -> f64 {
        match number {
            Number::Double(value) => value,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn sums_are_exact() {
        let doubles = |values: &[f64]| {
            double(sum(&values.iter().map(|value| Number::Double(*value)).collect::<Vec<_>>()).total())
        };
        assert_eq!(doubles(&[0.1, 0.2, 0.3]), 0.6);
        assert_eq!(doubles(&[1e16, 1.0, -1e16]), 1.0);
        assert_eq!(doubles(&[1e308, 1e308, -1e308]), 1e308);
        assert_eq!(doubles(&[1e308, 1e308]), f64::INFINITY);
        assert_eq!(doubles(&[1e308, -1e308, 1e-300]), 1e-300);
        assert_eq!(doubles(&[1.0, f64::EPSILON / 2.0, 1e-300]), 1.0 + f64::EPSILON);
        assert!(doubles(&[f64::INFINITY, f64::NEG_INFINITY]).is_nan());
        assert!(
            matches!(sum(&[Number::Int(i64::MAX), Number::Int(i64::MAX), Number::Int(i64::MIN)]).total(), Number::Int(value) if value == i64::MAX - 1)
        );
        assert_eq!(double(sum(&[Number::Int(i64::MAX), Number::Int(i64::MAX)]).total()), 2.0f64.powi(64));
    }

    fn any_double() -> impl Strategy<Value = f64> {
        prop_oneof![any::<f64>().prop_filter("finite", |value| value.is_finite()), -1e3..1e3f64, Just(f64::INFINITY)]
    }

    proptest! {
        #[test]
        fn the_order_does_not_matter(values in prop::collection::vec(any_double(), 0..40), seed in any::<u64>()) {
            let mut numbers: Vec<Number> = values.into_iter().map(Number::Double).collect();
            let once = sum(&numbers).total();
            fastrand::Rng::with_seed(seed).shuffle(&mut numbers);
            let (front, back) = numbers.split_at(numbers.len() / 2);
            let mut divided = sum(front);
            divided.merge(Sum::from_state(&sum(back).state()).unwrap());
            let again = divided.total();
            prop_assert_eq!(once.to_f64().to_bits(), again.to_f64().to_bits(), "{:?} {:?}", once, again);
        }
    }
}
