//! The cluster's metadata: read into immutable snapshots, changed under one lock a collection.
//!
//! * [`namespace`]: names of databases and collections, checked.
//! * [`cache`]: collections and shards as a router reads them, until they change; [`shard`].
//! * [`change`]: how metadata is changed: lock the collection's row, write, advance its revision, announce.
//! * [`contacts`]: the positions of shards, for handshakes; [`behind`]: shards that have lost changes which the catalog has.
//! * [`move_exclusion`]: locks for changes that wait until no chunk moves.
//! * [`cluster`]: which database is the cluster's router, and whether this one is; [`holder`]: where another one is.
//! * [`history`]: deletes old entries of the changelog and old moves.
//! * [`grants`]: the rights of roles to read and write collections.
//! * [`sizes`]: the sizes of collections, as shards measure them; [`survey`] queries all shards, even if some are unreachable.
//! * [`duplicate`]: MongoDB's errors for violated unique indexes.
//! * [`last_sizes`]: the last known sizes; [`lost`]: shards that are lost for good.
//! * [`chunks`]: splitting and merging.
//! * [`rotation`]: a new password for the service role.
//! * [`pending_drops`]: drops that are still to be done at shards that could not be reached.
//! * [`dismantle`]: dissolves the cluster.
//! * [`protection`]: refuses to drop what a cluster needs.
//! * [`takeover`]: a copy of the router becomes the router; [`shard_state`] compares shards with the catalog.
//! * [`views`]: pipelines that are read like collections.
//! * [`zones`]: which shards and which ranges of keys belong to a zone.
//! * [`settings`]: the cluster's settings, with their defaults and bounds.
//! * [`addresses`]: changes the address of a shard.
//! * [`shards`]: adding and removing shards, and how they are reached; [`databases`], [`collections`], [`sharding`], [`access`]:
//!   the other operations of administrators; [`nodes`] runs their statements on shards.
//! * [`indexes`]: creating secondary indexes; [`index_options`], [`index_removal`], [`index_changes`]; [`rename`]: renaming collections.

pub mod access;
pub mod addresses;
pub mod behind;
pub mod cache;
pub mod change;
pub mod chunks;
pub mod cluster;
pub mod collections;
pub mod contacts;
pub mod databases;
pub mod dismantle;
pub mod duplicate;
mod foreign_tables;
pub mod grants;
pub mod history;
pub mod holder;
pub mod index_changes;
pub mod index_options;
pub mod index_removal;
pub mod indexes;
pub mod last_sizes;
pub mod lost;
mod missing_grant;
pub mod move_exclusion;
pub mod namespace;
pub mod nodes;
pub mod pending_drops;
pub mod protection;
pub mod rename;
pub mod rotation;
pub mod settings;
pub mod shard;
pub mod shard_state;
pub mod sharding;
pub mod shards;
pub mod sizes;
pub mod survey;
pub mod takeover;
pub mod views;
pub mod zones;
