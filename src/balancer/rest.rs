//! Who rests after an error, and how long: twice as long after each, up to five minutes. Measured by a clock that nobody
//! sets.

use std::collections::HashMap;
use std::hash::Hash;
use std::time::{Duration, Instant};

const SHORTEST: Duration = Duration::from_secs(5);
const LONGEST: Duration = Duration::from_secs(300);

#[derive(Debug)]
struct Rest {
    until: Instant,
    length: Duration,
    why: String,
}

#[derive(Debug)]
pub(super) struct Rests<K>(HashMap<K, Rest>);

impl<K> Default for Rests<K> {
    fn default() -> Self {
        Self(HashMap::new())
    }
}

impl<K: Eq + Hash> Rests<K> {
    pub(super) fn failed(&mut self, who: K, why: &str) {
        let now = Instant::now();
        let rest = self.0.entry(who).or_insert(Rest { until: now, length: SHORTEST / 2, why: String::new() });
        rest.length = (rest.length * 2).min(LONGEST);
        rest.until = now + rest.length;
        why.clone_into(&mut rest.why);
    }

    /// Lets somebody rest who was in another one's way, which is no failure.
    pub(super) fn gave_way(&mut self, who: K, why: &str) {
        let until = Instant::now() + SHORTEST;
        let rest = self.0.entry(who).or_insert(Rest { until, length: SHORTEST / 2, why: why.to_owned() });
        rest.until = rest.until.max(until);
    }

    pub(super) fn succeeded(&mut self, who: &K) {
        self.0.remove(who);
    }

    pub(super) fn rests(&self, who: &K) -> bool {
        self.0.get(who).is_some_and(|rest| Instant::now() < rest.until)
    }

    /// Why somebody rests, or did so last without having succeeded since; None for who is well.
    pub(super) fn why(&self, who: &K) -> Option<&str> {
        self.0.get(who).map(|rest| rest.why.as_str())
    }
}
