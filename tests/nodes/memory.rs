//! A validator that merges holds no whole row of its model in anonymous memory (ADR 0003).

use serde_json::Value;
use std::process::Command;

/// Number of parameters, above 32 Mi values: a row has more than 128 MiB.
const PARAMETERS: u64 = 48_000_000;

/// Merge, vote, save, checkpoint, join and repair, in a separate process.
#[test]
#[cfg(target_os = "linux")]
fn a_validators_own_memory_does_not_hold_the_model() {
    let directory = tempfile::tempdir().unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_memory-report"))
        .args(["--json", "--windows", "2", "--contributions", "3", "--mapped-from", "0"])
        .args(["--parameters", &PARAMETERS.to_string()])
        .arg("--directory")
        .arg(directory.path())
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let parameters = report["parameters"].as_u64().unwrap();
    assert!(PARAMETERS / 2 < parameters, "{report:#}");
    let phases = report["phases"].as_array().unwrap();
    assert!(10 < phases.len());
    for phase in phases {
        let anonymous = phase["anonymous_bytes"].as_u64().unwrap();
        assert!(3 * anonymous < 4 * parameters, "a third of a row: {report:#}");
    }
}
