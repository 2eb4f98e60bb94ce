//! Near-duplicates and documents of low quality are omitted, and damaged records are rebuilt.

use mettle_prepare::{
    OutputDirectory, PrepareError, PrepareOptions, Prepared, Progress, QualityRule, Source, SourceError,
    TokenizerChoice, prepare,
};
use std::{fs, path::Path};

/// 90 documents of prose in nine files. In each of the last three files: an exact copy and a near-duplicate of a
/// document of the first three files, one document of too few words, one of repeated lines, and an empty line.
fn write_text(root: &Path) {
    let prose = |document: usize| {
        let word = |at: usize| format!("w{}", (document * 1009 + at) * 7919 % 99_991);
        let line = |line: usize| {
            let [a, b, c, d, e, f] = [0, 1, 2, 3, 4, 5].map(|at| word(line * 6 + at));
            format!("The {a} of {b} and {c} have {d}, that {e} to be {f}.\n")
        };
        format!("Document{document} begins with this line of its own.\n")
            + &(0..20).map(line).collect::<String>()
    };
    fs::create_dir_all(root).expect("writable");
    for file in 0..9 {
        let mut texts: Vec<String> = (0..10).map(|document| prose(file * 10 + document)).collect();
        if file >= 6 {
            texts.insert(2, prose((file - 6) * 10));
            texts.insert(5, prose((file - 6) * 10 + 1).replace("begins ", "starts "));
            texts.push("Read more of that here.".to_owned());
            texts.push("The menu of the page and that is to be read with care.\n".repeat(12));
            texts.push(String::new());
        }
        let lines = texts.iter().map(|text| serde_json::json!({ "text": text }).to_string() + "\n");
        fs::write(root.join(format!("{file}.jsonl")), lines.collect::<String>()).expect("writable");
    }
}

fn options(root: &Path, name: &str) -> PrepareOptions {
    PrepareOptions {
        tokenizer: TokenizerChoice::Train { vocab: 300 },
        seq_len: 16,
        shard_bytes: 3_000,
        held_out_sequences_min: 20,
        note_every_bytes: 10_000,
        ..PrepareOptions::new(
            Source::directory(root.join("text")),
            OutputDirectory::Directory(root.join(name)),
        )
    }
}

fn rules(sets: &[&str]) -> Vec<QualityRule> {
    sets.iter().flat_map(|set| QualityRule::parse(set).expect("known")).collect()
}

fn made(options: PrepareOptions) -> Prepared {
    prepare(options, &mut |_| {}).expect("the text is fine")
}

#[test]
fn planted_documents_are_left_out_and_counted() {
    let root = tempfile::tempdir().expect("a temporary directory");
    let root = root.path();
    write_text(&root.join("text"));
    let plain = made(options(root, "plain")).figures;
    assert_eq!((plain.documents, plain.duplicates, plain.empty), (90 + 3 + 1 + 1, 3 + 2 + 2, 3));
    assert_eq!(plain.near_duplicates, None);
    assert!(plain.refused.is_empty());
    let described = fs::read_to_string(root.join("plain/prepared.json")).expect("it was prepared");
    assert!(
        !described.contains("near_duplicates") && !described.contains("refused"),
        "as before: {described}"
    );

    let near = made(PrepareOptions { near_duplicates: Some(0.8), ..options(root, "near") }).figures;
    assert_eq!((near.documents, near.duplicates, near.near_duplicates), (90 + 1 + 1, 7, Some(3)));

    let quality = PrepareOptions { quality: rules(&["gopher", "fineweb"]), ..options(root, "quality") };
    let quality = made(quality).figures;
    assert_eq!((quality.documents, quality.duplicates, quality.empty), (93, 3, 3));
    let counts: Vec<(&str, u64)> = quality
        .refused
        .iter()
        .map(|(rule, count)| (rule.as_str(), *count))
        .filter(|(_, count)| *count > 0)
        .collect();
    assert_eq!(counts, [("duplicate-lines", 3), ("words", 3)]);
    assert_eq!(quality.refused.len(), 20, "a rule that leaves out nothing says so");

    let both =
        PrepareOptions { near_duplicates: Some(0.8), quality: rules(&["gopher"]), ..options(root, "both") };
    let both = made(both).figures;
    assert_eq!((both.documents, both.duplicates, both.near_duplicates), (90, 3, Some(3)));
}

#[test]
fn records_and_keys_that_a_power_failure_has_cut_are_made_again() {
    let root = tempfile::tempdir().expect("a temporary directory");
    let root = root.path();
    write_text(&root.join("text"));
    let cleaned = |name: &str| PrepareOptions { near_duplicates: Some(0.8), ..options(root, name) };
    let one = made(cleaned("one"));
    // An attempt that fails after its first pass and is kept. Returns its first progress.
    let (last, away) = (root.join("text/8.jsonl"), root.join("away"));
    let attempt = || {
        let mut first = None;
        let failed = prepare(cleaned("two"), &mut |progress| {
            if matches!(progress, Progress::Selecting { .. }) {
                fs::rename(&last, &away).expect("writable");
            }
            first.get_or_insert(progress);
        });
        assert!(
            matches!(&failed, Err(PrepareError::Source(SourceError::Unreadable { path, .. })) if *path == last)
        );
        fs::rename(&away, &last).expect("writable");
        first.expect("it began")
    };
    assert!(matches!(attempt(), Progress::Reading { files: 0, .. }));
    assert!(matches!(attempt(), Progress::Reading { files: 9, .. }));
    for name in ["documents", "keys-3"] {
        // All lengths are right, but not all contents.
        let path = root.join(".two.partial").join(name);
        let mut bytes = fs::read(&path).expect("it was written");
        let end = bytes.len();
        bytes[end - 70..].fill(0);
        fs::write(&path, bytes).expect("writable");
        assert!(matches!(attempt(), Progress::Reading { files: 8, .. }), "{name}");
    }
    assert_eq!(made(cleaned("two")).digest, one.digest);
}

#[test]
fn other_rules_are_other_datasets_and_bad_ones_are_refused() {
    let root = tempfile::tempdir().expect("a temporary directory");
    let root = root.path();
    write_text(&root.join("text"));
    made(options(root, "data"));
    let others = [
        PrepareOptions { near_duplicates: Some(0.9), ..options(root, "data") },
        PrepareOptions { quality: rules(&["words"]), ..options(root, "data") },
    ];
    for other in others {
        assert!(matches!(prepare(other, &mut |_| {}), Err(PrepareError::OtherInputs { .. })));
    }
    for given in [0.0, 0.49, 1.0, f64::NAN] {
        let wrong = PrepareOptions { near_duplicates: Some(given), ..options(root, "wrong") };
        assert!(matches!(prepare(wrong, &mut |_| {}), Err(PrepareError::Similarity { .. })), "{given}");
    }
    // Rules that keep nothing.
    let nothing = PrepareOptions { quality: rules(&["words=1000000.."]), ..options(root, "nothing") };
    assert!(matches!(prepare(nothing, &mut |_| {}), Err(PrepareError::TooLittleText { bytes: 0, .. })));
}
