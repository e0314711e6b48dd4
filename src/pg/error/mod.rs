//! The error type of the extension, for its own errors and those of other servers.
//!
//! Errors are returned; only SQL functions turn them into PostgreSQL ERRORs, by [`Error::raise`]. So a stale version, a lost
//! connection or a duplicate key can be handled without a subtransaction.

pub mod server_log;

use docshard_core::error::{Error as CoreError, Kind};
use docshard_core::values::document::value::Value;
use pgrx::PgTryBuilder;
use pgrx::pg_sys::panic::{CaughtError, ErrorReport};
use pgrx::{PgLogLevel, PgSqlErrorCode};
use std::panic::AssertUnwindSafe;

pub type Result<T> = std::result::Result<T, Error>;

#[derive(Debug, Clone)]
pub struct Error {
    pub sqlstate: [u8; 5],
    pub message: String,
    /// MongoDB's code and name, or another server's detail
    pub detail: Option<String>,
    pub hint: Option<String>,
    /// such as `shard "shard1"`
    pub context: Option<String>,
    pub duplicate: Option<Box<DuplicateKey>>,
    /// the statement has done nothing, and can run again at once
    pub again: Option<Again>,
}

/// Why a statement that a server refused can run again at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Again {
    /// the next connection goes to another host of the server
    OtherHost,
    /// the next handshake has a newer position of the shard
    NewHandshake,
}

/// SQLSTATE of [`Error::protocol_violation`].
pub const PROTOCOL_VIOLATION: [u8; 5] = *b"08P01";

#[derive(Debug, Clone)]
pub struct DuplicateKey {
    /// the database of the namespace
    pub schema: String,
    /// the rest of the namespace
    pub table: String,
    /// the index's name
    pub index: String,
    /// the index's paths, each with 1 or -1
    pub pattern: Vec<(String, Value)>,
    /// the keys by their paths, if known
    pub value: Option<Vec<(String, Value)>>,
}

impl Error {
    pub fn new(kind: Kind, message: impl Into<String>) -> Self {
        CoreError::new(kind, message).into()
    }

    /// Makes an error that has no code of MongoDB.
    pub fn of_sqlstate(sqlstate: [u8; 5], message: impl Into<String>) -> Self {
        Self {
            sqlstate,
            message: message.into(),
            detail: None,
            hint: None,
            context: None,
            duplicate: None,
            again: None,
        }
    }

    /// The error of an answer from another node that is not as agreed.
    pub fn protocol_violation(message: impl Into<String>) -> Self {
        Self { sqlstate: PROTOCOL_VIOLATION, ..Self::new(Kind::InternalError, message) }
    }

    /// The error of an unexpected SQL null.
    pub fn null(message: impl Into<String>) -> Self {
        Self { sqlstate: *b"22004", ..Self::new(Kind::TypeMismatch, message) }
    }

    /// The error of a null argument.
    pub fn null_argument(name: &str) -> Self {
        Self::null(format!("argument \"{name}\" must not be null"))
    }

    #[must_use]
    pub fn with_hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    #[must_use]
    pub fn with_context(mut self, context: impl Into<String>) -> Self {
        self.context = Some(context.into());
        self
    }

    /// MongoDB's fields `keyPattern` and `keyValue`.
    pub fn duplicate_fields(&self) -> Vec<(String, Value)> {
        let Some(duplicate) = &self.duplicate else { return Vec::new() };
        let pattern = ("keyPattern".to_owned(), Value::fixed_object(duplicate.pattern.clone()));
        let value = duplicate.value.clone().map(|value| ("keyValue".to_owned(), Value::fixed_object(value)));
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
        annotate::next_error(self.sqlstate, self.context, self.duplicate);
        report.report(PgLogLevel::ERROR);
        unreachable!("an ERROR does not return")
    }

    /// A caught error, of [`Error::raise`] or of PostgreSQL.
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
            again: None,
        }
    }
}

/// Sets the SQLSTATE, the context, and the fields that name objects, of the error that is being raised. pgrx would report a SQLSTATE that is not PostgreSQL's as an
/// internal error. PostgreSQL calls error-context callbacks when it finishes an error, and these may set its code.
mod annotate {
    #![allow(unsafe_code)]
    use super::{DuplicateKey, pack_sqlstate};
    use pgrx::pg_sys;
    use std::cell::RefCell;
    use std::ffi::{CStr, CString, c_char, c_int, c_void};
    use std::ptr::null_mut;

    unsafe extern "C-unwind" {
        fn errcode(sqlerrcode: c_int) -> c_int;
        fn errcontext_msg(fmt: *const c_char, ...) -> c_int;
        fn err_generic_string(field: c_int, text: *const c_char) -> c_int;
        fn geterrcode() -> c_int;
        fn CopyErrorData() -> *mut pg_sys::ErrorData;
        fn FreeErrorData(error: *mut pg_sys::ErrorData);
    }

    struct Pending {
        sqlstate: [u8; 5],
        context: Option<CString>,
        /// fields of the protocol, `PG_DIAG_…`, with their values
        names: Vec<(u8, CString)>,
    }

    thread_local! {
        static PENDING: RefCell<Option<Pending>> = const { RefCell::new(None) };
    }

    /// While it lives, the names of the last error that PostgreSQL finished are collected. If it is dropped by that error, which pgrx
    /// then raises again, they are added to it.
    pub(super) struct Names {
        previous: *mut pg_sys::ErrorContextCallback,
        _entry: Box<pg_sys::ErrorContextCallback>,
    }

    thread_local! {
        static COLLECTED: RefCell<Option<Pending>> = const { RefCell::new(None) };
    }

    impl Names {
        pub(super) fn collect() -> Self {
            COLLECTED.with(|collected| collected.borrow_mut().take());
            // SAFETY: single-threaded; the entry lives until it is taken off the stack.
            unsafe {
                let previous = pg_sys::error_context_stack;
                let mut entry =
                    Box::new(pg_sys::ErrorContextCallback { previous, callback: Some(collect), arg: null_mut() });
                pg_sys::error_context_stack = &raw mut *entry;
                Self { previous, _entry: entry }
            }
        }
    }

    impl Drop for Names {
        fn drop(&mut self) {
            // SAFETY: single-threaded; entries that were pushed later have been removed.
            unsafe { pg_sys::error_context_stack = self.previous };
            if std::thread::panicking()
                && let Some(pending) = COLLECTED.with(|collected| collected.borrow_mut().take())
            {
                annotate_next(pending);
            }
        }
    }

    unsafe extern "C-unwind" fn collect(_arg: *mut c_void) {
        // SAFETY: called by errfinish, so an error is on PostgreSQL's error stack. The copy is made outside of the memory context of
        // errors, and freed. Nothing is allocated if memory is short.
        unsafe {
            if geterrcode() == pack_sqlstate(*b"53200") {
                return;
            }
            let context = pg_sys::CurrentMemoryContext;
            pg_sys::CurrentMemoryContext = pg_sys::TopMemoryContext;
            let error = CopyErrorData();
            let named = [
                (b's', (*error).schema_name),
                (b't', (*error).table_name),
                (b'c', (*error).column_name),
                (b'd', (*error).datatype_name),
                (b'n', (*error).constraint_name),
            ];
            let named = named.into_iter().filter(|(_, name)| !name.is_null());
            let names: Vec<_> = named.map(|(field, name)| (field, CStr::from_ptr(name).to_owned())).collect();
            let pending = Pending { sqlstate: super::unpack_sqlstate((*error).sqlerrcode), context: None, names };
            FreeErrorData(error);
            pg_sys::CurrentMemoryContext = context;
            let is_of_interest = !pending.names.is_empty();
            COLLECTED.with(|collected| *collected.borrow_mut() = Some(pending).filter(|_| is_of_interest));
        }
    }

    static mut CALLBACK: pg_sys::ErrorContextCallback =
        pg_sys::ErrorContextCallback { previous: null_mut(), callback: Some(annotate), arg: null_mut() };

    unsafe extern "C-unwind" fn annotate(_arg: *mut c_void) {
        let Some(Pending { sqlstate, context, names }) = PENDING.with(|p| p.borrow_mut().take()) else { return };
        // SAFETY: called by errfinish, so an error is on PostgreSQL's error stack; none of the functions raises.
        unsafe {
            errcode(pack_sqlstate(sqlstate));
            if let Some(context) = context {
                const FORMAT: &CStr = c"%s";
                errcontext_msg(FORMAT.as_ptr(), context.as_ptr());
            }
            for (field, name) in names {
                err_generic_string(c_int::from(field), name.as_ptr());
            }
        }
    }

    /// The values of [`next_error`], if the error was caught before PostgreSQL finished it.
    pub(super) fn take() -> Option<([u8; 5], Option<String>)> {
        let Pending { sqlstate, context, .. } = PENDING.with(|p| p.borrow_mut().take())?;
        Some((sqlstate, context.map(|c| c.to_string_lossy().into_owned())))
    }

    /// Sets code, context and names of the next error that PostgreSQL finishes.
    pub(super) fn next_error(sqlstate: [u8; 5], context: Option<String>, duplicate: Option<Box<DuplicateKey>>) {
        let names = duplicate.into_iter().flat_map(|duplicate| {
            let DuplicateKey { schema, table, index, .. } = *duplicate;
            [(b's', schema), (b't', table), (b'n', index)]
        });
        let names = names.filter_map(|(field, name)| Some((field, CString::new(name).ok()?))).collect();
        let context = context.and_then(|c| CString::new(c).ok());
        annotate_next(Pending { sqlstate, context, names });
    }

    /// Annotates the next error that PostgreSQL finishes. The code that catches it restores the stack of callbacks.
    fn annotate_next(pending: Pending) {
        PENDING.with(|p| *p.borrow_mut() = Some(pending));
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

/// Runs statements of a user. An ERROR of theirs keeps the fields that name objects, such as `constraint_name`, which pgrx would drop.
pub fn keeping_names<T>(run: impl FnOnce() -> T) -> T {
    let _names = annotate::Names::collect();
    run()
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
            again: None,
        }
    }
}

/// Reports a WARNING.
pub fn warn(message: String, detail: String, hint: Option<&str>) {
    let mut report = ErrorReport::new(PgSqlErrorCode::ERRCODE_WARNING, message, "docshard").set_detail(detail);
    if let Some(hint) = hint {
        report = report.set_hint(hint);
    }
    report.report(PgLogLevel::WARNING);
}

/// Keeps backtraces out of errors, as clients would see them. Called from `_PG_init`.
pub fn init() {
    // SAFETY: this process has one thread; the variable is Rust's own.
    unsafe { std::env::set_var("RUST_LIB_BACKTRACE", "0") };
}

pub const UNIQUE_VIOLATION: &[u8; 5] = b"23505";

/// Runs SQL here. A unique violation becomes an `Err`, as in [`catch`].
pub fn catch_unique_violation<T>(run: impl FnOnce() -> Result<T>) -> Result<T> {
    catch(PgSqlErrorCode::ERRCODE_UNIQUE_VIOLATION, run)
}

/// Runs `run`. An ERROR of this code becomes an `Err`, which the caller must raise again, as the transaction has failed; other
/// ERRORs pass.
pub fn catch<T>(code: PgSqlErrorCode, run: impl FnOnce() -> Result<T>) -> Result<T> {
    let run = std::cell::Cell::new(Some(run));
    PgTryBuilder::new(AssertUnwindSafe(|| (run.take().expect("run once"))()))
        .catch_when(code, |caught| Err(Error::from_caught(caught)))
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

const fn unpack_sqlstate(packed: i32) -> [u8; 5] {
    let mut sqlstate = [0; 5];
    let mut i = 0;
    while i < 5 {
        sqlstate[i] = b'0' + ((packed >> (6 * i)) & 0x3F) as u8;
        i += 1;
    }
    sqlstate
}
