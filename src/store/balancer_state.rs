//! `docshard_catalog.balancer_state`, at most one row: what the balancer does.

use super::row::{self, row};
use crate::pg::error::Result;
use crate::pg::spi::param::Param;
use serde_json::Value as Json;

row! {
    /// What the balancer does.
    #[derive(Default)]
    pub struct BalancerState from "balancer_state" {
        /// what it does now
        pub action: Option<String>,
        /// when its last round ended, as text
        pub last_round: Option<String> = "last_round_at::pg_catalog.text",
        /// the last error
        pub last_error: Option<String>,
        /// when that was, as text
        pub last_error_at: Option<String> = "last_error_at::pg_catalog.text",
        /// shards and collections that are left alone for a while, with the error of each: an array
        pub resting: Json = "resting::pg_catalog.text",
    }
}

/// The state; None if it has never worked.
pub fn find() -> Result<Option<BalancerState>> {
    row::find("", &[])
}

/// Sets what it does now.
pub fn set_action(action: &str) -> Result<()> {
    row::execute(
        "INSERT INTO docshard_catalog.balancer_state (action) VALUES ($1) \
         ON CONFLICT (one) DO UPDATE SET action = excluded.action",
        &[Param::Text(action)],
    )
}

/// Sets that a round has ended, and what is left alone; if all is well, the last error is forgotten. Nothing is written if
/// it was not busy and all is as it was a minute ago; a clock that was set back does not keep it from being written.
pub fn set_round(busy: bool, resting: &Json, well: bool) -> Result<()> {
    row::execute(
        "INSERT INTO docshard_catalog.balancer_state AS state (last_round_at, resting) \
         VALUES (pg_catalog.now(), $2::text::jsonb) \
         ON CONFLICT (one) DO UPDATE SET last_round_at = excluded.last_round_at, action = NULL, \
            resting = excluded.resting, last_error = CASE WHEN NOT $3 THEN state.last_error END, \
            last_error_at = CASE WHEN NOT $3 THEN state.last_error_at END \
         WHERE $1 OR ($3 AND state.last_error IS NOT NULL) OR state.action IS NOT NULL OR state.last_round_at IS NULL OR state.resting <> excluded.resting \
            OR state.last_round_at NOT BETWEEN pg_catalog.now() - interval '1 minute' AND pg_catalog.now()",
        &[Param::Bool(busy), Param::Text(&resting.to_string()), Param::Bool(well)],
    )
}

/// Sets the last error.
pub fn set_error(error: &str) -> Result<()> {
    row::execute(
        "INSERT INTO docshard_catalog.balancer_state (last_error, last_error_at) VALUES ($1, pg_catalog.now()) \
         ON CONFLICT (one) DO UPDATE SET last_error = excluded.last_error, last_error_at = excluded.last_error_at",
        &[Param::Text(error)],
    )
}

/// Forgets the last error, if it begins like that.
pub fn clear_error(prefix: &str) -> Result<()> {
    row::execute(
        "UPDATE docshard_catalog.balancer_state SET last_error = NULL, last_error_at = NULL \
         WHERE pg_catalog.starts_with(last_error, $1)",
        &[Param::Text(prefix)],
    )
}
