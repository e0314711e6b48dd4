//! Writes one document that no other transaction has locked: the option `skipLocked`, for queues.
//!
//! A shard's statement reads the keys of matching documents in order, without locks, and tries to lock each document by its key
//! without waiting, as `FOR UPDATE SKIP LOCKED` of PostgreSQL does. The first one that it gets is written by the same
//! statement. What is locked is the newest version, which must still match the filter and have its place in the sort.
//!
//! With several shards, each first returns the place of its first match, locked or not. Then the shard with the least place takes a
//! document, but none beyond the least place of the other shards. If all documents up to that bound are locked, it returns the place of its
//! next one, and the shard that now has the least place is tried. So every document before the one that is taken was locked when it was
//! tried, and no other document is ever locked. Without a sort all places are equal.
//!
//! If a shard had no document to lock, its part of the transaction is rolled back, so that it takes no part in the commit.

use crate::catalog::cache;
use crate::pg::error::{Error, Result};
use crate::pg::transaction::snapshot;
use crate::remote;
use crate::router::dispatch::reading;
use crate::router::dispatch::writing::{self, LockRange};
use crate::router::session;
use crate::router::writes::locked::{self, BEYOND};
use docshard_core::routing::model::Collection;
use docshard_core::routing::plan::conditions::Conditions;
use docshard_core::routing::plan::destination::Destination;
use docshard_core::routing::plan::divided_scan;
use docshard_core::routing::plan::document_key::DocumentKey;
use docshard_core::routing::plan::order::column_order;
use docshard_core::routing::plan::search::Search;
use docshard_core::routing::plan::select::{self, UNKNOWN_LIMIT};
use docshard_core::routing::plan::statement::Statement;
use docshard_core::routing::protocol::checked::Parameter;
use docshard_core::routing::protocol::sql;
use docshard_core::routing::request::modification::{Write, WriteResult};
use docshard_core::sql::column::Column;

/// After this many attempts the bound between shards is dropped: a transaction may have locked thousands of documents, and each
/// attempt is a round trip.
const BOUNDED_ATTEMPTS: usize = 32;

/// A row with a place.
const PLACE: &[Column] = &[Column::BYTES];

/// A shard that may have a document, and the least place that this document can have.
struct Head {
    place: Vec<u8>,
    destination: Destination,
}

/// The answer of a shard.
enum Answer {
    Written(WriteResult),
    /// all documents up to the bound are locked; the place of the next one
    Beyond(Vec<u8>),
    Nothing,
}

/// Writes a document that no other transaction has locked; the result is empty if there is none.
pub fn write(collection: &Collection, write: &Write<'_>) -> Result<WriteResult> {
    let search = session::search(collection, write.query)?;
    let mut destinations = search.destinations()?;
    if destinations.len() < 2 {
        let Some(only) = destinations.pop() else { return Ok(WriteResult::default()) };
        return Ok(match take(&search, write, &only, None)? {
            Answer::Written(result) => result,
            Answer::Beyond(_) | Answer::Nothing => WriteResult::default(),
        });
    }
    let mut heads = heads(&search, write, destinations)?;
    let mut attempts = 0;
    while let Some(first) = (0..heads.len()).min_by_key(|at| &heads[*at].place) {
        let head = heads.remove(first);
        attempts += 1;
        let bound = heads.iter().map(|other| &other.place).min().filter(|_| attempts <= BOUNDED_ATTEMPTS);
        match take(&search, write, &head.destination, bound)? {
            Answer::Written(result) => return Ok(result),
            Answer::Beyond(place) => heads.push(Head { place, ..head }),
            Answer::Nothing => {}
        }
    }
    Ok(WriteResult::default())
}

/// Returns the shards that have a match, and their first places. The process id rotates the order of shards with equal places, so
/// that processes begin with different ones.
fn heads(search: &Search<'_>, write: &Write<'_>, mut destinations: Vec<Destination>) -> Result<Vec<Head>> {
    let first = std::process::id() as usize % destinations.len();
    destinations.rotate_left(first);
    let (candidates, conditions) = candidates(search, write)?;
    let statement = conditions.into_statement(format!("SELECT c.place FROM ({candidates}) AS c LIMIT 1"), PLACE);
    let streams = reading::read(search.collection, &destinations, &statement)?;
    let mut heads = Vec::new();
    for (mut stream, destination) in streams.into_iter().zip(destinations) {
        if let Some(row) = stream.rows()?.first() {
            heads.push(Head { place: row.bytes(0).to_vec(), destination });
        }
    }
    Ok(heads)
}

/// Writes the first document of a shard that is not locked, if its place is not beyond the bound.
fn take(search: &Search<'_>, write: &Write<'_>, destination: &Destination, bound: Option<&Vec<u8>>) -> Result<Answer> {
    let collection = search.collection;
    let statement = statement(search, write, bound)?;
    let range = LockRange::of(&search.keys);
    let written = writing::write(collection, std::slice::from_ref(destination), &range, |_| &statement)?;
    let row = written.first().and_then(|written| written.rows.first());
    let beyond = row.and_then(|row| row.get(BEYOND)).map(<[u8]>::to_vec);
    match &beyond {
        Some(place) if bound.is_none_or(|bound| place <= bound) => {
            return Err(Error::protocol_violation("a shard returned a place that it was to search"));
        }
        Some(_) => {}
        None => {
            if let Some(row) = row {
                return locked::finish(collection, row, destination, write).map(Answer::Written);
            }
        }
    }
    if let Some(server) = cache::shard(destination.shard)?.oid()
        && snapshot::per_statement()
    {
        remote::undo(server);
    }
    Ok(beyond.map_or(Answer::Nothing, Answer::Beyond))
}

/// Returns the statement that locks and writes a document.
fn statement(search: &Search<'_>, write: &Write<'_>, bound: Option<&Vec<u8>>) -> Result<Statement> {
    let collection = search.collection;
    let (candidates, mut conditions) = candidates(search, write)?;
    let mut terms = "t.skey = c.skey AND t.id = c.id".to_owned();
    let mut end = String::new();
    if let Some(bound) = bound {
        let bound = conditions.param(Parameter::Bytes(bound.clone()));
        terms += &format!(" AND c.place <= {bound}");
        end = format!(
            " UNION ALL SELECT NULL::tid, NULL::bytea, NULL::bytea, NULL::jsonb, c.place WHERE c.place > {bound}"
        );
    }
    if !search.filter().is_empty() {
        terms += " AND ";
        terms += &conditions.matched("t.doc", write.query);
    }
    if let Some((_, text)) = &write.sort {
        let text = conditions.param(Parameter::Text(text.clone()));
        terms += &format!(" AND {} = c.place", sql::sort_key("t.doc", text));
    }
    // A subquery that locks rows is joined by a nested loop, which keeps the candidates' order and ends with the first row.
    let matched = format!(
        "matched AS MATERIALIZED (SELECT l.* FROM ({candidates}) AS c, LATERAL (\
           SELECT h.*, NULL::bytea AS beyond FROM (\
             SELECT t.ctid AS place, t.skey, t.id, t.doc FROM {} t WHERE {terms} FOR UPDATE SKIP LOCKED) AS h{end}\
         ) AS l LIMIT 1)",
        collection.table()
    );
    Ok(locked::statement(collection, write, &matched, conditions, "w.beyond"))
}

/// Returns the SELECT of the keys and places of matching documents in the order of the sort. If an index has this order, it reads only the
/// rows that are fetched.
fn candidates(search: &Search<'_>, write: &Write<'_>) -> Result<(String, Conditions)> {
    let (collection, table) = (search.collection, search.collection.table());
    let by_key = DocumentKey::of_search(search).is_some();
    let Some(sort) = &write.sort else {
        let columns = "t.skey, t.id, ''::bytea AS place";
        let divided = if by_key { None } else { divided_scan::of_search(search, None) };
        let Some((conditions, scan)) = divided else {
            let conditions = Conditions::of_search(search)?;
            let sql = format!("SELECT {columns} FROM {table} t WHERE {}{UNKNOWN_LIMIT}", conditions.sql());
            return Ok((sql, conditions));
        };
        let part = |terms: &str| format!("(SELECT {columns} FROM {table} t WHERE {terms}{UNKNOWN_LIMIT})");
        let entries = scan.entries.as_deref().map(|entries| format!(" UNION ALL {}", part(entries)));
        return Ok((part(&scan.btree) + &entries.unwrap_or_default(), conditions));
    };
    let is_in_column = column_order(collection, search.filter(), &sort.0).is_some();
    let scans = if by_key || is_in_column { None } else { divided_scan::ordered(search, &sort.0, None) };
    if let Some((mut conditions, scans)) = scans {
        let text = conditions.param(Parameter::Text(sort.1.clone()));
        return Ok((select::in_order(collection, &scans, "t.skey, t.id", &text), conditions));
    }
    let mut conditions = Conditions::of_search(search)?;
    let order = select::order_by(collection, search.filter(), sort, &mut conditions);
    let text = conditions.param(Parameter::Text(sort.1.clone()));
    let place = sql::sort_key("t.doc", text);
    let terms = conditions.sql();
    let sql = format!("SELECT t.skey, t.id, {place} AS place FROM {table} t WHERE {terms}{order}{UNKNOWN_LIMIT}");
    Ok((sql, conditions))
}
