//! Training on the CPU: speed, memory, and the share of matrix products.

use crate::{
    Options,
    measure::{self, median, took},
    products,
};
use kernels::lanes::{self, Width};
use model::{ModelConfig, Recipe, init_flat};
use nn::{Device, MemoryEstimate, Trainer};
use serde::{Deserialize, Serialize};
use std::fmt;

/// Steps before the first that is measured.
const WARM_UP: u32 = 2;
/// CPU seconds that small presets are measured for.
const SECONDS: f64 = 1.0;

#[derive(Debug, Serialize)]
pub struct Report {
    processor: Option<String>,
    presets: Vec<Preset>,
}

#[derive(Debug, Serialize, Deserialize)]
pub struct Preset {
    preset: String,
    parameters: usize,
    /// Sequences per step and at once, and tokens of one.
    batch: usize,
    micro_batch: usize,
    seq_len: usize,
    threads: usize,
    /// Vectors of the kernels: the widest that the processor has. The crate of matrix products detects them likewise.
    instructions: String,
    steps: usize,
    /// By the wall clock, and by the CPU time of all threads; the median step.
    tokens_per_second: f64,
    tokens_per_cpu_second: f64,
    /// User and system time of all threads, by getrusage: the shortest step and the median.
    cpu_ms_per_step_min: f64,
    cpu_ms_per_step: f64,
    wall_ms_per_step: f64,
    /// `6 P + 12 L·H·C·T` (PaLM, appendix B).
    flops_per_token: f64,
    /// `flops_per_token · tokens_per_cpu_second`, in 10^9.
    gflops_per_cpu_second: f64,
    /// The rate of a product of 1024³ in the same process: the ceiling.
    matmul_gflops_per_cpu_second: f64,
    /// `gflops_per_cpu_second / matmul_gflops_per_cpu_second`: model FLOP/s utilisation, per core.
    utilisation: f64,
    /// CPU time of the step's matrix products, computed alone, over that of the shortest step.
    matmul_share: f64,
    /// Peak of the process (`VmHWM`).
    memory_peak_bytes: Option<u64>,
    /// `MemoryEstimate`
    memory_estimate_bytes: u64,
    first_loss: f64,
    last_loss: f64,
}

/// Trains `preset` for a while. Measure nothing before: the peak of memory is the process's.
pub fn measure(preset: &str, options: &Options) -> anyhow::Result<Preset> {
    let config = ModelConfig::preset(preset)?;
    let batch = options.batch.unwrap_or(16) as usize;
    let micro_batch = options.micro_batch.map_or(batch, |micro_batch| micro_batch as usize).min(batch);
    let recipe = Recipe { batch, micro_batch, ..Recipe::default() };
    let mut trainer = Trainer::new(&config, &recipe, Device::CPU, &init_flat(&config, 1)?)?;
    let sequences = random_sequences(&config, batch);

    let (mut cpu, mut wall, mut losses) = (Vec::new(), Vec::new(), Vec::new());
    for step in 0.. {
        if cpu.len() >= options.steps as usize && cpu.iter().sum::<f64>() >= SECONDS {
            break;
        }
        let mut stepped = None;
        let took = took(|| stepped = Some(trainer.step(&sequences)));
        losses.push(stepped.expect("the step was taken")?.loss);
        if step >= WARM_UP {
            cpu.push(took.cpu.as_secs_f64());
            wall.push(took.wall.as_secs_f64());
        }
    }
    // Before anything else is measured.
    let memory_peak_bytes = measure::memory_peak();
    drop(trainer);

    let tokens = (batch * config.seq_len) as f64;
    let shortest = cpu.iter().copied().fold(f64::INFINITY, f64::min);
    let flops_per_token = products::flops_per_token(&config);
    let gflops_per_cpu_second = flops_per_token * tokens / median(&cpu) / 1e9;
    let matmul_gflops_per_cpu_second = products::peak_flops() / 1e9;
    Ok(Preset {
        preset: preset.to_owned(),
        parameters: config.parameters(),
        batch,
        micro_batch,
        seq_len: config.seq_len,
        threads: rayon::current_num_threads(),
        instructions: instructions().to_owned(),
        steps: cpu.len(),
        tokens_per_second: tokens / median(&wall),
        tokens_per_cpu_second: tokens / median(&cpu),
        cpu_ms_per_step_min: 1e3 * shortest,
        cpu_ms_per_step: 1e3 * median(&cpu),
        wall_ms_per_step: 1e3 * median(&wall),
        flops_per_token,
        gflops_per_cpu_second,
        matmul_gflops_per_cpu_second,
        utilisation: gflops_per_cpu_second / matmul_gflops_per_cpu_second,
        matmul_share: products::seconds(&config, batch, micro_batch) / shortest,
        memory_peak_bytes,
        memory_estimate_bytes: MemoryEstimate::new(&config, &recipe, Device::CPU).total(),
        first_loss: losses[0],
        last_loss: losses[losses.len() - 1],
    })
}

/// Prints the loss of each of `--steps` steps, with all digits: to compare two builds.
pub fn print_losses(preset: &str, options: &Options) -> anyhow::Result<()> {
    let config = ModelConfig::preset(preset)?;
    let batch = options.batch.unwrap_or(16) as usize;
    let micro_batch = options.micro_batch.map_or(batch, |micro_batch| micro_batch as usize).min(batch);
    let recipe = Recipe { batch, micro_batch, ..Recipe::default() };
    let theta = init_flat(&config, 1)?;
    let mut trainer = mettle_engines::trainer(options.device, &config, &recipe, &theta)?;
    let sequences = random_sequences(&config, 4 * batch);
    for batch in sequences.chunks(batch).cycle().take(options.steps as usize) {
        println!("{:?}", trainer.step(batch)?.loss);
    }
    Ok(())
}

fn instructions() -> &'static str {
    match lanes::width() {
        Width::Avx512 => "AVX-512",
        Width::Avx2 => "AVX2",
        Width::Portable => "portable vectors",
    }
}

pub fn random_sequences(config: &ModelConfig, count: usize) -> Vec<Vec<u32>> {
    let mut state = 1u64;
    let mut token = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as u32 % config.vocab as u32
    };
    (0..count).map(|_| (0..=config.seq_len).map(|_| token()).collect()).collect()
}

impl Report {
    pub fn new(presets: Vec<Preset>) -> Report {
        Report { processor: measure::processor(), presets }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let processor = self.processor.as_deref().unwrap_or("an unnamed processor");
        if let Some(first) = self.presets.first() {
            writeln!(f, "{processor}, {} threads, {}", first.threads, first.instructions)?;
        }
        writeln!(
            f,
            "\n{:>6} {:>11} {:>9} {:>12} {:>11} {:>13} {:>12} {:>7} {:>10} {:>10}",
            "preset",
            "parameters",
            "tokens/s",
            "tokens/CPU-s",
            "CPU ms/step",
            "GFLOP/CPU-s",
            "utilisation",
            "matmul",
            "memory",
            "estimate"
        )?;
        for preset in &self.presets {
            let memory = preset.memory_peak_bytes.map_or_else(|| "unknown".to_owned(), mebibytes);
            writeln!(
                f,
                "{:>6} {:>11} {:>9.0} {:>12.0} {:>11.1} {:>13.1} {:>11.0}% {:>6.0}% {:>10} {:>10}",
                preset.preset,
                preset.parameters,
                preset.tokens_per_second,
                preset.tokens_per_cpu_second,
                preset.cpu_ms_per_step,
                preset.gflops_per_cpu_second,
                100.0 * preset.utilisation,
                100.0 * preset.matmul_share,
                memory,
                mebibytes(preset.memory_estimate_bytes),
            )?;
        }
        Ok(())
    }
}

pub fn mebibytes(bytes: u64) -> String {
    format!("{:.0} MiB", bytes as f64 / f64::from(1 << 20))
}
