//! `mettle model export`: writes a node's model, or a voted checkpoint, in Hugging Face format.

use super::{
    card::{ChainFacts, Provenance, card},
    interruptible, node_model,
};
use crate::{output::Output, quantity};
use anyhow::{Context as _, anyhow, ensure};
use daemon::{Flags, config::ReadOnlyConfig};
use dataset::tokenizer_path;
use mettle_sdk::{
    Error, Model,
    model::{OutgoingTokenizer, Scratch, fetch, voted},
};
use nn::{Precision, hugging_face::Export};
use protocol::{GenesisHash, Window};
use serde_json::{Value, json};
use std::{io, path::PathBuf, sync::atomic::AtomicBool};

/// Export the model in Hugging Face format
///
/// Writes a directory that `transformers` loads: LlamaForCausalLM in safetensors. The model is this node's own, or,
/// with --published, a checkpoint that validators voted for, fetched from their buckets.
#[derive(Clone, Debug, clap::Args)]
pub struct ExportModel {
    /// The directory to create. It appears completely or not at all.
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
    /// Settings file (TOML).
    #[arg(long, value_name = "FILE", env = "METTLE_CONFIG")]
    config: Option<PathBuf>,
    /// Directory of the model, the snapshot and the journal.
    #[arg(long, value_name = "DIR", env = "METTLE_DIRECTORY")]
    directory: Option<PathBuf>,
    /// A prepared dataset on this machine, for its tokenizer.
    #[arg(long, value_name = "DIR")]
    dataset: Option<PathBuf>,
    /// Fetch a checkpoint that validators voted for, instead of exporting this node's model.
    #[arg(long)]
    published: bool,
    /// The window that opens with the checkpoint [default: the latest].
    #[arg(long, value_name = "W", requires = "published")]
    window: Option<u32>,
    /// With --published: URL of the chain's JSON-RPC, such as ws://127.0.0.1:9944.
    #[arg(long, value_name = "URL", env = "METTLE_CHAIN")]
    chain: Option<String>,
    /// With --published: the hash of the chain's block 0; required except on a development chain.
    #[arg(long, value_name = "HASH", env = "METTLE_GENESIS")]
    genesis: Option<GenesisHash>,
    /// The run.
    #[arg(long, value_name = "ID", env = "METTLE_RUN")]
    run: Option<u32>,
    /// The number format: f32 is exact, bf16 and f16 are half as large.
    #[arg(long, value_name = "TYPE", default_value = "f32")]
    dtype: Precision,
    /// The largest file of weights, such as 5GB; a larger model is split.
    #[arg(long, value_name = "SIZE", default_value = "5GB", value_parser = quantity::bytes)]
    shard_size: u64,
    /// The token that ends a document, if the tokenizer has none of the usual names.
    #[arg(long, value_name = "TOKEN")]
    end_of_document: Option<String>,
}

pub(super) async fn export(wanted: ExportModel, output: &mut Output<'_>) -> anyhow::Result<()> {
    ensure!(
        std::fs::symlink_metadata(&wanted.out).is_err(),
        "{} exists already; name a new directory",
        wanted.out.display()
    );
    let scratch = wanted.published.then(|| Scratch::beside(&wanted.out).map_err(advised)).transpose()?;
    let (source, facts) = match &scratch {
        Some(scratch) => from_mirrors(&wanted, scratch).await?,
        // A node's own model is exported without the chain.
        None => (tokio::task::block_in_place(|| from_directory(&wanted))?, None),
    };
    if source.tokenizer.is_none() {
        output.note("No tokenizer found (name one with --dataset): the model is written without it.")?;
    }
    let (text, value) = interruptible(move |stop| write_model(&wanted, source, facts.as_ref(), stop)).await?;
    scratch.map(Scratch::remove).transpose()?;
    Ok(output.result(&text, value)?)
}

/// Reads this node's model.
fn from_directory(wanted: &ExportModel) -> anyhow::Result<Model> {
    let reading = reading(wanted)?;
    let (spec, state) = node_model(&reading.directory, reading.run)?;
    Ok(Model::of(spec, state, tokenizer_at_hand(&reading)?))
}

/// Fetches a checkpoint that validators voted for.
async fn from_mirrors(
    wanted: &ExportModel,
    scratch: &Scratch,
) -> anyhow::Result<(Model, Option<ChainFacts>)> {
    let reading = reading(wanted)?;
    let published = daemon::open_published_run(&reading.chain, reading.run).await?;
    let (chain, run) = (&published.chain, published.run.clone());
    let checkpoint = voted(&**chain, &run, wanted.window.map(Window)).await.map_err(|error| match error {
        Error::NoCheckpoint { .. } => advised(error),
        error => error.into(),
    })?;
    let facts = ChainFacts { genesis: chain.genesis(), seats: chain.seats(run.id).await?, run };
    let tokenizer = tokenizer_at_hand(&reading)?;
    let model = fetch(&published, checkpoint, tokenizer, &scratch.checkpoint()).await?;
    Ok((model, Some(facts)))
}

/// Appends the remedy to an error of the library without a cause.
fn advised(error: Error) -> anyhow::Error {
    anyhow!("{error}: {}", error.to_do())
}

fn reading(wanted: &ExportModel) -> anyhow::Result<ReadOnlyConfig> {
    ReadOnlyConfig::read(&Flags {
        config: wanted.config.clone(),
        // The environment may name a chain for other commands.
        chain: wanted.chain.clone().filter(|_| wanted.published),
        genesis: wanted.genesis.filter(|_| wanted.published),
        run: wanted.run,
        directory: wanted.directory.clone(),
        dataset: wanted.dataset.clone(),
        ..Flags::default()
    })
}

/// Returns the tokenizer of the dataset in the settings, or of the one that the node fetched.
pub(super) fn tokenizer_at_hand(reading: &ReadOnlyConfig) -> anyhow::Result<Option<Vec<u8>>> {
    let (directory, must_be) = match &reading.dataset {
        Some(directory) => (directory.clone(), true),
        None => (reading.directory.join("dataset"), false),
    };
    let path = tokenizer_path(&directory);
    match std::fs::read(&path) {
        Ok(json) => Ok(Some(json)),
        Err(error) if error.kind() == io::ErrorKind::NotFound && !must_be => Ok(None),
        Err(error) => Err(error).with_context(|| format!("could not read {}", path.display())),
    }
}

/// Writes the model. Returns the result as text and as JSON.
fn write_model(
    wanted: &ExportModel,
    mut outgoing: Model,
    facts: Option<&ChainFacts>,
    stop: &AtomicBool,
) -> anyhow::Result<(String, Value)> {
    let tokenizer = outgoing
        .tokenizer
        .take()
        .map(|json| OutgoingTokenizer::new(json, wanted.end_of_document.as_deref()))
        .transpose()
        .context("the dataset's tokenizer cannot be used")?;
    let Model { run, window, lineage, weights_root: root, .. } = outgoing;
    let spec = outgoing.spec.clone();
    let provenance = Provenance { spec: &spec, run, window, lineage, root, chain: facts };
    let wish = Export {
        config: &spec.model,
        metadata: outgoing.metadata(),
        dtype: wanted.dtype,
        shard_bytes_max: wanted.shard_size,
        tokenizer: tokenizer.as_ref().map(OutgoingTokenizer::exported),
        card: Some(card(&provenance)),
    };
    let written = outgoing.export(&wanted.out, &wish, stop)?;
    let (out, dtype, files, bytes) = (&wanted.out, wanted.dtype, written.weights.len(), written.bytes);
    let text = format!(
        "{}: the model of run {run}, window {}, {dtype} in {files} files, {bytes} bytes in total\nlineage {lineage}\n\
         weights root {root}",
        out.display(),
        window.0,
    );
    let value = json!({
        "directory": out, "run": run, "window": window, "dtype": dtype.to_string(), "files": files,
        "bytes": bytes, "lineage": lineage, "weights_root": root,
    });
    Ok((text, value))
}
