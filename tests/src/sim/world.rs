//! The parts that the networks of one experiment share: dataset, model, run parameters, terms.

use dataset::Dataset;
use model::RunSpec;
use model::{ConfigError, ModelConfig, Recipe};
use prepare::{OutputDirectory, PrepareError, PrepareOptions, Source, TokenizerChoice};
use protocol::{Block, RunParams, Schedule, Terms};
use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

/// Size of the vocabulary, which the tokenizer learns from the text.
const VOCABULARY: u32 = 384;
/// Predicted tokens per sequence.
pub const SEQUENCE: u32 = 32;
/// Held-out sequences on which the observer measures a model.
pub const HELD_OUT: u64 = 256;
/// Sequences per training step.
pub const BATCH: usize = 8;
/// One MTL in the chain's smallest unit.
pub const MTL: u128 = 1_000_000_000_000;

/// Dataset, model and parameters of a run.
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
    #[error("no directory for prepared data: set HOME or XDG_CACHE_HOME, or pass --cache")]
    NoCache,
}

impl World {
    /// Returns a model of about 30,000 parameters on Rust source code, which every build of the project has. The
    /// prepared dataset is kept below `cache`.
    ///
    /// # Errors
    /// If the text is missing or cannot be prepared.
    pub fn tiny(cache: &Path) -> Result<World, WorldError> {
        let homes = prepare::cargo_homes(|name| std::env::var_os(name));
        let options = PrepareOptions {
            tokenizer: TokenizerChoice::Train { vocab: VOCABULARY },
            seq_len: SEQUENCE,
            shard_bytes: 16 << 20,
            held_out_sequences_min: HELD_OUT,
            ..PrepareOptions::new(Source::default_text(homes), OutputDirectory::CacheUnder(cache.to_owned()))
        };
        let prepared = prepare::prepare(options, &mut |_| {})?;
        World::from_dataset(Dataset::open(&prepared.directory, Some(prepared.digest))?)
    }

    /// Returns the same model on a prepared dataset.
    ///
    /// # Errors
    /// If the dataset cannot be opened, or its vocabulary or sequence length is invalid for the model.
    pub fn open(directory: &Path) -> Result<World, WorldError> {
        World::from_dataset(Dataset::open(directory, None)?)
    }

    /// Returns the default directory of prepared datasets.
    ///
    /// # Errors
    /// If neither `XDG_CACHE_HOME` nor `HOME` is set.
    pub fn default_cache() -> Result<PathBuf, WorldError> {
        let set = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
        let cache = set("XDG_CACHE_HOME").or_else(|| Some(set("HOME")?.join(".cache")));
        Ok(cache.ok_or(WorldError::NoCache)?.join("mettle").join("datasets"))
    }

    /// Returns the same world with hidden attestations and votes (PROT-30). Its windows have blocks for the reveals.
    pub fn with_hidden_votes(&self) -> World {
        let schedule = Schedule { blocks_per_window: 18, vote_by: 13, ..self.params.schedule };
        let params = RunParams { schedule, hidden_blocks: 2, ..self.params };
        World { params, ..self.clone() }
    }

    /// Returns the world with 32 steps of a full batch in a window, so that a sixteenth of a seat's sequences is two
    /// steps.
    pub fn with_long_windows(&self) -> World {
        let params = RunParams { sequences_per_seat: 32 * BATCH as u32, ..self.params };
        World { params, ..self.clone() }
    }

    /// Returns the world with a model, data and evaluation of the rules' minimum size, for many seats and windows.
    pub fn with_small_model(&self) -> World {
        let model =
            ModelConfig { d_model: 16, layers: 1, heads: 2, kv_heads: 2, d_ff: 32, ..self.spec.model };
        let spec = RunSpec { model, ..self.spec.clone() };
        let params = RunParams { sequences_per_seat: BATCH as u32, evaluation_sequences: 8, ..self.params };
        World { spec, params, ..self.clone() }
    }

    fn from_dataset(dataset: Dataset) -> Result<World, WorldError> {
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

/// Returns a localnet's parameters, except the schedule, the size, and the places of newcomers, which it keeps open.
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
        // Two epochs: by then a working seat has a weight, and a seat without a weight is no longer merged.
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
