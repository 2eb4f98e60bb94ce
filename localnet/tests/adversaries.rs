//! Cheats among honest seats, as real processes: what they do is named, and they are not paid for it.
//!
//! What each is paid over many windows is for the simulation to show; this is about their processes doing what they say.

#[allow(dead_code, reason = "shared with the other tests of whole networks")]
mod support;

use serde_json::Value;
use support::one_at_a_time;

/// Labels of what was held against the seats of `strategy`.
fn held_against(report: &Value, strategy: &str) -> Vec<String> {
    let uids: Vec<&Value> = seats(report, strategy).map(|seat| &seat["uid"]).collect();
    let faults = report["faults"].as_array().expect("a list");
    let theirs = faults.iter().filter(|fault| uids.contains(&&fault["uid"]));
    theirs.map(|fault| fault["label"].as_str().expect("a label").to_owned()).collect()
}

fn seats<'a>(report: &'a Value, strategy: &'a str) -> impl Iterator<Item = &'a Value> {
    let seats = report["seats"].as_array().expect("a list");
    seats.iter().filter(move |seat| seat["conduct"] == strategy)
}

#[tokio::test(flavor = "multi_thread")]
async fn cheats_are_named_and_end_without_weight_while_the_honest_are_paid() {
    let _alone = one_at_a_time().await;
    let home = tempfile::tempdir().expect("a directory");
    let report = home.path().join("report.json");
    let file = report.display().to_string();
    let network = move || {
        let seats = "honest:3,copycat:1,malformed:1,equivocator:1,slow-loris:1,validator:3";
        support::localnet(["up", "--plain", "--windows", "6", "--seats", seats, "--report", &file])
    };
    let ended = tokio::task::spawn_blocking(network).await.expect("it ends");
    assert!(ended.success, "{}", ended.all());
    let report: Value =
        serde_json::from_slice(&std::fs::read(&report).expect("the report is there")).expect("it is JSON");

    assert_eq!(report["lineage_agreed"], true, "{}", ended.all());
    assert!(report["void_windows"].as_array().expect("a list").len() < 4, "{}", ended.all());
    // What a copycat shows is another seat's; where it copied a cheat's digest, it is also what is wrong with that one's bytes. One that sees
    // nobody commit before it says nothing, and then there is nothing to hold against it.
    let copied = held_against(&report, "copycat");
    let committed = seats(&report, "copycat").any(|seat| seat["committed"].as_u64() > Some(2));
    assert!(!committed || !copied.is_empty(), "{}", ended.all());
    // Two of its faults are that it shows nothing in time.
    let malformed = held_against(&report, "malformed");
    let own: Vec<_> = malformed.iter().filter(|label| *label != "not-observed").collect();
    assert!(own.iter().any(|label| *label == "missing"), "{malformed:?}");
    assert!(
        own.iter().any(|label| *label != "missing"),
        "a third fault and later ones have other names: {malformed:?}"
    );
    assert!(held_against(&report, "equivocator").iter().any(|label| label == "missing"), "{}", ended.all());

    let crawls = held_against(&report, "slow-loris");
    assert!(crawls.iter().any(|label| label == "missing"), "who crawls has not shown its bytes: {crawls:?}");

    // Where an equivocator's second commitment comes too late, the first one binds, and that is honest work.
    for cheat in ["copycat", "slow-loris"] {
        for seat in seats(&report, cheat) {
            assert_eq!((&seat["final_weight"], &seat["paid"]), (&0.into(), &0.into()), "{seat}");
        }
    }
    assert!(seats(&report, "malformed").all(|seat| seat["final_weight"] == 0), "{}", ended.all());
    assert!(seats(&report, "honest").any(|seat| seat["final_weight"] != 0), "{}", ended.all());
}
