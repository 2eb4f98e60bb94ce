//! Runs computations on the whole model off the executor.
//!
//! Merging, applying, hashing, encoding, loading and saving take seconds for a model of a billion parameters. On the
//! executor they would keep `/health`, peers and Ctrl-C waiting. A program runs them on a pool of threads; a simulation
//! runs them inline or by an executor of its own, so that the order of events does not depend on threads.

use futures::future::{self, BoxFuture, Either};
use std::{
    any::Any,
    fmt,
    ops::{Deref, DerefMut},
    panic::{self, AssertUnwindSafe},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
};
use tokio::task::{JoinError, JoinHandle};

/// Place in which blocking work runs.
#[derive(Clone, Copy, Debug, Default)]
pub enum Blocking {
    /// On tokio's threads for blocking work.
    #[default]
    Pool,
    /// Immediately, on the calling thread.
    Inline,
    /// At the place and time that the executor chooses.
    By(&'static dyn Executor),
}

/// Runs blocking work for many nodes of one process.
pub trait Executor: fmt::Debug + Send + Sync {
    /// Takes `work`. The future completes after the work, which has ended by the time the future is dropped.
    fn start(&'static self, work: Box<dyn FnOnce() + Send>) -> BoxFuture<'static, ()>;

    /// Waits until all work that was taken has ended.
    fn finish(&self);
}

/// The result of the work, or its panic payload.
type Slot<T> = Arc<Mutex<Option<Result<T, Box<dyn Any + Send>>>>>;

impl Blocking {
    /// Starts `work` and returns a future of its result. Dropping the future does not stop the work.
    pub fn start<T: Send + 'static>(self, work: impl FnOnce() -> T + Send + 'static) -> Work<T> {
        match self {
            Blocking::Pool => Either::Left(tokio::task::spawn_blocking(work)),
            Blocking::Inline => Either::Right(Box::pin(future::ready(Ok(work())))),
            Blocking::By(executor) => {
                let slot: Slot<T> = Arc::default();
                let filled = slot.clone();
                let ended = executor.start(Box::new(move || {
                    let result = panic::catch_unwind(AssertUnwindSafe(work));
                    *filled.lock().unwrap_or_else(PoisonError::into_inner) = Some(result);
                }));
                Either::Right(Box::pin(async move {
                    ended.await;
                    let result = slot.lock().unwrap_or_else(PoisonError::into_inner).take();
                    match result.expect("an executor's future ends after the work") {
                        Ok(value) => Ok(value),
                        Err(panicked) => panic::resume_unwind(panicked),
                    }
                }))
            }
        }
    }

    /// Sets `flag`, which tells running work to stop. Work given to an executor is finished first, so that its result
    /// does not depend on the progress of a thread.
    pub fn stop(self, flag: &AtomicBool) {
        if let Blocking::By(executor) = self {
            executor.finish();
        }
        flag.store(true, Ordering::Relaxed);
    }

    /// Runs `work` and returns its result.
    ///
    /// # Panics
    /// If `work` panics.
    pub async fn run<T: Send + 'static>(self, work: impl FnOnce() -> T + Send + 'static) -> T {
        match self.start(work).await {
            Ok(value) => value,
            Err(died) => match died.try_into_panic() {
                Ok(panic) => std::panic::resume_unwind(panic),
                // The runtime is shutting down and drops this future next.
                Err(_) => std::future::pending().await,
            },
        }
    }

    /// Runs `work` on `value`, which moves to the thread and back.
    ///
    /// # Cancel safety
    /// If the future is dropped meanwhile, `value` is left at its default.
    ///
    /// # Panics
    /// If `work` panics.
    pub async fn with<V, T>(self, value: &mut V, work: impl FnOnce(&mut V) -> T + Send + 'static) -> T
    where
        V: Default + Send + 'static,
        T: Send + 'static,
    {
        let mut taken = std::mem::take(value);
        let (back, result) = self
            .run(move || {
                let result = work(&mut taken);
                (taken, result)
            })
            .await;
        *value = back;
        result
    }
}

/// The thread of a [`Work`] panicked, or the runtime is shutting down.
pub type WorkDied = JoinError;

/// The result of a running computation, as a future.
pub type Work<T> = Either<JoinHandle<T>, BoxFuture<'static, Result<T, WorkDied>>>;

/// A value that can be lent to a thread and is absent meanwhile, for types without a default.
///
/// # Panics
/// On every access while the value is lent.
#[derive(Debug)]
pub struct Lent<T>(Option<T>);

impl<T> Lent<T> {
    pub fn new(value: T) -> Lent<T> {
        Lent(Some(value))
    }

    /// Returns whether the value is present.
    pub fn is_here(&self) -> bool {
        self.0.is_some()
    }

    /// Takes the value out. The caller returns it by assigning a new `Lent`.
    pub fn take(&mut self) -> Option<T> {
        self.0.take()
    }
}

impl<T> Default for Lent<T> {
    fn default() -> Lent<T> {
        Lent(None)
    }
}

const AWAY: &str = "the value is back before its owner goes on";

impl<T> Deref for Lent<T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.0.as_ref().expect(AWAY)
    }
}

impl<T> DerefMut for Lent<T> {
    fn deref_mut(&mut self) -> &mut T {
        self.0.as_mut().expect(AWAY)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::FutureExt as _;
    use std::sync::mpsc;

    #[tokio::test]
    async fn the_executor_goes_on_while_a_thread_computes() {
        // Ends only after the executor has sent, so it would never end on the executor's own thread.
        let (send, receive) = mpsc::sync_channel::<u32>(1);
        let mut work = Blocking::Pool.start(move || receive.recv().unwrap());
        tokio::task::yield_now().await;
        assert!((&mut work).now_or_never().is_none());
        send.send(7).unwrap();
        assert_eq!(work.await.unwrap(), 7);
    }

    #[test]
    fn inline_work_is_done_when_start_returns_and_needs_no_runtime() {
        assert_eq!(Blocking::Inline.start(|| 3).now_or_never().unwrap().unwrap(), 3);
    }

    #[tokio::test]
    async fn a_value_comes_back_changed_from_either_place() {
        for blocking in [Blocking::Pool, Blocking::Inline] {
            let mut values = vec![1, 2];
            let count = blocking.with(&mut values, |values| {
                values.push(3);
                values.len()
            });
            assert_eq!(count.await, 3);
            assert_eq!(values, [1, 2, 3]);
            let mut lent = Lent::new(std::num::NonZero::<u8>::MIN);
            blocking.with(&mut lent, |lent| **lent = lent.saturating_add(1)).await;
            assert_eq!(lent.get(), 2);
        }
    }

    #[tokio::test]
    async fn a_panic_of_started_work_is_an_error() {
        let died = Blocking::Pool.start(|| -> u32 { panic!("on purpose") }).await;
        assert!(died.is_err());
    }

    #[tokio::test]
    #[should_panic(expected = "on purpose")]
    async fn a_panic_of_awaited_work_is_a_panic() {
        Blocking::Pool.run(|| -> u32 { panic!("on purpose") }).await;
    }
}
