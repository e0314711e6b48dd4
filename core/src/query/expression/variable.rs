//! Operators that bind variables, and those whose result is random: `$rand` and `$createObjectId`.

use super::node::{Call, ExpressionNode};
use super::parse::{
    Arguments, Operator, Parser, check_variable_name, field, literal, named, optional, required, within,
};
use crate::error::{Error, Kind, Result, bail, ensure};
use crate::query::operand::Operand;
use crate::values::document::ext_json;
use crate::values::document::value::Value;
use serde_json::{Map, Value as Json};
use std::time::SystemTime;

pub(super) const OPERATORS: &[Operator] = &[
    Operator::new("$let", Arguments::Special(parse_let), evaluate_let).impure(),
    Operator::new(
        "$map",
        Arguments::Named(
            &[required("input", 16880), literal("as"), within("in", 16882, element_names), literal("arrayIndexAs")],
            [16878, 16879],
        ),
        map,
    )
    .impure(),
    Operator::new(
        "$filter",
        Arguments::Named(
            &[
                required("input", 28648),
                literal("as"),
                within("cond", 28650, element_names),
                optional("limit"),
                literal("arrayIndexAs"),
            ],
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
                within("in", 40079, |fields| {
                    let value = variable_name(fields, "valueAs", VALUE)?;
                    Ok([vec![value], element_names(fields)?].concat())
                }),
                literal("as"),
                literal("valueAs"),
                literal("arrayIndexAs"),
            ],
            [40075, 40076],
        ),
        reduce,
    )
    .impure(),
    Operator::new("$rand", Arguments::Special(parse_nothing), |_| Ok(Operand::double(fastrand::f64()))).impure(),
    Operator::new("$createObjectId", Arguments::Special(parse_nothing), |_| {
        Ok(Operand::Made(Value::ObjectId(object_id())))
    })
    .impure(),
];

/// The default name of the variable of an element.
const ELEMENT: &str = "this";

/// The default name of the variable of `$reduce`'s accumulated value.
const VALUE: &str = "value";
/// The default name of the variable of an element's position.
const INDEX: &str = "IDX";

/// Returns the variable's name in a field of the arguments, or the default if the field is missing.
fn variable_name<'j>(fields: &'j Map<String, Json>, field: &str, default: &'static str) -> Result<&'j str> {
    match fields.get(field) {
        None => Ok(default),
        Some(Json::String(name)) => check_variable_name(name).map(|()| name.as_str()),
        Some(_) => bail!(Kind::FailedToParse, "'{field}' must be the name of a variable"),
    }
}

/// The names of the variables of an element and of its position.
fn element_names(fields: &Map<String, Json>) -> Result<Vec<&str>> {
    Ok(vec![variable_name(fields, "as", ELEMENT)?, variable_name(fields, "arrayIndexAs", INDEX)?])
}

/// The values of an element's two variables: the element and its position.
fn of_element<'v>(index: usize, item: Operand<'v>) -> Vec<Operand<'v>> {
    vec![item, Operand::int(i64::try_from(index).unwrap_or(i64::MAX))]
}

/// Parses the variables' values and the expression.
fn parse_let(parser: &mut Parser<'_>, operator: &str, argument: &Json) -> Result<Vec<ExpressionNode>> {
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
    let items = call.items(input, "'input'", 16883)?.into_iter().enumerate();
    let mapped = items.map(|(index, item)| {
        call.scope.with_all(of_element(index, item), |scope| Ok(call.argument_in(2, scope)?.into_value()))
    });
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
    for (index, item) in items.into_iter().enumerate() {
        if kept.len() >= limit {
            break;
        }
        let variables = of_element(index, item.clone());
        if call.scope.with_all(variables, |scope| Ok::<_, Error>(call.argument_in(2, scope)?.is_true()))? {
            kept.push(item.into_value());
        }
    }
    Operand::array(kept)
}

fn reduce<'s>(call: &Call<'s>) -> Result<Operand<'s>> {
    let Some(input) = call.argument(0)?.non_null() else { return Ok(Operand::NULL) };
    let mut value = call.argument(1)?;
    for (index, item) in call.items(input, "'input'", 40080)?.into_iter().enumerate() {
        let variables = [vec![value], of_element(index, item)].concat();
        let next = call.scope.with_all(variables, |scope| Ok::<_, Error>(call.argument_in(2, scope)?.into_owned()))?;
        value = next;
    }
    Ok(value)
}

/// An ObjectId: the time in seconds, and random bytes.
fn object_id() -> [u8; 12] {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let mut id = [0; 12];
    fastrand::fill(&mut id);
    id[..4].copy_from_slice(&u32::try_from(since.as_secs()).unwrap_or(u32::MAX).to_be_bytes());
    id
}

fn parse_nothing(_: &mut Parser<'_>, operator: &str, argument: &Json) -> Result<Vec<ExpressionNode>> {
    match argument {
        Json::Object(fields) if fields.is_empty() => Ok(Vec::new()),
        Json::Array(items) if items.is_empty() => Ok(Vec::new()),
        argument if argument.is_array() || ext_json::document(argument).is_some() => {
            bail!(3040501, "{operator} does not currently accept arguments")
        }
        _ => bail!(10065, "invalid parameter: expected an object ({operator})"),
    }
}
