//! Snapshots, pushed and popped.

use pgrx::pg_sys;

/// A snapshot that is active until it is dropped.
pub struct ActiveSnapshot(());

impl ActiveSnapshot {
    /// The newest snapshot, also under REPEATABLE READ. For metadata, never for a user's documents.
    pub fn latest() -> Self {
        // SAFETY: called inside a transaction; popped on drop, or by the abort of the transaction.
        unsafe { pg_sys::PushActiveSnapshot(pg_sys::GetLatestSnapshot()) };
        Self(())
    }

    /// The snapshot that a new statement of this transaction would get.
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
        // While an ERROR unwinds, PostgreSQL's abort processing pops what is left.
        if !std::thread::panicking() {
            // SAFETY: pushed by the constructor, and snapshots nest.
            unsafe { pg_sys::PopActiveSnapshot() };
        }
    }
}

/// True if each statement of this transaction gets a new snapshot (READ COMMITTED).
pub fn per_statement() -> bool {
    // SAFETY: reads a backend-local variable.
    unsafe { pg_sys::XactIsoLevel < pg_sys::XACT_REPEATABLE_READ as i32 }
}
