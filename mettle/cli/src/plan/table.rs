//! A plan as text for a terminal of 80 columns, and as JSON.

use super::{
    constants::{self, Basis, Constant},
    figures::{Change, Check, Plan, PlanInput, Role, Row, Severity, Value},
};
use serde_json::{Map, Value as Json, json};
use watch::block_clock::span;

const WIDTH: usize = 80;
const LABEL: usize = 42;
const AMOUNT: usize = 20;
/// Indentation of a check's lines.
const INDENT: &str = "          ";

/// Writes the table.
pub fn text(input: &PlanInput, plan: &Plan) -> String {
    let mut text = head(input, plan);
    for role in &plan.roles {
        text += &format!("\n{}\n", role.title);
        for row in &role.rows {
            text += &row_line(row);
        }
    }
    text += "\nDoes it fit?\n";
    for check in &plan.checks {
        text += &check_lines(check);
    }
    text += &format!("\n{}\n", verdict(plan));
    text += "\nSources, in docs/; arithmetic but for what is measured\n";
    for constant in constants::ALL {
        text += &source_lines(&constant);
    }
    text
}

fn head(input: &PlanInput, plan: &Plan) -> String {
    let PlanInput { params, miner_link, validator_link, .. } = input;
    let (sizes, phases) = (&plan.sizes, &plan.phases);
    let link = |up, down| format!("{} up, {} down", bits(up), bits(down));
    let seconds = |seconds| value(Value::Seconds(Some(seconds)));
    let blocks = params.schedule.blocks_per_window;
    let block = seconds(input.block_milliseconds as f64 / 1000.0);
    let window = format!("{}: {blocks} blocks of {block}", seconds(phases.window));
    let share = format!(
        "commit by {}, then reveal {}, attest {}, vote {}",
        seconds(phases.commit),
        seconds(phases.reveal),
        seconds(phases.attest),
        seconds(phases.vote)
    );
    let ranks = match input.ranks {
        1 => String::new(),
        ranks => format!(", by {ranks} ranks with a GPU and one micro-batch per step each"),
    };
    let sequences = format!("{} sequences of {} tokens{ranks}", params.sequences_per_seat, input.tokens);
    let contribution = object(sizes.contribution_bytes, params.density.0, sizes.contribution_bits_per_value);
    let update = object(sizes.update_bytes, params.merge_density.0, sizes.update_bits_per_value);
    let lines = [
        ("parameters", grouped(input.parameters)),
        ("seats", format!("{} miners, {} validators", grouped(input.miners.into()), input.validators)),
        ("miner's link", link(miner_link.up, miner_link.down)),
        ("validator's link", link(validator_link.up, validator_link.down)),
        ("window", window),
        ("phases", share),
        ("a seat's data", sequences),
        ("contribution", contribution),
        ("update", update),
    ];
    lines.iter().map(|(name, text)| wrapped(&format!("{name:18}"), &" ".repeat(18), text)).collect()
}

fn object(bytes: u64, density: u16, bits_per_value: f64) -> String {
    format!("{}: {density} of 4096 values, {bits_per_value:.2} bits each", value(Value::Bytes(bytes)))
}

fn row_line(row: &Row) -> String {
    let numbers: Vec<String> = row.from.iter().map(|constant| constant.number().to_string()).collect();
    let from = if numbers.is_empty() { String::new() } else { format!("  [{}]", numbers.join(", ")) };
    format!("  {:LABEL$} {:>AMOUNT$}{from}\n", row.label, value(row.value))
}

fn check_lines(check: &Check) -> String {
    let word = match (check.fits(), check.severity) {
        (true, _) => "fits",
        (false, Severity::Breaks) => "BREAKS",
        (false, Severity::Costs) => "costs",
    };
    let first = format!("  {word:8}");
    let mut lines = wrapped(&first, INDENT, &format!("{}: {}", check.role, check.what));
    let (needs, has) = (value(check.needs), value(check.has));
    if check.fits() {
        return lines + &format!("{INDENT}{needs} of {has}\n");
    }
    let ratio = check.ratio();
    let times =
        if ratio.is_finite() { format!(" ({} times as much)", significant(ratio)) } else { String::new() };
    lines += &wrapped(INDENT, INDENT, &format!("needs {needs}, has {has}{times}"));
    lines += &wrapped(INDENT, INDENT, &format!("then {}", check.otherwise));
    let changes: Vec<String> = check.changes.iter().map(change).collect();
    if !changes.is_empty() {
        lines += &wrapped(INDENT, INDENT, &format!("change: {}", changes.join("; or ")));
    }
    lines
}

fn change(change: &Change) -> String {
    match change {
        Change::Rate(flag, rate) => format!("{flag} {}", rate_flag(*rate)),
        Change::Window(seconds) => format!("--window {}", window_flag(*seconds)),
        Change::Other(text) => text.clone(),
    }
}

fn verdict(plan: &Plan) -> String {
    let count =
        |severity| plan.checks.iter().filter(|check| !check.fits() && check.severity == severity).count();
    match (count(Severity::Breaks), count(Severity::Costs)) {
        (0, 0) => "It fits.".into(),
        (0, costs) => format!("It fits, with {}.", plural(costs, "loss", "losses")),
        (breaks, _) => {
            let limits = plural(breaks, "limit breaks", "limits break");
            let window = plan.window_needed().map(|seconds| {
                format!(" With these links, what a longer window mends fits one of {}.", window_flag(seconds))
            });
            wrapped("", "", &format!("It does not fit: {limits}.{}", window.unwrap_or_default()))
                .trim_end()
                .into()
        }
    }
}

fn plural(count: usize, one: &str, many: &str) -> String {
    if count == 1 { format!("1 {one}") } else { format!("{count} {many}") }
}

fn source_lines(constant: &Constant) -> String {
    let number = format!("  [{}]", constant.number());
    let amount = match constant.unit {
        "" if constant.value == 1.0 => String::new(),
        "" => format!(": {}", constant.value),
        "B/s" => format!(": {}/s", value(Value::Bytes(constant.value as u64))),
        "B" if constant.value >= 1000.0 => format!(": {}", value(Value::Bytes(constant.value as u64))),
        "s" => format!(": {:.3} ns", constant.value * 1e9),
        unit => format!(": {} {unit}", constant.value),
    };
    let basis = match constant.basis {
        Basis::Measured => "measured",
        Basis::Formula => "formula",
        Basis::Setting => "setting",
        Basis::Bound => "bound",
    };
    let text = format!("{}{amount}; {basis} ({})", constant.name, constant.source);
    wrapped(&format!("{number:7}"), "       ", &text)
}

/// Returns the JSON object. Names and units of its fields are stable.
pub fn json(input: &PlanInput, plan: &Plan) -> Json {
    let PlanInput { params, miner_link, validator_link, .. } = input;
    let mut object = Map::new();
    let schedule = params.schedule;
    object.insert(
        "input".into(),
        json!({
            "parameters": input.parameters, "miners": input.miners, "validators": input.validators,
            "ranks": input.ranks,
            "miner_bits_per_second": miner_link, "validator_bits_per_second": validator_link,
            "block_seconds": input.block_milliseconds as f64 / 1000.0,
            "blocks_per_window": schedule.blocks_per_window, "commit_by": schedule.commit_by,
            "reveal_by": schedule.reveal_by, "attest_by": schedule.attest_by, "vote_by": schedule.vote_by,
            "density": params.density, "merge_density": params.merge_density,
            "sequences_per_seat": params.sequences_per_seat, "sequence_tokens": input.tokens,
        }),
    );
    object.insert("sizes".into(), json!(plan.sizes));
    object.insert("phases_seconds".into(), json!(plan.phases));
    object.extend(plan.roles.iter().map(|role| (role.key.to_owned(), role_json(role))));
    object.insert("checks".into(), plan.checks.iter().map(check_json).collect());
    object.insert("fits".into(), plan.fits().into());
    let constants = constants::ALL.iter().map(|constant| {
        let mut one = json!(constant);
        one["number"] = constant.number().into();
        one
    });
    object.insert("constants".into(), constants.collect());
    Json::Object(object)
}

pub(crate) fn role_json(role: &Role) -> Json {
    let mut object: Map<String, Json> =
        role.rows.iter().map(|row| (row.key.to_owned(), number_json(row.value))).collect();
    let from = role.rows.iter().map(|row| {
        let numbers: Vec<usize> = row.from.iter().map(Constant::number).collect();
        (row.key.to_owned(), json!(numbers))
    });
    object.insert("from".into(), Json::Object(from.collect()));
    Json::Object(object)
}

fn check_json(check: &Check) -> Json {
    let changes: Vec<String> = check.changes.iter().map(change).collect();
    json!({
        "name": check.key, "role": check.role, "fits": check.fits(), "severity": check.severity,
        "needs": number_json(check.needs), "has": number_json(check.has), "otherwise": check.otherwise,
        "changes": changes,
    })
}

/// Returns the number in its unit; `null` if it is infinite. Times are rounded to milliseconds.
fn number_json(of: Value) -> Json {
    match of {
        Value::Bytes(value) | Value::BitsPerSecond(value) | Value::Count(value) => value.into(),
        Value::Seconds(value) => json!(value.map(|seconds| (seconds * 1000.0).round() / 1000.0)),
        Value::Flop(value) | Value::FlopPerSecond(value) => json!(value.round()),
        Value::Share(value) => json!((value * 1e6).round() / 1e6),
    }
}

/// Formats a number with its unit, for people.
pub(crate) fn value(of: Value) -> String {
    match of {
        Value::Bytes(bytes) => scaled(bytes as f64, "B"),
        Value::Seconds(None) => "never".into(),
        Value::Seconds(Some(seconds)) if seconds < 60.0 => format!("{} s", significant(seconds)),
        Value::Seconds(Some(seconds)) => span(seconds.round() as u64),
        Value::BitsPerSecond(rate) => bits(rate),
        Value::Flop(flop) => scaled(flop, "FLOP"),
        Value::FlopPerSecond(rate) => scaled(rate, "FLOP/s"),
        Value::Count(count) => grouped(count),
        Value::Share(share) => format!("{} %", significant(100.0 * share)),
    }
}

fn bits(rate: u64) -> String {
    scaled(rate as f64, "bit/s")
}

const PREFIXES: [&str; 8] = ["", "k", "M", "G", "T", "P", "E", "Z"];

/// Formats four significant digits with a decimal prefix.
pub(crate) fn scaled(value: f64, unit: &str) -> String {
    let (value, prefix) = prefixed(value);
    // 999.95 would be rounded to 1000.0.
    let (value, prefix) = if 999.95 <= value { (value / 1000.0, prefix + 1) } else { (value, prefix) };
    format!("{} {}{unit}", significant(value), PREFIXES.get(prefix).unwrap_or(&"?"))
}

/// Scales a number to at least 1 and below 1000, and returns its prefix.
fn prefixed(mut value: f64) -> (f64, usize) {
    let mut prefix = 0;
    while 1000.0 <= value && prefix + 1 < PREFIXES.len() {
        value /= 1000.0;
        prefix += 1;
    }
    (value, prefix)
}

/// Formats up to four significant digits, at most three after the point.
fn significant(value: f64) -> String {
    if 0.0 < value && value < 0.001 {
        return "<0.001".into();
    }
    let digits = match value {
        value if value < 10.0 => 3,
        value if value < 100.0 => 2,
        value if value < 1000.0 => 1,
        _ => 0,
    };
    let text = format!("{value:.digits$}");
    match text.contains('.') {
        true => text.trim_end_matches('0').trim_end_matches('.').to_owned(),
        false => text,
    }
}

/// Formats a rate of at least `rate` in three digits, as the flags read it.
fn rate_flag(rate: u64) -> String {
    let (value, prefix) = prefixed(rate as f64);
    let step = match value {
        value if value < 10.0 => 100.0,
        value if value < 100.0 => 10.0,
        _ => 1.0,
    };
    // The prefix's rounding error is below the step's precision.
    let up = (value * step - 1e-9).ceil() / step;
    format!("{up}{}bit", PREFIXES.get(prefix).unwrap_or(&"?"))
}

/// Formats a time of at least `seconds`, as the flag reads it.
fn window_flag(seconds: f64) -> String {
    let seconds = (seconds - 1e-9).ceil() as u64;
    if seconds < 600 {
        return format!("{seconds}s");
    }
    let minutes = seconds.div_ceil(60);
    match (minutes / 60, minutes % 60) {
        (0 | 1, _) => format!("{minutes}m"),
        (hours, 0) => format!("{hours}h"),
        (hours, minutes) => format!("{hours}h{minutes}m"),
    }
}

/// Formats a number with a comma between thousands.
pub(crate) fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if 0 < index && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Wraps text into lines of at most [`WIDTH`] columns: `first` before the first one, `rest` before the others.
pub(crate) fn wrapped(first: &str, rest: &str, text: &str) -> String {
    let (mut all, mut line) = (String::new(), first.to_owned());
    let mut begins = true;
    for word in text.split(' ') {
        let space = usize::from(!begins);
        if !begins && WIDTH < line.chars().count() + space + word.chars().count() {
            all += &format!("{}\n", line.trim_end());
            line = rest.to_owned();
            begins = true;
        }
        if !begins {
            line.push(' ');
        }
        line += word;
        begins = false;
    }
    all + &format!("{}\n", line.trim_end())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::quantity;

    #[test]
    fn numbers_have_four_digits_and_a_unit() {
        for (of, text) in [
            (Value::Bytes(0), "0 B"),
            (Value::Bytes(150), "150 B"),
            (Value::Bytes(1_345_000_000), "1.345 GB"),
            (Value::Bytes(12_290_000_000), "12.29 GB"),
            (Value::Bytes(999_999_999), "1 GB"),
            (Value::Bytes(u64::MAX), "18.45 EB"),
            (Value::Seconds(None), "never"),
            (Value::Seconds(Some(0.0)), "0 s"),
            (Value::Seconds(Some(0.00002)), "<0.001 s"),
            (Value::Seconds(Some(0.0231)), "0.023 s"),
            (Value::Seconds(Some(27.346)), "27.35 s"),
            (Value::Seconds(Some(97.8)), "1 min 38 s"),
            (Value::BitsPerSecond(110_000_000), "110 Mbit/s"),
            (Value::Flop(4.404e17), "440.4 PFLOP"),
            (Value::FlopPerSecond(3.67e14), "367 TFLOP/s"),
            (Value::Count(1_000), "1,000"),
            (Value::Share(0.0175), "1.75 %"),
        ] {
            assert_eq!(value(of), text);
        }
    }

    #[test]
    fn suggested_flags_are_read_back_and_are_enough() {
        for rate in [1, 999, 1_001, 114_900_001, 115_000_000, 999_999_999, 1_234_567_890, 398_000_000_000] {
            let flag = rate_flag(rate);
            let read = quantity::rate(&flag).unwrap_or_else(|error| panic!("{flag}: {error}"));
            assert!(rate <= read && read as f64 <= 1.02 * rate as f64, "{rate}: {flag}");
        }
        assert_eq!(rate_flag(114_900_001), "115Mbit");
        for seconds in [0.5, 94.2, 599.0, 600.5, 1200.0, 7199.0, 7200.0, 12_660.0, 9e6] {
            let flag = window_flag(seconds);
            let read =
                quantity::duration(&flag).unwrap_or_else(|error| panic!("{flag}: {error}")) as f64 / 1000.0;
            assert!(seconds <= read && read <= seconds + 60.0, "{seconds}: {flag}");
        }
        assert_eq!(window_flag(12_660.0), "3h31m");
    }

    #[test]
    fn long_lines_are_wrapped_between_words() {
        let text = wrapped("  fits    ", INDENT, &"word ".repeat(40));
        assert!(text.lines().all(|line| line.chars().count() <= WIDTH && line == line.trim_end()), "{text}");
        assert!(
            text.starts_with("  fits    word word")
                && text.lines().skip(1).all(|line| line.starts_with(INDENT))
        );
        assert_eq!([grouped(1), grouped(1000), grouped(70_553_706_496)], ["1", "1,000", "70,553,706,496"]);
    }
}
