//! Shutdown of a miner inside a window: with a snapshot, if that is quick.

use daemon::program::StopSignal;
use futures::future::LocalBoxFuture;
use std::{
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};
use tokio::sync::watch;

/// Time that a stopping process waits for the running step and its snapshot.
const SNAPSHOT_WITHIN: Duration = Duration::from_millis(1_500);

/// Connects the process that receives Ctrl-C with the training thread.
#[derive(Debug)]
pub struct ShutdownHandle {
    requested: AtomicBool,
    training: watch::Sender<bool>,
    /// Set when the running training has to end.
    stop: Mutex<Option<Arc<AtomicBool>>>,
}

impl Default for ShutdownHandle {
    fn default() -> ShutdownHandle {
        ShutdownHandle {
            requested: AtomicBool::new(false),
            training: watch::Sender::new(false),
            stop: Mutex::default(),
        }
    }
}

impl ShutdownHandle {
    /// Runs `work` to its end, or until Ctrl-C or the end of `enough`. Then it waits for the running step and its
    /// snapshot, but at most 1.5 seconds and not after a second Ctrl-C. Computations that still run end with the
    /// process.
    ///
    /// # Errors
    /// The error of `work`.
    pub async fn run_until_stopped(
        &self,
        work: LocalBoxFuture<'_, anyhow::Result<()>>,
        enough: LocalBoxFuture<'_, ()>,
    ) -> anyhow::Result<()> {
        let mut stop = StopSignal::listen();
        tokio::select! {
            done = work => return done,
            () = stop.told() => {}
            () = enough => {}
        }
        if self.request() {
            tracing::info!(
                "stopping with a snapshot, if the running step ends soon; a second Ctrl-C stops at once"
            );
            tokio::select! {
                ended = tokio::time::timeout(SNAPSHOT_WITHIN, self.training_ended()) => {
                    if ended.is_err() {
                        tracing::info!("the running step takes too long: the window resumes from its last snapshot");
                    }
                }
                () = stop.told() => {}
            }
        }
        tracing::info!("stopped; the files on the disk are whole, and the next start resumes from them");
        Ok(())
    }

    /// Requests a snapshot after the running step. Returns false if no training runs.
    pub fn request(&self) -> bool {
        self.requested.store(true, Ordering::SeqCst);
        *self.training.borrow()
    }

    pub fn is_requested(&self) -> bool {
        self.requested.load(Ordering::SeqCst)
    }

    /// Waits until the training thread has ended, its snapshot written.
    pub async fn training_ended(&self) {
        // The sender is ours, so the wait does not fail.
        let _ = self.training.subscribe().wait_for(|training| !training).await;
    }

    /// Returns whether the running training has to end, although a step of it may still run.
    pub fn is_training_over(&self) -> bool {
        let stop = self.stop.lock().unwrap_or_else(PoisonError::into_inner);
        stop.as_ref().is_some_and(|stop| stop.load(Ordering::Relaxed))
    }

    /// Sets the flag that ends the training which starts now.
    pub fn ends_with(&self, stop: &Arc<AtomicBool>) {
        *self.stop.lock().unwrap_or_else(PoisonError::into_inner) = Some(stop.clone());
    }

    pub(crate) fn training(&self, training: bool) {
        self.training.send_replace(training);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_request_waits_for_the_training_thread_and_for_nothing_else() {
        let shutdown = Arc::new(ShutdownHandle::default());
        assert!(!shutdown.request(), "nothing is trained");
        shutdown.training_ended().await;
        shutdown.training(true);
        assert!(shutdown.request() && shutdown.is_requested());
        let thread = shutdown.clone();
        let ends = std::thread::spawn(move || thread.training(false));
        shutdown.training_ended().await;
        ends.join().unwrap();
    }
}
