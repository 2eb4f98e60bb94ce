//! The Substrate JSON-RPC: the methods of a node that subxt, polkadot-js and other clients use.
//!
//! Subscriptions follow the chain's heads instead of a queue of events. A slow subscriber finds more headers waiting,
//! misses no stored one, and needs no memory.

use crate::{
    chain::{Chain, Head, Heads, QueryError, SubmitError},
    execute::CallError,
    pool::{Rejection, Status},
};
use codec::{Compact, Decode, Encode};
use jsonrpsee::{
    PendingSubscriptionSink, RpcModule, SubscriptionSink,
    types::{ErrorObjectOwned, Params},
};
use serde_json::{Value, json};
use sp_core::{
    Bytes, H256,
    crypto::AccountId32,
    storage::{StorageChangeSet, StorageData, StorageKey},
};
use sp_runtime::{
    traits::{BlakeTwo256, Hash as _},
    transaction_validity::{InvalidTransaction, TransactionValidityError},
};
use std::{str::FromStr, sync::Arc};
use tokio::sync::{mpsc, watch};

/// Name of the chain in clients.
const CHAIN_NAME: &str = "Mettle Development (embedded, one process)";
const NODE_NAME: &str = "mettle-embedded-chain";
/// Maximum number of storage keys in one answer, as on a node.
const KEYS_MAX: usize = 1000;
/// Maximum number of storage entries of one subscription.
const FOLLOWED_MAX: usize = 4096;
/// Maximum number of unread statuses of a transaction.
const STATUSES_MAX: usize = 64;

type Answer = Result<Value, ErrorObjectOwned>;

/// Returns the module with all methods.
pub(crate) fn module(chain: Arc<Chain>) -> RpcModule<Chain> {
    let mut module = RpcModule::from_arc(chain);
    blocks(&mut module);
    state(&mut module);
    transactions(&mut module);
    system(&mut module);
    making_blocks(&mut module);
    for (alias, name) in [
        ("chain_getHead", "chain_getBlockHash"),
        ("chain_getFinalisedHead", "chain_getFinalizedHead"),
        ("chain_getRuntimeVersion", "state_getRuntimeVersion"),
        ("state_getStorageAt", "state_getStorage"),
        ("state_getStorageHashAt", "state_getStorageHash"),
        ("state_getStorageSizeAt", "state_getStorageSize"),
        ("state_getKeysPagedAt", "state_getKeysPaged"),
        ("state_callAt", "state_call"),
        ("account_nextIndex", "system_accountNextIndex"),
    ] {
        module.register_alias(alias, name).expect("each alias is unique and follows its method");
    }
    let mut names: Vec<&str> = module.method_names().chain(["rpc_methods"]).collect();
    names.sort_unstable();
    let methods = json!({ "methods": names });
    method(&mut module, "rpc_methods", move |_, _| Ok(methods.clone()));
    module
}

fn blocks(module: &mut RpcModule<Chain>) {
    method(module, "chain_getBlockHash", |params, chain| {
        let which: Option<Value> = params.sequence().optional_next()?;
        let hash_of = |number: &Value| Ok(json!(chain.hash_of(block_number(number)?)));
        match which {
            None | Some(Value::Null) => Ok(json!(ends(chain).best.hash)),
            Some(Value::Array(numbers)) => numbers.iter().map(hash_of).collect::<Answer>(),
            Some(number) => hash_of(&number),
        }
    });
    method(module, "chain_getHeader", |params, chain| {
        Ok(json!(chain.header(at(chain, params.sequence().optional_next()?))))
    });
    method(module, "chain_getBlock", |params, chain| {
        let block = chain.block(at(chain, params.sequence().optional_next()?)).map_err(query_error)?;
        Ok(json!(block.map(|(header, extrinsics)| {
            let extrinsics: Vec<Value> = extrinsics.iter().map(|bytes| hex(bytes)).collect();
            json!({ "block": { "header": header, "extrinsics": extrinsics }, "justifications": null })
        })))
    });
    method(module, "chain_getFinalizedHead", |_, chain| Ok(json!(ends(chain).finalised.hash)));

    for (subscribe, event, unsubscribe) in [
        ("chain_subscribeNewHeads", "chain_newHead", "chain_unsubscribeNewHeads"),
        ("chain_subscribeNewHead", "chain_newHead", "chain_unsubscribeNewHead"),
        ("chain_subscribeAllHeads", "chain_allHead", "chain_unsubscribeAllHeads"),
    ] {
        subscription(module, subscribe, event, unsubscribe, |_, pending, chain| follow_best(chain, pending));
    }
    for (subscribe, event, unsubscribe) in [
        ("chain_subscribeFinalizedHeads", "chain_finalizedHead", "chain_unsubscribeFinalizedHeads"),
        ("chain_subscribeFinalisedHeads", "chain_finalisedHead", "chain_unsubscribeFinalisedHeads"),
    ] {
        subscription(module, subscribe, event, unsubscribe, |_, pending, chain| {
            follow_finalised(chain, pending)
        });
    }
}

fn state(module: &mut RpcModule<Chain>) {
    method(module, "state_getRuntimeVersion", |_, chain| Ok(json!(chain.runtime.version)));
    blocking_method(module, "state_getMetadata", |params, chain| {
        let (_, state) = chain.state(params.sequence().optional_next()?).map_err(query_error)?;
        let metadata = chain.runtime.call(&state, "Metadata_metadata", &[]).map_err(call_error)?;
        Ok(hex(&decode::<Vec<u8>>(&metadata)?))
    });
    blocking_method(module, "state_call", |params, chain| {
        let mut params = params.sequence();
        let (method, args): (String, Bytes) = (params.next()?, params.next()?);
        let (_, state) = chain.state(params.optional_next()?).map_err(query_error)?;
        Ok(hex(&chain.runtime.call_for_client(&state, &method, &args).map_err(call_error)?))
    });
    method(module, "state_getStorage", |params, chain| {
        Ok(stored(params, chain)?.map(|value| hex(&value)).unwrap_or_default())
    });
    method(module, "state_getStorageHash", |params, chain| {
        Ok(json!(stored(params, chain)?.map(|value| BlakeTwo256::hash(&value))))
    });
    method(module, "state_getStorageSize", |params, chain| {
        Ok(json!(stored(params, chain)?.map(|value| value.len())))
    });
    method(module, "state_getKeysPaged", |params, chain| {
        let mut params = params.sequence();
        let prefix: Option<Bytes> = params.next()?;
        let count: usize = params.next()?;
        let after: Option<Bytes> = params.optional_next()?;
        let (_, state) = chain.state(params.optional_next()?).map_err(query_error)?;
        if count > KEYS_MAX {
            return Err(error(4002, format!("count exceeds maximum value. value: {count}, max: {KEYS_MAX}")));
        }
        let keys = state.keys(prefix.as_deref().unwrap_or_default(), after.as_deref(), count);
        Ok(keys.iter().map(|key| hex(key)).collect())
    });
    method(module, "state_queryStorageAt", |params, chain| {
        let mut params = params.sequence();
        let keys: Vec<StorageKey> = params.next()?;
        Ok(json!([values(chain, &keys, params.optional_next()?)?]))
    });
    blocking_method(module, "state_queryStorage", |params, chain| {
        let mut params = params.sequence();
        let (keys, from): (Vec<StorageKey>, H256) = (params.next()?, params.next()?);
        let to: Option<H256> = params.optional_next()?;
        let number = |hash| chain.header(hash).map(|header| header.number);
        let unknown = |hash| query_error(QueryError::UnknownBlock(hash));
        let to = at(chain, to);
        let first = number(from).ok_or_else(|| unknown(from))?;
        let last = number(to).ok_or_else(|| unknown(to))?;
        let mut sets = Vec::<StorageChangeSet<H256>>::new();
        let mut known = Vec::new();
        for (hash, _) in chain.headers(first, last) {
            let set = values(chain, &keys, Some(hash))?;
            sets.extend(changed_since(&mut known, set));
        }
        Ok(json!(sets))
    });

    let (subscribe, event, unsubscribe) =
        ("state_subscribeRuntimeVersion", "state_runtimeVersion", "state_unsubscribeRuntimeVersion");
    subscription(module, subscribe, event, unsubscribe, |_, pending, chain| async move {
        let Ok(sink) = pending.accept().await else { return };
        // Compiled in, so it never changes.
        send(&sink, &json!(chain.runtime.version)).await;
        sink.closed().await;
    });
    let (subscribe, event, unsubscribe) =
        ("state_subscribeStorage", "state_storage", "state_unsubscribeStorage");
    subscription(module, subscribe, event, unsubscribe, |params, pending, chain| async move {
        match params.sequence().optional_next::<Vec<StorageKey>>() {
            Ok(Some(keys)) if keys.len() <= FOLLOWED_MAX => follow_storage(chain, pending, keys).await,
            Ok(_) => pending.reject(error(4002, format!("name 1 to {FOLLOWED_MAX} keys"))).await,
            Err(error) => pending.reject(error).await,
        }
    });
}

fn transactions(module: &mut RpcModule<Chain>) {
    blocking_method(module, "author_submitExtrinsic", |params, chain| {
        let extrinsic: Bytes = params.one()?;
        Ok(json!(chain.submit(extrinsic.0, None).map_err(submit_error)?))
    });
    method(module, "author_pendingExtrinsics", |_, chain| {
        Ok(chain.pending().iter().map(|extrinsic| hex(extrinsic)).collect())
    });
    blocking_method(module, "system_accountNextIndex", |params, chain| {
        let account: String = params.one()?;
        let account = AccountId32::from_str(&account).map_err(|reason| error(-32602, reason.into()))?;
        let (_, state) = chain.state(None).map_err(query_error)?;
        let nonce = chain.runtime.call(&state, "AccountNonceApi_account_nonce", &account.encode());
        let mut nonce: mettle_runtime::Nonce = decode(&nonce.map_err(call_error)?)?;
        // Transactions in the pool count as included. The tag is that of `CheckNonce`.
        while chain.is_provided(&(&account, nonce).encode()) {
            nonce += 1;
        }
        Ok(json!(nonce))
    });
    blocking_method(module, "payment_queryInfo", |params, chain| {
        let info = fees(params, chain, "TransactionPaymentApi_query_info")?;
        let (ref_time, proof_size, class, fee): (Compact<u64>, Compact<u64>, u8, u128) = decode(&info)?;
        let class = ["normal", "operational", "mandatory"].get(usize::from(class));
        Ok(json!({
            "weight": { "ref_time": ref_time.0, "proof_size": proof_size.0 },
            "class": class,
            "partialFee": fee.to_string(),
        }))
    });
    blocking_method(module, "payment_queryFeeDetails", |params, chain| {
        let details = fees(params, chain, "TransactionPaymentApi_query_fee_details")?;
        let (inclusion, _tip): (Option<(u128, u128, u128)>, u128) = decode(&details)?;
        let hex = |amount: u128| format!("{amount:#x}");
        Ok(json!({ "inclusionFee": inclusion.map(|(base, len, weight)| json!({
            "baseFee": hex(base), "lenFee": hex(len), "adjustedWeightFee": hex(weight),
        })) }))
    });

    let (subscribe, event, unsubscribe) =
        ("author_submitAndWatchExtrinsic", "author_extrinsicUpdate", "author_unwatchExtrinsic");
    subscription(module, subscribe, event, unsubscribe, |params, pending, chain| async move {
        let (watcher, statuses) = mpsc::channel(STATUSES_MAX);
        let taken = match params.one::<Bytes>() {
            Ok(extrinsic) => {
                let taken =
                    tokio::task::spawn_blocking(move || chain.submit(extrinsic.0, Some(watcher))).await;
                taken.expect("submitting a transaction does not panic").map_err(submit_error)
            }
            Err(error) => Err(error),
        };
        match taken {
            Ok(_) => follow_transaction(pending, statuses).await,
            Err(error) => pending.reject(error).await,
        }
    });
}

fn system(module: &mut RpcModule<Chain>) {
    method(module, "system_chain", |_, _| Ok(json!(CHAIN_NAME)));
    method(module, "system_name", |_, _| Ok(json!(NODE_NAME)));
    method(module, "system_version", |_, _| Ok(json!(env!("CARGO_PKG_VERSION"))));
    method(module, "system_chainType", |_, _| Ok(json!("Development")));
    method(module, "system_properties", |_, _| {
        Ok(json!({ "tokenDecimals": 12, "tokenSymbol": "MTL", "ss58Format": mettle_runtime::SS58_PREFIX }))
    });
    method(module, "system_health", |_, _| {
        Ok(json!({ "peers": 0, "isSyncing": false, "shouldHavePeers": false }))
    });
    method(module, "system_peers", |_, _| Ok(json!([])));
    method(module, "system_localListenAddresses", |_, _| Ok(json!([])));
    method(module, "system_nodeRoles", |_, _| Ok(json!(["Authority"])));
    method(module, "system_syncState", |_, chain| {
        let best = ends(chain).best.number;
        Ok(json!({ "startingBlock": 0, "currentBlock": best, "highestBlock": best }))
    });
}

/// Adds the methods of a development chain: make a block, drop blocks.
fn making_blocks(module: &mut RpcModule<Chain>) {
    blocking_method(module, "engine_createBlock", |_, chain| {
        let head = chain.seal().map_err(|reason| error(5000, reason.to_string()))?;
        Ok(json!({ "hash": head.hash, "number": head.number }))
    });
    blocking_method(module, "engine_dropUnfinalized", |_, chain| {
        let dropped = chain.drop_unfinalised().map_err(|reason| error(5000, reason.to_string()))?;
        Ok(json!({ "dropped": dropped, "head": ends(chain).best.hash }))
    });
}

/// Sends each new best header. After a drop it continues from the fork.
///
/// Like all subscriptions, it reads the chain's heads before it confirms the subscription, so that a client misses no
/// block after the confirmation.
async fn follow_best(chain: Arc<Chain>, pending: PendingSubscriptionSink) {
    let mut heads = chain.heads();
    let Heads { best, finalised } = *heads.borrow_and_update();
    let Ok(sink) = pending.accept().await else { return };
    if let Some(header) = chain.header(best.hash) {
        send(&sink, &json!(header)).await;
    }
    // The last header sent, and the last block that cannot be dropped.
    let (mut last, mut sure) = (best, finalised.number);
    while let Some(Heads { best, finalised }) = next_heads(&sink, &mut heads).await {
        for (hash, header) in chain.headers_after(last, sure, best) {
            last = Head { number: header.number, hash };
            if !send(&sink, &json!(header)).await {
                return;
            }
        }
        sure = finalised.number.min(last.number);
    }
}

/// Sends each finalised header, in order.
async fn follow_finalised(chain: Arc<Chain>, pending: PendingSubscriptionSink) {
    let mut heads = chain.heads();
    let mut last = heads.borrow_and_update().finalised;
    let Ok(sink) = pending.accept().await else { return };
    if let Some(header) = chain.header(last.hash) {
        send(&sink, &json!(header)).await;
    }
    while let Some(Heads { finalised, .. }) = next_heads(&sink, &mut heads).await {
        for (_, header) in chain.headers(last.number + 1, finalised.number) {
            if !send(&sink, &json!(header)).await {
                return;
            }
        }
        last = finalised;
    }
}

/// Sends the entries, then those that change.
async fn follow_storage(chain: Arc<Chain>, pending: PendingSubscriptionSink, keys: Vec<StorageKey>) {
    let mut heads = chain.heads();
    let mut best = heads.borrow_and_update().best;
    let Ok(sink) = pending.accept().await else { return };
    let mut known = Vec::new();
    loop {
        // The block may have been dropped; then the next change replaces it.
        if let Ok(set) = values(&chain, &keys, Some(best.hash))
            && let Some(changed) = changed_since(&mut known, set)
            && !send(&sink, &json!(changed)).await
        {
            return;
        }
        match next_heads(&sink, &mut heads).await {
            Some(heads) => best = heads.best,
            None => return,
        }
    }
}

async fn follow_transaction(pending: PendingSubscriptionSink, mut statuses: mpsc::Receiver<Status>) {
    let Ok(sink) = pending.accept().await else { return };
    loop {
        let status = tokio::select! {
            () = sink.closed() => return,
            status = statuses.recv() => status,
        };
        let Some(status) = status else { return };
        if !send(&sink, &json!(status)).await {
            return;
        }
    }
}

/// Waits for new heads; `None` if the subscription is closed.
async fn next_heads(sink: &SubscriptionSink, heads: &mut watch::Receiver<Heads>) -> Option<Heads> {
    tokio::select! {
        () = sink.closed() => None,
        changed = heads.changed() => changed.ok().map(|()| *heads.borrow_and_update()),
    }
}

/// Sends a value; returns `false` if the subscription is closed.
async fn send(sink: &SubscriptionSink, value: &Value) -> bool {
    let message = serde_json::value::to_raw_value(value).expect("a JSON value has a text");
    sink.send(message).await.is_ok()
}

/// Returns the changed entries; all of them the first time.
fn changed_since(
    known: &mut Vec<(StorageKey, Option<StorageData>)>,
    set: StorageChangeSet<H256>,
) -> Option<StorageChangeSet<H256>> {
    let first = known.is_empty();
    let changes: Vec<_> =
        set.changes.iter().enumerate().filter(|(i, entry)| known.get(*i) != Some(*entry)).collect();
    if changes.is_empty() && !first {
        return None;
    }
    let changes = changes.into_iter().map(|(_, entry)| entry.clone()).collect();
    *known = set.changes;
    Some(StorageChangeSet { block: set.block, changes })
}

fn values(
    chain: &Chain,
    keys: &[StorageKey],
    at: Option<H256>,
) -> Result<StorageChangeSet<H256>, ErrorObjectOwned> {
    let (head, state) = chain.state(at).map_err(query_error)?;
    let changes = keys.iter().map(|key| (key.clone(), state.get(&key.0).map(StorageData))).collect();
    Ok(StorageChangeSet { block: head.hash, changes })
}

fn stored(params: &Params<'_>, chain: &Chain) -> Result<Option<Vec<u8>>, ErrorObjectOwned> {
    let mut params = params.sequence();
    let key: StorageKey = params.next()?;
    let (_, state) = chain.state(params.optional_next()?).map_err(query_error)?;
    Ok(state.get(&key.0))
}

/// Returns the fees of a transaction, as the runtime encodes them.
fn fees(params: &Params<'_>, chain: &Chain, method: &str) -> Result<Vec<u8>, ErrorObjectOwned> {
    let mut params = params.sequence();
    let extrinsic: Bytes = params.next()?;
    let (_, state) = chain.state(params.optional_next()?).map_err(query_error)?;
    let length = u32::try_from(extrinsic.len()).expect("requests are shorter");
    let args = [extrinsic.0, length.encode()].concat();
    chain.runtime.call_for_client(&state, method, &args).map_err(call_error)
}

fn ends(chain: &Chain) -> Heads {
    *chain.heads().borrow()
}

fn at(chain: &Chain, hash: Option<H256>) -> H256 {
    hash.unwrap_or_else(|| ends(chain).best.hash)
}

/// Parses a number, also in hexadecimal as polkadot-js sends it.
fn block_number(value: &Value) -> Result<u32, ErrorObjectOwned> {
    let hexadecimal = |text: &str| u32::from_str_radix(text.strip_prefix("0x")?, 16).ok();
    let number = match value {
        Value::String(text) => hexadecimal(text),
        value => value.as_u64().and_then(|number| u32::try_from(number).ok()),
    };
    number.ok_or_else(|| error(-32602, format!("`{value}` is not a block's number")))
}

fn hex(bytes: &[u8]) -> Value {
    json!(format!("0x{}", hex::encode(bytes)))
}

fn decode<T: Decode>(mut bytes: &[u8]) -> Result<T, ErrorObjectOwned> {
    T::decode(&mut bytes).map_err(|reason| error(4003, format!("the runtime's answer: {reason}")))
}

fn query_error(reason: QueryError) -> ErrorObjectOwned {
    error(4003, format!("Client error: {reason}"))
}

fn call_error(reason: CallError) -> ErrorObjectOwned {
    error(4003, format!("Client error: Execution failed: {reason}"))
}

/// Maps an error to the error codes of a node.
fn submit_error(reason: SubmitError) -> ErrorObjectOwned {
    let (code, message, data) = match reason {
        SubmitError::Call(CallError::BadExtrinsic(reason)) => {
            (1001, format!("Extrinsic has invalid format: {reason}"), None)
        }
        SubmitError::Invalid(TransactionValidityError::Invalid(reason)) => {
            let data = match reason {
                InvalidTransaction::Custom(code) => format!("Custom error: {code}"),
                reason => <&str>::from(reason).to_owned(),
            };
            (1010, "Invalid Transaction".to_owned(), Some(data))
        }
        SubmitError::Invalid(TransactionValidityError::Unknown(reason)) => {
            (1011, "Unknown Transaction Validity".to_owned(), Some(<&str>::from(reason).to_owned()))
        }
        SubmitError::Rejected(Rejection::Banned) => {
            (1012, "Transaction is temporarily banned".to_owned(), None)
        }
        SubmitError::Rejected(Rejection::AlreadyThere) => {
            (1013, "Transaction Already Imported".to_owned(), None)
        }
        SubmitError::Rejected(Rejection::PriorityTooLow { taken, offered }) => {
            let data =
                "The transaction has too low priority to replace another transaction already in the pool.";
            (1014, format!("Priority is too low: ({taken} vs {offered})"), Some(data.to_owned()))
        }
        SubmitError::Rejected(Rejection::Full) => {
            let data = "The transaction couldn't enter the pool because of the limit";
            (1016, "Immediately Dropped".to_owned(), Some(data.to_owned()))
        }
        SubmitError::Rejected(reason @ Rejection::NothingProvided) => {
            (1010, "Invalid Transaction".to_owned(), Some(reason.to_string()))
        }
        reason @ (SubmitError::Call(_) | SubmitError::Busy) => {
            (1002, format!("Verification Error: {reason}"), None)
        }
    };
    ErrorObjectOwned::owned(code, message, data)
}

fn error(code: i32, message: String) -> ErrorObjectOwned {
    ErrorObjectOwned::owned(code, message, None::<()>)
}

/// Registers a method that needs no runtime call.
fn method(
    module: &mut RpcModule<Chain>,
    name: &'static str,
    answer: impl Fn(&Params<'_>, &Chain) -> Answer + Send + Sync + 'static,
) {
    let registered = module.register_method(name, move |params, chain, _| answer(&params, chain));
    registered.expect("each method is registered once");
}

/// Registers a method that calls the runtime.
fn blocking_method(
    module: &mut RpcModule<Chain>,
    name: &'static str,
    answer: impl Fn(&Params<'_>, &Chain) -> Answer + Clone + Send + Sync + 'static,
) {
    let registered = module.register_blocking_method(name, move |params, chain, _| answer(&params, &chain));
    registered.expect("each method is registered once");
}

fn subscription<F>(
    module: &mut RpcModule<Chain>,
    subscribe: &'static str,
    event: &'static str,
    unsubscribe: &'static str,
    serve: impl Fn(Params<'static>, PendingSubscriptionSink, Arc<Chain>) -> F + Clone + Send + Sync + 'static,
) where
    F: Future<Output = ()> + Send + 'static,
{
    let registered =
        module.register_subscription(subscribe, event, unsubscribe, move |params, pending, chain, _| {
            serve(params, pending, chain)
        });
    registered.expect("each method is registered once");
}
