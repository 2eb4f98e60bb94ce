//! A node's peers (PROT-34): the addresses of validators, the contributions that they accept, and the location of
//! contributions that are not in a bucket.

mod admission;
mod fetch;
mod offer;
mod reach;
mod records;

pub use offer::PeerStore;

use crate::{config::PeerFile, error_chain};
use admission::Judge;
use anyhow::{Context as _, bail};
use bytes::Bytes;
use chain_client::{Chain, ChainError};
use futures::future::BoxFuture;
use network::{
    AddressLimits, AnyFetcher, Network, NetworkSettings, NodeKey, PeerFetcher, PeerUrl, PutServer,
    serve_blobs,
};
use protocol::{
    Block, GenesisHash, Hotkey, Role, RunId, Schedule, Window,
    identity::Signer,
    keys,
    peer::{PeerRecord, RECEIVERS_ASKED_MAX, receivers},
    view::{RunView, SeatView, WindowView},
};
use records::{Known, announced, publish_record};
use std::{
    collections::{BTreeMap, HashSet},
    ops::Range,
    path::Path,
    sync::{Arc, Mutex},
    time::Duration,
};
use store::{DirectoryStore, Fetch, Store};
use tokio::{sync::Mutex as AsyncMutex, time::Instant};

/// Name of the file with the node's own key in its directory.
pub const KEY_FILE: &str = "node.key";
/// Name of the folder of contributions that peers sent.
const INBOX: &str = "inbox";
/// Interval between tries to publish the own addresses, and between offers to all validators.
const RETRY: Duration = Duration::from_secs(30);

/// The network of a node, with its knowledge of the run's validators. As a [`Fetch`] it reads from buckets and peers,
/// and requests the contributions of seats without a bucket from their receivers.
pub struct Peers {
    pub network: Arc<Network>,
    any: AnyFetcher,
    http: Arc<dyn Fetch>,
    chain: Arc<dyn Chain>,
    genesis: GenesisHash,
    run: RunId,
    schedule: Schedule,
    /// The contributions that peers sent, on a validator.
    inbox: Option<Arc<DirectoryStore>>,
    records: Mutex<BTreeMap<Hotkey, Arc<AsyncMutex<Option<Known>>>>>,
    /// Periods in which validators are not contacted, because an attempt failed or may fail.
    silent: Mutex<BTreeMap<Hotkey, Range<Instant>>>,
    /// The latest window read after its commit deadline. The parts of it that are used no longer change.
    window: AsyncMutex<Option<Arc<Committed>>>,
}

/// The validators that should receive a contribution.
struct Receivers<'a> {
    /// The reachable receivers in order, with their addresses.
    found: Vec<(&'a SeatView, Vec<PeerUrl>)>,
    /// True if the addresses of some are unknown.
    some_unknown: bool,
}

/// A window after its commit deadline.
struct Committed {
    view: WindowView,
    seats: Vec<SeatView>,
}

impl Peers {
    /// Starts the network of a seat. A validator gets an inbox; only one with `[peer]` accepts connections.
    ///
    /// # Errors
    /// If the node key, the inbox or the ports cannot be used.
    pub async fn open(
        file: &PeerFile,
        role: Role,
        directory: &Path,
        chain: &Arc<dyn Chain>,
        run: &RunView,
        http: &Arc<dyn Fetch>,
    ) -> anyhow::Result<Arc<Peers>> {
        let key = NodeKey::open_or_create(&directory.join(KEY_FILE))?;
        Peers::open_with(key, file, role, directory, chain, run, http).await
    }

    /// Starts the network of a read-only miner, with a temporary key.
    ///
    /// # Errors
    /// If there is no transport.
    pub async fn look(
        chain: &Arc<dyn Chain>,
        run: &RunView,
        http: &Arc<dyn Fetch>,
    ) -> anyhow::Result<Arc<Peers>> {
        let (key, file) = (NodeKey::generate()?, PeerFile::default());
        Peers::open_with(key, &file, Role::Miner, Path::new(""), chain, run, http).await
    }

    async fn open_with(
        key: NodeKey,
        file: &PeerFile,
        role: Role,
        directory: &Path,
        chain: &Arc<dyn Chain>,
        run: &RunView,
        http: &Arc<dyn Fetch>,
    ) -> anyhow::Result<Arc<Peers>> {
        let (genesis, is_localnet) = (chain.genesis(), run.params.localnet && chain.is_development());
        let settings = NetworkSettings {
            key,
            genesis,
            listen: file.listen,
            allow_private: is_localnet,
            // All nodes of a localnet have the same address.
            limits: AddressLimits { loopback: !is_localnet, ..AddressLimits::default() },
        };
        let network = Arc::new(Network::start(settings).await?);
        if file.listen.is_some() {
            // Until the seats are known, every peer is a stranger.
            network.reserve_for(HashSet::new());
        }
        let inbox = match role {
            Role::Validator => {
                let path = directory.join(INBOX);
                let opened = DirectoryStore::open(&path);
                Some(Arc::new(opened.with_context(|| format!("could not use {}", path.display()))?))
            }
            Role::Miner => None,
        };
        let peers = Some(PeerFetcher::new(network.clone()));
        Ok(Arc::new(Peers {
            any: AnyFetcher { http: http.clone(), peers },
            network,
            http: http.clone(),
            chain: chain.clone(),
            genesis,
            run: run.id,
            schedule: run.params.schedule,
            inbox,
            records: Mutex::default(),
            silent: Mutex::default(),
            window: AsyncMutex::default(),
        }))
    }

    /// Serves a validator's objects, accepts contributions of at most `bytes_max`, and publishes the validator's
    /// addresses in its bucket.
    ///
    /// # Errors
    /// If other nodes cannot use the addresses.
    pub fn serve(
        self: &Arc<Peers>,
        file: &PeerFile,
        bytes_max: u64,
        store: &Arc<dyn Store>,
        signer: &Signer,
    ) -> anyhow::Result<()> {
        let Some(inbox) = &self.inbox else { return Ok(()) };
        let key = keys::peer(&signer.hotkey());
        let Some(listen) = file.listen else {
            // Keeps miners from searching for this validator at its former addresses.
            let store = store.clone();
            tokio::spawn(async move {
                if let Err(error) = store.delete(&key).await {
                    let error = error_chain(&error);
                    tracing::warn!(error, "could not remove this validator's former addresses");
                }
            });
            return Ok(());
        };
        let addresses = announced(&self.network, listen, file.announce)?;
        serve_blobs(&self.network, vec![inbox.clone(), store.clone()])?;
        let judge = Judge::new(self.clone(), bytes_max);
        PutServer::new(Arc::new(judge), inbox.clone()).serve(&self.network)?;

        let addresses: Vec<String> = addresses.iter().map(ToString::to_string).collect();
        tracing::info!(?addresses, "peers reach this validator");
        let signer = signer.clone();
        let seal = move |block| {
            let record = PeerRecord { hotkey: signer.hotkey(), block, addresses: addresses.clone() };
            record.seal(&signer).map(Bytes::from)
        };
        seal(Block(0)).context("the addresses under [peer] fit into no record")?;
        tokio::spawn(publish_record(Arc::downgrade(self), store.clone(), key, seal));
        Ok(())
    }

    /// Returns a window after its commit deadline; `None` before that.
    async fn committed(&self, window: Window) -> Result<Option<Arc<Committed>>, ChainError> {
        let mut held = self.window.lock().await;
        if let Some(committed) = held.as_ref().filter(|committed| committed.view.window == window) {
            return Ok(Some(committed.clone()));
        }
        if self.chain.heads().borrow().block <= self.schedule.commit_deadline(window) {
            return Ok(None);
        }
        let Some(view) = self.chain.window(self.run, window).await? else { return Ok(None) };
        let seats = self.chain.seats(self.run).await?;
        let (hotkeys, committed) =
            (seats.iter().map(|seat| seat.hotkey).collect::<Vec<_>>(), Committed { view, seats });
        self.records().retain(|hotkey, _| hotkeys.contains(hotkey));
        self.silent().retain(|hotkey, when| hotkeys.contains(hotkey) && Instant::now() < when.end);
        Ok(Some(held.insert(Arc::new(committed)).clone()))
    }

    /// Returns, in order, the receivers of the contributions of a seat with this endpoint, as far as their addresses
    /// are known.
    async fn receivers<'a>(&self, committed: &'a Committed, endpoint: &str) -> Receivers<'a> {
        let (mut found, mut some_unknown) = (Vec::new(), false);
        for uid in receivers(&committed.view, self.run, endpoint) {
            let seat = committed.seats.iter().find(|seat| seat.id.uid == uid && seat.role == Role::Validator);
            let Some(seat) = seat else { continue };
            match self.addresses(seat).await {
                None => some_unknown = true,
                Some(urls) if urls.is_empty() => {}
                Some(urls) => found.push((seat, urls)),
            }
            if found.len() == RECEIVERS_ASKED_MAX {
                break;
            }
        }
        Receivers { found, some_unknown }
    }
}

/// Returns the endpoint of a seat without a bucket whose node has its key in `directory`. Creates the key if it is
/// missing.
///
/// # Errors
/// If the key cannot be read or created.
pub fn endpoint(directory: &Path) -> anyhow::Result<String> {
    let key = NodeKey::open_or_create(&directory.join(KEY_FILE))?;
    Ok(PeerUrl { peer: key.peer(), address: None }.to_string())
}

/// Completes with an error if the node's task for peers ends, which is a bug.
///
/// # Errors
/// Always.
pub fn ended(peers: Option<Arc<Peers>>) -> BoxFuture<'static, anyhow::Result<()>> {
    Box::pin(async move {
        match peers {
            Some(peers) => peers.network.ended().await,
            None => std::future::pending().await,
        }
        bail!("the task that owns the connections to peers has ended; this is a fault of the program")
    })
}
