//! `mettle model`: exports, imports, evaluates, samples and serves models.

mod answer_text;
mod card;
mod choose;
mod evaluate;
mod export;
mod generate;
mod import;
mod serve;

use crate::{help, output::Output};
use anyhow::{Context as _, bail, ensure};
use clap::Subcommand;
use daemon::{ModelState, Row, Storage, open::SPEC_FILE, program};
use dataset::tokenizer_path;
use model::{ModelConfig, RunSpec};
use nn::{Evaluator, hugging_face::Import};
use protocol::{Digest, RunId, Window};
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

/// Runs `work` on its own thread. On Ctrl-C sets the flag, and waits until the work has cleaned up.
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

/// A model, and the device that it runs on.
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

/// A model in memory.
struct Loaded {
    /// The directory, if it is of no run.
    name: String,
    config: ModelConfig,
    theta: Row,
    of_run: Option<OfRun>,
}

/// The run and the window of a model.
#[derive(Clone, Debug)]
struct OfRun {
    run: RunId,
    window: Window,
    lineage: Digest,
}

impl Loaded {
    fn evaluator(&self, device: &str) -> anyhow::Result<Evaluator> {
        Ok(engines::evaluator(device.parse()?, &self.config, &self.theta)?)
    }

    /// For people.
    fn description(&self) -> String {
        match &self.of_run {
            Some(of) => format!("{}, run {}, window {}", self.name, of.run, of.window.0),
            None => self.name.clone(),
        }
    }

    fn knows(&self, tokenizer: &TextTokenizer) -> anyhow::Result<()> {
        let (vocab, needed) = (self.config.vocab, tokenizer.vocab());
        ensure!(
            needed as usize <= vocab,
            "the tokenizer has {needed} tokens, but the model knows {vocab}: it was trained with another one"
        );
        Ok(())
    }
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

fn limit_context(config: &mut ModelConfig, context: Option<usize>) -> anyhow::Result<()> {
    if let Some(context) = context {
        ensure!(
            (1..=config.seq_len).contains(&context),
            "the model's context is from 1 to {} tokens, not {context}",
            config.seq_len
        );
        config.seq_len = context;
    }
    Ok(())
}

fn of_node(directory: &Path, run: Option<u32>) -> anyhow::Result<Loaded> {
    let (spec, state) = node_model(directory, RunId(run.unwrap_or_default()))?;
    let of_run = OfRun { run: state.run, window: state.window, lineage: state.lineage };
    Ok(Loaded { name: spec.name, config: spec.model, theta: state.theta, of_run: Some(of_run) })
}

/// The run's specification and the model in a node's directory.
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
    use serde_json::json;
    use tokenizer::TextTokenizer;

    /// A byte-level tokenizer of `<eos>`, small letters, the space and é, with one merge: space and a.
    pub(super) fn tokenizer_json() -> Vec<u8> {
        let mut vocab = serde_json::Map::new();
        let letters = ('a'..='z').chain(['Ġ', 'Ã', '©']).map(String::from);
        for (id, token) in
            ["<eos>".to_owned()].into_iter().chain(letters).chain(["Ġa".to_owned()]).enumerate()
        {
            vocab.insert(token, id.into());
        }
        let bytes = json!({ "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false, "use_regex": true });
        let eos = json!({
            "id": 0, "content": "<eos>", "single_word": false, "lstrip": false, "rstrip": false,
            "normalized": false, "special": true,
        });
        let tokenizer = json!({
            "version": "1.0", "truncation": null, "padding": null, "added_tokens": [eos], "normalizer": null,
            "pre_tokenizer": bytes, "post_processor": null, "decoder": bytes,
            "model": {
                "type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
                "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false, "ignore_merges": false,
                "vocab": vocab, "merges": [["Ġ", "a"]],
            },
        });
        tokenizer.to_string().into_bytes()
    }

    /// A tokenizer as SentencePiece's: words begin with their space, other characters are bytes, and a text is decoded
    /// without the space that was put before it. As Llama's file has it, or as Gemma's and T5's kind.
    pub(super) fn sentencepiece(is_llama: bool) -> TextTokenizer {
        let tokens = ["<unk>", "</s>", "▁"].map(str::to_owned).into_iter();
        let tokens = tokens.chain(('a'..='z').map(String::from));
        let tokens = tokens.chain((0..=255).map(|byte| format!("<0x{byte:02X}>")));
        let tokens = tokens.chain(["▁a".to_owned(), "▁an".to_owned()]);
        let vocab: serde_json::Map<_, _> = tokens.zip((0..).map(serde_json::Value::from)).collect();
        let special = |id: u32, content: &str| {
            json!({
                "id": id, "content": content, "single_word": false, "lstrip": false, "rstrip": false,
                "normalized": false, "special": true,
            })
        };
        let space = json!({ "type": "Replace", "pattern": { "String": " " }, "content": "▁" });
        let metaspace =
            json!({ "type": "Metaspace", "replacement": "▁", "prepend_scheme": "first", "split": false });
        let (normalizer, pre_tokenizer, decoder) = match is_llama {
            true => (
                json!({ "type": "Sequence", "normalizers": [{ "type": "Prepend", "prepend": "▁" }, space] }),
                serde_json::Value::Null,
                json!({ "type": "Sequence", "decoders": [
                    { "type": "Replace", "pattern": { "String": "▁" }, "content": " " },
                    { "type": "ByteFallback" }, { "type": "Fuse" },
                    { "type": "Strip", "content": " ", "start": 1, "stop": 0 },
                ] }),
            ),
            false => (
                serde_json::Value::Null,
                metaspace.clone(),
                json!({ "type": "Sequence", "decoders": [{ "type": "ByteFallback" }, metaspace] }),
            ),
        };
        let tokenizer = json!({
            "version": "1.0", "truncation": null, "padding": null, "normalizer": normalizer,
            "added_tokens": [special(0, "<unk>"), special(1, "</s>")], "pre_tokenizer": pre_tokenizer,
            "post_processor": null, "decoder": decoder,
            "model": {
                "type": "BPE", "dropout": null, "unk_token": "<unk>", "continuing_subword_prefix": null,
                "end_of_word_suffix": null, "fuse_unk": true, "byte_fallback": true, "ignore_merges": false,
                "vocab": vocab, "merges": [["▁", "a"], ["▁a", "n"]],
            },
        });
        TextTokenizer::from_json(tokenizer.to_string().into_bytes(), None).unwrap()
    }

    pub(super) fn tokenizer() -> TextTokenizer {
        TextTokenizer::from_json(tokenizer_json(), None).unwrap()
    }
}
