//! Each numbered rule (`PROT-n`) has a section in `protocol/spec`, a link in the index of `protocol/README.md`, and a
//! citation in code; pure code stays pure.

use repository::texts;
use std::collections::{BTreeMap, BTreeSet};

/// Words that pure code must not contain, each with the alternative.
const IMPURE: &[(&str, &str)] = &[
    ("std::time", "time comes as a block or a window"),
    ("SystemTime", "time comes as a block or a window"),
    ("Instant", "time comes as a block or a window"),
    ("std::env", "settings are read in `main`"),
    ("std::fs", "bytes come as arguments"),
    ("std::net", "bytes come as arguments"),
    ("std::thread", "the caller starts threads"),
    ("tokio::", "pure code does not wait"),
    ("getrandom", "randomness comes as a seed"),
    ("HashMap", "its order differs from run to run; use a BTreeMap"),
    ("HashSet", "its order differs from run to run; use a BTreeSet"),
    ("mul_add", "one rounding per operation, on every machine"),
    ("tracing::", "pure code returns its decision; the caller logs it"),
];

/// Returns the headings of the rules, `PROT-7: sparse encoding`, each with its page.
fn headings() -> Vec<(String, String)> {
    let pages = texts(&[".md"]).into_iter().filter(|(path, _)| path.starts_with("protocol/spec/"));
    let of_page = |(path, text): (String, String)| -> Vec<(String, String)> {
        let headings = text.lines().filter_map(|line| line.strip_prefix("## "));
        let rules = headings.filter(|heading| heading.starts_with("PROT-"));
        rules.map(|heading| (heading.to_owned(), path.clone())).collect()
    };
    pages.flat_map(of_page).collect()
}

fn rules() -> BTreeSet<u32> {
    headings().iter().filter_map(|(heading, _)| heading.strip_prefix("PROT-")).map(leading_number).collect()
}

/// Returns the rule numbers that `text` cites, as `PROT-7` or in a list as `PROT-7, 8`.
fn cited(text: &str) -> BTreeSet<u32> {
    let mut numbers = BTreeSet::new();
    for after in text.split("PROT-").skip(1).filter(|after| after.starts_with(|c: char| c.is_ascii_digit())) {
        numbers.insert(leading_number(after));
        let mut rest = after.trim_start_matches(|c: char| c.is_ascii_digit());
        while let Some(next) =
            rest.strip_prefix(", ").filter(|next| next.starts_with(|c: char| c.is_ascii_digit()))
        {
            numbers.insert(leading_number(next));
            rest = next.trim_start_matches(|c: char| c.is_ascii_digit());
        }
    }
    numbers
}

fn leading_number(text: &str) -> u32 {
    let digits: String = text.chars().take_while(char::is_ascii_digit).collect();
    digits.parse().unwrap_or_else(|_| panic!("no number at the start of {text:.20?}"))
}

#[test]
fn every_cited_rule_has_a_section() {
    let rules = rules();
    for (path, text) in texts(&[".rs", ".md", ".toml"]) {
        let unknown: Vec<_> = cited(&text).difference(&rules).copied().collect();
        assert!(unknown.is_empty(), "{path} cites {unknown:?}, which protocol/spec does not define");
    }
}

#[test]
fn every_rule_is_cited_by_code() {
    let mut cited_in: BTreeMap<u32, Vec<String>> = BTreeMap::new();
    for (path, text) in texts(&[".rs"]) {
        for rule in cited(&text) {
            cited_in.entry(rule).or_default().push(path.clone());
        }
    }
    for rule in rules().into_iter() {
        assert!(cited_in.contains_key(&rule), "no code cites PROT-{rule} of protocol/spec");
    }
}

#[test]
fn every_rule_has_one_section_and_a_link_in_the_index() {
    let readme = std::fs::read_to_string(repository::root().join("protocol/README.md"))
        .expect("protocol/README.md is readable");
    let headings = headings();
    assert_eq!(headings.len(), rules().len(), "a rule has two sections: {headings:?}");
    for (heading, path) in headings {
        let (rule, _) = heading.split_once(": ").unwrap_or_else(|| panic!("{path}: {heading} has no title"));
        let page = path.trim_start_matches("protocol/");
        let anchor = rule.to_lowercase();
        assert!(readme.contains(&format!("[{rule}]({page}#{anchor}-")), "the index does not link to {rule}");
    }
}

#[test]
fn rule_numbers_have_no_gap() {
    let rules = rules();
    let last = *rules.last().expect("there are rules");
    assert_eq!(rules, (1..=last).collect());
}

#[test]
fn pure_code_uses_no_clock_randomness_disk_or_network() {
    for (path, text) in texts(&[".rs"]) {
        let pure = path.starts_with("protocol/src/") || path.starts_with("protocol/gauntlet/src/");
        if !pure || path.ends_with("tests.rs") {
            continue;
        }
        let code = text.split("#[cfg(test)]").next().unwrap_or_default();
        for line in code.lines().filter(|line| !line.trim_start().starts_with("//")) {
            for (word, instead) in IMPURE {
                assert!(!line.contains(word), "{path} names `{word}`: {instead}\n    {line}");
            }
        }
    }
}

#[test]
fn a_list_of_rule_numbers_is_parsed_whole() {
    assert_eq!(cited("see (PROT-1, 2, 30) and PROT-7: 9, PROT-x"), BTreeSet::from([1, 2, 7, 30]));
    assert_eq!(cited("PROT-4, then 5"), BTreeSet::from([4]));
}
