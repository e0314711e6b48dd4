//! Shards: added, drained, removed.
//!
//! Adding a shard makes a postgres_fdw server and a user mapping here, the extension there, and on every shard a server
//! for every other one, through which chunks are pulled when they move. What is done on other nodes is idempotent and
//! comes first; the catalog's row, in the caller's transaction, comes last: if adding fails half way, adding again goes
//! on from there, and nothing refers to what was left.

use super::cache;
use super::change;
use super::cluster;
use super::lost;
use super::model::{Place, Shard};
use super::nodes::call_on;
use super::zones;
use crate::ownership::access;
use crate::pg::error::{Error, Result};
use crate::pg::security::credentials;
use crate::pg::spi::param::Param;
use crate::pg::spi::quote::{quote_ident, quote_literal};
use crate::pg::{security::user, server, spi};
use crate::protocol::access::{AcceptPuller, ConnectShard, DisconnectShard, LeaveCluster, PullerVerifier};
use crate::protocol::table::DropTable;
use crate::protocol::{Call, sql};
use crate::remote::{self, Session};
use crate::store;
use docshard_core::cluster::handshake;
use docshard_core::error::Kind;
use serde_json::json;
use std::rc::Rc;

/// The name of the router's own database as a shard.
pub const LOCAL: &str = "local";
/// The longest name of a shard, in bytes: with the prefix it has to be a PostgreSQL name.
const MAX_NAME: usize = 50;

/// The postgres_fdw server of a shard, on the router and on every other shard.
pub fn server_name(shard: &str) -> String {
    format!("docshard_{shard}")
}

/// Options of [`add`].
#[derive(Debug, Default)]
pub struct AddOptions {
    /// the shard's name; made up if None
    pub name: Option<String>,
    /// how much it may hold, in MiB
    pub max_size_mb: Option<i32>,
    /// as whom to log in for this call: a superuser there, or the role that `docshard.accept_router` was told there
    pub user: Option<String>,
    /// with which password
    pub password: Option<String>,
}

type Keywords = Vec<(String, String)>;

/// This cluster's identity.
///
/// # Errors
/// Internal ones.
pub fn cluster_id() -> Result<i64> {
    Ok(cluster::coordinator()?.cluster)
}

/// Refuses administration on a node that is a shard of another router.
///
/// # Errors
/// `IllegalOperation`.
pub fn check_router() -> Result<()> {
    let own = Param::Int8(cluster_id()?);
    let rows = spi::query("SELECT shard FROM docshard_data.node WHERE cluster_id <> $1", &[own])?;
    match rows.first() {
        None => Ok(()),
        Some(row) => Err(Error::new(
            Kind::IllegalOperation,
            format!("this database is the shard \"{}\" of another cluster, not a router", row.text(0)),
        )
        .with_hint("Run it on the cluster's router.")),
    }
}

/// Refuses changes of the cluster on a node that is not its router: a shard, or a copy of the router.
///
/// # Errors
/// `IllegalOperation`, `NotWritablePrimary`.
pub fn check_may_change() -> Result<()> {
    check_router()?;
    cluster::require_router()
}

/// A connection string as libpq options: libpq's own forms, or MongoDB's `name/host1:port,host2:port`, whose name is
/// the second answer.
pub(super) fn parse_connection(conn: &str) -> Result<(Keywords, Option<String>)> {
    let mongodb = !conn.contains('=') && !conn.contains("://");
    let Some((name, hosts)) = conn.split_once('/').filter(|_| mongodb) else {
        return Ok((remote::parse_conninfo(conn)?, None));
    };
    let mut names = Vec::new();
    let mut ports = Vec::new();
    for host in hosts.split(',') {
        let (host, port) = host.rsplit_once(':').unwrap_or((host, "5432"));
        // Not even a login: what follows "@" is the host in MongoDB's other form, and messages name the host.
        if host.is_empty() || host.contains('@') || port.parse::<u16>().is_err() {
            return Err(Error::new(Kind::FailedToParse, "malformed connection string")
                .with_hint("MongoDB's form is name/host1:port,host2:port; libpq's forms are fine too."));
        }
        names.push(host);
        ports.push(port);
    }
    let mut keywords = vec![("host".to_owned(), names.join(",")), ("port".to_owned(), ports.join(","))];
    if names.len() > 1 {
        keywords.push(("target_session_attrs".to_owned(), "read-write".to_owned()));
    }
    Ok((keywords, Some(name.to_owned())))
}

pub(super) fn value<'a>(keywords: &'a Keywords, name: &str) -> Option<&'a str> {
    keywords.iter().find(|(keyword, _)| keyword == name).map(|(_, value)| value.as_str())
}

fn set(keywords: &mut Keywords, name: &str, value: &str) {
    keywords.retain(|(keyword, _)| keyword != name);
    keywords.push((name.to_owned(), value.to_owned()));
}

fn check_name(name: &str) -> Result<()> {
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

/// What a node tells of itself.
struct Probe {
    node: String,
    default_version: Option<String>,
    version: Option<String>,
    encoding: String,
    prepared_transactions: bool,
    /// whoever logged in is a superuser there
    superuser: bool,
}

fn probe(session: &mut Session) -> Result<Probe> {
    let rows = session.query(
        "SELECT (SELECT system_identifier::text FROM pg_control_system()) || '/' || d.oid, \
           (SELECT default_version FROM pg_catalog.pg_available_extensions WHERE name = 'docshard'), \
           (SELECT extversion FROM pg_catalog.pg_extension WHERE extname = 'docshard'), \
           pg_encoding_to_char(d.encoding)::text, current_setting('max_prepared_transactions') <> '0', \
           current_setting('is_superuser') = 'on' \
         FROM pg_catalog.pg_database d WHERE datname = current_database()",
        &[],
    )?;
    let row = rows.first().ok_or_else(|| Error::new(Kind::InternalError, "the node does not know its database"))?;
    Ok(Probe {
        node: row.text(0).unwrap_or_default().to_owned(),
        default_version: row.text(1).map(str::to_owned),
        version: row.text(2).map(str::to_owned),
        encoding: row.text(3).unwrap_or_default().to_owned(),
        prepared_transactions: row.bool(4).unwrap_or(false),
        superuser: row.bool(5).unwrap_or(false),
    })
}

/// Adds a shard; answers its name. The same again is no change.
///
/// # Errors
/// `HostUnreachable`, `IllegalOperation` (itself, the same database under another name), `OperationFailed` (wrong
/// version, data of another cluster, a name that is taken), `BadValue`.
pub fn add(conn: &str, options: &AddOptions) -> Result<String> {
    check_may_change()?;
    if conn == LOCAL {
        return add_local(options);
    }
    let (mut keywords, replica_set) = parse_connection(conn)?;
    let here = spi::query("SELECT pg_catalog.current_database()::pg_catalog.text", &[])?;
    let database = here.first().map(|row| row.text(0).to_owned()).unwrap_or_default();
    if value(&keywords, "dbname").is_none() {
        set(&mut keywords, "dbname", &database);
    }
    let caller = server::outer_user_name();
    let user = options.user.as_deref().or(value(&keywords, "user")).unwrap_or(&caller).to_owned();
    let password = options.password.as_deref().or(value(&keywords, "password")).map(str::to_owned);
    keywords.retain(|(keyword, _)| keyword != "user" && keyword != "password");
    let by_superuser = server::outer_user_is_superuser();
    if !by_superuser {
        refuse_foreign_secrets(&keywords, password.as_deref())?;
    }
    let mut login = keywords.clone();
    set(&mut login, "user", &user);
    if let Some(password) = &password {
        set(&mut login, "password", password);
    }

    let mut session = Session::open_conninfo(&login, !by_superuser)
        .map_err(|error| Error { hint: Some(REACH_HINT.to_owned()), ..unreachable_shard(error) })?;
    let probe = probe(&mut session)?;
    let wanted = options.name.clone().or(replica_set);
    if let Some(existing) = existing(&mut session, &probe, wanted.as_deref())? {
        stop_draining(&existing)?;
        return Ok(existing);
    }
    let name = match wanted {
        Some(name) => name,
        None => free_name()?,
    };
    check_name(&name)?;
    cluster::register()?;
    let id = store::shards::next_id()?;
    let login = prepare_node(&mut session, &probe, &name, id, &user, password.as_deref())?;
    drop(session);
    make_server(&name, &keywords, &login)?;
    connect_shards(&name, id, &keywords)?;

    store::shards::insert(id, &name, &server_name(&name), &probe.node, options.max_size_mb)?;
    change::log("addShard", None, &json!({"name": name, "host": display_host(&keywords)}))?;
    change::announce();
    if !probe.prepared_transactions {
        pgrx::warning!(
            "shard \"{name}\" allows no prepared transactions: a transaction can't write on it and another shard, and no \
             chunk can move from or to it; preload docshard there, or set max_prepared_transactions, and restart it"
        );
    }
    Ok(name)
}

pub(super) const REACH_HINT: &str =
    "The router connects with libpq: check host, port, dbname, user and password, and pg_hba.conf there.";

pub(super) fn unreachable_shard(error: Error) -> Error {
    if error.sqlstate.starts_with(b"08") || error.sqlstate.starts_with(b"28") || error.sqlstate.starts_with(b"3D") {
        let core = Error::new(Kind::HostUnreachable, error.message);
        return Error { context: error.context, ..core };
    }
    error
}

/// Where a shard is, for people.
pub(super) fn display_host(keywords: &Keywords) -> String {
    let host = value(keywords, "host").or(value(keywords, "hostaddr")).unwrap_or("[local]");
    let port = value(keywords, "port").unwrap_or("5432");
    format!("{host}:{port}/{}", value(keywords, "dbname").unwrap_or(""))
}

/// Adding a shard that is being removed keeps it.
fn stop_draining(name: &str) -> Result<()> {
    if store::shards::set_draining(name, false)? {
        change::log("removeShard.cancel", None, &json!({"shard": name}))?;
        change::announce();
    }
    Ok(())
}

fn add_local(options: &AddOptions) -> Result<String> {
    stop_draining(LOCAL)?;
    store::shards::insert_local(LOCAL, options.max_size_mb)?;
    change::log("addShard", None, &json!({"name": LOCAL}))?;
    change::announce();
    Ok(LOCAL.to_owned())
}

/// The name under which the database is a shard already, which its own mark says, as it stays the same wherever the database
/// is restored; an error if database or name are taken otherwise.
fn existing(session: &mut Session, probe: &Probe, wanted: Option<&str>) -> Result<Option<String>> {
    if is_this_database(probe)? {
        return Err(Error::new(Kind::IllegalOperation, "cannot add this database as a shard: it is the router itself")
            .with_hint("The router's own database is the shard \"local\"."));
    }
    if let Some(name) = mark(session, probe, cluster_id()?)?
        && store::shards::exists(&name)?
    {
        if wanted.is_none_or(|wanted| wanted == name) {
            note_node(&name, probe)?;
            return Ok(Some(name));
        }
        let message = format!("the database is already a member of this cluster, as the shard \"{name}\"");
        return Err(Error::new(Kind::IllegalOperation, message));
    }
    match wanted {
        Some(name) if store::shards::exists(name)? => Err(Error::new(
            Kind::OperationFailed,
            format!("a shard named \"{name}\" already exists, with another database"),
        )),
        _ => Ok(None),
    }
}

/// Notes for people which database a shard is, where the shard's server leads to it: pg_upgrade and a restore change that.
///
/// # Errors
/// `OperationFailed` if the server leads to another database, of which this one is a copy.
fn note_node(name: &str, probe: &Probe) -> Result<()> {
    match node_of(&server_name(name)) {
        None => Ok(()),
        Some(node) if node == probe.node => store::shards::set_node(name, &node),
        Some(_) => Err(Error::new(
            Kind::OperationFailed,
            format!("a shard named \"{name}\" already exists, with another database, of which this one is a copy"),
        )
        .with_hint("docshard.set_shard_address() makes a shard's server lead to another address.")),
    }
}

/// The database that a server leads to; None if there is none, or it cannot be reached.
fn node_of(server: &str) -> Option<String> {
    let mut session = Session::open(server::foreign_server_oid(server)?).ok()?;
    Some(probe(&mut session).ok()?.node)
}

/// The name of a shard of this cluster, as its own table docshard_data.node has it; None if the database is none.
fn mark(session: &mut Session, probe: &Probe, cluster: i64) -> Result<Option<String>> {
    if probe.version.is_none() {
        return Ok(None);
    }
    let rows = session.query("SELECT shard FROM docshard_data.node WHERE cluster_id = $1", &[Param::Int8(cluster)])?;
    Ok(rows.first().and_then(|row| row.text(0)).map(str::to_owned))
}

/// True if a session leads to the router's own database, by whatever name and address.
fn is_this_database(probe: &Probe) -> Result<bool> {
    let own = spi::query(
        "SELECT (SELECT system_identifier::text FROM pg_control_system()) || '/' || oid FROM pg_catalog.pg_database \
         WHERE datname = current_database()",
        &[],
    )?;
    Ok(own.first().is_some_and(|row| row.text(0) == probe.node))
}

fn free_name() -> Result<String> {
    store::shards::free_name()?.ok_or_else(|| Error::new(Kind::OperationFailed, "no name is left"))
}

/// How the router logs in at a shard from now on.
struct Login {
    user: String,
    password: Option<String>,
}

impl Login {
    fn options(&self) -> Vec<(&str, &str)> {
        let mut options = vec![("user", self.user.as_str())];
        options.extend(self.password.as_deref().map(|password| ("password", password)));
        options
    }
}

/// Makes the node a shard of this cluster: the extension, in our version, our service role, and our mark. A superuser's
/// login is used for this alone; any other is the service role's itself.
fn prepare_node(
    session: &mut Session,
    probe: &Probe,
    name: &str,
    id: i32,
    user: &str,
    password: Option<&str>,
) -> Result<Login> {
    let ours = env!("CARGO_PKG_VERSION");
    let refuse = |message: String| Error::new(Kind::OperationFailed, message);
    if probe.default_version.is_none() {
        return Err(refuse("docshard is not installed on that node".to_owned())
            .with_hint("Install the extension's files on that machine: make install."));
    }
    if let Some(theirs) = probe.version.as_deref().or(probe.default_version.as_deref())
        && !handshake::works_with(theirs)
    {
        return Err(refuse(format!("the node has docshard {theirs}, which does not work with the router's {ours}"))
            .with_hint("Install the router's version there, and run ALTER EXTENSION docshard UPDATE."));
    }
    if probe.encoding != "UTF8" {
        return Err(refuse(format!("the database's encoding is {}, it must be UTF8", probe.encoding)));
    }
    if probe.version.is_none() {
        if !probe.superuser {
            return Err(refuse("the database does not have the extension docshard".to_owned()).with_hint(
                "Only a superuser can create it: log in as one for add_shard, or create it there and run \
                 docshard.accept_router(role).",
            ));
        }
        session.execute("CREATE EXTENSION IF NOT EXISTS docshard CASCADE")?;
    }
    let sample = sql::pack("'{\"n\": 12345.678, \"s\": \"x\"}'");
    let rows = session.query(
        &format!(
            "SELECT (SELECT cluster_id::text FROM docshard_data.node), (SELECT shard FROM docshard_data.node), \
               ({}), encode({sample}, 'hex'), (SELECT count(*) FROM docshard_data.placement)",
            store::collections::COUNT
        ),
        &[],
    )?;
    let not_a_shard = || refuse("the node does not answer as a shard".to_owned());
    let row = rows.first().ok_or_else(not_a_shard)?;
    let (collections, placements) = row.i64(2).zip(row.i64(4)).ok_or_else(not_a_shard)?;
    if let (Some(cluster), Some(shard)) = (row.text(0), row.text(1)) {
        if cluster != cluster_id()?.to_string() {
            return Err(refuse(format!("the database is the shard \"{shard}\" of another docshard cluster"))
                .with_hint("Remove it from that cluster first: docshard.remove_shard()."));
        }
        lost::refuse_returned(&probe.node, shard, placements > 0)?;
        if shard != name {
            return Err(refuse(format!(
                "the database was the shard \"{shard}\" of this cluster; add it under that name"
            )));
        }
    }
    if collections > 0 {
        return Err(refuse("the database is a router with collections of its own".to_owned()));
    }
    let ours = spi::query(&format!("SELECT encode({sample}, 'hex')"), &[])?;
    if ours.first().is_none_or(|here| Some(here.text(0)) != row.text(3)) {
        return Err(refuse("the node stores jsonb differently: it has another processor architecture".to_owned()));
    }
    let login = if probe.superuser {
        let login = Login { user: service_name(id)?, password: Some(credentials::random_password()?) };
        let verifier = credentials::scram_verifier(login.password.as_deref().unwrap_or_default())?;
        // The verifier is not for a log either.
        session.execute("SET log_parameter_max_length = 0; SET log_parameter_max_length_on_error = 0")?;
        session.query("SELECT docshard.accept_router($1, $2)", &[Param::Text(&login.user), Param::Text(&verifier)])?;
        login
    } else {
        let accepted = session.query("SELECT pg_catalog.has_schema_privilege('docshard_data', 'CREATE')", &[])?;
        if accepted.first().and_then(|row| row.bool(0)) != Some(true) {
            return Err(refuse(format!("the database has not accepted a router as \"{user}\"")).with_hint(format!(
                "A superuser runs SELECT docshard.accept_router('{user}') there, or log in as one for add_shard."
            )));
        }
        Login { user: user.to_owned(), password: password.map(str::to_owned) }
    };
    session.query(
        "INSERT INTO docshard_data.node (cluster_id, shard, router, epoch) VALUES ($1, $2, $3, $4)",
        &[
            Param::Int8(cluster_id()?),
            Param::Text(name),
            Param::Text(&cluster::identity().to_string()),
            Param::Int8(cluster::coordinator()?.epoch),
        ],
    )?;
    Ok(login)
}

/// What begins the names of this cluster's roles: two clusters may use databases of one server.
fn role_prefix() -> Result<String> {
    Ok(format!("{}{:08x}", access::PREFIX, cluster_id()? as u32))
}

/// The role as which this router logs in at a shard, unless an administrator made one. Each shard has a name and a password of
/// its own: what a shard learns by asking for the password is good for nothing elsewhere.
fn service_name(shard: i32) -> Result<String> {
    Ok(format!("{}_s{shard}", role_prefix()?))
}

/// The role as which a shard logs in at others.
pub(super) fn puller_name(shard: i32) -> Result<String> {
    Ok(format!("{}_{shard}", role_prefix()?))
}

/// Who is no superuser here may use no files, identities or services of this server to log in elsewhere.
fn refuse_foreign_secrets(keywords: &Keywords, password: Option<&str>) -> Result<()> {
    if password.is_none_or(str::is_empty) {
        return Err(Error::new(Kind::Unauthorized, "a password is required to add a shard")
            .with_hint("Only a superuser may add a shard without one; give \"user\" and \"password\" as options."));
    }
    refuse_foreign_options(keywords)
}

/// The part of that which concerns where a shard is.
pub(super) fn refuse_foreign_options(keywords: &Keywords) -> Result<()> {
    const ALLOWED: &[&str] =
        &["host", "hostaddr", "port", "dbname", "sslmode", "connect_timeout", "target_session_attrs"];
    match keywords.iter().find(|(keyword, _)| !ALLOWED.contains(&keyword.as_str())) {
        None => Ok(()),
        Some((keyword, _)) => Err(Error::new(
            Kind::Unauthorized,
            format!("only a superuser may use the connection option \"{keyword}\" for a shard"),
        )),
    }
}

/// Makes the server that leads to a shard, and lets the router log in there.
fn make_server(name: &str, keywords: &Keywords, login: &Login) -> Result<()> {
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
fn connect_shards(name: &str, id: i32, keywords: &Keywords) -> Result<()> {
    let oid = server::foreign_server_oid(&server_name(name))
        .ok_or_else(|| Error::new(Kind::InternalError, "a server that was made is not there"))?;
    let mut session =
        Session::open(oid).map_err(|error| Error { hint: Some(REACH_HINT.to_owned()), ..unreachable_shard(error) })?;
    super::access::make_roles(&mut session)?;

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
pub(super) fn local_id() -> Result<i32> {
    Ok(store::shards::id(LOCAL)?.unwrap_or(0))
}

/// Makes this database reachable as the shards are, when the first one joins it: moves work with it over a connection.
pub(super) fn join_local(id: i32) -> Result<()> {
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

/// How shards reach this database: by the address that `docshard.set_local_address` was told, which the router's own server has;
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

/// How far a removal is.
#[derive(Debug)]
pub enum Removal {
    /// draining has begun
    Started,
    /// so much is left
    Ongoing {
        /// chunks
        chunks: i64,
    },
    /// the shard is gone
    Completed,
}

/// Removes a shard: the first call begins to drain it, later ones tell how far it is, the last one removes it. The
/// second answer names the databases whose primary shard it is: they must be moved or dropped by hand.
///
/// # Errors
/// `ShardNotFound`, `IllegalOperation` for the last shard, `ZoneStillInUse` for the last one of a zone with ranges.
pub fn remove(name: &str) -> Result<(Removal, Vec<String>)> {
    check_may_change()?;
    zones::lock()?;
    let shard = cache::shard_named(name)?;
    store::shards::lock_all()?;
    let databases = store::databases::of_primary(shard.id)?;
    if !shard.draining {
        check_dispensable(&shard)?;
        store::shards::set_draining(name, true)?;
        change::log("removeShard.start", None, &json!({"shard": name}))?;
        change::announce();
        return Ok((Removal::Started, databases));
    }
    let chunks = store::chunks::count_of_shard(shard.id)? + store::migrations::count_unfinished_at(shard.id)?;
    if chunks > 0 || !databases.is_empty() {
        return Ok((Removal::Ongoing { chunks }, databases));
    }
    take_away(&shard)?;
    change::log("removeShard", None, &json!({"shard": name}))?;
    change::announce();
    Ok((Removal::Completed, databases))
}

/// The shard of that name, which may be removed; with it, the zones and all shards are locked.
///
/// # Errors
/// As [`remove`], whatever the shard has.
pub fn begin_removal(name: &str) -> Result<Rc<Shard>> {
    check_may_change()?;
    zones::lock()?;
    let shard = cache::shard_named(name)?;
    store::shards::lock_all()?;
    check_dispensable(&shard)?;
    Ok(shard)
}

/// Refuses the last shard, and the last one of a zone that has ranges.
fn check_dispensable(shard: &Shard) -> Result<()> {
    if store::shards::count_others(shard.id)? == 0 {
        return Err(Error::new(Kind::IllegalOperation, "Operation not allowed because it would remove the last shard"));
    }
    if let Some(zone) = zones::depending_on(shard.id)?.first() {
        return Err(Error::new(
            Kind::ZoneStillInUse,
            format!("{} is the last shard of the zone '{zone}', which has ranges of keys", shard.name),
        )
        .with_hint("Add another shard to the zone, or remove its ranges: docshard.zone_ranges lists them."));
    }
    Ok(())
}

/// Forgets a shard that is lost, and what this router decided and cannot tell it. Of the others, those that cannot be reached keep
/// a server that leads nowhere.
///
/// # Errors
/// Internal ones.
pub fn forget_lost(shard: &Shard) -> Result<()> {
    let Some(server) = &shard.server else { return Ok(()) };
    store::transactions::delete_of_server(server)?;
    store::rotation::delete(server)?;
    let puller = puller_name(shard.id)?;
    for other in cache::shards()?.values().filter(|other| other.id != shard.id) {
        let Place::Remote(oid) = other.place else { continue };
        let _ =
            Session::open(oid).and_then(|mut session| DisconnectShard { server, puller: &puller }.call(&mut session));
    }
    store::shards::delete(shard.id)?;
    access::disconnect_shard(server, &puller)
}

/// Takes back what [`add`] made; the shard has no document left.
fn take_away(shard: &Shard) -> Result<()> {
    let placed = store::placements::delete_of_shard(shard.id)?;
    if let (Place::Remote(oid), Some(server)) = (shard.place, &shard.server) {
        // Not in this transaction: it drops the server, through which the shard would be told to commit. Should it roll
        // back, the tables that are gone were empty, and the same call again goes on.
        let mut session = Session::open(oid)?;
        session.execute("BEGIN; SET LOCAL lock_timeout = '10s'")?;
        for &collection in &placed {
            DropTable { collection }.call(&mut session)?;
            change::touch(collection)?;
        }
        LeaveCluster {}.call(&mut session)?;
        session.execute("COMMIT")?;
        let puller = puller_name(shard.id)?;
        for other in cache::shards()?.values().filter(|other| other.id != shard.id) {
            let Place::Remote(oid) = other.place else { continue };
            DisconnectShard { server, puller: &puller }.call(&mut Session::open(oid)?)?;
        }
        store::shards::delete(shard.id)?;
        access::disconnect_shard(server, &puller)?;
    } else {
        for &collection in &placed {
            call_on(shard, &DropTable { collection })?;
            change::touch(collection)?;
        }
        store::shards::delete(shard.id)?;
    }
    Ok(())
}
