//! What happens on the recipient: the collection's table, pulling (S), loading (R).
//!
//! INVARIANT: nothing of the moved range is visible in the collection's table before R commits, and R commits rows and
//! version together.

use super::donor::{range, range_params};
use super::record::Record;
use super::shard::Remote;
use crate::catalog::{access, cache, contacts};
use crate::ownership::{leftovers, table};
use crate::pg::error::{Error, Result};
use crate::pg::spi::param::Param;
use crate::pg::spi::quote::{only_owner, quote_ident};
use crate::pg::transaction;
use crate::protocol::migration::{ApplyChanges, BypassCapture, LoadBatch};
use crate::protocol::table::CreateTable;
use crate::protocol::{Call, sql};
use crate::remote::Row;
use crate::store::indexes;
use docshard_core::error::Kind;

/// How many bytes of documents make a part, which is pulled, held by postgres_fdw and loaded at once: little enough to stay
/// in a processor's caches, and for R to have something to do soon; enough for neighbours in indexes of another order to come together.
const BATCH_BYTES: i64 = 2 << 20;

/// True if the collection has a unique index of its own, beside the primary key.
pub(super) fn has_unique_index(record: &Record) -> Result<bool> {
    transaction::run(|| indexes::has_unique(record.collection))
}

/// Makes the collection's table, empty, with its indexes.
pub(super) fn place(recipient: &mut Remote, record: &Record, index_on_id: bool) -> Result<()> {
    // Nobody is granted anything between the look at the grants and the table that gets them.
    transaction::run(|| {
        let create = CreateTable {
            collection: record.collection,
            token: record.token,
            version: record.recipient_version,
            id_index: index_on_id,
        };
        access::for_new_table(&record.namespace, record.collection, |access| {
            create.call(recipient)?;
            access.call(recipient)
        })
    })?;
    // None comes or goes while a move is registered.
    let collection = transaction::run(|| cache::get(&record.namespace))?;
    for index in &collection.indexes {
        index.creation(record.collection).call(recipient)?;
    }
    Ok(())
}

/// How many documents of about `size` bytes are pulled at once.
pub(super) fn batch_rows(size: i64) -> i64 {
    (BATCH_BYTES / size.max(1)).clamp(10, 5_000)
}

/// What every document of a move must be, as the recipient checks it.
#[derive(Debug)]
pub(super) struct Expected<'a> {
    record: &'a Record,
    end: Option<&'a [u8]>,
    /// the shard key's text
    key: String,
}

impl<'a> Expected<'a> {
    /// Of a move's range, up to `end`.
    ///
    /// # Errors
    /// Those of the catalog.
    pub(super) fn of(record: &'a Record, end: Option<&'a [u8]>) -> Result<Self> {
        let key = transaction::run(|| Ok(cache::get(&record.namespace)?.key.to_json().to_string()))?;
        Ok(Self { record, end, key })
    }
}

/// Makes the foreign tables over the donor's table and over what is captured there, and the staging table; and reads from
/// the donor, so that a recipient that cannot reach it is found out before anybody waits.
pub(super) fn prepare_staging(puller: &mut Remote, record: &Record, donor_server: &str, rows: i64) -> Result<()> {
    let (source, changes, staging) =
        (leftovers::source(record.id), leftovers::changes(record.id), leftovers::staging(record.id));
    let identity = leftovers::identity(record.id);
    let server = quote_ident(donor_server);
    let options = "schema_name 'docshard_data', async_capable 'false'";
    puller.execute(&format!(
        "{}; CREATE FOREIGN TABLE {identity} (said text) \
         SERVER {server} OPTIONS ({options}, table_name 'identity'); \
         CREATE FOREIGN TABLE {source} (migration_id bigint, part bigint, documents bigint, packed text) \
         SERVER {server} OPTIONS ({options}, fetch_size '1', table_name 'capture_packed'); \
         CREATE FOREIGN TABLE {changes} (migration_id bigint, seq bigint, skey bytea, id bytea, doc jsonb) \
         SERVER {server} OPTIONS ({options}, fetch_size '{rows}', table_name 'capture_changes'); \
         CREATE UNLOGGED TABLE {staging} \
         (batch int, seq bigint, skey bytea, id bytea, doc jsonb, documents bigint, packed bytea); \
         ALTER TABLE {staging} ALTER packed SET STORAGE EXTERNAL; \
         CREATE INDEX ON {staging} (batch); {}{}{}{}",
        leftovers::drop_tables(record.id),
        only_owner(&identity),
        only_owner(&source),
        only_owner(&changes),
        only_owner(&staging),
    ))?;
    let donor = expected_donor(record)?;
    let check = check_donor(record, 2);
    let reached = puller.query(
        &format!("SELECT 1 FROM {changes} WHERE migration_id = $1 AND {check} LIMIT 1"),
        &[Param::Int8(record.id), Param::Text(&donor)],
    );
    reached.map(drop).map_err(|mut error| {
        error.message = format!("the recipient cannot read from the donor: {}", error.message);
        let hint =
            format!("The foreign server {server} on the recipient must lead to the donor, which must let it in.");
        error.with_hint(hint)
    })
}

/// What the donor must say of itself, as the catalog knows it now.
pub(super) fn expected_donor(record: &Record) -> Result<String> {
    transaction::run(|| Ok(contacts::expected(record.donor)?.to_string()))
}

/// In SQL, the check of the donor before a statement pulls from it, by the connection that it pulls by; `$n` is what it must
/// say. PostgreSQL evaluates it first, once, also where nothing is to be pulled.
fn check_donor(record: &Record, n: u32) -> String {
    sql::check_donor(format_args!("(SELECT said FROM {})", leftovers::identity(record.id)), format_args!("${n}::text"))
}

/// A batch that arrived.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pulled {
    pub(super) documents: i64,
    pub(super) bytes: i64,
}

/// S: begins to pull a part of the range into the staging table, as a batch of that number.
pub(super) fn start_pull(puller: &mut Remote, record: &Record, donor: &str, part: i32) -> Result<()> {
    let (source, staging) = (leftovers::source(record.id), leftovers::staging(record.id));
    // Three lengths precede a document; three values of a row are stored with a byte each at least.
    let overhead = 12 - 3;
    let (received, check) = (sql::decode_part("packed"), check_donor(record, 3));
    puller.start(
        &format!(
            "WITH come AS (INSERT INTO {staging} (batch, documents, packed) \
             SELECT {part}, documents, {received} FROM {source} WHERE migration_id = $1 AND part = $2 AND {check} \
             RETURNING documents, octet_length(packed) - {overhead} * documents AS size) \
             SELECT coalesce(sum(documents), 0)::int8, coalesce(sum(size), 0)::int8 FROM come"
        ),
        &[Param::Int8(record.id), Param::Int8(part.into()), Param::Text(donor)],
    )
}

/// S: waits for the batch.
pub(super) fn finish_pull(puller: &mut Remote) -> Result<Pulled> {
    let rows = puller.finish()?;
    let row = rows.first().ok_or_else(|| Error::new(Kind::InternalError, "a count without an answer"))?;
    Ok(Pulled { documents: row.i64(0).unwrap_or(0), bytes: row.i64(1).unwrap_or(0) })
}

/// R: begins, and makes sure that nothing of the range is here.
pub(super) fn begin_load(recipient: &mut Remote, record: &Record, end: Option<&[u8]>) -> Result<()> {
    let target = table::name(record.collection);
    // Nothing is known to the planner of tables that are being filled; the index is always right.
    recipient.execute(
        "BEGIN ISOLATION LEVEL READ COMMITTED; SET LOCAL enable_hashjoin = off; SET LOCAL enable_mergejoin = off; \
         SET LOCAL enable_seqscan = off",
    )?;
    BypassCapture {}.call(recipient)?;
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
/// documents may have had the same `unique` value one after the other. The later one is left out: it has changed since the
/// log began, so a round will bring it.
pub(super) fn load(
    recipient: &mut Remote,
    expected: &Expected<'_>,
    batch: i32,
    documents: i64,
    unique: bool,
) -> Result<i64> {
    let record = expected.record;
    let call = LoadBatch {
        migration: record.id,
        collection: record.collection,
        batch,
        is_unique: unique,
        lo: &record.min,
        hi: expected.end,
        key: &expected.key,
    };
    let loaded = call.call(recipient)?;
    if loaded != documents && !(unique && loaded < documents) {
        return Err(Error::new(
            Kind::OperationFailed,
            format!("{documents} documents were pulled but {loaded} loaded; nothing was changed"),
        ));
    }
    Ok(loaded)
}

/// S: begins to pull the log with the present documents, all of it or at most so many rows, as a batch of that number.
pub(super) fn start_changes(
    puller: &mut Remote,
    record: &Record,
    donor: &str,
    batch: i32,
    most: Option<usize>,
) -> Result<()> {
    let (changes, staging) = (leftovers::changes(record.id), leftovers::staging(record.id));
    let check = check_donor(record, 2);
    let limit = most.map_or(String::new(), |most| format!(" LIMIT {most}"));
    puller.start(
        &format!(
            "INSERT INTO {staging} (batch, seq, skey, id, doc) SELECT {batch}, seq, skey, id, doc FROM {changes} \
             WHERE migration_id = $1 AND {check}{limit} RETURNING seq"
        ),
        &[Param::Int8(record.id), Param::Text(donor)],
    )
}

/// S: the numbers of the log's rows that came.
pub(super) fn pulled_changes(rows: &[Row]) -> Vec<i64> {
    rows.iter().filter_map(|row| row.i64(0)).collect()
}

/// R: begins to make the documents of a round what they are on the donor; the answer is how many there are more than before.
pub(super) fn start_applying(recipient: &mut Remote, expected: &Expected<'_>, batch: i32) -> Result<()> {
    let record = expected.record;
    let call = ApplyChanges {
        migration: record.id,
        collection: record.collection,
        batch,
        lo: &record.min,
        hi: expected.end,
        key: &expected.key,
    };
    call.start(recipient)
}
