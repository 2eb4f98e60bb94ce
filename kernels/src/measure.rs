//! Measurement of time and memory, and tables, for the programs that measure kernels and engines.

use serde_json::Value;
use std::{fmt::Write as _, time::Instant};

/// Returns the duration of the shortest of several runs, in seconds. Other load on the machine can only lengthen a
/// run.
pub fn shortest(rounds: usize, mut run: impl FnMut()) -> f64 {
    let seconds = |_| {
        let began = Instant::now();
        run();
        began.elapsed().as_secs_f64()
    };
    (0..rounds).map(seconds).fold(f64::INFINITY, f64::min)
}

/// Returns a field of `/proc/self/status`, such as `VmRSS` or `VmHWM`, in bytes, if the system has it.
pub fn memory(field: &str) -> Option<u64> {
    let text = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'))?;
    let kibibytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(1024 * kibibytes)
}

/// Returns the processor's name, if the system reports it.
pub fn processor() -> Option<String> {
    let text = std::fs::read_to_string("/proc/cpuinfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("model name"))?;
    Some(line.trim_start_matches([' ', '\t', ':']).to_owned())
}

/// A column of a table.
#[derive(Clone, Copy, Debug)]
pub struct Column {
    pub title: &'static str,
    /// Field of a row's JSON.
    pub field: &'static str,
    /// Factor of a number, and its digits after the decimal point.
    pub factor: f64,
    pub digits: usize,
}

impl Column {
    pub const fn new(title: &'static str, field: &'static str, factor: f64, digits: usize) -> Column {
        Column { title, field, factor, digits }
    }

    fn cell(&self, row: &Value) -> String {
        match &row[self.field] {
            Value::String(text) => text.clone(),
            value => value
                .as_f64()
                .map_or("-".into(), |number| format!("{:.*}", self.digits, self.factor * number)),
        }
    }
}

/// Returns a report as text: a line for each field, and a table for each list of rows.
pub fn text(report: &Value, columns: &[Column]) -> String {
    let mut text = String::new();
    for (name, value) in report.as_object().into_iter().flatten() {
        text += &match value {
            Value::Object(_) => {
                self::text(value, columns).lines().map(|line| format!("{name}.{line}\n")).collect()
            }
            Value::Array(rows) if !rows.is_empty() && rows.iter().all(Value::is_object) => {
                format!("\n{}\n", table(columns, rows))
            }
            Value::Number(number) if number.is_f64() => {
                format!("{name}: {:.4}\n", number.as_f64().unwrap_or(f64::NAN))
            }
            Value::Number(number) => format!("{name}: {number}\n"),
            Value::String(value) => format!("{name}: {value}\n"),
            Value::Array(_) | Value::Null | Value::Bool(_) => String::new(),
        };
    }
    text
}

/// Returns `rows` as lines below their titles, the first column left-aligned, the others right-aligned, `-` for absent
/// values. Omits columns that all rows lack.
fn table(columns: &[Column], rows: &[Value]) -> String {
    let columns: Vec<&Column> =
        columns.iter().filter(|column| rows.iter().any(|row| row.get(column.field).is_some())).collect();
    let mut lines = vec![columns.iter().map(|column| column.title.to_owned()).collect::<Vec<String>>()];
    lines.extend(rows.iter().map(|row| columns.iter().map(|column| column.cell(row)).collect()));
    let widths: Vec<usize> = (0..columns.len())
        .map(|column| lines.iter().map(|line| line[column].chars().count()).max().unwrap_or(0))
        .collect();
    let mut text = String::new();
    for line in &lines {
        text += &format!("{:<width$}", line[0], width = widths[0]);
        for (cell, width) in line.iter().zip(&widths).skip(1) {
            let _ = write!(text, "  {cell:>width$}");
        }
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_table_has_a_line_for_each_row_and_says_what_is_absent() {
        let columns = [
            Column::new("name", "name", 1.0, 0),
            Column::new("ms", "seconds", 1e3, 1),
            Column::new("of", "share", 100.0, 0),
            Column::new("GB/s", "rate", 1.0, 0),
        ];
        let rows = [json!({ "name": "copy", "seconds": 0.25, "share": 0.5 }), json!({ "name": "a" })];
        let expected = "name     ms  of\ncopy  250.0  50\na         -   -\n";
        assert_eq!(table(&columns, &rows), expected);
        let report = json!({ "bits": 9.75, "losses": [1.0], "merge": { "inputs": 20 }, "rows": rows });
        assert_eq!(text(&report, &columns), format!("bits: 9.7500\nmerge.inputs: 20\n\n{expected}\n"));
    }

    #[test]
    fn the_peak_of_memory_is_not_below_what_is_held() {
        if let (Some(held), Some(peak)) = (memory("VmRSS"), memory("VmHWM")) {
            assert!(peak >= held && held > 1 << 20);
        }
    }
}
