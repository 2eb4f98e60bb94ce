//! The program as a process, without a chain.

use model::ModelConfig;
use nn::{
    Precision,
    hugging_face::{self, Export},
};
use std::{
    collections::BTreeMap,
    ffi::OsStr,
    fs,
    process::{Command, Output, Stdio},
};

fn mettle(arguments: &[&dyn AsRef<OsStr>]) -> Output {
    command(arguments).output().expect("the program is built and starts")
}

fn command(arguments: &[&dyn AsRef<OsStr>]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_mettle"));
    for variable in ["METTLE_CONFIG", "METTLE_CHAIN", "METTLE_RUN", "METTLE_KEY", "METTLE_DIRECTORY"] {
        command.env_remove(variable);
    }
    command.env("METTLE_KEY_PASSWORD", "correct horse battery staple");
    command.args(arguments.iter().map(|argument| argument.as_ref()));
    command.stdin(Stdio::null());
    command
}

/// Asserts that the program fails, and that its error contains all of `words`.
#[track_caller]
fn refused(arguments: &[&dyn AsRef<OsStr>], words: &[&str]) {
    let output = mettle(arguments);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success(), "it should have refused: {said}");
    for word in words {
        assert!(said.contains(word), "{word:?} is not in: {said}");
    }
    assert!(!said.contains("panicked"), "{said}");
}

#[test]
fn a_key_is_created_once_and_shown_without_its_password() {
    let home = tempfile::tempdir().unwrap();
    let key = home.path().join("hotkey.json");
    let made = mettle(&[&"keys", &"new", &"--key", &key]);
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    let written = fs::read(&key).unwrap();
    let shown = mettle(&[&"keys", &"show", &"--key", &key]);
    assert!(shown.status.success());
    assert_eq!(shown.stdout, made.stdout, "both print the address");
    refused(&[&"keys", &"new", &"--key", &key], &["exists already", "hotkey.json"]);
    assert_eq!(fs::read(&key).unwrap(), written);
}

#[test]
fn a_key_is_imported_from_words_and_wrong_words_write_nothing() {
    let home = tempfile::tempdir().unwrap();
    let [words, key] = ["words.txt", "key.json"].map(|name| home.path().join(name));
    let phrase = "bottom drive obey lake curtain smoke basket hold race lonely fit walk";
    fs::write(&words, phrase.replace("walk", "obey")).unwrap();
    let import: [&dyn AsRef<OsStr>; 6] = [&"keys", &"new", &"--key", &key, &"--words-file", &words];
    refused(&import, &["BIP-39"]);
    assert!(!key.exists());
    fs::write(&words, format!("{phrase}\n")).unwrap();
    let imported = mettle(&import);
    // The ed25519 account of Substrate's development phrase itself.
    let address = String::from_utf8(imported.stdout).unwrap();
    assert_eq!(address.trim(), "5DFJF7tY4bpbpcKPJcBTQaKuCDEPCpiz8TRjpmLeTtweqmXL");
}

#[test]
fn completions_and_man_pages_know_every_command() {
    let home = tempfile::tempdir().unwrap();
    let script = mettle(&[&"completions", &"bash"]);
    let script = String::from_utf8(script.stdout).unwrap();
    for part in ["mettle", "transfer", "--price-max", "nominations"] {
        assert!(script.contains(part), "{part} is not in the script");
    }
    let written = mettle(&[&"man", &"--out", &home.path()]);
    assert!(written.status.success(), "{}", String::from_utf8_lossy(&written.stderr));
    for (page, part) in
        [("mettle.1", "transfer"), ("mettle-run-show.1", "Show a run"), ("mettle-why.1", "--window")]
    {
        let text = fs::read_to_string(home.path().join(page)).expect(page).replace("\\-", "-");
        assert!(text.contains(part), "{part} is not in {page}");
    }
    refused(&[&"completions", &"tcsh"], &["possible values"]);
}

#[test]
fn too_little_text_is_refused_with_the_amount_needed() {
    let home = tempfile::tempdir().unwrap();
    fs::create_dir(home.path().join("text")).unwrap();
    fs::write(home.path().join("text").join("poem.txt"), "Roses are red.\n").unwrap();
    let (text, out) = (home.path().join("text"), home.path().join("out"));
    refused(&[&"dataset", &"prepare", &"--text", &text, &"--out", &out], &["too little text", "at least"]);
    assert!(!out.join("manifest").exists());
}

#[test]
fn a_closed_standard_output_is_no_error_and_the_work_is_done() {
    let home = tempfile::tempdir().unwrap();
    let (model, out, key) =
        (home.path().join("model"), home.path().join("out"), home.path().join("key.json"));
    let config = ModelConfig::preset("117k").unwrap();
    let wish = Export {
        config: &config,
        metadata: BTreeMap::from([("format".into(), "pt".into())]),
        dtype: Precision::F32,
        shard_bytes_max: u64::MAX,
        tokenizer: None,
        card: None,
    };
    hugging_face::export(&model, &wish, |values| {
        values.fill(0.5);
        Ok(())
    })
    .unwrap();
    let imports: [&dyn AsRef<OsStr>; 5] = [&"model", &"import", &model, &"--out", &out];
    let makes_a_key: [&dyn AsRef<OsStr>; 4] = [&"keys", &"new", &"--key", &key];
    for (arguments, made) in [(&imports[..], &out), (&makes_a_key[..], &key)] {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let output = command(arguments).stdout(writer).stderr(Stdio::piped()).spawn().unwrap();
        let output = output.wait_with_output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        let complains = ["panicked", "Error", "roken pipe"].into_iter().any(|word| said.contains(word));
        assert!(output.status.success() && !complains, "{}: {said}", output.status);
        assert!(made.exists(), "{}", made.display());
    }
}
