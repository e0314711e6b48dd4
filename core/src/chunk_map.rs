//! The chunk map of one collection: an immutable snapshot of who owns which keys.
//!
//! INVARIANT: the chunks cover every key: the first starts at the pattern's lowest bound, each ends where the next
//! starts, the last has no upper end. A map that breaks it cannot be made.

use crate::error::Result;
use crate::key::{KeyRange, KeyRanges};

/// A shard, by its number in the catalog.
pub type ShardId = i32;

/// A chunk as read from the catalog.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chunk {
    /// the least key inside
    pub min: Vec<u8>,
    /// the least key above; for the last chunk the pattern's highest bound, which is inside too
    pub max: Vec<u8>,
    /// the owner
    pub shard: ShardId,
}

/// A target of a statement: a shard, and the parts of the wanted ranges that it owns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// the shard
    pub shard: ShardId,
    /// the wanted ranges, cut to the chunks of this shard only where that is needed to tell them apart: a shard's
    /// table holds only what it owns, so the uncut ranges are right too
    pub ranges: KeyRanges,
    /// how many chunks of the shard are touched
    pub chunks: usize,
}

/// The snapshot.
#[derive(Debug)]
pub struct ChunkMap {
    chunks: Vec<Chunk>,
}

impl ChunkMap {
    /// Makes a map of chunks sorted by `min`.
    ///
    /// # Errors
    /// `InternalError` if there is a gap, an overlap, or no chunk.
    pub fn new(_chunks: Vec<Chunk>) -> Result<Self> {
        todo!()
    }
    /// All chunks in key order.
    pub fn chunks(&self) -> &[Chunk] {
        &self.chunks
    }
    /// The chunk that holds a key.
    pub fn find(&self, _key: &[u8]) -> &Chunk {
        todo!()
    }
    /// The chunks that a range touches.
    pub fn overlapping(&self, _range: &KeyRange) -> &[Chunk] {
        todo!()
    }
    /// The shards that the ranges touch, ordered by shard number; no shard twice.
    pub fn targets(&self, _ranges: &KeyRanges) -> Vec<Target> {
        todo!()
    }
    /// Every shard that owns a chunk, in order.
    pub fn shards(&self) -> Vec<ShardId> {
        todo!()
    }
}
