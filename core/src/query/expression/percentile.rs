//! `$percentile` and `$median` over an array of numbers.

use super::node::Call;
use super::parse::{Arguments, Operator, required};
use crate::error::{Kind, Result};
use crate::query::accumulator::{Method, sorted_numbers, wanted_parts};
use crate::query::operand::Operand;

const MEDIAN: Arguments =
    Arguments::Named(&[required("input", 40414), required("method", 40414)], [7436100, Kind::UnknownOption.code()]);

const PERCENTILE: Arguments = Arguments::Named(
    &[required("input", 40414), required("method", 40414), required("p", 40414)],
    [7429703, Kind::UnknownOption.code()],
);

pub(super) const OPERATORS: &[Operator] = &[
    Operator::new("$median", MEDIAN, |call| Ok(Operand::Made(method(call)?.of_sorted(&numbers(call)?, 0.5)))),
    Operator::new("$percentile", PERCENTILE, |call| {
        let (method, wanted) = (method(call)?, wanted_parts(call.argument(2)?)?);
        let numbers = numbers(call)?;
        Ok(Operand::array(wanted.into_iter().map(|p| method.of_sorted(&numbers, p)).collect()))
    }),
];

/// The requested method.
fn method(call: &Call<'_>) -> Result<Method> {
    Method::parse(call.argument(1)?.text())
}

/// The numbers of the input, sorted, without NaN; other values are ignored.
fn numbers(call: &Call<'_>) -> Result<Vec<f64>> {
    let input = call.argument(0)?;
    let items = if input.is_array() { input.into_items().unwrap_or_default() } else { vec![input] };
    Ok(sorted_numbers(items.iter()))
}
