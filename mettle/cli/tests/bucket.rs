//! `mettle dataset` with the project's S3 server, as processes that are killed, and its parts.

use s3_server::{BucketConfig, Faults, Rate, S3Server, ServerConfig};
use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
    time::{Duration, Instant},
};
use store::{Credentials, S3Settings, S3Store};

const SECRET: &str = "hunter2-is-secret";

/// A server with a text, beside the same text as files.
struct Scene {
    root: tempfile::TempDir,
    server: S3Server,
    store: S3Store,
}

fn files(directory: &Path) -> BTreeMap<String, Vec<u8>> {
    let mut found = BTreeMap::new();
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        if path.is_dir() {
            found.extend(files(&path).into_iter().map(|(below, bytes)| (format!("{name}/{below}"), bytes)));
        } else {
            found.insert(name, fs::read(&path).unwrap());
        }
    }
    found
}

/// Writes a megabyte of documents, some of them compressed.
fn write_text(root: &Path) {
    fs::create_dir_all(root).unwrap();
    let document = |number: usize| {
        let line = |line: usize| format!("{number} times {line} is {}, or so it is said.\n", number * line);
        let text: String = (0..40).map(line).collect();
        serde_json::json!({ "text": text }).to_string() + "\n"
    };
    let lines = |documents: std::ops::Range<usize>| documents.map(document).collect::<String>();
    fs::write(root.join("a.jsonl"), lines(0..500)).unwrap();
    fs::write(root.join("b.jsonl.zst"), zstd::encode_all(lines(500..650).as_bytes(), 1).unwrap()).unwrap();
    fs::write(root.join("c.jsonl"), lines(600..700)).unwrap();
}

impl Scene {
    async fn new() -> Scene {
        let root = tempfile::tempdir().unwrap();
        write_text(&root.path().join("text"));
        let buckets = vec![BucketConfig::new("mine", "key", SECRET)];
        let server = S3Server::start(ServerConfig::temporary(buckets)).await.unwrap();
        let credentials = Credentials { access_key: "key".into(), secret_key: SECRET.into() };
        let store = S3Store::open(&S3Settings::new(server.endpoint(), "mine", credentials)).unwrap();
        for name in files(&root.path().join("text")).keys() {
            store.upload_named(&format!("texts/{name}"), &root.path().join("text").join(name)).await.unwrap();
        }
        // A hidden object, and the empty objects that consoles write for directories.
        store.upload_named("texts/.hidden/a.jsonl", &root.path().join("text/a.jsonl")).await.unwrap();
        fs::write(root.path().join("empty"), "").unwrap();
        store.upload_named("data/whole", &root.path().join("empty")).await.unwrap();
        Scene { root, server, store }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.root.path().join(name)
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_mettle"));
        command
            .current_dir(self.root.path())
            .env("METTLE_STORE_SECRET", SECRET)
            .env("RUST_LOG", "trace,tokenizers=off");
        command.args(["dataset", "prepare", "--sequence", "64", "--vocabulary", "400"]);
        command.args(["--shard-bytes", "30000"]).args(arguments).stdin(Stdio::null());
        command
    }

    fn in_bucket(&self, arguments: &[&str]) -> Command {
        let endpoint = self.server.endpoint();
        let store = ["--store", &endpoint, "--access-key", "key"];
        self.command(&[&store[..], arguments].concat())
    }

    /// Returns all objects below a prefix, by the rest of their names.
    async fn below(&self, prefix: &str) -> BTreeMap<String, Vec<u8>> {
        let mut found = BTreeMap::new();
        for object in self.store.list_named(prefix, 10_000).await.unwrap() {
            let bytes = self.store.read_named(&object, 0..object.bytes).await;
            found.insert(object.name[prefix.len() + 1..].to_owned(), bytes.unwrap().to_vec());
        }
        found
    }
}

fn ran(mut command: Command) -> Output {
    let output = command.output().unwrap();
    let said = said(&output);
    assert!(!said.contains(SECRET) && !said.contains("panicked"), "{said}");
    output
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned() + &String::from_utf8_lossy(&output.stdout)
}

fn succeeds(command: Command) -> String {
    let output = ran(command);
    assert!(output.status.success(), "{}", said(&output));
    said(&output)
}

fn refused(command: Command, words: &[&str]) {
    let output = ran(command);
    let said = said(&output);
    assert!(!output.status.success(), "{said}");
    for word in words {
        assert!(said.contains(word), "no {word:?} in: {said}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dataset_is_made_from_a_bucket_into_a_bucket_by_processes_that_are_killed() {
    let scene = Scene::new().await;
    succeeds(scene.command(&["--text", "text", "--out", "local"]));
    let local = files(&scene.path("local"));

    // One machine: the text in the bucket, the dataset in a directory.
    succeeds(scene.in_bucket(&["--text", "s3://mine/texts", "--out", "from-bucket"]));
    assert_eq!(files(&scene.path("from-bucket")), local);

    // A mixture of an object and a file, and one of files.
    let mixture = |first: &str, out: &str| {
        let source = |path, weight| {
            format!("[[source]]\npath = \"{path}\"\nname = \"{weight}\"\nweight = {weight}.0\n")
        };
        fs::write(scene.path("mix.toml"), source(first, 2) + &source("text/b.jsonl.zst", 1)).unwrap();
        succeeds(scene.in_bucket(&["--mix", "mix.toml", "--out", out]));
        files(&scene.path(out))
    };
    assert_eq!(mixture("s3://mine/texts/a.jsonl", "mixed-bucket"), mixture("text/a.jsonl", "mixed-files"));

    // The dataset goes into the bucket, from a process that is killed repeatedly.
    let whole = ["--text", "s3://mine/texts", "--out", "s3://mine/data/whole"];
    // Most requests are slow, so that processes are killed during them too.
    scene
        .server
        .inject("mine", Faults { delay_max: Duration::from_millis(20), ..Faults::default() })
        .unwrap();
    let (mut kills, mut patience) = (0, Duration::from_millis(150));
    loop {
        let mut child = scene.in_bucket(&whole).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        let began = Instant::now();
        let status = loop {
            if let Some(status) = child.try_wait().unwrap() {
                break Some(status);
            }
            if patience < began.elapsed() {
                child.kill().unwrap();
                child.wait().unwrap();
                break None;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        };
        match status {
            Some(status) => {
                assert!(status.success(), "{status}");
                break;
            }
            None => kills += 1,
        }
        patience = patience * 5 / 4;
    }
    println!("{kills} kills");
    assert!(2 < kills);
    assert_eq!(scene.below("data/whole").await, local);
    let again = succeeds(scene.in_bucket(&whole));
    assert!(again.contains("s3://mine/data/whole: "), "{again}");

    assert!(!again.contains("copying"), "nothing is uploaded twice: {again}");

    // On a machine without a copy, while one request in ten fails, and one read in twenty ends early.
    let faults = Faults { unavailable: Rate::Share(0.1), truncated: Rate::Share(0.05), ..Faults::default() };
    scene.server.inject("mine", faults).unwrap();
    let again = succeeds(scene.in_bucket(&[&whole[..], &["--work", "other machine"]].concat()));
    scene.server.inject("mine", Faults::default()).unwrap();
    assert!(!again.contains("copying"), "{again}");
    assert_eq!(scene.below("data/whole").await, local);

    // An object of another length is uploaded again.
    let shard = local.keys().find(|name| name.starts_with("shards/")).unwrap();
    fs::write(scene.path("short"), "cut").unwrap();
    for cut in [shard, "tokenizer.json"] {
        scene.store.upload_named(&format!("data/whole/{cut}"), &scene.path("short")).await.unwrap();
        assert_ne!(scene.below("data/whole").await, local);
        succeeds(scene.in_bucket(&whole));
        assert_eq!(scene.below("data/whole").await, local, "{cut}");
    }

    // Another dataset, foreign objects, and a dataset in its own text are refused, and leave everything unchanged.
    let other = ["--text", "s3://mine/texts/a.jsonl", "--out", "s3://mine/data/whole", "--work", "third"];
    refused(scene.in_bucket(&other), &["s3://mine/data/whole", "another text"]);
    refused(
        scene.in_bucket(&["--text", "s3://mine/data", "--out", "s3://mine/data/more"]),
        &["part of the text"],
    );
    scene.store.upload_named("data/whole/photo.png", &scene.path("text/a.jsonl")).await.unwrap();
    refused(scene.in_bucket(&whole), &["s3://mine/data/whole", "no dataset of this program"]);

    // No secret is in any file that was made.
    for (name, bytes) in files(scene.root.path()) {
        assert!(!String::from_utf8_lossy(&bytes).contains(SECRET), "{name}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_wrong_with_a_bucket_is_told_before_the_text_is_read() {
    let scene = Scene::new().await;
    let endpoint = scene.server.endpoint();
    refused(scene.command(&["--text", "s3://mine/texts", "--out", "a"]), &["--store URL", "--access-key"]);
    refused(scene.command(&["--text", "text", "--out", "s3://mine/a"]), &["--out", "--store URL"]);
    refused(scene.command(&["--text", "text", "--out", "a", "--work", "b"]), &["--work is for"]);
    refused(
        scene.in_bucket(&["--text", "s3://mine/nothing", "--out", "a"]),
        &["s3://mine/nothing", "check bucket"],
    );
    refused(
        scene.in_bucket(&["--text", "s3://other/texts", "--out", "a"]),
        &["s3://other/texts", "refused to list"],
    );
    refused(scene.in_bucket(&["--text", "s3://mine/a/../b", "--out", "a"]), &["s3://BUCKET/PREFIX"]);
    refused(scene.in_bucket(&["--text", "text", "--out", "s3://mine"]), &["needs a name in the bucket"]);
    let key = ["--store", &endpoint, "--access-key", "other", "--text", "s3://mine/texts", "--out", "a"];
    refused(scene.command(&key), &["check the access key"]);
    let mut command = scene.in_bucket(&["--text", "s3://mine/texts", "--out", "a"]);
    command.env_remove("METTLE_STORE_SECRET");
    refused(command, &["METTLE_STORE_SECRET"]);
    let mut command = scene.in_bucket(&["--text", "s3://mine/texts", "--out", "a"]);
    command.env("METTLE_STORE_SECRET", "wrong");
    refused(command, &["check the access key"]);
    assert!(!scene.path("a").exists());
}

#[test]
fn parts_of_a_text_are_joined() {
    let root = tempfile::tempdir().unwrap();
    write_text(&root.path().join("text"));
    let mettle = |arguments: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_mettle"));
        command.current_dir(root.path()).args(arguments.split(' ')).stdin(Stdio::null());
        command
    };
    let prepare = "dataset prepare --sequence 16 --text text";
    succeeds(mettle(&format!("{prepare}/a.jsonl --out parts/a --vocabulary 400")));
    succeeds(mettle(&format!("{prepare}/c.jsonl --out parts/c --tokenizer parts/a/tokenizer.json")));
    let joined = mettle("dataset join --json --out joined parts/a parts/c").output().unwrap();
    assert!(joined.status.success(), "{}", said(&joined));
    let joined: serde_json::Value = serde_json::from_slice(&joined.stdout).unwrap();
    assert_eq!((&joined["directory"], &joined["documents"]), (&"joined".into(), &600.into()));

    succeeds(mettle(&format!("{prepare}/c.jsonl --out other --vocabulary 380")));
    refused(mettle("dataset join --out more parts/a other"), &["other has the tokenizer", "--tokenizer"]);
    refused(mettle("dataset join --out more parts/a"), &["PART"]);
    assert!(!root.path().join("more").exists());
}
