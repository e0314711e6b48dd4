//! The cursors of this session: what `find` leaves for `getMore`.
//!
//! A cursor over documents is a holdable portal of PostgreSQL's (see `pg::held`), so memory does not grow with the result.
//! It lives as long as the session, and longer than no rollback of the transaction that opened it; one that nobody asked
//! for ten minutes is closed when the session next uses cursors.

use super::reply::{Node, Reply, integer};
use crate::pg::error::{Error, Result};
use crate::pg::server;
use crate::pg::spi::cursor;
use crate::pg::spi::param::Param;
use docshard_core::error::Kind;
use docshard_core::values::document::value::Value;
use std::cell::RefCell;
use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};

/// Documents of a first batch, unless the command says how many: MongoDB's number.
pub const FIRST_BATCH: usize = 101;
/// Bytes of documents in one answer: a batch ends with the document that reaches it. MongoDB's number.
const MAX_BATCH_BYTES: usize = 16 * 1024 * 1024;
/// Documents read from a portal at once.
const MAX_STEP: usize = 256;
/// How long an unused cursor stays: MongoDB's ten minutes.
const IDLE: Duration = Duration::from_secs(600);

/// A cursor that is not at its end.
#[derive(Debug)]
pub struct Cursor {
    namespace: String,
    /// the portal; None once it has been read to its end, or if there never was one
    portal: Option<String>,
    /// documents that have been read and not handed out
    pending: VecDeque<Vec<u8>>,
    /// the role that opened it
    owner: u32,
    used: Instant,
    may_expire: bool,
}

thread_local! {
    static CURSORS: RefCell<HashMap<i64, Cursor>> = RefCell::new(HashMap::new());
}

/// Some of a cursor's documents.
#[derive(Debug)]
pub struct Batch {
    documents: Vec<Vec<u8>>,
    /// to get more; 0: these are the last
    id: i64,
}

impl Batch {
    /// The answer of a command that opens a cursor (`field` is `firstBatch`) or reads on (`nextBatch`).
    pub fn reply(self, field: &'static str, namespace: &str) -> Reply {
        Reply::ok().with(
            "cursor",
            Node::Object(vec![
                (field, Node::Documents(self.documents)),
                ("id", Node::Value(integer(self.id))),
                ("ns", Node::Value(Value::String(namespace.to_owned()))),
            ]),
        )
    }

    /// All documents there are, in one batch.
    pub fn all(documents: Vec<Vec<u8>>) -> Self {
        Self { documents, id: 0 }
    }
}

/// How a cursor is opened.
#[derive(Debug)]
pub struct Opening<'a> {
    /// the collection's namespace, which `getMore` must name
    pub namespace: &'a str,
    /// documents of the first batch
    pub batch: usize,
    /// there is nothing after the first batch
    pub single_batch: bool,
    /// it is closed when it was not used for long
    pub may_expire: bool,
}

/// Opens a cursor over a statement that returns documents.
///
/// # Errors
/// What the statement raises.
pub fn open(opening: &Opening<'_>, sql: &str, params: &[Param<'_>]) -> Result<Batch> {
    close_idle();
    let id = new_id();
    let portal = format!("docshard_cursor_{id}");
    cursor::open(&portal, sql, params)?;
    begin(opening, id, Some(portal), VecDeque::new())
}

/// Opens a cursor over documents that are there already.
pub fn open_over(opening: &Opening<'_>, documents: Vec<Vec<u8>>) -> Result<Batch> {
    close_idle();
    begin(opening, new_id(), None, documents.into())
}

fn begin(opening: &Opening<'_>, id: i64, portal: Option<String>, pending: VecDeque<Vec<u8>>) -> Result<Batch> {
    let mut cursor = Cursor {
        namespace: opening.namespace.to_owned(),
        portal,
        pending,
        owner: server::current_user().to_u32(),
        used: Instant::now(),
        may_expire: opening.may_expire,
    };
    let documents = cursor.take(opening.batch)?;
    if opening.single_batch || cursor.is_at_end()? {
        cursor.close()?;
        return Ok(Batch { documents, id: 0 });
    }
    CURSORS.with_borrow_mut(|cursors| cursors.insert(id, cursor));
    Ok(Batch { documents, id })
}

/// The next documents of a cursor, at most `limit` of them.
///
/// # Errors
/// `CursorNotFound`, `Unauthorized`.
pub fn next(id: i64, namespace: &str, limit: Option<usize>) -> Result<Batch> {
    close_idle();
    // It is out of the table while it is read, so an error ends it.
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
        return Err(Error::new(Kind::Unauthorized, format!("cursor id {id} was not created by the present role")));
    }
    let documents = cursor.take(limit.unwrap_or(usize::MAX)).map_err(|error| gone(id, error))?;
    if cursor.is_at_end().map_err(|error| gone(id, error))? {
        cursor.close()?;
        return Ok(Batch { documents, id: 0 });
    }
    cursor.used = Instant::now();
    put_back(cursor);
    Ok(Batch { documents, id })
}

/// Closes a cursor; tells whether there was one of that namespace and of the present role.
pub fn kill(id: i64, namespace: &str) -> Result<bool> {
    let owner = server::current_user().to_u32();
    let found = CURSORS.with_borrow_mut(|cursors| match cursors.get(&id) {
        Some(cursor) if cursor.namespace == namespace && cursor.owner == owner => cursors.remove(&id),
        _ => None,
    });
    match found {
        Some(mut cursor) => cursor.close(),
        None => Ok(false),
    }
}

fn not_found(id: i64) -> Error {
    Error::new(Kind::CursorNotFound, format!("cursor id {id} not found")).with_hint(
        "A cursor lives in the session that opened it, and is gone when its transaction was rolled back, when it was not \
         used for ten minutes, or when a connection pooler gave the session to somebody else.",
    )
}

/// A portal that vanished is a cursor that is not found.
fn gone(id: i64, error: Error) -> Error {
    if &error.sqlstate == b"34000" { not_found(id) } else { error }
}

/// An id that tells cursors apart also where several sessions' meet, in a pooler's log say.
fn new_id() -> i64 {
    loop {
        let bytes = bson::oid::ObjectId::new().bytes();
        let mut eight = [0; 8];
        eight.copy_from_slice(&bytes[4..]);
        // The counter last, the process's random value first; positive, and exact as a double too.
        let id = (i64::from_be_bytes(eight) ^ i64::from(std::process::id()) << 24) & ((1 << 53) - 1);
        if id != 0 && !CURSORS.with_borrow(|cursors| cursors.contains_key(&id)) {
            return id;
        }
    }
}

/// Closes what was not used for long. What cannot be closed is gone already.
fn close_idle() {
    let idle: Vec<Cursor> = CURSORS.with_borrow_mut(|cursors| {
        let is_idle = |cursor: &Cursor| cursor.may_expire && cursor.used.elapsed() > IDLE;
        let ids: Vec<i64> = cursors.iter().filter(|(_, cursor)| is_idle(cursor)).map(|(id, _)| *id).collect();
        ids.iter().filter_map(|id| cursors.remove(id)).collect()
    });
    for mut cursor in idle {
        drop(cursor.close());
    }
}

impl Cursor {
    /// Reads ahead until so many documents are pending, or as many as fill an answer.
    fn fill(&mut self, count: usize) -> Result<()> {
        let mut bytes: usize = self.pending.iter().map(Vec::len).sum();
        let mut largest = 1024;
        while self.pending.len() < count && bytes < MAX_BATCH_BYTES {
            let Some(portal) = &self.portal else { return Ok(()) };
            // Few at once where documents are large.
            let room = ((MAX_BATCH_BYTES - bytes) / largest).clamp(1, MAX_STEP);
            let wanted = (count - self.pending.len()).min(room);
            let Some(rows) = cursor::fetch(portal, wanted)? else {
                self.portal = None;
                return Err(Error::new(Kind::CursorNotFound, "the cursor's portal is gone"));
            };
            let is_last = rows.len() < wanted;
            for row in rows {
                let document = row.bytes(0);
                bytes += document.len();
                largest = largest.max(document.len());
                self.pending.push_back(document);
            }
            if is_last {
                self.close()?;
            }
        }
        Ok(())
    }

    /// The next documents: at most so many, at least one if there is one, and no more than fill an answer.
    fn take(&mut self, limit: usize) -> Result<Vec<Vec<u8>>> {
        self.fill(limit)?;
        let mut bytes = 0;
        let mut documents = Vec::new();
        while documents.len() < limit
            && let Some(next) = self.pending.front()
            && (documents.is_empty() || bytes + next.len() <= MAX_BATCH_BYTES)
        {
            bytes += next.len();
            documents.extend(self.pending.pop_front());
        }
        Ok(documents)
    }

    fn is_at_end(&mut self) -> Result<bool> {
        self.fill(1)?;
        Ok(self.pending.is_empty() && self.portal.is_none())
    }

    /// Closes the portal; tells whether the cursor could still be read.
    fn close(&mut self) -> Result<bool> {
        match self.portal.take() {
            Some(portal) => cursor::close(&portal),
            None => Ok(!self.pending.is_empty()),
        }
    }
}
