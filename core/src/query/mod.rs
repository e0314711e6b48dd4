//! The query language over one document: expressions, filters, projections, sorts, updates, index keys. It does not know
//! that shards exist.

pub mod environment;
pub(crate) mod regex;

pub mod expression;

pub mod envelope;

pub mod distinct;
pub mod filter;
pub mod projection;
pub mod sort;
pub mod update;

pub mod index;
