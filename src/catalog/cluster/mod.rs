//! The nodes of a cluster, and the operations of its administrators.
//!
//! * [`identity`]: which database is the cluster's router, and whether this one is; [`holder`]: where another one is.
//! * [`shard`]: a shard as the catalog knows it; [`shards`]: adding and removing them, and how they are reached; [`addresses`]: changes
//!   the address of one; [`lost`]: shards that are lost for good.
//! * [`nodes`]: runs statements and calls on shards; [`survey`] queries all of them, even if some are unreachable.
//! * [`contacts`]: the positions of shards, for handshakes; [`behind`]: shards that have lost changes which the catalog has.
//! * [`move_exclusion`]: locks for changes that wait until no chunk moves; [`pending_drops`]: drops that are still to be done at shards
//!   that could not be reached.
//! * [`access`]: application roles; [`rotation`]: a new password for the service role; [`protection`]: refuses to drop what a cluster
//!   needs.
//! * [`takeover`]: a copy of the router becomes the router; [`shard_state`] compares shards with the catalog; [`dismantle`]: dissolves the
//!   cluster.
//! * [`field_order`]: whether documents keep the order of their fields.
//! * [`settings`]: the cluster's settings, with their defaults and bounds; [`history`]: deletes old entries of the changelog and old moves.

pub mod access;
pub mod addresses;
pub mod behind;
pub mod contacts;
pub mod dismantle;
pub mod field_order;
pub mod history;
pub mod holder;
pub mod identity;
pub mod lost;
pub mod move_exclusion;
pub mod nodes;
pub mod pending_drops;
pub mod protection;
pub mod rotation;
pub mod settings;
pub mod shard;
pub mod shard_state;
pub mod shards;
pub mod survey;
pub mod takeover;
