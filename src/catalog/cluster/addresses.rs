//! Changes the address of a shard on the router and on every other shard, because shards connect to each other when chunks move.
//!
//! 1. The router checks that the new address leads to the same shard: cluster and name in `docshard_data.node` are the same, and
//!    every collection has the version that the catalog has. The session that checks this takes an advisory lock with a random key.
//! 2. Every other shard gets the new address, in a transaction of its own, and checks over that address that the lock is held.
//!    This proves that the address leads each shard to the same server, not to a copy with the same identity.
//! 3. If all checks succeed, these transactions commit, and then the router's own change, with the caller's transaction. Otherwise
//!    nothing changes anywhere.
//!
//! Two shards may move at the same time. So an unreachable shard does not fail the call: it is left unchanged and named in the result. The
//! moved shard gets the addresses of all others, so that the second of two such calls completes the first.

use crate::catalog::cache;
use crate::catalog::change;
use crate::catalog::cluster::identity::{check_may_change, cluster_id};
use crate::catalog::cluster::shard::Shard;
use crate::catalog::cluster::shards::connection_string::{
    REACH_HINT, display_host, parse_connection, refuse_foreign_options, unreachable_shard, value,
};
use crate::catalog::cluster::shards::names::{LOCAL, server_name};
use crate::catalog::cluster::shards::servers::{join_local, local_id};
use crate::pg::error::{Error, Result};
use crate::pg::{server, spi};
use crate::remote::{self, Session};
use crate::shard::access;
use crate::store;
use docshard_core::error::sqlstate;
use docshard_core::error::{Kind, bail, ensure, error};
use docshard_core::routing::protocol::Call;
use docshard_core::routing::protocol::access::SetServerAddress;
use docshard_core::routing::protocol::shard_tables::{
    MayReadNode, PlacementRow, ReadNode, ReadPlacements, SeeForeignLock, SeeLock, create_locks_table, drop_locks_table,
};
use docshard_core::sql::param::Param;
use serde_json::json;
use std::rc::Rc;

/// The result of a change of address.
#[derive(Debug)]
pub struct Changed {
    /// the new address, for display
    pub host: String,
    /// the shards that could not be changed, each with its error
    pub pending: Pending,
}

type Keywords = Vec<(String, String)>;
/// Shards that could not be changed, each with its error.
type Pending = Vec<(String, String)>;

/// Gives a shard another address: the same shard on another machine, or under another name.
/// Errors: `ShardNotFound`; `IllegalOperation` if the address leads elsewhere, or to an old copy; `HostUnreachable` if the router
/// or a shard cannot reach it; `Unauthorized` for options that only superusers may use.
pub fn set_shard(name: &str, conn: &str) -> Result<Changed> {
    check_may_change()?;
    let shard = cache::shard_named(name)?;
    let Some(oid) = shard.oid() else {
        return Err(error!(Kind::IllegalOperation, "the shard \"{name}\" is the router's own database")
            .with_hint("docshard.set_local_address() tells shards how to reach it."));
    };
    let given = address(conn)?;
    let mut login = merged(remote::server_options(oid)?, &given);
    login.extend(remote::mapping_options(oid)?);
    let mut moved = Session::open_conninfo(&login, !server::outer_user_is_superuser())
        .map_err(|error| unreachable_shard(error).with_hint(REACH_HINT))?;
    check_shard(&mut moved, &shard)?;
    moved.greet_as(oid)?;
    let key = lock_visibly(|key| moved.run("SELECT pg_catalog.pg_advisory_lock($1)", &[Param::Int8(key)]))?;

    let server = server_name(name);
    let (told, pending) = tell_others(shard.id, &server, &given, key)?;
    tell_moved(&mut moved, &shard)?;
    access::set_address(&server, &given, true)?;
    commit(told)?;
    finish(name, &given, pending)
}

/// Sets the address by which shards, and this router itself, reach the router's own database.
pub fn set_local(conn: &str) -> Result<Changed> {
    check_may_change()?;
    let mut given = address(conn)?;
    if value(&given, "dbname").is_none() {
        let here = spi::query("SELECT pg_catalog.current_database()::pg_catalog.text", &[])?;
        given.push(("dbname".to_owned(), here.first().map(|row| row.text(0).to_owned()).unwrap_or_default()));
    }
    let server = server_name(LOCAL);
    let is_joined = server::foreign_server_oid(&server).is_some();
    join_local(local_id()?)?;
    let oid = server::foreign_server_oid(&server)
        .ok_or_else(|| error!(Kind::InternalError, "the foreign server does not exist"))?;
    let key =
        lock_visibly(|key| spi::query("SELECT pg_catalog.pg_advisory_xact_lock($1)", &[Param::Int8(key)]).map(drop))?;
    let mut login = merged(remote::server_options(oid)?, &given);
    login.extend(remote::mapping_options(oid)?);
    // Skipped if this transaction has just created the role: the role cannot log in before the commit.
    if is_joined {
        let mut own = Session::open_conninfo(&login, !server::outer_user_is_superuser())
            .map_err(|error| unreachable_shard(error).with_hint(REACH_HINT))?;
        let is_seen = SeeLock { key }.call(&mut own)?;
        if !is_seen {
            return Err(elsewhere("the address leads to another server than this router"));
        }
    }
    let (told, pending) = tell_others(local_id()?, &server, &given, key)?;
    access::set_address(&server, &given, true)?;
    commit(told)?;
    finish(LOCAL, &given, pending)
}

fn finish(name: &str, given: &Keywords, pending: Pending) -> Result<Changed> {
    let oid = server::foreign_server_oid(&server_name(name));
    let host = match oid {
        Some(oid) => display_host(&remote::server_options(oid)?),
        None => display_host(given),
    };
    change::log("setAddress", None, &json!({"shard": name, "host": host}))?;
    change::announce();
    Ok(Changed { host, pending })
}

/// Parses a connection string that must have an address and no login.
fn address(conn: &str) -> Result<Keywords> {
    let (keywords, _) = parse_connection(conn)?;
    if keywords.iter().any(|(keyword, _)| keyword == "user" || keyword == "password") {
        return Err(error!(Kind::BadValue, "an address must not contain a user or password")
            .with_hint("The login is not changed. docshard.rotate_service_password() changes passwords."));
    }
    if value(&keywords, "host").or_else(|| value(&keywords, "hostaddr")).is_none() {
        bail!(Kind::BadValue, "the address has no host");
    }
    if !server::outer_user_is_superuser() {
        refuse_foreign_options(&keywords)?;
    }
    Ok(keywords)
}

/// Replaces the address among a server's options.
fn merged(mut options: Keywords, given: &Keywords) -> Keywords {
    options.retain(|(keyword, _)| !access::ADDRESS.contains(&keyword.as_str()) && value(given, keyword).is_none());
    options.extend(given.iter().cloned());
    options
}

fn elsewhere(message: &str) -> Error {
    Error::new(Kind::IllegalOperation, message).with_hint("Nothing was changed.")
}

/// Refuses a server that is not that shard, or an old copy of it.
fn check_shard(session: &mut Session, shard: &Shard) -> Result<()> {
    let is_readable = MayReadNode {}.call(session)?;
    if !is_readable.contains(&Some(true)) {
        return Err(elsewhere("the address leads to a database that is not a shard"));
    }
    let nodes = ReadNode {}.call(session)?;
    match nodes.first() {
        Some(node) if node.cluster_id == cluster_id()? && node.shard == shard.name => {}
        Some(node) if node.cluster_id == cluster_id()? => {
            return Err(elsewhere(&format!("the address leads to the shard \"{}\"", node.shard)));
        }
        Some(node) => {
            return Err(elsewhere(&format!("the address leads to the shard \"{}\" of another cluster", node.shard)));
        }
        None => return Err(elsewhere("the address leads to a database that is not a shard")),
    }
    let wanted = store::placements::of_shard(shard.id)?;
    let found = ReadPlacements { collection: None }.call(session)?;
    for placed in &wanted {
        let is_placed = |row: &PlacementRow| {
            (row.collection_id, row.token, row.version) == (placed.collection, placed.token, placed.version)
        };
        if !found.iter().any(is_placed) {
            return Err(error!(
                Kind::IllegalOperation,
                "the database at that address has another version of {} than the catalog", placed.namespace
            )
            .with_hint(
                "It is an older copy, or a chunk is being moved. Call docshard.stop_balancer() and try again.",
            ));
        }
    }
    Ok(())
}

/// Takes an advisory lock with a random key; returns the key.
fn lock_visibly(take: impl FnOnce(i64) -> Result<()>) -> Result<i64> {
    let random = "SELECT pg_catalog.hashtextextended(pg_catalog.gen_random_uuid()::text, 0)";
    let rows = spi::query(random, &[])?;
    let key = rows.first().map(|row| row.i64(0)).unwrap_or_default();
    take(key)?;
    Ok(key)
}

/// A session at a shard with an open transaction that has changed the address.
type Told = (Rc<Shard>, Session);

/// Begins a transaction at each other shard, which sets the new address there and checks that the address leads to the database with the lock
/// `key`. Returns the sessions, whose transactions the caller ends, and the shards that cannot be reached.
fn tell_others(id: i32, server: &str, given: &Keywords, key: i64) -> Result<(Vec<Told>, Pending)> {
    let (mut told, mut pending) = (Vec::new(), Vec::new());
    for (other, oid) in cache::remote_shards()?.into_iter().filter(|(other, _)| other.id != id) {
        match Session::open(oid) {
            Err(error) => pending.push((other.name.clone(), error.into_message())),
            Ok(mut session) => {
                tell(&mut session, server, given)?;
                if let Err(error) = check_reached(&mut session, server, key) {
                    let message = format!("shard \"{}\" does not reach the address: {}", other.name, error.message);
                    let hint =
                        "Nothing was changed. Check pg_hba.conf at the address, and the network between the two.";
                    return Err(error.with_sqlstate(sqlstate::UNABLE_TO_CONNECT).with_message(message).with_hint(hint));
                }
                told.push((other, session));
            }
        }
    }
    Ok((told, pending))
}

/// Begins a transaction at a shard, and changes the address of a foreign server there.
fn tell(session: &mut Session, server: &str, given: &Keywords) -> Result<()> {
    session.execute("BEGIN; SET LOCAL lock_timeout = '10s'")?;
    change_at(session, server, given)
}

fn change_at(session: &mut Session, server: &str, given: &Keywords) -> Result<()> {
    let shared = given.iter().filter(|(keyword, _)| access::SERVER_OPTIONS.contains(&keyword.as_str()));
    let (names, values): (Vec<&str>, Vec<&str>) = shared.map(|(name, value)| (name.as_str(), value.as_str())).unzip();
    SetServerAddress { server, options: &names, settings: &values }.call(session)
}

/// Checks that the foreign server on the shard leads to the database that holds the lock.
fn check_reached(session: &mut Session, server: &str, key: i64) -> Result<()> {
    session.execute(&create_locks_table(server))?;
    let is_seen = SeeForeignLock { key }.call(session)?;
    session.execute(&drop_locks_table())?;
    ensure!(is_seen, Kind::HostUnreachable, "the address leads to another server from there");
    Ok(())
}

/// Sets the addresses of the other shards on the shard that has moved.
fn tell_moved(session: &mut Session, moved: &Shard) -> Result<()> {
    for (other, oid) in cache::remote_shards()?.into_iter().filter(|(other, _)| other.id != moved.id) {
        change_at(session, &server_name(&other.name), &remote::server_options(oid)?)?;
    }
    Ok(())
}

fn commit(told: Vec<Told>) -> Result<()> {
    for (shard, mut session) in told {
        session.execute("COMMIT").map_err(|error| {
            let hint = "Call the function again: it changes the remaining shards.";
            let message = format!("shard \"{}\" may have the old address: {}", shard.name, error.message);
            Error::new(Kind::HostUnreachable, message).with_hint(hint)
        })?;
        session.close_foreign();
    }
    Ok(())
}
