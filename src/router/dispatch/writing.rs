//! Sends writing statements: every shard takes locks and checks its version before it writes.

use super::fan_out::{FanOut, never_again, start};
use crate::catalog::collections::grants::{self, Level};
use crate::pg::error::{Result, catch_violation};
use crate::pg::fault;
use crate::pg::spi;
use crate::pg::transaction::writes;
use crate::remote::{self, Request, RequestScope, Sql};
use crate::router::fresh_map::is_stale;
use crate::router::numbered::require_claim;
use crate::router::rows::ShardRow;
use crate::shard::{accesses, writing};
use docshard_core::routing::model::Collection;
use docshard_core::routing::plan::destination::Destination;
use docshard_core::routing::plan::statement::Statement;
use docshard_core::routing::protocol::checked::Parameter;
use docshard_core::routing::protocol::documents::LockAndCheck;
use docshard_core::routing::protocol::sql;
use docshard_core::sql::column::Column;
use docshard_core::values::key::{KeyRange, KeyRanges};

/// The shard keys that a write may touch; None means no bound.
#[derive(Clone, Debug)]
pub struct LockRange {
    pub lo: Option<Vec<u8>>,
    /// the exclusive upper bound
    pub hi: Option<Vec<u8>>,
    /// the number of the lock that serializes equal upserts, or replacements of the collection
    pub serializing_lock: Option<i64>,
}

impl LockRange {
    pub fn of_key(key: &[u8]) -> Self {
        let KeyRange { lo, hi } = KeyRange::point(key);
        Self { lo: Some(lo), hi, serializing_lock: None }
    }

    /// The smallest range that covers all the keys.
    pub fn of(keys: &KeyRanges) -> Self {
        match keys.hull() {
            Some(hull) if !keys.is_all() => Self { lo: Some(hull.lo), hi: hull.hi, serializing_lock: None },
            _ => Self { lo: None, hi: None, serializing_lock: None },
        }
    }

    fn statement(&self, collection: &Collection) -> Statement {
        let &Collection { id, token, .. } = collection;
        let (lo, hi) = (self.lo.clone().map(Into::into), self.hi.clone().map(Into::into));
        let mut statement = Statement::from(LockAndCheck { collection: id, token, version: 0, lo, hi });
        if let Some(number) = self.serializing_lock {
            statement.params.push(Parameter::Int8(number));
            statement.sql += ", ";
            statement.sql += &sql::lock_upsert(id, format_args!("${}", statement.params.len()));
            statement.columns = &[Column::BOOL, Column::BYTES];
        }
        statement
    }
}

/// The result of a write on one shard.
#[derive(Default)]
pub struct Written {
    pub rows: Vec<ShardRow>,
    pub affected: u64,
}

impl From<spi::StatementResult> for Written {
    fn from(answer: spi::StatementResult) -> Self {
        Self { affected: answer.processed, rows: answer.rows.into_iter().map(ShardRow::Local).collect() }
    }
}

/// Begins a write, and notes it: readers with an older snapshot must not see it (see [`writes`]).
fn open<'c>(collection: &'c Collection, destinations: &[Destination]) -> Result<FanOut<'c>> {
    let to = FanOut::open(collection, destinations, Level::Write)?;
    writes::note(&collection.namespace);
    Ok(to)
}

/// Runs a write on every destination; `statement` maps a destination's position to its statement. Results are in the order of the
/// destinations.
///
/// With one destination, lock, check and statement share one round trip. With several, all shards lock and check before any of them writes,
/// so that a stale map is noticed before anything is written. If a shard reports a stale map after that, or in a transaction that has
/// already written on the shards, the error is a serialization failure, as the statement cannot be repeated by itself.
pub fn write<'s>(
    collection: &Collection,
    destinations: &[Destination],
    range: &LockRange,
    statement: impl Fn(usize) -> &'s Statement,
) -> Result<Vec<Written>> {
    require_claim()?;
    let to = open(collection, destinations)?;
    let lock = range.statement(collection);
    let single = to.shards.len() == 1;
    let requests = if single {
        lock_local(&to, range)?;
        to.requests_after(&lock, WRITE, |at| statement(at))
    } else {
        lock_all(&to, range, &lock)?;
        fault::point("dispatch.checked")?;
        to.requests(WRITE, |at| statement(at))
    };
    if to.local().is_some() {
        // Remote shards count the write in the function that locks.
        accesses::write(collection.id, range.lo.as_deref());
    }
    let run = || {
        let mut streams = start(&requests)?;
        let local = write_local(&to, &requests)?;
        remote::await_all(&mut streams)?;
        collect(streams, local)
    };
    run().map_err(|error| if single && to.may_retry(&error) { error } else { never_again(error) })
}

/// Locks and checks on all shards. If the map was stale, the remote shards that have locked roll back, so that the next attempt
/// starts without their locks.
fn lock_all(to: &FanOut<'_>, range: &LockRange, lock: &Statement) -> Result<()> {
    let mut streams = start(&to.requests(WRITE, |_| lock))?;
    let checked = lock_local(to, range).and_then(|()| remote::await_all(&mut streams));
    let Err(error) = checked.and_then(|()| drain(&mut streams)) else { return Ok(()) };
    if !to.may_retry(&error) {
        return Err(never_again(error));
    }
    for stream in &mut streams {
        match drain(std::slice::from_mut(stream)) {
            Err(other) if !is_stale(&other) => return Err(other),
            _ => {}
        }
    }
    Err(to.undone(error))
}

/// Takes the lock that serializes equal upserts (see [`LockRange`]) on this node.
pub fn lock_upsert_here(collection: &Collection, number: i64) -> Result<()> {
    grants::require(collection, Level::Write)?;
    writing::acquire_upsert(collection.id, number);
    Ok(())
}

/// Like [`write`], for statements that lock and check by themselves (see `shard::documents`).
///
/// All are sent at once. If one shard reports a stale map, the writes on the other shards are rolled back; if those had written
/// before in this transaction, the error is a serialization failure. The shard `local`, which cannot roll back one statement,
/// locks first and writes last.
///
/// `is_last`: the client's transaction is this one call, and nothing is written after this write. If nothing was written before
/// it either, and it concerns a single shard, the shard commits with the statement. If the connection is lost before the answer
/// arrives, the error is 08007 (outcome unknown).
pub fn write_checked<'s>(
    collection: &Collection,
    destinations: &[Destination],
    range: &LockRange,
    is_last: bool,
    statement: impl Fn(usize) -> &'s Statement,
) -> Result<Vec<Written>> {
    require_claim()?;
    write_unclaimed(collection, destinations, range, is_last, statement)
}

/// Like [`write_checked`], for the claim of a numbered write.
pub fn write_claim(
    collection: &Collection,
    destination: &Destination,
    range: &LockRange,
    statement: &Statement,
) -> Result<Written> {
    let written = write_unclaimed(collection, std::slice::from_ref(destination), range, false, |_| statement)?;
    Ok(written.into_iter().next().unwrap_or_default())
}

fn write_unclaimed<'s>(
    collection: &Collection,
    destinations: &[Destination],
    range: &LockRange,
    is_last: bool,
    statement: impl Fn(usize) -> &'s Statement,
) -> Result<Vec<Written>> {
    let to = open(collection, destinations)?;
    lock_local(&to, range)?;
    let requests = to.requests(if is_last { RequestScope::WholeTransaction } else { WRITE }, statement);
    let run = || {
        let mut streams = start(&requests)?;
        remote::await_all(&mut streams)?;
        let local = write_local(&to, &requests)?;
        let written = collect(streams, local)?;
        fault::point("dispatch.answered")?;
        Ok(written)
    };
    run().map_err(|error| to.failed(error))
}

/// Collects the shards' results in order; `local`: that of this database.
fn collect(streams: Vec<Option<remote::Stream>>, mut local: Option<Written>) -> Result<Vec<Written>> {
    let written = |stream: Option<remote::Stream>| {
        let Some(mut stream) = stream else { return Ok(local.take().unwrap_or_default()) };
        let rows = stream.rows()?.into_iter().map(ShardRow::Remote).collect();
        Ok(Written { rows, affected: stream.affected() })
    };
    streams.into_iter().map(written).collect()
}

fn drain(streams: &mut [Option<remote::Stream>]) -> Result<()> {
    for stream in streams.iter_mut().flatten() {
        while stream.next()?.is_some() {}
    }
    Ok(())
}

fn lock_local(to: &FanOut<'_>, range: &LockRange) -> Result<()> {
    let (Some(at), collection) = (to.local(), to.collection.id) else { return Ok(()) };
    writing::lock_and_check(collection, to.assumed(at), range.lo.as_deref(), range.hi.as_deref())?;
    range.serializing_lock.map_or(Ok(()), |number| writing::lock_upsert(collection, number))
}

/// Writes in this database, with a snapshot in which the version has been checked. None if this database is not one of the shards.
fn write_local(to: &FanOut<'_>, requests: &[Request<'_>]) -> Result<Option<Written>> {
    let Some(at) = to.local() else { return Ok(None) };
    let _snapshot = to.checked_snapshot(at)?;
    fault::point("dispatch.writing")?;
    let Sql { sql, params, .. } = &requests[at].statement;
    Ok(Some(catch_violation(|| spi::write_in_active_snapshot(sql, params))?.into()))
}

/// Runs a statement on rows that this operation has locked on the shard. The version is not checked, because locked rows cannot be moved.
pub fn write_locked(collection: &Collection, destination: &Destination, statement: &Statement) -> Result<Written> {
    require_claim()?;
    let to = open(collection, std::slice::from_ref(destination))?;
    let request = to.request(0, WRITE, statement);
    let mut streams = start(std::slice::from_ref(&request))?;
    remote::await_all(&mut streams)?;
    let Sql { sql, params, .. } = &request.statement;
    let local = to.local().map(|_| spi::execute(sql, params)).transpose()?.map(Into::into);
    Ok(collect(streams, local)?.pop().unwrap_or_default())
}

/// How a write to a single shard takes part in the transaction, by default.
const WRITE: RequestScope = RequestScope::WholeStatement;
