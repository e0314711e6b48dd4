//! The router: from a document operation to statements at the shards that it concerns, and back.
//!
//! Parse, plan, execute: a read becomes a [`query::Query`] with [`options`], then a [`plan::Plan`], which [`execute`] runs and
//! [`explain`] shows. A file imports only those that come before it here:
//!
//! * [`options`], [`query`], [`modification`]: what is asked for. [`order`], [`rows`], [`statement`], [`destination`]: what a plan and its answer
//!   are made of. [`merged_rows`]: several shards' rows as one, in order.
//! * [`fresh_map`]: runs again with a newer map when a shard answered that it was stale.
//! * [`dispatch`]: sends statements, locks and checks versions.
//! * [`plan`]: which shards are asked, which way they search, and the SQL of it. [`execute`]: runs that.
//! * [`insert`], [`write_target`]: where a write goes. [`upsert`], [`single_write`], [`change`], [`find_and_modify`].
//! * [`read`], [`distinct`], [`explain`] (with [`explain_stages`]: PostgreSQL's plans in MongoDB's words), [`by_key`]: reads and
//!   writes of one key without parsing more than that, [`measure`], [`inspect`], [`index_stats`]; [`config`]: the catalog as a
//!   database.
//!
//! INVARIANTS (see `ownership`): every statement carries the version that its map assumed; a stale answer of one target
//! voids the answers of all; no row is handed out before every target has confirmed; a write first locks and checks.

pub mod by_key;
pub mod change;
pub mod config;
pub mod destination;
pub mod dispatch;
pub mod distinct;
pub mod execute;
pub mod explain;
mod explain_stages;
pub mod find_and_modify;
pub mod fresh_map;
pub mod index_stats;
pub mod insert;
pub mod inspect;
pub mod measure;
pub mod merged_rows;
pub mod modification;
pub mod options;
pub mod order;
pub mod plan;
pub mod query;
pub mod read;
pub mod rows;
pub mod single_write;
pub mod statement;
pub mod upsert;
pub mod write_target;
