//! Names: of shards, of the servers that lead there, and of the roles as which router and shards log in.

use crate::catalog::cluster::cluster_id;
use crate::ownership::access;
use crate::pg::error::{Error, Result};
use docshard_core::error::Kind;

/// The name of the router's own database as a shard.
pub const LOCAL: &str = "local";
/// The longest name of a shard, in bytes: with the prefix it has to be a PostgreSQL name.
const MAX_NAME: usize = 50;

/// The postgres_fdw server of a shard, on the router and on every other shard.
pub fn server_name(shard: &str) -> String {
    format!("docshard_{shard}")
}

pub(in crate::catalog) fn check_name(name: &str) -> Result<()> {
    let good = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.');
    if name.is_empty() || name.len() > MAX_NAME || !name.chars().all(good) || matches!(name, LOCAL | "config" | "admin")
    {
        let message = format!("\"{name}\" is no name for a shard");
        return Err(Error::new(Kind::BadValue, message).with_hint(format!(
            "A name has 1 to {MAX_NAME} letters, digits, '_', '-' and '.'; \"local\", \"config\" and \"admin\" are taken."
        )));
    }
    Ok(())
}

/// What begins the names of this cluster's roles: two clusters may use databases of one server.
fn role_prefix() -> Result<String> {
    Ok(format!("{}{:08x}", access::PREFIX, cluster_id()? as u32))
}

/// The role as which this router logs in at a shard, unless an administrator made one. Each shard has a name and a password of
/// its own: what a shard learns by asking for the password is good for nothing elsewhere.
pub(in crate::catalog) fn service_name(shard: i32) -> Result<String> {
    Ok(format!("{}_s{shard}", role_prefix()?))
}

/// The role as which a shard logs in at others.
pub(in crate::catalog) fn puller_name(shard: i32) -> Result<String> {
    Ok(format!("{}_{shard}", role_prefix()?))
}
