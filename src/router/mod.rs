//! The router: translates a document operation into statements for the shards that it concerns, and their rows into its result.
//!
//! Parse, plan, execute: a read becomes a query with options, then a plan, both in core's `routing`, which [`execute`] runs and
//! [`explain`] shows. Each module imports only modules that come before it in this list:
//!
//! * [`session`]: what requests and plans take from the session; [`modification`]: the parsed updates that it keeps.
//! * [`lost_shards`], [`rows`]: results. [`merged_rows`]: the rows of several shards as one ordered stream.
//! * [`fresh_map`]: runs an operation again with a newer map when a shard answered that the map was stale.
//! * [`numbered`]: the number of a write that its client may send again, and that is executed once.
//! * [`dispatch`]: sends statements, takes locks, checks versions. [`execute`]: runs a plan.
//! * [`once`]: claims such numbers. [`insert`]; [`write_target`], [`upsert`], [`locked_write`], [`write`], [`keyed_updates`], [`clear`], [`expiry`]: writes, and the search for the documents that they
//!   write. [`config`]: the catalog as a database.
//! * [`read`], [`aggregate`], [`distinct`], [`measure`], [`inspect`], [`index_stats`], [`statistics`]: reads. [`by_key`]: the fast path for one document whose
//!   key is the whole filter.
//! * [`explain`], [`explain_bounds`], [`explain_stages`]: translate PostgreSQL's plans into MongoDB's terms. [`explain_pipeline`]:
//!   explains what shards and router do of a pipeline.
//!
//! INVARIANTS (see `shard`): every statement carries the version that its map assumed; if one target reports a stale map,
//! the answers of all targets are discarded; no row is returned before every target has confirmed its version; a write locks and
//! checks first.

pub mod activity;
pub mod aggregate;
pub mod by_key;
pub mod clear;
pub mod cluster_statistics;
pub mod config;
pub mod dispatch;
pub mod distinct;
pub mod execute;
pub mod expiry;
pub mod explain;
mod explain_bounds;
pub mod explain_pipeline;
mod explain_stages;
pub mod fresh_map;
pub mod index_stats;
pub mod insert;
pub mod inspect;
pub mod keyed_updates;
pub mod locked_write;
pub mod lost_shards;
pub mod measure;
pub mod merged_rows;
pub mod modification;
pub mod numbered;
pub mod once;
pub mod read;
pub mod rows;
pub mod session;
mod skip_locked;
pub mod statistics;
pub mod upsert;
pub mod write;
pub mod write_target;
