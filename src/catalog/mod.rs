//! The cluster's metadata. It is read into immutable snapshots, and changed under a lock for each collection.
//!
//! * [`cache`]: collections and shards as a router reads them, until they change.
//! * [`change`]: how metadata is changed: lock the collection's row, write, advance its revision, announce.
//! * [`cluster`]: the nodes: which database is the router, its shards, their positions, addresses and roles.
//! * [`collections`]: databases, collections, views, chunks, zones, indexes, sizes, and the rights to them.

pub mod cache;
pub mod change;
pub mod cluster;
pub mod collections;
