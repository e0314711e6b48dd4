//! The foreign servers, user mappings and roles by which the router connects to shards, and shards to each other, to pull chunks.

use crate::catalog::cache;
use crate::catalog::cluster::access as application_roles;
use crate::catalog::cluster::identity;
use crate::catalog::cluster::shards::connection_string::{
    Keywords, REACH_HINT, display_host, refuse_foreign_secrets, set, unreachable_shard, value,
};
use crate::catalog::cluster::shards::names::{LOCAL, puller_name, server_name, service_name};
use crate::pg::error::{Error, Result};
use crate::pg::security::credentials;
use crate::pg::{security::user, server, spi};
use crate::remote::{self, Session};
use crate::shard::{access, node};
use crate::store;
use docshard_core::cluster::handshake::Donor;
use docshard_core::cluster::standing::Standing;
use docshard_core::error::{Kind, error};
use docshard_core::routing::protocol::Call;
use docshard_core::routing::protocol::access::{AcceptPuller, ConnectShard, PullerVerifier, SetServerAddress};
use docshard_core::routing::protocol::node::Identity;
use docshard_core::sql::param::Param;
use docshard_core::sql::quote::{quote_ident, quote_literal};
use pgrx::pg_sys::Oid;

/// Seconds that connecting to this database itself may take.
const OWN_CONNECT_S: u32 = 2;

/// A login at a shard.
#[derive(Clone, Debug)]
pub struct Login {
    pub user: String,
    pub password: Option<String>,
}

impl Login {
    pub(in crate::catalog) fn options(&self) -> Vec<(&str, &str)> {
        let mut options = vec![("user", self.user.as_str())];
        options.extend(self.password.as_deref().map(|password| ("password", password)));
        options
    }

    /// Refuses a login without password, unless a superuser gives it: libpq would use the files and identity of this server.
    pub(in crate::catalog) fn check_allowed(&self) -> Result<()> {
        if server::outer_user_is_superuser() {
            return Ok(());
        }
        refuse_foreign_secrets(&Keywords::new(), self.password.as_deref())
    }

    /// Makes its role the service role at a shard, with its password. `session` is a superuser's.
    pub(super) fn let_in(&self, session: &mut Session) -> Result<()> {
        let verifier = self.password.as_deref().map(credentials::scram_verifier).transpose()?;
        // Keeps the verifier out of the server's log.
        session.execute("SET log_parameter_max_length = 0; SET log_parameter_max_length_on_error = 0")?;
        let user = Param::Text(&self.user);
        match &verifier {
            Some(verifier) => session.run("SELECT docshard.accept_router($1, $2)", &[user, Param::Text(verifier)]),
            None => session.run("SELECT docshard.accept_router($1)", &[user]),
        }
    }
}

/// Creates the foreign server of a shard, and the user mapping with the router's login.
pub(in crate::catalog) fn make_server(name: &str, keywords: &Keywords, login: &Login) -> Result<()> {
    let server = server_name(name);
    if server::foreign_server_oid(&server).is_some() {
        return Err(error!(Kind::OperationFailed, "foreign server \"{server}\" exists already")
            .with_hint("It belongs to no shard of this cluster. Run DROP SERVER, or choose another name."));
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

/// A shard, and how others reach it.
pub(in crate::catalog) struct Introduced<'a> {
    pub(in crate::catalog) name: &'a str,
    pub(in crate::catalog) id: i32,
    pub(in crate::catalog) keywords: &'a Keywords,
}

/// Lets the new shard and every other one, this database included, pull from each other.
pub(in crate::catalog) fn connect_shards(new: &Introduced<'_>) -> Result<()> {
    let oid = server::foreign_server_oid(&server_name(new.name))
        .ok_or_else(|| error!(Kind::InternalError, "the foreign server does not exist"))?;
    let mut session = Session::open(oid).map_err(|error| unreachable_shard(error).with_hint(REACH_HINT))?;
    application_roles::make_roles(&mut session)?;
    introduce(&mut session, new)?.into_iter().next().map_or(Ok(()), |(_, error)| Err(error))
}

/// Sets the servers and logins by which a shard and every other one, this database included, pull from each other. Returns the shards
/// that could not be changed, each with its error.
pub(in crate::catalog) fn introduce(session: &mut Session, new: &Introduced<'_>) -> Result<Vec<(String, Error)>> {
    let seen = seen_from(session)?;
    session.execute("SET lock_timeout = '10s'")?;
    let here = local_id()?;
    join_local(here)?;
    let (puller, own) = (puller_name(new.id)?, puller_name(here)?);
    let verifier = PullerVerifier {}.call(session)?;
    AcceptPuller { puller: &own, verifier: &access::puller_verifier()? }.call(session)?;
    connect(session, LOCAL, &local_address(seen.as_deref())?, &puller)?;

    let mut failed = Vec::new();
    for (shard, oid) in cache::remote_shards()?.into_iter().filter(|(shard, _)| shard.id != new.id) {
        let mut other = match Session::open(oid) {
            Ok(other) => other,
            Err(error) => {
                failed.push((shard.name.clone(), error));
                continue;
            }
        };
        other.execute("SET lock_timeout = '10s'")?;
        let theirs = PullerVerifier {}.call(&mut other)?;
        AcceptPuller { puller: &puller_name(shard.id)?, verifier: &theirs }.call(session)?;
        AcceptPuller { puller: &puller, verifier: &verifier }.call(&mut other)?;
        connect(session, &shard.name, &remote::server_options(oid)?, &puller)?;
        connect(&mut other, new.name, new.keywords, &puller_name(shard.id)?)?;
    }
    // This database comes last: databases of one server share roles, and this uncommitted transaction would block the creation of the
    // same roles by the others.
    access::accept_puller(&puller, &verifier)?;
    access::map_puller(&server_name(new.name), &own)?;
    Ok(failed)
}

/// Allows another database's router to use this database, as `role`. A router's own service role cannot be replaced: with another one, shards
/// could not pull documents from this database, nor could it pull from them.
///
/// # Errors
/// `IllegalOperation` at a router, unless `role` is its own or is missing, as after pg_restore; those of [`access::accept_router`].
pub fn accept_router(role: &str, verifier: Option<&str>) -> Result<()> {
    if let Some(own) = node::service_role()?.filter(|own| own != role)
        && !matches!(identity::standing()?, Standing::Copy(_))
        && store::cluster::read_registration()?.has_shards
    {
        return Err(error!(
            Kind::IllegalOperation,
            "this database is the router of a cluster, and its own service role is \"{own}\""
        )
        .with_hint("Call docshard.accept_router() in the database that is to become a shard."));
    }
    access::accept_router(role, verifier)
}

/// Lets a shard log in to another one with its puller role. Options that name files of this machine are not passed on.
fn connect(session: &mut Session, name: &str, keywords: &Keywords, puller: &str) -> Result<()> {
    let shared = keywords.iter().filter(|(keyword, _)| access::SERVER_OPTIONS.contains(&keyword.as_str()));
    let (names, values): (Vec<&str>, Vec<&str>) = shared.map(|(name, value)| (name.as_str(), value.as_str())).unzip();
    ConnectShard { server: &server_name(name), options: &names, settings: &values, puller }.call(session)
}

/// The number of this database as a shard; 0 if it is no longer a shard.
pub(in crate::catalog) fn local_id() -> Result<i32> {
    Ok(store::shards::id(LOCAL)?.unwrap_or(0))
}

/// The router's login at a shard.
pub(super) fn own_login(server: Oid) -> Result<Login> {
    let options = remote::mapping_options(server)?;
    let value = |name: &str| options.iter().find(|(option, _)| option == name).map(|(_, value)| value.clone());
    let user = value("user").ok_or_else(|| {
        error!(Kind::UserNotFound, "the user mapping of the shard's server has no user")
            .with_hint("CREATE USER MAPPING for the extension's owner tells how the router logs in there.")
    })?;
    Ok(Login { user, password: value("password") })
}

/// Creates a foreign server for this database when the first shard is added: moves connect to it as to any shard. A database that
/// pg_restore has created has the server, but has lost its service role.
pub(in crate::catalog) fn join_local(id: i32) -> Result<()> {
    if let Some(server) = server::foreign_server_oid(&server_name(LOCAL)) {
        if node::service_role()?.is_none() {
            let Login { user, password } = own_login(server)?;
            let verifier = password.as_deref().map(credentials::scram_verifier).transpose()?;
            access::accept_router(&user, verifier.as_deref())?;
        }
        return Ok(());
    }
    let (user, password) = (service_name(id)?, credentials::random_password()?);
    access::accept_router(&user, Some(&credentials::scram_verifier(&password)?))?;
    let mut own = local_keywords(None)?;
    // A short timeout: connecting to a database that is being dropped blocks, and DROP DATABASE waits at most five seconds for the worker
    // that connects.
    set(&mut own, "connect_timeout", &OWN_CONNECT_S.to_string());
    make_server(LOCAL, &own, &Login { user, password: Some(password) })
}

/// Creates what a session to this database needs, if no shard was ever added. Runs in the caller's transaction; sessions can be opened
/// after its commit.
///
/// # Errors
/// `Unauthorized` if the extension's owner may not create roles.
pub fn reach_this_database() -> Result<()> {
    if server::foreign_server_oid(&server_name(LOCAL)).is_some() {
        return Ok(());
    }
    join_local(local_id()?)
}

/// Corrects the foreign server of this database, here and at the given shards, after this database has become the router. A copy of the
/// router has the address of the former router's database, which identifies itself in the same way. At the shards the server is always set:
/// an address such as 127.0.0.1 leads to this database from here, but elsewhere from a shard. Returns the new address; None if the server
/// here already leads to this database.
pub(in crate::catalog) fn readdress_local<'a>(shards: impl Iterator<Item = &'a mut Session>) -> Result<Option<String>> {
    let name = server_name(LOCAL);
    let Some(server) = server::foreign_server_oid(&name) else { return Ok(None) };
    let leads_here = leads_here(server)?;
    join_local(local_id()?)?;
    let given = if leads_here { None } else { Some(local_keywords(None)?) };
    if let Some(given) = &given {
        access::set_address(&name, given, true)?;
    }
    for session in shards {
        let seen = seen_from(session)?;
        let mut address = local_address(seen.as_deref())?;
        address.retain(|(keyword, _)| access::SERVER_OPTIONS.contains(&keyword.as_str()));
        let (names, values): (Vec<&str>, Vec<&str>) =
            address.iter().map(|(name, value)| (name.as_str(), value.as_str())).unzip();
        match (SetServerAddress { server: &name, options: &names, settings: &values }).call(session) {
            // Ignored: the shard has no such server, which the next move reports.
            Err(error) if error.kind == Kind::ShardNotFound => {}
            done => done?,
        }
    }
    Ok(given.as_ref().map(display_host))
}

/// True if this database's foreign server leads here. If it cannot be reached, its address is compared with the guessed one.
fn leads_here(server: Oid) -> Result<bool> {
    let found = Session::open_ungreeted(server, OWN_CONNECT_S)
        .and_then(|mut session| Identity {}.call(&mut session))
        .and_then(|found| Ok(found.parse::<Donor>()?.running));
    if let Ok(found) = found {
        return Ok(found == Some(node::running()));
    }
    let (present, own) = (remote::server_options(server)?, local_keywords(None)?);
    Ok(["host", "hostaddr", "port", "dbname"].iter().all(|keyword| value(&present, keyword) == value(&own, keyword)))
}

/// The address of this machine that a shard sees; None if the connection uses a socket.
fn seen_from(session: &mut Session) -> Result<Option<String>> {
    let seen: Vec<Option<String>> = session.query("SELECT pg_catalog.host(pg_catalog.inet_client_addr())", &[])?;
    Ok(seen.into_iter().next().flatten())
}

/// The address under which shards reach this database: the one given to `docshard.set_local_address`, or else a guess.
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

/// Guesses the address of this database: over TCP, the address that a shard saw, or 127.0.0.1; else its socket.
fn local_keywords(seen: Option<&str>) -> Result<Keywords> {
    let rows = spi::query(
        "SELECT pg_catalog.current_setting('port'), \
           pg_catalog.split_part(pg_catalog.current_setting('unix_socket_directories'), ',', 1), \
           pg_catalog.current_database()::pg_catalog.text, pg_catalog.current_setting('listen_addresses')",
        &[],
    )?;
    let row = rows.first().ok_or_else(|| error!(Kind::InternalError, "the server does not report its port"))?;
    let socket = row.text(1).trim();
    let listens: Vec<&str> = row.text(3).split(',').map(str::trim).filter(|address| !address.is_empty()).collect();
    let everywhere = |address: &&str| ["*", "0.0.0.0", "localhost", "127.0.0.1"].contains(address);
    let own = match listens.first() {
        // TCP is preferred: for sockets, pg_hba.conf mostly demands peer authentication, by which this role cannot log in.
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
