//! Bounds the time and memory that a client's expression, filter or update may take.
//!
//! Loops over a client's values count steps. After at most [`INTERVAL`] steps a [hook](Hooks) checks for an interrupt, and unwinds
//! if there is one. So no error has to be passed through the callers.
//!
//! Memory is what the process holds, as counted by its allocator. While an [`Evaluation`] lives, the process may allocate up to the
//! limit in addition. Every step checks that, and large allocations are checked in advance.
//!
//! INVARIANT: between two checks the process allocates at most as much again as it held at the first one, apart from allocations
//! that were checked in advance.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// The largest number of steps between two checks for an interrupt.
pub const INTERVAL: usize = 1_000;

/// The number of bytes that are copied or compared in one step.
const BYTES_A_STEP: usize = 256;

/// Callbacks into the process. If none are installed, evaluations are unbounded.
#[derive(Clone, Copy, Debug)]
pub struct Hooks {
    /// unwinds if the statement was cancelled
    pub interrupt: fn(),
    /// returns the limit of an evaluation's memory, in bytes
    pub limit: fn() -> usize,
    /// unwinds with an error that names the limit
    pub exceeded: fn(usize),
}

static HOOKS: OnceLock<Hooks> = OnceLock::new();

/// Steps before the next check for an interrupt.
static LEFT: AtomicUsize = AtomicUsize::new(INTERVAL);

/// Bytes that the process holds. Loads and stores are separate, which is exact in a backend with its single thread, and an
/// approximation with several threads, as in tests.
static HELD: AtomicUsize = AtomicUsize::new(0);

/// The most bytes that the process may hold now.
static CEILING: AtomicUsize = AtomicUsize::new(usize::MAX);

/// Sets the hooks, once in a process.
pub fn install(hooks: Hooks) {
    let _ = HOOKS.set(hooks);
}

/// Counts allocated bytes; the process's allocator calls it.
#[inline]
pub fn allocated(bytes: usize) {
    HELD.store(HELD.load(Relaxed).wrapping_add(bytes), Relaxed);
}

/// Counts freed bytes; the process's allocator calls it.
#[inline]
pub fn freed(bytes: usize) {
    HELD.store(HELD.load(Relaxed).wrapping_sub(bytes), Relaxed);
}

/// Bounds the process's memory while it lives. A nested evaluation shares the bound of the outer one.
#[derive(Debug)]
pub(crate) struct Evaluation {
    outer: usize,
}

impl Evaluation {
    pub(crate) fn begin() -> Evaluation {
        Evaluation::begin_large(1)
    }

    /// Begins an evaluation whose memory limit is `times` the usual one.
    pub(crate) fn begin_large(times: usize) -> Evaluation {
        let outer = CEILING.load(Relaxed);
        if outer == usize::MAX
            && let Some(hooks) = HOOKS.get()
        {
            CEILING.store(HELD.load(Relaxed).saturating_add((hooks.limit)().saturating_mul(times)), Relaxed);
        }
        Evaluation { outer }
    }
}

impl Drop for Evaluation {
    fn drop(&mut self) {
        CEILING.store(self.outer, Relaxed);
    }
}

/// Counts a step.
#[inline]
pub(crate) fn step() {
    steps(1);
}

/// Counts steps.
#[inline]
pub(crate) fn steps(count: usize) {
    let left = LEFT.load(Relaxed);
    if left <= count || HELD.load(Relaxed) > CEILING.load(Relaxed) {
        pause();
    } else {
        LEFT.store(left - count, Relaxed);
    }
}

/// Counts the steps for processing this number of bytes.
#[inline]
pub(crate) fn bytes(count: usize) {
    steps(1 + count / BYTES_A_STEP);
}

/// Counts the steps for writing a text of this length, and checks the limit before. The paths of a tree may together be much longer
/// than the text of a client.
#[inline]
pub(crate) fn text(length: usize) {
    room_for(length);
    bytes(length);
}

/// Checks the limit before an allocation of this size.
#[inline]
pub(crate) fn room_for(bytes: usize) {
    if HELD.load(Relaxed).saturating_add(bytes) > CEILING.load(Relaxed) {
        exceeded();
    }
}

/// The memory of the process, in bytes.
#[inline]
pub(crate) fn held() -> usize {
    HELD.load(Relaxed)
}

/// Checks that caches that outlive evaluations do not exceed the limit of one.
#[cold]
pub(crate) fn check_kept(bytes: usize) {
    if HOOKS.get().is_some_and(|hooks| bytes > (hooks.limit)()) {
        exceeded();
    }
}

/// Runs a function that copies values, and counts steps for the bytes that it allocates.
#[inline]
pub(crate) fn copying<T>(copy: impl FnOnce() -> T) -> T {
    let before = HELD.load(Relaxed);
    let copied = copy();
    bytes(HELD.load(Relaxed).saturating_sub(before));
    copied
}

#[cold]
fn pause() {
    LEFT.store(INTERVAL, Relaxed);
    let Some(hooks) = HOOKS.get() else { return };
    (hooks.interrupt)();
    if HELD.load(Relaxed) > CEILING.load(Relaxed) {
        exceeded();
    }
}

#[cold]
fn exceeded() {
    if let Some(hooks) = HOOKS.get() {
        (hooks.exceeded)((hooks.limit)());
    }
}
