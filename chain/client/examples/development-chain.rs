//! A chain with a run on it, for developers of wallets and dashboards.
//!
//! ```text
//! cargo run -p mettle-chain-client --example development-chain              # on a free port
//! cargo run -p mettle-chain-client --example development-chain 9944         # on this port
//! cargo run -p mettle-chain-client --example development-chain ws://HOST:PORT
//! ```
//!
//! The first two serve an embedded development chain in memory, with a block every 0.3 s and finality two blocks
//! behind, until standard input ends. The third creates the run on a running chain, unless the development account
//! `//Alice` has created it there before, and ends. Each prints one line of JSON once the run is final:
//! `{"url":"ws://…","run":0}`.

use embedded_chain::{Config, EmbeddedChain};
use mettle_chain_client::{SubxtChain, account, keys::Key};
use protocol::{Block, Digest, RunParams, Schedule, Terms};
use std::{error::Error, io, net::Ipv4Addr, time::Duration};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let at = arguments.next().unwrap_or_else(|| "0".into());
    if let Some(more) = arguments.next() {
        return Err(format!("at most one argument, a port or a ws:// URL; unexpected: {more}").into());
    }
    if at.starts_with("ws://") || at.starts_with("wss://") {
        return tell_run_at(&at).await;
    }
    let port = at.parse().map_err(|_| format!("{at} is neither a port nor a ws:// URL"))?;
    let chain = EmbeddedChain::start(Config {
        listen: (Ipv4Addr::LOCALHOST, port).into(),
        block_interval: Duration::from_millis(300),
        finality_lag: 2,
        ..Config::default()
    })
    .await?;
    tell_run_at(&chain.url()).await?;
    tokio::task::spawn_blocking(|| io::copy(&mut io::stdin(), &mut io::sink())).await??;
    chain.shutdown().await;
    Ok(())
}

async fn tell_run_at(url: &str) -> Result<(), Box<dyn Error>> {
    let chain = SubxtChain::connect(url, Some(Key::dev("//Alice")?)).await?;
    // Its first window is far away: it only accepts registrations.
    let schedule = Schedule { start: Block(100_000_000), ..RunParams::default().schedule };
    let wish = account::RunRequest {
        params: RunParams { schedule, localnet: true, ..RunParams::default() },
        terms: Terms::default(),
        spec: Digest::of(b"a run to try clients with"),
        manifest: Digest::of(b"it has no data"),
        theta0: Digest::of(b"nor a model"),
        origin: "http://127.0.0.1:9000/origin".into(),
    };
    let run = account::create_run(&chain, &wish).await?;
    println!("{}", serde_json::json!({ "url": url, "run": run.id }));
    Ok(())
}
