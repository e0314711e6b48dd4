//! What routers and other shards ask a shard first.

use crate::ownership::node;
use crate::pg::error::Result;
use crate::protocol::node::{Greeted, SayHello};
use pgrx::prelude::*;

/// The first statement of every connection of a router, in front of its others in one pipeline: an ERROR unless this is the
/// shard that is meant, as far as the router knows it to have come. A negative timeline is not compared. See
/// `docshard_core::cluster::handshake`.
#[pg_extern(schema = "docshard_internal", volatile, parallel_unsafe, strict, requires = ["catalog"])]
#[allow(clippy::too_many_arguments, reason = "an SQL function has no structures")]
#[allow(clippy::type_complexity, reason = "the columns of the SQL function")]
fn hello(
    cluster: i64,
    shard: &str,
    router: &str,
    epoch: i64,
    known_timeline: i64,
    known_counter: i64,
    writes: bool,
    refuse_lost_writes: bool,
    oldest: i32,
    newest: i32,
) -> TableIterator<'static, (name!(timeline, i64), name!(counter, i64), name!(recovery, bool), name!(protocol, i32))> {
    let said = SayHello {
        cluster,
        shard,
        router,
        epoch,
        known_timeline,
        known_counter,
        writes,
        refuse_lost_writes,
        oldest,
        newest,
    };
    let Greeted { timeline, counter, recovery, protocol } =
        node::answer(&said.hello(), writes).unwrap_or_else(|e| e.raise()).into();
    TableIterator::once((timeline, counter, recovery, protocol))
}

/// Which shard this is and how far it has come, for another one that pulls documents.
#[pg_extern(schema = "docshard_internal", stable, parallel_unsafe, requires = ["catalog"])]
fn identity() -> String {
    let run = || -> Result<String> { Ok(node::as_donor()?.to_string()) };
    run().unwrap_or_else(|e| e.raise())
}

/// True if a donor says that it is the one that is expected; otherwise an ERROR. STABLE and of no column, so that the
/// statement asks before it pulls anything.
#[pg_extern(schema = "docshard_internal", stable, parallel_unsafe, requires = ["catalog"])]
fn check_donor(found: Option<&str>, expected: Option<&str>) -> bool {
    let run = || node::check_donor(super::required(found, "found")?, super::required(expected, "expected")?);
    run().unwrap_or_else(|e| e.raise());
    true
}

extension_sql_file!("../../sql/identity.sql", name = "identity_view", requires = [identity]);
