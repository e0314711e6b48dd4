//! Starting, stopping and watching the balancer.

use super::{answer, with_options};
use crate::operation::{balancer, table};
use crate::pg::datum::json::Json;
use pgrx::prelude::*;

/// Lets the balancer split and move chunks.
#[pg_extern(volatile, parallel_unsafe, requires = ["catalog"])]
fn start_balancer() -> Json {
    answer(balancer::start)
}

/// Stops the balancer and waits until the chunks that it moves have arrived; a move that has not within so many milliseconds
/// is aborted.
#[pg_extern(volatile, parallel_unsafe, requires = ["catalog"])]
fn stop_balancer(timeout_ms: default!(i64, "60000")) -> Json {
    answer(|| balancer::stop(timeout_ms))
}

/// What the balancer does: mode, whether it is in a round, the last error.
#[pg_extern(volatile, parallel_unsafe, requires = ["catalog"])]
fn balancer_status() -> Json {
    answer(balancer::status)
}

/// Whether a collection is where the balancer wants it, and the gravest reason if not: zoneViolation, draining, or
/// chunksImbalance. It is measured at the shards.
#[pg_extern(volatile, parallel_unsafe, requires = ["catalog"])]
fn balancer_collection_status(ns: &str) -> Json {
    answer(|| balancer::collection_status(ns))
}

/// Lets the balancer move a collection's chunks for evenness and zones again.
#[pg_extern(volatile, parallel_unsafe, requires = ["catalog"])]
fn enable_balancing(ns: &str) -> Json {
    answer(|| balancer::set_balancing(ns, true))
}

/// Keeps the balancer from moving a collection's chunks, except off a shard that is being removed.
#[pg_extern(volatile, parallel_unsafe, requires = ["catalog"])]
fn disable_balancing(ns: &str) -> Json {
    answer(|| balancer::set_balancing(ns, false))
}

/// Sets how a collection is balanced. Options: chunkSize (MiB; 0 or null goes back to the cluster's chunk_size_mb).
#[pg_extern(volatile, parallel_unsafe, requires = ["catalog"])]
fn configure_collection_balancing(ns: &str, options: Json) -> Json {
    answer(|| {
        with_options(&options, &table::CONFIGURE_COLLECTION_BALANCING, |options| balancer::configure(ns, options))
    })
}
