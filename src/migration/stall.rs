//! Limits how long a move may block writers: the setting `docshard.max_write_stall`.
//!
//! The donor spends most of that time deleting the range's documents. So a chunk with more documents than it can delete in time
//! is split before it moves ([`super::pieces`]). The delete rate is estimated from the donor's last moves.

use super::record::{self, MAX_ATTEMPTS};
use crate::pg::error::{Error, Result};
use docshard_core::cluster::chunk_map::ShardId;
use docshard_core::error::{Kind, error};
use pgrx::{GucContext, GucFlags, GucRegistry, GucSetting};
use std::time::Duration;

/// The delete rate of a donor that has had no moves.
const DOCUMENTS_PER_MS: f64 = 400.0;
/// Chunks with fewer documents are not split.
const MIN_DOCUMENTS: i64 = 2_000;

/// In milliseconds; 0: no limit.
static MAX_WRITE_STALL: GucSetting<i32> = GucSetting::<i32>::new(500);

pub fn init() {
    GucRegistry::define_int_guc(
        c"docshard.max_write_stall",
        c"Sets how long the move of a chunk may block writes to the chunk.",
        c"A hand-over that takes longer is rolled back and tried again. 0 means no limit.",
        &MAX_WRITE_STALL,
        0,
        i32::MAX,
        GucContext::Sighup,
        GucFlags::UNIT_MS,
    );
}

/// Returns the longest time for which a move or a change of layout may block writers; None: no limit.
pub fn limit() -> Option<Duration> {
    u64::try_from(MAX_WRITE_STALL.get()).ok().filter(|ms| *ms > 0).map(Duration::from_millis)
}

/// Returns the number of pieces into which a chunk with this number of documents should be split before it moves; None if it
/// need not be split. Runs in the caller's transaction.
pub fn pieces(donor: ShardId, documents: i64) -> Result<Option<usize>> {
    let Some(limit) = limit().filter(|_| documents >= MIN_DOCUMENTS) else { return Ok(None) };
    Ok(pieces_within(limit, documents, record::delete_rate(donor)?))
}

/// Returns the number of pieces that can each be handed over within the limit; `rate` is in documents per millisecond.
fn pieces_within(limit: Duration, documents: i64, rate: Option<f64>) -> Option<usize> {
    let rate = rate.filter(|rate| *rate > 0.0).unwrap_or(DOCUMENTS_PER_MS);
    let (expected, limit) = (documents as f64 / rate, limit.as_secs_f64() * 1000.0);
    // The hand-over includes more than the deletion, and the rate varies.
    if expected <= limit * 0.6 {
        return None;
    }
    let most = usize::try_from(documents / (MIN_DOCUMENTS / 2)).unwrap_or(usize::MAX);
    Some(((expected / (limit * 0.4)).ceil() as usize).clamp(2, most.max(2)))
}

pub fn gave_up() -> Error {
    let limit = MAX_WRITE_STALL.get();
    error!(
        Kind::LockTimeout,
        "gave up after {MAX_ATTEMPTS} attempts to hand the chunk over within docshard.max_write_stall ({limit} ms)"
    )
    .with_hint(
        "Raise docshard.max_write_stall, split the chunk, or move it at a time when fewer of its documents change.",
    )
}

pub fn is_split_first(documents: i64) -> Error {
    error!(
        Kind::OperationFailed,
        "the chunk has about {documents} documents, too many to be handed over at once, and is split first"
    )
}

#[cfg(any(test, feature = "pg_test"))]
#[pgrx::pg_schema]
mod tests {
    use super::*;
    use pgrx::pg_test;

    #[pg_test]
    fn a_chunk_is_split_if_its_deletion_would_take_most_of_the_limit() {
        let limit = Duration::from_millis(500);
        // 100 documents a millisecond: 30,000 take 300 ms, which is 60 % of the limit.
        assert_eq!(pieces_within(limit, 30_000, Some(100.0)), None);
        assert_eq!(pieces_within(limit, 30_100, Some(100.0)), Some(2));
        assert_eq!(pieces_within(limit, 100_000, Some(100.0)), Some(5));
        // For a donor without a rate the default is used, and pieces do not become tiny.
        assert_eq!(pieces_within(limit, 100_000, None), None);
        assert_eq!(pieces_within(limit, 100_000, Some(0.0)), None);
        assert_eq!(pieces_within(limit, 10_000, Some(0.001)), Some(10));
    }
}
