//! Each backend's cache of the catalog: immutable snapshots, checked again only after an invalidation.
//!
//! A hot-path read touches no catalog table: it compares one number. After an invalidation the collection's revision is
//! read; only if that moved is the whole collection read again, in one snapshot. Always with the newest snapshot, also
//! under REPEATABLE READ: a map newer than the data is refused by the shard, never silently wrong.

use super::model::{Collection, Index, Place, Shard};
use crate::pg::error::{Error, Result};
use crate::pg::object::invalidation;
use crate::pg::server::{foreign_server_oid, relation_oid};
use crate::pg::spi;
use crate::pg::spi::param::Param;
use crate::pg::transaction::snapshot::ActiveSnapshot;
use docshard_core::cluster::chunk_map::{Chunk, ChunkMap, ShardId};
use docshard_core::error::Kind;
use docshard_core::query::index::{IndexKeys, Partial};
use docshard_core::values::collation::Collator;
use docshard_core::values::key::KeyPattern;
use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;

/// So many changed chunks are no quicker read than all.
const MANY_CHANGES: usize = 1000;

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

/// A number that grows with every change of the catalog that cached metadata must notice.
///
/// # Errors
/// `InternalError` if this database has no catalog.
pub(super) fn generation() -> Result<u64> {
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
    if let Some(known) = &known
        && (known.id, known.token, known.revision) == (id, token, revision)
    {
        return Ok(Some(Rc::clone(known)));
    }
    let key = match row.opt_text(3) {
        Some(text) => KeyPattern::parse(&parse_stored(text)?)?,
        None => KeyPattern::unsharded(),
    };
    let known = known.filter(|known| (known.id, known.token, &known.key) == (id, token, &key));
    let map = match known.map(|known| changed_map(id, &known)).transpose()?.flatten() {
        Some(map) => map,
        None => Rc::new(whole_map(id)?),
    };
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
        map,
        placements: placements.iter().map(|p| (p.i32(0), p.i64(1))).collect(),
        indexes,
    })))
}

fn chunk(row: &spi::Row) -> Chunk {
    Chunk { min: row.bytes(0), max: row.bytes(1), shard: row.i32(2) }
}

/// The map as the active snapshot shows it. Row by row: all rows at once take many times the memory of the map.
fn whole_map(collection: i32) -> Result<ChunkMap> {
    let sql = "SELECT min, max, shard_id FROM docshard_catalog.chunks WHERE collection_id = $1 ORDER BY min";
    let mut rows = spi::Cursor::open(sql, &[Param::Int4(collection)])?;
    let mut failed = None;
    let chunks = std::iter::from_fn(|| {
        rows.next_row().unwrap_or_else(|error| {
            failed = Some(error);
            None
        })
    });
    let map = ChunkMap::new(chunks.map(|row| chunk(&row)));
    failed.map_or_else(|| Ok(map?), Err)
}

/// The map that is known, with what has changed since; None if that is much, or does not fit in.
fn changed_map(collection: i32, known: &Collection) -> Result<Option<Rc<ChunkMap>>> {
    // In the order of an index, so that the planner does not think of reading all chunks.
    let sql = format!(
        "SELECT min, max, shard_id FROM docshard_catalog.chunks WHERE collection_id = $1 AND revision > $2 \
         ORDER BY revision LIMIT {MANY_CHANGES}"
    );
    let rows = spi::read(&sql, &[Param::Int4(collection), Param::Int8(known.revision)])?;
    if rows.is_empty() {
        return Ok(Some(Rc::clone(&known.map)));
    }
    if rows.len() >= MANY_CHANGES {
        return Ok(None);
    }
    let mut changed: Vec<Chunk> = rows.iter().map(chunk).collect();
    changed.sort_unstable_by(|a, b| a.min.cmp(&b.min));
    Ok(known.map.with_changes(&changed).ok().map(Rc::new))
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

#[cfg(any(test, feature = "pg_test"))]
#[pgrx::pg_schema]
mod tests {
    use super::*;
    use pgrx::pg_test;

    /// What a session makes of its map after a change is what another reads.
    fn check(namespace: &str) -> usize {
        let cached = find(namespace).unwrap().expect("a collection");
        let _snapshot = ActiveSnapshot::latest();
        let read = whole_map(cached.id).unwrap();
        assert_eq!(cached.map.chunks().collect::<Vec<_>>(), read.chunks().collect::<Vec<_>>());
        read.len()
    }

    #[pg_test]
    fn a_map_is_brought_up_to_date() {
        let run = |sql: &str| drop(spi::query(sql, &[]).unwrap());
        run("SELECT docshard.shard_collection('map.c', '{\"k\": 1}')");
        assert_eq!(check("map.c"), 1);
        let split = |at: u32| run(&format!("SELECT docshard.split_at('map.c', '{{\"k\": {at}}}')"));
        let merge = |from: u32, to: u32| {
            run(&format!("SELECT docshard.merge_chunks('map.c', '[{{\"k\": {from}}}, {{\"k\": {to}}}]')"));
        };
        for (number, at) in [50, 10, 90, 30, 70].into_iter().enumerate() {
            let before = find("map.c").unwrap().expect("a collection");
            split(at);
            assert_eq!(check("map.c"), number + 2);
            // What is new is read, and no more.
            let _snapshot = ActiveSnapshot::latest();
            let sql = "SELECT FROM docshard_catalog.chunks WHERE collection_id = $1 AND revision > $2";
            let changed = spi::read(sql, &[Param::Int4(before.id), Param::Int8(before.revision)]).unwrap().len();
            assert_eq!(changed, 2);
            assert!(changed_map(before.id, &before).unwrap().is_some_and(|map| map.len() == number + 2));
        }
        merge(10, 50);
        assert_eq!(check("map.c"), 5);
        // Several changes at once: a chunk that was split is gone again.
        split(60);
        split(65);
        merge(50, 70);
        merge(50, 90);
        assert_eq!(check("map.c"), 4);
        // Nothing of the map, but of the collection.
        let before = find("map.c").unwrap().expect("a collection");
        run("SELECT docshard.create_index('map.c', '{\"n\": 1}')");
        let after = find("map.c").unwrap().expect("a collection");
        assert_eq!((after.revision > before.revision, after.indexes.len()), (true, 1));
        assert!(Rc::ptr_eq(&after.map, &before.map));
        // Another collection of that name.
        run("SELECT docshard.drop_collection('map.c'); SELECT docshard.shard_collection('map.c', '{\"other\": 1}')");
        assert_eq!(check("map.c"), 1);
    }
}
