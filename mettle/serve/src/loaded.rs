//! A model in memory, and a served model.

use crate::ServeError;
use daemon::Row;
use model::ModelConfig;
use nn::{Evaluator, ModelError, Session};
use protocol::{Digest, RunId, Window};
use serde_json::{Value, json};
use std::{
    sync::Arc,
    time::{SystemTime, UNIX_EPOCH},
};
use tokenizer::TextTokenizer;

/// A model in memory.
pub struct Loaded {
    /// The run's name, or the directory of a model without a run.
    pub name: String,
    pub config: ModelConfig,
    pub theta: Row,
    pub of_run: Option<OfRun>,
}

/// The run and the window of a model.
#[derive(Clone, Debug)]
pub struct OfRun {
    pub run: RunId,
    pub window: Window,
    pub lineage: Digest,
}

impl Loaded {
    /// Creates an evaluator on `device`, such as `cpu` or `cuda:0`.
    ///
    /// # Errors
    /// If the device is unknown, absent or out of memory.
    pub fn evaluator(&self, device: &str) -> Result<Evaluator, ModelError> {
        engines::evaluator(device.parse()?, &self.config, &self.theta)
    }

    /// Describes the model for people.
    pub fn description(&self) -> String {
        match &self.of_run {
            Some(of) => format!("{}, run {}, window {}", self.name, of.run, of.window.0),
            None => self.name.clone(),
        }
    }

    /// Checks that the model has a row for each token of `tokenizer`.
    ///
    /// # Errors
    /// If the tokenizer has more tokens.
    pub fn knows(&self, tokenizer: &TextTokenizer) -> Result<(), ServeError> {
        let (vocab, needed) = (self.config.vocab, tokenizer.vocab());
        if vocab < needed as usize {
            return Err(ServeError::Vocabulary { needed, vocab });
        }
        Ok(())
    }
}

/// Shortens the context to `context` tokens; `None` leaves it unchanged.
///
/// # Errors
/// If the model's own context is shorter.
pub fn limit_context(config: &mut ModelConfig, context: Option<usize>) -> Result<(), ServeError> {
    let Some(context) = context else { return Ok(()) };
    if !(1..=config.seq_len).contains(&context) {
        return Err(ServeError::Context { max: config.seq_len, context });
    }
    config.seq_len = context;
    Ok(())
}

/// A served model.
pub struct Served {
    pub(crate) about: Arc<About>,
    pub(crate) evaluator: Evaluator,
    pub(crate) tokenizer: TextTokenizer,
}

/// The model's description for clients. A slow client may need it after the model has been dropped from memory.
pub(crate) struct About {
    /// The model's name in the API.
    pub name: String,
    pub seq_len: usize,
    /// The run and window of the model, if it records them.
    pub of_run: Option<OfRun>,
    pub weights_root: Digest,
    /// Time of loading, in seconds since 1970.
    pub created: u64,
}

impl Served {
    /// Prepares a model for serving.
    ///
    /// # Errors
    /// If the tokenizer belongs to another model, or as [`Loaded::evaluator`].
    pub fn new(
        loaded: Loaded,
        weights_root: Digest,
        tokenizer: TextTokenizer,
        device: &str,
    ) -> Result<Served, ServeError> {
        loaded.knows(&tokenizer)?;
        let evaluator = loaded.evaluator(device)?;
        let about = About {
            name: short_name(&loaded.name),
            seq_len: evaluator.config().seq_len,
            of_run: loaded.of_run,
            weights_root,
            created: SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs(),
        };
        Ok(Served { about: Arc::new(about), evaluator, tokenizer })
    }

    /// Returns the model's name in the API.
    pub fn name(&self) -> &str {
        &self.about.name
    }

    /// Returns the model as `/v1/models` lists it.
    pub fn json(&self) -> Value {
        self.about.json()
    }

    /// Returns the maximum size of a text's cache, in bytes; `None` for a device without a cache.
    pub fn cache_bytes(&self) -> Option<u64> {
        let is_cached = self.evaluator.session(0).is_cached();
        is_cached.then(|| Session::bytes(self.evaluator.config(), self.seq_len()))
    }

    pub(crate) fn seq_len(&self) -> usize {
        self.about.seq_len
    }

    pub(crate) fn vocab(&self) -> usize {
        self.evaluator.config().vocab
    }
}

impl About {
    /// The model as `/v1/models` lists it.
    pub(crate) fn json(&self) -> Value {
        let mut mettle = json!({ "weights_root": self.weights_root });
        if let Some(of) = &self.of_run {
            (mettle["run"], mettle["window"]) = (json!(of.run), json!(of.window.0));
            mettle["lineage"] = json!(of.lineage);
        }
        json!({
            "id": self.name, "object": "model", "created": self.created, "owned_by": "mettle",
            "max_model_len": self.seq_len, "mettle": mettle,
        })
    }
}

/// Returns the last part of a directory's name, or a run's name unchanged.
fn short_name(name: &str) -> String {
    name.trim_end_matches('/').rsplit('/').next().filter(|part| !part.is_empty()).unwrap_or(name).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_s_model_has_the_name_of_the_directory() {
        assert_eq!(short_name("/models/my-model/"), "my-model");
        assert_eq!(short_name("my-model"), "my-model");
        assert_eq!(short_name("/"), "/");
    }
}
