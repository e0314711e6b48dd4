//! Arithmetic, with MongoDB's promotions: int grows into long, long into double; anything with a double is a double,
//! with a decimal a decimal.

use super::decimal::{continued, decimal, decimal_function, decimal_power, decimal_root};
use super::node::Call;
use super::parse::{Arguments, Operator};
use super::real;
use crate::error::{Kind, Result, bail, ensure, error};
use crate::query::operand::Operand;
use crate::values::document::number::{
    self, Decimal, Number, are_decimal, are_long, finite, quotient, sign_or_special,
};
use bigdecimal::{BigDecimal, RoundingMode, Signed, ToPrimitive};
use std::num::NonZeroU64;

pub(super) const OPERATORS: &[Operator] = &[
    Operator::any("$add", add),
    Operator::binary("$subtract", subtract),
    Operator::any("$multiply", multiply),
    Operator::binary("$divide", divide),
    Operator::binary("$mod", modulo),
    Operator::numeric("$abs", |_, number| absolute(number)),
    Operator::numeric("$ceil", |_, number| Ok(rounded(number, 0, RoundingMode::Ceiling))),
    Operator::numeric("$floor", |_, number| Ok(rounded(number, 0, RoundingMode::Floor))),
    Operator::new("$round", Arguments::Positional(1, 2), |call| to_place(call, RoundingMode::HalfEven)),
    Operator::new("$trunc", Arguments::Positional(1, 2), |call| to_place(call, RoundingMode::Down)),
    Operator::numeric("$sqrt", |_, number| square_root(number)),
    Operator::binary("$pow", power),
    Operator::numeric("$exp", |_, number| Ok(continued(number, f64::exp, real::exp))),
    Operator::numeric("$ln", |call, number| {
        check_positive(call, number, 28766).map(|()| continued(number, f64::ln, real::ln))
    }),
    Operator::numeric("$log10", |call, number| {
        check_positive(call, number, 28761).map(|()| continued(number, f64::log10, real::log10))
    }),
    Operator::binary("$log", logarithm_of_base),
    Operator::new("$sigmoid", Arguments::Special(|parser, _, argument| Ok(vec![parser.node(argument)?])), |call| {
        // An array is not taken for a list of arguments.
        let Some(value) = call.argument(0)?.non_null() else { return Ok(Operand::NULL) };
        let number = call.number(&value, "its argument", Kind::TypeMismatch.code())?;
        let decay = continued(&negated(&number), f64::exp, real::exp);
        Ok(Operand::number_of(quotient(&Number::int(1), &decay.add(&Number::int(1))?)))
    }),
];

/// Digits that a decimal128 holds.
const DECIMAL_DIGITS: u64 = 34;

fn add(call: &Call<'_>) -> Result<Operand<'static>> {
    let (mut sum, mut is_long) = (Number::int(0), false);
    let mut date = None;
    for operand in call.arguments() {
        let operand = operand?;
        if let Some(number) = operand.number() {
            sum = sum_of(&sum, &number)?;
            is_long |= number.is_long();
        } else if let Some(millis) = operand.date() {
            ensure!(date.replace(millis).is_none(), 16612, "only one date allowed in an $add expression");
        } else if operand.is_nullish() {
            return Ok(Operand::NULL);
        } else {
            bail!(Kind::TypeMismatch, "$add only supports numeric or date types, not {}", operand.type_name())
        }
    }
    match date {
        None => Ok(Operand::number_of(of_operands(sum, is_long))),
        Some(millis) => Ok(Operand::date_of(shifted(millis, &sum, i64::checked_add)?)),
    }
}

/// Sets the type of an integer that several operands give: without a long among them an int if the result fits, even if an
/// intermediate result was a long.
fn of_operands(result: Number, is_long: bool) -> Number {
    match result {
        Number::Int(value, _) => Number::integer(value, is_long),
        result => result,
    }
}

/// The sum of two numbers, in the wider of their types; of integers a double if it does not fit a long.
fn sum_of(left: &Number, right: &Number) -> Result<Number> {
    match (left, right) {
        (Number::Int(a, _), Number::Int(b, _)) => Ok(match a.checked_add(*b) {
            Some(sum) => Number::integer(sum, are_long(left, right)),
            None => Number::Double(*a as f64 + *b as f64),
        }),
        _ => left.add(right),
    }
}

/// A date plus or minus a number of milliseconds, which is rounded: halves of a double away from zero, those of a decimal to even.
fn shifted(millis: i64, by: &Number, combine: fn(i64, i64) -> Option<i64>) -> Result<i64> {
    let by = match by {
        Number::Int(by, _) => Some(*by),
        Number::Double(by) => Number::Double(by.round()).as_i64(),
        Number::Decimal(Decimal::Finite(by)) => by.with_scale_round(0, RoundingMode::HalfEven).to_i64(),
        Number::Decimal(_) => None,
    };
    by.and_then(|by| combine(millis, by)).ok_or_else(|| error!(Kind::Overflow, "date overflow"))
}

fn subtract(_: &Call<'_>, left: Operand<'_>, right: Operand<'_>) -> Result<Operand<'static>> {
    if let (Some(left), Some(right)) = (left.number(), right.number()) {
        return Ok(Operand::number_of(difference(&left, &right)?));
    }
    match (left.date(), right.date(), right.number()) {
        (Some(left), Some(right), _) => match left.checked_sub(right) {
            Some(millis) => Ok(Operand::long(millis)),
            None => bail!(Kind::Overflow, "overflow in the difference of two dates"),
        },
        (Some(left), None, Some(right)) => Ok(Operand::date_of(shifted(left, &right, i64::checked_sub)?)),
        _ => bail!(Kind::TypeMismatch, "can't $subtract {} from {}", right.type_name(), left.type_name()),
    }
}

/// The difference of two numbers, in the wider of their types; of integers a double if it does not fit a long.
pub(crate) fn difference(left: &Number, right: &Number) -> Result<Number> {
    match (left, right) {
        (Number::Int(a, _), Number::Int(b, _)) => Ok(match a.checked_sub(*b) {
            Some(difference) => Number::integer(difference, are_long(left, right)),
            None => Number::Double(*a as f64 - *b as f64),
        }),
        (Number::Decimal(_), _) | (_, Number::Decimal(_)) => left.add(&negated(right)),
        _ => Ok(Number::Double(left.to_f64() - right.to_f64())),
    }
}

fn negated(number: &Number) -> Number {
    match number {
        Number::Int(value, _) => match value.checked_neg() {
            Some(negated) => Number::integer(negated, number.is_long()),
            None => Number::Double(-(*value as f64)),
        },
        Number::Double(value) => Number::Double(-value),
        Number::Decimal(Decimal::Finite(value)) => Number::Decimal(Decimal::Finite(Box::new(-(**value).clone()))),
        Number::Decimal(Decimal::Infinity { negative }) => Number::Decimal(Decimal::Infinity { negative: !negative }),
        Number::Decimal(Decimal::NaN) => Number::Decimal(Decimal::NaN),
    }
}

fn multiply(call: &Call<'_>) -> Result<Operand<'static>> {
    let (mut product, mut is_long) = (Number::int(1), false);
    for operand in call.arguments() {
        let Some(operand) = operand?.non_null() else { return Ok(Operand::NULL) };
        let number = call.number(&operand, "its arguments", Kind::TypeMismatch.code())?;
        product = product_of(&product, &number)?;
        is_long |= number.is_long();
    }
    Ok(Operand::number_of(of_operands(product, is_long)))
}

/// The product of two numbers, in the wider of their types; of integers a double if it does not fit a long.
pub(crate) fn product_of(left: &Number, right: &Number) -> Result<Number> {
    match (left, right) {
        (Number::Int(a, _), Number::Int(b, _)) => Ok(match a.checked_mul(*b) {
            Some(product) => Number::integer(product, are_long(left, right)),
            None => Number::Double(*a as f64 * *b as f64),
        }),
        _ => left.multiply(right),
    }
}

/// Both arguments as numbers.
pub(super) fn numbers(call: &Call<'_>, one: &Operand<'_>, other: &Operand<'_>, code: i32) -> Result<(Number, Number)> {
    Ok((call.number(one, "its arguments", code)?, call.number(other, "its arguments", code)?))
}

fn divide(call: &Call<'_>, left: Operand<'_>, right: Operand<'_>) -> Result<Operand<'static>> {
    let (a, b) = numbers(call, &left, &right, Kind::TypeMismatch.code())?;
    let kind = if call.is_in_group() { Kind::Location(4848401) } else { Kind::BadValue };
    ensure!(!b.is_zero(), kind, "can't $divide by zero");
    Ok(Operand::number_of(quotient(&a, &b)))
}

fn modulo(call: &Call<'_>, left: Operand<'_>, right: Operand<'_>) -> Result<Operand<'static>> {
    let (a, b) = numbers(call, &left, &right, 16611)?;
    let code = match are_decimal(&a, &b) {
        true => 5733415,
        false if call.is_in_group() => 4848403,
        false => 16610,
    };
    ensure!(!b.is_zero(), code, "can't $mod by zero");
    Ok(Operand::number_of(match (&a, &b) {
        (Number::Int(x, _), Number::Int(y, _)) => Number::integer(x.wrapping_rem(*y), are_long(&a, &b)),
        _ if are_decimal(&a, &b) => Number::Decimal(match (finite(&a), finite(&b)) {
            (Some(a), Some(b)) => Decimal::rounded(a % b),
            (Some(_), None) if !b.is_nan() => a.to_decimal(),
            _ => Decimal::NaN,
        }),
        // An integer modulo a double whose value is a 32-bit integer is an integer.
        (Number::Int(x, _), Number::Double(y)) if y.fract() == 0.0 && f64::from(*y as i32) == *y => {
            Number::integer(x.wrapping_rem(*y as i64), a.is_long())
        }
        _ => Number::Double(a.to_f64() % b.to_f64()),
    }))
}

fn absolute(number: &Number) -> Result<Number> {
    Ok(match number {
        Number::Int(value, _) => {
            let absolute = value.checked_abs().ok_or_else(|| error!(28680, "can't take $abs of long long min"))?;
            Number::integer(absolute, number.is_long())
        }
        Number::Double(value) => Number::Double(value.abs()),
        Number::Decimal(Decimal::Finite(value)) => Number::Decimal(Decimal::Finite(Box::new(value.abs()))),
        Number::Decimal(Decimal::Infinity { .. }) => Number::Decimal(Decimal::Infinity { negative: false }),
        Number::Decimal(Decimal::NaN) => Number::Decimal(Decimal::NaN),
    })
}

/// The number rounded to `places` digits after the point, or before the point if negative. The type stays the same, except
/// that an integer beyond 64 bits becomes a double.
fn rounded(number: &Number, places: i64, mode: RoundingMode) -> Number {
    match number {
        Number::Int(..) if places >= 0 => number.clone(),
        Number::Int(value, _) => {
            let rounded = BigDecimal::from(*value).with_scale_round(places, mode);
            match rounded.to_i64() {
                Some(rounded) => Number::integer(rounded, number.is_long()),
                None => Number::Double(rounded.to_f64().unwrap_or(f64::NAN)),
            }
        }
        Number::Double(value) if !value.is_finite() => Number::Double(*value),
        Number::Double(value) => Number::Double(match (places, mode) {
            (0, RoundingMode::Ceiling) => value.ceil(),
            (0, RoundingMode::Floor) => value.floor(),
            (0, RoundingMode::Down) => value.trunc(),
            (0, RoundingMode::HalfEven) => value.round_ties_even(),
            // The double's exact value, as far as a decimal128 holds it, is rounded: the double 2.675 is a little less than 2.675.
            _ => match (number.exact(), NonZeroU64::new(DECIMAL_DIGITS)) {
                (Some(exact), Some(digits)) => {
                    let exact = exact.with_precision_round(digits, RoundingMode::HalfEven);
                    match exact.fractional_digit_count() <= places {
                        true => *value,
                        // `BigDecimal` has no negative zero, so the sign is copied.
                        false => {
                            Decimal::Finite(Box::new(exact.with_scale_round(places, mode))).to_f64().copysign(*value)
                        }
                    }
                }
                _ => *value,
            },
        }),
        Number::Decimal(Decimal::Finite(value)) => Number::Decimal(if value.fractional_digit_count() <= places {
            Decimal::Finite(value.clone())
        } else {
            Decimal::rounded(value.with_scale_round(places, mode).with_scale(places.max(0)))
        }),
        Number::Decimal(special) => Number::Decimal(special.clone()),
    }
}

fn to_place(call: &Call<'_>, mode: RoundingMode) -> Result<Operand<'static>> {
    let Some(operand) = call.argument(0)?.non_null() else { return Ok(Operand::NULL) };
    let number = call.number(&operand, "its first argument", 51081)?;
    let Some(places) = if call.is_given(1) { call.argument(1)? } else { Operand::int(0) }.non_null() else {
        return Ok(Operand::NULL);
    };
    let fits = |value: Number| match value {
        Number::Decimal(Decimal::NaN) => true,
        value => value.to_f64().abs() < number::TWO_POW_63,
    };
    let fits = places.number().is_none_or(fits);
    ensure!(fits, 31109, "can't coerce out of range value {} to long, the precision of {}", places.shown(), call.name);
    let places = call.int32(&places, "its precision", [16004, 51082])?;
    ensure!((-20..=100).contains(&places), 51083, "{} requires its precision to be in [-20, 100]: {places}", call.name);
    let result = rounded(&number, places, mode);
    if let (Number::Int(..), Number::Double(_)) = (&number, &result) {
        bail!(51080, "the result of {} of {} and {places} is out of range", call.name, operand.shown());
    }
    Ok(Operand::number_of(result))
}

fn square_root(number: &Number) -> Result<Number> {
    let is_negative = number::compare(number, &Number::int(0)).is_lt() && !number.is_nan();
    ensure!(!is_negative, 28714, "$sqrt's argument must be greater than or equal to 0");
    Ok(match number {
        Number::Decimal(value) => Number::Decimal(decimal_root(value)),
        number => Number::Double(number.to_f64().sqrt()),
    })
}

fn power(call: &Call<'_>, base: Operand<'_>, exponent: Operand<'_>) -> Result<Operand<'static>> {
    let (a, b) = (call.number(&base, "its base", 28762)?, call.number(&exponent, "its exponent", 28763)?);
    let is_infinite = a.is_zero() && number::compare(&b, &Number::int(0)).is_lt() && !b.is_nan();
    ensure!(!is_infinite, 28764, "$pow cannot take a base of 0 and a negative exponent");
    Ok(Operand::number_of(match (&a, &b) {
        (Number::Int(x, _), Number::Int(y, _)) => {
            let power = match u32::try_from(*y).ok().and_then(|y| x.checked_pow(y)) {
                // Powers of 1 and -1 are integers, whatever the exponent.
                None if *x == 1 => Some(1),
                None if *x == -1 => Some(if y % 2 == 0 { 1 } else { -1 }),
                power => power,
            };
            match power {
                Some(power) => Number::integer(power, are_long(&a, &b)),
                None => Number::Double((*x as f64).powf(*y as f64)),
            }
        }
        _ if are_decimal(&a, &b) => Number::Decimal(decimal_power(&a.to_decimal(), &b.to_decimal())),
        _ => Number::Double(a.to_f64().powf(b.to_f64())),
    }))
}

fn is_positive(number: &Number) -> bool {
    number.is_nan() || number::compare(number, &Number::int(0)).is_gt()
}

fn check_positive(call: &Call<'_>, number: &Number, code: i32) -> Result<()> {
    let shown = || Operand::number_of(number.clone()).shown();
    ensure!(is_positive(number), code, "{} requires its argument to be positive, found: {}", call.name, shown());
    Ok(())
}

fn logarithm_of_base(call: &Call<'_>, value: Operand<'_>, base: Operand<'_>) -> Result<Operand<'static>> {
    let (a, b) = (call.number(&value, "its argument", 28756)?, call.number(&base, "its base", 28757)?);
    check_positive(call, &a, 28758)?;
    if !is_positive(&b) || number::compare(&b, &Number::int(1)).is_eq() {
        bail!(28759, "$log's base must be a positive number not equal to 1, but is {}", base.shown());
    }
    Ok(Operand::number_of(match (are_decimal(&a, &b), finite(&a), finite(&b)) {
        (true, Some(a), Some(b)) => Number::Decimal(decimal(real::divided(&real::ln(&a), &real::ln(&b)))),
        (true, ..) => {
            let sign = |number: &Number| sign_or_special(&decimal_function(&number.to_decimal(), f64::ln, real::ln));
            Number::Decimal(Decimal::of_result(sign(&a) / sign(&b)))
        }
        (false, ..) => Number::Double(a.to_f64().ln() / b.to_f64().ln()),
    }))
}
