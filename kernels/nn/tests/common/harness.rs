//! A test program without the usual harness but with its output. Its tests need a device; without one they are counted
//! as ignored, with the reason.

use mettle_nn::DeviceError;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// The device that the tests need.
pub enum Found {
    /// Description of the device.
    Ready(String),
    /// Reason for the absence.
    Absent(String),
    /// Reason why the device cannot be used, which is a failure.
    Broken(String),
}

/// Returns whether the error means that the machine or the build lacks the device.
pub fn is_absent(error: &DeviceError) -> bool {
    matches!(
        error,
        DeviceError::NotFound { .. }
            | DeviceError::WithoutGpu { .. }
            | DeviceError::NoDriver
            | DeviceError::NoSuchGpu { .. }
    )
}

/// Returns the value of `GPU_DEVICE`, or `vulkan`.
pub fn device_name() -> String {
    std::env::var("GPU_DEVICE").unwrap_or_else(|_| "vulkan".into())
}

/// Runs the tests whose names contain a word of the command line, each by `run`, and ends the process.
pub fn main<T>(tests: &[(&str, T)], found: Found, run: impl Fn(&T)) -> ! {
    let filters: Vec<String> = std::env::args().skip(1).filter(|word| !word.starts_with('-')).collect();
    let wanted = |name: &str| filters.is_empty() || filters.iter().any(|filter| name.contains(filter));
    let tests: Vec<_> = tests.iter().filter(|(name, _)| wanted(name)).collect();
    println!("\nrunning {} tests", tests.len());
    let (mut passed, mut failed, mut ignored) = (0, 0, 0);
    match found {
        Found::Ready(said) => {
            println!("{said}");
            for (name, test) in tests {
                let good = catch_unwind(AssertUnwindSafe(|| run(test))).is_ok();
                println!("test {name} ... {}", if good { "ok" } else { "FAILED" });
                if good { passed += 1 } else { failed += 1 }
            }
        }
        Found::Absent(why) => {
            tests.iter().for_each(|(name, _)| println!("test {name} ... ignored, {why}"));
            ignored = tests.len();
        }
        Found::Broken(why) => {
            println!("{why}");
            failed = tests.len().max(1);
        }
    }
    let verdict = if failed == 0 { "ok" } else { "FAILED" };
    println!("\ntest result: {verdict}. {passed} passed; {failed} failed; {ignored} ignored; 0 measured");
    std::process::exit(if failed == 0 { 0 } else { 101 });
}
