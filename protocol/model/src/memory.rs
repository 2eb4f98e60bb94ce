//! Keeps freed memory for the next step instead of giving it back to the kernel.
//!
//! A step on the CPU allocates and frees the same few dozen buffers of some hundred kilobytes again and again. By default
//! glibc maps such a buffer freshly from the kernel each time, which clears its pages and faults on each of them: a fifth
//! of the time of a small model's step. Numbers in `docs/benchmarks.md`.

use std::sync::Once;

/// Tells the C library's allocator to keep what is freed. For the whole process, once; where there is no such setting,
/// nothing happens.
pub(crate) fn keep_freed() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        #[cfg(all(target_os = "linux", target_env = "gnu"))]
        {
            use std::ffi::c_int;
            // Part of the C library that the standard library links anyway.
            unsafe extern "C" {
                fn mallopt(parameter: c_int, value: c_int) -> c_int;
            }
            const M_TRIM_THRESHOLD: c_int = -1;
            const M_MMAP_THRESHOLD: c_int = -3;
            // The largest threshold that glibc takes.
            const MMAP_THRESHOLD: c_int = 32 << 20;
            // SAFETY: mallopt may be called at any time and changes only where later memory comes from. A value that it
            // does not like it ignores.
            unsafe {
                mallopt(M_MMAP_THRESHOLD, MMAP_THRESHOLD);
                mallopt(M_TRIM_THRESHOLD, c_int::MAX);
            }
        }
    });
}
