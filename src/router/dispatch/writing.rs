//! Sends writing statements: every shard takes locks and checks its version before it writes.

use super::request::{Located, assumed, locate, sql as sent, start};
use super::retry::{can_retry, failed, never_again, undone};
use crate::catalog::cluster::shard::Place;
use crate::catalog::collections::grants::{self, Level};
use crate::pg::client::sole_call;
use crate::pg::error::{Result, catch_violation};
use crate::pg::fault;
use crate::pg::spi;
use crate::pg::transaction::snapshot::ActiveSnapshot;
use crate::remote::{self, RequestScope, Role};
use crate::router::fresh_map::is_stale;
use crate::router::numbered::require_claim;
use crate::router::rows::ShardRow;
use crate::shard::{placement, writing};
use crate::storage::scan::Look;
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

/// Runs a write on every destination; `statement` maps its position to the statement. Results are in the order of the
/// destinations.
///
/// With one destination, lock, check and statement share one round trip. With several, all shards lock and check before any of
/// them writes, so that a stale map is noticed before anything is written. If a shard reports a stale map after that, or in a
/// transaction that has already written there, the error is a serialization failure, as the statement cannot be repeated by
/// itself.
pub fn write<'s>(
    collection: &Collection,
    destinations: &[Destination],
    range: &LockRange,
    statement: impl Fn(usize) -> &'s Statement,
) -> Result<Vec<Written>> {
    require_claim()?;
    let destinations = &locate(destinations)?[..];
    let role = grants::require(collection, Level::Write)?;
    let single = destinations.len() == 1;
    let lock = range.statement(collection);
    let retryable = can_retry(destinations);

    if !single {
        let mut streams = send(destinations, role, WRITE, None, |_| &lock)?;
        let checked = lock_local(collection, destinations, range).and_then(|()| remote::await_all(&mut streams));
        let drained = checked.and_then(|()| drain(&mut streams));
        if let Err(error) = drained {
            if !retryable || !is_stale(&error) {
                return Err(never_again(error));
            }
            // Release the locks on the shards that have locked but not written, so that the next attempt starts clean.
            for stream in &mut streams {
                match drain(std::slice::from_mut(stream)) {
                    Err(other) if !is_stale(&other) => return Err(other),
                    _ => {}
                }
            }
            return Err(undone(destinations, error));
        }
        drop(streams);
        fault::point("dispatch.checked")?;
    } else {
        lock_local(collection, destinations, range)?;
    }

    let preamble = single.then_some(&lock);
    let run = || -> Result<Vec<Written>> {
        let mut streams = send(destinations, role, WRITE, preamble, &statement)?;
        let local = write_local(collection, destinations, &statement)?;
        remote::await_all(&mut streams)?;
        collect(destinations, streams, local)
    };
    run().map_err(|error| if single && retryable { error } else { never_again(error) })
}

/// Takes the lock of upserts (see [`LockRange`]) on this node.
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
/// `is_last` means that the user's function writes nothing after this. If the transaction consists of this write only and
/// concerns a single shard, the shard commits with the statement; if that answer is lost, the error is 08007 (outcome unknown).
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

/// As [`write_checked`], for the claim of a numbered write.
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
    let destinations = &locate(destinations)?[..];
    let role = grants::require(collection, Level::Write)?;
    let retryable = can_retry(destinations);
    lock_local(collection, destinations, range)?;
    let run = || -> Result<Vec<Written>> {
        let scope = if is_last && sole_call::may_commit_first() {
            RequestScope::WholeTransaction
        } else {
            RequestScope::WholeStatement
        };
        let mut streams = send(destinations, role, scope, None, &statement)?;
        remote::await_all(&mut streams)?;
        let local = write_local(collection, destinations, &statement)?;
        let written = collect(destinations, streams, local)?;
        fault::point("dispatch.answered")?;
        Ok(written)
    };
    run().map_err(|error| failed(destinations, retryable, error))
}

fn collect(destinations: &[Located], streams: Vec<remote::Stream>, mut local: Option<Written>) -> Result<Vec<Written>> {
    let mut streams = streams.into_iter();
    destinations
        .iter()
        .map(|destination| match destination.shard.place {
            Place::Local => Ok(local.take().unwrap_or_default()),
            Place::Remote(_) => {
                let mut stream = streams.next().expect("one stream a remote destination");
                let rows = stream.rows()?.into_iter().map(ShardRow::Remote).collect();
                Ok(Written { rows, affected: stream.affected() })
            }
        })
        .collect()
}

fn write_local<'s>(
    collection: &Collection,
    destinations: &[Located],
    statement: impl Fn(usize) -> &'s Statement,
) -> Result<Option<Written>> {
    let Some(at) = destinations.iter().position(|d| d.shard.place == Place::Local) else { return Ok(None) };
    write_here(collection, &destinations[at], statement(at)).map(Some)
}

fn drain(streams: &mut [remote::Stream]) -> Result<()> {
    for stream in streams {
        while stream.next()?.is_some() {}
    }
    Ok(())
}

fn lock_local(collection: &Collection, destinations: &[Located], range: &LockRange) -> Result<()> {
    match destinations.iter().find(|d| d.shard.place == Place::Local) {
        Some(d) => {
            writing::lock_and_check(collection.id, assumed(collection, d), range.lo.as_deref(), range.hi.as_deref())?;
            range.serializing_lock.map_or(Ok(()), |number| writing::lock_upsert(collection.id, number))
        }
        None => Ok(()),
    }
}

/// Writes in this database, with a snapshot whose version has been checked.
fn write_here(collection: &Collection, destination: &Located, statement: &Statement) -> Result<Written> {
    let _snapshot = ActiveSnapshot::of_statement();
    placement::check(collection.id, assumed(collection, destination), Look::Active)?;
    fault::point("dispatch.writing")?;
    let params = statement.params_at(destination.version);
    Ok(catch_violation(|| spi::write_in_active_snapshot(&statement.sql, &params))?.into())
}

/// Runs a statement on rows that this operation has locked on the shard. The version needs no check, because locked rows cannot
/// be moved.
pub fn write_locked(collection: &Collection, destination: &Destination, statement: &Statement) -> Result<Written> {
    require_claim()?;
    let destinations = &locate(std::slice::from_ref(destination))?[..];
    let role = grants::require(collection, Level::Write)?;
    let mut streams = send(destinations, role, WRITE, None, |_| statement)?;
    remote::await_all(&mut streams)?;
    let local = match destinations[0].shard.place {
        Place::Local => Some(spi::execute(&statement.sql, &statement.params_at(destination.version))?.into()),
        Place::Remote(_) => None,
    };
    Ok(collect(destinations, streams, local)?.pop().unwrap_or_default())
}

/// How a write to a single shard takes part in the transaction, by default.
const WRITE: RequestScope = RequestScope::WholeStatement;

/// Sends each remote destination its statement, after `preamble` in the same round trip.
fn send<'s>(
    destinations: &[Located],
    role: Role,
    scope: RequestScope,
    preamble: Option<&Statement>,
    statement: impl Fn(usize) -> &'s Statement,
) -> Result<Vec<remote::Stream>> {
    let remote: Vec<_> = destinations
        .iter()
        .enumerate()
        .filter_map(|(at, d)| {
            let statement = statement(at);
            let before = preamble.map(|preamble| preamble.params_at(d.version));
            Some((d.shard.place.server()?, before, statement, statement.params_at(d.version)))
        })
        .collect();
    let requests: Vec<_> = remote
        .iter()
        .map(|(server, before, statement, params)| remote::Request {
            server: *server,
            role,
            preamble: preamble.zip(before.as_deref()).map(|(preamble, params)| sent(preamble, params)),
            statement: sent(statement, params),
            write: true,
            scope: if remote.len() == 1 { scope } else { RequestScope::OneOfSeveral },
        })
        .collect();
    start(&requests)
}
