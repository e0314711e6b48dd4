//! Background workers: registered, started, connected, put to sleep and woken.
//!
//! One entry point serves them all, with the database's OID as its argument, 0 for the one without a database, and their kind
//! as PostgreSQL's views show it. What it runs is set by [`define`] in the postmaster, before anything forks. A board in shared memory tells who is there.

pub mod job;
pub mod timeout;

use crate::pg::error::Result;
use crate::pg::{security::search_path, transaction};
use pgrx::bgworkers::BackgroundWorkerBuilder;
use pgrx::prelude::*;
use pgrx::{IntoDatum, PgLwLock, pg_sys};
use std::ffi::CStr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Workers of one server that can be woken; more than that work all the same.
const SLOTS: usize = 32;

// PostgreSQL's own handlers, without pgrx's guard: they only set flags, and a guard is nothing for a signal handler.
unsafe extern "C-unwind" {
    fn die(signal: i32);
    fn SignalHandlerForConfigReload(signal: i32);
}

/// (database, process) of each worker; process of the one without a database, and how often somebody woke them.
type Board = ([(u32, i32); SLOTS], (i32, u32));

// SAFETY: no other shared memory has this name.
static BOARD: PgLwLock<Board> = unsafe { PgLwLock::new(c"docshard workers") };
static MAIN: OnceLock<Main> = OnceLock::new();

/// What workers run: of a database, or of none, and of which kind.
pub type Main = fn(database: Option<pg_sys::Oid>, kind: &str);
static PRELOADED: AtomicBool = AtomicBool::new(false);

/// True while the postmaster loads `shared_preload_libraries`.
pub fn is_preloading() -> bool {
    // SAFETY: reads a variable of this process.
    unsafe { pg_sys::process_shared_preload_libraries_in_progress }
}

/// True if the library is in `shared_preload_libraries`, so that workers and shared memory exist.
pub fn is_preloaded() -> bool {
    PRELOADED.load(Ordering::Relaxed)
}

/// Says what workers run, and asks for shared memory. In the postmaster only, while it preloads.
pub fn define(main: Main) {
    MAIN.get_or_init(|| main);
    pgrx::pg_shmem_init!(BOARD);
    PRELOADED.store(true, Ordering::Relaxed);
}

/// Gives an integer setting of the server another default, while the postmaster preloads: what the configuration says
/// stays.
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

/// Registers the worker without a database: it starts with the server, and again after `restart` should it end.
pub fn register(name: &str, restart: Duration) {
    builder(name, name).set_restart_time(Some(restart)).load();
}

/// A worker that was started.
#[derive(Debug)]
pub struct Started(*mut pg_sys::BackgroundWorkerHandle);

impl Started {
    /// Starts a worker for a database; None if the server has no room for it (`max_worker_processes`). This process is
    /// woken when the worker starts and when it ends.
    pub fn new(name: &str, kind: &str, database: pg_sys::Oid) -> Option<Self> {
        // SAFETY: reads a variable of this process.
        let me = unsafe { pg_sys::MyProcPid };
        let builder = builder(name, kind).set_argument(database.into_datum()).set_notify_pid(me);
        let mut worker = pg_sys::BackgroundWorker::from(&builder);
        let mut handle = std::ptr::null_mut();
        // SAFETY: a complete description; the handle is allocated in the current memory context, which lives as long as
        // this process where no transaction is open.
        let started = unsafe { pg_sys::RegisterDynamicBackgroundWorker(&mut worker, &mut handle) };
        // Lazily: without a worker there is no handle, and dropping one frees it.
        started.then(|| Self(handle))
    }

    /// False once it has ended.
    pub fn is_alive(&self) -> bool {
        let mut pid = 0;
        // SAFETY: the handle came from PostgreSQL.
        let status = unsafe { pg_sys::GetBackgroundWorkerPid(self.0, &mut pid) };
        matches!(status, pg_sys::BgwHandleStatus::BGWH_STARTED | pg_sys::BgwHandleStatus::BGWH_NOT_YET_STARTED)
    }
}

impl Drop for Started {
    fn drop(&mut self) {
        // SAFETY: allocated by RegisterDynamicBackgroundWorker.
        unsafe { pg_sys::pfree(self.0.cast()) };
    }
}

/// Where every worker of this library starts.
#[pg_guard]
#[unsafe(no_mangle)]
pub extern "C-unwind" fn docshard_background_main(argument: pg_sys::Datum) {
    let database = pg_sys::Oid::from(argument.value() as u32);
    // SAFETY: at a worker's start, as PostgreSQL's documentation asks. `die` is heeded at the next check for interrupts.
    unsafe {
        pg_sys::pqsignal(pg_sys::SIGTERM as i32, Some(die));
        pg_sys::pqsignal(pg_sys::SIGHUP as i32, Some(SignalHandlerForConfigReload));
        pg_sys::BackgroundWorkerUnblockSignals();
        pg_sys::BackgroundWorkerInitializeConnectionByOid(database, pg_sys::InvalidOid, 0);
    }
    search_path::pin_for_process();
    // SAFETY: PostgreSQL keeps a worker's description as long as the worker lives.
    let kind = unsafe { CStr::from_ptr((*pg_sys::MyBgworkerEntry).bgw_type.as_ptr()) }.to_string_lossy();
    if let Some(main) = MAIN.get() {
        main((database != pg_sys::InvalidOid).then_some(database), &kind);
    }
}

/// Sleeps until the time is over or somebody wakes this process; obeys shutdown, and reads the configuration again
/// when asked to.
pub fn sleep(time: Duration) {
    let milliseconds = i64::try_from(time.as_millis()).unwrap_or(i64::MAX).min(3_600_000);
    crate::pg::server::wait(milliseconds);
    // SAFETY: PGC_SIGHUP is how a process reads its configuration again.
    unsafe {
        if pg_sys::ConfigReloadPending != 0 {
            pg_sys::ConfigReloadPending = 0;
            pg_sys::ProcessConfigFile(pg_sys::GucContext::PGC_SIGHUP);
        }
    }
    pgrx::check_for_interrupts!();
}

/// How many background workers the server allows at a time, of all kinds.
pub fn max_workers() -> usize {
    // SAFETY: reads a variable that is set before any process is forked.
    usize::try_from(unsafe { pg_sys::max_worker_processes }).unwrap_or(0)
}

/// Cancels what a process of this server does, as a user's cancel would: what it waits for raises an ERROR.
pub fn cancel(pid: i32) {
    // SAFETY: a signal to a process that is gone, or to one that has nothing to cancel, does nothing; whether it is one of
    // this server's is asked first.
    unsafe {
        if !pg_sys::BackendPidGetProc(pid).is_null() {
            libc::kill(pid, libc::SIGINT);
        }
    }
}

/// Shows in `pg_stat_activity` what this process does; None for nothing.
pub fn show_activity(what: Option<&str>) {
    let text = std::ffi::CString::new(what.unwrap_or_default()).unwrap_or_default();
    let state = match what {
        Some(_) => pg_sys::BackendState::STATE_RUNNING,
        None => pg_sys::BackendState::STATE_IDLE,
    };
    // SAFETY: PostgreSQL copies the text.
    unsafe { pg_sys::pgstat_report_activity(state, text.as_ptr()) };
}

/// The databases that can be connected to and are no templates.
pub fn databases() -> Result<Vec<(pg_sys::Oid, String)>> {
    transaction::run(|| {
        let mut found = Vec::new();
        // SAFETY: pg_database is a shared catalog, readable without a database; each tuple is a FormData_pg_database.
        unsafe {
            let rel = pg_sys::table_open(pg_sys::DatabaseRelationId, pg_sys::AccessShareLock as i32);
            let scan = pg_sys::table_beginscan_catalog(rel, 0, std::ptr::null_mut());
            loop {
                let tuple = pg_sys::heap_getnext(scan, pg_sys::ScanDirection::ForwardScanDirection);
                if tuple.is_null() {
                    break;
                }
                let row = &*pg_sys::GETSTRUCT(tuple).cast::<pg_sys::FormData_pg_database>();
                if row.datallowconn && !row.datistemplate {
                    let name = CStr::from_ptr(row.datname.data.as_ptr()).to_string_lossy().into_owned();
                    found.push((row.oid, name));
                }
            }
            if let Some(end) = (*(*rel).rd_tableam).scan_end {
                end(scan);
            }
            pg_sys::table_close(rel, pg_sys::AccessShareLock as i32);
        }
        Ok(found)
    })
}

/// True while somebody drops or renames the database: DROP DATABASE waits five seconds for others to leave.
pub fn is_being_dropped(database: pg_sys::Oid) -> bool {
    let tag = pg_sys::LOCKTAG {
        locktag_field1: 0,
        locktag_field2: u32::from(pg_sys::DatabaseRelationId),
        locktag_field3: u32::from(database),
        locktag_field4: 0,
        locktag_type: pg_sys::LockTagType::LOCKTAG_OBJECT as u8,
        locktag_lockmethodid: pg_sys::DEFAULT_LOCKMETHOD as u8,
    };
    // SAFETY: a well-formed tag; taken for the session, so without a transaction, and released at once.
    unsafe {
        let mode = pg_sys::AccessShareLock as i32;
        let free = pg_sys::LockAcquire(&tag, mode, true, true) != pg_sys::LockAcquireResult::LOCKACQUIRE_NOT_AVAIL;
        if free {
            pg_sys::LockRelease(&tag, mode, true);
        }
        !free
    }
}

/// The present database; invalid in the worker without one.
pub fn my_database() -> pg_sys::Oid {
    // SAFETY: set once at the process's start.
    unsafe { pg_sys::MyDatabaseId }
}

/// Enters this process on the board, as the database's worker or as the one without a database.
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

/// Takes a database's worker off the board.
pub fn leave(database: pg_sys::Oid) {
    let mut board = BOARD.exclusive();
    if let Some(slot) = board.0.iter_mut().find(|slot| slot.0 == u32::from(database)) {
        *slot = (0, 0);
    }
}

/// The process of a database's worker, if it stays.
pub fn resident(database: pg_sys::Oid) -> Option<i32> {
    if !is_preloaded() {
        return None;
    }
    BOARD.share().0.iter().find(|slot| slot.0 == u32::from(database)).map(|slot| slot.1)
}

/// How often workers have been woken since the server started.
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
    for pid in pids {
        // SAFETY: a process that is gone is null; latches of processes are in shared memory for good.
        unsafe {
            let process = pg_sys::BackendPidGetProc(pid);
            if !process.is_null() {
                pg_sys::SetLatch(&raw mut (*process).procLatch);
            }
        }
    }
}

/// Wakes them once this transaction has committed, so that they see what it did.
pub fn wake_at_commit() {
    if is_preloaded() {
        pgrx::register_xact_callback(pgrx::PgXactCallbackEvent::Commit, wake);
    }
}
