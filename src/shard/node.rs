//! The identity of this shard: the row of `docshard_data.node`, and the answers to routers and other shards that check it.
//!
//! The router's own database has no row: it is the shard `local` of its own cluster.

use super::here;
use crate::pg::error::{Error, Result};
use crate::pg::transaction::snapshot::ActiveSnapshot;
use crate::pg::{process, security::user, server, server::wal, spi};
use crate::remote::APPLICATION;
use crate::store;
use docshard_core::cluster::handshake::{Donor, Hello, LOCAL, Member, NodeState, Position, Running, Welcome};
use docshard_core::cluster::standing::Identity;
use docshard_core::error::Kind;
use docshard_core::error::sqlstate::REFUSED_CONNECTION;
use docshard_core::routing::protocol::shard_tables::{NodeRow, ReadNode};
use docshard_core::sql::param::Param;
use pgrx::pg_sys::Oid;

/// Reads this shard's identity by the newest snapshot, and adds this server's timeline.
pub fn find() -> Result<NodeState> {
    let _snapshot = ActiveSnapshot::latest();
    // The caller may have no right to read the tables.
    let (own, rows) = user::as_extension_owner(|| {
        let own = store::cluster::read_coordinator()?;
        Ok((own, here::read(&ReadNode {})?))
    })?;
    let timeline = wal::timeline();
    Ok(match rows.into_iter().next() {
        Some(NodeRow { cluster_id, shard, epoch, counter }) => {
            NodeState { member: Member { cluster: cluster_id, shard }, epoch, position: Position { timeline, counter } }
        }
        None => NodeState {
            member: Member { cluster: own.cluster, shard: LOCAL.to_owned() },
            epoch: own.epoch,
            position: Position { timeline, counter: 0 },
        },
    })
}

/// Answers a router's handshake. A refusal has the SQLSTATE 08004.
pub fn answer(hello: &Hello, writes: bool) -> Result<Welcome> {
    let node = find()?;
    let protocol = node.answer(hello, writes).map_err(refused)?;
    Ok(Welcome { position: node.position, recovery: wal::in_recovery(), protocol })
}

/// True if a router runs the current statement as itself. A router logs in as the service role, or as a superuser if its user mapping was
/// changed; then its connection has the application name that routers use. Another role can set that name, too, but not log in as a
/// superuser.
pub fn serves_router() -> Result<bool> {
    Ok(user::is_session_users_own() && is_routers_login()?)
}

/// Like [`serves_router`]; also true if the router has set the role of its client.
pub fn is_routers_session() -> Result<bool> {
    Ok(user::may_become_session_user() && is_routers_login()?)
}

fn is_routers_login() -> Result<bool> {
    let user = Param::Int8(u32::from(user::session_user()).into());
    let sql = "SELECT 1 FROM docshard_data.service s WHERE s.role = $1::pg_catalog.oid \
               UNION ALL SELECT 1 FROM pg_catalog.pg_roles r WHERE r.oid = $1::pg_catalog.oid AND r.rolsuper \
               AND pg_catalog.starts_with(pg_catalog.current_setting('application_name'), $2)";
    let _snapshot = ActiveSnapshot::latest();
    let name = format!("{APPLICATION} ");
    Ok(!user::as_extension_owner(|| spi::read(sql, &[user, Param::Text(&name)]))?.is_empty())
}

/// This database, and the server that runs it.
pub fn running() -> Running {
    let database = Identity { system: server::system_identifier(), database: u32::from(process::my_database()) };
    Running { database, started: server::started() }
}

/// Returns this shard's identity for another shard that pulls documents.
pub fn as_donor() -> Result<Donor> {
    let node = find()?;
    let running = (node.member.shard == LOCAL).then(running);
    Ok(Donor { member: node.member, position: node.position, running })
}

/// Returns an error (08004) if the donor is another shard than the router expects, or an older copy.
pub fn check_donor(found: &str, expected: &str) -> Result<()> {
    let (found, expected): (Donor, Donor) = (found.parse()?, expected.parse()?);
    expected.require(&found).map_err(refused)
}

fn refused(error: Error) -> Error {
    if error.kind == Kind::HostUnreachable { error.with_sqlstate(REFUSED_CONNECTION) } else { error }
}

/// The router's service role at this shard; None if no router was accepted.
pub fn service_role() -> Result<Option<String>> {
    let rows = spi::query(
        "SELECT r.rolname FROM docshard_data.service s JOIN pg_catalog.pg_roles r ON r.oid OPERATOR(pg_catalog.=) s.role",
        &[],
    )?;
    Ok(rows.first().map(|row| row.text(0).to_owned()))
}

/// True for the router's service role. Its user mappings are this shard's logins at other shards.
pub fn is_service_role(role: Oid) -> Result<bool> {
    let sql = "SELECT FROM docshard_data.service WHERE role = $1::pg_catalog.oid";
    Ok(!spi::query(sql, &[Param::Int8(u32::from(role).into())])?.is_empty())
}
