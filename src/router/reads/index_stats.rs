//! Reports for each shard how often the indexes of a collection were used, since when, and how large they are.

use crate::catalog::cache;
use crate::pg::error::Result;
use crate::router::dispatch::reading;
use crate::router::fresh_map::with_fresh_map;
use docshard_core::error::{Kind, error};
use docshard_core::routing::model::Collection;
use docshard_core::routing::names;
use docshard_core::routing::plan::conditions::Conditions;
use docshard_core::routing::plan::destination;
use docshard_core::sql::column::Column;
use docshard_core::sql::record::parse_json;
use docshard_core::values::key::KeyRanges;
use serde_json::json;

#[derive(Clone, Debug)]
pub struct IndexStats {
    pub shard: String,
    /// the name that users know; the numbers of all PostgreSQL indexes with this name are added up
    pub name: String,
    pub keys_json: String,
    /// index scans that PostgreSQL has started, one for each range of keys
    pub accesses: i64,
    pub bytes: i64,
    /// when counting began, in microseconds since 2000; None: when the index was built, as the shard's statistics were never reset
    pub since: Option<i64>,
}

impl IndexStats {
    fn new(shard: &str, name: &str, keys_json: &str) -> Self {
        let (name, keys_json) = (name.to_owned(), keys_json.to_owned());
        Self { shard: shard.to_owned(), name, keys_json, accesses: 0, bytes: 0, since: None }
    }
}

/// Returns the statistics of every index on every shard that has chunks, ordered by shard and then as the collection's indexes.
pub fn of(namespace: &str) -> Result<Vec<IndexStats>> {
    let found = with_fresh_map(namespace, |collection| {
        let Some(collection) = collection else { return Ok(None) };
        let destinations = destination::destinations(&collection, &KeyRanges::all())?;
        let conditions = Conditions::new(&collection);
        let sql = format!(
            "SELECT pg_catalog.json_build_array(r.relname, pg_catalog.pg_stat_get_numscans(r.oid), \
                    pg_catalog.pg_relation_size(r.oid))::text, \
                    (extract(epoch FROM pg_catalog.pg_stat_get_db_stat_reset_time(d.oid) \
                       - '2000-01-01 00:00:00+00'::timestamptz) * 1000000)::int8 \
             FROM pg_catalog.pg_index i JOIN pg_catalog.pg_class r ON r.oid = i.indexrelid, pg_catalog.pg_database d \
             WHERE i.indrelid = '{}'::regclass AND d.datname = pg_catalog.current_database() AND {}",
            collection.table(),
            conditions.sql()
        );
        let statement = conditions.into_statement(sql, const { &[Column::BYTES, Column::INT8.or_null()] });
        let streams = reading::read(&collection, &destinations, &statement)?;
        let mut stats = Vec::new();
        for (destination, mut stream) in destinations.iter().zip(streams) {
            let mut indexes = all(&collection, &cache::shard(destination.shard)?.name);
            for row in stream.rows()? {
                let found = parse_json("index_stats", row.bytes(0)).unwrap_or_default();
                let relation = found[0].as_str().unwrap_or_default();
                // A relation is unknown if its index has just been created or dropped.
                let Some((name, _)) = collection.described(relation) else { continue };
                let Some(index) = indexes.iter_mut().find(|index| index.name == name) else { continue };
                // The scans of the index that enforces uniqueness are not counted: only writes read it.
                if collection.index_of(relation).is_none_or(|index| names::unique(index.id) != relation) {
                    index.accesses = index.accesses.saturating_add(found[1].as_i64().unwrap_or(0));
                }
                index.bytes = index.bytes.saturating_add(found[2].as_i64().unwrap_or(0));
                index.since = row.get(1).map(|_| row.i64(1));
            }
            stats.extend(indexes);
        }
        Ok(Some(stats))
    })?;
    found.ok_or_else(|| error!(Kind::NamespaceNotFound, "ns not found: {namespace}"))
}

fn all(collection: &Collection, shard: &str) -> Vec<IndexStats> {
    let of_id = IndexStats::new(shard, "_id_", &json!({"_id": 1}).to_string());
    let own = collection.key_index();
    let own = own.map(|keys| IndexStats::new(shard, &keys.default_name(), &collection.key.to_json().to_string()));
    let secondary = collection.indexes.iter().map(|index| IndexStats::new(shard, &index.name, &index.keys_json));
    std::iter::once(of_id).chain(own).chain(secondary).collect()
}
