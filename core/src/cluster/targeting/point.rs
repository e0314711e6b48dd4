//! Filters that are nothing but a key, such as `{"recipient": "ann", "sent": {"$date": …}}`, read in one go into the key's
//! bytes: what most finds of a busy application are.
//!
//! RULE: a [`Point`] is what the analysis of the parsed filter would find: the one shard key and the one `_id` that matching
//! documents have, and every document with them matches. Whatever is not plain to see is left to that analysis.

use crate::values::document::element::Element;
use crate::values::document::number::Number;
use crate::values::document::text;
use crate::values::key::KeyPattern;
use crate::values::key::encode::encode;
use crate::values::key::pattern::FieldKind;
use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, Visitor};
use std::fmt::Formatter;
use std::ops::Range;

/// All that a filter says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Point {
    /// the shard key; empty for an unsharded collection
    pub skey: Vec<u8>,
    /// the `_id`, encoded
    pub id: Option<Vec<u8>>,
}

/// The point that a filter's text names; None if it is not seen to name one.
pub fn of_text(pattern: &KeyPattern, filter: &str) -> Option<Point> {
    let mut json = serde_json::Deserializer::from_str(filter);
    let point = json.deserialize_map(Fields(pattern)).ok()?;
    json.end().ok()?;
    Some(point)
}

/// The filter: each of its fields is one of the pattern's, or `_id`, and equal to a value.
struct Fields<'p>(&'p KeyPattern);

/// Which of them a name is.
struct Name<'p>(&'p KeyPattern);

/// A value that equals nothing but itself, encoded at the end of the bytes.
struct Scalar<'o>(&'o mut Vec<u8>);

/// The name of an extended type of which there is a plain form in text.
struct Type;

/// Extended types.
enum Extended {
    Date,
    ObjectId,
}

/// The text of one of these.
struct Text<'o>(Extended, &'o mut Vec<u8>);

/// What nobody is told: every error leads to another way of reading the filter.
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
        // By the number of the field; behind the last, `_id` where it is none of them.
        let mut found: Vec<Option<Range<usize>>> = vec![None; pattern.len() + 1];
        while let Some(number) = map.next_key_seed(Name(self.0))? {
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
                // Others may have the same hash, but not the same `_id`.
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

impl<'de> DeserializeSeed<'de> for Name<'_> {
    type Value = usize;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<usize, D::Error> {
        deserializer.deserialize_str(self)
    }
}

impl Visitor<'_> for Name<'_> {
    type Value = usize;

    fn expecting(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        f.write_str("a field of a key")
    }

    fn visit_str<E: Error>(self, name: &str) -> Result<usize, E> {
        let fields = &self.0.fields;
        let own = fields.iter().position(|(path, _)| path == name);
        own.or_else(|| (name == ID).then_some(fields.len())).ok_or_else(refused)
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
        self.is(&Element::Number(Number::Int(value)))
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<(), E> {
        i64::try_from(value).map_err(|_| refused()).and_then(|value| self.visit_i64(value))
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<(), E> {
        self.is(&Element::Bool(value))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        let kind = map.next_key_seed(Type)?.ok_or_else(refused)?;
        map.next_value_seed(Text(kind, self.0))?;
        if map.next_key_seed(Type)?.is_some() { Err(refused()) } else { Ok(()) }
    }
}

impl<'de> DeserializeSeed<'de> for Type {
    type Value = Extended;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Extended, D::Error> {
        deserializer.deserialize_str(self)
    }
}

impl Visitor<'_> for Type {
    type Value = Extended;

    fn expecting(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        f.write_str("a type")
    }

    fn visit_str<E: Error>(self, name: &str) -> Result<Extended, E> {
        match name {
            "$date" => Ok(Extended::Date),
            "$oid" => Ok(Extended::ObjectId),
            _ => Err(refused()),
        }
    }
}

impl<'de> DeserializeSeed<'de> for Text<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_str(self)
    }
}

impl Visitor<'_> for Text<'_> {
    type Value = ();

    fn expecting(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        f.write_str("a value's text")
    }

    fn visit_str<E: Error>(self, value: &str) -> Result<(), E> {
        let Text(kind, bytes) = self;
        let element = match kind {
            Extended::Date => text::parse_date(value).map(Element::Date),
            Extended::ObjectId => text::parse_object_id(value).map(Element::ObjectId),
        };
        Scalar(bytes).is(&element.ok_or_else(refused)?)
    }
}
