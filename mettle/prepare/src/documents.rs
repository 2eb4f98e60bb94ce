//! Documents from files: text, JSON lines or Parquet, compressed or not, a piece at a time, so that memory never
//! contains a whole file.
//!
//! [`Documents`] cuts a file into items in order, which is fast and done by one thread; [`Item::text`] parses an
//! item, which many threads may do at once. An item without text (an empty line, a `null`) is an empty document, so
//! that the number of an item is that of its line or row.

use crate::{
    error::{MAX_DOCUMENT_BYTES, SourceError},
    formats::{self, Compression, Rows},
    text_file::TextFile,
};
use protocol::ensure;
use serde::de::{DeserializeSeed, IgnoredAny, MapAccess, Visitor};
use std::{
    fmt,
    io::{self, BufRead, BufReader, Read},
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

/// Size of a batch of items, in bytes, so that threads exchange few of them.
const BATCH_BYTES: usize = 1 << 20;
/// Maximum number of items in a batch: items without text take some memory too.
const BATCH_ITEMS: usize = 1 << 14;
const BUFFER_BYTES: usize = 256 << 10;

/// Endings of files that must be UTF-8; other files that are not are skipped.
const TEXT_ENDINGS: [&str; 4] = ["txt", "md", "rs", "rst"];

/// The format of a file, by its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Format {
    Text { promised: bool },
    JsonLines,
    Parquet,
}

/// Returns the format of a file. `name.jsonl.gz` is JSON lines in gzip; Parquet compresses itself.
pub(crate) fn format(path: &Path) -> (Format, Option<Compression>) {
    let ending = |path: &Path| path.extension().map(|ending| ending.to_ascii_lowercase());
    let (compression, inner) = match ending(path).as_deref().and_then(|ending| ending.to_str()) {
        Some("gz") => (Some(Compression::Gzip), path.with_extension("")),
        Some("zst") => (Some(Compression::Zstandard), path.with_extension("")),
        _ => (None, path.to_owned()),
    };
    match ending(&inner).as_deref().and_then(|ending| ending.to_str()) {
        Some("jsonl" | "ndjson") => (Format::JsonLines, compression),
        Some("parquet") if compression.is_none() => (Format::Parquet, compression),
        Some(text) if TEXT_ENDINGS.contains(&text) => (Format::Text { promised: true }, compression),
        _ => (Format::Text { promised: false }, compression),
    }
}

/// A part of a file with at most one document.
#[derive(Debug)]
pub(crate) enum Item {
    Text(String),
    Line(Vec<u8>),
}

/// Consecutive items of one file.
#[derive(Debug, Default)]
pub(crate) struct Batch {
    pub items: Vec<Item>,
    /// Number of the first item in the file.
    pub first: u64,
    /// The file ends after this batch.
    pub last: bool,
    /// The file is not text, and need not be: its earlier batches must be dropped.
    pub not_text: bool,
    /// Bytes of the file that have been read so far.
    pub file_bytes: u64,
}

impl Item {
    pub fn bytes(&self) -> usize {
        match self {
            Item::Text(text) => text.len(),
            Item::Line(line) => line.len(),
        }
    }

    /// Returns the document's text; `field` is the JSON field with the text.
    pub fn text(self, field: &str) -> Result<String, String> {
        match self {
            Item::Text(text) => Ok(text),
            Item::Line(line) if line.iter().all(u8::is_ascii_whitespace) => Ok(String::new()),
            Item::Line(line) => {
                let mut json = serde_json::Deserializer::from_slice(&line);
                let found = Field(field).deserialize(&mut json).map_err(|error| error.to_string())?;
                json.end().map_err(|error| error.to_string())?;
                found.ok_or_else(|| format!("it has no field {field:?}"))
            }
        }
    }
}

/// Reads one field of an object and skips the others.
struct Field<'a>(&'a str);

impl<'de> DeserializeSeed<'de> for Field<'_> {
    type Value = Option<String>;

    fn deserialize<D: serde::Deserializer<'de>>(self, json: D) -> Result<Self::Value, D::Error> {
        json.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for Field<'_> {
    type Value = Option<String>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "an object with the field {:?}", self.0)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut found = None;
        while let Some(name) = map.next_key::<String>()? {
            if name == self.0 {
                // `null` is a document without text.
                found = Some(map.next_value::<Option<String>>()?.unwrap_or_default());
            } else {
                map.next_value::<IgnoredAny>()?;
            }
        }
        Ok(found)
    }
}

/// The batches of one file in order. An error ends them.
pub(crate) struct Documents {
    path: PathBuf,
    kind: Kind,
    items: u64,
    ended: bool,
    read: Arc<AtomicU64>,
}

enum Kind {
    Text(Parts),
    Lines(Box<dyn BufRead + Send>),
    Rows(Box<Rows>),
}

impl Documents {
    /// Opens a file; `field` is the column of a Parquet file.
    pub fn open(file: &TextFile, field: &str) -> Result<Documents, SourceError> {
        let TextFile { path, part_bytes, .. } = file;
        let unreadable = |source| SourceError::Unreadable { path: path.clone(), source };
        let (format, compression) = format(path);
        let read = Arc::new(AtomicU64::new(0));
        let reader = || reader(file, compression, &read);
        let kind = match format {
            Format::Text { promised } => {
                let (reader, part_bytes) = (reader()?, *part_bytes);
                Kind::Text(Parts { reader, buffer: Vec::new(), before: 0, part_bytes, promised })
            }
            Format::JsonLines => Kind::Lines(reader()?),
            Format::Parquet => {
                Kind::Rows(Box::new(Rows::open(path, file.open_at().map_err(unreadable)?, field)?))
            }
        };
        Ok(Documents { path: path.clone(), kind, items: 0, ended: false, read })
    }

    fn batch(&mut self) -> Result<Batch, SourceError> {
        let mut batch = Batch { first: self.items, ..Batch::default() };
        let mut bytes = 0;
        while bytes < BATCH_BYTES && batch.items.len() < BATCH_ITEMS {
            let number = self.items + 1;
            let item = match &mut self.kind {
                Kind::Text(parts) => match parts.next(&self.path)? {
                    Part::Is(text) => Some(Item::Text(text)),
                    Part::Ends => None,
                    Part::NotText => {
                        return Ok(Batch { last: true, not_text: true, ..batch });
                    }
                },
                Kind::Lines(reader) => line(reader, &self.path, number)?.map(Item::Line),
                Kind::Rows(rows) => row(rows.next()?, &self.path, number)?.map(Item::Text),
            };
            let Some(item) = item else {
                batch.last = true;
                break;
            };
            bytes += item.bytes();
            batch.items.push(item);
            self.items += 1;
        }
        batch.file_bytes = match &self.kind {
            Kind::Text(_) | Kind::Lines(_) => self.read.load(Ordering::Relaxed),
            Kind::Rows(rows) => rows.file_bytes(),
        };
        Ok(batch)
    }
}

impl TextFile {
    /// Its batches, from the beginning. Of a file that cannot be opened, the error alone.
    pub fn batches(&self, field: &str) -> impl Iterator<Item = Result<Batch, SourceError>> + Send + use<> {
        let (documents, failed) = match Documents::open(self, field) {
            Ok(documents) => (Some(documents), None),
            Err(error) => (None, Some(Err(error))),
        };
        failed.into_iter().chain(documents.into_iter().flatten())
    }
}

impl Iterator for Documents {
    type Item = Result<Batch, SourceError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.ended {
            return None;
        }
        let batch = self.batch();
        self.ended = batch.as_ref().map_or(true, |batch| batch.last);
        Some(batch)
    }
}

/// Counts the bytes that it reads.
struct Counted {
    file: Box<dyn Read + Send>,
    read: Arc<AtomicU64>,
}

impl Read for Counted {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let bytes = self.file.read(buffer)?;
        self.read.fetch_add(bytes as u64, Ordering::Relaxed);
        Ok(bytes)
    }
}

fn reader(
    file: &TextFile,
    compression: Option<Compression>,
    read: &Arc<AtomicU64>,
) -> Result<Box<dyn BufRead + Send>, SourceError> {
    let path = &file.path;
    let file = file.open().map_err(|source| SourceError::Unreadable { path: path.clone(), source })?;
    let file = BufReader::with_capacity(BUFFER_BYTES, Counted { file, read: read.clone() });
    match compression {
        None => Ok(Box::new(file)),
        Some(compression) => formats::decompress(path, compression, file),
    }
}

/// Returns the text of a row.
fn row(bytes: Option<Vec<u8>>, path: &Path, number: u64) -> Result<Option<String>, SourceError> {
    let Some(bytes) = bytes else { return Ok(None) };
    ensure!(bytes.len() <= MAX_DOCUMENT_BYTES, SourceError::TooLong { path: path.to_owned(), number });
    let text = String::from_utf8(bytes).map_err(|error| SourceError::Item {
        path: path.to_owned(),
        number,
        reason: error.utf8_error().to_string(),
    })?;
    Ok(Some(text))
}

fn line(reader: &mut dyn BufRead, path: &Path, number: u64) -> Result<Option<Vec<u8>>, SourceError> {
    let mut line = Vec::new();
    reader
        .take(MAX_DOCUMENT_BYTES as u64 + 1)
        .read_until(b'\n', &mut line)
        .map_err(|source| SourceError::Unreadable { path: path.to_owned(), source })?;
    ensure!(line.len() <= MAX_DOCUMENT_BYTES, SourceError::TooLong { path: path.to_owned(), number });
    Ok((!line.is_empty()).then_some(line))
}

/// The parts of a text file, as [`cut`] cuts them, one at a time.
struct Parts {
    reader: Box<dyn BufRead + Send>,
    /// Bytes that were read but are not part of a part yet.
    buffer: Vec<u8>,
    /// Size of the previous parts, in bytes.
    before: usize,
    part_bytes: usize,
    promised: bool,
}

enum Part {
    Is(String),
    Ends,
    NotText,
}

impl Parts {
    fn next(&mut self, path: &Path) -> Result<Part, SourceError> {
        // One byte more than a part shows whether this is the last part, and whether it would end inside a character.
        let missing = (self.part_bytes + 1).saturating_sub(self.buffer.len()) as u64;
        let read = (&mut self.reader)
            .take(missing)
            .read_to_end(&mut self.buffer)
            .map_err(|source| SourceError::Unreadable { path: path.to_owned(), source })?;
        let ended = (read as u64) < missing;
        let (text, broken) = match std::str::from_utf8(&self.buffer) {
            Ok(text) => (text, false),
            Err(error) => {
                // A character that is cut by the buffer is not broken.
                let broken = ended || error.error_len().is_some();
                let valid = &self.buffer[..error.valid_up_to()];
                (std::str::from_utf8(valid).expect("valid up to there"), broken)
            }
        };
        if broken && self.promised {
            let valid_bytes = self.before + text.len();
            return Err(SourceError::NotText { path: path.to_owned(), valid_bytes });
        }
        if broken || (!self.promised && text.contains('\0')) {
            return Ok(Part::NotText);
        }
        let longer = self.buffer.len() > self.part_bytes;
        let end = if longer { cut(text, self.part_bytes) } else { text.len() };
        if end == 0 {
            return Ok(Part::Ends);
        }
        let part = text[..end].to_owned();
        self.before += end;
        self.buffer.drain(..end);
        Ok(Part::Is(part))
    }
}

/// Returns the end of the first part of a longer text: after at most `part_bytes` (4 or more), at the last line end
/// of the second half, or between two characters.
pub(crate) fn cut(text: &str, part_bytes: usize) -> usize {
    let end = text.floor_char_boundary(part_bytes);
    let second_half = text.floor_char_boundary(part_bytes / 2);
    text[second_half..end].rfind('\n').map_or(end, |line_end| second_half + line_end + 1)
}

/// Cuts a long text into pieces of at most `part_bytes`, like [`cut`].
pub(crate) fn pieces(text: &str, part_bytes: usize) -> impl Iterator<Item = &str> {
    let mut rest = text;
    std::iter::from_fn(move || {
        let end = if rest.len() > part_bytes { cut(rest, part_bytes) } else { rest.len() };
        let (piece, after) = rest.split_at(end);
        rest = after;
        (!piece.is_empty()).then_some(piece)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn documents(name: &str, bytes: &[u8], part_bytes: usize) -> Result<Vec<String>, SourceError> {
        let root = tempfile::tempdir().expect("a temporary directory");
        let path = root.path().join(name);
        std::fs::write(&path, bytes).expect("writable");
        let mut texts = Vec::new();
        let file = TextFile { path, bytes: bytes.len() as u64, part_bytes, object: None };
        for batch in Documents::open(&file, "text")? {
            let batch = batch?;
            if batch.not_text {
                return Ok(vec!["no text".to_owned()]);
            }
            for (number, item) in (batch.first + 1..).zip(batch.items) {
                texts.push(item.text("text").unwrap_or_else(|reason| format!("{number}: {reason}")));
            }
        }
        Ok(texts)
    }

    #[test]
    fn a_name_tells_what_a_file_holds() {
        let format = |name| super::format(Path::new(name));
        assert_eq!(format("a.jsonl"), (Format::JsonLines, None));
        assert_eq!(format("a.b.ndjson.zst"), (Format::JsonLines, Some(Compression::Zstandard)));
        assert_eq!(format("A.TXT.GZ"), (Format::Text { promised: true }, Some(Compression::Gzip)));
        assert_eq!(format("a.parquet"), (Format::Parquet, None));
        assert_eq!(format("a.html"), (Format::Text { promised: false }, None));
        assert_eq!(format("gz"), (Format::Text { promised: false }, None));
    }

    #[test]
    fn each_line_is_a_document_and_a_bad_one_is_named_with_its_reason() {
        let lines = concat!(
            "{\"id\": 7, \"text\": \"one\\n\\ud83d\\ude00\", \"more\": {\"text\": [1, {}]}}\n",
            "\n",
            "{\"text\": null}\r\n",
            "{\"text\": \"first\", \"text\": \"second\"}\n",
            "{\"title\": \"none\"}\n",
            "{\"text\": 5}\n",
            "{\"text\": \"cut\n",
            "[1]\n",
            "{\"text\": \"two\"} trailing\n",
            "{\"text\": \"the last has no line end\"}",
        );
        let texts = documents("a.jsonl", lines.as_bytes(), 100).expect("readable");
        assert_eq!(texts[..4], ["one\n😀", "", "", "second"]);
        assert_eq!(texts[4], "5: it has no field \"text\"");
        assert!(texts[5].starts_with("6: invalid type: "), "{}", texts[5]);
        assert!(texts[6].starts_with("7: "), "{}", texts[6]);
        assert!(texts[7].starts_with("8: invalid type: "), "{}", texts[7]);
        assert!(texts[8].starts_with("9: trailing"), "{}", texts[8]);
        assert_eq!(texts[9..], ["the last has no line end"]);
        let not_utf8 = documents("a.jsonl", b"{\"text\": \"caf\xe9\"}\n", 100).expect("readable");
        assert!(not_utf8[0].starts_with("1: "), "{}", not_utf8[0]);
    }

    #[test]
    fn a_file_that_promises_no_text_may_be_none() {
        assert_eq!(documents("a.bin", b"text, then \0", 100).expect("readable"), ["no text"]);
        assert_eq!(
            documents("a.bin", &[vec![b'a'; 150], vec![0xff]].concat(), 100).expect("readable"),
            ["no text"]
        );
        let error = documents("a.txt", &[vec![b'a'; 150], vec![0xff]].concat(), 100).expect_err("promised");
        assert!(matches!(error, SourceError::NotText { valid_bytes: 150, .. }));
        // The last character is cut by the end of the file, not by the end of a part.
        let error = documents("a.txt", "aä".as_bytes().split_last().expect("long").1, 100).expect_err("cut");
        assert!(matches!(error, SourceError::NotText { valid_bytes: 1, .. }));
    }

    #[test]
    fn a_row_is_a_document_and_one_that_is_not_utf8_is_named() {
        let row = |bytes: &[u8]| row(Some(bytes.to_vec()), Path::new("a"), 3);
        assert_eq!(row(b"one").expect("text").as_deref(), Some("one"));
        assert_eq!(row(b"").expect("empty").as_deref(), Some(""));
        assert!(matches!(row(b"caf\xe9"), Err(SourceError::Item { number: 3, .. })));
    }

    proptest! {
        #[test]
        fn parts_are_the_text_and_reading_a_file_gives_them(
            text in "[aä\u{1f600}\n]{0,200}", part_bytes in 4usize..50,
        ) {
            let parts: Vec<&str> = pieces(&text, part_bytes).collect();
            prop_assert_eq!(parts.concat(), text.clone());
            prop_assert!(parts.iter().all(|part| (1..=part_bytes).contains(&part.len())));
            prop_assert_eq!(documents("a.txt", text.as_bytes(), part_bytes).expect("readable"), parts);
        }
    }
}
