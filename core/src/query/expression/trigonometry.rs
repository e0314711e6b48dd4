//! Trigonometric operators.

use super::arithmetic::numbers;
use super::decimal::{RealFunction, continued, decimal, eighths_of_turn, special_angle};
use super::node::Call;
use super::parse::Operator;
use super::real;
use crate::error::{Error, Result, error};
use crate::query::operand::Operand;
use crate::values::document::number::{self, Decimal, Number, are_decimal};
use bigdecimal::BigDecimal;

pub(super) const OPERATORS: &[Operator] = &[
    Operator::numeric("$sin", |call, x| finite_only(call, x, f64::sin, real::sin)),
    Operator::numeric("$cos", |call, x| finite_only(call, x, f64::cos, real::cos)),
    Operator::numeric("$tan", |call, x| finite_only(call, x, f64::tan, real::tan)),
    Operator::numeric("$asin", |call, x| within_1(call, x, f64::asin, real::asin)),
    Operator::numeric("$acos", |call, x| within_1(call, x, f64::acos, real::acos)),
    Operator::numeric("$atan", |_, x| match x {
        Number::Decimal(Decimal::Infinity { negative }) => {
            Ok(Number::Decimal(eighths_of_turn(if *negative { -2 } else { 2 })))
        }
        x => Ok(continued(x, f64::atan, real::atan)),
    }),
    Operator::binary("$atan2", arctangent_2),
    Operator::numeric("$sinh", |_, x| Ok(continued(x, f64::sinh, real::sinh))),
    Operator::numeric("$cosh", |_, x| Ok(continued(x, f64::cosh, real::cosh))),
    Operator::numeric("$tanh", |_, x| Ok(continued(x, f64::tanh, real::tanh))),
    Operator::numeric("$asinh", |_, x| Ok(continued(x, libm::asinh, real::asinh))),
    Operator::numeric("$acosh", |call, x| match number::compare(x, &Number::int(1)).is_lt() && !x.is_nan() {
        true => Err(out_of_range(call, x, "[1,inf]")),
        false => Ok(continued(x, libm::acosh, real::acosh)),
    }),
    Operator::numeric("$atanh", |call, x| within_1(call, x, libm::atanh, real::atanh)),
    Operator::numeric("$degreesToRadians", |_, x| Ok(continued(x, f64::to_radians, to_radians))),
    Operator::numeric("$radiansToDegrees", |_, x| Ok(continued(x, f64::to_degrees, to_degrees))),
];

fn out_of_range(call: &Call<'_>, number: &Number, range: &str) -> Error {
    let shown = Operand::number_of(number.clone()).shown();
    error!(50989, "cannot apply {} to {shown}, value must be in {range}", call.name)
}

fn finite_only(call: &Call<'_>, number: &Number, double: fn(f64) -> f64, decimal: RealFunction) -> Result<Number> {
    match number {
        Number::Double(value) if value.is_infinite() => Err(out_of_range(call, number, "(-inf,inf)")),
        Number::Decimal(Decimal::Infinity { .. }) => Err(out_of_range(call, number, "(-inf,inf)")),
        number => Ok(continued(number, double, decimal)),
    }
}

/// A function that is defined from -1 to 1.
fn within_1(call: &Call<'_>, number: &Number, double: fn(f64) -> f64, decimal: RealFunction) -> Result<Number> {
    let is_below = number::compare(number, &Number::int(-1)).is_lt();
    if (is_below || number::compare(number, &Number::int(1)).is_gt()) && !number.is_nan() {
        return Err(out_of_range(call, number, "[-1,1]"));
    }
    Ok(continued(number, double, decimal))
}

fn arctangent_2(call: &Call<'_>, y: Operand<'_>, x: Operand<'_>) -> Result<Operand<'static>> {
    let (a, b) = numbers(call, &y, &x, 51045)?;
    if !are_decimal(&a, &b) {
        return Ok(Operand::double(a.to_f64().atan2(b.to_f64())));
    }
    Ok(Operand::number_of(Number::Decimal(match (a.to_decimal(), b.to_decimal()) {
        (Decimal::Finite(y), Decimal::Finite(x)) => decimal(real::atan2(&y, &x)),
        (y, x) => special_angle(&y, &x),
    })))
}

fn to_radians(degrees: &BigDecimal) -> BigDecimal {
    real::divided(&(degrees * real::pi()), &BigDecimal::from(180))
}

fn to_degrees(radians: &BigDecimal) -> BigDecimal {
    real::divided(&(radians * BigDecimal::from(180)), &real::pi())
}
