//! How many documents each shard had of each collection when it was last asked, by PostgreSQL's statistics: what is known of a
//! shard that cannot be asked any more. The worker asks now and then.

use super::cache;
use super::model::{Place, Shard};
use super::nodes::read_on;
use crate::pg::error::Result;
use crate::pg::spi::param::Param;
use crate::pg::{spi, transaction};
use docshard_core::cluster::chunk_map::ShardId;

/// Asks every shard on another node, each in a transaction of its own; called outside of any. One that cannot be reached stays
/// as it was known.
///
/// # Errors
/// Internal ones of the catalog.
pub fn note_all() -> Result<()> {
    let shards = transaction::run(cache::shards)?;
    for shard in shards.values().filter(|shard| shard.place != Place::Local) {
        let _ = transaction::run(|| note(shard));
    }
    Ok(())
}

fn note(shard: &Shard) -> Result<()> {
    let rows = read_on(
        shard,
        "SELECT p.collection_id, greatest(pg_catalog.pg_stat_get_live_tuples(c.oid), 0) \
         FROM docshard_data.placement p JOIN pg_catalog.pg_class c ON c.relname = 'c' || p.collection_id \
         AND c.relnamespace = 'docshard_data'::pg_catalog.regnamespace",
        &[],
        2,
    )?;
    for row in &rows {
        // What has not changed is written again once in ten minutes.
        spi::execute(
            "INSERT INTO docshard_catalog.last_sizes AS l (shard_id, collection_id, documents) \
             SELECT $1, id, $3 FROM docshard_catalog.collections WHERE id = $2 \
             ON CONFLICT (shard_id, collection_id) DO UPDATE SET documents = excluded.documents, asked_at = excluded.asked_at \
             WHERE l.documents <> excluded.documents OR l.asked_at < excluded.asked_at - interval '10 minutes'",
            &[Param::Int4(shard.id), Param::Int4(row.i32(0)), Param::Int8(row.i64(1))],
        )?;
    }
    Ok(())
}

/// What was last known of a collection at a shard: documents, and when; None if it was never asked.
///
/// # Errors
/// Internal ones.
pub fn last_known(shard: ShardId, collection: i32) -> Result<Option<(i64, String)>> {
    let rows = spi::query(
        "SELECT documents, pg_catalog.to_char(asked_at AT TIME ZONE 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS\"Z\"') \
         FROM docshard_catalog.last_sizes WHERE shard_id = $1 AND collection_id = $2",
        &[Param::Int4(shard), Param::Int4(collection)],
    )?;
    Ok(rows.first().map(|row| (row.i64(0), row.text(1).to_owned())))
}
