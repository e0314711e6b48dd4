//! `$percentile` and `$median` over an array of numbers.

use super::node::{Call, ExpressionNode};
use super::parse::{Arguments, Operator, Parameter, Parser, required};
use crate::error::{Kind, Result, ensure};
use crate::query::accumulator::{Method, sorted_numbers, wanted_parts};
use crate::query::operand::Operand;
use serde_json::Value as Json;

const MEDIAN: Arguments =
    Arguments::Named(&[required("input", 40414), required("method", 40414)], [7436201, Kind::UnknownOption.code()]);

const PERCENTILE: &[Parameter] = &[required("input", 40414), required("method", 40414), required("p", 40414)];

pub(super) const OPERATORS: &[Operator] = &[
    Operator::new("$median", MEDIAN, |call| Ok(Operand::Made(method(call)?.of_sorted(&numbers(call)?, 0.5)))),
    Operator::new("$percentile", Arguments::Special(parse_percentile), |call| {
        let (method, wanted) = (method(call)?, wanted_parts(call.argument(2)?)?);
        let numbers = numbers(call)?;
        Operand::array(wanted.into_iter().map(|p| method.of_sorted(&numbers, p)).collect())
    }),
];

/// Parses the arguments; the percentiles must be constant.
fn parse_percentile(parser: &mut Parser<'_>, operator: &str, argument: &Json) -> Result<Vec<ExpressionNode>> {
    let nodes = parser.named(operator, argument, PERCENTILE, [7436200, Kind::UnknownOption.code()])?;
    let is_constant = |parts: &ExpressionNode| matches!(parts, ExpressionNode::Constant(_)) || parts.has_open();
    ensure!(nodes.last().is_some_and(is_constant), 7750300, "The {operator} 'p' field must be an array of constants");
    Ok(nodes)
}

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
