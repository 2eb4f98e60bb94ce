//! CPU time and wall-clock time of this process.

use std::time::{Duration, Instant};

/// Duration of one run.
#[derive(Clone, Copy, Debug)]
pub struct Took {
    /// CPU time of all threads of this process, user and system.
    pub cpu: Duration,
    pub wall: Duration,
}

pub fn took(run: impl FnOnce()) -> Took {
    let (began, cpu) = (Instant::now(), cpu());
    run();
    Took { wall: began.elapsed(), cpu: self::cpu().saturating_sub(cpu) }
}

/// Returns the CPU time of this process so far.
fn cpu() -> Duration {
    // SAFETY: all zeros are a valid `rusage`, and the call writes only to it. It cannot fail for RUSAGE_SELF.
    let usage = unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        libc::getrusage(libc::RUSAGE_SELF, &mut usage);
        usage
    };
    let duration = |time: libc::timeval| {
        Duration::from_secs(time.tv_sec as u64) + Duration::from_micros(time.tv_usec as u64)
    };
    duration(usage.ru_utime) + duration(usage.ru_stime)
}

/// Returns noise with a mean square of a half: the sum of four uniform numbers, scaled.
#[cfg(feature = "gpu")]
pub fn noise(len: usize, seed: u64) -> Vec<f32> {
    let mut state = seed;
    let mut uniform = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / (1 << 24) as f32 - 0.5
    };
    (0..len).map(|_| (uniform() + uniform() + uniform() + uniform()) * 1.2).collect()
}

/// Returns the median, or 0 for no values.
pub fn median(values: &[f64]) -> f64 {
    let mut values = values.to_vec();
    values.sort_by(f64::total_cmp);
    match values.len() {
        0 => 0.0,
        len => (values[(len - 1) / 2] + values[len / 2]) / 2.0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_in_the_middle() {
        assert_eq!(median(&[]), 0.0);
        assert_eq!(median(&[3.0]), 3.0);
        assert_eq!(median(&[3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), 2.5);
    }

    #[test]
    fn work_takes_cpu_time() {
        let mut sum = 0u64;
        let took = took(|| {
            while sum < 50_000_000 {
                sum = std::hint::black_box(sum + 1);
            }
        });
        assert!(took.cpu > Duration::ZERO && took.wall > Duration::ZERO, "{took:?}");
    }
}
