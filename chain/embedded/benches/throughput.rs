//! How many transactions of the protocol the chain takes and includes in a second, and how long its blocks take, in a
//! run with as many seats as are asked of it.
//!
//! Not a criterion bench: a window can be filled once. `cargo bench -p embedded-chain --bench throughput` prints one line
//! of JSON; `-- SEATS` for another number of seats.

use codec::{Compact, Encode};
use embedded_chain::{Config, EmbeddedChain, PoolLimits, Sealing};
use mettle_runtime::{RuntimeCall, UNIT, VERSION};
use protocol::{Block, Digest, Role, RunId, RunParams, Schedule, Terms, Window, params::Permille};
use serde_json::{Value, json};
use sp_core::{H256, Pair, sr25519};
use sp_keyring::Sr25519Keyring;
use sp_runtime::traits::{BlakeTwo256, Hash as _};
use std::time::{Duration, Instant};
use subxt::rpcs::{RpcClient, rpc_params};

const RUN: RunId = RunId(0);
const WINDOW_BLOCKS: u32 = 200;

#[tokio::main]
async fn main() {
    let seats = std::env::args().skip(1).find_map(|argument| argument.parse().ok()).unwrap_or(1024);
    let pool = PoolLimits { transactions: 16_384, ..PoolLimits::default() };
    let chain = EmbeddedChain::start(Config { sealing: Sealing::Manual, pool, ..Config::default() }).await;
    let chain = chain.expect("the chain starts");
    let client = RpcClient::from_insecure_url(chain.url()).await.expect("the chain listens");
    let genesis = chain.genesis_hash();

    let owner = Sr25519Keyring::Alice.pair();
    let hotkeys: Vec<sr25519::Pair> = (0..seats)
        .map(|seat: u32| sr25519::Pair::from_seed(&BlakeTwo256::hash(&seat.to_le_bytes()).0))
        .collect();
    let start = set_up(&chain, &client, genesis, &owner, &hotkeys).await;

    // Empty blocks, then the one in which the window opens.
    while chain.best().number + 2 < start {
        chain.seal_now().await.expect("a block");
    }
    let idle = timed(&chain).await;
    let opening = timed(&chain).await;
    assert_eq!(chain.best().number, start, "the window opens in the block that was timed");

    // Everybody commits.
    let commits: Vec<String> = hotkeys
        .iter()
        .map(|hotkey| {
            let call =
                pallet_windows::Call::commit { run: RUN, window: Window(0), digest: Digest::of(b"work") };
            signed(hotkey, 0, genesis, &RuntimeCall::Windows(call).encode())
        })
        .collect();
    let began = Instant::now();
    submit(&client, &commits).await;
    let taken = began.elapsed();
    let mut blocks = Vec::new();
    while pending(&client).await > 0 {
        blocks.push(timed(&chain).await);
    }
    let sealing: Duration = blocks.iter().sum();
    let rate = f64::from(seats) / (taken + sealing).as_secs_f64();
    let millis = |duration: Duration| duration.as_secs_f64() * 1e3;
    println!(
        "{}",
        json!({
            "seats": seats,
            "extrinsics_per_second": rate.round(),
            "taking_ms": millis(taken),
            "including_ms": millis(sealing),
            "blocks": blocks.len(),
            "idle_block_ms": millis(idle),
            "opening_block_ms": millis(opening),
        })
    );
    chain.shutdown().await;
}

/// A run of these seats, about to start. Returns the block of its first window.
async fn set_up(
    chain: &EmbeddedChain,
    client: &RpcClient,
    genesis: H256,
    owner: &sr25519::Pair,
    hotkeys: &[sr25519::Pair],
) -> u32 {
    let start = 60;
    let params = RunParams {
        schedule: Schedule {
            start: Block(start),
            blocks_per_window: WINDOW_BLOCKS,
            commit_by: WINDOW_BLOCKS - 40,
            reveal_by: WINDOW_BLOCKS - 30,
            attest_by: WINDOW_BLOCKS - 20,
            vote_by: WINDOW_BLOCKS - 10,
        },
        ..RunParams::default()
    };
    let terms = Terms {
        miner_seats_max: hotkeys.len() as u16,
        seat_price_min: 0,
        equivocation_slash: Permille(0),
        ..Terms::default()
    };
    let (spec, manifest, theta0) = (Digest::of(b"spec"), Digest::of(b"manifest"), Digest::of(b"theta"));
    let url: pallet_registry::Url = b"http://10.0.0.1/seat".to_vec().try_into().expect("it is short");
    let create = pallet_registry::Call::create_run {
        params,
        terms,
        spec,
        manifest,
        theta0,
        published_at: url.clone(),
    };
    let mut calls = vec![RuntimeCall::Registry(create)];
    calls.extend(hotkeys.iter().map(|hotkey| {
        let hotkey = hotkey.public().into();
        let (role, endpoint) = (Role::Miner, url.clone());
        RuntimeCall::Registry(pallet_registry::Call::register {
            run: RUN,
            role,
            hotkey,
            endpoint,
            stake: UNIT,
            price_max: 0,
        })
    }));
    for (index, calls) in calls.chunks(48).enumerate() {
        let first = index * 48;
        let signed: Vec<String> = (first..)
            .zip(calls)
            .map(|(nonce, call)| signed(owner, nonce as u32, genesis, &call.encode()))
            .collect();
        submit(client, &signed).await;
        while pending(client).await > 0 {
            chain.seal_now().await.expect("a block");
        }
    }
    assert!(chain.best().number + 2 < start, "setting up took {} blocks", chain.best().number);
    start
}

async fn timed(chain: &EmbeddedChain) -> Duration {
    let began = Instant::now();
    chain.seal_now().await.expect("a block");
    began.elapsed()
}

async fn submit(client: &RpcClient, extrinsics: &[String]) {
    for extrinsic in extrinsics {
        let _: Value = client
            .request("author_submitExtrinsic", rpc_params![extrinsic])
            .await
            .unwrap_or_else(|error| panic!("refused: {error}"));
    }
}

async fn pending(client: &RpcClient) -> usize {
    let waiting: Vec<Value> =
        client.request("author_pendingExtrinsics", rpc_params![]).await.expect("the pool answers");
    waiting.len()
}

/// An immortal transaction without a tip, in hexadecimal.
fn signed(key: &sr25519::Pair, nonce: u32, genesis: H256, call: &[u8]) -> String {
    let extra = (0_u8, Compact(nonce), Compact(0_u128)).encode();
    let implied = (VERSION.spec_version, VERSION.transaction_version, genesis, genesis).encode();
    let mut payload = [call, &extra, &implied].concat();
    if payload.len() > 256 {
        payload = BlakeTwo256::hash(&payload).0.to_vec();
    }
    let signature = key.sign(&payload);
    let body = [&[0x84, 0x00][..], &key.public().0, &[0x01], &signature.0, &extra, call].concat();
    format!("0x{}", hex::encode(body.encode()))
}
