//! `mettle model`: exports, imports, evaluates, samples and serves models.

mod card;
mod choose;
mod evaluate;
mod export;
mod generate;
mod import;
mod serve;

use crate::{help, output::Output};
use ::serve::{Loaded, OfRun, limit_context};
use anyhow::{Context as _, bail};
use clap::Subcommand;
use daemon::{ModelState, Storage, open::SPEC_FILE, program};
use dataset::tokenizer_path;
use model::RunSpec;
use nn::hugging_face::Import;
use protocol::RunId;
use std::{
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};
use tokenizer::TextTokenizer;

#[derive(Debug, Subcommand)]
pub enum ModelCommand {
    #[command(after_help = help::reading(&[
        "mettle model export --config miner.toml --out model",
        "mettle model export --published --run 0 --out model --dtype bf16",
    ]))]
    Export(export::ExportModel),
    #[command(after_help = help::reading(&["mettle model import Llama-3.2-1B"]))]
    Import(import::ImportModel),
    #[command(after_help = help::reading(&["mettle model evaluate model --dataset data"]))]
    Evaluate(evaluate::EvaluateModel),
    #[command(after_help = help::reading(&[
        "mettle model generate model --prompt \"Once upon a time\"",
    ]))]
    Generate(generate::GenerateText),
    #[command(after_help = help::reading(&["mettle model choose model --questions questions.jsonl"]))]
    Choose(choose::ChooseContinuation),
    #[command(after_help = help::reading(&[
        "mettle model serve model",
        "mettle model serve --config miner.toml --listen 127.0.0.1:8000",
        "mettle model serve --published --chain ws://127.0.0.1:9944 --run 0",
    ]))]
    Serve(Box<serve::ServeModel>),
}

/// Runs a command; prints through `output`.
pub async fn run(command: ModelCommand, output: &mut Output<'_>) -> anyhow::Result<()> {
    output.bare_json();
    match command {
        ModelCommand::Export(command) => export::export(command, output).await,
        ModelCommand::Import(command) => import::import(command, output).await,
        ModelCommand::Evaluate(command) => {
            tokio::task::block_in_place(|| evaluate::evaluate(&command, output))
        }
        ModelCommand::Generate(command) => {
            tokio::task::block_in_place(|| generate::generate(&command, output))
        }
        ModelCommand::Choose(command) => tokio::task::block_in_place(|| choose::choose(&command, output)),
        ModelCommand::Serve(command) => serve::serve(*command, output).await,
    }
}

/// Runs `work` on its own thread. On Ctrl-C it sets the flag and waits until the work has cleaned up.
async fn interruptible<T: Send + 'static>(
    work: impl FnOnce(&AtomicBool) -> anyhow::Result<T> + Send + 'static,
) -> anyhow::Result<T> {
    let stop = Arc::new(AtomicBool::new(false));
    let mut work = {
        let stop = stop.clone();
        tokio::task::spawn_blocking(move || work(&stop))
    };
    tokio::select! {
        done = &mut work => return done?,
        () = program::stop_requested() => stop.store(true, Ordering::Relaxed),
    }
    work.await?
}

/// A model and its device.
#[derive(Clone, Debug, clap::Args)]
pub struct ModelArgs {
    /// A node's directory, or one in Hugging Face format (config.json, safetensors).
    #[arg(value_name = "MODEL")]
    model: PathBuf,
    /// The run of a node's model [default: 0].
    #[arg(long, value_name = "ID", env = "METTLE_RUN")]
    run: Option<u32>,
    /// The longest context in tokens [default: the model's own].
    #[arg(long, value_name = "N")]
    context: Option<usize>,
    /// The device: cpu, or cuda:0 if built with it.
    #[arg(long, value_name = "DEVICE", default_value = "cpu")]
    device: String,
}

/// A tokenizer.
#[derive(Clone, Debug, clap::Args)]
pub struct TokenizerArgs {
    /// A tokenizer.json [default: the one beside the model].
    #[arg(long, value_name = "FILE")]
    tokenizer: Option<PathBuf>,
    /// A prepared dataset, for its tokenizer.
    #[arg(long, value_name = "DIR", conflicts_with = "tokenizer")]
    dataset: Option<PathBuf>,
    /// The token that ends a document, if the tokenizer has none of the usual names.
    #[arg(long, value_name = "TOKEN")]
    end_of_document: Option<String>,
}

/// Loads a model in Hugging Face format, or a node's.
fn load(which: &ModelArgs) -> anyhow::Result<Loaded> {
    let directory = &which.model;
    let mut loaded = if directory.join("config.json").is_file() {
        let mut import =
            Import::open(directory).with_context(|| format!("{} cannot be read", directory.display()))?;
        let theta = import.to_flat()?.into();
        Loaded { name: directory.display().to_string(), config: import.config, theta, of_run: None }
    } else if directory.join(SPEC_FILE).is_file() {
        of_node(directory, which.run)?
    } else {
        bail!(
            "{} holds no model: neither config.json, as in Hugging Face format, nor {SPEC_FILE}, as in a node's directory",
            directory.display()
        );
    };
    limit_context(&mut loaded.config, which.context)?;
    Ok(loaded)
}

fn of_node(directory: &Path, run: Option<u32>) -> anyhow::Result<Loaded> {
    let (spec, state) = node_model(directory, RunId(run.unwrap_or_default()))?;
    let of_run = OfRun { run: state.run, window: state.window, lineage: state.lineage };
    Ok(Loaded { name: spec.name, config: spec.model, theta: state.theta, of_run: Some(of_run) })
}

/// Reads the run's specification and the model from a node's directory.
fn node_model(directory: &Path, run: RunId) -> anyhow::Result<(RunSpec, ModelState)> {
    let path = directory.join(SPEC_FILE);
    let bytes = std::fs::read(&path).with_context(|| {
        format!(
            "could not read {}: is {} a node's directory? A node writes the file when it starts; without a node, use --published",
            path.display(),
            directory.display()
        )
    })?;
    let spec = RunSpec::from_bytes(&bytes)?;
    let state =
        ModelState::load(&directory.join("model.state"), run, spec.schema()?.values(), &Storage::memory())?;
    let state = state.with_context(|| {
        format!("there is no model in {} yet: the node has not joined", directory.display())
    })?;
    Ok((spec, state))
}

impl TokenizerArgs {
    fn tokenizer(&self, which: &ModelArgs) -> anyhow::Result<TextTokenizer> {
        let beside = [which.model.join("tokenizer.json"), tokenizer_path(&which.model.join("dataset"))];
        let path = match (&self.tokenizer, &self.dataset) {
            (Some(file), _) => file.clone(),
            (None, Some(directory)) => tokenizer_path(directory),
            (None, None) => match beside.iter().find(|path| path.is_file()) {
                Some(path) => path.clone(),
                None => bail!(
                    "there is no tokenizer beside {}: add --tokenizer FILE or --dataset DIR",
                    which.model.display()
                ),
            },
        };
        let json = std::fs::read(&path).with_context(|| format!("could not read {}", path.display()))?;
        TextTokenizer::from_json(json, self.end_of_document.as_deref())
            .with_context(|| format!("{} cannot be used", path.display()))
    }
}

#[cfg(test)]
mod testing {
    use tokenizer::TextTokenizer;

    /// Creates a byte-level tokenizer of `<eos>`, small letters, the space and é, with one merge: space and a.
    pub(super) fn tokenizer_json() -> Vec<u8> {
        include_bytes!("../../serve/tests/tokenizer.json").to_vec()
    }

    pub(super) fn tokenizer() -> TextTokenizer {
        TextTokenizer::from_json(tokenizer_json(), None).unwrap()
    }
}
