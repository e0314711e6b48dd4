//! The fields that a pipeline needs of its input documents, so that the others can be left out.

use super::fields::Written;
use super::operation::Stage;
use crate::budget;
use crate::values::path;
use serde_json::{Map, Value as Json, json};
use std::collections::BTreeSet;

/// Returns the top-level fields of the input documents that the stages need; None for all fields.
pub(super) fn needed(stages: &[Stage]) -> Option<BTreeSet<String>> {
    let mut needed: Option<BTreeSet<String>> = None;
    for stage in stages.iter().rev() {
        let fields = stage.operation.fields();
        budget::steps(1 + needed.as_ref().map_or(0, BTreeSet::len));
        let before: Option<BTreeSet<String>> = match (fields.written, needed) {
            (Written::AllBut(kept), None) => Some(kept),
            (Written::AllBut(kept), Some(after)) => {
                let after: BTreeSet<String> = after;
                Some(kept.into_iter().filter(|path| after.contains(path::split(path).0)).collect())
            }
            (Written::Only(_), None) => None,
            // A top-level field that the stage overwrites is not needed in its input.
            (Written::Only(paths), Some(after)) => {
                Some(after.into_iter().filter(|name| !paths.contains(name)).collect())
            }
        };
        needed = before
            .zip(fields.read)
            .map(|(before, read)| before.iter().chain(&read).map(|path| path::split(path).0.to_owned()).collect());
    }
    needed
}

/// Returns the projection to top-level fields. It excludes `_id` unless `fields` has it. Without fields it includes `_id` alone,
/// because a projection must name a field.
pub(super) fn projection(fields: &[String]) -> Json {
    let mut projection: Map<String, Json> = fields.iter().map(|name| (name.clone(), json!(1))).collect();
    projection.entry("_id").or_insert_with(|| json!(if fields.is_empty() { 1 } else { 0 }));
    Json::Object(projection)
}
