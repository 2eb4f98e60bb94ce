//! A node's peers (PROT-34): where validators are found, whose contributions they take, and where a contribution is that
//! is in no bucket.

use crate::{config::PeerFile, error_chain};
use anyhow::{Context as _, bail};
use async_trait::async_trait;
use bytes::Bytes;
use chain_client::{Chain, ChainError};
use futures::{StreamExt as _, future::BoxFuture, stream::FuturesUnordered};
use network::{
    AddressLimits, AnyFetcher, Network, NetworkSettings, NodeKey, OpenError, PeerFetcher, PeerId, PeerUrl,
    PushError, PutServer, push, serve_blobs,
};
use protocol::{
    Block, Digest, GenesisHash, Hotkey, Role, RunId, Schedule, Uid, Window, ensure,
    identity::Signer,
    keys::{self, ObjectKey},
    peer::{
        MessageError, PeerRecord, PutHeader, RECEIVERS_ASKED_MAX, RECEIVERS_WANTED, RECORD_BYTES_MAX,
        Receiver, RecordError, Refusal, receivers,
    },
    view::{RunView, SeatView, WindowView},
};
use std::{
    collections::{BTreeMap, HashSet, VecDeque},
    net::SocketAddr,
    ops::Range,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
    time::Duration,
};
use store::{
    Action, DirectoryStore, Fetch, FetchError, Limits, Listing, Sink, Store, StoreError, Traffic,
    TrafficTotals, fetch_verified_into,
};
use tokio::{sync::Mutex as AsyncMutex, time::Instant};

/// The file of the node's own key in its directory.
pub const KEY_FILE: &str = "node.key";
/// The folder of the contributions that peers sent.
const INBOX: &str = "inbox";
/// Windows before the latest one whose contributions stay in the inbox.
const WINDOWS_KEPT: u32 = 1;
/// Windows for which a record is used, from the block at which it was signed (PROT-34). Its owner signs a new one every
/// window.
const RECORD_WINDOWS_MAX: u32 = 4;
/// How long a validator's addresses are believed, and how long their absence.
const FOUND_FOR: Duration = Duration::from_secs(600);
const MISSING_FOR: Duration = Duration::from_secs(15);
/// For the addresses of one validator.
const RECORD_WITHIN: Duration = Duration::from_secs(10);
/// Between two tries to publish the own addresses, and between two offers to one validator.
const RETRY: Duration = Duration::from_secs(30);
const OFFER_AGAIN: Duration = Duration::from_millis(500);
/// For reading the records of all validators, to keep places for them.
const RESERVED_WITHIN: Duration = Duration::from_secs(30);
/// Validators whose addresses are looked up at once.
const SURVEYED_AT_ONCE: usize = 8;
/// For a connection to a validator, over QUIC or TCP, and for its answer.
const ANSWERS_WITHIN: Duration = Duration::from_secs(1);
/// How long a validator that did not answer is left alone.
const SILENT_FOR: Duration = Duration::from_secs(60);
/// Between two looks into the inbox while others are asked.
const INBOX_EVERY: Duration = Duration::from_millis(100);
/// Once so many validators have a contribution, those that take more than twice as long are not waited for …
const RECEIVERS_ENOUGH: usize = 2;
/// … but for at least this.
const GRACE_MIN: Duration = Duration::from_secs(1);
/// Further offers to a validator that may take the contribution later.
const TRIES_MAX: u32 = 5;
/// Bytes that are read from the inbox at once.
const PART_BYTES: u64 = 4 << 20;

/// The network of a node, and what is known of the validators in it. As a [`Fetch`] it reads buckets, peers, and the
/// contributions of seats without a bucket, which it asks their receivers for.
pub struct Peers {
    pub network: Arc<Network>,
    any: AnyFetcher,
    http: Arc<dyn Fetch>,
    chain: Arc<dyn Chain>,
    genesis: GenesisHash,
    run: RunId,
    schedule: Schedule,
    /// A validator's: the contributions that peers sent.
    inbox: Option<Arc<DirectoryStore>>,
    records: Mutex<BTreeMap<Hotkey, Arc<AsyncMutex<Option<Known>>>>>,
    /// When a validator is left alone: from the end of an attempt that may fail, until …
    silent: Mutex<BTreeMap<Hotkey, Range<Instant>>>,
    /// The latest window past its commit deadline that was looked at. What is used of it does not change any more.
    window: AsyncMutex<Option<Arc<Committed>>>,
}

/// A validator's addresses, until they are looked up again.
struct Known {
    until: Instant,
    /// The block at which its record was signed, if it has one.
    signed: Option<Block>,
    /// `None`: its bucket did not answer, or has an old record.
    urls: Option<Vec<PeerUrl>>,
}

/// Why there are no addresses of a validator.
#[derive(Debug, thiserror::Error)]
enum NoRecord {
    #[error(transparent)]
    Fetch(#[from] FetchError),
    #[error(transparent)]
    Record(#[from] RecordError),
    #[error(
        "its record was signed at block {signed}, the chain is at block {now}, and a record is used for {blocks} blocks"
    )]
    Ended { signed: Block, now: Block, blocks: u32 },
}

/// The validators that a contribution goes to.
struct Receivers<'a> {
    /// In order, with their addresses.
    found: Vec<(&'a SeatView, Vec<PeerUrl>)>,
    /// Whether the addresses of some are not known.
    some_unknown: bool,
}

/// A window past its commit deadline.
struct Committed {
    view: WindowView,
    seats: Vec<SeatView>,
}

impl Peers {
    /// Starts the network of a seat. A validator gets an inbox; only one with `[peer]` is connected to.
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

    /// The network of a miner that only looks, under a key that is not kept.
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
            // Until the seats are known, everybody is a stranger.
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

    /// Serves a validator's objects, takes contributions of at most `bytes_max`, and publishes the validator's addresses
    /// in its bucket.
    ///
    /// # Errors
    /// If the addresses are of no use to others.
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
            // So that no miner looks for this validator where it was.
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
        let judge = Judge { peers: self.clone(), bytes_max, cleared: Mutex::default() };
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

    /// Where a validator takes contributions and serves objects: as its record says; nowhere if it has none. `None` if
    /// its bucket did not answer, or has an old record.
    async fn addresses(&self, validator: &SeatView) -> Option<Vec<PeerUrl>> {
        let known = self.records().entry(validator.hotkey).or_default().clone();
        let mut known = known.lock().await;
        let is_believed = |known: &&Known| {
            Instant::now() < known.until && known.signed.is_none_or(|signed| self.judge_age(signed).is_ok())
        };
        if let Some(known) = known.as_ref().filter(is_believed) {
            return known.urls.clone();
        }
        let found = self.record(validator).await;
        if let Err(error) = &found {
            tracing::debug!(uid = validator.id.uid.0, %error, "no addresses of a validator");
        }
        let kept_for = if found.is_ok() { FOUND_FOR } else { MISSING_FOR };
        let (signed, urls) = match found {
            Ok((signed, urls)) => (Some(signed), Some(urls)),
            Err(NoRecord::Fetch(FetchError::Missing) | NoRecord::Record(_)) => (None, Some(Vec::new())),
            // A bucket that serves an old record does not say where its validator is.
            Err(NoRecord::Fetch(_) | NoRecord::Ended { .. }) => (None, None),
        };
        *known = Some(Known { until: Instant::now() + kept_for, signed, urls: urls.clone() });
        urls
    }

    /// A validator's record: the block at which it was signed, and the addresses.
    async fn record(&self, validator: &SeatView) -> Result<(Block, Vec<PeerUrl>), NoRecord> {
        let limits = Limits::for_bytes(RECORD_BYTES_MAX as u64).within(RECORD_WITHIN);
        let bytes = self.http.fetch(&validator.endpoint, &keys::peer(&validator.hotkey), &limits).await?;
        let record = PeerRecord::open(&bytes, &validator.hotkey, &self.genesis)?;
        self.judge_age(record.block)?;
        let urls = record.addresses.iter().filter_map(|address| address.parse().ok()).collect();
        Ok((record.block, urls))
    }

    /// Whether a record that was signed at this block is still used. It may be a window ahead of this node's chain.
    fn judge_age(&self, signed: Block) -> Result<(), NoRecord> {
        let now = self.chain.heads().borrow().block;
        let window = self.schedule.blocks_per_window;
        let blocks = RECORD_WINDOWS_MAX.saturating_mul(window);
        let is_used = now.0.saturating_sub(blocks) <= signed.0 && signed.0 <= now.0.saturating_add(window);
        ensure!(is_used, NoRecord::Ended { signed, now, blocks });
        Ok(())
    }

    /// Keeps places for the run's seats, by their node keys: a miner's without a bucket is its endpoint, a validator's is in
    /// its record, or was there before, in `known`.
    async fn reserve_places(&self, known: &mut BTreeMap<Hotkey, PeerId>) -> Result<(), ChainError> {
        let seats = self.chain.seats(self.run).await?;
        let (validators, miners): (Vec<_>, Vec<_>) =
            seats.into_iter().partition(|seat| seat.role == Role::Validator);
        let miners = miners.iter().filter_map(|seat| seat.endpoint.parse().ok());
        let miners: HashSet<_> = miners.map(|url: PeerUrl| url.peer).collect();
        known.retain(|hotkey, _| validators.iter().any(|seat| seat.hotkey == *hotkey));
        self.network.reserve_for(miners.iter().chain(known.values()).copied().collect());
        // Not what is remembered: a record that is not there yet is no reason to look elsewhere for a while.
        let record = |seat: SeatView| -> BoxFuture<'_, _> {
            Box::pin(async move { (seat.hotkey, self.record(&seat).await) })
        };
        let records: Vec<_> = validators.into_iter().map(record).collect();
        let mut records = futures::stream::iter(records).buffer_unordered(SURVEYED_AT_ONCE);
        // The own record has to be renewed meanwhile.
        let _ = tokio::time::timeout(RESERVED_WITHIN, async {
            while let Some((hotkey, found)) = records.next().await {
                // All addresses of a record are of one peer.
                if let Ok((_, urls)) = found
                    && let Some(url) = urls.first()
                {
                    known.insert(hotkey, url.peer);
                }
            }
        })
        .await;
        self.network.reserve_for(miners.into_iter().chain(known.values().copied()).collect());
        Ok(())
    }

    /// The run's validators, each with why contributions cannot be sent to it from here, if so.
    ///
    /// # Errors
    /// The chain's.
    pub async fn survey(&self) -> Result<Vec<(Uid, Result<(), String>)>, ChainError> {
        let seats = self.chain.seats(self.run).await?;
        let validators = seats.iter().filter(|seat| seat.role == Role::Validator);
        let reached = validators.map(async |validator| {
            let reached = match self.record(validator).await {
                Ok((_, urls)) => self.network.connect(&urls).await.map_err(|error| error.to_string()),
                Err(error) => Err(format!("it does not say where it takes contributions ({error})")),
            };
            (validator.id.uid, reached)
        });
        Ok(futures::stream::iter(reached).buffered(SURVEYED_AT_ONCE).collect().await)
    }

    /// Connects to a validator, and returns where it is. If it is not where its record said, the record is read again:
    /// its address may have changed. One that does not answer is left alone for a while.
    async fn reach(&self, validator: &SeatView, urls: &[PeerUrl]) -> Result<PeerUrl, OpenError> {
        // Also if the caller gives up before this ends.
        self.expect_answer(validator.hotkey);
        let mut connected = self.connect(urls).await;
        if connected.is_err() {
            self.records().remove(&validator.hotkey);
            let now = self.addresses(validator).await.unwrap_or_default();
            if now != urls {
                connected = self.connect(&now).await;
            }
        }
        match &connected {
            Ok(_) => drop(self.silent().remove(&validator.hotkey)),
            Err(_) => self.leave_alone(validator.hotkey),
        }
        connected
    }

    async fn connect(&self, urls: &[PeerUrl]) -> Result<PeerUrl, OpenError> {
        let connected = tokio::time::timeout(ANSWERS_WITHIN, self.network.connect(urls)).await;
        connected.unwrap_or_else(|_| {
            Err(OpenError::Unreachable(format!("it did not answer within {} s", ANSWERS_WITHIN.as_secs())))
        })?;
        urls.first().cloned().ok_or(OpenError::NoAddress)
    }

    fn expect_answer(&self, validator: Hotkey) {
        let now = Instant::now();
        let from = now + ANSWERS_WITHIN;
        let mut silent = self.silent();
        let when = silent.entry(validator).or_insert(now..now);
        if when.end <= now {
            *when = from..from + SILENT_FOR;
        }
    }

    fn leave_alone(&self, validator: Hotkey) {
        let from = Instant::now();
        self.silent().insert(validator, from..from + SILENT_FOR);
    }

    fn is_silent(&self, validator: &Hotkey) -> bool {
        self.silent().get(validator).is_some_and(|when| when.contains(&Instant::now()))
    }

    fn silent(&self) -> MutexGuard<'_, BTreeMap<Hotkey, Range<Instant>>> {
        self.silent.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn records(&self) -> MutexGuard<'_, BTreeMap<Hotkey, Arc<AsyncMutex<Option<Known>>>>> {
        self.records.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A window past its commit deadline; `None` before that.
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

    /// The validators that a seat with this endpoint sends its contribution to, as far as they tell where they are, in
    /// order.
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

    /// Reads a contribution that is in no bucket: from the own inbox, or from a receiver. It is
    /// [missing](FetchError::Missing) if every receiver says so; any other failure is not its miner's.
    async fn read_from_receivers(
        &self,
        endpoint: &str,
        wanted: (Window, Digest),
        key: &ObjectKey,
        limits: &Limits,
        to: &mut dyn Sink,
    ) -> Result<(), FetchError> {
        let Some(inbox) = &self.inbox else {
            return self.ask_receivers(endpoint, wanted, key, limits, to).await;
        };
        let arrived = async {
            while !inbox.contains(key) {
                tokio::time::sleep(INBOX_EVERY).await;
            }
        };
        tokio::select! {
            biased;
            () = arrived => {}
            asked = self.ask_receivers(endpoint, wanted, key, limits, to) => return asked,
        }
        from_inbox(inbox, key, limits, to).await
    }

    async fn ask_receivers(
        &self,
        endpoint: &str,
        (window, digest): (Window, Digest),
        key: &ObjectKey,
        limits: &Limits,
        to: &mut dyn Sink,
    ) -> Result<(), FetchError> {
        let committed =
            self.committed(window).await.map_err(|error| FetchError::Ours { what: error_chain(&error) })?;
        let committed =
            committed.ok_or_else(|| FetchError::Ours { what: "the window takes commitments".into() })?;
        let limits = Limits { first_byte: limits.first_byte.min(ANSWERS_WITHIN), ..*limits };
        let Receivers { found, some_unknown } = self.receivers(&committed, endpoint).await;
        let (own, others): (Vec<_>, Vec<_>) =
            found.into_iter().partition(|(_, urls)| urls.iter().any(|url| url.peer == self.network.peer()));
        // This validator would receive it, and did not.
        let mut asked = own.len();
        // One whose bucket is away may be one that has it.
        let mut failed =
            some_unknown.then(|| "the bucket of a validator that may have it did not answer".to_owned());
        // If none answered lately, it may have been this node that was cut off.
        let some_answer = others.iter().any(|(validator, _)| !self.is_silent(&validator.hotkey));
        for (validator, urls) in others {
            let reached = match some_answer && self.is_silent(&validator.hotkey) {
                true => Err(OpenError::Unreachable("it did not answer lately".into())),
                false => self.reach(validator, &urls).await,
            };
            let read = match reached {
                Ok(url) => {
                    let url = url.to_string();
                    let read = fetch_verified_into(&self.any, &url, key, &digest, &limits, to).await;
                    // A connection may be open to a node that is no more.
                    if let Err(FetchError::Unreachable { .. } | FetchError::Stalled { .. }) = &read {
                        self.leave_alone(validator.hotkey);
                    }
                    read
                }
                Err(error) => Err(FetchError::Unreachable { what: error.to_string() }),
            };
            match read {
                Ok(()) => return Ok(()),
                Err(FetchError::Missing) => asked += 1,
                Err(error) => {
                    let uid = validator.id.uid;
                    tracing::debug!(%uid, %error, object = %key, "could not read a contribution from its receiver");
                    failed = Some(format!("validator {uid}, which may have it: {error}"));
                }
            }
        }
        Err(match failed {
            Some(what) => FetchError::Unreachable { what },
            None if asked == 0 => {
                FetchError::Unreachable { what: "no validator tells where it takes contributions".into() }
            }
            None => FetchError::Missing,
        })
    }

    /// Offers a contribution to its receivers until [`RECEIVERS_WANTED`] of them have it, or no more can be asked.
    /// Returns those that have it.
    async fn offer(&self, endpoint: &str, offer: &PutHeader, file: &Path) -> Result<Vec<Uid>, NotDelivered> {
        let committed = self.committed(offer.window).await?.ok_or(NotDelivered::TooEarly)?;
        let receivers = self.receivers(&committed, endpoint).await.found;
        ensure!(!receivers.is_empty(), NotDelivered::NoReceiver);
        // Those that did not answer lately are asked only if the others are too few, or fail.
        let (away, others): (Vec<_>, Vec<_>) =
            receivers.iter().partition(|(validator, _)| self.is_silent(&validator.hotkey));
        let began = Instant::now();
        // Set once enough have it.
        let mut until = None;
        let (mut have, mut failures) = (Vec::new(), BTreeMap::new());
        let others = others.into_iter().map(|receiver| (receiver, RECEIVERS_WANTED));
        let away = away.into_iter().map(|receiver| (receiver, RECEIVERS_ENOUGH));
        let (mut next, mut pushes) = (others.chain(away).collect::<VecDeque<_>>(), FuturesUnordered::new());
        loop {
            let is_open = failures.is_empty() || self.is_open(offer.window);
            while is_open
                && let Some(&(receiver, wanted)) = next.front()
                && have.len() + pushes.len() < wanted
            {
                next.pop_front();
                pushes.push(async move { (receiver.0.id.uid, self.push_to(receiver, offer, file).await) });
            }
            let pushed = match until {
                None => pushes.next().await,
                Some(until) => tokio::time::timeout_at(until, pushes.next()).await.unwrap_or(None),
            };
            match pushed {
                None => break,
                Some((uid, Ok(()))) => {
                    have.push(uid);
                    if have.len() == RECEIVERS_ENOUGH {
                        until = Some(Instant::now() + began.elapsed().max(GRACE_MIN));
                    }
                }
                Some((uid, Err(error))) => {
                    tracing::debug!(%uid, %error, "a validator did not take the contribution");
                    failures.insert(uid, error.to_string());
                }
            }
        }
        ensure!(!have.is_empty(), NotDelivered::Refused(failures));
        Ok(have)
    }

    /// Offers a contribution again until [`RECEIVERS_ENOUGH`] validators have it, or it is too late.
    async fn offer_to_more(self: Arc<Peers>, endpoint: String, offer: PutHeader, file: PathBuf) {
        while self.is_open(offer.window) {
            tokio::time::sleep(RETRY).await;
            if self.offer(&endpoint, &offer, &file).await.is_ok_and(|have| RECEIVERS_ENOUGH <= have.len()) {
                return;
            }
        }
    }

    /// Whether validators still take contributions to a window. Later offers cost a slow line time for the next window.
    fn is_open(&self, window: Window) -> bool {
        self.chain.heads().borrow().block <= self.schedule.reveal_deadline(window)
    }

    async fn push_to(
        &self,
        (validator, urls): &(&SeatView, Vec<PeerUrl>),
        offer: &PutHeader,
        file: &Path,
    ) -> Result<(), PushError> {
        let mut tries = 0;
        loop {
            let url = self.reach(validator, urls).await?;
            match push(&self.network, &url, offer, file).await {
                Err(error) if error.may_pass() && tries < TRIES_MAX && self.is_open(offer.window) => {
                    tries += 1
                }
                ended => return ended,
            }
            tokio::time::sleep(OFFER_AGAIN).await;
        }
    }
}

/// Publishes a validator's record in its bucket, and a new one every window, as long as the node has its network. Keeps
/// places for the seats of the window.
async fn publish_record(
    peers: Weak<Peers>,
    store: Arc<dyn Store>,
    key: ObjectKey,
    seal: impl Fn(Block) -> Result<Bytes, MessageError> + Send,
) {
    let node = peers.upgrade().map(|peers| (peers.chain.heads(), peers.schedule.blocks_per_window));
    let Some((mut heads, blocks)) = node else { return };
    let (mut signed, mut known) = (None::<Block>, BTreeMap::new());
    while peers.strong_count() > 0 {
        let block = heads.borrow_and_update().block;
        if signed.is_none_or(|signed| signed.0.saturating_add(blocks) <= block.0) {
            let Ok(bytes) = seal(block) else { return };
            if let Err(error) = store.put(&key, bytes).await {
                let error = error_chain(&error);
                tracing::warn!(error, "could not publish this validator's addresses, trying again");
                tokio::time::sleep(RETRY).await;
                continue;
            }
            signed = Some(block);
            if let Some(peers) = peers.upgrade()
                && let Err(error) = peers.reserve_places(&mut known).await
            {
                tracing::warn!(error = error_chain(&error), "could not read the seats to keep places for");
            }
        }
        if heads.changed().await.is_err() {
            return;
        }
    }
}

/// The addresses of a validator that listens.
fn announced(
    network: &Network,
    listen: SocketAddr,
    announce: Option<SocketAddr>,
) -> anyhow::Result<Vec<PeerUrl>> {
    match announce {
        Some(address) if address.ip().is_unspecified() || address.port() == 0 => {
            bail!(
                "`announce` under [peer] is {address}, which no peer can connect to: give the public address and port"
            )
        }
        Some(address) => Ok(PeerUrl::at(network.peer(), address).to_vec()),
        None if listen.ip().is_unspecified() => bail!(
            "`listen` under [peer] is {listen}, which names no address: add `announce` with the public address and port"
        ),
        None => Ok(network.listening()),
    }
}

async fn from_inbox(
    inbox: &DirectoryStore,
    key: &ObjectKey,
    limits: &Limits,
    to: &mut dyn Sink,
) -> Result<(), FetchError> {
    let ours = |error: StoreError| FetchError::Ours { what: error_chain(&error) };
    let max_bytes = limits.max_bytes;
    let (length, mut bytes) = inbox.read(key, 0..PART_BYTES).await.map_err(ours)?;
    ensure!(length <= max_bytes, FetchError::TooLarge { bytes: length, max_bytes });
    to.begin(length);
    let (mut at, mut hasher) = (0, blake3::Hasher::new());
    while !bytes.is_empty() {
        hasher.update(&bytes);
        to.piece(&bytes);
        at += bytes.len() as u64;
        bytes = inbox.read(key, at..at + PART_BYTES).await.map_err(ours)?.1;
    }
    if Digest(*hasher.finalize().as_bytes()) != key.digest() {
        // A damaged disk is this validator's own.
        inbox.delete(key).await.map_err(ours)?;
        return Err(FetchError::Ours { what: format!("{key} was damaged in the inbox, and is removed") });
    }
    Ok(())
}

/// The contribution that is fetched, if it is of a seat without a bucket.
fn without_bucket(base_url: &str, key: &ObjectKey) -> Option<(Window, Digest)> {
    let url: PeerUrl = base_url.parse().ok()?;
    let (_, window, digest) = keys::contribution_of(key)?;
    url.address.is_none().then_some((window, digest))
}

#[async_trait]
impl Fetch for Peers {
    async fn fetch(&self, base_url: &str, key: &ObjectKey, limits: &Limits) -> Result<Bytes, FetchError> {
        let mut whole = store::BufferSink::default();
        self.fetch_into(base_url, key, limits, &mut whole).await?;
        Ok(whole.into_bytes())
    }

    async fn fetch_into(
        &self,
        base_url: &str,
        key: &ObjectKey,
        limits: &Limits,
        to: &mut dyn Sink,
    ) -> Result<(), FetchError> {
        match without_bucket(base_url, key) {
            Some(wanted) => {
                let fetched = self.read_from_receivers(base_url, wanted, key, limits, to);
                let ended = tokio::time::timeout(limits.deadline, fetched).await;
                ended.unwrap_or(Err(FetchError::Deadline { after: limits.deadline }))
            }
            None => self.any.fetch_into(base_url, key, limits, to).await,
        }
    }

    async fn fetch_range(
        &self,
        base_url: &str,
        key: &ObjectKey,
        range: Range<u64>,
        limits: &Limits,
    ) -> Result<Bytes, FetchError> {
        self.any.fetch_range(base_url, key, range, limits).await
    }

    fn traffic(&self) -> TrafficTotals {
        self.any.traffic()
    }
}

/// Judges what peers offer to a validator.
struct Judge {
    peers: Arc<Peers>,
    bytes_max: u64,
    /// The latest window for which the inbox was cleared.
    cleared: Mutex<Option<Window>>,
}

#[async_trait]
impl network::Admission for Judge {
    async fn judge(&self, offer: &PutHeader) -> Result<(), Refusal> {
        let Peers { chain, genesis, run, schedule, .. } = &*self.peers;
        let block = chain.heads().borrow().block;
        let receiver =
            Receiver { genesis: *genesis, run: *run, schedule: *schedule, bytes_max: self.bytes_max, block };
        receiver.judge_offer(offer)?;
        let committed = self.peers.committed(offer.window).await.map_err(|error| {
            tracing::warn!(error = error_chain(&error), "could not read the chain for a peer's offer");
            Refusal::Failed
        })?;
        let committed = committed.ok_or(Refusal::Failed)?;
        receiver.judge_seat(offer, &committed.view, &committed.seats)?;
        self.clear_before(offer.window);
        Ok(())
    }
}

impl Judge {
    /// With the first contribution to a window, removes those of windows long past.
    fn clear_before(&self, window: Window) {
        let mut cleared = self.cleared.lock().unwrap_or_else(PoisonError::into_inner);
        if cleared.is_some_and(|cleared| window <= cleared) {
            return;
        }
        *cleared = Some(window);
        let Some(inbox) = self.peers.inbox.clone() else { return };
        tokio::spawn(clear(inbox, window.0.saturating_sub(WINDOWS_KEPT)));
    }
}

/// Removes the contributions to windows before `first`. Failures are logged: the next window tries again.
async fn clear(inbox: Arc<DirectoryStore>, first: u32) {
    let all = match inbox.list("", 100_000).await {
        Ok(all) => all,
        Err(error) => return tracing::warn!(error = error_chain(&error), "could not list the inbox"),
    };
    for key in all.entries.iter().filter_map(store::Entry::key) {
        let is_old = keys::contribution_of(&key).is_none_or(|(_, window, _)| window.0 < first);
        if is_old && let Err(error) = inbox.delete(&key).await {
            tracing::warn!(error = error_chain(&error), object = %key, "could not remove an old contribution");
        }
    }
}

/// Why no validator has a contribution.
#[derive(Debug, thiserror::Error)]
enum NotDelivered {
    #[error("could not read the chain")]
    Chain(#[from] ChainError),
    #[error("the commit deadline is not final yet")]
    TooEarly,
    #[error("no validator of the window tells where it takes contributions")]
    NoReceiver,
    #[error("{}", refusals(.0))]
    Refused(BTreeMap<Uid, String>),
}

fn refusals(failures: &BTreeMap<Uid, String>) -> String {
    let each = failures.iter().map(|(uid, why)| format!("validator {uid}: {why}"));
    each.collect::<Vec<_>>().join("; ")
}

/// The store of a miner without a bucket: a contribution that is put into it goes to validators.
pub struct PeerStore {
    pub peers: Arc<Peers>,
    pub uid: Uid,
    /// The seat's, by which validators find the receivers.
    pub endpoint: String,
    pub signer: Signer,
    pub traffic: Traffic,
}

#[async_trait]
impl Store for PeerStore {
    fn describe(&self) -> String {
        "the validators that take contributions from peers".into()
    }

    async fn put(&self, key: &ObjectKey, _: Bytes) -> Result<(), StoreError> {
        let why = "a seat without a bucket publishes nothing but contributions".into();
        Err(StoreError::BadName { name: key.to_string(), why })
    }

    async fn put_file(&self, key: &ObjectKey, path: &Path) -> Result<u64, StoreError> {
        let Some((run, window, digest)) = keys::contribution_of(key) else {
            return self.put(key, Bytes::new()).await.map(|()| 0);
        };
        let about = tokio::fs::metadata(path).await;
        let about = about.map_err(|source| StoreError::File { path: path.display().to_string(), source })?;
        let length = about.len();
        let offer = PutHeader::sign(run, window, self.uid, digest, length, &self.signer);
        match self.peers.offer(&self.endpoint, &offer, path).await {
            Ok(have) => {
                if have.len() < RECEIVERS_WANTED {
                    tracing::info!(
                        window = window.0,
                        ?have,
                        "these validators have the contribution, and no others"
                    );
                }
                if have.len() < RECEIVERS_ENOUGH {
                    tokio::spawn(self.peers.clone().offer_to_more(
                        self.endpoint.clone(),
                        offer,
                        path.to_owned(),
                    ));
                }
                self.traffic.add_up(length * have.len() as u64);
                Ok(length)
            }
            Err(error) => Err(StoreError::Unavailable {
                store: self.describe(),
                action: Action::Write,
                name: key.to_string(),
                source: Box::new(error),
            }),
        }
    }

    async fn get(&self, key: &ObjectKey, _: u64) -> Result<Bytes, StoreError> {
        Err(StoreError::NotFound { key: key.to_string() })
    }

    async fn delete(&self, _: &ObjectKey) -> Result<(), StoreError> {
        Ok(())
    }

    async fn list(&self, _: &str, _: usize) -> Result<Listing, StoreError> {
        Ok(Listing { entries: Vec::new(), complete: true })
    }

    fn traffic(&self) -> TrafficTotals {
        self.traffic.totals()
    }
}

/// The endpoint of a seat without a bucket whose node has its key in `directory`. The key is made if it is not there.
pub fn endpoint(directory: &Path) -> anyhow::Result<String> {
    let key = NodeKey::open_or_create(&directory.join(KEY_FILE))?;
    Ok(PeerUrl { peer: key.peer(), address: None }.to_string())
}

/// Completes with an error when the node's task for peers has ended, which it should not.
pub fn ended(peers: Option<Arc<Peers>>) -> BoxFuture<'static, anyhow::Result<()>> {
    Box::pin(async move {
        match peers {
            Some(peers) => peers.network.ended().await,
            None => std::future::pending().await,
        }
        bail!("the task that owns the connections to peers has ended; this is a fault of the program")
    })
}
