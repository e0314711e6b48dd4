//! The chunk map of one collection: an immutable snapshot of who owns which keys.
//!
//! INVARIANT: the chunks cover every key: the first starts at the pattern's lowest bound, each ends where the next
//! starts, the last has no upper end. A map that breaks it cannot be made.

use crate::error::{Error, Kind, Result};
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
    /// the wanted ranges that touch a chunk of the shard, uncut: a shard's table holds only what it owns
    pub ranges: KeyRanges,
    /// how many chunks of the shard are touched
    pub chunks: usize,
}

/// The snapshot.
#[derive(Debug)]
pub struct ChunkMap {
    /// at least one, in key order
    chunks: Vec<Chunk>,
    /// for each chunk the position of its owner in `owners`
    owner_of: Vec<usize>,
    /// every shard that owns a chunk, in order, and how many
    owners: Vec<(ShardId, usize)>,
}

impl ChunkMap {
    /// Makes a map of chunks sorted by `min`.
    ///
    /// # Errors
    /// `InternalError` if there is a gap, an overlap, an empty chunk, or no chunk.
    pub fn new(chunks: Vec<Chunk>) -> Result<Self> {
        if chunks.is_empty() {
            return Err(Error::new(Kind::InternalError, "The chunk map has no chunk"));
        }
        for (index, pair) in chunks.windows(2).enumerate() {
            if let [chunk, next] = pair {
                let flaw = match chunk.max.cmp(&next.min) {
                    std::cmp::Ordering::Less => "a gap between chunks",
                    std::cmp::Ordering::Greater => "an overlap of chunks",
                    std::cmp::Ordering::Equal if chunk.min >= chunk.max => "an empty chunk, number",
                    std::cmp::Ordering::Equal => continue,
                };
                let message = format!("The chunk map has {flaw} {index} and {}", index + 1);
                return Err(Error::new(Kind::InternalError, message));
            }
        }
        // The last chunk may well start at its own upper bound, which is inside.
        if chunks.last().is_some_and(|last| last.min > last.max) {
            return Err(Error::new(Kind::InternalError, "The chunk map's last chunk ends before it starts"));
        }

        let mut owners: Vec<(ShardId, usize)> = chunks.iter().map(|chunk| (chunk.shard, 0)).collect();
        owners.sort_unstable();
        owners.dedup();
        let mut owner_of = Vec::with_capacity(chunks.len());
        for chunk in &chunks {
            let position = owners.partition_point(|(shard, _)| *shard < chunk.shard);
            if let Some((_, count)) = owners.get_mut(position) {
                *count += 1;
            }
            owner_of.push(position);
        }
        Ok(Self { chunks, owner_of, owners })
    }

    /// The same chunks, one of which has another owner; None if there is no chunk with these bounds.
    pub fn with_owner(&self, min: &[u8], max: &[u8], shard: ShardId) -> Option<Self> {
        let mut chunks = self.chunks.clone();
        let chunk = chunks.get_mut(self.position(min)).filter(|chunk| chunk.min == min && chunk.max == max)?;
        chunk.shard = shard;
        Self::new(chunks).ok()
    }

    /// All chunks in key order.
    pub fn chunks(&self) -> &[Chunk] {
        &self.chunks
    }

    /// The chunk that holds a key.
    pub fn find(&self, key: &[u8]) -> &Chunk {
        &self.chunks[self.position(key)]
    }

    /// The position of the chunk that holds a key; below every chunk, that of the first.
    fn position(&self, key: &[u8]) -> usize {
        self.chunks.partition_point(|chunk| chunk.min.as_slice() <= key).saturating_sub(1)
    }

    /// The chunks that a range touches.
    pub fn overlapping(&self, range: &KeyRange) -> &[Chunk] {
        let (start, end) = self.span(range);
        &self.chunks[start..end]
    }

    /// Where the chunks that a range touches start and end; start is at most end, and end at most their number.
    fn span(&self, range: &KeyRange) -> (usize, usize) {
        let start = self.position(&range.lo);
        let end = match &range.hi {
            _ if range.is_empty() => start,
            None => self.chunks.len(),
            Some(hi) => self.chunks.partition_point(|chunk| chunk.min < *hi),
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
            && let chunk = self.find(key)
            && chunk.min.as_slice() <= key
        {
            return vec![Target { shard: chunk.shard, ranges: ranges.clone(), chunks: 1 }];
        }
        let spans: Vec<(usize, usize)> = ranges.as_slice().iter().map(|range| self.span(range)).collect();
        let touched: usize = spans.iter().map(|(start, end)| end - start).sum();
        let mut tally = Tally::new(touched, self.owners.len());
        let mut counted = 0;
        for (number, (range, &(start, end))) in ranges.as_slice().iter().zip(&spans).enumerate() {
            for (chunk, &owner) in self.owner_of.iter().enumerate().take(end).skip(start) {
                let entry = tally.of(owner);
                // Ranges come in order, so only the last chunk of one can be touched again by the next.
                if chunk >= counted {
                    entry.chunks += 1;
                }
                if entry.last_range != Some(number) {
                    entry.last_range = Some(number);
                    entry.ranges.push(range.clone());
                }
            }
            counted = counted.max(end);
        }
        let mut entries = tally.entries;
        entries.sort_unstable_by_key(|entry| entry.owner);
        entries
            .into_iter()
            .map(|entry| Target {
                shard: self.owners[entry.owner].0,
                ranges: KeyRanges::new(entry.ranges),
                chunks: entry.chunks,
            })
            .collect()
    }

    /// Every shard that owns a chunk, in order.
    pub fn shards(&self) -> Vec<ShardId> {
        self.owners.iter().map(|(shard, _)| *shard).collect()
    }
}

/// What is known of one touched owner.
struct Entry {
    owner: usize,
    ranges: Vec<KeyRange>,
    last_range: Option<usize>,
    chunks: usize,
}

/// The touched owners: few are searched for, many are looked up in a table.
struct Tally {
    entries: Vec<Entry>,
    table: Vec<usize>,
}

impl Tally {
    /// Up to this many touched chunks a table of all owners costs more than searching.
    const FEW: usize = 16;

    fn new(touched: usize, owners: usize) -> Self {
        let table = if touched > Self::FEW { vec![usize::MAX; owners] } else { Vec::new() };
        Self { entries: Vec::new(), table }
    }

    fn of(&mut self, owner: usize) -> &mut Entry {
        let known = match self.table.get(owner) {
            Some(&position) => (position != usize::MAX).then_some(position),
            None => self.entries.iter().position(|entry| entry.owner == owner),
        };
        let position = known.unwrap_or_else(|| {
            self.entries.push(Entry { owner, ranges: Vec::new(), last_range: None, chunks: 0 });
            let position = self.entries.len() - 1;
            if let Some(slot) = self.table.get_mut(owner) {
                *slot = position;
            }
            position
        });
        &mut self.entries[position]
    }
}
