//! The sessions in which a build runs at shards.

use crate::migration::shard::LOCAL_SERVER;
use crate::pg::error::Result;
use crate::pg::server::foreign_server_oid;

/// What the sessions of a build are called, so that whoever clears it away finds them.
pub(super) fn application(id: i32) -> String {
    format!("docshard: building index {id}")
}

/// True if the router's own database has never had other shards beside it. Otherwise it is reached like them, by a session.
pub(super) fn is_alone() -> Result<bool> {
    Ok(foreign_server_oid(LOCAL_SERVER).is_none())
}
