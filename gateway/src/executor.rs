//! Executes commands in sessions at a router. Other files do not know where commands are executed.

use crate::backend::{Row, ServerError};
use crate::command::Command;
use crate::cursors::{self, Cursors};
use crate::log;
use crate::login;
use crate::memory::Budget;
use crate::pool::{Identity, Lease, Pools, Unavailable, Wanted};
use crate::reply::{self, BAD_VALUE, CURSOR_NOT_FOUND, Failure, HOST_UNREACHABLE, POOL_TIMEOUT, Reply, TYPE_MISMATCH};
use crate::retried;
use crate::router::Routers;
use crate::session::{MAX_NAMED, MAX_STAGES, Part, Place};
use crate::sessions::Sessions;
use crate::shares::Shares;
use bson::{Bson, RawArrayBuf, RawBsonRef, RawDocument, RawDocumentBuf, doc};
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::timeout;

/// What is executed with a command, in the same round trip.
#[derive(Clone, Copy, Default)]
pub struct Within<'a> {
    /// the statement that begins its transaction; if it fails, the command is not run
    pub begin: Option<&'a str>,
    /// the transaction of which it is a part
    pub transaction: Option<Place>,
    /// the statement that is executed after it, if it succeeds
    pub question: Option<&'a str>,
}

#[derive(Debug)]
pub enum Error {
    /// an error to reply
    Failure(Failure),
    /// the client must log in again: its connection is closed, so that its driver opens another one
    LoginNeeded,
}

impl From<Failure> for Error {
    fn from(failure: Failure) -> Self {
        Error::Failure(failure)
    }
}

/// One in this number of the sessions for transactions belongs to a reserve, of which each role gets at most one session.
const RESERVE: usize = 8;
/// The reserve has at most one in this number of the sessions for transactions. With fewer sessions than this there is no
/// reserve.
const MANY_ROLES: usize = 3;

/// The commands that may open a cursor.
const OPENING: &[&str] = &["find", "aggregate", "listCollections", "listIndexes"];

#[derive(Debug)]
pub struct Executor {
    pub routers: Routers,
    pub pools: Arc<Pools>,
    pub cursors: Arc<Cursors>,
    pub sessions: Arc<Sessions>,
    /// the sessions that transactions may use, shared by roles
    pub shares: Shares<String>,
    /// the role of clients without a user
    anonymous: Option<String>,
    /// held while a session is opened for that role, so that no more sessions are opened than are needed
    opening: tokio::sync::Mutex<()>,
}

impl Executor {
    pub fn new(routers: Routers, pools: Arc<Pools>, transaction_lifetime: Duration, anonymous: Option<String>) -> Self {
        let sessions = Arc::new(Sessions::new(transaction_lifetime));
        // A quarter of the sessions is left for commands outside of transactions. The reserve keeps a few roles from using all of
        // the rest.
        let whole = pools.limit() - pools.limit() / 4;
        let shares =
            Shares::with_reserve(whole, pools.limit().div_ceil(2), whole.div_ceil(RESERVE).min(whole / MANY_ROLES));
        let cursors = pools.cursors();
        Self { routers, pools, cursors, sessions, shares, anonymous, opening: tokio::sync::Mutex::default() }
    }

    /// Runs a command outside transactions, for a client of a role.
    pub async fn run_alone(&self, who: &Identity, command: &Command, budget: &mut Budget) -> Result<Reply, Error> {
        match command.name.as_str() {
            "getMore" => self.get_more(who, command, budget).await,
            "killCursors" => self.kill_cursors(who, command, budget).await,
            _ => self.anywhere(who, command, budget).await,
        }
    }

    /// Runs a command in any session of the role.
    pub async fn anywhere(&self, who: &Identity, command: &Command, budget: &mut Budget) -> Result<Reply, Error> {
        let opens_cursor = OPENING.contains(&command.name.as_str());
        let such = Wanted { can_log_in: is_repeated(command), opens_cursor, ..Wanted::default() };
        let mut lease = self.lease(who, such).await?;
        Ok(self.execute(who, &mut lease, Within::default(), command, budget).await?.0)
    }

    /// Forgets and closes what has been idle for too long.
    pub fn sweep(&self) {
        self.cursors.sweep();
        self.sessions.sweep();
        self.pools.close_idle(cursors::IDLE);
    }

    pub async fn lease(&self, who: &Identity, such: Wanted) -> Result<Lease, Error> {
        // Only the anonymous role's sessions are opened by the gateway itself.
        if let Some(role) = &self.anonymous
            && who.generation.is_none()
            && self.pools.is_wanting(role)
            && let Ok(_opening) = timeout(self.pools.patience(), self.opening.lock()).await
            && self.pools.is_wanting(role)
        {
            let session = login::anonymous(&self.routers, self.pools.hold(), role).await.map_err(|refusal| {
                log::LOGINS.line(format_args!("login of the anonymous role: {refusal}"));
                Failure::new(HOST_UNREACHABLE, "the gateway's anonymous role cannot log in at a router")
            })?;
            self.pools.add(role, session);
        }
        self.pools.lease_such(who, such).await.map_err(|unavailable| match unavailable {
            Unavailable::Timeout => {
                let message = "all connections to the router were in use for too long (--pool-size, --pool-timeout)";
                Failure::new(POOL_TIMEOUT, message).into()
            }
            Unavailable::NoSession | Unavailable::Gone | Unavailable::Full => Error::LoginNeeded,
        })
    }

    /// Runs a command in a session. Also returns the row of the question, which is empty if there is none.
    pub async fn execute(
        &self,
        who: &Identity,
        lease: &mut Lease,
        within: Within<'_>,
        command: &Command,
        budget: &mut Budget,
    ) -> Result<(Reply, Row), Error> {
        let Within { begin, transaction, question } = within;
        let session = lease.session();
        let is_numbered = command.number_at.is_some() && session.has_numbered_writes;
        let is_read = command.part == Part::Nothing && is_repeated(command);
        let is_safe = transaction.is_none() && (is_read || is_numbered);
        let plain = (command.number_at.is_some() && !is_numbered).then(|| command.without_number());
        let bytes = plain.as_deref().unwrap_or(&command.bytes);
        let result = match command.is_secret {
            true => {
                session.run_unlogged(&command.database, bytes).await.map(|ran| ran.map(|reply| (reply, Row::new())))
            }
            false => session.run_and_ask(begin, &command.database, bytes, question).await,
        };
        let (reply, answer) = match result {
            Ok(Ok(ran)) => ran,
            // The router restarts, or an administrator has ended the session. The command is a read, or a numbered write, which
            // is executed once: its driver can log in and send it again.
            Ok(Err(error)) if error.fatal && is_safe => return Err(Error::LoginNeeded),
            Err(_) if is_safe => return Err(Error::LoginNeeded),
            Ok(Err(error)) if is_numbered => (failure(&error).reply(), Row::new()),
            Ok(Err(error)) => return Err(failure(&error).into()),
            Err(error) => {
                let message = format!("the connection to the router broke: {error}");
                return Err(Failure::new(HOST_UNREACHABLE, message).into());
            }
        };
        let reply = if is_numbered { retried::labelled(command, reply) } else { reply };
        if let Some(id) = cursor_of(&reply).filter(|id| *id != 0) {
            let excess = self.cursors.insert(&who.role, id, session.id, transaction, namespace_of(&reply));
            if let Some((id, (database, collection))) = excess {
                let kill = doc! { "killCursors": collection, "cursors": [id] }.to_vec().unwrap_or_default();
                let _ = session.run(None, &database, &kill).await;
            }
        }
        // The session is held during this wait, so there are at most as many replies without memory as sessions.
        budget.reply(reply.len()).await?;
        Ok((reply, answer))
    }

    async fn get_more(&self, who: &Identity, command: &Command, budget: &mut Budget) -> Result<Reply, Error> {
        let id = match command.document().get("getMore") {
            Ok(Some(RawBsonRef::Int64(id))) => id,
            Ok(Some(RawBsonRef::Int32(_))) => return Err(no_long("getMore.getMore").into()),
            // The router reports the error of a value that is not an id.
            _ => return self.anywhere(who, command, budget).await,
        };
        let not_found = || Failure::new(CURSOR_NOT_FOUND, format!("cursor id {id} not found"));
        // The router checks the other fields, and then does not find the cursor either.
        let Some((session, transaction)) = self.cursors.find(&who.role, id) else {
            return self.anywhere(who, command, budget).await;
        };
        if transaction.is_some() {
            let message = format!("cursor id {id} was opened in a transaction, and the command is in none");
            return Err(Failure::new((50740, "Location50740"), message).into());
        }
        let mut lease = match self.pools.lease(who, Some(session)).await {
            Ok(lease) => lease,
            Err(Unavailable::Timeout) => {
                let message =
                    "the connection to the router that has the cursor was in use for too long (--pool-timeout)";
                return Err(Failure::new(POOL_TIMEOUT, message).into());
            }
            Err(_) => {
                self.cursors.remove(&who.role, id);
                return Err(not_found().into());
            }
        };
        let (reply, _) = self.execute(who, &mut lease, Within::default(), command, budget).await?;
        if cursor_of(&reply) == Some(0) {
            self.cursors.remove(&who.role, id);
        }
        Ok(reply)
    }

    /// Runs `killCursors`. The cursors may be in several sessions: each session gets the command with its own cursors. The router checks
    /// the command's other fields.
    async fn kill_cursors(&self, who: &Identity, command: &Command, budget: &mut Budget) -> Result<Reply, Error> {
        let Some(ids) = named_cursors(command.document())? else {
            return self.anywhere(who, command, budget).await;
        };
        let mut by_session: BTreeMap<u64, BTreeSet<i64>> = BTreeMap::new();
        for id in &ids {
            // A cursor of a transaction ends with the transaction.
            if let Some((session, None)) = self.cursors.find(&who.role, *id) {
                by_session.entry(session).or_default().insert(*id);
            }
        }
        if by_session.is_empty() {
            let none = of_cursors(command, &BTreeSet::new());
            let reply = self.anywhere(who, &none, budget).await?;
            return Ok(if reply::has_failed(&reply) { reply } else { killed_reply(&ids, &HashSet::new()) });
        }
        let mut killed = HashSet::new();
        for (session, own) in by_session {
            let part = of_cursors(command, &own);
            let Ok(mut lease) = self.pools.lease(who, Some(session)).await else { continue };
            let reply = self.execute(who, &mut lease, Within::default(), &part, budget).await?.0;
            if reply::has_failed(&reply) {
                return Ok(reply);
            }
            for id in listed(&reply, "cursorsKilled") {
                self.cursors.remove(&who.role, id);
                killed.insert(id);
            }
        }
        Ok(killed_reply(&ids, &killed))
    }
}

/// `killCursors` with other cursors.
fn of_cursors(command: &Command, ids: &BTreeSet<i64>) -> Command {
    let mut document = RawDocumentBuf::new();
    for field in command.document() {
        match field {
            Ok((name, _)) if name == "cursors" => {
                let mut array = RawArrayBuf::new();
                ids.iter().for_each(|id| array.push(*id));
                document.append(name, array);
            }
            Ok((name, value)) => document.append(name, value),
            Err(_) => break,
        }
    }
    Command {
        name: command.name.clone(),
        database: command.database.clone(),
        bytes: document.into_bytes(),
        part: Part::Nothing,
        recovery: None,
        is_secret: false,
        number_at: None,
    }
}

/// The reply of `killCursors`, in the order of its list. If a cursor is named twice, only its first occurrence is among those
/// killed.
fn killed_reply(ids: &[i64], killed: &HashSet<i64>) -> Reply {
    let mut left = killed.clone();
    let (gone, unknown): (Vec<i64>, Vec<i64>) = ids.iter().partition(|id| left.remove(id));
    reply::ok(doc! {
        "cursorsKilled": gone, "cursorsNotFound": unknown, "cursorsAlive": Vec::<Bson>::new(), "cursorsUnknown": Vec::<Bson>::new(),
    })
}

fn failure(error: &ServerError) -> Failure {
    match error.sqlstate.as_str() {
        "42883" | "3F000" => {
            let message = format!("the router's extension is older than the gateway: {}", error.message);
            Failure::new(HOST_UNREACHABLE, message)
        }
        _ => error.failure(),
    }
}

/// True for a pipeline that writes, or is longer than the router accepts.
fn is_writing(command: &RawDocument) -> bool {
    let Ok(stages) = command.get_array("pipeline") else { return false };
    let mut stages = stages.into_iter();
    let last = stages.by_ref().take(MAX_STAGES).last();
    let last = last.and_then(|stage| stage.ok()?.as_document()?.iter().next()?.ok());
    stages.next().is_some() || last.is_some_and(|(name, _)| matches!(name.as_str(), "$out" | "$merge"))
}

/// True for a command that drivers send again if its connection is closed.
fn is_repeated(command: &Command) -> bool {
    const READS: &[&str] =
        &["find", "aggregate", "distinct", "count", "listCollections", "listDatabases", "listIndexes"];
    let is_read = READS.contains(&command.name.as_str()) && !is_writing(command.document());
    matches!(command.part, Part::Retryable(_)) || is_read
}

/// The error for an int where a long is required. The router cannot tell the two apart, so the gateway checks.
fn no_long(path: &str) -> Failure {
    Failure::new(TYPE_MISMATCH, format!("BSON field '{path}' is the wrong type 'int', expected type 'long'"))
}

pub fn integer(value: Option<RawBsonRef<'_>>) -> Option<i64> {
    match value? {
        RawBsonRef::Int32(id) => Some(id.into()),
        RawBsonRef::Int64(id) => Some(id),
        _ => None,
    }
}

/// The id of the cursor in a reply.
pub fn cursor_of(reply: &[u8]) -> Option<i64> {
    let cursor = RawDocument::from_bytes(reply).ok()?.get_document("cursor").ok()?;
    integer(cursor.get("id").ok().flatten())
}

/// The namespace of the cursor in a reply.
pub fn namespace_of(reply: &[u8]) -> (String, String) {
    let namespace = RawDocument::from_bytes(reply)
        .ok()
        .and_then(|document| document.get_document("cursor").ok()?.get_str("ns").ok()?.split_once('.'));
    namespace.map(|(database, collection)| (database.to_owned(), collection.to_owned())).unwrap_or_default()
}

/// The ids in a reply's array.
fn listed(reply: &[u8], field: &str) -> HashSet<i64> {
    let ids = RawDocument::from_bytes(reply).and_then(|document| document.get_array(field));
    ids.map(|ids| ids.into_iter().filter_map(|id| integer(id.ok())).collect()).unwrap_or_default()
}

/// The cursors that `killCursors` names; None if the command is malformed, which the router reports.
fn named_cursors(command: &RawDocument) -> Result<Option<Vec<i64>>, Failure> {
    let Ok(list) = command.get_array("cursors") else { return Ok(None) };
    let mut ids = Vec::new();
    for (count, id) in list.into_iter().enumerate() {
        if count == MAX_NAMED {
            return Err(Failure::new(BAD_VALUE, format!("killCursors: more than {MAX_NAMED} cursors")));
        }
        match id {
            Ok(RawBsonRef::Int64(id)) => ids.push(id),
            Ok(RawBsonRef::Null) => {}
            Ok(RawBsonRef::Int32(_)) => return Err(no_long("killCursors.cursors")),
            _ => return Ok(None),
        }
    }
    Ok(Some(ids))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cursors_are_named_in_their_order_and_not_by_millions() {
        let of = |ids: Vec<Bson>| {
            let command = doc! { "killCursors": "c", "cursors": ids }.to_vec().unwrap();
            named_cursors(RawDocument::from_bytes(&command).unwrap())
        };
        assert_eq!(of(vec![7i64.into(), 9i64.into(), Bson::Null, 7i64.into()]).unwrap(), Some(vec![7, 9, 7]));
        assert_eq!(of(vec![7.into()]).unwrap_err().code, 14);
        let reply = killed_reply(&[9, 7, 8, 7], &HashSet::from([7, 8]));
        let reply = RawDocument::from_bytes(&reply).unwrap();
        let ids_of =
            |field| reply.get_array(field).unwrap().into_iter().map(|id| integer(id.ok()).unwrap()).collect::<Vec<_>>();
        assert_eq!((ids_of("cursorsKilled"), ids_of("cursorsNotFound")), (vec![7, 8], vec![9, 7]));
        assert_eq!(of(vec![7i64.into(), "x".into()]).unwrap(), None);
        assert!(of(vec![7i64.into(); MAX_NAMED]).is_ok());
        assert_eq!(of(vec![7i64.into(); MAX_NAMED + 1]).unwrap_err().code, 2);
        let reply = doc! { "cursorsKilled": [1, 2i64], "ok": 1 }.to_vec().unwrap();
        assert_eq!(listed(&reply, "cursorsKilled"), HashSet::from([1, 2]));
    }

    #[test]
    fn a_pipeline_that_is_too_long_is_not_looked_through() {
        let of = |count: usize, last: &str| {
            let mut stages = vec![doc! { "$match": {} }; count];
            stages.push(doc! { last: "c" });
            let command = doc! { "aggregate": "c", "pipeline": stages }.to_vec().unwrap();
            is_writing(RawDocument::from_bytes(&command).unwrap())
        };
        assert!(!of(999, "$match") && of(999, "$out") && of(1000, "$match"));
    }
}
