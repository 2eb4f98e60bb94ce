//! subxt, an unmodified third-party client, against the chain.

use crate::{manual, seal, start};
use mettle_embedded_chain::{Config, EmbeddedChain, Sealing};
use sp_core::{Pair, ed25519, sr25519};
use sp_keyring::{Ed25519Keyring, Sr25519Keyring};
use std::sync::Arc;
use subxt::{
    OnlineClient, PolkadotConfig,
    backend::LegacyBackend,
    dynamic::{self, At, Value},
    rpcs::RpcClient,
    tx::{Payload, Signer},
    utils::{AccountId32, MultiSignature},
};

const MTL: u128 = 1_000_000_000_000;

/// A signer with the minimum that subxt requires.
#[allow(clippy::large_enum_variant, reason = "a handful of keys in a test")]
enum Key {
    Sr25519(sr25519::Pair),
    Ed25519(ed25519::Pair),
}

impl Signer<PolkadotConfig> for Key {
    fn account_id(&self) -> AccountId32 {
        AccountId32(match self {
            Key::Sr25519(pair) => pair.public().0,
            Key::Ed25519(pair) => pair.public().0,
        })
    }

    fn sign(&self, payload: &[u8]) -> MultiSignature {
        match self {
            Key::Sr25519(pair) => MultiSignature::Sr25519(pair.sign(payload).0),
            Key::Ed25519(pair) => MultiSignature::Ed25519(pair.sign(payload).0),
        }
    }
}

async fn connect(chain: &EmbeddedChain) -> OnlineClient<PolkadotConfig> {
    let rpc = RpcClient::from_insecure_url(chain.url()).await.expect("subxt connects");
    let backend = LegacyBackend::builder().build(rpc);
    OnlineClient::from_backend(Arc::new(backend)).await.expect("subxt reads the chain's metadata")
}

fn transfer(to: [u8; 32], amount: u128) -> impl Payload {
    let to = Value::unnamed_variant("Id", [Value::from_bytes(to)]);
    dynamic::transaction("Balances", "transfer_keep_alive", vec![to, Value::u128(amount)])
}

async fn free(client: &OnlineClient<PolkadotConfig>, account: [u8; 32]) -> u128 {
    let at = client.at_current_block().await.unwrap();
    let address = dynamic::storage::<(Value,), Value>("System", "Account");
    let info = at.storage().entry(address).unwrap().fetch((Value::from_bytes(account),)).await.unwrap();
    let info: Value = info.decode().unwrap();
    info.at("data")
        .and_then(|data| data.at("free"))
        .and_then(|free| free.as_u128())
        .expect("an account has a free balance")
}

#[tokio::test]
async fn subxt_transfers_with_both_kinds_of_key_and_reads_what_happened() {
    let chain = start(Config { sealing: Sealing::Instant, ..Config::default() }).await;
    let client = connect(&chain).await;
    let to = [7; 32];
    let signers = [Key::Sr25519(Sr25519Keyring::Alice.pair()), Key::Ed25519(Ed25519Keyring::Bob.pair())];
    for (signer, expected) in signers.into_iter().zip([5 * MTL, 10 * MTL]) {
        let mut transactions = client.tx().await.unwrap();
        let sent =
            transactions.sign_and_submit_then_watch_default(&transfer(to, 5 * MTL), &signer).await.unwrap();
        let events = sent.wait_for_finalized_success().await.unwrap();
        let names: Vec<String> = events
            .iter()
            .map(|event| {
                event.map(|event| format!("{}.{}", event.pallet_name(), event.event_name())).unwrap()
            })
            .collect();
        assert!(names.contains(&"Balances.Transfer".to_owned()), "{names:?}");
        assert!(names.contains(&"TransactionPayment.TransactionFeePaid".to_owned()), "{names:?}");
        assert_eq!(free(&client, to).await, expected);
    }
    chain.shutdown().await;
}

#[tokio::test]
async fn subxt_names_the_error_of_a_call_that_was_refused() {
    let chain = start(Config { sealing: Sealing::Instant, ..Config::default() }).await;
    let client = connect(&chain).await;
    let remark = Value::unnamed_variant(
        "System",
        [Value::named_variant("remark", [("remark", Value::from_bytes(b"hello"))])],
    );
    let call = dynamic::transaction("Sudo", "sudo", vec![remark]);
    let bob = Key::Sr25519(Sr25519Keyring::Bob.pair());
    let sent = client.tx().await.unwrap().sign_and_submit_then_watch_default(&call, &bob).await.unwrap();
    let refusal = sent.wait_for_finalized_success().await.unwrap_err();
    let text = format!("{refusal} {refusal:?}");
    assert!(text.contains("RequireSudo"), "{text}");
    chain.shutdown().await;
}

#[tokio::test]
async fn subxt_follows_the_finalised_chain_which_lags_behind_the_best() {
    let chain = start(Config { finality_lag: 2, ..manual() }).await;
    let client = connect(&chain).await;
    let mut blocks = client.stream_blocks().await.unwrap();
    seal(&chain, 6).await;
    let mut numbers = Vec::new();
    while numbers.last() != Some(&4) {
        let block = blocks.next().await.unwrap().unwrap();
        let at = block.at().await.unwrap();
        assert!(!at.events().fetch().await.unwrap().is_empty() || block.number() == 0);
        numbers.push(block.number());
    }
    assert!(numbers.windows(2).all(|pair| pair[1] == pair[0] + 1), "{numbers:?}");
    assert_eq!(chain.best().number, 6);
    assert_eq!(chain.finalised().number, 4);
    assert_eq!(client.at_current_block().await.unwrap().block_number(), 4);
    chain.shutdown().await;
}

#[tokio::test]
async fn subxt_calls_the_runtimes_own_api() {
    let chain = start(manual()).await;
    let client = connect(&chain).await;
    let at = client.at_current_block().await.unwrap();
    let runs = dynamic::runtime_api_call::<Vec<Value>, Value>("MettleApi", "runs", vec![]);
    let runs = at.runtime_apis().call(runs).await.unwrap();
    assert_eq!(runs, Value::unnamed_composite([]));
    chain.shutdown().await;
}
