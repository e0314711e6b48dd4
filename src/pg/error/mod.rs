//! One error type for everything above `core`: what is raised here, and what another server raised.
//!
//! An [`Error`] travels as a `Result`; only the face of the extension turns it into a PostgreSQL ERROR, by
//! [`Error::raise`]. So a stale version, a lost connection or a duplicate key can be handled without a subtransaction.

pub mod server_log;

use docshard_core::error::{Error as CoreError, Kind};
use docshard_core::values::document::value::Value;
use pgrx::PgTryBuilder;
use pgrx::pg_sys::panic::{CaughtError, ErrorReport};
use pgrx::{PgLogLevel, PgSqlErrorCode};
use std::panic::AssertUnwindSafe;

/// The result of everything that can fail.
pub type Result<T> = std::result::Result<T, Error>;

/// An error on its way to the user.
#[derive(Debug, Clone)]
pub struct Error {
    /// five characters
    pub sqlstate: [u8; 5],
    /// the primary message
    pub message: String,
    /// MongoDB's code and name, or another server's own detail
    pub detail: Option<String>,
    /// what the user can do
    pub hint: Option<String>,
    /// where it happened, such as `shard "shard1"`
    pub context: Option<String>,
    /// the keys that exist already, if that is why
    pub duplicate: Option<Box<DuplicateKey>>,
}

/// The keys of a second document in a unique index.
#[derive(Debug, Clone)]
pub struct DuplicateKey {
    /// the index's paths, each with 1 or -1
    pub pattern: Vec<(String, Value)>,
    /// the keys by their paths, where they are known
    pub value: Option<Vec<(String, Value)>>,
}

impl Error {
    /// An error of one of MongoDB's kinds.
    pub fn new(kind: Kind, message: impl Into<String>) -> Self {
        CoreError::new(kind, message).into()
    }

    /// An error with a SQLSTATE for which MongoDB has no code.
    pub fn of_sqlstate(sqlstate: [u8; 5], message: impl Into<String>) -> Self {
        Self { sqlstate, message: message.into(), detail: None, hint: None, context: None, duplicate: None }
    }

    /// The error of an SQL null where a value has to be.
    pub fn null(message: impl Into<String>) -> Self {
        Self { sqlstate: *b"22004", ..Self::new(Kind::TypeMismatch, message) }
    }

    /// The same error with a hint.
    #[must_use]
    pub fn with_hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// The same error with a line of context.
    #[must_use]
    pub fn with_context(mut self, context: impl Into<String>) -> Self {
        self.context = Some(context.into());
        self
    }

    /// The fields `keyPattern` and `keyValue` that MongoDB gives an error of a duplicate key.
    pub fn duplicate_fields(&self) -> Vec<(String, Value)> {
        let Some(duplicate) = &self.duplicate else { return Vec::new() };
        let pattern = ("keyPattern".to_owned(), Value::Object(duplicate.pattern.clone()));
        let value = duplicate.value.clone().map(|value| ("keyValue".to_owned(), Value::Object(value)));
        std::iter::once(pattern).chain(value).collect()
    }

    /// Raises it as a PostgreSQL ERROR.
    pub fn raise(self) -> ! {
        let code = PgSqlErrorCode::from(pack_sqlstate(self.sqlstate));
        let mut report = ErrorReport::new(code, self.message, "docshard");
        if let Some(detail) = self.detail {
            report = report.set_detail(detail);
        }
        if let Some(hint) = self.hint {
            report = report.set_hint(hint);
        }
        annotate::next_error(self.sqlstate, self.context);
        report.report(PgLogLevel::ERROR);
        unreachable!("an ERROR does not return")
    }

    /// What was caught, as an error again: one that [`Error::raise`] raised, or one of PostgreSQL's.
    pub(in crate::pg) fn from_caught(caught: CaughtError) -> Self {
        let (CaughtError::PostgresError(report)
        | CaughtError::ErrorReport(report)
        | CaughtError::RustPanic { ereport: report, .. }) = caught;
        let (sqlstate, context) =
            annotate::take().unwrap_or_else(|| (unpack_sqlstate(report.sql_error_code() as i32), None));
        Self {
            sqlstate,
            message: report.message().to_owned(),
            detail: report.detail().map(str::to_owned),
            hint: report.hint().map(str::to_owned),
            context,
            duplicate: None,
        }
    }
}

/// Gives the error that is being raised any SQLSTATE and a context line.
///
/// pgrx knows SQLSTATEs as an enum of PostgreSQL's own, so a private or user-defined one would be reported as
/// an internal error. PostgreSQL runs the error-context callbacks while it finishes an error, and they may set its code.
mod annotate {
    #![allow(unsafe_code)]
    use super::pack_sqlstate;
    use pgrx::pg_sys;
    use std::cell::RefCell;
    use std::ffi::{CStr, CString, c_char, c_int, c_void};
    use std::ptr::null_mut;

    unsafe extern "C-unwind" {
        fn errcode(sqlerrcode: c_int) -> c_int;
        fn errcontext_msg(fmt: *const c_char, ...) -> c_int;
    }

    thread_local! {
        static PENDING: RefCell<Option<([u8; 5], Option<CString>)>> = const { RefCell::new(None) };
    }

    static mut CALLBACK: pg_sys::ErrorContextCallback =
        pg_sys::ErrorContextCallback { previous: null_mut(), callback: Some(annotate), arg: null_mut() };

    unsafe extern "C-unwind" fn annotate(_arg: *mut c_void) {
        let Some((sqlstate, context)) = PENDING.with(|p| p.borrow_mut().take()) else { return };
        // SAFETY: called by errfinish, so an error is on PostgreSQL's error stack; neither function raises.
        unsafe {
            errcode(pack_sqlstate(sqlstate));
            if let Some(context) = context {
                const FORMAT: &CStr = c"%s";
                errcontext_msg(FORMAT.as_ptr(), context.as_ptr());
            }
        }
    }

    /// What [`next_error`] left for an error that was caught before PostgreSQL finished it.
    pub(super) fn take() -> Option<([u8; 5], Option<String>)> {
        let (sqlstate, context) = PENDING.with(|p| p.borrow_mut().take())?;
        Some((sqlstate, context.map(|c| c.to_string_lossy().into_owned())))
    }

    /// The next error that PostgreSQL finishes gets this code and context. The callback works once; whoever catches
    /// the error restores the stack of callbacks, as PostgreSQL always does.
    pub(super) fn next_error(sqlstate: [u8; 5], context: Option<String>) {
        PENDING.with(|p| *p.borrow_mut() = Some((sqlstate, context.and_then(|c| CString::new(c).ok()))));
        // SAFETY: single-threaded; the entry is static, and is never pushed twice in a row.
        unsafe {
            let entry = &raw mut CALLBACK;
            if pg_sys::error_context_stack != entry {
                (*entry).previous = pg_sys::error_context_stack;
                pg_sys::error_context_stack = entry;
            }
        }
    }
}

impl From<CoreError> for Error {
    fn from(error: CoreError) -> Self {
        let mut sqlstate = [0; 5];
        sqlstate.copy_from_slice(error.kind.sqlstate().as_bytes());
        Self {
            sqlstate,
            message: error.message,
            detail: Some(format!("MongoDB error {} ({}).", error.kind.code(), error.kind.name())),
            hint: error.hint,
            context: None,
            duplicate: None,
        }
    }
}

/// Keeps backtraces out of errors, also where the server's environment asks for them: they would be shown to clients. Called
/// from `_PG_init`.
pub fn init() {
    // SAFETY: this process has one thread; the variable is Rust's own.
    unsafe { std::env::set_var("RUST_LIB_BACKTRACE", "0") };
}

/// SQLSTATE `unique_violation`.
pub const UNIQUE_VIOLATION: &[u8; 5] = b"23505";

/// Runs SQL here; a violated unique constraint becomes an `Err` that the caller must raise again in its own words (the
/// transaction is lost in any case), every other ERROR goes on.
///
/// # Errors
/// SQLSTATE 23505, and what `run` answers.
pub fn catch_unique_violation<T>(run: impl FnOnce() -> Result<T>) -> Result<T> {
    let run = std::cell::Cell::new(Some(run));
    PgTryBuilder::new(AssertUnwindSafe(|| (run.take().expect("run once"))()))
        .catch_when(PgSqlErrorCode::ERRCODE_UNIQUE_VIOLATION, |caught| {
            let (message, detail) = match caught {
                CaughtError::PostgresError(report) => (report.message().to_owned(), report.detail().map(str::to_owned)),
                _ => (String::new(), None),
            };
            Err(Error { detail, ..Error::of_sqlstate(*UNIQUE_VIOLATION, message) })
        })
        .execute()
}

/// PostgreSQL's packed form of a SQLSTATE (`MAKE_SQLSTATE`).
pub const fn pack_sqlstate(s: [u8; 5]) -> i32 {
    let mut packed = 0;
    let mut i = 0;
    while i < 5 {
        packed |= ((s[i].wrapping_sub(b'0') & 0x3F) as i32) << (6 * i);
        i += 1;
    }
    packed
}

/// The reverse of [`pack_sqlstate`].
const fn unpack_sqlstate(packed: i32) -> [u8; 5] {
    let mut sqlstate = [0; 5];
    let mut i = 0;
    while i < 5 {
        sqlstate[i] = b'0' + ((packed >> (6 * i)) & 0x3F) as u8;
        i += 1;
    }
    sqlstate
}
