//! Small networks under random faults, and planted errors that the checks must find.

use std::sync::LazyLock;
use tests::{
    chaos::{self, Options, Report},
    sim::{planted::Planted, world::World},
};

static WORLD: LazyLock<World> = LazyLock::new(|| {
    let cache = World::default_cache().expect("HOME is set");
    World::tiny(&cache).expect("the default text is on every machine that builds the project")
});

fn run(options: &Options) -> Report {
    chaos::run(&WORLD, options).expect("the network can be made")
}

#[test]
fn no_fault_breaks_a_rule_and_a_seed_repeats_every_event() {
    for seed in 1..=2 {
        let report = run(&Options::new(seed, 5, 4, 12));
        let Report { options, violations, faults, .. } = &report;
        assert!(violations.is_empty(), "chaos {} breaks {violations:#?} by {faults:#?}", options.arguments());
        assert!(0 < report.merged_windows && 0 < report.valid_contributions);
        if seed == 1 {
            assert_eq!(report.trace, run(options).trace);
        }
    }
}

/// The nightly tier runs a thousand seats for a hundred windows.
#[test]
fn a_network_of_a_hundred_seats_keeps_the_rules() {
    let report = run(&Options::new(1, 92, 8, 24));
    let Report { options, violations, faults, fault_counts, .. } = &report;
    assert!(violations.is_empty(), "chaos {} breaks {violations:#?} by {faults:#?}", options.arguments());
    assert!(100 < fault_counts.of_miners && 10 < fault_counts.of_validators, "{fault_counts:?}");
    // 18 windows have faults.
    let (merged, checked) = (report.merged_under_faults, report.checked_windows);
    assert!(9 <= merged && 9 <= checked, "{merged} merged windows, {checked} checked");
}

/// Runs seeds from `first` on until one finds the error.
fn find(planted: Planted, check: &str, first: u64) -> Report {
    // Pay is checked in networks of twelve windows.
    let windows = if check == "unpaid" { 12 } else { 10 };
    let networks = (first..=200).map(|seed| {
        let planted = Some(planted);
        run(&Options { planted, ..Options::new(seed, 5, 4, windows) })
    });
    let breaks = |report: &Report| report.violations.iter().any(|violation| violation.check == check);
    networks.into_iter().find(breaks).unwrap_or_else(|| panic!("200 seeds do not find {planted:?}"))
}

#[test]
fn every_planted_error_is_found() {
    for (planted, check, first) in [
        (Planted::ForgottenSignatures, "two statements", 2),
        (Planted::LostCommitment, "lost contribution", 13),
        (Planted::HastyCommitment, "journal", 2),
        (Planted::UnboundedRetry, "unbounded", 3),
        (Planted::BlamedOutage, "honest seat at fault", 53),
        (Planted::StopsAtVoid, "liveness", 1),
        (Planted::WrongLineage, "lineage", 1),
        (Planted::PayOffByOne, "money", 1),
        (Planted::FollowsBestBlock, "finality", 3),
        (Planted::TrustsInclusion, "journal", 3),
        (Planted::ForgetsOneSeat, "unpaid", 5),
    ] {
        let found = find(planted, check, first);
        println!("{planted:?}: found with seed {}: {:?}", found.options.seed, found.violations[0]);
    }
}

#[test]
fn the_faults_that_do_not_matter_are_left_out() {
    let report = find(Planted::WrongLineage, "lineage", 1);
    assert!(!report.faults.is_empty());
    let smallest = chaos::shrink(&WORLD, report).expect("the network can be made");
    assert!(smallest.violations.iter().any(|violation| violation.check == "lineage"));
    assert!(smallest.faults.is_empty(), "the error needs no fault: {:?}", smallest.faults);
}
