//! Roles and privileges on this shard: the router's service role, the application roles for which it acts, and the pullers: the
//! roles by which other shards read documents that are moved to them.
//!
//! The service role is not a superuser, so these functions create roles, servers and user mappings for it. They run as the extension's
//! owner, and therefore accept only names and options that a router needs.
//!
//! | role | logs in | may |
//! |---|---|---|
//! | service role | from the router | own and change the collections' tables, call `docshard_internal`, act for application roles |
//! | application role | never | read or write the tables of collections, as granted |
//! | puller, one for each other shard | from that shard | read a range that is being moved, while it is captured |

use super::node::service_role;
use super::table;
use crate::pg::error::{Error, Result};
use crate::pg::object::drop_guard;
use crate::pg::security::credentials;
use crate::pg::security::permission;
use crate::pg::transaction::subtransaction;
use crate::pg::{server, spi};
use crate::storage;
use crate::storage::rows::capture::captures;
use crate::store;
use docshard_core::error::{Kind, bail, ensure, error, sqlstate};
use docshard_core::routing::names;
use docshard_core::routing::protocol::access::{PULLER_FUNCTIONS, SetAccess};
use docshard_core::routing::protocol::qualified;
use docshard_core::sql::param::Param;
use docshard_core::sql::quote::{quote_ident, quote_literal};

/// The prefix of the servers and roles that routers create.
pub const PREFIX: &str = "docshard_";

/// The comment of application roles that were created here. Only these may be dropped.
const CREATED_HERE: &str = "docshard: application role";

/// The server options that a router may set: the address, and how to connect. Options that name files of this server are not
/// among them, as only the server's own user may read those.
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

/// The options of an address, which are replaced together. Other options change only if they are given.
pub const ADDRESS: &[&str] = &["host", "hostaddr", "port", "target_session_attrs"];

/// The default `connect_timeout` of a shard's servers, in seconds. It is needed because a process that connects serves no interrupts.
const CONNECT_TIMEOUT_S: &str = "10";

/// Predefined roles whose rights no application role may have. Older versions of PostgreSQL lack some of them.
const POWERFUL: &[&str] = &[
    "pg_execute_server_program",
    "pg_read_server_files",
    "pg_write_server_files",
    "pg_read_all_data",
    "pg_write_all_data",
    "pg_create_subscription",
    "pg_maintain",
];

fn refuse(message: String) -> Error {
    Error::new(Kind::IllegalOperation, message)
}

/// Returns the comment of a cluster's pullers. It names the cluster, because databases of one server share its roles and may belong to
/// several clusters.
fn puller_mark(service: &str) -> String {
    format!("docshard: pulls documents for {}", cluster_of(service))
}

/// Returns the common prefix of a cluster's service roles; the whole name of a service role that an administrator created.
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

/// Returns an error for a role that is not a puller of this cluster.
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
    Err(error!(Kind::BadValue, "\"{name}\" does not begin with {PREFIX}"))
}

fn has_role(role: &str) -> Result<bool> {
    let sql = "SELECT FROM pg_catalog.pg_roles WHERE rolname OPERATOR(pg_catalog.=) $1::pg_catalog.name";
    Ok(!spi::query(sql, &[Param::Text(role)])?.is_empty())
}

/// Returns an error for a role that has rights, directly or by memberships, which a router must not give to anyone.
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
    Err(refuse(format!("the role \"{role}\" of this server has more rights than a service role may have"))
        .with_hint("Use another role, which is no superuser and no member of a privileged role."))
}

fn required_service_role() -> Result<String> {
    service_role()?.ok_or_else(|| {
        error!(Kind::NotYetInitialized, "this database has accepted no router").with_hint(
            "It may have been restored by pg_restore. On the router, call docshard.add_shard() with this shard's address and name \
             and a superuser's login; or a superuser runs docshard.accept_router(role) here.",
        )
    })
}

/// Makes a role the router's service role here, and creates the role if it is missing. `verifier`: that of the role's
/// new password; None: the password stays.
///
/// # Errors
/// `Unauthorized` if the caller is not a superuser; `IllegalOperation` for a role that has too many rights.
pub fn accept_router(role: &str, verifier: Option<&str>) -> Result<()> {
    ensure!(server::is_superuser(), Kind::Unauthorized, "only a superuser may allow a router to use this database");
    // Later, only their owner could drop them.
    table::drop_leftovers()?;
    let (name, before) = (quote_ident(role), service_role()?);
    if has_role(role)? {
        refuse_powerful(role)?;
    } else {
        create_commented(role, "LOGIN NOINHERIT", "docshard: service role of a router")?;
    }
    if let Some(verifier) = verifier {
        credentials::set_password(role, verifier)?;
    }
    // The router's parameters are documents and password verifiers, which must not be logged.
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
        let sql = format!("ALTER TABLE docshard_data.{} OWNER TO {name}", quote_ident(table.text(0)));
        drop_guard::unguarded(|| spi::run_script(&sql))?;
    }
    // The former service role is that of a router that no longer uses this shard.
    if let Some(before) = before.filter(|before| before != role && before.starts_with(PREFIX)) {
        drop_with_rights(&before)?;
    }
    Ok(())
}

fn create_commented(role: &str, attributes: &str, comment: &str) -> Result<()> {
    let (name, comment) = (quote_ident(role), quote_literal(comment));
    spi::run_script(&format!("CREATE ROLE {name} {attributes}; COMMENT ON ROLE {name} IS {comment}"))
}

/// Drops a role's objects and rights in this database, and the role itself, unless another database of this server uses it.
fn drop_with_rights(role: &str) -> Result<()> {
    if are_used_elsewhere(&[role])? {
        return drop_rights_here(role);
    }
    drop_guard::unguarded(|| spi::run_script(&format!("DROP OWNED BY {}", quote_ident(role))))?;
    try_drop_role(role);
    Ok(())
}

/// True if one other database of this server uses all of these roles: each has objects or rights there. That database may be a shard with
/// the same roles, or a copy of this one.
fn are_used_elsewhere(roles: &[&str]) -> Result<bool> {
    let rows = spi::query(
        "SELECT FROM pg_catalog.pg_shdepend d JOIN pg_catalog.pg_roles r ON r.oid OPERATOR(pg_catalog.=) d.refobjid \
         JOIN pg_catalog.pg_database b ON b.oid OPERATOR(pg_catalog.=) d.dbid \
         WHERE d.refclassid OPERATOR(pg_catalog.=) 'pg_catalog.pg_authid'::pg_catalog.regclass \
         AND r.rolname OPERATOR(pg_catalog.=) ANY ($1::pg_catalog.name[]) \
         AND b.datname OPERATOR(pg_catalog.<>) pg_catalog.current_database() \
         GROUP BY d.dbid HAVING pg_catalog.count(DISTINCT r.oid) OPERATOR(pg_catalog.=) pg_catalog.cardinality($1) LIMIT 1",
        &[Param::TextArray(roles)],
    )?;
    Ok(!rows.is_empty())
}

/// Drops a role's tables and user mappings in this database, and revokes its rights of the kinds that routers give. DROP OWNED is not used,
/// as it would also revoke the role's rights on other databases of the server.
fn drop_rights_here(role: &str) -> Result<()> {
    let rows = spi::query(
        "WITH here AS (SELECT b.oid FROM pg_catalog.pg_database b \
            WHERE b.datname OPERATOR(pg_catalog.=) pg_catalog.current_database()), \
         own AS (SELECT r.oid FROM pg_catalog.pg_roles r WHERE r.rolname OPERATOR(pg_catalog.=) $1::pg_catalog.name) \
         SELECT pg_catalog.format('DROP USER MAPPING FOR %I SERVER %I', $1, m.srvname) \
           FROM pg_catalog.pg_user_mappings m JOIN own ON m.umuser OPERATOR(pg_catalog.=) own.oid \
         UNION ALL SELECT CASE d.deptype WHEN 'o' THEN pg_catalog.format('DROP %s %s', i.type, i.identity) \
           ELSE pg_catalog.format('REVOKE ALL ON %s %s FROM %I CASCADE', k.kind, i.identity, $1) END \
         FROM pg_catalog.pg_shdepend d JOIN own ON d.refobjid OPERATOR(pg_catalog.=) own.oid CROSS JOIN here \
         CROSS JOIN LATERAL pg_catalog.pg_identify_object(d.classid, d.objid, 0) AS i \
         JOIN (VALUES ('schema', 'SCHEMA'), ('table', 'TABLE'), ('foreign table', 'TABLE'), ('view', 'TABLE'), ('sequence', 'TABLE'), \
             ('function', 'ROUTINE'), ('procedure', 'ROUTINE'), ('aggregate', 'ROUTINE'), \
             ('server', 'FOREIGN SERVER'), ('database', 'DATABASE')) AS k (type, kind) \
           ON k.type OPERATOR(pg_catalog.=) i.type \
         WHERE d.refclassid OPERATOR(pg_catalog.=) 'pg_catalog.pg_authid'::pg_catalog.regclass \
         AND (d.dbid OPERATOR(pg_catalog.=) here.oid OR d.dbid OPERATOR(pg_catalog.=) 0 AND d.objid OPERATOR(pg_catalog.=) here.oid \
           AND d.classid OPERATOR(pg_catalog.=) 'pg_catalog.pg_database'::pg_catalog.regclass) \
         AND (d.deptype OPERATOR(pg_catalog.=) 'a' \
           OR d.deptype OPERATOR(pg_catalog.=) 'o' AND k.kind OPERATOR(pg_catalog.=) 'TABLE' AND i.type OPERATOR(pg_catalog.<>) 'view')",
        &[Param::Text(role)],
    )?;
    rows.iter().try_for_each(|row| drop_guard::unguarded(|| spi::run_script(row.text(0))))
}

fn try_drop_role(role: &str) {
    let _ = subtransaction::attempt(|| spi::run_script(&format!("DROP ROLE {}", quote_ident(role))));
}

/// Sets the service role's password, by its verifier. Runs as the extension's owner.
pub fn set_service_password(verifier: &str) -> Result<()> {
    credentials::set_password(&required_service_role()?, verifier)
}

/// Creates an application role, unless it exists, and lets the router act for it. Runs as the extension's owner.
pub fn create_role(role: &str) -> Result<()> {
    let (name, service) = (quote_ident(role), required_service_role()?);
    // The service role becomes a member of this role, and may only be a member of application roles.
    if role.starts_with(PREFIX) || role.starts_with("pg_") {
        return Err(refuse(format!("role \"{role}\" is reserved")));
    }
    if has_role(role)? {
        refuse_powerful(role)?;
    } else {
        create_commented(role, "NOLOGIN", CREATED_HERE)?;
    }
    spi::run_script(&format!(
        "GRANT USAGE ON SCHEMA docshard, docshard_internal, docshard_data TO {name}; GRANT {name} TO {}",
        quote_ident(&service)
    ))
}

/// Revokes an application role's rights in this database. Unless another database of this server uses it with the same service role,
/// also ends the service role's membership in it, and drops the role if it was created here and nothing depends on it. Runs as the
/// extension's owner, after the role's rights on tables were revoked.
pub fn drop_role(role: &str) -> Result<()> {
    if !has_role(role)? {
        return Ok(());
    }
    let (name, service) = (quote_ident(role), required_service_role()?);
    spi::run_script(&format!("REVOKE USAGE ON SCHEMA docshard, docshard_internal, docshard_data FROM {name}"))?;
    if are_used_elsewhere(&[role, &service])? {
        return Ok(());
    }
    spi::run_script(&format!("REVOKE {name} FROM {}", quote_ident(&service)))?;
    let created = spi::query(
        "SELECT FROM pg_catalog.pg_roles WHERE rolname OPERATOR(pg_catalog.=) $1::pg_catalog.name AND NOT rolcanlogin \
         AND pg_catalog.shobj_description(oid, 'pg_authid') OPERATOR(pg_catalog.=) $2",
        &[Param::Text(role), Param::Text(CREATED_HERE)],
    )?;
    if !created.is_empty() {
        try_drop_role(role);
    }
    Ok(())
}

/// Sets the rights of roles on a collection's table, if it is on this shard. `readers` may read, `writers` may also write, and `others` get
/// no rights. All other roles keep their rights.
pub fn set_access(access: &SetAccess<'_>) -> Result<()> {
    let collection = access.collection;
    let Ok(table) = table::oid(collection) else { return Ok(()) };
    match subtransaction::attempt(|| set_access_here(access)) {
        // If the table was dropped concurrently (PostgreSQL may report "tuple concurrently deleted", an internal
        // error), there is nothing to do.
        Err(error) if [sqlstate::INTERNAL_ERROR, sqlstate::UNDEFINED_TABLE].contains(&error.sqlstate) => {
            if storage::keep(table).is_ok() {
                Err(error)
            } else {
                Ok(())
            }
        }
        done => done,
    }
}

fn set_access_here(access: &SetAccess<'_>) -> Result<()> {
    let &SetAccess { collection, readers, writers, others } = access;
    let table = names::table(collection);
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

/// Returns the verifier of the password with which this shard logs in at other shards. Runs as the extension's owner.
pub fn puller_verifier() -> Result<String> {
    credentials::scram_verifier(&pull_password()?)
}

/// Returns the password with which this shard logs in at other shards. It is created here, and is never sent: logins use SCRAM.
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

/// Creates the foreign server for another shard, with a user mapping that logs in there as `puller`. If the server exists, sets its address
/// and the mapping, and keeps its other options. Runs as the extension's owner.
///
/// # Errors
/// `BadValue` for names or options that a router does not need.
pub fn connect_shard(server: &str, options: &[(String, String)], puller: &str) -> Result<()> {
    check_prefix(server)?;
    check_options(options)?;
    if server::foreign_server_oid(server).is_some() {
        set_address(server, options, false)?;
    } else {
        let options: Vec<String> =
            options.iter().map(|(option, value)| format!("{} {}", quote_ident(option), quote_literal(value))).collect();
        spi::run_script(&format!(
            "CREATE SERVER {} FOREIGN DATA WRAPPER postgres_fdw OPTIONS ({})",
            quote_ident(server),
            options.join(", ")
        ))?;
    }
    map_puller(server, puller)
}

/// Changes the address of another shard's foreign server; the user mapping stays. `any`: also accepts options that are not in
/// [`SERVER_OPTIONS`]. Runs as the extension's owner.
pub fn set_address(server: &str, options: &[(String, String)], any: bool) -> Result<()> {
    check_prefix(server)?;
    if !any {
        check_options(options)?;
    }
    if server::foreign_server_oid(server).is_none() {
        bail!(Kind::ShardNotFound, "foreign server \"{server}\" does not exist");
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

fn check_options(options: &[(String, String)]) -> Result<()> {
    match options.iter().find(|(option, _)| !SERVER_OPTIONS.contains(&option.as_str())) {
        None => Ok(()),
        Some((option, _)) => Err(error!(Kind::BadValue, "a shard's server cannot have the option \"{option}\"")),
    }
}

/// Creates the user mapping by which this shard logs in at a server as `puller`. Runs as the extension's owner.
pub fn map_puller(server: &str, puller: &str) -> Result<()> {
    check_prefix(server)?;
    check_prefix(puller)?;
    let service = required_service_role()?;
    let password = pull_password()?;
    spi::run_script(&format!("GRANT USAGE ON FOREIGN SERVER {} TO {}", quote_ident(server), quote_ident(&service)))?;
    let login = [("user", puller), ("password", password.as_str()), ("password_required", "false")];
    credentials::set_user_mapping(server, &service, &login)
}

/// Creates the role `puller` by which another shard logs in here and reads the documents that move to it. Runs as the
/// extension's owner.
pub fn accept_puller(puller: &str, verifier: &str) -> Result<()> {
    check_prefix(puller)?;
    let name = quote_ident(puller);
    if has_role(puller)? {
        check_puller(puller)?;
    } else {
        create_commented(puller, "LOGIN NOINHERIT", &puller_mark(&required_service_role()?))?;
    }
    credentials::set_password(puller, verifier)?;
    spi::run_script(&format!(
        "GRANT USAGE ON SCHEMA docshard_data, docshard_internal TO {name}; \
         GRANT SELECT ON docshard_data.identity, docshard_data.capture_packed, docshard_data.capture_changes TO {name}; \
         GRANT EXECUTE ON FUNCTION {} TO {name}",
        PULLER_FUNCTIONS.map(qualified).join(", ")
    ))
}

/// Returns `Unauthorized` unless the user may read the collection's table, or the range `[lo, hi)` is captured for a move.
pub fn require_captured(collection: i32, lo: &[u8], hi: Option<&[u8]>) -> Result<()> {
    if permission::may_read(table::oid(collection)?)
        || captures(collection)?.iter().any(|capture| capture.covers(lo, hi))
    {
        return Ok(());
    }
    Err(error!(Kind::Unauthorized, "permission denied for documents of collection {collection}"))
}

/// Drops another shard's server here, and the role by which it logged in. Runs as the extension's owner.
pub fn disconnect_shard(server: &str, puller: &str) -> Result<()> {
    check_prefix(server)?;
    check_prefix(puller)?;
    drop_server(server)?;
    // A database that pg_restore has created knows no service role. A puller of this name may belong to another
    // database of the server, so it stays.
    if service_role()?.is_none() {
        return Ok(());
    }
    drop_puller(puller)
}

fn drop_puller(puller: &str) -> Result<()> {
    if !has_role(puller)? {
        return Ok(());
    }
    check_puller(puller)?;
    drop_with_rights(puller)
}

/// Drops a foreign server with its user mappings, if it exists.
pub fn drop_server(server: &str) -> Result<()> {
    if server::foreign_server_oid(server).is_none() {
        return Ok(());
    }
    // One by one, as CASCADE would send a NOTICE for each.
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

/// Deletes what belongs to the cluster: this shard's identity, the other shards' servers and pullers, and this shard's password for logins
/// there. The service role stays, so that the router can return. Runs as the extension's owner.
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

/// Drops the service role if a router created it, unless another database of this server needs it. A role that an administrator
/// created only loses its rights here. Runs as a superuser.
pub(super) fn forget_service_role(role: &str) -> Result<()> {
    spi::execute("DELETE FROM docshard_data.service", &[])?;
    if role.starts_with(PREFIX) {
        return drop_with_rights(role);
    }
    let name = quote_ident(role);
    spi::run_script(&format!(
        "REVOKE ALL ON SCHEMA docshard, docshard_internal, docshard_catalog, docshard_data FROM {name}; \
         REVOKE ALL ON ALL TABLES IN SCHEMA docshard, docshard_catalog, docshard_data FROM {name}; \
         REVOKE ALL ON ALL SEQUENCES IN SCHEMA docshard_data FROM {name}; \
         REVOKE ALL ON ALL FUNCTIONS IN SCHEMA docshard_internal FROM {name}"
    ))
}
