//! Tells a router from a copy of its server's files, which has the same identity.
//!
//! The router holds a lock on every shard, in a session that it keeps alive by messages. A database that finds a lock taken
//! retries for a limited time, the *patience*. A holder that is silent for too long is considered dead, and loses the lock. If the
//! holder is still alive when the patience ends, it is the router, and the retrying database is a copy.
//!
//! INVARIANT: a silent holder loses its lock after the fraction [`SILENCE`] of the patience, and a database concludes that it is a copy
//! only after the whole patience. So a restarted router outlasts the session that its crash left behind at a shard.
//!
//! A take-over may replace the router's password at shards, so that the former router cannot read there that it was replaced. To that
//! router it looks as if somebody had changed the password. [`Lockout`] decides when it stops writing.

use std::time::Duration;

/// The fraction of the patience after which a silent holder loses the lock.
pub const SILENCE: f64 = 2.0 / 3.0;

/// A shard's answer to a request for its lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LockAnswer {
    /// the requester holds the lock
    Held,
    /// another session, described here, holds the lock
    Taken(String),
    /// the shard did not answer
    Unreachable,
}

/// A router's claim to the lock of one shard.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Claim {
    /// since when every request has found the lock taken, on the requester's clock
    taken_since: Option<Duration>,
    last: Option<LockAnswer>,
}

impl Claim {
    /// Records an answer that arrived at `now`, on any monotonic clock. Returns the holder if the lock has been taken for `patience`.
    pub fn note(&mut self, now: Duration, answer: LockAnswer, patience: Duration) -> Option<&str> {
        self.taken_since = match &answer {
            LockAnswer::Taken(_) => Some(self.taken_since.unwrap_or(now)),
            LockAnswer::Held | LockAnswer::Unreachable => None,
        };
        self.last = Some(answer);
        match (&self.last, self.taken_since) {
            (Some(LockAnswer::Taken(holder)), Some(since)) if now.saturating_sub(since) >= patience => Some(holder),
            _ => None,
        }
    }

    /// True if the router holds the lock.
    #[must_use]
    pub fn is_held(&self) -> bool {
        self.last == Some(LockAnswer::Held)
    }

    /// True if the shard has answered the last request: it lets the router in.
    #[must_use]
    pub fn is_answered(&self) -> bool {
        matches!(self.last, Some(LockAnswer::Held | LockAnswer::Taken(_)))
    }

    /// True if this shard keeps the router from working with other shards: it has not answered yet, or another session has the
    /// lock.
    #[must_use]
    pub fn blocks_router(&self) -> bool {
        matches!(self.last, None | Some(LockAnswer::Taken(_)))
    }
}

/// What follows for a router from shards that refuse its login.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// it must stop writing
    LockedOut,
    /// it may write, also if it had stopped
    LetIn,
    /// everything stays as it is
    Unchanged,
}

/// Decides whether a router is locked out: more shards refuse its login than let it in, for the whole patience.
///
/// A shard that lets it in also shows that it has this router's epoch, so it was not taken over. Shards that do not answer prove nothing.
/// A password that was changed at one shard by mistake stops the router only if no other shard answers. In that case the mistake looks like a
/// take-over, and a replaced router must not write: the cluster would lose what it acknowledges.
#[derive(Debug, Default)]
pub struct Lockout {
    /// since when shards that refuse the login have been more than the others, on the router's clock
    since: Option<Duration>,
}

impl Lockout {
    /// Records how many shards refuse the login, and how many let the router in, at `now`, on any monotonic clock.
    pub fn note(&mut self, now: Duration, refusing: usize, letting_in: usize, patience: Duration) -> Verdict {
        if refusing <= letting_in {
            self.since = None;
            return if letting_in > 0 { Verdict::LetIn } else { Verdict::Unchanged };
        }
        let since = *self.since.get_or_insert(now);
        if now.saturating_sub(since) >= patience { Verdict::LockedOut } else { Verdict::Unchanged }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATIENCE: Duration = Duration::from_secs(30);

    fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn taken() -> LockAnswer {
        LockAnswer::Taken("process 7".to_owned())
    }

    #[test]
    fn a_lock_that_stays_taken_makes_a_copy() {
        let mut claim = Claim::default();
        assert!(claim.blocks_router());
        for second in 100..130 {
            assert_eq!(claim.note(at(second), taken(), PATIENCE), None, "{second}");
            assert!(claim.blocks_router() && !claim.is_held());
        }
        assert_eq!(claim.note(at(130), taken(), PATIENCE), Some("process 7"));
    }

    #[test]
    fn a_lock_that_is_got_in_time_does_not() {
        let mut claim = Claim::default();
        assert_eq!(claim.note(at(0), taken(), PATIENCE), None);
        assert_eq!(claim.note(at(21), LockAnswer::Held, PATIENCE), None);
        assert!(claim.is_held() && !claim.blocks_router());
        assert_eq!(claim.note(at(40), taken(), PATIENCE), None);
        assert_eq!(claim.note(at(69), taken(), PATIENCE), None);
        assert_eq!(claim.note(at(70), taken(), PATIENCE), Some("process 7"));
    }

    #[test]
    fn a_shard_that_cannot_be_reached_proves_nothing_and_stops_nothing() {
        let mut claim = Claim::default();
        assert_eq!(claim.note(at(0), taken(), PATIENCE), None);
        assert_eq!(claim.note(at(29), LockAnswer::Unreachable, PATIENCE), None);
        assert!(!claim.blocks_router() && !claim.is_held());
        assert_eq!(claim.note(at(31), taken(), PATIENCE), None);
        assert_eq!(claim.note(at(60), taken(), PATIENCE), None);
        assert_eq!(claim.note(at(61), taken(), PATIENCE), Some("process 7"));
    }

    #[test]
    fn a_router_is_locked_out_if_more_shards_refuse_it_than_let_it_in() {
        let mut lockout = Lockout::default();
        let mut note = |second, refusing, letting_in| lockout.note(at(second), refusing, letting_in, PATIENCE);
        assert_eq!(note(0, 0, 0), Verdict::Unchanged, "no shard answers");
        assert_eq!(note(1, 0, 2), Verdict::LetIn);
        assert_eq!(note(2, 1, 1), Verdict::LetIn, "one mistake");
        for second in 3..33 {
            assert_eq!(note(second, 1, 0), Verdict::Unchanged, "{second}: the other one is down");
        }
        assert_eq!(note(33, 2, 1), Verdict::LockedOut);
        assert_eq!(note(34, 0, 0), Verdict::Unchanged, "it stays locked out");
        assert_eq!(note(35, 2, 1), Verdict::Unchanged);
        assert_eq!(note(36, 2, 2), Verdict::LetIn);
        assert_eq!(note(37, 1, 0), Verdict::Unchanged, "the time begins anew");
        assert_eq!(note(67, 1, 0), Verdict::LockedOut);
    }
}
