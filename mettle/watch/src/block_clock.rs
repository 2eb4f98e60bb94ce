//! The time until a window opens, as text.

use chain_client::{Chain, ChainError};
use protocol::{Block, Schedule, Window};
use std::time::Duration;

/// A run's schedule, its latest block, and the block time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockClock {
    pub block: Block,
    pub schedule: Schedule,
    pub block_time: Duration,
}

impl BlockClock {
    /// Reads the latest block and the block time.
    ///
    /// # Errors
    /// If the chain does not answer.
    pub async fn read(chain: &dyn Chain, schedule: Schedule) -> Result<BlockClock, ChainError> {
        let block = chain.heads().borrow().block;
        Ok(BlockClock { block, schedule, block_time: chain.block_time().await? })
    }

    /// Returns the window that opens next.
    pub fn next_window(&self) -> Window {
        self.schedule.window_at(self.block).map_or(Window(0), |window| window.next())
    }

    /// Describes when a window opens: "window 212, in about 2 d 3 h", or "window 12, which is open or past".
    pub fn until(&self, window: Window) -> String {
        let number = window.0;
        match self.blocks_until(window) {
            0 => format!("window {number}, which is open or past"),
            blocks => format!("window {number}, in about {}", self.blocks(blocks)),
        }
    }

    /// Describes a number of windows with their duration: "200 windows, about 2 d 3 h".
    pub fn windows(&self, windows: u32) -> String {
        let blocks = u64::from(windows).saturating_mul(self.schedule.blocks_per_window.into());
        let plural = if windows == 1 { "" } else { "s" };
        format!("{windows} window{plural}, about {}", self.blocks(blocks))
    }

    fn blocks_until(&self, window: Window) -> u64 {
        self.schedule.opens_at(window).0.saturating_sub(self.block.0).into()
    }

    /// Formats the duration of a number of blocks: "2 d 3 h".
    pub fn blocks(&self, blocks: u64) -> String {
        let millis = self.block_time.as_millis().saturating_mul(blocks.into());
        span(u64::try_from(millis / 1000).unwrap_or(u64::MAX))
    }
}

/// Formats seconds in their two largest units.
pub fn span(seconds: u64) -> String {
    const UNITS: [(&str, u64); 4] = [("d", 86_400), ("h", 3600), ("min", 60), ("s", 1)];
    let large = UNITS.iter().position(|(_, unit)| seconds >= *unit).unwrap_or(UNITS.len() - 1);
    let (name, unit) = UNITS[large];
    let first = format!("{} {name}", seconds / unit);
    match UNITS.get(large + 1) {
        Some((name, smaller)) if (seconds % unit) / smaller > 0 => {
            format!("{first} {} {name}", (seconds % unit) / smaller)
        }
        _ => first,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_span_is_shown_in_its_two_largest_units() {
        for (seconds, text) in [
            (0, "0 s"),
            (59, "59 s"),
            (60, "1 min"),
            (61, "1 min 1 s"),
            (3600, "1 h"),
            (3661, "1 h 1 min"),
            (200_000, "2 d 7 h"),
        ] {
            assert_eq!(span(seconds), text);
        }
    }

    #[test]
    fn the_time_until_a_window_is_that_until_its_first_block() {
        let schedule = Schedule {
            start: Block(100),
            blocks_per_window: 20,
            commit_by: 10,
            reveal_by: 12,
            attest_by: 14,
            vote_by: 16,
        };
        let clock = |block| BlockClock { block: Block(block), schedule, block_time: Duration::from_secs(6) };
        assert_eq!(clock(0).next_window(), Window(0));
        assert_eq!(clock(0).until(Window(0)), "window 0, in about 10 min");
        assert_eq!(clock(125).next_window(), Window(2));
        assert_eq!(clock(125).until(Window(2)), "window 2, in about 1 min 30 s");
        assert_eq!(clock(125).until(Window(1)), "window 1, which is open or past");
        assert_eq!(clock(125).windows(30), "30 windows, about 1 h");
        assert_eq!(clock(125).windows(1), "1 window, about 2 min");
    }
}
