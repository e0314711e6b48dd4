//! Transactions of several commands. From its first statement to its end, a transaction has a session of its role to itself.
//!
//! Its isolation is REPEATABLE READ, as MongoDB's transactions read from one snapshot, and the second writer of a document fails.
//! As in MongoDB, a statement that fails aborts the transaction.
//!
//! Labels tell drivers what they may repeat. `TransientTransactionError`: the whole transaction. RULE: only if it was certainly not
//! committed. `UnknownTransactionCommitResult`: the commit. Its result was lost, and the next attempt may find it by the status of the
//! transaction's id. There is an id only if the router's own database was written; otherwise a shard has decided, and the result stays
//! unknown.
//!
//! INVARIANT: a session leaves a transaction by a COMMIT or ROLLBACK that the router has confirmed, or is closed. So a transaction leaves
//! nothing behind in its session. Cursors are closed before the commit, which would otherwise store their remaining rows.

use crate::backend::ServerError;
use crate::command::Command;
use crate::cursors::Cursors;
use crate::executor::{Error, Executor, Within, cursor_of, integer, namespace_of};
use crate::memory::Budget;
use crate::pool::{Identity, Wanted};
use crate::recovery::{XID, Xid, token};
use crate::reply::{
    self, BAD_VALUE, COMMAND_FAILED, CURSOR_NOT_FOUND, EXCEEDED_TIME, Failure, HOST_UNREACHABLE, NO_SUCH_TRANSACTION,
    NOT_IN_TRANSACTION, POOL_TIMEOUT, Reply, TRANSACTION_COMMITTED, TRANSIENT, UNKNOWN_RESULT,
};
use crate::session::{self, Part, Place};
use crate::sessions::{Active, Phase, Sessions, Transaction};
use bson::{RawDocument, doc};
use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::OwnedMutexGuard;
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout};

const BEGIN: &str = "BEGIN ISOLATION LEVEL REPEATABLE READ";

/// How long to wait for a ROLLBACK in a session in which no statement runs.
const ROLLBACK: Duration = Duration::from_secs(10);

/// How long a repeated commit waits for the end of the first one.
const PROGRESS: Duration = Duration::from_secs(5);

/// The largest number of open cursors of a transaction.
const MAX_CURSORS: usize = 1_000;

/// Codes after which MongoDB tells drivers to run the transaction again.
pub const TRANSIENT_CODES: &[i32] =
    &[6, 7, 24, 89, 91, 112, 189, 202, 246, 251, 267, 290, 9001, 10107, 11600, 11602, 13435, 13436];

/// A transaction whose phase is locked. When this is dropped the transaction is aborted, unless `keep` is set or it has ended.
struct Locked {
    transaction: Arc<Transaction>,
    phase: OwnedMutexGuard<Phase>,
    sessions: Arc<Sessions>,
    cursors: Arc<Cursors>,
    keep: bool,
}

impl Locked {
    /// Ends the transaction. Returns its session and cursors; None if it was not running.
    fn end(&mut self, phase: Phase) -> Option<Box<Active>> {
        self.sessions.ended(&self.transaction);
        if !matches!(*self.phase, Phase::Active(_)) {
            return None;
        }
        match std::mem::replace(&mut *self.phase, phase) {
            Phase::Active(active) => {
                for (id, ..) in &active.cursors {
                    self.cursors.remove(&self.transaction.role, *id);
                }
                Some(active)
            }
            _ => None,
        }
    }

    /// Rolls the transaction back if it was running. The rollback continues if the caller is dropped.
    async fn abort(mut self) {
        if let Some(active) = self.end(Phase::Aborted) {
            let _ = tokio::spawn(roll_back(active)).await;
        }
    }
}

impl Drop for Locked {
    fn drop(&mut self) {
        if !self.keep
            && let Some(active) = self.end(Phase::Aborted)
            && let Ok(runtime) = tokio::runtime::Handle::try_current()
        {
            runtime.spawn(roll_back(active));
        }
    }
}

/// Rolls a transaction back. A session whose statement has not ended is closed instead, when its lease is dropped.
async fn roll_back(mut active: Box<Active>) {
    let session = active.lease.session();
    if !session.is_running() && session.end().is_none() {
        let _ = timeout(ROLLBACK, session.query(&["ROLLBACK"], &mut Vec::new())).await;
    }
}

fn aborted(number: i64) -> Failure {
    let message = format!(
        "Transaction {number} has been aborted: by an error, by a new transaction of its session, by killSessions, or at its time limit"
    );
    Failure::new(NO_SUCH_TRANSACTION, message).labelled(TRANSIENT)
}

fn committed(number: i64) -> Failure {
    Failure::new(TRANSACTION_COMMITTED, format!("Transaction {number} has been committed"))
}

fn unknowable(number: i64) -> Failure {
    let message = format!(
        "the connection to the router broke while it committed transaction {number}; whether it did is not known"
    );
    Failure::new(NO_SUCH_TRANSACTION, message)
}

/// Labels an error of a statement within a transaction.
fn transient(mut failure: Failure) -> Failure {
    if TRANSIENT_CODES.contains(&failure.code) && !failure.labels.contains(&TRANSIENT) {
        failure.labels.push(TRANSIENT);
    }
    failure
}

impl Executor {
    /// Runs a command for a client of a role, within a transaction or not.
    pub async fn run(
        &self,
        who: &Identity,
        connection: i32,
        command: &Command,
        budget: &mut Budget,
    ) -> Result<Reply, Error> {
        let is_within = matches!(command.part, Part::Transaction { .. });
        if !is_within && let Some(answered) = self.of_sessions(who, command, budget).await {
            return answered;
        }
        match command.part {
            Part::Transaction { place, start } => {
                return self.run_within(who, connection, command, (place, start), budget).await;
            }
            _ if session::is_end(&command.name) => {
                let message = format!("{} must be run within a transaction", command.name);
                return Err(Failure::new(COMMAND_FAILED, message).into());
            }
            Part::Retryable(place) => self.note_write(who, place).await?,
            Part::Nothing => {}
        }
        self.run_alone(who, command, budget).await
    }

    /// Refuses a client whose login has ended: it has no part in the sessions of the role's present clients.
    pub fn require_current(&self, who: &Identity) -> Result<(), Error> {
        if who.generation.is_some() && !self.pools.is_current(who) { Err(Error::LoginNeeded) } else { Ok(()) }
    }

    /// Runs a statement of a transaction, its commit or its abort.
    async fn run_within(
        &self,
        who: &Identity,
        connection: i32,
        command: &Command,
        (place, start): (Place, bool),
        budget: &mut Budget,
    ) -> Result<Reply, Error> {
        self.require_current(who)?;
        if session::is_end(&command.name) {
            return self.end(who, connection, command, place).await;
        }
        if !session::is_allowed(&command.name, &command.database, command.document()) {
            let message =
                format!("Cannot run '{}' in a multi-document transaction, or with these arguments.", command.name);
            return Err(Failure::new(NOT_IN_TRANSACTION, message).into());
        }
        let mut locked = match start {
            true => self.begin(who, connection, place).await?,
            false => self.lock(who, connection, place).await.map_err(|error| match error {
                // No commit was sent, so the transaction cannot have been committed.
                Error::Failure(failure) => transient(failure).into(),
                other => other,
            })?,
        };
        let transaction = locked.transaction.clone();
        let Phase::Active(active) = &mut *locked.phase else {
            return Err(match *locked.phase {
                Phase::Committed => committed(place.number),
                Phase::Unknown(_) => unknowable(place.number),
                _ => aborted(place.number),
            }
            .into());
        };
        let result = tokio::select! {
            result = self.statement(who, active, command, start, place, budget) => result,
            () = transaction.killed() => Err(aborted(place.number).into()),
        };
        let result = match result {
            Ok(reply) if !reply::has_failed(&reply) => {
                let reply = reply::with_document(reply, "recoveryToken", &token(active.xid.as_ref()));
                locked.keep = true;
                return Ok(reply);
            }
            Ok(reply) => {
                let is_transient = reply::code_of(&reply).is_some_and(|code| TRANSIENT_CODES.contains(&code));
                Ok(reply::relabelled(&reply, TRANSIENT, is_transient))
            }
            Err(Error::Failure(failure)) => Err(transient(failure).into()),
            Err(error) => Err(error),
        };
        locked.abort().await;
        result
    }

    /// Commits or aborts a transaction.
    async fn end(&self, who: &Identity, connection: i32, command: &Command, place: Place) -> Result<Reply, Error> {
        let is_commit = command.name == "commitTransaction";
        match (self.lock(who, connection, place).await, &command.recovery) {
            (Ok(locked), _) if is_commit => self.commit(who, locked).await,
            (Ok(locked), _) => self.abort(locked).await,
            // The transaction is not known here: it was begun at another gateway, or before a restart of this one.
            (Err(Error::Failure(failure)), Some(xid))
                if is_commit && failure.code == NO_SUCH_TRANSACTION.0 && failure.labels.is_empty() =>
            {
                match self.outcome(who, place.number, xid).await? {
                    Some(Phase::Committed) => Ok(reply::ok(doc! {})),
                    Some(_) => Err(aborted(place.number).into()),
                    None => Err(failure.into()),
                }
            }
            (Err(error), _) => Err(error),
        }
    }

    async fn begin(&self, who: &Identity, connection: i32, place: Place) -> Result<Locked, Error> {
        let (transaction, phase, before) = self.sessions.begin(&who.role, place, connection)?;
        let mut locked = self.locked(transaction, phase);
        if let Some(before) = before {
            let _ = self.kill(before).await;
        }
        let full = |_| {
            let message = "too many transactions at a time (--pool-size)";
            Failure::new(POOL_TIMEOUT, message).labelled(TRANSIENT)
        };
        let share = timeout(self.pools.patience(), self.shares.take(&who.role, 1)).await.map_err(full)?;
        let such = Wanted { can_log_in: true, ..Wanted::default() };
        let mut lease = self.lease(who, such).await.map_err(|error| match error {
            Error::Failure(failure) => transient(failure).into(),
            other => other,
        })?;
        lease.pin();
        let active = Active { lease, xid: None, cursors: Vec::new(), _share: share };
        *locked.phase = Phase::Active(Box::new(active));
        Ok(locked)
    }

    fn locked(&self, transaction: Arc<Transaction>, phase: OwnedMutexGuard<Phase>) -> Locked {
        let keep = false;
        Locked { transaction, phase, sessions: self.sessions.clone(), cursors: self.cursors.clone(), keep }
    }

    /// Locks the phase of a transaction; waits for the end of another statement of it.
    async fn lock(&self, who: &Identity, connection: i32, place: Place) -> Result<Locked, Error> {
        let transaction = self.sessions.find(&who.role, place, connection)?;
        let busy = |_| {
            let message = "another command of the transaction runs, perhaps its commit";
            Failure::new(EXCEEDED_TIME, message).labelled(UNKNOWN_RESULT)
        };
        let phase = timeout(self.pools.patience(), transaction.phase.clone().lock_owned()).await.map_err(busy)?;
        let is_others = matches!(&*phase, Phase::Active(active) if who.generation.is_some_and(|own| own != active.lease.generation()));
        let mut locked = self.locked(transaction, phase);
        // The router has ended the sessions of the login that began the transaction, or the transaction was killed. Dropping
        // `locked` aborts the transaction.
        if is_others || locked.transaction.is_killed() && matches!(*locked.phase, Phase::Active(_)) {
            return Err(aborted(place.number).into());
        }
        locked.keep = !matches!(*locked.phase, Phase::Active(_));
        Ok(locked)
    }

    async fn statement(
        &self,
        who: &Identity,
        active: &mut Active,
        command: &Command,
        start: bool,
        place: Place,
        budget: &mut Budget,
    ) -> Result<Reply, Error> {
        // The router has ended the session, for example by the role's idle_in_transaction_session_timeout. Nothing was sent.
        if active.lease.session().end().is_some() {
            return Err(aborted(place.number).into());
        }
        if active.cursors.len() >= MAX_CURSORS && !matches!(command.name.as_str(), "getMore" | "killCursors") {
            return Err(Failure::new(BAD_VALUE, "the transaction has too many open cursors").into());
        }
        let asked =
            if command.name == "getMore" { integer(command.document().get("getMore").ok().flatten()) } else { None };
        if let Some(id) = asked {
            let failure = match self.cursors.find(&who.role, id) {
                Some((_, Some(owner))) if owner == place => None,
                Some((_, None)) => Some(((50739, "Location50739"), "was not opened in this transaction")),
                Some(_) => Some(((50741, "Location50741"), "was opened in another transaction")),
                None => Some((CURSOR_NOT_FOUND, "was not found")),
            };
            if let Some((code, what)) = failure {
                return Err(Failure::new(code, format!("cursor id {id} {what}")).into());
            }
        }
        let begin = start.then_some(BEGIN);
        let question = (active.xid.is_none() && is_write(&command.name)).then_some(XID);
        let within = Within { begin, transaction: Some(place), question };
        let (reply, answer) = self.execute(who, &mut active.lease, within, command, budget).await?;
        active.xid = active.xid.take().or_else(|| Xid::of_row(&answer));
        let open = cursor_of(&reply);
        match (asked, open) {
            (Some(id), Some(0)) => {
                active.cursors.retain(|(known, ..)| *known != id);
                self.cursors.remove(&who.role, id);
            }
            (None, Some(id)) if id != 0 => {
                let (database, collection) = namespace_of(&reply);
                active.cursors.push((id, database, collection));
            }
            _ => {}
        }
        if command.name == "killCursors" && !reply::has_failed(&reply) {
            let killed = killed_cursors(&reply);
            active.cursors.retain(|(known, ..)| !killed.contains(known));
            killed.into_iter().for_each(|id| self.cursors.remove(&who.role, id));
        }
        Ok(reply)
    }

    async fn abort(&self, locked: Locked) -> Result<Reply, Error> {
        let number = locked.transaction.place.number;
        match *locked.phase {
            Phase::Active(_) => {
                locked.abort().await;
                Ok(reply::ok(doc! {}))
            }
            Phase::Committed => Err(committed(number).into()),
            Phase::Aborted => Err(aborted(number).into()),
            Phase::Unknown(_) => Err(unknowable(number).into()),
        }
    }

    async fn commit(&self, who: &Identity, mut locked: Locked) -> Result<Reply, Error> {
        let number = locked.transaction.place.number;
        match &*locked.phase {
            // The commit continues even if the client does not wait.
            Phase::Active(_) => match tokio::spawn(commit(locked)).await {
                Ok(result) => Ok(result?),
                Err(_) => Err(Failure::new(HOST_UNREACHABLE, "the commit has failed").labelled(UNKNOWN_RESULT).into()),
            },
            Phase::Committed => Ok(reply::ok(doc! {})),
            Phase::Aborted => Err(aborted(number).into()),
            Phase::Unknown(None) => Err(unknowable(number).into()),
            Phase::Unknown(Some(xid)) => match self.outcome(who, number, &xid.clone()).await? {
                Some(phase) => {
                    let is_committed = matches!(phase, Phase::Committed);
                    *locked.phase = phase;
                    if is_committed { Ok(reply::ok(doc! {})) } else { Err(aborted(number).into()) }
                }
                None => Err(unknowable(number).into()),
            },
        }
    }

    /// Whether the transaction with this id was committed or aborted; None if the router does not know. An error if the
    /// transaction is still in progress.
    async fn outcome(&self, who: &Identity, number: i64, xid: &Xid) -> Result<Option<Phase>, Error> {
        match self.status(who, xid).await?.as_deref() {
            Some("committed") => Ok(Some(Phase::Committed)),
            Some("aborted") => Ok(Some(Phase::Aborted)),
            Some("in progress") => {
                let message = format!("transaction {number} is being committed");
                Err(Failure::new(EXCEEDED_TIME, message).labelled(UNKNOWN_RESULT).into())
            }
            _ => Ok(None),
        }
    }

    /// What the router says of a transaction's id; None if it does not know the id any more.
    async fn status(&self, who: &Identity, xid: &Xid) -> Result<Option<String>, Error> {
        let until = Instant::now() + PROGRESS;
        let sql = xid.status();
        loop {
            let unknown = |failure: Failure| Failure { labels: vec![UNKNOWN_RESULT], ..failure };
            let mut lease = self.lease(who, Wanted::default()).await.map_err(|error| match error {
                Error::Failure(failure) => unknown(failure).into(),
                other => other,
            })?;
            let mut row = Vec::new();
            let result = lease.session().query(&[&sql], &mut row).await;
            drop(lease);
            match result {
                Ok(Ok(_)) => {}
                Ok(Err(error)) => return Err(unknown(error.failure()).into()),
                Err(error) => return Err(unknown(Failure::new(HOST_UNREACHABLE, error.to_string())).into()),
            }
            let [status, timeline, system] = row.as_slice() else { return Ok(None) };
            if *timeline != xid.timeline.as_bytes() || *system != xid.system.as_bytes() {
                return Ok(None);
            }
            let status = String::from_utf8_lossy(status).into_owned();
            if status != "in progress" || Instant::now() >= until {
                return Ok(Some(status));
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    /// Begins to abort a transaction, and cancels its statement. A commit is not cancelled, but waited for. The result ends with the
    /// transaction.
    ///
    /// INVARIANT: a transaction that is marked as killed is ended by the task that begins here, also if the caller is dropped because its client
    /// leaves.
    pub fn kill(&self, transaction: Arc<Transaction>) -> JoinHandle<()> {
        let (sessions, cursors) = (self.sessions.clone(), self.cursors.clone());
        transaction.kill();
        tokio::spawn(async move {
            let phase = transaction.phase.clone().lock_owned().await;
            if matches!(*phase, Phase::Active(_)) {
                Locked { transaction, phase, sessions, cursors, keep: false }.abort().await;
            }
        })
    }

    /// Aborts the transactions whose time is over.
    pub fn abort_overdue(&self) {
        self.sessions.overdue().into_iter().for_each(|transaction| drop(self.kill(transaction)));
    }

    /// Notes a numbered write outside of transactions: it ends an older transaction of its session.
    async fn note_write(&self, who: &Identity, place: Place) -> Result<(), Error> {
        self.require_current(who)?;
        if let Some(before) = self.sessions.note_write(&who.role, place)? {
            let _ = self.kill(before).await;
        }
        Ok(())
    }
}

/// The cursors that a reply of `killCursors` reports as closed.
fn killed_cursors(reply: &[u8]) -> HashSet<i64> {
    let Ok(reply) = RawDocument::from_bytes(reply) else { return HashSet::new() };
    let killed = reply.get_array("cursorsKilled").into_iter().flatten();
    killed.filter_map(|id| integer(id.ok())).collect()
}

async fn commit(mut locked: Locked) -> Result<Reply, Failure> {
    let number = locked.transaction.place.number;
    let Phase::Active(active) = &mut *locked.phase else { return Err(aborted(number)) };
    let cursors = active.cursors.clone();
    let session = active.lease.session();
    for (id, database, collection) in cursors {
        let kill = doc! { "killCursors": collection, "cursors": [id] }.to_vec().unwrap_or_default();
        let _ = session.run(None, &database, &kill).await;
    }
    if session.is_running() || session.end().is_some() {
        return Err(aborted(number));
    }
    let mut rows = Vec::new();
    let result = session.query(&[XID, "COMMIT"], &mut rows).await;
    let lost = |failure: Failure| (Phase::Unknown(Xid::of_row(&rows)), Err(failure.labelled(UNKNOWN_RESULT)));
    let (phase, result) = match result {
        Ok(Ok(tag)) if tag == "COMMIT" => (Phase::Committed, Ok(reply::ok(doc! {}))),
        Ok(Ok(_)) => (Phase::Aborted, Err(aborted(number))),
        // The session ended before the first of the two statements returned a row, and so before the commit.
        Ok(Err(error)) if error.fatal && rows.is_empty() => (Phase::Aborted, Err(aborted(number))),
        Ok(Err(error)) if error.is_outcome_unknown() => lost(error.failure()),
        Ok(Err(error)) => (Phase::Aborted, Err(rolled_back(&error))),
        Err(error) => lost(Failure::new(
            HOST_UNREACHABLE,
            format!("the connection to the router broke during the commit: {error}"),
        )),
    };
    // Dropping the lease returns the session to the pool, or closes it.
    drop(locked.end(phase));
    result
}

/// True for commands that a transaction may write with.
fn is_write(name: &str) -> bool {
    !matches!(name, "find" | "getMore" | "aggregate" | "distinct" | "killCursors")
}

/// The error of a commit that PostgreSQL has refused.
fn rolled_back(error: &ServerError) -> Failure {
    let failure = error.failure();
    if error.is_transient() { failure.labelled(TRANSIENT) } else { failure }
}
