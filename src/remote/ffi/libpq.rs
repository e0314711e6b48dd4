//! A connection to a shard. libpq logs in, sends cancel requests and parses connection strings; [`Channel`] and [`Frontend`] send
//! statements and receive answers.

use super::backend::{WaitSet, Woken, text};
use super::channel::Channel;
use super::login_relay::LoginRelay;
use crate::remote::param::Encoded;
use docshard_core::cluster::frontend::{Answer, Frontend, RELIED_ON, Transaction, clipped};
use docshard_core::sql::column::Columns;
use pgrx::pg_sys;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::mem::MaybeUninit;
use std::ptr::{NonNull, null, null_mut};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::time::Instant;

/// A copy of a message, cut by [`clipped`]; None if null.
///
/// # Safety
/// `message` is null or a C string that lives during the call.
unsafe fn clipped_text(message: *const c_char) -> Option<String> {
    // SAFETY: promised by the caller.
    (!message.is_null()).then(|| clipped(unsafe { CStr::from_ptr(message) }.to_bytes()))
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

/// A connection to a shard.
#[derive(Debug)]
pub struct PgConn {
    conn: NonNull<pq_sys::PGconn>,
    relay: Option<LoginRelay>,
    /// true while libpq waits for data of the server
    reads: bool,
    /// the socket and the protocol; None until the login is complete
    open: Option<(Channel, Frontend)>,
    /// the reason why the connection cannot be used any more
    closed: Option<String>,
    wait: Option<WaitSet>,
}

impl Drop for PgConn {
    fn drop(&mut self) {
        self.wait = None;
        // SAFETY: owned, main thread; the descriptor was acquired by `start`. PQfinish frees only memory that libpq has allocated with
        // malloc, none of a memory context.
        unsafe {
            pq_sys::PQfinish(self.conn.as_ptr());
            pg_sys::ReleaseExternalFD();
        }
    }
}

/// Discards notices that the remote server sends during the login. libpq would write them to stderr, which is the log of this server.
unsafe extern "C" fn no_notice(_arg: *mut c_void, _result: *const pq_sys::PGresult) {}

const UNSUPPORTED: &str = "this kind of encryption is not supported";

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
                    // Without this, the error of a refused login does not contain its SQLSTATE.
                    pq_sys::PQsetErrorVerbosity(conn.as_ptr(), pq_sys::PGVerbosity::PQERRORS_VERBOSE);
                    Some(Self { conn, relay: None, reads: false, open: None, closed: None, wait: None })
                }
                None => {
                    pg_sys::ReleaseExternalFD();
                    None
                }
            }
        }
    }

    /// Continues to connect, after the socket has become ready as the last call has asked.
    pub fn poll(&mut self) -> Poll {
        use pq_sys::PostgresPollingStatusType as P;
        if let Err(why) = self.relay_input() {
            self.closed = Some(why.into());
            return Poll::Failed;
        }
        let mut unread = usize::MAX;
        loop {
            // SAFETY: owned.
            let state = unsafe { pq_sys::PQconnectPoll(self.conn.as_ptr()) };
            if self.relay.as_ref().is_some_and(|relay| !relay.is_used()) {
                self.relay = None;
            }
            if self.relay.as_mut().is_some_and(|relay| !relay.forward()) {
                self.closed = Some("could not send data to server".into());
                return Poll::Failed;
            }
            self.reads = state == P::PGRES_POLLING_READING;
            // Data that the relay has given to libpq does not make the server's socket readable. So libpq is called again until it has read
            // that data or makes no progress.
            let left = self.unread();
            if self.reads && left > 0 && left != unread {
                unread = left;
                continue;
            }
            return match state {
                P::PGRES_POLLING_READING => Poll::Reading,
                P::PGRES_POLLING_WRITING => Poll::Writing,
                P::PGRES_POLLING_OK => self.logged_in(),
                _ => Poll::Failed,
            };
        }
    }

    /// During the login, gives libpq what the server has sent. Does nothing before the socket is connected and after the login.
    fn relay_input(&mut self) -> Result<(), &'static str> {
        use pq_sys::ConnStatusType as S;
        let status = self.status();
        if matches!(status, S::CONNECTION_NEEDED | S::CONNECTION_STARTED | S::CONNECTION_OK | S::CONNECTION_BAD) {
            return Ok(());
        }
        if self.relay.is_none() {
            self.relay = Some(LoginRelay::begin(self.socket()).ok_or("out of file descriptors")?);
        }
        let (reads, channel) = (self.reads, self.login_channel());
        match (self.relay.as_mut().filter(|_| reads), channel) {
            // SAFETY: the session belongs to this connection.
            (Some(relay), Some(channel)) => unsafe { relay.feed_tls(&channel?) },
            (Some(relay), None) => relay.feed(),
            (None, _) => Ok(()),
        }
    }

    fn status(&self) -> pq_sys::ConnStatusType {
        // SAFETY: owned.
        unsafe { pq_sys::PQstatus(self.conn.as_ptr()) }
    }

    /// The encrypted channel of a login whose handshake is complete; None if it is not encrypted or not complete. Before, OpenSSL must not be
    /// called, as it would go on with the handshake.
    fn login_channel(&self) -> Option<Result<Channel, &'static str>> {
        use pq_sys::ConnStatusType as S;
        if matches!(self.status(), S::CONNECTION_SSL_STARTUP | S::CONNECTION_GSS_STARTUP | S::CONNECTION_BAD) {
            return None;
        }
        // SAFETY: owned.
        match unsafe { Channel::of(self.conn.as_ptr()) } {
            Some(Channel::Plain) => None,
            Some(channel) => Some(Ok(channel)),
            None => Some(Err(UNSUPPORTED)),
        }
    }

    /// How many bytes that the server has sent libpq has not read during the login.
    fn unread(&self) -> usize {
        let decrypted = match self.login_channel() {
            // SAFETY: the session belongs to this connection.
            Some(Ok(channel)) => unsafe { channel.pending() },
            _ => 0,
        };
        self.relay.as_ref().map_or(0, |relay| relay.unread() + decrypted)
    }

    /// Takes the connection over from libpq, which has logged in.
    fn logged_in(&mut self) -> Poll {
        let unexpected = "protocol violation: the server has sent more than it was asked for";
        let refused = if self.relay.take().is_some_and(|relay| !relay.end()) { Some(unexpected) } else { None };
        // SAFETY: owned.
        let channel = unsafe {
            pq_sys::PQsetnonblocking(self.conn.as_ptr(), 1);
            Channel::of(self.conn.as_ptr())
        };
        match (channel, refused) {
            (Some(channel), None) => {
                let setting = |name: &str| Some((name.to_owned(), self.reported(&CString::new(name).ok()?)?));
                let settings = RELIED_ON.into_iter().filter_map(setting).collect();
                self.open = Some((channel, Frontend::new(settings)));
                Poll::Ready
            }
            (_, refused) => {
                self.closed = Some(refused.unwrap_or(UNSUPPORTED).into());
                Poll::Failed
            }
        }
    }

    /// Creates the wait set of a connection whose `poll` has returned `Ready`.
    pub fn established(&mut self) {
        let mut wait = WaitSet::new(1);
        wait.add(self.socket(), true, false);
        self.wait = Some(wait);
    }

    pub fn used_password(&self) -> bool {
        // SAFETY: owned.
        unsafe { pq_sys::PQconnectionUsedPassword(self.conn.as_ptr()) != 0 }
    }

    /// Returns a setting that the server reported when the connection was made.
    pub fn reported(&self, name: &CStr) -> Option<String> {
        // SAFETY: owned; the string belongs to the connection, or is null.
        unsafe { text(pq_sys::PQparameterStatus(self.conn.as_ptr(), name.as_ptr())) }
    }

    pub fn socket(&self) -> c_int {
        // SAFETY: owned.
        self.relay.as_ref().map_or_else(|| unsafe { pq_sys::PQsocket(self.conn.as_ptr()) }, LoginRelay::socket)
    }

    /// False once the connection cannot be used any more: it was lost, the server has violated the protocol, or has announced that it
    /// closes the connection.
    pub fn is_good(&self) -> bool {
        // SAFETY: owned.
        let is_bad = unsafe { pq_sys::PQstatus(self.conn.as_ptr()) == pq_sys::ConnStatusType::CONNECTION_BAD };
        let ended = |(_, frontend): &(_, Frontend)| frontend.violation().is_some() || frontend.farewell().is_some();
        !is_bad && self.closed.is_none() && !self.open.as_ref().is_some_and(ended)
    }

    /// What the server has sent in violation of the protocol; None if nothing.
    pub fn violation(&self) -> Option<&str> {
        self.open.as_ref()?.1.violation()
    }

    /// Why the connection was lost, or could not be made.
    pub fn message(&self) -> String {
        if let Some(farewell) = self.open.as_ref().and_then(|(_, frontend)| frontend.farewell()) {
            return farewell.message.clone().unwrap_or_default();
        }
        if let Some(closed) = self.closed.as_deref().or_else(|| self.violation()) {
            return closed.to_owned();
        }
        // SAFETY: owned; the string belongs to the connection and is copied.
        unsafe { clipped_text(pq_sys::PQerrorMessage(self.conn.as_ptr())) }.unwrap_or_default().trim().to_owned()
    }

    pub fn xact(&self) -> Xact {
        match &self.open {
            Some((_, frontend)) if self.is_good() => match frontend.transaction() {
                _ if frontend.is_active() => Xact::Active,
                Transaction::None => Xact::Idle,
                Transaction::Open => Xact::Open,
                Transaction::Failed => Xact::Failed,
            },
            _ => Xact::Unknown,
        }
    }

    /// True if the connection is still open. Must not be called while an answer is outstanding. Makes one system call if nothing has
    /// arrived.
    pub fn is_open_and_quiet(&mut self) -> bool {
        let mut byte = 0u8;
        // SAFETY: the buffer is one byte long, and MSG_PEEK leaves what arrived.
        let peeked =
            unsafe { libc::recv(self.socket(), (&raw mut byte).cast(), 1, libc::MSG_PEEK | libc::MSG_DONTWAIT) };
        match peeked {
            0 => false,
            // The first read gets what has arrived, such as a FATAL error; the second one the end of the stream.
            1.. => self.consume() && !self.is_busy() && self.consume() && self.is_good(),
            _ => matches!(
                std::io::Error::last_os_error().kind(),
                std::io::ErrorKind::WouldBlock | std::io::ErrorKind::Interrupted
            ),
        }
    }

    /// Reads what has arrived; false if the connection is lost.
    pub fn consume(&mut self) -> bool {
        let socket = self.socket();
        let Some((channel, frontend)) = &mut self.open else { return false };
        if self.closed.is_some() || frontend.violation().is_some() {
            return false;
        }
        // SAFETY: both belong to this connection, which is open.
        match unsafe { channel.read(socket, frontend.space()) } {
            Ok(0) => self.closed = Some("server closed the connection unexpectedly".into()),
            Ok(length) => frontend.received(length),
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
            Err(error) => self.closed = Some(format!("could not receive data from server: {error}")),
        }
        self.closed.is_none()
    }

    /// Writes what the socket accepts; true if nothing is left. After a write error the remaining output is discarded and true is returned:
    /// a later `consume` reports the lost connection, when the server's last message has been read.
    pub fn flush(&mut self) -> bool {
        let socket = self.socket();
        let Some((channel, frontend)) = &mut self.open else { return true };
        while !frontend.unwritten().is_empty() {
            // SAFETY: both belong to this connection, which is open.
            match unsafe { channel.write(socket, frontend.unwritten()) } {
                Ok(written) if written > 0 => frontend.wrote(written),
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => return false,
                _ => frontend.wrote(usize::MAX),
            }
        }
        true
    }

    fn frontend<T>(&mut self, f: impl FnOnce(&mut Frontend) -> T) -> Option<T> {
        self.open.as_mut().map(|(_, frontend)| f(frontend))
    }

    /// True while an answer is due whose next part has not arrived.
    pub fn is_busy(&mut self) -> bool {
        self.frontend(Frontend::is_busy).unwrap_or(false)
    }

    /// The next part of an answer; None at its end. For use when `is_busy` is false.
    pub fn result(&mut self) -> Option<Answer> {
        self.frontend(Frontend::take).flatten()
    }

    pub fn enter_pipeline(&mut self) -> bool {
        self.frontend(Frontend::enter_pipeline).unwrap_or(false)
    }

    pub fn exit_pipeline(&mut self) -> bool {
        self.frontend(Frontend::exit_pipeline).unwrap_or(false)
    }

    pub fn sync(&mut self) -> bool {
        self.frontend(Frontend::sync).is_some()
    }

    /// Requests the outstanding answers, without ending the pipeline.
    pub fn request_flush(&mut self) -> bool {
        self.frontend(Frontend::request_flush).is_some()
    }

    /// Sends any number of statements by the simple query protocol. `columns`: the columns of all their rows.
    pub fn send_text(&mut self, sql: &CStr, columns: Columns) -> bool {
        self.frontend(|frontend| frontend.query(sql.to_bytes_with_nul(), columns)).unwrap_or(false)
    }

    /// Sends one unprepared statement, which returns binary results.
    pub fn send_params(&mut self, sql: &CStr, params: &Encoded) -> bool {
        let (sql, columns) = (sql.to_bytes_with_nul(), params.columns.clone());
        self.frontend(|frontend| frontend.prepare_and_execute(sql, &params.types, params.bytes(), columns)).is_some()
    }

    pub fn send_prepare(&mut self, name: &CStr, sql: &CStr, types: &[u32]) -> bool {
        self.frontend(|frontend| frontend.prepare(name.to_bytes_with_nul(), sql.to_bytes_with_nul(), types)).is_some()
    }

    pub fn send_prepared(&mut self, name: &CStr, params: &Encoded) -> bool {
        let (name, columns) = (name.to_bytes_with_nul(), params.columns.clone());
        self.frontend(|frontend| frontend.execute(name, params.bytes(), columns)).is_some()
    }

    /// Waits, as [`WaitSet::wait`] does, until the socket is readable; with `write`, until it is readable or writable.
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
    /// Sends the request. PQcancel connects and waits without a time limit, so it runs in a thread of its own. The thread uses only this
    /// object, and blocks all signals, because the main thread must handle them.
    ///
    /// The receiver gets a value when PQcancel has returned, also if it has failed. Requests to a stopped postmaster never end; so if
    /// [`MAX_UNDER_WAY`] requests are unfinished, no request is made, and the receiver is disconnected at once.
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

/// Waits until a cancel request has ended. False at the deadline, and at once if no request was made. After false the connection must not
/// be used any more: the running statement may go on, or the request may still arrive and cancel a later statement.
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

/// The options of a connection string or URI; None if it cannot be parsed. libpq's message is discarded, because it may contain a password.
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

/// Collects what `f` returns for the elements of libpq's array of options.
///
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
