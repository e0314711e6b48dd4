//! How durable this process's commits are.

use pgrx::pg_sys;

/// Makes the commit or PREPARE of the transaction that is open, or the COMMIT PREPARED that it runs, at least as durable as
/// `synchronous_commit = on` does, whatever the session says: on this server's disk, and on that of its synchronous standbys.
/// It holds to the transaction's end, and may be called as late as before its commit.
pub fn require() {
    // SAFETY: inside a transaction; PostgreSQL's own name and value of a setting that every user may set, both static strings.
    unsafe {
        if pg_sys::synchronous_commit >= pg_sys::SyncCommitLevel::SYNCHRONOUS_COMMIT_REMOTE_FLUSH as i32 {
            return;
        }
        pg_sys::set_config_option(
            c"synchronous_commit".as_ptr(),
            c"on".as_ptr(),
            pg_sys::GucContext::PGC_USERSET,
            pg_sys::GucSource::PGC_S_SESSION,
            pg_sys::GucAction::GUC_ACTION_LOCAL,
            true,
            0,
            false,
        );
    }
}
