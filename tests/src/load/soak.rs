//! The parts of a small network for a thousand windows: their memory, files and sockets must not grow.
//!
//! The parts are the programs': the embedded chain, read by a client for each node; an S3 server; the networks of
//! peers of four validators and two miners without a bucket; two miners with one. In each window the miners commit and
//! send their contributions, every validator gathers all of them, and all calls of a merged window are made. A
//! stranger connects, reads the update and leaves. Nothing is trained: contributions and updates are noise.
//!
//! The soak counts the heap at the end of each window. Resident memory also includes bytes that the system's allocator
//! retains, which grow as it fragments, so it has a separate, looser bound. Bounded caches are full after the warm-up:
//! the chain's hashes of 2,400 blocks and its 64 windows, and the 256 TLS sessions that a QUIC endpoint keeps for
//! returning peers. So in each window of the warm-up a stranger connects to every validator over QUIC.

use super::{
    MIB, Report, allow_files,
    chain::{Rpc, signed},
    files_below, open_files, resident_bytes, slope,
};
use crate::heap::allocated_bytes;
use anyhow::{Context as _, ensure};
use bytes::Bytes;
use chain_client::{Chain, SubxtChain, keys::Key};
use daemon::{
    config::PeerFile,
    peers::{PeerStore, Peers},
};
use ed25519_dalek::SigningKey;
use embedded_chain::{Config, EmbeddedChain, H256, Sealing};
use futures::future::try_join_all;
use mettle_runtime::{AccountId, RuntimeCall, UNIT};
use network::{AddressLimits, Network, NetworkSettings, NodeKey, PeerFetcher};
use protocol::{
    Block, Digest, GenesisHash, Hotkey, Role, RunId, RunParams, Schedule, Terms, Uid, Window,
    identity::Signer,
    keys::{self, ObjectKey},
    params::Permille,
    reveal,
    view::{Outcome, RunView, Verdict, Vote, WindowView},
};
use s3_server::{BucketConfig, S3Server, ServerConfig};
use serde_json::json;
use std::{
    path::PathBuf,
    sync::Arc,
    time::{Duration, Instant},
};
use store::{Fetch, HttpFetcher, Limits, S3Settings, S3Store, Store, Traffic, fetch::FetchPolicy};

const RUN: RunId = RunId(0);
const EPOCH_WINDOWS: u32 = 2;
const SALT: reveal::Salt = [3; 32];
/// Number of seats of each kind, in this order.
const BUCKETED: usize = 2;
const BUCKETLESS: usize = 2;
const MINERS: usize = BUCKETED + BUCKETLESS;
const VALIDATORS: usize = 4;
const CONTRIBUTION_BYTES: usize = 64 << 10;
const UPDATE_BYTES: usize = 128 << 10;
/// Number of windows whose objects stay in the buckets.
const WINDOWS_KEPT: u32 = 2;
/// Timeout of an exchange between two parts, far above any machine's need.
const HANGS: Duration = Duration::from_secs(120);
/// Number of files by which the end may exceed the start: an inbox is cleared with the first contribution to a later
/// window.
const FILES_MORE: usize = 32;

/// Duration and bounds of the soak.
pub struct Size {
    pub windows: u32,
    /// Number of windows after which nothing may grow.
    pub warm_up: u32,
    /// Maximum growth of the heap per window after that.
    pub heap_bytes: f64,
    /// Maximum growth of the resident memory per window after that.
    pub resident_bytes: f64,
}

impl Size {
    pub const FULL: Size = Size { windows: 1000, warm_up: 250, heap_bytes: 2048.0, resident_bytes: 16_384.0 };
    pub const SHORT: Size = Size { windows: 16, warm_up: 6, heap_bytes: MIB, resident_bytes: 2.0 * MIB };
}

fn params() -> RunParams {
    RunParams {
        schedule: Schedule {
            start: Block(30),
            blocks_per_window: 12,
            commit_by: 2,
            reveal_by: 4,
            attest_by: 6,
            vote_by: 9,
        },
        epoch_windows: EPOCH_WINDOWS,
        reveal_windows: 1,
        hidden_blocks: 0,
        min_contributions: 1,
        localnet: true,
        ..RunParams::default()
    }
}

/// Resources of the process at the end of a window.
struct Held {
    heap: f64,
    resident: f64,
    sockets: usize,
    files: usize,
}

pub async fn run(size: &Size) -> anyhow::Result<Report> {
    allow_files(1024)?;
    let mut report = Report::new("soak");
    let mut soak = Soak::new().await?;
    let (began, mut held, mut merged) = (Instant::now(), Vec::new(), 0);
    for window in (0..size.windows).map(Window) {
        let strangers = if window.0 < size.warm_up { Strangers::AtEach } else { Strangers::One };
        let done = soak.window(window, strangers).await;
        merged += u32::from(done.with_context(|| format!("window {}", window.0))?);
        let (heap, resident) = (allocated_bytes()? as f64, resident_bytes()? as f64);
        let (sockets, files) = (open_files()?, files_below(soak.home.path()).0);
        if (window.0 + 1).is_multiple_of(50) {
            let (heap, resident) = (heap / MIB, resident / MIB);
            tracing::info!(windows = window.0 + 1, heap, resident, sockets, files, "held, in MiB");
        }
        held.push(Held { heap, resident, sockets, files });
    }
    let seconds = began.elapsed().as_secs_f64();
    report.figure("windows", f64::from(size.windows), "");
    report.figure("of them merged", f64::from(merged), "");
    report.figure("time per window", seconds / f64::from(size.windows), "s");
    report.promise(size.windows == merged, || format!("{merged} of {} windows were merged", size.windows));
    judge(size, &held, &mut report);
    soak.chain.shutdown().await;
    soak.server.shutdown().await;
    Ok(report)
}

/// Reports growth after the warm-up.
fn judge(size: &Size, held: &[Held], report: &mut Report) {
    let settled = &held[size.warm_up as usize..];
    let [first, last] = [&settled[0], &settled[settled.len() - 1]];
    let growth = |of: fn(&Held) -> f64| slope(&settled.iter().map(of).collect::<Vec<_>>());
    let (heap, resident) = (growth(|held| held.heap), growth(|held| held.resident));
    let files_max = settled.iter().map(|held| held.files).max().unwrap_or_default();
    report.figure("heap after the warm-up", first.heap / MIB, "MiB");
    report.figure("heap at the end", last.heap / MIB, "MiB");
    report.figure("heap per window after the warm-up", heap / 1024.0, "KiB");
    report.figure("resident memory after the warm-up", first.resident / MIB, "MiB");
    report.figure("resident memory at the end", last.resident / MIB, "MiB");
    report.figure("resident memory per window after the warm-up", resident / 1024.0, "KiB");
    report.figure("files and sockets open after the warm-up", first.sockets as f64, "");
    report.figure("at the end", last.sockets as f64, "");
    report.figure("files on disk after the warm-up", first.files as f64, "");
    report.figure("at most since", files_max as f64, "");
    for (what, growth, bound) in
        [("heap", heap, size.heap_bytes), ("resident memory", resident, size.resident_bytes)]
    {
        report.promise(growth <= bound, || {
            format!("a window adds {:.1} KiB to the {what}, more than {:.1}", growth / 1024.0, bound / 1024.0)
        });
    }
    report.promise(last.sockets <= first.sockets + FILES_MORE, || {
        format!("{} files are open at the end, and {} after the warm-up", last.sockets, first.sockets)
    });
    report.promise(files_max <= first.files + FILES_MORE, || {
        format!("{files_max} files are on the disk, and {} after the warm-up", first.files)
    });
}

/// Strangers that connect in a window.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Strangers {
    /// One at each validator, over QUIC.
    AtEach,
    /// One at one validator, over QUIC or TCP.
    One,
}

/// A seat and the parts of its node.
struct Seat {
    uid: Uid,
    key: SigningKey,
    nonce: u32,
    client: Arc<SubxtChain>,
    endpoint: String,
    /// Its bucket, or the replacement of a miner without one.
    store: Arc<dyn Store>,
    /// Network of a validator or of a miner without a bucket.
    peers: Option<Arc<Peers>>,
}

struct Soak {
    home: tempfile::TempDir,
    chain: EmbeddedChain,
    server: S3Server,
    rpc: Rpc,
    genesis: H256,
    http: Arc<dyn Fetch>,
    /// Miners with buckets, miners without, validators.
    seats: Vec<Seat>,
}

fn noise(seed: &[u8], length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    blake3::Hasher::new().update(seed).finalize_xof().fill(&mut bytes);
    bytes
}

/// Runs `work` with a timeout.
async fn in_time<T>(what: &str, work: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<T> {
    let done = tokio::time::timeout(HANGS, work).await;
    done.with_context(|| format!("{what}: not within {} s", HANGS.as_secs()))?
        .with_context(|| what.to_owned())
}

impl Soak {
    async fn new() -> anyhow::Result<Soak> {
        let home = tempfile::tempdir()?;
        let config = Config {
            sealing: Sealing::Manual,
            dir: Some(home.path().join("chain")),
            keep_states: 64,
            keep_headers: 256,
            ..Config::default()
        };
        let chain = EmbeddedChain::start(config).await?;
        let genesis = chain.genesis_hash();
        let bucket = |seat: usize| BucketConfig::new(format!("seat-{seat}"), format!("key-{seat}"), "secret");
        let buckets = (0..MINERS + VALIDATORS).map(bucket).collect();
        let data_dir = Some(home.path().join("buckets"));
        let server = S3Server::start(ServerConfig { data_dir, ..ServerConfig::temporary(buckets) }).await?;
        let http: Arc<dyn Fetch> = Arc::new(HttpFetcher::new(FetchPolicy::localnet())?);
        let mut soak = Soak {
            rpc: Rpc::at(chain.address()).await?,
            home,
            chain,
            server,
            genesis,
            http,
            seats: Vec::new(),
        };
        soak.register().await?;
        for seat in 0..MINERS + VALIDATORS {
            let seat = in_time("opening a node", soak.open(seat)).await?;
            soak.seats.push(seat);
        }
        // Miners find the validators by their records.
        for seat in &soak.seats[MINERS..] {
            let record = keys::peer(&Hotkey(seat.key.verifying_key().to_bytes()));
            in_time("a validator's record", async {
                while soak.http.fetch(&seat.endpoint, &record, &Limits::for_bytes(4096)).await.is_err() {
                    tokio::time::sleep(Duration::from_millis(10)).await;
                }
                Ok(())
            })
            .await?;
        }
        Ok(soak)
    }

    fn key(seat: usize) -> SigningKey {
        SigningKey::from_bytes(&Digest::of_parts(&[b"soak", &seat.to_le_bytes()]).0)
    }

    fn directory(&self, seat: usize) -> PathBuf {
        self.home.path().join(format!("seat-{seat}"))
    }

    fn endpoint(&self, seat: usize) -> anyhow::Result<String> {
        match (BUCKETED..MINERS).contains(&seat) {
            true => daemon::peers::endpoint(&self.directory(seat)),
            false => Ok(self.server.base_url(&format!("seat-{seat}"))),
        }
    }

    /// Creates the run and registers all seats.
    async fn register(&mut self) -> anyhow::Result<()> {
        let owner = Key::dev("//Alice")?;
        let digest = Digest::of(b"soak");
        let url = |text: &str| -> anyhow::Result<pallet_registry::Url> {
            text.as_bytes().to_vec().try_into().map_err(|_| anyhow::anyhow!("{text} is long"))
        };
        let create = pallet_registry::Call::create_run {
            params: params(),
            terms: Terms {
                validator_stake_min: UNIT,
                miner_stake_min: UNIT,
                seat_price_min: 0,
                equivocation_slash: Permille(0),
                ..Terms::default()
            },
            spec: digest,
            manifest: digest,
            theta0: digest,
            published_at: url("http://10.0.0.1/origin")?,
        };
        let mut calls: Vec<RuntimeCall> = vec![create.into()];
        for seat in 0..MINERS + VALIDATORS {
            let signer = Signer::new(Soak::key(seat), GenesisHash(self.genesis.0));
            let call = pallet_registry::Call::register {
                run: RUN,
                role: if seat < MINERS { Role::Miner } else { Role::Validator },
                hotkey: AccountId::from(signer.hotkey().0),
                endpoint: url(&self.endpoint(seat)?)?,
                stake: UNIT,
                price_max: 0,
                proof: signer.prove_possession(RUN, &owner.account()),
            };
            calls.push(call.into());
        }
        let coldkey = owner.signing_key()?;
        for (nonce, call) in (0..).zip(&calls) {
            self.rpc.submit(&signed(coldkey, nonce, self.genesis, call)).await?;
        }
        while self.pending().await? > 0 {
            self.chain.seal_now().await?;
        }
        let at = self.chain.best().number;
        ensure!(at < params().schedule.start.0, "the seats took until block {at}");
        Ok(())
    }

    /// Opens the node of a registered seat.
    async fn open(&self, seat: usize) -> anyhow::Result<Seat> {
        let (key, endpoint) = (Soak::key(seat), self.endpoint(seat)?);
        let client = Arc::new(SubxtChain::connect(&self.chain.url(), None).await?);
        let run: RunView = client.run(RUN).await?;
        let signer = Signer::new(key.clone(), client.genesis());
        let seats = client.seats(RUN).await?;
        let view = seats.into_iter().find(|view| view.hotkey == signer.hotkey());
        let uid = view.context("the seat is registered")?.id.uid;
        let (dynamic, directory): (Arc<dyn Chain>, _) = (client.clone(), self.directory(seat));
        let name = format!("seat-{seat}");
        let credentials = BucketConfig::new(&name, format!("key-{seat}"), "secret").credentials;
        let bucket = S3Store::open(&S3Settings::new(self.server.endpoint(), &name, credentials))?;
        let (store, peers): (Arc<dyn Store>, _) = match seat {
            _ if seat < BUCKETED => (Arc::new(bucket), None),
            _ if seat < MINERS => {
                let file = PeerFile::default();
                let peers = Peers::open(&file, Role::Miner, &directory, &dynamic, &run, &self.http).await?;
                let endpoint = endpoint.clone();
                let store =
                    PeerStore { peers: peers.clone(), uid, endpoint, signer, traffic: Traffic::default() };
                (Arc::new(store), Some(peers))
            }
            _ => {
                let file = PeerFile { listen: Some("127.0.0.1:0".parse()?), announce: None };
                let peers =
                    Peers::open(&file, Role::Validator, &directory, &dynamic, &run, &self.http).await?;
                let store: Arc<dyn Store> = Arc::new(bucket);
                peers.serve(&file, 1 << 20, &store, &signer)?;
                (store, Some(peers))
            }
        };
        Ok(Seat { uid, key, nonce: 0, client, endpoint, store, peers })
    }

    async fn pending(&mut self) -> anyhow::Result<usize> {
        let waiting = self.rpc.ask("author_pendingExtrinsics", json!([])).await?;
        Ok(waiting.as_array().context("the pool answers with a list")?.len())
    }

    /// Makes blocks up to this one, and waits until every node has received it.
    async fn go_to(&mut self, block: Block) -> anyhow::Result<()> {
        while self.chain.best().number < block.0 {
            self.chain.seal_now().await?;
        }
        for seat in &self.seats {
            seat.client.heads().wait_for(|seen| block <= seen.block).await?;
        }
        Ok(())
    }

    /// Submits one call of each of these seats.
    async fn call(
        &mut self,
        seats: std::ops::Range<usize>,
        call: impl Fn(&Hotkey) -> RuntimeCall,
    ) -> anyhow::Result<()> {
        for seat in &mut self.seats[seats] {
            let call = call(&Hotkey(seat.key.verifying_key().to_bytes()));
            self.rpc.submit(&signed(&seat.key, seat.nonce, self.genesis, &call)).await?;
            seat.nonce += 1;
        }
        Ok(())
    }

    /// Runs one window, with all actions of its seats. Returns whether it was merged.
    async fn window(&mut self, window: Window, strangers: Strangers) -> anyhow::Result<bool> {
        let (schedule, validators) = (params().schedule, MINERS..MINERS + VALIDATORS);
        self.go_to(schedule.opens_at(window)).await?;
        let contributions: Vec<Vec<u8>> = (0..MINERS)
            .map(|seat| noise(&[&window.0.to_le_bytes()[..], &[seat as u8]].concat(), CONTRIBUTION_BYTES))
            .collect();
        for (seat, bytes) in contributions.iter().enumerate() {
            let digest = Digest::of(bytes);
            let commit = |_: &Hotkey| pallet_windows::Call::commit { run: RUN, window, digest }.into();
            self.call(seat..seat + 1, commit).await?;
        }
        self.go_to(Block(schedule.commit_deadline(window).0 + 1)).await?;

        let keys: Vec<ObjectKey> =
            contributions.iter().map(|bytes| keys::contribution(RUN, window, &Digest::of(bytes))).collect();
        let sent =
            self.seats[..MINERS].iter().zip(&keys).zip(contributions).map(async |((seat, key), bytes)| {
                let file = self.home.path().join(format!("sent-{}", seat.uid));
                tokio::fs::write(&file, bytes).await?;
                anyhow::Ok(seat.store.put_file(key, &file).await?)
            });
        in_time("sending contributions", try_join_all(sent)).await?;
        let gathered = self.seats[MINERS..].iter().map(async |validator| {
            let peers = validator.peers.as_ref().context("a validator has peers")?;
            for (seat, key) in self.seats.iter().zip(&keys) {
                let read =
                    peers.fetch(&seat.endpoint, key, &Limits::for_bytes(CONTRIBUTION_BYTES as u64)).await?;
                ensure!(Digest::of(&read) == key.digest(), "{key} has other bytes");
            }
            Ok(())
        });
        in_time("gathering contributions", try_join_all(gathered)).await?;

        self.weigh(window).await?;
        self.go_to(schedule.reveal_deadline(window)).await?;
        let uids = self.seats[..MINERS].iter().map(|seat| seat.uid);
        let verdicts: Vec<(Uid, Verdict)> = uids.map(|uid| (uid, Verdict::Valid)).collect();
        self.call(validators.clone(), |_| {
            let verdicts = verdicts.clone().try_into().expect("no more verdicts than seats");
            let next_salt = Digest::of(&window.0.to_le_bytes());
            pallet_windows::Call::attest { run: RUN, window, verdicts, next_salt }.into()
        })
        .await?;
        self.go_to(Block(schedule.attest_deadline(window).0 + 1)).await?;

        let update = noise(&[b"update", &window.0.to_le_bytes()[..]].concat(), UPDATE_BYTES);
        let state_root = params().is_checkpoint(window).then(|| Digest::of(b"state"));
        let vote = Vote { update: Digest::of(&update), state_root };
        self.publish(window, update.into(), strangers).await?;
        self.call(validators, |_| pallet_windows::Call::vote { run: RUN, window, vote }.into()).await?;
        self.go_to(Block(schedule.opens_at(window.next()).0 - 1)).await?;
        let view: Option<WindowView> = self.seats[0].client.window(RUN, window).await?;
        let left = self.pending().await?;
        ensure!(left == 0, "{left} calls are left");
        Ok(view.context("the chain has the window")?.outcome == Some(Outcome::Merged(vote)))
    }

    /// Commits an epoch's weights in its last window, and reveals them in the next one.
    async fn weigh(&mut self, window: Window) -> anyhow::Result<()> {
        let miners = self.seats[..MINERS].iter().map(|seat| (seat.uid, 60_000));
        let (mut weights, validators): (Vec<(Uid, u16)>, _) = (miners.collect(), MINERS..MINERS + VALIDATORS);
        weights.sort_unstable();
        let epoch = window.epoch(EPOCH_WINDOWS);
        if (window.0 + 1).is_multiple_of(EPOCH_WINDOWS) {
            self.call(validators, |hotkey| {
                let hash = reveal::commitment(&weights, &SALT, hotkey);
                pallet_weights::Call::commit { run: RUN, epoch, hash }.into()
            })
            .await
        } else if let Some(epoch) = epoch.checked_sub(1) {
            self.call(validators, |_| {
                let weights = weights.clone().try_into().expect("no more weights than seats");
                pallet_weights::Call::reveal { run: RUN, epoch, weights, salt: SALT }.into()
            })
            .await
        } else {
            Ok(())
        }
    }

    /// Publishes the update as one validator, reads it as every other node and as strangers, and removes old objects.
    async fn publish(&self, window: Window, update: Bytes, strangers: Strangers) -> anyhow::Result<()> {
        let (key, limits) =
            (keys::update(RUN, window, &Digest::of(&update)), Limits::for_bytes(UPDATE_BYTES as u64));
        let from = &self.seats[MINERS + window.0 as usize % VALIDATORS];
        from.store.put(&key, update.clone()).await?;
        let read = self.seats.iter().map(async |seat| {
            let fetch: &dyn Fetch = match &seat.peers {
                Some(peers) => &**peers,
                None => &*self.http,
            };
            let read = fetch.fetch(&from.endpoint, &key, &limits).await?;
            ensure!(Digest::of(&read) == key.digest(), "{key} has other bytes");
            Ok(())
        });
        in_time("reading the update", try_join_all(read)).await?;
        match strangers {
            Strangers::One => self.visit(from, window.0 as usize / VALIDATORS % 2, &key).await?,
            Strangers::AtEach => {
                for validator in &self.seats[MINERS..] {
                    validator.store.put(&key, update.clone()).await?;
                    self.visit(validator, 0, &key).await?;
                }
            }
        }
        if let Some(old) = window.0.checked_sub(WINDOWS_KEPT) {
            for seat in self.seats.iter().filter(|seat| !seat.endpoint.starts_with("p2p://")) {
                let listed = seat.store.list(&keys::window_prefix(RUN, Window(old)), 1000).await?;
                for key in listed.entries.iter().filter_map(store::Entry::key) {
                    seat.store.delete(&key).await?;
                }
            }
        }
        Ok(())
    }

    /// Reads an object of a validator over QUIC (0) or TCP (1), as a node without a seat.
    async fn visit(&self, validator: &Seat, transport: usize, key: &ObjectKey) -> anyhow::Result<()> {
        let settings = NetworkSettings {
            key: NodeKey::generate()?,
            genesis: GenesisHash(self.genesis.0),
            listen: None,
            allow_private: true,
            limits: AddressLimits::default(),
        };
        let stranger = PeerFetcher::new(Arc::new(Network::start(settings).await?));
        let peers = validator.peers.as_ref().context("a validator has peers")?;
        let url = peers.network.listening()[transport].to_string();
        let read = stranger.fetch(&url, key, &Limits::for_bytes(UPDATE_BYTES as u64)).await?;
        ensure!(Digest::of(&read) == key.digest(), "{key} has other bytes");
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the broken promises if each window after the warm-up adds these bytes to the heap and the resident
    /// memory, and more files are open at the end.
    fn broken(heap: f64, resident: f64, sockets: usize) -> Vec<String> {
        let size = Size::FULL;
        let held: Vec<Held> = (0..size.windows)
            .map(|window| {
                let grown = f64::from(window.saturating_sub(size.warm_up));
                // Bytes that the phases of a window and of the pools add and remove.
                let noise = f64::from(window % 7) * 1e5;
                let (heap, resident) = (4e7 + noise + heap * grown, 9e7 + noise + resident * grown);
                let last = window + 1 == size.windows;
                Held { heap, resident, sockets: if last { 90 + sockets } else { 90 }, files: 30 }
            })
            .collect();
        let mut report = Report::new("soak");
        judge(&size, &held, &mut report);
        report.broken
    }

    #[test]
    fn three_kibibytes_of_heap_per_window_are_a_leak_and_noise_is_none() {
        assert!(broken(0.0, 8192.0, 10).is_empty());
        assert!(broken(3072.0, 2048.0, 0)[..].iter().all(|broken| broken.contains("3.0 KiB to the heap")));
        assert_eq!(broken(3072.0, 2048.0, 0).len(), 1);
        assert_eq!(broken(0.0, 20_000.0, 0).len(), 1);
        assert_eq!(broken(0.0, 0.0, FILES_MORE + 1).len(), 1);
    }
}
