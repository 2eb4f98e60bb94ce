//! Tests of the report program: its figures that do not depend on the machine.

use serde_json::Value;
use std::process::{Command, Output};

fn report(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_kernels-report")).args(arguments).output().expect("the report starts")
}

#[test]
fn the_report_holds_what_the_format_promises() {
    let small =
        ["--mebivalues", "2", "--merge-mebivalues", "1", "--rounds", "1", "--threads", "1,3", "--json"];
    let output = report(&small);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let number = |pointer: &str| {
        report.pointer(pointer).and_then(Value::as_f64).unwrap_or_else(|| panic!("no {pointer} in {report}"))
    };

    assert!(number("/bits_per_value") <= 10.0);
    assert!(number("/relative_l2/gaussian") <= 0.075);
    assert!(number("/relative_l2/laplace") <= 0.125);
    assert!(number("/relative_l2/chunk_scales_1") <= 0.075);
    assert!(number("/relative_l2/student_t3") > number("/relative_l2/laplace"), "heavy tails are harder");
    assert!(number("/model_70_6b/contribution_gb") <= 1.4);
    assert!(number("/model_70_6b/update_gb") <= 13.0);
    assert!(number("/model_70_6b/update_share_of_contributions") <= 0.5);
    if let Some(added) = report["peak_memory"]["encode_added_mib_per_thread"].as_f64() {
        assert!(added <= 64.0, "{added} MiB a thread");
    }

    for positive in ["/memcpy_gbps", "/encode_gbps", "/decode_accumulate_share", "/merge/seconds"] {
        assert!(number(positive) > 0.0, "{positive}");
    }
    let kernels = report["kernels"].as_array().unwrap();
    for threads in [1, 3] {
        let of_threads = kernels.iter().filter(|kernel| kernel["threads"] == threads);
        assert_eq!(of_threads.count(), 10, "a copy and nine kernels");
    }
}

#[test]
fn what_cannot_be_measured_is_refused_in_words() {
    let refused = |arguments: &[&str], expected: &str| {
        let output = report(arguments);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && said.contains(expected), "{arguments:?}: {said}");
    };
    refused(&["--density", "0"], "--density");
    refused(&["--density", "4097"], "--density");
    refused(&["--mebivalues", "0"], "--mebivalues");
    refused(&["--simd", "mmx"], "--simd");
    refused(&["--fast"], "--fast");
}
