//! Shards as administrators see them: added, drained, removed, and how they are reached.

pub mod add;
pub(in crate::catalog) mod connection_string;
pub mod names;
mod probe;
pub mod remove;
pub(in crate::catalog) mod servers;
