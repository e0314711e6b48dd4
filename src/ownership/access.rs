//! Who may do what on this shard: the router's service role, the application roles that it acts for, and the roles by
//! which other shards read what is moved to them.
//!
//! The service role is no superuser. What it may not do itself (make roles, servers and user mappings) it asks these
//! functions for, which run as the extension's owner and take only what a router has reason to ask for.
//!
//! | role | logs in | may |
//! |---|---|---|
//! | service role | from the router | own and change the collections' tables, call `docshard_internal`, act for application roles |
//! | application role | never | read or write the tables of collections, as granted |
//! | puller, one for each other shard | from that shard | read what is captured of a range that is being moved |

use super::node::service_role;
use super::table;
use crate::pg::error::{Error, Result};
use crate::pg::object::drop_guard;
use crate::pg::security::credentials;
use crate::pg::security::permission;
use crate::pg::spi::param::Param;
use crate::pg::spi::quote::{quote_ident, quote_literal};
use crate::pg::transaction::subtransaction;
use crate::pg::{server, spi};
use crate::protocol::access::{PULLER_FUNCTIONS, SetAccess};
use crate::protocol::qualified;
use crate::storage::rows::capture::captures;
use crate::store;
use docshard_core::error::Kind;

/// What the names of servers and roles begin with that routers make.
pub const PREFIX: &str = "docshard_";

/// The comment of application roles that were made here, and so may be dropped.
const MADE_HERE: &str = "docshard: application role";

/// What a server's options may say when a router asks for it: where it is, and how to get there. Not files that this
/// server's own user could read, and nobody else.
pub const SERVER_OPTIONS: &[&str] = &[
    "host",
    "hostaddr",
    "port",
    "dbname",
    "target_session_attrs",
    "connect_timeout",
    "keepalives",
    "keepalives_idle",
    "keepalives_interval",
    "keepalives_count",
    "tcp_user_timeout",
    "sslmode",
    "sslrootcert",
    "sslcrl",
    "sslcrldir",
    "sslsni",
    "ssl_min_protocol_version",
    "ssl_max_protocol_version",
    "channel_binding",
    "gssencmode",
    "fetch_size",
];

/// What an address consists of: given anew, all of it is replaced. Other options of a server stay unless they are given.
pub const ADDRESS: &[&str] = &["host", "hostaddr", "port", "target_session_attrs"];

/// How many seconds a shard may try to reach a host, unless the server says otherwise: nothing interrupts that.
const CONNECT_TIMEOUT_S: &str = "10";

/// Groups of PostgreSQL's whose members may do more than any application should be able to lend.
const POWERFUL: &[&str] = &[
    "pg_execute_server_program",
    "pg_read_server_files",
    "pg_write_server_files",
    "pg_read_all_data",
    "pg_write_all_data",
];

fn refuse(message: String) -> Error {
    Error::new(Kind::IllegalOperation, message)
}

/// The comment of pullers: whose they are. Databases of one server share its roles, and may belong to several clusters.
fn puller_mark(service: &str) -> String {
    format!("docshard: pulls documents for {}", cluster_of(service))
}

/// What the names of a cluster's service roles begin with; the whole name of one that an administrator made.
fn cluster_of(service: &str) -> &str {
    match service.rsplit_once("_s") {
        Some((cluster, shard)) if service.starts_with(PREFIX) && shard.bytes().all(|c| c.is_ascii_digit()) => cluster,
        _ => service,
    }
}

fn comment_of(role: &str) -> Result<String> {
    let sql = "SELECT pg_catalog.shobj_description(oid, 'pg_authid') FROM pg_catalog.pg_roles \
               WHERE rolname OPERATOR(pg_catalog.=) $1::pg_catalog.name";
    let rows = spi::query(sql, &[Param::Text(role)])?;
    Ok(rows.first().and_then(|row| row.opt_text(0)).unwrap_or_default().to_owned())
}

/// Refuses a role that is not a puller of this cluster.
fn check_puller(puller: &str) -> Result<()> {
    refuse_powerful(puller)?;
    if comment_of(puller)? == puller_mark(&required_service_role()?) {
        return Ok(());
    }
    Err(refuse(format!("the role \"{puller}\" of this server does not belong to this database's router"))
        .with_hint("Databases of one server that are shards of one cluster must accept its router as the same role."))
}

fn check_prefix(name: &str) -> Result<()> {
    if name.starts_with(PREFIX) {
        return Ok(());
    }
    Err(Error::new(Kind::BadValue, format!("\"{name}\" does not begin with {PREFIX}")))
}

/// True if there is a role of that name.
fn has_role(role: &str) -> Result<bool> {
    let sql = "SELECT FROM pg_catalog.pg_roles WHERE rolname OPERATOR(pg_catalog.=) $1::pg_catalog.name";
    Ok(!spi::query(sql, &[Param::Text(role)])?.is_empty())
}

/// Refuses a role that may do what nobody should be able to do by way of a router, itself or as a member of others, directly or
/// not: who may become the one may become those, too.
fn refuse_powerful(role: &str) -> Result<()> {
    let rows = spi::query(
        "SELECT FROM pg_catalog.pg_roles r CROSS JOIN pg_catalog.pg_roles m \
         WHERE r.rolname OPERATOR(pg_catalog.=) $1::pg_catalog.name \
         AND (m.oid OPERATOR(pg_catalog.=) r.oid OR pg_catalog.pg_has_role(r.oid, m.oid, 'MEMBER')) \
         AND (m.rolsuper OR m.rolcreaterole OR m.rolreplication OR m.rolbypassrls \
           OR m.rolname OPERATOR(pg_catalog.=) ANY ($2::pg_catalog.name[]) \
           OR m.oid OPERATOR(pg_catalog.<>) r.oid AND pg_catalog.starts_with(m.rolname::pg_catalog.text, $3) \
           OR EXISTS (SELECT FROM pg_catalog.pg_database d WHERE d.datdba OPERATOR(pg_catalog.=) m.oid)) LIMIT 1",
        &[Param::Text(role), Param::TextArray(POWERFUL), Param::Text(PREFIX)],
    )?;
    if rows.is_empty() {
        return Ok(());
    }
    Err(refuse(format!("the role \"{role}\" of this server may do more than use documents"))
        .with_hint("Use a role of another name, that is no superuser and not member of a powerful group."))
}

fn required_service_role() -> Result<String> {
    service_role()?.ok_or_else(|| {
        Error::new(Kind::NotYetInitialized, "this database has accepted no router")
            .with_hint("A superuser runs docshard.accept_router(role) here.")
    })
}

/// Lets a router work here as a role, which is made if it is missing; with a password, given by its verifier.
///
/// # Errors
/// `Unauthorized` for anybody but a superuser; `IllegalOperation` for a role that is too powerful.
pub fn accept_router(role: &str, verifier: Option<&str>) -> Result<()> {
    if !server::is_superuser() {
        return Err(Error::new(Kind::Unauthorized, "only a superuser may let a router work on this database"));
    }
    let (name, before) = (quote_ident(role), service_role()?);
    if has_role(role)? {
        refuse_powerful(role)?;
    } else {
        spi::run_script(&format!(
            "CREATE ROLE {name} LOGIN NOINHERIT; COMMENT ON ROLE {name} IS 'docshard: service role of a router'"
        ))?;
    }
    if let Some(verifier) = verifier {
        credentials::set_password(role, verifier)?;
    }
    // What the router sends are documents, and verifiers of passwords: no log should hold them.
    spi::run_script(&format!(
        "ALTER ROLE {name} SET log_parameter_max_length = 0; ALTER ROLE {name} SET log_parameter_max_length_on_error = 0; \
         GRANT USAGE ON SCHEMA docshard, docshard_internal, docshard_catalog TO {name}; \
         GRANT USAGE, CREATE ON SCHEMA docshard_data TO {name}; \
         GRANT SELECT ON ALL TABLES IN SCHEMA docshard, docshard_catalog TO {name}; \
         GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA docshard_data TO {name}; \
         REVOKE ALL ON docshard_data.service FROM {name}; \
         REVOKE ALL ON {} FROM {name}; \
         GRANT USAGE ON ALL SEQUENCES IN SCHEMA docshard_data TO {name}; \
         GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA docshard_internal TO {name}",
        store::SECRET
    ))?;
    spi::execute(
        "INSERT INTO docshard_data.service (role) VALUES ($1::pg_catalog.text::pg_catalog.regrole) \
         ON CONFLICT (one) DO UPDATE SET role = excluded.role",
        &[Param::Text(&name)],
    )?;
    let tables = spi::query(
        "SELECT c.relname FROM pg_catalog.pg_class c JOIN docshard_data.placement p \
         ON c.relname OPERATOR(pg_catalog.=) ('c' OPERATOR(pg_catalog.||) p.collection_id)::pg_catalog.name \
         WHERE c.relnamespace OPERATOR(pg_catalog.=) 'docshard_data'::pg_catalog.regnamespace",
        &[],
    )?;
    for table in &tables {
        spi::run_script(&format!("ALTER TABLE docshard_data.{} OWNER TO {name}", quote_ident(table.text(0))))?;
    }
    // What a router had here before, which has taken this shard out.
    if let Some(before) = before.filter(|before| before != role && before.starts_with(PREFIX)) {
        let before = quote_ident(&before);
        drop_guard::unguarded(|| spi::run_script(&format!("DROP OWNED BY {before}")))?;
        let _ = subtransaction::attempt(|| spi::run_script(&format!("DROP ROLE {before}")));
    }
    Ok(())
}

/// Gives the service role a new password, by its verifier. Runs as the extension's owner.
pub fn set_service_password(verifier: &str) -> Result<()> {
    credentials::set_password(&required_service_role()?, verifier)
}

/// Makes an application role, so that the router can act for it. Runs as the extension's owner.
pub fn create_role(role: &str) -> Result<()> {
    let (name, service) = (quote_ident(role), required_service_role()?);
    // The service role becomes a member: of nobody's but an application's, whatever the router asks for.
    if role.starts_with(PREFIX) || role.starts_with("pg_") {
        return Err(refuse(format!("role \"{role}\" is not an application's")));
    }
    if has_role(role)? {
        refuse_powerful(role)?;
    } else {
        spi::run_script(&format!(
            "CREATE ROLE {name} NOLOGIN; COMMENT ON ROLE {name} IS {}",
            quote_literal(MADE_HERE)
        ))?;
    }
    spi::run_script(&format!(
        "GRANT USAGE ON SCHEMA docshard, docshard_internal, docshard_data TO {name}; GRANT {name} TO {}",
        quote_ident(&service)
    ))
}

/// The router does not act for the role any more; it is dropped if it was made for that and nothing else depends on it. Runs
/// as the extension's owner, after what it could do with tables was revoked.
pub fn drop_role(role: &str) -> Result<()> {
    if !has_role(role)? {
        return Ok(());
    }
    let (name, service) = (quote_ident(role), required_service_role()?);
    spi::run_script(&format!(
        "REVOKE USAGE ON SCHEMA docshard, docshard_internal, docshard_data FROM {name}; REVOKE {name} FROM {}",
        quote_ident(&service)
    ))?;
    let made = spi::query(
        "SELECT FROM pg_catalog.pg_roles WHERE rolname OPERATOR(pg_catalog.=) $1::pg_catalog.name AND NOT rolcanlogin \
         AND pg_catalog.shobj_description(oid, 'pg_authid') OPERATOR(pg_catalog.=) $2",
        &[Param::Text(role), Param::Text(MADE_HERE)],
    )?;
    if !made.is_empty() {
        // Another database of this server may need it still.
        let _ = subtransaction::attempt(|| spi::run_script(&format!("DROP ROLE {name}")));
    }
    Ok(())
}

/// What roles may do with a collection's table, if it is here: read it, write it, or (`others`) nothing. What a role may do that
/// is not named stays as it is.
pub fn set_access(access: &SetAccess<'_>) -> Result<()> {
    let &SetAccess { collection, readers, writers, others } = access;
    if !table::has_relation(&format!("c{collection}")) {
        return Ok(());
    }
    let table = table::name(collection);
    for role in writers {
        spi::run_script(&format!("GRANT SELECT, INSERT, UPDATE, DELETE ON {table} TO {}", quote_ident(role)))?;
    }
    for role in readers {
        let role = quote_ident(role);
        spi::run_script(&format!("REVOKE ALL ON {table} FROM {role}; GRANT SELECT ON {table} TO {role}"))?;
    }
    for role in others {
        if has_role(role)? {
            spi::run_script(&format!("REVOKE ALL ON {table} FROM {}", quote_ident(role)))?;
        }
    }
    Ok(())
}

/// The verifier of the password with which this shard logs in at others to pull documents. Runs as the extension's owner.
pub fn puller_verifier() -> Result<String> {
    credentials::scram_verifier(&pull_password()?)
}

/// That password. It is made here, and never leaves this shard but by SCRAM.
fn pull_password() -> Result<String> {
    required_service_role()?;
    let rows = spi::query("SELECT secret FROM docshard_data.service", &[])?;
    if let Some(secret) = rows.first().and_then(|row| row.opt_text(0)) {
        return Ok(secret.to_owned());
    }
    let secret = credentials::random_password()?;
    spi::execute("UPDATE docshard_data.service SET secret = $1", &[Param::Text(&secret)])?;
    Ok(secret)
}

/// Makes the server that leads to another shard, in place of one of that name, and lets this shard log in there as `puller`.
/// Runs as the extension's owner.
///
/// # Errors
/// `BadValue` for names or options that a router has no reason to ask for.
pub fn connect_shard(server: &str, options: &[(String, String)], puller: &str) -> Result<()> {
    check_prefix(server)?;
    if let Some((option, _)) = options.iter().find(|(option, _)| !SERVER_OPTIONS.contains(&option.as_str())) {
        return Err(Error::new(Kind::BadValue, format!("a shard's server cannot have the option \"{option}\"")));
    }
    let name = quote_ident(server);
    let options: Vec<String> =
        options.iter().map(|(option, value)| format!("{} {}", quote_ident(option), quote_literal(value))).collect();
    drop_server(server)?;
    spi::run_script(&format!(
        "CREATE SERVER {name} FOREIGN DATA WRAPPER postgres_fdw OPTIONS ({})",
        options.join(", ")
    ))?;
    map_puller(server, puller)
}

/// Gives a server that leads to another shard another address; who logs in there stays. Runs as the extension's owner. `any`: the
/// caller may use files of this server, too.
pub fn set_address(server: &str, options: &[(String, String)], any: bool) -> Result<()> {
    check_prefix(server)?;
    if let Some((option, _)) = options.iter().find(|(option, _)| !any && !SERVER_OPTIONS.contains(&option.as_str())) {
        return Err(Error::new(Kind::BadValue, format!("a shard's server cannot have the option \"{option}\"")));
    }
    if server::foreign_server_oid(server).is_none() {
        return Err(Error::new(Kind::ShardNotFound, format!("foreign server \"{server}\" does not exist")));
    }
    let rows = spi::query(
        "SELECT o.option_name FROM pg_catalog.pg_foreign_server s \
         CROSS JOIN LATERAL pg_catalog.pg_options_to_table(s.srvoptions) AS o \
         WHERE s.srvname OPERATOR(pg_catalog.=) $1::pg_catalog.name",
        &[Param::Text(server)],
    )?;
    let present: Vec<&str> = rows.iter().map(|row| row.text(0)).collect();
    let is_given = |name: &str| options.iter().any(|(option, _)| option == name);
    let dropped = present.iter().filter(|option| ADDRESS.contains(option) && !is_given(option));
    let mut changes: Vec<String> = dropped.map(|option| format!("DROP {}", quote_ident(option))).collect();
    for (option, value) in options {
        let verb = if present.contains(&option.as_str()) { "SET" } else { "ADD" };
        changes.push(format!("{verb} {} {}", quote_ident(option), quote_literal(value)));
    }
    if !is_given("connect_timeout") && !present.contains(&"connect_timeout") {
        changes.push(format!("ADD connect_timeout {}", quote_literal(CONNECT_TIMEOUT_S)));
    }
    spi::run_script(&format!("ALTER SERVER {} OPTIONS ({})", quote_ident(server), changes.join(", ")))
}

/// Lets this shard log in at a server as `puller`. Runs as the extension's owner.
pub fn map_puller(server: &str, puller: &str) -> Result<()> {
    check_prefix(server)?;
    check_prefix(puller)?;
    let service = required_service_role()?;
    let password = pull_password()?;
    spi::run_script(&format!("GRANT USAGE ON FOREIGN SERVER {} TO {}", quote_ident(server), quote_ident(&service)))?;
    let login = [("user", puller), ("password", password.as_str()), ("password_required", "false")];
    credentials::set_user_mapping(server, &service, &login)
}

/// Lets another shard log in here, as `puller`, and read what is moved to it. Runs as the extension's owner.
pub fn accept_puller(puller: &str, verifier: &str) -> Result<()> {
    check_prefix(puller)?;
    let name = quote_ident(puller);
    if has_role(puller)? {
        check_puller(puller)?;
    } else {
        let mark = quote_literal(&puller_mark(&required_service_role()?));
        spi::run_script(&format!("CREATE ROLE {name} LOGIN NOINHERIT; COMMENT ON ROLE {name} IS {mark}"))?;
    }
    credentials::set_password(puller, verifier)?;
    spi::run_script(&format!(
        "GRANT USAGE ON SCHEMA docshard_data, docshard_internal TO {name}; \
         GRANT SELECT ON docshard_data.identity, docshard_data.capture_packed, docshard_data.capture_changes TO {name}; \
         GRANT EXECUTE ON FUNCTION {} TO {name}",
        PULLER_FUNCTIONS.map(qualified).join(", ")
    ))
}

/// Refuses who may read neither the collection's table nor, as a shard to which they move, the documents of that range: from
/// `lo` up to `hi`, of which none is the end.
pub fn require_captured(collection: i32, lo: &[u8], hi: Option<&[u8]>) -> Result<()> {
    if permission::may_read(table::oid(collection)?)
        || captures(collection)?.iter().any(|capture| capture.covers(lo, hi))
    {
        return Ok(());
    }
    Err(Error::new(Kind::Unauthorized, format!("permission denied for documents of collection {collection}")))
}

/// Forgets another shard: its server here, and the role by which it logged in. Runs as the extension's owner.
pub fn disconnect_shard(server: &str, puller: &str) -> Result<()> {
    check_prefix(server)?;
    check_prefix(puller)?;
    drop_server(server)?;
    drop_puller(puller)
}

/// Takes a puller's privileges away, and the role, unless another database of this server needs it.
fn drop_puller(puller: &str) -> Result<()> {
    if !has_role(puller)? {
        return Ok(());
    }
    check_puller(puller)?;
    let name = quote_ident(puller);
    spi::run_script(&format!("DROP OWNED BY {name}"))?;
    let _ = subtransaction::attempt(|| spi::run_script(&format!("DROP ROLE {name}")));
    Ok(())
}

/// Drops a foreign server, with its user mappings; nothing if there is none.
pub fn drop_server(server: &str) -> Result<()> {
    if server::foreign_server_oid(server).is_none() {
        return Ok(());
    }
    // One by one, as CASCADE would tell of each.
    let mapped = spi::query(
        "SELECT usename FROM pg_catalog.pg_user_mappings WHERE srvname OPERATOR(pg_catalog.=) $1::pg_catalog.name",
        &[Param::Text(server)],
    )?;
    let server = quote_ident(server);
    for row in &mapped {
        let user = quote_ident(row.text(0));
        drop_guard::unguarded(|| spi::run_script(&format!("DROP USER MAPPING FOR {user} SERVER {server}")))?;
    }
    drop_guard::unguarded(|| spi::run_script(&format!("DROP SERVER {server} CASCADE")))
}

/// Forgets the router's cluster: its mark, the other shards, and the password with which this one logged in there. The service
/// role stays, so that the router can come again. Runs as the extension's owner.
pub fn leave_cluster() -> Result<()> {
    let servers = spi::query(
        "SELECT srvname FROM pg_catalog.pg_foreign_server \
         WHERE pg_catalog.starts_with(srvname::pg_catalog.text, $1) AND EXISTS ( \
           SELECT FROM pg_catalog.pg_user_mappings m WHERE m.srvid OPERATOR(pg_catalog.=) pg_foreign_server.oid \
           AND m.umuser OPERATOR(pg_catalog.=) (SELECT role FROM docshard_data.service))",
        &[Param::Text(PREFIX)],
    )?;
    for row in &servers {
        drop_server(row.text(0))?;
    }
    let pullers = spi::query(
        "SELECT rolname FROM pg_catalog.pg_roles \
         WHERE pg_catalog.shobj_description(oid, 'pg_authid') OPERATOR(pg_catalog.=) $1",
        &[Param::Text(&puller_mark(&required_service_role()?))],
    )?;
    for row in &pullers {
        drop_puller(row.text(0))?;
    }
    spi::execute("DELETE FROM docshard_data.node", &[])?;
    spi::execute("UPDATE docshard_data.service SET secret = NULL", &[])?;
    Ok(())
}

/// Does without the service role. One that a router made goes, unless another database of this server has something of it; one
/// that an administrator made stays, without what it had here. Runs as a superuser.
pub(super) fn forget_service_role(role: &str) -> Result<()> {
    spi::execute("DELETE FROM docshard_data.service", &[])?;
    let name = quote_ident(role);
    if role.starts_with(PREFIX) {
        drop_guard::unguarded(|| spi::run_script(&format!("DROP OWNED BY {name}")))?;
        let _ = subtransaction::attempt(|| spi::run_script(&format!("DROP ROLE {name}")));
        return Ok(());
    }
    spi::run_script(&format!(
        "REVOKE ALL ON SCHEMA docshard, docshard_internal, docshard_catalog, docshard_data FROM {name}; \
         REVOKE ALL ON ALL TABLES IN SCHEMA docshard, docshard_catalog, docshard_data FROM {name}; \
         REVOKE ALL ON ALL SEQUENCES IN SCHEMA docshard_data FROM {name}; \
         REVOKE ALL ON ALL FUNCTIONS IN SCHEMA docshard_internal FROM {name}"
    ))
}
