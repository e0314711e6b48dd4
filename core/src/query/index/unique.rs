//! The keys of a document in a unique index; no other document may have the same key.
//!
//! As in [`entries`](super::entries), a key is the concatenation of the columns' encodings, and an array yields a key for each element.
//! But documents without arrays have a key here, too, and there is no tag, since a value is unique whether it occurs alone or in
//! an array. Keys are only tested for equality, so a key that is too long for a b-tree's page ends with a hash.

use super::keys::IndexKeys;
use crate::error::Result;
use crate::query::sort::EMPTY_ARRAY;
use crate::values::document::raw::RawObject;
use crate::values::document::value::Value;
use crate::values::key::encode::{decode, split_first};
use xxhash_rust::xxh3::xxh3_128;

/// Largest length of an untruncated key, in bytes. A longer key is truncated to this length, and its hash follows, so it never equals
/// an untruncated key.
const WHOLE: usize = 1024;

impl IndexKeys {
    /// The document's keys in a unique index, sorted, each once.
    ///
    /// # Errors
    /// `CannotIndexParallelArrays`.
    pub fn unique_keys(&self, document: RawObject<'_>) -> Result<Vec<Vec<u8>>> {
        let mut keys: Vec<Vec<u8>> =
            self.whole_keys(document)?.into_iter().map(|columns| shortened(columns.concat())).collect();
        keys.sort_unstable();
        keys.dedup();
        Ok(keys)
    }

    /// The values in a key, one for each field; None for a truncated key. A string under a collation is represented by its sort key
    /// in hexadecimal digits.
    pub fn values_of_unique_key(&self, key: &[u8]) -> Option<Vec<Value>> {
        if key.len() > WHOLE {
            return None;
        }
        let mut rest = key;
        let values = self.fields.iter().map(|_| {
            if let Some(after) = rest.strip_prefix(&[EMPTY_ARRAY]) {
                rest = after;
                return Some(Value::fixed_array(Vec::new()));
            }
            let (column, after) = split_first(rest)?;
            rest = after;
            let value = decode(column).ok().map(|(value, _)| value);
            let collated = self.collation.is_some();
            let read = value.filter(|value| !(collated && value.has_strings()));
            read.or_else(|| collated.then(|| Value::String(format!("0x{}", hex::encode(column)))))
        });
        values.collect()
    }
}

fn shortened(mut key: Vec<u8>) -> Vec<u8> {
    if key.len() > WHOLE {
        let hash = xxh3_128(&key);
        key.truncate(WHOLE);
        key.extend(hash.to_be_bytes());
    }
    key
}

/// Packs several keys into one value: the keys, the length of each, and their number. Packed values sort by their first keys.
pub fn pack(keys: &[Vec<u8>]) -> Vec<u8> {
    let mut packed = keys.concat();
    for key in keys {
        packed.extend(u16::try_from(key.len()).expect("shortened").to_be_bytes());
    }
    packed.extend(u32::try_from(keys.len()).expect("a document has fewer values").to_be_bytes());
    packed
}

/// Unpacks the keys from a value that [`pack`] returned; None for other bytes.
pub fn unpack(packed: &[u8]) -> Option<Vec<&[u8]>> {
    let (rest, count) = packed.split_last_chunk()?;
    let lengths = usize::try_from(u32::from_be_bytes(*count)).ok()?.checked_mul(size_of::<u16>())?;
    let (mut keys, lengths) = rest.split_at_checked(rest.len().checked_sub(lengths)?)?;
    let (lengths, _) = lengths.as_chunks();
    let each = lengths.iter().map(|length| {
        let (key, rest) = keys.split_at_checked(u16::from_be_bytes(*length).into())?;
        keys = rest;
        Some(key)
    });
    each.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Kind;
    use crate::values::document::ext_json::{from_json, to_json};
    use crate::values::document::{raw, write};
    use serde_json::{Value as Json, json};

    fn keys_of(index: &Json, doc: &Json) -> Result<Vec<Vec<u8>>> {
        let stored = write::value(&from_json(doc).unwrap()).unwrap();
        IndexKeys::parse(index).unwrap().unique_keys(raw::document(&stored).unwrap())
    }

    fn meet(index: &Json, one: &Json, other: &Json) -> bool {
        let (one, other) = (keys_of(index, one).unwrap(), keys_of(index, other).unwrap());
        one.iter().any(|key| other.contains(key))
    }

    #[test]
    fn a_value_is_unique_alone_and_in_arrays() {
        let index = json!({"a": 1});
        for (one, other, taken) in [
            (json!({"a": 1}), json!({"a": [2, 1]}), true),
            (json!({"a": [1, 2]}), json!({"a": [2.0, 3]}), true),
            (json!({"a": [1, 2]}), json!({"a": [3]}), false),
            (json!({}), json!({"a": null}), true),
            (json!({}), json!({"a": [null, 1]}), true),
            (json!({"a": []}), json!({"a": []}), true),
            (json!({"a": []}), json!({}), false),
            (json!({"a": [[1]]}), json!({"a": [1]}), false),
        ] {
            assert_eq!(meet(&index, &one, &other), taken, "{one} {other}");
        }
        let compound = json!({"a": 1, "b": 1});
        assert!(meet(&compound, &json!({"a": [1, 2], "b": 3}), &json!({"a": 2, "b": 3})));
        assert!(!meet(&compound, &json!({"a": [1, 2], "b": 3}), &json!({"a": 2, "b": 4})));
        let error = keys_of(&compound, &json!({"a": [1], "b": [1]})).unwrap_err();
        assert_eq!(error.kind, Kind::CannotIndexParallelArrays);
    }

    #[test]
    fn long_values_differ_by_their_ends() {
        let index = json!({"a": 1});
        let long = |end: &str| json!({"a": "x".repeat(5000) + end});
        assert!(meet(&index, &long("1"), &long("1")));
        assert!(!meet(&index, &long("1"), &long("2")));
        // No value equals the truncated key of a long one.
        for length in WHOLE - 40..WHOLE + 40 {
            assert!(!meet(&index, &json!({"a": "x".repeat(length)}), &long("1")), "{length}");
        }
    }

    #[test]
    fn keys_are_packed_and_read() {
        for doc in [json!({"a": [1, "b", []], "b": 7}), json!({"a": [], "b": {"c": 1}}), json!({})] {
            let index = json!({"a": 1, "b": -1});
            let keys = keys_of(&index, &doc).unwrap();
            assert_eq!(unpack(&pack(&keys)).unwrap(), keys);
            let parsed = IndexKeys::parse(&index).unwrap();
            for key in &keys {
                let values = parsed.values_of_unique_key(key).unwrap();
                assert_eq!(values.len(), 2);
                assert_eq!(to_json(&values[1]), doc.get("b").cloned().unwrap_or(Json::Null));
            }
        }
        assert_eq!(unpack(&pack(&[])), Some(Vec::new()));
        for bad in [&[][..], &[1, 2, 3], &[0, 9, 0, 0, 0, 1], &[0xFF; 4]] {
            assert_eq!(unpack(bad), None);
        }
    }

    #[test]
    fn strings_under_a_collation_are_shown_as_their_sort_keys() {
        let collator =
            crate::values::collation::Collator::parse(&json!({"locale": "en", "strength": 2})).unwrap().unwrap();
        let index = IndexKeys::parse(&json!({"a": 1, "b": 1})).unwrap().under(Some(std::sync::Arc::new(collator)));
        let key = |doc: &Json| {
            let stored = write::value(&from_json(doc).unwrap()).unwrap();
            index.unique_keys(raw::document(&stored).unwrap()).unwrap().swap_remove(0)
        };
        assert_eq!(key(&json!({"a": "X", "b": 1})), key(&json!({"a": "x", "b": 1})));
        let values = index.values_of_unique_key(&key(&json!({"a": "X", "b": 1}))).unwrap();
        assert!(matches!(&values[0], Value::String(shown) if shown.starts_with("0x")), "{values:?}");
        assert_eq!(to_json(&values[1]), json!(1));
    }
}
