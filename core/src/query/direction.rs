//! The direction of a field in a sort specification, as `$sortArray` and sorts of finds write it.

use crate::error::{Kind, Result, bail, error};
use crate::values::document::ext_json;
use crate::values::document::number::Number;
use crate::values::document::value::Value;
use serde_json::Value as Json;

/// Reads the direction of a field, 1 or -1.
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
    [(1, false), (-1, true)]
        .into_iter()
        .find_map(|(sign, descending)| (direction == Value::Number(Number::Int(sign))).then_some(descending))
        .ok_or_else(|| error!(15975, "$sort key ordering must be 1 (for ascending) or -1 (for descending)"))
}
