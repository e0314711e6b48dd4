//! Trigonometric operators.

use super::arithmetic::numbers;
use super::decimal::{DecimalFunction, PRECISION, ROUNDING, binary, consts, continued, decimal, pi};
use super::node::Call;
use super::parse::Operator;
use crate::error::{Error, Result, error};
use crate::query::operand::Operand;
use crate::values::document::number::{self, Decimal, Number, quotient};
use astro_float_num::BigFloat;

pub(super) const OPERATORS: &[Operator] = &[
    Operator::numeric("$sin", |call, x| finite_only(call, x, f64::sin, |x, p, rm, cc| x.sin(p, rm, cc))),
    Operator::numeric("$cos", |call, x| finite_only(call, x, f64::cos, |x, p, rm, cc| x.cos(p, rm, cc))),
    Operator::numeric("$tan", |call, x| finite_only(call, x, f64::tan, |x, p, rm, cc| x.tan(p, rm, cc))),
    Operator::numeric("$asin", |call, x| within_1(call, x, f64::asin, |x, p, rm, cc| x.asin(p, rm, cc))),
    Operator::numeric("$acos", |call, x| within_1(call, x, f64::acos, |x, p, rm, cc| x.acos(p, rm, cc))),
    Operator::numeric("$atan", |_, x| Ok(continued(x, f64::atan, |x, p, rm, cc| x.atan(p, rm, cc)))),
    Operator::binary("$atan2", arctangent_2),
    Operator::numeric("$sinh", |_, x| Ok(continued(x, f64::sinh, |x, p, rm, cc| x.sinh(p, rm, cc)))),
    Operator::numeric("$cosh", |_, x| Ok(continued(x, f64::cosh, |x, p, rm, cc| x.cosh(p, rm, cc)))),
    Operator::numeric("$tanh", |_, x| Ok(continued(x, f64::tanh, |x, p, rm, cc| x.tanh(p, rm, cc)))),
    Operator::numeric("$asinh", |_, x| Ok(continued(x, libm::asinh, |x, p, rm, cc| x.asinh(p, rm, cc)))),
    Operator::numeric("$acosh", |call, x| match number::compare(x, &Number::Int(1)).is_lt() && !x.is_nan() {
        true => Err(out_of_range(call, x, "[1,inf]")),
        false => Ok(continued(x, libm::acosh, |x, p, rm, cc| x.acosh(p, rm, cc))),
    }),
    Operator::numeric("$atanh", |call, x| within_1(call, x, libm::atanh, |x, p, rm, cc| x.atanh(p, rm, cc))),
    Operator::numeric("$degreesToRadians", |_, number| {
        Ok(converted(number, f64::to_radians, |number| {
            quotient(&number.multiply(&pi()).unwrap_or(Number::Double(f64::NAN)), &Number::Int(180))
        }))
    }),
    Operator::numeric("$radiansToDegrees", |_, number| {
        Ok(converted(number, f64::to_degrees, |number| {
            quotient(&number.multiply(&Number::Int(180)).unwrap_or(Number::Double(f64::NAN)), &pi())
        }))
    }),
];

fn out_of_range(call: &Call<'_>, number: &Number, range: &str) -> Error {
    let shown = Operand::number_of(number.clone()).shown();
    error!(50989, "cannot apply {} to {shown}, value must be in {range}", call.name)
}

fn finite_only(call: &Call<'_>, number: &Number, double: fn(f64) -> f64, decimal: DecimalFunction) -> Result<Number> {
    match number {
        Number::Double(value) if value.is_infinite() => Err(out_of_range(call, number, "(-inf,inf)")),
        Number::Decimal(Decimal::Infinity { .. }) => Err(out_of_range(call, number, "(-inf,inf)")),
        number => Ok(continued(number, double, decimal)),
    }
}

/// A function that is defined from -1 to 1.
fn within_1(call: &Call<'_>, number: &Number, double: fn(f64) -> f64, decimal: DecimalFunction) -> Result<Number> {
    let is_below = number::compare(number, &Number::Int(-1)).is_lt();
    if (is_below || number::compare(number, &Number::Int(1)).is_gt()) && !number.is_nan() {
        return Err(out_of_range(call, number, "[-1,1]"));
    }
    Ok(continued(number, double, decimal))
}

fn arctangent_2(call: &Call<'_>, y: Operand<'_>, x: Operand<'_>) -> Result<Operand<'static>> {
    let (a, b) = numbers(call, &y, &x, 51045)?;
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

fn converted(number: &Number, double: fn(f64) -> f64, decimal: fn(&Number) -> Number) -> Number {
    match number {
        Number::Decimal(Decimal::Finite(_)) => decimal(number),
        Number::Decimal(special) => Number::Decimal(special.clone()),
        number => Number::Double(double(number.to_f64())),
    }
}
