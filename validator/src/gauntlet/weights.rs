//! From scores to what is posted (PROT-26).
//!
//! Weights are posted once an epoch, scores made once a window: a weight is proportional to the mean score of the last
//! epoch's worth of windows, whenever it is posted. So every window counts once, and one in which a seat was absent or
//! faulty counts as nothing.

use super::standing::Standings;
use protocol::Uid;

/// Adds a window's score, and lets go of the one that is an epoch old.
pub fn remember(recent: &mut Vec<f64>, score: f64, epoch_windows: u32) {
    recent.push(score);
    let epoch_windows = usize::try_from(epoch_windows.max(1)).unwrap_or(usize::MAX);
    let excess = recent.len().saturating_sub(epoch_windows);
    recent.drain(..excess);
}

/// The weights to post, normalised as the chain takes them. All seats' scores cover the same windows, those before a seat
/// was seen counting as nothing: so sums are compared, not means. Empty where no seat has earned anything yet.
pub fn weights(standings: &Standings) -> Vec<(Uid, u16)> {
    let sums: Vec<(Uid, f64)> =
        standings.seats.iter().map(|(seat, standing)| (seat.uid, standing.recent.iter().sum())).collect();
    protocol::weights::normalise(&sums)
}

#[cfg(test)]
mod tests {
    use super::*;
    use protocol::{Block, SeatId, Window};

    #[test]
    fn only_the_last_epoch_is_remembered() {
        let mut recent = Vec::new();
        for score in 0..5 {
            remember(&mut recent, f64::from(score), 3);
        }
        assert_eq!(recent, [2.0, 3.0, 4.0]);
        remember(&mut recent, 9.0, 1);
        assert_eq!(recent, [9.0]);
    }

    #[test]
    fn a_window_of_absence_costs_its_share() {
        let seats = |recent: [&[f64]; 2]| {
            let all = [1, 2].map(|uid| SeatId { uid: Uid(uid), registered_at: Block(0) });
            let mut standings = Standings::default().opened_for(Window(0), all.into_iter());
            for (seat, recent) in all.into_iter().zip(recent) {
                standings.seat_mut(seat).recent = recent.to_vec();
            }
            standings
        };
        assert_eq!(
            weights(&seats([&[1.0, 1.0, 1.0, 1.0], &[1.0, 0.0, 1.0, 1.0]])),
            [(Uid(1), 65535), (Uid(2), 49151)]
        );
        assert_eq!(weights(&seats([&[], &[0.0]])), []);
    }
}
