//! The query language: expressions, accumulators, filters, projections, sorts, stages, updates, index keys, validators.
//!
//! [`stage`] can divide a pipeline into a part for shards and a part for the router, but no module knows a chunk map or a particular shard.

pub(crate) mod direction;
pub(crate) mod document_builder;
pub mod environment;
pub(crate) mod operand;
pub(crate) mod random;
pub(crate) mod regex;

pub mod accumulator;

pub mod expression;

pub mod envelope;

pub mod specification;

pub mod distinct;
pub mod sort;

pub mod filter;
pub mod projection;
pub mod stage;
pub mod update;
pub mod validator;

pub mod index;
pub mod vocabulary;
