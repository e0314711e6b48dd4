//! The rights of roles to read and write collections.
//!
//! A grant names a role, a resource (a collection, a database, or `*` for all) and a level. The router checks it before it sends
//! anything. The shards have the same rights, in the form of PostgreSQL's privileges on the collections' tables, and check them again.

use super::missing_grant;
use crate::catalog::cache;
use crate::catalog::cluster::identity;
use crate::pg::error::{Error, Result};
use crate::pg::security::user::extension_owner;
use crate::pg::server;
use crate::pg::transaction::snapshot::ActiveSnapshot;
use crate::remote::{self, Role};
use crate::store::grants as store;
use docshard_core::error::Kind;
use docshard_core::routing::model::Collection;
use pgrx::pg_sys::Oid;
use std::cell::RefCell;
use std::rc::Rc;

/// The resource that stands for all collections.
pub const EVERYTHING: &str = "*";

pub use crate::store::grants::{Grant, Level};

impl Grant {
    /// True if the grant covers the collection of that name.
    pub fn covers(&self, namespace: &str) -> bool {
        let resource = self.resource.as_str();
        resource == EVERYTHING
            || resource == namespace
            || namespace.split_once('.').is_some_and(|(database, _)| database == resource)
    }
}

/// The grants and the extension's owner, as they were in a generation of the catalog.
struct Known {
    generation: u64,
    owner: Oid,
    grants: Rc<Vec<Grant>>,
}

thread_local! {
    static KNOWN: RefCell<Option<Known>> = const { RefCell::new(None) };
}

/// Returns the grants of all roles that still exist, by the newest snapshot.
pub fn all() -> Result<Vec<Grant>> {
    let _snapshot = ActiveSnapshot::latest();
    store::read_all()
}

/// Returns the names of the roles that may read a collection but not write it, and of those that may write it.
pub fn of_collection<'g>(grants: &'g [Grant], namespace: &str) -> (Vec<&'g str>, Vec<&'g str>) {
    let named = |wanted: &dyn Fn(Level) -> bool| {
        let mut names: Vec<&str> = grants
            .iter()
            .filter(|grant| wanted(grant.level) && grant.covers(namespace))
            .map(|grant| grant.name.as_str())
            .collect();
        names.dedup();
        names
    };
    let writers = named(&|level| level >= Level::Write);
    let readers = named(&|level| level == Level::Read).into_iter().filter(|name| !writers.contains(name)).collect();
    (readers, writers)
}

/// True if the current user may read the collection.
pub fn may_read(collection: &Collection) -> Result<bool> {
    role_of(&collection.namespace, Level::Read).map(|role| role.is_some())
}

/// Returns the role whose privileges apply on shards when the current user runs a statement on a collection.
/// Errors: `Unauthorized` if nothing was granted to the user, or to a role whose privileges the user has; `NotWritablePrimary`
/// for a write at a copy of the router.
pub fn require(collection: &Collection, level: Level) -> Result<Role> {
    require_named(&collection.namespace, level)
}

/// Checks that the current user could read a collection of this name, which does not exist. Without the check, a role could find out which
/// names exist in databases that it may not read.
/// Errors: `Unauthorized`.
pub fn require_for_missing(namespace: &str) -> Result<()> {
    require_named(namespace, Level::Read).map(|_| ())
}

fn require_named(namespace: &str, level: Level) -> Result<Role> {
    role_of(namespace, level)?.ok_or_else(|| {
        let message = format!("permission denied to {} {namespace}", level.name());
        Error::new(Kind::Unauthorized, message).with_hint(missing_grant::hint(level.name(), namespace))
    })
}

/// True if the current user was granted to own the collection, view or database of that name, whether it exists or not. False for superusers,
/// who have the privileges of every role, but need no grant.
pub fn owns(resource: &str) -> Result<bool> {
    if server::is_superuser() {
        return Ok(false);
    }
    let user = server::current_user();
    let (_, grants) = known(cache::generation()?)?;
    Ok(grants.iter().any(|grant| {
        grant.level == Level::Own && grant.covers(resource) && server::has_privileges_of(user, grant.role.into())
    }))
}

/// Checks that the caller may read a collection: for functions of administration, which run with their owner's rights.
/// Errors: `Unauthorized`.
pub fn require_of_caller(collection: &Collection) -> Result<()> {
    let user = server::outer_user();
    let covers =
        |grant: &Grant| grant.covers(&collection.namespace) && server::has_privileges_of(user, grant.role.into());
    if server::outer_user_is_superuser() || user == extension_owner()? || all()?.iter().any(covers) {
        return Ok(());
    }
    let (namespace, level) = (&collection.namespace, Level::Read.name());
    let hint = missing_grant::hint_of(&server::outer_user_name(), level, namespace);
    Err(Error::new(Kind::Unauthorized, format!("permission denied to {level} {namespace}")).with_hint(hint))
}

/// Like [`require`]; None if nothing was granted.
fn role_of(namespace: &str, level: Level) -> Result<Option<Role>> {
    let generation = cache::generation()?;
    if level == Level::Write {
        identity::require_router_in(generation)?;
    }
    let user = server::current_user();
    if server::is_superuser() {
        return Ok(Some(Role::Service));
    }
    let (owner, grants) = known(generation)?;
    if user == owner {
        return Ok(Some(Role::Service));
    }
    let mut usable = grants.iter().filter(|grant| {
        grant.level >= level && grant.covers(namespace) && server::has_privileges_of(user, grant.role.into())
    });
    Ok(usable.next().map(|grant| Role::Application(grant.role.into())))
}

/// The extension's owner and the grants, which are cached.
fn known(generation: u64) -> Result<(Oid, Rc<Vec<Grant>>)> {
    let known = KNOWN.with_borrow(|known| match known {
        Some(known) if known.generation == generation => Some((known.owner, Rc::clone(&known.grants))),
        _ => None,
    });
    if let Some(known) = known {
        return Ok(known);
    }
    let (owner, grants) = (extension_owner()?, Rc::new(all()?));
    remote::grants_changed();
    KNOWN.set(Some(Known { generation, owner, grants: Rc::clone(&grants) }));
    Ok((owner, grants))
}
