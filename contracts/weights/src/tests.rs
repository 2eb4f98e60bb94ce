//! Weight votes, their consensus, and every refusal with storage unchanged (PROT-33).

use crate::{mock::*, *};
use frame::{deps::frame_support::dispatch::CheckIfFeeless, testing_prelude::*};
use pallet_mock::consent;
use pallet_registry::MinerWeights as _;
use pallet_windows::{Epochs as _, Member};
use proptest::prelude::*;
use protocol::{
    Digest, Role, RunParams, Window,
    consensus::ONE,
    view::{Outcome, SeatConsensus, Verdict, Vote},
};

mod probes;

/// Returns the first block of each phase of an epoch's weight votes.
fn committing(epoch: u32) -> u64 {
    17 + u64::from(epoch) * 10
}
fn revealing(epoch: u32) -> u64 {
    20 + u64::from(epoch) * 10
}
fn closing(epoch: u32) -> u64 {
    25 + u64::from(epoch) * 10
}

/// Lets the given validators attest and commit in `epoch` and reveal in the next one, until the epoch closes.
fn epoch_of(epoch: u32, votes: &[(u16, &[(u16, u16)])]) {
    go_to_block(committing(epoch));
    for (uid, weights) in votes {
        assert_ok!(attest(*uid));
        assert_ok!(commit(*uid, epoch, weights));
    }
    go_to_block(revealing(epoch));
    for (uid, weights) in votes {
        assert_ok!(reveal(*uid, epoch, weights));
    }
    go_to_block(closing(epoch));
}

fn all(weights: &[(u16, u16)]) -> [(u16, &[(u16, u16)]); 3] {
    VALIDATORS.map(|uid| (uid, weights))
}

fn standing_weights() -> Vec<(u16, u16)> {
    Weights::weights(RUN).into_iter().map(|(uid, weight)| (uid.0, weight)).collect()
}

fn earners(consensus: &Consensus) -> Vec<u16> {
    consensus.dividends.iter().map(|(uid, _)| uid.0).collect()
}

fn bonds(validator: u16) -> Vec<u16> {
    BondsOf::<Test>::get(RUN, Uid(validator)).into_iter().map(|(uid, _)| uid.0).collect()
}

#[test]
fn agreed_weights_become_the_consensus_at_the_close() {
    with_run(|| {
        go_to_block(12);
        for uid in VALIDATORS {
            assert_ok!(attest(uid));
            assert_ok!(commit(uid, 0, &[(0, 65535), (1, 65535)]));
        }
        let hash = hash(5, &[(0, 65535), (1, 65535)]);
        System::assert_has_event(
            Event::<Test>::Committed { run: RUN, epoch: 0, validator: Uid(5), hash }.into(),
        );
        go_to_block(24);
        for uid in VALIDATORS {
            assert_ok!(reveal(uid, 0, &[(0, 65535), (1, 65535)]));
        }
        System::assert_has_event(
            Event::<Test>::Revealed { run: RUN, epoch: 0, validator: Uid(5), seats: 2 }.into(),
        );
        assert!(standing_weights().is_empty());
        go_to_block(25);
        assert_eq!(standing_weights(), [(0, 65535), (1, 65535)]);
        System::assert_has_event(
            Event::<Test>::ConsensusReached { run: RUN, epoch: 0, weight_votes: 3, seats: 2 }.into(),
        );
        // The window that opens at the close draws by the new weights.
        let view = Windows::window_view(RUN, Window(3)).unwrap();
        assert_eq!(view.weights, [(Uid(0), 65535), (Uid(1), 65535)]);
    });
}

#[test]
fn an_epoch_is_paid_once_by_its_consensus() {
    with_run(|| {
        epoch_of(0, &all(&[(0, 65535), (1, 65535)]));
        let paid = Paid::get();
        assert_eq!(paid.len(), 1);
        let (run, epoch, consensus) = &paid[0];
        assert_eq!((*run, *epoch), (RUN, 0));
        assert_eq!(consensus.incentive, [(Uid(0), ONE / 2), (Uid(1), ONE / 2)]);
        assert_eq!(earners(consensus), VALIDATORS);
    });
}

#[test]
fn the_consensus_on_a_seat_can_be_read() {
    with_run(|| {
        epoch_of(0, &[(3, &[(0, 1), (1, 1)]), (4, &[(0, 1), (1, 1)]), (5, &[(0, 1), (2, 1)])]);
        let miner = Weights::consensus_of(RUN, Uid(0));
        assert_eq!(miner.weight, 65535);
        assert_eq!(miner.incentive, ONE / 2, "seat 1 has as much: more than half of the stake gives it so");
        assert_eq!((miner.trust, miner.dividends), (ONE, 0));
        let outsider = Weights::consensus_of(RUN, Uid(5));
        assert_eq!((outsider.weight, outsider.incentive, outsider.trust), (0, 0, ONE / 2));
        assert!(0 < outsider.dividends && outsider.dividends < Weights::consensus_of(RUN, Uid(3)).dividends);
        // Seat 2 has one validator behind it, and seat 9 does not exist: neither has a consensus.
        assert_eq!(Weights::consensus_of(RUN, Uid(2)), SeatConsensus::default());
        assert_eq!(Weights::consensus_of(RUN, Uid(99)), SeatConsensus::default());
        assert_eq!(LastConsensus::<Test>::get(RUN).len(), 5);
        assert_eq!((bonds(3), bonds(5)), (vec![0, 1], vec![0]));
    });
}

#[test]
fn without_a_consensus_the_last_weights_and_bonds_stay_and_nothing_is_paid() {
    with_run(|| {
        epoch_of(0, &all(&[(0, 65535)]));
        let before = (standing_weights(), BondsOf::<Test>::get(RUN, Uid(3)), LastConsensus::<Test>::get(RUN));
        // One of three equal stakes is not a majority, even without other votes.
        epoch_of(1, &[(3, &[(1, 65535)])]);
        assert_eq!(
            (standing_weights(), BondsOf::<Test>::get(RUN, Uid(3)), LastConsensus::<Test>::get(RUN)),
            before
        );
        assert_eq!(Paid::get().len(), 1);
        System::assert_has_event(Event::<Test>::NoConsensus { run: RUN, epoch: 1, weight_votes: 1 }.into());
        // Without any revealed vote there is no consensus.
        go_to_block(closing(2));
        assert_eq!(standing_weights(), [(0, 65535)]);
        System::assert_has_event(Event::<Test>::NoConsensus { run: RUN, epoch: 2, weight_votes: 0 }.into());
    });
}

#[test]
fn a_validator_that_does_not_reveal_earns_nothing_and_the_others_earn_its_part() {
    with_run(|| {
        epoch_of(0, &all(&[(0, 1)]));
        go_to_block(committing(1));
        for uid in VALIDATORS {
            assert_ok!(attest(uid));
            assert_ok!(commit(uid, 1, &[(0, 1)]));
        }
        go_to_block(revealing(1));
        assert_ok!(reveal(3, 1, &[(0, 1)]));
        assert_ok!(reveal(4, 1, &[(0, 1)]));
        go_to_block(closing(1));
        let consensus = &Paid::get()[1].2;
        assert_eq!(consensus.dividends, [(Uid(3), ONE / 2), (Uid(4), ONE / 2)]);
        System::assert_has_event(Event::<Test>::NotRevealed { run: RUN, epoch: 1, validator: Uid(5) }.into());
    });
}

#[test]
fn a_validator_absent_all_epoch_has_no_vote_and_earns_nothing() {
    with_run(|| {
        go_to_block(12);
        for (uid, weights) in [(3, [(0, 1)]), (4, [(0, 1)]), (5, [(1, 1)])] {
            if uid != 5 {
                assert_ok!(attest(uid));
            }
            assert_ok!(commit(uid, 0, &weights));
        }
        // Returning in the next epoch does not change it.
        go_to_block(22);
        for (uid, weights) in [(3, [(0, 1)]), (4, [(0, 1)]), (5, [(1, 1)])] {
            assert_ok!(attest(uid));
            assert_ok!(reveal(uid, 0, &weights));
        }
        go_to_block(25);
        let paid = Paid::get();
        assert_eq!(paid[0].2.incentive, [(Uid(0), ONE)]);
        assert_eq!(earners(&paid[0].2), [3, 4]);
    });
}

#[test]
fn a_validator_with_a_minority_vote_keeps_its_weight_vote_and_earns_nothing() {
    with_run(|| {
        go_to_block(12);
        for uid in VALIDATORS {
            assert_ok!(commit(uid, 0, &[(0, 1)]));
        }
        go_to_block(20);
        for uid in VALIDATORS {
            assert_ok!(reveal(uid, 0, &[(0, 1)]));
        }
        let member = |uid, minority_votes| Member {
            uid: Uid(uid),
            stake: STAKE,
            attested: true,
            minority_votes,
            silent: false,
        };
        Weights::close(RUN, 0, 2, &[member(3, 0), member(4, 2), member(5, 0)]);
        let consensus = &Paid::get()[0].2;
        assert_eq!(consensus.dividends, [(Uid(3), ONE / 2), (Uid(5), ONE / 2)]);
        assert_eq!(bonds(4), bonds(3));
        assert_eq!(Weights::consensus_of(RUN, Uid(4)).trust, ONE);
    });
}

/// Merges both windows of epoch 0 by the votes of `voters`, one after the other. All validators attest, commit
/// and reveal; then `before_the_close` runs.
fn merged_epoch(voters: &[u16], before_the_close: impl FnOnce()) -> Consensus {
    let update = Vote { update: Digest([7; 32]), state_root: None };
    with_params(RunParams { min_contributions: 1, localnet: true, ..params() }, || {
        for window in [0, 1] {
            let opens = u64::from(SCHEDULE.opens_at(Window(window)).0);
            go_to_block(opens);
            assert_ok!(Windows::commit(signed(0), RUN, Window(window), Digest([1; 32])));
            go_to_block(opens + 2);
            for uid in VALIDATORS {
                let seen = vec![(Uid(0), Verdict::Valid)].try_into().unwrap();
                assert_ok!(Windows::attest(signed(uid), RUN, Window(window), seen, Digest([0; 32])));
            }
            go_to_block(opens + 4);
            for uid in voters {
                assert_ok!(Windows::vote(signed(*uid), RUN, Window(window), update));
            }
        }
        for uid in VALIDATORS {
            assert_ok!(commit(uid, 0, &[(0, 1)]));
        }
        go_to_block(revealing(0));
        let merged = |window| Windows::window_view(RUN, Window(window)).unwrap().outcome;
        assert_eq!([merged(0), merged(1)], [Some(Outcome::Merged(update)); 2]);
        for uid in VALIDATORS {
            assert_ok!(reveal(uid, 0, &[(0, 1)]));
        }
        before_the_close();
        go_to_block(closing(0));
    });
    Paid::get().pop().unwrap().2
}

#[test]
fn an_inactive_validator_earns_nothing_and_the_others_earn_its_part() {
    let consensus = merged_epoch(&[3, 4], || {});
    assert_eq!(consensus.dividends, [(Uid(3), ONE / 2), (Uid(4), ONE / 2)]);
    // It keeps its weight vote and its bonds.
    let of = |uid| consensus.bonds.iter().find(|(validator, _)| *validator == Uid(uid)).unwrap().1.clone();
    assert_eq!(of(5), of(3));
    assert_eq!(consensus.seats().iter().find(|(uid, _)| *uid == Uid(5)).unwrap().1.trust, ONE);
}

#[test]
fn a_validator_that_votes_after_two_thirds_is_paid_like_the_others() {
    assert_eq!(earners(&merged_epoch(&[3, 4, 5], || {})), VALIDATORS);
}

#[test]
fn an_inactive_validator_that_leaves_before_the_close_earns_nothing_and_an_active_one_is_paid() {
    let leave = |uid| {
        move || {
            assert_ok!(Registry::leave(coldkey(), RUN, Uid(uid)));
        }
    };
    assert_eq!(earners(&merged_epoch(&[3, 4], leave(5))), [3, 4]);
    assert_eq!(Left::get()[0].member.map(|member| member.silent), Some(true));
    assert_eq!(earners(&merged_epoch(&[3, 4], leave(4))), [3, 4]);
    assert_eq!(Left::get()[0].member.map(|member| member.silent), Some(false));
}

#[test]
fn a_minority_cannot_raise_a_seat() {
    with_run(|| {
        epoch_of(0, &[(3, &[(0, 65535)]), (4, &[(0, 65535)]), (5, &[(1, 65535)])]);
        assert_eq!(standing_weights(), [(0, 65535)]);
        assert_eq!(earners(&Paid::get()[0].2), [3, 4]);
    });
}

#[test]
fn an_earlier_backer_of_a_seat_earns_more_by_it_later() {
    with_run(|| {
        epoch_of(0, &[(3, &[(0, 1), (1, 1)]), (4, &[(0, 1), (1, 1)]), (5, &[(0, 1)])]);
        epoch_of(1, &all(&[(0, 1), (1, 1)]));
        let dividends = |uid| Weights::consensus_of(RUN, Uid(uid)).dividends;
        assert!(dividends(5) < dividends(3), "{} against {}", dividends(5), dividends(3));
        assert!(dividends(3).abs_diff(dividends(4)) <= 1);
    });
}

#[test]
fn a_weight_vote_is_committed_in_its_own_epoch() {
    with_run(|| {
        assert_noop!(commit(3, 0, &[(0, 1)]), Error::<Test>::NotStarted);
        go_to_block(19);
        assert_noop!(commit(3, 1, &[(0, 1)]), Error::<Test>::EpochNotBegun);
        assert_noop!(commit(3, u32::MAX, &[(0, 1)]), Error::<Test>::EpochNotBegun);
        assert_ok!(commit(3, 0, &[(0, 1)]));
        go_to_block(20);
        assert_noop!(commit(4, 0, &[(0, 1)]), Error::<Test>::EpochOver);
        assert_ok!(commit(3, 1, &[(0, 1)]));
    });
}

#[test]
fn a_weight_vote_is_revealed_in_the_first_windows_of_the_next_epoch() {
    with_run(|| {
        assert_noop!(reveal(3, 0, &[(0, 1)]), Error::<Test>::NotStarted);
        go_to_block(19);
        for uid in VALIDATORS {
            assert_ok!(commit(uid, 0, &[(0, 1)]));
        }
        assert_noop!(reveal(3, 0, &[(0, 1)]), Error::<Test>::RevealNotBegun);
        assert_noop!(reveal(3, u32::MAX, &[(0, 1)]), Error::<Test>::RevealNotBegun);
        go_to_block(20);
        assert_ok!(reveal(3, 0, &[(0, 1)]));
        go_to_block(24);
        assert_ok!(reveal(4, 0, &[(0, 1)]));
        go_to_block(25);
        assert_noop!(reveal(5, 0, &[(0, 1)]), Error::<Test>::RevealOver);
    });
}

#[test]
fn commitment_and_reveal_are_final() {
    with_run(|| {
        go_to_block(12);
        assert_ok!(commit(3, 0, &[(0, 1)]));
        assert_noop!(commit(3, 0, &[(0, 1)]), Error::<Test>::AlreadyCommitted);
        assert_noop!(commit(3, 0, &[(0, 2)]), Error::<Test>::AlreadyCommitted);
        go_to_block(20);
        assert_ok!(reveal(3, 0, &[(0, 1)]));
        assert_noop!(reveal(3, 0, &[(0, 1)]), Error::<Test>::AlreadyRevealed);
    });
}

#[test]
fn only_the_hashed_weights_can_be_revealed_and_only_by_the_hashed_hotkey() {
    with_run(|| {
        go_to_block(12);
        assert_ok!(commit(3, 0, &[(0, 1), (1, 2)]));
        // A copied hash cannot be revealed: it binds the other hotkey.
        assert_ok!(Weights::commit(signed(4), RUN, 0, hash(3, &[(0, 1), (1, 2)])));
        go_to_block(20);
        assert_noop!(reveal(3, 0, &[(0, 1), (1, 3)]), Error::<Test>::OtherThanCommitted);
        assert_noop!(
            Weights::reveal(signed(3), RUN, 0, weights(&[(0, 1), (1, 2)]), salt(4)),
            Error::<Test>::OtherThanCommitted
        );
        assert_noop!(
            Weights::reveal(signed(4), RUN, 0, weights(&[(0, 1), (1, 2)]), salt(3)),
            Error::<Test>::OtherThanCommitted
        );
        assert_noop!(reveal(5, 0, &[(0, 1)]), Error::<Test>::NothingCommitted);
        assert_ok!(reveal(3, 0, &[(0, 1), (1, 2)]));
    });
}

#[test]
fn only_canonical_weights_can_be_revealed() {
    with_run(|| {
        go_to_block(12);
        let bad: [&[(u16, u16)]; 3] = [&[(1, 1), (0, 1)], &[(0, 1), (0, 1)], &[(0, 1), (1, 0)]];
        for (uid, weights) in VALIDATORS.into_iter().zip(bad) {
            assert_ok!(commit(uid, 0, weights));
        }
        go_to_block(20);
        for (uid, weights) in VALIDATORS.into_iter().zip(bad) {
            assert_noop!(reveal(uid, 0, weights), Error::<Test>::NotCanonical);
        }
        assert_noop!(reveal(3, 0, &[]), Error::<Test>::NoWeights);
    });
}

#[test]
fn only_validators_vote_on_weights_and_only_in_existing_runs() {
    with_run(|| {
        go_to_block(12);
        let digest = Digest([0; 32]);
        assert_noop!(commit(0, 0, &[(0, 1)]), Error::<Test>::NotAValidator);
        assert_noop!(commit(40, 0, &[(0, 1)]), Error::<Test>::NotASeat);
        assert_noop!(Weights::commit(signed(3), RunId(9), 0, digest), Error::<Test>::UnknownRun);
        assert_noop!(Weights::commit(RuntimeOrigin::none(), RUN, 0, digest), DispatchError::BadOrigin);
        assert_noop!(Weights::commit(RuntimeOrigin::root(), RUN, 0, digest), DispatchError::BadOrigin);
        go_to_block(20);
        let empty = || weights(&[]);
        assert_noop!(reveal(0, 0, &[(0, 1)]), Error::<Test>::NotAValidator);
        assert_noop!(reveal(40, 0, &[(0, 1)]), Error::<Test>::NotASeat);
        assert_noop!(Weights::reveal(signed(3), RunId(9), 0, empty(), salt(3)), Error::<Test>::UnknownRun);
        assert_noop!(
            Weights::reveal(RuntimeOrigin::none(), RUN, 0, empty(), salt(3)),
            DispatchError::BadOrigin
        );
        assert_noop!(
            Weights::reveal(RuntimeOrigin::root(), RUN, 0, empty(), salt(3)),
            DispatchError::BadOrigin
        );
    });
}

#[test]
fn weights_of_uids_without_a_miner_do_not_count() {
    with_run(|| {
        // Seat 4 is a validator's, and seat 9 does not exist.
        epoch_of(0, &all(&[(0, 1), (4, 60_000), (9, 60_000)]));
        assert_eq!(standing_weights(), [(0, 65535)]);
        assert_eq!(bonds(3), [0]);
    });
}

#[test]
fn a_rotated_hotkey_reveals_the_old_one_s_commitment() {
    with_run(|| {
        go_to_block(12);
        for uid in VALIDATORS {
            assert_ok!(attest(uid));
            assert_ok!(commit(uid, 0, &[(0, 1)]));
        }
        assert_ok!(Registry::rotate_hotkey(
            coldkey(),
            RUN,
            Uid(5),
            hotkey(77),
            consent(&hotkey(77), RUN, &COLDKEY)
        ));
        go_to_block(20);
        let revealed = Weights::reveal(signed(77), RUN, 0, weights(&[(0, 1)]), salt(5));
        assert_ok!(revealed);
        assert_noop!(reveal(5, 0, &[(0, 1)]), Error::<Test>::NotASeat);
        assert_eq!(WeightVotes::<Test>::iter_prefix((RUN, 0)).count(), 1);
    });
}

#[test]
fn a_miner_that_leaves_after_the_epoch_is_paid_for_it_and_its_successor_inherits_nothing() {
    with_run(|| {
        epoch_of(0, &all(&[(0, 1), (1, 1)]));
        assert_eq!(bonds(3), [0, 1]);
        // Seat 1 leaves with the last window of epoch 1, and its uid is taken again at once.
        go_to_block(committing(1));
        for uid in VALIDATORS {
            assert_ok!(attest(uid));
            assert_ok!(commit(uid, 1, &[(0, 1), (1, 1)]));
        }
        assert_ok!(Registry::leave(coldkey(), RUN, Uid(1)));
        go_to_block(revealing(1));
        assert_eq!(standing_weights(), [(0, 65535)]);
        assert_eq!(Weights::consensus_of(RUN, Uid(1)), SeatConsensus::default());
        register(Role::Miner, 50);
        assert_eq!(pallet_registry::SeatsOf::<Test>::get(RUN, Uid(1)).unwrap().hotkey, hotkey(50));
        for uid in VALIDATORS {
            assert_ok!(reveal(uid, 1, &[(0, 1), (1, 1)]));
        }
        go_to_block(closing(1));
        assert_eq!(standing_weights(), [(0, 65535)]);
        assert_eq!(bonds(3), [0]);
        // It did the epoch's work, so the pay is due to it.
        let (_, epoch, consensus) = Paid::get().pop().unwrap();
        assert_eq!((epoch, consensus.incentive.iter().map(|(uid, _)| uid.0).collect()), (1, vec![0, 1]));
        let left = Left::get();
        assert_eq!(left.len(), 1);
        assert_eq!((left[0].seat.uid, left[0].since, left[0].stake), (Uid(1), Window(0), 1));
        assert_eq!((left[0].coldkey.clone(), left[0].member), (COLDKEY, None));
        assert_eq!(DepartedOf::<Test>::iter().count(), 0);
        assert_eq!(Weights::consensus_of(RUN, Uid(1)), SeatConsensus::default());

        // The consensus on the new holder counts.
        epoch_of(2, &all(&[(0, 1), (1, 1)]));
        assert_eq!(standing_weights(), [(0, 65535), (1, 65535)]);
        assert_eq!(bonds(3), [0, 1]);
    });
}

#[test]
fn a_miner_that_leaves_within_the_epoch_leaves_no_bonds_and_its_successor_can_be_weighted() {
    with_run(|| {
        epoch_of(0, &all(&[(0, 1), (1, 1)]));
        let old = BondsOf::<Test>::get(RUN, Uid(3));
        assert_ok!(Registry::leave(coldkey(), RUN, Uid(1)));
        // Epoch 2 begins at block 30 without it.
        go_to_block(30);
        register(Role::Miner, 50);
        go_to_block(40);
        // Epoch 1 closed without a consensus: bonds are unchanged, except those to the seat that left.
        let kept: Vec<_> = old.into_iter().filter(|(uid, _)| *uid != Uid(1)).collect();
        assert_eq!(BondsOf::<Test>::get(RUN, Uid(3)), kept);
        epoch_of(3, &all(&[(0, 1), (1, 1)]));
        assert_eq!(standing_weights(), [(0, 65535), (1, 65535)]);
        let of = |seat: u16| {
            BondsOf::<Test>::get(RUN, Uid(3)).into_iter().find(|(uid, _)| uid.0 == seat).unwrap().1
        };
        assert!(of(1) < of(0) * 6 / 10, "{} of a new seat, {} of an old one", of(1), of(0));
    });
}

#[test]
fn a_validator_that_leaves_leaves_no_vote_and_no_bonds_behind() {
    with_run(|| {
        epoch_of(0, &all(&[(0, 1)]));
        go_to_block(26);
        for uid in VALIDATORS {
            assert_ok!(commit(uid, 1, &[(0, 1)]));
        }
        assert_ok!(Registry::leave(coldkey(), RUN, Uid(5)));
        go_to_block(30);
        assert!(!WeightCommitments::<Test>::contains_key((RUN, 1), Uid(5)));
        assert_eq!(Weights::consensus_of(RUN, Uid(5)), SeatConsensus::default());
        register(Role::Validator, 60);
        let revealed = Weights::reveal(signed(60), RUN, 1, weights(&[(0, 1)]), salt(5));
        assert_noop!(revealed, Error::<Test>::NothingCommitted);
        // Its bonds stay until the close of the last epoch to whose end it was held.
        assert_eq!((bonds(5), bonds(3)), (vec![0], vec![0]));
        go_to_block(closing(1));
        assert_eq!((bonds(5), bonds(3)), (vec![], vec![0]));
    });
}

#[test]
fn a_validator_that_leaves_after_its_reveal_votes_and_earns_like_the_others() {
    with_params(RunParams { epoch_windows: 3, reveal_windows: 2, ..params() }, || {
        let close = |epoch: u32| (10 + 5 * (3 * (epoch + 1) + 2)) as u64;
        go_to_block(13);
        for uid in VALIDATORS {
            assert_ok!(attest(uid));
            assert_ok!(commit(uid, 0, &[(0, 1), (1, 1)]));
        }
        go_to_block(26);
        for uid in VALIDATORS {
            assert_ok!(reveal(uid, 0, &[(0, 1), (1, 1)]));
        }
        assert_ok!(Registry::leave(coldkey(), RUN, Uid(5)));
        // It has left, and its uid is taken again before the epoch closes; the newcomer has no vote on that epoch.
        go_to_block(30);
        register(Role::Validator, 60);
        assert_noop!(
            Weights::reveal(signed(60), RUN, 0, weights(&[(0, 1)]), salt(5)),
            Error::<Test>::AlreadyRevealed
        );
        go_to_block(close(0));
        let (_, epoch, consensus) = Paid::get().pop().unwrap();
        assert_eq!(epoch, 0);
        let shares: Vec<u64> = consensus.dividends.iter().map(|(_, share)| *share).collect();
        assert_eq!(consensus.dividends.iter().map(|(uid, _)| uid.0).collect::<Vec<_>>(), VALIDATORS);
        assert!(shares.iter().max().unwrap() - shares.iter().min().unwrap() <= 1, "{shares:?}");
        let left = Left::get();
        assert_eq!((left.len(), left[0].seat.uid, left[0].stake), (1, Uid(5), STAKE));
        assert_eq!(left[0].member.map(|member| (member.stake, member.attested)), Some((STAKE, true)));
        // The next holder inherits neither bonds nor consensus.
        assert_eq!((bonds(5), Weights::consensus_of(RUN, Uid(5))), (vec![], SeatConsensus::default()));
        assert_eq!(bonds(3), [0, 1]);
    });
}

#[test]
fn the_reveal_phase_may_take_a_whole_epoch() {
    with_params(RunParams { reveal_windows: 2, ..params() }, || {
        go_to_block(12);
        for uid in VALIDATORS {
            assert_ok!(attest(uid));
            assert_ok!(commit(uid, 0, &[(0, 1), (1, 1)]));
        }
        go_to_block(27);
        for uid in VALIDATORS {
            assert_ok!(attest(uid));
        }
        go_to_block(29);
        for uid in VALIDATORS {
            assert_ok!(reveal(uid, 0, &[(0, 1), (1, 1)]));
            assert_ok!(commit(uid, 1, &[(0, 1), (1, 1)]));
        }
        assert_ok!(Registry::leave(coldkey(), RUN, Uid(1)));
        // When epoch 2 opens, seat 1 is given up first. Then epoch 0 closes, and the votes for epoch 1 still name the
        // seat.
        go_to_block(30);
        register(Role::Miner, 50);
        assert_eq!(standing_weights(), [(0, 65535)]);
        // It is paid for both epochs: at once for the first, at its close for the second.
        assert_eq!(Left::get().len(), 1);
        assert_eq!(DepartedOf::<Test>::iter_keys().collect::<Vec<_>>(), [((RUN, 1), Uid(1))]);
        // In the end, validators have no bonds to it, but the bonds count for the second epoch.
        assert_eq!(bonds(3), [0, 1]);
        for uid in VALIDATORS {
            assert_ok!(reveal(uid, 1, &[(0, 1), (1, 1)]));
        }
        go_to_block(32);
        go_to_block(40);
        assert_eq!(standing_weights(), [(0, 65535)]);
        assert_eq!((bonds(3), Left::get().len()), (vec![0], 1));
        let (_, epoch, consensus) = Paid::get().pop().unwrap();
        assert_eq!((epoch, consensus.incentive.len()), (1, 2));
    });
}

#[test]
fn the_bonds_of_a_validator_outside_the_active_set_decay() {
    with_run(|| {
        epoch_of(0, &all(&[(0, 1)]));
        let before = BondsOf::<Test>::get(RUN, Uid(5))[0].1;
        go_to_block(committing(1));
        for uid in VALIDATORS {
            assert_ok!(commit(uid, 1, &[(0, 1)]));
        }
        go_to_block(revealing(1));
        for uid in VALIDATORS {
            assert_ok!(reveal(uid, 1, &[(0, 1)]));
        }
        let member =
            |uid| Member { uid: Uid(uid), stake: STAKE, attested: true, minority_votes: 0, silent: false };
        Weights::close(RUN, 1, 2, &[member(3), member(4)]);
        assert_eq!(BondsOf::<Test>::get(RUN, Uid(5))[0].1, before / 10 * 9 + before % 10 * 9 / 10);
        assert_eq!(earners(&Paid::get()[1].2), [3, 4]);
    });
}

#[test]
fn nothing_is_stored_of_closed_epochs() {
    with_run(|| {
        for epoch in 0..5 {
            epoch_of(epoch, &all(&[(0, 1)]));
            go_to_block(closing(epoch) + 2);
            assert_ok!(commit(3, epoch + 1, &[(0, 1)]));
            assert_eq!(WeightVotes::<Test>::iter().count(), 0);
            assert_eq!(WeightCommitments::<Test>::iter().count(), 1);
            WeightCommitments::<Test>::remove((RUN, epoch + 1), Uid(3));
        }
        go_to_block(200);
        assert_eq!((WeightVotes::<Test>::iter().count(), WeightCommitments::<Test>::iter().count()), (0, 0));
    });
}

#[test]
fn an_epoch_without_validators_has_no_consensus() {
    with_run(|| {
        go_to_block(30);
        Weights::close(RUN, 0, 2, &[]);
        assert!(standing_weights().is_empty());
        let member = Member { uid: Uid(3), stake: 0, attested: true, minority_votes: 0, silent: false };
        Weights::close(RUN, 1, 2, &[member]);
        assert_eq!(Paid::get().len(), 0);
    });
}

#[test]
fn a_call_is_free_if_it_would_succeed() {
    let free = |call: Call<Test>, uid: u16| call.is_feeless(&signed(uid));
    let commits = |uid, epoch| {
        let hash = hash(uid, &[(0, 1)]);
        free(Call::commit { run: RUN, epoch, hash }, uid)
    };
    let reveals = |uid, weights, salt| free(Call::reveal { run: RUN, epoch: 0, weights, salt }, uid);
    with_run(|| {
        assert!(!commits(3, 0), "the run has not started");
        go_to_block(12);
        assert!(commits(3, 0));
        assert!(!commits(3, 1) && !commits(0, 0) && !commits(99, 0));
        assert!(
            !Call::<Test>::commit { run: RUN, epoch: 0, hash: Digest([0; 32]) }
                .is_feeless(&RuntimeOrigin::none())
        );
        assert_ok!(commit(3, 0, &[(0, 1)]));
        assert!(!commits(3, 0), "one is all that a seat has");
        assert!(!reveals(3, weights(&[(0, 1)]), salt(3)), "the epoch goes on");
        go_to_block(20);
        assert!(reveals(3, weights(&[(0, 1)]), salt(3)));
        assert!(!reveals(3, weights(&[(0, 2)]), salt(3)), "it is not what was committed to");
        assert_ok!(reveal(3, 0, &[(0, 1)]));
        assert!(!reveals(3, weights(&[(0, 1)]), salt(3)), "it is revealed");
    });
}

/// Measures the close of the largest epoch, natively and without a database.
///
/// ```text
/// cargo test -p pallet-weights -- --ignored --nocapture the_largest_epoch
/// ```
#[test]
#[ignore = "a measurement"]
fn the_largest_epoch_closes_within_two_seconds() {
    empty_chain().execute_with(|| {
        crate::full::run_with::<Test>(1024, 64, 4);
        let mut best = std::time::Duration::MAX;
        for _ in 0..5 {
            crate::full::revealed::<Test>(1024, 64, 3);
            let began = std::time::Instant::now();
            Weights::close(RUN, 3, 2, &crate::full::members(1024, 64));
            best = best.min(began.elapsed());
        }
        println!("1,024 miners, 64 validators: {best:?}");
        assert!(best < std::time::Duration::from_secs(2));
        assert_eq!(standing_weights().len(), 1024);
    });
}

/// A random step.
#[derive(Clone, Debug)]
enum Step {
    Commit { uid: u16, epoch: u32, vote: usize },
    Reveal { uid: u16, epoch: u32, vote: usize },
    Attest { uid: u16 },
    Leave { uid: u16 },
    Register { miner: bool },
    Wait { blocks: u64 },
}

const VOTES: [&[(u16, u16)]; 4] =
    [&[(0, 1)], &[(0, 5), (1, 5)], &[(0, 65535), (1, 3), (2, 900), (7, 9)], &[(2, 1), (3, 1)]];

fn any_deed() -> impl Strategy<Value = Step> {
    let uid = || 3u16..7;
    prop_oneof![
        4 => (uid(), 0u32..6, 0usize..4).prop_map(|(uid, epoch, vote)| Step::Commit { uid, epoch, vote }),
        4 => (uid(), 0u32..6, 0usize..4).prop_map(|(uid, epoch, vote)| Step::Reveal { uid, epoch, vote }),
        2 => uid().prop_map(|uid| Step::Attest { uid }),
        1 => (0u16..8).prop_map(|uid| Step::Leave { uid }),
        1 => any::<bool>().prop_map(|miner| Step::Register { miner }),
        3 => (1u64..8).prop_map(|blocks| Step::Wait { blocks }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn invariants_hold_and_only_seats_are_paid_after_any_calls(
        deeds in proptest::collection::vec(any_deed(), 0..60),
        reveal_windows in 1u32..=2,
    ) {
        with_params(RunParams { reveal_windows, ..params() }, || {
            go_to_block(10);
            let mut key = 100;
            for deed in deeds {
                match deed {
                    Step::Commit { uid, epoch, vote } => {
                        let _ = commit(uid, epoch, VOTES[vote]);
                    }
                    Step::Reveal { uid, epoch, vote } => {
                        let _ = reveal(uid, epoch, VOTES[vote]);
                    }
                    Step::Attest { uid } => {
                        let _ = attest(uid);
                    }
                    Step::Leave { uid } => {
                        let _ = Registry::leave(coldkey(), RUN, Uid(uid));
                    }
                    Step::Register { miner } => {
                        key += 1;
                        let role = if miner { Role::Miner } else { Role::Validator };
                        let url = b"http://a".to_vec().try_into().unwrap();
                        let (hotkey, most) = (hotkey(key), u128::MAX);
                        let proof = consent(&hotkey, RUN, &COLDKEY);
                        let _ = Registry::register(coldkey(), RUN, role, hotkey, url, STAKE, most, proof);
                    }
                    Step::Wait { blocks } => go_to_block(System::block_number() + blocks),
                }
                Weights::check_invariants().unwrap();
            }
            for (_, _, consensus) in Paid::get() {
                let incentive: u64 = consensus.incentive.iter().map(|(_, share)| share).sum();
                let dividends: u64 = consensus.dividends.iter().map(|(_, share)| share).sum();
                assert_eq!(incentive, ONE);
                assert!(dividends == ONE || dividends == 0);
            }
        });
    }
}
