//! Calls of a coordinator that copies a collection into another layout: to its donors, the shards that have documents, and to its
//! recipients, the shards that get some. A [share](crate::cluster::share) says which.

use super::answer::NoRows;

rows! {
    /// What a recipient has stored.
    Stored {
        /// by how many the number of documents has grown
        documents: i64,
        /// The keys of documents that a unique index refused because of another document: the donor's `skey` and `id` of each, both
        /// preceded by their length in 4 bytes, little-endian.
        refused: Vec<u8>,
    }

    /// A changed document in the log.
    Logged {
        /// the number of its newest row
        number: i64,
        /// how many rows it had
        rows: i64,
    }
}

calls! {
    /// Recipient: loads a batch of pulled documents into the copy's table; refuses those that are not of its share.
    load_share => LoadShare<'a> {
        resharding: i64,
        /// the copy
        collection: i32,
        batch: i32,
        /// the text of the copy's shard key
        key: &'a str,
        share: &'a [u8],
    } -> Stored;

    /// Recipient: applies a batch of pulled changes: removes what it has of the logged documents, and stores the current ones that are of
    /// its share.
    apply_share => ApplyShare<'a> {
        resharding: i64,
        collection: i32,
        batch: i32,
        /// the text of the donors' shard key
        old_key: &'a str,
        key: &'a str,
        share: &'a [u8],
    } -> Stored;
}

shard_statements! {
    /// Donor: adds a copy of the parts of its table for one recipient, numbered from `after` + 1; returns how many.
    InsertShareParts<'a> { resharding: i64, after: i64, key: &'a str, share: &'a [u8] } -> i64 {
        "WITH made AS (INSERT INTO docshard_data.capture_parts \
           (migration_id, part, collection_id, skey, file, place, next_place, target_key, target_share) \
         SELECT migration_id, part + $2, collection_id, skey, file, place, next_place, $3, $4 \
           FROM docshard_data.capture_parts WHERE migration_id = $1 AND target_key IS NULL RETURNING 1) \
         SELECT pg_catalog.count(*) FROM made"
    }

    /// Donor: the log's oldest rows, at most `most`. Of several rows of one document, it deletes all but the newest: that one brings the
    /// current document, too.
    ReadChangeNumbers { resharding: i64, most: i64 } -> Vec<Logged> {
        "WITH oldest AS (SELECT seq, skey, id FROM docshard_data.capture_log WHERE migration_id = $1 ORDER BY seq LIMIT $2), \
         newest AS (SELECT pg_catalog.max(seq) AS seq, pg_catalog.count(*) AS rows FROM oldest GROUP BY skey, id), \
         deleted AS (DELETE FROM docshard_data.capture_log WHERE migration_id = $1 \
                     AND seq = ANY (ARRAY(SELECT seq FROM oldest EXCEPT SELECT seq FROM newest))) \
         SELECT seq, rows FROM newest ORDER BY seq"
    }

    /// Donor: how many of these rows of the log to copy at once: the first ones whose documents have about this many bytes, at least one.
    CountChanges<'a> { resharding: i64, numbers: &'a [i64], bytes: i64 } -> i64 {
        "WITH RECURSIVE counted (rows, bytes) AS ( \
           SELECT 0, 0::pg_catalog.int8 \
           UNION ALL \
           SELECT c.rows + 1, c.bytes + coalesce(( \
             SELECT pg_catalog.pg_column_size(docshard_internal.current_document(l.collection_id, l.skey, l.id)) \
               FROM docshard_data.capture_log l WHERE l.migration_id = $1 AND l.seq = ($2::pg_catalog.int8[])[c.rows + 1]), 0) \
             FROM counted c WHERE c.rows < pg_catalog.cardinality($2) AND c.bytes < $3) \
         SELECT pg_catalog.max(rows)::pg_catalog.int8 FROM counted"
    }

    /// Donor: what else uses the collection's table or the type of its rows, such as a view, so that the table cannot be dropped.
    FindDependents<'a> { table: &'a str } -> Vec<String> {
        "SELECT coalesce(pg_catalog.pg_describe_object(c.tableoid, r.ev_class, 0), pg_catalog.pg_describe_object(d.classid, d.objid, 0)) \
         FROM pg_catalog.pg_depend d JOIN pg_catalog.pg_class c ON c.oid = pg_catalog.to_regclass($1) \
         JOIN pg_catalog.pg_type t ON t.oid = c.reltype \
         LEFT JOIN pg_catalog.pg_rewrite r ON r.tableoid = d.classid AND r.oid = d.objid \
         WHERE d.deptype = 'n' AND (d.refclassid = 'pg_catalog.pg_class'::pg_catalog.regclass AND d.refobjid = c.oid \
             OR d.refclassid = 'pg_catalog.pg_type'::pg_catalog.regclass AND d.refobjid IN (t.oid, t.typarray)) \
           AND NOT EXISTS (SELECT FROM pg_catalog.pg_depend own WHERE own.classid = d.classid AND own.objid = d.objid \
                           AND own.refclassid = d.refclassid AND own.refobjid = d.refobjid AND own.deptype IN ('a', 'i')) \
         GROUP BY 1 ORDER BY 1"
    }

    /// Donor: logs keys again, so that a later round copies their documents.
    InsertChanges<'a> { resharding: i64, collection: i32, skeys: &'a [&'a [u8]], ids: &'a [&'a [u8]] } -> NoRows {
        "INSERT INTO docshard_data.capture_log (migration_id, collection_id, skey, id) \
         SELECT $1, $2, k.skey, k.id FROM ROWS FROM (pg_catalog.unnest($3), pg_catalog.unnest($4)) AS k (skey, id)"
    }
}
