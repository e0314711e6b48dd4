//! Divides a filter into the conditions that `$and` connects, so that some of them can move to another place in the pipeline.

use crate::budget;
use serde_json::{Value as Json, json};

/// Splits a filter at its top level and at `$and`, and appends the conditions to `parts`. A document matches the filter if it matches
/// every condition.
pub(in crate::query::stage) fn conditions(filter: &Json, parts: &mut Vec<Json>) {
    for (name, condition) in filter.as_object().into_iter().flatten() {
        budget::step();
        match condition {
            Json::Array(filters) if name == "$and" => filters.iter().for_each(|filter| conditions(filter, parts)),
            condition => parts.push(json!({name: condition})),
        }
    }
}

/// Returns a filter that requires all conditions. `parts` must not be empty.
pub(in crate::query::stage) fn joined(mut parts: Vec<Json>) -> Json {
    if parts.len() == 1 { parts.remove(0) } else { json!({"$and": parts}) }
}
