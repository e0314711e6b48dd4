//! Extended JSON v2: canonical, relaxed and legacy forms in, relaxed out.

use super::value::Value;
use crate::error::Result;

/// Reads JSON, with any form of Extended JSON, into a value.
///
/// # Errors
/// `FailedToParse` or `BadValue` for a malformed extended value such as `{"$oid": "xyz"}`.
pub fn from_json(_json: &serde_json::Value) -> Result<Value> {
    todo!()
}

/// Writes a value as relaxed Extended JSON: what is stored and what a client sees. A double with an integral value
/// keeps its fraction (`5.0`).
pub fn to_json(_value: &Value) -> serde_json::Value {
    todo!()
}
