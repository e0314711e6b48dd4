//! The order-preserving encoding of values: comparing two encodings bytewise is comparing the values.
//!
//! Every encoding starts with the byte of its [`Class`](crate::document::order::Class) and is prefix-free, so the
//! concatenation of several is a compound key that compares field by field.

use crate::document::element::Element;
use crate::document::value::Value;
use crate::error::Result;

/// Appends the encoding of a value.
pub fn encode(_element: &Element<'_>, _out: &mut Vec<u8>) {
    todo!()
}

/// Appends the encoding of an owned value.
pub fn encode_value(_value: &Value, _out: &mut Vec<u8>) {
    todo!()
}

/// Reads one value; returns it and the rest. Equal values of different number types decode to one of them.
///
/// # Errors
/// `BadValue` for bytes that no encoding produces.
pub fn decode(_bytes: &[u8]) -> Result<(Value, &[u8])> {
    todo!()
}

/// The 64-bit hash of a value for hashed sharding: xxHash (seed 0) of its encoding, as a signed integer.
pub fn hash(_element: &Element<'_>) -> i64 {
    todo!()
}

/// Appends a hash as a field of a key, between MinKey and MaxKey, in the order of the signed integer.
pub fn encode_hash(_hash: i64, _out: &mut Vec<u8>) {
    todo!()
}

/// The smallest byte string above every string that starts with `prefix`; None if there is none.
pub fn prefix_successor(_prefix: &[u8]) -> Option<Vec<u8>> {
    todo!()
}
