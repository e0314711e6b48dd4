//! What documents, inserts and statements would do under a key.
//!
//! Chunks are made of the older documents of the sample; the newest ones are then inserted. This shows the effect of ascending
//! keys: each new document goes to the last chunk, however many chunks the older documents have.

use super::characteristics::{Counted, Trend, sorted};
use super::layout::{Cluster, Layout};
use super::sample::Sample;
use super::statement::{Reach, Statement};
use crate::budget;
use crate::error::Result;
use crate::values::key::KeyPattern;
use crate::values::key::encode::split_first;

/// The newest documents of a sample count as inserts: one in this number.
const NEWEST: usize = 50;
/// The smallest and the largest number of inserts. At most half of the sample counts as inserts, also if that is less.
const INSERTS: (usize, usize) = (20, 1000);
/// The bytes that entries fill in a page of an index: the rest is left free.
const PAGE_BYTES: f64 = 8192.0 * 0.9;
/// What an entry of an index has beside its key, in bytes.
const ENTRY_BYTES: f64 = 24.0;
/// The number of inserts for which the changed pages of an index are counted.
const COUNTED_INSERTS: f64 = 1000.0;

/// How sampled statements would run.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Replay {
    /// the number of statements
    pub statements: usize,
    /// those that need one value of the key
    pub targeted: usize,
    /// those that need several values or ranges
    pub ranges: usize,
    /// those that need all documents
    pub scattered: usize,
    /// the mean number of shards that a statement goes to
    pub shards_touched: f64,
    /// the share of all statements that are targeted at one chunk, namely the one with the most of them, from 0 to 1
    pub hottest_chunk: f64,
    /// the number of updates
    pub updates: usize,
    /// those that could change the shard key
    pub key_updates: usize,
    /// writes of one document whose filter does not determine one value of the shard key
    pub single_without_key: usize,
    /// writes of many documents whose filter does not determine one value of the shard key
    pub many_without_key: usize,
}

impl Replay {
    /// Runs statements over a layout.
    pub fn of<'a>(statements: impl Iterator<Item = &'a Statement>, pattern: &KeyPattern, layout: &Layout) -> Self {
        let mut found = Self::default();
        let (mut touched, mut of_chunk) = (0, vec![0_usize; layout.len()]);
        for statement in statements {
            budget::step();
            found.statements += 1;
            let keys = statement.keys(pattern);
            let reach = Reach::of(&keys);
            match reach {
                Reach::Targeted => found.targeted += 1,
                Reach::Ranges => found.ranges += 1,
                Reach::Scatter => found.scattered += 1,
            }
            touched += layout.touched(&keys).0;
            if let Some(key) = keys.as_point() {
                of_chunk[layout.place(key).0] += 1;
            }
            if statement.kind.writes() {
                let lacks_key = usize::from(reach != Reach::Targeted);
                found.updates += usize::from(statement.updates());
                found.key_updates += usize::from(statement.may_change_key(pattern));
                match statement.many {
                    true => found.many_without_key += lacks_key,
                    false => found.single_without_key += lacks_key,
                }
            }
        }
        let number = found.statements.max(1) as f64;
        found.shards_touched = touched as f64 / number;
        found.hottest_chunk = of_chunk.into_iter().max().unwrap_or(0) as f64 / number;
        found
    }
}

/// The result of a simulation: how documents, indexes and statements would be distributed under a key.
#[derive(Clone, Debug)]
pub struct Simulation {
    /// the number of shards
    pub shards: usize,
    /// the values of the key
    pub values: Counted,
    /// whether they ascend
    pub trend: Trend,
    /// the number of chunks of the whole collection, as far as the key has values to divide it at
    pub chunks: usize,
    /// the number of documents on each shard, of the whole collection
    pub documents: Vec<u64>,
    /// the number of new documents
    pub inserts: usize,
    /// the share of new documents that go to the shard that gets most of them, from 0 to 1
    pub hottest_insert_share: f64,
    /// the values of the key's first field, and whether they ascend
    pub first: (Counted, Trend),
    /// the part of the key's index that new documents go to, from 0 to 1
    pub index_share: f64,
    /// the number of pages of the key's index that 1,000 inserts change
    pub index_pages: f64,
    /// the number of pages of that index on all shards
    pub all_index_pages: f64,
    /// the statements
    pub replay: Replay,
}

impl Simulation {
    /// Simulates a key on a sample, which must not be empty.
    ///
    /// # Errors
    /// `ShardKeyNotFound` for a document that cannot have the key.
    pub fn of(sample: &Sample, statements: &[Statement], pattern: &KeyPattern, cluster: Cluster) -> Result<Self> {
        let keys = sample.keys(pattern)?;
        let inserts = (keys.len() / NEWEST).clamp(INSERTS.0, INSERTS.1).min(keys.len() / 2);
        let (older, newest) = keys.split_at(keys.len() - inserts);
        let layout = Layout::of(pattern, older, sample.bytes, cluster)?;
        let mut of_shard = vec![0_usize; cluster.shards];
        newest.iter().for_each(|key| of_shard[layout.place(key).1] += 1);
        let hottest = of_shard.into_iter().max().unwrap_or(0);
        let mut documents = vec![0_u64; cluster.shards];
        keys.iter().for_each(|key| documents[layout.place(key).1] += 1);
        let scale = sample.total as f64 / keys.len().max(1) as f64;
        let (index_pages, all_index_pages, index_share) = pages(older, newest, sample.total as f64);
        let first = |key: &Vec<u8>| split_first(key).map_or_else(|| key.clone(), |(value, _)| value.to_vec());
        let firsts: Vec<Vec<u8>> = keys.iter().map(first).collect();
        Ok(Self {
            shards: cluster.shards,
            values: Counted::of(&keys),
            trend: Trend::of(pattern, &keys).0,
            chunks: layout.len(),
            documents: documents.into_iter().map(|count| (count as f64 * scale).round() as u64).collect(),
            inserts,
            hottest_insert_share: hottest as f64 / inserts.max(1) as f64,
            first: (Counted::of(&firsts), Trend::of(pattern, &firsts).0),
            index_share,
            index_pages,
            all_index_pages,
            replay: Replay::of(statements.iter(), pattern, &layout),
        })
    }

    /// How many more documents the fullest shard has than an even share, from 0 (none) to 1 (all).
    pub fn imbalance(&self) -> f64 {
        let total: u64 = self.documents.iter().sum();
        let most = self.documents.iter().max().copied().unwrap_or(0);
        excess(most as f64 / total.max(1) as f64, 1.0 / self.shards as f64)
    }

    /// Like [`imbalance`](Self::imbalance), for new documents.
    pub fn insert_imbalance(&self) -> f64 {
        // Up to two standard deviations are explained by chance, as the number of inserts is small.
        let even = 1.0 / self.shards as f64;
        let noise = 2.0 * (even * (1.0 - even) / self.inserts.max(1) as f64).sqrt();
        excess(self.hottest_insert_share, even + noise)
    }

    /// True if the first of several fields ascends in steps of many documents.
    pub fn is_coarse_ascending(&self) -> bool {
        let (first, trend) = &self.first;
        *trend == Trend::Monotonic && first.is_coarse() && self.values.distinct > first.distinct
    }

    /// True if new documents go to more than half of the index, and the values of the key's first field do not ascend and mostly
    /// differ.
    pub fn is_random(&self) -> bool {
        let (first, trend) = &self.first;
        *trend != Trend::Monotonic && first.distinct * 2 > first.documents && self.index_share > 0.5
    }

    /// How many more shards than one a statement goes to, from 0 (one) to 1 (all).
    pub fn scatter(&self) -> f64 {
        match self.shards {
            1 => 0.0,
            shards => ((self.replay.shards_touched - 1.0) / (shards - 1) as f64).clamp(0.0, 1.0),
        }
    }

    /// The share of updates that could change the key, from 0 to 1.
    pub fn key_update_share(&self) -> f64 {
        self.replay.key_updates as f64 / self.replay.updates.max(1) as f64
    }
}

/// How far a share is above an even one, from 0 (not) to 1 (everything).
fn excess(share: f64, even: f64) -> f64 {
    if even >= 1.0 { 0.0 } else { ((share - even) / (1.0 - even)).clamp(0.0, 1.0) }
}

/// Estimates an index on the key in a collection of `total` documents: the number of pages that 1,000 inserts change, the number of all
/// pages, and the part of the index where new documents go.
///
/// Inserts above all older keys fill one page after the other. Others are taken to be spread evenly over a part of the index, whose length is
/// that of the middle nine tenths of them, divided by 0.9.
fn pages(older: &[Vec<u8>], newest: &[Vec<u8>], total: f64) -> (f64, f64, f64) {
    let bytes: usize = older.iter().map(Vec::len).sum();
    let entry = bytes as f64 / older.len().max(1) as f64 + ENTRY_BYTES;
    let entries = (PAGE_BYTES / entry).max(1.0);
    let all = (total / entries).ceil().max(1.0);
    let sorted = sorted(older);
    let place = |key: &Vec<u8>| sorted.partition_point(|other| *other <= key.as_slice());
    let mut places: Vec<usize> = newest.iter().map(place).collect();
    places.retain(|place| *place < sorted.len());
    places.sort_unstable();
    let within = places.len() as f64 / newest.len().max(1) as f64;
    let at_end = (1.0 - within) * COUNTED_INSERTS;
    let mut changed = if at_end > 0.0 { (at_end / entries).ceil() } else { 0.0 };
    let mut share = 0.0;
    if !places.is_empty() {
        let cut = places.len() / 20;
        let span = places[places.len() - 1 - cut] - places[cut];
        share = (span as f64 / sorted.len().max(1) as f64 / 0.9).min(1.0);
        let touchable = (share * all).max(1.0);
        changed += touchable * (1.0 - (1.0 - 1.0 / touchable).powf(within * COUNTED_INSERTS));
    }
    (changed.min(all.max(COUNTED_INSERTS / entries)), all, share)
}
