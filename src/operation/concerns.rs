//! Read concern, write concern and read preference of a request. They have no effect, because PostgreSQL's settings decide about isolation
//! and durability. But they are checked as MongoDB checks them, so that a mistake in a request is reported.

use super::arguments::{Arguments, Fields, Form, Type, may, number};
use crate::pg::error::Result;
use docshard_core::error::{Kind, bail, error};
use docshard_core::values::document::ext_json;
use docshard_core::values::document::number::Number;
use docshard_core::values::document::value::Value;
use serde_json::Value as Json;

const READ_CONCERN: Fields = &[&[
    may("level", Type::Choice(&["local", "available", "majority", "linearizable", "snapshot"])),
    may("afterClusterTime", Type::Timestamp).never_null(),
    may("atClusterTime", Type::Timestamp).never_null(),
    may("afterOpTime", Type::Object),
    may("provenance", PROVENANCE),
]];
const WRITE_CONCERN: Fields = &[&[
    may("w", Type::Any),
    may("j", Type::Bool),
    may("fsync", Type::Bool),
    may("wtimeout", Type::Any),
    may("wElectionId", Type::Any),
    may("wOpTime", Type::Any),
    may("getLastError", Type::Any),
    may("provenance", PROVENANCE),
]];
const READ_PREFERENCE: Fields = &[&[
    may("mode", Type::Choice(&["primary", "primaryPreferred", "secondary", "secondaryPreferred", "nearest"])),
    may("tags", Type::Array),
    may("maxStalenessSeconds", Type::Integer),
    may("hedge", Type::Object),
]];
const PROVENANCE: Type = Type::Choice(&[
    "clientSupplied",
    "implicitDefault",
    "customDefault",
    "getLastErrorDefaults",
    "internalWriteDefault",
]);

/// The largest `w`: the largest number of members of a replica set.
const MAX_W: i64 = 50;

/// Checks read concern, read preference and write concern, if they are given.
///
/// # Errors
/// `TypeMismatch`, `UnknownOption`; `InvalidOptions` for a time of the past; `BadValue` for an unknown name; `FailedToParse` for an impossible `w` or `wtimeout`.
pub fn check(arguments: &Arguments<'_>) -> Result<()> {
    let of = |name: &'static str, fields| -> Result<()> {
        let Some(json) = arguments.get(name) else { return Ok(()) };
        Arguments::parse(json, Form::Command(name), fields).map(|_| ())
    };
    of("readConcern", READ_CONCERN)?;
    if arguments.get("readConcern").is_some_and(|concern| concern.get("atClusterTime").is_some()) {
        bail!(Kind::InvalidOptions, "readConcern.atClusterTime is not supported: a command reads the present");
    }
    let after = arguments.get("readConcern").and_then(|concern| concern.get("afterClusterTime"));
    if after.is_some_and(|time| matches!(ext_json::from_json(time), Ok(Value::Timestamp(0, 0)))) {
        bail!(Kind::InvalidOptions, "readConcern.afterClusterTime cannot be a null timestamp");
    }
    of("$readPreference", READ_PREFERENCE)?;
    of("writeConcern", WRITE_CONCERN)?;
    match arguments.get("writeConcern") {
        Some(concern) => check_acknowledgement(concern),
        None => Ok(()),
    }
}

/// Checks `w` and `wtimeout`.
fn check_acknowledgement(concern: &Json) -> Result<()> {
    let refuse = |kind: Kind, name: &str, value: &Json| {
        Err(error!(kind, "writeConcern.{name} cannot be {value}")
            .with_hint(format!("w is \"majority\" or a number from 0 to {MAX_W}, wtimeout a number of milliseconds.")))
    };
    if let Some(w) = concern.get("w") {
        let is_string_or_null = matches!(w, Json::String(_) | Json::Null);
        let is_known = match number(w) {
            Some(count) => is_finite(&count) && (0..=MAX_W).contains(&count.to_i64_truncated()),
            // An object names tags of members, each with a number.
            None => match ext_json::document(w) {
                Some(tags) => !tags.is_empty() && tags.values().all(|count| number(count).is_some()),
                None => w == "majority",
            },
        };
        if !is_known {
            return refuse(if is_string_or_null { Kind::BadValue } else { Kind::FailedToParse }, "w", w);
        }
    }
    match concern.get("wtimeout").map(|json| (json, number(json))) {
        Some((json, Some(millis))) if millis.to_i64_truncated() > i64::from(i32::MAX) => {
            refuse(Kind::FailedToParse, "wtimeout", json)
        }
        _ => Ok(()),
    }
}

fn is_finite(number: &Number) -> bool {
    number.to_f64().is_finite()
}
