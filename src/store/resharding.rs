//! `docshard_catalog.resharding`: a row for each change of a collection's layout, its durable state.
//!
//! INVARIANT: [`advance`] is the only function that changes the state; it compares before it sets, and refuses what
//! `core::cluster::resharding` does not allow. Before the extension is updated there is no such table, and no row.

use super::cluster;
use crate::pg::error::Result;
use docshard_core::cluster::resharding::State;
use docshard_core::cluster::take_over::is_move_of;
use docshard_core::error::{Kind, error};

rows! {
    /// A change of a collection's layout.
    Resharding from "resharding" {
        /// numbered like moves; part of every name that the change leaves on shards
        id: i64,
        /// the collection as it was
        collection: i32 = "collection_id",
        /// the collection into which its documents are copied
        copy_id: i32,
        /// the collection's name
        namespace: String,
        /// the shard key stays the same
        keeps_key: bool = "(old_key::text IS NOT DISTINCT FROM key::text)",
        /// the name of the copy
        copy: String,
        /// MongoDB's command for such a change
        command: String,
        state: State,
        /// the decision; it stays when the change is done
        outcome: State = "outcome",
        /// this server has begun the change since it was started
        began_here: bool = "(server_started_at = pg_catalog.pg_postmaster_start_time())",
    }

    /// The progress of a change.
    Progress from "resharding" {
        documents: i64,
        bytes: i64,
        stall_ms: i64,
        /// milliseconds since the change began
        millis: i64 = "(extract(epoch FROM clock_timestamp() - started_at) * 1000)::int8",
    }

    /// A running change, for a status.
    Running from "resharding" {
        id: i64,
        namespace: String,
        command: String,
        /// the new shard key; None: unsharded
        key: Option<String> = "key::text",
        /// a hash of the requested layout with all its options
        request: Option<i64>,
        step: String,
        documents: i64,
        bytes: i64,
        estimated: i64,
        /// seconds since the change began
        elapsed: i64 = "extract(epoch FROM clock_timestamp() - started_at)::int8",
        /// seconds since the present step began
        seconds: i64 = "extract(epoch FROM clock_timestamp() - step_at)::int8",
        /// the collection into which its documents are copied
        copy_id: i32,
        collection: i32 = "collection_id",
    }

    /// How many changes there are of one command.
    Counts from "resharding" {
        command: String,
        started: i64 = "count(*)",
        committed: i64 = "count(*) FILTER (WHERE outcome = 'committed')",
        aborted: i64 = "count(*) FILTER (WHERE outcome = 'aborted')",
    }
}

impl Running {
    /// The estimated seconds until all documents are copied; None if they cannot be estimated.
    pub fn time_left(&self) -> Option<i64> {
        let may_tell =
            self.step == "cloning" && self.documents > 0 && self.seconds > 0 && self.documents < self.estimated;
        may_tell.then(|| (self.estimated - self.documents).saturating_mul(self.seconds) / self.documents)
    }
}

/// A new change.
#[derive(Debug)]
pub struct Draft<'a> {
    pub id: i64,
    pub collection: i32,
    pub copy_id: i32,
    pub namespace: &'a str,
    pub copy: &'a str,
    pub command: &'a str,
    pub old_key: Option<String>,
    pub key: Option<String>,
    pub request: i64,
}

/// True if the table exists: since release 0.4.0.
fn is_there() -> bool {
    super::relation(c"resharding").is_some()
}

/// One change.
/// Errors: `InternalError` if there is none of that number.
pub fn get(id: i64) -> Result<Resharding> {
    find(id)?.ok_or_else(|| error!(Kind::InternalError, "resharding {id} is gone"))
}

/// The change of that number; None if it is not known.
pub fn lookup(id: i64) -> Result<Option<Resharding>> {
    if is_there() { find(id) } else { Ok(None) }
}

/// Compares and sets the state; false if the change is in another state than `from`.
/// Errors: `InternalError` for a transition that the states do not allow.
pub fn advance(id: i64, from: State, to: State) -> Result<bool> {
    if from.may_become(to) {
        set_state(id, from.name(), to.name())
    } else {
        Err(error!(Kind::InternalError, "a change of layout cannot go from {from} to {to}"))
    }
}

/// Every change that is not done, oldest first.
pub fn unfinished() -> Result<Vec<Resharding>> {
    if is_there() { all_unfinished() } else { Ok(Vec::new()) }
}

/// The running changes.
pub fn running() -> Result<Vec<Running>> {
    if is_there() { all_running() } else { Ok(Vec::new()) }
}

/// The numbers of changes, by command.
pub fn counts() -> Result<Vec<Counts>> {
    if is_there() { all_counts() } else { Ok(Vec::new()) }
}

/// The running change of the collection with this number, which may also be the copy; in the active snapshot.
pub fn read_running_of(collection: i32) -> Result<Option<Resharding>> {
    if is_there() { of_collection(collection) } else { Ok(None) }
}

/// True if a running change of this collection was not begun by this server since it was started, as the present router: so the catalog may
/// lack the decision. In the active snapshot.
pub fn read_is_undecided(collection: i32) -> Result<bool> {
    match read_running_of(collection)? {
        Some(change) if change.collection == collection => Ok(!change.is_of_router(cluster::read_coordinator()?.epoch)),
        _ => Ok(false),
    }
}

impl Resharding {
    /// True if this server has begun the change since it was started, as the present router: then the catalog shows whether it is decided.
    ///
    /// # Errors
    /// `NotYetInitialized`.
    pub fn is_of_this_server(&self) -> Result<bool> {
        Ok(self.is_of_router(cluster::coordinator()?.epoch))
    }

    /// The change's number shows by which router it was begun: a dump that was restored on the same server has changes of an earlier router.
    fn is_of_router(&self, epoch: i64) -> bool {
        self.began_here && is_move_of(epoch, self.id)
    }
}

/// The last change of a collection with this name.
pub fn last_of(namespace: &str) -> Result<Option<Resharding>> {
    if is_there() { of_namespace(namespace) } else { Ok(None) }
}

/// Deletes at most `limit` changes that ended more than `days` days ago, the oldest first; returns the number of deleted ones.
pub fn delete_old(days: i32, limit: i64) -> Result<u64> {
    if is_there() { delete_ended(days, limit) } else { Ok(0) }
}

statements! {
    fn find(id: i64) -> Option<Resharding> { select "WHERE id = $1" }

    fn all_unfinished() -> Vec<Resharding> { select "WHERE state <> 'done' ORDER BY id" }

    fn all_running() -> Vec<Running> { select "WHERE state = 'running' ORDER BY namespace" }

    fn all_counts() -> Vec<Counts> { select "GROUP BY command" }

    fn of_collection(collection: i32) -> Option<Resharding> {
        select_active "WHERE state = 'running' AND (collection_id = $1 OR copy_id = $1)"
    }

    fn of_namespace(namespace: &str) -> Option<Resharding> { select "WHERE namespace = $1 ORDER BY id DESC LIMIT 1" }

    /// The progress of a change.
    pub fn progress(id: i64) -> Option<Progress> { select "WHERE id = $1" }

    /// Inserts a change in state *running*.
    pub fn insert(draft: &Draft<'_>) {
        run "INSERT INTO docshard_catalog.resharding (id, collection_id, copy_id, namespace, copy, command, old_key, key, request) \
             VALUES ($1, $2, $3, $4, $5, $6, $7::text::json, $8::text::json, $9)",
            [
                draft.id, draft.collection, draft.copy_id, draft.namespace, draft.copy, draft.command, draft.old_key, draft.key,
                draft.request
            ]
    }

    fn set_state(id: i64, from: &str, to: &str) -> bool {
        run "UPDATE docshard_catalog.resharding SET state = $3, step = $3, updated_at = clock_timestamp(), step_at = clock_timestamp(), \
             outcome = CASE WHEN $3 IN ('committed', 'aborted') THEN $3 ELSE outcome END, \
             error = CASE WHEN $3 = 'committed' THEN NULL ELSE error END WHERE id = $1 AND state = $2"
    }

    /// Begins another step of a running change; false if the change no longer runs.
    pub fn begin_step(id: i64, step: &str) -> bool {
        run "UPDATE docshard_catalog.resharding SET step = $2, step_at = clock_timestamp(), updated_at = clock_timestamp() \
             WHERE id = $1 AND state = 'running'"
    }

    /// Sets the expected number of documents.
    pub fn set_estimate(id: i64, documents: i64) {
        run "UPDATE docshard_catalog.resharding SET estimated = $2 WHERE id = $1"
    }

    /// Sets how much has been copied; false if the change no longer runs.
    pub fn set_progress(id: i64, documents: i64, bytes: i64, rounds: i32, lag: i64) -> bool {
        run "UPDATE docshard_catalog.resharding SET documents = $2, bytes = $3, rounds = $4, lag = $5, \
             updated_at = clock_timestamp() WHERE id = $1 AND state = 'running'"
    }

    /// Sets how long writers have waited, in milliseconds, and the numbers of documents and rounds.
    pub fn set_stall(id: i64, millis: i64, documents: i64, rounds: i32) {
        run "UPDATE docshard_catalog.resharding SET stall_ms = $2, documents = $3, rounds = $4 WHERE id = $1"
    }

    /// Sets how often the decision was postponed.
    pub fn set_attempts(id: i64, attempts: i32) {
        run "UPDATE docshard_catalog.resharding SET attempts = $2 WHERE id = $1"
    }

    /// Sets what went wrong. Before the decision the last error counts; afterwards an error that is set already stays, as it is the cause.
    pub fn set_error(id: i64, error: &str) {
        run "UPDATE docshard_catalog.resharding SET error = CASE WHEN outcome = 'running' THEN $2 ELSE coalesce(error, $2) END, \
             updated_at = clock_timestamp() WHERE id = $1"
    }

    /// Allows that writers wait as long as the decision takes; false if the change no longer runs.
    pub fn set_commit_now(id: i64) -> bool {
        run "UPDATE docshard_catalog.resharding SET commit_now = true WHERE id = $1 AND state = 'running'"
    }

    /// What keeps a change from ending; None: nothing is known.
    pub fn error(id: i64) -> Option<String> { run "SELECT error FROM docshard_catalog.resharding WHERE id = $1 AND error IS NOT NULL" }

    /// True if writers may wait as long as the decision takes.
    pub fn may_stall(id: i64) -> bool { run "SELECT FROM docshard_catalog.resharding WHERE id = $1 AND commit_now" }

    fn delete_ended(days: i32, limit: i64) -> u64 {
        run "DELETE FROM docshard_catalog.resharding WHERE id IN (SELECT id FROM docshard_catalog.resharding \
               WHERE state = 'done' AND updated_at < pg_catalog.now() - pg_catalog.make_interval(days => $1) ORDER BY id LIMIT $2)"
    }
}
