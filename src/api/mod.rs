//! The face: every SQL function, thin.

pub mod cluster;
pub mod collections;
pub mod documents;
pub mod engine;
pub mod shard;
