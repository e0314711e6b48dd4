//! Connects `docshard_core::budget` to the backend: expressions can be cancelled, and a setting limits their memory.

use crate::pg::error::Raise as _;
use docshard_core::budget::{self, Hooks};
use docshard_core::error::{Kind, error};
use pgrx::{GucContext, GucFlags, GucRegistry, GucSetting};
use std::alloc::{GlobalAlloc, Layout, System};

/// The setting `docshard.max_expression_memory`, in kB.
static LIMIT: GucSetting<i32> = GucSetting::<i32>::new(100 * 1024);

/// The least value of the setting, in kB.
const LEAST: i32 = 1024;

/// Called from `_PG_init`.
pub fn init() {
    GucRegistry::define_int_guc(
        c"docshard.max_expression_memory",
        c"How much memory the evaluation of one expression may take.",
        c"Beyond it the statement fails with MongoDB's error 146 (ExceededMemoryLimit).",
        &LIMIT,
        LEAST,
        i32::MAX,
        GucContext::Suset,
        GucFlags::UNIT_KB,
    );
    budget::install(Hooks { interrupt, limit, exceeded });
}

fn interrupt() {
    pgrx::check_for_interrupts!();
}

fn limit() -> usize {
    usize::try_from(LIMIT.get()).unwrap_or(0).saturating_mul(1024)
}

fn exceeded(limit: usize) {
    error!(Kind::ExceededMemoryLimit, "an expression takes more than {} MB of memory", limit >> 20)
        .with_hint("A superuser can set docshard.max_expression_memory.")
        .raise()
}

/// The system's allocator, which also counts bytes for `docshard_core::budget`.
pub struct Counting;

// SAFETY: every call is passed to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        budget::allocated(layout.size());
        // SAFETY: promised by the caller.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        budget::freed(layout.size());
        // SAFETY: promised by the caller.
        unsafe { System.dealloc(block, layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        budget::allocated(layout.size());
        // SAFETY: promised by the caller.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        budget::allocated(size);
        budget::freed(layout.size());
        // SAFETY: promised by the caller.
        unsafe { System.realloc(block, layout, size) }
    }
}
