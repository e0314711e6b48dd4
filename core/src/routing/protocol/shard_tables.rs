//! What a shard stores about itself: the rows of its tables in the schema `docshard_data`, and every statement on them that another
//! node runs. The shard itself runs some of them, too (`shard::here`); its other statements on these tables are in `src/shard/`.
//!
//! These are statements and not functions because nodes of all versions have the tables: see sql/catalog.sql. INVARIANT: each names
//! only columns that the tables have in every version that works with this one. The exception is [`NoteDefinitions`], which is run only where
//! [`ReadDefinitions`] has found the column.

use super::answer::NoRows;
use super::call::Call;
use super::node::{Identity, PREPARED_BY_ROUTERS};
use crate::routing::names;
use crate::sql::param::Param;
use crate::sql::quote::quote_ident;
use serde_json::Value as Json;

rows! {
    /// The row of `node`, which a database has while it is a shard of another database's cluster.
    NodeRow { cluster_id: i64, shard: String, epoch: i64, counter: i64 }

    /// The newest change of definitions that a router has noted at the shard.
    NotedDefinitions {
        definitions: Option<i64>,
        /// false at a shard of a release before 0.4.0, which has no such column
        is_known: bool,
    }

    /// A row of `placement`: a collection's version at the shard.
    PlacementRow { collection_id: i32, token: i64, version: i64 }

    /// A shard's position.
    ReportedPosition {
        /// as [`Identity`] answers
        identity: String,
        /// when its counter was advanced, as PostgreSQL prints it
        counted_at: Option<String>,
    }

    /// The highest numbers of a collection and of an index.
    LastNumbers { collection: i64, index: i64 }

    /// A number that grows with the writes to a collection's table: how many there were by PostgreSQL's statistics, plus the table's size.
    WriteCount { collection_id: i32, writes: i64 }

    /// A collection or an index of the shard.
    FoundRelation {
        collection: i32,
        index: Option<i32>,
        /// true if the table or index exists
        present: bool,
        token: Option<i64>,
        version: Option<i64>,
        /// by PostgreSQL's statistics; None if they have no count
        documents: Option<i64>,
    }

    /// The answers to [`NodeHealth`](super::node::NodeHealth) and to [`SeeVersions`].
    HealthReport { report: Vec<u8>, seen: Vec<u8> }

    /// The progress of the build of an index.
    BuildProgress {
        /// PostgreSQL's name of the phase, or `waiting to begin`, `between two steps` or `done`
        phase: String,
        /// blocks of the table: read so far, and in total
        blocks_done: i64,
        blocks_total: i64,
        /// documents in this phase: processed so far, and in total
        tuples_done: i64,
        tuples_total: i64,
        /// the process on the shard that it waits for, if any
        waits_for: Option<i32>,
    }

    /// A table that a move has created.
    MoveTable { relation: String, is_foreign: bool, migration: i64 }
}

/// A value of type json as text: the prepared transactions, and then the versions of the collection with this number, or of all.
fn seen(collection: &str) -> String {
    format!(
        "pg_catalog.json_build_object( \
         'prepared', (SELECT pg_catalog.json_agg(gid) {PREPARED_BY_ROUTERS}), \
         'placed', (SELECT pg_catalog.json_agg(pg_catalog.json_build_array(collection_id, token, version)) \
           FROM docshard_data.placement WHERE {collection}::pg_catalog.int4 IS NULL OR collection_id = {collection}) \
         )::pg_catalog.text"
    )
}

/// The foreign table over another server's locks.
const LOCKS_TABLE: &str = "docshard_data.locks_of_another";

/// The statement that asks whether the advisory lock with the key `$1` is held.
fn is_locked(locks: &str) -> String {
    format!(
        "SELECT EXISTS (SELECT FROM {locks} WHERE locktype = 'advisory' AND granted AND objsubid = 1 \
         AND (classid::pg_catalog.int8 << 32 | objid::pg_catalog.int8) = $1)"
    )
}

shard_statements! {
    /// The row of the table `node`, if there is one.
    ReadNode {} -> Vec<NodeRow> { "SELECT cluster_id, shard, epoch, counter FROM docshard_data.node" }

    /// True if the role may read the table `node`; NULL if the database has no such table.
    MayReadNode {} -> Vec<Option<bool>> {
        "SELECT CASE WHEN pg_catalog.to_regclass('docshard_data.node') IS NOT NULL \
                THEN pg_catalog.has_table_privilege('docshard_data.node', 'SELECT') END"
    }

    /// True if the database has accepted the role as a router's: it may create tables.
    HasAcceptedRouter {} -> bool { "SELECT pg_catalog.has_schema_privilege('docshard_data', 'CREATE')" }

    /// True if the database has accepted the role as a router's, and is no shard any more.
    HasLeftCluster {} -> bool {
        "SELECT pg_catalog.has_schema_privilege('docshard_data', 'CREATE') \
         AND NOT EXISTS (SELECT FROM docshard_data.node) AND NOT EXISTS (SELECT FROM docshard_data.placement)"
    }

    /// Makes the database a shard.
    InsertNode<'a> { cluster_id: i64, shard: &'a str, router: &'a str, epoch: i64 } -> NoRows {
        "INSERT INTO docshard_data.node (cluster_id, shard, router, epoch) VALUES ($1, $2, $3, $4)"
    }

    /// The shard's position; no row if the database is no shard.
    ReportPosition {} -> Vec<ReportedPosition> {
        format!(
            "SELECT {}, counted_at::pg_catalog.text FROM docshard_data.node",
            Identity::SIGNATURE.invocation()
        )
    }

    /// Advances the counter and returns the identity. No row if another router has advanced the counter, or if the shard's epoch is not
    /// this router's: it has not been raised yet, or another router has raised it.
    AdvanceCounter<'a> { counter: i64, counted_at: &'a str, epoch: i64, router: &'a str, cluster_id: i64 } -> Vec<String> {
        format!(
            "UPDATE docshard_data.node SET counter = $1, counted_at = $2::pg_catalog.timestamptz, router = $4 \
             WHERE cluster_id = $5 AND epoch = $3 AND counter < $1 RETURNING {}",
            Identity::SIGNATURE.invocation()
        )
    }

    /// Assigns the shard to a router; no row if it belongs to this one already, or to a later one.
    RaiseEpoch<'a> { epoch: i64, cluster_id: i64, router: &'a str } -> Vec<i32> {
        "UPDATE docshard_data.node SET epoch = $1, router = $3 WHERE cluster_id = $2 AND epoch < $1 RETURNING 1"
    }

    /// What a router has noted about its definitions, if the database is a shard.
    ReadDefinitions {} -> Vec<NotedDefinitions> {
        "SELECT (pg_catalog.to_jsonb(n) ->> 'definitions')::pg_catalog.int8 AS definitions, \
           pg_catalog.jsonb_exists(pg_catalog.to_jsonb(n), 'definitions') AS is_known FROM docshard_data.node n"
    }

    /// Notes the newest change of definitions; no row if the shard's epoch is not this router's. Does not wait for standbys: a standby that is
    /// promoted without the note gets it again.
    NoteDefinitions { definitions: i64, cluster_id: i64, epoch: i64 } -> Vec<i32> {
        "UPDATE docshard_data.node SET definitions = $1 \
         FROM (SELECT pg_catalog.set_config('synchronous_commit', 'local', true)) AS s \
         WHERE cluster_id = $2 AND epoch = $3 RETURNING 1"
    }

    /// The servers over which the shard reaches other shards.
    ReadShardServers {} -> Vec<String> {
        "SELECT srvname::text FROM pg_catalog.pg_foreign_server WHERE pg_catalog.starts_with(srvname::text, 'docshard_')"
    }

    /// The rows of `placement`: of one collection, or of all.
    ReadPlacements { collection: Option<i32> } -> Vec<PlacementRow> {
        "SELECT collection_id, token, version FROM docshard_data.placement \
         WHERE $1::pg_catalog.int4 IS NULL OR collection_id = $1 ORDER BY collection_id"
    }

    /// Compares and sets a collection's version; no row if it was another one.
    SetVersion { collection: i32, token: i64, before: i64, version: i64 } -> Vec<i32> {
        "UPDATE docshard_data.placement SET version = $4 WHERE collection_id = $1 AND token = $2 AND version = $3 RETURNING 1"
    }

    /// Locks a collection's placement until the transaction ends; no row if its version is another one, or if another transaction has
    /// locked it.
    HoldPlacement { collection: i32, token: i64, version: i64 } -> Vec<i32> {
        "SELECT 1 FROM docshard_data.placement WHERE collection_id = $1 AND token = $2 AND version = $3 FOR UPDATE SKIP LOCKED"
    }

    /// The prepared transactions and the versions, of one collection or of all, as JSON.
    SeeVersions { collection: Option<i32> } -> Option<Vec<u8>> { format!("SELECT {}", seen("$1")) }

    /// The node's health, and what [`SeeVersions`] answers of all collections.
    ReportHealth {} -> HealthReport {
        format!("SELECT {} AS report, {} AS seen", super::node::NodeHealth::SIGNATURE.invocation(), seen("NULL"))
    }

    /// The highest number of a collection that is placed at the shard, and of an index, up to the given ones. A table that has no row of
    /// `placement` does not count: it may have any number.
    ReadLastNumbers { collections: i64, indexes: i64 } -> LastNumbers {
        "SELECT (SELECT coalesce(pg_catalog.max(collection_id), 0)::pg_catalog.int8 FROM docshard_data.placement \
              WHERE collection_id <= $1) AS collection, \
           (SELECT coalesce(pg_catalog.max(n), 0) \
              FROM (SELECT pg_catalog.substring(relname, '^i([0-9]{1,9})')::pg_catalog.int8 AS n FROM pg_catalog.pg_class \
                    WHERE relnamespace = 'docshard_data'::pg_catalog.regnamespace AND relkind = 'i') AS i \
              WHERE n <= $2) AS index"
    }

    /// The [`WriteCount`] of each of these collections that the shard has.
    CountWrites<'a> { collections: &'a [i32] } -> Vec<WriteCount> {
        "SELECT id, pg_catalog.pg_stat_get_tuples_inserted(t) + pg_catalog.pg_stat_get_tuples_updated(t) \
                + pg_catalog.pg_stat_get_tuples_deleted(t) + coalesce(pg_catalog.pg_relation_size(t), 0) AS writes \
         FROM (SELECT id, pg_catalog.to_regclass('docshard_data.c' || id) AS t FROM pg_catalog.unnest($1) AS id) AS c \
         WHERE t IS NOT NULL"
    }

    /// The shard's collections and indexes. Sizes are left out, as they would take locks. Statistics that say 0 may have been reset by a crash.
    ReadRelations {} -> Vec<FoundRelation> {
        "SELECT coalesce(p.collection_id, pg_catalog.substr(c.relname, 2)::int4) AS collection, NULL::int4 AS index, \
           c.relname IS NOT NULL AS present, p.token, p.version, nullif(pg_catalog.pg_stat_get_live_tuples(c.oid), 0) AS documents \
         FROM (SELECT oid, relname::text FROM pg_catalog.pg_class \
                WHERE relnamespace = 'docshard_data'::pg_catalog.regnamespace AND relkind = 'r' AND relname ~ '^c[0-9]{1,9}$') AS c \
         FULL JOIN docshard_data.placement p ON c.relname = 'c' || p.collection_id \
         UNION ALL \
         SELECT DISTINCT pg_catalog.substr(t.relname, 2)::int4, pg_catalog.substring(i.relname, '^i([0-9]{1,9})')::int4, true, \
           NULL::int8, NULL::int8, NULL::int8 \
         FROM pg_catalog.pg_index x JOIN pg_catalog.pg_class i ON i.oid = x.indexrelid JOIN pg_catalog.pg_class t ON t.oid = x.indrelid \
         WHERE t.relnamespace = 'docshard_data'::pg_catalog.regnamespace AND t.relname ~ '^c[0-9]{1,9}$' \
           AND i.relname ~ '^i[0-9]{1,9}(_entries|_unique)?$'"
    }

    /// What the shard has of one collection or of all, as JSON: versions, tables with the privileges of roles, indexes; and of moves and
    /// changes of layout: prepared transactions, captures, tables, whose names a regular expression describes. Expressions of indexes are
    /// PostgreSQL's trees of them: to print one as SQL opens the table, and fails if it is just being dropped.
    DescribeShard<'a> { collection: Option<i32>, move_tables: &'a str } -> Option<Vec<u8>> {
        format!("SELECT pg_catalog.json_build_object( \
           'prepared', (SELECT pg_catalog.json_agg(gid) {PREPARED_BY_ROUTERS}), \
           'captures', (SELECT pg_catalog.json_agg(migration_id) FROM (SELECT migration_id FROM docshard_data.capture \
             UNION SELECT migration_id FROM docshard_data.capture_parts) AS c), \
           'moveTables', (SELECT pg_catalog.json_agg(relname) FROM pg_catalog.pg_class \
             WHERE relnamespace = 'docshard_data'::pg_catalog.regnamespace AND relname ~ ('^' || $2 || '$')), \
           'placed', (SELECT pg_catalog.json_agg(pg_catalog.json_build_array(collection_id, token, version, \
               pg_catalog.to_jsonb(p) ->> 'validator')) \
             FROM docshard_data.placement p WHERE $1::pg_catalog.int4 IS NULL OR collection_id = $1), \
           'tables', (SELECT pg_catalog.json_agg(pg_catalog.json_build_array(pg_catalog.substr(c.relname, 2)::int4, ( \
               SELECT pg_catalog.json_agg(pg_catalog.json_build_array(r.rolname, a.privilege_type)) \
                 FROM pg_catalog.aclexplode(c.relacl) AS a JOIN pg_catalog.pg_roles r ON r.oid = a.grantee))) \
             FROM pg_catalog.pg_class c WHERE c.relnamespace = 'docshard_data'::pg_catalog.regnamespace AND c.relkind = 'r' \
               AND CASE WHEN $1::pg_catalog.int4 IS NULL THEN c.relname ~ '^c[0-9]{{1,9}}$' ELSE c.relname = 'c' || $1::pg_catalog.int4 END), \
           'indexes', (SELECT pg_catalog.json_agg(pg_catalog.json_build_array(pg_catalog.substr(c.relname, 2)::int4, i.relname, \
               x.indisvalid, coalesce(x.indexprs::pg_catalog.text, '') || coalesce(x.indpred::pg_catalog.text, ''))) \
             FROM pg_catalog.pg_index x JOIN pg_catalog.pg_class i ON i.oid = x.indexrelid JOIN pg_catalog.pg_class c ON c.oid = x.indrelid \
             WHERE c.relnamespace = 'docshard_data'::pg_catalog.regnamespace AND c.relkind = 'r' \
               AND CASE WHEN $1::pg_catalog.int4 IS NULL THEN c.relname ~ '^c[0-9]{{1,9}}$' ELSE c.relname = 'c' || $1::pg_catalog.int4 END) \
         )::pg_catalog.text")
    }

    /// The size of a collection's table. The table is closed at once: a lock held until commit would block the removal of failed builds.
    ReadTableSize { collection: i32 } -> Option<i64> {
        "SELECT pg_catalog.pg_relation_size(pg_catalog.to_regclass('docshard_data.c' || $1))"
    }

    /// The progress of builds on a collection's table. `relations`: the names of the index's relations, as the text of an array.
    ReadBuildProgress<'a> { collection: i32, relations: &'a str } -> Vec<BuildProgress> {
        "SELECT coalesce(p.phase, a.phase, CASE WHEN v.valid = pg_catalog.cardinality($2::text[]) THEN 'done' \
             WHEN v.made > 0 THEN 'between two steps' ELSE 'waiting to begin' END), \
           coalesce(p.blocks_done, a.sample_blks_scanned, 0), coalesce(p.blocks_total, a.sample_blks_total, 0), \
           coalesce(p.tuples_done, 0), coalesce(p.tuples_total, 0), nullif(p.current_locker_pid, 0)::int4 \
         FROM (SELECT pg_catalog.to_regclass('docshard_data.c' || $1) AS oid) t \
         CROSS JOIN LATERAL (SELECT count(*) AS made, count(*) FILTER (WHERE i.indisvalid) AS valid \
           FROM pg_catalog.pg_index i JOIN pg_catalog.pg_class r ON r.oid = i.indexrelid \
           WHERE i.indrelid = t.oid AND r.relname = ANY ($2::text[])) v \
         LEFT JOIN pg_catalog.pg_stat_progress_create_index p ON p.relid = t.oid AND p.datname = pg_catalog.current_database() \
         LEFT JOIN pg_catalog.pg_stat_progress_analyze a ON a.relid = t.oid AND a.datname = pg_catalog.current_database()"
    }

    /// Those of these relations that the shard has.
    FindRelations<'a> { relations: &'a [&'a str] } -> Vec<String> {
        "SELECT relname::text FROM pg_catalog.pg_class \
         WHERE relnamespace = 'docshard_data'::pg_catalog.regnamespace AND relname = ANY ($1::text[])"
    }

    /// True if a session of this server holds the advisory lock with this key.
    SeeLock { key: i64 } -> bool { is_locked("pg_catalog.pg_locks") }

    /// Like [`SeeLock`], for the server over whose locks there is a [foreign table](create_locks_table).
    SeeForeignLock { key: i64 } -> bool { is_locked(LOCKS_TABLE) }

    /// The valid indexes of a collection's table.
    ReadValidIndexes { collection: i32 } -> Vec<String> {
        "SELECT c.relname::text FROM pg_catalog.pg_index AS i JOIN pg_catalog.pg_class AS c ON c.oid = i.indexrelid \
         WHERE i.indrelid = pg_catalog.to_regclass('docshard_data.c' || $1) AND i.indisvalid"
    }

    /// Invalid secondary indexes, as interrupted builds leave them.
    ReadInvalidIndexes {} -> Vec<String> {
        "SELECT r.relname::text FROM pg_catalog.pg_index i JOIN pg_catalog.pg_class r ON r.oid = i.indexrelid \
         WHERE NOT i.indisvalid AND r.relnamespace = 'docshard_data'::pg_catalog.regnamespace \
           AND r.relname ~ '^i[0-9]+(_entries|_unique)?$'"
    }

    /// The tables of moves, whose names this regular expression describes.
    ReadMoveTables<'a> { names: &'a str } -> Vec<MoveTable> {
        "SELECT relname::text AS relation, relkind = 'f' AS is_foreign, substring(relname, '^m([0-9]+)_')::int8 AS migration \
         FROM pg_catalog.pg_class WHERE relnamespace = 'docshard_data'::pg_catalog.regnamespace AND relname ~ ('^' || $1 || '$')"
    }

    /// The transactions that are visible now.
    ReadSnapshot {} -> String { "SELECT pg_catalog.pg_current_snapshot()::pg_catalog.text" }

    /// Donor: captures the changes of a range from the commit on; without `max` it has no upper end.
    InsertCapture<'a> { collection: i32, migration: i64, min: &'a [u8], max: Option<&'a [u8]> } -> NoRows {
        "INSERT INTO docshard_data.capture (collection_id, migration_id, min, max) VALUES ($1, $2, $3, $4::pg_catalog.bytea)"
    }

    /// Donor: ends the capture of a range; no row if it was not captured.
    EndCapture { collection: i32, migration: i64 } -> Vec<i32> {
        "DELETE FROM docshard_data.capture WHERE collection_id = $1 AND migration_id = $2 RETURNING 1"
    }

    /// Donor: deletes the rows of a move's log up to a number.
    DeleteChanges { migration: i64, last: i64 } -> NoRows {
        "DELETE FROM docshard_data.capture_log WHERE migration_id = $1 AND seq <= $2"
    }

    /// The moves that have rows in a capture table.
    ReadCapturedMoves {} -> Vec<i64> {
        "SELECT migration_id FROM docshard_data.capture UNION SELECT migration_id FROM docshard_data.capture_log \
         UNION SELECT migration_id FROM docshard_data.capture_parts"
    }

    /// Deletes the rows of the capture tables: of one move, of one collection, or of all.
    DeleteCaptures { migration: Option<i64>, collection: Option<i32> } -> NoRows {
        "WITH move AS (DELETE FROM docshard_data.capture \
           WHERE ($1::pg_catalog.int8 IS NULL OR migration_id = $1) AND ($2::pg_catalog.int4 IS NULL OR collection_id = $2)), \
         log AS (DELETE FROM docshard_data.capture_log \
           WHERE ($1::pg_catalog.int8 IS NULL OR migration_id = $1) AND ($2::pg_catalog.int4 IS NULL OR collection_id = $2)) \
         DELETE FROM docshard_data.capture_parts \
           WHERE ($1::pg_catalog.int8 IS NULL OR migration_id = $1) AND ($2::pg_catalog.int4 IS NULL OR collection_id = $2)"
    }
}

/// The keys `[lo, hi)` of a collection's table; without `hi` there is no upper end.
#[derive(Clone, Copy, Debug)]
pub struct TableRange<'a> {
    pub collection: i32,
    pub lo: &'a [u8],
    pub hi: Option<&'a [u8]>,
}

/// The condition that a key is in `[lo, hi)`, and its parameters `$1`, `$2`; None means no upper end.
pub fn key_range<'a>(lo: &'a [u8], hi: Option<&'a [u8]>) -> (&'static str, Vec<Param<'a>>) {
    let condition = if hi.is_some() { "skey >= $1 AND skey < $2" } else { "skey >= $1" };
    (condition, std::iter::once(lo).chain(hi).map(Param::Bytea).collect())
}

impl TableRange<'_> {
    pub(super) fn complete(&self, sql: &str) -> String {
        sql.replace("{table}", &names::table(self.collection)).replace("{range}", key_range(self.lo, self.hi).0)
    }

    pub(super) fn params(&self) -> Vec<Param<'_>> {
        key_range(self.lo, self.hi).1
    }
}

/// Declares statements on the documents of a range: `Type -> answer { "SQL" }`, in which `{table}` is the collection's table, and
/// `{range}` the condition that a row is in the range.
macro_rules! range_statements {
    ($($(#[$doc:meta])* $name:ident -> $answer:ty { $sql:literal })*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug)]
        pub struct $name<'a>(pub TableRange<'a>);

        impl Call for $name<'_> {
            type Answer = $answer;
            const NAME: &'static str = stringify!($name);

            fn statement(&self) -> String {
                self.0.complete($sql)
            }

            fn params(&self) -> Vec<Param<'_>> {
                self.0.params()
            }
        }
    )*};
}

range_statements! {
    /// One row if there is a document, else none.
    FindDocument -> Vec<()> { "SELECT FROM {table} WHERE {range} LIMIT 1" }

    /// The lowest key of a document; NULL if there is none.
    FirstKey -> Option<Vec<u8>> { "SELECT (SELECT skey FROM {table} WHERE {range} ORDER BY skey LIMIT 1)" }

    /// The number of documents.
    CountDocuments -> i64 { "SELECT pg_catalog.count(*) FROM {table} WHERE {range}" }

    /// Deletes the documents; returns their number.
    DeleteDocuments -> i64 {
        "WITH gone AS (DELETE FROM {table} WHERE {range} RETURNING 1) SELECT pg_catalog.count(*) FROM gone"
    }

    /// The length of the longest of a hundred documents, in bytes of text.
    SampleDocumentSize -> Option<i64> {
        "SELECT max(octet_length(doc::text))::int8 FROM (SELECT doc FROM {table} WHERE {range} LIMIT 100) AS sample"
    }

    /// PostgreSQL's plan of a scan, with its estimate of the number of documents.
    ExplainScan -> Vec<Json> { "EXPLAIN (FORMAT json) SELECT FROM {table} WHERE {range}" }
}

/// The statement whose rows begin with the cluster's number, the shard's name and the shard's identity, followed by the columns
/// of `statement`. If `statement` has no rows, there is one row, with NULLs for its columns.
pub fn with_mark(statement: &str) -> String {
    format!(
        "SELECT n.cluster_id, n.shard, {}, a.* FROM docshard_data.node n LEFT JOIN LATERAL ({statement}) AS a ON true",
        Identity::SIGNATURE.invocation()
    )
}

/// The statement that creates a foreign table over the locks of the server to which a foreign server leads.
pub fn create_locks_table(server: &str) -> String {
    format!(
        "CREATE FOREIGN TABLE {LOCKS_TABLE} (locktype text, granted boolean, classid oid, objid oid, objsubid smallint) \
         SERVER {} OPTIONS (schema_name 'pg_catalog', table_name 'pg_locks')",
        quote_ident(server)
    )
}

/// The statement that drops that foreign table.
pub fn drop_locks_table() -> String {
    format!("DROP FOREIGN TABLE {LOCKS_TABLE}")
}

/// The statement that drops an index without blocking writers.
pub fn drop_index_concurrently(index: &str) -> String {
    format!("DROP INDEX CONCURRENTLY {}", names::relation_name(index))
}

impl MoveTable {
    /// The statement that drops the table.
    pub fn drop(&self) -> String {
        let foreign = if self.is_foreign { "FOREIGN " } else { "" };
        format!("DROP {foreign}TABLE IF EXISTS {}", names::relation_name(&self.relation))
    }
}
