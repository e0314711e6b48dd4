//! Exact sums of numbers. The result does not depend on the order of the numbers, nor on how they are divided among states that are merged.

use super::state::{Parts, damaged};
use crate::error::Result;
use crate::values::document::number::{Decimal, Number};
use crate::values::document::value::Value;
use bigdecimal::num_bigint::{BigInt, Sign};
use bigdecimal::{BigDecimal, ToPrimitive};

/// 2^900. Doubles of at least this magnitude are summed separately, multiplied by [`SCALE`], so that no partial sum overflows.
const LARGE: f64 = f64::from_bits((1023 + 900) << 52);
/// 2^-200.
const SCALE: f64 = f64::from_bits((1023 - 200) << 52);
/// The binary logarithm of `1 / SCALE`.
const SCALE_BITS: i64 = 200;
/// Every double is an integer times 2^-1074, the least positive double.
const LEAST_BITS: i64 = 1074;

/// An exact sum of finite doubles: doubles whose digits do not overlap, the least first. Source: Shewchuk,
/// "Adaptive Precision Floating-Point Arithmetic" (1997), grow-expansion.
#[derive(Clone, Debug, Default)]
struct Expansion(Vec<f64>);

/// The largest number of parts of an expansion. Beyond it, the expansion is compressed: doubles of very different magnitudes can yield a
/// part for nearly every binary digit.
const MAX_PARTS: usize = 64;

impl Expansion {
    /// Adds a double.
    fn add(&mut self, value: f64) {
        self.grow(value);
        if self.0.len() > MAX_PARTS {
            self.compress();
        }
    }

    /// Rewrites the sum with fewer parts. Each part is the remaining sum rounded to a double, so it takes 53 binary digits from the sum:
    /// 2,100 digits make at most 40 parts.
    fn compress(&mut self) {
        let mut parts = Vec::new();
        loop {
            let part = self.rounded();
            // Only the parts of a forged state have an infinite sum.
            if part == 0.0 || !part.is_finite() {
                break;
            }
            self.grow(-part);
            parts.push(part);
        }
        parts.reverse();
        self.0 = parts;
    }

    fn grow(&mut self, mut value: f64) {
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

    /// Returns the sum rounded to the nearest double, half to even.
    fn rounded(&self) -> f64 {
        let mut parts = self.0.iter().rev().copied();
        let Some(mut sum) = parts.next() else { return 0.0 };
        while let Some(part) = parts.next() {
            let (next, lost) = two_sum(sum, part);
            sum = next;
            if lost == 0.0 {
                continue;
            }
            // If `lost` is half of the last digit, the next part decides the rounding.
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

/// Returns the rounded sum and the rounding error.
fn two_sum(a: f64, b: f64) -> (f64, f64) {
    let sum = a + b;
    let part = sum - a;
    (sum, (a - (sum - part)) + (b - part))
}

/// The lower 48 bits of an integer. A double holds 53 bits exactly, so an integer is added in parts of 48.
const LOW_48: i128 = (1 << 48) - 1;

/// 2^exponent, for an exponent of at least -1074; infinity if it is beyond the range of doubles.
fn power_of_two(exponent: i64) -> f64 {
    match exponent {
        1024.. => f64::INFINITY,
        -1022..=1023 => f64::from_bits((exponent + 1023).unsigned_abs() << 52),
        _ => f64::from_bits(1 << (exponent + LEAST_BITS)),
    }
}

/// Returns a finite double times 2^scale, in units of 2^-1074.
fn exact(double: f64, scale: i64) -> BigInt {
    let bits = double.to_bits();
    let (exponent, fraction) = ((bits >> 52 & 0x7FF).cast_signed(), bits & ((1 << 52) - 1));
    let (digits, shift) = if exponent == 0 { (fraction, 0) } else { (fraction | 1 << 52, exponent - 1) };
    let magnitude = BigInt::from(digits) << (shift + scale);
    if double.is_sign_negative() { -magnitude } else { magnitude }
}

/// Returns a number in units of 2^-1074 rounded to the nearest double, half to even.
fn rounded_exactly(number: &BigInt) -> f64 {
    let magnitude = number.magnitude();
    let shift = magnitude.bits().saturating_sub(64);
    // The last of the 64 bits is set if any of the dropped bits is, so that the conversion to a double, which is the only rounding, is
    // correct.
    let is_more = magnitude.trailing_zeros().is_some_and(|zeros| zeros < shift);
    let leading = (magnitude >> shift).to_u64().unwrap_or(u64::MAX) | u64::from(is_more);
    let rounded = leading.to_f64().unwrap_or(f64::NAN) * power_of_two(shift.cast_signed() - LEAST_BITS);
    if number.sign() == Sign::Minus { -rounded } else { rounded }
}

/// A sum of numbers. It is a decimal if any number is one, else a double if any is one or a long would overflow, else a long if any is one
/// or an int would overflow, else an int.
#[derive(Clone, Debug, Default)]
pub(crate) struct Sum {
    integers: i128,
    doubles: Expansion,
    /// doubles from [`LARGE`] on, multiplied by [`SCALE`]
    large: Expansion,
    /// the sum of NaN and infinite doubles; 0 if there are none
    special: f64,
    has_double: bool,
    /// how many of the numbers are longs
    longs: u64,
    /// the exact sum of finite decimals; None if there are none
    decimal: Option<Box<BigDecimal>>,
    /// the sum of the infinite decimals and NaN, as doubles; None if there are none
    special_decimal: Option<f64>,
}

impl Sum {
    /// Adds a number.
    pub(crate) fn add(&mut self, number: &Number) {
        match number {
            Number::Int(value, _) => {
                self.integers += i128::from(*value);
                self.longs += u64::from(number.is_long());
            }
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

    /// Subtracts a finite number that was added before.
    pub(crate) fn subtract(&mut self, number: &Number) {
        match number {
            Number::Int(value, _) => {
                self.integers -= i128::from(*value);
                self.longs = self.longs.saturating_sub(u64::from(number.is_long()));
            }
            Number::Double(value) => self.add_double(-value),
            Number::Decimal(Decimal::Finite(value)) => self.add_decimal(&-&**value),
            Number::Decimal(_) => {}
        }
    }

    /// Sets, after subtractions, whether doubles and decimals remain, on which the type of the total depends. If none remain, their exact
    /// sum is zero, so the total does not change otherwise.
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
        self.longs = self.longs.saturating_add(other.longs);
        if let Some(decimal) = other.decimal {
            self.add_decimal(&decimal);
        }
        if let Some(special) = other.special_decimal {
            self.special_decimal = Some(self.special_decimal.unwrap_or(0.0) + special);
        }
    }

    /// Returns the approximate memory of the digits, in bytes: a sum of decimals may have more than 12,000 digits.
    pub(super) fn digit_bytes(&self) -> usize {
        let doubles = self.doubles.0.capacity() + self.large.0.capacity();
        let decimal = self.decimal.as_deref().map_or(0, |decimal| {
            size_of::<BigDecimal>() + usize::try_from(decimal.as_bigint_and_scale().0.bits() / 8).unwrap_or(usize::MAX)
        });
        doubles * size_of::<f64>() + decimal
    }

    /// Returns the sum, which is rounded only here.
    pub(crate) fn total(&self) -> Number {
        let has_decimal = self.decimal.is_some() || self.special_decimal.is_some();
        if !self.has_double
            && !has_decimal
            && let Ok(long) = i64::try_from(self.integers)
        {
            return Number::integer(long, self.longs > 0);
        }
        if !has_decimal {
            return Number::Double(self.double(self.integers));
        }
        let special = self.special_decimal.unwrap_or(0.0) + self.special;
        if special != 0.0 {
            return Number::Decimal(Decimal::of_result(special));
        }
        let exact = self.decimal.as_deref().cloned().unwrap_or_default() + BigDecimal::from(self.integers);
        if !self.has_double {
            return Number::Decimal(Decimal::rounded(exact));
        }
        let doubles = self.double(0);
        if !doubles.is_finite() {
            return Number::Decimal(Decimal::of_result(doubles));
        }
        // The sum of doubles is added with twice the digits of a double, as in MongoDB.
        let mut rest = if self.large.0.is_empty() { self.doubles.clone() } else { Expansion::default() };
        if !rest.0.is_empty() {
            rest.add(-doubles);
        }
        Number::Decimal(Decimal::rounded(
            exact + Decimal::digits_of_f64(doubles) + Decimal::digits_of_f64(rest.rounded()),
        ))
    }

    /// The sum of doubles and integers, rounded.
    fn double(&self, integers: i128) -> f64 {
        if self.special != 0.0 {
            return self.special;
        }
        if integers == 0 && self.large.0.is_empty() {
            return self.doubles.rounded();
        }
        if !self.large.0.is_empty() {
            return rounded_exactly(&self.exact_doubles(integers));
        }
        let mut doubles = self.doubles.clone();
        for (part, shift) in [(integers >> 96, 96), (integers >> 48 & LOW_48, 48), (integers & LOW_48, 0)] {
            doubles.add(part.to_f64().unwrap_or(f64::NAN) * power_of_two(shift));
        }
        doubles.rounded()
    }

    /// The sum of doubles and integers, in units of 2^-1074. Sums with large doubles are rare, so this may be slow.
    fn exact_doubles(&self, integers: i128) -> BigInt {
        let parts = |expansion: &Expansion, scale| expansion.0.iter().map(|part| exact(*part, scale)).sum::<BigInt>();
        (BigInt::from(integers) << LEAST_BITS) + parts(&self.doubles, 0) + parts(&self.large, SCALE_BITS)
    }

    /// The state, as [`from_state`](Self::from_state) reads it.
    pub(crate) fn state(&self) -> Value {
        let whole = |value: i64| Value::Number(Number::int(value));
        // A double is written as its bits, which preserves it exactly.
        let bits = |value: f64| whole(value.to_bits().cast_signed());
        let parts = |expansion: &Expansion| Value::fixed_array(expansion.0.iter().map(|part| bits(*part)).collect());
        let decimal = self.decimal.as_deref().map_or(Value::Null, |decimal| {
            let (digits, scale) = decimal.as_bigint_and_scale();
            Value::fixed_array(vec![Value::String(digits.to_string()), whole(scale)])
        });
        #[allow(clippy::cast_possible_truncation)] // halves of 128 bits
        Value::fixed_array(vec![
            whole((self.integers >> 64) as i64),
            whole(self.integers as i64),
            parts(&self.doubles),
            parts(&self.large),
            bits(self.special),
            Value::Bool(self.has_double),
            decimal,
            self.special_decimal.map_or(Value::Null, bits),
            Value::Bool(self.longs > 0),
        ])
    }

    /// Reads what [`state`](Self::state) wrote.
    ///
    /// # Errors
    /// `BadValue` if the value cannot be a state.
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
            // States from nodes of an earlier release lack this part.
            longs: match parts.next() {
                Ok(Value::Bool(has_long)) => u64::from(*has_long),
                Ok(_) => return Err(damaged()),
                Err(_) => 0,
            },
        })
    }
}

fn bits_of(value: &Value) -> Result<f64> {
    match value {
        Value::Number(Number::Int(bits, _)) => Ok(f64::from_bits(bits.cast_unsigned())),
        _ => Err(damaged()),
    }
}

/// The largest number of parts in a state: in states from shards of an earlier release, each part may have a single binary digit.
const MAX_STATE_PARTS: usize = 2_200;

fn expansion(state: &Value) -> Result<Expansion> {
    let Value::Array(parts) = state else { return Err(damaged()) };
    if parts.len() > MAX_STATE_PARTS {
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

/// The largest number of digits of a sum of decimals, and the largest absolute value of its scale.
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
            matches!(sum(&[Number::int(i64::MAX), Number::int(i64::MAX), Number::int(i64::MIN)]).total(), Number::Int(value, _) if value == i64::MAX - 1)
        );
        assert_eq!(double(sum(&[Number::int(i64::MAX), Number::int(i64::MAX)]).total()), 2.0f64.powi(64));
    }

    /// The sum by exact decimal arithmetic, rounded as Rust rounds the text of a number.
    fn expected(numbers: &[Number]) -> f64 {
        let exact = |number: &Number| match number {
            Number::Int(value, _) => BigDecimal::from(*value),
            Number::Double(value) => BigDecimal::try_from(*value).unwrap(),
            Number::Decimal(_) => unreachable!("no decimals"),
        };
        numbers.iter().map(exact).sum::<BigDecimal>().to_string().parse().unwrap()
    }

    fn power(exponent: i64) -> Number {
        Number::Double(power_of_two(exponent))
    }

    #[test]
    fn a_sum_is_a_long_while_it_has_one() {
        let mut sum = sum(&[Number::long(1), Number::int(2), Number::long(3)]);
        for (subtracted, expected) in [(1, "long"), (3, "int")] {
            sum.subtract(&Number::long(subtracted));
            assert_eq!(sum.total().type_name(), expected);
        }
    }

    /// Numbers far below the last digit of a large sum decide how a tie is rounded, and remain if the large numbers cancel each other.
    #[test]
    fn small_parts_count_beside_large_ones() {
        let negative = |exponent| Number::Double(-power_of_two(exponent));
        let cases = [
            vec![power(1000), power(947), power(-1000)],
            vec![power(1000), power(947), negative(-1074)],
            vec![power(1000), power(948), power(947), negative(-800)],
            vec![power(900), negative(899), negative(899), power(-800)],
            vec![power(900), negative(899), negative(899), power(-1074), power(-1074), power(-1074)],
            vec![power(1023), power(1023)],
            vec![power(1023), power(1023), negative(970)],
            vec![power(1023), power(1023), negative(969)],
            vec![power(1023), power(1023), negative(969), negative(-1074)],
            vec![power(901), negative(900), Number::int(i64::MIN), Number::int(3)],
        ];
        for numbers in cases {
            let (total, expected) = (double(sum(&numbers).total()), expected(&numbers));
            assert_eq!(total.to_bits(), expected.to_bits(), "{numbers:?}: {total} instead of {expected}");
        }
    }

    /// A sum of many longs has more digits than two doubles.
    #[test]
    fn sums_of_integers_are_exact_beyond_85_bits() {
        let mut many = sum(&[Number::int(i64::MAX), Number::int(-5)]);
        for _ in 0..40 {
            many.merge(many.clone());
        }
        let mut exact = (i128::from(i64::MAX) - 5) << 40;
        assert_eq!(double(many.total()), exact as f64);
        // Cancels all but the last digits.
        many.add(&Number::Double(-power_of_two(103)));
        exact -= 1 << 103;
        assert_eq!(double(many.total()), exact as f64);
    }

    /// Powers of two that are `digits` binary digits apart, and between them large numbers that cancel each other.
    fn sparse(digits: i64) -> Vec<Number> {
        let parts = (-1000..830).step_by(digits as usize).flat_map(|exponent| {
            let (part, large) = (power_of_two(exponent), power_of_two(exponent + 52 + digits));
            [part, large, power_of_two(exponent + digits) - large]
        });
        parts.map(Number::Double).collect()
    }

    /// However many parts the digits make, the state is small and its sum is the same.
    #[test]
    fn sums_of_many_parts_are_exact() {
        for digits in [1, 2, 3, 10, 54] {
            let mut numbers = sparse(digits);
            let all = sum(&numbers);
            let mut merged = Sum::from_state(&all.state()).unwrap_or_else(|e| panic!("{digits}: {e:?}"));
            for sum in [&all, &merged] {
                assert_eq!(double(sum.total()), expected(&numbers), "{digits}");
                assert!(sum.doubles.0.len() <= MAX_PARTS, "{digits}: {} parts", sum.doubles.0.len());
            }
            // Subtracting the rounded total removes the leading digits; the remaining digits stay exact.
            for _ in 0..MAX_PARTS {
                let greatest = Number::Double(-double(merged.total()));
                merged.add(&greatest);
                numbers.push(greatest);
            }
            assert_eq!((double(merged.total()), expected(&numbers)), (0.0, 0.0), "{digits}");
        }
    }

    fn any_double() -> impl Strategy<Value = f64> {
        prop_oneof![any::<f64>().prop_filter("finite", |value| value.is_finite()), -1e3..1e3f64, Just(f64::INFINITY)]
    }

    /// Doubles of all magnitudes, whose digits often meet, and integers.
    fn any_finite() -> impl Strategy<Value = Number> {
        let exponent = prop_oneof![
            -1074..1024i64,
            Just(-1074i64),
            -1026..-1018i64,
            -815..-755i64,
            -60..60i64,
            845..905i64,
            965..975i64,
            1020..1024i64
        ];
        let digits = prop_oneof![Just(0u64), Just(1), Just((1 << 52) - 1), Just(1 << 51), 0..1u64 << 52];
        let double = (any::<bool>(), exponent, digits).prop_map(|(negative, exponent, digits)| {
            let power = power_of_two(exponent);
            let double = if power.is_normal() { f64::from_bits(power.to_bits() | digits) } else { power };
            Number::Double(if negative { -double } else { double })
        });
        prop_oneof![9 => double, 1 => any::<i64>().prop_map(Number::int)]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2_000))]

        #[test]
        fn sums_are_those_of_exact_arithmetic(mut numbers in prop::collection::vec(any_finite(), 0..12), again in any::<prop::sample::Index>()) {
            numbers.push(Number::Double(0.0));
            // Negates one number, so that large numbers cancel each other.
            if let Number::Double(value) = numbers[again.index(numbers.len())] {
                numbers.push(Number::Double(-value));
            }
            let (total, expected) = (double(sum(&numbers).total()), expected(&numbers));
            // The text of a zero has no sign.
            prop_assert_eq!((total + 0.0).to_bits(), (expected + 0.0).to_bits(), "{} instead of {}", total, expected);
        }
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
