//! Parses JSON into modifiers.
//!
//! The operators are a table: a name and the function that parses its argument.

use super::array::{AddToSet, Pull, Push};
use super::context::filter_of;
use super::message::show;
use super::modifier::{Bitwise, Modifier, PopSide};
use super::storable::{dollar_prefixed, stored, too_deep, value};
use super::tree::Tree;
use crate::budget;
use crate::error::{Error, Kind, Result, bail, ensure, error};
use crate::query::environment::Environment;
use crate::query::filter::ArrayFilter;
use crate::values::document::ext_json;
use crate::values::document::number::Number;
use crate::values::document::value::Value;
use crate::values::document::{MAX_DEPTH, write};
use crate::values::path;
use serde_json::{Map, Value as Json};
use std::cmp::Ordering;
use std::collections::HashSet;

/// An update operator, `{name: {path: argument, …}}`: its name, and the function that parses an argument.
type Operator = (&'static str, fn(path: &str, argument: &Json, environment: &Environment) -> Result<Modifier>);

const OPERATORS: &[Operator] = &[
    ("$set", |_, argument, _| Ok(Modifier::Set(stored(argument)?))),
    ("$setOnInsert", |_, argument, _| Ok(Modifier::SetOnInsert(stored(argument)?))),
    ("$unset", |_, _, _| Ok(Modifier::Unset)),
    ("$inc", |path, argument, _| Ok(Modifier::Inc(amount("increment", path, argument)?))),
    ("$mul", |path, argument, _| Ok(Modifier::Mul(amount("multiply", path, argument)?))),
    ("$min", |_, argument, _| Ok(Modifier::Replace(Ordering::Greater, value(argument)?))),
    ("$max", |_, argument, _| Ok(Modifier::Replace(Ordering::Less, value(argument)?))),
    ("$rename", |path, argument, _| rename(path, argument)),
    ("$bit", |_, argument, _| bit(argument)),
    ("$currentDate", |_, argument, _| Ok(Modifier::CurrentDate { timestamp: is_timestamp(argument)? })),
    ("$push", |_, argument, _| Ok(Modifier::Push(Push::parse(argument)?))),
    ("$addToSet", |_, argument, environment| Ok(Modifier::AddToSet(AddToSet::parse(argument, environment)?))),
    ("$pop", |path, argument, _| pop(path, argument)),
    ("$pull", |_, argument, environment| Ok(Modifier::Pull(Pull::parse(argument, environment)?))),
    ("$pullAll", |_, argument, environment| Ok(Modifier::Pull(Pull::parse_all(argument, environment)?))),
];

/// The names of all operators.
pub(crate) fn operator_names() -> impl Iterator<Item = &'static str> {
    OPERATORS.iter().map(|(name, _)| *name)
}

/// Parses the conditions of `$[identifier]` in a statement's environment, and sorts them by their identifiers.
pub(super) fn array_filters(filters: &[Json], environment: &Environment) -> Result<Vec<ArrayFilter>> {
    let mut parsed: Vec<ArrayFilter> = Vec::with_capacity(filters.len());
    let mut known = HashSet::new();
    for filter in filters {
        let filter = ArrayFilter::parse(filter, environment)?;
        if !known.insert(filter.identifier().to_owned()) {
            bail!(
                Kind::FailedToParse,
                "Found multiple array filters with the same top-level field name {}",
                filter.identifier()
            );
        }
        parsed.push(filter);
    }
    parsed.sort_by(|one, other| one.identifier().cmp(other.identifier()));
    Ok(parsed)
}

/// Parses `{"$set": {…}, …}` in a statement's environment; every array filter must be used.
pub(super) fn operators(json: &Json, array_filters: &[ArrayFilter], environment: &Environment) -> Result<Tree> {
    let operators = match json {
        Json::Object(operators) if ext_json::is_document(operators) => operators,
        Json::Array(_) => bail!(Kind::NotImplemented, "updates with an aggregation pipeline are not supported yet"),
        _ => bail!(Kind::FailedToParse, "Update argument must be either an object or an array"),
    };
    if operators.is_empty() {
        let none = error!(Kind::FailedToParse, "Update document requires atomic operators, and has none");
        return Err(none.with_hint("Use replace_one to replace a whole document."));
    }
    let mut tree = Tree::default();
    let mut identifiers: HashSet<&str> = HashSet::new();
    for (name, argument) in operators {
        let Some((_, parse)) = OPERATORS.iter().find(|(known, _)| known == name) else { return Err(unknown(name)) };
        for (path, argument) in modified_fields(name, argument)? {
            budget::bytes(path.len());
            check_path(path)?;
            identifiers.extend(check_positional(path, array_filters)?);
            let modifier = parse(path, argument, environment)?;
            if let Modifier::RenameTo(to) = &modifier {
                tree.add(to, Modifier::RenameFrom(path.clone()))?;
            }
            tree.add(path, modifier)?;
        }
    }
    match array_filters.iter().find(|filter| !identifiers.contains(filter.identifier())) {
        None => Ok(tree),
        Some(unused) => bail!(
            Kind::FailedToParse,
            "The array filter for identifier '{}' was not used in the update",
            unused.identifier()
        ),
    }
}

/// Parses a replacement into jsonb. If its first name starts with `$`, it is an update by operators. Other names may start with `$`, as
/// an upsert may insert such a document.
pub(super) fn replacement(json: &Json) -> Result<Vec<u8>> {
    let Some(fields) = ext_json::document(json) else {
        bail!(Kind::FailedToParse, "the replacement must be an object")
    };
    if let Some(name) = fields.keys().next().filter(|name| name.starts_with('$')) {
        return Err(dollar_prefixed(name, name));
    }
    stored(json)
}

/// The modifiers that set a filter's equalities in a new document.
pub(super) fn equalities(fields: Vec<(String, Value)>) -> Result<Tree> {
    let mut tree = Tree::default();
    for (path, value) in fields {
        check_path(&path)?;
        check_positional(&path, &[])?;
        tree.add(&path, Modifier::Set(write::value(&value)?))?;
    }
    Ok(tree)
}

fn unknown(name: &str) -> Error {
    let error = error!(
        Kind::FailedToParse,
        "Unknown modifier: {name}. Expected a valid update modifier or pipeline-style update specified as an array"
    );
    if name.starts_with('$') { error } else { error.with_hint("Use replace_one to replace a whole document.") }
}

fn modified_fields<'a>(name: &str, argument: &'a Json) -> Result<&'a Map<String, Json>> {
    match argument {
        Json::Object(fields) if ext_json::is_document(fields) => Ok(fields),
        other => bail!(
            Kind::FailedToParse,
            "Modifiers operate on fields but we found type {} instead. For example: {{$mod: {{<field>: ...}}}} not \
             {{{name}: {}}}",
            value(other)?.type_name(),
            show(other)
        ),
    }
}

fn amount(verb: &str, path: &str, argument: &Json) -> Result<Number> {
    match value(argument)? {
        Value::Number(number) => Ok(number),
        _ => bail!(Kind::TypeMismatch, "Cannot {verb} with non-numeric argument: {{{path}: {}}}", show(argument)),
    }
}

fn rename(from: &str, argument: &Json) -> Result<Modifier> {
    let Json::String(to) = argument else {
        bail!(Kind::BadValue, "The 'to' field for $rename must be a string: {from}: {}", show(argument))
    };
    ensure!(!from.contains('\0') && !to.contains('\0'), 9867600, "A path of $rename may not contain null bytes");
    let dynamic = |path: &str| path.split('.').any(|name| name == "$" || name.starts_with("$["));
    for (what, path) in [("source", from), ("destination", to)] {
        ensure!(!dynamic(path), Kind::BadValue, "The {what} field for $rename may not be dynamic: {path}");
    }
    check_path(to)?;
    if from == to {
        bail!(Kind::BadValue, "The source and target field for $rename must differ: {from}: {}", show(argument));
    }
    if path::is_below(from, to) || path::is_below(to, from) {
        bail!(
            Kind::BadValue,
            "The source and target field for $rename must not be on the same path: {from}: {}",
            show(argument)
        );
    }
    Ok(Modifier::RenameTo(to.clone()))
}

fn bit(argument: &Json) -> Result<Modifier> {
    const FORM: &str = "{$bit: {field: {and/or/xor: #}}";
    let Value::Object(operations) = value(argument)? else {
        bail!(
            Kind::BadValue,
            "The $bit modifier is not compatible with a {}. You must pass in an embedded document: {FORM}",
            value(argument)?.type_name()
        )
    };
    if operations.is_empty() {
        bail!(Kind::BadValue, "You must pass in at least one bitwise operation. The format is: {FORM}");
    }
    let is_long = operations.iter().any(|(_, operand)| matches!(operand, Value::Number(number) if number.is_long()));
    let operations = operations.iter().map(|(name, operand)| {
        let operation = match name.as_str() {
            "and" => Bitwise::And,
            "or" => Bitwise::Or,
            "xor" => Bitwise::Xor,
            _ => bail!(
                Kind::BadValue,
                "The $bit modifier only supports 'and', 'or', and 'xor', not '{name}' which is an unknown \
                     operator: {}",
                show(argument)
            ),
        };
        match operand {
            Value::Number(Number::Int(operand, _)) => Ok((operation, *operand)),
            other => bail!(
                Kind::BadValue,
                "The $bit modifier field must be an Integer(32/64 bit); a '{}' is not supported here: {}",
                other.type_name(),
                show(argument)
            ),
        }
    });
    Ok(Modifier::Bit { operations: operations.collect::<Result<_>>()?, is_long })
}

fn pop(path: &str, argument: &Json) -> Result<Modifier> {
    let Value::Number(number) = value(argument)? else {
        bail!(Kind::FailedToParse, "Expected a number in: {path}: {}", show(argument))
    };
    match number.as_i64() {
        Some(1) => Ok(Modifier::Pop(PopSide::Last)),
        Some(-1) => Ok(Modifier::Pop(PopSide::First)),
        _ => bail!(Kind::FailedToParse, "$pop expects 1 or -1, found: {}", show(argument)),
    }
}

/// True if an argument of `$currentDate` requests a timestamp, false if a date.
fn is_timestamp(argument: &Json) -> Result<bool> {
    match argument {
        Json::Bool(_) => Ok(false),
        Json::Object(options) if ext_json::is_document(options) => {
            if let Some(name) = options.keys().find(|name| *name != "$type") {
                bail!(Kind::BadValue, "Unrecognized $currentDate option: {name}");
            }
            match options.get("$type").and_then(Json::as_str) {
                Some("date") => Ok(false),
                Some("timestamp") => Ok(true),
                _ => bail!(
                    Kind::BadValue,
                    "The '$type' string field is required to be 'date' or 'timestamp': {{$currentDate: {{field : {{$type: \
                     'date'}}}}}}"
                ),
            }
        }
        other => bail!(
            Kind::BadValue,
            "{} is not valid type for $currentDate. Please use a boolean ('true') or a $type expression ({{$type: \
             'timestamp/date'}}).",
            value(other)?.type_name()
        ),
    }
}

fn check_path(path: &str) -> Result<()> {
    ensure!(!path.is_empty(), Kind::EmptyFieldName, "An empty update path is not valid.");
    if path.split('.').count() > MAX_DEPTH {
        return Err(too_deep());
    }
    let mut positional = false;
    for (position, name) in path.split('.').enumerate() {
        if name.is_empty() {
            bail!(Kind::EmptyFieldName, "The update path '{path}' contains an empty field name, which is not allowed.");
        }
        if name == "$" && position > 0 {
            if std::mem::replace(&mut positional, true) {
                bail!(Kind::BadValue, "Too many positional (i.e. '$') elements found in path '{path}'");
            }
            continue;
        }
        if name == "$" {
            bail!(Kind::BadValue, "Cannot have positional (i.e. '$') element in the first position in path '{path}'");
        }
        if name.starts_with("$[") && name.ends_with(']') {
            if position > 0 {
                continue;
            }
            bail!(
                Kind::BadValue,
                "Cannot have array filter identifier (i.e. '$[<id>]') element in the first position in path '{path}'"
            );
        }
        ext_json::check_name(name)?;
    }
    Ok(())
}

/// The identifiers of `$[identifier]` in a path; each must have an array filter.
fn check_positional<'a>(path: &'a str, array_filters: &[ArrayFilter]) -> Result<Vec<&'a str>> {
    let named = path.split('.').filter_map(|name| name.strip_prefix("$[")?.strip_suffix(']'));
    let identifiers: Vec<&str> = named.filter(|identifier| !identifier.is_empty()).collect();
    match identifiers.iter().find(|identifier| filter_of(array_filters, identifier).is_none()) {
        None => Ok(identifiers),
        Some(unknown) => bail!(Kind::BadValue, "No array filter found for identifier '{unknown}' in path '{path}'"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_operator_is_listed_once() {
        let names: Vec<_> = operator_names().collect();
        for name in &names {
            assert!(name.starts_with('$'));
            assert_eq!(names.iter().filter(|other| *other == name).count(), 1, "{name}");
        }
    }
}
