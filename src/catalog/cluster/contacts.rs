//! The last known position of each shard: its timeline, and its counter, which the router's worker advances. Handshakes compare the
//! position, to detect a shard that was restored from an older copy.
//!
//! INVARIANT: a counter is committed on the shard, and on its synchronous standbys, before the catalog has it.
//!
//! INVARIANT: the worker replaces only the position with which it compared the shard. Meanwhile `accept_shard()` may have recorded the position
//! of another server at the same address, which the former server's answer must not replace.

use super::pending_drops;
use super::{holder, identity};
use crate::catalog::cluster::shard::Shard;
use crate::catalog::cluster::shards::names::LOCAL;
use crate::catalog::{cache, change};
use crate::pg::error::{Error, Result};
use crate::pg::fault;
use crate::pg::transaction::snapshot::ActiveSnapshot;
use crate::pg::{security::user, server, spi, transaction};
use crate::remote::{self, Cluster, ON_LOST_WRITES, OnLostWrites, RefusedHost, RemoteRow, Session};
use crate::shard::node;
use crate::store;
use crate::store::contacts::{self, Trouble};
use docshard_core::cluster::chunk_map::ShardId;
use docshard_core::cluster::handshake::{
    Donor, Hello, Member, NEWEST_PROTOCOL, NodeState, OLDEST_PROTOCOL, Position, Progress,
};
use docshard_core::cluster::standing::Standing;
use docshard_core::error::sqlstate::{READ_ONLY, REFUSED_CONNECTION};
use docshard_core::error::{Kind, bail, ensure, error};
use docshard_core::routing::protocol::Call;
use docshard_core::routing::protocol::node::Identity;
use docshard_core::routing::protocol::shard_tables::{AdvanceCounter, ReportPosition, ReportedPosition};
use pgrx::datum::TimestampWithTimeZone;
use pgrx::pg_sys::Oid;
use serde_json::{Value, json};
use std::cell::RefCell;
use std::collections::{HashMap, HashSet};

/// Called from `_PG_init`.
pub fn init() {
    remote::set_cluster(&Catalog);
}

struct Catalog;

impl Cluster for Catalog {
    fn hello(&self, server: Oid) -> Result<Option<Hello>> {
        let Some(name) = server::foreign_server_name(server) else { return Ok(None) };
        // The caller may have no right to read the catalog, or may have an old snapshot.
        let peer = user::as_extension_owner(|| {
            let _snapshot = ActiveSnapshot::latest();
            contacts::read_peer(&name)
        })?;
        let Some(peer) = peer else { return Ok(None) };
        // For a shard that is being added, and for this database itself, only the server's name is known.
        let named = || name.strip_prefix("docshard_").map(str::to_owned);
        let Some(shard) = peer.shard.or_else(named) else { return Ok(None) };
        let position = peer.timeline.zip(peer.counter).map(|(timeline, counter)| Position { timeline, counter });
        Ok(Some(Hello {
            known: position.filter(|_| shard != LOCAL),
            to: Member { cluster: peer.cluster, shard },
            router: identity::identity().to_string(),
            epoch: peer.epoch,
            refuse_lost_writes: refuses_lost_writes(),
            oldest: OLDEST_PROTOCOL,
            newest: NEWEST_PROTOCOL,
        }))
    }

    fn pending(&self, server: Oid) -> Result<Vec<String>> {
        pending_at(server)
    }

    fn next_password(&self, server: Oid) -> Result<Option<String>> {
        let Some(name) = server::foreign_server_name(server) else { return Ok(None) };
        user::as_extension_owner(|| {
            let _snapshot = ActiveSnapshot::latest();
            store::rotation::password(&name)
        })
    }

    fn same_address(&self, server: Oid) -> Result<Option<String>> {
        // Each host by itself: one of a sibling's hosts is enough.
        let addresses = |server: Oid| -> Result<Vec<Vec<(String, String)>>> {
            let mut hosts = remote::alternatives(&remote::server_options(server)?);
            for options in &mut hosts {
                options.retain(|(keyword, _)| ["host", "hostaddr", "port", "dbname"].contains(&keyword.as_str()));
                options.sort();
            }
            Ok(hosts)
        };
        let own = addresses(server)?;
        for (shard, other) in cache::remote_shards()? {
            if other != server && addresses(other)?.iter().any(|host| own.contains(host)) {
                return Ok(Some(shard.name.clone()));
            }
        }
        Ok(None)
    }

    fn require_here(&self, identity: &str) -> Result<()> {
        let cluster = user::as_extension_owner(identity::coordinator)?.cluster;
        node::check_donor(identity, &own_identity(cluster).to_string())
    }
}

/// The identity of the router's own database. It includes the running server, because a former router's database has the same name.
fn own_identity(cluster: i64) -> Donor {
    let member = Member { cluster, shard: LOCAL.to_owned() };
    Donor { member, position: Position::default(), running: Some(node::running()) }
}

/// Returns the statements that the router must run on a server's shard before any other. A copy of the router runs none.
fn pending_at(server: Oid) -> Result<Vec<String>> {
    if user::as_extension_owner(identity::standing)? != Standing::Router {
        return Ok(Vec::new());
    }
    match server::foreign_server_name(server) {
        Some(name) => pending_drops::statements(&name),
        None => Ok(Vec::new()),
    }
}

/// The identity that a donor must report to a shard that pulls from it.
/// Errors: `ShardNotFound`.
pub fn expected(shard: ShardId) -> Result<Donor> {
    let shard = cache::shard(shard)?;
    let cluster = identity::coordinator()?.cluster;
    if shard.is_local() {
        return Ok(own_identity(cluster));
    }
    let member = Member { cluster, shard: shard.name.clone() };
    Ok(Donor { member, position: contacts::position(shard.id)?.unwrap_or_default(), running: None })
}

fn refuses_lost_writes() -> bool {
    ON_LOST_WRITES.get() == OnLostWrites::Refuse
}

/// How the recorded reason begins if this database counts as a copy because a shard is ahead of its catalog.
const OLD_CATALOG: &str = "its catalog is an older copy, as from a backup: ";

/// What a shard reports of itself.
struct Report {
    position: Position,
    /// when its counter was advanced, as PostgreSQL prints it
    at: Option<String>,
}

/// Opens a session on a shard, and returns the shard's report.
fn ask(shard: &Shard, open: impl Fn(Oid) -> Result<Session>) -> Result<(Session, Report)> {
    let Some(server) = shard.oid() else {
        bail!(Kind::IllegalOperation, "the router's own database has no position: it contains the catalog");
    };
    let mut session = open(server)?;
    let reports = ReportPosition {}.call(&mut session)?;
    let ReportedPosition { identity, counted_at: at } = reports.into_iter().next().ok_or_else(no_answer)?;
    let position = identity.parse::<Donor>()?.position;
    Ok((session, Report { position, at }))
}

fn no_answer() -> Error {
    error!(Kind::HostUnreachable, "the shard does not report its position")
}

/// Compares the position in a shard's reported identity with `known`, the position that was recorded before the shard was asked. Cluster, shard
/// and epoch are not compared.
/// Errors: `HostUnreachable` without an answer, for an impossible position, and for a shard that is behind (after a promotion only if lost writes
/// are refused); `BadValue` for a malformed identity.
pub(super) fn check(shard: &str, known: Position, found: Option<&str>) -> Result<()> {
    let found = found.ok_or_else(no_answer)?.parse::<Donor>()?;
    let member = Member { shard: shard.to_owned(), ..found.member };
    let node = NodeState { member, epoch: 0, position: found.position };
    node.compare(known, refuses_lost_writes(), false)
}

/// Compares positions in a session that had no handshake; returns the error of [`check`], if it is one. None, too, if the catalog has no position
/// of the shard.
pub fn refusal(session: &mut Session, shard: ShardId, name: &str, milliseconds: i64) -> Result<Option<Error>> {
    let Some(known) = contacts::position(shard)? else { return Ok(None) };
    let found = session.call_within(&Identity {}, milliseconds)?;
    Ok(check(name, known, Some(&found)).err())
}

pub use contacts::{must_fence, set_position};

/// The position that a shard reports in a session.
pub fn reported(session: &mut Session, milliseconds: i64) -> Result<Position> {
    Ok(session.call_within(&Identity {}, milliseconds)?.parse::<Donor>()?.position)
}

/// Records that a shard is about to be taken over by the keeper.
pub fn note_fencing(shard: ShardId) -> Result<()> {
    contacts::set_must_fence(shard, true)
}

/// Records that the keeper has taken a shard over, and its position, which the other router may have advanced.
pub fn note_fenced(session: &mut Session, shard: ShardId, milliseconds: i64) -> Result<()> {
    let found = reported(session, milliseconds)?;
    let progress = contacts::position(shard)?.map_or(Progress::Current, |known| known.progress_of(found));
    if matches!(progress, Progress::Current | Progress::CatalogIsOld) {
        contacts::set_position(shard, found)?;
    }
    contacts::set_must_fence(shard, false)
}

/// The result of the worker's visit to a shard.
#[derive(Debug)]
pub enum Visit {
    /// a session in which the counter can be advanced, and its next value
    Advance(Box<Session>, i64),
    /// why the shard is refused
    Refused(String),
}

/// Compares a shard's position with the catalog's, and records the position or the mismatch. Needs a transaction of its own.
pub fn visit(shard: &Shard) -> Result<Visit> {
    // Read before the shard is asked: its answer may be older than a position that is recorded meanwhile.
    let recorded = contacts::position(shard.id)?;
    let (mut session, report) = ask(shard, Session::open_at_any_position)?;
    let known = recorded.unwrap_or(report.position);
    let progress = known.progress_of(report.position);
    let member = Member { cluster: identity::cluster_id()?, shard: shard.name.clone() };
    let node = NodeState { member, epoch: 0, position: report.position };
    if let Err(refusal) = node.compare(known, refuses_lost_writes(), true) {
        let is_ahead = progress == Progress::CatalogIsOld;
        let holder = if is_ahead { holder::other_at(&mut session, shard.id)? } else { None };
        if matches!(progress, Progress::Deposed | Progress::OldCopy | Progress::Impossible)
            && session.reject(&refusal.message)
        {
            return visit(shard);
        }
        note_trouble(shard, known, &(refusal.message.clone() + &holder::held_by(holder)), is_ahead)?;
        return Ok(Visit::Refused(refusal.into_message()));
    }
    // Recorded before the counter is advanced again: an earlier worker may have ended after the shard's commit, but before recording it.
    match recorded {
        Some(known) => replace(shard, known, report.position)?,
        None => contacts::set_position(shard.id, report.position)?,
    }
    if progress == Progress::LostWrites {
        note_lost_writes(shard, report.at.as_deref())?;
    }
    Ok(Visit::Advance(Box::new(session), report.position.counter.saturating_add(1)))
}

thread_local! {
    /// The hosts, by shard and address, that this worker has reported.
    static REPORTED: RefCell<HashSet<(String, String)>> = RefCell::default();
}

/// Reports hosts at which shards were refused, each once. Must be called outside a transaction.
pub fn report_refused_hosts() -> Result<()> {
    for RefusedHost { shard, address, why } in remote::refused_hosts() {
        if REPORTED.with_borrow_mut(|reported| reported.insert((shard.clone(), address.clone()))) {
            let reason = format!("host {address}: {why}");
            pgrx::log!("docshard: shard \"{shard}\" was refused at one of its hosts: {reason}");
            transaction::run(|| change::log("shardRefused", None, &json!({"shard": shard, "reason": reason})))?;
        }
    }
    Ok(())
}

/// Records why a shard is refused, once, unless its position is no longer `known`. If the shard is ahead of the catalog, this router stops writing.
fn note_trouble(shard: &Shard, known: Position, trouble: &str, is_ahead: bool) -> Result<()> {
    if !contacts::set_trouble(shard.id, known, trouble, is_ahead)? {
        return Ok(());
    }
    if !is_ahead {
        return change::log("shardRefused", None, &json!({"shard": shard.name, "reason": trouble}));
    }
    store::cluster::set_copy(&format!("{OLD_CATALOG}{trouble}"), None)?;
    change::announce();
    Ok(())
}

/// Records that a promoted shard lacks writes that its predecessor acknowledged after `since`, the time of the last advance of the counter that the
/// promoted shard has. None: from the beginning.
fn note_lost_writes(shard: &Shard, since: Option<&str>) -> Result<()> {
    let Some(Trouble { lost_from, lost_to: Some(to), .. }) = contacts::set_lost_writes(shard.id, since)? else {
        return Ok(());
    };
    let from = lost_from.as_deref().unwrap_or("the beginning");
    pgrx::log!(
        "docshard: shard \"{}\" was promoted without all acknowledged writes: those from {from} to {to} may be lost",
        shard.name
    );
    change::log("lostWrites", None, &json!({"shard": shard.name, "from": from, "to": to}))
}

/// Begins to advance a shard's counter, in a session that [`visit`] has opened. In a transaction.
pub fn start_advancing(session: &mut Session, shard: ShardId, counter: i64) -> Result<()> {
    let (cluster_id, epoch) = (identity::cluster_id()?, contacts::epoch(shard)?);
    let (counted_at, router) = (&*now()?, &*identity::identity().to_string());
    // Commits by itself, and waits for the shard's synchronous standbys.
    AdvanceCounter { counter, counted_at, epoch, router, cluster_id }.start(session)
}

/// Records the counter that a shard has committed.
/// Errors: `HostUnreachable` if the shard has not advanced its counter.
pub fn note_advanced(shard: &Shard, counter: i64, rows: &[RemoteRow]) -> Result<()> {
    let identities = AdvanceCounter::decode(rows)?;
    let identity = identities.first().ok_or_else(|| {
        error!(
            Kind::HostUnreachable,
            "shard \"{}\" has not advanced its counter: another router has, or the shard is not this router's yet",
            shard.name
        )
    })?;
    fault::point("count.answered")?;
    let Position { timeline, .. } = identity.parse::<Donor>()?.position;
    replace(shard, Position { timeline, counter: counter - 1 }, Position { timeline, counter })
}

/// Replaces the position that the worker has recorded last.
/// Errors: `HostUnreachable` if another is recorded.
fn replace(shard: &Shard, known: Position, position: Position) -> Result<()> {
    ensure!(
        contacts::replace_position(shard.id, known, position)?,
        Kind::HostUnreachable,
        "another position of shard \"{}\" was recorded meanwhile",
        shard.name
    );
    Ok(())
}

/// The time in a format that PostgreSQL reads under every `DateStyle`.
fn now() -> Result<String> {
    let sql =
        "SELECT pg_catalog.to_char(pg_catalog.clock_timestamp() AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI:SS.US\"+00\"')";
    let rows = spi::query(sql, &[])?;
    rows.first().map(|row| row.text(0).to_owned()).ok_or_else(no_answer)
}

/// Accepts a refused shard: records its current position as the known one, and returns it. If the shard is behind the catalog, also returns the
/// period from which writes may be missing there.
/// Errors: `ShardNotFound`; those of connecting; `IllegalOperation` for the router's own database; `HostUnreachable` for an impossible
/// position; `NotWritablePrimary` at a copy of the router, and if the catalog is older than the shard. A router with an older catalog needs a
/// take-over, which compares the catalog with all shards and makes them refuse other routers.
pub fn accept(name: &str) -> Result<Value> {
    identity::require_router()?;
    let shard = cache::shard_named(name)?;
    // Locked, so that the worker cannot record a position that is newer than the shard's answer.
    let known = contacts::lock_position(shard.id)?;
    // Of several hosts, `open` chooses one in the expected state. If none is, a host in any state is asked; its position is checked below.
    let refused = |error: &Error| [REFUSED_CONNECTION, READ_ONLY].contains(&error.sqlstate);
    let (_, report) = match ask(&shard, Session::open) {
        Err(error) if refused(&error) => ask(&shard, Session::open_at_any_position)?,
        asked => asked?,
    };
    fault::point("accept.asked")?;
    if report.position.is_impossible() {
        bail!(Kind::HostUnreachable, "shard \"{name}\" reports an impossible position: {}", report.position);
    }
    let progress = known.map_or(Progress::Current, |known| known.progress_of(report.position));
    if progress == Progress::CatalogIsOld {
        let found = report.position;
        let message =
            format!("shard \"{name}\" is at {found}: this router's catalog is an older copy, and takes no writes");
        return Err(Error::new(Kind::NotWritablePrimary, message).with_hint(
            "Connect to the cluster's newer router, if there is one. If that is lost: docshard.take_over_cluster().",
        ));
    }
    let lost = matches!(progress, Progress::LostWrites | Progress::OldCopy | Progress::Deposed);
    contacts::set_position(shard.id, report.position)?;
    contacts::clear_lost_writes(shard.id)?;
    change::announce();
    let mut said = json!({"shard": name, "timeline": report.position.timeline, "counter": report.position.counter});
    if lost {
        said["lostFrom"] = report.at.into();
        said["lostTo"] = now()?.into();
    }
    change::log("acceptShard", None, &said)?;
    Ok(said)
}

/// A notice about a shard for `status()`; None if nothing is wrong.
pub fn notes(shard: ShardId) -> Result<Option<String>> {
    let Some(trouble) = contacts::trouble(shard)? else { return Ok(None) };
    let lost = trouble.lost_to.map(|to| {
        let from = trouble.lost_from.as_deref().unwrap_or("the beginning");
        format!("writes from {from} to {to} may be lost; docshard.accept_shard() removes this notice")
    });
    Ok(trouble.trouble.or(lost))
}

/// When the position of each shard was last recorded.
pub fn last() -> Result<HashMap<ShardId, TimestampWithTimeZone>> {
    // A timestamp is the number of microseconds since the year 2000.
    let timestamp = |microseconds: i64| TimestampWithTimeZone::try_from(microseconds).ok();
    Ok(contacts::all()?.iter().filter_map(|contact| Some((contact.shard, timestamp(contact.at)?))).collect())
}
