//! What a shard knows of its own ownership, and how statements are held to it.
//!
//! `docshard_data.placement` has one row a collection: the version at which this shard is. INVARIANT: in any snapshot
//! the rows of a collection's table are exactly the documents of the chunks that this shard owns at the version visible
//! in that same snapshot; whoever changes ownership changes both in one commit.
//!
//! * Every statement of a router carries [`placement::check`] inside itself, in its own snapshot.
//! * Every write first passes [`writing::lock_and_check`].
//! * [`documents`] inserts, and changes single documents, in one call with that check.
//! * [`index_range`] finds few documents by one index.
//! * [`updating`] changes documents as a statement finds them.
//! * [`recipient_load`] loads what a move has pulled.
//! * [`donor_delete`] removes such a range when it has been moved.
//! * [`clone_parts`] divides such a range, and packs and unpacks its documents.
//! * [`index_functions`] is what the functions that indexes are made of answer.
//! * [`inspect`] finds documents that are not stored as they should be.
//! * [`leftovers`] lists what a move leaves here until it is cleaned.
//! * [`measure`] tells how much is here, and where it can be cut.
//! * [`access`] says who may do what here.
//! * [`dismantle`] makes this database one of no cluster.
//! * [`node`] is what this shard has recorded of itself, and how it answers routers that connect.
//! * [`router_lock`] is held by the cluster's router.
//! * [`health`] is what a node tells of itself.
//! * [`table`] makes and drops the collection's table together with its placement.

pub mod access;
pub mod clone_parts;
pub mod dismantle;
pub mod documents;
pub mod donor_delete;
pub mod health;
pub mod index_functions;
pub mod index_range;
pub mod inspect;
pub mod leftovers;
pub mod measure;
pub mod node;
pub mod placement;
pub mod recipient_load;
pub mod router_lock;
mod stored;
pub mod table;
pub mod updating;
pub mod writing;
