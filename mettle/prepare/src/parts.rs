//! Prepares a dataset on several machines that share a directory: the same bytes as [`prepare`](crate::prepare) makes
//! on one.
//!
//! The files of the text are cut into ranges, the parts, of about equal length. Four stages follow one another:
//!
//! 1. **scan**, for each part: the records of its documents.
//! 2. **select**, once: the decisions from all records, and the tokenizer. For each part it notes what a mixture owes
//!    at its first document, so that a part needs no other to encode its own documents.
//! 3. **encode**, for each part: the tokens of its documents.
//! 4. **join**, once: copies all tokens into shards, whose bounds depend on the tokens before.
//!
//! A part's stage is complete when its marker is there, which is written last. A killed stage resumes; one that is
//! complete does nothing. All that belongs to the job is in `.NAME.parts` beside the dataset's directory, and names
//! the job by a digest of options and files.

use crate::{
    encode::{self, Plan, Taken, create_empty},
    error::{PrepareError, SourceError, unwritable, write_atomic},
    options::{PrepareOptions, Progress},
    output_lock::OutputLock,
    prepare::{
        Parts, Prepared, existing, figures, finish, given_tokenizer, inputs_digest, request, select,
        trained_path, trained_tokenizer,
    },
    scan::{FileLog, Scan, in_order, read_files, read_log, whole_files},
    select::{Bits, PartSpans, Selection},
    shard::{SplitWriter, TokenWriter as _},
    source::TextFile,
    token_stream::{StoredTokens, TokenCopy, TokenStream},
};
use dataset::{MAX_TOKENIZER_BYTES, durable::sync_directory, read_bounded, shards_path, token_bytes_for};
use protocol::{Digest, ensure};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use std::{
    fmt, fs, io,
    ops::Range,
    path::{Path, PathBuf},
    str::FromStr,
};
use tokenizer::TextTokenizer;

const MAX_PARTS: u32 = 1 << 14;
/// The limit of a file in the job's directory that is read whole.
const MAX_NOTE_BYTES: u64 = 1 << 30;

/// One of several parts of the work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// From 0 on.
    index: u32,
    count: u32,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PartError {
    #[error("{given:?} names no part; write INDEX/COUNT, such as 0/16")]
    Malformed { given: String },
    #[error(
        "there is no part {index} of {count}: parts count from 0, and there are 1 to {MAX_PARTS} of them"
    )]
    OutOfRange { index: u32, count: u32 },
}

/// A stage of the work. `Scan` and `Encode` run once for each part, on any machine and in any order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    Scan(Part),
    Select,
    Encode(Part),
    Join,
}

/// What a stage has done, now or earlier.
#[derive(Clone, Debug)]
pub enum StageResult {
    Scanned { part: Part, files: u64, documents: u64 },
    Selected { parts: u32, documents: u64, duplicates: u64, near_duplicates: u64 },
    Encoded { part: Part, documents: u64, tokens: u64 },
    Joined(Box<Prepared>),
}

impl Part {
    pub(crate) fn index(self) -> u32 {
        self.index
    }

    pub(crate) fn count(self) -> u32 {
        self.count
    }

    /// # Errors
    /// If there is no such part.
    pub fn new(index: u32, count: u32) -> Result<Part, PartError> {
        ensure!(index < count && count <= MAX_PARTS, PartError::OutOfRange { index, count });
        Ok(Part { index, count })
    }
}

impl FromStr for Part {
    type Err = PartError;

    fn from_str(given: &str) -> Result<Part, PartError> {
        let numbers = given.split_once('/').map(|(index, count)| (index.parse(), count.parse()));
        let Some((Ok(index), Ok(count))) = numbers else {
            return Err(PartError::Malformed { given: given.to_owned() });
        };
        Part::new(index, count)
    }
}

impl fmt::Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.index, self.count)
    }
}

/// Does one stage of the work on one part, or on all of them. The options must be the same in each, except for those
/// that do not change the dataset.
///
/// # Errors
/// [`PrepareError`], of which [`PrepareError::PartsMissing`] names the parts that an earlier stage has not done. The
/// next call resumes.
pub fn prepare_stage(
    options: &PrepareOptions,
    stage: Stage,
    progress: &mut dyn FnMut(Progress),
) -> Result<StageResult, PrepareError> {
    run_stage(options, stage, false, progress)
}

/// As [`prepare_stage`]. With `is_copy`, the job's directory has what this stage reads, and may lack the rest.
pub(crate) fn run_stage(
    options: &PrepareOptions,
    stage: Stage,
    is_copy: bool,
    progress: &mut dyn FnMut(Progress),
) -> Result<StageResult, PrepareError> {
    options.check()?;
    let given = given_tokenizer(&options.tokenizer)?;
    let files = options.source.files()?;
    let (parent, name) = options.place.location(&request(options, given.as_ref()))?;
    let digest = job_digest(options, &files, given.as_ref());
    let directory = parent.join(job_name(&name));
    let place = Place { options, parent: &parent, name: &name, job: digest };
    if let Some(prepared) = place.joined()? {
        if stage == Stage::Join {
            // What a killed join has left.
            let lock = OutputLock::lock(&parent, &name, progress)?;
            remove_parts(&directory)?;
            lock.finish();
        }
        return Ok(StageResult::Joined(Box::new(prepared)));
    }
    let parts = match open_job(&directory, digest, stage, progress) {
        Ok(parts) => parts,
        // Another process may just have removed them.
        Err(error) => return Ok(StageResult::Joined(Box::new(place.joined()?.ok_or(error)?))),
    };
    let ranges = part_ranges(&in_order(&files), parts);
    let job = Job { options, given, files, ranges, directory, digest, is_copy };
    match stage {
        Stage::Scan(part) => job.scan(part, progress),
        Stage::Select => job.select(progress),
        Stage::Encode(part) => job.encode(part, progress),
        Stage::Join => job.join(&place, progress),
    }
}

/// The file that names the job of a directory.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct JobFile {
    job: Digest,
    pub parts: u32,
}

/// Written beside the dataset before it gets its name, and kept: a stage that runs again finds the dataset.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Joined {
    job: Digest,
    inputs: Digest,
}

/// Where the dataset of a job is.
struct Place<'a> {
    options: &'a PrepareOptions,
    parent: &'a Path,
    name: &'a str,
    job: Digest,
}

impl Place<'_> {
    fn note(&self) -> PathBuf {
        self.parent.join(joined_name(self.name))
    }

    /// The dataset of this job, if it is complete.
    fn joined(&self) -> Result<Option<Prepared>, PrepareError> {
        match read_note::<Joined>(&self.note()) {
            Some((_, note)) if note.job == self.job => {
                existing(&self.options.place.directory(&note.inputs), &note.inputs)
            }
            _ => Ok(None),
        }
    }
}

/// Marks a part whose documents are recorded.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Scanned {
    job: Digest,
    log: Digest,
}

/// The result of the second stage.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Selected {
    inputs: Digest,
    tokenizer: Digest,
    /// Of the file with the bit of each item.
    dropped: Digest,
    selection: Selection,
    parts: Vec<PartSpans>,
}

/// Marks a part whose tokens are written.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Encoded {
    /// Of the file with [`Selected`].
    pub selection: Digest,
    /// One for each reading.
    taken: Vec<Taken>,
    training: StoredTokens,
    held_out: StoredTokens,
}

struct Job<'a> {
    options: &'a PrepareOptions,
    given: Option<TextTokenizer>,
    files: Vec<Vec<TextFile>>,
    /// Of all files, for each part.
    ranges: Vec<Range<usize>>,
    directory: PathBuf,
    digest: Digest,
    is_copy: bool,
}

/// What a stage after the second one needs.
struct Decisions {
    scan: Scan,
    selected: Selected,
    /// Of the file with `selected`.
    digest: Digest,
    tokenizer: TextTokenizer,
}

impl Job<'_> {
    fn scan(&self, part: Part, progress: &mut dyn FnMut(Progress)) -> Result<StageResult, PrepareError> {
        let lock = self.lock_part(part, progress)?;
        let logs = match self.scanned(part.index)? {
            Some(logs) => logs,
            None => {
                let files = &in_order(&self.files)[self.range(part.index)];
                let logs = read_files(self.options, files, &lock.partial, progress)?;
                let log = read_log(self.options, &lock.partial, files.len(), false)
                    .map_err(|source| PrepareError::Unreadable { directory: lock.partial.clone(), source })?;
                let (log, _) = log.ok_or_else(|| self.damaged(part.index))?;
                write_note(&lock.partial.join(SCANNED), &Scanned { job: self.digest, log })?;
                logs
            }
        };
        let documents = logs.iter().map(|log| log.documents).sum();
        Ok(StageResult::Scanned { part, files: logs.len() as u64, documents })
    }

    fn select(&self, progress: &mut dyn FnMut(Progress)) -> Result<StageResult, PrepareError> {
        let (scan, inputs) = self.whole_scan()?;
        let lock = OutputLock::lock(&self.directory, SELECTION, progress)?;
        lock.begin(&self.digest.to_string())?;
        let documents = scan.documents();
        let done = |selection: &Selection| StageResult::Selected {
            parts: self.ranges.len() as u32,
            documents,
            duplicates: selection.duplicates,
            near_duplicates: selection.near_duplicates,
        };
        if let Some((_, selected)) = self.selected(&scan, inputs) {
            return Ok(done(&selected.selection));
        }
        self.indices().try_for_each(|index| self.check_records(&scan, index))?;
        progress(Progress::Selecting { documents });
        let selection = select(&scan, self.options)?;
        let tokenizer = match &self.given {
            Some(given) => given.digest(),
            None => trained_tokenizer(&scan, &selection, self.options, (&lock.partial, inputs), progress)
                .map_err(|error| self.name_part(error))?
                .digest(),
        };
        let parts = selection.part_spans(&scan, &self.ranges)?;
        let dropped = selection.duplicate.to_bytes();
        write_atomic(&lock.partial.join(DROPPED), &dropped)?;
        let dropped = Digest::of(&dropped);
        let selected = Selected { inputs, tokenizer, dropped, selection, parts };
        write_note(&lock.partial.join(SELECTED), &selected)?;
        Ok(done(&selected.selection))
    }

    fn encode(mut self, part: Part, progress: &mut dyn FnMut(Progress)) -> Result<StageResult, PrepareError> {
        let Decisions { scan, selected, digest, tokenizer } = self.decisions()?;
        let lock = self.lock_part(part, progress)?;
        let encoded = match self.encoded(part.index, digest) {
            Some(encoded) => encoded,
            None => {
                self.check_records(&scan, part.index)?;
                let PartSpans { spans, bytes } = &selected.parts[part.index as usize];
                let (scan, selection, tokenizer) = (&scan, &selected.selection, &tokenizer);
                let plan = Plan { scan, selection, tokenizer, spans, bytes: *bytes, digest };
                let directory = lock.partial.join(TOKENS);
                let width = token_bytes_for(tokenizer.vocab());
                let writer = |name: &str| TokenStream::new(&directory, name, width);
                let mut output =
                    encode::encode(&plan, self.options, (&lock.partial, &directory), writer, progress)
                        .map_err(|error| self.name_part(error))?;
                let failed = |source| unwritable(&directory, source);
                let encoded = Encoded {
                    selection: digest,
                    taken: output.taken,
                    training: output.training.state().map_err(failed)?,
                    held_out: output.held_out.state().map_err(failed)?,
                };
                sync_directory(&directory).map_err(failed)?;
                write_note(&lock.partial.join(ENCODED), &encoded)?;
                encoded
            }
        };
        let sum = |of: fn(&Taken) -> u64| encoded.taken.iter().map(of).sum();
        Ok(StageResult::Encoded {
            part,
            documents: sum(|taken| taken.documents),
            tokens: sum(|taken| taken.tokens),
        })
    }

    fn join(
        mut self,
        place: &Place<'_>,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<StageResult, PrepareError> {
        let lock = OutputLock::lock(place.parent, place.name, progress)?;
        if let Some(prepared) = place.joined()? {
            // By a process that had the lock.
            remove_parts(&self.directory)?;
            lock.finish();
            return Ok(StageResult::Joined(Box::new(prepared)));
        }
        let Decisions { scan, selected, digest, tokenizer } = self.decisions()?;
        let found: Vec<Option<Encoded>> = self.indices().map(|index| self.encoded(index, digest)).collect();
        let encoded = self.all(found, "encode")?;

        let directory = self.options.place.directory(&selected.inputs);
        let found = existing(&directory, &selected.inputs)?;
        write_note(&place.note(), &Joined { job: self.digest, inputs: selected.inputs })?;
        let prepared = match found {
            Some(prepared) => {
                progress(Progress::Reused { directory });
                prepared
            }
            None => {
                lock.begin(&self.digest.to_string())?;
                let [training, held_out] = self.shards(&encoded, &tokenizer, &lock.partial, progress)?;
                let spans = selected.parts.iter().zip(&encoded);
                let spans = spans.flat_map(|(part, encoded)| part.spans.iter().zip(&encoded.taken));
                let figures = figures(self.options, &scan, &selected.selection, spans);
                let text = (&*lock.partial, figures.text_bytes);
                let manifest = encode::manifest(training, held_out, &tokenizer, self.options, text)?;
                finish(&manifest, &tokenizer, (selected.inputs, figures), &directory, &lock, progress)?
            }
        };
        remove_parts(&self.directory)?;
        lock.finish();
        Ok(StageResult::Joined(Box::new(prepared)))
    }

    /// The shards of the training and of the held-out split. Reading by reading, each part's tokens follow those of
    /// the part before.
    fn shards(
        &self,
        encoded: &[Encoded],
        tokenizer: &TextTokenizer,
        partial: &Path,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<[SplitWriter; 2], PrepareError> {
        let directory = shards_path(partial);
        let failed = |source| unwritable(&directory, source);
        create_empty(&directory).map_err(failed)?;
        let width = token_bytes_for(tokenizer.vocab());
        let tokens: u64 = encoded.iter().flat_map(|part| &part.taken).map(|taken| taken.tokens).sum();
        let (mut bytes, of) = (0, tokens * u64::from(width));
        let readings = encoded.first().map_or(0, |part| part.taken.len());
        type Amount = (fn(&Taken) -> u64, fn(&Encoded) -> &StoredTokens);
        let splits: [(&str, Amount); 2] = [
            (SPLITS[0], (|taken| taken.tokens - taken.held_out_tokens, |part| &part.training)),
            (SPLITS[1], (|taken| taken.held_out_tokens, |part| &part.held_out)),
        ];
        let mut writers = Vec::new();
        for (name, (amount, stored)) in splits {
            let mut writer = encode::shard_writer(name, tokenizer, self.options, partial);
            let copy = |index| TokenCopy::new(&self.part_directory(index).join(TOKENS), name, width);
            let mut copies: Vec<TokenCopy> = self.indices().map(copy).collect();
            for reading in 0..readings {
                for (copy, part) in copies.iter_mut().zip(encoded) {
                    let copied = copy.copy(amount(&part.taken[reading]), &mut writer, |more| {
                        bytes += more;
                        progress(Progress::Joining { bytes, of });
                    });
                    let unreadable =
                        |source| PrepareError::Unreadable { directory: copy.path().to_owned(), source };
                    copied.map_err(unreadable)?.map_err(failed)?;
                }
            }
            for ((index, copy), part) in (0..).zip(&copies).zip(encoded) {
                ensure!(copy.is(stored(part)), self.damaged(index));
            }
            writers.push(writer);
        }
        Ok(writers.try_into().unwrap_or_else(|_| unreachable!("there are two splits")))
    }

    fn indices(&self) -> Range<u32> {
        0..self.ranges.len() as u32
    }

    fn range(&self, index: u32) -> Range<usize> {
        self.ranges[index as usize].clone()
    }

    fn part_directory(&self, index: u32) -> PathBuf {
        self.directory.join(part_name(index))
    }

    fn lock_part(&self, part: Part, progress: &mut dyn FnMut(Progress)) -> Result<OutputLock, PrepareError> {
        let lock = OutputLock::lock(&self.directory, &format!("part-{}", part.index), progress)?;
        lock.begin(&self.digest.to_string())?;
        Ok(lock)
    }

    fn damaged(&self, part: u32) -> PrepareError {
        PrepareError::PartDamaged { part, directory: self.part_directory(part) }
    }

    /// Says of a text that is no longer the scanned one how to scan it again: the part's marker does not notice.
    fn name_part(&self, error: PrepareError) -> PrepareError {
        let PrepareError::Source(SourceError::Changed { path }) = error else { return error };
        let changed = in_order(&self.files).iter().position(|(_, file)| file.path == path);
        let part = self.indices().find(|&index| changed.is_some_and(|at| self.range(index).contains(&at)));
        match part {
            Some(part) => PrepareError::PartChanged { part, path, directory: self.part_directory(part) },
            None => SourceError::Changed { path }.into(),
        }
    }

    /// All of `found`, or the error that names the missing parts.
    fn all<T>(&self, found: Vec<Option<T>>, stage: &'static str) -> Result<Vec<T>, PrepareError> {
        let missing: Vec<u32> =
            (0..).zip(&found).filter(|(_, found)| found.is_none()).map(|(n, _)| n).collect();
        let of = self.ranges.len() as u32;
        ensure!(missing.is_empty(), PrepareError::PartsMissing { stage, missing, of });
        Ok(found.into_iter().flatten().collect())
    }

    /// The log of a part, if it is scanned.
    fn scanned(&self, index: u32) -> Result<Option<Vec<FileLog>>, PrepareError> {
        let directory = self.part_directory(index);
        let Some((_, marker)) = read_note::<Scanned>(&directory.join(SCANNED)) else { return Ok(None) };
        let of_job = marker.job == self.digest;
        ensure!(of_job, PrepareError::OtherPart { part: index, directory });
        match read_log(self.options, &directory, self.range(index).len(), self.is_copy) {
            Ok(Some((log, logs))) if log == marker.log => Ok(Some(logs)),
            Err(source) if source.kind() != io::ErrorKind::NotFound => {
                Err(PrepareError::Unreadable { directory, source })
            }
            _ => Err(self.damaged(index)),
        }
    }

    /// Whether the records and keys of a part are those that its log says. The marker says that of the log alone.
    fn check_records(&self, scan: &Scan, index: u32) -> Result<(), PrepareError> {
        let directory = self.part_directory(index);
        let Range { start, end } = self.range(index);
        let logs: Vec<&FileLog> = scan.logs().take(end).skip(start).collect();
        let whole = whole_files(&directory, &logs, self.options.banding())
            .map_err(|source| PrepareError::Unreadable { directory, source })?;
        ensure!(whole == logs.len(), self.damaged(index));
        Ok(())
    }

    /// The records of all parts, and the digest of the dataset's inputs.
    fn whole_scan(&self) -> Result<(Scan, Digest), PrepareError> {
        let found: Result<Vec<_>, _> = self.indices().map(|index| self.scanned(index)).collect();
        let logs = self.all(found?, "scan")?;
        let directories = self.indices().map(|index| self.part_directory(index)).zip(logs).collect();
        let scan = Scan::of(&self.options.source, self.files.clone(), directories);
        let inputs = inputs_digest(self.options, &scan, self.given.as_ref());
        Ok((scan, inputs))
    }

    /// The decisions for these inputs, if they are made and whole.
    fn selected(&self, scan: &Scan, inputs: Digest) -> Option<(Digest, Selected)> {
        let directory = self.selection_directory();
        let (digest, mut selected) = read_note::<Selected>(&directory.join(SELECTED))?;
        let limit = Bits::stored_bytes(scan.items());
        let dropped = read_bounded(&directory.join(DROPPED), limit).ok().flatten()?;
        let whole = dropped.len() as u64 == limit && Digest::of(&dropped) == selected.dropped;
        if !whole || selected.inputs != inputs || selected.parts.len() != self.ranges.len() {
            return None;
        }
        selected.selection.duplicate = Bits::from_bytes(&dropped);
        Some((digest, selected))
    }

    fn selection_directory(&self) -> PathBuf {
        self.directory.join(selection_name())
    }

    fn decisions(&mut self) -> Result<Decisions, PrepareError> {
        let (scan, inputs) = self.whole_scan()?;
        let directory = self.directory.clone();
        let not_selected = || PrepareError::NotSelected { directory: directory.clone() };
        let (digest, selected) = self.selected(&scan, inputs).ok_or_else(not_selected)?;
        let tokenizer = match self.given.take() {
            Some(given) => given,
            None => {
                let path = trained_path(&self.selection_directory(), inputs);
                let json =
                    read_bounded(&path, MAX_TOKENIZER_BYTES).ok().flatten().ok_or_else(not_selected)?;
                TextTokenizer::from_json(json, None)?
            }
        };
        ensure!(tokenizer.digest() == selected.tokenizer, not_selected());
        Ok(Decisions { scan, selected, digest, tokenizer })
    }

    /// The marker of a part whose tokens are written as the decisions with this digest say.
    fn encoded(&self, index: u32, selection: Digest) -> Option<Encoded> {
        let (_, encoded) = read_note::<Encoded>(&self.part_directory(index).join(ENCODED))?;
        (encoded.selection == selection).then_some(encoded)
    }
}

/// The names of files and directories of a job.
pub(crate) const JOB: &str = "job.json";
pub(crate) const SCANNED: &str = "scanned.json";
const SELECTION: &str = "selection";
pub(crate) const SELECTED: &str = "selected.json";
pub(crate) const DROPPED: &str = "dropped";
pub(crate) const TOKENS: &str = "tokens";
/// The files in the directory of that name.
pub(crate) const SPLITS: [&str; 2] = ["training", "held-out"];
pub(crate) const ENCODED: &str = "encoded.json";

/// The directory of a job, and the note of a complete one, beside the dataset `name`.
pub(crate) fn job_name(name: &str) -> String {
    format!(".{name}.parts")
}

pub(crate) fn joined_name(name: &str) -> String {
    format!(".{name}.joined")
}

/// The directories in that of a job.
pub(crate) fn part_name(index: u32) -> String {
    format!(".part-{index}.partial")
}

pub(crate) fn selection_name() -> String {
    format!(".{SELECTION}.partial")
}

/// Removes the directory of a job whose dataset is complete.
fn remove_parts(directory: &Path) -> Result<(), PrepareError> {
    match fs::remove_dir_all(directory) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(unwritable(directory, error)),
        _ => Ok(()),
    }
}

/// The number of parts. The first scan of a job sets it.
fn open_job(
    directory: &Path,
    job: Digest,
    stage: Stage,
    progress: &mut dyn FnMut(Progress),
) -> Result<u32, PrepareError> {
    let path = directory.join(JOB);
    let found = match (read_note::<JobFile>(&path), stage) {
        (Some((_, found)), _) => found,
        (None, Stage::Scan(part)) => {
            let _lock = OutputLock::lock(directory, "job", progress)?;
            match read_note::<JobFile>(&path) {
                Some((_, found)) => found,
                None => {
                    let new = JobFile { job, parts: part.count };
                    write_note(&path, &new)?;
                    new
                }
            }
        }
        (None, _) => return Err(PrepareError::NoParts { directory: directory.to_owned() }),
    };
    let directory = directory.to_owned();
    ensure!(found.job == job, PrepareError::OtherParts { directory, found: found.job, job });
    match stage {
        Stage::Scan(part) | Stage::Encode(part) => {
            let (given, parts) = (part.count, found.parts);
            ensure!(given == parts, PrepareError::PartCount { directory, given, parts });
        }
        Stage::Select | Stage::Join => {}
    }
    Ok(found.parts)
}

/// A digest of options and files. Not of the files' directories and times, which may differ between machines; that
/// contents do not differ is checked when a document is encoded.
fn job_digest(options: &PrepareOptions, files: &[Vec<TextFile>], given: Option<&TextTokenizer>) -> Digest {
    let mut parts = Parts::new("job");
    parts.add(env!("CARGO_PKG_VERSION").as_bytes());
    parts.options(options, given);
    for (part, files) in options.source.parts.iter().zip(files) {
        parts.add(part.name.as_bytes());
        parts.add(part.field.as_bytes());
        parts.add(&part.weight.unwrap_or(0).to_le_bytes());
        parts.add(&(files.len() as u64).to_le_bytes());
        for file in files {
            parts.add(file.path.file_name().unwrap_or_default().as_encoded_bytes());
            parts.add(&file.bytes.to_le_bytes());
            parts.add(&(file.part_bytes as u64).to_le_bytes());
        }
    }
    parts.digest()
}

/// Ranges of files of about equal length: a file belongs to the part that holds its middle byte.
fn part_ranges(files: &[(usize, &TextFile)], parts: u32) -> Vec<Range<usize>> {
    let all: u128 = files.iter().map(|(_, file)| u128::from(file.bytes)).sum();
    let (mut before, mut ends, mut at) = (0u128, vec![0; parts as usize], 0);
    for (number, (_, file)) in files.iter().enumerate() {
        let middle = before + u128::from(file.bytes) / 2;
        let part = (middle * u128::from(parts)).checked_div(all).unwrap_or(0).min(u128::from(parts) - 1);
        while at < part as usize {
            ends[at] = number;
            at += 1;
        }
        before += u128::from(file.bytes);
    }
    ends[at..].fill(files.len());
    let mut start = 0;
    ends.into_iter().map(|end| std::mem::replace(&mut start, end)..end).collect()
}

/// A note and its digest, unless it is missing or was not written by this program.
pub(crate) fn read_note<T: DeserializeOwned>(path: &Path) -> Option<(Digest, T)> {
    let bytes = read_bounded(path, MAX_NOTE_BYTES).ok().flatten()?;
    Some((Digest::of(&bytes), serde_json::from_slice(&bytes).ok()?))
}

fn write_note(path: &Path, note: &impl Serialize) -> Result<(), PrepareError> {
    write_atomic(path, &serde_json::to_vec(note).expect("numbers and strings are always JSON"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_part_is_written_as_index_and_count() {
        let part: Part = "3/16".parse().expect("a part");
        assert_eq!((part, part.to_string().as_str()), (Part { index: 3, count: 16 }, "3/16"));
        for wrong in ["", "3", "/", "3/", "/16", "-1/16", "3/16/2", "a/b", "3/99999999999"] {
            assert!(matches!(wrong.parse::<Part>(), Err(PartError::Malformed { .. })), "{wrong}");
        }
        for outside in ["16/16", "0/0", "1/16385"] {
            assert!(matches!(outside.parse::<Part>(), Err(PartError::OutOfRange { .. })), "{outside}");
        }
    }

    proptest! {
        #[test]
        fn each_file_is_in_one_part_and_parts_are_about_equal(
            bytes in proptest::collection::vec(0u64..1000, 0..60), parts in 1u32..20,
        ) {
            let file = |bytes: &u64| TextFile { path: PathBuf::new(), bytes: *bytes, part_bytes: 1, object: None };
            let files: Vec<TextFile> = bytes.iter().map(file).collect();
            let files: Vec<(usize, &TextFile)> = files.iter().map(|file| (0, file)).collect();
            let ranges = part_ranges(&files, parts);
            prop_assert_eq!(ranges.len(), parts as usize);
            let mut end = 0;
            for range in &ranges {
                prop_assert_eq!(range.start, end);
                end = range.end;
                let of_part: u64 = bytes[range.clone()].iter().sum();
                prop_assert!(of_part <= bytes.iter().sum::<u64>() / u64::from(parts) + 1001);
            }
            prop_assert_eq!(end, files.len());
        }
    }
}
