//! The shard-key pattern: which fields, in which order, ranged or hashed.

use crate::document::raw::RawObject;
use crate::document::value::Value;
use crate::error::Result;

/// How a field of a pattern takes part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FieldKind {
    /// by its value
    Ranged,
    /// by the hash of its value
    Hashed,
}

/// A shard-key pattern, such as `{"recipient": 1, "sent": 1}` or `{"user_name": "hashed"}`; empty for an unsharded
/// collection, whose every key is the empty string.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyPattern {
    /// dotted path and kind, in order
    pub fields: Vec<(String, FieldKind)>,
}

impl KeyPattern {
    /// Parses a pattern; each way of being malformed has its own error.
    ///
    /// # Errors
    /// `BadValue` and its relatives, as MongoDB answers `shardCollection`.
    pub fn parse(_json: &serde_json::Value) -> Result<KeyPattern> {
        todo!()
    }

    /// The pattern as the JSON it was given as.
    pub fn to_json(&self) -> serde_json::Value {
        todo!()
    }

    /// The pattern of an unsharded collection.
    pub fn unsharded() -> KeyPattern {
        KeyPattern { fields: Vec::new() }
    }

    /// True for an unsharded collection.
    pub fn is_unsharded(&self) -> bool {
        self.fields.is_empty()
    }

    /// True if the key follows from `_id` alone: `{"_id": 1}`, `{"_id": "hashed"}`, or unsharded.
    pub fn follows_from_id(&self) -> bool {
        todo!()
    }

    /// Position of the hashed field, if any.
    pub fn hashed_field(&self) -> Option<usize> {
        todo!()
    }

    /// A document's shard key, encoded. A missing field counts as null.
    ///
    /// # Errors
    /// `ShardKeyNotFound` for an array on a field's path; `KeyTooLong`.
    pub fn key_of(&self, _document: RawObject<'_>) -> Result<Vec<u8>> {
        todo!()
    }

    /// True if the document has every field of the key (null counts as present, missing does not).
    pub fn is_complete(&self, _document: RawObject<'_>) -> bool {
        todo!()
    }

    /// Encodes a bound given by a user, such as `{"recipient": "m"}` or `{"recipient": {"$minKey": 1}, "sent": 5}`.
    /// Fields left out at the end count as MinKey. A hashed field takes a 64-bit integer.
    ///
    /// # Errors
    /// `BadValue` if the fields are no prefix of the pattern, or if a hashed field's bound is no integer.
    pub fn bound_from_json(&self, _json: &serde_json::Value) -> Result<Vec<u8>> {
        todo!()
    }

    /// A bound as a readable key document, in the pattern's order.
    pub fn bound_to_json(&self, _bound: &[u8]) -> serde_json::Value {
        todo!()
    }

    /// The lowest bound: MinKey in every field.
    pub fn min_bound(&self) -> Vec<u8> {
        todo!()
    }

    /// The highest bound: MaxKey in every field. The last chunk includes even a key of all MaxKey.
    pub fn max_bound(&self) -> Vec<u8> {
        todo!()
    }

    /// `n - 1` bounds that cut the hash space evenly into `n`, for a pattern whose first field is hashed.
    pub fn even_hash_bounds(&self, _n: usize) -> Vec<Vec<u8>> {
        todo!()
    }

    /// The values of an encoded key, one a field (a hash as a long).
    ///
    /// # Errors
    /// `BadValue` for bytes that are no key of this pattern.
    pub fn decode(&self, _key: &[u8]) -> Result<Vec<Value>> {
        todo!()
    }
}
