//! Adversaries among honest seats, as real processes: their faults are reported, and they earn nothing.
//!
//! The simulation measures the pay of each over many windows. This test shows that the processes follow their
//! strategies.

use crate::support::{self, harness};
use libtest_mimic::Trial;
use serde_json::Value;
use std::path::Path;

pub fn tests() -> Vec<Trial> {
    harness::on_their_own!(
        "adversaries",
        [adversaries_are_reported_and_get_no_weight_while_honest_miners_are_paid,]
    )
}

/// Returns the labels of the faults reported for the seats of `strategy`.
fn held_against(report: &Value, strategy: &str) -> Vec<String> {
    let uids: Vec<&Value> = seats(report, strategy).map(|seat| &seat["uid"]).collect();
    let faults = report["faults"].as_array().expect("a list");
    let theirs = faults.iter().filter(|fault| uids.contains(&&fault["uid"]));
    theirs.map(|fault| fault["label"].as_str().expect("a label").to_owned()).collect()
}

fn seats<'a>(report: &'a Value, strategy: &'a str) -> impl Iterator<Item = &'a Value> {
    let seats = report["seats"].as_array().expect("a list");
    seats.iter().filter(move |seat| seat["strategy"] == strategy)
}

async fn adversaries_are_reported_and_get_no_weight_while_honest_miners_are_paid(home: &Path) {
    let report = home.join("report.json");
    let file = report.display().to_string();
    let network = move || {
        let seats = "honest:3,copycat:1,malformed:1,equivocator:1,slow-loris:1,validator:3";
        let plain = ["up", "--plain", "--windows", "6", "--seats", seats, "--report", &file];
        // A quarter of the default work: enough for the honest miners' weights.
        let small = ["--sequences", "320"];
        support::localnet(plain.into_iter().chain(small).chain(support::UP_WHEN_IDLE))
    };
    let ended = tokio::task::spawn_blocking(network).await.expect("it ends");
    assert!(ended.success, "{}", ended.all());
    let report: Value =
        serde_json::from_slice(&std::fs::read(&report).expect("the report is there")).expect("it is JSON");

    assert_eq!(report["lineage_agreed"], true, "{}", ended.all());
    assert!(report["void_windows"].as_array().expect("a list").len() < 4, "{}", ended.all());
    // A copycat uploads the contribution of another seat. If it copies another adversary's digest, it has that one's
    // faults. If it sees no commitment before its own, it commits nothing, and there is no fault.
    let copied = held_against(&report, "copycat");
    let committed = seats(&report, "copycat").any(|seat| seat["committed"].as_u64() > Some(2));
    assert!(!committed || !copied.is_empty(), "{}", ended.all());
    // Two of its faults are missing or late contributions.
    let malformed = held_against(&report, "malformed");
    let own: Vec<_> = malformed.iter().filter(|label| *label != "not-observed").collect();
    assert!(own.iter().any(|label| *label == "missing"), "{malformed:?}");
    assert!(
        own.iter().any(|label| *label != "missing"),
        "a third fault and later ones have other names: {malformed:?}"
    );
    assert!(held_against(&report, "equivocator").iter().any(|label| label == "missing"), "{}", ended.all());

    let crawls = held_against(&report, "slow-loris");
    assert!(
        crawls.iter().any(|label| label == "missing"),
        "a contribution that comes too slowly is missing: {crawls:?}"
    );

    // An equivocator whose second commitment is too late is bound by its first, which is honest work.
    for cheat in ["copycat", "slow-loris"] {
        for seat in seats(&report, cheat) {
            assert_eq!((&seat["final_weight"], &seat["paid"]), (&0.into(), &0.into()), "{seat}");
        }
    }
    assert!(seats(&report, "malformed").all(|seat| seat["final_weight"] == 0), "{}", ended.all());
    assert!(seats(&report, "honest").any(|seat| seat["final_weight"] != 0), "{}", ended.all());
}
