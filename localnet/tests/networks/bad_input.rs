//! `localnet up` with invalid arguments: it refuses immediately, names the reason, and leaves nothing behind.

use crate::support::{PROGRAM, harness};
use libtest_mimic::Trial;
use std::{
    ffi::OsStr,
    fs,
    net::TcpListener,
    path::Path,
    process::{Command, Output, Stdio},
};

pub fn tests() -> Vec<Trial> {
    harness::plain!(
        "bad_input",
        [
            a_flag_that_does_not_exist_is_named,
            numbers_out_of_range_are_refused_with_their_range,
            an_unknown_strategy_is_named_with_all_that_exist,
            every_adversary_is_a_process_that_starts_and_reads_its_settings,
            a_foreign_directory_is_refused_and_left_alone,
            a_half_written_directory_is_refused,
            a_directory_that_cannot_be_made_is_named,
            a_report_that_cannot_be_written_is_refused_before_the_work,
            too_little_text_is_refused_with_how_much_is_needed,
            a_missing_text_is_named_before_anything_is_made,
            a_taken_port_is_named,
            real_nodes_without_their_program_are_refused_with_how_to_build_it,
        ]
    )
}

fn up(arguments: &[&dyn AsRef<OsStr>]) -> Output {
    let mut command = Command::new(PROGRAM);
    command.args(["up", "--plain", "--windows", "1"]);
    command.args(arguments.iter().map(|argument| argument.as_ref()));
    command.stdin(Stdio::null()).output().expect("the program is built and starts")
}

/// Asserts that the program fails, and that its error has all of `words`.
#[track_caller]
fn refused(arguments: &[&dyn AsRef<OsStr>], words: &[&str]) {
    let output = up(arguments);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success(), "it should have refused: {said}");
    for word in words {
        assert!(said.contains(word), "{word:?} is not in: {said}");
    }
    assert!(!said.contains("panicked"), "{said}");
}

fn names(directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(directory).expect("it is there").flatten();
    entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
}

fn a_flag_that_does_not_exist_is_named() {
    refused(&[&"--minners", &"3"], &["--minners", "--miners"]);
}

fn numbers_out_of_range_are_refused_with_their_range() {
    for (flag, value) in
        [("--miners", "0"), ("--validators", "99"), ("--block-millis", "1"), ("--chain-port", "70000")]
    {
        refused(&[&flag, &value], &[flag, value]);
    }
    let output = Command::new(PROGRAM).args(["up", "--windows", "0"]).output();
    let output = output.expect("the program is built and starts");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && said.contains("--windows"), "{said}");
}

fn an_unknown_strategy_is_named_with_all_that_exist() {
    refused(&[&"--seats", &"honest:2,copykat:1"], &["copykat", "copycat-mixture", "sybil", "lazy-voter"]);
    refused(&[&"--seats", &"honest:100"], &["--seats", "from 1 to 64 miners"]);
    refused(&[&"--seats", &"honest:1,sybil:1"], &["pairs"]);
    refused(&[&"--seats", &"honest:2", &"--miners", &"3"], &["--seats", "--miners", "cannot be used with"]);
    refused(&[&"--validators", &"2", &"--seats", &"honest:2"], &["--seats", "--validators"]);
}

fn every_adversary_is_a_process_that_starts_and_reads_its_settings() {
    let start = |name: &str| {
        let mut command = Command::new(PROGRAM);
        command.args([
            "role",
            "adversary",
            name,
            "--mailbox",
            "/no/such/mailbox",
            "--config",
            "/no/such/settings.toml",
        ]);
        let output = command.stdin(Stdio::null()).output().expect("the program is built and starts");
        assert!(!output.status.success());
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    for kind in adversaries::KINDS {
        let said = start(kind.name);
        assert!(
            said.contains("/no/such/settings.toml") && !said.contains("panicked"),
            "{}: {said}",
            kind.name
        );
    }
    let said = start("copykat");
    assert!(said.contains("there is no strategy copykat"), "{said}");
}

fn a_foreign_directory_is_refused_and_left_alone() {
    let home = tempfile::tempdir().unwrap();
    fs::write(home.path().join("thesis.txt"), "precious").unwrap();
    refused(&[&"--dir", &home.path()], &["no network of this program", "thesis.txt"]);
    assert_eq!(names(home.path()), ["thesis.txt"]);
}

fn a_half_written_directory_is_refused() {
    let home = tempfile::tempdir().unwrap();
    fs::write(home.path().join("lock"), "").unwrap();
    fs::create_dir(home.path().join("chain")).unwrap();
    refused(&[&"--dir", &home.path()], &["half set up", "another --dir"]);
}

fn a_directory_that_cannot_be_made_is_named() {
    let home = tempfile::tempdir().unwrap();
    let file = home.path().join("file");
    fs::write(&file, "").unwrap();
    refused(&[&"--dir", &file.join("net")], &["could not use", "file/net"]);
}

fn a_report_that_cannot_be_written_is_refused_before_the_work() {
    let home = tempfile::tempdir().unwrap();
    refused(
        &[&"--report", &home.path().join("none").join("report.json")],
        &["report cannot be written", "none"],
    );
    refused(&[&"--report", &home.path()], &["report cannot be written", "is a directory"]);
}

fn too_little_text_is_refused_with_how_much_is_needed() {
    let home = tempfile::tempdir().unwrap();
    fs::write(home.path().join("poem.txt"), "Roses are red.\n").unwrap();
    refused(&[&"--text", &home.path()], &["too little text", "at least"]);
}

fn a_missing_text_is_named_before_anything_is_made() {
    refused(&[&"--text", &"/no/such/text"], &["there is no text at /no/such/text"]);
}

fn a_taken_port_is_named() {
    let taken = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    let home = tempfile::tempdir().unwrap();
    let directory = home.path().join("net");
    for flag in ["--chain-port", "--store-port"] {
        refused(&[&flag, &port, &"--dir", &directory], &["is taken", &port]);
    }
    assert!(!directory.exists(), "nothing was made");
}

fn real_nodes_without_their_program_are_refused_with_how_to_build_it() {
    let home = tempfile::tempdir().unwrap();
    let missing = home.path().join("mettle-node");
    let directory = home.path().join("net");
    refused(
        &[&"--chain", &"node", &"--node-binary", &missing, &"--dir", &directory],
        &[
            "there is no node at",
            "mettle-node",
            "cargo build --release --manifest-path chain/node/Cargo.toml",
        ],
    );
    assert!(!directory.exists(), "nothing was made");
    refused(&[&"--chain", &"node", &"--node-binary", &"/bin/true"], &["is no mettle-node"]);
    refused(
        &[&"--chain", &"node", &"--block-millis", &"500"],
        &["--block-millis is for the development chain"],
    );
    refused(&[&"--chain", &"paper"], &["--chain", "paper", "node"]);
}
