//! Operators on documents.

use super::node::{Call, ExpressionNode};
use super::parse::{Arguments, Operator, Parser, field, named};
use crate::error::{Result, bail};
use crate::query::operand::Operand;
use crate::values::document::ext_json;
use crate::values::document::number::Number;
use crate::values::document::value::Value;
use serde_json::Value as Json;

pub(super) const OPERATORS: &[Operator] = &[
    Operator::new("$getField", Arguments::Special(parse_get), get),
    Operator::new("$setField", Arguments::Special(parse_set), set),
    Operator::new("$unsetField", Arguments::Special(parse_set), set),
    Operator::unary("$bsonSize", |call, document| match document.is_object() {
        true => Ok(Operand::int(value_size(&document.into_value()) as i64)),
        false => Err(call.wrong_type(&document, "its argument", "a document", 31393)),
    }),
];

/// Parses a constant name of a field: a string, or `{"$literal": name}` (also written `$const`).
fn parse_name(parser: &mut Parser<'_>, operator: &str, json: &Json) -> Result<ExpressionNode> {
    let node = parser.node(json)?;
    if let Json::String(name) = json
        && name.starts_with('$')
    {
        bail!(4161108, "{operator} does not take a path as 'field'. Did you mean {{$literal: '{name}'}}?");
    }
    // An expression over constants does not count as a constant here, although the parser has already computed it.
    let is_computed = ext_json::document(json)
        .is_some_and(|fields| !fields.keys().next().is_some_and(|name| name == "$literal" || name == "$const"));
    match &node {
        ExpressionNode::Constant(Value::String(name)) if !is_computed => {
            ext_json::check_name(name)?;
            Ok(node)
        }
        ExpressionNode::Constant(value) if !is_computed && !matches!(value, Value::Array(_) | Value::Object(_)) => {
            bail!(4161107, "{operator} requires 'field' to evaluate to type String, but got {}", value.type_name())
        }
        _ => bail!(4161106, "{operator} requires 'field' to evaluate to a constant"),
    }
}

/// Parses the name and the document.
fn parse_get(parser: &mut Parser<'_>, operator: &str, argument: &Json) -> Result<Vec<ExpressionNode>> {
    let current = Json::from("$$CURRENT");
    let (name, input) = match argument {
        Json::Object(fields) if !fields.keys().any(|name| name.starts_with('$')) => {
            named(operator, argument, |name| ["field", "input"].contains(&name), [3041701, 3041701])?;
            (field(operator, fields, "field", 3041702)?, field(operator, fields, "input", 3041703)?)
        }
        name => (name, &current),
    };
    Ok(vec![parser.node(name)?, parser.node(input)?])
}

fn get<'s>(call: &Call<'s>) -> Result<Operand<'s>> {
    let name = call.argument(0)?;
    let name = call.text(&name, "'field'", 3041704)?;
    let input = call.argument(1)?;
    if input.is_nullish() {
        return Ok(if input.is_missing() { Operand::Missing } else { Operand::NULL });
    }
    Ok(input.into_field(name))
}

/// Parses the name, the document and the value.
fn parse_set(parser: &mut Parser<'_>, operator: &str, argument: &Json) -> Result<Vec<ExpressionNode>> {
    let names: &[&str] = if operator == "$setField" { &["field", "input", "value"] } else { &["field", "input"] };
    let fields = named(operator, argument, |name| names.contains(&name), [4161100, 4161101])?;
    let name = field(operator, fields, "field", 4161102)?;
    let value = match names.get(2) {
        Some(value) => parser.node(field(operator, fields, value, 4161103)?)?,
        None => ExpressionNode::Absent,
    };
    let input = field(operator, fields, "input", 4161109)?;
    Ok(vec![parse_name(parser, operator, name)?, parser.node(input)?, value])
}

fn set(call: &Call<'_>) -> Result<Operand<'static>> {
    let name = call.argument(0)?;
    let name = name.text().unwrap_or_default().to_owned();
    let Some(input) = call.argument(1)?.non_null() else { return Ok(Operand::NULL) };
    if !input.is_object() {
        return Err(call.wrong_type(&input, "'input'", "a document", 4161105));
    }
    let fields = input.into_fields().unwrap_or_default().into_iter();
    let mut fields: Vec<(String, Value)> = fields.map(|(name, value)| (name, value.into_value())).collect();
    match call.argument(2)?.into_option() {
        Some(value) => match fields.iter_mut().find(|(known, _)| *known == name) {
            Some((_, known)) => *known = value,
            None => fields.push((name, value)),
        },
        None => fields.retain(|(known, _)| *known != name),
    }
    Operand::object(fields)
}

/// The size of a value in BSON, in bytes. Source: the specification at bsonspec.org.
fn value_size(value: &Value) -> usize {
    let string = |text: &str| 4 + text.len() + 1;
    let document = |fields: &[(String, Value)]| {
        4 + fields.iter().map(|(name, value)| 1 + name.len() + 1 + value_size(value)).sum::<usize>() + 1
    };
    match value {
        Value::MinKey | Value::MaxKey | Value::Null | Value::Undefined => 0,
        Value::Number(Number::Decimal(_)) => 16,
        Value::Number(number) if matches!(number, Number::Double(_)) || number.is_long() => 8,
        Value::Number(_) => 4,
        Value::String(text) | Value::Code(text) | Value::Symbol(text) => string(text),
        Value::Object(fields) => document(fields),
        Value::Array(items) => {
            let names = items.iter().enumerate().map(|(index, value)| (index.to_string().len(), value));
            4 + names.map(|(name, value)| 1 + name + 1 + value_size(value)).sum::<usize>() + 1
        }
        Value::Binary(_, bytes) => 4 + 1 + bytes.len(),
        Value::ObjectId(_) => 12,
        Value::Bool(_) => 1,
        Value::Date(_) | Value::Timestamp(..) => 8,
        Value::Regex(pattern, options) => pattern.len() + 1 + options.len() + 1,
        Value::DbPointer(namespace, _) => string(namespace) + 12,
        Value::CodeWithScope(code, scope) => 4 + string(code) + document(scope),
    }
}
