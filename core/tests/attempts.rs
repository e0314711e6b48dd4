//! The attempts of a statement that shards refuse, in the course of moves that are decided, end, are lost, or were never there.

use docshard_core::cluster::handshake::REFUSED_AHEAD;
use docshard_core::error::sqlstate::{self, SqlState};
use docshard_core::error::{Error, Kind, Result, Retry};
use docshard_core::routing::attempts::{Attempts, Foreseen, LASTING, MISMATCH_PATIENCE, PATIENCE, Surroundings};
use std::time::Duration;

/// A cluster in which things happen at certain times, in milliseconds.
struct Cluster {
    now: u64,
    /// the revision with which the last attempt began
    assumed: i64,
    is_known: bool,
    /// when a move was decided
    decided: Option<u64>,
    /// when its shards had committed
    settled: u64,
    /// when the catalog had the new map
    over: u64,
    /// a move may begin or end at any time
    may_change: bool,
    /// a shard has lost commits
    has_lost: bool,
    /// a shard has lost its part of the move
    has_lost_part: bool,
    completed: Vec<u64>,
}

/// Nothing is going on.
const QUIET: Cluster = Cluster {
    now: 0,
    assumed: 1,
    is_known: true,
    decided: None,
    settled: u64::MAX,
    over: u64::MAX,
    may_change: false,
    has_lost: false,
    has_lost_part: false,
    completed: Vec::new(),
};

/// The course of a statement: the time, the attempts, those with a foreseen map, and the error.
#[derive(Debug)]
struct Course {
    ended: u64,
    attempts: usize,
    ahead: Vec<usize>,
    error: Option<Error>,
}

impl Cluster {
    fn revision(&self) -> i64 {
        if self.now >= self.over { 2 } else { 1 }
    }

    /// Runs a statement that shards accept with the new map, once they have committed.
    fn run(&mut self) -> Course {
        let mut attempts = Attempts::default();
        let mut ahead = Vec::new();
        for number in 1.. {
            self.assumed = self.revision();
            let goes_ahead = attempts.begin(self.is_known.then_some(self.assumed));
            if goes_ahead {
                ahead.push(number);
            }
            // A round trip.
            self.now += 1;
            let error = if self.now > self.settled && (goes_ahead || self.assumed == 2) {
                None
            } else {
                attempts.wait(refused(Retry::NewMap), self).err()
            };
            if error.is_some() || self.now > self.settled && (goes_ahead || self.assumed == 2) {
                return Course { ended: self.now, attempts: number, ahead, error };
            }
        }
        unreachable!("the loop has no end")
    }
}

impl Surroundings for Cluster {
    fn elapsed(&self) -> Duration {
        Duration::from_millis(self.now)
    }

    fn sleep(&mut self, ms: u64) {
        assert!(ms > 0);
        self.now += ms;
    }

    fn is_known(&self) -> bool {
        self.is_known
    }

    fn is_assumed(&self) -> Result<bool> {
        Ok(self.revision() == self.assumed)
    }

    fn is_decided(&self) -> Result<bool> {
        Ok(self.decided.is_some_and(|at| at <= self.now) && self.now < self.over)
    }

    fn may_change(&self) -> Result<bool> {
        Ok(self.may_change || self.is_decided()?)
    }

    fn confirm_loss(&mut self, _refusal: &Error) -> Result<()> {
        if self.has_lost { Err(Error::new(Kind::StaleShardVersion, "behind")) } else { Ok(()) }
    }

    fn foresee(&mut self) -> Result<Option<Foreseen>> {
        if self.has_lost_part {
            return Err(Error::new(Kind::StaleShardVersion, "lost part"));
        }
        let is_late = self.decided.is_some_and(|at| self.now > at + 1000);
        Ok(self.is_decided()?.then_some(Foreseen { revision: self.revision(), is_late }))
    }

    fn is_being_settled(&self) -> bool {
        self.now < self.settled
    }

    fn complete_moves(&mut self) -> Result<()> {
        self.completed.push(self.now);
        Ok(())
    }

    fn disagreement(&self, _refusal: &Error, sqlstate: SqlState) -> Error {
        Error::new(Kind::StaleShardVersion, "disagreement").with_sqlstate(sqlstate)
    }
}

fn refused(retry: Retry) -> Error {
    let mut error = Error::new(Kind::StaleShardVersion, "stale");
    error.retry = retry;
    error
}

fn milliseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap()
}

#[test]
fn the_foreseen_map_is_used_as_soon_as_shards_have_committed() {
    let mut cluster = Cluster { decided: Some(0), settled: 20, over: 500, ..QUIET };
    let course = cluster.run();
    assert!(course.error.is_none() && course.ended < 30, "{course:?}");
    assert_eq!(course.ahead.last(), Some(&course.attempts), "{course:?}");
    assert!(cluster.completed.is_empty());
}

#[test]
fn a_foreseen_map_counts_for_one_attempt_with_the_map_that_it_was_made_from() {
    let mut cluster = Cluster { decided: Some(0), ..QUIET };
    let mut attempts = Attempts::default();
    assert!(!attempts.begin(Some(1)));
    attempts.wait(refused(Retry::NewMap), &mut cluster).unwrap();
    assert!(attempts.begin(Some(1)));
    assert!(!attempts.begin(Some(1)), "once");
    attempts.wait(refused(Retry::NewMap), &mut cluster).unwrap();
    assert!(!attempts.begin(Some(2)), "another map");
    // At once after a refused host, the map that is known is used.
    attempts.wait(refused(Retry::NewMap), &mut cluster).unwrap();
    assert!(attempts.begin(Some(1)));
    attempts.wait(refused(Retry::OtherHost), &mut cluster).unwrap();
    assert!(!attempts.begin(Some(1)));
}

#[test]
fn the_next_map_of_the_catalog_ends_the_wait() {
    let mut cluster = Cluster { decided: None, may_change: true, settled: 300, over: 305, ..QUIET };
    let course = cluster.run();
    assert!(course.error.is_none() && course.ahead.is_empty() && course.ended < 315, "{course:?}");
}

#[test]
fn pauses_grow_but_stay_short() {
    let mut cluster = Cluster { may_change: true, settled: 1000, over: 1000, ..QUIET };
    let course = cluster.run();
    assert!((20..40).contains(&course.attempts), "{course:?}");
}

#[test]
fn a_move_without_a_coordinator_is_completed_again_and_again() {
    let mut cluster = Cluster { decided: Some(0), settled: 5000, over: 5100, ..QUIET };
    let course = cluster.run();
    assert!(course.error.is_none(), "{course:?}");
    assert!((5..=11).contains(&cluster.completed.len()), "{:?}", cluster.completed);
    assert!(cluster.completed.windows(2).all(|pair| pair[1] - pair[0] >= 500), "{:?}", cluster.completed);
}

#[test]
fn what_no_move_explains_fails_for_good() {
    let course = Cluster { ..QUIET }.run();
    let error = course.error.expect("an error");
    assert_eq!(error.sqlstate, LASTING);
    assert!((0..200).contains(&(course.ended - milliseconds(MISMATCH_PATIENCE))), "{}", course.ended);
}

#[test]
fn a_move_that_takes_too_long_fails_so_that_clients_repeat_it() {
    let course = Cluster { may_change: true, ..QUIET }.run();
    let error = course.error.expect("an error");
    assert_eq!(error.sqlstate, sqlstate::SERIALIZATION_FAILURE);
    assert!((0..200).contains(&(course.ended - milliseconds(PATIENCE))), "{}", course.ended);
    // Also without a collection, as on a node that is no router of it.
    let course = Cluster { is_known: false, ..QUIET }.run();
    assert_eq!(course.error.expect("an error").sqlstate, sqlstate::SERIALIZATION_FAILURE);
}

#[test]
fn a_shard_that_has_lost_commits_fails_the_statement_at_once() {
    let course = Cluster { has_lost: true, ..QUIET }.run();
    assert_eq!((course.attempts, course.error.map(Error::into_message).as_deref()), (1, Some("behind")));
    // While a move is decided, a refusal shows nothing.
    let mut cluster = Cluster { has_lost: true, decided: Some(0), settled: 20, over: 500, ..QUIET };
    assert!(cluster.run().error.is_none());
    let course = Cluster { has_lost_part: true, decided: Some(0), ..QUIET }.run();
    assert_eq!((course.attempts, course.error.map(Error::into_message).as_deref()), (1, Some("lost part")));
}

#[test]
fn handshakes_are_made_again_a_few_times() {
    let (mut cluster, mut attempts) = (QUIET, Attempts::default());
    for _ in 0..REFUSED_AHEAD {
        attempts.begin(Some(1));
        attempts.wait(refused(Retry::NewHandshake), &mut cluster).unwrap();
    }
    let error = attempts.wait(refused(Retry::NewHandshake), &mut cluster).unwrap_err();
    assert_eq!((error.retry, cluster.now), (Retry::NewHandshake, 0));
}
