//! Shards that do not answer: when to probe one, and how long to leave it alone afterwards.
//!
//! The caller passes the time, so that tests need not wait.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// The time since the last sign of life of a shard that is waited for.
#[derive(Debug, Default)]
pub struct Silence {
    since: Option<Instant>,
}

impl Silence {
    /// Data arrived or was sent, or the shard answered elsewhere: silence begins again with the next wait.
    pub fn end(&mut self) {
        self.since = None;
    }

    /// When to probe the shard: `period` after the start of the first wait without an answer. A wait starts or continues at `now`.
    pub fn due(&mut self, now: Instant, period: Duration) -> Instant {
        *self.since.get_or_insert(now) + period
    }
}

/// How long a shard is left alone after the first failed probe; the time doubles with each further one.
const SHORTEST_REST: Duration = Duration::from_secs(5);
/// The longest time that a shard is left alone.
const LONGEST_REST: Duration = Duration::from_secs(30);

#[derive(Debug)]
struct Rest {
    until: Instant,
    length: Duration,
    why: String,
}

/// Shards that do not answer, by name. Statements for them fail at once for a while, so that other shards are not held up.
#[derive(Debug, Default)]
pub struct Resting {
    shards: BTreeMap<String, Rest>,
}

impl Resting {
    /// Records that the shard did not answer. True if it had answered until now.
    pub fn hung(&mut self, shard: &str, why: &str, now: Instant) -> bool {
        let new = !self.shards.contains_key(shard);
        let first = || Rest { until: now, length: SHORTEST_REST / 2, why: String::new() };
        let rest = self.shards.entry(shard.to_owned()).or_insert_with(first);
        rest.length = (rest.length * 2).min(LONGEST_REST);
        rest.until = now + rest.length;
        why.clone_into(&mut rest.why);
        new
    }

    /// Records that the shard answered. True if it had not answered before.
    pub fn answered(&mut self, shard: &str) -> bool {
        self.shards.remove(shard).is_some()
    }

    /// The reason why the shard is left alone at this time; None if it may be used.
    pub fn refused(&self, shard: &str, now: Instant) -> Option<&str> {
        self.shards.get(shard).filter(|rest| now < rest.until).map(|rest| rest.why.as_str())
    }

    /// True if the shard did not answer the last probe.
    pub fn is_silent(&self, shard: &str) -> bool {
        self.shards.contains_key(shard)
    }

    /// The shards that did not answer the last probe, each with the reason.
    pub fn all(&self) -> impl Iterator<Item = (&str, &str)> {
        self.shards.iter().map(|(shard, rest)| (shard.as_str(), rest.why.as_str()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn silence_counts_from_the_first_wait_without_a_sign() {
        let start = Instant::now();
        let mut silence = Silence::default();
        assert_eq!(silence.due(start, 30 * SECOND), start + 30 * SECOND);
        assert_eq!(silence.due(start + 20 * SECOND, 30 * SECOND), start + 30 * SECOND, "the wait continues");
        silence.end();
        assert_eq!(silence.due(start + 25 * SECOND, 30 * SECOND), start + 55 * SECOND, "there was a sign");
    }

    #[test]
    fn a_shard_that_does_not_answer_rests_ever_longer_until_it_answers() {
        let mut now = Instant::now();
        let mut resting = Resting::default();
        assert_eq!(resting.refused("a", now), None);
        assert!(resting.hung("a", "first", now));
        for length in [5, 10, 20, 30, 30] {
            assert!(resting.refused("a", now + (length - 1) * SECOND).is_some(), "{length}");
            assert!(resting.refused("a", now + length * SECOND).is_none(), "{length}: it may be asked");
            assert!(resting.is_silent("a"), "{length}");
            now += length * SECOND;
            assert!(!resting.hung("a", "again", now), "{length}: that is known");
        }
        assert_eq!(resting.refused("a", now), Some("again"));
        assert_eq!(resting.refused("b", now), None, "the others are served");
        assert!(resting.answered("a"));
        assert!(!resting.answered("a"));
        assert_eq!((resting.refused("a", now), resting.all().count()), (None, 0));
        assert!(resting.hung("a", "anew", now));
        assert!(resting.refused("a", now + 5 * SECOND).is_none(), "a short rest first");
    }
}
