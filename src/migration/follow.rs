//! Makes the catalog follow the shards in a collection in which a shard is ahead of it.
//!
//! That is so after a failover of the router to a standby without its last commits, and after a take-over by an older copy of the router: the
//! lost router has moved chunks, which this catalog does not know. The versions of the shards show which of them took part, and their
//! documents show which ranges they have now (`core::cluster::ownership`). Only the catalog changes, in one transaction; statements begin
//! to work when it commits.
//!
//! INVARIANT: ranges are assigned only when all documents are visible. All shards of the cluster must answer. None may
//! have prepared transactions of moves that this catalog does not have, or foreign servers of shards that it does not
//! know. Writers are excluded from the collection, so transactions that other routers have prepared must have ended.
//! This router holds the locks of all shards. If shards contradict each other, nothing is changed.

use super::shard::{RECOVERY, ShardSession};
use super::{names, record};
use crate::catalog::cluster::identity::{cluster_id, require_kept};
use crate::catalog::cluster::move_exclusion;
use crate::catalog::cluster::shard::{LOCAL_SERVER, Shard};
use crate::catalog::{cache, change};
use crate::pg::error::Result;
use crate::pg::transaction;
use crate::store::{chunks, collections, placements};
use docshard_core::cluster::chunk_map::{Chunk, ShardId};
use docshard_core::cluster::ownership::{Division, Owners};
use docshard_core::error::{Kind, ensure, error};
use docshard_core::routing::model::Collection;
use docshard_core::routing::protocol::Call;
use docshard_core::routing::protocol::node::ReadPrepared;
use docshard_core::routing::protocol::shard_tables::{FirstKey, ReadPlacements, ReadShardServers, TableRange};
use docshard_core::routing::protocol::table::ExcludeWriters;
use serde_json::{Value as Json, json};
use std::collections::BTreeMap;
use std::rc::Rc;

/// The largest number of parts into which documents may divide the chunks of a collection.
const MAX_PARTS: usize = 100_000;

/// The largest number of contradictory ranges that an error names.
const NAMED: usize = 5;

/// A shard that has the collection.
struct Placed {
    shard: Rc<Shard>,
    session: ShardSession,
    version: i64,
    is_ahead: bool,
}

type Placings = BTreeMap<ShardId, Placed>;

/// The shards that have a collection, by number, with sessions that exclude writers until they are dropped.
#[derive(Default)]
pub struct Holders(Placings);

/// Like [`follow_in`], in a transaction of its own.
pub fn follow(namespace: &str) -> Result<Option<Json>> {
    let mut holders = Holders::default();
    transaction::run(|| follow_in(namespace, &[], &mut holders))
}

/// Makes the catalog follow the shards in a collection; returns what has changed. None if no shard is ahead. Runs in the caller's
/// transaction; `holders` must live until it has ended. The shards `lost` are being removed, and are not asked; they may have moved chunks, too.
///
/// # Errors
/// `IllegalOperation` if the shards do not prove which ranges they have; `HostUnreachable` if a shard does not answer; `LockTimeout` while
/// prepared transactions or writers hold the collection; `NotWritablePrimary`, `NotPrimaryOrSecondary` at a copy of the router.
pub fn follow_in(namespace: &str, lost: &[ShardId], holders: &mut Holders) -> Result<Option<Json>> {
    let locked = move_exclusion::lock(namespace)?;
    change::refuse_while_building(locked.id, namespace)?;
    let collection = cache::get(namespace)?;
    holders.0 = find_holders(&collection, lost)?;
    let holders = &mut holders.0;
    if holders.values().all(|holder| !holder.is_ahead) {
        return Ok(None);
    }
    let changed = find_owners(&collection, lost, holders)?;
    let newest = holders.values().map(|holder| holder.version).max().unwrap_or_default();
    let last = locked.version;
    collections::raise_version(locked.id, newest)?;
    for (id, holder) in holders.iter().filter(|(_, holder)| holder.is_ahead) {
        placements::insert_or_set(locked.id, &[*id], holder.version)?;
    }
    for (chunk, parts) in &changed {
        apply(&collection, chunk, parts, holders)?;
    }
    change::touch(locked.id)?;
    let ahead: Vec<_> = holders.values().filter(|holder| holder.is_ahead).map(|holder| &holder.shard.name).collect();
    let said = json!({"from": last, "to": newest.max(last), "shards": ahead, "chunks": changed.len()});
    change::log("adoptShard.followed", Some(namespace), &said)?;
    Ok(Some(said))
}

/// The shards that have the collection, with its version there. Their writers are excluded.
fn find_holders(collection: &Collection, lost: &[ShardId]) -> Result<Placings> {
    let shards = cache::shards()?;
    let asked = || shards.iter().filter(|(id, _)| !lost.contains(*id));
    require_kept(asked().map(|(_, shard)| &**shard))?;
    let known: Vec<String> = shards.values().filter_map(|shard| Some(shard.server.as_ref()?.name.clone())).collect();
    let mut holders = Placings::new();
    for (id, shard) in asked() {
        let mut session = ShardSession::open(shard, RECOVERY)?;
        session.execute("BEGIN ISOLATION LEVEL READ COMMITTED")?;
        require_known(&mut session, &known)?;
        let find = ReadPlacements { collection: Some(collection.id) };
        let is_same = |token: i64| token == collection.token;
        if !find.call(&mut session)?.iter().any(|placed| is_same(placed.token)) {
            let at = collection.placements.get(id);
            ensure!(
                at.is_none(),
                Kind::IllegalOperation,
                "shard \"{}\" does not have {}, although another shard is ahead of the catalog",
                shard.name,
                collection.namespace
            );
            continue;
        }
        ExcludeWriters { collection: collection.id }.call(&mut session)?;
        let placed = find.call(&mut session)?;
        let Some(version) = placed.iter().find(|placed| is_same(placed.token)).map(|placed| placed.version) else {
            continue;
        };
        let known = collection.placements.get(id).copied();
        if known.is_some_and(|known| version < known) {
            return Err(error!(
                Kind::IllegalOperation,
                "shard \"{}\" is behind the catalog in {}, and another shard is ahead of it", shard.name, collection.namespace
            )
            .with_hint(
                "Restore the nodes from backups of the same moment, or copy the documents out of the tables of the shards.",
            ));
        }
        let is_ahead = known.is_none_or(|known| version > known);
        holders.insert(*id, Placed { shard: Rc::clone(shard), session, version, is_ahead });
    }
    Ok(holders)
}

/// Refuses a shard at which documents may be hidden: in prepared transactions of moves, or because it has sent them to a shard that the
/// catalog does not know.
fn require_known(session: &mut ShardSession, known: &[String]) -> Result<()> {
    let cluster = cluster_id()?;
    for gid in (ReadPrepared { prefixes: &[&names::gid_prefix(cluster)] }).call(session)? {
        let is_in_catalog = names::move_of(&gid, cluster).map_or(Ok(false), record::is_in_catalog)?;
        if !is_in_catalog {
            return Err(error!(
                Kind::IllegalOperation,
                "shard \"{}\" has the prepared transaction {gid} of a move that the catalog does not have",
                session.name
            )
            .with_hint(HOW_TO_END));
        }
    }
    let servers = ReadShardServers {}.call(session)?;
    match servers.iter().find(|server| *server != LOCAL_SERVER && !known.contains(server)) {
        None => Ok(()),
        Some(server) => Err(error!(
            Kind::IllegalOperation,
            "shard \"{}\" has the server {server} of a shard that the catalog does not have", session.name
        )
        .with_hint(
            "Documents may have moved to that shard. Add it with docshard.add_shard(). If it was removed, add another empty one of \
             that name, and remove it again: that removes the server.",
        )),
    }
}

/// How an administrator ends what the move of a lost router has prepared.
pub const HOW_TO_END: &str = "Look for documents of the chunk's range on all shards. If both parts (…_t at the donor, …_r at the \
     recipient) are prepared, ROLLBACK PREPARED both. If only the recipient's is, and no shard shows the documents, COMMIT PREPARED it; otherwise \
     ROLLBACK PREPARED. Then docshard.accept_shard(name, '{\"adopt\": true}') makes the catalog follow the shards.";

/// Returns the chunks that now have another owner or several owners, each with its parts.
/// Errors: `IllegalOperation`, with the ranges in which shards contradict each other.
fn find_owners(collection: &Collection, lost: &[ShardId], holders: &mut Placings) -> Result<Vec<(Chunk, Vec<Chunk>)>> {
    let mut ahead: Vec<ShardId> = holders.iter().filter(|(_, holder)| holder.is_ahead).map(|(id, _)| *id).collect();
    require_unsharded(collection, holders, &ahead)?;
    ahead.extend_from_slice(lost);
    let mut division = Division::new(holders.keys().copied().collect(), ahead, MAX_PARTS);
    let (mut changed, mut contradictions, mut more) = (Vec::new(), Vec::new(), 0);
    let name =
        |holders: &Placings, id: ShardId| holders.get(&id).map(|holder| holder.shard.name.clone()).unwrap_or_default();
    for chunk in collection.map.chunks() {
        let end = (chunk.max != collection.key.max_bound()).then_some(chunk.max.as_slice());
        let owners = division.owners(&chunk, end, |id, from| first_key(holders, id, collection.id, from))?;
        let shards = match owners {
            Owners::Parts(parts) if parts == [chunk.clone()] => continue,
            Owners::Parts(parts) => {
                changed.push((chunk, parts));
                continue;
            }
            Owners::Contradiction(one, other) => {
                format!("shards \"{}\" and \"{}\"", name(holders, one), name(holders, other))
            }
            Owners::TooMany => format!("more than {MAX_PARTS} parts"),
        };
        if contradictions.len() == NAMED {
            more += 1;
            continue;
        }
        let bound = |bound: &[u8]| collection.key.bound_to_json(bound);
        let range = match collection.key.is_unsharded() {
            true => "all documents".to_owned(),
            false => format!("from {} to {}", bound(&chunk.min), bound(&chunk.max)),
        };
        contradictions.push(format!("{range} ({shards})"));
    }
    if contradictions.is_empty() {
        return Ok(changed);
    }
    let more = if more == 0 { String::new() } else { format!(", and {more} more ranges") };
    Err(error!(
        Kind::IllegalOperation,
        "the shards contradict each other in {}, so the catalog cannot follow them: {}{more}",
        collection.namespace,
        contradictions.join(", ")
    )
    .with_hint(format!(
        "Both shards have documents of the range, and one must not. Compare them in the table {} of either shard, copy those that are \
         needed, delete them at the shard that is wrong, and call the function again.",
        collection.table()
    )))
}

/// Returns an error if the lost router has sharded the collection, which gives all documents other keys.
fn require_unsharded(collection: &Collection, holders: &mut Placings, ahead: &[ShardId]) -> Result<()> {
    if !collection.key.is_unsharded() {
        return Ok(());
    }
    for id in ahead {
        if first_key(holders, *id, collection.id, &[0])?.is_some() {
            let shard = holders.get(id).map_or("", |holder| holder.shard.name.as_str());
            return Err(error!(
                Kind::IllegalOperation,
                "{} is unsharded in the catalog, but its documents on shard \"{shard}\" have a shard key", collection.namespace
            )
            .with_hint("The lost router has sharded it. Copy the documents out of the shards' tables, drop the collection, and create it again."));
        }
    }
    Ok(())
}

/// The first key of a shard's documents that is not below `from`.
fn first_key(holders: &mut Placings, shard: ShardId, collection: i32, from: &[u8]) -> Result<Option<Vec<u8>>> {
    match holders.get_mut(&shard) {
        None => Ok(None),
        Some(holder) => FirstKey(TableRange { collection, lo: from, hi: None }).call(&mut holder.session),
    }
}

/// Splits a chunk into its parts, and gives them to their owners.
fn apply(collection: &Collection, chunk: &Chunk, parts: &[Chunk], holders: &Placings) -> Result<()> {
    let mut rest = chunk.clone();
    for part in parts.iter().skip(1) {
        chunks::split(collection.id, &rest, &part.min)?;
        rest.min.clone_from(&part.min);
    }
    for part in parts.iter().filter(|part| part.shard != chunk.shard) {
        let version = holders.get(&part.shard).map(|holder| holder.version).unwrap_or_default();
        let set = chunks::set_owner(collection.id, (&part.min, &part.max), chunk.shard, part.shard, version)?;
        ensure!(set == 1, Kind::InternalError, "the catalog changed under the adoption of {}", collection.namespace);
    }
    Ok(())
}
