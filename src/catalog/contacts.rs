//! How far each shard has come: the rows of `docshard_catalog.contacts`, what is said at a shard first, and the counter that the
//! worker advances.
//!
//! INVARIANT: a counter is committed at the shard, and at its synchronous standbys, before it is noted here.

use super::model::{Place, Shard};
use super::pending_drops;
use super::shards::LOCAL;
use super::{cache, change, cluster};
use crate::pg::error::{Error, Result};
use crate::pg::spi::param::Param;
use crate::pg::transaction::snapshot::ActiveSnapshot;
use crate::pg::{security::user, server, spi};
use crate::protocol::Call;
use crate::protocol::node::Identity;
use crate::remote::refusal::REFUSED_CONNECTION;
use crate::remote::{self, Cluster, ON_LOST_WRITES, OnLostWrites, Row, Session};
use docshard_core::cluster::chunk_map::ShardId;
use docshard_core::cluster::handshake::{
    Donor, Hello, Member, NEWEST_PROTOCOL, Node, OLDEST_PROTOCOL, Position, Progress,
};
use docshard_core::cluster::standing::Standing;
use docshard_core::error::Kind;
use pgrx::datum::TimestampWithTimeZone;
use pgrx::pg_sys::Oid;
use serde_json::{Value, json};
use std::collections::HashMap;

/// Called from `_PG_init`.
pub fn init() {
    remote::set_cluster(&Catalog);
}

struct Catalog;

impl Cluster for Catalog {
    fn hello(&self, server: Oid) -> Result<Option<Hello>> {
        let Some(name) = server::foreign_server_name(server) else { return Ok(None) };
        // Who connects may not read the catalog, or reads it as it was when a transaction began.
        let rows = user::as_extension_owner(|| {
            let _snapshot = ActiveSnapshot::latest();
            spi::read(
                "SELECT c.id, c.epoch, s.name, k.timeline, k.counter FROM docshard_catalog.cluster c \
                 LEFT JOIN docshard_catalog.shards s ON s.server = $1::pg_catalog.name \
                 LEFT JOIN docshard_catalog.contacts k ON k.shard_id = s.id",
                &[Param::Text(&name)],
            )
        })?;
        let Some(row) = rows.first() else { return Ok(None) };
        // A server whose shard is being added has its name only, as has the one that leads to this database.
        let Some(shard) = row.opt_text(2).or_else(|| name.strip_prefix("docshard_")) else { return Ok(None) };
        let known = row.get(3).map(|_| Position { timeline: row.i64(3), counter: row.i64(4) });
        Ok(Some(Hello {
            to: Member { cluster: row.i64(0), shard: shard.to_owned() },
            router: cluster::identity().to_string(),
            epoch: row.i64(1),
            known: known.filter(|_| shard != LOCAL),
            refuse_lost_writes: refuses_lost_writes(),
            oldest: OLDEST_PROTOCOL,
            newest: NEWEST_PROTOCOL,
        }))
    }

    fn pending(&self, server: Oid) -> Result<Vec<String>> {
        pending_at(server)
    }
}

/// What is to be done at a server's shard before anything else. A copy of the router does nothing there.
fn pending_at(server: Oid) -> Result<Vec<String>> {
    if user::as_extension_owner(cluster::standing)? != Standing::Router {
        return Ok(Vec::new());
    }
    match server::foreign_server_name(server) {
        Some(name) => pending_drops::statements(&name),
        None => Ok(Vec::new()),
    }
}

/// What a shard must say of itself to another one, which pulls from it.
///
/// # Errors
/// `ShardNotFound`.
pub fn expected(shard: ShardId) -> Result<Donor> {
    let name = cache::shard(shard)?.name.clone();
    let rows = spi::query(
        "SELECT c.id, k.timeline, k.counter FROM docshard_catalog.cluster c \
         LEFT JOIN docshard_catalog.contacts k ON k.shard_id = $1",
        &[Param::Int4(shard)],
    )?;
    let row = rows.first().ok_or_else(|| Error::new(Kind::NotYetInitialized, "this cluster has no identity"))?;
    let position =
        row.get(1).map_or_else(Position::default, |_| Position { timeline: row.i64(1), counter: row.i64(2) });
    Ok(Donor { member: Member { cluster: row.i64(0), shard: name }, position })
}

fn refuses_lost_writes() -> bool {
    ON_LOST_WRITES.get() == OnLostWrites::Refuse
}

/// What `docshard_catalog.cluster.copy` begins with in a router whose catalog is the older copy.
const OLD_CATALOG: &str = "its catalog is an older copy, as from a backup: ";

/// What a shard tells of itself.
struct Found {
    position: Position,
    /// when its counter was advanced, as PostgreSQL prints it
    at: Option<String>,
}

/// A session at a shard, however far that has come, and what it tells.
fn ask(shard: &Shard, open: impl Fn(Oid) -> Result<Session>) -> Result<(Session, Found)> {
    let Place::Remote(server) = shard.place else {
        return Err(Error::new(Kind::IllegalOperation, "the router's own database is as old as the catalog"));
    };
    let mut session = open(server)?;
    let sql =
        format!("SELECT {}, counted_at::pg_catalog.text FROM docshard_data.node", Identity::SIGNATURE.invocation());
    let rows = session.query(&sql, &[])?;
    let row = rows.first().ok_or_else(no_answer)?;
    let position = position_of(row)?;
    let at = row.text(1).map(str::to_owned);
    Ok((session, Found { position, at }))
}

fn no_answer() -> Error {
    Error::new(Kind::HostUnreachable, "the shard does not know how far it has come")
}

/// The position in the first column, which is the answer to [`Identity`].
fn position_of(row: &Row) -> Result<Position> {
    Ok(row.text(0).ok_or_else(no_answer)?.parse::<Donor>()?.position)
}

/// How far the catalog knows a shard to have come; None if it knows nothing.
fn known(shard: ShardId) -> Result<Option<Position>> {
    let rows = spi::query(
        "SELECT timeline, counter FROM docshard_catalog.contacts WHERE shard_id = $1",
        &[Param::Int4(shard)],
    )?;
    Ok(rows.first().map(|row| Position { timeline: row.i64(0), counter: row.i64(1) }))
}

/// How far the catalog knows each shard to have come.
///
/// # Errors
/// Internal ones.
pub(super) fn positions() -> Result<HashMap<ShardId, Position>> {
    let rows = spi::query("SELECT shard_id, timeline, counter FROM docshard_catalog.contacts", &[])?;
    Ok(rows.iter().map(|row| (row.i32(0), Position { timeline: row.i64(1), counter: row.i64(2) })).collect())
}

/// Refuses a shard, by what it says of itself, as a handshake of who reads does. `known` is how far it was before it was asked.
///
/// # Errors
/// `HostUnreachable` for an old copy.
pub(super) fn check(shard: &str, known: Position, found: Option<&str>) -> Result<()> {
    let found = found.ok_or_else(no_answer)?.parse::<Donor>()?;
    let member = Member { shard: shard.to_owned(), ..found.member };
    let node = Node { member, epoch: 0, position: found.position };
    Ok(node.compare(known, refuses_lost_writes(), false)?)
}

/// Why a session, which has said no hello, is to be refused: it is at an old copy of its shard.
///
/// # Errors
/// That of asking.
pub fn refusal(session: &mut Session, shard: ShardId, name: &str, milliseconds: i64) -> Result<Option<Error>> {
    let Some(known) = known(shard)? else { return Ok(None) };
    let found = Identity::decode(&session.query_within(&Identity::statement(), &[], milliseconds)?)?;
    Ok(check(name, known, Some(&found)).err())
}

/// What the worker finds at a shard.
#[derive(Debug)]
pub enum Visit {
    /// a session in which the counter can be advanced, and its next value
    Advance(Box<Session>, i64),
    /// why the shard is refused
    Refused(String),
}

/// Looks how far a shard has come, and notes it if something is wrong. In a transaction of its own.
///
/// # Errors
/// That of connecting.
pub fn visit(shard: &Shard) -> Result<Visit> {
    let (session, found) = ask(shard, Session::open_at_any_position)?;
    let known = known(shard.id)?.unwrap_or(found.position);
    let progress = known.progress_of(found.position);
    let member = Member { cluster: super::shards::cluster_id()?, shard: shard.name.clone() };
    let node = Node { member, epoch: 0, position: found.position };
    if let Err(refusal) = node.compare(known, refuses_lost_writes(), true) {
        if matches!(progress, Progress::Deposed | Progress::OldCopy) && session.reject() {
            return visit(shard);
        }
        note_trouble(shard, &refusal.message, progress == Progress::CatalogIsOld)?;
        return Ok(Visit::Refused(refusal.message));
    }
    // Noted before the next one, also what a worker that has ended could not note any more.
    note(shard.id, found.position)?;
    if progress == Progress::LostWrites {
        note_lost_writes(shard, found.at.as_deref())?;
    }
    Ok(Visit::Advance(Box::new(session), found.position.counter.saturating_add(1)))
}

/// Notes why a shard is refused, once. If it is ahead of the catalog this router is to write nothing any more.
fn note_trouble(shard: &Shard, trouble: &str, is_ahead: bool) -> Result<()> {
    let noted = spi::execute(
        "UPDATE docshard_catalog.contacts SET trouble = $2, is_ahead = $3 \
         WHERE shard_id = $1 AND trouble IS NULL",
        &[Param::Int4(shard.id), Param::Text(trouble), Param::Bool(is_ahead)],
    )?;
    if noted.processed == 0 {
        return Ok(());
    }
    if !is_ahead {
        return change::log("shardRefused", None, &json!({"shard": shard.name, "reason": trouble}));
    }
    spi::execute(
        "UPDATE docshard_catalog.cluster SET copy = $1 WHERE copy IS NULL",
        &[Param::Text(&format!("{OLD_CATALOG}{trouble}"))],
    )?;
    change::announce();
    Ok(())
}

/// Notes that a promoted shard lacks what its predecessor had acknowledged since its counter was advanced last.
fn note_lost_writes(shard: &Shard, since: Option<&str>) -> Result<()> {
    let rows = spi::query(
        "UPDATE docshard_catalog.contacts SET lost_from = least(lost_from, $2::pg_catalog.timestamptz), \
           lost_to = pg_catalog.clock_timestamp() \
         WHERE shard_id = $1 RETURNING lost_from::pg_catalog.text, lost_to::pg_catalog.text",
        &[Param::Int4(shard.id), Param::OptText(since)],
    )?;
    let Some(row) = rows.first() else { return Ok(()) };
    let (from, to) = (row.opt_text(0).unwrap_or("the beginning"), row.text(1));
    pgrx::log!(
        "docshard: shard \"{}\" was promoted without all acknowledged writes: those from {from} to {to} may be lost",
        shard.name
    );
    change::log("lostWrites", None, &json!({"shard": shard.name, "from": from, "to": to}))
}

/// Begins to advance a shard's counter, in a session that [`visit`] has opened. In a transaction.
///
/// # Errors
/// That of sending.
pub fn start_advancing(session: &mut Session, counter: i64) -> Result<()> {
    let rows = spi::query(
        "SELECT id, epoch, pg_catalog.clock_timestamp()::pg_catalog.text FROM docshard_catalog.cluster",
        &[],
    )?;
    let row = rows.first().ok_or_else(|| Error::new(Kind::NotYetInitialized, "this cluster has no identity"))?;
    // Commits by itself, and waits for the shard's synchronous standbys.
    session.start(
        &format!(
            "UPDATE docshard_data.node SET counter = $1, counted_at = $2::pg_catalog.timestamptz, epoch = $3, router = $4 \
             WHERE cluster_id = $5 AND epoch <= $3 AND counter < $1 RETURNING {}",
            Identity::SIGNATURE.invocation()
        ),
        &[
            Param::Int8(counter),
            Param::Text(row.text(2)),
            Param::Int8(row.i64(1)),
            Param::Text(&cluster::identity().to_string()),
            Param::Int8(row.i64(0)),
        ],
    )
}

/// Notes how far a shard has come, which has committed that.
///
/// # Errors
/// `HostUnreachable` if it has not.
pub fn note_advanced(shard: &Shard, counter: i64, rows: &[Row]) -> Result<()> {
    let row = rows.first().ok_or_else(|| {
        Error::new(
            Kind::HostUnreachable,
            format!("another router has advanced the counter of shard \"{}\"", shard.name),
        )
    })?;
    note(shard.id, Position { timeline: position_of(row)?.timeline, counter })
}

/// Notes how far a shard is: what the catalog knew of it does not count any more.
///
/// # Errors
/// Internal ones.
pub(super) fn note(shard: ShardId, position: Position) -> Result<()> {
    spi::execute(
        "INSERT INTO docshard_catalog.contacts (shard_id, timeline, counter, at) \
         SELECT id, $2, $3, pg_catalog.clock_timestamp() FROM docshard_catalog.shards WHERE id = $1 \
         ON CONFLICT (shard_id) DO UPDATE SET timeline = excluded.timeline, counter = excluded.counter, at = excluded.at, \
           trouble = NULL, is_ahead = false",
        &[Param::Int4(shard), Param::Int8(position.timeline), Param::Int8(position.counter)],
    )?;
    Ok(())
}

/// Goes on with a shard as it is; answers what is known to be missing there, if anything is.
///
/// # Errors
/// `ShardNotFound`; that of connecting; `IllegalOperation` for the router's own database.
pub fn accept(name: &str) -> Result<Value> {
    let shard = cache::shard_named(name)?;
    // The one of its hosts that is as it should be, if there is one.
    let refused = |error: &Error| error.sqlstate == REFUSED_CONNECTION || &error.sqlstate == b"25006";
    let (_, found) = match ask(&shard, Session::open) {
        Err(error) if refused(&error) => ask(&shard, Session::open_at_any_position)?,
        asked => asked?,
    };
    let progress = known(shard.id)?.map_or(Progress::Current, |known| known.progress_of(found.position));
    let lost = matches!(progress, Progress::LostWrites | Progress::OldCopy | Progress::Deposed);
    note(shard.id, found.position)?;
    let now = spi::query(
        "UPDATE docshard_catalog.contacts SET lost_from = NULL, lost_to = NULL WHERE shard_id = $1 \
         RETURNING pg_catalog.clock_timestamp()::pg_catalog.text",
        &[Param::Int4(shard.id)],
    )?;
    spi::execute(
        "UPDATE docshard_catalog.cluster SET copy = NULL WHERE pg_catalog.starts_with(copy, $1) \
         AND NOT EXISTS (SELECT FROM docshard_catalog.contacts WHERE is_ahead)",
        &[Param::Text(OLD_CATALOG)],
    )?;
    change::announce();
    let mut said = json!({"shard": name, "timeline": found.position.timeline, "counter": found.position.counter});
    if lost {
        said["lostFrom"] = found.at.into();
        said["lostTo"] = now.first().map(|row| row.text(0)).into();
    }
    // Until the last shard is accepted this router changes nothing else.
    if spi::query("SELECT FROM docshard_catalog.cluster WHERE copy IS NOT NULL", &[])?.is_empty() {
        change::log("acceptShard", None, &said)?;
    }
    Ok(said)
}

/// What people should know of a shard, if anything.
///
/// # Errors
/// Internal ones.
pub fn notes(shard: ShardId) -> Result<Option<String>> {
    let rows = spi::query(
        "SELECT trouble, lost_from::pg_catalog.text, lost_to::pg_catalog.text FROM docshard_catalog.contacts \
         WHERE shard_id = $1",
        &[Param::Int4(shard)],
    )?;
    Ok(rows.first().and_then(|row| match (row.opt_text(0), row.opt_text(2)) {
        (Some(trouble), _) => Some(trouble.to_owned()),
        (None, Some(to)) => Some(format!(
            "writes from {} to {to} may be lost; docshard.accept_shard() ends this notice",
            row.opt_text(1).unwrap_or("the beginning")
        )),
        (None, None) => None,
    }))
}

/// When each shard was last heard of, as far as the worker noted it.
///
/// # Errors
/// Internal ones.
pub fn last() -> Result<HashMap<ShardId, TimestampWithTimeZone>> {
    let rows = spi::query(
        "SELECT shard_id, (extract(epoch FROM at) * 1000000)::int8 - 946684800000000 FROM docshard_catalog.contacts",
        &[],
    )?;
    // A timestamp is the number of microseconds since the year 2000.
    let timestamp = |microseconds: i64| TimestampWithTimeZone::try_from(microseconds).ok();
    Ok(rows.iter().filter_map(|row| Some((row.i32(0), timestamp(row.i64(1))?))).collect())
}
