//! Deletes entries of the changelog, ended moves and changes of layout, and sampled statements that are older than the number of days in
//! the settings.

use super::settings;
use crate::pg::error::Result;
use crate::pg::transaction;
use crate::store;
use std::time::{Duration, Instant};

/// How often the worker looks for old rows.
const INTERVAL: Duration = Duration::from_secs(600);

/// How many rows one statement deletes.
const BATCH: i64 = 10_000;

/// Deletes rows older than the given number of days, at most a batch; returns their number.
type DeleteOld = fn(i32, i64) -> Result<u64>;

/// The settings that are numbers of days, each with the function that deletes old rows.
const KEPT: &[(&str, DeleteOld)] = &[
    ("changelog_days", store::changelog::delete_old),
    ("migrations_days", store::migrations::delete_old),
    ("migrations_days", store::resharding::delete_old),
    ("samples_days", store::sampled_statements::delete_old),
];

/// What the worker remembers between rounds.
#[derive(Debug, Default)]
pub struct Prune {
    last: Option<Instant>,
    /// the numbers of days at that time
    settings: Vec<i64>,
}

impl Prune {
    /// Deletes old rows if the interval has passed or the settings have changed. Must be called outside a transaction.
    pub fn round(&mut self) -> Result<()> {
        let settings =
            transaction::run(|| KEPT.iter().map(|(name, _)| settings::integer(name)).collect::<Result<Vec<_>>>())?;
        if self.last.is_some_and(|at| at.elapsed() < INTERVAL) && self.settings == settings {
            return Ok(());
        }
        for (days, (_, delete_old)) in settings.iter().zip(KEPT) {
            let Some(days) = i32::try_from(*days).ok().filter(|days| *days > 0) else { continue };
            while transaction::run(|| delete_old(days, BATCH))? as i64 == BATCH {}
        }
        (self.last, self.settings) = (Some(Instant::now()), settings);
        Ok(())
    }
}
