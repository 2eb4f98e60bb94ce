//! The clock of a run: blocks, windows, and the phases inside a window (PROT-1).
//!
//! No rule reads a wall clock. A deadline is a block height, and whatever was included by then is in time.

use codec::{Decode, DecodeWithMemTracking, Encode, MaxEncodedLen};
use core::fmt;
use scale_info::TypeInfo;
use serde::{Deserialize, Serialize};

/// A height of the chain. It is not a window: only [`Schedule`] converts between the two.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[derive(Encode, Decode, DecodeWithMemTracking, MaxEncodedLen, TypeInfo, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Block(pub u32);

/// A fixed number of blocks in which every node holds the same model. Counted from the run's first block.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[derive(Encode, Decode, DecodeWithMemTracking, MaxEncodedLen, TypeInfo, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Window(pub u32);

/// Opening blocks of a run's windows, and the deadlines of a window's steps (PROT-1).
///
/// The four deadlines are offsets from the window's first block: what is included in a block whose offset is *at most*
/// the deadline is in time. `0 < commit_by < reveal_by < attest_by < vote_by < blocks_per_window`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[derive(Encode, Decode, DecodeWithMemTracking, MaxEncodedLen, TypeInfo, Serialize, Deserialize)]
pub struct Schedule {
    /// The first block of window 0.
    pub start: Block,
    pub blocks_per_window: u32,
    pub commit_by: u32,
    pub reveal_by: u32,
    pub attest_by: u32,
    pub vote_by: u32,
}

/// Step that a window waits for at a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Phase {
    /// Miners train, and commit the digest of their contribution.
    Commit,
    /// Miners upload the bytes they committed to.
    Reveal,
    /// Validators attest which contributions they could fetch and decode.
    Attest,
    /// The selection is fixed; validators merge it and vote on the result.
    Vote,
    /// The window is fixed; nodes fetch the update while finality catches up.
    Finalise,
}

impl Schedule {
    /// Returns whether the deadlines are in ascending order.
    pub fn is_valid(&self) -> bool {
        let Schedule { commit_by, reveal_by, attest_by, vote_by, blocks_per_window, .. } = *self;
        [0, commit_by, reveal_by, attest_by, vote_by, blocks_per_window].is_sorted_by(|a, b| a < b)
    }

    /// Returns the window of `block` and the block's offset inside it; `None` before the run starts.
    pub fn locate(&self, block: Block) -> Option<(Window, u32)> {
        let since_start = block.0.checked_sub(self.start.0)?;
        let window = since_start.checked_div(self.blocks_per_window)?;
        Some((Window(window), since_start.checked_rem(self.blocks_per_window)?))
    }

    pub fn window_at(&self, block: Block) -> Option<Window> {
        self.locate(block).map(|(window, _)| window)
    }

    pub fn phase_at(&self, block: Block) -> Option<(Window, Phase)> {
        let (window, offset) = self.locate(block)?;
        let deadlines = [
            (self.commit_by, Phase::Commit),
            (self.reveal_by, Phase::Reveal),
            (self.attest_by, Phase::Attest),
            (self.vote_by, Phase::Vote),
        ];
        let phase = deadlines.into_iter().find(|(deadline, _)| offset <= *deadline);
        Some((window, phase.map_or(Phase::Finalise, |(_, phase)| phase)))
    }

    /// Returns the first block of `window`. Saturates at the last block that a chain can have, far beyond any run.
    pub fn opens_at(&self, window: Window) -> Block {
        self.block_of(window, 0)
    }

    /// Returns the last block in which a commitment for `window` counts (PROT-11).
    pub fn commit_deadline(&self, window: Window) -> Block {
        self.block_of(window, self.commit_by)
    }

    /// Returns the block that deals the data of the window after `window` (PROT-5): an eighth of the training time
    /// before the commit deadline. So a miner that has committed continues with the next window's data, and none is
    /// far ahead of its model.
    pub fn deals_next_at(&self, window: Window) -> Block {
        self.block_of(window, self.deal_offset())
    }

    /// Returns the offset of [`Schedule::deals_next_at`]: after the opening's tasks.
    pub fn deal_offset(&self) -> u32 {
        self.commit_by.saturating_sub(self.commit_by / 8).max(2)
    }

    /// Returns the last block by which the committed bytes must be uploaded (PROT-11).
    pub fn reveal_deadline(&self, window: Window) -> Block {
        self.block_of(window, self.reveal_by)
    }

    /// Returns the last block in which an attestation for `window` counts (PROT-14).
    pub fn attest_deadline(&self, window: Window) -> Block {
        self.block_of(window, self.attest_by)
    }

    /// Returns the last block in which a vote for `window` counts; one block later the window is fixed (PROT-19).
    pub fn vote_deadline(&self, window: Window) -> Block {
        self.block_of(window, self.vote_by)
    }

    fn block_of(&self, window: Window, offset: u32) -> Block {
        let into_run = window.0.saturating_mul(self.blocks_per_window).saturating_add(offset);
        Block(self.start.0.saturating_add(into_run))
    }
}

impl Phase {
    /// Returns the phase's name in JSON and in metrics.
    pub fn label(self) -> &'static str {
        match self {
            Phase::Commit => "commit",
            Phase::Reveal => "reveal",
            Phase::Attest => "attest",
            Phase::Vote => "vote",
            Phase::Finalise => "finalise",
        }
    }
}

impl Window {
    pub const FIRST: Window = Window(0);

    /// Returns the window whose model is made from this one's contributions.
    pub fn next(self) -> Window {
        Window(self.0.saturating_add(1))
    }

    /// Returns the previous window, if there is one.
    pub fn previous(self) -> Option<Window> {
        self.0.checked_sub(1).map(Window)
    }

    /// Returns the epoch of the window: weights are posted and pay is shared once in each.
    pub fn epoch(self, epoch_windows: u32) -> u32 {
        self.0 / epoch_windows.max(1)
    }
}

impl fmt::Display for Block {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "#{}", self.0)
    }
}

/// Fixed width, so that object names sort by time.
impl fmt::Display for Window {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:08}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const SCHEDULE: Schedule = Schedule {
        start: Block(10),
        blocks_per_window: 20,
        commit_by: 8,
        reveal_by: 11,
        attest_by: 14,
        vote_by: 17,
    };

    #[track_caller]
    fn check(block: u32, expected: Option<(u32, Phase)>) {
        assert_eq!(SCHEDULE.phase_at(Block(block)), expected.map(|(window, phase)| (Window(window), phase)));
    }

    #[test]
    fn a_deadline_is_the_last_block_in_time() {
        check(9, None);
        check(10, Some((0, Phase::Commit)));
        check(18, Some((0, Phase::Commit)));
        check(19, Some((0, Phase::Reveal)));
        check(21, Some((0, Phase::Reveal)));
        check(22, Some((0, Phase::Attest)));
        check(25, Some((0, Phase::Vote)));
        check(27, Some((0, Phase::Vote)));
        check(28, Some((0, Phase::Finalise)));
        check(29, Some((0, Phase::Finalise)));
        check(30, Some((1, Phase::Commit)));
    }

    #[test]
    fn the_next_window_is_dealt_after_the_opening_and_before_the_commitments_count() {
        for commit_by in 1..200 {
            let deal = Schedule { commit_by, ..SCHEDULE }.deal_offset();
            assert!((2..commit_by + 2).contains(&deal), "{commit_by}: {deal}");
        }
        assert_eq!(Schedule { commit_by: 80, ..SCHEDULE }.deals_next_at(Window(2)), Block(10 + 2 * 20 + 70));
    }

    #[test]
    fn deadlines_out_of_order_are_refused() {
        assert!(SCHEDULE.is_valid());
        for broken in [
            Schedule { commit_by: 0, ..SCHEDULE },
            Schedule { reveal_by: 8, ..SCHEDULE },
            Schedule { attest_by: 11, ..SCHEDULE },
            Schedule { vote_by: 14, ..SCHEDULE },
            Schedule { blocks_per_window: 17, ..SCHEDULE },
        ] {
            assert!(!broken.is_valid());
        }
    }

    proptest! {
        #[test]
        fn every_block_is_in_exactly_the_window_that_opens_before_it(block in 10u32..1_000_000) {
            let (window, offset) = SCHEDULE.locate(Block(block)).unwrap();
            prop_assert_eq!(SCHEDULE.opens_at(window).0 + offset, block);
            prop_assert!(block < SCHEDULE.opens_at(window.next()).0);
        }
    }
}
