//! Tests of the fused engine on a GPU: the suite of all engines, and comparisons with the CPU's engine. `GPU_DEVICE`
//! names the device, `vulkan` by default; a software device (lavapipe) is enough. All runs are in f32, except those
//! that name bf16 or f16.

#[path = "common/harness.rs"]
mod harness;

use harness::Found;
use mettle_nn::{
    ActivationCheckpointing, Device, DeviceError, DeviceName, EngineKind, Evaluator, MemoryEstimate,
    ModelError, Precision, Trainer,
    collective::{Link, LinkError, Mesh, Wait, channels},
    conformance::{self, Suite, gradient_error, recipe, skewed_sequences as sequences, state, weight_bits},
    engine::{self, Connect, DataParallel, RankEngine},
    nccl,
};
use model::{ModelConfig, Optimiser, Recipe, init_flat};
use std::{
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering::SeqCst},
    },
    time::Duration,
};

type Test = (&'static str, Box<dyn Fn()>);

fn main() {
    let name = harness::device_name();
    let found = match name.parse::<Device>() {
        Ok(device) if device.name != DeviceName::Cpu => {
            let config = conformance::tiny();
            match Evaluator::new(&config, on(device.name), &init_flat(&config, 1).unwrap()) {
                Ok(_) => Found::Ready(format!("on {name}")),
                Err(ModelError::Device(error)) if harness::is_absent(&error) => {
                    Found::Absent(error.to_string())
                }
                Err(error) => Found::Broken(error.to_string()),
            }
        }
        _ => Found::Broken(format!("GPU_DEVICE is {name}, which is no GPU")),
    };
    let tests = name.parse().map_or_else(|_| Vec::new(), |device: Device| tests(device.name));
    harness::main(&tests, found, |test| test());
}

/// Name and function of a test below.
type OwnTest = (&'static str, fn(DeviceName));

/// Returns the suite of all engines, and the tests below.
fn tests(name: DeviceName) -> Vec<Test> {
    let own: &[OwnTest] = &[
        ("losses_and_gradients_are_those_of_the_cpu", losses_and_gradients),
        ("twenty_steps_stay_beside_the_cpus", twenty_steps),
        ("activation_checkpointing_changes_no_bit_and_takes_less_memory", checkpointing),
        ("reading_a_state_takes_no_memory_that_training_does_not", resumed_memory),
        ("the_estimate_is_the_memory_taken", estimate),
        ("training_that_does_not_fit_is_refused_with_the_setting_to_change", too_large),
        ("an_absent_gpu_is_refused", absent),
        ("losses_and_logits_of_an_evaluator_are_those_of_the_cpu", evaluator),
        ("products_in_16_bits_stay_beside_f32", sixteen_bits),
        ("ranks_repeat_to_the_bit_and_stay_beside_one_gpu", ranks),
        ("a_rank_with_one_micro_batch_has_the_gradient_of_a_layer", gradient_by_layer),
        ("a_lost_rank_costs_the_steps_since_the_last_state", lost_rank),
        ("ranks_step_the_copies_for_products_in_16_bits", ranks_in_sixteen_bits),
        ("ranks_by_nccl_have_the_bits_of_ranks_through_memory", by_nccl),
    ];
    let own = own.iter().map(|&(test, run)| -> Test { (test, Box::new(move || run(name))) });
    let checks = conformance::CHECKS
        .iter()
        .map(|&(check, run)| -> Test { (check, Box::new(move || run(&suite(name)))) });
    checks.chain(own).collect()
}

fn suite(name: DeviceName) -> Suite {
    let open = move |config: &_, recipe: Option<&_>, flat: &_| engine::open(on(name), config, recipe, flat);
    Suite { has_muon: false, ..Suite::new(open) }
}

fn cpu() -> Suite {
    Suite::new(|config, recipe, flat| engine::open(Device::CPU, config, recipe, flat))
}

/// Returns the device in f32, with all activations kept.
fn on(name: DeviceName) -> Device {
    checkpointed(name, ActivationCheckpointing::None)
}

fn checkpointed(name: DeviceName, activation_checkpointing: ActivationCheckpointing) -> Device {
    Device {
        engine: Some(EngineKind::Fused),
        precision: Some(Precision::F32),
        activation_checkpointing,
        ..Device::new(name)
    }
}

/// Returns a model with grouped heads, small enough for a software device.
fn grouped() -> ModelConfig {
    let config = ModelConfig::preset("117k").unwrap();
    ModelConfig { vocab: 100, d_model: 64, layers: 2, heads: 4, kv_heads: 2, d_ff: 96, seq_len: 32, ..config }
}

fn small_recipe(batch: usize, micro_batch: usize) -> Recipe {
    Recipe { batch, micro_batch, learning_rate: 1e-3, warmup_steps: 2, ..Recipe::default() }
}

/// Returns twice the initial weights, so that a layer's output and uneven attention matter.
fn weights(config: &ModelConfig) -> Vec<f32> {
    init_flat(config, 1).unwrap().into_iter().map(|value| 2.0 * value).collect()
}

fn losses_and_gradients(name: DeviceName) {
    conformance::losses_and_gradients_are_those_of(&suite(name), &cpu());
}

fn twenty_steps(name: DeviceName) {
    conformance::steps_are_those_of(&suite(name), &cpu(), &recipe());
}

fn trained(config: &ModelConfig, recipe: &Recipe, device: Device, steps: usize) -> (Trainer, Vec<f64>) {
    let mut trainer = Trainer::new(config, recipe, device, &init_flat(config, 1).unwrap()).unwrap();
    let losses = (0..steps).map(|step| {
        let batch = sequences(config, recipe.batch, 1 + step as u64 % 5);
        trainer.step(&batch).unwrap().loss
    });
    let losses = losses.collect();
    (trainer, losses)
}

fn checkpointing(name: DeviceName) {
    let config = ModelConfig { layers: 3, ..grouped() };
    let run = |activation_checkpointing| {
        let (trainer, losses) =
            trained(&config, &small_recipe(4, 2), checkpointed(name, activation_checkpointing), 3);
        let losses: Vec<u64> = losses.iter().map(|loss| loss.to_bits()).collect();
        (losses, weight_bits(&trainer), state(&trainer))
    };
    let all_kept = run(ActivationCheckpointing::None);
    let memory = |activation_checkpointing| {
        MemoryEstimate::new(&config, &small_recipe(4, 2), checkpointed(name, activation_checkpointing))
            .total()
    };
    for activation_checkpointing in [ActivationCheckpointing::FeedForward, ActivationCheckpointing::Layers] {
        assert!(run(activation_checkpointing) == all_kept, "{activation_checkpointing:?}");
        assert!(memory(activation_checkpointing) < memory(ActivationCheckpointing::None));
    }
}

fn resumed_memory(name: DeviceName) {
    let config = ModelConfig { layers: 3, ..ModelConfig::preset("1m").unwrap() };
    let flat = init_flat(&config, 1).unwrap();
    let mut trainer = Trainer::new(&config, &small_recipe(1, 1), on(name), &flat).unwrap();
    let saved = state(&trainer);
    let before = trainer.device_memory().unwrap();
    trainer.read_state(&mut &saved[..]).unwrap();
    let after = trainer.device_memory().unwrap();
    println!("  {before:?} before, {after:?} after");
    // Reserved memory never shrinks, so it is also the peak.
    assert!(after.used <= before.used && after.reserved <= before.reserved);
    assert!(state(&trainer) == saved);
}

fn estimate(name: DeviceName) {
    let config = ModelConfig { layers: 3, ..ModelConfig::preset("1m").unwrap() };
    let recipe = small_recipe(8, 8);
    for activation_checkpointing in
        [ActivationCheckpointing::Layers, ActivationCheckpointing::FeedForward, ActivationCheckpointing::None]
    {
        let small = ModelConfig { seq_len: 3, ..conformance::tiny() };
        let one = Recipe { batch: 1, ..recipe.clone() };
        let nothing = Trainer::new(&small, &one, on(name), &init_flat(&small, 1).unwrap()).unwrap();
        let nothing = nothing.device_memory().unwrap().used;
        let flat = init_flat(&config, 1).unwrap();
        let mut trainer =
            Trainer::new(&config, &recipe, checkpointed(name, activation_checkpointing), &flat).unwrap();
        let planned = trainer.device_memory().unwrap().used;
        trainer.step(&sequences(&config, 8, 1)).unwrap();
        let reserved = trainer.device_memory().unwrap().reserved;
        let mebibytes = |bytes: u64| bytes as f64 / f64::from(1 << 20);
        let [planned, reserved] = [planned - nothing, reserved].map(mebibytes);
        let estimate = MemoryEstimate::new(&config, &recipe, checkpointed(name, activation_checkpointing));
        let [total, temporary] = [estimate.total(), estimate.temporary].map(mebibytes);
        println!(
            "  {activation_checkpointing:?}: {planned:.2} MiB planned, {reserved:.2} reserved; estimate {:.2} and {total:.2}",
            total - temporary
        );
        assert!(((total - temporary) / planned - 1.0).abs() < 0.01, "{activation_checkpointing:?}");
    }
}

/// A rank with one micro-batch per step has the gradient of one layer and of the embedding; with two, a whole one.
/// Both end with the same bits.
fn gradient_by_layer(name: DeviceName) {
    let config = ModelConfig { layers: 3, ..ModelConfig::preset("1m").unwrap() };
    let (device, flat) = (on(name), weights(&config));
    let recipe = small_recipe(2, 1);
    // All engines of this process share a device's memory.
    let opened = |ranks| {
        let engine = engine::open_rank(device, ranks, &config, &recipe, &flat).unwrap();
        let used = engine.engine().device_memory().unwrap().used as f64;
        (engine, used)
    };
    let planned = |ranks| {
        let alone = MemoryEstimate::new(&config, &recipe, device);
        alone.of_rank(&config, &recipe, device, ranks).gradients as f64
    };
    let (_first, one) = opened(1);
    let (mut whole, two) = opened(1);
    let (mut by_layer, three) = opened(2);
    let (saved, planned) = ((two - one) - (three - two), planned(1) - planned(2));
    println!("  {saved} bytes less, {planned} planned");
    assert!((saved / planned - 1.0).abs() < 0.02);
    assert!(whole.adds_micro_batches() && !by_layer.adds_micro_batches());

    let batch = sequences(&config, 1, 1);
    let batch: Vec<&[u32]> = batch.iter().map(Vec::as_slice).collect();
    let gradient = |engine: &mut dyn RankEngine| {
        let (mut gradient, mut calls) = (Vec::new(), 0);
        engine
            .micro_batches(&batch, config.seq_len, &mut |range, read| {
                let mut values = Vec::new();
                read(range, &mut values)?;
                // The order is from the last tensor to the first.
                gradient.splice(0..0, values.iter().map(|value| value.to_bits()));
                calls += 1;
                Ok(())
            })
            .unwrap();
        (gradient, calls)
    };
    let ((expected, at_once), (found, calls)) = (gradient(&mut *whole), gradient(&mut *by_layer));
    assert_eq!((at_once, calls, found.len()), (1, 2 + config.layers, config.parameters()));
    assert!(found == expected);
}

fn too_large(name: DeviceName) {
    let config = grouped();
    let recipe = small_recipe(1 << 30, 1 << 30);
    let error = Trainer::new(&config, &recipe, on(name), &init_flat(&config, 1).unwrap()).err().unwrap();
    assert!(matches!(error, ModelError::Memory(_)), "{error}");
    assert!(error.to_string().contains("set micro_batch_sequences to"), "{error}");
}

fn absent(name: DeviceName) {
    let config = grouped();
    let missing = Device { engine: Some(EngineKind::Fused), ..Device::new(DeviceName::Cuda(999)) };
    let refused = Trainer::new(&config, &small_recipe(2, 2), missing, &weights(&config)).err();
    assert!(matches!(refused, Some(ModelError::Device(_))), "beside {name}: {refused:?}");
}

fn evaluator(name: DeviceName) {
    for config in [grouped(), ModelConfig::preset("117k").unwrap()] {
        let flat = weights(&config);
        let (exact, ours) = (
            Evaluator::new(&config, Device::CPU, &flat).unwrap(),
            Evaluator::new(&config, on(name), &flat).unwrap(),
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

fn sixteen_bits(name: DeviceName) {
    let config = grouped();
    let flat = weights(&config);
    let in_precision = |precision, activation_checkpointing| Device {
        precision: Some(precision),
        ..checkpointed(name, activation_checkpointing)
    };
    let gradients = |device, batch: &[Vec<u32>]| {
        let suite = Suite::new(move |config, recipe, flat| engine::open(device, config, recipe, flat));
        conformance::loss_and_gradients(&suite, &config, &small_recipe(4, 2), &flat, batch)
    };
    let mut tried = 0;
    for precision in [Precision::Bf16, Precision::F16] {
        let on_sixteen = in_precision(precision, ActivationCheckpointing::None);
        if let Err(error) = Evaluator::new(&config, on_sixteen, &flat) {
            let is_reported = matches!(error, ModelError::Device(DeviceError::NoSuchPrecision { .. }));
            assert!(is_reported, "{error}");
            println!("  {error}");
            continue;
        }
        tried += 1;
        let batch = sequences(&config, 4, 7);
        let (exact_loss, exact) = gradients(on(name), &batch);
        let (loss, ours) = gradients(on_sixteen, &batch);
        let apart = gradient_error(&ours, &exact);
        println!("  {precision:?}: loss {loss:.5}, in f32 {exact_loss:.5}; gradients {apart:.1e} apart");
        assert!((loss - exact_loss).abs() < 0.02 * exact_loss && apart < 0.1);
        let losses_on = |device| {
            let evaluator = Evaluator::new(&config, device, &flat).unwrap();
            evaluator.losses(&batch).unwrap()
        };
        let evaluated = losses_on(on_sixteen).into_iter().zip(losses_on(on(name)));
        assert!(evaluated.into_iter().all(|(one, other)| one != other && (one - other).abs() < 0.05));
        let steps = |device| trained(&config, &small_recipe(4, 2), device, 20);
        let ((trainer, losses), (_, exact)) = (steps(on_sixteen), steps(on(name)));
        let apart = losses.iter().zip(&exact).map(|(one, other)| (one - other).abs()).fold(0.0, f64::max);
        println!("  8 steps {apart:.1e} apart");
        assert!(apart < 0.02, "{losses:?} {exact:?}");
        let (again, _) = steps(in_precision(precision, ActivationCheckpointing::Layers));
        assert_eq!(weight_bits(&again), weight_bits(&trainer));
    }
    let unnamed = Device { engine: Some(EngineKind::Fused), ..Device::new(name) };
    assert!(Trainer::new(&config, &small_recipe(2, 2), unnamed, &flat).is_ok());
    println!("  {tried} of 2 precisions are there");
}

/// Link that closes once `left` frames were sent over all links.
struct Cut {
    link: Box<dyn Link>,
    left: Arc<AtomicU32>,
}

impl Link for Cut {
    fn send(&self, frame: &[u8], wait: &Wait<'_>) -> Result<(), LinkError> {
        match self.left.fetch_update(SeqCst, SeqCst, |left| left.checked_sub(1)) {
            Ok(_) => self.link.send(frame, wait),
            Err(_) => Err(LinkError::Closed),
        }
    }
    fn receive(&self, frame: &mut Vec<u8>, wait: &Wait<'_>) -> Result<(), LinkError> {
        self.link.receive(frame, wait)
    }
    fn peek(&self) -> Result<Option<u8>, LinkError> {
        self.link.peek()
    }
}

/// Returns a trainer of threads, each with an engine on the device. The last rank sends `left` frames; the next
/// connection has no limit.
fn parallel(
    ranks: usize,
    device: Device,
    config: &ModelConfig,
    recipe: &Recipe,
    flat: &[f32],
    left: &Arc<AtomicU32>,
) -> Trainer {
    let open = move |config: &ModelConfig, recipe: &Recipe, flat: &[f32]| {
        engine::open_rank(device, ranks, config, recipe, flat)
    };
    let left = left.clone();
    let connect: Connect = Box::new(move || {
        if left.load(SeqCst) == 0 {
            left.store(u32::MAX, SeqCst);
        }
        let cut = |link| Box::new(Cut { link, left: left.clone() }) as Box<dyn Link>;
        let mut meshes = channels(ranks).into_iter().enumerate().map(|(rank, links)| {
            let is_last = rank + 1 == ranks;
            let links = links.into_iter().map(|link| if is_last { link.map(&cut) } else { link });
            Mesh::new(rank, links.collect(), Duration::from_secs(120))
        });
        let first = meshes.next().unwrap();
        for mesh in meshes {
            std::thread::spawn(move || engine::serve(Box::new(mesh), &open));
        }
        Ok(Box::new(first))
    });
    let engine = DataParallel::open(config, recipe, flat, &open, connect).unwrap();
    Trainer::from_engine(config, recipe, Box::new(engine)).unwrap()
}

fn never() -> Arc<AtomicU32> {
    Arc::new(AtomicU32::new(u32::MAX))
}

/// Rank 2 is lost in the second step. From the state before, as from a snapshot, training continues to the bits of
/// ranks without a loss.
fn lost_rank(name: DeviceName) {
    let (config, recipe) = (grouped(), small_recipe(6, 2));
    let left = never();
    let mut trainer = parallel(3, on(name), &config, &recipe, &weights(&config), &left);
    let batch = |seed| sequences(&config, 6, seed);
    trainer.step(&batch(0)).unwrap();
    let (before, kept) = (trainer.weights_flat().unwrap(), state(&trainer));
    left.store(2, SeqCst);
    let error = trainer.step(&batch(1)).unwrap_err().to_string();
    assert!(error.contains("the ranks that train together failed") && error.contains("rank 2"), "{error}");
    let again = trainer.step(&batch(1)).unwrap_err().to_string();
    assert!(again.contains("are lost: the next window"), "{again}");
    trainer.load(&before).unwrap();
    trainer.read_state(&mut &kept[..]).unwrap();
    let step = trainer.step(&batch(1)).unwrap();

    let mut undisturbed = parallel(3, on(name), &config, &recipe, &weights(&config), &never());
    undisturbed.step(&batch(0)).unwrap();
    assert_eq!(step, undisturbed.step(&batch(1)).unwrap());
    assert!(weight_bits(&trainer) == weight_bits(&undisturbed) && state(&trainer) == state(&undisturbed));
}

/// Returns the losses of a window of some steps, and the change of the weights.
fn window(
    trainer: &mut Trainer,
    config: &ModelConfig,
    batch: usize,
    steps: u64,
) -> (Vec<f64>, Vec<Vec<f32>>) {
    let start = weights(config);
    trainer.load(&start).unwrap();
    let losses = (0..steps).map(|seed| trainer.step(&sequences(config, batch, seed)).unwrap().loss).collect();
    let trained = trainer.weights_flat().unwrap();
    let change: Vec<f32> = start.iter().zip(trained).map(|(before, after)| before - after).collect();
    let schema = config.schema().unwrap();
    (losses, schema.ranges().map(|range| change[range].to_vec()).collect())
}

/// Compares the pseudo-gradients of windows with 1, 2 and 4 ranks with those of one engine. Sums differ in the last
/// bits: a rank adds its own micro-batches, then the ranks' sums are added, and AdamW steps on the CPU.
fn ranks(name: DeviceName) {
    let config = grouped();
    // Micro-batches of 2, 2, 2 and 1 sequences.
    let recipe = small_recipe(7, 2);
    let mut alone = Trainer::new(&config, &recipe, on(name), &weights(&config)).unwrap();
    let (exact_losses, exact) = window(&mut alone, &config, 7, 3);
    for ranks in [1, 2, 4] {
        let run = || {
            let mut trainer = parallel(ranks, on(name), &config, &recipe, &weights(&config), &never());
            let found = window(&mut trainer, &config, 7, 3);
            (found, weight_bits(&trainer), state(&trainer))
        };
        let first = run();
        let (losses, change) = &first.0;
        let apart = gradient_error(change, &exact);
        let losses_apart =
            losses.iter().zip(&exact_losses).map(|(one, other)| (one - other).abs()).fold(0.0, f64::max);
        println!("  {ranks} ranks: losses {losses_apart:.1e}, pseudo-gradients {apart:.1e} apart");
        assert!(losses_apart < 1e-5 && apart < 1e-3, "{ranks} ranks");
        if ranks == 2 {
            assert!(run() == first, "two ranks repeat");
        }
    }
    // The optimiser is on the CPU, so it supports Muon too.
    let recipe = Recipe { optimiser: Optimiser::Muon, ..small_recipe(4, 2) };
    let mut exact = Trainer::new(&config, &recipe, Device::CPU, &weights(&config)).unwrap();
    let mut ours = parallel(2, on(name), &config, &recipe, &weights(&config), &never());
    let [(exact_losses, exact), (losses, change)] =
        [&mut exact, &mut ours].map(|trainer| window(trainer, &config, 4, 3));
    let apart = gradient_error(&change, &exact);
    println!("  Muon: {losses:?}, on a CPU {exact_losses:?}, pseudo-gradients {apart:.1e} apart");
    assert!(apart < 1e-3);
}

fn ranks_in_sixteen_bits(name: DeviceName) {
    let config = grouped();
    for precision in [Precision::Bf16, Precision::F16] {
        let device = Device { precision: Some(precision), ..on(name) };
        let recipe = small_recipe(4, 2);
        let Ok(mut alone) = Trainer::new(&config, &recipe, device, &weights(&config)) else {
            println!("  {precision:?} is not there");
            continue;
        };
        let mut ours = parallel(2, device, &config, &recipe, &weights(&config), &never());
        let [(exact, _), (losses, _)] = [&mut alone, &mut ours].map(|trainer| window(trainer, &config, 4, 8));
        let apart = losses.iter().zip(&exact).map(|(one, other)| (one - other).abs()).fold(0.0, f64::max);
        println!("  {precision:?}: 8 steps {apart:.1e} apart");
        assert!(apart < 0.02, "{losses:?} {exact:?}");
    }
}

/// With one GPU a rank sends to itself; with more, up to four GPUs exchange. Without NCCL, the test checks the reason.
fn by_nccl(name: DeviceName) {
    match nccl::library_for(on(name)) {
        Ok(_) => println!("  {:?}", conformance::nccl_gives_the_bits_of_memory(on(name)).unwrap()),
        Err(error) => {
            let says = error.to_string();
            let expected = if matches!(name, DeviceName::Cuda(_)) { "install" } else { "GPUs of NVIDIA" };
            assert!(says.contains("NCCL") && says.contains(expected), "{says}");
            println!("  left out: {says}");
        }
    }
}
