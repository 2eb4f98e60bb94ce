//! Floods: runs created to fill the chain's blocks with free calls, or its budget with scheduled tasks.

use super::{large::Seat, *};
use frame::deps::sp_runtime::traits::{Dispatchable, TransactionExtension};

/// Signers of paying calls.
const PAYERS: [Sr25519Keyring; 4] =
    [Sr25519Keyring::Charlie, Sr25519Keyring::Dave, Sr25519Keyring::Eve, Sr25519Keyring::Ferdie];
/// Number of seats of a heavy run.
const CROWD: u16 = 1087;

/// Returns a run with windows of six blocks, whose seats are free of charge and of stake.
fn free_run() -> (RunParams, Terms) {
    let schedule = Schedule {
        start: Height(30),
        blocks_per_window: 6,
        commit_by: 1,
        reveal_by: 2,
        attest_by: 3,
        vote_by: 4,
    };
    let terms = Terms { miner_seats_max: CROWD, validator_seats_max: 1, ..super::terms() };
    (RunParams { schedule, ..params() }, terms)
}

fn create((params, terms): (RunParams, Terms)) -> RuntimeCall {
    pallet_registry::Call::create_run {
        params,
        terms,
        spec: digest(1),
        manifest: digest(2),
        theta0: digest(3),
        published_at: url(),
    }
    .into()
}

/// Returns the hotkey of seat `uid` of `run`.
fn hotkey(run: RunId, uid: u16) -> Seat {
    Seat::of(run.0 as u16 * 2048 + uid)
}

/// Creates a run by `OWNER` with `seats` seats of `role` without stake. They are written to the storage directly: a
/// thousand registrations are slow.
fn crowd(chain: &mut Chain, run: RunId, made: (RunParams, Terms), role: Role, seats: u16) {
    let made = (made.0, Terms { miner_stake_min: 0, validator_stake_min: 0, seat_price_min: 0, ..made.1 });
    chain.read(|| {
        assert_ok!(create(made).dispatch(RuntimeOrigin::signed(OWNER.to_account_id())));
        let seat = |uid| pallet_registry::Seat {
            registered_at: Height(2),
            since: Window(0),
            role,
            hotkey: hotkey(run, uid).account(),
            coldkey: COLDKEY.to_account_id(),
            endpoint: url(),
            endpoint_set_at: None,
            stake: 0,
        };
        let mut roster = Vec::new();
        for uid in 0..seats {
            let seat = seat(uid);
            System::inc_sufficients(&seat.hotkey);
            roster.push(Some(pallet_registry::Entry::from(&seat)));
            pallet_registry::Hotkeys::<Runtime>::insert(run, &seat.hotkey, Uid(uid));
            pallet_registry::SeatsOf::<Runtime>::insert(run, Uid(uid), seat);
        }
        pallet_registry::Rosters::<Runtime>::insert(run, BoundedVec::try_from(roster).unwrap());
    });
}

/// Contents of an author's block.
struct Filled {
    /// Inclusion of each transaction, in the order of their arrival in the pool.
    included: Vec<bool>,
    /// Weight used by ordinary calls, in thousandths of its maximum.
    normal: u64,
}

/// Makes a block as an author does: the pool's transactions by priority, then by age, as many as fit.
fn fill(chain: &mut Chain, pool: &[UncheckedExtrinsic]) -> Filled {
    let mut order: Vec<(usize, u64)> = Vec::new();
    for (age, transaction) in pool.iter().enumerate() {
        order.push((age, chain.validate(transaction.clone()).expect("a pool takes it").priority));
    }
    order.sort_by_key(|(age, priority)| (std::cmp::Reverse(*priority), *age));
    let mut included = vec![false; pool.len()];
    let number = chain.height() + 1;
    let slot = u64::from(number);
    let digest = HeaderDigest { logs: vec![DigestItem::PreRuntime(*b"aura", slot.encode())] };
    let header = Header::new(number, Default::default(), Default::default(), chain.head.hash(), digest);
    let mut inherents = InherentData::new();
    inherents.put_data(TIMESTAMP, &(slot * SLOT_DURATION)).unwrap();
    let (head, normal) = chain.state.execute_with(|| {
        RuntimeExecutive::initialize_block(&header);
        for inherent in inherents.create_extrinsics() {
            RuntimeExecutive::apply_extrinsic(inherent).unwrap().unwrap();
        }
        for (age, _) in &order {
            let applied =
                with_transaction_unchecked(|| match RuntimeExecutive::apply_extrinsic(pool[*age].clone()) {
                    Ok(result) => TransactionOutcome::Commit(Ok(result)),
                    Err(refused) => TransactionOutcome::Rollback(Err(refused)),
                });
            match applied {
                Ok(result) => {
                    assert_ok!(result);
                    included[*age] = true;
                }
                Err(TransactionValidityError::Invalid(InvalidTransaction::ExhaustsResources)) => {}
                Err(refused) => panic!("{refused:?}"),
            }
        }
        let class = frame::prelude::DispatchClass::Normal;
        let normal = System::block_weight().get(class).ref_time() * 1000
            / block_weights().get(class).max_total.unwrap().ref_time();
        (RuntimeExecutive::finalize_block(), normal)
    });
    chain.head = head;
    Filled { included, normal }
}

fn commit(run: RunId, window: u32) -> RuntimeCall {
    pallet_windows::Call::commit { run, window: Window(window), digest: digest(1) }.into()
}

/// Two runs of free seats send a commitment of each seat, before anything else is sent.
#[test]
fn two_runs_of_free_seats_leave_room_for_other_runs_and_for_paying_calls() {
    let mut chain = Chain::new();
    let honest = RunParams { schedule: Schedule { start: Height(30), ..params().schedule }, ..params() };
    crowd(&mut chain, RunId(0), free_run(), Role::Miner, CROWD);
    crowd(&mut chain, RunId(1), free_run(), Role::Miner, CROWD);
    crowd(&mut chain, RunId(2), (honest, terms()), Role::Miner, 32);
    chain.go_to(30);
    let mut pool = Vec::new();
    for run in [0, 1].map(RunId) {
        for uid in 0..CROWD {
            pool.push(chain.sign(&hotkey(run, uid), commit(run, 0), 0));
        }
    }
    let crowd = pool.len();
    for uid in 0..32 {
        pool.push(chain.sign(&hotkey(RunId(2), uid), commit(RunId(2), 0), 0));
    }
    let dest = MultiAddress::Id(OWNER.to_account_id());
    for payer in PAYERS {
        let transfer = pallet_balances::Call::transfer_keep_alive { dest: dest.clone(), value: UNIT };
        pool.push(chain.sign(&payer, transfer, 0));
    }
    let filled = fill(&mut chain, &pool);
    let count = |range: std::ops::Range<usize>| filled.included[range].iter().filter(|in_it| **in_it).count();
    let (flood, others, paying) = (count(0..crowd), count(crowd..crowd + 32), count(crowd + 32..pool.len()));
    println!("flood {flood}, others {others}, paying {paying}, {} thousandths full", filled.normal);
    assert_eq!((others, paying), (32, PAYERS.len()), "with {flood} calls of the flood");
}

/// Without the weight of the checks before the calls, blocks of free calls would take longer than their authors count:
/// a call begins with the same check. Their time is measured by the pallets' benchmarks.
#[test]
fn the_weight_of_a_free_call_counts_the_check_before_it() {
    let windows = [
        commit(RUN, 0),
        pallet_windows::Call::attest_hidden {
            run: RUN,
            window: Window(0),
            hash: digest(1),
            next_salt: digest(2),
        }
        .into(),
    ];
    let others = [
        pallet_registry::Call::set_endpoint { run: RUN, endpoint: url() }.into(),
        pallet_rewards::Call::claim { run: RUN, uid: Uid(0) }.into(),
    ];
    let paid: RuntimeCall = frame_system::Call::remark { remark: Vec::new() }.into();
    let extension = priority::ProtocolPriority::new(0, 0);
    let check = |call: &RuntimeCall| extension.weight(call) - extension.weight(&paid);
    for call in windows {
        assert_eq!(check(&call), pallet_windows::weight_info::free_call_check::<Runtime>(), "{call:?}");
    }
    for call in others {
        assert_eq!(check(&call), call.get_dispatch_info().call_weight, "{call:?}");
    }
}

/// Payers fill the bytes allowed for ordinary calls, with tips.
#[test]
fn a_block_full_of_paid_bytes_takes_an_owner_s_stop() {
    let mut chain = with_run();
    let remark = |bytes: usize| frame_system::Call::remark { remark: vec![0; bytes] };
    let mut pool: Vec<_> =
        PAYERS.iter().map(|payer| chain.sign_with_tip(payer, remark(982_500), 0, 1000 * UNIT)).collect();
    pool.push(chain.sign(&Sr25519Keyring::One, remark(4000), 0));
    let stop = pallet_registry::Call::set_stopped { run: RUN, stopped: true };
    let nonce = chain.read(|| System::account_nonce(OWNER.to_account_id()));
    pool.push(chain.sign(&OWNER, stop, nonce));
    let filled = fill(&mut chain, &pool);
    // The other ordinary call waits.
    assert_eq!(filled.included, [true, true, true, true, false, true]);
}

/// Sixteen runs of free validators need more time for their tasks than a block has.
#[test]
fn a_run_s_windows_open_in_time_beside_sixteen_heavy_runs() {
    let mut chain = Chain::new();
    let schedule = Schedule { start: Height(30), ..params().schedule };
    crowd(&mut chain, RunId(0), (RunParams { schedule, ..params() }, terms()), Role::Validator, 5);
    for run in 1..=16 {
        let (params, terms) = free_run();
        let terms = Terms { miner_seats_max: 1, validator_seats_max: CROWD, ..terms };
        crowd(&mut chain, RunId(run), (params, terms), Role::Validator, CROWD);
    }
    let next = |run| pallet_windows::ProgressOf::<Runtime>::get(RunId(run)).unwrap().next_step.0;
    let (mut light, mut heavy) = (0, 0);
    while chain.height() < 90 {
        fill(&mut chain, &[]);
        let due = chain.height() + 1;
        light = light.max(due.saturating_sub(chain.read(|| next(0))));
        heavy = heavy.max((1..=16).map(|run| due.saturating_sub(chain.read(|| next(run)))).max().unwrap());
    }
    println!("the light run's tasks are at most {light} blocks late, the heavy runs' {heavy}");
    assert_eq!(light, 0, "the light run is late");
    assert!(heavy > 0, "the heavy runs fit into the budget: this tests nothing");
}
