//! Sessions at the router, shared by all clients of a role.
//!
//! A session comes from a login that PostgreSQL has checked, and goes to the pool of that role: so a statement of a client runs in a
//! session of exactly the role as which the client has logged in, and the gateway can open no session by itself.
//!
//! A client holds a session only while its statement runs. Whoever finds none free waits, in order, for a bounded time. A
//! cursor's statements go to the session that has the cursor (`wanted`).
//!
//! INVARIANT: the number of sessions is at most the limit. A session is idle, or leased, never both.

use crate::backend::Session;
use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::oneshot;

#[derive(Debug, Default)]
struct Role {
    idle: Vec<Session>,
    leased: HashSet<u64>,
    waiting: VecDeque<Waiter>,
}

#[derive(Debug)]
struct Waiter {
    wanted: Option<u64>,
    /// a lease, not a session: if the waiter goes away while it is being sent, the session goes back to the pool
    send: oneshot::Sender<Lease>,
}

#[derive(Debug)]
pub struct Pools {
    roles: Mutex<HashMap<String, Role>>,
    limit: usize,
    patience: Duration,
}

/// Why there is no session.
#[derive(Debug, PartialEq, Eq)]
pub enum Unavailable {
    /// all were in use for too long
    Timeout,
    /// the role has no session any more: its clients must log in again
    NoSession,
    /// the wanted session is gone
    Gone,
}

/// A session in use; it goes back to its pool when dropped, or is closed if its statement has not ended.
#[derive(Debug)]
pub struct Lease {
    session: Option<Session>,
    pools: Arc<Pools>,
    role: String,
}

impl Pools {
    pub fn new(limit: usize, patience: Duration) -> Arc<Self> {
        Arc::new(Self { roles: Mutex::default(), limit, patience })
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, Role>> {
        self.roles.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds the session of a login. At the limit, the new session is closed if the role has others, and else takes the place
    /// of an idle one of another role. False if neither is possible.
    pub fn add(self: &Arc<Self>, role: &str, session: Session) -> bool {
        let mut roles = self.lock();
        let total: usize = roles.values().map(|role| role.idle.len() + role.leased.len()).sum();
        if total >= self.limit {
            if roles.get(role).is_some_and(|role| !role.idle.is_empty() || !role.leased.is_empty()) {
                return true;
            }
            // The role with the most idle sessions loses one.
            let most = roles.values_mut().max_by_key(|role| role.idle.len());
            let Some(evicted) = most.filter(|role| !role.idle.is_empty()).map(|role| role.idle.remove(0)) else {
                return false;
            };
            drop(evicted);
        }
        self.give(role, roles.entry(role.to_owned()).or_default(), session);
        true
    }

    /// Waits for a session of the role: any, or the one with this id.
    pub async fn lease(self: &Arc<Self>, role: &str, wanted: Option<u64>) -> Result<Lease, Unavailable> {
        let lease = |session| Lease { session: Some(session), pools: self.clone(), role: role.to_owned() };
        loop {
            let waiting = {
                let mut roles = self.lock();
                let Some(pool) = roles.get_mut(role) else { return Err(missing(wanted)) };
                let position = match wanted {
                    None => pool.idle.len().checked_sub(1),
                    Some(id) => pool.idle.iter().position(|session| session.id == id),
                };
                match position.map(|position| pool.idle.remove(position)) {
                    Some(session) => {
                        pool.leased.insert(session.id);
                        Ok(session)
                    }
                    None => {
                        let possible = wanted.map_or(!pool.leased.is_empty(), |id| pool.leased.contains(&id));
                        if !possible {
                            return Err(missing(wanted));
                        }
                        let (send, receive) = oneshot::channel();
                        pool.waiting.push_back(Waiter { wanted, send });
                        Err(receive)
                    }
                }
            };
            let mut lease = match waiting {
                Ok(session) => lease(session),
                Err(receive) => match tokio::time::timeout(self.patience, receive).await {
                    Err(_) => return Err(Unavailable::Timeout),
                    Ok(Err(_)) => return Err(missing(wanted)),
                    Ok(Ok(lease)) => lease,
                },
            };
            // The router may have closed it while it was idle; then nothing has been sent, and another one serves.
            if lease.session().is_alive().await {
                return Ok(lease);
            }
            lease.discard();
            if wanted.is_some() {
                return Err(Unavailable::Gone);
            }
        }
    }

    /// Closes sessions that have been idle for this long. A role keeps one, so that its clients need not log in again.
    pub fn close_idle(&self, after: Duration) {
        let mut closed = Vec::new();
        for role in self.lock().values_mut() {
            // The one that was used last is taken first, so those in front have been idle for longest.
            let idle = role.idle.iter().take_while(|session| session.since.elapsed() >= after).count();
            let most = (role.idle.len() + role.leased.len()).saturating_sub(1);
            closed.extend(role.idle.drain(..idle.min(most)));
        }
    }

    /// True if a role has no idle session and fewer than this many.
    pub fn is_wanting(&self, role: &str, most: usize) -> bool {
        self.lock().get(role).is_none_or(|role| role.idle.is_empty() && role.leased.len() < most)
    }

    fn give_back(self: &Arc<Self>, role: &str, session: Session) {
        if let Some(pool) = self.lock().get_mut(role) {
            pool.leased.remove(&session.id);
            self.give(role, pool, session);
        }
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
            match waiter.send.send(Lease { session: Some(session), pools: self.clone(), role: role.to_owned() }) {
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

    fn forget(&self, role: &str, id: u64) {
        let mut roles = self.lock();
        let Some(pool) = roles.get_mut(role) else { return };
        pool.leased.remove(&id);
        // Those who wait for what cannot come learn it from their closed channel.
        let none = pool.leased.is_empty() && pool.idle.is_empty();
        pool.waiting.retain(|waiter| !none && waiter.wanted != Some(id));
        if none {
            roles.remove(role);
        }
    }
}

fn missing(wanted: Option<u64>) -> Unavailable {
    if wanted.is_some() { Unavailable::Gone } else { Unavailable::NoSession }
}

impl Lease {
    pub fn session(&mut self) -> &mut Session {
        // Only `drop` and `discard`, which end the lease, take it.
        self.session.as_mut().unwrap_or_else(|| unreachable!("a lease has a session"))
    }

    fn discard(mut self) {
        if let Some(session) = self.session.take() {
            self.pools.forget(&self.role, session.id);
        }
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        match self.session.take() {
            Some(session) if session.is_usable() => self.pools.give_back(&self.role, session),
            Some(session) => {
                self.pools.forget(&self.role, session.id);
                if let Ok(runtime) = tokio::runtime::Handle::try_current() {
                    runtime.spawn(session.abandon());
                }
            }
            None => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::DuplexStream;

    const SOON: Duration = Duration::from_millis(50);
    const LATE: Duration = Duration::from_secs(60);

    /// Pools with these sessions, and the other ends of their connections, which keep them alive.
    fn pools(limit: usize, patience: Duration, sessions: &[(&str, u64)]) -> (Arc<Pools>, Vec<DuplexStream>) {
        let pools = Pools::new(limit, patience);
        let add = |(role, id): &(&str, u64)| {
            let (session, end) = Session::detached(*id);
            assert!(pools.add(role, session));
            end
        };
        let ends = sessions.iter().map(add).collect();
        (pools, ends)
    }

    fn ids(pools: &Pools, role: &str) -> Vec<u64> {
        pools.lock().get(role).map_or(Vec::new(), |role| role.idle.iter().map(|session| session.id).collect())
    }

    #[tokio::test]
    async fn a_session_is_leased_to_one_at_a_time() {
        let (pools, _ends) = pools(9, SOON, &[("ann", 1), ("bob", 2)]);
        let lease = pools.lease("ann", None).await.unwrap();
        assert_eq!(pools.lease("ann", None).await.unwrap_err(), Unavailable::Timeout);
        assert_eq!(pools.lease("eve", None).await.unwrap_err(), Unavailable::NoSession);
        assert_eq!(pools.lease("ann", Some(2)).await.unwrap_err(), Unavailable::Gone, "another role's session");
        drop(lease);
        // Whoever gave up waiting gets nothing.
        assert_eq!((ids(&pools, "ann"), ids(&pools, "bob")), (vec![1], vec![2]));
    }

    #[tokio::test]
    async fn who_waits_is_served_in_order_or_with_the_session_of_the_cursor() {
        let (pools, _ends) = pools(9, LATE, &[("ann", 1), ("ann", 2)]);
        let (first, second) = (pools.lease("ann", Some(1)).await.unwrap(), pools.lease("ann", Some(2)).await.unwrap());
        let wait = |wanted: Option<u64>| {
            let pools = pools.clone();
            async move { pools.lease("ann", wanted).await.unwrap().session().id }
        };
        let (cursor, any) = (tokio::spawn(wait(Some(2))), tokio::spawn(wait(None)));
        while pools.lock()["ann"].waiting.len() < 2 {
            tokio::task::yield_now().await;
        }
        drop(first);
        assert_eq!(any.await.unwrap(), 1);
        assert!(!cursor.is_finished());
        drop(second);
        assert_eq!(cursor.await.unwrap(), 2);
        assert_eq!(ids(&pools, "ann").len(), 2);
    }

    #[tokio::test]
    async fn a_session_that_is_lost_is_replaced_or_missed() {
        let (pools, mut ends) = pools(9, LATE, &[("ann", 1), ("ann", 2)]);
        // The router closes the connection of the one that would be taken first.
        ends.pop();
        assert_eq!(pools.lease("ann", None).await.unwrap().session().id, 1);
        assert_eq!(pools.lease("ann", Some(2)).await.unwrap_err(), Unavailable::Gone);
        // One whose statement did not end is closed, and nobody waits for it in vain.
        let mut lease = pools.lease("ann", None).await.unwrap();
        lease.session().pretend_to_run();
        let waiting = tokio::spawn({
            let pools = pools.clone();
            async move { pools.lease("ann", None).await.map(drop) }
        });
        while pools.lock()["ann"].waiting.is_empty() {
            tokio::task::yield_now().await;
        }
        drop(lease);
        assert_eq!(waiting.await.unwrap(), Err(Unavailable::NoSession));
        assert!(pools.lock().is_empty());
    }

    #[tokio::test]
    async fn a_role_keeps_one_idle_session() {
        let (pools, _ends) = pools(9, SOON, &[("ann", 1), ("ann", 2), ("ann", 3), ("bob", 4)]);
        pools.close_idle(LATE);
        assert_eq!(ids(&pools, "ann"), [1, 2, 3]);
        let lease = pools.lease("ann", None).await.unwrap();
        pools.close_idle(Duration::ZERO);
        assert_eq!((ids(&pools, "ann"), ids(&pools, "bob")), (vec![], vec![4]));
        drop(lease);
        pools.close_idle(Duration::ZERO);
        assert_eq!(ids(&pools, "ann"), [3]);
    }

    #[tokio::test]
    async fn the_number_of_sessions_is_limited() {
        let (pools, _ends) = pools(2, SOON, &[("ann", 1), ("ann", 2), ("ann", 3)]);
        assert_eq!(ids(&pools, "ann"), [1, 2], "more of the same role are not kept");
        let (session, _end) = Session::detached(4);
        assert!(pools.add("bob", session), "it takes an idle one's place");
        assert_eq!((ids(&pools, "ann").len(), ids(&pools, "bob")), (1, vec![4]));
        let _all = (pools.lease("ann", None).await.unwrap(), pools.lease("bob", None).await.unwrap());
        let (session, _end) = Session::detached(5);
        assert!(!pools.add("eve", session), "nothing is idle");
    }
}
