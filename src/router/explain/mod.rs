//! Explains reads: [`statement`] a find or count, [`pipeline`] what shards and router do of a pipeline. [`bounds`] and [`stages`]
//! translate key ranges and PostgreSQL's plans into MongoDB's terms.

mod bounds;
pub mod pipeline;
mod stages;
pub mod statement;
