//! What statements are told beside a filter: sort, projection, limits, and the setting of all their parts.

use crate::catalog::cache;
use crate::pg::error::Result;
use docshard_core::query::environment::Environment;
use docshard_core::query::index::Bounds;
use docshard_core::query::sort::Sort;
use docshard_core::values::collation::Collator;
use serde_json::Value as Json;
use std::time::{SystemTime, UNIX_EPOCH};

/// What a statement over a collection says for all its parts: its collation, without one the collection's own; its variables;
/// and the time, if one of the texts asks for it. None if nothing.
///
/// # Errors
/// Those of [`Environment::parse`].
pub fn setting(
    namespace: &str,
    collation: Option<&Json>,
    variables: Option<&Json>,
    texts: &[&str],
) -> Result<Option<Json>> {
    let given = collation.filter(|json| !json.as_object().is_some_and(serde_json::Map::is_empty));
    let collection = if given.is_none() { cache::find(namespace)? } else { None };
    let own = collection.as_ref().and_then(|collection| collection.collation.as_deref());
    let collation = given.or_else(|| own.map(Collator::definition));
    let asks = |text: &str| text.contains("$$NOW");
    let timed = texts.iter().any(|text| asks(text)) || variables.is_some_and(|json| asks(&json.to_string()));
    let json = Environment::to_json(collation, variables, timed.then(now));
    parsed_setting(json.as_ref())?;
    Ok(json)
}

/// The present time, in milliseconds since 1970.
pub fn now() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis());
    i64::try_from(since).unwrap_or(i64::MAX)
}

/// A setting as `Environment::to_json` wrote it.
///
/// # Errors
/// Those of [`Environment::parse`].
pub fn parsed_setting(json: Option<&Json>) -> Result<Environment> {
    Ok(json.map(Environment::parse).transpose()?.unwrap_or_default())
}

/// Options of a find.
#[derive(Clone, Debug, Default)]
pub struct FindOptions {
    /// the order, and its text
    pub sort: Option<(Sort, String)>,
    /// the projection's text; None for whole documents
    pub projection: Option<String>,
    /// true if the projection depends on how the filter matched
    pub positional: bool,
    /// the paths that the projection includes, if that is all that it does
    pub included: Option<Vec<String>>,
    /// the statement's collation, variables and time, as `Environment::to_json` writes them
    pub setting: Option<Json>,
    /// documents to leave out at the start
    pub skip: u64,
    /// documents to return at most; None: all
    pub limit: Option<u64>,
    /// the index to use
    pub hint: Option<Json>,
    /// `min` and `max`: the range of its keys
    pub bounds: Option<Bounds>,
}

/// Options of a count.
#[derive(Debug, Default)]
pub struct CountOptions {
    /// documents to leave out
    pub skip: u64,
    /// documents to count at most; None: all
    pub limit: Option<u64>,
}
