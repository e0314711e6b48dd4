//! Fast path for filters that consist of a key only, such as `{"recipient": "ann", "sent": {"$date": …}}`. The filter's text is
//! deserialized directly into the key's bytes, without a parsed filter. Applications mostly use such filters in their most frequent
//! finds.
//!
//! RULE: a [`Point`] has what the analysis of the parsed filter would find: the only shard key, and the only `_id` if there is one, of
//! matching documents; and every document with them matches. A filter of any other form is left to that analysis.

use crate::values::document::element::Element;
use crate::values::document::number::Number;
use crate::values::document::text;
use crate::values::key::KeyPattern;
use crate::values::key::encode::encode;
use crate::values::key::pattern::FieldKind;
use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, Visitor};
use std::fmt::Formatter;
use std::ops::Range;

/// The key that a filter names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Point {
    /// the shard key; empty for an unsharded collection
    pub skey: Vec<u8>,
    /// the `_id`, encoded
    pub id: Option<Vec<u8>>,
}

/// The point that a filter's text names; None if the filter has another form.
pub fn of_text(pattern: &KeyPattern, filter: &str) -> Option<Point> {
    let mut json = serde_json::Deserializer::from_str(filter);
    let point = json.deserialize_map(Fields(pattern)).ok()?;
    json.end().ok()?;
    Some(point)
}

/// The filter: each of its fields is one of the pattern's, or `_id`, and equal to a value.
struct Fields<'p>(&'p KeyPattern);

/// A value that is equal only to itself; its encoding is appended to the bytes.
struct Scalar<'o>(&'o mut Vec<u8>);

/// A string that a function reads. If the function returns None, the filter is refused.
struct Text<F>(F);

/// Extended types that have a plain form in text.
enum Extended {
    Date,
    ObjectId,
}

/// The error for every filter of another form. Users do not see it, as the filter is then parsed as usual.
fn refused<E: Error>() -> E {
    E::custom("not a key alone")
}

impl<'de> Visitor<'de> for Fields<'_> {
    type Value = Point;

    fn expecting(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        f.write_str("a filter")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Point, A::Error> {
        let pattern = &self.0.fields;
        let mut bytes = Vec::with_capacity(128);
        // Indexed by the number of the field; the last one is `_id`, unless that is a field of the pattern.
        let mut found: Vec<Option<Range<usize>>> = vec![None; pattern.len() + 1];
        let number_of = |name: &str| {
            let own = pattern.iter().position(|(path, _)| path == name);
            own.or_else(|| (name == ID).then_some(pattern.len()))
        };
        while let Some(number) = map.next_key_seed(Text(number_of))? {
            let start = bytes.len();
            map.next_value_seed(Scalar(&mut bytes))?;
            if found[number].replace(start..bytes.len()).is_some() {
                return Err(refused());
            }
        }
        let part = |number: usize| found[number].clone().map(|range| &bytes[range]);
        let own_id = pattern.iter().position(|(path, _)| path == ID);
        let id = part(own_id.unwrap_or(pattern.len()));
        let mut skey = Vec::with_capacity(bytes.len());
        for (number, (_, kind)) in pattern.iter().enumerate() {
            match (part(number), kind) {
                (Some(part), FieldKind::Ranged) => super::append(&mut skey, part, *kind),
                // Several values may have the same hash, so this is exact only if the hashed field is `_id` itself.
                (Some(part), FieldKind::Hashed) if own_id == Some(number) => super::append(&mut skey, part, *kind),
                _ => return Err(refused()),
            }
        }
        if pattern.is_empty() && id.is_none() {
            return Err(refused());
        }
        let id = id.map(<[u8]>::to_vec);
        Ok(Point { skey, id })
    }
}

const ID: &str = "_id";

impl<'de, T, F: FnOnce(&str) -> Option<T>> DeserializeSeed<'de> for Text<F> {
    type Value = T;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<T, D::Error> {
        deserializer.deserialize_str(self)
    }
}

impl<T, F: FnOnce(&str) -> Option<T>> Visitor<'_> for Text<F> {
    type Value = T;

    fn expecting(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        f.write_str("a string")
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<T, E> {
        (self.0)(text).ok_or_else(refused)
    }
}

impl Scalar<'_> {
    fn is<E: Error>(self, value: &Element<'_>) -> Result<(), E> {
        encode(value, self.0);
        Ok(())
    }
}

impl<'de> DeserializeSeed<'de> for Scalar<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Scalar<'_> {
    type Value = ();

    fn expecting(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        f.write_str("a value")
    }

    fn visit_str<E: Error>(self, value: &str) -> Result<(), E> {
        self.is(&Element::String(value))
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<(), E> {
        self.is(&Element::Number(Number::int(value)))
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<(), E> {
        i64::try_from(value).map_err(|_| refused()).and_then(|value| self.visit_i64(value))
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<(), E> {
        self.is(&Element::Bool(value))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        let name = |name: &str| match name {
            "$date" => Some(Extended::Date),
            "$oid" => Some(Extended::ObjectId),
            _ => None,
        };
        let element = match map.next_key_seed(Text(name))?.ok_or_else(refused)? {
            Extended::Date => map.next_value_seed(Text(|text: &str| text::parse_date(text).map(Element::Date)))?,
            Extended::ObjectId => {
                map.next_value_seed(Text(|text: &str| text::parse_object_id(text).map(Element::ObjectId)))?
            }
        };
        if map.next_key_seed(Text(name))?.is_some() { Err(refused()) } else { self.is(&element) }
    }
}
