//! Jobs: pieces of work that need transactions of their own, run in a background worker while a function call waits.
//!
//! 1. The caller puts the job's name and request into a shared memory segment and starts a worker, which needs no
//!    preloading.
//! 2. The worker becomes the extension's owner, runs the job outside any transaction, and puts its answer, or its error,
//!    into the segment. Of the caller's session it has nothing: no user, no settings.
//! 3. The caller waits for the worker's end, obeying cancel. If the caller's statement ends early, it marks the job as
//!    abandoned, and the worker gets SIGTERM; what it waits for then raises an ERROR, so it can clean up. The signal comes
//!    by way of the postmaster, some time later: before a step that cannot be undone a job asks [`check_wanted`].

use crate::pg::error::{DuplicateKey, Error, Result};
use crate::pg::{security::search_path, security::user, transaction};
use docshard_core::error::Kind;
use docshard_core::values::document::ext_json;
use docshard_core::values::document::value::Value as DocumentValue;
use pgrx::{pg_guard, pg_sys};
use serde_json::{Value, json};
use std::cell::{Cell, RefCell};
use std::ffi::c_char;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};

/// A job: takes the request and returns the answer. It runs outside a transaction.
pub type Job = fn(&Value) -> Result<Value>;

static JOBS: Mutex<Vec<(&'static str, Job)>> = Mutex::new(Vec::new());

/// Makes a job known under a name. Called from `_PG_init`.
pub fn register(name: &'static str, job: Job) {
    let mut jobs = JOBS.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    if !jobs.iter().any(|(known, _)| *known == name) {
        jobs.push((name, job));
    }
}

/// Room for an answer.
const ANSWER_BYTES: usize = 64 * 1024;

/// The segment: this header, then `request` bytes, then room for [`ANSWER_BYTES`].
#[repr(C)]
struct Header {
    database: pg_sys::Oid,
    request: u32,
    /// 1 once the worker has mapped the segment
    started: AtomicU32,
    /// 1 once the caller's statement has ended before the job
    abandoned: AtomicU32,
    /// length of the answer; set last, 0 before
    answer: AtomicU32,
}

/// A mapped segment. Detached on drop.
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
            .map_err(|_| Error::new(Kind::InternalError, "the request to a background worker is too long"))?;
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
        // While an ERROR unwinds, the resource owner detaches it.
        if !std::thread::panicking() {
            // SAFETY: mapped by us, and not used again.
            unsafe { pg_sys::dsm_detach(self.0) };
        }
    }
}

/// A worker that is told to stop when its starter goes away.
struct Worker {
    handle: *mut pg_sys::BackgroundWorkerHandle,
    segment: Segment,
    ended: bool,
    /// [`on_exit`] is registered
    tied: bool,
}

impl Worker {
    /// Ends the worker together with this process.
    fn tie(&mut self) {
        // SAFETY: taken back when this is dropped, in the order of a stack.
        unsafe { pg_sys::before_shmem_exit(Some(on_exit), pg_sys::Datum::from(self.handle)) };
        self.tied = true;
    }

    /// True once the worker has ended.
    fn has_ended(&mut self) -> Result<bool> {
        let mut pid = 0;
        // SAFETY: the handle is of RegisterDynamicBackgroundWorker.
        match unsafe { pg_sys::GetBackgroundWorkerPid(self.handle, &mut pid) } {
            pg_sys::BgwHandleStatus::BGWH_STOPPED => self.ended = true,
            pg_sys::BgwHandleStatus::BGWH_POSTMASTER_DIED => {
                return Err(Error::new(Kind::InternalError, "the server is shutting down"));
            }
            _ => {}
        }
        Ok(self.ended)
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        // SAFETY: as above; what `tie` registered last is taken back first.
        unsafe {
            if self.tied {
                pg_sys::cancel_before_shmem_exit(Some(on_exit), pg_sys::Datum::from(self.handle));
            }
            if !self.ended {
                self.segment.header().abandoned.store(1, Ordering::Release);
                // Asks the postmaster to signal the worker, and does not wait.
                pg_sys::TerminateBackgroundWorker(self.handle);
            }
        }
    }
}

/// Ends the worker when this process ends without unwinding, as by `pg_terminate_backend`.
#[pg_guard]
unsafe extern "C-unwind" fn on_exit(_code: i32, handle: pg_sys::Datum) {
    // SAFETY: the handle lives as long as the `Worker` that registered this, and cancels it when it is dropped.
    unsafe { pg_sys::TerminateBackgroundWorker(handle.cast_mut_ptr()) };
}

fn put(field: &mut [c_char], text: &str) {
    for (to, from) in field.iter_mut().zip(text.bytes().take(95)) {
        *to = from as c_char;
    }
}

fn start(name: &str, title: &str, request: &Value) -> Result<Worker> {
    let segment = Segment::create(json!({"job": name, "request": request}).to_string().as_bytes())?;
    let mut worker = pg_sys::BackgroundWorker {
        bgw_flags: (pg_sys::BGWORKER_SHMEM_ACCESS | pg_sys::BGWORKER_BACKEND_DATABASE_CONNECTION) as i32,
        bgw_start_time: pg_sys::BgWorkerStartTime::BgWorkerStart_RecoveryFinished,
        bgw_restart_time: pg_sys::BGW_NEVER_RESTART,
        ..Default::default()
    };
    put(&mut worker.bgw_name, title);
    put(&mut worker.bgw_type, "docshard job");
    put(&mut worker.bgw_library_name, "docshard");
    put(&mut worker.bgw_function_name, "docshard_job_main");
    let mut handle = std::ptr::null_mut();
    // SAFETY: the structure is complete and copied; MyProcPid is this process, to be told of start and end.
    let registered = unsafe {
        worker.bgw_main_arg = pg_sys::Datum::from(pg_sys::dsm_segment_handle(segment.0));
        worker.bgw_notify_pid = pg_sys::MyProcPid as pg_sys::pid_t;
        pg_sys::RegisterDynamicBackgroundWorker(&mut worker, &mut handle)
    };
    if !registered {
        return Err(Error::new(Kind::ExceededMemoryLimit, "no background worker is free")
            .with_hint("Raise max_worker_processes."));
    }
    Ok(Worker { handle, segment, ended: false, tied: false })
}

/// Runs a job in a worker and waits for its answer.
///
/// # Errors
/// The job's; `ExceededMemoryLimit` (53200) if no worker is free.
pub fn run(name: &str, title: &str, request: &Value) -> Result<Value> {
    let mut worker = start(name, title, request)?;
    worker.tie();
    while !worker.has_ended()? {
        // SAFETY: MyLatch belongs to this process; the postmaster sets it when the worker ends.
        unsafe {
            pg_sys::WaitLatch(
                pg_sys::MyLatch,
                (pg_sys::WL_LATCH_SET | pg_sys::WL_TIMEOUT | pg_sys::WL_EXIT_ON_PM_DEATH) as i32,
                1000,
                pg_sys::PG_WAIT_EXTENSION,
            );
            pg_sys::ResetLatch(pg_sys::MyLatch);
        }
        pgrx::check_for_interrupts!();
    }
    answer_of(&worker.segment, title)
}

/// What a job that has ended answered.
fn answer_of(segment: &Segment, title: &str) -> Result<Value> {
    let Some(answer) = segment.answer() else {
        return Err(Error::new(Kind::OperationFailed, format!("the background worker \"{title}\" ended unexpectedly"))
            .with_hint("The server's log tells why."));
    };
    let answer: Value = serde_json::from_slice(&answer)
        .map_err(|e| Error::new(Kind::InternalError, format!("a background worker's answer: {e}")))?;
    match answer.get("error") {
        Some(error) => Err(error_from_json(error)),
        None => Ok(answer.get("answer").cloned().unwrap_or(Value::Null)),
    }
}

/// Starts a job and waits until it `has_begun`, or has ended, but not for its answer.
///
/// # Errors
/// As [`run`], but for the job's; those of `has_begun`, with which the job ends.
pub fn run_detached(name: &str, title: &str, request: &Value, has_begun: impl Fn() -> Result<bool>) -> Result<()> {
    let mut worker = start(name, title, request)?;
    // The segment must live until the worker has mapped it, or has ended.
    while !(worker.has_ended()? || worker.segment.header().started.load(Ordering::Acquire) == 1 && has_begun()?) {
        crate::pg::server::sleep_ms(5);
    }
    worker.ended = true;
    Ok(())
}

thread_local! {
    /// The workers of all [`Jobs`] of this process, for [`stop_jobs`]; None before that is registered.
    static UNDER_WAY: RefCell<Option<Vec<*mut pg_sys::BackgroundWorkerHandle>>> = const { RefCell::new(None) };
}

/// Ends what is under way when this process ends without unwinding.
#[pg_guard]
unsafe extern "C-unwind" fn stop_jobs(_code: i32, _argument: pg_sys::Datum) {
    for handle in UNDER_WAY.take().unwrap_or_default() {
        // SAFETY: a handle is in the list for as long as it is valid.
        unsafe { pg_sys::TerminateBackgroundWorker(handle) };
    }
}

fn under_way(change: impl FnOnce(&mut Vec<*mut pg_sys::BackgroundWorkerHandle>)) {
    UNDER_WAY.with_borrow_mut(|handles| {
        change(handles.get_or_insert_with(|| {
            // SAFETY: once a process, and never taken back; the process's own list is all that it looks at.
            unsafe { pg_sys::before_shmem_exit(Some(stop_jobs), pg_sys::Datum::from(0)) };
            Vec::new()
        }));
    });
}

/// Jobs that run at the same time, each with what it is to its starter; for processes that work outside transactions. Those
/// that have not ended when this is dropped, or when the process ends, are told to stop.
pub struct Jobs<T>(Vec<UnderWay<T>>);

struct UnderWay<T> {
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
    /// Starts a job; `what` comes back with its answer.
    ///
    /// # Errors
    /// `ExceededMemoryLimit` (53200) if no worker is free.
    pub fn start(&mut self, name: &str, title: &str, request: &Value, what: T) -> Result<()> {
        let worker = start(name, title, request)?;
        // SAFETY: a mapped segment; from now on it stays mapped until it is dropped, whatever transactions end.
        unsafe { pg_sys::dsm_pin_mapping(worker.segment.0) };
        under_way(|handles| handles.push(worker.handle));
        self.0.push(UnderWay { what, title: title.to_owned(), worker });
        Ok(())
    }

    /// What is under way.
    pub fn iter(&self) -> impl Iterator<Item = &T> {
        self.0.iter().map(|job| &job.what)
    }

    /// How many are under way.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// True if nothing is under way.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Tells all to stop; their ends are still to be awaited.
    pub fn stop(&self) {
        for job in &self.0 {
            // SAFETY: a valid handle; the postmaster is asked to signal the worker.
            unsafe { pg_sys::TerminateBackgroundWorker(job.worker.handle) };
        }
    }

    /// Those that have ended since the last look, with their answers. The process's latch is set when one ends.
    ///
    /// # Errors
    /// `InternalError` when the server is going down.
    pub fn ended(&mut self) -> Result<Vec<(T, Result<Value>)>> {
        let mut ended = Vec::new();
        let mut at = 0;
        while at < self.0.len() {
            if !self.0[at].worker.has_ended()? {
                at += 1;
                continue;
            }
            let job = self.0.swap_remove(at);
            job.forget();
            ended.push((job.what, answer_of(&job.worker.segment, &job.title)));
        }
        Ok(ended)
    }
}

impl<T> UnderWay<T> {
    /// Takes the worker off the list of those that are to be stopped.
    fn forget(&self) {
        under_way(|handles| handles.retain(|handle| *handle != self.worker.handle));
    }
}

impl<T> Drop for Jobs<T> {
    fn drop(&mut self) {
        // Dropping a worker stops it.
        self.0.iter().for_each(UnderWay::forget);
    }
}

fn error_to_json(error: &Error) -> Value {
    json!({
        "sqlstate": String::from_utf8_lossy(&error.sqlstate),
        "message": error.message,
        "detail": error.detail,
        "hint": error.hint,
        "context": error.context,
        "duplicate": error.duplicate.as_deref().map(|duplicate| {
            json!([keys_to_json(&duplicate.pattern), duplicate.value.as_deref().map(keys_to_json)])
        }),
    })
}

fn keys_to_json(keys: &[(String, DocumentValue)]) -> Value {
    keys.iter().map(|(path, value)| json!([path, ext_json::to_json(value)])).collect()
}

fn keys_from_json(json: &Value) -> Option<Vec<(String, DocumentValue)>> {
    let key = |pair: &Value| Some((pair[0].as_str()?.to_owned(), ext_json::from_json(&pair[1]).ok()?));
    json.as_array()?.iter().map(key).collect()
}

fn error_from_json(json: &Value) -> Error {
    let text = |name: &str| json.get(name).and_then(Value::as_str).map(str::to_owned);
    let mut error = Error::new(Kind::InternalError, text("message").unwrap_or_default());
    if let Some(Ok(sqlstate)) = text("sqlstate").map(|s| <[u8; 5]>::try_from(s.as_bytes())) {
        error.sqlstate = sqlstate;
    }
    error.detail = text("detail");
    error.hint = text("hint");
    error.context = text("context");
    error.duplicate = json.get("duplicate").and_then(|duplicate| {
        let pattern = keys_from_json(&duplicate[0])?;
        Some(Box::new(DuplicateKey { pattern, value: keys_from_json(&duplicate[1]) }))
    });
    error
}

thread_local! {
    /// The header of the job that this process runs, mapped until the process ends; null in others.
    static OWN: Cell<*const Header> = const { Cell::new(std::ptr::null()) };
}

/// In a job: that its caller still waits for it. Always so in other processes.
///
/// # Errors
/// `Interrupted` (57014) if the caller's statement has ended.
pub fn check_wanted() -> Result<()> {
    // SAFETY: null, or mapped.
    let abandoned = unsafe { OWN.get().as_ref() }.is_some_and(|own| own.abandoned.load(Ordering::Acquire) == 1);
    if abandoned {
        return Err(Error::new(Kind::Interrupted, "the statement that waited for this has ended"));
    }
    Ok(())
}

fn work(segment: &Segment) -> Result<Value> {
    let envelope: Value = serde_json::from_slice(&segment.request())
        .map_err(|e| Error::new(Kind::InternalError, format!("a background worker's request: {e}")))?;
    let name = envelope["job"].as_str().unwrap_or_default();
    let job = {
        let jobs = JOBS.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        jobs.iter().find(|(known, _)| *known == name).map(|(_, job)| *job)
    };
    let job = job.ok_or_else(|| Error::new(Kind::InternalError, format!("there is no job \"{name}\"")))?;
    job(&envelope["request"])
}

unsafe extern "C-unwind" fn on_signal(signal: i32) {
    // SAFETY: PostgreSQL's own handler of a query's cancel, which is made for this; it raises nothing.
    unsafe { pg_sys::StatementCancelHandler(signal) };
}

/// Where a worker starts.
#[pg_guard]
#[unsafe(no_mangle)]
pub extern "C-unwind" fn docshard_job_main(argument: pg_sys::Datum) {
    // SAFETY: called once, by PostgreSQL, in a new worker: signals are blocked until the handlers are there. SIGTERM
    // becomes an ERROR at the next wait, not the end of the process, so that the job can clean up.
    let segment = unsafe {
        pg_sys::pqsignal(pg_sys::SIGTERM as i32, Some(on_signal));
        pg_sys::pqsignal(pg_sys::SIGINT as i32, Some(on_signal));
        pg_sys::BackgroundWorkerUnblockSignals();
        let segment = pg_sys::dsm_attach(argument.value() as pg_sys::dsm_handle);
        if segment.is_null() {
            // The caller is gone already.
            return;
        }
        Segment(segment)
    };
    let header = segment.header();
    header.started.store(1, Ordering::Release);
    OWN.set(header);
    // SAFETY: once, before anything else; without a role, so that no settings of one apply but the superuser's.
    unsafe { pg_sys::BackgroundWorkerInitializeConnectionByOid(header.database, pg_sys::InvalidOid, 0) };
    search_path::pin_for_process();
    let become_owner = || transaction::run(|| user::extension_owner().map(user::become_for_session));
    let answer = match become_owner().and_then(|()| transaction::guarded(|| work(&segment))) {
        Ok(answer) => json!({"answer": answer}),
        Err(error) => json!({"error": error_to_json(&error)}),
    };
    segment.set_answer(answer.to_string().as_bytes());
}
