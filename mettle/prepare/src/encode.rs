//! The second pass over the text: writes tokens into shards, in the order of the documents, with checkpoints from
//! which a later attempt resumes.

use crate::{
    documents::{Batch, Item, pieces},
    error::{PrepareError, SourceError, unwritable, write_atomic},
    options::{PrepareOptions, Progress},
    pipeline,
    scan::{Record, Records, Scan, read_again},
    select::{Owed, Selection, Span, Split},
    shard::{SplitState, SplitWriter},
};
use dataset::{Manifest, durable::sync_directory, read_bounded, shards_path, token_bytes_for};
use protocol::Digest;
use serde::{Deserialize, Serialize};
use std::{
    fs, io,
    path::{Path, PathBuf},
    sync::{Mutex, PoisonError},
};
use tokenizer::{TextEncoder, TextTokenizer};

/// Maximum length of a piece, in bytes. A longer document is encoded in pieces, cut at line ends, because encoding
/// takes many times the memory of its text.
pub(crate) const PIECE_BYTES: usize = 256 << 10;
/// Maximum size of a checkpoint, in bytes.
const MAX_STATE_BYTES: u64 = 64 << 20;

/// Input of the second pass.
pub(crate) struct Plan<'a> {
    pub scan: &'a Scan,
    pub selection: &'a Selection,
    pub tokenizer: &'a TextTokenizer,
    pub spans: &'a [Span],
    /// Bytes of the documents, each counted as often as it is taken.
    pub bytes: u64,
    /// Digest of the dataset's inputs.
    pub digest: Digest,
}

/// A checkpoint of the second pass.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct State {
    /// Digest of the plan and its tokenizer.
    plan: Digest,
    tokenizer: Digest,
    at: Cursor,
    training: SplitState,
    held_out: SplitState,
    taken: Vec<Taken>,
}

/// The next item.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Cursor {
    span: usize,
    file: usize,
    item: u64,
    owed: Owed,
}

/// Totals of the documents taken in one span, or from one source.
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

/// Documents of one span, and the cursor after them.
struct Work {
    span: usize,
    path: PathBuf,
    documents: Vec<Document>,
    then: Cursor,
}

/// The split, the bytes of text and the tokens of each document of a [`Work`], and the cursor after them.
struct Encoded {
    span: usize,
    documents: Vec<(Split, u32, Vec<u32>)>,
    then: Cursor,
}

impl Taken {
    pub fn add(&mut self, other: &Taken) {
        self.documents += other.documents;
        self.held_out_documents += other.held_out_documents;
        self.bytes += other.bytes;
        self.tokens += other.tokens;
    }
}

/// Writes the tokens of each split into shards in `partial`, together with the checkpoint. Resumes an earlier attempt
/// there.
pub(crate) fn encode(
    plan: &Plan<'_>,
    options: &PrepareOptions,
    partial: &Path,
    progress: &mut dyn FnMut(Progress),
) -> Result<Output, PrepareError> {
    let directory = &shards_path(partial);
    let failed = |source| unwritable(directory, source);
    let token_bytes = token_bytes_for(plan.tokenizer.vocab());
    let sequence_tokens = options.seq_len as usize + 1;
    let writer =
        |name: &str| SplitWriter::new(partial, name, sequence_tokens, token_bytes, options.shard_bytes);
    let tokenizer = plan.tokenizer.digest();
    let state_path = partial.join("encoded");
    let found = read_bounded(&state_path, MAX_STATE_BYTES).ok().flatten();
    let found = found.and_then(|bytes| serde_json::from_slice::<State>(&bytes).ok());
    let found = found.filter(|state| state.plan == plan.digest && state.tokenizer == tokenizer);
    let mut output = Output::open(directory, writer, found, plan.spans).map_err(failed)?;

    let of = plan.bytes;
    let resumed = output.bytes();
    progress(Progress::Encoding { bytes: resumed, of, resumed });
    let mut noted = resumed;
    // One for each working thread.
    let encoders = Mutex::default();
    let works = Works { plan, next: output.at, open: None };
    let encode = |work: Work| encode_work(work, plan, &encoders);
    pipeline::ordered(options.threads(), works, encode, |encoded| {
        output.push(encoded).map_err(failed)?;
        let bytes = output.bytes();
        if options.note_every_bytes <= bytes - noted {
            noted = bytes;
            let state = output.state(plan.digest, tokenizer).map_err(failed)?;
            sync_directory(directory).map_err(failed)?;
            let state = serde_json::to_vec(&state).expect("numbers and strings are always JSON");
            write_atomic(&state_path, &state)?;
        }
        progress(Progress::Encoding { bytes, of, resumed });
        Ok::<_, PrepareError>(())
    })?;
    Ok(output)
}

/// Returns the manifest of finished shards, which were made from `bytes` of text.
pub(crate) fn manifest(
    training: SplitWriter,
    held_out: SplitWriter,
    tokenizer: &TextTokenizer,
    options: &PrepareOptions,
    (directory, bytes): (&Path, u64),
) -> Result<Manifest, PrepareError> {
    let failed = |source| unwritable(directory, source);
    let (training, held_out) = (training.finish().map_err(failed)?, held_out.finish().map_err(failed)?);
    if training.is_empty() || held_out.is_empty() {
        // The text has more bytes per token than assumed, and is too short. Twice as much text is enough.
        let needed = bytes.saturating_mul(2);
        return Err(PrepareError::TooLittleText { bytes, needed, seq_len: options.seq_len });
    }
    let sequence_tokens = options.seq_len + 1;
    let manifest = Manifest::new(tokenizer.digest(), tokenizer.vocab(), sequence_tokens, training, held_out);
    manifest.check()?;
    Ok(manifest)
}

/// Encodes each document, with an encoder from the pool.
fn encode_work<'a>(
    work: Work,
    plan: &Plan<'a>,
    encoders: &Mutex<Vec<TextEncoder<'a>>>,
) -> Result<Encoded, PrepareError> {
    let Work { span, path, documents, then } = work;
    let (field, tokenizer) = (&plan.scan.sources[plan.spans[span].source].field, plan.tokenizer);
    let pool = || encoders.lock().unwrap_or_else(PoisonError::into_inner);
    let idle = pool().pop();
    let mut encoder = idle.unwrap_or_else(|| tokenizer.encoder());
    let mut encoded = Vec::with_capacity(documents.len());
    for Document { item, record, split, number } in documents {
        let text = item.text(field).ok().filter(|text| Record::of(text) == record);
        let text = text.ok_or_else(|| SourceError::Changed { path: path.clone() })?;
        let mut tokens = Vec::with_capacity(text.len() / 3);
        pieces(&text, PIECE_BYTES)
            .try_for_each(|piece| encoder.encode_into(piece, &mut tokens))
            .map_err(|source| PrepareError::NotEncoded { path: path.clone(), number, source })?;
        tokens.push(tokenizer.end_of_document());
        encoded.push((split, record.bytes, tokens));
    }
    pool().push(encoder);
    Ok(Encoded { span, documents: encoded, then })
}

/// The writers of both splits, the totals of each span, and the cursor after them.
pub(crate) struct Output {
    pub training: SplitWriter,
    pub held_out: SplitWriter,
    pub taken: Vec<Taken>,
    at: Cursor,
}

impl Output {
    /// Resumes from `state`, or starts over if its files are missing.
    fn open(
        directory: &Path,
        writer: impl Fn(&str) -> SplitWriter,
        state: Option<State>,
        spans: &[Span],
    ) -> io::Result<Output> {
        if let Some(State { training, held_out, taken, at, .. }) = state
            && taken.len() == spans.len()
            && let Some(training) = writer("training").resume(training)?
            && let Some(held_out) = writer("held-out").resume(held_out)?
        {
            return Ok(Output { training, held_out, taken, at });
        }
        create_empty(directory)?;
        let (training, held_out) = (writer("training"), writer("held-out"));
        let taken = vec![Taken::default(); spans.len()];
        Ok(Output { training, held_out, taken, at: Cursor::default() })
    }

    fn push(&mut self, encoded: Encoded) -> io::Result<()> {
        let taken = &mut self.taken[encoded.span];
        for (split, bytes, tokens) in encoded.documents {
            taken.documents += 1;
            taken.bytes += u64::from(bytes);
            taken.tokens += tokens.len() as u64;
            match split {
                Split::Training => self.training.push(&tokens)?,
                Split::HeldOut => {
                    taken.held_out_documents += 1;
                    self.held_out.push(&tokens)?;
                }
            }
        }
        self.at = encoded.then;
        Ok(())
    }

    /// Returns the bytes of text so far.
    fn bytes(&self) -> u64 {
        self.taken.iter().map(|taken| taken.bytes).sum()
    }

    /// Syncs the files, and returns the state for a later attempt.
    fn state(&mut self, plan: Digest, tokenizer: Digest) -> io::Result<State> {
        let (training, held_out) = (self.training.state()?, self.held_out.state()?);
        Ok(State { plan, tokenizer, at: self.at, training, held_out, taken: self.taken.clone() })
    }
}

/// Creates a directory, or empties an existing one.
fn create_empty(directory: &Path) -> io::Result<()> {
    if directory.exists() {
        fs::remove_dir_all(directory)?;
    }
    fs::create_dir(directory)
}

/// The documents to encode, in order, a batch at a time.
struct Works<'a> {
    plan: &'a Plan<'a>,
    next: Cursor,
    /// The open file of `next`.
    open: Option<(Batches, Records)>,
}

type Batches = Box<dyn Iterator<Item = Result<Batch, SourceError>> + Send>;

impl Works<'_> {
    fn batch(&mut self) -> Result<Option<Work>, PrepareError> {
        let Plan { scan, selection, spans, .. } = *self.plan;
        loop {
            let Some(span) = spans.get(self.next.span) else { return Ok(None) };
            let source = &scan.sources[span.source];
            let Some(file) = source.files.get(self.next.file) else {
                self.next = Cursor { span: self.next.span + 1, ..Cursor::default() };
                continue;
            };
            let (batches, records) = match &mut self.open {
                Some(open) => open,
                none => {
                    let records = scan.records(file.first + self.next.item);
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
                // An earlier attempt has encoded it.
                if number < self.next.item {
                    continue;
                }
                let record = records.next()?;
                let (reading, owed) = ((span.source, span.reading), &mut self.next.owed);
                if let Some(split) = selection.split(file.first + number, &record, reading, owed) {
                    documents.push(Document { item, record, split, number: number + 1 });
                }
                self.next.item = number + 1;
            }
            let path = file.file.path.clone();
            return Ok(Some(Work { span: self.next.span, path, documents, then: self.next }));
        }
    }
}

impl Iterator for Works<'_> {
    type Item = Result<Work, PrepareError>;

    fn next(&mut self) -> Option<Self::Item> {
        self.batch().transpose()
    }
}
