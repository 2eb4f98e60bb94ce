//! Memory: what a training takes, before it is taken, and keeping what is freed for the next step.
//!
//! Evaluating on the CPU allocates and frees the same buffers again and again. By default glibc gives them back to the kernel,
//! which clears their pages and faults on each of them the next time. Numbers in `docs/benchmarks.md`.
#![allow(non_snake_case, reason = "a length is named by its letter: see llama.rs")]

use crate::{
    device::{ActivationCheckpointing, DeviceChoice, Gpu, GpuSettings, Place, Precision},
    loss::LOGITS_MAX,
};
use model::{ModelConfig, Recipe};
use std::{fmt, sync::Once};

/// Bytes that a trainer takes at its peak, by what for.
///
/// For the CPU and for kernels on a GPU it counts the buffers of `host.rs` and `gpu.rs`. On the CPU it is within a tenth of what is
/// seen for all but the smallest models (`train-report` shows both). Where a tape decides what is kept, it is a fit to the tape's
/// peak on the CPU's tensor operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryEstimate {
    /// The f32 that are stepped, and where products are in bf16 a copy for them.
    pub weights: u64,
    pub gradients: u64,
    /// Two numbers a weight: AdamW's moments. Muon needs less.
    pub optimiser: u64,
    /// What the way forward leaves for the way back, of one micro-batch.
    pub activations: u64,
    /// Gradients of activations, logits, and what else is in use for a while.
    pub work: u64,
    /// What a kernel on a GPU takes while it runs.
    pub passing: u64,
}

/// A training that does not fit.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("training would take about {} ({estimate}), but {}: {advice}", Bytes(estimate.total()), Left(*available))]
pub struct MemoryError {
    pub estimate: MemoryEstimate,
    /// Bytes that were free, if they were asked for; else the device ran out of them.
    pub available: Option<u64>,
    /// The setting to change.
    pub advice: Advice,
}

/// What would make a training fit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Advice {
    /// Fewer sequences at once, which changes nothing but the time: the most that fit.
    MicroBatch(usize),
    /// One sequence at once does not fit, but so many do if activations are computed again.
    ActivationCheckpointing(ActivationCheckpointing, usize),
    /// One sequence at once does not fit either, and takes so many bytes.
    NotEvenOne(u64),
}

impl fmt::Display for Advice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Advice::MicroBatch(sequences) => write!(f, "set micro_batch to {sequences} or less"),
            Advice::ActivationCheckpointing(activation_checkpointing, sequences) => {
                let word = activation_checkpointing.word();
                write!(f, "write {word} behind the device's name, and set micro_batch to {sequences} or less")
            }
            Advice::NotEvenOne(bytes) => {
                write!(
                    f,
                    "a micro_batch of 1 still takes {}, so use a machine with more memory, or shorter sequences (seq_len)",
                    Bytes(*bytes)
                )
            }
        }
    }
}

/// How much was free.
struct Left(Option<u64>);

impl fmt::Display for Left {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(available) => write!(f, "only {} are free", Bytes(available)),
            None => f.write_str("the device ran out of memory"),
        }
    }
}

impl MemoryEstimate {
    /// For a trainer of this model, by this recipe, on this device.
    pub fn of(config: &ModelConfig, recipe: &Recipe, on: DeviceChoice) -> MemoryEstimate {
        let &ModelConfig { vocab, d_model, layers, heads, kv_heads, d_ff, seq_len, .. } = config;
        let rows = (heads + 2 * kv_heads) * config.head_width();
        let tokens = recipe.micro_batch.min(recipe.batch) * seq_len;
        let parameters = config.parameters() as u64;
        let bytes = |values: usize| 4 * values as u64;
        let (kept, work) = match on.place() {
            Place::Host => (3 * d_model + rows + heads + 2 * d_ff + 2, 4 * d_model + d_ff + rows + 1),
            Place::Tape => (10 * d_model + 3 * rows + 4 * d_ff + 3 * heads * seq_len, 4 * d_model + 4 * d_ff),
            Place::Gpu(settings) => return MemoryEstimate::on_gpu(config, tokens, on, settings),
        };
        let logits = LOGITS_MAX.max(vocab).min(tokens * vocab);
        // On the host a layer's weights that share their input, and their gradient, are stacked for a while.
        let stacked = if on.place() == Place::Host { 2 * rows.max(2 * d_ff) * d_model } else { 0 };
        MemoryEstimate {
            weights: 4 * parameters,
            gradients: 4 * parameters,
            optimiser: 8 * parameters,
            activations: bytes(layers) * (tokens as u64) * kept as u64,
            work: bytes(tokens) * work as u64 + bytes(logits + stacked),
            passing: 0,
        }
    }

    /// The buffers of `gpu.rs`, for so many tokens at once.
    fn on_gpu(
        config: &ModelConfig,
        tokens: usize,
        on: DeviceChoice,
        settings: GpuSettings,
    ) -> MemoryEstimate {
        let parameters = config.parameters() as u64;
        let (width, copy) = match settings.precision_for_training(on) {
            Precision::F32 => (4, 0),
            Precision::Bf16 | Precision::F16 => (2, 2 * parameters),
        };
        let [D, F, H, L] =
            [config.d_model, config.d_ff, config.heads, config.layers].map(|length| length as u64);
        let (V, W) =
            (config.vocab as u64, (config.heads + 2 * config.kv_heads) as u64 * config.head_width() as u64);
        let N = tokens as u64;

        // Bytes a token: what goes into a layer; gates and ups; rows, mixed, log-sums, the stream between the halves and both roots.
        let (input, wide, rest) = (4 * D, width * 2 * F, width * (W + D) + 4 * (H + D + 2));
        let kept = match settings.activation_checkpointing {
            ActivationCheckpointing::Nothing => L * (input + rest + wide),
            ActivationCheckpointing::FeedForward => L * (input + rest) + wide,
            ActivationCheckpointing::Layers => L * input + rest + wide,
        };
        // What the last layer gives, and the stream's gradient; norms' and products' results; the inner width; rows' gradient.
        let work = 4 * (2 * D + 1) + width * (3 * D + F + W);
        MemoryEstimate {
            weights: 4 * parameters + copy,
            gradients: 4 * parameters,
            optimiser: 8 * parameters,
            activations: N * kept,
            work: N * work + width * V * logits_rows(config.vocab, tokens) as u64,
            passing: passing(config, tokens, width),
        }
    }

    pub fn total(&self) -> u64 {
        let MemoryEstimate { weights, gradients, optimiser, activations, work, passing } = *self;
        weights + gradients + optimiser + activations + work + passing
    }

    /// Whether a training fits into so many bytes.
    ///
    /// # Errors
    /// If not, with the estimate and the setting to change.
    pub fn check(
        config: &ModelConfig,
        recipe: &Recipe,
        on: DeviceChoice,
        available: u64,
    ) -> Result<(), MemoryError> {
        let estimate = MemoryEstimate::of(config, recipe, on);
        if estimate.total() <= available {
            return Ok(());
        }
        let fewer = recipe.micro_batch.min(recipe.batch).saturating_sub(1);
        let advice = advice(config, recipe, on, fewer, available);
        Err(MemoryError { estimate, available: Some(available), advice })
    }

    /// What is said where a device ran out of memory in the middle of this training.
    #[cfg_attr(not(feature = "gpu"), allow(dead_code, reason = "only a GPU's memory runs out with a word"))]
    pub(crate) fn ran_out(config: &ModelConfig, recipe: &Recipe, on: DeviceChoice) -> MemoryError {
        let estimate = MemoryEstimate::of(config, recipe, on);
        // What was taken did not fit. How much less does is not known: try half of the activations.
        let less = estimate.total() - estimate.activations / 2;
        let fewer = recipe.micro_batch.min(recipe.batch) / 2;
        MemoryError { estimate, available: None, advice: advice(config, recipe, on, fewer, less) }
    }
}

/// What to change so that a training fits: at most `most` sequences at once, or more of the activations computed again.
fn advice(config: &ModelConfig, recipe: &Recipe, on: DeviceChoice, most: usize, available: u64) -> Advice {
    let takes =
        |on, micro_batch| MemoryEstimate::of(config, &Recipe { micro_batch, ..recipe.clone() }, on).total();
    // Memory grows with the sequences: halve what is between one that fits and one that does not.
    let most_that_fit = |on, most: usize| {
        let (mut fits, mut too_many) = (0, most + 1);
        while fits + 1 < too_many {
            let middle = fits.midpoint(too_many);
            if takes(on, middle) <= available { fits = middle } else { too_many = middle }
        }
        fits
    };
    if let fits @ 1.. = most_that_fit(on, most) {
        return Advice::MicroBatch(fits);
    }
    let mut last = on;
    if let DeviceChoice::Gpu(gpu, settings) = on {
        for activation_checkpointing in
            [ActivationCheckpointing::FeedForward, ActivationCheckpointing::Layers]
        {
            if settings.activation_checkpointing == ActivationCheckpointing::Layers
                || settings.activation_checkpointing == activation_checkpointing
            {
                continue;
            }
            last = DeviceChoice::Gpu(gpu, GpuSettings { activation_checkpointing, ..settings });
            if let fits @ 1.. = most_that_fit(last, recipe.micro_batch.min(recipe.batch)) {
                return Advice::ActivationCheckpointing(activation_checkpointing, fits);
            }
        }
    }
    Advice::NotEvenOne(takes(last, 1))
}

/// `kernels::gpu::network::matmul::SUM_VALUES`, which is there only in a build for GPUs.
const SUM_VALUES: usize = 1 << 24;

/// Bytes that kernels on a GPU take for a while: the larger of what attention's way back needs (`kernels::gpu::network::attention::room`) and
/// a product that is added to a gradient (`matmul`).
fn passing(config: &ModelConfig, tokens: usize, width: u64) -> u64 {
    const SCORES: usize = 1 << 25;
    const QUERIES: [usize; 2] = [128, 512];
    const ROWS: usize = 256;
    let &ModelConfig { seq_len: T, heads: H, kv_heads: K, .. } = config;
    let C = config.head_width();
    let sequences = (SCORES / (H * QUERIES[0].min(T) * T)).clamp(1, (tokens / T).max(1));
    let queries = SCORES / (sequences * H * T) / QUERIES[0] * QUERIES[0];
    let queries = queries.clamp(QUERIES[0], QUERIES[1]).min(T);
    let scores = sequences * H * queries * T;
    let (of_queries, of_keys) = (sequences * H * queries * C, sequences * K * T * C);
    let attention =
        (2 * scores + 4 * of_queries + 2 * of_keys) as u64 * width + 4 * (2 * scores + 3 * of_keys) as u64;
    let sums = config
        .shapes()
        .into_iter()
        .map(|(_, [rows, columns])| (SUM_VALUES / columns / ROWS * ROWS).max(ROWS).min(rows) * columns);
    attention.max(4 * sums.max().unwrap_or(0) as u64)
}

/// Rows whose logits exist at once on a GPU: a quarter of a GiB of bf16, and a product large enough to be worth it. All but the last
/// begin where a buffer may.
pub(crate) fn logits_rows(vocab: usize, tokens: usize) -> usize {
    const LOGITS: usize = 1 << 27;
    const BLOCK: usize = 128;
    (LOGITS / vocab / BLOCK * BLOCK).max(BLOCK).min(tokens)
}

impl GpuSettings {
    /// The precision to train in, where none was named: NVIDIA's GPUs that this is for have bf16, and through Vulkan no kernel has.
    pub fn precision_for_training(self, on: DeviceChoice) -> Precision {
        self.precision.unwrap_or(match on {
            DeviceChoice::Gpu(Gpu::Cuda(_), _) => Precision::Bf16,
            _ => Precision::F32,
        })
    }
}

impl fmt::Display for MemoryEstimate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let MemoryEstimate { weights, gradients, optimiser, activations, work, passing } = *self;
        write!(
            f,
            "weights {}, gradients {}, optimiser {}, activations {}, work space {}",
            Bytes(weights),
            Bytes(gradients),
            Bytes(optimiser),
            Bytes(activations),
            Bytes(work + passing)
        )
    }
}

/// As a person reads it.
struct Bytes(u64);

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mebibytes = self.0 as f64 / f64::from(1 << 20);
        if mebibytes < 1024.0 {
            write!(f, "{mebibytes:.1} MiB")
        } else {
            write!(f, "{:.1} GiB", mebibytes / 1024.0)
        }
    }
}

/// Bytes that this process may still take without others being pushed out, where the system tells: what Linux calls
/// available, or what the control group that the process runs in leaves it, if that is less.
pub fn available_memory() -> Option<u64> {
    let read = |path: &str| std::fs::read_to_string(path).ok();
    let of_machine = available_in(&read("/proc/meminfo")?)?;
    let of_group = || {
        let group = "/sys/fs/cgroup/memory";
        let [max, current] = ["max", "current"].map(|name| read(&format!("{group}.{name}")));
        left_in_group(&max?, &current?, &read(&format!("{group}.stat"))?)
    };
    Some(of_group().map_or(of_machine, |left| left.min(of_machine)))
}

/// `MemAvailable` of `/proc/meminfo`, in bytes.
fn available_in(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kibibytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(1024 * kibibytes)
}

/// What a group of version 2 may still take: files that nobody has touched for a while can go. `None` without a limit.
fn left_in_group(max: &str, current: &str, stat: &str) -> Option<u64> {
    let (max, current): (u64, u64) = (max.trim().parse().ok()?, current.trim().parse().ok()?);
    let idle = stat.lines().find_map(|line| line.strip_prefix("inactive_file ")?.trim().parse().ok());
    Some(max.saturating_sub(current.saturating_sub(idle.unwrap_or(0))))
}

/// Tells the C library's allocator to keep what is freed. For the whole process, once; where there is no such setting,
/// nothing happens.
pub(crate) fn keep_freed() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        #[cfg(all(target_os = "linux", target_env = "gnu"))]
        {
            use std::ffi::c_int;
            // Part of the C library that the standard library links anyway.
            unsafe extern "C" {
                fn mallopt(parameter: c_int, value: c_int) -> c_int;
            }
            const M_TRIM_THRESHOLD: c_int = -1;
            const M_MMAP_THRESHOLD: c_int = -3;
            // The largest threshold that glibc takes.
            const MMAP_THRESHOLD: c_int = 32 << 20;
            // SAFETY: mallopt may be called at any time and changes only where later memory comes from. A value that it
            // does not like it ignores.
            unsafe {
                mallopt(M_MMAP_THRESHOLD, MMAP_THRESHOLD);
                mallopt(M_TRIM_THRESHOLD, c_int::MAX);
            }
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    fn recipe(micro_batch: usize) -> Recipe {
        Recipe { batch: 16, micro_batch, ..Recipe::default() }
    }

    #[test]
    fn a_training_that_does_not_fit_is_refused_with_the_setting_to_change() {
        let config = ModelConfig::preset("6m").unwrap();
        let of = |micro_batch| MemoryEstimate::of(&config, &recipe(micro_batch), DeviceChoice::Cpu).total();
        let check = |available| MemoryEstimate::check(&config, &recipe(16), DeviceChoice::Cpu, available);
        assert_eq!(check(of(16)), Ok(()));

        let error = check(of(16) - 1).unwrap_err();
        assert_eq!(error.advice, Advice::MicroBatch(15));
        assert_eq!(check(of(4)).unwrap_err().advice, Advice::MicroBatch(4));
        assert_eq!(
            error.to_string(),
            "training would take about 378.3 MiB (weights 20.9 MiB, gradients 20.9 MiB, optimiser 41.8 MiB, activations \
             252.9 MiB, work space 41.8 MiB), but only 378.3 MiB are free: set micro_batch to 15 or less"
        );
        let error = check(1 << 20).unwrap_err();
        assert_eq!(error.advice, Advice::NotEvenOne(of(1)));
        assert!(error.to_string().ends_with("with more memory, or shorter sequences (seq_len)"), "{error}");
    }

    #[test]
    fn on_a_gpu_computing_again_is_advised_before_giving_up() {
        let config = ModelConfig::preset("1b").unwrap();
        let on = |text: &str| DeviceChoice::parse(text).unwrap();
        let of = |device: &str, micro_batch| MemoryEstimate::of(&config, &recipe(micro_batch), on(device));
        let all = of("cuda:0", 8);
        // 4 bytes each of master, gradient and two moments, 2 of a copy.
        assert_eq!(all.weights + all.gradients + all.optimiser, 18 * config.parameters() as u64);
        let [some, least] =
            ["cuda:0,recompute=feed-forward", "cuda:0,recompute=layers"].map(|device| of(device, 8));
        assert!(2 * some.activations < all.activations && 2 * least.activations < some.activations);
        assert_eq!([some.work, least.work], [all.work; 2]);
        assert_eq!(of("cuda:0,f32", 8).weights, 4 * config.parameters() as u64);

        let check =
            |device: &str, available| MemoryEstimate::check(&config, &recipe(8), on(device), available);
        let one = of("cuda:0,recompute=layers", 1).total();
        assert_eq!(check("cuda:0", all.total() - 1).unwrap_err().advice, Advice::MicroBatch(7));
        assert_eq!(
            check("cuda:0", of("cuda:0", 1).total() - 1).unwrap_err().advice,
            Advice::ActivationCheckpointing(ActivationCheckpointing::FeedForward, 1)
        );
        let error = check("cuda:0", one).unwrap_err();
        assert_eq!(error.advice, Advice::ActivationCheckpointing(ActivationCheckpointing::Layers, 1));
        assert!(
            error.to_string().ends_with(
                "write recompute=layers behind the device's name, and set micro_batch to 1 or less"
            ),
            "{error}"
        );
        assert_eq!(check("cuda:0", one - 1).unwrap_err().advice, Advice::NotEvenOne(one));

        let error = MemoryEstimate::ran_out(&config, &recipe(8), on("cuda:0"));
        assert_eq!(error.advice, Advice::MicroBatch(4));
        assert!(error.to_string().contains("but the device ran out of memory: set micro_batch"), "{error}");
    }

    /// The table in docs/gpu.md, in tenths of a GiB: weights, gradients and moments; then activations and work, by what is recomputed.
    #[test]
    fn presets_for_gpus_take_what_the_guide_tells() {
        for (name, sequences, held, passing) in
            [("150m", 16, 25, [65, 41, 20]), ("1b", 8, 207, [160, 85, 43]), ("8b", 1, 1258, [285, 150, 62])]
        {
            let config = ModelConfig::preset(name).unwrap();
            let words = ["", ",recompute=feed-forward", ",recompute=layers"];
            for (word, passing) in words.into_iter().zip(passing) {
                let on = DeviceChoice::parse(&format!("cuda:0{word}")).unwrap();
                let estimate = MemoryEstimate::of(&config, &recipe(sequences), on);
                let tenths = |bytes: u64| (10.0 * bytes as f64 / f64::from(1 << 30)).round() as i32;
                let weights = estimate.weights + estimate.gradients + estimate.optimiser;
                assert_eq!(
                    (tenths(weights), tenths(estimate.total() - weights)),
                    (held, passing),
                    "{name}{word}"
                );
            }
        }
    }

    #[test]
    #[cfg(feature = "gpu")]
    fn what_attention_takes_for_a_while_is_what_its_kernel_tells() {
        use kernels::{attention::Shape, gpu::network};
        assert_eq!(SUM_VALUES, network::matmul::SUM_VALUES);
        for (name, sequences) in [("117k", 3), ("1m", 16), ("150m", 16), ("1b", 8), ("8b", 1)] {
            let config = ModelConfig::preset(name).unwrap();
            let shape = Shape {
                seq_len: config.seq_len,
                heads: config.heads,
                kv_heads: config.kv_heads,
                head_width: config.head_width(),
            };
            let room = network::attention::room(&shape, sequences, network::Precision::Bf16) as u64;
            let passing = passing(&config, sequences * config.seq_len, 2);
            assert!(
                passing == room || passing > room && passing <= 4 * SUM_VALUES as u64,
                "{name}: {passing} {room}"
            );
        }
    }

    #[test]
    fn more_sequences_at_once_than_a_step_has_take_no_more() {
        let config = ModelConfig::preset("1m").unwrap();
        let of = |micro_batch| MemoryEstimate::of(&config, &recipe(micro_batch), DeviceChoice::Cpu);
        assert_eq!(of(16), of(1000));
        assert!(of(8).activations < of(16).activations);
        assert_eq!(of(8).optimiser, of(16).optimiser);
    }

    #[test]
    fn what_the_system_tells_is_read() {
        assert_eq!(available_in("MemTotal: 9 kB\nMemAvailable:   24 kB\n"), Some(24 * 1024));
        assert_eq!(available_in("MemTotal: 9 kB\n"), None);
        assert_eq!(left_in_group("max\n", "5\n", ""), None);
        assert_eq!(left_in_group("1000\n", "700\n", "anon 1\ninactive_file 200\n"), Some(500));
        assert_eq!(left_in_group("1000\n", "1700\n", ""), Some(0));
        if cfg!(target_os = "linux") {
            assert!(available_memory().unwrap() > 0);
        }
    }
}
