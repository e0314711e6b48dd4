//! Explains reads: [`statement`] a find or count, [`pipeline`] what shards and router do of a pipeline. [`bounds`] and [`stages`]
//! translate key ranges and PostgreSQL's plans into MongoDB's terms. [`assumed`]: a find under a shard key that the collection does not have.

pub mod assumed;
mod bounds;
pub mod pipeline;
mod stages;
pub mod statement;
