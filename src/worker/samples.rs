//! Stores the statements that sessions have sampled, and forgets old ones: see `router::sampling`.

use super::own_process::report;
use crate::pg::error::Result;
use crate::pg::process::mailbox;
use crate::pg::transaction;
use crate::store::sampled_statements;

/// The most samples that are kept for a collection.
const MAX_SAMPLES: i64 = 100_000;
/// The most samples that a statement deletes.
const FORGOTTEN: i64 = 10_000;
/// The most samples that a statement gives to another collection.
const HANDED_OVER: i64 = 10_000;

/// Stores what sessions have sampled since the last call. What cannot be stored is lost.
pub(super) fn store() {
    let taken = mailbox::take();
    if !taken.is_empty() {
        let stored = transaction::run(|| sampled_statements::insert(&format!("[{}]", taken.join(","))));
        stored.map(drop).unwrap_or_else(|error| report(&error, "storing sampled statements: "));
    }
}

/// Reassigns the samples of collections whose layout has changed to the collections that have replaced them.
pub(super) fn hand_over() -> Result<()> {
    while transaction::run(|| sampled_statements::hand_over(HANDED_OVER))? as i64 == HANDED_OVER {}
    Ok(())
}

/// Deletes the oldest samples of collections that have too many.
pub(super) fn forget_excess() {
    loop {
        match transaction::run(|| sampled_statements::delete_excess(MAX_SAMPLES, FORGOTTEN)) {
            Ok(deleted) if deleted as i64 == FORGOTTEN => {}
            Ok(_) => return,
            Err(error) => return report(&error, "forgetting sampled statements: "),
        }
    }
}
