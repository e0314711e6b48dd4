//! The stages: for each the parser of its argument, and its operation. Related stages share a file.
//!
//! [`accumulating`] is used by the stages that have accumulators; [`equality`], [`query_cache`] and [`attached`] by those that join;
//! [`granularity`] by `$bucketAuto`.

pub mod accumulating;
pub mod collection_statistics;
pub mod derived;
pub mod documents;
pub mod facet;
pub mod fill;
pub mod granularity;
pub mod limit_skip;
pub mod merge;
pub mod per_document;
pub mod sort;
pub mod unwind;

pub mod attached;
pub mod equality;
pub mod query_cache;

pub mod bucket_auto;
pub mod densify;
pub mod graph_lookup;
pub mod group;
pub mod lookup;
pub mod union_with;
pub mod window;
