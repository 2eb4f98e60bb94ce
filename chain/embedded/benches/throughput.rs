//! Measures transactions per second that the chain accepts and includes. Also measures the time of the blocks that
//! open a window and make its selection, in a run with 64 validators. Also reports the length of the runtime API's
//! answers, in hexadecimal as a client receives them.
//!
//! Not a criterion benchmark, because a window can be filled only once. `cargo bench -p mettle-embedded-chain --bench
//! throughput` prints one line of JSON; `-- MINERS` sets the number of miners.

use codec::{Compact, Encode};
use ed25519_dalek::SigningKey;
use mettle_embedded_chain::{Config, EmbeddedChain, PoolLimits, Sealing};
use mettle_runtime::{RuntimeCall, UNIT, VERSION};
use protocol::{
    Block, Digest, GenesisHash, Role, RunId, RunParams, Schedule, Terms, Uid, Window, identity::Signer,
    params::Permille, view::Verdict,
};
use serde_json::{Value, json};
use sp_core::{H256, Pair, ed25519, sr25519};
use sp_keyring::Sr25519Keyring;
use sp_runtime::{
    MultiSignature,
    traits::{BlakeTwo256, Hash as _},
};
use std::time::{Duration, Instant};
use subxt::rpcs::{RpcClient, rpc_params};

const RUN: RunId = RunId(0);
const VALIDATORS: u32 = 64;
const SCHEDULE: Schedule = Schedule {
    start: Block(60),
    blocks_per_window: 200,
    commit_by: 160,
    reveal_by: 170,
    attest_by: 180,
    vote_by: 190,
};

#[tokio::main]
async fn main() {
    let seats = std::env::args().skip(1).find_map(|argument| argument.parse().ok()).unwrap_or(1024);
    let pool = PoolLimits { transactions: 16_384, ..PoolLimits::default() };
    let chain = EmbeddedChain::start(Config { sealing: Sealing::Manual, pool, ..Config::default() }).await;
    let chain = chain.expect("the chain starts");
    let client = RpcClient::from_insecure_url(chain.url()).await.expect("the chain listens");
    let genesis = chain.genesis_hash();

    let owner = Sr25519Keyring::Alice.pair();
    let hotkeys: Vec<ed25519::Pair> = (0..seats + VALIDATORS)
        .map(|seat: u32| ed25519::Pair::from_seed(&BlakeTwo256::hash(&seat.to_le_bytes()).0))
        .collect();
    set_up(&chain, &client, genesis, &owner, &hotkeys).await;
    let (miners, validators) = hotkeys.split_at(seats as usize);

    let idle = timed_at(&chain, SCHEDULE.start.0 - 1).await;
    let opening = timed_at(&chain, SCHEDULE.start.0).await;

    // Every miner commits.
    let commits: Vec<String> = miners
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

    // Every contribution is attested as valid and the selection is made; then the next window opens.
    go_to(&chain, SCHEDULE.start.0 + SCHEDULE.commit_by).await;
    let verdicts: Vec<_> = (0..seats).map(|uid| (Uid(uid as u16), Verdict::Valid)).collect();
    let attestations: Vec<String> = validators
        .iter()
        .map(|hotkey| {
            let call = pallet_windows::Call::attest {
                run: RUN,
                window: Window(0),
                verdicts: verdicts.clone().try_into().expect("no more than there are seats"),
                next_salt: Digest::of(b"salt"),
            };
            signed(hotkey, 0, genesis, &RuntimeCall::Windows(call).encode())
        })
        .collect();
    submit(&client, &attestations).await;
    while pending(&client).await > 0 {
        chain.seal_now().await.expect("a block");
    }
    let selecting = timed_at(&chain, SCHEDULE.start.0 + SCHEDULE.attest_by + 1).await;
    let read = async |method: &str, arguments: Vec<u8>| {
        let arguments = format!("0x{}", hex::encode(arguments));
        let answer: String =
            client.request("state_call", rpc_params![method, arguments]).await.expect("the runtime answers");
        answer.len()
    };
    let (window, uid) = (Window(0), Uid(7));
    let answers = json!({
        "window": read("MettleApi_window", (RUN, window).encode()).await,
        "seats": read("MettleApi_seats", RUN.encode()).await,
        "run": read("MettleApi_run", RUN.encode()).await,
        "window_summary": read("MettleApi_window_summary", (RUN, window).encode()).await,
        "seat_window": read("MettleApi_seat_window", (RUN, window, uid).encode()).await,
        "seat": read("MettleApi_seat", (RUN, uid).encode()).await,
        "update_mirrors": read("MettleApi_update_mirrors", (RUN, window, 7_u32, 4_u32).encode()).await,
    });
    let reopening = timed_at(&chain, SCHEDULE.start.0 + SCHEDULE.blocks_per_window).await;
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
            "opening_block_ms": millis(opening.min(reopening)),
            "selecting_block_ms": millis(selecting),
            "answer_bytes": answers,
        })
    );
    chain.shutdown().await;
}

/// Creates a run with these seats, of which the last ones are validators'.
async fn set_up(
    chain: &EmbeddedChain,
    client: &RpcClient,
    genesis: H256,
    owner: &sr25519::Pair,
    hotkeys: &[ed25519::Pair],
) {
    let params = RunParams { schedule: SCHEDULE, ..RunParams::default() };
    let miners = hotkeys.len() - VALIDATORS as usize;
    let terms = Terms {
        miner_seats_max: miners as u16,
        validator_seats_max: VALIDATORS as u16,
        validator_stake_min: UNIT,
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
    calls.extend(hotkeys.iter().enumerate().map(|(uid, hotkey)| {
        let signer = Signer::new(SigningKey::from_bytes(&hotkey.seed()), GenesisHash(genesis.0));
        let proof = signer.prove_possession(RUN, &owner.public().0);
        let hotkey = hotkey.public().into();
        let role = if uid < miners { Role::Miner } else { Role::Validator };
        let endpoint = url.clone();
        RuntimeCall::Registry(pallet_registry::Call::register {
            run: RUN,
            role,
            hotkey,
            endpoint,
            stake: UNIT,
            price_max: 0,
            proof,
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
}

async fn go_to(chain: &EmbeddedChain, number: u32) {
    while chain.best().number < number {
        chain.seal_now().await.expect("a block");
    }
}

/// Returns the time to make block `number`.
async fn timed_at(chain: &EmbeddedChain, number: u32) -> Duration {
    assert!(chain.best().number < number, "block {number} was made before it could be timed");
    go_to(chain, number - 1).await;
    timed(chain).await
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

/// Returns an immortal transaction without a tip, in hexadecimal.
fn signed<P: Pair<Public: AsRef<[u8]>, Signature: Into<MultiSignature>>>(
    key: &P,
    nonce: u32,
    genesis: H256,
    call: &[u8],
) -> String {
    let extra = (0_u8, Compact(nonce), Compact(0_u128), 0_u8).encode();
    let implied =
        (VERSION.spec_version, VERSION.transaction_version, genesis, genesis, None::<[u8; 32]>).encode();
    let mut payload = [call, &extra, &implied].concat();
    if payload.len() > 256 {
        payload = BlakeTwo256::hash(&payload).0.to_vec();
    }
    let signature: MultiSignature = key.sign(&payload).into();
    let body = [&[0x84, 0x00][..], key.public().as_ref(), &signature.encode(), &extra, call].concat();
    format!("0x{}", hex::encode(body.encode()))
}
