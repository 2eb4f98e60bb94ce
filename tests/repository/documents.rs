//! Links, files, flags and commands in documents exist; tracked files contain no machine paths and no unfinished
//! marks.

use repository::{packages, root, texts, tracked};
use std::collections::BTreeSet;

/// Records of the past, which may name files and flags that no longer exist.
const HISTORICAL: &[&str] = &["docs/adr/", "docs/log/", "CHANGELOG.md"];

/// Crates without overflow checks in releases, for speed.
const UNCHECKED_ARITHMETIC: &[&str] = &["kernels", "mettle-nn"];

/// Returns the targets of a document's links, without links to other sites.
fn links(text: &str) -> impl Iterator<Item = &str> {
    let targets = text.split("](").skip(1).filter_map(|rest| rest.split(')').next());
    targets.filter(|target| !target.contains("://") && !target.is_empty())
}

/// Returns the path from the root of a link's `target` in the document at `path`; `path` itself if the target is only
/// an anchor.
fn resolved(path: &str, target: &str) -> String {
    let file = target.split('#').next().unwrap_or_default();
    if file.is_empty() {
        return path.to_owned();
    }
    let mut parts: Vec<&str> = path.split('/').collect();
    parts.pop();
    for part in file.split('/') {
        match part {
            "." => {}
            ".." => drop(parts.pop()),
            part => parts.push(part),
        }
    }
    parts.join("/")
}

/// Returns the anchors of a document's headings, on a forge and in the book.
fn anchors(text: &str) -> BTreeSet<String> {
    let mut fenced = false;
    let mut anchors = BTreeSet::new();
    for line in text.lines() {
        fenced ^= line.trim_start().starts_with("```");
        if fenced || !line.starts_with('#') {
            continue;
        }
        let heading = line.trim_start_matches('#').trim().to_lowercase();
        let kept = heading.chars().map(|c| if c == ' ' { '-' } else { c });
        anchors.insert(kept.filter(|c| c.is_alphanumeric() || "-_".contains(*c)).collect());
    }
    anchors
}

#[test]
fn every_link_of_a_document_leads_to_an_existing_file_and_heading() {
    for (path, text) in texts(&[".md"]) {
        for target in links(&text) {
            let file = root().join(resolved(&path, target));
            assert!(file.exists(), "{path} links to {target}, which does not exist");
            if let Some((_, anchor)) = target.split_once('#') {
                let linked = std::fs::read_to_string(&file).unwrap_or_default();
                assert!(anchors(&linked).contains(anchor), "{path} links to {target}: no such heading");
            }
        }
    }
}

#[test]
fn every_document_is_a_page_of_the_book_and_links_only_to_its_pages() {
    const CONTENTS: &str = "docs/SUMMARY.md";
    let documents = texts(&[".md"]);
    let contents = &documents.iter().find(|(path, _)| path == CONTENTS).expect("docs/SUMMARY.md exists").1;
    let pages: BTreeSet<String> = links(contents).map(|target| resolved(CONTENTS, target)).collect();
    for (path, text) in &documents {
        // The log of experiments grows by a file per month and is read in the repository.
        if path == CONTENTS || path.starts_with(".github/") || path.starts_with("docs/log/") {
            continue;
        }
        assert!(pages.contains(path), "{path} is missing in {CONTENTS}");
        for target in links(text) {
            let linked = resolved(path, target);
            let copied = linked.starts_with("docs/images/") || linked.starts_with("LICENSE-");
            assert!(copied || pages.contains(&linked), "{path} links to {target}, which is not in the book");
        }
    }
}

#[test]
fn headings_become_anchors_as_on_a_forge() {
    let text = "# One, `two` and three\n```\n# a comment\n```\n## What is proved – and *when*?\n";
    let expected = ["one-two-and-three", "what-is-proved--and-when"];
    assert_eq!(anchors(text), expected.map(String::from).into());
    assert_eq!(resolved("docs/adr/README.md", "../../protocol/README.md#rules"), "protocol/README.md");
    assert_eq!(resolved("docs/gpu.md", "#speed"), "docs/gpu.md");
}

#[test]
fn every_source_file_named_in_a_document_exists() {
    // Documents write `protocol/merge.rs` for `protocol/src/merge.rs`.
    let files: Vec<String> =
        tracked().into_iter().flat_map(|file| [file.path.replace("/src/", "/"), file.path]).collect();
    for (path, text) in texts(&[".md"]) {
        if HISTORICAL.iter().any(|begin| path.starts_with(begin)) {
            continue;
        }
        let quoted = text.split('`').skip(1).step_by(2);
        for name in quoted.filter(|name| name.ends_with(".rs") && !name.contains(['*', ' ', '{'])) {
            let exists = files.iter().any(|file| file == name || file.ends_with(&format!("/{name}")));
            assert!(exists, "{path} names `{name}`, which does not exist");
        }
    }
}

/// Returns the lines that start one of our programs: the program's directory and its arguments.
fn commands(text: &str) -> impl Iterator<Item = (&str, &str)> {
    text.lines().filter_map(|line| {
        let line = line.trim();
        [
            ("cargo run -p localnet -- ", "localnet"),
            ("mettle ", "mettle/cli"),
            ("miner ", "miner"),
            ("validator ", "validator"),
            ("ExecStart=/usr/local/bin/miner ", "miner"),
            ("ExecStart=/usr/local/bin/validator ", "validator"),
        ]
        .into_iter()
        .find_map(|(begin, program)| Some((program, line.strip_prefix(begin)?)))
    })
}

#[test]
fn every_flag_in_a_document_or_unit_exists_in_its_program() {
    for (path, text) in texts(&[".md", ".service"]) {
        if HISTORICAL.iter().any(|begin| path.starts_with(begin)) {
            continue;
        }
        for (program, arguments) in commands(&text) {
            let sources = texts(&[".rs"]).into_iter().filter(|(source, _)| {
                source.starts_with(&format!("{program}/src/")) || source.starts_with("daemon/kit/src/")
            });
            let code: String = sources.map(|(_, code)| code).collect();
            let command = arguments.split('#').next().unwrap_or_default();
            for flag in command
                .split_whitespace()
                .filter_map(|word| word.strip_prefix("--"))
                .filter(|flag| !flag.is_empty())
            {
                let field = flag.split('=').next().unwrap_or_default().replace('-', "_");
                let known = [format!("{field}:"), format!("long = \"{flag}\"")]
                    .iter()
                    .any(|known| code.contains(known));
                assert!(known, "{path} shows `{program} … --{flag}`, which {program} does not know");
            }
        }
    }
}

#[test]
fn every_recipe_named_in_a_document_is_in_the_justfile() {
    let justfile = std::fs::read_to_string(root().join("justfile")).expect("the root has this file");
    let recipes: BTreeSet<&str> = justfile
        .lines()
        .filter(|line| !line.starts_with([' ', '#', '[', '@']) && !line.contains(":="))
        .filter_map(|line| line.split_once(':')?.0.split_whitespace().next())
        .collect();
    assert!(recipes.contains("test"), "{recipes:?}");
    for (path, text) in texts(&[".md", "deny.toml"]) {
        for named in text.split("`just ").skip(1).filter_map(|rest| rest.split(['`', ' ']).next()) {
            assert!(recipes.contains(named), "{path} names `just {named}`, which the justfile does not have");
        }
    }
}

#[test]
fn no_file_contains_a_machine_path_or_an_unfinished_mark() {
    // Each mark is split in two, so that this file does not match.
    let machine: Vec<String> =
        ["home", "root", "Users", "work", "tmp"].iter().map(|name| format!("/{name}/")).collect();
    let unfinished: Vec<String> =
        [("todo", "!("), ("unimplemented", "!("), ("dbg", "!("), ("TO", "DO"), ("FIX", "ME")]
            .iter()
            .map(|(one, two)| format!("{one}{two}"))
            .collect();
    for file in tracked() {
        let Some(text) = file.text else { continue };
        for (number, line) in text.lines().enumerate() {
            let place = format!("{}:{}", file.path, number + 1);
            for path in &machine {
                let matches = line.match_indices(path.as_str()).any(|(at, _)| {
                    // Ignore matches inside a longer path or a URL.
                    !line[..at].ends_with(|c: char| c.is_ascii_alphanumeric() || "._-}>)".contains(c))
                });
                assert!(!matches, "{place} contains a machine path: {line}");
            }
            if !file.path.ends_with(".lock") {
                for mark in &unfinished {
                    assert!(!line.contains(mark.as_str()), "{place} contains an unfinished mark: {line}");
                }
            }
        }
    }
}

#[test]
fn every_crate_has_a_readme_and_follows_the_common_rules() {
    let workspace = std::fs::read_to_string(root().join("Cargo.toml")).expect("the root has this file");
    let workspace: toml::Table = workspace.parse().expect("cargo has read this file");
    let profiles = workspace["profile"].as_table().expect("a table");
    assert_eq!(profiles["release"].get("overflow-checks"), Some(&true.into()), "the release profile");
    assert_eq!(profiles["dev"].get("overflow-checks"), None, "cargo's default is to check");
    let map = std::fs::read_to_string(root().join("ARCHITECTURE.md")).expect("the root has this file");
    for package in packages() {
        let (name, directory) = (&package.name, &package.directory);
        assert!(root().join(directory).join("README.md").exists(), "{name} has no README.md");
        let manifest = std::fs::read_to_string(root().join(directory).join("Cargo.toml"))
            .expect("cargo has read this file");
        assert!(manifest.contains("[lints]\nworkspace = true"), "{name} does not use the workspace's lints");
        assert!(
            map.contains(&format!("`{directory}`")),
            "{name} is missing in the code map of ARCHITECTURE.md"
        );
        if UNCHECKED_ARITHMETIC.contains(&name.as_str()) {
            continue;
        }
        for (profile, settings) in profiles {
            let own = settings.get("package").and_then(|packages| packages.get(name));
            let unchecked =
                own.is_some_and(|own| own.get("overflow-checks").or(own.get("debug-assertions")).is_some());
            assert!(!unchecked, "the profile {profile} of {name} disables overflow checks or assertions");
        }
    }
}
