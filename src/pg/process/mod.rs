//! Background workers: how they start, wait, are woken, and show what they do.
//!
//! All permanent workers have one entry point, whose argument is the database's OID, or 0 for the worker without a database. Jobs have
//! their own entry point (`job`). The kind of a worker is its `backend_type` in `pg_stat_activity`. [`define`], called in the postmaster,
//! sets the function that the permanent workers run.

pub mod access_ring;
pub mod child;
pub mod job;
pub mod mailbox;
pub mod settings;
pub mod timeout;

use crate::pg::error::Result;
use crate::pg::object::catalog;
use crate::pg::transaction;
use crate::pg::version::handle_signal;
use pgrx::bgworkers::BackgroundWorkerBuilder;
use pgrx::prelude::*;
use pgrx::{IntoDatum, PgLwLock, pg_sys};
use std::cell::RefCell;
use std::ffi::CStr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// The largest number of databases whose workers can be woken; further workers are not woken.
const SLOTS: usize = 32;

// PostgreSQL's own handlers, without pgrx's guard: they only set flags, and a signal handler must not run a guard.
unsafe extern "C-unwind" {
    fn die(signal: i32);
    fn SignalHandlerForConfigReload(signal: i32);
}

/// The database and process id of each database's worker; then the process id of the worker without a database, and how often workers
/// were woken.
type Board = ([(u32, i32); SLOTS], (i32, u32));

// SAFETY: no other shared memory has this name.
static BOARD: PgLwLock<Board> = unsafe { PgLwLock::new(c"docshard workers") };
static MAIN: OnceLock<Main> = OnceLock::new();

/// The function that a worker runs.
pub type Main = fn(database: Option<pg_sys::Oid>, kind: &str);
static PRELOADED: AtomicBool = AtomicBool::new(false);

/// True while the postmaster loads `shared_preload_libraries`.
pub fn is_preloading() -> bool {
    // SAFETY: reads a variable of this process.
    unsafe { pg_sys::process_shared_preload_libraries_in_progress }
}

/// True if pg_upgrade has started the server.
pub fn is_pg_upgrade() -> bool {
    // SAFETY: reads a variable of this process.
    unsafe { pg_sys::IsBinaryUpgrade }
}

/// True if the library is in `shared_preload_libraries`, so that workers and shared memory exist.
pub fn is_preloaded() -> bool {
    PRELOADED.load(Ordering::Relaxed)
}

/// Sets the function that workers run. Called in the postmaster while it preloads.
pub fn define(main: Main) {
    MAIN.get_or_init(|| main);
    pgrx::pg_shmem_init!(BOARD);
    PRELOADED.store(true, Ordering::Relaxed);
}

/// Changes the default of one of PostgreSQL's settings. Called while the postmaster preloads.
pub fn set_default(name: &CStr, value: &CStr) {
    // SAFETY: two C strings; a dynamic default gives way to every other source.
    unsafe {
        pg_sys::SetConfigOption(
            name.as_ptr(),
            value.as_ptr(),
            pg_sys::GucContext::PGC_POSTMASTER,
            pg_sys::GucSource::PGC_S_DYNAMIC_DEFAULT,
        );
    }
}

fn builder(name: &str, kind: &str) -> BackgroundWorkerBuilder {
    BackgroundWorkerBuilder::new(name)
        .set_type(kind)
        .set_library("docshard")
        .set_function("docshard_background_main")
        .enable_spi_access()
}

/// Registers the worker without a database. It starts with the server, and is restarted after `restart` when it ends.
pub fn register(name: &str, restart: Duration) {
    builder(name, name).set_restart_time(Some(restart)).load();
}

/// Starts a worker; this process is notified of the worker's start and end. None if the server has no free slot. The handle outlives every
/// transaction, so the caller frees it by [`free`].
fn start(builder: BackgroundWorkerBuilder) -> Option<*mut pg_sys::BackgroundWorkerHandle> {
    let mut handle = std::ptr::null_mut();
    // SAFETY: reads a variable of this process; PostgreSQL copies the description. It raises nothing before it returns.
    let started = unsafe {
        let mut worker = pg_sys::BackgroundWorker::from(&builder.set_notify_pid(pg_sys::MyProcPid));
        let former = pg_sys::MemoryContextSwitchTo(pg_sys::TopMemoryContext);
        let started = pg_sys::RegisterDynamicBackgroundWorker(&mut worker, &mut handle);
        pg_sys::MemoryContextSwitchTo(former);
        started
    };
    started.then_some(handle)
}

/// # Safety
/// The handle is one of [`start`], and is not used any more.
unsafe fn free(handle: *mut pg_sys::BackgroundWorkerHandle) {
    // SAFETY: promised by the caller; it is in memory that lives as long as the process.
    unsafe { pg_sys::pfree(handle.cast()) }
}

/// A worker that was started.
#[derive(Debug)]
pub struct Started(*mut pg_sys::BackgroundWorkerHandle);

impl Started {
    /// Starts a worker for a database; None if the server has no free slot.
    pub fn new(name: &str, kind: &str, database: pg_sys::Oid) -> Option<Self> {
        start(builder(name, kind).set_argument(database.into_datum())).map(Self)
    }

    pub fn is_alive(&self) -> bool {
        let mut pid = 0;
        // SAFETY: the handle came from PostgreSQL.
        let status = unsafe { pg_sys::GetBackgroundWorkerPid(self.0, &mut pid) };
        matches!(status, pg_sys::BgwHandleStatus::BGWH_STARTED | pg_sys::BgwHandleStatus::BGWH_NOT_YET_STARTED)
    }
}

impl Drop for Started {
    fn drop(&mut self) {
        // SAFETY: no one else has the handle.
        unsafe { free(self.0) };
    }
}

/// The workers' entry point.
#[pg_guard]
#[unsafe(no_mangle)]
pub extern "C-unwind" fn docshard_background_main(argument: pg_sys::Datum) {
    let database = pg_sys::Oid::from(argument.value() as u32);
    // SAFETY: at a worker's start, as PostgreSQL's documentation requires. `die` takes effect at the next check for interrupts.
    unsafe {
        handle_signal(pg_sys::SIGTERM, die);
        handle_signal(pg_sys::SIGHUP, SignalHandlerForConfigReload);
        pg_sys::BackgroundWorkerUnblockSignals();
        pg_sys::BackgroundWorkerInitializeConnectionByOid(database, pg_sys::InvalidOid, 0);
    }
    settings::pin();
    // SAFETY: PostgreSQL keeps a worker's description as long as the worker lives.
    let kind = unsafe { CStr::from_ptr((*pg_sys::MyBgworkerEntry).bgw_type.as_ptr()) }.to_string_lossy();
    if let Some(main) = MAIN.get() {
        main((database != pg_sys::InvalidOid).then_some(database), &kind);
    }
}

/// Sleeps until the time has passed or the latch is set. Serves interrupts, and reloads the configuration if requested.
pub fn sleep(time: Duration) {
    let milliseconds = i64::try_from(time.as_millis()).unwrap_or(i64::MAX).min(3_600_000);
    crate::pg::server::wait(milliseconds);
    // SAFETY: as PostgreSQL's processes do.
    unsafe {
        if pg_sys::ConfigReloadPending != 0 {
            pg_sys::ConfigReloadPending = 0;
            pg_sys::ProcessConfigFile(pg_sys::GucContext::PGC_SIGHUP);
        }
    }
    pgrx::check_for_interrupts!();
}

/// The setting `max_worker_processes`.
pub fn max_workers() -> usize {
    // SAFETY: reads a variable that is set before any process is forked.
    usize::try_from(unsafe { pg_sys::max_worker_processes }).unwrap_or(0)
}

/// Cancels the statement of a process of this server, as a user's cancel does.
pub fn cancel(pid: i32) {
    // SAFETY: only processes of this server are signalled; a cancel of nothing has no effect.
    unsafe {
        if !pg_sys::BackendPidGetProc(pid).is_null() {
            libc::kill(pid, libc::SIGINT);
        }
    }
}

thread_local! {
    /// What this process does, set by [`show_activity`], and where, set by [`show_place`].
    static ACTIVITY: RefCell<(String, String)> = const { RefCell::new((String::new(), String::new())) };
}

/// Separates the two parts in the text of `pg_stat_activity`.
pub const AT: &str = ", at ";

/// Sets the text that `pg_stat_activity` shows for this process; None: idle.
pub fn show_activity(what: Option<&str>) {
    ACTIVITY.replace((what.unwrap_or_default().to_owned(), String::new()));
    report_activity(what);
}

/// Adds the place that this process waits for to the text in `pg_stat_activity`. `state_change` is then the time when the wait began.
pub fn show_place(name: &str) {
    let text = ACTIVITY.with_borrow_mut(|(what, place)| {
        if place == name || what.is_empty() {
            return None;
        }
        name.clone_into(place);
        Some(format!("{what}{AT}{name}"))
    });
    if text.is_some() {
        report_activity(text.as_deref());
    }
}

fn report_activity(what: Option<&str>) {
    let text = std::ffi::CString::new(what.unwrap_or_default()).unwrap_or_default();
    let state = match what {
        Some(_) => pg_sys::BackendState::STATE_RUNNING,
        None => pg_sys::BackendState::STATE_IDLE,
    };
    // SAFETY: PostgreSQL copies the text.
    unsafe { pg_sys::pgstat_report_activity(state, text.as_ptr()) };
}

/// The databases that allow connections and are no templates.
pub fn databases() -> Result<Vec<(pg_sys::Oid, String)>> {
    transaction::run(|| {
        let mut found = Vec::new();
        // SAFETY: pg_database is a shared catalog, readable without a database; its rows are FormData_pg_database.
        unsafe {
            catalog::scan(pg_sys::DatabaseRelationId, |row: &pg_sys::FormData_pg_database| {
                if row.datallowconn && !row.datistemplate {
                    let name = CStr::from_ptr(row.datname.data.as_ptr()).to_string_lossy().into_owned();
                    found.push((row.oid, name));
                }
            });
        }
        Ok(found)
    })
}

/// True while a session drops or renames the database. Workers must then leave it: DROP DATABASE waits five seconds for other sessions to
/// end, and fails otherwise.
pub fn is_being_dropped(database: pg_sys::Oid) -> bool {
    let tag = pg_sys::LOCKTAG {
        locktag_field1: 0,
        locktag_field2: u32::from(pg_sys::DatabaseRelationId),
        locktag_field3: u32::from(database),
        locktag_field4: 0,
        locktag_type: pg_sys::LockTagType::LOCKTAG_OBJECT as u8,
        locktag_lockmethodid: pg_sys::DEFAULT_LOCKMETHOD as u8,
    };
    // SAFETY: a well-formed tag; a session lock, which needs no transaction, is released at once.
    unsafe {
        let mode = pg_sys::AccessShareLock as i32;
        let free = pg_sys::LockAcquire(&tag, mode, true, true) != pg_sys::LockAcquireResult::LOCKACQUIRE_NOT_AVAIL;
        if free {
            pg_sys::LockRelease(&tag, mode, true);
        }
        !free
    }
}

/// Returns the OID of the current database; `InvalidOid` in the worker without a database.
pub fn my_database() -> pg_sys::Oid {
    // SAFETY: set once at the process's start.
    unsafe { pg_sys::MyDatabaseId }
}

/// Registers this process in shared memory, as the database's worker or as the one without a database.
pub fn enter(database: Option<pg_sys::Oid>) {
    // SAFETY: reads a variable of this process.
    let me = unsafe { pg_sys::MyProcPid };
    let mut board = BOARD.exclusive();
    match database {
        None => board.1.0 = me,
        Some(database) => {
            let database = u32::from(database);
            let free =
                board.0.iter().position(|slot| slot.0 == database).or(board.0.iter().position(|slot| slot.0 == 0));
            if let Some(free) = free {
                board.0[free] = (database, me);
            }
        }
    }
}

/// Removes a database's worker from shared memory.
pub fn leave(database: pg_sys::Oid) {
    let mut board = BOARD.exclusive();
    if let Some(slot) = board.0.iter_mut().find(|slot| slot.0 == u32::from(database)) {
        *slot = (0, 0);
    }
}

/// Returns the process id of a database's worker; None if no worker of the database has called [`enter`].
pub fn resident(database: pg_sys::Oid) -> Option<i32> {
    if !is_preloaded() {
        return None;
    }
    BOARD.share().0.iter().find(|slot| slot.0 == u32::from(database)).map(|slot| slot.1)
}

/// Returns how often workers have been woken since the server started.
pub fn wakes() -> u32 {
    BOARD.share().1.1
}

/// Wakes the worker without a database, and this database's.
pub fn wake() {
    if !is_preloaded() {
        return;
    }
    let database = u32::from(my_database());
    let pids: Vec<i32> = {
        let mut board = BOARD.exclusive();
        board.1.1 = board.1.1.wrapping_add(1);
        let worker = board.0.iter().find(|slot| slot.0 == database).map(|slot| slot.1);
        worker.into_iter().chain([board.1.0]).filter(|&pid| pid != 0).collect()
    };
    pids.into_iter().for_each(wake_process);
}

/// Ends the [`sleep`] of a process of this server.
pub fn wake_process(pid: i32) {
    // SAFETY: null if the process has ended; the latches of processes stay in shared memory.
    unsafe {
        let process = pg_sys::BackendPidGetProc(pid);
        if !process.is_null() {
            pg_sys::SetLatch(&raw mut (*process).procLatch);
        }
    }
}

/// Wakes the workers when this transaction has committed, so that they see its changes.
pub fn wake_at_commit() {
    if is_preloaded() {
        pgrx::register_xact_callback(pgrx::PgXactCallbackEvent::Commit, wake);
    }
}
