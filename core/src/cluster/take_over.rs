//! What a database that becomes the router concludes from the reports of shards: the epochs that it writes, and its next numbers.
//!
//! A shard may be damaged or malicious. What one reports does not get far: neither to the other shards, nor into the catalog.
//!
//! Each router has an epoch, and each shard stores the one by which it knows its router; a router with a lower one is refused there. The two are
//! equal, unless a shard has reported one that a take-over did not follow: then the catalog has a higher one for that shard alone.
//!
//! INVARIANTS:
//! * No epoch of a shard ever falls.
//! * A take-over that reaches a shard has a higher epoch there than every router before it, and so does the router's own epoch, whose numbers
//!   of moves and names of prepared transactions must differ from theirs.
//! * One shard that is damaged or malicious raises the epochs of others by [`FOLLOWED`] in a take-over at most, and numbers by
//!   [`FOLLOWED_NUMBERS`]. So routers that do not know of that take-over still believe those shards.

/// How far the next number of a collection or index follows the report of a single shard.
const FOLLOWED_NUMBERS: i64 = 100_000;

/// Beyond this distance numbers at a shard count only if no other shard contradicts them. They are assigned one by one.
const INCREDIBLE_NUMBERS: i64 = 10_000_000;

/// The highest number of a collection or index has nine digits.
const LAST_NUMBER: i64 = 999_999_999 - 1_000_000;

/// Nodes accept lower epochs only.
const LAST: i64 = 1 << 30;

/// A take-over raises epochs by a random number up to this one. Two databases that take over while each reaches other shards must not get the
/// same epoch: a shard would accept both.
pub const STEP: i64 = 1 << 16;

/// How far the router's own epoch follows the report of a single shard: by 32 take-overs that it does not know, or more.
const FOLLOWED: i64 = 32 * STEP;

/// Beyond this distance others may have taken over so often, or the shard is damaged. An administrator must decide. It is larger than what a
/// take-over that was interrupted has added.
const FAR: i64 = 64 * STEP;

/// Beyond this distance a report counts only if no other shard contradicts it.
const INCREDIBLE: i64 = 1024 * STEP;

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

    /// True if the report counts only if the other shards do not contradict it, by reports that are not incredible.
    #[must_use]
    pub fn is_incredible(self) -> bool {
        self.found > self.known.saturating_add(INCREDIBLE)
    }

    /// True if no router can have written that epoch, since none can write a higher one.
    #[must_use]
    pub fn is_impossible(self) -> bool {
        self.found >= LAST - STEP
    }
}

/// The highest number of a collection or an index that a shard has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Numbers {
    /// the last number in the catalog
    pub known: i64,
    /// the highest number at the shard
    pub found: i64,
}

impl Numbers {
    /// True if the number counts only if the other shards do not contradict it.
    #[must_use]
    pub fn is_incredible(self) -> bool {
        self.found > self.known.saturating_add(INCREDIBLE_NUMBERS)
    }

    /// True if no router can have assigned that number.
    #[must_use]
    pub fn is_impossible(self) -> bool {
        self.found > LAST_NUMBER
    }
}

/// The last number that counts as assigned, by the catalog and the shards that were reached.
#[must_use]
pub fn last_number(known: i64, found: &[i64]) -> i64 {
    followed(known, found, FOLLOWED_NUMBERS, LAST_NUMBER)
}

/// The highest of `own`, of what single shards report up to a distance from it, and of what all of them report, which is no damage of one.
fn followed(own: i64, found: &[i64], distance: i64, last: i64) -> i64 {
    let near = found.iter().copied().filter(|found| *found <= own.saturating_add(distance)).max();
    let agreed = found.iter().copied().min().filter(|found| *found < last);
    near.into_iter().chain(agreed).fold(own, i64::max)
}

/// The epoch of a router that takes over: `own` is its epoch before, `random` at least 0 and less than [`STEP`]. None if there is none left.
#[must_use]
pub fn epoch_of_router(own: i64, reports: &[Report], random: i64) -> Option<i64> {
    let found: Vec<i64> = reports.iter().map(|report| report.found).collect();
    let last = followed(own, &found, FOLLOWED, LAST / 2);
    Some(last + 1 + random).filter(|epoch| *epoch < LAST - STEP)
}

/// The epoch at a shard of a router that takes over, whose own epoch is `router`.
#[must_use]
pub fn epoch_at_shard(router: i64, report: Report, random: i64) -> i64 {
    if report.found < router { router } else { report.found + 1 + random }
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

    /// A take-over by a router, over the shards that it reaches; `random` for each epoch. The shards' epochs before and after it.
    fn take_over(router: &mut Router, shards: &mut [i64; SHARDS], reached: &[bool], force: bool, random: i64) -> bool {
        let report = |shard: usize, shards: &[i64; SHARDS]| Report { known: router.known[shard], found: shards[shard] };
        let is_contradicted = (0..SHARDS).any(|shard| reached[shard] && !report(shard, shards).is_incredible());
        let counts = |shard: &usize| {
            let report = report(*shard, shards);
            reached[*shard] && !report.is_impossible() && !(is_contradicted && report.is_incredible())
        };
        let at: Vec<usize> = (0..SHARDS).filter(counts).collect();
        let reports: Vec<Report> = at.iter().map(|shard| report(*shard, shards)).collect();
        if reports.is_empty() || !force && reports.iter().any(|report| report.is_far_ahead()) {
            return false;
        }
        let Some(epoch) = epoch_of_router(router.own, &reports, random) else { return false };
        for (shard, report) in at.into_iter().zip(reports) {
            shards[shard] = epoch_at_shard(epoch, report, random);
            router.known[shard] = shards[shard];
        }
        router.own = epoch;
        router.known.iter_mut().for_each(|known| *known = (*known).max(epoch));
        true
    }

    proptest! {
        /// Whatever the last shard reports in between: after a take-over no other router is accepted at the shards that it reached; every other
        /// router that meets one of the honest ones sees that it was replaced; and an administrator can always take over.
        #[test]
        fn one_damaged_shard_decides_nothing(
            steps in prop::collection::vec((0..3_usize, prop::array::uniform4(any::<bool>()), any::<bool>(), 0..STEP,
                prop::option::of(prop_oneof![0..200 * STEP, 0..LAST, Just(i64::MAX)])), 1..60)
        ) {
            let mut shards = [1; SHARDS];
            let mut routers = vec![Router { own: 1, known: [1; SHARDS] }; 3];
            for (index, mut reached, force, random, damage) in steps {
                if let Some(damage) = damage {
                    shards[SHARDS - 1] = shards[SHARDS - 1].max(damage);
                }
                // At least two honest shards are reached.
                reached[0] = true;
                reached[1] = true;
                let before = shards;
                let mut router = routers[index].clone();
                let is_router = take_over(&mut router, &mut shards, &reached, force, random);
                prop_assert!(!force || is_router, "{router:?} {shards:?}");
                routers[index] = router.clone();
                for (now, was) in shards.iter().zip(before) {
                    prop_assert!(*now >= was);
                }
                let honest = shards[..SHARDS - 1].iter().max().copied().unwrap_or_default();
                prop_assert!(honest < 60 * 40 * STEP, "{shards:?}");
                for (other, lost) in routers.iter().enumerate().filter(|(other, _)| is_router && *other != index) {
                    for shard in [0, 1] {
                        let report = Report { known: lost.known[shard], found: shards[shard] };
                        prop_assert!(report.is_ahead() && !report.is_impossible(), "{other}: {lost:?} {shards:?}");
                        prop_assert!(lost.own < router.own, "{lost:?} {router:?}");
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
        assert!(!report(5 + INCREDIBLE).is_incredible() && report(6 + INCREDIBLE).is_incredible());
        assert!(!report(LAST - STEP - 1).is_impossible() && report(LAST - STEP).is_impossible());
        assert!(report(i64::MAX).is_impossible());
        assert!(epoch_at_shard(7, report(LAST - STEP - 1), STEP - 1) < LAST);
    }

    #[test]
    fn numbers_follow_one_shard_a_little_and_all_of_them_far() {
        assert_eq!(last_number(7, &[]), 7);
        assert_eq!(last_number(7, &[5, 100_000]), 100_000);
        assert_eq!(last_number(7, &[5, 100_008]), 7);
        assert_eq!(last_number(7, &[20_000_000, 30_000_000]), 20_000_000);
        assert_eq!(last_number(7, &[999_999_998]), 7);
        let numbers = |found| Numbers { known: 7, found };
        assert!(!numbers(10_000_007).is_incredible() && numbers(10_000_008).is_incredible());
        assert!(!numbers(998_999_999).is_impossible() && numbers(999_000_000).is_impossible());
    }

    #[test]
    fn all_shards_together_are_followed_and_one_is_not() {
        let far = |found| Report { known: 5, found: found * STEP };
        assert_eq!(epoch_of_router(5, &[far(2_000), far(3_000)], 0), Some(2_000 * STEP + 1));
        assert_eq!(epoch_of_router(5, &[far(0), far(3_000)], 0), Some(6));
        assert_eq!(epoch_of_router(5, &[far(0), far(20)], 0), Some(20 * STEP + 1));
        assert_eq!(epoch_of_router(LAST - STEP - 2, &[], 1), None);
        assert_eq!(epoch_of_router(5, &[], STEP - 1), Some(5 + STEP));
    }
}
