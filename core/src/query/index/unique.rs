//! The keys that a unique index holds of a document, of which no other document may have one.
//!
//! As those of [`entries`](super::entries) they are the columns' encodings one after the other, one key for each element of an
//! array; but a document without arrays has its key here, too, and there is no tag in front: a value is taken whether it
//! stands alone or in an array. All that matters is whether two are equal, so what is too long for a b-tree's page ends with
//! a hash.

use super::keys::IndexKeys;
use crate::error::Result;
use crate::query::sort::EMPTY_ARRAY;
use crate::values::document::raw::RawObject;
use crate::values::document::value::Value;
use crate::values::key::encode::{decode, split_first};
use xxhash_rust::xxh3::xxh3_128;

/// How many bytes of a key are held as they are. A longer one is cut here, and its hash follows: so it equals no key that is
/// held whole.
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

    /// The values that such a key was made of, one a field; None if it does not tell. Of a string under a collation, its sort
    /// key in hexadecimal digits is all that there is.
    pub fn values_of_unique_key(&self, key: &[u8]) -> Option<Vec<Value>> {
        if key.len() > WHOLE {
            return None;
        }
        let mut rest = key;
        let values = self.fields.iter().map(|_| {
            if let Some(after) = rest.strip_prefix(&[EMPTY_ARRAY]) {
                rest = after;
                return Some(Value::Array(Vec::new()));
            }
            let (column, after) = split_first(rest)?;
            rest = after;
            let value = decode(column).ok().map(|(value, _)| value);
            let collated = self.collation.is_some();
            let read = value.filter(|value| !(collated && value.has_strings()));
            read.or_else(|| collated.then(|| Value::String(format!("0x{}", hexadecimal(column)))))
        });
        values.collect()
    }
}

fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn shortened(mut key: Vec<u8>) -> Vec<u8> {
    if key.len() > WHOLE {
        let hash = xxh3_128(&key);
        key.truncate(WHOLE);
        key.extend(hash.to_be_bytes());
    }
    key
}

/// Several keys as one value: one behind the other, then the length of each, then how many there are. So that values are in the
/// order of their first keys.
pub fn pack(keys: &[Vec<u8>]) -> Vec<u8> {
    let mut packed = keys.concat();
    for key in keys {
        packed.extend(u16::try_from(key.len()).expect("shortened").to_be_bytes());
    }
    packed.extend(u32::try_from(keys.len()).expect("no document has so many values").to_be_bytes());
    packed
}

/// The keys that [`pack`] made one of; None of what it did not make.
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
    fn a_value_is_taken_alone_and_in_arrays() {
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
    fn long_values_are_told_apart_by_their_ends() {
        let index = json!({"a": 1});
        let long = |end: &str| json!({"a": "x".repeat(5000) + end});
        assert!(meet(&index, &long("1"), &long("1")));
        assert!(!meet(&index, &long("1"), &long("2")));
        // What is held of a long one, as a value of its own.
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
