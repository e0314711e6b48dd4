//! Refuses U+0000 in definitions: of views, validators and indexes. The catalog has them as JSON text, which may contain it, but the replies that
//! list collections and indexes are jsonb, which may not: one such definition would make the lists of its database fail.

use crate::pg::error::Result;
use docshard_core::error::{Kind, bail};
use serde_json::Value as Json;

/// Checks the strings and the fields' names of a part of a definition.
/// Errors: `BadValue`.
pub(super) fn refuse<'a>(parts: impl IntoIterator<Item = &'a Json>) -> Result<()> {
    if parts.into_iter().any(is_in) {
        bail!(
            Kind::BadValue,
            "A string or field name holds \\u0000, which the definition of a collection or index cannot have"
        );
    }
    Ok(())
}

fn is_in(json: &Json) -> bool {
    match json {
        Json::String(text) => text.contains('\0'),
        Json::Array(items) => items.iter().any(is_in),
        Json::Object(fields) => fields.iter().any(|(name, value)| name.contains('\0') || is_in(value)),
        _ => false,
    }
}
