//! The balancer's policy: from a cluster's state to the next splits, merges and moves. Pure; the worker around it
//! measures and executes.
//!
//! The unit is a chunk's weight: its bytes, plus a little for being a chunk, so that empty chunks spread too. The chunks
//! of a collection that lie in one zone, and those that lie in none, each form a *class*: they may live on the zone's
//! shards, or anywhere. Every class has a *target* on each shard ([`targets`]), so that the collection's weight is as
//! even as zones and sizes allow; without zones that is its weight divided by the shards that can hold it. Targets
//! depend on what there is, not on where it is: moves leave them as they are.
//!
//! Splits ([`split`]): a chunk that straddles the bounds of zones is cut there, also a jumbo one. A chunk above the split
//! size is cut into equal parts. The split size is the collection's chunk size, and smaller while the collection is
//! young, so that it spreads early.
//!
//! Moves ([`moves`]), one a shard at a time, so all moves of one plan are disjoint:
//!
//! 1. *Zones*: a chunk on a shard outside its zone goes to the zone's shard that lacks most, jumbo ones too.
//! 2. *Draining* shards give away any chunk, jumbo ones too, to the shard that lacks most. Neighbours that are tiny go along,
//!    here and into zones, as far as that shard lacks them.
//! 3. *Evenness*: a shard above the target gives to one below it while excess and lack together are more than a
//!    threshold: three times the chunk size, as in MongoDB, or an eighth of the target where that is less. The chunk that
//!    goes is the largest that overshoots on neither side, else the smallest that is at most half of both together.
//!
//! Merges ([`merge`]): neighbours on one shard, in one zone, that became tiny.
//!
//! INVARIANTS, held by property tests:
//! * No move to a draining shard, to a full one, out of the chunk's zone, or from a shard to itself; no shard takes part
//!   in two moves of a plan.
//! * A move of evenness never makes the recipient's excess larger than the donor's; so the sum of squares of the
//!   distances from the targets falls with each, and with sizes that stand still the plan runs dry: nothing goes to and
//!   fro.
//! * What is pinned (moved in this convergence already) moves again only into its zone or off a draining shard.
//! * What is merged is not split again.

mod merge;
mod moves;
mod split;
mod targets;
#[cfg(test)]
mod tests;
mod window;

pub use targets::{Compliance, Spread, compliance, spread};
pub use window::{Window, time_of_day};

use crate::cluster::chunk_map::ShardId;
use std::ops::Range;

/// What a chunk weighs beyond its bytes.
const CHUNK_WEIGHT: u64 = 1024;
/// Young collections are split as if each shard should get that many chunks.
const YOUNG_CHUNKS: u64 = 4;
/// The smallest split size, in bytes.
const MIN_SPLIT_SIZE: u64 = 1 << 20;
/// A chunk is split into at most that many parts at once.
const MAX_PARTS: u64 = 256;

/// A zone, by a number that the caller gives it.
pub type ZoneId = u32;

/// A shard.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shard {
    /// its number
    pub id: ShardId,
    /// it is being emptied: it gives, and takes nothing
    pub draining: bool,
    /// how many bytes it may hold
    pub max_bytes: Option<u64>,
    /// it cannot take part now: unreachable, its moves failed lately, or it takes part in one already
    pub unavailable: bool,
    /// its zones
    pub zones: Vec<ZoneId>,
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
    /// the zone in which all of it lies
    pub zone: Option<ZoneId>,
    /// a zone starts or ends inside
    pub straddles: bool,
    /// it cannot be split by size, and moves only into its zone or off a draining shard
    pub jumbo: bool,
    /// it was moved lately, and moves only into its zone or off a draining shard
    pub pinned: bool,
    /// a move of it was given up lately: it stays where it is for now
    pub resting: bool,
}

/// A sharded collection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Collection {
    /// chunks above this many bytes are split
    pub chunk_size: u64,
    /// false: only draining moves its chunks
    pub balance: bool,
    /// its chunks, in key order
    pub chunks: Vec<Chunk>,
}

/// The state of a cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cluster {
    /// all shards
    pub shards: Vec<Shard>,
    /// all sharded collections
    pub collections: Vec<Collection>,
}

/// Where a chunk is to be cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cut {
    /// into so many equal parts, at least 2
    Parts(usize),
    /// at every bound of a zone inside
    Zones,
}

/// A chunk to be cut.
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
}

impl Reason {
    /// A word for logs.
    pub const fn name(self) -> &'static str {
        match self {
            Reason::Zone => "zone",
            Reason::Draining => "draining",
            Reason::Evenness => "balance",
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
    /// chunks to be cut, before anything is moved
    pub splits: Vec<Split>,
    /// moves that do not meet at any shard
    pub moves: Vec<Move>,
    /// chunks to be merged, when nothing is to be cut or moved
    pub merges: Vec<Merge>,
}

impl Plan {
    /// True if there is nothing to do.
    pub fn is_empty(&self) -> bool {
        self.splits.is_empty() && self.moves.is_empty() && self.merges.is_empty()
    }
}

/// The next steps. As long as there are splits, nothing is moved; as long as there is one of both, nothing is merged.
pub fn plan(cluster: &Cluster) -> Plan {
    let splits = split::splits(cluster);
    let moves = if splits.is_empty() { moves::moves(cluster) } else { Vec::new() };
    let merges = if splits.is_empty() && moves.is_empty() { merge::merges(cluster) } else { Vec::new() };
    Plan { splits, moves, merges }
}

fn weight(chunk: &Chunk) -> u64 {
    chunk.bytes + CHUNK_WEIGHT
}

/// Shards that take data.
fn homes(cluster: &Cluster) -> u64 {
    cluster.shards.iter().filter(|shard| !shard.draining).count() as u64
}
