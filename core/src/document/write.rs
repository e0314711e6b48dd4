//! Produces jsonb's on-disk form (without the varlena header), byte for byte as PostgreSQL would.

use super::raw::RawValue;
use super::value::Value;
use crate::error::Result;

/// A value to be written: copied from another document's bytes, or owned.
#[derive(Clone, Debug)]
pub enum Part<'a> {
    /// copied as it is; sub-containers are copied whole
    Raw(RawValue<'a>),
    /// written from the owned value
    Owned(Value),
    /// an object made of parts
    Object(Vec<(std::borrow::Cow<'a, str>, Part<'a>)>),
    /// an array made of parts
    Array(Vec<Part<'a>>),
}

/// Writes a document. Fields may come in any order; of equal names the last wins, as in jsonb.
///
/// # Errors
/// `BSONObjectTooLarge`, `DocumentTooDeep`, and `BadValue` for what jsonb cannot hold (`\u0000`).
pub fn document(_part: &Part<'_>) -> Result<Vec<u8>> {
    todo!()
}

/// Writes an owned value as jsonb, a scalar included.
///
/// # Errors
/// As [`document`].
pub fn value(value: &Value) -> Result<Vec<u8>> {
    document(&Part::Owned(value.clone()))
}
