//! Counts stake: which verdicts and which update two thirds of the electorate agree on (PROT-14, 19, 20), and which
//! members voted (PROT-30).

use alloc::{collections::BTreeMap, vec::Vec};
use protocol::{
    Digest, Uid,
    select::two_thirds,
    view::{Verdict, Vote},
};

/// The verdicts that two thirds agree on. Each list is in uid order.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Agreed {
    pub valid: Vec<Uid>,
    pub faulty: Vec<Uid>,
}

/// The total stake of an electorate.
pub(crate) fn total(electorate: &[(Uid, u128)]) -> u128 {
    electorate.iter().fold(0, |sum: u128, (_, stake)| sum.saturating_add(*stake))
}

/// Judges each of the `committed` seats by the stake behind each verdict on it. Seats and attestations are in uid
/// order, so one pass over both lists matches them.
pub(crate) fn verdicts<'a>(
    committed: &[Uid],
    attestations: impl Iterator<Item = (u128, &'a [(Uid, Verdict)])>,
    total: u128,
) -> Agreed {
    let mut stakes: Vec<(u128, u128)> = alloc::vec![(0, 0); committed.len()];
    for (stake, verdicts) in attestations {
        let mut seats = committed.iter().zip(&mut stakes).peekable();
        for (uid, verdict) in verdicts {
            while seats.next_if(|(seat, _)| *seat < uid).is_some() {}
            let Some((_, (valid, faulty))) = seats.next_if(|(seat, _)| *seat == uid) else {
                continue;
            };
            let side = match verdict {
                Verdict::Valid => valid,
                Verdict::Faulty => faulty,
            };
            *side = side.saturating_add(stake);
        }
    }
    let mut agreed = Agreed::default();
    for (uid, (valid, faulty)) in committed.iter().zip(stakes) {
        if two_thirds(valid, total) {
            agreed.valid.push(*uid);
        } else if two_thirds(faulty, total) {
            agreed.faulty.push(*uid);
        }
    }
    agreed
}

/// The update that two thirds voted for, with the state root if two thirds voted the same one.
pub(crate) fn agreed(votes: impl Iterator<Item = (u128, Vote)>, total: u128) -> Option<Vote> {
    let mut by_update = BTreeMap::<Digest, u128>::new();
    let mut by_vote = BTreeMap::<Vote, u128>::new();
    for (stake, vote) in votes {
        let update = by_update.entry(vote.update).or_default();
        *update = update.saturating_add(stake);
        let exact = by_vote.entry(vote).or_default();
        *exact = exact.saturating_add(stake);
    }
    let exact = by_vote.into_iter().find(|(_, stake)| two_thirds(*stake, total)).map(|(vote, _)| vote);
    exact.or_else(|| {
        let (update, _) = by_update.into_iter().find(|(_, stake)| two_thirds(*stake, total))?;
        Some(Vote { update, state_root: None })
    })
}

/// Adds a merged window to `before`: the members of the electorate in uid order, and whether each has voted.
pub(crate) fn participation(
    before: &[(Uid, bool)],
    electorate: &[(Uid, u128)],
    voters: impl Iterator<Item = Uid>,
) -> Vec<(Uid, bool)> {
    let mut now: BTreeMap<Uid, bool> = electorate.iter().map(|(uid, _)| (*uid, false)).collect();
    now.extend(voters.map(|uid| (uid, true)));
    for (uid, voted) in before {
        *now.entry(*uid).or_default() |= voted;
    }
    now.into_iter().collect()
}

/// Whether windows were merged and `uid` voted in none of them, also because it was not in the electorate.
pub(crate) fn is_inactive(participation: &[(Uid, bool)], uid: Uid) -> bool {
    !participation.is_empty() && !participation.contains(&(uid, true))
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;

    fn agreed(votes: &[(u128, Vote)], total: u128) -> Option<Vote> {
        super::agreed(votes.iter().copied(), total)
    }

    fn vote(update: u8, state_root: Option<u8>) -> Vote {
        Vote { update: Digest([update; 32]), state_root: state_root.map(|root| Digest([root; 32])) }
    }

    #[test]
    fn two_thirds_exactly_are_enough_and_one_unit_less_is_not() {
        let valid = [(Uid(1), Verdict::Valid)];
        let found = |stake| verdicts(&[Uid(1)], [(stake, &valid[..])].into_iter(), 300).valid;
        assert_eq!(found(200), vec![Uid(1)]);
        assert_eq!(found(199), vec![]);

        assert_eq!(agreed(&[(200, vote(1, None))], 300), Some(vote(1, None)));
        assert_eq!(agreed(&[(199, vote(1, None)), (101, vote(2, None))], 300), None);
    }

    #[test]
    fn a_seat_without_two_thirds_for_either_verdict_is_not_observed() {
        let valid = [(Uid(1), Verdict::Valid), (Uid(2), Verdict::Faulty), (Uid(9), Verdict::Valid)];
        let faulty = [(Uid(1), Verdict::Faulty), (Uid(2), Verdict::Faulty)];
        let found = verdicts(&[Uid(1), Uid(2)], [(50, &valid[..]), (50, &faulty[..])].into_iter(), 100);
        assert_eq!(found, Agreed { valid: vec![], faulty: vec![Uid(2)] });
    }

    #[test]
    fn an_update_is_merged_without_a_checkpoint_if_only_the_state_roots_differ() {
        let votes = [(100, vote(1, Some(1))), (100, vote(1, Some(2)))];
        assert_eq!(agreed(&votes, 300), Some(vote(1, None)));
        let votes = [(200, vote(1, Some(1))), (100, vote(1, Some(2)))];
        assert_eq!(agreed(&votes, 300), Some(vote(1, Some(1))));
    }

    #[test]
    fn one_vote_in_an_epoch_is_enough_and_an_absent_validator_has_none() {
        let electorate = |uids: &[u16]| uids.iter().map(|uid| (Uid(*uid), 1)).collect::<Vec<_>>();
        let voters = |uids: &'static [u16]| uids.iter().map(|uid| Uid(*uid));
        let first = participation(&[], &electorate(&[1, 2, 5]), voters(&[2]));
        assert_eq!(first, vec![(Uid(1), false), (Uid(2), true), (Uid(5), false)]);
        let second = participation(&first, &electorate(&[2, 3, 5]), voters(&[3, 5]));
        let expected = vec![(Uid(1), false), (Uid(2), true), (Uid(3), true), (Uid(5), true)];
        assert_eq!(second, expected);
        let inactive: Vec<u16> = (0..6).filter(|uid| is_inactive(&second, Uid(*uid))).collect();
        assert_eq!(inactive, vec![0, 1, 4]);
        assert!(!is_inactive(&[], Uid(1)), "nothing was merged");
    }

    #[test]
    fn an_empty_electorate_agrees_on_nothing() {
        assert_eq!(agreed(&[], 0), None);
        assert_eq!(verdicts(&[Uid(1)], core::iter::empty(), 0), Agreed::default());
    }
}
