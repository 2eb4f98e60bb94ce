//! Tests of the report program as a user runs it.

use serde_json::Value;
use std::process::{Command, Output};

fn report(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_train-report")).args(arguments).output().expect("the report starts")
}

#[test]
fn the_report_holds_what_was_measured_of_each_preset() {
    let output = report(&["--preset", "117k", "--preset", "1m", "--steps", "1", "--batch", "4", "--json"]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let presets = report["presets"].as_array().unwrap();
    assert_eq!(presets.len(), 2);
    for preset in presets {
        let number = |name: &str| preset[name].as_f64().unwrap_or_else(|| panic!("no {name} in {preset}"));
        for positive in
            ["tokens_per_second", "tokens_per_cpu_second", "cpu_ms_per_step", "matmul_share", "utilisation"]
        {
            assert!(number(positive) > 0.0, "{positive} in {preset}");
        }
        let losses: Vec<f64> = serde_json::from_value(preset["losses"].clone()).unwrap();
        assert!(losses.last() < losses.first(), "a repeated batch is learnt");
        assert!(number("cpu_ms_per_step_min") <= number("cpu_ms_per_step"));
    }
    // Each preset has its own process, so the peaks differ.
    if let [Some(small), Some(large)] = [0, 1].map(|at| presets[at]["memory_peak_bytes"].as_f64()) {
        assert!(small < large, "{small} {large}");
        let estimate = presets[1]["memory_estimate_bytes"].as_f64().unwrap();
        assert!((0.5..1.2).contains(&(estimate / large)), "estimate {estimate}, measured {large}");
    }
}

#[test]
fn what_cannot_be_measured_is_refused_with_its_reason() {
    let refused = |arguments: &[&str], expected: &str| {
        let output = report(arguments);
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && text.contains(expected), "{arguments:?}: {text}");
        assert!(output.stdout.is_empty(), "{arguments:?}");
    };
    refused(&["--preset", "7b"], "there is no preset \"7b\"; there are: 117k");
    refused(&["--preset", "117k", "--preset", "7b"], "there is no preset \"7b\"");
    refused(&["--steps", "0"], "--steps");
    refused(&["--batch", "0"], "--batch");
    refused(&["--fast"], "--fast");
    refused(&["--device", "gpu"], "\"gpu\" is no device");
    refused(&["--peak-tflops=-1"], "--peak-tflops");
    refused(&["--agree", "--preset", "117k", "--preset", "1m"], "name one preset");
    refused(&["--twin", "somewhere", "--preset", "117k"], "--twin is for a GPU");
    refused(&["--losses", "--preset", "117k", "--preset", "1m"], "name one preset");
    refused(&["--kernels"], "--kernels is for a GPU");
    refused(&["--kernels", "--agree", "--device", "cuda:0"], "--agree");
    if cfg!(not(feature = "cuda")) {
        refused(&["--device", "cuda:0"], "built without CUDA");
        assert_eq!(report(&["--device", "cuda:0"]).status.code(), Some(4));
    }
}
