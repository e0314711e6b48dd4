//! Measures the size of a collection on each shard. Any role that may read the collection may call this.
//!
//! The documents of small tables are counted. For larger tables PostgreSQL's statistics are used, which autovacuum keeps up to
//! date.

use crate::catalog::cache;
use crate::pg::error::Result;
use crate::router::dispatch::reading;
use crate::router::fresh_map::with_fresh_map;
use crate::router::rows::LARGEST_NUMBER;
use crate::router::source::Source;
use docshard_core::routing::model::Collection;
use docshard_core::routing::plan::Read;
use docshard_core::routing::plan::conditions::Conditions;
use docshard_core::routing::plan::destination;
use docshard_core::routing::protocol::sql;
use docshard_core::routing::request::options::CountOptions;
use docshard_core::routing::request::query::Query;
use docshard_core::sql::column::Column;
use docshard_core::sql::record::parse_json;
use docshard_core::values::key::KeyRanges;
use serde_json::{Map, Value as Json, json};

/// The size of the largest table whose documents are counted, in bytes.
const COUNTED_BYTES: i64 = 32 * 1024 * 1024;

/// The size of a collection on one shard.
#[derive(Clone, Debug)]
pub struct Measured {
    pub shard: String,
    pub documents: i64,
    pub bytes: i64,
    /// bytes of the table on disk, without indexes
    pub storage: i64,
    pub indexes: Vec<(String, i64)>,
}

impl Measured {
    pub fn of_indexes(&self) -> i64 {
        self.indexes.iter().map(|(_, bytes)| bytes).sum()
    }

    pub fn total(&self) -> i64 {
        self.storage + self.of_indexes()
    }
}

/// Measures a collection on every shard that has chunks of it; empty if the collection was dropped.
pub fn collection(collection: &Collection) -> Result<Vec<Measured>> {
    with_fresh_map(&collection.namespace, |collection| {
        let Some(collection) = collection else { return Ok(Vec::new()) };
        let destinations = destination::destinations(&collection, &KeyRanges::all())?;
        let conditions = Conditions::new(&collection);
        let sql = format!(
            "SELECT coalesce(s.estimated, n.documents), \
                    CASE WHEN s.estimated IS NULL THEN n.bytes ELSE s.estimated * coalesce( \
                      (SELECT avg_width FROM pg_catalog.pg_stats WHERE schemaname = c.relnamespace::pg_catalog.regnamespace::text \
                        AND tablename = c.relname AND attname = 'doc'), 0) END, \
                    coalesce(pg_catalog.pg_table_size(c.oid), 0), \
                    (SELECT pg_catalog.json_object_agg(r.relname, pg_catalog.pg_relation_size(r.oid))::text \
                       FROM pg_catalog.pg_index i JOIN pg_catalog.pg_class r ON r.oid = i.indexrelid \
                      WHERE i.indrelid = c.oid) \
             FROM pg_catalog.pg_class c \
             CROSS JOIN LATERAL (SELECT CASE WHEN pg_catalog.pg_relation_size(c.oid) > {COUNTED_BYTES} THEN {estimated} END \
               AS estimated) s \
             LEFT JOIN LATERAL (SELECT pg_catalog.count(*) AS documents, \
                    coalesce(pg_catalog.sum(pg_catalog.octet_length({packed})), 0)::int8 AS bytes \
                  FROM {table} t WHERE s.estimated IS NULL) n ON true \
             WHERE c.oid = '{table}'::regclass AND {check}",
            estimated = sql::estimated_documents("c"),
            packed = sql::pack("t.doc"),
            table = collection.table(),
            check = conditions.sql()
        );
        let statement = conditions.into_statement(sql, &[Column::INT8, Column::INT8, Column::INT8, Column::BYTES]);
        let streams = reading::read(&collection, &destinations, &statement)?;
        let mut parts = Vec::with_capacity(destinations.len());
        for (destination, mut stream) in destinations.iter().zip(streams) {
            if let Some(row) = stream.rows()?.first() {
                parts.push(Measured {
                    shard: cache::shard(destination.shard)?.name.clone(),
                    documents: row.i64(0),
                    bytes: row.i64(1),
                    storage: row.i64(2),
                    indexes: indexes(&collection, row.bytes(3)),
                });
            }
        }
        Ok(parts)
    })
}

/// Measures a collection on every shard that has chunks of it. A virtual collection has one part, without storage; its database's
/// name takes the place of the shard's. The result is empty if there is no such collection.
pub fn of_namespace(namespace: &str) -> Result<Vec<Measured>> {
    let source = Source::of(namespace)?;
    if let Some(found) = source.stored() {
        return collection(found);
    }
    let mut rows = source.without_shards(&Query::all()?, Read::Count(&CountOptions::default()))?.into_rows();
    let mut measured = Vec::new();
    while let Some(row) = rows.next_row()? {
        measured.push(Measured {
            shard: namespace.split_once('.').map_or(namespace, |(database, _)| database).to_owned(),
            documents: row.i64(0),
            bytes: row.i64(1),
            storage: 0,
            indexes: vec![("_id_".to_owned(), 0)],
        });
    }
    Ok(measured)
}

/// Returns the sizes of a table's indexes by the names that users know.
fn indexes(collection: &Collection, sizes: &[u8]) -> Vec<(String, i64)> {
    let Ok(Json::Object(sizes)) = parse_json("measure", sizes) else { return Vec::new() };
    let mut named: Vec<(String, i64)> = vec![("_id_".to_owned(), 0)];
    for (relation, size) in &sizes {
        // A relation is unknown if its index has just been created or dropped.
        let Some((name, _)) = collection.described(relation) else { continue };
        let size = size.as_i64().unwrap_or(0).clamp(0, LARGEST_NUMBER);
        match named.iter_mut().find(|(known, _)| *known == name) {
            Some((_, sum)) => *sum += size,
            None => named.push((name, size)),
        }
    }
    named
}

/// Returns the sizes of these parts of a collection together, in units of `scale` bytes, as MongoDB's collStats does.
pub fn sizes(parts: &[Measured], scale: i64) -> Json {
    let sum = |of: fn(&Measured) -> i64| parts.iter().map(of).sum::<i64>();
    let (documents, bytes) = (sum(|p| p.documents), sum(|p| p.bytes));
    let mut indexes: Map<String, Json> = Map::new();
    for (name, size) in parts.iter().flat_map(|part| &part.indexes) {
        let before = indexes.get(name).and_then(Json::as_i64).unwrap_or(0);
        indexes.insert(name.clone(), (before + size / scale).into());
    }
    json!({
        "count": documents,
        "size": bytes / scale,
        "avgObjSize": average(bytes, documents),
        "storageSize": sum(|p| p.storage) / scale,
        "totalIndexSize": sum(Measured::of_indexes) / scale,
        "totalSize": sum(Measured::total) / scale,
        "indexSizes": indexes,
    })
}

/// Returns the mean size of a document, in bytes.
pub fn average(bytes: i64, documents: i64) -> i64 {
    if documents > 0 { bytes / documents } else { 0 }
}
