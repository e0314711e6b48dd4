//! Which parts of the query language are random.

use crate::budget;
use serde_json::Value as Json;

/// The operators and stages whose results are random.
const RANDOM: &[&str] = &["$rand", "$createObjectId", "$sample", "$sampleRate"];

/// True if a filter, an expression or stages may give another result when they are evaluated again.
pub(crate) fn is_random(json: &Json) -> bool {
    budget::step();
    match json {
        Json::Array(items) => items.iter().any(is_random),
        Json::Object(fields) => fields.iter().any(|(name, value)| RANDOM.contains(&name.as_str()) || is_random(value)),
        _ => false,
    }
}
