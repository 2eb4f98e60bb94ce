//! Reports of the reasons for each seat's score and weight, for receipts (PROT-27) and for miners.

use super::{
    evidence::Observed,
    near_duplicates::NearDuplicate,
    rating::Rating,
    reputation::{Penalty, Reputation, WindowScore},
    score::Gains,
};
use protocol::SeatId;

/// Report of one seat's window, for people to read. The exact numbers are in its reputation.
#[derive(Clone, Debug, PartialEq)]
pub struct SeatReport {
    pub seat: SeatId,
    pub observed: Seen,
    /// Relative gain on the seat's own sequences (PROT-22).
    pub own_gain: Option<f64>,
    /// Relative gain on the common sequences: seats are ranked by it.
    pub common_gain: Option<f64>,
    /// Standard error of the common gain. A gain below minus three of these is harm.
    pub common_error: Option<f64>,
    /// `None` if too little was measured.
    pub own_data: Option<OwnData>,
    /// Rank in the window's rating round, from 1; `None` if it was not rated.
    pub rank: Option<u32>,
    /// Rating before this window's uncertainty was added.
    pub rating_before: Rating,
    pub rating_after: Rating,
    pub ordinal: f64,
    /// The median ordinal of the seats, weighted by their work.
    pub median_rating: f64,
    /// The rating factor, from 0 to 1 (PROT-25).
    pub rating_factor: f64,
    pub own_data_score_before: f64,
    pub own_data_score_after: f64,
    /// `t/n`.
    pub trained_share: f64,
    /// The most similar contribution, if it is more similar than independent work can be.
    pub near_duplicate: Option<NearDuplicate>,
    /// Penalties on this window's score.
    pub penalties: Vec<Penalty>,
    /// This window's score (PROT-25).
    pub score: f64,
    /// The weight to post, from the scores of the last epoch's number of windows.
    pub weight: u16,
}

/// The observation of the seat.
#[derive(Clone, Debug, PartialEq)]
pub enum Seen {
    Absent,
    Unobserved,
    Unfetched,
    Faulty {
        label: String,
        detail: String,
    },
    /// Valid, and not measured yet.
    Waiting,
    Evaluated,
}

/// The own-data test of one window (PROT-24).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct OwnData {
    /// Relative gain on own data minus that on common data.
    pub gap: f64,
    /// Paired standard error of the gap.
    pub error: f64,
    /// The size of a full gap in this window.
    pub scale: f64,
    /// Result from −1 to 1.
    pub outcome: f64,
}

/// Values that the gauntlet computed for a seat.
pub(super) struct Facts<'a> {
    pub observed: &'a Observed,
    pub gains: Option<&'a Gains>,
    pub own_data: Option<OwnData>,
    pub rank: Option<u32>,
    pub median_rating: f64,
    pub weight: u16,
}

pub(super) fn of(seat: SeatId, facts: Facts<'_>, before: &Reputation, after: &Reputation) -> SeatReport {
    SeatReport {
        seat,
        observed: match facts.observed {
            Observed::Absent => Seen::Absent,
            Observed::Unobserved => Seen::Unobserved,
            Observed::Unfetched => Seen::Unfetched,
            Observed::Faulty { label, detail } => {
                Seen::Faulty { label: label.clone(), detail: detail.clone() }
            }
            Observed::Valid { .. } if facts.gains.is_some() => Seen::Evaluated,
            Observed::Valid { .. } => Seen::Waiting,
        },
        own_gain: facts.gains.and_then(|gains| gains.own).map(|gain| gain.mean),
        common_gain: facts.gains.map(|gains| gains.common.mean),
        common_error: facts.gains.and_then(|gains| gains.common.error),
        own_data: facts.own_data,
        rank: facts.rank,
        rating_before: before.rating,
        rating_after: after.rating,
        ordinal: after.rating.ordinal(),
        median_rating: facts.median_rating,
        rating_factor: after.rating.rating_factor(facts.median_rating),
        own_data_score_before: before.own_data_score,
        own_data_score_after: after.own_data_score,
        trained_share: after.share,
        near_duplicate: facts.observed.near_duplicate().copied(),
        penalties: after.penalties.clone(),
        score: after.recent.last().map_or(0.0, WindowScore::paid),
        weight: facts.weight,
    }
}
