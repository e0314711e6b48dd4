//! What the catalog knows of each shard when it connects: the rows of `docshard_catalog.contacts`, and what is said at a shard
//! first.

use super::cache;
use super::pending_drops;
use super::shards::LOCAL;
use crate::pg::error::{Error, Result};
use crate::pg::param::Param;
use crate::pg::snapshot::ActiveSnapshot;
use crate::pg::{process, server, spi, user};
use crate::remote::{self, Cluster, ON_LOST_WRITES, OnLostWrites};
use docshard_core::chunk_map::ShardId;
use docshard_core::error::Kind;
use docshard_core::handshake::{Donor, Hello, Member, NEWEST_PROTOCOL, OLDEST_PROTOCOL, Position};
use pgrx::pg_sys::Oid;

/// Called from `_PG_init`.
pub fn init() {
    remote::set_cluster(&Catalog);
}

struct Catalog;

impl Cluster for Catalog {
    fn hello(&self, server: Oid) -> Result<Option<Hello>> {
        let Some(name) = server::foreign_server_name(server) else { return Ok(None) };
        // Who connects may not read the catalog, or reads it as it was when a transaction began.
        let rows = user::as_extension_owner(|| {
            let _snapshot = ActiveSnapshot::latest();
            spi::read(
                "SELECT c.id, c.epoch, s.name, k.timeline, k.counter FROM docshard_catalog.cluster c \
                 LEFT JOIN docshard_catalog.shards s ON s.server = $1::pg_catalog.name \
                 LEFT JOIN docshard_catalog.contacts k ON k.shard_id = s.id",
                &[Param::Text(&name)],
            )
        })?;
        let Some(row) = rows.first() else { return Ok(None) };
        // A server whose shard is being added has its name only, as has the one that leads to this database.
        let Some(shard) = row.opt_text(2).or_else(|| name.strip_prefix("docshard_")) else { return Ok(None) };
        let known = row.get(3).map(|_| Position { timeline: row.i64(3), counter: row.i64(4) });
        Ok(Some(Hello {
            to: Member { cluster: row.i64(0), shard: shard.to_owned() },
            router: identity(),
            epoch: row.i64(1),
            known: known.filter(|_| shard != LOCAL),
            refuse_lost_writes: ON_LOST_WRITES.get() == OnLostWrites::Refuse,
            oldest: OLDEST_PROTOCOL,
            newest: NEWEST_PROTOCOL,
        }))
    }

    fn pending(&self, server: Oid) -> Result<Vec<String>> {
        pending_at(server)
    }
}

/// What is to be done at a server's shard before anything else.
fn pending_at(server: Oid) -> Result<Vec<String>> {
    match server::foreign_server_name(server) {
        Some(name) => pending_drops::statements(&name),
        None => Ok(Vec::new()),
    }
}

/// Which database of which server this is: system identifier / database OID.
pub fn identity() -> String {
    format!("{}/{}", server::system_identifier(), process::my_database().to_u32())
}

/// This router's epoch.
///
/// # Errors
/// Internal ones.
pub fn epoch() -> Result<i64> {
    let rows = spi::query("SELECT epoch FROM docshard_catalog.cluster", &[])?;
    Ok(rows.first().map_or(0, |row| row.i64(0)))
}

/// What a shard must say of itself to another one, which pulls from it.
///
/// # Errors
/// `ShardNotFound`.
pub fn expected(shard: ShardId) -> Result<Donor> {
    let name = cache::shard(shard)?.name.clone();
    let rows = spi::query(
        "SELECT c.id, k.timeline, k.counter FROM docshard_catalog.cluster c \
         LEFT JOIN docshard_catalog.contacts k ON k.shard_id = $1",
        &[Param::Int4(shard)],
    )?;
    let row = rows.first().ok_or_else(|| Error::new(Kind::NotYetInitialized, "this cluster has no identity"))?;
    let position =
        row.get(1).map_or_else(Position::default, |_| Position { timeline: row.i64(1), counter: row.i64(2) });
    Ok(Donor { member: Member { cluster: row.i64(0), shard: name }, position })
}
