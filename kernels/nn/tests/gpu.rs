//! Training by kernels on a GPU does what training on the CPU does, on whatever device is here.
//!
//! A software Vulkan device (lavapipe) is enough. Which device is asked for is `GPU_DEVICE`, `vulkan` by default; all runs are in
//! f32 but those that name bf16. Where there is no device the tests are counted as ignored, with the reason: so this is a program
//! of its own, which prints what the usual harness prints.

// One harness for all who need a device: a test program of another crate cannot be depended on.
#[path = "../../../kernels/tests/common/harness.rs"]
mod harness;

use harness::Found;
use mettle_nn::{
    ActivationCheckpointing, DeviceChoice, DeviceError, Evaluator, Gpu, GpuSettings, MemoryEstimate,
    ModelError, Precision, Trainer,
};
use model::{ModelConfig, Optimiser, Recipe, init_flat};
use protocol::contribution::{Sparse, SparseTensor};

type Test = (&'static str, fn(Gpu));

const TESTS: &[Test] = &[
    ("losses_and_gradients_are_those_of_the_cpu", losses_and_gradients),
    ("twenty_steps_stay_beside_the_cpus", twenty_steps),
    ("micro_batches_add_up_to_the_batch", micro_batches),
    ("computing_activations_again_changes_no_bit_and_takes_less_memory", recompute),
    ("two_runs_have_the_same_bits", two_runs),
    ("threads_that_take_turns_give_the_bits_of_one", threads),
    ("a_restored_run_goes_on_to_the_same_bits", restored),
    ("going_on_takes_no_memory_that_training_does_not", resumed_memory),
    ("a_state_goes_from_the_cpu_to_the_gpu_and_back", state_of_the_cpu),
    ("a_damaged_state_is_refused_and_nothing_changes", damaged_state),
    ("a_loss_that_is_no_number_or_too_high_is_refused_with_the_state_kept", refused_losses),
    ("the_estimate_is_what_is_taken", estimate),
    ("what_does_not_fit_is_refused_with_the_setting_to_change", too_large),
    ("what_a_gpu_cannot_do_is_refused", cannot_do),
    ("losses_and_logits_of_an_evaluator_are_those_of_the_cpu", evaluator),
    ("a_contribution_is_taken_back_to_the_bit", contribution),
    ("products_in_16_bits_stay_beside_f32", sixteen_bits),
    ("the_report_tells_what_was_measured_and_that_it_agrees", report),
];

fn main() {
    let name = harness::device_name();
    let Ok(DeviceChoice::Gpu(gpu, _)) = DeviceChoice::parse(&name) else {
        harness::main(TESTS, Found::Broken(format!("GPU_DEVICE is {name}, which is no GPU")), |_| ());
    };
    let config = shape(17, 1, 2, 1, 4, 8, 3);
    let found = match Evaluator::new(&config, on(gpu), &init_flat(&config, 1).unwrap()) {
        Ok(_) => Found::Ready(format!("on {name}")),
        Err(
            error @ ModelError::Device(
                DeviceError::NotThere(_)
                | DeviceError::BuiltWithout
                | DeviceError::BuiltWithoutVulkan
                | DeviceError::NoDriver
                | DeviceError::NoSuchGpu { .. },
            ),
        ) => Found::Absent(error.to_string()),
        Err(error) => Found::Broken(error.to_string()),
    };
    harness::main(TESTS, found, |test| test(gpu))
}

/// In f32, all activations kept.
fn on(gpu: Gpu) -> DeviceChoice {
    again(gpu, ActivationCheckpointing::Nothing)
}

fn again(gpu: Gpu, activation_checkpointing: ActivationCheckpointing) -> DeviceChoice {
    DeviceChoice::Gpu(gpu, GpuSettings { precision: Some(Precision::F32), activation_checkpointing })
}

fn shape(
    vocab: usize,
    layers: usize,
    heads: usize,
    kv_heads: usize,
    head_width: usize,
    d_ff: usize,
    seq_len: usize,
) -> ModelConfig {
    let config = ModelConfig::preset("117k").unwrap();
    ModelConfig { vocab, d_model: heads * head_width, layers, heads, kv_heads, d_ff, seq_len, ..config }
}

/// A model with grouped heads, small enough for a GPU that is a CPU.
fn grouped() -> ModelConfig {
    shape(100, 2, 4, 2, 16, 96, 32)
}

fn recipe(batch: usize, micro_batch: usize) -> Recipe {
    Recipe { batch, micro_batch, learning_rate: 1e-3, warmup_steps: 2, ..Recipe::default() }
}

/// Twice the first weights: what a layer adds, and how unevenly a query looks, must matter.
fn weights(config: &ModelConfig) -> Vec<f32> {
    init_flat(config, 1).unwrap().into_iter().map(|value| 2.0 * value).collect()
}

/// The same tokens for the same seed. Small ids are more frequent, so that there is something to learn.
fn sequences(config: &ModelConfig, count: usize, seed: u64) -> Vec<Vec<u32>> {
    let mut state = seed;
    let mut token = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let uniform = (state >> 33) as f64 / f64::from(1u32 << 31);
        (uniform * uniform * config.vocab as f64) as u32
    };
    (0..count).map(|_| (0..=config.seq_len).map(|_| token()).collect()).collect()
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

/// The loss and all gradients of a batch: after a first step AdamW's mean is a tenth of the gradient.
fn loss_and_gradients(
    config: &ModelConfig,
    recipe: &Recipe,
    on: DeviceChoice,
    batch: &[Vec<u32>],
) -> (f64, Vec<Vec<f32>>) {
    let recipe = Recipe { clip_norm: 1e9, ..recipe.clone() };
    let mut trainer = Trainer::new(config, &recipe, on, &weights(config)).unwrap();
    let step = trainer.step(batch).unwrap();
    let state = trainer.state();
    let mut rest = &state[48..state.len() - 32];
    let mut gradients = Vec::new();
    for tensor in config.schema().unwrap().tensors() {
        let len: usize = tensor.shape.iter().map(|&size| size as usize).product();
        let (mean, behind) = rest.split_at(4 * len);
        rest = &behind[4 * len..];
        let value = |bytes: &[u8; 4]| f32::from_le_bytes(*bytes) / 0.1;
        gradients.push(mean.as_chunks::<4>().0.iter().map(value).collect());
    }
    assert!(rest.is_empty());
    (step.loss, gradients)
}

/// How far gradients are from others, as shares of each tensor's largest.
fn apart(ours: &[Vec<f32>], exact: &[Vec<f32>]) -> f64 {
    let largest_of_all = exact.iter().flatten().fold(0.0f32, |max, x| max.max(x.abs()));
    let of_tensors = ours.iter().zip(exact).map(|(ours, exact)| {
        let largest = exact.iter().fold(0.0f32, |max, x| max.max(x.abs())) + 1e-2 * largest_of_all;
        let furthest = ours.iter().zip(exact).fold(0.0f32, |max, (one, other)| max.max((one - other).abs()));
        f64::from(furthest / largest)
    });
    of_tensors.fold(0.0, f64::max)
}

fn losses_and_gradients(gpu: Gpu) {
    let shapes = [
        (shape(256, 2, 2, 2, 32, 176, 64), 2),
        (grouped(), 3),
        // One key head for all, a single layer, lengths that no vector divides, and more logits than one sequence has.
        (shape(301, 1, 6, 1, 10, 70, 19), 5),
        (shape(40, 3, 3, 3, 8, 50, 1), 4),
        (shape(64, 1, 2, 1, 64, 64, 130), 1),
    ];
    for (config, count) in shapes {
        let batch = sequences(&config, count, 7);
        let recipe = recipe(count, count);
        let (exact_loss, exact) = loss_and_gradients(&config, &recipe, DeviceChoice::Cpu, &batch);
        let (loss, gradients) = loss_and_gradients(&config, &recipe, on(gpu), &batch);
        let apart = apart(&gradients, &exact);
        println!("  loss {loss:.7}, on the CPU {exact_loss:.7}; gradients {apart:.1e} apart");
        assert!((loss - exact_loss).abs() < 1e-5 * exact_loss, "{config:?}");
        assert!(apart < 1e-4, "{config:?}");
    }
}

fn trained(config: &ModelConfig, recipe: &Recipe, on: DeviceChoice, steps: usize) -> (Trainer, Vec<f64>) {
    let mut trainer = Trainer::new(config, recipe, on, &init_flat(config, 1).unwrap()).unwrap();
    let losses = (0..steps).map(|step| {
        let batch = sequences(config, recipe.batch, 1 + step as u64 % 5);
        trainer.step(&batch).unwrap().loss
    });
    let losses = losses.collect();
    (trainer, losses)
}

fn twenty_steps(gpu: Gpu) {
    let config = ModelConfig::preset("117k").unwrap();
    let recipe = Recipe { learning_rate: 4e-3, warmup_steps: 5, ..recipe(4, 2) };
    let (_, exact) = trained(&config, &recipe, DeviceChoice::Cpu, 20);
    let (_, losses) = trained(&config, &recipe, on(gpu), 20);
    let apart = losses.iter().zip(&exact).map(|(one, other)| (one - other).abs()).fold(0.0, f64::max);
    println!("  from {:.4} to {:.4}, {apart:.1e} from the CPU's", losses[0], losses[19]);
    assert!(losses[19] < losses[0] - 0.5, "{losses:?}");
    assert!(apart < 1e-4, "{losses:?} {exact:?}");
}

fn micro_batches(gpu: Gpu) {
    let config = grouped();
    let batch = sequences(&config, 6, 3);
    let (exact_loss, exact) = loss_and_gradients(&config, &recipe(6, 6), on(gpu), &batch);
    // 4 leaves a smaller one at the end.
    for micro_batch in [1, 2, 4] {
        let (loss, gradients) = loss_and_gradients(&config, &recipe(6, micro_batch), on(gpu), &batch);
        assert!((loss - exact_loss).abs() < 1e-6, "{micro_batch}: {loss} {exact_loss}");
        assert!(apart(&gradients, &exact) < 1e-5, "{micro_batch}");
    }
    // A micro-batch larger than the batch it is told of has room for that batch only, and more is taken in turns.
    let (loss, gradients) = loss_and_gradients(&config, &recipe(4, 16), on(gpu), &batch);
    assert!((loss - exact_loss).abs() < 1e-6, "{loss} {exact_loss}");
    assert!(apart(&gradients, &exact) < 1e-5);
}

fn recompute(gpu: Gpu) {
    let config = ModelConfig { layers: 3, ..grouped() };
    let run = |activation_checkpointing| {
        let (trainer, losses) = trained(&config, &recipe(4, 2), again(gpu, activation_checkpointing), 3);
        let losses: Vec<u64> = losses.iter().map(|loss| loss.to_bits()).collect();
        (losses, bits(&trainer.weights_flat()), trainer.state())
    };
    let kept = run(ActivationCheckpointing::Nothing);
    let memory = |activation_checkpointing| {
        MemoryEstimate::of(&config, &recipe(4, 2), again(gpu, activation_checkpointing)).total()
    };
    for activation_checkpointing in [ActivationCheckpointing::FeedForward, ActivationCheckpointing::Layers] {
        assert!(run(activation_checkpointing) == kept, "{activation_checkpointing:?}");
        assert!(memory(activation_checkpointing) < memory(ActivationCheckpointing::Nothing));
    }
}

fn two_runs(gpu: Gpu) {
    let config = grouped();
    let run = || {
        let (trainer, losses) = trained(&config, &recipe(4, 2), on(gpu), 5);
        (
            losses.iter().map(|loss| loss.to_bits()).collect::<Vec<u64>>(),
            bits(&trainer.weights_flat()),
            trainer.state(),
        )
    };
    assert!(run() == run());
}

/// As in a miner: one thread makes, loads and reads what another steps, and nothing is waited for but the calls themselves.
fn threads(gpu: Gpu) {
    let config = grouped();
    let run = |elsewhere: bool| {
        let mut trainer = Trainer::new(&config, &recipe(4, 2), on(gpu), &weights(&config)).unwrap();
        let mut seen = Vec::new();
        for window in 0..3 {
            let mut steps = || {
                for seed in 3 * window..3 * window + 3 {
                    trainer.step(&sequences(&config, 4, seed)).unwrap();
                }
            };
            if elsewhere {
                std::thread::scope(|scope| scope.spawn(steps).join().unwrap());
            } else {
                steps();
            }
            let flat = trainer.weights_flat();
            seen.push((bits(&flat), trainer.state()));
            let next: Vec<f32> = flat.iter().map(|value| 0.5 * value).collect();
            trainer.load(&next).unwrap();
            trainer.restore(&seen[seen.len() - 1].1).unwrap();
        }
        seen
    };
    let exact = run(false);
    for (window, (ours, exact)) in run(true).into_iter().zip(exact).enumerate() {
        assert!(ours.0 == exact.0, "the weights after window {window}");
        assert!(ours.1 == exact.1, "the state after window {window}");
    }
}

fn restored(gpu: Gpu) {
    let config = grouped();
    let (mut trainer, _) = trained(&config, &recipe(4, 2), on(gpu), 3);
    let mut weights = Vec::new();
    trainer.write_weights(&mut weights).unwrap();
    let flat: Vec<f32> = weights.as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect();
    assert_eq!(bits(&flat), bits(&trainer.weights_flat()));
    let state = trainer.state();

    let mut other = Trainer::new(&config, &recipe(4, 2), on(gpu), &init_flat(&config, 9).unwrap()).unwrap();
    other.step(&sequences(&config, 4, 99)).unwrap();
    other.load(&flat).unwrap();
    let mut source = &state[..];
    other.read_state(&mut source).unwrap();
    assert!(source.is_empty());
    assert_eq!((other.steps(), other.state()), (3, state));
    for seed in 20..23 {
        let batch = sequences(&config, 4, seed);
        assert_eq!(trainer.step(&batch).unwrap(), other.step(&batch).unwrap());
    }
    assert_eq!(bits(&trainer.weights_flat()), bits(&other.weights_flat()));
    assert_eq!(trainer.state(), other.state());
    assert!(other.is_finite().unwrap());
}

fn resumed_memory(gpu: Gpu) {
    let config = ModelConfig { layers: 3, ..ModelConfig::preset("1m").unwrap() };
    let flat = init_flat(&config, 1).unwrap();
    let mut trainer = Trainer::new(&config, &recipe(1, 1), on(gpu), &flat).unwrap();
    let state = trainer.state();
    let [used, held] = trainer.gpu_memory().unwrap();
    trainer.restore(&state).unwrap();
    let after = trainer.gpu_memory().unwrap();
    println!("  {used} bytes used and {held} held before, {after:?} after");
    // What was held once was the most that there was.
    assert!(after[0] <= used && after[1] <= held);
    assert_eq!(trainer.state(), state);
}

fn state_of_the_cpu(gpu: Gpu) {
    let config = grouped();
    let (on_cpu, _) = trained(&config, &recipe(4, 2), DeviceChoice::Cpu, 3);
    let mut on_gpu = Trainer::new(&config, &recipe(4, 2), on(gpu), &on_cpu.weights_flat()).unwrap();
    on_gpu.restore(&on_cpu.state()).unwrap();
    assert_eq!(on_gpu.state(), on_cpu.state(), "the same bytes for the same numbers");
    assert_eq!(bits(&on_gpu.weights_flat()), bits(&on_cpu.weights_flat()));
    assert_eq!(on_gpu.steps(), 3);
}

fn damaged_state(gpu: Gpu) {
    let config = grouped();
    let (mut trainer, _) = trained(&config, &recipe(2, 2), on(gpu), 2);
    let state = trainer.state();
    let mut bent = state.clone();
    bent[1000] ^= 1;
    let long = [&state[..], &[0]].concat();
    for damaged in [&bent[..], &state[..state.len() - 1], &long, &[]] {
        assert!(trainer.restore(damaged).is_err());
    }
    assert!(trainer.read_state(&mut &bent[..]).is_err());
    assert_eq!(trainer.state(), state);
}

fn refused_losses(gpu: Gpu) {
    let config = grouped();
    let (mut trainer, _) = trained(&config, &recipe(2, 2), on(gpu), 2);
    let (weights, state) = (trainer.weights_flat(), trainer.state());
    let batch = sequences(&config, 2, 50);
    trainer.refuse_loss_above(1e-3);
    assert!(matches!(trainer.step(&batch), Err(ModelError::Exploded { .. })));
    trainer.refuse_loss_above(f64::INFINITY);

    let mut spoilt = weights.clone();
    spoilt[3] = f32::NAN;
    spoilt[config.vocab * config.d_model - 1] = f32::NAN;
    trainer.load(&spoilt).unwrap();
    assert!(!trainer.is_finite().unwrap());
    assert!(matches!(trainer.step(&batch), Err(ModelError::NotFinite { .. })));
    assert_eq!(bits(&trainer.weights_flat()), bits(&spoilt), "nothing was stepped");
    assert_eq!((trainer.state(), trainer.steps()), (state, 2));

    trainer.load(&weights).unwrap();
    let loss = trainer.step(&batch).unwrap().loss;
    let mut fresh = Trainer::new(&config, &recipe(2, 2), on(gpu), &weights).unwrap();
    assert_eq!(fresh.step(&batch).unwrap().loss, loss, "nothing of the refused steps is left");
    assert!(trainer.load(&weights[1..]).is_err());
    assert!(trainer.step(&[vec![0; 3]]).is_err());
}

fn estimate(gpu: Gpu) {
    let config = ModelConfig { layers: 3, ..ModelConfig::preset("1m").unwrap() };
    let recipe = recipe(8, 8);
    for activation_checkpointing in [
        ActivationCheckpointing::Layers,
        ActivationCheckpointing::FeedForward,
        ActivationCheckpointing::Nothing,
    ] {
        let small = shape(17, 1, 2, 1, 4, 8, 3);
        let one = Recipe { batch: 1, ..recipe.clone() };
        let nothing = Trainer::new(&small, &one, on(gpu), &init_flat(&small, 1).unwrap()).unwrap();
        let [nothing, _] = nothing.gpu_memory().unwrap();
        let flat = init_flat(&config, 1).unwrap();
        let mut trainer =
            Trainer::new(&config, &recipe, again(gpu, activation_checkpointing), &flat).unwrap();
        let [planned, _] = trainer.gpu_memory().unwrap();
        trainer.step(&sequences(&config, 8, 1)).unwrap();
        let [_, held] = trainer.gpu_memory().unwrap();
        let mebibytes = |bytes: u64| bytes as f64 / f64::from(1 << 20);
        let [planned, held] = [planned - nothing, held].map(mebibytes);
        let estimate = MemoryEstimate::of(&config, &recipe, again(gpu, activation_checkpointing));
        let [total, passing] = [estimate.total(), estimate.passing].map(mebibytes);
        println!(
            "  {activation_checkpointing:?}: {planned:.2} MiB planned and {held:.2} held; estimated {:.2} and {total:.2}",
            total - passing
        );
        assert!(((total - passing) / planned - 1.0).abs() < 0.01, "{activation_checkpointing:?}");
    }
}

fn too_large(gpu: Gpu) {
    let config = grouped();
    let recipe = recipe(1 << 30, 1 << 30);
    let error = Trainer::new(&config, &recipe, on(gpu), &init_flat(&config, 1).unwrap()).err().unwrap();
    assert!(matches!(error, ModelError::Memory(_)), "{error}");
    assert!(error.to_string().contains("set micro_batch to"), "{error}");
}

fn cannot_do(gpu: Gpu) {
    let config = grouped();
    let flat = init_flat(&config, 1).unwrap();
    let muon = Recipe { optimiser: Optimiser::Muon, ..recipe(2, 2) };
    let refused = |recipe: &Recipe, on| Trainer::new(&config, recipe, on, &flat).err();
    assert_eq!(refused(&muon, on(gpu)), Some(ModelError::Device(DeviceError::NoMuon)));
    assert!(Trainer::new(&config, &recipe(2, 2), on(gpu), &flat[1..]).is_err());
    let missing = DeviceChoice::Gpu(Gpu::Cuda(999), GpuSettings::default());
    assert!(matches!(refused(&recipe(2, 2), missing), Some(ModelError::Device(_))));
}

fn evaluator(gpu: Gpu) {
    for config in [grouped(), ModelConfig::preset("117k").unwrap()] {
        let flat = weights(&config);
        let (exact, ours) = (
            Evaluator::new(&config, DeviceChoice::Cpu, &flat).unwrap(),
            Evaluator::new(&config, on(gpu), &flat).unwrap(),
        );
        let sequences = sequences(&config, 9, 5);
        let [exact_losses, losses] = [&exact, &ours].map(|evaluator| evaluator.losses(&sequences).unwrap());
        let apart =
            losses.iter().zip(&exact_losses).map(|(one, other)| (one - other).abs()).fold(0.0, f64::max);
        assert!(losses.len() == 9 && apart < 1e-5, "{losses:?} {exact_losses:?}");
        for len in [1, 7, config.seq_len] {
            let tokens = &sequences[0][..len];
            let [exact, ours] = [&exact, &ours].map(|evaluator| evaluator.logits(tokens).unwrap());
            let apart =
                exact.iter().zip(&ours).fold(0.0f32, |max, (one, other)| max.max((one - other).abs()));
            let largest = exact.iter().fold(0.0f32, |max, x| max.max(x.abs()));
            assert!(
                ours.len() == len * config.vocab && apart < 5e-5 * largest,
                "{len}: {apart} of {largest}"
            );
        }
        assert!(ours.losses::<Vec<u32>>(&[]).unwrap().is_empty());
    }
}

fn contribution(gpu: Gpu) {
    let config = grouped();
    let flat = weights(&config);
    let mut ours = Evaluator::new(&config, on(gpu), &flat).unwrap();
    let mut exact = Evaluator::new(&config, DeviceChoice::Cpu, &flat).unwrap();
    let schema = config.schema().unwrap();
    let tensors = schema.tensors().iter().map(|tensor| {
        let len: u32 = tensor.shape.iter().product();
        let positions: Vec<u32> = (0..len).step_by(3).collect();
        let values = positions.iter().map(|&at| (at as f32).sin()).collect();
        SparseTensor { positions, values, square_norm: 0.0 }
    });
    let update = Sparse { tensors: tensors.collect() };
    let sequences = sequences(&config, 4, 8);
    let before = ours.losses(&sequences).unwrap();
    let with = ours.losses_with(&update, 0.05, &sequences).unwrap();
    let exact = exact.losses_with(&update, 0.05, &sequences).unwrap();
    assert!(with.iter().zip(&exact).all(|(one, other)| (one - other).abs() < 1e-5), "{with:?} {exact:?}");
    assert!(with.iter().zip(&before).all(|(one, other)| (one - other).abs() > 1e-3), "it changes something");
    assert_eq!(ours.losses(&sequences).unwrap(), before);
    assert_eq!(bits(&ours.weights_flat()), bits(&flat));

    let other: Vec<f32> = flat.iter().map(|value| 0.5 * value).collect();
    ours.load(&other).unwrap();
    assert_ne!(ours.losses(&sequences).unwrap(), before);
    assert!(ours.load(&flat[1..]).is_err());
}

fn sixteen_bits(gpu: Gpu) {
    let config = grouped();
    let in_precision = |precision, activation_checkpointing| {
        DeviceChoice::Gpu(gpu, GpuSettings { precision: Some(precision), activation_checkpointing })
    };
    let flat = weights(&config);
    let mut tried = 0;
    for precision in [Precision::Bf16, Precision::F16] {
        let on_sixteen = in_precision(precision, ActivationCheckpointing::Nothing);
        if let Err(error) = Evaluator::new(&config, on_sixteen, &flat) {
            // A device without it says so, and trains in f32 if nothing is named.
            let says = matches!(error, ModelError::Device(DeviceError::NoSuchPrecision { .. }));
            assert!(says, "{error}");
            println!("  {error}");
            continue;
        }
        tried += 1;
        let batch = sequences(&config, 4, 7);
        let (exact_loss, exact) = loss_and_gradients(&config, &recipe(4, 2), on(gpu), &batch);
        let (loss, gradients) = loss_and_gradients(&config, &recipe(4, 2), on_sixteen, &batch);
        let apart = apart(&gradients, &exact);
        println!("  {precision:?}: loss {loss:.5}, in f32 {exact_loss:.5}; gradients {apart:.1e} apart");
        assert!((loss - exact_loss).abs() < 0.02 * exact_loss && apart < 0.1);
        let losses_of = |on: DeviceChoice| {
            let evaluator = Evaluator::new(&config, on, &flat).unwrap();
            evaluator.losses(&batch).unwrap()
        };
        let evaluated = losses_of(on_sixteen).into_iter().zip(losses_of(on(gpu)));
        assert!(evaluated.into_iter().all(|(one, other)| one != other && (one - other).abs() < 0.05));
        let steps = |on| trained(&config, &recipe(4, 2), on, 20);
        let ((trainer, losses), (_, exact)) = (steps(on_sixteen), steps(on(gpu)));
        let apart = losses.iter().zip(&exact).map(|(one, other)| (one - other).abs()).fold(0.0, f64::max);
        println!("  20 steps {apart:.1e} apart");
        assert!(apart < 0.05, "{losses:?} {exact:?}");
        let (again, _) = steps(in_precision(precision, ActivationCheckpointing::Layers));
        assert_eq!(bits(&again.weights_flat()), bits(&trainer.weights_flat()));
    }
    let unnamed = DeviceChoice::Gpu(gpu, GpuSettings::default());
    assert!(Trainer::new(&config, &recipe(2, 2), unnamed, &flat).is_ok());
    println!("  {tried} of 2 precisions are there");
}

fn report(gpu: Gpu) {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name);
    let run = |arguments: &[&str], out: &str| -> serde_json::Value {
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_train-report"));
        command.args(["--device", &on(gpu).to_string(), "--preset", "117k", "--batch", "2"]);
        let output = command.args(arguments).arg("--out").arg(at(out)).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        serde_json::from_slice(&std::fs::read(at(out)).unwrap()).unwrap()
    };
    let agreement = run(&["--agree"], "agreement.json");
    assert!(agreement["ways"][0]["apart"].as_f64().unwrap() < 1e-3, "{agreement}");

    let twin = at("twin");
    let twin = twin.to_str().unwrap();
    let report =
        run(&["--steps", "2", "--micro-batch", "1", "--peak-tflops", "0.5", "--twin", twin], "report.json");
    let preset = &report["presets"][0];
    let number = |name: &str| preset[name].as_f64().unwrap_or_else(|| panic!("no {name} in {preset}"));
    assert_eq!(preset["losses"].as_array().unwrap().len(), 5, "three to warm up, and two");
    assert!(number("memory_peak_bytes") > 0.0 && number("ms_per_step") > 0.0);
    let mfu = number("flops_per_token") * number("tokens_per_second") / 0.5e12;
    assert!((number("mfu") / mfu - 1.0).abs() < 1e-9);
    for (name, bytes) in [("weights", 4 * 117_056), ("tokens", 4 * 2 * 65)] {
        assert_eq!(std::fs::metadata(at("twin").join(name)).unwrap().len(), bytes, "{name}");
    }
}
