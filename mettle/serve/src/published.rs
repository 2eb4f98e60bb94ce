//! The newest checkpoint of a run that validators voted, fetched from their buckets.

use crate::{Loaded, OfRun, ServeError, Served, limit_context};
use daemon::PublishedRun;
use mettle_sdk::model::fetch;
use protocol::view::Checkpoint;
use tempfile::TempDir;
use tokenizer::TextTokenizer;

/// Options for loading a checkpoint.
#[derive(Clone)]
pub struct LoadOptions {
    /// A `tokenizer.json` that replaces the run's.
    pub tokenizer: Option<Vec<u8>>,
    /// The token that ends a document, if the tokenizer has none of the usual names.
    pub end_of_document: Option<String>,
    /// The longest context in tokens; `None` for the model's own.
    pub context: Option<usize>,
    pub device: String,
}

/// A run, and its checkpoint that was loaded last.
pub struct Published {
    run: PublishedRun,
    /// `None` is `θ_0`.
    checkpoint: Option<Checkpoint>,
    options: LoadOptions,
    /// Directory of downloaded checkpoints.
    directory: TempDir,
}

impl Published {
    /// Loads the newest checkpoint of a run.
    ///
    /// # Errors
    /// If it cannot be fetched or verified, or does not fit the device or the tokenizer.
    pub async fn open(run: PublishedRun, options: LoadOptions) -> Result<(Published, Served), ServeError> {
        let directory = tempfile::tempdir().map_err(ServeError::Directory)?;
        let mut published = Published { checkpoint: run.run.checkpoint, run, options, directory };
        let served = published.load(published.checkpoint).await?;
        Ok((published, served))
    }

    /// Loads the run's newest checkpoint if it differs from the last one. After an error, the next call tries again.
    pub(crate) async fn newer(&mut self) -> Result<Option<Served>, ServeError> {
        let now = self.run.chain.run(self.run.run.id).await?.checkpoint;
        // A run may also return to an earlier checkpoint (PROT-20).
        if now == self.checkpoint {
            return Ok(None);
        }
        let served = self.load(now).await?;
        self.checkpoint = now;
        Ok(Some(served))
    }

    async fn load(&mut self, checkpoint: Option<Checkpoint>) -> Result<Served, ServeError> {
        let path = self.directory.path().join("checkpoint");
        let fetched = fetch(&self.run, checkpoint, self.options.tokenizer.clone(), &path).await?;
        self.options.tokenizer.clone_from(&fetched.tokenizer);
        let LoadOptions { tokenizer, end_of_document, context, device } = self.options.clone();
        let load = move || {
            let json = tokenizer.ok_or(ServeError::NoTokenizer)?;
            let tokenizer = TextTokenizer::from_json(json, end_of_document.as_deref())?;
            let root = fetched.weights_root;
            let of_run = OfRun { run: fetched.run, window: fetched.window, lineage: fetched.lineage };
            let (name, mut config) = (fetched.spec.name.clone(), fetched.spec.model.clone());
            limit_context(&mut config, context)?;
            let loaded = Loaded { name, config, theta: fetched.into_theta()?, of_run: Some(of_run) };
            Served::new(loaded, root, tokenizer, &device)
        };
        tokio::task::spawn_blocking(load).await.map_err(mettle_sdk::Error::Died)?
    }
}
