//! The sessions of clients that have transactions, each with its last transaction, running or ended.
//!
//! A session is named by a UUID that a client has chosen, and belongs to the client's role. Its last transaction is remembered, so that a
//! commit that is sent again, also by another connection, gets the same answer.
//!
//! INVARIANT: a role finds only its own sessions. Their number is limited for a role and for all; those used least recently are forgotten
//! first, never one whose transaction is running.

use crate::pool::Lease;
use crate::recovery::Xid;
use crate::reply::{ALREADY_STARTED, Failure, NO_SUCH_TRANSACTION, TRANSACTION_TOO_OLD};
use crate::session::{Id, Place};
use crate::shares::Share;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::{OwnedMutexGuard, watch};
use tokio::time::Instant;

/// How long a session is remembered after its last use: what `hello` announces.
const REMEMBERED: Duration = Duration::from_secs(60 * crate::hello::SESSION_MINUTES as u64);

/// The largest numbers of sessions of a role, and of all roles.
const MAX_OF_ROLE: usize = 10_000;
const MAX_SESSIONS: usize = 100_000;

/// How long another connection may continue a transaction after the connection of its last statement was closed.
const ORPHANED: Duration = Duration::from_secs(10);

#[derive(Debug)]
pub enum Phase {
    Active(Box<Active>),
    Committed,
    Aborted,
    /// the connection broke during the commit
    Unknown(Option<Xid>),
}

#[derive(Debug)]
pub struct Active {
    pub lease: Lease,
    /// its id; None until it has written to the router's own database
    pub xid: Option<Xid>,
    /// open cursors: id, database and collection
    pub cursors: Vec<(i64, String, String)>,
    /// its share of the sessions that transactions may use
    pub _share: Share,
}

#[derive(Debug)]
pub struct Transaction {
    pub role: String,
    pub place: Place,
    /// locked while a statement runs
    pub phase: Arc<tokio::sync::Mutex<Phase>>,
    /// true: whatever runs is cancelled, and the transaction is aborted
    killed: watch::Sender<bool>,
    /// the transaction has ended, so it has no session at the router
    is_over: AtomicBool,
    use_: Mutex<Use>,
}

#[derive(Debug)]
struct Use {
    connection: i32,
    /// the end of the transaction's time
    limit: Instant,
    /// set when its connection is closed
    orphaned: Option<Instant>,
}

impl Transaction {
    fn usage(&self) -> MutexGuard<'_, Use> {
        self.use_.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn kill(&self) {
        self.killed.send_replace(true);
    }

    pub fn is_killed(&self) -> bool {
        *self.killed.borrow()
    }

    /// Returns when it is killed.
    pub async fn killed(&self) {
        // `self` owns the sender, so the wait ends only by a kill.
        let _ = self.killed.subscribe().wait_for(|killed| *killed).await;
    }

    fn is_overdue(&self, now: Instant) -> bool {
        let usage = self.usage();
        now >= usage.limit || usage.orphaned.is_some_and(|since| now >= since + ORPHANED)
    }
}

#[derive(Debug)]
struct Entry {
    last: Arc<Transaction>,
    used: Instant,
}

#[derive(Debug, Default)]
struct State {
    roles: HashMap<String, HashMap<Id, Entry>>,
    count: usize,
    /// the transactions that may have a session at the router
    running: Vec<Arc<Transaction>>,
}

#[derive(Debug)]
pub struct Sessions {
    state: Mutex<State>,
    lifetime: Duration,
}

fn no_such(place: Place) -> Failure {
    let message = format!(
        "Transaction {} is not known: it has been aborted, or the gateway was restarted, or has forgotten the session",
        place.number
    );
    Failure::new(NO_SUCH_TRANSACTION, message)
}

impl Sessions {
    pub fn new(lifetime: Duration) -> Self {
        Self { state: Mutex::default(), lifetime }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins a transaction. Returns it; its locked phase, which is `Aborted` until the caller changes it; and the session's previous
    /// transaction, which the caller must abort.
    #[expect(clippy::type_complexity)]
    pub fn begin(
        &self,
        role: &str,
        place: Place,
        connection: i32,
    ) -> Result<(Arc<Transaction>, OwnedMutexGuard<Phase>, Option<Arc<Transaction>>), Failure> {
        let now = Instant::now();
        let state = &mut *self.lock();
        let last =
            state.roles.get(role).and_then(|sessions| sessions.get(&place.session)).map(|entry| entry.last.clone());
        if let Some(last) = &last {
            check_age(last, place)?;
            if last.place.number == place.number {
                let message = format!("Transaction {} of this session was started already", place.number);
                return Err(Failure::new(ALREADY_STARTED, message));
            }
        } else {
            state.make_room(role);
            state.count += 1;
        }
        let phase = Arc::new(tokio::sync::Mutex::new(Phase::Aborted));
        let locked = phase.clone().try_lock_owned().unwrap_or_else(|_| unreachable!("nobody else has it yet"));
        let usage = Use { connection, limit: now + self.lifetime, orphaned: None };
        let (killed, use_) = (watch::Sender::new(false), Mutex::new(usage));
        let is_over = AtomicBool::new(false);
        let transaction = Arc::new(Transaction { role: role.to_owned(), place, phase, killed, is_over, use_ });
        let entry = Entry { last: transaction.clone(), used: now };
        state.roles.entry(role.to_owned()).or_default().insert(place.session, entry);
        state.running.push(transaction.clone());
        Ok((transaction, locked, last))
    }

    /// The transaction to which a further statement belongs.
    pub fn find(&self, role: &str, place: Place, connection: i32) -> Result<Arc<Transaction>, Failure> {
        let now = Instant::now();
        let mut state = self.lock();
        let entry = state.roles.get_mut(role).and_then(|sessions| sessions.get_mut(&place.session));
        let entry = entry.ok_or_else(|| no_such(place))?;
        check_age(&entry.last, place)?;
        if entry.last.place.number != place.number {
            return Err(no_such(place));
        }
        entry.used = now;
        let mut usage = entry.last.usage();
        (usage.connection, usage.orphaned) = (connection, None);
        drop(usage);
        Ok(entry.last.clone())
    }

    /// Returns the older transaction of the session that a numbered write outside of transactions ends.
    pub fn note_write(&self, role: &str, place: Place) -> Result<Option<Arc<Transaction>>, Failure> {
        let state = self.lock();
        let Some(entry) = state.roles.get(role).and_then(|sessions| sessions.get(&place.session)) else {
            return Ok(None);
        };
        check_age(&entry.last, place)?;
        Ok((entry.last.place.number < place.number).then(|| entry.last.clone()))
    }

    /// Notes that a transaction has ended.
    pub fn ended(&self, transaction: &Arc<Transaction>) {
        transaction.is_over.store(true, Ordering::Relaxed);
        self.lock().running.retain(|running| !Arc::ptr_eq(running, transaction));
    }

    /// Forgets sessions of a role, all or these, and returns their transactions, which the caller must abort.
    pub fn remove(&self, role: &str, ids: Option<&[Id]>) -> Vec<Arc<Transaction>> {
        let state = &mut *self.lock();
        let Some(sessions) = state.roles.get_mut(role) else { return Vec::new() };
        let removed: Vec<Entry> = match ids {
            Some(ids) => ids.iter().filter_map(|id| sessions.remove(id)).collect(),
            None => sessions.drain().map(|(_, entry)| entry).collect(),
        };
        if sessions.is_empty() {
            state.roles.remove(role);
        }
        state.count -= removed.len();
        removed.into_iter().map(|entry| entry.last).collect()
    }

    /// Notes that sessions are in use.
    pub fn refresh(&self, role: &str, ids: &[Id]) {
        let mut state = self.lock();
        let Some(sessions) = state.roles.get_mut(role) else { return };
        for id in ids {
            if let Some(entry) = sessions.get_mut(id) {
                entry.used = Instant::now();
            }
        }
    }

    /// A client's connection was closed: transactions whose last statement came over that connection end soon.
    pub fn orphan(&self, connection: i32) {
        for transaction in &self.lock().running {
            let mut usage = transaction.usage();
            if usage.connection == connection {
                usage.orphaned.get_or_insert_with(Instant::now);
            }
        }
    }

    /// Running transactions whose time is over.
    pub fn overdue(&self) -> Vec<Arc<Transaction>> {
        let now = Instant::now();
        let must_end = |transaction: &&Arc<Transaction>| transaction.is_overdue(now) && !transaction.is_killed();
        self.lock().running.iter().filter(must_end).cloned().collect()
    }

    /// Forgets sessions that were not used for long.
    pub fn sweep(&self) {
        let state = &mut *self.lock();
        state.forget(|entry| entry.used.elapsed() >= REMEMBERED);
    }
}

impl State {
    fn is_running(entry: &Entry) -> bool {
        !entry.last.is_over.load(Ordering::Relaxed)
    }

    fn forget(&mut self, is_old: impl Fn(&Entry) -> bool) {
        for sessions in self.roles.values_mut() {
            sessions.retain(|_, entry| !is_old(entry) || Self::is_running(entry));
        }
        self.roles.retain(|_, sessions| !sessions.is_empty());
        self.count = self.roles.values().map(HashMap::len).sum();
    }

    /// Makes room for another session of a role. At the role's limit, a tenth of its sessions is forgotten; at the limit of all, a tenth of
    /// those of the role that has most.
    fn make_room(&mut self, role: &str) {
        let of_role = self.roles.get(role).map_or(0, HashMap::len);
        let fullest = || self.roles.iter().max_by_key(|(_, sessions)| sessions.len()).map(|(role, _)| role.clone());
        let loser = if of_role >= MAX_OF_ROLE {
            role.to_owned()
        } else if self.count >= MAX_SESSIONS
            && let Some(fullest) = fullest()
        {
            fullest
        } else {
            return;
        };
        let Some(sessions) = self.roles.get_mut(&loser) else { return };
        let mut used: Vec<Instant> = sessions.values().map(|entry| entry.used).collect();
        used.sort_unstable();
        let Some(limit) = used.get(used.len() / 10).copied() else { return };
        let before = sessions.len();
        sessions.retain(|_, entry| entry.used > limit || Self::is_running(entry));
        self.count -= before - sessions.len();
    }
}

fn check_age(last: &Transaction, place: Place) -> Result<(), Failure> {
    if place.number < last.place.number {
        let message =
            format!("Transaction number {} is older than the session's last one, {}", place.number, last.place.number);
        return Err(Failure::new(TRANSACTION_TOO_OLD, message));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(session: u8, number: i64) -> Place {
        Place { session: [session; 16], number }
    }

    fn code<T>(result: Result<T, Failure>) -> i32 {
        result.map_or_else(|failure| failure.code, |_| 0)
    }

    #[tokio::test]
    async fn a_session_has_one_transaction_at_a_time() {
        let sessions = Sessions::new(Duration::from_secs(60));
        let (first, _, before) = sessions.begin("ann", place(1, 5), 1).unwrap();
        assert!(before.is_none());
        assert!(Arc::ptr_eq(&sessions.find("ann", place(1, 5), 2).unwrap(), &first));
        assert_eq!(code(sessions.find("bob", place(1, 5), 1)), 251, "another role's session");
        assert_eq!(code(sessions.find("ann", place(2, 5), 1)), 251);
        assert_eq!(code(sessions.find("ann", place(1, 6), 1)), 251);
        assert_eq!(code(sessions.find("ann", place(1, 4), 1)), 225);
        assert_eq!(code(sessions.begin("ann", place(1, 5), 1)), 117);
        assert_eq!(code(sessions.begin("ann", place(1, 4), 1)), 225);
        assert_eq!(code(sessions.note_write("ann", place(1, 4))), 225);
        assert!(sessions.note_write("ann", place(1, 5)).unwrap().is_none());
        let (_, _, before) = sessions.begin("ann", place(1, 6), 1).unwrap();
        assert!(Arc::ptr_eq(&before.unwrap(), &first));
        assert!(sessions.note_write("ann", place(1, 7)).unwrap().is_some());
        assert_eq!(sessions.remove("bob", None).len(), 0);
        assert_eq!(sessions.remove("ann", Some(&[[1; 16], [9; 16]])).len(), 1);
        assert_eq!(code(sessions.find("ann", place(1, 6), 1)), 251);
        assert!(sessions.lock().roles.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn a_transaction_has_a_time() {
        let sessions = Sessions::new(Duration::from_secs(60));
        let (first, ..) = sessions.begin("ann", place(1, 1), 1).unwrap();
        let (second, ..) = sessions.begin("ann", place(2, 1), 2).unwrap();
        assert!(sessions.overdue().is_empty());
        sessions.orphan(2);
        tokio::time::advance(ORPHANED).await;
        assert!(matches!(&sessions.overdue()[..], [one] if Arc::ptr_eq(one, &second)));
        // Another connection continues the transaction.
        sessions.find("ann", place(2, 1), 3).unwrap();
        assert!(sessions.overdue().is_empty());
        tokio::time::advance(Duration::from_secs(50)).await;
        assert_eq!(sessions.overdue().len(), 2);
        sessions.ended(&first);
        sessions.ended(&second);
        assert!(sessions.overdue().is_empty());
        tokio::time::advance(REMEMBERED).await;
        sessions.sweep();
        assert_eq!(sessions.lock().count, 0);
    }

    #[tokio::test(start_paused = true)]
    async fn their_number_is_bounded() {
        let sessions = Sessions::new(Duration::from_secs(60));
        let other = sessions.begin("bob", place(1, 1), 1).unwrap().0;
        sessions.ended(&other);
        let running = sessions.begin("ann", place(1, 1), 1).unwrap().0;
        for number in 0..2 * MAX_OF_ROLE as u128 {
            tokio::time::advance(Duration::from_millis(1)).await;
            let place = Place { session: (1000 + number).to_le_bytes(), number: 1 };
            let transaction = sessions.begin("ann", place, 1).unwrap().0;
            sessions.ended(&transaction);
        }
        let count = sessions.lock().count;
        assert!(count <= MAX_OF_ROLE + 1, "{count}");
        assert_eq!(count, sessions.lock().roles.values().map(HashMap::len).sum::<usize>());
        assert!(sessions.find("bob", place(1, 1), 1).is_ok(), "another role's is remembered");
        assert!(Arc::ptr_eq(&sessions.find("ann", place(1, 1), 1).unwrap(), &running));
    }
}
