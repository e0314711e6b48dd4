//! The options `min` and `max` of a find: a range of an index's keys.
//!
//! Keys are compared field by field, each field in its direction in the index. RULE: a document lies in the range if one of its keys does;
//! an array yields a key for each element. An index truncates values that are too long; the range's ends are compared untruncated. So the
//! index ([`wanted_within`](IndexKeys::wanted_within)) only narrows the search, and the document decides
//! ([`first_key_within`](IndexKeys::first_key_within)).

use super::columns::IN_ENTRIES;
use super::keys::IndexKeys;
use crate::error::{Kind, Result, bail, error};
use crate::values::collation::Collator;
use crate::values::document::ext_json;
use crate::values::document::raw::RawObject;
use crate::values::document::value::Value;
use crate::values::key::encode::encoded_under;
use serde_json::Value as Json;

/// One end of a range: a value for each field.
type Corner = Vec<(String, Value)>;

/// The options `min` and `max`. At least one of them is set.
#[derive(Clone, Debug)]
pub struct Bounds {
    min: Option<Corner>,
    max: Option<Corner>,
}

impl Bounds {
    /// Parses `min`, which is included, and `max`, which is excluded. `{}` is no bound.
    ///
    /// # Errors
    /// `TypeMismatch` for another type than an object; `Location51176` if `min` and `max` have different fields; those of values.
    pub fn parse(min: Option<&Json>, max: Option<&Json>) -> Result<Option<Bounds>> {
        let (min, max) = (corner("min", min)?, corner("max", max)?);
        if let (Some(min), Some(max)) = (&min, &max)
            && !min.iter().map(|(path, _)| path).eq(max.iter().map(|(path, _)| path))
        {
            bail!(51176, "min and max must have the same field names");
        }
        Ok((min.is_some() || max.is_some()).then_some(Bounds { min, max }))
    }

    /// The range of an index's keys, where strings compare under `collator`.
    ///
    /// # Errors
    /// `Location51174` if the fields or the collation of strings differ from the index's, and for a hashed or wildcard index;
    /// `Location51175` if the range is empty.
    pub fn span(&self, keys: &IndexKeys, collator: Option<&Collator>) -> Result<Span> {
        let fits = |corner: &Corner| {
            let paths = corner.iter().map(|(path, _)| path).eq(keys.fields.iter().map(|(path, _)| path));
            let same = keys.collation.as_deref() == collator;
            paths && (same || !corner.iter().any(|(_, value)| has_strings(value)))
        };
        let both = [&self.min, &self.max];
        if keys.hashed.is_some() || keys.wildcard.is_some() || !both.into_iter().flatten().all(fits) {
            return Err(error!(51174, "The index chosen is not compatible with min/max").with_hint(
                "Give a value for each field of the hinted index, in its order, under its collation. It cannot be a hashed or a \
                 wildcard index.",
            ));
        }
        let encoded = |(_, value): &(String, Value)| encoded_under(value, keys.collation.as_deref());
        let encoded = |corner: &Corner| corner.iter().map(encoded).collect();
        let span = Span { min: self.min.as_ref().map(encoded), max: self.max.as_ref().map(encoded) };
        let (lo, hi) = span.ends(keys);
        if lo >= hi {
            bail!(
                51175,
                "The value provided for min() does not come before the value provided for max() in the hinted index"
            );
        }
        Ok(span)
    }
}

fn corner(name: &str, json: Option<&Json>) -> Result<Option<Corner>> {
    let fields = match json {
        None | Some(Json::Null) => return Ok(None),
        Some(Json::Object(fields)) => fields,
        Some(other) => bail!(Kind::TypeMismatch, "\"{name}\" must be an object, not {other}"),
    };
    let values = fields.iter().map(|(path, json)| Ok((path.clone(), ext_json::from_json(json)?)));
    let values: Corner = values.collect::<Result<_>>()?;
    Ok((!values.is_empty()).then_some(values))
}

/// True if the comparison of the value depends on the collation.
fn has_strings(value: &Value) -> bool {
    matches!(value, Value::String(_) | Value::Symbol(_) | Value::Object(_) | Value::Array(_))
}

/// A range of an index's keys, with the encodings of the fields at each end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Span {
    /// the first key of the range; None: the range begins with the index's first key
    pub min: Option<Vec<Vec<u8>>>,
    /// the first key after the range; None: the range ends with the index's last key
    pub max: Option<Vec<Vec<u8>>>,
}

impl Span {
    /// Both ends as [`IndexKeys::first_key_within`] compares them.
    pub fn ends(&self, keys: &IndexKeys) -> (Vec<u8>, Vec<u8>) {
        let joined = |corner: &Vec<Vec<u8>>| keys.ordered(corner.iter().map(Vec::as_slice));
        (
            self.min.as_ref().map(joined).unwrap_or_default(),
            self.max.as_ref().map_or_else(|| IN_ENTRIES.to_vec(), joined),
        )
    }

    /// The number of leading fields with the same value at both ends.
    pub fn fixed(&self) -> usize {
        let (Some(min), Some(max)) = (&self.min, &self.max) else { return 0 };
        min.iter().zip(max).take_while(|(min, max)| min == max).count()
    }
}

impl IndexKeys {
    /// A whole key as bytes in the index's order: the bytes of descending fields are inverted.
    pub(super) fn ordered<'v>(&self, values: impl Iterator<Item = &'v [u8]>) -> Vec<u8> {
        let mut key = Vec::new();
        for (value, (_, descending)) in values.zip(&self.fields) {
            key.extend(value.iter().map(|byte| if *descending { !byte } else { *byte }));
        }
        key
    }

    /// The first of the document's keys that lies in the range with these ends ([`Span::ends`]): as bytes in the index's order, and its
    /// fields. None if there is no such key, and for a document that the index refuses.
    pub fn first_key_within(&self, document: RawObject<'_>, lo: &[u8], hi: &[u8]) -> Option<(Vec<u8>, Vec<Vec<u8>>)> {
        let keys = self.whole_keys(document).unwrap_or_default().into_iter();
        let ordered = keys.map(|fields| (self.ordered(fields.iter().map(Vec::as_slice)), fields));
        ordered.filter(|(key, _)| lo <= key.as_slice() && key.as_slice() < hi).min()
    }
}
