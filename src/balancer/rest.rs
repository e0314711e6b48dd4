//! Who rests after an error, and how long: twice as long after each, up to five minutes.

use std::collections::HashMap;
use std::hash::Hash;
use std::time::{Duration, Instant};

const SHORTEST: Duration = Duration::from_secs(5);
const LONGEST: Duration = Duration::from_secs(300);

#[derive(Debug)]
pub(super) struct Rests<K>(HashMap<K, (Instant, Duration)>);

impl<K> Default for Rests<K> {
    fn default() -> Self {
        Self(HashMap::new())
    }
}

impl<K: Eq + Hash> Rests<K> {
    pub(super) fn failed(&mut self, who: K) {
        let now = Instant::now();
        let (until, rest) = self.0.entry(who).or_insert((now, SHORTEST / 2));
        *rest = (*rest * 2).min(LONGEST);
        *until = now + *rest;
    }

    pub(super) fn succeeded(&mut self, who: &K) {
        self.0.remove(who);
    }

    pub(super) fn rests(&self, who: &K) -> bool {
        self.0.get(who).is_some_and(|(until, _)| Instant::now() < *until)
    }
}
