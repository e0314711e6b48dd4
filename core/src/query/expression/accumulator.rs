//! What is accumulated over arguments, or over the elements of one array: sums, averages, extremes, deviations.

use super::arithmetic::{Sum, quotient};
use super::node::Call;
use super::operand::Operand;
use super::operators::Operator;
use crate::error::Result;
use crate::values::document::number::Number;
use std::cmp::Ordering;

pub(super) const OPERATORS: &[Operator] = &[
    Operator::any("$sum", |call| {
        let mut sum = Sum::new();
        numbers(call)?.iter().try_for_each(|number| sum.add(number))?;
        Ok(Operand::number_of(sum.total()?))
    }),
    Operator::any("$avg", average),
    Operator::any("$min", |call| extreme(call, Ordering::Less)),
    Operator::any("$max", |call| extreme(call, Ordering::Greater)),
    Operator::any("$stdDevPop", |call| deviation(call, 0)),
    Operator::any("$stdDevSamp", |call| deviation(call, 1)),
];

/// The arguments; of a single one that is an array, its elements.
fn values<'s>(call: &Call<'s>) -> Result<Vec<Operand<'s>>> {
    if call.len() == 1 {
        let only = call.argument(0)?;
        return Ok(if only.is_array() { only.into_items().unwrap_or_default() } else { vec![only] });
    }
    call.arguments().collect()
}

/// What is no number does not count.
fn numbers(call: &Call<'_>) -> Result<Vec<Number>> {
    Ok(values(call)?.iter().filter_map(Operand::number).collect())
}

fn average(call: &Call<'_>) -> Result<Operand<'static>> {
    let numbers = numbers(call)?;
    if numbers.is_empty() {
        return Ok(Operand::NULL);
    }
    let mut sum = Sum::new();
    numbers.iter().try_for_each(|number| sum.add(number))?;
    Ok(Operand::number_of(quotient(&sum.total()?, &Number::Int(numbers.len() as i64))))
}

/// The first value that compares so to all before it; null and missing do not count.
fn extreme<'s>(call: &Call<'s>, wanted: Ordering) -> Result<Operand<'s>> {
    let mut best: Option<Operand<'s>> = None;
    for value in values(call)? {
        if !value.is_nullish() && best.as_ref().is_none_or(|best| call.compare(&value, best) == wanted) {
            best = Some(value);
        }
    }
    Ok(best.unwrap_or(Operand::NULL))
}

/// The standard deviation, by Welford's method.
fn deviation(call: &Call<'_>, fewer: usize) -> Result<Operand<'static>> {
    let (mut count, mut mean, mut squares) = (0usize, 0.0, 0.0);
    for number in numbers(call)? {
        let value = number.to_f64();
        count += 1;
        let delta = value - mean;
        mean += delta / count as f64;
        squares += delta * (value - mean);
    }
    Ok(match count.checked_sub(fewer) {
        None | Some(0) => Operand::NULL,
        Some(divisor) => Operand::double((squares / divisor as f64).sqrt()),
    })
}
