//! Commands that moved to `mettle`. In a process of its own: a child that another test forks would hold the copied
//! program open for writing, and it could not be run.

#![cfg(unix)]

use std::{fs, os::unix::fs::PermissionsExt as _, process::Command};

/// A stand-in for `mettle` beside the program shows what it is called with.
#[test]
fn a_moved_command_runs_mettle_with_its_arguments_and_exit_code() {
    let home = tempfile::tempdir().unwrap();
    let (miner, mettle) = (home.path().join("miner"), home.path().join("mettle"));
    fs::copy(env!("CARGO_BIN_EXE_miner"), &miner).unwrap();
    fs::write(&mettle, "#!/bin/sh\necho \"$@\"\nexit 5\n").unwrap();
    fs::set_permissions(&mettle, fs::Permissions::from_mode(0o755)).unwrap();
    let output = Command::new(&miner).args(["register", "--stake", "5"]).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stdout), "register miner --stake 5\n");
    assert_eq!(output.status.code(), Some(5));
}
