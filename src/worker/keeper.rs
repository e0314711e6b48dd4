//! A database's keeper: holds the router's lock on every shard, each in a session of its own, and confirms it regularly.
//!
//! It is a separate process, as the worker may be busy for a long time. It informs the worker by local locks: [`Tag::Kept`] for
//! each shard whose lock it holds, and [`FREE`] while no shard's lock is held by another router. If another router keeps one,
//! this database is a copy of the router: the keeper stores that, and ends. While more shards refuse the router's login than accept it,
//! the router is locked out: the keeper stores that, and keeps trying to log in, so that it notices when shards accept the login again. See
//! `docshard_core::cluster::router_lock`.
//!
//! It also notes at each shard whose lock it holds which entry of the changelog is the newest that changes definitions. It does that instead of
//! asking for the lock, in the first round after the change: the shard takes any statement as a sign of life. A shard that does
//! not note it is asked again after [`REFUSED`].
//!
//! INVARIANT: a shard can delay the others only while a connection to it is opened ([`CONNECT_S`]), once in each round: answers
//! are polled.

use super::own_process::{FREE, KEEPER, WORKER, enter};
use crate::catalog::cache;
use crate::catalog::cluster::{contacts, holder, identity, takeover};
use crate::pg::error::Result;
use crate::pg::process::settings::limit_lock_waits;
use crate::pg::{process, transaction};
use crate::remote::{Session, hung};
use crate::storage::lock::{self, Mode, Tag};
use crate::store;
use docshard_core::cluster::chunk_map::ShardId;
use docshard_core::cluster::prepared_name::Coordinator;
use docshard_core::cluster::router_lock::{Claim, LockAnswer, Lockout, SILENCE, Verdict};
use docshard_core::cluster::standing::{LOCKED_OUT, Standing, shortened};
use docshard_core::cluster::take_over::Report;
use docshard_core::error::sqlstate::class;
use docshard_core::error::{Kind, ensure};
use docshard_core::routing::protocol::Call;
use docshard_core::routing::protocol::node::HoldRouterLock;
use docshard_core::routing::protocol::shard_tables::{NoteDefinitions, ReadDefinitions};
use pgrx::pg_sys::Oid;
use pgrx::{GucContext, GucFlags, GucRegistry, GucSetting};
use std::collections::BTreeMap;
use std::ffi::CStr;
use std::time::{Duration, Instant};

/// The interval at which a shard is asked for the lock.
const BEAT: Duration = Duration::from_secs(1);

/// How long a round waits for answers, in milliseconds.
const ANSWER_MS: i64 = 200;

/// How long a new session waits for its first answer, in milliseconds.
const FIRST_ANSWER_MS: i64 = 3_000;

/// The time after a failure until a shard is tried again.
const PAUSE: Duration = Duration::from_secs(3);

/// The time after which a shard that has not noted a change of definitions is asked again.
const REFUSED: Duration = Duration::from_secs(60);

/// The time without an answer after which the session is closed.
const LOST: Duration = Duration::from_secs(10);

/// How long this process waits for a lock in the catalog.
const LOCK_PATIENCE: &CStr = c"1s";

/// The settings of its sessions; they override those of the role and the database. A wait for a lock must end before [`STATEMENT`], after which
/// the session is closed, and with it the router's lock.
const SETTINGS: &str = "SELECT pg_catalog.set_config(name, value, false) FROM (VALUES ('statement_timeout', '0'), \
    ('lock_timeout', '1s'), ('idle_session_timeout', '0'), ('application_name', 'docshard keeper')) AS s (name, value)";

/// The connection timeout of a host, in seconds.
const CONNECT_S: u32 = 3;

/// The longest time of a statement. Together with [`CONNECT_S`], [`CONNECT`] and [`ENDING`] it bounds how long a shard
/// delays the others. This sum must be less than the silence after which the other shards give the lock to another
/// router.
const STATEMENT: Duration = Duration::from_secs(3);

/// If connecting to a shard has taken longer than this, the sessions of other routers there are not ended, and the connection is tried
/// again later.
const CONNECT: Duration = Duration::from_secs(3);

/// How long sessions of another router may take to end.
const ENDING: Duration = Duration::from_secs(2);

/// The setting `docshard.router_lock_timeout`, in milliseconds.
static PATIENCE: GucSetting<i32> = GucSetting::<i32>::new(30_000);

pub(super) fn init() {
    GucRegistry::define_int_guc(
        c"docshard.router_lock_timeout",
        c"Sets how long another router may hold a shard's lock before this one concludes that it is a copy.",
        c"A holder that has been silent for two thirds of this time is considered dead.",
        &PATIENCE,
        3_000,
        3_600_000,
        GucContext::Sighup,
        GucFlags::UNIT_MS,
    );
}

fn patience() -> Duration {
    Duration::from_millis(u64::try_from(PATIENCE.get()).unwrap_or(30_000))
}

#[derive(Default)]
struct Kept {
    name: String,
    server: Oid,
    claim: Claim,
    session: Option<Session>,
    /// The router's epoch when the session was opened.
    epoch: i64,
    /// The router's epoch at the shard.
    epoch_there: i64,
    /// The unanswered statement, and the time when it was sent.
    asked: Option<(Question, Instant)>,
    noted: Noted,
    /// After a failure, the time of the next attempt.
    due: Option<Instant>,
    logged: String,
    /// The error of the last login, if the shard has refused it.
    refusal: Option<String>,
    /// Sessions of another router may go on at the shard, although the shard has this router's epoch.
    must_end_others: bool,
    /// This process holds [`Tag::Kept`] for the shard.
    is_kept: bool,
}

type Shards = BTreeMap<ShardId, Kept>;

/// What a shard is asked.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Question {
    /// to give or renew the lock
    Lock,
    /// which change of definitions is noted there
    Read,
    /// to note this one
    Note(i64),
}

/// What a shard has noted about definitions.
#[derive(Clone, Copy, Default)]
enum Noted {
    /// The session has not asked yet.
    #[default]
    Unknown,
    /// The newest change, if there is one.
    There(Option<i64>),
    /// At this time it did not note a change: it has a release before 0.4.0, belongs to another router, or has answered with an error.
    Refused(Instant),
}

/// The newest change of definitions, and the generation of the catalog in which it was read.
#[derive(Default)]
struct Definitions {
    change: i64,
    read_in: Option<u64>,
    logged: String,
}

impl Definitions {
    /// Reads the newest change, unless the catalog is unchanged.
    fn update(&mut self) -> Result<()> {
        // Taken before the changelog is read: a change that commits meanwhile begins a new generation.
        let generation = Some(cache::generation()?);
        if self.read_in != generation {
            self.change = match store::changelog::newest_definitions(self.change)? {
                // Somebody has deleted that entry.
                0 => store::changelog::newest_definitions(0)?,
                newest => newest,
            };
            self.read_in = generation;
        }
        Ok(())
    }
}

/// The reason why a round is the last one.
enum StopReason {
    /// Another database is the router: the reason, and the epoch of this one.
    Copy(String, i64),
    Idle,
}

/// Runs until SIGTERM, or until the worker has ended, the database is being dropped, or this is no router with other shards.
pub(super) fn run(database: Oid) {
    let mine = || Ok(enter() && lock::try_acquire_for_session(KEEPER, Mode::Exclusive));
    if !matches!(transaction::run(mine), Ok(true)) {
        return;
    }
    // Neither a shard that answers slowly nor a locked table of the catalog may keep this process from renewing the shards' locks.
    let _limit = hung::limit(STATEMENT);
    limit_lock_waits(LOCK_PATIENCE);
    let (began, mut shards, mut is_free, mut logged) = (Instant::now(), Shards::new(), false, String::new());
    let (mut are_left_out, mut lockout, mut definitions) = (false, (0, Lockout::default()), Definitions::default());
    while !process::is_being_dropped(database) {
        let rounded = if are_left_out { Ok(()) } else { transaction::run(store::leave_out_lost_numbers) };
        are_left_out = rounded.is_ok();
        match rounded.and_then(|()| round(&mut shards, &mut lockout, &mut definitions, began)) {
            Ok(None) => {}
            Ok(Some(StopReason::Idle)) => return,
            Ok(Some(StopReason::Copy(reason, epoch))) => return become_copy(&reason, epoch),
            Err(error) => log_once(&mut logged, &error.message),
        }
        let free = are_left_out && !shards.values().any(|kept| kept.claim.blocks_router());
        is_free = hold(FREE, is_free, free);
        let is_new = |kept: &Kept| kept.session.is_none() && kept.due.is_none();
        process::sleep(if shards.values().any(is_new) { Duration::from_millis(1) } else { BEAT });
    }
}

fn log_once(logged: &mut String, message: &str) {
    if logged != message {
        pgrx::log!("docshard keeper: {message}");
        message.clone_into(logged);
    }
}

fn become_copy(reason: &str, epoch: i64) {
    match transaction::run(|| identity::become_copy(reason, epoch)) {
        Ok(false) => {}
        Ok(true) => pgrx::log!("docshard keeper: this database is a copy of its cluster's router: {reason}"),
        // The next keeper tries again.
        Err(error) => pgrx::log!("docshard keeper: {}", error.message),
    }
}

/// Records whether shards lock the router out. See [`Lockout`].
fn judge(shards: &Shards, lockout: &mut Lockout, began: Instant, epoch: i64) -> Result<()> {
    let refusing: Vec<&Kept> = shards.values().filter(|kept| kept.refusal.is_some()).collect();
    let letting_in = shards.values().filter(|kept| kept.session.is_some() && kept.claim.is_answered()).count();
    let verdict = lockout.note(began.elapsed(), refusing.len(), letting_in, patience());
    let is_out = transaction::run(identity::is_locked_out)?;
    match (verdict, refusing.first()) {
        (Verdict::LockedOut, Some(first)) if !is_out => {
            let names: Vec<&str> = refusing.iter().map(|kept| kept.name.as_str()).collect();
            let why = first.refusal.as_deref().unwrap_or_default();
            let reason = format!("{LOCKED_OUT}shard \"{}\" ({})", names.join("\", \""), shortened(why));
            if transaction::run(|| identity::lock_out(&reason, epoch))? {
                pgrx::log!("docshard keeper: this router writes nothing, as {reason}");
            }
        }
        (Verdict::LetIn, _) if is_out && transaction::run(identity::let_in)? => {
            pgrx::log!("docshard keeper: shards accept this router's login again");
        }
        _ => {}
    }
    Ok(())
}

/// Takes or releases a lock; returns whether this process then holds it.
fn hold(tag: Tag, is_held: bool, wanted: bool) -> bool {
    match (is_held, wanted) {
        // Fails while another process tests the lock; the next round tries again.
        (false, true) => lock::try_acquire_for_session(tag, Mode::Exclusive),
        (true, false) => {
            lock::release_for_session(tag, Mode::Exclusive);
            false
        }
        (same, _) => same,
    }
}

fn round(
    shards: &mut Shards,
    lockout: &mut (i64, Lockout),
    definitions: &mut Definitions,
    began: Instant,
) -> Result<Option<StopReason>> {
    let Some(router) = transaction::run(|| update(shards))? else { return Ok(Some(StopReason::Idle)) };
    if lockout.0 != router.epoch {
        // What shards refused before this database took the cluster over does not count.
        *lockout = (router.epoch, Lockout::default());
        shards.values_mut().for_each(|kept| kept.refusal = None);
    }
    if let Some(end) = connect_one(shards, router) {
        return Ok(Some(end));
    }
    // Somebody may have locked the changelog, which must not cost the shards' locks.
    if let Err(error) = transaction::run(|| definitions.update()) {
        log_once(&mut definitions.logged, &error.message);
    }
    let asked = Instant::now();
    shards.values_mut().for_each(|kept| ask(kept, router, definitions.change));
    for (&shard, kept) in &mut *shards {
        let left = ANSWER_MS.saturating_sub(i64::try_from(asked.elapsed().as_millis()).unwrap_or(ANSWER_MS));
        let Some(answer) = answer_of(kept, left) else { continue };
        if kept.claim.is_held() && answer != LockAnswer::Held {
            pgrx::log!("docshard keeper: the lock on shard \"{}\" is lost", kept.name);
        }
        if let (LockAnswer::Taken(holder), false) = (&answer, kept.claim.blocks_router()) {
            pgrx::log!("docshard keeper: the lock on shard \"{}\" is held by {holder}", kept.name);
        }
        if let Some(holder) = kept.claim.note(began.elapsed(), answer, patience()) {
            let reason = format!("another router holds the lock on shard \"{}\": {holder}", kept.name);
            return Ok(Some(StopReason::Copy(reason, router.epoch)));
        }
        kept.is_kept = hold(Tag::Kept(shard), kept.is_kept, kept.claim.is_held());
    }
    judge(shards, &mut lockout.1, began, router.epoch)?;
    Ok(None)
}

/// Updates the list of shards from the catalog; None if there are none.
fn update(shards: &mut Shards) -> Result<Option<Coordinator>> {
    if !lock::is_excluded(WORKER) || matches!(identity::standing()?, Standing::Copy(_)) {
        return Ok(None);
    }
    let (known, router) = (cache::remote_shards()?, identity::coordinator()?);
    shards.retain(|id, kept| {
        let stays = known.iter().any(|(shard, server)| shard.id == *id && *server == kept.server);
        kept.is_kept = hold(Tag::Kept(*id), kept.is_kept, kept.is_kept && stays);
        stays
    });
    for (shard, server) in known {
        let id = shard.id;
        let new = || Kept { name: shard.name.clone(), server, ..Kept::default() };
        let kept = shards.entry(id).or_insert_with(new);
        // If this router's epoch has changed, the session is opened again: that gives the shard the new epoch.
        if kept.session.as_ref().is_some_and(|session| !session.is_usable() || kept.epoch != router.epoch) {
            kept.is_kept = hold(Tag::Kept(id), kept.is_kept, false);
            *kept = Kept { must_end_others: kept.must_end_others, ..new() };
        }
    }
    Ok(if shards.is_empty() { None } else { Some(router) })
}

/// Opens one missing session, if one is due.
fn connect_one(shards: &mut Shards, router: Coordinator) -> Option<StopReason> {
    let now = Instant::now();
    let is_due = |kept: &Kept| kept.session.is_none() && kept.due.is_none_or(|due| due <= now);
    let (&shard, kept) = shards.iter_mut().filter(|(_, kept)| is_due(kept)).min_by_key(|(_, kept)| kept.due)?;
    let opened = open(shard, kept, router, now);
    match opened {
        Ok((_, epochs, holder)) if epochs.is_ahead() => {
            Some(StopReason::Copy(replaced(&kept.name, epochs, holder), router.epoch))
        }
        Ok((session, epochs, _)) => {
            kept.session = Some(session);
            kept.refusal = None;
            kept.epoch = router.epoch;
            kept.epoch_there = epochs.known;
            kept.noted = Noted::Unknown;
            kept.asked = None;
            kept.due = None;
            None
        }
        Err(error) => {
            log_once(&mut kept.logged, &error.message);
            lose(kept);
            kept.refusal = error.is_of_class(class::AUTHORIZATION).then(|| error.into_message());
            None
        }
    }
}

/// Opens a session, and takes the shard over if it belongs to another router, or sessions of one may go on there.
fn open(
    shard: ShardId,
    kept: &mut Kept,
    router: Coordinator,
    began: Instant,
) -> Result<(Session, Report, Option<String>)> {
    let (mut session, epochs, must_fence) = transaction::run(|| {
        let mut session = Session::open_ungreeted(kept.server, CONNECT_S)?;
        let epochs = takeover::epochs_at(&mut session, shard, &kept.name, router.cluster)?;
        session.query_within::<String>(SETTINGS, &[], FIRST_ANSWER_MS)?;
        // The lock on a replaced primary does not protect the current one.
        if let Some(old) = contacts::refusal(&mut session, shard, &kept.name, FIRST_ANSWER_MS)? {
            session.reject(&old.message);
            return Err(old);
        }
        Ok((session, epochs, kept.must_end_others || contacts::must_fence(shard)?))
    })?;
    if epochs.found < epochs.known || must_fence && !epochs.is_ahead() {
        ensure!(began.elapsed() < CONNECT, Kind::HostUnreachable, "shard \"{}\" is too slow", kept.name);
        kept.must_end_others = true;
        // Durable before the epoch is raised: this process may end before the other router's sessions do.
        transaction::run(|| contacts::note_fencing(shard))?;
        transaction::run(|| {
            takeover::fence(&mut session, &kept.name, epochs, router, ENDING)?;
            contacts::note_fenced(&mut session, shard, FIRST_ANSWER_MS)
        })?;
        kept.must_end_others = false;
    }
    let holder = if epochs.is_ahead() { transaction::run(|| holder::other_at(&mut session, shard))? } else { None };
    Ok((session, epochs, holder))
}

fn replaced(shard: &str, epochs: Report, holder: Option<String>) -> String {
    let Report { known, found } = epochs;
    format!(
        "shard \"{shard}\" belongs to a router with the epoch {found}, this one has {known}{}",
        holder::held_by(holder)
    )
}

/// Closes the session, which is opened again later.
fn lose(kept: &mut Kept) -> LockAnswer {
    kept.session = None;
    kept.asked = None;
    kept.due = Some(Instant::now() + PAUSE);
    LockAnswer::Unreachable
}

/// Asks for the lock, or notes definitions, unless an answer is still due. This also shows the shard that this router is alive.
fn ask(kept: &mut Kept, router: Coordinator, definitions: i64) {
    let question = question(kept, definitions);
    let (Some(session), None) = (&mut kept.session, kept.asked) else { return };
    let (cluster_id, epoch) = (router.cluster, kept.epoch_there);
    let started = match question {
        Question::Lock => {
            let silence = i64::try_from(patience().mul_f64(SILENCE).as_millis()).unwrap_or(i64::MAX);
            HoldRouterLock { silence_ms: silence }.start(session)
        }
        Question::Read => ReadDefinitions {}.start(session),
        Question::Note(definitions) => NoteDefinitions { definitions, cluster_id, epoch }.start(session),
    };
    if started.is_ok() {
        kept.asked = Some((question, Instant::now()));
    } else {
        lose(kept);
    }
}

/// The next question for a shard, if `definitions` is the newest change of definitions. Without the lock this may be a copy, which notes
/// nothing.
fn question(kept: &Kept, definitions: i64) -> Question {
    match kept.noted {
        _ if !kept.claim.is_held() => Question::Lock,
        Noted::Unknown => Question::Read,
        Noted::There(noted) if noted.unwrap_or(0) == definitions => Question::Lock,
        Noted::There(_) => Question::Note(definitions),
        Noted::Refused(at) if at.elapsed() < REFUSED => Question::Lock,
        Noted::Refused(_) => Question::Read,
    }
}

/// Waits up to `milliseconds` for the shard's answer. None if none has arrived and the shard still counts as reachable, or if the question was
/// not about the lock.
fn answer_of(kept: &mut Kept, milliseconds: i64) -> Option<LockAnswer> {
    let (Some(session), Some((question, asked))) = (&mut kept.session, kept.asked) else {
        return Some(LockAnswer::Unreachable);
    };
    let rows = match transaction::guarded(|| session.poll_finish(milliseconds)) {
        Ok(Some(rows)) => rows,
        Ok(None) if asked.elapsed() < LOST => return None,
        Err(error) if question != Question::Lock && session.is_usable() => {
            log_once(&mut kept.logged, &error.message);
            kept.asked = None;
            kept.noted = Noted::Refused(Instant::now());
            return None;
        }
        Ok(None) | Err(_) => return Some(lose(kept)),
    };
    kept.asked = None;
    let refused = Noted::Refused(Instant::now());
    match question {
        Question::Lock => {
            let Ok(holder) = HoldRouterLock::decode(&rows) else { return Some(lose(kept)) };
            return Some(holder.map_or(LockAnswer::Held, |holder| LockAnswer::Taken(shortened(&holder))));
        }
        Question::Read => {
            let noted = ReadDefinitions::decode(&rows).unwrap_or_default().into_iter().find(|noted| noted.is_known);
            kept.noted = noted.map_or(refused, |noted| Noted::There(noted.definitions));
        }
        Question::Note(_) if rows.is_empty() => kept.noted = refused,
        Question::Note(definitions) => kept.noted = Noted::There(Some(definitions)),
    }
    None
}
