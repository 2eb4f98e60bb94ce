//! The second pass over the text: tokens into shards, in the order of the documents, with checkpoints from which a
//! later attempt resumes.

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
    fs, io,
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

/// The split, the bytes of text and the tokens of each document of a [`Work`], and the cursor after them.
struct Encoded {
    source: usize,
    documents: Vec<(Split, u32, Vec<u32>)>,
    then: Cursor,
}

/// Writes the shards of both splits, resuming from an earlier attempt in `partial`. Returns the manifest and the
/// totals of each source.
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
    let writer = |name: &str| {
        let token_bytes = token_bytes_for(tokenizer.vocab());
        SplitWriter::new(partial, name, sequence_tokens as usize, token_bytes, options.shard_bytes)
    };
    let state_path = partial.join("encoded");
    let found = read_bounded(&state_path, MAX_STATE_BYTES).ok().flatten();
    let found = found.and_then(|bytes| serde_json::from_slice::<State>(&bytes).ok());
    let found = found.filter(|state| state.inputs == inputs && state.tokenizer == tokenizer.digest());
    let mut output = Output::open(&shards, writer, found, scan.sources.len()).map_err(failed)?;

    let of: u64 = selection.bytes.iter().sum();
    let resumed = output.bytes();
    progress(Progress::Encoding { bytes: resumed, of, resumed });
    let mut noted = resumed;
    // One for each working thread.
    let encoders = Mutex::default();
    let works = Works { scan, selection, readings: selection.readings(), next: output.at, open: None };
    let encode = |work: Work| encode_work(work, scan, tokenizer, &encoders);
    pipeline::ordered(options.threads(), works, encode, |encoded| {
        output.push(encoded).map_err(failed)?;
        let bytes = output.bytes();
        if options.note_every_bytes <= bytes - noted {
            noted = bytes;
            let state = output.state(inputs, tokenizer.digest()).map_err(failed)?;
            sync_directory(&shards).map_err(failed)?;
            let state = serde_json::to_vec(&state).expect("numbers and strings are always JSON");
            write_atomic(&state_path, &state)?;
        }
        progress(Progress::Encoding { bytes, of, resumed });
        Ok::<_, PrepareError>(())
    })?;

    let training = output.training.finish().map_err(failed)?;
    let held_out = output.held_out.finish().map_err(failed)?;
    if training.is_empty() || held_out.is_empty() {
        // The text has more bytes per token than assumed, and is too short. Twice as much text is enough.
        let (bytes, needed) = (of, of.saturating_mul(2));
        return Err(PrepareError::TooLittleText { bytes, needed, seq_len: options.seq_len });
    }
    let manifest = Manifest::new(tokenizer.digest(), tokenizer.vocab(), sequence_tokens, training, held_out);
    manifest.check()?;
    Ok((manifest, output.sources))
}

/// The tokens of each document, with an encoder from the pool.
fn encode_work<'a>(
    work: Work,
    scan: &Scan,
    tokenizer: &'a TextTokenizer,
    encoders: &Mutex<Vec<TextEncoder<'a>>>,
) -> Result<Encoded, PrepareError> {
    let Work { source, path, documents, then } = work;
    let pool = || encoders.lock().unwrap_or_else(PoisonError::into_inner);
    let idle = pool().pop();
    let mut encoder = idle.unwrap_or_else(|| tokenizer.encoder());
    let mut encoded = Vec::with_capacity(documents.len());
    for Document { item, record, split, number } in documents {
        let text = item.text(&scan.sources[source].field).ok().filter(|text| Record::of(text) == record);
        let text = text.ok_or_else(|| SourceError::Changed { path: path.clone() })?;
        let mut tokens = Vec::with_capacity(text.len() / 3);
        pieces(&text, PIECE_BYTES)
            .try_for_each(|piece| encoder.encode_into(piece, &mut tokens))
            .map_err(|source| PrepareError::NotEncoded { path: path.clone(), number, source })?;
        tokens.push(tokenizer.end_of_document());
        encoded.push((split, record.bytes, tokens));
    }
    pool().push(encoder);
    Ok(Encoded { source, documents: encoded, then })
}

/// The shards of both splits, the totals of each source, and the cursor after them.
struct Output {
    training: SplitWriter,
    held_out: SplitWriter,
    sources: Vec<Taken>,
    at: Cursor,
}

impl Output {
    /// Resumes from `state`, or begins anew where its files are not there.
    fn open(
        shards: &Path,
        writer: impl Fn(&str) -> SplitWriter,
        state: Option<State>,
        sources: usize,
    ) -> io::Result<Output> {
        if let Some(State { training, held_out, sources, at, .. }) = state
            && let Some(training) = writer("training").resume(training)?
            && let Some(held_out) = writer("held-out").resume(held_out)?
        {
            return Ok(Output { training, held_out, sources, at });
        }
        if shards.exists() {
            fs::remove_dir_all(shards)?;
        }
        fs::create_dir(shards)?;
        let (training, held_out) = (writer("training"), writer("held-out"));
        Ok(Output { training, held_out, sources: vec![Taken::default(); sources], at: Cursor::default() })
    }

    fn push(&mut self, encoded: Encoded) -> io::Result<()> {
        let taken = &mut self.sources[encoded.source];
        for (split, bytes, tokens) in encoded.documents {
            match split {
                Split::Training => self.training.push(&tokens)?,
                Split::HeldOut => self.held_out.push(&tokens)?,
            }
            taken.documents += 1;
            taken.held_out_documents += u64::from(split == Split::HeldOut);
            taken.bytes += u64::from(bytes);
            taken.tokens += tokens.len() as u64;
        }
        self.at = encoded.then;
        Ok(())
    }

    /// Bytes of text so far.
    fn bytes(&self) -> u64 {
        self.sources.iter().map(|taken| taken.bytes).sum()
    }

    /// Syncs the shards, and returns the state to resume from.
    fn state(&mut self, inputs: Digest, tokenizer: Digest) -> io::Result<State> {
        let (training, held_out) = (self.training.state()?, self.held_out.state()?);
        Ok(State { inputs, tokenizer, at: self.at, training, held_out, sources: self.sources.clone() })
    }
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
