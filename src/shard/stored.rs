//! Reads stored documents.

use crate::pg::error::Result;
use docshard_core::error::{Kind, error};
use docshard_core::values::document::raw;

/// The document in jsonb's bytes; `TypeMismatch` if they are not an object.
pub(super) fn document(bytes: &[u8]) -> Result<raw::RawObject<'_>> {
    raw::document(bytes).ok_or_else(|| error!(Kind::TypeMismatch, "a document must be a JSON object"))
}
