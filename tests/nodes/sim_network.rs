//! Small networks in one process: the programs' own loops, in virtual time.

use adversaries::{Adversary, MinerContext, Setup, TrainedWindow};
use async_trait::async_trait;
use daemon::Follower;
use mettle_runtime::SLOT_DURATION;
use miner::run::AHEAD;
use protocol::{
    Block, Digest, RunId, RunParams, Uid, Window, keys, receipt,
    view::{Outcome, Vote, WindowView},
};
use std::{
    collections::BTreeMap,
    sync::{Arc, LazyLock, Mutex},
    time::Duration,
};
use store::{Faults, Limits, Rate};
use tests::sim::{
    experiment::on_one_thread,
    network::{
        Cast, Event, LATE_JOINER, Leaves, MinerSeat, Network, Restart, RewindVote, Timed, ValidatorSeat,
    },
    record::{History, WindowRecord},
    world::World,
};
use validator::strategy::Strategy;

static WORLD: LazyLock<World> = LazyLock::new(|| {
    let cache = World::default_cache().expect("HOME is set");
    World::tiny(&cache).expect("the default text is on every machine that builds the project")
});

/// Runs six honest miners, `cheats`, and three validators.
fn network(seed: u64, cheats: &[&str], failures_ppm: u32, windows: u32) -> History {
    with_restarts(seed, cheats, failures_ppm, windows, Vec::new())
}

fn with_restarts(
    seed: u64,
    cheats: &[&str],
    failures_ppm: u32,
    windows: u32,
    restarts: Vec<Restart>,
) -> History {
    let mut cast = validators(seed, Vec::new());
    cast.validators.truncate(3);
    for name in cheats {
        let adversary =
            adversaries::miner(name, &Setup::default()).expect("an adversary of this name exists");
        cast.miners.push(((*name).to_owned(), MinerSeat::Adversary(adversary)));
    }
    played(Cast { same_evaluation: failures_ppm == 0, failures_ppm, restarts, ..cast }, windows)
}

fn played(cast: Cast, windows: u32) -> History {
    let history = on_one_thread(|| Network::new(&WORLD, cast).and_then(|network| network.run(windows)));
    history.expect("no seat can stop a network")
}

/// Returns six honest miners, four honest validators with separate evaluations, and `others` with as much stake each.
fn validators(seed: u64, others: Vec<(String, ValidatorSeat)>) -> Cast {
    let honest = || ("honest".to_owned(), MinerSeat::Honest { share: 1.0, batch: 8 });
    let validators = (0..4).map(|_| ("validator".to_owned(), ValidatorSeat::Honest)).chain(others);
    Cast::new(seed, (0..6).map(|_| honest()).collect(), validators.collect())
}

/// First window in which another validator could read a receipt, by the validator's bucket and the receipt's window.
type Readable = Arc<Mutex<BTreeMap<(Uid, Window), Window>>>;

/// A validator that looks for the receipts of all others, as often as the rules allow.
struct Reader(Readable);

#[async_trait]
impl Strategy for Reader {
    async fn wait_and_look(
        &mut self,
        follower: &Follower,
        now: Window,
        _deadline: Block,
    ) -> Option<WindowView> {
        let run = follower.run.id;
        let seats = follower.chain.seats(run).await.ok()?;
        for window in (0..now.0).map(Window) {
            let view = follower.chain.window(run, window).await.ok()??;
            if let Some(Outcome::Merged(merged)) = view.outcome {
                let of = |(uid, _): &(Uid, Vote)| seats[usize::from(uid.0)].endpoint.clone();
                let mut voters: Vec<String> =
                    view.votes.iter().filter(|(_, vote)| vote.update == merged.update).map(of).collect();
                voters.rotate_left(1);
                let limit = voters.len() as u32;
                let mirrors = follower.chain.update_mirrors(run, window, 1 + limit, limit).await;
                assert_eq!(mirrors.ok()?, voters);
            }
            for (uid, digest) in view.receipts {
                let endpoint = &seats.iter().find(|seat| seat.id.uid == uid)?.endpoint;
                let key = keys::receipt(run, window, uid, &digest);
                if follower.fetch.fetch(endpoint, &key, &Limits::for_bytes(1 << 24)).await.is_ok() {
                    self.0.lock().unwrap().entry((uid, window)).or_insert(now);
                }
            }
        }
        None
    }
}

#[test]
fn no_receipt_is_readable_while_a_weight_vote_or_a_probe_could_use_it() {
    let readable = Readable::default();
    let reader = ValidatorSeat::Adversary(Box::new(Reader(readable.clone())));
    played(validators(2, vec![("reader".to_owned(), reader)]), 9);
    let readable = readable.lock().unwrap();
    assert!(!readable.is_empty(), "receipts become public");
    for ((uid, window), now) in readable.iter() {
        let from = receipt::public_from(*window, &WORLD.params);
        assert!(
            from <= *now,
            "the receipt of uid {uid} for window {window} is public in {now}, not from {from}"
        );
    }
    // Each validator's receipts of the first two windows are readable.
    let first_two = readable.keys().filter(|(_, window)| window.0 < 2).count();
    assert_eq!(first_two, 2 * 5);
}

#[test]
fn honest_validators_show_what_was_drawn_and_copiers_show_nothing() {
    let copier = |name: &str| {
        let strategy = adversaries::validator(name, &Setup::default()).expect("an adversary of this name");
        (name.to_owned(), ValidatorSeat::Adversary(strategy))
    };
    let history = played(validators(3, vec![copier("receipt-copier"), copier("weight-copier")]), 12);
    let (answered, drawn) = history.answers["validator"];
    assert!(0 < drawn && answered == drawn, "honest validators answered {answered} of {drawn}");
    for name in ["receipt-copier", "weight-copier"] {
        assert_eq!(history.answers[name].0, 0, "{name}");
        assert!(0 < history.answers[name].1, "{name}");
    }
    assert_eq!(history.abstained, [], "every call was taken");
    let earned = &history.windows.last().expect("the network ran").seats;
    let honest = earned[6..10].iter().map(|seat| seat.earned).sum::<f64>() / 4.0;
    assert!(0.0 < honest);
    for (name, seat) in history.seats[10..].iter().zip(&earned[10..]) {
        assert!(seat.earned <= 0.05 * honest, "{name} has {} of {honest}", seat.earned);
    }
}

#[test]
fn the_same_seed_gives_the_same_network_and_another_seed_a_different_one() {
    let run = |seed| network(seed, &["copycat-last", "malformed"], 0, 3);
    let (one, again) = (run(7), run(7));
    assert_eq!(serde_json::to_string(&one).unwrap(), serde_json::to_string(&again).unwrap());
    let other = run(8);
    assert_ne!(one.lineage, other.lineage);
    assert_ne!(one.state_root, other.state_root);
}

#[test]
fn copycats_and_a_freeloader_earn_almost_nothing_and_honest_seats_earn_equally() {
    let history = network(1, &["copycat", "copycat-last", "freeloader-random"], 0, 12);
    let last = history.windows.last().expect("the network ran");
    let earned: Vec<f64> = last.seats.iter().map(|seat| seat.earned).collect();
    let honest = &earned[..6];
    let mean = honest.iter().sum::<f64>() / 6.0;
    assert!(0.0 < mean, "{earned:?}");
    for (seat, earned) in honest.iter().enumerate() {
        assert!((earned / mean - 1.0).abs() < 0.1, "honest seat {seat} has {earned} of {mean}");
    }
    for (name, earned) in history.seats[6..9].iter().zip(&earned[6..]) {
        assert!(*earned <= 0.05 * mean, "{name} has {earned} of {mean}");
    }
    assert!(last.held_out_loss < 0.8 * history.windows[0].held_out_loss, "the model learns");
    assert!(history.windows.iter().all(|window| window.merged));
}

#[test]
fn a_majority_of_newcomers_that_bomb_voids_windows_and_never_harms_the_model() {
    let history = network(1, &["newcomer-bomb"; 12], 0, 8);
    let losses: Vec<f64> =
        history.windows.iter().map(|window| window.held_out_loss).chain([history.held_out_loss]).collect();
    assert!(losses.windows(2).all(|pair| pair[1] < 1.05 * pair[0]), "{losses:?}");
    let merged: Vec<bool> = history.windows.iter().map(|window| window.merged).collect();
    assert!(!merged[..3].iter().all(|merged| *merged), "bombs were the majority of no selection");
    // Vetoed void windows are judged: the honest seats earn the weights of the first consensus, from the second such
    // window on.
    assert!(merged[5..].iter().all(|merged| *merged), "{merged:?}");
    assert!(losses[8] < 0.9 * losses[0], "{losses:?}");
}

#[test]
fn a_failed_fetch_is_no_fault_of_the_miner() {
    let history = network(3, &[], 50_000, 6);
    let mut checked = 0;
    for window in &history.windows {
        for seat in &window.seats[..6] {
            assert_eq!(seat.faults_attested, 0);
            assert!(!seat.observed.starts_with("Faulty"));
            assert!(seat.penalties.is_empty());
            checked += 1;
        }
    }
    assert_eq!(checked, 36);
}

#[test]
fn who_shows_nothing_after_the_deadline_is_attested_as_missing() {
    let history = network(3, &["withholder"], 0, 3);
    for window in &history.windows {
        // The withholder answers one of three validators.
        let attested: Vec<usize> = window.seats[..7].iter().map(|seat| seat.faults_attested).collect();
        assert_eq!(attested, [0, 0, 0, 0, 0, 0, 2], "window {}", window.window);
    }
}

/// Returns the block at which a window opens. Windows have twelve blocks, and the first one opens at block 12.
fn opens_at(window: u32) -> u32 {
    12 * (window + 1)
}

/// Returns the number of faults attested in all windows.
fn faults(history: &History) -> usize {
    history.windows.iter().flat_map(|window| &window.seats).map(|seat| seat.faults_attested).sum()
}

#[test]
fn a_node_killed_at_any_block_of_a_window_loses_nothing() {
    let network = |restarts| {
        let mut cast = validators(5, Vec::new());
        cast.validators.truncate(3);
        played(Cast { same_evaluation: true, restarts, ..cast }, 4)
    };
    let undisturbed = network(Vec::new());
    for offset in 0..12 {
        // Kill a miner in the second window, and a validator one block later.
        let at = opens_at(1) + offset;
        let history =
            network(vec![Restart { seat: 1, at: Block(at) }, Restart { seat: 7, at: Block(at + 1) }]);
        assert!(history.windows.iter().all(|window| window.merged), "killed at block {at}");
        assert_eq!(history.resumed, 2, "killed at block {at}");
        assert_eq!(history.lineage, undisturbed.lineage, "killed at block {at}");
        assert_eq!(faults(&history), 0, "killed at block {at}");
    }
}

/// Returns the number of blocks from the fixing of a window to one block after the next commit deadline.
fn until_too_late() -> u32 {
    let schedule = WORLD.params.schedule;
    schedule.blocks_per_window - schedule.vote_by + schedule.commit_by
}

/// Runs six honest miners that get each model this many blocks after it is fixed.
fn late_models(delay: u32, ahead: f64, pace: Option<f64>, restarts: Vec<Restart>, windows: u32) -> History {
    let update_delay = Duration::from_millis(SLOT_DURATION) * delay;
    let cast = validators(6, Vec::new());
    played(Cast { same_evaluation: true, ahead, pace, update_delay, restarts, ..cast }, windows)
}

/// Pace of a miner that does not finish a window: it trains ahead from its commitment on.
const SLOW: Option<f64> = Some(0.1);

/// Returns the shares of their sequences that the miners declare in a window.
fn trained(history: &History, window: usize) -> Vec<f64> {
    history.windows[window].seats[..6].iter().map(|seat| seat.trained_share).collect()
}

#[test]
fn a_model_that_arrives_after_the_commit_deadline_costs_no_contribution() {
    // A download takes almost a window. If it began again after the upload, it would be too late for the next window.
    let longest = WORLD.params.schedule.blocks_per_window - 1;
    for (delay, pace) in [(until_too_late(), SLOW), (longest, SLOW), (until_too_late(), None)] {
        let late = late_models(delay, AHEAD, pace, Vec::new(), 5);
        assert_eq!(trained(&late, 0), [1.0; 6], "the first model is made, not fetched");
        for window in 1..5 {
            assert!(late.windows[window].merged, "delay {delay}, window {window}");
            assert_eq!(trained(&late, window), [AHEAD; 6], "delay {delay}, window {window}");
        }
        assert_eq!(faults(&late), 0);
        let start = late.windows[0].held_out_loss;
        assert!(late.held_out_loss < 0.9 * start, "{} of {start}: the model learns", late.held_out_loss);
    }
    // A miner that waits for the model is late in every window after a merged one.
    let waiting = late_models(until_too_late(), 0.0, None, Vec::new(), 3);
    assert_eq!(trained(&waiting, 1), [0.0; 6]);
    assert!(!waiting.windows[1].merged);
}

#[test]
fn a_miner_killed_at_any_block_while_its_model_is_late_contributes_to_that_window() {
    let delay = until_too_late();
    let undisturbed = late_models(delay, AHEAD, SLOW, Vec::new(), 4);
    for offset in 0..12 {
        let at = opens_at(2) + offset;
        let history = late_models(delay, AHEAD, SLOW, vec![Restart { seat: 1, at: Block(at) }], 4);
        assert!(history.windows.iter().all(|window| window.merged), "killed at block {at}");
        assert_eq!(history.resumed, 1, "killed at block {at}");
        assert_eq!(faults(&history), 0, "killed at block {at}");
        assert_eq!(trained(&history, 2), [AHEAD; 6], "killed at block {at}");
        // From the contribution to the model's arrival, no file records the own weights. So nothing is trained ahead
        // of the next window.
        let before_the_model = (2..4).contains(&offset);
        assert_eq!(trained(&history, 3)[1] == AHEAD, !before_the_model, "killed at block {at}");
        assert_eq!(history.lineage == undisturbed.lineage, !before_the_model, "killed at block {at}");
    }
}

/// A miner's reads have the same size for any number of seats (`the_largest_run_fits_into_the_blocks_of_its_windows`
/// of the runtime).
#[test]
fn a_miner_reads_less_than_5_kb_of_the_chain_in_a_window() {
    let windows = 6;
    let history = network(4, &[], 0, windows);
    let read = |uid: usize| history.bytes_read[uid] / u64::from(windows);
    println!("bytes read per window, by uid: {:?}", (0..9).map(read).collect::<Vec<_>>());
    for uid in 0..6 {
        assert!(read(uid) < 5_000, "uid {uid} reads {} bytes in a window", read(uid));
    }
}

/// Works honestly, but sends its work reversed in one window.
struct Reverses(Window);

impl Adversary for Reverses {
    fn outcome(&mut self, at: &MinerContext<'_>, trained: &TrainedWindow<'_>) -> Option<Vec<f32>> {
        let TrainedWindow { before, after, .. } = *trained;
        if at.window != self.0 {
            return Some(after.to_vec());
        }
        Some(before.iter().zip(after).map(|(before, after)| before - (after - before)).collect())
    }
}

/// Works honestly, but adds 10 to every value or subtracts it in one window. Most of that stays in the seat's
/// residual.
struct Leaps(Window);

impl Adversary for Leaps {
    fn trains_ahead(&self) -> bool {
        true
    }

    fn outcome(&mut self, at: &MinerContext<'_>, trained: &TrainedWindow<'_>) -> Option<Vec<f32>> {
        let leap = if at.window == self.0 { 10.0 } else { 0.0 };
        let leaps = |(index, value): (usize, &f32)| match index.count_ones() % 2 {
            0 => value + leap,
            _ => value - leap,
        };
        Some(trained.after.iter().enumerate().map(leaps).collect())
    }
}

#[test]
fn a_window_whose_start_ahead_of_the_model_cannot_be_trained_from_starts_at_the_model() {
    let leap = 4;
    let mut cast = validators(7, Vec::new());
    cast.miners.push(("leaps".to_owned(), MinerSeat::Adversary(Box::new(Leaps(Window(leap))))));
    let history = played(Cast { ahead: 0.0, ..cast }, leap + 4);
    let trained = |window: &WindowRecord| window.seats[6].trained_share;
    let after: Vec<f64> = history.windows[leap as usize + 1..].iter().map(trained).collect();
    assert_eq!(after, [1.0; 3], "a seat that gave up has no contribution");
}

/// Four of six miners harm the model, by less than the validators' veto detects. The owners of two thirds of the stake
/// notice it one window later and rewind.
#[test]
fn a_network_goes_back_before_a_harmful_merge_and_trains_on() {
    let (harmed, back) = (Window(6), Window(8));
    let params = RunParams { checkpoint_windows: 3, ..WORLD.params };
    let world = World { params, ..WORLD.clone() };
    let opens = |window| params.schedule.opens_at(window).0;
    let reverses = || ("reverses".to_owned(), MinerSeat::Adversary(Box::new(Reverses(harmed))));
    let mut cast = validators(4, Vec::new());
    cast.miners.truncate(2);
    cast.miners.extend((0..4).map(|_| reverses()));
    cast.validators.truncate(3);
    // The coldkeys of seats 6 and 7, of three validators with equal stakes.
    let vote = |seat| RewindVote { seat, at: Block(opens(harmed.next()) + 4), to: harmed };
    cast.rewind_votes = vec![vote(6), vote(7)];
    cast.late_joins = vec![Block(opens(back) + 5)];

    let history = on_one_thread(|| Network::new(&world, cast).and_then(|network| network.run(12)));
    let history = history.expect("no node stops or holds another model");
    let losses: Vec<f64> =
        history.windows.iter().map(|window| window.held_out_loss).chain([history.held_out_loss]).collect();
    let merged: Vec<bool> = history.windows.iter().map(|window| window.merged).collect();
    assert!(
        merged.iter().all(|merged| *merged),
        "the veto would have prevented the harm: {merged:?} {losses:?}"
    );
    assert!(losses[6] < losses[5] && losses[6] < losses[7], "the merge did harm: {losses:?}");
    // The late joiner measures the model at the start of the window.
    assert_eq!(history.joined[LATE_JOINER], back.0);
    assert_eq!(losses[8], losses[6], "the model is the checkpoint's again: {losses:?}");
    assert!(losses[9..].iter().all(|loss| *loss < losses[6]), "training goes on from it: {losses:?}");
}

/// The validator merges the window afterwards. The attesters have the contribution of the miner that left, although
/// the first request for it finds it in no bucket.
#[test]
fn a_validator_that_was_away_while_a_selected_miner_left_goes_on_voting() {
    let (miner, validator) = (1, 7);
    let timed = |at, event| Timed { at: Block(at), after: Duration::ZERO, event };
    let mut events = vec![
        timed(29, Event::Kill { seat: validator, leaves: Leaves::Whole }),
        timed(30, Event::Leave { seat: miner }),
        timed(41, Event::Open { seat: validator }),
    ];
    let one = keys::contribution(RunId(0), Window(1), &Digest([0; 32])).to_string();
    let prefix = one.rsplit_once('/').expect("a name in a directory").0.to_owned();
    let unavailable = Faults { prefix, unavailable: Rate::Always, ..Faults::default() };
    for (at, faults) in [(40, unavailable), (44, Faults::default())] {
        let inject = |seat| timed(at, Event::Inject { seat, faults: Box::new(faults.clone()) });
        events.extend((0..10).filter(|seat| *seat != validator).map(inject));
    }
    let cast = validators(3, Vec::new());
    let history = played(Cast { same_evaluation: true, events, is_cut_off: true, ..cast }, 5);
    assert!(history.windows[1].seats[miner].selected);
    let without_buffer: Vec<_> =
        history.abstained.iter().filter(|(_, reason)| reason.contains("buffer")).collect();
    assert!(without_buffer.is_empty(), "{without_buffer:?}");
}
