//! Random calls of random accounts: no call panics, a failed call changes nothing, and every pallet's invariants
//! hold.

use super::*;
use frame::deps::{frame_support::traits::fungible::Inspect, sp_runtime::traits::Dispatchable};
use pallet_rewards::Payout;
use proptest::prelude::*;

/// The signers: owner, coldkeys, hotkeys, and strangers.
const PEOPLE: [Sr25519Keyring; 6] = [
    Sr25519Keyring::Alice,
    Sr25519Keyring::Bob,
    Sr25519Keyring::Charlie,
    Sr25519Keyring::Dave,
    Sr25519Keyring::Eve,
    Sr25519Keyring::Ferdie,
];

#[derive(Clone, Debug)]
enum Step {
    /// Makes blocks without calls.
    Wait(u8),
    Call {
        by: u8,
        call: Box<RuntimeCall>,
    },
}

fn account(who: u8) -> AccountId {
    let people = PEOPLE.iter().map(|person| person.to_account_id());
    let hotkeys = HOTKEYS.iter().map(|hotkey| hotkey.to_account_id());
    let all: Vec<AccountId> = people.chain(hotkeys).collect();
    all[usize::from(who) % all.len()].clone()
}

fn amount() -> impl Strategy<Value = Balance> {
    prop_oneof![0..3 * UNIT, (0..2_000u128).prop_map(|units| units * UNIT), Just(Balance::MAX), Just(0)]
}

fn uid() -> impl Strategy<Value = Uid> {
    (0u16..8).prop_map(Uid)
}

fn registry() -> impl Strategy<Value = RuntimeCall> {
    let role = prop_oneof![Just(Role::Miner), Just(Role::Validator)];
    let terms = (0u32..4, 0u32..4, 1u16..5, 1u16..5, amount()).prop_map(
        |(immunity_windows, unbonding_windows, miner_seats_max, validator_seats_max, emission_per_epoch)| {
            Terms {
                immunity_windows,
                unbonding_windows,
                miner_seats_max,
                validator_seats_max,
                emission_per_epoch,
                ..terms()
            }
        },
    );
    use pallet_registry::Call;
    let run = RUN;
    prop_oneof![
        3 => (role, any::<u8>(), amount(), amount()).prop_map(move |(role, hotkey, stake, price_max)| {
            Call::register { run, role, hotkey: account(hotkey), endpoint: url(), stake, price_max }
        }),
        1 => Just(Call::set_endpoint { run, endpoint: url() }),
        1 => (uid(), amount()).prop_map(move |(uid, amount)| Call::add_stake { run, uid, amount }),
        1 => (uid(), amount()).prop_map(move |(uid, amount)| Call::unstake { run, uid, amount }),
        1 => uid().prop_map(move |uid| Call::leave { run, uid }),
        1 => Just(Call::withdraw { run }),
        1 => (uid(), any::<u8>()).prop_map(move |(uid, hotkey)| Call::rotate_hotkey {
            run,
            uid,
            hotkey: account(hotkey)
        }),
        1 => terms.prop_map(move |terms| Call::set_terms { run, terms }),
        1 => Just(Call::drop_terms { run }),
        1 => any::<bool>().prop_map(move |stopped| Call::set_stopped { run, stopped }),
        1 => any::<u8>().prop_map(move |to| Call::offer_run { run, to: account(to) }),
        1 => Just(Call::accept_run { run }),
    ]
    .prop_map(Into::into)
}

fn windows() -> impl Strategy<Value = RuntimeCall> {
    use pallet_windows::Call;
    let run = RUN;
    let window = || (0u32..8).prop_map(Window);
    let verdicts =
        proptest::collection::vec((uid(), prop_oneof![Just(Verdict::Valid), Just(Verdict::Faulty)]), 0..4);
    let some_digest = || (0u8..3).prop_map(digest);
    prop_oneof![
        3 => (window(), some_digest()).prop_map(move |(window, digest)| Call::commit { run, window, digest }),
        3 => (window(), verdicts).prop_map(move |(window, mut verdicts)| {
            verdicts.sort_unstable_by_key(|(uid, _)| *uid);
            let verdicts = verdicts.try_into().unwrap();
            Call::attest { run, window, verdicts, next_salt: digest(1) }
        }),
        3 => (window(), some_digest(), proptest::option::of(some_digest())).prop_map(
            move |(window, update, state_root)| Call::vote { run, window, vote: Vote { update, state_root } }
        ),
        1 => (window(), some_digest()).prop_map(move |(window, hash)| Call::attest_hidden {
            run,
            window,
            hash,
            next_salt: digest(2)
        }),
        1 => (window(), some_digest()).prop_map(move |(window, digest)| Call::anchor_receipts { run, window, digest }),
    ]
    .prop_map(Into::into)
}

fn money() -> impl Strategy<Value = RuntimeCall> {
    let run = RUN;
    let rewards = {
        use pallet_rewards::Call;
        let payout = prop_oneof![Just(Payout::Account), Just(Payout::Stake)];
        prop_oneof![
            amount().prop_map(move |amount| Call::fund { run, amount }),
            uid().prop_map(move |uid| Call::claim { run, uid }),
            Just(Call::claim_owner { run }),
            Just(Call::claim_former { run }),
            (uid(), payout).prop_map(move |(uid, payout)| Call::set_payout { run, uid, payout }),
        ]
        .prop_map(RuntimeCall::from)
    };
    let nomination = {
        use pallet_nomination::Call;
        prop_oneof![
            2 => (uid(), amount()).prop_map(move |(uid, amount)| Call::nominate { run, uid, amount }),
            1 => (uid(), amount()).prop_map(move |(uid, amount)| Call::unnominate { run, uid, amount }),
            1 => uid().prop_map(move |uid| Call::withdraw { run, uid }),
            1 => uid().prop_map(move |uid| Call::claim { run, uid }),
            1 => (uid(), 0u16..1200).prop_map(move |(uid, commission)| Call::set_commission {
                run,
                uid,
                commission: Permille(commission)
            }),
        ]
        .prop_map(RuntimeCall::from)
    };
    let weights = {
        use pallet_weights::Call;
        let weighed = proptest::collection::btree_map(0u16..6, 1u16.., 0..3);
        prop_oneof![
            2 => (0u32..4).prop_map(move |epoch| Call::commit { run, epoch, hash: digest(1) }),
            1 => (0u32..4, weighed).prop_map(move |(epoch, weights)| {
                let weights: Vec<_> = weights.into_iter().map(|(uid, weight)| (Uid(uid), weight)).collect();
                Call::reveal { run, epoch, weights: weights.try_into().unwrap(), salt: [0; 32] }
            }),
        ]
        .prop_map(RuntimeCall::from)
    };
    prop_oneof![rewards, nomination, weights]
}

fn step() -> impl Strategy<Value = Step> {
    let call = prop_oneof![registry(), windows(), money()];
    prop_oneof![
        1 => (0u8..12).prop_map(Step::Wait),
        5 => (any::<u8>(), call).prop_map(|(by, call)| Step::Call { by, call: Box::new(call) }),
    ]
}

/// Total issuance.
fn issued() -> Balance {
    <Balances as Inspect<AccountId>>::total_issuance()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, max_shrink_iters: 200, ..ProptestConfig::default() })]

    #[test]
    fn no_sequence_of_calls_breaks_an_invariant(steps in proptest::collection::vec(step(), 1..60)) {
        let mut chain = with_run();
        for step in steps {
            match step {
                Step::Wait(blocks) => chain.go_to(chain.height() + u32::from(blocks)),
                Step::Call { by, call } => chain.read(|| {
                    let before = issued();
                    let origin = RuntimeOrigin::signed(account(by));
                    let text = format!("{call:?}");
                    let result = call.dispatch(origin);
                    assert!(issued() <= before, "{text} created money: {result:?}");
                    check_invariants();
                }),
            }
        }
        chain.go_to(chain.height() + 12);
    }
}
