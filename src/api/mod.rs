//! The face: every SQL function, thin.

pub mod engine;
pub mod shard;
