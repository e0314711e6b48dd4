//! Parses the direction of a field in a sort specification.

use crate::error::{Kind, Result, bail};
use crate::values::document::ext_json;
use crate::values::document::number::Number;
use crate::values::document::value::Value;
use serde_json::Value as Json;

/// Parses the direction of a field, 1 or -1; true for descending.
pub(crate) fn is_descending(path: &str, direction: &Json) -> Result<bool> {
    if let Json::Object(fields) = direction
        && fields.contains_key("$meta")
    {
        bail!(Kind::NotImplemented, "sorting by $meta is not supported yet");
    }
    let extended_number =
        |fields: &serde_json::Map<_, _>| fields.keys().next().is_some_and(|name: &String| name.starts_with("$number"));
    let direction = match direction {
        Json::Number(_) => ext_json::from_json(direction)?,
        Json::Object(fields) if extended_number(fields) => ext_json::from_json(direction)?,
        _ => bail!(15974, "Illegal key in $sort specification: {path}: {direction}"),
    };
    match [1, -1].map(|sign| direction == Value::Number(Number::Int(sign))) {
        [false, false] => bail!(15975, "$sort key ordering must be 1 (for ascending) or -1 (for descending)"),
        [_, descending] => Ok(descending),
    }
}
