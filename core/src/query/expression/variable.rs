//! Operators that bind variables, and `$rand`.

use super::node::{Call, Node};
use super::parse::{
    Arguments, Operator, Parser, check_variable_name, field, literal, named, optional, required, within,
};
use crate::error::{Error, Kind, Result, bail, ensure};
use crate::query::operand::Operand;
use crate::values::document::ext_json;
use serde_json::{Map, Value as Json};

pub(super) const OPERATORS: &[Operator] = &[
    Operator::new("$let", Arguments::Special(parse_let), evaluate_let).impure(),
    Operator::new(
        "$map",
        Arguments::Named(&[required("input", 16880), literal("as"), within("in", 16882, element_name)], [16878, 16879]),
        map,
    )
    .impure(),
    Operator::new(
        "$filter",
        Arguments::Named(
            &[required("input", 28648), literal("as"), within("cond", 28650, element_name), optional("limit")],
            [28646, 28647],
        ),
        filter,
    )
    .impure(),
    Operator::new(
        "$reduce",
        Arguments::Named(
            &[
                required("input", 40077),
                required("initialValue", 40078),
                within("in", 40079, |_| Ok(vec!["value", ELEMENT])),
            ],
            [40075, 40076],
        ),
        reduce,
    )
    .impure(),
    Operator::new("$rand", Arguments::Special(parse_rand), |_| Ok(Operand::double(fastrand::f64()))).impure(),
];

/// The default name of the variable of an element.
const ELEMENT: &str = "this";

/// The name of the variable of an element: `as`, or the default.
fn element_name(fields: &Map<String, Json>) -> Result<Vec<&str>> {
    match fields.get("as") {
        None => Ok(vec![ELEMENT]),
        Some(Json::String(name)) => check_variable_name(name).map(|()| vec![name.as_str()]),
        Some(_) => bail!(Kind::FailedToParse, "'as' must be the name of a variable"),
    }
}

/// Parses the variables' values and the expression.
fn parse_let(parser: &mut Parser<'_>, operator: &str, argument: &Json) -> Result<Vec<Node>> {
    let fields = named(operator, argument, |name| ["vars", "in"].contains(&name), [16874, 16875])?;
    let variables = field(operator, fields, "vars", 16876)?;
    let inside = field(operator, fields, "in", 16877)?;
    let Some(variables) = ext_json::document(variables) else {
        bail!(10065, "invalid parameter: expected an object (vars)")
    };
    let mut nodes = Vec::with_capacity(variables.len() + 1);
    for (name, json) in variables {
        check_variable_name(name)?;
        nodes.push(parser.node(json)?);
    }
    let names: Vec<&str> = variables.keys().map(String::as_str).collect();
    nodes.push(parser.node_with(&names, inside)?);
    Ok(nodes)
}

fn evaluate_let<'s>(call: &Call<'s>) -> Result<Operand<'s>> {
    let last = call.len() - 1;
    let values = call.arguments().take(last).collect::<Result<Vec<_>>>()?;
    call.scope.with_all(values, |scope| Ok(call.argument_in(last, scope)?.into_owned()))
}

fn map<'s>(call: &Call<'s>) -> Result<Operand<'s>> {
    let Some(input) = call.argument(0)?.non_null() else { return Ok(Operand::NULL) };
    let items = call.items(input, "'input'", 16883)?.into_iter();
    let mapped = items.map(|item| call.scope.with(item, |scope| Ok(call.argument_in(2, scope)?.into_value())));
    Operand::array(mapped.collect::<Result<_>>()?)
}

fn filter<'s>(call: &Call<'s>) -> Result<Operand<'s>> {
    let Some(input) = call.argument(0)?.non_null() else { return Ok(Operand::NULL) };
    let items = call.items(input, "'input'", 28651)?;
    let limit = if items.is_empty() { None } else { call.argument(3)?.non_null() };
    let limit = match limit {
        None => usize::MAX,
        Some(limit) => {
            let count = call.int32(&limit, "'limit'", [327391, 327391])?;
            ensure!(count > 0, 327392, "$filter: limit must be greater than 0: {count}");
            count as usize
        }
    };
    let mut kept = Vec::new();
    for item in items {
        if kept.len() >= limit {
            break;
        }
        if call.scope.with(item.clone(), |scope| Ok::<_, Error>(call.argument_in(2, scope)?.is_true()))? {
            kept.push(item.into_value());
        }
    }
    Operand::array(kept)
}

fn reduce<'s>(call: &Call<'s>) -> Result<Operand<'s>> {
    let Some(input) = call.argument(0)?.non_null() else { return Ok(Operand::NULL) };
    let mut value = call.argument(1)?;
    for item in call.items(input, "'input'", 40080)? {
        let next =
            call.scope.with_all(vec![value, item], |scope| Ok::<_, Error>(call.argument_in(2, scope)?.into_owned()))?;
        value = next;
    }
    Ok(value)
}

fn parse_rand(_: &mut Parser<'_>, _: &str, argument: &Json) -> Result<Vec<Node>> {
    match argument {
        Json::Object(fields) if fields.is_empty() => Ok(Vec::new()),
        Json::Array(items) if items.is_empty() => Ok(Vec::new()),
        argument if argument.is_array() || ext_json::document(argument).is_some() => {
            bail!(3040501, "$rand does not currently accept arguments")
        }
        _ => bail!(10065, "invalid parameter: expected an object ($rand)"),
    }
}
