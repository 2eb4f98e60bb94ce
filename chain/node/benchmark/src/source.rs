//! Writes a pallet's `weight_info.rs`.
//!
//! The trait is kept as it is, with its documentation; the rest is generated. Functions of the trait and benchmarks must
//! correspond in name and number of sizes.

use crate::fit::{Cost, Formula};
use std::{collections::BTreeMap, fmt::Write as _};

const TRAIT: &str = "pub trait WeightInfo {";
/// Longer lines are wrapped.
const WIDTH: usize = 120;

/// The conditions of the measurement.
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
    #[error("pallet {0}: weight_info.rs has no complete `{TRAIT}`")]
    NoTrait(String),
    #[error("pallet {0}: in WeightInfo, `{1}` is not `fn name(size: u32, ...) -> Weight;`")]
    NoFunction(String, String),
    #[error("pallet {0}: `{1}` has no benchmark, or was not measured")]
    NotMeasured(String, String),
    #[error("pallet {0}: the benchmark `{1}` has no function in WeightInfo")]
    NotInTrait(String, String),
    #[error("pallet {0}: `{1}` has {2} sizes, and its benchmark {3}")]
    Sizes(String, String, usize, usize),
}

/// A function of the trait.
#[derive(Debug, PartialEq, Eq)]
struct Function {
    name: String,
    sizes: Vec<String>,
}

/// Generates the file from its present text and the measured costs.
///
/// # Errors
/// If trait and benchmarks do not correspond.
pub fn write(
    pallet: &str,
    before: &str,
    costs: &BTreeMap<&str, &Cost>,
    conditions: &Conditions,
) -> Result<String, Misfit> {
    let of = || pallet.to_owned();
    let (documented, functions) = parse_trait(pallet, before)?;
    if let Some(name) = costs.keys().find(|name| functions.iter().all(|function| function.name != **name)) {
        return Err(Misfit::NotInTrait(of(), (*name).into()));
    }
    let Conditions { date, machine, runtime, steps, repeat } = conditions;
    let runtime: String = runtime.iter().map(|byte| format!("{byte:02x}")).collect();
    let mut text = format!(
        "//! Weights of calls and tasks, measured in the Wasm runtime (PROT-33).
//!
//! Written by `scripts/benchmark-pallets`, except for the trait: {steps} steps per size, {repeat} repetitions, on {date},
//! on {machine}, in the Wasm runtime with BLAKE2b-256
//! {runtime}.
//! Time is processor time. Storage accesses are counted, at the prices of `T::DbWeight`; proof sizes are not used.

use frame::weights_prelude::*;

{documented}
/// The measured weights.
pub struct Measured<T>(PhantomData<T>);

impl<T: frame_system::Config> WeightInfo for Measured<T> {{
"
    );
    for (index, Function { name, sizes }) in functions.iter().enumerate() {
        let cost = costs.get(name.as_str()).ok_or_else(|| Misfit::NotMeasured(of(), name.clone()))?;
        if cost.largest.len() != sizes.len() {
            return Err(Misfit::Sizes(of(), name.clone(), sizes.len(), cost.largest.len()));
        }
        if index > 0 {
            text.push('\n');
        }
        text.push_str(&function(name, sizes, cost));
    }
    text.push_str("}\n\n/// For tests: every weight is zero.\nimpl WeightInfo for () {\n");
    for Function { name, sizes } in &functions {
        let arguments = vec!["_: u32"; sizes.len()].join(", ");
        let _ = writeln!(text, "    fn {name}({arguments}) -> Weight {{\n        Weight::zero()\n    }}");
    }
    text.push_str("}\n");
    Ok(text)
}

/// The trait with its documentation, and its functions.
fn parse_trait(pallet: &str, before: &str) -> Result<(String, Vec<Function>), Misfit> {
    let missing = || Misfit::NoTrait(pallet.into());
    let at = before.find(TRAIT).ok_or_else(missing)?;
    let documented = before[..at].rfind("\n\n").map_or(at, |end| end + 2);
    let end = at + before[at..].find("\n}\n").ok_or_else(missing)? + 3;
    let code: String = before[at + TRAIT.len()..end - 3]
        .lines()
        .filter(|line| !line.trim_start().starts_with("//"))
        .flat_map(|line| [line.trim(), " "])
        .collect();
    let functions = code
        .split(';')
        .map(str::trim)
        .filter(|text| !text.is_empty())
        .map(|text| parse(text).ok_or_else(|| Misfit::NoFunction(pallet.into(), text.into())));
    Ok((before[documented..end].to_owned(), functions.collect::<Result<_, _>>()?))
}

fn parse(text: &str) -> Option<Function> {
    let (name, rest) = text.strip_prefix("fn ")?.split_once('(')?;
    let arguments = rest.strip_suffix(") -> Weight")?;
    let sizes = arguments.split(',').map(str::trim).filter(|argument| !argument.is_empty());
    let sizes = sizes.map(|argument| Some(argument.strip_suffix(": u32")?.to_owned()));
    Some(Function { name: name.to_owned(), sizes: sizes.collect::<Option<_>>()? })
}

fn function(name: &str, sizes: &[String], cost: &Cost) -> String {
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
    let mut text = format!("    fn {name}({arguments}) -> Weight {{\n        // {comment}.\n");
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
    let line = format!("        {first}{}", rest.concat());
    if line.len() <= WIDTH - 20 && rest.len() < 2 {
        let _ = writeln!(text, "{line}");
    } else {
        let _ = writeln!(text, "        {first}");
        for term in rest {
            let _ = writeln!(text, "            {term}");
        }
    }
    text.push_str("    }\n");
    text
}

/// With at least three significant digits.
fn micros(nanos: u64) -> String {
    match nanos {
        0..10_000 => format!("{:.2}", nanos as f64 / 1000.0),
        10_000..100_000 => format!("{:.1}", nanos as f64 / 1000.0),
        _ => format!("{:.0}", nanos as f64 / 1000.0),
    }
}

/// Grouped by thousands.
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

/// Of everything.
pub trait WeightInfo {
    fn commit() -> Weight;
    /// By the seats; who `fn` is; and so on.
    fn close(
        validators: u32,
        seats: u32,
    ) -> Weight;
}

/// And what not.
pub struct CountedByHand<T>(PhantomData<T>);
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
    fn the_trait_is_kept_and_the_figures_are_replaced() {
        let (commit, close) = (cost(&[], &[]), cost(&[3, 4, 5], &[64, 1024]));
        let costs = BTreeMap::from([("commit", &commit), ("close", &close)]);
        let text = write("weights", BEFORE, &costs, &conditions()).unwrap();
        assert!(
            text.contains(
                &BEFORE[BEFORE.find("/// Of everything").unwrap()..BEFORE.find("/// And").unwrap()]
            )
        );
        assert!(!text.contains("CountedByHand") && !text.contains("Anything"));
        assert!(
            text.contains(
                "    fn commit() -> Weight {
        // 0.95 to 120 µs.
        Weight::from_parts(1_234_567, 0).saturating_add(T::DbWeight::get().reads(2))
    }"
            ),
            "{text}"
        );
        assert!(text.contains(
            "    fn close(validators: u32, seats: u32) -> Weight {
        // 0.95 to 120 µs with 64 validators and 1024 seats.
        Weight::from_parts(1_234_567, 0)
            .saturating_add(T::DbWeight::get().reads(2))
            .saturating_add(Weight::from_parts(3, 0).saturating_mul(u64::from(validators)))
            .saturating_add(T::DbWeight::get().writes(1).saturating_mul(u64::from(validators)))
            .saturating_add(Weight::from_parts(4, 0).saturating_mul(u64::from(seats)))
            .saturating_add(Weight::from_parts(5, 0).saturating_mul(u64::from(validators) * u64::from(seats)))
            .saturating_add(T::DbWeight::get().writes(1).saturating_mul(u64::from(validators) * u64::from(seats)))
    }"
        ), "{text}");
        assert!(text.contains("fn close(_: u32, _: u32) -> Weight {\n        Weight::zero()"));
        assert_eq!(
            write("weights", &text, &costs, &conditions()).unwrap(),
            text,
            "a second run changes nothing"
        );
    }

    #[test]
    fn a_size_without_influence_is_marked_as_unused() {
        let text = function("attest", &["verdicts".into()], &cost(&[0], &[1024]));
        assert!(text.contains("fn attest(_verdicts: u32) -> Weight {"), "{text}");
    }

    #[test]
    fn trait_and_benchmarks_that_do_not_correspond_are_refused() {
        let (commit, close) = (cost(&[], &[]), cost(&[3, 4], &[64, 1024]));
        let refusal = |before: &str, costs: &[(&'static str, &Cost)]| {
            write("p", before, &costs.iter().copied().collect(), &conditions()).unwrap_err()
        };
        let p = || "p".to_owned();
        let all = [("commit", &commit), ("close", &close)];
        assert_eq!(refusal(BEFORE, &all[..1]), Misfit::NotMeasured(p(), "close".into()));
        assert_eq!(
            refusal(BEFORE, &[all[0], all[1], ("vote", &commit)]),
            Misfit::NotInTrait(p(), "vote".into())
        );
        assert_eq!(refusal(BEFORE, &[all[0], ("close", &commit)]), Misfit::Sizes(p(), "close".into(), 2, 0));
        assert_eq!(refusal("pub trait WeightInfo {", &all), Misfit::NoTrait(p()));
        assert_eq!(refusal("", &all), Misfit::NoTrait(p()));
        let odd = BEFORE.replace("fn commit()", "fn commit(seats: u64)");
        assert_eq!(refusal(&odd, &all), Misfit::NoFunction(p(), "fn commit(seats: u64) -> Weight".into()));
    }

    #[test]
    fn digits_are_grouped_by_thousands() {
        for (number, text) in [(0, "0"), (999, "999"), (1000, "1_000"), (1_234_567, "1_234_567")] {
            assert_eq!(digits(number), text);
        }
    }
}
