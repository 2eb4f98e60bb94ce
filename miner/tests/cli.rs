//! The program's answers to wrong input, without a chain.

use std::{
    ffi::OsStr,
    fs,
    process::{Command, Stdio},
};

fn command(arguments: &[&dyn AsRef<OsStr>]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_miner"));
    for variable in
        ["METTLE_CONFIG", "METTLE_CHAIN", "METTLE_GENESIS", "METTLE_RUN", "METTLE_KEY", "METTLE_DIRECTORY"]
    {
        command.env_remove(variable);
    }
    command.env("METTLE_KEY_PASSWORD", "correct horse battery staple");
    command.args(arguments.iter().map(|argument| argument.as_ref()));
    command.stdin(Stdio::null());
    command
}

/// The program fails, and its complaint has all of `words`.
#[track_caller]
fn refused(arguments: &[&dyn AsRef<OsStr>], words: &[&str]) {
    let output = command(arguments).output().expect("the program is built and starts");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success(), "it should have refused: {said}");
    for word in words {
        assert!(said.contains(word), "{word:?} is not in: {said}");
    }
    assert!(!said.contains("panicked"), "{said}");
}

#[test]
fn a_missing_setting_is_named() {
    let home = tempfile::tempdir().unwrap();
    let directory = home.path().join("data");
    let none = home.path().join("none.json");
    refused(&[&"start", &"--config", &"/no/such/miner.toml"], &["/no/such/miner.toml"]);
    refused(&[&"start", &"--directory", &directory], &["--key"]);
    refused(
        &[&"start", &"--directory", &directory, &"--key", &none],
        &["no key file", "none.json", "keys new"],
    );
    refused(&[&"dig"], &["dig"]);
}

#[test]
fn a_typo_in_the_settings_is_refused() {
    let home = tempfile::tempdir().unwrap();
    let settings = home.path().join("miner.toml");
    fs::write(&settings, "chian = \"ws://127.0.0.1:1\"\n").unwrap();
    refused(&[&"start", &"--config", &settings], &["miner.toml", "chian"]);
}
