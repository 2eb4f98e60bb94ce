//! Memory of this machine and of a device: free bytes, bytes in use, and a setting of the allocator.

use std::sync::Once;

/// Bytes of a device's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceMemory {
    /// Bytes in use by this process.
    pub used: u64,
    /// Bytes reserved by this process. They never shrink, so this is also the peak.
    pub reserved: u64,
}

/// Returns the bytes that this process may still allocate, if the system reports them. It is Linux's available memory,
/// or the rest of the control group's limit if that is less.
pub fn available_memory() -> Option<u64> {
    let read = |path: &str| std::fs::read_to_string(path).ok();
    let machine = available_in(&read("/proc/meminfo")?)?;
    let group = || {
        let group = "/sys/fs/cgroup/memory";
        let [max, current] = ["max", "current"].map(|name| read(&format!("{group}.{name}")));
        left_in_group(&max?, &current?, &read(&format!("{group}.stat"))?)
    };
    Some(group().map_or(machine, |left| left.min(machine)))
}

/// Returns `MemAvailable` of `/proc/meminfo`, in bytes.
fn available_in(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kibibytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(1024 * kibibytes)
}

/// Returns the bytes left under a control group's limit (version 2), counting inactive file pages as free. `None`
/// without a limit.
fn left_in_group(max: &str, current: &str, stat: &str) -> Option<u64> {
    let (max, current): (u64, u64) = (max.trim().parse().ok()?, current.trim().parse().ok()?);
    let idle = stat.lines().find_map(|line| line.strip_prefix("inactive_file ")?.trim().parse().ok());
    Some(max.saturating_sub(current.saturating_sub(idle.unwrap_or(0))))
}

/// Configures the C library's allocator to keep freed memory, once for the whole process.
///
/// Evaluation repeatedly allocates and frees the same buffers. By default glibc returns them to the kernel, and the
/// next use faults on each page, which the kernel clears (`docs/benchmarks.md`).
pub fn keep_freed_memory() {
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
            // The largest threshold that glibc accepts.
            const MMAP_THRESHOLD: c_int = 32 << 20;
            // SAFETY: mallopt may be called at any time, and ignores unsupported values. It affects only later
            // allocations.
            unsafe {
                mallopt(M_MMAP_THRESHOLD, MMAP_THRESHOLD);
                mallopt(M_TRIM_THRESHOLD, c_int::MAX);
            }
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn free_memory_is_read_from_the_system() {
        assert_eq!(available_in("MemTotal: 9 kB\nMemAvailable:   24 kB\n"), Some(24 * 1024));
        assert_eq!(available_in("MemTotal: 9 kB\n"), None);
        assert_eq!(left_in_group("max\n", "5\n", ""), None);
        assert_eq!(left_in_group("1000\n", "700\n", "anon 1\ninactive_file 200\n"), Some(500));
        assert_eq!(left_in_group("1000\n", "1700\n", ""), Some(0));
        if cfg!(target_os = "linux") {
            assert!(available_memory().unwrap() > 0);
        }
    }
}
