//! The pure heart of docshard: what a document, a key, a chunk and a query mean.
//!
//! Nothing here knows PostgreSQL's server, a connection or a catalog table; everything can be unit-tested,
//! property-tested and benchmarked without one. Imports go one way, in the order of the modules below and of those in each folder.
#![forbid(unsafe_code)]

pub mod budget;
pub mod error;
pub mod json;

pub mod values;

pub mod query;

pub mod cluster;
