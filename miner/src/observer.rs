//! The observer of a window's training thread.

use crate::{
    local::LocalState,
    progress::Progress,
    shutdown::ShutdownHandle,
    strategy::Reading,
    train::{TrainObserver, Trained, TrainingError},
};
use daemon::{Entry, Lent, error_chain};
use nn::{ModelError, Trainer};
use protocol::Window;
use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

/// Result of the training thread.
pub(crate) type ThreadResult = (Lent<LocalState>, Result<Trained, TrainingError>, Observer);

/// Writes snapshots while a window is trained, and ends the training when the process shuts down.
pub(crate) struct Observer {
    pub window: Window,
    pub progress: Progress,
    /// Entries for the journal.
    pub repeated: Vec<Entry>,
    pub reading: Option<Reading>,
    pub shutdown: Arc<ShutdownHandle>,
    pub stop: Arc<AtomicBool>,
}

impl Observer {
    /// Handles the end of the training. If the process shuts down while it waited for data, writes the snapshot that
    /// a step would have written.
    pub fn ended(&mut self, trainer: &Trainer, trained: &Trained) {
        if self.is_leaving() && !self.stop.load(Ordering::Relaxed) && 0 < trained.steps {
            self.stepped(trainer, trained);
        }
    }
}

impl TrainObserver for Observer {
    fn read(&self, of_step: Vec<Vec<u32>>) -> Vec<Vec<u32>> {
        match &self.reading {
            Some(reading) => reading(of_step),
            None => of_step,
        }
    }

    fn is_leaving(&self) -> bool {
        self.shutdown.is_requested()
    }

    fn stepped(&mut self, trainer: &Trainer, trained: &Trained) {
        let written = if self.is_leaving() {
            // The process ends with this step.
            self.stop.store(true, Ordering::Relaxed);
            self.progress.write(trainer, trained)
        } else {
            self.progress.stepped(trainer, trained)
        };
        if let Err(error) = written {
            let (window, error) = (self.window.0, error_chain(&error));
            tracing::error!(
                window,
                error,
                "no snapshot inside the window: a miner killed now repeats the steps since the last one"
            );
        }
    }

    fn repeated(&mut self, step: u32, error: &ModelError) {
        let window = self.window;
        tracing::warn!(window = window.0, step, %error, "{DEVICE_FAULT}");
        self.repeated.push(Entry::Repeated { window, step, found: format!("{error}; {DEVICE_FAULT}") });
    }
}

/// The explanation of a step that succeeds when it is repeated.
const DEVICE_FAULT: &str = "repeated from the same state, the step succeeded: the device had computed wrongly. If it happens again, check its memory, \
                            temperature and clock";
