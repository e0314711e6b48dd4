//! Splits and merges chunks. Only the map changes: as no key changes its owner, no shard takes part and no version advances.

use crate::catalog::change::{self, Locked};
use crate::catalog::cluster::move_exclusion;
use crate::pg::error::{Error, Result};
use crate::store::{chunks, collections};
use docshard_core::cluster::chunk_map::Chunk;
use docshard_core::error::{Kind, bail, error};
use docshard_core::values::key::KeyPattern;
use serde_json::json;

/// Locks a sharded collection once none of its chunks is being moved.
/// Errors: `NamespaceNotSharded`; those of [`move_exclusion::lock`].
pub fn lock(namespace: &str) -> Result<(Locked, KeyPattern)> {
    with_pattern(namespace, move_exclusion::lock(namespace)?)
}

/// Like [`lock`], without waiting for moves.
/// Errors: `NamespaceNotSharded`; those of [`move_exclusion::lock_now`].
pub fn lock_now(namespace: &str) -> Result<(Locked, KeyPattern)> {
    with_pattern(namespace, move_exclusion::lock_now(namespace)?)
}

fn with_pattern(namespace: &str, locked: Locked) -> Result<(Locked, KeyPattern)> {
    if locked.key.is_none() {
        bail!(Kind::NamespaceNotSharded, "ns not sharded: {namespace}");
    }
    let pattern = collections::pattern(locked.key.as_ref())?;
    Ok((locked, pattern))
}

/// Returns the chunk of a locked collection that holds a key.
/// Errors: `InternalError` if the map has a gap.
pub fn containing(collection: i32, key: &[u8]) -> Result<Chunk> {
    chunks::containing(collection, key)?.ok_or_else(|| error!(Kind::InternalError, "no chunk holds the key"))
}

/// Splits the chunks of a locked collection at these keys; returns the number of new chunks.
/// Errors: `BadValue` for a key that already is a chunk's bound; those of [`containing`] and [`change::touch`].
pub fn split(locked: &Locked, namespace: &str, pattern: &KeyPattern, points: &[Vec<u8>]) -> Result<usize> {
    let highest = pattern.max_bound();
    for point in points {
        let chunk = containing(locked.id, point)?;
        if *point == chunk.min || *point >= highest {
            bail!(
                Kind::BadValue,
                "new split key {} is a boundary key of an existing chunk",
                pattern.bound_to_json(point)
            );
        }
        chunks::split(locked.id, &chunk, point)?;
    }
    if points.is_empty() {
        return Ok(0);
    }
    change::touch(locked.id)?;
    let at: Vec<_> = points.iter().take(10).map(|point| pattern.bound_to_json(point)).collect();
    change::log("split", Some(namespace), &json!({"at": at, "chunks": points.len()}))?;
    Ok(points.len())
}

/// Clears the flag "jumbo" of the chunk that holds a key, in a locked collection. The balancer then tries again to split the chunk.
/// Errors: those of [`containing`] and [`change::touch`].
pub fn clear_jumbo(locked: &Locked, namespace: &str, pattern: &KeyPattern, key: &[u8]) -> Result<()> {
    let chunk = containing(locked.id, key)?;
    if !chunks::set_jumbo(locked.id, &chunk.min, false)? {
        return Ok(());
    }
    let details = json!({"min": pattern.bound_to_json(&chunk.min), "max": pattern.bound_to_json(&chunk.max)});
    change::log("clearJumboFlag", Some(namespace), &details)?;
    change::touch(locked.id)
}

/// Merges the chunks of a locked collection from `min` to `max`; returns their number.
/// Errors: `BadValue` if `min` or `max` is not a chunk's bound, if only one chunk lies between them, or if the chunks are on several
/// shards; those of [`change::touch`].
pub fn merge(locked: &Locked, namespace: &str, pattern: &KeyPattern, min: &[u8], max: &[u8]) -> Result<usize> {
    let merged = chunks::within(locked.id, min, max)?;
    let bad = |message: String| Err(Error::new(Kind::BadValue, message));
    let shown = |bound: &[u8]| pattern.bound_to_json(bound).to_string();
    let (Some(first), Some(last)) = (merged.first(), merged.last()) else {
        return bad(format!(
            "could not merge chunks: no chunk of {namespace} lies between {} and {}",
            shown(min),
            shown(max)
        ));
    };
    for (bound, found, what) in [(min, &first.min, "starts"), (max, &last.max, "ends")] {
        if bound != found {
            return bad(format!("could not merge chunks: no chunk of {namespace} {what} at {}", shown(bound)));
        }
    }
    if merged.len() == 1 {
        return bad(format!(
            "could not merge chunks: there is only one chunk between {} and {}",
            shown(min),
            shown(max)
        ));
    }
    if merged.iter().any(|chunk| chunk.shard != first.shard) {
        return Err(error!(Kind::BadValue, "could not merge chunks: they are not all on the same shard")
            .with_hint("docshard.move_chunk brings them together; the view docshard.chunks shows where they are."));
    }
    chunks::merge(locked.id, min, max)?;
    change::touch(locked.id)?;
    let details = json!({
        "min": pattern.bound_to_json(min),
        "max": pattern.bound_to_json(max),
        "chunks": merged.len(),
    });
    change::log("merge", Some(namespace), &details)?;
    Ok(merged.len())
}
