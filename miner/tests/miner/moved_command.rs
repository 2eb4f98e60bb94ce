//! Commands that moved to `mettle`.

#![cfg(unix)]

use std::process::Command;

/// A stand-in for `mettle` beside the program shows what it is called with.
#[test]
fn a_moved_command_runs_mettle_with_its_arguments_and_exit_code() {
    let home = tempfile::tempdir().unwrap();
    let (miner, mettle) = (home.path().join("miner"), home.path().join("mettle"));
    // A child writes the programs. If this process did, a child that another test forks would hold them open for
    // writing, and they could not be run.
    let script =
        "cp \"$1\" \"$2\" && printf '#!/bin/sh\\necho \"$@\"\\nexit 5\\n' >\"$3\" && chmod 755 \"$3\"";
    let mut written = Command::new("sh");
    written.args(["-c", script, "sh", env!("CARGO_BIN_EXE_miner")]).args([&miner, &mettle]);
    assert!(written.status().unwrap().success());
    let output = Command::new(&miner).args(["register", "--stake", "5"]).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stdout), "register miner --stake 5\n");
    assert_eq!(output.status.code(), Some(5));
}
