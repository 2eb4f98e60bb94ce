//! Adds stake up: what two thirds of an electorate say of a contribution, and which update they voted (PROT-14, 19, 20);
//! and who never voted (PROT-30).

use alloc::{collections::BTreeMap, vec::Vec};
use protocol::{
    Digest, Uid,
    select::two_thirds,
    view::{Verdict, Vote},
};

/// What two thirds say. Each list is in uid order.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Found {
    pub valid: Vec<Uid>,
    pub faulty: Vec<Uid>,
}

/// The stake of an electorate.
pub(crate) fn total(electorate: &[(Uid, u128)]) -> u128 {
    electorate.iter().fold(0, |sum: u128, (_, stake)| sum.saturating_add(*stake))
}

/// Judges each of the `committed` seats, given in uid order, by the stake behind each verdict on it. Each attestation is
/// in uid order too, so one walk along both lists finds what belongs together.
pub(crate) fn verdicts<'a>(
    committed: &[Uid],
    attestations: impl Iterator<Item = (u128, &'a [(Uid, Verdict)])>,
    total: u128,
) -> Found {
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
    let mut found = Found::default();
    for (uid, (valid, faulty)) in committed.iter().zip(stakes) {
        if two_thirds(valid, total) {
            found.valid.push(*uid);
        } else if two_thirds(faulty, total) {
            found.faulty.push(*uid);
        }
    }
    found
}

/// What two thirds voted: the update, and the state root after it if two thirds voted the same one with it.
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

/// Who decided a merged window of an epoch, in uid order, and whether it voted in any: `before`, and one such window more.
pub(crate) fn turnout(
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

/// Whether windows were merged, and `uid` voted in none of them: also if it was away, and so decided none.
pub(crate) fn never_voted(turnout: &[(Uid, bool)], uid: Uid) -> bool {
    !turnout.is_empty() && !turnout.contains(&(uid, true))
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
    fn a_seat_that_two_thirds_call_neither_was_not_observed() {
        let valid = [(Uid(1), Verdict::Valid), (Uid(2), Verdict::Faulty), (Uid(9), Verdict::Valid)];
        let faulty = [(Uid(1), Verdict::Faulty), (Uid(2), Verdict::Faulty)];
        let found = verdicts(&[Uid(1), Uid(2)], [(50, &valid[..]), (50, &faulty[..])].into_iter(), 100);
        assert_eq!(found, Found { valid: vec![], faulty: vec![Uid(2)] });
    }

    #[test]
    fn an_update_stands_without_a_checkpoint_where_only_the_state_roots_differ() {
        let votes = [(100, vote(1, Some(1))), (100, vote(1, Some(2)))];
        assert_eq!(agreed(&votes, 300), Some(vote(1, None)));
        let votes = [(200, vote(1, Some(1))), (100, vote(1, Some(2)))];
        assert_eq!(agreed(&votes, 300), Some(vote(1, Some(1))));
    }

    #[test]
    fn one_vote_of_an_epoch_is_enough_and_who_was_away_has_none() {
        let electorate = |uids: &[u16]| uids.iter().map(|uid| (Uid(*uid), 1)).collect::<Vec<_>>();
        let voters = |uids: &'static [u16]| uids.iter().map(|uid| Uid(*uid));
        let first = turnout(&[], &electorate(&[1, 2, 5]), voters(&[2]));
        assert_eq!(first, vec![(Uid(1), false), (Uid(2), true), (Uid(5), false)]);
        let second = turnout(&first, &electorate(&[2, 3, 5]), voters(&[3, 5]));
        let expected = vec![(Uid(1), false), (Uid(2), true), (Uid(3), true), (Uid(5), true)];
        assert_eq!(second, expected);
        let silent: Vec<u16> = (0..6).filter(|uid| never_voted(&second, Uid(*uid))).collect();
        assert_eq!(silent, vec![0, 1, 4]);
        assert!(!never_voted(&[], Uid(1)), "nothing was merged");
    }

    #[test]
    fn an_empty_electorate_agrees_on_nothing() {
        assert_eq!(agreed(&[], 0), None);
        assert_eq!(verdicts(&[Uid(1)], core::iter::empty(), 0), Found::default());
    }
}
