//! Measures training on one device: speed, memory, and hardware utilisation.

use crate::{Options, cpu_products, measure, twin};
use anyhow::Context as _;
use kernels::{
    lanes::{self, Width},
    measure::{memory, processor},
};
use mettle_engines::random_sequences;
use model::{ModelConfig, Recipe, init_flat};
use nn::{DeviceName, MemoryEstimate, Precision, Trainer};
use serde::Serialize;
use serde_json::{Value, json};

/// Number of warm-up steps, on a GPU and on the CPU. A GPU's first step compiles the kernels.
const WARM_UP: [u32; 2] = [3, 2];
/// CPU seconds for which small presets are measured.
const SECONDS: f64 = 1.0;
/// Default number of sequences per step on the CPU, and of tokens per step on a GPU.
const SEQUENCES: usize = 16;
const TOKENS: usize = 16_384;

#[derive(Debug, Serialize)]
struct Preset {
    preset: String,
    parameters: usize,
    /// Sequences per step and per micro-batch, and tokens per sequence.
    batch: usize,
    micro_batch: usize,
    seq_len: usize,
    steps: usize,
    /// Wall-clock rate of the median step. A GPU's step ends when its losses are read, so its optimiser's time counts
    /// for the next step.
    tokens_per_second: f64,
    ms_per_step: f64,
    /// Peak memory of the process (`VmHWM`), or of the GPU.
    memory_peak_bytes: Option<u64>,
    /// Bytes according to `MemoryEstimate`.
    memory_estimate_bytes: u64,
    losses: Vec<f64>,
    #[serde(flatten)]
    usage: Usage,
}

#[derive(Debug, Serialize)]
#[serde(untagged)]
enum Usage {
    Cpu {
        threads: usize,
        /// Vector instructions of the kernels: the widest of the processor. The crate for products detects them in the
        /// same way.
        instructions: &'static str,
        /// Rate by the CPU time of all threads, user and system, from getrusage; for the median and the shortest step.
        tokens_per_cpu_second: f64,
        cpu_ms_per_step: f64,
        cpu_ms_per_step_min: f64,
        /// `6 P + 12 L·H·C·T` (PaLM, appendix B).
        flops_per_token: f64,
        /// `flops_per_token · tokens_per_cpu_second`, in 10^9.
        gflops_per_cpu_second: f64,
        /// Rate of a product of 1024³ in the same process, the upper limit.
        matmul_gflops_per_cpu_second: f64,
        /// `gflops_per_cpu_second / matmul_gflops_per_cpu_second`: model FLOP/s utilisation, per core.
        utilisation: f64,
        /// CPU time of the step's matrix products, computed alone, divided by that of the shortest step.
        matmul_share: f64,
    },
    Gpu {
        /// Precision of products: `bf16` or `f32`.
        precision: &'static str,
        /// Activation checkpointing: `none`, `feed-forward` or `layers`.
        recompute: &'static str,
        /// `6 P + 6 L·D·T`: see `ModelConfig::flops_per_token`.
        flops_per_token: f64,
        /// Operations per second from the GPU's data sheet, and the share of them that training used: `flops_per_token
        /// · tokens_per_second / peak_flops`. Absent for an unknown GPU without `--peak-tflops`.
        peak_flops: Option<f64>,
        mfu: Option<f64>,
    },
}

fn recipe(config: &ModelConfig, options: &Options, on_cpu: bool) -> Recipe {
    let (batch, default) = match on_cpu {
        true => (SEQUENCES, Recipe::default()),
        // The recipe's default learning rate is for the smallest model.
        false => ((TOKENS / config.seq_len).max(1), Recipe { learning_rate: 3e-4, ..Recipe::default() }),
    };
    let batch = options.batch.map_or(batch, |batch| batch as usize);
    let micro_batch = options.micro_batch.map_or(batch, |micro_batch| micro_batch as usize).min(batch);
    Recipe { batch, micro_batch, ..default }
}

/// Measures training of `preset`. It must be the process's first measurement, because peak memory is the process's.
pub fn measure(preset: &str, options: &Options) -> anyhow::Result<Value> {
    let (config, device) = (ModelConfig::preset(preset)?, options.device);
    let recipe = recipe(&config, options, options.on_cpu());
    let theta = init_flat(&config, 1)?;
    let sequences = random_sequences(&config, recipe.batch);
    if let Some(directory) = &options.twin {
        twin::write(directory, &config, &recipe, &theta, std::slice::from_ref(&sequences))?;
    }
    let mut trainer = mettle_engines::trainer(device, &config, &recipe, &theta)?;
    drop(theta);

    let mut losses = Vec::new();
    for _ in 0..WARM_UP[usize::from(options.on_cpu())] {
        losses.push(trainer.step(&sequences)?.loss);
    }
    let (mut cpu, mut wall) = (Vec::new(), Vec::new());
    while cpu.len() < options.steps as usize || options.on_cpu() && cpu.iter().sum::<f64>() < SECONDS {
        let mut stepped = None;
        let took = measure::took(|| stepped = Some(trainer.step(&sequences)));
        losses.push(stepped.context("the step was taken")??.loss);
        cpu.push(took.cpu.as_secs_f64());
        wall.push(took.wall.as_secs_f64());
    }
    // On a GPU the mean, for comparison with PyTorch's figure; on a CPU shared with other work, the median is
    // steadier.
    let step =
        if options.on_cpu() { measure::median(&wall) } else { wall.iter().sum::<f64>() / wall.len() as f64 };
    let tokens_per_second = (recipe.batch * config.seq_len) as f64 / step;
    Ok(serde_json::to_value(Preset {
        preset: preset.to_owned(),
        parameters: config.parameters(),
        batch: recipe.batch,
        micro_batch: recipe.micro_batch,
        seq_len: config.seq_len,
        steps: wall.len(),
        tokens_per_second,
        ms_per_step: 1e3 * measure::median(&wall),
        // Read before anything else is measured.
        memory_peak_bytes: match options.on_cpu() {
            true => memory("VmHWM"),
            false => trainer.device_memory().map(|memory| memory.reserved),
        },
        memory_estimate_bytes: MemoryEstimate::new(&config, &recipe, device).total(),
        losses,
        usage: match options.on_cpu() {
            true => on_cpu(&config, &recipe, trainer, &cpu),
            false => on_gpu(&config, options, tokens_per_second),
        },
    })?)
}

fn on_cpu(config: &ModelConfig, recipe: &Recipe, trainer: Trainer, seconds: &[f64]) -> Usage {
    // Frees the trainer's memory before the products are measured.
    drop(trainer);
    let (median, shortest) =
        (measure::median(seconds), seconds.iter().copied().fold(f64::INFINITY, f64::min));
    let tokens_per_cpu_second = (recipe.batch * config.seq_len) as f64 / median;
    let flops_per_token = cpu_products::flops_per_token(config);
    let gflops_per_cpu_second = flops_per_token * tokens_per_cpu_second / 1e9;
    let matmul_gflops_per_cpu_second = cpu_products::peak_flops() / 1e9;
    Usage::Cpu {
        threads: rayon::current_num_threads(),
        instructions: match lanes::width() {
            Width::Avx512 => "AVX-512",
            Width::Avx2 => "AVX2",
            Width::Portable => "portable vectors",
        },
        tokens_per_cpu_second,
        cpu_ms_per_step: 1e3 * median,
        cpu_ms_per_step_min: 1e3 * shortest,
        flops_per_token,
        gflops_per_cpu_second,
        matmul_gflops_per_cpu_second,
        utilisation: gflops_per_cpu_second / matmul_gflops_per_cpu_second,
        matmul_share: cpu_products::seconds(config, recipe) / shortest,
    }
}

fn on_gpu(config: &ModelConfig, options: &Options, tokens_per_second: f64) -> Usage {
    let (device, flops_per_token) = (options.device, config.flops_per_token());
    let precision = device.precision_for_training();
    // The data sheet's rate is for bf16; f32 uses other units.
    let listed = || device.gpu_info().filter(|_| precision == Precision::Bf16)?.peak_flops();
    let peak_flops = options.peak_tflops.map(|teraflops| 1e12 * teraflops).or_else(listed);
    Usage::Gpu {
        precision: precision.name(),
        recompute: device.activation_checkpointing.name(),
        flops_per_token,
        peak_flops,
        mfu: peak_flops.map(|peak| flops_per_token * tokens_per_second / peak),
    }
}

/// Prints the loss of each of `--steps` steps with all digits, to compare two builds.
pub fn print_losses(preset: &str, options: &Options) -> anyhow::Result<()> {
    let config = ModelConfig::preset(preset)?;
    let recipe = recipe(&config, options, true);
    let mut trainer = mettle_engines::trainer(options.device, &config, &recipe, &init_flat(&config, 1)?)?;
    let sequences = random_sequences(&config, 4 * recipe.batch);
    for batch in sequences.chunks(recipe.batch).cycle().take(options.steps as usize) {
        println!("{:?}", trainer.step(batch)?.loss);
    }
    Ok(())
}

/// Returns the report on all presets.
pub fn report(options: &Options, presets: &[Value]) -> Value {
    let device = options.device;
    let name = match device.name {
        DeviceName::Cpu => processor(),
        _ => device.gpu_info().map(|info| info.name),
    };
    json!({ "device": device.to_string(), "name": name, "presets": presets })
}
