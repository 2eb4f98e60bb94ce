#![doc = include_str!("../README.md")]

mod answer;
mod answer_text;
mod http;
mod loaded;
mod published;
mod request;
mod worker;

pub use answer_text::AnswerText;
pub use loaded::{Loaded, OfRun, Served, limit_context};
pub use published::{LoadOptions, Published};

use chain_client::ChainError;
use daemon::{
    error_chain,
    http::{DrainError, ListenError, Server},
    program::StopSignal,
};
use nn::ModelError;
use std::{
    io,
    net::SocketAddr,
    sync::{Arc, Weak},
    time::Duration,
};
use tokenizer::TokenizerError;
use tokio::sync::{mpsc, oneshot, watch};
use worker::Command;

/// Log target of messages for users: the client program shows lines of `mettle`.
const LOG: &str = "mettle::serve";
/// Interval between checks for a newer checkpoint.
const LOOK_EVERY: Duration = Duration::from_secs(30);

/// Reason why a model cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    #[error(
        "the tokenizer has {needed} tokens, but the model knows {vocab}: it was trained with another one"
    )]
    Vocabulary { needed: u32, vocab: usize },
    #[error("the model's context is from 1 to {max} tokens, not {context}")]
    Context { max: usize, context: usize },
    #[error("the run has no tokenizer")]
    NoTokenizer,
    #[error("the tokenizer cannot be used")]
    Tokenizer(#[from] TokenizerError),
    #[error(transparent)]
    Model(#[from] ModelError),
    #[error(transparent)]
    Run(Box<mettle_sdk::Error>),
    #[error("could not read the chain")]
    Chain(#[from] ChainError),
    #[error("could not make a directory for the download")]
    Directory(#[source] io::Error),
    #[error("could not start the model's thread")]
    Thread(#[source] io::Error),
    #[error(transparent)]
    Listen(#[from] ListenError),
    #[error("the model has failed")]
    Failed(#[source] Box<ServeError>),
    #[error("the model's thread has ended")]
    Ended,
    #[error(transparent)]
    Drain(#[from] DrainError),
}

impl From<mettle_sdk::Error> for ServeError {
    fn from(error: mettle_sdk::Error) -> ServeError {
        ServeError::Run(Box::new(error))
    }
}

/// The server and its worker.
pub struct Service {
    server: Server,
    commands: mpsc::Sender<Command>,
    /// The newest model.
    newest: watch::Sender<Arc<Served>>,
    /// The worker's result.
    ended: oneshot::Receiver<Result<(), ServeError>>,
}

impl Service {
    /// Serves `served` at `listen`. At most `parallel` texts are continued at once and `queue` requests wait; further
    /// ones are refused.
    ///
    /// # Errors
    /// If the address cannot be used, or the system has no free thread.
    pub async fn start(
        served: Served,
        listen: SocketAddr,
        parallel: usize,
        queue: usize,
    ) -> Result<Service, ServeError> {
        let served = Arc::new(served);
        let (commands, receiver) = mpsc::channel(queue);
        let (newest, listed) = watch::channel(served.clone());
        let server = http::start(listen, queue + parallel, listed, commands.clone()).await?;
        let (tell, ended) = oneshot::channel();
        std::thread::Builder::new()
            .name("model".into())
            .spawn(move || {
                let ended = worker::run(served, parallel, receiver);
                // After a panic, the receiver sees a dropped sender.
                let _ = tell.send(ended);
            })
            .map_err(ServeError::Thread)?;
        Ok(Service { server, commands, newest, ended })
    }

    pub fn url(&self) -> String {
        format!("http://{}", self.server.address())
    }

    /// Returns the newest model.
    pub fn newest(&self) -> Arc<Served> {
        self.newest.borrow().clone()
    }

    /// Serves until `stop`, and then until all answers are sent. Also serves each newer checkpoint of `published`.
    ///
    /// # Errors
    /// If the model fails, or answers take longer than a minute to be sent.
    pub async fn run(self, published: Option<Published>, stop: &mut StopSignal) -> Result<(), ServeError> {
        let Service { server, commands, newest, mut ended } = self;
        tokio::select! {
            ended = &mut ended => return Err(failed(ended)),
            () = follow(published, &commands, &newest) => return Err(failed((&mut ended).await)),
            () = stop.told() => tracing::info!(target: LOG, "no further requests; answers in work are finished"),
        }
        tokio::select! {
            drained = server.drain() => Ok(drained?),
            ended = &mut ended => Err(failed(ended)),
            () = stop.told() => Ok(()),
        }
    }
}

/// Sends each newer checkpoint to the worker. Returns only if the worker has ended.
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
            // Texts in progress still need the previous model; a third one is not loaded beside two.
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
                tracing::info!(target: LOG, window, "later requests are answered by a newer model");
                earlier = Arc::downgrade(&newest.send_replace(served));
            }
            Err(error) => {
                tracing::warn!(error = error_chain(&error), "could not look for a newer checkpoint");
            }
        }
    }
}

/// Returns the reason why the worker ended early.
fn failed(ended: Result<Result<(), ServeError>, oneshot::error::RecvError>) -> ServeError {
    match ended {
        Ok(Err(error)) => ServeError::Failed(Box::new(error)),
        Ok(Ok(())) | Err(_) => ServeError::Ended,
    }
}

#[cfg(test)]
mod tests;

#[cfg(test)]
mod testing {
    use super::*;
    use model::{ModelConfig, init_flat};
    use protocol::{Digest, RunId, Window, lineage};
    use serde_json::json;
    use tokenizer::TextTokenizer;

    /// Creates a byte-level tokenizer of `<eos>`, small letters, the space and é, with one merge: space and a.
    pub(crate) fn tokenizer() -> TextTokenizer {
        TextTokenizer::from_json(include_bytes!("../tests/tokenizer.json").to_vec(), None).unwrap()
    }

    /// Creates a tokenizer like SentencePiece's: words begin with their space, other characters are bytes, and
    /// decoding removes the space before the first word. It is written as in Llama's file, or as in Gemma's and T5's.
    pub(crate) fn sentencepiece(is_llama: bool) -> TextTokenizer {
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

    /// Creates a tiny model of 31 tokens and a context of 64.
    pub(crate) fn served(seed: u64) -> Served {
        served_with(seed, 64)
    }

    pub(crate) fn served_with(seed: u64, seq_len: usize) -> Served {
        let config = ModelConfig { vocab: 31, seq_len, ..ModelConfig::preset("117k").unwrap() };
        // Scaled like trained weights: with the initial ones, all tokens are about equally likely.
        let flat: Vec<f32> = init_flat(&config, seed).unwrap().into_iter().map(|value| value * 4.0).collect();
        let root = lineage::weights_root(&flat);
        let of_run = OfRun { run: RunId(7), window: Window(3), lineage: Digest::of(b"lineage") };
        let loaded = Loaded { name: "tiny".into(), config, theta: flat.into(), of_run: Some(of_run) };
        Served::new(loaded, root, tokenizer(), "cpu").unwrap()
    }
}
