//! MongoDB's users and roles, which are PostgreSQL's roles: a user may log in, a role may not.
//!
//! RULE: everything runs with the caller's privileges. Statements such as CREATE ROLE run as the caller, so PostgreSQL checks them. Access
//! to documents is granted by `grant_access` and `revoke_access`, which the caller must be allowed to execute. A password arrives as its
//! SCRAM-SHA-256 verifier, so no statement contains the password.

use super::arguments::Arguments;
use crate::catalog::collections::grants;
use crate::catalog::collections::grants::{EVERYTHING, Level};
use crate::pg::error::{Error, Result};
use crate::pg::security::credentials;
use crate::pg::server;
use crate::pg::spi;
use crate::store;
use docshard_core::error::{Kind, bail, ensure, error};
use docshard_core::sql::param::Param;
use docshard_core::sql::quote::quote_ident;
use docshard_core::values::document::ext_json;
use serde_json::{Value as Json, json};

/// The database of MongoDB's users and roles that apply to all databases.
pub const ADMIN: &str = "admin";
/// The most roles of a request, and the most privileges of a role.
const MAX_ROLES: usize = 1_000;
/// The most users or roles of an answer.
const MAX_SHOWN: i64 = 100_000;

/// What one of MongoDB's built-in roles stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Means {
    /// a grant for the role's database
    Database(Level),
    /// a grant for all databases
    Everything(Level),
    /// membership of a role of PostgreSQL
    Member(&'static str),
    /// an attribute of PostgreSQL's roles, and its opposite
    Attribute(&'static str, &'static str),
    /// nothing: a request for the role is refused
    Refused,
}

/// MongoDB's built-in roles. Those from `readAnyDatabase` on are in the database `admin` only.
pub const BUILT_IN: &[(&str, Means)] = &[
    ("read", Means::Database(Level::Read)),
    ("readWrite", Means::Database(Level::Own)),
    ("dbAdmin", Means::Refused),
    ("dbOwner", Means::Refused),
    ("userAdmin", Means::Refused),
    ("readAnyDatabase", Means::Everything(Level::Read)),
    ("readWriteAnyDatabase", Means::Everything(Level::Own)),
    ("clusterMonitor", Means::Member("pg_monitor")),
    ("userAdminAnyDatabase", Means::Attribute("CREATEROLE", "NOCREATEROLE")),
    ("root", Means::Attribute("SUPERUSER", "NOSUPERUSER")),
    ("dbAdminAnyDatabase", Means::Refused),
    ("clusterAdmin", Means::Refused),
    ("clusterManager", Means::Refused),
    ("hostManager", Means::Refused),
    ("backup", Means::Refused),
    ("restore", Means::Refused),
    ("enableSharding", Means::Refused),
    ("directShardOperations", Means::Refused),
    ("__system", Means::Refused),
];

/// The actions of a privilege that reading includes.
const READING: &[&str] = &[
    "find",
    "listIndexes",
    "listCollections",
    "collStats",
    "dbStats",
    "dbHash",
    "killCursors",
    "planCacheRead",
    "indexStats",
    "changeStream",
];
/// The actions of a privilege that writing adds.
const WRITING: &[&str] = &["insert", "update", "remove"];
/// The actions of a privilege that owning adds.
const OWNING: &[&str] =
    &["collMod", "createCollection", "createIndex", "dropCollection", "dropIndex", "renameCollectionSameDB"];

/// A right that a request gives or takes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Right {
    Grant(Level, String),
    Member(String),
    Attribute(&'static str, &'static str),
}

/// True for the names of PostgreSQL's and docshard's own roles. Requests cannot name these; only a built-in role may stand for one.
fn is_reserved(name: &str) -> bool {
    name.starts_with("docshard_") || name.starts_with("pg_")
}

fn named(name: &str) -> Option<Means> {
    BUILT_IN.iter().find(|(known, _)| *known == name).map(|(_, means)| *means)
}

/// Returns the rights that a list of roles stands for; `db` is the database of roles that are given without one.
/// Errors: `RoleNotFound`, `NotImplemented` for a role that docshard cannot give, `FailedToParse`, `TypeMismatch`.
pub fn rights(db: &str, roles: &[Json]) -> Result<Vec<Right>> {
    ensure!(roles.len() <= MAX_ROLES, Kind::BadValue, "a request has at most {MAX_ROLES} roles");
    roles.iter().map(|role| right(db, role)).collect()
}

fn right(db: &str, role: &Json) -> Result<Right> {
    let (name, db) = name_and_db(role, "role", db)?;
    let not_found = || error!(Kind::RoleNotFound, "Could not find role: {name}@{db}");
    match named(name) {
        Some(Means::Database(level)) => Ok(Right::Grant(level, db.to_owned())),
        Some(_) if db != ADMIN => Err(refused_unless_known(name, db).unwrap_or_else(not_found)),
        Some(Means::Everything(level)) => Ok(Right::Grant(level, EVERYTHING.to_owned())),
        Some(Means::Member(role)) => Ok(Right::Member(role.to_owned())),
        Some(Means::Attribute(on, off)) => Ok(Right::Attribute(on, off)),
        Some(Means::Refused) => Err(refused(name)),
        None if !is_reserved(name) && exists(name)? == Some(false) => Ok(Right::Member(name.to_owned())),
        None => Err(not_found()),
    }
}

/// Returns which of the rights that are held a request takes that names the roles of `right`; None if it is not held. `readWrite` also stands
/// for a grant to write.
pub fn taken(right: Right, held: &[Right]) -> Option<Right> {
    let written = match &right {
        Right::Grant(Level::Own, resource) => Some(Right::Grant(Level::Write, resource.clone())),
        _ => None,
    };
    [Some(right), written].into_iter().flatten().find(|right| held.contains(right))
}

fn refused_unless_known(name: &str, db: &str) -> Option<Error> {
    let of_databases = ["dbAdmin", "dbOwner", "userAdmin", "enableSharding"];
    (of_databases.contains(&name) && !db.is_empty()).then(|| refused(name))
}

fn refused(name: &str) -> Error {
    error!(Kind::NotImplemented, "the role {name} is not supported").with_hint(
        "Administration is allowed by EXECUTE on docshard's functions, which are for all databases, or by the role root.",
    )
}

/// Returns the name and the database of a user or a role, given as `"name"` or `{user: "name", db: "database"}`.
pub fn name_and_db<'a>(json: &'a Json, field: &str, db: &'a str) -> Result<(&'a str, &'a str)> {
    let wrong = || error!(Kind::BadValue, "a {field} is a name, or {{{field}: <name>, db: <database>}}, not {json}");
    let (name, db) = match json {
        Json::String(name) => (name.as_str(), db),
        _ => {
            let fields = ext_json::document(json).filter(|fields| fields.len() == 2).ok_or_else(wrong)?;
            let text = |name: &str| fields.get(name).and_then(Json::as_str).ok_or_else(wrong);
            (text(field)?, text("db")?)
        }
    };
    ensure!(!name.is_empty() && !db.is_empty(), Kind::BadValue, "a {field} needs a name and a database");
    Ok((name, db))
}

/// Whether a role of PostgreSQL may log in; None if there is none of that name.
pub fn exists(name: &str) -> Result<Option<bool>> {
    let sql = "SELECT rolcanlogin FROM pg_catalog.pg_roles WHERE rolname = $1::pg_catalog.text::pg_catalog.name \
               AND pg_catalog.octet_length($1) < 64";
    Ok(spi::query(sql, &[Param::Text(name)])?.first().map(|row| row.bool(0)))
}

/// Checks that there is a user or, if `logs_in` is false, a role of that name.
/// Errors: `UserNotFound`, `RoleNotFound`.
pub fn check(name: &str, db: &str, logs_in: bool) -> Result<()> {
    let found = if is_reserved(name) { None } else { exists(name)? };
    match (found, logs_in) {
        (Some(may), wanted) if may == wanted => Ok(()),
        (_, true) => Err(error!(Kind::UserNotFound, "Could not find user \"{name}\" for db \"{db}\"")),
        (_, false) => Err(error!(Kind::RoleNotFound, "Role {name}@{db} not found")),
    }
}

/// Sets a user's password by its verifier, without a statement.
/// Errors: `BadValue` for a text that is no verifier; PostgreSQL's, if the caller may not set it.
pub fn set_password(name: &str, verifier: &str) -> Result<()> {
    credentials::set_password(name, verifier).map_err(|error| match error.kind {
        Kind::BadValue => Error::new(Kind::BadValue, "pwd is no verifier of SCRAM-SHA-256").with_hint(
            "Over the gateway pwd is the password. A statement would show it in logs: use CREATE ROLE … LOGIN, and psql's \\password.",
        ),
        _ => error,
    })
}

/// Refuses to give grants to a role that this transaction creates, if a shard is another database of this server: the session at that shard
/// would wait until this transaction commits the new role, while this transaction waits for the session.
/// Errors: `OperationNotSupportedInTransaction`.
pub fn check_grants_of_new(rights: &[Right]) -> Result<()> {
    if grants_of(rights, true).is_none() {
        return Ok(());
    }
    let Some(shard) = store::shards::with_node(&format!("{}/", server::system_identifier()))? else { return Ok(()) };
    let message =
        format!("the shard \"{shard}\" is a database of this server, and cannot see a new role before it is committed");
    Err(Error::new(Kind::OperationNotSupportedInTransaction, message)
        .with_hint("Create it without roles and privileges, and give them by grantRolesToUser or grantRolesToRole."))
}

/// Creates a user with this verifier or, without one, a role.
/// Errors: `Location51003` or `Location51002` if it exists; `BadValue`; PostgreSQL's, if the caller may not create it.
pub fn create(name: &str, db: &str, verifier: Option<&str>) -> Result<()> {
    let is_valid = (1..=63).contains(&name.len()) && !name.contains('\0');
    if !is_valid || is_reserved(name) || named(name).is_some() {
        return Err(error!(Kind::BadValue, "the name {name:?} is reserved, or has not 1 to 63 bytes"));
    }
    if exists(name)?.is_some() {
        let (code, what) = if verifier.is_some() { (51003, "User") } else { (51002, "Role") };
        bail!(Kind::Location(code), "{what} \"{name}@{db}\" already exists");
    }
    spi::run_script(&format!(
        "CREATE ROLE {} {}",
        quote_ident(name),
        if verifier.is_some() { "LOGIN" } else { "NOLOGIN" }
    ))?;
    verifier.map_or(Ok(()), |verifier| set_password(name, verifier))
}

/// Drops a role of PostgreSQL, whose grants were revoked before.
pub fn drop(name: &str) -> Result<()> {
    spi::run_script(&format!("DROP ROLE {}", quote_ident(name)))
}

/// Gives or takes a right that is PostgreSQL's own. Does nothing for a grant.
pub fn apply(name: &str, right: &Right, give: bool) -> Result<()> {
    let user = quote_ident(name);
    match right {
        Right::Grant(..) => Ok(()),
        Right::Member(role) if give => spi::run_script(&format!("GRANT {} TO {user}", quote_ident(role))),
        Right::Member(role) => spi::run_script(&format!("REVOKE {} FROM {user}", quote_ident(role))),
        Right::Attribute(on, off) => spi::run_script(&format!("ALTER ROLE {user} {}", if give { on } else { off })),
    }
}

/// Returns the options of `grant_access` for these rights; if `give` is false, those of `revoke_access`. None if there is no grant among
/// the rights.
pub fn grants_of(rights: &[Right], give: bool) -> Option<Json> {
    let of = |wanted: Level| {
        let resources = rights.iter().filter_map(|right| match right {
            Right::Grant(level, resource) if *level == wanted => Some(json!(resource)),
            _ => None,
        });
        resources.collect::<Vec<Json>>()
    };
    let (mut read, write, own) = (of(Level::Read), of(Level::Write), of(Level::Own));
    if !give {
        // Revoking a right also revokes the lower ones: see `access::revoke`.
        read.extend(write.iter().chain(&own).cloned());
    }
    let is_any = !(read.is_empty() && write.is_empty() && own.is_empty());
    is_any.then(|| json!({"read": read, "write": write, "own": own}))
}

/// Returns the rights that a role's privileges stand for: `{resource: {db, collection}, actions: […]}`.
/// Errors: `NotImplemented` for actions that are neither reading nor all of writing.
pub fn of_privileges(privileges: &[Json]) -> Result<Vec<Right>> {
    ensure!(privileges.len() <= MAX_ROLES, Kind::BadValue, "a role has at most {MAX_ROLES} privileges");
    privileges.iter().map(of_privilege).collect()
}

fn of_privilege(privilege: &Json) -> Result<Right> {
    let wrong = || {
        error!(Kind::FailedToParse, "a privilege is {{resource: {{db, collection}}, actions: […]}}, not {privilege}")
    };
    let resource = privilege.get("resource").ok_or_else(wrong)?;
    let text = |name: &str| resource.get(name).and_then(Json::as_str);
    let resource = match (text("db"), text("collection")) {
        (Some(""), Some("")) => EVERYTHING.to_owned(),
        (Some(db), Some("")) => db.to_owned(),
        (Some(""), Some(_)) => {
            bail!(Kind::NotImplemented, "a privilege on a collection of every database is not supported")
        }
        (Some(db), Some(collection)) => format!("{db}.{collection}"),
        _ => bail!(Kind::NotImplemented, "the resource {resource} is not supported"),
    };
    let actions = privilege.get("actions").and_then(Json::as_array).ok_or_else(wrong)?;
    let actions = actions.iter().map(|action| action.as_str().ok_or_else(wrong)).collect::<Result<Vec<_>>>()?;
    if let Some(other) =
        actions.iter().find(|action| ![READING, WRITING, OWNING].iter().any(|known| known.contains(action)))
    {
        return Err(error!(Kind::NotImplemented, "the action {other} is not supported"));
    }
    let has = |names: &[&str]| names.iter().filter(|name| actions.contains(name)).count();
    let all = |names: &[&str]| has(names) == names.len();
    match (actions.contains(&"find"), has(WRITING), has(OWNING)) {
        (true, 0, 0) => Ok(Right::Grant(Level::Read, resource)),
        (true, _, 0) if all(WRITING) => Ok(Right::Grant(Level::Write, resource)),
        (true, _, _) if all(WRITING) && all(OWNING) => Ok(Right::Grant(Level::Own, resource)),
        _ => Err(error!(
            Kind::NotImplemented,
            "a privilege is to find, or also to insert, update and remove, or also all of: {}",
            OWNING.join(", ")
        )),
    }
}

/// Shows a right as MongoDB shows a privilege; None for a membership or an attribute, whose privileges are PostgreSQL's.
pub fn privilege(right: &Right) -> Option<Json> {
    let Right::Grant(level, resource) = right else { return None };
    let (db, collection) = match resource.split_once('.') {
        _ if resource == EVERYTHING => ("", ""),
        Some(parts) => parts,
        None => (resource.as_str(), ""),
    };
    let levels = [(Level::Read, READING), (Level::Write, WRITING), (Level::Own, OWNING)];
    let included = levels.into_iter().filter(|(included, _)| included <= level);
    let actions: Vec<&str> = included.flat_map(|(_, actions)| actions).copied().collect();
    Some(json!({"resource": {"db": db, "collection": collection}, "actions": actions}))
}

/// A user or a role, and what it may do.
#[derive(Debug)]
pub struct Known {
    pub name: String,
    pub rights: Vec<Right>,
}

/// Returns the users with these names, or all, by name; if `logs_in` is false, the roles instead. PostgreSQL's and docshard's own roles are
/// left out.
pub fn known(names: Option<&[&str]>, logs_in: bool) -> Result<Vec<Known>> {
    let sql = format!(
        "SELECT r.rolname, r.rolsuper, r.rolcreaterole, \
                coalesce((SELECT pg_catalog.json_agg(o.rolname ORDER BY o.rolname) FROM pg_catalog.pg_auth_members m \
                            JOIN pg_catalog.pg_roles o ON o.oid = m.roleid WHERE m.member = r.oid), '[]')::pg_catalog.text \
           FROM pg_catalog.pg_roles r WHERE r.rolcanlogin = $1 AND r.rolname !~ '^(pg|docshard)_' \
            AND ($2 OR r.rolname = ANY ($3)) ORDER BY r.rolname LIMIT {MAX_SHOWN}"
    );
    let params = [Param::Bool(logs_in), Param::Bool(names.is_none()), Param::TextArray(names.unwrap_or_default())];
    let granted = grants::all()?;
    let known = spi::query(&sql, &params)?.into_iter().map(|row| {
        let name = row.text(0).to_owned();
        let of_role = granted.iter().filter(|grant| grant.name == name);
        let mut rights: Vec<Right> = of_role.map(|grant| Right::Grant(grant.level, grant.resource.clone())).collect();
        let attributes = BUILT_IN.iter().filter_map(|(_, means)| match means {
            Means::Attribute(on @ "SUPERUSER", off) if row.bool(1) => Some(Right::Attribute(on, off)),
            Means::Attribute(on @ "CREATEROLE", off) if row.bool(2) => Some(Right::Attribute(on, off)),
            _ => None,
        });
        rights.extend(attributes);
        let members: Vec<String> = serde_json::from_str(row.text(3)).unwrap_or_default();
        rights.extend(members.into_iter().map(Right::Member));
        Known { name, rights }
    });
    Ok(known.collect())
}

/// Shows a right as MongoDB shows a role. For a grant on a collection, adds the collection's name.
pub fn shown(right: &Right) -> Json {
    let name =
        |wanted: &dyn Fn(Means) -> bool| BUILT_IN.iter().find(|(_, means)| wanted(*means)).map(|(name, _)| *name);
    // No role of MongoDB's writes without creating collections.
    let built_in = |level: Level| if level == Level::Write { Level::Own } else { level };
    match right {
        Right::Grant(level, resource) if resource == EVERYTHING => {
            json!({"role": name(&|means| means == Means::Everything(built_in(*level))), "db": ADMIN})
        }
        Right::Grant(level, resource) => {
            let role = name(&|means| means == Means::Database(built_in(*level)));
            match resource.split_once('.') {
                Some((db, collection)) => json!({"role": role, "db": db, "collection": collection}),
                None => json!({"role": role, "db": resource}),
            }
        }
        Right::Member(member) => {
            let own = name(&|means| matches!(means, Means::Member(known) if known == member));
            json!({"role": own.unwrap_or(member), "db": ADMIN})
        }
        Right::Attribute(on, _) => {
            json!({"role": name(&|means| matches!(means, Means::Attribute(known, _) if known == *on)), "db": ADMIN})
        }
    }
}

/// Checks the mechanisms of a user: SCRAM-SHA-256 is the only one.
pub fn check_mechanisms(options: &Arguments<'_>) -> Result<()> {
    let other = options.array("mechanisms").iter().find(|name| **name != json!("SCRAM-SHA-256"));
    if let Some(other) = other {
        bail!(Kind::BadValue, "the only mechanism is SCRAM-SHA-256, not {other}");
    }
    match options.get("digestPassword").is_some_and(|given| *given == json!(false))
        || options.text("passwordDigestor") == Some("client")
    {
        true => Err(Error::new(Kind::BadValue, "Use of SCRAM-SHA-256 requires undigested passwords")),
        false => Ok(()),
    }
}
