//! Functions that control which roles may use a shard. The shard's superuser and its router call them; see `protocol::access`.
//!
//! `accept_router` is for superusers. Only the service role may call the other functions, which except for `set_access` run as
//! the extension's owner.

use super::{given, run, shard_functions};
use crate::catalog::cluster::shards;
use crate::pg::error::Result;
use crate::shard::{access, dismantle};
use docshard_core::error::{Kind, bail};
use docshard_core::routing::protocol::access::SetAccess;
use pgrx::prelude::*;

/// The options of a server and their values.
fn pairs(options: Vec<String>, values: Vec<String>) -> Result<Vec<(String, String)>> {
    if options.len() != values.len() {
        bail!(Kind::BadValue, "a server's options and values must have the same length");
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
    run(|| shards::accept_router(role, verifier));
}

shard_functions! {
    [volatile, strict, parallel_unsafe] set_service_password(verifier: &str) => access::set_service_password(verifier);

    [volatile, strict, parallel_unsafe] create_role(role: &str) => access::create_role(role);

    [volatile, strict, parallel_unsafe] drop_role(role: &str) => access::drop_role(role);

    [volatile, strict, parallel_unsafe] set_access(
        collection: i32, readers: Vec<String>, writers: Vec<String>, others: Vec<String>,
    ) => {
        let (readers, writers, others) = (texts(&readers), texts(&writers), texts(&others));
        access::set_access(&SetAccess { collection, readers: &readers, writers: &writers, others: &others })
    };

    [volatile, parallel_unsafe] puller_verifier() -> String => access::puller_verifier();

    [volatile, strict, parallel_unsafe] connect_shard(
        server: &str, options: Vec<String>, settings: Vec<String>, puller: &str,
    ) => access::connect_shard(server, &pairs(options, settings)?, puller);

    [volatile, strict, parallel_unsafe] set_server_address(server: &str, options: Vec<String>, settings: Vec<String>) =>
        access::set_address(server, &pairs(options, settings)?, false);

    [volatile, strict, parallel_unsafe] accept_puller(puller: &str, verifier: &str) => access::accept_puller(puller, verifier);

    [volatile, strict, parallel_unsafe] disconnect_shard(server: &str, puller: &str) => access::disconnect_shard(server, puller);

    [volatile, parallel_unsafe] leave_cluster() => access::leave_cluster();

    [volatile, parallel_unsafe] dismantle_node() => dismantle::dismantle(false);
}
