//! A thousand readers of one validator's network, and all its contributors, over loopback.
//!
//! The network is a validator's own (`daemon::peers`), on the simulated chain. The disturbing readers take a kibibyte
//! per second, send nothing, or send impossible requests. They come first and return whenever they are disconnected;
//! in the full form they exceed the validator's places for strangers. Meanwhile miners push contributions, along with
//! senders that are not allowed to, or that send wrong bytes.

use super::{MIB, Report, allow_files, files_below, open_files, quantile, resident_bytes};
use crate::{
    peer_run::{MTL, RUN, WINDOW, key, params},
    sim::chain::{Sealing, SharedChain, SimChain},
};
use anyhow::{Context as _, bail, ensure};
use bytes::Bytes;
use chain_client::Chain;
use daemon::{config::PeerFile, peers::Peers};
use futures::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use mettle_runtime::AccountId;
use network::{
    AddressLimits, Network, NetworkSettings, NodeKey, PUTS_MAX, PeerFetcher, PeerUrl, PushError, push,
};
use protocol::{
    Block, Digest, GenesisHash, Role, RunId, Terms, Uid,
    identity::Signer,
    keys::{self, ObjectKey},
    peer::{BlobAnswer, BlobRequest, Message, PutAnswer, PutHeader, Refusal},
};
use sp_keyring::Sr25519Keyring;
use std::{
    path::PathBuf,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};
use store::{Fetch, Limits, MemoryStore, Store, memory::MemoryFetcher};
use tokio::{sync::Barrier, task::JoinSet, time::timeout};

/// Seat of the validator.
const VALIDATOR: u16 = 1000;
/// Seat of a miner that commits to nothing.
const UNCOMMITTED: u16 = 999;
/// Number of a node that holds no seat.
const STRANGER: u16 = 5000;
/// Maximum length of a contribution in the run.
const BYTES_MAX: u64 = 1 << 20;
/// Number of bytes that a slow reader takes every half second.
const SLOW_BYTES: usize = 512;
/// Timeout of a reader or sender, far above any machine's need.
const HANGS: Duration = Duration::from_secs(900);
/// Timeout of one message.
const SOON: Duration = Duration::from_secs(60);
/// Maximum number of incoming connections of a node.
const PLACES: usize = 64;
/// Maximum number of strangers among them.
const STRANGERS: usize = 32;
/// Maximum memory of a connection at both ends together: received bytes before the reader reads them, a part of an
/// object at the validator, and bytes in transit.
const CONNECTION_BYTES: f64 = 9.0 * MIB;
/// Memory of the process for any number of connections.
const PROCESS_BYTES: f64 = 64.0 * MIB;
/// Maximum ratio of the slowest of a hundred readers to the median. A free place goes to the next reader to connect,
/// and the last honest readers are a few among many that disturb.
const UNFAIR: f64 = 8.0;

/// Numbers of readers and senders of each kind.
pub struct Size {
    pub fast: usize,
    pub slow: usize,
    /// Half of them connect and open no stream; half open one and send nothing.
    pub silent: usize,
    pub liars: usize,
    pub contributions: u16,
    pub contribution_bytes: usize,
    /// Miners that push.
    pub senders: u16,
    /// Miners that announce a push and send nothing.
    pub stalled: u16,
}

impl Size {
    pub const FULL: Size = Size {
        fast: 900,
        slow: 40,
        silent: 40,
        liars: 20,
        contributions: 64,
        contribution_bytes: 256 << 10,
        senders: 64,
        stalled: 16,
    };
    pub const SHORT: Size = Size {
        fast: 40,
        slow: 6,
        silent: 6,
        liars: 4,
        contributions: 8,
        contribution_bytes: 64 << 10,
        senders: 8,
        stalled: PUTS_MAX as u16,
    };
}

pub async fn run(size: &Size) -> anyhow::Result<Report> {
    let mut report = Report::new("peers");
    let readers = size.fast + size.slow + size.silent + size.liars;
    allow_files(16 * readers as u64)?;
    let scene = Arc::new(Scene::new(size).await?);
    let before = open_files()?;
    let (mut honest, mut bad) = (Vec::new(), Vec::new());
    for who in 0..readers {
        let peers = if who < size.fast { &mut honest } else { &mut bad };
        peers.push(scene.peer(NodeKey::generate()?).await?);
    }
    let idle = resident_bytes()? as f64;
    let flood = Flood::start(size, &scene, bad).await?;
    let read = read_all(&scene, honest, &mut report).await?;
    report.promise(read - idle <= PROCESS_BYTES + PLACES as f64 * CONNECTION_BYTES, || {
        format!("connections took {:.0} MiB", (read - idle) / MIB)
    });
    report.figure("memory per connection, both ends", (read - idle) / MIB / STRANGERS as f64, "MiB");
    push_all(size, &scene, &mut report).await?;
    flood.end(&scene, &mut report).await;
    let (files, connections) = scene.settled(before).await?;
    report.promise(files <= before && connections == 0, || {
        format!(
            "{files} files and {connections} connections are open after all left, and {before} files before"
        )
    });
    refuse_late(size, &scene, &mut report).await?;
    Ok(report)
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A validator, and the run past the commit deadline of its first window.
struct Scene {
    home: tempfile::TempDir,
    chain: SharedChain,
    validator: Arc<Peers>,
    /// URLs for QUIC and for TCP.
    urls: [PeerUrl; 2],
    /// A checkpoint's piece, the contributions, and the object for slow readers.
    objects: Vec<ObjectKey>,
    large: ObjectKey,
    /// Node keys of the miners that commit.
    node_keys: Vec<NodeKey>,
}

/// Returns the bytes of an object, unique to the seed.
fn noise(seed: u16, length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    blake3::Hasher::new().update(b"peers").update(&seed.to_le_bytes()).finalize_xof().fill(&mut bytes);
    bytes
}

fn accepted(results: Vec<Result<(), String>>) -> anyhow::Result<()> {
    results.into_iter().try_for_each(|result| result.map_err(|refusal| anyhow::anyhow!("refused: {refusal}")))
}

impl Scene {
    async fn new(size: &Size) -> anyhow::Result<Scene> {
        let home = tempfile::tempdir()?;
        let mut chain = SimChain::new(Digest::of(b"peers"));
        let digest = Digest::default();
        let create = pallet_registry::Call::create_run {
            params: params(),
            terms: Terms {
                validator_stake_min: MTL,
                miner_stake_min: MTL / 100,
                miner_seats_max: 1024,
                seat_price_min: 0,
                ..Terms::default()
            },
            spec: digest,
            manifest: digest,
            theta0: digest,
            published_at: b"https://origin.invalid".to_vec().try_into().expect("it is short"),
        };
        accepted(chain.block(vec![(Sr25519Keyring::Alice.to_account_id(), create.into())]))?;
        let bob = || Sr25519Keyring::Bob.to_account_id();
        let url = "https://validator.invalid";
        let mut seats = vec![
            chain.registration(bob(), &key(VALIDATOR), RUN, Role::Validator, url, 1_000 * MTL),
            chain.registration(bob(), &key(UNCOMMITTED), RUN, Role::Miner, url, MTL),
        ];
        let mut node_keys = Vec::new();
        for seat in size.committed() {
            let node_key = NodeKey::generate()?;
            let url = PeerUrl { peer: node_key.peer(), address: None }.to_string();
            seats.push(chain.registration(bob(), &key(seat), RUN, Role::Miner, &url, MTL));
            node_keys.push(node_key);
        }
        accepted(chain.block(seats))?;
        let schedule = params().schedule;
        chain.advance_to(Block(schedule.opens_at(WINDOW).0 + 2));
        let commits = size.committed().map(|seat| {
            let digest = Digest::of(&noise(seat, size.contribution_bytes));
            let commit = pallet_windows::Call::commit { run: RUN, window: WINDOW, digest };
            (AccountId::from(key(seat).verifying_key().to_bytes()), commit.into())
        });
        accepted(chain.block(commits.collect()))?;
        chain.advance_to(Block(schedule.commit_deadline(WINDOW).0 + 1));

        let chain = SharedChain::new(chain, Sealing::Instant);
        let run = chain.run_now(RUN).context("the run was created")?;
        let (dynamic, http): (Arc<dyn Chain>, Arc<dyn Fetch>) =
            (Arc::new(chain.clone()), Arc::new(MemoryFetcher::new()));
        let file = PeerFile { listen: Some("127.0.0.1:0".parse()?), announce: None };
        let directory = home.path().join("validator");
        let validator = Peers::open(&file, Role::Validator, &directory, &dynamic, &run, &http).await?;
        let bucket = Arc::new(MemoryStore::new());
        let mut objects = Vec::new();
        let large = 8 << 20;
        let lengths = [1 << 20].into_iter().chain((0..size.contributions).map(|_| size.contribution_bytes));
        for (seed, length) in (10_000..).zip(lengths.chain([large])) {
            let bytes = noise(seed, length);
            let key = keys::update(RUN, WINDOW, &Digest::of(&bytes));
            bucket.put(&key, bytes.into()).await?;
            objects.push(key);
        }
        let large = objects.pop().context("it was put")?;
        let signer = Signer::new(key(VALIDATOR), chain.genesis());
        let store: Arc<dyn Store> = bucket;
        validator.serve(&file, BYTES_MAX, &store, &signer)?;
        // Then the validator reads the seats, and reserves places for them.
        let record = keys::peer(&signer.hotkey());
        while store.get(&record, 4096).await.is_err() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
        let urls = validator.network.listening().try_into();
        let urls = urls.map_err(|_| anyhow::anyhow!("the validator does not listen"))?;
        Ok(Scene { home, chain, validator, urls, objects, large, node_keys })
    }

    fn genesis(&self) -> GenesisHash {
        self.chain.genesis()
    }

    /// Opens a peer with this node key.
    async fn peer(&self, key: NodeKey) -> anyhow::Result<Arc<Network>> {
        let settings = NetworkSettings {
            key,
            genesis: self.genesis(),
            listen: None,
            allow_private: true,
            limits: AddressLimits::default(),
        };
        Ok(Arc::new(Network::start(settings).await?))
    }

    /// Waits until all others have left. Returns the numbers of open files and of the validator's connections.
    async fn settled(&self, before: usize) -> anyhow::Result<(usize, usize)> {
        let began = Instant::now();
        loop {
            let now = (open_files()?, self.validator.network.connections());
            if now.0 <= before && now.1 == 0 || SOON < began.elapsed() {
                return Ok(now);
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    fn inbox(&self) -> PathBuf {
        self.home.path().join("validator").join("inbox")
    }
}

/// Sends bytes with a length prefix, like every message.
async fn say(stream: &mut (impl AsyncWrite + Unpin), message: &[u8]) -> anyhow::Result<()> {
    let length = u16::try_from(message.len())?.to_le_bytes();
    stream.write_all(&[&length[..], message].concat()).await?;
    Ok(stream.flush().await?)
}

async fn hear<M: Message>(stream: &mut (impl AsyncRead + Unpin)) -> anyhow::Result<M> {
    let heard = async {
        let mut length = [0; 2];
        stream.read_exact(&mut length).await?;
        let mut message = vec![0; usize::from(u16::from_le_bytes(length))];
        stream.read_exact(&mut message).await?;
        anyhow::Ok(M::from_bytes(&message)?)
    };
    timeout(SOON, heard).await.context("no answer")?
}

/// Waits before a refused peer retries. The time differs between peers, so that they do not connect together.
async fn pause(who: usize, tries: u64) {
    let drawn = Digest::of_parts(&[&who.to_le_bytes(), &tries.to_le_bytes()]);
    let drawn = u64::from(u16::from_le_bytes([drawn.0[0], drawn.0[1]]));
    tokio::time::sleep(Duration::from_millis(250 + drawn % 1000)).await;
}

/// Behaviour of a reader that is disconnected sooner or later.
#[derive(Clone, Copy)]
enum Bad {
    Slow,
    Unconnected,
    Unspoken,
    Liar,
}

impl Bad {
    fn of(size: &Size, who: usize) -> Bad {
        match who {
            _ if who < size.slow => Bad::Slow,
            _ if who < size.slow + size.silent => [Bad::Unconnected, Bad::Unspoken][who % 2],
            _ => Bad::Liar,
        }
    }

    /// Disturbs until it is disconnected. Returns the number of lies that were answered correctly.
    async fn disturb(self, scene: &Scene, peer: &Arc<Network>, who: usize) -> anyhow::Result<usize> {
        let url = &scene.urls[who % 2];
        match self {
            Bad::Slow => {
                let mut stream = peer.open(url, "blob/1").await?;
                let request = BlobRequest { key: scene.large.clone(), offset: 0, length: u64::MAX };
                say(&mut stream, &request.to_bytes()).await?;
                let mut buffer = [0; SLOW_BYTES];
                while stream.read(&mut buffer).await? > 0 {
                    tokio::time::sleep(Duration::from_millis(500)).await;
                }
            }
            Bad::Unconnected => {
                peer.connect(std::slice::from_ref(url)).await?;
                while peer.connections() > 0 {
                    tokio::time::sleep(Duration::from_millis(500)).await;
                }
            }
            Bad::Unspoken => {
                let mut stream = peer.open(url, "blob/1").await?;
                // Half of a length prefix.
                stream.write_all(&[1]).await?;
                stream.flush().await?;
                let _ = stream.read(&mut [0; 1]).await?;
            }
            Bad::Liar => return lie(scene, peer, url).await,
        }
        Ok(0)
    }
}

/// Sends impossible requests. Returns their number, or the first one with a wrong answer.
async fn lie(scene: &Scene, peer: &Network, url: &PeerUrl) -> anyhow::Result<usize> {
    let request = |key: &ObjectKey, offset| BlobRequest { key: key.clone(), offset, length: 9 }.to_bytes();
    let known = request(&scene.objects[0], 0);
    let unknown = keys::update(RUN, WINDOW, &Digest::of(b"nothing"));
    type IsRight = fn(&BlobAnswer) -> bool;
    let lies: [(Vec<u8>, IsRight); 5] = [
        ([&[9], &known[1..]].concat(), |answer| *answer == BlobAnswer::Refused { ours: 1 }),
        (vec![0xff; 1000], |answer| *answer == BlobAnswer::Refused { ours: 1 }),
        (vec![1; 2000], |answer| *answer == BlobAnswer::Refused { ours: 1 }),
        (request(&unknown, 0), |answer| matches!(answer, BlobAnswer::Missing | BlobAnswer::Busy)),
        (request(&scene.objects[0], u64::MAX), |answer| {
            matches!(answer, BlobAnswer::Found { length: 0, .. } | BlobAnswer::Missing | BlobAnswer::Busy)
        }),
    ];
    for (message, is_right) in &lies {
        let mut stream = peer.open(url, "blob/1").await?;
        say(&mut stream, message).await?;
        let answer = hear(&mut stream).await?;
        ensure!(is_right(&answer), WrongAnswer(answer));
    }
    Ok(lies.len())
}

/// A lie was accepted.
#[derive(Debug, thiserror::Error)]
#[error("{0:?} is no answer to a lie")]
struct WrongAnswer(BlobAnswer);

/// The disturbing readers, until [`Flood::end`].
struct Flood {
    readers: JoinSet<()>,
    count: usize,
    seen: Arc<Disturbed>,
}

/// Results of the disturbing readers.
#[derive(Default)]
struct Disturbed {
    thrown_out: AtomicUsize,
    lies: AtomicUsize,
    wrong: Mutex<Vec<String>>,
}

impl Flood {
    /// Starts them. Returns once they hold half of their places, and those of seats are reserved.
    async fn start(size: &Size, scene: &Arc<Scene>, peers: Vec<Arc<Network>>) -> anyhow::Result<Flood> {
        let (mut readers, seen, count) = (JoinSet::new(), Arc::new(Disturbed::default()), peers.len());
        for (who, peer) in peers.into_iter().enumerate() {
            let (scene, seen, kind) = (scene.clone(), seen.clone(), Bad::of(size, who));
            readers.spawn(async move {
                for tries in 0.. {
                    match kind.disturb(&scene, &peer, who).await {
                        Ok(lies) => drop(seen.lies.fetch_add(lies, Relaxed)),
                        Err(error) if error.is::<WrongAnswer>() => lock(&seen.wrong).push(error.to_string()),
                        Err(_) => {}
                    }
                    seen.thrown_out.fetch_add(1, Relaxed);
                    pause(who, tries).await;
                }
            });
        }
        let held = async {
            while scene.validator.network.connections() < STRANGERS.min(count) / 2 {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        timeout(SOON, held).await.context("the readers that disturb do not come")?;
        Ok(Flood { readers, count, seen })
    }

    async fn end(mut self, scene: &Scene, report: &mut Report) {
        self.readers.shutdown().await;
        let refused = scene.validator.network.refused();
        report.figure("slow, silent and lying readers, all the time", self.count as f64, "");
        report.figure("times that they were thrown out", self.seen.thrown_out.load(Relaxed) as f64, "");
        let lies = self.seen.lies.load(Relaxed);
        report.figure("lies answered with a reason", lies as f64, "");
        report.figure("connections of strangers refused", refused.strangers as f64, "");
        let gave_way = scene.validator.network.gave_way();
        report.figure("idle connections that gave way", gave_way as f64, "");
        report.promise(0 < refused.strangers, || "the places of seats were not kept for them".into());
        let wrong = std::mem::take(&mut *lock(&self.seen.wrong));
        report.promise(wrong.is_empty(), || {
            format!("{} lies were believed, the first: {}", wrong.len(), wrong[0])
        });
        report.promise(0 < lies, || "no liar was answered".into());
    }
}

/// Runs all honest readers at once. Returns the peak of the process's memory.
async fn read_all(scene: &Arc<Scene>, honest: Vec<Arc<Network>>, report: &mut Report) -> anyhow::Result<f64> {
    let (count, mut readers) = (honest.len(), JoinSet::new());
    let begin = Arc::new(Barrier::new(count));
    for (reader, peer) in honest.into_iter().enumerate() {
        let (scene, begin) = (scene.clone(), begin.clone());
        readers.spawn(async move {
            begin.wait().await;
            let (began, fetch) = (Instant::now(), PeerFetcher::new(peer));
            let at = 1 + reader % (scene.objects.len() - 1);
            let (mut tries, mut bytes) = (0, 0);
            for key in [&scene.objects[0], &scene.objects[at]] {
                let url = scene.urls[reader % 2].to_string();
                loop {
                    tries += 1;
                    match fetch.fetch(&url, key, &Limits::for_bytes(1 << 20)).await {
                        Ok(read) => {
                            ensure!(Digest::of(&read) == key.digest(), "{key} has other bytes");
                            bytes += read.len();
                            break;
                        }
                        Err(error) if HANGS < began.elapsed() => bail!("not served in time: {error}"),
                        Err(_) => pause(10_000 + reader, tries).await,
                    }
                }
            }
            Ok((began.elapsed().as_secs_f64(), tries, bytes))
        });
    }
    let (began, mut peak) = (Instant::now(), 0.0f64);
    let (mut times, mut tries, mut bytes, mut failed) = (Vec::new(), 0, 0, Vec::new());
    while !readers.is_empty() {
        peak = peak.max(resident_bytes()? as f64);
        match timeout(Duration::from_millis(20), readers.join_next()).await {
            Ok(Some(read)) => match read? {
                Ok((took, tried, read)) => {
                    times.push(took);
                    (tries, bytes) = (tries + tried, bytes + read);
                }
                Err(error) => failed.push(error),
            },
            Ok(None) => break,
            Err(_) => {}
        }
    }
    let seconds = began.elapsed().as_secs_f64();
    times.sort_by(f64::total_cmp);
    let (median, slowest) = (quantile(&times, 0.5), quantile(&times, 0.99));
    report.figure("honest readers", count as f64, "");
    report.figure("places for strangers", STRANGERS as f64, "");
    report.figure("until all of them are served", seconds, "s");
    report.figure("served to them", bytes as f64 / 1e6 / seconds, "MB/s");
    report.figure("median of their times", median, "s");
    report.figure("99th percentile over the median", slowest / median, "");
    report.figure("tries per reader, for two objects", tries as f64 / count as f64, "");
    report.promise(failed.is_empty(), || {
        format!("{} of {count} honest readers were not served, the first as {:#}", failed.len(), failed[0])
    });
    report.promise(slowest <= UNFAIR * median, || {
        format!("one reader of a hundred took {:.1} times as long as the median", slowest / median)
    });
    Ok(peak)
}

/// A wrong sender, or an error in a sent contribution.
#[derive(Clone, Copy, Debug)]
enum Wrong {
    Uncommitted,
    OtherCommitment,
    NoSeat,
    OtherSigner,
    OtherRun,
    TooLong,
    TooEarly,
    Version,
    Garbage,
    OtherBytes,
    CutShort,
}

const WRONG: [Wrong; 11] = [
    Wrong::Uncommitted,
    Wrong::OtherCommitment,
    Wrong::NoSeat,
    Wrong::OtherSigner,
    Wrong::OtherRun,
    Wrong::TooLong,
    Wrong::TooEarly,
    Wrong::Version,
    Wrong::Garbage,
    Wrong::OtherBytes,
    Wrong::CutShort,
];

impl Wrong {
    /// Returns the offer, the bytes that follow it if it is accepted, and the expected reason of refusal.
    fn offer(self, size: &Size, scene: &Scene) -> anyhow::Result<(Vec<u8>, Bytes, Refusal)> {
        // Separate seats, because a failed transfer counts against its seat.
        let [cut, other] = size.failing();
        let (mine, bytes) = scene.offer(size, 0)?;
        let by = |seat: u16| Signer::new(key(seat), scene.genesis());
        let sign = |uid: Uid, digest: Digest, length: u64, seat: u16| {
            PutHeader::sign(RUN, WINDOW, uid, digest, length, &by(seat))
        };
        let PutHeader { uid, digest, length, .. } = mine;
        let schedule = params().schedule;
        let (offer, refusal) = match self {
            Wrong::Uncommitted => (scene.offer(size, UNCOMMITTED)?.0, Refusal::NotCommitted),
            Wrong::OtherCommitment => (sign(uid, Digest::of(b"other"), length, 0), Refusal::NotCommitted),
            Wrong::NoSeat => (sign(Uid(STRANGER), digest, length, 0), Refusal::NoSeat),
            Wrong::OtherSigner => (sign(uid, digest, length, UNCOMMITTED), Refusal::BadSignature),
            Wrong::OtherRun => (PutHeader { run: RunId(1), ..mine }, Refusal::OtherRun { run: RUN }),
            Wrong::TooLong => (sign(uid, digest, BYTES_MAX + 1, 0), Refusal::TooLong { max: BYTES_MAX }),
            Wrong::TooEarly => {
                let (after, until) =
                    (schedule.commit_deadline(WINDOW.next()), schedule.reveal_deadline(WINDOW.next()));
                let block = scene.chain.heads().borrow().block;
                (PutHeader { window: WINDOW.next(), ..mine }, Refusal::NotNow { block, after, until })
            }
            Wrong::Version => {
                let message = [&[9], &mine.to_bytes()[1..]].concat();
                return Ok((message, bytes, Refusal::Version { theirs: 9, ours: 1 }));
            }
            Wrong::Garbage => return Ok((vec![1; 40], bytes, Refusal::Malformed)),
            Wrong::OtherBytes => {
                let bytes = noise(STRANGER, size.contribution_bytes).into();
                return Ok((scene.offer(size, other)?.0.to_bytes(), bytes, Refusal::OtherDigest));
            }
            Wrong::CutShort => {
                let (offer, bytes) = scene.offer(size, cut)?;
                return Ok((offer.to_bytes(), bytes.slice(..bytes.len() / 2), Refusal::CutShort));
            }
        };
        Ok((offer.to_bytes(), bytes, refusal))
    }
}

impl Size {
    /// Returns the seats that commit: those that push, those that stall, and two whose transfers fail otherwise.
    fn committed(&self) -> std::ops::Range<u16> {
        0..self.senders + self.stalled + 2
    }

    fn failing(&self) -> [u16; 2] {
        let first = self.senders + self.stalled;
        [first, first + 1]
    }
}

impl Scene {
    /// Returns a seat's signed offer of its contribution, and the contribution.
    fn offer(&self, size: &Size, seat: u16) -> anyhow::Result<(PutHeader, Bytes)> {
        let bytes = noise(seat, size.contribution_bytes);
        let signer = Signer::new(key(seat), self.genesis());
        let found = self.chain.seats_now(RUN).into_iter().find(|one| one.hotkey == signer.hotkey());
        let uid = found.context("the seat is registered")?.id.uid;
        let (digest, length) = (Digest::of(&bytes), bytes.len() as u64);
        Ok((PutHeader::sign(RUN, WINDOW, uid, digest, length, &signer), bytes.into()))
    }

    /// Runs `put/1` from a miner's node until the validator is not busy. Returns its first and its last answer.
    async fn put(
        &self,
        who: u16,
        offer: &[u8],
        bytes: &[u8],
        closes: bool,
    ) -> anyhow::Result<[PutAnswer; 2]> {
        let who = usize::from(who);
        let (peer, began) = (self.peer(self.node_keys[who].clone()).await?, Instant::now());
        let mut tries = 0;
        loop {
            ensure!(began.elapsed() < HANGS, "the validator is always busy");
            if let Ok(answers) = self.put_once(&peer, who, offer, bytes, closes).await
                && answers[1] != PutAnswer::Refused(Refusal::Busy)
            {
                return Ok(answers);
            }
            tries += 1;
            pause(20_000 + who, tries).await;
        }
    }

    async fn put_once(
        &self,
        peer: &Network,
        who: usize,
        offer: &[u8],
        bytes: &[u8],
        closes: bool,
    ) -> anyhow::Result<[PutAnswer; 2]> {
        let mut stream = peer.open(&self.urls[who % 2], "put/1").await?;
        say(&mut stream, offer).await?;
        let first = hear(&mut stream).await?;
        if first != PutAnswer::Send {
            return Ok([first, first]);
        }
        stream.write_all(bytes).await?;
        stream.flush().await?;
        if closes {
            stream.close().await?;
        }
        Ok([first, hear(&mut stream).await?])
    }
}

/// Result of one sender.
enum Sent {
    /// It succeeded after these seconds.
    Honest(f64),
    Refused,
    /// It was refused after this many failed transfers.
    Stalled(u32),
}

async fn push_all(size: &Size, scene: &Arc<Scene>, report: &mut Report) -> anyhow::Result<()> {
    let mut senders: JoinSet<anyhow::Result<Sent>> = JoinSet::new();
    for seat in size.senders..size.senders + size.stalled {
        let (scene, offer) = (scene.clone(), scene.offer(size, seat)?.0.to_bytes());
        senders.spawn(async move {
            for failed in 0..10 {
                match scene.put(seat, &offer, &[], false).await? {
                    [PutAnswer::Send, PutAnswer::Refused(Refusal::TooSlow)] => {}
                    [PutAnswer::Refused(Refusal::TooSlow), _] => return Ok(Sent::Stalled(failed)),
                    other => bail!("a seat that stalls is told {other:?}"),
                }
            }
            bail!("a seat may stall ten times")
        });
    }
    // Use nodes of other seats than those that push.
    for (who, wrong) in size.committed().rev().zip(WRONG) {
        let (scene, (offer, bytes, refusal)) = (scene.clone(), wrong.offer(size, scene)?);
        senders.spawn(async move {
            let [_, last] = scene.put(who, &offer, &bytes, true).await?;
            ensure!(last == PutAnswer::Refused(refusal), "{wrong:?} is told {last:?}, not {refusal:?}");
            Ok(Sent::Refused)
        });
    }
    for seat in 0..size.senders {
        let (scene, (offer, bytes)) = (scene.clone(), scene.offer(size, seat)?);
        let file = scene.home.path().join(format!("contribution-{seat}"));
        std::fs::write(&file, &bytes)?;
        senders.spawn(async move {
            let peer = scene.peer(scene.node_keys[usize::from(seat)].clone()).await?;
            let (url, began) = (&scene.urls[usize::from(seat) % 2], Instant::now());
            let mut tries = 0;
            while let Err(error) = push(&peer, url, &offer, &file).await {
                ensure!(error.may_pass() && began.elapsed() < HANGS, "seat {seat}: {error}");
                tries += 1;
                pause(30_000 + usize::from(seat), tries).await;
            }
            let took = began.elapsed().as_secs_f64();
            // The second time, no byte is read: the file no longer exists.
            std::fs::remove_file(&file)?;
            while let Err(error) = push(&peer, url, &offer, &file).await {
                // Its connection may have been evicted, with all places taken.
                ensure!(error.may_pass() && began.elapsed() < HANGS, "seat {seat}, again: {error}");
                tries += 1;
                pause(30_000 + usize::from(seat), tries).await;
            }
            Ok(Sent::Honest(took))
        });
    }
    let (mut times, mut refused, mut failed, mut worst) = (Vec::new(), 0, Vec::new(), 0);
    while let Some(sent) = senders.join_next().await {
        match sent? {
            Ok(Sent::Honest(took)) => times.push(took),
            Ok(Sent::Refused) => refused += 1,
            Ok(Sent::Stalled(failed)) => worst = worst.max(failed),
            Err(error) => failed.push(format!("{error:#}")),
        }
    }
    times.sort_by(f64::total_cmp);
    report.figure("miners that push", f64::from(size.senders), "");
    report.figure("seats that stall", f64::from(size.stalled), "");
    report.figure("honest contributions taken", times.len() as f64, "");
    report.figure("median of their times", quantile(&times, 0.5), "s");
    report.figure("the last one after", quantile(&times, 1.0), "s");
    report.figure("transfers that a stalling seat may start", f64::from(worst), "");
    report.figure("offers refused, each with its reason", refused as f64, "");
    report.promise(failed.is_empty(), || format!("{} senders, the first: {}", failed.len(), failed[0]));
    report
        .promise(times.len() == usize::from(size.senders), || "not all honest contributions arrived".into());
    let (files, bytes) = files_below(&scene.inbox());
    let expected = u64::from(size.senders) * size.contribution_bytes as u64;
    report.promise(files == times.len() && bytes == expected, || {
        format!("the inbox has {files} files of {bytes} bytes, not {} of {expected}", size.senders)
    });

    Ok(())
}

/// Tests a node that is not a validator, and a validator after the deadline.
async fn refuse_late(size: &Size, scene: &Scene, report: &mut Report) -> anyhow::Result<()> {
    let (offer, bytes) = scene.offer(size, 0)?;
    let file = scene.home.path().join("late");
    std::fs::write(&file, &bytes)?;
    let peer = scene.peer(NodeKey::generate()?).await?;
    let listens = NetworkSettings {
        key: NodeKey::generate()?,
        genesis: scene.genesis(),
        listen: Some("127.0.0.1:0".parse()?),
        allow_private: true,
        limits: AddressLimits::default(),
    };
    let other = Network::start(listens).await?;
    let error = push(&peer, &other.listening()[0], &offer, &file).await.err().map(|error| error.to_string());
    report.promise(error.as_ref().is_some_and(|error| error.contains("does not speak")), || {
        format!("a node that is no validator says {error:?}")
    });
    scene.chain.lock().advance_to(Block(params().schedule.reveal_deadline(WINDOW).0 + 1));
    let error = push(&peer, &scene.urls[0], &offer, &file).await;
    report.promise(matches!(error, Err(PushError::Refused(Refusal::NotNow { .. }))), || {
        format!("a contribution after the deadline is told {error:?}")
    });
    Ok(())
}
