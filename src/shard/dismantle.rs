//! Removes this database from its cluster: drops its documents, and its connections to the router and to other shards.
//!
//! A router calls this on its shards; if the router is lost, an administrator calls it on the shard.

use super::{access, here, leftovers, node, table};
use crate::pg::error::Result;
use crate::pg::object::drop_guard::unguarded;
use crate::pg::spi;
use crate::storage::SCHEMA;
use docshard_core::routing::protocol::shard_tables::{DeleteCaptures, PlacementRow, ReadPlacements};
use docshard_core::sql::param::Param;
use docshard_core::sql::quote::quote_ident;

/// Removes this database from its cluster. `service`: also drops the router's service role, which the router itself cannot request. Runs
/// as the extension's owner.
pub fn dismantle(service: bool) -> Result<()> {
    for PlacementRow { collection_id, .. } in here::call(&ReadPlacements { collection: None })? {
        table::drop(collection_id)?;
    }
    drop_leftovers()?;
    here::call(&DeleteCaptures { migration: None, collection: None })?;
    if let Some(name) = node::service_role()? {
        let lent = spi::query(
            "SELECT r.rolname FROM pg_catalog.pg_auth_members m JOIN pg_catalog.pg_roles r ON r.oid = m.roleid \
             WHERE m.member = (SELECT role FROM docshard_data.service) ORDER BY r.rolname",
            &[],
        )?;
        for row in &lent {
            access::drop_role(row.text(0))?;
        }
        access::leave_cluster()?;
        if service {
            access::forget_service_role(&name)?;
        }
    }
    spi::execute("DELETE FROM docshard_data.node", &[])?;
    Ok(())
}

/// Drops the tables that moves and dropped collections have left.
fn drop_leftovers() -> Result<()> {
    let left = spi::query(
        "SELECT c.relname, c.relkind = 'f' FROM pg_catalog.pg_class c \
         WHERE c.relnamespace = $1::pg_catalog.regnamespace AND c.relkind IN ('r', 'f') \
         AND c.relname ~ ('^(c[0-9]+|' || $2 || ')$') ORDER BY c.relname",
        &[Param::Text(&SCHEMA.to_string_lossy()), Param::Text(&leftovers::move_tables())],
    )?;
    for row in &left {
        let kind = if row.bool(1) { "FOREIGN TABLE" } else { "TABLE" };
        let name = quote_ident(row.text(0));
        unguarded(|| spi::run_script(&format!("DROP {kind} docshard_data.{name}")))?;
    }
    Ok(())
}
