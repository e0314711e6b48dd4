//! Arithmetic, with MongoDB's promotions: int grows into long, long into double; anything with a double is a double,
//! with a decimal a decimal.

use super::decimal::{continued, decimal_power};
use super::node::Call;
use super::parse::{Arguments, Operator};
use crate::error::{Kind, Result, bail, ensure, error};
use crate::query::accumulator::Sum;
use crate::query::operand::Operand;
use crate::values::document::number::{self, Decimal, Number, are_decimal, finite, quotient, shortest};
use bigdecimal::{BigDecimal, RoundingMode, Signed, ToPrimitive, Zero};
use std::num::NonZeroU64;

pub(super) const OPERATORS: &[Operator] = &[
    Operator::any("$add", add),
    Operator::exactly("$subtract", 2, subtract),
    Operator::any("$multiply", multiply),
    Operator::exactly("$divide", 2, divide),
    Operator::exactly("$mod", 2, modulo),
    Operator::exactly("$abs", 1, |call| numeric(call, absolute)),
    Operator::exactly("$ceil", 1, |call| numeric(call, |number| Ok(rounded(number, 0, RoundingMode::Ceiling)))),
    Operator::exactly("$floor", 1, |call| numeric(call, |number| Ok(rounded(number, 0, RoundingMode::Floor)))),
    Operator::new("$round", Arguments::Positional(1, 2), |call| to_place(call, RoundingMode::HalfEven)),
    Operator::new("$trunc", Arguments::Positional(1, 2), |call| to_place(call, RoundingMode::Down)),
    Operator::exactly("$sqrt", 1, |call| numeric(call, square_root)),
    Operator::exactly("$pow", 2, power),
    Operator::exactly("$exp", 1, |call| {
        numeric(call, |number| Ok(continued(number, f64::exp, |x, p, rm, cc| x.exp(p, rm, cc))))
    }),
    Operator::exactly("$ln", 1, |call| numeric(call, |number| logarithm(number, Kind::Location(28766), "$ln"))),
    Operator::exactly("$log10", 1, |call| numeric(call, logarithm_10)),
    Operator::exactly("$log", 2, logarithm_of_base),
];

/// Digits that a decimal128 holds.
const DECIMAL_DIGITS: u64 = 34;

/// Applies a function to a number; null for what is null or missing.
pub(super) fn numeric(call: &Call<'_>, apply: impl FnOnce(&Number) -> Result<Number>) -> Result<Operand<'static>> {
    let operand = call.argument(0)?;
    if operand.is_nullish() {
        return Ok(Operand::NULL);
    }
    match operand.number() {
        Some(number) => Ok(Operand::number_of(apply(&number)?)),
        None => bail!(28765, "{} only supports numeric types, not {}", call.name, operand.type_name()),
    }
}

fn add(call: &Call<'_>) -> Result<Operand<'static>> {
    let mut sum = Sum::default();
    let mut date = None;
    for operand in call.arguments() {
        let operand = operand?;
        if let Some(number) = operand.number() {
            sum.add(&number);
        } else if let Some(millis) = operand.date() {
            ensure!(date.replace(millis).is_none(), 16612, "only one date allowed in an $add expression");
        } else if operand.is_nullish() {
            return Ok(Operand::NULL);
        } else {
            bail!(Kind::TypeMismatch, "$add only supports numeric or date types, not {}", operand.type_name())
        }
    }
    match date {
        None => Ok(Operand::number_of(sum.total())),
        Some(millis) => Ok(Operand::date_of(shifted(millis, &sum.total(), i64::checked_add)?)),
    }
}

/// A date and a number of milliseconds, rounded.
fn shifted(millis: i64, by: &Number, combine: fn(i64, i64) -> Option<i64>) -> Result<i64> {
    let by = match by {
        Number::Int(by) => Some(*by),
        number => Number::Double(rounded_away(number.to_f64())).as_i64(),
    };
    by.and_then(|by| combine(millis, by)).ok_or_else(|| error!(Kind::Overflow, "date overflow"))
}

fn rounded_away(value: f64) -> f64 {
    value.round()
}

fn subtract(call: &Call<'_>) -> Result<Operand<'static>> {
    let (left, right) = (call.argument(0)?, call.argument(1)?);
    if left.is_nullish() || right.is_nullish() {
        return Ok(Operand::NULL);
    }
    if let (Some(left), Some(right)) = (left.number(), right.number()) {
        return Ok(Operand::number_of(difference(&left, &right)?));
    }
    match (left.date(), right.date(), right.number()) {
        (Some(left), Some(right), _) => match left.checked_sub(right) {
            Some(millis) => Ok(Operand::int(millis)),
            None => bail!(Kind::Overflow, "overflow in the difference of two dates"),
        },
        (Some(left), None, Some(right)) => Ok(Operand::date_of(shifted(left, &right, i64::checked_sub)?)),
        _ => bail!(Kind::TypeMismatch, "can't $subtract {} from {}", right.type_name(), left.type_name()),
    }
}

fn difference(left: &Number, right: &Number) -> Result<Number> {
    match (left, right) {
        (Number::Int(a), Number::Int(b)) => Ok(match a.checked_sub(*b) {
            Some(difference) => Number::Int(difference),
            None => Number::Double(*a as f64 - *b as f64),
        }),
        (Number::Decimal(_), _) | (_, Number::Decimal(_)) => left.add(&negated(right)),
        _ => Ok(Number::Double(left.to_f64() - right.to_f64())),
    }
}

fn negated(number: &Number) -> Number {
    match number {
        Number::Int(value) => value.checked_neg().map_or(Number::Double(-(*value as f64)), Number::Int),
        Number::Double(value) => Number::Double(-value),
        Number::Decimal(Decimal::Finite(value)) => Number::Decimal(Decimal::Finite(Box::new(-(**value).clone()))),
        Number::Decimal(Decimal::Infinity { negative }) => Number::Decimal(Decimal::Infinity { negative: !negative }),
        Number::Decimal(Decimal::NaN) => Number::Decimal(Decimal::NaN),
    }
}

fn multiply(call: &Call<'_>) -> Result<Operand<'static>> {
    let mut product = Number::Int(1);
    for operand in call.arguments() {
        let operand = operand?;
        if operand.is_nullish() {
            return Ok(Operand::NULL);
        }
        let Some(number) = operand.number() else {
            bail!(28765, "$multiply only supports numeric types, not {}", operand.type_name())
        };
        product = match (&product, &number) {
            (Number::Int(a), Number::Int(b)) => match a.checked_mul(*b) {
                Some(product) => Number::Int(product),
                None => Number::Double(*a as f64 * *b as f64),
            },
            _ => product.multiply(&number)?,
        };
    }
    Ok(Operand::number_of(product))
}

fn divide(call: &Call<'_>) -> Result<Operand<'static>> {
    let (left, right) = (call.argument(0)?, call.argument(1)?);
    let (Some(a), Some(b)) = (left.number(), right.number()) else {
        if left.is_nullish() || right.is_nullish() {
            return Ok(Operand::NULL);
        }
        bail!(
            Kind::TypeMismatch,
            "$divide only supports numeric types, not {} and {}",
            left.type_name(),
            right.type_name()
        );
    };
    ensure!(!is_zero(&b), Kind::BadValue, "can't $divide by zero");
    Ok(Operand::number_of(quotient(&a, &b)))
}

fn is_zero(number: &Number) -> bool {
    match number {
        Number::Int(value) => *value == 0,
        Number::Double(value) => *value == 0.0,
        Number::Decimal(Decimal::Finite(value)) => value.is_zero(),
        Number::Decimal(_) => false,
    }
}

fn modulo(call: &Call<'_>) -> Result<Operand<'static>> {
    let (left, right) = (call.argument(0)?, call.argument(1)?);
    let (Some(a), Some(b)) = (left.number(), right.number()) else {
        if left.is_nullish() || right.is_nullish() {
            return Ok(Operand::NULL);
        }
        bail!(16611, "$mod only supports numeric types, not {} and {}", left.type_name(), right.type_name());
    };
    ensure!(!is_zero(&b), 16610, "can't $mod by zero");
    Ok(Operand::number_of(match (&a, &b) {
        (Number::Int(a), Number::Int(b)) => Number::Int(a.wrapping_rem(*b)),
        _ if are_decimal(&a, &b) => Number::Decimal(match (finite(&a), finite(&b)) {
            (Some(a), Some(b)) => Decimal::rounded(a % b),
            (Some(_), None) if !b.is_nan() => a.to_decimal(),
            _ => Decimal::NaN,
        }),
        _ => Number::Double(a.to_f64() % b.to_f64()),
    }))
}

fn absolute(number: &Number) -> Result<Number> {
    Ok(match number {
        Number::Int(value) => {
            Number::Int(value.checked_abs().ok_or_else(|| error!(28680, "can't take $abs of long long min"))?)
        }
        Number::Double(value) => Number::Double(value.abs()),
        Number::Decimal(Decimal::Finite(value)) => Number::Decimal(Decimal::Finite(Box::new(value.abs()))),
        Number::Decimal(Decimal::Infinity { .. }) => Number::Decimal(Decimal::Infinity { negative: false }),
        Number::Decimal(Decimal::NaN) => Number::Decimal(Decimal::NaN),
    })
}

/// The number with so many decimals, in its type; negative ones round in front of the point.
fn rounded(number: &Number, places: i64, mode: RoundingMode) -> Number {
    match number {
        Number::Int(value) if places >= 0 => Number::Int(*value),
        Number::Int(value) => {
            let rounded = BigDecimal::from(*value).with_scale_round(places, mode);
            rounded.to_i64().map_or_else(|| Number::Double(rounded.to_f64().unwrap_or(f64::NAN)), Number::Int)
        }
        Number::Double(value) if !value.is_finite() => Number::Double(*value),
        Number::Double(value) => Number::Double(match (places, mode) {
            (0, RoundingMode::Ceiling) => value.ceil(),
            (0, RoundingMode::Floor) => value.floor(),
            (0, RoundingMode::Down) => value.trunc(),
            (0, RoundingMode::HalfEven) => value.round_ties_even(),
            // Rounded as the decimal that the double prints as.
            _ => match format!("{value:e}").parse::<BigDecimal>() {
                Ok(exact) if exact.fractional_digit_count() <= places => *value,
                Ok(exact) => exact.with_scale_round(places, mode).to_f64().unwrap_or(*value),
                Err(_) => *value,
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
    let operand = call.argument(0)?;
    if operand.is_nullish() {
        return Ok(Operand::NULL);
    }
    let Some(number) = operand.number() else {
        bail!(51081, "{} only supports numeric types, not {}", call.name, operand.type_name())
    };
    let mut places = 0;
    if call.given(1) {
        let operand = call.argument(1)?;
        if operand.is_nullish() {
            return Ok(Operand::NULL);
        }
        let Some(given) = operand.number().and_then(|number| number.as_i64()) else {
            bail!(51082, "precision argument to {} must be a integral value", call.name)
        };
        if !(-20..=100).contains(&given) {
            bail!(51083, "cannot apply {} with precision value {given} value must be in [-20, 100]", call.name);
        }
        places = given;
    }
    match (&number, rounded(&number, places, mode)) {
        (Number::Int(_), Number::Double(_)) => bail!(
            51080,
            "invalid conversion from Decimal128 result in {} resulting from arguments: [{}, {places}]",
            call.name,
            operand.shown()
        ),
        (_, result) => Ok(Operand::number_of(result)),
    }
}

fn square_root(number: &Number) -> Result<Number> {
    if number::compare(number, &Number::Int(0)).is_lt() && !number.is_nan() {
        bail!(28714, "$sqrt's argument must be greater than or equal to 0");
    }
    Ok(match number {
        Number::Decimal(Decimal::Finite(value)) => {
            let root = NonZeroU64::new(DECIMAL_DIGITS + 4)
                .and_then(|digits| value.sqrt_with_context(&bigdecimal::Context::new(digits, RoundingMode::HalfEven)));
            Number::Decimal(root.map_or(Decimal::NaN, |root| Decimal::rounded(shortest(root))))
        }
        Number::Decimal(special) => Number::Decimal(special.clone()),
        number => Number::Double(number.to_f64().sqrt()),
    })
}

fn power(call: &Call<'_>) -> Result<Operand<'static>> {
    let (base, exponent) = (call.argument(0)?, call.argument(1)?);
    if base.is_nullish() || exponent.is_nullish() {
        return Ok(Operand::NULL);
    }
    let Some(a) = base.number() else { bail!(28762, "$pow's base must be numeric, not {}", base.type_name()) };
    let Some(b) = exponent.number() else {
        bail!(28763, "$pow's exponent must be numeric, not {}", exponent.type_name())
    };
    if is_zero(&a) && number::compare(&b, &Number::Int(0)).is_lt() && !b.is_nan() {
        bail!(28764, "$pow cannot take a base of 0 and a negative exponent");
    }
    Ok(Operand::number_of(match (&a, &b) {
        (Number::Int(a), Number::Int(b)) => match u32::try_from(*b).ok().and_then(|b| a.checked_pow(b)) {
            Some(power) => Number::Int(power),
            // 1 and -1 are integers whatever the exponent.
            None if *a == 1 => Number::Int(1),
            None if *a == -1 => Number::Int(if b % 2 == 0 { 1 } else { -1 }),
            None => Number::Double((*a as f64).powf(*b as f64)),
        },
        _ if are_decimal(&a, &b) => Number::Decimal(decimal_power(&a.to_decimal(), &b.to_decimal())),
        _ => Number::Double(a.to_f64().powf(b.to_f64())),
    }))
}

fn is_positive(number: &Number) -> bool {
    number.is_nan() || number::compare(number, &Number::Int(0)).is_gt()
}

fn logarithm(number: &Number, kind: Kind, name: &str) -> Result<Number> {
    if !is_positive(number) {
        let shown = Operand::number_of(number.clone()).shown();
        bail!(kind, "{name}'s argument must be a positive number, but is {shown}");
    }
    Ok(continued(number, f64::ln, |x, p, rm, cc| x.ln(p, rm, cc)))
}

fn logarithm_10(number: &Number) -> Result<Number> {
    if !is_positive(number) {
        let shown = Operand::number_of(number.clone()).shown();
        bail!(28761, "$log10's argument must be a positive number, but is {shown}");
    }
    Ok(continued(number, f64::log10, |x, p, rm, cc| x.log10(p, rm, cc)))
}

fn logarithm_of_base(call: &Call<'_>) -> Result<Operand<'static>> {
    let (value, base) = (call.argument(0)?, call.argument(1)?);
    if value.is_nullish() || base.is_nullish() {
        return Ok(Operand::NULL);
    }
    let Some(a) = value.number() else { bail!(28756, "$log's argument must be numeric, not {}", value.type_name()) };
    let Some(b) = base.number() else { bail!(28757, "$log's base must be numeric, not {}", base.type_name()) };
    ensure!(is_positive(&a), 28758, "$log's argument must be a positive number, but is {}", value.shown());
    if !is_positive(&b) || number::compare(&b, &Number::Int(1)).is_eq() {
        bail!(28759, "$log's base must be a positive number not equal to 1, but is {}", base.shown());
    }
    let logarithm = |number: &Number| continued(number, f64::ln, |x, p, rm, cc| x.ln(p, rm, cc));
    Ok(Operand::number_of(if are_decimal(&a, &b) {
        quotient(&logarithm(&Number::Decimal(a.to_decimal())), &logarithm(&Number::Decimal(b.to_decimal())))
    } else {
        Number::Double(a.to_f64().ln() / b.to_f64().ln())
    }))
}
