//! Take-over: a copy of the router becomes the cluster's router, and shards refuse the previous one.
//!
//! On each shard, in a transaction of its own, the epoch is raised and the other router's sessions are terminated; from then on the
//! shard refuses that router. The catalog changes last: after a failure half way, no router is accepted by all shards, and repeating
//! the call completes it. The keeper does the same on an unreachable shard as soon as it reaches it.
//!
//! INVARIANT: one shard cannot prevent a take-over. A shard that gives an invalid answer, or none in time, counts as unreachable. The
//! catalog records that such a shard must be *fenced*: the other router's sessions there must end, even if the shard's epoch has been
//! raised.
//!
//! `docshard_core::cluster::take_over` decides which epochs are written. A shard that reports an impossible epoch counts as unreachable. If
//! a shard's epoch is far ahead, the shard may be damaged, or other routers may have taken over: then the take-over is refused, unless it
//! is forced.
//!
//! If this catalog was restored from a backup that is older than a shard's password, the shard refuses the router's login. With the login
//! of a superuser there, the take-over first reads and compares the shard's state as that role. Only when nothing more can refuse the
//! take-over, it gives the service role the password that this catalog has, in the transaction that raises the epoch.
//!
//! If this catalog was restored, the other router may have decided transactions and moves that this catalog does not have. So prepared
//! transactions on the shards are left to the administrator, and new numbers are higher than all that the other router has assigned.
//! If shards have newer metadata than this catalog, the take-over is refused, unless it is forced. Then the shards' version checks
//! refuse statements on what is newer, until the shard is accepted.
//!
//! What the other router has changed in its own database alone shows no difference at shards. So its keeper notes there the newest entry of its
//! changelog that changes definitions. A catalog whose changelog ends before that entry lacks this change. The entries of a router that has taken
//! over are numbered from its epoch on, so that none has a number that another router has given.

use super::{holder, identity};
use crate::catalog::cluster::identity::check_router;
use crate::catalog::cluster::shard::Shard;
use crate::catalog::cluster::shard_state::Known;
use crate::catalog::cluster::shards::Login;
use crate::catalog::cluster::shards::repair::{let_router_in, open_as_superuser};
use crate::catalog::cluster::shards::servers::readdress_local;
use crate::catalog::collections::collection::random_token;
use crate::catalog::{cache, change};
use crate::pg::error::{Error, Result};
use crate::pg::{fault, server};
use crate::remote::{Session, hung};
use crate::store;
use docshard_core::cluster::chunk_map::ShardId;
use docshard_core::cluster::handshake::{Hello, Member, NEWEST_PROTOCOL, OLDEST_PROTOCOL, Position, Welcome};
use docshard_core::cluster::prepared_name::Coordinator;
use docshard_core::cluster::take_over::{self, Report};
use docshard_core::error::sqlstate::class;
use docshard_core::error::{Kind, bail, error};
use docshard_core::routing::protocol::Call;
use docshard_core::routing::protocol::node::{ReadPrepared, SayHello};
use docshard_core::routing::protocol::shard_tables::{
    FoundRelation, LastNumbers, NodeRow, RaiseEpoch, ReadDefinitions, ReadLastNumbers, ReadNode, ReadRelations,
};
use docshard_core::sql::param::Param;
use pgrx::pg_sys::Oid;
use serde_json::json;
use std::rc::Rc;
use std::time::{Duration, Instant};

/// How long the other router's sessions at a shard may take to end.
const ENDING: Duration = Duration::from_secs(10);

/// How to take over.
#[derive(Debug, Default)]
pub struct TakeOver {
    /// take over even if shards have newer metadata than this catalog
    pub force: bool,
    /// a superuser's login at shards that refuse the router's
    pub login: Option<Login>,
    /// such logins for single shards, each with the shard's name; they have precedence
    pub logins: Vec<(String, Login)>,
}

impl TakeOver {
    fn login(&self, shard: &str) -> Option<&Login> {
        self.logins.iter().find(|(name, _)| name == shard).map(|(_, login)| login).or(self.login.as_ref())
    }
}

/// The result of a take-over.
#[derive(Debug)]
pub struct TakenOver {
    /// the router's epoch from now on
    pub epoch: i64,
    /// shards that could not be reached yet, with their errors
    pub unreachable: Vec<(String, String)>,
    /// shards at which the router's login was repaired
    pub repaired: Vec<String>,
    /// shards, each with the name of a prepared transaction of another router there
    pub left: Vec<(String, String)>,
    /// shards, each with metadata that is newer there than in this catalog
    pub newer: Vec<(String, String)>,
    /// the new address of this database, if it had another router's
    pub local_address: Option<String>,
}

/// How long a shard may take to report its router, in milliseconds.
const ANSWER_MS: i64 = 3_000;

/// How long a shard may take to list what it has, in milliseconds.
const READ_MS: i64 = 60_000;

/// The longest time of any statement at a shard.
const STATEMENT: Duration = Duration::from_secs(60);

/// Seconds that connecting to a host may take.
const CONNECT_S: u32 = 10;

/// A shard that answers.
struct Reached {
    shard: Rc<Shard>,
    session: Session,
    /// the shard's server, if the session is a superuser's because the router's login is refused
    refuses_router: Option<Oid>,
    epochs: Report,
    counter: i64,
    /// the highest numbers of a collection and of an index there that are plausible
    numbers: [i64; 2],
    found: Vec<FoundRelation>,
    /// the newest entry of the changelog that changes definitions, as a router has noted it there
    definitions: Option<i64>,
    /// describes the session of another router that holds the shard's lock
    holder: Option<String>,
}

/// Makes this database the cluster's router.
///
/// # Errors
/// `Unauthorized` for a login without password, if the caller is no superuser; `IllegalOperation` on a shard, and if a shard has newer
/// metadata; `OperationNotSupportedInTransaction`; `HostUnreachable` if no shard answers, or one refuses a given login;
/// `ConflictingOperationInProgress` if another database takes over at the same time.
pub fn take_over(options: &TakeOver) -> Result<TakenOver> {
    check_allowed(options)?;
    let own = identity::lock_epoch()?;
    let coordinator = identity::coordinator()?;
    let _limit = hung::limit(STATEMENT);
    // A router that is locked out may lose all its shards. By force it can then remove them as lost.
    let needs_shard = !(options.force && identity::is_locked_out()?);
    let (reached, mut unreachable) = reach_all(options, coordinator.cluster, needs_shard)?;
    let newer = newer(&reached, options.force)?;
    let reports: Vec<Report> = reached.iter().map(|one| one.epochs).collect();
    let Some(epoch) = take_over::epoch_of_router(own, &reports, random()) else {
        bail!(Kind::IllegalOperation, "the cluster has been taken over too often: its epoch is {own}");
    };
    if reports.iter().any(|report| report.found >= epoch) && !store::contacts::have_epochs()? {
        let message = "a shard reports a higher epoch than this catalog can have for it";
        return Err(Error::new(Kind::IllegalOperation, message)
            .with_hint("Run ALTER EXTENSION docshard UPDATE, and call the function again."));
    }
    let (mut left, mut repaired, mut taken) = (Vec::new(), Vec::new(), Vec::new());
    for mut one in reached {
        let router = Coordinator { epoch: take_over::epoch_at_shard(epoch, one.epochs, random()), ..coordinator };
        let left_there = take(&mut one, router);
        // The epoch is recorded even after an error: the shard may have it.
        note_epoch(&one.shard, router, epoch)?;
        match left_there {
            Ok(gids) => {
                if one.refuses_router.is_some() {
                    repaired.push(one.shard.name.clone());
                }
                left.extend(gids);
                taken.push(one);
            }
            Err(error) => unreachable.push((one.shard.name.clone(), error.into_message(), one.shard.id)),
        }
    }
    if needs_shard && taken.is_empty() {
        return Err(no_shard(&unreachable, DAMAGED_HINT));
    }
    for (_, _, shard) in &unreachable {
        leave_to_keeper(*shard, epoch)?;
    }
    for (of, table) in ["collections", "indexes"].into_iter().enumerate() {
        store::skip_numbers(table, taken.iter().map(|one| one.numbers[of]).max().unwrap_or(0))?;
    }
    store::number_moves_from(take_over::first_move(epoch))?;
    store::skip_numbers("changelog", take_over::first_move(epoch))?;
    let local_address = readdress_local(taken.iter_mut().map(|one| &mut one.session))?;
    identity::become_router(epoch)?;
    let late: Vec<&str> = unreachable.iter().map(|(shard, ..)| shard.as_str()).collect();
    let router = identity::identity().to_string();
    let lacking: Vec<String> = newer.iter().map(|(shard, what)| format!("{shard}: {what}")).collect();
    let details = json!({"router": router, "epoch": epoch, "unreachable": late, "loginsRepaired": repaired,
        "newerAtShards": lacking, "localAddress": local_address});
    change::log("takeOver", None, &details)?;
    let unreachable = unreachable.into_iter().map(|(shard, error, _)| (shard, error)).collect();
    Ok(TakenOver { epoch, unreachable, repaired, left, newer, local_address })
}

fn check_allowed(options: &TakeOver) -> Result<()> {
    check_router()?;
    if server::in_transaction_block() {
        let message = "a cluster cannot be taken over inside a transaction block";
        return Err(Error::new(Kind::OperationNotSupportedInTransaction, message));
    }
    for (shard, login) in &options.logins {
        cache::shard_named(shard)?;
        login.check_allowed()?;
    }
    options.login.as_ref().map_or(Ok(()), Login::check_allowed)
}

/// Shards that could not be taken over, each with its error.
type Unreachable = Vec<(String, String, ShardId)>;

/// Reads the reports of all shards. Returns the shards whose reports are plausible, and the others with their errors.
/// Errors: `HostUnreachable` if there are shards, no report is plausible, and one is needed.
fn reach_all(options: &TakeOver, cluster: i64, needs_shard: bool) -> Result<(Vec<Reached>, Unreachable)> {
    let (mut reached, mut unreachable, mut is_password) = (Vec::new(), Vec::new(), false);
    for (shard, server) in cache::remote_shards()? {
        let opened = open(&shard, server, options.login(&shard.name))?;
        match opened.and_then(|(session, refuses)| reach(&shard, session, refuses, cluster)) {
            Ok(found) => reached.push(found),
            // A cancel or a timeout of the caller is raised, and does not reach this branch. A refused login does not prevent the take-over:
            // add_shard can repair the login afterwards, but only on the router.
            Err(error) => {
                is_password |= is_refused(&error);
                unreachable.push((shard.name.clone(), error.into_message(), shard.id));
            }
        }
    }
    if needs_shard && reached.is_empty() && !unreachable.is_empty() {
        return Err(no_shard(&unreachable, if is_password { LOGIN_HINT } else { DAMAGED_HINT }));
    }
    Ok((reached, unreachable))
}

fn no_shard(unreachable: &Unreachable, hint: &str) -> Error {
    let why = unreachable.first().map_or("there is none", |(_, error, _)| error);
    error!(Kind::HostUnreachable, "no shard can be taken over: {why}").with_hint(hint)
}

/// Takes a shard over; returns the prepared transactions that another router has left there, each with the shard's name.
fn take(one: &mut Reached, router: Coordinator) -> Result<Vec<(String, String)>> {
    match one.refuses_router {
        Some(server) => take_with_login(one, server, router)?,
        None => raise_epoch(&mut one.session, &one.shard.name, router)?,
    }
    end_others(&mut one.session, &one.shard.name, ENDING)?;
    let left = left_at(one, router.cluster)?;
    let position = position_at(one, router)?;
    store::contacts::set_position(one.shard.id, position)?;
    store::contacts::set_must_fence(one.shard.id, false)?;
    Ok(left)
}

/// Records the epoch that this router has at a shard, if it is higher than the router's own epoch.
fn note_epoch(shard: &Shard, at_shard: Coordinator, own: i64) -> Result<()> {
    if at_shard.epoch > own { store::contacts::set_epoch(shard.id, at_shard.epoch) } else { Ok(()) }
}

/// Records that the keeper is to take a shard over. The former router may have an epoch at this shard that is not lower than `own`; then a
/// higher one is recorded for this router.
fn leave_to_keeper(shard: ShardId, own: i64) -> Result<()> {
    store::contacts::set_must_fence(shard, true)?;
    let known = store::contacts::epoch(shard)?;
    if known < own || !store::contacts::have_epochs()? {
        return Ok(());
    }
    store::contacts::set_epoch(shard, known + 1 + random())
}

/// A random part of an epoch.
fn random() -> i64 {
    random_token().rem_euclid(take_over::STEP)
}

/// The largest number of differences that an error shows of a shard.
const SHOWN: usize = 5;

/// Describes what shards have that is newer than this catalog; each description comes with the shard's name.
/// Errors: `IllegalOperation` if there is anything, unless `force`.
fn newer(reached: &[Reached], force: bool) -> Result<Vec<(String, String)>> {
    let known = Known::read()?;
    let last = store::changelog::newest()?;
    let (mut all, mut shown, mut at) = (Vec::new(), Vec::new(), None);
    for one in reached {
        let counter = store::contacts::position(one.shard.id)?.map(|position| position.counter);
        let is_ahead = one.epochs.is_ahead()
            || counter.is_some_and(|counter| one.counter > counter.saturating_add(Position::IN_FLIGHT));
        let mut newer = known.newer(one.shard.id, &one.found, is_ahead)?;
        if one.epochs.is_far_ahead() {
            newer
                .insert(0, format!("its router has the epoch {}, far ahead of {}", one.epochs.found, one.epochs.known));
        }
        if let Some(noted) = one.definitions.filter(|noted| *noted > last) {
            newer.insert(
                0,
                format!(
                    "its router has changed definitions at entry {noted} of the changelog, which ends with {last} here"
                ),
            );
        }
        let (Some(_), name) = (newer.first(), &one.shard.name) else { continue };
        let more = newer.len().saturating_sub(SHOWN);
        let more = if more == 0 { String::new() } else { format!(", and {more} more") };
        let counter = counter.map_or_else(|| "unknown".to_owned(), |counter| counter.to_string());
        shown.push(format!(
            "shard \"{name}\" (counter {}, in this catalog {counter}): {}{more}",
            one.counter,
            newer[..newer.len().min(SHOWN)].join(", ")
        ));
        at = at.or(one.holder.as_deref());
        all.extend(newer.into_iter().map(|what| (name.clone(), what)));
    }
    if force || all.is_empty() {
        return Ok(all);
    }
    Err(error!(
        Kind::IllegalOperation,
        "another router has changed the cluster since this catalog was copied: {}",
        shown.join("; ")
    )
    .with_hint(format!(
        "Connect to that router{}, or restore a later backup of it. Only if it is lost for ever, or a shard's report is damaged: \
         docshard.take_over_cluster('{{\"force\": true}}').",
        holder::place(at.unwrap_or_default())
    )))
}

const LOGIN_HINT: &str = "If this catalog is older than the last docshard.rotate_service_password(), the shards have another password. With \
    the login of a superuser at the shards this call sets it again: docshard.take_over_cluster('{\"user\": \"…\", \"password\": \"…\"}').";

fn is_refused(error: &Error) -> bool {
    error.is_of_class(class::AUTHORIZATION)
}

/// Opens a session at a shard: as the router, or as the superuser of `login` if the router's login is refused. In the second case the
/// session comes with the server. The inner error is that of the router's login, the outer one that of the superuser's.
fn open(shard: &Shard, server: Oid, login: Option<&Login>) -> Result<Result<(Session, Option<Oid>)>> {
    Ok(match (Session::open_ungreeted(server, CONNECT_S), login) {
        (Err(error), Some(login)) if is_refused(&error) => Ok((open_as_superuser(shard, server, login)?, Some(server))),
        (opened, _) => opened.map(|session| (session, None)),
    })
}

/// Assigns a shard to this router and repairs the router's login there, in one transaction: a new password alone would lock out the present
/// router if the shard still belonged to it. Then logs in as the router.
fn take_with_login(one: &mut Reached, server: Oid, router: Coordinator) -> Result<()> {
    one.session.execute("BEGIN")?;
    let_router_in(server, &mut one.session)?;
    fault::point("takeover.let_in")?;
    raise_epoch(&mut one.session, &one.shard.name, router)?;
    one.session.execute("COMMIT")?;
    one.session = Session::open_ungreeted(server, CONNECT_S)?;
    one.session.execute(LOCK_TIMEOUT)
}

const LOCK_TIMEOUT: &str = "SET lock_timeout = '10s'";

/// Reads what a shard has.
/// Errors: `HostUnreachable` if the database that was reached is not that shard, or reports what no shard can have; errors of the shard.
fn reach(shard: &Rc<Shard>, mut session: Session, refuses_router: Option<Oid>, cluster: i64) -> Result<Reached> {
    session.execute(LOCK_TIMEOUT)?;
    let NodeRow { epoch, counter, .. } = node_at(&mut session, &shard.name, cluster)?;
    let epochs = report_of(shard.id, &shard.name, epoch)?;
    check_counter(&shard.name, counter)?;
    let definitions =
        session.call_within(&ReadDefinitions {}, ANSWER_MS)?.into_iter().find_map(|noted| noted.definitions);
    let found = session.call_within(&ReadRelations {}, READ_MS)?;
    let holder = holder::other_at(&mut session, shard.id)?;
    let last = ReadLastNumbers {
        collections: take_over::last_number_that_counts(store::last_number("collections")?),
        indexes: take_over::last_number_that_counts(store::last_number("indexes")?),
    };
    let LastNumbers { collection, index } = session.call_within(&last, READ_MS)?;
    let numbers = [collection, index];
    Ok(Reached {
        shard: Rc::clone(shard),
        session,
        refuses_router,
        epochs,
        counter,
        numbers,
        found,
        definitions,
        holder,
    })
}

fn check_counter(shard: &str, counter: i64) -> Result<()> {
    let position = Position { timeline: 0, counter };
    if position.is_impossible() {
        return Err(error!(Kind::HostUnreachable, "shard \"{shard}\" reports the impossible counter {counter}")
            .with_hint(DAMAGED_HINT));
    }
    Ok(())
}

const DAMAGED_HINT: &str = "If the shard is damaged, restore it from a backup, or remove it as lost: docshard.remove_shard(name, '{\"lost\": true}'). \
    ALTER SERVER docshard_… OPTIONS (SET port '1') keeps it away from this router meanwhile. If this is an older copy of the router, connect to the router.";

/// The epoch of the router to which a shard belongs, and the epoch that the catalog has for this router there.
/// Errors: `HostUnreachable` if the database that was reached is not that shard, or reports an epoch that no router can have; errors of the
/// shard.
pub fn epochs_at(session: &mut Session, id: ShardId, shard: &str, cluster: i64) -> Result<Report> {
    let NodeRow { epoch, .. } = node_at(session, shard, cluster)?;
    report_of(id, shard, epoch)
}

fn report_of(id: ShardId, shard: &str, found: i64) -> Result<Report> {
    let report = Report { known: store::contacts::epoch(id)?, found };
    if report.is_impossible() { Err(impossible_epoch(shard, report.found)) } else { Ok(report) }
}

/// The error for a shard that reports an impossible epoch.
fn impossible_epoch(shard: &str, epoch: i64) -> Error {
    error!(Kind::HostUnreachable, "shard \"{shard}\" reports the impossible epoch {epoch} of its router")
        .with_hint(DAMAGED_HINT)
}

/// What a shard stores about itself.
/// Errors: `HostUnreachable` if the database that was reached is not that shard; errors of the shard.
fn node_at(session: &mut Session, shard: &str, cluster: i64) -> Result<NodeRow> {
    let mut rows = session.call_within(&ReadNode {}, ANSWER_MS)?.into_iter();
    rows.find(|row| row.cluster_id == cluster && row.shard == shard).ok_or_else(|| {
        let message = format!("the database that was reached is not shard \"{shard}\" of this cluster");
        Error::new(Kind::HostUnreachable, message)
    })
}

/// The position of a shard that this router has taken over.
fn position_at(reached: &mut Reached, router: Coordinator) -> Result<Position> {
    let hello = Hello {
        to: Member { cluster: router.cluster, shard: reached.shard.name.clone() },
        router: identity::identity().to_string(),
        epoch: router.epoch,
        known: None,
        refuse_lost_writes: false,
        oldest: OLDEST_PROTOCOL,
        newest: NEWEST_PROTOCOL,
    };
    let position = Welcome::from(SayHello::of(&hello, true).call(&mut reached.session)?).position;
    check_counter(&reached.shard.name, position.counter)?;
    Ok(position)
}

/// Assigns a shard to this router, and terminates the sessions of all other routers there, and earlier sessions of this router. Waits at
/// most `ending` for them to end.
/// Errors: `ConflictingOperationInProgress` if the shard belongs to a later router; `OperationFailed` if sessions do not end in time;
/// errors of the shard.
pub fn fence(session: &mut Session, shard: &str, epochs: Report, router: Coordinator, ending: Duration) -> Result<()> {
    if epochs.found < epochs.known {
        raise_epoch(session, shard, Coordinator { epoch: epochs.known, ..router })?;
        fault::point("takeover.raised")?;
    }
    end_others(session, shard, ending)
}

fn raise_epoch(session: &mut Session, shard: &str, router: Coordinator) -> Result<()> {
    let Coordinator { cluster: cluster_id, epoch } = router;
    let raise = RaiseEpoch { epoch, cluster_id, router: &identity::identity().to_string() };
    if raise.call(session)?.len() == 1 {
        return Ok(());
    }
    Err(error!(
        Kind::ConflictingOperationInProgress,
        "shard \"{shard}\" does not take a higher epoch, or another database has just taken it over"
    ))
}

/// Terminates the sessions of routers at a shard that began before its epoch was raised.
fn end_others(session: &mut Session, shard: &str, ending: Duration) -> Result<()> {
    // Sessions that start later have the new epoch, or the shard refuses them.
    let until: Vec<String> = session.query("SELECT pg_catalog.clock_timestamp()::pg_catalog.text", &[])?;
    let until = until.concat();
    let began = Instant::now();
    loop {
        let staying: Vec<bool> = session.query(
            "SELECT pg_catalog.pg_terminate_backend(pid) FROM pg_catalog.pg_stat_activity \
             WHERE usename = session_user AND datname = pg_catalog.current_database() AND pid <> pg_catalog.pg_backend_pid() \
             AND backend_start < $1::pg_catalog.timestamptz",
            &[Param::Text(&until)],
        )?;
        if staying.is_empty() {
            return Ok(());
        }
        if began.elapsed() > ending {
            let number = staying.len();
            let message =
                format!("{number} sessions of the other router at shard \"{shard}\" do not end: terminate them there");
            return Err(Error::new(Kind::OperationFailed, message));
        }
        server::sleep_ms(20);
    }
}

fn left_at(reached: &mut Reached, cluster: i64) -> Result<Vec<(String, String)>> {
    let prefixes = [&*Coordinator { cluster, epoch: 0 }.cluster_prefix(), &*format!("docshard_m_{cluster}_")];
    let gids = ReadPrepared { prefixes: &prefixes }.call(&mut reached.session)?;
    Ok(gids.into_iter().map(|gid| (reached.shard.name.clone(), gid)).collect())
}
