//! The names of shards, of their postgres_fdw servers, and of the roles under which router and shards log in.

use crate::catalog::cluster::identity::cluster_id;
use crate::pg::error::Result;
use crate::shard::access;
use docshard_core::error::{Kind, error};

/// The name of the router's own database as a shard.
pub const LOCAL: &str = "local";
/// The longest name of a shard, in bytes. With the prefix it must fit into a PostgreSQL identifier.
const MAX_NAME: usize = 50;

/// The postgres_fdw server of a shard, on the router and on every other shard.
pub fn server_name(shard: &str) -> String {
    format!("docshard_{shard}")
}

pub(in crate::catalog) fn check_name(name: &str) -> Result<()> {
    let good = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.');
    if name.is_empty() || name.len() > MAX_NAME || !name.chars().all(good) || matches!(name, LOCAL | "config" | "admin")
    {
        return Err(error!(Kind::BadValue, "invalid shard name \"{name}\"").with_hint(format!(
            "A name has 1 to {MAX_NAME} letters, digits, '_', '-' and '.'; \"local\", \"config\" and \"admin\" are reserved."
        )));
    }
    Ok(())
}

/// The prefix of this cluster's role names. It contains the cluster's identity, as two clusters may use databases of one server.
fn role_prefix() -> Result<String> {
    Ok(format!("{}{:08x}", access::PREFIX, cluster_id()? as u32))
}

/// The role under which this router logs in to a shard, unless an administrator created one. Each shard has its own role and password,
/// so a password that a malicious shard learns is of no use elsewhere.
pub(in crate::catalog) fn service_name(shard: i32) -> Result<String> {
    Ok(format!("{}_s{shard}", role_prefix()?))
}

/// The role under which a shard logs in to other shards.
pub(in crate::catalog) fn puller_name(shard: i32) -> Result<String> {
    Ok(format!("{}_{shard}", role_prefix()?))
}
