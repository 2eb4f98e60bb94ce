//! Genesis presets for development, with well-known keys. Not for networks with value.
//!
//! They differ only in their authorities. They have no floors (PROT-33), so that a run on one machine may have short
//! windows.

use crate::{
    AuthoritiesConfig, BalancesConfig, RegistryConfig, RuntimeGenesisConfig, SLOT_DURATION, SessionConfig,
    SessionKeys, SudoConfig, UNIT,
};
use alloc::{vec, vec::Vec};
use frame::{
    deps::{frame_support, sp_genesis_builder},
    runtime::prelude::PresetId,
};
use protocol::params::Floors;
use serde_json::Value;
use sp_keyring::{Ed25519Keyring, Sr25519Keyring};

/// Balance of each well-known account.
pub const ENDOWMENT: crate::Balance = 1_000_000 * UNIT;

/// Returns a preset. `development` has the authority Alice; `local_testnet` has Alice, Bob, Charlie and Dave, three of
/// which finalise blocks.
pub fn get_preset(id: &PresetId) -> Option<Vec<u8>> {
    let alice = (Sr25519Keyring::Alice, Ed25519Keyring::Alice);
    let bob = (Sr25519Keyring::Bob, Ed25519Keyring::Bob);
    let charlie = (Sr25519Keyring::Charlie, Ed25519Keyring::Charlie);
    let dave = (Sr25519Keyring::Dave, Ed25519Keyring::Dave);
    let genesis = match id.as_ref() {
        sp_genesis_builder::DEV_RUNTIME_PRESET => genesis(&[alice]),
        sp_genesis_builder::LOCAL_TESTNET_RUNTIME_PRESET => genesis(&[alice, bob, charlie, dave]),
        _ => return None,
    };
    Some(serde_json::to_string(&genesis).expect("a JSON value has a text").into_bytes())
}

pub fn names() -> Vec<PresetId> {
    vec![
        PresetId::from(sp_genesis_builder::DEV_RUNTIME_PRESET),
        PresetId::from(sp_genesis_builder::LOCAL_TESTNET_RUNTIME_PRESET),
    ]
}

/// Builds a genesis with the keys in the keystore of a node started with `--alice` and so on.
fn genesis(authorities: &[(Sr25519Keyring, Ed25519Keyring)]) -> Value {
    let accounts = Sr25519Keyring::iter()
        .map(|key| key.to_account_id())
        .chain(Ed25519Keyring::iter().map(|key| key.to_account_id()));
    let keys = |(aura, grandpa): &(Sr25519Keyring, Ed25519Keyring)| {
        let account = aura.to_account_id();
        let keys = SessionKeys { aura: aura.public().into(), grandpa: grandpa.public().into() };
        (account.clone(), account, keys)
    };
    frame_support::build_struct_json_patch!(RuntimeGenesisConfig {
        balances: BalancesConfig {
            balances: accounts.map(|account| (account, ENDOWMENT)).collect::<Vec<_>>()
        },
        authorities: AuthoritiesConfig {
            accounts: authorities.iter().map(|(aura, _)| aura.to_account_id()).collect::<Vec<_>>(),
            slot_millis: SLOT_DURATION,
        },
        session: SessionConfig { keys: authorities.iter().map(keys).collect::<Vec<_>>() },
        registry: RegistryConfig { floors: Some(Floors::NONE) },
        sudo: SudoConfig { key: Some(Sr25519Keyring::Alice.to_account_id()) },
    })
}
