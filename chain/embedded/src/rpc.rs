//! The Substrate JSON-RPC: the methods that subxt, polkadot-js and their like use of a node, in a node's words.
//!
//! Subscriptions are driven by where the chain's ends are, not by a queue of events: whoever is slow finds more headers
//! waiting, misses none that is still kept, and costs no memory meanwhile.

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

/// What a client shows as the name of the chain.
const CHAIN_NAME: &str = "Mettle Development (embedded, one process)";
const NODE_NAME: &str = "mettle-embedded-chain";
/// Storage keys in one answer, as on a node.
const KEYS_MAX: usize = 1000;
/// Storage entries that one subscription may follow.
const FOLLOWED_MAX: usize = 4096;
/// Steps of a transaction that may be waiting for its watcher to take them.
const STATUSES_MAX: usize = 64;

type Answer = Result<Value, ErrorObjectOwned>;

/// Every method that is served.
pub(crate) fn module(chain: Arc<Chain>, engine: bool) -> RpcModule<Chain> {
    let mut module = RpcModule::from_arc(chain);
    blocks(&mut module);
    state(&mut module);
    transactions(&mut module);
    system(&mut module);
    if engine {
        making_blocks(&mut module);
    }
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
        module.register_alias(alias, name).expect("each name is given once, after what it stands for");
    }
    let mut names: Vec<&str> = module.method_names().chain(["rpc_methods"]).collect();
    names.sort_unstable();
    let methods = json!({ "methods": names });
    quick(&mut module, "rpc_methods", move |_, _| Ok(methods.clone()));
    module
}

fn blocks(module: &mut RpcModule<Chain>) {
    quick(module, "chain_getBlockHash", |params, chain| {
        let which: Option<Value> = params.sequence().optional_next()?;
        let hash_of = |number: &Value| Ok(json!(chain.hash_of(block_number(number)?)));
        match which {
            None | Some(Value::Null) => Ok(json!(ends(chain).best.hash)),
            Some(Value::Array(numbers)) => numbers.iter().map(hash_of).collect::<Answer>(),
            Some(number) => hash_of(&number),
        }
    });
    quick(module, "chain_getHeader", |params, chain| {
        Ok(json!(chain.header(at(chain, params.sequence().optional_next()?))))
    });
    quick(module, "chain_getBlock", |params, chain| {
        let block = chain.block(at(chain, params.sequence().optional_next()?)).map_err(unanswered)?;
        Ok(json!(block.map(|(header, extrinsics)| {
            let extrinsics: Vec<Value> = extrinsics.iter().map(|bytes| hex(bytes)).collect();
            json!({ "block": { "header": header, "extrinsics": extrinsics }, "justifications": null })
        })))
    });
    quick(module, "chain_getFinalizedHead", |_, chain| Ok(json!(ends(chain).finalised.hash)));

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
    quick(module, "state_getRuntimeVersion", |_, chain| Ok(json!(chain.runtime.version)));
    slow(module, "state_getMetadata", |params, chain| {
        let (_, state) = chain.state(params.sequence().optional_next()?).map_err(unanswered)?;
        let metadata = chain.runtime.call(&state, "Metadata_metadata", &[]).map_err(failed)?;
        Ok(hex(&decode::<Vec<u8>>(&metadata)?))
    });
    slow(module, "state_call", |params, chain| {
        let mut params = params.sequence();
        let (method, args): (String, Bytes) = (params.next()?, params.next()?);
        let (_, state) = chain.state(params.optional_next()?).map_err(unanswered)?;
        Ok(hex(&chain.runtime.call_for_client(&state, &method, &args).map_err(failed)?))
    });
    quick(module, "state_getStorage", |params, chain| {
        Ok(stored(params, chain)?.map(|value| hex(&value)).unwrap_or_default())
    });
    quick(module, "state_getStorageHash", |params, chain| {
        Ok(json!(stored(params, chain)?.map(|value| BlakeTwo256::hash(&value))))
    });
    quick(module, "state_getStorageSize", |params, chain| {
        Ok(json!(stored(params, chain)?.map(|value| value.len())))
    });
    quick(module, "state_getKeysPaged", |params, chain| {
        let mut params = params.sequence();
        let prefix: Option<Bytes> = params.next()?;
        let count: usize = params.next()?;
        let after: Option<Bytes> = params.optional_next()?;
        let (_, state) = chain.state(params.optional_next()?).map_err(unanswered)?;
        if count > KEYS_MAX {
            return Err(error(4002, format!("count exceeds maximum value. value: {count}, max: {KEYS_MAX}")));
        }
        let keys = state.keys(prefix.as_deref().unwrap_or_default(), after.as_deref(), count);
        Ok(keys.iter().map(|key| hex(key)).collect())
    });
    quick(module, "state_queryStorageAt", |params, chain| {
        let mut params = params.sequence();
        let keys: Vec<StorageKey> = params.next()?;
        Ok(json!([values(chain, &keys, params.optional_next()?)?]))
    });
    slow(module, "state_queryStorage", |params, chain| {
        let mut params = params.sequence();
        let (keys, from): (Vec<StorageKey>, H256) = (params.next()?, params.next()?);
        let to: Option<H256> = params.optional_next()?;
        let number = |hash| chain.header(hash).map(|header| header.number);
        let unknown = |hash| unanswered(QueryError::UnknownBlock(hash));
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
        // It is compiled in: the first version is the last.
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
    slow(module, "author_submitExtrinsic", |params, chain| {
        let extrinsic: Bytes = params.one()?;
        Ok(json!(chain.submit(extrinsic.0, None).map_err(not_taken)?))
    });
    quick(module, "author_pendingExtrinsics", |_, chain| {
        Ok(chain.pending().iter().map(|extrinsic| hex(extrinsic)).collect())
    });
    slow(module, "system_accountNextIndex", |params, chain| {
        let account: String = params.one()?;
        let account = AccountId32::from_str(&account).map_err(|reason| error(-32602, reason.into()))?;
        let (_, state) = chain.state(None).map_err(unanswered)?;
        let nonce = chain.runtime.call(&state, "AccountNonceApi_account_nonce", &account.encode());
        let mut nonce: mettle_runtime::Nonce = decode(&nonce.map_err(failed)?)?;
        // Those that wait in the pool count as if they were in a block. The tag is `CheckNonce`'s.
        while chain.is_provided(&(&account, nonce).encode()) {
            nonce += 1;
        }
        Ok(json!(nonce))
    });
    slow(module, "payment_queryInfo", |params, chain| {
        let info = fees(params, chain, "TransactionPaymentApi_query_info")?;
        let (ref_time, proof_size, class, fee): (Compact<u64>, Compact<u64>, u8, u128) = decode(&info)?;
        let class = ["normal", "operational", "mandatory"].get(usize::from(class));
        Ok(json!({
            "weight": { "ref_time": ref_time.0, "proof_size": proof_size.0 },
            "class": class,
            "partialFee": fee.to_string(),
        }))
    });
    slow(module, "payment_queryFeeDetails", |params, chain| {
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
                taken.expect("taking a transaction does not panic").map_err(not_taken)
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
    quick(module, "system_chain", |_, _| Ok(json!(CHAIN_NAME)));
    quick(module, "system_name", |_, _| Ok(json!(NODE_NAME)));
    quick(module, "system_version", |_, _| Ok(json!(env!("CARGO_PKG_VERSION"))));
    quick(module, "system_chainType", |_, _| Ok(json!("Development")));
    quick(module, "system_properties", |_, _| {
        Ok(json!({ "tokenDecimals": 12, "tokenSymbol": "MTL", "ss58Format": mettle_runtime::SS58_PREFIX }))
    });
    quick(module, "system_health", |_, _| {
        Ok(json!({ "peers": 0, "isSyncing": false, "shouldHavePeers": false }))
    });
    quick(module, "system_peers", |_, _| Ok(json!([])));
    quick(module, "system_localListenAddresses", |_, _| Ok(json!([])));
    quick(module, "system_nodeRoles", |_, _| Ok(json!(["Authority"])));
    quick(module, "system_syncState", |_, chain| {
        let best = ends(chain).best.number;
        Ok(json!({ "startingBlock": 0, "currentBlock": best, "highestBlock": best }))
    });
}

/// What only a development chain offers: to make a block, and to take some back.
fn making_blocks(module: &mut RpcModule<Chain>) {
    slow(module, "engine_createBlock", |_, chain| {
        let head = chain.seal().map_err(|reason| error(5000, reason.to_string()))?;
        Ok(json!({ "hash": head.hash, "number": head.number }))
    });
    slow(module, "engine_dropUnfinalized", |_, chain| {
        let dropped = chain.drop_unfinalised().map_err(|reason| error(5000, reason.to_string()))?;
        Ok(json!({ "dropped": dropped, "head": ends(chain).best.hash }))
    });
}

/// Sends every header that becomes the best. After blocks were dropped it goes on from the block where the chain parted.
///
/// As with all subscriptions, where the chain stands is looked up before the subscription is confirmed: whoever has the
/// confirmation hears of every block that is made from then on.
async fn follow_best(chain: Arc<Chain>, pending: PendingSubscriptionSink) {
    let mut heads = chain.heads();
    let Heads { best, finalised } = *heads.borrow_and_update();
    let Ok(sink) = pending.accept().await else { return };
    if let Some(header) = chain.header(best.hash) {
        send(&sink, &json!(header)).await;
    }
    // What was sent last, and up to where it can never be dropped.
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

/// Sends every header that becomes final, in order.
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

/// Sends the entries as they are, then those that change.
async fn follow_storage(chain: Arc<Chain>, pending: PendingSubscriptionSink, keys: Vec<StorageKey>) {
    let mut heads = chain.heads();
    let mut best = heads.borrow_and_update().best;
    let Ok(sink) = pending.accept().await else { return };
    let mut known = Vec::new();
    loop {
        // It may have been dropped meanwhile: the next change says by what.
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
        if !send(&sink, &status.to_json()).await {
            return;
        }
    }
}

/// Waits for the chain to move; none once nobody listens.
async fn next_heads(sink: &SubscriptionSink, heads: &mut watch::Receiver<Heads>) -> Option<Heads> {
    tokio::select! {
        () = sink.closed() => None,
        changed = heads.changed() => changed.ok().map(|()| *heads.borrow_and_update()),
    }
}

/// Whether somebody still listens.
async fn send(sink: &SubscriptionSink, value: &Value) -> bool {
    let message = serde_json::value::to_raw_value(value).expect("a JSON value has a text");
    sink.send(message).await.is_ok()
}

/// The entries that are not as they were; all of them the first time.
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
    let (head, state) = chain.state(at).map_err(unanswered)?;
    let changes = keys.iter().map(|key| (key.clone(), state.get(&key.0).map(StorageData))).collect();
    Ok(StorageChangeSet { block: head.hash, changes })
}

fn stored(params: &Params<'_>, chain: &Chain) -> Result<Option<Vec<u8>>, ErrorObjectOwned> {
    let mut params = params.sequence();
    let key: StorageKey = params.next()?;
    let (_, state) = chain.state(params.optional_next()?).map_err(unanswered)?;
    Ok(state.get(&key.0))
}

/// What a transaction would cost, as the runtime encodes it.
fn fees(params: &Params<'_>, chain: &Chain, method: &str) -> Result<Vec<u8>, ErrorObjectOwned> {
    let mut params = params.sequence();
    let extrinsic: Bytes = params.next()?;
    let (_, state) = chain.state(params.optional_next()?).map_err(unanswered)?;
    let length = u32::try_from(extrinsic.len()).expect("a request is shorter");
    let args = [extrinsic.0, length.encode()].concat();
    chain.runtime.call_for_client(&state, method, &args).map_err(failed)
}

fn ends(chain: &Chain) -> Heads {
    *chain.heads().borrow()
}

fn at(chain: &Chain, hash: Option<H256>) -> H256 {
    hash.unwrap_or_else(|| ends(chain).best.hash)
}

/// A number, or one in hexadecimal as polkadot-js sends it.
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

fn unanswered(reason: QueryError) -> ErrorObjectOwned {
    error(4003, format!("Client error: {reason}"))
}

fn failed(reason: CallError) -> ErrorObjectOwned {
    error(4003, format!("Client error: Execution failed: {reason}"))
}

/// A node's codes, which clients go by.
fn not_taken(reason: SubmitError) -> ErrorObjectOwned {
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

/// A method that only looks something up.
fn quick(
    module: &mut RpcModule<Chain>,
    name: &'static str,
    answer: impl Fn(&Params<'_>, &Chain) -> Answer + Send + Sync + 'static,
) {
    let registered = module.register_method(name, move |params, chain, _| answer(&params, chain));
    registered.expect("each name is given once");
}

/// A method that runs the runtime.
fn slow(
    module: &mut RpcModule<Chain>,
    name: &'static str,
    answer: impl Fn(&Params<'_>, &Chain) -> Answer + Clone + Send + Sync + 'static,
) {
    let registered = module.register_blocking_method(name, move |params, chain, _| answer(&params, &chain));
    registered.expect("each name is given once");
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
    registered.expect("each name is given once");
}
