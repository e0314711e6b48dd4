//! From JSON to a filter's tree.
//!
//! The operators are tables: a name and the function that parses its argument. What MongoDB knows and this engine does
//! not yet is listed too, so that it gets an error of its own.

use super::node::{Node, Side, Test};
use crate::document::number::Number;
use crate::document::order::Class;
use crate::document::value::Value;
use crate::document::{MAX_DEPTH, ext_json};
use crate::error::{Error, Kind, Result};
use serde_json::{Map, Value as Json};

/// An operator on a field: `{path: {name: argument}}`.
struct FieldOperator {
    name: &'static str,
    parse: fn(path: &str, argument: &Json, depth: usize) -> Result<Node>,
}

const FIELD_OPERATORS: &[FieldOperator] = &[
    FieldOperator { name: "$eq", parse: eq },
    FieldOperator { name: "$ne", parse: ne },
    FieldOperator { name: "$gt", parse: |path, argument, _| range(path, Side::Greater, argument) },
    FieldOperator { name: "$gte", parse: |path, argument, _| range(path, Side::GreaterOrEqual, argument) },
    FieldOperator { name: "$lt", parse: |path, argument, _| range(path, Side::Less, argument) },
    FieldOperator { name: "$lte", parse: |path, argument, _| range(path, Side::LessOrEqual, argument) },
    FieldOperator { name: "$in", parse: |path, argument, _| membership(path, "$in", argument) },
    FieldOperator { name: "$nin", parse: |path, argument, _| Ok(not(membership(path, "$nin", argument)?)) },
    FieldOperator { name: "$not", parse: not_operators },
    FieldOperator { name: "$exists", parse: exists },
    FieldOperator { name: "$comment", parse: |_, _, _| Ok(Node::And(Vec::new())) },
];

/// MongoDB's operators on a field that are not understood yet.
const FIELD_OPERATORS_TO_COME: &[&str] = &[
    "$all",
    "$bitsAllClear",
    "$bitsAllSet",
    "$bitsAnyClear",
    "$bitsAnySet",
    "$elemMatch",
    "$geoIntersects",
    "$geoWithin",
    "$mod",
    "$near",
    "$nearSphere",
    "$options",
    "$regex",
    "$size",
    "$type",
    "$within",
];

/// An operator that stands where a path could: `{name: argument}`.
struct TopLevelOperator {
    name: &'static str,
    parse: fn(name: &str, argument: &Json, depth: usize) -> Result<Node>,
}

const TOP_LEVEL_OPERATORS: &[TopLevelOperator] = &[
    TopLevelOperator { name: "$and", parse: |name, argument, depth| Ok(Node::And(branches(name, argument, depth)?)) },
    TopLevelOperator { name: "$or", parse: |name, argument, depth| Ok(Node::Or(branches(name, argument, depth)?)) },
    TopLevelOperator {
        name: "$nor",
        parse: |name, argument, depth| Ok(not(Node::Or(branches(name, argument, depth)?))),
    },
    TopLevelOperator { name: "$comment", parse: |_, _, _| Ok(Node::And(Vec::new())) },
];

/// MongoDB's operators at the top level that are not understood yet.
const TOP_LEVEL_OPERATORS_TO_COME: &[&str] =
    &["$alwaysFalse", "$alwaysTrue", "$expr", "$jsonSchema", "$sampleRate", "$text", "$where"];

/// Names that start an extended value, or a DBRef, rather than a document of operators.
const VALUE_NAMES: &[&str] = &[
    "$oid",
    "$date",
    "$numberInt",
    "$numberLong",
    "$numberDouble",
    "$numberDecimal",
    "$binary",
    "$uuid",
    "$timestamp",
    "$regularExpression",
    "$dbPointer",
    "$code",
    "$symbol",
    "$undefined",
    "$minKey",
    "$maxKey",
    "$ref",
    "$id",
    "$db",
];

/// The deepest nesting of `$and`, `$or`, `$nor` and `$not`: MongoDB's limit.
const MAX_FILTER_DEPTH: usize = 100;

/// The deepest JSON that is looked at: every logical operator takes two levels, an object and an array.
const MAX_JSON_DEPTH: usize = MAX_DEPTH + 2 * MAX_FILTER_DEPTH;

/// Parses a whole filter.
pub(super) fn filter(json: &Json) -> Result<Node> {
    if !is_shallow(json, MAX_JSON_DEPTH) {
        return Err(too_deep());
    }
    document(json, 0)
}

fn document(json: &Json, depth: usize) -> Result<Node> {
    if depth > MAX_FILTER_DEPTH {
        return Err(too_deep());
    }
    let Json::Object(fields) = json else {
        return Err(bad_value(format!("the filter must be an object, not {}", json_type(json))));
    };
    let mut nodes = Vec::with_capacity(fields.len());
    for (name, argument) in fields {
        let node = match TOP_LEVEL_OPERATORS.iter().find(|operator| operator.name == name) {
            Some(operator) => (operator.parse)(name, argument, depth)?,
            None if TOP_LEVEL_OPERATORS_TO_COME.contains(&name.as_str()) => return Err(to_come(name)),
            None if name.starts_with('$') => {
                return Err(bad_value(format!(
                    "unknown top level operator: {name}. If you have a field name that starts with a '$' symbol, \
                     consider using $getField or $setField."
                )));
            }
            None => field(name, argument, depth)?,
        };
        push(&mut nodes, node);
    }
    Ok(Node::And(nodes))
}

/// The filters in an argument of `$and`, `$or` or `$nor`.
fn branches(name: &str, argument: &Json, depth: usize) -> Result<Vec<Node>> {
    let elements = match argument {
        Json::Array(elements) if !elements.is_empty() => elements,
        Json::Array(_) => return Err(bad_value("$and/$or/$nor must be a nonempty array")),
        _ => return Err(bad_value(format!("{name} must be an array"))),
    };
    elements
        .iter()
        .map(|element| match element {
            Json::Object(_) => document(element, depth + 1),
            _ => Err(bad_value("$or/$and/$nor entries need to be full objects")),
        })
        .collect()
}

/// `{path: argument}`: operators, or a value to equal.
fn field(path: &str, argument: &Json, depth: usize) -> Result<Node> {
    if let Some(operators) = as_operators(argument) {
        return field_operators(path, operators, depth);
    }
    if let Json::Object(fields) = argument
        && !is_extended(fields)
        && let Some(name) = fields.keys().find(|name| name.starts_with('$') && !VALUE_NAMES.contains(&name.as_str()))
    {
        return Err(unknown_operator(name));
    }
    match ext_json::from_json(argument)? {
        Value::Regex(..) => Err(regex_to_come()),
        value => equality(path, value),
    }
}

fn field_operators(path: &str, operators: &Map<String, Json>, depth: usize) -> Result<Node> {
    let mut nodes = Vec::with_capacity(operators.len());
    for (name, argument) in operators {
        let node = match FIELD_OPERATORS.iter().find(|operator| operator.name == name) {
            Some(operator) => (operator.parse)(path, argument, depth)?,
            None if FIELD_OPERATORS_TO_COME.contains(&name.as_str()) => return Err(to_come(name)),
            None => return Err(unknown_operator(name)),
        };
        push(&mut nodes, node);
    }
    Ok(if nodes.len() == 1 { nodes.remove(0) } else { Node::And(nodes) })
}

fn eq(path: &str, argument: &Json, _: usize) -> Result<Node> {
    equality(path, ext_json::from_json(argument)?)
}

fn ne(path: &str, argument: &Json, _: usize) -> Result<Node> {
    match ext_json::from_json(argument)? {
        Value::Regex(..) => Err(bad_value("Can't have regex as arg to $ne.")),
        value => Ok(not(equality(path, value)?)),
    }
}

fn equality(path: &str, value: Value) -> Result<Node> {
    defined(&value)?;
    Ok(leaf(path, Test::equal(value)))
}

fn range(path: &str, side: Side, argument: &Json) -> Result<Node> {
    let bound = ext_json::from_json(argument)?;
    defined(&bound)?;
    if Class::of(&bound) == Class::Regex {
        return Err(bad_value(format!("Can't have RegEx as arg to predicate over field '{path}'.")));
    }
    Ok(leaf(path, Test::range(side, bound)))
}

fn membership(path: &str, name: &str, argument: &Json) -> Result<Node> {
    let Json::Array(elements) = argument else { return Err(bad_value(format!("{name} needs an array"))) };
    let mut values = Vec::with_capacity(elements.len());
    for element in elements {
        if let Some(operators) = as_operators(element) {
            return Err(match operators.contains_key("$regex") {
                true => regex_to_come(),
                false => bad_value(format!("cannot nest $ under {name}")),
            });
        }
        let value = ext_json::from_json(element)?;
        if Class::of(&value) == Class::Regex {
            return Err(regex_to_come());
        }
        defined(&value)?;
        values.push(value);
    }
    Ok(leaf(path, Test::one_of(values)))
}

fn not_operators(path: &str, argument: &Json, depth: usize) -> Result<Node> {
    if depth >= MAX_FILTER_DEPTH {
        return Err(too_deep());
    }
    match argument {
        Json::Object(operators) if operators.is_empty() => Err(bad_value("$not cannot be empty")),
        Json::Object(operators) if operators.contains_key("$regularExpression") => Err(regex_to_come()),
        Json::Object(operators) => Ok(not(field_operators(path, operators, depth + 1)?)),
        _ => Err(bad_value("$not needs a regex or a document")),
    }
}

fn exists(path: &str, argument: &Json, _: usize) -> Result<Node> {
    let wanted = match ext_json::from_json(argument)? {
        Value::Null | Value::Undefined => false,
        Value::Bool(wanted) => wanted,
        number @ Value::Number(_) => number != Value::Number(Number::Int(0)),
        _ => true,
    };
    let exists = leaf(path, Test::Exists);
    Ok(if wanted { exists } else { not(exists) })
}

fn leaf(path: &str, test: Test) -> Node {
    Node::Leaf(path.to_owned(), test)
}

fn not(node: Node) -> Node {
    Node::Not(Box::new(node))
}

/// Adds to a conjunction, which stays flat.
fn push(conjunction: &mut Vec<Node>, node: Node) {
    match node {
        Node::And(nodes) => conjunction.extend(nodes),
        node => conjunction.push(node),
    }
}

/// The operators of an object whose first name starts with `$`, unless it is a value.
fn as_operators(json: &Json) -> Option<&Map<String, Json>> {
    let Json::Object(fields) = json else { return None };
    let first = fields.keys().next()?;
    (first.starts_with('$') && !is_extended(fields)).then_some(fields)
}

/// True for an extended value or a DBRef, whatever the order of its names (legacy forms put `$type` before `$binary`).
fn is_extended(fields: &Map<String, Json>) -> bool {
    fields.keys().next().is_some_and(|first| VALUE_NAMES.contains(&first.as_str()))
        || ["$binary", "$code"].iter().any(|name| fields.contains_key(*name))
}

/// True if the JSON nests at most `levels` deep.
fn is_shallow(json: &Json, levels: usize) -> bool {
    match json {
        Json::Object(_) | Json::Array(_) if levels == 0 => false,
        Json::Object(fields) => fields.values().all(|value| is_shallow(value, levels - 1)),
        Json::Array(elements) => elements.iter().all(|value| is_shallow(value, levels - 1)),
        _ => true,
    }
}

fn defined(value: &Value) -> Result<()> {
    if matches!(value, Value::Undefined) { Err(bad_value("cannot compare to undefined")) } else { Ok(()) }
}

fn json_type(json: &Json) -> &'static str {
    match json {
        Json::Null => "null",
        Json::Bool(_) => "bool",
        Json::Number(_) => "a number",
        Json::String(_) => "a string",
        Json::Array(_) => "an array",
        Json::Object(_) => "an object",
    }
}

fn bad_value(message: impl Into<String>) -> Error {
    Error::new(Kind::BadValue, message)
}

fn unknown_operator(name: &str) -> Error {
    bad_value(format!("unknown operator: {name}"))
}

fn to_come(name: &str) -> Error {
    Error::new(Kind::NotImplemented, format!("the query operator {name} is not supported yet"))
}

fn regex_to_come() -> Error {
    Error::new(Kind::NotImplemented, "matching by a regular expression is not supported yet")
}

fn too_deep() -> Error {
    bad_value(format!("exceeded depth: a filter nests at most {MAX_FILTER_DEPTH} deep"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_operator_is_listed_once() {
        let field = FIELD_OPERATORS.iter().map(|operator| operator.name).chain(FIELD_OPERATORS_TO_COME.iter().copied());
        let top =
            TOP_LEVEL_OPERATORS.iter().map(|operator| operator.name).chain(TOP_LEVEL_OPERATORS_TO_COME.iter().copied());
        for names in [field.collect::<Vec<_>>(), top.collect::<Vec<_>>()] {
            for name in &names {
                assert!(name.starts_with('$'));
                assert_eq!(names.iter().filter(|other| *other == name).count(), 1, "{name}");
            }
        }
    }

    #[test]
    fn values_are_told_from_operators() {
        let is_operators = |json: Json| as_operators(&json).is_some();
        assert!(is_operators(serde_json::json!({"$gt": 1})));
        assert!(is_operators(serde_json::json!({"$type": "string"})));
        assert!(!is_operators(serde_json::json!({"$type": "00", "$binary": ""})));
        assert!(!is_operators(serde_json::json!({"$oid": "0123456789ab0123456789ab"})));
        assert!(!is_operators(serde_json::json!({"$ref": "c", "$id": 1})));
        assert!(!is_operators(serde_json::json!({"a": 1})));
        assert!(!is_operators(serde_json::json!({})));
    }
}
