//! Weights from scores (PROT-26).
//!
//! There is a score per window and a weight vote per epoch: a weight is proportional to the mean score of the last
//! epoch's number of windows. Every window counts once; one in which a seat was absent or faulty counts as 0.
//!
//! Penalties are not averaged: the lowest factor of these windows applies to all of them. One poisoned window costs
//! the epoch's pay, at any moment of the epoch.

use super::reputation::{Reputation, Reputations, WindowScore};
use protocol::Uid;

/// Adds a window's score, and drops the one that is an epoch old.
pub fn remember(recent: &mut Vec<WindowScore>, earned: WindowScore, epoch_windows: u32) {
    recent.push(earned);
    let epoch_windows = usize::try_from(epoch_windows.max(1)).unwrap_or(usize::MAX);
    let excess = recent.len().saturating_sub(epoch_windows);
    recent.drain(..excess);
}

/// Returns the weights to post, normalised as the chain accepts them; empty if no seat has earned anything. All sums
/// cover the same windows, with 0 for those before a seat was seen.
pub fn weights(reputations: &Reputations) -> Vec<(Uid, u16)> {
    let sums: Vec<(Uid, f64)> =
        reputations.seats.iter().map(|(seat, reputation)| (seat.uid, earned(reputation))).collect();
    protocol::weights::normalise(&sums)
}

/// Returns the sum of a seat's scores of the last epoch's number of windows, after penalties.
pub fn earned(reputation: &Reputation) -> f64 {
    let penalty = reputation.recent.iter().map(|earned| earned.penalty).fold(1.0, f64::min);
    reputation.recent.iter().map(|earned| earned.score).sum::<f64>() * penalty
}

#[cfg(test)]
mod tests {
    use super::*;
    use protocol::{Block, SeatId, Window};

    fn free(score: f64) -> WindowScore {
        WindowScore { score, penalty: 1.0 }
    }

    #[test]
    fn only_the_last_epoch_is_kept() {
        let mut recent = Vec::new();
        for score in 0..5 {
            remember(&mut recent, free(f64::from(score)), 3);
        }
        assert_eq!(recent, [2.0, 3.0, 4.0].map(free));
        remember(&mut recent, free(9.0), 1);
        assert_eq!(recent, [free(9.0)]);
    }

    #[test]
    fn an_absent_window_costs_its_share() {
        let seats = |recent: [&[f64]; 2]| {
            let all = [1, 2].map(|uid| SeatId { uid: Uid(uid), registered_at: Block(0) });
            let mut reputations = Reputations::default().opened_for(Window(0), all.into_iter());
            for (seat, recent) in all.into_iter().zip(recent) {
                reputations.seat_mut(seat).recent = recent.iter().map(|score| free(*score)).collect();
            }
            reputations
        };
        assert_eq!(
            weights(&seats([&[1.0, 1.0, 1.0, 1.0], &[1.0, 0.0, 1.0, 1.0]])),
            [(Uid(1), 65535), (Uid(2), 49151)]
        );
        assert_eq!(weights(&seats([&[], &[0.0]])), []);
    }

    #[test]
    fn one_penalty_applies_to_the_whole_epoch() {
        for poisoned in 0..4 {
            let seat = SeatId { uid: Uid(1), registered_at: Block(0) };
            let mut reputations = Reputations::default().opened_for(Window(0), [seat].into_iter());
            let reputation = reputations.seat_mut(seat);
            reputation.recent = vec![free(1.0); 4];
            reputation.recent[poisoned].penalty = 0.25;
            assert_eq!(earned(reputation), 1.0);
        }
    }
}
