//! Our side of `scripts/compare-pytorch`: two programs train the same model on the same data in turns.
//!
//! It writes the initial weights, the batches and the recipe into a directory. Then it takes the number of steps in
//! each line of its input, and prints their losses and CPU times as a line of JSON.
//!
//!     cargo run --release -p mettle-nn --example twin -- 6m 8 20 DIRECTORY

use mettle_nn::{Device, Trainer};
use model::{ModelConfig, Recipe, init_flat};
use std::{error::Error, fs, io::BufRead as _, path::Path};

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [preset, batch, batches, directory] = &arguments[..] else {
        return Err("usage: twin PRESET BATCH BATCHES DIRECTORY".into());
    };
    let (batch, batches): (usize, usize) = (batch.parse()?, batches.parse()?);
    let config = ModelConfig::preset(preset)?;
    let recipe = Recipe { batch, micro_batch: batch, ..Recipe::default() };
    let theta = init_flat(&config, 1)?;
    let mut trainer = Trainer::new(&config, &recipe, Device::CPU, &theta)?;

    let mut state = 1u64;
    let mut token = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        // Small ids are more frequent, so that there is something to learn.
        let uniform = (state >> 33) as f64 / f64::from(1u32 << 31);
        (uniform * uniform * config.vocab as f64) as u32
    };
    let data: Vec<Vec<Vec<u32>>> = (0..batches)
        .map(|_| (0..batch).map(|_| (0..=config.seq_len).map(|_| token()).collect()).collect())
        .collect();

    let directory = Path::new(directory);
    let bytes: Vec<u8> = theta.iter().flat_map(|value| value.to_le_bytes()).collect();
    fs::write(directory.join("weights"), bytes)?;
    let bytes: Vec<u8> = data.iter().flatten().flatten().flat_map(|token| token.to_le_bytes()).collect();
    fs::write(directory.join("tokens"), bytes)?;
    let tensors: Vec<_> =
        config.schema()?.tensors().iter().map(|t| (t.name.clone(), t.shape.clone())).collect();
    let rates: Vec<f64> = (0..100_000).map(|step| recipe.learning_rate_at(step)).collect();
    let about = serde_json::json!({ "config": config, "recipe": recipe, "tensors": tensors, "rates": rates });
    fs::write(directory.join("about.json"), about.to_string())?;
    println!("ready");

    let mut next = data.iter().cycle();
    for line in std::io::stdin().lock().lines() {
        let (mut losses, mut cpu) = (Vec::new(), Vec::new());
        for _ in 0..line?.trim().parse::<usize>()? {
            let batch = next.next().ok_or("there must be a batch to train on")?;
            let began = cpu_seconds();
            losses.push(trainer.step(batch)?.loss);
            cpu.push(cpu_seconds() - began);
        }
        println!("{}", serde_json::json!({ "losses": losses, "cpu": cpu }));
    }
    Ok(())
}

/// Returns the CPU seconds of all threads of this process, in user mode and in the kernel.
fn cpu_seconds() -> f64 {
    // SAFETY: all zeros are a valid `rusage`, and the call writes only to it.
    let usage = unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        libc::getrusage(libc::RUSAGE_SELF, &mut usage);
        usage
    };
    let seconds = |time: libc::timeval| time.tv_sec as f64 + time.tv_usec as f64 / 1e6;
    seconds(usage.ru_utime) + seconds(usage.ru_stime)
}
