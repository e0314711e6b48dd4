//! docshard's own heavyweight locks, held to the end of the transaction and kept by PREPARE TRANSACTION.
//!
//! They are advisory locks of a class (`locktag_field4`) that no SQL function reaches, so they never meet a user's.

use crate::pg::error::Result;
use crate::pg::spi;
use crate::pg::spi::param::Param;
use pgrx::pg_sys;

const CLASS_COLLECTION: u16 = 0xD0C1;
const CLASS_MIGRATION: u16 = 0xD0C2;
const CLASS_TRANSACTION: u16 = 0xD0C3;
const CLASS_WORKER: u16 = 0xD0C4;
const CLASS_COORDINATOR: u16 = 0xD0C5;
const CLASS_UPSERT: u16 = 0xD0C6;
const CLASS_HELPER: u16 = 0xD0C7;
const CLASS_BUILDER: u16 = 0xD0C8;
const CLASS_SETTLING: u16 = 0xD0C9;
const CLASS_HAND_OVER: u16 = 0xD0CA;
const CLASS_VICTIM: u16 = 0xD0CB;
const CLASS_DEFINITION: u16 = 0xD0CC;
const CLASS_ROUTER: u16 = 0xD0CD;
const CLASS_KEPT: u16 = 0xD0CE;

/// What is locked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tag {
    /// a collection on this shard: writers share it
    Collection(i32),
    /// a migration: writers to its range share it, the hand-over excludes them
    Migration(i64),
    /// a distributed transaction of this router, from its first PREPARE to its end
    Transaction(i64),
    /// a role in this database: 1 its worker, 3 the balancer while it splits or moves, 4 who wants it to stop (shared),
    /// 5 who looks for deadlocks, 6 who has somebody do that, 7 who changes passwords, 8 its keeper, 9 the keeper while no
    /// shard's lock is another router's
    Worker(i32),
    /// who works on a migration, on the router: the process that moves the chunk, or one that recovers
    Coordinator(i64),
    /// upserts to a collection that look for the same, on a shard; of the number half of the bits count
    Upsert(i32, i64),
    /// who starts a worker that is to complete a migration
    Helper(i64),
    /// who builds an index, on the router, or clears away what is left of it
    Builder(i32),
    /// who commits both parts of a decided migration, on the router, while the second is not yet committed
    Settling(i64),
    /// a hand-over, on the donor, held by its session from the exclusion of writers until the map says who owns the range
    HandOver(i64),
    /// a process of this router that is to end a deadlock, held by who found that
    Victim(i32),
    /// a collection's indexes and chunks' bounds, on the router: who changes them excludes moves that register, which share it
    Definition(i32),
    /// the cluster's router, on each of its shards
    Router,
    /// a shard whose lock this router has: held by the router's keeper
    Kept(i32),
}

/// How strongly.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// with others of its kind
    Shared,
    /// alone
    Exclusive,
}

impl Tag {
    /// PostgreSQL's lock tag.
    pub fn locktag(self) -> pg_sys::LOCKTAG {
        let (class, high, low) = match self {
            Tag::Collection(id) => (CLASS_COLLECTION, 0, id as u32),
            Tag::Migration(id) => (CLASS_MIGRATION, (id >> 32) as u32, id as u32),
            Tag::Transaction(id) => (CLASS_TRANSACTION, (id >> 32) as u32, id as u32),
            Tag::Worker(role) => (CLASS_WORKER, 0, role as u32),
            Tag::Coordinator(id) => (CLASS_COORDINATOR, (id >> 32) as u32, id as u32),
            Tag::Upsert(collection, number) => (CLASS_UPSERT, collection as u32, number as u32),
            Tag::Helper(id) => (CLASS_HELPER, (id >> 32) as u32, id as u32),
            Tag::Builder(id) => (CLASS_BUILDER, 0, id as u32),
            Tag::Settling(id) => (CLASS_SETTLING, (id >> 32) as u32, id as u32),
            Tag::HandOver(id) => (CLASS_HAND_OVER, (id >> 32) as u32, id as u32),
            Tag::Victim(pid) => (CLASS_VICTIM, 0, pid as u32),
            Tag::Definition(id) => (CLASS_DEFINITION, 0, id as u32),
            Tag::Router => (CLASS_ROUTER, 0, 0),
            Tag::Kept(shard) => (CLASS_KEPT, 0, shard as u32),
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

/// Waits for the lock; obeys cancel, `lock_timeout` and the deadlock detector.
pub fn acquire(tag: Tag, mode: Mode) {
    let locktag = tag.locktag();
    // SAFETY: a well-formed tag; transaction-scoped, so PostgreSQL releases it.
    unsafe { pg_sys::LockAcquire(&locktag, lockmode(mode), false, false) };
}

/// Keeps a table as it is until the transaction ends: nobody drops it meanwhile.
pub fn keep_relation(relation: pg_sys::Oid) {
    // SAFETY: waits as every reader does; transaction-scoped. If the relation is gone, what opens it next says so.
    unsafe { pg_sys::LockRelationOid(relation, pg_sys::AccessShareLock as pg_sys::LOCKMODE) };
}

/// True if this process holds the lock in that mode.
pub fn is_held(tag: Tag, mode: Mode) -> bool {
    let locktag = tag.locktag();
    // SAFETY: a well-formed tag; looks at this process's own locks.
    unsafe { pg_sys::LockHeldByMe(&locktag, lockmode(mode)) }
}

/// Takes the lock if nobody stands in the way; tells whether it did.
pub fn try_acquire(tag: Tag, mode: Mode) -> bool {
    let locktag = tag.locktag();
    // SAFETY: as above.
    let result = unsafe { pg_sys::LockAcquire(&locktag, lockmode(mode), false, true) };
    result != pg_sys::LockAcquireResult::LOCKACQUIRE_NOT_AVAIL
}

/// Gives back what [`try_acquire`] took, before the end of the transaction. To be called in the same subtransaction.
pub fn release(tag: Tag, mode: Mode) {
    let locktag = tag.locktag();
    // SAFETY: transaction-scoped; releasing what is not held is a warning.
    unsafe { pg_sys::LockRelease(&locktag, lockmode(mode), false) };
}

/// As [`try_acquire`], kept until the process ends, beyond transactions.
pub fn try_acquire_for_session(tag: Tag, mode: Mode) -> bool {
    let locktag = tag.locktag();
    // SAFETY: session-scoped; released at process exit.
    let result = unsafe { pg_sys::LockAcquire(&locktag, lockmode(mode), true, true) };
    result != pg_sys::LockAcquireResult::LOCKACQUIRE_NOT_AVAIL
}

/// Gives back what [`try_acquire_for_session`] took.
pub fn release_for_session(tag: Tag, mode: Mode) {
    let locktag = tag.locktag();
    // SAFETY: session-scoped; releasing what is not held is a warning.
    unsafe { pg_sys::LockRelease(&locktag, lockmode(mode), true) };
}

/// True if nobody holds the lock in any mode, this process included.
pub fn is_free(tag: Tag) -> bool {
    let locktag = tag.locktag();
    // SAFETY: a lock that this process holds itself would be granted again, so that is asked first.
    if unsafe {
        pg_sys::LockHeldByMe(&locktag, lockmode(Mode::Exclusive))
            || pg_sys::LockHeldByMe(&locktag, lockmode(Mode::Shared))
    } {
        return false;
    }
    let free = try_acquire_for_session(tag, Mode::Exclusive);
    if free {
        release_for_session(tag, Mode::Exclusive);
    }
    free
}

/// True if another process holds the lock exclusively. Who asks stands in nobody's way but for a moment in that of one who
/// wants it so.
pub fn is_excluded(tag: Tag) -> bool {
    let free = try_acquire(tag, Mode::Shared);
    if free {
        release(tag, Mode::Shared);
    }
    !free
}

/// Who holds the lock now in whatever mode, as `pg_locks` shows it: the transaction's name, and its process unless it is
/// prepared.
pub fn holding_processes(tag: Tag) -> Result<Vec<(String, Option<i32>)>> {
    let tag = tag.locktag();
    // The view shows the lock's class as a signed number.
    let rows = spi::query(
        "SELECT virtualtransaction, pid FROM pg_catalog.pg_locks WHERE locktype = 'advisory' AND granted \
         AND database = (SELECT oid FROM pg_catalog.pg_database WHERE datname = pg_catalog.current_database()) \
         AND classid::int8 = $1 AND objid::int8 = $2 AND objsubid::int8 & 65535 = $3",
        &[
            Param::Int8(tag.locktag_field2.into()),
            Param::Int8(tag.locktag_field3.into()),
            Param::Int8(tag.locktag_field4.into()),
        ],
    )?;
    Ok(rows.iter().map(|row| (row.text(0).to_owned(), row.get(1).is_some().then(|| row.i32(1)))).collect())
}
