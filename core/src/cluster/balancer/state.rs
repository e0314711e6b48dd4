//! The policy's input and output.

use crate::cluster::chunk_map::ShardId;
use std::collections::BTreeSet;
use std::ops::Range;

/// The weight of a chunk is its bytes plus this, so that empty chunks are spread, too.
pub(super) const CHUNK_WEIGHT: u64 = 1024;
/// A collection is young while it would have fewer chunks of the full chunk size than this for each shard that takes data. Its split size is
/// smaller then, so that it spreads early: see [`split_size`](super::split::split_size).
pub(super) const YOUNG_CHUNKS: u64 = 4;
/// The smallest split size, in bytes.
pub(super) const MIN_SPLIT_SIZE: u64 = 1 << 20;
/// Largest number of parts into which a chunk is split at once.
pub(super) const MAX_PARTS: u64 = 256;

/// A zone, by a number that the caller gives it.
pub type ZoneId = u32;

/// A shard.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shard {
    /// its number
    pub id: ShardId,
    /// it is being emptied: it only gives chunks away
    pub draining: bool,
    /// the most bytes that it may hold
    pub max_bytes: Option<u64>,
    /// it cannot take part in a move now: it does not answer, it is skipped for a while after an error, or it takes part in one already
    pub unavailable: bool,
    /// its zones
    pub zones: Vec<ZoneId>,
    /// its load from collections that are not in [`Cluster::collections`], in operations in 1,000 seconds
    pub other_load: u64,
    /// it has recently received a chunk whose load is not measured yet, so it takes part in no move for load
    pub settling: bool,
    /// it has been busier than others only for a short time, so it gives no chunk away for load: see [`Patience`](super::Patience)
    pub waiting: bool,
}

/// The load of a chunk, in operations in 1,000 seconds; 0 if it was not measured.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Load {
    /// reads and writes
    pub total: u64,
    /// the loads of the two parts if the chunk is split at the median of its accesses; None if it cannot be split there
    pub halves: Option<(u64, u64)>,
}

/// A chunk, as last measured.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chunk {
    /// the owner
    pub shard: ShardId,
    /// its documents
    pub documents: u64,
    /// their bytes
    pub bytes: u64,
    /// the zone that contains the whole chunk; None if there is none
    pub zone: Option<ZoneId>,
    /// a zone starts or ends inside the chunk
    pub straddles: bool,
    /// it cannot be split by size, and moves only into its zone or off a draining shard
    pub jumbo: bool,
    /// it was moved lately, and moves only into its zone or off a draining shard
    pub pinned: bool,
    /// a move of it failed lately, so it stays on its shard for now
    pub resting: bool,
    /// its load
    pub load: Load,
}

/// A sharded collection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Collection {
    /// chunks with more bytes are split
    pub chunk_size: u64,
    /// false: only draining moves its chunks
    pub balance: bool,
    /// it is evened out by load, not by bytes
    pub by_load: bool,
    /// its chunks, in key order
    pub chunks: Vec<Chunk>,
    /// donor and recipient of moves that failed lately: for now no chunk moves from the one to the other
    pub resting: BTreeSet<(ShardId, ShardId)>,
}

/// The state of a cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cluster {
    /// all shards
    pub shards: Vec<Shard>,
    /// all sharded collections
    pub collections: Vec<Collection>,
}

/// Where to split a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cut {
    /// into this number of equal parts, at least 2
    Parts(usize),
    /// at every zone bound inside
    Zones,
    /// at the median of its accesses
    Load,
}

/// A chunk to be split.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Split {
    /// its collection, by position
    pub collection: usize,
    /// the chunk, by position
    pub chunk: usize,
    /// where
    pub cut: Cut,
}

/// Chunks to become one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Merge {
    /// their collection, by position
    pub collection: usize,
    /// the chunks, by position
    pub chunks: Range<usize>,
}

/// Why a chunk moves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// its shard is not in its zone
    Zone,
    /// its shard is being emptied
    Draining,
    /// its shard has more of the collection than another
    Evenness,
    /// its shard is busier than another
    Load,
}

impl Reason {
    /// The reason's name in logs.
    pub const fn name(self) -> &'static str {
        match self {
            Reason::Zone => "zone",
            Reason::Draining => "draining",
            Reason::Evenness => "balance",
            Reason::Load => "load",
        }
    }
}

/// A chunk to be moved, or several that move together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Move {
    /// its collection, by position
    pub collection: usize,
    /// the chunk, by position; or several tiny neighbours of one owner and one zone
    pub chunks: Range<usize>,
    /// the owner
    pub from: ShardId,
    /// the next owner
    pub to: ShardId,
    /// why
    pub reason: Reason,
}

/// What to do next.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// chunks to be split, before any move
    pub splits: Vec<Split>,
    /// moves; no two of them share a shard
    pub moves: Vec<Move>,
    /// chunks to be merged, if there is nothing to split or move
    pub merges: Vec<Merge>,
}

impl Plan {
    /// True if there is nothing to do.
    pub fn is_empty(&self) -> bool {
        self.splits.is_empty() && self.moves.is_empty() && self.merges.is_empty()
    }
}

pub(super) fn weight(chunk: &Chunk) -> u64 {
    chunk.bytes + CHUNK_WEIGHT
}

/// The number of shards that take data: those that are not draining.
pub(super) fn homes(cluster: &Cluster) -> u64 {
    cluster.shards.iter().filter(|shard| !shard.draining).count() as u64
}
