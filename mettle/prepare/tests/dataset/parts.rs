//! A dataset that several processes make together has the bytes of one that one process makes.

use dataset::tokenizer_path;
use mettle_prepare::{
    OutputDirectory, Part, PrepareError, PrepareOptions, Prepared, Progress, Source, Stage, StageResult,
    TokenizerChoice, prepare, prepare_stage,
};
use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

/// JSON lines and text files of very different length, with equal documents in one file, in two files and in two
/// directories, and with empty lines.
fn write_text(root: &Path) {
    for (directory, files, first) in [("web", 9, 0), ("books", 4, 70)] {
        fs::create_dir_all(root.join(directory)).expect("writable");
        for file in 0..files {
            let mut lines = String::new();
            for document in 0..4 + 7 * (file % 3) {
                let number = first + (file * 11 + document) % 90;
                let mut text = format!("Document {number}\n");
                for line in 0..10 + number % 31 {
                    let product = number * line;
                    text += &format!("{number} times {line} is {product}, said {}.\n", product % 17);
                }
                lines += &(serde_json::json!({ "text": text }).to_string() + "\n");
                if document % 5 == 4 {
                    lines += "\n";
                }
            }
            fs::write(root.join(directory).join(format!("{file}.jsonl")), lines).expect("writable");
        }
    }
    fs::create_dir_all(root.join("code")).expect("writable");
    for file in 0..3 {
        let text: String =
            (0..300 * (file + 1)).map(|line| format!("let x{line} = {};\n", line * file)).collect();
        fs::write(root.join(format!("code/{file}.rs")), text).expect("writable");
    }
    fs::write(root.join("code/3.bin"), [0, 1, 2]).expect("writable");
}

struct Scene {
    root: tempfile::TempDir,
}

impl Scene {
    fn new() -> Scene {
        let root = tempfile::tempdir().expect("a temporary directory");
        write_text(&root.path().join("text"));
        Scene { root }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.root.path().join(name)
    }

    fn options(&self, name: &str) -> PrepareOptions {
        options(self.root.path(), name)
    }

    /// Three weighted sources, one of which is read several times.
    fn mixture(&self, name: &str) -> PrepareOptions {
        let part =
            |part: &str, weight| (part.to_owned(), weight, Source::directory(self.path("text").join(part)));
        let parts = vec![part("web", 5.0), part("code", 1.0), part("books", 3.0)];
        PrepareOptions { source: Source::mixture(parts, 3).expect("weights"), ..self.options(name) }
    }
}

fn options(root: &Path, name: &str) -> PrepareOptions {
    PrepareOptions {
        tokenizer: TokenizerChoice::Train { vocab: 300 },
        seq_len: 16,
        shard_bytes: 1_500,
        held_out_sequences_min: 20,
        note_every_bytes: 3_000,
        threads: Some(2),
        ..PrepareOptions::new(
            Source::directory(root.join("text")),
            OutputDirectory::Directory(root.join(name)),
        )
    }
}

/// With files of keys.
fn near(root: &Path, name: &str) -> PrepareOptions {
    PrepareOptions { near_duplicates: Some(0.9), ..options(root, name) }
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

fn part(index: u32, count: u32) -> Part {
    Part::new(index, count).expect("a part")
}

fn stage(options: &PrepareOptions, stage: Stage) -> Result<StageResult, PrepareError> {
    prepare_stage(options, stage, &mut |_| {})
}

/// All stages; the parts of each go by `order`.
fn in_parts(options: &PrepareOptions, order: &[u32]) -> Prepared {
    let count = order.len() as u32;
    for &index in order {
        stage(options, Stage::Scan(part(index, count))).expect("the text is fine");
    }
    stage(options, Stage::Select).expect("all parts are scanned");
    for &index in order.iter().rev() {
        stage(options, Stage::Encode(part(index, count))).expect("they are selected");
    }
    match stage(options, Stage::Join).expect("all parts are encoded") {
        StageResult::Joined(prepared) => *prepared,
        other => panic!("{other:?}"),
    }
}

#[test]
fn any_number_of_parts_in_any_order_gives_the_bytes_of_one_machine() {
    let scene = Scene::new();
    type Options = fn(&Scene, &str) -> PrepareOptions;
    for (kind, options) in [("plain", Scene::options as Options), ("mixture", Scene::mixture)] {
        let one = prepare(options(&scene, kind), &mut |_| {}).expect("the text is fine");
        assert!(one.figures.duplicates > 5 && one.figures.empty > 5 && one.figures.skipped_files == 1);
        assert!(one.manifest.training.len() > 3 && one.manifest.held_out.len() > 1, "{:?}", one.manifest);
        let expected = files(&scene.path(kind));
        for order in [vec![0], vec![1, 0], vec![3, 0, 4, 2, 1], (0..16).map(|n| (n * 5 + 2) % 16).collect()] {
            let name = format!("{kind}-{}", order.len());
            let joined = in_parts(&options(&scene, &name), &order);
            assert_eq!((joined.digest, &joined.figures), (one.digest, &one.figures), "{name}");
            assert_eq!(files(&scene.path(&name)), expected, "{name}");
            assert!(!scene.path(&format!(".{name}.parts")).exists(), "nothing is left of the parts");
        }
    }
}

#[test]
fn more_parts_than_files_are_empty_parts() {
    let scene = Scene::new();
    let one = prepare(scene.options("one"), &mut |_| {}).expect("the text is fine");
    let options = scene.options("many");
    let empty = (0..40).filter(|&index| {
        let scanned = stage(&options, Stage::Scan(part(index, 40))).expect("the text is fine");
        matches!(scanned, StageResult::Scanned { files: 0, documents: 0, .. })
    });
    assert!(empty.count() >= 40 - 17);
    assert_eq!(in_parts(&options, &(0..40).collect::<Vec<_>>()).digest, one.digest);
}

#[test]
fn the_smallest_vocabulary_of_four_bytes_goes_through_parts() {
    let scene = Scene::new();
    let ours = prepare(scene.options("ours"), &mut |_| {}).expect("the text is fine");
    let json = fs::read_to_string(tokenizer_path(&ours.directory)).expect("it was prepared");
    let wide = scene.path("wide.json");
    let json = json.replacen("\"id\": 0", "\"id\": 70000", 1).replacen("\"<eos>\": 0", "\"<eos>\": 70000", 1);
    fs::write(&wide, json).expect("writable");
    let with_file = |name: &str| PrepareOptions {
        tokenizer: TokenizerChoice::File { path: wide.clone(), end_of_document: Some("<eos>".to_owned()) },
        ..scene.options(name)
    };
    let one = prepare(with_file("one"), &mut |_| {}).expect("ids may have gaps");
    assert_eq!(one.manifest.token_bytes, 4);
    assert_eq!(in_parts(&with_file("three"), &[2, 0, 1]).digest, one.digest);
}

#[test]
fn a_stage_that_runs_twice_changes_nothing() {
    let scene = Scene::new();
    let one = prepare(scene.mixture("one"), &mut |_| {}).expect("the text is fine");
    let options = scene.mixture("parts");
    let twice = |one: Stage| {
        let first = stage(&options, one).expect("the text is fine");
        let before = files(&scene.path(".parts.parts"));
        let mut work = Vec::new();
        let second = prepare_stage(&options, one, &mut |progress| work.push(progress)).expect("again");
        assert_eq!(format!("{first:?}"), format!("{second:?}"));
        assert!(work.is_empty(), "{work:?}");
        assert_eq!(files(&scene.path(".parts.parts")), before);
    };
    (0..3).for_each(|index| twice(Stage::Scan(part(index, 3))));
    twice(Stage::Select);
    (0..3).for_each(|index| twice(Stage::Encode(part(index, 3))));
    // An earlier stage does not undo a later one.
    (0..3).for_each(|index| twice(Stage::Scan(part(index, 3))));
    twice(Stage::Select);
    let joined = stage(&options, Stage::Join).expect("all parts are encoded");
    assert!(matches!(joined, StageResult::Joined(joined) if joined.digest == one.digest && !joined.reused));
    // The parts are gone, and every stage finds the dataset.
    let all = [Stage::Scan(part(1, 3)), Stage::Select, Stage::Encode(part(1, 3)), Stage::Join];
    for again in all {
        let again = stage(&options, again).expect("the dataset is complete");
        assert!(matches!(again, StageResult::Joined(again) if again.digest == one.digest && again.reused));
        assert!(!scene.path(".parts.parts").exists());
    }
    // Without the dataset, all begins anew.
    fs::remove_dir_all(scene.path("parts")).expect("it was joined");
    assert!(matches!(stage(&options, Stage::Join), Err(PrepareError::NoParts { .. })));
    assert_eq!(in_parts(&options, &[0, 1]).digest, one.digest);
}

#[test]
fn copies_of_a_part_may_run_at_once() {
    let scene = Scene::new();
    let one = prepare(scene.options("one"), &mut |_| {}).expect("the text is fine");
    let options = scene.options("parts");
    let at_once = |stage_of: fn(Part) -> Stage| {
        std::thread::scope(|scope| {
            for index in (0..4).chain(0..4) {
                let options = &options;
                scope.spawn(move || stage(options, stage_of(part(index, 4))).expect("the text is fine"));
            }
        });
    };
    at_once(Stage::Scan);
    stage(&options, Stage::Select).expect("all parts are scanned");
    at_once(Stage::Encode);
    std::thread::scope(|scope| {
        for _ in 0..3 {
            let join = || stage(&options, Stage::Join).expect("all parts are encoded");
            let is_joined = |result: StageResult| matches!(result, StageResult::Joined(joined) if joined.digest == one.digest);
            scope.spawn(move || assert!(is_joined(join())));
        }
    });
    assert!(!scene.path(".parts.parts").exists());
}

#[test]
fn missing_parts_are_named() {
    let scene = Scene::new();
    let options = scene.options("parts");
    for early in [Stage::Select, Stage::Join, Stage::Encode(part(0, 3))] {
        assert!(matches!(stage(&options, early), Err(PrepareError::NoParts { .. })));
    }
    stage(&options, Stage::Scan(part(1, 3))).expect("the text is fine");
    for early in [Stage::Select, Stage::Join, Stage::Encode(part(1, 3))] {
        let error = stage(&options, early).expect_err("two parts are missing");
        assert!(
            matches!(&error, PrepareError::PartsMissing { stage: "scan", missing, of: 3 } if *missing == [0, 2])
        );
    }
    for index in [0, 2] {
        stage(&options, Stage::Scan(part(index, 3))).expect("the text is fine");
    }
    for early in [Stage::Join, Stage::Encode(part(1, 3))] {
        assert!(matches!(stage(&options, early), Err(PrepareError::NotSelected { .. })));
    }
    stage(&options, Stage::Select).expect("all parts are scanned");
    stage(&options, Stage::Encode(part(0, 3))).expect("they are selected");
    let error = stage(&options, Stage::Join).expect_err("two parts are missing");
    assert!(
        matches!(&error, PrepareError::PartsMissing { stage: "encode", missing, of: 3 } if *missing == [1, 2])
    );
    assert!(!scene.path("parts").exists());
}

#[test]
fn parts_of_other_options_or_of_another_text_are_refused() {
    let scene = Scene::new();
    let options = scene.options("parts");
    stage(&options, Stage::Scan(part(0, 2))).expect("the text is fine");
    let before = files(&scene.path(".parts.parts"));
    let other = PrepareOptions { seq_len: 8, ..scene.options("parts") };
    for refused in [Stage::Scan(part(1, 2)), Stage::Select] {
        assert!(matches!(stage(&other, refused), Err(PrepareError::OtherParts { .. })));
    }
    let count = stage(&options, Stage::Scan(part(1, 3)));
    assert!(matches!(count, Err(PrepareError::PartCount { given: 3, parts: 2, .. })));
    let more = scene.path("text/web/more.jsonl");
    fs::write(&more, "{\"text\": \"more\"}\n").expect("writable");
    assert!(matches!(stage(&options, Stage::Scan(part(1, 2))), Err(PrepareError::OtherParts { .. })));
    fs::remove_file(&more).expect("it was written");
    assert_eq!(files(&scene.path(".parts.parts")), before);

    // A part that was copied from another job.
    stage(&other_place(&other, &scene), Stage::Scan(part(1, 2))).expect("the text is fine");
    let copied = scene.path(".parts.parts/.part-1.partial");
    fs::rename(scene.path(".other.parts/.part-1.partial"), copied).expect("writable");
    let error = stage(&options, Stage::Select).expect_err("part 1 has other options");
    assert!(matches!(error, PrepareError::OtherPart { part: 1, .. }));
}

fn other_place(options: &PrepareOptions, scene: &Scene) -> PrepareOptions {
    PrepareOptions { place: OutputDirectory::Directory(scene.path("other")), ..options.clone() }
}

#[test]
fn a_damaged_part_and_a_changed_text_are_noticed() {
    let scene = Scene::new();
    let options = scene.options("parts");
    let flip = |path: &str| {
        let path = scene.path(".parts.parts").join(path);
        let mut bytes = fs::read(&path).expect("it was written");
        let middle = bytes.len() / 2;
        bytes[middle] ^= 1;
        fs::write(&path, bytes).expect("writable");
    };
    for index in 0..2 {
        stage(&options, Stage::Scan(part(index, 2))).expect("the text is fine");
    }
    flip(".part-1.partial/documents.log");
    assert!(matches!(stage(&options, Stage::Select), Err(PrepareError::PartDamaged { part: 1, .. })));
    flip(".part-1.partial/documents.log");
    stage(&options, Stage::Select).expect("all parts are scanned");
    // Damaged decisions are made again, and are the same.
    flip(".selection.partial/dropped");
    assert!(matches!(stage(&options, Stage::Encode(part(0, 2))), Err(PrepareError::NotSelected { .. })));
    stage(&options, Stage::Select).expect("all parts are scanned");
    for index in 0..2 {
        stage(&options, Stage::Encode(part(index, 2))).expect("they are selected");
    }
    for name in ["training", "held-out"] {
        flip(&format!(".part-1.partial/tokens/{name}"));
        assert!(
            matches!(stage(&options, Stage::Join), Err(PrepareError::PartDamaged { part: 1, .. })),
            "{name}"
        );
        flip(&format!(".part-1.partial/tokens/{name}"));
    }
    assert!(!scene.path("parts").exists());
    let one = prepare(scene.options("one"), &mut |_| {}).expect("the text is fine");
    let joined = stage(&options, Stage::Join).expect("it is whole again");
    assert!(matches!(joined, StageResult::Joined(joined) if joined.digest == one.digest));

    // Another text of the same length.
    let options = scene.options("changed");
    stage(&options, Stage::Scan(part(0, 1))).expect("the text is fine");
    let path = scene.path("text/code/2.rs");
    let text = fs::read_to_string(&path).expect("readable");
    fs::write(&path, text.replace("let", "var")).expect("writable");
    // The tokenizer would learn from it.
    assert!(matches!(stage(&options, Stage::Select), Err(PrepareError::PartChanged { part: 0, .. })));
    fs::write(&path, &text).expect("writable");
    stage(&options, Stage::Select).expect("it is the scanned text again");
    fs::write(&path, text.replace("let", "var")).expect("writable");
    let error = stage(&options, Stage::Encode(part(0, 1)));
    let Err(PrepareError::PartChanged { part: 0, path: changed, directory }) = error else {
        panic!("{error:?}")
    };
    assert_eq!(changed, path);
    // The way out that the error names.
    fs::remove_dir_all(directory).expect("it is the part's");
    let one = prepare(scene.options("changed-one"), &mut |_| {}).expect("the text is fine");
    assert_eq!(in_parts(&options, &[0]).digest, one.digest);
}

#[test]
fn a_killed_part_resumes_and_a_killed_join_begins_anew() {
    let scene = Scene::new();
    let one = prepare(near(scene.root.path(), "one"), &mut |_| {}).expect("the text is fine");
    assert!(one.figures.near_duplicates.is_some());
    let killed = |moment: &str| {
        let child = Command::new(std::env::current_exe().expect("this test"))
            .args(["--exact", "--ignored", "parts::the_part_that_is_killed"])
            .env("DATASET_TEST_ROOT", scene.root.path())
            .env("DATASET_TEST_MOMENT", moment)
            .output()
            .expect("this test starts");
        assert!(!child.status.success());
    };
    let options = near(scene.root.path(), "parts");
    let resumed = |run: Stage| {
        let mut first = None;
        prepare_stage(&options, run, &mut |progress| {
            first.get_or_insert(progress);
        })
        .expect("the text is fine");
        first.expect("there was work left")
    };
    stage(&options, Stage::Scan(part(0, 2))).expect("the text is fine");
    killed("scan");
    let error = stage(&options, Stage::Select);
    assert!(matches!(error, Err(PrepareError::PartsMissing { missing, .. }) if missing == [1]));
    assert!(matches!(resumed(Stage::Scan(part(1, 2))), Progress::Reading { files: 3.., .. }));
    killed("select");
    assert!(matches!(resumed(Stage::Select), Progress::Selecting { .. }));
    stage(&options, Stage::Encode(part(0, 2))).expect("they are selected");
    killed("encode");
    let error = stage(&options, Stage::Join);
    assert!(matches!(error, Err(PrepareError::PartsMissing { missing, .. }) if missing == [1]));
    let encoding = resumed(Stage::Encode(part(1, 2)));
    assert!(matches!(encoding, Progress::Encoding { resumed, of, .. } if of / 4 < resumed && resumed < of));
    killed("join");
    assert!(!scene.path("parts").exists());
    // The dataset has its name, and the parts are not yet removed.
    killed("joined");
    assert!(scene.path("parts").exists() && scene.path(".parts.parts").exists());
    let joined = stage(&options, Stage::Join).expect("the dataset is complete");
    assert!(matches!(joined, StageResult::Joined(joined) if joined.digest == one.digest && joined.reused));
    assert!(!scene.path(".parts.parts").exists());
    assert_eq!(files(&scene.path("parts")), files(&one.directory));
}

#[test]
#[ignore = "is run, and killed, by the test above"]
#[allow(clippy::disallowed_methods, reason = "a test has no main to read the environment in")]
fn the_part_that_is_killed() {
    let variable = |name| std::env::var_os(name).expect("the test above sets it");
    let moment = variable("DATASET_TEST_MOMENT").into_string().expect("UTF-8");
    let run = match moment.as_str() {
        "scan" => Stage::Scan(part(1, 2)),
        "select" => Stage::Select,
        "encode" => Stage::Encode(part(1, 2)),
        _ => Stage::Join,
    };
    let root = PathBuf::from(variable("DATASET_TEST_ROOT"));
    let _ = prepare_stage(&near(&root, "parts"), run, &mut |progress| {
        let now = match progress {
            Progress::Reading { files: 3, .. } => "scan",
            Progress::Tokenizer { .. } => "select",
            Progress::Encoding { bytes, of, .. } if of / 2 < bytes && bytes < of => "encode",
            Progress::Joining { bytes, of } if of / 2 < bytes => "join",
            Progress::Finished { .. } => "joined",
            _ => "",
        };
        if moment == now {
            std::process::abort();
        }
    });
}
