//! A development chain, its keys, and impatient clients.

pub mod proxy;

use embedded_chain::{Config, EmbeddedChain, Sealing};
use mettle_chain_client::{Amount, Chain as _, Head, SubxtChain, Timing, account, keys::Key};
use protocol::{Block, Digest, RunParams, Schedule, Terms, view::RunView};
use std::{
    net::Ipv4Addr,
    sync::atomic::{AtomicU8, Ordering::Relaxed},
    time::Duration,
};
use subxt::rpcs::{RpcClient, rpc_params};

/// Starts a chain that makes 25 blocks per second; finality trails by two.
pub async fn busy_chain() -> EmbeddedChain {
    start(busy()).await
}

pub fn busy() -> Config {
    Config { block_interval: Duration::from_millis(40), finality_lag: 2, ..Config::default() }
}

/// Starts a chain that makes a block with each transaction, and at the test's request.
pub async fn chain_without_a_clock() -> EmbeddedChain {
    start(Config { sealing: Sealing::Instant, ..Config::default() }).await
}

/// Starts a chain that makes blocks only at the test's request.
pub async fn idle_chain(finality_lag: u32) -> EmbeddedChain {
    start(Config { sealing: Sealing::Manual, finality_lag, ..Config::default() }).await
}

pub async fn start(config: Config) -> EmbeddedChain {
    EmbeddedChain::start(config).await.unwrap()
}

/// Returns `config` at an address of this process alone, so that a chain can restart at the same port.
pub fn at_home(config: Config) -> Config {
    static HOMES: AtomicU8 = AtomicU8::new(2);
    let home =
        Ipv4Addr::new(127, 0, 0, if cfg!(target_os = "linux") { HOMES.fetch_add(1, Relaxed) } else { 1 });
    Config { listen: (home, 0).into(), ..config }
}

/// Waits until a call is in the chain's pool, and returns the pool.
pub async fn until_pooled(chain: &EmbeddedChain) -> Vec<String> {
    let client = RpcClient::from_insecure_url(chain.url()).await.unwrap();
    loop {
        let pooled: Vec<String> = client.request("author_pendingExtrinsics", rpc_params![]).await.unwrap();
        if !pooled.is_empty() {
            return pooled;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Waits until `late` has received the latest block of `early`.
pub async fn catch_up(late: &SubxtChain, early: &SubxtChain) {
    wait_for(late, head(early).block).await;
}

pub fn dev(path: &str) -> Key {
    Key::dev(path).unwrap()
}

/// Fails after `patience`; until then retries quickly, and tolerates a busy machine.
pub fn patient_for(patience: Duration) -> Timing {
    Timing {
        connect: Duration::from_secs(120),
        patience,
        request: Duration::from_secs(20),
        heartbeat: Duration::from_millis(300),
        retry: Duration::from_millis(50),
        backoff_first: Duration::from_millis(20),
        backoff_longest: Duration::from_millis(200),
        ..Timing::default()
    }
}

/// Fails only if a test hangs.
pub fn patient() -> Timing {
    patient_for(Duration::from_secs(240))
}

pub async fn client(url: &str, key: &str) -> SubxtChain {
    SubxtChain::connect_timed(url, Some(dev(key)), None, patient()).await.unwrap()
}

pub async fn free(chain: &SubxtChain, key: &Key) -> Amount {
    chain.balance(&key.account()).await.unwrap().free
}

/// Creates a run, signed by the client's key, whose window 0 opens at block `start`.
pub async fn create_run(chain: &SubxtChain, start: u32) -> RunView {
    let schedule = Schedule {
        start: Block(start),
        blocks_per_window: 60,
        commit_by: 40,
        reveal_by: 44,
        attest_by: 50,
        vote_by: 55,
    };
    let wish = account::RunRequest {
        params: RunParams { schedule, localnet: true, ..RunParams::default() },
        terms: Terms::default(),
        spec: Digest::of(b"spec"),
        manifest: Digest::of(b"manifest"),
        theta0: Digest::of(b"theta0"),
        origin: "http://127.0.0.1:9000/origin".into(),
    };
    account::create_run(chain, &wish).await.unwrap()
}

/// Returns the latest finalised block that a client has received.
pub fn head(client: &SubxtChain) -> Head {
    *client.heads().borrow()
}

/// Waits until a client has received `block` as final, and returns the latest finalised block.
pub async fn wait_for(client: &SubxtChain, block: Block) -> Head {
    *client.heads().wait_for(|head| head.block >= block).await.unwrap()
}
