//! The nodes of a cluster, and the operations of its administrators.
//!
//! * [`identity`]: whether this database is the cluster's router or a copy of it; [`holder`]: describes the router that holds a shard's
//!   lock, for the clients of a copy.
//! * [`shard`]: a shard as the catalog knows it; [`shards`]: adds and removes shards, and maintains how they are reached; [`addresses`]:
//!   changes a shard's address; [`lost`]: removes shards that are lost for good.
//! * [`nodes`]: runs statements and calls on shards; [`survey`]: queries all shards at once, for reports. Unreachable shards are reported,
//!   and do not fail the query.
//! * [`contacts`]: for each shard its last known timeline and counter. Handshakes compare them to detect a shard that was restored from an
//!   older copy. [`behind`]: shards whose version of a collection is older or newer than the catalog's.
//! * [`move_exclusion`]: locks for changes that wait until no chunk moves; [`pending_drops`]: drops that are still to be done at shards
//!   that could not be reached.
//! * [`access`]: grants and revokes roles' access to documents; [`rotation`]: changes the passwords of the service role; [`protection`]:
//!   refuses to drop, change or truncate what a cluster needs.
//! * [`takeover`]: a copy of the router becomes the router; [`shard_state`]: compares shards with the catalog; [`dismantle`]: dissolves the
//!   cluster.
//! * [`field_order`]: whether documents keep the order of their fields.
//! * [`settings`]: the cluster's settings, with their defaults and bounds; [`history`]: deletes old changelog entries, ended moves and
//!   changes of layout, and sampled statements.

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
