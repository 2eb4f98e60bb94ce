//! Load on the real parts: the chain, the store, the network of peers and a validator.
//!
//! Each scenario returns figures and the broken promises. A promise concerns deadlines in blocks, a declared pace,
//! growth or loss, never the machine's speed, so a busy machine breaks none.

pub mod chain;
pub mod peers;
pub mod soak;
pub mod store;
pub mod validator;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use serde::Serialize;
use std::{fmt, fs, path::Path};

/// Number of bytes of a mebibyte.
pub(crate) const MIB: f64 = (1u64 << 20) as f64;

/// Measurements of a scenario, and its broken promises.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    pub scenario: &'static str,
    pub figures: Vec<Figure>,
    /// Broken promises; empty if all hold.
    pub broken: Vec<String>,
}

/// One number of a scenario.
#[derive(Clone, Debug, Serialize)]
pub struct Figure {
    pub name: String,
    pub value: f64,
    pub unit: &'static str,
}

impl Report {
    pub(crate) fn new(scenario: &'static str) -> Report {
        Report { scenario, figures: Vec::new(), broken: Vec::new() }
    }

    pub(crate) fn figure(&mut self, name: impl Into<String>, value: f64, unit: &'static str) {
        self.figures.push(Figure { name: name.into(), value, unit });
    }

    /// Records `what` as broken unless `holds`.
    pub(crate) fn promise(&mut self, holds: bool, what: impl FnOnce() -> String) {
        if !holds {
            self.broken.push(what());
        }
    }

    /// Returns the value of a figure, if it was measured.
    pub fn value(&self, name: &str) -> Option<f64> {
        self.figures.iter().find(|figure| figure.name == name).map(|figure| figure.value)
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.scenario)?;
        for Figure { name, value, unit } in &self.figures {
            writeln!(f, "  {name:<52} {value:>12.3} {unit}")?;
        }
        self.broken.iter().try_for_each(|broken| writeln!(f, "  BROKEN: {broken}"))
    }
}

/// Returns the resident memory of this process in bytes.
///
/// # Errors
/// Without `/proc`.
pub(crate) fn resident_bytes() -> anyhow::Result<u64> {
    let status = fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib: Option<u64> = line.and_then(|line| line.trim().trim_end_matches(" kB").parse().ok());
    Ok(kib.ok_or_else(|| anyhow::anyhow!("/proc/self/status has no VmRSS"))? << 10)
}

/// Returns the number of open files and sockets of this process.
pub(crate) fn open_files() -> anyhow::Result<usize> {
    Ok(fs::read_dir("/proc/self/fd")?.count())
}

/// Returns the processor time of this process in seconds, all threads together.
pub(crate) fn processor_seconds() -> anyhow::Result<f64> {
    let stat = fs::read_to_string("/proc/self/stat")?;
    // The name of the program may contain spaces, and ends with a bracket.
    let fields = stat.rsplit_once(')').map_or("", |(_, after)| after);
    let ticks =
        |field: usize| fields.split_whitespace().nth(field).and_then(|ticks| ticks.parse::<f64>().ok());
    let both = ticks(11).zip(ticks(12));
    let (user, system) = both.ok_or_else(|| anyhow::anyhow!("/proc/self/stat has no times"))?;
    // The unit of these fields is 10 ms on every Linux architecture.
    Ok((user + system) / 100.0)
}

/// Returns the number of files below a directory, and their bytes.
pub(crate) fn files_below(directory: &Path) -> (usize, u64) {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let counted = entries.map(|entry| match entry.metadata() {
        Ok(about) if about.is_dir() => files_below(&entry.path()),
        Ok(about) => (1, about.len()),
        Err(_) => (0, 0),
    });
    counted.fold((0, 0), |(files, bytes), (more, of_them)| (files + more, bytes + of_them))
}

/// Raises this process's limit of open files to the system's maximum.
///
/// # Errors
/// If that is below `wanted`.
pub(crate) fn allow_files(wanted: u64) -> anyhow::Result<()> {
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit })?;
    if let Some(maximum) = limit.maximum {
        anyhow::ensure!(
            wanted <= maximum,
            "{wanted} open files are needed, and {maximum} allowed: raise ulimit -n"
        );
    }
    Ok(())
}

/// Returns the slope of the least-squares line through equidistant values, per step.
pub(crate) fn slope(values: &[f64]) -> f64 {
    let count = values.len() as f64;
    let (mean_at, mean) = ((count - 1.0) / 2.0, values.iter().sum::<f64>() / count);
    let about = |at: usize| at as f64 - mean_at;
    let rise: f64 = values.iter().enumerate().map(|(at, value)| about(at) * (value - mean)).sum();
    let run: f64 = (0..values.len()).map(|at| about(at) * about(at)).sum();
    if run == 0.0 { 0.0 } else { rise / run }
}

/// Returns the value below which `share` of the sorted values lie.
pub(crate) fn quantile(sorted: &[f64], share: f64) -> f64 {
    let at = (sorted.len() as f64 * share).ceil() as usize;
    sorted.get(at.saturating_sub(1)).copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slope_and_quantile_are_those_of_a_textbook() {
        assert_eq!(slope(&[1.0, 3.0, 5.0, 7.0]), 2.0);
        assert_eq!((slope(&[4.0]), slope(&[4.0, 4.0, 4.0])), (0.0, 0.0));
        let sorted: Vec<f64> = (1..=100).map(f64::from).collect();
        assert_eq!((quantile(&sorted, 0.5), quantile(&sorted, 0.99), quantile(&[], 0.5)), (50.0, 99.0, 0.0));
    }

    #[test]
    fn a_process_has_memory_files_and_time() {
        assert!(resident_bytes().unwrap() > 1 << 20 && open_files().unwrap() > 2);
        assert!(processor_seconds().unwrap() >= 0.0);
    }

    #[test]
    fn only_what_does_not_hold_is_broken() {
        let mut report = Report::new("none");
        report.promise(true, || "kept".into());
        report.promise(false, || "a promise".into());
        assert_eq!(report.broken, ["a promise"]);
    }
}
