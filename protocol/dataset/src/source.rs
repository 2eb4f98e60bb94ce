//! Where the text comes from: the same documents in the same order on every machine.
//!
//! Reading goes twice over the text: first every file is read, checked and hashed, and only names, lengths
//! and digests are kept; later each document is read again when its turn comes, and checked against its
//! digest. So the memory needed does not grow with the text, and a file that changes in between is noticed.

use crate::{cargo_text, cargo_text::PinnedCrate, files::read_bounded};
use protocol::Digest;
use std::{
    collections::BTreeSet,
    ffi::OsStr,
    fs::{self, File},
    io::{self, Read as _, Seek as _, SeekFrom},
    ops::Range,
    path::{Path, PathBuf},
};

/// Endings that promise text: such a file that is not UTF-8 is an error, any other is passed over.
const TEXT_ENDINGS: [&str; 4] = ["txt", "md", "rs", "rst"];
/// A file is in memory once, while it is checked. In bytes.
const MAX_FILE_BYTES: u64 = 1 << 30;
/// A file longer than a part is cut into documents of at most this many bytes, so that one long file can have
/// a held-out split too, …
const MAX_PART_BYTES: u64 = 256 << 10;
/// … but not into crumbs.
const MIN_PART_BYTES: u64 = 8 << 10;
/// A part is at most this share of all text.
const PARTS: u64 = 32;

/// A text to make a dataset of.
#[derive(Clone, Debug)]
pub struct Source(Kind);

#[derive(Clone, Debug)]
enum Kind {
    Directory(PathBuf),
    CargoSources { crates: Vec<PinnedCrate>, homes: Vec<PathBuf> },
}

#[derive(Debug, thiserror::Error)]
pub enum SourceError {
    #[error("cannot read {}", path.display())]
    Unreadable { path: PathBuf, source: io::Error },
    #[error("{} is not UTF-8 text: its first {valid_bytes} bytes are, the next one is not", path.display())]
    NotText { path: PathBuf, valid_bytes: usize },
    #[error("the name of {} is not UTF-8", path.display())]
    NameNotText { path: PathBuf },
    #[error("{} has more than {MAX_FILE_BYTES} bytes; cut it into smaller files", path.display())]
    TooLarge { path: PathBuf },
    #[error("{} changed while it was being read", path.display())]
    Changed { path: PathBuf },
    #[error(
        "the source of {wanted}, which is part of the default text, is not under {}; \
         run `cargo fetch` in the project, or name a text of your own",
        listed(homes)
    )]
    CrateMissing { wanted: Box<PinnedCrate>, homes: Vec<PathBuf> },
    #[error(
        "{} differs from what was published as {wanted} (its digest is {found}, not {}); \
         remove that directory and run `cargo fetch` in the project",
        path.display(), wanted.digest
    )]
    CrateDiffers { wanted: Box<PinnedCrate>, path: PathBuf, found: Digest },
}

/// All documents of a source.
#[derive(Debug)]
pub(crate) struct Text {
    /// Sorted by name; no two with equal contents.
    pub documents: Vec<Document>,
    /// Of all documents together.
    pub bytes: u64,
    /// Documents left out because another has the same contents.
    pub duplicates: u64,
    /// Files left out because they are no text.
    pub skipped: u64,
}

/// A file, or a part of a long one.
#[derive(Debug)]
pub(crate) struct Document {
    /// The path below the source, with `/`; for a part, `#` and its number behind it.
    pub name: String,
    /// Of the contents.
    pub digest: Digest,
    pub bytes: u64,
    path: PathBuf,
    offset: u64,
}

impl Source {
    /// Every text file below a directory, sorted by path. Files that end in `.txt`, `.md`, `.rs` or `.rst`
    /// must be UTF-8; others are taken if they are. Hidden files and directories are passed over, links to
    /// directories are not followed.
    pub fn directory(path: impl Into<PathBuf>) -> Source {
        Source(Kind::Directory(path.into()))
    }

    /// The `.rs` files of published crates, found where cargo keeps its sources: below `homes` (see
    /// [`crate::cargo_homes`]) in `registry/src/*/NAME-VERSION`, or, for vendored sources, in `NAME-VERSION`
    /// or `NAME`. Their contents must have the digests in the list.
    pub fn cargo_sources(crates: &[PinnedCrate], homes: Vec<PathBuf>) -> Source {
        Source(Kind::CargoSources { crates: crates.to_vec(), homes })
    }

    /// The default text: Rust source that the build needs anyway, so it is the same everywhere and is not
    /// downloaded.
    pub fn default_text(homes: Vec<PathBuf>) -> Source {
        Source::cargo_sources(&cargo_text::DEFAULT_TEXT, homes)
    }

    /// Reads, checks and hashes everything. `progress` hears how many files, and bytes of them, are read.
    pub(crate) fn read(&self, progress: &mut dyn FnMut(u64, u64)) -> Result<Text, SourceError> {
        let files = match &self.0 {
            Kind::Directory(path) => files_below(path, |_| true)?,
            Kind::CargoSources { crates, homes } => cargo_text::files(crates, homes)?,
        };
        read_files(files, progress)
    }
}

impl Document {
    /// The document's text, if it is still the same.
    pub fn read(&self) -> Result<String, SourceError> {
        let unreadable = |source| SourceError::Unreadable { path: self.path.clone(), source };
        let changed = || SourceError::Changed { path: self.path.clone() };
        let mut file = File::open(&self.path).map_err(unreadable)?;
        file.seek(SeekFrom::Start(self.offset)).map_err(unreadable)?;
        let mut bytes = Vec::new();
        file.take(self.bytes).read_to_end(&mut bytes).map_err(unreadable)?;
        if Digest::of(&bytes) != self.digest {
            return Err(changed());
        }
        String::from_utf8(bytes).map_err(|_| changed())
    }
}

/// A file to be read.
pub(crate) struct Found {
    pub name: String,
    pub path: PathBuf,
    pub bytes: u64,
}

/// All files below a directory whose name `wanted` likes, sorted by name.
pub(crate) fn files_below(root: &Path, wanted: impl Fn(&Path) -> bool) -> Result<Vec<Found>, SourceError> {
    let mut found = Vec::new();
    let mut directories = vec![(String::new(), root.to_owned())];
    while let Some((prefix, directory)) = directories.pop() {
        let unreadable = |source| SourceError::Unreadable { path: directory.clone(), source };
        for entry in fs::read_dir(&directory).map_err(unreadable)? {
            let path = entry.map_err(unreadable)?.path();
            let Some(name) = path.file_name().and_then(OsStr::to_str) else {
                return Err(SourceError::NameNotText { path });
            };
            if name.starts_with('.') {
                continue;
            }
            let name = format!("{prefix}{name}");
            let unreadable = |source| SourceError::Unreadable { path: path.clone(), source };
            // A link to a directory could lead round in a circle.
            let is_link = path.symlink_metadata().map_err(unreadable)?.is_symlink();
            let metadata = path.metadata().map_err(unreadable)?;
            if metadata.is_dir() && !is_link {
                directories.push((name + "/", path));
            } else if metadata.is_file() && wanted(&path) {
                found.push(Found { name, path, bytes: metadata.len() });
            }
        }
    }
    found.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(found)
}

/// The whole file, if it is not too large.
pub(crate) fn read_file(path: &Path) -> Result<Vec<u8>, SourceError> {
    match read_bounded(path, MAX_FILE_BYTES) {
        Ok(Some(bytes)) => Ok(bytes),
        Ok(None) => Err(SourceError::TooLarge { path: path.to_owned() }),
        Err(source) => Err(SourceError::Unreadable { path: path.to_owned(), source }),
    }
}

fn read_files(files: Vec<Found>, progress: &mut dyn FnMut(u64, u64)) -> Result<Text, SourceError> {
    let all_bytes: u64 = files.iter().map(|file| file.bytes).sum();
    let part_bytes = (all_bytes / PARTS).clamp(MIN_PART_BYTES, MAX_PART_BYTES) as usize;
    let mut text = Text { documents: Vec::new(), bytes: 0, duplicates: 0, skipped: 0 };
    let mut seen: BTreeSet<Digest> = BTreeSet::new();
    let mut bytes_read = 0;
    for (files_read, Found { name, path, .. }) in (1u64..).zip(files) {
        let bytes = read_file(&path)?;
        bytes_read += bytes.len() as u64;
        progress(files_read, bytes_read);
        let contents = match std::str::from_utf8(&bytes) {
            Ok(contents) if promises_text(&path) || !contents.contains('\0') => contents,
            Err(error) if promises_text(&path) => {
                return Err(SourceError::NotText { path, valid_bytes: error.valid_up_to() });
            }
            _ => {
                text.skipped += 1;
                continue;
            }
        };
        let parts = parts(contents, part_bytes);
        let many = parts.len() > 1;
        for (number, part) in (1..).zip(parts) {
            let contents = &contents[part.clone()];
            let digest = Digest::of(contents.as_bytes());
            if !seen.insert(digest) {
                text.duplicates += 1;
                continue;
            }
            let name = if many { format!("{name}#{number}") } else { name.clone() };
            let bytes = contents.len() as u64;
            text.bytes += bytes;
            text.documents.push(Document {
                name,
                digest,
                bytes,
                path: path.clone(),
                offset: part.start as u64,
            });
        }
    }
    Ok(text)
}

fn promises_text(path: &Path) -> bool {
    path.extension().is_some_and(|ending| TEXT_ENDINGS.iter().any(|known| ending == *known))
}

/// Cuts a text into parts of at most `part_bytes`, at the last line end of a part's second half, or else
/// between two characters. No part for no text.
fn parts(text: &str, part_bytes: usize) -> Vec<Range<usize>> {
    let mut parts = Vec::new();
    let mut start = 0;
    while start < text.len() {
        let mut end = text.len();
        if end - start > part_bytes {
            end = text.floor_char_boundary(start + part_bytes);
            let second_half = text.floor_char_boundary(start + part_bytes / 2);
            if let Some(line_end) = text[second_half..end].rfind('\n') {
                end = second_half + line_end + 1;
            }
        }
        parts.push(start..end);
        start = end;
    }
    parts
}

fn listed(paths: &[PathBuf]) -> String {
    if paths.is_empty() {
        return "any directory of cargo's (neither CARGO_HOME nor HOME is set)".to_owned();
    }
    paths.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(" or ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn directory(files: &[(&str, &[u8])]) -> tempfile::TempDir {
        let root = tempfile::tempdir().expect("a temporary directory");
        for (name, contents) in files {
            let path = root.path().join(name);
            fs::create_dir_all(path.parent().expect("a file has a directory")).expect("writable");
            fs::write(path, contents).expect("writable");
        }
        root
    }

    fn read(root: &Path) -> Result<Text, SourceError> {
        Source::directory(root).read(&mut |_, _| {})
    }

    fn names(text: &Text) -> Vec<&str> {
        text.documents.iter().map(|document| document.name.as_str()).collect()
    }

    #[test]
    fn a_directory_is_read_in_the_order_of_its_paths() {
        let root = directory(&[
            ("b.txt", b"two"),
            ("a/z.md", b"one"),
            ("a.rs", b"zero"),
            ("plain", b"text without an ending"),
            ("copy.txt", b"two"),
            ("empty.txt", b""),
            ("picture.png", b"\x89PNG\xff"),
            ("zeros.bin", b"\0\0"),
            (".git/config.txt", b"hidden"),
            (".hidden.txt", b"hidden"),
        ]);
        let text = read(root.path()).expect("readable");
        assert_eq!(names(&text), ["a.rs", "a/z.md", "b.txt", "plain"]);
        assert_eq!((text.bytes, text.duplicates, text.skipped), (32, 1, 2));
        assert_eq!(text.documents[1].read().expect("readable"), "one");
    }

    #[test]
    fn what_promises_text_and_is_none_is_refused_by_name() {
        let root = directory(&[("good.txt", b"fine"), ("latin.txt", b"caf\xe9")]);
        let error = read(root.path()).expect_err("latin-1 is not UTF-8");
        assert!(
            matches!(&error, SourceError::NotText { path, valid_bytes: 3 } if path.ends_with("latin.txt"))
        );
        assert!(error.to_string().contains("latin.txt is not UTF-8 text"));
    }

    #[test]
    fn what_cannot_be_read_is_named() {
        let nowhere = tempfile::tempdir().expect("a temporary directory").path().join("nowhere");
        assert!(matches!(read(&nowhere), Err(SourceError::Unreadable { path, .. }) if path == nowhere));

        let large = directory(&[("large.txt", b"")]);
        let path = large.path().join("large.txt");
        // A file with a hole: long, but nothing is stored.
        File::create(&path).and_then(|file| file.set_len(MAX_FILE_BYTES * 4)).expect("a sparse file");
        assert!(matches!(files_below(large.path(), |_| true), Ok(files) if files[0].bytes > MAX_FILE_BYTES));
        assert!(matches!(read_bounded(&path, 10), Ok(None)));
    }

    #[cfg(unix)]
    #[test]
    fn a_dead_link_is_unreadable_and_a_circle_is_not_followed() {
        let root = directory(&[("a/one.txt", b"one")]);
        std::os::unix::fs::symlink("..", root.path().join("a/up")).expect("a link");
        std::os::unix::fs::symlink("one.txt", root.path().join("a/two.txt")).expect("a link");
        let text = read(root.path()).expect("readable");
        assert_eq!((names(&text), text.duplicates), (vec!["a/one.txt"], 1));

        std::os::unix::fs::symlink("gone", root.path().join("dead.txt")).expect("a link");
        assert!(
            matches!(read(root.path()), Err(SourceError::Unreadable { path, .. }) if path.ends_with("dead.txt"))
        );
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_name_that_is_no_text_is_refused() {
        use std::os::unix::ffi::OsStrExt as _;
        let root = directory(&[]);
        fs::write(root.path().join(OsStr::from_bytes(b"\xff.txt")), "text").expect("writable");
        assert!(matches!(read(root.path()), Err(SourceError::NameNotText { .. })));
    }

    #[test]
    fn a_document_that_changes_is_noticed() {
        let root = directory(&[("a.txt", b"before")]);
        let text = read(root.path()).expect("readable");
        fs::write(root.path().join("a.txt"), "behind").expect("writable");
        assert!(matches!(text.documents[0].read(), Err(SourceError::Changed { .. })));
    }

    #[test]
    fn a_long_file_becomes_several_documents() {
        let long: String = (0..3000).map(|line| format!("line {line}\n")).collect();
        let root = directory(&[("long.txt", long.as_bytes())]);
        let text = read(root.path()).expect("readable");
        assert_eq!(names(&text)[..2], ["long.txt#1", "long.txt#2"]);
        let together: String = text.documents.iter().map(|part| part.read().expect("readable")).collect();
        assert_eq!(together, long);
        assert!(text.documents.iter().all(|part| part.bytes <= MIN_PART_BYTES));
    }

    proptest! {
        #[test]
        fn parts_are_the_text_and_none_is_too_long(text in "[aä\u{1f600}\n]{0,200}", part_bytes in 4usize..50) {
            let parts = parts(&text, part_bytes);
            let together: String = parts.iter().map(|part| &text[part.clone()]).collect();
            prop_assert_eq!(&together, &text);
            prop_assert!(parts.iter().all(|part| (1..=part_bytes).contains(&part.len())));
        }
    }
}
