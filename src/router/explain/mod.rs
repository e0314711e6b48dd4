//! Explains reads and the search of writes. [`statement`] explains a find, count or distinct, and how a write finds its documents;
//! [`pipeline`] a pipeline; [`assumed`] a find under a shard key that the collection does not have. [`bounds`] and [`stages`] translate key
//! ranges and PostgreSQL's plans into MongoDB's terms.

pub mod assumed;
mod bounds;
pub mod pipeline;
mod stages;
pub mod statement;
