//! Functions of the PostgreSQL server in whose process this code runs: waiting, interrupts, temporary files, catalog lookups, cache
//! callbacks.

use crate::pg::events::{self, Event};
use crate::pg::version;
use pgrx::pg_sys::{self, Oid};
use pgrx::{PgList, pg_guard};
use std::cell::Cell;
use std::ffi::{CStr, c_char, c_int};
use std::io::{self, Read, Write};
use std::ptr::{NonNull, null_mut};
use std::sync::OnceLock;
use std::time::Duration;

/// A copy of a C string; None if null.
///
/// # Safety
/// `s` is null or a C string that lives during the call.
pub(super) unsafe fn text(s: *const c_char) -> Option<String> {
    // SAFETY: the caller's promise.
    (!s.is_null()).then(|| unsafe { CStr::from_ptr(s) }.to_string_lossy().into_owned())
}

/// Why a wait has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Woken {
    /// a socket is ready
    Sign,
    /// timeout, or the latch was set
    Silence,
    /// the postmaster has died, and nothing can be awaited
    Orphaned,
}

/// Waits for sockets, the backend's latch and the postmaster's death.
#[derive(Debug)]
pub struct WaitSet {
    set: NonNull<pg_sys::WaitEventSet>,
    sockets: Vec<(c_int, u32)>,
}

impl Drop for WaitSet {
    fn drop(&mut self) {
        // SAFETY: owned, main thread; neither a transaction nor a resource owner frees it.
        unsafe { pg_sys::FreeWaitEventSet(self.set.as_ptr()) }
    }
}

impl WaitSet {
    pub fn new(sockets: usize) -> Self {
        // SAFETY: main thread; PostgreSQL raises rather than return null.
        unsafe {
            let set = version::wait_event_set(sockets as c_int + 2);
            let set = Self { set: NonNull::new_unchecked(set), sockets: Vec::with_capacity(sockets) };
            let raw = set.set.as_ptr();
            pg_sys::AddWaitEventToSet(raw, pg_sys::WL_LATCH_SET, -1, pg_sys::MyLatch, null_mut());
            pg_sys::AddWaitEventToSet(raw, pg_sys::WL_POSTMASTER_DEATH, -1, null_mut(), null_mut());
            set
        }
    }

    fn mask(read: bool, write: bool) -> u32 {
        (u32::from(read) * pg_sys::WL_SOCKET_READABLE) | (u32::from(write) * pg_sys::WL_SOCKET_WRITEABLE)
    }

    /// Adds a socket; at most as many as [`WaitSet::new`] was given.
    pub fn add(&mut self, socket: c_int, read: bool, write: bool) {
        let mask = Self::mask(read, write);
        // SAFETY: owned, main thread; there is room, and PostgreSQL raises if there weren't.
        let position = unsafe { pg_sys::AddWaitEventToSet(self.set.as_ptr(), mask, socket, null_mut(), null_mut()) };
        self.sockets.push((position, mask));
    }

    /// Changes the events of the n-th socket.
    pub fn set(&mut self, n: usize, read: bool, write: bool) {
        let mask = Self::mask(read, write);
        if let Some((position, now)) = self.sockets.get_mut(n).filter(|s| s.1 != mask) {
            *now = mask;
            // SAFETY: owned, main thread; the position came from AddWaitEventToSet.
            unsafe { pg_sys::ModifyWaitEvent(self.set.as_ptr(), *position, mask, null_mut()) }
        }
    }

    /// Waits for at most this time, or for ever if it is negative. Resets the latch, so the caller must check for interrupts.
    /// The postmaster's death ends the process. While interrupts are held, `Orphaned` is returned instead: the local transaction may
    /// have committed already, and an exit would abort it.
    pub fn wait(&mut self, timeout_ms: i64) -> Woken {
        let mut events = [pg_sys::WaitEvent::default(); 3];
        // SAFETY: owned, main thread; the array has three elements.
        unsafe {
            let found = pg_sys::WaitEventSetWait(
                self.set.as_ptr(),
                timeout_ms.max(-1),
                events.as_mut_ptr(),
                3,
                pg_sys::PG_WAIT_EXTENSION,
            );
            let events = &events[..usize::try_from(found).unwrap_or(0)];
            if events.iter().any(|e| e.events & pg_sys::WL_LATCH_SET != 0) {
                pg_sys::ResetLatch(pg_sys::MyLatch);
            }
            let gone = events.iter().any(|e| e.events & pg_sys::WL_POSTMASTER_DEATH != 0);
            if gone && pg_sys::InterruptHoldoffCount == 0 {
                pg_sys::proc_exit(1);
            }
            let sockets = pg_sys::WL_SOCKET_READABLE | pg_sys::WL_SOCKET_WRITEABLE;
            match events.iter().any(|e| e.events & sockets != 0) {
                _ if gone => Woken::Orphaned,
                true => Woken::Sign,
                false => Woken::Silence,
            }
        }
    }
}

/// Waits for a socket that has no [`WaitSet`], for at most this time: until it is readable if `read`, else until it is writable.
pub fn wait_socket(socket: c_int, read: bool, timeout_ms: i64) {
    let mut set = WaitSet::new(1);
    set.add(socket, read, !read);
    set.wait(timeout_ms.max(0));
}

/// Returns which of these sockets are ready: for reading if the flag is set, else for writing.
pub fn ready(sockets: &[(c_int, bool)]) -> Vec<bool> {
    let wanted = |read: bool| if read { libc::POLLIN } else { libc::POLLOUT };
    let mut polled: Vec<libc::pollfd> =
        sockets.iter().map(|&(fd, read)| libc::pollfd { fd, events: wanted(read), revents: 0 }).collect();
    // SAFETY: the array has as many elements as said; a timeout of 0 does not wait.
    let found = unsafe { libc::poll(polled.as_mut_ptr(), polled.len() as libc::nfds_t, 0) };
    // A socket with an error counts as ready: the next read reports the error.
    polled.iter().map(|one| found > 0 && one.revents != 0).collect()
}

/// Serves pending interrupts. May unwind.
pub fn check_for_interrupts() {
    pgrx::check_for_interrupts!();
}

/// While a value of this type lives, a cancel request is not served, but a shutdown is. After an error PostgreSQL resets the count of
/// such values.
#[derive(Debug)]
pub struct HoldCancel(());

impl HoldCancel {
    pub fn new() -> Self {
        // SAFETY: main thread.
        unsafe { pg_sys::QueryCancelHoldoffCount += 1 };
        Self(())
    }
}

impl Drop for HoldCancel {
    fn drop(&mut self) {
        // SAFETY: main thread. Saturating, because PostgreSQL may have reset the count.
        unsafe { pg_sys::QueryCancelHoldoffCount = pg_sys::QueryCancelHoldoffCount.saturating_sub(1) };
    }
}

/// True if a cancel is pending.
pub fn cancel_is_due() -> bool {
    // SAFETY: main thread; a signal handler sets it.
    unsafe { (&raw const pg_sys::QueryCancelPending).read_volatile() != 0 }
}

/// A temporary file of PostgreSQL, which counts for `temp_file_limit` and is deleted when closed. Written, then rewound and read.
///
/// PostgreSQL's `BufFile` is not used, because it writes its buffer when it is closed. After `temp_file_limit` or a full disk has made a
/// write fail, that last write would fail, too, while the first error unwinds.
#[derive(Debug)]
pub struct TempFile {
    file: pg_sys::File,
    at: i64,
}

impl Drop for TempFile {
    fn drop(&mut self) {
        // SAFETY: owned, main thread. No resource owner has the file, so the end of a transaction or subtransaction does not close it. The
        // end of the process closes all files, but aborts the transaction before, and with it drops the stream that has the file. FileClose
        // raises no ERROR.
        unsafe { pg_sys::FileClose(self.file) }
    }
}

impl TempFile {
    /// Creates a file that the end of a transaction does not close.
    pub fn create() -> Self {
        // SAFETY: main thread; raises rather than return an invalid file.
        let file = unsafe {
            pg_sys::PrepareTempTablespaces();
            pg_sys::OpenTemporaryFile(true)
        };
        Self { file, at: 0 }
    }

    pub fn rewind(&mut self) {
        self.at = 0;
    }

    /// Advances the position by the number of bytes that were read or written; a negative number is an error, described by `errno`.
    fn advance(&mut self, moved: isize) -> io::Result<usize> {
        let moved = usize::try_from(moved).map_err(|_| io::Error::last_os_error())?;
        self.at += moved as i64;
        Ok(moved)
    }
}

impl Write for TempFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        // SAFETY: owned, main thread.
        let written = unsafe { version::file_write(self.file, bytes, self.at) };
        self.advance(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Read for TempFile {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        // SAFETY: owned, main thread.
        let read = unsafe { version::file_read(self.file, buffer, self.at) };
        self.advance(read)
    }
}

/// `work_mem` in bytes.
pub fn work_mem() -> usize {
    // SAFETY: main thread.
    unsafe { usize::try_from(pg_sys::work_mem).unwrap_or(0) * 1024 }
}

/// Properties of the local transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Local {
    /// 1 outside of subtransactions
    pub level: i32,
    /// REPEATABLE READ or stricter
    pub one_snapshot: bool,
    pub serializable: bool,
    pub read_only: bool,
    /// matters only for a serializable transaction that is read-only
    pub deferrable: bool,
}

impl Local {
    /// READ COMMITTED, not in a subtransaction.
    pub const PLAIN: Self =
        Self { level: 1, one_snapshot: false, serializable: false, read_only: false, deferrable: false };

    /// True if a remote transaction without `BEGIN` has the same properties.
    pub fn is_plain(self) -> bool {
        self.level == 1 && !self.one_snapshot && !self.read_only
    }
}

pub fn local() -> Local {
    // SAFETY: main thread.
    unsafe {
        Local {
            level: pg_sys::GetCurrentTransactionNestLevel(),
            one_snapshot: pg_sys::XactIsoLevel >= pg_sys::XACT_REPEATABLE_READ as c_int,
            serializable: pg_sys::XactIsoLevel == pg_sys::XACT_SERIALIZABLE as c_int,
            read_only: pg_sys::XactReadOnly,
            deferrable: pg_sys::XactDeferrable,
        }
    }
}

/// True if the local transaction has written something.
pub fn local_writes() -> bool {
    // SAFETY: main thread.
    unsafe { pg_sys::GetTopTransactionIdIfAny() != pg_sys::InvalidTransactionId }
}

/// The local transaction's id with its epoch. If the transaction has no id, one is assigned.
pub fn local_xid() -> u64 {
    // SAFETY: main thread, in a transaction.
    unsafe { pg_sys::GetTopFullTransactionId().value }
}

pub fn process_id() -> i32 {
    // SAFETY: main thread.
    unsafe { pg_sys::MyProcPid }
}

/// The setting `deadlock_timeout`.
pub fn deadlock_timeout() -> Duration {
    // SAFETY: main thread; PostgreSQL's setting, in milliseconds.
    Duration::from_millis(u64::try_from(unsafe { pg_sys::DeadlockTimeout }).unwrap_or(1000))
}

/// The session id in PostgreSQL's log, `%c`.
pub fn session_id() -> String {
    // SAFETY: main thread; set once, when the process begins.
    let (begun, pid) = unsafe { (pg_sys::MyStartTime, pg_sys::MyProcPid) };
    format!("{begun:x}.{pid:x}")
}

pub fn is_superuser(user: Oid) -> bool {
    // SAFETY: main thread, in a transaction.
    unsafe { pg_sys::superuser_arg(user) }
}

pub fn database_encoding() -> String {
    // SAFETY: main thread; the name is a static string.
    unsafe { text(pg_sys::GetDatabaseEncodingName()) }.unwrap_or_default()
}

pub fn accept_invalidations() {
    // SAFETY: main thread, in a transaction.
    unsafe { pg_sys::AcceptInvalidationMessages() }
}

#[derive(Debug)]
pub struct Server {
    pub name: String,
    pub options: Vec<(String, String)>,
    /// the server's hash value in invalidation messages
    pub hash: u32,
}

/// The user mapping of a user, or that of PUBLIC if the user has none.
#[derive(Debug)]
pub struct Mapping {
    pub options: Vec<(String, String)>,
    pub hash: u32,
}

pub fn server(oid: Oid) -> Option<Server> {
    let cache = pg_sys::SysCacheIdentifier::FOREIGNSERVEROID as c_int;
    let zero = pg_sys::Datum::from(0);
    // SAFETY: main thread, in a transaction; FSV_MISSING_OK makes it null where there is none, and what it returns
    // lives in the current memory context.
    unsafe {
        let found = pg_sys::GetForeignServerExtended(oid, pg_sys::FSV_MISSING_OK as pg_sys::bits16);
        let found = NonNull::new(found)?.as_ref();
        Some(Server {
            name: text(found.servername).unwrap_or_default(),
            options: options(found.options),
            hash: pg_sys::GetSysCacheHashValue(cache, oid.into(), zero, zero, zero),
        })
    }
}

pub fn mapping(server: Oid, user: Oid) -> Option<Mapping> {
    let by_user = pg_sys::SysCacheIdentifier::USERMAPPINGUSERSERVER as c_int;
    let by_id = pg_sys::SysCacheIdentifier::USERMAPPINGOID as c_int;
    let zero = pg_sys::Datum::from(0);
    // SAFETY: main thread, in a transaction; GetUserMapping doesn't return null, and what it returns lives in the
    // current memory context.
    unsafe {
        let exists = |user: Oid| pg_sys::SearchSysCacheExists(by_user, user.into(), server.into(), zero, zero);
        if !exists(user) && !exists(Oid::INVALID) {
            return None;
        }
        let found = NonNull::new(pg_sys::GetUserMapping(user, server))?.as_ref();
        Some(Mapping {
            options: options(found.options),
            hash: pg_sys::GetSysCacheHashValue(by_id, found.umid.into(), zero, zero, zero),
        })
    }
}

/// # Safety
/// `list` is a list of DefElem, or null.
unsafe fn options(list: *mut pg_sys::List) -> Vec<(String, String)> {
    // SAFETY: the caller's promise; defGetString returns a C string.
    unsafe {
        PgList::<pg_sys::DefElem>::from_pg(list)
            .iter_ptr()
            .filter_map(|element| Some((text((*element).defname)?, text(pg_sys::defGetString(element))?)))
            .collect()
    }
}

/// A syscache invalidation of a server or mapping, by hash value; 0 means all.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Invalidated {
    Server(u32),
    Mapping(u32),
}

static INVALIDATED: OnceLock<fn(Invalidated)> = OnceLock::new();

thread_local! {
    static OPTION_CHANGES: Cell<u64> = const { Cell::new(0) };
    static IS_WATCHING: Cell<bool> = const { Cell::new(false) };
}

#[pg_guard]
unsafe extern "C-unwind" fn on_invalidation(_arg: pg_sys::Datum, cache: c_int, hash: u32) {
    OPTION_CHANGES.set(OPTION_CHANGES.get() + 1);
    if let Some(handler) = INVALIDATED.get() {
        let server = cache == pg_sys::SysCacheIdentifier::FOREIGNSERVEROID as c_int;
        handler(if server { Invalidated::Server(hash) } else { Invalidated::Mapping(hash) });
    }
}

/// Registers the handlers, once in a process.
pub fn register(event: fn(Event), invalidated: fn(Invalidated)) {
    if INVALIDATED.set(invalidated).is_err() {
        return;
    }
    events::register(event);
    watch_options();
}

/// Returns a number that grows when this process learns that the options of a server or user mapping may have changed: at the start of a
/// transaction, and when it takes a lock.
pub fn option_changes() -> u64 {
    watch_options();
    OPTION_CHANGES.get()
}

fn watch_options() {
    if IS_WATCHING.replace(true) {
        return;
    }
    // SAFETY: main thread; the callback is a static function, and an extension library is never unloaded.
    unsafe {
        for cache in [pg_sys::SysCacheIdentifier::FOREIGNSERVEROID, pg_sys::SysCacheIdentifier::USERMAPPINGOID] {
            pg_sys::CacheRegisterSyscacheCallback(cache as c_int, Some(on_invalidation), pg_sys::Datum::from(0));
        }
    }
}

#[pg_guard]
unsafe extern "C-unwind" fn on_exit(_code: c_int, _arg: pg_sys::Datum) {
    if let Some(handler) = AT_EXIT.get() {
        // An ERROR would restart the exit.
        drop(std::panic::catch_unwind(handler));
    }
}

static AT_EXIT: OnceLock<fn()> = OnceLock::new();

/// Registers a handler for the orderly exit of the process; called once in a process. The handler runs after PostgreSQL's handlers that
/// need shared memory, and must not raise an ERROR.
pub fn at_exit(handler: fn()) {
    if AT_EXIT.set(handler).is_ok() {
        // SAFETY: main thread; the callback is a static function, and an extension library is never unloaded.
        unsafe { pg_sys::on_proc_exit(Some(on_exit), pg_sys::Datum::from(0)) };
    }
}
