//! Makes the writers of a collection wait before they take any lock, while a change of its layout is about to exclude them.
//!
//! The change takes the collection's lock on several shards, and so does a write to several shards. The two could deadlock, each
//! with some of the locks that the other waits for. So writes that hold no lock yet wait here, on the router.

use crate::pg::server::sleep_ms;
use crate::pg::version::local_transaction;
use crate::storage::lock::{Tag, is_excluded};
use std::cell::Cell;
use std::time::{Duration, Instant};

/// The longest wait of a write. A change keeps the gate closed for `docshard.max_write_stall`, unless its user lets writers wait.
const MAX_WAIT: Duration = Duration::from_secs(60);

thread_local! {
    /// The local id of the last transaction that passed the gate. It may hold locks since then.
    static PASSED: Cell<Option<u32>> = const { Cell::new(None) };
}

/// Waits until the gate is open; returns true if it was closed. Only the first write of a transaction waits. Before a later one, the
/// transaction may already hold locks of the collection, for which the change waits.
pub(super) fn pass(collection: i32) -> bool {
    let transaction = Some(local_transaction());
    if PASSED.replace(transaction) == transaction {
        return false;
    }
    let (began, mut waited) = (Instant::now(), false);
    while is_excluded(Tag::Gate(collection)) && began.elapsed() < MAX_WAIT {
        waited = true;
        sleep_ms(2);
    }
    waited
}
