//! A network of real processes, the real chain and the real store on this machine, in every kind of trouble.
//!
//! All tests here run on one network, one after the other, and each can be run alone. No test measures time: each step
//! waits for a condition on the chain or in a node's journal, and fails with the last log lines of all processes.

#[allow(dead_code, reason = "shared with the other tests of whole networks")]
mod support;

use chain_client::SubxtChain;
use chain_client::keys::Key;
use localnet::setup;
use protocol::{
    Role, Uid, Window, receipt,
    view::{Outcome, VoidReason},
};
use s3_server::{Faults, Rate};
use serde_json::Value;
use std::{process::Stdio, sync::LazyLock, time::Duration};
use support::{Net, Shared, holds_since, last_finalised, merged, merged_since};
use watch::observe::Observer;

static NETWORK: LazyLock<Shared> =
    LazyLock::new(|| Shared::start("network", async |home| Net::up(home, 2, 3).await));

/// Windows from `from` on in which the contribution of `uid` was selected.
async fn selected_since(net: &Net, uid: Uid, from: u32) -> u32 {
    let mut count = 0;
    for (window, _) in net.observer.outcomes.range(Window(from)..) {
        let view = net.chain.window(net.observer.run.id, *window).await.expect("our chain answers");
        let selection = view.and_then(|view| view.selection);
        count += u32::from(selection.is_some_and(|all| all.selected.iter().any(|one| one.uid == uid)));
    }
    count
}

#[test]
fn windows_are_merged_and_every_node_holds_the_model_after_them() {
    NETWORK.run(async |net| {
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
    });
}

#[test]
fn every_miner_is_selected_and_every_validator_votes_and_both_are_paid() {
    NETWORK.run(async |net| {
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
    });
}

/// The miner fetches the checkpoint and the updates after it. Its bucket is new, so the store is restarted for it:
/// while the store is away nothing but time is lost.
#[test]
fn a_late_miner_joins_after_the_store_was_away() {
    NETWORK.run(async |net| {
        net.until("two windows are finalised, so that the miner is late", |seen| 2 <= last_finalised(seen))
            .await;
        let index = u16::try_from(net.plan.seats_of(Role::Miner).count()).expect("few miners");
        let mut seat = setup::new_seat(Role::Miner, index).expect("a seat");
        net.plan.seats.push(seat.clone());
        net.network.kill("store").await.expect("the store ran");
        tokio::time::sleep(Duration::from_secs(2)).await;
        net.network.start_store(&net.plan).await.expect("the store starts again, on the same port");

        let owner = Key::dev("//Alice").expect("a development key");
        let owner = SubxtChain::connect(&net.plan.chain_url(), Some(owner)).await.expect("our chain answers");
        let uid = setup::add_seat(&net.directory(), &net.plan, &owner, &seat).await.expect("a seat");
        seat.uid = uid;
        *net.plan.seats.last_mut().expect("just pushed") = seat.clone();
        net.locked.write_plan(net.plan.clone()).expect("the plan is written");
        net.network.start_seat(&net.plan, &seat).expect("the late miner starts");
        net.observe_again().await;

        let since = last_finalised(&net.observer);
        net.until("the late miner's contribution is selected", |seen| {
            seen.seen.get(&Uid(uid)).is_some_and(|miner| 0 < miner.selected)
        })
        .await;
        net.until("windows are merged again, and the late miner holds their model", |seen| {
            merged_since(seen, since + 1) >= 1 && holds_since(seen, &seat.name, last_finalised(seen))
        })
        .await;
        let first_held = net.observer.held[&seat.name].keys().next().copied();
        assert!(first_held.is_some_and(|window| 0 < window.0), "it joined late: {first_held:?}");
    });
}

#[test]
fn a_killed_miner_comes_back_and_commits_again() {
    NETWORK.run(async |net| {
        net.network.kill("miner-0").await.expect("the miner ran");
        let finalised = last_finalised(&net.observer);
        net.until("a window passes without the killed miner", |seen| finalised < last_finalised(seen)).await;
        net.start("miner-0");
        let finalised = last_finalised(&net.observer);
        net.until("the miner is back: it holds the model of later windows", |seen| {
            holds_since(seen, "miner-0", finalised + 2)
        })
        .await;
        let uid = net.uid("miner-0");
        net.until("its commitments are on the chain again", |seen| {
            let current = seen.current.as_ref().filter(|view| finalised < view.window.0);
            current.is_some_and(|view| view.commitments.iter().any(|(of, _)| *of == uid))
        })
        .await;
    });
}

/// The profile is of the miner's own loop: its windows count like any other.
#[test]
fn a_profile_of_two_windows_shows_every_phase_and_commits() {
    NETWORK.run(async |net| {
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
                // In microseconds, of which the last decimals are lost in the sum.
                open.retain(|outer| begin + 0.01 < *outer);
                assert!(
                    open.last().is_none_or(|outer| end <= outer + 0.01),
                    "{span} lies across another span"
                );
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
    });
}

/// Validators report the faults of the miner, and windows go on with the others.
#[test]
fn a_bucket_with_flipped_bits_costs_its_miner_alone() {
    NETWORK.run(async |net| {
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
    });
}

#[test]
fn a_bucket_that_refuses_everything_costs_its_miner_alone() {
    NETWORK.run(async |net| {
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
    });
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

/// Two thirds of the stake decide: without two of three validators, windows are void until one of them returns.
#[test]
fn one_dead_validator_of_three_costs_nothing_and_two_void_every_window() {
    NETWORK.run(async |net| {
        net.network.kill("validator-0").await.expect("the validator ran");
        let from = last_finalised(&net.observer) + 1;
        // Both of the others must be in time now, which on a busy machine one of them may once not be.
        net.until("two windows are merged with one validator dead", |seen| 2 <= merged_since(seen, from))
            .await;
        let dead = net.uid("validator-0");
        for window in net.observer.outcomes.range(Window(from)..).map(|(window, _)| *window) {
            let view = net.chain.window(net.observer.run.id, window).await.expect("our chain answers");
            let voted = view.is_some_and(|view| view.votes.iter().any(|(uid, _)| *uid == dead));
            assert!(!voted, "the dead validator voted in window {}", window.0);
        }

        net.network.kill("validator-1").await.expect("the validator ran");
        let from = last_finalised(&net.observer) + 1;
        net.until("a window is void for want of two thirds", |seen| {
            let void = |outcome: &Outcome| {
                matches!(outcome, Outcome::Void(VoidReason::TooFewContributions | VoidReason::NoAgreement))
            };
            seen.outcomes.range(Window(from)..).any(|(_, outcome)| void(outcome))
        })
        .await;

        net.start("validator-1");
        let from = last_finalised(&net.observer) + 1;
        net.until("windows are merged again", |seen| 0 < merged_since(seen, from)).await;

        net.start("validator-0");
        let (from, seats) = (last_finalised(&net.observer), net.plan.seats.len());
        net.until("a checkpoint later, every node holds the same model", |seen| {
            let checkpoint = seen.run.checkpoint.filter(|checkpoint| from + 1 < checkpoint.window.0);
            checkpoint.is_some_and(|checkpoint| {
                seen.held.len() == seats
                    && seen.held.keys().all(|name| holds_since(seen, name, checkpoint.window.0))
            })
        })
        .await;
    });
}

#[test]
fn a_node_killed_in_any_phase_of_a_window_ends_with_the_model_of_the_others() {
    NETWORK.run(async |net| {
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
                holds_since(seen, name, window + 2) && window < last_finalised(seen)
            })
            .await;
            assert!(net.observer.lineage_agreed(), "{name} was killed at block {offset} of its window");
        }
    });
}

#[test]
fn receipts_pass_an_audit_and_tell_a_miner_its_pay() {
    NETWORK.run(async |net| {
        let run = net.observer.run.id;
        let validators: Vec<Uid> = net.observer.seats_of(Role::Validator).map(|seat| seat.id.uid).collect();
        let from = last_finalised(&net.observer) + 1;
        let miner =
            net.observer.seats_of(Role::Miner).find(|seat| net.observer.name_of(seat.id.uid) == "miner-0");
        let miner = miner.expect("it has a seat").id.uid;
        // A window that every validator judged and published, in an epoch that was paid. A late validator may miss
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
                // A window later each receipt that is public is in its bucket.
                let public = receipt::first_sealed(Window(now), &net.observer.run.params).0;
                let old = window < public && paid.iter().any(|slip| slip.epoch == epoch);
                complete = complete
                    .or((all && old && view.outcome.is_some_and(|outcome| merged(&outcome)))
                        .then_some(window));
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
        let judgements = account["validators"].as_array().expect("a list");
        let judged = judgements.iter().filter(|one| one["judged"]["result"]["score"].is_number()).count();
        assert!(0 < judged, "{}", ended.all());
    });
}

#[test]
fn pay_is_claimed() {
    NETWORK.run(async |net| {
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
    });
}
