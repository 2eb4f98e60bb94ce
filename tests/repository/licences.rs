//! Licences, sources and bans of all dependencies, against `deny.toml`. `cargo-deny` reads the same file, and also the
//! texts of the licences; this test needs no installation.

use repository::root;
use std::{
    collections::{BTreeMap, BTreeSet},
    process::Command,
};

/// Returns the packages that a build for any of the targets of `deny.toml` compiles, each with its SPDX expression.
fn compiled(policy: &toml::Table) -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    for target in strings(policy, "graph", "targets") {
        let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        let mut command = Command::new(cargo);
        command.args(["tree", "--offline", "--locked", "--workspace", "--edges", "normal,build,dev"]);
        command.args(["--prefix", "none", "--format", "{p}|{l}|", "--target", &target]).current_dir(root());
        let output = command.output().expect("cargo is installed, as it runs this test");
        assert!(output.status.success(), "cargo tree: {}", String::from_utf8_lossy(&output.stderr));
        for line in String::from_utf8(output.stdout).expect("cargo writes UTF-8").lines() {
            let mut parts = line.split('|');
            let (Some(package), Some(licence)) = (parts.next(), parts.next()) else { continue };
            found.insert(package.to_owned(), licence.to_owned());
        }
    }
    found
}

/// Returns name and source of each package of the lock file. A package of this repository has no source.
fn locked() -> Vec<(String, Option<String>)> {
    let lock = std::fs::read_to_string(root().join("Cargo.lock")).expect("the root has this file");
    let lock: toml::Table = lock.parse().expect("cargo has read this file");
    let packages = lock["package"].as_array().expect("a list");
    let text = |value: &toml::Value| value.as_str().expect("a string").to_owned();
    packages.iter().map(|package| (text(&package["name"]), package.get("source").map(text))).collect()
}

fn policy() -> toml::Table {
    std::fs::read_to_string(root().join("deny.toml")).expect("the root has this file").parse().expect("TOML")
}

fn strings(table: &toml::Table, section: &str, key: &str) -> BTreeSet<String> {
    let list = table[section][key].as_array().expect("a list");
    list.iter().map(|one| one.as_str().expect("a string").to_owned()).collect()
}

/// Returns whether an SPDX expression can be met with `allowed` licences. `OR` offers a choice, `AND` requires both
/// and binds tighter, and `/` is the older spelling of `OR`.
fn is_allowed(expression: &str, allowed: &BTreeSet<String>) -> bool {
    let spaced = expression.replace('(', " ( ").replace(')', " ) ").replace('/', " OR ");
    let mut words = spaced.split_whitespace().peekable();
    let met = any(&mut words, allowed);
    met && words.next().is_none()
}

type Words<'a, 'b> = &'b mut std::iter::Peekable<std::str::SplitWhitespace<'a>>;

fn any(words: Words, allowed: &BTreeSet<String>) -> bool {
    let mut met = all(words, allowed);
    while words.next_if_eq(&"OR").is_some() {
        met |= all(words, allowed);
    }
    met
}

fn all(words: Words, allowed: &BTreeSet<String>) -> bool {
    let mut met = licence(words, allowed);
    while words.next_if_eq(&"AND").is_some() {
        met &= licence(words, allowed);
    }
    met
}

fn licence(words: Words, allowed: &BTreeSet<String>) -> bool {
    match words.next() {
        Some("(") => {
            let met = any(words, allowed);
            words.next() == Some(")") && met
        }
        Some(name) if words.next_if_eq(&"WITH").is_some() => {
            words.next().is_some_and(|exception| allowed.contains(&format!("{name} WITH {exception}")))
        }
        // `MPL-2.0+` is that version or a later one.
        Some(name) => allowed.contains(name.strip_suffix('+').unwrap_or(name)),
        None => false,
    }
}

#[test]
fn every_dependency_has_an_allowed_licence() {
    let policy = policy();
    let (packages, allowed) = (compiled(&policy), strings(&policy, "licenses", "allow"));
    assert!(500 < packages.len(), "only {} packages", packages.len());
    let wrong: Vec<_> = packages.iter().filter(|(_, licence)| !is_allowed(licence, &allowed)).collect();
    assert!(wrong.is_empty(), "licences that deny.toml does not allow: {wrong:#?}");
}

#[test]
fn every_dependency_comes_from_the_registry() {
    let allowed = strings(&policy(), "sources", "allow-registry");
    let allowed: BTreeSet<String> = allowed.iter().map(|registry| format!("registry+{registry}")).collect();
    let packages = locked();
    assert!(500 < packages.len(), "only {} packages", packages.len());
    let wrong: Vec<_> = packages
        .into_iter()
        .filter(|(_, source)| source.as_ref().is_some_and(|source| !allowed.contains(source)))
        .collect();
    assert!(wrong.is_empty(), "sources that deny.toml does not allow: {wrong:#?}");
}

#[test]
fn no_banned_package_is_a_dependency_and_what_must_exist_once_does() {
    let (policy, packages) = (policy(), locked());
    let bans = policy["bans"]["deny"].as_array().expect("a list");
    assert!(!bans.is_empty());
    for ban in bans {
        let name = ban["name"].as_str().expect("a name");
        let once = ban.get("deny-multiple-versions").is_some();
        let found = packages.iter().filter(|(package, _)| package == name).count();
        assert!(found <= usize::from(once), "{name} is {found} times in the lock file: {}", ban["reason"]);
    }
}

#[test]
fn an_expression_is_read_as_spdx_defines_it() {
    let allowed: BTreeSet<String> =
        ["MIT", "Apache-2.0", "Apache-2.0 WITH LLVM-exception"].map(String::from).into();
    for met in [
        "MIT",
        "MIT OR GPL-3.0",
        "MIT+",
        "GPL-3.0 OR MIT",
        "MIT/Apache-2.0",
        "GPL-3.0 OR (MIT AND Apache-2.0)",
        "MIT AND Apache-2.0 WITH LLVM-exception",
        "GPL-2.0 AND GPL-3.0 OR MIT",
    ] {
        assert!(is_allowed(met, &allowed), "{met}");
    }
    for unmet in [
        "",
        "GPL-3.0",
        "MIT AND GPL-3.0",
        "(MIT",
        "MIT)",
        "MIT MIT",
        "MIT AND (GPL-3.0 OR GPL-2.0)",
        "MIT WITH x",
    ] {
        assert!(!is_allowed(unmet, &allowed), "{unmet}");
    }
}
