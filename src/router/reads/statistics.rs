//! The documents of `$collStats` and `$indexStats`, which describe a collection and its indexes at each shard, and of the stages that
//! describe the cluster.

use super::activity;
use super::cluster_statistics;
use super::index_stats;
use crate::catalog::cache;
use crate::pg::error::Result;
use crate::router::reads::collection_sizes::{self, Measured};
use docshard_core::error::{Kind, bail};
use docshard_core::query::stage::Statistics;
use docshard_core::values::document::{ext_json, write};
use serde_json::{Value as Json, json};

/// Microseconds from 1970 to 2000, where PostgreSQL's times begin.
const EPOCH_US: i64 = 946_684_800_000_000;

/// Returns the documents of the stage `wanted`. For a collection that does not exist, `$collStats` has one document without sizes, and
/// `$indexStats` has none.
/// Errors: `NamespaceNotFound` if the number or the sizes of the documents of a missing collection are requested.
pub fn documents(namespace: &str, wanted: &Statistics) -> Result<Vec<Vec<u8>>> {
    let described = match wanted {
        Statistics::Indexes => of_indexes(namespace)?,
        Statistics::Collection { count, storage } => of_collection(namespace, *count, *storage)?,
        Statistics::Catalog(parts) => {
            let database = namespace.split_once('.').map_or(namespace, |(database, _)| database);
            cluster_statistics::catalog(Some(database).filter(|database| *database != "admin"), *parts)?
        }
        Statistics::Distribution => cluster_statistics::distribution()?,
        Statistics::Operations { idle, all_users } => activity::operations(*idle, !all_users)?,
    };
    described.iter().map(|json| write::value(&ext_json::from_json(json)?)).collect()
}

fn of_collection(namespace: &str, count: bool, storage: Option<i64>) -> Result<Vec<Json>> {
    let collection = cache::find(namespace)?;
    let parts = collection_sizes::of_namespace(namespace)?;
    if collection.is_none() && parts.is_empty() {
        if count || storage.is_some() {
            bail!(Kind::NamespaceNotFound, "Collection [{namespace}] not found.");
        }
        return Ok(vec![json!({"ns": namespace, "localTime": local_time()})]);
    }
    let indexes = collection.as_deref().map_or(1, |collection| collection.count_of_indexes());
    let local_time = local_time();
    let describe = |part: &Measured| {
        let mut described = json!({"ns": namespace, "shard": part.shard, "localTime": local_time});
        if let Some(scale) = storage {
            let mut sizes = collection_sizes::sizes(std::slice::from_ref(part), scale);
            sizes["nindexes"] = json!(indexes);
            sizes["scaleFactor"] = json!(scale);
            sizes["capped"] = json!(false);
            described["storageStats"] = sizes;
        }
        if count {
            described["count"] = json!(part.documents);
        }
        described
    };
    Ok(parts.iter().map(describe).collect())
}

fn local_time() -> Json {
    json!({"$date": {"$numberLong": crate::router::session::now().to_string()}})
}

fn of_indexes(namespace: &str) -> Result<Vec<Json>> {
    let Some(collection) = cache::find(namespace)? else { return Ok(Vec::new()) };
    let describe = |index: index_stats::IndexStats| {
        let key: Json = serde_json::from_str(&index.keys_json).unwrap_or_default();
        let mut accesses = json!({"ops": {"$numberLong": index.accesses.to_string()}});
        if let Some(since) = index.since {
            let millis = (since + EPOCH_US) / 1000;
            accesses["since"] = json!({"$date": {"$numberLong": millis.to_string()}});
        }
        let spec = match collection.indexes.iter().find(|own| own.name == index.name) {
            Some(own) => own.shown()?,
            None => json!({"v": 2, "key": key, "name": index.name}),
        };
        Ok(json!({
            "name": index.name, "key": key, "accesses": accesses, "shard": index.shard, "spec": spec, "size": index.bytes,
        }))
    };
    index_stats::of(namespace)?.into_iter().map(describe).collect()
}
