//! Updates by a pipeline of stages.

use crate::error::Result;
use crate::query::stage::Pipeline;
use crate::values::document::field_order::keeps_order;
use crate::values::document::raw::{self, RawObject};
use crate::values::document::write::{self, Part};
use std::borrow::Cow;

/// Applies a pipeline, and returns the new document's jsonb. If the pipeline removes `_id`, the document keeps its own. Where documents
/// keep the order of fields, `_id` is the first.
///
/// # Errors
/// Those of [`Pipeline::updated`].
pub(super) fn apply(pipeline: &Pipeline, document: RawObject<'_>) -> Result<Vec<u8>> {
    let bytes = pipeline.updated(document)?;
    let made = raw::document(&bytes).unwrap_or(document);
    let is_first = || !keeps_order() || made.first_in_order().is_some_and(|(name, _)| name == "_id");
    let id = match (document.get("_id"), made.get("_id")) {
        (Some(own), None) => own,
        (_, Some(id)) if !is_first() => id,
        _ => return Ok(bytes.into_owned()),
    };
    let others = made.in_order().filter(|(name, _)| *name != "_id");
    let fields = std::iter::once(("_id", id)).chain(others);
    write::document(&Part::Object(fields.map(|(name, value)| (Cow::Borrowed(name), Part::Raw(value))).collect()))
}
