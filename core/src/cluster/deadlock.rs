//! Deadlocks over several nodes: circles of processes that wait for each other, of which no node sees all. PostgreSQL finds
//! those that lie on one node.

use crate::cluster::chunk_map::ShardId;
use petgraph::algo::tarjan_scc;
use petgraph::graphmap::DiGraphMap;
use std::collections::{BTreeMap, BTreeSet};

/// A process that holds locks, or waits for one. All that a router's process does at shards is done by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Process {
    /// the shard that it is at, if it is no process of the router's
    pub shard: Option<ShardId>,
    /// its number there
    pub pid: i32,
}

/// One waits for another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Wait {
    /// who waits
    pub waiter: Process,
    /// for whom
    pub blocker: Process,
    /// the shard where that is; None: at the router
    pub at: Option<ShardId>,
    /// since when, in microseconds by the clock there. A process that goes on and waits again does so since another time: who
    /// is twice seen to wait since then has not gone on in between.
    pub since: i64,
}

/// The waits of each deadlock over several nodes. Of one that lies on a single node that node will tell.
///
/// RULE: waits that were all there at one moment. Nobody in a deadlock goes on by itself, as each waits for another one in it.
pub fn deadlocks(waits: &BTreeSet<Wait>) -> Vec<Vec<Wait>> {
    let graph: DiGraphMap<Process, ()> = waits.iter().map(|wait| (wait.waiter, wait.blocker)).collect();
    tarjan_scc(&graph)
        .into_iter()
        .map(|members| {
            let members: BTreeSet<Process> = members.into_iter().collect();
            let within = |wait: &&Wait| members.contains(&wait.waiter) && members.contains(&wait.blocker);
            waits.iter().filter(within).copied().collect::<Vec<_>>()
        })
        .filter(|circle| circle.first().is_some_and(|first| circle.iter().any(|wait| wait.at != first.at)))
        .collect()
}

/// Whose transaction is to end so that a deadlock does: of the router's processes in it the one that began last. `begun` says
/// when those did whose transactions are known.
///
/// One that waits at the router, too, cannot be told. If all do, either each does for another one in the deadlock, and then
/// some are a circle there, which PostgreSQL finds; or somebody does for one who will go on.
pub fn victim(deadlock: &[Wait], waits: &BTreeSet<Wait>, begun: &BTreeMap<i32, i64>) -> Option<i32> {
    let is_here = |process| waits.iter().any(|wait| wait.waiter == process && wait.at.is_none());
    deadlock
        .iter()
        .filter(|wait| wait.waiter.shard.is_none() && !is_here(wait.waiter))
        .filter_map(|wait| Some((*begun.get(&wait.waiter.pid)?, wait.waiter.pid)))
        .max()
        .map(|(_, pid)| pid)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn process(number: i32) -> Process {
        // Above 9, someone who is at a shard only.
        if number < 10 {
            Process { shard: None, pid: number }
        } else {
            Process { shard: Some(number / 10), pid: number }
        }
    }

    fn waits(all: &[(i32, i32, Option<ShardId>)]) -> BTreeSet<Wait> {
        let wait = |&(waiter, blocker, at)| Wait {
            waiter: process(waiter),
            blocker: process(blocker),
            at,
            since: i64::from(waiter),
        };
        all.iter().map(wait).collect()
    }

    #[test]
    fn circles_over_nodes_are_deadlocks() {
        let circle = waits(&[(1, 2, Some(1)), (2, 1, Some(2))]);
        let others = waits(&[(3, 1, Some(1)), (1, 4, Some(2)), (5, 6, None)]);
        assert_eq!(deadlocks(&circle), vec![circle.iter().copied().collect::<Vec<_>>()]);
        assert_eq!(deadlocks(&others), Vec::<Vec<Wait>>::new());
        let all = circle.union(&others).copied().collect();
        assert_eq!(deadlocks(&all), deadlocks(&circle));
        // On one node; with the router as the other; by way of somebody whom only a shard knows; two at once.
        assert_eq!(deadlocks(&waits(&[(1, 2, Some(1)), (2, 1, Some(1))])).len(), 0);
        assert_eq!(deadlocks(&waits(&[(1, 2, Some(1)), (2, 1, None)])).len(), 1);
        assert_eq!(deadlocks(&waits(&[(1, 10, Some(1)), (10, 2, Some(1)), (2, 1, Some(2))])).len(), 1);
        assert_eq!(deadlocks(&waits(&[(1, 2, Some(1)), (2, 1, Some(2)), (3, 4, Some(1)), (4, 3, None)])).len(), 2);
    }

    #[test]
    fn who_began_last_is_the_victim() {
        let begun = BTreeMap::from([(1, 100), (2, 300), (3, 200)]);
        let all = waits(&[(1, 2, Some(1)), (2, 3, None), (3, 1, Some(2)), (4, 1, Some(1))]);
        let circle = &deadlocks(&all)[0];
        assert_eq!(victim(circle, &all, &begun), Some(3), "2 waits at the router, and cannot be told");
        let all = waits(&[(1, 2, Some(1)), (2, 3, Some(2)), (3, 1, Some(2)), (3, 5, None)]);
        assert_eq!(victim(&deadlocks(&all)[0], &all, &begun), Some(2), "so does 3, though for somebody else");
        assert_eq!(victim(circle, &all, &BTreeMap::new()), None);
    }

    proptest! {
        /// Without the victims nothing is left of any deadlock that is not PostgreSQL's to end, if they are taken away one after
        /// the other; and none is found where everybody waits only for those that are before him.
        #[test]
        fn victims_end_deadlocks(all in prop::collection::btree_set((0..10, 0..10, prop::option::of(1..4)), 0..40)) {
            let mut left = waits(&all.iter().copied().filter(|(a, b, _)| a != b).collect::<Vec<_>>());
            let begun: BTreeMap<i32, i64> = (0..10).map(|pid| (pid, i64::from(pid))).collect();
            while let Some(pid) = deadlocks(&left).iter().find_map(|found| victim(found, &left, &begun)) {
                left.retain(|wait| wait.waiter.pid != pid && wait.blocker.pid != pid);
            }
            for found in deadlocks(&left) {
                let here: BTreeSet<Wait> = left.iter().filter(|wait| wait.at.is_none()).copied().collect();
                let waits_here = |wait: &Wait| here.iter().any(|other| other.waiter == wait.waiter);
                prop_assert!(found.iter().all(waits_here));
            }
            let ordered = waits(&all.iter().copied().filter(|(a, b, _)| a > b).collect::<Vec<_>>());
            prop_assert!(deadlocks(&ordered).is_empty());
        }
    }
}
