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

/// Fields of an error report.
#[derive(Debug, Clone, Copy)]
pub enum Field {
    Severity = pq_sys::PG_DIAG_SEVERITY_NONLOCALIZED as isize,
    Sqlstate = pq_sys::PG_DIAG_SQLSTATE as isize,
    Message = pq_sys::PG_DIAG_MESSAGE_PRIMARY as isize,
    Detail = pq_sys::PG_DIAG_MESSAGE_DETAIL as isize,
    Hint = pq_sys::PG_DIAG_MESSAGE_HINT as isize,
    Context = pq_sys::PG_DIAG_CONTEXT as isize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Status {
    /// the end of a command without rows
    Command,
    /// all rows, or the end of the rows in single-row mode
    Rows,
    /// in single-row mode
    Row,
    /// a pipeline's synchronisation point
    Sync,
    /// after an error in the pipeline
    Skipped,
    Error,
    /// such as COPY
    Unexpected,
}

/// The most bytes of a message that are passed on: the client gets it, and the server's log.
const MAX_MESSAGE: usize = 16 << 10;

/// The beginning of a message; None if null.
///
/// # Safety
/// `message` is null or a C string that lives during the call.
unsafe fn clipped(message: *const c_char) -> Option<String> {
    // SAFETY: promised by the caller.
    let bytes = unsafe { (!message.is_null()).then(|| CStr::from_ptr(message).to_bytes())? };
    match bytes.get(..MAX_MESSAGE) {
        None => Some(String::from_utf8_lossy(bytes).into_owned()),
        Some(first) => {
            let mut message = String::from_utf8_lossy(first).trim_end_matches(char::REPLACEMENT_CHARACTER).to_owned();
            message.push_str(" …");
            Some(message)
        }
    }
}

#[derive(Debug)]
pub struct PgResult(NonNull<pq_sys::PGresult>);

impl Drop for PgResult {
    fn drop(&mut self) {
        // SAFETY: owned.
        unsafe { pq_sys::PQclear(self.0.as_ptr()) }
    }
}

impl PgResult {
    pub fn status(&self) -> Status {
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

    pub fn rows(&self) -> c_int {
        // SAFETY: owned.
        unsafe { pq_sys::PQntuples(self.0.as_ptr()) }
    }

    pub fn columns(&self) -> c_int {
        // SAFETY: owned.
        unsafe { pq_sys::PQnfields(self.0.as_ptr()) }
    }

    /// None for NULL, or if there is no such row or column.
    pub fn value(&self, row: c_int, column: usize) -> Option<&[u8]> {
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

    /// The row count of the command tag.
    pub fn affected(&self) -> u64 {
        // SAFETY: owned; the string belongs to the result.
        let text = unsafe { CStr::from_ptr(pq_sys::PQcmdTuples(self.0.as_ptr())) };
        text.to_str().ok().and_then(|s| s.parse().ok()).unwrap_or(0)
    }

    pub fn tag_is(&self, tag: &str) -> bool {
        // SAFETY: owned; the string belongs to the result.
        unsafe { CStr::from_ptr(pq_sys::PQcmdStatus(self.0.as_ptr())) }.to_bytes() == tag.as_bytes()
    }

    /// A field of the error report.
    pub fn field(&self, field: Field) -> Option<String> {
        // SAFETY: owned; the string belongs to the result, or is null.
        unsafe { clipped(pq_sys::PQresultErrorField(self.0.as_ptr(), field as c_int)) }
    }

    /// True if the server closes the connection after the error.
    pub fn is_fatal(&self) -> bool {
        self.field(Field::Severity).is_some_and(|s| s != "ERROR")
    }

    /// The whole message, for libpq's own errors.
    pub fn message(&self) -> String {
        // SAFETY: owned; the string belongs to the result.
        unsafe { clipped(pq_sys::PQresultErrorMessage(self.0.as_ptr())) }.unwrap_or_default().trim().to_owned()
    }
}

/// The state of a connection attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Poll {
    /// waits for the socket to become readable
    Reading,
    /// waits for the socket to become writable
    Writing,
    Ready,
    Failed,
}

/// The remote transaction's state according to the last answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Xact {
    Idle,
    /// a command is running
    Active,
    Open,
    Failed,
    /// the connection is bad
    Unknown,
}

/// A connection, and the wait-event set of its socket.
#[derive(Debug)]
pub struct PgConn {
    conn: NonNull<pq_sys::PGconn>,
    wait: Option<WaitSet>,
}

impl Drop for PgConn {
    fn drop(&mut self) {
        self.wait = None;
        // SAFETY: owned, main thread; the descriptor was acquired by `start`. libpq's memory is not PostgreSQL's.
        unsafe {
            pq_sys::PQfinish(self.conn.as_ptr());
            pg_sys::ReleaseExternalFD();
        }
    }
}

/// Discards notices of shards, which libpq would write into the server's log.
unsafe extern "C" fn no_notice(_arg: *mut c_void, _result: *const pq_sys::PGresult) {}

/// Functions of libpq without arguments that return an int, not 0 for true.
macro_rules! calls {
    ($($(#[$doc:meta])* $name:ident: $function:ident;)*) => {
        impl PgConn {
            $($(#[$doc])* pub fn $name(&mut self) -> bool {
                // SAFETY: owned.
                unsafe { pq_sys::$function(self.conn.as_ptr()) != 0 }
            })*
        }
    };
}

calls! {
    /// Reads what has arrived; false if the connection is lost.
    consume: PQconsumeInput;
    /// True if the next result has not arrived.
    is_busy: PQisBusy;
    enter_pipeline: PQenterPipelineMode;
    exit_pipeline: PQexitPipelineMode;
    sync: PQpipelineSync;
    /// Requests the outstanding answers, without ending the pipeline.
    request_flush: PQsendFlushRequest;
    /// Returns the next command's rows one by one.
    single_row_mode: PQsetSingleRowMode;
    used_password: PQconnectionUsedPassword;
}

impl PgConn {
    /// Begins to connect. None without memory or file descriptors, or if an option contains NUL.
    pub fn start(options: &[(String, String)]) -> Option<Self> {
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
                    // Only so the error of a refused login contains its SQLSTATE.
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

    /// Continues to connect.
    pub fn poll(&mut self) -> Poll {
        use pq_sys::PostgresPollingStatusType as P;
        // SAFETY: owned.
        match unsafe { pq_sys::PQconnectPoll(self.conn.as_ptr()) } {
            P::PGRES_POLLING_READING => Poll::Reading,
            P::PGRES_POLLING_WRITING => Poll::Writing,
            P::PGRES_POLLING_OK => Poll::Ready,
            _ => Poll::Failed,
        }
    }

    /// Called when the connection is ready: makes it non-blocking.
    pub fn established(&mut self) -> bool {
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

    /// Returns a setting that the server reports without being asked.
    pub fn reported(&self, name: &CStr) -> Option<String> {
        // SAFETY: owned; the string belongs to the connection, or is null.
        unsafe { text(pq_sys::PQparameterStatus(self.conn.as_ptr(), name.as_ptr())) }
    }

    pub fn socket(&self) -> c_int {
        // SAFETY: owned.
        unsafe { pq_sys::PQsocket(self.conn.as_ptr()) }
    }

    /// False after the connection was lost.
    pub fn is_good(&self) -> bool {
        // SAFETY: owned.
        unsafe { pq_sys::PQstatus(self.conn.as_ptr()) != pq_sys::ConnStatusType::CONNECTION_BAD }
    }

    pub fn message(&self) -> String {
        // SAFETY: owned; the string belongs to the connection and is copied.
        unsafe { clipped(pq_sys::PQerrorMessage(self.conn.as_ptr())) }.unwrap_or_default().trim().to_owned()
    }

    pub fn xact(&self) -> Xact {
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

    /// True if the server has not closed the connection, while no answer is outstanding. Takes one system call if nothing has arrived.
    pub fn is_open_and_quiet(&mut self) -> bool {
        let mut byte = 0u8;
        // SAFETY: the buffer is one byte long, and MSG_PEEK leaves what arrived to libpq.
        let peeked =
            unsafe { libc::recv(self.socket(), (&raw mut byte).cast(), 1, libc::MSG_PEEK | libc::MSG_DONTWAIT) };
        match peeked {
            0 => false,
            // The first read gets what has arrived, such as a FATAL error; the second one the end of the stream.
            1.. => self.consume() && (self.is_busy() || self.consume()) && self.is_good(),
            _ => matches!(
                std::io::Error::last_os_error().kind(),
                std::io::ErrorKind::WouldBlock | std::io::ErrorKind::Interrupted
            ),
        }
    }

    /// The next result; None at a command's end. Doesn't block if `is_busy` is false and everything is flushed.
    pub fn result(&mut self) -> Option<PgResult> {
        // SAFETY: owned; the result becomes owned.
        NonNull::new(unsafe { pq_sys::PQgetResult(self.conn.as_ptr()) }).map(PgResult)
    }

    /// Writes what the socket accepts; true if that is everything, None if the connection is lost.
    pub fn flush(&mut self) -> Option<bool> {
        // SAFETY: owned.
        match unsafe { pq_sys::PQflush(self.conn.as_ptr()) } {
            0 => Some(true),
            1 => Some(false),
            _ => None,
        }
    }

    /// Sends any number of statements by the simple query protocol.
    pub fn send_text(&mut self, sql: &CStr) -> bool {
        // SAFETY: owned; libpq copies the text.
        unsafe { pq_sys::PQsendQuery(self.conn.as_ptr(), sql.as_ptr()) != 0 }
    }

    /// Sends one unprepared statement, which returns binary results.
    pub fn send_params(&mut self, sql: &CStr, params: &Encoded) -> bool {
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

    pub fn send_prepare(&mut self, name: &CStr, sql: &CStr, types: &[pq_sys::Oid]) -> bool {
        // SAFETY: owned; libpq copies everything.
        unsafe {
            pq_sys::PQsendPrepare(self.conn.as_ptr(), name.as_ptr(), sql.as_ptr(), types.len() as c_int, types.as_ptr())
                != 0
        }
    }

    pub fn send_prepared(&mut self, name: &CStr, params: &Encoded) -> bool {
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

    /// Waits, like [`WaitSet::wait`], until the socket is readable, or writable if `write`.
    pub fn wait(&mut self, write: bool, timeout_ms: i64) -> Woken {
        let Some(wait) = &mut self.wait else { return Woken::Sign };
        wait.set(0, true, write);
        wait.wait(timeout_ms)
    }

    /// A cancel request for the running statement; None if the connection is not open.
    pub fn canceller(&self) -> Option<Cancel> {
        // SAFETY: owned.
        NonNull::new(unsafe { pq_sys::PQgetCancel(self.conn.as_ptr()) }).map(Cancel)
    }
}

/// The number of unfinished cancel requests.
static UNDER_WAY: AtomicUsize = AtomicUsize::new(0);
const MAX_UNDER_WAY: usize = 16;

/// A cancel request.
#[derive(Debug)]
pub struct Cancel(NonNull<pq_sys::PGcancel>);

// SAFETY: libpq documents PGcancel as usable from any thread, apart from its connection.
unsafe impl Send for Cancel {}

impl Drop for Cancel {
    fn drop(&mut self) {
        // SAFETY: owned.
        unsafe { pq_sys::PQfreeCancel(self.0.as_ptr()) }
    }
}

impl Cancel {
    /// Sends the request. PQcancel connects and waits without a time limit, so a thread does it, which uses only this object and blocks
    /// all signals, as they are the backend's. The receiver is notified when the server has accepted the request. With a stopped
    /// postmaster requests never finish, so beyond [`MAX_UNDER_WAY`] none is sent.
    pub fn send(self) -> Receiver<()> {
        let (done, receiver) = channel();
        if UNDER_WAY.load(Ordering::Relaxed) >= MAX_UNDER_WAY {
            return receiver;
        }
        UNDER_WAY.fetch_add(1, Ordering::Relaxed);
        let mut old = MaybeUninit::<libc::sigset_t>::uninit();
        // SAFETY: the sets are this frame's own; sigfillset and pthread_sigmask initialise them.
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

/// Waits for a cancel request. If false, the connection must not be used any more, as the request may cancel a later statement.
pub fn await_cancel(request: &Receiver<()>, deadline: Instant) -> bool {
    request.recv_timeout(deadline.saturating_duration_since(Instant::now())).is_ok()
}

/// libpq's keywords in connection strings, except those for debugging.
pub fn libpq_keywords() -> &'static [String] {
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

/// The options of a connection string or URI; None if it cannot be parsed. libpq's message may contain a password.
pub fn parse_conninfo(conninfo_text: &str) -> Option<Vec<(String, String)>> {
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
