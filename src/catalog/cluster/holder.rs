//! Describes the router that holds the lock on a shard, for the clients of a copy. The description has the address from which that
//! router has connected to the shard; the shard knows no other one.

use crate::pg::error::Result;
use crate::remote::Session;
use crate::shard::router_lock;
use crate::storage::lock::{self, Tag};
use docshard_core::cluster::chunk_map::ShardId;
use docshard_core::cluster::standing::{host_of, shortened};

/// How long a shard may take to answer, in milliseconds.
const ANSWER_MS: i64 = 3_000;

/// Describes the session of another router that holds a shard's lock; None if there is none, or if this router holds the lock.
pub fn other_at(session: &mut Session, shard: ShardId) -> Result<Option<String>> {
    if lock::is_excluded(Tag::Kept(shard)) {
        return Ok(None);
    }
    let holders: Vec<Option<String>> = session.query_within(&router_lock::holder_query(), &[], ANSWER_MS)?;
    Ok(holders.into_iter().next().flatten().map(|holder| shortened(&holder)))
}

/// The last part of a reason why this database is a copy: who holds the lock. Empty if that is not known.
pub fn held_by(holder: Option<String>) -> String {
    holder.map_or_else(String::new, |holder| format!("; its lock is held by {holder}"))
}

/// The last part of a hint to connect to the router: its host, if a reason or description names it; else empty.
pub fn place(description: &str) -> String {
    host_of(description).map_or_else(String::new, |host| format!(", which holds the lock on its shards (host {host})"))
}
