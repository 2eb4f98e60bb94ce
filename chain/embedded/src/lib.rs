#![doc = include_str!("../README.md")]

mod chain;
mod execute;
mod genesis;
mod pool;
mod rpc;
mod state;
mod store;

pub use chain::{Head, Heads, SealError};
pub use execute::{BuildError, CallError};
pub use pool::PoolLimits;
pub use sp_core::{H256, crypto::AccountId32};
pub use store::StoreError;

use chain::Chain;
use execute::Runtime;
use futures::future::BoxFuture;
use jsonrpsee::server::{PingConfig, Server, ServerConfig, ServerHandle};
use std::{
    future::Future,
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener},
    path::PathBuf,
    sync::Arc,
    time::Duration,
};
use store::{Keep, Store};
use tokio::{
    sync::watch,
    task::JoinHandle,
    time::{MissedTickBehavior, interval, timeout},
};

/// Blocks in a row that the runtime may fail to make before the chain gives up.
const FAILURES_MAX: u32 = 10;
const SHUTDOWN_MAX: Duration = Duration::from_secs(5);
const CONNECTIONS_MAX: u32 = 1024;
const REQUEST_BYTES_MAX: u32 = 15 << 20;

/// How a chain is started. `Config::default()` is one in memory on a free port of this machine.
#[derive(Clone, Debug)]
pub struct Config {
    /// Where the JSON-RPC is served. Port 0 takes any that is free.
    pub listen: SocketAddr,
    /// Where the chain is kept; nowhere if there is none, and then it ends with the process. The directory is the chain's
    /// alone.
    pub dir: Option<PathBuf>,
    pub sealing: Sealing,
    /// How often a block is made, if `sealing` is by interval.
    pub block_interval: Duration,
    /// How many blocks the finalised head is behind the best one.
    pub finality_lag: u32,
    /// The genesis preset of the runtime: `development` or `local_testnet`.
    pub preset: String,
    /// Laid over the preset: objects are merged, everything else is replaced.
    pub genesis_patch: Option<serde_json::Value>,
    /// Accounts that have this much at genesis (in units of 10⁻¹² MTL, up to 2⁶⁴ − 1), besides the preset's.
    pub endowments: Vec<(AccountId32, u128)>,
    /// So many of the last finalised blocks have their state and extrinsics, at least one.
    pub keep_states: u32,
    /// So many of them have their header.
    pub keep_headers: u32,
    pub pool: PoolLimits,
    /// Whether anybody who can connect may make and drop blocks (`engine_createBlock`, `engine_dropUnfinalized`).
    pub engine_rpc: bool,
}

/// When a block is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sealing {
    /// At every interval, whether or not there is something to put in.
    Interval,
    /// As soon as there is a transaction. With a finality lag it is final only when others have followed.
    Instant,
    /// When told to.
    Manual,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            listen: SocketAddr::from((Ipv4Addr::LOCALHOST, 0)),
            dir: None,
            sealing: Sealing::Interval,
            block_interval: Duration::from_millis(500),
            finality_lag: 0,
            preset: "development".into(),
            genesis_patch: None,
            endowments: Vec::new(),
            keep_states: 256,
            keep_headers: 16_384,
            pool: PoolLimits::default(),
            engine_rpc: true,
        }
    }
}

/// Why the chain did not start. Nothing was changed on disk.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    #[error("another program already listens at {listen}: stop it, or choose another port")]
    PortTaken { listen: SocketAddr },
    #[error("could not listen at {listen}")]
    Listen { listen: SocketAddr, source: io::Error },
    #[error("the runtime has no genesis preset named `{preset}`")]
    UnknownPreset { preset: String },
    #[error("the genesis cannot be built: {reason}")]
    Genesis { reason: String },
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// A running chain. Dropping it stops it without waiting.
pub struct EmbeddedChain {
    chain: Arc<Chain>,
    address: SocketAddr,
    server: ServerHandle,
    maker: JoinHandle<()>,
    stop: watch::Sender<bool>,
    fault: watch::Receiver<Option<Arc<SealError>>>,
}

impl EmbeddedChain {
    /// Starts the chain, or goes on with the one in `config.dir`. To be called within a tokio runtime.
    pub fn start(config: Config) -> BoxFuture<'static, Result<EmbeddedChain, StartError>> {
        Box::pin(EmbeddedChain::open(config))
    }

    async fn open(config: Config) -> Result<EmbeddedChain, StartError> {
        let listener = listen(config.listen)?;
        let address = listener.local_addr().map_err(|source| cannot_listen(config.listen, source))?;

        let settings = config.clone();
        let opened = tokio::task::spawn_blocking(move || open(&settings)).await;
        let chain = Arc::new(opened.expect("opening the chain does not panic")?);

        let limits = ServerConfig::builder()
            .max_connections(CONNECTIONS_MAX)
            .max_request_body_size(REQUEST_BYTES_MAX)
            .max_response_body_size(REQUEST_BYTES_MAX)
            .enable_ws_ping(PingConfig::new())
            .build();
        let server = Server::builder()
            .set_config(limits)
            .build_from_tcp(listener)
            .map_err(|source| cannot_listen(config.listen, source))?;
        let server = server.start(rpc::module(chain.clone(), config.engine_rpc));

        let (stop, stopping) = watch::channel(false);
        let (failed, fault) = watch::channel(None);
        let making = make_blocks(chain.clone(), config.sealing, config.block_interval, stopping);
        let maker = tokio::spawn(async move {
            if let Err(error) = making.await {
                tracing::error!(error = &error as &dyn std::error::Error, "the chain makes no more blocks");
                failed.send_replace(Some(Arc::new(error)));
            }
        });
        let chain = EmbeddedChain { chain, address, server, maker, stop, fault };
        let best = chain.best();
        tracing::info!(url = chain.url(), block = best.number, hash = ?best.hash, "a development chain is up");
        Ok(chain)
    }

    /// Where a client on this machine connects.
    pub fn url(&self) -> String {
        let ip = match self.address.ip() {
            ip if !ip.is_unspecified() => ip,
            IpAddr::V4(_) => Ipv4Addr::LOCALHOST.into(),
            IpAddr::V6(_) => Ipv6Addr::LOCALHOST.into(),
        };
        format!("ws://{}", SocketAddr::new(ip, self.address.port()))
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    pub fn genesis_hash(&self) -> H256 {
        self.chain.hash_of(0).expect("the genesis block is always kept")
    }

    pub fn best(&self) -> Head {
        self.chain.heads().borrow().best
    }

    pub fn finalised(&self) -> Head {
        self.chain.heads().borrow().finalised
    }

    /// The ends of the chain, as they move.
    pub fn heads(&self) -> watch::Receiver<Heads> {
        self.chain.heads()
    }

    /// The hash of a block of the canonical chain, if it is there and its header is kept.
    pub fn hash_of(&self, number: u32) -> Option<H256> {
        self.chain.hash_of(number)
    }

    /// Makes a block now.
    pub async fn seal_now(&self) -> Result<Head, SealError> {
        blocking(&self.chain, Chain::seal).await
    }

    /// A fault to test with: the chain goes back to its finalised head and goes on with other blocks. The transactions of
    /// the dropped ones return to the pool. Returns how many blocks were dropped.
    pub async fn drop_unfinalised(&self) -> Result<u32, SealError> {
        blocking(&self.chain, Chain::drop_unfinalised).await
    }

    /// Waits until the chain has stopped making blocks by itself, and says why: its disk, or its runtime.
    pub fn failed(&self) -> impl Future<Output = Arc<SealError>> + Send + 'static {
        let mut fault = self.fault.clone();
        async move {
            match fault.wait_for(Option::is_some).await.map(|error| error.clone()) {
                Ok(Some(error)) => error,
                // It was shut down without a fault.
                Ok(None) | Err(_) => std::future::pending().await,
            }
        }
    }

    /// Makes no further block, but goes on answering from those there are: a chain that stands still. The directory is let
    /// go.
    pub fn halt(&self) {
        self.stop.send_replace(true);
        self.chain.stop();
    }

    /// Finishes the block in hand, closes every connection and lets go of the port and the directory.
    pub async fn shutdown(mut self) {
        self.stop.send_replace(true);
        if timeout(SHUTDOWN_MAX, &mut self.maker).await.is_err() {
            tracing::warn!("a block was still being made when the chain was stopped");
        }
        let _ = self.server.stop();
        if timeout(SHUTDOWN_MAX, self.server.clone().stopped()).await.is_err() {
            tracing::warn!("a connection was still open when the chain was stopped");
        }
    }
}

impl Drop for EmbeddedChain {
    fn drop(&mut self) {
        self.stop.send_replace(true);
        // It fails only if it was stopped before.
        let _ = self.server.stop();
        self.chain.stop();
    }
}

/// Everything that touches the runtime or the disk.
fn open(config: &Config) -> Result<Chain, StartError> {
    let runtime = Runtime::native();
    let keep = Keep { states: config.keep_states.max(1), headers: config.keep_headers };
    let genesis = genesis::build(&runtime, config)?;
    let saved = match &config.dir {
        Some(dir) => Some(Store::open(dir, keep, &genesis, &runtime.version)?),
        None => None,
    };
    Ok(Chain::new(runtime, genesis, saved, keep, config.finality_lag, config.pool)?)
}

/// Makes one block after the other until it is told to stop or cannot.
async fn make_blocks(
    chain: Arc<Chain>,
    sealing: Sealing,
    every: Duration,
    mut stop: watch::Receiver<bool>,
) -> Result<(), SealError> {
    let mut ticks = interval(every.max(Duration::from_millis(1)));
    // A machine that was asleep makes the next block, not all that it missed.
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    ticks.reset();
    let mut failures = 0;
    loop {
        let due = async {
            match sealing {
                Sealing::Interval => {
                    ticks.tick().await;
                }
                Sealing::Instant => chain.work.notified().await,
                Sealing::Manual => std::future::pending().await,
            }
        };
        tokio::select! {
            _ = stop.wait_for(|stop| *stop) => return Ok(()),
            () = due => {}
        }
        match blocking(&chain, Chain::seal).await {
            Ok(head) => {
                failures = 0;
                tracing::debug!(number = head.number, hash = ?head.hash, "a block");
                // What one block had no room for asks for another.
                if sealing == Sealing::Instant && !chain.pending().is_empty() {
                    chain.work.notify_one();
                }
            }
            Err(SealError::Stopped) => return Ok(()),
            Err(error @ SealError::Build { .. }) if failures + 1 < FAILURES_MAX => {
                failures += 1;
                tracing::error!(error = &error as &dyn std::error::Error, "no block");
            }
            Err(error) => return Err(error),
        }
    }
}

async fn blocking<R: Send + 'static>(chain: &Arc<Chain>, f: fn(&Chain) -> R) -> R {
    let chain = chain.clone();
    tokio::task::spawn_blocking(move || f(&chain)).await.expect("the chain's own code does not panic")
}

fn listen(at: SocketAddr) -> Result<TcpListener, StartError> {
    let listener = TcpListener::bind(at).map_err(|source| cannot_listen(at, source))?;
    listener.set_nonblocking(true).map_err(|source| cannot_listen(at, source))?;
    Ok(listener)
}

fn cannot_listen(listen: SocketAddr, source: io::Error) -> StartError {
    if source.kind() == io::ErrorKind::AddrInUse {
        return StartError::PortTaken { listen };
    }
    StartError::Listen { listen, source }
}
