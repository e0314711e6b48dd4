//! `$currentDate`, made into `$set`: whoever sends an update to several places fills in the time once, so that all of
//! them write the same and each can repeat it.

use super::parse;
use crate::document::ext_json;
use crate::document::value::Value;
use crate::error::Result;
use serde_json::{Map, Value as Json};

/// The operator that needs the time.
pub(super) const NAME: &str = "$currentDate";

/// The update with every `$currentDate` made into a `$set` of the time, in milliseconds since 1970. Anything that is
/// no update with `$currentDate` comes back as it is.
///
/// # Errors
/// Those of [`Update::parse`](super::Update::parse).
pub fn resolve_clock(update: &Json, millis: i64) -> Result<Json> {
    let Some(fields) = update.get(NAME).and_then(Json::as_object) else { return Ok(update.clone()) };
    // Paths that conflict are found here: merged into one object they would hide each other.
    parse::operators(update, &[])?;
    let mut resolved = Map::new();
    let mut set = update.get("$set").and_then(Json::as_object).cloned().unwrap_or_default();
    for (path, argument) in fields {
        let now = if parse::is_timestamp(argument)? {
            Value::Timestamp(u32::try_from(millis.div_euclid(1000)).unwrap_or(u32::MAX), 1)
        } else {
            Value::Date(millis)
        };
        set.insert(path.clone(), ext_json::to_json(&now));
    }
    for (name, argument) in update.as_object().into_iter().flatten() {
        if name != NAME && name != "$set" {
            resolved.insert(name.clone(), argument.clone());
        }
    }
    resolved.insert("$set".to_owned(), Json::Object(set));
    Ok(Json::Object(resolved))
}
