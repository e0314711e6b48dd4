//! Whether a collection's chunks are where the policy wants them.

use super::moves::moves;
use super::state::{Cluster, Collection, Reason};
use super::targets::{Class, Shards, classes};

/// Why a collection does not comply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compliance {
    /// chunks are on a shard that they must leave, or are uneven
    Violated(Reason),
    /// no chunk has to move
    Compliant,
}

/// Whether a collection, by position, complies; the gravest reason if not. A collection whose balancing is off is judged as if
/// it were on.
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
    let uneven = |class: &Class| {
        let most = |part: &dyn Fn(usize) -> u64| class.homes.iter().map(|&shard| part(shard)).max().unwrap_or(0);
        most(&|shard| class.excess(shard)) + most(&|shard| class.lack(shard)) > class.threshold
    };
    // Unevenness that no move can reduce is no violation.
    let can_move = |collection: &Collection| {
        let mut one = Cluster { shards: cluster.shards.clone(), collections: vec![collection.clone()] };
        one.collections[0].balance = true;
        one.collections[0].chunks.iter_mut().for_each(|chunk| (chunk.pinned, chunk.resting) = (false, false));
        one.shards.iter_mut().for_each(|shard| shard.unavailable = false);
        !moves(&one).is_empty()
    };
    if classes.iter().any(uneven) && can_move(&cluster.collections[collection]) {
        return Compliance::Violated(Reason::Evenness);
    }
    Compliance::Compliant
}
