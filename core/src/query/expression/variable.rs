//! Operators that bind variables, and the random number.

use super::node::{Call, Node};
use super::parse::{Arguments, Operator, Parser, check_variable_name};
use crate::error::{Error, Kind, Result, bail, error};
use crate::query::operand::Operand;
use crate::values::document::ext_json;
use crate::values::document::value::Value;
use serde_json::{Map, Value as Json};

pub(super) const OPERATORS: &[Operator] = &[
    Operator::impure("$let", Arguments::Special(parse_let), evaluate_let),
    Operator::impure("$map", Arguments::Special(parse_map), map),
    Operator::impure("$filter", Arguments::Special(parse_filter), filter),
    Operator::impure("$reduce", Arguments::Special(parse_reduce), reduce),
    Operator::impure("$rand", Arguments::Special(parse_rand), |_| Ok(Operand::double(fastrand::f64()))),
];

/// The name of an element that is given none.
const ELEMENT: &str = "this";

/// Fields of an operator's argument, with the codes of its errors.
struct Named<'j> {
    operator: &'static str,
    fields: &'j Map<String, Json>,
}

impl<'j> Named<'j> {
    fn of(
        operator: &'static str,
        argument: &'j Json,
        names: &[&str],
        no_object: Kind,
        unknown_name: Kind,
    ) -> Result<Named<'j>> {
        let Json::Object(fields) = argument else {
            let found = ext_json::from_json(argument).map_or("object", |value| value.type_name());
            bail!(no_object, "{operator} only supports an object as its argument, found: {found}");
        };
        if let Some(unknown) = fields.keys().find(|name| !names.contains(&name.as_str())) {
            bail!(unknown_name, "Unrecognized parameter to {operator}: {unknown}");
        }
        Ok(Named { operator, fields })
    }

    fn required(&self, name: &str, missing: Kind) -> Result<&'j Json> {
        let message = || format!("Missing '{name}' parameter to {}", self.operator);
        self.fields.get(name).ok_or_else(|| Error::new(missing, message()))
    }

    /// The variable's name that `as` gives.
    fn element_name(&self) -> Result<&'j str> {
        match self.fields.get("as") {
            None => Ok(ELEMENT),
            Some(Json::String(name)) => check_variable_name(name).map(|()| name.as_str()),
            Some(_) => bail!(Kind::FailedToParse, "'as' must be the name of a variable"),
        }
    }
}

/// The variables' values, then the expression.
fn parse_let(parser: &mut Parser<'_>, argument: &Json) -> Result<Vec<Node>> {
    let named = Named::of("$let", argument, &["vars", "in"], Kind::Location(16874), Kind::Location(16875))?;
    let variables = named.required("vars", Kind::Location(16876))?;
    let inside = named.required("in", Kind::Location(16877))?;
    let Json::Object(variables) = variables else { bail!(10065, "invalid parameter: expected an object (vars)") };
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

fn parse_map(parser: &mut Parser<'_>, argument: &Json) -> Result<Vec<Node>> {
    let named = Named::of("$map", argument, &["input", "as", "in"], Kind::Location(16878), Kind::Location(16879))?;
    let input = named.required("input", Kind::Location(16880))?;
    let inside = named.required("in", Kind::Location(16882))?;
    let name = named.element_name()?;
    Ok(vec![parser.node(input)?, parser.node_with(&[name], inside)?])
}

fn map<'s>(call: &Call<'s>) -> Result<Operand<'s>> {
    let input = call.argument(0)?;
    if input.is_nullish() {
        return Ok(Operand::NULL);
    }
    let Some(items) = input.clone().into_items() else {
        bail!(16883, "input to $map must be an array not {}", input.type_name())
    };
    let mapped =
        items.into_iter().map(|item| call.scope.with(item, |scope| Ok(call.argument_in(1, scope)?.into_value())));
    Ok(Operand::array(mapped.collect::<Result<_>>()?))
}

fn parse_filter(parser: &mut Parser<'_>, argument: &Json) -> Result<Vec<Node>> {
    let names = ["input", "as", "cond", "limit"];
    let named = Named::of("$filter", argument, &names, Kind::Location(28646), Kind::Location(28647))?;
    let input = named.required("input", Kind::Location(28648))?;
    let condition = named.required("cond", Kind::Location(28650))?;
    let name = named.element_name()?;
    let limit = match named.fields.get("limit") {
        Some(json) => parser.node(json)?,
        None => Node::Absent,
    };
    Ok(vec![parser.node(input)?, parser.node_with(&[name], condition)?, limit])
}

fn filter<'s>(call: &Call<'s>) -> Result<Operand<'s>> {
    let input = call.argument(0)?;
    if input.is_nullish() {
        return Ok(Operand::NULL);
    }
    let limit = call.argument(2)?;
    let limit = if limit.is_nullish() {
        usize::MAX
    } else {
        let number = limit.number().and_then(|number| number.as_i64()).filter(|limit| i32::try_from(*limit).is_ok());
        let Some(count) = number else {
            bail!(327391, "$filter: limit must be represented as a 32-bit integral value: {}", limit.shown())
        };
        usize::try_from(count)
            .ok()
            .filter(|count| *count > 0)
            .ok_or_else(|| error!(327392, "$filter: limit must be greater than 0: {count}"))?
    };
    let Some(items) = input.clone().into_items() else {
        bail!(28651, "input to $filter must be an array not {}", input.type_name())
    };
    let mut kept = Vec::new();
    for item in items {
        if kept.len() >= limit {
            break;
        }
        if call.scope.with(item.clone(), |scope| Ok::<_, Error>(call.argument_in(1, scope)?.is_true()))? {
            kept.push(item.into_value());
        }
    }
    Ok(Operand::array(kept))
}

fn parse_reduce(parser: &mut Parser<'_>, argument: &Json) -> Result<Vec<Node>> {
    let names = ["input", "initialValue", "in"];
    let named = Named::of("$reduce", argument, &names, Kind::Location(40075), Kind::Location(40076))?;
    let input = named.required("input", Kind::Location(40077))?;
    let initial = named.required("initialValue", Kind::Location(40078))?;
    let inside = named.required("in", Kind::Location(40079))?;
    Ok(vec![parser.node(input)?, parser.node(initial)?, parser.node_with(&["value", ELEMENT], inside)?])
}

fn reduce<'s>(call: &Call<'s>) -> Result<Operand<'s>> {
    let input = call.argument(0)?;
    if input.is_nullish() {
        return Ok(Operand::NULL);
    }
    let Some(items) = input.clone().into_items() else {
        bail!(40080, "$reduce requires that 'input' be an array, found: {}", input.shown())
    };
    let mut value = call.argument(1)?;
    for item in items {
        let next =
            call.scope.with_all(vec![value, item], |scope| Ok::<_, Error>(call.argument_in(2, scope)?.into_owned()))?;
        value = next;
    }
    Ok(value)
}

fn parse_rand(_: &mut Parser<'_>, argument: &Json) -> Result<Vec<Node>> {
    match ext_json::from_json(argument)? {
        Value::Object(fields) if fields.is_empty() => Ok(Vec::new()),
        Value::Array(items) if items.is_empty() => Ok(Vec::new()),
        _ => bail!(3040501, "$rand does not currently accept arguments"),
    }
}
