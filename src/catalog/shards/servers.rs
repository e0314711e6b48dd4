//! The servers, user mappings and roles by which the router reaches a shard, and shards each other: chunks that move are
//! pulled through them.

use super::connection_string::{Keywords, REACH_HINT, set, unreachable_shard, value};
use super::names::{LOCAL, puller_name, server_name, service_name};
use crate::catalog::access as grants;
use crate::catalog::cache;
use crate::catalog::model::Place;
use crate::ownership::access;
use crate::pg::error::{Error, Result};
use crate::pg::security::credentials;
use crate::pg::spi::quote::{quote_ident, quote_literal};
use crate::pg::{security::user, server, spi};
use crate::protocol::Call;
use crate::protocol::access::{AcceptPuller, ConnectShard, PullerVerifier};
use crate::remote::{self, Session};
use crate::store;
use docshard_core::error::Kind;

/// How the router logs in at a shard from now on.
pub(in crate::catalog) struct Login {
    pub(in crate::catalog) user: String,
    pub(in crate::catalog) password: Option<String>,
}

impl Login {
    fn options(&self) -> Vec<(&str, &str)> {
        let mut options = vec![("user", self.user.as_str())];
        options.extend(self.password.as_deref().map(|password| ("password", password)));
        options
    }
}

/// Makes the server that leads to a shard, and lets the router log in there.
pub(in crate::catalog) fn make_server(name: &str, keywords: &Keywords, login: &Login) -> Result<()> {
    let server = server_name(name);
    if server::foreign_server_oid(&server).is_some() {
        return Err(Error::new(Kind::OperationFailed, format!("foreign server \"{server}\" exists already"))
            .with_hint("It belongs to no shard of this cluster: DROP SERVER it, or choose another name."));
    }
    let options: Vec<_> =
        keywords.iter().map(|(keyword, value)| format!("{} {}", quote_ident(keyword), quote_literal(value))).collect();
    spi::run_script(&format!(
        "CREATE SERVER {} FOREIGN DATA WRAPPER postgres_fdw OPTIONS ({})",
        quote_ident(&server),
        options.join(", ")
    ))?;
    let owner = server::user_name(user::extension_owner()?);
    credentials::set_user_mapping(&server, &owner, &login.options())
}

/// Lets the new shard and every other one, this database included, pull from each other.
pub(in crate::catalog) fn connect_shards(name: &str, id: i32, keywords: &Keywords) -> Result<()> {
    let oid = server::foreign_server_oid(&server_name(name))
        .ok_or_else(|| Error::new(Kind::InternalError, "a server that was made is not there"))?;
    let mut session =
        Session::open(oid).map_err(|error| Error { hint: Some(REACH_HINT.to_owned()), ..unreachable_shard(error) })?;
    grants::make_roles(&mut session)?;

    let seen = session.query("SELECT pg_catalog.host(pg_catalog.inet_client_addr())", &[])?;
    let seen = seen.first().and_then(|row| row.text(0)).map(str::to_owned);
    session.execute("SET lock_timeout = '10s'")?;
    let here = local_id()?;
    join_local(here)?;
    let (puller, own) = (puller_name(id)?, puller_name(here)?);
    let verifier = PullerVerifier {}.call(&mut session)?;
    AcceptPuller { puller: &own, verifier: &access::puller_verifier()? }.call(&mut session)?;
    connect(&mut session, LOCAL, &local_address(seen.as_deref())?, &puller)?;

    for shard in cache::shards()?.values() {
        let Place::Remote(oid) = shard.place else { continue };
        let mut other = Session::open(oid)?;
        other.execute("SET lock_timeout = '10s'")?;
        let theirs = PullerVerifier {}.call(&mut other)?;
        AcceptPuller { puller: &puller_name(shard.id)?, verifier: &theirs }.call(&mut session)?;
        AcceptPuller { puller: &puller, verifier: &verifier }.call(&mut other)?;
        connect(&mut session, &shard.name, &remote::server_options(oid)?, &puller)?;
        connect(&mut other, name, keywords, &puller_name(shard.id)?)?;
    }
    // Here last: databases of one server share roles, and this transaction keeps those that it makes from the others.
    access::accept_puller(&puller, &verifier)?;
    access::map_puller(&server_name(name), &own)
}

/// Lets a shard reach another one as its puller. What a server's options say of this machine's files stays here.
fn connect(session: &mut Session, name: &str, keywords: &Keywords, puller: &str) -> Result<()> {
    let shared = keywords.iter().filter(|(keyword, _)| access::SERVER_OPTIONS.contains(&keyword.as_str()));
    let (names, values): (Vec<&str>, Vec<&str>) = shared.map(|(name, value)| (name.as_str(), value.as_str())).unzip();
    ConnectShard { server: &server_name(name), options: &names, settings: &values, puller }.call(session)
}

/// The number of this database as a shard, also if it is none any more.
pub(in crate::catalog) fn local_id() -> Result<i32> {
    Ok(store::shards::id(LOCAL)?.unwrap_or(0))
}

/// Makes this database reachable as the shards are, when the first one joins it: moves work with it over a connection.
pub(in crate::catalog) fn join_local(id: i32) -> Result<()> {
    if server::foreign_server_oid(&server_name(LOCAL)).is_some() {
        return Ok(());
    }
    let (user, password) = (service_name(id)?, credentials::random_password()?);
    access::accept_router(&user, Some(&credentials::scram_verifier(&password)?))?;
    let mut own = local_keywords(None)?;
    // Soon given up: a connection to a database that is being dropped waits, and the worker that waits for it is what
    // DROP DATABASE waits for, five seconds at most.
    set(&mut own, "connect_timeout", "2");
    make_server(LOCAL, &own, &Login { user, password: Some(password) })
}

/// How shards reach this database: by the address given to `docshard.set_local_address`, which the router's own server has;
/// else as far as can be guessed.
fn local_address(seen: Option<&str>) -> Result<Keywords> {
    let guessed = local_keywords(None)?;
    if let Some(oid) = server::foreign_server_oid(&server_name(LOCAL)) {
        let own = remote::server_options(oid)?;
        if value(&own, "hostaddr").is_some() || value(&own, "host") != value(&guessed, "host") {
            return Ok(own);
        }
    }
    local_keywords(seen)
}

/// How to reach this database: over TCP, from the address that a shard saw, or at this machine's own; else over its socket.
fn local_keywords(seen: Option<&str>) -> Result<Keywords> {
    let rows = spi::query(
        "SELECT pg_catalog.current_setting('port'), \
           pg_catalog.split_part(pg_catalog.current_setting('unix_socket_directories'), ',', 1), \
           pg_catalog.current_database()::pg_catalog.text, pg_catalog.current_setting('listen_addresses')",
        &[],
    )?;
    let row = rows.first().ok_or_else(|| Error::new(Kind::InternalError, "this server does not know its port"))?;
    let socket = row.text(1).trim();
    let listens: Vec<&str> = row.text(3).split(',').map(str::trim).filter(|address| !address.is_empty()).collect();
    let everywhere = |address: &&str| ["*", "0.0.0.0", "localhost", "127.0.0.1"].contains(address);
    let own = match listens.first() {
        // The socket asks for the name of the operating system's user, as a rule.
        Some(_) if listens.iter().any(everywhere) => "127.0.0.1",
        Some(first) => *first,
        None if socket.is_empty() => "127.0.0.1",
        None => socket,
    };
    let host = seen.unwrap_or(own);
    Ok(vec![
        ("host".to_owned(), host.to_owned()),
        ("port".to_owned(), row.text(0).to_owned()),
        ("dbname".to_owned(), row.text(2).to_owned()),
    ])
}
