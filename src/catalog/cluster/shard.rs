//! A shard, and where it is.

use docshard_core::cluster::chunk_map::ShardId;
use pgrx::pg_sys;

/// Where a shard is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// this database
    Local,
    /// reached through this postgres_fdw server
    Remote(pg_sys::Oid),
}

impl Place {
    /// The server of a remote shard.
    pub fn server(self) -> Option<pg_sys::Oid> {
        match self {
            Place::Local => None,
            Place::Remote(server) => Some(server),
        }
    }
}

/// A shard.
#[derive(Clone, Debug)]
pub struct Shard {
    pub id: ShardId,
    pub name: String,
    /// its postgres_fdw server; None for `local`
    pub server: Option<String>,
    /// where it is
    pub place: Place,
    /// it is being emptied, to be removed
    pub draining: bool,
    /// how much it may hold, in MiB
    pub max_size_mb: Option<i32>,
}
