//! Estimate of the memory that training needs, from shapes and settings alone. It also has the sizes of buffers that
//! the engines allocate by it.

#![allow(non_snake_case, reason = "a length is named by its letter: see layers/mod.rs")]

use crate::{
    device::{ActivationCheckpointing, Device, DeviceName, EngineKind},
    layers::{attention, matmul::rows_at_once},
};
use model::{ModelConfig, Recipe};
use std::fmt;

/// Peak memory of a trainer in bytes, by purpose.
///
/// For the fused engines it counts their buffers. On the CPU it is within 10 % of the measurement by `train-report`,
/// except for the smallest models. For Burn it is a fit to the peak of its CPU backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryEstimate {
    /// Weights in f32, and a copy for products in 16 bits.
    pub weights: u64,
    pub gradients: u64,
    /// AdamW's two moments per weight. Muon needs less.
    pub optimiser: u64,
    /// Values that the forward pass of one micro-batch keeps for the backward pass.
    pub activations: u64,
    /// Gradients of activations, logits and other buffers.
    pub work: u64,
    /// Temporary memory of a running GPU kernel.
    pub temporary: u64,
}

/// Error of training that does not fit into memory.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("training takes about {} ({estimate}), but {}: {advice}", Bytes(estimate.total()), shortage(*available))]
pub struct MemoryError {
    pub estimate: MemoryEstimate,
    /// Free bytes before training; `None` if the device ran out of memory later.
    pub available: Option<u64>,
    /// The setting to change.
    pub advice: Advice,
}

/// Error of ranks whose slices do not fit into the memory of their machine.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the {ranks} ranks on this machine keep about {} of gradients and moments in its memory, but only {} are free: spread the ranks over more machines, or use one with more memory",
    Bytes(*needed), Bytes(*free)
)]
pub struct RankMemoryError {
    /// Number of ranks on this machine.
    pub ranks: usize,
    pub needed: u64,
    pub free: u64,
}

/// The setting that makes training fit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Advice {
    /// At most this many sequences at once, which changes only the time.
    MicroBatch(usize),
    /// This many sequences at once, so that a rank has one micro-batch per step and no whole gradient on its GPU.
    OneMicroBatch(usize),
    /// No sequence fits, but this many fit with activation checkpointing.
    ActivationCheckpointing(ActivationCheckpointing, usize),
    /// No sequence fits even then, but a rank with one sequence per step needs only this many bytes of its GPU.
    Ranks(u64),
    /// One sequence at once needs this many bytes, and no setting makes it fit.
    NotEvenOne(u64),
}

impl fmt::Display for Advice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Advice::MicroBatch(sequences) => write!(f, "set micro_batch_sequences to {sequences} or less"),
            Advice::OneMicroBatch(sequences) => write!(
                f,
                "set micro_batch_sequences to {sequences}, so that each GPU has one micro-batch and keeps no whole gradient"
            ),
            Advice::ActivationCheckpointing(checkpointing, sequences) => write!(
                f,
                "set activation_checkpointing = \"{}\" for the device, and micro_batch_sequences to {sequences} or less",
                checkpointing.name()
            ),
            Advice::Ranks(bytes) => write!(
                f,
                "train on several GPUs, a rank each, with batch_sequences at most the number of ranks, \
                 micro_batch_sequences = 1 and activation_checkpointing = \"{}\": each GPU then needs {}",
                ActivationCheckpointing::Layers.name(),
                Bytes(*bytes)
            ),
            Advice::NotEvenOne(bytes) => write!(
                f,
                "one sequence at once takes {}: use a machine with more memory, or shorter sequences (seq_len)",
                Bytes(*bytes)
            ),
        }
    }
}

fn shortage(available: Option<u64>) -> String {
    available.map_or("the device ran out of memory".into(), |free| format!("only {} are free", Bytes(free)))
}

impl MemoryEstimate {
    /// Estimates training of this model by this recipe on this device.
    pub fn new(config: &ModelConfig, recipe: &Recipe, device: Device) -> MemoryEstimate {
        let tokens = recipe.micro_batch.min(recipe.batch) * config.seq_len;
        let &ModelConfig { vocab, d_model, layers, heads, kv_heads, d_ff, seq_len, .. } = config;
        let row_width = (heads + 2 * kv_heads) * config.head_width();
        let [N, V, D, L, H, F, T, W] =
            [tokens, vocab, d_model, layers, heads, d_ff, seq_len, row_width].map(|length| length as u64);
        let (parameters, width) =
            (config.parameters() as u64, device.precision_for_training().bytes() as u64);
        let logits = (LOGITS_MAX as u64).max(V).min(N * V);
        // Bytes per token that the layers keep and of the work space, and further bytes of the work space.
        let (kept, work, others) = match (device.engine(), device.name) {
            (EngineKind::Burn, _) => {
                (4 * L * (10 * D + 3 * W + 4 * F + 3 * H * T), 4 * (4 * D + 4 * F), 4 * logits)
            }
            (EngineKind::Fused, DeviceName::Cpu) => {
                let grad_stack = W.max(2 * F) * D;
                let others = 4 * (logits + grad_stack + V * D + D);
                (4 * L * (3 * D + W + H + 2 * F + 2), 4 * (4 * D + F + W + 1), others)
            }
            (EngineKind::Fused, _) => {
                // A layer's input; gates and ups; rows, mixed, log-sums, the residual stream between the halves,
                // roots.
                let (input, wide, rest) = (4 * D, width * 2 * F, width * (W + D) + 4 * (H + D + 2));
                let kept = match device.activation_checkpointing {
                    ActivationCheckpointing::None => L * (input + rest + wide),
                    ActivationCheckpointing::FeedForward => L * (input + rest) + wide,
                    ActivationCheckpointing::Layers => L * input + rest + wide,
                };
                // The last layer's output and the stream's gradient; norms' and products' outputs; the inner width;
                // rows' gradient.
                let work = 4 * (2 * D + 1) + width * (3 * D + F + W);
                (kept, work, width * V * logits_rows(device.name, width as usize, vocab, tokens) as u64)
            }
        };
        let on_gpu = device.engine() == EngineKind::Fused && device.name != DeviceName::Cpu;
        MemoryEstimate {
            weights: if width == 4 { 4 * parameters } else { (4 + width) * parameters },
            gradients: 4 * parameters,
            optimiser: 8 * parameters,
            activations: N * kept,
            work: N * work + others,
            temporary: if on_gpu { temporary(config, device.name, tokens, width as usize) } else { 0 },
        }
    }

    /// Estimates one of `ranks` that train together by ZeRO-2. Its device holds all weights, and the whole gradient if
    /// micro-batches are added up there (`adds_micro_batches`). Otherwise it holds the gradient of one layer and of
    /// the embedding, or on a CPU of one stack, which counts as work. The rank's part of the gradients' sum and of the
    /// moments is in the machine's memory (`rank_host_bytes`), which counts here if it is the device's.
    #[must_use]
    pub fn of_rank(
        self,
        config: &ModelConfig,
        recipe: &Recipe,
        device: Device,
        ranks: usize,
    ) -> MemoryEstimate {
        let shapes = config.shapes();
        let in_layers: usize =
            shapes[1..shapes.len() - 1].iter().map(|(_, [rows, columns])| rows * columns).sum();
        let others = config.parameters() - in_layers;
        let on_device = match device.name {
            _ if adds_micro_batches(recipe, device, ranks) => self.gradients,
            DeviceName::Cpu => 0,
            _ => 4 * (in_layers / config.layers.max(1) + others) as u64,
        };
        let host = if device.name == DeviceName::Cpu { rank_host_bytes(config, ranks) } else { 0 };
        MemoryEstimate { gradients: on_device + host / 3, optimiser: host - host / 3, ..self }
    }

    /// Returns the bytes for all purposes.
    pub fn total(&self) -> u64 {
        let MemoryEstimate { weights, gradients, optimiser, activations, work, temporary } = *self;
        weights + gradients + optimiser + activations + work + temporary
    }

    /// Checks that training fits into `available` bytes. Skipped if these are unknown, and for Burn, whose estimate is
    /// rough.
    ///
    /// # Errors
    /// If it does not fit; the error has the estimate and the setting to change.
    pub fn check(
        config: &ModelConfig,
        recipe: &Recipe,
        device: Device,
        available: Option<u64>,
    ) -> Result<(), MemoryError> {
        check_as(config, recipe, device, None, available)
    }

    /// Checks the same for one of `ranks` that train together.
    ///
    /// # Errors
    /// Same as [`check`](Self::check).
    pub fn check_rank(
        config: &ModelConfig,
        recipe: &Recipe,
        device: Device,
        ranks: usize,
        available: Option<u64>,
    ) -> Result<(), MemoryError> {
        check_as(config, recipe, device, Some(ranks), available)
    }

    /// Checks that the slices of `here` of `ranks` ranks on GPUs fit into the `free` bytes of their machine's memory.
    ///
    /// # Errors
    /// If they do not fit.
    pub fn check_rank_slices(
        config: &ModelConfig,
        here: usize,
        ranks: usize,
        free: Option<u64>,
    ) -> Result<(), RankMemoryError> {
        let needed = rank_host_bytes(config, ranks) * here as u64;
        match free {
            Some(free) if free < needed => Err(RankMemoryError { ranks: here, needed, free }),
            _ => Ok(()),
        }
    }

    /// Returns the error for a device that ran out of memory during this training, alone or as one of several ranks.
    pub fn ran_out(
        config: &ModelConfig,
        recipe: &Recipe,
        device: Device,
        ranks: Option<usize>,
    ) -> MemoryError {
        let estimate = estimate(config, recipe, device, ranks);
        // The estimate did not fit, and the free memory is unknown: try half of the activations.
        let less = estimate.total() - estimate.activations / 2;
        let fewer = recipe.micro_batch.min(recipe.batch) / 2;
        let advice = advice(config, recipe, device, ranks, fewer, less);
        MemoryError { estimate, available: None, advice }
    }
}

/// Estimates training alone, or as one of several ranks.
fn estimate(config: &ModelConfig, recipe: &Recipe, device: Device, ranks: Option<usize>) -> MemoryEstimate {
    let alone = MemoryEstimate::new(config, recipe, device);
    ranks.map_or(alone, |ranks| alone.of_rank(config, recipe, device, ranks))
}

fn check_as(
    config: &ModelConfig,
    recipe: &Recipe,
    device: Device,
    ranks: Option<usize>,
    available: Option<u64>,
) -> Result<(), MemoryError> {
    let estimate = estimate(config, recipe, device, ranks);
    let Some(free) = available.filter(|_| device.engine() != EngineKind::Burn) else { return Ok(()) };
    if estimate.total() <= free {
        return Ok(());
    }
    let fewer = recipe.micro_batch.min(recipe.batch).saturating_sub(1);
    let advice = advice(config, recipe, device, ranks, fewer, free);
    Err(MemoryError { estimate, available, advice })
}

/// Returns the bytes that one of `ranks` keeps in the machine's memory with AdamW: its part of the gradients' sum and
/// of two moments.
fn rank_host_bytes(config: &ModelConfig, ranks: usize) -> u64 {
    12 * (config.parameters() as u64 / ranks.max(1) as u64)
}

/// Returns whether one of `ranks` adds up the micro-batches of a step on its device, in a whole gradient. A GPU with a
/// single micro-batch passes on each layer's gradient at once, because it would exchange the same bytes.
pub(crate) fn adds_micro_batches(recipe: &Recipe, device: Device, ranks: usize) -> bool {
    match (device.engine(), device.name) {
        (EngineKind::Burn, _) => true,
        (EngineKind::Fused, DeviceName::Cpu) => false,
        (EngineKind::Fused, _) => recipe.micro_batch.saturating_mul(ranks) < recipe.batch,
    }
}

/// Returns the setting that makes training fit into `available` bytes. It is at most `most` sequences at once, more
/// ranks on GPUs (then none holds a whole gradient), or more checkpointing.
fn advice(
    config: &ModelConfig,
    recipe: &Recipe,
    device: Device,
    ranks: Option<usize>,
    most: usize,
    available: u64,
) -> Advice {
    let takes = |device, micro_batch| {
        estimate(config, &Recipe { micro_batch, ..recipe.clone() }, device, ranks).total()
    };
    // From `whole` on, each rank has one micro-batch. Memory drops there, and grows with the sequences below and
    // above: bisect both.
    let whole = recipe.batch.div_ceil(ranks.unwrap_or(1).max(1));
    let most_that_fit = |device, most: usize| {
        let (mut fits, mut too_many) =
            (if most >= whole && takes(device, whole) <= available { whole } else { 0 }, most + 1);
        if fits == 0 {
            too_many = too_many.min(whole);
        }
        while fits + 1 < too_many {
            let middle = fits.midpoint(too_many);
            if takes(device, middle) <= available { fits = middle } else { too_many = middle }
        }
        fits
    };
    if let fits @ 1.. = most_that_fit(device, most) {
        // Fewer sequences at once may need a whole gradient.
        let is_one = 1 < whole && whole <= fits && takes(device, whole) < takes(device, whole - 1);
        return if is_one { Advice::OneMicroBatch(fits) } else { Advice::MicroBatch(fits) };
    }
    if ranks.is_some() && most < whole && takes(device, whole) <= available {
        return Advice::OneMicroBatch(whole);
    }
    let on_gpu = device.engine() == EngineKind::Fused && device.name != DeviceName::Cpu;
    let more: &[ActivationCheckpointing] = match device.activation_checkpointing {
        _ if !on_gpu => &[],
        ActivationCheckpointing::None => {
            &[ActivationCheckpointing::FeedForward, ActivationCheckpointing::Layers]
        }
        ActivationCheckpointing::FeedForward => &[ActivationCheckpointing::Layers],
        ActivationCheckpointing::Layers => &[],
    };
    let mut last = device;
    for &activation_checkpointing in more {
        last = Device { activation_checkpointing, ..device };
        if let fits @ 1.. = most_that_fit(last, recipe.micro_batch.min(recipe.batch)) {
            return Advice::ActivationCheckpointing(activation_checkpointing, fits);
        }
    }
    // On a GPU the memory does not depend on the number of ranks if each has one micro-batch.
    let single = Recipe { batch: 2, micro_batch: 1, ..recipe.clone() };
    let of_rank = estimate(config, &single, last, Some(2)).total();
    if on_gpu && of_rank <= available { Advice::Ranks(of_rank) } else { Advice::NotEvenOne(takes(last, 1)) }
}

/// Maximum number of logits in memory at once on a CPU: 4 MiB.
pub(crate) const LOGITS_MAX: usize = 1 << 20;
/// Bytes of workspace for a cuBLASLt product: NVIDIA's recommendation for Hopper.
pub(crate) const WORKSPACE: usize = 32 << 20;

/// Returns the temporary memory of GPU kernels in bytes. For portable kernels it is the larger of attention's backward
/// pass and a product that is added to a gradient. cuBLASLt's workspace is added.
fn temporary(config: &ModelConfig, device: DeviceName, tokens: usize, width: usize) -> u64 {
    let library = if matches!(device, DeviceName::Cuda(_)) { WORKSPACE as u64 } else { 0 };
    let attention = attention::backward_memory(&config.into(), tokens / config.seq_len, width);
    let sums = config.shapes().into_iter().map(|(_, shape)| 4 * rows_at_once(shape) * shape[1]);
    library + sums.fold(attention, usize::max) as u64
}

/// Returns the number of rows, of `width` bytes per value, whose logits are in a GPU's memory at once. They take 1 GiB
/// on CUDA, where each such part of a batch reads and writes the embedding's gradient (2 GiB in the preset `1b`), and
/// a quarter of that elsewhere. Every part starts at a valid buffer offset.
pub(crate) fn logits_rows(device: DeviceName, width: usize, vocab: usize, tokens: usize) -> usize {
    const BLOCK: usize = 128;
    let bytes = if matches!(device, DeviceName::Cuda(_)) { 1 << 30 } else { 1 << 28 };
    (bytes / (width * vocab) / BLOCK * BLOCK).max(BLOCK).min(tokens)
}

impl fmt::Display for MemoryEstimate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let MemoryEstimate { weights, gradients, optimiser, activations, work, temporary } = *self;
        write!(
            f,
            "weights {}, gradients {}, optimiser {}, activations {}, work space {}",
            Bytes(weights),
            Bytes(gradients),
            Bytes(optimiser),
            Bytes(activations),
            Bytes(work + temporary)
        )
    }
}

/// Bytes in human-readable form.
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

#[cfg(test)]
mod tests {
    use super::*;

    fn recipe(micro_batch: usize) -> Recipe {
        Recipe { batch: 16, micro_batch, ..Recipe::default() }
    }

    #[test]
    fn training_that_does_not_fit_is_refused_with_the_setting_to_change() {
        let config = ModelConfig::preset("6m").unwrap();
        let of = |micro_batch| MemoryEstimate::new(&config, &recipe(micro_batch), Device::CPU).total();
        let check = |available| MemoryEstimate::check(&config, &recipe(16), Device::CPU, Some(available));
        assert_eq!(check(of(16)), Ok(()));

        let error = check(of(16) - 1).unwrap_err();
        assert_eq!(error.advice, Advice::MicroBatch(15));
        assert_eq!(check(of(4)).unwrap_err().advice, Advice::MicroBatch(4));
        assert_eq!(
            error.to_string(),
            "training takes about 380.9 MiB (weights 20.9 MiB, gradients 20.9 MiB, optimiser 41.8 MiB, activations \
             252.9 MiB, work space 44.4 MiB), but only 380.9 MiB are free: set micro_batch_sequences to 15 or less"
        );
        let of_rank = |sequences| {
            let estimate = MemoryEstimate::new(&config, &recipe(sequences), Device::CPU);
            estimate.of_rank(&config, &recipe(sequences), Device::CPU, 4).total()
        };
        assert!(of_rank(16) < of(16));
        let check_rank = |free| MemoryEstimate::check_rank(&config, &recipe(16), Device::CPU, 4, Some(free));
        assert_eq!(check_rank(of_rank(16)), Ok(()));
        assert_eq!(check_rank(of_rank(16) - 1).unwrap_err().advice, Advice::MicroBatch(15));

        let error = check(1 << 20).unwrap_err();
        assert_eq!(error.advice, Advice::NotEvenOne(of(1)));
        assert!(error.to_string().ends_with("with more memory, or shorter sequences (seq_len)"), "{error}");
    }

    #[test]
    fn on_a_gpu_checkpointing_is_advised_before_giving_up() {
        let config = ModelConfig::preset("1b").unwrap();
        let on = |text: &str| -> Device { text.parse().unwrap() };
        let of = |device: &str, micro_batch| MemoryEstimate::new(&config, &recipe(micro_batch), on(device));
        let all = of("cuda:0,fused", 8);
        // 4 bytes each for master, gradient and two moments, 2 for a copy.
        assert_eq!(all.weights + all.gradients + all.optimiser, 18 * config.parameters() as u64);
        let [some, least] = ["cuda:0,fused,recompute=feed-forward", "cuda:0,fused,recompute=layers"]
            .map(|device| of(device, 8));
        assert!(2 * some.activations < all.activations && 2 * least.activations < some.activations);
        assert_eq!([some.work, least.work], [all.work; 2]);
        assert_eq!(of("cuda:0,fused,f32", 8).weights, 4 * config.parameters() as u64);

        let check =
            |device: &str, available| MemoryEstimate::check(&config, &recipe(8), on(device), Some(available));
        let one = of("cuda:0,fused,recompute=layers", 1).total();
        assert_eq!(check("cuda:0,fused", all.total() - 1).unwrap_err().advice, Advice::MicroBatch(7));
        assert_eq!(
            check("cuda:0,fused", of("cuda:0,fused", 1).total() - 1).unwrap_err().advice,
            Advice::ActivationCheckpointing(ActivationCheckpointing::FeedForward, 1)
        );
        let error = check("cuda:0,fused", one).unwrap_err();
        assert_eq!(error.advice, Advice::ActivationCheckpointing(ActivationCheckpointing::Layers, 1));
        assert!(
            error.to_string().ends_with(
                "set activation_checkpointing = \"layers\" for the device, and micro_batch_sequences to 1 or less"
            ),
            "{error}"
        );
        // One of several GPUs has neither the moments nor the whole gradient.
        let single = Recipe { batch: 8, micro_batch: 1, ..Recipe::default() };
        let rank = estimate(&config, &single, on("cuda:0,fused,recompute=layers"), Some(8)).total();
        for device in ["cuda:0,fused", "cuda:0,fused,recompute=layers"] {
            assert_eq!(check(device, one - 1).unwrap_err().advice, Advice::Ranks(rank));
            assert_eq!(check(device, rank).unwrap_err().advice, Advice::Ranks(rank));
            assert_eq!(check(device, rank - 1).unwrap_err().advice, Advice::NotEvenOne(one));
        }
        let ranks = |available| {
            MemoryEstimate::check_rank(&config, &recipe(1), on("cuda:0,fused"), 8, Some(available))
        };
        let error = ranks(rank).unwrap_err();
        assert_eq!(error.advice, Advice::Ranks(rank), "a batch of 16 is too large");
        assert!(
            error.to_string().ends_with(&format!(
                "train on several GPUs, a rank each, with batch_sequences at most the number of ranks, \
                 micro_batch_sequences = 1 and activation_checkpointing = \"layers\": each GPU then needs {}",
                Bytes(rank)
            )),
            "{error}"
        );

        let error = MemoryEstimate::ran_out(&config, &recipe(8), on("cuda:0,fused"), None);
        assert_eq!(error.advice, Advice::MicroBatch(4));
        assert!(
            error.to_string().contains("but the device ran out of memory: set micro_batch_sequences"),
            "{error}"
        );
    }

    /// The table in docs/gpu.md, in tenths of a GiB: weights, gradients and moments; then the rest, by checkpointing.
    #[test]
    fn presets_for_gpus_take_what_the_guide_says() {
        for (name, sequences, held, activations) in
            [("150m", 16, 25, [73, 49, 28]), ("1b", 8, 207, [168, 93, 50]), ("8b", 1, 1258, [293, 157, 70])]
        {
            let config = ModelConfig::preset(name).unwrap();
            let words = ["", ",recompute=feed-forward", ",recompute=layers"];
            for (word, activations) in words.into_iter().zip(activations) {
                let device: Device = format!("cuda:0,fused{word}").parse().unwrap();
                let estimate = MemoryEstimate::new(&config, &recipe(sequences), device);
                let tenths = |bytes: u64| (10.0 * bytes as f64 / f64::from(1 << 30)).round() as i32;
                let weights = estimate.weights + estimate.gradients + estimate.optimiser;
                assert_eq!(
                    (tenths(weights), tenths(estimate.total() - weights)),
                    (held, activations),
                    "{name}{word}"
                );
            }
        }
    }

    #[test]
    fn ranks_on_gpus_keep_their_slices_in_the_machines_memory() {
        let config = ModelConfig::preset("1b").unwrap();
        let device: Device = "cuda:0,fused".parse().unwrap();
        let alone = MemoryEstimate::new(&config, &recipe(8), device);
        // With a batch of 16, each of eight ranks has two micro-batches of one sequence, or one of two.
        let [adds, single] = [1, 2].map(|sequences| alone.of_rank(&config, &recipe(sequences), device, 8));
        assert_eq!((adds.weights, adds.gradients), (alone.weights, alone.gradients));
        let ModelConfig { vocab, d_model, layers, .. } = config;
        let others = vocab * d_model + d_model;
        let layer = (config.parameters() - others) / layers;
        assert_eq!((single.weights, single.gradients), (alone.weights, 4 * (layer + others) as u64));
        assert_eq!([adds.optimiser, single.optimiser], [0; 2], "the moments are not on the GPU");
        let all = 12 * config.parameters() as u64;
        let check = |here, free| MemoryEstimate::check_rank_slices(&config, here, 8, Some(free));
        assert_eq!((check(8, all), check(4, all / 2)), (Ok(()), Ok(())));
        let refused = check(8, all - 8).unwrap_err().to_string();
        assert!(refused.contains("8 ranks on this machine keep about 13.8 GiB"), "{refused}");
        assert_eq!(MemoryEstimate::check_rank_slices(&config, 8, 8, None), Ok(()));

        // A micro-batch of two needs less than one of one: fewer sequences at once would not help.
        let takes = |sequences, ranks| estimate(&config, &recipe(sequences), device, Some(ranks)).total();
        assert!(takes(2, 8) < takes(1, 8) && takes(2, 8) < takes(3, 8));
        let advised = |micro_batch, ranks, free| {
            let checked =
                MemoryEstimate::check_rank(&config, &recipe(micro_batch), device, ranks, Some(free));
            checked.unwrap_err().advice
        };
        assert_eq!(advised(1, 8, takes(1, 8) - 1), Advice::OneMicroBatch(2));
        assert_eq!(advised(16, 8, takes(2, 8)), Advice::OneMicroBatch(2));
        assert_eq!(advised(4, 2, takes(1, 2)), Advice::MicroBatch(1));

        // The same after the device ran out of memory, where a single GPU would have to recompute.
        let ran_out =
            |micro_batch, ranks| MemoryEstimate::ran_out(&config, &recipe(micro_batch), device, ranks);
        assert_eq!(ran_out(1, Some(8)).advice, Advice::OneMicroBatch(2));
        assert_eq!(ran_out(1, Some(8)).estimate.total(), takes(1, 8));
        assert_eq!(ran_out(4, Some(2)).advice, Advice::MicroBatch(2));
        let feed_forward = Advice::ActivationCheckpointing(ActivationCheckpointing::FeedForward, 1);
        assert_eq!(ran_out(1, None).advice, feed_forward);
    }

    #[test]
    fn a_micro_batch_above_the_batch_takes_no_more() {
        let config = ModelConfig::preset("1m").unwrap();
        let of = |micro_batch| MemoryEstimate::new(&config, &recipe(micro_batch), Device::CPU);
        assert_eq!(of(16), of(1000));
        assert!(of(8).activations < of(16).activations);
        assert_eq!(of(8).optimiser, of(16).optimiser);
    }
}
