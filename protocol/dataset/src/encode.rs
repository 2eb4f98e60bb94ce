//! The second pass over the text: tokens into shards, in the order of the documents, with checkpoints from which a later
//! attempt resumes.

use crate::{
    documents::{Batch, Item, pieces},
    durable::sync_directory,
    error::{PrepareError, SourceError, unwritable, write_atomic},
    files::{read_bounded, shards_path},
    manifest::{Manifest, token_bytes_for},
    options::{PrepareOptions, Progress},
    pipeline,
    scan::{Record, Records, Scan, read_again},
    select::{Owed, Selection, Split},
    shard::{SplitState, SplitWriter},
    tokenizer::{TextEncoder, TextTokenizer},
};
use protocol::Digest;
use serde::{Deserialize, Serialize};
use std::{
    fs,
    path::{Path, PathBuf},
    sync::{Mutex, PoisonError},
};

/// A longer document is encoded in pieces, cut at line ends, because encoding takes many times the memory of its text.
pub(crate) const PIECE_BYTES: usize = 256 << 10;
/// The limit of a checkpoint.
const MAX_STATE_BYTES: u64 = 64 << 20;

/// A checkpoint of the second pass.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct State {
    /// The inputs of the dataset, and its tokenizer.
    inputs: Digest,
    tokenizer: Digest,
    at: Cursor,
    training: SplitState,
    held_out: SplitState,
    sources: Vec<Taken>,
}

/// The next item.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Cursor {
    reading: usize,
    file: usize,
    item: u64,
    owed: Owed,
}

/// Totals of the documents taken from one source.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Taken {
    pub documents: u64,
    pub held_out_documents: u64,
    pub bytes: u64,
    pub tokens: u64,
}

/// A document to encode.
struct Document {
    item: Item,
    record: Record,
    split: Split,
    number: u64,
}

/// Documents of one source, and the cursor after them.
struct Work {
    source: usize,
    path: PathBuf,
    documents: Vec<Document>,
    then: Cursor,
}

fn state_path(partial: &Path) -> PathBuf {
    partial.join("encoded")
}

/// Writes the shards of both splits, resuming from an earlier attempt in `partial`. Returns the manifest and the totals of each
/// source.
pub(crate) fn encode(
    scan: &Scan,
    selection: &Selection,
    tokenizer: &TextTokenizer,
    options: &PrepareOptions,
    (partial, inputs): (&Path, Digest),
    progress: &mut dyn FnMut(Progress),
) -> Result<(Manifest, Vec<Taken>), PrepareError> {
    let shards = shards_path(partial);
    let failed = |source| unwritable(&shards, source);
    let sequence_tokens = options.seq_len + 1;
    let token_bytes = token_bytes_for(tokenizer.vocab());
    let writer =
        |name| SplitWriter::new(partial, name, sequence_tokens as usize, token_bytes, options.shard_bytes);

    // Resume, or begin.
    let (mut training, mut held_out) = (writer("training"), writer("held-out"));
    let mut start = Cursor::default();
    let mut sources = vec![Taken::default(); scan.sources.len()];
    let found = read_bounded(&state_path(partial), MAX_STATE_BYTES).ok().flatten();
    let found = found.and_then(|bytes| serde_json::from_slice::<State>(&bytes).ok());
    let found = found.filter(|state| state.inputs == inputs && state.tokenizer == tokenizer.digest());
    let mut resumed = false;
    if let Some(state) = found {
        let splits = (
            training.resume(state.training).map_err(failed)?,
            held_out.resume(state.held_out).map_err(failed)?,
        );
        (training, held_out) = match splits {
            (Some(training), Some(held_out)) => {
                (start, sources, resumed) = (state.at, state.sources, true);
                (training, held_out)
            }
            _ => (writer("training"), writer("held-out")),
        };
    }
    if !resumed {
        if shards.exists() {
            fs::remove_dir_all(&shards).map_err(failed)?;
        }
        fs::create_dir(&shards).map_err(failed)?;
    }

    let of: u64 = selection.bytes.iter().sum();
    let done = |sources: &[Taken]| sources.iter().map(|taken| taken.bytes).sum::<u64>();
    let resumed = done(&sources);
    progress(Progress::Encoding { bytes: resumed, of, resumed });
    let mut noted = resumed;
    // One for each working thread.
    let encoders: Mutex<Vec<TextEncoder<'_>>> = Mutex::default();
    let pool = || encoders.lock().unwrap_or_else(PoisonError::into_inner);
    let encode = |work: Work| {
        let idle = pool().pop();
        let mut encoder = idle.unwrap_or_else(|| tokenizer.encoder());
        let field = &scan.sources[work.source].field;
        let mut encoded = Vec::with_capacity(work.documents.len());
        for Document { item, record, split, number } in work.documents {
            let text = item.text(field).ok().filter(|text| Record::of(text) == record);
            let text = text.ok_or_else(|| SourceError::Changed { path: work.path.clone() })?;
            let mut tokens = Vec::with_capacity(text.len() / 3);
            for piece in pieces(&text, PIECE_BYTES) {
                encoder.encode_into(piece, &mut tokens).map_err(|source| PrepareError::NotEncoded {
                    path: work.path.clone(),
                    number,
                    source,
                })?;
            }
            tokens.push(tokenizer.end_of_document());
            encoded.push((split, record.bytes, tokens));
        }
        pool().push(encoder);
        Ok((work.source, encoded, work.then))
    };
    let readings = selection.readings();
    let works = Works { scan, selection, readings, next: start, open: None };
    pipeline::ordered(options.threads(), works, encode, |(source, encoded, then)| {
        let taken = &mut sources[source];
        for (split, bytes, tokens) in encoded {
            match split {
                Split::Training => training.push(&tokens),
                Split::HeldOut => held_out.push(&tokens),
            }
            .map_err(failed)?;
            taken.documents += 1;
            taken.held_out_documents += u64::from(split == Split::HeldOut);
            taken.bytes += u64::from(bytes);
            taken.tokens += tokens.len() as u64;
        }
        let bytes = done(&sources);
        if options.note_every_bytes <= bytes - noted {
            noted = bytes;
            let (training, held_out) = (training.state().map_err(failed)?, held_out.state().map_err(failed)?);
            sync_directory(&shards).map_err(failed)?;
            let tokenizer = tokenizer.digest();
            let state = State { inputs, tokenizer, at: then, training, held_out, sources: sources.clone() };
            let state = serde_json::to_vec(&state).expect("numbers and strings are always JSON");
            write_atomic(&state_path(partial), &state)?;
        }
        progress(Progress::Encoding { bytes, of, resumed });
        Ok::<_, PrepareError>(())
    })?;

    let training = training.finish().map_err(failed)?;
    let held_out = held_out.finish().map_err(failed)?;
    if training.is_empty() || held_out.is_empty() {
        // The text has more bytes per token than assumed, and is too short. Twice as much text is enough.
        let (bytes, needed) = (of, of.saturating_mul(2));
        return Err(PrepareError::TooLittleText { bytes, needed, seq_len: options.seq_len });
    }
    let manifest = Manifest::new(tokenizer.digest(), tokenizer.vocab(), sequence_tokens, training, held_out);
    manifest.check()?;
    Ok((manifest, sources))
}

/// The documents to encode, in order, a batch at a time.
struct Works<'a> {
    scan: &'a Scan,
    selection: &'a Selection,
    readings: Vec<(usize, u32)>,
    next: Cursor,
    /// The file of `next`.
    open: Option<(Batches, Records)>,
}

type Batches = Box<dyn Iterator<Item = Result<Batch, SourceError>> + Send>;

impl Works<'_> {
    fn batch(&mut self) -> Result<Option<Work>, PrepareError> {
        loop {
            let Some(&reading) = self.readings.get(self.next.reading) else { return Ok(None) };
            let source = &self.scan.sources[reading.0];
            let Some(file) = source.files.get(self.next.file) else {
                self.next = Cursor { reading: self.next.reading + 1, ..Cursor::default() };
                continue;
            };
            let (batches, records) = match &mut self.open {
                Some(open) => open,
                none => {
                    let records = self.scan.records(file.first + self.next.item)?;
                    none.insert((Box::new(read_again(file, &source.field)), records))
                }
            };
            let Some(batch) = batches.next() else {
                self.next = Cursor { file: self.next.file + 1, item: 0, ..self.next };
                self.open = None;
                continue;
            };
            let batch = batch?;
            let mut documents = Vec::new();
            for (number, item) in (batch.first..).zip(batch.items) {
                // Encoded by an earlier attempt.
                if number < self.next.item {
                    continue;
                }
                let record = records.next()?;
                let owed = &mut self.next.owed;
                if let Some(split) = self.selection.split(file.first + number, &record, reading, owed) {
                    documents.push(Document { item, record, split, number: number + 1 });
                }
                self.next.item = number + 1;
            }
            let path = file.file.path.clone();
            return Ok(Some(Work { source: reading.0, path, documents, then: self.next }));
        }
    }
}

impl Iterator for Works<'_> {
    type Item = Result<Work, PrepareError>;

    fn next(&mut self) -> Option<Self::Item> {
        self.batch().transpose()
    }
}
