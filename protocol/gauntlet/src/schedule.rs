//! Selection of the seats to measure if there is no time for all of them (PROT-28).

use super::reputation::{Reputation, Reputations};
use protocol::{Digest, SeatId, Uid, Window};
use std::collections::BTreeSet;

/// Returns at most `budget` of `candidates`, in the order in which to measure them.
///
/// The first group is the seats that must be measured now so that none waits longer than `wait_max` windows, longest
/// wait first. The second is those of `selected`, in its order, for which probes are drawn (PROT-30). The rest is a
/// seeded draw, weighted by windows waited, so that no seat can predict when it is measured. If the first two groups
/// exceed `budget`, they alternate, longest wait first: otherwise no validator would measure the probed seats.
/// Without selected seats the bound on the wait holds for up to `budget · wait_max` seats. With them, no seat waits
/// longer than `wait_max` windows and one more for each `⌈budget / 2⌉` candidates. An unmeasured seat has waited
/// longer in the next window. The order of the candidates does not matter.
///
/// `seed` is the validator's own ([`protocol::assign::evaluation_seed`]), `selected` that of [`in_turn`].
pub fn whom_to_evaluate(
    seed: &Digest,
    window: Window,
    candidates: &[SeatId],
    selected: &[Uid],
    reputations: &Reputations,
    budget: usize,
    wait_max: u32,
) -> Vec<SeatId> {
    let waited =
        |seat: &SeatId| reputations.seats.get(seat).map_or(0, |known: &Reputation| known.waited(window));
    let mut waiting: Vec<(SeatId, u32)> = candidates.iter().map(|seat| (*seat, waited(seat))).collect();
    waiting.sort_unstable();
    waiting.dedup();
    waiting.sort_by_cached_key(|(seat, waited)| (core::cmp::Reverse(*waited), lot(seed, *seat)));

    // In `r` windows including this one, at most `r·budget` seats can be measured. Of those due within `r` windows,
    // the ones that do not fit into the next `r − 1` must be measured now.
    let forced = waiting
        .iter()
        .enumerate()
        .map(|(before, (_, waited))| {
            let later = usize::try_from(wait_max.saturating_sub(*waited)).unwrap_or(usize::MAX);
            (before + 1).saturating_sub(later.saturating_mul(budget))
        })
        .max()
        .unwrap_or(0)
        .min(waiting.len());
    let (urgent, others) = waiting.split_at(forced);
    let picked = |of: &[(SeatId, u32)]| -> Vec<SeatId> {
        let place = |seat: &SeatId| selected.iter().position(|uid| *uid == seat.uid);
        let mut picked: Vec<_> = of.iter().filter_map(|(seat, _)| Some((place(seat)?, *seat))).collect();
        picked.sort_unstable();
        picked.into_iter().map(|(_, seat)| seat).collect()
    };
    let (urgent, later) = (urgent.iter().map(|(seat, _)| *seat), picked(others));
    let mut chosen: Vec<SeatId> = if forced + later.len() <= budget {
        urgent.chain(later).collect()
    } else {
        let (mut urgent, mut selected) = (urgent.fuse(), picked(&waiting).into_iter().fuse());
        let turns = std::iter::repeat_with(|| [urgent.next(), selected.next()]);
        let turns = turns.take_while(|turn| turn.iter().any(Option::is_some)).flatten().flatten();
        let mut seen = BTreeSet::new();
        turns.filter(|seat| seen.insert(*seat)).take(budget).collect()
    };
    let mut left: Vec<(SeatId, u32)> =
        others.iter().filter(|(seat, _)| !chosen.contains(seat)).copied().collect();
    left.sort_unstable();
    let mut draw = 0u64;
    while chosen.len() < budget && !left.is_empty() {
        let place = drawn(seed, draw, &left);
        chosen.push(left.remove(place).0);
        draw += 1;
    }
    chosen
}

/// Returns the selected seats in the order in which all validators measure them, drawn with the window's shared seed
/// ([`protocol::assign::probe_seed`]): a probe counts only if more than half of the stake measured it.
pub fn in_turn(probe_seed: &Digest, selected: impl IntoIterator<Item = Uid>) -> Vec<Uid> {
    let mut selected: Vec<Uid> = selected.into_iter().collect();
    selected.sort_by_cached_key(|uid| {
        Digest::of_parts(&[&probe_seed.0, b"evaluate/selected", &uid.0.to_le_bytes()])
    });
    selected
}

/// Draws an index into `waiting`, which is not empty, with odds of windows waited plus one.
fn drawn(seed: &Digest, draw: u64, waiting: &[(SeatId, u32)]) -> usize {
    let tickets = |waited: u32| u64::from(waited) + 1;
    let total: u64 = waiting.iter().map(|(_, waited)| tickets(*waited)).sum();
    let mut ticket =
        first_u64(&Digest::of_parts(&[&seed.0, b"evaluate/draw", &draw.to_le_bytes()])) % total.max(1);
    for (place, (_, waited)) in waiting.iter().enumerate() {
        match ticket.checked_sub(tickets(*waited)) {
            Some(rest) => ticket = rest,
            None => return place,
        }
    }
    waiting.len() - 1
}

fn lot(seed: &Digest, seat: SeatId) -> Digest {
    Digest::of_parts(&[
        &seed.0,
        b"evaluate/lot",
        &seat.uid.0.to_le_bytes(),
        &seat.registered_at.0.to_le_bytes(),
    ])
}

fn first_u64(digest: &Digest) -> u64 {
    digest.0.iter().take(8).fold(0, |number, byte| number << 8 | u64::from(*byte))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Evidence, LossPair, Measured, Observed, judge};
    use proptest::prelude::*;
    use protocol::{Block, RunParams};

    fn seats(count: u16) -> Vec<SeatId> {
        (0..count).map(|uid| SeatId { uid: Uid(uid), registered_at: Block(1) }).collect()
    }

    fn seed(window: u32) -> Digest {
        Digest::of(&window.to_le_bytes())
    }

    /// Judges a window in which only `chosen` of `all` were measured.
    fn after(reputations: &Reputations, window: u32, all: &[SeatId], chosen: &[SeatId]) -> Reputations {
        let pairs = vec![LossPair::new(0, 3.0, 2.9), LossPair::new(1, 3.0, 2.8)];
        let evidence: Vec<_> = all
            .iter()
            .map(|seat| {
                let measured =
                    chosen.contains(seat).then(|| Measured { own: pairs.clone(), common: pairs.clone() });
                Evidence {
                    seat: *seat,
                    observed: Observed::Valid { trained: 512, measured, near_duplicate: None },
                }
            })
            .collect();
        judge(&RunParams::default(), reputations, Window(window), &evidence).reputations
    }

    #[test]
    fn with_enough_time_every_seat_is_measured() {
        let all = seats(5);
        let chosen = whom_to_evaluate(&seed(0), Window(3), &all, &[], &Reputations::default(), 9, 4);
        assert_eq!(chosen.iter().copied().collect::<BTreeSet<_>>(), all.iter().copied().collect());
        assert_eq!(chosen.len(), 5);
        assert_eq!(whom_to_evaluate(&seed(0), Window(3), &all, &[], &Reputations::default(), 0, 4), []);
        assert_eq!(whom_to_evaluate(&seed(0), Window(3), &[], &[], &Reputations::default(), 4, 4), []);
    }

    #[test]
    fn the_seat_that_waited_longest_is_measured() {
        let all = seats(3);
        let mut reputations = after(&Reputations::default(), 0, &all, &all);
        for window in 1..4 {
            reputations = after(&reputations, window, &all, &all[1..]);
        }
        for number in 0..20 {
            let chosen = whom_to_evaluate(&seed(number), Window(4), &all, &[], &reputations, 1, 4);
            assert_eq!(chosen, [all[0]]);
        }
    }

    #[test]
    fn selected_seats_come_after_those_that_waited_longest_and_before_the_draw() {
        let all = seats(9);
        let mut reputations = after(&Reputations::default(), 0, &all, &all);
        for window in 1..4 {
            reputations = after(&reputations, window, &all, &all[1..]);
        }
        for number in 0..20 {
            let selected = [Uid(7), Uid(2)];
            let chosen = whom_to_evaluate(&seed(number), Window(4), &all, &selected, &reputations, 4, 3);
            assert_eq!(chosen[..3], [all[0], all[7], all[2]]);
            assert_eq!(chosen.len(), 4);
        }
    }

    #[test]
    fn where_too_many_have_waited_selected_seats_take_turns_with_them() {
        let all = seats(40);
        let reputations = after(&Reputations::default(), 0, &all, &all);
        let chosen = |selected: &[Uid], budget| {
            let chosen = whom_to_evaluate(&seed(9), Window(9), &all, selected, &reputations, budget, 3);
            assert_eq!(chosen.len(), budget);
            assert_eq!(chosen.iter().collect::<BTreeSet<_>>().len(), budget);
            chosen
        };
        // All have waited equally long; their order is drawn.
        let waited = chosen(&[], 40);
        let last: Vec<SeatId> = waited[30..].to_vec();
        let selected: Vec<Uid> = last.iter().map(|seat| seat.uid).collect();
        let turns = [waited[0], last[0], waited[1], last[1], waited[2], last[2]];
        assert_eq!(chosen(&selected, 6), turns);
        assert_eq!(chosen(&selected, 5), turns[..5]);
        assert_eq!(chosen(&selected, 1), turns[..1]);
        // The remaining ones, after the last selected one.
        assert_eq!(chosen(&selected[..1], 4), [waited[0], last[0], waited[1], waited[2]]);
        // A selected seat that is not a candidate, or has waited the longest, has no place of its own.
        assert_eq!(chosen(&[Uid(99), waited[0].uid], 4), waited[..4]);
        // As many as the budget have waited, and there is one selected seat.
        let few = &all[..9];
        let due = whom_to_evaluate(&seed(9), Window(9), few, &[Uid(8)], &reputations, 3, 3);
        assert_eq!(due[1], all[8]);
    }

    #[test]
    fn the_turn_of_a_selected_seat_is_drawn_for_each_window() {
        let firsts: BTreeSet<Uid> =
            (0..40).map(|window| in_turn(&seed(window), (0..4).map(Uid))[0]).collect();
        assert_eq!(firsts.len(), 4);
        assert_eq!(in_turn(&seed(1), (0..4).map(Uid)), in_turn(&seed(1), (0..4).rev().map(Uid)));
    }

    #[test]
    fn every_seat_may_be_first() {
        let all = seats(6);
        let firsts: BTreeSet<_> = (0..80)
            .map(|number| {
                whom_to_evaluate(&seed(number), Window(0), &all, &[], &Reputations::default(), 1, 50)[0]
            })
            .collect();
        assert_eq!(firsts.len(), 6);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(40))]

        #[test]
        fn no_seat_waits_longer_than_the_rule_allows(budget in 1usize..4, wait_max in 1u32..6, spare in 0usize..3) {
            let count = (budget * wait_max as usize).saturating_sub(spare).max(1);
            let all = seats(count as u16);
            let mut reputations = Reputations::default();
            for window in 0..30 {
                let chosen = whom_to_evaluate(&seed(window), Window(window), &all, &[], &reputations, budget, wait_max);
                prop_assert!(chosen.len() <= budget);
                reputations = after(&reputations, window, &all, &chosen);
                let longest = reputations.seats.values().map(|seat| seat.waited(Window(window + 1))).max().unwrap();
                // A seat first seen in window 0 has waited `window + 1`.
                prop_assert!(longest <= wait_max, "{longest} windows at {window}");
            }
        }

        // The seat that has waited the longest gets at least every other place.
        #[test]
        fn no_seat_waits_for_ever_behind_selected_ones(budget in 1usize..5, wait_max in 1u32..4, count in 1u16..20) {
            let all = seats(count);
            let most = wait_max + u32::from(count).div_ceil(budget.div_ceil(2) as u32);
            let mut reputations = Reputations::default();
            for window in 0..60 {
                let selected = in_turn(&seed(window), all[..all.len().min(6)].iter().map(|seat| seat.uid));
                let chosen =
                    whom_to_evaluate(&seed(window), Window(window), &all, &selected, &reputations, budget, wait_max);
                reputations = after(&reputations, window, &all, &chosen);
                let longest = reputations.seats.values().map(|seat| seat.waited(Window(window + 1))).max().unwrap();
                prop_assert!(longest <= most, "{longest} windows at {window}, at most {most}");
            }
        }

        #[test]
        fn the_order_of_the_candidates_does_not_matter(count in 0u16..9, budget in 0usize..9, number in any::<u32>()) {
            let mut all = seats(count);
            let chosen = whom_to_evaluate(&seed(number), Window(1), &all, &[], &Reputations::default(), budget, 3);
            all.reverse();
            prop_assert_eq!(whom_to_evaluate(&seed(number), Window(1), &all, &[], &Reputations::default(), budget, 3), chosen);
        }
    }
}
