//! The allowed dependencies between crates, as in `ARCHITECTURE.md`. A new arrow is a design decision: add it in both
//! places.

use repository::packages;
use std::collections::{BTreeMap, BTreeSet};

/// A crate of the workspace, the other crates that it may use, and crates that only its tests may use.
type Arrows = (&'static str, &'static [&'static str], &'static [&'static str]);

const ARROWS: &[Arrows] = &[
    // Rules on which every participant agrees, bit for bit, and their clients.
    ("mettle-protocol", &[], &[]),
    ("mettle-model", &["mettle-protocol"], &[]),
    ("mettle-dataset", &["mettle-protocol"], &[]),
    ("mettle-gauntlet", &["mettle-protocol"], &[]),
    ("mettle-store", &["mettle-protocol"], &["mettle-s3-server"]),
    ("mettle-network", &["mettle-protocol", "mettle-store"], &[]),
    // Fast kernels, and the engines that train and evaluate.
    ("kernels", &[], &["mettle-protocol"]),
    ("mettle-nn", &["mettle-protocol", "mettle-model", "kernels"], &[]),
    ("mettle-nn-burn", &["mettle-model", "mettle-nn"], &[]),
    ("mettle-engines", &["kernels", "mettle-model", "mettle-nn", "mettle-nn-burn"], &[]),
    // The chain's rules, and the crates that run them.
    ("mettle-pallet-mock", &["mettle-protocol"], &[]),
    ("pallet-registry", &["mettle-protocol"], &["mettle-pallet-mock"]),
    ("pallet-windows", &["mettle-protocol", "pallet-registry"], &["mettle-pallet-mock"]),
    ("pallet-weights", &["mettle-protocol", "pallet-registry", "pallet-windows"], &["mettle-pallet-mock"]),
    ("pallet-nomination", &["mettle-protocol", "pallet-registry"], &["mettle-pallet-mock"]),
    ("pallet-rewards", &["mettle-protocol", "pallet-registry"], &["mettle-pallet-mock", "pallet-nomination"]),
    (
        "mettle-runtime",
        &[
            "mettle-protocol",
            "pallet-registry",
            "pallet-windows",
            "pallet-weights",
            "pallet-nomination",
            "pallet-rewards",
        ],
        &[],
    ),
    ("mettle-embedded-chain", &["mettle-runtime"], &["mettle-protocol", "pallet-registry", "pallet-windows"]),
    // The client does not import a chain; its tests run against the embedded one.
    ("mettle-chain-client", &["mettle-protocol"], &["mettle-embedded-chain"]),
    // The shared parts of both daemons.
    (
        "mettle-daemon",
        &[
            "mettle-protocol",
            "kernels",
            "mettle-dataset",
            "mettle-store",
            "mettle-model",
            "mettle-network",
            "mettle-chain-client",
        ],
        &["mettle-prepare", "mettle-s3-server"],
    ),
    // Measurements, which an audit repeats.
    (
        "mettle-measure",
        &[
            "mettle-protocol",
            "mettle-gauntlet",
            "mettle-dataset",
            "mettle-store",
            "kernels",
            "mettle-nn",
            "mettle-chain-client",
            "mettle-daemon",
        ],
        &[],
    ),
    // The daemons never import each other or the chain's rules.
    (
        "miner",
        &[
            "mettle-protocol",
            "kernels",
            "mettle-nn",
            "mettle-engines",
            "mettle-dataset",
            "mettle-store",
            "mettle-model",
            "mettle-chain-client",
            "mettle-daemon",
        ],
        &["mettle-prepare", "mettle-s3-server"],
    ),
    (
        "validator",
        &[
            "mettle-protocol",
            "mettle-gauntlet",
            "mettle-nn",
            "mettle-engines",
            "mettle-dataset",
            "mettle-store",
            "mettle-model",
            "mettle-chain-client",
            "mettle-daemon",
            "mettle-measure",
        ],
        &["mettle-s3-server"],
    ),
    // Text to tokens, and to datasets.
    ("mettle-tokenizer", &["mettle-protocol"], &[]),
    ("mettle-prepare", &["mettle-protocol", "mettle-dataset", "mettle-store", "mettle-tokenizer"], &[]),
    // Reads of a run, and its page.
    (
        "mettle-watch",
        &["mettle-protocol", "mettle-dataset", "mettle-store", "mettle-chain-client", "mettle-daemon"],
        &[],
    ),
    // A model for clients of OpenAI's API.
    (
        "mettle-serve",
        &[
            "mettle-protocol",
            "mettle-dataset",
            "mettle-model",
            "mettle-nn",
            "mettle-engines",
            "mettle-chain-client",
            "mettle-daemon",
            "mettle-sdk",
            "mettle-tokenizer",
            "mettle-watch",
        ],
        &[],
    ),
    // For other programs.
    (
        "mettle-sdk",
        &[
            "mettle-protocol",
            "mettle-dataset",
            "mettle-tokenizer",
            "mettle-store",
            "mettle-model",
            "mettle-nn",
            "mettle-chain-client",
            "mettle-daemon",
            "mettle-gauntlet",
            "mettle-measure",
        ],
        &[],
    ),
    // The Python package's Rust part.
    ("mettle-python", &["mettle-sdk", "mettle-protocol", "mettle-chain-client"], &[]),
    // The client program.
    (
        "mettle",
        &[
            "mettle-protocol",
            "mettle-dataset",
            "mettle-prepare",
            "mettle-tokenizer",
            "mettle-store",
            "mettle-model",
            "mettle-nn",
            "mettle-engines",
            "mettle-chain-client",
            "mettle-daemon",
            "mettle-sdk",
            "mettle-serve",
            "mettle-watch",
            "mettle-gauntlet",
            "mettle-measure",
        ],
        &["mettle-embedded-chain", "mettle-s3-server"],
    ),
    // An adversary is a miner or validator with another strategy.
    (
        "mettle-adversaries",
        &[
            "mettle-protocol",
            "mettle-gauntlet",
            "mettle-store",
            "mettle-chain-client",
            "mettle-daemon",
            "miner",
            "validator",
        ],
        &[],
    ),
    ("mettle-s3-server", &["mettle-protocol", "mettle-store"], &[]),
    (
        "localnet",
        &[
            "mettle-adversaries",
            "mettle-s3-server",
            "mettle-protocol",
            "mettle-dataset",
            "mettle-prepare",
            "mettle-store",
            "mettle-model",
            "mettle-nn",
            "mettle-chain-client",
            "mettle-daemon",
            "mettle-embedded-chain",
            "mettle-watch",
            "miner",
            "validator",
        ],
        &["mettle"],
    ),
    // The studies train models, and the simulation runs whole networks.
    ("tests", ANY, &[]),
    // Checked in seconds, because it uses no crate of ours.
    ("repository", &[], &[]),
    // Only benchmarks.
    (
        "mettle-benches",
        &[],
        &["mettle-protocol", "mettle-model", "kernels", "mettle-nn", "mettle-gauntlet", "mettle-measure"],
    ),
];

const ANY: &[&str] = &[
    "mettle-protocol",
    "kernels",
    "mettle-nn",
    "mettle-dataset",
    "mettle-prepare",
    "mettle-tokenizer",
    "mettle-store",
    "mettle-model",
    "mettle-chain-client",
    "mettle-network",
    "mettle-daemon",
    "mettle-gauntlet",
    "mettle-measure",
    "mettle-runtime",
    "mettle-embedded-chain",
    "mettle",
    "miner",
    "validator",
    "localnet",
    "mettle-adversaries",
    "mettle-s3-server",
    "pallet-registry",
    "pallet-windows",
    "pallet-weights",
    "pallet-rewards",
];

/// Third-party crates that decide how a crate is built, and the crates that may use them.
const CONFINED: &[(&str, &[&str])] = &[
    ("burn", &["mettle-nn-burn"]),
    ("tokenizers", &["mettle-tokenizer"]),
    ("object_store", &["mettle-store"]),
    ("reqwest", &["mettle-store", "mettle-s3-server"]),
    ("s3s", &["mettle-s3-server"]),
    // One accept loop, one set of limits.
    ("hyper", &["mettle-daemon", "mettle-s3-server"]),
    ("axum", &["mettle-daemon", "mettle-watch", "mettle-serve"]),
    ("subxt", &["mettle-chain-client"]),
    (
        "polkadot-sdk-frame",
        &[
            "mettle-pallet-mock",
            "pallet-registry",
            "pallet-windows",
            "pallet-weights",
            "pallet-nomination",
            "pallet-rewards",
            "mettle-runtime",
        ],
    ),
    ("ratatui", &["mettle-watch", "mettle", "localnet"]),
    ("libp2p", &["mettle-network"]),
    (
        "tokio",
        &[
            "mettle-store",
            "mettle-network",
            "mettle-embedded-chain",
            "mettle-chain-client",
            "mettle-daemon",
            "mettle-measure",
            "mettle-s3-server",
            "mettle-prepare",
            "mettle-sdk",
            "mettle-watch",
            "mettle-serve",
            "mettle-python",
            "mettle",
            "miner",
            "validator",
            "localnet",
            "mettle-adversaries",
            "tests",
        ],
    ),
    // Crates with a program, for its `main`. Libraries return typed errors.
    (
        "anyhow",
        &["mettle-daemon", "mettle", "miner", "validator", "localnet", "kernels", "mettle-engines", "tests"],
    ),
];

/// The dependencies of the protocol crate.
const PROTOCOL_DEPENDENCIES: &[&str] =
    &["blake2", "blake3", "ed25519-dalek", "libm", "parity-scale-codec", "scale-info", "serde", "thiserror"];

#[test]
fn every_dependency_between_crates_is_an_allowed_arrow() {
    let packages = packages();
    let ours: BTreeSet<&str> = packages.iter().map(|package| package.name.as_str()).collect();
    let arrows: BTreeMap<_, _> = ARROWS.iter().map(|(name, all, tests)| (*name, (*all, *tests))).collect();
    let listed: BTreeSet<&str> = arrows.keys().copied().collect();
    assert_eq!(ours, listed, "ARROWS has one line for each crate of the workspace");

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
    assert!(wrong.is_empty(), "dependencies that ARROWS does not allow: {wrong:#?}");
}

/// Panics unless `uses` (a name, and the names that it uses) has no cycle.
fn assert_acyclic(mut uses: BTreeMap<&str, BTreeSet<&str>>) {
    while !uses.is_empty() {
        let free: Vec<&str> =
            uses.iter().filter(|(_, uses)| uses.is_empty()).map(|(name, _)| *name).collect();
        assert!(!free.is_empty(), "these depend on each other: {uses:?}");
        for name in free {
            uses.remove(name);
            uses.values_mut().for_each(|uses| {
                uses.remove(name);
            });
        }
    }
}

#[test]
fn no_two_top_level_folders_import_each_other() {
    let packages = packages();
    let top = |directory: &str| directory.split('/').next().map(str::to_owned).unwrap_or_default();
    let folders: BTreeMap<&str, String> =
        packages.iter().map(|package| (package.name.as_str(), top(&package.directory))).collect();
    let mut uses: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for package in &packages {
        let from = folders[package.name.as_str()].as_str();
        let used = uses.entry(from).or_default();
        for dependency in package.dependencies.iter().filter(|dependency| !dependency.dev) {
            if let Some(to) = folders.get(dependency.name.as_str()).filter(|to| *to != from) {
                used.insert(to);
            }
        }
    }
    assert!(uses.len() > 8, "{uses:?}");
    assert_acyclic(uses);
}

#[test]
fn the_arrows_form_no_cycle() {
    assert_acyclic(ARROWS.iter().map(|(name, all, _)| (*name, all.iter().copied().collect())).collect());
}

#[test]
fn the_protocol_crate_has_few_dependencies_without_default_features() {
    let packages = packages();
    let protocol = packages
        .iter()
        .find(|package| package.name == "mettle-protocol")
        .expect("mettle-protocol is a member");
    for dependency in protocol.dependencies.iter().filter(|dependency| !dependency.dev) {
        let name = dependency.name.as_str();
        assert!(
            PROTOCOL_DEPENDENCIES.contains(&name),
            "protocol uses {name}, which the chain would have to compile too"
        );
        // libm is always no_std.
        assert!(
            !dependency.default_features || name == "libm",
            "protocol uses {name} with its default features"
        );
    }
}

#[test]
fn confined_dependencies_stay_in_their_crates() {
    for package in packages() {
        for dependency in package.dependencies.iter().filter(|dependency| !dependency.dev) {
            let Some((name, users)) = CONFINED.iter().find(|(name, _)| *name == dependency.name) else {
                continue;
            };
            assert!(
                users.contains(&package.name.as_str()),
                "{} uses {name}; only {users:?} may use it",
                package.name
            );
        }
    }
}
