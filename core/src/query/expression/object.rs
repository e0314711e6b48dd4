//! Documents.

use super::node::Call;
use super::node::Node;
use super::parse::{Arguments, Operator, Parser};
use crate::error::{Kind, Result, bail, ensure};
use crate::query::operand::Operand;
use crate::values::document::ext_json;
use crate::values::document::number::Number;
use crate::values::document::value::Value;
use serde_json::Value as Json;

pub(super) const OPERATORS: &[Operator] = &[
    Operator::new("$getField", Arguments::Special(parse_get), get),
    Operator::new("$setField", Arguments::Special(|parser, json| parse_set(parser, json, "$setField")), set),
    Operator::new("$unsetField", Arguments::Special(|parser, json| parse_set(parser, json, "$unsetField")), set),
    Operator::exactly("$bsonSize", 1, bson_size),
];

fn found(json: &Json) -> &'static str {
    ext_json::from_json(json).map_or("object", |value| value.type_name())
}

/// A field's name that must not depend on the document: a text, or `{"$literal": text}`.
fn constant_name(operator: &str, parser: &mut Parser<'_>, json: &Json, not_constant: Kind) -> Result<Node> {
    if let Json::String(name) = json
        && name.starts_with('$')
    {
        bail!(
            5654600,
            "A field path reference which is not allowed in this context. Did you mean {{$literal: '{name}'}}?"
        );
    }
    match parser.node(json)? {
        node @ Node::Constant(Value::String(_)) => Ok(node),
        Node::Constant(other) => {
            bail!(5654602, "{operator} requires 'field' to evaluate to type String, but got {}", other.type_name())
        }
        _ => bail!(not_constant, "{operator} requires 'field' to evaluate to a constant"),
    }
}

/// The name, then the document.
fn parse_get(parser: &mut Parser<'_>, argument: &Json) -> Result<Vec<Node>> {
    let current = Json::String("$$CURRENT".to_owned());
    let (field, input) = match argument {
        Json::Object(fields) if !fields.keys().any(|name| name.starts_with('$')) => {
            if let Some(unknown) = fields.keys().find(|name| !["field", "input"].contains(&name.as_str())) {
                bail!(3041701, "$getField found an unknown argument: {unknown}");
            }
            let Some(field) = fields.get("field") else { bail!(3041702, "$getField requires 'field' to be specified") };
            let Some(input) = fields.get("input") else { bail!(3041703, "$getField requires 'input' to be specified") };
            (field, input)
        }
        field => (field, &current),
    };
    if let Json::String(name) = field
        && name.starts_with('$')
    {
        bail!(
            5654600,
            "A field path reference which is not allowed in this context. Did you mean {{$literal: '{name}'}}?"
        );
    }
    let name = parser.node(field)?;
    if let Node::Constant(value) = &name
        && !matches!(value, Value::String(_))
    {
        bail!(5654602, "$getField requires 'field' to evaluate to type String, but got {}", value.type_name());
    }
    Ok(vec![name, parser.node(input)?])
}

fn get<'s>(call: &Call<'s>) -> Result<Operand<'s>> {
    let name = call.argument(0)?;
    let Some(name) = name.text() else {
        bail!(3041704, "$getField requires 'field' to evaluate to type String, but got {}", name.type_name())
    };
    let input = call.argument(1)?;
    if input.is_nullish() {
        return Ok(if input.is_missing() { Operand::Missing } else { Operand::NULL });
    }
    Ok(input.into_field(name))
}

/// The name, the document, the value.
fn parse_set(parser: &mut Parser<'_>, argument: &Json, operator: &str) -> Result<Vec<Node>> {
    let sets_value = operator == "$setField";
    let Json::Object(fields) = argument else {
        bail!(4161100, "{operator} only supports an object as its argument, found: {}", found(argument))
    };
    let names: &[&str] = if sets_value { &["field", "input", "value"] } else { &["field", "input"] };
    if let Some(unknown) = fields.keys().find(|name| !names.contains(&name.as_str())) {
        bail!(4161101, "{operator} found an unknown argument: {unknown}");
    }
    let Some(field) = fields.get("field") else { bail!(4161102, "{operator} requires 'field' to be specified") };
    let Some(input) = fields.get("input") else { bail!(4161109, "{operator} requires 'input' to be specified") };
    let value = match (fields.get("value"), sets_value) {
        (Some(value), _) => parser.node(value)?,
        (None, false) => Node::Absent,
        (None, true) => bail!(4161103, "$setField requires 'value' to be specified"),
    };
    Ok(vec![constant_name(operator, parser, field, Kind::Location(4161106))?, parser.node(input)?, value])
}

fn set(call: &Call<'_>) -> Result<Operand<'static>> {
    let name = call.argument(0)?;
    let name = name.text().unwrap_or_default().to_owned();
    let input = call.argument(1)?;
    if input.is_nullish() {
        return Ok(Operand::NULL);
    }
    let type_name = input.type_name();
    let Some(fields) = input.into_fields() else {
        bail!(4161105, "{} requires 'input' to evaluate to type Object, found: {type_name}", call.name)
    };
    let mut fields: Vec<(String, Value)> = fields.into_iter().map(|(name, value)| (name, value.into_value())).collect();
    match call.argument(2)?.into_option() {
        Some(value) => match fields.iter_mut().find(|(known, _)| *known == name) {
            Some((_, known)) => *known = value,
            None => fields.push((name, value)),
        },
        None => fields.retain(|(known, _)| *known != name),
    }
    Ok(Operand::Made(Value::Object(fields)))
}

/// The size that the document would have as BSON.
fn bson_size(call: &Call<'_>) -> Result<Operand<'static>> {
    let document = call.argument(0)?;
    if document.is_nullish() {
        return Ok(Operand::NULL);
    }
    ensure!(document.is_object(), 31393, "$bsonSize requires a document input, found: {}", document.type_name());
    Ok(Operand::int(value_size(&document.into_value()) as i64))
}

/// Bytes of a value in BSON. Source: the specification at bsonspec.org.
fn value_size(value: &Value) -> usize {
    let string = |text: &str| 4 + text.len() + 1;
    let document = |fields: &[(String, Value)]| {
        4 + fields.iter().map(|(name, value)| 1 + name.len() + 1 + value_size(value)).sum::<usize>() + 1
    };
    match value {
        Value::MinKey | Value::MaxKey | Value::Null | Value::Undefined => 0,
        Value::Number(Number::Int(value)) if i32::try_from(*value).is_ok() => 4,
        Value::Number(Number::Int(_) | Number::Double(_)) => 8,
        Value::Number(Number::Decimal(_)) => 16,
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
