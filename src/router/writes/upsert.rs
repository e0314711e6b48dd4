//! Inserts the document of an upsert whose filter matched nothing.
//!
//! Two concurrent upserts with the same filter must not both insert. If the filter gives the `_id`, the primary key prevents
//! that. Otherwise they take the same lock, whose number depends on the values in the filter: the shard holds it until the end
//! of the transaction, and searches once more before it inserts. (MongoDB requires a unique index for this.)
//!
//! If the filter does not give the shard key, matching documents and the new one may belong to different shards. Then the router
//! holds the lock, and searches all shards once more.

use super::target;
use crate::catalog::collections::duplicate;
use crate::pg::error::Result;
use crate::router::dispatch::writing::{self, LockRange};
use crate::router::session;
use crate::router::writes::insert::{self, Storable};
use docshard_core::query::update::Update;
use docshard_core::routing::model::Collection;
use docshard_core::routing::plan::conditions::Conditions;
use docshard_core::routing::plan::destination;
use docshard_core::routing::plan::statement::{Statement, TWO_NUMBERS};
use docshard_core::routing::protocol::checked::Parameter;
use docshard_core::routing::protocol::sql;
use docshard_core::routing::request::query::Query;
use docshard_core::values::document::{normalise, raw};
use docshard_core::values::key::encode::{encode_value, hash_encoded};

/// Builds the new document from the filter and the update, and inserts it. None: the caller must run the whole upsert again, because a
/// document matches the filter by now, or because the new document's key exists. If the key also exists in a later attempt, that is an
/// error.
pub fn insert(
    collection: &Collection,
    query: &Query,
    update: &Update,
    collisions: &mut u32,
) -> Result<Option<Storable>> {
    let made = update.upsert(&query.filter)?;
    raw::document(&made).and_then(|document| document.get("_id")).map_or(Ok(()), normalise::check_id)?;
    let document = Storable::new(&made)?;
    let skey = document.shard_key(collection)?;
    let destination = destination::destination_of(collection, &skey)?;
    let mut range = LockRange::of_key(&skey);
    let looks = if collection.key.is_unsharded() || query.keys(collection).as_point().is_some() {
        let by_id = query.filter.equality_of("_id").is_some();
        range.serializing_lock = (!by_id).then(|| lock_number(collection, query)).transpose()?;
        // If the update changes the shard key, the new document may belong to a shard that the search does not target. Then the
        // statement does not search.
        session::search(collection, query)?.destinations()?.iter().all(|d| d.shard == destination.shard)
    } else {
        writing::lock_upsert_here(collection, lock_number(collection, query)?)?;
        if target::matches_anywhere(collection, query)? {
            return Ok(None);
        }
        false
    };
    let statement = statement(collection, query, &document, &skey, looks)?;
    let written = writing::write(collection, &[destination], &range, |_| &statement)
        .map_err(|error| duplicate::translate(collection, error))?;
    let row = written.iter().flat_map(|written| &written.rows).next();
    match row.map(|row| (row.i64(0), row.i64(1))) {
        Some((0, 0)) | None if *collisions > 0 => Err(insert::refused(collection, &document)?),
        Some((0, 0)) | None => {
            *collisions += 1;
            Ok(None)
        }
        Some((0, _)) => Ok(None),
        Some(_) => Ok(Some(document)),
    }
}

/// Returns the statement that inserts the document. Its result is the number of inserted documents, and whether a document
/// matched the filter (0 or 1). `looks`: the statement searches first, and inserts the document only if none matches.
fn statement(
    collection: &Collection,
    query: &Query,
    document: &Storable,
    skey: &[u8],
    looks: bool,
) -> Result<Statement> {
    let table = collection.table();
    let mut conditions =
        if looks { Conditions::of_search(&session::search(collection, query)?)? } else { Conditions::new(collection) };
    let found = if looks {
        format!("SELECT count(*) AS n FROM (SELECT FROM {table} t WHERE {} LIMIT 1) AS one", conditions.sql())
    } else {
        "SELECT 0::int8 AS n".to_owned()
    };
    let new = [skey.to_vec(), document.id_key().to_vec(), document.bytes.clone()];
    let row = new.map(|value| conditions.param(Parameter::Bytes(value)));
    let [skey, id, bytes] = row;
    // A null key skips the uniqueness check if a matching document exists.
    let asked = [format!("CASE WHEN found.n = 0 THEN {skey} END"), id.clone(), bytes.clone()];
    let free = insert::is_free(collection, &asked);
    let check = Conditions::new(collection).sql();
    let sql = format!(
        "WITH found AS MATERIALIZED ({found}), \
         inserted AS (\
           INSERT INTO {table} (skey, id, doc) SELECT {skey}, {id}, {} FROM found \
           WHERE found.n = 0 AND {check} AND {free} ON CONFLICT DO NOTHING RETURNING 1) \
         SELECT (SELECT count(*) FROM inserted), found.n FROM found",
        sql::unpack(bytes)
    );
    Ok(conditions.into_statement(sql, TWO_NUMBERS))
}

/// Returns the number of the lock that upserts with equal values share.
fn lock_number(collection: &Collection, query: &Query) -> Result<i64> {
    let mut fields = query.filter.upsert_fields()?;
    fields.sort_by(|a, b| a.0.cmp(&b.0));
    let mut bytes = collection.id.to_be_bytes().to_vec();
    for (path, value) in &fields {
        bytes.extend(path.as_bytes());
        bytes.push(0);
        encode_value(value, &mut bytes);
    }
    Ok(hash_encoded(&bytes))
}
