//! int, long, double and decimal: comparison by value, arithmetic with MongoDB's promotions.
//!
//! Comparison is exact: a double is compared by its binary value, not by its printed decimals. Numbers that round to the same double
//! are compared as `BigDecimal`.

use crate::error::{Kind, Result, error};
use bigdecimal::{BigDecimal, RoundingMode, Signed, ToPrimitive, Zero, num_bigint::BigInt};
use std::cmp::Ordering;
use std::fmt;
use std::num::NonZeroU64;

/// A number. A numeric of jsonb is `Int` if it has no decimals and fits 64 bits, otherwise `Double`. NaN and the infinities are `Double`,
/// too; `{"$numberDecimal": …}` is `Decimal`.
#[derive(Clone, Debug)]
pub enum Number {
    /// int or long
    Int(i64, Width),
    /// double
    Double(f64),
    /// decimal128
    Decimal(Decimal),
}

/// The type of an integer. Only results and documents show it: numbers of all types are compared by value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Width {
    /// int if the value fits 32 bits, else long
    BySize,
    /// long
    Long,
}

/// A decimal128's value; its exponent (trailing zeros) is kept for printing, and ignored in comparison. Negative zero
/// is read as zero.
#[derive(Clone, Debug)]
pub enum Decimal {
    /// a finite value
    Finite(Box<BigDecimal>),
    /// -Infinity or Infinity
    Infinity {
        /// true for -Infinity
        negative: bool,
    },
    /// NaN
    NaN,
}

/// Digits that a decimal128 holds.
const DECIMAL_DIGITS: usize = 34;
/// The least exponent of a decimal128's last digit.
const DECIMAL_MIN_EXPONENT: i64 = -6176;
/// The greatest exponent of a decimal128's last digit.
const DECIMAL_MAX_EXPONENT: i64 = 6111;
/// Digits of the largest 64-bit integer.
const I64_DIGITS: i64 = 19;
/// The number of digits that MongoDB keeps when it converts a double to a decimal.
const DOUBLE_TO_DECIMAL_DIGITS: usize = 15;

impl Decimal {
    /// Reads a decimal128 as Extended JSON writes it.
    ///
    /// # Errors
    /// `FailedToParse` for another text, and for more digits or a larger exponent than a decimal128 has.
    pub fn parse(text: &str) -> Result<Decimal> {
        parse_decimal(text).ok_or_else(|| {
            error!(Kind::FailedToParse, "Failed to parse string as decimal128: {text:?}")
                .with_hint("A decimal128 has at most 34 significant digits and an exponent from -6176 to 6111.")
        })
    }

    /// Reads a decimal128 with any number of digits, rounded half to even; None for another text, and for a value beyond all
    /// decimals or nearer to zero than all of them.
    pub(crate) fn parse_rounded(text: &str) -> Option<Decimal> {
        if let Some(decimal) = parse_decimal(text) {
            return Some(decimal);
        }
        let (negative, mut digits, mut exponent) = split_decimal(text)?;
        // Further digits are dropped, since the time to read an integer grows with the square of its length. If one of them is
        // not zero, a single 1 stands for all of them.
        if digits.len() > DECIMAL_DIGITS + 2 {
            let dropped = digits.split_off(DECIMAL_DIGITS + 2);
            exponent = exponent.saturating_add(i64::try_from(dropped.len()).ok()?);
            if dropped.iter().any(|digit| *digit != b'0') {
                digits.push(b'1');
                exponent = exponent.saturating_sub(1);
            }
        }
        let coefficient = BigInt::parse_bytes(&digits, 10)?;
        let value = BigDecimal::new(if negative { -coefficient } else { coefficient }, exponent.saturating_neg());
        let rounded = value.with_precision_round(NonZeroU64::new(DECIMAL_DIGITS as u64)?, RoundingMode::HalfEven);
        match rounded.fractional_digit_count() <= -DECIMAL_MIN_EXPONENT {
            true => Some(Decimal::rounded(rounded)).filter(|decimal| matches!(decimal, Decimal::Finite(_))),
            false => None,
        }
    }

    /// The number of a finite value's digits after the point; negative if it ends in zeros before the point that are not written.
    pub(crate) fn scale(&self) -> Option<i16> {
        match self {
            Decimal::Finite(value) => i16::try_from(value.fractional_digit_count()).ok(),
            _ => None,
        }
    }

    /// The nearest double.
    pub fn to_f64(&self) -> f64 {
        match self {
            Decimal::Finite(value) => {
                let (integer, scale) = value.as_bigint_and_scale();
                format!("{integer}e{}", scale.saturating_neg()).parse().unwrap_or(f64::NAN)
            }
            Decimal::Infinity { negative: true } => f64::NEG_INFINITY,
            Decimal::Infinity { negative: false } => f64::INFINITY,
            Decimal::NaN => f64::NAN,
        }
    }

    /// The nearest integer, half to even; None for NaN and what does not fit 64 bits.
    pub(crate) fn to_i64_rounded(&self) -> Option<i64> {
        let Decimal::Finite(value) = self else { return None };
        // The check prevents that a value with thousands of zeros is expanded.
        let fits = value.digits().cast_signed() - value.fractional_digit_count() <= I64_DIGITS;
        fits.then(|| value.with_scale_round(0, RoundingMode::HalfEven).to_i64()).flatten()
    }

    /// Converts a double to exactly 15 significant digits, as MongoDB does.
    pub(crate) fn of_f64(value: f64) -> Decimal {
        if !value.is_finite() {
            return if value.is_nan() { Decimal::NaN } else { Decimal::Infinity { negative: value < 0.0 } };
        }
        if value == 0.0 {
            return Decimal::Finite(Box::default());
        }
        parse_decimal(&format!("{:.*e}", DOUBLE_TO_DECIMAL_DIGITS - 1, value)).unwrap_or(Decimal::NaN)
    }

    /// Like [`of_f64`](Self::of_f64), without zeros at the end: for results.
    pub(crate) fn of_result(value: f64) -> Decimal {
        match Decimal::of_f64(value) {
            Decimal::Finite(value) => Decimal::Finite(Box::new(value.normalized())),
            special => special,
        }
    }

    /// The exact value of a finite double, rounded to 34 digits, as sums convert doubles.
    pub(crate) fn digits_of_f64(value: f64) -> BigDecimal {
        let exact = BigDecimal::try_from(value).unwrap_or_default();
        match NonZeroU64::new(DECIMAL_DIGITS as u64).filter(|digits| exact.digits() > digits.get()) {
            Some(digits) => exact.with_precision_round(digits, RoundingMode::HalfEven),
            None => shortest(exact),
        }
    }

    /// Rounds a result to a decimal128, half to even; too large a result becomes an infinity.
    pub(crate) fn rounded(value: BigDecimal) -> Decimal {
        // Rounded once, to the smaller number of digits: a subnormal decimal has fewer than 34.
        let excess = value.digits().saturating_sub(DECIMAL_DIGITS as u64).cast_signed();
        let scale = value.fractional_digit_count().saturating_sub(excess).min(-DECIMAL_MIN_EXPONENT);
        let value = if scale < value.fractional_digit_count() {
            value.with_scale_round(scale, RoundingMode::HalfEven)
        } else {
            value
        };
        let (coefficient, scale) = value.as_bigint_and_scale();
        let negative = coefficient.is_negative();
        // 9.99 may have become 10.00, whose last digit is a zero.
        let (coefficient, scale) = match value.digits() > DECIMAL_DIGITS as u64 {
            true => (coefficient.into_owned() / 10, scale.saturating_sub(1)),
            false => (coefficient.into_owned(), scale),
        };
        fit(coefficient, scale.saturating_neg()).unwrap_or(Decimal::Infinity { negative })
    }
}

/// Makes a decimal128 of a coefficient of at most 34 digits and an exponent; moves the exponent into range if that is exact.
fn fit(coefficient: BigInt, exponent: i64) -> Option<Decimal> {
    let (coefficient, exponent) = if coefficient.is_zero() {
        (coefficient, exponent.clamp(DECIMAL_MIN_EXPONENT, DECIMAL_MAX_EXPONENT))
    } else if exponent > DECIMAL_MAX_EXPONENT {
        let shift = usize::try_from(exponent - DECIMAL_MAX_EXPONENT).ok().filter(|shift| *shift < DECIMAL_DIGITS)?;
        let digits = coefficient.magnitude().to_string().len();
        if digits + shift > DECIMAL_DIGITS {
            return None;
        }
        (coefficient * BigInt::from(10).pow(shift as u32), DECIMAL_MAX_EXPONENT)
    } else if exponent < DECIMAL_MIN_EXPONENT {
        let shift = usize::try_from(DECIMAL_MIN_EXPONENT - exponent).ok().filter(|shift| *shift < DECIMAL_DIGITS)?;
        let power = BigInt::from(10).pow(shift as u32);
        if !(&coefficient % &power).is_zero() {
            return None;
        }
        (coefficient / power, DECIMAL_MIN_EXPONENT)
    } else {
        (coefficient, exponent)
    };
    Some(Decimal::Finite(Box::new(BigDecimal::new(coefficient, -exponent))))
}

/// Splits off the sign of a number.
fn split_sign(text: &str) -> (bool, &str) {
    match text.as_bytes().first() {
        Some(b'-') => (true, &text[1..]),
        Some(b'+') => (false, &text[1..]),
        _ => (false, text),
    }
}

fn parse_decimal(text: &str) -> Option<Decimal> {
    let (negative, rest) = split_sign(text);
    if rest.eq_ignore_ascii_case("nan") {
        return Some(Decimal::NaN);
    }
    if rest.eq_ignore_ascii_case("inf") || rest.eq_ignore_ascii_case("infinity") {
        return Some(Decimal::Infinity { negative });
    }
    let (negative, mut digits, mut exponent) = split_decimal(text)?;
    while digits.len() > DECIMAL_DIGITS && digits.last() == Some(&b'0') {
        digits.pop();
        exponent += 1;
    }
    if digits.len() > DECIMAL_DIGITS {
        return None;
    }
    let coefficient = digits.iter().fold(0i128, |sum, digit| sum * 10 + i128::from(digit - b'0'));
    fit(BigInt::from(if negative { -coefficient } else { coefficient }), exponent)
}

/// Splits a number into sign, digits from the first that is not zero on, and the exponent of the last one.
fn split_decimal(text: &str) -> Option<(bool, Vec<u8>, i64)> {
    let (negative, rest) = split_sign(text);
    let (mantissa, exponent) = match rest.split_once(['e', 'E']) {
        Some((mantissa, exponent)) => (mantissa, parse_exponent(exponent)?),
        None => (rest, 0),
    };
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let all_digits = whole.bytes().chain(fraction.bytes());
    if all_digits.clone().next().is_none() || !all_digits.clone().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let digits = all_digits.skip_while(|&digit| digit == b'0').collect();
    Some((negative, digits, exponent - i64::try_from(fraction.len()).ok()?))
}

/// Parses an exponent. One that is larger than that of any number is clamped.
pub(crate) fn parse_exponent(text: &str) -> Option<i64> {
    let digits = text.strip_prefix(['+', '-']).unwrap_or(text);
    if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let exponent = digits.parse::<i64>().unwrap_or(i64::MAX).min(1 << 32);
    Some(if text.starts_with('-') { -exponent } else { exponent })
}

/// Prints as IEEE 754's to-scientific-string, which Extended JSON prescribes.
impl fmt::Display for Decimal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let value = match self {
            Decimal::Finite(value) => value,
            Decimal::Infinity { negative: true } => return f.write_str("-Infinity"),
            Decimal::Infinity { negative: false } => return f.write_str("Infinity"),
            Decimal::NaN => return f.write_str("NaN"),
        };
        let (coefficient, scale) = value.as_bigint_and_scale();
        let digits = coefficient.magnitude().to_string();
        if coefficient.is_negative() {
            f.write_str("-")?;
        }
        let exponent = scale.saturating_neg();
        let adjusted = exponent.saturating_add(digits.len() as i64 - 1);
        if exponent <= 0 && adjusted >= -6 {
            let decimals = exponent.unsigned_abs() as usize;
            return match digits.len().checked_sub(decimals) {
                _ if decimals == 0 => f.write_str(&digits),
                Some(whole) if whole > 0 => write!(f, "{}.{}", &digits[..whole], &digits[whole..]),
                _ => write!(f, "0.{digits:0>decimals$}"),
            };
        }
        let (first, rest) = digits.split_at(1);
        let point = if rest.is_empty() { "" } else { "." };
        write!(f, "{first}{point}{rest}E{adjusted:+}")
    }
}

/// True for a double that jsonb has a number for: it lacks NaN, the infinities and negative zero.
#[inline]
pub(crate) fn is_numeric(value: f64) -> bool {
    value.is_finite() && (value != 0.0 || value.is_sign_positive())
}

impl Number {
    /// An int, or a long if the value does not fit 32 bits: the type of most results.
    #[inline]
    pub fn int(value: i64) -> Number {
        Number::Int(value, Width::BySize)
    }

    /// A long.
    #[inline]
    pub fn long(value: i64) -> Number {
        Number::Int(value, Width::Long)
    }

    /// A long if `is_long`, else as [`int`](Self::int).
    #[inline]
    pub fn integer(value: i64, is_long: bool) -> Number {
        Number::Int(value, if is_long { Width::Long } else { Width::BySize })
    }

    /// True for a long.
    #[inline]
    pub fn is_long(&self) -> bool {
        matches!(self, Number::Int(value, width) if *width == Width::Long || i32::try_from(*value).is_err())
    }

    /// The value of a long that fits 32 bits, so that only its mark distinguishes it from an int.
    #[inline]
    pub fn small_long(&self) -> Option<i64> {
        match self {
            Number::Int(value, Width::Long) if i32::try_from(*value).is_ok() => Some(*value),
            _ => None,
        }
    }

    /// MongoDB's alias of the type.
    pub fn type_name(&self) -> &'static str {
        match self {
            Number::Int(..) if self.is_long() => "long",
            Number::Int(..) => "int",
            Number::Double(_) => "double",
            Number::Decimal(_) => "decimal",
        }
    }

    /// The nearest double.
    pub fn to_f64(&self) -> f64 {
        match self {
            Number::Int(value, _) => *value as f64,
            Number::Double(value) => *value,
            Number::Decimal(value) => value.to_f64(),
        }
    }

    /// True for zero, of any type and sign.
    pub(crate) fn is_zero(&self) -> bool {
        match self {
            Number::Int(value, _) => *value == 0,
            Number::Double(value) => *value == 0.0,
            Number::Decimal(Decimal::Finite(value)) => value.is_zero(),
            Number::Decimal(_) => false,
        }
    }

    /// True for NaN, double or decimal.
    pub fn is_nan(&self) -> bool {
        match self {
            Number::Int(..) => false,
            Number::Double(value) => value.is_nan(),
            Number::Decimal(value) => matches!(value, Decimal::NaN),
        }
    }

    /// The value without its fraction, clamped to 64 bits; 0 for NaN. This is how MongoDB reads the numbers of options.
    pub fn to_i64_truncated(&self) -> i64 {
        let exact = match self {
            Number::Decimal(Decimal::Finite(value)) => value.to_i64(),
            _ => self.as_i64(),
        };
        exact.unwrap_or_else(|| self.to_f64() as i64)
    }

    /// Like [`to_i64_truncated`](Self::to_i64_truncated), but a decimal is rounded half to even: MongoDB's safe integers.
    pub fn to_i64_rounded(&self) -> i64 {
        let rounded = if let Number::Decimal(decimal) = self { decimal.to_i64_rounded() } else { None };
        rounded.unwrap_or_else(|| self.to_i64_truncated())
    }

    /// The value if it is a 64-bit integer, in any of the types.
    pub fn as_i64(&self) -> Option<i64> {
        match self {
            Number::Int(value, _) => Some(*value),
            Number::Double(value) => {
                let fits = value.fract() == 0.0 && (-TWO_POW_63..TWO_POW_63).contains(value);
                fits.then_some(*value as i64)
            }
            Number::Decimal(Decimal::Finite(value)) => value.to_i64().filter(|_| value.is_integer()),
            Number::Decimal(_) => None,
        }
    }

    /// The sum, in the wider of the two types: int grows into long, and a long stays one; anything with a double is a double, with a decimal
    /// a decimal.
    ///
    /// # Errors
    /// `BadValue` if a sum of integers does not fit a long.
    pub fn add(&self, other: &Number) -> Result<Number> {
        combine(self, other, i64::checked_add, |a, b| a + b, |a, b| a + b)
    }

    /// The product, in the wider of the two types: see [`Number::add`].
    ///
    /// # Errors
    /// `BadValue` if a product of integers does not fit a long.
    pub fn multiply(&self, other: &Number) -> Result<Number> {
        combine(self, other, i64::checked_mul, |a, b| a * b, product)
    }

    /// The value as a decimal128; a double keeps 15 digits.
    pub(crate) fn to_decimal(&self) -> Decimal {
        match self {
            Number::Int(value, _) => Decimal::Finite(Box::new(BigDecimal::from(*value))),
            Number::Double(value) => Decimal::of_f64(*value),
            Number::Decimal(value) => value.clone(),
        }
    }

    /// The exact value as a decimal128 with `scale` digits behind the point; None if it is not finite.
    pub(crate) fn to_decimal_of_scale(&self, scale: i16) -> Option<Decimal> {
        Some(Decimal::Finite(Box::new(self.exact()?.with_scale(i64::from(scale)))))
    }

    /// The exact value; None for NaN and the infinities.
    pub(crate) fn exact(&self) -> Option<BigDecimal> {
        match self {
            Number::Int(value, _) => Some(BigDecimal::from(*value)),
            Number::Double(value) => BigDecimal::try_from(*value).ok(),
            Number::Decimal(Decimal::Finite(value)) => Some((**value).clone()),
            Number::Decimal(_) => None,
        }
    }

    /// The value rounded to a double towards zero, and true if that is exact. NaN and the infinities are exact; a finite value beyond
    /// all doubles is rounded to the largest one.
    #[inline]
    pub(crate) fn truncated(&self) -> (f64, bool) {
        let nearest = self.to_f64();
        match self {
            Number::Double(_) => (nearest, true),
            Number::Int(value, _) => {
                let back = nearest as i128;
                let value = i128::from(*value);
                let beyond = back.unsigned_abs() > value.unsigned_abs();
                (if beyond { toward_zero(nearest) } else { nearest }, back == value)
            }
            Number::Decimal(Decimal::Finite(exact)) => {
                let Ok(decimal) = BigDecimal::try_from(nearest) else { return (f64::MAX.copysign(nearest), false) };
                let order = decimal.cmp(exact);
                let beyond = if exact.is_negative() { order.is_lt() } else { order.is_gt() };
                (if beyond { toward_zero(nearest) } else { nearest }, order.is_eq())
            }
            Number::Decimal(_) => (nearest, true),
        }
    }
}

pub(crate) const TWO_POW_63: f64 = 9_223_372_036_854_775_808.0;

/// The neighbour of a finite double that is not zero, one step nearer to zero.
fn toward_zero(value: f64) -> f64 {
    f64::from_bits(value.to_bits().saturating_sub(1))
}

/// Compares by value across the types; NaN equals NaN and is below every other number.
pub fn compare(a: &Number, b: &Number) -> Ordering {
    match (a, b) {
        (Number::Int(a, _), Number::Int(b, _)) => a.cmp(b),
        (Number::Double(a), Number::Double(b)) => compare_f64(*a, *b),
        _ => {
            // Rounding to the nearest double keeps the order, so only equal doubles need a closer look.
            let (nearest_a, nearest_b) = (a.to_f64(), b.to_f64());
            compare_f64(nearest_a, nearest_b).then_with(|| compare_exact(a, b, nearest_a))
        }
    }
}

/// Compares numbers that round to the same double.
fn compare_exact(a: &Number, b: &Number, nearest: f64) -> Ordering {
    match (a, b) {
        (Number::Int(a, _), Number::Double(b)) => i128::from(*a).cmp(&(*b as i128)),
        (Number::Double(a), Number::Int(b, _)) => (*a as i128).cmp(&i128::from(*b)),
        _ => match (a.exact(), b.exact()) {
            (Some(a), Some(b)) => a.cmp(&b),
            (None, None) => Ordering::Equal,
            // An infinity, and a decimal beyond all doubles.
            (None, Some(_)) if nearest > 0.0 => Ordering::Greater,
            (Some(_), None) if nearest > 0.0 => Ordering::Less,
            (None, Some(_)) => Ordering::Less,
            (Some(_), None) => Ordering::Greater,
        },
    }
}

fn compare_f64(a: f64, b: f64) -> Ordering {
    a.partial_cmp(&b).unwrap_or_else(|| b.is_nan().cmp(&a.is_nan()))
}

fn combine(
    a: &Number,
    b: &Number,
    integers: impl Fn(i64, i64) -> Option<i64>,
    doubles: impl Fn(f64, f64) -> f64,
    decimals: impl Fn(&BigDecimal, &BigDecimal) -> BigDecimal,
) -> Result<Number> {
    match (a, b) {
        (Number::Int(x, _), Number::Int(y, _)) => match integers(*x, *y) {
            Some(value) => Ok(Number::integer(value, are_long(a, b))),
            None => {
                let message = "Failed to apply $inc operations to current value";
                Err(error!(Kind::BadValue, "{message}: the result of {x} and {y} exceeds 64 bits")
                    .with_hint("Use a double or a decimal, such as {\"$numberDecimal\": \"1\"}."))
            }
        },
        (Number::Decimal(_), _) | (_, Number::Decimal(_)) => {
            Ok(Number::Decimal(match (a.to_decimal(), b.to_decimal()) {
                (Decimal::Finite(a), Decimal::Finite(b)) => Decimal::rounded(decimals(&a, &b)),
                // IEEE 754 has the same rules for NaN and infinities in both bases.
                (a, b) => Decimal::of_result(doubles(sign_or_special(&a), sign_or_special(&b))),
            }))
        }
        _ => Ok(Number::Double(doubles(a.to_f64(), b.to_f64()))),
    }
}

/// The product, with the digits behind the point of both factors. The library's operator ignores the digits behind the point of a
/// factor that equals one.
fn product(a: &BigDecimal, b: &BigDecimal) -> BigDecimal {
    let ((a, a_scale), (b, b_scale)) = (a.as_bigint_and_scale(), b.as_bigint_and_scale());
    BigDecimal::new(&*a * &*b, a_scale + b_scale)
}

/// NaN, an infinity, or for a finite value -1, 0 or 1.
pub(crate) fn sign_or_special(value: &Decimal) -> f64 {
    match value {
        Decimal::Finite(value) => value.signum().to_f64().unwrap_or(0.0),
        special => special.to_f64(),
    }
}

/// A number that decimal arithmetic computes with; None for NaN and the infinities.
pub(crate) fn finite(number: &Number) -> Option<BigDecimal> {
    match number.to_decimal() {
        Decimal::Finite(value) => Some(*value),
        _ => None,
    }
}

/// True if one of the numbers is a long.
pub(crate) fn are_long(left: &Number, right: &Number) -> bool {
    left.is_long() || right.is_long()
}

/// True if one of the numbers is a decimal.
pub(crate) fn are_decimal(left: &Number, right: &Number) -> bool {
    matches!(left, Number::Decimal(_)) || matches!(right, Number::Decimal(_))
}

/// The quotient; the divisor is not zero.
pub(crate) fn quotient(a: &Number, b: &Number) -> Number {
    if !are_decimal(a, b) {
        return Number::Double(a.to_f64() / b.to_f64());
    }
    Number::Decimal(match (finite(a), finite(b)) {
        (Some(a), Some(b)) => decimal_quotient(&a, &b),
        // A finite decimal can be larger or smaller than any double.
        _ => Decimal::of_result(sign_or_special(&a.to_decimal()) / sign_or_special(&b.to_decimal())),
    })
}

/// The quotient, with more digits than a decimal128 has.
fn quotient_of(a: &BigDecimal, b: &BigDecimal) -> BigDecimal {
    let (a_digits, b_digits) = (a.digits() as i64, b.digits() as i64);
    let places = (2 * DECIMAL_DIGITS as i64 + b_digits - a_digits).max(0);
    let (dividend, dividend_scale) = a.as_bigint_and_scale();
    let (divisor, divisor_scale) = b.as_bigint_and_scale();
    let power = BigDecimal::new(1.into(), -places).with_scale(0).into_bigint_and_scale().0;
    let scaled = dividend.into_owned() * power;
    let (whole, rest) = (&scaled / &*divisor, &scaled % &*divisor);
    // A remainder is represented by a last digit that is not zero, so that rounding takes it into account.
    let whole = if rest.is_zero() { whole * 10 } else { whole * 10 + scaled.signum() * divisor.signum() };
    BigDecimal::new(whole, dividend_scale - divisor_scale + places + 1)
}

/// The quotient of decimals. As IEEE 754 requires, an exact quotient has as many digits after the point as the dividend minus those of the
/// divisor, but at least those that it needs.
fn decimal_quotient(a: &BigDecimal, b: &BigDecimal) -> Decimal {
    let ideal = a.fractional_digit_count().saturating_sub(b.fractional_digit_count());
    if a.is_zero() {
        return Decimal::rounded(BigDecimal::new(BigInt::ZERO, ideal));
    }
    let quotient = quotient_of(a, b);
    let shortest = quotient.normalized();
    let room = (DECIMAL_DIGITS as i64).saturating_sub_unsigned(shortest.digits());
    if room < 0 {
        return Decimal::rounded(quotient);
    }
    let scale = shortest.fractional_digit_count();
    Decimal::rounded(shortest.with_scale(ideal.min(scale.saturating_add(room)).max(scale)))
}

/// Removes trailing zeros, but not those before the point.
pub(crate) fn shortest(value: BigDecimal) -> BigDecimal {
    let value = value.normalized();
    if value.fractional_digit_count() < 0
        && value.digits() as i64 - value.fractional_digit_count() <= DECIMAL_DIGITS as i64
    {
        value.with_scale(0)
    } else {
        value
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decimal(text: &str) -> Number {
        Number::Decimal(Decimal::parse(text).unwrap())
    }

    #[test]
    fn decimals_print_as_they_were_written() {
        let texts = "0 1 -1 1.50 0.001 0.000001 1E-7 1.2E+3 1E-6176 0E-6176 0E+6111 Infinity -Infinity NaN \
                     1234567890123456789012345678901234";
        for text in texts.split(' ') {
            assert_eq!(Decimal::parse(text).unwrap().to_string(), text);
        }
        assert_eq!(Decimal::parse("1E6144").unwrap().to_string(), "1.000000000000000000000000000000000E+6144");
        assert_eq!(Decimal::parse(".5").unwrap().to_string(), "0.5");
        assert_eq!(Decimal::parse("0E99999999999999999999").unwrap().to_string(), "0E+6111");
    }

    #[test]
    fn long_texts_are_rounded_as_if_all_digits_were_read() {
        let most = NonZeroU64::new(34).unwrap();
        let even = "1234567890123456789012345678901234";
        let zeros = "0".repeat(100);
        for digits in [
            format!("{even}5{zeros}"),
            format!("{even}5{zeros}1"),
            format!("{even}4{}", "9".repeat(100)),
            format!("{zeros}{even}5"),
            format!("{zeros}15"),
            format!("{zeros}{zeros}"),
            "9".repeat(200),
            format!("1{zeros}"),
        ] {
            for point in [None, Some(0), Some(1), Some(36), Some(digits.len())] {
                let mut text = digits.clone();
                point.into_iter().for_each(|at| text.insert(at, '.'));
                for text in [text.clone(), format!("-{text}e-70"), format!("+{text}E5")] {
                    let whole: BigDecimal = text.parse().unwrap();
                    let rounded = Decimal::rounded(whole.with_precision_round(most, RoundingMode::HalfEven));
                    let found = Decimal::parse_rounded(&text).unwrap();
                    // Trailing zeros may differ.
                    let value = |decimal: &Decimal| decimal.to_string().parse::<BigDecimal>().unwrap();
                    assert_eq!(value(&found), value(&rounded), "{text}");
                }
            }
        }
        for text in ["x".repeat(100), format!("1{zeros}.0.0"), format!("{zeros}e"), format!("1-{zeros}")] {
            assert!(Decimal::parse_rounded(&text).is_none(), "{text}");
        }
        assert!(Decimal::parse_rounded(&"9".repeat(1_000_000)).is_none());
    }

    #[test]
    fn invalid_decimals_are_refused() {
        let digits = "12345678901234567890123456789012345";
        for text in ["", "-", ".", "1e", "1.2.3", "x", digits, "1E6145", "1E-6177", "1E9999999999999999999"] {
            assert!(Decimal::parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn numbers_compare_by_exact_value() {
        let ascending = [
            Number::Double(f64::NAN),
            Number::Double(f64::NEG_INFINITY),
            decimal("-9E6144"),
            Number::Double(f64::MIN),
            Number::int(i64::MIN),
            Number::int(i64::MIN + 1),
            Number::Double(-0.1),
            decimal("-0.1"),
            decimal("-1E-6176"),
            Number::Double(0.0),
            decimal("1E-6176"),
            Number::Double(5e-324),
            decimal("0.1"),
            Number::Double(0.1),
            Number::Double(9007199254740992.0),
            Number::int(9007199254740993),
            decimal("9007199254740993.5"),
            Number::int(i64::MAX),
            Number::Double(9223372036854775808.0),
            Number::Double(f64::MAX),
            decimal("1E309"),
            Number::Double(f64::INFINITY),
        ];
        for (i, a) in ascending.iter().enumerate() {
            for (j, b) in ascending.iter().enumerate() {
                assert_eq!(compare(a, b), i.cmp(&j), "{a:?} {b:?}");
            }
        }
        assert_eq!(compare(&Number::int(2), &decimal("2.00")), Ordering::Equal);
        assert_eq!(compare(&Number::Double(-0.0), &decimal("0E+5")), Ordering::Equal);
        assert_eq!(compare(&Number::Double(f64::NAN), &decimal("NaN")), Ordering::Equal);
        assert_eq!(compare(&Number::Double(f64::INFINITY), &decimal("Infinity")), Ordering::Equal);
    }

    #[test]
    fn arithmetic_promotes() {
        assert_eq!(Number::int(i64::from(i32::MAX)).add(&Number::int(1)).unwrap().type_name(), "long");
        assert_eq!(Number::int(1).add(&Number::Double(0.5)).unwrap().to_f64(), 1.5);
        let Number::Decimal(sum) = decimal("0.10").add(&Number::Double(0.2)).unwrap() else { panic!("no decimal") };
        assert_eq!(sum.to_string(), "0.300000000000000");
        let Number::Decimal(product) = decimal("1E6144").multiply(&Number::int(10)).unwrap() else {
            panic!("no decimal")
        };
        assert_eq!(product.to_string(), "Infinity");
        let Number::Decimal(tiny) = decimal("1E-6176").multiply(&decimal("0.1")).unwrap() else { panic!("no decimal") };
        assert_eq!(tiny.to_string(), "0E-6176");
        assert!(decimal("Infinity").add(&decimal("-Infinity")).unwrap().is_nan());
        let overflow = Number::int(i64::MAX).add(&Number::int(1)).unwrap_err();
        assert_eq!(overflow.kind, Kind::BadValue);
        assert!(overflow.message.starts_with("Failed to apply $inc operations to current value"));
    }

    #[test]
    fn integers_are_found_in_every_type() {
        assert_eq!(Number::Double(5.0).as_i64(), Some(5));
        assert_eq!(Number::Double(9223372036854775808.0).as_i64(), None);
        assert_eq!(decimal("5E+2").as_i64(), Some(500));
        assert_eq!(decimal("5.5").as_i64(), None);
        assert_eq!(decimal("-9223372036854775808").as_i64(), Some(i64::MIN));
        assert_eq!(decimal("9223372036854775808").as_i64(), None);
    }
}
