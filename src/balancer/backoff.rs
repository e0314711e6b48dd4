//! Records the shards, collections and pairs of shards that the balancer skips after an error. The pause doubles with each further error,
//! up to five minutes. Times are from a monotonic clock.

use std::collections::HashMap;
use std::hash::Hash;
use std::time::{Duration, Instant};

const SHORTEST: Duration = Duration::from_secs(5);
const LONGEST: Duration = Duration::from_secs(300);

#[derive(Debug)]
struct Entry {
    until: Instant,
    length: Duration,
    error: String,
}

#[derive(Debug)]
pub(super) struct Backoff<K>(HashMap<K, Entry>);

impl<K> Default for Backoff<K> {
    fn default() -> Self {
        Self(HashMap::new())
    }
}

impl<K: Eq + Hash> Backoff<K> {
    pub(super) fn failed(&mut self, key: K, error: &str) {
        let now = Instant::now();
        let entry = self.0.entry(key).or_insert(Entry { until: now, length: SHORTEST / 2, error: String::new() });
        entry.length = (entry.length * 2).min(LONGEST);
        entry.until = now + entry.length;
        error.clone_into(&mut entry.error);
    }

    /// Skips the key for the shortest time, without a longer pause next time: a conflict with another operation is no failure.
    pub(super) fn gave_way(&mut self, key: K, error: &str) {
        let until = Instant::now() + SHORTEST;
        let entry = self.0.entry(key).or_insert(Entry { until, length: SHORTEST / 2, error: error.to_owned() });
        entry.until = entry.until.max(until);
    }

    pub(super) fn succeeded(&mut self, key: &K) {
        self.0.remove(key);
    }

    /// Ends all pauses. The next error begins a longer pause nevertheless.
    pub(super) fn hasten(&mut self) {
        let now = Instant::now();
        self.0.values_mut().for_each(|entry| entry.until = now);
    }

    pub(super) fn is_resting(&self, key: &K) -> bool {
        self.0.get(key).is_some_and(|entry| Instant::now() < entry.until)
    }

    /// Returns what is skipped now.
    pub(super) fn resting(&self) -> impl Iterator<Item = &K> {
        let now = Instant::now();
        self.0.iter().filter(move |(_, entry)| now < entry.until).map(|(key, _)| key)
    }

    /// Returns the last error; None if there was none since the last success.
    pub(super) fn error(&self, key: &K) -> Option<&str> {
        self.0.get(key).map(|entry| entry.error.as_str())
    }
}
