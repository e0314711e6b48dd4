//! What an index stores of a document, and which of its keys a filter can want.
//!
//! An index is two of PostgreSQL's. A b-tree has a column for each field, with the key of its value: that is exact, and in
//! the order that sorts ask for. But a document with an array anywhere on one of the index's paths, or with a value too
//! long for a page of a b-tree, stands [`APART`] there, above every key; its keys, one for each element of the array, are
//! [`entries`] of a second, inverted index, which holds such documents alone. A search looks in both ([`wanted`]), and the
//! filter, run on what is found, decides.

mod entries;
mod wanted;

pub use wanted::Wanted;

use crate::collation::Collator;
use crate::document::element::Element;
use crate::document::ext_json;
use crate::document::raw::{RawObject, RawValue};
use crate::document::value::Value;
use crate::error::{Error, Kind, Result};
use crate::filter::Filter;
use crate::key::MAX_KEY_BYTES;
use crate::key::encode::{encode, encode_under};
use crate::path;
use crate::setting::{self, Setting};
use std::sync::Arc;

/// Stands in every column of the b-tree for a document whose keys are entries: above every key.
pub const APART: &[u8] = &[0xFF];

/// MongoDB's kinds of index that are not here.
const KINDS: &[&str] = &["hashed", "text", "2d", "2dsphere", "columnstore"];

/// The most fields of an index, as in PostgreSQL and MongoDB.
pub const MAX_FIELDS: usize = 32;

/// Which documents an index holds, where it does not hold all.
#[derive(Debug)]
pub struct Partial {
    /// the filter's text with its collation, always the same for the same filter
    pub text: String,
    /// the filter's text as users know it
    pub expression: String,
    /// the filter
    pub filter: Filter,
}

impl Partial {
    /// Parses a `partialFilterExpression`, which compares strings under the index's collation.
    ///
    /// # Errors
    /// `TypeMismatch`, `CannotCreateIndex` for what it may not say, and what the filter's parser refuses.
    pub fn parse(json: &serde_json::Value, collation: Option<&Collator>) -> Result<Partial> {
        if !json.is_object() {
            let message = format!("The field 'partialFilterExpression' must be an object, not {json}");
            return Err(Error::new(Kind::TypeMismatch, message));
        }
        let setting = collation.and_then(|collator| Setting::to_json(Some(collator.definition()), None, None));
        let filter = match &setting {
            None => Filter::parse(json)?,
            Some(setting) => Filter::parse_in(json, &Setting::parse(setting)?)?,
        };
        filter.check_partial()?;
        let expression = json.to_string();
        Ok(Partial { text: setting::wrapped(&expression, setting.as_ref(), None), expression, filter })
    }

    /// What a sparse index holds: documents that have at least one of its fields.
    pub fn sparse(keys: &IndexKeys) -> Partial {
        let exist = |(path, _): &(String, bool)| serde_json::json!({path: {"$exists": true}});
        let json = match keys.fields.as_slice() {
            [one] => exist(one),
            several => serde_json::json!({"$or": several.iter().map(exist).collect::<Vec<_>>()}),
        };
        let filter = Filter::parse(&json).expect("made of paths that were checked");
        let text = json.to_string();
        Partial { expression: text.clone(), text, filter }
    }
}

/// The keys of an index, such as `{"from": 1, "sent": -1}`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IndexKeys {
    /// dotted path, and true for descending
    pub fields: Vec<(String, bool)>,
    /// what its strings are ordered by; None for their bytes
    pub collation: Option<Arc<Collator>>,
}

impl IndexKeys {
    /// Parses the keys of `create_index`.
    ///
    /// # Errors
    /// `CannotCreateIndex` for an empty or malformed specification, `NotImplemented` for special kinds of index.
    pub fn parse(json: &serde_json::Value) -> Result<IndexKeys> {
        let refuse = |message: String| Error::new(Kind::CannotCreateIndex, message);
        let serde_json::Value::Object(fields) = json else {
            return Err(Error::new(Kind::TypeMismatch, "index keys must be an object, such as {\"from\": 1}"));
        };
        if fields.is_empty() {
            return Err(refuse("index keys cannot be empty".to_owned()));
        }
        for (path, direction) in fields {
            if let serde_json::Value::String(kind) = direction {
                return Err(if KINDS.contains(&kind.as_str()) {
                    Error::new(Kind::NotImplemented, format!("indexes of type \"{kind}\" are not supported yet"))
                } else {
                    refuse(format!("Unknown index plugin '{kind}'"))
                });
            }
            if path.is_empty() || path.split('.').any(str::is_empty) {
                return Err(refuse("index keys cannot contain an empty field".to_owned()));
            }
            if path.split('.').any(|part| part.starts_with('$')) {
                return Err(refuse(format!(
                    "index key contains an illegal field name: field '{path}' starts with '$'"
                )));
            }
        }
        if fields.len() > MAX_FIELDS {
            return Err(refuse(format!("index keys have {} fields, at most {MAX_FIELDS}", fields.len())));
        }
        let fields = fields.iter().map(|(path, direction)| match ext_json::from_json(direction)? {
            Value::Number(number) if number.to_f64() > 0.0 => Ok((path.clone(), false)),
            Value::Number(number) if number.to_f64() < 0.0 => Ok((path.clone(), true)),
            _ => Err(refuse(format!(
                "bad index key pattern {json}: values in the index key pattern must be numbers above or below 0"
            ))),
        });
        Ok(IndexKeys { fields: fields.collect::<Result<_>>()?, collation: None })
    }

    /// The same keys, with strings ordered by a collation.
    #[must_use]
    pub fn under(self, collation: Option<Arc<Collator>>) -> IndexKeys {
        IndexKeys { collation, ..self }
    }

    /// What an index on a shard is made with, as text: the keys, and the collation if there is one.
    pub fn definition(keys: &str, collation: Option<&Collator>) -> String {
        let setting = collation.and_then(|collator| Setting::to_json(Some(collator.definition()), None, None));
        setting::wrapped(keys, setting.as_ref(), None)
    }

    /// Parses what [`definition`](Self::definition) wrote.
    ///
    /// # Errors
    /// As [`IndexKeys::parse`]; those of [`Setting::parse`].
    pub fn read(json: &serde_json::Value) -> Result<IndexKeys> {
        let (setting, keys) = setting::unwrapped(json)?;
        Ok(IndexKeys::parse(keys)?.under(setting.collator().cloned()))
    }

    /// MongoDB's default name: `from_1_sent_-1`.
    pub fn default_name(&self) -> String {
        let parts: Vec<_> =
            self.fields.iter().map(|(path, down)| format!("{path}_{}", if *down { -1 } else { 1 })).collect();
        parts.join("_")
    }

    /// Keys of a column are shorter, in bytes.
    fn column_limit(&self) -> usize {
        (MAX_KEY_BYTES / self.fields.len()).min(1024)
    }

    /// True if the document's keys are entries: there is an array on one of the paths, or a value that is too long.
    pub fn is_apart(&self, document: RawObject<'_>) -> bool {
        let limit = self.column_limit();
        self.fields.iter().any(|(path, _)| match path::resolve(document, path) {
            None | Some(RawValue::Null | RawValue::Bool(_)) => false,
            Some(RawValue::Array(_)) => true,
            // No byte of a string makes more than two of its encoding, unless it is that under a collation.
            Some(RawValue::String(text)) if self.collation.is_none() && 2 * text.len() + 2 < limit => false,
            Some(value) => self.encoded(value).len() >= limit,
        })
    }

    /// What one column of the b-tree stores of a document.
    pub fn key(&self, document: RawObject<'_>, column: usize) -> Vec<u8> {
        if self.is_apart(document) { APART.to_vec() } else { self.value_key(document, column) }
    }

    fn value_key(&self, document: RawObject<'_>, column: usize) -> Vec<u8> {
        let field = self.fields.get(column).and_then(|(path, _)| path::resolve(document, path));
        self.encoded(field.unwrap_or(RawValue::Null))
    }

    fn encoded(&self, value: RawValue<'_>) -> Vec<u8> {
        let mut key = Vec::new();
        match &self.collation {
            None => encode(&Element::of(value), &mut key),
            Some(collator) => encode_under(&Element::of(value), collator, &mut key),
        }
        key
    }

    /// The values that a document has at the index's paths; null for a missing one.
    pub fn values(&self, document: RawObject<'_>) -> Vec<Value> {
        let at = |path: &str| path::resolve(document, path).map(|value| Value::from_element(&Element::of(value)));
        self.fields.iter().map(|(path, _)| at(path).unwrap_or(Value::Null)).collect()
    }

    /// What one column of a unique index stores: as [`IndexKeys::key`], but no document may stand apart.
    ///
    /// # Errors
    /// `NotImplemented` for an array on one of the paths; `KeyTooLong`.
    pub fn unique_key(&self, document: RawObject<'_>, column: usize) -> Result<Vec<u8>> {
        if !self.is_apart(document) {
            return Ok(self.value_key(document, column));
        }
        let is_array = |path: &str| matches!(path::resolve(document, path), Some(RawValue::Array(_)));
        if self.fields.iter().any(|(path, _)| is_array(path)) {
            return Err(Error::new(Kind::NotImplemented, "a unique index over an array is not supported yet"));
        }
        let message = format!("index key is too long: at most {} bytes a field here", self.column_limit());
        Err(Error::new(Kind::KeyTooLong, message))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::document::ext_json::from_json;
    use crate::document::{raw, write};
    use serde_json::json;

    fn keys(json: serde_json::Value) -> IndexKeys {
        IndexKeys::parse(&json).unwrap()
    }

    fn stored(json: serde_json::Value) -> Vec<u8> {
        write::value(&from_json(&json).unwrap()).unwrap()
    }

    #[test]
    fn names_as_mongodb_does() {
        assert_eq!(keys(json!({"from": 1, "sent": -1})).default_name(), "from_1_sent_-1");
    }

    #[test]
    fn arrays_and_long_values_stand_apart_in_every_column() {
        let index = keys(json!({"from": 1, "to": 1}));
        for (to, kind) in [(json!(["bob", "cid"]), Kind::NotImplemented), (json!("x".repeat(5000)), Kind::KeyTooLong)] {
            let doc = stored(json!({"from": "ann", "to": to}));
            let doc = raw::document(&doc).unwrap();
            assert_eq!(index.key(doc, 0), APART);
            assert_eq!(index.key(doc, 1), APART);
            assert_eq!(index.unique_key(doc, 0).unwrap_err().kind, kind);
        }
    }

    #[test]
    fn malformed_keys_are_refused() {
        for bad in
            [json!({}), json!({"": 1}), json!({"a..b": 1}), json!({"a": 0}), json!({"$a": 1}), json!({"a": true})]
        {
            assert_eq!(IndexKeys::parse(&bad).unwrap_err().kind, Kind::CannotCreateIndex, "{bad}");
        }
        assert_eq!(IndexKeys::parse(&json!({"a": "text"})).unwrap_err().kind, Kind::NotImplemented);
        assert_eq!(IndexKeys::parse(&json!([1])).unwrap_err().kind, Kind::TypeMismatch);
    }
}
