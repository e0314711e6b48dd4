//! Shards: added, drained, removed.
//!
//! Adding a shard makes a postgres_fdw server and a user mapping here, the extension there, and on every shard a server
//! for every other one, through which chunks are pulled when they move. What is done on other nodes is idempotent and
//! comes first; the catalog's row, in the caller's transaction, comes last: if adding fails half way, adding again goes
//! on from there, and nothing refers to what was left.

use super::cache;
use super::change;
use super::model::{Place, Shard};
use super::nodes::run_on;
use super::zones;
use crate::pg::error::{Error, Result};
use crate::pg::param::Param;
use crate::pg::sql::{quote_ident, quote_literal};
use crate::pg::{server, spi};
use crate::remote::{self, Session};
use docshard_core::error::Kind;
use serde_json::json;

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
    /// the role to connect as
    pub user: Option<String>,
    /// its password
    pub password: Option<String>,
}

type Keywords = Vec<(String, String)>;

/// This cluster's identity.
///
/// # Errors
/// Internal ones.
pub fn cluster_id() -> Result<i64> {
    let rows = spi::query("SELECT id FROM docshard_catalog.cluster", &[])?;
    rows.first()
        .map(|row| row.i64(0))
        .ok_or_else(|| Error::new(Kind::NotYetInitialized, "this cluster has no identity"))
}

/// Refuses administration on a node that is a shard of another router.
///
/// # Errors
/// `IllegalOperation`.
pub fn check_router() -> Result<()> {
    let rows = spi::query(
        "SELECT n.shard FROM docshard_data.node n, docshard_catalog.cluster c WHERE n.cluster_id <> c.id",
        &[],
    )?;
    match rows.first() {
        None => Ok(()),
        Some(row) => Err(Error::new(
            Kind::IllegalOperation,
            format!("this database is the shard \"{}\" of another cluster, not a router", row.text(0)),
        )
        .with_hint("Run it on the cluster's router.")),
    }
}

/// A connection string as libpq options: libpq's own forms, or MongoDB's `name/host1:port,host2:port`, whose name is
/// the second answer.
fn parse_connection(conn: &str) -> Result<(Keywords, Option<String>)> {
    let mongodb = !conn.contains('=') && !conn.contains("://");
    let Some((name, hosts)) = conn.split_once('/').filter(|_| mongodb) else {
        return Ok((remote::parse_conninfo(conn)?, None));
    };
    let mut names = Vec::new();
    let mut ports = Vec::new();
    for host in hosts.split(',') {
        let (host, port) = host.rsplit_once(':').unwrap_or((host, "5432"));
        if host.is_empty() || port.parse::<u16>().is_err() {
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

fn value<'a>(keywords: &'a Keywords, name: &str) -> Option<&'a str> {
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
    /// how the node lays out a number and a string in jsonb, when it has the extension
    prepared_transactions: bool,
}

fn probe(session: &mut Session) -> Result<Probe> {
    let rows = session.query(
        "SELECT (SELECT system_identifier::text FROM pg_control_system()) || '/' || d.oid, \
           (SELECT default_version FROM pg_available_extensions WHERE name = 'docshard'), \
           (SELECT extversion FROM pg_extension WHERE extname = 'docshard'), \
           pg_encoding_to_char(d.encoding)::text, current_setting('max_prepared_transactions') <> '0' \
         FROM pg_database d WHERE datname = current_database()",
        &[],
    )?;
    let row = rows.first().ok_or_else(|| Error::new(Kind::InternalError, "the node does not know its database"))?;
    Ok(Probe {
        node: row.text(0).unwrap_or_default().to_owned(),
        default_version: row.text(1).map(str::to_owned),
        version: row.text(2).map(str::to_owned),
        encoding: row.text(3).unwrap_or_default().to_owned(),
        prepared_transactions: row.bool(4).unwrap_or(false),
    })
}

/// Adds a shard; answers its name. The same again is no change.
///
/// # Errors
/// `HostUnreachable`, `IllegalOperation` (itself, the same database under another name), `OperationFailed` (wrong
/// version, data of another cluster, a name that is taken), `BadValue`.
pub fn add(conn: &str, options: &AddOptions) -> Result<String> {
    check_router()?;
    if conn == LOCAL {
        return add_local(options);
    }
    let (mut keywords, replica_set) = parse_connection(conn)?;
    let here = spi::query("SELECT current_database()::text, current_user::text", &[])?;
    let (database, role) = here.first().map(|row| (row.text(0), row.text(1))).unwrap_or_default();
    if value(&keywords, "dbname").is_none() {
        set(&mut keywords, "dbname", database);
    }
    let user = options.user.as_deref().or(value(&keywords, "user")).unwrap_or(role).to_owned();
    let password = options.password.as_deref().or(value(&keywords, "password")).map(str::to_owned);
    keywords.retain(|(keyword, _)| keyword != "user" && keyword != "password");
    let mut login = keywords.clone();
    set(&mut login, "user", &user);
    if let Some(password) = &password {
        set(&mut login, "password", password);
    }

    let mut session = Session::open_conninfo(&login)
        .map_err(|error| Error { hint: Some(REACH_HINT.to_owned()), ..unreachable_shard(error) })?;
    let probe = probe(&mut session)?;
    let wanted = options.name.clone().or(replica_set);
    if let Some(existing) = existing(&probe, wanted.as_deref())? {
        stop_draining(&existing)?;
        return Ok(existing);
    }
    let name = match wanted {
        Some(name) => name,
        None => free_name()?,
    };
    check_name(&name)?;
    prepare_node(&mut session, &probe, &name)?;
    make_server(&name, &keywords, &user, password.as_deref())?;
    connect_shards(&mut session, &name, &keywords, &user, password.as_deref())?;

    spi::execute(
        "INSERT INTO docshard_catalog.shards (name, server, node, max_size_mb) VALUES ($1, $2::text::name, $3, $4::int)",
        &[
            Param::Text(&name),
            Param::Text(&server_name(&name)),
            Param::Text(&probe.node),
            Param::OptText(options.max_size_mb.map(|n| n.to_string()).as_deref()),
        ],
    )?;
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

const REACH_HINT: &str =
    "The router connects with libpq: check host, port, dbname, user and password, and pg_hba.conf there.";

fn unreachable_shard(error: Error) -> Error {
    if error.sqlstate.starts_with(b"08") || error.sqlstate.starts_with(b"28") || error.sqlstate.starts_with(b"3D") {
        let core = Error::new(Kind::HostUnreachable, error.message);
        return Error { context: error.context, ..core };
    }
    error
}

/// Where a shard is, for people.
fn display_host(keywords: &Keywords) -> String {
    let host = value(keywords, "host").or(value(keywords, "hostaddr")).unwrap_or("[local]");
    let port = value(keywords, "port").unwrap_or("5432");
    format!("{host}:{port}/{}", value(keywords, "dbname").unwrap_or(""))
}

/// Adding a shard that is being removed keeps it.
fn stop_draining(name: &str) -> Result<()> {
    let kept = spi::execute(
        "UPDATE docshard_catalog.shards SET draining = false WHERE name = $1 AND draining",
        &[Param::Text(name)],
    )?;
    if kept.processed > 0 {
        change::log("removeShard.cancel", None, &json!({"shard": name}))?;
        change::announce();
    }
    Ok(())
}

fn add_local(options: &AddOptions) -> Result<String> {
    let max_size = options.max_size_mb.map(|n| n.to_string());
    stop_draining(LOCAL)?;
    spi::execute(
        "INSERT INTO docshard_catalog.shards (name, max_size_mb) SELECT $1, $2::int \
         WHERE NOT EXISTS (SELECT FROM docshard_catalog.shards WHERE name = $1)",
        &[Param::Text(LOCAL), Param::OptText(max_size.as_deref())],
    )?;
    change::log("addShard", None, &json!({"name": LOCAL}))?;
    change::announce();
    Ok(LOCAL.to_owned())
}

/// The name under which the node is a shard already; an error if node or name are taken otherwise.
fn existing(probe: &Probe, wanted: Option<&str>) -> Result<Option<String>> {
    let own = spi::query(
        "SELECT (SELECT system_identifier::text FROM pg_control_system()) || '/' || oid FROM pg_database \
         WHERE datname = current_database()",
        &[],
    )?;
    if own.first().is_some_and(|row| row.text(0) == probe.node) {
        return Err(Error::new(Kind::IllegalOperation, "cannot add this database as a shard: it is the router itself")
            .with_hint("The router's own database is the shard \"local\"."));
    }
    let rows = spi::query(
        "SELECT name, node FROM docshard_catalog.shards WHERE node = $1 OR name = $2",
        &[Param::Text(&probe.node), Param::OptText(wanted)],
    )?;
    if let Some(row) = rows.iter().find(|row| row.text(1) == probe.node) {
        let name = row.text(0);
        if wanted.is_none_or(|wanted| wanted == name) {
            return Ok(Some(name.to_owned()));
        }
        let message = format!("the database is already a member of this cluster, as the shard \"{name}\"");
        return Err(Error::new(Kind::IllegalOperation, message));
    }
    if let Some(row) = rows.first() {
        let name = row.text(0);
        return Err(Error::new(
            Kind::OperationFailed,
            format!("a shard named \"{name}\" already exists, with another database"),
        ));
    }
    Ok(None)
}

fn free_name() -> Result<String> {
    let rows = spi::query(
        "SELECT 'shard' || lpad(n::text, 4, '0') FROM generate_series(0, 9999) n \
         WHERE NOT EXISTS (SELECT FROM docshard_catalog.shards WHERE name = 'shard' || lpad(n::text, 4, '0')) LIMIT 1",
        &[],
    )?;
    rows.first().map(|row| row.text(0).to_owned()).ok_or_else(|| Error::new(Kind::OperationFailed, "no name is left"))
}

/// Makes the node a shard of this cluster: the extension, in our version, and our mark.
fn prepare_node(session: &mut Session, probe: &Probe, name: &str) -> Result<()> {
    let ours = env!("CARGO_PKG_VERSION");
    let refuse = |message: String| Error::new(Kind::OperationFailed, message);
    if probe.default_version.is_none() {
        return Err(refuse("docshard is not installed on that node".to_owned())
            .with_hint("Install the extension's files on that machine: make install."));
    }
    if let Some(theirs) = probe.version.as_deref().or(probe.default_version.as_deref())
        && theirs != ours
    {
        return Err(refuse(format!("the node has docshard {theirs}, the router has {ours}"))
            .with_hint("Bring both to the same version: ALTER EXTENSION docshard UPDATE."));
    }
    if probe.encoding != "UTF8" {
        return Err(refuse(format!("the database's encoding is {}, it must be UTF8", probe.encoding)));
    }
    session.execute("CREATE EXTENSION IF NOT EXISTS docshard CASCADE")?;
    let rows = session.query(
        "SELECT (SELECT cluster_id::text FROM docshard_data.node), (SELECT shard FROM docshard_data.node), \
           (SELECT count(*) FROM docshard_catalog.collections), \
           encode(docshard_internal.pack('{\"n\": 12345.678, \"s\": \"x\"}'), 'hex')",
        &[],
    )?;
    let row = rows.first().ok_or_else(|| refuse("the node does not answer as a shard".to_owned()))?;
    if let (Some(cluster), Some(shard)) = (row.text(0), row.text(1)) {
        if cluster != cluster_id()?.to_string() {
            return Err(refuse(format!("the database is the shard \"{shard}\" of another docshard cluster"))
                .with_hint("Remove it from that cluster first: docshard.remove_shard()."));
        }
        if shard != name {
            return Err(refuse(format!(
                "the database was the shard \"{shard}\" of this cluster; add it under that name"
            )));
        }
    }
    if row.i64(2).unwrap_or(0) > 0 {
        return Err(refuse("the database is a router with collections of its own".to_owned()));
    }
    let ours = spi::query("SELECT encode(docshard_internal.pack('{\"n\": 12345.678, \"s\": \"x\"}'), 'hex')", &[])?;
    if ours.first().is_none_or(|here| Some(here.text(0)) != row.text(3)) {
        return Err(refuse("the node stores jsonb differently: it has another processor architecture".to_owned()));
    }
    session.query(
        "INSERT INTO docshard_data.node (cluster_id, shard) VALUES ($1, $2)",
        &[Param::Int8(cluster_id()?), Param::Text(name)],
    )?;
    Ok(())
}

/// The statements that make a postgres_fdw server and a user mapping for whoever runs them.
fn server_ddl(name: &str, keywords: &Keywords, user: &str, password: Option<&str>) -> String {
    let server = quote_ident(&server_name(name));
    let list = |options: &[(String, String)]| {
        let options: Vec<_> = options
            .iter()
            .map(|(keyword, value)| format!("{} {}", quote_ident(keyword), quote_literal(value)))
            .collect();
        options.join(", ")
    };
    let mut login = vec![("user".to_owned(), user.to_owned())];
    login.extend(password.map(|password| ("password".to_owned(), password.to_owned())));
    format!(
        "CREATE SERVER {server} FOREIGN DATA WRAPPER postgres_fdw OPTIONS ({}); \
         CREATE USER MAPPING FOR CURRENT_USER SERVER {server} OPTIONS ({})",
        list(keywords),
        list(&login)
    )
}

fn make_server(name: &str, keywords: &Keywords, user: &str, password: Option<&str>) -> Result<()> {
    if server::foreign_server_oid(&server_name(name)).is_some() {
        return Err(Error::new(
            Kind::OperationFailed,
            format!("foreign server \"{}\" exists already", server_name(name)),
        )
        .with_hint("It belongs to no shard of this cluster: DROP SERVER it, or choose another name."));
    }
    spi::run_script(&server_ddl(name, keywords, user, password))?;
    map_owner(name, user, password)
}

/// The background worker acts as the extension's owner: it needs a mapping too, if somebody else adds the shard.
fn map_owner(name: &str, user: &str, password: Option<&str>) -> Result<()> {
    let rows = spi::query(
        "SELECT r.rolname FROM pg_catalog.pg_extension e JOIN pg_catalog.pg_roles r ON r.oid = e.extowner \
         WHERE e.extname = 'docshard' AND r.rolname <> current_user",
        &[],
    )?;
    let Some(owner) = rows.first() else { return Ok(()) };
    let secret = password.map_or(String::new(), |password| format!(", password {}", quote_literal(password)));
    spi::run_script(&format!(
        "CREATE USER MAPPING FOR {} SERVER {} OPTIONS (user {}{secret})",
        quote_ident(owner.text(0)),
        quote_ident(&server_name(name)),
        quote_literal(user)
    ))
}

/// As [`server_ddl`], in place of what an earlier attempt may have left.
fn replacing_server_ddl(name: &str, keywords: &Keywords, user: &str, password: Option<&str>) -> String {
    format!(
        "SET client_min_messages = warning; DROP SERVER IF EXISTS {} CASCADE; {}",
        quote_ident(&server_name(name)),
        server_ddl(name, keywords, user, password)
    )
}

/// Makes the servers between the new shard and every other one, both ways.
fn connect_shards(
    session: &mut Session,
    name: &str,
    keywords: &Keywords,
    user: &str,
    password: Option<&str>,
) -> Result<()> {
    // The router's own database, as this shard sees it.
    let seen = session.query("SELECT host(inet_client_addr())", &[])?;
    let seen = seen.first().and_then(|row| row.text(0)).map(str::to_owned);
    let local = local_keywords(seen.as_deref())?;
    let role = spi::query("SELECT current_user::text", &[])?;
    let role = role.first().map(|row| row.text(0).to_owned()).unwrap_or_default();
    session.execute(&replacing_server_ddl(LOCAL, &local, &role, None))?;
    if server::foreign_server_oid(&server_name(LOCAL)).is_none() {
        let mut own = local_keywords(None)?;
        // Soon given up: a connection to a database that is being dropped waits, and the worker that waits for it is
        // what DROP DATABASE waits for, five seconds at most.
        set(&mut own, "connect_timeout", "2");
        make_server(LOCAL, &own, &role, None)?;
    }
    let here = server::current_user();
    for shard in cache::shards()?.values() {
        let Place::Remote(oid) = shard.place else { continue };
        let mut options = remote::connection_options(oid, here)?;
        options.retain(|(keyword, _)| {
            !matches!(
                keyword.as_str(),
                "options" | "client_encoding" | "application_name" | "fallback_application_name"
            )
        });
        let their_user = value(&options, "user").unwrap_or(&role).to_owned();
        let their_password = value(&options, "password").map(str::to_owned);
        options.retain(|(keyword, _)| keyword != "user" && keyword != "password");
        session.execute(&replacing_server_ddl(&shard.name, &options, &their_user, their_password.as_deref()))?;
        let mut other = Session::open(oid, here)?;
        other.execute(&replacing_server_ddl(name, keywords, user, password))?;
    }
    Ok(())
}

/// How to reach this database: over TCP from the address that a shard saw, else over its socket.
fn local_keywords(seen: Option<&str>) -> Result<Keywords> {
    let rows = spi::query(
        "SELECT current_setting('port'), split_part(current_setting('unix_socket_directories'), ',', 1), \
           current_database()::text",
        &[],
    )?;
    let row = rows.first().ok_or_else(|| Error::new(Kind::InternalError, "this server does not know its port"))?;
    let socket = row.text(1).trim();
    let host = seen.unwrap_or(if socket.is_empty() { "127.0.0.1" } else { socket });
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
    check_router()?;
    zones::lock()?;
    let shard = cache::shard_named(name)?;
    spi::query("SELECT FROM docshard_catalog.shards FOR UPDATE", &[])?;
    let rows = spi::query(
        "SELECT name FROM docshard_catalog.databases WHERE primary_shard = $1 ORDER BY name",
        &[Param::Int4(shard.id)],
    )?;
    let databases: Vec<String> = rows.iter().map(|row| row.text(0).to_owned()).collect();
    if !shard.draining {
        let others = spi::query(
            "SELECT count(*) FROM docshard_catalog.shards WHERE NOT draining AND id <> $1",
            &[Param::Int4(shard.id)],
        )?;
        if others.first().is_none_or(|row| row.i64(0) == 0) {
            return Err(Error::new(
                Kind::IllegalOperation,
                "Operation not allowed because it would remove the last shard",
            ));
        }
        if let Some(zone) = zones::needed_by(shard.id)?.first() {
            return Err(Error::new(
                Kind::ZoneStillInUse,
                format!("{name} is the last shard of the zone '{zone}', which has ranges of keys"),
            )
            .with_hint("Add another shard to the zone, or remove its ranges: docshard.zone_ranges lists them."));
        }
        spi::execute("UPDATE docshard_catalog.shards SET draining = true WHERE id = $1", &[Param::Int4(shard.id)])?;
        change::log("removeShard.start", None, &json!({"shard": name}))?;
        change::announce();
        return Ok((Removal::Started, databases));
    }
    let chunks = spi::query(
        "SELECT (SELECT count(*) FROM docshard_catalog.chunks WHERE shard_id = $1) + \
                (SELECT count(*) FROM docshard_catalog.migrations WHERE state <> 'done' AND (donor = $1 OR recipient = $1))",
        &[Param::Int4(shard.id)],
    )?;
    let chunks = chunks.first().map_or(0, |row| row.i64(0));
    if chunks > 0 || !databases.is_empty() {
        return Ok((Removal::Ongoing { chunks }, databases));
    }
    take_away(&shard)?;
    change::log("removeShard", None, &json!({"shard": name}))?;
    change::announce();
    Ok((Removal::Completed, databases))
}

/// Takes back what [`add`] made; the shard has no document left.
fn take_away(shard: &Shard) -> Result<()> {
    let placed = spi::query(
        "DELETE FROM docshard_catalog.placements WHERE shard_id = $1 RETURNING collection_id",
        &[Param::Int4(shard.id)],
    )?;
    if let (Place::Remote(oid), Some(server)) = (shard.place, &shard.server) {
        // Not in this transaction: it drops the server, through which the shard would be told to commit. Should it roll
        // back, the tables that are gone were empty, and the same call again goes on.
        let mut session = Session::open(oid, server::current_user())?;
        session.execute("BEGIN; SET LOCAL lock_timeout = '10s'")?;
        for row in &placed {
            session.query("SELECT docshard_internal.drop_table($1)", &[Param::Int4(row.i32(0))])?;
            change::touch(row.i32(0))?;
        }
        session.execute("DELETE FROM docshard_data.node; COMMIT")?;
        spi::execute("DELETE FROM docshard_catalog.shards WHERE id = $1", &[Param::Int4(shard.id)])?;
        // One by one, as CASCADE would tell the user of each.
        let mapped =
            spi::query("SELECT usename FROM pg_catalog.pg_user_mappings WHERE srvname = $1", &[Param::Text(server)])?;
        for row in &mapped {
            let user = quote_ident(row.text(0));
            spi::run_script(&format!("DROP USER MAPPING FOR {user} SERVER {}", quote_ident(server)))?;
        }
        spi::run_script(&format!("DROP SERVER IF EXISTS {} CASCADE", quote_ident(server)))?;
    } else {
        for row in &placed {
            run_on(shard, "SELECT docshard_internal.drop_table($1)", &[Param::Int4(row.i32(0))])?;
            change::touch(row.i32(0))?;
        }
        spi::execute("DELETE FROM docshard_catalog.shards WHERE id = $1", &[Param::Int4(shard.id)])?;
    }
    Ok(())
}
