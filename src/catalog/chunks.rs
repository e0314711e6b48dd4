//! Splitting and merging chunks: changes of the map alone. No shard is told, no version advances, as nobody's ownership
//! changes.

use super::change::{self, Locked, NEXT_REVISION};
use super::undisturbed;
use crate::pg::datum::json;
use crate::pg::error::{Error, Result};
use crate::pg::spi;
use crate::pg::spi::param::Param;
use docshard_core::cluster::chunk_map::{Chunk, ShardId};
use docshard_core::error::Kind;
use docshard_core::values::key::KeyPattern;
use serde_json::json;

/// Locks a sharded collection once none of its chunks is being moved.
///
/// # Errors
/// `NamespaceNotSharded`; those of [`undisturbed::lock`].
pub fn lock(namespace: &str) -> Result<(Locked, KeyPattern)> {
    with_pattern(namespace, undisturbed::lock(namespace)?)
}

/// As [`lock`], without waiting for moves.
///
/// # Errors
/// `NamespaceNotSharded`; those of [`undisturbed::lock_now`].
pub fn lock_now(namespace: &str) -> Result<(Locked, KeyPattern)> {
    with_pattern(namespace, undisturbed::lock_now(namespace)?)
}

fn with_pattern(namespace: &str, locked: Locked) -> Result<(Locked, KeyPattern)> {
    let Some(key) = &locked.key else {
        return Err(Error::new(Kind::NamespaceNotSharded, format!("ns not sharded: {namespace}")));
    };
    let pattern = KeyPattern::parse(&json::parse(key)?)?;
    Ok((locked, pattern))
}

/// The chunk that holds a key, of a locked collection.
///
/// # Errors
/// `InternalError` if the map has a gap.
pub fn containing(collection: i32, key: &[u8]) -> Result<Chunk> {
    let rows = spi::query(
        "SELECT min, max, shard_id FROM docshard_catalog.chunks WHERE collection_id = $1 AND min <= $2 \
         ORDER BY min DESC LIMIT 1",
        &[Param::Int4(collection), Param::Bytea(key)],
    )?;
    let row = rows.first().ok_or_else(|| Error::new(Kind::InternalError, "no chunk holds the key"))?;
    Ok(Chunk { min: row.bytes(0), max: row.bytes(1), shard: row.i32(2) })
}

/// Splits a locked collection's chunks at these keys, each in any chunk; returns how many chunks that made.
///
/// # Errors
/// `BadValue` for a key that is a bound of a chunk already.
pub fn split(locked: &Locked, namespace: &str, pattern: &KeyPattern, points: &[Vec<u8>]) -> Result<usize> {
    let highest = pattern.max_bound();
    for point in points {
        let chunk = containing(locked.id, point)?;
        if *point == chunk.min || *point >= highest {
            return Err(Error::new(
                Kind::BadValue,
                format!("new split key {} is a boundary key of an existing chunk", pattern.bound_to_json(point)),
            ));
        }
        spi::execute(
            &format!(
                "WITH old AS (UPDATE docshard_catalog.chunks SET max = $3, jumbo = false, revision = {NEXT_REVISION} \
                              WHERE collection_id = $1 AND min = $2 RETURNING shard_id, version, revision) \
                 INSERT INTO docshard_catalog.chunks (collection_id, min, max, shard_id, version, revision) \
                 SELECT $1, $3, $4, shard_id, version, revision FROM old"
            ),
            &[Param::Int4(locked.id), Param::Bytea(&chunk.min), Param::Bytea(point), Param::Bytea(&chunk.max)],
        )?;
    }
    if points.is_empty() {
        return Ok(0);
    }
    change::touch(locked.id)?;
    let at: Vec<_> = points.iter().take(10).map(|point| pattern.bound_to_json(point)).collect();
    change::log("split", Some(namespace), &json!({"at": at, "chunks": points.len()}))?;
    Ok(points.len())
}

/// Takes the mark from the chunk of a locked collection that holds a key: the balancer tries again to split it.
///
/// # Errors
/// Internal ones.
pub fn clear_jumbo(locked: &Locked, namespace: &str, pattern: &KeyPattern, key: &[u8]) -> Result<()> {
    let chunk = containing(locked.id, key)?;
    let cleared = spi::query(
        "UPDATE docshard_catalog.chunks SET jumbo = false WHERE collection_id = $1 AND min = $2 AND jumbo RETURNING min",
        &[Param::Int4(locked.id), Param::Bytea(&chunk.min)],
    )?;
    if cleared.is_empty() {
        return Ok(());
    }
    let details = json!({"min": pattern.bound_to_json(&chunk.min), "max": pattern.bound_to_json(&chunk.max)});
    change::log("clearJumboFlag", Some(namespace), &details)?;
    change::touch(locked.id)
}

/// Merges the chunks of a locked collection from `min` to `max`; returns how many they were.
///
/// # Errors
/// `BadValue` if `min` or `max` is no chunk's bound, if there is only one chunk between them, or if they are not all on
/// one shard.
pub fn merge(locked: &Locked, namespace: &str, pattern: &KeyPattern, min: &[u8], max: &[u8]) -> Result<usize> {
    let rows = spi::query(
        "SELECT min, max, shard_id FROM docshard_catalog.chunks WHERE collection_id = $1 AND min >= $2 AND max <= $3 \
         ORDER BY min",
        &[Param::Int4(locked.id), Param::Bytea(min), Param::Bytea(max)],
    )?;
    let bad = |message: String| Err(Error::new(Kind::BadValue, message));
    let shown = |bound: &[u8]| pattern.bound_to_json(bound).to_string();
    let (Some(first), Some(last)) = (rows.first(), rows.last()) else {
        return bad(format!(
            "could not merge chunks: no chunk of {namespace} lies between {} and {}",
            shown(min),
            shown(max)
        ));
    };
    for (bound, found, what) in [(min, first.bytes(0), "starts"), (max, last.bytes(1), "ends")] {
        if bound != found.as_slice() {
            return bad(format!("could not merge chunks: no chunk of {namespace} {what} at {}", shown(bound)));
        }
    }
    if rows.len() == 1 {
        return bad(format!(
            "could not merge chunks: there is only one chunk between {} and {}",
            shown(min),
            shown(max)
        ));
    }
    let owner: ShardId = first.i32(2);
    if rows.iter().any(|row| row.i32(2) != owner) {
        return Err(Error::new(Kind::BadValue, "could not merge chunks: they are not all on the same shard")
            .with_hint("docshard.move_chunk brings them together; the view docshard.chunks shows where they are."));
    }
    spi::execute(
        &format!(
            "WITH gone AS (DELETE FROM docshard_catalog.chunks WHERE collection_id = $1 AND min > $2 AND max <= $3 \
                           RETURNING version) \
             UPDATE docshard_catalog.chunks AS c SET max = $3, jumbo = false, revision = {NEXT_REVISION}, \
                    version = greatest(c.version, (SELECT max(version) FROM gone)) \
             WHERE collection_id = $1 AND min = $2"
        ),
        &[Param::Int4(locked.id), Param::Bytea(min), Param::Bytea(max)],
    )?;
    change::touch(locked.id)?;
    let details = json!({
        "min": pattern.bound_to_json(min),
        "max": pattern.bound_to_json(max),
        "chunks": rows.len(),
    });
    change::log("merge", Some(namespace), &details)?;
    Ok(rows.len())
}
