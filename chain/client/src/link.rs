//! One connection to a chain whose identity was checked. Every request has a time limit.
//!
//! Uses only JSON-RPC methods that every Substrate node provides. An error answered by the chain is final; a broken
//! connection is retried. The two are never confused.

use crate::{
    Amount, ChainError, Draft, Head,
    call::{self, Call, CallPayload},
    endpoint::is_private,
    keys::{Key, address},
    offline::{Hex, UnsignedCall},
};
use codec::{Compact, DecodeAll, Encode};
use protocol::{
    Block, Digest, GenesisHash, RunId, Uid, Window,
    view::{Account, Verdict},
};
use sp_core::{Blake2Hasher, Hasher as _};
use std::{future::Future, sync::Arc, time::Duration};
use subxt::{
    OnlineClient, PolkadotConfig,
    backend::LegacyBackend,
    client::OnlineClientAtBlock,
    config::{Config, DefaultExtrinsicParamsBuilder, Header as _, RpcConfigFor},
    dynamic::{self, Value},
    error::DispatchError,
    events::Phase,
    ext::frame_decode::{
        helpers::IntoEncodableValues,
        storage::{IntoDecodableValues, encode_storage_key_prefix},
    },
    rpcs::{
        Error as RpcError, LegacyRpcMethods, RpcClient,
        client::{RpcParams, RpcSubscription},
        methods::legacy::NumberOrHex,
    },
    utils::{AccountId32, Era, H256, MultiSignature},
};
use tokio::sync::{Notify, watch};

type Header = <PolkadotConfig as Config>::Header;

/// Name of the runtime in its version.
const SPEC_NAME: &str = "mettle";

/// Error of a request.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum LinkError {
    /// The connection failed, or the chain is not ready: the request may be repeated.
    #[error("{0}")]
    Broken(String),
    /// The chain answered with an error.
    #[error("{message} ({code})")]
    Answer { code: i32, message: String },
    /// The answer cannot be decoded, or the request cannot be encoded.
    #[error("{0}")]
    Garbled(String),
}

/// Error of opening a connection.
pub(crate) enum OpenError {
    Broken(String),
    WrongChain(ChainError),
}

/// Runtime that bytes are signed for: no other accepts them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Version {
    pub(crate) spec: u32,
    pub(crate) transaction: u32,
}

pub(crate) struct Link {
    methods: LegacyRpcMethods<RpcConfigFor<PolkadotConfig>>,
    /// Metadata and versions as of the connection's first block; calls are encoded and signed for these.
    runtime: OnlineClientAtBlock<PolkadotConfig>,
    pub(crate) genesis: GenesisHash,
    pub(crate) is_development: bool,
    head: watch::Sender<Head>,
    /// Notified when the runtime of the finalised chain differs from the one at the opening of this connection.
    runtime_upgraded: Notify,
    request_timeout: Duration,
}

impl Link {
    /// Connects, and checks the chain: its genesis if one is given, its runtime's name, its calls and its runtime API.
    pub(crate) async fn open(
        url: &str,
        genesis: Option<GenesisHash>,
        request_timeout: Duration,
    ) -> Result<Link, OpenError> {
        let wrong_chain = |expected: String, found: String| {
            OpenError::WrongChain(ChainError::WrongChain { url: url.to_owned(), expected, found })
        };
        // A server that answers the first requests with an error is not a Substrate node.
        let no_node = |error: LinkError| match error {
            LinkError::Broken(why) => OpenError::Broken(why),
            other => wrong_chain("a Substrate node".into(), format!("a server that answers: {other}")),
        };
        let client = within(request_timeout, RpcClient::from_insecure_url(url)).await?;
        let methods = LegacyRpcMethods::new(client.clone());
        let found = within(request_timeout, methods.genesis_hash()).await.map_err(no_node)?;
        let found = GenesisHash(digest(found).0);
        if let Some(expected) = genesis.filter(|expected| *expected != found) {
            return Err(wrong_chain(format!("genesis {expected}"), format!("genesis {found}")));
        }
        let version = within(request_timeout, methods.state_get_runtime_version(None)).await;
        let version = version.map_err(no_node)?;
        let spec_name = version.other.get("specName").and_then(|name| name.as_str()).unwrap_or("unnamed");
        if spec_name != SPEC_NAME {
            let found = format!("one named `{spec_name}`");
            return Err(wrong_chain(format!("a runtime named `{SPEC_NAME}`"), found));
        }
        let kind =
            within(request_timeout, client.request::<String>("system_chainType", RpcParams::new())).await;
        // A kind with its own name is an object, and not a development chain.
        let kind = match kind {
            Ok(kind) => Some(kind),
            Err(LinkError::Broken(why)) => return Err(OpenError::Broken(why)),
            Err(LinkError::Answer { .. } | LinkError::Garbled(_)) => None,
        };
        let is_development =
            is_private(url) && kind.is_some_and(|kind| matches!(kind.as_str(), "Development" | "Local"));

        let head = finalised_head(&methods, request_timeout).await?;
        let backend = LegacyBackend::<PolkadotConfig>::builder().build(client);
        let runtime = tokio::time::timeout(request_timeout, async {
            let unreadable = |error: &dyn std::error::Error| {
                LinkError::Broken(format!("its metadata cannot be read: {}", chain_of(error)))
            };
            let api = OnlineClient::<PolkadotConfig>::from_backend(Arc::new(backend));
            let api = api.await.map_err(|error| unreadable(&error))?;
            let runtime = api.at_block_hash_and_number(hash(&head), u64::from(head.block.0));
            runtime.await.map_err(|error| unreadable(&error))
        });
        let runtime = runtime.await.map_err(|_| LinkError::silent(request_timeout))??;
        call::check_compatible(runtime.metadata_ref())
            .map_err(|found| wrong_chain("the calls and reads of this release".into(), found))?;
        let head = watch::channel(head).0;
        let runtime_upgraded = Notify::new();
        Ok(Link { methods, runtime, genesis: found, is_development, head, runtime_upgraded, request_timeout })
    }

    /// Returns the latest finalised block that this connection has received.
    pub(crate) fn head(&self) -> Head {
        *self.head.borrow()
    }

    /// Records a finalised block, if it is the latest.
    pub(crate) fn observe_head(&self, head: Head) {
        advance(&self.head, head);
    }

    /// Subscribes to finalised blocks. Some may be skipped.
    pub(crate) async fn subscribe(&self) -> Result<RpcSubscription<Header>, LinkError> {
        self.ask(self.methods.chain_subscribe_finalized_heads()).await
    }

    pub(crate) async fn finalised_head(&self) -> Result<Head, LinkError> {
        finalised_head(&self.methods, self.request_timeout).await
    }

    /// Calls the runtime as of `at`, and decodes the whole answer.
    pub(crate) async fn call_runtime<T: DecodeAll>(
        &self,
        method: &str,
        arguments: &[u8],
        at: &Head,
    ) -> Result<T, LinkError> {
        let bytes = self.ask(self.methods.state_call(method, Some(arguments), Some(hash(at)))).await?;
        T::decode_all(&mut bytes.as_slice()).map_err(|error| LinkError::Garbled(format!("{method}: {error}")))
    }

    /// Returns an account's entry as of `at`; `None` if the chain has none.
    pub(crate) async fn account<T: DecodeAll>(
        &self,
        account: &Account,
        at: &Head,
    ) -> Result<Option<T>, LinkError> {
        self.stored("System", "Account", (AccountId32(*account),), at).await
    }

    /// Returns a validator's attestation of a window, as of `at`.
    pub(crate) async fn attestation(
        &self,
        run: RunId,
        window: Window,
        validator: Uid,
        at: &Head,
    ) -> Result<Option<Vec<(Uid, Verdict)>>, LinkError> {
        let window = Value::unnamed_composite([run.0, window.0].map(|part| Value::u128(part.into())));
        let keys = (window, Value::u128(validator.0.into()));
        self.stored("Windows", "Attestations", keys, at).await
    }

    /// Returns the time of the block `at`, in milliseconds since 1970.
    pub(crate) async fn timestamp(&self, at: &Head) -> Result<Option<u64>, LinkError> {
        self.stored("Timestamp", "Now", (), at).await
    }

    /// Returns the time of the block that is `blocks` before `head`; `None` if it does not exist, or is pruned.
    pub(crate) async fn time_before(&self, head: &Head, blocks: u32) -> Result<Option<u64>, LinkError> {
        // Block 0 has no time.
        let Some(number) = head.block.0.checked_sub(blocks).filter(|number| 0 < *number) else {
            return Ok(None);
        };
        let Some(hash) = self.hash_of(Block(number)).await? else { return Ok(None) };
        let at = Head { block: Block(number), hash: digest(hash) };
        Ok(unless_pruned(self.timestamp(&at).await)?.filter(|millis| 0 < *millis))
    }

    /// Returns the hash of a block of the best chain; `None` if the node has none.
    async fn hash_of(&self, block: Block) -> Result<Option<H256>, LinkError> {
        let number = NumberOrHex::Number(u64::from(block.0));
        unless_pruned(self.ask(self.methods.chain_get_block_hash(Some(number))).await)
    }

    /// Returns an amount among a pallet's constants.
    pub(crate) fn constant(&self, pallet: &str, name: &str) -> Result<Amount, LinkError> {
        let amount = self.runtime.constants().entry(subxt::constants::dynamic::<u128>(pallet, name));
        let garbled = |error| LinkError::Garbled(format!("{pallet}.{name}: {}", chain_of(&error)));
        amount.map(Amount).map_err(garbled)
    }

    /// Reads a value of the chain's state.
    async fn stored<K: IntoEncodableValues + IntoDecodableValues, T: DecodeAll>(
        &self,
        pallet: &str,
        entry: &str,
        keys: K,
        at: &Head,
    ) -> Result<Option<T>, LinkError> {
        let garbled = |error: &dyn std::error::Error| {
            LinkError::Garbled(format!("{pallet}.{entry}: {}", chain_of(error)))
        };
        let item = dynamic::storage::<K, Value>(pallet, entry);
        let item = self.runtime.storage().entry(item).map_err(|error| garbled(&error))?;
        let key = item.fetch_key(keys).map_err(|error| garbled(&error))?;
        let bytes = self.ask(self.methods.state_get_storage(&key, Some(hash(at)))).await?;
        let decode = |bytes: Vec<u8>| T::decode_all(&mut bytes.as_slice());
        bytes.map(decode).transpose().map_err(|error| garbled(&error))
    }

    /// Returns the nonce of the account's next call, as of `at`.
    pub(crate) async fn nonce(&self, account: &Account, at: &Head) -> Result<u64, LinkError> {
        self.call_runtime::<u32>("AccountNonceApi_account_nonce", account, at).await.map(u64::from)
    }

    /// Returns the tip of the best chain, which need not be final. Only its hash is the tip's; the number is the
    /// finalised head's.
    pub(crate) async fn best(&self) -> Result<Head, LinkError> {
        let best = self.ask(self.methods.chain_get_block_hash(None)).await?;
        let best = best.ok_or_else(|| LinkError::Broken("the chain names no best block".into()))?;
        Ok(Head { block: self.head().block, hash: digest(best) })
    }

    /// Returns the number of the best chain's tip.
    pub(crate) async fn best_block(&self) -> Result<Block, LinkError> {
        let header = self.ask(self.methods.chain_get_header(None)).await?;
        let header = header.ok_or_else(|| LinkError::Broken("the chain names no best block".into()))?;
        head_of(&header).map(|head| head.block)
    }

    /// Returns the runtime that this connection signs for.
    pub(crate) fn version(&self) -> Version {
        Version { spec: self.runtime.spec_version(), transaction: self.runtime.transaction_version() }
    }

    /// Returns the runtime that executes the block after `at`; after the best block if `None`.
    pub(crate) async fn version_after(&self, at: Option<&Head>) -> Result<Version, LinkError> {
        let version = self.ask(self.methods.state_get_runtime_version(at.map(hash))).await?;
        Ok(Version { spec: version.spec_version, transaction: version.transaction_version })
    }

    /// Waits until the runtime of the finalised chain differs from that of this connection. For one task only.
    pub(crate) async fn runtime_upgraded(&self) {
        self.runtime_upgraded.notified().await;
    }

    /// Signs a call with `tip` that is valid for `blocks` blocks from `signed_at`, a finalised block.
    ///
    /// # Errors
    /// [`LinkError::Broken`] if the runtime was upgraded since the connection was made, [`LinkError::Garbled`] if the
    /// call does not fit the chain's metadata.
    pub(crate) async fn sign(
        &self,
        call: &Call,
        tip: Amount,
        key: &Key,
        nonce: u64,
        signed_at: &Head,
        blocks: u32,
    ) -> Result<Vec<u8>, LinkError> {
        self.same_runtime().await?;
        let payload = self.payload(call)?;
        let params = DefaultExtrinsicParamsBuilder::<PolkadotConfig>::new()
            .nonce(nonce)
            .tip(tip.0.saturating_add(random_tip()))
            .mortal_from_unchecked(u64::from(blocks), u64::from(signed_at.block.0), hash(signed_at))
            .build();
        let signed = self.runtime.tx().create_signable_offline(&payload, params);
        let signed = signed.and_then(|mut signable| signable.sign(key));
        Ok(signed.map_err(|error| LinkError::Garbled(chain_of(&error)))?.into_encoded())
    }

    /// Returns a call with `tip` for a signer elsewhere, valid for `blocks` blocks from `from_block`, a finalised
    /// block.
    pub(crate) async fn unsigned(
        &self,
        call: &Call,
        tip: Amount,
        from: &Account,
        nonce: u64,
        from_block: &Head,
        blocks: u32,
    ) -> Result<UnsignedCall, LinkError> {
        self.same_runtime().await?;
        let garbled = |error: &dyn std::error::Error| LinkError::Garbled(chain_of(error));
        let payload = self.payload(call)?;
        let method = self.runtime.tx().call_data(&payload).map_err(|error| garbled(&error))?;
        let (number, period) = (u64::from(from_block.block.0), u64::from(blocks));
        let params = DefaultExtrinsicParamsBuilder::<PolkadotConfig>::new()
            .nonce(nonce)
            .tip(tip.0)
            .mortal_from_unchecked(period, number, hash(from_block))
            .build();
        let tx = self.runtime.tx();
        let mut signable = tx.create_signable_offline(&payload, params).map_err(|error| garbled(&error))?;
        let to_sign = signable.signer_payload().map_err(|error| garbled(&error))?;
        let zeros = MultiSignature::Ed25519([0; 64]);
        let transaction = signable.sign_with_account_and_signature(&AccountId32(*from), &zeros);
        let metadata = self.runtime.metadata();
        let extensions = metadata.extrinsic().transaction_extensions_to_use_for_encoding();
        Ok(UnsignedCall {
            what: call.to_string(),
            payload: Hex(to_sign),
            transaction: Hex(transaction.map_err(|error| garbled(&error))?.into_encoded()),
            // An era's first block is the one at which the call was signed.
            valid_until: from_block.block.0.saturating_add(blocks.saturating_sub(1)),
            address: address(from),
            method: Hex(method),
            era: Hex(Era::mortal(period, number).encode()),
            nonce: format!("0x{nonce:08x}"),
            tip: format!("0x{:032x}", tip.0),
            block_hash: Hex(from_block.hash.0.to_vec()),
            block_number: format!("0x{number:08x}"),
            genesis_hash: Hex(self.genesis.0.to_vec()),
            spec_version: format!("0x{:08x}", self.version().spec),
            transaction_version: format!("0x{:08x}", self.version().transaction),
            signed_extensions: extensions.map(|extension| extension.identifier().to_owned()).collect(),
            version: 4,
        })
    }

    /// Returns a call in the form that `from` would sign, and its fee. The request for the fee has a signature of
    /// zeros, so that an observer cannot submit it.
    pub(crate) async fn draft(&self, call: &Call, from: &Account) -> Result<Draft, LinkError> {
        self.same_runtime().await?;
        let garbled = |error: &dyn std::error::Error| LinkError::Garbled(chain_of(error));
        let payload = self.payload(call)?;
        let call_data = self.runtime.tx().call_data(&payload).map_err(|error| garbled(&error))?;
        let head = self.head();
        let params = DefaultExtrinsicParamsBuilder::<PolkadotConfig>::new()
            .nonce(0)
            .mortal_from_unchecked(64, u64::from(head.block.0), hash(&head))
            .build();
        let unsigned = self.runtime.tx().create_signable_offline(&payload, params);
        let unsigned = unsigned.and_then(|mut signable| {
            signable.sign_with_account_and_signature(&AccountId32(*from), &MultiSignature::Ed25519([0; 64]))
        });
        let mut arguments = unsigned.map_err(|error| garbled(&error))?.into_encoded();
        let length = u32::try_from(arguments.len()).unwrap_or(u32::MAX);
        length.encode_to(&mut arguments);
        // Weight (two parts), class, fee.
        type DispatchInfo = (Compact<u64>, Compact<u64>, u8, u128);
        let method = "TransactionPaymentApi_query_info";
        let fee = match self.call_runtime::<DispatchInfo>(method, &arguments, &head).await {
            Ok((_, _, _, fee)) => Some(Amount(fee)),
            Err(error @ LinkError::Broken(_)) => return Err(error),
            // A chain without the estimate may still accept the call.
            Err(_) => None,
        };
        Ok(Draft { call_data, fee })
    }

    /// Checks that calls are encoded for the runtime that will decode them.
    ///
    /// After a final upgrade, this also causes a reconnection, which reads the new metadata. Before that, a
    /// reconnection would read the old metadata again.
    async fn same_runtime(&self) -> Result<(), LinkError> {
        if self.version_after(None).await? == self.version() {
            return Ok(());
        }
        if self.version_after(Some(&self.head())).await? == self.version() {
            return Err(LinkError::Broken("its runtime is being upgraded, which is not final yet".into()));
        }
        self.runtime_upgraded.notify_one();
        Err(LinkError::Broken("its runtime was upgraded".into()))
    }

    fn payload(&self, call: &Call) -> Result<CallPayload, LinkError> {
        call.payload(|inner| {
            let data = self.runtime.tx().call_data(&self.payload(inner)?);
            data.map_err(|error| LinkError::Garbled(chain_of(&error)))
        })
    }

    /// Submits signed bytes to the node's pool.
    pub(crate) async fn broadcast(&self, bytes: &[u8]) -> Result<(), LinkError> {
        self.ask(self.methods.author_submit_extrinsic(bytes)).await.map(|_| ())
    }

    /// Returns the reason why the runtime rejects signed bytes as of `at`; `None` if it accepts them.
    pub(crate) async fn invalid(&self, bytes: &[u8], at: &Head) -> Result<Option<Invalid>, LinkError> {
        /// `TransactionSource::External`.
        const EXTERNAL: u8 = 2;
        let mut arguments = vec![EXTERNAL];
        arguments.extend_from_slice(bytes);
        at.hash.encode_to(&mut arguments);
        let method = "TaggedTransactionQueue_validate_transaction";
        let answer = self.ask(self.methods.state_call(method, Some(&arguments), Some(hash(at)))).await?;
        Ok(Invalid::read(&answer))
    }

    /// Returns the finalised block with this number and its extrinsics; `None` if the node has pruned it.
    pub(crate) async fn block(&self, block: Block) -> Result<Option<(Head, Vec<Vec<u8>>)>, LinkError> {
        let Some(hash) = self.hash_of(block).await? else { return Ok(None) };
        let details = unless_pruned(self.ask(self.methods.chain_get_block(Some(hash))).await)?;
        Ok(details.map(|details| {
            let calls = details.block.extrinsics.into_iter().map(|bytes| bytes.0).collect();
            (Head { block, hash: digest(hash) }, calls)
        }))
    }

    /// Returns the indices of the pallet and the call, which are the first bytes of the call's data.
    pub(crate) fn call_index(&self, call: &Call) -> Result<[u8; 2], LinkError> {
        let data = self.runtime.tx().call_data(&self.payload(call)?);
        let data = data.map_err(|error| LinkError::Garbled(chain_of(&error)))?;
        data.first_chunk().copied().ok_or_else(|| LinkError::Garbled("a call has no bytes".into()))
    }

    /// Returns the failure of the call at `index` of a block; `None` if it succeeded. `doing` describes the call.
    pub(crate) async fn failure(
        &self,
        block: &Head,
        index: usize,
        doing: &str,
    ) -> Result<Option<ChainError>, LinkError> {
        // The block exists, but its events are missing or unreadable.
        let unknown = |why: String| {
            let reason = format!("block {} includes it, but {why}", block.block);
            Ok(Some(ChainError::Uncertain { doing: doing.to_owned(), reason }))
        };
        let key = encode_storage_key_prefix("System", "Events");
        let events = match self.ask(self.methods.state_get_storage(&key, Some(hash(block)))).await {
            Ok(Some(bytes)) => self.runtime.events().from_bytes(bytes),
            Ok(None) => return unknown(format!("block {} has no events", block.block)),
            // The state of an old block is pruned.
            Err(LinkError::Answer { message, .. }) => {
                return unknown(format!("the state of block {} cannot be read: {message}", block.block));
            }
            Err(error) => return Err(error),
        };
        for event in events.iter() {
            let event = match event {
                Ok(event) => event,
                Err(error) => return unknown(format!("an event cannot be decoded: {error}")),
            };
            if event.phase() != Phase::ApplyExtrinsic(u32::try_from(index).unwrap_or(u32::MAX)) {
                continue;
            }
            let error = match (event.pallet_name(), event.event_name(), event.field_bytes()) {
                // A proxy's call succeeds even if the inner call fails.
                ("Proxy", "ProxyExecuted", [1, error @ ..]) => error,
                ("System", "ExtrinsicSuccess", _) => return Ok(None),
                ("System", "ExtrinsicFailed", error) => error,
                _ => continue,
            };
            return match DispatchError::decode_from(error, self.runtime.metadata()) {
                Ok(error) => Ok(Some(why_it_failed(error, doing))),
                Err(error) => unknown(error.to_string()),
            };
        }
        unknown(format!("block {} has no event of success or failure", block.block))
    }

    async fn ask<T>(&self, answer: impl Future<Output = Result<T, RpcError>>) -> Result<T, LinkError> {
        within(self.request_timeout, answer).await
    }
}

/// Maps the answer for pruned data to `None`: some nodes return nothing, others an error.
fn unless_pruned<T>(answer: Result<Option<T>, LinkError>) -> Result<Option<T>, LinkError> {
    match answer {
        Err(error @ LinkError::Answer { .. }) => {
            tracing::debug!(%error, "a block cannot be read");
            Ok(None)
        }
        answer => answer,
    }
}

fn why_it_failed(error: DispatchError, doing: &str) -> ChainError {
    let doing = doing.to_owned();
    let DispatchError::Module(module) = &error else {
        return ChainError::Failed { doing, reason: error.to_string() };
    };
    match module.details() {
        Ok(details) => ChainError::Refused {
            doing,
            pallet: details.pallet.name().to_owned(),
            error: details.variant.name.clone(),
            docs: advised(
                &details.variant.name,
                details.variant.docs.iter().map(|line| line.trim()).collect::<Vec<_>>().join(" "),
            ),
        },
        Err(error) => {
            let reason = format!("an error that the metadata does not name: {error}");
            ChainError::Failed { doing, reason }
        }
    }
}

/// Adds the `mettle` command that follows a refusal's advice: the chain does not know its clients.
fn advised(error: &str, docs: String) -> String {
    match error {
        "UnknownRun" => format!("{docs} `mettle run list` lists them."),
        _ => docs,
    }
}

/// Reason why a chain rejects signed bytes, as far as callers distinguish it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Invalid {
    /// The account cannot pay the fee.
    Payment,
    /// The nonce is too high or used, the block of its signature is too old, or blocks currently have no room. Other
    /// bytes, or the same ones later, may be accepted.
    Transient,
    /// The signature is wrong for this chain, or the call is not allowed.
    Final,
}

impl Invalid {
    /// Decodes a SCALE `TransactionValidity`; `None` if it is valid or unknown.
    fn read(answer: &[u8]) -> Option<Invalid> {
        let [1, 0, reason, ..] = answer else { return None };
        Some(match reason {
            1 => Invalid::Payment,
            // Future, stale, ancient birth block, exhausts resources.
            2 | 3 | 5 | 6 => Invalid::Transient,
            _ => Invalid::Final,
        })
    }
}

/// Replaces the latest head if `head` is later.
pub(crate) fn advance(latest: &watch::Sender<Head>, head: Head) {
    latest.send_if_modified(|latest| {
        let later = head.block > latest.block;
        if later {
            *latest = head;
        }
        later
    });
}

/// Makes a request with a time limit.
async fn within<T>(
    limit: Duration,
    answer: impl Future<Output = Result<T, RpcError>>,
) -> Result<T, LinkError> {
    match tokio::time::timeout(limit, answer).await {
        Ok(answer) => answer.map_err(LinkError::from),
        Err(_) => Err(LinkError::silent(limit)),
    }
}

async fn finalised_head(
    methods: &LegacyRpcMethods<RpcConfigFor<PolkadotConfig>>,
    limit: Duration,
) -> Result<Head, LinkError> {
    let hash = within(limit, methods.chain_get_finalized_head()).await?;
    let header = within(limit, methods.chain_get_header(Some(hash))).await?;
    let header = header
        .ok_or_else(|| LinkError::Broken(format!("it has no header for its finalised block {hash}")))?;
    Ok(Head { block: number(&header)?, hash: digest(hash) })
}

/// Returns the block of a header, with its hash as Substrate computes it.
pub(crate) fn head_of(header: &Header) -> Result<Head, LinkError> {
    let hash = Blake2Hasher::hash(&header.encode());
    Ok(Head { block: number(header)?, hash: Digest(hash.0) })
}

fn number(header: &Header) -> Result<Block, LinkError> {
    let number = header.number();
    u32::try_from(number)
        .map(Block)
        .map_err(|_| LinkError::Garbled(format!("block number {number} is out of range")))
}

fn digest(hash: H256) -> Digest {
    Digest(hash.0)
}

fn hash(head: &Head) -> H256 {
    H256(head.hash.0)
}

/// Returns a random tip below 10⁻⁷ MTL. Without it, two processes that sign the same call with the same key and nonce
/// would produce the same bytes, and each would mistake the other's for its own.
fn random_tip() -> u128 {
    let mut random = [0; 2];
    // Without randomness the bytes are only not distinct.
    let _ = getrandom::fill(&mut random);
    u16::from_le_bytes(random).into()
}

/// Formats an error and its sources, each once.
fn chain_of(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(error) = next {
        let cause = error.to_string();
        if !text.contains(&cause) {
            text = format!("{text}: {cause}");
        }
        next = error.source();
    }
    text
}

impl From<RpcError> for LinkError {
    fn from(error: RpcError) -> LinkError {
        match error {
            RpcError::User(error) => {
                let data = error.data.as_ref().map(|data| data.get().trim_matches('"'));
                let detail = data.filter(|data| !data.is_empty()).map(|data| format!(": {data}"));
                let message = error.message + &detail.unwrap_or_default();
                LinkError::Answer { code: error.code, message }
            }
            RpcError::Deserialization(error) => LinkError::Garbled(error.to_string()),
            RpcError::Decode(error) => LinkError::Garbled(error.to_string()),
            other => LinkError::Broken(chain_of(&other)),
        }
    }
}

impl From<LinkError> for OpenError {
    fn from(error: LinkError) -> OpenError {
        OpenError::Broken(error.to_string())
    }
}

impl LinkError {
    fn silent(limit: Duration) -> LinkError {
        LinkError::Broken(format!("no answer within {} s", limit.as_secs_f32()))
    }

    /// Converts the error for callers outside the client.
    pub(crate) fn into_chain_error(self, doing: &str) -> ChainError {
        let doing = doing.to_owned();
        match self {
            LinkError::Answer { code, message } => ChainError::Rpc { doing, code, message },
            LinkError::Broken(reason) | LinkError::Garbled(reason) => ChainError::Decode { doing, reason },
        }
    }
}
