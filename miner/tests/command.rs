//! A miner whose steps a command computes. The command is this test's own program, started once more: it speaks the
//! contract as `docs/training.md` says it, computes by the CPU's engine, and fails as it is told.

mod support;

use dataset::Dataset;
use miner::{
    command::{CommandEngine, CommandGroup, CommandOptions, SOCKET},
    shutdown::ShutdownHandle,
    train::{self, Cause, Trained, TrainingError},
};
use model::{ModelConfig, Recipe};
use nn::{
    Device, ModelError, StepParams, Trainer,
    engine::{self, Engine},
};
use node::error_chain;
use serde_json::{Value, json};
use std::{
    io::{self, Read as _, Write as _},
    os::unix::net::UnixStream,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

const BATCH: usize = 4;
/// Names the command's fault, if it has one: `hang gradients`.
const FAULT: &str = "TRAINER_FAULT";
/// A variable of the miner's environment that the command has no use for. Cargo sets it.
const NOT_INHERITED: &str = "CARGO_MANIFEST_DIR";

/// The command's main, where this test's own program is started once more. Otherwise nothing.
#[test]
fn the_process_that_trains() {
    let Some(path) = std::env::var_os(SOCKET) else { return };
    if std::env::var_os(NOT_INHERITED).is_some() {
        println!("the command has the miner's environment");
        std::process::exit(8);
    }
    let fault = std::env::var(FAULT).unwrap_or_default();
    println!("the command runs: {fault}");
    if fault == "never connect" {
        std::thread::sleep(Duration::from_secs(600));
    }
    if fault == "end at once" {
        std::process::exit(7);
    }
    let mut command = TestCommand { stream: UnixStream::connect(path).unwrap(), fault, engine: None };
    let version = if command.fault == "other version" { 2 } else { 1 };
    command.send(json!({ "hello": { "protocol": version, "name": "test" } }), &[]).unwrap();
    // The miner closes the socket when it has had enough.
    while command.answer().is_ok() {}
    std::process::exit(0);
}

struct TestCommand {
    stream: UnixStream,
    fault: String,
    engine: Option<Opened>,
}

struct Opened {
    engine: Box<dyn Engine>,
    seq_len: usize,
    weights: Vec<f32>,
    moments: Vec<f32>,
}

impl TestCommand {
    fn send(&mut self, header: Value, body: &[u8]) -> io::Result<()> {
        let header = header.to_string();
        self.stream.write_all(&(header.len() as u32).to_le_bytes())?;
        self.stream.write_all(&(body.len() as u64).to_le_bytes())?;
        self.stream.write_all(header.as_bytes())?;
        self.stream.write_all(body)
    }

    /// Fails as it was told, if `doing` is the request to fail at.
    fn fail(&mut self, doing: &str) -> io::Result<()> {
        let fault = self.fault.clone();
        let Some((fault, at)) = fault.split_once(' ') else { return Ok(()) };
        if at != doing {
            return Ok(());
        }
        match fault {
            "hang" => std::thread::sleep(Duration::from_secs(600)),
            "die" => std::process::exit(9),
            "slow" => loop {
                self.send(json!({ "progress": { "sequences": 0 } }), &[])?;
                std::thread::sleep(Duration::from_millis(20));
            },
            "garbage" => self.stream.write_all(b"\x05\0\0\0\0\0\0\0\0\0\0\0hello")?,
            "flood" => self.stream.write_all(&[0xff; 1 << 16])?,
            "long" => self.send(json!({ "values": {} }), &[0; 4096])?,
            "short" => self.send(json!({ "values": {} }), &[0; 4])?,
            "refuse" => self.send(json!({ "failed": { "why": "no memory" } }), &[])?,
            "wrong" => self.send(json!({ "ready": {} }), &[])?,
            _ => {}
        }
        Ok(())
    }

    fn answer(&mut self) -> io::Result<()> {
        let mut lengths = [0; 12];
        self.stream.read_exact(&mut lengths)?;
        let mut header = vec![0; u32::from_le_bytes(lengths[..4].try_into().unwrap()) as usize];
        self.stream.read_exact(&mut header)?;
        let mut body = vec![0; u64::from_le_bytes(lengths[4..].try_into().unwrap()) as usize];
        self.stream.read_exact(&mut body)?;
        let header: Value = serde_json::from_slice(&header).unwrap();
        let (kind, fields) = header.as_object().unwrap().iter().next().unwrap();
        self.fail(kind)?;
        let number = |name: &str| fields[name].as_u64().unwrap() as usize;
        let range = || number("first")..number("first") + number("count");
        let values = || body.chunks_exact(4).map(|bytes| f32::from_le_bytes(bytes.try_into().unwrap()));
        let numbers = || body.chunks_exact(8).map(|bytes| f64::from_le_bytes(bytes.try_into().unwrap()));
        if kind == "open" {
            let config: ModelConfig = serde_json::from_value(fields["model"].clone()).unwrap();
            let recipe: Recipe = serde_json::from_value(fields["recipe"].clone()).unwrap();
            let moments = fields["tensors"].as_array().unwrap().iter().map(|tensor| {
                let rows = tensor["shape"][0].as_u64().unwrap() * tensor["shape"][1].as_u64().unwrap();
                (rows * tensor["moments"].as_u64().unwrap()) as usize
            });
            let (weights, moments) = (vec![0.0; config.parameters()], vec![0.0; moments.sum()]);
            let engine = engine::open(Device::CPU, &config, Some(&recipe), &weights).unwrap();
            self.engine = Some(Opened { engine, seq_len: config.seq_len, weights, moments });
            return self.send(json!({ "ready": {} }), &[]);
        }
        let fault = self.fault.clone();
        let Some(opened) = &mut self.engine else { return Err(io::Error::other("the miner opens nothing")) };
        let is_weights = fields["part"] == "weights";
        match kind.as_str() {
            "put" => {
                let vector = if is_weights { &mut opened.weights } else { &mut opened.moments };
                vector[range()].iter_mut().zip(values()).for_each(|(to, from)| *to = from);
                if range().end == vector.len() {
                    if is_weights {
                        opened.engine.load(&opened.weights).unwrap();
                    } else {
                        opened.engine.load_moments(&opened.moments).unwrap();
                    }
                }
                self.send(json!({ "taken": {} }), &[])
            }
            "get" => {
                let blocks = if is_weights { opened.engine.weights() } else { opened.engine.moments() };
                let mut flat: Vec<f32> = blocks.flat_map(|block| block.unwrap().into_owned()).collect();
                if fault == "nan get" {
                    flat[3] = f32::NAN;
                }
                let bytes: Vec<u8> = flat[range()].iter().flat_map(|value| value.to_le_bytes()).collect();
                self.send(json!({ "values": {} }), &bytes)
            }
            "gradients" => {
                let tokens: Vec<u32> = values().map(f32::to_bits).collect();
                let rows: Vec<&[u32]> = tokens.chunks(opened.seq_len + 1).collect();
                let gradients = opened.engine.gradients(&rows).unwrap();
                let loss = if fault == "nan gradients" { f64::NAN } else { gradients.loss };
                self.send(json!({ "progress": { "sequences": rows.len() } }), &[])?;
                let body = [loss.to_le_bytes(), gradients.norm.to_le_bytes()].concat();
                self.send(json!({ "gradients": {} }), &body)
            }
            "step" => {
                let mut numbers = numbers();
                let (learning_rate, gradient_scale) = (numbers.next().unwrap(), numbers.next().unwrap());
                let step = fields["step"].as_u64().unwrap();
                opened.engine.step(&StepParams { step, learning_rate, gradient_scale }).unwrap();
                self.send(json!({ "stepped": {} }), &[])
            }
            _ => Err(io::Error::other("the miner wants it to stop")),
        }
    }
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
    let this = std::env::current_exe().unwrap().display().to_string();
    let fault = format!("{FAULT}={fault}");
    let program =
        ["env", &fault, "RAYON_NUM_THREADS=1", &this, "the_process_that_trains", "--exact", "--nocapture"];
    let seconds = Duration::from_secs;
    CommandOptions {
        program: program.map(str::to_owned).to_vec(),
        start: seconds(20),
        heartbeat: seconds(20),
        step: seconds(20),
        stop: seconds(20),
    }
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

    /// One window of five steps, until its weights are read.
    fn window(&self, trainer: &mut Trainer, first: u64) -> Result<(Trained, Vec<f32>), TrainingError> {
        let sequences: Vec<u64> = (first..first + 5 * BATCH as u64).collect();
        let go = AtomicBool::new(false);
        let trained =
            train::train(trainer, &self.dataset, &sequences, BATCH, Trained::default(), &go, &mut ())?;
        Ok((trained, trainer.weights_flat().map_err(TrainingError::Weights)?))
    }

    /// What a command with this fault is refused for; afterwards the seat goes on from its snapshot with a sound one.
    #[track_caller]
    fn check(&self, fault: &str, options: CommandOptions, says: &str) {
        let fresh = state(&self.by_cpu());
        let begun = Instant::now();
        let mut trainer = self.by_command(options).unwrap();
        let error = self.window(&mut trainer, 100).unwrap_err();
        let said = error_chain(&error);
        assert!(said.contains(says), "{fault}: {said}");
        assert!(begun.elapsed() < Duration::from_secs(15), "{fault} took {:?}", begun.elapsed());
        // As `Miner::forget_training` and the next window: neither needs the command.
        trainer.read_state(&mut &fresh[..]).unwrap();
        trainer.load(&self.theta).unwrap();
        assert_eq!(state(&trainer), fresh, "{fault}");
        assert_eq!(trainer.weights_flat().unwrap(), self.theta, "{fault}");
        // The next window starts the command afresh, which fails as the first.
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
            // A miner that was killed reads its snapshot.
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
    assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
}

/// A process that the command starts is of its group, and ends with it.
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

/// PyTorch sums in another order, so losses agree but for the last digits.
#[test]
#[ignore = "needs PyTorch: METTLE_PYTHON names a virtual environment that has it"]
fn the_reference_trainer_takes_the_same_steps() {
    let program = vec![python("python"), example("torch_trainer.py"), "--threads".into(), "1".into()];
    Scene::new().takes_the_same_steps(program);
}

#[test]
#[ignore = "needs numpy: METTLE_PYTHON names a virtual environment that has it"]
fn the_trainer_in_numpy_takes_the_same_steps() {
    let package = format!("PYTHONPATH={}/../chain/sdk/python", env!("CARGO_MANIFEST_DIR"));
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
    // As `Miner::forget_training` and the next window, which starts all ranks afresh.
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

/// The program that trains by TorchTitan, in f32 as the engines that it is compared with.
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

/// The processes whose environments hold all of `variables`.
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
    /// A model that two tensor-parallel ranks and two pipeline stages can share.
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
