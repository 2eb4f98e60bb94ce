//! Examples computed by hand, and properties that hold for all ballots.

use super::*;
use alloc::vec;
use proptest::prelude::*;

fn ballot(validator: u16, stake: u128, weights: &[(u16, u16)]) -> ValidatorWeights {
    let weights = weights.iter().map(|(seat, weight)| (Uid(*seat), *weight)).collect();
    ValidatorWeights { validator: Uid(validator), stake, weights, bonds: Vec::new(), earns: ONE }
}

/// Returns the ballots of the next epoch, with each validator's bonds from `last`.
fn after(last: &Consensus, ballots: Vec<ValidatorWeights>) -> Vec<ValidatorWeights> {
    let bonds_of = |uid| last.bonds.iter().find(|(validator, _)| *validator == uid);
    ballots
        .into_iter()
        .map(|ballot| ValidatorWeights {
            bonds: bonds_of(ballot.validator).map(|(_, bonds)| bonds.clone()).unwrap_or_default(),
            ..ballot
        })
        .collect()
}

fn sum(shares: &[(Uid, u64)]) -> u64 {
    shares.iter().map(|(_, share)| share).sum()
}

fn share_of(shares: &[(Uid, u64)], uid: u16) -> u64 {
    shares.iter().find(|(seat, _)| *seat == Uid(uid)).map_or(0, |(_, share)| *share)
}

fn bond_of(consensus: &Consensus, validator: u16, seat: u16) -> u32 {
    let row = consensus.bonds.iter().find(|(uid, _)| *uid == Uid(validator));
    row.and_then(|(_, bonds)| bonds.iter().find(|(uid, _)| *uid == Uid(seat))).map_or(0, |(_, bond)| *bond)
}

/// Checks that `share` equals `of/parts` of [`ONE`], up to a few roundings.
#[track_caller]
fn is_about(share: u64, of: u64, parts: u64) {
    let expected = ONE * of / parts;
    assert!(share.abs_diff(expected) <= 8, "{share} in place of {of}/{parts} = {expected}");
}

/// Computed by hand. `C_0 = C_1 = 1/2`, the weight of B and A; C keeps 1/4 and 1/2 of its 1/4 and 3/4.
/// So `I = (1/2, 1/2)`. `T_1 = (40 + 35 + 25)/2 / (20 + 17.5 + 18.75) = 8/9`. `B_0 = (20, 17.5, 6.25)/1000`, `B_1 =
/// (20, 17.5, 12.5)/1000`. `D_A = 1/2·20/43.75 + 1/2·20/50 = 3/7`, and so on.
#[test]
fn three_validators_and_two_seats_come_to_what_a_pencil_says() {
    let first = yuma(&[
        ballot(10, 40, &[(0, 1), (1, 1)]),
        ballot(11, 35, &[(0, 1), (1, 1)]),
        ballot(12, 25, &[(0, 1), (1, 3)]),
    ])
    .unwrap();
    assert_eq!(first.weights, [(Uid(0), 65535), (Uid(1), 65535)]);
    is_about(share_of(&first.incentive, 0), 1, 2);
    is_about(share_of(&first.incentive, 1), 1, 2);
    assert_eq!(share_of(&first.trust, 0), ONE);
    is_about(share_of(&first.trust, 1), 8, 9);
    assert_eq!(first.validator_trust, [(Uid(10), ONE), (Uid(11), ONE), (Uid(12), ONE / 4 * 3)]);
    for (validator, to_0, to_1) in [(10, 2000, 2000), (11, 1750, 1750), (12, 625, 1250)] {
        is_about(bond_of(&first, validator, 0).into(), to_0, 100_000);
        is_about(bond_of(&first, validator, 1).into(), to_1, 100_000);
    }
    is_about(share_of(&first.dividends, 10), 24, 56);
    is_about(share_of(&first.dividends, 11), 21, 56);
    is_about(share_of(&first.dividends, 12), 11, 56);

    // Then A and B drop seat 0 and C posts nothing. `B_1 = (0.058, 0.05075, 0.01125)`, and C's part goes to A and B,
    // `58 : 50.75 = 8 : 7`. No validator weights seat 0: its bonds lose a tenth.
    let second = vec![ballot(10, 40, &[(1, 9)]), ballot(11, 35, &[(1, 9)]), ballot(12, 25, &[])];
    let second = yuma(&after(&first, second)).unwrap();
    assert_eq!(second.weights, [(Uid(1), 65535)]);
    assert_eq!(second.incentive, [(Uid(1), ONE)]);
    is_about(bond_of(&second, 10, 1).into(), 5800, 100_000);
    is_about(bond_of(&second, 11, 1).into(), 5075, 100_000);
    is_about(bond_of(&second, 12, 1).into(), 1125, 100_000);
    is_about(bond_of(&second, 12, 0).into(), 5625, 1_000_000);
    is_about(share_of(&second.dividends, 10), 8, 15);
    is_about(share_of(&second.dividends, 11), 7, 15);
    assert_eq!(share_of(&second.dividends, 12), 0);
}

#[test]
fn where_all_agree_everyone_gets_what_they_say() {
    let honest = &[(0, 65535), (1, 32768), (2, 32767)];
    let ballots = [ballot(10, 5, honest), ballot(11, 5, honest), ballot(12, 5, honest)];
    let consensus = yuma(&ballots).unwrap();
    assert_eq!(consensus.weights, [(Uid(0), 65535), (Uid(1), 32768), (Uid(2), 32767)]);
    is_about(share_of(&consensus.incentive, 0), 1, 2);
    assert_eq!(sum(&consensus.incentive), ONE);
    for validator in [10, 11, 12] {
        is_about(share_of(&consensus.dividends, validator), 1, 3);
    }
    assert_eq!(sum(&consensus.dividends), ONE);
    assert!(consensus.validator_trust.iter().all(|(_, trust)| ONE - trust < 3));
}

/// With the mean of the clipped weights, the seat's share was 61 of 361 instead of a quarter.
#[test]
fn a_minority_that_gives_a_seat_nothing_does_not_lower_its_pay() {
    let all = &[(0, 1), (1, 1), (2, 1), (3, 1)];
    let without = &[(1, 1), (2, 1), (3, 1)];
    let consensus = yuma(&[ballot(10, 61, all), ballot(11, 39, without)]).unwrap();
    is_about(share_of(&consensus.incentive, 0), 1, 4);
}

#[test]
fn a_minority_that_pays_itself_moves_nothing_and_earns_nothing() {
    let ballots = [
        ballot(10, 34, &[(0, 10), (1, 10)]),
        ballot(11, 17, &[(0, 10), (1, 10)]),
        ballot(12, 49, &[(7, 65535)]),
    ];
    let consensus = yuma(&ballots).unwrap();
    assert_eq!(consensus.weights, [(Uid(0), 65535), (Uid(1), 65535)]);
    assert_eq!(share_of(&consensus.incentive, 7), 0);
    assert_eq!(consensus.dividends.iter().map(|(uid, _)| uid.0).collect::<Vec<_>>(), [10, 11]);
    assert_eq!(share_of(&consensus.validator_trust, 12), 0);
    assert_eq!(bond_of(&consensus, 12, 7), 0);
}

#[test]
fn exactly_half_of_the_stake_is_no_majority() {
    assert_eq!(yuma(&[ballot(1, 50, &[(0, 1)]), ballot(2, 50, &[(1, 1)])]), None);
    assert_eq!(
        yuma(&[ballot(1, 51, &[(0, 1)]), ballot(2, 50, &[(1, 1)])]).unwrap().weights,
        [(Uid(0), 65535)]
    );
}

#[test]
fn without_ballots_stake_or_weights_there_is_no_consensus() {
    assert_eq!(yuma(&[]), None);
    assert_eq!(yuma(&[ballot(1, 0, &[(0, 1)])]), None);
    assert_eq!(yuma(&[ballot(1, 5, &[])]), None);
    assert_eq!(yuma(&[ballot(1, 5, &[(0, 0)])]), None);
    // Bonds alone do not count as weights.
    let bonded = ValidatorWeights { bonds: vec![(Uid(0), u32::MAX)], ..ballot(1, 5, &[]) };
    assert_eq!(yuma(&[bonded]), None);
    // The stake of validators that posted nothing still counts.
    assert_eq!(yuma(&[ballot(1, 5, &[(0, 1)]), ballot(2, 5, &[]), ballot(3, 5, &[])]), None);
    assert!(yuma(&[ballot(1, 5, &[(0, 1)]), ballot(2, 5, &[(0, 3)]), ballot(3, 5, &[])]).is_some());
}

#[test]
fn what_a_validator_gave_beyond_the_consensus_costs_it_dividends() {
    let consensus = yuma(&[
        ballot(1, 10, &[(0, 50), (1, 50)]),
        ballot(2, 10, &[(0, 50), (1, 50)]),
        ballot(3, 10, &[(0, 90), (1, 10)]),
    ])
    .unwrap();
    // Validator 3 keeps 50 + 10 of its 100.
    assert_eq!(share_of(&consensus.validator_trust, 3), ONE / 2 + ONE / 10);
    assert!(share_of(&consensus.dividends, 3) < share_of(&consensus.dividends, 1));
    assert!(share_of(&consensus.dividends, 1) - share_of(&consensus.dividends, 2) <= 1);
}

#[test]
fn who_may_not_earn_still_decides_and_what_it_would_have_earned_goes_to_the_others() {
    let honest = &[(0, 2), (1, 1)];
    let all = [ballot(1, 10, honest), ballot(2, 10, honest), ballot(3, 20, honest)];
    let mut one_barred = all.clone();
    one_barred[2].earns = 0;
    let (free, barred) = (yuma(&all).unwrap(), yuma(&one_barred).unwrap());
    assert_eq!((&barred.weights, &barred.incentive), (&free.weights, &free.incentive));
    assert_eq!(barred.bonds, free.bonds);
    is_about(share_of(&free.dividends, 3), 1, 2);
    assert_eq!(share_of(&barred.dividends, 3), 0);
    is_about(share_of(&barred.dividends, 1), 1, 2);
    assert_eq!(sum(&barred.dividends), ONE);

    // A validator that may earn a quarter shares like one with a quarter of its bonds: 20/4 of 10 + 10 + 20/4.
    let mut one_slow = all.clone();
    one_slow[2].earns = ONE / 4;
    let slow = yuma(&one_slow).unwrap();
    is_about(share_of(&slow.dividends, 3), 1, 5);
    is_about(share_of(&slow.dividends, 1), 2, 5);

    // Miners are paid even if no validator may earn.
    let unpaid = all.map(|ballot| ValidatorWeights { earns: 0, ..ballot });
    let unpaid = yuma(&unpaid).unwrap();
    assert_eq!(unpaid.dividends, []);
    assert_eq!(sum(&unpaid.incentive), ONE);
}

/// Two validators weight seat 1 at once, the third only after three epochs. From then on all three post the same, and
/// the third still earns less, with a gap that shrinks each epoch.
#[test]
fn an_early_finder_of_a_good_seat_earns_more_than_a_late_one() {
    let (found, not_yet) = (&[(0, 1), (1, 1)], &[(0, 1)]);
    let mut last = yuma(&[ballot(1, 5, found), ballot(2, 5, found), ballot(3, 5, not_yet)]).unwrap();
    assert_eq!(bond_of(&last, 3, 1), 0);
    for _ in 0..2 {
        let ballots = vec![ballot(1, 5, found), ballot(2, 5, found), ballot(3, 5, not_yet)];
        last = yuma(&after(&last, ballots)).unwrap();
    }
    let mut behind = ONE;
    for _ in 0..10 {
        let ballots = vec![ballot(1, 5, found), ballot(2, 5, found), ballot(3, 5, found)];
        last = yuma(&after(&last, ballots)).unwrap();
        let (early, late) = (share_of(&last.dividends, 1), share_of(&last.dividends, 3));
        assert!(late < early, "late {late}, early {early}");
        assert!(early - late < behind, "the late finder does not catch up");
        behind = early - late;
    }
    // It began with a quarter, half of seat 1's half, and has lost a tenth of it each epoch.
    assert!(behind < ONE / 10);
}

/// The best seat changes each epoch. A validator that posts the last consensus is always one epoch behind.
#[test]
fn copying_the_last_consensus_earns_less_than_scoring_when_the_truth_moves() {
    let truth = |epoch: u16| -> Vec<(u16, u16)> {
        (0..5).map(|seat| (seat, if seat == epoch % 5 { 60_000 } else { 1_000 + seat })).collect()
    };
    let mut earned = [0u64; 2];
    let mut last: Option<Consensus> = None;
    for epoch in 0..40 {
        let scored = truth(epoch);
        let copied: Vec<_> = match &last {
            Some(last) => last.weights.iter().map(|(uid, weight)| (uid.0, *weight)).collect(),
            None => scored.clone(),
        };
        let ballots = vec![ballot(1, 9, &scored), ballot(2, 9, &scored), ballot(3, 9, &copied)];
        let consensus = match &last {
            Some(last) => yuma(&after(last, ballots)).unwrap(),
            None => yuma(&ballots).unwrap(),
        };
        earned[0] += share_of(&consensus.dividends, 1);
        earned[1] += share_of(&consensus.dividends, 3);
        last = Some(consensus);
    }
    let [scoring, copying] = earned;
    assert!(copying < scoring / 8, "copying earned {copying}, scoring {scoring}");
}

#[test]
fn bonds_to_a_seat_that_nobody_stands_behind_fade_away() {
    let honest = &[(0, 1), (1, 1)];
    let mut last = yuma(&[ballot(1, 5, honest), ballot(2, 5, honest)]).unwrap();
    let mut bond = bond_of(&last, 1, 1);
    while bond > 0 {
        last = yuma(&after(&last, vec![ballot(1, 5, &[(0, 1)]), ballot(2, 5, &[(0, 1)])])).unwrap();
        assert!(bond_of(&last, 1, 1) < bond);
        bond = bond_of(&last, 1, 1);
    }
    assert!(last.bonds.iter().all(|(_, row)| row.len() == 1));
}

#[test]
fn a_seat_that_comes_back_after_long_is_found_anew() {
    // Validators 1 and 2 weight seat 1; then all weight other seats; then 2 and 3 weight it again. Measures the
    // earnings of 1.
    let back_after = |epochs: u32| {
        let both = &[(0, 1), (1, 1)];
        let mut last = yuma(&[ballot(1, 5, both), ballot(2, 5, both), ballot(3, 5, &[(0, 1)])]).unwrap();
        for _ in 0..epochs {
            let away = [1, 2, 3].map(|uid| ballot(uid, 5, &[(0, 1)])).to_vec();
            last = yuma(&after(&last, away)).unwrap();
        }
        let ballots = vec![ballot(1, 5, &[(0, 1)]), ballot(2, 5, both), ballot(3, 5, both)];
        let last = yuma(&after(&last, ballots)).unwrap();
        let all: u64 = [1, 2, 3].iter().map(|validator| u64::from(bond_of(&last, *validator, 1))).sum();
        u64::from(bond_of(&last, 1, 1)) * 1000 / all
    };
    // 9 : 9 + 10 : 10 at once; after 30 epochs (9/10)^30 = 1/24 of that is left.
    assert_eq!(back_after(0), 9 * 1000 / 38);
    assert!(back_after(30) < 20, "{} thousandths", back_after(30));
}

#[test]
fn what_is_said_of_a_seat_is_said_in_one_place() {
    let consensus = yuma(&[ballot(10, 5, &[(0, 2), (1, 1)]), ballot(11, 5, &[(0, 2), (1, 1)])]).unwrap();
    let standings = consensus.seats();
    assert_eq!(standings.iter().map(|(uid, _)| uid.0).collect::<Vec<_>>(), [0, 1, 10, 11]);
    let of = |uid: u16| standings.iter().find(|(seat, _)| *seat == Uid(uid)).unwrap().1;
    assert_eq!((of(0).weight, of(0).incentive), (65535, share_of(&consensus.incentive, 0)));
    assert_eq!((of(0).trust, of(0).dividends), (ONE, 0));
    assert_eq!((of(10).weight, of(10).incentive, of(10).dividends), (0, 0, ONE / 2));
    assert_eq!(of(10).trust, share_of(&consensus.validator_trust, 10));
}

#[test]
fn the_largest_bounds_neither_overflow_nor_panic() {
    let weights: Vec<(u16, u16)> = (0..1088).map(|seat| (seat, u16::MAX - seat % 7)).collect();
    let bonds: Vec<(Uid, u32)> = (0..1088).map(|seat| (Uid(seat), u32::MAX)).collect();
    let full =
        |validator: u16| ValidatorWeights { bonds: bonds.clone(), ..ballot(validator, u128::MAX, &weights) };
    let ballots: Vec<_> = (0..64).map(full).collect();
    let consensus = yuma(&ballots).unwrap();
    assert_eq!(sum(&consensus.incentive), ONE);
    assert_eq!(sum(&consensus.dividends), ONE);
    assert_eq!(consensus.weights.len(), 1088);
    assert!(consensus.bonds.len() == 64 && consensus.bonds.iter().all(|(_, row)| row.len() == 1088));

    let every_uid: Vec<(u16, u16)> = (0..=u16::MAX).map(|seat| (seat, u16::MAX)).collect();
    let consensus = yuma(&[ballot(1, u128::MAX, &every_uid), ballot(2, u128::MAX, &every_uid)]).unwrap();
    assert_eq!((sum(&consensus.incentive), consensus.weights.len()), (ONE, 1 << 16));

    let dust = [ballot(1, u128::MAX, &[(0, 1)]), ballot(2, 1, &[(1, 1)])];
    assert_eq!(yuma(&dust).unwrap().dividends, [(Uid(1), ONE)]);
}

#[test]
fn a_second_ballot_weight_or_bond_counts_for_nothing_more() {
    let once = [ballot(1, 10, &[(0, 5), (1, 5)]), ballot(2, 9, &[(0, 1)])];
    let mut twice = once.to_vec();
    twice.push(ballot(2, 9, &[(1, 1)]));
    assert_eq!(yuma(&twice).unwrap().dividends.len(), 2);
    let doubled = [ballot(1, 10, &[(0, 5), (1, 5), (0, 900)]), once[1].clone()];
    assert_eq!(yuma(&doubled), yuma(&once));
    let bonded = |bonds: &[(Uid, u32)]| {
        [ValidatorWeights { bonds: bonds.to_vec(), ..once[0].clone() }, once[1].clone()]
    };
    assert_eq!(yuma(&bonded(&[(Uid(0), 7), (Uid(0), 900)])), yuma(&bonded(&[(Uid(0), 7)])));
}

fn any_ballots() -> impl Strategy<Value = Vec<ValidatorWeights>> {
    let weights = proptest::collection::btree_map(0u16..8, any::<u16>(), 0..8);
    let bonds = proptest::collection::btree_map((0u16..8).prop_map(Uid), any::<u32>(), 0..8);
    let stake = prop_oneof![0u128..1000, any::<u128>(), Just(u128::MAX)];
    proptest::collection::vec((stake, weights, bonds, 0..=ONE), 0..8).prop_map(|ballots| {
        let ballots = ballots.into_iter().enumerate();
        ballots
            .map(|(validator, (stake, weights, bonds, earns))| ValidatorWeights {
                bonds: bonds.into_iter().collect(),
                earns,
                ..ballot(100 + validator as u16, stake, &weights.into_iter().collect::<Vec<_>>())
            })
            .collect()
    })
}

/// Generates the scores of an epoch, seat by seat: at least one seat, all scores positive.
fn any_truth() -> impl Strategy<Value = Vec<(u16, u16)>> {
    proptest::collection::btree_map(0u16..6, 1u16.., 1..6).prop_map(|truth| truth.into_iter().collect())
}

proptest! {
    #[test]
    fn shares_add_up_exactly_whatever_is_posted(ballots in any_ballots()) {
        if let Some(consensus) = yuma(&ballots) {
            prop_assert_eq!(sum(&consensus.incentive), ONE);
            prop_assert!(consensus.dividends.is_empty() || sum(&consensus.dividends) == ONE);
            prop_assert!(crate::weights::is_canonical(&consensus.weights));
            prop_assert!(consensus.weights.iter().any(|(_, weight)| *weight == u16::MAX));
            prop_assert!(consensus.trust.iter().chain(&consensus.validator_trust).all(|(_, trust)| *trust <= ONE));
            for (validator, row) in &consensus.bonds {
                prop_assert!(!row.is_empty() && row.windows(2).all(|pair| pair[0].0 < pair[1].0));
                prop_assert!(row.iter().all(|(_, bond)| *bond > 0), "{validator}");
            }
        }
    }

    #[test]
    fn the_order_of_the_validators_does_not_matter(ballots in any_ballots()) {
        let mut reversed = ballots.clone();
        reversed.reverse();
        for ballot in &mut reversed {
            ballot.weights.reverse();
            ballot.bonds.reverse();
        }
        prop_assert_eq!(yuma(&reversed), yuma(&ballots));
    }

    #[test]
    fn without_a_ballot_or_leave_to_earn_nobody_earns(ballots in any_ballots()) {
        if let Some(consensus) = yuma(&ballots) {
            for ballot in &ballots {
                let earned = share_of(&consensus.dividends, ballot.validator.0);
                let may = ballot.earns > 0 && ballot.weights.iter().any(|(_, weight)| *weight > 0);
                prop_assert!(may || earned == 0);
            }
        }
    }

    /// Two thirds post the same weights: they are the consensus, whatever the last third posts and holds.
    #[test]
    fn a_minority_cannot_move_the_consensus(
        honest in any_truth(),
        lies in proptest::collection::vec((0u16..8, any::<u16>()), 0..8),
        held in proptest::collection::btree_map((0u16..8).prop_map(Uid), any::<u32>(), 0..8),
        stake in 1u128..1_000_000_000,
    ) {
        let majority = vec![ballot(1, stake, &honest), ballot(2, stake, &honest)];
        let alone = yuma(&majority).unwrap();
        let mut attacked = majority.clone();
        attacked.push(ballot(3, stake, &lies));
        let consensus = yuma(&attacked).unwrap();
        prop_assert_eq!(&consensus.weights, &alone.weights);
        for (seat, _) in &consensus.incentive {
            prop_assert!(honest.iter().any(|(known, _)| known == &seat.0), "a seat only the minority named is paid");
        }
        prop_assert!(share_of(&consensus.dividends, 3) <= share_of(&consensus.dividends, 1));

        // Bonds pay a validator, never a seat.
        attacked[2].bonds = held.into_iter().collect();
        let holding = yuma(&attacked).unwrap();
        prop_assert_eq!((holding.weights, holding.incentive), (consensus.weights, consensus.incentive));
    }

    /// Scoring never earns less than copying the last epoch's consensus, in any epoch; if the copy is clipped by 1 %
    /// or more, it earns more.
    #[test]
    fn scoring_earns_at_least_what_copying_earns(truths in proptest::collection::vec(any_truth(), 2..8)) {
        let mut last: Option<Consensus> = None;
        for truth in &truths {
            let copied: Vec<_> = match &last {
                Some(last) => last.weights.iter().map(|(uid, weight)| (uid.0, *weight)).collect(),
                None => truth.clone(),
            };
            let ballots = vec![ballot(1, 9, truth), ballot(2, 9, truth), ballot(3, 9, &copied)];
            let consensus = match &last {
                Some(last) => yuma(&after(last, ballots)).unwrap(),
                None => yuma(&ballots).unwrap(),
            };
            let (scoring, copying) = (share_of(&consensus.dividends, 1), share_of(&consensus.dividends, 3));
            // Up to roundings.
            prop_assert!(copying <= scoring + 16, "copying earned {}, scoring {}", copying, scoring);
            let moved: u64 = consensus.validator_trust.iter().filter(|(uid, _)| uid.0 == 3).map(|(_, stood)| ONE - stood).sum();
            prop_assert!(moved < ONE / 100 || copying < scoring, "{} of the copy did not stand", moved);
            last = Some(consensus);
        }
    }
}
