//! Tokens a second, training and evaluating, on random tokens. The figures in `docs/benchmarks.md` come from here.
//!
//!     RAYON_NUM_THREADS=1 cargo run --release -p mettle-nn --example speed -- localnet cpu

use mettle_nn::{DeviceChoice, Evaluator, ModelError, Trainer};
use model::{ModelConfig, Recipe, init_flat};
use std::time::{Duration, Instant};

const MEASURED_FOR: Duration = Duration::from_secs(10);

fn main() -> Result<(), ModelError> {
    let mut arguments = std::env::args().skip(1);
    let preset = arguments.next().unwrap_or_else(|| "localnet".into());
    let device = DeviceChoice::parse(&arguments.next().unwrap_or_else(|| "cpu".into()))?;

    let config = ModelConfig::preset(&preset)?;
    let recipe = Recipe::default();
    let theta = init_flat(&config, 1)?;
    let mut trainer = Trainer::new(&config, &recipe, device, &theta)?;
    let evaluator = Evaluator::new(&config, device, &theta)?;

    let mut state = 1u64;
    let mut token = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as u32 % config.vocab as u32
    };
    let mut sequences = |count| -> Vec<Vec<u32>> {
        (0..count).map(|_| (0..=config.seq_len).map(|_| token()).collect()).collect()
    };
    let (batch, judged) = (sequences(recipe.batch), sequences(64));

    println!(
        "{preset}: {} parameters, {} sequences of {} a step",
        config.parameters(),
        recipe.batch,
        config.seq_len
    );
    let training = per_second(|| trainer.step(&batch).map(|_| recipe.batch * config.seq_len))?;
    println!(
        "training   {training:>9.0} tokens/s, {:.1} ms a step",
        recipe.batch as f64 * config.seq_len as f64 / training * 1e3
    );
    let evaluating = per_second(|| evaluator.losses(&judged).map(|_| judged.len() * config.seq_len))?;
    println!("evaluating {evaluating:>9.0} tokens/s");
    Ok(())
}

/// Tokens that `work` gets done in a second, after once to warm up.
fn per_second(mut work: impl FnMut() -> Result<usize, ModelError>) -> Result<f64, ModelError> {
    work()?;
    let (start, mut tokens) = (Instant::now(), 0);
    while start.elapsed() < MEASURED_FOR {
        tokens += work()?;
    }
    Ok(tokens as f64 / start.elapsed().as_secs_f64())
}
