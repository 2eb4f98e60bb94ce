//! Measures the difference of one model's losses between machines, the basis for the tolerance of an audit
//! (`docs/receipts.md`).
//!
//! ```text
//! cargo run --release -p mettle-nn --example losses -- localnet cpu > here.txt
//! cargo run --release -p mettle-nn --example losses -- localnet cpu there.txt
//! ```
//!
//! The first prints the losses of 64 sequences with weights that are twice the initial ones, so that probabilities are
//! far from even. The second also compares them with those of another machine, device or thread count.

use mettle_nn::{Device, Evaluator};
use model::{ModelConfig, init_flat};
use std::error::Error;

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let preset = arguments.next().unwrap_or_else(|| "localnet".into());
    let device: Device = arguments.next().unwrap_or_else(|| "cpu".into()).parse()?;
    let config = ModelConfig::preset(&preset)?;
    let theta: Vec<f32> = init_flat(&config, 1)?.into_iter().map(|value| value * 2.0).collect();
    let evaluator = Evaluator::new(&config, device, &theta)?;

    let mut state = 1u64;
    let mut token = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as u32 % config.vocab as u32
    };
    let sequences: Vec<Vec<u32>> = (0..64).map(|_| (0..=config.seq_len).map(|_| token()).collect()).collect();
    let together = evaluator.losses(&sequences)?;
    let mut alone = Vec::new();
    for sequence in &sequences {
        alone.extend(evaluator.losses(std::slice::from_ref(sequence))?);
    }
    for loss in &together {
        println!("{loss:?}");
    }
    eprintln!("one by one: {}", apart(&together, &alone));
    if let Some(path) = arguments.next() {
        let text = std::fs::read_to_string(path)?;
        let other = text.lines().map(str::parse).collect::<Result<Vec<f64>, _>>()?;
        eprintln!("beside the other file: {}", apart(&together, &other));
    }
    Ok(())
}

fn apart(one: &[f64], other: &[f64]) -> String {
    let pairs = || one.iter().zip(other);
    let same = pairs().filter(|(one, other)| one.to_bits() == other.to_bits()).count();
    let largest = pairs().map(|(one, other)| (one - other).abs()).fold(0.0, f64::max);
    let mean = one.iter().sum::<f64>() / one.len().max(1) as f64;
    format!(
        "{same} of {} the same bits, the largest difference {largest:e} of a mean of {mean:.3}",
        one.len()
    )
}
