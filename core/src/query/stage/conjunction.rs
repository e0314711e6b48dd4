//! Filters as conjunctions of conditions, some of which go another way than the others.

use serde_json::{Value as Json, json};

/// The conditions that a filter is the conjunction of.
pub(super) fn conditions(filter: &Json, parts: &mut Vec<Json>) {
    for (name, condition) in filter.as_object().into_iter().flatten() {
        match condition {
            Json::Array(filters) if name == "$and" => filters.iter().for_each(|filter| conditions(filter, parts)),
            condition => parts.push(json!({name: condition})),
        }
    }
}

/// The conjunction of conditions, of which there is at least one.
pub(super) fn joined(mut parts: Vec<Json>) -> Json {
    if parts.len() == 1 { parts.remove(0) } else { json!({"$and": parts}) }
}
