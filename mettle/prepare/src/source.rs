//! Sources of a text: the same files in the same order on every machine, and the share of each source.

use crate::{
    bucket::{Bucket, BucketUrl},
    cargo_text,
    default_text::DEFAULT_TEXT,
    documents::{self, Format},
    error::{BucketError, SourceError},
    text_file::{Object, TextFile},
    walk::{FoundFile, files_below},
};
use dataset::read_bounded;
use protocol::ensure;
use serde::Deserialize;
use std::path::{Path, PathBuf};
use store::NamedObject;

/// Maximum length of a part of a text file, in bytes. A longer file is cut into documents, so that one long file can
/// have a held-out split too.
const MAX_PART_BYTES: u64 = 256 << 10;
/// Minimum length of such a part, in bytes.
const MIN_PART_BYTES: u64 = 8 << 10;
/// Divisor of all text for the maximum length of a part.
const PARTS: u64 = 32;
/// The default field of the text.
pub const TEXT_FIELD: &str = "text";
/// Units per weight of 1.
const WEIGHT_UNITS: f64 = 1e6;
/// Maximum size of a mixture file, in bytes.
const MAX_MIXTURE_BYTES: u64 = 1 << 20;

/// Text for a dataset: one source, or a mixture of several.
#[derive(Clone, Debug)]
pub struct Source {
    pub(crate) parts: Vec<SourcePart>,
    pub(crate) epochs: u32,
}

#[derive(Clone, Debug)]
pub(crate) struct SourcePart {
    pub name: String,
    /// Share of the text, in any unit; `None` if all of it is taken.
    pub weight: Option<u64>,
    pub field: String,
    kind: Kind,
}

#[derive(Clone, Debug)]
enum Kind {
    Path(PathBuf),
    Bucket(Bucket, BucketUrl),
    /// Source of the default text in one of cargo's directories.
    DefaultText {
        homes: Vec<PathBuf>,
    },
}

/// A mixture file.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct MixtureFile {
    /// Number of readings of the scarcest source.
    epochs: Option<u32>,
    source: Vec<MixtureSource>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct MixtureSource {
    path: String,
    weight: f64,
    name: Option<String>,
    field: Option<String>,
}

impl Source {
    /// Creates a source of a file, or of every file below a directory, sorted by path.
    ///
    /// `.jsonl` and `.ndjson` are JSON lines, one document each; `.parquet` has a document in each row; every other
    /// file is text, if it is UTF-8. Text and JSON lines may be compressed (`.gz`, `.zst`). Files that end in `.txt`,
    /// `.md`, `.rs` or `.rst` must be UTF-8; other files that are not are skipped. Hidden files and directories are
    /// skipped, and links to directories are not followed.
    pub fn directory(path: impl Into<PathBuf>) -> Source {
        Source::of("text", Kind::Path(path.into()))
    }

    /// Creates a source of the objects at or below a URL of a bucket: the bytes and order of a directory with their
    /// names.
    pub fn bucket(bucket: Bucket, url: BucketUrl) -> Source {
        Source::of("text", Kind::Bucket(bucket, url))
    }

    /// Reads documents from this field of JSON lines, or column of Parquet files, instead of from `text`.
    pub fn with_field(mut self, field: &str) -> Source {
        self.parts.iter_mut().for_each(|part| field.clone_into(&mut part.field));
        self
    }

    /// Creates a mixture of several sources, each with its weight's share of the text. The scarcest of them is read
    /// `epochs` times, and the others in proportion.
    ///
    /// `parts` are names, weights and sources.
    ///
    /// # Errors
    /// If a weight is out of range.
    pub fn mixture(parts: Vec<(String, f64, Source)>, epochs: u32) -> Result<Source, SourceError> {
        let weighed = |(name, weight, source): (String, f64, Source)| {
            let units = weight * WEIGHT_UNITS;
            ensure!(
                (1.0..=WEIGHT_UNITS * WEIGHT_UNITS).contains(&units),
                SourceError::Weight { name, weight }
            );
            // Below 2^40, so the conversion is exact.
            let units = units.round() as u64;
            let weighed = move |part| SourcePart { name: name.clone(), weight: Some(units), ..part };
            Ok(source.parts.into_iter().map(weighed))
        };
        let parts: Result<Vec<_>, _> = parts.into_iter().map(weighed).collect();
        Ok(Source { parts: parts?.into_iter().flatten().collect(), epochs: epochs.max(1) })
    }

    /// Reads a mixture from a TOML file: `epochs`, and `[[source]]` with `path` (relative to the file, or a URL of a
    /// bucket, which `open` opens), `weight`, and optionally `name` and `field`.
    ///
    /// # Errors
    /// If the file cannot be read or has an invalid value.
    pub fn mixture_file(
        path: &Path,
        open: impl Fn(&BucketUrl) -> Result<Bucket, BucketError>,
    ) -> Result<Source, SourceError> {
        let wrong = |reason: String| SourceError::Mixture { path: path.to_owned(), reason };
        let bytes = read_bounded(path, MAX_MIXTURE_BYTES)
            .map_err(|source| SourceError::Unreadable { path: path.to_owned(), source })?
            .ok_or_else(|| wrong(format!("it has more than {MAX_MIXTURE_BYTES} bytes")))?;
        let text = String::from_utf8(bytes).map_err(|error| wrong(error.to_string()))?;
        let file: MixtureFile = toml::from_str(&text).map_err(|error| wrong(error.to_string()))?;
        ensure!(!file.source.is_empty(), wrong("it names no [[source]]".to_owned()));
        let below = path.parent().unwrap_or(Path::new(""));
        let part = |source: MixtureSource| {
            let found = match BucketUrl::parse(&source.path)? {
                Some(url) => {
                    let place = url.to_string();
                    let bucket = open(&url).map_err(|source| SourceError::Bucket { place, source })?;
                    Source::bucket(bucket, url)
                }
                None => Source::directory(below.join(&source.path)),
            };
            let name = source.name.unwrap_or(source.path);
            let field = source.field.as_deref().unwrap_or(TEXT_FIELD).to_owned();
            Ok((name, source.weight, found.with_field(&field)))
        };
        let parts: Result<Vec<_>, SourceError> = file.source.into_iter().map(part).collect();
        Source::mixture(parts?, file.epochs.unwrap_or(1))
    }

    /// Creates the default text: Rust source that the build needs anyway, so it is equal everywhere and needs no
    /// download.
    ///
    /// It is in cargo's directories: below `homes` (see [`crate::cargo_homes`]) in `registry/src/*/NAME-VERSION`, or,
    /// for vendored sources, in `NAME-VERSION` or `NAME`. Its digests are checked.
    pub fn default_text(homes: Vec<PathBuf>) -> Source {
        Source::of("crates", Kind::DefaultText { homes })
    }

    /// Returns the URL of a part that would contain objects at `url`, in the same store.
    pub(crate) fn covering(&self, url: &BucketUrl) -> Option<&BucketUrl> {
        self.parts.iter().find_map(|part| match &part.kind {
            Kind::Bucket(_, text) if text.covers(url) => Some(text),
            _ => None,
        })
    }

    /// Lists the files of each part.
    pub(crate) fn files(&self) -> Result<Vec<Vec<TextFile>>, SourceError> {
        self.parts.iter().map(SourcePart::files).collect()
    }

    fn of(name: &str, kind: Kind) -> Source {
        let part = SourcePart { name: name.to_owned(), weight: None, field: TEXT_FIELD.to_owned(), kind };
        Source { parts: vec![part], epochs: 1 }
    }
}

impl SourcePart {
    /// Lists the files of this part in order.
    pub fn files(&self) -> Result<Vec<TextFile>, SourceError> {
        if let Kind::Bucket(bucket, url) = &self.kind {
            let files = bucket.files(url)?.into_iter();
            let file = |object: NamedObject| TextFile {
                path: url.of(&object.name).into(),
                bytes: object.bytes,
                part_bytes: 0,
                object: Some(Object { bucket: bucket.clone(), info: object }),
            };
            return Ok(with_part_bytes(files.map(file).collect()));
        }
        let found = match &self.kind {
            Kind::Path(path) if path.is_file() => {
                let bytes = path
                    .metadata()
                    .map_err(|source| SourceError::Unreadable { path: path.clone(), source })?
                    .len();
                vec![FoundFile { name: String::new(), path: path.clone(), bytes }]
            }
            Kind::Path(path) => files_below(path, |_| true)?,
            Kind::Bucket(..) => Vec::new(),
            Kind::DefaultText { homes } => cargo_text::files(&DEFAULT_TEXT, homes)?,
        };
        let file =
            |found: FoundFile| TextFile { path: found.path, bytes: found.bytes, part_bytes: 0, object: None };
        Ok(with_part_bytes(found.into_iter().map(file).collect()))
    }
}

/// Sets the length of the documents into which text files are cut.
fn with_part_bytes(mut files: Vec<TextFile>) -> Vec<TextFile> {
    let is_text = |file: &&TextFile| matches!(documents::format(&file.path).0, Format::Text { .. });
    let text_bytes: u64 = files.iter().filter(is_text).map(|file| file.bytes).sum();
    let part_bytes = (text_bytes / PARTS).clamp(MIN_PART_BYTES, MAX_PART_BYTES) as usize;
    files.iter_mut().for_each(|file| file.part_bytes = part_bytes);
    files
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{ffi::OsStr, fs};

    fn directory(files: &[(&str, &[u8])]) -> tempfile::TempDir {
        let root = tempfile::tempdir().expect("a temporary directory");
        for (name, contents) in files {
            let path = root.path().join(name);
            fs::create_dir_all(path.parent().expect("a file has a directory")).expect("writable");
            fs::write(path, contents).expect("writable");
        }
        root
    }

    fn names(root: &Path) -> Result<Vec<String>, SourceError> {
        let files = Source::directory(root).parts[0].files()?;
        let below = |file: &TextFile| {
            file.path.strip_prefix(root).expect("below").to_str().expect("UTF-8").to_owned()
        };
        Ok(files.iter().map(below).collect())
    }

    #[test]
    fn a_directory_is_read_in_the_order_of_its_paths() {
        let root = directory(&[
            ("b.txt", b"two"),
            ("a/z.md", b"one"),
            ("a.rs", b"zero"),
            ("plain", b"text without an ending"),
            (".git/config.txt", b"hidden"),
            (".hidden.txt", b"hidden"),
        ]);
        assert_eq!(names(root.path()).expect("readable"), ["a.rs", "a/z.md", "b.txt", "plain"]);
        let one = Source::directory(root.path().join("b.txt")).parts[0].files().expect("readable");
        assert_eq!((one.len(), one[0].bytes), (1, 3));
    }

    #[test]
    fn what_cannot_be_read_is_named() {
        let nowhere = tempfile::tempdir().expect("a temporary directory").path().join("nowhere");
        assert!(matches!(names(&nowhere), Err(SourceError::Unreadable { path, .. }) if path == nowhere));
    }

    #[cfg(unix)]
    #[test]
    fn a_dead_link_is_unreadable_and_a_circle_is_not_followed() {
        let root = directory(&[("a/one.txt", b"one")]);
        std::os::unix::fs::symlink("..", root.path().join("a/up")).expect("a link");
        std::os::unix::fs::symlink("one.txt", root.path().join("a/two.txt")).expect("a link");
        assert_eq!(names(root.path()).expect("readable"), ["a/one.txt", "a/two.txt"]);

        std::os::unix::fs::symlink("gone", root.path().join("dead.txt")).expect("a link");
        assert!(
            matches!(names(root.path()), Err(SourceError::Unreadable { path, .. }) if path.ends_with("dead.txt"))
        );
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_name_that_is_no_text_is_refused() {
        use std::os::unix::ffi::OsStrExt as _;
        let root = directory(&[]);
        fs::write(root.path().join(OsStr::from_bytes(b"\xff.txt")), "text").expect("writable");
        assert!(matches!(names(root.path()), Err(SourceError::NameNotText { .. })));
    }

    #[test]
    fn a_mixture_is_read_from_a_file_and_what_is_wrong_with_it_is_told() {
        let root = directory(&[]);
        let path = root.path().join("mix.toml");
        let read = |text: &str| {
            fs::write(&path, text).expect("writable");
            Source::mixture_file(&path, |_| Err("no bucket".into()))
        };
        let mixture = read(
            "epochs = 2\n[[source]]\npath = \"web\"\nweight = 0.75\n\
             [[source]]\npath = \"/code\"\nweight = 0.25\nname = \"code\"\nfield = \"content\"\n",
        )
        .expect("a mixture");
        assert_eq!(mixture.epochs, 2);
        let told = |part: &SourcePart| (part.name.clone(), part.weight, part.field.clone());
        assert_eq!(told(&mixture.parts[0]), ("web".into(), Some(750_000), "text".into()));
        assert_eq!(told(&mixture.parts[1]), ("code".into(), Some(250_000), "content".into()));
        assert!(matches!(&mixture.parts[0].kind, Kind::Path(web) if *web == root.path().join("web")));
        assert!(matches!(&mixture.parts[1].kind, Kind::Path(code) if code == Path::new("/code")));

        for wrong in
            ["", "source = []", "[[source]]\npath = \"a\"\n", "[[source]]\npath = 1", "\n[", "nonsense = 1"]
        {
            assert!(matches!(read(wrong), Err(SourceError::Mixture { .. })), "{wrong}");
        }
        let bucket = "[[source]]\npath = \"s3://a/b\"\nweight = 1.0\n";
        assert!(
            matches!(read(bucket), Err(SourceError::Bucket { place, .. }) if place == "s3://a/b"),
            "a bucket that the caller cannot open"
        );
        for weight in ["0.0", "-1.0", "1e9", "nan", "inf"] {
            let wrong = read(&format!("[[source]]\npath = \"a\"\nweight = {weight}"));
            assert!(matches!(wrong, Err(SourceError::Weight { .. })), "{weight}");
        }
    }
}
