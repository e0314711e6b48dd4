//! MongoDB's stable API: `apiVersion`, `apiStrict` and `apiDeprecationErrors`.

use crate::operation::arguments::Arguments;
use crate::pg::error::Result;
use docshard_core::error::{Kind, bail};
use serde_json::Value as Json;

/// The commands of MongoDB's stable API, version 1.
const STABLE: &[&str] = &[
    "abortTransaction",
    "aggregate",
    "bulkWrite",
    "collMod",
    "commitTransaction",
    "count",
    "create",
    "createIndexes",
    "delete",
    "drop",
    "dropDatabase",
    "dropIndexes",
    "endSessions",
    "explain",
    "find",
    "findAndModify",
    "getMore",
    "hello",
    "insert",
    "killCursors",
    "listCollections",
    "listDatabases",
    "listIndexes",
    "ping",
    "refreshSessions",
    "update",
];

/// Stages that are not in the stable API. `$collStats` is in it if `count` is the only option.
const UNSTABLE_STAGES: &[&str] = &[
    "$currentOp",
    "$indexStats",
    "$listClusterCatalog",
    "$listLocalSessions",
    "$listSampledQueries",
    "$listSearchIndexes",
    "$listSessions",
    "$planCacheStats",
    "$queryStats",
    "$search",
    "$searchMeta",
    "$shardedDataDistribution",
    "$vectorSearch",
];

/// The versions of the stable API that have a command.
pub fn versions(command: &str) -> &'static [&'static str] {
    if STABLE.contains(&command) { &["1"] } else { &[] }
}

/// Checks the API version that a client asks for and, with `apiStrict`, that the command is in that version.
///
/// # Errors
/// `APIVersionError` for another version than 1, `Location4886600` for an option without a version, `APIStrictError` for what is not
/// in the stable API.
pub fn check(command: &str, fields: &Arguments<'_>, generic: &Arguments<'_>) -> Result<()> {
    match generic.text("apiVersion") {
        Some("1") if generic.flag("apiStrict") => check_strictly(command, fields),
        Some("1") => Ok(()),
        Some(_) => bail!(Kind::APIVersionError, "API version must be \"1\""),
        None => {
            let given = ["apiStrict", "apiDeprecationErrors"].into_iter().find(|name| generic.get(name).is_some());
            given.map_or(Ok(()), |name| {
                bail!(Kind::Location(4_886_600), "Provided {name} without apiVersion: an API version is required")
            })
        }
    }
}

fn check_strictly(command: &str, fields: &Arguments<'_>) -> Result<()> {
    let refuse =
        |what: String| bail!(Kind::APIStrictError, "Provided apiStrict:true, but {what} is not in API Version 1");
    if !STABLE.contains(&command) {
        return refuse(format!("the command {command}"));
    }
    if command != "aggregate" {
        return Ok(());
    }
    if fields.flag("explain") {
        return refuse("the option 'explain' of aggregate".to_owned());
    }
    match fields.array("pipeline").iter().filter_map(Json::as_object).flatten().find(|(name, of)| is_unstable(name, of))
    {
        Some((name, _)) => refuse(format!("this use of the stage {name}")),
        None => Ok(()),
    }
}

fn is_unstable(stage: &str, specification: &Json) -> bool {
    let counts_only = || specification.as_object().is_some_and(|fields| fields.keys().all(|field| field == "count"));
    UNSTABLE_STAGES.contains(&stage) || stage == "$collStats" && !counts_only()
}
