//! Trigonometry; and functions that have no exact result, over decimals.
//!
//! Decimals are computed with more binary digits than a decimal128 has decimal ones, and rounded.

use super::arithmetic::{continued, numeric, quotient};
use super::node::Call;
use super::operand::Operand;
use super::operators::Operator;
use crate::error::{Error, Kind, Result};
use crate::values::document::number::{self, Decimal, Number};
use astro_float_num::{BigFloat, Consts, Radix, RoundingMode};
use bigdecimal::{BigDecimal, ToPrimitive, Zero};

pub(super) const OPERATORS: &[Operator] = &[
    Operator::exactly("$sin", 1, |call| finite_only(call, f64::sin, |x, p, rm, cc| x.sin(p, rm, cc))),
    Operator::exactly("$cos", 1, |call| finite_only(call, f64::cos, |x, p, rm, cc| x.cos(p, rm, cc))),
    Operator::exactly("$tan", 1, |call| finite_only(call, f64::tan, |x, p, rm, cc| x.tan(p, rm, cc))),
    Operator::exactly("$asin", 1, |call| within(call, -1, Some(1), f64::asin, |x, p, rm, cc| x.asin(p, rm, cc))),
    Operator::exactly("$acos", 1, |call| within(call, -1, Some(1), f64::acos, |x, p, rm, cc| x.acos(p, rm, cc))),
    Operator::exactly("$atan", 1, |call| everywhere(call, f64::atan, |x, p, rm, cc| x.atan(p, rm, cc))),
    Operator::exactly("$atan2", 2, arctangent_2),
    Operator::exactly("$sinh", 1, |call| everywhere(call, f64::sinh, |x, p, rm, cc| x.sinh(p, rm, cc))),
    Operator::exactly("$cosh", 1, |call| everywhere(call, f64::cosh, |x, p, rm, cc| x.cosh(p, rm, cc))),
    Operator::exactly("$tanh", 1, |call| everywhere(call, f64::tanh, |x, p, rm, cc| x.tanh(p, rm, cc))),
    Operator::exactly("$asinh", 1, |call| everywhere(call, libm::asinh, |x, p, rm, cc| x.asinh(p, rm, cc))),
    Operator::exactly("$acosh", 1, |call| within(call, 1, None, libm::acosh, |x, p, rm, cc| x.acosh(p, rm, cc))),
    Operator::exactly("$atanh", 1, |call| within(call, -1, Some(1), libm::atanh, |x, p, rm, cc| x.atanh(p, rm, cc))),
    Operator::exactly("$degreesToRadians", 1, |call| {
        numeric(call, |number| {
            Ok(converted(number, f64::to_radians, |number| {
                quotient(&number.multiply(&pi()).unwrap_or(Number::Double(f64::NAN)), &Number::Int(180))
            }))
        })
    }),
    Operator::exactly("$radiansToDegrees", 1, |call| {
        numeric(call, |number| {
            Ok(converted(number, f64::to_degrees, |number| {
                quotient(&number.multiply(&Number::Int(180)).unwrap_or(Number::Double(f64::NAN)), &pi())
            }))
        })
    }),
];

/// A function over binary numbers of any precision: the argument, digits, rounding, constants.
pub(super) type DecimalFunction = fn(&BigFloat, usize, RoundingMode, &mut Consts) -> BigFloat;

/// Binary digits: 34 decimal ones take 113.
const PRECISION: usize = 192;
const ROUNDING: RoundingMode = RoundingMode::ToEven;

/// Beyond this power of ten a trigonometric function would take too many digits of pi.
const MAX_EXPONENT: i64 = 400;

fn consts() -> Consts {
    Consts::new().expect("there is memory for the constants")
}

fn binary(value: &BigDecimal, cc: &mut Consts) -> BigFloat {
    let (digits, scale) = value.as_bigint_and_scale();
    BigFloat::parse(&format!("{digits}e{}", scale.saturating_neg()), Radix::Dec, PRECISION, ROUNDING, cc)
}

fn decimal(value: &BigFloat, cc: &mut Consts) -> Decimal {
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

fn everywhere(call: &Call<'_>, double: fn(f64) -> f64, function: DecimalFunction) -> Result<Operand<'static>> {
    numeric(call, |number| Ok(continued(number, double, function)))
}

fn out_of_range(call: &Call<'_>, number: &Number, range: &str) -> Error {
    let shown = Operand::number_of(number.clone()).shown();
    Error::new(Kind::Location50989, format!("cannot apply {} to {shown}, value must be in {range}", call.name))
}

fn finite_only(call: &Call<'_>, double: fn(f64) -> f64, function: DecimalFunction) -> Result<Operand<'static>> {
    numeric(call, |number| match number {
        Number::Double(value) if value.is_infinite() => Err(out_of_range(call, number, "(-inf,inf)")),
        Number::Decimal(Decimal::Infinity { .. }) => Err(out_of_range(call, number, "(-inf,inf)")),
        number => Ok(continued(number, double, function)),
    })
}

fn within(
    call: &Call<'_>,
    least: i64,
    greatest: Option<i64>,
    double: fn(f64) -> f64,
    function: DecimalFunction,
) -> Result<Operand<'static>> {
    numeric(call, |number| {
        let below = number::compare(number, &Number::Int(least)).is_lt();
        let above = greatest.is_some_and(|greatest| number::compare(number, &Number::Int(greatest)).is_gt());
        if (below || above) && !number.is_nan() {
            let range = greatest.map_or_else(|| format!("[{least},inf]"), |greatest| format!("[{least},{greatest}]"));
            return Err(out_of_range(call, number, &range));
        }
        Ok(continued(number, double, function))
    })
}

fn arctangent_2(call: &Call<'_>) -> Result<Operand<'static>> {
    let (y, x) = (call.argument(0)?, call.argument(1)?);
    let (Some(a), Some(b)) = (y.number(), x.number()) else {
        if y.is_nullish() || x.is_nullish() {
            return Ok(Operand::NULL);
        }
        let message = format!("$atan2 only supports numeric types, not {} and {}", y.type_name(), x.type_name());
        return Err(Error::new(Kind::Location51045, message));
    };
    let double = a.to_f64().atan2(b.to_f64());
    if !matches!(a, Number::Decimal(_)) && !matches!(b, Number::Decimal(_)) {
        return Ok(Operand::double(double));
    }
    let (Decimal::Finite(y), Decimal::Finite(x)) = (a.to_decimal(), b.to_decimal()) else {
        return Ok(Operand::number_of(Number::Decimal(Decimal::of_f64(double))));
    };
    let mut cc = consts();
    let (y, x) = (binary(&y, &mut cc), binary(&x, &mut cc));
    let pi = cc.pi(PRECISION, ROUNDING);
    let half_pi = pi.div(&BigFloat::from_f64(2.0, PRECISION), PRECISION, ROUNDING);
    let result = if x.is_zero() {
        match (y.is_zero(), y.is_negative()) {
            (true, _) => y,
            (false, true) => half_pi.neg(),
            (false, false) => half_pi,
        }
    } else {
        let angle = y.div(&x, PRECISION, ROUNDING).atan(PRECISION, ROUNDING, &mut cc);
        match (x.is_negative(), y.is_negative()) {
            (false, _) => angle,
            (true, false) => angle.add(&pi, PRECISION, ROUNDING),
            (true, true) => angle.sub(&pi, PRECISION, ROUNDING),
        }
    };
    Ok(Operand::number_of(Number::Decimal(decimal(&result, &mut cc))))
}

fn pi() -> Number {
    let mut cc = consts();
    let pi = cc.pi(PRECISION, ROUNDING);
    Number::Decimal(decimal(&pi, &mut cc))
}

fn converted(number: &Number, double: fn(f64) -> f64, decimal: fn(&Number) -> Number) -> Number {
    match number {
        Number::Decimal(Decimal::Finite(_)) => decimal(number),
        Number::Decimal(special) => Number::Decimal(special.clone()),
        number => Number::Double(double(number.to_f64())),
    }
}
