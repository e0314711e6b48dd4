//! The cluster's metadata: read into immutable snapshots, changed under one lock a collection.
//!
//! * [`namespace`]: names of databases and collections, checked.
//! * [`model`]: what a router knows of a collection; [`cache`] keeps it and notices changes.
//! * [`change`]: how metadata is changed: lock the collection's row, write, advance its revision, announce.
//! * [`chunks`]: splitting and merging.
//! * [`settings`]: the cluster's settings, with their defaults and bounds.
//! * [`shards`], [`databases`], [`collections`], [`indexes`]: the operations of administrators.

pub mod cache;
pub mod change;
pub mod chunks;
pub mod model;
pub mod namespace;
pub mod settings;
