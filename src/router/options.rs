//! Options of reads (sort, projection, skip, limit, hint), and the environment in which all parts of a statement are evaluated:
//! its collation, variables and time.

use crate::catalog::cache;
use crate::pg::error::Result;
use crate::pg::spi;
use docshard_core::query::environment::Environment;
use docshard_core::query::index::Bounds;
use docshard_core::query::sort::Sort;
use docshard_core::values::collation::Collator;
use serde_json::{Value as Json, json};
use std::time::{SystemTime, UNIX_EPOCH};

/// Returns the environment of a statement: its collation (by default the collection's), its variables, and what [`complete`] adds
/// for the texts. None if it is empty.
pub fn environment(
    namespace: &str,
    collation: Option<&Json>,
    variables: Option<&Json>,
    texts: &[&str],
) -> Result<Option<Json>> {
    let given = collation.filter(|json| !json.as_object().is_some_and(serde_json::Map::is_empty));
    let collection = if given.is_none() { cache::find(namespace)? } else { None };
    let own = collection.as_ref().and_then(|collection| collection.collation.as_deref());
    let collation = given.or_else(|| own.map(Collator::definition));
    let mut json = Environment::to_json(collation, variables, None);
    let variables = variables.map(Json::to_string);
    complete(&mut json, texts.iter().copied().chain(variables.as_deref()))?;
    parsed_environment(json.as_ref())?;
    Ok(json)
}

/// Adds to an environment what texts of the statement use and it lacks: the present time for `$$NOW`, and the current user's roles for
/// `$$USER_ROLES`. The router does this, so that both are the same on all shards, which run statements as another role.
pub fn complete<'t>(environment: &mut Option<Json>, texts: impl Iterator<Item = &'t str>) -> Result<()> {
    complete_at(now(), environment, texts)
}

/// As [`complete`], at this time.
pub fn complete_at<'t>(now: i64, environment: &mut Option<Json>, texts: impl Iterator<Item = &'t str>) -> Result<()> {
    let (mut timed, mut with_roles) = (false, false);
    for text in texts {
        timed |= text.contains("$$NOW");
        with_roles |= text.contains("$$USER_ROLES");
    }
    let lacks = |environment: &Option<Json>, field| environment.as_ref().is_none_or(|json| json.get(field).is_none());
    if timed && lacks(environment, "now") {
        environment.get_or_insert_with(|| json!({}))["now"] = now.into();
    }
    if with_roles && lacks(environment, "roles") {
        environment.get_or_insert_with(|| json!({}))["roles"] = roles()?.into();
    }
    Ok(())
}

/// The names of the roles that the current user is a member of, with its own.
fn roles() -> Result<Vec<String>> {
    let sql = "SELECT rolname FROM pg_catalog.pg_roles WHERE pg_catalog.pg_has_role(oid, 'MEMBER') ORDER BY rolname";
    Ok(spi::query(sql, &[])?.iter().map(|row| row.text(0).to_owned()).collect())
}

/// The present time, in milliseconds since 1970.
pub fn now() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis());
    i64::try_from(since).unwrap_or(i64::MAX)
}

pub fn parsed_environment(json: Option<&Json>) -> Result<Environment> {
    Ok(json.map(Environment::parse).transpose()?.unwrap_or_default())
}

#[derive(Clone, Debug, Default)]
pub struct FindOptions {
    /// the sort, and its text, which is sent to shards
    pub sort: Option<(Sort, String)>,
    /// None: whole documents
    pub projection: Option<String>,
    /// the projection depends on which array element the filter matched
    pub positional: bool,
    /// the paths of an inclusion projection
    pub included: Option<Vec<String>>,
    /// collation, variables and time, as `Environment::to_json` writes them
    pub environment: Option<Json>,
    pub skip: u64,
    pub limit: Option<u64>,
    pub hint: Option<Json>,
    /// `min` and `max`
    pub bounds: Option<Bounds>,
    /// shards that cannot be reached are left out
    pub allow_partial: bool,
}

#[derive(Debug, Default)]
pub struct CountOptions {
    pub skip: u64,
    pub limit: Option<u64>,
}
