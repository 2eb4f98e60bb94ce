//! Counts stake: verdicts and updates with two thirds of the active set behind them (PROT-14, 19, 20), and the
//! members that voted (PROT-30).

use crate::MemberParticipation;
use alloc::{collections::BTreeMap, vec::Vec};
use protocol::{
    Digest, Uid, Window,
    select::two_thirds,
    view::{Verdict, Vote},
};

/// Verdicts with two thirds of the stake behind them. Each list is in uid order.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Agreed {
    pub valid: Vec<Uid>,
    pub faulty: Vec<Uid>,
}

/// Returns the total stake of an active set.
pub(crate) fn total(active_set: &[(Uid, u128)]) -> u128 {
    active_set.iter().fold(0, |sum: u128, (_, stake)| sum.saturating_add(*stake))
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

/// Returns the update with two thirds of the votes, with the state root if two thirds voted for the same one.
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

/// Returns the stake behind each checkpoint in `votes`, by window. A vote from outside the active set has none.
pub(crate) fn rewind_stakes(votes: &[(Uid, Window)], active_set: &[(Uid, u128)]) -> BTreeMap<Window, u128> {
    let mut stakes = BTreeMap::new();
    for (uid, to) in votes {
        let place = active_set.binary_search_by_key(uid, |(member, _)| *member);
        let stake = place.ok().and_then(|place| active_set.get(place)).map_or(0, |(_, stake)| *stake);
        let sum: &mut u128 = stakes.entry(*to).or_default();
        *sum = sum.saturating_add(stake);
    }
    stakes
}

/// Returns whether `verdicts` name at least half of the `valid` seats, as valid or faulty: then their validator was
/// present (PROT-3). Both are in uid order.
pub(crate) fn covers_half(verdicts: &[(Uid, Verdict)], valid: &[Uid]) -> bool {
    let mut named = verdicts.iter().map(|(uid, _)| uid).peekable();
    let is_named = |uid: &&Uid| {
        while named.next_if(|seat| seat < uid).is_some() {}
        named.next_if_eq(uid).is_some()
    };
    let covered = valid.iter().filter(is_named).count();
    covered.saturating_mul(2) >= valid.len()
}

/// Adds a merged window to `before`: each member of its `active_set` owed a vote, and the `voters` among them cast it.
/// The result is in uid order.
pub(crate) fn participation(
    before: &[MemberParticipation],
    active_set: &[(Uid, u128)],
    voters: &[Uid],
) -> Vec<MemberParticipation> {
    let mut now: BTreeMap<Uid, MemberParticipation> =
        before.iter().map(|member| (member.uid, *member)).collect();
    for (uid, _) in active_set {
        let member = now.entry(*uid).or_insert(MemberParticipation { uid: *uid, owed: 0, cast: 0 });
        member.owed = member.owed.saturating_add(1);
        member.cast = member.cast.saturating_add(voters.contains(uid).into());
    }
    now.into_values().collect()
}

/// Returns whether `uid` is inactive in an epoch with `merged` merged windows. A validator is inactive if it cast less
/// than two thirds of the votes that it owed, or was in no merged window's active set (PROT-30).
pub(crate) fn is_inactive(merged: u32, members: &[MemberParticipation], uid: Uid) -> bool {
    let member = members.iter().find(|member| member.uid == uid);
    merged > 0 && member.is_none_or(|member| !two_thirds(member.cast.into(), member.owed.into()))
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
    fn a_validator_is_inactive_below_two_thirds_of_the_votes_that_it_owes() {
        let active_set = |uids: &[u16]| uids.iter().map(|uid| (Uid(*uid), 1)).collect::<Vec<_>>();
        let member = |uid, owed, cast| MemberParticipation { uid: Uid(uid), owed, cast };
        let first = participation(&[], &active_set(&[1, 2, 5]), &[Uid(2)]);
        assert_eq!(first, vec![member(1, 1, 0), member(2, 1, 1), member(5, 1, 0)]);
        let second = participation(&first, &active_set(&[2, 3, 5]), &[Uid(2), Uid(3), Uid(5)]);
        let third = participation(&second, &active_set(&[2, 3, 5]), &[Uid(3), Uid(5)]);
        assert_eq!(third, vec![member(1, 1, 0), member(2, 3, 2), member(3, 2, 2), member(5, 3, 2)]);
        let inactive = |members: &[MemberParticipation]| {
            (0..6).filter(|uid| is_inactive(3, members, Uid(*uid))).collect::<Vec<u16>>()
        };
        assert_eq!(inactive(&third), vec![0, 1, 4]);
        assert_eq!(inactive(&second), vec![0, 1, 4, 5], "one of two is less than two thirds");
        assert!(!is_inactive(0, &[], Uid(1)), "nothing was merged");
    }

    #[test]
    fn verdicts_on_half_of_the_valid_seats_are_presence() {
        let valid: Vec<Uid> = (1..6).map(Uid).collect();
        let named = |uids: &[u16]| {
            let verdicts: Vec<_> = uids.iter().map(|uid| (Uid(*uid), Verdict::Faulty)).collect();
            covers_half(&verdicts, &valid)
        };
        assert!(named(&[1, 3, 5]) && !named(&[1, 3]) && !named(&[0, 1, 3, 6, 7, 8, 9]));
        assert!(covers_half(&[], &[]), "nothing is valid: there is nothing to cover");
    }

    #[test]
    fn an_empty_active_set_agrees_on_nothing() {
        assert_eq!(agreed(&[], 0), None);
        assert_eq!(verdicts(&[Uid(1)], core::iter::empty(), 0), Agreed::default());
    }
}
