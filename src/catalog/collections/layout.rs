//! Another layout of a collection (shard key, chunks, shards): a *copy* with that layout, into which documents are copied, and the
//! change by which the copy becomes the collection.
//!
//! The copy is a collection of its own, with a number, tables, indexes and a validator, whose name users cannot write. Its indexes do not
//! expire documents, and the balancer does not touch it, until it has the collection's name.
//!
//! INVARIANT: [`replace`] drops the old tables, gives the recipients a new version, and renames the copy, in one transaction of all these
//! nodes. A statement with the old map waits for the old table's lock, and then finds no table, which tells that its map is stale. So no
//! statement returns the old documents after a write with the new map, though the nodes commit one after the other. A statement with the new
//! map and a snapshot from before the change is refused, because it finds another version.

use super::collection::{Options, insert_row, lay_out};
use super::indexes::check_count;
use super::rename::move_rights;
pub use super::sharding::needs_index;
use super::sharding::{self, ShardOptions};
use super::{namespace, zones};
use crate::catalog::cluster::access;
use crate::catalog::cluster::nodes::{call_on, call_on_all};
use crate::catalog::cluster::pending_drops::{self, Dropped};
use crate::catalog::cluster::shard::Shard;
use crate::catalog::{cache, change};
use crate::pg::error::Result;
use crate::store::indexes::StoredIndex;
use crate::store::zone_ranges::StoredRange;
use crate::store::{self, collections, placements};
use docshard_core::cluster::chunk_map::{Chunk, ShardId};
use docshard_core::cluster::zone::{ZoneMap, ZoneRange};
use docshard_core::error::{Kind, bail, error};
use docshard_core::query::index::IndexKeys;
use docshard_core::query::specification;
use docshard_core::routing::model::{Collection, Index};
use docshard_core::routing::protocol::shard_tables::SetVersion;
use docshard_core::routing::protocol::table::{CreateIndex, DropTable};
use docshard_core::values::key::KeyPattern;
use std::rc::Rc;

/// A layout: shard key and chunks.
#[derive(Clone, Debug)]
pub struct Layout {
    /// the shard key; empty for an unsharded collection
    pub key: KeyPattern,
    /// no two documents have the same shard key
    pub unique: bool,
    /// all chunks, in key order
    pub chunks: Vec<Chunk>,
    /// the ranges of its zones; None: those of the collection stay
    pub zones: Option<Vec<ZoneRange>>,
}

impl Layout {
    /// The shards that have chunks, by number.
    pub fn shards(&self) -> Vec<ShardId> {
        let mut shards: Vec<ShardId> = self.chunks.iter().map(|chunk| chunk.shard).collect();
        shards.sort_unstable();
        shards.dedup();
        shards
    }
}

/// How the chunks of a new layout are chosen.
#[derive(Debug)]
pub struct Wanted<'a> {
    pub key: &'a KeyPattern,
    pub unique: bool,
    /// the number of chunks; None: as many as the chunk size requires
    pub chunks: Option<i64>,
    pub zones: Option<&'a [ZoneRange]>,
    /// a sample of the documents' new keys
    pub sample: Vec<Vec<u8>>,
    /// the size of all documents, in bytes
    pub bytes: i64,
}

/// Computes a layout of a sharded collection, with chunks on all shards that take data. `chunk_size` is in bytes.
///
/// # Errors
/// `InvalidOptions` for a number of chunks that is not possible; `ShardNotFound`; those of [`ZoneMap::new`].
pub fn divide(of: &Collection, wanted: Wanted<'_>, chunk_size: i64) -> Result<Layout> {
    let Wanted { key, unique, chunks, zones, mut sample, bytes } = wanted;
    let shards = sharding::usable_shards()?;
    let least = i64::try_from(shards.len()).unwrap_or(1);
    if let Some(chunks) = chunks {
        sharding::check_chunk_count(chunks, shards.len())?;
    }
    let count = chunks.unwrap_or_else(|| (bytes / (chunk_size / 2).max(1) + 1).clamp(least, 10_000));
    let count = usize::try_from(count).unwrap_or(1);
    let bounds = if key.hashed_field() == Some(0) {
        key.even_hash_bounds(count)
    } else {
        sample.sort_unstable();
        let lowest = key.min_bound();
        let mut bounds: Vec<Vec<u8>> =
            (1..count).filter_map(|n| sample.get(n * sample.len() / count).cloned()).collect();
        bounds.dedup();
        bounds.retain(|bound| *bound > lowest);
        bounds
    };
    let map = match zones {
        Some(ranges) => ZoneMap::new(ranges.to_vec())?,
        None => zones::of(&of.namespace)?,
    };
    let (database, _) = namespace::split(&of.namespace)?;
    let primary = sharding::home_of_one_chunk(database, &shards)?;
    let homes = zones::homes(&shards.iter().map(|shard| shard.id).collect::<Vec<_>>())?;
    let chunks = map.initial_chunks(key, bounds, &homes, primary);
    Ok(Layout { key: key.clone(), unique, chunks, zones: zones.map(<[_]>::to_vec) })
}

/// Checks that the collection's indexes fit a new shard key.
///
/// # Errors
/// `InvalidOptions`, `IndexKeySpecsConflict`.
pub fn check(of: &Collection, key: &KeyPattern, unique: bool) -> Result<()> {
    if key.is_unsharded() {
        return Ok(());
    }
    let options = ShardOptions { unique, ..ShardOptions::default() };
    sharding::check_unique_option(key, &options)?;
    sharding::check_unique_indexes(of, key)?;
    sharding::has_index_or_place(of, key, &options).map(drop)
}

/// Refuses a shard key that no index of the collection serves.
///
/// # Errors
/// `InvalidOptions`; those of [`check`].
pub fn require_index(of: &Collection, key: &KeyPattern, unique: bool) -> Result<()> {
    match sharding::has_index_or_place(of, key, &ShardOptions { unique, ..ShardOptions::default() })? {
        true => Ok(()),
        false => Err(sharding::no_index(&of.namespace, Some(of), key)),
    }
}

/// A copy, without documents.
#[derive(Clone, Debug)]
pub struct Copy {
    pub id: i32,
    pub token: i64,
    pub name: String,
    /// its version at every shard
    pub version: i64,
}

/// Creates an empty copy of a collection, with its indexes.
///
/// # Errors
/// Those of [`check`], and the shards'.
pub fn create_copy(of: &Collection, name: &str, layout: &Layout) -> Result<Copy> {
    check(of, &layout.key, layout.unique)?;
    let (database, _) = namespace::split(&of.namespace)?;
    let key = (!layout.key.is_unsharded()).then_some(&layout.key);
    let options = Options { collation: of.collation.as_deref(), validation: of.validation.as_deref() };
    let Some(id) = insert_row(name, database, key, options)? else {
        bail!(Kind::ConflictingOperationInProgress, "{name} exists");
    };
    collections::set_balance(id, false)?;
    lay_out(id, name, &layout.key, &layout.chunks, of.validation.as_deref())?;
    let mut indexes: Vec<(StoredIndex, Option<&Index>)> = Vec::new();
    for index in &of.indexes {
        indexes.push((stored(index), Some(index)));
    }
    for (keys, unique) in own_indexes(of, layout, id)? {
        let name = keys.parsed.default_name();
        indexes.push((StoredIndex { name, keys: keys.text, unique, ..empty_index() }, None));
    }
    let shards = layout.shards();
    for (index, former) in &mut indexes {
        index.id = store::indexes::next_id()?;
        let definition = former.map_or_else(|| index.keys.clone(), |former| former.definition.clone());
        let partial = former.and_then(|former| former.partial.as_deref()).map(|partial| partial.text.as_str());
        let create =
            CreateIndex { collection: id, index: index.id, keys: &definition, is_unique: index.unique, partial };
        call_on_all(&shards, &create)?;
        store::indexes::insert(id, index)?;
    }
    change::touch(id)?;
    let locked = collections::lock_id(id)?.ok_or_else(|| error!(Kind::InternalError, "the copy is gone"))?;
    Ok(Copy { id, token: locked.token, name: name.to_owned(), version: locked.version })
}

/// Keys of an index, as text and parsed.
struct Keys {
    text: String,
    parsed: IndexKeys,
}

/// Returns the keys of the indexes that the copy needs besides those of the collection, each with true if the index is unique: an index on
/// a unique shard key, and one on the former shard key if the tables' primary key has served as that key's index. The latter is left out if
/// the collection would then have too many indexes.
///
/// # Errors
/// `CannotCreateIndex` for too many indexes.
fn own_indexes(of: &Collection, layout: &Layout, id: i32) -> Result<Vec<(Keys, bool)>> {
    let keys = |pattern: &KeyPattern| -> Result<Keys> {
        let text = pattern.to_json().to_string();
        Ok(Keys { parsed: IndexKeys::parse(&specification::parse(&text)?)?, text })
    };
    let mut own = Vec::new();
    let is_same = of.key == layout.key;
    // Includes the index on `_id`.
    let mut count = of.indexes.len() + 1;
    if !layout.key.is_unsharded() {
        let options = ShardOptions { unique: layout.unique, ..ShardOptions::default() };
        let serves = sharding::has_index_or_place(of, &layout.key, &options)?;
        let is_id = layout.key.is_in_order_of_id();
        if serves || layout.unique || is_same && !of.has_key_index {
            collections::drop_key_index(id)?;
        } else {
            count += usize::from(!is_id);
        }
        if layout.unique {
            collections::set_unique(id)?;
            if !serves && !is_id {
                own.push((keys(&layout.key)?, true));
            }
        }
    }
    if !is_same {
        count += own.len();
        check_count(&of.namespace, count)?;
        if of.key_index().is_some() && check_count(&of.namespace, count + 1).is_ok() {
            own.push((keys(&of.key)?, false));
        }
    }
    Ok(own)
}

fn empty_index() -> StoredIndex {
    StoredIndex {
        id: 0,
        name: String::new(),
        keys: String::new(),
        unique: false,
        hidden: false,
        expire_after_s: None,
        sparse: false,
        partial_filter: None,
        collation: None,
        wildcard_projection: None,
    }
}

fn stored(index: &Index) -> StoredIndex {
    StoredIndex {
        name: index.name.clone(),
        keys: index.keys_json.clone(),
        unique: index.unique,
        hidden: index.hidden,
        sparse: index.sparse,
        partial_filter: index.partial_filter().map(str::to_owned),
        collation: index.keys.collation.as_deref().map(|collator| collator.definition().clone()),
        wildcard_projection: index.wildcard_projection.as_ref().map(ToString::to_string),
        ..empty_index()
    }
}

/// Puts a copy, which has all documents, in the place of the collection. The caller has locked the collection's row, excludes all
/// writers on its shards, and has assigned the version that the copy gets; as a shard, the router's own database already has that version.
///
/// # Errors
/// `OperationFailed` if a shard has another version of the copy than the catalog; `LockTimeout`; the shards' errors.
pub fn replace(of: &Collection, copy: &Copy, layout: &Layout, version: i64) -> Result<()> {
    // This excludes a concurrent change of grants, which would change the privileges of the tables that are dropped.
    access::lock_shared()?;
    let shards = layout.shards();
    for shard in shards.iter().map(|id| cache::shard(*id)).collect::<Result<Vec<Rc<_>>>>()? {
        let before = if shard.is_local() { version } else { copy.version };
        let set = SetVersion { collection: copy.id, token: copy.token, before, version };
        advance_shard(&shard, &set, &of.namespace)?;
    }
    placements::set_version(copy.id, &shards, version)?;
    call_on_all(&placements::shards(of.id)?, &DropTable { collection: of.id })?;
    rename_copy(of.id, copy.id, &of.namespace)?;
    if let Some(ranges) = &layout.zones {
        store_zones(&of.namespace, &layout.key, ranges)?;
    }
    move_rights(copy.id, &shards, &of.namespace)?;
    change::touch(copy.id)
}

/// Sets a shard's version of the copy of a collection.
fn advance_shard(shard: &Shard, set: &SetVersion, of: &str) -> Result<()> {
    if call_on(shard, set)?.len() == 1 {
        return Ok(());
    }
    let error =
        error!(Kind::OperationFailed, "shard \"{}\" is not at version {} of the copy of {of}", shard.name, set.before);
    Err(error.with_hint("The shard or the router may have been restored from a backup."))
}

/// Gives a copy the collection's name, and deletes the collection from the catalog.
fn rename_copy(of: i32, copy: i32, namespace: &str) -> Result<()> {
    collections::complete_copy(copy, of)?;
    store::indexes::complete_copy(copy, of)?;
    collections::delete(of)?;
    collections::rename(copy, namespace)
}

/// Completes [`replace`] in the catalog after the shards have done their parts and the router's part was lost. The versions and chunks stay
/// as they were before. The caller has locked the collection's row. `keeps_key`: false if the copy has another shard key; then the zones'
/// ranges are deleted. The shards `absent` do not have the copy's table.
pub fn take_name(of: i32, copy: i32, namespace: &str, keeps_key: bool, absent: &[ShardId]) -> Result<()> {
    pending_drops::drop_everywhere(&placements::shards(of)?, Dropped::Collection(of), namespace)?;
    rename_copy(of, copy, namespace)?;
    if !keeps_key {
        zones::forget(namespace)?;
    }
    let mut shards = placements::shards(copy)?;
    shards.retain(|shard| !absent.contains(shard));
    move_rights(copy, &shards, namespace)?;
    change::touch(copy)
}

fn store_zones(namespace: &str, key: &KeyPattern, ranges: &[ZoneRange]) -> Result<()> {
    zones::forget(namespace)?;
    ranges.iter().try_for_each(|range| {
        store::zone_ranges::insert_or_set(&StoredRange {
            namespace: namespace.to_owned(),
            min_key: range.min.clone(),
            max_key: range.max.clone(),
            min: key.bound_to_json(&range.min).to_string(),
            max: key.bound_to_json(&range.max).to_string(),
            zone: range.zone.clone(),
        })
    })
}

/// Deletes from the catalog a copy that has not become the collection. The shards have already dropped their tables of the copy. `drop_own`:
/// the router's own table is dropped here.
pub fn forget_copy(id: i32, name: &str, drop_own: bool) -> Result<()> {
    if collections::lock_id(id)?.is_none() || collections::namespace(id)?.as_deref() != Some(name) {
        return Ok(());
    }
    for shard in placements::shards(id)? {
        let shard = cache::shard(shard)?;
        if drop_own && shard.is_local() {
            call_on(&shard, &DropTable { collection: id })?;
        }
    }
    collections::delete(id)?;
    change::announce();
    Ok(())
}

/// Parses a range of a shard key for a zone.
///
/// # Errors
/// `ZoneNotFound`; those of [`zones::range_bounds`].
pub fn zone_range(key: &KeyPattern, min: &serde_json::Value, max: &serde_json::Value, zone: &str) -> Result<ZoneRange> {
    let (min, max) = zones::range_bounds(key, min, max)?;
    if !store::zones::exists(zone)? {
        bail!(Kind::ZoneNotFound, "no shard belongs to the zone '{zone}'");
    }
    Ok(ZoneRange { min, max, zone: zone.to_owned() })
}
