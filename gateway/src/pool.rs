//! Sessions at the router, shared by all clients of a role.
//!
//! A session comes from a login that PostgreSQL has checked, and goes to the pool of that role. So a client's statement runs in a session
//! of exactly the role as which the client has logged in, and the gateway cannot open sessions by itself.
//!
//! A client holds a session only while its statement or its transaction runs (`Lease::pin`). If none is free, clients wait in order, for a
//! bounded time. A cursor's statements go to the session that has the cursor (`wanted`). Other statements go to the idle session with the
//! fewest open cursors ([`Role::place`]), as a cursor's client waits while another statement runs in its session.
//!
//! A role cannot exclude others by the sessions that it owns ([`State::loser_to`]): at the limit, a login of a role with fewer
//! sessions replaces an idle session of the role that owns most. Nor can a role do so by the sessions that it uses
//! ([`State::may_use_more`]): a role uses at most three quarters of the sessions that other roles do not use at the time, and the
//! last eighth of all sessions is for roles that use none. So there always is an idle session that a login of another role can
//! replace.
//!
//! A client uses only sessions of the generation of its login. A role's generation ends with its last session, and when the
//! router ends one of its sessions. The reason: an administrator who withdraws a password also ends the sessions that were opened
//! with it, and a session of a later login must not serve clients that logged in with the old password. A generation also ends
//! when a session of another role with the same name is added, or when PostgreSQL now demands a certificate where it demanded a password, or the
//! reverse: so the clients of a generation have all proved the same thing. The role has the same generation again if the next login proves
//! the same password of the same role ([`Proof`], which each change of the password changes), or shows the same certificate. So after a
//! restart of the router, one client's login serves all clients that had logged in before.
//!
//! INVARIANT: the number of sessions is at most the limit. A session is either idle or leased. No client waits if it could be served. A
//! pool has at least one session, and all its sessions are of one generation and one role. An idle session is not in a transaction.

use crate::backend::{End, Proof, Session};
use crate::cursors::{Cursors, MAX_OF_SESSION};
use postgres_protocol::Oid;
use std::cmp::Reverse;
use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::{Notify, oneshot};

/// The role and the generation with which a client uses sessions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    pub role: String,
    /// the generation of the client's login; None for clients of the anonymous role, which use sessions of any generation
    pub generation: Option<u64>,
}

#[derive(Debug)]
struct Role {
    /// identifies the pool, so that leases of an earlier pool of the role are recognised
    number: u64,
    generation: u64,
    oid: Oid,
    /// what its clients have proved
    proof: Proof,
    idle: Vec<Session>,
    leased: HashSet<u64>,
    /// the leased sessions that have transactions
    pinned: HashSet<u64>,
    waiting: VecDeque<Waiter>,
}

#[derive(Debug)]
struct Waiter {
    wanted: Option<u64>,
    /// sends a lease, not a session: if the waiter has gone meanwhile, the dropped lease returns the session to the pool
    send: oneshot::Sender<Lease>,
}

/// The login with which the last generation of a role began.
#[derive(Debug)]
struct Beginning {
    oid: Oid,
    proof: Proof,
    generation: u64,
}

/// At this number of remembered [`Beginning`]s, those of roles without sessions are forgotten. The generations of these roles cannot come back.
const MAX_BEGINNINGS: usize = 10_000;

#[derive(Debug)]
struct State {
    /// the largest number of sessions
    limit: usize,
    roles: HashMap<String, Role>,
    beginnings: HashMap<String, Beginning>,
    /// the last generation of any role; a generation belongs to one role and one password
    generation: u64,
    /// the last number of any pool
    number: u64,
    /// the number of leased sessions whose generation has ended, by role
    retired: HashMap<String, usize>,
    cursors: Arc<Cursors>,
}

#[derive(Debug)]
pub struct Pools {
    state: Mutex<State>,
    limit: usize,
    patience: Duration,
    /// how long a command waits for another client's login after its role's sessions have ended
    hold: Duration,
    /// a session was added
    added: Notify,
}

/// Why a client gets no session.
#[derive(Debug, PartialEq, Eq)]
pub enum Unavailable {
    /// no session became free in time
    Timeout,
    /// the role has no session of the client's generation: the client must log in again
    NoSession,
    /// the wanted session has ended
    Gone,
    /// all of the role's sessions have transactions, or as many cursors as a session may have, and there is room for another session, which a
    /// login would add
    Full,
}

/// Which session is wanted.
#[derive(Clone, Copy, Debug, Default)]
pub struct Wanted {
    /// only the session with this id; None: any
    pub id: Option<u64>,
    /// the client can log in again, instead of waiting for the end of a transaction, or of ending another client's cursor
    pub can_log_in: bool,
    /// the command may open a cursor
    pub opens_cursor: bool,
}

/// A session in use. When the lease is dropped, the session returns to its pool, or is closed if its statement or transaction has not
/// ended.
#[derive(Debug)]
pub struct Lease {
    session: Option<Session>,
    pools: Arc<Pools>,
    role: String,
    number: u64,
    generation: u64,
}

/// If the queue is at least this long, waiters that have given up are removed from it whenever its length is a power of two.
const MANY_WAITING: usize = 64;

/// The numbers of open cursors of a role's sessions, without those that have none.
type Open = HashMap<u64, usize>;

impl Role {
    /// The position of the first waiter for whom a session is idle, and the session's position. `open`: the numbers of cursors.
    fn servable(&self, open: &Open) -> Option<(usize, usize)> {
        let places = self.waiting.iter().enumerate().map(|(number, waiter)| (number, self.place(waiter.wanted, open)));
        places.filter_map(|(number, place)| Some((number, place?))).next()
    }

    /// The position of an idle session: the wanted one, or among those with the fewest cursors the most recently used one.
    fn place(&self, wanted: Option<u64>, open: &Open) -> Option<usize> {
        let mut places = 0..self.idle.len();
        match wanted {
            None => places.min_by_key(|place| (self.cursors_of(*place, open), Reverse(*place))),
            Some(id) => places.find(|place| self.idle.get(*place).is_some_and(|session| session.id == id)),
        }
    }

    /// The position of the idle session that is closed first: among those with the fewest cursors the one that has been idle longest.
    fn most_dispensable(&self, open: &Open) -> Option<usize> {
        (0..self.idle.len()).min_by_key(|place| (self.cursors_of(*place, open), *place))
    }

    fn cursors_of(&self, place: usize, open: &Open) -> usize {
        self.idle.get(place).and_then(|session| open.get(&session.id)).copied().unwrap_or(0)
    }

    /// Adds an idle session.
    fn rest(&mut self, mut session: Session) {
        session.since = Instant::now();
        self.idle.push(session);
    }

    fn wait(&mut self, waiter: Waiter) {
        if self.waiting.len() >= MANY_WAITING && self.waiting.len().is_power_of_two() {
            self.waiting.retain(|waiter| !waiter.send.is_closed());
        }
        self.waiting.push_back(waiter);
    }
}

impl State {
    fn new(limit: usize, cursors: Arc<Cursors>) -> Self {
        let (roles, beginnings, retired) = Default::default();
        Self { limit, roles, beginnings, generation: 0, number: 0, retired, cursors }
    }

    /// Returns the generation that begins with a role's first session: the role's former one if the login proves the same thing of the
    /// same role, else a new one.
    fn generation_of(&mut self, role: &str, session: &Session) -> u64 {
        if let Some(beginning) = self.beginnings.get(role)
            && beginning.oid == session.role
            && beginning.proof == session.proof
            && session.proof != Proof::Nothing
        {
            return beginning.generation;
        }
        if self.beginnings.len() >= MAX_BEGINNINGS && !self.beginnings.contains_key(role) {
            self.beginnings.retain(|role, _| self.roles.contains_key(role));
        }
        self.generation += 1;
        let beginning = Beginning { oid: session.role, proof: session.proof.clone(), generation: self.generation };
        self.beginnings.insert(role.to_owned(), beginning);
        self.generation
    }

    /// True if the client's generation has ended, and may come back.
    fn may_come_back(&self, who: &Identity) -> bool {
        !self.roles.contains_key(&who.role)
            && who.generation.is_some()
            && self.beginnings.get(&who.role).is_some_and(|beginning| Some(beginning.generation) == who.generation)
    }

    fn count(&self) -> usize {
        self.all_used() + self.roles.values().map(|role| role.idle.len()).sum::<usize>()
    }

    /// The number of sessions that a role uses.
    fn used(&self, role: &str) -> usize {
        let leased = self.roles.get(role).map_or(0, |pool| pool.leased.len());
        leased + self.retired.get(role).copied().unwrap_or(0)
    }

    fn all_used(&self) -> usize {
        self.retired.values().sum::<usize>() + self.roles.values().map(|role| role.leased.len()).sum::<usize>()
    }

    /// True if a role may use one more session. It may always use one.
    fn may_use_more(&self, role: &str) -> bool {
        let (own, all) = (self.used(role), self.all_used());
        let left = self.limit.saturating_sub(all - own);
        own == 0 || own < left - left.div_ceil(4) && all < self.limit - self.limit.div_ceil(8)
    }

    /// Returns the role that loses its oldest idle session to a login of `role` at the limit: among the other roles with idle sessions the
    /// one that owns most sessions. None if that role would then own fewer sessions than `role`. A `role` without sessions may take even
    /// another role's last one.
    fn loser_to(&self, role: &str) -> Option<String> {
        let owned = |pool: &Role| pool.idle.len() + pool.leased.len();
        let own = self.roles.get(role).map_or(0, owned);
        let idle = self.roles.iter().filter(|(name, pool)| *name != role && !pool.idle.is_empty());
        let (name, most) = idle.max_by_key(|(_, pool)| (owned(pool), pool.idle.len()))?;
        (own == 0 || owned(most) > own + 1).then(|| name.clone())
    }

    /// True if a login of the role would add a session to its pool.
    fn has_room(&self, role: &str) -> bool {
        self.count() < self.limit || self.loser_to(role).is_some()
    }

    /// Called when a leased session whose generation has ended is returned.
    fn retire(&mut self, role: &str) {
        if let Some(count) = self.retired.get_mut(role) {
            *count -= 1;
            if *count == 0 {
                self.retired.remove(role);
            }
        }
    }

    /// The role that is served next, with the positions of its waiter and of the session for it: among roles that may use more sessions and
    /// have a waiter for whom a session is idle, the one that uses fewest.
    fn next(&self) -> Option<(String, usize, usize)> {
        let waiting = self.roles.iter().filter(|(_, pool)| !pool.waiting.is_empty() && !pool.idle.is_empty());
        let servable = waiting.filter_map(|(name, pool)| {
            let (waiter, place) = pool.servable(&self.cursors.by_session(name))?;
            self.may_use_more(name).then_some((name, waiter, place))
        });
        let next = servable.min_by_key(|(name, ..)| self.used(name));
        next.map(|(name, waiter, place)| (name.clone(), waiter, place))
    }

    /// Ends a role's generation: closes its idle sessions, and drops its waiters. Leased sessions are closed when they are returned.
    fn end(&mut self, role: &str) {
        if let Some(pool) = self.roles.remove(role)
            && !pool.leased.is_empty()
        {
            *self.retired.entry(role.to_owned()).or_default() += pool.leased.len();
        }
    }

    /// Removes a leased or evicted session from a pool. Waiters for that session are dropped; closing their channels makes them
    /// fail.
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
    pub fn new(limit: usize, patience: Duration, hold: Duration, cursors: Arc<Cursors>) -> Arc<Self> {
        Arc::new(Self { state: Mutex::new(State::new(limit, cursors)), limit, patience, hold, added: Notify::new() })
    }

    /// The cursors of the sessions.
    pub fn cursors(&self) -> Arc<Cursors> {
        self.lock().cursors.clone()
    }

    /// The largest number of sessions.
    pub fn limit(&self) -> usize {
        self.limit
    }

    /// How long a login waits for a router that restarts.
    pub fn hold(&self) -> Duration {
        self.hold
    }

    /// How long a command waits for a session.
    pub fn patience(&self) -> Duration {
        self.patience
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds the session of a login, and returns the role's generation. At the limit, the session replaces an idle one of another role that
    /// owns more. If no role does, the session is closed, and the role keeps its other sessions; None if it has none. None, too, if the
    /// session has ended.
    pub fn add(self: &Arc<Self>, role: &str, mut session: Session) -> Option<u64> {
        if session.end().is_some() {
            return None;
        }
        let state = &mut *self.lock();
        if let Some(pool) = state.roles.get_mut(role)
            && (pool.oid != session.role
                || pool.proof.contradicts(&session.proof)
                || pool.idle.iter_mut().any(|idle| idle.end() == Some(End::Router)))
        {
            state.end(role);
        }
        if state.count() >= self.limit {
            let Some(name) = state.loser_to(role) else { return Some(state.roles.get(role)?.generation) };
            let open = state.cursors.by_session(&name);
            let pool = state.roles.get_mut(&name)?;
            let evicted = pool.idle.remove(pool.most_dispensable(&open)?);
            state.forget(&name, evicted.id);
        }
        if !state.roles.contains_key(role) {
            let generation = state.generation_of(role, &session);
            state.number += 1;
            let (idle, leased, pinned, waiting) = Default::default();
            let (number, oid, proof) = (state.number, session.role, session.proof.clone());
            state.roles.insert(role.to_owned(), Role { number, generation, oid, proof, idle, leased, pinned, waiting });
        }
        let pool = state.roles.get_mut(role)?;
        if pool.proof == Proof::Nothing {
            pool.proof = session.proof.clone();
        }
        let generation = pool.generation;
        pool.rest(session);
        self.serve(state);
        self.added.notify_waiters();
        Some(generation)
    }

    /// Waits for a session of the role: any session, or the one with this id.
    pub async fn lease(self: &Arc<Self>, who: &Identity, id: Option<u64>) -> Result<Lease, Unavailable> {
        self.lease_such(who, Wanted { id, ..Wanted::default() }).await
    }

    /// Like [`Pools::lease`]. After a restart of the router, a client that cannot log in again without an error waits for another
    /// client's login.
    pub async fn lease_such(self: &Arc<Self>, who: &Identity, such: Wanted) -> Result<Lease, Unavailable> {
        let until = tokio::time::Instant::now() + self.hold;
        loop {
            let mut added = std::pin::pin!(self.added.notified());
            // From here on no added session is missed.
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

    async fn lease_now(self: &Arc<Self>, who: &Identity, such: Wanted) -> Result<Lease, Unavailable> {
        let (role, wanted) = (who.role.as_str(), such.id);
        let receive = {
            let state = &mut *self.lock();
            loop {
                let (has_room, is_allowed) = (state.has_room(role), state.may_use_more(role));
                let may_grow = state.count() < state.limit;
                let open = state.cursors.by_session(role);
                let pool = state.roles.get_mut(role);
                let Some(pool) = pool.filter(|pool| who.generation.is_none_or(|own| own == pool.generation)) else {
                    return Err(missing(wanted));
                };
                let place = pool.place(wanted, &open);
                let Some(place) = place.filter(|_| is_allowed) else {
                    let possible =
                        place.is_some() || wanted.map_or(!pool.leased.is_empty(), |id| pool.leased.contains(&id));
                    if !possible {
                        return Err(missing(wanted));
                    }
                    let is_pinned = is_allowed && pool.pinned.len() == pool.leased.len();
                    if wanted.is_none() && such.can_log_in && has_room && is_pinned {
                        return Err(Unavailable::Full);
                    }
                    let (send, receive) = oneshot::channel();
                    pool.wait(Waiter { wanted, send });
                    break receive;
                };
                let is_full = pool.cursors_of(place, &open) >= MAX_OF_SESSION;
                if wanted.is_none() && such.can_log_in && such.opens_cursor && is_full && may_grow {
                    return Err(Unavailable::Full);
                }
                let mut session = pool.idle.remove(place);
                // The session may have ended while it was idle. Nothing has been sent to it then, so another session is tried.
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

    /// Closes sessions that have been idle for this long and have no cursors. A role keeps one session, so that its clients need not log in
    /// again.
    pub fn close_idle(&self, after: Duration) {
        let mut closed = Vec::new();
        let state = &mut *self.lock();
        for (name, role) in &mut state.roles {
            let open = state.cursors.by_session(name);
            let is_over = |session: &Session| session.since.elapsed() >= after && !open.contains_key(&session.id);
            let most = (role.idle.len() + role.leased.len()).saturating_sub(1);
            // Those in front have been idle longest.
            let (mut kept, mut count) = (Vec::new(), 0);
            for session in std::mem::take(&mut role.idle) {
                let closes = count < most && is_over(&session);
                count += usize::from(closes);
                if closes { &mut closed } else { &mut kept }.push(session);
            }
            role.idle = kept;
        }
    }

    /// True if the generation of the client's login is the role's present one.
    pub fn is_current(&self, who: &Identity) -> bool {
        let state = self.lock();
        let pool = state.roles.get(&who.role);
        pool.is_some_and(|pool| who.generation.is_none_or(|own| own == pool.generation))
    }

    /// True if a role has no idle session, or only such with cursors and the limit is not reached; and it may use one more, and a login can
    /// add one.
    pub fn is_wanting(&self, role: &str) -> bool {
        let state = self.lock();
        let is_short = |pool: &Role| match pool.idle.is_empty() {
            true => state.has_room(role),
            false => {
                let open = state.cursors.by_session(role);
                state.count() < state.limit && pool.idle.iter().all(|session| open.contains_key(&session.id))
            }
        };
        state.may_use_more(role) && state.roles.get(role).is_none_or(is_short)
    }

    fn lent(self: &Arc<Self>, role: &str, pool: &Role, session: Session) -> Lease {
        let (number, generation) = (pool.number, pool.generation);
        Lease { session: Some(session), pools: self.clone(), role: role.to_owned(), number, generation }
    }

    /// Takes a leased session back. If its statement or transaction has not ended, returns the session, which the caller must close.
    fn take_back(self: &Arc<Self>, role: &str, number: u64, mut session: Session) -> Option<Session> {
        let end = session.end();
        let state = &mut *self.lock();
        match (state.roles.get_mut(role).filter(|pool| pool.number == number), end) {
            (None, _) => state.retire(role),
            (Some(pool), None) if session.is_usable() => {
                pool.leased.remove(&session.id);
                pool.pinned.remove(&session.id);
                pool.rest(session);
                self.serve(state);
                return None;
            }
            (Some(_), Some(End::Router)) => {
                state.end(role);
                state.retire(role);
            }
            (Some(_), _) => state.forget(role, session.id),
        }
        self.serve(state);
        (!session.is_usable()).then_some(session)
    }

    /// Gives idle sessions to waiters, as far as their roles may use more.
    fn serve(self: &Arc<Self>, state: &mut State) {
        while let Some((role, number, place)) = state.next()
            && let Some(pool) = state.roles.get_mut(&role)
            && let Some(waiter) = pool.waiting.remove(number)
        {
            let session = pool.idle.remove(place);
            let id = session.id;
            pool.leased.insert(id);
            // A waiter that has given up has closed its channel. The session goes to the next one.
            if let Err(mut back) = waiter.send.send(self.lent(&role, pool, session)) {
                pool.leased.remove(&id);
                pool.idle.extend(back.session.take());
            }
        }
    }

    /// Ends the role's generation, because the router has ended a session that is no longer in the pool.
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

    /// Marks the session as used by a transaction, so that other clients do not wait for it.
    pub fn pin(&mut self) {
        let id = self.session().id;
        let mut state = self.pools.lock();
        if let Some(pool) = state.roles.get_mut(&self.role).filter(|pool| pool.number == self.number) {
            pool.pinned.insert(id);
        }
    }

    pub fn session(&mut self) -> &mut Session {
        // Only `drop`, which ends the lease, takes the session.
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
mod tests;
