//! Validators that lie, next to honest ones, and the public evidence against them: `mettle audit` and `mettle report`
//! as a user runs them, against a network of real processes.
//!
//! The tools must name each lie with its seat, and find no difference for an honest validator. No test here measures
//! time: windows pass until one is found in which every validator had the chance to lie.

use crate::support::{self, Ended, Net, harness};
use libtest_mimic::Trial;
use protocol::{
    Role, RunParams, Uid, Window, receipt,
    view::{Outcome, WindowView},
};
use serde_json::Value;
use std::path::Path;

pub fn tests() -> Vec<Trial> {
    harness::on_their_own!("lies", [every_lie_is_named_and_no_honest_validator_has_a_difference])
}

/// Seats of the network. Two thirds of the validators vote honestly: nine of eleven.
const SEATS: &str = "honest:2,freeloader-zeros:1,poison-norm:1,\
    validator:3,inventor:1,favourer:1,weight-copier:1,whitewasher:1,two-faced:1,false-merge:1,absentee:1,lazy-voter:1";

/// Maximum number of windows until every validator has had the chance to lie in one of them.
const WINDOWS_MAX: u32 = 16;

fn params(finality_lag: u32) -> RunParams {
    RunParams { sequences_per_seat: 32, evaluation_sequences: 4, ..support::params(finality_lag) }
}

async fn every_lie_is_named_and_no_honest_validator_has_a_difference(home: &Path) {
    let mut net = Net::up_of(home, SEATS, params(0)).await;
    let view = a_window_full_of_lies(&mut net).await;
    let window = view.window;

    let ended = audit(&net, window, &["--json"]).await;
    let report: Value = serde_json::from_str(&ended.out).expect("one JSON object");
    println!("{}", audit(&net, window, &[]).await.all());
    assert_eq!(ended.code, Some(1), "lies were found: {}", ended.all());
    let of = |strategy: &str| of(&net, &report, strategy);
    let differences = |strategy: &str| differences_of(&of(strategy));

    for uid in uids(&net, "honest", Role::Validator) {
        let honest = audited(&report, uid);
        assert_eq!(differences_of(&honest), Vec::<String>::new(), "{honest}");
        assert_eq!(honest["unchecked"], serde_json::json!([]), "{honest}");
        assert!(honest["checks"]["losses"].as_u64() > Some(0), "{honest}");
        assert!(honest["checks"]["merge"] == true && honest["checks"]["weight_vote"] == true, "{honest}");
        let alone = audit(&net, window, &["--validator", &uid.to_string()]).await;
        assert_eq!(alone.code, Some(0), "{}", alone.all());
    }

    // Invented scores: the losses differ, and nothing else is wrong, because all of it follows from them.
    assert!(differences("inventor").iter().all(|what| what == "wrong-losses"), "{:?}", of("inventor"));
    assert!(!differences("inventor").is_empty(), "{:?}", of("inventor"));
    // A favoured friend: it has more weight than its scores give.
    assert!(differences("favourer").contains(&"wrong-weight-vote".to_owned()), "{:?}", of("favourer"));
    let friend = *view.slots.last().expect("miners");
    let (posted, earned) = shares_of(&of("favourer"), friend).expect("it is about the friend");
    assert!(earned < posted, "of uid {friend}: {posted} {earned}");
    // Copied weights.
    assert!(
        differences("weight-copier").iter().all(|what| what == "wrong-weight-vote"),
        "{:?}",
        of("weight-copier")
    );
    assert!(!differences("weight-copier").is_empty(), "{:?}", of("weight-copier"));
    // A different merge, shown by the contributions and by the vote of two thirds.
    assert_eq!(differences("false-merge"), ["wrong-merge", "dissent"], "{:?}", of("false-merge"));
    // A skipped fault, with the seat and the fault.
    let faulty = uids(&net, "freeloader-zeros", Role::Miner);
    for strategy in ["whitewasher", "two-faced"] {
        let skipped = of(strategy)["differences"].as_array().expect("a list").clone();
        let skipped: Vec<u64> =
            skipped.iter().filter_map(|one| one["difference"]["skipped-fault"]["uid"].as_u64()).collect();
        assert!(skipped.contains(&faulty[0].0.into()), "{strategy}: {:?}", of(strategy));
    }
    // The two-faced validator's receipt differs from its attestation on the chain.
    assert!(differences("two-faced").contains(&"attested-other".to_owned()), "{:?}", of("two-faced"));
    // A silent validator does not lie, and the report states its silence.
    let absent = of("absentee");
    assert_eq!(differences("absentee"), Vec::<String>::new(), "{absent}");
    assert_eq!((&absent["attested"], &absent["voted"]), (&false.into(), &false.into()), "{absent}");
    // A validator without a receipt cannot be audited.
    assert_eq!(of("lazy-voter")["audited"], false);
    let lazy = uids(&net, "lazy-voter", Role::Validator)[0].to_string();
    let alone = audit(&net, window, &["--validator", &lazy]).await;
    assert_eq!(alone.code, Some(2), "{}", alone.all());

    two_faces_cost_stake(&mut net, window, &report).await;
    assert!(net.observer.lineage_agreed());
    net.down().await;
}

/// The liar signs this lie twice. The account that shows both to the chain is paid once from the liar's stake, and the
/// liar loses its seat.
async fn two_faces_cost_stake(net: &mut Net, window: Window, report: &Value) {
    for one in report["result"]["validators"].as_array().expect("a list") {
        let proofs = one["evidence"].as_array().map_or(0, Vec::len);
        let two_faced = uids(net, "two-faced", Role::Validator).iter().any(|uid| one["uid"] == uid.0);
        assert_eq!(proofs, usize::from(two_faced), "{one}");
    }
    let uid = uids(net, "two-faced", Role::Validator)[0];
    let liar = net.observer.seats.iter().find(|seat| seat.id.uid == uid).expect("its seat").clone();
    let by = net.locked.path().join("miner-0").join("settings.toml").display().to_string();
    let at = window.to_string();
    let report = |who: Uid, more: &'static str| {
        let (by, at, who) = (by.clone(), at.clone(), who.to_string());
        run(move || {
            let wanted = ["--config", &by, "--window", &at, "--validator", &who, more];
            support::mettle(["report"].into_iter().chain(wanted))
        })
    };
    let shown = report(uid, "--dry-run").await;
    assert!(shown.success && shown.out.contains("Windows.report_contradiction"), "{}", shown.all());
    let done = report(uid, "--yes").await;
    assert!(done.success && done.out.contains("reported"), "{}", done.all());
    let again = report(uid, "--yes").await;
    assert!(!again.success, "a seat is punished once: {}", again.all());
    net.until("the liar's seat ends", |seen| seen.seats.iter().all(|seat| seat.id != liar.id)).await;
    let run = net.observer.run.id;
    let status = net.chain.account_status(run, &liar.coldkey).await.expect("our chain answers");
    let left: u128 = status.unbonding.iter().map(|chunk| chunk.amount).sum();
    assert_eq!(left, liar.stake - liar.stake / 10, "a tenth of its stake");
    let nothing = report(uids(net, "honest", Role::Validator)[0], "--yes").await;
    assert!(nothing.success && nothing.out.contains("nothing to report"), "{}", nothing.all());
}

/// Waits for a merged window whose weights are on the chain, in which each publishing validator has a receipt and each
/// liar has lied.
async fn a_window_full_of_lies(net: &mut Net) -> WindowView {
    let of = |net: &Net, strategy: &str| uids(net, strategy, Role::Validator);
    let silent = of(net, "lazy-voter");
    let receipts: Vec<Uid> = net
        .observer
        .seats_of(Role::Validator)
        .map(|seat| seat.id.uid)
        .filter(|uid| !silent.contains(uid))
        .collect();
    let attest = [of(net, "whitewasher"), of(net, "two-faced"), of(net, "honest")].concat();
    let vote = [of(net, "false-merge"), of(net, "honest")].concat();
    let ballots = [of(net, "favourer"), of(net, "weight-copier"), of(net, "honest")].concat();
    let faulty = uids(net, "freeloader-zeros", Role::Miner);
    let mut seen = 0;
    loop {
        net.until("another window is fixed", |seen_now| seen < seen_now.windows()).await;
        seen = net.observer.windows();
        assert!(seen < WINDOWS_MAX, "no validator lies, or none is in time{}", net.last_lines());
        // Its epoch is over and its weights are revealed, so that they are audited too; and there were scores to
        // derive weights from. A window later, each public receipt is in its bucket.
        let public = receipt::first_sealed(Window(seen.saturating_sub(1)), &net.observer.run.params).0;
        for window in (3..public.min(seen.saturating_sub(3))).rev().map(Window) {
            let view = net.chain.window(net.observer.run.id, window).await.expect("our chain answers");
            let view = view.expect("the window is kept");
            let all = receipts.iter().all(|uid| view.receipts.iter().any(|(of, _)| of == uid))
                && attest.iter().all(|uid| view.attested.contains(uid))
                && vote.iter().all(|uid| view.votes.iter().any(|(of, _)| of == uid))
                && view.selection.as_ref().is_some_and(|made| made.faulty.contains(&faulty[0]))
                && matches!(view.outcome, Some(Outcome::Merged(_)));
            if all && posted(net, &ballots, window).await {
                return view;
            }
        }
    }
}

/// Returns whether all of them have revealed their weights for the window's epoch.
async fn posted(net: &Net, validators: &[Uid], window: Window) -> bool {
    let run = &net.observer.run;
    let epoch = window.epoch(run.params.epoch_windows);
    for seat in net.observer.seats.iter().filter(|seat| validators.contains(&seat.id.uid)) {
        let weight_vote =
            net.chain.weight_vote(run.id, epoch, &seat.hotkey).await.expect("our chain answers");
        if weight_vote.is_none() {
            return false;
        }
    }
    true
}

async fn audit(net: &Net, window: Window, more: &[&str]) -> Ended {
    let config = net.directory().join("validator-0").join("settings.toml").display().to_string();
    let mut words: Vec<String> =
        ["audit", "--config", &config, "--window", &window.to_string()].map(str::to_owned).to_vec();
    words.extend(more.iter().map(|word| (*word).to_owned()));
    run(move || support::mettle(words)).await
}

async fn run(command: impl FnOnce() -> Ended + Send + 'static) -> Ended {
    tokio::task::spawn_blocking(command).await.expect("it ends")
}

/// Returns the seats of one strategy and role.
fn uids(net: &Net, strategy: &str, role: Role) -> Vec<Uid> {
    let seats = net.observer.seats_of(role).map(|seat| seat.id.uid);
    seats.filter(|uid| net.observer.strategy_of(*uid) == strategy).collect()
}

fn audited(report: &Value, uid: Uid) -> Value {
    let all = report["result"]["validators"].as_array().expect("a list");
    all.iter().find(|one| one["uid"] == uid.0).expect("every validator is there").clone()
}

fn of(net: &Net, report: &Value, strategy: &str) -> Value {
    audited(report, uids(net, strategy, Role::Validator)[0])
}

/// Returns the kinds of the differences found.
fn differences_of(audited: &Value) -> Vec<String> {
    let list = audited["differences"].as_array().expect("a list of differences");
    let kind = |one: &Value| {
        let what = &one["difference"];
        what.as_str().map(str::to_owned).or_else(|| what.as_object()?.keys().next().cloned())
    };
    list.iter().map(|one| kind(one).expect("each has a name")).collect()
}

/// Returns a seat's share of the posted and of the earned weights, if these differ.
fn shares_of(audited: &Value, uid: Uid) -> Option<(f64, f64)> {
    let list = audited["differences"].as_array()?;
    let found =
        list.iter().map(|one| &one["difference"]["wrong-weight-vote"]).find(|one| one["uid"] == uid.0)?;
    Some((found["posted_share"].as_f64()?, found["earned_share"].as_f64()?))
}
