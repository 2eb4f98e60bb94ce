//! What the networks of one experiment share: the data, the model's shape, the rules, the weights that training starts from.

use dataset::{Dataset, OutputDirectory, PrepareError, PrepareOptions, Source, TokenizerChoice};
use model::RunSpec;
use model::{ConfigError, ModelConfig, Recipe};
use protocol::{Block, RunParams, Schedule, Terms};
use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

/// Tokens in the vocabulary that is learned from the text.
const VOCABULARY: u32 = 384;
/// Tokens of a sequence that are predicted.
pub const SEQUENCE: u32 = 32;
/// Held-out sequences that a model is reported on.
pub const HELD_OUT: u64 = 256;
/// Sequences of a training step.
pub const BATCH: usize = 8;
/// One token of the chain, in its smallest unit.
pub const MTL: u128 = 1_000_000_000_000;

/// Data, shape and rules.
#[derive(Clone)]
pub struct World {
    pub dataset: Arc<Dataset>,
    pub spec: RunSpec,
    pub params: RunParams,
    pub terms: Terms,
}

#[derive(Debug, thiserror::Error)]
pub enum WorldError {
    #[error("could not prepare the text")]
    Prepare(#[from] PrepareError),
    #[error("could not open the prepared text")]
    Open(#[from] dataset::OpenError),
    #[error("the model's shape cannot be used")]
    Shape(#[from] ConfigError),
    #[error("there is no place for prepared data: set HOME or XDG_CACHE_HOME, or name it with --cache")]
    NoCache,
}

impl World {
    /// The tiny world: a model of some thirty thousand parameters, and Rust source that every build of the project has at hand. What is
    /// prepared is kept below `cache`.
    ///
    /// # Errors
    /// If the text is not there or cannot be prepared.
    pub fn tiny(cache: &Path) -> Result<World, WorldError> {
        let homes = dataset::cargo_homes(|name| std::env::var_os(name));
        let options = PrepareOptions {
            tokenizer: TokenizerChoice::Train { vocab: VOCABULARY },
            seq_len: SEQUENCE,
            shard_bytes: 16 << 20,
            held_out_sequences_min: HELD_OUT,
            ..PrepareOptions::new(Source::default_text(homes), OutputDirectory::CacheUnder(cache.to_owned()))
        };
        let prepared = dataset::prepare(options, &mut |_| {})?;
        World::on(Dataset::open(&prepared.directory, Some(prepared.digest))?)
    }

    /// The same on a dataset that is prepared already.
    ///
    /// # Errors
    /// If it cannot be opened, or its vocabulary makes no model.
    pub fn of(directory: &Path) -> Result<World, WorldError> {
        World::on(Dataset::open(directory, None)?)
    }

    /// Where prepared text is kept.
    ///
    /// # Errors
    /// If the environment names no place.
    pub fn cache() -> Result<PathBuf, WorldError> {
        let set = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
        let cache = set("XDG_CACHE_HOME").or_else(|| Some(set("HOME")?.join(".cache")));
        Ok(cache.ok_or(WorldError::NoCache)?.join("mettle").join("datasets"))
    }

    /// The same world where attestations and votes are hidden before they are shown (PROT-30): its windows have blocks for that.
    pub fn hiding(&self) -> World {
        let schedule = Schedule { blocks_per_window: 18, vote_by: 13, ..self.params.schedule };
        let params = RunParams { schedule, hidden_blocks: 2, ..self.params };
        World { params, ..self.clone() }
    }

    fn on(dataset: Dataset) -> Result<World, WorldError> {
        let model = ModelConfig {
            vocab: dataset.vocab() as usize,
            d_model: 32,
            layers: 2,
            heads: 2,
            kv_heads: 2,
            d_ff: 64,
            seq_len: dataset.manifest().seq_len(),
            rope_theta: 10_000.0,
            norm_epsilon: 1e-5,
        };
        model.validate()?;
        let recipe = Recipe { batch: BATCH, micro_batch: BATCH, ..Recipe::default() };
        let spec = RunSpec { version: 1, name: "simulation".into(), model, seed: 0, weights: None, recipe };
        Ok(World { dataset: Arc::new(dataset), spec, params: params(), terms: terms() })
    }
}

/// As a localnet's, but for what a window's blocks are for, here one does one thing, for what makes it small and many-seated, and for
/// newcomers, whose places a localnet keeps open.
fn params() -> RunParams {
    RunParams {
        schedule: Schedule {
            start: Block(12),
            blocks_per_window: 12,
            commit_by: 3,
            reveal_by: 4,
            attest_by: 7,
            vote_by: 10,
        },
        sequences_per_seat: 96,
        places: 8,
        // Two epochs: by then whoever works has a weight, and whoever has none is merged no more.
        newcomer_windows: 4,
        checkpoint_windows: 10,
        ..localnet::defaults::params(0)
    }
}

fn terms() -> Terms {
    Terms {
        absence_windows: Terms::default().absence_windows,
        validator_stake_min: MTL,
        ..localnet::defaults::terms()
    }
}
