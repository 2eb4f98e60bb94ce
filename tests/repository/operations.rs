//! Checks that the operators' material – alerts, dashboard, runbooks – names only existing metrics and alerts. A unit
//! test of `daemon/kit/src/metrics.rs` compares the table of metrics with a node's exports.

use repository::{packages, root, texts};
use std::collections::BTreeSet;

const RULES: &str = "docs/deploy/prometheus/mettle.rules.yml";
const RULE_TESTS: &str = "docs/deploy/prometheus/mettle.tests.yml";
const RUNBOOKS: &str = "docs/runbooks.md";

fn read(path: &str) -> String {
    std::fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// Returns the names of the tables in `docs/metrics.md`.
fn metrics() -> BTreeSet<String> {
    let tables = read("docs/metrics.md");
    let rows = tables.lines().filter(|line| line.starts_with("| "));
    let names = rows.filter_map(|line| line.split('`').nth(1).map(str::to_owned));
    names.filter(|name| name.starts_with("mettle_")).collect()
}

/// Returns the words of a text that have the form of a metric's name.
fn named(text: &str) -> BTreeSet<String> {
    let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    words.filter(|word| word.starts_with("mettle_")).map(str::to_owned).collect()
}

/// Returns the alerts, each with the lines of its rule.
fn alerts() -> Vec<(String, String)> {
    let rules = read(RULES);
    let parts = rules.split("- alert: ").skip(1);
    parts.map(|part| (part.lines().next().unwrap_or_default().to_owned(), part.to_owned())).collect()
}

#[test]
fn every_metric_of_an_alert_a_dashboard_or_a_document_is_in_the_table() {
    let metrics = metrics();
    assert!(30 < metrics.len(), "{metrics:?}");
    let crates: BTreeSet<String> =
        packages().into_iter().map(|package| package.name.replace('-', "_")).collect();
    let mut seen = 0;
    for (path, text) in texts(&[".yml", ".yaml", ".json", ".md", ".service", ".tpl"]) {
        let is_past = path.starts_with("docs/adr/") || path.starts_with("docs/log/");
        // Series of experiment trackers have a table of their own, which `docs/tracking/check` compares with the code.
        let is_tracked = path.starts_with("docs/tracking");
        if !path.starts_with("docs/") || is_past || is_tracked {
            continue;
        }
        for name in named(&text).difference(&crates) {
            assert!(metrics.contains(name), "{path} names {name}, which docs/metrics.md does not");
            seen += 1;
        }
    }
    assert!(100 < seen, "only {seen} names were found");
}

#[test]
fn every_alert_has_a_severity_a_runbook_and_a_test_in_which_it_fires() {
    let (tests, runbooks) = (read(RULE_TESTS), read(RUNBOOKS));
    let alerts = alerts();
    let headings: Vec<&str> = runbooks.lines().filter_map(|line| line.strip_prefix("## ")).collect();
    let names: Vec<&str> = alerts.iter().map(|(name, _)| name.as_str()).collect();
    let sorted = |mut names: Vec<&str>| {
        names.sort_unstable();
        names.join("\n")
    };
    assert_eq!(sorted(headings), sorted(names), "{RUNBOOKS} has one section for each alert");
    for (name, rule) in &alerts {
        let runbook = format!("runbook: {RUNBOOKS}#{}\n", name.to_lowercase());
        assert!(rule.contains(&runbook), "{name} does not name its runbook");
        let has_severity = ["critical", "warning"]
            .iter()
            .any(|severity| rule.contains(&format!("{{severity: {severity}}}")));
        assert!(has_severity, "{name} has no severity");
        let fires = [format!("alertname: {name}\n"), format!("alertname=\"{name}\"")];
        assert!(fires.iter().any(|fires| tests.contains(fires)), "no test of {RULE_TESTS} lets {name} fire");
    }
    let count = format!("has {} alerts", alerts.len());
    assert!(read("docs/operations.md").contains(&count), "docs/operations.md: {count}");
}

#[test]
fn every_section_of_the_runbooks_has_meaning_cause_and_remedy() {
    for section in read(RUNBOOKS).split("\n## ").skip(1) {
        for part in ["**Means:**", "**See:**", "**Do:**"] {
            assert!(section.contains(part), "no {part} in {}", section.lines().next().unwrap_or_default());
        }
    }
}
