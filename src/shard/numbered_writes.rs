//! The table `docshard_data.numbered_writes` of this shard: the last numbered write of each session of MongoDB's
//! clients. [`super::once`] explains its purpose.
//!
//! A session has at most two rows. One is the last write that was executed here; each further write replaces it, by a
//! heap-only update, as no indexed column changes. The other row, with `received`, is the last write that a move has
//! brought; it is separate, so that moves do not wait for transactions of clients. A row without a command is a
//! *floor*: it has only the number of a write whose home is elsewhere. Expired rows are found by reading the whole
//! table, which has at most two rows for each session.

use crate::store::declare::{rows, statements};

rows! {
    /// A session's last write.
    NumberedWrite from "" {
        number: i64,
        command: String,
        /// the result of the shard's function; None if there is only a reply, or neither is stored
        answer: Option<i64>,
        reply: Option<Vec<u8>>,
    }
}

statements! {
    /// Replaces a session's write; false if the stored one has the same number or a higher one. Waits for the end of another transaction
    /// that replaces it.
    pub fn replace(session: &[u8], number: i64, command: &str, collection: i32, skey: &[u8], answer: Option<i64>) -> bool {
        run "INSERT INTO docshard_data.numbered_writes AS w (session, received, number, command, collection_id, skey, answer) \
             SELECT $1, false, $2, $3, $4, $5, $6 WHERE NOT EXISTS ( \
               SELECT FROM docshard_data.numbered_writes AS r WHERE r.session = $1 AND r.received AND r.number >= $2) \
             ON CONFLICT (session, received) DO UPDATE \
             SET number = excluded.number, command = excluded.command, collection_id = excluded.collection_id, skey = excluded.skey, \
               answer = excluded.answer, reply = NULL, written_at = excluded.written_at, written_by = excluded.written_by \
             WHERE w.number < excluded.number"
    }

    /// A session's last write; None if there is none.
    pub fn last(session: &[u8]) -> Option<NumberedWrite> {
        run "SELECT number, command, answer, reply FROM docshard_data.numbered_writes WHERE session = $1 \
             ORDER BY number DESC, command = '' LIMIT 1"
    }

    /// Sets the result of a write.
    pub fn set_answer(session: &[u8], number: i64, answer: i64) {
        run "UPDATE docshard_data.numbered_writes SET answer = $3 WHERE session = $1 AND NOT received AND number = $2"
    }

    /// Sets the reply to a write; false if the write is not there.
    pub fn set_reply(session: &[u8], number: i64, reply: &[u8]) -> bool {
        run "UPDATE docshard_data.numbered_writes SET reply = $3 WHERE session = $1 AND NOT received AND number = $2"
    }

    /// The writes that are not visible in the snapshot `since`, of the sessions after `session`, as JSON of about 1 MB at most. Writes of
    /// the range, and those of the collection from before it was sharded, have their results and replies; all others are floors. None if
    /// there are no more.
    pub fn after(collection: i32, lo: &[u8], hi: Option<&[u8]>, since: &str, session: &[u8]) -> Option<Option<String>> {
        run "WITH chosen AS MATERIALIZED ( \
               SELECT w.session, w.received, w.command <> '' AND w.collection_id = $1 \
                   AND (w.skey = '' OR w.skey >= $2 AND ($3::pg_catalog.bytea IS NULL OR w.skey < $3)) AS moves, \
                 coalesce(pg_catalog.octet_length(w.reply), 0) + pg_catalog.octet_length(w.skey) + pg_catalog.octet_length(w.command) AS size \
               FROM docshard_data.numbered_writes AS w \
               WHERE w.session > $5 AND w.written_by >= (SELECT pg_catalog.pg_snapshot_xmin($4::pg_catalog.pg_snapshot)) \
                 AND NOT pg_catalog.pg_visible_in_snapshot(w.written_by, (SELECT $4::pg_catalog.pg_snapshot)) \
               ORDER BY w.session FETCH FIRST 2000 ROWS WITH TIES), \
             sized AS (SELECT c.session, c.received, c.moves, CASE WHEN c.moves THEN c.size ELSE 0 END AS size FROM chosen AS c), \
             part AS ( \
               SELECT s.session, s.received, s.moves, pg_catalog.sum(s.size) OVER (ORDER BY s.session) \
                 - pg_catalog.sum(s.size) OVER (PARTITION BY s.session) AS before FROM sized AS s) \
             SELECT pg_catalog.json_agg(g)::pg_catalog.text FROM ( \
               SELECT w.session, w.number, w.written_at, CASE WHEN p.moves THEN w.command ELSE '' END AS command, \
                 CASE WHEN p.moves THEN w.collection_id ELSE 0 END AS collection_id, CASE WHEN p.moves THEN w.skey ELSE '' END AS skey, \
                 CASE WHEN p.moves THEN w.answer END AS answer, CASE WHEN p.moves THEN w.reply END AS reply \
               FROM part AS p JOIN docshard_data.numbered_writes AS w USING (session, received) WHERE p.before < 1000000) AS g"
    }

    /// Stores writes of [`after`] as received. Omits a write if the session has one with a higher number, or one with the same number and
    /// not less information. Returns the last session.
    pub fn load(writes: &str) -> Option<Option<Vec<u8>>> {
        run "WITH given AS MATERIALIZED ( \
               SELECT DISTINCT ON (g.session) g.* \
               FROM pg_catalog.json_populate_recordset(NULL::docshard_data.numbered_writes, $1::pg_catalog.json) AS g \
               ORDER BY g.session, g.number DESC, g.command = ''), \
             loaded AS ( \
               INSERT INTO docshard_data.numbered_writes AS w \
                 (session, received, number, command, collection_id, skey, answer, reply, written_at) \
               SELECT g.session, true, g.number, g.command, g.collection_id, g.skey, g.answer, g.reply, g.written_at \
               FROM given AS g WHERE NOT EXISTS ( \
                 SELECT FROM docshard_data.numbered_writes AS o WHERE o.session = g.session \
                   AND (o.number > g.number OR o.number = g.number AND (o.command <> '' OR g.command = ''))) \
               ORDER BY g.session ON CONFLICT (session, received) DO UPDATE \
               SET number = excluded.number, command = excluded.command, collection_id = excluded.collection_id, skey = excluded.skey, \
                 answer = excluded.answer, reply = excluded.reply, written_by = excluded.written_by, \
                 written_at = greatest(w.written_at, excluded.written_at) \
               WHERE w.number < excluded.number OR w.number = excluded.number AND w.command = '' AND excluded.command <> '') \
             SELECT g.session FROM given AS g ORDER BY g.session DESC LIMIT 1"
    }

    /// Deletes at most `most` writes that are older than half an hour; returns their number.
    pub fn forget(most: i64) -> u64 {
        run "DELETE FROM docshard_data.numbered_writes WHERE ctid = ANY (ARRAY( \
               SELECT ctid FROM docshard_data.numbered_writes \
               WHERE written_at < pg_catalog.now() - interval '30 minutes' LIMIT $1 FOR UPDATE SKIP LOCKED))"
    }

    /// Deletes the oldest writes of roles that have more than `rows`, at most `most` of them; returns their number.
    pub fn forget_excess(most: i64, rows: i64) -> u64 {
        run "DELETE FROM docshard_data.numbered_writes WHERE ctid = ANY (ARRAY( \
               SELECT w.ctid FROM docshard_data.numbered_writes AS w WHERE (w.session, w.received) IN ( \
                 SELECT placed.session, placed.received FROM ( \
                   SELECT o.session, o.received, pg_catalog.row_number() OVER ( \
                     PARTITION BY pg_catalog.substr(o.session, 1, 4) ORDER BY o.written_at DESC) AS place \
                   FROM docshard_data.numbered_writes AS o WHERE pg_catalog.substr(o.session, 1, 4) IN ( \
                     SELECT pg_catalog.substr(c.session, 1, 4) FROM docshard_data.numbered_writes AS c \
                     GROUP BY 1 HAVING pg_catalog.count(*) > $2)) AS placed \
                 WHERE placed.place > $2) LIMIT $1 FOR UPDATE SKIP LOCKED))"
    }

    /// Deletes the oldest replies of roles whose replies have more than `bytes` together.
    pub fn forget_replies(bytes: i64) {
        run "UPDATE docshard_data.numbered_writes SET reply = NULL WHERE ctid = ANY (ARRAY( \
               SELECT w.ctid FROM docshard_data.numbered_writes AS w WHERE (w.session, w.received) IN ( \
                 SELECT placed.session, placed.received FROM ( \
                   SELECT o.session, o.received, pg_catalog.sum(pg_catalog.octet_length(o.reply)) OVER ( \
                     PARTITION BY pg_catalog.substr(o.session, 1, 4) ORDER BY o.written_at DESC) AS up_to \
                   FROM docshard_data.numbered_writes AS o WHERE o.reply IS NOT NULL) AS placed \
                 WHERE placed.up_to > $1) FOR UPDATE SKIP LOCKED))"
    }

    /// True if the table has a row.
    pub fn exist() -> bool {
        run "SELECT FROM docshard_data.numbered_writes LIMIT 1"
    }
}
