//! `docshard_catalog.balancer_state`, at most one row: the state of the balancer.

use serde_json::Value as Json;

rows! {
    /// The state of the balancer. Times are text.
    #[derive(Default)]
    BalancerState from "balancer_state" {
        /// what the balancer is doing
        action: Option<String>,
        /// when its last round ended
        last_round: Option<String> = "last_round_at::pg_catalog.text",
        last_error: Option<String>,
        last_error_at: Option<String> = "last_error_at::pg_catalog.text",
        /// an array of the shards and collections for which the balancer backs off after an error, each with its error
        resting: Json = "resting::pg_catalog.text",
    }
}

statements! {
    /// The state; None if the balancer has never worked.
    pub fn find() -> Option<BalancerState> { select "" }

    /// Sets what the balancer is doing.
    pub fn set_action(action: &str) {
        run "INSERT INTO docshard_catalog.balancer_state (action) VALUES ($1) \
             ON CONFLICT (one) DO UPDATE SET action = excluded.action"
    }

    /// Records the end of a round, and for what the balancer backs off. `well`: removes the last error. Nothing is written if the round was
    /// not `busy`, nothing has changed, and the last write is less than a minute old. A last write in the future, after the clock was set
    /// back, counts as old.
    pub fn set_round(busy: bool, resting: &Json, well: bool) {
        run "INSERT INTO docshard_catalog.balancer_state AS state (last_round_at, resting) \
             VALUES (pg_catalog.now(), $2::text::jsonb) \
             ON CONFLICT (one) DO UPDATE SET last_round_at = excluded.last_round_at, action = NULL, \
                resting = excluded.resting, last_error = CASE WHEN NOT $3 THEN state.last_error END, \
                last_error_at = CASE WHEN NOT $3 THEN state.last_error_at END \
             WHERE $1 OR ($3 AND state.last_error IS NOT NULL) OR state.action IS NOT NULL OR state.last_round_at IS NULL OR state.resting <> excluded.resting \
                OR state.last_round_at NOT BETWEEN pg_catalog.now() - interval '1 minute' AND pg_catalog.now()",
            [busy, resting.to_string(), well]
    }

    /// Sets the last error.
    pub fn set_error(error: &str) {
        run "INSERT INTO docshard_catalog.balancer_state (last_error, last_error_at) VALUES ($1, pg_catalog.now()) \
             ON CONFLICT (one) DO UPDATE SET last_error = excluded.last_error, last_error_at = excluded.last_error_at"
    }

    /// Removes the last error if it begins with this prefix.
    pub fn clear_error(prefix: &str) {
        run "UPDATE docshard_catalog.balancer_state SET last_error = NULL, last_error_at = NULL \
             WHERE pg_catalog.starts_with(last_error, $1)"
    }
}
