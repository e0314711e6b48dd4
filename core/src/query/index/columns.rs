//! The columns of an index's b-tree: the keys of a document's values, and the type information that keys lack.

use super::keys::{IndexKeys, MAX_FIELDS};
use super::types::{self, Codes, LONG, MISSING_BELOW, PLAIN, PRESENT_NULL, UNDEFINED};
use crate::error::{Kind, Result, bail, error};
use crate::values::document::element::Element;
use crate::values::document::field_order::Keeping;
use crate::values::document::raw::{RawObject, RawValue};
use crate::values::document::value::Value;
use crate::values::document::write;
use crate::values::key::encode::{decode, encode_hash, encode_under, hash_encoded};
use crate::values::path;

/// Stored in every b-tree column of a document whose keys are in the inverted index instead (its *entries*, see the header of `mod.rs`). It
/// sorts after every key.
pub const IN_ENTRIES: &[u8] = &[0xFF];

impl IndexKeys {
    /// True if the document's keys are entries instead: it has an array, or a value that is too long, at one of the paths. Never for a
    /// hashed index.
    pub fn has_entries_of(&self, document: RawObject<'_>) -> bool {
        self.hashed.is_none()
            && self
                .fields
                .iter()
                .any(|(path, _)| path::resolve(document, path).is_some_and(|value| self.needs_entries(value)))
    }

    /// True if a document with this value at an indexed path has entries instead of b-tree keys.
    fn needs_entries(&self, value: RawValue<'_>) -> bool {
        match value {
            // The key of a number is always shorter than the limit.
            RawValue::Null | RawValue::Bool(_) | RawValue::Number(_) => false,
            RawValue::Array(_) => true,
            // Without a collation, a byte of a string takes at most two bytes of the encoding.
            RawValue::String(text) if self.collation.is_none() && 2 * text.len() + 2 < self.column_limit() => false,
            value => self.stored_bytes(value) >= self.column_limit(),
        }
    }

    /// The bytes that a value takes in the b-tree: its key and its types.
    fn stored_bytes(&self, value: RawValue<'_>) -> usize {
        let mut codes = Vec::new();
        types::of_value(&Element::of(value), &mut codes);
        self.encoded(value).len() + codes.len()
    }

    /// The key of a document in one column of the b-tree. In a hashed index, the other columns' keys are truncated to `column_limit`.
    pub fn key(&self, document: RawObject<'_>, column: usize) -> Vec<u8> {
        if self.has_entries_of(document) { IN_ENTRIES.to_vec() } else { self.value_key(document, column) }
    }

    fn value_key(&self, document: RawObject<'_>, column: usize) -> Vec<u8> {
        let field = self.fields.get(column).and_then(|(path, _)| path::resolve(document, path));
        let key = self.encoded(field.unwrap_or(RawValue::Null));
        match self.hashed {
            None => key,
            Some(hashed) if hashed == column => hash_of(&key),
            Some(_) => key[..key.len().min(self.column_limit())].to_vec(),
        }
    }

    /// Refuses a document that a hashed index cannot hold.
    ///
    /// # Errors
    /// `Location16766` for an array on one of the paths.
    pub fn check(&self, document: RawObject<'_>) -> Result<()> {
        if self.hashed.is_none() {
            return Ok(());
        }
        let is_array = |path: &str| matches!(path::resolve(document, path), Some(RawValue::Array(_)));
        self.fields.iter().try_for_each(|(path, _)| match is_array(path) {
            false => Ok(()),
            true => bail!(16766, "hashed indexes do not currently support array values. Found array at path: {path}"),
        })
    }

    pub(super) fn encoded(&self, value: RawValue<'_>) -> Vec<u8> {
        let mut key = Vec::new();
        encode_under(&Element::of(value), self.collation.as_deref(), &mut key);
        key
    }

    /// True if the b-tree has a column of types, so that the indexed values can be restored from it alone. Documents whose keys are
    /// [`IN_ENTRIES`] are excepted. With [`MAX_FIELDS`] fields, there is no room for this column: a PostgreSQL index has at most 32.
    pub fn has_types(&self) -> bool {
        self.has_tree() && self.hashed.is_none() && self.collation.is_none() && self.fields.len() < MAX_FIELDS
    }

    /// True if the path is one of the index's paths, or lies below one.
    pub fn covers(&self, path: &str) -> bool {
        self.fields.iter().any(|(field, _)| field == path || path::is_below(path, field))
    }

    /// The type information that the document's keys lack; empty if its keys are entries.
    pub fn types(&self, document: RawObject<'_>) -> Vec<u8> {
        let mut codes = Vec::new();
        for (path, _) in &self.fields {
            match path::resolve(document, path) {
                None => codes.push(types::missing(document, path)),
                Some(RawValue::Number(number)) if number.scale() == 0 && !number.is_marked_long() => {
                    codes.push(PLAIN);
                }
                Some(value) if self.needs_entries(value) => return Vec::new(),
                Some(value) => types::of_field(&Element::of(value), &mut codes),
            }
        }
        let used = codes.iter().rposition(|&code| code != PLAIN).map_or(0, |last| last + 1);
        codes.truncate(used);
        codes
    }

    /// Restores the indexed fields of a document from its keys and types, as jsonb.
    ///
    /// # Errors
    /// `BadValue` for bytes that are not such keys and types, among them [`IN_ENTRIES`].
    pub fn restore_document<'k>(&self, keys: impl Iterator<Item = &'k [u8]>, types: &[u8]) -> Result<Vec<u8>> {
        let malformed = || error!(Kind::BadValue, "these are not the keys of a document");
        let mut codes = Codes(types);
        let mut fields = Vec::new();
        let mut restored = 0;
        for ((path, _), key) in self.fields.iter().zip(keys) {
            let (mut value, rest) = decode(key)?;
            if !rest.is_empty() {
                return Err(malformed());
            }
            match (&value, codes.peek()) {
                (Value::Null, PLAIN) => types::put(&mut fields, path, 0, None),
                (Value::Null, PRESENT_NULL) => types::put(&mut fields, path, usize::MAX, Some(Value::Null)),
                (Value::Null, UNDEFINED) => types::put(&mut fields, path, usize::MAX, Some(Value::Undefined)),
                (Value::Null, code) => types::put(&mut fields, path, usize::from(code - MISSING_BELOW), None),
                _ => {
                    types::retype(&mut value, &mut codes).ok_or_else(malformed)?;
                    types::put(&mut fields, path, usize::MAX, Some(value));
                    restored += 1;
                    continue;
                }
            }
            codes.next();
            restored += 1;
        }
        if restored < self.fields.len() {
            return Err(malformed());
        }
        // Without this setting, longs that fit 32 bits would be written as ints.
        let _keeping = Keeping::order_if(types.contains(&LONG));
        write::value(&Value::fixed_object(fields))
    }
}

/// The key of a hashed field: the hash instead of the value's encoding.
pub(super) fn hash_of(encoding: &[u8]) -> Vec<u8> {
    let mut key = Vec::new();
    encode_hash(hash_encoded(encoding), &mut key);
    key
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::values::document::ext_json::from_json;
    use crate::values::document::raw;
    use serde_json::json;

    fn keys(json: serde_json::Value) -> IndexKeys {
        IndexKeys::parse(&json).unwrap()
    }

    fn stored(json: serde_json::Value) -> Vec<u8> {
        write::value(&from_json(&json).unwrap()).unwrap()
    }

    #[test]
    fn arrays_and_long_values_stand_apart_in_every_column() {
        let index = keys(json!({"from": 1, "to": 1}));
        for to in [json!(["bob", "cid"]), json!("x".repeat(5000))] {
            let doc = stored(json!({"from": "ann", "to": to}));
            let doc = raw::document(&doc).unwrap();
            assert_eq!(index.key(doc, 0), IN_ENTRIES);
            assert_eq!(index.key(doc, 1), IN_ENTRIES);
        }
    }
}
