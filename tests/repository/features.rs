//! Each package has one feature set for any selection of packages, so that cargo compiles it once.

use repository::root;
use std::{
    collections::{BTreeMap, BTreeSet},
    process::Command,
    thread,
};

/// The packages of the README's and the justfile's commands, and small crates, which need few features by themselves.
const SELECTIONS: &[&[&str]] = &[
    &["localnet"],
    &["mettle"],
    &["miner", "validator"],
    &["kernels", "mettle-nn"],
    &["mettle-nn-burn"],
    &["mettle-engines"],
    &["mettle-protocol"],
    &["mettle-store"],
    &["pallet-registry"],
    &["tests"],
];

/// Returns the feature sets of each package in a build of `packages`, or of the whole workspace if it is empty.
fn features(packages: &[&str]) -> BTreeMap<String, BTreeSet<String>> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command
        .args(["tree", "--offline", "--locked", "--prefix", "none", "--format", "{p}|{f}"])
        .current_dir(root());
    if packages.is_empty() {
        command.args(["--workspace", "--edges", "normal,build,dev"]);
    } else {
        command.args(["--edges", "normal,build"]);
    }
    for package in packages {
        command.args(["--package", package]);
    }
    let output = command.output().expect("cargo is installed, as it runs this test");
    assert!(output.status.success(), "cargo tree: {}", String::from_utf8_lossy(&output.stderr));

    let mut found = BTreeMap::<String, BTreeSet<String>>::new();
    for line in String::from_utf8(output.stdout).expect("cargo writes UTF-8").lines() {
        // `(*)` ends the line of a package whose dependencies are listed above.
        let Some((package, features)) = line.trim_end_matches(" (*)").split_once('|') else { continue };
        // A workspace member's path follows, or a mark of a macro.
        let name = package.split_once(" (").map_or(package, |(name, _)| name).to_owned();
        found.entry(name).or_default().insert(features.to_owned());
    }
    found
}

#[test]
fn every_selection_builds_packages_with_the_same_features() {
    let (all, selections) = thread::scope(|scope| {
        let all = scope.spawn(|| features(&[]));
        let selections = SELECTIONS.iter().map(|packages| (packages, features(packages))).collect::<Vec<_>>();
        (all.join().expect("cargo tree succeeds"), selections)
    });
    let mut differ = Vec::new();
    for (selected, packages) in selections {
        assert!(packages.len() > 20, "{selected:?} has only {packages:?}");
        for (package, sets) in packages {
            for set in sets.iter().filter(|set| !all[&package].contains(*set)) {
                differ.push(format!(
                    "{package} of {selected:?} has {set:?}, and in the workspace {:?}",
                    all[&package]
                ));
            }
        }
    }
    assert!(differ.is_empty(), "features that depend on the selection; see tests/Cargo.toml: {differ:#?}");
}
