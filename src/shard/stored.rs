//! Stored documents.

use crate::pg::error::Result;
use docshard_core::error::{Kind, error};
use docshard_core::values::document::raw;

pub(super) fn document(bytes: &[u8]) -> Result<raw::RawObject<'_>> {
    raw::document(bytes).ok_or_else(|| error!(Kind::TypeMismatch, "a document must be a JSON object"))
}
