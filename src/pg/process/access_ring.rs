//! A sample of the latest accesses to keys, of all processes of the server, in shared memory of fixed size.
//!
//! Each process counts down to its next sample, so an access that is not sampled costs a decrement. Gaps between samples are random. All
//! processes share their mean, which follows the smoothed rate of all accesses: the samples of [`WINDOW_S`] fill half of the ring, and a
//! short burst hardly changes the mean. At low rates it is one, and every access is sampled. A sample stands for as many accesses as the
//! mean gap was. So rates that are computed from samples are estimates without bias, and their error falls with the number of samples.
//!
//! Without `shared_preload_libraries` nothing is sampled. A restart loses all.

use super::{is_preloaded, my_database};
use pgrx::prelude::*;
use pgrx::{PGRXSharedMemory, PgLwLock, pg_sys};
use std::cell::Cell;
use std::collections::HashMap;
use std::time::{SystemTime, UNIX_EPOCH};

/// The number of samples that the ring holds.
const ENTRIES: usize = 8192;
/// The longest key that a sample has, in bytes; longer keys are cut off.
pub const KEY_BYTES: usize = 104;
/// The gap is chosen so that half of the ring holds the samples of this many seconds. At [`HALF_LIFE_S`], these samples contribute 97 % of
/// a rate.
const WINDOW_S: f64 = 300.0;
/// The largest mean gap.
const MAX_GAP: u32 = 1 << 16;
/// The time in which an access loses half of its weight in a rate, in seconds.
pub const HALF_LIFE_S: f64 = 60.0;

/// The kind of an access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AccessKind {
    Read,
    Write,
}

#[derive(Clone, Copy)]
struct Entry {
    /// when it was taken, in microseconds since 1970; 0: the entry is empty
    at: i64,
    database: u32,
    /// the caller's number for a set of keys: a collection
    group: i32,
    /// the number of accesses that it stands for
    weight: u32,
    is_write: bool,
    /// the length of the key; [`NO_KEY`]: the access is to no particular key
    length: u8,
    key: [u8; KEY_BYTES],
}

const NO_KEY: u8 = u8::MAX;

struct Ring {
    /// the mean number of accesses from one sample to the next one
    gap: u32,
    /// the sum of the weights of all samples at `recent_at`; a weight halves in [`HALF_LIFE_S`]
    recent: f64,
    /// when the last sample was taken
    recent_at: i64,
    /// the position of the next sample
    next: usize,
    entries: [Entry; ENTRIES],
}

impl Default for Ring {
    fn default() -> Self {
        let none =
            Entry { at: 0, database: 0, group: 0, weight: 0, is_write: false, length: NO_KEY, key: [0; KEY_BYTES] };
        Self { gap: 1, recent: 0.0, recent_at: 0, next: 0, entries: [none; ENTRIES] }
    }
}

// SAFETY: numbers and bytes, valid in every process.
unsafe impl PGRXSharedMemory for Ring {}

// SAFETY: no other shared memory has this name.
static RING: PgLwLock<Ring> = unsafe { PgLwLock::new(c"docshard accesses") };

thread_local! {
    /// The number of accesses until the next sample, including the access that is sampled.
    static LEFT: Cell<u32> = const { Cell::new(1) };
    /// The mean gap when the next sample was drawn, which is that sample's weight; 0: none is drawn yet.
    static WEIGHT: Cell<u32> = const { Cell::new(0) };
    static RANDOM: Cell<u64> = const { Cell::new(0) };
}

/// Called in the postmaster while it preloads.
pub fn define() {
    pgrx::pg_shmem_init!(RING);
}

impl Ring {
    fn push(&mut self, entry: Entry) {
        self.entries[self.next] = entry;
        self.next = (self.next + 1) % ENTRIES;
        self.recent = self.recent * decay(entry.at - self.recent_at) + f64::from(entry.weight);
        self.recent_at = entry.at;
        let in_window = self.recent * std::f64::consts::LN_2 / HALF_LIFE_S * WINDOW_S;
        self.gap = (in_window / (ENTRIES / 2) as f64).ceil().clamp(1.0, f64::from(MAX_GAP)) as u32;
    }

    /// Returns at most `most` samples of a database. If there are more, every n-th is returned and stands for n.
    fn of(&self, database: u32, most: usize) -> Vec<Entry> {
        let of_it = || self.entries.iter().filter(|entry| entry.at > 0 && entry.database == database);
        let each = of_it().count().div_ceil(most.max(1)).max(1);
        let of_each = |entry: &Entry| Entry { weight: entry.weight.saturating_mul(each as u32), ..*entry };
        of_it().step_by(each).map(of_each).collect()
    }
}

/// Returns the fraction of its weight that an access retains after `age` microseconds.
fn decay(age: i64) -> f64 {
    (-(age.max(0) as f64 / 1e6) / HALF_LIFE_S).exp2()
}

/// Returns a random number of accesses up to the next sample, with the mean `gap`. Each access is sampled with the same probability.
fn draw(gap: u32) -> u32 {
    if gap <= 1 {
        return 1;
    }
    // xorshift64*
    let mut state = RANDOM.get();
    state ^= state >> 12;
    state ^= state << 25;
    state ^= state >> 27;
    RANDOM.set(state);
    let uniform = ((state.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 11) as f64 + 1.0) / (1_u64 << 53) as f64;
    let drawn = uniform.ln() / (1.0 - 1.0 / f64::from(gap)).ln();
    (drawn as u32).saturating_add(1)
}

fn now_us() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_micros());
    i64::try_from(since).unwrap_or(i64::MAX)
}

/// Notes an access to a key of a group. `key` is None for an access to no particular key.
#[inline]
pub fn note(group: i32, kind: AccessKind, key: Option<&[u8]>) {
    let left = LEFT.get() - 1;
    LEFT.set(left);
    if left == 0 {
        sample(group, kind, key);
    }
}

#[cold]
fn sample(group: i32, kind: AccessKind, key: Option<&[u8]>) {
    // SAFETY: reads a variable of this process. Parallel workers do not sample: the leader notes the statement's accesses.
    if !is_preloaded() || unsafe { pg_sys::ParallelWorkerNumber } >= 0 {
        return LEFT.set(u32::MAX);
    }
    let at = now_us();
    let weight = WEIGHT.get();
    if weight == 0 {
        // SAFETY: reads a variable of this process.
        let process = unsafe { pg_sys::MyProcPid };
        RANDOM.set((at.cast_unsigned() ^ (u64::from(process.cast_unsigned()) << 40)) | 1);
        let gap = RING.share().gap;
        WEIGHT.set(gap);
        LEFT.set(draw(gap));
        // The recursion ends here: the weight is set now.
        return note(group, kind, key);
    }
    let taken = key.map_or(&[][..], |key| &key[..key.len().min(KEY_BYTES)]);
    let mut entry = Entry {
        at,
        database: u32::from(my_database()),
        group,
        weight,
        is_write: kind == AccessKind::Write,
        length: key.map_or(NO_KEY, |_| taken.len() as u8),
        key: [0; KEY_BYTES],
    };
    entry.key[..taken.len()].copy_from_slice(taken);
    let gap = {
        let mut ring = RING.exclusive();
        ring.push(entry);
        ring.gap
    };
    WEIGHT.set(gap);
    LEFT.set(draw(gap));
}

/// The accesses to a key of a group, as smoothed rates in accesses per second: the weight of an access halves in [`HALF_LIFE_S`].
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Rates {
    pub group: i32,
    /// the key, perhaps cut off; None: accesses to no particular key
    pub key: Option<Vec<u8>>,
    pub reads: f64,
    pub writes: f64,
    /// the number of samples from which the rates are estimated
    pub samples: u32,
}

fn rates(entries: &[Entry], now: i64) -> Vec<Rates> {
    let mut found: HashMap<(i32, Option<&[u8]>), Rates> = HashMap::new();
    for entry in entries {
        let key = entry.key.get(..usize::from(entry.length)).filter(|_| entry.length != NO_KEY);
        let rates = found.entry((entry.group, key)).or_default();
        let rate = f64::from(entry.weight) * decay(now - entry.at) * std::f64::consts::LN_2 / HALF_LIFE_S;
        *(if entry.is_write { &mut rates.writes } else { &mut rates.reads }) += rate;
        rates.samples += 1;
    }
    let rates =
        |((group, key), rates): ((i32, Option<&[u8]>), Rates)| Rates { group, key: key.map(<[u8]>::to_vec), ..rates };
    let mut all: Vec<Rates> = found.into_iter().map(rates).collect();
    all.sort_by(|one, other| (one.group, &one.key).cmp(&(other.group, &other.key)));
    all
}

/// Returns the rates of accesses to keys in this database, ordered by group and key, from at most `most` samples. None if this server does
/// not sample, as it does not preload docshard.
pub fn read(most: usize) -> Option<Vec<Rates>> {
    if !is_preloaded() {
        return None;
    }
    let entries = RING.share().of(u32::from(my_database()), most);
    Some(rates(&entries, now_us()))
}

#[cfg(any(test, feature = "pg_test"))]
#[pgrx::pg_schema]
mod tests {
    use super::*;
    use pgrx::pg_test;

    fn entry(at: i64, weight: u32) -> Entry {
        let key = [7; KEY_BYTES];
        Entry { at, database: 1, group: 3, weight, is_write: false, length: 2, key }
    }

    #[pg_test]
    fn the_gap_follows_the_rate() {
        let mut ring = Box::<Ring>::default();
        // A burst of a thousand accesses does not change it.
        let mut now = 1_000_000;
        (0..1000).for_each(|at| ring.push(entry(now + at, 1)));
        assert_eq!(ring.gap, 1);
        // At 10,000 accesses in a second, half of the ring covers the window.
        while now < 900_000_000 {
            let weight = ring.gap;
            ring.push(entry(now, weight));
            now += i64::from(weight) * 100;
        }
        let wanted = 10_000.0 * WINDOW_S / (ENTRIES / 2) as f64;
        assert!((f64::from(ring.gap) / wanted - 1.0).abs() < 0.05, "{} {wanted}", ring.gap);
        // After a pause each access is a sample again.
        ring.push(entry(now + 3_600_000_000, 1));
        assert_eq!(ring.gap, 1);
    }

    #[pg_test]
    fn rates_are_estimates_without_bias() {
        RANDOM.set(0x9e37_79b9_7f4a_7c15);
        for gap in [1, 2, 10, 300] {
            let drawn: f64 = (0..100_000).map(|_| f64::from(draw(gap))).sum::<f64>() / 1e5;
            assert!((drawn / f64::from(gap) - 1.0).abs() < 0.02, "{gap}: {drawn}");
        }
        // 100 accesses in a second for ten minutes, and then an hour's pause.
        let entries: Vec<Entry> = (0..6000).map(|at| entry(at * 100_000 + 1, 10)).collect();
        let now = 600_000_000;
        let found = rates(&entries, now);
        assert_eq!((found.len(), found[0].samples, found[0].key.as_deref()), (1, 6000, Some(&[7, 7][..])));
        assert!((found[0].reads - 100.0).abs() < 1.0 && found[0].writes == 0.0, "{found:?}");
        assert!((rates(&entries, now + 60_000_000)[0].reads - 50.0).abs() < 1.0);
        assert!(rates(&entries, now + 3_600_000_000)[0].reads < 1e-9);
    }

    #[pg_test]
    fn fewer_samples_stand_for_all() {
        let mut ring = Box::<Ring>::default();
        (0..1000).for_each(|at| ring.push(entry(at + 1, 2)));
        for most in [1, 10, 300, 1000, 9000] {
            let found = ring.of(1, most);
            let stand_for: u32 = found.iter().map(|entry| entry.weight).sum();
            assert!(found.len() <= most && stand_for.abs_diff(2000) <= 1000, "{most}: {} {stand_for}", found.len());
        }
        assert!(ring.of(2, 1000).is_empty());
    }
}
