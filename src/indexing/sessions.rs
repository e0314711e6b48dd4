//! The sessions in which a build runs at shards: their name, and whether there are any.

use crate::catalog::cluster::shard::LOCAL_SERVER;
use crate::pg::error::Result;
use crate::pg::server::foreign_server_oid;

/// Returns the application name of a build's sessions, by which they are found when the build is removed.
pub(super) fn application(id: i32) -> String {
    format!("docshard: building index {id}")
}

/// True if the cluster has never had another shard than the router's own database. Then a build runs in the builder's own process;
/// otherwise even the router's own database is reached by a session.
pub(super) fn is_alone() -> Result<bool> {
    Ok(foreign_server_oid(LOCAL_SERVER).is_none())
}
