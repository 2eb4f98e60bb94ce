//! The first pass over the text: one record per document.
//!
//! A record has a fixed size and is appended to a file: a hash of the contents, and the length. All later decisions
//! (duplicates, held-out documents, shares of a mixture) use these records, in memory that does not grow with the
//! text. The second pass compares each document with its record, which detects a file that has changed meanwhile.
//!
//! A log has a line per finished file. After a crash, the next attempt reads only the other files.

use crate::{
    documents::Batch,
    error::{PrepareError, SourceError, unwritable},
    near::Banding,
    options::{PrepareOptions, Progress},
    pipeline, quality,
    text_file::TextFile,
};
use protocol::{Digest, ensure};
use serde::{Deserialize, Serialize};
use std::{
    fs::{self, File, OpenOptions},
    io::{self, BufReader, BufWriter, Read, Seek as _, SeekFrom, Write as _},
    path::{Path, PathBuf},
    time::UNIX_EPOCH,
};

const RECORD_BYTES: u64 = 36;
/// Size of a document's key in one band, in bytes.
const KEY_BYTES: u64 = 8;
/// Names of the files of records and logs.
const RECORDS: &str = "documents";
const LOG: &str = "documents.log";

/// The record of a document. A length of 0 means that the line or row has no text, or none that is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Record {
    pub key: Key,
    pub bytes: u32,
}

/// A hash of a document's contents. The order of keys is random, and the same on every machine.
pub(crate) type Key = [u8; 32];

/// All documents of all sources.
#[derive(Debug)]
pub(crate) struct Scan {
    pub sources: Vec<ScannedSource>,
    /// The directory of the records.
    directory: PathBuf,
}

#[derive(Debug)]
pub(crate) struct ScannedSource {
    pub field: String,
    pub files: Vec<ScannedFile>,
}

#[derive(Debug)]
pub(crate) struct ScannedFile {
    pub file: TextFile,
    /// Number of the file's first item among all items of all sources.
    pub first: u64,
    /// The log of its items.
    pub log: FileLog,
}

/// The log line of a file that was read to its end.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct FileLog {
    source: usize,
    path: String,
    /// Length, and time of the last change in seconds and nanoseconds: an unchanged file is not read again.
    bytes: u64,
    modified: Option<(u64, u32)>,
    /// Version of an object of a bucket, instead of a time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    version: Option<String>,
    part_bytes: usize,
    /// False for a file that is not text, which is skipped.
    pub text: bool,
    pub items: u64,
    /// Number of items with text that is kept.
    pub documents: u64,
    /// Number of items that each quality rule has omitted.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub refused: Vec<u64>,
    /// Digest over all its records.
    pub digest: Digest,
    /// Digest over the keys of all bands, item by item.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    keys: Option<Digest>,
}

impl Record {
    pub fn of(text: &str) -> Record {
        let mut hasher = blake3::Hasher::new_derive_key("mettle/2 document");
        hasher.update(text.as_bytes());
        let bytes = u32::try_from(text.len()).expect("no document is longer than its bound");
        Record { key: *hasher.finalize().as_bytes(), bytes }
    }

    fn to_bytes(self) -> [u8; RECORD_BYTES as usize] {
        let mut bytes = [0; RECORD_BYTES as usize];
        bytes[..32].copy_from_slice(&self.key);
        bytes[32..].copy_from_slice(&self.bytes.to_le_bytes());
        bytes
    }

    fn from_bytes(bytes: [u8; RECORD_BYTES as usize]) -> Record {
        let (key, length) = bytes.split_at(32);
        Record {
            key: key.try_into().expect("32 bytes"),
            bytes: u32::from_le_bytes(length.try_into().expect("4 bytes")),
        }
    }
}

impl Scan {
    /// Reads the files that no earlier attempt in `partial` has read.
    pub fn make(
        options: &PrepareOptions,
        files: Vec<Vec<TextFile>>,
        partial: &Path,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<Scan, PrepareError> {
        let logs = read_files(options, &in_order(&files), partial, progress)?;
        let (mut first, mut logs) = (0, logs.into_iter());
        let sources = options.source.parts.iter().zip(files).map(|(part, files)| {
            let scanned = |file: TextFile| {
                let log = logs.next().expect("every file was logged");
                let scanned = ScannedFile { file, first, log };
                first += scanned.log.items;
                scanned
            };
            let files = files.into_iter().map(scanned).collect();
            ScannedSource { field: part.field.clone(), files }
        });
        Ok(Scan { sources: sources.collect(), directory: partial.to_owned() })
    }

    /// Returns the number of items, with or without text, of all sources.
    pub fn items(&self) -> u64 {
        self.logs().map(|log| log.items).sum()
    }

    pub fn documents(&self) -> u64 {
        self.logs().map(|log| log.documents).sum()
    }

    /// Returns the number of items that the quality rule `rule` has omitted.
    pub fn refused(&self, rule: usize) -> u64 {
        self.logs().filter_map(|log| log.refused.get(rule)).sum()
    }

    /// Returns the number of files that are not text.
    pub fn skipped(&self) -> u64 {
        self.logs().filter(|log| !log.text).count() as u64
    }

    pub fn logs(&self) -> impl Iterator<Item = &FileLog> {
        self.sources.iter().flat_map(|source| source.files.iter().map(|file| &file.log))
    }

    /// Returns the records from item `first` on.
    pub fn records(&self, first: u64) -> Records {
        Records { path: self.directory.join(RECORDS), next: first, reader: None }
    }

    /// Calls `each` with the key of every item in one band, and the item's number.
    pub fn for_each_key(&self, band: usize, mut each: impl FnMut(u64, u64)) -> Result<(), PrepareError> {
        let mut keys = Records { path: self.directory.join(band_file(band)), ..self.records(0) };
        for item in 0..self.items() {
            each(item, u64::from_le_bytes(keys.bytes()?));
        }
        Ok(())
    }

    /// Calls `each` with every record, its number and its source.
    pub fn for_each(&self, mut each: impl FnMut(u64, usize, Record)) -> Result<(), PrepareError> {
        let mut records = self.records(0);
        let mut number = 0;
        for (at, source) in self.sources.iter().enumerate() {
            for _ in 0..source.files.iter().map(|file| file.log.items).sum() {
                each(number, at, records.next()?);
                number += 1;
            }
        }
        Ok(())
    }
}

/// Reads records of a fixed length in order.
pub(crate) struct Records {
    path: PathBuf,
    /// Number of the next record, before the file is open.
    next: u64,
    reader: Option<BufReader<File>>,
}

impl Records {
    pub fn next(&mut self) -> Result<Record, PrepareError> {
        self.bytes().map(Record::from_bytes)
    }

    fn bytes<const LENGTH: usize>(&mut self) -> Result<[u8; LENGTH], PrepareError> {
        let mut read = || -> io::Result<[u8; LENGTH]> {
            let reader = match &mut self.reader {
                Some(reader) => reader,
                none => {
                    let mut file = File::open(&self.path)?;
                    file.seek(SeekFrom::Start(self.next * LENGTH as u64))?;
                    none.insert(BufReader::with_capacity(1 << 18, file))
                }
            };
            let mut bytes = [0; LENGTH];
            reader.read_exact(&mut bytes)?;
            Ok(bytes)
        };
        read().map_err(|source| PrepareError::Unreadable { directory: self.path.clone(), source })
    }
}

/// Returns all files of all sources with the number of their source, in the order of their items.
fn in_order(files: &[Vec<TextFile>]) -> Vec<(usize, &TextFile)> {
    files.iter().enumerate().flat_map(|(at, files)| files.iter().map(move |file| (at, file))).collect()
}

/// Writes records and log of `all` these files into `directory`. Reads only the files that no earlier attempt there
/// has read.
fn read_files(
    options: &PrepareOptions,
    all: &[(usize, &TextFile)],
    directory: &Path,
    progress: &mut dyn FnMut(Progress),
) -> Result<Vec<FileLog>, PrepareError> {
    let (source, rules, banding) = (&options.source, options.rules(), options.banding());
    let of: u64 = all.iter().map(|(_, file)| file.bytes).sum();
    let expected: Vec<FileLog> =
        all.iter().map(|(source, file)| FileLog::before(*source, file)).collect::<Result<_, _>>()?;

    // The files of an earlier attempt.
    let mut log = Log::open(directory, &expected, rules.len(), banding)?;
    let done = log.files.len();
    let mut bytes_done: u64 = expected[..done].iter().map(|file| file.bytes).sum();
    progress(Progress::Reading { files: done as u64, bytes: bytes_done, of });

    // The other files.
    let batches = all[done..].iter().enumerate().flat_map(|(at, (part, file))| {
        let batches = file.batches(&source.parts[*part].field);
        batches.map(move |batch| Ok((done + at, batch?)))
    });
    let record = |(at, batch): (usize, Batch)| {
        let (part, file) = all[at];
        let (mut items, mut keys) = (Vec::with_capacity(batch.items.len()), Vec::new());
        for (number, item) in (batch.first + 1..).zip(batch.items) {
            let text = item.text(&source.parts[part].field).map_err(|reason| SourceError::Item {
                path: file.path.clone(),
                number,
                reason,
            })?;
            let refused = if text.is_empty() { None } else { quality::refused_by(&text, &rules) };
            let text = if refused.is_some() { "" } else { &text };
            items.push((Record::of(text), refused));
            if let Some(banding) = banding {
                banding.keys(text, &mut keys);
            }
        }
        Ok((at, items, keys, batch.last, batch.not_text, batch.file_bytes))
    };
    let bands = bands(banding);
    pipeline::ordered(
        options.threads(),
        batches,
        record,
        |(at, items, keys, last, not_text, file_bytes)| {
            for (number, &(record, refused)) in items.iter().enumerate() {
                log.push(record, refused, &keys[number * bands..(number + 1) * bands])?;
            }
            if last {
                log.end(&expected[at], not_text)?;
                bytes_done += expected[at].bytes;
            }
            let within = if last { 0 } else { file_bytes.min(expected[at].bytes) };
            progress(Progress::Reading { files: log.files.len() as u64, bytes: bytes_done + within, of });
            Ok::<_, PrepareError>(())
        },
    )?;
    log.finish()
}

/// Returns the number of leading files whose records and keys in `directory` match their logs.
fn whole_files(directory: &Path, logs: &[FileLog], banding: Option<Banding>) -> io::Result<usize> {
    let open = |(name, bytes)| {
        let file = File::open(directory.join(name))?;
        Ok((BufReader::with_capacity(1 << 18, file), vec![0; bytes as usize]))
    };
    let mut files = record_files(bands(banding)).map(open).collect::<io::Result<Vec<_>>>()?;
    for (number, log) in logs.iter().enumerate() {
        let (mut records, mut keys) = (blake3::Hasher::new(), blake3::Hasher::new());
        for _ in 0..log.items {
            for (at, (file, buffer)) in files.iter_mut().enumerate() {
                match file.read_exact(buffer) {
                    Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(number),
                    read => read?,
                }
                if at == 0 { &mut records } else { &mut keys }.update(buffer);
            }
        }
        let keys = banding.map(|_| Digest(*keys.finalize().as_bytes()));
        if log.digest != Digest(*records.finalize().as_bytes()) || log.keys != keys {
            return Ok(number);
        }
    }
    Ok(logs.len())
}

fn bands(banding: Option<Banding>) -> usize {
    banding.map_or(0, |banding| banding.bands)
}

fn band_file(band: usize) -> String {
    format!("keys-{band}")
}

/// Returns the files with a record for each item, and the record's length.
fn record_files(bands: usize) -> impl Iterator<Item = (String, u64)> {
    let keys = (0..bands).map(|band| (band_file(band), KEY_BYTES));
    std::iter::once((RECORDS.to_owned(), RECORD_BYTES)).chain(keys)
}

impl FileLog {
    /// Returns the log of a file before it is read.
    fn before(source: usize, file: &TextFile) -> Result<FileLog, SourceError> {
        let unreadable = |source| SourceError::Unreadable { path: file.path.clone(), source };
        let (bytes, modified, version) = match &file.object {
            Some(object) => (object.info.bytes, None, Some(object.info.version.clone())),
            None => {
                let metadata = fs::metadata(&file.path).map_err(unreadable)?;
                let since = metadata.modified().ok().and_then(|time| time.duration_since(UNIX_EPOCH).ok());
                (metadata.len(), since.map(|since| (since.as_secs(), since.subsec_nanos())), None)
            }
        };
        Ok(FileLog {
            source,
            path: file.path.to_string_lossy().into_owned(),
            bytes,
            modified,
            version,
            part_bytes: file.part_bytes,
            text: true,
            items: 0,
            documents: 0,
            refused: Vec::new(),
            digest: Digest::default(),
            keys: None,
        })
    }

    fn is_of(&self, before: &FileLog) -> bool {
        let FileLog { text, items, documents, digest, keys, .. } = *before;
        let refused = before.refused.clone();
        FileLog { text, items, documents, refused, digest, keys, ..self.clone() } == *before
    }
}

/// Records and log that are being written.
struct Log {
    path: PathBuf,
    /// The files of [`record_files`], with the length of a record.
    records: Vec<(BufWriter<File>, u64)>,
    log: File,
    files: Vec<FileLog>,
    /// Counts and digest of the file that is being read.
    items: u64,
    documents: u64,
    refused: Vec<u64>,
    hasher: blake3::Hasher,
    keys: Option<blake3::Hasher>,
}

impl Log {
    /// Opens records and log. Keeps the leading files of an earlier attempt that are unchanged from `expected`.
    fn open(
        partial: &Path,
        expected: &[FileLog],
        rules: usize,
        banding: Option<Banding>,
    ) -> Result<Log, PrepareError> {
        let open = || -> io::Result<Log> {
            let open = |name: &str| {
                let mut options = OpenOptions::new();
                options.read(true).write(true).create(true).truncate(false).open(partial.join(name))
            };
            let mut log = open(LOG)?;
            let records: io::Result<Vec<(File, u64)>> =
                record_files(bands(banding)).map(|(name, bytes)| Ok((open(&name)?, bytes))).collect();
            let mut records = records?;
            let mut text = String::new();
            // A log that is not UTF-8 was cut by a crash.
            let _ = log.read_to_string(&mut text);
            let (mut files, mut ends, mut end) = (Vec::new(), Vec::new(), 0);
            for (line, expected) in text.split_inclusive('\n').zip(expected) {
                let Ok(file) = serde_json::from_str::<FileLog>(line) else { break };
                if !line.ends_with('\n') || !file.is_of(expected) {
                    break;
                }
                end += line.len() as u64;
                ends.push(end);
                files.push(file);
            }
            // After a power failure a file may have its length, but zeros at its end.
            files.truncate(whole_files(partial, &files, banding)?);
            let kept = files.len().checked_sub(1).map_or(0, |last| ends[last]);
            let items: u64 = files.iter().map(|file| file.items).sum();
            log.set_len(kept)?;
            log.seek(SeekFrom::Start(kept))?;
            for (file, bytes) in &mut records {
                file.set_len(items * *bytes)?;
                file.seek(SeekFrom::Start(items * *bytes))?;
            }
            let buffered = |(file, bytes)| (BufWriter::with_capacity(1 << 18, file), bytes);
            Ok(Log {
                path: partial.join(RECORDS),
                records: records.into_iter().map(buffered).collect(),
                log,
                files,
                items: 0,
                documents: 0,
                refused: vec![0; rules],
                hasher: blake3::Hasher::new(),
                keys: banding.map(|_| blake3::Hasher::new()),
            })
        };
        open().map_err(|source| unwritable(&partial.join(RECORDS), source))
    }

    /// Adds an item; `refused` is the rule that omits it, `keys` are its keys in all bands.
    fn push(&mut self, record: Record, refused: Option<usize>, keys: &[u64]) -> Result<(), PrepareError> {
        let bytes = record.to_bytes();
        let keys = keys.iter().map(|key| key.to_le_bytes());
        let hashed = &mut self.keys;
        let write = || {
            let (records, of_bands) = self.records.split_first_mut().expect("there is one for the records");
            records.0.write_all(&bytes)?;
            of_bands.iter_mut().zip(keys).try_for_each(|((file, _), key)| {
                hashed.iter_mut().for_each(|hasher| {
                    hasher.update(&key);
                });
                file.write_all(&key)
            })
        };
        write().map_err(|source| unwritable(&self.path, source))?;
        self.hasher.update(&bytes);
        self.items += 1;
        self.documents += u64::from(record.bytes > 0);
        if let Some(rule) = refused {
            self.refused[rule] += 1;
        }
        Ok(())
    }

    /// Ends the file that began as `before`.
    fn end(&mut self, before: &FileLog, not_text: bool) -> Result<(), PrepareError> {
        let mut write = || -> io::Result<()> {
            for (records, bytes) in &mut self.records {
                records.flush()?;
                if not_text {
                    let records = records.get_mut();
                    let end = records.stream_position()? - self.items * *bytes;
                    records.set_len(end)?;
                    records.seek(SeekFrom::Start(end))?;
                }
            }
            if not_text {
                (self.items, self.documents) = (0, 0);
                self.refused.fill(0);
                self.hasher.reset();
                self.keys.iter_mut().for_each(|keys| {
                    keys.reset();
                });
            }
            let file = FileLog {
                text: !not_text,
                items: std::mem::take(&mut self.items),
                documents: std::mem::take(&mut self.documents),
                refused: self.refused.clone(),
                digest: Digest(*self.hasher.finalize().as_bytes()),
                keys: self.keys.as_ref().map(|keys| Digest(*keys.finalize().as_bytes())),
                ..before.clone()
            };
            self.refused.fill(0);
            self.hasher.reset();
            self.keys.iter_mut().for_each(|keys| {
                keys.reset();
            });
            let line = serde_json::to_string(&file).expect("numbers and strings are always JSON");
            writeln!(self.log, "{line}")?;
            self.files.push(file);
            Ok(())
        };
        write().map_err(|source| unwritable(&self.path, source))
    }

    fn finish(mut self) -> Result<Vec<FileLog>, PrepareError> {
        let mut finish = || {
            for (records, _) in &mut self.records {
                records.flush()?;
                records.get_ref().sync_all()?;
            }
            self.log.sync_all()
        };
        finish().map_err(|source| unwritable(&self.path, source))?;
        Ok(self.files)
    }
}

/// Returns the batches of a file in the second pass. The file must have the same number of items.
pub(crate) fn read_again(
    file: &ScannedFile,
    field: &str,
) -> impl Iterator<Item = Result<Batch, SourceError>> + use<> {
    let (items, path) = (file.log.items, file.file.path.clone());
    // Most files without any item are not text.
    let batches = (items > 0).then(|| file.file.batches(field));
    batches.into_iter().flatten().map(move |batch| {
        let batch = batch?;
        let end = batch.first + batch.items.len() as u64;
        let is_same = !batch.not_text && end <= items && (!batch.last || end == items);
        ensure!(is_same, SourceError::Changed { path: path.clone() });
        Ok(batch)
    })
}
