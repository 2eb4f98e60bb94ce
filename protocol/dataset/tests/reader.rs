//! The reader, with all kinds of damaged files.

use mettle_dataset::{
    Dataset, Manifest, OpenError, Prefetch, ReadError, ShardInfo, manifest_path, shard_path, shards_path,
    tokenizer_path, unigram_path,
};
use protocol::Digest;
use std::{fs, path::Path};

const VOCAB: u32 = 400;
const SEQUENCE_TOKENS: usize = 17;

/// A dataset of three training shards and one held-out shard, in a directory of its own.
struct Scene {
    root: tempfile::TempDir,
    manifest: Manifest,
}

/// Sequences whose tokens differ in frequency, so that the unigram loss is not that of equal counts.
fn sequences(first: u32, count: u32) -> Vec<Vec<u32>> {
    let token = |sequence: u32, at: u32| {
        let mixed = (sequence * 31 + at).wrapping_mul(2_654_435_761) >> 12;
        mixed % (1 + mixed % VOCAB)
    };
    (first..first + count)
        .map(|sequence| (0..SEQUENCE_TOKENS as u32).map(|at| token(sequence, at)).collect())
        .collect()
}

fn write_shard(directory: &Path, sequences: &[Vec<u32>]) -> ShardInfo {
    let bytes: Vec<u8> =
        sequences.iter().flatten().flat_map(|token| token.to_le_bytes()[..2].to_vec()).collect();
    let digest = Digest::of(&bytes);
    fs::write(shard_path(directory, &digest), bytes).expect("writable");
    ShardInfo { digest, sequences: sequences.len() as u64 }
}

impl Scene {
    fn new() -> Scene {
        let root = tempfile::tempdir().expect("a temporary directory");
        let directory = root.path();
        fs::create_dir(shards_path(directory)).expect("writable");
        let training = [(0, 20), (20, 30), (50, 7)]
            .map(|(first, count)| write_shard(directory, &sequences(first, count)));
        let held_out = write_shard(directory, &sequences(1000, 12));
        let tokenizer = b"{\"a tokenizer\": true}";
        fs::write(tokenizer_path(directory), tokenizer).expect("writable");
        let manifest = Manifest::new(
            Digest::of(tokenizer),
            VOCAB,
            SEQUENCE_TOKENS as u32,
            training.to_vec(),
            vec![held_out],
        );
        fs::write(manifest_path(directory), manifest.to_bytes()).expect("writable");
        Scene { root, manifest }
    }

    fn directory(&self) -> &Path {
        self.root.path()
    }

    fn open(&self) -> Dataset {
        Dataset::open(self.directory(), Some(self.manifest.digest())).expect("it is whole")
    }

    /// Returns the path of a training shard.
    fn shard(&self, number: usize) -> std::path::PathBuf {
        shard_path(self.directory(), &self.manifest.training[number].digest)
    }
}

#[test]
fn sequences_are_numbered_through_all_shards() {
    let scene = Scene::new();
    let dataset = scene.open();
    assert_eq!((dataset.training_sequences(), dataset.held_out_sequences()), (57, 12));
    assert_eq!((dataset.seq_len(), dataset.vocab()), (16, VOCAB));
    let indices = [56, 0, 19, 20, 49, 50, 20];
    let expected: Vec<_> = indices.iter().flat_map(|index| sequences(*index, 1)).collect();
    let wanted: Vec<u64> = indices.iter().map(|index| u64::from(*index)).collect();
    assert_eq!(dataset.sequences(&wanted).expect("verified"), expected);
    assert_eq!(dataset.held_out_sequences_at(&[11]).expect("verified"), sequences(1011, 1));

    for index in [57, u64::MAX] {
        assert!(matches!(dataset.sequences(&[index]), Err(ReadError::OutOfRange { .. })));
    }
    assert!(matches!(dataset.held_out_sequences_at(&[12]), Err(ReadError::OutOfRange { .. })));
}

#[test]
fn a_flipped_byte_is_refused_before_any_token_is_used() {
    let scene = Scene::new();
    let path = scene.shard(1);
    let mut bytes = fs::read(&path).expect("it was written");
    bytes[100] ^= 1;
    fs::write(&path, &bytes).expect("writable");

    let dataset = scene.open();
    assert!(dataset.sequences(&[19]).is_ok(), "the other shards are as good as before");
    for index in [20, 27] {
        assert!(
            matches!(dataset.sequences(&[index]), Err(ReadError::Damaged { path: damaged }) if damaged == path)
        );
    }
    assert!(matches!(scene.open().unigram_loss(), Err(ReadError::Damaged { .. })));
    assert!(dataset.held_out_sequences_at(&[0]).is_ok());
    // Repaired, as by fetching it again: the same dataset reads it.
    bytes[100] ^= 1;
    fs::write(&path, &bytes).expect("writable");
    assert_eq!(dataset.sequences(&[0, 20]).expect("verified").len(), 2);
}

#[test]
fn a_wrong_missing_or_short_file_is_refused() {
    let scene = Scene::new();
    let directory = scene.directory();
    let open = || Dataset::open(directory, Some(scene.manifest.digest()));
    let other = Some(Digest::of(b"another dataset"));
    assert!(matches!(Dataset::open(directory, other), Err(OpenError::OtherDataset { .. })));

    let second = scene.shard(1);
    let bytes = fs::read(&second).expect("it was written");
    // Right length, wrong contents.
    fs::write(&second, vec![0; bytes.len()]).expect("writable");
    assert!(matches!(open().expect("the length is right").sequences(&[20]), Err(ReadError::Damaged { .. })));
    fs::write(&second, &bytes[1..]).expect("writable");
    assert!(matches!(open(), Err(OpenError::ShardLength { .. })));
    fs::remove_file(&second).expect("writable");
    assert!(matches!(open(), Err(OpenError::Unreadable { path, .. }) if path == second));
    fs::write(&second, &bytes).expect("writable");
    assert!(open().is_ok());

    let tokenizer = fs::read(tokenizer_path(directory)).expect("it was written");
    fs::write(tokenizer_path(directory), b"{}").expect("writable");
    assert!(matches!(open(), Err(OpenError::OtherTokenizer { .. })));
    fs::write(tokenizer_path(directory), tokenizer).expect("writable");

    fs::write(manifest_path(directory), b"{}").expect("writable");
    assert!(matches!(open(), Err(OpenError::Manifest { .. })));
    fs::remove_file(manifest_path(directory)).expect("writable");
    assert!(matches!(Dataset::open(directory, None), Err(OpenError::Unreadable { .. })));
}

#[test]
fn a_token_outside_the_vocabulary_is_refused() {
    let mut scene = Scene::new();
    let mut outside = sequences(0, 20);
    outside[1][3] = VOCAB;
    scene.manifest.training[0] = write_shard(scene.directory(), &outside);
    fs::write(manifest_path(scene.directory()), scene.manifest.to_bytes()).expect("writable");
    assert!(matches!(
        scene.open().sequences(&[0]),
        Err(ReadError::OutsideVocabulary { token: VOCAB, vocab: VOCAB, .. })
    ));
}

#[test]
fn the_unigram_loss_is_that_of_the_targets() {
    let scene = Scene::new();
    let dataset = scene.open();
    let mut counts = vec![1.0f64; VOCAB as usize];
    let training = sequences(0, 57);
    training.iter().flat_map(|sequence| &sequence[1..]).for_each(|&token| counts[token as usize] += 1.0);
    let total: f64 = counts.iter().sum();
    // As a model's loss is averaged: over the targets of each sequence, then over sequences of equal length.
    let of_sequence = |sequence: &Vec<u32>| {
        sequence[1..].iter().map(|&token| -(counts[token as usize] / total).ln()).sum::<f64>() / 16.0
    };
    let held_out = sequences(1000, 12);
    let loss = held_out.iter().map(of_sequence).sum::<f64>() / held_out.len() as f64;
    let found = dataset.unigram_loss().expect("computed");
    assert!((found - loss).abs() < 1e-9, "{found} is not {loss}");
    assert!((1.0..f64::from(VOCAB).ln()).contains(&loss), "{loss}");
    // On a sample of the whole split it is equal.
    let whole = dataset.unigram_estimate(u64::MAX).expect("computed");
    assert_eq!(whole.sequences, held_out.len() as u64);
    assert!((whole.loss - loss).abs() < 1e-9 && 0.0 < whole.standard_error, "{whole:?}");

    // The result is stored; a stored number of another dataset, or garbage, is ignored.
    let kept = unigram_path(scene.directory());
    let text = fs::read_to_string(&kept).expect("it was kept");
    fs::write(&kept, format!("{} 1.5\n", scene.manifest.digest())).expect("writable");
    assert_eq!(scene.open().unigram_loss().expect("kept"), 1.5);
    for nonsense in [format!("{} 1.5\n", Digest::default()), format!("{} NaN", scene.manifest.digest())] {
        fs::write(&kept, nonsense).expect("writable");
        assert_eq!(scene.open().unigram_loss().expect("computed"), found);
        assert_eq!(fs::read_to_string(&kept).expect("kept anew"), text);
    }
}

#[test]
fn batches_are_read_ahead_in_the_order_of_their_sequences() {
    let scene = Scene::new();
    let dataset = scene.open();
    let indices: Vec<u64> = (0..10).map(|position| (position * 37) % 57).collect();
    let mut ahead = Prefetch::new(&dataset, &indices, 4, 2).expect("a thread");
    let mut batches = Vec::new();
    while let Some(batch) = ahead.next_unless(|| false) {
        batches.push(batch.expect("verified"));
    }
    assert_eq!(batches.iter().map(Vec::len).collect::<Vec<_>>(), [4, 4, 2]);
    assert_eq!(batches.concat(), dataset.sequences(&indices).expect("verified"));

    let mut ahead = Prefetch::new(&dataset, &[0, 57], 4, 2).expect("a thread");
    assert!(matches!(ahead.next_unless(|| false), Some(Err(ReadError::OutOfRange { .. }))));
    assert!(ahead.next_unless(|| false).is_none(), "an error ends the batches");
}
