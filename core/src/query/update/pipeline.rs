//! Updates by a pipeline: stages that make one document of another.
//!
//! The stages are a table: a name and the function that parses its argument.

use crate::error::{Error, Kind, Result};
use crate::query::environment::Environment;
use crate::query::expression::Expression;
use crate::query::projection::Projection;
use crate::values::collation::Collator;
use crate::values::document::raw::{self, RawObject};
use crate::values::document::write::{self, Part};
use serde_json::Value as Json;
use std::borrow::Cow;
use std::sync::Arc;

/// A parsed pipeline.
#[derive(Debug)]
pub(super) struct Pipeline {
    stages: Vec<Stage>,
    collator: Option<Arc<Collator>>,
}

#[derive(Debug)]
enum Stage {
    /// fields chosen, computed, taken away
    Project(Box<Projection>),
    /// another document
    Replace(Box<Expression>),
}

/// A stage: `{name: argument}`.
struct StageOperator {
    name: &'static str,
    parse: fn(&Json, &Environment) -> Result<Stage>,
}

const STAGES: &[StageOperator] = &[
    StageOperator { name: "$set", parse: |json, environment| add("$set", json, environment) },
    StageOperator { name: "$addFields", parse: |json, environment| add("$addFields", json, environment) },
    StageOperator { name: "$unset", parse: |json, _| Ok(Stage::Project(Box::new(Projection::parse_unset(json)?))) },
    StageOperator {
        name: "$project",
        parse: |json, environment| {
            if !json.is_object() {
                return Err(Error::new(Kind::Location15969, "$project specification must be an object"));
            }
            Ok(Stage::Project(Box::new(Projection::parse_stage(json, environment)?)))
        },
    },
    StageOperator {
        name: "$replaceWith",
        parse: |json, environment| Ok(Stage::Replace(Box::new(Expression::parse(json, environment)?))),
    },
    StageOperator { name: "$replaceRoot", parse: replace_root },
];

fn add(name: &str, json: &Json, environment: &Environment) -> Result<Stage> {
    Ok(Stage::Project(Box::new(Projection::parse_add(json, name, environment)?)))
}

fn replace_root(json: &Json, environment: &Environment) -> Result<Stage> {
    let Json::Object(fields) = json else {
        let message = format!("expected an object as specification for $replaceRoot stage, got {json}");
        return Err(Error::new(Kind::Location40229, message));
    };
    if let Some(unknown) = fields.keys().find(|name| *name != "newRoot") {
        let message = format!("BSON field '$replaceRoot.{unknown}' is an unknown field.");
        return Err(Error::new(Kind::UnknownOption, message));
    }
    let Some(root) = fields.get("newRoot") else {
        let message = "BSON field '$replaceRoot.newRoot' is missing but a required field";
        return Err(Error::new(Kind::Location40414, message));
    };
    Ok(Stage::Replace(Box::new(Expression::parse(root, environment)?)))
}

impl Pipeline {
    /// Parses the stages of an update.
    ///
    /// # Errors
    /// `InvalidOptions` for a stage that an update may not have, `Location40323` for what is no stage, `Location40324`
    /// for an unknown one; those of projections and expressions.
    pub fn parse(stages: &[Json], environment: &Environment) -> Result<Pipeline> {
        let stages = stages.iter().map(|stage| parse_stage(stage, environment)).collect::<Result<_>>()?;
        Ok(Pipeline { stages, collator: environment.collator().cloned() })
    }

    /// The new document's jsonb; `_id` is the document's where the pipeline lost it.
    ///
    /// # Errors
    /// Those of expressions; `Location40228` if a stage makes something else than a document.
    pub fn apply(&self, document: RawObject<'_>) -> Result<Vec<u8>> {
        let mut bytes: Option<Vec<u8>> = None;
        for stage in &self.stages {
            let now = bytes.as_deref().and_then(raw::document).unwrap_or(document);
            bytes = Some(match stage {
                Stage::Project(projection) => projection.apply(now)?,
                Stage::Replace(expression) => {
                    let root = expression.operand(now, self.collator.as_deref())?;
                    if !root.is_object() {
                        let message = format!(
                            "'newRoot' expression must evaluate to an object, but resulting value was: {}. Type of resulting value: '{}'",
                            root.shown(),
                            root.type_name()
                        );
                        return Err(Error::new(Kind::Location40228, message));
                    }
                    write::document(&root.into_part().unwrap_or(Part::Object(Vec::new())))?
                }
            });
        }
        let made = bytes.as_deref().and_then(raw::document).unwrap_or(document);
        check_names(made)?;
        match (document.get("_id"), made.get("_id")) {
            (Some(id), None) => {
                let fields = std::iter::once(("_id", id)).chain(made.iter());
                let fields = fields.map(|(name, value)| (Cow::Borrowed(name), Part::Raw(value)));
                write::document(&Part::Object(fields.collect()))
            }
            _ => Ok(bytes.unwrap_or_else(|| document.bytes().to_vec())),
        }
    }
}

fn parse_stage(json: &Json, environment: &Environment) -> Result<Stage> {
    let Json::Object(fields) = json else {
        return Err(Error::new(Kind::TypeMismatch, "Each element of the 'pipeline' array must be an object"));
    };
    let (Some((name, argument)), 1) = (fields.iter().next(), fields.len()) else {
        let message = "A pipeline stage specification object must contain exactly one field.";
        return Err(Error::new(Kind::Location40323, message));
    };
    match STAGES.iter().find(|stage| stage.name == name) {
        Some(stage) => (stage.parse)(argument, environment),
        None if ["$match", "$group", "$sort", "$limit", "$skip", "$lookup", "$unwind", "$out", "$merge", "$count"]
            .contains(&name.as_str()) =>
        {
            let message = format!("{name} is not allowed to be used within an update");
            Err(Error::new(Kind::InvalidOptions, message))
        }
        None => Err(Error::new(Kind::Location40324, format!("Unrecognized pipeline stage name: '{name}'"))),
    }
}

/// A name at the top that starts with `$` cannot be stored.
fn check_names(document: RawObject<'_>) -> Result<()> {
    match document.iter().find(|(name, _)| name.starts_with('$') && !crate::values::path::is_reference(name)) {
        None => Ok(()),
        Some((name, _)) => {
            let message = format!("The dollar ($) prefixed field '{name}' in '{name}' is not valid for storage.");
            Err(Error::new(Kind::DollarPrefixedFieldName, message))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn every_stage_is_listed_once_and_parses() {
        for stage in STAGES {
            assert_eq!(STAGES.iter().filter(|other| other.name == stage.name).count(), 1, "{}", stage.name);
            let argument = match stage.name {
                "$unset" => json!("a"),
                "$replaceRoot" => json!({"newRoot": "$$ROOT"}),
                "$replaceWith" => json!("$$ROOT"),
                _ => json!({"a": "$b"}),
            };
            assert!((stage.parse)(&argument, &Environment::default()).is_ok(), "{}", stage.name);
        }
    }
}
