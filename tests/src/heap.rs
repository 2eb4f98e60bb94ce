//! The bytes that Rust code of a program has allocated, counted by its global allocator. Resident memory also includes
//! bytes that the system's allocator retains. These grow for hundreds of windows as it fragments, and so hide a small
//! leak.

use std::{
    alloc::{GlobalAlloc, Layout, System},
    sync::atomic::{AtomicUsize, Ordering::Relaxed},
};

static ALLOCATED: AtomicUsize = AtomicUsize::new(0);

/// The system's allocator with a count. A program sets it as its `#[global_allocator]`.
pub struct CountingAllocator;

// SAFETY: every call is forwarded to the system's allocator; only a number is kept in addition.
unsafe impl GlobalAlloc for CountingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATED.fetch_add(layout.size(), Relaxed);
        // SAFETY: the caller keeps the allocator's contract.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        ALLOCATED.fetch_add(layout.size(), Relaxed);
        // SAFETY: as above.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        ALLOCATED.fetch_add(size, Relaxed);
        ALLOCATED.fetch_sub(layout.size(), Relaxed);
        // SAFETY: as above.
        unsafe { System.realloc(memory, layout, size) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        ALLOCATED.fetch_sub(layout.size(), Relaxed);
        // SAFETY: as above.
        unsafe { System.dealloc(memory, layout) }
    }
}

/// Returns the number of allocated bytes.
///
/// # Errors
/// If the program has another allocator.
pub fn allocated_bytes() -> anyhow::Result<usize> {
    let bytes = ALLOCATED.load(Relaxed);
    anyhow::ensure!(bytes > 0, "the program does not count what it allocates: set CountingAllocator");
    Ok(bytes)
}
