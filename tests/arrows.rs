//! Who may depend on whom, as `ARCHITECTURE.md` draws it. A new arrow is a decision: it is drawn here and there, or not at all.

use std::collections::{BTreeMap, BTreeSet};
use tests::packages;

/// What a crate of ours may use of the others: everywhere, and besides that in its tests only.
type Arrows = (&'static str, &'static [&'static str], &'static [&'static str]);

const ARROWS: &[Arrows] = &[
    // What everybody agrees on knows nobody.
    ("protocol", &[], &[]),
    ("kernels", &[], &["protocol"]),
    ("dataset", &["protocol"], &[]),
    ("store", &["protocol"], &["store"]), // Itself, with its server.
    ("model", &["protocol", "kernels"], &[]),
    // The rules of the chain, and what runs them.
    ("pallet-registry", &["protocol"], &[]),
    ("pallet-windows", &["protocol", "pallet-registry"], &[]),
    ("pallet-weights", &["protocol", "pallet-registry", "pallet-windows"], &[]),
    ("pallet-nomination", &["protocol", "pallet-registry"], &[]),
    ("pallet-rewards", &["protocol", "pallet-registry"], &["pallet-nomination"]),
    (
        "mettle-runtime",
        &[
            "protocol",
            "pallet-registry",
            "pallet-windows",
            "pallet-weights",
            "pallet-nomination",
            "pallet-rewards",
        ],
        &[],
    ),
    // What it measures are calls of the contracts.
    (
        "embedded-chain",
        &["mettle-runtime"],
        &["protocol", "chain-client", "pallet-registry", "pallet-windows"],
    ),
    // The client knows the chain's types and no chain; its tests speak with a real one.
    ("chain-client", &["protocol"], &["embedded-chain"]),
    // What a miner and a validator share.
    ("replica", &["protocol", "kernels", "dataset", "store", "model", "chain-client"], &[]),
    // Its verbs are tried on a chain.
    ("seat", &["protocol", "dataset", "store", "model", "chain-client", "replica"], &["embedded-chain"]),
    // The roles, which never import each other, nor the chain's rules.
    ("miner", ROLE, ROLE_TESTS),
    ("validator", ROLE, ROLE_TESTS),
    // Who cheats is a miner or validator otherwise.
    ("adversaries", &["protocol", "store", "chain-client", "replica", "seat", "miner", "validator"], &[]),
    (
        "localnet",
        &[
            "adversaries",
            "protocol",
            "dataset",
            "store",
            "model",
            "chain-client",
            "replica",
            "seat",
            "embedded-chain",
            "miner",
            "validator",
        ],
        &[],
    ),
    // The codec study trains, and the simulation is a whole network.
    ("tests", ANY, &[]),
];

const ROLE: &[&str] =
    &["protocol", "kernels", "dataset", "store", "model", "chain-client", "replica", "seat"];
const ROLE_TESTS: &[&str] = &["store"]; // With its server.
const ANY: &[&str] = &[
    "protocol",
    "kernels",
    "dataset",
    "store",
    "model",
    "chain-client",
    "replica",
    "seat",
    "mettle-runtime",
    "embedded-chain",
    "miner",
    "validator",
    "localnet",
    "adversaries",
    "pallet-registry",
    "pallet-windows",
    "pallet-weights",
    "pallet-rewards",
];

/// Foreign crates that decide how a room is built, and the rooms they may be in.
const ROOMS: &[(&str, &[&str])] = &[
    ("burn", &["model"]),
    ("tokenizers", &["dataset"]),
    ("object_store", &["store"]),
    ("reqwest", &["store"]),
    ("s3s", &["store"]),
    ("subxt", &["chain-client"]),
    (
        "polkadot-sdk-frame",
        &[
            "pallet-registry",
            "pallet-windows",
            "pallet-weights",
            "pallet-nomination",
            "pallet-rewards",
            "mettle-runtime",
        ],
    ),
    ("ratatui", &["localnet"]),
    (
        "tokio",
        &[
            "store",
            "embedded-chain",
            "chain-client",
            "replica",
            "seat",
            "miner",
            "validator",
            "localnet",
            "adversaries",
            "tests",
        ],
    ),
    ("anyhow", &["seat", "miner", "validator", "localnet", "kernels", "model", "tests"]), // Where there is a `main`. Below it, callers match.
];

/// All that `protocol` is made of.
const PROTOCOL_IS_MADE_OF: &[&str] =
    &["blake2", "blake3", "ed25519-dalek", "libm", "parity-scale-codec", "scale-info", "serde", "thiserror"];

#[test]
fn nobody_depends_on_whom_it_should_not_know() {
    let packages = packages();
    let ours: BTreeSet<&str> = packages.iter().map(|package| package.name.as_str()).collect();
    let arrows: BTreeMap<_, _> = ARROWS.iter().map(|(name, all, tests)| (*name, (*all, *tests))).collect();
    let drawn: BTreeSet<&str> = arrows.keys().copied().collect();
    assert_eq!(ours, drawn, "every crate of ours has its line in ARROWS, and no other has one");

    let mut wrong = Vec::new();
    for package in &packages {
        let (everywhere, in_tests) = arrows[package.name.as_str()];
        for dependency in
            package.dependencies.iter().filter(|dependency| ours.contains(dependency.name.as_str()))
        {
            let name = dependency.name.as_str();
            let allowed = everywhere.contains(&name) || (dependency.dev && in_tests.contains(&name));
            if !allowed {
                let only_tests = if dependency.dev { " in tests" } else { "" };
                wrong.push(format!("{} uses {name}{only_tests}", package.name));
            }
        }
    }
    assert!(wrong.is_empty(), "arrows that nobody drew: {wrong:#?}");
}

#[test]
fn the_arrows_lead_into_no_circle() {
    let mut left: BTreeMap<&str, BTreeSet<&str>> =
        ARROWS.iter().map(|(name, all, _)| (*name, all.iter().copied().collect())).collect();
    while !left.is_empty() {
        let free: Vec<&str> =
            left.iter().filter(|(_, uses)| uses.is_empty()).map(|(name, _)| *name).collect();
        assert!(!free.is_empty(), "these depend on each other: {left:?}");
        for name in free {
            left.remove(name);
            left.values_mut().for_each(|uses| {
                uses.remove(name);
            });
        }
    }
}

#[test]
fn what_must_agree_bit_for_bit_is_made_of_little_and_compiles_without_a_system() {
    let packages = packages();
    let protocol = packages.iter().find(|package| package.name == "protocol").expect("it is a member");
    for dependency in protocol.dependencies.iter().filter(|dependency| !dependency.dev) {
        let name = dependency.name.as_str();
        assert!(PROTOCOL_IS_MADE_OF.contains(&name), "protocol uses {name}: the chain compiles it too");
        // libm has no standard library to leave out.
        assert!(
            !dependency.default_features || name == "libm",
            "protocol uses {name} with its default features"
        );
    }
}

#[test]
fn what_gives_a_room_its_character_stays_in_it() {
    for package in packages() {
        for dependency in package.dependencies.iter().filter(|dependency| !dependency.dev) {
            let Some((name, rooms)) = ROOMS.iter().find(|(name, _)| *name == dependency.name) else {
                continue;
            };
            assert!(
                rooms.contains(&package.name.as_str()),
                "{} uses {name}, which belongs in {rooms:?}",
                package.name
            );
        }
    }
}
