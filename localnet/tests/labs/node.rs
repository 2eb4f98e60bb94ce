//! A network on four real nodes, each a process of its own. The nodes' program is built separately, so these tests are
//! ignored by default. METTLE_NODE names the program:
//!
//! ```text
//! METTLE_NODE=chain/node/target/release/mettle-node cargo test -p localnet --test labs -- --ignored node::
//! ```

use crate::support::{self, Net, Session, harness};
use libtest_mimic::Trial;
use localnet::nodes;
use protocol::view::Outcome;
use std::path::{Path, PathBuf};
use watch::observe::Observer;

pub fn tests() -> Vec<Trial> {
    harness::ignored(harness::on_their_own!(
        "node",
        [
            a_network_on_four_nodes_outlives_one_of_them_and_its_seats_go_on_without_a_restart,
            up_on_four_nodes_names_a_node_that_died_and_goes_on_from_its_directory,
        ]
    ))
}

fn program() -> PathBuf {
    let asked = std::env::var_os("METTLE_NODE").map(PathBuf::from);
    // Relative to the root of the checkout.
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("..");
    let asked = asked.map(|path| if path.is_absolute() { path } else { root.join(path) });
    nodes::find(asked.as_deref()).expect("METTLE_NODE names the node's program")
}

fn merged(seen: &Observer) -> usize {
    seen.outcomes.values().filter(|outcome| matches!(outcome, Outcome::Merged(_))).count()
}

async fn a_network_on_four_nodes_outlives_one_of_them_and_its_seats_go_on_without_a_restart(home: &Path) {
    let mut net = Net::on_nodes(home, program(), 2, 3).await;
    net.until("two windows are merged", |seen| 2 <= merged(seen)).await;

    // The seats that use this node wait; the others, and finality, continue.
    net.network.kill("node-1").await.expect("the node ran");
    let block = net.observer.block.0;
    net.until("finality goes on with three of four", |seen| block + 10 < seen.block.0).await;
    let plan = net.plan.clone();
    net.network.start_node(&plan, "node-1").expect("the node starts again");

    let before = merged(&net.observer);
    let fixed = net.observer.outcomes.keys().next_back().copied();
    net.until("windows are merged, and every seat holds a model of a later one", |seen| {
        let later = |held: &std::collections::BTreeMap<_, _>| held.keys().next_back().copied() > fixed;
        before < merged(seen) && seen.held.len() == 5 && seen.held.values().all(later)
    })
    .await;
    assert!(net.observer.lineage_agreed(), "{:?}\n{:?}", net.observer.lineages, net.observer.held);
    net.down().await;
}

async fn up_on_four_nodes_names_a_node_that_died_and_goes_on_from_its_directory(home: &Path) {
    let directory = home.join("net");
    let program = program();
    let program = program.to_str().expect("a plain path");
    let flags = ["--chain", "node", "--node-binary", program];

    let mut first = Session::up_as(&directory, &flags);
    first.until_said("network up").await;
    assert_eq!(first.children().len(), 4 + 1 + 2 + 3);
    first.kill_child("node");
    let ended = first.ended().await;
    assert!(!ended.success, "{}", ended.all());
    assert!(ended.err.contains("node-") && ended.err.contains("has ended"), "{}", ended.all());
    assert!(ended.err.contains("finalized"), "its last log lines are shown: {}", ended.all());

    let mut second = Session::up_as(&directory, &flags);
    second.until_said("continuing the network").await;
    second.until_said("network up").await;
    let children = second.children();
    second.interrupt();
    let ended = second.ended().await;
    assert!(ended.success, "{}", ended.all());
    let left: Vec<_> = children.into_iter().filter(|child| support::lives(*child)).collect();
    assert!(left.is_empty(), "{left:?} outlived the network");
}
