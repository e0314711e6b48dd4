//! The stages of pipelines, as a table.

use super::operation::{self, Parse};
use crate::error::{Kind, Result, bail};
use serde_json::Value as Json;
use std::fmt;

/// A stage: `{name: argument}`.
pub struct StageOperator {
    /// such as `$match`
    pub name: &'static str,
    pub(super) parse: Parse,
    /// true if an update's pipeline may have it
    pub in_updates: bool,
    /// true if what it makes of documents comes in the order of these
    pub keeps_order: bool,
    /// true if what it makes of a document depends on documents before it
    pub remembers: bool,
    /// how its results at several shards become that of one
    pub merge: Merge,
}

/// How a stage is divided over shards.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Merge {
    /// each shard's results, together
    Union,
    /// the same stage once more, over the shards' results
    Again,
    /// it cannot be divided: it runs where all documents come together
    Undivided,
}

impl fmt::Debug for StageOperator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

impl StageOperator {
    /// One that makes at most one document of each by itself.
    const fn of_one(name: &'static str, parse: Parse) -> Self {
        Self { name, parse, in_updates: true, keeps_order: true, remembers: false, merge: Merge::Union }
    }

    const fn not_in_updates(self) -> Self {
        Self { in_updates: false, ..self }
    }

    const fn remembering(self, merge: Merge) -> Self {
        Self { remembers: true, merge, ..self }
    }
}

/// Every stage that is understood.
pub const STAGES: &[StageOperator] = &[
    StageOperator::of_one("$set", operation::add),
    StageOperator::of_one("$addFields", operation::add),
    StageOperator::of_one("$unset", operation::unset),
    StageOperator::of_one("$project", operation::project),
    StageOperator::of_one("$replaceWith", operation::replace_with),
    StageOperator::of_one("$replaceRoot", operation::replace_root),
    StageOperator::of_one("$match", operation::matching).not_in_updates(),
    StageOperator::of_one("$limit", operation::limit).not_in_updates().remembering(Merge::Again),
    StageOperator::of_one("$skip", operation::skip).not_in_updates().remembering(Merge::Undivided),
];

/// MongoDB's stages that are not understood.
const NOT_SUPPORTED: &[&str] = &["$group", "$sort", "$lookup", "$unwind", "$out", "$merge", "$count"];

/// The stage of an element of a pipeline, and its argument.
///
/// # Errors
/// `TypeMismatch` and `Location40323` for what is no stage, `Location40324` for an unknown one; `NotImplemented`, or
/// `InvalidOptions` in an update, for one that is not understood.
pub(super) fn find(json: &Json, in_update: bool) -> Result<(&'static StageOperator, &Json)> {
    let Json::Object(fields) = json else {
        bail!(Kind::TypeMismatch, "Each element of the 'pipeline' array must be an object")
    };
    let (Some((name, argument)), 1) = (fields.iter().next(), fields.len()) else {
        bail!(40323, "A pipeline stage specification object must contain exactly one field.")
    };
    let found = STAGES.iter().find(|stage| stage.name == name);
    match found.filter(|stage| !in_update || stage.in_updates) {
        Some(stage) => Ok((stage, argument)),
        None if found.is_none() && !NOT_SUPPORTED.contains(&name.as_str()) => {
            bail!(40324, "Unrecognized pipeline stage name: '{name}'")
        }
        None if in_update => bail!(Kind::InvalidOptions, "{name} is not allowed to be used within an update"),
        None => bail!(Kind::NotImplemented, "the stage {name} is not supported"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::query::environment::Environment;
    use serde_json::json;

    #[test]
    fn every_stage_is_listed_once_and_parses() {
        let names: Vec<&str> = STAGES.iter().map(|stage| stage.name).chain(NOT_SUPPORTED.iter().copied()).collect();
        for name in &names {
            assert_eq!(names.iter().filter(|other| *other == name).count(), 1, "{name}");
        }
        for stage in STAGES {
            let argument = match stage.name {
                "$unset" => json!("a"),
                "$replaceRoot" => json!({"newRoot": "$$ROOT"}),
                "$replaceWith" => json!("$$ROOT"),
                "$limit" | "$skip" => json!(1),
                _ => json!({"a": "$b"}),
            };
            assert!((stage.parse)(stage.name, &argument, &Environment::default()).is_ok(), "{}", stage.name);
            assert_eq!(find(&json!({stage.name: argument}), true).is_ok(), stage.in_updates);
        }
        assert_eq!(find(&json!({"$group": {}}), false).unwrap_err().kind, Kind::NotImplemented);
        assert_eq!(find(&json!({"$group": {}}), true).unwrap_err().kind, Kind::InvalidOptions);
    }
}
