//! Reads: [`find`] (and count), [`aggregate`], [`distinct`]; [`inspect`] checks a collection; [`foreign_ranges`] finds documents
//! at shards that do not own them; [`collection_sizes`] measures a collection; [`key_sample`] reads a sample of its documents.
//!
//! [`statistics`], [`index_stats`], [`cluster_statistics`], [`activity`] make the documents of the stages that describe collections,
//! indexes, the cluster and its sessions.

pub mod activity;
pub mod aggregate;
pub mod cluster_statistics;
pub mod collection_sizes;
pub mod distinct;
pub mod find;
pub mod foreign_ranges;
pub mod index_stats;
pub mod inspect;
pub mod key_sample;
pub mod statistics;
