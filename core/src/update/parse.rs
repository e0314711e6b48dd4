//! From JSON to modifiers.
//!
//! The operators are a table: a name and the function that parses its argument. What MongoDB knows and this engine does
//! not yet is listed too, so that it gets an error of its own.

use super::message::show;
use super::tree::{Modifier, Tree};
use crate::document::value::Value;
use crate::document::{MAX_DEPTH, ext_json, write};
use crate::error::{Error, Kind, Result};
use crate::path::is_reference;
use serde_json::{Map, Value as Json};

/// An update operator: `{name: {path: argument, …}}`.
struct Operator {
    name: &'static str,
    parse: fn(path: &str, argument: &Json) -> Result<Modifier>,
}

const OPERATORS: &[Operator] = &[
    Operator { name: "$set", parse: |_, argument| Ok(Modifier::Set(stored(argument)?)) },
    Operator { name: "$setOnInsert", parse: |_, argument| Ok(Modifier::SetOnInsert(stored(argument)?)) },
    Operator { name: "$unset", parse: |_, _| Ok(Modifier::Unset) },
    Operator { name: "$inc", parse: increment },
];

/// MongoDB's update operators that are not understood yet.
const OPERATORS_TO_COME: &[&str] = &[
    "$addToSet",
    "$bit",
    "$currentDate",
    "$max",
    "$min",
    "$mul",
    "$pop",
    "$pull",
    "$pullAll",
    "$push",
    "$pushAll",
    "$rename",
];

/// Parses `{"$set": {…}, …}`.
pub(super) fn operators(json: &Json) -> Result<Tree> {
    let operators = match json {
        Json::Object(operators) => operators,
        Json::Array(_) => {
            return Err(Error::new(Kind::NotImplemented, "updates with an aggregation pipeline are not supported yet"));
        }
        _ => return Err(failed_to_parse("Update argument must be either an object or an array")),
    };
    if operators.is_empty() {
        return Err(failed_to_parse("Update document requires atomic operators, and has none")
            .with_hint("Use replace_one to replace a whole document."));
    }
    let mut tree = Tree::default();
    for (name, argument) in operators {
        let Some(operator) = OPERATORS.iter().find(|operator| operator.name == name) else {
            return Err(unknown(name));
        };
        for (path, argument) in modified_fields(name, argument)? {
            check_path(path)?;
            tree.add(path, (operator.parse)(path, argument)?)?;
        }
    }
    Ok(tree)
}

/// Parses a replacement into jsonb.
pub(super) fn replacement(json: &Json) -> Result<Vec<u8>> {
    let Json::Object(fields) = json else {
        return Err(failed_to_parse("the replacement must be an object"));
    };
    if let Some(name) = fields.keys().find(|name| name.starts_with('$')) {
        return Err(dollar_prefixed(name, name));
    }
    stored(json)
}

/// The modifiers that put a filter's equalities into a new document.
pub(super) fn equalities(fields: Vec<(String, Value)>) -> Result<Tree> {
    let mut tree = Tree::default();
    for (path, value) in fields {
        check_path(&path)?;
        check_names(&value)?;
        tree.add(&path, Modifier::Set(write::value(&value)?))?;
    }
    Ok(tree)
}

fn unknown(name: &str) -> Error {
    if OPERATORS_TO_COME.contains(&name) {
        return Error::new(Kind::NotImplemented, format!("the update operator {name} is not supported yet"));
    }
    let error = failed_to_parse(format!(
        "Unknown modifier: {name}. Expected a valid update modifier or pipeline-style update specified as an array"
    ));
    if name.starts_with('$') { error } else { error.with_hint("Use replace_one to replace a whole document.") }
}

fn modified_fields<'a>(name: &str, argument: &'a Json) -> Result<&'a Map<String, Json>> {
    match argument {
        Json::Object(fields) => Ok(fields),
        other => Err(failed_to_parse(format!(
            "Modifiers operate on fields but we found type {} instead. For example: {{$mod: {{<field>: ...}}}} not \
             {{{name}: {}}}",
            value(other)?.type_name(),
            show(other)
        ))),
    }
}

fn increment(path: &str, argument: &Json) -> Result<Modifier> {
    match value(argument)? {
        Value::Number(amount) => Ok(Modifier::Inc(amount)),
        _ => {
            let message = format!("Cannot increment with non-numeric argument: {{{path}: {}}}", show(argument));
            Err(Error::new(Kind::TypeMismatch, message))
        }
    }
}

/// Reads a value of bounded depth.
fn value(json: &Json) -> Result<Value> {
    if is_deeper(json, MAX_DEPTH) {
        return Err(too_deep());
    }
    ext_json::from_json(json)
}

/// A value as it is stored, in jsonb.
fn stored(json: &Json) -> Result<Vec<u8>> {
    let value = value(json)?;
    check_names(&value)?;
    write::value(&value)
}

/// Extended values apart, no name starts with `$` but those of a DBRef.
fn check_names(value: &Value) -> Result<()> {
    match value {
        Value::Object(fields) => fields.iter().try_for_each(|(name, value)| {
            if name.starts_with('$') && !is_reference(name) {
                return Err(dollar_prefixed(name, name));
            }
            check_names(value)
        }),
        Value::Array(elements) => elements.iter().try_for_each(check_names),
        _ => Ok(()),
    }
}

fn check_path(path: &str) -> Result<()> {
    if path.is_empty() {
        return Err(Error::new(Kind::EmptyFieldName, "An empty update path is not valid."));
    }
    if path.split('.').count() > MAX_DEPTH {
        return Err(too_deep());
    }
    for (position, name) in path.split('.').enumerate() {
        if name.is_empty() {
            let message = format!("The update path '{path}' contains an empty field name, which is not allowed.");
            return Err(Error::new(Kind::EmptyFieldName, message));
        }
        if name == "$" || name.starts_with("$[") {
            let message = format!("the positional operator '{name}' in '{path}' is not supported yet");
            return Err(Error::new(Kind::NotImplemented, message));
        }
        if name.starts_with('$') && (position == 0 || !is_reference(name)) {
            return Err(dollar_prefixed(name, path));
        }
    }
    Ok(())
}

fn is_deeper(json: &Json, levels: usize) -> bool {
    match json {
        Json::Object(_) | Json::Array(_) if levels == 0 => true,
        Json::Object(fields) => fields.values().any(|value| is_deeper(value, levels - 1)),
        Json::Array(elements) => elements.iter().any(|value| is_deeper(value, levels - 1)),
        _ => false,
    }
}

fn failed_to_parse(message: impl Into<String>) -> Error {
    Error::new(Kind::FailedToParse, message)
}

fn dollar_prefixed(name: &str, path: &str) -> Error {
    let message = format!("The dollar ($) prefixed field '{name}' in '{path}' is not valid for storage.");
    Error::new(Kind::DollarPrefixedFieldName, message)
}

fn too_deep() -> Error {
    Error::new(Kind::DocumentTooDeep, format!("the update would nest a document deeper than {MAX_DEPTH} levels"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_operator_is_listed_once() {
        let names: Vec<_> =
            OPERATORS.iter().map(|operator| operator.name).chain(OPERATORS_TO_COME.iter().copied()).collect();
        for name in &names {
            assert!(name.starts_with('$'));
            assert_eq!(names.iter().filter(|other| *other == name).count(), 1, "{name}");
        }
    }
}
