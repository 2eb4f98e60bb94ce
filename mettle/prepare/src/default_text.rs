//! The default text: the Rust source of dependencies that cargo downloads for every build of miner, validator and
//! localnet on Linux. Those that no code uses are build dependencies of this crate, which has no build script.
//!
//! Cargo has already unpacked it, so it needs no further download. The versions are those of `Cargo.lock`, and the
//! digests make it the same text everywhere. When an update changes a version, the tests fail and print the new line
//! for this list: the dataset and its loss then differ.

use std::fmt;

/// A published crate with a fixed digest of its source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PinnedCrate {
    pub name: &'static str,
    pub version: &'static str,
    /// Digest of the names and contents of its `.rs` files of at most 128 KiB, in path order.
    pub digest: &'static str,
}

/// Sorted by name. Chosen for prose and variety: no crate twice, none that consists mainly of tables.
pub(crate) static DEFAULT_TEXT: [PinnedCrate; 15] = [
    pinned("aho-corasick", "1.1.5", "c1a4fa1c7dc78cd345d30a68b2622286a604623d92a57c43d04dedf1bd5ef7c8"),
    pinned("burn-flex", "0.22.1", "d54299966e6d0d98e3c5f14360379826e08ae2d649ffa502c19874dfa967d1f9"),
    pinned("burn-nn", "0.22.1", "c8af96efaa88d2626b380671649192c3214baefb05f9c7d9451e44dd9e501858"),
    pinned("burn-tensor", "0.22.1", "81342abf91cb09fb90363a34abeda3b1267ef6023005e9669c17dc936363d794"),
    pinned("chrono", "0.4.45", "700b0f86a53767f94aca29720a8125bf93202d3ecde6c1eaf5192b593b62b663"),
    pinned("clap_builder", "4.6.7", "ad7a5aaf6fdef12f2fc8a0c63717b250150ad2598e328a15fd161180746ee20f"),
    pinned("futures-util", "0.3.34", "bbb96f91fdeebb312cc6544625edca517f5714696b6d04d34767e0816a7b292b"),
    pinned("h2", "0.4.20", "d3bcda45ab901e85730b3058da7336fd72d547b0c08b2506f7d964c58ee443df"),
    pinned("hyper", "1.12.0", "e24e4c5fd57fd8f264ad0de63cfb149d923fc8a9174de30ad68906933059e995"),
    pinned("object_store", "0.14.2", "01f2dab5b815d2c2aee96c3cfdbaee65b5f79dd3f7f85618103d17d6240a80d8"),
    pinned("rayon", "1.12.0", "ce76fd9419bddffecbb8d25720c798548fe24caa9b225c4172196892f94de205"),
    pinned("regex-automata", "0.4.18", "a77a246552e09f41dabd383cdf2438ffb4be11eeb1d8768ee0d35f6b85f91125"),
    pinned("serde_json", "1.0.154", "6414864c99f8b6ef874a661b530fc8015a7ef9d4c9ddb980651ba064f805fd37"),
    pinned("subxt", "0.51.1", "f97fa8ccc158150023786797216651468b8af9072a7b81fa3f5c2dc6a381ed5a"),
    pinned(
        "tracing-subscriber",
        "0.3.23",
        "56a2cc364619bd80cb91cfc89b48c74f3381e79d7bdd79f515f27622e810f912",
    ),
];

const fn pinned(name: &'static str, version: &'static str, digest: &'static str) -> PinnedCrate {
    PinnedCrate { name, version, digest }
}

impl fmt::Display for PinnedCrate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.name, self.version)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_text_has_the_versions_of_the_lock_file() {
        let lock = include_str!("../../../Cargo.lock");
        for PinnedCrate { name, version, .. } in &DEFAULT_TEXT {
            let line = format!("name = \"{name}\"\nversion = \"{version}\"\n");
            assert!(
                lock.contains(&line),
                "{name} {version} is not what Cargo.lock pins; look at its new version"
            );
        }
        assert!(DEFAULT_TEXT.is_sorted_by_key(|pinned| &pinned.name));
    }
}
