//! Updates by a pipeline of stages.

use crate::error::{Kind, Result, bail};
use crate::query::stage::Pipeline;
use crate::values::document::raw::{self, RawObject};
use crate::values::document::write::{self, Part};
use std::borrow::Cow;

/// Applies a pipeline, and returns the new document's jsonb. If the pipeline removes `_id`, the document keeps its own.
///
/// # Errors
/// Those of [`Pipeline::updated`]; `DollarPrefixedFieldName` for a field that cannot be stored.
pub(super) fn apply(pipeline: &Pipeline, document: RawObject<'_>) -> Result<Vec<u8>> {
    let bytes = pipeline.updated(document)?;
    let made = raw::document(&bytes).unwrap_or(document);
    check_names(made)?;
    match (document.get("_id"), made.get("_id")) {
        (Some(id), None) => {
            let fields = std::iter::once(("_id", id)).chain(made.in_order());
            let fields = fields.map(|(name, value)| (Cow::Borrowed(name), Part::Raw(value)));
            write::document(&Part::Object(fields.collect()))
        }
        _ => Ok(bytes.into_owned()),
    }
}

/// A name at the top that starts with `$` cannot be stored.
pub(super) fn check_names(document: RawObject<'_>) -> Result<()> {
    match document.iter().find(|(name, _)| name.starts_with('$') && !crate::values::path::is_reference(name)) {
        None => Ok(()),
        Some((name, _)) => bail!(
            Kind::DollarPrefixedFieldName,
            "The dollar ($) prefixed field '{name}' in '{name}' is not valid for storage."
        ),
    }
}
