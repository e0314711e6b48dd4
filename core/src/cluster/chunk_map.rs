//! The chunk map of one collection: an immutable snapshot of the owners of its keys.
//!
//! INVARIANT: the chunks cover every key. The first starts at the pattern's lowest bound, each ends where the next starts, and the
//! last has no upper end. The constructors refuse a map that breaks this.

use crate::budget;
use crate::error::{Error, Kind, Result, error};
use crate::values::key::{KeyRange, KeyRanges};
use std::cmp::Ordering;

/// A shard, by its number in the catalog.
pub type ShardId = i32;

/// A chunk as read from the catalog.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chunk {
    /// the lower bound, inclusive
    pub min: Vec<u8>,
    /// the upper bound, exclusive; for the last chunk the pattern's highest bound, inclusive
    pub max: Vec<u8>,
    /// the owner
    pub shard: ShardId,
}

/// A target of a statement: a shard, and the ranges that touch its chunks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// the shard
    pub shard: ShardId,
    /// the statement's ranges that touch a chunk of the shard; not clipped to the chunk, as a shard's table holds only what it owns
    pub ranges: KeyRanges,
    /// the number of the shard's chunks that the ranges touch
    pub chunks: usize,
}

/// The snapshot. Its form is compact, as a session keeps a map of every collection that it uses and copies it with every change:
/// bounds are stored once, one after the other.
#[derive(Debug)]
pub struct ChunkMap {
    /// the chunks' lower bounds in key order, then the upper bound of the last chunk, without separators
    bounds: Vec<u8>,
    /// where each bound ends in `bounds`; one more than there are chunks
    ends: Vec<u32>,
    /// for each chunk the position of its owner in `owners`
    owner_of: Vec<u32>,
    /// every shard that owns chunks, in order, and the number of its chunks
    owners: Vec<(ShardId, usize)>,
}

impl ChunkMap {
    /// Makes a map of chunks sorted by `min`.
    ///
    /// # Errors
    /// `InternalError` if there is a gap, an overlap, an empty chunk, or no chunk; or if the bounds take more than 4 GiB.
    pub fn new(chunks: impl IntoIterator<Item = Chunk>) -> Result<Self> {
        let mut builder = Builder::default();
        for Chunk { min, max, shard } in chunks {
            builder.push(&min, &max, shard)?;
        }
        builder.finish()
    }

    /// The map after a change: each of these chunks, sorted by `min`, replaces the chunks within its bounds.
    ///
    /// # Errors
    /// Those of [`ChunkMap::new`], for chunks that leave a gap or overlap others.
    pub fn with_changes(&self, changed: &[Chunk]) -> Result<Self> {
        let mut builder = Builder::default();
        // The first chunk that is neither kept nor replaced yet.
        let mut next = 0;
        for chunk in changed {
            // If this change replaces only a part of a chunk, other changes must replace the rest, or there is a gap.
            let start = self.position(&chunk.min);
            let end = self.count_while(|min| min < chunk.max.as_slice());
            builder.keep(self, next, start)?;
            builder.push(&chunk.min, &chunk.max, chunk.shard)?;
            next = next.max(start + 1).max(end);
        }
        builder.keep(self, next, self.len())?;
        builder.finish()
    }

    /// Returns the map in which `shard` owns all chunks between `min` and `max`. None if `min` or `max` is not a chunk's bound, or
    /// if these chunks have different owners now.
    pub fn with_owner(&self, min: &[u8], max: &[u8], shard: ShardId) -> Option<Self> {
        let start = self.position(min);
        // The only chunk of an unsharded collection ends where it begins.
        let end = self.count_while(|other| other < max).max(start + 1);
        if self.bound(start) != min || self.bound(end) != max {
            return None;
        }
        let owner = self.owner_at(start);
        if (start..end).any(|at| self.owner_at(at) != owner) {
            return None;
        }
        let moved: Vec<Chunk> = (start..end).map(|at| Chunk { shard, ..self.chunk(at) }).collect();
        self.with_changes(&moved).ok()
    }

    /// The number of chunks, at least one.
    #[allow(clippy::len_without_is_empty, reason = "it never is")]
    pub fn len(&self) -> usize {
        self.owner_of.len()
    }

    /// All chunks in key order.
    pub fn chunks(&self) -> impl Iterator<Item = Chunk> {
        (0..self.len()).map(|at| self.chunk(at))
    }

    /// The chunk that holds a key.
    pub fn find(&self, key: &[u8]) -> Chunk {
        self.chunk(self.position(key))
    }

    /// The lower bound of the first chunk: no key is less.
    pub fn lowest(&self) -> &[u8] {
        self.bound(0)
    }

    /// The owner of a key.
    pub fn owner(&self, key: &[u8]) -> ShardId {
        self.owner_at(self.position(key))
    }

    fn chunk(&self, at: usize) -> Chunk {
        Chunk { min: self.bound(at).to_vec(), max: self.bound(at + 1).to_vec(), shard: self.owner_at(at) }
    }

    fn owner_at(&self, at: usize) -> ShardId {
        self.owners[self.owner_of[at] as usize].0
    }

    /// The lower bound of the chunk at a position; at the position after the last chunk, the map's upper bound.
    fn bound(&self, at: usize) -> &[u8] {
        let start = if at == 0 { 0 } else { self.ends[at - 1] as usize };
        &self.bounds[start..self.ends[at] as usize]
    }

    /// The bounds between chunks of different owners.
    pub fn cuts(&self) -> impl Iterator<Item = &[u8]> {
        (1..self.len())
            .inspect(|_| budget::step())
            .filter(|at| self.owner_of[at - 1] != self.owner_of[*at])
            .map(|at| self.bound(at))
    }

    /// The number of chunks whose lower bounds satisfy the predicate; as for `slice::partition_point`, these come first.
    fn count_while(&self, holds: impl Fn(&[u8]) -> bool) -> usize {
        let (mut low, mut high) = (0, self.len());
        while low < high {
            let middle = low.midpoint(high);
            if holds(self.bound(middle)) {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        low
    }

    /// The position of the chunk that holds a key; for a key below every chunk, that of the first.
    fn position(&self, key: &[u8]) -> usize {
        self.count_while(|min| min <= key).saturating_sub(1)
    }

    /// The positions of the chunks that a range touches, from start up to but not including end.
    fn span(&self, range: &KeyRange) -> (usize, usize) {
        let start = self.position(&range.lo);
        let end = match &range.hi {
            _ if range.is_empty() => start,
            None => self.len(),
            Some(hi) => self.count_while(|min| min < hi.as_slice()),
        };
        (start, end.max(start))
    }

    /// The shards that the ranges touch, ordered by shard number; no shard twice.
    pub fn targets(&self, ranges: &KeyRanges) -> Vec<Target> {
        if ranges.is_all() {
            let target = |&(shard, chunks): &(ShardId, usize)| Target { shard, ranges: ranges.clone(), chunks };
            return self.owners.iter().map(target).collect();
        }
        if let Some(key) = ranges.as_point()
            && let at = self.position(key)
            && self.bound(at) <= key
        {
            return vec![Target { shard: self.owner_at(at), ranges: ranges.clone(), chunks: 1 }];
        }
        let mut touched = vec![Touched::default(); self.owners.len()];
        let mut counted = 0;
        for (number, range) in ranges.as_slice().iter().enumerate() {
            let (start, end) = self.span(range);
            for chunk in start..end {
                budget::step();
                let owner = &mut touched[self.owner_of[chunk] as usize];
                // Ranges are in order, so only the last chunk of a range can be touched by the next one, too.
                owner.chunks += usize::from(chunk >= counted);
                if owner.last_range.replace(number) != Some(number) {
                    owner.ranges.push(range.clone());
                }
            }
            counted = counted.max(end);
        }
        let owners = self.owners.iter().zip(touched).filter(|(_, touched)| touched.chunks > 0);
        owners
            .map(|(&(shard, _), Touched { ranges, chunks, .. })| Target {
                shard,
                ranges: KeyRanges::new(ranges),
                chunks,
            })
            .collect()
    }

    /// A key in each chunk that the ranges touch; None if they touch more than `most` chunks.
    pub fn keys_in(&self, ranges: &KeyRanges, most: usize) -> Option<Vec<Vec<u8>>> {
        let (mut keys, mut counted) = (Vec::new(), 0);
        for range in ranges.as_slice() {
            let (start, end) = self.span(range);
            for chunk in start.max(counted)..end {
                if keys.len() == most {
                    return None;
                }
                keys.push(range.lo.as_slice().max(self.bound(chunk)).to_vec());
            }
            counted = counted.max(end);
        }
        Some(keys)
    }

    /// Every shard that owns a chunk, in order.
    pub fn shards(&self) -> Vec<ShardId> {
        self.owners.iter().map(|(shard, _)| *shard).collect()
    }
}

/// The ranges and chunks of one owner that a statement touches.
#[derive(Clone, Default)]
struct Touched {
    ranges: Vec<KeyRange>,
    /// the position of the last range in `ranges` among the statement's ranges
    last_range: Option<usize>,
    chunks: usize,
}

/// A map that is being built.
#[derive(Default)]
struct Builder {
    bounds: Vec<u8>,
    ends: Vec<u32>,
    shards: Vec<ShardId>,
    /// where the last chunk ends
    last: Vec<u8>,
}

impl Builder {
    /// Adds the next chunk.
    fn push(&mut self, min: &[u8], max: &[u8], shard: ShardId) -> Result<()> {
        let number = self.shards.len();
        if number > 0 {
            match self.last.as_slice().cmp(min) {
                Ordering::Less => return Err(flaw(&format!("a gap before chunk {number}"))),
                Ordering::Greater => return Err(flaw(&format!("an overlap before chunk {number}"))),
                Ordering::Equal if self.start_of_last() >= min => {
                    return Err(flaw(&format!("an empty chunk before chunk {number}")));
                }
                Ordering::Equal => {}
            }
        }
        self.add(min)?;
        self.shards.push(shard);
        self.last.clear();
        self.last.extend_from_slice(max);
        Ok(())
    }

    /// Adds the chunks of a map from one position up to another, if that is greater.
    fn keep(&mut self, map: &ChunkMap, from: usize, to: usize) -> Result<()> {
        if from >= to {
            return Ok(());
        }
        self.push(map.bound(from), map.bound(from + 1), map.owner_at(from))?;
        // The other chunks are consecutive in the map, so they are copied unchecked.
        let (start, end) = (map.ends[from], map.ends[to - 1]);
        let before = self.bounds_end()?;
        self.bounds.extend_from_slice(&map.bounds[start as usize..end as usize]);
        self.bounds_end()?;
        self.ends.extend(map.ends[from + 1..to].iter().map(|end| end - start + before));
        self.shards.extend((from + 1..to).map(|at| map.owner_at(at)));
        self.last.clear();
        self.last.extend_from_slice(map.bound(to));
        Ok(())
    }

    fn add(&mut self, bound: &[u8]) -> Result<()> {
        self.bounds.extend_from_slice(bound);
        self.ends.push(self.bounds_end()?);
        Ok(())
    }

    fn bounds_end(&self) -> Result<u32> {
        u32::try_from(self.bounds.len()).map_err(|_| flaw("more bounds than fit"))
    }

    /// The last chunk's lower bound.
    fn start_of_last(&self) -> &[u8] {
        let start = self.ends.len().checked_sub(2).map_or(0, |before| self.ends[before] as usize);
        &self.bounds[start..]
    }

    fn finish(mut self) -> Result<ChunkMap> {
        if self.shards.is_empty() {
            return Err(flaw("no chunk"));
        }
        // The last chunk may start at its own upper bound, which is inclusive.
        if self.start_of_last() > self.last.as_slice() {
            return Err(flaw("a last chunk that ends before it starts"));
        }
        let last = std::mem::take(&mut self.last);
        self.add(&last)?;
        let mut owners: Vec<(ShardId, usize)> = self.shards.iter().map(|shard| (*shard, 0)).collect();
        owners.sort_unstable();
        owners.dedup();
        let mut owner_of = Vec::with_capacity(self.shards.len());
        for shard in self.shards {
            let position = owners.partition_point(|(owner, _)| *owner < shard);
            if let Some((_, count)) = owners.get_mut(position) {
                *count += 1;
            }
            owner_of.push(u32::try_from(position).map_err(|_| flaw("more shards than fit"))?);
        }
        Ok(ChunkMap { bounds: self.bounds, ends: self.ends, owner_of, owners })
    }
}

fn flaw(what: &str) -> Error {
    error!(Kind::InternalError, "The chunk map has {what}")
}
