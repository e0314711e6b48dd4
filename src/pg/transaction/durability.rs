//! Durability of this process's commits.

use super::setting::set_local;
use pgrx::pg_sys;

/// Makes the end of the current transaction (commit, PREPARE, COMMIT PREPARED) at least as durable as `synchronous_commit = on`:
/// flushed on this server and its synchronous standbys.
pub fn require() {
    // SAFETY: a setting of this process, which has one thread.
    let level = unsafe { pg_sys::synchronous_commit };
    if level < pg_sys::SyncCommitLevel::SYNCHRONOUS_COMMIT_REMOTE_FLUSH as i32 {
        set_local(c"synchronous_commit", c"on");
    }
}
