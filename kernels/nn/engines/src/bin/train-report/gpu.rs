//! Training on a GPU: tokens per second, model FLOP/s utilisation, memory.

use crate::{
    Options,
    cpu::{mebibytes, random_sequences},
    measure::median,
    twin,
};
use model::{ModelConfig, Recipe, init_flat};
use nn::{Device, GpuInfo, MemoryEstimate, Precision};
use serde::{Deserialize, Serialize};
use std::{fmt, time::Instant};

/// Steps before the first that is measured: the first compiles the kernels.
const WARM_UP: u32 = 3;
/// Tokens per step by default.
const TOKENS: usize = 16_384;

#[derive(Debug, Serialize)]
pub struct Report {
    device: String,
    card: Option<String>,
    presets: Vec<Preset>,
}

#[derive(Debug, Serialize, Deserialize)]
pub struct Preset {
    preset: String,
    parameters: usize,
    /// Sequences per step and on the device at once, and tokens of one.
    batch: usize,
    micro_batch: usize,
    seq_len: usize,
    /// Of products: `bf16` or `f32`.
    precision: String,
    /// `none`, `feed-forward` or `layers`.
    #[serde(rename = "recompute")]
    activation_checkpointing: String,
    steps: usize,
    /// Over all measured steps. A step ends when its losses are read, so its optimiser's part counts for the next one.
    tokens_per_second: f64,
    ms_per_step: f64,
    /// `6 P + 6 L·D·T`: see `ModelConfig::flops_per_token`.
    flops_per_token: f64,
    /// Operations per second of the GPU's data sheet, and the share of them that training used:
    /// `flops_per_token · tokens_per_second / peak_flops`. Absent for an unknown GPU without `--peak-tflops`.
    peak_flops: Option<f64>,
    mfu: Option<f64>,
    /// The process's peak of the device's memory.
    memory_peak_bytes: Option<u64>,
    /// `MemoryEstimate`
    memory_estimate_bytes: u64,
    losses: Vec<f64>,
}

pub fn recipe(config: &ModelConfig, options: &Options) -> Recipe {
    let batch = options.batch.map_or((TOKENS / config.seq_len).max(1), |batch| batch as usize);
    let micro_batch = options.micro_batch.map_or(batch, |micro_batch| micro_batch as usize).min(batch);
    // The default rate is for the smallest model.
    Recipe { batch, micro_batch, learning_rate: 3e-4, ..Recipe::default() }
}

/// Trains `preset` for a while.
pub fn measure(preset: &str, options: &Options) -> anyhow::Result<Preset> {
    let config = ModelConfig::preset(preset)?;
    let recipe = recipe(&config, options);
    let theta = init_flat(&config, 1)?;
    let sequences = random_sequences(&config, recipe.batch);
    if let Some(directory) = &options.twin {
        twin::write(directory, &config, &recipe, &theta, std::slice::from_ref(&sequences))?;
    }
    let mut trainer = mettle_engines::trainer(options.device, &config, &recipe, &theta)?;
    drop(theta);

    let (mut seconds, mut losses) = (Vec::new(), Vec::new());
    for _ in 0..WARM_UP {
        losses.push(trainer.step(&sequences)?.loss);
    }
    for _ in 0..options.steps {
        let began = Instant::now();
        losses.push(trainer.step(&sequences)?.loss);
        seconds.push(began.elapsed().as_secs_f64());
    }
    let tokens = (recipe.batch * config.seq_len) as f64;
    let tokens_per_second = tokens * seconds.len() as f64 / seconds.iter().sum::<f64>();
    let flops_per_token = config.flops_per_token();
    let peak_flops = peak_flops(options);
    Ok(Preset {
        preset: preset.to_owned(),
        parameters: config.parameters(),
        batch: recipe.batch,
        micro_batch: recipe.micro_batch,
        seq_len: config.seq_len,
        precision: options.device.precision_for_training().name().to_owned(),
        activation_checkpointing: options.device.activation_checkpointing.name().to_owned(),
        steps: seconds.len(),
        tokens_per_second,
        ms_per_step: 1e3 * median(&seconds),
        flops_per_token,
        peak_flops,
        mfu: peak_flops.map(|peak| flops_per_token * tokens_per_second / peak),
        memory_peak_bytes: trainer.device_memory().map(|memory| memory.reserved),
        memory_estimate_bytes: MemoryEstimate::new(&config, &recipe, options.device).total(),
        losses,
    })
}

/// The named rate, else the data sheet's, which is for bf16: in f32 other units work.
fn peak_flops(options: &Options) -> Option<f64> {
    let named = options.peak_tflops.map(|teraflops| 1e12 * teraflops);
    named.or_else(|| match options.device.precision_for_training() {
        Precision::Bf16 => options.device.gpu_info()?.peak_flops(),
        _ => None,
    })
}

impl Report {
    pub fn new(device: Device, presets: Vec<Preset>) -> Report {
        Report {
            device: device.to_string(),
            card: device.gpu_info().map(|GpuInfo { name, .. }| name),
            presets,
        }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{} ({})", self.card.as_deref().unwrap_or("unknown GPU"), self.device)?;
        writeln!(
            f,
            "\n{:>6} {:>13} {:>6} {:>6} {:>8} {:>9} {:>12} {:>10} {:>10} {:>6} {:>10} {:>10}",
            "preset",
            "parameters",
            "batch",
            "micro",
            "seq_len",
            "products",
            "recompute",
            "tokens/s",
            "ms/step",
            "MFU",
            "memory",
            "estimate"
        )?;
        for preset in &self.presets {
            writeln!(
                f,
                "{:>6} {:>13} {:>6} {:>6} {:>8} {:>9} {:>12} {:>10.0} {:>10.1} {:>6} {:>10} {:>10}",
                preset.preset,
                preset.parameters,
                preset.batch,
                preset.micro_batch,
                preset.seq_len,
                preset.precision,
                preset.activation_checkpointing,
                preset.tokens_per_second,
                preset.ms_per_step,
                preset.mfu.map_or_else(|| "-".to_owned(), |mfu| format!("{:.1}%", 100.0 * mfu)),
                preset.memory_peak_bytes.map_or_else(|| "unknown".to_owned(), mebibytes),
                mebibytes(preset.memory_estimate_bytes),
            )?;
        }
        if let Some(peak) = self.presets.iter().find_map(|preset| preset.peak_flops) {
            writeln!(
                f,
                "MFU = tokens/s · (6 P + 6 layers·d_model·seq_len) / {:.1} TFLOP/s (PaLM, appendix B, attention halved)",
                peak / 1e12
            )?;
        }
        Ok(())
    }
}
