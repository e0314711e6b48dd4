//! Empties a collection whose documents `$out` replaces.
//!
//! The caller's transaction deletes the old documents and inserts the new ones. So readers see either all old or all new documents,
//! and options and indexes stay. Concurrent replacements of a collection are serialized by a lock at the shard, which is taken
//! before documents are searched.

use crate::catalog::collections::collection;
use crate::pg::error::Result;
use crate::router::dispatch::writing::{self, LockRange};
use crate::router::fresh_map::with_fresh_map;
use docshard_core::error::{Kind, error};
use docshard_core::routing::model::Collection;
use docshard_core::routing::plan::conditions::Conditions;
use docshard_core::routing::plan::destination;
use docshard_core::values::key::KeyRanges;

/// The number of the lock that serializes replacements. The locks that serialize equal upserts use the same number space.
const REPLACEMENT: i64 = 28769;

/// Deletes all documents of an unsharded collection. Creates the collection if it does not exist.
/// Errors: `Location28769` for a sharded one.
pub fn clear(namespace: &str) -> Result<()> {
    with_fresh_map(namespace, |collection| {
        let Some(collection) = collection else { return collection::create_implicitly(namespace).map(drop) };
        check_unsharded(&collection)?;
        let destinations = destination::destinations(&collection, &KeyRanges::all())?;
        let conditions = Conditions::new(&collection);
        let sql = format!("DELETE FROM {} t WHERE {}", collection.table(), conditions.sql());
        let statement = conditions.into_statement(sql, &[]);
        let range = LockRange { lo: None, hi: None, serializing_lock: Some(REPLACEMENT) };
        writing::write(&collection, &destinations, &range, |_| &statement).map(drop)
    })
}

/// Refuses to replace a sharded collection, as MongoDB does.
pub fn check_unsharded(collection: &Collection) -> Result<()> {
    if collection.key.is_unsharded() {
        return Ok(());
    }
    Err(error!(Kind::Location(28769), "namespace '{}' is sharded so it can't be used for $out", collection.namespace)
        .with_hint("$merge can write to a sharded collection."))
}
