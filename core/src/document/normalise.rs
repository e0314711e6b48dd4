//! Makes what a client sent into what is stored: `_id` present, Extended JSON relaxed, names and sizes checked.

use super::raw::RawObject;
use crate::error::Result;
use std::borrow::Cow;

/// A document ready to be stored.
#[derive(Debug)]
pub struct Stored<'a> {
    /// jsonb's bytes; borrowed where the input needed no change
    pub bytes: Cow<'a, [u8]>,
    /// true if an `_id` was generated
    pub generated_id: bool,
}

/// Normalises a document that comes from a client; `new_id` is called when `_id` is missing.
///
/// # Errors
/// `DollarPrefixedFieldName`, `InvalidIdField` (array, regex, undefined), `DocumentTooDeep`, `BSONObjectTooLarge`,
/// `BadValue` for malformed Extended JSON.
pub fn for_insert<'a>(_document: RawObject<'a>, _new_id: impl FnOnce() -> [u8; 12]) -> Result<Stored<'a>> {
    todo!()
}

/// The checks of the domain `docshard.document` on a stored value.
///
/// # Errors
/// As [`for_insert`], and `BadValue` where Extended JSON is not in its relaxed form.
pub fn check_stored(_bytes: &[u8]) -> Result<()> {
    todo!()
}
