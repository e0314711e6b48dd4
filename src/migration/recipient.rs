//! What a move does at the recipient. The load session creates the collection's table and loads documents into it; the pull session pulls
//! them from the donor.
//!
//! INVARIANT: nothing of the moved range is visible in the collection's table before the recipient's part commits; it commits rows
//! and version together.

use super::attempt::{Attempt, range};
use super::pulling::{self, Pulling, Sources};
use super::record::{self, Record};
use super::shard::ShardSession;
use crate::catalog::cluster::{access, contacts, field_order};
use crate::catalog::collections::validation;
use crate::catalog::{cache, change};
use crate::pg::error::Result;
use crate::pg::transaction;
use crate::shard::leftovers::{self, STAGING};
use crate::store::placements;
use docshard_core::error::{Kind, error};
use docshard_core::routing::names;
use docshard_core::routing::protocol::Connection as _;
use docshard_core::routing::protocol::migration::{ApplyChanges, BypassCapture, LoadBatch};
use docshard_core::routing::protocol::shard_tables::{FindDocument, TableRange};
use docshard_core::routing::protocol::table::{CreateIndex, CreateTable};
use docshard_core::routing::protocol::{Call, sql};
use docshard_core::sql::param::Param;
use docshard_core::sql::record::{Record as _, decode_only};

/// The bytes of documents in a part, which is pulled, buffered by postgres_fdw and loaded at once. It is small enough for a
/// processor's caches, and for the load session to begin soon. It is large enough that many rows go to neighbouring places of secondary
/// indexes.
const PART_BYTES: i64 = 2 << 20;

/// Returns the number of documents of about `size` bytes that make a part.
pub(super) fn part_rows(size: i64) -> i64 {
    (PART_BYTES / size.max(1)).clamp(10, 5_000)
}

/// A part of the range that was pulled.
pub(super) struct Pulled {
    pub(super) documents: i64,
    pub(super) bytes: i64,
}

impl Attempt {
    /// Creates the collection's empty table with its indexes, and inserts its placement into the catalog, unless the recipient
    /// has it. Until the placement is inserted only the move's row refers to the table; an abort then drops it.
    pub(super) fn place(&mut self) -> Result<()> {
        let Self { record, loader, .. } = self;
        // No index is created or dropped while a move is registered.
        let collection = transaction::run(|| cache::get(&record.namespace))?;
        if collection.placements.contains_key(&record.recipient) {
            return Ok(());
        }
        refuse_orphan(loader, record)?;
        // Grants cannot change between reading them and applying them to the new table.
        transaction::run(|| {
            let Record { collection: id, token, recipient_version: version, .. } = *record;
            let create = CreateTable { collection: id, token, version, id_index: !collection.key.is_in_order_of_id() };
            access::for_new_table(&record.namespace, id, |access| {
                create.call(loader)?;
                access.call(loader)?;
                validation::place_by(id, token, collection.validation.as_deref(), |set| set.call(loader))
            })
        })?;
        for index in &collection.indexes {
            CreateIndex::of(record.collection, index).call(loader)?;
        }
        transaction::run(|| {
            let locked = change::lock(&record.namespace)?;
            // If the move was aborted meanwhile, the collection's indexes may have changed since they were created here.
            record::require_running(record.id)?;
            placements::insert(locked.id, record.recipient, record.recipient_version)?;
            change::touch(locked.id)
        })
    }

    /// Creates the foreign tables over the donor's packed parts and captured changes, and the staging table. It also
    /// reads from the donor, so that a recipient that cannot reach it is detected before any writer waits.
    pub(super) fn prepare_staging(&mut self, rows: i64) -> Result<()> {
        let expected = expected_donor(&self.record)?;
        self.keeps_order = transaction::run(field_order::is_kept)?;
        let Self { record, donor, loader, puller, keeps_order, .. } = self;
        pulling::create_staging(puller, record.id, *keeps_order)?;
        let pulling = Pulling { puller, migration: record.id, expected: &expected, rows };
        Sources::of(record.id, None, *keeps_order).create(donor, loader, pulling)
    }

    /// Pull session: starts to pull a part of the range into the staging table, as the batch with that number.
    pub(super) fn start_pull(&mut self, expected_donor: &str, part: i32) -> Result<()> {
        let Self { record, puller, keeps_order, .. } = self;
        let (sources, staging) = (Sources::of(record.id, None, *keeps_order), leftovers::table(record.id, STAGING));
        // A packed document has three lengths in front; a row stores at least one byte for each of its three values.
        let overhead = 12 - 3;
        let (received, check, source) = (sql::decode_part("packed"), sources.check_donor(3), sources.packed);
        puller.start(
            &format!(
                "WITH pulled AS (INSERT INTO {staging} (batch, documents, packed) \
                 SELECT {part}, documents, {received} FROM {source} WHERE migration_id = $1 AND part = $2 AND {check} \
                 RETURNING documents, octet_length(packed) - {overhead} * documents AS size) \
                 SELECT coalesce(sum(documents), 0)::int8, coalesce(sum(size), 0)::int8 FROM pulled"
            ),
            &[Param::Int8(record.id), Param::Int8(part.into()), Param::Text(expected_donor)],
            <(i64, i64)>::WIRE,
        )
    }

    /// Pull session: waits until the part is pulled.
    pub(super) fn finish_pull(&mut self) -> Result<Pulled> {
        let (documents, bytes) = decode_only("a pull", &self.puller.finish()?)?;
        Ok(Pulled { documents, bytes })
    }

    /// Load session: begins the recipient's part, and checks that the table has no document of the range.
    pub(super) fn begin_load(&mut self) -> Result<()> {
        let Self { record, end, loader, .. } = self;
        // The planner has no statistics of tables that are being filled; an index scan is always a good plan.
        loader.execute(
            "BEGIN ISOLATION LEVEL READ COMMITTED; SET LOCAL enable_hashjoin = off; SET LOCAL enable_mergejoin = off; \
             SET LOCAL enable_seqscan = off",
        )?;
        BypassCapture {}.call(loader)?;
        if FindDocument(range(record, end.as_deref())).call(loader)?.is_empty() {
            return Ok(());
        }
        Err(error!(
            Kind::OperationFailed,
            "shard \"{}\" already holds documents in a range that it does not own", loader.name
        )
        .with_hint(format!("A client may have written to {} directly.", names::table(record.collection))))
    }

    /// Load session: loads a batch; returns how many documents were loaded. Batches come from different snapshots, so two of their
    /// documents may have had the same `unique` value at different times. The later one is omitted: it has changed since the log
    /// began, so a round will bring it.
    pub(super) fn load(&mut self, key: &str, batch: i32, documents: i64, is_unique: bool) -> Result<i64> {
        let Record { id: migration, collection, ref min, .. } = self.record;
        let call = LoadBatch { migration, collection, batch, is_unique, lo: min, hi: self.end.as_deref(), key };
        let loaded = call.call(&mut self.loader)?;
        if loaded == documents || is_unique && loaded < documents {
            return Ok(loaded);
        }
        Err(error!(Kind::OperationFailed, "{documents} documents were pulled but {loaded} loaded; nothing was changed"))
    }

    /// Pull session: starts to pull rows of the log with their current documents, all or at most `limit`, as the given batch. The answer is
    /// one value: the rows' numbers, of eight bytes each.
    pub(super) fn start_changes(&mut self, expected_donor: &str, batch: i32, limit: Option<usize>) -> Result<()> {
        let Self { record, puller, keeps_order, .. } = self;
        let (sources, staging) = (Sources::of(record.id, None, *keeps_order), leftovers::table(record.id, STAGING));
        let (check, columns, changes) = (sources.check_donor(2), sources.change_columns(), sources.changes);
        let limit = limit.map_or(String::new(), |limit| format!(" LIMIT {limit}"));
        puller.start(
            &format!(
                "WITH pulled AS (INSERT INTO {staging} (batch, {columns}) \
                 SELECT {batch}, {columns} FROM {changes} WHERE migration_id = $1 AND {check}{limit} RETURNING seq) \
                 SELECT pg_catalog.string_agg(pg_catalog.int8send(seq), '') FROM pulled"
            ),
            &[Param::Int8(record.id), Param::Text(expected_donor)],
            <Option<Vec<u8>>>::WIRE,
        )
    }

    /// Load session: starts to apply the documents of a round.
    pub(super) fn start_applying(&mut self, key: &str, batch: i32) -> Result<()> {
        let Record { id: migration, collection, ref min, .. } = self.record;
        ApplyChanges { migration, collection, batch, lo: min, hi: self.end.as_deref(), key }.start(&mut self.loader)
    }
}

/// Returns the identity in the catalog, which the donor must report.
pub(super) fn expected_donor(record: &Record) -> Result<String> {
    transaction::run(|| Ok(contacts::expected(record.donor)?.to_string()))
}

/// Returns an error if the recipient has the collection's table with documents: the catalog does not place the collection there.
fn refuse_orphan(loader: &mut ShardSession, record: &Record) -> Result<()> {
    let table = TableRange { collection: record.collection, lo: &[], hi: None };
    if loader.version(record)?.is_none() || FindDocument(table).call(loader)?.is_empty() {
        return Ok(());
    }
    Err(error!(
        Kind::OperationFailed,
        "shard \"{}\" has a table {} with documents of another router, which this catalog does not know",
        loader.name,
        names::table(record.collection)
    )
    .with_hint(
        "docshard.list_orphaned_relations() shows it. If its documents are not needed: docshard.drop_orphaned_relation().",
    ))
}
