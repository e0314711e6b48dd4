//! Repairs how a shard is reached: the router's login there, and the servers and logins by which it and other shards reach each other.
//!
//! A shard that was restored from a backup may know an older password of the router, or none; an administrator may have dropped a role,
//! a server or a user mapping. Everything is set again as [`add`](super::add::add) sets it for a new shard, with the passwords that exist.
//! The changes of each node are idempotent and commit by themselves. Only the repair of the router's login needs a superuser's login at the
//! shard.

use crate::catalog::cluster::access;
use crate::catalog::cluster::identity::{cluster_id, coordinator};
use crate::catalog::cluster::shard::Shard;
use crate::catalog::cluster::shards::connection_string::{Keywords, REACH_HINT, unreachable_shard};
use crate::catalog::cluster::shards::names::server_name;
use crate::catalog::cluster::shards::servers::{Introduced, Login, introduce, own_login};
use crate::catalog::{cache, change};
use crate::pg::error::{Error, Result};
use crate::pg::server;
use crate::remote::{self, Session};
use crate::store;
use docshard_core::error::sqlstate::{READ_ONLY, REFUSED_CONNECTION, class};
use docshard_core::error::{Kind, bail, error};
use docshard_core::routing::protocol::Call;
use docshard_core::routing::protocol::node::{NodeProbe, ProbeNode};
use docshard_core::routing::protocol::shard_tables::{NodeRow, ReadNode};
use pgrx::pg_sys::Oid;
use serde_json::json;

/// Repairs the logins of a shard. `found` is the probe of the database that `given` logs in to; its table `node` names this shard. Returns
/// the other shards that could not be changed, each with its error.
///
/// # Errors
/// `OperationFailed` if the shard's server leads to another database; those of connecting.
pub(super) fn repair(name: &str, found: &NodeProbe, given: &Login) -> Result<Vec<(String, String)>> {
    let shard = cache::shard_named(name)?;
    let Some(server) = shard.oid() else { return Ok(Vec::new()) };
    if found.superuser {
        let mut session = open_given(&shard, server, given)?;
        check_same(&shard, found, &mut session)?;
        check_epoch(&shard, &mut session)?;
        let_router_in(server, &mut session)?;
    }
    // `open` refuses an older copy, and a shard that is ahead of this catalog. The repair continues there: `docshard.accept_shard()` needs
    // a login that works.
    let mut session = match Session::open(server) {
        Err(error) if [REFUSED_CONNECTION, READ_ONLY].contains(&error.sqlstate) => {
            Session::open_at_any_position(server)?
        }
        opened => opened?,
    };
    if !found.superuser {
        check_same(&shard, found, &mut session)?;
    }
    access::restore_roles(&mut session)?;
    let keywords: Keywords = remote::server_options(server)?;
    let failed = introduce(&mut session, &Introduced { name, id: shard.id, keywords: &keywords })?;
    store::shards::set_node(name, &found.identity().to_string())?;
    let pending: Vec<_> = failed.into_iter().map(|(shard, error)| (shard, error.into_message())).collect();
    let names: Vec<_> = pending.iter().map(|(shard, _)| shard).collect();
    change::log_repair("repairShard", &json!({"shard": name, "login": found.superuser, "pending": names}))?;
    change::announce();
    Ok(pending)
}

/// Opens a session at the address of a shard's server, with another login than the router's.
fn open_by(server: Oid, login: &Login) -> Result<Session> {
    let mut options = remote::server_options(server)?;
    options.extend(login.options().into_iter().map(|(option, value)| (option.to_owned(), value.to_owned())));
    Session::open_conninfo(&options, !server::outer_user_is_superuser())
}

/// Opens a session of a superuser at a shard that refuses the router's login.
///
/// # Errors
/// `HostUnreachable` if the login is refused; `Unauthorized` if it is no superuser's.
pub(in crate::catalog) fn open_as_superuser(shard: &Shard, server: Oid, login: &Login) -> Result<Session> {
    let at = format!("shard \"{}\"", shard.name);
    let mut session = open_by(server, login).map_err(|error| {
        let message = format!("nothing was changed: cannot log in as \"{}\" at {at}: {}", login.user, error.message);
        unreachable_shard(error).with_message(message).with_hint(REACH_HINT)
    })?;
    let probe = ProbeNode {}.call(&mut session)?;
    if !probe.superuser {
        bail!(Kind::Unauthorized, "nothing was changed: the role \"{}\" at {at} is no superuser", login.user);
    }
    Ok(session)
}

/// Lets the router log in at a shard with the password that its catalog has. `session` is a superuser's.
pub(in crate::catalog) fn let_router_in(server: Oid, session: &mut Session) -> Result<()> {
    own_login(server)?.let_in(session)
}

/// Opens a session at the address of the shard's server, with the login that `add_shard` was given.
fn open_given(shard: &Shard, server: Oid, login: &Login) -> Result<Session> {
    open_by(server, login).map_err(|error| {
        if error.is_of_class(class::AUTHORIZATION) || error.is_of_class(class::CATALOG_NAME) {
            return elsewhere(shard, &error.message);
        }
        unreachable_shard(error).with_hint(REACH_HINT)
    })
}

/// Refuses a shard that another router has taken over: this repair would end that router's login there.
fn check_epoch(shard: &Shard, session: &mut Session) -> Result<()> {
    let (cluster, epoch) = (coordinator()?.cluster, store::contacts::epoch(shard.id)?);
    let is_later = |node: &NodeRow| node.cluster_id == cluster && node.epoch > epoch;
    let nodes = ReadNode {}.call(session)?;
    if !nodes.iter().any(is_later) {
        return Ok(());
    }
    let message = format!("nothing was changed: another router has taken over shard \"{}\"", shard.name);
    Err(Error::new(Kind::OperationFailed, message)
        .with_hint("Work with that router. docshard.take_over_cluster() gives the cluster back to this one."))
}

/// The name of the session's database as a shard of this cluster, from its table `node`; None if it is not one.
pub(super) fn shard_name_of(session: &mut Session, probe: &NodeProbe, cluster: i64) -> Result<Option<String>> {
    if probe.version.is_none() {
        return Ok(None);
    }
    let mut rows = ReadNode {}.call(session)?.into_iter();
    Ok(rows.find(|node| node.cluster_id == cluster).map(|node| node.shard))
}

/// Refuses the session's database if it is not the one that was probed.
fn check_same(shard: &Shard, found: &NodeProbe, session: &mut Session) -> Result<()> {
    let there = ProbeNode {}.call(session)?;
    if there.identity() == found.identity() {
        return Ok(());
    }
    match shard_name_of(session, &there, cluster_id()?)? {
        Some(other) if other == shard.name => Err(error!(
            Kind::OperationFailed,
            "this database is a copy of the shard \"{other}\", which exists in another database"
        )
        .with_hint("docshard.set_shard_address() makes a shard's server lead to another address.")),
        Some(other) => Err(elsewhere(shard, &format!("it leads to the shard \"{other}\""))),
        None => Err(elsewhere(shard, "it leads to a database that is no shard of this cluster")),
    }
}

fn elsewhere(shard: &Shard, why: &str) -> Error {
    let server = server_name(&shard.name);
    error!(Kind::OperationFailed, "the foreign server {server} leads to another address than the given one: {why}")
        .with_hint(format!("docshard.set_shard_address('{}', …) gives the shard this address.", shard.name))
}
