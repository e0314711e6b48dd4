//! Who may work on a shard: what its superuser says, and what routers call for their roles.
//!
//! The functions of `docshard_internal` here, but for `set_access`, run as the extension's owner; only the service role may
//! call them.

use crate::ownership::{access, dismantle};
use crate::pg::error::Error;
use crate::protocol::access::SetAccess;
use docshard_core::error::Kind;
use pgrx::prelude::*;

fn texts(array: &[String]) -> Vec<&str> {
    array.iter().map(String::as_str).collect()
}

/// Lets a router work on this database as `role`, which is made if it is missing. For superusers. `verifier`: of the role's
/// password, by SCRAM-SHA-256; null leaves the password as it is.
#[pg_extern(volatile, parallel_unsafe, requires = ["catalog"])]
fn accept_router(role: Option<&str>, verifier: default!(Option<&str>, "NULL")) {
    let run = || access::accept_router(super::required(role, "role")?, verifier);
    run().unwrap_or_else(|e| e.raise());
}

/// Gives the service role a new password.
#[pg_extern(schema = "docshard_internal", volatile, strict, parallel_unsafe, requires = ["catalog"])]
fn set_service_password(verifier: &str) {
    access::set_service_password(verifier).unwrap_or_else(|e| e.raise());
}

/// Makes an application role.
#[pg_extern(schema = "docshard_internal", volatile, strict, parallel_unsafe, requires = ["catalog"])]
fn create_role(role: &str) {
    access::create_role(role).unwrap_or_else(|e| e.raise());
}

/// Does without an application role.
#[pg_extern(schema = "docshard_internal", volatile, strict, parallel_unsafe, requires = ["catalog"])]
fn drop_role(role: &str) {
    access::drop_role(role).unwrap_or_else(|e| e.raise());
}

/// What roles may do with a collection's table: read it, write it, or nothing.
#[pg_extern(schema = "docshard_internal", volatile, strict, parallel_unsafe, requires = ["catalog"])]
fn set_access(collection: i32, readers: Vec<String>, writers: Vec<String>, others: Vec<String>) {
    let (readers, writers, others) = (texts(&readers), texts(&writers), texts(&others));
    let access = SetAccess { collection, readers: &readers, writers: &writers, others: &others };
    access::set_access(&access).unwrap_or_else(|e| e.raise());
}

/// The verifier of the password with which this shard logs in at others.
#[pg_extern(schema = "docshard_internal", volatile, parallel_unsafe, requires = ["catalog"])]
fn puller_verifier() -> String {
    access::puller_verifier().unwrap_or_else(|e| e.raise())
}

/// Makes the server that leads to another shard.
#[pg_extern(schema = "docshard_internal", volatile, strict, parallel_unsafe, requires = ["catalog"])]
fn connect_shard(server: &str, options: Vec<String>, settings: Vec<String>, puller: &str) {
    if options.len() != settings.len() {
        Error::new(Kind::BadValue, "a server needs as many values as options").raise();
    }
    let options: Vec<_> = options.into_iter().zip(settings).collect();
    access::connect_shard(server, &options, puller).unwrap_or_else(|e| e.raise());
}

/// Gives the server that leads to another shard another address.
#[pg_extern(schema = "docshard_internal", volatile, strict, parallel_unsafe, requires = ["catalog"])]
fn set_server_address(server: &str, options: Vec<String>, settings: Vec<String>) {
    if options.len() != settings.len() {
        Error::new(Kind::BadValue, "a server needs as many values as options").raise();
    }
    let options: Vec<_> = options.into_iter().zip(settings).collect();
    access::set_address(server, &options, false).unwrap_or_else(|e| e.raise());
}

/// Lets another shard log in here, to pull what is moved to it.
#[pg_extern(schema = "docshard_internal", volatile, strict, parallel_unsafe, requires = ["catalog"])]
fn accept_puller(puller: &str, verifier: &str) {
    access::accept_puller(puller, verifier).unwrap_or_else(|e| e.raise());
}

/// Forgets another shard.
#[pg_extern(schema = "docshard_internal", volatile, strict, parallel_unsafe, requires = ["catalog"])]
fn disconnect_shard(server: &str, puller: &str) {
    access::disconnect_shard(server, puller).unwrap_or_else(|e| e.raise());
}

/// Forgets the router.
#[pg_extern(schema = "docshard_internal", volatile, parallel_unsafe, requires = ["catalog"])]
fn leave_cluster() {
    access::leave_cluster().unwrap_or_else(|e| e.raise());
}

/// Forgets the router, and drops all documents.
#[pg_extern(schema = "docshard_internal", volatile, parallel_unsafe, requires = ["catalog"])]
fn dismantle_node() {
    dismantle::dismantle(false).unwrap_or_else(|e| e.raise());
}
