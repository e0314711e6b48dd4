//! Messages of backends to their database's worker, in shared memory.
//!
//! Messages can be lost, so only what may be lost is sent: the oldest make room for new ones if no worker takes them, and without
//! `shared_preload_libraries` nothing is sent. Each message has a key. Between two messages of one key, by any senders, there is at least
//! the interval that the sender names.

use super::{is_preloaded, my_database};
use crate::pg::server::{is_background_worker, wal};
use pgrx::prelude::*;
use pgrx::{PGRXSharedMemory, PgLwLock, pg_sys};
use std::cell::Cell;
use std::time::{SystemTime, UNIX_EPOCH};

/// The room for messages, in bytes.
const BYTES: usize = 256 << 10;
/// The number of keys that can wait at the same time until their next message may be sent. While so many wait, no message of another key is
/// sent.
const KEYS: usize = 128;
/// The database's OID and the length of the text, before each message.
const HEADER: usize = 8;

/// When the next message of a key may be sent, in microseconds since 1970.
#[derive(Clone, Copy, Default)]
struct Due {
    key: (u32, i32),
    at: i64,
}

struct Mailbox {
    due: [Due; KEYS],
    used: usize,
    bytes: [u8; BYTES],
}

impl Default for Mailbox {
    fn default() -> Self {
        Self { due: [Due::default(); KEYS], used: 0, bytes: [0; BYTES] }
    }
}

// SAFETY: numbers and bytes, valid in every process.
unsafe impl PGRXSharedMemory for Mailbox {}

// SAFETY: no other shared memory has this name.
static MAILBOX: PgLwLock<Mailbox> = unsafe { PgLwLock::new(c"docshard mailbox") };

thread_local! {
    /// When the next message may be sent, for the key with which this process has called [`send`] last.
    static SEEN: Cell<Due> = const { Cell::new(Due { key: (0, 0), at: 0 }) };
}

/// Called in the postmaster while it preloads.
pub fn define() {
    pgrx::pg_shmem_init!(MAILBOX);
}

fn now_us() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_micros());
    i64::try_from(since).unwrap_or(i64::MAX)
}

impl Mailbox {
    /// Returns when a message of this key may be sent. If that is now, the message counts as sent, and the next one waits for the interval.
    /// If [`KEYS`] other keys wait for theirs, that is after the interval.
    fn may_send(&mut self, key: (u32, i32), now: i64, interval_us: i64) -> Due {
        let known = self.due.iter().position(|due| due.key == key);
        let slot = known.or_else(|| self.due.iter().position(|due| due.at <= now));
        let Some(due) = slot.and_then(|slot| self.due.get_mut(slot)) else { return Due { key, at: now + interval_us } };
        if due.key != key {
            *due = Due { key, at: now };
        }
        let before = *due;
        // A clock that was set back does not block a key.
        if before.at <= now || before.at > now.saturating_add(interval_us) {
            due.at = now.saturating_add(interval_us);
            return Due { key, at: now };
        }
        before
    }

    /// The messages, as (database, start, end).
    fn messages(&self) -> impl Iterator<Item = (u32, usize, usize)> {
        let mut at = 0;
        std::iter::from_fn(move || {
            let header = self.bytes.get(at..at + HEADER).filter(|_| at < self.used)?;
            let number = |bytes: &[u8]| bytes.try_into().map_or(0, u32::from_ne_bytes);
            let (start, length) = (at + HEADER, number(&header[4..]) as usize);
            at = start + length;
            (at <= self.used).then(|| (number(&header[..4]), start, at))
        })
    }

    /// Removes this many bytes from the start; they must be whole messages.
    fn forget(&mut self, bytes: usize) {
        let used = self.used;
        self.bytes.copy_within(bytes..used, 0);
        self.used = used - bytes;
    }

    /// Appends a message; the oldest ones make room for it.
    fn append(&mut self, database: u32, text: &[u8]) {
        let size = HEADER + text.len();
        let Ok(length) = u32::try_from(text.len()) else { return };
        if size > BYTES {
            return;
        }
        let missing = (self.used + size).saturating_sub(BYTES);
        if missing > 0 {
            // A quarter at a time, so that not every message moves all others.
            let enough = missing.max(BYTES / 4).min(self.used);
            let end = self.messages().map(|(_, _, end)| end).find(|end| *end >= enough).unwrap_or(self.used);
            self.forget(end);
        }
        let at = self.used;
        self.bytes[at..at + 4].copy_from_slice(&database.to_ne_bytes());
        self.bytes[at + 4..at + HEADER].copy_from_slice(&length.to_ne_bytes());
        self.bytes[at + HEADER..at + size].copy_from_slice(text);
        self.used = at + size;
    }

    /// Removes and returns the messages of a database.
    fn take(&mut self, database: u32) -> Vec<Vec<u8>> {
        let found: Vec<(u32, usize, usize)> = self.messages().collect();
        let mut taken = Vec::new();
        let mut kept = 0;
        for (of, start, end) in found {
            if of == database {
                taken.push(self.bytes[start..end].to_vec());
                continue;
            }
            self.bytes.copy_within(start - HEADER..end, kept);
            kept += HEADER + end - start;
        }
        self.used = kept;
        taken
    }
}

/// Sends the message that `write` returns to this database's worker, unless another one of the key was sent within the interval. Workers
/// send nothing, nor do processes of a standby, which has no worker.
pub fn send(key: i32, interval_us: i64, write: impl FnOnce() -> Option<String>) {
    let key = (u32::from(my_database()), key);
    let now = now_us();
    let seen = SEEN.get();
    if seen.key == key && now < seen.at && seen.at <= now.saturating_add(interval_us) {
        return;
    }
    if !is_preloaded() || is_background_worker() || wal::in_recovery() {
        return;
    }
    let due = MAILBOX.exclusive().may_send(key, now, interval_us);
    if due.at > now {
        return SEEN.set(due);
    }
    SEEN.set(Due { key, at: now.saturating_add(interval_us) });
    if let Some(text) = write() {
        MAILBOX.exclusive().append(key.0, text.as_bytes());
    }
}

/// Takes the messages to this database's worker.
pub fn take() -> Vec<String> {
    if !is_preloaded() {
        return Vec::new();
    }
    let database = u32::from(my_database());
    if MAILBOX.share().used == 0 {
        return Vec::new();
    }
    let taken = MAILBOX.exclusive().take(database);
    taken.into_iter().filter_map(|text| String::from_utf8(text).ok()).collect()
}

#[cfg(any(test, feature = "pg_test"))]
#[pgrx::pg_schema]
mod tests {
    use super::*;
    use pgrx::pg_test;

    #[pg_test]
    fn messages_are_paced_by_key_and_taken_by_database() {
        let mut mailbox = Box::<Mailbox>::default();
        let mut sent = |key, now| mailbox.may_send(key, now, 10).at <= now;
        assert_eq!(
            [100, 105, 109, 110, 119, 131].map(|now| sent((1, 1), now)),
            [true, false, false, true, false, true]
        );
        assert!(sent((1, 2), 131) && !sent((1, 2), 132));
        for (database, text) in [(1, "a"), (2, "bb"), (1, "")] {
            mailbox.append(database, text.as_bytes());
        }
        assert_eq!(mailbox.take(1), [b"a".to_vec(), Vec::new()]);
        assert_eq!((mailbox.take(1).len(), mailbox.take(2)), (0, vec![b"bb".to_vec()]));
        assert_eq!(mailbox.used, 0);
        // The oldest make room.
        for number in 0..100_u8 {
            mailbox.append(3, &[number; 4000]);
        }
        let left = mailbox.take(3);
        assert!(left.len() > 40 && left.len() < 66 && left.last() == Some(&vec![99; 4000]));
        mailbox.append(3, &vec![0; BYTES]);
        assert_eq!(mailbox.used, 0);
    }
}
