//! Each backend's cache of the catalog: immutable snapshots, checked again only after an invalidation.
//!
//! While the cache is valid, a statement reads no catalog table: it compares one number. After an invalidation it reads the
//! collection's revision, and the whole collection only if the revision has changed. Both are read with the newest snapshot, also
//! under REPEATABLE READ: if the map is newer than the transaction's snapshot, the shard refuses the statement.

use crate::catalog::cluster::shard::{Server, Shard};
use crate::catalog::collections::missing_grant;
use crate::pg::error::{Error, Result};
use crate::pg::object::invalidation;
use crate::pg::server::{current_user, foreign_server_oid};
use crate::pg::transaction::snapshot::ActiveSnapshot;
use crate::store::collections::Definition;
use crate::store::indexes::StoredIndex;
use crate::store::views::StoredView;
use crate::store::{self, chunks, collections, placements};
use docshard_core::cluster::chunk_map::{ChunkMap, ShardId};
use docshard_core::error::{Kind, bail, error};
use docshard_core::query::index::{IndexKeys, Partial};
use docshard_core::query::specification;
use docshard_core::routing::model::{Collection, Index, Validation, View};
use docshard_core::values::collation::Collator;
use docshard_core::values::key::KeyPattern;
use pgrx::pg_sys::Oid;
use serde_json::Value as Json;
use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;

/// If at least this many chunks have changed, all chunks are read instead.
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
    /// views, with the generations in which they were read
    views: HashMap<String, (u64, Rc<View>)>,
    shards: Option<(u64, Shards)>,
    /// the last generation and user for which access was checked and the watched relation was looked up; dropping that relation begins a
    /// new generation
    watched_in: (u64, Oid),
}

thread_local! {
    static CACHE: RefCell<Cache> = RefCell::new(Cache::default());
}

/// A number that grows with every change of the catalog that invalidates cached metadata.
/// Errors: `InternalError` if this database has no catalog; `Unauthorized` for a role without any access, even if another role has filled
/// this session's cache.
pub fn generation() -> Result<u64> {
    let generation = invalidation::generation();
    if invalidation::take_tainted() {
        CACHE.with_borrow_mut(|cache| *cache = Cache::default());
    }
    let watched_in = (generation, current_user());
    if CACHE.with_borrow(|cache| cache.watched_in) != watched_in {
        require_access()?;
        let Some(relation) = store::relation(c"collections") else {
            bail!(Kind::InternalError, "docshard's catalog is missing in this database");
        };
        invalidation::watch(relation);
        CACHE.with_borrow_mut(|cache| cache.watched_in = watched_in);
    }
    Ok(generation)
}

/// Errors: `Unauthorized` for a role to which nothing was granted.
pub fn require_access() -> Result<()> {
    if store::may_use() { Ok(()) } else { Err(missing_grant::no_access()) }
}

/// Announces a change of the catalog: every backend checks its cached metadata again.
pub fn announce() {
    if let Some(relation) = announced() {
        invalidation::announce(relation);
    }
}

/// The relation that [`announce`] invalidates; None without the extension.
pub fn announced() -> Option<Oid> {
    store::relation(c"collections")
}

/// Returns the collection, or None if no collection has that name.
/// Errors: `InternalError` if the catalog breaks its invariants.
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
/// Errors: those of [`not_found`].
pub fn get(namespace: &str) -> Result<Rc<Collection>> {
    find(namespace)?.ok_or_else(|| not_found(namespace))
}

/// The view; None if there is none of that name.
/// Errors: `InvalidViewDefinition`.
pub fn view(namespace: &str) -> Result<Option<Rc<View>>> {
    let generation = generation()?;
    let cached = CACHE.with_borrow(|cache| {
        if cache.collections.get(namespace).is_some_and(|entry| entry.checked_at == generation) {
            return Some(None);
        }
        cache.views.get(namespace).filter(|(read_in, _)| *read_in == generation).map(|(_, view)| Some(Rc::clone(view)))
    });
    if let Some(cached) = cached {
        return Ok(cached);
    }
    let stored = if find(namespace)?.is_some() {
        None
    } else {
        let _snapshot = ActiveSnapshot::latest();
        store::views::read(namespace)?
    };
    let view = stored.map(StoredView::into_view).transpose()?.map(Rc::new);
    CACHE.with_borrow_mut(|cache| {
        cache.views.remove(namespace);
        cache.views.extend(view.iter().map(|view| (namespace.to_owned(), (generation, Rc::clone(view)))));
    });
    Ok(view)
}

/// The error for a namespace that is not a collection.
/// Errors: `CommandNotSupportedOnView` for a view, else `NamespaceNotFound`.
pub fn not_found(namespace: &str) -> Error {
    match view(namespace) {
        Ok(None) => error!(Kind::NamespaceNotFound, "ns not found: {namespace}"),
        Ok(Some(_)) => {
            let message = format!("Namespace {namespace} is a view, not a collection");
            Error::new(Kind::CommandNotSupportedOnView, message)
        }
        Err(error) => error,
    }
}

/// Every shard, by number.
pub fn shards() -> Result<Shards> {
    let generation = generation()?;
    if let Some(shards) = CACHE.with_borrow(|cache| match &cache.shards {
        Some((checked_at, shards)) if *checked_at == generation => Some(Rc::clone(shards)),
        _ => None,
    }) {
        return Ok(shards);
    }
    let _snapshot = ActiveSnapshot::latest();
    let mut shards = HashMap::new();
    for store::shards::StoredShard { id, name, server, draining, max_size_mb } in store::shards::read_all()? {
        let gone = |server: &str| {
            error!(Kind::ShardNotFound, "foreign server \"{server}\" of shard \"{name}\" is gone").with_hint(format!(
                "If it has another name: ALTER SERVER … RENAME TO \"{server}\". If it was dropped: CREATE SERVER with the shard's address, \
                 and CREATE USER MAPPING with the router's login for the owner of the extension."
            ))
        };
        let found = |name: String| match foreign_server_oid(&name) {
            Some(oid) => Ok(Server { name, oid }),
            None => Err(gone(&name)),
        };
        let server = server.map(found).transpose()?;
        shards.insert(id, Rc::new(Shard { id, name, server, draining, max_size_mb }));
    }
    let shards = Rc::new(shards);
    CACHE.with_borrow_mut(|cache| cache.shards = Some((generation, Rc::clone(&shards))));
    Ok(shards)
}

/// The shards on other nodes in the order of their numbers, each with the OID of its foreign server.
pub fn remote_shards() -> Result<Vec<(Rc<Shard>, Oid)>> {
    let mut remote: Vec<_> = shards()?.values().filter_map(|shard| Some((Rc::clone(shard), shard.oid()?))).collect();
    remote.sort_by_key(|(shard, _)| shard.id);
    Ok(remote)
}

/// One shard.
/// Errors: `ShardNotFound`.
pub fn shard(id: ShardId) -> Result<Rc<Shard>> {
    shards()?.get(&id).cloned().ok_or_else(|| error!(Kind::ShardNotFound, "there is no shard number {id}"))
}

/// One shard, by its name.
/// Errors: `ShardNotFound`.
pub fn shard_named(name: &str) -> Result<Rc<Shard>> {
    shards()?.values().find(|shard| shard.name == name).cloned().ok_or_else(|| {
        error!(Kind::ShardNotFound, "Shard {name} does not exist").with_hint("docshard.list_shards() names them.")
    })
}

/// A collection without its chunks and versions: it can be read even if these are inconsistent.
pub struct Described {
    pub definition: Definition,
    pub key: KeyPattern,
    pub collation: Option<Arc<Collator>>,
    pub validation: Option<Rc<Validation>>,
    pub indexes: Vec<Index>,
}

impl Described {
    fn of(definition: Definition) -> Result<Self> {
        let collation = collator(definition.collation.as_ref())?;
        Ok(Self {
            key: collections::pattern(definition.key.as_ref())?,
            validation: validation(definition.validation.as_deref(), collation.as_deref())?,
            collation,
            indexes: store::indexes::read(definition.id)?.into_iter().map(index).collect::<Result<_>>()?,
            definition,
        })
    }
}

/// Reads a collection in the active snapshot, without the cache; None if there is none.
pub fn describe(namespace: &str) -> Result<Option<Described>> {
    collections::read_definition(namespace)?.map(Described::of).transpose()
}

fn load(namespace: &str, cached: Option<Rc<Collection>>) -> Result<Option<Rc<Collection>>> {
    let _snapshot = ActiveSnapshot::latest();
    let Some(definition) = collections::read_definition(namespace)? else { return Ok(None) };
    let (id, token, revision) = (definition.id, definition.token, definition.revision);
    if let Some(cached) = &cached
        && (cached.id, cached.token, cached.revision) == (id, token, revision)
    {
        return Ok(Some(Rc::clone(cached)));
    }
    let Described { definition, key, collation, validation, indexes } = Described::of(definition)?;
    let cached = cached.filter(|cached| (cached.id, cached.token, &cached.key) == (id, token, &key));
    let map = match cached.map(|cached| changed_map(id, &cached)).transpose()?.flatten() {
        Some(map) => map,
        None => Rc::new(whole_map(id)?),
    };
    let placements = placements::read(id)?;
    Ok(Some(Rc::new(Collection {
        id,
        namespace: namespace.to_owned(),
        key,
        unique: definition.unique,
        has_key_index: definition.has_key_index,
        validation,
        collation,
        token,
        revision,
        map,
        placements: placements.iter().map(|placement| (placement.shard, placement.version)).collect(),
        indexes,
        sampled_every_us: definition.sampled_every_us,
        is_undecided: store::resharding::read_is_undecided(id)?,
    })))
}

fn index(stored: StoredIndex) -> Result<Index> {
    let collation = collator(stored.collation.as_ref())?;
    let projection = stored.wildcard_projection.as_deref().map(specification::parse).transpose()?;
    let keys = IndexKeys::parse(&specification::parse(&stored.keys)?)?.projected(projection.as_ref())?;
    let partial = match &stored.partial_filter {
        Some(filter) => Some(Partial::parse(&specification::parse(filter)?, collation.as_deref())?),
        None => stored.sparse.then(|| Partial::sparse(&keys)),
    };
    Ok(Index {
        id: stored.id,
        name: stored.name,
        definition: IndexKeys::definition(&stored.keys, stored.wildcard_projection.as_deref(), collation.as_deref()),
        keys_json: stored.keys,
        keys: keys.under(collation),
        wildcard_projection: projection,
        unique: stored.unique,
        hidden: stored.hidden,
        sparse: stored.sparse,
        partial: partial.map(Rc::new),
        expire_after_s: stored.expire_after_s,
    })
}

/// Reads all chunks of the map in the active snapshot.
fn whole_map(collection: i32) -> Result<ChunkMap> {
    let mut failed = None;
    let mut rows = chunks::read_all(collection)?;
    let chunks = std::iter::from_fn(|| match rows.next()? {
        Ok(chunk) => Some(chunk),
        Err(error) => {
            failed = Some(error);
            None
        }
    });
    let map = ChunkMap::new(chunks);
    failed.map_or_else(|| map, Err)
}

/// The cached map, updated with the chunks that have changed since it was read. None if too many have changed, or if the changed chunks
/// conflict with the map.
fn changed_map(collection: i32, cached: &Collection) -> Result<Option<Rc<ChunkMap>>> {
    let mut changed = chunks::read_changed(collection, cached.revision, MANY_CHANGES)?;
    if changed.is_empty() {
        return Ok(Some(Rc::clone(&cached.map)));
    }
    if changed.len() >= MANY_CHANGES {
        return Ok(None);
    }
    changed.sort_unstable_by(|a, b| a.min.cmp(&b.min));
    Ok(cached.map.with_changes(&changed).ok().map(Rc::new))
}

fn validation(stored: Option<&str>, collation: Option<&Collator>) -> Result<Option<Rc<Validation>>> {
    let Some(stored) = stored else { return Ok(None) };
    let Json::Object(options) = specification::parse(stored)? else { return Ok(None) };
    Ok(Validation::of(options, collation).map(Rc::new))
}

fn collator(stored: Option<&Json>) -> Result<Option<Arc<Collator>>> {
    Ok(stored.map(Collator::parse).transpose()?.flatten().map(Arc::new))
}

#[cfg(any(test, feature = "pg_test"))]
#[pgrx::pg_schema]
mod tests {
    use super::*;
    use crate::pg::spi;
    use pgrx::pg_test;

    /// A map that is updated after a change equals a map that is read anew.
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
            // Only changed chunks are read.
            let _snapshot = ActiveSnapshot::latest();
            let changed = chunks::read_changed(before.id, before.revision, MANY_CHANGES).unwrap().len();
            assert_eq!(changed, 2);
            assert!(changed_map(before.id, &before).unwrap().is_some_and(|map| map.len() == number + 2));
        }
        merge(10, 50);
        assert_eq!(check("map.c"), 5);
        // Several changes at once. A chunk of an earlier split no longer exists.
        split(60);
        split(65);
        merge(50, 70);
        merge(50, 90);
        assert_eq!(check("map.c"), 4);
        // The collection changes, its map does not.
        let before = find("map.c").unwrap().expect("a collection");
        run("SELECT docshard.create_index('map.c', '{\"n\": 1}')");
        let after = find("map.c").unwrap().expect("a collection");
        assert_eq!((after.revision > before.revision, after.indexes.len()), (true, 1));
        assert!(Rc::ptr_eq(&after.map, &before.map));
        // Another collection with the same name.
        run("SELECT docshard.drop_collection('map.c'); SELECT docshard.shard_collection('map.c', '{\"other\": 1}')");
        assert_eq!(check("map.c"), 1);
    }
}
