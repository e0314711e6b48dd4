//! Deadlocks over several nodes: cycles of processes that wait for each other, which no single node sees completely. PostgreSQL
//! itself resolves cycles within one node.

use crate::cluster::chunk_map::ShardId;
use petgraph::algo::tarjan_scc;
use petgraph::graphmap::DiGraphMap;
use std::collections::{BTreeMap, BTreeSet};

/// A process that holds locks, or waits for one. A router's backend and its sessions at shards count as one process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Process {
    /// the shard where it runs; None for a backend of the router and its sessions at shards
    pub shard: Option<ShardId>,
    /// its process ID there
    pub pid: i32,
}

/// An edge of the wait-for graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Wait {
    /// the process that waits
    pub waiter: Process,
    /// the process that it waits for
    pub blocker: Process,
    /// the shard of the lock; None: the router
    pub at: Option<ShardId>,
    /// the start of the wait, in microseconds by the clock there. Two observations with the same start are of one uninterrupted
    /// wait.
    pub since: i64,
}

/// The waits of each deadlock over several nodes. One within a single node is left to that node's PostgreSQL.
///
/// RULE: `waits` all existed at one moment. A deadlock among them never resolves by itself, since each of its processes waits for
/// another one in it.
pub fn deadlocks(waits: &BTreeSet<Wait>) -> Vec<Vec<Wait>> {
    let graph: DiGraphMap<Process, ()> = waits.iter().map(|wait| (wait.waiter, wait.blocker)).collect();
    tarjan_scc(&graph)
        .into_iter()
        .map(|members| {
            let members: BTreeSet<Process> = members.into_iter().collect();
            let within = |wait: &&Wait| members.contains(&wait.waiter) && members.contains(&wait.blocker);
            waits.iter().filter(within).copied().collect::<Vec<_>>()
        })
        .filter(|cycle| cycle.first().is_some_and(|first| cycle.iter().any(|wait| wait.at != first.at)))
        .collect()
}

/// The process whose transaction is to be cancelled to resolve a deadlock: the router's backend in it that began last. `begun`
/// has the start of each known transaction by the process ID of its backend at the router.
///
/// A backend that also waits at the router cannot be cancelled remotely, so it is never the victim. If all wait there, either
/// they form a cycle within the router, which PostgreSQL resolves, or one of them waits there for a process outside the deadlock,
/// and that wait ends by itself.
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
        // Numbers above 9 are processes of shards.
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
    fn cycles_over_nodes_are_deadlocks() {
        let cycle = waits(&[(1, 2, Some(1)), (2, 1, Some(2))]);
        let others = waits(&[(3, 1, Some(1)), (1, 4, Some(2)), (5, 6, None)]);
        assert_eq!(deadlocks(&cycle), vec![cycle.iter().copied().collect::<Vec<_>>()]);
        assert_eq!(deadlocks(&others), Vec::<Vec<Wait>>::new());
        let all = cycle.union(&others).copied().collect();
        assert_eq!(deadlocks(&all), deadlocks(&cycle));
        // Deadlocks on one node, of a shard and the router, through a process that only one shard knows, and two at once.
        assert_eq!(deadlocks(&waits(&[(1, 2, Some(1)), (2, 1, Some(1))])).len(), 0);
        assert_eq!(deadlocks(&waits(&[(1, 2, Some(1)), (2, 1, None)])).len(), 1);
        assert_eq!(deadlocks(&waits(&[(1, 10, Some(1)), (10, 2, Some(1)), (2, 1, Some(2))])).len(), 1);
        assert_eq!(deadlocks(&waits(&[(1, 2, Some(1)), (2, 1, Some(2)), (3, 4, Some(1)), (4, 3, None)])).len(), 2);
    }

    #[test]
    fn the_process_that_began_last_is_the_victim() {
        let begun = BTreeMap::from([(1, 100), (2, 300), (3, 200)]);
        let all = waits(&[(1, 2, Some(1)), (2, 3, None), (3, 1, Some(2)), (4, 1, Some(1))]);
        let cycle = &deadlocks(&all)[0];
        assert_eq!(victim(cycle, &all, &begun), Some(3), "2 waits at the router, and cannot be cancelled");
        let all = waits(&[(1, 2, Some(1)), (2, 3, Some(2)), (3, 1, Some(2)), (3, 5, None)]);
        assert_eq!(victim(&deadlocks(&all)[0], &all, &begun), Some(2), "so does 3, though for a process outside");
        assert_eq!(victim(cycle, &all, &BTreeMap::new()), None);
    }

    proptest! {
        /// Removing one victim after the other leaves only deadlocks that PostgreSQL resolves. Where each process waits only for
        /// processes with lower numbers, none is found.
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
