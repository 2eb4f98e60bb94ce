//! The phases, which divide all time, and the table of their shares.

use serde::Serialize;
use std::fmt::Write as _;

/// A row of the table.
pub(super) struct PhaseRow {
    /// Name in JSON.
    pub name: &'static str,
    /// Name in text.
    pub label: &'static str,
    /// The names of its spans. A span without a phase of its own counts for its parent.
    spans: &'static [&'static str],
}

const fn row(name: &'static str, label: &'static str, spans: &'static [&'static str]) -> PhaseRow {
    PhaseRow { name, label, spans }
}

pub(super) const PHASES: [PhaseRow; 18] = [
    // Phases of the training thread.
    row("load", "load data", &["load"]),
    row("forward", "forward", &["forward"]),
    row("loss", "loss, both ways", &["loss"]),
    row("backward", "backward", &["backward"]),
    row("norm", "gradient norm", &["norm"]),
    row("optimiser", "optimiser", &["optimiser"]),
    // For a program that does not distinguish them.
    row("gradients", "gradients", &["gradients"]),
    row("training", "rest of training", &["training"]),
    // Of both lanes.
    row("snapshot", "snapshot", &["snapshot"]),
    // Phases of the loop.
    row("rebase", "rebase, load model", &["rebase"]),
    row("encode", "encode", &["encode"]),
    row("commit", "commit", &["commit"]),
    row("upload", "upload", &["upload"]),
    row("follow", "follow", &["follow"]),
    row("train", "wait for training", &["train", "end ahead"]),
    row("wait", "wait for a block", &["wait"]),
    row("other", "other", &["window"]),
    // The training thread outside of spans.
    row("idle", "idle", &[]),
];
pub(super) const OTHER: usize = PHASES.len() - 2;
pub(super) const IDLE: usize = PHASES.len() - 1;

/// Returns the phase of a span; `None` if it has none.
pub(super) fn of(span: &str) -> Option<usize> {
    PHASES.iter().position(|phase| phase.spans.contains(&span))
}

/// Result of a profile. The fields are stable.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Profile {
    /// The windows; none for a profile of training steps.
    pub windows: Vec<u64>,
    /// True if all of the requested windows or steps were measured.
    pub is_complete: bool,
    /// Wall time.
    pub seconds: f64,
    /// Share of the wall time in which the training thread ran.
    pub compute_share: f64,
    /// All phases. Each kind of share sums to 1.
    pub phases: Vec<PhaseTime>,
    /// Spans in the trace, and those beyond its limit.
    pub spans: u64,
    pub spans_dropped: u64,
}

/// The time of one phase.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PhaseTime {
    pub phase: &'static str,
    #[serde(skip)]
    pub label: &'static str,
    /// Wall time, and its share. While the training thread runs, its phase counts; else the loop's.
    pub seconds: f64,
    pub share: f64,
    /// Share of the wall time in which the loop, and the training thread, was in this phase.
    pub loop_share: f64,
    pub training_share: f64,
}

impl Profile {
    /// Returns the phases that took time, as lines of at most 80 columns. Without windows there is no loop, and one
    /// lane.
    pub fn table(&self) -> String {
        let percent =
            |share: f64| if share == 0.0 { "–".to_owned() } else { format!("{:.1} %", share * 100.0) };
        let mut text = String::new();
        let mut line = |label: &str, cells: [&str; 4]| {
            let [seconds, share, in_loop, training] = cells;
            let lanes = format!(" {in_loop:>12} {training:>16}");
            let lanes = if self.windows.is_empty() { "" } else { lanes.as_str() };
            writeln!(text, "{label:<18} {seconds:>12} {share:>8}{lanes}")
                .expect("writing to a string cannot fail");
        };
        line("", ["seconds", "of time", "of the loop", "of the training"]);
        for time in &self.phases {
            let shares = [time.share, time.loop_share, time.training_share];
            let is_shown = if self.windows.is_empty() { 0.0 < time.share } else { shares != [0.0; 3] };
            if is_shown {
                let [share, in_loop, training] = shares.map(percent);
                line(time.label, [&format!("{:.3}", time.seconds), &share, &in_loop, &training]);
            }
        }
        line("all", [&format!("{:.3}", self.seconds), "100.0 %", "100.0 %", "100.0 %"]);
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_span_has_one_phase_and_the_last_rows_are_what_they_are_used_as() {
        let spans: Vec<_> = PHASES.iter().flat_map(|phase| phase.spans).collect();
        let distinct: std::collections::BTreeSet<_> = spans.iter().collect();
        assert_eq!(spans.len(), distinct.len());
        assert_eq!([PHASES[OTHER].name, PHASES[IDLE].name], ["other", "idle"]);
        assert_eq!(of("window"), Some(OTHER));
        assert_eq!(of("attention"), None);
    }

    #[test]
    fn the_table_fits_a_terminal_and_leaves_out_what_took_no_time() {
        let phases = PHASES.iter().enumerate().map(|(index, phase)| PhaseTime {
            phase: phase.name,
            label: phase.label,
            seconds: 12_345.678 * f64::from(u8::from(index != 6)),
            share: if index == 6 { 0.0 } else { 0.999 },
            loop_share: 0.0,
            training_share: if index == 6 { 0.0 } else { 1.0 },
        });
        let profile = Profile {
            windows: vec![1, 2],
            is_complete: true,
            seconds: 123_456.789,
            compute_share: 0.5,
            phases: phases.collect(),
            spans: 3,
            spans_dropped: 0,
        };
        let table = profile.table();
        assert!(table.lines().all(|line| line.chars().count() <= 80), "{table}");
        assert!(!table.contains("gradients") && table.contains("12345.678"), "{table}");
        assert_eq!(table.lines().count(), 1 + PHASES.len() - 1 + 1, "{table}");
        let steps = Profile { windows: Vec::new(), ..profile };
        assert!(!steps.table().contains("of the loop"), "{}", steps.table());
    }
}
