//! A run's specification: the model's shape, and a recommended recipe. Its digest is on the chain.
//!
//! The shape binds every participant, since the schema of contributions follows from it. The recipe is a
//! recommendation.

use crate::{ConfigError, ModelConfig, Recipe};
use protocol::{Digest, contribution::Schema, ensure};
use serde::{Deserialize, Serialize};

/// Maximum length of a specification, in bytes.
pub const SPEC_BYTES_MAX: u64 = 64 * 1024;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RunSpec {
    pub version: u16,
    /// The run's name; at most 64 bytes.
    pub name: String,
    pub model: ModelConfig,
    /// Seed of `θ_0`.
    pub seed: u64,
    /// A description of `θ_0` if it is a trained model and not the seed's; at most 256 bytes. Nodes then fetch it as
    /// the checkpoint of window 0, which the run's owner publishes, and check it against the root on the chain
    /// (PROT-19).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub weights: Option<String>,
    /// The recommended recipe.
    pub recipe: Recipe,
}

#[derive(Debug, thiserror::Error)]
pub enum SpecError {
    #[error("the run's specification is not valid JSON of this version; a newer release may be needed")]
    Json(#[from] serde_json::Error),
    #[error("the run's specification has version {found}, this release knows version 1")]
    Version { found: u16 },
    #[error("the run's specification is out of bounds: {reason}")]
    Bounds { reason: String },
}

impl RunSpec {
    /// Returns the exact bytes of the published specification, whose digest is on the chain.
    pub fn to_bytes(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("numbers and strings always have a JSON form")
    }

    pub fn digest(&self) -> Digest {
        Digest::of(&self.to_bytes())
    }

    /// Reads and checks a published specification.
    ///
    /// # Errors
    /// [`SpecError`] if the bytes are too long, cannot be read, or are not valid.
    pub fn from_bytes(bytes: &[u8]) -> Result<RunSpec, SpecError> {
        let spec: RunSpec = serde_json::from_slice(bytes)?;
        ensure!(spec.version == 1, SpecError::Version { found: spec.version });
        let bounds = |reason: String| SpecError::Bounds { reason };
        ensure!(spec.name.len() <= 64, bounds("the name is longer than 64 bytes".into()));
        ensure!(
            spec.weights.as_ref().is_none_or(|weights| weights.len() <= 256),
            bounds("the description of the first weights has more than 256 bytes".into())
        );
        spec.model.validate().map_err(|error| bounds(error.to_string()))?;
        spec.recipe.validate().map_err(|error| bounds(error.to_string()))?;
        Ok(spec)
    }

    /// Returns the schema of the model.
    ///
    /// # Errors
    /// [`ConfigError`] if the model's shape is invalid.
    pub fn schema(&self) -> Result<Schema, ConfigError> {
        self.model.schema()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec() -> RunSpec {
        let model = ModelConfig::preset("117k").unwrap();
        RunSpec { version: 1, name: "run".into(), model, seed: 7, weights: None, recipe: Recipe::default() }
    }

    #[test]
    fn a_specification_without_trained_weights_keeps_its_bytes() {
        let bytes = spec().to_bytes();
        assert!(!String::from_utf8(bytes.clone()).unwrap().contains("weights"));
        assert_eq!(RunSpec::from_bytes(&bytes).unwrap(), spec());

        let imported = RunSpec { weights: Some("a model that was there".into()), ..spec() };
        assert_eq!(RunSpec::from_bytes(&imported.to_bytes()).unwrap(), imported);
        assert_ne!(imported.digest(), spec().digest());
    }

    #[test]
    fn a_specification_out_of_bounds_is_refused() {
        let refused = |spec: RunSpec| RunSpec::from_bytes(&spec.to_bytes()).unwrap_err().to_string();
        assert!(refused(RunSpec { name: "x".repeat(65), ..spec() }).contains("the name is longer"));
        assert!(
            refused(RunSpec { weights: Some("x".repeat(257)), ..spec() }).contains("more than 256 bytes")
        );
        assert!(refused(RunSpec { version: 2, ..spec() }).contains("version 2"));
    }
}
