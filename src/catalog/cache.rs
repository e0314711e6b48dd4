//! Each backend's cache of the catalog: immutable snapshots, checked again only after an invalidation.
//!
//! A hot-path read touches no catalog table: it compares one number. After an invalidation the collection's revision is
//! read; only if that moved is the whole collection read again, in one snapshot. Always with the newest snapshot, also
//! under REPEATABLE READ: a map newer than the data is refused by the shard, never silently wrong.

use super::model::{Collection, Index, Place, Shard};
use crate::pg::error::{Error, Result};
use crate::pg::invalidation;
use crate::pg::param::Param;
use crate::pg::server::{foreign_server_oid, relation_oid};
use crate::pg::snapshot::ActiveSnapshot;
use crate::pg::spi;
use docshard_core::chunk_map::{Chunk, ChunkMap, ShardId};
use docshard_core::collation::Collator;
use docshard_core::error::Kind;
use docshard_core::index::{IndexKeys, Partial};
use docshard_core::key::KeyPattern;
use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;

struct Entry {
    checked_at: u64,
    collection: Rc<Collection>,
}

/// The shards by number.
type Shards = Rc<HashMap<ShardId, Rc<Shard>>>;

#[derive(Default)]
struct Cache {
    collections: HashMap<String, Entry>,
    shards: Option<(u64, Shards)>,
    /// the generation in which the relation to watch was looked up: that it is dropped begins another
    watched_in: u64,
}

thread_local! {
    static CACHE: RefCell<Cache> = RefCell::new(Cache::default());
}

fn generation() -> Result<u64> {
    let generation = invalidation::generation();
    if invalidation::take_tainted() {
        CACHE.with_borrow_mut(|cache| *cache = Cache::default());
    }
    if CACHE.with_borrow(|cache| cache.watched_in) != generation {
        let Some(relation) = relation_oid(c"docshard_catalog", c"collections") else {
            return Err(Error::new(Kind::InternalError, "docshard's catalog is missing in this database"));
        };
        invalidation::watch(relation);
        CACHE.with_borrow_mut(|cache| cache.watched_in = generation);
    }
    Ok(generation)
}

/// The collection; None if there is none of that name.
///
/// # Errors
/// `InternalError` if the catalog breaks its invariants.
pub fn find(namespace: &str) -> Result<Option<Rc<Collection>>> {
    let generation = generation()?;
    let cached = CACHE.with_borrow(|cache| {
        cache.collections.get(namespace).map(|entry| (entry.checked_at, Rc::clone(&entry.collection)))
    });
    if let Some((checked_at, collection)) = &cached
        && *checked_at == generation
    {
        return Ok(Some(Rc::clone(collection)));
    }
    let fresh = load(namespace, cached.map(|(_, collection)| collection))?;
    CACHE.with_borrow_mut(|cache| match &fresh {
        Some(collection) => {
            let entry = Entry { checked_at: generation, collection: Rc::clone(collection) };
            cache.collections.insert(namespace.to_owned(), entry);
        }
        None => {
            cache.collections.remove(namespace);
        }
    });
    Ok(fresh)
}

/// The collection.
///
/// # Errors
/// `NamespaceNotFound`.
pub fn get(namespace: &str) -> Result<Rc<Collection>> {
    find(namespace)?.ok_or_else(|| Error::new(Kind::NamespaceNotFound, format!("ns not found: {namespace}")))
}

/// Every shard, by number.
///
/// # Errors
/// Internal ones.
pub fn shards() -> Result<Shards> {
    let generation = generation()?;
    if let Some(shards) = CACHE.with_borrow(|cache| match &cache.shards {
        Some((checked_at, shards)) if *checked_at == generation => Some(Rc::clone(shards)),
        _ => None,
    }) {
        return Ok(shards);
    }
    let _snapshot = ActiveSnapshot::latest();
    let rows = spi::read("SELECT id, name, server, draining, max_size_mb FROM docshard_catalog.shards", &[])?;
    let mut shards = HashMap::new();
    for row in &rows {
        let server = row.opt_text(2).map(str::to_owned);
        let place = match &server {
            None => Place::Local,
            Some(server) => Place::Remote(foreign_server_oid(server).ok_or_else(|| {
                Error::new(
                    Kind::ShardNotFound,
                    format!("foreign server \"{server}\" of shard \"{}\" is gone", row.text(1)),
                )
            })?),
        };
        let id = row.i32(0);
        let max_size_mb = row.get(4).is_some().then(|| row.i32(4));
        let name = row.text(1).to_owned();
        shards.insert(id, Rc::new(Shard { id, name, server, place, draining: row.bool(3), max_size_mb }));
    }
    let shards = Rc::new(shards);
    CACHE.with_borrow_mut(|cache| cache.shards = Some((generation, Rc::clone(&shards))));
    Ok(shards)
}

/// One shard.
///
/// # Errors
/// `ShardNotFound`.
pub fn shard(id: ShardId) -> Result<Rc<Shard>> {
    shards()?.get(&id).cloned().ok_or_else(|| Error::new(Kind::ShardNotFound, format!("there is no shard number {id}")))
}

/// One shard, by its name.
///
/// # Errors
/// `ShardNotFound`.
pub fn shard_named(name: &str) -> Result<Rc<Shard>> {
    shards()?.values().find(|shard| shard.name == name).cloned().ok_or_else(|| {
        Error::new(Kind::ShardNotFound, format!("Shard {name} does not exist"))
            .with_hint("docshard.list_shards() names them.")
    })
}

fn load(namespace: &str, known: Option<Rc<Collection>>) -> Result<Option<Rc<Collection>>> {
    let _snapshot = ActiveSnapshot::latest();
    let rows = spi::read(
        "SELECT id, token, revision, key, is_unique, collation_spec FROM docshard_catalog.collections WHERE namespace = $1",
        &[Param::Text(namespace)],
    )?;
    let Some(row) = rows.first() else { return Ok(None) };
    let (id, token, revision) = (row.i32(0), row.i64(1), row.i64(2));
    if let Some(known) = known
        && (known.id, known.token, known.revision) == (id, token, revision)
    {
        return Ok(Some(known));
    }
    let key = match row.opt_text(3) {
        Some(text) => KeyPattern::parse(&parse_stored(text)?)?,
        None => KeyPattern::unsharded(),
    };
    let chunks = spi::read(
        "SELECT min, max, shard_id FROM docshard_catalog.chunks WHERE collection_id = $1 ORDER BY min",
        &[Param::Int4(id)],
    )?;
    let chunks = chunks.iter().map(|c| Chunk { min: c.bytes(0), max: c.bytes(1), shard: c.i32(2) }).collect();
    let placements = spi::read(
        "SELECT shard_id, version FROM docshard_catalog.placements WHERE collection_id = $1",
        &[Param::Int4(id)],
    )?;
    let indexes = spi::read(
        "SELECT id, name, keys, is_unique, is_hidden, expire_after_s, is_sparse, partial_filter, collation_spec, \
                wildcard_projection \
         FROM docshard_catalog.indexes WHERE collection_id = $1 ORDER BY id",
        &[Param::Int4(id)],
    )?;
    let indexes = indexes
        .iter()
        .map(|i| {
            let keys_json = i.text(2).to_owned();
            let collation = parse_collation(i.opt_text(8))?;
            let projection = i.opt_text(9).map(parse_stored).transpose()?;
            let keys = IndexKeys::parse(&parse_stored(&keys_json)?)?.projected(projection.as_ref())?;
            let sparse = i.bool(6);
            let partial = match i.opt_text(7) {
                Some(text) => Some(Partial::parse(&parse_stored(text)?, collation.as_deref())?),
                None => sparse.then(|| Partial::sparse(&keys)),
            };
            Ok(Index {
                id: i.i32(0),
                name: i.text(1).to_owned(),
                definition: IndexKeys::definition(&keys_json, i.opt_text(9), collation.as_deref()),
                keys_json,
                keys: keys.under(collation),
                wildcard_projection: projection,
                unique: i.bool(3),
                hidden: i.bool(4),
                sparse,
                partial: partial.map(Rc::new),
                expire_after_s: i.get(5).map(|_| i.i64(5)),
            })
        })
        .collect::<Result<Vec<_>>>()?;
    Ok(Some(Rc::new(Collection {
        id,
        namespace: namespace.to_owned(),
        key,
        unique: row.bool(4),
        collation: parse_collation(row.opt_text(5))?,
        token,
        revision,
        map: ChunkMap::new(chunks)?,
        placements: placements.iter().map(|p| (p.i32(0), p.i64(1))).collect(),
        indexes,
    })))
}

fn parse_collation(stored: Option<&str>) -> Result<Option<Arc<Collator>>> {
    Ok(match stored {
        Some(text) => Collator::parse(&parse_stored(text)?)?.map(Arc::new),
        None => None,
    })
}

fn parse_stored(text: &str) -> Result<serde_json::Value> {
    serde_json::from_str(text).map_err(|e| Error::new(Kind::InternalError, format!("the catalog holds bad JSON: {e}")))
}
