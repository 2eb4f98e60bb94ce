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
pub use sp_core::H256;
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

/// Number of consecutive failures to make a block after which block production ends.
const FAILURES_MAX: u32 = 10;
const SHUTDOWN_MAX: Duration = Duration::from_secs(5);
const CONNECTIONS_MAX: u32 = 1024;
const REQUEST_BYTES_MAX: u32 = 15 << 20;

/// Settings of a chain. By default it is in memory, on a free local port.
#[derive(Clone, Debug)]
pub struct Config {
    /// Address of the JSON-RPC server. Port 0 takes a free one.
    pub listen: SocketAddr,
    /// Directory of the chain; `None` keeps the chain in memory.
    pub dir: Option<PathBuf>,
    pub sealing: Sealing,
    /// Time between blocks with `Sealing::Interval`. It is the length of a slot, which is part of the genesis, so that
    /// the chain's time follows the clock.
    pub block_interval: Duration,
    /// Number of blocks by which the finalised head is behind the best one.
    pub finality_lag: u32,
    /// Changes to the genesis of the runtime's development preset: objects are merged, other values replaced.
    pub genesis_patch: Option<serde_json::Value>,
    /// Number of the last finalised blocks that keep state and extrinsics; at least one.
    pub keep_states: u32,
    /// Number of the last finalised blocks that keep their header.
    pub keep_headers: u32,
    pub pool: PoolLimits,
}

/// Trigger of block production.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sealing {
    /// At every interval, even without transactions.
    Interval,
    /// For each transaction. With a finality lag, it becomes final only when more blocks follow.
    Instant,
    /// On request only.
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
            genesis_patch: None,
            keep_states: 256,
            keep_headers: 16_384,
            pool: PoolLimits::default(),
        }
    }
}

/// Error of starting the chain. Nothing on disk was changed.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    #[error("another program listens at {listen}: stop it, or choose another port")]
    PortTaken { listen: SocketAddr },
    #[error("cannot listen at {listen}")]
    Listen { listen: SocketAddr, source: io::Error },
    #[error("cannot build the genesis: {reason}")]
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
    /// Starts the chain, or resumes the one in `config.dir`. Call it within a tokio runtime.
    ///
    /// # Errors
    /// Fails if the address is taken, the genesis is invalid, or the directory cannot be used.
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
        let server = server.start(rpc::module(chain.clone()));

        let (stop, stopping) = watch::channel(false);
        let (failed, fault) = watch::channel(None);
        let making = make_blocks(chain.clone(), config.sealing, config.block_interval, stopping);
        let maker = tokio::spawn(async move {
            if let Err(error) = making.await {
                tracing::error!(error = &error as &dyn std::error::Error, "block production has ended");
                failed.send_replace(Some(Arc::new(error)));
            }
        });
        let chain = EmbeddedChain { chain, address, server, maker, stop, fault };
        let best = chain.best();
        tracing::info!(url = chain.url(), block = best.number, hash = ?best.hash, "development chain started");
        Ok(chain)
    }

    /// Returns the WebSocket URL for clients on this machine.
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
        self.chain.hash_of(0).expect("the genesis block is always stored")
    }

    pub fn best(&self) -> Head {
        self.chain.heads().borrow().best
    }

    pub fn finalised(&self) -> Head {
        self.chain.heads().borrow().finalised
    }

    /// Returns the best and finalised heads, as they change.
    pub fn heads(&self) -> watch::Receiver<Heads> {
        self.chain.heads()
    }

    /// Returns the hash of a canonical block, if its header is stored.
    pub fn hash_of(&self, number: u32) -> Option<H256> {
        self.chain.hash_of(number)
    }

    /// Makes a block now.
    ///
    /// # Errors
    /// Fails if the runtime or the disk fails; the chain is unchanged.
    ///
    /// # Cancel safety
    /// The block is made even if the future is dropped.
    pub async fn seal_now(&self) -> Result<Head, SealError> {
        blocking(&self.chain, Chain::seal).await
    }

    /// For tests: drops the unfinalised blocks and returns their transactions to the pool. Returns the number of
    /// dropped blocks.
    ///
    /// # Errors
    /// Fails if the chain has been stopped.
    pub async fn drop_unfinalised(&self) -> Result<u32, SealError> {
        blocking(&self.chain, Chain::drop_unfinalised).await
    }

    /// Waits until block production fails, and returns the error.
    pub fn failed(&self) -> impl Future<Output = Arc<SealError>> + Send + 'static {
        let mut fault = self.fault.clone();
        async move {
            match fault.wait_for(Option::is_some).await.map(|error| error.clone()) {
                Ok(Some(error)) => error,
                // Shut down without an error.
                Ok(None) | Err(_) => std::future::pending().await,
            }
        }
    }

    /// Stops block production and releases the directory, but continues to answer queries: simulates a stalled chain.
    pub fn halt(&self) {
        self.stop.send_replace(true);
        self.chain.stop();
    }

    /// Finishes the current block, closes all connections, and releases port and directory.
    pub async fn shutdown(mut self) {
        self.stop.send_replace(true);
        if timeout(SHUTDOWN_MAX, &mut self.maker).await.is_err() {
            tracing::warn!("block production did not end in time");
        }
        let _ = self.server.stop();
        if timeout(SHUTDOWN_MAX, self.server.clone().stopped()).await.is_err() {
            tracing::warn!("a connection did not close in time");
        }
    }
}

impl Drop for EmbeddedChain {
    fn drop(&mut self) {
        self.stop.send_replace(true);
        // Fails only if it was already stopped.
        let _ = self.server.stop();
        self.chain.stop();
    }
}

/// Performs the blocking part of a start.
fn open(config: &Config) -> Result<Chain, StartError> {
    let runtime = Runtime::native();
    let keep = Keep { states: config.keep_states.max(1), headers: config.keep_headers };
    let slot = match config.sealing {
        Sealing::Interval => Some(config.block_interval),
        Sealing::Instant | Sealing::Manual => None,
    };
    let genesis = genesis::build(&runtime, slot, config.genesis_patch.clone())
        .map_err(|reason| StartError::Genesis { reason })?;
    let saved = match &config.dir {
        Some(dir) => Some(Store::open(dir, keep, &genesis, &runtime.version, runtime.oldest_state)?),
        None => None,
    };
    Ok(Chain::new(runtime, genesis, saved, keep, config.finality_lag, config.pool)?)
}

/// Makes blocks until it is stopped or fails.
async fn make_blocks(
    chain: Arc<Chain>,
    sealing: Sealing,
    every: Duration,
    mut stop: watch::Receiver<bool>,
) -> Result<(), SealError> {
    let mut ticks = interval(every.max(Duration::from_millis(1)));
    // After a suspend, make the next block rather than all missed ones.
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
                tracing::debug!(number = head.number, hash = ?head.hash, "block made");
                // Transactions that did not fit need another block.
                if sealing == Sealing::Instant && !chain.pending().is_empty() {
                    chain.work.notify_one();
                }
            }
            Err(SealError::Stopped) => return Ok(()),
            Err(error @ SealError::Build { .. }) if failures + 1 < FAILURES_MAX => {
                failures += 1;
                tracing::error!(error = &error as &dyn std::error::Error, "no block made");
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
