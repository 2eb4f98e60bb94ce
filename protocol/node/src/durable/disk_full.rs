//! Retries on a full disk: a node that waits an hour for space loses an hour; a node that exits may be found days
//! later.

use crate::error_chain;
use chain_client::{ChainError, Head};
use protocol::Block;
use std::{
    error::Error,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};
use tokio::{sync::watch, time::Instant};

/// The first pause; each next one is twice as long, up to the longest. A try may write a whole model, so there are
/// few.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);
/// Between two log lines that the disk is still full.
const SAY_AGAIN: Duration = Duration::from_secs(300);

/// Whether a node waits for space on its disk, for `/health`. Clones share the state.
#[derive(Clone, Debug, Default)]
pub struct DiskStatus(Arc<Mutex<Option<String>>>);

impl DiskStatus {
    /// The error of the write that waits for space; `None` if none does.
    pub fn full(&self) -> Option<String> {
        self.error().clone()
    }

    fn error(&self) -> MutexGuard<'_, Option<String>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The retries of one write, from the first refusal to the end.
#[derive(Debug)]
pub struct DiskFullRetry {
    waiting: Option<Waiting>,
    first_pause: Duration,
    status: DiskStatus,
}

impl Default for DiskFullRetry {
    fn default() -> DiskFullRetry {
        DiskFullRetry::new(&DiskStatus::default())
    }
}

impl Drop for DiskFullRetry {
    fn drop(&mut self) {
        // A write that was given up waits no longer.
        if self.waiting.is_some() {
            *self.status.error() = None;
        }
    }
}

#[derive(Debug)]
struct Waiting {
    since: Instant,
    said: Instant,
    /// The pause after the next refusal.
    pause: Duration,
}

impl DiskFullRetry {
    /// Retries that show in `status`.
    pub fn new(status: &DiskStatus) -> DiskFullRetry {
        DiskFullRetry { waiting: None, first_pause: FIRST_PAUSE, status: status.clone() }
    }

    /// Records and logs that the disk is full, with `error`. Returns the pause before the next try.
    pub fn refused(&mut self, error: &dyn Error) -> Duration {
        let now = Instant::now();
        let error = error_chain(error);
        *self.status.error() = Some(error.clone());
        let Some(waiting) = &mut self.waiting else {
            tracing::error!(
                error,
                "the disk is full: make room. Nothing is lost; the node waits, and goes on once there is space"
            );
            self.waiting = Some(Waiting { since: now, said: now, pause: 2 * self.first_pause });
            return self.first_pause;
        };
        if SAY_AGAIN <= now - waiting.said {
            waiting.said = now;
            let seconds = (now - waiting.since).as_secs();
            tracing::error!(error, seconds, "the disk is still full");
        }
        let pause = LONGEST_PAUSE.min(waiting.pause);
        waiting.pause = 2 * pause;
        pause
    }

    /// Records that the write succeeded.
    pub fn found(&mut self) {
        if let Some(waiting) = self.waiting.take() {
            *self.status.error() = None;
            let seconds = waiting.since.elapsed().as_secs();
            tracing::info!(seconds, "the disk has space again: going on");
        }
    }

    /// Tries `act` again until it fails with no error that `is_full` accepts.
    pub async fn wait<T, E: Error>(
        &mut self,
        is_full: impl Fn(&E) -> bool,
        mut act: impl FnMut() -> Result<T, E>,
    ) -> Result<T, E> {
        loop {
            match act() {
                Err(full) if is_full(&full) => tokio::time::sleep(self.refused(&full)).await,
                done => {
                    self.found();
                    return done;
                }
            }
        }
    }

    /// Tries `act` until there is space for it, but no longer than until the chain reaches `until`: then it is tried a
    /// last time. The pauses are short at first, even after a long wait, as there may be no time for a long one.
    ///
    /// # Errors
    /// The last error of `act`, for which `is_full` holds if the deadline passed; or that the chain is gone.
    pub async fn wait_until<T, E: Error + From<ChainError>>(
        &mut self,
        until: Block,
        heads: &mut watch::Receiver<Head>,
        is_full: impl Fn(&E) -> bool,
        mut act: impl AsyncFnMut() -> Result<T, E>,
    ) -> Result<T, E> {
        if let Some(waiting) = &mut self.waiting {
            waiting.pause = self.first_pause;
        }
        loop {
            // Read before the try: blocks that come meanwhile make for one try more, not for one less.
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

/// Tries `act` again until it fails with no error that `is_full` accepts.
pub async fn retry_while_full<T, E: Error>(
    is_full: impl Fn(&E) -> bool,
    act: impl FnMut() -> Result<T, E>,
) -> Result<T, E> {
    DiskFullRetry::default().wait(is_full, act).await
}

/// What to do if the disk is full.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IfFull {
    /// Retry: a node may run unattended.
    Wait,
    /// Fail: a command reports to its user.
    Fail,
}

impl IfFull {
    /// Runs `act`; retries or returns an error that `is_full` accepts.
    pub async fn write<T, E: Error>(
        self,
        is_full: impl Fn(&E) -> bool,
        mut act: impl FnMut() -> Result<T, E>,
    ) -> Result<T, E> {
        match self {
            IfFull::Wait => retry_while_full(is_full, act).await,
            IfFull::Fail => act(),
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

    /// Retries at once.
    fn hasty() -> DiskFullRetry {
        {
            let mut retry = DiskFullRetry::default();
            retry.first_pause = Duration::ZERO;
            retry
        }
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
        let mut disk_full_retry = DiskFullRetry::default();
        let pauses: Vec<u64> = (0..7).map(|_| disk_full_retry.refused(&error).as_secs()).collect();
        assert_eq!(pauses, [1, 2, 4, 8, 16, 30, 30]);
        disk_full_retry.found();
        assert_eq!(disk_full_retry.refused(&error), FIRST_PAUSE, "the next wait begins anew");
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

    #[tokio::test]
    async fn a_write_is_retried_while_the_disk_is_full_and_not_after() {
        for times in [0, 1, 20] {
            let disk = Disk::full_for(times);
            let mut disk_full_retry = hasty();
            assert_eq!(
                disk_full_retry.wait(crate::durable::is_full, || disk.write()).await.unwrap(),
                "written"
            );
            assert_eq!(disk.tried.get(), times + 1);
            assert!(disk_full_retry.waiting.is_none());
        }
    }

    #[tokio::test]
    async fn a_retry_ends_when_its_future_is_dropped() {
        let disk = Disk::full_for(u32::MAX);
        let (tell, told) = tokio::sync::oneshot::channel();
        let mut tell = Some(tell);
        let mut disk_full_retry = hasty();
        let waiting = disk_full_retry.wait(crate::durable::is_full, || {
            if disk.tried.get() == 5 {
                tell.take().into_iter().for_each(|tell| tell.send(()).unwrap());
            }
            disk.write()
        });
        tokio::select! {
            done = waiting => panic!("{done:?}"),
            told = told => told.unwrap(),
        }
        assert!(5 < disk.tried.get());
    }

    #[tokio::test]
    async fn another_error_is_not_retried() {
        let tried = Cell::new(0);
        let refused = retry_while_full(crate::durable::is_full, || -> io::Result<()> {
            tried.set(tried.get() + 1);
            Err(io::ErrorKind::PermissionDenied.into())
        });
        assert_eq!(refused.await.unwrap_err().kind(), io::ErrorKind::PermissionDenied);
        assert_eq!(tried.get(), 1);
    }

    #[tokio::test]
    async fn a_read_only_command_fails_at_once() {
        let disk = Disk::full_for(1);
        let refused = IfFull::Fail.write(crate::durable::is_full, || disk.write()).await;
        assert!(crate::durable::is_full(&refused.unwrap_err()));
        assert_eq!(disk.tried.get(), 1);
        assert_eq!(IfFull::Wait.write(crate::durable::is_full, || disk.write()).await.unwrap(), "written");
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

    fn is_full(error: &WriteError) -> bool {
        matches!(error, WriteError::Full(_))
    }

    type Waited = Result<&'static str, WriteError>;

    #[tokio::test]
    async fn a_write_is_retried_until_its_deadline() {
        for times in [0, 1, 20] {
            let (_chain, mut heads) = watch::channel(head(3));
            let disk = Disk::full_for(times);
            let done: Waited =
                hasty().wait_until(UNTIL, &mut heads, is_full, async || Ok(disk.write()?)).await;
            assert_eq!(done.unwrap(), "written");
            assert_eq!(disk.tried.get(), times + 1);
        }
    }

    #[tokio::test]
    async fn at_the_deadline_a_write_is_tried_a_last_time() {
        // The chain gets there while the fourth try is made.
        for (times, written) in [(u32::MAX, false), (4, true)] {
            let (chain, mut heads) = watch::channel(head(3));
            let disk = Disk::full_for(times);
            let act = async || {
                if disk.tried.get() == 3 {
                    chain.send(head(UNTIL.0)).unwrap();
                }
                Ok(disk.write()?)
            };
            let done: Waited = hasty().wait_until(UNTIL, &mut heads, is_full, act).await;
            assert_eq!(done.is_ok(), written);
            assert_eq!(disk.tried.get(), 5);
        }
        // And once where it is over before it begins.
        let (_chain, mut heads) = watch::channel(head(UNTIL.0 + 1));
        for (times, written) in [(u32::MAX, false), (0, true)] {
            let disk = Disk::full_for(times);
            let done: Waited =
                hasty().wait_until(UNTIL, &mut heads, is_full, async || Ok(disk.write()?)).await;
            assert_eq!(done.is_ok(), written);
            assert_eq!(disk.tried.get(), 1);
        }
    }

    #[tokio::test]
    async fn a_deadline_makes_the_pauses_short_again() {
        let (_chain, mut heads) = watch::channel(head(UNTIL.0));
        let mut disk_full_retry = DiskFullRetry::default();
        for _ in 0..7 {
            disk_full_retry.refused(&full());
        }
        let done: Waited =
            disk_full_retry.wait_until(UNTIL, &mut heads, is_full, async || Err(full().into())).await;
        assert!(done.is_err_and(|error| is_full(&error)));
        assert_eq!(disk_full_retry.refused(&full()), 2 * FIRST_PAUSE, "the first one was waited for already");
    }

    #[tokio::test]
    async fn a_retry_with_a_deadline_ends_with_the_chain_and_with_other_errors() {
        let (chain, mut heads) = watch::channel(head(3));
        drop(chain);
        let gone: Waited = DiskFullRetry::default()
            .wait_until(UNTIL, &mut heads, is_full, async || Err(full().into()))
            .await;
        assert!(matches!(gone, Err(WriteError::Chain(ChainError::Stopped { .. }))), "{gone:?}");

        let (_chain, mut heads) = watch::channel(head(3));
        let wrong = async || Err(ChainError::Stopped { part: "test" }.into());
        let ended: Waited = DiskFullRetry::default().wait_until(UNTIL, &mut heads, is_full, wrong).await;
        assert!(matches!(ended, Err(WriteError::Chain(ChainError::Stopped { part: "test" }))), "{ended:?}");
    }
}
