//! Measures the cost of a profile per training step, and of its spans without a profile.
//!
//! ```text
//! cargo run --release -p miner --example profile-cost -- [preset] [rounds] [steps]
//! ```
//!
//! In each round the same trainer takes `steps` steps without a profile and as many with one, in alternating order;
//! the log's usual filter is active both times. It prints the medians, their ratio, and the time of a disabled span.

use anyhow::Context as _;
use miner::profile::Profiler;
use model::{ModelConfig, Recipe, init_flat};
use nn::{Device, Trainer};
use std::{hint::black_box, time::Instant};
use tracing::{Dispatch, level_filters::LevelFilter};
use tracing_subscriber::{Layer as _, fmt, layer::SubscriberExt as _};

const DISABLED_SPANS: u32 = 100_000_000;

fn main() -> anyhow::Result<()> {
    let mut arguments = std::env::args().skip(1);
    let preset = arguments.next().unwrap_or_else(|| "117k".into());
    let mut number = |default: u32| arguments.next().map_or(Ok(default), |text| text.parse());
    let (rounds, steps) = (number(20).context("rounds")?, number(50).context("steps")?);

    let config = ModelConfig::preset(&preset)?;
    let recipe = Recipe::default();
    let sequences = engines::random_sequences(&config, recipe.batch);
    let mut trainer = Trainer::new(&config, &recipe, Device::CPU, &init_flat(&config, 1)?)?;
    let mut seconds = |dispatch: &Dispatch, is_profiled: bool| -> anyhow::Result<f64> {
        tracing::dispatcher::with_default(dispatch, || {
            // `tracing` caches per process which spans are enabled.
            tracing::callsite::rebuild_interest_cache();
            let is_enabled = tracing::span_enabled!(target: "profile", tracing::Level::TRACE);
            anyhow::ensure!(is_enabled == is_profiled, "the filter of the spans does not work");
            let began = Instant::now();
            for _ in 0..steps {
                trainer.step(&sequences)?;
            }
            Ok(began.elapsed().as_secs_f64())
        })
    };

    let (mut without, mut with) = (Vec::new(), Vec::new());
    for round in 0..rounds {
        let measured = [round % 2 == 0, round % 2 == 1].map(|is_profiled| {
            let profiler = Profiler::new(None);
            let profile = is_profiled.then(|| profiler.layer());
            let subscriber = tracing_subscriber::registry().with(profile);
            let dispatch = Dispatch::new(subscriber.with(fmt::layer().with_filter(LevelFilter::INFO)));
            (is_profiled, seconds(&dispatch, is_profiled))
        });
        for (is_profiled, seconds) in measured {
            if is_profiled { &mut with } else { &mut without }.push(seconds? / f64::from(steps));
        }
    }
    let (without, with) = (median(&mut without), median(&mut with));

    let dispatch = Dispatch::new(fmt().with_max_level(LevelFilter::INFO).finish());
    let disabled = tracing::dispatcher::with_default(&dispatch, || {
        tracing::callsite::rebuild_interest_cache();
        let began = Instant::now();
        for index in 0..DISABLED_SPANS {
            let _span = tracing::trace_span!(target: "profile", "forward").entered();
            black_box(index);
        }
        began.elapsed().as_secs_f64() / f64::from(DISABLED_SPANS)
    });
    println!(
        "{preset}: {:.4} ms per step without a profile, {:.4} with: {:+.2} %; a disabled span: {:.2} ns",
        without * 1e3,
        with * 1e3,
        (with / without - 1.0) * 100.0,
        disabled * 1e9
    );
    Ok(())
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
