//! The embedded chain with all seats of the largest run, which send every call of their windows.
//!
//! All miners commit at once when the window opens, which is the largest possible burst. All validators then commit to
//! their attestations and reveal them, commit to their votes and reveal them, and post and reveal weights. Each call
//! is signed and sent over JSON-RPC; the client that nodes use reads the results from the chain.

use super::{MIB, Report, quantile, resident_bytes, slope};
use anyhow::{Context as _, ensure};
use chain_client::{Chain as _, SubxtChain, keys::Key};
use codec::{Compact, Encode};
use ed25519_dalek::{Signer as _, SigningKey};
use embedded_chain::{Config, EmbeddedChain, H256, Sealing};
use mettle_runtime::{AccountId, RuntimeCall, UNIT, VERSION, free_calls};
use protocol::{
    Block, Digest, GenesisHash, Hotkey, Role, RunId, RunParams, Schedule, Terms, Uid, Window,
    identity::Signer,
    params::Permille,
    reveal,
    view::{Outcome, Verdict, Vote, WindowView},
};
use serde_json::{Value, json};
use sp_runtime::traits::{BlakeTwo256, Hash as _};
use std::{
    ops::Range,
    time::{Duration, Instant},
};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    task::JoinHandle,
};

const RUN: RunId = RunId(0);
const EPOCH_WINDOWS: u32 = 2;
const SALT: reveal::Salt = [3; 32];
/// Number of connections over which the seats send their calls.
const CONNECTIONS: usize = 16;
/// Number of registrations between two blocks, about as many as fit into one.
const REGISTERED_AT_ONCE: usize = 48;
/// The key of `System.BlockWeight`.
const BLOCK_WEIGHT: &str = "0x26aa394eea5630e07c48ae0c9558cef734abf5cb34d6244378cddbf18e849d96";
/// Minimum share of the due blocks that the chain makes if it keeps its schedule.
const PACE: f64 = 0.95;
/// Maximum growth of the chain's memory per window of the largest run. The chain keeps 64 windows.
const WINDOW_BYTES: f64 = 6.0 * MIB;
/// Number of blocks whose state the chain keeps. It is below the default, so that some windows show the retained
/// memory.
const STATES: u32 = 64;

/// Numbers of seats and windows.
pub struct Size {
    pub miners: u16,
    pub validators: u16,
    pub windows: u32,
    /// Declared time between blocks. `None`: a block follows as soon as the calls before it are sent.
    pub block_time: Option<Duration>,
}

impl Size {
    /// The largest run, at the pace of a localnet.
    pub const FULL: Size =
        Size { miners: 1024, validators: 64, windows: 12, block_time: Some(Duration::from_millis(500)) };
    pub const SHORT: Size = Size { miners: 96, validators: 8, windows: 3, block_time: None };
}

/// Returns windows of 28 blocks: all phases, and a few blocks after each deadline.
fn params() -> RunParams {
    RunParams {
        schedule: Schedule {
            start: Block(90),
            blocks_per_window: 28,
            commit_by: 10,
            reveal_by: 12,
            attest_by: 15,
            vote_by: 22,
        },
        epoch_windows: EPOCH_WINDOWS,
        reveal_windows: 1,
        hidden_blocks: 3,
        ..RunParams::default()
    }
}

/// Results for one kind of call.
#[derive(Default)]
struct Kind {
    calls: usize,
    /// Seconds until the last call of a burst was accepted, over all bursts.
    seconds: f64,
    /// Maximum number of blocks from the first one that could include a burst to the one that completed it.
    blocks_max: u32,
    /// Minimum number of blocks left until the deadline.
    left_min: Option<u32>,
    refused: Vec<String>,
}

/// The chain, and the seats that load it.
struct Load {
    chain: EmbeddedChain,
    rpc: Rpc,
    client: SubxtChain,
    genesis: H256,
    hotkeys: Vec<SigningKey>,
    nonces: Vec<u32>,
    miners: usize,
    /// Due time and number of the first paced block, and the interval between blocks.
    pace: Option<(Instant, u32, Duration)>,
    /// Seconds to make each block.
    sealing: Vec<f64>,
    /// Share of the room for one run's free calls that ordinary calls used, by block.
    weights: Vec<f64>,
}

pub async fn run(size: &Size) -> anyhow::Result<Report> {
    let mut report = Report::new("chain");
    let mut load = Load::new(size).await?;
    load.set_up(size).await?;
    let (schedule, hidden) = (params().schedule, params().hidden_blocks);
    load.go_to(Block(schedule.start.0 - 1)).await?;
    (load.sealing, load.weights) = (Vec::new(), Vec::new());
    if let Some(block_time) = size.block_time {
        load.pace = Some((Instant::now(), load.chain.best().number, block_time));
    }
    let (mut kinds, mut memory) = ([(); 7].map(|()| Kind::default()), Vec::new());
    let miners = usize::from(size.miners);
    let validators: Range<usize> = miners..load.hotkeys.len();
    let verdicts: Vec<(Uid, Verdict)> = (0..size.miners).map(|uid| (Uid(uid), Verdict::Valid)).collect();
    let weights: Vec<(Uid, u16)> = (0..size.miners).map(|uid| (Uid(uid), 60_000 + uid % 5_000)).collect();
    for window in (0..size.windows).map(Window) {
        let opens = schedule.opens_at(window);
        load.go_to(opens).await?;
        let [commit, weigh, show, hide, attest, bind, vote] = &mut kinds;

        let commits = (0..miners).map(|seat| {
            let digest = Digest::of_parts(&[&seat.to_le_bytes(), &window.0.to_le_bytes()]);
            (seat, pallet_windows::Call::commit { run: RUN, window, digest }.into())
        });
        let (calls, by) = (commits.collect(), schedule.commit_deadline(window));
        load.all_by(window, by, calls, commit, |view| view.commitments.len() == miners).await?;

        // An epoch's weights are committed in its last window, and revealed in the next one.
        let (epoch, is_last) = (window.epoch(EPOCH_WINDOWS), (window.0 + 1).is_multiple_of(EPOCH_WINDOWS));
        let by = schedule.reveal_deadline(window);
        if is_last {
            let calls = load.of(&validators, |hotkey| {
                let hash = reveal::commitment(&weights, &SALT, hotkey);
                pallet_weights::Call::commit { run: RUN, epoch, hash }.into()
            });
            load.all_by(window, by, calls, weigh, |_| true).await?;
        } else if let Some(epoch) = epoch.checked_sub(1) {
            let calls = load.of(&validators, |_| {
                let weights = weights.clone().try_into().expect("no more weights than seats");
                pallet_weights::Call::reveal { run: RUN, epoch, weights, salt: SALT }.into()
            });
            load.all_by(window, by, calls, show, |_| true).await?;
        }

        load.go_to(by).await?;
        let calls = load.of(&validators, |hotkey| {
            let hash = reveal::commitment(&verdicts, &SALT, hotkey);
            let next_salt = Digest::of(&window.0.to_le_bytes());
            pallet_windows::Call::attest_hidden { run: RUN, window, hash, next_salt }.into()
        });
        let by = schedule.attest_deadline(window);
        load.all_by(window, by, calls, hide, |_| true).await?;

        load.go_to(by).await?;
        let calls = load.of(&validators, |_| {
            let verdicts = verdicts.clone().try_into().expect("no more verdicts than seats");
            pallet_windows::Call::reveal_attestation { run: RUN, window, verdicts, salt: SALT }.into()
        });
        let (by, all) = (Block(by.0 + hidden), validators.len());
        load.all_by(window, by, calls, attest, |view| view.attested.len() == all).await?;

        load.go_to(Block(by.0 + 1)).await?;
        let state_root = params().is_checkpoint(window).then(|| Digest::of(b"state"));
        let ballot = Vote { update: Digest::of(&window.0.to_le_bytes()), state_root };
        let calls = load.of(&validators, |hotkey| {
            let hash = reveal::commitment(&ballot, &SALT, hotkey);
            pallet_windows::Call::vote_hidden { run: RUN, window, hash }.into()
        });
        let by = schedule.vote_deadline(window);
        load.all_by(window, by, calls, bind, |_| true).await?;

        load.go_to(by).await?;
        let calls = load.of(&validators, |_| {
            pallet_windows::Call::reveal_vote { run: RUN, window, vote: ballot, salt: SALT }.into()
        });
        let by = Block(by.0 + hidden);
        load.all_by(window, by, calls, vote, |view| view.votes.len() == all).await?;

        load.go_to(Block(schedule.opens_at(window.next()).0 - 1)).await?;
        let view = load.window(window).await?;
        report.promise(view.outcome == Some(Outcome::Merged(ballot)), || {
            format!("window {} is {:?}, with {} votes", window.0, view.outcome, view.votes.len())
        });
        let left = load.pending().await?;
        report.promise(left == 0, || format!("{left} calls are left after window {}", window.0));
        memory.push(resident_bytes()? as f64);
    }
    load.measure(size, &kinds, &memory, &mut report);
    load.chain.shutdown().await;
    Ok(report)
}

const KINDS: [&str; 7] = [
    "commitments",
    "weights, hidden",
    "weights, revealed",
    "attestations, hidden",
    "attestations, revealed",
    "votes, hidden",
    "votes, revealed",
];

impl Load {
    async fn new(size: &Size) -> anyhow::Result<Load> {
        let config = Config { sealing: Sealing::Manual, keep_states: STATES, ..Config::default() };
        let chain = EmbeddedChain::start(config).await?;
        let client = SubxtChain::connect(&chain.url(), None).await?;
        let key = |seat: u16| SigningKey::from_bytes(&Digest::of_parts(&[b"load", &seat.to_le_bytes()]).0);
        let hotkeys: Vec<SigningKey> = (0..size.miners + size.validators).map(key).collect();
        Ok(Load {
            rpc: Rpc::to(&chain).await?,
            client,
            genesis: chain.genesis_hash(),
            nonces: vec![0; hotkeys.len()],
            hotkeys,
            miners: usize::from(size.miners),
            pace: None,
            sealing: Vec::new(),
            weights: Vec::new(),
            chain,
        })
    }

    /// Creates the run and registers all seats.
    async fn set_up(&mut self, size: &Size) -> anyhow::Result<()> {
        let owner = Key::dev("//Alice")?;
        let terms = Terms {
            miner_seats_max: size.miners,
            validator_seats_max: size.validators,
            validator_stake_min: UNIT,
            miner_stake_min: UNIT,
            seat_price_min: 0,
            equivocation_slash: Permille(0),
            ..Terms::default()
        };
        let digest = Digest::of(b"load");
        let url: pallet_registry::Url = b"http://10.0.0.1/seat".to_vec().try_into().expect("it is short");
        let create = pallet_registry::Call::create_run {
            params: params(),
            terms,
            spec: digest,
            manifest: digest,
            theta0: digest,
            published_at: url.clone(),
        };
        let mut calls: Vec<RuntimeCall> = vec![create.into()];
        for (seat, hotkey) in self.hotkeys.iter().enumerate() {
            let signer = Signer::new(hotkey.clone(), GenesisHash(self.genesis.0));
            let call = pallet_registry::Call::register {
                run: RUN,
                role: if seat < self.miners { Role::Miner } else { Role::Validator },
                hotkey: AccountId::from(signer.hotkey().0),
                endpoint: url.clone(),
                stake: UNIT,
                price_max: 0,
                proof: signer.prove_possession(RUN, &owner.account()),
            };
            calls.push(call.into());
        }
        let coldkey = owner.signing_key()?;
        let signed: Vec<String> =
            (0..).zip(&calls).map(|(nonce, call)| signed(coldkey, nonce, self.genesis, call)).collect();
        for signed in signed.chunks(REGISTERED_AT_ONCE) {
            for extrinsic in signed {
                self.rpc.submit(extrinsic).await?;
            }
            while self.pending().await? > 0 {
                self.chain.seal_now().await?;
            }
        }
        let at = self.chain.best().number;
        ensure!(at < params().schedule.start.0, "the seats took until block {at}");
        Ok(())
    }

    /// Returns one call of each of these seats.
    fn of(&self, seats: &Range<usize>, call: impl Fn(&Hotkey) -> RuntimeCall) -> Vec<(usize, RuntimeCall)> {
        let hotkey = |seat: usize| Hotkey(self.hotkeys[seat].verifying_key().to_bytes());
        seats.clone().map(|seat| (seat, call(&hotkey(seat)))).collect()
    }

    /// Sends one call of each of these seats, and makes blocks until the chain has all of them or the deadline has
    /// passed. `has_all` decides this from the window.
    async fn all_by(
        &mut self,
        window: Window,
        deadline: Block,
        calls: Vec<(usize, RuntimeCall)>,
        kind: &mut Kind,
        has_all: impl Fn(&WindowView) -> bool,
    ) -> anyhow::Result<()> {
        let mut signed_calls = Vec::with_capacity(calls.len());
        for (seat, call) in &calls {
            signed_calls.push(signed(&self.hotkeys[*seat], self.nonces[*seat], self.genesis, call));
            self.nonces[*seat] += 1;
        }
        kind.calls += calls.len();
        let (from, mut sending) = (self.chain.best().number, Some(self.send(signed_calls)));
        loop {
            if let Some(sent) = sending.take_if(|sent| self.pace.is_none() || sent.is_finished()) {
                let (seconds, refused) = sent.await??;
                kind.seconds += seconds;
                kind.refused.extend(refused);
            }
            let at = self.chain.best().number;
            let is_there =
                sending.is_none() && self.pending().await? == 0 && has_all(&self.window(window).await?);
            if is_there && from < at {
                kind.blocks_max = kind.blocks_max.max(at - from);
                let left = deadline.0.saturating_sub(at);
                kind.left_min = Some(kind.left_min.map_or(left, |before| before.min(left)));
                return Ok(());
            }
            if deadline.0 <= at {
                kind.refused
                    .push(format!("window {}: some are not included by block {}", window.0, deadline.0));
                return Ok(());
            }
            self.block().await?;
        }
    }

    /// Sends extrinsics over several connections at once. Returns the seconds taken, and the reasons of refusals.
    fn send(&self, extrinsics: Vec<String>) -> JoinHandle<anyhow::Result<(f64, Vec<String>)>> {
        let address = self.chain.address();
        tokio::spawn(async move {
            let mut parts = tokio::task::JoinSet::new();
            let each = extrinsics.len().div_ceil(CONNECTIONS).max(1);
            let began = Instant::now();
            for part in extrinsics.chunks(each) {
                let part = part.to_vec();
                parts.spawn(async move {
                    let (mut rpc, mut refused) = (Rpc::at(address).await?, Vec::new());
                    for extrinsic in &part {
                        refused.extend(rpc.submit(extrinsic).await.err().map(|error| format!("{error:#}")));
                    }
                    anyhow::Ok(refused)
                });
            }
            let mut refused = Vec::new();
            while let Some(part) = parts.join_next().await {
                refused.extend(part??);
            }
            Ok((began.elapsed().as_secs_f64(), refused))
        })
    }

    async fn go_to(&mut self, block: Block) -> anyhow::Result<()> {
        while self.chain.best().number < block.0 {
            self.block().await?;
        }
        Ok(())
    }

    /// Makes the next block, but not before it is due.
    async fn block(&mut self) -> anyhow::Result<()> {
        if let Some((since, first, every)) = self.pace {
            let due = since + every * (self.chain.best().number + 1 - first);
            tokio::time::sleep_until(due.into()).await;
        }
        let began = Instant::now();
        let head = self.chain.seal_now().await?;
        self.sealing.push(began.elapsed().as_secs_f64());
        let weight = self.rpc.ask("state_getStorage", json!([BLOCK_WEIGHT])).await?;
        let weight = hex::decode(weight.as_str().context("a block has a weight")?.trim_start_matches("0x"))?;
        // Two compact numbers for each class of calls; ordinary ones come first.
        let Compact(ordinary) = <Compact<u64> as codec::Decode>::decode(&mut &weight[..])?;
        self.weights.push(ordinary as f64 / free_calls::room_of_one() as f64);
        let mut heads = self.client.heads();
        heads.wait_for(|seen| head.number <= seen.block.0).await?;
        Ok(())
    }

    async fn window(&self, window: Window) -> anyhow::Result<WindowView> {
        self.client.window(RUN, window).await?.with_context(|| format!("window {} is not there", window.0))
    }

    async fn pending(&mut self) -> anyhow::Result<usize> {
        let waiting = self.rpc.ask("author_pendingExtrinsics", json!([])).await?;
        Ok(waiting.as_array().context("the pool answers with a list")?.len())
    }

    fn measure(&mut self, size: &Size, kinds: &[Kind; 7], memory: &[f64], report: &mut Report) {
        report.figure("seats", self.hotkeys.len() as f64, "");
        report.figure("windows", f64::from(size.windows), "");
        let (calls, seconds) = kinds
            .iter()
            .fold((0, 0.0), |(calls, seconds), kind| (calls + kind.calls, seconds + kind.seconds));
        report.figure("calls", calls as f64, "");
        report.figure("calls accepted", calls as f64 / seconds, "per second");
        for (name, kind) in KINDS.iter().zip(kinds) {
            report.figure(format!("{name}: included within"), f64::from(kind.blocks_max), "blocks");
            let left = kind.left_min.map_or(0.0, f64::from);
            report.figure(format!("{name}: left until the deadline"), left, "blocks");
            report.promise(kind.refused.is_empty(), || {
                let first = kind.refused.first().cloned().unwrap_or_default();
                format!(
                    "{}: {} of {} calls failed, the first as: {first}",
                    name,
                    kind.refused.len(),
                    kind.calls
                )
            });
        }
        self.sealing.sort_by(f64::total_cmp);
        report.figure("time to make a block, median", 1e3 * quantile(&self.sealing, 0.5), "ms");
        report.figure("time to make a block, longest", 1e3 * quantile(&self.sealing, 1.0), "ms");
        let used = self.weights.iter().sum::<f64>() / self.weights.len() as f64;
        let fullest = self.weights.iter().copied().fold(0.0, f64::max);
        report.figure("room of a run's free calls that is used", 100.0 * used, "%");
        report.figure("the same in the fullest block", 100.0 * fullest, "%");
        // Paying calls share the room of ordinary calls, so a little more is possible, but none of these pays.
        report.promise(fullest <= 1.0, || format!("a block gave a run {fullest:.3} of its room"));
        let settled = &memory[memory.len() / 2..];
        let growth = if settled.len() < 2 { 0.0 } else { slope(settled) };
        report.figure("memory per window, second half", growth / MIB, "MiB");
        report.promise(growth <= WINDOW_BYTES, || {
            format!("a window adds {:.1} MiB, more than {:.1}", growth / MIB, WINDOW_BYTES / MIB)
        });
        if let Some((since, first, every)) = self.pace {
            let made = f64::from(self.chain.best().number - first);
            let kept = made * every.as_secs_f64() / since.elapsed().as_secs_f64();
            report.figure("blocks made of those due", 100.0 * kept, "%");
            report.promise(PACE <= kept, || {
                format!("{:.0} % of the blocks that were due were made", 100.0 * kept)
            });
        }
    }
}

/// Returns an immortal transaction without a tip, in hexadecimal.
pub(super) fn signed(key: &SigningKey, nonce: u32, genesis: H256, call: &RuntimeCall) -> String {
    let (call, extra) = (call.encode(), (0_u8, Compact(nonce), Compact(0_u128), 0_u8).encode());
    let implied =
        (VERSION.spec_version, VERSION.transaction_version, genesis, genesis, None::<[u8; 32]>).encode();
    let mut payload = [&call[..], &extra, &implied].concat();
    if payload.len() > 256 {
        payload = BlakeTwo256::hash(&payload).0.to_vec();
    }
    let (account, signature) = (key.verifying_key().to_bytes(), key.sign(&payload).to_bytes());
    // An account's id, and an ed25519 signature.
    let body = [&[0x84, 0x00][..], &account, &[0x00], &signature, &extra, &call].concat();
    format!("0x{}", hex::encode(body.encode()))
}

/// JSON-RPC over one HTTP connection.
pub(super) struct Rpc(TcpStream);

impl Rpc {
    async fn to(chain: &EmbeddedChain) -> anyhow::Result<Rpc> {
        Rpc::at(chain.address()).await
    }

    pub(super) async fn at(address: std::net::SocketAddr) -> anyhow::Result<Rpc> {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        Ok(Rpc(stream))
    }

    pub(super) async fn submit(&mut self, extrinsic: &str) -> anyhow::Result<()> {
        self.ask("author_submitExtrinsic", json!([extrinsic])).await.map(drop)
    }

    pub(super) async fn ask(&mut self, method: &str, params: Value) -> anyhow::Result<Value> {
        let body = json!({ "jsonrpc": "2.0", "id": 1, "method": method, "params": params }).to_string();
        let head = format!(
            "POST / HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n",
            body.len()
        );
        self.0.write_all((head + &body).as_bytes()).await?;
        let mut answer = Vec::new();
        let (mut body_at, mut end) = (0, usize::MAX);
        while answer.len() < end {
            ensure!(0 < self.0.read_buf(&mut answer).await?, "the chain closed the connection");
            if end == usize::MAX
                && let Some(at) = answer.windows(4).position(|ends| ends == b"\r\n\r\n")
            {
                let head = String::from_utf8_lossy(&answer[..at]).to_lowercase();
                let length = head.lines().find_map(|line| line.strip_prefix("content-length:"));
                body_at = at + 4;
                end = body_at + length.context("an answer has a length")?.trim().parse::<usize>()?;
            }
        }
        let mut answer: Value = serde_json::from_slice(&answer[body_at..])?;
        ensure!(answer["error"].is_null(), "{method}: {}", answer["error"]);
        Ok(answer["result"].take())
    }
}
