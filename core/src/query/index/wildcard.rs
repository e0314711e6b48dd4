//! Which paths a wildcard index has.

use crate::error::{Kind, Result, bail, ensure, error};
use crate::values::path;
use serde_json::Value as Json;

/// Longer paths are shortened in keys, in bytes.
pub(super) const MAX_PATH: usize = 512;
/// A path with what lies between it and a value is no longer, in bytes.
pub(super) const MAX_PREFIX: usize = MAX_PATH + 2;

/// Ends the key of a wildcard index.
const ALL: &str = "$**";
/// The field that is left out unless it is asked for.
const ID: &str = "_id";

/// Which paths a wildcard index has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wildcard {
    /// true: these paths and what lies below them; false: all others
    inclusive: bool,
    paths: Vec<String>,
}

impl Wildcard {
    /// Some if the key of an index is that of a wildcard index: Some(None) for `$**`, Some(Some("a")) for `a.$**`.
    pub(super) fn prefix(key: &str) -> Option<Option<&str>> {
        if key == ALL { Some(None) } else { key.strip_suffix(ALL)?.strip_suffix('.').map(Some) }
    }

    /// What an index of such a key has, without a projection.
    pub(super) fn of_key(key: &str) -> Option<Wildcard> {
        Some(match Wildcard::prefix(key)? {
            None => Wildcard { inclusive: false, paths: vec![ID.to_owned()] },
            Some(path) => Wildcard { inclusive: true, paths: vec![path.to_owned()] },
        })
    }

    /// Parses a `wildcardProjection`, such as `{"a": 1, "b.c": 1}` or `{"a": 0}`.
    ///
    /// # Errors
    /// `TypeMismatch` for no object, `FailedToParse` for `{}`, `Location31253` and `Location31254` for inclusions among
    /// exclusions and the other way round, `Location51271` for a field that is neither; those of field paths.
    pub fn parse(json: &Json) -> Result<Wildcard> {
        let Json::Object(fields) = json else {
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
        // So that two that say the same are the same.
        paths.sort_unstable();
        paths.dedup();
        Ok(Wildcard { inclusive, paths })
    }

    /// True if what a path leads to has entries.
    pub(super) fn holds(&self, path: &str) -> bool {
        self.paths.iter().any(|known| known == path || path::is_below(path, known)) == self.inclusive
    }

    /// True if its entries depend on values at, or below, such paths alone.
    pub(super) fn looks_only_at(&self, accepts: impl Fn(&str) -> bool) -> bool {
        self.inclusive && self.paths.iter().all(|path| accepts(path))
    }

    /// True if all that lies below a path has entries, too.
    pub(super) fn holds_all_below(&self, path: &str) -> bool {
        self.holds(path) && (self.inclusive || !self.paths.iter().any(|known| path::is_below(known, path)))
    }

    /// True if something at or below a path may have entries.
    pub(super) fn enters(&self, path: &str) -> bool {
        self.holds(path) || self.inclusive && self.paths.iter().any(|known| path::is_below(known, path))
    }
}

/// The paths of a projection, each with true if it is included.
fn flatten(fields: &serde_json::Map<String, Json>, outer: &str, flat: &mut Vec<(String, bool)>) -> Result<()> {
    for (name, json) in fields {
        let path = if outer.is_empty() { name.clone() } else { format!("{outer}.{name}") };
        path::check_field_path(&path)?;
        match json {
            Json::Bool(included) => flat.push((path, *included)),
            Json::Number(number) => flat.push((path, number.as_f64() != Some(0.0))),
            Json::Object(inner) if !inner.is_empty() && !inner.keys().any(|name| name.starts_with('$')) => {
                flatten(inner, &path, flat)?;
            }
            other => bail!(51271, "a wildcardProjection includes or excludes fields, by 1 or 0: \"{path}\": {other}"),
        }
    }
    Ok(())
}
