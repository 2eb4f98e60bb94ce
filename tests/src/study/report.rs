//! The results as tables, in the format of `docs/log/`, and as JSON.

use super::{
    codec::{Coder, Encoded, Fidelity, SectionGaps},
    index_code::{self, Natural},
    questions::{MINERS, Question},
    training::Outcome,
};
use protocol::contribution::Schema;
use serde_json::{Value, json};
use std::fmt::Write as _;

/// A variant and its results, one per seed.
pub struct Row {
    pub name: String,
    pub outcomes: Vec<Outcome>,
}

/// The table of final losses. It compares the other rows with the first, seed by seed.
pub fn training_table(rows: &[Row]) -> String {
    let mut table = String::from(
        "| variant | held-out loss, mean over seeds | less ours, seed by seed | at 1/8, 1/4, 1/2, 3/4 of the windows | bits a value | bits a parameter: contribution, update | error of kept values |\n|---|---|---|---|---|---|---|\n",
    );
    for row in rows {
        let losses: Vec<Option<f64>> = row.outcomes.iter().map(|outcome| outcome.final_loss).collect();
        let loss = losses.iter().copied().sum::<Option<f64>>().map(|sum| sum / losses.len() as f64);
        let differences: Vec<String> = rows[0]
            .outcomes
            .iter()
            .zip(&losses)
            .map(|(ours, loss)| ours.final_loss.zip(*loss).map(|(ours, loss)| loss - ours))
            .map(|difference| difference.map_or("diverged".into(), |difference| format!("{difference:+.4}")))
            .collect();
        let first = &row.outcomes[0];
        let path: Vec<String> = first.losses.iter().take(4).map(|(_, loss)| format!("{loss:.3}")).collect();
        let sparse = first.contributions > 0;
        let text_if = |shown: bool, text: String| if shown { text } else { "–".into() };
        let per_parameter = format!(
            "{:.4}, {}",
            first.sent_per_parameter().unwrap_or(0.0),
            first.merged_per_parameter(MINERS).map_or("–".into(), |bits| format!("{bits:.4}")),
        );
        let _ = writeln!(
            table,
            "| {} | {} | {} | {} | {} | {} | {} |",
            row.name,
            loss.map_or("diverged".into(), |loss| format!("{loss:.4}")),
            differences.join(", "),
            path.join(", "),
            text_if(sparse, format!("{:.2}", first.sent.per_value())),
            text_if(sparse, per_parameter),
            text_if(sparse, format!("{:.4}", first.fidelity.relative_error())),
        );
    }
    table
}

pub fn training_json(rows: &[Row]) -> Value {
    let row = |row: &Row| json!({ "variant": row.name, "seeds": row.outcomes });
    rows.iter().map(row).collect()
}

/// A codec, measured on the residuals of one stage of training.
pub struct Measurement {
    pub name: String,
    /// Windows trained before the stage.
    pub after: usize,
    pub encoded: Vec<Encoded>,
    pub parameters: usize,
}

/// Measures the question's codecs on the residuals of one run.
pub fn measure(question: Question, schema: &Schema, outcome: &Outcome) -> Vec<Measurement> {
    let mut measurements = Vec::new();
    for (name, codec) in question.measured() {
        let coder = Coder::new(schema, codec);
        for (after, residuals) in &outcome.residuals {
            measurements.push(Measurement {
                name: name.clone(),
                after: *after,
                encoded: residuals.iter().map(|residual| coder.encode(residual)).collect(),
                parameters: schema.values(),
            });
        }
    }
    measurements
}

impl Measurement {
    fn fidelity(&self) -> Fidelity {
        let mut sum = Fidelity::default();
        self.encoded.iter().for_each(|encoded| sum.add(&encoded.fidelity));
        sum
    }

    fn values(&self) -> f64 {
        self.encoded.iter().map(|encoded| encoded.bits.values).sum::<u64>() as f64
    }

    fn bits_per_value(&self) -> f64 {
        self.encoded.iter().map(|encoded| encoded.bits.payload()).sum::<u64>() as f64 / self.values()
    }

    fn bits_per_parameter(&self) -> f64 {
        self.bits_per_value() * self.values() / (self.parameters * self.encoded.len()) as f64
    }

    /// Bits per value of an index code.
    fn index_bits(&self, code: impl Fn(&SectionGaps) -> f64) -> f64 {
        let sections = self.encoded.iter().flat_map(|encoded| &encoded.sections);
        sections.map(code).sum::<f64>() / self.values()
    }

    fn index_codes(&self) -> [f64; 6] {
        [
            self.index_bits(|section| index_code::rice_by_section(section) as f64),
            self.index_bits(|section| index_code::rice_by_chunk(section) as f64),
            self.index_bits(|section| index_code::golomb_by_section(section) as f64),
            self.index_bits(|section| index_code::enumerative(section) as f64),
            self.index_bits(index_code::coin_entropy),
            self.index_bits(index_code::gap_entropy),
        ]
    }
}

pub fn measurement_table(question: Question, measurements: &[Measurement]) -> String {
    let mut table = String::new();
    if question == Question::IndexCode {
        table += "| ρ | after window | Rice a section (ours) | Rice a chunk | Golomb a section | enumerative | coin tosses | entropy of the gaps |\n|---|---|---|---|---|---|---|---|\n";
        for measurement in measurements {
            let bits = measurement.index_codes().map(|bits| format!("{bits:.3}"));
            let _ =
                writeln!(table, "| {} | {} | {} |", measurement.name, measurement.after, bits.join(" | "));
        }
        table += "\n";
        table += &enumerative_work(measurements);
        return table;
    }
    table += "| | after window | share of the squared norm kept | error of kept values | distance from the whole | bits a value | bits a parameter |\n|---|---|---|---|---|---|---|\n";
    for measurement in measurements {
        let fidelity = measurement.fidelity();
        let _ = writeln!(
            table,
            "| {} | {} | {:.4} | {:.4} | {:.4} | {:.3} | {:.4} |",
            measurement.name,
            measurement.after,
            fidelity.captured(),
            fidelity.relative_error(),
            fidelity.distance(),
            measurement.bits_per_value(),
            measurement.bits_per_parameter(),
        );
    }
    table
}

/// A table of the work of decoding the longest chunk from its enumerative code, by density.
fn enumerative_work(measurements: &[Measurement]) -> String {
    let mut table = String::from(
        "| ρ | values of a chunk | its bits | a value: multiplications | 128-bit divisions | comparisons and subtractions | a value by Rice |\n|---|---|---|---|---|---|---|\n",
    );
    let mut last = String::new();
    for measurement in measurements {
        if measurement.name == last {
            continue;
        }
        last.clone_from(&measurement.name);
        let sections = measurement.encoded.iter().flat_map(|encoded| &encoded.sections);
        let longest = sections.flat_map(|section| &section.chunks).max_by_key(|(len, _)| *len);
        let Some((len, gaps)) = longest else { continue };
        let mut next = 0;
        let members: Vec<u32> = gaps
            .iter()
            .map(|gap| {
                let member = next + gap;
                next = member + 1;
                member
            })
            .collect();
        let rank: Natural = index_code::rank(*len as u64, &members);
        let (found, work) = index_code::unrank(*len as u64, members.len() as u64, &rank);
        assert_eq!(found, members, "the rank decodes to the same members");
        let each = |count: u64| count as f64 / members.len() as f64;
        let _ = writeln!(
            table,
            "| {} | {len} | {:.1} | {:.0} | {:.0} | {:.0} | one count of ones, one shift, one mask, one addition |",
            measurement.name,
            index_code::log2_choose(*len as u64, members.len() as u64),
            each(work.multiplications),
            each(work.divisions),
            each(work.subtractions),
        );
    }
    table
}

pub fn measurement_json(question: Question, measurements: &[Measurement]) -> Value {
    let row = |measurement: &Measurement| {
        let fidelity = measurement.fidelity();
        let mut row = json!({
            "codec": measurement.name,
            "after_window": measurement.after,
            "captured": fidelity.captured(),
            "relative_error": fidelity.relative_error(),
            "distance": fidelity.distance(),
            "bits_per_value": measurement.bits_per_value(),
            "bits_per_parameter": measurement.bits_per_parameter(),
        });
        if question == Question::IndexCode {
            let [rice, by_chunk, golomb, enumerative, coins, gaps] = measurement.index_codes();
            row["index_bits_per_value"] = json!({
                "rice_by_section": rice,
                "rice_by_chunk": by_chunk,
                "golomb_by_section": golomb,
                "enumerative": enumerative,
                "coin_entropy": coins,
                "gap_entropy": gaps,
            });
        }
        row
    };
    measurements.iter().map(row).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::study::{
        codec::Codec,
        training::{Scheme, Task, tests::task},
    };
    use protocol::params::Density;

    #[track_caller]
    fn check(table: &str, rows: usize) {
        for table in table.trim_end().split("\n\n") {
            let columns: Vec<usize> = table.lines().map(|line| line.matches('|').count()).collect();
            assert!(columns.iter().all(|count| *count == columns[0]), "{table}");
            assert!(columns.len() >= 3, "{table}");
        }
        assert_eq!(table.split("\n\n").next().map(|table| table.lines().count() - 2), Some(rows), "{table}");
        assert!(!table.contains("NaN"), "{table}");
    }

    #[test]
    fn every_variant_and_every_measured_codec_has_a_row() {
        let task = Task { windows: 4, ..task() };
        let ours = Codec::ours(Density(512));
        let sparse = Scheme::Sparse { contribution: ours, merge: Some(ours) };
        let row = |name: &str, scheme| {
            let outcomes = [1, 2].map(|_| task.run(scheme, &task.theta).unwrap()).to_vec();
            Row { name: name.into(), outcomes }
        };
        let rows = [row("ours", sparse), row("dense", Scheme::Dense { rate: 1.0 })];
        let table = training_table(&rows);
        check(&table, 2);
        assert!(table.contains("+0.0000, +0.0000"), "{table}");
        assert_eq!(training_json(&rows)[1]["seeds"].as_array().map(Vec::len), Some(2));

        let schema = task.config.schema().unwrap();
        for question in Question::EACH {
            let measurements = measure(question, &schema, &rows[0].outcomes[0]);
            // Residuals are recorded after the first window, which is also a quarter of the four, and after the last.
            assert_eq!(measurements.len(), 2 * question.measured().len());
            if !measurements.is_empty() {
                check(&measurement_table(question, &measurements), measurements.len());
            }
            let json = measurement_json(question, &measurements);
            assert_eq!(json.as_array().map(Vec::len), Some(measurements.len()));
        }
    }
}
