//! Processes of a network that are killed and started again, and one that joins late.

use crate::support::{Net, harness, holds_since, last_finalised, merged_since};
use chain_client::{SubxtChain, keys::Key};
use libtest_mimic::Trial;
use localnet::setup;
use protocol::{
    Role, Uid, Window,
    view::{Outcome, VoidReason},
};
use std::path::Path;
use watch::observe::Observer;

pub fn tests() -> Vec<Trial> {
    harness::shared!(
        "kills",
        start,
        [
            a_late_miner_joins_after_the_store_was_away,
            a_killed_miner_comes_back_and_commits_again,
            one_dead_validator_of_three_costs_nothing_and_two_void_every_window,
            a_node_killed_in_any_phase_of_a_window_ends_with_the_model_of_the_others,
        ]
    )
}

async fn start(home: &Path) -> Net {
    Net::up(home, 2, 3).await
}

/// The miner fetches the checkpoint and the updates after it. Its bucket is new, so the store is restarted for it. The
/// store's absence costs time only.
async fn a_late_miner_joins_after_the_store_was_away(net: &mut Net) {
    net.until("two windows are finalised, so that the miner is late", |seen| 2 <= last_finalised(seen)).await;
    let index = u16::try_from(net.plan.seats_of(Role::Miner).count()).expect("few miners");
    let mut seat = setup::new_seat(Role::Miner, index).expect("a seat");
    net.plan.seats.push(seat.clone());
    net.network.kill("store").await.expect("the store ran");
    let finalised = last_finalised(&net.observer);
    net.until("a window passes without the store", |seen| finalised < last_finalised(seen)).await;
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
}

async fn a_killed_miner_comes_back_and_commits_again(net: &mut Net) {
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
}

/// Two thirds of the stake decide: without two of three validators, windows are void until one of them returns.
async fn one_dead_validator_of_three_costs_nothing_and_two_void_every_window(net: &mut Net) {
    net.network.kill("validator-0").await.expect("the validator ran");
    let from = last_finalised(&net.observer) + 1;
    // Both of the others must be in time now. On a busy machine, one of them may be late once.
    net.until("two windows are merged with one validator dead", |seen| 2 <= merged_since(seen, from)).await;
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
}

async fn a_node_killed_in_any_phase_of_a_window_ends_with_the_model_of_the_others(net: &mut Net) {
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
}
