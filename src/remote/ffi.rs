//! Everything of this module that calls C: libpq, and the parts of the PostgreSQL server that the executor needs.
//!
//! The wrappers own what they wrap and free it on drop; none hands out a pointer. libpq is used in non-blocking mode
//! only, and all waiting goes through PostgreSQL's wait events. Three invariants make it sound, and the SAFETY lines
//! name them:
//!
//! - *owned*: the pointer was returned by libpq or PostgreSQL to this wrapper, is not null, and is freed only by its drop;
//! - *main thread*: a backend runs its code on one thread, and these wrappers are neither `Send` nor `Sync`
//!   (except [`Cancel`], which libpq allows on any thread);
//! - *in a transaction*: catalog lookups are made by statements, so a transaction and a resource owner are there.
#![allow(unsafe_code)]

use super::param::Encoded;
use pgrx::pg_sys::{self, Oid};
use pgrx::{PgList, pg_guard};
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::mem::MaybeUninit;
use std::ptr::{NonNull, null, null_mut};
use std::sync::OnceLock;
use std::sync::mpsc::{Receiver, channel};
use std::time::Instant;

/// Fields of an error report, `PG_DIAG_*`.
#[derive(Debug, Clone, Copy)]
pub(super) enum Field {
    Sqlstate = pq_sys::PG_DIAG_SQLSTATE as isize,
    Message = pq_sys::PG_DIAG_MESSAGE_PRIMARY as isize,
    Detail = pq_sys::PG_DIAG_MESSAGE_DETAIL as isize,
    Hint = pq_sys::PG_DIAG_MESSAGE_HINT as isize,
    Context = pq_sys::PG_DIAG_CONTEXT as isize,
}

/// What a result says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Status {
    /// a command without rows is complete
    Command,
    /// all rows, or the end of the rows in single-row mode
    Rows,
    /// one row in single-row mode
    Row,
    /// the pipeline's synchronisation point
    Sync,
    /// skipped after an error in the pipeline
    Skipped,
    /// an error report
    Error,
    /// COPY or something else that isn't used
    Unexpected,
}

/// A result of libpq.
#[derive(Debug)]
pub(super) struct PgResult(NonNull<pq_sys::PGresult>);

impl Drop for PgResult {
    fn drop(&mut self) {
        // SAFETY: owned.
        unsafe { pq_sys::PQclear(self.0.as_ptr()) }
    }
}

impl PgResult {
    pub(super) fn status(&self) -> Status {
        use pq_sys::ExecStatusType as S;
        // SAFETY: owned.
        match unsafe { pq_sys::PQresultStatus(self.0.as_ptr()) } {
            S::PGRES_COMMAND_OK | S::PGRES_EMPTY_QUERY => Status::Command,
            S::PGRES_TUPLES_OK => Status::Rows,
            S::PGRES_SINGLE_TUPLE => Status::Row,
            S::PGRES_PIPELINE_SYNC => Status::Sync,
            S::PGRES_PIPELINE_ABORTED => Status::Skipped,
            S::PGRES_FATAL_ERROR | S::PGRES_BAD_RESPONSE | S::PGRES_NONFATAL_ERROR => Status::Error,
            _ => Status::Unexpected,
        }
    }

    pub(super) fn rows(&self) -> c_int {
        // SAFETY: owned.
        unsafe { pq_sys::PQntuples(self.0.as_ptr()) }
    }

    pub(super) fn columns(&self) -> c_int {
        // SAFETY: owned.
        unsafe { pq_sys::PQnfields(self.0.as_ptr()) }
    }

    /// A value; None is NULL, or a row or column that isn't there.
    pub(super) fn value(&self, row: c_int, column: usize) -> Option<&[u8]> {
        let column = c_int::try_from(column).ok()?;
        if row < 0 || row >= self.rows() || column >= self.columns() {
            return None;
        }
        // SAFETY: owned, and row and column are in range; the value lives as long as the result, and is
        // PQgetlength bytes long.
        unsafe {
            if pq_sys::PQgetisnull(self.0.as_ptr(), row, column) != 0 {
                return None;
            }
            let length = pq_sys::PQgetlength(self.0.as_ptr(), row, column);
            let value = pq_sys::PQgetvalue(self.0.as_ptr(), row, column);
            Some(std::slice::from_raw_parts(value.cast(), usize::try_from(length).unwrap_or(0)))
        }
    }

    /// The rows that the command tag names.
    pub(super) fn affected(&self) -> u64 {
        // SAFETY: owned; the string belongs to the result.
        let text = unsafe { CStr::from_ptr(pq_sys::PQcmdTuples(self.0.as_ptr())) };
        text.to_str().ok().and_then(|s| s.parse().ok()).unwrap_or(0)
    }

    /// True if the command tag is exactly this.
    pub(super) fn tag_is(&self, tag: &str) -> bool {
        // SAFETY: owned; the string belongs to the result.
        unsafe { CStr::from_ptr(pq_sys::PQcmdStatus(self.0.as_ptr())) }.to_bytes() == tag.as_bytes()
    }

    /// A field of the error report.
    pub(super) fn field(&self, field: Field) -> Option<String> {
        // SAFETY: owned; the string belongs to the result, or is null.
        unsafe { text(pq_sys::PQresultErrorField(self.0.as_ptr(), field as c_int)) }
    }

    /// The whole message, for an error that libpq made itself.
    pub(super) fn message(&self) -> String {
        // SAFETY: owned; the string belongs to the result.
        unsafe { text(pq_sys::PQresultErrorMessage(self.0.as_ptr())) }.unwrap_or_default().trim().to_owned()
    }
}

/// Copies a C string; None if null.
///
/// # Safety
/// `s` is null or a C string that lives during the call.
unsafe fn text(s: *const c_char) -> Option<String> {
    // SAFETY: the caller's promise.
    (!s.is_null()).then(|| unsafe { CStr::from_ptr(s) }.to_string_lossy().into_owned())
}

/// How far a connection attempt is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Poll {
    /// wait until the socket is readable
    Reading,
    /// wait until the socket is writable
    Writing,
    /// connected
    Ready,
    /// see the message
    Failed,
}

/// The remote transaction's state, as the last answer told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Xact {
    /// outside a transaction
    Idle,
    /// a command is running
    Active,
    /// in a transaction
    Open,
    /// in a failed transaction
    Failed,
    /// the connection is bad
    Unknown,
}

/// A connection of libpq, with the wait-event set that belongs to its socket.
#[derive(Debug)]
pub(super) struct PgConn {
    conn: NonNull<pq_sys::PGconn>,
    wait: Option<WaitSet>,
}

impl Drop for PgConn {
    fn drop(&mut self) {
        self.wait = None;
        // SAFETY: owned, main thread; the descriptor was acquired by `start`.
        unsafe {
            pq_sys::PQfinish(self.conn.as_ptr());
            pg_sys::ReleaseExternalFD();
        }
    }
}

/// Throws notices of shards away: libpq's own receiver would print them into the server's log.
unsafe extern "C" fn no_notice(_arg: *mut c_void, _result: *const pq_sys::PGresult) {}

impl PgConn {
    /// Begins to connect. None if memory or file descriptors are short, or an option contains NUL.
    pub(super) fn start(options: &[(String, String)]) -> Option<Self> {
        let c = |s: &String| CString::new(s.as_str()).ok();
        let keywords: Vec<CString> = options.iter().map(|o| c(&o.0)).collect::<Option<_>>()?;
        let values: Vec<CString> = options.iter().map(|o| c(&o.1)).collect::<Option<_>>()?;
        let pointers = |v: &[CString]| v.iter().map(|s| s.as_ptr()).chain([null()]).collect::<Vec<_>>();
        let (keywords_p, values_p) = (pointers(&keywords), pointers(&values));
        // SAFETY: main thread; both arrays end with null and live during the call, which copies them.
        unsafe {
            if !pg_sys::AcquireExternalFD() {
                return None;
            }
            match NonNull::new(pq_sys::PQconnectStartParams(keywords_p.as_ptr(), values_p.as_ptr(), 0)) {
                Some(conn) => {
                    pq_sys::PQsetNoticeReceiver(conn.as_ptr(), Some(no_notice), null_mut());
                    Some(Self { conn, wait: None })
                }
                None => {
                    pg_sys::ReleaseExternalFD();
                    None
                }
            }
        }
    }

    /// Goes on connecting.
    pub(super) fn poll(&mut self) -> Poll {
        use pq_sys::PostgresPollingStatusType as P;
        // SAFETY: owned.
        match unsafe { pq_sys::PQconnectPoll(self.conn.as_ptr()) } {
            P::PGRES_POLLING_READING => Poll::Reading,
            P::PGRES_POLLING_WRITING => Poll::Writing,
            P::PGRES_POLLING_OK => Poll::Ready,
            _ => Poll::Failed,
        }
    }

    /// Called once after the connection is ready: non-blocking from here on, with a wait-event set of its own.
    pub(super) fn established(&mut self) -> bool {
        // SAFETY: owned.
        let non_blocking = unsafe { pq_sys::PQsetnonblocking(self.conn.as_ptr(), 1) } == 0;
        let mut wait = WaitSet::new(1);
        wait.add(self.socket(), true, false);
        self.wait = Some(wait);
        non_blocking
    }

    pub(super) fn socket(&self) -> c_int {
        // SAFETY: owned.
        unsafe { pq_sys::PQsocket(self.conn.as_ptr()) }
    }

    /// False after the connection was lost.
    pub(super) fn is_good(&self) -> bool {
        // SAFETY: owned.
        unsafe { pq_sys::PQstatus(self.conn.as_ptr()) != pq_sys::ConnStatusType::CONNECTION_BAD }
    }

    pub(super) fn message(&self) -> String {
        // SAFETY: owned; the string belongs to the connection and is copied.
        unsafe { text(pq_sys::PQerrorMessage(self.conn.as_ptr())) }.unwrap_or_default().trim().to_owned()
    }

    pub(super) fn used_password(&self) -> bool {
        // SAFETY: owned.
        unsafe { pq_sys::PQconnectionUsedPassword(self.conn.as_ptr()) != 0 }
    }

    pub(super) fn xact(&self) -> Xact {
        use pq_sys::PGTransactionStatusType as T;
        // SAFETY: owned.
        match unsafe { pq_sys::PQtransactionStatus(self.conn.as_ptr()) } {
            T::PQTRANS_IDLE => Xact::Idle,
            T::PQTRANS_ACTIVE => Xact::Active,
            T::PQTRANS_INTRANS => Xact::Open,
            T::PQTRANS_INERROR => Xact::Failed,
            T::PQTRANS_UNKNOWN => Xact::Unknown,
        }
    }

    /// Reads what has arrived; false if the connection is lost.
    pub(super) fn consume(&mut self) -> bool {
        // SAFETY: owned.
        unsafe { pq_sys::PQconsumeInput(self.conn.as_ptr()) != 0 }
    }

    /// True if the next result hasn't arrived.
    pub(super) fn is_busy(&mut self) -> bool {
        // SAFETY: owned.
        unsafe { pq_sys::PQisBusy(self.conn.as_ptr()) != 0 }
    }

    /// The next result, None at a command's end. Doesn't block where `is_busy` is false and all is flushed.
    pub(super) fn result(&mut self) -> Option<PgResult> {
        // SAFETY: owned; the result becomes owned.
        NonNull::new(unsafe { pq_sys::PQgetResult(self.conn.as_ptr()) }).map(PgResult)
    }

    /// Writes what the socket takes: true if everything, None if the connection is lost.
    pub(super) fn flush(&mut self) -> Option<bool> {
        // SAFETY: owned.
        match unsafe { pq_sys::PQflush(self.conn.as_ptr()) } {
            0 => Some(true),
            1 => Some(false),
            _ => None,
        }
    }

    pub(super) fn enter_pipeline(&mut self) -> bool {
        // SAFETY: owned.
        unsafe { pq_sys::PQenterPipelineMode(self.conn.as_ptr()) != 0 }
    }

    pub(super) fn exit_pipeline(&mut self) -> bool {
        // SAFETY: owned.
        unsafe { pq_sys::PQexitPipelineMode(self.conn.as_ptr()) != 0 }
    }

    pub(super) fn sync(&mut self) -> bool {
        // SAFETY: owned.
        unsafe { pq_sys::PQpipelineSync(self.conn.as_ptr()) != 0 }
    }

    /// The command whose results come next gives them row by row.
    pub(super) fn single_row_mode(&mut self) -> bool {
        // SAFETY: owned.
        unsafe { pq_sys::PQsetSingleRowMode(self.conn.as_ptr()) != 0 }
    }

    /// Simple query protocol: any number of statements.
    pub(super) fn send_text(&mut self, sql: &CStr) -> bool {
        // SAFETY: owned; libpq copies the text.
        unsafe { pq_sys::PQsendQuery(self.conn.as_ptr(), sql.as_ptr()) != 0 }
    }

    /// One statement, unprepared, binary results.
    pub(super) fn send_params(&mut self, sql: &CStr, params: &Encoded) -> bool {
        // SAFETY: owned; the arrays have `len` elements and their referents live during the call, which copies.
        unsafe {
            pq_sys::PQsendQueryParams(
                self.conn.as_ptr(),
                sql.as_ptr(),
                params.len() as c_int,
                params.types.as_ptr(),
                params.values.as_ptr(),
                params.lengths.as_ptr(),
                params.formats.as_ptr(),
                1,
            ) != 0
        }
    }

    pub(super) fn send_prepare(&mut self, name: &CStr, sql: &CStr, types: &[pq_sys::Oid]) -> bool {
        // SAFETY: owned; libpq copies everything.
        unsafe {
            pq_sys::PQsendPrepare(self.conn.as_ptr(), name.as_ptr(), sql.as_ptr(), types.len() as c_int, types.as_ptr())
                != 0
        }
    }

    pub(super) fn send_prepared(&mut self, name: &CStr, params: &Encoded) -> bool {
        // SAFETY: owned; the arrays have `len` elements and their referents live during the call, which copies.
        unsafe {
            pq_sys::PQsendQueryPrepared(
                self.conn.as_ptr(),
                name.as_ptr(),
                params.len() as c_int,
                params.values.as_ptr(),
                params.lengths.as_ptr(),
                params.formats.as_ptr(),
                1,
            ) != 0
        }
    }

    /// Waits until the socket is readable, writable if `write`, the latch is set or the time is over.
    pub(super) fn wait(&mut self, write: bool, timeout_ms: i64) {
        if let Some(wait) = &mut self.wait {
            wait.set(0, true, write);
            wait.wait(timeout_ms);
        }
    }

    /// What it takes to cancel the connection's running statement; None if the connection is not open.
    pub(super) fn canceller(&self) -> Option<Cancel> {
        // SAFETY: owned.
        NonNull::new(unsafe { pq_sys::PQgetCancel(self.conn.as_ptr()) }).map(Cancel)
    }
}

/// A cancel request that is ready to be sent.
#[derive(Debug)]
pub(super) struct Cancel(NonNull<pq_sys::PGcancel>);

// SAFETY: libpq documents PGcancel as usable from any thread, apart from its connection.
unsafe impl Send for Cancel {}

impl Drop for Cancel {
    fn drop(&mut self) {
        // SAFETY: owned.
        unsafe { pq_sys::PQfreeCancel(self.0.as_ptr()) }
    }
}

impl Cancel {
    /// Sends the request. PQcancel connects and waits without a bound, so a thread does it, with all signals blocked
    /// (they are the backend's), which touches nothing but this object. The receiver learns when the request was taken.
    pub(super) fn send(self) -> Receiver<()> {
        let (done, receiver) = channel();
        let mut old = MaybeUninit::<libc::sigset_t>::uninit();
        // SAFETY: the sets are this frame's own; sigfillset and pthread_sigmask initialise what they are given.
        unsafe {
            let mut all = MaybeUninit::<libc::sigset_t>::uninit();
            libc::sigfillset(all.as_mut_ptr());
            libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), old.as_mut_ptr());
        }
        let spawned = std::thread::Builder::new().stack_size(128 * 1024).spawn(move || {
            self.request();
            let _ = done.send(());
        });
        // SAFETY: `old` was initialised above.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, old.as_ptr(), null_mut()) };
        drop(spawned);
        receiver
    }

    fn request(&self) {
        let mut message = [0 as c_char; 256];
        // SAFETY: owned; the buffer is as long as said.
        unsafe { pq_sys::PQcancel(self.0.as_ptr(), message.as_mut_ptr(), message.len() as c_int) };
    }
}

/// Waits for a cancel request under way. False if it is still under way: it may then hit a later statement of the
/// connection, which must not be used any more.
pub(super) fn await_cancel(request: &Receiver<()>, deadline: Instant) -> bool {
    request.recv_timeout(deadline.saturating_duration_since(Instant::now())).is_ok()
}

/// Sockets to wait for, together with the backend's latch; the postmaster's death ends the process.
#[derive(Debug)]
pub(super) struct WaitSet {
    set: NonNull<pg_sys::WaitEventSet>,
    sockets: Vec<(c_int, u32)>,
}

impl Drop for WaitSet {
    fn drop(&mut self) {
        // SAFETY: owned, main thread.
        unsafe { pg_sys::FreeWaitEventSet(self.set.as_ptr()) }
    }
}

impl WaitSet {
    pub(super) fn new(sockets: usize) -> Self {
        // SAFETY: main thread; CreateWaitEventSet raises rather than return null, TopMemoryContext outlives the set.
        unsafe {
            let set = pg_sys::CreateWaitEventSet(pg_sys::TopMemoryContext, sockets as c_int + 2);
            let set = Self { set: NonNull::new_unchecked(set), sockets: Vec::with_capacity(sockets) };
            let raw = set.set.as_ptr();
            pg_sys::AddWaitEventToSet(raw, pg_sys::WL_LATCH_SET, -1, pg_sys::MyLatch, null_mut());
            pg_sys::AddWaitEventToSet(raw, pg_sys::WL_EXIT_ON_PM_DEATH, -1, null_mut(), null_mut());
            set
        }
    }

    fn mask(read: bool, write: bool) -> u32 {
        u32::from(read) * pg_sys::WL_SOCKET_READABLE | u32::from(write) * pg_sys::WL_SOCKET_WRITEABLE
    }

    /// Adds a socket, to be waited for in at least one way; at most as many as the set was made for.
    pub(super) fn add(&mut self, socket: c_int, read: bool, write: bool) {
        let mask = Self::mask(read, write);
        // SAFETY: owned, main thread; there is room, and PostgreSQL raises if there weren't.
        let position = unsafe { pg_sys::AddWaitEventToSet(self.set.as_ptr(), mask, socket, null_mut(), null_mut()) };
        self.sockets.push((position, mask));
    }

    /// Changes what is waited for on the n-th socket.
    pub(super) fn set(&mut self, n: usize, read: bool, write: bool) {
        let mask = Self::mask(read, write);
        if let Some((position, now)) = self.sockets.get_mut(n).filter(|s| s.1 != mask) {
            *now = mask;
            // SAFETY: owned, main thread; the position came from AddWaitEventToSet.
            unsafe { pg_sys::ModifyWaitEvent(self.set.as_ptr(), *position, mask, null_mut()) }
        }
    }

    /// Waits; negative is for ever. Resets the latch, so the caller must look at interrupts afterwards.
    pub(super) fn wait(&mut self, timeout_ms: i64) {
        let mut events = [pg_sys::WaitEvent::default(); 2];
        // SAFETY: owned, main thread; the array has two elements.
        unsafe {
            let found = pg_sys::WaitEventSetWait(
                self.set.as_ptr(),
                timeout_ms.max(-1),
                events.as_mut_ptr(),
                2,
                pg_sys::PG_WAIT_EXTENSION,
            );
            if events.iter().take(usize::try_from(found).unwrap_or(0)).any(|e| e.events & pg_sys::WL_LATCH_SET != 0) {
                pg_sys::ResetLatch(pg_sys::MyLatch);
            }
        }
    }
}

/// Waits once for a socket that has no set of its own, such as while connecting.
pub(super) fn wait_socket(socket: c_int, read: bool, timeout_ms: i64) {
    let events = pg_sys::WL_LATCH_SET
        | pg_sys::WL_EXIT_ON_PM_DEATH
        | pg_sys::WL_TIMEOUT
        | if read { pg_sys::WL_SOCKET_READABLE } else { pg_sys::WL_SOCKET_WRITEABLE };
    // SAFETY: main thread; MyLatch is set before any extension runs.
    unsafe {
        let wait_event = pg_sys::PG_WAIT_EXTENSION;
        pg_sys::WaitLatchOrSocket(pg_sys::MyLatch, events as c_int, socket, timeout_ms.max(0), wait_event);
        pg_sys::ResetLatch(pg_sys::MyLatch);
    }
}

/// Serves cancel, timeouts and shutdown; may unwind.
pub(super) fn check_for_interrupts() {
    pgrx::check_for_interrupts!();
}

/// While it lives, a cancel request waits (a shutdown doesn't). PostgreSQL itself resets the count after an error.
#[derive(Debug)]
pub(super) struct HoldCancel(());

impl HoldCancel {
    pub(super) fn new() -> Self {
        // SAFETY: main thread.
        unsafe { pg_sys::QueryCancelHoldoffCount += 1 };
        Self(())
    }
}

impl Drop for HoldCancel {
    fn drop(&mut self) {
        // SAFETY: main thread; saturating, as PostgreSQL may have reset the count.
        unsafe { pg_sys::QueryCancelHoldoffCount = pg_sys::QueryCancelHoldoffCount.saturating_sub(1) };
    }
}

/// An anonymous temporary file of PostgreSQL: counted by `temp_file_limit`, deleted when closed.
#[derive(Debug)]
pub(super) struct TempFile(NonNull<pg_sys::BufFile>);

impl Drop for TempFile {
    fn drop(&mut self) {
        // SAFETY: owned, main thread; the file belongs to no resource owner, so nobody else closes it.
        unsafe { pg_sys::BufFileClose(self.0.as_ptr()) }
    }
}

impl TempFile {
    /// An empty file, which lives until its drop, whatever becomes of the transaction.
    pub(super) fn create() -> Self {
        // SAFETY: main thread; BufFileCreateTemp raises rather than return null. The context is restored at once, and
        // PostgreSQL restores it itself after an error.
        unsafe {
            let old = pg_sys::MemoryContextSwitchTo(pg_sys::TopMemoryContext);
            pg_sys::PrepareTempTablespaces();
            let file = pg_sys::BufFileCreateTemp(true);
            pg_sys::MemoryContextSwitchTo(old);
            Self(NonNull::new_unchecked(file))
        }
    }

    pub(super) fn write(&mut self, bytes: &[u8]) {
        // SAFETY: owned, main thread; the bytes are only read.
        unsafe { pg_sys::BufFileWrite(self.0.as_ptr(), bytes.as_ptr().cast_mut().cast(), bytes.len()) }
    }

    pub(super) fn rewind(&mut self) -> bool {
        // SAFETY: owned, main thread.
        unsafe { pg_sys::BufFileSeek(self.0.as_ptr(), 0, 0, libc::SEEK_SET) == 0 }
    }

    /// Fills the buffer; false at the end of the file.
    pub(super) fn read(&mut self, buffer: &mut [u8]) -> bool {
        // SAFETY: owned, main thread; the buffer is as long as said.
        unsafe { pg_sys::BufFileRead(self.0.as_ptr(), buffer.as_mut_ptr().cast(), buffer.len()) == buffer.len() }
    }
}

/// `work_mem` in bytes.
pub(super) fn work_mem() -> usize {
    // SAFETY: main thread.
    unsafe { usize::try_from(pg_sys::work_mem).unwrap_or(0) * 1024 }
}

/// What the local transaction is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Local {
    /// 1 outside of subtransactions
    pub(super) level: i32,
    /// REPEATABLE READ or stricter
    pub(super) one_snapshot: bool,
    pub(super) read_only: bool,
}

/// The local transaction's properties.
pub(super) fn local() -> Local {
    // SAFETY: main thread.
    unsafe {
        Local {
            level: pg_sys::GetCurrentTransactionNestLevel(),
            one_snapshot: pg_sys::XactIsoLevel >= pg_sys::XACT_REPEATABLE_READ as c_int,
            read_only: pg_sys::XactReadOnly,
        }
    }
}

/// True if the local transaction has written something.
pub(super) fn local_writes() -> bool {
    // SAFETY: main thread.
    unsafe { pg_sys::GetTopTransactionIdIfAny() != pg_sys::InvalidTransactionId }
}

/// The local transaction's id with its epoch, assigned now if it has none.
pub(super) fn local_xid() -> u64 {
    // SAFETY: main thread, in a transaction.
    unsafe { pg_sys::GetTopFullTransactionId().value }
}

pub(super) fn process_id() -> i32 {
    // SAFETY: main thread.
    unsafe { pg_sys::MyProcPid }
}

pub(super) fn current_user() -> Oid {
    // SAFETY: main thread.
    unsafe { pg_sys::GetUserId() }
}

pub(super) fn is_superuser(user: Oid) -> bool {
    // SAFETY: main thread, in a transaction.
    unsafe { pg_sys::superuser_arg(user) }
}

pub(super) fn may_use_server(server: Oid, user: Oid) -> bool {
    // SAFETY: main thread, in a transaction.
    unsafe {
        pg_sys::pg_foreign_server_aclcheck(server, user, pg_sys::ACL_USAGE as pg_sys::AclMode)
            == pg_sys::AclResult::ACLCHECK_OK
    }
}

pub(super) fn database_encoding() -> String {
    // SAFETY: main thread; the name is a static string.
    unsafe { text(pg_sys::GetDatabaseEncodingName()) }.unwrap_or_default()
}

pub(super) fn user_name(user: Oid) -> String {
    // SAFETY: main thread, in a transaction; the second argument asks for null instead of an error.
    unsafe { text(pg_sys::GetUserNameFromId(user, true)) }.unwrap_or_else(|| user.to_u32().to_string())
}

/// A foreign server.
#[derive(Debug)]
pub(super) struct Server {
    pub(super) name: String,
    pub(super) options: Vec<(String, String)>,
    /// its hash value in invalidation messages
    pub(super) hash: u32,
}

/// A user's mapping at a server: their own or PUBLIC's.
#[derive(Debug)]
pub(super) struct Mapping {
    pub(super) options: Vec<(String, String)>,
    pub(super) hash: u32,
}

/// Looks a server up; None if there is none.
pub(super) fn server(oid: Oid) -> Option<Server> {
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

/// Looks a user's mapping up; None if there is none.
pub(super) fn mapping(server: Oid, user: Oid) -> Option<Mapping> {
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

/// The keywords that libpq knows in connection strings, without those for debugging.
pub(super) fn libpq_keywords() -> &'static [String] {
    static KEYWORDS: OnceLock<Vec<String>> = OnceLock::new();
    KEYWORDS.get_or_init(|| {
        // SAFETY: the array is libpq's, ends with a null keyword, and is freed once.
        unsafe {
            let first = pq_sys::PQconndefaults();
            let all = conninfo(first, |option| {
                let debug = text(option.dispchar).is_some_and(|d| d.contains('D'));
                (!debug).then(|| text(option.keyword)).flatten()
            });
            pq_sys::PQconninfoFree(first);
            all
        }
    })
}

/// The options that a libpq connection string or URI sets; None if it cannot be parsed (libpq's message isn't
/// repeated, as it may quote a password).
pub(super) fn parse_conninfo(conninfo_text: &str) -> Option<Vec<(String, String)>> {
    let given = CString::new(conninfo_text).ok()?;
    let mut message = null_mut();
    // SAFETY: the array is libpq's, ends with a null keyword, and is freed once, as is the message.
    unsafe {
        let first = pq_sys::PQconninfoParse(given.as_ptr(), &raw mut message);
        pq_sys::PQfreemem(message.cast());
        if first.is_null() {
            return None;
        }
        let all = conninfo(first, |option| Some((text(option.keyword)?, text(option.val)?)));
        pq_sys::PQconninfoFree(first);
        Some(all)
    }
}

/// # Safety
/// `option` is null or points to an array that ends with a null keyword.
unsafe fn conninfo<T>(
    mut option: *mut pq_sys::PQconninfoOption,
    mut f: impl FnMut(&pq_sys::PQconninfoOption) -> Option<T>,
) -> Vec<T> {
    let mut all = Vec::new();
    // SAFETY: the caller's promise.
    unsafe {
        while !option.is_null() && !(*option).keyword.is_null() {
            all.extend(f(&*option));
            option = option.add(1);
        }
    }
    all
}

/// What the server tells about the local transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Event {
    /// may raise
    PreCommit,
    /// may raise
    PrePrepare,
    Committed,
    Aborted,
    /// a subtransaction, at this level, is about to commit
    PreCommitSub(i32),
    /// a subtransaction, at this level, was aborted
    AbortedSub(i32),
}

/// What a syscache invalidation names: a server or a mapping, by hash value (0 is all of them).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Invalidated {
    Server(u32),
    Mapping(u32),
}

static HANDLERS: OnceLock<(fn(Event), fn(Invalidated))> = OnceLock::new();

fn tell(event: Event) {
    let Some((handler, _)) = HANDLERS.get() else { return };
    match event {
        Event::PreCommit | Event::PrePrepare | Event::PreCommitSub(_) => handler(event),
        // An error here would make PostgreSQL abort within an abort, or panic within a commit.
        _ => drop(std::panic::catch_unwind(|| handler(event))),
    }
}

#[pg_guard]
unsafe extern "C-unwind" fn on_xact(event: pg_sys::XactEvent::Type, _arg: *mut c_void) {
    match event {
        pg_sys::XactEvent::XACT_EVENT_PRE_COMMIT => tell(Event::PreCommit),
        pg_sys::XactEvent::XACT_EVENT_PRE_PREPARE => tell(Event::PrePrepare),
        pg_sys::XactEvent::XACT_EVENT_COMMIT | pg_sys::XactEvent::XACT_EVENT_PREPARE => tell(Event::Committed),
        pg_sys::XactEvent::XACT_EVENT_ABORT => tell(Event::Aborted),
        _ => {}
    }
}

#[pg_guard]
unsafe extern "C-unwind" fn on_sub_xact(
    event: pg_sys::SubXactEvent::Type,
    _sub: pg_sys::SubTransactionId,
    _parent: pg_sys::SubTransactionId,
    _arg: *mut c_void,
) {
    match event {
        pg_sys::SubXactEvent::SUBXACT_EVENT_PRE_COMMIT_SUB => tell(Event::PreCommitSub(local().level)),
        pg_sys::SubXactEvent::SUBXACT_EVENT_ABORT_SUB => tell(Event::AbortedSub(local().level)),
        _ => {}
    }
}

#[pg_guard]
unsafe extern "C-unwind" fn on_invalidation(_arg: pg_sys::Datum, cache: c_int, hash: u32) {
    if let Some((_, handler)) = HANDLERS.get() {
        let server = cache == pg_sys::SysCacheIdentifier::FOREIGNSERVEROID as c_int;
        handler(if server { Invalidated::Server(hash) } else { Invalidated::Mapping(hash) });
    }
}

/// Registers the handlers for the life of this process; only the first call does.
pub(super) fn register(event: fn(Event), invalidated: fn(Invalidated)) {
    if HANDLERS.set((event, invalidated)).is_err() {
        return;
    }
    // SAFETY: main thread; the callbacks are static functions, and an extension library is never unloaded.
    unsafe {
        pg_sys::RegisterXactCallback(Some(on_xact), null_mut());
        pg_sys::RegisterSubXactCallback(Some(on_sub_xact), null_mut());
        for cache in [pg_sys::SysCacheIdentifier::FOREIGNSERVEROID, pg_sys::SysCacheIdentifier::USERMAPPINGOID] {
            pg_sys::CacheRegisterSyscacheCallback(cache as c_int, Some(on_invalidation), pg_sys::Datum::from(0));
        }
    }
}

/// Runs `f` with a fresh snapshot, as statements at commit time need one.
pub(super) fn with_snapshot<T>(f: impl FnOnce() -> T) -> T {
    // SAFETY: main thread, in a transaction; an error unwinds the stack of snapshots by itself.
    unsafe { pg_sys::PushActiveSnapshot(pg_sys::GetTransactionSnapshot()) };
    let value = f();
    // SAFETY: pushed above.
    unsafe { pg_sys::PopActiveSnapshot() };
    value
}
