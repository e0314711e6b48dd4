//! The stages, one file each, with the parser of the stage's argument and its operation. Stages share [`accumulating`] (those with
//! accumulators), [`equality`], [`query_cache`] and [`attached`] (those that join). [`granularity`] is a part of `$bucketAuto`.

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
