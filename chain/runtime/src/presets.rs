//! Genesis states for development: well-known keys, each with plenty. Never for a network with money in it.

use crate::{AuraId, BalancesConfig, GrandpaId, RuntimeGenesisConfig, SudoConfig, UNIT};
use alloc::{vec, vec::Vec};
use frame::{
    deps::{frame_support, sp_genesis_builder},
    runtime::prelude::PresetId,
};
use serde_json::Value;
use sp_keyring::{Ed25519Keyring, Sr25519Keyring};

/// What each well-known account starts with.
pub const ENDOWMENT: crate::Balance = 1_000_000 * UNIT;

/// `development`: Alice alone makes blocks. `local_testnet`: Alice and Bob do.
pub fn get_preset(id: &PresetId) -> Option<Vec<u8>> {
    let authority = |aura: Sr25519Keyring, grandpa: Ed25519Keyring| -> (AuraId, GrandpaId) {
        (aura.public().into(), grandpa.public().into())
    };
    let alice = authority(Sr25519Keyring::Alice, Ed25519Keyring::Alice);
    let bob = authority(Sr25519Keyring::Bob, Ed25519Keyring::Bob);
    let genesis = match id.as_ref() {
        sp_genesis_builder::DEV_RUNTIME_PRESET => genesis(&[alice]),
        sp_genesis_builder::LOCAL_TESTNET_RUNTIME_PRESET => genesis(&[alice, bob]),
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

fn genesis(authorities: &[(AuraId, GrandpaId)]) -> Value {
    let accounts = Sr25519Keyring::iter()
        .map(|key| key.to_account_id())
        .chain(Ed25519Keyring::iter().map(|key| key.to_account_id()));
    frame_support::build_struct_json_patch!(RuntimeGenesisConfig {
        balances: BalancesConfig {
            balances: accounts.map(|account| (account, ENDOWMENT)).collect::<Vec<_>>()
        },
        aura: pallet_aura::GenesisConfig {
            authorities: authorities.iter().map(|(aura, _)| aura.clone()).collect::<Vec<_>>(),
        },
        grandpa: pallet_grandpa::GenesisConfig {
            authorities: authorities.iter().map(|(_, grandpa)| (grandpa.clone(), 1)).collect::<Vec<_>>(),
        },
        sudo: SudoConfig { key: Some(Sr25519Keyring::Alice.to_account_id()) },
    })
}
