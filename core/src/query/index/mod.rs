//! What an index stores of a document, and which of its keys a filter can want.
//!
//! An index is two of PostgreSQL's. A b-tree has a column for each field, with the key of its value: that is exact, and in
//! the order that sorts ask for. But a document with an array anywhere on one of the index's paths, or with a value too
//! long for a page of a b-tree, stands [`APART`] there, above every key; its keys, one for each element of the array, are
//! [`entries`] of a second, inverted index, which holds such documents alone. A search looks in both ([`wanted`]), and the
//! filter, run on what is found, decides. A last column of the b-tree holds what the keys leave open of the values
//! ([`types`]), so that a search which asks for no others need not look at documents.
//!
//! A unique index has a third, of which no two documents may have a key: see [`unique`].
//!
//! Two kinds have one half alone. A hashed index has the b-tree: it takes no arrays, and cuts long values. A [`Wildcard`]
//! index has entries of every document.

mod bounds;
mod composed;
mod entries;
mod types;
pub mod unique;
mod wanted;
mod wildcard;

pub use bounds::{Bounds, Span};
pub use wanted::{Row, Wanted};
pub use wildcard::Wildcard;

use crate::error::{Error, Kind, Result};
use crate::query::envelope;
use crate::query::environment::Environment;
use crate::query::filter::Filter;
use crate::query::sort::Sort;
use crate::values::collation::Collator;
use crate::values::document::element::Element;
use crate::values::document::ext_json;
use crate::values::document::raw::{RawObject, RawValue};
use crate::values::document::value::Value;
use crate::values::key::MAX_KEY_BYTES;
use crate::values::key::encode::{encode, encode_hash, encode_under, hash_encoded};
use crate::values::path;
use std::sync::Arc;

/// Stands in every column of the b-tree for a document whose keys are entries: above every key.
pub const APART: &[u8] = &[0xFF];

/// MongoDB's kinds of index that are not here.
const KINDS: &[&str] = &["text", "2d", "2dsphere", "columnstore"];

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
        let environment = collation.and_then(|collator| Environment::to_json(Some(collator.definition()), None, None));
        let filter = match &environment {
            None => Filter::parse(json)?,
            Some(environment) => Filter::parse_in(json, &Environment::parse(environment)?)?,
        };
        filter.check_partial()?;
        let expression = json.to_string();
        Ok(Partial { text: envelope::wrap(&expression, environment.as_ref(), None), expression, filter })
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

/// Some of an index's fields: dotted path, and true for descending.
type Fields = [(String, bool)];

/// The keys of an index, such as `{"from": 1, "sent": -1}`, `{"user": "hashed"}`, `{"$**": 1}` or `{"from": 1, "labels.$**": 1}`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IndexKeys {
    /// dotted path, and true for descending
    pub fields: Vec<(String, bool)>,
    /// the position of the field of which the hash is stored
    pub hashed: Option<usize>,
    /// which paths it has, instead of that of the field that is a wildcard
    pub wildcard: Option<Wildcard>,
    /// what its strings are ordered by; None for their bytes
    pub collation: Option<Arc<Collator>>,
}

/// What stands in place of a field's direction for its hash.
const HASHED: &str = "hashed";
/// The keys of an index, and the projection of a wildcard index, where it has one: see [`IndexKeys::definition`].
const KEYS: &str = "$keys";
const PROJECTION: &str = "$wildcardProjection";

impl IndexKeys {
    /// Parses the keys of `create_index`.
    ///
    /// # Errors
    /// `CannotCreateIndex` for an empty or malformed specification, `Location31303` for several hashed fields,
    /// `NotImplemented` for special kinds of index.
    pub fn parse(json: &serde_json::Value) -> Result<IndexKeys> {
        let refuse = |message: String| Error::new(Kind::CannotCreateIndex, message);
        let serde_json::Value::Object(fields) = json else {
            return Err(Error::new(Kind::TypeMismatch, "index keys must be an object, such as {\"from\": 1}"));
        };
        if fields.is_empty() {
            return Err(refuse("index keys cannot be empty".to_owned()));
        }
        let mut hashed = Vec::new();
        let mut wildcard = None;
        for (at, (path, direction)) in fields.iter().enumerate() {
            match direction {
                serde_json::Value::String(kind) if kind == HASHED => hashed.push(at),
                serde_json::Value::String(kind) if KINDS.contains(&kind.as_str()) => {
                    let message = format!("indexes of type \"{kind}\" are not supported yet");
                    return Err(Error::new(Kind::NotImplemented, message));
                }
                serde_json::Value::String(kind) => return Err(refuse(format!("Unknown index plugin '{kind}'"))),
                _ => {}
            }
            wildcard = wildcard.or(Wildcard::of_key(path));
            let named = Wildcard::prefix(path).unwrap_or(Some(path));
            if named.is_some_and(|path| path.is_empty() || path.split('.').any(str::is_empty)) {
                return Err(refuse("index keys cannot contain an empty field".to_owned()));
            }
            if named.is_some_and(|path| path.split('.').any(|part| part.starts_with('$'))) {
                return Err(refuse(format!(
                    "index key contains an illegal field name: field '{path}' starts with '$'"
                )));
            }
        }
        if fields.len() > MAX_FIELDS {
            return Err(refuse(format!("index keys have {} fields, at most {MAX_FIELDS}", fields.len())));
        }
        if fields.keys().filter(|path| Wildcard::prefix(path).is_some()).count() > 1 {
            let message = format!("wildcard indexes have one wildcard field: {json}");
            return Err(Error::new(Kind::Location7246201, message));
        }
        if wildcard.is_some() && !hashed.is_empty() {
            return Err(refuse(format!("Index type 'hashed' does not support wildcards: {json}")));
        }
        if hashed.len() > 1 {
            let found = hashed.len();
            let message =
                format!("A maximum of one index field is allowed to be hashed but found {found} for 'key' {json}");
            return Err(Error::new(Kind::Location31303, message));
        }
        let fields = fields.iter().map(|(path, direction)| match ext_json::from_json(direction)? {
            Value::String(kind) if kind == HASHED => Ok((path.clone(), false)),
            Value::Number(number) if number.to_f64() > 0.0 => Ok((path.clone(), false)),
            Value::Number(number) if number.to_f64() < 0.0 => Ok((path.clone(), true)),
            _ => Err(refuse(format!(
                "bad index key pattern {json}: values in the index key pattern must be numbers above or below 0"
            ))),
        });
        let fields = fields.collect::<Result<_>>()?;
        Ok(IndexKeys { fields, hashed: hashed.first().copied(), wildcard, collation: None })
    }

    /// The same keys with a `wildcardProjection`, which says what paths there are.
    ///
    /// # Errors
    /// Those of [`Wildcard::parse`]; `BadValue` and `FailedToParse` where there can be none; `CannotCreateIndex` where there
    /// must be one; `Location7246204` if the wildcard has one of the other fields.
    pub fn projected(self, projection: Option<&serde_json::Value>) -> Result<IndexKeys> {
        let Some(wildcard) = &self.wildcard else {
            let message = "The field 'wildcardProjection' is only allowed in an 'wildcard' index";
            return projection.map_or(Ok(self), |_| Err(Error::new(Kind::BadValue, message)));
        };
        let is_of_all = self.is_over_all_fields();
        let wildcard = match projection {
            Some(_) if !is_of_all => {
                let message = "The field 'wildcardProjection' is only allowed when 'key' is {\"$**\": \u{b1}1}";
                return Err(Error::new(Kind::FailedToParse, message));
            }
            Some(projection) => Wildcard::parse(projection)?,
            None if is_of_all && self.fields.len() > 1 => {
                let message =
                    "a compound index over \"$**\" needs a 'wildcardProjection' that leaves its other fields out";
                return Err(Error::new(Kind::CannotCreateIndex, message));
            }
            None => wildcard.clone(),
        };
        let (front, behind) = self.around_wildcard();
        if let Some((path, _)) = front.iter().chain(behind).find(|(path, _)| wildcard.enters(path)) {
            let message = format!("a compound wildcard index has \"{path}\" both as a field and among the wildcard's");
            return Err(Error::new(Kind::Location7246204, message));
        }
        Ok(IndexKeys { wildcard: Some(wildcard), ..self })
    }

    /// True if the wildcard is `$**`.
    fn is_over_all_fields(&self) -> bool {
        self.fields.iter().any(|(path, _)| Wildcard::prefix(path) == Some(None))
    }

    /// The fields in front of the wildcard and those behind it; all are in front of none.
    fn around_wildcard(&self) -> (&Fields, &Fields) {
        let at = self.fields.iter().position(|(path, _)| Wildcard::prefix(path).is_some());
        at.map_or((&self.fields, &[]), |at| (&self.fields[..at], &self.fields[at + 1..]))
    }

    /// True if both have the same fields in the same order, each with the same direction or hash.
    pub fn has_pattern_of(&self, other: &IndexKeys) -> bool {
        (&self.fields, self.hashed) == (&other.fields, other.hashed)
    }

    /// The keys of the index on `_id`.
    pub fn of_id() -> IndexKeys {
        IndexKeys { fields: vec![("_id".to_owned(), false)], hashed: None, wildcard: None, collation: None }
    }

    /// The sort that is the index's order, and its text.
    pub fn order(&self) -> (Sort, String) {
        let directions = self.fields.iter().map(|(path, down)| (path.clone(), if *down { -1 } else { 1 }.into()));
        let text = serde_json::Value::Object(directions.collect()).to_string();
        let sort = Sort { fields: self.fields.clone(), collator: self.collation.clone() };
        (sort, Self::definition(&text, None, self.collation.as_deref()))
    }

    /// True for the keys of the index on `_id`.
    pub fn is_of_id(&self) -> bool {
        self.hashed.is_none() && self.fields == [("_id".to_owned(), false)]
    }

    /// True if there is a b-tree.
    pub fn has_tree(&self) -> bool {
        self.wildcard.is_none()
    }

    /// True if there are entries.
    pub fn has_entries(&self) -> bool {
        self.hashed.is_none()
    }

    /// The same keys, with strings ordered by a collation.
    #[must_use]
    pub fn under(self, collation: Option<Arc<Collator>>) -> IndexKeys {
        IndexKeys { collation, ..self }
    }

    /// What an index on a shard is made with, as text: the keys, the projection and the collation if there are such.
    pub fn definition(keys: &str, projection: Option<&str>, collation: Option<&Collator>) -> String {
        let environment = collation.and_then(|collator| Environment::to_json(Some(collator.definition()), None, None));
        let projected = projection.map(|projection| format!("{{\"{KEYS}\":{keys},\"{PROJECTION}\":{projection}}}"));
        envelope::wrap(projected.as_deref().unwrap_or(keys), environment.as_ref(), None)
    }

    /// Parses what [`definition`](Self::definition) wrote.
    ///
    /// # Errors
    /// As [`IndexKeys::parse`]; those of [`Environment::parse`].
    pub fn read(json: &serde_json::Value) -> Result<IndexKeys> {
        let (environment, inner) = envelope::unwrap(json)?;
        let keys = IndexKeys::parse(inner.get(KEYS).unwrap_or(inner))?;
        Ok(keys.projected(inner.get(PROJECTION))?.under(environment.collator().cloned()))
    }

    /// MongoDB's default name: `from_1_sent_-1`.
    pub fn default_name(&self) -> String {
        let parts = self.fields.iter().enumerate().map(|(at, (path, down))| match down {
            _ if self.hashed == Some(at) => format!("{path}_{HASHED}"),
            true => format!("{path}_-1"),
            false => format!("{path}_1"),
        });
        parts.collect::<Vec<_>>().join("_")
    }

    /// Keys of a column are shorter, in bytes.
    fn column_limit(&self) -> usize {
        let path = self.wildcard.as_ref().map_or(0, |_| wildcard::MAX_PREFIX);
        ((MAX_KEY_BYTES - path) / self.fields.len()).min(1024)
    }

    /// True if both documents have the same bytes wherever the index looks at them: all that it stores of them is the same.
    pub fn sees_same(&self, one: RawObject<'_>, other: RawObject<'_>) -> bool {
        let is_same = |path: &str| one.has_same(other, path::split(path).0);
        let (front, behind) = self.around_wildcard();
        front.iter().chain(behind).all(|(path, _)| is_same(path))
            && self.wildcard.as_ref().is_none_or(|wildcard| wildcard.looks_only_at(is_same))
    }

    /// True if the document's keys are entries: there is an array on one of the paths, or a value that is too long.
    pub fn is_apart(&self, document: RawObject<'_>) -> bool {
        self.hashed.is_none()
            && self
                .fields
                .iter()
                .any(|(path, _)| path::resolve(document, path).is_some_and(|value| self.sets_apart(value)))
    }

    /// True if a document with that value at one of the paths stands apart.
    fn sets_apart(&self, value: RawValue<'_>) -> bool {
        match value {
            // No number is long.
            RawValue::Null | RawValue::Bool(_) | RawValue::Number(_) => false,
            RawValue::Array(_) => true,
            // No byte of a string makes more than two of its encoding, unless it is that under a collation.
            RawValue::String(text) if self.collation.is_none() && 2 * text.len() + 2 < self.column_limit() => false,
            value => self.stored_bytes(value) >= self.column_limit(),
        }
    }

    /// How much a value takes in the b-tree: its key, and what that leaves open of it.
    fn stored_bytes(&self, value: RawValue<'_>) -> usize {
        let mut codes = Vec::new();
        types::of_value(&Element::of(value), &mut codes);
        self.encoded(value).len() + codes.len()
    }

    /// What one column of the b-tree stores of a document.
    pub fn key(&self, document: RawObject<'_>, column: usize) -> Vec<u8> {
        if self.is_apart(document) { APART.to_vec() } else { self.value_key(document, column) }
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

    /// Refuses a document that a hashed index does not take.
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
            true => Err(Error::new(
                Kind::Location16766,
                format!("hashed indexes do not currently support array values. Found array at path: {path}"),
            )),
        })
    }

    fn encoded(&self, value: RawValue<'_>) -> Vec<u8> {
        let mut key = Vec::new();
        match &self.collation {
            None => encode(&Element::of(value), &mut key),
            Some(collator) => encode_under(&Element::of(value), collator, &mut key),
        }
        key
    }
}

/// What a hashed field stores instead of a value's encoding.
fn hash_of(encoding: &[u8]) -> Vec<u8> {
    let mut key = Vec::new();
    encode_hash(hash_encoded(encoding), &mut key);
    key
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::values::document::ext_json::from_json;
    use crate::values::document::{raw, write};
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
        assert_eq!(keys(json!({"a": -1, "b": "hashed"})).default_name(), "a_-1_b_hashed");
        assert_eq!(keys(json!({"a.$**": 1})).default_name(), "a.$**_1");
    }

    #[test]
    fn arrays_and_long_values_stand_apart_in_every_column() {
        let index = keys(json!({"from": 1, "to": 1}));
        for to in [json!(["bob", "cid"]), json!("x".repeat(5000))] {
            let doc = stored(json!({"from": "ann", "to": to}));
            let doc = raw::document(&doc).unwrap();
            assert_eq!(index.key(doc, 0), APART);
            assert_eq!(index.key(doc, 1), APART);
        }
    }

    #[test]
    fn malformed_keys_are_refused() {
        for bad in [
            json!({}),
            json!({"": 1}),
            json!({"a..b": 1}),
            json!({"a": 0}),
            json!({"$a": 1}),
            json!({"a": true}),
            json!({"a.$**.b": 1}),
            json!({"a..$**": 1}),
            json!({".$**": 1}),
            json!({"$**": "hashed"}),
        ] {
            assert_eq!(IndexKeys::parse(&bad).unwrap_err().kind, Kind::CannotCreateIndex, "{bad}");
        }
        let wild = json!({"a.$**": 1, "b.$**": 1});
        assert_eq!(IndexKeys::parse(&wild).unwrap_err().kind, Kind::Location7246201);
        let twice = json!({"a": "hashed", "b": 1, "c": "hashed"});
        assert_eq!(IndexKeys::parse(&twice).unwrap_err().kind, Kind::Location31303);
        assert_eq!(IndexKeys::parse(&json!({"a": "text"})).unwrap_err().kind, Kind::NotImplemented);
        assert_eq!(IndexKeys::parse(&json!([1])).unwrap_err().kind, Kind::TypeMismatch);
    }
}
