//! Joins datasets that were prepared separately.

use dataset::{Dataset, shard_path, shards_path, tokenizer_path};
use mettle_prepare::{
    OutputDirectory, PrepareError, PrepareOptions, Prepared, Progress, Source, TokenizerChoice, join, prepare,
};
use std::{
    fs,
    path::{Path, PathBuf},
};

/// Three parts of a text: numbers, words, and numbers again of which some are those of the first part.
struct Scene {
    root: tempfile::TempDir,
}

impl Scene {
    fn new() -> Scene {
        let root = tempfile::tempdir().expect("a temporary directory");
        for (part, first) in [0, 100, 25].into_iter().enumerate() {
            let directory = root.path().join(format!("text-{part}"));
            fs::create_dir(&directory).expect("writable");
            for document in first..first + 30 {
                let line =
                    |line: usize| format!("{document} times {line} is {}, and no more.\n", document * line);
                let text: String = (0..40).map(line).collect();
                fs::write(directory.join(format!("{document}.txt")), text).expect("writable");
            }
        }
        let scene = Scene { root };
        scene.prepared(0, "trained", TokenizerChoice::Train { vocab: 400 }, 16);
        scene
    }

    fn path(&self, name: &str) -> PathBuf {
        self.root.path().join(name)
    }

    fn prepared(&self, text: usize, name: &str, tokenizer: TokenizerChoice, seq_len: u32) -> Prepared {
        let place = OutputDirectory::Directory(self.path(name));
        let options = PrepareOptions {
            tokenizer,
            seq_len,
            shard_bytes: 20_000,
            held_out_sequences_min: 20,
            ..PrepareOptions::new(Source::directory(self.path(&format!("text-{text}"))), place)
        };
        prepare(options, &mut |_| {}).expect("the text is fine")
    }

    /// Prepares a part with the tokenizer of all parts.
    fn part(&self, text: usize) -> Prepared {
        let path = tokenizer_path(&self.path("trained"));
        self.prepared(
            text,
            &format!("part-{text}"),
            TokenizerChoice::File { path, end_of_document: None },
            16,
        )
    }

    fn join(&self, parts: &[&Path]) -> Result<Prepared, PrepareError> {
        let parts: Vec<PathBuf> = parts.iter().map(|part| part.to_path_buf()).collect();
        join(&self.path("joined"), &parts, &mut |_| {})
    }
}

fn all(directory: &Path) -> [Vec<Vec<u32>>; 2] {
    let data = Dataset::open(directory, None).expect("it is whole");
    let every = |sequences: u64| (0..sequences).collect::<Vec<_>>();
    [
        data.sequences(&every(data.training_sequences())).expect("verified"),
        data.held_out_sequences_at(&every(data.held_out_sequences())).expect("verified"),
    ]
}

#[test]
fn a_joined_dataset_has_the_sequences_of_its_parts_in_their_order() {
    let scene = Scene::new();
    let parts = [1, 0, 2].map(|text| scene.part(text));
    let directories: Vec<&Path> = parts.iter().map(|part| &*part.directory).collect();
    let joined = scene.join(&directories).expect("one tokenizer");
    let expected = parts.iter().map(|part| all(&part.directory)).reduce(|mut all, part| {
        all.iter_mut().zip(part).for_each(|(all, part)| all.extend(part));
        all
    });
    assert_eq!(Some(all(&joined.directory)), expected);
    assert_eq!(joined.digest, joined.manifest.digest());
    let sum = |of: fn(&Prepared) -> u64| parts.iter().map(of).sum::<u64>();
    assert_eq!(joined.figures.documents, sum(|part| part.figures.documents));
    assert_eq!(joined.figures.tokens, sum(|part| part.figures.tokens));
    assert_eq!(joined.figures.sources.len(), 3);
    // No other file is left beside it, and the parts may be removed.
    assert!(!scene.path(".joined.partial").exists() && !scene.path(".joined.lock").exists());
    parts.iter().for_each(|part| fs::remove_dir_all(&part.directory).expect("writable"));
    assert_eq!(Some(all(&joined.directory)), expected);
}

#[test]
fn a_second_join_finds_the_dataset_and_a_killed_one_begins_anew() {
    let scene = Scene::new();
    let (one, two) = (scene.part(0).directory, scene.part(1).directory);
    // The remainder of a killed join: a shard that is cut.
    let left = scene.path(".joined.partial");
    fs::create_dir_all(shards_path(&left)).expect("writable");
    let manifest = Dataset::open(&one, None).expect("it is whole").manifest().clone();
    fs::write(shard_path(&left, &manifest.training[0].digest), "cut").expect("writable");
    let first = scene.join(&[&one, &two]).expect("one tokenizer");
    assert!(!first.reused);

    let mut seen = Vec::new();
    let again = join(&scene.path("joined"), &[one.clone(), two.clone()], &mut |progress| seen.push(progress));
    let again = again.expect("it is there");
    assert!(again.reused && again.digest == first.digest);
    assert!(matches!(seen[..], [Progress::Reused { .. }]), "{seen:?}");
    // Another order gives another dataset, which is not made in that directory.
    assert!(matches!(scene.join(&[&two, &one]), Err(PrepareError::OtherInputs { .. })));
    assert_eq!(scene.join(&[&one, &two]).expect("it is there").digest, first.digest);
}

#[test]
fn parts_that_do_not_fit_are_refused_by_name() {
    let scene = Scene::new();
    let one = scene.part(0).directory;
    let differs = |other: &Path, what: &str| {
        let error = scene.join(&[&one, other]).expect_err(what);
        let told = error.to_string();
        assert!(told.contains(what) && told.contains(other.to_str().expect("UTF-8")), "{told}");
        assert!(matches!(error, PrepareError::PartDiffers { .. }));
    };
    let trained = TokenizerChoice::Train { vocab: 380 };
    differs(&scene.prepared(1, "tokens", trained.clone(), 16).directory, "tokenizer");
    let path = tokenizer_path(&scene.path("trained"));
    let given = TokenizerChoice::File { path, end_of_document: None };
    differs(&scene.prepared(1, "length", given, 8).directory, "sequence length 8");

    assert!(matches!(scene.join(&[&one, &one]), Err(PrepareError::PartTwice { .. })));
    for missing in ["nowhere", "text-0"] {
        let error = scene.join(&[&one, &scene.path(missing)]).expect_err("no dataset");
        assert!(
            matches!(&error, PrepareError::Foreign { directory } if directory.ends_with(missing)),
            "{error}"
        );
    }
    assert!(matches!(scene.join(&[]), Err(PrepareError::Manifest(_))));
    assert!(!scene.path("joined").exists());
}

#[test]
fn a_damaged_part_makes_no_dataset() {
    let scene = Scene::new();
    let (one, two) = (scene.part(0), scene.part(1));
    let path = shard_path(&two.directory, &two.manifest.training[0].digest);
    let whole = fs::read(&path).expect("it was prepared");
    let mut damaged = whole.clone();
    damaged[100] ^= 1;
    fs::write(&path, &damaged).expect("writable");
    let error = scene.join(&[&one.directory, &two.directory]).expect_err("a shard is damaged");
    assert!(matches!(error, PrepareError::NotReadBack { .. }), "{error:?}");
    assert!(!scene.path("joined").exists() && !scene.path(".joined.partial").exists());
    fs::write(&path, &whole).expect("writable");
    scene.join(&[&one.directory, &two.directory]).expect("it is whole again");
}
