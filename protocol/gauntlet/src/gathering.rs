//! Limits on the contributions that a validator fetches in a window: their number and the deadlines (PROT-13,
//! PROT-14).

use protocol::{Block, RunParams, Window, window::Schedule};

/// Returns the maximum number of seats without a consensus weight that are fetched in one window: twice the places of
/// the merge.
pub fn unweighted_max(params: &RunParams) -> usize {
    2 * (usize::from(params.places) + usize::from(params.reserve_places))
}

/// Deadlines for fetching contributions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GatherDeadlines {
    /// A contribution that is not in its bucket by then is missing.
    pub reveal_by: Block,
    /// Unfinished downloads are cancelled then, or a quarter of a second later if it is `reveal_by`. The rest of the
    /// phase is for attesting.
    pub give_up: Block,
}

impl GatherDeadlines {
    pub fn of(schedule: &Schedule, window: Window) -> GatherDeadlines {
        let reveal_by = schedule.reveal_deadline(window);
        let phase = schedule.attest_deadline(window).0.saturating_sub(reveal_by.0);
        GatherDeadlines { reveal_by, give_up: Block(reveal_by.0.saturating_add(phase / 4)) }
    }
}
