//! Errors become PostgreSQL's ERRORs here, and caught ERRORs become errors.
//!
//! Errors are returned; only SQL functions turn them into ERRORs, by [`Raise::raise`]. So a stale version, a lost connection or a
//! duplicate key can be handled without a subtransaction.

pub mod server_log;

use docshard_core::error::Parts;
use docshard_core::error::report::Fields;
use docshard_core::error::sqlstate::{self, SqlState};
use pgrx::PgTryBuilder;
use pgrx::pg_sys::panic::{CaughtError, ErrorReport};
use pgrx::{PgLogLevel, PgSqlErrorCode};
use std::panic::AssertUnwindSafe;

pub use docshard_core::error::{DuplicateKey, Error, Result};

/// The constraint that is named in the error about a document that its collection's validator refuses.
const VALIDATOR: &str = "validator";

/// An error that can be raised.
pub trait Raise {
    /// Raises it as a PostgreSQL ERROR.
    fn raise(self) -> !;
}

impl Raise for Error {
    fn raise(self) -> ! {
        let code = PgSqlErrorCode::from(pack_sqlstate(self.sqlstate));
        let (detail, context) = (self.detail_text(), self.context_text());
        let Parts { sqlstate, message, hint, duplicate, validated, .. } = self.into_parts();
        let of_index = duplicate.map(|duplicate| (duplicate.schema, duplicate.table, duplicate.index));
        let of_validator = || validated.map(|validated| (validated.0, validated.1, VALIDATOR.to_owned()));
        let mut report = ErrorReport::new(code, message, "docshard");
        if let Some(detail) = detail {
            report = report.set_detail(detail);
        }
        if let Some(hint) = hint {
            report = report.set_hint(hint);
        }
        annotate::next_error(sqlstate, context, of_index.or_else(of_validator));
        report.report(PgLogLevel::ERROR);
        unreachable!("an ERROR does not return")
    }
}

/// Converts a caught ERROR, which [`Raise::raise`] or PostgreSQL has raised.
pub(in crate::pg) fn from_caught(caught: CaughtError) -> Error {
    let (CaughtError::PostgresError(report)
    | CaughtError::ErrorReport(report)
    | CaughtError::RustPanic { ereport: report, .. }) = caught;
    let (sqlstate, context) =
        annotate::take().unwrap_or_else(|| (unpack_sqlstate(report.sql_error_code() as i32), None));
    Error::from(Fields {
        sqlstate,
        message: report.message().to_owned(),
        detail: report.detail().map(str::to_owned),
        hint: report.hint().map(str::to_owned),
        context,
    })
}

/// Sets the SQLSTATE, the context, and the fields that name objects, of the error that is being raised. pgrx cannot: it drops the fields,
/// and reports a SQLSTATE that PostgreSQL does not define as an internal error. So an error-context callback, which PostgreSQL calls when
/// it finishes an error, sets them.
mod annotate {
    #![allow(unsafe_code)]
    use super::{SqlState, pack_sqlstate, sqlstate};
    use pgrx::pg_sys;
    use std::cell::RefCell;
    use std::ffi::{CStr, CString, c_char, c_int, c_void};
    use std::ptr::null_mut;

    unsafe extern "C-unwind" {
        fn errcode(sqlerrcode: c_int) -> c_int;
        fn errcontext_msg(fmt: *const c_char, ...) -> c_int;
        fn err_generic_string(field: c_int, text: *const c_char) -> c_int;
        fn errposition(position: c_int) -> c_int;
        fn internalerrposition(position: c_int) -> c_int;
        fn internalerrquery(query: *const c_char) -> c_int;
        fn geterrcode() -> c_int;
        fn CopyErrorData() -> *mut pg_sys::ErrorData;
        fn FreeErrorData(error: *mut pg_sys::ErrorData);
    }

    struct Pending {
        sqlstate: SqlState,
        context: Option<CString>,
        /// fields of the protocol, `PG_DIAG_…`, with their values
        names: Vec<(u8, CString)>,
        place: Option<Place>,
    }

    /// Where in the text of a statement an error is.
    struct Place {
        position: c_int,
        /// a statement of a function, and the position in it
        query: Option<CString>,
        query_position: c_int,
    }

    /// The fields of an error that a [`Collector`] keeps.
    #[derive(Clone, Copy, PartialEq, Eq)]
    pub(super) enum Kept {
        Names,
        All,
    }

    thread_local! {
        static PENDING: RefCell<Option<Pending>> = const { RefCell::new(None) };
    }

    /// While it lives, keeps the fields that pgrx drops, of the last error that PostgreSQL finishes. If that error unwinds the collector,
    /// pgrx raises the error again afterwards, and the fields are added to it.
    pub(super) struct Collector {
        previous: *mut pg_sys::ErrorContextCallback,
        slot: Box<Slot>,
    }

    struct Slot {
        entry: pg_sys::ErrorContextCallback,
        kept: Kept,
        collected: Option<Pending>,
    }

    impl Collector {
        pub(super) fn new(kept: Kept) -> Self {
            // SAFETY: single-threaded; the entry lives until it is taken off the stack.
            unsafe {
                let previous = pg_sys::error_context_stack;
                let entry = pg_sys::ErrorContextCallback { previous, callback: Some(collect), arg: null_mut() };
                let mut slot = Box::new(Slot { entry, kept, collected: None });
                slot.entry.arg = (&raw mut *slot).cast();
                pg_sys::error_context_stack = &raw mut slot.entry;
                Self { previous, slot }
            }
        }
    }

    impl Drop for Collector {
        fn drop(&mut self) {
            // SAFETY: single-threaded; entries that were pushed later have been removed.
            unsafe { pg_sys::error_context_stack = self.previous };
            if std::thread::panicking()
                && let Some(pending) = self.slot.collected.take()
            {
                annotate_next(pending);
            }
        }
    }

    unsafe extern "C-unwind" fn collect(slot: *mut c_void) {
        // SAFETY: called by errfinish with a collector's slot, so an error is on PostgreSQL's error stack. The copy is made outside of
        // the memory context of errors, and freed. Nothing is allocated if memory is short.
        unsafe {
            let slot = &mut *slot.cast::<Slot>();
            let kept = slot.kept;
            slot.collected = None;
            if geterrcode() == pack_sqlstate(sqlstate::OUT_OF_MEMORY) {
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
            let string =
                |text: *mut c_char| (!text.is_null() && kept == Kept::All).then(|| CStr::from_ptr(text).to_owned());
            let pending = Pending {
                sqlstate: super::unpack_sqlstate((*error).sqlerrcode),
                // The context that was added inside of the collector. The callbacks around it add theirs when the error is raised again.
                context: string((*error).context),
                names,
                place: (kept == Kept::All).then(|| Place {
                    position: (*error).cursorpos,
                    query: string((*error).internalquery),
                    query_position: (*error).internalpos,
                }),
            };
            let is_error = (*error).elevel >= pgrx::PgLogLevel::ERROR as c_int;
            FreeErrorData(error);
            pg_sys::CurrentMemoryContext = context;
            let is_of_interest = is_error && (kept == Kept::All || !pending.names.is_empty());
            slot.collected = Some(pending).filter(|_| is_of_interest);
        }
    }

    static mut CALLBACK: pg_sys::ErrorContextCallback =
        pg_sys::ErrorContextCallback { previous: null_mut(), callback: Some(annotate), arg: null_mut() };

    unsafe extern "C-unwind" fn annotate(_arg: *mut c_void) {
        let Some(Pending { sqlstate, context, names, place }) = PENDING.with(|p| p.borrow_mut().take()) else { return };
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
            if let Some(Place { position, query, query_position }) = place {
                errposition(position);
                if let Some(query) = query {
                    internalerrquery(query.as_ptr());
                    internalerrposition(query_position);
                }
            }
        }
    }

    /// The values of [`next_error`], if the error was caught before PostgreSQL finished it.
    pub(super) fn take() -> Option<(SqlState, Option<String>)> {
        let Pending { sqlstate, context, .. } = PENDING.with(|p| p.borrow_mut().take())?;
        Some((sqlstate, context.map(|c| c.to_string_lossy().into_owned())))
    }

    /// Sets code, context and names of the next error that PostgreSQL finishes.
    pub(super) fn next_error(sqlstate: SqlState, context: Option<String>, names: Option<(String, String, String)>) {
        let names = names
            .into_iter()
            .flat_map(|(schema, table, constraint)| [(b's', schema), (b't', table), (b'n', constraint)]);
        let names = names.filter_map(|(field, name)| Some((field, CString::new(name).ok()?))).collect();
        let context = context.and_then(|c| CString::new(c).ok());
        annotate_next(Pending { sqlstate, context, names, place: None });
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

/// Runs a user's statements. Their ERRORs keep the fields that name objects, such as `constraint_name`; pgrx would drop these fields.
pub fn keeping_names<T>(run: impl FnOnce() -> T) -> T {
    let _collector = annotate::Collector::new(annotate::Kept::Names);
    run()
}

/// Calls code of PostgreSQL whose ERRORs are not caught here. The ERRORs keep what pgrx would drop: a SQLSTATE that PostgreSQL does not
/// define, the context, the position in the statement, and the names of objects.
pub fn keeping_all<T>(run: impl FnOnce() -> T) -> T {
    let _collector = annotate::Collector::new(annotate::Kept::All);
    run()
}

/// Reports a WARNING.
pub fn warn(message: String, detail: String, hint: Option<&str>) {
    let mut report = ErrorReport::new(PgSqlErrorCode::ERRCODE_WARNING, message, "docshard").set_detail(detail);
    if let Some(hint) = hint {
        report = report.set_hint(hint);
    }
    report.report(PgLogLevel::WARNING);
}

/// Keeps backtraces out of errors, because errors go to clients. Called from `_PG_init`.
pub fn init() {
    // SAFETY: this process has one thread; the variable is Rust's own.
    unsafe { std::env::set_var("RUST_LIB_BACKTRACE", "0") };
}

/// Runs SQL in this backend. A violation of a unique index or of a validator becomes an `Err`, as in [`catch`].
pub fn catch_violation<T>(run: impl FnOnce() -> Result<T>) -> Result<T> {
    catch_all(&[PgSqlErrorCode::ERRCODE_UNIQUE_VIOLATION, PgSqlErrorCode::ERRCODE_CHECK_VIOLATION], run)
}

/// Runs `run`. An ERROR of this code becomes an `Err`, which the caller must raise again, as the transaction has failed; other
/// ERRORs pass.
pub fn catch<T>(code: PgSqlErrorCode, run: impl FnOnce() -> Result<T>) -> Result<T> {
    catch_all(&[code], run)
}

fn catch_all<T>(codes: &[PgSqlErrorCode], run: impl FnOnce() -> Result<T>) -> Result<T> {
    let run = std::cell::Cell::new(Some(run));
    let mut tried = PgTryBuilder::new(AssertUnwindSafe(|| (run.take().expect("run once"))()));
    for code in codes {
        tried = tried.catch_when(*code, |caught| Err(from_caught(caught)));
    }
    tried.execute()
}

/// PostgreSQL's packed form of a SQLSTATE (`MAKE_SQLSTATE`).
pub const fn pack_sqlstate(s: SqlState) -> i32 {
    let mut packed = 0;
    let mut i = 0;
    while i < 5 {
        packed |= ((s[i].wrapping_sub(b'0') & 0x3F) as i32) << (6 * i);
        i += 1;
    }
    packed
}

const fn unpack_sqlstate(packed: i32) -> SqlState {
    let mut sqlstate = [0; 5];
    let mut i = 0;
    while i < 5 {
        sqlstate[i] = b'0' + ((packed >> (6 * i)) & 0x3F) as u8;
        i += 1;
    }
    sqlstate
}
