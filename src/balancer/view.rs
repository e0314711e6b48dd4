//! The balancer's view of the cluster in one round: shards, collections and zones from the catalog, with measured sizes.

use crate::catalog::cache;
use crate::catalog::cluster::settings;
use crate::catalog::cluster::shard::Shard;
use crate::catalog::collections::loads::Loads;
use crate::catalog::collections::sizes::{self, Collection};
use crate::catalog::collections::zones;
use crate::migration;
use crate::pg::error::Result;
use crate::store::migrations::Range;
use docshard_core::cluster::balancer as policy;
use docshard_core::cluster::chunk_map::ShardId;
use docshard_core::cluster::load::{ChunkLoad, Division};
use docshard_core::cluster::zone::ZoneMap;
use std::collections::{BTreeSet, HashMap, HashSet};
use std::rc::Rc;

const MB: u64 = 1 << 20;

pub(super) struct View {
    pub(super) shards: Vec<Rc<Shard>>,
    pub(super) collections: Vec<Collection>,
    chunk_size_mb: u64,
    zones: HashMap<String, ZoneMap>,
    zones_of_shards: HashMap<ShardId, Vec<String>>,
    /// Shards in moves that other processes began.
    in_move: HashSet<ShardId>,
    /// Ranges that are not moved for a while, after failed moves.
    resting: Vec<Range>,
    /// True: collections are balanced by load; false: by bytes.
    pub(super) by_load: bool,
    pub(super) loads: Rc<Loads>,
}

/// The data from which the policy decides where chunks belong. When they change, chunks that were moved recently may move again.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Goal {
    shards: Vec<(ShardId, bool, Option<i32>)>,
    zones: HashMap<String, ZoneMap>,
    zones_of_shards: HashMap<ShardId, Vec<String>>,
}

/// The objects that the policy must skip for reasons that are not in the catalog.
pub(super) struct Exceptions<'a> {
    pub(super) unavailable: &'a dyn Fn(ShardId) -> bool,
    /// True for a shard whose load a move has changed lately.
    pub(super) settling: &'a dyn Fn(ShardId) -> bool,
    /// True for a resting collection.
    pub(super) resting: &'a dyn Fn(i32) -> bool,
    /// True for a pinned chunk, by its collection and lower bound.
    pub(super) pinned: &'a dyn Fn(i32, &[u8]) -> bool,
    /// The pairs of donor and recipient between which nothing of a collection moves for a while.
    pub(super) pairs: &'a dyn Fn(i32) -> BTreeSet<(ShardId, ShardId)>,
}

impl View {
    pub(super) fn load() -> Result<Self> {
        let mut shards: Vec<_> = cache::shards()?.values().cloned().collect();
        shards.sort_by_key(|shard| shard.id);
        Ok(Self {
            shards,
            collections: sizes::collections(true)?,
            chunk_size_mb: settings::integer("chunk_size_mb")?.unsigned_abs(),
            zones: zones::all()?,
            zones_of_shards: zones::of_shards()?,
            in_move: migration::busy_shards()?.into_iter().collect(),
            resting: migration::resting_ranges()?,
            by_load: settings::get("balancer_mode")? == "load",
            loads: Rc::default(),
        })
    }

    pub(super) fn read_resting(&mut self) -> Result<()> {
        self.resting = migration::resting_ranges()?;
        Ok(())
    }

    /// True if a part of the range rests: it is not moved for a while.
    pub(super) fn is_resting(&self, collection: i32, min: &[u8], max: &[u8]) -> bool {
        let overlaps = |range: &Range| min < range.max.as_slice() && range.min.as_slice() < max;
        self.resting.iter().any(|range| range.collection == collection && overlaps(range))
    }

    fn load_of(&self, collection: &Collection, chunk: &sizes::Chunk) -> policy::Load {
        let load = self.loads.of_chunk(collection.id, &chunk.min);
        let halves = |load: &ChunkLoad| match load.division {
            Division::At(_, below, above) => Some((below, above)),
            Division::OneKey(_) | Division::Unknown => None,
        };
        load.map_or_else(policy::Load::default, |load| policy::Load { total: load.total(), halves: halves(load) })
    }

    pub(super) fn goal(&self) -> Goal {
        Goal {
            shards: self.shards.iter().map(|shard| (shard.id, shard.draining, shard.max_size_mb)).collect(),
            zones: self.zones.clone(),
            zones_of_shards: self.zones_of_shards.clone(),
        }
    }

    /// Describes the cluster for the policy; shards, collections and chunks keep their positions.
    pub(super) fn describe(&self, except: &Exceptions<'_>) -> policy::Cluster {
        let mut numbers = HashMap::new();
        let mut number = |zone: &str| {
            let next = numbers.len() as policy::ZoneId;
            *numbers.entry(zone.to_owned()).or_insert(next)
        };
        let none = Vec::new();
        let shards = self.shards.iter().map(|shard| policy::Shard {
            id: shard.id,
            draining: shard.draining,
            max_bytes: shard.max_size_mb.map(|mb| u64::from(mb.unsigned_abs()) * MB),
            unavailable: self.in_move.contains(&shard.id) || (except.unavailable)(shard.id),
            zones: self.zones_of_shards.get(&shard.id).unwrap_or(&none).iter().map(|zone| number(zone)).collect(),
            other_load: self.loads.of_others(shard.id),
            settling: (except.settling)(shard.id),
            waiting: false,
        });
        let shards = shards.collect();
        let collections = self.collections.iter().map(|collection| {
            let zones = self.zones.get(&collection.namespace);
            let mut chunk = |chunk: &sizes::Chunk| policy::Chunk {
                shard: chunk.shard,
                documents: chunk.documents,
                bytes: chunk.bytes,
                zone: zones.and_then(|zones| zones.covering(&chunk.min, &chunk.max)).map(|range| number(&range.zone)),
                straddles: zones.is_some_and(|zones| zones.straddles(&chunk.min, &chunk.max)),
                jumbo: chunk.jumbo,
                pinned: (except.pinned)(collection.id, &chunk.min),
                resting: self.is_resting(collection.id, &chunk.min, &chunk.max),
                load: self.load_of(collection, chunk),
            };
            // A resting collection is described without chunks, so that nothing is planned for it.
            let is_resting = (except.resting)(collection.id);
            policy::Collection {
                chunk_size: collection.chunk_size_mb.map_or(self.chunk_size_mb, |mb| u64::from(mb.unsigned_abs())) * MB,
                balance: collection.balance,
                by_load: self.by_load,
                chunks: if is_resting { Vec::new() } else { collection.chunks.iter().map(&mut chunk).collect() },
                resting: (except.pairs)(collection.id),
            }
        });
        policy::Cluster { shards, collections: collections.collect() }
    }
}
