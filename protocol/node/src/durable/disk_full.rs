//! Retries on a full disk: a node that waits an hour for space loses an hour; a node that exits may be found days later.

use crate::error_chain;
use chain_client::{ChainError, Head};
use protocol::Block;
use std::{error::Error, time::Duration};
use tokio::{sync::watch, time::Instant};

/// The first pause; each next one is twice as long, up to the longest. What is tried may write a whole model, so it is not tried often.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);
/// How often it is said that there is still no room.
const SAY_AGAIN: Duration = Duration::from_secs(300);

/// One wait for room, from the first refusal to the end.
#[derive(Debug)]
pub struct DiskFullRetry {
    waiting: Option<Waiting>,
    first_pause: Duration,
}

impl Default for DiskFullRetry {
    fn default() -> DiskFullRetry {
        DiskFullRetry { waiting: None, first_pause: FIRST_PAUSE }
    }
}

#[derive(Debug)]
struct Waiting {
    since: Instant,
    said: Instant,
    /// How long to wait after the next refusal.
    pause: Duration,
}

impl DiskFullRetry {
    /// There was no room, as `error` says. Says so, now and then, and returns how long to wait before the next try.
    pub fn refused(&mut self, error: &dyn Error) -> Duration {
        let now = Instant::now();
        let error = error_chain(error);
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

    /// What was tried went well.
    pub fn found(&mut self) {
        if let Some(waiting) = self.waiting.take() {
            let seconds = waiting.since.elapsed().as_secs();
            tracing::info!(seconds, "the disk has space again: going on");
        }
    }

    /// Tries until there is room for it. What `is_full` does not call a want of room is no reason to try again.
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

    /// Tries `act` until there is space for it, but no longer than until the chain reaches `until`: then it is tried a last time. The pauses
    /// are short at first, even after a long wait, as there may be no time for a long one.
    ///
    /// # Errors
    /// The last error of `act`, which [is full](is_full) if the deadline passed; or that the chain is gone.
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

/// What is done where there is no room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IfFull {
    /// A node's way, which nobody may be looking at.
    Wait,
    /// The way of a command that somebody gave and looks at.
    Fail,
}

impl IfFull {
    /// Writes something; what `is_full` calls a want of room is waited for, or returned.
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

    /// Tries again at once.
    fn hasty() -> DiskFullRetry {
        DiskFullRetry { first_pause: Duration::ZERO, ..DiskFullRetry::default() }
    }

    /// A disk that has no room the first so many times, and counts how often it was tried.
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

    #[tokio::test]
    async fn what_has_no_room_is_tried_until_it_has_and_never_after() {
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
    async fn whoever_is_told_to_stop_while_it_waits_stops() {
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
    async fn what_is_no_want_of_room_is_not_waited_for() {
        let tried = Cell::new(0);
        let refused = retry_while_full(crate::durable::is_full, || -> io::Result<()> {
            tried.set(tried.get() + 1);
            Err(io::ErrorKind::PermissionDenied.into())
        });
        assert_eq!(refused.await.unwrap_err().kind(), io::ErrorKind::PermissionDenied);
        assert_eq!(tried.get(), 1);
    }

    #[tokio::test]
    async fn who_only_reads_does_not_wait() {
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
    async fn with_a_deadline_room_is_waited_for_until_then() {
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
    async fn at_the_deadline_it_is_tried_once_more_and_then_given_up() {
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
    async fn what_waited_long_tries_often_again_where_there_is_a_deadline() {
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
    async fn a_wait_with_a_deadline_ends_with_the_chain_and_with_whatever_else_goes_wrong() {
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
