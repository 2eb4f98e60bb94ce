//! Batches of given sequences in their order (PROT-6), resumable at any position.

use crate::reader::{Dataset, ReadError};
use protocol::Digest;
use serde::{Deserialize, Serialize};
use std::{
    sync::mpsc,
    thread,
    time::{Duration, Instant},
};

/// Between two calls of `stop` while there is no batch.
const ASK_TO_STOP: Duration = Duration::from_millis(100);

/// Goes once through a list of training sequences.
#[derive(Clone, Debug)]
pub struct BatchStream {
    dataset: Dataset,
    indices: Vec<u64>,
    batch: usize,
    next: usize,
}

/// The position of a stream, for snapshots.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Position {
    /// A digest of dataset and list: a position is valid only for the list it was taken in.
    pub stream: Digest,
    /// Sequences before the position.
    pub sequences: u64,
}

#[derive(Debug, thiserror::Error)]
pub enum StreamError {
    #[error("a batch needs at least one sequence")]
    EmptyBatch,
    #[error("training sequence {index} was asked for, the dataset has {sequences}")]
    OutOfRange { index: u64, sequences: u64 },
    #[error("the position belongs to another list of sequences")]
    OtherStream,
    #[error("the position is after sequence {at} of {sequences}")]
    BehindTheEnd { at: u64, sequences: u64 },
}

impl BatchStream {
    /// `batch` sequences at a time; the last batch may be smaller.
    pub fn new(dataset: &Dataset, indices: Vec<u64>, batch: usize) -> Result<BatchStream, StreamError> {
        if batch == 0 {
            return Err(StreamError::EmptyBatch);
        }
        let sequences = dataset.training_sequences();
        match indices.iter().find(|&&index| index >= sequences) {
            Some(&index) => Err(StreamError::OutOfRange { index, sequences }),
            None => Ok(BatchStream { dataset: dataset.clone(), indices, batch, next: 0 }),
        }
    }

    /// Resumes after `position`, from a stream of the same list. The batch may have another size.
    pub fn resume(
        dataset: &Dataset,
        indices: Vec<u64>,
        batch: usize,
        position: &Position,
    ) -> Result<BatchStream, StreamError> {
        let mut stream = BatchStream::new(dataset, indices, batch)?;
        if stream.digest() != position.stream {
            return Err(StreamError::OtherStream);
        }
        let sequences = stream.indices.len();
        stream.next = usize::try_from(position.sequences)
            .ok()
            .filter(|&next| next <= sequences)
            .ok_or(StreamError::BehindTheEnd { at: position.sequences, sequences: sequences as u64 })?;
        Ok(stream)
    }

    /// The next sequences, `seq_len + 1` tokens each; `None` at the end. An error leaves the position as it was.
    pub fn next_batch(&mut self) -> Result<Option<Vec<Vec<u32>>>, ReadError> {
        let end = self.indices.len().min(self.next.saturating_add(self.batch));
        let indices = &self.indices[self.next..end];
        if indices.is_empty() {
            return Ok(None);
        }
        let batch = self.dataset.sequences(indices)?;
        self.next = end;
        Ok(Some(batch))
    }

    /// The position, to resume from.
    pub fn position(&self) -> Position {
        Position { stream: self.digest(), sequences: self.next as u64 }
    }

    /// Sequences so far: the prefix that a seat declares (PROT-6).
    pub fn handed_out(&self) -> u64 {
        self.next as u64
    }

    fn digest(&self) -> Digest {
        let indices: Vec<u8> = self.indices.iter().flat_map(|index| index.to_le_bytes()).collect();
        Digest::of_parts(&[b"mettle/1/batch-stream", &self.dataset.digest().0, &indices])
    }
}

/// Reads batches ahead of training, on its own thread, so that a device does not wait for disk or network. Ends when dropped.
#[derive(Debug)]
pub struct Prefetch {
    batches: mpsc::Receiver<Result<Vec<Vec<u32>>, ReadError>>,
    waited: Duration,
}

impl Prefetch {
    /// Goes through `indices` in order, `batch` at a time (the last may be smaller), at most `ahead` batches ahead.
    pub fn new(dataset: &Dataset, indices: &[u64], batch: usize, ahead: usize) -> std::io::Result<Prefetch> {
        let (give, batches) = mpsc::sync_channel(ahead.max(1));
        let (dataset, indices) = (dataset.clone(), indices.to_vec());
        let read = move || {
            for indices in indices.chunks(batch.max(1)) {
                let batch = dataset.sequences(indices);
                let failed = batch.is_err();
                if give.send(batch).is_err() || failed {
                    break;
                }
            }
        };
        thread::Builder::new().name("data".to_owned()).spawn(read)?;
        Ok(Prefetch { batches, waited: Duration::ZERO })
    }

    /// The time spent waiting in [`Prefetch::next_unless`].
    pub fn waited(&self) -> Duration {
        self.waited
    }

    /// The next batch, `seq_len + 1` tokens per sequence. `None` after the last batch, after an error, and soon after `stop` returns
    /// true while there is no batch yet.
    pub fn next_unless(&mut self, stop: impl Fn() -> bool) -> Option<Result<Vec<Vec<u32>>, ReadError>> {
        if let Ok(batch) = self.batches.try_recv() {
            return Some(batch);
        }
        let began = Instant::now();
        let batch = loop {
            match self.batches.recv_timeout(ASK_TO_STOP) {
                Ok(batch) => break Some(batch),
                Err(mpsc::RecvTimeoutError::Timeout) if !stop() => {}
                Err(_) => break None,
            }
        };
        self.waited += began.elapsed();
        batch
    }
}
