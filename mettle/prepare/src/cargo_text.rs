//! The source of published crates in cargo's directories.

use crate::{
    default_text::PinnedCrate,
    error::SourceError,
    walk::{FoundFile, files_below},
};
use protocol::Digest;
use std::{
    ffi::{OsStr, OsString},
    fs,
    path::{Path, PathBuf},
};

/// Maximum size of a source file, in bytes: longer ones are generated tables.
const MAX_SOURCE_BYTES: u64 = 128 << 10;

/// Returns the directories in which cargo may keep its sources, from a lookup of environment variables:
/// `cargo_homes(|name| std::env::var_os(name))`.
pub fn cargo_homes(variable: impl Fn(&str) -> Option<OsString>) -> Vec<PathBuf> {
    let set = |name: &str| variable(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let by_user = ["HOME", "USERPROFILE"].into_iter().filter_map(set).map(|home| home.join(".cargo"));
    let mut homes: Vec<PathBuf> = set("CARGO_HOME").into_iter().chain(by_user).collect();
    homes.dedup();
    homes
}

/// Returns the files of all crates in the order of the list. Checks the digest of each crate.
pub(crate) fn files(crates: &[PinnedCrate], homes: &[PathBuf]) -> Result<Vec<FoundFile>, SourceError> {
    let files: Result<Vec<_>, _> = crates.iter().map(|wanted| find(wanted, homes)).collect();
    Ok(files?.into_iter().flatten().collect())
}

/// Returns the first copy with the right digest. If all copies differ, the error names the first.
fn find(wanted: &PinnedCrate, homes: &[PathBuf]) -> Result<Vec<FoundFile>, SourceError> {
    let mut differing = None;
    for path in directories(wanted, homes) {
        let files = files_below(&path, |file| file.extension() == Some(OsStr::new("rs")))?;
        let files: Vec<FoundFile> = files.into_iter().filter(|file| file.bytes <= MAX_SOURCE_BYTES).collect();
        let found = digest(&files)?;
        if found.to_string() == wanted.digest {
            return Ok(files);
        }
        differing.get_or_insert((path, found));
    }
    let wanted = *wanted;
    Err(match differing {
        Some((path, found)) => SourceError::CrateDiffers { wanted, path, found },
        None => SourceError::CrateMissing { wanted, homes: homes.to_vec() },
    })
}

/// Returns the existing directories that may contain the crate.
fn directories(wanted: &PinnedCrate, homes: &[PathBuf]) -> Vec<PathBuf> {
    let full_name = format!("{}-{}", wanted.name, wanted.version);
    let mut directories = Vec::new();
    for home in homes {
        directories.extend(registries(home).into_iter().map(|registry| registry.join(&full_name)));
        directories.push(home.join(&full_name));
        directories.push(home.join(wanted.name));
    }
    directories.retain(|directory| directory.is_dir());
    directories
}

/// Returns `registry/src/*`, one for each registry or mirror that cargo fetched from.
fn registries(home: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(home.join("registry").join("src")) else { return Vec::new() };
    let mut registries: Vec<PathBuf> = entries.filter_map(|entry| Some(entry.ok()?.path())).collect();
    registries.sort();
    registries
}

fn digest(files: &[FoundFile]) -> Result<Digest, SourceError> {
    let mut hasher = blake3::Hasher::new();
    for file in files {
        let contents = fs::read(&file.path)
            .map_err(|source| SourceError::Unreadable { path: file.path.clone(), source })?;
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
    use crate::default_text::DEFAULT_TEXT;

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
        let mut words = PinnedCrate { name: "words", version: "1.2.3", digest: "" };
        match find(&words, &[home.to_owned()]) {
            Err(SourceError::CrateDiffers { found, .. }) => words.digest = found.to_string().leak(),
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
        let expected = ["build.rs", "src/lib.rs"];
        assert_eq!(names(&[home.path().to_owned()]), expected);

        // Another copy that differs does not matter if one is right.
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
        assert!(matches!(differs, SourceError::CrateDiffers { wanted, .. } if wanted == words));
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

    /// Needs cargo's sources, which cargo has fetched to run this test.
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
                    let PinnedCrate { name, version, .. } = wanted;
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
