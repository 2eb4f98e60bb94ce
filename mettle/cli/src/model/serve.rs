//! `mettle model serve`: the model behind an HTTP API that clients of OpenAI speak.

mod answer;
mod http;
mod published;
mod request;
mod worker;

use super::{Loaded, ModelArgs, OfRun, TokenizerArgs, load};
use crate::output::Output;
use anyhow::{Context as _, anyhow, bail};
use daemon::{Flags, config::ReadOnlyConfig, program::StopSignal};
use http::Server;
use hyper::StatusCode;
use nn::{Evaluator, Session};
use protocol::{Digest, GenesisHash, lineage};
use published::Published;
use request::Refusal;
use serde_json::json;
use std::{
    net::SocketAddr,
    path::PathBuf,
    sync::{Arc, Weak},
    time::{Duration, SystemTime, UNIX_EPOCH},
};
use tokenizer::TextTokenizer;
use tokio::sync::{mpsc, oneshot, watch};
use worker::Command;

/// How long requests in work may take after Ctrl-C. A second Ctrl-C ends them.
const DRAIN_WITHIN: Duration = Duration::from_secs(60);
/// Between two looks for a newer checkpoint.
const LOOK_EVERY: Duration = Duration::from_secs(30);

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
    /// Serve the newest checkpoint that validators voted, and each newer one when there is one.
    #[arg(long)]
    published: bool,
    /// With --published: URL of the chain's JSON-RPC, such as ws://127.0.0.1:9944.
    #[arg(long, value_name = "URL", env = "METTLE_CHAIN")]
    chain: Option<String>,
    /// With --published: the hash of the chain's block 0; required but on a development chain.
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
    /// Texts that are continued at once; more wait.
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = count)]
    parallel: usize,
    /// Requests that wait; more are refused with 429.
    #[arg(long, value_name = "N", default_value_t = 32, value_parser = count)]
    queue: usize,
}

fn count(text: &str) -> Result<usize, String> {
    let count = text.parse().ok().filter(|count| (1..=1024).contains(count));
    count.ok_or_else(|| "a number from 1 to 1024".to_owned())
}

/// A model that is served.
struct Served {
    about: Arc<About>,
    evaluator: Evaluator,
    tokenizer: TextTokenizer,
}

/// What clients are told of a model. A slow client may need it for longer than the model is in memory.
struct About {
    /// What clients call it.
    name: String,
    seq_len: usize,
    /// The run and window that it is from, where it says so.
    of_run: Option<OfRun>,
    weights_root: Digest,
    /// When it was loaded, in seconds since 1970.
    created: u64,
}

impl Served {
    fn new(
        loaded: Loaded,
        weights_root: Digest,
        tokenizer: TextTokenizer,
        device: &str,
    ) -> anyhow::Result<Served> {
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

    fn seq_len(&self) -> usize {
        self.about.seq_len
    }

    fn vocab(&self) -> usize {
        self.evaluator.config().vocab
    }

    fn encode(&self, text: &str) -> Result<Vec<u32>, Refusal> {
        self.tokenizer.encode(text).map_err(|error| Refusal::new(StatusCode::BAD_REQUEST, error.to_string()))
    }

    fn decode(&self, tokens: &[u32]) -> Result<String, Refusal> {
        self.tokenizer
            .decode(tokens)
            .map_err(|error| Refusal::new(StatusCode::BAD_REQUEST, error.to_string()))
    }
}

/// The last part of a directory's name; a run's name as it is.
fn short_name(name: &str) -> String {
    name.trim_end_matches('/').rsplit('/').next().filter(|part| !part.is_empty()).unwrap_or(name).to_owned()
}

/// Serves until Ctrl-C.
pub(super) async fn serve(wanted: ServeModel, output: &mut Output<'_>) -> anyhow::Result<()> {
    let mut stop = StopSignal::listen();
    let (served, published) = match wanted.published {
        false => (tokio::task::block_in_place(|| of_directory(&wanted))?, None),
        true => tokio::select! {
            opened = Published::open(&wanted) => {
                let (published, served) = opened?;
                (served, Some(published))
            }
            () = stop.told() => return Ok(()),
        },
    };
    let service = Service::start(&wanted, served).await?;
    let served = service.newest.borrow().clone();
    let (url, model) = (format!("http://{}", service.server.address()), answer::model(&served.about));
    // A device may have no cache.
    let is_cached = served.evaluator.session(0).is_cached();
    let cache_bytes = is_cached.then(|| Session::bytes(served.evaluator.config(), served.seq_len()));
    let cache = cache_bytes.map_or(String::new(), |bytes| {
        format!(", each with a cache of at most {:.2} MiB", bytes as f64 / f64::from(1 << 20))
    });
    let text = format!(
        "{} is served at {url}/v1, with a page at {url}/; Ctrl-C ends it\n{} texts at once{cache}",
        served.about.name, wanted.parallel,
    );
    output.result(&text, json!({ "url": url, "model": model, "cache_bytes_max": cache_bytes }))?;
    drop(served);
    service.run(published, &mut stop).await
}

impl ServeModel {
    /// The settings of the node or the run.
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
    Served::new(loaded, root, words.tokenizer(&which)?, &which.device)
}

/// Server and worker.
struct Service {
    server: Server,
    commands: mpsc::Sender<Command>,
    /// The newest model.
    newest: watch::Sender<Arc<Served>>,
    /// How the worker ended.
    ended: oneshot::Receiver<anyhow::Result<()>>,
}

impl Service {
    async fn start(wanted: &ServeModel, served: Served) -> anyhow::Result<Service> {
        let (parallel, served) = (wanted.parallel, Arc::new(served));
        let (commands, receiver) = mpsc::channel(wanted.queue);
        let (newest, listed) = watch::channel(served.clone());
        let server = Server::start(wanted.listen, wanted.queue + parallel, listed, commands.clone())
            .await
            .with_context(|| {
                let address = wanted.listen;
                format!("could not listen at {address}: is the port free, and the address this machine's?")
            })?;
        let (tell, ended) = oneshot::channel();
        std::thread::Builder::new()
            .name("model".into())
            .spawn(move || {
                let ended = worker::run(served, parallel, receiver);
                // After a panic, the receiver hears that the sender is gone.
                let _ = tell.send(ended);
            })
            .context("could not start the model's thread")?;
        Ok(Service { server, commands, newest, ended })
    }

    /// Serves until `stop`, and then until all answers are sent.
    async fn run(self, published: Option<Published>, stop: &mut StopSignal) -> anyhow::Result<()> {
        let Service { server, commands, newest, mut ended } = self;
        tokio::select! {
            ended = &mut ended => return Err(failed(ended)),
            () = follow(published, &commands, &newest) => return Err(failed((&mut ended).await)),
            () = stop.told() => tracing::info!("no further requests; answers in work are finished"),
        }
        tokio::select! {
            () = server.drain() => Ok(()),
            ended = &mut ended => Err(failed(ended)),
            () = stop.told() => Ok(()),
            () = tokio::time::sleep(DRAIN_WITHIN) => {
                bail!("answers were not finished within {} s", DRAIN_WITHIN.as_secs())
            }
        }
    }
}

/// Hands each newer checkpoint to the worker. Returns only if the worker is gone.
async fn follow(
    published: Option<Published>,
    commands: &mpsc::Sender<Command>,
    newest: &watch::Sender<Arc<Served>>,
) {
    let Some(mut published) = published else { return std::future::pending().await };
    let mut earlier = Weak::new();
    loop {
        tokio::time::sleep(LOOK_EVERY).await;
        if 0 < earlier.strong_count() {
            // Texts in work still need the model before; a third is not loaded beside two.
            continue;
        }
        match published.newer().await {
            Ok(None) => {}
            Ok(Some(served)) => {
                let served = Arc::new(served);
                if commands.send(Command::Swap(served.clone())).await.is_err() {
                    return;
                }
                let window = served.about.of_run.as_ref().map(|of| of.window.0);
                tracing::info!(window, "later requests are answered by a newer model");
                earlier = Arc::downgrade(&newest.send_replace(served));
            }
            Err(error) => {
                tracing::warn!(error = format!("{error:#}"), "could not look for a newer checkpoint");
            }
        }
    }
}

/// Why the worker ended while it was needed.
fn failed(ended: Result<anyhow::Result<()>, oneshot::error::RecvError>) -> anyhow::Error {
    match ended {
        Ok(Err(error)) => error.context("the model has failed"),
        Ok(Ok(())) | Err(_) => anyhow!("the model's thread has ended"),
    }
}

#[cfg(test)]
mod tests;

#[cfg(test)]
mod testing {
    use super::*;
    use crate::model::testing::tokenizer;
    use model::{ModelConfig, init_flat};
    use protocol::{RunId, Window};

    /// A tiny model of 31 tokens and a context of 64.
    pub(super) fn served(seed: u64) -> Served {
        served_with(seed, 64)
    }

    pub(super) fn served_with(seed: u64, seq_len: usize) -> Served {
        let config = ModelConfig { vocab: 31, seq_len, ..ModelConfig::preset("117k").unwrap() };
        // Weights as if trained: with the initial ones, all tokens are about as likely.
        let flat: Vec<f32> = init_flat(&config, seed).unwrap().into_iter().map(|value| value * 4.0).collect();
        let root = lineage::weights_root(&flat);
        let of_run = OfRun { run: RunId(7), window: Window(3), lineage: Digest::of(b"lineage") };
        let loaded = Loaded { name: "tiny".into(), config, theta: flat.into(), of_run: Some(of_run) };
        Served::new(loaded, root, tokenizer(), "cpu").unwrap()
    }

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

    #[test]
    fn a_directory_s_model_has_the_name_of_the_directory() {
        assert_eq!(short_name("/models/my-model/"), "my-model");
        assert_eq!(short_name("my-model"), "my-model");
        assert_eq!(short_name("/"), "/");
    }
}
