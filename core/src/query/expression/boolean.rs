//! Operators of comparison and logic, and conditional operators.

use super::node::{Call, ExpressionNode};
use super::parse::{Arguments, Operator, Parser, check_count, field, list, named, type_name};
use crate::error::{Result, bail, ensure};
use crate::query::operand::Operand;
use crate::values::document::ext_json;
use serde_json::Value as Json;
use std::cmp::Ordering;

pub(super) const OPERATORS: &[Operator] = &[
    Operator::exactly("$eq", 2, |call| compared(call, Ordering::is_eq)),
    Operator::exactly("$ne", 2, |call| compared(call, Ordering::is_ne)),
    Operator::exactly("$gt", 2, |call| compared(call, Ordering::is_gt)),
    Operator::exactly("$gte", 2, |call| compared(call, Ordering::is_ge)),
    Operator::exactly("$lt", 2, |call| compared(call, Ordering::is_lt)),
    Operator::exactly("$lte", 2, |call| compared(call, Ordering::is_le)),
    Operator::exactly("$cmp", 2, |call| Ok(Operand::int(order(call)? as i64))),
    Operator::any("$and", |call| decided(call, false)),
    Operator::any("$or", |call| decided(call, true)),
    Operator::exactly("$not", 1, |call| Ok(Operand::bool(!call.argument(0)?.is_true()))),
    Operator::new("$cond", Arguments::Special(parse_condition), |call| {
        call.argument(if call.argument(0)?.is_true() { 1 } else { 2 })
    }),
    Operator::new("$ifNull", Arguments::Special(parse_if_null), if_null),
    Operator::new("$switch", Arguments::Special(parse_switch), switch),
    Operator::new("$literal", Arguments::Special(parse_literal), |call| call.argument(0)),
    Operator::new("$const", Arguments::Special(parse_literal), |call| call.argument(0)),
];

fn order(call: &Call<'_>) -> Result<Ordering> {
    Ok(call.compare(&call.argument(0)?, &call.argument(1)?))
}

fn compared(call: &Call<'_>, accepts: fn(Ordering) -> bool) -> Result<Operand<'static>> {
    Ok(Operand::bool(accepts(order(call)?)))
}

/// `$and` if `by` is false, `$or` if it is true: the first argument whose truth equals `by` decides, the rest is not evaluated.
fn decided(call: &Call<'_>, by: bool) -> Result<Operand<'static>> {
    for argument in call.arguments() {
        if argument?.is_true() == by {
            return Ok(Operand::bool(by));
        }
    }
    Ok(Operand::bool(!by))
}

fn if_null<'s>(call: &Call<'s>) -> Result<Operand<'s>> {
    let last = call.len().saturating_sub(1);
    for index in 0..last {
        let value = call.argument(index)?;
        if !value.is_nullish() {
            return Ok(value);
        }
    }
    call.argument(last)
}

fn switch<'s>(call: &Call<'s>) -> Result<Operand<'s>> {
    let default = call.len() - 1;
    for case in (0..default).step_by(2) {
        if call.argument(case)?.is_true() {
            return call.argument(case + 1);
        }
    }
    ensure!(
        call.is_given(default),
        40066,
        "$switch could not find a matching branch for an input, and no default was specified."
    );
    call.argument(default)
}

fn parse_condition(parser: &mut Parser<'_>, operator: &str, argument: &Json) -> Result<Vec<ExpressionNode>> {
    let [condition, then, other] = if ext_json::document(argument).is_some() {
        let fields = named(operator, argument, |name| ["if", "then", "else"].contains(&name), [17083, 17083])?;
        let part = |name: &str, code: i32| field(operator, fields, name, code);
        [part("if", 17080)?, part("then", 17081)?, part("else", 17082)?]
    } else {
        check_count(operator, list(argument).len(), 3, 3)?;
        [0, 1, 2].map(|index| &list(argument)[index])
    };
    Ok(vec![parser.node(condition)?, parser.lazy_node(then)?, parser.lazy_node(other)?])
}

fn parse_if_null(parser: &mut Parser<'_>, _: &str, argument: &Json) -> Result<Vec<ExpressionNode>> {
    let items = list(argument);
    ensure!(items.len() >= 2, 1257300, "$ifNull needs at least two arguments, had: {}", items.len());
    items.iter().map(|item| parser.lazy_node(item)).collect()
}

/// Parses the branches into pairs of condition and result, followed by the default.
fn parse_switch(parser: &mut Parser<'_>, operator: &str, argument: &Json) -> Result<Vec<ExpressionNode>> {
    let fields = named(operator, argument, |name| ["branches", "default"].contains(&name), [40060, 40067])?;
    let branches = match fields.get("branches") {
        Some(Json::Array(branches)) if !branches.is_empty() => branches,
        None | Some(Json::Array(_)) => bail!(40068, "$switch requires at least one branch."),
        Some(other) => bail!(40061, "$switch expected an array for 'branches', found: {}", type_name(other)),
    };
    let mut nodes = Vec::with_capacity(2 * branches.len() + 1);
    for branch in branches {
        let fields = named("a branch of $switch", branch, |name| ["case", "then"].contains(&name), [40062, 40063])?;
        nodes.push(parser.lazy_node(field("a branch of $switch", fields, "case", 40064)?)?);
        nodes.push(parser.lazy_node(field("a branch of $switch", fields, "then", 40065)?)?);
    }
    let default = fields.get("default").map_or(Ok(ExpressionNode::Absent), |json| parser.lazy_node(json))?;
    let is_false =
        |node: &ExpressionNode| matches!(node, ExpressionNode::Constant(value) if !Operand::Given(value).is_true());
    if matches!(default, ExpressionNode::Absent) && nodes.iter().step_by(2).all(is_false) {
        bail!(40069, "$switch requires a default if the cases of all branches are false");
    }
    nodes.push(default);
    Ok(nodes)
}

fn parse_literal(_: &mut Parser<'_>, _: &str, argument: &Json) -> Result<Vec<ExpressionNode>> {
    Ok(vec![ExpressionNode::Constant(ext_json::from_json(argument)?)])
}
