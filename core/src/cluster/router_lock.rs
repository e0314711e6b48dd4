//! Telling a router from a copy of its server's files, which has the same identity.
//!
//! The router holds a lock on every shard, in a session of its own that it lets hear of itself. Who finds a lock taken asks again
//! and again: a holder that has been silent for long is gone, and its lock is taken from it; one that is not is the router, so
//! who asks is a copy, once it has asked for long enough.
//!
//! INVARIANT: [`SILENCE`] of the patience passes before a lock is taken from its holder, and all of it before a router takes itself
//! for a copy. So a router that comes back, here or elsewhere, outlasts the session that its end has left at a shard.

use std::time::Duration;

/// The part of the patience after which a silent holder is gone.
pub const SILENCE: f64 = 2.0 / 3.0;

/// What a shard answers to who asks for its lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// the lock is held by who asks
    Held,
    /// another one holds it: who that is
    Taken(String),
    /// there is no answer
    Unreachable,
}

/// What a router knows of its lock on one shard.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Claim {
    /// since when another one has held the lock at each look, on the clock of who asks
    taken_since: Option<Duration>,
    last: Option<Answer>,
}

impl Claim {
    /// Notes an answer, at a time of whatever clock. The holder's name if the lock has been taken for longer than `patience`.
    pub fn note(&mut self, now: Duration, answer: Answer, patience: Duration) -> Option<&str> {
        self.taken_since = match &answer {
            Answer::Taken(_) => Some(self.taken_since.unwrap_or(now)),
            Answer::Held | Answer::Unreachable => None,
        };
        self.last = Some(answer);
        match (&self.last, self.taken_since) {
            (Some(Answer::Taken(holder)), Some(since)) if now.saturating_sub(since) >= patience => Some(holder),
            _ => None,
        }
    }

    /// True if the router holds the lock.
    #[must_use]
    pub fn is_held(&self) -> bool {
        self.last == Some(Answer::Held)
    }

    /// True if this shard is in the way of what the router does with others: nothing is known of it yet, or another one has the
    /// lock.
    #[must_use]
    pub fn is_in_the_way(&self) -> bool {
        matches!(self.last, None | Some(Answer::Taken(_)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATIENCE: Duration = Duration::from_secs(30);

    fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn taken() -> Answer {
        Answer::Taken("process 7".to_owned())
    }

    #[test]
    fn a_lock_that_stays_taken_makes_a_copy() {
        let mut claim = Claim::default();
        assert!(claim.is_in_the_way());
        for second in 100..130 {
            assert_eq!(claim.note(at(second), taken(), PATIENCE), None, "{second}");
            assert!(claim.is_in_the_way() && !claim.is_held());
        }
        assert_eq!(claim.note(at(130), taken(), PATIENCE), Some("process 7"));
    }

    #[test]
    fn a_lock_that_is_got_in_time_does_not() {
        let mut claim = Claim::default();
        assert_eq!(claim.note(at(0), taken(), PATIENCE), None);
        assert_eq!(claim.note(at(21), Answer::Held, PATIENCE), None);
        assert!(claim.is_held() && !claim.is_in_the_way());
        assert_eq!(claim.note(at(40), taken(), PATIENCE), None);
        assert_eq!(claim.note(at(69), taken(), PATIENCE), None);
        assert_eq!(claim.note(at(70), taken(), PATIENCE), Some("process 7"));
    }

    #[test]
    fn a_shard_that_cannot_be_reached_proves_nothing_and_stops_nothing() {
        let mut claim = Claim::default();
        assert_eq!(claim.note(at(0), taken(), PATIENCE), None);
        assert_eq!(claim.note(at(29), Answer::Unreachable, PATIENCE), None);
        assert!(!claim.is_in_the_way() && !claim.is_held());
        assert_eq!(claim.note(at(31), taken(), PATIENCE), None);
        assert_eq!(claim.note(at(60), taken(), PATIENCE), None);
        assert_eq!(claim.note(at(61), taken(), PATIENCE), Some("process 7"));
    }
}
