//! `mettle model import`: checks that a model in Hugging Face format can be trained here.

use super::interruptible;
use crate::output::Output;
use anyhow::{Context as _, ensure};
use mettle_sdk::model::{OutgoingTokenizer, stopped, write};
use model::ModelConfig;
use nn::{
    Precision,
    hugging_face::{Export, Import},
};
use protocol::{Digest, lineage};
use serde_json::{Value, json};
use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    sync::atomic::{AtomicBool, Ordering},
};

/// Check that a Hugging Face model can be trained here
///
/// Shows the configuration and the digests of a run that starts from it. `mettle run create --weights DIR` creates
/// one.
#[derive(Clone, Debug, clap::Args)]
pub struct ImportModel {
    /// A directory with config.json and safetensors of a LlamaForCausalLM.
    #[arg(value_name = "DIR")]
    from: PathBuf,
    /// Sequence length in tokens [default: max_position_embeddings of config.json].
    #[arg(long, value_name = "N")]
    sequence: Option<usize>,
    /// Also write the model to this directory: f32, with the tensors in the protocol's order.
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
}

pub(super) async fn import(wanted: ImportModel, output: &mut Output<'_>) -> anyhow::Result<()> {
    let (text, value) = interruptible(move |stop| read_model(&wanted, stop)).await?;
    Ok(output.result(&text, value)?)
}

/// Reads the model. Returns the result as text and as JSON.
fn read_model(wanted: &ImportModel, stop: &AtomicBool) -> anyhow::Result<(String, Value)> {
    let mut import = Import::open(&wanted.from)
        .with_context(|| format!("{} cannot be imported", wanted.from.display()))?;
    if let Some(sequence) = wanted.sequence {
        import.limit_sequence(sequence)?;
    }
    let mut root = lineage::RootOfBlocks::default();
    import.values(|values| {
        root.update(values);
        if stop.load(Ordering::Relaxed) { Err(stopped()) } else { Ok(()) }
    })?;
    let root: Digest = root.finish();
    let tokenizer = std::fs::read(wanted.from.join("tokenizer.json")).ok();
    let (values, digest) = (import.config.parameters(), tokenizer.as_ref().map(|json| Digest::of(json)));
    let mut text = format!(
        "{}: {values} values, weights root {root}\n{}\n",
        wanted.from.display(),
        serde_json::to_string_pretty(&import.config)?
    );
    text += &match digest {
        Some(digest) => format!("tokenizer {digest}"),
        None => {
            "no tokenizer.json: a run from this model needs data tokenised with the model's own tokenizer"
                .into()
        }
    };
    let value = json!({
        "directory": wanted.from, "values": values, "weights_root": root, "config": import.config,
        "tokenizer": digest, "written": wanted.out,
    });
    if let Some(out) = &wanted.out {
        let flat = import.to_flat()?;
        ensure!(lineage::weights_root(&flat) == root, "the files changed while they were read");
        write_flat(out, &import.config, &flat, root, tokenizer, stop)?;
        text += &format!("\nwritten to {}", out.display());
    }
    Ok((text, value))
}

/// Writes the model as f32, with the tensors in the protocol's order.
fn write_flat(
    out: &Path,
    config: &ModelConfig,
    flat: &[f32],
    root: Digest,
    tokenizer: Option<Vec<u8>>,
    stop: &AtomicBool,
) -> anyhow::Result<()> {
    let tokenizer = tokenizer.map(|json| OutgoingTokenizer::new(json, None)).transpose()?;
    let metadata = BTreeMap::from([
        ("format".to_owned(), "pt".to_owned()),
        ("mettle.weights-root".to_owned(), root.to_string()),
    ]);
    let wish = Export {
        config,
        metadata,
        dtype: Precision::F32,
        shard_bytes_max: u64::MAX,
        tokenizer: tokenizer.as_ref().map(OutgoingTokenizer::exported),
        card: None,
    };
    write(out, &wish, flat, stop)?;
    Ok(())
}
