//! The packed form in which a shard sends several documents to the router at once.
//!
//! Documents of a collection mostly have the same fields, so the heading and the names of an object are written only if they differ
//! from those of the document before.
//!
//! For each document: two little-endian 32-bit lengths, of the key by which it is merged, and of the document's bytes; then the key
//! and the bytes. The highest bit of the second length means that heading and names are those of the document before, and left
//! out. jsonb's form is described in [`raw`](super::raw): the heading is the header with the entries of the keys; the entries of
//! the values, the names, and the values follow.

use super::raw;
use std::ops::Range;

/// The bit in a length for a document with the fields of the one before.
const SAME_FIELDS: u32 = 1 << 31;

/// The largest total size of unpacked keys and documents. Fields that are written once are unpacked for each document, so without a
/// limit a short packed value could take any amount of memory.
pub const MAX_UNPACKED_BYTES: usize = 64 << 20;

/// The fields of an object.
#[derive(Debug, Default)]
struct Fields {
    heading: Vec<u8>,
    names: Vec<u8>,
}

impl Fields {
    /// The offset of the names in an object with this heading.
    fn names_at(&self) -> usize {
        (2 * self.heading.len()).saturating_sub(4)
    }

    /// The entries of the values and the values themselves, if the object has these fields.
    fn split<'a>(&self, document: &'a [u8]) -> Option<[&'a [u8]; 2]> {
        if self.heading.is_empty() {
            return None;
        }
        let entries = document.strip_prefix(self.heading.as_slice())?;
        let (entries, rest) = entries.split_at_checked(self.names_at() - self.heading.len())?;
        Some([entries, rest.strip_prefix(self.names.as_slice())?])
    }

    /// Remembers a document's fields; none if it is not an object.
    fn remember(&mut self, document: &[u8]) {
        self.heading.clear();
        self.names.clear();
        if let Some((heading, names)) = raw::fields(document) {
            self.heading.extend_from_slice(heading);
            self.names.extend_from_slice(names);
        }
    }
}

/// Packs documents.
#[derive(Debug)]
pub struct Packer {
    packed: Vec<u8>,
    fields: Fields,
    unpacked: usize,
}

impl Default for Packer {
    /// With room for a few short documents.
    fn default() -> Self {
        Self { packed: Vec::with_capacity(8 << 10), fields: Fields::default(), unpacked: 0 }
    }
}

impl Packer {
    /// Adds a document, in jsonb's form after the varlena header, and the key by which it is merged.
    ///
    /// Both are shorter than 2 GB, as all values that PostgreSQL stores.
    pub fn put(&mut self, key: &[u8], document: &[u8]) {
        let length = |bytes: usize| u32::try_from(bytes).unwrap_or(u32::MAX) & !SAME_FIELDS;
        self.unpacked = self.unpacked.saturating_add(key.len() + document.len());
        self.packed.extend_from_slice(&length(key.len()).to_le_bytes());
        if let Some([entries, values]) = self.fields.split(document) {
            let rest = length(entries.len() + values.len()) | SAME_FIELDS;
            self.packed.extend_from_slice(&rest.to_le_bytes());
            self.packed.extend_from_slice(key);
            self.packed.extend_from_slice(entries);
            self.packed.extend_from_slice(values);
            return;
        }
        self.fields.remember(document);
        self.packed.extend_from_slice(&length(document.len()).to_le_bytes());
        self.packed.extend_from_slice(key);
        self.packed.extend_from_slice(document);
    }

    /// The packed documents; None if they exceed the limit of [`Documents::unpack`].
    pub fn into_bytes(self) -> Option<Vec<u8>> {
        (self.unpacked <= MAX_UNPACKED_BYTES).then_some(self.packed)
    }
}

/// Unpacked documents.
#[derive(Debug, Default)]
pub struct Documents {
    bytes: Vec<u8>,
    /// for each document the positions of its key and of itself
    places: Vec<[Range<usize>; 2]>,
}

impl Documents {
    /// Unpacks documents; None if the bytes are malformed, or exceed [`MAX_UNPACKED_BYTES`]. The documents themselves are not
    /// validated.
    pub fn unpack(mut packed: &[u8]) -> Option<Self> {
        let room = (packed.len() / 2).saturating_mul(3).min(MAX_UNPACKED_BYTES);
        let mut all = Self { bytes: Vec::with_capacity(room), places: Vec::with_capacity(32) };
        let mut fields = Fields::default();
        while !packed.is_empty() {
            let key = word(&mut packed)? as usize;
            let length = word(&mut packed)?;
            let (key, rest) = packed.split_at_checked(key)?;
            let (document, rest) = rest.split_at_checked((length & !SAME_FIELDS) as usize)?;
            packed = rest;
            let key = all.append(&[key])?;
            let document = if length & SAME_FIELDS == 0 {
                fields.remember(document);
                all.append(&[document])?
            } else {
                let entries = fields.names_at().checked_sub(fields.heading.len())?;
                let (entries, values) = document.split_at_checked(entries)?;
                all.append(&[&fields.heading, entries, &fields.names, values])?
            };
            all.places.push([key, document]);
        }
        Some(all)
    }

    fn append(&mut self, parts: &[&[u8]]) -> Option<Range<usize>> {
        let start = self.bytes.len();
        let length = parts.iter().fold(start, |sum, part| sum.saturating_add(part.len()));
        if length > MAX_UNPACKED_BYTES {
            return None;
        }
        parts.iter().for_each(|part| self.bytes.extend_from_slice(part));
        Some(start..length)
    }

    /// The number of documents.
    pub fn count(&self) -> usize {
        self.places.len()
    }

    /// The key of a document.
    pub fn key(&self, number: usize) -> Option<&[u8]> {
        self.bytes.get(self.places.get(number)?[0].clone())
    }

    /// A document.
    pub fn document(&self, number: usize) -> Option<&[u8]> {
        self.bytes.get(self.places.get(number)?[1].clone())
    }
}

fn word(bytes: &mut &[u8]) -> Option<u32> {
    let (word, rest) = bytes.split_first_chunk::<4>()?;
    *bytes = rest;
    Some(u32::from_le_bytes(*word))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::values::document::{ext_json, write};
    use proptest::prelude::*;
    use serde_json::{Value as Json, json};

    fn jsonb(json: &Json) -> Vec<u8> {
        write::value(&ext_json::from_json(json).unwrap()).unwrap()
    }

    fn packed(all: &[(Vec<u8>, Vec<u8>)]) -> Vec<u8> {
        let mut packer = Packer::default();
        all.iter().for_each(|(key, document)| packer.put(key, document));
        packer.into_bytes().expect("within the limit")
    }

    fn unpacked(packed: &[u8]) -> Option<Vec<(Vec<u8>, Vec<u8>)>> {
        let all = Documents::unpack(packed)?;
        Some((0..all.count()).map(|n| (all.key(n).unwrap().to_vec(), all.document(n).unwrap().to_vec())).collect())
    }

    #[test]
    fn fields_are_written_once() {
        let of =
            |n: i32| (vec![b'k'; 3], jsonb(&json!({"_id": n, "recipient": format!("somebody {n}"), "sent": [n, {}]})));
        let (one, two) = (packed(&[of(1)]), packed(&[of(1), of(2)]));
        // The second document stores neither a heading of four words nor the names.
        assert_eq!(two.len() - one.len(), one.len() - 16 - "_idrecipientsent".len());
        assert_eq!(unpacked(&two).unwrap(), [of(1), of(2)]);
    }

    #[test]
    fn truncated_bytes_are_not_unpacked() {
        let all = [1, 2, 3].map(|n| (vec![n; 2], jsonb(&json!({"a": n, "b": {"c": "x"}}))));
        let whole = packed(&all);
        let ends: Vec<usize> = (0..=3).map(|count| packed(&all[..count]).len()).collect();
        for length in 0..whole.len() {
            assert_eq!(unpacked(&whole[..length]).is_some(), ends.contains(&length), "{length} bytes");
        }
    }

    /// A few bytes can claim many documents, each with all the fields of the first.
    #[test]
    fn a_short_value_does_not_ask_for_much_memory() {
        let names: serde_json::Map<_, _> = (0..100_000).map(|n| (format!("field {n}"), Json::Null)).collect();
        let first = jsonb(&Json::Object(names));
        let mut packer = Packer::default();
        for _ in 0..100 {
            packer.put(&[], &first);
        }
        let (claimed, mut bytes) = (packer.unpacked, packer.packed.clone());
        assert!(claimed > MAX_UNPACKED_BYTES && packer.into_bytes().is_none());
        assert!(Documents::unpack(&bytes).is_none());
        bytes.truncate(8 + first.len());
        assert_eq!(Documents::unpack(&bytes).map(|all| all.count()), Some(1));
    }

    fn document() -> impl Strategy<Value = Json> {
        let leaf = prop_oneof![
            Just(Json::Null),
            any::<i32>().prop_map(Json::from),
            "[a-z]{0,6}".prop_map(Json::from),
            Just(json!([1, {"a": "b"}])),
        ];
        // Few names, so that neighbours often share all of them; and more fields than one offset is stored for.
        let few = proptest::collection::btree_map("[ab]{1}", leaf.clone(), 0..3);
        let many = proptest::collection::vec(leaf, 30..40)
            .prop_map(|values| values.into_iter().enumerate().map(|(n, value)| (format!("f{n}"), value)).collect());
        prop_oneof![4 => few, 1 => many]
            .prop_map(|fields: std::collections::BTreeMap<String, Json>| Json::Object(fields.into_iter().collect()))
    }

    proptest! {
        #[test]
        fn packed_documents_are_unpacked(all in proptest::collection::vec((proptest::collection::vec(any::<u8>(), 0..5), document()), 0..12)) {
            let all: Vec<(Vec<u8>, Vec<u8>)> = all.into_iter().map(|(key, json)| (key, jsonb(&json))).collect();
            prop_assert_eq!(unpacked(&packed(&all)).unwrap(), all);
        }

        #[test]
        fn any_bytes_are_packed(all in proptest::collection::vec((any::<[u8; 2]>(), proptest::collection::vec(any::<u8>(), 0..40)), 0..6)) {
            let all: Vec<(Vec<u8>, Vec<u8>)> = all.into_iter().map(|(key, bytes)| (key.to_vec(), bytes)).collect();
            prop_assert_eq!(unpacked(&packed(&all)).unwrap(), all);
        }

        #[test]
        fn damage_is_no_panic(bytes in proptest::collection::vec(any::<u8>(), 0..80), at in 0..120usize, other: u8) {
            let _ = unpacked(&bytes);
            let mut whole = packed(&[1, 2, 3].map(|n| (vec![n], jsonb(&json!({"a": n, "b": "x"})))));
            let length = whole.len();
            whole[at % length] = other;
            let _ = unpacked(&whole);
        }
    }
}
