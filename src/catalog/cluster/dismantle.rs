//! Dismantles a cluster: drops its documents and metadata, on its router, or on a shard whose router is gone.
//!
//! The first call returns what would be lost; the second confirms it with the cluster's identity. Shards are dismantled first, each in a
//! transaction of its own, and this database last. After a failure, repeating the call completes it. Afterwards the router is a new
//! cluster, which shards of the old one refuse.

use super::{access as application_roles, identity};
use crate::catalog::cluster::shard::Shard;
use crate::catalog::cluster::shards::names::{LOCAL, puller_name, server_name};
use crate::catalog::cluster::shards::servers::readdress_local;
use crate::catalog::{cache, change};
use crate::pg::error::{Error, Result};
use crate::pg::{security::user, server, spi};
use crate::remote::Session;
use crate::shard::node::service_role;
use crate::shard::{access, dismantle as node, here};
use crate::storage::lock::{self, Tag};
use crate::store;
use docshard_core::error::sqlstate::REFUSED_CONNECTION;
use docshard_core::error::{Kind, bail, error};
use docshard_core::routing::protocol::Call;
use docshard_core::routing::protocol::access::DismantleNode;
use docshard_core::routing::protocol::node::ReadPrepared;
use docshard_core::routing::protocol::shard_tables::{HasLeftCluster, NodeRow, ReadPlacements};
use docshard_core::sql::param::Param;
use docshard_core::sql::quote::quote_literal;
use pgrx::pg_sys::Oid;
use serde_json::{Value as Json, json};
use std::iter;
use std::rc::Rc;

/// Seconds that connecting to a host may take.
const CONNECT_S: u32 = 10;

/// Options of `docshard.dismantle`.
#[derive(Clone, Copy, Debug)]
pub struct Scope {
    /// whether the cluster's other databases are dismantled, too
    pub shards: bool,
    /// whether shards that cannot be reached are skipped
    pub skip_unreachable: bool,
}

/// The role of this database in a cluster.
struct Target {
    cluster: i64,
    /// this database's name as a shard, if another database is its router
    shard: Option<String>,
    collections: i64,
}

impl Target {
    fn confirmation(&self) -> String {
        format!("{:016x}", self.cluster)
    }

    /// The answer to a call without confirmation.
    fn offer(&self, others: &[&str]) -> Json {
        json!({
            "msg": "this would drop all documents of these databases; to confirm, pass the value of confirm",
            "confirm": self.confirmation(),
            "role": if self.shard.is_some() { "shard" } else { "router" },
            "shard": self.shard, "shards": others, "collections": self.collections, "ok": 1,
        })
    }
}

fn look() -> Result<Target> {
    Ok(match here::node()? {
        Some(NodeRow { cluster_id: cluster, shard, .. }) => {
            let collections = here::call(&ReadPlacements { collection: None })?.len();
            Target { cluster, shard: Some(shard), collections: collections.try_into().unwrap_or(i64::MAX) }
        }
        None => {
            Target { cluster: identity::coordinator()?.cluster, shard: None, collections: store::collections::count()? }
        }
    })
}

/// Dismantles the cluster if `confirm` is its identity. Without `confirm`, returns what would be lost.
/// Errors: `Unauthorized` unless the user is a superuser or the extension's owner; `BadValue` for a wrong confirmation;
/// `ConflictingOperationInProgress`; `NotWritablePrimary` at a copy of the router, unless `scope.shards` is false;
/// `OperationNotSupportedInTransaction` in a transaction block; `HostUnreachable` and other errors of connections.
pub fn dismantle(confirm: Option<&str>, scope: Scope) -> Result<Json> {
    if !server::outer_user_is_superuser() && server::outer_user() != user::extension_owner()? {
        bail!(Kind::Unauthorized, "only a superuser may dismantle a cluster");
    }
    let target = look()?;
    let others = match (&target.shard, scope.shards) {
        (None, true) => cache::remote_shards()?,
        _ => Vec::new(),
    };
    if !others.is_empty() {
        identity::require_router().map_err(|refused| {
            refused.with_hint(
                "docshard.dismantle(confirm, '{\"shards\": false}') removes only this database from the cluster.",
            )
        })?;
    }
    let names: Vec<&str> = others.iter().map(|(shard, _)| shard.name.as_str()).collect();
    let Some(confirm) = confirm else {
        return Ok(target.offer(&names));
    };
    if confirm != target.confirmation() {
        return Err(error!(Kind::BadValue, "the confirmation is not the identity of this cluster")
            .with_hint("docshard.dismantle() without arguments returns what would be lost, and the identity."));
    }
    if server::in_transaction_block() {
        let message = "a cluster cannot be dismantled inside a transaction block";
        return Err(Error::new(Kind::OperationNotSupportedInTransaction, message));
    }
    if !others.is_empty() {
        // A copy that does not know yet that it is one must not dismantle the router's shards.
        identity::require_free()?;
    }
    let before = with_lock_timeout()?;
    // The lock may have waited for another call, which has dismantled the cluster: so the database is looked at again.
    identity::lock_epoch()?;
    let now = look()?;
    if (now.cluster, &now.shard) != (target.cluster, &target.shard) {
        bail!(Kind::ConflictingOperationInProgress, "another session has just dismantled this cluster");
    }
    if target.shard.is_some() {
        let token = cluster_token(&target);
        refuse_prepared(&token, target.cluster)?;
        node::dismantle(true)?;
        restore_lock_timeout(&before)?;
        return Ok(json!({"msg": "this database belongs to no cluster any more", "ok": 1}));
    }
    stop_moves()?;
    let unreachable = dismantle_others(&target, &others, scope)?;
    dismantle_here(&target)?;
    restore_lock_timeout(&before)?;
    Ok(if unreachable.is_empty() {
        json!({"msg": "the cluster is dismantled", "ok": 1})
    } else {
        json!({
            "msg": "the cluster is dismantled, except for shards that could not be reached: run docshard.dismantle() there",
            "unreachable": unreachable, "ok": 1,
        })
    })
}

fn cluster_token(target: &Target) -> String {
    format!("{:016x}", target.cluster)
}

/// Prefixes of the names of this cluster's prepared transactions: those of clients, and those of moves.
fn prepared_names(token: &str, cluster: i64) -> [String; 2] {
    [format!("docshard_{token}"), format!("docshard_m_{cluster}_")]
}

/// Refuses a database with prepared transactions of the cluster: they lock the tables that are to be dropped, and ROLLBACK PREPARED cannot run
/// in this transaction.
fn refuse_prepared(token: &str, cluster: i64) -> Result<()> {
    let [one, other] = prepared_names(token, cluster);
    match here::call(&ReadPrepared { prefixes: &[&one, &other] })?.first() {
        None => Ok(()),
        Some(gid) => Err(error!(
            Kind::ConflictingOperationInProgress,
            "the cluster's prepared transaction \"{gid}\" is still here"
        )
        .with_hint(format!("ROLLBACK PREPARED {}; then run it again.", quote_literal(gid)))),
    }
}

/// Limits the wait for locks on tables; returns the previous setting.
fn with_lock_timeout() -> Result<String> {
    let rows = spi::query("SELECT pg_catalog.current_setting('lock_timeout')", &[])?;
    restore_lock_timeout("10s")?;
    Ok(rows.first().map(|row| row.text(0).to_owned()).unwrap_or_default())
}

fn restore_lock_timeout(value: &str) -> Result<()> {
    spi::query("SELECT pg_catalog.set_config('lock_timeout', $1, true)", &[Param::Text(value)]).map(drop)
}

/// Refuses to continue while a move, a change of layout or an index build runs, and blocks new ones.
fn stop_moves() -> Result<()> {
    store::lock_beginnings()?;
    if let Some(migration) = store::migrations::unfinished()?.iter().find(|m| !lock::is_free(Tag::Coordinator(m.id))) {
        return Err(error!(
            Kind::ConflictingOperationInProgress,
            "a chunk is being moved (migration {})", migration.id
        )
        .with_hint(format!(
            "docshard.stop_balancer() ends a move of the balancer, and docshard.abort_migration({}) any move.",
            migration.id
        )));
    }
    if let Some(change) = store::resharding::unfinished()?.iter().find(|c| !lock::is_free(Tag::Coordinator(c.id))) {
        return Err(error!(
            Kind::ReshardCollectionInProgress,
            "{} is in progress for {}", change.command, change.namespace
        )
        .with_hint(format!(
            "End it with docshard.abort_reshard_collection({}); then run it again.",
            quote_literal(&change.namespace)
        )));
    }
    if let Some(build) = store::index_builds::all()?.iter().find(|build| !lock::is_free(Tag::Builder(build.id))) {
        let message = format!("the index {} is being built", build.name);
        return Err(Error::new(Kind::ConflictingOperationInProgress, message)
            .with_hint("Try again when the build has ended; docshard.list_index_builds() shows its progress."));
    }
    Ok(())
}

/// Dismantles the shards; returns those that could not be reached or refused this router.
fn dismantle_others(target: &Target, others: &[(Rc<Shard>, Oid)], scope: Scope) -> Result<Vec<String>> {
    let mut sessions = Vec::new();
    let mut unreachable = Vec::new();
    // Connects to all shards before any is changed.
    for &(ref shard, oid) in others {
        match Session::open(oid) {
            Ok(session) => sessions.push((shard.name.clone(), session)),
            // An earlier call that was interrupted has dismantled this shard.
            Err(error) if error.sqlstate == REFUSED_CONNECTION && is_dismantled(oid) => {}
            // The database at that address belongs to another cluster, or is a copy.
            Err(error) if error.sqlstate == REFUSED_CONNECTION => unreachable.push(shard.name.clone()),
            Err(_) if scope.skip_unreachable => unreachable.push(shard.name.clone()),
            Err(error) => {
                return Err(error.at_shard(&shard.name).with_hint(
                    "To leave it as it is: docshard.dismantle(confirm, '{\"skipUnreachable\": true}'); later, call \
                     docshard.dismantle() there.",
                ));
            }
        }
    }
    for (name, session) in &mut sessions {
        let named = |error: Error| error.at_shard(name.as_str());
        roll_back_prepared(session, target).map_err(named)?;
        let dismantle = DismantleNode {}.statement();
        session.execute(&format!("BEGIN; SET LOCAL lock_timeout = '10s'; {dismantle}; COMMIT")).map_err(named)?;
    }
    Ok(unreachable)
}

/// True if a shard's server leads to a database that has let this router in, and belongs to no cluster any more.
pub(super) fn is_dismantled(server: Oid) -> bool {
    let found = Session::open_ungreeted(server, CONNECT_S).and_then(|mut session| HasLeftCluster {}.call(&mut session));
    matches!(found, Ok(true))
}

/// Rolls back the cluster's prepared transactions in a session's database. Their documents are dropped in any case.
fn roll_back_prepared(session: &mut Session, target: &Target) -> Result<()> {
    let [one, other] = prepared_names(&cluster_token(target), target.cluster);
    let gids = ReadPrepared { prefixes: &[&one, &other] }.call(session)?;
    for gid in &gids {
        session.execute(&format!("ROLLBACK PREPARED {}", quote_literal(gid)))?;
    }
    Ok(())
}

/// Dismantles the router's own database, and makes it a new cluster.
fn dismantle_here(target: &Target) -> Result<()> {
    // The server must lead to this database, for the session below. Without a service role, pg_restore has created the database: nothing is
    // prepared here, so the server need not be corrected.
    if service_role()?.is_some() {
        readdress_local(iter::empty())?;
    }
    let local: Option<Oid> = server::foreign_server_oid(&server_name(LOCAL));
    if let Some(local) = local
        && let Ok(mut session) = Session::open(local)
    {
        roll_back_prepared(&mut session, target)?;
    }
    let shards = cache::shards()?;
    application_roles::revoke_all_here()?;
    store::clear()?;
    for shard in shards.values() {
        if let Some(server) = &shard.server {
            access::disconnect_shard(&server.name, &puller_name(shard.id)?)?;
        }
    }
    access::drop_server(&server_name(LOCAL))?;
    node::dismantle(true)?;
    store::shards::insert_local(LOCAL, None)?;
    identity::renew()?;
    change::log("dismantle", None, &json!({"cluster": target.confirmation()}))?;
    change::announce();
    Ok(())
}
