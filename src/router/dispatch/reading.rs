//! Sends reading statements. Requests to all remote targets are sent before the local one runs. No answer is used before every
//! target has confirmed its version or, in a read that allows partial results, turned out to be unreachable.

use super::fan_out::{FanOut, Located, start};
use crate::catalog::collections::grants::Level;
use crate::pg::error::Result;
use crate::pg::fault;
use crate::pg::spi;
use crate::remote::{self, RequestScope, Sql};
use crate::router::lost_shards::LostShards;
use crate::router::rows::RowStream;
use crate::shard::pipeline::as_router;
use docshard_core::routing::model::Collection;
use docshard_core::routing::plan::destination::Destination;
use docshard_core::routing::plan::statement::Statement;
use std::rc::Rc;

/// Sends a statement to all destinations and returns when each has confirmed its version.
pub fn read(collection: &Collection, destinations: &[Destination], statement: &Statement) -> Result<Vec<RowStream>> {
    read_unless_lost(collection, destinations, statement, None)
}

/// Like [`read`]. With `lost`, a shard that cannot be reached is noted there, and its stream is empty.
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
    let begun = |sql: &Sql<'_>| {
        let mut cursor = spi::cursor::Cursor::open_single(sql.sql, &sql.params)?;
        as_router(|| cursor.begin())?;
        Ok(RowStream::Local(cursor))
    };
    read_with(collection, destinations, |_| statement, lost, begun)
}

/// Like [`read`], for EXPLAIN, which cannot run in a cursor.
pub fn explain(collection: &Collection, destinations: &[Destination], statement: &Statement) -> Result<Vec<RowStream>> {
    let rows = |sql: &Sql<'_>| Ok(RowStream::Rows(as_router(|| spi::query(sql.sql, &sql.params))?.into_iter()));
    read_with(collection, destinations, |_| statement, None, rows)
}

fn cursor(sql: &Sql<'_>) -> Result<RowStream> {
    spi::cursor::Cursor::open(sql.sql, &sql.params).map(RowStream::Local)
}

fn read_with<'s>(
    collection: &Collection,
    destinations: &[Destination],
    statement: impl Fn(usize) -> &'s Statement,
    lost: Option<&Rc<LostShards>>,
    open_local: impl Fn(&Sql<'_>) -> Result<RowStream>,
) -> Result<Vec<RowStream>> {
    let to = FanOut::open(collection, destinations, Level::Read)?;
    let requests = to.requests(RequestScope::OneOfSeveral, statement);
    // An error discards the answers of its whole group. So if shards may be lost, each shard is a group of its own.
    let group = if lost.is_some() { 1 } else { requests.len().max(1) };
    let mut streams = Vec::with_capacity(requests.len());
    for (requests, of) in requests.chunks(group).zip(&to.shards) {
        let started = unless_lost(lost, &of.shard.name, start(requests))?;
        streams.extend(started.unwrap_or_else(|| vec![None]));
    }
    let mut local = None;
    if let Some(at) = to.local() {
        let _snapshot = to.checked_snapshot(at)?;
        local = Some(open_local(&requests[at].statement)?);
    }
    if !fault::is_off("confirm_first") {
        for (streams, of) in streams.chunks_mut(group).zip(&to.shards) {
            if unless_lost(lost, &of.shard.name, remote::await_all(streams))?.is_none() {
                streams.fill_with(|| None);
            }
        }
    }
    if spi::cursor::outlives_subtransaction() {
        // A rollback to the savepoint would discard rows that were not received yet. So all rows are received now.
        streams.iter().flatten().try_for_each(remote::Stream::keep)?;
    }
    let answer = |(of, stream): (&Located, Option<remote::Stream>)| match (stream, lost) {
        (Some(stream), None) => RowStream::Remote(stream),
        (Some(stream), Some(lost)) => RowStream::Partial(stream, of.shard.name.clone(), Rc::clone(lost)),
        (None, _) if of.shard.is_local() => local.take().expect("opened above"),
        (None, _) => RowStream::Rows(Vec::new().into_iter()),
    };
    Ok(to.shards.iter().zip(streams).map(answer).collect())
}

/// None if the shard cannot be reached and may be lost.
fn unless_lost<T>(lost: Option<&Rc<LostShards>>, shard: &str, result: Result<T>) -> Result<Option<T>> {
    match (result, lost) {
        (Err(error), Some(lost)) => lost.note(shard, error).map(|()| None),
        (result, _) => result.map(Some),
    }
}
