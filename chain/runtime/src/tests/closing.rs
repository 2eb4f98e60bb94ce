//! A run closed by its owner: everything is paid out, and nothing of it stays in the storage.

use super::*;
use frame::deps::sp_io::{hashing::twox_128, storage};
use std::collections::BTreeSet;

/// Returns the keys of our pallets' storage.
fn keys() -> BTreeSet<Vec<u8>> {
    let mut found = BTreeSet::new();
    for pallet in ["Registry", "Windows", "Weights", "Rewards", "Nomination"] {
        let prefix = twox_128(pallet.as_bytes()).to_vec();
        let mut key = prefix.clone();
        while let Some(next) = storage::next_key(&key).filter(|next| next.starts_with(&prefix)) {
            found.insert(next.clone());
            key = next;
        }
    }
    found
}

fn close() -> RuntimeCall {
    pallet_registry::Call::close_run { run: RUN }.into()
}

fn held(who: &dyn Signer) -> Balance {
    Balances::reserved_balance(who.account())
}

fn refusal(results: &[Result<(), DispatchError>]) -> &'static str {
    match results {
        [Err(DispatchError::Module(ModuleError { message: Some(message), .. }))] => message,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_closed_run_pays_everything_out_and_leaves_nothing_in_the_storage() {
    let mut chain = Chain::new();
    let before = chain.read(keys);
    drop(chain);
    let mut chain = with_run_on(Terms { unbonding_windows: 3, ..terms() });
    let nominate = pallet_nomination::Call::nominate { run: RUN, uid: Uid(4), amount: 100 * UNIT };
    chain.all_accepted(vec![(&OWNER, nominate.into())]);
    play(&mut chain, 0);
    let weights = vec![(Uid(0), 65535), (Uid(1), 65535)];
    let salt = [3; 32];
    let sealed = HOTKEYS[2..].iter().map(|hotkey| {
        let hash = reveal::commitment(&weights, &salt, &Hotkey(hotkey.to_raw_public()));
        (hotkey as &dyn Signer, pallet_weights::Call::commit { run: RUN, epoch: 0, hash }.into())
    });
    chain.all_accepted(sealed.collect());
    play(&mut chain, 1);
    chain.go_to(30);
    chain.all_accepted(by_validators(|| {
        let weights = weights.clone().try_into().unwrap();
        pallet_weights::Call::reveal { run: RUN, epoch: 0, weights, salt }.into()
    }));
    play(&mut chain, 2);
    chain.go_to(40);
    // A seat leaves with unbonding stake and unclaimed pay.
    let leave = pallet_registry::Call::leave { run: RUN, uid: Uid(0) };
    chain.all_accepted(vec![(&COLDKEY, leave.into())]);

    assert_eq!(refusal(&chain.submit(vec![(&OWNER, close())])), "NotStopped");
    let stop = pallet_registry::Call::set_stopped { run: RUN, stopped: true };
    chain.all_accepted(vec![(&OWNER, stop.into())]);
    chain.go_to(50);
    assert_eq!(refusal(&chain.submit(vec![(&OWNER, close())])), "StoppedTooBriefly");
    chain.go_to(90);
    assert_eq!(refusal(&chain.submit(vec![(&COLDKEY, close())])), "NotTheOwner");
    let claimable = chain.read(|| {
        let ledger = pallet_nomination::PoolLedger::<Runtime>::get().unwrap();
        Rewards::treasury_view(RUN).claimable + ledger.nominated + ledger.unclaimed
    });
    let (coldkey, owner) = chain.read(|| {
        let worth = |who: Sr25519Keyring| Balances::free_balance(who.account()) + held(&who);
        assert!(held(&COLDKEY) > 300 * UNIT && held(&OWNER) > 10 * UNIT);
        (worth(COLDKEY), worth(OWNER))
    });
    assert!(claimable > 900 * UNIT);
    chain.all_accepted(vec![(&OWNER, close())]);
    chain.read(|| assert_eq!(Runtime::run(RUN), None));
    assert_eq!(refusal(&chain.submit(vec![(&OWNER, close())])), "UnknownRun");
    chain.go_to(100);

    chain.read(|| {
        assert_eq!((held(&COLDKEY), held(&OWNER)), (0, 0));
        let worth = |who: Sr25519Keyring| Balances::free_balance(who.account()) + held(&who);
        let gained = worth(COLDKEY) - coldkey + (worth(OWNER) - owner);
        // Less the fees, and on top of each account's earlier balance. The owner is the nominator.
        assert!(claimable.abs_diff(gained) < UNIT, "{gained} of {claimable}");
        assert_eq!(Balances::free_balance(Rewards::account(RUN)), 0);
        let left: Vec<_> = keys().difference(&before).cloned().collect();
        // The number of runs, and of pools, and the pools' ledger.
        let known = [
            ("Registry", "RunCount"),
            ("Registry", "LiveRuns"),
            ("Windows", "LateTasks"),
            ("Nomination", "PoolCount"),
            ("Nomination", "PoolLedger"),
        ];
        let strange = left.iter().filter(|key| {
            !known.iter().any(|(pallet, value)| {
                key.starts_with(&[twox_128(pallet.as_bytes()), twox_128(value.as_bytes())].concat())
            })
        });
        assert_eq!(strange.count(), 0, "{left:x?}");
        assert_eq!(pallet_registry::LiveRuns::<Runtime>::get(), 0);
        check_invariants();
    });
    // Its id is not used again.
    chain.all_accepted(vec![(
        &OWNER,
        create_run(RunParams { schedule: Schedule { start: Height(120), ..params().schedule }, ..params() }),
    )]);
    chain.read(|| assert_eq!(Runtime::runs(), [RunId(1)]));
}

#[test]
fn a_run_that_has_not_started_is_closed_at_once() {
    let mut chain = Chain::new();
    let schedule = Schedule { start: Height(u32::MAX - 100), ..params().schedule };
    chain.all_accepted(vec![(&OWNER, create_run(RunParams { schedule, ..params() }))]);
    chain.all_accepted(vec![(&OWNER, close())]);
    chain.go_to(chain.height() + 2);
    chain.read(|| assert_eq!((held(&OWNER), pallet_registry::LiveRuns::<Runtime>::get()), (0, 0)));
}

#[test]
fn the_floors_of_a_public_chain_refuse_free_runs_and_the_deposit_grows_with_the_seats_per_block() {
    use frame::deps::sp_runtime::traits::Dispatchable;
    let mut chain = Chain::new();
    chain.read(|| {
        assert_eq!(pallet_registry::FloorsOf::<Runtime>::get(), Floors::NONE);
        pallet_registry::FloorsOf::<Runtime>::kill();
        assert_eq!(pallet_registry::FloorsOf::<Runtime>::get(), Floors::default());
        let create = |params: RunParams, terms: Terms| {
            let call = pallet_registry::Call::create_run {
                params,
                terms,
                spec: digest(1),
                manifest: digest(2),
                theta0: digest(3),
                published_at: url(),
            };
            let result = RuntimeCall::from(call).dispatch(RuntimeOrigin::signed(OWNER.to_account_id()));
            result.map(|_| ()).map_err(|refused| refused.error)
        };
        let long = RunParams {
            schedule: Schedule { start: Height(9), ..RunParams::default().schedule },
            ..params()
        };
        for (params, terms, name) in [
            (params(), terms(), "WindowTooShort"),
            (long, Terms { miner_stake_min: 0, ..terms() }, "BelowFloor"),
            (long, Terms { validator_stake_min: UNIT - 1, ..terms() }, "BelowFloor"),
            (long, Terms { seat_price_min: 0, ..terms() }, "BelowFloor"),
        ] {
            assert_eq!(refusal(&[create(params, terms)]), name);
        }
        assert_ok!(create(long, terms()));
        // 10 MTL, and 10 for each of 256 seats in 115 blocks.
        let seats = 10 * UNIT * 256;
        assert_eq!(held(&OWNER), 10 * UNIT + seats.div_ceil(115));
        let more =
            pallet_registry::Call::set_terms { run: RUN, terms: Terms { miner_seats_max: 1024, ..terms() } };
        assert_ok!(RuntimeCall::from(more).dispatch(RuntimeOrigin::signed(OWNER.to_account_id())));
        assert_eq!(held(&OWNER), 10 * UNIT + (10 * UNIT * 1088).div_ceil(115));
        check_invariants();
    });
}
