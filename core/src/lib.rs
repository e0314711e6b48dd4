//! The pure heart of docshard: what a document, a key, a chunk and a query mean.
//!
//! Nothing here knows PostgreSQL's server, a connection or a catalog table; everything can be unit-tested,
//! property-tested and benchmarked without one. Imports go one way, in the order of the modules below.
#![forbid(unsafe_code)]

pub mod budget;
pub mod error;
pub mod json;

pub mod collation;
pub mod document;

pub mod key;

pub mod chunk_map;
pub mod zone;

mod path;

pub mod expression;
pub mod setting;

pub mod distinct;
pub mod filter;
pub mod projection;
pub mod sort;
pub mod update;

pub mod index;

pub mod merge;
pub mod targeting;

pub mod plan;

pub mod balancer;
pub mod deadlock;
pub mod handshake;
pub mod migration;
pub mod prepared_name;
pub mod router_lock;
pub mod silence;
pub mod standing;
