//! Reads: [`find`] (and count), [`aggregate`], [`distinct`]; [`inspect`] checks a collection; [`collection_sizes`] measures it.
//!
//! [`statistics`], [`index_stats`], [`cluster_statistics`], [`activity`]: the documents of the stages that describe collections,
//! indexes, the cluster and its sessions.

pub mod activity;
pub mod aggregate;
pub mod cluster_statistics;
pub mod collection_sizes;
pub mod distinct;
pub mod find;
pub mod index_stats;
pub mod inspect;
pub mod statistics;
