//! Operators on arrays as sets, which ignore order and duplicates.

use super::node::{Call, ExpressionNode};
use super::parse::{Arguments, Operator, Parser, list};
use crate::error::{Result, bail, ensure};
use crate::query::operand::Operand;
use crate::values::document::value::Value;
use serde_json::Value as Json;

pub(super) const OPERATORS: &[Operator] = &[
    Operator::new("$setEquals", Arguments::Special(parse_equals), equals),
    Operator::any("$setIntersection", intersection),
    Operator::any("$setUnion", union),
    Operator::binary("$setDifference", difference),
    Operator::exactly("$setIsSubset", 2, |call| {
        let (left, right) = (call.argument(0)?, call.argument(1)?);
        let items = call.items(left, "its first argument", 17046)?;
        let others = set_of(call, call.items(right, "its second argument", 17042)?);
        Ok(Operand::bool(items.into_iter().all(|item| contains(call, &others, &item.into_value()))))
    }),
    Operator::exactly("$anyElementTrue", 1, |call| {
        Ok(Operand::bool(call.items(call.argument(0)?, "its argument", 17041)?.iter().any(Operand::is_true)))
    }),
    Operator::exactly("$allElementsTrue", 1, |call| {
        Ok(Operand::bool(call.items(call.argument(0)?, "its argument", 17040)?.iter().all(Operand::is_true)))
    }),
];

/// Parses the sets. A constant that is not an array is refused here, with another code than at evaluation (17044).
fn parse_equals(parser: &mut Parser<'_>, operator: &str, argument: &Json) -> Result<Vec<ExpressionNode>> {
    let set = |json: &Json| match parser.node(json)? {
        ExpressionNode::Constant(value) if !matches!(value, Value::Array(_)) => {
            bail!(5887502, "{operator} requires its arguments to be arrays, found: {}", value.type_name())
        }
        node => Ok(node),
    };
    let sets = list(argument);
    ensure!(sets.len() >= 2, 17045, "{operator} needs at least two arguments had: {}", sets.len());
    sets.iter().map(set).collect()
}

/// The elements, sorted, each once.
fn set_of(call: &Call<'_>, items: Vec<Operand<'_>>) -> Vec<Value> {
    let mut values: Vec<Value> = items.into_iter().map(Operand::into_value).collect();
    values.sort_by(|a, b| call.compare_values(a, b));
    values.dedup_by(|a, b| call.compare_values(a, b).is_eq());
    values
}

fn contains(call: &Call<'_>, set: &[Value], value: &Value) -> bool {
    set.binary_search_by(|known| call.compare_values(known, value)).is_ok()
}

fn equals(call: &Call<'_>) -> Result<Operand<'static>> {
    let mut first: Option<Vec<Value>> = None;
    for argument in call.arguments() {
        let set = set_of(call, call.items(argument?, "its arguments", 17044)?);
        let same = |(a, b): (&Value, &Value)| call.compare_values(a, b).is_eq();
        match &first {
            None => first = Some(set),
            Some(known) if known.len() == set.len() && known.iter().zip(&set).all(same) => {}
            Some(_) => return Ok(Operand::bool(false)),
        }
    }
    Ok(Operand::bool(true))
}

fn intersection(call: &Call<'_>) -> Result<Operand<'static>> {
    let mut common: Option<Vec<Value>> = None;
    for argument in call.arguments() {
        let Some(argument) = argument?.non_null() else { return Ok(Operand::NULL) };
        let set = set_of(call, call.items(argument, "its arguments", 17047)?);
        match &mut common {
            None => common = Some(set),
            Some(common) => common.retain(|value| contains(call, &set, value)),
        }
    }
    Operand::array(common.unwrap_or_default())
}

fn union(call: &Call<'_>) -> Result<Operand<'static>> {
    let mut all = Vec::new();
    for argument in call.arguments() {
        let Some(argument) = argument?.non_null() else { return Ok(Operand::NULL) };
        all.extend(call.items(argument, "its arguments", 17043)?);
    }
    Operand::array(set_of(call, all))
}

/// Returns the elements of the first array that are not in the second, each once, in the order of the first array.
fn difference(call: &Call<'_>, left: Operand<'_>, right: Operand<'_>) -> Result<Operand<'static>> {
    let items = call.items(left, "its first argument", 17048)?;
    let excluded = set_of(call, call.items(right, "its second argument", 17049)?);
    let mut kept: Vec<(usize, Value)> = items.into_iter().map(Operand::into_value).enumerate().collect();
    kept.retain(|(_, value)| !contains(call, &excluded, value));
    // The sort is stable, so `dedup_by` keeps the first of equal elements.
    kept.sort_by(|(_, a), (_, b)| call.compare_values(a, b));
    kept.dedup_by(|(_, b), (_, a)| call.compare_values(a, b).is_eq());
    kept.sort_unstable_by_key(|(position, _)| *position);
    Operand::array(kept.into_iter().map(|(_, value)| value).collect())
}
