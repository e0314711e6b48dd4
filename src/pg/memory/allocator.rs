//! The allocator's settings.

/// The size in bytes from which glibc maps a block separately; this is the largest that it accepts.
#[cfg(target_env = "gnu")]
const LARGEST_BLOCK: i32 = 32 << 20;
/// The most unused memory that is kept, in bytes; more is returned to the system.
#[cfg(target_env = "gnu")]
const MAX_IDLE: i32 = 64 << 20;

/// Makes the allocator keep freed large blocks, for a process that repeatedly allocates blocks of megabytes. Otherwise the
/// system clears each new block, which takes a fifth of the time for copying documents. Does nothing without glibc.
pub fn keep_large_blocks() {
    #[cfg(target_env = "gnu")]
    {
        static KEPT: std::sync::Once = std::sync::Once::new();
        // SAFETY: both only set limits of the allocator, which do not affect existing blocks.
        KEPT.call_once(|| unsafe {
            libc::mallopt(libc::M_MMAP_THRESHOLD, LARGEST_BLOCK);
            libc::mallopt(libc::M_TRIM_THRESHOLD, MAX_IDLE);
        });
    }
}
