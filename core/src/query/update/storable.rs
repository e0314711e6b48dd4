//! Reads the values of updates, and checks names at the root of changed documents. The other checks of changed documents are those of
//! [`normalise`](crate::values::document::normalise).

use crate::error::{Error, Kind, Result, error};
use crate::query::filter::is_shallow;
use crate::values::document::raw::RawObject;
use crate::values::document::value::Value;
use crate::values::document::{MAX_DEPTH, ext_json, write};
use serde_json::Value as Json;

/// Reads a value; an error if it nests deeper than [`MAX_DEPTH`].
pub(super) fn value(json: &Json) -> Result<Value> {
    if is_shallow(json, MAX_DEPTH) { ext_json::from_json(json) } else { Err(too_deep()) }
}

/// Reads a value, as jsonb.
pub(super) fn stored(json: &Json) -> Result<Vec<u8>> {
    write::value(&value(json)?)
}

/// Checks that a document with which an existing one is replaced or merged has no field whose name starts with `$`.
///
/// # Errors
/// `DollarPrefixedFieldName`.
pub(super) fn check_root(document: RawObject<'_>) -> Result<()> {
    document.dollar_name().map_or(Ok(()), |name| Err(dollar_prefixed(name, name)))
}

/// The error for a field of an existing document that only a pipeline can set.
pub(super) fn dollar_prefixed(name: &str, path: &str) -> Error {
    error!(
        Kind::DollarPrefixedFieldName,
        "The dollar ($) prefixed field '{name}' in '{path}' is not allowed in the context of an update's replacement document. \
         Consider using an aggregation pipeline with $replaceWith."
    )
}

pub(super) fn too_deep() -> Error {
    error!(Kind::DocumentTooDeep, "the update would nest a document deeper than {MAX_DEPTH} levels")
}
