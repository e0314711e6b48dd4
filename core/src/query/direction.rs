//! Parses the direction of a field in a sort specification.

use crate::error::{Error, Kind, Result, bail, error};
use crate::values::document::ext_json;
use crate::values::document::value::Value;
use serde_json::{Map, Value as Json};

/// Parses the direction of a field, 1 or -1; true for descending. As in MongoDB, a double is truncated, and a decimal is rounded.
pub(crate) fn is_descending(path: &str, direction: &Json) -> Result<bool> {
    let extended_number =
        |fields: &serde_json::Map<_, _>| fields.keys().next().is_some_and(|name: &String| name.starts_with("$number"));
    let direction = match direction {
        Json::Number(_) => ext_json::from_json(direction)?,
        Json::Object(fields) if extended_number(fields) => ext_json::from_json(direction)?,
        Json::Object(fields) if matches!(ext_json::extended_value(fields), Ok(None)) => return Err(metadata(fields)),
        _ => bail!(15974, "Illegal key in $sort specification: {path}: {direction}"),
    };
    let Value::Number(number) = direction else { bail!(15974, "Illegal key in $sort specification: {path}") };
    match number.to_i64_rounded() {
        1 => Ok(false),
        -1 => Ok(true),
        _ => bail!(15975, "$sort key ordering must be 1 (for ascending) or -1 (for descending)"),
    }
}

/// The error of a document as direction, which must be `{"$meta": …}`.
fn metadata(fields: &Map<String, Json>) -> Error {
    let Some(name) = fields.get("$meta").filter(|_| fields.keys().next().is_some_and(|name| name == "$meta")) else {
        return error!(17312, "$meta is the only expression supported by $sort right now");
    };
    if fields.len() != 1 {
        return error!(Kind::FailedToParse, "Cannot have additional keys in a $meta sort specification");
    }
    match name.as_str() {
        Some("textScore" | "randVal" | "geoNearDistance" | "searchScore" | "vectorSearchScore" | "score") => {
            error!(Kind::NotImplemented, "sorting by $meta is not supported yet")
        }
        _ => error!(31138, "Illegal $meta sort: $meta: {name}"),
    }
}
