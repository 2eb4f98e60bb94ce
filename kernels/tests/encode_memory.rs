//! Tests the encoder's memory beyond its arguments: it is bounded per thread, for every size of the model.

use kernels::{
    encode::{self, Feedback, Source},
    wire::{Layout, SECTION},
};
use std::{
    alloc::{GlobalAlloc, Layout as Block, System},
    convert::Infallible,
    sync::atomic::{AtomicUsize, Ordering::Relaxed},
};

/// Number of allocated bytes, and its peak.
static HELD: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);

struct Counting;

// SAFETY: every call is forwarded to the system allocator; only counters are added.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, block: Block) -> *mut u8 {
        let held = HELD.fetch_add(block.size(), Relaxed) + block.size();
        PEAK.fetch_max(held, Relaxed);
        // SAFETY: the caller upholds the allocator's contract.
        unsafe { System.alloc(block) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, block: Block) {
        HELD.fetch_sub(block.size(), Relaxed);
        // SAFETY: as above.
        unsafe { System.dealloc(memory, block) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Bound in the documentation of `encode_into`.
const BYTES_A_THREAD: usize = 4 << 20;

/// Returns the peak of allocated memory during the encoding of this many full sections.
fn added_by(sections: usize, density: u16) -> usize {
    let layout = Layout::new(&[sections * SECTION], density).unwrap();
    let mut residual: Vec<f32> =
        (0..layout.values()).map(|index| (index * 7919 % 100_003) as f32 * 1e-6).collect();
    let delta = residual.clone();
    let before = HELD.load(Relaxed);
    PEAK.store(before, Relaxed);
    let source = Source::Delta { decay: 0.95, delta: &delta };
    let mut sink = |_: &[u8]| Ok::<(), Infallible>(());
    encode::encode_into(&layout, &mut residual, source, Feedback::Spend, &mut sink).unwrap();
    PEAK.load(Relaxed) - before
}

#[test]
fn encoding_adds_a_few_sections_a_thread_however_many_there_are() {
    for threads in [1, 2, 3] {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        for density in [64, 1107, 4096] {
            for sections in [10, 40] {
                let added = pool.install(|| added_by(sections, density));
                let bound = threads * BYTES_A_THREAD;
                assert!(added > 0 && added <= bound, "{added} bytes by {threads} threads at {density}");
            }
        }
    }
}
