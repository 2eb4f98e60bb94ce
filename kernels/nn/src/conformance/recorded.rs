//! Recorded losses, gradients and steps of small models by Burn's engine. The CPU engine is compared with them where
//! Burn is not compiled.

use super::{GRADIENT_ERROR_MAX, GradientCase, Run, Steps, Suite, recipe};
use model::{Optimiser, Recipe};
use serde::{Deserialize, Serialize};

const FILE: &str = include_str!("recorded.json");
const OPTIMISERS: [Optimiser; 2] = [Optimiser::AdamW, Optimiser::Muon];
/// Number of recorded entries of a gradient, evenly spaced.
const ENTRIES: usize = 3;
/// Number of sums of all entries of a gradient with pseudo-random signs. A wrong entry changes them.
const SUMS: usize = 2;

/// Results of an engine, for comparisons with another.
#[derive(Serialize, Deserialize)]
pub struct Recorded {
    gradients: Vec<LossAndGradients>,
    runs: Vec<Steps>,
}

#[derive(Serialize, Deserialize)]
struct LossAndGradients {
    loss: f64,
    tensors: Vec<Gradient>,
}

/// Summary of one tensor's gradient.
#[derive(Serialize, Deserialize)]
struct Gradient {
    /// The largest absolute value.
    largest: f32,
    entries: [f32; ENTRIES],
    sums: [f64; SUMS],
}

impl Gradient {
    fn of(values: &[f32]) -> Gradient {
        let sum = |seed: usize| {
            let signed = |(index, value): (usize, &f32)| {
                let negative = sign_bit(index + seed * 0x9e37_79b9);
                if negative { -f64::from(*value) } else { f64::from(*value) }
            };
            values.iter().enumerate().map(signed).sum()
        };
        Gradient {
            largest: values.iter().fold(0.0, |max, value| max.max(value.abs())),
            entries: std::array::from_fn(|index| values[index * (values.len() - 1) / (ENTRIES - 1)]),
            sums: std::array::from_fn(sum),
        }
    }
}

/// Returns a pseudo-random bit for `index`.
fn sign_bit(index: usize) -> bool {
    let mixed = (index as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    ((mixed ^ (mixed >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9) >> 63) == 1
}

impl Recorded {
    /// Returns the results of Burn's engine, from the repository.
    ///
    /// # Panics
    /// If the file is damaged.
    pub fn of_burn() -> Recorded {
        serde_json::from_str(FILE).expect("recorded.json has this format")
    }

    /// Returns the results of an engine.
    ///
    /// # Panics
    /// If the engine fails.
    pub fn of(suite: &Suite) -> Recorded {
        let gradients = GradientCase::all().into_iter().map(|case| {
            let (loss, gradients) = case.loss_and_gradients(suite);
            LossAndGradients { loss, tensors: gradients.iter().map(|values| Gradient::of(values)).collect() }
        });
        Recorded { gradients: gradients.collect(), runs: runs().map(|run| run.train(suite).1).collect() }
    }

    /// Returns the contents of the file: one line for each model and run.
    pub fn to_json(&self) -> String {
        fn lines<T: Serialize>(items: &[T]) -> String {
            let lines: Vec<String> =
                items.iter().map(|item| serde_json::to_string(item).expect("numbers are JSON")).collect();
            lines.join(",\n")
        }
        let Recorded { gradients, runs } = self;
        format!("{{\"gradients\":[\n{}\n],\"runs\":[\n{}\n]}}\n", lines(gradients), lines(runs))
    }

    /// Checks that an engine has these results, within the bounds for any two engines.
    ///
    /// # Panics
    /// If the results differ.
    pub fn check(&self, suite: &Suite) {
        let found = Recorded::of(suite);
        let cases = GradientCase::all();
        assert_eq!(
            (cases.len(), OPTIMISERS.len()),
            (self.gradients.len(), self.runs.len()),
            "the file is of these cases"
        );
        for ((case, ours), other) in cases.iter().zip(&found.gradients).zip(&self.gradients) {
            case.check_loss(ours.loss, other.loss);
            let largest_of_all = other.tensors.iter().fold(0.0f32, |max, tensor| max.max(tensor.largest));
            let shapes = case.config.shapes();
            assert_eq!((ours.tensors.len(), other.tensors.len()), (shapes.len(), shapes.len()));
            for (((name, [rows, columns]), ours), other) in
                shapes.iter().zip(&ours.tensors).zip(&other.tensors)
            {
                // The same bound as in `gradient_error`.
                let bound = GRADIENT_ERROR_MAX * f64::from(other.largest + 1e-2 * largest_of_all);
                let single =
                    std::iter::zip(&ours.entries, &other.entries).chain([(&ours.largest, &other.largest)]);
                for (one, other) in single {
                    assert!(
                        f64::from((one - other).abs()) < bound,
                        "{:?}: {name} has {one}, not {other}",
                        case.config
                    );
                }
                // Rounding errors of independent signs add up to the square root of their number.
                let bound = bound * ((rows * columns) as f64).sqrt();
                for (one, other) in std::iter::zip(ours.sums, other.sums) {
                    assert!(
                        (one - other).abs() < bound,
                        "{:?}: {name} sums to {one}, not {other}",
                        case.config
                    );
                }
            }
        }
        for ((run, steps), others) in runs().zip(&found.runs).zip(&self.runs) {
            run.check(steps, others);
        }
    }
}

fn runs() -> impl Iterator<Item = Run> {
    OPTIMISERS.into_iter().map(|optimiser| Run::new(&Recipe { optimiser, ..recipe() }))
}
