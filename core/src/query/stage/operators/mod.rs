//! The stages, a file each: what parses a stage's argument, and its operation. What several of them share stands in front of them:
//! [`accumulating`] of those with accumulators, [`granularity`] of `$bucketAuto`, [`equality`], [`query_cache`] and [`attached`] of joins.

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
