//! Comparison, logic, and choices between expressions.

use super::node::{Call, Node};
use super::parse::{Arguments, Operator, Parser, check_count};
use crate::error::{Error, Kind, Result, bail, ensure, error};
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

/// Stops at the first argument whose truth decides.
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
    let branches = call.len() / 2;
    for branch in 0..branches {
        if call.argument(2 * branch)?.is_true() {
            return call.argument(2 * branch + 1);
        }
    }
    if call.given(2 * branches) {
        return call.argument(2 * branches);
    }
    bail!(40066, "$switch could not find a matching branch for an input, and no default was specified.")
}

fn parse_condition(parser: &mut Parser<'_>, argument: &Json) -> Result<Vec<Node>> {
    let Json::Object(fields) = argument else {
        let items: &[Json] = if let Json::Array(items) = argument { items } else { std::slice::from_ref(argument) };
        check_count("$cond", items.len(), 3, 3)?;
        return items
            .iter()
            .enumerate()
            .map(|(index, item)| if index == 0 { parser.node(item) } else { parser.lazy_node(item) })
            .collect();
    };
    if let Some(unknown) = fields.keys().find(|name| !["if", "then", "else"].contains(&name.as_str())) {
        bail!(17083, "Unrecognized parameter to $cond: {unknown}");
    }
    let part =
        |name: &str, kind: Kind| fields.get(name).ok_or_else(|| error!(kind, "Missing '{name}' parameter to $cond"));
    let condition = part("if", Kind::Location(17080))?;
    let (then, other) = (part("then", Kind::Location(17081)), part("else", Kind::Location(17082))?);
    Ok(vec![parser.node(condition)?, parser.lazy_node(then?)?, parser.lazy_node(other)?])
}

fn parse_if_null(parser: &mut Parser<'_>, argument: &Json) -> Result<Vec<Node>> {
    let items: &[Json] = if let Json::Array(items) = argument { items } else { std::slice::from_ref(argument) };
    ensure!(items.len() >= 2, 1257300, "$ifNull needs at least two arguments, had: {}", items.len());
    items.iter().map(|item| parser.lazy_node(item)).collect()
}

/// Case and result one after the other, then the default.
fn parse_switch(parser: &mut Parser<'_>, argument: &Json) -> Result<Vec<Node>> {
    let error = |kind: Kind, message: String| Err(Error::new(kind, message));
    let found = |json: &Json| ext_json::from_json(json).map_or("object", |value| value.type_name());
    let Json::Object(fields) = argument else {
        return error(
            Kind::Location(40060),
            format!("$switch requires an object as an argument, found: {}", found(argument)),
        );
    };
    if let Some(unknown) = fields.keys().find(|name| !["branches", "default"].contains(&name.as_str())) {
        return error(Kind::Location(40067), format!("$switch found an unknown argument: {unknown}"));
    }
    let branches = match fields.get("branches") {
        Some(Json::Array(branches)) if !branches.is_empty() => branches,
        None | Some(Json::Array(_)) => {
            return error(Kind::Location(40068), "$switch requires at least one branch.".to_owned());
        }
        Some(other) => {
            let message = format!("$switch expected an array for 'branches', found: {}", found(other));
            return error(Kind::Location(40061), message);
        }
    };
    let mut nodes = Vec::with_capacity(2 * branches.len() + 1);
    for branch in branches {
        let Json::Object(fields) = branch else {
            let message = format!("$switch expected each branch to be an object, found: {}", found(branch));
            return error(Kind::Location(40062), message);
        };
        if let Some(unknown) = fields.keys().find(|name| !["case", "then"].contains(&name.as_str())) {
            return error(Kind::Location(40063), format!("$switch found an unknown argument to a branch: {unknown}"));
        }
        let Some(case) = fields.get("case") else {
            return error(Kind::Location(40064), "$switch requires each branch have a 'case' expression".to_owned());
        };
        let Some(then) = fields.get("then") else {
            return error(Kind::Location(40065), "$switch requires each branch have a 'then' expression.".to_owned());
        };
        nodes.push(parser.lazy_node(case)?);
        nodes.push(parser.lazy_node(then)?);
    }
    nodes.push(match fields.get("default") {
        Some(json) => parser.lazy_node(json)?,
        None => Node::Absent,
    });
    Ok(nodes)
}

fn parse_literal(_: &mut Parser<'_>, argument: &Json) -> Result<Vec<Node>> {
    Ok(vec![Node::Constant(ext_json::from_json(argument)?)])
}
