//! Tests that need a device of `kernels::gpu`.

#[path = "harness.rs"]
mod harness;

use harness::Found;
use kernels::gpu::{Device, OpenError, network::Precision};

/// A test's name, and what it does on a device.
pub type Test = (&'static str, fn(&Device));

/// Runs them on the device asked for.
pub fn main(tests: &[Test]) -> ! {
    let name = harness::device_name();
    let device = Device::open(&name);
    let found = match &device {
        Ok(device) => {
            let agrees = if device.hardware() { "agrees" } else { "does not agree" };
            Found::Ready(format!("on {name}, its own arithmetic {agrees}, in {:?}", precisions(device)))
        }
        Err(error @ (OpenError::NotFound { .. } | OpenError::NotBuilt { .. })) => {
            Found::Absent(error.to_string())
        }
        Err(error) => Found::Broken(error.to_string()),
    };
    harness::main(tests, found, |test| test(device.as_ref().expect("no test is run without it")))
}

/// What arrays can hold on this device.
pub fn precisions(device: &Device) -> Vec<Precision> {
    [Precision::F32, Precision::Bf16, Precision::F16]
        .into_iter()
        .filter(|precision| device.supports(*precision))
        .collect()
}
