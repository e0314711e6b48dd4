//! Begins a move: checks whether it is possible, and inserts its durable row before any side effect.

use super::attempt::Attempt;
use super::cleanup::skip_lost_moves;
use super::numbered;
use super::record::{self, Record};
use super::request::MoveRequest;
use super::shard::{ShardSession, repair_hint};
use super::standbys::Both;
use crate::catalog::cache;
use crate::catalog::change::{self, Locked};
use crate::catalog::cluster::identity::{self, cluster_id};
use crate::catalog::cluster::move_exclusion;
use crate::catalog::cluster::shard::Shard;
use crate::catalog::collections::sizes::{self, COUNTED_OFTEN_MB};
use crate::pg::error::{Error, Result};
use crate::pg::server::sleep_ms;
use crate::pg::{spi, transaction};
use crate::storage::lock::{self, Mode, Tag};
use crate::store::{chunks, placements, shards};
use docshard_core::cluster::chunk_map::ShardId;
use docshard_core::cluster::handshake;
use docshard_core::cluster::migration::State;
use docshard_core::error::{Kind, bail, ensure, error};
use docshard_core::routing::model::Collection;
use docshard_core::routing::names;
use docshard_core::routing::protocol::Call;
use docshard_core::routing::protocol::shard_tables::{FindRelations, ReadNode};
use docshard_core::sql::param::Param;
use std::time::{Duration, Instant};

/// How long a user's move waits for a change of the collection's indexes or chunks.
const PATIENCE: Duration = Duration::from_secs(10);

/// The sessions of a move that has passed the checks.
pub(super) struct Checked {
    donor_id: ShardId,
    donor: ShardSession,
    loader: ShardSession,
    puller: ShardSession,
}

fn illegal(message: String, hint: &str) -> Error {
    Error::new(Kind::IllegalOperation, message).with_hint(hint)
}

fn conflict(message: String, hint: &str) -> Error {
    Error::new(Kind::ConflictingOperationInProgress, message).with_hint(hint)
}

/// Returns the owner of the chunk, or of the neighbours, that have the request's bounds; and whether one of them is jumbo.
fn find_chunk(collection: i32, request: &MoveRequest) -> Result<(ShardId, bool)> {
    let chunks = chunks::within(collection, &request.min, &request.max)?;
    if let (Some(first), Some(last)) = (chunks.first(), chunks.last())
        && (&first.min, &last.max) == (&request.min, &request.max)
        && chunks.iter().all(|chunk| chunk.shard == first.shard)
    {
        return Ok((first.shard, chunks.iter().any(|chunk| chunk.jumbo)));
    }
    let message = format!("{} has no chunk with these bounds (any more)", request.namespace);
    Err(Error::new(Kind::OperationFailed, message)
        .with_hint("It may have been split or merged meanwhile; see the view docshard.chunks."))
}

fn refuse_draining(recipient: &Shard) -> Result<()> {
    if recipient.draining {
        let message = format!("shard \"{}\" is draining and takes no chunks", recipient.name);
        return Err(illegal(message, "Choose another shard."));
    }
    Ok(())
}

/// Makes the checks that have no side effects, and opens the sessions; None if the chunk is at the recipient already.
pub(super) fn check(request: &MoveRequest) -> Result<Option<Checked>> {
    let found = transaction::run(|| {
        let recipient = cache::shard(request.to)?;
        let collection = cache::get(&request.namespace)?;
        let (donor_id, _) = find_chunk(collection.id, request)?;
        if donor_id == request.to {
            return Ok(None);
        }
        refuse_draining(&recipient)?;
        refuse_full(&recipient, request)?;
        let donor = cache::shard(donor_id)?;
        let open = |shard: &Shard| ShardSession::open(shard, "docshard");
        let mut checked =
            Checked { donor_id, donor: open(&donor)?, loader: open(&recipient)?, puller: open(&recipient)? };
        checked.puller.waits_also_for(&checked.donor);
        identity::require_kept([&*donor, &*recipient])?;
        Ok(Some((checked, cluster_id()?, needed_relations(&collection, request.to)?)))
    })?;
    let Some((mut checked, cluster, mut needed)) = found else { return Ok(None) };
    check_node(&mut checked.donor, cluster)?;
    check_node(&mut checked.loader, cluster)?;
    let (loader, server) = (&mut checked.loader, &checked.donor.server);
    let sql = "SELECT FROM pg_catalog.pg_foreign_server WHERE srvname = $1::text";
    if loader.query::<()>(sql, &[Param::Text(server)])?.is_empty() {
        return Err(illegal(
            format!("shard \"{}\" has no foreign server \"{server}\" to pull from", loader.name),
            &repair_hint(&loader.name),
        ));
    }
    // An index that is being created or dropped exists on some shards only. So a difference counts only if it was found while no index
    // changed.
    let deadline = deadline(request);
    let mut compared_at_rest = false;
    while let Err(error) = check_relations(loader, &needed, &request.namespace) {
        match transaction::run(|| needed_at_rest(request))? {
            Some(again) if compared_at_rest && again == needed => return Err(error),
            Some(again) => (needed, compared_at_rest) = (again, true),
            None => wait_for_change(request, deadline)?,
        }
    }
    Ok(Some(checked))
}

/// Returns the time until which this move waits for a change of the collection's indexes or chunks.
fn deadline(request: &MoveRequest) -> Instant {
    Instant::now() + if request.is_of_user() { PATIENCE } else { Duration::ZERO }
}

/// Waits for a moment, for a change of the collection's indexes or chunks; returns an error if the deadline has passed.
fn wait_for_change(request: &MoveRequest, deadline: Instant) -> Result<()> {
    if Instant::now() >= deadline {
        let message = format!("indexes or chunks of {} are being changed", request.namespace);
        return Err(conflict(message, "Move the chunk again when that has ended."));
    }
    transaction::guarded(|| {
        sleep_ms(50);
        Ok(())
    })
}

/// Locks the collection's row and blocks changes of its indexes and chunks; None if such a change is running.
fn lock_at_rest(request: &MoveRequest) -> Result<Option<Locked>> {
    // The session that has started this worker may hold a conflicting lock while it waits for the worker. The deadlock
    // detector does not see that, hence the timeout.
    spi::query("SELECT set_config('lock_timeout', '10s', true)", &[])?;
    let collection = change::lock(&request.namespace)?;
    Ok(move_exclusion::try_share(collection.id).then_some(collection))
}

/// Like [`needed_relations`]; None if a change of the collection's indexes or chunks is running.
fn needed_at_rest(request: &MoveRequest) -> Result<Option<Vec<(String, String)>>> {
    if lock_at_rest(request)?.is_none() {
        return Ok(None);
    }
    needed_relations(&*cache::get(&request.namespace)?, request.to).map(Some)
}

/// Returns an error if the chunk would exceed the recipient's `max_size_mb`.
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

/// Returns the table and the indexes that a recipient must have: none if the catalog does not place the collection there yet. Each has the
/// name of its relation, and the user's name of the index, which is empty for the table.
fn needed_relations(collection: &Collection, recipient: ShardId) -> Result<Vec<(String, String)>> {
    if placements::version(collection.id, recipient)?.is_none() {
        return Ok(Vec::new());
    }
    let mut needed = vec![(format!("c{}", collection.id), String::new())];
    for index in &collection.indexes {
        let relations = names::relations(index.id, &index.keys, index.unique);
        needed.extend(relations.into_iter().map(|relation| (relation, index.name.clone())));
    }
    Ok(needed)
}

fn check_relations(loader: &mut ShardSession, needed: &[(String, String)], namespace: &str) -> Result<()> {
    let relations: Vec<&str> = needed.iter().map(|(relation, _)| relation.as_str()).collect();
    let present = FindRelations { relations: &relations }.call(loader)?;
    let Some((relation, index)) = needed.iter().find(|(relation, _)| !present.contains(relation)) else {
        return Ok(());
    };
    let name = names::relation_name(relation);
    let (kind, what) = match index.is_empty() {
        true => (Kind::NamespaceNotFound, format!("the table {name} of {namespace}")),
        false => (Kind::IndexNotFound, format!("the index {index} of {namespace} ({name})")),
    };
    Err(error!(kind, "shard \"{}\" lacks {what}", loader.name).with_hint(
        "It was dropped there, or the shard was restored from an old backup. Drop the index with \
         docshard.drop_index() and create it again.",
    ))
}

/// Checks that a shard has a version of the extension that works with this one, belongs to this cluster, and can prepare
/// transactions.
pub fn check_node(shard: &mut ShardSession, cluster: i64) -> Result<()> {
    let answers: Vec<(Option<String>, i32, bool)> = shard.query(
        "SELECT (SELECT extversion FROM pg_catalog.pg_extension WHERE extname = 'docshard'), \
                current_setting('max_prepared_transactions')::int4, pg_is_in_recovery()",
        &[],
    )?;
    let name = &shard.name;
    let (version, prepared_transactions, is_standby) =
        answers.into_iter().next().ok_or_else(|| error!(Kind::InternalError, "a shard did not report its version"))?;
    let version = version.as_deref();
    if !version.is_some_and(handshake::works_with) {
        let (theirs, ours) = (version.map(|version| format!(" {version}")), env!("CARGO_PKG_VERSION"));
        let theirs = theirs.map_or("no docshard".to_owned(), |version| format!("docshard{version}"));
        return Err(illegal(
            format!("shard \"{name}\" has {theirs}, this router {ours}"),
            "Install the router's version there, and run ALTER EXTENSION docshard UPDATE.",
        ));
    }
    if is_standby {
        return Err(illegal(
            format!("the session on shard \"{name}\" reached a standby"),
            "Set the server option target_session_attrs to read-write.",
        ));
    }
    if prepared_transactions == 0 {
        return Err(illegal(
            format!("shard \"{name}\" allows no prepared transactions, which moving a chunk needs"),
            "Set max_prepared_transactions there, or preload docshard (shared_preload_libraries), and restart it.",
        ));
    }
    let nodes = ReadNode {}.call(shard)?;
    if nodes.iter().any(|node| node.cluster_id != cluster) {
        return Err(illegal(
            format!("shard \"{}\" belongs to another cluster", shard.name),
            "Its foreign server leads to the wrong database.",
        ));
    }
    Ok(())
}

/// Inserts the row and takes the coordinator's lock, which this process holds until it ends or releases it.
pub(super) fn register(request: &MoveRequest, mut checked: Checked) -> Result<Attempt> {
    transaction::run(|| {
        let cluster = cluster_id()?;
        skip_lost_moves(&mut checked.donor, cluster)?;
        skip_lost_moves(&mut checked.loader, cluster)
    })?;
    let mut locked = None;
    let deadline = deadline(request);
    loop {
        match transaction::run(|| enter(request, checked.donor_id, &mut locked)) {
            Ok(Some((record, end))) => {
                let Checked { donor, loader, puller, .. } = checked;
                return Ok(Attempt {
                    record,
                    end,
                    donor,
                    loader,
                    puller,
                    standbys: Both::default(),
                    copied_snapshot: numbered::NOTHING.to_owned(),
                    keeps_order: false,
                });
            }
            Ok(None) => wait_for_change(request, deadline)?,
            Err(error) => {
                if let Some(id) = locked {
                    lock::release_for_session(Tag::Coordinator(id), Mode::Exclusive);
                }
                return Err(error);
            }
        }
    }
}

/// Inserts the row, under the lock of the collection's row; returns it with the upper bound in statements for shards. When the
/// coordinator's lock is taken, `locked` gets the move's number. None while the collection's indexes or chunks are being
/// changed.
fn enter(request: &MoveRequest, donor: ShardId, locked: &mut Option<i64>) -> Result<Option<(Record, Option<Vec<u8>>)>> {
    let Some(collection) = lock_at_rest(request)? else { return Ok(None) };
    change::refuse_while_building(collection.id, &request.namespace)?;
    move_exclusion::refuse_while_resharding(collection.id)?;
    let (owner, jumbo) = find_chunk(collection.id, request)?;
    if owner != donor {
        bail!(Kind::ConflictingOperationInProgress, "the chunk was moved meanwhile");
    }
    if jumbo && !request.force_jumbo {
        return Err(error!(Kind::ChunkTooBig, "the chunk is marked jumbo: it is too big and cannot be split")
            .with_hint("The option {\"forceJumbo\": true} moves it nevertheless."));
    }
    if shards::lock_draining(request.to)? != Some(false) {
        refuse_draining(&*cache::shard(request.to)?)?;
    }
    // Moves of the collection between other shards do not matter: they use no version, lock or table of this move.
    if let Some(other) = record::undecided_at(collection.id, [donor, request.to])? {
        return Err(conflict(
            format!("a chunk of {} is being moved (migration {other})", request.namespace),
            "Wait until the move has ended; the view docshard.migrations shows it.",
        ));
    }
    let donor_version = placements::version(collection.id, donor)?
        .ok_or_else(|| error!(Kind::InternalError, "the owner of a chunk has no placement"))?;
    // A recipient without the table gets one version when the table is created, and the next one when the move commits.
    let recipient_version = match placements::version(collection.id, request.to)? {
        Some(version) => version,
        None => change::next_version(collection.id)?,
    };
    let version = change::next_version(collection.id)?;
    let id = record::next_id()?;
    ensure!(
        lock::try_acquire_for_session(Tag::Coordinator(id), Mode::Exclusive),
        Kind::InternalError,
        "migration {id} has a coordinator already"
    );
    *locked = Some(id);
    let record = Record {
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
    record::insert(&record, &request.reason)?;
    let pattern = crate::store::collections::pattern(collection.key.as_ref())?;
    let end = (request.max != pattern.max_bound()).then(|| request.max.clone());
    Ok(Some((record, end)))
}
