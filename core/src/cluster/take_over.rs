//! What a database that becomes the router concludes from the reports of shards: the epochs that it writes, and its next numbers.
//!
//! Each router has an epoch. Each shard stores an epoch of its router, and refuses routers with a lower one. The stored epoch is
//! the router's own, unless the shard reported an epoch too high for the take-over to follow: then the catalog has a higher epoch
//! for that shard alone.
//!
//! A shard may be damaged or malicious. So the effect of a single report on the other shards and on the router's numbers is limited.
//!
//! INVARIANTS:
//! * No epoch of a shard ever falls.
//! * A router that takes over raises the epoch at each shard that it reaches. So every router that such a shard has accepted learns that it
//!   was replaced, whatever other shards report. The exception is a router whose epoch is higher, from a take-over that did not reach the
//!   shard: the shard goes to that router. If the take-over has replaced the router's password at the shard, the router cannot read the epoch,
//!   and learns only that it may have been replaced: see [`Lockout`](super::router_lock::Lockout).
//! * In one take-over, one shard raises the epochs of others by at most [`FOLLOWED`], and numbers by at most [`FOLLOWED_NUMBERS`].
//! * Whatever other shards report, an administrator can take over a shard whose own report is not impossible
//!   ([`Report::is_impossible`]).
//!
//! A router's own epoch is not always higher than those of all routers before it. It differs from theirs, except with a probability of one
//! in [`STEP`].

use super::prepared_name::FIRST_EPOCH;

/// The most by which a shard's numbers raise the next number of a collection or index.
const FOLLOWED_NUMBERS: i64 = 100_000;

/// The epochs that routers write are lower, except at a shard that has reported an epoch just below this one.
const LAST: i64 = 1 << 30;

/// A take-over raises epochs by a random number up to this one. Two databases that take over while each reaches other shards must not get
/// the same epoch: a shard would accept both.
pub const STEP: i64 = 1 << 16;

/// The most by which a shard's report raises the router's own epoch. This covers at least 32 take-overs that the router does not
/// know of.
const FOLLOWED: i64 = 32 * STEP;

/// If a shard is ahead by more than this, other routers have taken over very often, or the shard is damaged: an administrator must decide.
/// A take-over that was interrupted has added less.
const FAR: i64 = 64 * STEP;

/// What a shard reports about its router.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Report {
    /// the epoch of this router at that shard, by its catalog
    pub known: i64,
    /// the epoch that the shard reports
    pub found: i64,
}

impl Report {
    /// True if another router has taken the shard over, if the report is right.
    #[must_use]
    pub fn is_ahead(self) -> bool {
        self.found > self.known
    }

    /// True if an administrator must decide whether the report is right.
    #[must_use]
    pub fn is_far_ahead(self) -> bool {
        self.found > self.known.saturating_add(FAR)
    }

    /// True if no router can have written that epoch.
    #[must_use]
    pub fn is_impossible(self) -> bool {
        self.is_ahead() && self.found >= LAST - STEP
    }
}

/// The epoch of a router that takes over: `own` is its epoch before, `random` at least 0 and less than [`STEP`]. None if no epoch is left.
#[must_use]
pub fn epoch_of_router(own: i64, reports: &[Report], random: i64) -> Option<i64> {
    let near = reports.iter().map(|report| report.found).filter(|found| *found <= own + FOLLOWED);
    Some(near.fold(own, i64::max) + 1 + random).filter(|epoch| *epoch < LAST - STEP)
}

/// The epoch at a shard of a router that takes over, whose own epoch is `router`.
#[must_use]
pub fn epoch_at_shard(router: i64, report: Report, random: i64) -> i64 {
    let last = report.found.max(report.known);
    if last < router { router } else { last + 1 + random }
}

/// The highest number of a collection or index at a shard that counts, if `known` is the last one that the catalog has assigned.
#[must_use]
pub fn last_number_that_counts(known: i64) -> i64 {
    known.saturating_add(FOLLOWED_NUMBERS)
}

/// The base of the numbers of moves that the router of an epoch begins, and of entries of its changelog.
#[must_use]
pub fn first_move(epoch: i64) -> i64 {
    if epoch == FIRST_EPOCH { 0 } else { epoch << 32 }
}

/// True if a move was begun by the router of an epoch. The number of another router's move may be higher or lower.
#[must_use]
pub fn is_move_of(epoch: i64, number: i64) -> bool {
    number >> 32 == first_move(epoch) >> 32
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[derive(Clone, Debug)]
    struct Router {
        own: i64,
        /// by shard
        known: [i64; SHARDS],
    }

    const SHARDS: usize = 4;

    /// A take-over by a router, over the shards that it reaches. False if it is refused.
    fn take_over(router: &mut Router, shards: &mut [i64; SHARDS], reached: &[bool], force: bool, random: i64) -> bool {
        let report = |shard: usize, shards: &[i64; SHARDS]| Report { known: router.known[shard], found: shards[shard] };
        let counts = |shard: &usize| reached[*shard] && !report(*shard, shards).is_impossible();
        let at: Vec<usize> = (0..SHARDS).filter(counts).collect();
        let reports: Vec<Report> = at.iter().map(|shard| report(*shard, shards)).collect();
        if reports.is_empty() || !force && reports.iter().any(|report| report.is_far_ahead()) {
            return false;
        }
        let Some(epoch) = epoch_of_router(router.own, &reports, random) else { return false };
        for (shard, report) in at.into_iter().zip(reports) {
            shards[shard] = epoch_at_shard(epoch, report, random);
            router.known[shard] = shards[shard].max(router.known[shard]);
        }
        router.own = epoch;
        router.known.iter_mut().for_each(|known| *known = (*known).max(epoch));
        true
    }

    proptest! {
        /// Holds whatever the last shard reports in between, and whichever shards are reached.
        #[test]
        fn one_damaged_shard_decides_nothing(
            steps in prop::collection::vec((0..3_usize, prop::array::uniform4(any::<bool>()), any::<bool>(), 0..STEP,
                prop::option::of(prop_oneof![0..200 * STEP, 0..LAST, Just(i64::MAX), Just(0)])), 1..60)
        ) {
            let mut shards = [1; SHARDS];
            let mut routers = vec![Router { own: 1, known: [1; SHARDS] }; 3];
            for (index, reached, force, random, damage) in steps {
                if let Some(damage) = damage {
                    shards[SHARDS - 1] = damage;
                }
                let before = shards;
                let mut router = routers[index].clone();
                let is_router = take_over(&mut router, &mut shards, &reached, force, random);
                prop_assert!(!force || is_router || !reached[..SHARDS - 1].contains(&true), "{router:?} {shards:?}");
                routers[index] = router;
                for (now, was) in shards.iter().zip(before) {
                    prop_assert!(*now >= was);
                }
                let honest = shards[..SHARDS - 1].iter().max().copied().unwrap_or_default();
                prop_assert!(honest < 60 * 34 * STEP, "{shards:?}");
                for (other, lost) in routers.iter().enumerate().filter(|(other, _)| is_router && *other != index) {
                    let accepted = |shard: &usize| reached[*shard] && lost.known[*shard] <= before[*shard];
                    for shard in (0..SHARDS - 1).filter(accepted) {
                        let report = Report { known: lost.known[shard], found: shards[shard] };
                        prop_assert!(report.is_ahead() && !report.is_impossible(), "{other}: {lost:?} {shards:?}");
                    }
                }
            }
        }
    }

    #[test]
    fn a_report_is_judged_by_its_distance() {
        let report = |found| Report { known: 5, found };
        assert!(!report(5).is_ahead() && report(6).is_ahead());
        assert!(!report(5 + FAR).is_far_ahead() && report(6 + FAR).is_far_ahead());
        assert!(!report(LAST - STEP - 1).is_impossible() && report(LAST - STEP).is_impossible());
        assert!(report(i64::MAX).is_impossible());
        assert!(!Report { known: LAST, found: LAST }.is_impossible(), "what this router has written");
        assert_eq!(epoch_at_shard(7, Report { known: 50, found: 1 }, 3), 54, "the shard was restored");
        assert!(epoch_at_shard(7, report(LAST - STEP - 1), STEP - 1) < LAST);
    }

    #[test]
    fn a_move_is_one_router_s() {
        for epoch in [1, 2, 70_000, LAST - 1] {
            let numbers = [first_move(epoch), first_move(epoch) + 7, first_move(epoch) + u32::MAX as i64];
            for other in [1, 2, 3, 70_000, 70_001, LAST - 1] {
                assert!(numbers.iter().all(|number| is_move_of(other, *number) == (epoch == other)), "{epoch} {other}");
            }
        }
    }

    #[test]
    fn only_near_reports_are_followed() {
        let at = |found| Report { known: 5, found: found * STEP };
        assert_eq!(epoch_of_router(5, &[at(2_000), at(3_000)], 0), Some(6));
        assert_eq!(epoch_of_router(5, &[at(0), at(20)], 0), Some(20 * STEP + 1));
        assert_eq!(epoch_of_router(LAST - STEP - 2, &[], 1), None);
        assert_eq!(epoch_of_router(5, &[], STEP - 1), Some(5 + STEP));
    }
}
