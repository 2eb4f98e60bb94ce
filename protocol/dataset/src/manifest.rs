//! The manifest: everything that a run must agree on about its data (PROT-4).
//!
//! Its bytes are canonical JSON (fields in the order below, no spaces, digests in lower-case hex), so equal manifests
//! have equal bytes and a person can read them. The digest of these bytes is on the chain and names the manifest in a
//! store. Bytes may come from strangers: [`Manifest::from_bytes`] checks every bound that later arithmetic relies on.

use protocol::{Digest, ensure};
use serde::{Deserialize, Serialize};

/// Maximum length of a manifest, in bytes, to be checked before one is fetched.
pub const MAX_MANIFEST_BYTES: u64 = 4 << 20;

const VERSION: u16 = 1;
/// Maximum size of a vocabulary, in tokens.
pub const MAX_VOCAB: u32 = 1 << 24;
/// Maximum number of stored tokens per sequence.
pub const MAX_SEQUENCE_TOKENS: u32 = (1 << 20) + 1;
/// Maximum number of shards: a process must be able to keep all of them mapped.
const MAX_SHARDS: usize = 1 << 14;
/// Maximum size of a shard, in bytes.
pub const MAX_SHARD_BYTES: u64 = 1 << 30;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    /// The version of this format.
    pub version: u16,
    /// Digest of the bytes of `tokenizer.json`.
    pub tokenizer: Digest,
    /// Size of the vocabulary: every token is below it.
    pub vocab: u32,
    /// Number of stored tokens per sequence: the sequence length that the model sees plus one, because targets are
    /// the inputs shifted by one.
    pub sequence_tokens: u32,
    /// Bytes of a stored token, little-endian: 2 if the vocabulary allows it, else 4.
    pub token_bytes: u8,
    /// Training sequences are numbered through these shards in order.
    pub training: Vec<ShardInfo>,
    /// For reporting only: never used for training or scores.
    pub held_out: Vec<ShardInfo>,
}

/// One file of tokens.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ShardInfo {
    /// Blake3 hash of the whole file.
    pub digest: Digest,
    /// Number of sequences. The file consists of exactly these, each of `sequence_tokens` tokens.
    pub sequences: u64,
}

#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum ManifestError {
    #[error("the manifest has more than {MAX_MANIFEST_BYTES} bytes")]
    TooLong,
    #[error("the manifest cannot be decoded: {reason}")]
    Undecodable { reason: String },
    #[error("the manifest is not written in the one canonical way")]
    NotCanonical,
    #[error("the manifest has version {found}, this program reads version {VERSION}")]
    UnknownVersion { found: u16 },
    #[error("a vocabulary of {vocab} tokens is not between 2 and {MAX_VOCAB}")]
    Vocabulary { vocab: u32 },
    #[error("{sequence_tokens} tokens per sequence are not between 2 and {MAX_SEQUENCE_TOKENS}")]
    SequenceTokens { sequence_tokens: u32 },
    #[error("a vocabulary of {vocab} tokens takes {} bytes per token, not {token_bytes}", token_bytes_for(*vocab))]
    TokenBytes { vocab: u32, token_bytes: u8 },
    #[error("{shards} shards are more than {MAX_SHARDS}")]
    TooManyShards { shards: usize },
    #[error("shard {digest} has {sequences} sequences, which is none or more than {MAX_SHARD_BYTES} bytes")]
    ShardSize { digest: Digest, sequences: u64 },
    #[error("the {split} split has no sequence")]
    EmptySplit { split: &'static str },
    #[error("shard {digest} is in the training and in the held-out split")]
    HeldOutInTraining { digest: Digest },
}

impl Manifest {
    /// Decodes and checks untrusted bytes.
    ///
    /// # Errors
    /// If they are not canonical or exceed a bound.
    pub fn from_bytes(bytes: &[u8]) -> Result<Manifest, ManifestError> {
        ensure!(bytes.len() as u64 <= MAX_MANIFEST_BYTES, ManifestError::TooLong);
        let manifest: Manifest = serde_json::from_slice(bytes)
            .map_err(|error| ManifestError::Undecodable { reason: error.to_string() })?;
        manifest.check()?;
        ensure!(manifest.to_bytes() == bytes, ManifestError::NotCanonical);
        Ok(manifest)
    }

    /// Returns the canonical bytes.
    pub fn to_bytes(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("numbers, strings and lists of them are always JSON")
    }

    /// Returns the digest of the dataset, as on the chain.
    pub fn digest(&self) -> Digest {
        Digest::of(&self.to_bytes())
    }

    /// Returns the number of tokens that the model sees of one sequence: [`Manifest::sequence_tokens`] − 1.
    pub fn seq_len(&self) -> usize {
        self.sequence_tokens as usize - 1
    }

    /// Returns the number of training sequences.
    pub fn training_sequences(&self) -> u64 {
        total(&self.training)
    }

    pub fn held_out_sequences(&self) -> u64 {
        total(&self.held_out)
    }

    /// Returns the size of one stored sequence, in bytes.
    pub fn sequence_bytes(&self) -> u64 {
        u64::from(self.sequence_tokens) * u64::from(self.token_bytes)
    }

    /// Returns the size of a shard's file, in bytes.
    pub fn shard_bytes(&self, shard: &ShardInfo) -> u64 {
        shard.sequences * self.sequence_bytes()
    }

    /// Checks every bound. After this, no sum or product of the manifest's numbers overflows.
    ///
    /// # Errors
    /// If a bound is exceeded.
    pub fn check(&self) -> Result<(), ManifestError> {
        let Manifest { version, vocab, sequence_tokens, token_bytes, .. } = *self;
        ensure!(version == VERSION, ManifestError::UnknownVersion { found: version });
        ensure!((2..=MAX_VOCAB).contains(&vocab), ManifestError::Vocabulary { vocab });
        ensure!(
            (2..=MAX_SEQUENCE_TOKENS).contains(&sequence_tokens),
            ManifestError::SequenceTokens { sequence_tokens }
        );
        ensure!(token_bytes == token_bytes_for(vocab), ManifestError::TokenBytes { vocab, token_bytes });
        let shards = self.training.len() + self.held_out.len();
        ensure!(shards <= MAX_SHARDS, ManifestError::TooManyShards { shards });
        for (split, shards) in [("training", &self.training), ("held-out", &self.held_out)] {
            ensure!(!shards.is_empty(), ManifestError::EmptySplit { split });
            for &ShardInfo { digest, sequences } in shards {
                ensure!(
                    (1..=MAX_SHARD_BYTES / self.sequence_bytes()).contains(&sequences),
                    ManifestError::ShardSize { digest, sequences }
                );
            }
        }
        let training: std::collections::BTreeSet<&Digest> =
            self.training.iter().map(|shard| &shard.digest).collect();
        match self.held_out.iter().find(|shard| training.contains(&shard.digest)) {
            Some(shard) => Err(ManifestError::HeldOutInTraining { digest: shard.digest }),
            None => Ok(()),
        }
    }

    /// Creates a manifest of this version; `check` determines whether it is valid.
    pub fn new(
        tokenizer: Digest,
        vocab: u32,
        sequence_tokens: u32,
        training: Vec<ShardInfo>,
        held_out: Vec<ShardInfo>,
    ) -> Manifest {
        let token_bytes = token_bytes_for(vocab);
        Manifest { version: VERSION, tokenizer, vocab, sequence_tokens, token_bytes, training, held_out }
    }
}

/// Returns the size of a stored token of a vocabulary, in bytes.
pub fn token_bytes_for(vocab: u32) -> u8 {
    if vocab <= 1 << 16 { 2 } else { 4 }
}

fn total(shards: &[ShardInfo]) -> u64 {
    shards.iter().map(|shard| shard.sequences).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn manifest() -> Manifest {
        let shard = |name: &[u8], sequences| ShardInfo { digest: Digest::of(name), sequences };
        Manifest::new(
            Digest::of(b"tokenizer"),
            2048,
            129,
            vec![shard(b"a", 1000), shard(b"b", 7)],
            vec![shard(b"c", 300)],
        )
    }

    fn refused(change: impl FnOnce(&mut Manifest)) -> ManifestError {
        let mut manifest = manifest();
        change(&mut manifest);
        Manifest::from_bytes(&manifest.to_bytes()).expect_err("the change breaks a bound")
    }

    #[test]
    fn a_manifest_reads_back_and_its_bytes_never_change() {
        let manifest = manifest();
        let bytes = manifest.to_bytes();
        assert_eq!(Manifest::from_bytes(&bytes), Ok(manifest.clone()));
        assert_eq!(manifest.digest(), Digest::of(&bytes));
        assert!(bytes.starts_with(br#"{"version":1,"tokenizer":""#));
        assert_eq!(
            manifest.digest().to_string(),
            "dc291eb7018b011ea574f73bc67651aabe57a4ed63be872c076755a2c40a511e",
            "these bytes are on chains already"
        );
        assert_eq!((manifest.training_sequences(), manifest.held_out_sequences()), (1007, 300));
        assert_eq!((manifest.seq_len(), manifest.sequence_bytes()), (128, 258));
        assert_eq!(manifest.shard_bytes(&manifest.training[1]), 7 * 258);
    }

    #[test]
    fn every_broken_bound_has_its_name() {
        use ManifestError::*;
        assert_eq!(refused(|m| m.version = 2), UnknownVersion { found: 2 });
        assert_eq!(refused(|m| m.vocab = 1), Vocabulary { vocab: 1 });
        assert_eq!(refused(|m| m.vocab = u32::MAX), Vocabulary { vocab: u32::MAX });
        assert_eq!(refused(|m| m.sequence_tokens = 1), SequenceTokens { sequence_tokens: 1 });
        assert_eq!(refused(|m| m.sequence_tokens = u32::MAX), SequenceTokens { sequence_tokens: u32::MAX });
        assert_eq!(refused(|m| m.token_bytes = 4), TokenBytes { vocab: 2048, token_bytes: 4 });
        assert_eq!(refused(|m| m.vocab = 65_537), TokenBytes { vocab: 65_537, token_bytes: 2 });
        assert_eq!(refused(|m| m.training.clear()), EmptySplit { split: "training" });
        assert_eq!(refused(|m| m.held_out.clear()), EmptySplit { split: "held-out" });
        for sequences in [0, u64::MAX, MAX_SHARD_BYTES / 258 + 1] {
            let digest = Digest::of(b"a");
            assert_eq!(refused(|m| m.training[0].sequences = sequences), ShardSize { digest, sequences });
        }
        let digest = Digest::of(b"a");
        assert_eq!(refused(|m| m.held_out[0].digest = digest), HeldOutInTraining { digest });
        assert_eq!(
            refused(|m| m.training = vec![m.training[0].clone(); MAX_SHARDS]),
            TooManyShards { shards: MAX_SHARDS + 1 }
        );
    }

    #[test]
    fn only_the_canonical_spelling_counts() {
        let text = String::from_utf8(manifest().to_bytes()).expect("JSON is UTF-8");
        let digest = Digest::of(b"tokenizer").to_string();
        for spelling in
            [text.replace(',', ", "), text.replace(&digest, &digest.to_uppercase()), text.clone() + "\n"]
        {
            assert_eq!(Manifest::from_bytes(spelling.as_bytes()), Err(ManifestError::NotCanonical));
        }
        for spelling in [text.replacen('{', "{\"extra\":1,", 1), text.clone() + "{}", String::new()] {
            assert!(matches!(
                Manifest::from_bytes(spelling.as_bytes()),
                Err(ManifestError::Undecodable { .. })
            ));
        }
        let long = vec![b' '; MAX_MANIFEST_BYTES as usize + 1];
        assert_eq!(Manifest::from_bytes(&long), Err(ManifestError::TooLong));
    }

    proptest! {
        #[test]
        fn hostile_bytes_never_panic_and_what_is_accepted_is_canonical(
            at in 0usize..600, with in proptest::collection::vec(any::<u8>(), 0..6), drop in 0usize..6,
        ) {
            let mut bytes = manifest().to_bytes();
            let at = at.min(bytes.len());
            let end = (at + drop).min(bytes.len());
            bytes.splice(at..end, with);
            if let Ok(manifest) = Manifest::from_bytes(&bytes) {
                prop_assert_eq!(manifest.to_bytes(), bytes);
            }
        }
    }
}
