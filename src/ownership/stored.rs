//! Documents as they are stored.

use crate::pg::error::{Error, Result};
use docshard_core::error::Kind;
use docshard_core::values::document::raw;

/// A stored document.
///
/// # Errors
/// `TypeMismatch` for any other value.
pub(super) fn document(bytes: &[u8]) -> Result<raw::RawObject<'_>> {
    raw::document(bytes).ok_or_else(|| Error::new(Kind::TypeMismatch, "a document must be a JSON object"))
}
