//! The functions that routers and other shards call first on a shard.

use super::{given, run};
use crate::pg::error::Raise as _;
use crate::pg::object::drop_guard;
use crate::shard::node;
use docshard_core::routing::protocol::node::{Greeted, SayHello};
use pgrx::prelude::*;

/// The first statement of every connection of a router, pipelined with the next one. See
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
    if node::serves_router().unwrap_or_else(|e| e.raise()) {
        drop_guard::trust_session();
    }
    TableIterator::once((timeline, counter, recovery, protocol))
}

#[pg_extern(schema = "docshard_internal", stable, parallel_unsafe, requires = ["catalog"])]
fn identity() -> String {
    run(|| Ok(node::as_donor()?.to_string()))
}

/// STABLE and called without columns, so that PostgreSQL checks the donor once, before the statement pulls anything.
#[pg_extern(schema = "docshard_internal", stable, parallel_unsafe, requires = ["catalog"])]
fn check_donor(found: Option<&str>, expected: Option<&str>) -> bool {
    given!(found, expected);
    run(|| node::check_donor(found, expected));
    true
}

extension_sql_file!("../../sql/identity.sql", name = "identity_view", requires = [identity]);
