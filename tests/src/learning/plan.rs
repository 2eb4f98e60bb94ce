//! The questions of the study and their runs. Each varies one factor of a base run: eight workers, fifteen inner
//! steps.

use super::{
    exchange::{Divisor, Outer, Scheme, StandIn, Start},
    train::Run,
};
use clap::ValueEnum;
use model::{Optimiser, RateSchedule};

/// A question of the study.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub enum Question {
    /// Ours, the dense mean, DiLoCo, SparseLoCo as published, one worker: density 1/8, 160 windows.
    Schemes,
    /// One, four, eight, sixteen workers.
    Workers,
    /// Five, fifteen, thirty inner steps per window.
    Steps,
    /// Densities 1/8, 1/32, 1/64 in a run that is short for the sparse ones.
    Density,
    /// The merge at half, three quarters and all of the expected union's density, and dense.
    MergeDensity,
    /// The rate of the outer step.
    OuterRate,
    /// The decay of the residuals.
    Feedback,
    /// AdamW or Muon as the inner optimiser.
    Inner,
    /// Plain SGD or Nesterov momentum as the outer optimiser.
    Outer,
    /// Learning rate schedules: cosine, constant, WSD.
    Schedule,
    /// Density 1/64 for 1,280 windows, in the smallest model.
    Long,
    /// Updates that arrive a step, a third of a window, or a whole window, late, and workers that wait a third of the
    /// time.
    Late,
    /// Step-ahead error feedback at several learning and outer rates, and DiLoCo at several of its own: 640 windows.
    Ahead,
    /// Step-ahead error feedback, alone and with updates that arrive late, and DiLoCo, each at its best rates.
    AheadPaired,
    /// Step-ahead error feedback and DiLoCo with ten million parameters, density 1/8, 64 windows.
    Large,
    /// Learning rates of the base run.
    LearningRate,
    /// Learning rates of the long, sparse run.
    LongLearningRate,
}

/// A row of a table: its name and its run.
pub struct Variant {
    pub name: String,
    pub run: Run,
}

const PLAIN: Outer = Outer { rate: 1.0, momentum: 0.0 };
const LOWER: Outer = Outer { rate: 0.7, momentum: 0.0 };
/// DiLoCo's published outer optimiser.
const NESTEROV: Outer = Outer { rate: 0.7, momentum: 0.9 };
/// Nesterov momentum with the total step of plain SGD, `α / (1 − μ) = 1`, and a short memory.
const SHORT_NESTEROV: Outer = Outer { rate: 0.5, momentum: 0.5 };
/// DiLoCo's momentum with a total step `α / (1 − μ)` of 1, for means over hits.
const SLOW_NESTEROV: Outer = Outer { rate: 0.1, momentum: 0.9 };
/// DiLoCo's momentum at half its rate.
const HALF_NESTEROV: Outer = Outer { rate: 0.35, momentum: 0.9 };
/// DiLoCo's momentum with a total step of 2.
const TWICE_SLOW_NESTEROV: Outer = Outer { rate: 0.2, momentum: 0.9 };
const DECAY: f32 = 0.95;
const EIGHTH: u16 = 512;

impl Question {
    /// The questions of a study by default, the most informative first.
    pub const EACH: [Question; 14] = [
        Question::Schemes,
        Question::OuterRate,
        Question::Workers,
        Question::Steps,
        Question::Feedback,
        Question::MergeDensity,
        Question::Inner,
        Question::Schedule,
        Question::Outer,
        Question::Density,
        Question::Long,
        Question::Late,
        Question::Ahead,
        Question::AheadPaired,
    ];

    pub fn title(self) -> &'static str {
        match self {
            Question::Schemes => "Which scheme?",
            Question::Workers => "How many workers?",
            Question::Steps => "How many inner steps?",
            Question::Density => "Which density, in a short run?",
            Question::MergeDensity => "Which density of the merge?",
            Question::OuterRate => "Which outer rate?",
            Question::Feedback => "Which decay of the error feedback?",
            Question::Inner => "Which inner optimiser?",
            Question::Outer => "Which outer optimiser?",
            Question::Schedule => "Which schedule?",
            Question::Long => "Which scheme, in a long and sparse run?",
            Question::Late => "May an update arrive late?",
            Question::Ahead => "Which step ahead, at which rates?",
            Question::AheadPaired => "Which step ahead, at its best rates?",
            Question::Large => "Which scheme, in a larger model?",
            Question::LearningRate => "Which learning rate?",
            Question::LongLearningRate => "Which learning rate, in a long and sparse run?",
        }
    }

    /// Returns the file name of the question's plot, without its extension.
    pub fn slug(self) -> String {
        self.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
    }

    /// Returns whether the variants are schemes at several learning rates, named `SCHEME, RATE`.
    pub fn compares_rates(self) -> bool {
        matches!(
            self,
            Question::LearningRate
                | Question::LongLearningRate
                | Question::Ahead
                | Question::AheadPaired
                | Question::Large
        )
    }

    /// Returns the variants; tables compare the others with the first.
    pub fn variants(self, seed: u64) -> Vec<Variant> {
        let base = base(seed);
        let with =
            |name: &str, scheme: Scheme| Variant { name: name.into(), run: Run { scheme, ..base.clone() } };
        let outer = |rate: f32, momentum: f32| Outer { rate, momentum };
        match self {
            Question::Schemes => vec![
                with("dense mean", Scheme::Dense { outer: PLAIN }),
                with("ours", ours(EIGHTH, 8)),
                with("published, mean over hits", published(EIGHTH, Divisor::Hits)),
                with("published, mean over all", published(EIGHTH, Divisor::All)),
                Variant { name: "one worker, the whole batch".into(), run: one_worker(&base) },
                with("DiLoCo (Nesterov 0.9, 0.7)", Scheme::Dense { outer: NESTEROV }),
                Variant {
                    name: "one worker, eight times the steps".into(),
                    run: Run { steps: 8 * base.steps, batch: base.batch / 8, ..one_worker(&base) },
                },
            ],
            Question::Workers => [8, 1, 4, 16]
                .into_iter()
                .flat_map(|workers| {
                    let run = |name: &str, scheme| Variant {
                        name: format!("{name}, R = {workers}"),
                        run: Run { workers, scheme, ..base.clone() },
                    };
                    [run("dense mean", Scheme::Dense { outer: PLAIN }), run("ours", ours(EIGHTH, workers))]
                })
                .collect(),
            Question::Steps => [15, 5, 30]
                .into_iter()
                .flat_map(|steps| {
                    let windows = base.windows * base.steps / steps;
                    let run = |name: &str, scheme| Variant {
                        name: format!("{name}, H = {steps}"),
                        run: Run { steps, windows, scheme, ..base.clone() },
                    };
                    [run("dense mean", Scheme::Dense { outer: PLAIN }), run("ours", ours(EIGHTH, 8))]
                })
                .collect(),
            Question::Density => {
                let mut variants = vec![with("dense mean", Scheme::Dense { outer: PLAIN })];
                for (name, density) in [("1/8", EIGHTH), ("1/32", 128), ("1/64", 64)] {
                    variants.push(with(&format!("ours, {name}"), ours(density, 8)));
                }
                variants.push(with("published, mean over hits, 1/32", published(128, Divisor::Hits)));
                variants.push(with("published, mean over hits, 1/64", published(64, Divisor::Hits)));
                variants
            }
            Question::MergeDensity => {
                let union = union(EIGHTH, 8);
                [
                    ("ours, the union's density", union),
                    ("half", union / 2),
                    ("three quarters", union * 3 / 4),
                    ("all there is", 4096),
                ]
                .into_iter()
                .map(|(name, merge_density)| with(name, ours_with(EIGHTH, merge_density, DECAY, PLAIN)))
                .collect()
            }
            Question::OuterRate => {
                let mut variants = vec![with("ours, α = 1", ours(EIGHTH, 8))];
                for rate in [0.5, 0.7, 1.4] {
                    let scheme = ours_with(EIGHTH, union(EIGHTH, 8), DECAY, outer(rate, 0.0));
                    variants.push(with(&format!("ours, α = {rate}"), scheme));
                }
                for rate in [1.0, 0.7, 1.4, 2.0] {
                    let scheme = Scheme::Dense { outer: outer(rate, 0.0) };
                    variants.push(with(&format!("dense mean, α = {rate}"), scheme));
                }
                variants.push(with("published, mean over hits, α = 1", published(EIGHTH, Divisor::Hits)));
                let lower =
                    Scheme::Published { density: EIGHTH, decay: DECAY, over: Divisor::Hits, outer: LOWER };
                variants.push(with("published, mean over hits, α = 0.7", lower));
                variants
            }
            Question::Feedback => [DECAY, 0.0, 0.5, 0.8, 0.9, 0.99]
                .into_iter()
                .map(|decay| {
                    with(&format!("ours, {decay}"), ours_with(EIGHTH, union(EIGHTH, 8), decay, PLAIN))
                })
                .collect(),
            Question::Inner => [Optimiser::AdamW, Optimiser::Muon]
                .into_iter()
                .flat_map(|optimiser| {
                    let run = |name: &str, run: Run| Variant {
                        name: format!("{name}, {optimiser:?}"),
                        run: Run { optimiser, ..run },
                    };
                    [
                        run("dense mean", Run { scheme: Scheme::Dense { outer: PLAIN }, ..base.clone() }),
                        run("ours", base.clone()),
                        run("one worker", one_worker(&base)),
                    ]
                })
                .collect(),
            Question::Outer => {
                let mut variants: Vec<Variant> =
                    [("plain", PLAIN), ("μ = 0.5, α = 0.5", SHORT_NESTEROV), ("μ = 0.9, α = 0.7", NESTEROV)]
                        .into_iter()
                        .flat_map(|(name, outer)| {
                            let ours = ours_with(EIGHTH, union(EIGHTH, 8), DECAY, outer);
                            [
                                with(&format!("dense mean, {name}"), Scheme::Dense { outer }),
                                with(&format!("ours, {name}"), ours),
                            ]
                        })
                        .collect();
                for (name, outer) in
                    [("μ = 0.9, α = 0.1", SLOW_NESTEROV), ("μ = 0.9, α = 0.2", TWICE_SLOW_NESTEROV)]
                {
                    let ours = ours_with(EIGHTH, union(EIGHTH, 8), DECAY, outer);
                    variants.push(with(&format!("ours, {name}"), ours));
                    let published =
                        Scheme::Published { density: EIGHTH, decay: DECAY, over: Divisor::Hits, outer };
                    variants.push(with(&format!("published, mean over hits, {name}"), published));
                }
                for (name, outer) in [
                    ("α = 2", Outer { rate: 2.0, momentum: 0.0 }),
                    ("μ = 0.9, α = 0.7", NESTEROV),
                    ("μ = 0.9, α = 0.35", HALF_NESTEROV),
                ] {
                    let ours = Scheme::Ours {
                        density: EIGHTH,
                        merge_density: union(EIGHTH, 8),
                        decay: DECAY,
                        over: Divisor::All,
                        outer,
                        start: Start::Agreed,
                    };
                    variants.push(with(&format!("ours over all, {name}"), ours));
                    let published =
                        Scheme::Published { density: EIGHTH, decay: DECAY, over: Divisor::All, outer };
                    variants.push(with(&format!("published, mean over all, {name}"), published));
                }
                variants
            }
            Question::Schedule => [RateSchedule::Cosine, RateSchedule::Constant, RateSchedule::Wsd]
                .into_iter()
                .flat_map(|schedule| {
                    let run = |name: &str, scheme| Variant {
                        name: format!("{name}, {schedule:?}"),
                        run: Run { schedule, scheme, ..base.clone() },
                    };
                    [run("dense mean", Scheme::Dense { outer: PLAIN }), run("ours", ours(EIGHTH, 8))]
                })
                .collect(),
            Question::Long => {
                let base = long(base);
                let run =
                    |name: &str, scheme| Variant { name: name.into(), run: Run { scheme, ..base.clone() } };
                vec![
                    run("dense mean", Scheme::Dense { outer: PLAIN }),
                    run("ours, 1/64", ours(64, 8)),
                    run("ours, 1/64, α = 0.7", sparse_ours()),
                    run("published over hits, 1/64, α = 0.7", sparse_published()),
                    run("published, mean over hits, 1/64", published(64, Divisor::Hits)),
                    run("ours, 1/32", ours(128, 8)),
                    run("ours, 1/8", ours(EIGHTH, 8)),
                ]
            }
            Question::Late => {
                let base = Run { width: 16, windows: LATE_WINDOWS, ..base };
                let third = base.steps / 3;
                [("1/16", 256), ("1/64", 64)]
                    .into_iter()
                    .flat_map(|(name, density)| {
                        let run = |start, steps| Run {
                            scheme: ours_from(density, LOWER, start),
                            steps,
                            ..base.clone()
                        };
                        let late = |steps, from| run(Start::Late { steps, from, share: 0.0 }, base.steps);
                        [
                            ("no delay", run(Start::Agreed, base.steps)),
                            ("a step late, own", late(1, StandIn::Own)),
                            ("a third late, own", late(third, StandIn::Own)),
                            ("a window late, own", late(base.steps, StandIn::Own)),
                            ("a third idle", run(Start::Agreed, base.steps - third)),
                            ("a third late, eager", late(third, StandIn::Eager)),
                            ("a third late, agreed", late(third, StandIn::Agreed)),
                        ]
                        .map(|(what, run)| Variant { name: format!("{name}, {what}"), run })
                    })
                    .collect()
            }
            Question::Ahead => {
                let base = Run { width: 16, windows: LATE_WINDOWS, ..base };
                let mut variants = Vec::new();
                let mut at_rates = |name: String, scheme: Scheme| {
                    variants.extend(AHEAD_RATES.map(|learning_rate| Variant {
                        name: format!("{name}, {learning_rate}"),
                        run: Run { scheme: scheme.clone(), learning_rate, ..base.clone() },
                    }));
                };
                for rate in [0.7, 0.5, 1.0] {
                    for share in [0.0, 0.25, 0.5, 0.75, 1.0] {
                        at_rates(format!("c = {share}, α = {rate}"), ours_ahead(outer(rate, 0.0), share));
                    }
                }
                for rate in [0.2, 0.4, 0.7] {
                    at_rates(format!("DiLoCo, α = {rate}"), Scheme::Dense { outer: outer(rate, 0.9) });
                }
                variants
            }
            Question::AheadPaired => {
                let base = long(base);
                let late = |share| {
                    let from = StandIn::Own;
                    ours_from(64, LOWER, Start::Late { steps: base.steps / 3, from, share })
                };
                let diloco = Scheme::Dense { outer: outer(0.4, 0.9) };
                let schemes = [
                    ("c = 0", ours_ahead(LOWER, 0.0), [4e-3].as_slice()),
                    ("c = 0 at 0.5", ours_ahead(outer(0.5, 0.0), 0.0), &[8e-3]),
                    ("c = 0.5", ours_ahead(LOWER, 0.5), &[4e-3, 8e-3]),
                    ("c = 0.75", ours_ahead(LOWER, 0.75), &[4e-3, 8e-3]),
                    ("DiLoCo at 0.4", diloco, &[4e-3, 2e-3]),
                    ("c = 0 and a third late", late(0.0), &[4e-3]),
                    ("c = 0.5 and a third late", late(0.5), &[4e-3, 8e-3]),
                    ("c = 0.75 and a third late", late(0.75), &[4e-3]),
                ];
                let mut variants = Vec::new();
                for (name, scheme, rates) in schemes {
                    variants.extend(rates.iter().map(|&learning_rate| Variant {
                        name: format!("{name}, {learning_rate}"),
                        run: Run { scheme: scheme.clone(), learning_rate, ..base.clone() },
                    }));
                }
                variants
            }
            Question::Large => {
                let base = Run { width: 912, windows: 64, ..base };
                let ahead = ours_from(EIGHTH, LOWER, Start::Ahead { share: 0.5 });
                let schemes = [
                    ("c = 0", ours_from(EIGHTH, LOWER, Start::Agreed)),
                    ("c = 0.5", ahead),
                    ("DiLoCo at 0.4", Scheme::Dense { outer: outer(0.4, 0.9) }),
                ];
                let at = |learning_rate: f64| {
                    let run = |scheme| Run { scheme, learning_rate, ..base.clone() };
                    let name = |name| format!("{name}, {learning_rate}");
                    schemes.clone().map(|(scheme, how)| Variant { name: name(scheme), run: run(how) })
                };
                [1e-3, 5e-4].into_iter().flat_map(at).collect()
            }
            Question::LearningRate => [4e-3, 2e-3, 8e-3, 16e-3]
                .into_iter()
                .flat_map(|learning_rate| {
                    let run = |name: &str, run: Run| Variant {
                        name: format!("{name}, {learning_rate}"),
                        run: Run { learning_rate, ..run },
                    };
                    [
                        run("dense mean", Run { scheme: Scheme::Dense { outer: PLAIN }, ..base.clone() }),
                        run("ours", base.clone()),
                        run(
                            "published, mean over hits",
                            Run { scheme: published(EIGHTH, Divisor::Hits), ..base.clone() },
                        ),
                        run("DiLoCo", Run { scheme: Scheme::Dense { outer: NESTEROV }, ..base.clone() }),
                        run("one worker", one_worker(&base)),
                    ]
                })
                .collect(),
            Question::LongLearningRate => {
                let base = long(base);
                let at = |name: &str, scheme: &Scheme, learning_rate: f64| Variant {
                    name: format!("{name}, {learning_rate}"),
                    run: Run { scheme: scheme.clone(), learning_rate, ..base.clone() },
                };
                let schemes = [
                    ("dense mean", Scheme::Dense { outer: PLAIN }),
                    ("ours, 1/64, α = 0.7", sparse_ours()),
                    ("published over hits, 1/64, α = 0.7", sparse_published()),
                ];
                let mut variants: Vec<Variant> = LONG_RATES
                    .iter()
                    .flat_map(|rate| schemes.iter().map(|(name, scheme)| at(name, scheme, *rate)))
                    .collect();
                let diloco = Scheme::Dense { outer: NESTEROV };
                variants.extend(LONG_RATES.iter().map(|rate| at("DiLoCo", &diloco, *rate)));
                variants
            }
        }
    }
}

/// Learning rates of [`Question::Ahead`].
const AHEAD_RATES: [f64; 4] = [4e-3, 2e-3, 8e-3, 16e-3];

/// Returns our scheme at density 1/64, from `θ − share·e`.
fn ours_ahead(outer: Outer, share: f32) -> Scheme {
    let start = if share == 0.0 { Start::Agreed } else { Start::Ahead { share } };
    ours_from(64, outer, start)
}

const LONG_RATES: [f64; 4] = [16e-3, 8e-3, 4e-3, 2e-3];

/// Returns 20 · 64 windows of the smallest model: sparse schemes lag by about 1/ρ windows (PROT-18), here 64.
fn long(base: Run) -> Run {
    Run { width: 16, windows: 1280, ..base }
}

fn sparse_ours() -> Scheme {
    ours_from(64, LOWER, Start::Agreed)
}

fn ours_from(density: u16, outer: Outer, start: Start) -> Scheme {
    let (merge_density, decay, over) = (union(density, 8), DECAY, Divisor::Hits);
    Scheme::Ours { density, merge_density, decay, over, outer, start }
}

fn sparse_published() -> Scheme {
    Scheme::Published { density: 64, decay: DECAY, over: Divisor::Hits, outer: LOWER }
}

/// Ten times the lag of density 1/64 (PROT-18).
const LATE_WINDOWS: usize = 640;

/// Returns the base run: 20 · 8 windows, because density 1/8 lags by about 8 windows (PROT-18).
fn base(seed: u64) -> Run {
    Run {
        scheme: ours(EIGHTH, 8),
        workers: 8,
        steps: 15,
        windows: 160,
        batch: 16,
        optimiser: Optimiser::AdamW,
        schedule: RateSchedule::Cosine,
        learning_rate: 4e-3,
        width: 32,
        seq_len: 32,
        seed,
    }
}

fn one_worker(base: &Run) -> Run {
    Run { scheme: Scheme::Alone, workers: 1, ..base.clone() }
}

fn ours(density: u16, workers: usize) -> Scheme {
    ours_with(density, union(density, workers), DECAY, PLAIN)
}

fn ours_with(density: u16, merge_density: u16, decay: f32, outer: Outer) -> Scheme {
    Scheme::Ours { density, merge_density, decay, over: Divisor::Hits, outer, start: Start::Agreed }
}

fn published(density: u16, over: Divisor) -> Scheme {
    Scheme::Published { density, decay: DECAY, over, outer: PLAIN }
}

/// Returns the expected density of the union of the workers' coordinates, if they choose independently.
fn union(density: u16, workers: usize) -> u16 {
    let unsent = (1.0 - f64::from(density) / 4096.0).powi(workers as i32);
    ((1.0 - unsent) * 4096.0).round() as u16
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all() -> impl Iterator<Item = Question> {
        Question::value_variants().iter().copied()
    }

    #[test]
    fn variants_of_a_question_use_equal_tokens_and_steps() {
        for question in all() {
            let variants = question.variants(1);
            let first = &variants[0].run;
            for Variant { name, run } in &variants {
                let tokens = |run: &Run| run.window_tokens() * run.windows as u64;
                // Workers that wait have less time to train.
                let idle = name.contains("a third idle");
                assert_eq!(3 * tokens(run), if idle { 2 } else { 3 } * tokens(first), "{question:?}, {name}");
                let other = idle || name.contains("eight times the steps");
                assert_eq!(run.inner_steps() == first.inner_steps(), !other, "{question:?}, {name}");
                assert!(run.batch.is_multiple_of(run.workers), "{question:?}, {name}");
            }
        }
    }

    #[test]
    fn variants_of_a_question_have_distinct_names_and_runs() {
        for question in all() {
            let variants = question.variants(1);
            for (at, one) in variants.iter().enumerate() {
                for other in &variants[at + 1..] {
                    assert_ne!(one.name, other.name, "{question:?}");
                    assert_ne!(one.run, other.run, "{question:?}, {} and {}", one.name, other.name);
                }
            }
        }
    }

    #[test]
    fn the_long_question_shares_its_runs_with_its_learning_rates() {
        let long = Question::Long.variants(2);
        let shared = Question::LongLearningRate
            .variants(2)
            .iter()
            .filter(|variant| long.iter().any(|other| other.run == variant.run))
            .map(|variant| variant.name.clone())
            .collect::<Vec<_>>();
        let names = ["dense mean", "ours, 1/64, α = 0.7", "published over hits, 1/64, α = 0.7"];
        assert_eq!(shared, names.map(|name| format!("{name}, 0.004")));
    }

    #[test]
    fn the_union_is_smaller_than_the_sum() {
        assert_eq!(union(4096, 3), 4096);
        assert_eq!(union(512, 1), 512);
        assert_eq!(union(512, 8), 2689);
        assert_eq!(union(64, 8), 485);
    }
}
