//! Sessions at the router, shared by all clients of a role.
//!
//! A session comes from a login that PostgreSQL has checked, and goes to the pool of that role: so a statement of a client runs in a
//! session of exactly the role as which the client has logged in, and the gateway can open no session by itself.
//!
//! A client holds a session only while its statement runs, or its transaction (`Lease::pin`). Whoever finds none free waits, in order, for
//! a bounded time. A cursor's statements go to the session that has the cursor (`wanted`).
//!
//! A client uses only the sessions of the generation of its login. A role's generation ends with its last session, and when the router
//! has ended one of them: an administrator who withdraws a password ends the sessions that it opened, and a later login must not
//! give its session to clients that have logged in before. It ends, too, when a session of another role with the same name comes.
//! A generation comes back if the next login proves the same password of the same role (`Session::salt`, which each change of a password
//! changes): so after a restart of the router one client's login serves all that had logged in before.
//!
//! INVARIANT: the number of sessions is at most the limit. A session is idle, or leased, never both. A pool that exists has a session,
//! and all of them are of one generation and one role. An idle session is in no transaction.

use crate::backend::{End, Session};
use postgres_protocol::Oid;
use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::{Notify, oneshot};

/// As whom a client uses sessions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    pub role: String,
    /// the generation of the client's login; None for clients that need none
    pub generation: Option<u64>,
}

#[derive(Debug)]
struct Role {
    /// what leases belong to
    number: u64,
    generation: u64,
    oid: Oid,
    idle: Vec<Session>,
    leased: HashSet<u64>,
    /// those leased sessions that have transactions
    pinned: HashSet<u64>,
    waiting: VecDeque<Waiter>,
}

#[derive(Debug)]
struct Waiter {
    wanted: Option<u64>,
    /// a lease, not a session: if the waiter goes away while it is being sent, the session goes back to the pool
    send: oneshot::Sender<Lease>,
}

/// What the last generation of a role began with.
#[derive(Debug)]
struct Proof {
    oid: Oid,
    salt: Vec<u8>,
    generation: u64,
}

/// The most roles whose last generation can come back.
const MAX_PROOFS: usize = 10_000;

#[derive(Debug, Default)]
struct State {
    roles: HashMap<String, Role>,
    proofs: HashMap<String, Proof>,
    /// the last generation of any role; none is another role's or password's
    generation: u64,
    /// the last number of any pool
    number: u64,
    /// the number of sessions that are leased, and whose generation has ended
    retired: usize,
}

#[derive(Debug)]
pub struct Pools {
    state: Mutex<State>,
    limit: usize,
    patience: Duration,
    /// how long a command waits for a login after its role's sessions have ended
    hold: Duration,
    /// a session was added
    added: Notify,
}

/// Why there is no session.
#[derive(Debug, PartialEq, Eq)]
pub enum Unavailable {
    /// all were in use for too long
    Timeout,
    /// the role has no session of the client's generation: the client must log in again
    NoSession,
    /// the wanted session is gone
    Gone,
    /// all of the role's sessions have transactions, and there is room for another one, which a login brings
    Pinned,
}

/// Which session is wanted.
#[derive(Clone, Copy, Debug, Default)]
pub struct Wanted<'a> {
    /// this one only
    pub id: Option<u64>,
    /// not one of these, if there are others
    pub avoid: Option<&'a HashSet<u64>>,
    /// the client can log in again, which is better than to wait for the end of a transaction
    pub can_log_in: bool,
}

/// A session in use; it goes back to its pool when dropped, or is closed if its statement has not ended.
#[derive(Debug)]
pub struct Lease {
    session: Option<Session>,
    pools: Arc<Pools>,
    role: String,
    number: u64,
    generation: u64,
}

impl State {
    /// The generation of a role whose first session this is.
    fn generation_of(&mut self, role: &str, session: &Session) -> u64 {
        if let Some(proof) = self.proofs.get(role)
            && proof.oid == session.role
            && proof.salt == session.salt
            && !session.salt.is_empty()
        {
            return proof.generation;
        }
        if self.proofs.len() >= MAX_PROOFS && !self.proofs.contains_key(role) {
            self.proofs.retain(|role, _| self.roles.contains_key(role));
        }
        self.generation += 1;
        let proof = Proof { oid: session.role, salt: session.salt.clone(), generation: self.generation };
        self.proofs.insert(role.to_owned(), proof);
        self.generation
    }

    /// True if the client's generation has ended, and may come back.
    fn may_come_back(&self, who: &Identity) -> bool {
        !self.roles.contains_key(&who.role)
            && who.generation.is_some()
            && self.proofs.get(&who.role).is_some_and(|proof| Some(proof.generation) == who.generation)
    }

    fn count(&self) -> usize {
        self.retired + self.roles.values().map(|role| role.idle.len() + role.leased.len()).sum::<usize>()
    }

    /// Ends a role's generation: idle sessions are closed, leased ones when they come back, and nobody waits for them.
    fn end(&mut self, role: &str) {
        if let Some(pool) = self.roles.remove(role) {
            self.retired += pool.leased.len();
        }
    }

    /// A session has left a pool. Those who wait for what cannot come learn it from their closed channel.
    fn forget(&mut self, role: &str, id: u64) {
        let Some(pool) = self.roles.get_mut(role) else { return };
        pool.leased.remove(&id);
        pool.pinned.remove(&id);
        pool.waiting.retain(|waiter| waiter.wanted != Some(id));
        if pool.leased.is_empty() && pool.idle.is_empty() {
            self.end(role);
        }
    }
}

impl Pools {
    pub fn new(limit: usize, patience: Duration, hold: Duration) -> Arc<Self> {
        Arc::new(Self { state: Mutex::default(), limit, patience, hold, added: Notify::new() })
    }

    /// The most sessions.
    pub fn limit(&self) -> usize {
        self.limit
    }

    /// How long a login waits for a router that restarts.
    pub fn hold(&self) -> Duration {
        self.hold
    }

    /// How long a command waits for one.
    pub fn patience(&self) -> Duration {
        self.patience
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds the session of a login, and returns the generation of the role. At the limit, the new session is closed if the role has
    /// others, and else takes the place of an idle one of another role. None if neither is possible.
    pub fn add(self: &Arc<Self>, role: &str, mut session: Session) -> Option<u64> {
        if session.end().is_some() {
            return None;
        }
        let state = &mut *self.lock();
        if let Some(pool) = state.roles.get_mut(role)
            && (pool.oid != session.role || pool.idle.iter_mut().any(|idle| idle.end() == Some(End::Router)))
        {
            state.end(role);
        }
        if state.count() >= self.limit {
            if let Some(pool) = state.roles.get(role) {
                return Some(pool.generation);
            }
            // The role with the most idle sessions loses one.
            let (name, most) = state.roles.iter_mut().max_by_key(|(_, pool)| pool.idle.len())?;
            if most.idle.is_empty() {
                return None;
            }
            let (name, evicted) = (name.clone(), most.idle.remove(0));
            state.forget(&name, evicted.id);
        }
        if !state.roles.contains_key(role) {
            let generation = state.generation_of(role, &session);
            state.number += 1;
            let (idle, leased, pinned, waiting) = Default::default();
            let (number, oid) = (state.number, session.role);
            state.roles.insert(role.to_owned(), Role { number, generation, oid, idle, leased, pinned, waiting });
        }
        let pool = state.roles.get_mut(role)?;
        self.give(role, pool, session);
        self.added.notify_waiters();
        Some(pool.generation)
    }

    /// Waits for a session of the role: any, or the one with this id.
    pub async fn lease(self: &Arc<Self>, who: &Identity, id: Option<u64>) -> Result<Lease, Unavailable> {
        self.lease_such(who, Wanted { id, ..Wanted::default() }).await
    }

    /// As [`Pools::lease`]. A client that cannot log in without an error waits for another one's login after a restart of the router.
    pub async fn lease_such(self: &Arc<Self>, who: &Identity, such: Wanted<'_>) -> Result<Lease, Unavailable> {
        let until = tokio::time::Instant::now() + self.hold;
        loop {
            let mut added = std::pin::pin!(self.added.notified());
            // From here on it misses none.
            added.as_mut().enable();
            match self.lease_now(who, such).await {
                Err(Unavailable::NoSession) if !such.can_log_in && self.lock().may_come_back(who) => {
                    if tokio::time::timeout_at(until, added).await.is_err() {
                        return Err(Unavailable::NoSession);
                    }
                }
                result => return result,
            }
        }
    }

    async fn lease_now(self: &Arc<Self>, who: &Identity, such: Wanted<'_>) -> Result<Lease, Unavailable> {
        let (role, wanted) = (who.role.as_str(), such.id);
        let receive = {
            let state = &mut *self.lock();
            loop {
                let is_full = state.count() >= self.limit;
                let pool = state.roles.get_mut(role);
                let Some(pool) = pool.filter(|pool| who.generation.is_none_or(|own| own == pool.generation)) else {
                    return Err(missing(wanted));
                };
                let position = match wanted {
                    None => {
                        let is_avoided =
                            |session: &Session| such.avoid.is_some_and(|avoid| avoid.contains(&session.id));
                        let better = pool.idle.iter().rposition(|session| !is_avoided(session));
                        better.or_else(|| pool.idle.len().checked_sub(1))
                    }
                    Some(id) => pool.idle.iter().position(|session| session.id == id),
                };
                let Some(mut session) = position.map(|position| pool.idle.remove(position)) else {
                    let possible = wanted.map_or(!pool.leased.is_empty(), |id| pool.leased.contains(&id));
                    if !possible {
                        return Err(missing(wanted));
                    }
                    if wanted.is_none() && such.can_log_in && !is_full && pool.pinned.len() == pool.leased.len() {
                        return Err(Unavailable::Pinned);
                    }
                    let (send, receive) = oneshot::channel();
                    pool.waiting.push_back(Waiter { wanted, send });
                    break receive;
                };
                // It may have ended while it was idle; then nothing has been sent, and another one may serve.
                match session.end() {
                    None => {
                        pool.leased.insert(session.id);
                        return Ok(self.lent(role, pool, session));
                    }
                    Some(End::Router) => state.end(role),
                    Some(End::Timeout) => state.forget(role, session.id),
                }
            }
        };
        match tokio::time::timeout(self.patience, receive).await {
            Err(_) => Err(Unavailable::Timeout),
            Ok(Err(_)) => Err(missing(wanted)),
            Ok(Ok(lease)) => Ok(lease),
        }
    }

    /// Closes sessions that have been idle for this long. A role keeps one, so that its clients need not log in again.
    pub fn close_idle(&self, after: Duration) {
        let mut closed = Vec::new();
        for role in self.lock().roles.values_mut() {
            // The one that was used last is taken first, so those in front have been idle for longest.
            let idle = role.idle.iter().take_while(|session| session.since.elapsed() >= after).count();
            let most = (role.idle.len() + role.leased.len()).saturating_sub(1);
            closed.extend(role.idle.drain(..idle.min(most)));
        }
    }

    /// True if the sessions of the client's login are still used.
    pub fn is_current(&self, who: &Identity) -> bool {
        let state = self.lock();
        let pool = state.roles.get(&who.role);
        pool.is_some_and(|pool| who.generation.is_none_or(|own| own == pool.generation))
    }

    /// True if a role has no idle session and fewer than this many.
    pub fn is_wanting(&self, role: &str, most: usize) -> bool {
        self.lock().roles.get(role).is_none_or(|role| role.idle.is_empty() && role.leased.len() < most)
    }

    fn lent(self: &Arc<Self>, role: &str, pool: &Role, session: Session) -> Lease {
        let (number, generation) = (pool.number, pool.generation);
        Lease { session: Some(session), pools: self.clone(), role: role.to_owned(), number, generation }
    }

    /// Takes a leased session back. Returns one whose statement has not ended.
    fn take_back(self: &Arc<Self>, role: &str, number: u64, mut session: Session) -> Option<Session> {
        let end = session.end();
        let state = &mut *self.lock();
        match (state.roles.get_mut(role).filter(|pool| pool.number == number), end) {
            (None, _) => state.retired -= 1,
            (Some(pool), None) if session.is_usable() => {
                pool.leased.remove(&session.id);
                pool.pinned.remove(&session.id);
                self.give(role, pool, session);
                return None;
            }
            (Some(_), Some(End::Router)) => {
                state.end(role);
                state.retired -= 1;
            }
            (Some(_), _) => state.forget(role, session.id),
        }
        (!session.is_usable()).then_some(session)
    }

    /// Gives a session to the first one that waits for it, or makes it idle.
    fn give(self: &Arc<Self>, role: &str, pool: &mut Role, session: Session) {
        let mut session = session;
        let mut from = 0;
        while let Some(position) =
            pool.waiting.iter().skip(from).position(|waiter| waiter.wanted.is_none_or(|id| id == session.id))
        {
            from += position;
            let Some(waiter) = pool.waiting.remove(from) else { break };
            let id = session.id;
            pool.leased.insert(id);
            match waiter.send.send(self.lent(role, pool, session)) {
                Ok(()) => return,
                // Whoever has given up waiting has closed the channel.
                Err(mut back) => {
                    pool.leased.remove(&id);
                    match back.session.take() {
                        Some(returned) => session = returned,
                        None => return,
                    }
                }
            }
        }
        session.since = Instant::now();
        pool.idle.push(session);
    }

    /// The router has ended a session that is not in the pool any more.
    fn withdraw(&self, role: &str, number: u64) {
        let mut state = self.lock();
        if state.roles.get(role).is_some_and(|pool| pool.number == number) {
            state.end(role);
        }
    }
}

fn missing(wanted: Option<u64>) -> Unavailable {
    if wanted.is_some() { Unavailable::Gone } else { Unavailable::NoSession }
}

impl Lease {
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// The session is for a transaction: others should not wait for it.
    pub fn pin(&mut self) {
        let id = self.session().id;
        let mut state = self.pools.lock();
        if let Some(pool) = state.roles.get_mut(&self.role).filter(|pool| pool.number == self.number) {
            pool.pinned.insert(id);
        }
    }

    pub fn session(&mut self) -> &mut Session {
        // Only `drop`, which ends the lease, takes it.
        self.session.as_mut().unwrap_or_else(|| unreachable!("a lease has a session"))
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        let session = self.session.take();
        let running = session.and_then(|session| self.pools.take_back(&self.role, self.number, session));
        if let (Some(session), Ok(runtime)) = (running, tokio::runtime::Handle::try_current()) {
            let (pools, role, number) = (self.pools.clone(), std::mem::take(&mut self.role), self.number);
            runtime.spawn(async move {
                if session.abandon().await == Some(End::Router) {
                    pools.withdraw(&role, number);
                }
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncWriteExt, DuplexStream};

    const SOON: Duration = Duration::from_millis(50);
    const LATE: Duration = Duration::from_secs(60);

    fn who(role: &str, generation: u64) -> Identity {
        Identity { role: role.to_owned(), generation: Some(generation) }
    }

    /// Pools with these sessions, and the other ends of their connections, which keep them alive. The first role has generation 1,
    /// the second one 2.
    fn pools(limit: usize, patience: Duration, sessions: &[(&str, u64)]) -> (Arc<Pools>, Vec<DuplexStream>) {
        let pools = Pools::new(limit, patience, SOON);
        let add = |(role, id): &(&str, u64)| {
            let (session, end) = Session::detached(*id);
            assert!(pools.add(role, session).is_some());
            end
        };
        let ends = sessions.iter().map(add).collect();
        (pools, ends)
    }

    fn ids(pools: &Pools, role: &str) -> Vec<u64> {
        pools.lock().roles.get(role).map_or(Vec::new(), |role| role.idle.iter().map(|session| session.id).collect())
    }

    fn count(pools: &Pools) -> usize {
        pools.lock().count()
    }

    async fn wait_for_waiters(pools: &Pools, role: &str, count: usize) {
        while pools.lock().roles[role].waiting.len() < count {
            tokio::task::yield_now().await;
        }
    }

    /// What PostgreSQL sends when it ends a session.
    async fn send_fatal(end: &mut DuplexStream, sqlstate: &str) {
        let fields = format!("SFATAL\0VFATAL\0C{sqlstate}\0Mover\0\0");
        end.write_u8(b'E').await.unwrap();
        end.write_u32(4 + fields.len() as u32).await.unwrap();
        end.write_all(fields.as_bytes()).await.unwrap();
    }

    #[tokio::test]
    async fn a_session_is_leased_to_one_at_a_time() {
        let (pools, _ends) = pools(9, SOON, &[("ann", 1), ("bob", 2)]);
        let ann = who("ann", 1);
        let lease = pools.lease(&ann, None).await.unwrap();
        assert_eq!(pools.lease(&ann, None).await.unwrap_err(), Unavailable::Timeout);
        assert_eq!(pools.lease(&who("eve", 1), None).await.unwrap_err(), Unavailable::NoSession);
        assert_eq!(pools.lease(&ann, Some(2)).await.unwrap_err(), Unavailable::Gone, "another role's session");
        drop(lease);
        // Whoever gave up waiting gets nothing.
        assert_eq!((ids(&pools, "ann"), ids(&pools, "bob")), (vec![1], vec![2]));
    }

    #[tokio::test]
    async fn who_waits_is_served_in_order_or_with_the_session_of_the_cursor() {
        let (pools, _ends) = pools(9, LATE, &[("ann", 1), ("ann", 2)]);
        let ann = who("ann", 1);
        let (first, second) = (pools.lease(&ann, Some(1)).await.unwrap(), pools.lease(&ann, Some(2)).await.unwrap());
        let wait = |wanted: Option<u64>| {
            let pools = pools.clone();
            async move { pools.lease(&who("ann", 1), wanted).await.unwrap().session().id }
        };
        let (cursor, any) = (tokio::spawn(wait(Some(2))), tokio::spawn(wait(None)));
        wait_for_waiters(&pools, "ann", 2).await;
        drop(first);
        assert_eq!(any.await.unwrap(), 1);
        assert!(!cursor.is_finished());
        drop(second);
        assert_eq!(cursor.await.unwrap(), 2);
        assert_eq!(ids(&pools, "ann").len(), 2);
    }

    #[tokio::test]
    async fn a_statement_that_is_given_up_ends_only_its_session() {
        let (pools, _ends) = pools(9, LATE, &[("ann", 1), ("ann", 2)]);
        let ann = who("ann", 1);
        let mut lease = pools.lease(&ann, Some(2)).await.unwrap();
        lease.session().pretend_to_run();
        drop(lease);
        assert_eq!(pools.lease(&ann, Some(2)).await.unwrap_err(), Unavailable::Gone);
        // With the last session nobody waits in vain.
        let mut lease = pools.lease(&ann, None).await.unwrap();
        lease.session().pretend_to_run();
        let waiting = tokio::spawn({
            let (pools, ann) = (pools.clone(), ann.clone());
            async move { pools.lease(&ann, None).await.map(drop) }
        });
        wait_for_waiters(&pools, "ann", 1).await;
        drop(lease);
        assert_eq!(waiting.await.unwrap(), Err(Unavailable::NoSession));
        assert!(pools.lock().roles.is_empty());
        // There was nothing that an administrator could have ended.
        let (session, _end) = Session::detached(3);
        assert_eq!(pools.add("ann", session), Some(2));
        assert_eq!(pools.lease(&ann, None).await.unwrap_err(), Unavailable::NoSession);
    }

    #[tokio::test]
    async fn a_session_that_the_router_ends_while_idle_ends_the_generation() {
        for fatal in [true, false] {
            let (pools, mut ends) = pools(9, LATE, &[("ann", 1), ("ann", 2), ("bob", 3)]);
            match fatal {
                true => send_fatal(&mut ends[1], "57P01").await,
                false => drop(ends.remove(1)),
            }
            assert_eq!(pools.lease(&who("ann", 1), None).await.unwrap_err(), Unavailable::NoSession);
            assert_eq!((ids(&pools, "ann"), ids(&pools, "bob")), (vec![], vec![3]));
        }
    }

    #[tokio::test]
    async fn a_login_finds_sessions_that_the_router_has_ended() {
        let (pools, mut ends) = pools(9, LATE, &[("ann", 1), ("ann", 2), ("bob", 3)]);
        let old = who("ann", 1);
        let mut lease = pools.lease(&old, Some(2)).await.unwrap();
        send_fatal(&mut ends[0], "57P01").await;
        let (session, _end) = Session::detached(4);
        assert_eq!(pools.add("ann", session), Some(3), "a generation is new to the whole gateway");
        assert_eq!(pools.lease(&old, None).await.unwrap_err(), Unavailable::NoSession);
        assert_eq!(pools.lease(&old, Some(4)).await.unwrap_err(), Unavailable::Gone, "a cursor of the new generation");
        assert_eq!(pools.lease(&who("ann", 3), Some(2)).await.unwrap_err(), Unavailable::Gone, "an old cursor");
        // One that was leased counts until it comes back, and is closed then.
        assert_eq!(count(&pools), 3);
        assert!(lease.session().is_usable());
        drop(lease);
        assert_eq!((count(&pools), ids(&pools, "ann")), (2, vec![4]));
        assert!(pools.lease(&who("bob", 2), None).await.is_ok());
    }

    #[tokio::test]
    async fn at_the_limit_a_login_finds_them_too() {
        let (pools, mut ends) = pools(1, LATE, &[("ann", 1)]);
        send_fatal(&mut ends[0], "57P01").await;
        let (session, _end) = Session::detached(2);
        assert_eq!(pools.add("ann", session), Some(2));
        assert_eq!(ids(&pools, "ann"), [2]);
        // One that has ended itself is no login.
        let (session, end) = Session::detached(3);
        drop(end);
        assert_eq!(pools.add("ann", session), None);
    }

    #[tokio::test]
    async fn a_session_that_the_router_ends_while_leased_ends_the_generation() {
        for running in [true, false] {
            let (pools, mut ends) = pools(9, LATE, &[("ann", 1), ("ann", 2)]);
            let (ann, mut end) = (who("ann", 1), ends.remove(0));
            let mut lease = pools.lease(&ann, Some(1)).await.unwrap();
            // A login between, whose session joins the old generation.
            let (session, _end) = Session::detached(3);
            assert_eq!(pools.add("ann", session), Some(1));
            if running {
                let (error, ()) = tokio::join!(lease.session().run(None, "test", b""), send_fatal(&mut end, "57P01"));
                assert_eq!(error.unwrap().unwrap_err().sqlstate, "57P01");
            } else {
                drop(end);
            }
            drop(lease);
            assert!(pools.lock().roles.is_empty());
            assert_eq!(count(&pools), 0);
            assert_eq!(pools.lease(&ann, None).await.unwrap_err(), Unavailable::NoSession);
        }
    }

    #[tokio::test]
    async fn a_session_that_the_router_ends_after_its_client_has_left_ends_the_generation() {
        let (pools, mut ends) = pools(9, LATE, &[("ann", 1), ("ann", 2)]);
        let mut lease = pools.lease(&who("ann", 1), Some(1)).await.unwrap();
        lease.session().pretend_to_run();
        drop(lease);
        assert_eq!(ids(&pools, "ann"), [2]);
        send_fatal(&mut ends[0], "57P01").await;
        while !pools.lock().roles.is_empty() {
            tokio::task::yield_now().await;
        }
    }

    #[tokio::test]
    async fn a_time_limit_ends_only_its_session() {
        let (pools, mut ends) = pools(9, LATE, &[("ann", 1), ("ann", 2), ("ann", 3)]);
        send_fatal(&mut ends[2], "57P05").await;
        let mut lease = pools.lease(&who("ann", 1), None).await.unwrap();
        assert_eq!(lease.session().id, 2);
        let (error, ()) = tokio::join!(lease.session().run(None, "test", b""), send_fatal(&mut ends[1], "25P04"));
        assert!(error.unwrap().unwrap_err().fatal);
        drop(lease);
        assert_eq!((count(&pools), ids(&pools, "ann")), (1, vec![1]));
    }

    #[tokio::test]
    async fn another_role_of_the_same_name_is_another_generation() {
        let (pools, _ends) = pools(9, LATE, &[("ann", 1)]);
        let (mut session, _end) = Session::detached(2);
        session.role += 1;
        assert_eq!(pools.add("ann", session), Some(2));
        assert_eq!(ids(&pools, "ann"), [2]);
        assert_eq!(pools.lease(&who("ann", 1), None).await.unwrap_err(), Unavailable::NoSession);
    }

    #[tokio::test]
    async fn a_login_is_asked_for_if_all_sessions_have_transactions() {
        let (pools, _ends) = pools(3, SOON, &[("ann", 1), ("ann", 2)]);
        let ann = who("ann", 1);
        let such = Wanted { can_log_in: true, ..Wanted::default() };
        let (mut first, mut second) = (pools.lease(&ann, None).await.unwrap(), pools.lease(&ann, None).await.unwrap());
        first.pin();
        assert_eq!(pools.lease_such(&ann, such).await.unwrap_err(), Unavailable::Timeout, "the other one will be free");
        second.pin();
        assert_eq!(pools.lease_such(&ann, such).await.unwrap_err(), Unavailable::Pinned);
        assert_eq!(pools.lease(&ann, None).await.unwrap_err(), Unavailable::Timeout);
        let (session, _end) = Session::detached(3);
        assert_eq!(pools.add("ann", session), Some(1));
        let _third = pools.lease_such(&ann, such).await.unwrap();
        assert_eq!(pools.lease_such(&ann, such).await.unwrap_err(), Unavailable::Timeout, "there is no room");
        drop(first);
        assert!(pools.lease_such(&ann, such).await.is_ok());
    }

    #[tokio::test]
    async fn a_session_in_a_transaction_does_not_come_back() {
        let (pools, _ends) = pools(9, SOON, &[("ann", 1), ("ann", 2)]);
        let mut lease = pools.lease(&who("ann", 1), Some(1)).await.unwrap();
        lease.pin();
        lease.session().pretend_to_be_in_a_transaction();
        drop(lease);
        assert_eq!((ids(&pools, "ann"), count(&pools)), (vec![2], 1));
    }

    #[tokio::test]
    async fn a_session_with_cursors_can_be_avoided() {
        let (pools, _ends) = pools(9, SOON, &[("ann", 1), ("ann", 2), ("ann", 3)]);
        let avoid = HashSet::from([2, 3]);
        let such = Wanted { avoid: Some(&avoid), ..Wanted::default() };
        let mut first = pools.lease_such(&who("ann", 1), such).await.unwrap();
        assert_eq!(first.session().id, 1);
        assert!(pools.lease_such(&who("ann", 1), such).await.is_ok());
    }

    #[tokio::test]
    async fn a_generation_comes_back_with_the_same_password_of_the_same_role() {
        let session = |id: u64, salt: &[u8], role: Oid| {
            let (mut session, end) = Session::detached(id);
            (session.salt, session.role) = (salt.to_vec(), role);
            (session, end)
        };
        for (salt, role, comes_back) in
            [(b"s=a".as_slice(), 10, true), (b"s=b", 10, false), (b"s=a", 11, false), (b"", 10, false)]
        {
            let pools = Pools::new(9, LATE, SOON);
            let (first, end) = session(1, b"s=a", 10);
            assert_eq!(pools.add("ann", first), Some(1));
            let ann = who("ann", 1);
            let old = pools.lease(&ann, None).await.unwrap();
            let (idle, idle_end) = session(2, b"s=a", 10);
            assert_eq!(pools.add("ann", idle), Some(1));
            drop((end, idle_end));
            // Those that can log in do not wait, and the others not for ever.
            let can = Wanted { can_log_in: true, ..Wanted::default() };
            assert_eq!(pools.lease_such(&ann, can).await.unwrap_err(), Unavailable::NoSession);
            assert_eq!(pools.lease(&ann, None).await.unwrap_err(), Unavailable::NoSession);
            let waiting = tokio::spawn({
                let (pools, ann) = (pools.clone(), ann.clone());
                async move { pools.lease(&ann, None).await.map(|mut lease| lease.session().id) }
            });
            tokio::task::yield_now().await;
            let (next, _end) = session(3, salt, role);
            assert_eq!(pools.add("ann", next), Some(if comes_back { 1 } else { 2 }));
            assert_eq!(waiting.await.unwrap(), if comes_back { Ok(3) } else { Err(Unavailable::NoSession) });
            // What was leased before is not of the new pool.
            assert_eq!(count(&pools), 2);
            drop(old);
            assert_eq!((count(&pools), ids(&pools, "ann")), (1, vec![3]));
        }
    }

    #[tokio::test]
    async fn clients_that_need_no_login_use_any_generation() {
        let (pools, _ends) = pools(9, LATE, &[("bob", 1), ("ann", 2)]);
        let nobody = Identity { role: "ann".to_owned(), generation: None };
        assert_eq!(pools.lease(&nobody, None).await.unwrap().session().id, 2);
    }

    #[tokio::test]
    async fn a_role_keeps_one_idle_session() {
        let (pools, _ends) = pools(9, SOON, &[("ann", 1), ("ann", 2), ("ann", 3), ("bob", 4)]);
        pools.close_idle(LATE);
        assert_eq!(ids(&pools, "ann"), [1, 2, 3]);
        let lease = pools.lease(&who("ann", 1), None).await.unwrap();
        pools.close_idle(Duration::ZERO);
        assert_eq!((ids(&pools, "ann"), ids(&pools, "bob")), (vec![], vec![4]));
        drop(lease);
        pools.close_idle(Duration::ZERO);
        assert_eq!(ids(&pools, "ann"), [3]);
        assert!(pools.lease(&who("ann", 1), None).await.is_ok(), "the generation goes on");
    }

    #[tokio::test]
    async fn the_number_of_sessions_is_limited() {
        let (pools, _ends) = pools(2, SOON, &[("ann", 1), ("ann", 2), ("ann", 3)]);
        assert_eq!(ids(&pools, "ann"), [1, 2], "more of the same role are not kept");
        let (session, _end) = Session::detached(4);
        assert_eq!(pools.add("bob", session), Some(2), "it takes an idle one's place");
        assert_eq!((ids(&pools, "ann").len(), ids(&pools, "bob")), (1, vec![4]));
        let all = (pools.lease(&who("ann", 1), None).await.unwrap(), pools.lease(&who("bob", 2), None).await.unwrap());
        let (session, _end) = Session::detached(5);
        assert_eq!(pools.add("eve", session), None, "nothing is idle");
        // A role that loses its last session begins anew.
        drop(all);
        let (session, _end) = Session::detached(6);
        assert_eq!(pools.add("eve", session), Some(3));
        let lost = if ids(&pools, "ann").is_empty() { "ann" } else { "bob" };
        assert!(!pools.lock().roles.contains_key(lost));
    }
}
