//! The parts of docshard that need no PostgreSQL: documents, keys and the query language; chunk maps, balancing and moves; plans and the
//! protocol between nodes; advice on shard keys.
//!
//! No module depends on PostgreSQL's server, connections or catalog tables, so all can be unit-tested, property-tested and
//! benchmarked without them. A module uses only modules that are declared before it, here and in the `mod.rs` of its folder.
#![forbid(unsafe_code)]

pub mod budget;
pub mod error;
pub mod json;

pub mod values;

pub mod query;

pub mod sql;

pub mod cluster;

pub mod routing;

pub mod advice;
