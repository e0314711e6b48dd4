//! Counts the statements of routers by the shard keys that they read or write: the load of chunks.
//!
//! A shard does not know the chunks that it owns. So it counts at keys, and the router assigns keys to chunks
//! (`catalog::collections::loads`). A statement counts once for each chunk that it reads or writes: the router sends one key of each. If
//! the chunks are not known, the statement is counted without a key. An insert counts once for each document. Moves, index builds and other
//! work of the cluster are not counted.
//!
//! Counting is sampling ([`access_ring`]), which costs a decrement for most statements. Counting never fails.

use super::table;
use crate::pg::process::access_ring::{self, AccessKind, KEY_BYTES, Rates};
use crate::pg::security::permission;
use docshard_core::cluster::load::MAX_SAMPLED_KEY;
use docshard_core::error::{Kind, error};
use docshard_core::routing::protocol::measure::SampledAccess;

const _: () = assert!(KEY_BYTES == MAX_SAMPLED_KEY);

/// Counts a read of a key.
pub fn read(collection: i32, key: &[u8]) {
    access_ring::note(collection, AccessKind::Read, Some(key));
}

/// Counts a statement that reads several chunks; `keys` has one key of each. Without keys, the statement reads most of
/// the collection. Counts nothing if the caller may not read the collection: anyone may call the functions that count.
pub fn read_at<'k>(collection: i32, keys: impl IntoIterator<Item = &'k [u8]>) {
    if !table::oid(collection).is_ok_and(permission::may_read) {
        return;
    }
    let mut keys = keys.into_iter().peekable();
    if keys.peek().is_none() {
        access_ring::note(collection, AccessKind::Read, None);
    }
    keys.for_each(|key| read(collection, key));
}

/// Counts a write; `key` is None for a write to no particular key.
pub fn write(collection: i32, key: Option<&[u8]>) {
    access_ring::note(collection, AccessKind::Write, key);
}

/// Returns the accesses to each key, from at most `most` samples.
///
/// # Errors
/// `IllegalOperation` if this server does not preload docshard, and so counts nothing.
pub fn sampled(most: i32) -> crate::pg::error::Result<Vec<SampledAccess>> {
    let rates = access_ring::read(usize::try_from(most).unwrap_or(0)).ok_or_else(|| {
        error!(Kind::IllegalOperation, "docshard is not preloaded on this server, so operations are not counted")
            .with_hint("Add docshard to shared_preload_libraries, and restart the server.")
    })?;
    let in_1000_s = |rate: f64| (rate * 1000.0).round() as i64;
    let access = |Rates { group, key, reads, writes, samples }: Rates| SampledAccess {
        collection: group,
        key,
        reads: in_1000_s(reads),
        writes: in_1000_s(writes),
        samples: samples.into(),
    };
    Ok(rates.into_iter().map(access).collect())
}
