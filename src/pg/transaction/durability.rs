//! Durability of this process's commits.

use pgrx::pg_sys;

/// Makes the end of the current transaction (commit, PREPARE, COMMIT PREPARED) at least as durable as `synchronous_commit = on`:
/// flushed on this server and its synchronous standbys.
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
