//! Functions that have no exact result, over decimals: they are computed with more binary digits than a decimal128 has decimal
//! ones, and rounded.

use crate::values::document::number::{Decimal, Number};
use astro_float_num::{BigFloat, Consts, Radix, RoundingMode};
use bigdecimal::{BigDecimal, ToPrimitive, Zero};

/// A function over binary numbers of any precision: the argument, digits, rounding, constants.
pub(super) type DecimalFunction = fn(&BigFloat, usize, RoundingMode, &mut Consts) -> BigFloat;

/// Binary digits: 34 decimal ones take 113.
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
    text.parse::<BigDecimal>().map_or(Decimal::NaN, |value| Decimal::rounded(rounded_whole(value)))
}

/// What differs from a value of a decimal128 by less than a decimal128 tells is that value.
fn rounded_whole(value: BigDecimal) -> BigDecimal {
    let Some(digits) = std::num::NonZeroU64::new(34) else { return value };
    let rounded = value.with_precision_round(digits, bigdecimal::RoundingMode::HalfEven).normalized();
    if rounded.fractional_digit_count() < 0 && rounded.digits() as i64 - rounded.fractional_digit_count() <= 34 {
        rounded.with_scale(0)
    } else {
        rounded
    }
}

/// A function's value for a decimal; what is not finite goes by the double's.
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
        Some(power) if base.as_bigint_and_scale().0.sign() == bigdecimal::num_bigint::Sign::Minus => {
            let magnitude =
                binary(&-(**base).clone(), &mut cc).pow(&binary(exponent, &mut cc), PRECISION, ROUNDING, &mut cc);
            if power % 2 == 0 { magnitude } else { magnitude.neg() }
        }
        _ => {
            let (base, exponent) = (binary(base, &mut cc), binary(exponent, &mut cc));
            base.pow(&exponent, PRECISION, ROUNDING, &mut cc)
        }
    };
    decimal(&result, &mut cc)
}

/// A function that yields a double, or a decimal for a decimal.
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
