//! Granting and revoking access to documents, and what follows from it on every node.
//!
//! Other nodes are changed first. These changes are idempotent, and each commits by itself; the catalog's rows change in the
//! caller's transaction. After a failure half way a shard may allow what the router refuses; repeating the call completes it.
//! INVARIANT: a transaction that creates a collection's table on a shard holds [`lock_shared`] from reading the grants until the
//! table has its privileges. So a concurrent change of a grant is either visible to that transaction, or finds the table.

use crate::catalog::cache;
use crate::catalog::change;
use crate::catalog::collections::grants::{self, EVERYTHING, Grant, Level};
use crate::catalog::collections::namespace;
use crate::pg::error::{Error, Result};
use crate::pg::spi;
use crate::pg::transaction::epoch::{self, Epoch};
use crate::remote::Session;
use crate::shard::access;
use crate::store;
use crate::store::collections::Named;
use docshard_core::error::{Kind, error};
use docshard_core::routing::protocol::access::{CreateRole, DropRole, SetAccess};
use docshard_core::routing::protocol::{Call, Connection};
use docshard_core::sql::param::Param;
use docshard_core::sql::quote::quote_ident;
use serde_json::{Map, Value as Json, json};
use std::cell::Cell;
use std::collections::BTreeSet;

/// The schemas that an application role uses at the router.
const SCHEMAS: &str = "docshard, docshard_internal, docshard_data, docshard_catalog";

pub use crate::store::grants::lock_shared;

thread_local! {
    /// The last transaction of this session that has set the privileges of a single collection's table.
    static PRIVILEGES_SET: Cell<Epoch> = Cell::default();
}

/// Records that this transaction sets the privileges of a single collection's table.
pub(in crate::catalog) fn note_privileges_set() {
    PRIVILEGES_SET.set(epoch::now());
}

/// Refuses to change access in a transaction that has created or renamed a collection: shards give privileges in transactions of their own, which
/// do not see a new table, and would wait for this transaction at one whose privileges it has changed.
/// Errors: `OperationNotSupportedInTransaction`.
fn refuse_after_setting_privileges() -> Result<()> {
    if PRIVILEGES_SET.get() != epoch::now() || cache::remote_shards()?.is_empty() {
        return Ok(());
    }
    let message = "access cannot be changed in a transaction that has created or renamed a collection";
    Err(Error::new(Kind::OperationNotSupportedInTransaction, message).with_hint(
        "Commit the transaction first. A grant of a database also covers collections that are created later.",
    ))
}

/// Checks that a role exists and can receive grants.
/// Errors: `UserNotFound`, `BadValue`.
fn check_role(role: &str) -> Result<()> {
    let sql = "SELECT FROM pg_catalog.pg_roles WHERE rolname = $1::pg_catalog.name";
    if spi::query(sql, &[Param::Text(role)])?.is_empty() {
        return Err(error!(Kind::UserNotFound, "role \"{role}\" does not exist")
            .with_hint("Create it first: CREATE ROLE … LOGIN."));
    }
    if role.starts_with(access::PREFIX) || role.starts_with("pg_") {
        return Err(error!(Kind::BadValue, "role \"{role}\" is reserved")
            .with_hint("Names that begin with docshard_ or pg_ cannot receive grants."));
    }
    Ok(())
}

/// Refuses a resource that is not a valid name of a collection or database.
fn check_resource(resource: &str) -> Result<()> {
    match resource {
        EVERYTHING => Ok(()),
        name if name.contains('.') => namespace::split(name).map(drop),
        name => namespace::check_database(name),
    }
}

/// The resources, collections, databases or [`EVERYTHING`], to which levels are granted, or for which they are revoked.
pub type Leveled<'a> = [(Level, Vec<&'a str>)];

/// Grants a role levels on resources.
/// Errors: `UserNotFound`, `InvalidNamespace`, `BadValue`; what a shard raises.
pub fn grant(role: &str, granted: &Leveled<'_>) -> Result<()> {
    refuse_after_setting_privileges()?;
    check_role(role)?;
    granted.iter().flat_map(|(_, resources)| resources).try_for_each(|resource| check_resource(resource))?;
    store::grants::lock_exclusive()?;
    // If DROP OWNED has taken the role's rights away, its earlier grants must not come back with a new one.
    let is_in_force = "SELECT FROM pg_catalog.pg_roles WHERE rolname = $1::pg_catalog.name \
                       AND pg_catalog.has_schema_privilege(oid, 'docshard', 'USAGE')";
    if spi::query(is_in_force, &[Param::Text(role)])?.is_empty() {
        store::grants::delete_of_role(&quote_ident(role))?;
    }
    spi::run_script(&format!("GRANT USAGE ON SCHEMA {SCHEMAS} TO {}", quote_ident(role)))?;
    store::grants::delete_of_dropped_roles()?;
    let mut is_new = false;
    for (level, resources) in granted {
        for resource in resources {
            // A level includes the lower ones: an existing grant is never lowered.
            is_new |= store::grants::insert_or_raise(&quote_ident(role), resource, *level)?;
        }
    }
    if is_new {
        log("grantAccess", role, granted)?;
    }
    apply(role)
}

/// Writes a line about a role's grants into the changelog.
fn log(what: &str, role: &str, leveled: &Leveled<'_>) -> Result<()> {
    let levels: Map<String, Json> =
        leveled.iter().map(|(level, resources)| (level.name().to_owned(), json!(resources))).collect();
    change::log(what, None, &json!({"role": role, "access": levels}))
}

/// Revokes grants, resource by resource; the next lower level stays. Without resources, revokes all grants.
/// Errors: `UserNotFound`; `PrivilegeNotFound` for a resource that was not granted; what a shard raises.
pub fn revoke(role: &str, revoked: &Leveled<'_>) -> Result<()> {
    refuse_after_setting_privileges()?;
    check_role(role)?;
    store::grants::lock_exclusive()?;
    let name = quote_ident(role);
    let not_granted = |resource: &str, level: Level| {
        let message = format!("role \"{role}\" has no grant to {} \"{resource}\"", level.name());
        Error::new(Kind::PrivilegeNotFound, message)
            .with_hint("The view docshard.grants shows the grants. A grant of a database is revoked as a whole.")
    };
    let all = revoked.iter().all(|(_, resources)| resources.is_empty());
    let mut is_changed = all && store::grants::delete_of_role(&name)?;
    // The highest level first, so that several levels of a resource can be revoked at once.
    for (level, resources) in revoked.iter().rev() {
        for resource in resources {
            let found = match level {
                Level::Own => store::grants::lower_to_write(&name, resource)?,
                Level::Write => store::grants::lower_to_read(&name, resource)?,
                Level::Read => store::grants::delete(&name, resource)?,
            };
            if !found {
                return Err(not_granted(resource, *level));
            }
            is_changed = true;
        }
    }
    if is_changed {
        log("revokeAccess", role, revoked)?;
    }
    apply(role)
}

/// Gives a role, on every node, exactly the privileges that the catalog's grants require.
fn apply(role: &str) -> Result<()> {
    let mut granted = grants::all()?;
    granted.retain(|grant| grant.name == role);
    let collections = store::collections::all()?;
    for (_, server) in cache::remote_shards()? {
        let mut session = Session::open(server)?;
        if !granted.is_empty() {
            CreateRole { role }.call(&mut session)?;
        }
        for Named { id, namespace } in &collections {
            let [readers, writers, others] = lists(&granted, namespace, role);
            SetAccess { collection: *id, readers: &readers, writers: &writers, others: &others }.call(&mut session)?;
        }
        if granted.is_empty() {
            DropRole { role }.call(&mut session)?;
        }
    }
    for Named { id, namespace } in &collections {
        let [readers, writers, others] = lists(&granted, namespace, role);
        access::set_access(&SetAccess { collection: *id, readers: &readers, writers: &writers, others: &others })?;
    }
    if granted.is_empty() {
        spi::run_script(&format!("REVOKE USAGE ON SCHEMA {SCHEMAS} FROM {}", quote_ident(role)))?;
    }
    change::announce();
    Ok(())
}

/// Takes the use of docshard's schemas away from all roles, at this database alone. The caller drops its collections.
pub fn revoke_all_here() -> Result<()> {
    let revoke =
        |role: &String| spi::run_script(&format!("REVOKE USAGE ON SCHEMA {SCHEMAS} FROM {}", quote_ident(role)));
    role_names()?.iter().try_for_each(revoke)
}

/// Puts the role into one of the lists readers, writers and others of a collection.
fn lists<'r>(granted: &[Grant], namespace: &str, role: &'r str) -> [Vec<&'r str>; 3] {
    let (readers, writers) = grants::of_collection(granted, namespace);
    let mut lists = [Vec::new(), Vec::new(), Vec::new()];
    let place = if !writers.is_empty() {
        1
    } else if !readers.is_empty() {
        0
    } else {
        2
    };
    lists[place].push(role);
    lists
}

/// Creates every application role on a shard, before it gets documents.
pub fn make_roles(session: &mut impl Connection) -> Result<()> {
    role_names()?.iter().try_for_each(|role| CreateRole { role }.call(session))
}

/// Takes every application role away from a shard that has no documents.
pub fn drop_roles(session: &mut impl Connection) -> Result<()> {
    role_names()?.iter().try_for_each(|role| DropRole { role }.call(session))
}

/// The roles that have grants.
fn role_names() -> Result<BTreeSet<String>> {
    Ok(grants::all()?.into_iter().map(|grant| grant.name).collect())
}

/// Creates every application role on a shard that has documents, with the privileges on its tables.
pub fn restore_roles(session: &mut Session) -> Result<()> {
    lock_shared()?;
    make_roles(session)?;
    let granted = grants::all()?;
    for Named { id, namespace } in store::collections::all()? {
        let (readers, writers) = grants::of_collection(&granted, &namespace);
        SetAccess { collection: id, readers: &readers, writers: &writers, others: &[] }.call(session)?;
    }
    Ok(())
}

/// Calls `send` with the privileges of a collection's new table, under [`lock_shared`].
pub fn for_new_table(namespace: &str, collection: i32, send: impl FnOnce(&SetAccess<'_>) -> Result<()>) -> Result<()> {
    lock_shared()?;
    note_privileges_set();
    let granted = grants::all()?;
    let (readers, writers) = grants::of_collection(&granted, namespace);
    send(&SetAccess { collection, readers: &readers, writers: &writers, others: &[] })
}
