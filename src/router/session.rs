//! What requests and plans take from the session: time, roles, the collection's collation, settings, and which finds were declined.

use crate::catalog::cache;
use crate::catalog::cluster::field_order;
use crate::pg::error::Result;
use crate::pg::spi;
use docshard_core::query::environment::{Environment, Session};
use docshard_core::routing::model::Collection;
use docshard_core::routing::plan::index_range::Declined;
use docshard_core::routing::plan::search::Search;
use docshard_core::routing::request::query::Query;
use docshard_core::values::collation::Collator;
use pgrx::{GucContext, GucFlags, GucRegistry, GucSetting};
use serde_json::Value as Json;
use std::rc::Rc;
use std::time::{SystemTime, UNIX_EPOCH};

static NOTABLESCAN: GucSetting<bool> = GucSetting::<bool>::new(false);

thread_local! {
    static DECLINED: Rc<Declined> = Rc::default();
}

/// Registers the setting; called from `_PG_init`.
pub fn init() {
    GucRegistry::define_bool_guc(
        c"docshard.notablescan",
        c"Raises an error for statements that would read every document of a collection.",
        c"The filter must have a condition that an index can answer; an empty filter is allowed.",
        &NOTABLESCAN,
        GucContext::Userset,
        GucFlags::default(),
    );
}

/// The search for a query, under the setting `docshard.notablescan`.
pub fn search<'a>(collection: &'a Collection, query: &'a Query) -> Result<Search<'a>> {
    Search::new(collection, query, NOTABLESCAN.get())
}

/// Like [`search`], for a read that counts as load of its chunks. Shards before release 0.4.0 do not know counted statements, so
/// a read counts only if all shards have 0.4.0 or later. [`field_order::is_kept`] is true from then on.
pub fn counted_search<'a>(collection: &'a Collection, query: &'a Query) -> Result<Search<'a>> {
    let search = search(collection, query)?;
    Ok(if field_order::is_kept()? { search.counted() } else { search })
}

/// The finds of this session that shards have declined.
pub fn declined() -> Rc<Declined> {
    DECLINED.with(Rc::clone)
}

/// This session, at the present time.
pub fn session() -> Session {
    Session { now: now(), roles }
}

/// Returns the environment of a statement: its collation (by default the collection's) and its variables.
pub fn environment(namespace: &str, collation: Option<&Json>, variables: Option<&Json>) -> Result<Environment> {
    let given = collation.filter(|json| !json.as_object().is_some_and(serde_json::Map::is_empty));
    let collection = if given.is_none() { cache::find(namespace)? } else { None };
    let own = collection.as_ref().and_then(|collection| collection.collation.as_deref());
    Environment::of_statement(given.or_else(|| own.map(Collator::definition)), variables, session())
}

fn roles() -> Result<Vec<String>> {
    let sql = "SELECT rolname FROM pg_catalog.pg_roles WHERE pg_catalog.pg_has_role(oid, 'MEMBER') ORDER BY rolname";
    Ok(spi::query(sql, &[])?.iter().map(|row| row.text(0).to_owned()).collect())
}

/// The present time, in milliseconds since 1970.
pub fn now() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis());
    i64::try_from(since).unwrap_or(i64::MAX)
}
