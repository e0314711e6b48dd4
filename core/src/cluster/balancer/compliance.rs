//! Checks whether a collection's chunks are where the policy requires them, as `balancerCollectionStatus` reports.

use super::moves::moves;
use super::split::splits;
use super::state::{Cluster, Cut, Reason};
use super::targets::{Class, Shards, classes};

/// Why a collection does not comply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compliance {
    /// chunks are on a shard that they must leave, are uneven, or are to be split
    Violated(Reason),
    /// no chunk has to move or to be split
    Compliant,
}

/// Returns whether a collection, given by position, complies, and the most serious reason if not. Ignores whether balancing is
/// off for the collection.
pub fn compliance(cluster: &Cluster, collection: usize) -> Compliance {
    let shards = Shards::of(cluster);
    let classes = classes(&shards, collection);
    let all = || (0..cluster.shards.len()).flat_map(|shard| classes.iter().map(move |class| (shard, class)));
    let holds = |(shard, class): &(usize, &Class)| !class.chunks(*shard).is_empty();
    if all().filter(holds).any(|(shard, class)| !shards.allows(shard, class.zone)) {
        return Compliance::Violated(Reason::Zone);
    }
    if all().filter(holds).any(|(shard, _)| cluster.shards[shard].draining) {
        return Compliance::Violated(Reason::Draining);
    }
    // For a collection that is balanced by load, unevenness is no violation: loads change even while chunks do not.
    let by_load = cluster.collections[collection].by_load;
    let uneven = |class: &Class| {
        let most = |part: &dyn Fn(usize) -> u64| class.homes.iter().map(|&shard| part(shard)).max().unwrap_or(0);
        most(&|shard| class.excess(shard)) + most(&|shard| class.lack(shard)) > class.threshold
    };
    // A state that no split or move can change is not a violation. So plan for this collection alone, as if all its shards were
    // available and no chunk were pinned or resting.
    let mut one =
        Cluster { shards: cluster.shards.clone(), collections: vec![cluster.collections[collection].clone()] };
    one.shards.iter_mut().for_each(|shard| shard.unavailable = false);
    // With a single shard there is nothing to balance.
    if one.shards.len() > 1
        && let Some(split) = splits(&one).first()
    {
        return Compliance::Violated(if split.cut == Cut::Zones { Reason::Zone } else { Reason::Evenness });
    }
    one.collections[0].balance = true;
    one.collections[0].resting.clear();
    one.collections[0].chunks.iter_mut().for_each(|chunk| (chunk.pinned, chunk.resting) = (false, false));
    if !by_load && classes.iter().any(uneven) && !moves(&one).0.is_empty() {
        return Compliance::Violated(Reason::Evenness);
    }
    Compliance::Compliant
}
