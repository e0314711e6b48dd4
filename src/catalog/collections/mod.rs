//! Collections and what belongs to them.
//!
//! * [`namespace`]: names of databases and collections, checked; `nul`: their definitions, too; [`databases`]: databases and their primary shards.
//! * [`collection`]: creates and drops collections; [`sharding`]: shards them; [`rename`]: renames them, with `foreign_tables`;
//!   [`validation`]: their validators; [`views`]: pipelines that are read like collections.
//! * [`layout`]: gives a collection another shard key, other chunks or other shards.
//! * [`chunks`]: splits and merges chunks; [`zones`]: which shards and which ranges of keys belong to a zone.
//! * [`indexes`]: creates secondary indexes; [`index_options`], [`index_removal`], [`index_changes`]; [`duplicate`]: MongoDB's errors for
//!   violated unique indexes.
//! * [`grants`]: the rights of roles to read and write collections; `missing_grant`: errors for a role without them.
//! * [`sizes`]: the sizes of collections, as shards measure them; [`last_sizes`]: the last known numbers of documents; [`loads`]: the load
//!   of chunks.

pub mod chunks;
pub mod collection;
pub mod databases;
pub mod duplicate;
mod foreign_tables;
pub mod grants;
pub mod index_changes;
pub mod index_options;
pub mod index_removal;
pub mod indexes;
pub mod last_sizes;
pub mod layout;
pub mod loads;
pub(in crate::catalog) mod missing_grant;
pub mod namespace;
mod nul;
pub mod rename;
pub mod sharding;
pub mod sizes;
pub mod validation;
pub mod views;
pub mod zones;
