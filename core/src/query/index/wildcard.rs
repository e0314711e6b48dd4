//! The paths of a wildcard index.

use crate::budget;
use crate::error::{Kind, Result, bail, ensure, error};
use crate::values::document::ext_json;
use crate::values::document::value::Value;
use crate::values::path;
use serde_json::Value as Json;

/// Longest path in bytes that keys contain whole; a longer one is shortened.
pub(super) const MAX_PATH: usize = 512;
/// Largest number of bytes before the value in a key.
pub(super) const MAX_PREFIX: usize = MAX_PATH + 2;

/// The end of a wildcard field's name.
const ALL: &str = "$**";
/// A field that is indexed only if the projection includes it.
const ID: &str = "_id";

/// The paths of a wildcard index.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wildcard {
    /// true: these paths and those below them; false: all others
    inclusive: bool,
    paths: Vec<String>,
}

impl Wildcard {
    /// The prefix of a wildcard key: Some(None) for `$**`, Some(Some("a")) for `a.$**`; None for another key.
    pub(super) fn prefix(key: &str) -> Option<Option<&str>> {
        if key == ALL { Some(None) } else { key.strip_suffix(ALL)?.strip_suffix('.').map(Some) }
    }

    /// The paths of an index with this field and without a projection; None if the field is no wildcard.
    pub(super) fn of_key(key: &str) -> Option<Wildcard> {
        Some(match Wildcard::prefix(key)? {
            None => Wildcard { inclusive: false, paths: vec![ID.to_owned()] },
            Some(path) => Wildcard { inclusive: true, paths: vec![path.to_owned()] },
        })
    }

    /// Parses a `wildcardProjection`, such as `{"a": 1, "b.c": 1}` or `{"a": 0}`.
    ///
    /// # Errors
    /// `TypeMismatch` for another type than an object, `FailedToParse` for `{}`, `Location31253` and `Location31254` for a mixture of
    /// inclusions and exclusions, `Location51271` for a field that is neither; those of field paths.
    pub fn parse(json: &Json) -> Result<Wildcard> {
        let Some(fields) = ext_json::document(json) else {
            bail!(Kind::TypeMismatch, "The field 'wildcardProjection' must be a non-empty object, but got {json}")
        };
        let mut flat = Vec::new();
        flatten(fields, "", &mut flat)?;
        ensure!(!flat.is_empty(), Kind::FailedToParse, "The 'wildcardProjection' field can't be an empty object");
        let id = flat.iter().position(|(path, _)| path == ID).map(|at| flat.remove(at).1);
        let inclusive = flat.first().map_or(id == Some(true), |(_, included)| *included);
        if let Some((path, _)) = flat.iter().find(|(_, included)| *included != inclusive) {
            return Err(if inclusive {
                error!(31254, "Cannot do exclusion on field {path} in inclusion projection")
            } else {
                error!(31253, "Cannot do inclusion on field {path} in exclusion projection")
            });
        }
        let mut paths: Vec<String> = flat.into_iter().map(|(path, _)| path).collect();
        if (id == Some(true)) == inclusive {
            paths.push(ID.to_owned());
        }
        // So equivalent projections become equal.
        paths.sort_unstable();
        paths.dedup();
        Ok(Wildcard { inclusive, paths })
    }

    /// True if the value at a path has entries.
    pub(super) fn holds(&self, path: &str) -> bool {
        self.count();
        self.paths.iter().any(|known| known == path || path::is_below(path, known)) == self.inclusive
    }

    /// Counts the steps of a search in its paths.
    fn count(&self) {
        budget::steps(1 + self.paths.len() / 8);
    }

    /// True if its entries depend only on values at or below accepted paths.
    pub(super) fn looks_only_at(&self, accepts: impl Fn(&str) -> bool) -> bool {
        self.inclusive && self.paths.iter().all(|path| accepts(path))
    }

    /// True if all values at and below a path have entries.
    pub(super) fn holds_all_below(&self, path: &str) -> bool {
        self.count();
        self.holds(path) && (self.inclusive || !self.paths.iter().any(|known| path::is_below(known, path)))
    }

    /// True if values at or below a path may have entries.
    pub(super) fn enters(&self, path: &str) -> bool {
        self.count();
        self.holds(path) || self.inclusive && self.paths.iter().any(|known| path::is_below(known, path))
    }
}

/// The paths of a projection, each with true if it is included.
fn flatten(fields: &serde_json::Map<String, Json>, outer: &str, flat: &mut Vec<(String, bool)>) -> Result<()> {
    for (name, json) in fields {
        budget::bytes(outer.len() + name.len());
        let path = if outer.is_empty() { name.clone() } else { format!("{outer}.{name}") };
        path::check_field_path(&path)?;
        match json {
            Json::Object(inner) if !inner.is_empty() && !inner.keys().any(|name| name.starts_with('$')) => {
                flatten(inner, &path, flat)?;
            }
            other => match ext_json::from_json(other)? {
                Value::Bool(included) => flat.push((path, included)),
                Value::Number(number) => flat.push((path, !number.is_zero())),
                _ => bail!(51271, "a wildcardProjection includes or excludes fields, by 1 or 0: \"{path}\": {other}"),
            },
        }
    }
    Ok(())
}
