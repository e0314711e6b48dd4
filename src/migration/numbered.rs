//! Copies the numbers of numbered writes from the donor to the recipient, with the replies of writes to the moved range: see `shard::once`.
//!
//! Most is copied before writers are excluded. With writers excluded, only what was written since the last copy began is copied
//! ([`Attempt::copy_numbered_writes`]). Each part is committed at the recipient at once, and stays there even if the move is aborted.
//!
//! INVARIANT: when the recipient prepares, it has every number that was committed at the donor when its writers were excluded. Each call
//! copies the rows that are not visible in a snapshot which was taken before the previous call read its first row.

use super::attempt::Attempt;
use super::donor::milliseconds_until;
use super::shard::ShardSession;
use crate::pg::error::{Error, Result};
use crate::pg::fault;
use docshard_core::error::sqlstate::UNDEFINED_FUNCTION;
use docshard_core::routing::protocol::Call;
use docshard_core::routing::protocol::migration::{LoadNumberedWrites, NumberedWrites};
use docshard_core::routing::protocol::shard_tables::{ReadSnapshot, TableRange};
use std::time::Instant;

/// A snapshot in which no transaction is visible.
pub const NOTHING: &str = "1:1:";

/// Copies to several shards the numbers of the writes at the donor since the last call, with replies for keys in the range.
/// `copied_snapshot` is the snapshot that the last call has set, or [`NOTHING`]. False if the deadline passed.
pub fn copy(
    donor: &mut ShardSession,
    to: &mut [&mut ShardSession],
    range: TableRange<'_>,
    copied_snapshot: &mut String,
    deadline: Option<Instant>,
) -> Result<bool> {
    let now = ReadSnapshot {}.call(donor)?;
    let mut after = Some(Vec::new());
    while let Some(last) = after.take() {
        let TableRange { collection, lo, hi } = range;
        let call = NumberedWrites { collection, lo, hi, since: copied_snapshot, after: &last };
        let Some(writes) = before(deadline, donor, &call)? else { return Ok(false) };
        let Some(writes) = writes else { break };
        for recipient in &mut *to {
            let Some(loaded) = before(deadline, recipient, &LoadNumberedWrites { writes: &writes })? else {
                return Ok(false);
            };
            after = loaded;
        }
    }
    *copied_snapshot = now;
    Ok(true)
}

impl Attempt {
    /// Copies the numbered writes since the last call. False if the deadline passed; the donor's part must then be rolled back.
    pub(super) fn copy_numbered_writes(&mut self, deadline: Option<Instant>) -> Result<bool> {
        if fault::is_off("numbered_writes") {
            return Ok(true);
        }
        let Self { record, end, donor, puller, copied_snapshot, .. } = self;
        let range = TableRange { collection: record.collection, lo: &record.min, hi: end.as_deref() };
        copy(donor, &mut [puller], range, copied_snapshot, deadline)
    }

    /// True if both shards know numbered writes. Must be called before the donor's part begins, as an error would roll that back.
    pub(super) fn have_numbered_writes(&mut self) -> Result<bool> {
        let is_there = |answer: Result<bool>| match answer {
            // A shard of an earlier release does not have these functions.
            Err(error) if is_missing(&error) => Ok(false),
            answer => answer,
        };
        let none = NumberedWrites { collection: 0, lo: &[], hi: None, since: NOTHING, after: &[u8::MAX; 21] };
        Ok(is_there(none.call(&mut self.donor).map(|_| true))?
            && is_there((LoadNumberedWrites { writes: "[]" }).call(&mut self.puller).map(|_| true))?)
    }
}

fn is_missing(error: &Error) -> bool {
    error.sqlstate == UNDEFINED_FUNCTION && !error.is_ours
}

/// The answer; None if it has not come before the deadline. The statement is then cancelled, so that the session can be used again.
fn before<C: Call>(deadline: Option<Instant>, session: &mut ShardSession, call: &C) -> Result<Option<C::Answer>> {
    call.start(session)?;
    let milliseconds = deadline.map_or(-1, milliseconds_until);
    let Some(rows) = session.poll(milliseconds)? else {
        session.cancel();
        return Ok(None);
    };
    C::decode(&rows).map(Some)
}
