//! The shard-key pattern: fields in order, each ranged or hashed.
//!
//! A document's key is the concatenation of its fields' encodings in the pattern's order; a hashed field is represented by its hash.
//! A bound is a key, too, with values that need not occur in any document, such as MinKey.

use super::encode::{MAX_KEY_BYTES, decode, encode, encode_hash, encode_value, hash};
use crate::error::{Error, Kind, Result, bail, ensure, error};
use crate::values::document::element::Element;
use crate::values::document::ext_json;
use crate::values::document::number::Number;
use crate::values::document::raw::RawObject;
use crate::values::document::value::Value;
use crate::values::path::{is_below, resolve};
use serde_json::{Map, Value as Json};
use std::borrow::Cow;

/// The most fields that a pattern may have: MongoDB's limit for an index.
const MAX_FIELDS: usize = 32;

/// The kind of a pattern's field.
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
    /// Parses a pattern.
    ///
    /// # Errors
    /// `TypeMismatch` and `BadValue`, as MongoDB's `shardCollection`.
    pub fn parse(json: &Json) -> Result<KeyPattern> {
        let Some(members) = ext_json::ordered(json) else {
            return Err(error!(Kind::TypeMismatch, "A shard key pattern must be an object, not {json}")
                .with_hint(ext_json::ORDER_HINT));
        };
        let count = members.len();
        ensure!(count > 0, Kind::BadValue, "The shard key pattern cannot be empty");
        ensure!(
            count <= MAX_FIELDS,
            Kind::BadValue,
            "A shard key pattern has at most {MAX_FIELDS} fields, not {count}"
        );
        let mut fields: Vec<(String, FieldKind)> = Vec::with_capacity(members.len());
        for (path, kind) in members.iter() {
            check_path(path)?;
            let kind = parse_kind(path, kind)?;
            for (other, other_kind) in &fields {
                if other == path || is_below(other, path) || is_below(path, other) {
                    bail!(
                        Kind::BadValue,
                        "The shard key pattern has both '{other}' and '{path}', and one contains the other"
                    );
                }
                if kind == FieldKind::Hashed && *other_kind == FieldKind::Hashed {
                    bail!(
                        Kind::BadValue,
                        "A maximum of one index field is allowed to be hashed, but both '{other}' and '{path}' are"
                    );
                }
            }
            fields.push((path.clone(), kind));
        }
        Ok(KeyPattern { fields })
    }

    /// The pattern as JSON, as it is given.
    pub fn to_json(&self) -> Json {
        let kind = |kind: &FieldKind| match kind {
            FieldKind::Ranged => Json::from(1),
            FieldKind::Hashed => Json::from("hashed"),
        };
        Json::Object(self.fields.iter().map(|(path, field)| (path.clone(), kind(field))).collect())
    }

    /// The pattern of an unsharded collection.
    pub fn unsharded() -> KeyPattern {
        KeyPattern { fields: Vec::new() }
    }

    /// True for an unsharded collection.
    pub fn is_unsharded(&self) -> bool {
        self.fields.is_empty()
    }

    /// True if the order of the key is that of `_id`, as for `{"_id": 1}` and unsharded collections.
    pub fn is_in_order_of_id(&self) -> bool {
        self.fields.iter().all(|(path, kind)| path == "_id" && *kind == FieldKind::Ranged)
    }

    /// Position of the hashed field, if any.
    pub fn hashed_field(&self) -> Option<usize> {
        self.fields.iter().position(|(_, kind)| *kind == FieldKind::Hashed)
    }

    /// A document's shard key, encoded. A missing field counts as null.
    ///
    /// # Errors
    /// `ShardKeyNotFound` for an array on a field's path, or undefined; `KeyTooLong`.
    pub fn key_of(&self, document: RawObject<'_>) -> Result<Vec<u8>> {
        let mut key = Vec::with_capacity(16 * self.fields.len());
        for (path, kind) in &self.fields {
            // An array on the way to the field is the value found, and is refused like one at the end.
            let element = resolve(document, path).map_or(Element::Null, Element::of);
            if matches!(element, Element::Array(_) | Element::Undefined) {
                return Err(not_a_key(path, element.type_name()));
            }
            match kind {
                FieldKind::Ranged => encode(&element, &mut key),
                FieldKind::Hashed => encode_hash(hash(&element), &mut key),
            }
        }
        if key.len() > MAX_KEY_BYTES {
            let length = key.len();
            return Err(error!(Kind::KeyTooLong, "The shard key takes {length} bytes, more than {MAX_KEY_BYTES}")
                .with_hint("Shard by shorter values, or by their hash."));
        }
        Ok(key)
    }

    /// Encodes a user's bound, such as `{"recipient": "m"}` or `{"recipient": {"$minKey": 1}, "sent": 5}`.
    /// Fields left out at the end count as MinKey. A hashed field takes a 64-bit integer.
    ///
    /// # Errors
    /// `BadValue` if the fields are not a prefix of the pattern, or a hashed field's bound is not an integer; `TypeMismatch` for
    /// another type than an object; `KeyTooLong`; those of [`ext_json::from_json`].
    pub fn bound_from_json(&self, json: &Json) -> Result<Vec<u8>> {
        let Some(members) = ext_json::document(json) else {
            bail!(Kind::TypeMismatch, "A bound must be an object, not {json}")
        };
        if !self.is_unsharded() && members.is_empty() {
            bail!(Kind::BadValue, "The bound has no field of the shard key {}", self.to_json());
        }
        let mut members = members.iter();
        let mut bound = Vec::new();
        for (path, kind) in &self.fields {
            let value = match members.next() {
                None => Value::MinKey,
                Some((name, json)) if name == path => ext_json::from_json(json)?,
                Some((name, _)) => return Err(self.not_in_pattern(name)),
            };
            match (kind, &value) {
                (FieldKind::Hashed, Value::Number(Number::Int(hash, _))) => encode_hash(*hash, &mut bound),
                (FieldKind::Ranged, Value::Array(_) | Value::Undefined) => {
                    bail!(Kind::BadValue, "The bound of '{path}' cannot be of type {}", value.type_name());
                }
                (FieldKind::Ranged, _) | (_, Value::MinKey | Value::MaxKey) => encode_value(&value, &mut bound),
                (FieldKind::Hashed, _) => bail!(
                    Kind::BadValue,
                    "The bound of the hashed field '{path}' must be a 64-bit integer, MinKey or MaxKey, not {}",
                    value.type_name()
                ),
            }
        }
        if let Some((name, _)) = members.next() {
            return Err(self.not_in_pattern(name));
        }
        let length = bound.len();
        ensure!(length <= MAX_KEY_BYTES, Kind::KeyTooLong, "The bound takes {length} bytes, more than {MAX_KEY_BYTES}");
        Ok(bound)
    }

    fn not_in_pattern(&self, name: &str) -> Error {
        error!(Kind::BadValue, "The bound's field '{name}' is not at this position of the shard key {}", self.to_json())
            .with_hint("A bound has the shard key's fields in the same order; the last ones may be omitted.")
    }

    /// A bound as a key document, in the pattern's order. Undecodable fields become MinKey.
    pub fn bound_to_json(&self, bound: &[u8]) -> Json {
        let mut rest = bound;
        let mut members = Map::new();
        for (path, _) in &self.fields {
            let (value, behind) = decode(rest).unwrap_or((Value::MinKey, &[]));
            rest = behind;
            members.insert(path.clone(), ext_json::to_json(&value));
        }
        Json::Object(members)
    }

    /// The bound at a key that may have been cut off, or lacks the last fields: MinKey stands for fields that are not whole.
    pub fn bound_of<'k>(&self, key: &'k [u8]) -> Cow<'k, [u8]> {
        let (mut rest, mut whole) = (key, 0);
        while whole < self.fields.len()
            && let Ok((_, behind)) = decode(rest)
        {
            (rest, whole) = (behind, whole + 1);
        }
        let mut bound = Cow::Borrowed(&key[..key.len() - rest.len()]);
        (whole..self.fields.len()).for_each(|_| encode_value(&Value::MinKey, bound.to_mut()));
        bound
    }

    /// How many of the pattern's first fields a bound gives a value: MinKey follows in all others.
    pub fn given_fields(&self, bound: &[u8]) -> usize {
        let (mut rest, mut given) = (bound, 0);
        for count in 1..=self.fields.len() {
            let Ok((value, behind)) = decode(rest) else { return self.fields.len() };
            rest = behind;
            given = if value == Value::MinKey { given } else { count };
        }
        given
    }

    /// The lowest bound: MinKey in every field.
    pub fn min_bound(&self) -> Vec<u8> {
        self.uniform_bound(&Value::MinKey)
    }

    /// The highest bound: MaxKey in every field. The last chunk includes this key, too.
    pub fn max_bound(&self) -> Vec<u8> {
        self.uniform_bound(&Value::MaxKey)
    }

    fn uniform_bound(&self, value: &Value) -> Vec<u8> {
        let mut bound = Vec::new();
        self.fields.iter().for_each(|_| encode_value(value, &mut bound));
        bound
    }

    /// The `n - 1` bounds that divide the hash space into `n` equal parts, if the pattern's first field is hashed; none otherwise.
    pub fn even_hash_bounds(&self, n: usize) -> Vec<Vec<u8>> {
        if self.hashed_field() != Some(0) {
            return Vec::new();
        }
        let parts = n as u128;
        (1..parts)
            .map(|part| {
                let above_least = ((part << 64) / parts) as u64;
                let mut bound = Vec::new();
                encode_hash(i64::MIN.wrapping_add_unsigned(above_least), &mut bound);
                self.fields.iter().skip(1).for_each(|_| encode_value(&Value::MinKey, &mut bound));
                bound
            })
            .collect()
    }

    /// The values of an encoded key, one a field (a hash as a long).
    ///
    /// # Errors
    /// `BadValue` for bytes that are not a key of this pattern.
    pub fn decode(&self, key: &[u8]) -> Result<Vec<Value>> {
        let mut rest = key;
        let mut values = Vec::with_capacity(self.fields.len());
        for _ in &self.fields {
            let (value, behind) = decode(rest)?;
            values.push(value);
            rest = behind;
        }
        ensure!(rest.is_empty(), Kind::BadValue, "The key has more fields than the shard key pattern");
        Ok(values)
    }
}

fn check_path(path: &str) -> Result<()> {
    for name in path.split('.') {
        ensure!(!name.is_empty(), Kind::BadValue, "The shard key's path '{path}' has an empty field name");
        if name.starts_with('$') {
            bail!(Kind::BadValue, "The shard key's path '{path}' has a field name that starts with '$'");
        }
    }
    Ok(())
}

fn parse_kind(path: &str, json: &Json) -> Result<FieldKind> {
    match ext_json::from_json(json)? {
        Value::String(kind) if kind == "hashed" => Ok(FieldKind::Hashed),
        Value::String(kind) => {
            bail!(Kind::BadValue, "The shard key's field '{path}' must be 1 or \"hashed\", not \"{kind}\"")
        }
        Value::Number(number) if number.as_i64() == Some(1) => Ok(FieldKind::Ranged),
        Value::Number(number) if number.to_f64() < 0.0 => {
            bail!(Kind::BadValue, "The shard key's field '{path}' cannot be descending: only ascending (1) is allowed")
        }
        _ => bail!(Kind::BadValue, "The shard key's field '{path}' must be 1 or \"hashed\", not {json}"),
    }
}

fn not_a_key(path: &str, kind: &str) -> Error {
    let plural = if kind == "array" { "arrays" } else { kind };
    error!(Kind::ShardKeyNotFound, "Shard key values cannot be {plural}, but the document has an {kind} at '{path}'")
}
