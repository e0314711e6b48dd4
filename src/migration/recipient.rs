//! What happens on the recipient: the collection's table, pulling (S), loading (R).
//!
//! INVARIANT: nothing of the moved range is visible in the collection's table before R commits, and R commits rows and
//! version together.

use super::donor::{range, range_params};
use super::record::{Record, names};
use super::shard::Remote;
use crate::catalog::cache;
use crate::ownership::table;
use crate::pg::error::{Error, Result};
use crate::pg::param::Param;
use crate::pg::sql::quote_ident;
use crate::pg::{spi, transaction};
use docshard_core::error::Kind;

/// How many bytes of documents are pulled, and held by postgres_fdw, at once: little enough to stay in a processor's caches,
/// and for R to have something to do soon; enough for neighbours in indexes of another order to come together.
const BATCH_BYTES: i64 = 2 << 20;

/// True if the collection has a unique index of its own, beside the primary key.
pub(super) fn has_unique_index(record: &Record) -> Result<bool> {
    let rows = transaction::run(|| {
        spi::query(
            "SELECT 1 FROM docshard_catalog.indexes WHERE collection_id = $1 AND is_unique LIMIT 1",
            &[Param::Int4(record.collection)],
        )
    })?;
    Ok(!rows.is_empty())
}

/// Makes the collection's table, empty, with its indexes.
pub(super) fn place(recipient: &mut Remote, record: &Record, index_on_id: bool) -> Result<()> {
    recipient.query(
        "SELECT docshard_internal.create_table($1, $2, $3, $4)",
        &[
            Param::Int4(record.collection),
            Param::Int8(record.token),
            Param::Int8(record.recipient_version),
            Param::Bool(index_on_id),
        ],
    )?;
    // None comes or goes while a move is registered.
    let collection = transaction::run(|| cache::get(&record.namespace))?;
    for index in &collection.indexes {
        recipient.query(
            "SELECT docshard_internal.create_index($1, $2, $3::text, $4, $5)",
            &[
                Param::Int4(record.collection),
                Param::Int4(index.id),
                Param::Text(&index.definition),
                Param::Bool(index.unique),
                Param::OptText(index.partial.as_deref().map(|partial| partial.text.as_str())),
            ],
        )?;
    }
    Ok(())
}

/// How many documents of about `size` bytes are pulled at once.
pub(super) fn batch_rows(size: i64) -> i64 {
    (BATCH_BYTES / size.max(1)).clamp(10, 5_000)
}

/// Makes the foreign tables over the donor's table and over what is captured there, and the staging table; and reads from
/// the donor, so that a recipient that cannot reach it is found out before anybody waits.
pub(super) fn prepare_staging(puller: &mut Remote, record: &Record, donor_server: &str, rows: i64) -> Result<()> {
    let (source, changes, staging) = (names::source(record), names::changes(record), names::staging(record));
    let donors = table::name(record.collection);
    let (remote_table, server) = (donors.trim_start_matches("docshard_data."), quote_ident(donor_server));
    // Asynchronous reads would mix the parts that `start_pull` wants one after the other.
    let options = format!("schema_name 'docshard_data', fetch_size '{rows}', async_capable 'false'");
    puller.execute(&format!(
        "DROP FOREIGN TABLE IF EXISTS {source}, {changes}; DROP TABLE IF EXISTS {staging}; \
         CREATE FOREIGN TABLE {source} (skey bytea, id bytea, doc jsonb) SERVER {server} \
         OPTIONS ({options}, table_name '{remote_table}'); \
         CREATE FOREIGN TABLE {changes} (migration_id bigint, seq bigint, skey bytea, id bytea, doc jsonb) \
         SERVER {server} OPTIONS ({options}, table_name 'capture_changes'); \
         CREATE UNLOGGED TABLE {staging} (batch int, seq bigint, skey bytea, id bytea, doc jsonb); \
         CREATE INDEX ON {staging} (batch)",
    ))?;
    let reached =
        puller.query(&format!("SELECT 1 FROM {source} WHERE skey >= $1 LIMIT 1"), &[Param::Bytea(&record.min)]);
    reached.map(drop).map_err(|mut error| {
        error.message = format!("the recipient cannot read from the donor: {}", error.message);
        let hint =
            format!("The foreign server {server} on the recipient must lead to the donor, which must let it in.");
        error.with_hint(hint)
    })
}

/// Where a document stands in the order of the table.
pub(super) struct Place {
    skey: Vec<u8>,
    id: Vec<u8>,
}

/// A batch that arrived.
pub(super) struct Pulled {
    pub(super) documents: i64,
    pub(super) bytes: i64,
    pub(super) last: Option<Place>,
}

/// S: begins to pull into the staging table the next documents of the range behind `after`, at most `rows`.
pub(super) fn start_pull(
    puller: &mut Remote,
    record: &Record,
    end: Option<&[u8]>,
    after: Option<&Place>,
    batch: i32,
    rows: i64,
) -> Result<()> {
    let (source, staging) = (names::source(record), names::staging(record));
    let part = format!("SELECT skey, id, doc FROM {source} WHERE");
    let (next, params) = match after {
        None => (format!("{part} {} ORDER BY skey, id LIMIT {rows}", range(end)), range_params(record, end)),
        // First what is left of the key, then the next keys: each is a scan of the index from there.
        Some(place) => {
            let below_end = if end.is_some() { "AND skey < $3" } else { "" };
            let next = format!(
                "SELECT * FROM ((SELECT * FROM ({part} skey = $1 AND id > $2 ORDER BY id LIMIT {rows}) AS same) \
                 UNION ALL (SELECT * FROM ({part} skey > $1 {below_end} ORDER BY skey, id LIMIT {rows}) AS above)) \
                 AS next LIMIT {rows}"
            );
            let params = [&place.skey, &place.id].map(|bytes| Param::Bytea(bytes));
            (next, params.into_iter().chain(end.map(Param::Bytea)).collect())
        }
    };
    puller.start(
        &format!(
            "WITH come AS (INSERT INTO {staging} (batch, skey, id, doc) SELECT {batch}, * FROM ({next}) AS pulled \
             RETURNING skey, id, pg_column_size(skey) + pg_column_size(id) + pg_column_size(doc) AS size), \
             last AS (SELECT skey, id FROM come ORDER BY skey DESC, id DESC LIMIT 1) \
             SELECT (SELECT count(*) FROM come), (SELECT coalesce(sum(size), 0)::int8 FROM come), \
                    (SELECT skey FROM last), (SELECT id FROM last)"
        ),
        &params,
    )
}

/// S: waits for the batch.
pub(super) fn finish_pull(puller: &mut Remote) -> Result<Pulled> {
    let rows = puller.finish()?;
    let row = rows.first().ok_or_else(|| Error::new(Kind::InternalError, "a count without an answer"))?;
    let place = row.get(2).zip(row.get(3)).map(|(skey, id)| Place { skey: skey.to_vec(), id: id.to_vec() });
    Ok(Pulled { documents: row.i64(0).unwrap_or(0), bytes: row.i64(1).unwrap_or(0), last: place })
}

/// R: begins, and makes sure that nothing of the range is here.
pub(super) fn begin_load(recipient: &mut Remote, record: &Record, end: Option<&[u8]>) -> Result<()> {
    let target = table::name(record.collection);
    // Nothing is known to the planner of tables that are being filled; the index is always right.
    recipient.execute(
        "BEGIN ISOLATION LEVEL READ COMMITTED; SET LOCAL enable_hashjoin = off; SET LOCAL enable_mergejoin = off; \
         SET LOCAL enable_seqscan = off",
    )?;
    recipient.query("SELECT docshard_internal.write_uncaptured()", &[])?;
    let strangers =
        recipient.query(&format!("SELECT 1 FROM {target} WHERE {} LIMIT 1", range(end)), &range_params(record, end))?;
    if !strangers.is_empty() {
        return Err(Error::new(
            Kind::OperationFailed,
            format!("shard \"{}\" already holds documents in a range that it does not own", recipient.name),
        )
        .with_hint(format!("Somebody wrote to {target} directly.")));
    }
    Ok(())
}

/// R: loads a batch; returns how many documents that were. Batches come from different snapshots, so two of their
/// documents may have had the same unique value one after the other. The later one is left out: it has changed since the
/// log began, so a round will bring it.
pub(super) fn load(recipient: &mut Remote, record: &Record, batch: i32, documents: i64, unique: bool) -> Result<i64> {
    if unique {
        let (staging, target) = (names::staging(record), table::name(record.collection));
        let sql = format!(
            "WITH come AS (INSERT INTO {target} (skey, id, doc) SELECT skey, id, doc FROM {staging} WHERE batch = $1 \
             ON CONFLICT DO NOTHING RETURNING 1) SELECT count(*) FROM come"
        );
        return Ok(recipient.number(&sql, &[Param::Int4(batch)])?.unwrap_or(0));
    }
    let params = [Param::Int8(record.id), Param::Int4(record.collection), Param::Int4(batch)];
    let loaded = recipient.number("SELECT docshard_internal.load_arrived($1, $2, $3)", &params)?.unwrap_or(0);
    if loaded != documents {
        return Err(Error::new(
            Kind::OperationFailed,
            format!("{documents} documents were pulled but {loaded} loaded; nothing was changed"),
        ));
    }
    Ok(loaded)
}

/// S: pulls the log with the present documents; returns the numbers of the log's rows.
pub(super) fn pull_changes(puller: &mut Remote, record: &Record, batch: i32) -> Result<Vec<i64>> {
    let (changes, staging) = (names::changes(record), names::staging(record));
    let rows = puller.query(
        &format!(
            "INSERT INTO {staging} (batch, seq, skey, id, doc) SELECT {batch}, seq, skey, id, doc FROM {changes} \
             WHERE migration_id = $1 RETURNING seq"
        ),
        &[Param::Int8(record.id)],
    )?;
    Ok(rows.iter().filter_map(|row| row.i64(0)).collect())
}

/// R: makes the documents of a round what they are on the donor; returns how many there are more than before. First all
/// go and then all come, as unique values may have changed places.
pub(super) fn apply_changes(recipient: &mut Remote, record: &Record, batch: i32) -> Result<i64> {
    let (staging, target) = (names::staging(record), table::name(record.collection));
    let gone = recipient.number(
        &format!(
            "WITH gone AS (DELETE FROM {target} AS t USING (SELECT DISTINCT skey, id FROM {staging} WHERE batch = $1) \
             AS changed WHERE t.skey = changed.skey AND t.id = changed.id RETURNING 1) SELECT count(*) FROM gone"
        ),
        &[Param::Int4(batch)],
    )?;
    let come = recipient.number(
        &format!(
            "WITH come AS (INSERT INTO {target} (skey, id, doc) SELECT DISTINCT ON (skey, id) skey, id, doc \
             FROM {staging} WHERE batch = $1 AND doc IS NOT NULL ORDER BY skey, id RETURNING 1) \
             SELECT count(*) FROM come"
        ),
        &[Param::Int4(batch)],
    )?;
    Ok(come.unwrap_or(0) - gone.unwrap_or(0))
}

/// Drops what the move made to pull.
pub(super) fn drop_staging(recipient: &mut Remote, record: &Record) -> Result<()> {
    recipient.execute(&format!(
        "DROP FOREIGN TABLE IF EXISTS {}, {}; DROP TABLE IF EXISTS {}",
        names::source(record),
        names::changes(record),
        names::staging(record)
    ))
}
