//! Retries on a full disk: a node that waits for space resumes by itself, but one that exits may be found days later.

use super::is_full;
use crate::error_chain;
use chain_client::{ChainError, Head};
use protocol::Block;
use std::{
    error::Error,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};
use tokio::{sync::watch, time::Instant};

/// First pause; each pause is twice the previous one, up to the longest. Tries are few, because each may write a whole
/// model.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);
/// Number of tries between two log lines about a full disk: about five minutes.
const TRIES_PER_LINE: u32 = 12;

/// Status for `/health`: whether a node waits for space on its disk. Clones share the state.
#[derive(Clone, Debug, Default)]
pub struct DiskStatus(Arc<Mutex<Option<String>>>);

impl DiskStatus {
    /// Returns the error of the write that waits for space, if any.
    pub fn full(&self) -> Option<String> {
        self.error().clone()
    }

    fn error(&self) -> MutexGuard<'_, Option<String>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The retries of one write, visible in a [`DiskStatus`] until the write succeeds or is abandoned.
#[derive(Debug)]
pub struct DiskFullRetry {
    status: DiskStatus,
    since: Option<Instant>,
    tries: u32,
}

impl Drop for DiskFullRetry {
    fn drop(&mut self) {
        if let Some(since) = self.since {
            *self.status.error() = None;
            tracing::warn!(
                seconds = since.elapsed().as_secs(),
                "the disk stayed full: this write was given up"
            );
        }
    }
}

impl DiskFullRetry {
    pub fn new(status: &DiskStatus) -> DiskFullRetry {
        DiskFullRetry { status: status.clone(), since: None, tries: 0 }
    }

    /// Records and logs that the disk is full, with `error`. Returns the pause before the next try.
    pub fn refused(&mut self, error: &dyn Error) -> Duration {
        let error = error_chain(error);
        let seconds = self.since.get_or_insert_with(Instant::now).elapsed().as_secs();
        if self.tries.is_multiple_of(TRIES_PER_LINE) {
            tracing::error!(
                error,
                seconds,
                "the disk is full: make room. Nothing is lost; the node waits, and goes on once there is space"
            );
        }
        *self.status.error() = Some(error);
        let pause = FIRST_PAUSE * 2u32.pow(self.tries.min(5));
        self.tries += 1;
        pause.min(LONGEST_PAUSE)
    }

    /// Records that the write succeeded.
    pub fn found(&mut self) {
        self.tries = 0;
        if let Some(since) = self.since.take() {
            *self.status.error() = None;
            tracing::info!(seconds = since.elapsed().as_secs(), "the disk has space again: going on");
        }
    }

    /// Tries `act` until there is space for it, or until the chain reaches `until`, followed by one last try.
    ///
    /// # Errors
    /// The last error of `act`, which [is full](is_full) if the deadline passed; or the end of the chain's connection.
    pub async fn wait_until<T, E: Error + From<ChainError> + 'static>(
        &mut self,
        until: Block,
        heads: &mut watch::Receiver<Head>,
        mut act: impl AsyncFnMut() -> Result<T, E>,
    ) -> Result<T, E> {
        loop {
            // Read before the try, so that blocks that arrive meanwhile cause one more try, not one less.
            let is_over = until <= heads.borrow().block;
            let full = match act().await {
                Err(full) if is_full(&full) => full,
                done => {
                    self.found();
                    return done;
                }
            };
            let pause = self.refused(&full);
            if is_over {
                return Err(full);
            }
            let there = tokio::time::timeout(pause, heads.wait_for(|head| until <= head.block));
            if let Ok(Err(_)) = there.await {
                return Err(ChainError::Stopped { part: "head follower" }.into());
            }
        }
    }
}

/// Tries `act` until it succeeds or fails for another reason than a full disk.
///
/// # Errors
/// The error of `act` that is not [full](is_full).
pub async fn retry_while_full<T, E: Error + 'static, F: Future<Output = Result<T, E>>>(
    status: &DiskStatus,
    mut act: impl FnMut() -> F,
) -> Result<T, E> {
    let mut retry = DiskFullRetry::new(status);
    loop {
        match act().await {
            Err(full) if is_full(&full) => tokio::time::sleep(retry.refused(&full)).await,
            done => {
                retry.found();
                return done;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use protocol::Digest;
    use std::{cell::Cell, io};

    fn full() -> io::Error {
        io::ErrorKind::StorageFull.into()
    }

    /// A disk that is full for the first tries, and counts them.
    struct Disk {
        full: u32,
        tried: Cell<u32>,
    }

    impl Disk {
        fn full_for(full: u32) -> Disk {
            Disk { full, tried: Cell::new(0) }
        }

        fn write(&self) -> io::Result<&'static str> {
            self.tried.set(self.tried.get() + 1);
            if self.tried.get() <= self.full { Err(full()) } else { Ok("written") }
        }
    }

    #[test]
    fn pauses_grow_and_have_a_bound() {
        let error = full();
        let mut retry = DiskFullRetry::new(&DiskStatus::default());
        let pauses: Vec<u64> = (0..7).map(|_| retry.refused(&error).as_secs()).collect();
        assert_eq!(pauses, [1, 2, 4, 8, 16, 30, 30]);
        retry.found();
        assert_eq!(retry.refused(&error), FIRST_PAUSE, "the next wait begins anew");
    }

    #[test]
    fn the_status_has_the_error_while_a_write_waits() {
        let status = DiskStatus::default();
        let mut retry = DiskFullRetry::new(&status);
        assert_eq!(status.full(), None);
        retry.refused(&full());
        assert_eq!(status.full(), Some(full().to_string()));
        retry.found();
        assert_eq!(status.full(), None);
        retry.refused(&full());
        drop(retry);
        assert_eq!(status.full(), None, "a write that is given up waits no longer");
    }

    #[tokio::test(start_paused = true)]
    async fn a_write_is_retried_while_the_disk_is_full_and_not_after() {
        for times in [0, 1, 20] {
            let (disk, status) = (Disk::full_for(times), DiskStatus::default());
            let written = retry_while_full(&status, || async {
                assert_eq!(status.full().is_some(), disk.tried.get() > 0);
                disk.write()
            });
            assert_eq!(written.await.unwrap(), "written");
            assert_eq!((disk.tried.get(), status.full()), (times + 1, None));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_retry_ends_when_its_future_is_dropped() {
        let (disk, status) = (Disk::full_for(u32::MAX), DiskStatus::default());
        let (tell, told) = tokio::sync::oneshot::channel();
        let mut tell = Some(tell);
        let waiting = retry_while_full(&status, || {
            if disk.tried.get() == 5 {
                tell.take().into_iter().for_each(|tell| tell.send(()).unwrap());
            }
            std::future::ready(disk.write())
        });
        tokio::select! {
            done = waiting => panic!("{done:?}"),
            told = told => told.unwrap(),
        }
        assert!(5 < disk.tried.get());
        assert_eq!(status.full(), None);
    }

    #[tokio::test(start_paused = true)]
    async fn another_error_is_not_retried() {
        let tried = Cell::new(0);
        let status = DiskStatus::default();
        let refused = retry_while_full(&status, || {
            tried.set(tried.get() + 1);
            std::future::ready(io::Result::<()>::Err(io::ErrorKind::PermissionDenied.into()))
        });
        assert_eq!(refused.await.unwrap_err().kind(), io::ErrorKind::PermissionDenied);
        assert_eq!(tried.get(), 1);
    }

    const UNTIL: Block = Block(9);

    fn head(block: u32) -> Head {
        Head { block: Block(block), hash: Digest::default() }
    }

    #[derive(Debug, thiserror::Error)]
    enum WriteError {
        #[error("full")]
        Full(#[from] io::Error),
        #[error("chain")]
        Chain(#[from] ChainError),
    }

    fn retry() -> DiskFullRetry {
        DiskFullRetry::new(&DiskStatus::default())
    }

    type Waited = Result<&'static str, WriteError>;

    #[tokio::test(start_paused = true)]
    async fn a_write_is_retried_until_its_deadline() {
        for times in [0, 1, 20] {
            let (_chain, mut heads) = watch::channel(head(3));
            let disk = Disk::full_for(times);
            let done: Waited = retry().wait_until(UNTIL, &mut heads, async || Ok(disk.write()?)).await;
            assert_eq!(done.unwrap(), "written");
            assert_eq!(disk.tried.get(), times + 1);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn at_the_deadline_a_write_is_tried_a_last_time() {
        // The chain reaches the deadline during the fourth try.
        for (times, written) in [(u32::MAX, false), (4, true)] {
            let (chain, mut heads) = watch::channel(head(3));
            let disk = Disk::full_for(times);
            let act = async || {
                if disk.tried.get() == 3 {
                    chain.send(head(UNTIL.0)).unwrap();
                }
                Ok(disk.write()?)
            };
            let done: Waited = retry().wait_until(UNTIL, &mut heads, act).await;
            assert_eq!(done.is_ok(), written);
            assert_eq!(disk.tried.get(), 5);
        }
        // One try if the deadline has passed at the start.
        let (_chain, mut heads) = watch::channel(head(UNTIL.0 + 1));
        for (times, written) in [(u32::MAX, false), (0, true)] {
            let disk = Disk::full_for(times);
            let done: Waited = retry().wait_until(UNTIL, &mut heads, async || Ok(disk.write()?)).await;
            assert_eq!(done.is_ok(), written);
            assert_eq!(disk.tried.get(), 1);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_retry_with_a_deadline_ends_with_the_chain_and_with_other_errors() {
        let (chain, mut heads) = watch::channel(head(3));
        drop(chain);
        let gone: Waited = retry().wait_until(UNTIL, &mut heads, async || Err(full().into())).await;
        assert!(matches!(gone, Err(WriteError::Chain(ChainError::Stopped { .. }))), "{gone:?}");

        let (_chain, mut heads) = watch::channel(head(3));
        let wrong = async || Err(ChainError::Stopped { part: "test" }.into());
        let ended: Waited = retry().wait_until(UNTIL, &mut heads, wrong).await;
        assert!(matches!(ended, Err(WriteError::Chain(ChainError::Stopped { part: "test" }))), "{ended:?}");
    }
}
