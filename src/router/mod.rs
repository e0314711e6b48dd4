//! The router: from a document operation to statements at the shards that it concerns, and back.
//!
//! * [`options`]: the drivers' options of each operation.
//! * [`choice`]: which index a filter is best served by.
//! * [`condition`], [`statement`]: the SQL that a shard runs; few shapes, values as parameters, so that it is prepared.
//! * [`call`]: statements that are one call of a function there.
//! * [`covered`]: what an index answers without documents.
//! * [`halves`]: how a find with a limit or a sort goes by an index that has two parts.
//! * [`few`]: finds of few documents, which a shard does without PostgreSQL's planner.
//! * [`point`]: finds of one document by its whole key, without parsing more than that.
//! * [`hint`]: which index a statement is to be run with.
//! * [`dispatch`]: sends, checks versions. [`fresh`]: runs again with a newer map when a shard answered that it was stale.
//! * [`merge`]: several shards' answers as one, in order.
//! * [`aim`]: which shards, and which document, a write goes to.
//! * [`read`], [`insert`], [`modify`], [`single`], [`upsert`], [`find_and_modify`],
//!   [`distinct`], [`explain`] (with [`explain_stages`]: PostgreSQL's plans in MongoDB's words), [`measure`], [`inspect`], [`index_stats`]: the operations; [`config`]: the catalog as a database.
//!
//! INVARIANTS (see `ownership`): every statement carries the version that its map assumed; a stale answer of one target
//! voids the answers of all; no row is handed out before every target has confirmed; a write first locks and checks.

pub mod aim;
pub mod call;
pub mod choice;
pub mod condition;
pub mod config;
pub mod covered;
pub mod dispatch;
pub mod distinct;
pub mod explain;
mod explain_stages;
pub mod few;
pub mod find_and_modify;
pub mod fresh;
pub mod halves;
pub mod hint;
pub mod index_stats;
pub mod insert;
pub mod inspect;
pub mod measure;
pub mod merge;
pub mod modify;
pub mod options;
pub mod point;
pub mod read;
pub mod single;
pub mod statement;
pub mod upsert;
