//! What the program says to whoever types it, without a chain.

use std::{
    ffi::OsStr,
    fs,
    process::{Command, Output, Stdio},
};

fn miner(arguments: &[&dyn AsRef<OsStr>]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_miner"));
    for variable in ["METTLE_CONFIG", "METTLE_CHAIN", "METTLE_RUN", "METTLE_KEY", "METTLE_DIRECTORY"] {
        command.env_remove(variable);
    }
    command.env("METTLE_KEY_PASSWORD", "correct horse battery staple");
    command.args(arguments.iter().map(|argument| argument.as_ref()));
    command.stdin(Stdio::null()).output().expect("the program is built and starts")
}

/// The program fails, and its complaint has all of `words`.
#[track_caller]
fn refused(arguments: &[&dyn AsRef<OsStr>], words: &[&str]) {
    let output = miner(arguments);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success(), "it should have refused: {said}");
    for word in words {
        assert!(said.contains(word), "{word:?} is not in: {said}");
    }
    assert!(!said.contains("panicked"), "{said}");
}

#[test]
fn a_key_is_made_once_shown_without_its_password_and_never_overwritten() {
    let home = tempfile::tempdir().unwrap();
    let key = home.path().join("hotkey.json");
    let made = miner(&[&"keys", &"new", &"--key", &key]);
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    let written = fs::read(&key).unwrap();
    let shown = miner(&[&"keys", &"show", &"--key", &key]);
    assert!(shown.status.success());
    assert_eq!(shown.stdout, made.stdout, "both say the address");
    refused(&[&"keys", &"new", &"--key", &key], &["exists already", "hotkey.json"]);
    assert_eq!(fs::read(&key).unwrap(), written);
}

#[test]
fn what_is_missing_is_named() {
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
fn a_typo_in_the_settings_is_found() {
    let home = tempfile::tempdir().unwrap();
    let settings = home.path().join("miner.toml");
    fs::write(&settings, "chian = \"ws://127.0.0.1:1\"\n").unwrap();
    refused(&[&"start", &"--config", &settings], &["miner.toml", "chian"]);
}

#[test]
fn too_little_text_is_refused_with_how_much_is_needed() {
    let home = tempfile::tempdir().unwrap();
    fs::create_dir(home.path().join("text")).unwrap();
    fs::write(home.path().join("text").join("poem.txt"), "Roses are red.\n").unwrap();
    let (text, out) = (home.path().join("text"), home.path().join("out"));
    refused(&[&"dataset", &"prepare", &"--text", &text, &"--out", &out], &["too little text", "at least"]);
    assert!(!out.join("manifest").exists());
}
