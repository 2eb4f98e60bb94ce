//! The program's answers to wrong input, without a chain.

use serde_json::Value;
use std::{
    ffi::OsStr,
    fs,
    io::{BufRead as _, BufReader, Read as _},
    process::{Command, Stdio},
    time::Duration,
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

/// Checks that the program fails, and that its error has all of `words`.
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

#[test]
fn a_profile_of_training_steps_needs_no_seat_and_replaces_no_file() {
    let home = tempfile::tempdir().unwrap();
    let trace = home.path().join("trace.json");
    let steps: [&dyn AsRef<OsStr>; 7] =
        [&"profile", &"--model", &"117k", &"--steps", &"4", &"--output", &trace];
    let output = command(&steps).output().unwrap();
    let (said, table) =
        (String::from_utf8_lossy(&output.stderr), String::from_utf8_lossy(&output.stdout).into_owned());
    assert!(output.status.success(), "{said}");
    for word in ["4 steps of 16 sequences, 117k on cpu", "forward", "optimiser", "ui.perfetto.dev"] {
        assert!(table.contains(word), "{word:?} is not in: {table}");
    }
    let bytes = fs::read(&trace).unwrap();
    let parsed: Value = serde_json::from_slice(&bytes).unwrap();
    let forward = parsed["traceEvents"].as_array().unwrap().iter().filter(|event| event["name"] == "forward");
    assert_eq!(forward.count(), 3 + 4, "those of the first steps too");

    refused(&steps, &["trace.json exists", "--output"]);
    assert_eq!(fs::read(&trace).unwrap(), bytes);
}

#[test]
fn a_wrong_flag_of_a_profile_is_named() {
    let home = tempfile::tempdir().unwrap();
    let trace = home.path().join("none").join("trace.json");
    refused(&[&"profile", &"--windows", &"0"], &["--windows"]);
    refused(&[&"profile", &"--steps", &"4"], &["--model"]);
    refused(&[&"profile", &"--model", &"117k", &"--windows", &"2"], &["--windows"]);
    refused(&[&"profile", &"--model", &"7b", &"--output", &home.path().join("a")], &["7b", "117k"]);
    refused(&[&"profile", &"--model", &"117k", &"--output", &trace], &["none/trace.json", "--output"]);
    refused(&[&"profile", &"--output", &home.path().join("a")], &["--key"]);
    assert_eq!(fs::read_dir(home.path()).unwrap().count(), 0, "no trace without a measurement");
}

#[cfg(unix)]
#[test]
fn ctrl_c_during_a_profile_writes_what_was_measured() {
    let home = tempfile::tempdir().unwrap();
    let trace = home.path().join("trace.json");
    let stopped_after = |delay: Duration| {
        let mut child =
            command(&[&"profile", &"--model", &"1m", &"--steps", &"100000", &"--json", &"--output", &trace])
                .stdout(Stdio::piped())
                .stderr(Stdio::piped())
                .spawn()
                .unwrap();
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
        assert!(lines.by_ref().map_while(Result::ok).any(|line| line.contains("measuring")));
        std::thread::sleep(delay);
        let told = Command::new("kill").args(["-INT", &child.id().to_string()]).status();
        assert!(told.unwrap().success());
        let mut said = String::new();
        child.stdout.take().unwrap().read_to_string(&mut said).unwrap();
        let complaint: Vec<String> = lines.map_while(Result::ok).collect();
        (child.wait().unwrap().success(), said, complaint.join("\n"))
    };
    // Without one whole step nothing can be written, so a slow machine gets longer.
    let mut delay = Duration::from_millis(200);
    let said = loop {
        let (success, said, complaint) = stopped_after(delay);
        if success {
            break said;
        }
        assert!(complaint.contains("nothing was measured"), "{complaint}");
        assert!(delay < Duration::from_secs(100), "no whole step in {delay:?}");
        delay *= 2;
    };
    let profile: Value = serde_json::from_str(&said).unwrap();
    assert_eq!((&profile["is_complete"], &profile["model"]), (&false.into(), &"1m".into()));
    let parsed: Value = serde_json::from_slice(&fs::read(&trace).unwrap()).unwrap();
    assert!(3 < parsed["traceEvents"].as_array().unwrap().len());
}
