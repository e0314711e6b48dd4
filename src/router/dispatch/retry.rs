//! Decides whether a write that a shard refused because of a stale map may run again: only if it has left no trace on any shard.

use super::request::Located;
use crate::catalog::cluster::shard::Place;
use crate::pg::error::Error;
use crate::remote;
use crate::router::fresh_map::{conflict, is_stale};

pub(super) fn failed(destinations: &[Located], retryable: bool, error: Error) -> Error {
    if retryable { undone(destinations, error) } else { never_again(error) }
}

/// If the error says that a map was stale, rolls the statement back on all shards so that it can run again. Returns the
/// error to report.
pub(super) fn undone(destinations: &[Located], error: Error) -> Error {
    if !is_stale(&error) {
        return error;
    }
    for destination in destinations {
        if let Place::Remote(server) = destination.shard.place {
            remote::undo(server);
        }
    }
    if can_retry(destinations) { error } else { conflict(&error) }
}

/// True if the statement can run again without losing earlier writes of this transaction.
pub(super) fn can_retry(destinations: &[Located]) -> bool {
    destinations.iter().all(|d| match d.shard.place {
        Place::Local => true,
        Place::Remote(server) => remote::can_retry(server),
    })
}

pub(super) fn never_again(error: Error) -> Error {
    if is_stale(&error) { conflict(&error) } else { error }
}
