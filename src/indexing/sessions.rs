//! The sessions in which a build runs at shards.

use crate::migration::shard::LOCAL_SERVER;
use crate::pg::error::Result;
use crate::pg::server::foreign_server_oid;

/// Returns the application name of a build's sessions, by which they are found when the build is removed.
pub(super) fn application(id: i32) -> String {
    format!("docshard: building index {id}")
}

/// True if the cluster has never had a shard besides the router's own database. Otherwise that database is reached by a session,
/// too.
pub(super) fn is_alone() -> Result<bool> {
    Ok(foreign_server_oid(LOCAL_SERVER).is_none())
}
