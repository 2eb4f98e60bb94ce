use super::*;
use crate::Block;
use proptest::prelude::*;

const OURS: Leaves =
    Leaves { run: RunId(1), window: Window(7), validator: SeatId { uid: Uid(9), registered_at: Block(3) } };

fn leaves(of: Leaves, count: u16) -> Vec<Digest> {
    (0..count).map(|uid| of.leaf(Uid(uid), (uid % 3 != 2).then_some(&[u32::from(uid), 5][..]))).collect()
}

#[test]
fn a_loss_in_fixed_point_is_rounded_and_bounded() {
    let inputs = [0.0, 2.718_000_4, 2.718_000_6, -1.0, f64::NAN, f64::INFINITY, 1e9];
    assert_eq!(inputs.map(millionths), [0, 2_718_000, 2_718_001, 0, 0, u32::MAX, u32::MAX]);
}

#[test]
fn a_quarter_of_the_common_sequences_are_shared() {
    assert_eq!([0, 1, 4, 5, 8, 64, u32::MAX].map(sequences), [0, 1, 1, 2, 2, 16, 16]);
}

#[test]
fn a_leaf_binds_run_window_validator_seat_and_losses() {
    let base = OURS.leaf(Uid(1), Some(&[1, 2]));
    let validator = |uid, block| SeatId { uid: Uid(uid), registered_at: Block(block) };
    let others = [
        Leaves { run: RunId(2), ..OURS }.leaf(Uid(1), Some(&[1, 2])),
        Leaves { window: Window(8), ..OURS }.leaf(Uid(1), Some(&[1, 2])),
        Leaves { validator: validator(8, 3), ..OURS }.leaf(Uid(1), Some(&[1, 2])),
        Leaves { validator: validator(9, 4), ..OURS }.leaf(Uid(1), Some(&[1, 2])),
        OURS.leaf(Uid(2), Some(&[1, 2])),
        OURS.leaf(Uid(1), Some(&[1, 3])),
        OURS.leaf(Uid(1), Some(&[1])),
        OURS.leaf(Uid(1), None),
    ];
    assert!(others.iter().all(|other| *other != base));
}

#[test]
fn the_root_is_the_one_that_was_published() {
    assert_eq!(alloc::format!("{}", root(&[])), GOLDEN_NONE);
    assert_eq!(alloc::format!("{}", root(&leaves(OURS, 5))), GOLDEN_ROOT);
}
const GOLDEN_NONE: &str = "4de22ea76bd2d1ee1107bd84f6e7a2c5a34add954dccb6b1d01e7f2c9a788ee5";
const GOLDEN_ROOT: &str = "4820ffeb4e4c5965c7eb3f1277c267005577a92948c0cf15e2c6e2d4e881f179";

#[test]
fn a_proof_of_another_length_place_or_tree_is_refused() {
    let leaves = leaves(OURS, 6);
    let (top, shown) = (root(&leaves), proof(&leaves, 3).unwrap());
    assert_eq!(verify(&top, 6, 3, leaves[3], &shown), Ok(()));
    assert_eq!(verify(&top, 6, 3, leaves[2], &shown), Err(ProofError::OtherLosses));
    assert_eq!(verify(&top, 6, 2, leaves[3], &shown), Err(ProofError::OtherLosses));
    assert_eq!(verify(&top, 6, 6, leaves[3], &shown), Err(ProofError::NoSuchLeaf));
    assert_eq!(verify(&top, 6, 3, leaves[3], &shown[1..]), Err(ProofError::Length));
    assert_eq!(verify(&top, 3, 2, leaves[3], &shown), Err(ProofError::Length));
    assert_eq!(verify(&root(&[]), 0, 0, root(&[]), &[]), Err(ProofError::NoSuchLeaf));
    assert_eq!(proof(&leaves, 6), None);
}

#[test]
fn a_draw_holds_different_selected_pairs_and_follows_the_hash() {
    let selected: Vec<(Window, Vec<Uid>)> =
        (8..18).map(|window| (Window(window), (0..5).map(Uid).collect())).collect();
    let of = |byte| draw(RunId(1), Window(20), &Digest([byte; 32]), &selected);
    let drawn = of(1);
    assert_eq!(drawn.len(), PROBES as usize);
    assert!(drawn.is_sorted_by(|one, other| one < other));
    assert!(drawn.iter().all(|probe| (8..18).contains(&probe.window.0) && probe.uid.0 < 5));
    assert_ne!(drawn, of(2));
    assert_eq!(draw(RunId(1), Window(20), &Digest([1; 32]), &selected[..1]).len(), 5);
    assert_eq!(draw(RunId(1), Window(20), &Digest([1; 32]), &[]), []);
}

fn shown(stake: u128, answers: &[Option<&[u32]>]) -> Shown {
    shown_from(0, stake, answers)
}

/// Returns the answers of a validator whose seat has its holder since the drawn contribution `first`.
fn shown_from(first: usize, stake: u128, answers: &[Option<&[u32]>]) -> Shown {
    Shown { stake, first, answers: answers.iter().map(|answer| answer.map(<[u32]>::to_vec)).collect() }
}

fn verdict(counted: u32, right: u32, wrong: u32) -> ProbeVerdict {
    ProbeVerdict { counted, right, wrong }
}

#[test]
fn what_more_than_half_of_the_stake_agrees_on_is_right() {
    let true_losses: &[u32] = &[3_000_000, 2_000_000];
    let near: &[u32] = &[3_000_100, 1_999_900];
    let off: &[u32] = &[3_000_000, 2_000_101];
    let validators = [
        shown(30, &[Some(true_losses), Some(true_losses)]),
        shown(30, &[Some(near), None]),
        shown(20, &[Some(off), Some(true_losses)]),
        // Shows one sequence too few, and no answer for the second contribution.
        shown(10, &[Some(&true_losses[..1])]),
        shown(10, &[]),
    ];
    let found = judge(2, &validators, 100);
    // The second contribution was shown by exactly half of the stake: it does not count.
    assert_eq!(
        found,
        [verdict(1, 1, 0), verdict(1, 1, 0), verdict(1, 0, 1), verdict(1, 0, 1), verdict(1, 0, 0)]
    );
    let parts: Vec<u64> = found.iter().map(ProbeVerdict::earns).collect();
    assert_eq!(parts, [ONE, ONE, 0, 0, 0]);
}

#[test]
fn a_validator_is_judged_by_the_contributions_of_its_time() {
    let (truth, lie): (&[u32], &[u32]) = (&[3], &[900]);
    let all = [Some(truth); 4];
    let validators = [
        shown(30, &all),
        shown(30, &all),
        // Registered before the third contribution.
        shown_from(2, 10, &[None, None, Some(truth), Some(truth)]),
        shown_from(2, 10, &[None, None, Some(truth), None]),
        shown_from(2, 10, &[Some(truth), Some(truth), None, Some(lie)]),
        // Registered after all of them.
        shown_from(4, 10, &[]),
    ];
    let found = judge(4, &validators, 100);
    let expected = [
        verdict(4, 4, 0),
        verdict(4, 4, 0),
        verdict(2, 2, 0),
        verdict(2, 1, 0),
        verdict(2, 0, 1),
        verdict(4, 0, 0),
    ];
    assert_eq!(found, expected);
    // Their stake still counts: half of it is not enough.
    let few = [shown(30, &all), shown_from(4, 30, &[])];
    assert_eq!(judge(4, &few, 100), [verdict(0, 0, 0); 2]);
}

#[test]
fn dividends_are_earned_by_the_part_that_was_shown() {
    let parts = [verdict(0, 0, 0), verdict(8, 8, 0), verdict(8, 2, 0), verdict(8, 7, 1), verdict(8, 0, 0)];
    assert_eq!(parts.map(|verdict| verdict.earns()), [ONE, ONE, ONE / 4, 0, 0]);
}

#[test]
fn without_validators_stake_or_answers_nothing_counts() {
    assert_eq!(judge(8, &[], 100), []);
    assert_eq!(judge(1, &[shown(0, &[Some(&[1])])], 100), [verdict(0, 0, 0)]);
    assert_eq!(judge(3, &[shown(u128::MAX, &[]), shown(u128::MAX, &[])], 100), [verdict(0, 0, 0); 2]);
}

proptest! {
    /// Validators with more than half of the stake show their measurements, or nothing. Whatever the others show, no
    /// honest one is wrong.
    #[test]
    fn less_than_half_of_the_stake_cannot_make_an_honest_validator_wrong(
        truth in proptest::collection::vec(any::<u32>(), 0..4),
        honest in proptest::collection::vec((1u128..100, any::<bool>(), 0u32..50), 1..6),
        lies in proptest::collection::vec((1u128..100, proptest::option::of(
            proptest::collection::vec(any::<u32>(), 0..4))), 0..6),
    ) {
        let measured = |noise: u32| truth.iter().map(|loss| loss.saturating_add(noise)).collect::<Vec<u32>>();
        let mut validators: Vec<Shown> = honest
            .iter()
            .map(|(stake, shows, noise)| {
                Shown { stake: *stake, first: 0, answers: vec![shows.then(|| measured(*noise))] }
            })
            .collect();
        let mut left = honest.iter().map(|(stake, ..)| stake).sum::<u128>().saturating_sub(1);
        for (stake, lie) in lies {
            let stake = stake.min(left);
            left -= stake;
            validators.push(Shown { stake, first: 0, answers: vec![lie] });
        }
        let verdicts = judge(1, &validators, 50);
        for (verdict, _) in verdicts.iter().zip(&honest) {
            prop_assert_eq!(verdict.wrong, 0);
        }
    }

    #[test]
    fn every_leaf_of_every_tree_can_be_proved_and_no_other(count in 1u16..70, other in 0u16..70) {
        let leaves = leaves(OURS, count);
        let top = root(&leaves);
        for (place, leaf) in leaves.iter().enumerate() {
            let shown = proof(&leaves, place).unwrap();
            prop_assert!(shown.len() <= PROOF_MAX as usize);
            prop_assert_eq!(verify(&top, leaves.len(), place, *leaf, &shown), Ok(()));
            let elsewhere = usize::from(other % count);
            prop_assert_eq!(verify(&top, leaves.len(), elsewhere, *leaf, &shown).is_ok(), elsewhere == place);
        }
    }
}
