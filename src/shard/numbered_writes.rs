//! `docshard_data.numbered_writes` of this shard: of each session of MongoDB's clients the last write that was executed here.
//!
//! A session has one row of what was executed here, which each of its writes replaces: a heap-only update, as no index has a column that
//! changes. Another row, `received`, is what moves have brought, so that they wait for no client's transaction. A row without a command is a
//! *floor*: the number of a write with its home elsewhere. Expired rows are found by reading the table, which is as small as the number of
//! sessions.

use crate::store::declare::{rows, statements};

rows! {
    /// A write.
    NumberedWrite from "" {
        number: i64,
        command: String,
        /// what the shard's function answered; None if the reply is stored instead
        answer: Option<i64>,
        reply: Option<Vec<u8>>,
    }
}

statements! {
    /// Replaces a session's write; false if that has the same number or a later one. Waits for the end of another transaction that does.
    pub fn replace(session: &[u8], number: i64, command: &str, collection: i32, skey: &[u8], answer: Option<i64>) -> bool {
        run "INSERT INTO docshard_data.numbered_writes AS w (session, received, number, command, collection_id, skey, answer) \
             SELECT $1, false, $2, $3, $4, $5, $6 WHERE NOT EXISTS ( \
               SELECT FROM docshard_data.numbered_writes AS r WHERE r.session = $1 AND r.received AND r.number >= $2) \
             ON CONFLICT (session, received) DO UPDATE \
             SET number = excluded.number, command = excluded.command, collection_id = excluded.collection_id, skey = excluded.skey, \
               answer = excluded.answer, reply = NULL, written_at = excluded.written_at, written_by = excluded.written_by \
             WHERE w.number < excluded.number"
    }

    /// A session's last write.
    pub fn last(session: &[u8]) -> Option<NumberedWrite> {
        run "SELECT number, command, answer, reply FROM docshard_data.numbered_writes WHERE session = $1 \
             ORDER BY number DESC, command = '' LIMIT 1"
    }

    /// Sets what a write has answered.
    pub fn set_answer(session: &[u8], number: i64, answer: i64) {
        run "UPDATE docshard_data.numbered_writes SET answer = $3 WHERE session = $1 AND NOT received AND number = $2"
    }

    /// Sets the reply to a write; false if the write is not there.
    pub fn set_reply(session: &[u8], number: i64, reply: &[u8]) -> bool {
        run "UPDATE docshard_data.numbered_writes SET reply = $3 WHERE session = $1 AND NOT received AND number = $2"
    }

    /// The writes of all sessions after this one that are not visible in a snapshot, as JSON, up to about 1 MB: those of a range, or of a
    /// collection before it was sharded, with what became of them, the others as floors. None if there are no more.
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

    /// Stores such writes as received, unless there is a later one of the same session, or more of the same one; returns the last session.
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

    /// Deletes writes older than half an hour, at most this many; returns how many.
    pub fn forget(most: i64) -> u64 {
        run "DELETE FROM docshard_data.numbered_writes WHERE ctid = ANY (ARRAY( \
               SELECT ctid FROM docshard_data.numbered_writes \
               WHERE written_at < pg_catalog.now() - interval '30 minutes' LIMIT $1 FOR UPDATE SKIP LOCKED))"
    }

    /// Deletes writes of roles that have more than `rows`, the oldest, at most `most`; returns how many.
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

    /// Deletes the replies of roles that have more than `bytes` of them, the oldest.
    pub fn forget_replies(bytes: i64) {
        run "UPDATE docshard_data.numbered_writes SET reply = NULL WHERE ctid = ANY (ARRAY( \
               SELECT w.ctid FROM docshard_data.numbered_writes AS w WHERE (w.session, w.received) IN ( \
                 SELECT placed.session, placed.received FROM ( \
                   SELECT o.session, o.received, pg_catalog.sum(pg_catalog.octet_length(o.reply)) OVER ( \
                     PARTITION BY pg_catalog.substr(o.session, 1, 4) ORDER BY o.written_at DESC) AS up_to \
                   FROM docshard_data.numbered_writes AS o WHERE o.reply IS NOT NULL) AS placed \
                 WHERE placed.up_to > $1) FOR UPDATE SKIP LOCKED))"
    }

    /// True if there is any; there is none before the extension has been updated.
    pub fn exist() -> bool {
        run "SELECT FROM docshard_data.numbered_writes LIMIT 1"
    }
}
