//! Ballots, the consensus they come to, and every refusal with storage left as it was (PROT-33).

use crate::{self as pallet_weights, *};
use frame::{prelude::fungible::Mutate as _, testing_prelude::*};
use pallet_registry::{Balance, Url};
use pallet_windows::{Epochs as _, Member};
use proptest::prelude::*;
use protocol::{Block, Digest, Role, RunParams, Schedule, Window, consensus::ONE};

#[frame_construct_runtime]
mod runtime {
    #[runtime::runtime]
    #[runtime::derive(
        RuntimeCall,
        RuntimeEvent,
        RuntimeError,
        RuntimeOrigin,
        RuntimeFreezeReason,
        RuntimeHoldReason,
        RuntimeTask
    )]
    pub struct Test;
    #[runtime::pallet_index(0)]
    pub type System = frame_system::Pallet<Test>;
    #[runtime::pallet_index(1)]
    pub type Balances = pallet_balances::Pallet<Test>;
    #[runtime::pallet_index(2)]
    pub type Registry = pallet_registry::Pallet<Test>;
    #[runtime::pallet_index(3)]
    pub type Windows = pallet_windows::Pallet<Test>;
    #[runtime::pallet_index(4)]
    pub type Weights = pallet_weights::Pallet<Test>;
}

#[derive_impl(frame_system::config_preludes::TestDefaultConfig)]
impl frame_system::Config for Test {
    type Block = MockBlock<Test>;
    type AccountData = pallet_balances::AccountData<Balance>;
}

#[derive_impl(pallet_balances::config_preludes::TestDefaultConfig)]
impl pallet_balances::Config for Test {
    type Balance = Balance;
    type AccountStore = System;
}

impl pallet_registry::Config for Test {
    type Currency = Balances;
    type RuntimeHoldReason = RuntimeHoldReason;
    type OnRunCreated = Windows;
    type WeightInfo = ();
    type MaxRuns = ConstU32<4>;
    type MaxSeats = ConstU32<16>;
    type MaxCheckpointWindows = ConstU32<64>;
    type RunDeposit = ConstU128<0>;
}

impl pallet_windows::Config for Test {
    type Registry = Registry;
    type Epochs = Weights;
    type WeightInfo = ();
    type MaxRuns = ConstU32<4>;
    type MaxSeats = ConstU32<16>;
    type KeptWindows = ConstU32<64>;
}

impl Config for Test {
    type Registry = Registry;
    type Payroll = Payslips;
    type WeightInfo = ();
    type MaxSeats = ConstU32<16>;
}

parameter_types! {
    pub static Paid: Vec<(RunId, u32, Consensus)> = Vec::new();
}

/// A payroll that only writes down what it is told.
pub struct Payslips;

impl Payroll for Payslips {
    fn pay(run: RunId, epoch: u32, consensus: &Consensus) -> Weight {
        Paid::mutate(|paid| paid.push((run, epoch, consensus.clone())));
        Weight::zero()
    }
}

const RUN: RunId = RunId(0);
const COLDKEY: u64 = 1;
/// Seats 0 to 2 mine, seats 3 to 5 validate with equal stakes.
const STAKE: Balance = 100;
/// Windows of five blocks, two an epoch: epoch 0 is blocks 10 to 19, epoch 1 blocks 20 to 29.
const SCHEDULE: Schedule =
    Schedule { start: Block(10), blocks_per_window: 5, commit_by: 1, reveal_by: 2, attest_by: 3, vote_by: 4 };

fn signed(uid: u16) -> RuntimeOrigin {
    RuntimeOrigin::signed(1000 + u64::from(uid))
}

fn with_run(story: impl FnOnce()) {
    let mut chain: TestState = frame_system::GenesisConfig::<Test>::default().build_storage().unwrap().into();
    chain.execute_with(|| {
        Paid::set(Vec::new());
        System::set_block_number(1);
        Balances::mint_into(&COLDKEY, 1_000_000).unwrap();
        let params = RunParams {
            schedule: SCHEDULE,
            epoch_windows: 2,
            validator_stake_min: STAKE,
            miner_stake_min: 1,
            ..RunParams::default()
        };
        let url: Url = b"http://a".to_vec().try_into().unwrap();
        let digest = Digest([0; 32]);
        let coldkey = || RuntimeOrigin::signed(COLDKEY);
        assert_ok!(Registry::create_run(coldkey(), params, digest, digest, digest, url.clone()));
        for uid in 0..6 {
            let (role, stake) = if uid < 3 { (Role::Miner, 1) } else { (Role::Validator, STAKE) };
            assert_ok!(Registry::register(coldkey(), RUN, role, 1000 + uid, url.clone(), stake));
        }
        story();
        Weights::check_invariants().unwrap();
    });
}

fn go_to_block(number: u64) {
    System::run_to_block::<AllPalletsWithSystem>(number);
    Weights::check_invariants().unwrap();
}

fn post(uid: u16, epoch: u32, weights: &[(u16, u16)]) -> DispatchResult {
    let weights: Vec<_> = weights.iter().map(|(uid, weight)| (Uid(*uid), *weight)).collect();
    Weights::post(signed(uid), RUN, epoch, weights.try_into().unwrap())
}

/// Posts, and attests the window that is open, so that the validator is not absent.
fn post_and_attest(uid: u16, epoch: u32, weights: &[(u16, u16)]) {
    assert_ok!(post(uid, epoch, weights));
    let window = SCHEDULE.window_at(Block(System::block_number() as u32)).unwrap();
    assert_ok!(Windows::attest(signed(uid), RUN, window, Default::default(), Digest([0; 32])));
}

fn standing() -> Vec<(u16, u16)> {
    Weights::weights(RUN).into_iter().map(|(uid, weight)| (uid.0, weight)).collect()
}

#[test]
fn weights_that_all_agree_on_become_the_consensus_as_the_next_epoch_opens() {
    with_run(|| {
        go_to_block(12);
        for uid in [3, 4, 5] {
            post_and_attest(uid, 0, &[(0, 65535), (1, 65535)]);
        }
        go_to_block(19);
        assert!(standing().is_empty());
        go_to_block(20);
        assert_eq!(standing(), [(0, 65535), (1, 65535)]);
        System::assert_has_event(
            Event::<Test>::ConsensusReached { run: RUN, epoch: 0, ballots: 3, seats: 2 }.into(),
        );
        // The window that opens with the epoch draws by them already.
        let view = Windows::window_view(RUN, Window(2)).unwrap();
        assert_eq!(view.weights, [(Uid(0), 65535), (Uid(1), 65535)]);
    });
}

#[test]
fn an_epoch_is_paid_by_its_consensus() {
    with_run(|| {
        go_to_block(12);
        for uid in [3, 4, 5] {
            post_and_attest(uid, 0, &[(0, 65535), (1, 65535)]);
        }
        go_to_block(20);
        let paid = Paid::get();
        assert_eq!(paid.len(), 1);
        let (run, epoch, consensus) = &paid[0];
        assert_eq!((*run, *epoch), (RUN, 0));
        assert_eq!(consensus.incentive, [(Uid(0), ONE / 2), (Uid(1), ONE / 2)]);
        assert_eq!(consensus.dividends.iter().map(|(uid, _)| uid.0).collect::<Vec<_>>(), [3, 4, 5]);
    });
}

#[test]
fn without_a_consensus_the_last_weights_stay_and_nothing_is_paid() {
    with_run(|| {
        go_to_block(12);
        for uid in [3, 4, 5] {
            post_and_attest(uid, 0, &[(0, 65535)]);
        }
        go_to_block(22);
        // One of three equal stakes is no majority, however alone it posts.
        post_and_attest(3, 1, &[(1, 65535)]);
        go_to_block(30);
        assert_eq!(standing(), [(0, 65535)]);
        assert_eq!(Paid::get().len(), 1);
        System::assert_has_event(Event::<Test>::NoConsensus { run: RUN, epoch: 1, ballots: 1 }.into());
        // And nobody posting is none either.
        go_to_block(40);
        assert_eq!(standing(), [(0, 65535)]);
        System::assert_has_event(Event::<Test>::NoConsensus { run: RUN, epoch: 2, ballots: 0 }.into());
    });
}

#[test]
fn a_validator_absent_all_epoch_has_no_say_and_earns_nothing() {
    with_run(|| {
        go_to_block(12);
        post_and_attest(3, 0, &[(0, 65535)]);
        post_and_attest(4, 0, &[(0, 65535)]);
        assert_ok!(post(5, 0, &[(1, 65535)]));
        go_to_block(20);
        let paid = Paid::get();
        assert_eq!(paid[0].2.incentive, [(Uid(0), ONE)]);
        assert_eq!(paid[0].2.dividends.iter().map(|(uid, _)| uid.0).collect::<Vec<_>>(), [3, 4]);
    });
}

#[test]
fn a_minority_cannot_raise_a_seat() {
    with_run(|| {
        go_to_block(12);
        post_and_attest(3, 0, &[(0, 65535)]);
        post_and_attest(4, 0, &[(0, 65535)]);
        post_and_attest(5, 0, &[(1, 65535)]);
        go_to_block(20);
        assert_eq!(standing(), [(0, 65535)]);
    });
}

#[test]
fn a_ballot_is_for_the_epoch_that_goes_on() {
    with_run(|| {
        assert_noop!(post(3, 0, &[(0, 1)]), Error::<Test>::NotStarted);
        go_to_block(19);
        assert_noop!(post(3, 1, &[(0, 1)]), Error::<Test>::EpochNotBegun);
        assert_ok!(post(3, 0, &[(0, 1)]));
        go_to_block(20);
        assert_noop!(post(4, 0, &[(0, 1)]), Error::<Test>::EpochOver);
        assert_ok!(post(3, 1, &[(0, 1)]));
    });
}

#[test]
fn a_validator_posts_once_an_epoch() {
    with_run(|| {
        go_to_block(12);
        assert_ok!(post(3, 0, &[(0, 1)]));
        assert_noop!(post(3, 0, &[(0, 2)]), Error::<Test>::AlreadyPosted);
    });
}

#[test]
fn only_validators_post_and_only_in_runs_there_are() {
    with_run(|| {
        go_to_block(12);
        assert_noop!(post(0, 0, &[(0, 1)]), Error::<Test>::NotAValidator);
        assert_noop!(post(40, 0, &[(0, 1)]), Error::<Test>::NotASeat);
        assert_noop!(Weights::post(signed(3), RunId(9), 0, Default::default()), Error::<Test>::UnknownRun);
        assert_noop!(
            Weights::post(RuntimeOrigin::none(), RUN, 0, Default::default()),
            DispatchError::BadOrigin
        );
    });
}

#[test]
fn a_ballot_weighs_miners_and_is_spelt_the_one_way_there_is() {
    with_run(|| {
        go_to_block(12);
        assert_noop!(post(3, 0, &[]), Error::<Test>::NothingWeighted);
        assert_noop!(post(3, 0, &[(1, 1), (0, 1)]), Error::<Test>::NotCanonical);
        assert_noop!(post(3, 0, &[(0, 1), (0, 1)]), Error::<Test>::NotCanonical);
        assert_noop!(post(3, 0, &[(0, 1), (1, 0)]), Error::<Test>::NotCanonical);
        assert_noop!(post(3, 0, &[(0, 1), (3, 1)]), Error::<Test>::NotAMiner);
        assert_noop!(post(3, 0, &[(0, 1), (9, 1)]), Error::<Test>::NotAMiner);
        assert_ok!(post(3, 0, &[(0, 1), (2, 65535)]));
    });
}

#[test]
fn ballots_of_old_epochs_are_forgotten() {
    with_run(|| {
        for epoch in 0..5 {
            go_to_block(12 + u64::from(epoch) * 10);
            for uid in [3, 4, 5] {
                assert_ok!(post(uid, epoch, &[(0, 1)]));
            }
        }
        assert_eq!(Ballots::<Test>::iter().count(), 6);
    });
}

#[test]
fn a_closed_epoch_of_nobody_is_no_consensus() {
    with_run(|| {
        Weights::close(RUN, 0, &[]);
        assert!(standing().is_empty());
        let member = Member { uid: Uid(3), stake: 0, attested: true };
        Weights::close(RUN, 1, &[member]);
        assert_eq!(Paid::get().len(), 0);
    });
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]
    #[test]
    fn whatever_is_posted_the_invariants_hold_and_only_seats_are_paid(
        posts in proptest::collection::vec(
            (0u64..4, 3u16..6, 0u32..5, proptest::collection::btree_map(0u16..4, 0u16.., 0..4)),
            0..40,
        )
    ) {
        with_run(|| {
            go_to_block(10);
            for (blocks, uid, epoch, weights) in posts {
                go_to_block(System::block_number() + blocks);
                let weights: Vec<_> = weights.into_iter().collect();
                let _ = post(uid, epoch, &weights);
                let window = SCHEDULE.window_at(Block(System::block_number() as u32)).unwrap();
                let _ = Windows::attest(signed(uid), RUN, window, Default::default(), Digest([0; 32]));
                Weights::check_invariants().unwrap();
                Windows::check_invariants().unwrap();
            }
            for (_, _, consensus) in Paid::get() {
                assert!(consensus.incentive.iter().all(|(uid, _)| uid.0 < 3));
                assert!(consensus.dividends.iter().all(|(uid, _)| (3..6).contains(&uid.0)));
            }
        });
    }
}
