//! Batches of given sequences in their order (PROT-6).

use crate::reader::{Dataset, ReadError};
use std::{
    sync::mpsc,
    thread,
    time::{Duration, Instant},
};

/// Interval between two calls of `stop` while no batch is ready.
const ASK_TO_STOP: Duration = Duration::from_millis(100);

/// Reads batches ahead of training on its own thread, so that a device does not wait for disk or network. Stops when
/// it is dropped.
#[derive(Debug)]
pub struct Prefetch {
    batches: mpsc::Receiver<Result<Vec<Vec<u32>>, ReadError>>,
    waited: Duration,
}

impl Prefetch {
    /// Reads `indices` in order, `batch` at a time (the last may be smaller), at most `ahead` batches ahead.
    ///
    /// # Errors
    /// If the thread cannot be started.
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

    /// Returns the time spent waiting in [`Prefetch::next_unless`].
    pub fn waited(&self) -> Duration {
        self.waited
    }

    /// Returns the next batch, `seq_len + 1` tokens per sequence; `None` after the last batch, after an error, and
    /// soon after `stop` returns true while no batch is ready.
    #[tracing::instrument(name = "load", target = "profile", level = "trace", skip_all)]
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
