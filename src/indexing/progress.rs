//! Reports the progress of index builds, from PostgreSQL's progress views on each shard.

use crate::catalog::cache;
use crate::catalog::nodes::read_at_once;
use crate::pg::error::Result;
use crate::store::{index_builds, placements};
use docshard_core::routing::names;
use docshard_core::sql::param::Param;
use docshard_core::sql::record::record;

/// A build on a shard.
#[derive(Clone, Debug)]
pub struct Progress {
    /// the collection
    pub namespace: String,
    /// the index's name
    pub name: String,
    /// its keys
    pub keys_json: String,
    /// the shard's name
    pub shard: String,
    /// PostgreSQL's name of the phase, or `waiting to begin` or `done`
    pub phase: String,
    /// blocks of the table: read so far, and in total
    pub blocks: (i64, i64),
    /// documents in this phase: processed so far, and in total
    pub tuples: (i64, i64),
    /// the process on the shard that it waits for
    pub waits_for: Option<i32>,
    /// the start of the build, in microseconds since 2000
    pub since: i64,
}

/// Returns all builds, each with a row for every shard that takes part.
pub fn of_all() -> Result<Vec<Progress>> {
    let mut all = Vec::new();
    for build in &index_builds::all()? {
        let shards = placements::shards(build.collection)?.into_iter().map(cache::shard).collect::<Result<Vec<_>>>()?;
        let (table, relations) = (names::table(build.collection), &build.relations);
        let params = [Param::Text(&table), Param::Text(relations)];
        let asked: Vec<_> = shards.iter().map(|shard| (&**shard, &params[..])).collect();
        let answers = read_at_once::<OnShard>(&asked, ON_SHARD)?;
        for (shard, rows) in shards.iter().zip(answers) {
            let Some(row) = rows.into_iter().next() else { continue };
            all.push(Progress {
                namespace: build.namespace.clone(),
                name: build.name.clone(),
                keys_json: build.keys.clone(),
                shard: shard.name.clone(),
                phase: row.phase,
                blocks: (row.blocks_done, row.blocks_total),
                tuples: (row.tuples_done, row.tuples_total),
                waits_for: row.waits_for,
                since: build.started_at,
            });
        }
    }
    Ok(all)
}

struct OnShard {
    phase: String,
    blocks_done: i64,
    blocks_total: i64,
    tuples_done: i64,
    tuples_total: i64,
    waits_for: Option<i32>,
}

record! {
    OnShard { phase: String, blocks_done: i64, blocks_total: i64, tuples_done: i64, tuples_total: i64, waits_for: Option<i32> }
}

/// Queries the progress on the table `$1`, for the relations in the array `$2`.
const ON_SHARD: &str = "SELECT coalesce(p.phase, a.phase, CASE WHEN v.valid = pg_catalog.cardinality($2::text[]) THEN 'done' \
           WHEN v.made > 0 THEN 'between two steps' ELSE 'waiting to begin' END), \
        coalesce(p.blocks_done, a.sample_blks_scanned, 0), coalesce(p.blocks_total, a.sample_blks_total, 0), coalesce(p.tuples_done, 0), coalesce(p.tuples_total, 0), \
        nullif(p.current_locker_pid, 0)::int4 \
   FROM (SELECT count(*) AS made, count(*) FILTER (WHERE i.indisvalid) AS valid \
           FROM pg_catalog.pg_index i JOIN pg_catalog.pg_class r ON r.oid = i.indexrelid \
          WHERE i.indrelid = pg_catalog.to_regclass($1) AND r.relname = ANY ($2::text[])) v \
   LEFT JOIN pg_catalog.pg_stat_progress_create_index p \
     ON p.relid = pg_catalog.to_regclass($1) AND p.datname = pg_catalog.current_database() \
   LEFT JOIN pg_catalog.pg_stat_progress_analyze a \
     ON a.relid = pg_catalog.to_regclass($1) AND a.datname = pg_catalog.current_database()";
