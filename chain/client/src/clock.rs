//! The clock of a run: finalised blocks (PROT-1).

use crate::{ChainError, Head};
use protocol::{Block, Schedule, Window};
use tokio::sync::watch;

/// Waits for finalised blocks.
///
/// While the chain is unreachable, the clock stops.
#[derive(Clone, Debug)]
pub struct WindowClock {
    heads: watch::Receiver<Head>,
}

impl WindowClock {
    pub fn new(heads: watch::Receiver<Head>) -> WindowClock {
        WindowClock { heads }
    }

    /// The latest finalised block.
    pub fn current(&self) -> Head {
        *self.heads.borrow()
    }

    /// Waits until `block` is finalised, and returns the latest finalised block: `block` itself or a later one.
    pub async fn wait_for(&mut self, block: Block) -> Result<Head, ChainError> {
        let head = self.heads.wait_for(|head| head.block >= block).await;
        head.map(|head| *head).map_err(|_| ChainError::Stopped { part: "follower of finalised blocks" })
    }

    /// Waits until `window` of a run with this schedule has opened.
    pub async fn wait_for_window(&mut self, schedule: &Schedule, window: Window) -> Result<Head, ChainError> {
        self.wait_for(schedule.opens_at(window)).await
    }

    /// Waits for a block later than [`WindowClock::current`] was when this was last called.
    pub async fn tick(&mut self) -> Result<Head, ChainError> {
        self.heads
            .changed()
            .await
            .map_err(|_| ChainError::Stopped { part: "follower of finalised blocks" })?;
        Ok(*self.heads.borrow_and_update())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use protocol::Digest;

    fn head(block: u32) -> Head {
        Head { block: Block(block), hash: Digest::of(&block.to_le_bytes()) }
    }

    #[tokio::test]
    async fn the_clock_waits_for_a_block_and_returns_the_latest() {
        let (tell, heads) = watch::channel(head(3));
        let mut clock = WindowClock::new(heads);
        assert_eq!(clock.current(), head(3));
        assert_eq!(clock.wait_for(Block(2)).await, Ok(head(3)));

        let waiting = tokio::spawn(async move { clock.wait_for(Block(10)).await });
        tell.send_replace(head(9));
        tell.send_replace(head(12));
        assert_eq!(waiting.await.unwrap(), Ok(head(12)));
    }

    #[tokio::test]
    async fn a_window_is_open_once_its_first_block_is_final() {
        let (tell, heads) = watch::channel(head(0));
        let mut clock = WindowClock::new(heads);
        let schedule = protocol::RunParams::default().schedule;
        tell.send_replace(head(116));
        assert_eq!(clock.wait_for_window(&schedule, Window(1)).await, Ok(head(116)));
    }

    #[tokio::test]
    async fn a_clock_without_a_client_is_an_error() {
        let (tell, heads) = watch::channel(head(3));
        let mut clock = WindowClock::new(heads);
        drop(tell);
        assert!(matches!(clock.wait_for(Block(4)).await, Err(ChainError::Stopped { .. })));
        assert!(matches!(clock.tick().await, Err(ChainError::Stopped { .. })));
    }
}
