//! A chain with more tasks due than its blocks allow: tasks are delayed, with unchanged results.

use super::*;

/// Phases of eight blocks: every delayed task runs before the next phase's last block.
const WIDE: Schedule = Schedule {
    start: Block(10),
    blocks_per_window: 50,
    commit_by: 10,
    reveal_by: 18,
    attest_by: 26,
    vote_by: 34,
};

fn open(run: RunId) -> Window {
    pallet_registry::Runs::<Test>::get(run).unwrap().params.schedule.window_at(now()).unwrap()
}

fn now() -> Block {
    Block(System::block_number() as u32)
}

/// Returns the pallet's storage, without events and without the order of service.
fn state() -> Vec<(Vec<u8>, Vec<u8>)> {
    use frame::deps::sp_io::{hashing::twox_128, storage};
    let prefix = twox_128(b"Windows").to_vec();
    let mut found = Vec::new();
    let mut key = prefix.clone();
    let is_order = |key: &[u8]| {
        [&b"ScheduledTasks"[..], b"LateTasks"].iter().any(|name| key[16..].starts_with(&twox_128(name)))
    };
    while let Some(next) = storage::next_key(&key).filter(|next| next.starts_with(&prefix)) {
        if !is_order(&next) {
            found.push((next.clone(), storage::get(&next).unwrap().to_vec()));
        }
        key = next;
    }
    found
}

/// Returns the runs whose tasks are late.
fn late_runs() -> Vec<RunId> {
    let mut runs: Vec<RunId> = LateTasks::<Test>::get().late.iter().map(|(run, ..)| *run).collect();
    runs.sort_unstable();
    runs
}

/// Results of a chain whose runs have their tasks at nearly the same blocks.
struct Outcomes {
    state: Vec<(Vec<u8>, Vec<u8>)>,
    /// Number of blocks that ended with tasks still to run.
    late: usize,
    closed: Vec<(RunId, u32, Vec<Member>)>,
    merged: usize,
}

/// Plays `runs` runs, started `apart` blocks after each other, with the given budget. Seats make their calls in the
/// last block of each phase; `choices` omits some.
fn tell(budget: Weight, runs: u32, apart: u32, windows: u32, choices: u64) -> Outcomes {
    let mut told = Outcomes { state: Vec::new(), late: 0, closed: Vec::new(), merged: 0 };
    chain().execute_with(|| {
        TaskBudget::set(budget);
        StandingWeights::set(vec![(Uid(0), 9), (Uid(1), 3)]);
        let schedule = |run: u32| Schedule { start: Block(WIDE.start.0 + run * apart), ..WIDE };
        for run in 0..runs {
            let params = RunParams { schedule: schedule(run), epoch_windows: 2, ..params() };
            create_run(params, terms());
            let run = RunId(run);
            for seat in 0..6 {
                let role = if seat < 3 { Role::Miner } else { Role::Validator };
                register(run, role, STAKE);
            }
        }
        let mut dice = choices;
        let mut chance = move || {
            dice ^= dice << 13;
            dice ^= dice >> 7;
            dice ^= dice << 17;
            !dice.is_multiple_of(8)
        };
        let end = u64::from(WIDE.start.0 + windows * WIDE.blocks_per_window) - 1;
        while System::block_number() < end {
            go_to_block(System::block_number() + 1);
            told.late += usize::from(!late_runs().is_empty());
            for run in (0..runs).map(RunId) {
                let Some((window, offset)) = schedule(run.0).locate(now()) else { continue };
                for uid in 0..6u16 {
                    let origin = signed(uid);
                    if offset == WIDE.commit_by && uid < 3 && chance() {
                        assert_ok!(Windows::commit(origin, run, window, digest(uid as u8)));
                    } else if offset == WIDE.attest_by && uid >= 3 && chance() {
                        let committed: Vec<_> =
                            view_of(run).commitments.iter().map(|(uid, _)| (uid.0, VALID)).collect();
                        assert_ok!(Windows::attest(origin, run, window, verdicts(&committed), digest(1)));
                    } else if offset == WIDE.vote_by && uid >= 3 && chance() {
                        let root = params().is_checkpoint(window).then_some(7);
                        let update = if chance() { 50 } else { 51 };
                        let _ = Windows::vote(origin, run, window, ballot(update, root));
                    }
                }
            }
        }
        assert_eq!(late_runs(), [], "the story ends with everything done");
        Windows::check_invariants().unwrap();
        told.state = state();
        told.closed = Closed::get();
        told.closed.sort_by_key(|(run, epoch, _)| (*run, *epoch));
        told.merged = events()
            .iter()
            .filter(|event| matches!(event, Event::WindowFinalised { outcome: Outcome::Merged(_), .. }))
            .count();
    });
    told
}

fn view_of(run: RunId) -> protocol::view::WindowView {
    Windows::window_view(run, open(run)).unwrap()
}

#[test]
fn delayed_tasks_have_the_results_of_punctual_ones() {
    let (timely, late) = (tell(Weight::MAX, 6, 0, 5, 12345), tell(Weight::zero(), 6, 0, 5, 12345));
    assert_eq!(timely.late, 0);
    // One task per block for six runs: each of a window's six tasks delays five blocks.
    assert!(late.late >= 5 * 5 * 6, "{} blocks were late", late.late);
    assert!(timely.merged > 10, "{} windows were merged", timely.merged);
    assert_eq!(timely.state, late.state);
    assert_eq!(timely.closed, late.closed);
}

#[test]
fn a_block_runs_tasks_until_its_budget_is_used() {
    chain().execute_with(|| {
        for _ in 0..6 {
            create_run(params(), terms());
        }
        let opened = || {
            (0..6)
                .filter(|run| ProgressOf::<Test>::get(RunId(*run)).unwrap().window.is_some())
                .collect::<Vec<_>>()
        };
        let one_run = weight_info::task::<Test>()
            + weight_info::open::<Test>(0, 0)
            + pallet_registry::weight_info::window_opens::<Test>(0);
        TaskBudget::set(one_run * 2);
        go_to_block(10);
        assert_eq!((opened(), late_runs()), (vec![0, 1], vec![2, 3, 4, 5].into_iter().map(RunId).collect()));
        // The opening hashes of the first two runs are due now, after the runs that were not served yet.
        go_to_block(11);
        assert_eq!(opened(), [0, 1, 2, 3]);
        go_to_block(12);
        assert_eq!(opened().len(), 6);
        assert_eq!(Windows::window_view(RunId(0), Window(0)).unwrap().opening_hash, None);
        TaskBudget::set(Weight::MAX);
        go_to_block(13);
        assert_eq!(late_runs(), []);
        for run in 0..6 {
            let view = Windows::window_view(RunId(run), Window(0)).unwrap();
            assert_eq!(view.opening_hash, Some(Digest(hash_of(10).0)));
        }
    });
}

#[test]
fn a_window_takes_no_calls_while_its_opening_is_delayed_and_a_newcomer_waits_for_the_next() {
    chain().execute_with(|| {
        create_run(params(), terms());
        create_run(params(), terms());
        for run in [0, 1] {
            register(RunId(run), Role::Miner, 1);
        }
        TaskBudget::set(Weight::zero());
        go_to_block(10);
        let commit = |uid| Windows::commit(signed(uid), RunId(1), Window(0), digest(1));
        assert_noop!(commit(0), Error::<Test>::TooEarly);
        let newcomer = register(RunId(1), Role::Miner, 1);
        go_to_block(11);
        assert_ok!(commit(0));
        assert_noop!(commit(newcomer), Error::<Test>::NotInThisWindow);
    });
}

#[test]
fn a_window_is_void_if_the_chain_pruned_its_hash_before_the_task_ran() {
    with_run(params(), || {
        go_to(0, 0);
        System::set_block_number(11);
        frame_system::BlockHash::<Test>::remove(10);
        let _ = Windows::on_initialize(11);
        assert_eq!(view(0).opening_hash, None);
        assert_ok!(commit(0, 0, 1));
        go_to(0, 9);
        for uid in VALIDATORS {
            assert_ok!(attest(uid, 0, &[(0, VALID)]));
        }
        go_to(0, 18);
        assert_eq!(outcome(0), Some(Outcome::Void(VoidReason::TooFewContributions)));
    });
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]
    #[test]
    fn whatever_is_late_the_state_is_the_same_in_the_end(
        runs in 1u32..8, apart in 0u32..2, steps in 0u64..4, choices in 1u64..
    ) {
        let a_step = weight_info::open::<Test>(3, 3) + weight_info::task::<Test>();
        let (timely, late) =
            (tell(Weight::MAX, runs, apart, 4, choices), tell(a_step * steps, runs, apart, 4, choices));
        prop_assert_eq!(timely.state, late.state);
        prop_assert_eq!(timely.closed, late.closed);
        prop_assert_eq!(timely.merged, late.merged);
    }
}
