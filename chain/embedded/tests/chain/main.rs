//! The chain from the perspective of clients: through stock clients and the JSON-RPC, over faults and restarts.

mod faults;
mod keeping;
mod stock_client;
mod wire;

use codec::{Compact, Encode};
use mettle_embedded_chain::{Config, EmbeddedChain, Head, Sealing};
use mettle_runtime::VERSION;
use serde_json::Value;
use sp_core::{Pair, sr25519};
use sp_keyring::Sr25519Keyring;
use sp_runtime::traits::{BlakeTwo256, Hash as _};
use std::path::Path;
use subxt::rpcs::{RpcClient, client::RpcParams, rpc_params};

/// Returns the settings of a chain that makes blocks on request.
fn manual() -> Config {
    Config { sealing: Sealing::Manual, ..Config::default() }
}

fn manual_in(dir: &Path) -> Config {
    Config { dir: Some(dir.into()), ..manual() }
}

async fn start(config: Config) -> EmbeddedChain {
    EmbeddedChain::start(config).await.expect("the chain starts")
}

async fn seal(chain: &EmbeddedChain, blocks: u32) -> Head {
    let mut head = chain.best();
    for _ in 0..blocks {
        head = chain.seal_now().await.expect("a block is made");
    }
    head
}

/// A JSON-RPC connection without knowledge of the chain.
struct Wire(RpcClient);

impl Wire {
    async fn to(chain: &EmbeddedChain) -> Wire {
        Wire(RpcClient::from_insecure_url(chain.url()).await.expect("the chain listens"))
    }

    async fn ask(&self, method: &str, params: RpcParams) -> Value {
        self.0.request(method, params).await.unwrap_or_else(|error| panic!("{method}: {error}"))
    }

    /// Returns the error code and text of a refused call.
    async fn refusal(&self, method: &str, params: RpcParams) -> (i32, String) {
        match self.0.request::<Value>(method, params).await {
            Err(subxt::rpcs::Error::User(error)) => (
                error.code,
                format!("{} {}", error.message, error.data.map_or(String::new(), |data| data.to_string())),
            ),
            other => panic!("{method} gave {other:?}"),
        }
    }

    async fn submit(&self, extrinsic: &[u8]) -> Value {
        self.ask("author_submitExtrinsic", rpc_params![hex(extrinsic)]).await
    }

    /// Returns the free balance of an account after a block.
    async fn free(&self, account: &[u8; 32], at: Option<sp_core::H256>) -> u128 {
        // System.Account; AccountInfo is four u32s, then the free balance.
        let prefix = "0x26aa394eea5630e07c48ae0c9558cef7b99d880ec681799c0cf30e8886371da9";
        let keys = self.ask("state_getKeysPaged", rpc_params![prefix, 1000, (), at]).await;
        let ending = hex::encode(account);
        let mut keys = keys.as_array().expect("a list").iter().filter_map(Value::as_str);
        let Some(key) = keys.find(|key| key.ends_with(&ending)) else { return 0 };
        let value = self.ask("state_getStorage", rpc_params![key, at]).await;
        let bytes = hex_bytes(value.as_str().expect("the account is there"));
        u128::from_le_bytes(bytes[16..32].try_into().expect("sixteen bytes"))
    }
}

/// Encodes an immortal extrinsic without a tip.
fn signed(key: &sr25519::Pair, nonce: u32, genesis: sp_core::H256, call: &[u8]) -> Vec<u8> {
    tipped(key, nonce, 0, genesis, call)
}

fn tipped(key: &sr25519::Pair, nonce: u32, tip: u128, genesis: sp_core::H256, call: &[u8]) -> Vec<u8> {
    let extra = (0_u8, Compact(nonce), Compact(tip), 0_u8).encode();
    let implied =
        (VERSION.spec_version, VERSION.transaction_version, genesis, genesis, None::<[u8; 32]>).encode();
    let mut payload = [call, &extra, &implied].concat();
    if payload.len() > 256 {
        payload = BlakeTwo256::hash(&payload).0.to_vec();
    }
    let signature = key.sign(&payload);
    let body = [&[0x84, 0x00][..], &key.public().0, &[0x01], &signature.0, &extra, call].concat();
    body.encode()
}

/// Encodes `Balances.transfer_allow_death`.
fn transfer(to: &[u8; 32], amount: u128) -> Vec<u8> {
    [&[4, 0, 0][..], to, &Compact(amount).encode()].concat()
}

/// Encodes `System.remark`.
fn remark(text: &[u8]) -> Vec<u8> {
    (0_u8, 0_u8, text.to_vec()).encode()
}

/// Encodes `Sudo.sudo`.
fn sudo(call: &[u8]) -> Vec<u8> {
    [&[6, 0][..], call].concat()
}

fn alice() -> sr25519::Pair {
    Sr25519Keyring::Alice.pair()
}

fn hex(bytes: &[u8]) -> String {
    format!("0x{}", hex::encode(bytes))
}

fn hex_bytes(text: &str) -> Vec<u8> {
    hex::decode(text.trim_start_matches("0x")).expect("hex")
}
