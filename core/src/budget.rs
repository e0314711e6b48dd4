//! Bounds of what a client's expression, filter or update may take: time and memory.
//!
//! Loops over a client's values count their steps. After at most [`INTERVAL`] of them the process is asked whether it is to
//! go on, by a [hook](Hooks) that does not return if not: it unwinds. So nothing here has to be told, and no caller has
//! to pass it on.
//!
//! Memory is what the process holds, as its allocator counts it: what is freed does not count. While an [`Evaluation`]
//! lives, no more than the limit may be added. Each step looks, and whatever is about to take much at once asks first.
//!
//! INVARIANT: between two looks no more is allocated than was there, or than was asked for.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// The most steps between two questions.
pub const INTERVAL: usize = 1_000;

/// So many bytes that are copied or compared count as a step.
const BYTES_A_STEP: usize = 256;

/// What the process does. Without hooks there are no bounds.
#[derive(Clone, Copy, Debug)]
pub struct Hooks {
    /// unwinds if the statement is to end
    pub interrupt: fn(),
    /// how many bytes an evaluation may take
    pub limit: fn() -> usize,
    /// unwinds, with the limit
    pub exceeded: fn(usize),
}

static HOOKS: OnceLock<Hooks> = OnceLock::new();

/// Steps that are left before the next question.
static LEFT: AtomicUsize = AtomicUsize::new(INTERVAL);

/// Bytes that the process holds. A backend has one thread, so reading and writing them apart is right; where there are several,
/// as in tests, the count is about right.
static HELD: AtomicUsize = AtomicUsize::new(0);

/// The most bytes that it may hold now.
static CEILING: AtomicUsize = AtomicUsize::new(usize::MAX);

/// Sets the hooks, once in a process.
pub fn install(hooks: Hooks) {
    let _ = HOOKS.set(hooks);
}

/// For the process's allocator: so many bytes more are held.
#[inline]
pub fn allocated(bytes: usize) {
    HELD.store(HELD.load(Relaxed).wrapping_add(bytes), Relaxed);
}

/// For the process's allocator: so many bytes fewer are held.
#[inline]
pub fn freed(bytes: usize) {
    HELD.store(HELD.load(Relaxed).wrapping_sub(bytes), Relaxed);
}

/// An evaluation, for as long as it lives: what is held then is bounded. One within another belongs to that.
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

/// Counts the steps that it takes to go through so many bytes.
#[inline]
pub(crate) fn bytes(count: usize) {
    steps(1 + count / BYTES_A_STEP);
}

/// Asks for so many bytes, which are about to be allocated.
#[inline]
pub(crate) fn room_for(bytes: usize) {
    if HELD.load(Relaxed).saturating_add(bytes) > CEILING.load(Relaxed) {
        exceeded();
    }
}

/// What the process holds, in bytes.
#[inline]
pub(crate) fn held() -> usize {
    HELD.load(Relaxed)
}

/// What is kept from one evaluation to the next may not be more than one of them may take.
#[cold]
pub(crate) fn check_kept(bytes: usize) {
    if HOOKS.get().is_some_and(|hooks| bytes > (hooks.limit)()) {
        exceeded();
    }
}

/// Runs what copies values, and counts the steps of what it has allocated.
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
