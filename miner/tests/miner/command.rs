//! Tests a miner whose steps a command computes. The command is this test program, started again.

use crate::{support, test_command};
use daemon::error_chain;
use dataset::Dataset;
use miner::{
    command::{CommandEngine, CommandGroup, CommandOptions, SOCKET},
    shutdown::ShutdownHandle,
    train::{self, Cause, Trained, TrainingError, WindowSteps},
};
use model::{ModelConfig, Recipe};
use nn::{Device, ModelError, Trainer};
use std::{
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

/// Longer than any test takes: one that waits for it fails by [`BEFORE_DEADLINE`].
const DEADLINE: Duration = Duration::from_secs(600);
const BEFORE_DEADLINE: Duration = Duration::from_secs(300);
const BATCH: usize = 4;
const STEPS: WindowSteps =
    WindowSteps { batch: BATCH, run_batch: BATCH, windows_before: 0, sequences_per_seat: 5 * BATCH as u32 };
/// A variable of the miner's environment that the command does not need. Cargo sets it.
const NOT_INHERITED: &str = "CARGO_MANIFEST_DIR";

/// The command's main, run in a child process of this test program.
#[test]
#[ignore = "the child process of the other tests"]
fn the_process_that_trains() {
    if std::env::var_os(SOCKET).is_some() && std::env::var_os(NOT_INHERITED).is_some() {
        println!("the command has the miner's environment");
        std::process::exit(8);
    }
    test_command::run();
}

struct Scene {
    _directory: tempfile::TempDir,
    dataset: Dataset,
    config: ModelConfig,
    recipe: Recipe,
    theta: Vec<f32>,
    shutdown: Arc<ShutdownHandle>,
    group: Arc<CommandGroup>,
}

fn options(fault: &str) -> CommandOptions {
    let program = test_command::program(fault);
    CommandOptions { program, start: DEADLINE, heartbeat: DEADLINE, step: DEADLINE, stop: DEADLINE }
}

impl Scene {
    fn new() -> Scene {
        let directory = tempfile::tempdir().unwrap();
        let dataset = Dataset::open(support::prepare(directory.path()), None).unwrap();
        let config = support::config(&dataset);
        let recipe = Recipe { batch: BATCH, micro_batch: BATCH, ..Recipe::default() };
        let theta = model::init_flat(&config, 11).unwrap();
        let (shutdown, group) = Default::default();
        Scene { _directory: directory, dataset, config, recipe, theta, shutdown, group }
    }

    fn by_command(&self, options: CommandOptions) -> Result<Trainer, ModelError> {
        let (group, shutdown) = (self.group.clone(), self.shutdown.clone());
        let engine = CommandEngine::open(&self.config, &self.recipe, &self.theta, options, group, shutdown)?;
        Trainer::from_engine(&self.config, &self.recipe, Box::new(engine))
    }

    fn by_cpu(&self) -> Trainer {
        Trainer::new(&self.config, &self.recipe, Device::CPU, &self.theta).unwrap()
    }

    /// Trains one window of five steps, and reads its weights.
    fn window(&self, trainer: &mut Trainer, first: u64) -> Result<(Trained, Vec<f32>), TrainingError> {
        let sequences: Vec<u64> = (first..first + 5 * BATCH as u64).collect();
        let go = AtomicBool::new(false);
        let trained =
            train::train(trainer, &self.dataset, &sequences, &STEPS, Trained::default(), &go, &mut ())?;
        Ok((trained, trainer.weights_flat().map_err(TrainingError::Weights)?))
    }

    /// Checks the error of a command with this fault; afterwards the seat continues from its snapshot with a correct
    /// one.
    #[track_caller]
    fn check(&self, fault: &str, options: CommandOptions, says: &str) {
        let fresh = state(&self.by_cpu());
        let begun = Instant::now();
        let mut trainer = self.by_command(options).unwrap();
        let error = self.window(&mut trainer, 100).unwrap_err();
        let said = error_chain(&error);
        assert!(said.contains(says), "{fault}: {said}");
        assert!(begun.elapsed() < BEFORE_DEADLINE, "{fault} took {:?}", begun.elapsed());
        // As in `Miner::forget_training` and the next window: neither needs the command.
        trainer.read_state(&mut &fresh[..]).unwrap();
        trainer.load(&self.theta).unwrap();
        assert_eq!(state(&trainer), fresh, "{fault}");
        assert_eq!(trainer.weights_flat().unwrap(), self.theta, "{fault}");
        // The next window restarts the command, which fails as the first.
        let again = error_chain(&self.window(&mut trainer, 100).unwrap_err());
        assert!(again.contains(says), "{fault}, again: {again}");
    }
}

fn state(trainer: &Trainer) -> Vec<u8> {
    let mut bytes = Vec::new();
    trainer.write_state(&mut bytes).unwrap();
    bytes
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

#[test]
fn windows_by_command_have_the_bits_of_windows_without_it() {
    assert!(std::env::var_os(NOT_INHERITED).is_some(), "the command checks that it does not inherit it");
    let scene = Scene::new();
    let (mut by_command, mut by_cpu) = (scene.by_command(options("")).unwrap(), scene.by_cpu());
    for (window, first) in [100, 200, 300].into_iter().enumerate() {
        for trainer in [&mut by_command, &mut by_cpu] {
            trainer.load(&scene.theta).unwrap();
        }
        if window == 2 {
            // A killed miner reads its snapshot.
            let kept = state(&by_command);
            by_command = scene.by_command(options("")).unwrap();
            by_command.read_state(&mut &kept[..]).unwrap();
        }
        let (trained, weights) = scene.window(&mut by_command, first).unwrap();
        let (expected, expected_weights) = scene.window(&mut by_cpu, first).unwrap();
        assert_eq!((trained.sequences, trained.steps), (20, 5));
        assert_eq!((trained.loss_first, trained.loss_last), (expected.loss_first, expected.loss_last));
        assert!(bits(&weights) == bits(&expected_weights) && weights != scene.theta, "window {window}");
        assert!(state(&by_command) == state(&by_cpu), "window {window}");
    }
}

#[test]
fn a_command_that_fails_costs_the_window_and_not_the_seat() {
    let scene = Scene::new();
    let check = |fault: &str, says| scene.check(fault, options(fault), says);
    check("die gradients", "ended, or closed its socket, while computing a gradient; its output ends: ");
    check("die step", "while stepping");
    check("die get", "while sending values");
    check("garbage gradients", "none of the contract's");
    check("flood gradients", "announced a header of 4294967295 bytes");
    check("long get", "announced a body of 4096 bytes instead of");
    check("short get", "announced a body of 4 bytes instead of");
    check("nan get", "not finite, the first at 3");
    check("refuse gradients", "gave up while computing a gradient: no memory");
    check("wrong step", "while stepping it answered `ready`");
    let second = Duration::from_secs(1);
    let silent = CommandOptions { heartbeat: second, ..options("hang gradients") };
    scene.check("hang gradients", silent, "nothing was heard of it for 1 s while computing a gradient");
    let slow = CommandOptions { step: second, ..options("slow gradients") };
    scene.check("slow gradients", slow, "took too long while computing a gradient");
}

#[test]
fn a_failed_command_is_named_as_the_cause_and_the_next_window_is_trained() {
    let scene = Scene::new();
    let mut trainer = scene.by_command(options("die step")).unwrap();
    let error = scene.window(&mut trainer, 100).unwrap_err();
    assert!(matches!(error, TrainingError::GivenUp { step: 1, cause: Cause::Command, .. }), "{error:?}");
    let mut trainer = scene.by_command(options("nan gradients")).unwrap();
    let error = scene.window(&mut trainer, 100).unwrap_err();
    assert!(matches!(error, TrainingError::GivenUp { step: 1, cause: Cause::Data, .. }), "{error:?}");
}

#[test]
fn a_command_that_does_not_start_is_refused_with_the_reason() {
    let scene = Scene::new();
    let second = Duration::from_secs(1);
    for (options, says) in [
        (options("end at once"), "it ended, or closed its socket, while starting; its output ends: "),
        (options("other version"), "version 2 of the contract, and this miner version 1"),
        (CommandOptions { start: second, ..options("never connect") }, "did not connect to the socket"),
        (CommandOptions { heartbeat: second, ..options("hang open") }, "while building the model"),
        (CommandOptions { program: vec!["/no/such/program".into()], ..options("") }, "could not start"),
        (CommandOptions { program: Vec::new(), ..options("") }, "[train.command] is empty"),
    ] {
        let refused = scene.by_command(options).err().map(|error| error.to_string()).unwrap_or_default();
        assert!(refused.contains(says), "{refused}");
    }
}

#[test]
fn a_step_that_outlasts_the_windows_training_is_ended() {
    let scene = Scene::new();
    let options = CommandOptions { stop: Duration::from_millis(300), ..options("slow gradients") };
    let mut trainer = scene.by_command(options).unwrap();
    let stop = Arc::new(AtomicBool::new(false));
    scene.shutdown.ends_with(&stop);
    let deadline = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(300));
        stop.store(true, Ordering::Relaxed);
    });
    let begun = Instant::now();
    let said = error_chain(&scene.window(&mut trainer, 100).unwrap_err());
    deadline.join().unwrap();
    assert!(said.contains("after the window's training had to stop"), "{said}");
    assert!(begun.elapsed() < BEFORE_DEADLINE, "{:?}", begun.elapsed());
}

/// A process that the command starts is in its group, and ends with it.
#[test]
fn the_whole_process_group_ends_with_the_miner() {
    let scene = Scene::new();
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("child");
    let started = options("");
    let script = format!("sleep 600 & echo $! > {}; exec \"$@\"", file.display());
    let shell = ["sh".to_owned(), "-c".into(), script, "sh".into()];
    let program = [&shell[..], &started.program].concat();
    let trainer = scene.by_command(CommandOptions { program, ..started }).unwrap();
    let child = std::fs::read_to_string(&file).unwrap().trim().to_owned();
    let status = format!("/proc/{child}/stat");
    let runs = || std::fs::read_to_string(&status).is_ok_and(|stat| !stat.contains(") Z "));
    assert!(runs() || !Path::new("/proc").exists());
    scene.group.close();
    let closed = Instant::now();
    while runs() && closed.elapsed() < Duration::from_secs(5) {
        std::thread::sleep(Duration::from_millis(20));
    }
    assert!(!runs());
    drop(trainer);
    let refused = scene.by_command(options("")).err().unwrap().to_string();
    assert!(refused.contains("the miner is stopping"), "{refused}");
}

/// PyTorch sums in another order, so losses agree except for the last digits.
#[test]
#[ignore = "needs PyTorch: METTLE_PYTHON names a virtual environment that has it"]
fn the_reference_trainer_takes_the_same_steps() {
    let program = vec![python("python"), example("torch_trainer.py"), "--threads".into(), "1".into()];
    Scene::new().takes_the_same_steps(program);
}

#[test]
#[ignore = "needs numpy: METTLE_PYTHON names a virtual environment that has it"]
fn the_trainer_in_numpy_takes_the_same_steps() {
    let package = format!("PYTHONPATH={}/../mettle/python", env!("CARGO_MANIFEST_DIR"));
    let program = vec!["env".into(), package, python("python"), example("numpy_trainer.py")];
    Scene::new().takes_the_same_steps(program);
}

#[test]
#[ignore = "needs TorchTitan: METTLE_PYTHON names a virtual environment that has it"]
fn torchtitan_takes_the_same_steps_on_any_number_of_ranks() {
    let scene = Scene::new().with_divisible_model();
    let (tensor, pipeline) =
        ("--parallelism.tensor-parallel-degree=2", "--parallelism.pipeline-parallel-degree=2");
    let arrangements: [(usize, &[&str]); 6] =
        [(1, &[]), (2, &[]), (4, &[]), (4, &[tensor]), (2, &[pipeline]), (4, &[tensor, pipeline])];
    for (ranks, arguments) in arrangements {
        println!("{ranks} ranks, {arguments:?}");
        scene.takes_the_same_steps(torchtitan(ranks, arguments));
    }
}

#[test]
#[ignore = "needs TorchTitan: METTLE_PYTHON names a virtual environment that has it"]
fn a_rank_that_dies_costs_the_window_and_all_ranks_end_with_the_miner() {
    let scene = Scene::new().with_divisible_model();
    let mark = format!("TRAINER_MARK={}", std::process::id());
    let program = [vec!["env".to_owned(), mark.clone()], torchtitan(2, &[])].concat();
    let rank = |rank: &str| processes_with(&[&mark, &format!("RANK={rank}")]);
    let mut trainer = scene.by_command(unhurried(program)).unwrap();
    let fresh = state(&trainer);
    scene.window(&mut trainer, 100).unwrap();
    let killed = rank("1");
    assert_eq!((rank("0").len(), killed.len()), (1, 1));
    kill(killed[0]);
    let said = error_chain(&scene.window(&mut trainer, 200).unwrap_err());
    println!("{said}");
    // As in `Miner::forget_training` and the next window, which restarts all ranks.
    trainer.read_state(&mut &fresh[..]).unwrap();
    trainer.load(&scene.theta).unwrap();
    scene.window(&mut trainer, 100).unwrap();
    assert!(rank("1").len() == 1 && rank("1") != killed);
    scene.group.close();
    let closed = Instant::now();
    while !processes_with(&[&mark]).is_empty() && closed.elapsed() < Duration::from_secs(20) {
        std::thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(processes_with(&[&mark]), Vec::<i32>::new());
}

fn python(program: &str) -> String {
    std::env::var("METTLE_PYTHON").expect("METTLE_PYTHON") + "/bin/" + program
}

fn example(name: &str) -> String {
    format!("{}/examples/{name}", env!("CARGO_MANIFEST_DIR"))
}

/// Returns the program that trains by TorchTitan, in f32 like the engines that it is compared with.
fn torchtitan(ranks: usize, arguments: &[&str]) -> Vec<String> {
    let fixed = ["--standalone".into(), "--nproc-per-node".into(), ranks.to_string()];
    let settings = ["--training.mixed-precision-param=float32"].iter().chain(arguments);
    let program = std::iter::once(python("torchrun")).chain(fixed);
    program.chain([example("torchtitan_trainer.py")]).chain(settings.map(ToString::to_string)).collect()
}

/// Python's packages take minutes to import on a busy machine.
fn unhurried(program: Vec<String>) -> CommandOptions {
    let seconds = Duration::from_secs;
    CommandOptions { program, start: seconds(400), heartbeat: seconds(60), step: seconds(120), ..options("") }
}

/// Returns the processes whose environments have all of `variables`.
fn processes_with(variables: &[&str]) -> Vec<i32> {
    let processes = std::fs::read_dir("/proc").unwrap().flatten();
    let has = |path: &Path| {
        let environment = std::fs::read(path.join("environ")).unwrap_or_default();
        variables
            .iter()
            .all(|variable| environment.split(|byte| *byte == 0).any(|v| v == variable.as_bytes()))
    };
    processes
        .filter_map(|process| Some((process.file_name().to_str()?.parse().ok()?, process.path())))
        .filter(|(_, path)| has(path))
        .map(|(number, _)| number)
        .collect()
}

fn kill(process: i32) {
    // SAFETY: the call takes two numbers and touches no memory.
    assert_eq!(unsafe { libc::kill(process, libc::SIGKILL) }, 0);
}

impl Scene {
    /// Sets a model that two tensor-parallel ranks and two pipeline stages can share.
    fn with_divisible_model(mut self) -> Scene {
        self.config = ModelConfig { layers: 3, heads: 4, kv_heads: 2, ..self.config };
        self.theta = model::init_flat(&self.config, 11).unwrap();
        self
    }

    /// Compares two windows by `program` with windows by the CPU's engine.
    #[track_caller]
    fn takes_the_same_steps(&self, program: Vec<String>) {
        let (mut by_program, mut by_cpu) = (self.by_command(unhurried(program)).unwrap(), self.by_cpu());
        for first in [100, 200] {
            for trainer in [&mut by_program, &mut by_cpu] {
                trainer.load(&self.theta).unwrap();
            }
            let (trained, weights) = self.window(&mut by_program, first).unwrap();
            let (expected, expected_weights) = self.window(&mut by_cpu, first).unwrap();
            assert!((trained.loss_first - expected.loss_first).abs() < 1e-5, "{trained:?} {expected:?}");
            assert!((trained.loss_last - expected.loss_last).abs() < 1e-4, "{trained:?} {expected:?}");
            let apart = |a: &[f32], b: &[f32]| -> f64 {
                a.iter().zip(b).map(|(a, b)| f64::from(a - b).powi(2)).sum::<f64>().sqrt()
            };
            let (moved, differs) = (apart(&weights, &self.theta), apart(&weights, &expected_weights));
            assert!(0.0 < moved && differs < 0.02 * moved, "moved {moved}, differs by {differs}");
            println!("losses {trained:?}, expected {expected:?}; moved {moved}, differs by {differs}");
        }
    }
}
