//! Finished runs as JSON lines, and their tables in the format of `docs/log/`.

use super::{
    plan::Question,
    plot::{Line, Rates},
    train::{Outcome, Run},
};
use serde_json::{Value, json};
use std::{
    cmp::Ordering,
    collections::BTreeMap,
    fmt::Write as _,
    fs::{self, OpenOptions},
    io::{self, Write as _},
    path::{Path, PathBuf},
};

#[derive(Debug, thiserror::Error)]
pub enum ResultsError {
    #[error("cannot read {}", path.display())]
    Read { path: PathBuf, source: io::Error },
    #[error("line {line} of {} is not a result of this study; move or repair the file", path.display())]
    Line { path: PathBuf, line: usize, source: serde_json::Error },
    #[error("cannot write to {}", path.display())]
    Write { path: PathBuf, source: io::Error },
}

/// Reads all results of a file; none if it does not exist. Ignores a last line without a newline, from an interrupted
/// write.
///
/// # Errors
/// If the file cannot be read, or a complete line is not a result.
pub fn read(path: &Path) -> Result<Vec<Outcome>, ResultsError> {
    let text = match fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(source) => return Err(ResultsError::Read { path: path.into(), source }),
    };
    let complete = text.rfind('\n').map_or("", |end| &text[..=end]);
    let line = |(at, line): (usize, &str)| {
        serde_json::from_str(line).map_err(|source| ResultsError::Line {
            path: path.into(),
            line: at + 1,
            source,
        })
    };
    complete.lines().enumerate().map(line).collect()
}

/// Appends a result as one line, in a single write, so that several processes can share a file.
///
/// # Errors
/// If the file cannot be written.
pub fn append(path: &Path, outcome: &Outcome) -> Result<(), ResultsError> {
    let failed = |source| ResultsError::Write { path: path.into(), source };
    let mut line = serde_json::to_string(outcome).map_err(|error| failed(error.into()))?;
    line.push('\n');
    let mut file = OpenOptions::new().read(true).append(true).create(true).open(path).map_err(failed)?;
    file.write_all(line.as_bytes()).and_then(|()| file.sync_data()).map_err(failed)
}

/// Returns the result of `run`.
pub fn find<'a>(outcomes: &'a [Outcome], run: &Run) -> Option<&'a Outcome> {
    outcomes.iter().find(|outcome| outcome.run == *run)
}

/// One variant and its results, one per finished seed.
#[derive(Clone)]
pub struct Row<'a> {
    pub name: String,
    pub outcomes: Vec<&'a Outcome>,
}

impl Row<'_> {
    /// Returns the mean loss over the seeds; `None` if one diverged or no seed is finished.
    pub fn loss(&self) -> Option<f64> {
        let sum = self.outcomes.iter().map(|outcome| outcome.final_loss).sum::<Option<f64>>()?;
        (!self.outcomes.is_empty()).then(|| sum / self.outcomes.len() as f64)
    }

    /// Returns the tokens after each measured window, and the mean loss over the seeds.
    pub fn path(&self) -> Vec<(f64, f64)> {
        let Some(first) = self.outcomes.first() else { return Vec::new() };
        let count = self.outcomes.len() as f64;
        let points = first.losses.iter().enumerate().map_while(|(at, (window, _))| {
            let sum: Option<f64> = self.outcomes.iter().map(|outcome| Some(outcome.losses.get(at)?.1)).sum();
            Some(((*window as u64 * first.run.window_tokens()) as f64, sum? / count))
        });
        points.collect()
    }

    /// Returns the name without its learning rate, if it ends with one.
    fn scheme(&self) -> &str {
        self.name.rsplit_once(", ").map_or(&self.name, |(scheme, _)| scheme)
    }

    fn is_better_than(&self, other: &Row<'_>) -> bool {
        let loss = |row: &Row<'_>| row.loss().unwrap_or(f64::INFINITY);
        match self.outcomes.len().cmp(&other.outcomes.len()) {
            Ordering::Greater => true,
            Ordering::Less => false,
            Ordering::Equal => loss(self) < loss(other),
        }
    }
}

/// Returns the question's variants with their finished runs.
pub fn rows<'a>(question: Question, seeds: &[u64], outcomes: &'a [Outcome]) -> Vec<Row<'a>> {
    let mut rows: Vec<Row<'a>> = Vec::new();
    for &seed in seeds {
        for (at, variant) in question.variants(seed).into_iter().enumerate() {
            if rows.len() <= at {
                rows.push(Row { name: variant.name, outcomes: Vec::new() });
            }
            rows[at].outcomes.extend(find(outcomes, &variant.run));
        }
    }
    rows
}

/// Returns the best row of each scheme, for rows that differ in learning rate: among the rows with most finished
/// seeds, the one with the lowest loss.
pub fn best<'a>(rows: &[Row<'a>]) -> Vec<Row<'a>> {
    let mut best: Vec<Row<'a>> = Vec::new();
    for row in rows.iter().filter(|row| !row.outcomes.is_empty()) {
        match best.iter_mut().find(|other| other.scheme() == row.scheme()) {
            None => best.push(row.clone()),
            Some(other) if row.is_better_than(other) => *other = row.clone(),
            Some(_) => {}
        }
    }
    best
}

/// Returns one line per row.
pub fn lines(rows: &[Row<'_>]) -> Vec<Line> {
    rows.iter().map(|row| Line { name: row.name.clone(), points: row.path() }).collect()
}

/// Learning rates and final losses, by seed.
type BySeed = BTreeMap<u64, Vec<(f64, f64)>>;

/// Returns each scheme's rates and final losses, sorted by rate, from the same rows as [`best`]. Omits diverged runs.
pub fn rates(rows: &[Row<'_>]) -> Vec<Rates> {
    let mut schemes: BTreeMap<&str, BySeed> = BTreeMap::new();
    for row in rows {
        let seeds = schemes.entry(row.scheme()).or_default();
        for outcome in &row.outcomes {
            let point = outcome.final_loss.map(|loss| (outcome.run.learning_rate, loss));
            seeds.entry(outcome.run.seed).or_default().extend(point);
        }
    }
    let sorted = |mut points: Vec<(f64, f64)>| {
        points.sort_by(|one, other| one.0.total_cmp(&other.0));
        points
    };
    let rates_of = |(name, seeds): (&str, BySeed)| Rates {
        name: name.to_owned(),
        seeds: seeds.into_values().map(sorted).collect(),
    };
    schemes.into_iter().map(rates_of).collect()
}

/// Renders a table of the rows; it compares the others with the first, seed by seed.
pub fn table(rows: &[Row<'_>]) -> String {
    let mut table = String::from(
        "| | held-out loss | less the first, seed by seed | of the first | bits a parameter and window: sent, fetched | union |\n|---|---|---|---|---|---|\n",
    );
    for row in rows.iter().filter(|row| !row.outcomes.is_empty()) {
        let first_loss = |seed| {
            let first = rows[0].outcomes.iter().find(|first| first.run.seed == seed)?;
            Some(first.final_loss)
        };
        let (mut differences, mut shares) = (Vec::new(), Vec::new());
        for outcome in &row.outcomes {
            match (first_loss(outcome.run.seed), outcome.final_loss) {
                (Some(Some(first)), Some(loss)) => {
                    differences.push(format!("{:+.4}", loss - first));
                    shares.push(loss / first - 1.0);
                }
                (None, Some(_)) => differences.push("?".into()),
                _ => differences.push("diverged".into()),
            }
        }
        let mean = |shares: &[f64]| shares.iter().sum::<f64>() / shares.len() as f64;
        let is_first = std::ptr::eq(row, &rows[0]);
        let outcome = row.outcomes[0];
        let exchanges = outcome.traffic.sent > 0;
        let text_if = |shown: bool, text: String| if shown { text } else { "–".into() };
        let _ = writeln!(
            table,
            "| {} | {} | {} | {} | {} | {} |",
            row.name,
            row.loss().map_or("diverged".into(), |loss| format!("{loss:.4}")),
            text_if(!is_first, differences.join(", ")),
            text_if(!is_first && !shares.is_empty(), format!("{:+.2} %", 100.0 * mean(&shares))),
            text_if(
                exchanges,
                format!("{:.3}, {:.3}", outcome.sent_per_parameter(), outcome.fetched_per_parameter())
            ),
            text_if(exchanges, format!("{:.3}", outcome.union())),
        );
    }
    table
}

pub fn json(question: Question, rows: &[Row<'_>]) -> Value {
    let row = |row: &Row<'_>| json!({ "variant": row.name, "loss": row.loss(), "seeds": row.outcomes });
    json!({ "question": question.title(), "variants": rows.iter().map(row).collect::<Vec<_>>() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::learning::exchange::Traffic;

    fn outcome(run: Run, loss: Option<f64>) -> Outcome {
        let losses = vec![(80, 3.0), (160, loss.unwrap_or(2.0))];
        Outcome { run, parameters: 100, losses, final_loss: loss, traffic: Traffic::default(), seconds: 1.5 }
    }

    fn file(name: &str) -> PathBuf {
        let path = std::env::temp_dir().join(format!("learning-study-{name}-{}", std::process::id()));
        let _ = fs::remove_file(&path);
        path
    }

    #[test]
    fn results_are_read_back_and_an_incomplete_line_is_ignored() {
        let path = file("torn");
        assert_eq!(read(&path).unwrap(), []);
        let runs: Vec<Run> = Question::Schemes.variants(1).into_iter().map(|variant| variant.run).collect();
        append(&path, &outcome(runs[0].clone(), Some(2.25))).unwrap();
        append(&path, &outcome(runs[1].clone(), None)).unwrap();
        let all = read(&path).unwrap();
        assert_eq!(find(&all, &runs[1]).unwrap().final_loss, None);
        assert!(find(&all, &runs[2]).is_none());

        let text = fs::read_to_string(&path).unwrap();
        fs::write(&path, &text[..text.len() - 9]).unwrap();
        assert_eq!(read(&path).unwrap().len(), 1);
        fs::write(&path, format!("{{}}\n{text}")).unwrap();
        let refused = read(&path).unwrap_err();
        assert!(matches!(refused, ResultsError::Line { line: 1, .. }), "{refused}");
        fs::remove_file(&path).unwrap();
    }

    #[test]
    fn a_table_compares_rows_with_the_first_seed_by_seed() {
        let mut outcomes = Vec::new();
        for (seed, dense, ours) in [(1, 2.0, Some(2.02)), (2, 2.1, Some(2.1)), (3, 2.2, None)] {
            let variants = Question::Schemes.variants(seed);
            outcomes.push(outcome(variants[0].run.clone(), Some(dense)));
            outcomes.push(outcome(variants[1].run.clone(), ours));
        }
        let table_of = |seeds: &[u64]| table(&rows(Question::Schemes, seeds, &outcomes));
        assert!(
            table_of(&[1, 2]).contains("| ours | 2.0600 | +0.0200, +0.0000 | +0.50 % |"),
            "{}",
            table_of(&[1, 2])
        );
        assert!(table_of(&[1, 2, 3]).contains("| ours | diverged | +0.0200, +0.0000, diverged |"));
        let rows = rows(Question::Schemes, &[1, 2], &outcomes);
        assert_eq!(rows[0].path(), [(80.0 * 7680.0, 3.0), (160.0 * 7680.0, 2.05)]);
        assert!(rows[2].outcomes.is_empty());
    }

    #[test]
    fn the_best_rate_has_the_most_seeds_and_then_the_lowest_mean_loss() {
        let mut outcomes = Vec::new();
        for (seed, name, loss) in [
            (1, "dense mean, 0.004", Some(2.3)),
            (1, "dense mean, 0.016", Some(2.1)),
            (1, "dense mean, 0.008", Some(2.0)),
            (2, "dense mean, 0.016", Some(2.2)),
            (2, "dense mean, 0.008", Some(2.4)),
            (1, "DiLoCo, 0.008", None),
            (1, "DiLoCo, 0.004", Some(2.5)),
        ] {
            let variants = Question::LongLearningRate.variants(seed);
            let run = variants.into_iter().find(|variant| variant.name == name).unwrap().run;
            outcomes.push(outcome(run, loss));
        }
        let rows = rows(Question::LongLearningRate, &[1, 2], &outcomes);
        let best: Vec<String> = best(&rows).into_iter().map(|row| row.name).collect();
        assert_eq!(best, ["dense mean, 0.016", "DiLoCo, 0.004"]);

        let rates = rates(&rows);
        let seeds = |name: &str| rates.iter().find(|rates| rates.name == name).unwrap().seeds.clone();
        let dense = [vec![(0.004, 2.3), (0.008, 2.0), (0.016, 2.1)], vec![(0.008, 2.4), (0.016, 2.2)]];
        assert_eq!(seeds("dense mean"), dense);
        assert_eq!(seeds("DiLoCo"), [vec![(0.004, 2.5)]]);
    }
}
