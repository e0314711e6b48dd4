//! The documents of `$listClusterCatalog` and `$shardedDataDistribution`, which describe the cluster's collections.

use super::collection_sizes;
use crate::catalog::cache;
use crate::catalog::collections::{grants, views};
use crate::pg::error::Result;
use crate::store;
use docshard_core::query::stage::CatalogParts;
use docshard_core::routing::model::Collection;
use serde_json::{Value as Json, json};
use std::rc::Rc;

/// The collections that the caller may read, of one database or of all.
pub fn readable(database: Option<&str>) -> Result<Vec<Rc<Collection>>> {
    let mut found = Vec::new();
    for database in databases(database)? {
        for namespace in store::collections::of_database(&database)? {
            if let Some(collection) = cache::find(&namespace)?
                && grants::may_read(&collection)?
            {
                found.push(collection);
            }
        }
    }
    Ok(found)
}

fn databases(database: Option<&str>) -> Result<Vec<String>> {
    match database {
        Some(database) => Ok(vec![database.to_owned()]),
        None => Ok(store::databases::all()?.into_iter().map(|database| database.name).collect()),
    }
}

/// The number and size of the documents of each sharded collection that the caller may read, on each shard.
pub fn distribution() -> Result<Vec<Json>> {
    let sharded = readable(None)?.into_iter().filter(|collection| !collection.key.is_unsharded());
    let describe = |collection: Rc<Collection>| {
        let shards = collection_sizes::collection(&collection)?.into_iter().map(|part| {
            let (documents, bytes) = (part.documents, part.bytes);
            json!({"shardName": part.shard, "numOwnedDocuments": documents, "ownedSizeBytes": bytes})
        });
        Ok(json!({"ns": collection.namespace, "shards": shards.collect::<Vec<_>>()}))
    };
    sharded.map(describe).collect()
}

/// Describes the collections and views of one database, or of all.
pub fn catalog(database: Option<&str>, parts: CatalogParts) -> Result<Vec<Json>> {
    let mut described = Vec::new();
    for database in databases(database)? {
        for listed in store::collections::listed(&database)? {
            let Some(collection) = cache::find(&format!("{database}.{}", listed.name))? else { continue };
            described.push(described_collection(&database, &listed, &collection, parts)?);
        }
        for view in views::of_database(&database)? {
            let mut options = json!({"viewOn": view.view_on, "pipeline": view.stages});
            if let Some(collator) = view.collation() {
                options["collation"] = collator.definition().clone();
            }
            described.push(json!({
                "ns": view.namespace, "db": database, "type": "view", "options": options, "info": {"readOnly": true},
                "sharded": false,
            }));
        }
    }
    Ok(described)
}

fn described_collection(
    database: &str,
    listed: &store::collections::ListedCollection,
    collection: &Collection,
    parts: CatalogParts,
) -> Result<Json> {
    let options = listed.collation.as_ref().map_or_else(|| json!({}), |collation| json!({"collation": collation}));
    let sharded = !collection.key.is_unsharded();
    let mut described = json!({
        "ns": collection.namespace, "db": database, "type": "collection", "options": options,
        "info": {"readOnly": false, "uuid": listed.uuid}, "idIndex": {"v": 2, "key": {"_id": 1}, "name": "_id_"},
        "sharded": sharded,
    });
    if sharded {
        described["shardKey"] = collection.key.to_json();
    }
    if parts.tracked {
        described["tracked"] = sharded.into();
    }
    if parts.shards {
        let mut shards: Vec<_> = collection.map.chunks().map(|chunk| chunk.shard).collect();
        shards.sort_unstable();
        shards.dedup();
        let names = shards.into_iter().map(|shard| Ok(cache::shard(shard)?.name.clone().into()));
        described["shards"] = names.collect::<Result<Vec<Json>>>()?.into();
    }
    if parts.balancing && sharded {
        let found = store::collections::balancing(collection.id)?;
        described["balancingEnabled"] = found.unwrap_or(false).into();
    }
    Ok(described)
}
