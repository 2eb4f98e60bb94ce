//! `mettle model serve`: the flags of `mettle-serve`, and the model to serve.

use super::{ModelArgs, TokenizerArgs, export::tokenizer_at_hand, load};
use crate::output::Output;
use ::serve::{LoadOptions, Published, Served, Service};
use anyhow::{Context as _, bail};
use daemon::{Flags, config::ReadOnlyConfig, program::StopSignal};
use dataset::tokenizer_path;
use protocol::{GenesisHash, lineage};
use serde_json::json;
use std::{
    net::SocketAddr,
    path::{Path, PathBuf},
};

/// Serve the model to clients of OpenAI's API
///
/// Answers /v1/models, /v1/completions and /v1/chat/completions, and shows a page to chat at /. Texts of all clients
/// are continued together. Any client that reaches the address may use it. Prompts and answers are not logged.
#[derive(Clone, Debug, clap::Args)]
pub struct ServeModel {
    /// A node's directory, or one in Hugging Face format (config.json, safetensors).
    #[arg(value_name = "MODEL", required_unless_present_any = ["config", "published"], conflicts_with = "published")]
    model: Option<PathBuf>,
    /// A node's settings file (TOML), instead of MODEL.
    #[arg(long, value_name = "FILE", env = "METTLE_CONFIG")]
    config: Option<PathBuf>,
    /// Serve the newest checkpoint that validators voted for, and later ones as they appear.
    #[arg(long)]
    published: bool,
    /// With --published: URL of the chain's JSON-RPC, such as ws://127.0.0.1:9944.
    #[arg(long, value_name = "URL", env = "METTLE_CHAIN")]
    chain: Option<String>,
    /// With --published: the hash of the chain's block 0; required except on a development chain.
    #[arg(long, value_name = "HASH", env = "METTLE_GENESIS")]
    genesis: Option<GenesisHash>,
    /// The run [default: 0].
    #[arg(long, value_name = "ID", env = "METTLE_RUN")]
    run: Option<u32>,
    /// The longest context in tokens [default: the model's own].
    #[arg(long, value_name = "N")]
    context: Option<usize>,
    /// The device: cpu, or cuda:0 if built with it.
    #[arg(long, value_name = "DEVICE", default_value = "cpu")]
    device: String,
    #[command(flatten)]
    words: TokenizerArgs,
    /// The address to listen at.
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:8441")]
    listen: SocketAddr,
    /// Texts that are continued at once; further ones wait.
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = count)]
    parallel: usize,
    /// Requests that wait; further ones are refused with 429.
    #[arg(long, value_name = "N", default_value_t = 32, value_parser = count)]
    queue: usize,
}

fn count(text: &str) -> Result<usize, String> {
    let count = text.parse().ok().filter(|count| (1..=1024).contains(count));
    count.ok_or_else(|| "a number from 1 to 1024".to_owned())
}

/// Serves until Ctrl-C.
pub(super) async fn serve(wanted: ServeModel, output: &mut Output<'_>) -> anyhow::Result<()> {
    let mut stop = StopSignal::listen();
    let (served, published) = match wanted.published {
        false => (tokio::task::block_in_place(|| of_directory(&wanted))?, None),
        true => tokio::select! {
            opened = of_run(&wanted) => {
                let (published, served) = opened?;
                (served, Some(published))
            }
            () = stop.told() => return Ok(()),
        },
    };
    let service = Service::start(served, wanted.listen, wanted.parallel, wanted.queue).await?;
    let (served, url) = (service.newest(), service.url());
    let cache_bytes = served.cache_bytes();
    let cache = cache_bytes.map_or(String::new(), |bytes| {
        format!(", each with a cache of at most {:.2} MiB", bytes as f64 / f64::from(1 << 20))
    });
    let text = format!(
        "{} is served at {url}/v1, with a page at {url}/; Ctrl-C ends it\n{} texts at once{cache}",
        served.name(),
        wanted.parallel,
    );
    output.result(&text, json!({ "url": url, "model": served.json(), "cache_bytes_max": cache_bytes }))?;
    drop(served);
    Ok(service.run(published, &mut stop).await?)
}

impl ServeModel {
    /// Returns the settings of the node or the run.
    fn reading(&self) -> anyhow::Result<ReadOnlyConfig> {
        ReadOnlyConfig::read(&Flags {
            config: self.config.clone(),
            // The environment may name a chain for other commands.
            chain: self.chain.clone().filter(|_| self.published),
            genesis: self.genesis.filter(|_| self.published),
            run: self.run,
            ..Flags::default()
        })
    }
}

fn of_directory(wanted: &ServeModel) -> anyhow::Result<Served> {
    let (directory, run, dataset) = match (&wanted.model, &wanted.config) {
        (Some(model), _) => (model.clone(), wanted.run, None),
        (None, Some(_)) => {
            let reading = wanted.reading()?;
            (reading.directory, Some(reading.run.0), reading.dataset)
        }
        (None, None) => bail!("name a model: a directory, or a node's settings with --config"),
    };
    let which = ModelArgs { model: directory, run, context: wanted.context, device: wanted.device.clone() };
    let mut words = wanted.words.clone();
    if words.tokenizer.is_none() {
        words.dataset = words.dataset.or(dataset);
    }
    let loaded = load(&which)?;
    let root = lineage::weights_root(&loaded.theta);
    Ok(Served::new(loaded, root, words.tokenizer(&which)?, &which.device)?)
}

async fn of_run(wanted: &ServeModel) -> anyhow::Result<(Published, Served)> {
    let reading = wanted.reading()?;
    let read =
        |path: &Path| std::fs::read(path).with_context(|| format!("could not read {}", path.display()));
    let tokenizer = match (&wanted.words.tokenizer, &wanted.words.dataset) {
        (Some(file), _) => Some(read(file)?),
        (None, Some(dataset)) => Some(read(&tokenizer_path(dataset))?),
        (None, None) => tokenizer_at_hand(&reading)?,
    };
    let run = daemon::open_published_run(&reading.chain, reading.run).await?;
    let options = LoadOptions {
        tokenizer,
        end_of_document: wanted.words.end_of_document.clone(),
        context: wanted.context,
        device: wanted.device.clone(),
    };
    Ok(Published::open(run, options).await?)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The environment may name a chain, for other commands.
    #[test]
    fn a_directory_is_served_beside_a_chain() {
        #[derive(clap::Parser)]
        struct Line {
            #[command(flatten)]
            wanted: ServeModel,
        }
        let genesis = GenesisHash([7; 32]).to_string();
        let line = ["serve", "my-model", "--chain", "ws://127.0.0.1:9944", "--genesis", &genesis];
        let wanted =
            <Line as clap::Parser>::try_parse_from(line).unwrap_or_else(|error| panic!("{error}")).wanted;
        assert_eq!(wanted.model, Some("my-model".into()));
    }
}
