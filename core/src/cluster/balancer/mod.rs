//! The balancer's policy: from a cluster's state to the next splits, merges and moves. Pure; the worker around it
//! measures and executes.
//!
//! The unit is a chunk's weight: its bytes plus a constant, so that empty chunks spread, too. The chunks of a collection in one
//! zone, and those in no zone, each form a *class*: they may live on the zone's shards, or anywhere. Every class has a *target*
//! on each shard ([`targets`]), so that the collection's weight is as even as zones and sizes allow; without zones the target is
//! the collection's weight divided by the number of shards that can hold it. Except near a shard's size limit, targets depend on
//! the chunks and not on where they are, so moves do not change them.
//!
//! Splits ([`split`]): a chunk that straddles the bounds of zones is cut there, also a jumbo one. A chunk above the split
//! size is cut into equal parts. The split size is the collection's chunk size, and smaller while the collection is
//! young, so that it spreads early.
//!
//! Moves ([`moves`]): a shard takes part in at most one move of a plan. The kinds of moves, most urgent first:
//!
//! 1. *Zones*: a chunk on a shard outside its zone, also a jumbo one, moves to the zone's shard that is farthest below its target.
//! 2. *Draining*: a draining shard gives away any chunk, also a jumbo one, to the shard that is farthest below its target. Tiny
//!    neighbours move along, here and into zones, up to the recipient's target.
//! 3. *Evenness*: a shard above its target gives chunks to one below its target while excess and lack together exceed a
//!    threshold. The threshold is three times the chunk size, as in MongoDB, or, if that is less, an eighth of the level to which
//!    targets fill the shards. The largest chunk moves that crosses neither target; else the smallest one of at most half of
//!    excess and lack together.
//! 4. *Load* takes the place of evenness for collections that are balanced by load: see [`load`], which also splits hot chunks.
//!
//! Merges ([`merge`]): neighbours on one shard, in one zone, that became tiny.
//!
//! INVARIANTS, held by property tests:
//! * No move to a draining shard, to a full one, out of the chunk's zone, or from a shard to itself; no shard takes part
//!   in two moves of a plan.
//! * A move of evenness never makes the recipient's excess larger than the donor's; so the sum of squares of the
//!   distances from the targets falls with each, and while sizes do not change, the balancer stops after finitely many moves.
//! * A pinned chunk (one that moved in this convergence already) moves again only into its zone or off a draining shard.
//! * A merged chunk is not split again.
//! * Steps for collections that are balanced by bytes do not depend on loads.

mod state;
mod targets;
mod window;

mod split;

mod round;

mod load;
mod moves;

mod compliance;
mod merge;

#[cfg(test)]
mod load_tests;
#[cfg(test)]
mod tests;

pub use compliance::{Compliance, compliance};
pub use load::Patience;
pub use state::{Chunk, Cluster, Collection, Cut, Load, Merge, Move, Plan, Reason, Shard, Split, ZoneId};
pub use targets::{Spread, spread};
pub use window::{Window, time_of_day};

/// Plans the next steps. Chunks move only if there is nothing to split, and are merged only if there is nothing to split or move.
pub fn plan(cluster: &Cluster) -> Plan {
    let mut splits = split::splits(cluster);
    let mut moves = Vec::new();
    if splits.is_empty() {
        (moves, splits) = moves::moves(cluster);
        if !splits.is_empty() {
            moves.clear();
        }
    }
    let merges = if splits.is_empty() && moves.is_empty() { merge::merges(cluster) } else { Vec::new() };
    Plan { splits, moves, merges }
}
