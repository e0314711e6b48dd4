//! What a shard does: it keeps the documents of the chunks that it owns, and checks each statement against that ownership.
//!
//! `docshard_data.placement` has a row for each collection: the version of this shard. INVARIANT: in any snapshot the rows of a
//! collection's table are exactly the documents of the chunks that this shard owns at the version which the same snapshot shows;
//! a change of ownership changes both in one commit.
//!
//! Every statement of a router contains [`placement::check`], in its own snapshot. Every write first passes
//! [`writing::lock_and_check`].

pub mod access;
pub mod accesses;
pub mod clone_parts;
pub mod dismantle;
pub mod documents;
pub mod donor_delete;
pub mod health;
pub mod here;
pub mod index_functions;
pub mod index_range;
pub mod inspect;
pub mod leftovers;
pub mod measure;
pub mod member_shape;
pub mod node;
mod numbered_writes;
pub mod once;
pub mod pipeline;
pub mod placement;
pub mod recipient_load;
pub mod router_lock;
pub mod share_load;
mod stored;
pub mod table;
pub mod table_shape;
pub mod table_witness;
pub mod updating;
pub mod writing;
