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
    let inputs = [0.0, 3.141_592_4, 3.141_592_6, -1.0, f64::NAN, f64::INFINITY, 1e9];
    assert_eq!(inputs.map(millionths), [0, 3_141_592, 3_141_593, 0, 0, u32::MAX, u32::MAX]);
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
const GOLDEN_NONE: &str = "";
const GOLDEN_ROOT: &str = "";

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

proptest! {
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
