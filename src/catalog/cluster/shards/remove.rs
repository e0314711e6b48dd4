//! Removes a shard: drained first, or lost for good.

use crate::catalog::cluster::dismantle::is_dismantled;
use crate::catalog::cluster::identity::check_may_change;
use crate::catalog::cluster::nodes::call_on;
use crate::catalog::cluster::shard::{Server, Shard};
use crate::catalog::cluster::shards::add::stop_draining;
use crate::catalog::cluster::shards::names::puller_name;
use crate::catalog::collections::zones;
use crate::catalog::{cache, change};
use crate::pg::error::Result;
use crate::remote::Session;
use crate::shard::access;
use crate::store;
use docshard_core::error::sqlstate::REFUSED_CONNECTION;
use docshard_core::error::{Kind, bail};
use docshard_core::routing::protocol::Call;
use docshard_core::routing::protocol::access::{DisconnectShard, LeaveCluster};
use docshard_core::routing::protocol::table::DropTable;
use docshard_core::sql::quote::quote_literal;
use pgrx::pg_sys::Oid;
use serde_json::json;
use std::rc::Rc;

/// The progress of a removal.
#[derive(Debug)]
pub enum Removal {
    /// draining has begun
    Started(Remaining),
    /// the shard is being drained
    Ongoing(Remaining),
    /// the shard is gone
    Completed,
}

/// What remains on a shard that is being drained.
#[derive(Debug)]
pub struct Remaining {
    /// chunks, and moves that are not complete
    pub chunks: i64,
    /// those of the chunks that are marked as jumbo
    pub jumbo: i64,
    /// the databases whose primary shard it is; the administrator must move or drop them
    pub databases: Vec<String>,
    /// unsharded collections of other databases; the administrator must move or drop them, as the balancer moves chunks only
    pub collections: Vec<String>,
}

impl Remaining {
    fn of(shard: &Shard) -> Result<Self> {
        Ok(Self {
            chunks: store::chunks::count_of_shard(shard.id)? + store::migrations::count_unfinished_at(shard.id)?,
            jumbo: store::chunks::count_of_jumbo(shard.id)?,
            databases: store::databases::of_primary(shard.id)?,
            collections: store::collections::unsharded_away(shard.id)?,
        })
    }

    /// True if nothing remains.
    pub fn is_nothing(&self) -> bool {
        self.chunks == 0 && self.databases.is_empty() && self.collections.is_empty()
    }
}

/// Removes a shard: the first call begins to drain it, later calls report the progress, and the last call removes it.
/// Errors: `ShardNotFound`, `IllegalOperation` for the last shard, `ZoneStillInUse` for the last one of a zone with ranges.
pub fn remove(name: &str) -> Result<Removal> {
    check_may_change()?;
    zones::lock()?;
    let shard = cache::shard_named(name)?;
    store::shards::lock_all()?;
    let remaining = Remaining::of(&shard)?;
    if !shard.draining {
        require_another(&shard)?;
        zones::refuse_last(&shard, None)?;
        store::shards::set_draining(name, true)?;
        change::log("removeShard.start", None, &json!({"shard": name}))?;
        change::announce();
        return Ok(Removal::Started(remaining));
    }
    if !remaining.is_nothing() {
        return Ok(Removal::Ongoing(remaining));
    }
    take_away(&shard)?;
    change::log("removeShard", None, &json!({"shard": name}))?;
    change::announce();
    Ok(Removal::Completed)
}

/// What remains on a shard that is being drained.
/// Errors: `ShardNotFound`; `IllegalOperation` for a shard that is not being drained.
pub fn remaining(name: &str) -> Result<Remaining> {
    let shard = cache::shard_named(name)?;
    if !shard.draining {
        bail!(Kind::IllegalOperation, "shard {name} is not currently draining");
    }
    Remaining::of(&shard)
}

/// Lets a shard that is being drained stay.
/// Errors: `ShardNotFound`.
pub fn stop(name: &str) -> Result<()> {
    check_may_change()?;
    cache::shard_named(name)?;
    stop_draining(name)
}

/// Checks that a lost shard may be removed, and locks the zones and all shards.
/// Errors: those of [`remove`].
pub fn begin_removal(name: &str) -> Result<Rc<Shard>> {
    check_may_change()?;
    zones::lock()?;
    let shard = cache::shard_named(name)?;
    store::shards::lock_all()?;
    require_another(&shard)?;
    zones::refuse_lost(&shard)?;
    Ok(shard)
}

fn require_another(shard: &Shard) -> Result<()> {
    if store::shards::count_others(shard.id)? == 0 {
        bail!(Kind::IllegalOperation, "Operation not allowed because it would remove the last shard");
    }
    Ok(())
}

/// Removes a lost shard from the catalog, with the decisions that were pending for it. Other shards that cannot be reached keep a
/// useless foreign server.
pub fn forget_lost(shard: &Shard) -> Result<()> {
    let Some(Server { name: server, .. }) = &shard.server else { return Ok(()) };
    store::transactions::delete_of_server(server)?;
    store::rotation::delete(server)?;
    let puller = puller_name(shard.id)?;
    for (_, oid) in cache::remote_shards()?.into_iter().filter(|(other, _)| other.id != shard.id) {
        let _ =
            Session::open(oid).and_then(|mut session| DisconnectShard { server, puller: &puller }.call(&mut session));
    }
    store::shards::delete(shard.id)?;
    access::disconnect_shard(server, &puller)
}

/// Removes everything that [`add`](super::add::add) created. The shard has no documents left.
///
/// Other nodes change in transactions of their own, because the caller's transaction drops the foreign server through which it would have to
/// commit them. If the caller's transaction rolls back, the call can be repeated: the dropped tables were empty, and a shard that has left the
/// cluster is recognised.
fn take_away(shard: &Shard) -> Result<()> {
    let placed = store::placements::delete_of_shard(shard.id)?;
    placed.iter().try_for_each(|&collection| change::touch(collection))?;
    let Some(Server { name: server, oid }) = &shard.server else {
        placed.iter().try_for_each(|&collection| call_on(shard, &DropTable { collection }).map(drop))?;
        return store::shards::delete(shard.id);
    };
    let mut others = other_sessions(shard)?;
    let leaving = open_unless_left(shard, *oid)?;
    let puller = puller_name(shard.id)?;
    for (name, session) in &mut others {
        (DisconnectShard { server, puller: &puller }).call(session).map_err(|error| error.at_shard(name.as_str()))?;
    }
    if let Some(mut session) = leaving {
        session.execute("BEGIN; SET LOCAL lock_timeout = '10s'")?;
        for &collection in &placed {
            DropTable { collection }.call(&mut session)?;
        }
        LeaveCluster {}.call(&mut session)?;
        session.execute("COMMIT")?;
    }
    store::shards::delete(shard.id)?;
    access::disconnect_shard(server, &puller)
}

/// Sessions at all other shards, with their names.
fn other_sessions(shard: &Shard) -> Result<Vec<(String, Session)>> {
    let mut sessions = Vec::new();
    for (other, oid) in cache::remote_shards()?.into_iter().filter(|(other, _)| other.id != shard.id) {
        let session = open_unless_left(&other, oid)?;
        sessions.extend(session.map(|session| (other.name.clone(), session)));
    }
    Ok(sessions)
}

/// A session at a shard; None if the shard has left the cluster in an earlier removal whose transaction then failed.
fn open_unless_left(shard: &Shard, server: Oid) -> Result<Option<Session>> {
    match Session::open(server) {
        Err(error) if error.sqlstate == REFUSED_CONNECTION && is_dismantled(server) => Ok(None),
        Err(error) => Err(error.at_shard(&shard.name).with_hint(format!(
            "All shards must be reachable. One that is lost, or whose database has left the cluster, is removed by \
             docshard.remove_shard({}, '{{\"lost\": true}}').",
            quote_literal(&shard.name)
        ))),
        opened => opened.map(Some),
    }
}
