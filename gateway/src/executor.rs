//! Executes commands: the one place that knows who does it, which is a router's session today.

use crate::backend::ServerError;
use crate::command::Command;
use crate::cursors::{self, Cursors};
use crate::log;
use crate::login;
use crate::memory::Budget;
use crate::pool::{Identity, Lease, Pools, Unavailable};
use crate::reply::{self, CURSOR_NOT_FOUND, Failure, HOST_UNREACHABLE, POOL_TIMEOUT, Reply};
use crate::router::Routers;
use bson::{Bson, Document, RawBsonRef, RawDocument, doc};
use std::collections::BTreeMap;
use std::sync::Arc;

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

#[derive(Debug)]
pub struct Executor {
    pub routers: Routers,
    pub pools: Arc<Pools>,
    cursors: Cursors,
    /// the role of clients without a user, and the most sessions that it may have
    anonymous: Option<(String, usize)>,
}

impl Executor {
    pub fn new(routers: Routers, pools: Arc<Pools>, anonymous: Option<(String, usize)>) -> Self {
        Self { routers, pools, cursors: Cursors::default(), anonymous }
    }

    /// Runs a command for a client of a role.
    pub async fn run(&self, who: &Identity, command: &Command, budget: &mut Budget) -> Result<Reply, Error> {
        match command.name.as_str() {
            "getMore" => self.get_more(who, command, budget).await,
            "killCursors" => self.kill_cursors(who, command, budget).await,
            _ => {
                let mut lease = self.lease(who).await?;
                self.execute(who, &mut lease, &command.database, &command.bytes, budget).await
            }
        }
    }

    /// Forgets and closes what has been idle for too long.
    pub fn sweep(&self) {
        self.cursors.sweep();
        self.pools.close_idle(cursors::IDLE);
    }

    async fn lease(&self, who: &Identity) -> Result<Lease, Error> {
        // Only the anonymous role's sessions are opened by the gateway itself.
        if let Some((role, most)) = &self.anonymous
            && who.generation.is_none()
            && self.pools.is_wanting(role, *most)
        {
            let session = login::anonymous(&self.routers, role).await.map_err(|refusal| {
                log::LOGINS.line(format_args!("login of the anonymous role: {refusal}"));
                Failure::new(HOST_UNREACHABLE, "the gateway's anonymous role cannot log in at a router")
            })?;
            self.pools.add(role, session);
        }
        self.pools.lease(who, None).await.map_err(|unavailable| match unavailable {
            Unavailable::Timeout => {
                let message = "all connections to the router were in use for too long (--pool-size, --pool-timeout)";
                Failure::new(POOL_TIMEOUT, message).into()
            }
            Unavailable::NoSession | Unavailable::Gone => Error::LoginNeeded,
        })
    }

    async fn execute(
        &self,
        who: &Identity,
        lease: &mut Lease,
        database: &str,
        command: &[u8],
        budget: &mut Budget,
    ) -> Result<Reply, Error> {
        let session = lease.session();
        let reply = match session.run(database, command).await {
            Ok(Ok(reply)) => reply,
            Ok(Err(error)) => return Err(failure(&error).into()),
            Err(error) => {
                let message = format!("the connection to the router broke: {error}");
                return Err(Failure::new(HOST_UNREACHABLE, message).into());
            }
        };
        if let Some(id) = cursor_of(&reply).filter(|id| *id != 0) {
            self.cursors.insert(&who.role, id, session.id);
        }
        // The session waits, too: so there are no more replies without memory than sessions.
        budget.reply(reply.len()).await?;
        Ok(reply)
    }

    async fn get_more(&self, who: &Identity, command: &Command, budget: &mut Budget) -> Result<Reply, Error> {
        let id = integer(command.document().get("getMore").ok().flatten());
        // What is no id is the router's to complain about.
        let Some(id) = id else {
            let mut lease = self.lease(who).await?;
            return self.execute(who, &mut lease, &command.database, &command.bytes, budget).await;
        };
        let not_found = || Failure::new(CURSOR_NOT_FOUND, format!("cursor id {id} not found"));
        let session = self.cursors.find(&who.role, id).ok_or_else(not_found)?;
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
        let reply = self.execute(who, &mut lease, &command.database, &command.bytes, budget).await?;
        if cursor_of(&reply) == Some(0) {
            self.cursors.remove(&who.role, id);
        }
        Ok(reply)
    }

    /// The cursors may be in several sessions: each gets the command with those that it has.
    async fn kill_cursors(&self, who: &Identity, command: &Command, budget: &mut Budget) -> Result<Reply, Error> {
        let document = command.document();
        let ids: Option<Vec<i64>> = document
            .get_array("cursors")
            .ok()
            .and_then(|ids| ids.into_iter().map(|id| integer(id.ok())).collect::<Option<Vec<i64>>>());
        let (Some(ids), Ok(collection)) = (ids, document.get_str("killCursors")) else {
            let mut lease = self.lease(who).await?;
            return self.execute(who, &mut lease, &command.database, &command.bytes, budget).await;
        };
        let (mut killed, mut unknown) = (Vec::new(), Vec::new());
        let mut by_session: BTreeMap<u64, Vec<i64>> = BTreeMap::new();
        for id in ids {
            match self.cursors.find(&who.role, id) {
                Some(session) => by_session.entry(session).or_default().push(id),
                None => unknown.push(id),
            }
        }
        for (session, ids) in by_session {
            let part = doc! { "killCursors": collection, "cursors": ids.clone() };
            let part = part.to_vec().unwrap_or_default();
            let reply = match self.pools.lease(who, Some(session)).await {
                Ok(mut lease) => self.execute(who, &mut lease, &command.database, &part, budget).await?,
                Err(_) => {
                    unknown.extend(ids);
                    continue;
                }
            };
            for id in ids {
                let was = named(&reply, "cursorsKilled", id);
                if was {
                    self.cursors.remove(&who.role, id);
                }
                if was { &mut killed } else { &mut unknown }.push(id);
            }
        }
        Ok(reply::ok(doc! {
            "cursorsKilled": killed, "cursorsNotFound": unknown, "cursorsAlive": Vec::<Bson>::new(), "cursorsUnknown": Vec::<Bson>::new(),
        }))
    }
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

fn integer(value: Option<RawBsonRef<'_>>) -> Option<i64> {
    match value? {
        RawBsonRef::Int32(id) => Some(id.into()),
        RawBsonRef::Int64(id) => Some(id),
        _ => None,
    }
}

/// The id of the cursor in a reply.
fn cursor_of(reply: &[u8]) -> Option<i64> {
    let cursor = RawDocument::from_bytes(reply).ok()?.get_document("cursor").ok()?;
    integer(cursor.get("id").ok().flatten())
}

/// True if a reply's array has this id.
fn named(reply: &[u8], field: &str, id: i64) -> bool {
    let document = Document::from_reader(reply).unwrap_or_default();
    document.get_array(field).is_ok_and(|ids| {
        ids.iter().any(|found| match found {
            Bson::Int32(found) => i64::from(*found) == id,
            Bson::Int64(found) => *found == id,
            _ => false,
        })
    })
}
