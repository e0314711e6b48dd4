//! The face: every SQL function, thin.

pub mod balancer;
pub mod bulk_write;
pub mod chunks;
pub mod cluster;
pub mod collections;
pub mod command;
pub mod documents;
pub mod engine;
pub mod find_and_modify;
pub mod measure;
pub mod settings;
pub mod shard;
pub mod status;
pub mod zones;
