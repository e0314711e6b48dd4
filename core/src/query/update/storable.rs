//! Checks that the values of updates can be stored.

use crate::budget;
use crate::error::{Error, Kind, Result, error};
use crate::query::filter::is_shallow;
use crate::values::document::value::Value;
use crate::values::document::{MAX_DEPTH, ext_json, write};
use crate::values::path::is_reference;
use serde_json::Value as Json;

/// Reads a value; an error if it nests deeper than [`MAX_DEPTH`].
pub(super) fn value(json: &Json) -> Result<Value> {
    if is_shallow(json, MAX_DEPTH) { ext_json::from_json(json) } else { Err(too_deep()) }
}

/// Reads a value that can be stored, as jsonb.
pub(super) fn stored(json: &Json) -> Result<Vec<u8>> {
    write::value(&storable(json)?)
}

/// Reads a value that can be stored.
pub(super) fn storable(json: &Json) -> Result<Value> {
    let value = value(json)?;
    check_names(&value)?;
    Ok(value)
}

/// Checks that no name starts with `$`, apart from extended values and DBRefs.
pub(super) fn check_names(value: &Value) -> Result<()> {
    budget::step();
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

pub(super) fn dollar_prefixed(name: &str, path: &str) -> Error {
    error!(
        Kind::DollarPrefixedFieldName,
        "The dollar ($) prefixed field '{name}' in '{path}' is not valid for storage."
    )
}

pub(super) fn too_deep() -> Error {
    error!(Kind::DocumentTooDeep, "the update would nest a document deeper than {MAX_DEPTH} levels")
}
