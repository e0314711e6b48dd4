//! Sends reading statements. Requests to all remote targets are sent before the local one runs, and no answer is used before all
//! have confirmed their version, or, for a read that allows partial results, could not be reached.

use super::request::{assumed, locate, sql, start};
use crate::catalog::cluster::shard::Place;
use crate::catalog::collections::grants::{self, Level};
use crate::pg::error::Result;
use crate::pg::fault;
use crate::pg::spi;
use crate::pg::transaction::snapshot::ActiveSnapshot;
use crate::remote::{self, RequestScope};
use crate::router::lost_shards::LostShards;
use crate::router::rows::RowStream;
use crate::shard::pipeline::as_router;
use crate::shard::placement;
use crate::storage::scan::Look;
use docshard_core::routing::model::Collection;
use docshard_core::routing::plan::destination::Destination;
use docshard_core::routing::plan::statement::Statement;
use docshard_core::sql::param::Param;
use std::rc::Rc;

/// Sends a statement to all destinations and returns when each has confirmed its version.
pub fn read(collection: &Collection, destinations: &[Destination], statement: &Statement) -> Result<Vec<RowStream>> {
    read_unless_lost(collection, destinations, statement, None)
}

/// Like [`read`]; with `lost` a shard that cannot be reached is noted there, and has no rows.
pub fn read_unless_lost(
    collection: &Collection,
    destinations: &[Destination],
    statement: &Statement,
    lost: Option<&Rc<LostShards>>,
) -> Result<Vec<RowStream>> {
    read_with(collection, destinations, |_| statement, lost, cursor)
}

/// Like [`read`], with a statement of its own for each destination.
pub fn read_each(
    collection: &Collection,
    destinations: &[Destination],
    statements: &[Statement],
) -> Result<Vec<RowStream>> {
    read_with(collection, destinations, |at| &statements[at], None, cursor)
}

/// Like [`read_unless_lost`], for statements that take long before their first row, and return few large rows. The local statement
/// runs at the same time as the remote ones, not after them.
pub fn read_ahead(
    collection: &Collection,
    destinations: &[Destination],
    statement: &Statement,
    lost: Option<&Rc<LostShards>>,
) -> Result<Vec<RowStream>> {
    let begun = |sql: &str, params: &[Param<'_>]| {
        let mut cursor = spi::cursor::Cursor::open_single(sql, params)?;
        as_router(|| cursor.begin())?;
        Ok(RowStream::Local(cursor))
    };
    read_with(collection, destinations, |_| statement, lost, begun)
}

/// Like [`read`], for EXPLAIN, which cannot run in a cursor.
pub fn explain(collection: &Collection, destinations: &[Destination], statement: &Statement) -> Result<Vec<RowStream>> {
    let rows =
        |sql: &str, params: &[Param<'_>]| Ok(RowStream::Rows(as_router(|| spi::query(sql, params))?.into_iter()));
    read_with(collection, destinations, |_| statement, None, rows)
}

fn cursor(sql: &str, params: &[Param<'_>]) -> Result<RowStream> {
    spi::cursor::Cursor::open(sql, params).map(RowStream::Local)
}

fn read_with<'s>(
    collection: &Collection,
    destinations: &[Destination],
    statement: impl Fn(usize) -> &'s Statement,
    lost: Option<&Rc<LostShards>>,
    open_local: impl Fn(&str, &[Param<'_>]) -> Result<RowStream>,
) -> Result<Vec<RowStream>> {
    let destinations = &locate(destinations)?;
    let role = grants::require(collection, Level::Read)?;
    let remote: Vec<_> = destinations
        .iter()
        .enumerate()
        .filter_map(|(at, d)| Some((d.shard.place.server()?, statement(at), statement(at).params_at(d.version))))
        .collect();
    let requests: Vec<_> = remote
        .iter()
        .map(|(server, statement, params)| remote::Request {
            server: *server,
            role,
            preamble: None,
            statement: sql(statement, params),
            write: false,
            scope: RequestScope::OneOfSeveral,
        })
        .collect();
    let names = || destinations.iter().filter(|d| d.shard.place != Place::Local).map(|d| d.shard.name.as_str());
    // An error voids the answers of a group, so a shard that may be lost is one.
    let group = if lost.is_some() { 1 } else { requests.len().max(1) };
    let mut groups = Vec::new();
    for (requests, shard) in requests.chunks(group).zip(names()) {
        groups.push(unless_lost(lost, shard, start(requests))?);
    }
    let mut local = None;
    if let Some(at) = destinations.iter().position(|d| d.shard.place == Place::Local) {
        let _snapshot = ActiveSnapshot::of_statement();
        let (destination, statement) = (&destinations[at], statement(at));
        placement::check(collection.id, assumed(collection, destination), Look::Active)?;
        local = Some(open_local(&statement.sql, &statement.params_at(destination.version))?);
    }
    if !fault::is_off("confirm_first") {
        for (streams, shard) in groups.iter_mut().zip(names()) {
            if !unless_lost(lost, shard, remote::await_all(streams).map(|()| true))? {
                streams.clear();
            }
        }
    }
    if spi::cursor::outlives_subtransaction() {
        // A rollback to the savepoint would discard what the shards have not sent yet.
        groups.iter().flatten().try_for_each(remote::Stream::keep)?;
    }
    let or_lost = |group: Vec<_>| if group.is_empty() { vec![None] } else { group.into_iter().map(Some).collect() };
    let mut streams = groups.into_iter().flat_map(or_lost);
    Ok(destinations
        .iter()
        .map(|destination| match destination.shard.place {
            Place::Local => local.take().expect("opened above"),
            Place::Remote(_) => match (streams.next().expect("one stream a remote destination"), lost) {
                (Some(stream), None) => RowStream::Remote(stream),
                (Some(stream), Some(lost)) => {
                    RowStream::Partial(stream, destination.shard.name.clone(), Rc::clone(lost))
                }
                (None, _) => RowStream::Rows(Vec::new().into_iter()),
            },
        })
        .collect())
}

/// The default value if the shard cannot be reached and may be lost.
fn unless_lost<T: Default>(lost: Option<&Rc<LostShards>>, shard: &str, result: Result<T>) -> Result<T> {
    match (result, lost) {
        (Err(error), Some(lost)) => lost.note(shard, error).map(|()| T::default()),
        (result, _) => result,
    }
}
