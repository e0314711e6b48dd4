//! The balancer's policy: from a cluster's state to the next splits and moves. Pure; the worker around it measures and
//! executes.
//!
//! The unit is a chunk's weight: its bytes, plus a little for being a chunk, so that empty chunks spread too. A
//! collection's ideal is its weight divided by the shards that can hold it.
//!
//! Splits ([`split`]): a chunk above the split size is cut into equal parts. The split size is the collection's chunk
//! size, and smaller while the collection is young, so that it spreads early. A jumbo chunk is never split.
//!
//! Moves ([`moves`]), one a shard at a time, so all moves of one plan are disjoint:
//!
//! 1. *Draining* shards give away any chunk, jumbo ones too, to the shard that holds least of the collection.
//! 2. *Evenness*: a shard above the ideal gives to one below it while they differ by more than a threshold: three times
//!    the chunk size, as in MongoDB, or an eighth of the ideal where that is less. The chunk that goes is the largest
//!    that leaves the donor above the ideal and the recipient below it, else the smallest that is at most half of the
//!    difference.
//!
//! INVARIANTS, held by property tests:
//! * No move to a draining shard, to a full one, or from a shard to itself; no shard takes part in two moves of a plan.
//! * A move of evenness never makes the recipient heavier than the donor; so the sum of squares of the weights falls
//!   with each, and with sizes that stand still the plan runs dry: nothing goes to and fro.
//! * What is pinned (moved in this convergence already) moves again only off a draining shard.

mod moves;
mod split;
#[cfg(test)]
mod tests;

use crate::chunk_map::ShardId;

/// What a chunk weighs beyond its bytes.
const CHUNK_WEIGHT: u64 = 1024;
/// Young collections are split as if each shard should get that many chunks.
const YOUNG_CHUNKS: u64 = 4;
/// The smallest split size, in bytes.
const MIN_SPLIT_SIZE: u64 = 1 << 20;
/// A chunk is split into at most that many parts at once.
const MAX_PARTS: u64 = 256;

/// A shard.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shard {
    /// its number
    pub id: ShardId,
    /// it is being emptied: it gives, and takes nothing
    pub draining: bool,
    /// how many bytes it may hold
    pub max_bytes: Option<u64>,
    /// it cannot take part now: unreachable, or its moves failed lately
    pub unavailable: bool,
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
    /// it cannot be split, and moves only off a draining shard
    pub jumbo: bool,
    /// it was moved lately, and moves only off a draining shard
    pub pinned: bool,
}

/// A sharded collection; chunks in any order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Collection {
    /// chunks above this many bytes are split
    pub chunk_size: u64,
    /// false: only draining moves its chunks
    pub balance: bool,
    /// its chunks
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

/// A chunk to be cut.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Split {
    /// its collection, by position
    pub collection: usize,
    /// the chunk, by position
    pub chunk: usize,
    /// into how many parts, at least 2
    pub into: usize,
}

/// Why a chunk moves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// its shard is being emptied
    Draining,
    /// its shard has more of the collection than another
    Evenness,
}

impl Reason {
    /// A word for logs.
    pub const fn name(self) -> &'static str {
        match self {
            Reason::Draining => "draining",
            Reason::Evenness => "balance",
        }
    }
}

/// A chunk to be moved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Move {
    /// its collection, by position
    pub collection: usize,
    /// the chunk, by position
    pub chunk: usize,
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
}

impl Plan {
    /// True if there is nothing to do.
    pub fn is_empty(&self) -> bool {
        self.splits.is_empty() && self.moves.is_empty()
    }
}

/// The next steps. As long as there are splits, nothing is moved.
pub fn plan(cluster: &Cluster) -> Plan {
    let splits = split::splits(cluster);
    let moves = if splits.is_empty() { moves::moves(cluster) } else { Vec::new() };
    Plan { splits, moves }
}

fn weight(chunk: &Chunk) -> u64 {
    chunk.bytes + CHUNK_WEIGHT
}
