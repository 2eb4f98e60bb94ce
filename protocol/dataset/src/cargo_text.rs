//! The default text: the Rust source of dependencies that every build of miner, validator and localnet needs
//! on Linux.
//!
//! Cargo has unpacked it already, so it costs no download; the versions are those of `Cargo.lock`, and the
//! digests below make it the same text everywhere. When an update changes a version, the test at the end says
//! so and prints the line to put here: it is then another dataset, with another loss.

use crate::source::{Found, SourceError, files_below, read_file};
use protocol::Digest;
use std::{
    borrow::Cow,
    ffi::{OsStr, OsString},
    fmt, fs,
    path::{Path, PathBuf},
};

/// Longer files are tables written by programs. In bytes.
const MAX_SOURCE_BYTES: u64 = 128 << 10;

/// A published crate whose source is known byte by byte.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PinnedCrate {
    pub name: Cow<'static, str>,
    pub version: Cow<'static, str>,
    /// Of the names and contents of its `.rs` files of at most 128 KiB, in the order of their paths.
    pub digest: Digest,
}

/// Sorted by name. Chosen for prose and variety: no crate twice, none that is mostly tables.
pub static DEFAULT_TEXT: [PinnedCrate; 15] = [
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
    PinnedCrate {
        name: Cow::Borrowed(name),
        version: Cow::Borrowed(version),
        digest: Digest(from_hex(digest)),
    }
}

const fn from_hex(digits: &str) -> [u8; 32] {
    const fn value(digit: u8) -> u8 {
        match digit {
            b'0'..=b'9' => digit - b'0',
            b'a'..=b'f' => digit - b'a' + 10,
            _ => panic!("a digest is written in lower-case hex"),
        }
    }
    let digits = digits.as_bytes();
    assert!(digits.len() == 64, "a digest has 64 digits");
    let mut bytes = [0; 32];
    let mut at = 0;
    while at < 32 {
        bytes[at] = value(digits[2 * at]) << 4 | value(digits[2 * at + 1]);
        at += 1;
    }
    bytes
}

/// Where cargo may keep its sources, given how to look up an environment variable: `cargo_homes(|name|
/// std::env::var_os(name))`.
pub fn cargo_homes(variable: impl Fn(&str) -> Option<OsString>) -> Vec<PathBuf> {
    let set = |name: &str| variable(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let by_user = ["HOME", "USERPROFILE"].into_iter().filter_map(set).map(|home| home.join(".cargo"));
    let mut homes: Vec<PathBuf> = set("CARGO_HOME").into_iter().chain(by_user).collect();
    homes.dedup();
    homes
}

/// The files of all crates, in the order of the list, each crate checked against its digest.
pub(crate) fn files(crates: &[PinnedCrate], homes: &[PathBuf]) -> Result<Vec<Found>, SourceError> {
    let mut files = Vec::new();
    for wanted in crates {
        files.extend(find(wanted, homes)?);
    }
    Ok(files)
}

/// The first copy with the right digest. If there are only others, the first of those is shown.
fn find(wanted: &PinnedCrate, homes: &[PathBuf]) -> Result<Vec<Found>, SourceError> {
    let mut differing = None;
    for path in places(wanted, homes) {
        let files = files_below(&path, |file| file.extension() == Some(OsStr::new("rs")))?;
        let files: Vec<Found> = files.into_iter().filter(|file| file.bytes <= MAX_SOURCE_BYTES).collect();
        let found = digest(&files)?;
        if found == wanted.digest {
            let prefix = format!("{}-{}", wanted.name, wanted.version);
            return Ok(files
                .into_iter()
                .map(|file| Found { name: format!("{prefix}/{}", file.name), ..file })
                .collect());
        }
        differing.get_or_insert((path, found));
    }
    let wanted = Box::new(wanted.clone());
    Err(match differing {
        Some((path, found)) => SourceError::CrateDiffers { wanted, path, found },
        None => SourceError::CrateMissing { wanted, homes: homes.to_vec() },
    })
}

impl fmt::Display for PinnedCrate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.name, self.version)
    }
}

/// Directories that may hold the crate, and exist.
fn places(wanted: &PinnedCrate, homes: &[PathBuf]) -> Vec<PathBuf> {
    let full_name = format!("{}-{}", wanted.name, wanted.version);
    let mut places = Vec::new();
    for home in homes {
        places.extend(registries(home).into_iter().map(|registry| registry.join(&full_name)));
        places.push(home.join(&full_name));
        places.push(home.join(&*wanted.name));
    }
    places.retain(|place| place.is_dir());
    places
}

/// `registry/src/*`, one for each registry or mirror that cargo fetched from.
fn registries(home: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(home.join("registry").join("src")) else { return Vec::new() };
    let mut registries: Vec<PathBuf> = entries.filter_map(|entry| Some(entry.ok()?.path())).collect();
    registries.sort();
    registries
}

fn digest(files: &[Found]) -> Result<Digest, SourceError> {
    let mut hasher = blake3::Hasher::new();
    for file in files {
        let contents = read_file(&file.path)?;
        for part in [file.name.as_bytes(), &contents] {
            hasher.update(&(part.len() as u64).to_le_bytes());
            hasher.update(part);
        }
    }
    Ok(Digest(*hasher.finalize().as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(path: PathBuf, contents: &str) {
        fs::create_dir_all(path.parent().expect("a file has a directory")).expect("writable");
        fs::write(path, contents).expect("writable");
    }

    fn home_with(registry: &str, contents: &str) -> tempfile::TempDir {
        let home = tempfile::tempdir().expect("a temporary directory");
        let root = home.path().join("registry/src").join(registry).join("words-1.2.3");
        write(root.join("src/lib.rs"), contents);
        write(root.join("build.rs"), "fn main() {}");
        write(root.join("README.md"), "not Rust");
        write(root.join("src/table.rs"), &"0, ".repeat(50_000));
        home
    }

    fn words(home: &Path) -> PinnedCrate {
        let mut words =
            PinnedCrate { name: "words".into(), version: "1.2.3".into(), digest: Digest::default() };
        match find(&words, &[home.to_owned()]) {
            Err(SourceError::CrateDiffers { found, .. }) => words.digest = found,
            other => panic!("no crate has digest 0: {:?}", other.map(|files| files.len())),
        }
        words
    }

    #[test]
    fn a_crate_is_found_by_its_digest_wherever_cargo_put_it() {
        let home = home_with("index.crates.io-1", "pub fn word() {}");
        let words = words(home.path());
        let names = |homes: &[PathBuf]| -> Vec<String> {
            let files = files(std::slice::from_ref(&words), homes).expect("the crate is there");
            files.into_iter().map(|file| file.name).collect()
        };
        let expected = ["words-1.2.3/build.rs", "words-1.2.3/src/lib.rs"];
        assert_eq!(names(&[home.path().to_owned()]), expected);

        // Another copy that differs does not matter where one is right.
        let other = home_with("mirror-2", "pub fn changed() {}");
        assert_eq!(names(&[other.path().to_owned(), home.path().to_owned()]), expected);
        let vendored = home.path().join("registry/src/index.crates.io-1");
        assert_eq!(names(&[vendored]), expected);
    }

    #[test]
    fn a_missing_and_a_changed_crate_say_what_to_do() {
        let home = home_with("index.crates.io-1", "pub fn word() {}");
        let words = words(home.path());
        let empty = tempfile::tempdir().expect("a temporary directory");
        let missing = find(&words, &[empty.path().to_owned()]).err().expect("nothing is there");
        assert!(matches!(missing, SourceError::CrateMissing { .. }));
        assert!(missing.to_string().contains("cargo fetch"));
        assert!(
            find(&words, &[]).err().expect("no home").to_string().contains("neither CARGO_HOME nor HOME")
        );

        let changed = home_with("index.crates.io-1", "pub fn word() { }");
        let differs = find(&words, &[changed.path().to_owned()]).err().expect("one byte is different");
        assert!(matches!(differs, SourceError::CrateDiffers { ref wanted, .. } if **wanted == words));
        assert!(differs.to_string().contains("words-1.2.3 differs from what was published"));
    }

    #[test]
    fn cargo_home_goes_before_home() {
        let homes = |set: &[(&str, &str)]| {
            cargo_homes(|name| set.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).into()))
        };
        assert_eq!(
            homes(&[("HOME", "/h"), ("CARGO_HOME", "/c")]),
            [PathBuf::from("/c"), Path::new("/h").join(".cargo")]
        );
        assert_eq!(homes(&[("HOME", "/h"), ("CARGO_HOME", "")]), [Path::new("/h").join(".cargo")]);
        assert!(homes(&[]).is_empty());
    }

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

    /// Needs cargo's sources, which whoever runs this test through cargo has.
    #[test]
    #[allow(clippy::disallowed_methods, reason = "a test has no main to read the environment in")]
    fn the_default_text_is_there_and_is_what_the_project_says() {
        let homes = cargo_homes(|name| std::env::var_os(name));
        let mut bytes = 0;
        let mut wrong = Vec::new();
        for pinned in &DEFAULT_TEXT {
            match find(pinned, &homes) {
                Ok(files) => bytes += files.iter().map(|file| file.bytes).sum::<u64>(),
                Err(SourceError::CrateDiffers { wanted, found, .. }) => {
                    let PinnedCrate { name, version, .. } = *wanted;
                    wrong.push(format!("    pinned(\"{name}\", \"{version}\", \"{found}\"),"));
                }
                Err(SourceError::CrateMissing { .. }) => return,
                Err(error) => panic!("{error}"),
            }
        }
        assert!(wrong.is_empty(), "should be:\n{}", wrong.join("\n"));
        assert!((10 << 20..20 << 20).contains(&bytes), "{bytes} bytes are too few or too many");
    }
}
