//! Time and memory of this process.

use std::time::{Duration, Instant};

/// The time of one run.
#[derive(Clone, Copy, Debug)]
pub struct Took {
    /// Of all threads of this process, user and system.
    pub cpu: Duration,
    pub wall: Duration,
}

pub fn took(run: impl FnOnce()) -> Took {
    let (began, cpu) = (Instant::now(), cpu());
    run();
    Took { wall: began.elapsed(), cpu: self::cpu().saturating_sub(cpu) }
}

/// CPU time of this process so far.
fn cpu() -> Duration {
    // SAFETY: all zeros are a valid `rusage`, and the call writes to nothing else. It cannot fail for RUSAGE_SELF.
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

/// Peak of this process's memory in bytes, where the system tells (`VmHWM`).
pub fn memory_peak() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    let kibibytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(1024 * kibibytes)
}

/// The processor's name, where the system tells.
pub fn processor() -> Option<String> {
    let text = std::fs::read_to_string("/proc/cpuinfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("model name"))?;
    Some(line.trim_start_matches([' ', '\t', ':']).to_owned())
}

/// The shortest of several runs, in seconds: other work of the machine can only make a run longer.
#[cfg(feature = "gpu")]
pub fn shortest(rounds: usize, mut run: impl FnMut()) -> f64 {
    (0..rounds).map(|_| took(&mut run).wall.as_secs_f64()).fold(f64::INFINITY, f64::min)
}

/// The middle value, or the mean of the two in the middle. 0 for no values.
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
    fn work_takes_cpu_time_and_memory() {
        let mut sum = 0u64;
        let took = took(|| {
            while sum < 50_000_000 {
                sum = std::hint::black_box(sum + 1);
            }
        });
        assert!(took.cpu > Duration::ZERO && took.wall > Duration::ZERO, "{took:?}");
        if cfg!(target_os = "linux") {
            assert!(memory_peak().unwrap() > 1 << 20);
        }
    }
}
