//! Trigonometry.

use super::arithmetic::numeric;
use super::decimal::{DecimalFunction, PRECISION, ROUNDING, binary, consts, continued, decimal, pi};
use super::node::Call;
use super::parse::Operator;
use crate::error::{Error, Result, bail, error};
use crate::query::operand::Operand;
use crate::values::document::number::{self, Decimal, Number, quotient};
use astro_float_num::BigFloat;

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

fn everywhere(call: &Call<'_>, double: fn(f64) -> f64, function: DecimalFunction) -> Result<Operand<'static>> {
    numeric(call, |number| Ok(continued(number, double, function)))
}

fn out_of_range(call: &Call<'_>, number: &Number, range: &str) -> Error {
    let shown = Operand::number_of(number.clone()).shown();
    error!(50989, "cannot apply {} to {shown}, value must be in {range}", call.name)
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
        bail!(51045, "$atan2 only supports numeric types, not {} and {}", y.type_name(), x.type_name());
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

fn converted(number: &Number, double: fn(f64) -> f64, decimal: fn(&Number) -> Number) -> Number {
    match number {
        Number::Decimal(Decimal::Finite(_)) => decimal(number),
        Number::Decimal(special) => Number::Decimal(special.clone()),
        number => Number::Double(double(number.to_f64())),
    }
}
