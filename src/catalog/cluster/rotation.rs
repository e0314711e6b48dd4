//! Changes the passwords of the service role while clients keep working.
//!
//! 1. Record a new password for every server in `docshard_catalog.rotation`, durably: nothing is lost if this process ends at any
//!    step.
//! 2. For each server, in a transaction of its own: set the verifier on the shard, then the password in the user mapping, and delete
//!    the record. A session that connects in between is refused, reads the mapping again and retries (see `remote::login`). Open
//!    connections are not affected.
//!
//! The worker or the next call completes an interrupted rotation with the recorded passwords. Several shards may be databases of one
//! PostgreSQL server that have accepted the router under one role; these shards share a password.

use crate::catalog::cache;
use crate::catalog::cluster::shards::names::{LOCAL, server_name};
use crate::pg::error::Result;
use crate::pg::security::credentials;
use crate::pg::{process::job, security::user, server, transaction};
use crate::remote::{self, Session};
use crate::storage::lock::{self, Mode, Tag};
use crate::store::rotation::{self as store, Rotation};
use docshard_core::routing::protocol::Call;
use docshard_core::routing::protocol::access::SetServicePassword;
use pgrx::pg_sys::Oid;
use serde_json::{Value, json};
use std::collections::HashMap;
use std::collections::hash_map::Entry;

const ROTATE: &str = "rotate the service password";

/// Held by the process that changes passwords.
const CHANGING: Tag = Tag::Worker(7);

/// The interval at which the lock of another process is tried again, in milliseconds.
const PAUSE_MS: i64 = 50;

/// Registers the job; called from `_PG_init`.
pub fn init() {
    job::register(ROTATE, |_| Ok(json!(rotate()?)));
}

/// Runs the rotation in a background worker, and waits; returns the servers that could not be reached, each with its error.
/// Errors: `ExceededMemoryLimit` (53200) if no worker is free.
pub fn rotate_and_wait() -> Result<Value> {
    job::run(ROTATE, "docshard: changing the service role's password", &Value::Null)
}

/// The servers of this cluster at which the router logs in with a password, each with its OID.
fn servers() -> Result<Vec<(String, Oid)>> {
    let shards = cache::shards()?;
    let remote =
        shards.values().filter_map(|shard| shard.server.as_ref().map(|server| (server.name.clone(), server.oid)));
    let local = server::foreign_server_oid(&server_name(LOCAL)).map(|oid| (server_name(LOCAL), oid));
    let mut servers: Vec<_> = remote.chain(local).collect();
    let mut with_password = Vec::new();
    for (server, oid) in servers.drain(..) {
        if remote::mapping_options(oid)?.iter().any(|(option, _)| option == "password") {
            with_password.push((server, oid));
        }
    }
    with_password.sort_by(|(one, _), (other, _)| one.cmp(other));
    Ok(with_password)
}

/// The role under which the router logs in to a server, and the server's address. Servers for which both are equal share a password.
fn account(oid: Oid) -> Result<Vec<(String, String)>> {
    let mut options = remote::server_options(oid)?;
    options.extend(remote::mapping_options(oid)?);
    options.retain(|(option, _)| ["user", "host", "hostaddr", "port"].contains(&option.as_str()));
    Ok(options)
}

/// Completes an interrupted rotation. Must be called outside a transaction.
pub fn finish() -> Result<()> {
    if transaction::run(store::all)?.is_empty() || !lock::try_acquire_for_session(CHANGING, Mode::Exclusive) {
        return Ok(());
    }
    let mut done = Ok(());
    for rotation in transaction::run(store::all).unwrap_or_default() {
        done = transaction::run(|| change(&rotation)).and(done);
    }
    lock::release_for_session(CHANGING, Mode::Exclusive);
    done
}

fn rotate() -> Result<Vec<(String, String)>> {
    // The lock is released when this process ends, after its job.
    while !lock::try_acquire_for_session(CHANGING, Mode::Exclusive) {
        server::sleep_ms(PAUSE_MS);
    }
    let pending = transaction::run(|| {
        let mut pending = store::all()?;
        if pending.is_empty() {
            let mut passwords = HashMap::new();
            for (server, oid) in servers()? {
                let password: &mut String = match passwords.entry(account(oid)?) {
                    Entry::Occupied(known) => known.into_mut(),
                    Entry::Vacant(new) => new.insert(credentials::random_password()?),
                };
                let rotation = Rotation { server, password: password.clone() };
                store::insert(&rotation)?;
                pending.push(rotation);
            }
        }
        Ok(pending)
    })?;
    let mut late = Vec::new();
    for rotation in pending {
        if let Err(error) = transaction::run(|| change(&rotation)) {
            late.push((rotation.server, error.into_message()));
        }
    }
    Ok(late)
}

fn change(rotation: &Rotation) -> Result<()> {
    let Rotation { server, password } = rotation;
    if let Some(oid) = server::foreign_server_oid(server) {
        let mut login = remote::mapping_options(oid)?;
        login.retain(|(option, _)| option != "password");
        login.push(("password".to_owned(), password.clone()));
        if !is_known(oid, &login)? {
            let verifier = credentials::scram_verifier(password)?;
            SetServicePassword { verifier: &verifier }.call(&mut Session::open(oid)?)?;
        }
        let owner = server::user_name(user::extension_owner()?);
        let login: Vec<_> = login.iter().map(|(option, value)| (option.as_str(), value.as_str())).collect();
        credentials::set_user_mapping(server, &owner, &login)?;
    }
    store::delete(server)
}

/// True if the shard already accepts this login. Always false if the shard asks for no password.
fn is_known(oid: Oid, login: &[(String, String)]) -> Result<bool> {
    let mut options = remote::server_options(oid)?;
    options.extend(login.iter().filter(|(option, _)| option != "password_required").cloned());
    Ok(Session::open_conninfo(&options, true).is_ok())
}
