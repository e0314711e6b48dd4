//! Which session has which cursor.
//!
//! A cursor is a portal of the session that opened it (`src/command/cursors.rs` of the extension), so `getMore` must go there. The
//! session still serves other statements between. It is a cost of this form: a `getMore` waits while its session runs another client's
//! statement, and a cursor ends with its session.
//!
//! A cursor of a transaction is in the transaction's session, and ends with it.
//!
//! INVARIANT: a role finds only the cursors that it has opened.

use crate::session;
use std::collections::{HashMap, HashSet};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// A session closes a cursor that was idle for ten minutes; it is forgotten here a little later, and then an idle session is closed.
pub const IDLE: Duration = Duration::from_secs(900);

/// The most cursors of all roles. Those used least recently are forgotten beyond it.
const MAX_CURSORS: usize = 100_000;

#[derive(Debug)]
struct Place {
    session: u64,
    transaction: Option<session::Place>,
    used: Instant,
}

#[derive(Debug, Default)]
pub struct Cursors {
    places: Mutex<HashMap<(String, i64), Place>>,
}

impl Cursors {
    fn lock(&self) -> MutexGuard<'_, HashMap<(String, i64), Place>> {
        self.places.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The session, and the transaction.
    pub fn find(&self, role: &str, id: i64) -> Option<(u64, Option<session::Place>)> {
        let mut places = self.lock();
        let place = places.get_mut(&(role.to_owned(), id))?;
        place.used = Instant::now();
        Some((place.session, place.transaction))
    }

    /// The sessions that have cursors of a role.
    pub fn sessions(&self, role: &str) -> HashSet<u64> {
        self.lock().iter().filter(|((owner, _), _)| owner == role).map(|(_, place)| place.session).collect()
    }

    pub fn insert(&self, role: &str, id: i64, session: u64, transaction: Option<session::Place>) {
        let mut places = self.lock();
        if places.len() >= MAX_CURSORS {
            let mut used: Vec<Instant> = places.values().map(|place| place.used).collect();
            used.sort_unstable();
            if let Some(limit) = used.get(used.len() / 10).copied() {
                places.retain(|_, place| place.used > limit);
            }
        }
        places.insert((role.to_owned(), id), Place { session, transaction, used: Instant::now() });
    }

    pub fn remove(&self, role: &str, id: i64) {
        self.lock().remove(&(role.to_owned(), id));
    }

    /// Forgets cursors that no session can have any more.
    pub fn sweep(&self) {
        self.lock().retain(|_, place| place.used.elapsed() < IDLE);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cursor_belongs_to_a_role() {
        let cursors = Cursors::default();
        cursors.insert("ann", 7, 1, None);
        assert_eq!(
            (cursors.find("ann", 7), cursors.find("bob", 7), cursors.find("ann", 8)),
            (Some((1, None)), None, None)
        );
        cursors.remove("bob", 7);
        assert_eq!(cursors.find("ann", 7), Some((1, None)));
        cursors.remove("ann", 7);
        assert_eq!(cursors.find("ann", 7), None);
    }

    #[test]
    fn their_number_is_bounded() {
        let cursors = Cursors::default();
        (0..MAX_CURSORS as i64 + 5_000).for_each(|id| cursors.insert("ann", id, 1, None));
        assert!(cursors.lock().len() <= MAX_CURSORS);
        assert!(cursors.find("ann", MAX_CURSORS as i64 + 4_999).is_some());
    }
}
