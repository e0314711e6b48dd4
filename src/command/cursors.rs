//! The cursors of this session, from which `getMore` reads.
//!
//! A cursor over documents is a holdable portal of PostgreSQL's (see `pg::spi::cursor`), so memory does not grow with the
//! result. It ends with the session, or if the transaction that opened it is rolled back. A cursor that has not been used for
//! ten minutes, or half an hour with `noCursorTimeout`, is closed when the session next uses cursors.

use super::config;
use super::reply::{Document, Reply, ReplyNode};
use crate::operation::table::Operation;
use crate::pg::error::{Error, Result};
use crate::pg::security::credentials::random_bytes;
use crate::pg::server;
use crate::pg::spi::cursor;
use docshard_core::error::sqlstate;
use docshard_core::error::{Kind, bail, error};
use docshard_core::sql::param::Param;
use docshard_core::values::document::value::Value;
use std::cell::RefCell;
use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};

/// The default size of a first batch, the same as MongoDB's.
pub const FIRST_BATCH: usize = 101;
/// A batch ends with the document that reaches this size, the same as MongoDB's.
pub const MAX_BATCH_BYTES: usize = 16 * 1024 * 1024;
/// The most documents that are read from a portal at once.
const MAX_STEP: usize = 256;
/// MongoDB's idle timeout of cursors.
const IDLE: Duration = Duration::from_secs(600);
/// The same with `noCursorTimeout`: MongoDB's timeout of the session that such a cursor belongs to.
const LONG_IDLE: Duration = Duration::from_secs(1800);

/// A cursor that may have further documents.
#[derive(Debug)]
pub struct Cursor {
    namespace: String,
    /// None if all rows have been read, or if there never was a portal
    portal: Option<String>,
    /// documents that have been read but not returned
    pending: VecDeque<Document>,
    owner: u32,
    used: Instant,
    may_expire: bool,
    /// documents of shards that cannot be reached are missing
    partial: bool,
}

thread_local! {
    static CURSORS: RefCell<HashMap<i64, Cursor>> = RefCell::new(HashMap::new());
}

#[derive(Debug)]
pub struct Batch {
    documents: Vec<Document>,
    /// 0: this is the last batch
    id: i64,
    partial: bool,
}

impl Batch {
    /// `field` is `firstBatch` for a command that opens a cursor, and `nextBatch` for getMore.
    pub fn reply(self, field: &'static str, namespace: &str) -> Reply {
        let mut cursor = vec![
            (field, ReplyNode::Documents(self.documents)),
            ("id", ReplyNode::Long(self.id)),
            ("ns", ReplyNode::Value(Value::String(namespace.to_owned()))),
        ];
        if self.partial {
            cursor.push(("partialResultsReturned", ReplyNode::Value(Value::Bool(true))));
        }
        Reply::ok().with("cursor", ReplyNode::Object(cursor))
    }
}

#[derive(Debug)]
pub struct Opening<'a> {
    /// the namespace that getMore must give
    pub namespace: &'a str,
    pub batch: usize,
    /// the cursor is closed after its first batch
    pub single_batch: bool,
    pub may_expire: bool,
    /// the call is the client's whole transaction
    pub sole: bool,
}

/// Opens a cursor over the documents that an operation's SQL function returns. A statement in a holdable portal calls the
/// function. Later commands, each in its own transaction, read from the portal. PostgreSQL reads it to its end when the
/// transaction that opened it commits, because snapshots and connections to shards cannot be used after that.
pub fn open(opening: &Opening<'_>, operation: &Operation, request: &str, options: &str) -> Result<Batch> {
    close_idle();
    let id = new_id()?;
    let portal = format!("docshard_cursor_{id}");
    let sql = format!("SELECT docshard.{}($1, $2::json, $3::json)", operation.function);
    cursor::open(&portal, &sql, &[Param::Text(opening.namespace), Param::Text(request), Param::Text(options)])?;
    begin(opening, id, Some(portal), VecDeque::new(), false)
}

/// Opens a cursor over documents in memory.
pub fn open_over(opening: &Opening<'_>, documents: Vec<Document>, partial: bool) -> Result<Batch> {
    close_idle();
    begin(opening, new_id()?, None, documents.into(), partial)
}

fn begin(
    opening: &Opening<'_>,
    id: i64,
    portal: Option<String>,
    pending: VecDeque<Document>,
    partial: bool,
) -> Result<Batch> {
    let mut cursor = Cursor {
        namespace: opening.namespace.to_owned(),
        portal,
        pending,
        owner: server::current_user().to_u32(),
        used: Instant::now(),
        may_expire: opening.may_expire,
        partial,
    };
    let documents = cursor.take(opening.batch)?;
    // As in MongoDB, a first batch of size 0 does not end the cursor, even if there are no documents.
    let may_end = opening.batch > 0 || cursor.portal.is_none();
    let is_last = opening.single_batch || (cursor.is_at_end()? && may_end);
    let batch = Batch { documents, id: if is_last { 0 } else { id }, partial: cursor.partial };
    if is_last {
        cursor.close()?;
    } else {
        if cursor.portal.is_some() && opening.sole {
            cursor::limit_held_memory();
        }
        CURSORS.with_borrow_mut(|cursors| cursors.insert(id, cursor));
    }
    Ok(batch)
}

/// Returns at most `limit` further documents.
pub fn next(id: i64, namespace: &str, limit: Option<usize>) -> Result<Batch> {
    close_idle();
    // The cursor is removed from the table while it is read, so after an error clients cannot read it any more.
    let Some(mut cursor) = CURSORS.with_borrow_mut(|cursors| cursors.remove(&id)) else { return Err(not_found(id)) };
    let put_back = |cursor| CURSORS.with_borrow_mut(|cursors| cursors.insert(id, cursor));
    if cursor.namespace != namespace {
        let message = format!(
            "Requested getMore on namespace '{namespace}', but cursor belongs to a different namespace {}",
            cursor.namespace
        );
        put_back(cursor);
        return Err(Error::new(Kind::Unauthorized, message));
    }
    if cursor.owner != server::current_user().to_u32() {
        put_back(cursor);
        bail!(Kind::Unauthorized, "cursor id {id} was not created by the current role");
    }
    let documents = cursor.take(limit.unwrap_or(usize::MAX)).map_err(|error| gone(id, error))?;
    let is_last = cursor.is_at_end().map_err(|error| gone(id, error))?;
    let batch = Batch { documents, id: if is_last { 0 } else { id }, partial: cursor.partial };
    if is_last {
        cursor.close()?;
    } else {
        cursor.used = Instant::now();
        put_back(cursor);
    }
    Ok(batch)
}

pub fn is_open(id: i64) -> bool {
    CURSORS.with_borrow(|cursors| cursors.contains_key(&id))
}

/// Closes a cursor of this role; returns whether there was one.
pub fn kill(id: i64) -> Result<bool> {
    let owner = server::current_user().to_u32();
    let found = CURSORS.with_borrow_mut(|cursors| match cursors.get(&id) {
        Some(cursor) if cursor.owner == owner => cursors.remove(&id),
        _ => None,
    });
    match found {
        Some(mut cursor) => cursor.close(),
        None => Ok(false),
    }
}

fn not_found(id: i64) -> Error {
    error!(Kind::CursorNotFound, "cursor id {id} not found").with_hint(
        "A cursor exists only in the session that opened it, which a connection pooler may change. It is closed when \
         its transaction is rolled back, or when it has not been used for ten minutes.",
    )
}

/// Reports a missing portal as a missing cursor.
fn gone(id: i64, error: Error) -> Error {
    if error.sqlstate == sqlstate::INVALID_CURSOR_NAME { not_found(id) } else { error }
}

/// Returns an id. Ids differ also between sessions, so that they are unique in the log of a connection pooler.
fn new_id() -> Result<i64> {
    loop {
        // The id is positive, and exact as a double.
        let id = i64::from_ne_bytes(random_bytes()?) & ((1 << 53) - 1);
        if id != 0 && !CURSORS.with_borrow(|cursors| cursors.contains_key(&id)) {
            return Ok(id);
        }
    }
}

/// Closes cursors that have been idle too long. Ignores errors, which mean that a portal was closed already.
fn close_idle() {
    let idle: Vec<Cursor> = CURSORS.with_borrow_mut(|cursors| {
        let is_idle = |cursor: &Cursor| cursor.used.elapsed() > if cursor.may_expire { IDLE } else { LONG_IDLE };
        let ids: Vec<i64> = cursors.iter().filter(|(_, cursor)| is_idle(cursor)).map(|(id, _)| *id).collect();
        ids.iter().filter_map(|id| cursors.remove(id)).collect()
    });
    for mut cursor in idle {
        drop(cursor.close());
    }
}

impl Cursor {
    /// Reads until `count` documents are pending, or enough bytes for one answer.
    fn fill(&mut self, count: usize) -> Result<()> {
        let mut bytes: usize = self.pending.iter().map(|document| document.bytes().len()).sum();
        let mut largest = 1024;
        while self.pending.len() < count && bytes < MAX_BATCH_BYTES {
            let Some(portal) = &self.portal else { return Ok(()) };
            // Read fewer rows at once if documents are large.
            let room = ((MAX_BATCH_BYTES - bytes) / largest).clamp(1, MAX_STEP);
            let wanted = (count - self.pending.len()).min(room);
            let Some(rows) = cursor::fetch(portal, wanted)? else {
                self.portal = None;
                bail!(Kind::CursorNotFound, "the cursor's portal was closed");
            };
            let is_last = rows.len() < wanted;
            self.partial |= cursor::is_partial(portal);
            for row in rows {
                let document = row.bytes(0);
                bytes += document.len();
                largest = largest.max(document.len());
                self.pending.push_back(Document::Stored(document));
            }
            if is_last {
                self.close()?;
            }
        }
        Ok(())
    }

    /// Takes at most `limit` documents that fit into one answer, but at least one if there is one.
    fn take(&mut self, limit: usize) -> Result<Vec<Document>> {
        self.fill(limit)?;
        let mut bytes = 0;
        let mut documents = Vec::new();
        while documents.len() < limit
            && let Some(next) = self.pending.front()
            && (documents.is_empty() || bytes + next.bytes().len() <= MAX_BATCH_BYTES)
        {
            bytes += next.bytes().len();
            documents.extend(self.pending.pop_front());
        }
        config::ordered(documents, &self.namespace)
    }

    fn is_at_end(&mut self) -> Result<bool> {
        self.fill(1)?;
        Ok(self.pending.is_empty() && self.portal.is_none())
    }

    /// Closes the portal; returns whether the cursor was still open.
    fn close(&mut self) -> Result<bool> {
        match self.portal.take() {
            Some(portal) => cursor::close(&portal),
            None => Ok(!self.pending.is_empty()),
        }
    }
}
