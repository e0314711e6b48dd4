//! How this process gets memory from the system.

/// Blocks of up to so many bytes come from the heap: the most that glibc allows.
#[cfg(target_env = "gnu")]
const LARGEST_BLOCK: i32 = 32 << 20;
/// So much of the heap may lie idle before it goes back.
#[cfg(target_env = "gnu")]
const MOST_IDLE: i32 = 64 << 20;

/// Keeps large blocks that are freed for the next ones: for a process that is to allocate blocks of megabytes again and
/// again. Otherwise each comes fresh from the system, which clears it page by page: a fifth of the time that copying
/// documents takes. A process keeps [`MOST_IDLE`] at most, until it ends.
///
/// Elsewhere than with glibc it does nothing.
pub fn keep_large_blocks() {
    #[cfg(target_env = "gnu")]
    {
        static KEPT: std::sync::Once = std::sync::Once::new();
        // SAFETY: both only set limits of the allocator, of which no block that exists knows.
        KEPT.call_once(|| unsafe {
            libc::mallopt(libc::M_MMAP_THRESHOLD, LARGEST_BLOCK);
            libc::mallopt(libc::M_TRIM_THRESHOLD, MOST_IDLE);
        });
    }
}
