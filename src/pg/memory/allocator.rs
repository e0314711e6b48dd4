//! The allocator's settings.

/// Blocks above this size are mapped separately. It is glibc's maximum.
#[cfg(target_env = "gnu")]
const LARGEST_BLOCK: i32 = 32 << 20;
/// Unused memory beyond this is returned to the system.
#[cfg(target_env = "gnu")]
const MOST_IDLE: i32 = 64 << 20;

/// Makes the allocator keep freed large blocks, for a process that repeatedly allocates blocks of megabytes. Otherwise the
/// system clears each new block, which takes a fifth of the time for copying documents. Does nothing without glibc.
pub fn keep_large_blocks() {
    #[cfg(target_env = "gnu")]
    {
        static KEPT: std::sync::Once = std::sync::Once::new();
        // SAFETY: both only set limits of the allocator, which do not affect existing blocks.
        KEPT.call_once(|| unsafe {
            libc::mallopt(libc::M_MMAP_THRESHOLD, LARGEST_BLOCK);
            libc::mallopt(libc::M_TRIM_THRESHOLD, MOST_IDLE);
        });
    }
}
