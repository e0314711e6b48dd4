//! What a stage does with a document.

use super::fields::{Fields, Written};
use crate::error::{Kind, Result, bail, ensure, error};
use crate::query::environment::Environment;
use crate::query::expression::Expression;
use crate::query::filter::Filter;
use crate::query::projection::Projection;
use crate::values::collation::Collator;
use crate::values::document::ext_json;
use crate::values::document::raw::RawObject;
use crate::values::document::value::Value;
use crate::values::document::write::{self, Part};
use serde_json::Value as Json;
use std::collections::BTreeSet;

/// A parsed stage.
#[derive(Debug)]
pub(super) enum Operation {
    /// fields chosen, computed, taken away
    Project(Box<Projection>),
    /// another document
    Replace(Box<Expression>),
    /// documents chosen
    Match(Box<Filter>),
    /// the first documents
    Limit(u64),
    /// all but the first documents
    Skip(u64),
}

/// What becomes of a document.
pub(super) enum Outcome {
    /// the next stage gets the document unchanged
    Kept,
    /// the next stage gets this document instead
    Made(Vec<u8>),
    /// the next stage does not get the document
    Dropped,
    /// the next stage gets neither this document nor any later one
    Ended,
}

impl Operation {
    /// What becomes of a document; `seen` is how many came before it.
    ///
    /// # Errors
    /// Those of expressions; `Location40228` if the stage makes something else than a document.
    pub(super) fn apply(&self, document: RawObject<'_>, seen: u64, collator: Option<&Collator>) -> Result<Outcome> {
        Ok(match self {
            Operation::Project(projection) => Outcome::Made(projection.apply(document)?),
            Operation::Replace(expression) => Outcome::Made(replaced(expression, document, collator)?),
            Operation::Match(filter) => {
                if filter.evaluate(document)? {
                    Outcome::Kept
                } else {
                    Outcome::Dropped
                }
            }
            Operation::Limit(most) => {
                if seen < *most {
                    Outcome::Kept
                } else {
                    Outcome::Ended
                }
            }
            Operation::Skip(first) => {
                if seen < *first {
                    Outcome::Dropped
                } else {
                    Outcome::Kept
                }
            }
        })
    }

    /// Which fields it reads and writes.
    pub(super) fn fields(&self) -> Fields {
        match self {
            Operation::Project(projection) => {
                let (paths, all_but) = projection.fields_written();
                let written = if all_but { Written::AllBut(paths) } else { Written::Only(paths) };
                Fields { read: projection.fields_read(), written }
            }
            Operation::Replace(expression) => {
                Fields { read: expression.fields_read(), written: Written::AllBut(BTreeSet::new()) }
            }
            Operation::Match(filter) => Fields { read: filter.fields_read(), written: Written::default() },
            Operation::Limit(_) | Operation::Skip(_) => {
                Fields { read: Some(BTreeSet::new()), written: Written::default() }
            }
        }
    }
}

fn replaced(expression: &Expression, document: RawObject<'_>, collator: Option<&Collator>) -> Result<Vec<u8>> {
    let root = expression.operand(document, collator)?;
    if !root.is_object() {
        bail!(
            40228,
            "'newRoot' expression must evaluate to an object, but resulting value was: {}. Type of resulting value: '{}'",
            root.shown(),
            root.type_name()
        );
    }
    write::document(&root.into_part().unwrap_or(Part::Object(Vec::new())))
}

/// Parses the argument of a stage of this name.
pub(super) type Parse = fn(name: &str, argument: &Json, environment: &Environment) -> Result<Operation>;

pub(super) fn add(name: &str, json: &Json, environment: &Environment) -> Result<Operation> {
    Ok(Operation::Project(Box::new(Projection::parse_add(json, name, environment)?)))
}

pub(super) fn unset(_: &str, json: &Json, _: &Environment) -> Result<Operation> {
    Ok(Operation::Project(Box::new(Projection::parse_unset(json)?)))
}

pub(super) fn project(_: &str, json: &Json, environment: &Environment) -> Result<Operation> {
    ensure!(json.is_object(), 15969, "$project specification must be an object");
    Ok(Operation::Project(Box::new(Projection::parse_stage(json, environment)?)))
}

pub(super) fn replace_with(_: &str, json: &Json, environment: &Environment) -> Result<Operation> {
    Ok(Operation::Replace(Box::new(Expression::parse(json, environment)?)))
}

pub(super) fn replace_root(name: &str, json: &Json, environment: &Environment) -> Result<Operation> {
    let Json::Object(fields) = json else {
        bail!(40229, "expected an object as specification for $replaceRoot stage, got {json}")
    };
    if let Some(unknown) = fields.keys().find(|name| *name != "newRoot") {
        bail!(Kind::UnknownOption, "BSON field '$replaceRoot.{unknown}' is an unknown field.");
    }
    let Some(root) = fields.get("newRoot") else {
        bail!(40414, "BSON field '$replaceRoot.newRoot' is missing but a required field")
    };
    replace_with(name, root, environment)
}

pub(super) fn matching(_: &str, json: &Json, environment: &Environment) -> Result<Operation> {
    ensure!(json.is_object(), 15959, "the match filter must be an expression in an object");
    Ok(Operation::Match(Box::new(Filter::parse_in(json, environment)?)))
}

pub(super) fn limit(name: &str, json: &Json, _: &Environment) -> Result<Operation> {
    match count(name, json, Kind::Location(5107201))? {
        0 => bail!(15958, "the limit must be positive"),
        most => Ok(Operation::Limit(most)),
    }
}

pub(super) fn skip(name: &str, json: &Json, _: &Environment) -> Result<Operation> {
    Ok(Operation::Skip(count(name, json, Kind::Location(5107200))?))
}

/// A number of documents, not below 0.
fn count(name: &str, json: &Json, kind: Kind) -> Result<u64> {
    let number = match ext_json::from_json(json)? {
        Value::Number(number) => number.as_i64(),
        _ => None,
    };
    number.and_then(|number| u64::try_from(number).ok()).ok_or_else(|| {
        error!(kind, "invalid argument to {name} stage: Expected a non-negative number in: {name}: {json}")
    })
}
