//! Networks of single tests: one with hidden votes, and `localnet up` as a user runs it.

use crate::support::{self, Net, Session, harness, last_finalised, merged_since};
use daemon::Entry;
use libtest_mimic::Trial;
use localnet::layout::LockedDirectory;
use protocol::Window;
use std::path::Path;

pub fn tests() -> Vec<Trial> {
    harness::on_their_own!(
        "sessions",
        [
            a_run_with_hidden_attestations_and_votes_trains_like_any_other,
            up_names_the_process_that_died_and_continues_from_its_directory,
            killed_seats_are_started_again_and_the_network_goes_on,
            a_dead_chain_or_ctrl_c_ends_every_process_of_a_network,
        ]
    )
}

/// A validator that is killed in the middle of a window reveals its commitments, and nothing else.
async fn a_run_with_hidden_attestations_and_votes_trains_like_any_other(home: &Path) {
    let mut net = Net::up_with(home, 2, 3, support::hidden_params).await;
    net.until("two windows are merged", |seen| 2 <= merged_since(seen, 0)).await;
    let view = net.chain.window(net.observer.run.id, Window(last_finalised(&net.observer))).await;
    let view = view.expect("our chain answers").expect("the window is kept");
    assert!(2 <= view.attested.len(), "hidden attestations were revealed: {:?}", view.attested);

    net.network.kill("validator-1").await.expect("the validator ran");
    net.start("validator-1");
    let from = last_finalised(&net.observer) + 1;
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

async fn up_names_the_process_that_died_and_continues_from_its_directory(home: &Path) {
    let directory = home.join("net");

    let mut first = Session::up(&directory, &[]);
    first.until_said("network up").await;
    first.until_finalised(1).await;
    first.kill_child("store");
    let ended = first.ended().await;
    assert!(!ended.success, "{}", ended.all());
    assert!(ended.err.contains("store has ended"), "{}", ended.all());
    assert!(ended.err.contains("the store is up"), "its last log lines are shown: {}", ended.all());

    let report = home.join("report.json");
    let more = ["--windows", "2", "--report", report.to_str().expect("a plain path")];
    let mut second = Session::up(&directory, &more);
    second.until_said("continuing the network").await;
    // A directory admits one network at a time.
    let refused = Session::up(&directory, &[]).ended().await;
    assert!(!refused.success && refused.err.contains("in use by another network"), "{}", refused.all());
    let ended = second.ended().await;
    assert!(ended.success, "{}", ended.all());

    let report: serde_json::Value =
        serde_json::from_slice(&std::fs::read(&report).expect("the report is there")).expect("it is JSON");
    assert_eq!(report["lineage_agreed"], true, "{report}");
    assert!(3 <= report["windows"].as_u64().expect("a number"), "{report}");
    for field in ["held_out_loss", "held_out_standard_error", "lineage", "void_windows", "seats", "faults"] {
        assert!(report[field].is_array(), "{field}: {report}");
    }
    for field in [
        "held_out_sequences",
        "unigram_loss",
        "unigram_standard_error",
        "tokens",
        "bytes_up",
        "bytes_down",
        "compute_share",
        "data_wait_share",
    ] {
        assert!(report[field].is_number(), "{field}: {report}");
    }
    // Miners may wait for some of their data, but not all the time. Validators do not train.
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
}

/// In addition, an outsider gets a bucket during the session.
async fn killed_seats_are_started_again_and_the_network_goes_on(home: &Path) {
    let (directory, report) = (home.join("net"), home.join("report.json"));
    let mut session = Session::up(&directory, &["--report", report.to_str().expect("a plain path")]);
    session.until_finalised(1).await;
    session.kill_child("miner");
    session.kill_child("validator");
    session.until_complained("has ended (signal: 9 (SIGKILL)); starting it again in 1 s", 2).await;

    let store =
        ["store", "add", "my-miner", "--dir", directory.to_str().expect("a plain path")].map(str::to_owned);
    let added = tokio::task::spawn_blocking(move || support::localnet(store)).await.expect("it ends");
    assert!(added.success && added.out.starts_with("[store]\n"), "{}", added.all());
    assert!(!added.out.contains("does not run"), "the bucket is served at once: {}", added.all());

    session.until_finalised(5).await;
    session.interrupt();
    let ended = session.ended().await;
    assert!(ended.success && ended.out.contains(", restarted once"), "{}", ended.all());
    let report: serde_json::Value =
        serde_json::from_slice(&std::fs::read(&report).expect("the report is there")).expect("it is JSON");
    assert_eq!(report["lineage_agreed"], true, "{report}");
    for role in ["miner", "validator"] {
        let seats = report["seats"].as_array().expect("a list").iter().filter(|seat| seat["role"] == role);
        let restarted: Vec<_> = seats.filter(|seat| seat["restarts"] == 1).collect();
        let [seat] = restarted.as_slice() else { panic!("one {role} was killed once: {report}") };
        // It participated again.
        let name = seat["name"].as_str().expect("a name");
        let journal = directory.join(name).join("data").join("journal.jsonl");
        let (entries, _) = daemon::journal::read_from(&journal, 0).expect("its journal");
        let started = |entry: &Entry| matches!(entry, Entry::Started { .. });
        let again = entries.iter().rposition(started).expect("it started");
        assert_eq!(entries.iter().filter(|entry| started(entry)).count(), 2, "{name}");
        let took_part = |entry: &Entry| matches!(entry, Entry::Committed { .. } | Entry::Voted { .. });
        assert!(entries[again..].iter().any(took_part), "{name}: {:?}", &entries[again..]);
    }
}

async fn a_dead_chain_or_ctrl_c_ends_every_process_of_a_network(home: &Path) {
    let directory = home.join("net");
    let mut first = Session::up(&directory, &[]);
    first.until_said("network up").await;
    first.kill_child("chain");
    let ended = first.ended().await;
    assert!(!ended.success, "{}", ended.all());
    assert!(ended.err.contains("chain has ended"), "{}", ended.all());

    let mut second = Session::up(&directory, &[]);
    second.until_finalised(1).await;
    let children = second.children();
    assert_eq!(children.len(), 2 + 2 + 3, "{children:?}");
    second.interrupt();
    let ended = second.ended().await;
    assert!(ended.success, "{}", ended.all());
    assert!(ended.out.contains("lineage agreed"), "{}", ended.all());
    let left: Vec<_> = children.into_iter().filter(|child| support::lives(*child)).collect();
    assert!(left.is_empty(), "{left:?} outlived the network");
}
