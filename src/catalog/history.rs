//! What is kept of the past: the changelog and moves that have ended, as long as the settings say.

use super::settings;
use crate::pg::error::Result;
use crate::pg::spi::param::Param;
use crate::pg::{spi, transaction};
use std::time::{Duration, Instant};

/// How often the worker looks for what is too old.
const INTERVAL: Duration = Duration::from_secs(600);

/// How many rows one statement deletes.
const BATCH: i64 = 10_000;

/// The settings, each with the statement that deletes up to `$2` rows older than `$1` days.
const KEPT: &[(&str, &str)] = &[
    (
        "changelog_days",
        "DELETE FROM docshard_catalog.changelog WHERE id IN (SELECT id FROM docshard_catalog.changelog \
           WHERE at < pg_catalog.now() - pg_catalog.make_interval(days => $1) ORDER BY id LIMIT $2)",
    ),
    (
        "migrations_days",
        "DELETE FROM docshard_catalog.migrations WHERE id IN (SELECT id FROM docshard_catalog.migrations \
           WHERE state = 'done' AND updated_at < pg_catalog.now() - pg_catalog.make_interval(days => $1) ORDER BY id LIMIT $2)",
    ),
];

/// The worker's part.
#[derive(Debug, Default)]
pub struct Prune {
    last: Option<Instant>,
    /// what the settings said then
    settings: Vec<i64>,
}

impl Prune {
    /// Deletes what is too old, if it is time, or if the settings have changed. Outside a transaction.
    ///
    /// # Errors
    /// Internal ones.
    pub fn round(&mut self) -> Result<()> {
        let settings =
            transaction::run(|| KEPT.iter().map(|(name, _)| settings::integer(name)).collect::<Result<Vec<_>>>())?;
        if self.last.is_some_and(|at| at.elapsed() < INTERVAL) && self.settings == settings {
            return Ok(());
        }
        for (days, (_, sql)) in settings.iter().zip(KEPT) {
            let Some(days) = i32::try_from(*days).ok().filter(|days| *days > 0) else { continue };
            let delete = || spi::execute(sql, &[Param::Int4(days), Param::Int8(BATCH)]).map(|answer| answer.processed);
            while transaction::run(delete)? as i64 == BATCH {}
        }
        (self.last, self.settings) = (Some(Instant::now()), settings);
        Ok(())
    }
}
