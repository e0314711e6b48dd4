//! libpq: connections, results, cancel requests, connection strings.

use super::backend::{WaitSet, Woken, text};
use crate::remote::param::Encoded;
use pgrx::pg_sys;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::mem::MaybeUninit;
use std::ptr::{NonNull, null, null_mut};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::time::Instant;

/// Fields of an error report, `PG_DIAG_*`.
#[derive(Debug, Clone, Copy)]
pub(in crate::remote) enum Field {
    Severity = pq_sys::PG_DIAG_SEVERITY_NONLOCALIZED as isize,
    Sqlstate = pq_sys::PG_DIAG_SQLSTATE as isize,
    Message = pq_sys::PG_DIAG_MESSAGE_PRIMARY as isize,
    Detail = pq_sys::PG_DIAG_MESSAGE_DETAIL as isize,
    Hint = pq_sys::PG_DIAG_MESSAGE_HINT as isize,
    Context = pq_sys::PG_DIAG_CONTEXT as isize,
}

/// What a result says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::remote) enum Status {
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
pub(in crate::remote) struct PgResult(NonNull<pq_sys::PGresult>);

impl Drop for PgResult {
    fn drop(&mut self) {
        // SAFETY: owned.
        unsafe { pq_sys::PQclear(self.0.as_ptr()) }
    }
}

impl PgResult {
    pub(in crate::remote) fn status(&self) -> Status {
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

    pub(in crate::remote) fn rows(&self) -> c_int {
        // SAFETY: owned.
        unsafe { pq_sys::PQntuples(self.0.as_ptr()) }
    }

    pub(in crate::remote) fn columns(&self) -> c_int {
        // SAFETY: owned.
        unsafe { pq_sys::PQnfields(self.0.as_ptr()) }
    }

    /// A value; None is NULL, or a row or column that isn't there.
    pub(in crate::remote) fn value(&self, row: c_int, column: usize) -> Option<&[u8]> {
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
    pub(in crate::remote) fn affected(&self) -> u64 {
        // SAFETY: owned; the string belongs to the result.
        let text = unsafe { CStr::from_ptr(pq_sys::PQcmdTuples(self.0.as_ptr())) };
        text.to_str().ok().and_then(|s| s.parse().ok()).unwrap_or(0)
    }

    /// True if the command tag is exactly this.
    pub(in crate::remote) fn tag_is(&self, tag: &str) -> bool {
        // SAFETY: owned; the string belongs to the result.
        unsafe { CStr::from_ptr(pq_sys::PQcmdStatus(self.0.as_ptr())) }.to_bytes() == tag.as_bytes()
    }

    /// A field of the error report.
    pub(in crate::remote) fn field(&self, field: Field) -> Option<String> {
        // SAFETY: owned; the string belongs to the result, or is null.
        unsafe { text(pq_sys::PQresultErrorField(self.0.as_ptr(), field as c_int)) }
    }

    /// True if the server closes the connection after this error.
    pub(in crate::remote) fn is_fatal(&self) -> bool {
        self.field(Field::Severity).is_some_and(|s| s != "ERROR")
    }

    /// The whole message, for an error that libpq made itself.
    pub(in crate::remote) fn message(&self) -> String {
        // SAFETY: owned; the string belongs to the result.
        unsafe { text(pq_sys::PQresultErrorMessage(self.0.as_ptr())) }.unwrap_or_default().trim().to_owned()
    }
}

/// How far a connection attempt is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::remote) enum Poll {
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
pub(in crate::remote) enum Xact {
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
pub(in crate::remote) struct PgConn {
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
    pub(in crate::remote) fn start(options: &[(String, String)]) -> Option<Self> {
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
                    // A login that is refused tells its SQLSTATE only so.
                    pq_sys::PQsetErrorVerbosity(conn.as_ptr(), pq_sys::PGVerbosity::PQERRORS_VERBOSE);
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
    pub(in crate::remote) fn poll(&mut self) -> Poll {
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
    pub(in crate::remote) fn established(&mut self) -> bool {
        // SAFETY: owned.
        let non_blocking = unsafe {
            pq_sys::PQsetErrorVerbosity(self.conn.as_ptr(), pq_sys::PGVerbosity::PQERRORS_DEFAULT);
            pq_sys::PQsetnonblocking(self.conn.as_ptr(), 1) == 0
        };
        let mut wait = WaitSet::new(1);
        wait.add(self.socket(), true, false);
        self.wait = Some(wait);
        non_blocking
    }

    /// A setting that the server reports by itself, as it was last reported.
    pub(in crate::remote) fn reported(&self, name: &CStr) -> Option<String> {
        // SAFETY: owned; the string belongs to the connection, or is null.
        unsafe { text(pq_sys::PQparameterStatus(self.conn.as_ptr(), name.as_ptr())) }
    }

    pub(in crate::remote) fn socket(&self) -> c_int {
        // SAFETY: owned.
        unsafe { pq_sys::PQsocket(self.conn.as_ptr()) }
    }

    /// False after the connection was lost.
    pub(in crate::remote) fn is_good(&self) -> bool {
        // SAFETY: owned.
        unsafe { pq_sys::PQstatus(self.conn.as_ptr()) != pq_sys::ConnStatusType::CONNECTION_BAD }
    }

    pub(in crate::remote) fn message(&self) -> String {
        // SAFETY: owned; the string belongs to the connection and is copied.
        unsafe { text(pq_sys::PQerrorMessage(self.conn.as_ptr())) }.unwrap_or_default().trim().to_owned()
    }

    pub(in crate::remote) fn used_password(&self) -> bool {
        // SAFETY: owned.
        unsafe { pq_sys::PQconnectionUsedPassword(self.conn.as_ptr()) != 0 }
    }

    pub(in crate::remote) fn xact(&self) -> Xact {
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

    /// While no answer is outstanding: true if the other side hasn't closed the connection. Costs one system call as
    /// long as nothing has arrived.
    pub(in crate::remote) fn is_open_and_quiet(&mut self) -> bool {
        let mut byte = 0u8;
        // SAFETY: the buffer is one byte long, and MSG_PEEK leaves what arrived to libpq.
        let peeked =
            unsafe { libc::recv(self.socket(), (&raw mut byte).cast(), 1, libc::MSG_PEEK | libc::MSG_DONTWAIT) };
        match peeked {
            0 => false,
            // The first reading takes what arrived, such as a farewell; the second finds the end behind it.
            1.. => self.consume() && (self.is_busy() || self.consume()) && self.is_good(),
            _ => matches!(
                std::io::Error::last_os_error().kind(),
                std::io::ErrorKind::WouldBlock | std::io::ErrorKind::Interrupted
            ),
        }
    }

    /// Reads what has arrived; false if the connection is lost.
    pub(in crate::remote) fn consume(&mut self) -> bool {
        // SAFETY: owned.
        unsafe { pq_sys::PQconsumeInput(self.conn.as_ptr()) != 0 }
    }

    /// True if the next result hasn't arrived.
    pub(in crate::remote) fn is_busy(&mut self) -> bool {
        // SAFETY: owned.
        unsafe { pq_sys::PQisBusy(self.conn.as_ptr()) != 0 }
    }

    /// The next result, None at a command's end. Doesn't block where `is_busy` is false and all is flushed.
    pub(in crate::remote) fn result(&mut self) -> Option<PgResult> {
        // SAFETY: owned; the result becomes owned.
        NonNull::new(unsafe { pq_sys::PQgetResult(self.conn.as_ptr()) }).map(PgResult)
    }

    /// Writes what the socket takes: true if everything, None if the connection is lost.
    pub(in crate::remote) fn flush(&mut self) -> Option<bool> {
        // SAFETY: owned.
        match unsafe { pq_sys::PQflush(self.conn.as_ptr()) } {
            0 => Some(true),
            1 => Some(false),
            _ => None,
        }
    }

    pub(in crate::remote) fn enter_pipeline(&mut self) -> bool {
        // SAFETY: owned.
        unsafe { pq_sys::PQenterPipelineMode(self.conn.as_ptr()) != 0 }
    }

    pub(in crate::remote) fn exit_pipeline(&mut self) -> bool {
        // SAFETY: owned.
        unsafe { pq_sys::PQexitPipelineMode(self.conn.as_ptr()) != 0 }
    }

    pub(in crate::remote) fn sync(&mut self) -> bool {
        // SAFETY: owned.
        unsafe { pq_sys::PQpipelineSync(self.conn.as_ptr()) != 0 }
    }

    /// Asks the server to send what it has answered so far, without ending the pipeline.
    pub(in crate::remote) fn request_flush(&mut self) -> bool {
        // SAFETY: owned.
        unsafe { pq_sys::PQsendFlushRequest(self.conn.as_ptr()) != 0 }
    }

    /// The command whose results come next gives them row by row.
    pub(in crate::remote) fn single_row_mode(&mut self) -> bool {
        // SAFETY: owned.
        unsafe { pq_sys::PQsetSingleRowMode(self.conn.as_ptr()) != 0 }
    }

    /// Simple query protocol: any number of statements.
    pub(in crate::remote) fn send_text(&mut self, sql: &CStr) -> bool {
        // SAFETY: owned; libpq copies the text.
        unsafe { pq_sys::PQsendQuery(self.conn.as_ptr(), sql.as_ptr()) != 0 }
    }

    /// One statement, unprepared, binary results.
    pub(in crate::remote) fn send_params(&mut self, sql: &CStr, params: &Encoded) -> bool {
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

    pub(in crate::remote) fn send_prepare(&mut self, name: &CStr, sql: &CStr, types: &[pq_sys::Oid]) -> bool {
        // SAFETY: owned; libpq copies everything.
        unsafe {
            pq_sys::PQsendPrepare(self.conn.as_ptr(), name.as_ptr(), sql.as_ptr(), types.len() as c_int, types.as_ptr())
                != 0
        }
    }

    pub(in crate::remote) fn send_prepared(&mut self, name: &CStr, params: &Encoded) -> bool {
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

    /// Waits until the socket is readable, writable if `write`, the latch is set or the time is over, as [`WaitSet::wait`].
    pub(in crate::remote) fn wait(&mut self, write: bool, timeout_ms: i64) -> Woken {
        let Some(wait) = &mut self.wait else { return Woken::Sign };
        wait.set(0, true, write);
        wait.wait(timeout_ms)
    }

    /// What it takes to cancel the connection's running statement; None if the connection is not open.
    pub(in crate::remote) fn canceller(&self) -> Option<Cancel> {
        // SAFETY: owned.
        NonNull::new(unsafe { pq_sys::PQgetCancel(self.conn.as_ptr()) }).map(Cancel)
    }
}

/// How many cancel requests are under way, and how many may be.
static UNDER_WAY: AtomicUsize = AtomicUsize::new(0);
const MAX_UNDER_WAY: usize = 16;

/// A cancel request that is ready to be sent.
#[derive(Debug)]
pub(in crate::remote) struct Cancel(NonNull<pq_sys::PGcancel>);

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
    /// A request that a stopped postmaster does not take stays under way; so there is a limit to them, beyond which none is
    /// sent, and the connection is closed as if it had not been taken.
    pub(in crate::remote) fn send(self) -> Receiver<()> {
        let (done, receiver) = channel();
        if UNDER_WAY.load(Ordering::Relaxed) >= MAX_UNDER_WAY {
            return receiver;
        }
        UNDER_WAY.fetch_add(1, Ordering::Relaxed);
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
            UNDER_WAY.fetch_sub(1, Ordering::Relaxed);
        });
        // SAFETY: `old` was initialised above.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, old.as_ptr(), null_mut()) };
        if spawned.is_err() {
            UNDER_WAY.fetch_sub(1, Ordering::Relaxed);
        }
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
pub(in crate::remote) fn await_cancel(request: &Receiver<()>, deadline: Instant) -> bool {
    request.recv_timeout(deadline.saturating_duration_since(Instant::now())).is_ok()
}

/// The keywords that libpq knows in connection strings, without those for debugging.
pub(in crate::remote) fn libpq_keywords() -> &'static [String] {
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
pub(in crate::remote) fn parse_conninfo(conninfo_text: &str) -> Option<Vec<(String, String)>> {
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
