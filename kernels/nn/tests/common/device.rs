//! Tests that need a GPU, on the device that `GPU_DEVICE` names, `vulkan` by default; a software device (lavapipe) is
//! enough. Without a device they are counted as ignored, with the reason, so each is a program without the usual
//! harness.

#[path = "harness.rs"]
mod harness;

use harness::Found;
use mettle_nn::{Device, EngineKind, Precision, gpu::Gpu};

/// Name of a test, and its function.
pub type Test = (&'static str, fn(&Gpu));

/// Runs the tests on the named device.
pub fn main(tests: &[Test]) -> ! {
    let name = harness::device_name();
    let gpu = name.parse().and_then(|device: Device| {
        let device = Device { engine: Some(EngineKind::Fused), ..device };
        device.check()?;
        Gpu::open(device)
    });
    let found = match &gpu {
        Ok(gpu) => Found::Ready(format!("on {name}, in {:?}", precisions(gpu))),
        Err(error) if harness::is_absent(error) => Found::Absent(error.to_string()),
        Err(error) => Found::Broken(error.to_string()),
    };
    harness::main(tests, found, |test| test(gpu.as_ref().expect("tests run on a device that opened")))
}

/// Returns the precisions of the device.
pub fn precisions(gpu: &Gpu) -> Vec<Precision> {
    [Precision::F32, Precision::Bf16, Precision::F16]
        .into_iter()
        .filter(|precision| gpu.supports(*precision))
        .collect()
}
