//! Tests of `train-report` on a GPU: the device that `GPU_DEVICE` names, `vulkan` by default. Without a GPU, the tests
//! are counted as ignored.

// The harness uses the crate's real name.
extern crate nn as mettle_nn;

#[path = "../../tests/common/harness.rs"]
mod harness;

use harness::Found;
use mettle_nn::{Device, EngineKind, Precision, gpu::Gpu};
use std::process::Command;

type Test = fn(Device);

const TESTS: &[(&str, Test)] = &[
    ("the_device_agrees_with_the_cpu", agrees),
    ("the_report_holds_what_was_measured_and_the_twins_input", measures),
    ("the_kernels_are_measured", kernels),
];

fn main() {
    let name = harness::device_name();
    let device = name.parse().and_then(|device: Device| {
        let device = Device { engine: Some(EngineKind::Fused), precision: Some(Precision::F32), ..device };
        device.check()?;
        Gpu::open(device)?;
        Ok(device)
    });
    let found = match &device {
        Ok(_) => Found::Ready(format!("on {name}")),
        Err(error) if harness::is_absent(error) => Found::Absent(error.to_string()),
        Err(error) => Found::Broken(error.to_string()),
    };
    harness::main(TESTS, found, |test| test(*device.as_ref().expect("tests run on a device that opened")));
}

fn report(device: Device, arguments: &[&str]) -> serde_json::Value {
    let mut command = Command::new(env!("CARGO_BIN_EXE_train-report"));
    let output = command.args(["--device", &device.to_string(), "--json"]).args(arguments).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

fn agrees(device: Device) {
    let agreement = report(device, &["--agree", "--preset", "117k", "--batch", "2"]);
    assert!(agreement["devices"][0]["difference"].as_f64().unwrap() < 1e-3, "{agreement}");
    assert!(agreement["kernels"].as_u64().unwrap() > 30, "{agreement}");
}

fn measures(device: Device) {
    let directory = tempfile::tempdir().unwrap();
    let (twin, out) = (directory.path().join("twin"), directory.path().join("report.json"));
    let arguments =
        ["--preset", "117k", "--batch", "2", "--steps", "2", "--micro-batch", "1", "--peak-tflops", "0.5"];
    let files = ["--twin", twin.to_str().unwrap(), "--out", out.to_str().unwrap()];
    let report = report(device, &[&arguments[..], &files].concat());
    assert_eq!(serde_json::from_slice::<serde_json::Value>(&std::fs::read(out).unwrap()).unwrap(), report);
    let preset = &report["presets"][0];
    let number = |name: &str| preset[name].as_f64().unwrap_or_else(|| panic!("no {name} in {preset}"));
    assert_eq!(preset["losses"].as_array().unwrap().len(), 5, "three to warm up, and two");
    assert!(number("memory_peak_bytes") > 0.0 && number("ms_per_step") > 0.0);
    let mfu = number("flops_per_token") * number("tokens_per_second") / 0.5e12;
    assert!((number("mfu") / mfu - 1.0).abs() < 1e-9);
    for (name, bytes) in [("weights", 4 * 117_056), ("tokens", 4 * 2 * 65)] {
        assert_eq!(std::fs::metadata(twin.join(name)).unwrap().len(), bytes, "{name}");
    }
}

fn kernels(device: Device) {
    let report = report(device, &["--kernels", "--mebivalues", "1", "--rounds", "1"]);
    let kernels = report["kernels"].as_array().unwrap();
    assert!(kernels.len() >= 14, "a copy and thirteen kernels: {report}");
    assert!(report["failed"].as_array().unwrap().is_empty(), "{report}");
    for kernel in kernels {
        assert!(kernel["moved_gbps"].as_f64().is_some_and(|moved| moved > 0.0), "{kernel}");
    }
}
