//! Functions on decimals: computed to more digits than a decimal128 has, and rounded.

use super::real;
use crate::values::document::number::{Decimal, Number, shortest, sign_or_special};
use bigdecimal::{BigDecimal, One, RoundingMode, Signed, ToPrimitive, Zero};
use std::num::NonZeroU64;

/// A function of a real number.
pub(super) type RealFunction = fn(&BigDecimal) -> BigDecimal;

/// Digits of the first of two roundings. It removes the error of the computation from a result that in fact has at most 35
/// digits, so that the second rounding, to 34 digits, recognizes ties.
const DIGITS: u64 = 70;

/// The digits of a square root before it is rounded.
const ROOT_DIGITS: u32 = 40;

/// Rounds the result of a function to a decimal128.
pub(super) fn decimal(value: BigDecimal) -> Decimal {
    match NonZeroU64::new(DIGITS) {
        Some(digits) if value.digits() > DIGITS => {
            Decimal::rounded(shortest(value.with_precision_round(digits, RoundingMode::HalfEven)))
        }
        _ => Decimal::rounded(shortest(value)),
    }
}

/// Evaluates a function of a decimal; for NaN and the infinities the function of doubles.
pub(super) fn decimal_function(value: &Decimal, double: fn(f64) -> f64, function: RealFunction) -> Decimal {
    match value {
        Decimal::Finite(finite) => decimal(function(finite)),
        special => Decimal::of_result(double(special.to_f64())),
    }
}

/// The square root of a decimal that is not negative.
pub(super) fn decimal_root(value: &Decimal) -> Decimal {
    match value {
        Decimal::Finite(value) => Decimal::rounded(shortest(real::square_root(value, ROOT_DIGITS))),
        special => special.clone(),
    }
}

/// A power of decimals. The caller excludes a base of 0 with a negative exponent.
pub(super) fn decimal_power(base: &Decimal, exponent: &Decimal) -> Decimal {
    let (Decimal::Finite(base), Decimal::Finite(exponent)) = (base, exponent) else {
        // Powers of infinities depend on signs, on whether the exponent is odd, and on whether the base is larger than 1.
        return Decimal::of_result(representative_base(base).powf(representative_exponent(exponent)));
    };
    if exponent.is_zero() {
        return Number::int(1).to_decimal();
    }
    if base.is_zero() {
        return Number::int(0).to_decimal();
    }
    let is_odd = match parity(exponent) {
        None if base.is_negative() => return Decimal::NaN,
        parity => parity == Some(true),
    };
    let magnitude = real::power(&base.abs(), exponent);
    decimal(if base.is_negative() && is_odd { -magnitude } else { magnitude })
}

/// True for an odd integer, false for an even one, None for a number that is not an integer.
fn parity(value: &BigDecimal) -> Option<bool> {
    let (digits, scale) = value.normalized().into_bigint_and_scale();
    (scale <= 0).then(|| scale == 0 && digits.bit(0))
}

/// A double of the same sign whose magnitude is 0, below 1, 1, or above 1, as the decimal's is. Powers with an infinity depend on nothing
/// else.
fn representative_base(base: &Decimal) -> f64 {
    let Decimal::Finite(value) = base else { return base.to_f64() };
    let magnitude = match value.abs().cmp(&BigDecimal::one()) {
        _ if value.is_zero() => 0.0,
        std::cmp::Ordering::Less => 0.5,
        std::cmp::Ordering::Equal => 1.0,
        std::cmp::Ordering::Greater => 2.0,
    };
    if value.is_negative() { -magnitude } else { magnitude }
}

/// A double of the same sign and parity, for powers of an infinity.
fn representative_exponent(exponent: &Decimal) -> f64 {
    let Decimal::Finite(value) = exponent else { return exponent.to_f64() };
    let magnitude = match parity(value) {
        _ if value.is_zero() => 0.0,
        Some(true) => 1.0,
        Some(false) => 2.0,
        None => 0.5,
    };
    if value.is_negative() { -magnitude } else { magnitude }
}

/// Evaluates a function of a number: as a decimal for a decimal, as a double for any other.
pub(super) fn continued(number: &Number, double: fn(f64) -> f64, real: RealFunction) -> Number {
    match number {
        Number::Decimal(value) => Number::Decimal(decimal_function(value, double, real)),
        number => Number::Double(double(number.to_f64())),
    }
}

/// `count` times pi/4, as a decimal.
pub(super) fn eighths_of_turn(count: i64) -> Decimal {
    decimal(real::pi() * BigDecimal::from(count) * BigDecimal::new(25.into(), 2))
}

/// The angle of a point with a coordinate that is not finite: a multiple of pi/4, or NaN.
pub(super) fn special_angle(y: &Decimal, x: &Decimal) -> Decimal {
    let angle = sign_or_special(y).atan2(sign_or_special(x));
    (angle / std::f64::consts::FRAC_PI_4).round().to_i64().map_or(Decimal::NaN, eighths_of_turn)
}
