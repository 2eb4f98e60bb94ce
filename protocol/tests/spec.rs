//! Checks that the specification (`protocol/spec`) matches the code: a program written from its text alone gives the
//! same results, and its constants have the values of the code.

use mettle_protocol::{
    RunParams, Terms, Uid,
    consensus::{ONE, ValidatorWeights, yuma},
    params::Floors,
};
use serde_json::{Value, json};
use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    io::Write as _,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    thread,
};

/// Seed of the random cases. Printed, so that a failure can be repeated.
const SEED: u64 = 31;
const CASES: usize = 1_000;

/// SplitMix64.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Returns a number from 0 to `limit − 1`.
    fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }

    /// Returns a stake of any size: small numbers, equal ones, and the largest that fit.
    fn stake(&mut self) -> u128 {
        let wide = u128::from(self.next()) << 64 | u128::from(self.next());
        match self.below(6) {
            0 => u128::from(self.below(4)),
            1 => 1_000_000_000_000,
            2 => wide >> self.below(128),
            3 => wide,
            _ => u128::from(self.below(1 << 50)),
        }
    }

    /// Returns entries of up to `seats` seats, sometimes with a repeated seat, sometimes with zeros.
    fn entries<V>(&mut self, seats: u64, value: impl Fn(&mut Random) -> V) -> Vec<(Uid, V)> {
        let count = self.below(seats + 2);
        (0..count).map(|_| (Uid(self.below(seats) as u16), value(self))).collect()
    }

    fn weight(&mut self) -> u16 {
        match self.below(4) {
            0 => self.below(3) as u16,
            1 => u16::MAX,
            _ => self.next() as u16,
        }
    }

    fn bond(&mut self) -> u32 {
        match self.below(4) {
            0 => self.below(20) as u32,
            1 => u32::MAX,
            _ => self.next() as u32,
        }
    }

    fn ballot(&mut self, validators: u64, seats: u64) -> ValidatorWeights {
        ValidatorWeights {
            validator: Uid(1_000 + self.below(validators) as u16),
            stake: self.stake(),
            weights: self.entries(seats, Random::weight),
            bonds: self.entries(seats, Random::bond),
            earns: match self.below(4) {
                0 => 0,
                1 => self.below(2 * ONE),
                _ => ONE,
            },
        }
    }

    /// Returns up to eight ballots, sometimes two by one validator.
    fn ballots(&mut self) -> Vec<ValidatorWeights> {
        let (count, seats) = (self.below(9), 1 + self.below(12));
        (0..count).map(|_| self.ballot(12, seats)).collect()
    }
}

fn case(ballots: &[ValidatorWeights]) -> Value {
    let ballot = |ballot: &ValidatorWeights| {
        let ValidatorWeights { validator, stake, weights, bonds, earns } = ballot;
        json!({
            "uid": validator, "stake": stake.to_string(), "weights": weights, "bonds": bonds, "earns": earns,
        })
    };
    ballots.iter().map(ballot).collect()
}

fn result(ballots: &[ValidatorWeights]) -> Value {
    let Some(consensus) = yuma(ballots) else { return Value::Null };
    json!({
        "weights": consensus.weights,
        "incentive": consensus.incentive,
        "trust": consensus.trust,
        "dividends": consensus.dividends,
        "validator_trust": consensus.validator_trust,
        "bonds": consensus.bonds,
    })
}

/// Returns the answers of a Python program of `tests/spec` to cases, one line each.
fn python(program: &str, cases: &[Value]) -> Vec<Value> {
    let path = crate_root().join("tests/spec").join(program);
    let mut child = Command::new("python3")
        .arg(path)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("this test needs python3");
    let lines: String = cases.iter().map(|case| format!("{case}\n")).collect();
    let mut stdin = child.stdin.take().expect("it is piped");
    // A separate thread: the program answers before it has read everything.
    let writer = thread::spawn(move || stdin.write_all(lines.as_bytes()));
    let output = child.wait_with_output().expect("it can be waited for");
    assert!(output.status.success(), "{program} failed: {}", output.status);
    writer.join().expect("no panic").expect("the program reads all cases");
    let text = String::from_utf8(output.stdout).expect("JSON is UTF-8");
    text.lines().map(|line| serde_json::from_str(line).expect("each line is JSON")).collect()
}

#[test]
fn the_consensus_is_what_a_program_written_from_the_text_computes() {
    println!("seed {SEED}");
    let mut random = Random(SEED);
    let cases: Vec<Vec<ValidatorWeights>> = (0..CASES).map(|_| random.ballots()).collect();
    let lines: Vec<Value> = cases.iter().map(|ballots| case(ballots)).collect();
    let answers = python("prot31.py", &lines);
    assert_eq!(answers.len(), CASES);
    for (number, (ballots, answer)) in cases.iter().zip(&answers).enumerate() {
        assert_eq!(*answer, result(ballots), "case {number} of seed {SEED}: {}", lines[number]);
    }
    // Otherwise the cases compare nothing.
    let agreed = answers.iter().filter(|answer| !answer.is_null()).count();
    assert!((CASES / 4..CASES).contains(&agreed), "{agreed} cases have a consensus");
}

fn crate_root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

/// A row of a table of constants.
#[derive(Debug)]
struct Constant {
    page: String,
    name: String,
    value: f64,
    place: String,
}

/// Returns the pages of the specification, by name.
fn pages() -> BTreeMap<String, String> {
    let folder = fs::read_dir(crate_root().join("spec")).expect("the specification is there");
    let read = |path: PathBuf| {
        let name = path.file_name().expect("it is a file").to_string_lossy().into_owned();
        (name, fs::read_to_string(path).expect("a page is text"))
    };
    folder.map(|entry| read(entry.expect("a folder can be read").path())).collect()
}

/// Returns the rows of the tables `constant
/// value
/// in code`.
fn constants(pages: &BTreeMap<String, String>) -> Vec<Constant> {
    let mut found = Vec::new();
    for (page, text) in pages {
        let (_, table) = text.split_once("\nconstant | value | in code\n").unwrap_or_default();
        for row in table.lines().skip(1).take_while(|line| !line.is_empty()) {
            let cells: Vec<&str> = row.split('|').map(str::trim).collect();
            let [name, value, place] = cells[..] else { panic!("{page}: {row} is not a constant") };
            let value = value.parse().unwrap_or_else(|_| panic!("{page}: {value} is not a number"));
            let [name, place] = [name, place].map(|cell| cell.trim_matches('`').to_owned());
            found.push(Constant { page: page.clone(), name, value, place });
        }
    }
    found
}

/// Returns the defaults of the parameters and terms of a run and of a chain's floors, by the name in code.
fn defaults(of: &str) -> BTreeMap<String, f64> {
    fn flatten(value: &Value, into: &mut BTreeMap<String, f64>) {
        for (name, value) in value.as_object().into_iter().flatten() {
            if let Some(number) = value.as_f64() {
                into.insert(name.clone(), number);
            }
            flatten(value, into);
        }
    }
    let json = match of {
        "RunParams" => {
            // The limits have names of terms.
            let mut params = json!(RunParams::default());
            params.as_object_mut().expect("it has fields").remove("limits");
            params
        }
        "TermsLimits" => json!(RunParams::default().limits),
        "Terms" => json!(Terms::default()),
        "Floors" => {
            let Floors { blocks_per_window, validator_stake_min, miner_stake_min, seat_price_min } =
                Floors::default();
            json!({
                "blocks_per_window": blocks_per_window,
                "validator_stake_min": validator_stake_min as u64,
                "miner_stake_min": miner_stake_min as u64,
                "seat_price_min": seat_price_min as u64,
            })
        }
        _ => panic!("{of} has no defaults"),
    };
    let mut values = BTreeMap::new();
    flatten(&json, &mut values);
    values
}

/// Returns the value of a constant in source text: `const NAME: T = …;` or a runtime's `type Name = ConstU32<…>;`.
fn in_source(name: &str, source: &str) -> Option<f64> {
    let expression = source.lines().find_map(|line| {
        let line = line.trim().trim_start_matches("pub(crate) ").trim_start_matches("pub ");
        let constant = line.strip_prefix("const ").and_then(|rest| rest.strip_prefix(name));
        let constant = constant.and_then(|rest| rest.strip_prefix(':')?.split_once(" = "));
        let kind = line.strip_prefix("type ").and_then(|rest| rest.strip_prefix(name));
        let kind = kind.and_then(|rest| rest.strip_prefix(" = ConstU32<")?.strip_suffix(">;"));
        kind.or(constant.map(|(_, value)| value.split(';').next().unwrap_or(value)))
    })?;
    evaluate(expression)
}

/// Evaluates a number, or two with an operator, as constants are written.
fn evaluate(expression: &str) -> Option<f64> {
    let number = |text: &str| -> Option<f64> {
        let text = text.trim();
        let inner = text.strip_suffix(')').and_then(|text| text.split_once('('));
        match inner {
            // `Permille(100)`, `Duration::from_secs(1)`.
            Some((_, inner)) => evaluate(inner),
            None if text == "UNIT" => Some(1e12),
            None => text.replace('_', "").parse().ok(),
        }
    };
    for (operator, apply) in [
        (" << ", (|a, b| a * b.exp2()) as fn(f64, f64) -> f64),
        (" * ", |a, b| a * b),
        (" / ", |a, b| a / b),
        (" + ", |a, b| a + b),
    ] {
        if let Some((one, other)) = expression.split_once(operator) {
            return Some(apply(number(one)?, number(other)?));
        }
    }
    number(expression)
}

#[test]
fn every_constant_of_the_specification_has_its_value_in_the_code() {
    let constants = constants(&pages());
    assert!(60 < constants.len(), "only {} constants were found", constants.len());
    for Constant { page, name, value, place } in &constants {
        let in_code = if place.ends_with(".rs") {
            let path = crate_root().join("..").join(Path::new(place));
            let source = fs::read_to_string(path).unwrap_or_else(|error| panic!("{page}: {place}: {error}"));
            in_source(name, &source)
        } else {
            defaults(place).get(name).copied()
        };
        let in_code = in_code.unwrap_or_else(|| panic!("{page}: {place} has no {name}"));
        // Rates are stored in 32 bits.
        let is_same = in_code == *value || in_code == f64::from(*value as f32);
        assert!(is_same, "{page} says that {name} is {value}, and in {place} it is {in_code}");
    }
}

#[test]
fn every_constant_that_a_rule_names_has_a_row() {
    let pages = pages();
    let rows: BTreeSet<String> = constants(&pages).into_iter().map(|constant| constant.name).collect();
    let is_constant = |word: &&str| {
        let letters = word.trim_matches(|c: char| !c.is_ascii_alphanumeric());
        letters.len() > 3
            && letters.chars().all(|c| c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_')
            && letters.chars().any(|c| c.is_ascii_uppercase())
    };
    for (page, text) in &pages {
        let words = text.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_'));
        for word in words.filter(is_constant).filter(|word| !NAMES.contains(word)) {
            assert!(rows.contains(word), "{page} names {word}, which no table of constants has");
        }
        let parameters = ["RunParams", "Terms"].map(defaults).into_iter().flatten().map(|(name, _)| name);
        // Without an underscore a name is also a word of the language.
        for name in parameters.filter(|name| name.contains('_') && text.contains(&name[..])) {
            assert!(rows.contains(&name), "{page} names {name}, which no table of constants has");
        }
    }
}

/// Words in capitals that are not constants.
const NAMES: &[&str] =
    &["PROT", "SCALE", "BLAKE3", "JSON", "ASCII", "MTLC", "MTLU", "MTLR", "DIGEST", "HOTKEY", "PEER"];

#[test]
fn constants_are_read_from_source() {
    let source = "pub const A_B: u64 = 1 << 32;\n    const C: f64 = 1.0 / 4.0;\n type Kept = ConstU32<128>;\n\
                  pub const S: Permille = Permille(100);\nconst D: u128 = 1_000;\npub const R: B = 10 * UNIT;";
    let expected =
        [("A_B", 4294967296.0), ("C", 0.25), ("Kept", 128.0), ("S", 100.0), ("D", 1000.0), ("R", 1e13)];
    for (name, value) in expected {
        assert_eq!(in_source(name, source), Some(value), "{name}");
    }
    assert_eq!(in_source("A", source), None);
}
