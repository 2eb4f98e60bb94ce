//! The JSON-RPC: methods, texts and error codes of any client.

use crate::{Wire, alice, hex, hex_bytes, manual, remark, seal, signed, start, sudo, tipped, transfer};
use mettle_embedded_chain::{Config, H256, PoolLimits};
use serde_json::{Value, json};
use sp_core::crypto::AccountId32;
use sp_keyring::Sr25519Keyring;
use subxt::rpcs::rpc_params;

#[tokio::test]
async fn name_and_type_say_that_it_is_a_development_chain() {
    let chain = start(manual()).await;
    let wire = Wire::to(&chain).await;
    assert_eq!(wire.ask("system_chainType", rpc_params![]).await, json!("Development"));
    let name = wire.ask("system_chain", rpc_params![]).await;
    assert!(name.as_str().unwrap().contains("Development"));
    let version = wire.ask("state_getRuntimeVersion", rpc_params![]).await;
    assert_eq!(version["specName"], json!("mettle"));
    let properties = wire.ask("system_properties", rpc_params![]).await;
    assert_eq!(properties, json!({ "tokenDecimals": 12, "tokenSymbol": "MTL", "ss58Format": 42 }));
    chain.shutdown().await;
}

#[tokio::test]
async fn every_method_a_stock_client_needs_is_served() {
    let chain = start(manual()).await;
    let wire = Wire::to(&chain).await;
    let served = wire.ask("rpc_methods", rpc_params![]).await;
    let served: Vec<&str> =
        served["methods"].as_array().unwrap().iter().map(|name| name.as_str().unwrap()).collect();
    for name in [
        "author_pendingExtrinsics",
        "author_submitAndWatchExtrinsic",
        "author_submitExtrinsic",
        "chain_getBlock",
        "chain_getBlockHash",
        "chain_getFinalizedHead",
        "chain_getHeader",
        "chain_subscribeAllHeads",
        "chain_subscribeFinalizedHeads",
        "chain_subscribeNewHeads",
        "chain_unsubscribeNewHeads",
        "payment_queryInfo",
        "rpc_methods",
        "state_call",
        "state_getKeysPaged",
        "state_getMetadata",
        "state_getRuntimeVersion",
        "state_getStorage",
        "state_queryStorageAt",
        "state_subscribeRuntimeVersion",
        "state_subscribeStorage",
        "system_accountNextIndex",
        "system_chain",
        "system_health",
        "system_properties",
    ] {
        assert!(served.contains(&name), "{name}");
    }
    chain.shutdown().await;
}

#[tokio::test]
async fn blocks_are_found_by_number_and_by_hash() {
    let chain = start(manual()).await;
    let wire = Wire::to(&chain).await;
    let head = seal(&chain, 2).await;
    let genesis = json!(chain.genesis_hash());
    let best = json!(head.hash);
    assert_eq!(wire.ask("chain_getBlockHash", rpc_params![]).await, best);
    assert_eq!(wire.ask("chain_getBlockHash", rpc_params![0]).await, genesis);
    assert_eq!(wire.ask("chain_getBlockHash", rpc_params!["0x2"]).await, best);
    assert_eq!(wire.ask("chain_getBlockHash", rpc_params![9]).await, Value::Null);
    assert_eq!(
        wire.ask("chain_getBlockHash", rpc_params![json!([0, "0x02", 9])]).await,
        json!([genesis, best, null])
    );
    assert_eq!(wire.refusal("chain_getBlockHash", rpc_params!["two"]).await.0, -32602);

    let header = wire.ask("chain_getHeader", rpc_params![head.hash]).await;
    assert_eq!(header["number"], json!("0x2"));
    let block = wire.ask("chain_getBlock", rpc_params![]).await;
    assert_eq!(block["block"]["header"], header);
    // The timestamp inherent.
    assert_eq!(block["block"]["extrinsics"].as_array().unwrap().len(), 1);
    let unknown = H256::repeat_byte(1);
    assert_eq!(wire.ask("chain_getHeader", rpc_params![unknown]).await, Value::Null);
    assert_eq!(wire.ask("chain_getBlock", rpc_params![unknown]).await, Value::Null);
    let (code, text) = wire.refusal("state_getStorage", rpc_params!["0x3a636f6465", unknown]).await;
    assert!(code == 4003 && text.contains("UnknownBlock"), "{text}");
    chain.shutdown().await;
}

#[tokio::test]
async fn storage_is_read_by_key_in_pages_and_by_subscription() {
    let chain = start(manual()).await;
    let wire = Wire::to(&chain).await;
    let number = "0x26aa394eea5630e07c48ae0c9558cef702a5c1b19ab7a04f536c519aca4983ac";
    let mut changes = wire
        .0
        .subscribe::<Value>(
            "state_subscribeStorage",
            rpc_params![json!([number])],
            "state_unsubscribeStorage",
        )
        .await
        .unwrap();
    let first = changes.next().await.unwrap().unwrap();
    assert_eq!(first["block"], json!(chain.genesis_hash()));
    let head = seal(&chain, 1).await;
    let second = changes.next().await.unwrap().unwrap();
    assert_eq!(second, json!({ "block": head.hash, "changes": [[number, "0x01000000"]] }));

    assert_eq!(wire.ask("state_getStorage", rpc_params![number]).await, json!("0x01000000"));
    assert_eq!(wire.ask("state_getStorageSize", rpc_params![number]).await, json!(4));
    assert_eq!(wire.ask("state_getStorage", rpc_params!["0x1234"]).await, Value::Null);
    let sets = wire.ask("state_queryStorageAt", rpc_params![json!([number, "0x1234"])]).await;
    assert_eq!(sets, json!([{ "block": head.hash, "changes": [[number, "0x01000000"], ["0x1234", null]] }]));
    let sets = wire.ask("state_queryStorage", rpc_params![json!([number]), chain.genesis_hash()]).await;
    assert_eq!(sets.as_array().unwrap().len(), 2);

    let page = |after: Value| wire.ask("state_getKeysPaged", rpc_params!["0x", 1, after]);
    let one = page(Value::Null).await;
    let two = page(one[0].clone()).await;
    assert!(one[0].as_str().unwrap() < two[0].as_str().unwrap());
    assert_eq!(wire.refusal("state_getKeysPaged", rpc_params!["0x", 1001]).await.0, 4002);
    chain.shutdown().await;
}

#[tokio::test]
async fn the_next_nonce_counts_transactions_in_the_pool() {
    let chain = start(manual()).await;
    let wire = Wire::to(&chain).await;
    let genesis = chain.genesis_hash();
    let address = Sr25519Keyring::Alice.to_account_id().to_string();
    let next = || wire.ask("system_accountNextIndex", rpc_params![&address]);
    assert_eq!(next().await, json!(0));
    let first = signed(&alice(), 0, genesis, &remark(b"first"));
    wire.submit(&first).await;
    // A transaction whose nonce has a gap is neither counted nor offered to a block.
    wire.submit(&signed(&alice(), 2, genesis, &remark(b"third"))).await;
    assert_eq!(next().await, json!(1));
    assert_eq!(wire.ask("author_pendingExtrinsics", rpc_params![]).await, json!([hex(&first)]));
    wire.submit(&signed(&alice(), 1, genesis, &remark(b"second"))).await;
    assert_eq!(next().await, json!(3));
    seal(&chain, 1).await;
    assert_eq!(next().await, json!(3));
    assert_eq!(wire.ask("author_pendingExtrinsics", rpc_params![]).await, json!([]));
    let block = wire.ask("chain_getBlock", rpc_params![]).await;
    assert_eq!(block["block"]["extrinsics"].as_array().unwrap().len(), 4);
    chain.shutdown().await;
}

#[tokio::test]
async fn fees_can_be_queried_before_they_are_paid() {
    let chain = start(manual()).await;
    let wire = Wire::to(&chain).await;
    let extrinsic = signed(&alice(), 0, chain.genesis_hash(), &transfer(&[7; 32], 1 << 40));
    let info = wire.ask("payment_queryInfo", rpc_params![hex(&extrinsic)]).await;
    assert_eq!(info["class"], json!("normal"));
    assert!(info["weight"]["ref_time"].as_u64().unwrap() > 0);
    let fee: u128 = info["partialFee"].as_str().unwrap().parse().unwrap();
    let details = wire.ask("payment_queryFeeDetails", rpc_params![hex(&extrinsic)]).await;
    let part = |name: &str| {
        let text = details["inclusionFee"][name].as_str().unwrap();
        u128::from_str_radix(text.trim_start_matches("0x"), 16).unwrap()
    };
    assert_eq!(part("baseFee") + part("lenFee") + part("adjustedWeightFee"), fee);

    let account = Sr25519Keyring::Alice.to_raw_public();
    let before = wire.free(&account, None).await;
    wire.submit(&extrinsic).await;
    seal(&chain, 1).await;
    let paid = before - wire.free(&account, None).await - (1 << 40);
    assert!(paid > 0 && paid <= fee, "{paid} of {fee}");
    chain.shutdown().await;
}

#[tokio::test]
async fn refused_transactions_have_a_node_s_error_codes() {
    let chain = start(manual()).await;
    let wire = Wire::to(&chain).await;
    let genesis = chain.genesis_hash();
    let refusal = |extrinsic: Vec<u8>| {
        let wire = &wire;
        async move { wire.refusal("author_submitExtrinsic", rpc_params![hex(&extrinsic)]).await }
    };
    let first = signed(&alice(), 0, genesis, &remark(b"first"));
    wire.submit(&first).await;
    assert_eq!(refusal(first.clone()).await.0, 1013);
    assert_eq!(refusal(signed(&alice(), 0, genesis, &remark(b"other"))).await.0, 1014);
    wire.submit(&tipped(&alice(), 0, 1 << 40, genesis, &remark(b"dearer"))).await;

    assert_eq!(refusal(vec![1, 2, 3]).await.0, 1001);
    let (code, text) =
        refusal(signed(&alice(), 0, H256::repeat_byte(9), &remark(b"for another chain"))).await;
    assert!(code == 1010 && text.contains("bad signature"), "{text}");
    let poor = sp_core::Pair::from_seed(&[5; 32]);
    let (code, text) = refusal(signed(&poor, 0, genesis, &remark(b"poor"))).await;
    assert!(code == 1010 && text.contains("pay"), "{text}");
    seal(&chain, 1).await;
    let (code, text) = refusal(first).await;
    assert!(code == 1010 && text.contains("outdated"), "{text}");

    // The same by subscription.
    let watch = wire.0.subscribe::<Value>(
        "author_submitAndWatchExtrinsic",
        rpc_params![hex(&signed(&alice(), 0, genesis, &remark(b"old")))],
        "author_unwatchExtrinsic",
    );
    assert!(watch.await.is_err());
    chain.shutdown().await;
}

#[tokio::test]
async fn calls_nested_too_deep_for_the_stack_are_refused() {
    let chain = start(manual()).await;
    let wire = Wire::to(&chain).await;
    let nested = |depth: usize| [sudo(&[]).repeat(depth), remark(b"")].concat();
    let extrinsic = |depth| signed(&alice(), 0, chain.genesis_hash(), &nested(depth));
    wire.submit(&extrinsic(40)).await;
    seal(&chain, 1).await;
    let deep = hex(&extrinsic(100_000));
    assert_eq!(wire.refusal("author_submitExtrinsic", rpc_params![&deep]).await.0, 1001);
    assert_eq!(wire.refusal("payment_queryInfo", rpc_params![&deep]).await.0, 4003);
    let args = hex(&[&[2][..], &hex_bytes(&deep), &[0; 32]].concat());
    let method = "TaggedTransactionQueue_validate_transaction";
    assert_eq!(wire.refusal("state_call", rpc_params![method, args]).await.0, 4003);
    seal(&chain, 1).await;
    chain.shutdown().await;
}

#[tokio::test]
async fn the_pool_is_bounded() {
    let pool = PoolLimits { transactions: 3, waiting: 1, ..PoolLimits::default() };
    let chain = start(Config { pool, ..manual() }).await;
    let wire = Wire::to(&chain).await;
    let genesis = chain.genesis_hash();
    let extrinsic = |nonce| signed(&alice(), nonce, genesis, &remark(b"a remark"));
    for nonce in 0..3 {
        wire.submit(&extrinsic(nonce)).await;
    }
    assert_eq!(wire.refusal("author_submitExtrinsic", rpc_params![hex(&extrinsic(3))]).await.0, 1016);
    seal(&chain, 1).await;
    wire.submit(&extrinsic(9)).await;
    assert_eq!(wire.refusal("author_submitExtrinsic", rpc_params![hex(&extrinsic(8))]).await.0, 1016);
    wire.submit(&extrinsic(3)).await;
    seal(&chain, 1).await;
    chain.shutdown().await;
}

#[tokio::test]
async fn transactions_that_do_not_fit_are_in_the_next_block() {
    let chain = start(manual()).await;
    let wire = Wire::to(&chain).await;
    // Three of a megabyte and a half: a block takes less than four megabytes of normal extrinsics.
    for nonce in 0..3 {
        wire.submit(&signed(&alice(), nonce, chain.genesis_hash(), &remark(&vec![0; 3 << 19]))).await;
    }
    let count = |block: Value| block["block"]["extrinsics"].as_array().unwrap().len();
    seal(&chain, 1).await;
    assert_eq!(count(wire.ask("chain_getBlock", rpc_params![]).await), 3);
    seal(&chain, 1).await;
    assert_eq!(count(wire.ask("chain_getBlock", rpc_params![]).await), 2);
    chain.shutdown().await;
}

#[tokio::test]
async fn the_genesis_preset_can_be_patched() {
    let config = Config {
        genesis_patch: Some(
            json!({ "balances": { "balances": [[AccountId32::new([7; 32]), 125u64 << 40]] } }),
        ),
        ..manual()
    };
    let chain = start(config).await;
    let wire = Wire::to(&chain).await;
    assert_eq!(wire.free(&[7; 32], None).await, 125 << 40);
    // A list is replaced as a whole.
    let alice = Sr25519Keyring::Alice.to_raw_public();
    assert_eq!(wire.free(&alice, None).await, 0);
    let plain = start(manual()).await;
    assert!(Wire::to(&plain).await.free(&alice, None).await > 0);
    assert_ne!(plain.genesis_hash(), chain.genesis_hash());
    plain.shutdown().await;
    chain.shutdown().await;
}
