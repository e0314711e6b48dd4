//! A shard, and where it is.

use crate::pg::error::Result;
use docshard_core::cluster::chunk_map::ShardId;
use docshard_core::error::{Kind, ensure};
use pgrx::pg_sys::Oid;

/// The foreign server through which the router, and other shards, reach the router's own database.
pub const LOCAL_SERVER: &str = "docshard_local";

/// A shard.
#[derive(Clone, Debug)]
pub struct Shard {
    pub id: ShardId,
    pub name: String,
    /// None for this database
    pub server: Option<Server>,
    /// the shard is being drained, to be removed
    pub draining: bool,
    /// how much it may hold, in MiB
    pub max_size_mb: Option<i32>,
}

/// The postgres_fdw server by which a shard on another node is reached.
#[derive(Clone, Debug)]
pub struct Server {
    pub name: String,
    pub oid: Oid,
}

impl Shard {
    /// Refuses a shard that is being removed, for a request to bring data to it.
    pub fn require_takes_data(&self) -> Result<()> {
        ensure!(!self.draining, Kind::ShardNotFound, "shard {} is being removed", self.name);
        Ok(())
    }

    /// True for this database.
    pub fn is_local(&self) -> bool {
        self.server.is_none()
    }

    /// The OID of its server; None for this database.
    pub fn oid(&self) -> Option<Oid> {
        self.server.as_ref().map(|server| server.oid)
    }
}
