//! Functions on decimals without an exact result. They are computed with more binary digits than a decimal128 needs, and rounded.

use crate::values::document::number::{Decimal, Number, shortest};
use astro_float_num::{BigFloat, Consts, Radix, RoundingMode};
use bigdecimal::{BigDecimal, Signed, ToPrimitive, Zero};
use std::num::NonZeroU64;

/// A function of a binary number: the argument, the precision in bits, the rounding, the cache of constants.
pub(super) type DecimalFunction = fn(&BigFloat, usize, RoundingMode, &mut Consts) -> BigFloat;

/// The precision in bits; 34 decimal digits need 113.
pub(super) const PRECISION: usize = 192;
pub(super) const ROUNDING: RoundingMode = RoundingMode::ToEven;

/// Beyond this power of ten a trigonometric function would take too many digits of pi.
const MAX_EXPONENT: i64 = 400;

pub(super) fn consts() -> Consts {
    Consts::new().expect("there is memory for the constants")
}

pub(super) fn binary(value: &BigDecimal, cc: &mut Consts) -> BigFloat {
    let (digits, scale) = value.as_bigint_and_scale();
    BigFloat::parse(&format!("{digits}e{}", scale.saturating_neg()), Radix::Dec, PRECISION, ROUNDING, cc)
}

pub(super) fn decimal(value: &BigFloat, cc: &mut Consts) -> Decimal {
    if value.is_nan() {
        return Decimal::NaN;
    }
    if value.is_inf() {
        return Decimal::Infinity { negative: value.is_inf_neg() };
    }
    let text = value.format(Radix::Dec, ROUNDING, cc).unwrap_or_default();
    let (Ok(value), Some(digits)) = (text.parse::<BigDecimal>(), NonZeroU64::new(34)) else { return Decimal::NaN };
    Decimal::rounded(shortest(value.with_precision_round(digits, bigdecimal::RoundingMode::HalfEven)))
}

/// Evaluates a function of a decimal; for NaN and the infinities the function of doubles.
pub(super) fn decimal_function(value: &Decimal, double: fn(f64) -> f64, function: DecimalFunction) -> Decimal {
    let Decimal::Finite(finite) = value else { return Decimal::of_f64(double(value.to_f64())) };
    let exponent = finite.digits() as i64 - finite.fractional_digit_count();
    if exponent > MAX_EXPONENT {
        return Decimal::of_f64(double(value.to_f64()));
    }
    let mut cc = consts();
    let argument = binary(finite, &mut cc);
    let result = function(&argument, PRECISION, ROUNDING, &mut cc);
    decimal(&result, &mut cc)
}

/// A power of decimals.
pub(super) fn decimal_power(base: &Decimal, exponent: &Decimal) -> Decimal {
    let (Decimal::Finite(base), Decimal::Finite(exponent)) = (base, exponent) else {
        return Decimal::of_f64(base.to_f64().powf(exponent.to_f64()));
    };
    let whole = exponent.is_integer().then(|| exponent.to_i64()).flatten();
    let mut cc = consts();
    let result = match whole {
        Some(0) => return Number::Int(1).to_decimal(),
        Some(_) if base.is_zero() => return Number::Int(0).to_decimal(),
        // An odd power of a negative number is negative.
        Some(power) if base.is_negative() => {
            let (magnitude, exponent) = (binary(&base.abs(), &mut cc), binary(exponent, &mut cc));
            let magnitude = magnitude.pow(&exponent, PRECISION, ROUNDING, &mut cc);
            if power % 2 == 0 { magnitude } else { magnitude.neg() }
        }
        _ => {
            let (base, exponent) = (binary(base, &mut cc), binary(exponent, &mut cc));
            base.pow(&exponent, PRECISION, ROUNDING, &mut cc)
        }
    };
    decimal(&result, &mut cc)
}

/// Evaluates a function of a number: as a decimal for a decimal, as a double for any other.
pub(super) fn continued(number: &Number, double: fn(f64) -> f64, decimal: DecimalFunction) -> Number {
    match number {
        Number::Decimal(value) => Number::Decimal(decimal_function(value, double, decimal)),
        number => Number::Double(double(number.to_f64())),
    }
}

pub(super) fn pi() -> Number {
    let mut cc = consts();
    let pi = cc.pi(PRECISION, ROUNDING);
    Number::Decimal(decimal(&pi, &mut cc))
}
