//! Tells whether this database is the cluster's router or a copy of it.
//!
//! A copy is a restored dump, or a copy of the server's files. It has the same catalog and reaches the same shards. It must not
//! write: it would treat the router's prepared transactions and moves as remains of a crash, and assign the same numbers as the
//! router. So it changes nothing, here or on the shards, until `docshard.take_over_cluster()`. It may read, because shards check
//! versions.
//!
//! A router is [`Standing::LockedOut`] while shards refuse its login, because it may have been replaced. It writes nothing, but its login
//! at a shard can be repaired, and it writes again when shards accept the login.
//!
//! A copy of the server's files does not know at first that it is a copy. So metadata is changed only while the keeper holds the locks:
//! [`FREE`] for the cluster, and [`Tag::Kept`] for each shard that takes part ([`require_kept`]).

use super::holder;
use crate::catalog::cache;
use crate::catalog::cluster::shard::Shard;
use crate::pg::error::{Error, Result};
use crate::pg::transaction::epoch::{self, Epoch};
use crate::pg::transaction::snapshot::ActiveSnapshot;
use crate::pg::{process, server};
use crate::shard::{here, node};
use crate::storage::lock::{self, Tag};
use crate::store::cluster as store;
use docshard_core::cluster::chunk_map::ShardId;
use docshard_core::cluster::standing::{Identity, Standing};
use docshard_core::error::{Kind, error};
use std::cell::RefCell;
use std::time::{Duration, Instant};

/// Held by a database's worker, so that it has only one.
pub const WORKER: Tag = Tag::Worker(1);

/// Held by a database's keeper, so that it has only one.
pub const KEEPER: Tag = Tag::Worker(8);

/// Held by the keeper while no shard's lock is held by another router.
pub const FREE: Tag = Tag::Worker(9);

/// How long a change of metadata waits for the keeper, which has just started or opens a new connection to a shard.
const PATIENCE: Duration = Duration::from_secs(10);

/// The pause between two looks at the keeper's locks, in milliseconds.
const PAUSE_MS: i64 = 20;

thread_local! {
    /// The shards that this transaction has added, which no other database knows.
    static ADDED: RefCell<(Epoch, Vec<ShardId>)> = RefCell::default();
    /// The cached standing of this database, with the generation of the catalog in which it was read.
    static KNOWN: RefCell<Option<(u64, Standing)>> = const { RefCell::new(None) };
}

/// This database's identity: its server and its OID.
pub fn identity() -> Identity {
    node::running().database
}

/// Returns this database's standing in the newest snapshot.
pub fn standing() -> Result<Standing> {
    standing_in(cache::generation()?)
}

fn standing_in(generation: u64) -> Result<Standing> {
    let known = KNOWN.with_borrow(|known| match known {
        Some((checked_in, standing)) if *checked_in == generation => Some(standing.clone()),
        _ => None,
    });
    if let Some(known) = known {
        return Ok(known);
    }
    let _snapshot = ActiveSnapshot::latest();
    let standing = store::read_registration()?.standing(identity());
    KNOWN.set(Some((generation, standing.clone())));
    Ok(standing)
}

/// This cluster's identity.
pub fn cluster_id() -> Result<i64> {
    Ok(coordinator()?.cluster)
}

/// Refuses administration on a node that is a shard of another router.
/// Errors: `IllegalOperation`; `Unauthorized` for a role to which nothing was granted.
pub fn check_router() -> Result<()> {
    cache::require_access()?;
    let own = cluster_id()?;
    match here::node()?.filter(|node| node.cluster_id != own) {
        None => Ok(()),
        Some(node) => Err(error!(
            Kind::IllegalOperation,
            "this database is the shard \"{}\" of another cluster, not a router", node.shard
        )
        .with_hint("Run it on the cluster's router.")),
    }
}

/// Refuses changes of the cluster on a node that is not its router: a shard, or a copy of the router.
/// Errors: `IllegalOperation`, `NotWritablePrimary`, `NotPrimaryOrSecondary`.
pub fn check_may_change() -> Result<()> {
    check_router()?;
    require_free()
}

/// Like [`check_may_change`], but allows the repair of a login to a router that is locked out.
/// Errors: those of [`check_may_change`].
pub fn check_may_repair() -> Result<()> {
    check_router()?;
    refuse_copy()?;
    await_free()
}

/// True if shards refuse this router's login.
pub fn is_locked_out() -> Result<bool> {
    Ok(matches!(standing()?, Standing::LockedOut(_)))
}

/// Refuses a copy of the router, and a database that may still be one; waits for the keeper.
/// Errors: `NotWritablePrimary`, `NotPrimaryOrSecondary`.
pub fn require_free() -> Result<()> {
    require_router()?;
    await_free()?;
    // The keeper may have found out meanwhile that the router is locked out.
    require_router()
}

fn await_free() -> Result<()> {
    if cache::remote_shards()?.iter().all(|(shard, _)| is_added(shard.id)) {
        return Ok(());
    }
    await_keeper(FREE, "its shards")
}

/// Requires the locks of the shards that have taken part in a change, before that is committed; waits for the keeper.
/// Errors: `NotWritablePrimary`, `NotPrimaryOrSecondary`.
pub fn require_kept<'a>(shards: impl IntoIterator<Item = &'a Shard>) -> Result<()> {
    for shard in shards {
        if !shard.is_local() && !is_added(shard.id) {
            await_keeper(Tag::Kept(shard.id), &format!("shard \"{}\"", shard.name))?;
        }
    }
    Ok(())
}

fn await_keeper(tag: Tag, what: &str) -> Result<()> {
    let mut woken: Option<Instant> = None;
    let began = Instant::now();
    while process::is_preloaded() && !lock::is_excluded(tag) {
        if began.elapsed() > PATIENCE {
            return Err(unlocked(what));
        }
        if woken.is_none_or(|at| at.elapsed() > Duration::from_secs(1)) {
            woken = Some(Instant::now());
            process::wake();
            for (_, pid) in lock::holding_processes(KEEPER)? {
                pid.into_iter().for_each(process::wake_process);
            }
        }
        server::sleep_ms(PAUSE_MS);
        // The keeper may have found out that this is a copy.
        refuse_copy()?;
    }
    Ok(())
}

/// How long the keeper may be missing before this is reported: the worker starts a new one within this time.
const KEEPER_START: Duration = Duration::from_millis(1500);

/// Describes the problem if this router has no keeper, without which metadata cannot change. None if it has one, or needs none.
pub fn lacks_keeper() -> Result<Option<String>> {
    let is_alone = cache::remote_shards()?.is_empty();
    if !process::is_preloaded() || is_alone || standing()? != Standing::Router {
        return Ok(None);
    }
    let began = Instant::now();
    while !lock::is_excluded(KEEPER) {
        if began.elapsed() > KEEPER_START {
            let message = "no docshard keeper runs for this database, so metadata cannot change and no chunk moves: \
                           max_worker_processes is used up, or the process cannot start; see the server's log";
            return Ok(Some(message.to_owned()));
        }
        server::sleep_ms(PAUSE_MS);
    }
    Ok(None)
}

fn unlocked(what: &str) -> Error {
    let hint = if lock::is_excluded(KEEPER) {
        "A router changes metadata only while it holds the locks on its shards. It has just started, a connection to a shard was lost, \
         a shard was restored from a backup, or another router holds the lock: see the server's log. Try again in a few seconds."
    } else {
        "The background worker that takes the locks does not run; max_worker_processes may be used up. Try again in a few seconds, \
         and see the server's log."
    };
    error!(Kind::NotPrimaryOrSecondary, "this router does not hold the lock on {what} yet").with_hint(hint)
}

/// Records that this transaction has added a shard. After a ROLLBACK TO SAVEPOINT the shard no longer counts as added, even if it still is.
pub(super) fn note_added(shard: ShardId) {
    ADDED.with_borrow_mut(|(at, shards)| {
        let now = epoch::now();
        if *at != now {
            (*at, *shards) = (now, Vec::new());
        }
        shards.push(shard);
    });
}

fn is_added(shard: ShardId) -> bool {
    ADDED.with_borrow(|(at, shards)| *at == epoch::now() && shards.contains(&shard))
}

/// Refuses a copy of the router.
/// Errors: `NotWritablePrimary` (25006).
pub fn require_router() -> Result<()> {
    require_router_in(cache::generation()?)
}

/// Like [`require_router`], for a caller that has the catalog's generation.
pub(in crate::catalog) fn require_router_in(generation: u64) -> Result<()> {
    let is_router =
        KNOWN.with_borrow(|known| matches!(known, Some((checked_in, Standing::Router)) if *checked_in == generation));
    if is_router {
        return Ok(());
    }
    match standing_in(generation)? {
        Standing::Router => Ok(()),
        Standing::LockedOut(reason) => Err(locked_out(&reason)),
        Standing::Copy(reason) => Err(refused(&reason)),
    }
}

/// Refuses a copy of the router, but no router that is locked out.
fn refuse_copy() -> Result<()> {
    match standing()? {
        Standing::Router | Standing::LockedOut(_) => Ok(()),
        Standing::Copy(reason) => Err(refused(&reason)),
    }
}

fn locked_out(reason: &str) -> Error {
    error!(Kind::NotWritablePrimary, "this router writes nothing, as {reason}").with_hint(
        "Another database has probably become the router: docshard.take_over_cluster() with a superuser's login replaces the password. Then \
         connect to that one. If somebody has changed the password by mistake, docshard.add_shard() with a shard's address and name and a \
         superuser's login there repairs it; that is refused at a shard that was taken over. docshard.take_over_cluster() with such a login \
         makes this database the router again.",
    )
}

fn refused(reason: &str) -> Error {
    error!(
        Kind::NotWritablePrimary,
        "this database is a copy of the cluster's router and cannot change the cluster: {reason}"
    )
    .with_hint(format!(
        "Connect to the cluster's router{}. If that is lost, an administrator makes this database the router: \
         docshard.take_over_cluster().",
        holder::place(reason)
    ))
}

pub use crate::store::cluster::coordinator;

/// Records that this database is the router, before the first other shard is added.
pub(super) fn register() -> Result<()> {
    store::set_first_router(&identity().to_string())
}

/// Records permanently that this database is a copy, and why. False if a reason is recorded already, or if the epoch is no longer
/// `epoch` because this database has taken the cluster over meanwhile.
pub fn become_copy(reason: &str, epoch: i64) -> Result<bool> {
    let is_new = store::set_copy(reason, Some(epoch))?;
    cache::announce();
    Ok(is_new)
}

/// Records that shards refuse this router's login, and announces it. False if it writes nothing already, or if its epoch is no longer `epoch`.
pub fn lock_out(reason: &str, epoch: i64) -> Result<bool> {
    let is_new = store::lock_out(reason, epoch)?;
    cache::announce();
    Ok(is_new)
}

/// Records that shards let this router in again, and announces it. False if it was not locked out.
pub fn let_in() -> Result<bool> {
    let was_out = store::let_in()?;
    cache::announce();
    Ok(was_out)
}

pub(super) use crate::store::cluster::lock_epoch;

/// Records that this database is the router from now on, with this epoch.
pub(super) fn become_router(epoch: i64) -> Result<()> {
    store::set_router(&identity().to_string(), epoch)?;
    KNOWN.set(None);
    cache::announce();
    Ok(())
}

/// Makes this database the router of a new cluster, without other shards.
pub(super) fn renew() -> Result<()> {
    store::renew()?;
    // A router that took the old cluster over has given its moves high numbers. Those of the new cluster begin with 1 again.
    crate::store::number_moves_from(1)?;
    KNOWN.set(None);
    cache::announce();
    Ok(())
}

/// True if this router may complete unfinished work on a shard: its keeper holds the shard's lock, or no keeper runs here.
/// Runs in a transaction.
pub fn may_finish(shard: ShardId) -> bool {
    !process::is_preloaded() || lock::is_excluded(Tag::Kept(shard))
}
