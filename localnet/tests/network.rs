//! Whole networks: real processes of the real program, a real chain and a real store, on this machine.
//!
//! Nothing here measures time: each step waits for something to be true on the chain or in a node's journal, and fails with the
//! processes' last log lines if it never becomes true.

#[allow(dead_code, reason = "shared with the tests on real nodes")]
mod support;

use chain_client::keys::Key;
use chain_client::{ExpectedChain, SubxtChain};
use localnet::{
    layout::{LockedDirectory, ORIGIN},
    network::Network,
    observe::{Observer, SeatSeen},
    process::{Program, last_lines},
    seats::Seats,
    setup,
};
use node::Entry;
use protocol::{
    Role, RunId, RunParams, Schedule, Uid, Window,
    view::{Outcome, VoidReason},
};
use s3_server::{ALWAYS, Faults};
use std::{path::Path, time::Duration};
use support::{Net, Session, one_at_a_time};

fn merged(outcome: &Outcome) -> bool {
    matches!(outcome, Outcome::Merged(_))
}

/// The last fixed window.
fn last_fixed(seen: &Observer) -> u32 {
    seen.outcomes.keys().next_back().map_or(0, |window| window.0)
}

/// How many windows from `from` on were merged.
fn merged_since(seen: &Observer, from: u32) -> usize {
    seen.outcomes.range(Window(from)..).filter(|(_, outcome)| merged(outcome)).count()
}

/// Whether `name` holds a model of window `from` or a later one.
fn holds_since(seen: &Observer, name: &str, from: u32) -> bool {
    seen.held.get(name).is_some_and(|held| held.range(Window(from)..).next().is_some())
}

/// Windows from `from` on in which `uid`'s contribution was selected.
async fn selected_since(net: &Net, uid: Uid, from: u32) -> u32 {
    let mut count = 0;
    for (window, _) in net.observer.outcomes.range(Window(from)..) {
        let view = net.chain.window(net.observer.run.id, *window).await.expect("our chain answers");
        let selection = view.and_then(|view| view.selection);
        count += u32::from(selection.is_some_and(|all| all.selected.iter().any(|one| one.uid == uid)));
    }
    count
}

#[tokio::test(flavor = "multi_thread")]
async fn a_network_trains_pays_and_outlives_every_kind_of_trouble() {
    let _alone = one_at_a_time().await;
    let mut net = Net::up(2, 3).await;

    three_windows(&mut net).await;
    a_late_miner_joins_and_the_store_goes_away_for_a_while(&mut net).await;
    a_killed_miner_comes_back(&mut net).await;
    bad_bytes_and_a_store_that_refuses_cost_one_seat_only(&mut net).await;
    killed_validators(&mut net).await;
    killed_at_any_moment(&mut net).await;
    everyone_can_see_what_was_paid_and_why(&mut net).await;
    pay_is_claimed(&mut net).await;

    assert!(net.observer.lineage_agreed(), "every node held the chain's model at every window");
    net.down().await;
}

/// Miners commit, validators attest, merge and vote, and everyone holds the same model.
async fn three_windows(net: &mut Net) {
    net.until("three windows are merged and every node holds the model after them", |seen| {
        let merged_until = seen.outcomes.iter().filter(|(_, outcome)| merged(outcome)).nth(2);
        merged_until.is_some_and(|(window, _)| {
            seen.held.len() == 5 && { seen.held.keys().all(|name| holds_since(seen, name, window.0 + 1)) }
        })
    })
    .await;
    let seen = &net.observer;
    assert!(seen.lineage_agreed(), "{:?}\n{:?}", seen.lineages, seen.held);
    // Who was late for one window is in time for another.
    net.until(
        "every miner was selected, every validator has attested and voted, and bytes went both ways",
        |seen| {
            let of = |role| {
                seen.seats_of(role).map(|seat| seen.seen.get(&seat.id.uid).cloned().unwrap_or_default())
            };
            let took_part = |seat: &SeatSeen| 0 < seat.attested && 0 < seat.selected;
            of(Role::Miner).all(|miner| {
                took_part(&miner) && 0 < miner.committed && 0 < miner.bytes_up && 0 < miner.bytes_down
            }) && of(Role::Validator).all(|validator| took_part(&validator))
        },
    )
    .await;
    net.until("the consensus gives weights, and miners and validators are paid for them", |seen| {
        let paid = |role| seen.seats_of(role).any(|seat| 0 < seat.earned);
        seen.weights.values().any(|weight| 0 < *weight) && paid(Role::Miner) && paid(Role::Validator)
    })
    .await;
}

/// A miner that arrives windows later fetches checkpoint and updates, and takes part. Its bucket is new, and so the store is started
/// again: for a while there is none, and nothing but time is lost.
async fn a_late_miner_joins_and_the_store_goes_away_for_a_while(net: &mut Net) {
    assert!(2 <= last_fixed(&net.observer), "the newcomer is late");
    let mut seat = setup::new_seat(Role::Miner, 2).expect("a seat");
    net.plan.seats.push(seat.clone());
    net.network.kill("store").await.expect("the store ran");
    tokio::time::sleep(Duration::from_secs(2)).await;
    net.network.start_store(&net.plan).await.expect("the store starts again, on the same port");

    let owner = Key::dev("//Alice").expect("a development key");
    let owner = SubxtChain::connect(&net.plan.chain_url(), Some(owner), ExpectedChain::default())
        .await
        .expect("our chain answers");
    let uid = setup::add_seat(&net.directory(), &net.plan, &owner, &seat).await.expect("a seat");
    seat.uid = uid;
    *net.plan.seats.last_mut().expect("just pushed") = seat.clone();
    net.claimed.write_plan(net.plan.clone()).expect("the plan is written");
    net.network.start_seat(&net.plan, &seat).expect("the late miner starts");
    net.observe_again().await;

    let since = last_fixed(&net.observer);
    net.until("the late miner's contribution is selected", |seen| {
        seen.seen.get(&Uid(uid)).is_some_and(|miner| 0 < miner.selected)
    })
    .await;
    net.until("windows are merged again, and the late miner holds their model", |seen| {
        merged_since(seen, since + 1) >= 1 && holds_since(seen, "miner-2", last_fixed(seen))
    })
    .await;
    let first_held = net.observer.held["miner-2"].keys().next().copied();
    assert!(first_held.is_some_and(|window| 0 < window.0), "it joined late: {first_held:?}");
    assert!(net.observer.lineage_agreed());
}

async fn a_killed_miner_comes_back(net: &mut Net) {
    net.network.kill("miner-0").await.expect("the miner ran");
    let fixed = last_fixed(&net.observer);
    net.until("a window passes without the killed miner", |seen| fixed < last_fixed(seen)).await;
    net.start("miner-0");
    let fixed = last_fixed(&net.observer);
    net.until("the miner is back: it holds the model of later windows", |seen| {
        holds_since(seen, "miner-0", fixed + 2)
    })
    .await;
    let uid = net.uid("miner-0");
    net.until("its commitments are on the chain again", |seen| {
        let current = seen.current.as_ref().filter(|view| fixed < view.window.0);
        current.is_some_and(|view| view.commitments.iter().any(|(of, _)| *of == uid))
    })
    .await;
    assert!(net.observer.lineage_agreed());
}

/// Validators hold what is wrong against the seat it comes from; the window goes on with the others.
async fn bad_bytes_and_a_store_that_refuses_cost_one_seat_only(net: &mut Net) {
    let uid = net.uid("miner-1");
    let from = last_fixed(&net.observer) + 1;
    net.inject("miner-1", &Faults { flipped: ALWAYS, ..Faults::default() }).await;
    net.until("validators say that the miner's bytes are not what it committed to", |seen| {
        seen.faults.iter().any(|fault| fault.uid == uid.0 && fault.label == "wrong-digest")
    })
    .await;
    net.until("windows are merged without the miner", |seen| {
        from < last_fixed(seen) && 0 < merged_since(seen, from)
    })
    .await;

    net.inject("miner-1", &Faults { unavailable: ALWAYS, ..Faults::default() }).await;
    net.until("the miner could not upload", |seen| {
        seen.missed.iter().any(|(window, name, _)| from < window.0 && name == "miner-1")
    })
    .await;
    net.inject("miner-1", &Faults::default()).await;
    let healed = last_fixed(&net.observer) + 1;
    net.until("the network goes on", |seen| healed + 1 < last_fixed(seen)).await;
    while selected_since(net, uid, healed).await == 0 {
        let now = last_fixed(&net.observer);
        assert!(now < healed + 8, "the healed miner was never selected again{}", net.last_lines());
        net.until("another window is fixed", |seen| now < last_fixed(seen)).await;
    }
    assert!(net.observer.lineage_agreed());
}

/// Two thirds of the stake decide: without one of three validators nothing is lost; without two, windows are void until one returns.
async fn killed_validators(net: &mut Net) {
    net.network.kill("validator-0").await.expect("the validator ran");
    let from = last_fixed(&net.observer) + 1;
    // Both of the others must be in time now, which on a busy machine one of them may once not be.
    net.until("two windows are merged with one validator dead", |seen| 2 <= merged_since(seen, from)).await;
    let dead = net.uid("validator-0");
    for window in net.observer.outcomes.range(Window(from)..).map(|(window, _)| *window) {
        let view = net.chain.window(net.observer.run.id, window).await.expect("our chain answers");
        let voted = view.is_some_and(|view| view.votes.iter().any(|(uid, _)| *uid == dead));
        assert!(!voted, "the dead voted in window {}", window.0);
    }

    net.network.kill("validator-1").await.expect("the validator ran");
    let from = last_fixed(&net.observer) + 1;
    net.until("a window is void for want of two thirds", |seen| {
        let void = |outcome: &Outcome| {
            matches!(outcome, Outcome::Void(VoidReason::TooFewContributions | VoidReason::NoAgreement))
        };
        seen.outcomes.range(Window(from)..).any(|(_, outcome)| void(outcome))
    })
    .await;

    net.start("validator-1");
    let from = last_fixed(&net.observer) + 1;
    net.until("windows are merged again", |seen| 0 < merged_since(seen, from)).await;

    net.start("validator-0");
    let from = last_fixed(&net.observer);
    net.until("a checkpoint later, everyone holds the same model", |seen| {
        let checkpoint = seen.run.checkpoint.filter(|checkpoint| from + 1 < checkpoint.window.0);
        checkpoint.is_some_and(|checkpoint| {
            seen.held.len() == 6 && seen.held.keys().all(|name| holds_since(seen, name, checkpoint.window.0))
        })
    })
    .await;
    assert!(net.observer.lineage_agreed());
}

/// Whoever is killed, in whatever phase of a window, and started again at once, ends with the model of all others.
async fn killed_at_any_moment(net: &mut Net) {
    let schedule = net.observer.run.params.schedule;
    let moments = [
        ("miner-0", 2),
        ("validator-0", schedule.commit_by + 2),
        ("miner-1", schedule.commit_by + 1),
        ("validator-1", schedule.attest_by + 2),
        ("miner-0", schedule.reveal_by + 1),
        ("validator-2", schedule.vote_by + 2),
    ];
    for (name, offset) in moments {
        let reached = |seen: &Observer| {
            schedule.locate(seen.block).is_some_and(|(_, at)| offset <= at && at < offset + 4)
        };
        net.until(&format!("block {offset} of a window, where {name} is killed"), reached).await;
        let window = schedule.window_at(net.observer.block).expect("the run has started").0;
        net.network.kill(name).await.expect("it ran");
        net.start(name);
        net.until(&format!("{name} holds the model after that window"), |seen| {
            holds_since(seen, name, window + 2) && window < last_fixed(seen)
        })
        .await;
        assert!(net.observer.lineage_agreed(), "after {name} was killed at block {offset} of its window");
    }
}

/// Every validator's receipt stands an audit, and a miner reads from them what it was paid for.
async fn everyone_can_see_what_was_paid_and_why(net: &mut Net) {
    let run = net.observer.run.id;
    let validators: Vec<Uid> = net.observer.seats_of(Role::Validator).map(|seat| seat.id.uid).collect();
    let from = last_fixed(&net.observer) + 1;
    let miner =
        net.observer.seats_of(Role::Miner).find(|seat| net.observer.name_of(seat.id.uid) == "miner-0");
    let miner = miner.expect("it has a seat").id.uid;
    // A window that all of them judged and published, in an epoch that was paid: who has no time for it may miss either.
    let window = loop {
        let now = last_fixed(&net.observer);
        assert!(now < from + 20, "validators do not publish{}", net.last_lines());
        let mut complete = None;
        let paid = net.chain.payslips(run, miner).await.expect("our chain answers");
        for window in from..=now {
            let view = net.chain.window(run, Window(window)).await.expect("our chain answers");
            let view = view.expect("the window is kept");
            let all = validators.iter().all(|uid| view.receipts.iter().any(|(of, _)| of == uid));
            // Its epoch is over and its weights are revealed, so that they are audited too.
            let epoch = Window(window).epoch(net.observer.run.params.epoch_windows);
            let old = window + 4 <= now && paid.iter().any(|slip| slip.epoch == epoch);
            complete = complete
                .or((all && old && view.outcome.is_some_and(|outcome| merged(&outcome))).then_some(window));
        }
        if let Some(window) = complete {
            break window;
        }
        net.until("another window is fixed", |seen| now < last_fixed(seen)).await;
    };
    let settings = |name: &str| net.directory().join(name).join("settings.toml").display().to_string();
    let (config, at) = (settings("validator-0"), window.to_string());
    let audit = move || {
        let verb = ["audit", "--json", "--window", &at, "--config", &config];
        support::mettle(verb)
    };
    let ended = tokio::task::spawn_blocking(audit).await.expect("it ends");
    let report: serde_json::Value = serde_json::from_str(&ended.out).expect("one JSON object");
    let audited = report["result"]["validators"].as_array().expect("a list").clone();
    assert_eq!(audited.len(), validators.len(), "{}", ended.all());
    for one in &audited {
        assert_eq!(one["differences"], serde_json::json!([]), "{}", ended.all());
        assert_eq!(one["audited"], true, "{}", ended.all());
    }
    let measured_again =
        |one: &serde_json::Value| one["checks"]["losses"].as_u64().is_some_and(|seats| 0 < seats);
    assert!(audited.iter().any(measured_again), "{}", ended.all());
    assert!(audited.iter().any(|one| one["checks"]["merge"] == true), "{}", ended.all());
    assert!(audited.iter().any(|one| one["checks"]["ballot"] == true), "{}", ended.all());

    let (config, at) = (settings("miner-0"), window.to_string());
    let receipts = move || {
        let verb = ["receipts", "--json", "--window", &at, "--config", &config];
        support::mettle(verb)
    };
    let ended = tokio::task::spawn_blocking(receipts).await.expect("it ends");
    assert!(ended.success, "{}", ended.all());
    let report: serde_json::Value = serde_json::from_str(&ended.out).expect("one JSON object");
    let account = &report["result"]["windows"][0];
    assert!(account["pay"]["amount"].is_string(), "{}", ended.all());
    let said = account["validators"].as_array().expect("a list");
    let judged = said.iter().filter(|one| one["judged"]["result"]["score"].is_number()).count();
    assert!(0 < judged, "{}", ended.all());
}

async fn pay_is_claimed(net: &mut Net) {
    let seat = net.observer.seats_of(Role::Miner).find(|seat| 0 < seat.claimable);
    let seat = seat.expect("a miner was paid").clone();
    let name = net.observer.name_of(seat.id.uid);
    let before = net.chain.balance(&seat.coldkey).await.expect("our chain answers").free;
    let settings = net.directory().join(&name).join("settings.toml").display().to_string();
    let claim = move || support::mettle(["claim", "--yes", "--config", &settings]);
    let ended = tokio::task::spawn_blocking(claim).await.expect("it ends");
    assert!(ended.success, "{}", ended.all());
    assert!(ended.out.contains("MTL went to"), "{}", ended.all());
    let after = net.chain.balance(&seat.coldkey).await.expect("our chain answers").free;
    assert!(before < after, "{before} -> {after}");
}

/// A validator that is killed in the middle of a window shows what it bound itself to, and nothing else.
#[tokio::test(flavor = "multi_thread")]
async fn a_run_that_hides_attestations_and_votes_trains_like_any_other() {
    let _alone = one_at_a_time().await;
    let mut net = Net::up_with(2, 3, support::hidden_params).await;
    net.until("two windows are merged", |seen| 2 <= merged_since(seen, 0)).await;
    let view = net.chain.window(net.observer.run.id, Window(last_fixed(&net.observer))).await;
    let view = view.expect("our chain answers").expect("the window is kept");
    assert!(2 <= view.attested.len(), "what was hidden was revealed: {:?}", view.attested);

    net.network.kill("validator-1").await.expect("the validator ran");
    net.start("validator-1");
    let from = last_fixed(&net.observer) + 1;
    let uid = net.uid("validator-1");
    let attested = net.observer.seen.get(&uid).map_or(0, |seat| seat.attested);
    net.until("windows are merged again, and the validator takes part", |seen| {
        let again = seen.seen.get(&uid).is_some_and(|seat| attested < seat.attested);
        again && 1 <= merged_since(seen, from)
    })
    .await;
    assert!(net.observer.lineage_agreed(), "every node held the chain's model at every window");
    net.down().await;
}

/// A miner that is killed inside a window, one whose disk is full, and a new run from what they trained.
#[tokio::test(flavor = "multi_thread")]
async fn a_miner_loses_nothing_to_a_kill_or_a_full_disk_and_its_model_starts_another_run() {
    let _alone = one_at_a_time().await;
    let chain = setup::ChainWanted::Embedded { block_millis: 200 };
    let mut net = Net::sit(chain, Seats::honest(1, 1), long_params(), 2).await;
    net.until("a window is merged", |seen| 1 <= merged_since(seen, 0)).await;

    a_miner_killed_inside_a_window_contributes_it_and_is_paid(&mut net).await;
    a_full_disk_is_waited_for(&mut net).await;
    let mut base = a_published_model_starts_another_run(&mut net).await;

    net.network.stop().await;
    base.stop().await;
}

/// Windows with enough time to train that a miner which is started again in the middle of one still ends it.
fn long_params() -> RunParams {
    let mut params = support::params(2);
    let Schedule { blocks_per_window, commit_by, reveal_by, attest_by, vote_by, .. } = &mut params.schedule;
    for block in [blocks_per_window, commit_by, reveal_by, attest_by, vote_by] {
        *block += 40;
    }
    RunParams { sequences_per_seat: 96, ..params }
}

/// What a miner's journal says from `offset` on.
fn journal(net: &Net, name: &str, offset: u64) -> (Vec<Entry>, u64) {
    let path = net.directory().join(name).join("data").join("journal.jsonl");
    node::journal::read_from(&path, offset).expect("a journal")
}

/// Has a miner whose home this is train in small steps, with room before the deadline for a busy machine, and whatever is said beside it.
fn set_training(home: &Path, beside: &str) {
    let path = home.join("settings.toml");
    let text = std::fs::read_to_string(&path).expect("its settings");
    let (before, _) = text.split_once("[train]").expect("a miner's settings");
    let train = format!("{before}[train]\nbatch_sequences = 4\ncommit_margin_blocks = 20\n{beside}\n");
    std::fs::write(&path, train).expect("its settings");
}

/// Killed by its supervisor with the window half trained, and started again at once, it goes on from the snapshot inside the window.
async fn a_miner_killed_inside_a_window_contributes_it_and_is_paid(net: &mut Net) {
    let (name, uid) = ("miner-0", net.uid("miner-0"));
    set_training(&net.directory().join(name), "snapshot_every_steps = 1");
    net.network.kill(name).await.expect("the miner ran");
    net.start(name);

    let inside = net.directory().join(name).join("data").join("training.snapshot");
    let all_earned = |seen: &Observer| seen.seats_of(Role::Miner).map(|seat| seat.earned).sum::<u128>();
    let mut earned = 0;
    for attempt in 0.. {
        assert!(attempt < 10, "no killed window was ended{}", net.last_lines());
        // Right after a snapshot inside the window, while there is more to train.
        let began = std::time::Instant::now();
        while !inside.exists() {
            assert!(began.elapsed() < Duration::from_secs(240), "it does not train{}", net.last_lines());
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        let (_, offset) = journal(net, name, 0);
        earned = all_earned(&net.observer);
        net.network.kill(name).await.expect("the miner ran");
        net.start(name);

        let open = net.observer.run.params.schedule.window_at(net.chain.heads().borrow().block);
        let open = open.expect("the run has started");
        net.until("the window is fixed", |seen| open.0 <= last_fixed(seen)).await;
        // It went on with some of the sequences done, ended it, and was chosen. Where the kill came too late, another window is tried.
        let resumed = journal(net, name, offset).0.into_iter().find_map(|entry| match entry {
            Entry::Resumed { window, sequences, .. } if 0 < sequences => Some((window, sequences)),
            _ => None,
        });
        let Some((window, before)) = resumed else { continue };
        let trained = journal(net, name, offset).0.into_iter().find_map(|entry| match entry {
            Entry::Trained { window: of, sequences, .. } if of == window => Some(sequences),
            _ => None,
        });
        net.until("that window is fixed", |seen| window.0 <= last_fixed(seen)).await;
        let view = net.chain.window(net.observer.run.id, window).await.expect("our chain answers");
        let selection = view.and_then(|view| view.selection);
        let selected = selection.is_some_and(|all| all.selected.iter().any(|one| one.uid == uid));
        println!("window {}: killed after {before} sequences, {trained:?} in the end", window.0);
        if selected && trained.is_some_and(|trained| before < trained) {
            break;
        }
    }
    net.until("it is paid", |seen| earned < all_earned(seen)).await;
}

/// It starts afresh, without room for the model that it joins with, and then for its first snapshot. Later there is no room for the snapshot that a
/// contribution needs, then not even for the model; then there is again. The process is the same from beginning to end.
async fn a_full_disk_is_waited_for(net: &mut Net) {
    let (name, uid) = ("miner-0", net.uid("miner-0"));
    let home = net.directory().join(name);
    net.network.kill(name).await.expect("the miner ran");
    // Killed between two renames, it has only the one before.
    let length = |file: &str| {
        let path = home.join("data").join(file);
        let before = home.join("data").join(format!("{file}.before"));
        std::fs::metadata(&path).or_else(|_| std::fs::metadata(&before)).expect(file).len()
    };
    let (model, snapshot) = (length("model.state"), length("miner.snapshot"));
    assert!(2 * model < snapshot, "{model} {snapshot}");
    for file in ["model.state", "miner.snapshot", "training.snapshot"] {
        node::durable::DurableFile::new(home.join("data").join(file)).remove();
    }

    // A limit on the length of files is to the process what a full disk is, but that it would be ended by a signal.
    let log = net.directory().join("full.txt");
    let limited = format!("trap '' XFSZ; exec prlimit --fsize={}: \"$@\"", model / 2);
    let mut arguments: Vec<std::ffi::OsString> =
        vec!["-c".into(), limited.into(), "sh".into(), support::PROGRAM.into()];
    arguments.extend(["role", "miner", "start", "--with-parent", "--config"].map(Into::into));
    arguments.push(home.join("settings.toml").into());
    let program = Program {
        name: "full".into(),
        executable: "/bin/sh".into(),
        arguments,
        environment: vec![("RAYON_NUM_THREADS".into(), "1".into())],
        log: log.clone(),
        has_children: false,
    };
    let mut miner = program.start().expect("it starts");
    let id = miner.id().expect("it runs");
    let room = |bytes: &str| {
        let done = std::process::Command::new("prlimit")
            .args(["--pid", &id.to_string(), &format!("--fsize={bytes}:")])
            .status();
        assert!(done.expect("prlimit is part of every Linux").success(), "{bytes}");
    };
    let says = |words: &str, of: &str| {
        let said = std::fs::read_to_string(&log).unwrap_or_default();
        said.lines()
            .any(|line| line.contains(words) && line.contains(of) && line.contains("bytes are needed"))
    };
    let no_room = "the disk is full: make room";
    // From a checkpoint, if one is voted by now.
    let joins = |_: &Observer| says(no_room, "joining-") || says(no_room, "model.state");
    net.until("it finds no room for what it joins with", joins).await;
    room(&model.to_string());
    net.until("it has joined, and finds no room for its first snapshot", |_| says(no_room, "miner.snapshot"))
        .await;
    room("unlimited");
    let from = last_fixed(&net.observer) + 1;
    let committed = |seen: &Observer| seen.seen.get(&uid).map_or(0, |seat| seat.committed);
    let before = committed(&net.observer);
    net.until("it mines", |seen| before < committed(seen) && from <= last_fixed(seen)).await;

    room(&(snapshot - 1).to_string());
    net.until("a window passes in which the contribution cannot be kept", |seen| {
        seen.missed.iter().any(|(_, by, reason)| by == name && reason.contains("the disk was full"))
    })
    .await;
    room(&(model / 2).to_string());
    // By the chain's own clock: what the observer saw last may be a window ago.
    let open = net.observer.run.params.schedule.window_at(net.chain.heads().borrow().block);
    let open = open.expect("the run has started").0;
    net.until("two windows pass, and the model cannot be kept", |seen| open + 2 <= last_fixed(seen)).await;
    let held = |seen: &Observer| seen.held.get(name).and_then(|held| held.keys().next_back().copied());
    assert!(held(&net.observer).is_some_and(|held| held.0 <= open + 1), "{:?}", held(&net.observer));
    assert!(miner.ended().expect("our child can be watched").is_none(), "{}", last_lines(&log, 8));

    room("unlimited");
    let now = last_fixed(&net.observer);
    net.until("it holds the model again, and commits", |seen| {
        let current = seen.current.as_ref().filter(|view| now < view.window.0);
        holds_since(seen, name, now)
            && current.is_some_and(|view| view.commitments.iter().any(|(of, _)| *of == uid))
    })
    .await;
    let now = last_fixed(&net.observer);
    net.until("a window is merged", |seen| 0 < merged_since(seen, now + 1)).await;
    assert!(miner.ended().expect("our child can be watched").is_none(), "{}", last_lines(&log, 8));
    assert!(net.observer.lineage_agreed());
    let said = std::fs::read_to_string(&log).expect("its log");
    let times = |words: &str| said.lines().filter(|line| line.contains(words)).count();
    assert!(
        (1..20).contains(&times("the disk is full: make room")),
        "it says so, and not all the time:\n{said}"
    );
    assert!(0 < times("the disk has space again"), "{said}");
    assert!(!said.contains("panicked"), "{said}");
    miner.kill().await.expect("our child");
}

/// What validators voted goes out in Hugging Face's form, without a seat or a key, and comes in as the first model of another run on the same
/// chain, where it is trained on. Returns the processes that the first run was on.
async fn a_published_model_starts_another_run(net: &mut Net) -> Network {
    net.until("a checkpoint is voted, and its model judged", |seen| {
        seen.run.checkpoint.is_some_and(|checkpoint| seen.held_out.contains_key(&checkpoint.window))
    })
    .await;
    let window = net.observer.run.checkpoint.expect("just seen").window;
    let loss = |seen: &Observer, window: Window| {
        seen.held_out.get(&window).and_then(|by| by.values().next().copied())
    };
    let loss_before = loss(&net.observer, window).expect("just seen");
    let (model, url) = (net.directory().join("model"), net.plan.chain_url());
    let run_to_end = async |arguments: Vec<String>| {
        let ended = tokio::task::spawn_blocking(move || support::mettle(arguments)).await.expect("it ends");
        assert!(ended.success, "{}", ended.all());
        ended.out
    };
    let words = |line: &str| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
    let export = format!(
        "model export --published --chain {url} --run 0 --window {} --out {}",
        window.0,
        model.display()
    );
    let said = run_to_end(words(&export)).await;
    let root = said.lines().find_map(|line| line.strip_prefix("weights root ")).expect("it says").to_owned();

    // Who owns the second run publishes in the same bucket as the first one's owner.
    let second = net.directory().join("second");
    std::fs::create_dir(&second).expect("a directory");
    let file = |name: &str, text: String| {
        let path = second.join(name);
        std::fs::write(&path, text).expect("a file");
        path.display().to_string()
    };
    let (access_key, secret_key) = net.plan.origin_keys.clone();
    let owner = file(
        "owner.toml",
        format!(
            "chain = \"{url}\"\nkey = \"//Alice\"\n[store]\nendpoint = \"{}\"\nbucket = \"{ORIGIN}\"\naccess_key = \"{access_key}\"\nsecret_key = \"{secret_key}\"\n",
            net.plan.store_url()
        ),
    );
    let params = file("params.json", serde_json::to_string(&long_params()).expect("plain data"));
    let terms = r#"{ "electorate_max": 16, "absence_windows": 6, "validator_stake_min": "100", "miner_stake_min": "1" }"#;
    let terms = file("terms.json", terms.into());
    let data = net.plan.dataset.clone().expect("it is on this machine");
    let create = format!(
        "run create --yes --config {owner} --name again --weights {} --dataset {} --params {params} --terms {terms} --origin {}",
        model.display(),
        data.display(),
        net.plan.bucket_url(ORIGIN)
    );
    let said = run_to_end(words(&create)).await;
    let run = RunId(1);
    assert!(said.contains("run 1, first window at block"), "{said}");
    assert_eq!(net.chain.run(run).await.expect("our chain answers").theta0.to_string(), root);

    // The seats move over: from now on `net` is the new run's network.
    for seat in net.plan.seats.clone() {
        // One of them ended with the step before.
        let _ = net.network.kill(&seat.name).await;
    }
    net.plan.run = run.0;
    let owner = Key::dev("//Alice").expect("a development key");
    let owner =
        SubxtChain::connect(&url, Some(owner), ExpectedChain::default()).await.expect("our chain answers");
    let mut network = Network::new(&second, support::PROGRAM.into());
    for at in 0..net.plan.seats.len() {
        let seat = net.plan.seats[at].clone();
        net.plan.seats[at].uid = setup::add_seat(&second, &net.plan, &owner, &seat).await.expect("a seat");
        if seat.role == Role::Miner {
            set_training(&second.join(&seat.name), "");
        }
        network.start_seat(&net.plan, &net.plan.seats[at]).expect("it starts");
    }
    net.observer = network.observer(&net.plan, &*net.chain).await.expect("our chain answers");
    let base = std::mem::replace(&mut net.network, network);
    net.until("a window of the new run is merged, and the model that it opened with is judged", |seen| {
        0 < merged_since(seen, 0) && !seen.held_out.is_empty()
    })
    .await;
    assert!(net.observer.lineage_agreed());
    // The same weights on the same text: windows in which nobody was in time change nothing. A busy machine may judge none before the first
    // merge, which then goes on from there.
    let judged = *net.observer.held_out.keys().next().expect("just seen");
    let loss_now = loss(&net.observer, judged).expect("just seen");
    let lineages = &net.observer.lineages;
    if lineages.get(&judged) == lineages.values().next() {
        assert!((loss_now - loss_before).abs() < 1e-6, "{loss_before} {loss_now}");
    } else {
        assert!(loss_now < loss_before + 0.5, "{loss_before} {loss_now}");
    }

    // And it can be had back, from the new run, as what it was.
    let back = net.directory().join("back");
    let export =
        format!("model export --published --chain {url} --run 1 --window 0 --out {}", back.display());
    let said = run_to_end(words(&export)).await;
    assert!(said.contains(&format!("weights root {root}")), "{said}");
    base
}

/// The same order as a person types it: up, something dies, up again.
#[tokio::test(flavor = "multi_thread")]
async fn up_names_the_process_that_died_and_goes_on_from_its_directory() {
    let _alone = one_at_a_time().await;
    let home = tempfile::tempdir().expect("a directory");
    let directory = home.path().join("net");

    let mut first = Session::up(&directory, &[]);
    first.until_said("network up").await;
    first.until_fixed(1).await;
    first.kill_child("store");
    let ended = first.ended().await;
    assert!(!ended.success, "{}", ended.all());
    assert!(ended.err.contains("store has ended"), "{}", ended.all());
    assert!(ended.err.contains("the store is up"), "its last log lines are shown: {}", ended.all());

    let report = home.path().join("report.json");
    let more = ["--windows", "2", "--report", report.to_str().expect("a plain path")];
    let mut second = Session::up(&directory, &more);
    second.until_said("going on with the network").await;
    // One network at a time in a directory.
    let refused = Session::up(&directory, &[]).ended().await;
    assert!(!refused.success && refused.err.contains("in use by another network"), "{}", refused.all());
    let ended = second.ended().await;
    assert!(ended.success, "{}", ended.all());

    let report: serde_json::Value =
        serde_json::from_slice(&std::fs::read(&report).expect("the report is there")).expect("it is JSON");
    assert_eq!(report["lineage_agreed"], true, "{report}");
    assert!(3 <= report["windows"].as_u64().expect("a number"), "{report}");
    for field in ["held_out_loss", "lineage", "void_windows", "seats", "faults"] {
        assert!(report[field].is_array(), "{field}: {report}");
    }
    for field in ["unigram_loss", "bytes_up", "bytes_down", "compute_share", "data_wait_share"] {
        assert!(report[field].is_number(), "{field}: {report}");
    }
    // Who trains may wait for some of its data, and not all the time; validators do not train.
    let waits = |role: &str| -> Vec<Option<f64>> {
        let seats = report["seats"].as_array().expect("a list").iter().filter(|seat| seat["role"] == role);
        seats.map(|seat| seat["data_wait_share"].as_f64()).collect()
    };
    let miners = waits("miner");
    assert!(miners.iter().any(Option::is_some), "{report}");
    assert!(miners.iter().flatten().all(|share| (0.0..1.0).contains(share)), "{report}");
    assert!(report["data_wait_share"].as_f64().is_some_and(|share| (0.0..1.0).contains(&share)), "{report}");
    assert!(waits("validator").iter().all(Option::is_none), "{report}");
    assert!(ended.out.contains("% of it waiting for data"), "{}", ended.all());
    assert!(LockedDirectory::lock(&directory).expect("free again").plan.is_some());

    // The chain's death ends it as well.
    let mut bereft = Session::up(&directory, &[]);
    bereft.until_said("network up").await;
    bereft.kill_child("chain");
    let ended = bereft.ended().await;
    assert!(!ended.success, "{}", ended.all());
    assert!(ended.err.contains("chain has ended"), "{}", ended.all());

    // And Ctrl-C ends it, with a summary, and with every process of it.
    let mut third = Session::up(&directory, &[]);
    third.until_said("network up").await;
    let children = third.children();
    assert_eq!(children.len(), 2 + 2 + 3, "{children:?}");
    third.interrupt();
    let ended = third.ended().await;
    assert!(ended.success, "{}", ended.all());
    assert!(ended.out.contains("lineage agreed"), "{}", ended.all());
    let left: Vec<_> = children.into_iter().filter(|child| support::lives(*child)).collect();
    assert!(left.is_empty(), "{left:?} outlived the network");
}
