//! A memory copy, and the memory use of the process.

use kernels::measure::memory;
use rayon::prelude::*;

/// Copies `from` over `to` with every thread of the pool: one read and one write per byte, at the memory's bandwidth.
pub fn copy(from: &[f32], to: &mut [f32]) {
    let part = from.len().div_ceil(4 * rayon::current_num_threads()).max(1);
    to.par_chunks_mut(part).zip(from.par_chunks(part)).for_each(|(to, from)| to.copy_from_slice(from));
}

/// Peak memory of the process since [`start`](PeakMemory::start), beyond its use at that time, in bytes.
pub struct PeakMemory {
    before: u64,
}

impl PeakMemory {
    /// Starts the measurement. Returns `None` if the system does not report it (Linux does, in `/proc`).
    pub fn start() -> Option<PeakMemory> {
        // "5" resets the peak to the current use.
        std::fs::write("/proc/self/clear_refs", "5").ok()?;
        Some(PeakMemory { before: memory("VmRSS")? })
    }

    pub fn added(&self) -> Option<u64> {
        Some(memory("VmHWM")?.saturating_sub(self.before))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg_attr(not(target_os = "linux"), ignore = "only Linux reports the peak memory of a process")]
    fn memory_that_is_touched_is_counted() {
        let peak = PeakMemory::start().expect("Linux reports it");
        let mut held = vec![0u8; 64 << 20];
        held.iter_mut().step_by(4096).for_each(|byte| *byte = 1);
        std::hint::black_box(&held);
        drop(held);
        assert!(peak.added().unwrap() >= 60 << 20);
    }

    #[test]
    fn a_copy_is_a_copy() {
        let from: Vec<f32> = (0..100_003).map(|index| index as f32).collect();
        let mut to = vec![0.0; from.len()];
        copy(&from, &mut to);
        assert_eq!(from, to);
    }
}
