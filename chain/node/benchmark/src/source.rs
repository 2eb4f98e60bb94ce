//! Writes a pallet's `weight_info.rs`.
//!
//! Signatures and documentation of its functions are kept; the rest is generated. Functions and benchmarks must
//! correspond in name and number of sizes.

use crate::fit::{Cost, Formula};
use std::{collections::BTreeMap, fmt::Write as _};

const FUNCTION: &str = "pub fn ";
/// Maximum width of a line; longer lines are wrapped.
const WIDTH: usize = 120;

/// Conditions of the measurement.
#[derive(Debug)]
pub struct Conditions {
    pub date: String,
    pub machine: String,
    /// BLAKE2b-256 of the Wasm runtime.
    pub runtime: [u8; 32],
    pub steps: u32,
    pub repeat: u32,
}

#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum Misfit {
    #[error("pallet {0}: `{1}` is not `pub fn name<T: frame_system::Config>(size: u32, ...) -> Weight {{`")]
    NoFunction(String, String),
    #[error("pallet {0}: `{1}` has no benchmark, or was not measured")]
    NotMeasured(String, String),
    #[error("pallet {0}: the benchmark `{1}` has no function in weight_info.rs")]
    NoWeight(String, String),
    #[error("pallet {0}: `{1}` has {2} sizes, and its benchmark {3}")]
    Sizes(String, String, usize, usize),
}

/// A function of `weight_info.rs`.
#[derive(Debug, PartialEq, Eq)]
struct Function {
    /// Documentation of the function, with a line end if not empty.
    docs: String,
    name: String,
    sizes: Vec<String>,
}

/// Generates the file from its present text and the measured costs.
///
/// # Errors
/// Fails if functions and benchmarks do not correspond.
pub fn write(
    pallet: &str,
    before: &str,
    costs: &BTreeMap<&str, &Cost>,
    conditions: &Conditions,
) -> Result<String, Misfit> {
    let of = || pallet.to_owned();
    let functions = functions(pallet, before)?;
    if let Some(name) = costs.keys().find(|name| functions.iter().all(|function| function.name != **name)) {
        return Err(Misfit::NoWeight(of(), (*name).into()));
    }
    let Conditions { date, machine, runtime, steps, repeat } = conditions;
    let runtime: String = runtime.iter().map(|byte| format!("{byte:02x}")).collect();
    let mut text = format!(
        "//! Weights of calls and tasks, measured in the Wasm runtime (PROT-33).
//!
//! Written by `scripts/benchmark-pallets`, except for signatures and documentation: {steps} steps per size, {repeat}
//! repetitions, on {date}, on {machine}, in the Wasm runtime with BLAKE2b-256 {runtime}. Time is processor time.
//! Storage accesses are counted, at the prices of `T::DbWeight`; proof sizes are not used.

use frame::weights_prelude::*;
"
    );
    for function in &functions {
        let Function { name, sizes, .. } = function;
        let cost = costs.get(name.as_str()).ok_or_else(|| Misfit::NotMeasured(of(), name.clone()))?;
        if cost.largest.len() != sizes.len() {
            return Err(Misfit::Sizes(of(), name.clone(), sizes.len(), cost.largest.len()));
        }
        text.push('\n');
        text.push_str(&function.source(cost));
    }
    Ok(text)
}

/// Parses the functions of the present text.
fn functions(pallet: &str, before: &str) -> Result<Vec<Function>, Misfit> {
    let mut functions = Vec::new();
    let mut docs = String::new();
    for line in before.lines() {
        if line.starts_with("///") {
            docs.extend([line, "\n"]);
            continue;
        }
        if let Some(signature) = line.strip_prefix(FUNCTION) {
            let function = parse(std::mem::take(&mut docs), signature);
            functions.push(function.ok_or_else(|| Misfit::NoFunction(pallet.into(), line.into()))?);
        }
        docs.clear();
    }
    Ok(functions)
}

fn parse(docs: String, signature: &str) -> Option<Function> {
    let (name, rest) = signature.split_once("<T: frame_system::Config>(")?;
    let arguments = rest.strip_suffix(") -> Weight {")?;
    let sizes = arguments.split(',').map(str::trim).filter(|argument| !argument.is_empty());
    let sizes =
        sizes.map(|argument| Some(argument.strip_suffix(": u32")?.trim_start_matches('_').to_owned()));
    Some(Function { docs, name: name.to_owned(), sizes: sizes.collect::<Option<_>>()? })
}

impl Function {
    /// Returns the function with its measured weight.
    fn source(&self, cost: &Cost) -> String {
        let Function { docs, name, sizes } = self;
        let Cost { time, reads, writes, largest, took } = cost;
        let largest = sizes.iter().zip(largest).map(|(size, largest)| format!("{largest} {size}"));
        let largest = largest.collect::<Vec<_>>().join(" and ");
        let largest = if largest.is_empty() { largest } else { format!(" with {largest}") };
        let comment = format!("{} to {} µs{largest}", micros(took.0), micros(took.1));

        let part = |formula: &Formula, index: usize| formula.parts.get(index).copied().unwrap_or(0);
        let matters = |index: usize| [time, reads, writes].iter().any(|formula| part(formula, index) > 0);
        let argument = |(index, size): (usize, &String)| {
            let unused = if matters(index) || matters(sizes.len()) { "" } else { "_" };
            format!("{unused}{size}: u32")
        };
        let arguments = sizes.iter().enumerate().map(argument).collect::<Vec<_>>().join(", ");
        let mut text = format!(
            "{docs}{FUNCTION}{name}<T: frame_system::Config>({arguments}) -> Weight {{\n    // {comment}.\n"
        );
        let mut terms = vec![format!("Weight::from_parts({}, 0)", digits(time.base))];
        let storage = |reads, writes| match (reads, writes) {
            (0, 0) => None,
            (reads, 0) => Some(format!("T::DbWeight::get().reads({reads})")),
            (0, writes) => Some(format!("T::DbWeight::get().writes({writes})")),
            (reads, writes) => Some(format!("T::DbWeight::get().reads_writes({reads}, {writes})")),
        };
        terms.extend(storage(reads.base, writes.base));
        for index in 0..sizes.len() + 1 {
            let times = match sizes.get(index) {
                Some(size) => format!("u64::from({size})"),
                None => sizes.iter().map(|size| format!("u64::from({size})")).collect::<Vec<_>>().join(" * "),
            };
            let time = part(time, index);
            if time > 0 {
                terms.push(format!("Weight::from_parts({}, 0).saturating_mul({times})", digits(time)));
            }
            if let Some(storage) = storage(part(reads, index), part(writes, index)) {
                terms.push(format!("{storage}.saturating_mul({times})"));
            }
        }
        let mut terms = terms.into_iter();
        let first = terms.next().unwrap_or_default();
        let rest: Vec<_> = terms.map(|term| format!(".saturating_add({term})")).collect();
        let line = format!("    {first}{}", rest.concat());
        if line.len() <= WIDTH - 20 && rest.len() < 2 {
            let _ = writeln!(text, "{line}");
        } else {
            let _ = writeln!(text, "    {first}");
            for term in rest {
                let _ = writeln!(text, "        {term}");
            }
        }
        text.push_str("}\n");
        text
    }
}

/// Formats a time in µs, with at least three significant digits.
fn micros(nanos: u64) -> String {
    match nanos {
        0..10_000 => format!("{:.2}", nanos as f64 / 1000.0),
        10_000..100_000 => format!("{:.1}", nanos as f64 / 1000.0),
        _ => format!("{:.0}", nanos as f64 / 1000.0),
    }
}

/// Groups a number by thousands.
fn digits(number: u64) -> String {
    let text = number.to_string();
    let mut grouped = String::new();
    for (index, digit) in text.chars().enumerate() {
        if index > 0 && (text.len() - index).is_multiple_of(3) {
            grouped.push('_');
        }
        grouped.push(digit);
    }
    grouped
}

#[cfg(test)]
mod tests {
    use super::*;

    const BEFORE: &str = "//! Anything.

use frame::weights_prelude::*;

pub fn commit<T: frame_system::Config>() -> Weight {
    Weight::zero()
}

/// By the seats; who `pub fn` is; and so on.
/// Two lines.
pub fn close<T: frame_system::Config>(_validators: u32, seats: u32) -> Weight {
    Weight::from_parts(666, 0)
}
";

    fn cost(parts: &[u64], largest: &[u32]) -> Cost {
        let time = Formula { base: 1_234_567, parts: parts.to_vec() };
        let reads = Formula { base: 2, parts: vec![0; parts.len()] };
        let writes = Formula { base: 0, parts: parts.iter().map(|part| part % 2).collect() };
        Cost { time, reads, writes, largest: largest.to_vec(), took: (950, 120_400) }
    }

    fn conditions() -> Conditions {
        Conditions {
            date: "2026-11-21".into(),
            machine: "2 × CPU".into(),
            runtime: [7; 32],
            steps: 20,
            repeat: 5,
        }
    }

    #[test]
    fn documentation_is_kept_and_the_figures_are_replaced() {
        let (commit, close) = (cost(&[], &[]), cost(&[3, 4, 5], &[64, 1024]));
        let costs = BTreeMap::from([("commit", &commit), ("close", &close)]);
        let text = write("weights", BEFORE, &costs, &conditions()).unwrap();
        assert!(!text.contains("666") && !text.contains("Anything"));
        assert!(
            text.contains(
                "
pub fn commit<T: frame_system::Config>() -> Weight {
    // 0.95 to 120 µs.
    Weight::from_parts(1_234_567, 0).saturating_add(T::DbWeight::get().reads(2))
}
"
            ),
            "{text}"
        );
        assert!(
            text.contains(
                "
/// By the seats; who `pub fn` is; and so on.
/// Two lines.
pub fn close<T: frame_system::Config>(validators: u32, seats: u32) -> Weight {
    // 0.95 to 120 µs with 64 validators and 1024 seats.
    Weight::from_parts(1_234_567, 0)
        .saturating_add(T::DbWeight::get().reads(2))
        .saturating_add(Weight::from_parts(3, 0).saturating_mul(u64::from(validators)))
        .saturating_add(T::DbWeight::get().writes(1).saturating_mul(u64::from(validators)))
        .saturating_add(Weight::from_parts(4, 0).saturating_mul(u64::from(seats)))
        .saturating_add(Weight::from_parts(5, 0).saturating_mul(u64::from(validators) * u64::from(seats)))
        .saturating_add(T::DbWeight::get().writes(1).saturating_mul(u64::from(validators) * u64::from(seats)))
}
"
            ),
            "{text}"
        );
        assert_eq!(
            write("weights", &text, &costs, &conditions()).unwrap(),
            text,
            "a second run changes nothing"
        );
    }

    #[test]
    fn a_size_without_influence_is_marked_as_unused() {
        let attest = Function { docs: String::new(), name: "attest".into(), sizes: vec!["verdicts".into()] };
        let text = attest.source(&cost(&[0], &[1024]));
        assert!(text.contains("fn attest<T: frame_system::Config>(_verdicts: u32) -> Weight {"), "{text}");
    }

    #[test]
    fn functions_and_benchmarks_that_do_not_correspond_are_refused() {
        let (commit, close) = (cost(&[], &[]), cost(&[3, 4], &[64, 1024]));
        let refusal = |before: &str, costs: &[(&'static str, &Cost)]| {
            write("p", before, &costs.iter().copied().collect(), &conditions()).unwrap_err()
        };
        let p = || "p".to_owned();
        let all = [("commit", &commit), ("close", &close)];
        assert_eq!(refusal(BEFORE, &all[..1]), Misfit::NotMeasured(p(), "close".into()));
        assert_eq!(
            refusal(BEFORE, &[all[0], all[1], ("vote", &commit)]),
            Misfit::NoWeight(p(), "vote".into())
        );
        assert_eq!(refusal(BEFORE, &[all[0], ("close", &commit)]), Misfit::Sizes(p(), "close".into(), 2, 0));
        assert_eq!(refusal("", &all), Misfit::NoWeight(p(), "close".into()));
        let odd = BEFORE.replace("commit<T: frame_system::Config>()", "commit(seats: u64)");
        let line = "pub fn commit(seats: u64) -> Weight {";
        assert_eq!(refusal(&odd, &all), Misfit::NoFunction(p(), line.into()));
    }

    #[test]
    fn digits_are_grouped_by_thousands() {
        for (number, text) in [(0, "0"), (999, "999"), (1000, "1_000"), (1_234_567, "1_234_567")] {
            assert_eq!(digits(number), text);
        }
    }
}
