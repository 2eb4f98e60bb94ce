//! Comments and documents read as plain technical English. `docs/STYLE.md` has the style; these are its frequent
//! errors, with the words to use instead.

use repository::texts;

/// First words of a doc comment that is an indirect question.
const QUESTIONS: &[&str] =
    &["What", "Why", "How", "Whether", "Who", "Whom", "Where", "When", "Which", "Until"];

/// Phrases of daily life, and the field's words.
const EVERYDAY: &[(&str, &str)] = &[
    ("goes on", "continues"),
    ("is told", "is notified, receives"),
    ("are told", "are notified, receive"),
    ("is gone", "is removed, has ended"),
    ("are gone", "are removed, have ended"),
    ("taken up", "resumed"),
    ("heard of", "received"),
    ("nobody", "no node, no account"),
    ("somebody", "an account, a peer"),
    ("whoever", "the caller, any account"),
];

/// Words after "is no" that are good English.
const AFTER_NO: &[&str] = &[
    "longer", "larger", "more", "less", "smaller", "later", "earlier", "higher", "lower", "better", "worse",
    "one",
];

/// The comment in a line of Rust, without its slashes.
fn comment(line: &str) -> Option<&str> {
    let line = line.trim_start();
    ["/// ", "//! ", "// "].iter().find_map(|slashes| line.strip_prefix(slashes))
}

/// Lines of prose with their places: comments of Rust, and documents without code blocks. The log is of its time.
fn prose() -> Vec<(String, String)> {
    let mut lines = Vec::new();
    for (path, text) in texts(&[".rs", ".md"]) {
        if path.starts_with("docs/log/") || path == "tests/repository/english.rs" {
            continue;
        }
        let is_rust = path.ends_with(".rs");
        let mut fenced = false;
        for (number, line) in text.lines().enumerate() {
            fenced ^= !is_rust && line.trim_start().starts_with("```");
            let said = if is_rust {
                comment(line)
            } else {
                Some(line).filter(|_| !fenced && !line.starts_with("    "))
            };
            if let Some(said) = said {
                lines.push((format!("{path}:{}", number + 1), said.to_owned()));
            }
        }
    }
    assert!(20_000 < lines.len(), "{} lines of prose", lines.len());
    lines
}

/// Returns whether `line` says "is no X" where "is not an X" is meant.
fn negates_a_noun(line: &str) -> bool {
    ["is no ", "are no ", "was no ", "were no "].iter().any(|negation| {
        line.match_indices(negation).any(|(at, _)| {
            let before = line[..at].trim_end().to_lowercase();
            let after =
                line[at + negation.len()..].split(|c: char| !c.is_alphabetic()).next().unwrap_or_default();
            let starts_a_word = line[..at].ends_with(' ') || at == 0;
            starts_a_word && !before.ends_with("there") && !AFTER_NO.contains(&after)
        })
    })
}

#[test]
fn no_doc_comment_is_an_indirect_question() {
    let mut wrong = Vec::new();
    for (path, text) in texts(&[".rs"]) {
        let mut in_comment = false;
        for (number, line) in text.lines().enumerate() {
            let line = line.trim_start();
            let said = line.strip_prefix("/// ").or_else(|| line.strip_prefix("//! "));
            let first = said.filter(|_| !in_comment).and_then(|said| said.split([' ', ',']).next());
            if first.is_some_and(|first| QUESTIONS.contains(&first)) {
                wrong.push(format!("{path}:{}: {line}", number + 1));
            }
            in_comment = line.starts_with("///") || line.starts_with("//!");
        }
    }
    assert!(wrong.is_empty(), "{} begin with a question; write a noun or a verb: {wrong:#?}", wrong.len());
}

#[test]
fn prose_says_is_not_a_and_the_field_s_verbs() {
    let mut wrong = Vec::new();
    for (place, line) in prose() {
        if negates_a_noun(&line) {
            wrong.push(format!("{place}: \"is not a\": {line}"));
        }
        let words = format!(" {} ", line.to_lowercase().replace(|c: char| !c.is_alphanumeric(), " "));
        for (phrase, instead) in EVERYDAY.iter().filter(|(phrase, _)| words.contains(&format!(" {phrase} ")))
        {
            wrong.push(format!("{place}: \"{phrase}\" ({instead}): {line}"));
        }
    }
    assert!(wrong.is_empty(), "{} lines: {wrong:#?}", wrong.len());
}

#[test]
fn only_a_negated_noun_is_an_error() {
    for bad in ["a hotkey is no account", "these are no keys", "is no run"] {
        assert!(negates_a_noun(bad), "{bad}");
    }
    for good in
        ["there is no run", "There are no keys", "is no longer held", "the basis now", "are no more than two"]
    {
        assert!(!negates_a_noun(good), "{good}");
    }
}
