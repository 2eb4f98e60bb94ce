//! Faults: dropped blocks, a panicking runtime, slow subscribers.

use crate::{Wire, alice, hex, manual, remark, seal, signed, start, sudo, transfer};
use codec::Encode;
use mettle_embedded_chain::{Config, EmbeddedChain, SealError, Sealing, StartError};
use serde_json::{Value, json};
use std::{
    net::{Ipv4Addr, SocketAddr},
    sync::atomic::{AtomicU8, Ordering::Relaxed},
    time::{Duration, Instant},
};
use subxt::rpcs::{client::RpcSubscription, rpc_params};

async fn watch(wire: &Wire, extrinsic: &[u8]) -> RpcSubscription<Value> {
    let method = "author_submitAndWatchExtrinsic";
    wire.0.subscribe(method, rpc_params![hex(extrinsic)], "author_unwatchExtrinsic").await.unwrap()
}

async fn next(subscription: &mut RpcSubscription<Value>) -> Value {
    let next = tokio::time::timeout(Duration::from_secs(120), subscription.next()).await;
    next.expect("the subscription sends").expect("the subscription is open").unwrap()
}

async fn finalised(wire: &Wire) -> Value {
    wire.ask("chain_getFinalizedHead", rpc_params![]).await
}

#[tokio::test]
async fn dropped_blocks_return_their_transactions_to_the_pool() {
    let chain = start(Config { finality_lag: 2, ..manual() }).await;
    let wire = Wire::to(&chain).await;
    seal(&chain, 3).await;
    let mut statuses =
        watch(&wire, &signed(&alice(), 0, chain.genesis_hash(), &transfer(&[7; 32], 1 << 40))).await;
    let followed = ("chain_subscribeNewHeads", "chain_unsubscribeNewHeads");
    let mut heads = wire.0.subscribe::<Value>(followed.0, rpc_params![], followed.1).await.unwrap();
    assert_eq!(next(&mut heads).await["number"], json!("0x3"));

    let lost = seal(&chain, 1).await;
    assert_eq!(wire.free(&[7; 32], Some(lost.hash)).await, 1 << 40);
    let before = chain.finalised();
    assert_eq!(before.number, 2);
    assert_eq!(finalised(&wire).await, json!(before.hash));

    // Blocks 3 and 4 are dropped and forgotten; finalised ones stay.
    let dropped = wire.ask("engine_dropUnfinalized", rpc_params![]).await;
    assert_eq!(dropped, json!({ "dropped": 2, "head": before.hash }));
    assert_eq!(chain.best(), before);
    assert_eq!(chain.finalised(), before);
    assert_eq!(wire.free(&[7; 32], None).await, 0);
    assert_eq!(wire.ask("chain_getHeader", rpc_params![lost.hash]).await, Value::Null);
    assert_eq!(wire.ask("author_pendingExtrinsics", rpc_params![]).await.as_array().unwrap().len(), 1);

    let again = seal(&chain, 1).await;
    assert_eq!(again.number, 3);
    seal(&chain, 2).await;
    assert_eq!(chain.finalised(), again);
    assert_eq!(wire.free(&[7; 32], None).await, 1 << 40);
    for expected in [
        json!("ready"),
        json!({ "inBlock": lost.hash }),
        json!({ "retracted": lost.hash }),
        json!("ready"),
        json!({ "inBlock": again.hash }),
        json!({ "finalized": again.hash }),
    ] {
        assert_eq!(next(&mut statuses).await, expected);
    }
    // A subscriber of best blocks gets the new ones from the fork.
    let mut numbers = Vec::new();
    while numbers.last() != Some(&json!("0x5")) {
        numbers.push(next(&mut heads).await["number"].clone());
    }
    assert!(numbers.ends_with(&[json!("0x3"), json!("0x4"), json!("0x5")]), "{numbers:?}");
    chain.shutdown().await;
}

#[tokio::test]
async fn dropping_blocks_does_nothing_if_all_are_final() {
    let chain = start(manual()).await;
    let head = seal(&chain, 3).await;
    assert_eq!(chain.drop_unfinalised().await.unwrap(), 0);
    assert_eq!(chain.best(), head);
    seal(&chain, 1).await;
    chain.shutdown().await;
}

#[tokio::test]
async fn a_transaction_that_makes_the_runtime_panic_affects_no_other() {
    let chain = start(manual()).await;
    let wire = Wire::to(&chain).await;
    let genesis = chain.genesis_hash();
    // `set_code` needs an executor, which a native runtime does not have.
    let set_code = sudo(&(0_u8, 2_u8, b"\0asm".to_vec()).encode());
    let poison = signed(&alice(), 1, genesis, &set_code);
    wire.submit(&signed(&alice(), 0, genesis, &transfer(&[7; 32], 1 << 40))).await;
    let mut statuses = watch(&wire, &poison).await;
    let mut dependant = watch(&wire, &signed(&alice(), 2, genesis, &remark(b"after it"))).await;

    seal(&chain, 1).await;
    assert_eq!(wire.free(&[7; 32], None).await, 1 << 40);
    assert_eq!(next(&mut statuses).await, json!("ready"));
    assert_eq!(next(&mut statuses).await, json!("invalid"));
    assert_eq!(wire.refusal("author_submitExtrinsic", rpc_params![hex(&poison)]).await.0, 1012);
    // Its dependant waits for another transaction with its nonce.
    for expected in ["ready", "future"] {
        assert_eq!(next(&mut dependant).await, json!(expected));
    }
    wire.submit(&signed(&alice(), 1, genesis, &remark(b"instead"))).await;
    assert_eq!(next(&mut dependant).await, json!("ready"));
    let head = seal(&chain, 1).await;
    assert_eq!(next(&mut dependant).await, json!({ "inBlock": head.hash }));
    chain.shutdown().await;
}

#[tokio::test]
async fn a_panicking_call_returns_an_error() {
    let chain = start(manual()).await;
    let wire = Wire::to(&chain).await;
    let (code, text) = wire.refusal("state_call", rpc_params!["AccountNonceApi_account_nonce", "0x01"]).await;
    assert!(code == 4003 && text.contains("panicked"), "{text}");
    let (code, text) = wire.refusal("state_call", rpc_params!["No_such", "0x"]).await;
    assert!(code == 4003 && text.contains("No_such"), "{text}");
    seal(&chain, 1).await;
    chain.shutdown().await;
}

#[tokio::test]
async fn a_subscriber_that_is_slow_misses_no_finalised_block() {
    let chain = start(manual()).await;
    let wire = Wire::to(&chain).await;
    let (subscribe, unsubscribe) = ("chain_subscribeFinalizedHeads", "chain_unsubscribeFinalizedHeads");
    let mut heads = wire.0.subscribe::<Value>(subscribe, rpc_params![], unsubscribe).await.unwrap();
    seal(&chain, 300).await;
    for number in 0..=300 {
        assert_eq!(next(&mut heads).await["number"], json!(format!("{number:#x}")));
    }
    chain.shutdown().await;
}

#[tokio::test]
async fn blocks_are_made_at_an_interval_or_for_a_transaction() {
    let by_interval =
        start(Config { block_interval: Duration::from_millis(5), finality_lag: 2, ..Config::default() })
            .await;
    let mut heads = by_interval.heads();
    heads.wait_for(|heads| heads.finalised.number >= 3 && heads.best.number >= 5).await.unwrap();
    by_interval.shutdown().await;

    let instant = start(Config { sealing: Sealing::Instant, ..Config::default() }).await;
    let wire = Wire::to(&instant).await;
    let mut statuses = watch(&wire, &signed(&alice(), 0, instant.genesis_hash(), &remark(b""))).await;
    assert_eq!(next(&mut statuses).await, json!("ready"));
    assert!(next(&mut statuses).await["inBlock"].is_string());
    assert!(next(&mut statuses).await["finalized"].is_string());
    instant.shutdown().await;
}

#[tokio::test]
async fn a_port_in_use_is_an_error_that_names_it() {
    let chain = start(on_own_address(manual())).await;
    let taken = Config { listen: chain.address(), ..manual() };
    let error = EmbeddedChain::start(taken).await.err().expect("the port is taken");
    assert!(matches!(error, StartError::PortTaken { listen } if listen == chain.address()));
    assert!(error.to_string().contains(&chain.address().to_string()));
    let address = chain.address();
    chain.shutdown().await;
    // The port is free afterwards.
    start_again_at(address).await.shutdown().await;
}

/// Moves a chain to an address that no other test uses, so that no test takes a released port.
fn on_own_address(config: Config) -> Config {
    static HOMES: AtomicU8 = AtomicU8::new(2);
    let home =
        Ipv4Addr::new(127, 0, 0, if cfg!(target_os = "linux") { HOMES.fetch_add(1, Relaxed) } else { 1 });
    Config { listen: (home, 0).into(), ..config }
}

/// Starts another chain at the same address. The old socket may stay open for a moment: until the dropped chain's
/// task ends, or while a process of another test still holds an inherited handle.
async fn start_again_at(address: SocketAddr) -> EmbeddedChain {
    let started = Instant::now();
    loop {
        match EmbeddedChain::start(Config { listen: address, ..manual() }).await {
            Ok(chain) => return chain,
            Err(StartError::PortTaken { .. }) if started.elapsed() < Duration::from_secs(60) => {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            Err(error) => panic!("{error}"),
        }
    }
}

#[tokio::test]
async fn a_genesis_that_cannot_be_built_is_refused() {
    let wrong = Config { genesis_patch: Some(json!({ "balances": { "balances": "plenty" } })), ..manual() };
    let error = EmbeddedChain::start(wrong).await.err().expect("the patch is wrong");
    assert!(matches!(error, StartError::Genesis { .. }), "{error}");
}

#[tokio::test]
async fn a_shut_down_chain_closes_its_connections_and_makes_no_block() {
    let chain = start(manual()).await;
    let wire = Wire::to(&chain).await;
    let failed = chain.failed();
    chain.shutdown().await;
    assert!(wire.0.request::<Value>("system_health", rpc_params![]).await.is_err());
    // A shutdown is not an error.
    assert!(tokio::time::timeout(Duration::from_millis(10), failed).await.is_err());
}

#[tokio::test]
async fn dropping_the_handle_stops_the_chain() {
    let chain = start(on_own_address(manual())).await;
    let address = chain.address();
    drop(chain);
    start_again_at(address).await.shutdown().await;
}

#[tokio::test]
async fn a_halted_chain_seals_no_block() {
    let chain = start(manual()).await;
    chain.halt();
    assert!(matches!(chain.seal_now().await, Err(SealError::Stopped)));
    assert!(matches!(chain.drop_unfinalised().await, Err(SealError::Stopped)));
}
