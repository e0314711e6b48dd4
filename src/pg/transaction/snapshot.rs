//! Snapshots, and properties of transactions that depend on the isolation level.

use pgrx::pg_sys;

// Not in pgrx's bindings (predicate.h); called with a guard, so that an ERROR unwinds.
unsafe extern "C-unwind" {
    fn PreCommit_CheckForSerializationFailure();
}

/// The newest snapshot of all committed transactions and of this transaction's earlier commands, whatever the isolation level. It is valid
/// until the next snapshot is taken, so the caller pushes or registers it, which copies it.
///
/// PostgreSQL's `GetLatestSnapshot` raises an ERROR in parallel mode. If any part of a plan is parallel, the leader's whole plan runs in
/// that mode, also a foreign scan outside of that part. A catalog snapshot is allowed in that mode, and is as new: PostgreSQL reuses an older
/// catalog snapshot only for relations whose changes send invalidations, and no relation is passed here.
///
/// # Safety
/// Inside a transaction.
pub(crate) unsafe fn latest() -> pg_sys::Snapshot {
    // SAFETY: promised by the caller.
    unsafe {
        if pg_sys::IsInParallelMode() {
            pg_sys::GetCatalogSnapshot(pg_sys::InvalidOid)
        } else {
            pg_sys::GetLatestSnapshot()
        }
    }
}

/// A snapshot that is active until it is dropped.
pub struct ActiveSnapshot(());

impl ActiveSnapshot {
    /// Pushes the newest snapshot, also under REPEATABLE READ: for metadata, never for documents.
    pub fn latest() -> Self {
        // SAFETY: called inside a transaction; popped on drop, or by the abort of the transaction.
        unsafe { pg_sys::PushActiveSnapshot(latest()) };
        Self(())
    }

    /// Pushes the snapshot of a new statement.
    pub fn of_statement() -> Self {
        // SAFETY: as above. CommandCounterIncrement makes the transaction's own writes visible.
        unsafe {
            pg_sys::CommandCounterIncrement();
            pg_sys::PushActiveSnapshot(pg_sys::GetTransactionSnapshot());
        }
        Self(())
    }
}

impl Drop for ActiveSnapshot {
    fn drop(&mut self) {
        // After an ERROR, PostgreSQL's abort pops it.
        if !std::thread::panicking() {
            // SAFETY: pushed by the constructor, and snapshots nest, as this is only ever a local variable: no transaction or
            // subtransaction in which it was pushed ends before.
            unsafe { pg_sys::PopActiveSnapshot() };
        }
    }
}

pub fn is_serializable() -> bool {
    // SAFETY: reads a variable of this process.
    unsafe { pg_sys::XactIsoLevel == pg_sys::XACT_SERIALIZABLE as i32 }
}

/// Called before another node commits. May raise 40001 now; afterwards a transaction that has written nothing here cannot fail with 40001.
pub fn check_serializable() {
    if is_serializable() {
        // SAFETY: in the pre-commit of a serializable transaction. PostgreSQL makes the same check a little later, and then
        // finds no new conflict, because it never aborts a transaction that is prepared to commit.
        unsafe { pg_sys::ffi::pg_guard_ffi_boundary(|| PreCommit_CheckForSerializationFailure()) };
    }
}

/// True if each statement takes a new snapshot: under READ COMMITTED.
pub fn per_statement() -> bool {
    // SAFETY: reads a backend-local variable.
    unsafe { pg_sys::XactIsoLevel < pg_sys::XACT_REPEATABLE_READ as i32 }
}

/// While a value of this type lives, concurrent index builds in this database do not wait for this process's snapshots.
///
/// INVARIANT: meanwhile the process only waits, and afterwards it ends its statement without reading documents: a new index may lack rows
/// that only an older snapshot shows.
pub struct IgnoredByIndexBuilds(());

impl IgnoredByIndexBuilds {
    #[must_use]
    pub fn new() -> Self {
        set_flags(|flags| flags | pg_sys::PROC_IN_SAFE_IC as u8);
        Self(())
    }
}

impl Default for IgnoredByIndexBuilds {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for IgnoredByIndexBuilds {
    fn drop(&mut self) {
        // After an ERROR, the end of the transaction clears the flag.
        if !std::thread::panicking() {
            set_flags(|flags| flags & !(pg_sys::PROC_IN_SAFE_IC as u8));
        }
    }
}

fn set_flags(change: impl FnOnce(u8) -> u8) {
    /// The position of `ProcArrayLock` among PostgreSQL's named locks (`storage/lwlocknames.h`).
    const PROC_ARRAY_LOCK: usize = 4;
    // SAFETY: as PostgreSQL's own DefineIndex does it: a process changes its own flags and their mirror under ProcArrayLock.
    unsafe {
        let lock = &raw mut (*pg_sys::MainLWLockArray.add(PROC_ARRAY_LOCK)).lock;
        pg_sys::LWLockAcquire(lock, pg_sys::LWLockMode::LW_EXCLUSIVE);
        let own = pg_sys::MyProc;
        (*own).statusFlags = change((*own).statusFlags);
        *(*pg_sys::ProcGlobal).statusFlags.add((*own).pgxactoff as usize) = (*own).statusFlags;
        pg_sys::LWLockRelease(lock);
    }
}
