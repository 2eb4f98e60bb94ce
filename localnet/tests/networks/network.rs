//! A network of real processes, the real chain and the real store on this machine: it trains and pays, and failing
//! buckets cost only their miner. `kills.rs` tests the processes.
//!
//! No test here or in `kills.rs` measures time: each step waits for a condition on the chain or in a node's journal,
//! and fails with the last log lines of all processes.

use crate::support::{self, Net, harness, holds_since, last_finalised, merged, merged_since};
use libtest_mimic::Trial;
use protocol::{Role, Uid, Window, receipt};
use s3_server::{Faults, Rate};
use serde_json::Value;
use std::{path::Path, process::Stdio};

pub fn tests() -> Vec<Trial> {
    harness::shared!(
        "network",
        start,
        [
            windows_are_merged_and_every_node_holds_the_model_after_them,
            every_miner_is_selected_and_every_validator_votes_and_both_are_paid,
            a_profile_of_two_windows_shows_every_phase_and_commits,
            a_bucket_with_flipped_bits_costs_its_miner_alone,
            a_bucket_that_refuses_everything_costs_its_miner_alone,
            receipts_pass_an_audit_and_tell_a_miner_its_pay,
            pay_is_claimed,
        ]
    )
}

async fn start(home: &Path) -> Net {
    Net::up(home, 2, 3).await
}

/// Returns the number of windows from `from` on in which the contribution of `uid` was selected.
async fn selected_since(net: &Net, uid: Uid, from: u32) -> u32 {
    let mut count = 0;
    for (window, _) in net.observer.outcomes.range(Window(from)..) {
        let view = net.chain.window(net.observer.run.id, *window).await.expect("our chain answers");
        let selection = view.and_then(|view| view.selection);
        count += u32::from(selection.is_some_and(|all| all.selected.iter().any(|one| one.uid == uid)));
    }
    count
}

async fn windows_are_merged_and_every_node_holds_the_model_after_them(net: &mut Net) {
    let seats = net.plan.seats.len();
    net.until("three windows are merged and every node holds the model after them", |seen| {
        let third = seen.outcomes.iter().filter(|(_, outcome)| merged(outcome)).nth(2);
        third.is_some_and(|(window, _)| {
            seen.held.len() == seats && seen.held.keys().all(|name| holds_since(seen, name, window.0 + 1))
        })
    })
    .await;
    let seen = &net.observer;
    assert!(seen.lineage_agreed(), "{:?}\n{:?}", seen.lineages, seen.held);
}

async fn every_miner_is_selected_and_every_validator_votes_and_both_are_paid(net: &mut Net) {
    // A seat that is late for one window is in time for another.
    net.until(
        "every miner was selected, every validator attested and voted, and bytes went both ways",
        |seen| {
            let of = |role| {
                seen.seats_of(role).map(|seat| seen.seen.get(&seat.id.uid).cloned().unwrap_or_default())
            };
            let miners = of(Role::Miner).all(|miner| {
                0 < miner.committed.min(miner.attested).min(miner.selected)
                    && 0 < miner.bytes_up.min(miner.bytes_down)
            });
            miners && of(Role::Validator).all(|validator| 0 < validator.attested.min(validator.selected))
        },
    )
    .await;
    net.until("the consensus gives weights, and miners and validators are paid for them", |seen| {
        let paid = |role| seen.seats_of(role).any(|seat| 0 < seat.earned);
        seen.weights.values().any(|weight| 0 < *weight) && paid(Role::Miner) && paid(Role::Validator)
    })
    .await;
}

/// The profile covers the miner's own loop: its windows count like any other.
async fn a_profile_of_two_windows_shows_every_phase_and_commits(net: &mut Net) {
    net.network.kill("miner-0").await.expect("the miner ran");
    let home = tempfile::tempdir().expect("a directory");
    let trace = home.path().join("trace.json");
    let settings = net.directory().join("miner-0").join("settings.toml");
    let mut command = tokio::process::Command::new(support::PROGRAM);
    command.args(["role", "miner", "profile", "--windows", "2", "--json", "--output"]).arg(&trace);
    command.arg("--config").arg(&settings).stdin(Stdio::null()).kill_on_drop(true);
    let output = command.output().await.expect("the program is built and starts");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    let profile: Value = serde_json::from_slice(&output.stdout).expect("it prints JSON alone");
    assert_eq!(profile["is_complete"], true, "{profile}");
    let windows: Vec<u64> = serde_json::from_value(profile["windows"].clone()).expect("a list");
    assert_eq!(windows.len(), 2, "{profile}");

    let phases = profile["phases"].as_array().expect("a list");
    for kind in ["share", "loop_share", "training_share"] {
        let sum: f64 = phases.iter().map(|phase| phase[kind].as_f64().expect("a number")).sum();
        assert!((sum - 1.0).abs() < 1e-6, "{kind}: {profile}");
    }
    let share = |name: &str, kind: &str| {
        let phase = phases.iter().find(|phase| phase["phase"] == name);
        phase.unwrap_or_else(|| panic!("no {name}: {profile}"))[kind].as_f64().expect("a number")
    };
    for name in ["load", "forward", "loss", "backward", "norm", "optimiser"] {
        assert!(0.0 < share(name, "training_share"), "{name}: {profile}");
    }
    for name in ["rebase", "encode", "snapshot", "commit", "upload", "follow", "train", "wait"] {
        assert!(0.0 < share(name, "loop_share"), "{name}: {profile}");
    }

    let trace: Value =
        serde_json::from_slice(&std::fs::read(&trace).expect("the trace is there")).expect("it is JSON");
    let events = trace["traceEvents"].as_array().expect("a list");
    let spans: Vec<_> = events.iter().filter(|event| event["ph"] == "X").collect();
    assert_eq!(spans.len() as u64, profile["spans"].as_u64().expect("a number"));
    for name in ["window", "download", "apply", "save", "training", "step", "attention", "feed-forward"] {
        assert!(spans.iter().any(|span| span["name"] == name), "no span {name}");
    }
    assert_eq!(events.iter().filter(|event| event["name"] == "thread_name").count(), 2);
    // In each lane a span ends before the next begins, or lies inside another one.
    for lane in [1, 2] {
        let mut open: Vec<f64> = Vec::new();
        for span in spans.iter().filter(|span| span["tid"] == lane) {
            let number = |field: &str| span[field].as_f64().expect("a number");
            let (begin, end) = (number("ts"), number("ts") + number("dur"));
            // The unit is microseconds, and a sum loses the last decimals.
            open.retain(|outer| begin + 0.01 < *outer);
            assert!(open.last().is_none_or(|outer| end <= outer + 0.01), "{span} lies across another span");
            open.push(end);
        }
    }

    net.start("miner-0");
    let uid = net.uid("miner-0");
    // On a busy machine it may be late for one of them.
    let mut committed = 0;
    for window in windows {
        let window = Window(u32::try_from(window).expect("a window"));
        let view = net.chain.window(net.observer.run.id, window).await.expect("our chain answers");
        let view = view.expect("the window is kept");
        committed += usize::from(view.commitments.iter().any(|(of, _)| *of == uid));
    }
    assert!(0 < committed, "it committed to no window");
}

/// Validators report the faults of the miner, and windows continue with the others.
async fn a_bucket_with_flipped_bits_costs_its_miner_alone(net: &mut Net) {
    let uid = net.uid("miner-1");
    let from = last_finalised(&net.observer) + 1;
    net.inject("miner-1", &Faults { flipped: Rate::Always, ..Faults::default() }).await;
    net.until("validators report that the miner's bytes do not match its commitment", |seen| {
        seen.faults.iter().any(|fault| fault.uid == uid.0 && fault.label == "wrong-digest")
    })
    .await;
    net.until("windows are merged without the miner", |seen| {
        from < last_finalised(seen) && 0 < merged_since(seen, from)
    })
    .await;
    net.inject("miner-1", &Faults::default()).await;
    is_selected_again(net, "miner-1").await;
}

async fn a_bucket_that_refuses_everything_costs_its_miner_alone(net: &mut Net) {
    let from = last_finalised(&net.observer);
    net.inject("miner-1", &Faults { unavailable: Rate::Always, ..Faults::default() }).await;
    net.until("the miner could not upload", |seen| {
        seen.missed.iter().any(|(window, name, _)| from < window.0 && name == "miner-1")
    })
    .await;
    let from = last_finalised(&net.observer) + 1;
    net.until("windows are merged without the miner", |seen| 0 < merged_since(seen, from)).await;
    net.inject("miner-1", &Faults::default()).await;
    is_selected_again(net, "miner-1").await;
}

async fn is_selected_again(net: &mut Net, name: &str) {
    let uid = net.uid(name);
    let healed = last_finalised(&net.observer) + 1;
    net.until("the network goes on", |seen| healed + 1 < last_finalised(seen)).await;
    while selected_since(net, uid, healed).await == 0 {
        let now = last_finalised(&net.observer);
        assert!(now < healed + 8, "the healed miner was never selected again{}", net.last_lines());
        net.until("another window is finalised", |seen| now < last_finalised(seen)).await;
    }
}

async fn receipts_pass_an_audit_and_tell_a_miner_its_pay(net: &mut Net) {
    let run = net.observer.run.id;
    let validators: Vec<Uid> = net.observer.seats_of(Role::Validator).map(|seat| seat.id.uid).collect();
    let from = last_finalised(&net.observer) + 1;
    let miner =
        net.observer.seats_of(Role::Miner).find(|seat| net.observer.name_of(seat.id.uid) == "miner-0");
    let miner = miner.expect("it has a seat").id.uid;
    // A window for which every validator published a judgement, in an epoch that was paid. A late validator may miss
    // some.
    let window = loop {
        let now = last_finalised(&net.observer);
        assert!(now < from + 20, "validators do not publish{}", net.last_lines());
        let mut complete = None;
        let paid = net.chain.payslips(run, miner).await.expect("our chain answers");
        for window in from..=now {
            let view = net.chain.window(run, Window(window)).await.expect("our chain answers");
            let view = view.expect("the window is kept");
            let all = validators.iter().all(|uid| view.receipts.iter().any(|(of, _)| of == uid));
            // Its epoch is over and its weights are revealed, so that they are audited too.
            let epoch = Window(window).epoch(net.observer.run.params.epoch_windows);
            // A window later, each public receipt is in its bucket.
            let public = receipt::first_sealed(Window(now), &net.observer.run.params).0;
            let old = window < public && paid.iter().any(|slip| slip.epoch == epoch);
            complete = complete
                .or((all && old && view.outcome.is_some_and(|outcome| merged(&outcome))).then_some(window));
        }
        if let Some(window) = complete {
            break window;
        }
        net.until("another window is finalised", |seen| now < last_finalised(seen)).await;
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
    assert!(audited.iter().any(|one| one["checks"]["weight_vote"] == true), "{}", ended.all());

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
    let judgements = account["validators"].as_array().expect("a list");
    let judged = judgements.iter().filter(|one| one["judged"]["result"]["score"].is_number()).count();
    assert!(0 < judged, "{}", ended.all());
}

async fn pay_is_claimed(net: &mut Net) {
    net.until("a miner was paid", |seen| seen.seats_of(Role::Miner).any(|seat| 0 < seat.claimable)).await;
    let seat = net.observer.seats_of(Role::Miner).find(|seat| 0 < seat.claimable);
    let seat = seat.expect("just seen").clone();
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
