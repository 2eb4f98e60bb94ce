//! A dataset from text to batches, with failures of the text, the disk and the files.

use dataset::{Dataset, shard_path, tokenizer_path};
use mettle_prepare::{
    OutputDirectory, PrepareError, PrepareOptions, Prepared, Progress, Source, SourceError, TokenizerChoice,
    prepare,
};
use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
    process::Command,
};
use tokenizer::{TextTokenizer, TokenizerError};

/// Sixty documents about numbers: enough for the options below.
fn write_text(root: &Path) {
    for document in 0..60 {
        let mut text = format!("Document {document}\n");
        for line in 0..40 {
            let sum = document * line;
            text += &format!(
                "{document} times {line} is {sum}, and {sum} divided by {line} is {document} again.\n"
            );
        }
        let directory = root.join(format!("part-{}", document % 3));
        fs::create_dir_all(&directory).expect("writable");
        fs::write(directory.join(format!("{document}.txt")), text).expect("writable");
    }
}

fn options(text: &Path, directory: &Path) -> PrepareOptions {
    PrepareOptions {
        tokenizer: TokenizerChoice::Train { vocab: 400 },
        seq_len: 16,
        shard_bytes: 20_000,
        held_out_sequences_min: 50,
        note_every_bytes: 10_000,
        ..PrepareOptions::new(Source::directory(text), OutputDirectory::Directory(directory.to_owned()))
    }
}

/// A place with text, and one for the dataset.
struct Scene {
    root: tempfile::TempDir,
}

impl Scene {
    fn new() -> Scene {
        let root = tempfile::tempdir().expect("a temporary directory");
        write_text(&root.path().join("text"));
        Scene { root }
    }

    fn text(&self) -> PathBuf {
        self.root.path().join("text")
    }

    fn data(&self) -> PathBuf {
        self.root.path().join("data")
    }

    fn options(&self) -> PrepareOptions {
        options(&self.text(), &self.data())
    }

    fn prepare(&self) -> Prepared {
        prepare(self.options(), &mut |_| {}).expect("the text is fine")
    }

    fn refused(&self, change: impl FnOnce(&mut PrepareOptions)) -> PrepareError {
        let mut options = self.options();
        change(&mut options);
        prepare(options, &mut |_| {}).expect_err("this cannot be prepared")
    }

    fn open(&self) -> Dataset {
        Dataset::open(self.data(), None).expect("it was prepared")
    }

    /// Lists the entries beside the text.
    fn entries(&self) -> Vec<String> {
        let entries = fs::read_dir(self.root.path()).expect("readable");
        let mut names: Vec<String> = entries
            .map(|entry| entry.expect("readable").file_name().to_string_lossy().into_owned())
            .collect();
        names.sort();
        names
    }
}

fn files(directory: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut files = BTreeMap::new();
    for entry in fs::read_dir(directory).expect("readable") {
        let path = entry.expect("readable").path();
        let name = PathBuf::from(path.file_name().expect("an entry has a name"));
        if path.is_dir() {
            files.extend(self::files(&path).into_iter().map(|(below, bytes)| (name.join(below), bytes)));
        } else {
            files.insert(name, fs::read(&path).expect("readable"));
        }
    }
    files
}

fn all_sequences(dataset: &Dataset) -> (Vec<Vec<u32>>, Vec<Vec<u32>>) {
    let [training, held_out] = [dataset.training_sequences(), dataset.held_out_sequences()]
        .map(|sequences| (0..sequences).collect::<Vec<_>>());
    let held_out = dataset.held_out_sequences_at(&held_out).expect("verified");
    (dataset.sequences(&training).expect("verified"), held_out)
}

/// Returns the stream of tokens from which sequences were cut.
fn joined(sequences: &[Vec<u32>]) -> Vec<u32> {
    let mut tokens = sequences[0][..1].to_vec();
    for sequence in sequences {
        assert_eq!(sequence[0], tokens[tokens.len() - 1], "a sequence starts where the one before ended");
        tokens.extend(&sequence[1..]);
    }
    tokens
}

#[test]
fn text_becomes_sequences_that_decode_to_it() {
    let scene = Scene::new();
    let mut seen = Vec::new();
    let prepared = prepare(scene.options(), &mut |progress| seen.push(progress)).expect("the text is fine");
    let dataset = Dataset::open(scene.data(), Some(prepared.digest)).expect("it was prepared");
    let tokenizer = TextTokenizer::from_json(dataset.tokenizer().to_vec(), None).expect("ours");

    let (training, held_out) = all_sequences(&dataset);
    assert!(training.iter().chain(&held_out).all(|sequence| sequence.len() == 17));
    let [training, held_out] = [training, held_out].map(|sequences| {
        let text = tokenizer.decode(&joined(&sequences)).expect("its own tokens");
        text.split("<eos>").map(String::from).collect::<Vec<_>>()
    });

    // Whole documents, in the order of their paths, each in one split; only the last one of a split is cut.
    let mut originals: Vec<(String, String)> = files(&scene.text())
        .into_iter()
        .map(|(name, bytes)| (name.to_string_lossy().into_owned(), String::from_utf8(bytes).expect("text")))
        .collect();
    originals.sort();
    let originals: Vec<String> = originals.into_iter().map(|(_, text)| text).collect();
    let mut found = BTreeSet::new();
    for split in [&training, &held_out] {
        let positions: Vec<usize> = split
            .iter()
            .filter(|text| !text.is_empty())
            .map(|text| {
                originals.iter().position(|original| original.starts_with(text.as_str())).expect("a document")
            })
            .collect();
        assert!(positions.is_sorted());
        assert!(positions.iter().all(|position| found.insert(*position)), "a document is in one split, once");
    }
    assert!(found.len() >= 58, "at most the last document of a split may be lost whole");

    assert_eq!(prepared.figures.documents, 60);
    assert_eq!(prepared.figures.text_bytes, originals.iter().map(|text| text.len() as u64).sum::<u64>());
    assert!(prepared.manifest.held_out_sequences() >= 50);
    assert!(prepared.manifest.training.len() > 1, "the options ask for small shards");
    assert!(!prepared.reused);
    assert!(matches!(seen.first(), Some(Progress::Reading { files: 0, bytes: 0, .. })));
    assert!(
        seen.iter()
            .any(|progress| matches!(progress, Progress::Reading { files: 60, bytes, of } if bytes == of))
    );
    assert!(matches!(seen.last(), Some(Progress::Finished { .. })));
    assert!(
        seen.iter().any(|progress| matches!(progress, Progress::Encoding { bytes, of, .. } if bytes == of))
    );
    assert_eq!(scene.entries(), ["data", "text"]);
}

#[test]
fn two_runs_make_the_same_files_and_the_second_in_one_place_makes_none() {
    let (first, second) = (Scene::new(), Scene::new());
    let prepared = first.prepare();
    assert_eq!(
        prepared.digest.to_string(),
        "8dca1d773ccc4823e430e24a4c52a9b5f041b3a901890a846526acd252d74637",
        "a release that tokenises otherwise makes other datasets"
    );
    // The number of threads has no effect.
    let pool = rayon::ThreadPoolBuilder::new().num_threads(1).build().expect("one thread");
    pool.install(|| second.prepare());
    assert_eq!(files(&first.data()), files(&second.data()));

    let mut seen = Vec::new();
    let again = prepare(first.options(), &mut |progress| seen.push(progress)).expect("it stands");
    assert!(again.reused);
    assert_eq!((again.digest, again.unigram_loss), (prepared.digest, prepared.unigram_loss));
    assert!(matches!(seen.last(), Some(Progress::Reused { .. })));
}

#[test]
fn a_cache_has_a_directory_for_each_text_and_each_choice() {
    let scene = Scene::new();
    let cache = scene.root.path().join("a/cache");
    let made = |seq_len| {
        let place = OutputDirectory::CacheUnder(cache.clone());
        prepare(PrepareOptions { seq_len, place, ..scene.options() }, &mut |_| {}).expect("the text is fine")
    };
    let (first, second, again) = (made(16), made(8), made(16));
    assert_ne!(first.directory, second.directory);
    assert_eq!(first.directory, again.directory);
    assert!(again.reused && first.directory.starts_with(&cache));
    fs::write(scene.text().join("new.txt"), "one more document").expect("writable");
    assert_ne!(made(16).directory, first.directory);
}

#[test]
fn a_directory_that_is_not_ours_is_left_alone() {
    let scene = Scene::new();
    fs::create_dir(scene.data()).expect("writable");
    scene.prepare();
    let before = files(&scene.data());
    assert!(matches!(scene.refused(|options| options.seq_len = 8), PrepareError::OtherInputs { .. }));
    assert_eq!(files(&scene.data()), before);

    let place = |name: &str| OutputDirectory::Directory(scene.root.path().join(name));
    let foreign = scene.root.path().join("foreign");
    fs::create_dir(&foreign).expect("writable");
    fs::write(foreign.join("letter.txt"), "dear").expect("writable");
    assert!(matches!(
        scene.refused(|options| options.place = place("foreign")),
        PrepareError::Foreign { .. }
    ));
    fs::write(foreign.join("prepared.json"), "{}").expect("writable");
    assert!(matches!(
        scene.refused(|options| options.place = place("foreign")),
        PrepareError::Foreign { .. }
    ));
    assert_eq!(files(&foreign).len(), 2);

    fs::write(scene.root.path().join("file"), "text").expect("writable");
    assert!(matches!(scene.refused(|options| options.place = place("file")), PrepareError::Foreign { .. }));
    assert!(matches!(
        scene.refused(|options| options.place = place("file/below")),
        PrepareError::Foreign { .. } | PrepareError::Unwritable { .. }
    ));
    assert!(matches!(scene.refused(|options| options.place = place("..")), PrepareError::Foreign { .. }));
}

#[test]
fn too_little_text_says_how_much_is_needed() {
    let scene = Scene::new();
    let error = scene.refused(|options| options.held_out_sequences_min = 10_000);
    assert!(matches!(error, PrepareError::TooLittleText { needed, .. } if needed == 10_000 * 16 * 6 * 5));
    assert!(error.to_string().contains("need at least 4800000"));
    let empty = scene.root.path().join("empty");
    fs::create_dir(&empty).expect("writable");
    let error = scene.refused(|options| options.source = Source::directory(&empty));
    assert!(matches!(error, PrepareError::TooLittleText { bytes: 0, .. }));

    // A text in which one token covers so much that no sequence is filled.
    fs::write(empty.join("a.txt"), " ".repeat(8000)).expect("writable");
    fs::write(empty.join("b.txt"), " ".repeat(7999)).expect("writable");
    let error = scene.refused(|options| {
        options.source = Source::directory(&empty);
        options.held_out_sequences_min = 1;
        options.seq_len = 500;
    });
    assert!(matches!(error, PrepareError::TooLittleText { bytes: 15_999, .. }));
    assert_eq!(scene.entries(), [".data.lock", "empty", "text"], "nothing is left but the name of the lock");
}

#[test]
fn options_out_of_bounds_are_named() {
    let scene = Scene::new();
    type Change = fn(&mut PrepareOptions);
    let changes: [(&str, Change); 6] = [
        ("seq_len", |options| options.seq_len = 0),
        ("seq_len", |options| options.seq_len = u32::MAX),
        ("shard_bytes", |options| options.shard_bytes = 0),
        ("shard_bytes", |options| options.shard_bytes = u64::MAX),
        ("held_out_sequences_min", |options| options.held_out_sequences_min = 0),
        ("vocab", |options| options.tokenizer = TokenizerChoice::Train { vocab: 257 }),
    ];
    for (name, change) in changes {
        assert!(matches!(scene.refused(change), PrepareError::BadOption { option, .. } if option == name));
    }
}

#[test]
fn unreadable_text_stops_everything_by_name() {
    let scene = Scene::new();
    fs::write(scene.text().join("latin.md"), b"na\xefve").expect("writable");
    let error = scene.refused(|_| {});
    assert!(matches!(error, PrepareError::Source(SourceError::NotText { .. })));
    let missing = scene.root.path().join("missing");
    assert!(matches!(
        scene.refused(|options| options.source = Source::directory(&missing)),
        PrepareError::Source(SourceError::Unreadable { path, .. }) if path == missing
    ));
    assert_eq!(scene.entries(), [".data.lock", "text"]);
}

#[test]
fn a_text_that_changes_meanwhile_leaves_nothing() {
    let scene = Scene::new();
    let changed = scene.text().join("part-0/0.txt");
    let error = prepare(scene.options(), &mut |progress| {
        if matches!(progress, Progress::Encoding { bytes: 0, .. }) {
            fs::write(&changed, "something else").expect("writable");
        }
    });
    assert!(matches!(error, Err(PrepareError::Source(SourceError::Changed { path })) if path == changed));
    assert_eq!(scene.entries(), [".data.lock", "text"]);
}

#[test]
fn an_attempt_at_something_else_leaves_nothing_of_itself() {
    let (expected, scene) = (Scene::new(), Scene::new());
    expected.prepare();
    let child = Command::new(std::env::current_exe().expect("this test"))
        .args(["--exact", "--ignored", "prepare::the_process_that_is_killed"])
        .env("DATASET_TEST_ROOT", scene.root.path())
        .env("DATASET_TEST_MOMENT", "encoded")
        .output()
        .expect("this test starts");
    assert!(!child.status.success());
    // The text has changed: one document more in the middle.
    fs::write(scene.text().join("part-1/1-more.txt"), "one more document").expect("writable");
    fs::write(expected.text().join("part-1/1-more.txt"), "one more document").expect("writable");
    fs::remove_dir_all(expected.data()).expect("writable");
    expected.prepare();
    let mut resumed_at = None;
    prepare(scene.options(), &mut |progress| {
        if let Progress::Encoding { resumed, .. } = progress {
            resumed_at = Some(resumed);
        }
    })
    .expect("the text is fine");
    assert_eq!(resumed_at, Some(0));
    assert_eq!(files(&scene.data()), files(&expected.data()));
}

#[test]
fn a_process_killed_at_any_moment_leaves_no_dataset_and_the_next_one_makes_it() {
    let expected = Scene::new();
    expected.prepare();
    for moment in ["reading", "tokenizer", "encoding", "encoded", "checking"] {
        let scene = Scene::new();
        let child = Command::new(std::env::current_exe().expect("this test"))
            .args(["--exact", "--ignored", "prepare::the_process_that_is_killed"])
            .env("DATASET_TEST_ROOT", scene.root.path())
            .env("DATASET_TEST_MOMENT", moment)
            .output()
            .expect("this test starts");
        assert!(!child.status.success());
        assert_eq!(scene.entries(), [".data.lock", ".data.partial", "text"], "killed while {moment}");

        // Completed work is not repeated.
        let (mut read, mut trained, mut resumed_at) = (None, false, None);
        let prepared = prepare(scene.options(), &mut |progress| match progress {
            Progress::Reading { files, .. } => {
                read.get_or_insert(files);
            }
            Progress::Tokenizer { .. } => trained = true,
            Progress::Encoding { resumed, .. } => resumed_at = Some(resumed),
            _ => {}
        });
        let prepared = prepared.expect("the text is fine");
        let done =
            |last| ["reading", "tokenizer", "encoding", "encoded", "checking"][last..].contains(&moment);
        assert_eq!(read.expect("it was looked at"), if done(1) { 60 } else { 30 }, "after {moment}");
        assert_eq!(trained, !done(2), "after {moment}");
        let resumed_at = resumed_at.expect("it was encoded");
        assert_eq!(resumed_at > prepared.figures.text_bytes / 3, done(2), "{resumed_at} after {moment}");

        assert_eq!(scene.entries(), ["data", "text"]);
        assert_eq!(files(&scene.data()), files(&expected.data()), "after {moment}");
    }
}

#[test]
#[ignore = "is run, and killed, by the test above"]
#[allow(clippy::disallowed_methods, reason = "a test has no main to read the environment in")]
fn the_process_that_is_killed() {
    let variable = |name| std::env::var_os(name).expect("the test above sets it");
    let root = PathBuf::from(variable("DATASET_TEST_ROOT"));
    let moment = variable("DATASET_TEST_MOMENT");
    let _ = prepare(options(&root.join("text"), &root.join("data")), &mut |progress| {
        let now = match progress {
            Progress::Reading { files: 30, .. } => "reading",
            Progress::Tokenizer { .. } => "tokenizer",
            Progress::Encoding { bytes, of, .. } if of / 2 < bytes && bytes < of => "encoding",
            Progress::Encoding { bytes, of, .. } if bytes == of => "encoded",
            Progress::Checking => "checking",
            _ => "",
        };
        if moment == now {
            std::process::abort();
        }
    });
}

#[test]
fn many_at_once_make_one_dataset() {
    let scene = Scene::new();
    let prepared: Vec<Prepared> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..4).map(|_| scope.spawn(|| scene.prepare())).collect();
        threads.into_iter().map(|thread| thread.join().expect("no panic")).collect()
    });
    assert_eq!(prepared.iter().filter(|prepared| !prepared.reused).count(), 1);
    assert_eq!(scene.entries(), ["data", "text"]);
}

#[test]
fn any_tokenizer_will_do_and_a_wide_vocabulary_takes_four_bytes() {
    let scene = Scene::new();
    let ours = scene.prepare();
    let tokenizer = scene.root.path().join("tokenizer.json");
    let json = fs::read_to_string(tokenizer_path(&scene.data())).expect("it was prepared");
    fs::write(&tokenizer, &json).expect("writable");
    let with_file = |name: &str, path: &Path, end_of_document: Option<&str>| {
        let end_of_document = end_of_document.map(String::from);
        let options = PrepareOptions {
            place: OutputDirectory::Directory(scene.root.path().join(name)),
            tokenizer: TokenizerChoice::File { path: path.to_owned(), end_of_document },
            ..scene.options()
        };
        prepare(options, &mut |_| {})
    };
    let theirs = with_file("theirs", &tokenizer, None).expect("it is ours");
    assert_eq!(theirs.manifest, ours.manifest);

    let wide = scene.root.path().join("wide.json");
    let wide_json =
        json.replacen("\"id\": 0", "\"id\": 70000", 1).replacen("\"<eos>\": 0", "\"<eos>\": 70000", 1);
    fs::write(&wide, wide_json).expect("writable");
    let prepared = with_file("wide", &wide, Some("<eos>")).expect("ids may have gaps");
    assert_eq!((prepared.manifest.vocab, prepared.manifest.token_bytes), (70_001, 4));
    let wide_data = Dataset::open(&prepared.directory, Some(prepared.digest)).expect("it was prepared");
    let renamed = |sequences: Vec<Vec<u32>>| -> Vec<u32> {
        sequences.concat().into_iter().map(|token| if token == 70_000 { 0 } else { token }).collect()
    };
    let ((wide_training, _), (training, _)) = (all_sequences(&wide_data), all_sequences(&scene.open()));
    assert_eq!(renamed(wide_training), training.concat());

    let missing = with_file("none", &scene.root.path().join("no.json"), None);
    assert!(matches!(missing, Err(PrepareError::TokenizerUnreadable { .. })));
    let no_such = with_file("none", &tokenizer, Some("<fin>"));
    assert!(matches!(
        no_such,
        Err(PrepareError::TokenizerFile { source: TokenizerError::NoSuchToken { .. }, .. })
    ));
}

#[test]
fn a_damaged_dataset_is_refused_and_not_made_again() {
    let scene = Scene::new();
    let prepared = scene.prepare();
    let path = shard_path(&scene.data(), &prepared.manifest.training[1].digest);
    let bytes = fs::read(&path).expect("it was prepared");
    fs::write(&path, &bytes[1..]).expect("writable");
    assert!(matches!(prepare(scene.options(), &mut |_| {}), Err(PrepareError::Damaged { .. })));
    assert_eq!(fs::read(&path).expect("it is there"), bytes[1..]);
}
