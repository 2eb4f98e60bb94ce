//! Active set of a window: the largest validators that are present, and the part of their stake that counts (PROT-3).
//!
//! New stake counts gradually, so that an account cannot buy the active set within an epoch. The stake that counted at
//! the start of the epoch is *established*. New stake shares a budget: a tenth of the active set's established stake
//! in the epoch's first window, two tenths in the second, three from the third on. The active set therefore always
//! holds less than a third of new stake. Stake that a validator loses stops counting at once.

use crate::{CountedStake, Presence};
use alloc::vec::Vec;
use core::cmp::Reverse;
use frame::arithmetic::{Rounding, helpers_128bit::multiply_by_rational_with_rounding};
use pallet_registry::share_of;
use protocol::{Block, SeatId, Terms, Uid, Window, params::Permille};

/// Maximum of new stake that counts, in tenths of the established stake.
const NEW_TENTHS_MAX: u32 = 3;

/// A validator with stake of its own. `stake` includes the nominations that count.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bonded {
    pub seat: SeatId,
    pub stake: u128,
    pub presence: Presence,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ActiveSet {
    /// Members and their counted stake, in uid order.
    pub members: Vec<(Uid, u128)>,
    /// Blocks of the members' registrations, in the same order.
    pub registered_at: Vec<Block>,
    /// Stake of all members: the denominator of every "two thirds".
    pub stake: u128,
    /// Counted stake of all validators with stake of their own, absent ones included.
    pub bonded_stake: u128,
}

/// Returns the active set of `window` among the `bonded`, whose counted stakes are `counted`, in the same order. The
/// lower uid wins a tie.
pub(crate) fn choose(
    terms: &Terms,
    window: Window,
    bonded: &[Bonded],
    counted: &[CountedStake],
) -> ActiveSet {
    let present = bonded.iter().zip(counted).filter(|(validator, stake)| {
        stake.counted > 0 && !is_absent(validator.presence, window, terms.absence_windows)
    });
    let mut members: Vec<(SeatId, u128)> =
        present.map(|(validator, stake)| (validator.seat, stake.counted)).collect();
    members.sort_unstable_by_key(|&(seat, stake)| (Reverse(stake), seat.uid));
    members.truncate(usize::from(terms.active_set_max));
    members.sort_unstable_by_key(|&(seat, _)| seat.uid);
    ActiveSet {
        stake: sum(members.iter().map(|(_, stake)| *stake)),
        bonded_stake: sum(counted.iter().map(|stake| stake.counted)),
        registered_at: members.iter().map(|(seat, _)| seat.registered_at).collect(),
        members: members.into_iter().map(|(seat, stake)| (seat.uid, stake)).collect(),
    }
}

/// Returns the stake of each of the `bonded` that counts in `window`, in the same order, by uid. `before` are the
/// counted stakes of the previous window. All stake together is below the token's issuance, so no sum overflows.
///
/// Without established stake, in the run's first active set or at the start of an epoch, all stake counts in full and
/// is established. If none is left within an epoch, no stake counts until the next one begins.
pub(crate) fn count_stakes(
    terms: &Terms,
    epoch_windows: u32,
    window: Window,
    bonded: &[Bonded],
    before: &[CountedStake],
) -> Vec<CountedStake> {
    let windows_in_epoch = window.0.checked_rem(epoch_windows).unwrap_or(0);
    let established = |seat: SeatId| {
        let place = before.binary_search_by_key(&seat.uid, |stake| stake.seat.uid).ok();
        let stake = place.and_then(|place| before.get(place)).filter(|stake| stake.seat == seat);
        stake.map_or(0, |stake| if windows_in_epoch == 0 { stake.counted } else { stake.established })
    };
    let kept: Vec<(u128, u128)> = bonded
        .iter()
        .map(|validator| {
            let established = established(validator.seat);
            (established, established.min(validator.stake))
        })
        .collect();
    let bonded_stake = sum(kept.iter().map(|(_, kept)| *kept));
    if bonded_stake == 0 {
        // All established stake left within the epoch: nothing counts until the next one begins.
        let left = windows_in_epoch != 0 && !before.is_empty();
        let all = |&Bonded { seat, stake, .. }: &Bonded| {
            let stake = if left { 0 } else { stake };
            CountedStake { seat, established: stake, counted: stake }
        };
        return bonded.iter().map(all).collect();
    }

    let is_present = |validator: &Bonded| !is_absent(validator.presence, window, terms.absence_windows);
    let mut largest: Vec<u128> = bonded
        .iter()
        .zip(&kept)
        .filter(|(validator, _)| is_present(validator))
        .map(|(_, (_, kept))| *kept)
        .collect();
    largest.sort_unstable_by_key(|kept| Reverse(*kept));
    // While all established stake is absent, the run is paused, and new stake reaches the quorum after some epochs.
    let base = match sum(largest.into_iter().take(usize::from(terms.active_set_max))) {
        0 => bonded_stake,
        present => present,
    };
    let tenths = windows_in_epoch.saturating_add(1).min(NEW_TENTHS_MAX);
    let budget = share_of(base, Permille(100u16.saturating_mul(tenths as u16)));
    let new = |(validator, (_, kept)): (&Bonded, &(u128, u128))| match is_present(validator) {
        true => validator.stake.saturating_sub(*kept),
        false => 0,
    };
    let all_new = sum(bonded.iter().zip(&kept).map(new));
    bonded
        .iter()
        .zip(&kept)
        .map(|(validator, kept)| {
            let new = new((validator, kept));
            let part = if all_new <= budget { new } else { fraction(budget, new, all_new) };
            let (established, kept) = *kept;
            CountedStake { seat: validator.seat, established, counted: kept.saturating_add(part) }
        })
        .collect()
}

fn sum(stakes: impl Iterator<Item = u128>) -> u128 {
    stakes.fold(0, u128::saturating_add)
}

/// Returns `⌊amount · part / total⌋` of a part that is at most the total.
fn fraction(amount: u128, part: u128, total: u128) -> u128 {
    multiply_by_rational_with_rounding(amount, part, total, Rounding::Down).unwrap_or(0)
}

/// Returns whether a validator attested in none of the last `absence_windows` windows that it could attest.
fn is_absent(presence: Presence, window: Window, absence_windows: u32) -> bool {
    let present_until = presence.last_attested.map_or(presence.since, |last| last.next().max(presence.since));
    window.0.saturating_sub(present_until.0) >= absence_windows
}

impl ActiveSet {
    /// Returns whether the members hold stake, and at least `quorum` of the bonded stake.
    pub fn has_quorum(&self, quorum: Permille) -> bool {
        self.stake > 0
            && self.stake.saturating_mul(1000) >= self.bonded_stake.saturating_mul(u128::from(quorum.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    fn bonded(uid: u16, stake: u128) -> Bonded {
        Bonded {
            seat: SeatId { uid: Uid(uid), registered_at: Block(u32::from(uid)) },
            stake,
            presence: Presence { since: Window(0), last_attested: None, epoch_before: None },
        }
    }

    fn active_set(terms: &Terms, window: u32, bonded: &[Bonded]) -> ActiveSet {
        let counted = count_stakes(terms, 10, Window(window), bonded, &[]);
        choose(terms, Window(window), bonded, &counted)
    }

    fn members(terms: &Terms, window: u32, bonded: &[Bonded]) -> Vec<u16> {
        active_set(terms, window, bonded).members.iter().map(|(uid, _)| uid.0).collect()
    }

    /// Returns the counted stakes of consecutive windows from `first`, one for each entry of `stakes`.
    fn counted(terms: &Terms, first: u32, stakes: &[Vec<(u16, u128)>]) -> Vec<Vec<u128>> {
        let mut before = Vec::new();
        let mut shown = Vec::new();
        for (window, stakes) in (first..).zip(stakes) {
            let bonded: Vec<Bonded> = stakes.iter().map(|(uid, stake)| bonded(*uid, *stake)).collect();
            before = count_stakes(terms, 10, Window(window), &bonded, &before);
            shown.push(before.iter().map(|stake| stake.counted).collect());
        }
        shown
    }

    fn patient() -> Terms {
        Terms { absence_windows: 1_000, ..Terms::default() }
    }

    #[test]
    fn the_largest_are_chosen_and_ties_go_to_the_lower_uid() {
        let terms = Terms { active_set_max: 2, ..Terms::default() };
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
        let of = |stake, bonded_stake| {
            let (members, registered_at) = (Vec::new(), Vec::new());
            ActiveSet { members, registered_at, stake, bonded_stake }
        };
        assert!(of(500, 1000).has_quorum(Permille(500)));
        assert!(!of(499, 1000).has_quorum(Permille(500)));
        assert!(!of(0, 0).has_quorum(Permille(1)));
    }

    #[test]
    fn a_sixth_validator_counts_in_full_within_two_windows_and_a_second_one_within_three_epochs() {
        // Five validators with 100, and a sixth from an epoch's first window on.
        let six = |sixth| (0..5).map(|uid| (uid, 100)).chain(sixth).collect::<Vec<_>>();
        let joins = counted(&patient(), 9, &[six(None), six(Some((5, 100))), six(Some((5, 100)))]);
        assert_eq!([joins[1][5], joins[2][5]], [50, 100]);
        // From its third window on, the full budget at once.
        let joins = counted(&patient(), 1, &[six(None), six(Some((5, 100)))]);
        assert_eq!(joins[1][5], 100);
        // One validator, and a second one of equal stake.
        let mut stakes = vec![vec![(0, 1000)]];
        stakes.extend(vec![vec![(0, 1000), (1, 1000)]; 30]);
        let second: Vec<u128> = counted(&patient(), 9, &stakes)[1..].iter().map(|all| all[1]).collect();
        assert_eq!((second[..4].to_vec(), second[9]), (vec![100, 200, 300, 300], 300));
        assert_eq!(second[10..14], [430, 560, 690, 690]);
        assert_eq!(second[20..24], [859, 1000, 1000, 1000]);
    }

    #[test]
    fn equal_stakes_count_equally_and_what_is_lost_stops_counting_at_once() {
        let stakes = [
            vec![(0, 1000)],
            vec![(0, 1000), (1, 5000), (2, 5000), (3, 2500)],
            vec![(0, 400), (1, 5000), (2, 5000), (3, 2500)],
            // It returns within the epoch: the established stake counts.
            vec![(0, 1000), (1, 100), (2, 5000), (3, 0)],
        ];
        let counted = counted(&patient(), 0, &stakes);
        assert_eq!(counted[0], [1000]);
        assert_eq!(counted[1], [1000, 80, 80, 40]);
        assert_eq!(counted[2], [400, 48, 48, 24]);
        assert_eq!(counted[3], [1000, 5, 294, 0]);
    }

    #[test]
    fn a_new_holder_of_a_seat_has_no_established_stake() {
        let before = count_stakes(&patient(), 10, Window(0), &[bonded(0, 100), bonded(1, 100)], &[]);
        let mut newcomer = bonded(1, 100);
        newcomer.seat.registered_at = Block(77);
        let now = count_stakes(&patient(), 10, Window(1), &[bonded(0, 100), newcomer], &before);
        assert_eq!((now[1].established, now[1].counted), (0, 20));
    }

    #[test]
    fn new_stake_does_not_take_over_while_all_that_is_established_is_absent() {
        let terms = Terms { absence_windows: 3, ..Terms::default() };
        let mut newcomer = bonded(9, 1_000_000);
        newcomer.presence.since = Window(12);
        let mut before = count_stakes(&terms, 10, Window(0), &[bonded(0, 1000)], &[]);
        let mut quorate = None;
        for window in 1..80u32 {
            newcomer.presence.last_attested = window.checked_sub(13).map(|_| Window(window - 1));
            let all = match window {
                ..12 => vec![bonded(0, 1000)],
                _ => vec![bonded(0, 1000), newcomer],
            };
            before = count_stakes(&terms, 10, Window(window), &all, &before);
            let active_set = choose(&terms, Window(window), &all, &before);
            if window >= 12 && active_set.has_quorum(Permille(500)) {
                quorate = quorate.or(Some((window, active_set.stake)));
            }
        }
        // Three tenths of the absent stake in the first epoch, then three tenths more per epoch.
        assert_eq!(quorate, Some((61, 1_027)));
    }

    proptest! {
        #[test]
        fn new_stake_is_always_below_a_third_of_an_active_set_with_established_stake(
            active_set_max in 1u16..6,
            epoch_windows in 1u32..8,
            first in 0u32..8,
            windows in proptest::collection::vec(
                proptest::collection::btree_map(0u16..8, prop_oneof![1u128..1000, 1u128..1 << 60, 1u128..1 << 124], 1..8),
                1..30,
            ),
        ) {
            let terms = Terms { active_set_max, ..patient() };
            let mut before = Vec::new();
            let mut established = BTreeMap::new();
            for (window, stakes) in (first..).zip(windows) {
                let window = Window(window);
                let all: Vec<Bonded> = stakes.iter().map(|(uid, stake)| bonded(*uid, *stake)).collect();
                if window.0.is_multiple_of(epoch_windows) {
                    established = before.iter().map(|one: &CountedStake| (one.seat.uid, one.counted)).collect();
                }
                let kept = |uid: &Uid| established.get(uid).copied().unwrap_or(0);
                let none_is_left = !all.iter().any(|one| kept(&one.seat.uid) > 0);
                let is_first = none_is_left && (before.is_empty() || window.0.is_multiple_of(epoch_windows));
                let now = count_stakes(&terms, epoch_windows, window, &all, &before);
                for (one, stake) in all.iter().zip(&now) {
                    prop_assert_eq!(one.seat, stake.seat);
                    prop_assert!(stake.counted <= one.stake, "never above the actual stake");
                    prop_assert!(stake.counted >= one.stake.min(kept(&one.seat.uid)), "established stake counts");
                    let equal = all.iter().zip(&now).find(|(other, _)| {
                        other.stake == one.stake && kept(&other.seat.uid) == kept(&one.seat.uid)
                    });
                    prop_assert_eq!(equal.map(|(_, other)| other.counted), Some(stake.counted));
                }
                if is_first {
                    established = now.iter().map(|one| (one.seat.uid, one.counted)).collect();
                } else {
                    let chosen = choose(&terms, window, &all, &now);
                    let new: u128 = chosen
                        .members
                        .iter()
                        .map(|(uid, counted)| counted - stakes[&uid.0].min(kept(uid)).min(*counted))
                        .fold(0, u128::saturating_add);
                    prop_assert!(new <= chosen.stake / 3, "{} new of {}", new, chosen.stake);
                }
                established.retain(|uid, _| now.iter().any(|one| one.seat.uid == *uid));
                before = now;
            }
        }

        #[test]
        fn more_stake_never_counts_less(
            stakes in proptest::collection::vec((1u128..10_000, 1u128..10_000), 1..8),
            who in 0usize..8,
            more in 0u128..10_000,
            window in 1u32..10,
        ) {
            let at = |stakes: &[u128]| -> Vec<Bonded> {
                (0u16..).zip(stakes).map(|(uid, stake)| bonded(uid, *stake)).collect()
            };
            let (first, mut then): (Vec<u128>, Vec<u128>) = stakes.into_iter().unzip();
            let before = count_stakes(&patient(), 10, Window(0), &at(&first), &[]);
            let who = who % then.len();
            let less = count_stakes(&patient(), 10, Window(window), &at(&then), &before)[who];
            then[who] += more;
            let now = count_stakes(&patient(), 10, Window(window), &at(&then), &before)[who];
            prop_assert!(now.counted >= less.counted, "{:?} {:?}", less, now);
        }
    }
}
