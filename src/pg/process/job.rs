//! Jobs: work that needs transactions of its own, executed by a background worker while a function call waits.
//!
//! 1. The caller writes the job's name and request into a shared memory segment and starts a worker.
//! 2. The worker becomes the extension's owner, runs the job outside any transaction, and writes its answer or error into the segment.
//!    It inherits no user and no settings from the caller's session.
//! 3. The caller waits for the worker's end, and serves interrupts. If the caller's statement ends early, it marks the job as abandoned and
//!    asks the postmaster to send SIGTERM. The signal raises an ERROR in the worker's next wait, so that the worker can clean up. The signal
//!    may arrive late, so a job calls [`check_wanted`] before a step that cannot be undone.

use crate::pg::error::{DuplicateKey, Error, Result};
use crate::pg::process::settings;
use crate::pg::server::sleep_ms;
use crate::pg::version::handle_signal;
use crate::pg::{process, security::user, transaction};
use docshard_core::error::report::Fields;
use docshard_core::error::sqlstate::{self, SqlState};
use docshard_core::error::{Kind, bail, error};
use pgrx::{pg_guard, pg_sys};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::cell::{Cell, RefCell};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};

/// The function of a job: takes the request and returns the answer. It is called outside a transaction.
pub type Job = fn(&Value) -> Result<Value>;

static JOBS: Mutex<Vec<(&'static str, Job)>> = Mutex::new(Vec::new());

/// Registers a job under a name. Called from `_PG_init`.
pub fn register(name: &'static str, job: Job) {
    let mut jobs = JOBS.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    if !jobs.iter().any(|(known, _)| *known == name) {
        jobs.push((name, job));
    }
}

/// Converts a request or an answer to JSON.
pub fn to_json(value: impl Serialize) -> Result<Value> {
    serde_json::to_value(value).map_err(malformed)
}

/// Reads a request or an answer.
pub fn from_json<'a, T: Deserialize<'a>>(json: &'a Value) -> Result<T> {
    T::deserialize(json).map_err(malformed)
}

fn malformed(error: serde_json::Error) -> Error {
    error!(Kind::InternalError, "malformed message between background workers: {error}")
}

/// The largest answer, in bytes. A longer one is truncated, which the caller reports as a malformed answer.
const ANSWER_BYTES: usize = 64 * 1024;

/// The start of the segment. The request, of `request` bytes, and room for [`ANSWER_BYTES`] follow.
#[repr(C)]
struct Header {
    database: pg_sys::Oid,
    /// the length of the request, in bytes
    request: u32,
    /// 1 when the worker has mapped the segment
    started: AtomicU32,
    /// 1 if the caller's statement has ended before the job
    abandoned: AtomicU32,
    /// the length of the answer in bytes, which is set last; 0: there is no answer yet
    answer: AtomicU32,
}

/// A mapped segment.
struct Segment(*mut pg_sys::dsm_segment);

impl Segment {
    fn header(&self) -> &Header {
        // SAFETY: the segment is mapped, page-aligned, and begins with a header.
        unsafe { &*pg_sys::dsm_segment_address(self.0).cast::<Header>() }
    }

    fn bytes_at(&self, offset: usize) -> *mut u8 {
        // SAFETY: callers stay within what `create` reserved.
        unsafe { pg_sys::dsm_segment_address(self.0).cast::<u8>().add(size_of::<Header>() + offset) }
    }

    fn create(request: &[u8]) -> Result<Self> {
        let length = u32::try_from(request.len())
            .map_err(|_| error!(Kind::InternalError, "the request to a background worker is too long"))?;
        // SAFETY: a new segment of that size belongs to us alone until its handle is given away.
        unsafe {
            let segment = Self(pg_sys::dsm_create(size_of::<Header>() + request.len() + ANSWER_BYTES, 0));
            let header = pg_sys::dsm_segment_address(segment.0).cast::<Header>();
            header.write(Header {
                database: pg_sys::MyDatabaseId,
                request: length,
                started: AtomicU32::new(0),
                abandoned: AtomicU32::new(0),
                answer: AtomicU32::new(0),
            });
            std::ptr::copy_nonoverlapping(request.as_ptr(), segment.bytes_at(0), request.len());
            Ok(segment)
        }
    }

    fn request(&self) -> Vec<u8> {
        // SAFETY: written by `create` before the worker started, and never changed.
        unsafe { std::slice::from_raw_parts(self.bytes_at(0), self.header().request as usize).to_vec() }
    }

    fn set_answer(&self, answer: &[u8]) {
        let header = self.header();
        let length = answer.len().min(ANSWER_BYTES);
        // SAFETY: only the worker writes here, once, within the reserved room, before it publishes the length.
        unsafe {
            std::ptr::copy_nonoverlapping(answer.as_ptr(), self.bytes_at(header.request as usize), length);
        }
        header.answer.store(length as u32, Ordering::Release);
    }

    fn answer(&self) -> Option<Vec<u8>> {
        let header = self.header();
        let length = header.answer.load(Ordering::Acquire) as usize;
        // SAFETY: published with its length, and never changed afterwards.
        (length > 0)
            .then(|| unsafe { std::slice::from_raw_parts(self.bytes_at(header.request as usize), length).to_vec() })
    }
}

impl Drop for Segment {
    fn drop(&mut self) {
        // While an ERROR unwinds, the resource owner detaches it, or it stays mapped until the process ends.
        if !std::thread::panicking() {
            // SAFETY: mapped by us, not used again, and still mapped: either its owner is a local variable of a function that waits for the
            // worker, in the transaction that has mapped the segment; or the mapping is pinned.
            unsafe { pg_sys::dsm_detach(self.0) };
        }
    }
}

/// A background worker, which is stopped when this is dropped.
struct Worker {
    handle: *mut pg_sys::BackgroundWorkerHandle,
    segment: Segment,
    ended: bool,
}

impl Worker {
    /// Stops the worker also when this process ends without unwinding, for example by `pg_terminate_backend`.
    fn stop_at_exit(&self) {
        STOP_AT_EXIT.with_borrow_mut(|handles| {
            let handles = handles.get_or_insert_with(|| {
                // SAFETY: once a process; the list is all that it uses.
                unsafe { pg_sys::before_shmem_exit(Some(stop_workers), pg_sys::Datum::from(0)) };
                Vec::new()
            });
            handles.push(self.handle);
        });
    }

    fn has_ended(&mut self) -> Result<bool> {
        let mut pid = 0;
        // SAFETY: the handle is of RegisterDynamicBackgroundWorker.
        match unsafe { pg_sys::GetBackgroundWorkerPid(self.handle, &mut pid) } {
            pg_sys::BgwHandleStatus::BGWH_STOPPED => self.ended = true,
            pg_sys::BgwHandleStatus::BGWH_POSTMASTER_DIED => {
                bail!(Kind::InternalError, "the server is shutting down");
            }
            _ => {}
        }
        Ok(self.ended)
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        STOP_AT_EXIT
            .with_borrow_mut(|handles| handles.iter_mut().for_each(|all| all.retain(|one| *one != self.handle)));
        if !self.ended {
            self.segment.header().abandoned.store(1, Ordering::Release);
            // SAFETY: a valid handle; asks the postmaster to signal the worker, and does not wait.
            unsafe { pg_sys::TerminateBackgroundWorker(self.handle) };
        }
        // SAFETY: no one else has the handle, as it is no longer in the list. A process that ends does not drop workers.
        unsafe { process::free(self.handle) };
    }
}

thread_local! {
    /// The workers that [`stop_workers`] stops; None before that function is registered.
    static STOP_AT_EXIT: RefCell<Option<Vec<*mut pg_sys::BackgroundWorkerHandle>>> = const { RefCell::new(None) };
}

#[pg_guard]
unsafe extern "C-unwind" fn stop_workers(_code: i32, _argument: pg_sys::Datum) {
    for handle in STOP_AT_EXIT.take().unwrap_or_default() {
        // SAFETY: a handle is in the list as long as it is valid.
        unsafe { pg_sys::TerminateBackgroundWorker(handle) };
    }
}

/// The longest name of a worker, in bytes.
const MAX_TITLE: usize = 95;

fn start(name: &str, title: &str, request: &Value) -> Result<Worker> {
    let segment = Segment::create(json!({"job": name, "request": request}).to_string().as_bytes())?;
    // SAFETY: the segment is mapped.
    let segment_handle = unsafe { pg_sys::dsm_segment_handle(segment.0) };
    let title = &title[..title.floor_char_boundary(MAX_TITLE)];
    let builder = process::builder(title, "docshard job").set_function("docshard_job_main");
    match process::start(builder.set_argument(Some(pg_sys::Datum::from(segment_handle)))) {
        Some(handle) => Ok(Worker { handle, segment, ended: false }),
        None => {
            Err(error!(Kind::ExceededMemoryLimit, "no background worker is free")
                .with_hint("Raise max_worker_processes."))
        }
    }
}

/// Runs a job in a worker and waits for its answer; `ExceededMemoryLimit` (53200) if no worker is free.
pub fn run(name: &str, title: &str, request: &Value) -> Result<Value> {
    let mut worker = start(name, title, request)?;
    worker.stop_at_exit();
    while !worker.has_ended()? {
        // The postmaster sets the latch when the worker ends.
        sleep_ms(1000);
    }
    answer_of(&worker.segment, title)
}

fn answer_of(segment: &Segment, title: &str) -> Result<Value> {
    let Some(answer) = segment.answer() else {
        return Err(error!(Kind::OperationFailed, "the background worker \"{title}\" ended unexpectedly")
            .with_hint("The server's log has the reason."));
    };
    let answer: Value = serde_json::from_slice(&answer)
        .map_err(|e| error!(Kind::InternalError, "a background worker's answer: {e}"))?;
    match answer.get("error") {
        Some(error) => Err(error_from_json(error)),
        None => Ok(answer.get("answer").cloned().unwrap_or(Value::Null)),
    }
}

/// Starts a job, and waits until `has_begun` returns true or the job has ended, but not for its answer. An error of `has_begun` stops the
/// job.
pub fn run_detached(name: &str, title: &str, request: &Value, has_begun: impl Fn() -> Result<bool>) -> Result<()> {
    let mut worker = start(name, title, request)?;
    // The segment must live until the worker has mapped it, or has ended.
    while !(worker.has_ended()? || worker.segment.header().started.load(Ordering::Acquire) == 1 && has_begun()?) {
        sleep_ms(5);
    }
    worker.ended = true;
    Ok(())
}

/// Concurrent jobs of a process that works outside transactions. The process attaches a value to each job. All jobs are stopped when this
/// is dropped, or when the process ends.
pub struct Jobs<T>(Vec<UnderWay<T>>);

struct UnderWay<T> {
    /// the value that the process has attached
    what: T,
    title: String,
    worker: Worker,
}

impl<T> Default for Jobs<T> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<T> Jobs<T> {
    /// Starts a job; `what` is returned with its answer. `ExceededMemoryLimit` (53200) if no worker is free.
    pub fn start(&mut self, name: &str, title: &str, request: &Value, what: T) -> Result<()> {
        let worker = start(name, title, request)?;
        // SAFETY: a mapped segment, which now stays mapped until it is dropped, also at the end of a transaction.
        unsafe { pg_sys::dsm_pin_mapping(worker.segment.0) };
        worker.stop_at_exit();
        self.0.push(UnderWay { what, title: title.to_owned(), worker });
        Ok(())
    }

    pub fn iter(&self) -> impl Iterator<Item = &T> {
        self.0.iter().map(|job| &job.what)
    }

    pub fn len(&self) -> usize {
        self.0.len()
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Asks all jobs to stop, and does not wait.
    pub fn stop(&self) {
        for job in &self.0 {
            // SAFETY: a valid handle; the postmaster is asked to signal the worker.
            unsafe { pg_sys::TerminateBackgroundWorker(job.worker.handle) };
        }
    }

    /// Returns the jobs that have ended since the last call, with their answers. The process's latch is set when one ends.
    pub fn ended(&mut self) -> Result<Vec<(T, Result<Value>)>> {
        let mut ended = Vec::new();
        let mut at = 0;
        while at < self.0.len() {
            if !self.0[at].worker.has_ended()? {
                at += 1;
                continue;
            }
            let job = self.0.swap_remove(at);
            ended.push((job.what, answer_of(&job.worker.segment, &job.title)));
        }
        Ok(ended)
    }
}

fn error_to_json(error: &Error) -> Value {
    json!({
        "sqlstate": String::from_utf8_lossy(&error.sqlstate),
        "message": error.message,
        "detail": error.detail_text(),
        "hint": error.hint,
        "context": error.context_text(),
        "duplicate": error.duplicate.as_deref().map(|duplicate| {
            let DuplicateKey { schema, table, index, fields, values } = duplicate;
            json!([fields, values, schema, table, index])
        }),
    })
}

fn error_from_json(json: &Value) -> Error {
    let text = |name: &str| json.get(name).and_then(Value::as_str).map(str::to_owned);
    let sqlstate = text("sqlstate").and_then(|state| SqlState::try_from(state.as_bytes()).ok());
    let mut error = Error::from(Fields {
        sqlstate: sqlstate.unwrap_or(sqlstate::INTERNAL_ERROR),
        message: text("message").unwrap_or_default(),
        detail: text("detail"),
        hint: text("hint"),
        context: text("context"),
    });
    error.duplicate = json.get("duplicate").and_then(|duplicate| {
        let name = |at: usize| duplicate[at].as_str().unwrap_or_default().to_owned();
        let (schema, table, index) = (name(2), name(3), name(4));
        let field = |pair: &Value| Some((pair[0].as_str()?.to_owned(), pair[1].as_bool()?));
        let fields = duplicate[0].as_array()?.iter().map(field).collect::<Option<_>>()?;
        Some(Box::new(DuplicateKey { schema, table, index, fields, values: duplicate[1].as_array().cloned() }))
    });
    error
}

thread_local! {
    /// The header of the job that this process runs, mapped until the process ends; null in other processes.
    static OWN: Cell<*const Header> = const { Cell::new(std::ptr::null()) };
}

/// Returns the error `Interrupted` (57014) if this process runs a job whose caller's statement has ended.
pub fn check_wanted() -> Result<()> {
    // SAFETY: null, or mapped.
    let abandoned = unsafe { OWN.get().as_ref() }.is_some_and(|own| own.abandoned.load(Ordering::Acquire) == 1);
    if abandoned {
        bail!(Kind::Interrupted, "the statement that waited for this has ended");
    }
    Ok(())
}

fn work(segment: &Segment) -> Result<Value> {
    let envelope: Value = serde_json::from_slice(&segment.request())
        .map_err(|e| error!(Kind::InternalError, "a background worker's request: {e}"))?;
    let name = envelope["job"].as_str().unwrap_or_default();
    let job = {
        let jobs = JOBS.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        jobs.iter().find(|(known, _)| *known == name).map(|(_, job)| *job)
    };
    let job = job.ok_or_else(|| error!(Kind::InternalError, "there is no job \"{name}\""))?;
    job(&envelope["request"])
}

unsafe extern "C-unwind" fn on_signal(signal: i32) {
    // SAFETY: PostgreSQL's handler of a query's cancel; it raises nothing.
    unsafe { pg_sys::StatementCancelHandler(signal) };
}

/// The workers' entry point.
#[pg_guard]
#[unsafe(no_mangle)]
pub extern "C-unwind" fn docshard_job_main(argument: pg_sys::Datum) {
    // SAFETY: called once, by PostgreSQL, in a new worker: signals are blocked until the handlers are set. SIGTERM raises an ERROR at
    // the next wait and does not end the process, so that the job can clean up.
    let segment = unsafe {
        handle_signal(pg_sys::SIGTERM, on_signal);
        handle_signal(pg_sys::SIGINT, on_signal);
        pg_sys::BackgroundWorkerUnblockSignals();
        let segment = pg_sys::dsm_attach(argument.value() as pg_sys::dsm_handle);
        if segment.is_null() {
            // The caller has ended.
            return;
        }
        Segment(segment)
    };
    let header = segment.header();
    header.started.store(1, Ordering::Release);
    OWN.set(header);
    // SAFETY: once, before anything else; without a role, so that only the superuser's settings apply.
    unsafe { pg_sys::BackgroundWorkerInitializeConnectionByOid(header.database, pg_sys::InvalidOid, 0) };
    settings::pin();
    let become_owner = || transaction::run(|| user::extension_owner().map(user::become_for_session));
    let answer = match become_owner().and_then(|()| transaction::guarded(|| work(&segment))) {
        Ok(answer) => json!({"answer": answer}),
        Err(error) => json!({"error": error_to_json(&error)}),
    };
    segment.set_answer(answer.to_string().as_bytes());
}
