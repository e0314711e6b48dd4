//! Granting and revoking access to documents: `docshard_catalog.grants`, and what follows from it on every node.
//!
//! What is done on other nodes is idempotent, commits by itself, and comes before the catalog's rows, in the caller's
//! transaction. If that fails half way, a shard may allow what the router refuses, and the same call again goes on.
//! INVARIANT: whoever makes a collection's table on a shard holds [`lock_shared`] from its look at the grants until the
//! table has its privileges. So a grant that changes meanwhile either is seen there, or finds the table.

use super::cache;
use super::change;
use super::grants::{self, EVERYTHING, Grant, Level};
use super::model::Place;
use super::namespace;
use crate::ownership::access;
use crate::pg::error::{Error, Result};
use crate::pg::spi;
use crate::pg::spi::param::Param;
use crate::pg::spi::quote::quote_ident;
use crate::protocol::Call;
use crate::protocol::access::{CreateRole, DropRole, SetAccess};
use crate::remote::Session;
use docshard_core::error::Kind;

/// The schemas that an application role uses at the router.
const SCHEMAS: &str = "docshard, docshard_internal, docshard_data, docshard_catalog";

/// Keeps the grants as they are until the transaction ends.
///
/// # Errors
/// Internal ones.
pub fn lock_shared() -> Result<()> {
    spi::run_script("LOCK TABLE docshard_catalog.grants IN ROW EXCLUSIVE MODE")
}

fn lock_exclusive() -> Result<()> {
    spi::run_script("LOCK TABLE docshard_catalog.grants IN SHARE ROW EXCLUSIVE MODE")
}

/// The collections, by number and name.
fn collections() -> Result<Vec<(i32, String)>> {
    let rows = spi::query("SELECT id, namespace FROM docshard_catalog.collections ORDER BY id", &[])?;
    Ok(rows.iter().map(|row| (row.i32(0), row.text(1).to_owned())).collect())
}

/// A role that may be granted something.
fn check_role(role: &str) -> Result<()> {
    let known = spi::query(
        "SELECT FROM pg_catalog.pg_roles WHERE rolname OPERATOR(pg_catalog.=) $1::pg_catalog.name",
        &[Param::Text(role)],
    )?;
    if known.is_empty() {
        return Err(Error::new(Kind::UserNotFound, format!("role \"{role}\" does not exist"))
            .with_hint("Create it first: CREATE ROLE … LOGIN."));
    }
    if role.starts_with(access::PREFIX) || role.starts_with("pg_") {
        return Err(Error::new(Kind::BadValue, format!("role \"{role}\" is not an application's"))
            .with_hint("Names that begin with docshard_ or pg_ are for other uses."));
    }
    Ok(())
}

/// Refuses what is neither a collection's name nor a database's.
fn check_resource(resource: &str) -> Result<()> {
    match resource {
        EVERYTHING => Ok(()),
        name if name.contains('.') => namespace::split(name).map(drop),
        name => namespace::check_database(name),
    }
}

/// Lets a role read and write resources: collections, databases, or [`EVERYTHING`].
///
/// # Errors
/// `UserNotFound`, `InvalidNamespace`, `BadValue`; what a shard raises.
pub fn grant(role: &str, read: &[&str], write: &[&str]) -> Result<()> {
    check_role(role)?;
    read.iter().chain(write).try_for_each(|resource| check_resource(resource))?;
    lock_exclusive()?;
    spi::run_script(&format!("GRANT USAGE ON SCHEMA {SCHEMAS} TO {}", quote_ident(role)))?;
    forget_dropped()?;
    for (resources, level) in [(read, Level::Read), (write, Level::Write)] {
        for resource in resources {
            // What may be written may be read already.
            spi::execute(
                "INSERT INTO docshard_catalog.grants AS g (role, resource, level) \
                 VALUES ($1::pg_catalog.text::pg_catalog.regrole, $2, $3) ON CONFLICT (role, resource) \
                 DO UPDATE SET level = excluded.level WHERE g.level OPERATOR(pg_catalog.=) 'read'",
                &[Param::Text(&quote_ident(role)), Param::Text(resource), Param::Text(level.name())],
            )?;
        }
    }
    apply(role)
}

/// Takes back what was granted, resource by resource; from `write` reading is left. Without resources, everything.
///
/// # Errors
/// `UserNotFound`; `RoleNotFound` for a resource that was not granted; what a shard raises.
pub fn revoke(role: &str, read: &[&str], write: &[&str]) -> Result<()> {
    check_role(role)?;
    lock_exclusive()?;
    let name = quote_ident(role);
    let not_granted = |resource: &str, level: Level| {
        let message = format!("role \"{role}\" was not granted to {} \"{resource}\"", level.name());
        Error::new(Kind::PrivilegeNotFound, message)
            .with_hint("docshard.grants shows what was granted; a resource is revoked as it was granted.")
    };
    if read.is_empty() && write.is_empty() {
        spi::execute(
            "DELETE FROM docshard_catalog.grants \
             WHERE role OPERATOR(pg_catalog.=) $1::pg_catalog.text::pg_catalog.regrole",
            &[Param::Text(&name)],
        )?;
    }
    for resource in write {
        let done = spi::execute(
            "UPDATE docshard_catalog.grants SET level = 'read' \
             WHERE role OPERATOR(pg_catalog.=) $1::pg_catalog.text::pg_catalog.regrole \
             AND resource OPERATOR(pg_catalog.=) $2 AND level OPERATOR(pg_catalog.=) 'write'",
            &[Param::Text(&name), Param::Text(resource)],
        )?;
        if done.processed == 0 {
            return Err(not_granted(resource, Level::Write));
        }
    }
    for resource in read {
        let done = spi::execute(
            "DELETE FROM docshard_catalog.grants \
             WHERE role OPERATOR(pg_catalog.=) $1::pg_catalog.text::pg_catalog.regrole \
             AND resource OPERATOR(pg_catalog.=) $2",
            &[Param::Text(&name), Param::Text(resource)],
        )?;
        if done.processed == 0 {
            return Err(not_granted(resource, Level::Read));
        }
    }
    apply(role)
}

/// Roles that were dropped, by DROP OWNED and DROP ROLE, leave their numbers here.
fn forget_dropped() -> Result<()> {
    spi::execute(
        "DELETE FROM docshard_catalog.grants g WHERE NOT EXISTS ( \
           SELECT FROM pg_catalog.pg_roles r WHERE r.oid OPERATOR(pg_catalog.=) g.role)",
        &[],
    )?;
    Ok(())
}

/// Makes every node allow a role what the catalog says, and nothing else.
fn apply(role: &str) -> Result<()> {
    let mut granted = grants::all()?;
    granted.retain(|grant| grant.name == role);
    let collections = collections()?;
    for shard in cache::shards()?.values() {
        if let Place::Remote(server) = shard.place {
            let mut session = Session::open(server)?;
            if !granted.is_empty() {
                CreateRole { role }.call(&mut session)?;
            }
            for (id, namespace) in &collections {
                let [readers, writers, others] = lists(&granted, namespace, role);
                SetAccess { collection: *id, readers: &readers, writers: &writers, others: &others }
                    .call(&mut session)?;
            }
            if granted.is_empty() {
                DropRole { role }.call(&mut session)?;
            }
        }
    }
    for (id, namespace) in &collections {
        let [readers, writers, others] = lists(&granted, namespace, role);
        access::set_access(&SetAccess { collection: *id, readers: &readers, writers: &writers, others: &others })?;
    }
    if granted.is_empty() {
        spi::run_script(&format!("REVOKE USAGE ON SCHEMA {SCHEMAS} FROM {}", quote_ident(role)))?;
    }
    change::announce();
    Ok(())
}

/// Where one role stands with a collection: among those that read it, that write it, or the others.
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

/// Makes every application role on a shard that is new, before it has any documents.
///
/// # Errors
/// The shard's.
pub fn make_roles(session: &mut Session) -> Result<()> {
    let mut names: Vec<String> = grants::all()?.into_iter().map(|grant| grant.name).collect();
    names.dedup();
    for name in names {
        CreateRole { role: &name }.call(session)?;
    }
    Ok(())
}

/// Passes on the call that gives a collection's new table its privileges; under [`lock_shared`].
///
/// # Errors
/// Internal ones; those of `send`.
pub fn for_new_table(namespace: &str, collection: i32, send: impl FnOnce(&SetAccess<'_>) -> Result<()>) -> Result<()> {
    lock_shared()?;
    let granted = grants::all()?;
    let (readers, writers) = grants::of_collection(&granted, namespace);
    send(&SetAccess { collection, readers: &readers, writers: &writers, others: &[] })
}
