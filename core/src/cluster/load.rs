//! The load of chunks: the accesses that shards have sampled, assigned to the chunks of a collection.
//!
//! Rates are in operations in 1,000 seconds. A sampled key may be cut off. If it is the lower bound of a range that a statement reads, its
//! last fields may be missing.

use crate::values::key::KeyPattern;
use std::borrow::Cow;

/// The longest key that a shard samples, in bytes. Of a longer key it samples these first bytes.
pub const MAX_SAMPLED_KEY: usize = 104;
/// Chunks with fewer samples are not divided: the median of their accesses is not known well enough.
const LEAST_SAMPLES: u64 = 30;
/// A chunk is not split if a part would have less than one in this number of its accesses.
const LEAST_PART: u64 = 16;

/// The sampled accesses to one key.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Access {
    /// an encoded shard key, or the beginning of one
    pub key: Vec<u8>,
    /// reads in 1,000 seconds
    pub reads: u64,
    /// writes in 1,000 seconds
    pub writes: u64,
    /// the number of samples from which reads and writes are estimated
    pub samples: u64,
}

impl Access {
    /// The accesses to a sampled key of a collection with this shard key.
    pub fn new(pattern: &KeyPattern, key: &[u8], reads: u64, writes: u64, samples: u64) -> Self {
        // A key that was cut off is kept as it is: it is closer to the whole key than `bound_of`, which drops the field that was cut.
        let key = if key.len() < MAX_SAMPLED_KEY { pattern.bound_of(key) } else { Cow::Borrowed(key) };
        Self { key: key.into_owned(), reads, writes, samples }
    }

    fn rate(&self) -> u64 {
        self.reads.saturating_add(self.writes)
    }
}

/// Whether a chunk's accesses can be divided.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Division {
    /// there are too few samples
    #[default]
    Unknown,
    /// a bound inside of the chunk divides them into two parts, with these rates
    At(Vec<u8>, u64, u64),
    /// they cannot: one key has this percentage of them
    OneKey(u8),
}

/// The load of a chunk.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ChunkLoad {
    /// reads in 1,000 seconds
    pub reads: u64,
    /// writes in 1,000 seconds
    pub writes: u64,
    /// how its accesses can be divided
    pub division: Division,
}

impl ChunkLoad {
    /// Computes the load of a chunk that begins at `min`. `accesses` are those to its keys, in the order of the keys.
    pub fn of(pattern: &KeyPattern, min: &[u8], accesses: &[Access]) -> Self {
        let sum = |of: fn(&Access) -> u64| accesses.iter().map(of).fold(0, u64::saturating_add);
        let (reads, writes) = (sum(|access| access.reads), sum(|access| access.writes));
        let enough = sum(|access| access.samples) >= LEAST_SAMPLES && !pattern.is_unsharded();
        let division = if enough { divide(pattern, min, accesses) } else { Division::Unknown };
        Self { reads, writes, division }
    }

    /// Reads and writes.
    pub fn total(&self) -> u64 {
        self.reads.saturating_add(self.writes)
    }
}

/// Assigns accesses to chunks. `mins` are the lower bounds of all chunks, in order. Returns the position of each chunk that has accesses,
/// with these accesses in the order of their keys.
pub fn by_chunk<'a>(mins: &[&[u8]], accesses: &'a mut [Access]) -> Vec<(usize, &'a [Access])> {
    accesses.sort_unstable_by(|one, other| one.key.cmp(&other.key));
    let accesses: &'a [Access] = accesses;
    let chunk_of = |access: &Access| mins.partition_point(|min| *min <= access.key.as_slice()).saturating_sub(1);
    let runs = accesses.chunk_by(|one, other| chunk_of(one) == chunk_of(other));
    runs.map(|run| (chunk_of(&run[0]), run)).collect()
}

/// Divides a chunk's accesses at the bound that makes the two parts most alike: the key with the median access, or the next one.
fn divide(pattern: &KeyPattern, min: &[u8], accesses: &[Access]) -> Division {
    // The possible bounds in order, each with the rate of its accesses. Accesses whose bound is not above `min` count at `min`.
    let mut at: Vec<(Cow<'_, [u8]>, u64)> = Vec::new();
    for access in accesses {
        let bound = Some(pattern.bound_of(&access.key)).filter(|bound| **bound > *min).unwrap_or(Cow::Borrowed(min));
        match at.last_mut() {
            // The bound of a key that was cut off may be less than the one before.
            Some((last, rate)) if *last >= bound => *rate += access.rate(),
            _ => at.push((bound, access.rate())),
        }
    }
    let total: u64 = at.iter().map(|(_, rate)| rate).sum();
    let mut below = 0;
    let mut best: Option<(u64, usize, u64)> = None;
    for (position, (bound, rate)) in at.iter().enumerate() {
        let above = total - below;
        if **bound > *min && best.is_none_or(|(least, ..)| below.abs_diff(above) < least) {
            best = Some((below.abs_diff(above), position, below));
        }
        below += rate;
    }
    match best {
        Some((_, position, below)) if below.min(total - below) >= total / LEAST_PART => {
            Division::At(at[position].0.to_vec(), below, total - below)
        }
        _ => {
            let most = at.iter().map(|(_, rate)| *rate).max().unwrap_or(0);
            Division::OneKey(u8::try_from(most * 100 / total.max(1)).unwrap_or(100))
        }
    }
}
