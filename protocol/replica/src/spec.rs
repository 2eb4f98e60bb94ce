//! What a run is about: the model's shape, and how its founders suggest to train it. Its digest is on the chain.
//!
//! The shape binds everybody, since the schema of contributions follows from it. The recipe binds nobody: a miner that
//! trains better is welcome to.

use model::{ConfigError, ModelConfig, Recipe};
use protocol::{Digest, contribution::Schema};
use serde::{Deserialize, Serialize};

/// A larger specification than this is not read.
pub const SPEC_BYTES_MAX: u64 = 64 * 1024;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RunSpec {
    pub version: u16,
    /// For people; at most 64 bytes.
    pub name: String,
    pub model: ModelConfig,
    /// Seed of `θ_0`, so that anyone can make it anew and compare.
    pub seed: u64,
    /// The inner loop that the run's founders suggest.
    pub recipe: Recipe,
}

#[derive(Debug, thiserror::Error)]
pub enum SpecError {
    #[error("the run's specification is not the JSON this version knows; is a newer release needed?")]
    Json(#[from] serde_json::Error),
    #[error("the run's specification has version {found}, this release knows version 1")]
    Version { found: u16 },
    #[error("the run's specification is out of bounds: {reason}")]
    Bounds { reason: String },
}

impl RunSpec {
    /// The exact bytes that are published and whose digest the chain holds.
    pub fn to_bytes(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("numbers and strings always have a JSON form")
    }

    pub fn digest(&self) -> Digest {
        Digest::of(&self.to_bytes())
    }

    /// Reads and checks a published specification.
    pub fn from_bytes(bytes: &[u8]) -> Result<RunSpec, SpecError> {
        let spec: RunSpec = serde_json::from_slice(bytes)?;
        if spec.version != 1 {
            return Err(SpecError::Version { found: spec.version });
        }
        let bounds = |reason: String| SpecError::Bounds { reason };
        if spec.name.len() > 64 {
            return Err(bounds("the name is longer than 64 bytes".into()));
        }
        spec.model.validate().map_err(|error| bounds(error.to_string()))?;
        spec.recipe.validate().map_err(|error| bounds(error.to_string()))?;
        Ok(spec)
    }

    pub fn schema(&self) -> Result<Schema, ConfigError> {
        self.model.schema()
    }
}
