//! The router: from a document operation to statements at the shards that it concerns, and back.
//!
//! Parse, plan, execute: a read becomes a [`query::Query`] with [`options`], then a [`plan::Plan`], which [`execute`] runs and
//! [`explain`] shows. Imports go one way, to what stands before it here:
//!
//! * [`options`], [`query`], [`modification`]: what is asked for.
//! * [`order`], [`rows`], [`statement`], [`destination`]: what plans and answers are made of. [`merged_rows`]: the rows of several
//!   shards as one stream, in order.
//! * [`fresh_map`]: runs an operation again with a newer map when a shard answered that the map was stale.
//! * [`dispatch`]: sends statements, takes locks, checks versions.
//! * [`plan`]: targets, access path and SQL of a read. [`execute`]: runs it.
//! * [`insert`]; [`write_target`], [`upsert`], [`locked_write`], [`write`]: writes of other kinds, and the search for what they
//!   write. [`config`]: the catalog as a database.
//! * [`read`], [`distinct`], [`measure`], [`inspect`], [`index_stats`]: reads. [`by_key`]: reads and writes of one document whose
//!   filter is a key, of which nothing else is parsed.
//! * [`explain`], with [`explain_bounds`], and [`explain_stages`]: PostgreSQL's plans in MongoDB's words.
//!
//! INVARIANTS (see `ownership`): every statement carries the version that its map assumed; a stale answer of one target
//! voids the answers of all; no row is handed out before every target has confirmed; a write first locks and checks.

pub mod by_key;
pub mod config;
pub mod destination;
pub mod dispatch;
pub mod distinct;
pub mod execute;
pub mod explain;
mod explain_bounds;
mod explain_stages;
pub mod fresh_map;
pub mod index_stats;
pub mod insert;
pub mod inspect;
pub mod locked_write;
pub mod measure;
pub mod merged_rows;
pub mod modification;
pub mod options;
pub mod order;
pub mod plan;
pub mod query;
pub mod read;
pub mod rows;
pub mod statement;
pub mod upsert;
pub mod write;
pub mod write_target;
