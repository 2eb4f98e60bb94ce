//! Synthetic runs: a small one for tests, and a large one for viewing the page.

use crate::{
    observe::{HONEST, Observer, SeatSeen, Text},
    timeline::{Fate, WindowRow},
};
use dataset::LossEstimate;
use protocol::{
    Block, Digest, Hotkey, Role, RunId, RunParams, Schedule, SeatId, Terms, Uid, Window,
    view::{Outcome, RunView, SeatView, Selection, VoidReason, Vote, WindowView},
};
use std::{collections::BTreeMap, path::PathBuf};

const MERGED: Outcome = Outcome::Merged(Vote { update: Digest([0; 32]), state_root: None });

/// The text of [`network`].
pub const TEXT: Text = Text {
    sequence_tokens: 64,
    unigram: LossEstimate { sequences: 1536, loss: 6.32, standard_error: 0.017 },
};

/// Creates a run with windows of 40 blocks.
fn run() -> RunView {
    let schedule = Schedule {
        start: Block(100),
        blocks_per_window: 40,
        commit_by: 28,
        reveal_by: 31,
        attest_by: 34,
        vote_by: 37,
    };
    RunView {
        id: RunId(0),
        owner: [0; 32],
        params: RunParams { schedule, hidden_blocks: 0, ..RunParams::default() },
        terms: Terms::default(),
        spec: Digest::default(),
        manifest: Digest::default(),
        theta0: Digest::default(),
        origin: String::new(),
        treasury: 0,
        checkpoint: None,
        rewound: None,
        paused: false,
    }
}

fn seat(uid: Uid, role: Role, earned: u128) -> SeatView {
    SeatView {
        id: SeatId { uid, registered_at: Block(0) },
        role,
        hotkey: Hotkey([0; 32]),
        coldkey: [0; 32],
        endpoint: String::new(),
        stake: 0,
        claimable: 0,
        earned,
    }
}

/// Creates a window without any event.
pub fn window(window: Window) -> WindowView {
    WindowView {
        window,
        opening_hash: None,
        deal_seed: None,
        evaluation_hash: None,
        slots: Vec::new(),
        cursor: 0,
        active_set: Vec::new(),
        lineage: Digest::default(),
        weights: Vec::new(),
        commitments: Vec::new(),
        salts: Vec::new(),
        attested: Vec::new(),
        selection: None,
        votes: Vec::new(),
        outcome: None,
        receipts: Vec::new(),
        probe_roots: Vec::new(),
        probes: Vec::new(),
        next_deal: None,
    }
}

/// Creates a network of four miners, one of them a copycat, and three validators, in window 6; `uid 7` joined later.
pub fn network() -> Observer {
    let validators = (0..3).map(|index| (Role::Validator, index, HONEST));
    let miners = [(0, HONEST), (1, HONEST), (2, HONEST), (3, "copycat")];
    let miners = miners.map(|(index, strategy)| (Role::Miner, index, strategy));
    let plans: Vec<(String, Uid, String)> = (0..)
        .zip(validators.chain(miners))
        .map(|(uid, (role, index, strategy))| (format!("{role}-{index}"), Uid(uid), strategy.to_owned()))
        .collect();
    let earned = [
        61_234_567_890_123,
        61_234_567_890_123,
        61_234_567_890_123,
        297_398_538_212_279,
        1_184_711_812_518_064,
        0,
        9_000_000_000,
        500_000_000_000,
    ];
    let seats = (0..8u16)
        .zip(earned)
        .map(|(uid, earned)| seat(Uid(uid), if uid < 3 { Role::Validator } else { Role::Miner }, earned));
    let losses = [7.99, 6.8, 5.31, 4.4, 3.62, 3.28, 3.07];
    let held_out = (0..).zip(losses).map(|(window, loss)| {
        let standard_error = 0.018 * 3_f64.sqrt();
        let part = |add| LossEstimate { sequences: 512, loss: loss + add, standard_error };
        let by = [("validator-0", 0.01), ("validator-1", -0.01), ("validator-2", 0.0)];
        (Window(window), BTreeMap::from(by.map(|(name, add)| (name.to_owned(), part(add)))))
    });
    let mut outcomes: BTreeMap<Window, Outcome> = (0..6).map(|window| (Window(window), MERGED)).collect();
    outcomes.insert(Window(2), Outcome::Void(VoidReason::NoAgreement));
    let miner = |share: f64| SeatSeen {
        committed: 6,
        attested: 5,
        selected: 5,
        gains: vec![0.01, 0.02],
        score: Some(share),
        train_seconds: 80.0,
        data_seconds: 0.4,
        bytes_up: 1_500_000,
        bytes_down: 4_000_000,
        ..SeatSeen::default()
    };
    let validator =
        SeatSeen { attested: 6, selected: 6, minority_votes: 1, bytes_up: 10_000, ..SeatSeen::default() };
    let mut seen: BTreeMap<Uid, SeatSeen> = (0..3).map(|uid| (Uid(uid), validator.clone())).collect();
    seen.extend((3..7).map(|uid| (Uid(uid), miner(0.1 * f64::from(uid)))));
    let journals = plans.iter().map(|(name, uid, _)| (name.clone(), *uid, PathBuf::new()));
    let strategies = plans.iter().map(|(name, _, strategy)| (name.clone(), (*strategy).to_owned()));
    let block = Block(100 + 6 * 40 + 36);
    let mut observer = Observer::from_start(run(), seats.collect(), block, journals.collect())
        .with_plan(strategies.collect(), Some(1536));
    observer.weights = BTreeMap::from([(Uid(3), 65_535), (Uid(4), 64_000), (Uid(5), 62_268), (Uid(6), 0)]);
    observer.current = Some(WindowView {
        slots: (3..8).map(Uid).collect(),
        commitments: [3, 4, 6].map(|uid| (Uid(uid), Digest::default())).to_vec(),
        attested: vec![Uid(0)],
        selection: Some(Selection { selected: Vec::new(), valid: Vec::new(), faulty: vec![Uid(6)] }),
        votes: vec![(Uid(1), Vote { update: Digest::default(), state_root: None })],
        ..window(Window(6))
    });
    observer.outcomes = outcomes;
    observer.held_out = held_out.collect();
    observer.trained = (0..6).map(|window| (Window(window), 4 * 1280)).collect();
    observer.active = (3..7).map(|uid| (Uid(uid), Window(5))).collect();
    observer.seen = seen;
    observer.last_merge = Some((Window(5), 91_614, 4));
    observer
}

/// Creates a run of `seats` seats after `windows` windows. One seat in sixteen is a validator. Names are hostile.
pub fn large(seats: u16, windows: u32) -> Observer {
    const NAMES: [&str; 4] =
        ["<img src=x onerror=alert(1)>", "\"><script>alert(2)</script>", "miner & co", "\u{202e}rotadilav"];
    let role = |uid: u16| if uid.is_multiple_of(16) { Role::Validator } else { Role::Miner };
    let all = (0..seats).map(|uid| seat(Uid(uid), role(uid), u128::from(uid) * 1_234_567_890_123));
    let names = NAMES.iter().zip(1..).map(|(name, uid)| ((*name).to_owned(), Uid(uid), PathBuf::new()));
    let run = run();
    let block = Block(run.params.schedule.opens_at(Window(windows)).0.saturating_add(12));
    let mut observer = Observer::from_start(run, all.collect(), block, names.collect());
    for number in 0..windows {
        let outcome = match number % 97 {
            41 => Outcome::Void(VoidReason::TooFewContributions),
            _ => MERGED,
        };
        let fates = (0..seats).map(|uid| fate(number, uid, role(uid), outcome)).collect();
        observer.timeline.add(Window(number), WindowRow::with(Some(outcome), fates));
        observer.outcomes.insert(Window(number), outcome);
        let loss = 2.4 + 5.6 * (-f64::from(number) / 900.0).exp() + 0.02 * f64::from(number).sin();
        let estimate = LossEstimate { sequences: 128, loss, standard_error: 0.03 };
        observer.held_out.insert(Window(number), BTreeMap::from([("uid 0".to_owned(), estimate)]));
    }
    observer.weights =
        (0..seats).filter(|uid| role(*uid) == Role::Miner).map(|uid| (Uid(uid), 1 + uid % 977)).collect();
    observer.active = (0..seats).map(|uid| (Uid(uid), Window(windows.saturating_sub(1)))).collect();
    observer.current = Some(WindowView {
        slots: (0..seats).filter(|uid| role(*uid) == Role::Miner).map(Uid).collect(),
        active_set: (0..seats).step_by(16).map(|uid| (Uid(uid), 1)).collect(),
        ..window(Window(windows))
    });
    observer
}

/// Returns a fate that looks random and is the same each time.
fn fate(window: u32, uid: u16, role: Role, outcome: Outcome) -> Fate {
    let mixed = window.wrapping_mul(2_654_435_761) ^ u32::from(uid).wrapping_mul(2_246_822_519);
    let chance = mixed.wrapping_mul(3_266_489_917) >> 24;
    // Seats join in sequence.
    if window < u32::from(uid) / 4 {
        return Fate::Absent;
    }
    match (role, chance) {
        (Role::Validator, 0..3) => Fate::Silent,
        (Role::Validator, 3..5) => Fate::MinorityVote,
        (Role::Validator, 5..10) => Fate::Attested,
        (Role::Validator, _) => Fate::Voted,
        (Role::Miner, 0..8) => Fate::Missed,
        (Role::Miner, 8..12) => Fate::Refused,
        (Role::Miner, 12..18) => Fate::Unseen,
        (Role::Miner, 18..120) => Fate::Scored,
        (Role::Miner, 120..150) => Fate::Gathered,
        (Role::Miner, _) if outcome == MERGED => Fate::Merged,
        (Role::Miner, _) => Fate::Void,
    }
}
