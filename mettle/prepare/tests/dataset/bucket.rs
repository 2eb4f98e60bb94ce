//! A dataset that is made from a text in a bucket, or into a bucket, has the bytes of one that is made from files.

use dataset::Manifest;
use mettle_prepare::{
    Bucket, BucketError, BucketOutput, BucketUrl, ObjectInfo, OutputDirectory, Part, PrepareError,
    PrepareOptions, Prepared, ReadAt, Source, SourceError, Stage, StageResult, TokenizerChoice, prepare,
    prepare_into_bucket,
};
use protocol::Digest;
use std::{
    collections::BTreeMap,
    fs, io,
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex,
        atomic::{AtomicI64, Ordering},
    },
};

/// A bucket in memory, which fails after some operations.
#[derive(Debug, Default)]
struct MemoryBucket {
    objects: Mutex<BTreeMap<String, Vec<u8>>>,
    /// Operations until one fails; negative: none.
    until_failure: AtomicI64,
    /// Objects that were uploaded, in order.
    uploaded: Mutex<Vec<String>>,
}

impl MemoryBucket {
    fn new() -> Arc<MemoryBucket> {
        Arc::new(MemoryBucket { until_failure: AtomicI64::new(-1), ..MemoryBucket::default() })
    }

    /// The files below a directory as objects below `prefix`.
    fn put_all(&self, directory: &Path, prefix: &str) {
        for (name, bytes) in files(directory) {
            let name = format!("{prefix}/{}", name.to_str().expect("UTF-8"));
            self.objects.lock().expect("alive").insert(name, bytes);
        }
    }

    fn names(&self) -> Vec<String> {
        self.objects.lock().expect("alive").keys().cloned().collect()
    }

    /// Objects below a prefix, by the rest of their names.
    fn below(&self, prefix: &str) -> BTreeMap<PathBuf, Vec<u8>> {
        let objects = self.objects.lock().expect("alive");
        let rest = |(name, bytes): (&String, &Vec<u8>)| {
            Some((name.strip_prefix(prefix)?.strip_prefix('/')?.into(), bytes.clone()))
        };
        objects.iter().filter_map(rest).collect()
    }

    fn operate(&self) -> Result<(), BucketError> {
        match self.until_failure.fetch_sub(1, Ordering::SeqCst) {
            0 => Err("the network is gone".into()),
            left => {
                if left < 0 {
                    self.until_failure.store(-1, Ordering::SeqCst);
                }
                Ok(())
            }
        }
    }

    fn get(&self, name: &str) -> Result<Vec<u8>, BucketError> {
        self.operate()?;
        self.objects.lock().expect("alive").get(name).cloned().ok_or_else(|| format!("no {name}").into())
    }
}

fn version(bytes: &[u8]) -> Option<String> {
    Some(Digest::of(bytes).to_string())
}

/// A client of it.
#[derive(Clone)]
struct Client(Arc<MemoryBucket>);

/// What a bucket prints is among what a run is compared by when it resumes.
impl std::fmt::Debug for Client {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Client")
    }
}

impl Bucket for Client {
    fn list(&self, prefix: &str, most: usize) -> Result<Vec<ObjectInfo>, BucketError> {
        self.0.operate()?;
        let objects = self.0.objects.lock().expect("alive");
        let info = |(name, bytes): (&String, &Vec<u8>)| ObjectInfo {
            name: name.clone(),
            bytes: bytes.len() as u64,
            version: version(bytes),
        };
        let is_below = |name: &str| {
            prefix.is_empty() || name.strip_prefix(prefix).is_some_and(|rest| rest.starts_with('/'))
        };
        let below: Vec<_> = objects.iter().filter(|(name, _)| is_below(name)).map(info).take(most).collect();
        let exact = objects.get_key_value(prefix).map(info);
        Ok(if below.is_empty() { exact.into_iter().collect() } else { below })
    }

    fn open(&self, object: &ObjectInfo) -> Arc<dyn ReadAt> {
        Arc::new(Object { bucket: self.0.clone(), info: object.clone() })
    }

    fn download(&self, files: &[(String, PathBuf)]) -> Result<(), BucketError> {
        files.iter().try_for_each(|(name, path)| Ok(fs::write(path, self.0.get(name)?)?))
    }

    fn upload(&self, files: &[(PathBuf, String)]) -> Result<(), BucketError> {
        for (path, name) in files {
            self.0.operate()?;
            self.0.objects.lock().expect("alive").insert(name.clone(), fs::read(path)?);
            self.0.uploaded.lock().expect("alive").push(name.clone());
        }
        Ok(())
    }

    fn delete(&self, names: &[String]) -> Result<(), BucketError> {
        for name in names {
            self.0.operate()?;
            self.0.objects.lock().expect("alive").remove(name);
        }
        Ok(())
    }
}

struct Object {
    bucket: Arc<MemoryBucket>,
    info: ObjectInfo,
}

impl ReadAt for Object {
    fn length(&self) -> u64 {
        self.info.bytes
    }

    fn read_at(&self, start: u64, into: &mut [u8]) -> io::Result<usize> {
        let bytes = self.bucket.get(&self.info.name).map_err(io::Error::other)?;
        if version(&bytes) != self.info.version {
            return Err(io::Error::other("it has changed"));
        }
        let found = bytes.get(start as usize..).unwrap_or_default();
        let count = found.len().min(into.len()).min(1000);
        into[..count].copy_from_slice(&found[..count]);
        Ok(count)
    }
}

fn files(directory: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut found = BTreeMap::new();
    for entry in fs::read_dir(directory).expect("readable") {
        let path = entry.expect("readable").path();
        let name = PathBuf::from(path.file_name().expect("an entry has a name"));
        if path.is_dir() {
            found.extend(files(&path).into_iter().map(|(below, bytes)| (name.join(below), bytes)));
        } else {
            found.insert(name, fs::read(&path).expect("readable"));
        }
    }
    found
}

/// JSON lines and source, with duplicates and near-duplicates over files, and names that sort differently with and
/// without their directories.
fn write_text(root: &Path) {
    for (directory, files, first) in [("web", 5, 0), ("web.old", 2, 40)] {
        fs::create_dir_all(root.join(directory)).expect("writable");
        for file in 0..files {
            let line = |document: usize| {
                let number = first + (file * 11 + document) % 60;
                let line = |line| format!("{number} times {line} is {}.\n", number * line);
                let text: String = (0..12 + number % 31).map(line).collect();
                serde_json::json!({ "text": text }).to_string() + "\n"
            };
            let lines: String = (0..14).map(line).collect();
            fs::write(root.join(directory).join(format!("{file}.jsonl")), lines).expect("writable");
        }
    }
    fs::create_dir_all(root.join("code/.hidden")).expect("writable");
    fs::write(root.join("code/.hidden/a.rs"), "hidden").expect("writable");
    fs::write(root.join("code/3.bin"), [0, 1, 2]).expect("writable");
    let code: String = (0..900).map(|line| format!("let x{line} = {};\n", line * 7)).collect();
    fs::write(root.join("code/0.rs"), code).expect("writable");
}

struct Scene {
    root: tempfile::TempDir,
    bucket: Arc<MemoryBucket>,
}

impl Scene {
    fn new() -> Scene {
        let root = tempfile::tempdir().expect("a temporary directory");
        write_text(&root.path().join("text"));
        let bucket = MemoryBucket::new();
        bucket.put_all(&root.path().join("text"), "texts/all");
        // What consoles write for directories, as the client names it.
        for directory in ["texts/all", "texts/all/web", "data/made"] {
            bucket.objects.lock().expect("alive").insert(directory.into(), Vec::new());
        }
        Scene { root, bucket }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.root.path().join(name)
    }

    fn bucket(&self) -> Arc<dyn Bucket> {
        Arc::new(Client(self.bucket.clone()))
    }

    fn text(&self) -> Source {
        Source::bucket(self.bucket(), "s3://mine/texts/all".parse().expect("a URL"))
    }

    fn options(&self, source: Source) -> PrepareOptions {
        PrepareOptions {
            tokenizer: TokenizerChoice::Train { vocab: 300 },
            seq_len: 16,
            shard_bytes: 1_500,
            held_out_sequences_min: 20,
            note_every_bytes: 3_000,
            threads: Some(2),
            near_duplicates: Some(0.9),
            ..PrepareOptions::new(source, OutputDirectory::Directory(self.path("local")))
        }
    }

    /// The dataset of the files.
    fn local(&self) -> Prepared {
        let options = self.options(Source::directory(self.path("text")));
        prepare(options, &mut |_| {}).expect("the text is fine")
    }

    /// The place of a dataset, on a machine of this name.
    fn output(&self, machine: &str) -> BucketOutput {
        let url: BucketUrl = "s3://mine/data/made".parse().expect("a URL");
        BucketOutput { bucket: self.bucket(), url, work: self.path(machine) }
    }

    fn run(&self, stage: Option<Stage>, machine: &str) -> Result<StageResult, PrepareError> {
        prepare_into_bucket(self.options(self.text()), stage, &self.output(machine), &mut |_| {})
    }

    /// Runs until it is done; each attempt has more operations than the one before. Returns the attempts.
    fn insist(&self, stage: Option<Stage>, machine: &str) -> (StageResult, u32) {
        for attempt in 1.. {
            self.bucket.until_failure.store(i64::from(attempt * attempt * 3), Ordering::SeqCst);
            let done = self.run(stage, machine);
            self.bucket.until_failure.store(-1, Ordering::SeqCst);
            match done {
                Ok(done) => return (done, attempt),
                Err(error) => assert!(
                    matches!(
                        error,
                        PrepareError::Bucket { .. }
                            | PrepareError::Source(
                                SourceError::Bucket { .. } | SourceError::Unreadable { .. }
                            )
                    ),
                    "{error:?}"
                ),
            }
        }
        unreachable!("a number of attempts")
    }
}

fn part(index: u32, count: u32) -> Part {
    Part::new(index, count).expect("a part")
}

#[test]
fn a_text_in_a_bucket_makes_the_dataset_of_its_files() {
    let scene = Scene::new();
    let local = scene.local();
    let place = OutputDirectory::Directory(scene.path("other"));
    let options = PrepareOptions { place, ..scene.options(scene.text()) };
    let other = prepare(options, &mut |_| {}).expect("the text is fine");
    assert_eq!((other.digest, other.figures), (local.digest, local.figures));
    assert_eq!(files(&scene.path("other")), files(&scene.path("local")));

    // One object, and a mixture of objects and files.
    let mixture = |first: &str| {
        let text = format!(
            "[[source]]\npath = \"{first}\"\nname = \"one\"\nweight = 2.0\n[[source]]\npath = \"text/code\"\nweight = 1.0\n"
        );
        fs::write(scene.path("mix.toml"), text).expect("writable");
        let source =
            Source::mixture_file(&scene.path("mix.toml"), |_| Ok(scene.bucket())).expect("a mixture");
        let place = OutputDirectory::Directory(scene.path("mixture"));
        let made =
            prepare(PrepareOptions { place, ..scene.options(source) }, &mut |_| {}).expect("enough text");
        fs::remove_dir_all(scene.path("mixture")).expect("it is there");
        made.digest
    };
    assert_eq!(mixture("s3://mine/texts/all/web/1.jsonl"), mixture("text/web/1.jsonl"));

    for (url, part) in
        [("s3://mine/texts/al", "no object is below"), ("s3://mine/nothing", "no object is below")]
    {
        let source = Source::bucket(scene.bucket(), url.parse().expect("a URL"));
        let error = prepare(scene.options(source), &mut |_| {}).expect_err("nothing is there");
        let PrepareError::Source(error) = error else { panic!("{error}") };
        assert!(error.to_string().contains(part) && error.to_string().contains(url), "{error}");
    }
}

#[test]
fn one_machine_makes_a_dataset_in_a_bucket_however_often_it_is_interrupted() {
    let scene = Scene::new();
    let local = scene.local();
    let (StageResult::Joined(made), attempts) = scene.insist(None, "machine") else { panic!("it is whole") };
    assert!(5 < attempts, "{attempts}");
    assert_eq!((made.digest, &made.figures), (local.digest, &local.figures));
    assert_eq!(made.directory, Path::new("s3://mine/data/made"));
    assert_eq!(scene.bucket.below("data/made"), files(&scene.path("local")));
    // Readers find it whole or not at all.
    let uploaded = scene.bucket.uploaded.lock().expect("alive").clone();
    assert_eq!(uploaded.last().map(String::as_str), Some("data/made/manifest.json"));

    // Again here, and on a machine that has no copy: nothing is uploaded.
    for machine in ["machine", "other machine"] {
        let StageResult::Joined(again) = scene.run(None, machine).expect("it is there") else { panic!() };
        assert_eq!((again.digest, again.reused), (local.digest, true));
    }
    assert_eq!(scene.bucket.uploaded.lock().expect("alive").len(), uploaded.len());

    // A dataset in its own text.
    let source = Source::bucket(scene.bucket(), "s3://mine/data".parse().expect("a URL"));
    let error = prepare_into_bucket(scene.options(source), None, &scene.output("machine"), &mut |_| {})
        .expect_err("below");
    assert!(matches!(&error, PrepareError::BelowText { text, .. } if text == "s3://mine/data"), "{error:?}");

    // Other options and foreign objects are refused, and leave all as it was.
    let options = PrepareOptions { seq_len: 17, ..scene.options(scene.text()) };
    let error =
        prepare_into_bucket(options, None, &scene.output("third machine"), &mut |_| {}).expect_err("other");
    assert!(
        matches!(&error, PrepareError::OtherInputs { directory } if directory.to_string_lossy().starts_with("s3://mine/data/made ")),
        "{error:?}"
    );
    assert_eq!(scene.bucket.below("data/made"), files(&scene.path("local")));
    scene.bucket.objects.lock().expect("alive").insert("data/made/photo.png".into(), vec![1]);
    assert!(matches!(scene.run(None, "machine"), Err(PrepareError::Foreign { .. })));
    scene.bucket.objects.lock().expect("alive").remove("data/made/photo.png");

    // A shard that somebody has removed: the copy here mends it, and without one it is named.
    let manifest =
        Manifest::from_bytes(&scene.bucket.below("data/made")[Path::new("manifest.json")]).expect("ours");
    let shard = format!("data/made/shards/{}", manifest.training[0].digest);
    scene.bucket.objects.lock().expect("alive").remove(&shard);
    let error = scene.run(None, "fourth machine").expect_err("a shard is missing");
    assert!(matches!(error, PrepareError::ShardMissing { .. }), "{error:?}");
    scene.run(None, "machine").expect("it has a copy");
    assert_eq!(scene.bucket.below("data/made"), files(&scene.path("local")));
}

#[test]
fn machines_that_share_only_the_bucket_make_the_dataset_of_one() {
    let scene = Scene::new();
    let local = scene.local();
    let mut attempts = 0;
    let mut run = |stage: Stage, machine: &str| {
        let (done, more) = scene.insist(Some(stage), machine);
        attempts += more;
        done
    };
    for index in [2, 0, 1] {
        run(Stage::Scan(part(index, 3)), &format!("scan-{index}"));
    }
    // A machine that is lost in the middle of its part leaves nothing that counts.
    let error = scene.run(Some(Stage::Encode(part(0, 3))), "early").expect_err("not selected");
    let PrepareError::NotSelected { directory } = error else { panic!("{error:?}") };
    let shown = directory.display().to_string();
    assert!(shown.contains("s3://mine/data/.made.parts") && shown.contains("early"), "{shown}");
    run(Stage::Select, "select");
    for index in [1, 2, 0] {
        run(Stage::Encode(part(index, 3)), &format!("encode-{index}"));
    }
    let StageResult::Joined(made) = run(Stage::Join, "join") else { panic!("it is whole") };
    assert_eq!((made.digest, &made.figures), (local.digest, &local.figures));
    assert_eq!(scene.bucket.below("data/made"), files(&scene.path("local")));
    assert!(8 < attempts, "{attempts}");
    let left: Vec<String> = scene.bucket.names().into_iter().filter(|name| name.contains(".parts")).collect();
    assert!(left.is_empty(), "{left:?}");

    // Every stage finds the dataset, on a machine of its own too.
    let uploads = scene.bucket.uploaded.lock().expect("alive").len();
    for stage in [Stage::Scan(part(1, 3)), Stage::Select, Stage::Encode(part(0, 3)), Stage::Join] {
        let StageResult::Joined(again) = scene.run(Some(stage), "late").expect("it is there") else {
            panic!()
        };
        assert!(again.reused && again.digest == local.digest);
    }
    let later = scene.bucket.uploaded.lock().expect("alive").split_off(uploads);
    assert!(later.iter().all(|name| name == "data/.made.joined"), "{later:?}");
}

#[test]
fn a_stage_that_is_complete_is_found_by_another_machine_and_missing_parts_are_named() {
    let scene = Scene::new();
    let run = |stage: Stage, machine: &str| scene.run(Some(stage), machine);
    let none = run(Stage::Select, "a").expect_err("no part");
    assert!(matches!(none, PrepareError::NoParts { .. }), "{none:?}");
    run(Stage::Scan(part(0, 2)), "a").expect("the text is fine");
    let missing = run(Stage::Select, "b").expect_err("part 1");
    assert!(matches!(&missing, PrepareError::PartsMissing { missing, .. } if *missing == [1]), "{missing:?}");
    let count = run(Stage::Scan(part(1, 3)), "c").expect_err("two parts");
    assert!(matches!(count, PrepareError::PartCount { given: 3, parts: 2, .. }), "{count:?}");
    run(Stage::Scan(part(1, 2)), "c").expect("the text is fine");

    let uploads = || scene.bucket.uploaded.lock().expect("alive").len();
    let before = uploads();
    for index in 0..2 {
        run(Stage::Scan(part(index, 2)), "d").expect("it is scanned");
    }
    run(Stage::Select, "d").expect("all parts");
    let selected = uploads();
    assert!(before < selected);
    run(Stage::Select, "e").expect("it is selected");
    run(Stage::Encode(part(1, 2)), "e").expect("the text is fine");
    let encoded = uploads();
    run(Stage::Encode(part(1, 2)), "f").expect("it is encoded");
    assert_eq!(uploads(), encoded, "nothing is uploaded twice");
    let missing = run(Stage::Join, "f").expect_err("part 0");
    assert!(
        matches!(&missing, PrepareError::PartsMissing { stage: "encode", missing, .. } if *missing == [0]),
        "{missing:?}"
    );

    // Records that were damaged on their way are noticed, and scanned again where both copies are removed.
    let name = "data/.made.parts/.part-0.partial/documents";
    scene.bucket.objects.lock().expect("alive").get_mut(name).expect("its records")[3] ^= 1;
    let damaged = run(Stage::Encode(part(0, 2)), "g").expect_err("damaged");
    let PrepareError::PartDamaged { part: 0, directory } = damaged else { panic!("{damaged:?}") };
    let (url, copy) = directory.to_str().and_then(|both| both.split_once(" with its copy ")).expect("both");
    let prefix = url.strip_prefix("s3://mine/").expect("a URL");
    scene.bucket.objects.lock().expect("alive").retain(|name, _| !name.starts_with(prefix));
    fs::remove_dir_all(copy).expect("a directory");
    run(Stage::Scan(part(0, 2)), "g").expect("the text is fine");
    run(Stage::Select, "g").expect("all parts");
    for index in 0..2 {
        run(Stage::Encode(part(index, 2)), "g").expect("the text is fine");
    }
    let StageResult::Joined(made) = run(Stage::Join, "h").expect("all parts") else { panic!() };
    assert_eq!(made.digest, scene.local().digest);

    // A text that changes while it is read is noticed.
    let scene = Scene::new();
    scene.run(Some(Stage::Scan(part(0, 1))), "a").expect("the text is fine");
    scene.run(Some(Stage::Select), "a").expect("all parts");
    let name = "texts/all/web/0.jsonl";
    {
        let mut objects = scene.bucket.objects.lock().expect("alive");
        let text = objects.get_mut(name).expect("a text");
        let at = text.iter().position(|byte| *byte == b'7').expect("a number");
        text[at] = b'8';
    }
    let changed = scene.run(Some(Stage::Encode(part(0, 1))), "b").expect_err("changed");
    assert!(matches!(changed, PrepareError::PartChanged { part: 0, .. }), "{changed:?}");
}
