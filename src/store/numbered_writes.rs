//! `docshard_data.numbered_writes` of this shard: of each session of MongoDB's clients the last write that was executed here.
//!
//! A session has one row, which each of its writes replaces: a heap-only update, as no index has another column than the session. Expired
//! rows are found by reading the table, which is as small as the number of sessions.

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
        run "INSERT INTO docshard_data.numbered_writes AS w (session, number, command, collection_id, skey, answer) \
             VALUES ($1, $2, $3, $4, $5, $6) ON CONFLICT (session) DO UPDATE \
             SET number = excluded.number, command = excluded.command, collection_id = excluded.collection_id, \
               skey = excluded.skey, answer = excluded.answer, reply = NULL, written_at = excluded.written_at \
             WHERE w.number < excluded.number"
    }

    /// A session's last write.
    pub fn last(session: &[u8]) -> Option<NumberedWrite> {
        run "SELECT number, command, answer, reply FROM docshard_data.numbered_writes WHERE session = $1"
    }

    /// Sets what a write has answered.
    pub fn set_answer(session: &[u8], number: i64, answer: i64) {
        run "UPDATE docshard_data.numbered_writes SET answer = $3 WHERE session = $1 AND number = $2"
    }

    /// Sets the reply to a write; false if the write is not there.
    pub fn set_reply(session: &[u8], number: i64, reply: &[u8]) -> bool {
        run "UPDATE docshard_data.numbered_writes SET reply = $3 WHERE session = $1 AND number = $2"
    }

    /// The writes of a range, or of a collection before it was sharded, as JSON: those of sessions after this one, up to about 4 MB; None
    /// if there are no more.
    pub fn of_range(collection: i32, lo: &[u8], hi: Option<&[u8]>, after: &[u8]) -> Option<Option<String>> {
        run "SELECT pg_catalog.json_agg(p.w ORDER BY (p.w).session)::pg_catalog.text FROM ( \
               SELECT w, pg_catalog.sum(coalesce(pg_catalog.octet_length(w.reply), 0) + 200) OVER ( \
                 ORDER BY w.session ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS before \
               FROM docshard_data.numbered_writes AS w \
               WHERE w.collection_id = $1 AND (w.skey = '' OR w.skey >= $2 AND ($3::pg_catalog.bytea IS NULL OR w.skey < $3)) \
                 AND w.session > $4) AS p \
             WHERE coalesce(p.before, 0) < 4000000"
    }

    /// Stores such writes, unless there is a later one of the same session; returns the last session.
    pub fn load(writes: &str) -> Option<Option<Vec<u8>>> {
        run "WITH given AS MATERIALIZED ( \
               SELECT g.* FROM pg_catalog.json_populate_recordset(NULL::docshard_data.numbered_writes, $1::pg_catalog.json) AS g), \
             loaded AS ( \
               INSERT INTO docshard_data.numbered_writes AS w SELECT g.* FROM given AS g ORDER BY g.session ON CONFLICT (session) DO UPDATE \
               SET number = excluded.number, command = excluded.command, collection_id = excluded.collection_id, \
                 skey = excluded.skey, answer = excluded.answer, reply = excluded.reply, written_at = excluded.written_at \
               WHERE w.number < excluded.number) \
             SELECT g.session FROM given AS g ORDER BY g.session DESC LIMIT 1"
    }

    /// Deletes writes older than half an hour, at most this many; returns how many.
    pub fn forget(most: i64) -> u64 {
        run "DELETE FROM docshard_data.numbered_writes WHERE ctid = ANY (ARRAY( \
               SELECT ctid FROM docshard_data.numbered_writes \
               WHERE written_at < pg_catalog.now() - interval '30 minutes' LIMIT $1 FOR UPDATE SKIP LOCKED))"
    }

    /// True if there is any; there is none before the extension has been updated.
    pub fn exist() -> bool {
        run "SELECT FROM docshard_data.numbered_writes LIMIT 1"
    }
}
