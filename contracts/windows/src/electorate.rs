//! The electorate of a window: the largest validators that are present (PROT-3).

use crate::Presence;
use alloc::vec::Vec;
use core::cmp::Reverse;
use protocol::{Terms, Uid, Window, params::Permille};

/// A validator with at least the run's minimum stake of its own. `stake` includes nominations.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bonded {
    pub uid: Uid,
    pub stake: u128,
    pub presence: Presence,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Electorate {
    /// In uid order, with their stake.
    pub members: Vec<(Uid, u128)>,
    /// The members' stake: the denominator of every "two thirds".
    pub stake: u128,
    /// The stake of all validators with the minimum, absent ones included.
    pub bonded_stake: u128,
}

/// The electorate of `window`. Ties go to the lower uid.
pub(crate) fn choose(terms: &Terms, window: Window, bonded: &[Bonded]) -> Electorate {
    let mut members: Vec<(Uid, u128)> = bonded
        .iter()
        .filter(|validator| !is_absent(validator.presence, window, terms.absence_windows))
        .map(|validator| (validator.uid, validator.stake))
        .collect();
    members.sort_unstable_by_key(|&(uid, stake)| (Reverse(stake), uid));
    members.truncate(usize::from(terms.electorate_max));
    members.sort_unstable_by_key(|&(uid, _)| uid);
    Electorate {
        stake: members.iter().fold(0, |sum: u128, (_, stake)| sum.saturating_add(*stake)),
        bonded_stake: bonded.iter().fold(0, |sum: u128, validator| sum.saturating_add(validator.stake)),
        members,
    }
}

/// Whether a validator attested in none of the last `absence_windows` windows that it could attest.
fn is_absent(presence: Presence, window: Window, absence_windows: u32) -> bool {
    let present_until = presence.last_attested.map_or(presence.since, |last| last.next().max(presence.since));
    window.0.saturating_sub(present_until.0) >= absence_windows
}

impl Electorate {
    /// Whether the members hold stake, and at least `quorum` of the bonded stake.
    pub fn has_quorum(&self, quorum: Permille) -> bool {
        self.stake > 0
            && self.stake.saturating_mul(1000) >= self.bonded_stake.saturating_mul(u128::from(quorum.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bonded(uid: u16, stake: u128) -> Bonded {
        Bonded {
            uid: Uid(uid),
            stake,
            presence: Presence { since: Window(0), last_attested: None, epoch_before: None },
        }
    }

    fn members(terms: &Terms, window: u32, bonded: &[Bonded]) -> Vec<u16> {
        choose(terms, Window(window), bonded).members.iter().map(|(uid, _)| uid.0).collect()
    }

    #[test]
    fn the_largest_are_chosen_and_ties_go_to_the_lower_uid() {
        let terms = Terms { electorate_max: 2, ..Terms::default() };
        assert_eq!(members(&terms, 0, &[bonded(1, 5), bonded(2, 9), bonded(3, 5), bonded(4, 1)]), [1, 2]);
        assert_eq!(members(&terms, 0, &[bonded(1, 1), bonded(2, 2), bonded(3, 3)]), [2, 3]);
    }

    #[test]
    fn absence_counts_from_the_window_after_the_last_attestation() {
        let terms = Terms { absence_windows: 3, ..Terms::default() };
        let mut validator = bonded(1, 5);
        assert_eq!(members(&terms, 2, &[validator]), [1]);
        assert!(members(&terms, 3, &[validator]).is_empty());
        validator.presence.last_attested = Some(Window(4));
        assert_eq!(members(&terms, 7, &[validator]), [1]);
        assert!(members(&terms, 8, &[validator]).is_empty());
        // An attestation before its first opening does not make a newcomer absent earlier.
        validator.presence =
            Presence { since: Window(9), last_attested: Some(Window(2)), epoch_before: None };
        assert_eq!(members(&terms, 11, &[validator]), [1]);
    }

    #[test]
    fn presence_remembers_the_last_two_epochs_with_an_attestation() {
        let attested = |windows: &[u32]| {
            let new = bonded(1, 5).presence;
            let presence =
                windows.iter().fold(new, |presence, window| presence.attested(Window(*window), 10));
            (0..6).filter(|epoch| presence.attested_in(*epoch, 10)).collect::<Vec<_>>()
        };
        assert_eq!(attested(&[]), [0u32; 0]);
        assert_eq!(attested(&[3, 4]), [0]);
        assert_eq!(attested(&[3, 4, 10]), [0, 1]);
        assert_eq!(attested(&[3, 10, 11, 19]), [0, 1]);
        assert_eq!(attested(&[3, 10, 40]), [1, 4]);
    }

    #[test]
    fn a_quorum_is_at_least_its_share_of_the_bonded_stake() {
        let of = |stake, bonded_stake| Electorate { members: Vec::new(), stake, bonded_stake };
        assert!(of(500, 1000).has_quorum(Permille(500)));
        assert!(!of(499, 1000).has_quorum(Permille(500)));
        assert!(!of(0, 0).has_quorum(Permille(1)));
    }
}
