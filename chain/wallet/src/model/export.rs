//! `mettle model export`: writes a node's model, or a voted checkpoint, in Hugging Face format.

use super::{
    OutgoingTokenizer,
    card::{ChainFacts, Provenance, card},
    interruptible, node_model, stopped,
};
use crate::{output::Output, quantity};
use anyhow::{Context as _, bail, ensure};
use chain_client::Chain;
use dataset::{MAX_MANIFEST_BYTES, Manifest, tokenizer_path};
use model::RunSpec;
use nn::{
    Precision,
    hugging_face::{self, Export},
};
use node::{
    Flags, ModelState, PublishedRun, Row, Storage, checkpoint,
    config::ReadOnlyConfig,
    follow::{first_checkpoint, genesis_of_seed},
    mirrors::Mirrors,
};
use protocol::{
    Digest, GenesisHash, RunId, Window, keys, lineage,
    view::{Checkpoint, Outcome, RunView},
};
use serde_json::{Value, json};
use std::{
    collections::BTreeMap,
    fs::File,
    io::{self, BufReader, Read as _},
    path::{Path, PathBuf},
    sync::atomic::{AtomicBool, Ordering},
};
use store::Limits;

/// Values that are read from a file at once.
const VALUES_AT_ONCE: usize = 1 << 16;

/// Export the model in Hugging Face format
///
/// Writes a directory that `transformers` loads: LlamaForCausalLM in safetensors. The model is this node's own, or,
/// with
/// --published, a checkpoint that validators voted, fetched from their buckets.
#[derive(Clone, Debug, clap::Args)]
pub struct ExportModel {
    /// The directory to create. It appears whole or not at all.
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
    /// Settings file (TOML).
    #[arg(long, value_name = "FILE", env = "METTLE_CONFIG")]
    config: Option<PathBuf>,
    /// Where the node keeps its model.
    #[arg(long, value_name = "DIR", env = "METTLE_DIRECTORY")]
    directory: Option<PathBuf>,
    /// A prepared dataset on this machine, for its tokenizer.
    #[arg(long, value_name = "DIR")]
    dataset: Option<PathBuf>,
    /// Fetch a checkpoint that validators voted, instead of exporting this node's model.
    #[arg(long)]
    published: bool,
    /// The window that opens with the checkpoint [default: the latest].
    #[arg(long, value_name = "W", requires = "published")]
    window: Option<u32>,
    /// With --published: URL of the chain's JSON-RPC, such as ws://127.0.0.1:9944.
    #[arg(long, value_name = "URL", env = "METTLE_CHAIN")]
    chain: Option<String>,
    /// With --published: the hash of the chain's block 0; required but on a development chain.
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
    let source = match wanted.published {
        true => from_mirrors(&wanted).await?,
        false => tokio::task::block_in_place(|| from_directory(&wanted))?,
    };
    if source.tokenizer.is_none() {
        output.note("No tokenizer found (name one with --dataset): the model is written without it.")?;
    }
    let (text, value) = interruptible(move |stop| write_model(&wanted, source, stop)).await?;
    Ok(output.result(&text, value)?)
}

/// A model to export.
pub(super) struct Outgoing {
    pub spec: RunSpec,
    pub run: RunId,
    pub window: Window,
    pub lineage: Digest,
    pub root: Digest,
    values: Values,
    pub tokenizer: Option<Vec<u8>>,
    /// `None` for a node's own model.
    facts: Option<ChainFacts>,
}

/// Where the parameters are.
enum Values {
    Held(Row),
    /// In a file of little-endian f32 values, which is removed after the export.
    Fetched(PathBuf),
}

impl Outgoing {
    fn of(spec: RunSpec, state: ModelState, tokenizer: Option<Vec<u8>>) -> Outgoing {
        let root = state.weights_root();
        let ModelState { run, window, lineage, theta, .. } = state;
        Outgoing { spec, run, window, lineage, root, values: Values::Held(theta), tokenizer, facts: None }
    }

    /// The parameters in memory. A downloaded file is checked against the weights root, and removed.
    pub fn into_theta(self) -> anyhow::Result<Row> {
        let path = match self.values {
            Values::Held(theta) => return Ok(theta),
            Values::Fetched(path) => path,
        };
        let mut flat = vec![0.0; self.spec.model.parameters()];
        checked_blocks(&path, flat.len(), self.root)?(&mut flat)?;
        std::fs::remove_file(&path).with_context(|| format!("could not remove {}", path.display()))?;
        Ok(flat.into())
    }
}

/// This node's model.
fn from_directory(wanted: &ExportModel) -> anyhow::Result<Outgoing> {
    let reading = reading(wanted)?;
    let (spec, state) = node_model(&reading.directory, reading.run)?;
    Ok(Outgoing::of(spec, state, tokenizer_at_hand(&reading)?))
}

/// A checkpoint that validators voted.
async fn from_mirrors(wanted: &ExportModel) -> anyhow::Result<Outgoing> {
    let reading = reading(wanted)?;
    let published = node::open_published_run(&reading.chain, reading.run).await?;
    let checkpoint = voted(&*published.chain, &published.run, wanted.window).await?;
    fetch_published(&published, checkpoint, tokenizer_at_hand(&reading)?, &fetching_path(&wanted.out)).await
}

/// Fetches a checkpoint that validators voted to a file at `path`; `None` stands for `θ_0`. Without a `tokenizer`, it
/// fetches the run's.
pub(super) async fn fetch_published(
    published: &PublishedRun,
    checkpoint: Option<Checkpoint>,
    tokenizer: Option<Vec<u8>>,
    path: &Path,
) -> anyhow::Result<Outgoing> {
    let PublishedRun { chain, fetch, run, spec } = published;
    let (spec, schema) = (spec.clone(), spec.schema()?);
    let seats = chain.seats(run.id).await?;
    let mirrors = Mirrors::validators(&seats, &[], &run.origin, 0);
    let tokenizer = match tokenizer {
        Some(json) => json,
        None => {
            let limits = Limits::for_bytes(MAX_MANIFEST_BYTES);
            let manifest =
                mirrors.get(&**fetch, &keys::manifest(&run.manifest), &run.manifest, &limits).await?;
            let digest = Manifest::from_bytes(&manifest)?.tokenizer;
            let limits = Limits::for_bytes(node::data::TOKENIZER_BYTES_MAX);
            mirrors.get(&**fetch, &keys::tokenizer(&digest), &digest, &limits).await?.to_vec()
        }
    };
    let checkpoint = match (checkpoint, &spec.weights) {
        (None, None) => {
            let state = genesis_of_seed(run, &spec, &Storage::memory())?;
            let facts = ChainFacts { genesis: chain.genesis(), run: run.clone(), seats };
            return Ok(Outgoing { facts: Some(facts), ..Outgoing::of(spec, state, Some(tokenizer)) });
        }
        (None, Some(_)) => first_checkpoint(run, &spec)?,
        (Some(checkpoint), _) => checkpoint,
    };
    let manifest = checkpoint::fetch_weights_to(path, &**fetch, &mirrors, run.id, &checkpoint, &schema)
        .await
        .with_context(|| format!("could not fetch the checkpoint of window {}", checkpoint.window.0))?;
    Ok(Outgoing {
        spec,
        run: run.id,
        window: checkpoint.window,
        lineage: checkpoint.lineage,
        root: manifest.weights_root(),
        values: Values::Fetched(path.to_owned()),
        tokenizer: Some(tokenizer),
        facts: Some(ChainFacts { genesis: chain.genesis(), run: run.clone(), seats }),
    })
}

/// The path of a checkpoint while it is downloaded: beside the output, on the same disk.
fn fetching_path(out: &Path) -> PathBuf {
    let name = out.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    out.with_file_name(format!(".{name}.fetching"))
}

/// The checkpoint that opens `window`, or the latest; `None` stands for `θ_0`.
async fn voted(chain: &dyn Chain, run: &RunView, window: Option<u32>) -> anyhow::Result<Option<Checkpoint>> {
    let Some(window) = window.map(Window) else { return Ok(run.checkpoint) };
    if let Some(latest) = run.checkpoint.filter(|latest| latest.window == window) {
        return Ok(Some(latest));
    }
    let Some(before) = window.previous() else { return Ok(None) };
    let fixed = chain.window(run.id, before).await?;
    if let Some(view) = fixed
        && let Some(Outcome::Merged(vote)) = view.outcome
        && let Some(state_root) = vote.state_root
    {
        let lineage = lineage::next(&view.lineage, &vote.update);
        return Ok(Some(Checkpoint { window, state_root, lineage }));
    }
    match run.checkpoint {
        Some(latest) => bail!(
            "the chain has no checkpoint of window {}: the latest is of window {}, one is voted every {} windows, and old ones are forgotten",
            window.0,
            latest.window.0,
            run.params.checkpoint_windows
        ),
        None => bail!("run {} has no checkpoint yet; --window 0 is its first model", run.id),
    }
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

/// The tokenizer of the dataset in the settings, or of the one that the node fetched.
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
    outgoing: Outgoing,
    stop: &AtomicBool,
) -> anyhow::Result<(String, Value)> {
    let Outgoing { spec, run, window, lineage, root, values, tokenizer, facts } = outgoing;
    let provenance = Provenance { spec: &spec, run, window, lineage, root, chain: facts.as_ref() };
    let tokenizer = tokenizer
        .map(|json| OutgoingTokenizer::new(json, wanted.end_of_document.as_deref()))
        .transpose()
        .context("the dataset's tokenizer cannot be used")?;
    let metadata = BTreeMap::from([
        // Required by `transformers`.
        ("format".to_owned(), "pt".to_owned()),
        ("mettle.run".to_owned(), run.to_string()),
        ("mettle.name".to_owned(), spec.name.clone()),
        ("mettle.spec".to_owned(), spec.digest().to_string()),
        ("mettle.window".to_owned(), window.0.to_string()),
        ("mettle.lineage".to_owned(), lineage.to_string()),
        ("mettle.weights-root".to_owned(), root.to_string()),
    ]);
    let wish = Export {
        config: &spec.model,
        metadata,
        dtype: wanted.dtype,
        shard_bytes_max: wanted.shard_size,
        tokenizer: tokenizer.as_ref().map(OutgoingTokenizer::exported),
        card: Some(card(&provenance)),
    };
    let written = match &values {
        Values::Held(flat) => write(&wanted.out, &wish, flat, stop)?,
        Values::Fetched(path) => {
            let written = write_from(&wanted.out, &wish, path, root, stop)?;
            std::fs::remove_file(path).with_context(|| format!("could not remove {}", path.display()))?;
            written
        }
    };
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

pub(super) fn write(
    to: &Path,
    wish: &Export<'_>,
    mut flat: &[f32],
    stop: &AtomicBool,
) -> anyhow::Result<hugging_face::Exported> {
    let written = hugging_face::export(to, wish, |block| {
        if stop.load(Ordering::Relaxed) {
            return Err(stopped());
        }
        let (now, later) = flat
            .split_at_checked(block.len())
            .ok_or_else(|| io::Error::from(io::ErrorKind::UnexpectedEof))?;
        block.copy_from_slice(now);
        flat = later;
        Ok(())
    });
    Ok(written?)
}

/// As [`write`], from a file whose weights root is checked before the directory appears.
fn write_from(
    to: &Path,
    wish: &Export<'_>,
    path: &Path,
    root: Digest,
    stop: &AtomicBool,
) -> anyhow::Result<hugging_face::Exported> {
    let mut read = checked_blocks(path, wish.config.parameters(), root)?;
    let written = hugging_face::export(to, wish, |block| {
        if stop.load(Ordering::Relaxed) {
            return Err(stopped());
        }
        read(block)
    });
    Ok(written?)
}

/// Reads `count` values of a file block by block. The last block is an error if they do not have this weights root.
fn checked_blocks(
    path: &Path,
    count: usize,
    root: Digest,
) -> anyhow::Result<impl FnMut(&mut [f32]) -> io::Result<()>> {
    let mut file =
        BufReader::new(File::open(path).with_context(|| format!("could not read {}", path.display()))?);
    let (mut left, mut seen, mut bytes) = (count, lineage::RootOfBlocks::default(), Vec::new());
    Ok(move |block: &mut [f32]| {
        for part in block.chunks_mut(VALUES_AT_ONCE) {
            bytes.resize(4 * part.len(), 0);
            file.read_exact(&mut bytes)?;
            for (value, bytes) in part.iter_mut().zip(bytes.as_chunks::<4>().0) {
                *value = f32::from_le_bytes(*bytes);
            }
            seen.update(part);
            left -= part.len();
        }
        if left == 0 && std::mem::take(&mut seen).finish() != root {
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                "the downloaded checkpoint has changed on this disk",
            ));
        }
        Ok(())
    })
}
