//! Rules that omit documents by their form: too short, too repetitive, not sentences.
//!
//! The rules and their bounds are those of Gopher (Rae et al. 2021, arXiv:2112.11446, section A.1.1 and table A1) and
//! FineWeb (Penedo et al. 2024, arXiv:2406.17557, section 3.6). Measurements are integers, and no rule depends on a
//! table of Unicode properties beyond white space, so that a release does not change the selection.

use ahash::{AHashMap, AHashSet};
use protocol::ensure;
use std::fmt;

/// Scale of bounds, which are given as decimals and compared in millionths.
const ONE: u64 = 1_000_000;
/// The largest bound, in units.
const MAX_BOUND: f64 = 1e12;
const STOP_WORDS: [&str; 8] = ["the", "be", "to", "of", "and", "that", "have", "with"];
const BULLETS: [char; 6] = ['•', '-', '*', '‣', '▪', '●'];
const SENTENCE_ENDS: [char; 14] = ['.', '!', '?', '"', '\'', '”', '’', '…', ':', ';', '。', '！', '？', '।'];
/// Length below which a line is short, in characters.
const SHORT_LINE: usize = 30;

/// Property of a document that a rule measures.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Measure {
    Words,
    MeanWordLength,
    Symbols,
    BulletLines,
    EllipsisLines,
    AlphabeticWords,
    StopWords,
    LinePunctuation,
    ShortLines,
    DuplicateLines,
    DuplicateLineCharacters,
    /// Share of the most frequent sequence of this many words.
    TopGram(u8),
    /// Share of repeated sequences of this many words.
    DuplicateGrams(u8),
}

/// A rule with the minimum and the maximum that it keeps, in millionths.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QualityRule {
    measure: Measure,
    least: u64,
    most: u64,
}

/// Name, measure, and the rule's default bounds.
type Entry = (&'static str, Measure, f64, f64);

/// The rules of Gopher, in the order in which a document is judged.
const GOPHER: [Entry; 18] = [
    ("words", Measure::Words, 50.0, 100_000.0),
    ("mean-word-length", Measure::MeanWordLength, 3.0, 10.0),
    ("symbols", Measure::Symbols, 0.0, 0.1),
    ("bullet-lines", Measure::BulletLines, 0.0, 0.9),
    ("ellipsis-lines", Measure::EllipsisLines, 0.0, 0.3),
    ("alphabetic-words", Measure::AlphabeticWords, 0.8, 1.0),
    ("stop-words", Measure::StopWords, 2.0, 8.0),
    ("duplicate-lines", Measure::DuplicateLines, 0.0, 0.3),
    ("duplicate-line-characters", Measure::DuplicateLineCharacters, 0.0, 0.2),
    ("top-2-gram", Measure::TopGram(2), 0.0, 0.2),
    ("top-3-gram", Measure::TopGram(3), 0.0, 0.18),
    ("top-4-gram", Measure::TopGram(4), 0.0, 0.16),
    ("duplicate-5-grams", Measure::DuplicateGrams(5), 0.0, 0.15),
    ("duplicate-6-grams", Measure::DuplicateGrams(6), 0.0, 0.14),
    ("duplicate-7-grams", Measure::DuplicateGrams(7), 0.0, 0.13),
    ("duplicate-8-grams", Measure::DuplicateGrams(8), 0.0, 0.12),
    ("duplicate-9-grams", Measure::DuplicateGrams(9), 0.0, 0.11),
    ("duplicate-10-grams", Measure::DuplicateGrams(10), 0.0, 0.1),
];

/// The rules of FineWeb.
const FINEWEB: [Entry; 3] = [
    ("line-punctuation", Measure::LinePunctuation, 0.12, 1.0),
    ("duplicate-line-characters", Measure::DuplicateLineCharacters, 0.0, 0.1),
    ("short-lines", Measure::ShortLines, 0.0, 0.67),
];

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RuleError {
    #[error("there is no rule {name:?}; there are the sets gopher and fineweb, and the rules {}", names())]
    Unknown { name: String },
    #[error("{given:?} has no bounds; write NAME=LEAST..MOST, such as words=20..5000 or symbols=..0.2")]
    Bounds { given: String },
}

impl QualityRule {
    /// Parses a set of rules (`gopher`, `fineweb`), or one rule: `NAME`, or `NAME=LEAST..MOST` with own bounds.
    ///
    /// # Errors
    /// [`RuleError`].
    pub fn parse(given: &str) -> Result<Vec<QualityRule>, RuleError> {
        let rule = |&(_, measure, least, most): &Entry| QualityRule {
            measure,
            least: millionths(least),
            most: millionths(most),
        };
        match given {
            "gopher" => return Ok(GOPHER.iter().map(rule).collect()),
            "fineweb" => return Ok(FINEWEB.iter().map(rule).collect()),
            _ => {}
        }
        let (name, bounds) =
            given.split_once('=').map_or((given, None), |(name, bounds)| (name, Some(bounds)));
        let entry = entries().find(|(known, ..)| *known == name);
        let mut found = rule(entry.ok_or_else(|| RuleError::Unknown { name: name.to_owned() })?);
        if let Some(bounds) = bounds {
            let wrong = || RuleError::Bounds { given: given.to_owned() };
            let (least, most) = bounds.split_once("..").ok_or_else(wrong)?;
            let bound = |text: &str, none: u64| match text {
                "" => Ok(none),
                text => match text.parse::<f64>() {
                    Ok(bound) if (0.0..=MAX_BOUND).contains(&bound) => Ok(millionths(bound)),
                    _ => Err(wrong()),
                },
            };
            (found.least, found.most) = (bound(least, 0)?, bound(most, u64::MAX)?);
            ensure!(found.least <= found.most, wrong());
        }
        Ok(vec![found])
    }

    pub fn name(&self) -> &'static str {
        entries().find(|(_, measure, ..)| *measure == self.measure).map_or("", |(name, ..)| name)
    }

    /// Returns the bounds of the rule, in millionths.
    pub(crate) fn bounds(&self) -> (u64, u64) {
        (self.least, self.most)
    }
}

impl fmt::Display for QualityRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Returns one rule for each measure, in the order in which a document is judged; of several, the last counts.
pub(crate) fn in_force(rules: &[QualityRule]) -> Vec<QualityRule> {
    let mut rules = rules.to_vec();
    rules.reverse();
    rules.sort_by_key(|rule| rule.measure);
    rules.dedup_by_key(|rule| rule.measure);
    rules
}

/// Returns the index of the first of `rules` that does not keep `text`.
pub(crate) fn refused_by(text: &str, rules: &[QualityRule]) -> Option<usize> {
    if rules.is_empty() {
        return None;
    }
    let form = Form::of(text);
    rules.iter().position(|rule| !(rule.least..=rule.most).contains(&form.measure(rule.measure)))
}

fn entries() -> impl Iterator<Item = &'static Entry> {
    GOPHER.iter().chain(&FINEWEB)
}

fn names() -> String {
    let mut names: Vec<&str> = entries().map(|(name, ..)| *name).collect();
    names.sort_unstable();
    names.dedup();
    names.join(", ")
}

fn millionths(bound: f64) -> u64 {
    (bound * ONE as f64).round() as u64
}

/// Returns a share in millionths; 0 if `of` is 0.
fn share(count: usize, of: usize) -> u64 {
    (count as u64 * ONE).checked_div(of as u64).unwrap_or(0)
}

/// The words and lines of a document. A word ends at white space; lines without text are omitted.
struct Form<'a> {
    text: &'a str,
    words: Vec<&'a str>,
    lines: Vec<&'a str>,
    /// Total size of all words, in bytes.
    word_bytes: usize,
}

impl<'a> Form<'a> {
    fn of(text: &'a str) -> Form<'a> {
        let words: Vec<&str> = text.split_whitespace().collect();
        let lines = text.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
        let word_bytes = words.iter().map(|word| word.len()).sum();
        Form { text, words, lines, word_bytes }
    }

    fn measure(&self, measure: Measure) -> u64 {
        let words = self.words.len();
        let lines_with = |wanted: &dyn Fn(&str) -> bool| {
            share(self.lines.iter().filter(|line| wanted(line)).count(), self.lines.len())
        };
        match measure {
            Measure::Words => words as u64 * ONE,
            Measure::MeanWordLength => share(self.words.iter().map(|word| word.chars().count()).sum(), words),
            Measure::Symbols => {
                let hashes = self.text.matches('#').count();
                let ellipses = self.text.matches("...").count() + self.text.matches('…').count();
                share(hashes.max(ellipses), words)
            }
            Measure::BulletLines => lines_with(&|line| line.starts_with(BULLETS)),
            Measure::EllipsisLines => lines_with(&|line| line.ends_with("...") || line.ends_with('…')),
            Measure::AlphabeticWords => {
                let alphabetic =
                    |word: &&&str| word.bytes().any(|byte| byte.is_ascii_alphabetic() || byte >= 0x80);
                share(self.words.iter().filter(alphabetic).count(), words)
            }
            Measure::StopWords => {
                let is_there =
                    |wanted: &&str| self.words.iter().any(|word| word.eq_ignore_ascii_case(wanted));
                STOP_WORDS.iter().filter(|word| is_there(word)).count() as u64 * ONE
            }
            Measure::LinePunctuation => lines_with(&|line| line.ends_with(SENTENCE_ENDS)),
            Measure::ShortLines => lines_with(&|line| line.chars().nth(SHORT_LINE - 1).is_none()),
            Measure::DuplicateLines => share(self.repeated_lines().count(), self.lines.len()),
            Measure::DuplicateLineCharacters => {
                let bytes = self.lines.iter().map(|line| line.len()).sum();
                share(self.repeated_lines().map(str::len).sum(), bytes)
            }
            Measure::TopGram(length) => share(self.top_gram_bytes(usize::from(length)), self.word_bytes),
            Measure::DuplicateGrams(length) => {
                share(self.duplicate_gram_bytes(usize::from(length)), self.word_bytes)
            }
        }
    }

    /// Returns the lines that equal an earlier line.
    fn repeated_lines(&self) -> impl Iterator<Item = &'a str> {
        let mut seen = AHashSet::new();
        self.lines.iter().copied().filter(move |line| !seen.insert(*line))
    }

    /// Returns the bytes in all occurrences of the most frequent gram that occurs twice; of several, the longest.
    fn top_gram_bytes(&self, length: usize) -> usize {
        let mut counts: AHashMap<&[&str], usize> = AHashMap::new();
        for gram in self.words.windows(length) {
            *counts.entry(gram).or_default() += 1;
        }
        let repeated = counts.into_iter().filter(|(_, count)| *count > 1);
        let top = repeated.map(|(gram, count)| (count, bytes_of(gram))).max();
        top.map_or(0, |(count, bytes)| count * bytes)
    }

    /// Returns the bytes in grams that occurred before, without counting a byte twice.
    fn duplicate_gram_bytes(&self, length: usize) -> usize {
        let (mut seen, mut bytes, mut at) = (AHashSet::new(), 0, 0);
        while let Some(gram) = self.words.get(at..at + length) {
            if seen.insert(gram) {
                at += 1;
            } else {
                bytes += bytes_of(gram);
                at += length;
            }
        }
        bytes
    }
}

fn bytes_of(gram: &[&str]) -> usize {
    gram.iter().map(|word| word.len()).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns prose that every rule keeps: a hundred words, no two lines equal.
    fn prose() -> String {
        let nouns = ["river", "bridge", "letter", "garden", "window", "engine", "harbour", "mountain"];
        let verbs = ["crosses", "follows", "remembers", "answers", "carries", "surrounds", "opens"];
        let line = |n: usize| {
            let (subject, verb) = (nouns[n % 8], verbs[n % 7]);
            let (object, place) = (nouns[(n * 3 + 1) % 8], nouns[(n * 5 + 2) % 8]);
            format!(
                "That {subject} of line{n} {verb} each {object}{n} with care{n}, and{n} so the {place}{n} rests."
            )
        };
        (0..9).map(|n| line(n) + "\n").collect()
    }

    fn refused(text: &str, rule: &str) -> bool {
        refused_by(text, &QualityRule::parse(rule).expect("a rule")).is_some()
    }

    /// Each rule omits a text that breaks it alone, and keeps the same text without the fault.
    #[test]
    fn each_rule_drops_what_it_is_for_and_keeps_prose() {
        let prose = prose();
        let numbers = |count: usize| (0..count).map(|n| format!(" {n}{n}")).collect::<String>();
        let unique = |count: usize| (0..count).map(|n| format!(" word{n} other{n}")).collect::<String>();
        let repeated = |length: usize, times: usize| {
            let gram: String = (0..length).map(|n| format!(" repeated{n}")).collect();
            prose.clone() + &(0..times).map(|n| format!("{gram} word{n}")).collect::<String>()
        };
        let short: String = (0..30).map(|n| format!("Short line {n}.\n")).collect();
        let bad = [
            ("words", "Too few words.".to_owned()),
            ("words", "word ".repeat(100_001)),
            ("mean-word-length", format!("{}{}", prose, " a".repeat(400))),
            ("mean-word-length", format!("{}{}", prose, " extraordinarily-long-word".repeat(100))),
            ("symbols", format!("{}{}", prose, " #".repeat(20))),
            ("symbols", format!("{}{}", prose, " and so on...".repeat(20))),
            ("bullet-lines", (0..20).map(|n| format!("- the {n} of the list\n")).collect()),
            ("ellipsis-lines", format!("{}{}", prose, "And the rest of it is hidden...\n".repeat(9))),
            ("alphabetic-words", format!("{}{}", prose, numbers(40))),
            ("stop-words", unique(50)),
            (
                "line-punctuation",
                (0..20).map(|n| format!("A heading of the page number {n} here\n")).collect(),
            ),
            ("short-lines", short),
            ("duplicate-lines", format!("{}{}", prose, "The same line of the menu again.\n".repeat(9))),
            (
                "duplicate-line-characters",
                format!("{}{}", prose, "The same line of the menu again.\n".repeat(9)),
            ),
            ("top-2-gram", repeated(2, 20)),
            ("top-3-gram", repeated(3, 12)),
            ("top-4-gram", repeated(4, 9)),
        ];
        for (rule, text) in &bad {
            assert!(refused(text, rule), "{rule} keeps {text}");
        }
        for length in 5..=10 {
            assert!(refused(&repeated(length, 12), &format!("duplicate-{length}-grams")), "{length}");
        }
        for (name, ..) in entries() {
            assert!(!refused(&prose, name), "{name} drops prose: {prose}");
            assert!(bad.iter().any(|(rule, _)| rule == name) || name.starts_with("duplicate-"), "{name}");
        }
        assert_eq!(refused_by(&prose, &QualityRule::parse("gopher").expect("a set")), None);
        assert_eq!(refused_by(&prose, &QualityRule::parse("fineweb").expect("a set")), None);
    }

    #[test]
    fn measurements_are_shares_in_millionths() {
        let form = Form::of("a bb ccc\n\n  a bb ccc  \n# dddd…\n");
        assert_eq!(form.measure(Measure::Words), 8 * ONE);
        assert_eq!(form.measure(Measure::MeanWordLength), 18 * ONE / 8);
        assert_eq!(form.measure(Measure::Symbols), ONE / 8);
        assert_eq!(form.measure(Measure::DuplicateLines), ONE / 3);
        assert_eq!(form.measure(Measure::DuplicateLineCharacters), 8 * ONE / 25);
        assert_eq!(form.measure(Measure::EllipsisLines), ONE / 3);
        // "bb ccc" is as frequent as "a bb", and longer; there are 20 bytes in words.
        assert_eq!(form.measure(Measure::TopGram(2)), 10 * ONE / 20);
        assert_eq!(form.measure(Measure::DuplicateGrams(2)), 3 * ONE / 20);
        for (_, measure, ..) in entries() {
            assert_eq!(Form::of(" \n").measure(*measure), 0, "{measure:?} of nothing");
        }
    }

    #[test]
    fn rules_are_named_with_their_bounds_and_the_last_one_counts() {
        let parse = |given: &str| QualityRule::parse(given).map(|rules| (rules[0].name(), rules[0].bounds()));
        assert_eq!(parse("words"), Ok(("words", (50 * ONE, 100_000 * ONE))));
        assert_eq!(parse("symbols=..0.25"), Ok(("symbols", (0, 250_000))));
        assert_eq!(parse("words=20.."), Ok(("words", (20 * ONE, u64::MAX))));
        assert!(matches!(parse("wards"), Err(RuleError::Unknown { name }) if name == "wards"));
        for wrong in
            ["words=", "words=5", "words=9..5", "words=a..b", "words=-1..", "words=nan..", "words=..1e300"]
        {
            assert!(matches!(parse(wrong), Err(RuleError::Bounds { .. })), "{wrong}");
        }
        let given = ["gopher", "fineweb", "words=1..2"];
        let rules: Vec<QualityRule> =
            given.iter().flat_map(|set| QualityRule::parse(set).expect("known")).collect();
        let rules = in_force(&rules);
        assert_eq!(rules.len(), 18 + 3 - 1);
        assert_eq!((rules[0].name(), rules[0].bounds()), ("words", (ONE, 2 * ONE)));
        let characters =
            rules.iter().find(|rule| rule.name() == "duplicate-line-characters").expect("in both");
        assert_eq!(characters.bounds(), (0, 100_000));
    }
}
