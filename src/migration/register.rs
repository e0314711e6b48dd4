//! The beginning of a move: is it possible, and the durable row before any side effect.

use super::names;
use super::record::{self, Record};
use super::request::MoveRequest;
use super::shard::Remote;
use crate::catalog::cluster::cluster_id;
use crate::catalog::model::{Collection, Shard};
use crate::catalog::sizes::{self, COUNTED_OFTEN_MB};
use crate::catalog::{cache, change, move_exclusion};
use crate::ownership::table;
use crate::pg::error::{Error, Result};
use crate::pg::server::sleep_ms;
use crate::pg::spi::param::Param;
use crate::pg::{spi, transaction};
use crate::storage::lock::{self, Mode, Tag};
use crate::store::{chunks, placements, shards};
use docshard_core::cluster::chunk_map::ShardId;
use docshard_core::cluster::handshake;
use docshard_core::cluster::migration::State;
use docshard_core::error::Kind;
use std::rc::Rc;
use std::time::{Duration, Instant};

/// How long a user's move waits for a change of the collection's indexes or chunks.
const PATIENCE: Duration = Duration::from_secs(10);

/// A move that may begin, with its sessions.
pub(super) struct Prepared {
    donor_id: ShardId,
    donor: Remote,
    recipient: Remote,
    puller: Remote,
}

/// A registered move.
pub(super) struct Registered {
    pub(super) record: Record,
    /// the range's end on shards; None for the last chunk
    pub(super) end: Option<Vec<u8>>,
    /// T
    pub(super) donor: Remote,
    /// R
    pub(super) recipient: Remote,
    /// S
    pub(super) puller: Remote,
    /// the collection's tables have an index on `id`
    pub(super) index_on_id: bool,
    /// the recipient has no table of the collection yet
    pub(super) place: bool,
    /// what the sessions are to be called, so that whoever cleans up finds them
    pub(super) application: String,
}

fn illegal(message: String, hint: &str) -> Error {
    Error::new(Kind::IllegalOperation, message).with_hint(hint)
}

/// The owner of the chunk, or of the neighbours, that the request's bounds are of; and whether one of them is jumbo.
fn chunk(collection: i32, request: &MoveRequest) -> Result<(ShardId, bool)> {
    let chunks = chunks::within(collection, &request.min, &request.max)?;
    let bounds = chunks.first().zip(chunks.last());
    let found = bounds.filter(|(first, last)| (&first.min, &last.max) == (&request.min, &request.max));
    let owner = found.map(|(first, _)| first.shard).filter(|owner| chunks.iter().all(|chunk| chunk.shard == *owner));
    owner.map(|owner| (owner, chunks.iter().any(|chunk| chunk.jumbo))).ok_or_else(|| {
        Error::new(Kind::OperationFailed, format!("{} has no chunk with these bounds (any more)", request.namespace))
            .with_hint("It may have been split or merged meanwhile; see the view docshard.chunks.")
    })
}

fn refuse_draining(recipient: &Shard) -> Result<()> {
    if recipient.draining {
        return Err(illegal(
            format!("shard \"{}\" is draining and takes no chunks", recipient.name),
            "Choose another shard.",
        ));
    }
    Ok(())
}

/// Checks what can be checked without a trace, and opens the sessions; None if the chunk is where it should go.
pub(super) fn look(request: &MoveRequest) -> Result<Option<Prepared>> {
    let found = transaction::run(|| {
        let recipient = cache::shard(request.to)?;
        let collection = cache::get(&request.namespace)?;
        let (donor_id, _) = chunk(collection.id, request)?;
        if donor_id == request.to {
            return Ok(None);
        }
        refuse_draining(&recipient)?;
        refuse_full(&recipient, request)?;
        let donor = cache::shard(donor_id)?;
        let cluster = cluster_id()?;
        let open = |shard: &Rc<Shard>| Remote::open(shard, "docshard");
        let mut prepared =
            Prepared { donor_id, donor: open(&donor)?, recipient: open(&recipient)?, puller: open(&recipient)? };
        prepared.puller.waits_also_for(&prepared.donor);
        let needed = indexes(&collection, request.to)?;
        Ok(Some((prepared, cluster, needed)))
    })?;
    let Some((mut prepared, cluster, needed)) = found else { return Ok(None) };
    check_node(&mut prepared.donor, cluster)?;
    check_node(&mut prepared.recipient, cluster)?;
    let server = prepared.donor.server.clone();
    let knows = prepared
        .recipient
        .query("SELECT FROM pg_catalog.pg_foreign_server WHERE srvname = $1::text", &[Param::Text(&server)])?;
    if knows.is_empty() {
        return Err(illegal(
            format!("shard \"{}\" has no foreign server \"{server}\" to pull from", prepared.recipient.name),
            "docshard.add_shard of either shard, called again, makes it.",
        ));
    }
    check_indexes(&mut prepared.recipient, &needed, &request.namespace)?;
    Ok(Some(prepared))
}

/// A shard with a `max_size_mb` takes no chunk that would not fit.
fn refuse_full(recipient: &Shard, request: &MoveRequest) -> Result<()> {
    let Some(limit) = recipient.max_size_mb else { return Ok(()) };
    let mut size = 0;
    for mut collection in sizes::collections(false)? {
        sizes::measure(recipient, &mut collection, COUNTED_OFTEN_MB)?;
        size += collection.chunks.iter().filter(|c| c.shard == recipient.id).map(|c| c.bytes).sum::<u64>();
        if collection.namespace == request.namespace
            && let Some(chunk) = collection.chunks.iter().find(|c| c.min == request.min)
        {
            let all = sizes::Chunk { max: request.max.clone(), ..chunk.clone() };
            size += sizes::measure_exactly(&*cache::shard(chunk.shard)?, &collection, &all)?.1;
        }
    }
    if size >> 20 < u64::from(limit.unsigned_abs()) {
        return Ok(());
    }
    Err(illegal(
        format!("shard \"{}\" is full: with the chunk it would hold {} of {limit} MiB", recipient.name, size >> 20),
        "Choose another shard, or raise its max_size_mb by calling docshard.add_shard again.",
    ))
}

/// Tables and indexes that a recipient must have, as it has had documents of the collection before; by name, with what the
/// user calls them.
fn indexes(collection: &Collection, recipient: ShardId) -> Result<Vec<(String, String)>> {
    if placements::version(collection.id, recipient)?.is_none() {
        return Ok(Vec::new());
    }
    let mut needed = vec![(format!("c{}", collection.id), String::new())];
    for index in &collection.indexes {
        let relations = table::relations(index.id, &index.keys, index.unique);
        needed.extend(relations.into_iter().map(|relation| (relation, index.name.clone())));
    }
    Ok(needed)
}

fn check_indexes(recipient: &mut Remote, needed: &[(String, String)], namespace: &str) -> Result<()> {
    for (relation, index) in needed {
        let sql = "SELECT FROM pg_catalog.pg_class WHERE relnamespace = 'docshard_data'::regnamespace AND relname = $1";
        if !recipient.query(sql, &[Param::Text(relation)])?.is_empty() {
            continue;
        }
        let (kind, what) = match index.is_empty() {
            true => (Kind::NamespaceNotFound, format!("the table docshard_data.{relation} of {namespace}")),
            false => (Kind::IndexNotFound, format!("the index {index} of {namespace} (docshard_data.{relation})")),
        };
        return Err(Error::new(kind, format!("shard \"{}\" lacks {what}", recipient.name)).with_hint(
            "Somebody dropped it there, or the shard was restored from an old backup. Drop the index with \
                        docshard.drop_index() and create it again.",
        ));
    }
    Ok(())
}

/// A shard must have a version of the extension that works with this one, belong to this cluster, and be able to prepare.
fn check_node(shard: &mut Remote, cluster: i64) -> Result<()> {
    let rows = shard.query(
        "SELECT (SELECT extversion FROM pg_catalog.pg_extension WHERE extname = 'docshard'), \
                current_setting('max_prepared_transactions')::int4, pg_is_in_recovery()",
        &[],
    )?;
    let (version, prepared, standby) = rows
        .first()
        .map(|row| (row.text(0).map(str::to_owned), row.i32(1).unwrap_or(0), row.bool(2).unwrap_or(false)))
        .unwrap_or_default();
    let name = shard.name.clone();
    let ours = env!("CARGO_PKG_VERSION");
    if !version.as_deref().is_some_and(handshake::works_with) {
        let theirs = version.map_or_else(|| "no docshard".to_owned(), |v| format!("docshard {v}"));
        return Err(illegal(
            format!("shard \"{name}\" has {theirs}, this router {ours}"),
            "Install the router's version there, and run ALTER EXTENSION docshard UPDATE.",
        ));
    }
    if standby {
        return Err(illegal(
            format!("the session on shard \"{name}\" reached a standby"),
            "Let the server option target_session_attrs be read-write.",
        ));
    }
    if prepared == 0 {
        return Err(illegal(
            format!("shard \"{name}\" allows no prepared transactions, which moving a chunk needs"),
            "Set max_prepared_transactions there, or preload docshard (shared_preload_libraries), and restart it.",
        ));
    }
    let other =
        shard.number("SELECT cluster_id FROM docshard_data.node WHERE cluster_id <> $1", &[Param::Int8(cluster)])?;
    if other.is_some() {
        return Err(illegal(
            format!("shard \"{name}\" belongs to another cluster"),
            "Its foreign server leads to the wrong database.",
        ));
    }
    Ok(())
}

/// Writes the row and takes the coordinator's lock, which lives as long as this process.
pub(super) fn register(request: &MoveRequest, prepared: Prepared) -> Result<Registered> {
    let mut locked = None;
    let mut enter = || {
        // Who asked for the move may itself hold a lock, and cannot be told to wait for us.
        spi::query("SELECT set_config('lock_timeout', '10s', true)", &[])?;
        let collection = change::lock(&request.namespace)?;
        if !move_exclusion::try_share(collection.id) {
            return Ok(None);
        }
        change::refuse_while_building(collection.id, &request.namespace)?;
        let (donor, jumbo) = chunk(collection.id, request)?;
        let moved_away = || Error::new(Kind::ConflictingOperationInProgress, "the chunk was moved meanwhile");
        if donor != prepared.donor_id {
            return Err(moved_away());
        }
        if jumbo && !request.force_jumbo {
            return Err(Error::new(Kind::ChunkTooBig, "the chunk is marked jumbo: it is too big and cannot be split")
                .with_hint("The option {\"forceJumbo\": true} moves it nevertheless."));
        }
        if shards::lock_draining(request.to)? != Some(false) {
            refuse_draining(&*cache::shard(request.to)?)?;
        }
        // Moves between other shards touch no version, no lock and no table of this one.
        if let Some(other) = record::undecided_at(collection.id, [donor, request.to])? {
            return Err(conflict(&request.namespace, other));
        }
        let pattern = crate::store::collections::pattern(collection.key.as_ref())?;
        let place = placements::version(collection.id, request.to)?;
        let donor_version = placements::version(collection.id, donor)?
            .ok_or_else(|| Error::new(Kind::InternalError, "the owner of a chunk has no placement"))?;
        // A recipient without the table is first placed at a version of its own, then moved to the next.
        let recipient_version = match place {
            Some(version) => version,
            None => change::next_version(collection.id)?,
        };
        let version = change::next_version(collection.id)?;
        let id = record::next_id()?;
        if !lock::try_acquire_for_session(Tag::Coordinator(id), Mode::Exclusive) {
            return Err(Error::new(Kind::InternalError, format!("migration {id} has a coordinator already")));
        }
        locked = Some(id);
        let row = Record {
            id,
            token: collection.token,
            collection: collection.id,
            namespace: request.namespace.clone(),
            min: request.min.clone(),
            max: request.max.clone(),
            donor,
            recipient: request.to,
            version,
            donor_version,
            recipient_version,
            state: State::Running,
            documents: 0,
            bytes: 0,
        };
        record::insert(&row, &request.reason)?;
        let application = names::application(cluster_id()?, id);
        let end = (request.max != pattern.max_bound()).then(|| request.max.clone());
        Ok(Some((record::load(id)?, end, !pattern.is_in_order_of_id(), place.is_none(), application)))
    };
    let deadline = Instant::now() + if request.reason == "manual" { PATIENCE } else { Duration::ZERO };
    let result = loop {
        match transaction::run(&mut enter) {
            Ok(Some(registered)) => break Ok(registered),
            Ok(None) if Instant::now() >= deadline => break Err(being_changed(&request.namespace)),
            Ok(None) => transaction::guarded(|| {
                sleep_ms(50);
                Ok(())
            })?,
            Err(error) => break Err(error),
        }
    };
    let (record, end, index_on_id, place, application) = match result {
        Ok(registered) => registered,
        Err(error) => {
            if let Some(id) = locked {
                lock::release_for_session(Tag::Coordinator(id), Mode::Exclusive);
            }
            return Err(error);
        }
    };
    let Prepared { donor, recipient, puller, .. } = prepared;
    Ok(Registered { record, end, donor, recipient, puller, index_on_id, place, application })
}

/// The error of a move that meets a change of the collection's indexes or chunks.
fn being_changed(namespace: &str) -> Error {
    let message = format!("indexes or chunks of {namespace} are being changed");
    Error::new(Kind::ConflictingOperationInProgress, message).with_hint("Move the chunk again when that is over.")
}

/// The error of whoever must wait for a move of the collection in which one of the shards takes part.
fn conflict(namespace: &str, migration: i64) -> Error {
    Error::new(
        Kind::ConflictingOperationInProgress,
        format!("a chunk of {namespace} is being moved (migration {migration})"),
    )
    .with_hint("Wait until it has ended; the view docshard.migrations shows it.")
}

/// Notes in the catalog that the recipient has the collection's table now, empty. Before, the move's own row tells of
/// it: an abort then drops the table.
pub(super) fn placed(record: &Record) -> Result<()> {
    transaction::run(|| {
        let collection = change::lock(&record.namespace)?;
        // Whoever aborted the move may have changed the collection's indexes since.
        record::require_running(record.id)?;
        placements::insert(collection.id, record.recipient, record.recipient_version)?;
        change::touch(collection.id)
    })
}
