//! The keys of an index: its fields, each with a direction, hashed or as a wildcard, and its collation.

use super::wildcard::{MAX_PREFIX, Wildcard};
use crate::error::{Kind, Result, bail, ensure, error};
use crate::query::envelope;
use crate::query::environment::Environment;
use crate::query::sort::Sort;
use crate::values::collation::Collator;
use crate::values::document::ext_json;
use crate::values::document::raw::RawObject;
use crate::values::document::value::Value;
use crate::values::key::MAX_KEY_BYTES;
use crate::values::path;
use std::sync::Arc;

/// MongoDB's kinds of index that are not supported.
const KINDS: &[&str] = &["text", "2d", "2dsphere", "columnstore"];

/// The most fields of an index, as in PostgreSQL and MongoDB.
pub const MAX_FIELDS: usize = 32;

/// Fields of an index: each a dotted path, and true for descending.
pub(super) type Fields = [(String, bool)];

/// The keys of an index, such as `{"from": 1, "sent": -1}`, `{"user": "hashed"}`, `{"$**": 1}` or `{"from": 1, "labels.$**": 1}`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IndexKeys {
    /// dotted path, and true for descending
    pub fields: Vec<(String, bool)>,
    /// the position of the hashed field; None if no field is hashed
    pub hashed: Option<usize>,
    /// the indexed paths, if a field is a wildcard; else None
    pub wildcard: Option<Wildcard>,
    /// the collation of its strings; None for the order of bytes
    pub collation: Option<Arc<Collator>>,
}

/// The direction of a hashed field.
const HASHED: &str = "hashed";
/// The names in [`IndexKeys::definition`] of the keys and of the `wildcardProjection`, for an index that has one.
const KEYS: &str = "$keys";
const PROJECTION: &str = "$wildcardProjection";

impl IndexKeys {
    /// Parses the keys of `create_index`.
    ///
    /// # Errors
    /// `CannotCreateIndex` for an empty or malformed specification, `Location31303` for several hashed fields,
    /// `NotImplemented` for special kinds of index.
    pub fn parse(json: &serde_json::Value) -> Result<IndexKeys> {
        let Some(fields) = ext_json::ordered(json) else {
            return Err(error!(Kind::TypeMismatch, "index keys must be an object, such as {{\"from\": 1}}")
                .with_hint(ext_json::ORDER_HINT));
        };
        ensure!(!fields.is_empty(), Kind::CannotCreateIndex, "index keys cannot be empty");
        let mut hashed = Vec::new();
        let mut wildcard = None;
        for (at, (path, direction)) in fields.iter().enumerate() {
            match direction {
                serde_json::Value::String(kind) if kind == HASHED => hashed.push(at),
                serde_json::Value::String(kind) if KINDS.contains(&kind.as_str()) => {
                    bail!(Kind::NotImplemented, "indexes of type \"{kind}\" are not supported yet")
                }
                serde_json::Value::String(kind) => bail!(Kind::CannotCreateIndex, "Unknown index plugin '{kind}'"),
                _ => {}
            }
            wildcard = wildcard.or(Wildcard::of_key(path));
            let named = Wildcard::prefix(path).unwrap_or(Some(path));
            if named.is_some_and(|path| path.is_empty() || path.split('.').any(str::is_empty)) {
                bail!(Kind::CannotCreateIndex, "index keys cannot contain an empty field");
            }
            if named.is_some_and(|path| path.split('.').any(|part| part.starts_with('$'))) {
                bail!(
                    Kind::CannotCreateIndex,
                    "index key contains an illegal field name: field '{path}' starts with '$'"
                );
            }
        }
        let count = fields.len();
        // A hashed index has one more column, which refuses documents with arrays, so it can have one field fewer.
        let most = MAX_FIELDS - usize::from(!hashed.is_empty());
        ensure!(count <= most, Kind::CannotCreateIndex, "index keys have {count} fields, at most {most}");
        if fields.keys().filter(|path| Wildcard::prefix(path).is_some()).count() > 1 {
            bail!(7246201, "wildcard indexes have one wildcard field: {json}");
        }
        if wildcard.is_some() && !hashed.is_empty() {
            bail!(Kind::CannotCreateIndex, "Index type 'hashed' does not support wildcards: {json}");
        }
        if hashed.len() > 1 {
            let found = hashed.len();
            bail!(31303, "A maximum of one index field is allowed to be hashed but found {found} for 'key' {json}");
        }
        let fields = fields.iter().map(|(path, direction)| match ext_json::from_json(direction)? {
            Value::String(kind) if kind == HASHED => Ok((path.clone(), false)),
            Value::Number(number) if number.to_f64() > 0.0 => Ok((path.clone(), false)),
            Value::Number(number) if number.to_f64() < 0.0 => Ok((path.clone(), true)),
            _ => bail!(
                Kind::CannotCreateIndex,
                "bad index key pattern {json}: values in the index key pattern must be numbers above or below 0"
            ),
        });
        let fields = fields.collect::<Result<_>>()?;
        Ok(IndexKeys { fields, hashed: hashed.first().copied(), wildcard, collation: None })
    }

    /// The same keys with a `wildcardProjection`, which chooses the indexed paths.
    ///
    /// # Errors
    /// Those of [`Wildcard::parse`]; `BadValue` and `FailedToParse` if the keys do not allow one; `CannotCreateIndex` if they require
    /// one; `Location7246204` if the wildcard includes one of the other fields.
    pub fn projected(self, projection: Option<&serde_json::Value>) -> Result<IndexKeys> {
        let Some(wildcard) = &self.wildcard else {
            let message = "The field 'wildcardProjection' is only allowed in an 'wildcard' index";
            ensure!(projection.is_none(), Kind::BadValue, "{message}");
            return Ok(self);
        };
        let is_of_all = self.is_over_all_fields();
        let wildcard = match projection {
            Some(_) if !is_of_all => bail!(
                Kind::FailedToParse,
                "The field 'wildcardProjection' is only allowed when 'key' is {{\"$**\": \u{b1}1}}"
            ),
            Some(projection) => Wildcard::parse(projection)?,
            None if is_of_all && self.fields.len() > 1 => bail!(
                Kind::CannotCreateIndex,
                "a compound index over \"$**\" needs a 'wildcardProjection' that leaves its other fields out"
            ),
            None => wildcard.clone(),
        };
        let (front, behind) = self.around_wildcard();
        if let Some((path, _)) = front.iter().chain(behind).find(|(path, _)| wildcard.enters(path)) {
            bail!(7246204, "a compound wildcard index has \"{path}\" both as a field and among the wildcard's");
        }
        Ok(IndexKeys { wildcard: Some(wildcard), ..self })
    }

    /// True if the wildcard is `$**`.
    fn is_over_all_fields(&self) -> bool {
        self.fields.iter().any(|(path, _)| Wildcard::prefix(path) == Some(None))
    }

    /// The fields before the wildcard and those after it; without a wildcard, all and none.
    pub(super) fn around_wildcard(&self) -> (&Fields, &Fields) {
        let at = self.fields.iter().position(|(path, _)| Wildcard::prefix(path).is_some());
        at.map_or((&self.fields, &[]), |at| (&self.fields[..at], &self.fields[at + 1..]))
    }

    /// True if both have the same fields in the same order, each with the same direction, and the same hashed field.
    pub fn has_pattern_of(&self, other: &IndexKeys) -> bool {
        (&self.fields, self.hashed) == (&other.fields, other.hashed)
    }

    /// The keys of the index on `_id`.
    pub fn of_id() -> IndexKeys {
        IndexKeys { fields: vec![("_id".to_owned(), false)], hashed: None, wildcard: None, collation: None }
    }

    /// The sort by the index's fields in their directions, and its text.
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

    /// True if the index has a b-tree: it is no wildcard index.
    pub fn has_tree(&self) -> bool {
        self.wildcard.is_none()
    }

    /// True if the index has entries: it is not hashed.
    pub fn has_entries(&self) -> bool {
        self.hashed.is_none()
    }

    /// The same keys, with strings ordered by a collation.
    #[must_use]
    pub fn under(self, collation: Option<Arc<Collator>>) -> IndexKeys {
        IndexKeys { collation, ..self }
    }

    /// The text that defines an index on a shard: the keys, with projection and collation if given.
    pub fn definition(keys: &str, projection: Option<&str>, collation: Option<&Collator>) -> String {
        let environment = collation.and_then(|collator| Environment::to_json(Some(collator.definition()), None, None));
        let projected = projection.map(|projection| format!("{{\"{KEYS}\":{keys},\"{PROJECTION}\":{projection}}}"));
        envelope::wrap(projected.as_deref().unwrap_or(keys), environment.as_ref(), None)
    }

    /// Parses a text that [`definition`](Self::definition) wrote.
    ///
    /// # Errors
    /// Those of [`IndexKeys::parse`] and [`Environment::parse`].
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

    /// The length in bytes to which a column's keys are truncated. A shorter key is not truncated.
    pub(super) fn column_limit(&self) -> usize {
        let path = self.wildcard.as_ref().map_or(0, |_| MAX_PREFIX);
        ((MAX_KEY_BYTES - path) / self.fields.len()).min(1024)
    }

    /// True if both documents have the same bytes in all fields that the index reads, so that its keys are the same.
    pub fn sees_same(&self, one: RawObject<'_>, other: RawObject<'_>) -> bool {
        let is_same = |path: &str| one.has_same(other, path::split(path).0);
        let (front, behind) = self.around_wildcard();
        front.iter().chain(behind).all(|(path, _)| is_same(path))
            && self.wildcard.as_ref().is_none_or(|wildcard| wildcard.looks_only_at(is_same))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn keys(json: serde_json::Value) -> IndexKeys {
        IndexKeys::parse(&json).unwrap()
    }

    #[test]
    fn names_as_mongodb_does() {
        assert_eq!(keys(json!({"from": 1, "sent": -1})).default_name(), "from_1_sent_-1");
        assert_eq!(keys(json!({"a": -1, "b": "hashed"})).default_name(), "a_-1_b_hashed");
        assert_eq!(keys(json!({"a.$**": 1})).default_name(), "a.$**_1");
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
        assert_eq!(IndexKeys::parse(&wild).unwrap_err().kind, Kind::Location(7246201));
        let twice = json!({"a": "hashed", "b": 1, "c": "hashed"});
        assert_eq!(IndexKeys::parse(&twice).unwrap_err().kind, Kind::Location(31303));
        assert_eq!(IndexKeys::parse(&json!({"a": "text"})).unwrap_err().kind, Kind::NotImplemented);
        assert_eq!(IndexKeys::parse(&json!([1])).unwrap_err().kind, Kind::TypeMismatch);
    }
}
