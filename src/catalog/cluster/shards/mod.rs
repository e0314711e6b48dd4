//! Adds, drains and removes shards, and maintains the servers and roles by which they are reached.

pub mod add;
pub(in crate::catalog) mod connection_string;
pub mod names;
pub mod remove;
pub(in crate::catalog) mod repair;
pub(in crate::catalog) mod servers;

pub use servers::{Login, accept_router, reach_this_database};
