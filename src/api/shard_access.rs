//! Functions that control which roles may use a shard. The shard's superuser and its router call them; see `protocol::access`.
//!
//! All functions but `set_access` run as the extension's owner; only the service role may call them.

use super::{given, run};
use crate::ownership::{access, dismantle};
use crate::pg::error::{Error, Result};
use crate::protocol::access::SetAccess;
use docshard_core::error::Kind;
use pgrx::prelude::*;

/// The options of a server and their values.
fn pairs(options: Vec<String>, values: Vec<String>) -> Result<Vec<(String, String)>> {
    if options.len() != values.len() {
        return Err(Error::new(Kind::BadValue, "a server's options and values must have the same length"));
    }
    Ok(options.into_iter().zip(values).collect())
}

fn texts(array: &[String]) -> Vec<&str> {
    array.iter().map(String::as_str).collect()
}

/// Allows a router to use this database as `role`, which is created if it does not exist. For superusers. A null `verifier`
/// (SCRAM-SHA-256) leaves the password unchanged.
#[pg_extern(volatile, parallel_unsafe, requires = ["catalog"])]
fn accept_router(role: Option<&str>, verifier: default!(Option<&str>, "NULL")) {
    given!(role);
    run(|| access::accept_router(role, verifier));
}

#[pg_extern(schema = "docshard_internal", volatile, strict, parallel_unsafe, requires = ["catalog"])]
fn set_service_password(verifier: &str) {
    access::set_service_password(verifier).unwrap_or_else(|e| e.raise());
}

#[pg_extern(schema = "docshard_internal", volatile, strict, parallel_unsafe, requires = ["catalog"])]
fn create_role(role: &str) {
    access::create_role(role).unwrap_or_else(|e| e.raise());
}

#[pg_extern(schema = "docshard_internal", volatile, strict, parallel_unsafe, requires = ["catalog"])]
fn drop_role(role: &str) {
    access::drop_role(role).unwrap_or_else(|e| e.raise());
}

#[pg_extern(schema = "docshard_internal", volatile, strict, parallel_unsafe, requires = ["catalog"])]
fn set_access(collection: i32, readers: Vec<String>, writers: Vec<String>, others: Vec<String>) {
    let (readers, writers, others) = (texts(&readers), texts(&writers), texts(&others));
    let access = SetAccess { collection, readers: &readers, writers: &writers, others: &others };
    access::set_access(&access).unwrap_or_else(|e| e.raise());
}

#[pg_extern(schema = "docshard_internal", volatile, parallel_unsafe, requires = ["catalog"])]
fn puller_verifier() -> String {
    access::puller_verifier().unwrap_or_else(|e| e.raise())
}

#[pg_extern(schema = "docshard_internal", volatile, strict, parallel_unsafe, requires = ["catalog"])]
fn connect_shard(server: &str, options: Vec<String>, settings: Vec<String>, puller: &str) {
    run(|| access::connect_shard(server, &pairs(options, settings)?, puller));
}

#[pg_extern(schema = "docshard_internal", volatile, strict, parallel_unsafe, requires = ["catalog"])]
fn set_server_address(server: &str, options: Vec<String>, settings: Vec<String>) {
    run(|| access::set_address(server, &pairs(options, settings)?, false));
}

#[pg_extern(schema = "docshard_internal", volatile, strict, parallel_unsafe, requires = ["catalog"])]
fn accept_puller(puller: &str, verifier: &str) {
    access::accept_puller(puller, verifier).unwrap_or_else(|e| e.raise());
}

#[pg_extern(schema = "docshard_internal", volatile, strict, parallel_unsafe, requires = ["catalog"])]
fn disconnect_shard(server: &str, puller: &str) {
    access::disconnect_shard(server, puller).unwrap_or_else(|e| e.raise());
}

#[pg_extern(schema = "docshard_internal", volatile, parallel_unsafe, requires = ["catalog"])]
fn leave_cluster() {
    access::leave_cluster().unwrap_or_else(|e| e.raise());
}

#[pg_extern(schema = "docshard_internal", volatile, parallel_unsafe, requires = ["catalog"])]
fn dismantle_node() {
    dismantle::dismantle(false).unwrap_or_else(|e| e.raise());
}
