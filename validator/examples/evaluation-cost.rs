//! Measures the cost of evaluating one contribution relative to its own forward passes, for `docs/benchmarks.md`.
//!
//! ```text
//! RAYON_NUM_THREADS=1 cargo run --release -p validator --example evaluation-cost -- localnet 512
//! RAYON_NUM_THREADS=1 cargo run --release -p validator --example evaluation-cost -- 6m 64
//! ```
//!
//! The second argument is the density of contributions, in 4096. Each figure is the fastest of several runs.

use daemon::Codec;
use gauntlet::Sketch;
use model::{ModelConfig, init_flat};
use nn::{Device, Evaluator};
use protocol::{contribution, params::Density};
use std::{error::Error, time::Instant};

/// Sequences of each kind, as by default (PROT-22).
const SEQUENCES: usize = 64;

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let preset = arguments.next().unwrap_or_else(|| "localnet".into());
    let density = Density(arguments.next().map_or(Ok(64), |text| text.parse())?);
    let rounds: usize = arguments.next().map_or(Ok(5), |text| text.parse())?;
    let config = ModelConfig::preset(&preset)?;
    let schema = config.schema()?;
    let theta = init_flat(&config, 1)?;
    let mut evaluator = Evaluator::new(&config, Device::CPU, &theta)?;
    let codec = Codec::new(&schema, density)?;

    let mut state = 1u64;
    let mut random = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        state >> 33
    };
    let values: Vec<f32> =
        (0..theta.len()).map(|_| (random() as f32 / 2f32.powi(31) - 0.5).powi(3)).collect();
    let body = contribution::encode(&schema, density, &values)?;
    let mut sequences = || -> Vec<Vec<u32>> {
        let token = |random: &mut dyn FnMut() -> u64| random() as u32 % config.vocab as u32;
        (0..SEQUENCES).map(|_| (0..=config.seq_len).map(|_| token(&mut random)).collect()).collect()
    };
    let (own, common) = (sequences(), sequences());

    // The steps of `evaluate::measure` for one seat.
    let mut fastest = [f64::INFINITY; 6];
    for _ in 0..rounds {
        let mut step = 0;
        let mut clock = Instant::now();
        let mut lap = || {
            fastest[step] = fastest[step].min(clock.elapsed().as_secs_f64());
            (step, clock) = (step + 1, Instant::now());
        };
        evaluator.losses(&own)?;
        lap();
        let mut update = codec.decode(&body)?;
        lap();
        let _ = Sketch::of(&update);
        lap();
        for tensor in &mut update.tensors {
            tensor.values.iter_mut().for_each(|value| *value *= 0.7);
        }
        let undo = evaluator.apply_sparse(&update, 0.2)?;
        lap();
        evaluator.losses(&own)?;
        evaluator.losses(&common)?;
        lap();
        evaluator.undo(undo)?;
        lap();
    }
    let [own_before, decode, sketch, apply, after, undo] = fastest;
    let besides = decode + sketch + apply + undo;
    let ms = 1e3;
    println!("{preset}: {} parameters, density {}/4096, {} bytes", theta.len(), density.0, body.len());
    println!(
        "forward passes: own before {:.1} ms, own and common after {:.1} ms",
        own_before * ms,
        after * ms
    );
    println!(
        "besides: decode {:.2} ms, sketch {:.2} ms, scale and apply {:.2} ms, undo {:.2} ms",
        decode * ms,
        sketch * ms,
        apply * ms,
        undo * ms
    );
    println!(
        "all of it, over its forward passes: {:.4}",
        (own_before + after + besides) / (own_before + after)
    );
    println!("without the own losses before:      {:.4}", (after + besides) / after);
    Ok(())
}
