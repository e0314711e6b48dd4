//! The core of docshard: documents, keys, chunks and the query language.
//!
//! No module depends on PostgreSQL's server, connections or catalog tables, so all can be unit-tested, property-tested and
//! benchmarked without them. Imports go one way, in the order of the modules below and of those in each folder.
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
