//! What a plain b-tree index stores of a document, and which of its keys a filter can want.
//!
//! Each column holds the key of one field's value, cut to a length that a b-tree page surely holds. A document with an
//! array anywhere on one of the index's paths has [`ARRAY`] in every column: a search asks for the wanted keys and for
//! that mark, and the filter, run on what is found, decides. So an array at an indexed path never loses an answer.

use crate::collation::Collator;
use crate::document::element::Element;
use crate::document::raw::{RawObject, RawValue};
use crate::document::value::Value;
use crate::error::{Error, Kind, Result};
use crate::filter::Filter;
use crate::key::encode::{encode, encode_under, encode_value};
use crate::key::{KeyRange, KeyRanges, MAX_KEY_BYTES};
use crate::path;
use crate::setting::{self, Setting};
use crate::sort::Sort;
use std::sync::Arc;

/// Stands in every column for a document with an array on one of the index's paths: above every key.
pub const ARRAY: &[u8] = &[0xFF];

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
                let kind_error = format!("indexes of type \"{kind}\" are not supported yet");
                return Err(Error::new(Kind::NotImplemented, kind_error));
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
        let sort = Sort::parse(json).map_err(|_| {
            refuse(format!("bad index key pattern {json}: values in the index key pattern must be 1 or -1"))
        })?;
        Ok(IndexKeys { fields: sort.fields, collation: None })
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

    /// The longest key of a column, in bytes.
    fn column_limit(&self) -> usize {
        (MAX_KEY_BYTES / self.fields.len()).min(1024)
    }

    /// What one column stores of a document.
    pub fn key(&self, document: RawObject<'_>, column: usize) -> Vec<u8> {
        let mut key = Vec::new();
        for (at, (field, _)) in self.fields.iter().enumerate() {
            match path::resolve(document, field) {
                Some(RawValue::Array(_)) => return ARRAY.to_vec(),
                Some(value) if at == column => match &self.collation {
                    None => encode(&Element::of(value), &mut key),
                    Some(collator) => encode_under(&Element::of(value), collator, &mut key),
                },
                None if at == column => encode_value(&Value::Null, &mut key),
                _ => {}
            }
        }
        key.truncate(self.column_limit());
        key
    }

    /// The values that a document has at the index's paths; null for a missing one.
    pub fn values(&self, document: RawObject<'_>) -> Vec<Value> {
        let at = |path: &str| path::resolve(document, path).map(|value| Value::from_element(&Element::of(value)));
        self.fields.iter().map(|(path, _)| at(path).unwrap_or(Value::Null)).collect()
    }

    /// What one column of a unique index stores: as [`IndexKeys::key`], but nothing may be cut or marked.
    ///
    /// # Errors
    /// `NotImplemented` for an array on one of the paths; `KeyTooLong`.
    pub fn unique_key(&self, document: RawObject<'_>, column: usize) -> Result<Vec<u8>> {
        let key = self.key(document, column);
        if key == ARRAY {
            let message = "a unique index over an array is not supported yet";
            return Err(Error::new(Kind::NotImplemented, message));
        }
        if key.len() >= self.column_limit() {
            let message = format!("index key is too long: at most {} bytes a field here", self.column_limit());
            return Err(Error::new(Kind::KeyTooLong, message));
        }
        Ok(key)
    }

    /// The keys wanted of the leading columns, one entry a column: equalities, ended by at most one range. Empty if
    /// the filter says nothing of the first field.
    pub fn wanted(&self, filter: &Filter) -> Vec<KeyRanges> {
        let limit = self.column_limit();
        let mut wanted = Vec::new();
        for (field, _) in &self.fields {
            let ranges = filter.ranges_under(field, self.collation.as_deref());
            if ranges.is_all() {
                break;
            }
            let points = ranges.as_slice().iter().all(|range| range.as_point().is_some());
            wanted.push(KeyRanges::new(ranges.as_slice().iter().map(|range| cut(range, limit)).collect()));
            if !points {
                break;
            }
        }
        wanted
    }
}

/// The range of cut keys that covers the keys of a range.
fn cut(range: &KeyRange, limit: usize) -> KeyRange {
    if let Some(point) = range.as_point() {
        return KeyRange::point(&point[..point.len().min(limit)]);
    }
    let lo = range.lo[..range.lo.len().min(limit)].to_vec();
    let hi = match &range.hi {
        Some(hi) if hi.len() > limit => {
            let mut above = hi[..limit].to_vec();
            above.push(0);
            Some(above)
        }
        other => other.clone(),
    };
    KeyRange { lo, hi }
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
    fn an_array_on_any_path_marks_every_column() {
        let doc = stored(json!({"from": "ann", "to": ["bob", "cid"]}));
        let index = keys(json!({"from": 1, "to": 1}));
        let doc = raw::document(&doc).unwrap();
        assert_eq!(index.key(doc, 0), ARRAY);
        assert_eq!(index.key(doc, 1), ARRAY);
        assert_eq!(index.unique_key(doc, 0).unwrap_err().kind, Kind::NotImplemented);
    }

    #[test]
    fn long_values_are_cut_alike_in_keys_and_in_what_is_wanted() {
        let long = "x".repeat(5000);
        let index = keys(json!({"s": 1}));
        let doc = stored(json!({"s": long}));
        let stored_key = index.key(raw::document(&doc).unwrap(), 0);
        for filter in [json!({"s": long}), json!({"s": {"$gte": long}}), json!({"s": {"$lte": long}})] {
            let wanted = index.wanted(&Filter::parse(&filter).unwrap());
            assert!(wanted[0].contains(&stored_key), "{filter}");
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
