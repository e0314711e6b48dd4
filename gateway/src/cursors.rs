//! Which session has which cursor.
//!
//! A cursor is a portal of the session that opened it (`src/command/cursors.rs` of the extension), so `getMore` must go to that session.
//! In between, the session serves other statements, if no session without cursors is idle (`pool`). So a `getMore` waits while its session
//! runs another client's statement, and a cursor ends with its session.
//!
//! A cursor of a transaction is in the transaction's session, and ends with the transaction.
//!
//! INVARIANT: a role finds only the cursors that it has opened, and opening cursors never closes the cursors of another role. A
//! session has at most [`MAX_OF_SESSION`] cursors outside transactions, as the router stores the rows that each has not returned.

use crate::session;
use std::collections::{HashMap, HashSet};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Sessions that have been idle for this long are closed.
pub const IDLE: Duration = Duration::from_secs(900);

/// The router closes a cursor after ten idle minutes, or half an hour with `noCursorTimeout`. The gateway forgets
/// every cursor a little after half an hour.
const FORGOTTEN: Duration = Duration::from_secs(1900);

/// The largest number of cursors of a session; beyond it, the least recently used one is closed.
pub const MAX_OF_SESSION: usize = 100;

/// The largest number of cursors of a role, including those of ended sessions; beyond it, the least recently used ones are forgotten.
const MAX_OF_ROLE: usize = 50_000;

#[derive(Debug)]
struct Place {
    session: u64,
    transaction: Option<session::Place>,
    namespace: Namespace,
    used: Instant,
}

/// Database and collection.
pub type Namespace = (String, String);

#[derive(Debug, Default)]
struct Role {
    places: HashMap<i64, Place>,
    /// the cursors outside transactions, by session
    open: HashMap<u64, HashSet<i64>>,
}

impl Role {
    fn remove(&mut self, id: i64) -> Option<Place> {
        let place = self.places.remove(&id)?;
        if let Some(open) = self.open.get_mut(&place.session) {
            open.remove(&id);
            if open.is_empty() {
                self.open.remove(&place.session);
            }
        }
        Some(place)
    }

    fn forget(&mut self, is_old: impl Fn(&Place) -> bool) {
        let old: Vec<i64> = self.places.iter().filter(|(_, place)| is_old(place)).map(|(id, _)| *id).collect();
        old.into_iter().for_each(|id| drop(self.remove(id)));
    }
}

#[derive(Debug, Default)]
pub struct Cursors {
    roles: Mutex<HashMap<String, Role>>,
}

impl Cursors {
    fn lock(&self) -> MutexGuard<'_, HashMap<String, Role>> {
        self.roles.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The session and the transaction of a cursor; None if the role has no such cursor.
    pub fn find(&self, role: &str, id: i64) -> Option<(u64, Option<session::Place>)> {
        let mut roles = self.lock();
        let place = roles.get_mut(role)?.places.get_mut(&id)?;
        place.used = Instant::now();
        Some((place.session, place.transaction))
    }

    /// How many cursors of a role its sessions have, outside transactions. Sessions without cursors are not listed.
    pub fn by_session(&self, role: &str) -> HashMap<u64, usize> {
        let roles = self.lock();
        let open = roles.get(role).into_iter().flat_map(|role| &role.open);
        open.map(|(session, cursors)| (*session, cursors.len())).collect()
    }

    /// Remembers a cursor, or that it was used. If the session has too many, forgets one and returns it; the caller must close it.
    pub fn insert(
        &self,
        role: &str,
        id: i64,
        session: u64,
        transaction: Option<session::Place>,
        namespace: Namespace,
    ) -> Option<(i64, Namespace)> {
        let mut roles = self.lock();
        let role = roles.entry(role.to_owned()).or_default();
        if role.places.len() >= MAX_OF_ROLE {
            let mut used: Vec<Instant> = role.places.values().map(|place| place.used).collect();
            used.sort_unstable();
            if let Some(limit) = used.get(used.len() / 10).copied() {
                role.forget(|place| place.used <= limit);
            }
        }
        role.places.insert(id, Place { session, transaction, namespace, used: Instant::now() });
        if transaction.is_some() {
            return None;
        }
        let open = role.open.entry(session).or_default();
        open.insert(id);
        if open.len() <= MAX_OF_SESSION {
            return None;
        }
        let least = open.iter().min_by_key(|id| role.places.get(id).map(|place| place.used)).copied()?;
        Some((least, role.remove(least)?.namespace))
    }

    pub fn remove(&self, role: &str, id: i64) {
        if let Some(role) = self.lock().get_mut(role) {
            role.remove(id);
        }
    }

    /// Forgets cursors that no session can have any more.
    pub fn sweep(&self) {
        let mut roles = self.lock();
        roles.values_mut().for_each(|role| role.forget(|place| place.used.elapsed() >= FORGOTTEN));
        roles.retain(|_, role| !role.places.is_empty());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn namespace() -> Namespace {
        ("test".to_owned(), "things".to_owned())
    }

    #[test]
    fn a_cursor_belongs_to_a_role() {
        let cursors = Cursors::default();
        cursors.insert("ann", 7, 1, None, namespace());
        assert_eq!(
            (cursors.find("ann", 7), cursors.find("bob", 7), cursors.find("ann", 8)),
            (Some((1, None)), None, None)
        );
        assert_eq!((cursors.by_session("ann"), cursors.by_session("bob")), (HashMap::from([(1, 1)]), HashMap::new()));
        cursors.remove("bob", 7);
        assert_eq!(cursors.find("ann", 7), Some((1, None)));
        cursors.remove("ann", 7);
        assert_eq!(cursors.find("ann", 7), None);
        assert!(cursors.by_session("ann").is_empty());
        cursors.sweep();
        assert!(cursors.lock().is_empty());
    }

    #[test]
    fn a_session_closes_those_that_are_too_many() {
        let cursors = Cursors::default();
        let open = |id: i64, session: u64| cursors.insert("ann", id, session, None, namespace());
        (0..MAX_OF_SESSION as i64).for_each(|id| assert_eq!(open(id, 1), None));
        assert_eq!(open(5, 1), None, "it was used again");
        assert_eq!(open(-1, 2), None, "another session");
        cursors.find("ann", 0);
        assert_eq!(open(5_000, 1), Some((1, namespace())));
        assert_eq!(cursors.find("ann", 1), None);
        let place = session::Place { session: [0; 16], number: 1 };
        assert_eq!(cursors.insert("ann", 6_000, 1, Some(place), namespace()), None, "a transaction has its own limit");
    }

    #[test]
    fn a_roles_number_is_bounded_and_ends_no_other_roles() {
        let cursors = Cursors::default();
        cursors.insert("bob", 1, 1, None, namespace());
        for id in 0..MAX_OF_ROLE as i64 + 5_000 {
            cursors.insert("ann", id, 2 + id as u64 / 1_000, None, namespace());
        }
        assert!(cursors.lock()["ann"].places.len() <= MAX_OF_ROLE);
        assert!(cursors.find("ann", MAX_OF_ROLE as i64 + 4_999).is_some());
        assert!(cursors.find("bob", 1).is_some());
    }
}
