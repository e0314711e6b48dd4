//! Reads jsonb's on-disk form in place.
//!
//! The bytes are those behind the varlena header: a container (`JsonbContainer`), a 32-bit header with the count of
//! children and flags, then one 32-bit `JEntry` a child (object: all keys, then all values; every 32nd holds an
//! offset, the others a length), then the children's bytes, numerics and containers aligned to 4 from the start of the
//! root. Integers are in the machine's byte order. Source: PostgreSQL's `src/include/utils/jsonb.h`.
//!
//! INVARIANT: on bytes that PostgreSQL wrote, or that [`validate`] accepted, nothing here fails; on any other bytes
//! nothing here panics or reads outside the slice (a damaged value reads as null or as absent).

use crate::error::Result;

/// Any jsonb value, borrowed.
#[derive(Clone, Copy, Debug)]
pub enum RawValue<'a> {
    /// JSON null.
    Null,
    /// A boolean.
    Bool(bool),
    /// A number: PostgreSQL's numeric, on disk.
    Number(RawNumeric<'a>),
    /// A string.
    String(&'a str),
    /// An array.
    Array(RawArray<'a>),
    /// An object.
    Object(RawObject<'a>),
}

/// PostgreSQL's on-disk numeric, the bytes behind its own varlena header.
#[derive(Clone, Copy, Debug)]
pub struct RawNumeric<'a>(pub(super) &'a [u8]);

/// A jsonb array's container.
#[derive(Clone, Copy, Debug)]
pub struct RawArray<'a>(pub(super) &'a [u8]);

/// A jsonb object's container.
#[derive(Clone, Copy, Debug)]
pub struct RawObject<'a>(pub(super) &'a [u8]);

impl<'a> RawObject<'a> {
    /// How many fields.
    pub fn len(&self) -> usize {
        todo!()
    }
    /// True if there is no field.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
    /// The field's value, by binary search over the sorted keys.
    pub fn get(&self, _key: &str) -> Option<RawValue<'a>> {
        todo!()
    }
    /// Fields in jsonb's order (shorter names first, then bytewise).
    pub fn iter(&self) -> impl Iterator<Item = (&'a str, RawValue<'a>)> + use<'a> {
        std::iter::empty()
    }
    /// The container's bytes, for copying it whole.
    pub fn bytes(&self) -> &'a [u8] {
        self.0
    }
}

impl<'a> RawArray<'a> {
    /// How many elements.
    pub fn len(&self) -> usize {
        todo!()
    }
    /// True if there is no element.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
    /// The element at a position.
    pub fn get(&self, _index: usize) -> Option<RawValue<'a>> {
        todo!()
    }
    /// Elements in order.
    pub fn iter(&self) -> impl Iterator<Item = RawValue<'a>> + use<'a> {
        std::iter::empty()
    }
    /// The container's bytes, for copying it whole.
    pub fn bytes(&self) -> &'a [u8] {
        self.0
    }
}

/// The root of a jsonb value (without its varlena header). A scalar root is jsonb's array of one scalar.
pub fn root(_bytes: &[u8]) -> RawValue<'_> {
    todo!()
}

/// The root as a document, or None if it is no object.
pub fn document(bytes: &[u8]) -> Option<RawObject<'_>> {
    match root(bytes) {
        RawValue::Object(object) => Some(object),
        _ => None,
    }
}

/// Checks bytes from elsewhere: every length, offset, alignment, UTF-8, key order and numeric, in one walk.
///
/// # Errors
/// `BadValue` for bytes that PostgreSQL would not have written; after `Ok`, PostgreSQL's own C code may read them.
pub fn validate(_bytes: &[u8]) -> Result<()> {
    todo!()
}
