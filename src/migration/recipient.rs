//! What happens on the recipient: the collection's table, pulling (S), loading (R).
//!
//! INVARIANT: nothing of the moved range is visible in the collection's table before R commits, and R commits rows and
//! version together.

use super::donor::{range, range_params, set_version};
use super::record::{Record, names};
use super::shard::Remote;
use crate::ownership::table;
use crate::pg::error::{Error, Result};
use crate::pg::param::Param;
use crate::pg::sql::quote_ident;
use crate::pg::{spi, transaction};
use docshard_core::error::Kind;

/// How many bytes of documents postgres_fdw should hold at once.
const FETCH_BYTES: i64 = 8 << 20;

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
    let indexes = transaction::run(|| {
        spi::query(
            "SELECT id, keys, is_unique FROM docshard_catalog.indexes WHERE collection_id = $1 ORDER BY id",
            &[Param::Int4(record.collection)],
        )
    })?;
    for index in &indexes {
        recipient.query(
            "SELECT docshard_internal.create_index($1, $2, $3::text, $4)",
            &[
                Param::Int4(record.collection),
                Param::Int4(index.i32(0)),
                Param::Text(index.text(1)),
                Param::Bool(index.bool(2)),
            ],
        )?;
    }
    Ok(())
}

/// Makes the foreign table over the donor's, for documents of about `size` bytes, and the staging table; and reads from
/// the donor, so that a recipient that cannot reach it is found out before anybody waits.
pub(super) fn prepare_staging(puller: &mut Remote, record: &Record, donor_server: &str, size: i64) -> Result<()> {
    let (source, staging, donors) = (names::source(record), names::staging(record), table::name(record.collection));
    let remote_table = donors.trim_start_matches("docshard_data.");
    let rows = (FETCH_BYTES / size.max(1)).clamp(10, 10_000);
    puller.execute(&format!(
        "DROP FOREIGN TABLE IF EXISTS {source}; DROP TABLE IF EXISTS {staging}; \
         CREATE FOREIGN TABLE {source} (skey bytea, id bytea, doc jsonb) SERVER {} \
         OPTIONS (schema_name 'docshard_data', table_name '{remote_table}', fetch_size '{rows}'); \
         CREATE UNLOGGED TABLE {staging} (skey bytea, id bytea, doc jsonb)",
        quote_ident(donor_server),
    ))?;
    let reached =
        puller.query(&format!("SELECT 1 FROM {source} WHERE skey >= $1 LIMIT 1"), &[Param::Bytea(&record.min)]);
    reached.map(drop).map_err(|mut error| {
        error.message = format!("the recipient cannot read from the donor: {}", error.message);
        error
    })
}

/// S: pulls the range into the staging table and commits; returns how many documents and how many bytes.
pub(super) fn pull(puller: &mut Remote, record: &Record, end: Option<&[u8]>) -> Result<(i64, i64)> {
    let (source, staging) = (names::source(record), names::staging(record));
    puller.query(
        &format!("INSERT INTO {staging} SELECT skey, id, doc FROM {source} WHERE {}", range(end)),
        &range_params(record, end),
    )?;
    let rows = puller.query(
        &format!(
            "SELECT count(*), coalesce(sum(pg_column_size(skey) + pg_column_size(id) + pg_column_size(doc)), 0)::int8 \
             FROM {staging}"
        ),
        &[],
    )?;
    let row = rows.first().ok_or_else(|| Error::new(Kind::InternalError, "a count without an answer"))?;
    Ok((row.i64(0).unwrap_or(0), row.i64(1).unwrap_or(0)))
}

/// R: begins, loads what was staged, and advances the version; stays open.
pub(super) fn load(recipient: &mut Remote, record: &Record, end: Option<&[u8]>, documents: i64) -> Result<()> {
    let (staging, target) = (names::staging(record), table::name(record.collection));
    recipient.execute("BEGIN ISOLATION LEVEL READ COMMITTED")?;
    let strangers =
        recipient.query(&format!("SELECT 1 FROM {target} WHERE {} LIMIT 1", range(end)), &range_params(record, end))?;
    if !strangers.is_empty() {
        return Err(Error::new(
            Kind::OperationFailed,
            format!("shard \"{}\" already holds documents in a range that it does not own", recipient.name),
        )
        .with_hint(format!("Somebody wrote to {target} directly.")));
    }
    let loaded = recipient
        .number(
            &format!(
                "WITH come AS (INSERT INTO {target} (skey, id, doc) SELECT skey, id, doc FROM {staging} \
                 ORDER BY skey, id RETURNING 1) SELECT count(*) FROM come"
            ),
            &[],
        )?
        .unwrap_or(0);
    if loaded != documents {
        return Err(Error::new(
            Kind::OperationFailed,
            format!("{documents} documents were pulled but {loaded} loaded; nothing was changed"),
        ));
    }
    set_version(recipient, record, record.recipient_version)
}

/// Drops what the move made to pull.
pub(super) fn drop_staging(recipient: &mut Remote, record: &Record) -> Result<()> {
    recipient.execute(&format!(
        "DROP FOREIGN TABLE IF EXISTS {}; DROP TABLE IF EXISTS {}",
        names::source(record),
        names::staging(record)
    ))
}
