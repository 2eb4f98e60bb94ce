//! The newest checkpoint of a run that validators voted, fetched from their buckets.

use super::{Loaded, OfRun, ServeModel, Served};
use crate::model::{export::tokenizer_at_hand, limit_context};
use anyhow::Context as _;
use daemon::PublishedRun;
use mettle_sdk::model::fetch;
use protocol::view::Checkpoint;
use std::path::Path;
use tempfile::TempDir;
use tokenizer::TextTokenizer;

/// A run, and which of its checkpoints was loaded last.
pub(super) struct Published {
    run: PublishedRun,
    /// `None` is `θ_0`.
    checkpoint: Option<Checkpoint>,
    tokenizer: Option<Vec<u8>>,
    end_of_document: Option<String>,
    context: Option<usize>,
    device: String,
    /// Where a checkpoint is downloaded to.
    directory: TempDir,
}

impl Published {
    /// Opens the run, and loads its newest checkpoint.
    pub async fn open(wanted: &ServeModel) -> anyhow::Result<(Published, Served)> {
        let reading = wanted.reading()?;
        let read =
            |path: &Path| std::fs::read(path).with_context(|| format!("could not read {}", path.display()));
        let tokenizer = match (&wanted.words.tokenizer, &wanted.words.dataset) {
            (Some(file), _) => Some(read(file)?),
            (None, Some(dataset)) => Some(read(&dataset::tokenizer_path(dataset))?),
            (None, None) => tokenizer_at_hand(&reading)?,
        };
        let run = daemon::open_published_run(&reading.chain, reading.run).await?;
        let mut published = Published {
            checkpoint: run.run.checkpoint,
            run,
            tokenizer,
            end_of_document: wanted.words.end_of_document.clone(),
            context: wanted.context,
            device: wanted.device.clone(),
            directory: tempfile::tempdir().context("could not make a directory for the download")?,
        };
        let served = published.load(published.checkpoint).await?;
        Ok((published, served))
    }

    /// Loads the run's newest checkpoint, if it is another than before. After an error, the next call tries again.
    pub async fn newer(&mut self) -> anyhow::Result<Option<Served>> {
        let now = self.run.chain.run(self.run.run.id).await?.checkpoint;
        // A run may also go back to an earlier one (PROT-20).
        if now == self.checkpoint {
            return Ok(None);
        }
        let served = self.load(now).await?;
        self.checkpoint = now;
        Ok(Some(served))
    }

    async fn load(&mut self, checkpoint: Option<Checkpoint>) -> anyhow::Result<Served> {
        let path = self.directory.path().join("checkpoint");
        let fetched = fetch(&self.run, checkpoint, self.tokenizer.clone(), &path).await?;
        self.tokenizer.clone_from(&fetched.tokenizer);
        let (end_of_document, context, device) =
            (self.end_of_document.clone(), self.context, self.device.clone());
        let load = move || {
            let json = fetched.tokenizer.clone().context("the run has no tokenizer")?;
            let tokenizer = TextTokenizer::from_json(json, end_of_document.as_deref())
                .context("the run's tokenizer cannot be used")?;
            let root = fetched.weights_root;
            let of_run = OfRun { run: fetched.run, window: fetched.window, lineage: fetched.lineage };
            let (name, mut config) = (fetched.spec.name.clone(), fetched.spec.model.clone());
            limit_context(&mut config, context)?;
            let loaded = Loaded { name, config, theta: fetched.into_theta()?, of_run: Some(of_run) };
            Served::new(loaded, root, tokenizer, &device)
        };
        tokio::task::spawn_blocking(load).await.context("the checkpoint could not be loaded")?
    }
}
