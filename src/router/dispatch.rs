//! Sending statements to shards, in this process or over libpq.
//!
//! The shard `local` is checked first and then read in the very snapshot that was checked, so no ERROR is raised for a
//! stale map; the others check inside their statement. Requests to all remote targets are under way before the local
//! one runs, and no answer is used before all have confirmed.

use super::call::Call;
use super::condition::{Borrowed, Bound};
use super::fresh::{conflict, is_stale};
use super::statement::Statement;
use crate::catalog::cache;
use crate::catalog::grants::{self, Level};
use crate::catalog::model::{Collection, Place, Shard};
use crate::ownership::placement::{self, Placement};
use crate::ownership::writing;
use crate::pg::client::sole_call;
use crate::pg::error::{Error, Result, catch_unique_violation};
use crate::pg::fault;
use crate::pg::spi;
use crate::pg::spi::param::Param;
use crate::pg::transaction::snapshot::ActiveSnapshot;
use crate::remote::{self, Role, Share};
use crate::storage::scan::Look;
use docshard_core::cluster::chunk_map::{ShardId, Target};
use docshard_core::error::Kind;
use docshard_core::values::document::packed;
use docshard_core::values::key::{KeyRange, KeyRanges};
use std::rc::Rc;

/// So many documents of each shard may be in memory together.
const FEW_ROWS: u64 = 32;

/// Another node's numbers count documents and bytes. Whatever it says, sums of them do not overflow.
pub const LARGEST_NUMBER: i64 = 1 << 53;

/// A shard that a statement goes to.
#[derive(Clone, Debug)]
pub struct Destination {
    /// the shard
    pub shard: Rc<Shard>,
    /// the version that the map assumes it to be at
    pub version: i64,
    /// how many of its chunks are concerned
    pub chunks: usize,
}

/// The destinations of keys, by shard number.
///
/// # Errors
/// `ShardNotFound`, `InternalError` if the catalog breaks its invariants.
pub fn destinations(collection: &Collection, keys: &KeyRanges) -> Result<Vec<Destination>> {
    collection
        .map
        .targets(keys)
        .into_iter()
        .map(|Target { shard, chunks, .. }| destination(collection, shard, chunks))
        .collect()
}

/// Every shard that has the collection's table, with or without chunks, by shard number.
///
/// # Errors
/// As [`destinations`].
pub fn placed(collection: &Collection) -> Result<Vec<Destination>> {
    collection.placements.keys().map(|shard| destination(collection, *shard, 0)).collect()
}

/// The destination of one key.
///
/// # Errors
/// As [`destinations`].
pub fn destination_of(collection: &Collection, skey: &[u8]) -> Result<Destination> {
    destination(collection, collection.map.owner(skey), 1)
}

fn destination(collection: &Collection, shard: ShardId, chunks: usize) -> Result<Destination> {
    let version = *collection.placements.get(&shard).ok_or_else(|| {
        let message = format!("{} has a chunk but no placement on shard {shard}", collection.namespace);
        Error::new(Kind::InternalError, message)
    })?;
    Ok(Destination { shard: cache::shard(shard)?, version, chunks })
}

/// A row, from here or from a shard.
pub enum Answer {
    /// of this database
    Local(spi::Row),
    /// of another node
    Remote(remote::Row),
    /// one of those that were packed into a column, by its number, its columns being what is told of it and its key
    Packed(Rc<Packed>, usize),
}

impl Answer {
    /// A column in binary form.
    pub fn get(&self, column: usize) -> Option<&[u8]> {
        match self {
            Answer::Local(row) => row.get(column),
            Answer::Remote(row) => row.get(column),
            Answer::Packed(packed, number) => match column {
                0 => packed.documents.document(*number),
                1 => packed.documents.key(*number),
                _ => None,
            },
        }
    }

    /// An int8 column; null reads as 0.
    pub fn i64(&self, column: usize) -> i64 {
        let number = self.get(column).and_then(|bytes| bytes.try_into().ok()).map_or(0, i64::from_be_bytes);
        if self.is_foreign() { number.clamp(-LARGEST_NUMBER, LARGEST_NUMBER) } else { number }
    }

    /// True if the bytes come from another node, and so have to be checked before PostgreSQL reads them as jsonb.
    pub fn is_foreign(&self) -> bool {
        match self {
            Answer::Local(_) => false,
            Answer::Remote(_) => true,
            Answer::Packed(packed, _) => packed.is_foreign,
        }
    }
}

/// Documents that came in one piece: see `ownership::few`.
pub struct Packed {
    documents: packed::Documents,
    is_foreign: bool,
}

/// The rows of one destination.
pub enum RowStream {
    /// a cursor here
    Local(spi::Cursor),
    /// rows already here
    Rows(std::vec::IntoIter<spi::Row>),
    /// a stream from another node
    Remote(remote::Stream),
    /// documents that came in one piece, from a number on
    Packed(Rc<Packed>, usize),
}

impl RowStream {
    /// The documents that are packed into a row's first column.
    ///
    /// # Errors
    /// `InternalError` if they are not whole.
    pub fn packed(row: &Answer) -> Result<Self> {
        let documents = packed::Documents::unpack(row.get(0).unwrap_or_default())
            .ok_or_else(|| Error::new(Kind::InternalError, "documents arrived cut off"))?;
        Ok(RowStream::Packed(Rc::new(Packed { documents, is_foreign: row.is_foreign() }), 0))
    }

    /// The next row.
    ///
    /// # Errors
    /// The shard's.
    pub fn next_row(&mut self) -> Result<Option<Answer>> {
        Ok(match self {
            RowStream::Local(cursor) => cursor.next_row()?.map(Answer::Local),
            RowStream::Rows(rows) => rows.next().map(Answer::Local),
            RowStream::Remote(stream) => stream.next()?.map(Answer::Remote),
            RowStream::Packed(packed, next) => {
                let number = *next;
                *next += 1;
                (number < packed.documents.count()).then(|| Answer::Packed(Rc::clone(packed), number))
            }
        })
    }
}

/// Starts a reading statement everywhere; answers when every destination has confirmed its version.
///
/// # Errors
/// Stale versions and whatever the shards raise.
pub fn read(collection: &Collection, destinations: &[Destination], statement: &Statement) -> Result<Vec<RowStream>> {
    read_at_most(collection, destinations, statement, None)
}

/// As [`read`], where each destination has so many rows at most; None if that is not known.
///
/// # Errors
/// As [`read`].
pub fn read_at_most(
    collection: &Collection,
    destinations: &[Destination],
    statement: &Statement,
    most: Option<u64>,
) -> Result<Vec<RowStream>> {
    let few_rows = most.is_some_and(|most| most <= FEW_ROWS);
    read_with(
        collection,
        destinations,
        |_| statement,
        few_rows,
        |statement, params| spi::Cursor::open(&statement.sql, params).map(RowStream::Local),
    )
}

/// As [`read`], a statement for each destination.
///
/// # Errors
/// As [`read`].
pub fn read_each(
    collection: &Collection,
    destinations: &[Destination],
    statements: &[Statement],
) -> Result<Vec<RowStream>> {
    read_with(
        collection,
        destinations,
        |at| &statements[at],
        false,
        |statement, params| spi::Cursor::open(&statement.sql, params).map(RowStream::Local),
    )
}

/// As [`read`], for EXPLAIN, which PostgreSQL runs in no cursor.
///
/// # Errors
/// As [`read`].
pub fn explain(collection: &Collection, destinations: &[Destination], statement: &Statement) -> Result<Vec<RowStream>> {
    read_with(
        collection,
        destinations,
        |_| statement,
        false,
        |statement, params| Ok(RowStream::Rows(spi::query(&statement.sql, params)?.into_iter())),
    )
}

fn read_with<'s>(
    collection: &Collection,
    destinations: &[Destination],
    statement: impl Fn(usize) -> &'s Statement,
    few_rows: bool,
    open_local: impl Fn(&Statement, &[Param<'_>]) -> Result<RowStream>,
) -> Result<Vec<RowStream>> {
    let role = grants::require(collection, Level::Read)?;
    let bounds: Vec<_> =
        (0..destinations.len()).map(|at| (statement(at), Borrowed::new(&statement(at).params))).collect();
    let remote: Vec<_> = destinations
        .iter()
        .zip(&bounds)
        .filter_map(|(d, (statement, bounds))| Some((d.shard.place.server()?, *statement, bounds.params_at(d.version))))
        .collect();
    let requests: Vec<_> = remote
        .iter()
        .map(|(server, statement, params)| remote::Request {
            server: *server,
            role,
            preamble: None,
            statement: remote::Statement { sql: &statement.sql, params },
            write: false,
            share: Share::Part,
            few_rows,
        })
        .collect();
    let mut streams = start(&requests)?;
    let mut local = None;
    if let Some(at) = destinations.iter().position(|d| d.shard.place == Place::Local) {
        let _snapshot = ActiveSnapshot::of_statement();
        let (destination, (statement, bounds)) = (&destinations[at], &bounds[at]);
        placement::check(collection.id, assumed(collection, destination), Look::Active)?;
        local = Some(open_local(statement, &bounds.params_at(destination.version))?);
    }
    if !fault::is_off("confirm_first") {
        remote::await_all(&mut streams)?;
    }
    let mut streams = streams.into_iter();
    Ok(destinations
        .iter()
        .map(|destination| match destination.shard.place {
            Place::Local => local.take().expect("opened above"),
            Place::Remote(_) => RowStream::Remote(streams.next().expect("one stream a remote destination")),
        })
        .collect())
}

/// What a write to `[lo, hi)` does first; None: no bound.
#[derive(Clone, Debug)]
pub struct LockRange {
    /// the least key that may be written
    pub lo: Option<Vec<u8>>,
    /// the least key above
    pub hi: Option<Vec<u8>>,
    /// the lock of upserts that must come one after the other
    pub upsert: Option<i64>,
}

impl LockRange {
    /// Of a write to one key.
    pub fn of_key(key: &[u8]) -> Self {
        let KeyRange { lo, hi } = KeyRange::point(key);
        Self { lo: Some(lo), hi, upsert: None }
    }

    /// The range that covers all keys of a write.
    pub fn of(keys: &KeyRanges) -> Self {
        match keys.hull() {
            Some(hull) if !keys.is_all() => Self { lo: Some(hull.lo), hi: hull.hi, upsert: None },
            _ => Self { lo: None, hi: None, upsert: None },
        }
    }

    fn statement(&self, collection: &Collection) -> Statement {
        let call = Call::of("lock_and_check", collection)
            .argument(Bound::OptBytes(self.lo.clone()))
            .argument(Bound::OptBytes(self.hi.clone()));
        let mut statement = call.statement();
        if let Some(number) = self.upsert {
            statement.params.push(Bound::Int8(number));
            statement.sql +=
                &format!(", docshard_internal.lock_upsert({}, ${})", collection.id, statement.params.len());
        }
        statement
    }
}

/// The answer of a write at one destination.
#[derive(Default)]
pub struct Written {
    /// returned rows
    pub rows: Vec<Answer>,
    /// how many rows were written
    pub affected: u64,
}

/// Runs a writing statement at every destination, which `statement` names by the position; the answers come in their order.
///
/// One destination: lock, check and statement in one round trip. Several: first all lock and check, then all write, so
/// that a stale map is noticed before anything is written. A stale answer after that, or in a transaction that has
/// written there before, cannot be run again piecemeal: it is a serialization failure.
///
/// # Errors
/// Stale versions (nothing was written), `WriteConflict`, and whatever the shards raise.
pub fn write<'s>(
    collection: &Collection,
    destinations: &[Destination],
    range: &LockRange,
    statement: impl Fn(usize) -> &'s Statement,
) -> Result<Vec<Written>> {
    let role = grants::require(collection, Level::Write)?;
    let single = destinations.len() == 1;
    let lock = range.statement(collection);
    let retryable = can_retry(destinations);

    // First everybody locks and checks.
    if !single {
        let mut streams = send(destinations, role, WRITE, None, |_| &lock)?;
        let checked = lock_local(collection, destinations, range).and_then(|()| remote::await_all(&mut streams));
        let drained = checked.and_then(|()| drain(&mut streams));
        if let Err(error) = drained {
            if !retryable || !is_stale(&error) {
                return Err(never_again(error));
            }
            // Shards that have only locked give that up again, so that the next attempt finds all as this one did.
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

    // Then everybody writes.
    let preamble = single.then_some(&lock);
    let run = || -> Result<Vec<Written>> {
        let mut streams = send(destinations, role, WRITE, preamble, &statement)?;
        let local = write_local(collection, destinations, &statement)?;
        remote::await_all(&mut streams)?;
        collect(destinations, streams, local)
    };
    run().map_err(|error| if single && retryable { error } else { never_again(error) })
}

/// As the lock of upserts in a [`LockRange`], held here.
///
/// # Errors
/// Those of [`grants::require`].
pub fn lock_upsert_here(collection: &Collection, number: i64) -> Result<()> {
    grants::require(collection, Level::Write)?;
    writing::acquire_upsert(collection.id, number);
    Ok(())
}

/// Runs statements that lock and check themselves (see `ownership::documents`), otherwise as [`write`].
///
/// All are sent at once. A stale answer voids what the others have written, unless their transactions had written before:
/// then it is a serialization failure. So the shard `local`, where nothing can be undone and a statement's stale answer
/// would be an ERROR, is locked first and writes last.
///
/// `is_last`: if it succeeds, the function that the user called writes nothing more. Where that is all of the transaction, a
/// single shard commits at once.
///
/// # Errors
/// As [`write`]; 08007 if it is not known whether a shard that was to commit at once has done so.
pub fn write_checked<'s>(
    collection: &Collection,
    destinations: &[Destination],
    range: &LockRange,
    is_last: bool,
    statement: impl Fn(usize) -> &'s Statement,
) -> Result<Vec<Written>> {
    let role = grants::require(collection, Level::Write)?;
    let retryable = can_retry(destinations);
    lock_local(collection, destinations, range)?;
    let run = || -> Result<Vec<Written>> {
        let share = if is_last && sole_call::may_commit_first() { Share::Whole } else { Share::Alone };
        let mut streams = send(destinations, role, share, None, &statement)?;
        remote::await_all(&mut streams)?;
        let local = write_local(collection, destinations, &statement)?;
        let written = collect(destinations, streams, local)?;
        fault::point("dispatch.answered")?;
        Ok(written)
    };
    run().map_err(|error| failed(destinations, retryable, error))
}

/// Statements as of [`write_checked`], any number of them at each shard, that are sent while others are still being made:
/// shards work meanwhile.
pub struct Feed<'a> {
    collection: &'a Collection,
    destinations: Vec<Destination>,
    retryable: bool,
    role: Role,
    feed: remote::Feed,
}

impl<'a> Feed<'a> {
    /// For any shards of the collection. None if this database is one of them, which could not work meanwhile.
    ///
    /// # Errors
    /// As [`destinations`].
    pub fn open(collection: &'a Collection) -> Result<Option<Self>> {
        let destinations = destinations(collection, &KeyRanges::all())?;
        if destinations.iter().any(|d| d.shard.place == Place::Local) {
            return Ok(None);
        }
        let retryable = can_retry(&destinations);
        let role = grants::require(collection, Level::Write)?;
        Ok(Some(Self { collection, destinations, retryable, role, feed: remote::Feed::default() }))
    }

    /// Sends a shard a statement. Nothing else may be sent to shards before [`Feed::finish`], unless an error ends the
    /// transaction.
    ///
    /// # Errors
    /// As [`write`].
    pub fn send(&mut self, shard: ShardId, statement: Statement) -> Result<()> {
        fault::point("dispatch.feeding")?;
        let destination = self.destinations.iter().find(|d| d.shard.id == shard);
        let (destination, server) = destination
            .and_then(|d| match d.shard.place {
                Place::Remote(server) => Some((d, server)),
                Place::Local => None,
            })
            .ok_or_else(|| {
                Error::new(Kind::InternalError, format!("{} has no shard {shard}", self.collection.namespace))
            })?;
        let borrowed = Borrowed::new(&statement.params);
        let params = borrowed.params_at(destination.version);
        let sent = self.feed.send(&remote::Request {
            server,
            role: self.role,
            preamble: None,
            statement: remote::Statement { sql: &statement.sql, params: &params },
            write: true,
            share: if self.destinations.len() == 1 { Share::Alone } else { Share::Part },
            few_rows: true,
        });
        sent.map_err(|error| failed(&self.destinations, self.retryable, error))
    }

    /// Waits for the end of all that was sent.
    ///
    /// # Errors
    /// As [`write`].
    pub fn finish(self) -> Result<()> {
        self.feed.finish().map_err(|error| failed(&self.destinations, self.retryable, error))
    }
}

fn failed(destinations: &[Destination], retryable: bool, error: Error) -> Error {
    if retryable { undone(destinations, error) } else { never_again(error) }
}

/// Rolls back at all shards what a statement did that found one of them stale, so that it can run again; answers the error
/// that then counts.
fn undone(destinations: &[Destination], error: Error) -> Error {
    if !is_stale(&error) {
        return error;
    }
    for destination in destinations {
        if let Place::Remote(server) = destination.shard.place {
            remote::undo(server);
        }
    }
    if can_retry(destinations) { error } else { conflict(&error) }
}

/// True if nothing has been written anywhere in this transaction that would be lost by running the statement again.
fn can_retry(destinations: &[Destination]) -> bool {
    destinations.iter().all(|d| match d.shard.place {
        Place::Local => true,
        Place::Remote(server) => remote::can_retry(server),
    })
}

fn never_again(error: Error) -> Error {
    if is_stale(&error) { conflict(&error) } else { error }
}

fn collect(
    destinations: &[Destination],
    streams: Vec<remote::Stream>,
    mut local: Option<Written>,
) -> Result<Vec<Written>> {
    let mut streams = streams.into_iter();
    destinations
        .iter()
        .map(|destination| match destination.shard.place {
            Place::Local => Ok(local.take().unwrap_or_default()),
            Place::Remote(_) => {
                let mut stream = streams.next().expect("one stream a remote destination");
                let mut written = Written::default();
                while let Some(row) = stream.next()? {
                    written.rows.push(Answer::Remote(row));
                }
                written.affected = stream.affected();
                Ok(written)
            }
        })
        .collect()
}

fn write_local<'s>(
    collection: &Collection,
    destinations: &[Destination],
    statement: impl Fn(usize) -> &'s Statement,
) -> Result<Option<Written>> {
    let Some(at) = destinations.iter().position(|d| d.shard.place == Place::Local) else { return Ok(None) };
    write_here(collection, &destinations[at], statement(at)).map(Some)
}

/// Reads streams to their ends.
fn drain(streams: &mut [remote::Stream]) -> Result<()> {
    for stream in streams {
        while stream.next()?.is_some() {}
    }
    Ok(())
}

fn lock_local(collection: &Collection, destinations: &[Destination], range: &LockRange) -> Result<()> {
    match destinations.iter().find(|d| d.shard.place == Place::Local) {
        Some(d) => {
            writing::lock_and_check(collection.id, assumed(collection, d), range.lo.as_deref(), range.hi.as_deref())?;
            range.upsert.map_or(Ok(()), |number| writing::lock_upsert(collection.id, number))
        }
        None => Ok(()),
    }
}

/// Writes in this database, in a snapshot that is checked first.
fn write_here(collection: &Collection, destination: &Destination, statement: &Statement) -> Result<Written> {
    let _snapshot = ActiveSnapshot::of_statement();
    placement::check(collection.id, assumed(collection, destination), Look::Active)?;
    fault::point("dispatch.writing")?;
    let borrowed = Borrowed::new(&statement.params);
    let params = borrowed.params_at(destination.version);
    let answer = catch_unique_violation(|| spi::write_in_active_snapshot(&statement.sql, &params))?;
    Ok(Written { affected: answer.processed, rows: answer.rows.into_iter().map(Answer::Local).collect() })
}

/// Runs a statement on rows that this operation has locked at the destination: nobody can have taken them away since, so
/// there is nothing to check, whatever other chunks have come and gone.
///
/// # Errors
/// Whatever the shard raises.
pub fn write_locked(collection: &Collection, destination: &Destination, statement: &Statement) -> Result<Written> {
    let role = grants::require(collection, Level::Write)?;
    let borrowed = Borrowed::new(&statement.params);
    let params = borrowed.params();
    match destination.shard.place {
        Place::Local => {
            let answer = spi::execute(&statement.sql, &params)?;
            Ok(Written { affected: answer.processed, rows: answer.rows.into_iter().map(Answer::Local).collect() })
        }
        Place::Remote(server) => {
            let statement = remote::Statement { sql: &statement.sql, params: &params };
            let share = Share::Alone;
            let mut streams = remote::start(&[remote::Request {
                server,
                role,
                preamble: None,
                statement,
                write: true,
                share,
                few_rows: true,
            }])?;
            remote::await_all(&mut streams)?;
            let mut written = Written::default();
            for mut stream in streams {
                while let Some(row) = stream.next()? {
                    written.rows.push(Answer::Remote(row));
                }
                written.affected += stream.affected();
            }
            Ok(written)
        }
    }
}

fn assumed(collection: &Collection, destination: &Destination) -> Placement {
    Placement { token: collection.token, version: destination.version }
}

/// What a write to one shard is, if nothing else is known.
const WRITE: Share = Share::Alone;

/// Sends to every remote destination its statement, which `statement` names by the position, after `preamble` in the same
/// round trip. A write says what it is to the transaction if it goes to one shard; what it answers is in memory as a whole
/// anyway.
fn send<'s>(
    destinations: &[Destination],
    role: Role,
    share: Share,
    preamble: Option<&Statement>,
    statement: impl Fn(usize) -> &'s Statement,
) -> Result<Vec<remote::Stream>> {
    let remote: Vec<_> = destinations
        .iter()
        .enumerate()
        .filter_map(|(at, d)| {
            let statement = statement(at);
            Some((d.shard.place.server()?, d.version, statement, Borrowed::new(&statement.params)))
        })
        .collect();
    let before = preamble.map(|preamble| (preamble, Borrowed::new(&preamble.params)));
    let params: Vec<_> = remote
        .iter()
        .map(|(_, version, _, own)| {
            (before.as_ref().map(|(_, before)| before.params_at(*version)), own.params_at(*version))
        })
        .collect();
    let requests: Vec<_> = remote
        .iter()
        .zip(&params)
        .map(|((server, _, statement, _), (before_params, params))| remote::Request {
            server: *server,
            role,
            preamble: before
                .as_ref()
                .zip(before_params.as_ref())
                .map(|((preamble, _), params)| remote::Statement { sql: &preamble.sql, params }),
            statement: remote::Statement { sql: &statement.sql, params },
            write: true,
            share: if remote.len() == 1 { share } else { Share::Part },
            few_rows: true,
        })
        .collect();
    start(&requests)
}

/// Sends requests, of which there may be none.
fn start(requests: &[remote::Request<'_>]) -> Result<Vec<remote::Stream>> {
    if requests.is_empty() {
        return Ok(Vec::new());
    }
    fault::point("dispatch.sending")?;
    remote::start(requests)
}
