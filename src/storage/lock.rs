//! docshard's heavyweight locks. Unless said otherwise they are held to the end of the transaction, and survive PREPARE TRANSACTION.
//!
//! They are advisory locks with classes (`locktag_field4`) that SQL functions cannot take, so they never conflict with a user's.

use crate::pg::error::Result;
use crate::pg::spi;
use crate::pg::version::holds_lock;
use pgrx::pg_sys;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tag {
    /// a collection on this shard: writers share it
    Collection(i32),
    /// a migration: writers to its range share it, the hand-over excludes them
    Migration(i64),
    /// a distributed transaction of this router, from its first PREPARE to its end
    Transaction(i64),
    /// a role in this database: 1 its worker, 3 the balancer while it splits or moves, 4 processes that want the balancer to
    /// stop (shared), 5 the deadlock detector, 6 processes that request a deadlock check, 7 a change of passwords, 8 the keeper
    /// process, which holds the shards' locks `Router`, 9 the keeper, as long as no other router holds one of these locks,
    /// 10 and 11 sessions that build indexes as owners of collections, 12 and 13 the background workers that they have started
    Worker(i32),
    /// the process that works on a migration or on a change of a collection's layout, on the router: its coordinator,
    /// or its recovery
    Coordinator(i64),
    /// upserts of one document, on a shard: the collection, and a hash of the document's keys, of which the lower 32 bits are used
    Upsert(i32, i64),
    /// the process that starts a worker to complete a migration
    Helper(i64),
    /// the process that builds an index, on the router, or removes a failed build
    Builder(i32),
    /// on the router, while only one part of a decided migration may be committed
    Settling(i64),
    /// a hand-over: the donor session holds it from the exclusion of writers until the map names the new owner
    HandOver(i64),
    /// a process of this router that must fail to end a deadlock; the deadlock detector holds the lock
    Victim(i32),
    /// a process that has noticed that it was chosen as the victim; it holds the lock until it has failed
    Failing(i32),
    /// a collection's indexes and chunk bounds, on the router: changes of them take it exclusively, moves share it while they register
    Definition(i32),
    /// on the router, while a change of a collection's layout excludes its writers: see `router::gate`
    Gate(i32),
    /// the cluster's router, on each of its shards
    Router,
    /// a hash of a namespace, on the router, while a collection or a view of that name is created
    Namespace(i64),
    /// on the router: the keeper process holds this shard's lock `Router`
    Kept(i32),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    Shared,
    Exclusive,
}

impl Tag {
    fn locktag(self) -> pg_sys::LOCKTAG {
        let wide = |class: u16, id: i64| (class, (id >> 32) as u32, id as u32);
        let narrow = |class: u16, id: i32| (class, 0, id as u32);
        let (class, high, low) = match self {
            Tag::Collection(id) => narrow(0xD0C1, id),
            Tag::Migration(id) => wide(0xD0C2, id),
            Tag::Transaction(id) => wide(0xD0C3, id),
            Tag::Worker(role) => narrow(0xD0C4, role),
            Tag::Coordinator(id) => wide(0xD0C5, id),
            Tag::Upsert(collection, hash) => (0xD0C6, collection as u32, hash as u32),
            Tag::Helper(id) => wide(0xD0C7, id),
            Tag::Builder(id) => narrow(0xD0C8, id),
            Tag::Settling(id) => wide(0xD0C9, id),
            Tag::HandOver(id) => wide(0xD0CA, id),
            Tag::Victim(pid) => narrow(0xD0CB, pid),
            Tag::Failing(pid) => narrow(0xD0D0, pid),
            Tag::Definition(id) => narrow(0xD0CC, id),
            Tag::Gate(id) => narrow(0xD0D1, id),
            Tag::Router => narrow(0xD0CD, 0),
            Tag::Namespace(hash) => wide(0xD0CF, hash),
            Tag::Kept(shard) => narrow(0xD0CE, shard),
        };
        pg_sys::LOCKTAG {
            // SAFETY: MyDatabaseId is set once at the backend's start.
            locktag_field1: u32::from(unsafe { pg_sys::MyDatabaseId }),
            locktag_field2: high,
            locktag_field3: low,
            locktag_field4: class,
            locktag_type: pg_sys::LockTagType::LOCKTAG_ADVISORY as u8,
            locktag_lockmethodid: pg_sys::USER_LOCKMETHOD as u8,
        }
    }
}

const fn lockmode(mode: Mode) -> pg_sys::LOCKMODE {
    match mode {
        Mode::Shared => pg_sys::ShareLock as pg_sys::LOCKMODE,
        Mode::Exclusive => pg_sys::ExclusiveLock as pg_sys::LOCKMODE,
    }
}

/// Waits for the lock; serves interrupts, `lock_timeout` and PostgreSQL's deadlock detector.
pub fn acquire(tag: Tag, mode: Mode) {
    let locktag = tag.locktag();
    // SAFETY: a well-formed tag; transaction-scoped, so PostgreSQL releases it.
    unsafe { pg_sys::LockAcquire(&locktag, lockmode(mode), false, false) };
}

/// Prevents the drop of a table until the transaction ends.
pub fn keep_relation(relation: pg_sys::Oid) {
    // SAFETY: transaction-scoped. If the relation is gone, opening it reports that.
    unsafe { pg_sys::LockRelationOid(relation, pg_sys::AccessShareLock as pg_sys::LOCKMODE) };
}

/// True if this process holds the lock in this mode.
pub fn is_held(tag: Tag, mode: Mode) -> bool {
    let locktag = tag.locktag();
    // SAFETY: a well-formed tag; looks at this process's own locks.
    unsafe { holds_lock(&locktag, lockmode(mode)) }
}

/// Takes the lock if that needs no wait. Returns true if it was taken.
pub fn try_acquire(tag: Tag, mode: Mode) -> bool {
    let locktag = tag.locktag();
    // SAFETY: as above.
    let result = unsafe { pg_sys::LockAcquire(&locktag, lockmode(mode), false, true) };
    result != pg_sys::LockAcquireResult::LOCKACQUIRE_NOT_AVAIL
}

/// Releases a lock that [`try_acquire`] took, in the same subtransaction.
pub fn release(tag: Tag, mode: Mode) {
    let locktag = tag.locktag();
    // SAFETY: transaction-scoped; releasing what is not held is a warning.
    unsafe { pg_sys::LockRelease(&locktag, lockmode(mode), false) };
}

/// Like [`try_acquire`], but holds the lock until the process ends.
pub fn try_acquire_for_session(tag: Tag, mode: Mode) -> bool {
    let locktag = tag.locktag();
    // SAFETY: session-scoped; released at process exit.
    let result = unsafe { pg_sys::LockAcquire(&locktag, lockmode(mode), true, true) };
    result != pg_sys::LockAcquireResult::LOCKACQUIRE_NOT_AVAIL
}

pub fn release_for_session(tag: Tag, mode: Mode) {
    let locktag = tag.locktag();
    // SAFETY: session-scoped; releasing what is not held is a warning.
    unsafe { pg_sys::LockRelease(&locktag, lockmode(mode), true) };
}

/// True if no process holds the lock, not even this one.
pub fn is_free(tag: Tag) -> bool {
    let locktag = tag.locktag();
    // SAFETY: PostgreSQL would grant a lock again that this process holds.
    if unsafe { holds_lock(&locktag, lockmode(Mode::Exclusive)) || holds_lock(&locktag, lockmode(Mode::Shared)) } {
        return false;
    }
    let free = try_acquire_for_session(tag, Mode::Exclusive);
    if free {
        release_for_session(tag, Mode::Exclusive);
    }
    free
}

/// True if another process holds the lock exclusively. Takes it shared for a moment.
pub fn is_excluded(tag: Tag) -> bool {
    let free = try_acquire(tag, Mode::Shared);
    if free {
        release(tag, Mode::Shared);
    }
    !free
}

/// True if any process holds the lock, or waits for it. Never raises an error.
pub fn is_requested(tag: Tag) -> bool {
    let locktag = tag.locktag();
    // SAFETY: a well-formed tag; reads the shared lock table under its lock.
    unsafe { pg_sys::LockWaiterCount(&locktag) > 0 }
}

/// Returns an SQL condition that is true for the rows of `pg_locks` that hold the lock in the current database. For statements here or at
/// a shard.
pub fn is_held_in_pg_locks(tag: Tag) -> String {
    let tag = tag.locktag();
    // The view shows objsubid as a signed number.
    format!(
        "locktype = 'advisory' AND granted \
         AND database = (SELECT oid FROM pg_catalog.pg_database WHERE datname = pg_catalog.current_database()) \
         AND classid::int8 = {} AND objid::int8 = {} AND objsubid::int8 & 65535 = {}",
        tag.locktag_field2, tag.locktag_field3, tag.locktag_field4
    )
}

/// Returns the holders of the lock in `pg_locks`: the virtual transaction, and the process id unless the transaction is
/// prepared.
pub fn holding_processes(tag: Tag) -> Result<Vec<(String, Option<i32>)>> {
    let held = is_held_in_pg_locks(tag);
    let rows = spi::query(&format!("SELECT virtualtransaction, pid FROM pg_catalog.pg_locks WHERE {held}"), &[])?;
    Ok(rows.iter().map(|row| (row.text(0).to_owned(), row.get(1).is_some().then(|| row.i32(1)))).collect())
}
