//! Tests a seat that several processes train: this test program, started again for each rank. Windows have the bits
//! of one process, and a rank that is killed, hangs or differs costs at most a window. `RANKS_DEVICE` sets the device
//! of all ranks in the tests with a harmed one; on a GPU, windows have the bits of as many unharmed ranks.

#![cfg(target_os = "linux")]

mod support;

use daemon::{Codec, Flags, Settings, config::RankExchange, durable, error_chain};
use dataset::Dataset;
use ed25519_dalek::SigningKey;
use kernels::encode::Source;
use miner::{
    command::CommandGroup,
    compress,
    contribution_store::{self, ContributionStore},
    local::LocalState,
    ranks::{self, Leader, Place, RankDeadlines, launcher},
    train::{self, Cause, TrainObserver, Trained, TrainingError, WindowSteps},
};
use model::{ModelConfig, Optimiser, Recipe};
use nn::{
    Device, ModelError, StateError, Trainer, collective,
    engine::{self, Connect, DataParallel},
};
use protocol::{
    Block, Digest, GenesisHash, RunId, SeatId, Uid, Window, contribution::CODEC, identity::Signer,
    params::Density, submission::Header,
};
use std::{
    cell::Cell,
    convert::Infallible,
    ffi::OsString,
    fs,
    io::{self, BufRead as _, BufReader, Read, Write},
    net::TcpListener,
    os::unix::fs::FileExt as _,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::{Arc, atomic::AtomicBool},
    time::{Duration, Instant},
};

const BATCH: usize = 8;
const STEPS: WindowSteps =
    WindowSteps { batch: BATCH, run_batch: BATCH, windows_before: 0, sequences_per_seat: 5 * BATCH as u32 };
const SOON: Duration = Duration::from_secs(120);
/// The variable with the role of a test process: `worker`, `parent`, `full-disk`, or the settings file of a `start`.
const ROLE: &str = "RANKS_TEST_ROLE";

/// The main of other processes, run in a child process of this test program.
#[test]
#[ignore = "the child process of the other tests"]
fn a_process_of_these_tests() {
    let Ok(role) = std::env::var(ROLE) else { return };
    let code = match role.as_str() {
        "worker" => miner::cli::main_with(["miner", "worker"].map(OsString::from)),
        "parent" => {
            let scene = Scene::new();
            let trainer = scene.by_children(3, SOON).unwrap();
            println!("ranks are connected");
            std::thread::sleep(Duration::from_secs(600));
            drop(trainer);
            return;
        }
        "full-disk" => return train_on_a_full_disk(),
        settings => miner::cli::main_with(["miner", "start", "--config", settings].map(OsString::from)),
    };
    std::process::exit(if code == std::process::ExitCode::SUCCESS { 0 } else { 1 });
}

fn this_program(role: &str) -> Vec<OsString> {
    let role = format!("{ROLE}={role}");
    let this = std::env::current_exe().unwrap().into_os_string();
    let words = ["a_process_of_these_tests", "--exact", "--ignored", "--nocapture"].map(OsString::from);
    ["env".into(), role.into(), "RAYON_NUM_THREADS=1".into(), this].into_iter().chain(words).collect()
}

fn device() -> Device {
    std::env::var("RANKS_DEVICE").map_or(Device::CPU, |name| name.parse().unwrap())
}

/// Result of a window, to the bit.
#[derive(Debug, PartialEq)]
struct WindowResult {
    trained: Trained,
    weights: Vec<u32>,
    optimiser: Vec<u8>,
    contribution: Vec<u8>,
}

struct Scene {
    directory: tempfile::TempDir,
    dataset: Dataset,
    config: ModelConfig,
    recipe: Recipe,
    theta: Vec<f32>,
    group: Arc<CommandGroup>,
    device: Device,
}

impl Scene {
    fn new() -> Scene {
        Scene::on(device())
    }

    /// Creates a scene with all ranks on `device`.
    fn on(device: Device) -> Scene {
        let directory = tempfile::tempdir().unwrap();
        let dataset = Dataset::open(support::prepare(directory.path()), None).unwrap();
        let config = support::config(&dataset);
        // 3 leaves a smaller micro-batch at the end.
        let recipe = Recipe { batch: BATCH, micro_batch: 3, ..Recipe::default() };
        let theta = model::init_flat(&config, 11).unwrap();
        Scene { directory, dataset, config, recipe, theta, group: Arc::default(), device }
    }

    fn by_children(&self, ranks: usize, step: Duration) -> Result<Trainer, ModelError> {
        self.exchanging(ranks, step, RankExchange::Tcp)
    }

    fn exchanging(
        &self,
        ranks: usize,
        step: Duration,
        exchange: RankExchange,
    ) -> Result<Trainer, ModelError> {
        let identity = ranks::identity(0, ranks, [3; 32], "settings".into(), self.device);
        let deadlines = RankDeadlines { start: SOON, step };
        let program = this_program("worker");
        let connect =
            ranks::children(program, identity, self.device, exchange, deadlines, self.group.clone());
        self.connected(self.device, ranks, connect)
    }

    fn by_threads(&self, ranks: usize) -> Trainer {
        let connect: Connect = Box::new(move || {
            let mut meshes = collective::threads(ranks, SOON).into_iter();
            let first = meshes.next().expect("there is a rank 0");
            for mesh in meshes {
                std::thread::spawn(move || {
                    engine::serve(Box::new(mesh), &|config, recipe, flat| {
                        engines::rank(Device::CPU, ranks, config, recipe, flat)
                    })
                });
            }
            Ok(Box::new(first))
        });
        self.connected(Device::CPU, ranks, connect).unwrap()
    }

    fn connected(&self, device: Device, ranks: usize, connect: Connect) -> Result<Trainer, ModelError> {
        let open = |config: &ModelConfig, recipe: &Recipe, flat: &[f32]| {
            engines::rank(device, ranks, config, recipe, flat)
        };
        let engine = DataParallel::open(&self.config, &self.recipe, &self.theta, &open, connect)?;
        Trainer::from_engine(&self.config, &self.recipe, Box::new(engine))
    }

    fn alone(&self) -> Trainer {
        Trainer::new(&self.config, &self.recipe, Device::CPU, &self.theta).unwrap()
    }

    /// Runs `work` with an undisturbed trainer that has the bits of `ranks` processes.
    fn undisturbed<T>(&self, ranks: usize, work: impl FnOnce(&mut Trainer) -> T) -> T {
        if self.device == Device::CPU {
            return work(&mut self.alone());
        }
        // Other tests of this process have workers, too.
        let workers = workers_of(std::process::id()).len();
        let done = work(&mut self.by_children(ranks, SOON).unwrap());
        await_that("its ranks end", || workers_of(std::process::id()).len() <= workers);
        done
    }

    fn store(&self) -> ContributionStore {
        let codec = Codec::new(&self.config.schema().unwrap(), Density(256)).unwrap();
        ContributionStore {
            directory: self.directory.path().join("seat"),
            run: RunId(1),
            seat: SeatId { uid: Uid(4), registered_at: Block(9) },
            signer: Signer::new(SigningKey::from_bytes(&[7; 32]), GenesisHash([1; 32])),
            codec: Arc::new(codec),
        }
    }

    /// Returns the source of a contribution of a seat without a residual, trained from `theta` to `weights`.
    fn source<'a>(&'a self, weights: &'a [f32]) -> Source<'a> {
        Source::Difference { decay: 0.9, before: &self.theta, after: weights }
    }

    /// Returns the bytes of that contribution.
    fn contribution(&self, weights: &[f32]) -> Vec<u8> {
        let ContributionStore { codec, signer, .. } = self.store();
        let header = header(&codec, &signer);
        let (mut residual, mut bytes) = (vec![0.0; codec.schema().values()], Vec::new());
        let mut push = |piece: &[u8]| {
            bytes.extend_from_slice(piece);
            Ok::<_, Infallible>(())
        };
        let source = self.source(weights);
        compress::compress(&codec, &header, &signer, &mut residual, source, &mut push).unwrap();
        bytes
    }

    /// Trains one window of five steps, and returns its contribution.
    fn window(
        &self,
        trainer: &mut Trainer,
        first: u64,
        beside: &mut dyn TrainObserver,
    ) -> Result<WindowResult, TrainingError> {
        let sequences: Vec<u64> = (first..first + 5 * BATCH as u64).collect();
        let go = AtomicBool::new(false);
        let begun = Trained::default();
        let trained = train::train(trainer, &self.dataset, &sequences, &STEPS, begun, &go, beside)?;
        let weights = trainer.weights_flat().map_err(TrainingError::Weights)?;
        Ok(WindowResult {
            trained: Trained { seconds: 0.0, data_seconds: 0.0, ..trained },
            contribution: self.contribution(&weights),
            weights: weights.into_iter().map(f32::to_bits).collect(),
            optimiser: state(trainer),
        })
    }

    /// Returns the windows before and after a lost one.
    fn windows_around_a_loss(&self, ranks: usize) -> [WindowResult; 2] {
        self.undisturbed(ranks, |trainer| {
            [100, 300].map(|first| {
                trainer.load(&self.theta).unwrap();
                self.window(trainer, first, &mut ()).unwrap()
            })
        })
    }

    /// Harms a rank after two steps of the window. The window is abandoned with the error `says`, and the next one
    /// equals that of an undisturbed trainer.
    #[track_caller]
    fn check_harm(&self, ranks: usize, trainer: &mut Trainer, harm: &mut dyn FnMut(&Trainer), says: &str) {
        self.check_healed_harm(ranks, trainer, harm, &mut || (), says);
    }

    /// Does the same as [`check_harm`](Scene::check_harm), and calls `heal` after the window is abandoned.
    #[track_caller]
    fn check_healed_harm(
        &self,
        ranks: usize,
        trainer: &mut Trainer,
        harm: &mut dyn FnMut(&Trainer),
        heal: &mut dyn FnMut(),
        says: &str,
    ) {
        struct Harms<'a>(&'a mut dyn FnMut(&Trainer));
        impl TrainObserver for Harms<'_> {
            fn stepped(&mut self, trainer: &Trainer, trained: &Trained) {
                if trained.steps == 2 {
                    (self.0)(trainer);
                }
            }
            fn repeated(&mut self, _: u32, error: &ModelError) {
                panic!("{error}");
            }
        }
        let [before, expected] = self.windows_around_a_loss(ranks);
        trainer.load(&self.theta).unwrap();
        assert!(self.window(trainer, 100, &mut ()).unwrap() == before);
        let kept = state(trainer);

        trainer.load(&self.theta).unwrap();
        let error = self.window(trainer, 200, &mut Harms(harm)).unwrap_err();
        assert!(matches!(error, TrainingError::GivenUp { step: 3, cause: Cause::Ranks, .. }), "{error:?}");
        let said = error_chain(&error);
        assert!(said.contains(says) && said.contains("the next window starts the ranks afresh"), "{said}");
        heal();

        // As in `Miner::forget_training` and the next window.
        trainer.read_state(&mut &kept[..]).unwrap();
        trainer.load(&self.theta).unwrap();
        assert!(self.window(trainer, 300, &mut ()).unwrap() == expected);
    }
}

fn header(codec: &Codec, signer: &Signer) -> Header {
    Header {
        codec: CODEC,
        run: RunId(1),
        window: Window(1),
        uid: Uid(4),
        hotkey: signer.hotkey(),
        base: Digest([5; 32]),
        schema: codec.schema().digest(),
        density: codec.density(),
        trained: STEPS.sequences_per_seat,
    }
}

fn state(trainer: &Trainer) -> Vec<u8> {
    let mut bytes = Vec::new();
    trainer.write_state(&mut bytes).unwrap();
    bytes
}

/// Returns the numbers of processes that run `program`'s worker for the process `parent`.
fn workers_of(parent: u32) -> Vec<i32> {
    let all =
        fs::read_dir("/proc").unwrap().filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    let is_worker = |id: &i32| {
        let read = |file: &str| fs::read_to_string(format!("/proc/{id}/{file}")).unwrap_or_default();
        let stat = read("stat");
        let mut fields = stat.rsplit_once(')').map_or("", |(_, rest)| rest).split_whitespace();
        let (status, of) = (fields.next(), fields.next());
        status.is_some_and(|status| status != "Z")
            && of.and_then(|of| of.parse().ok()) == Some(parent)
            && read("cmdline").contains("a_process_of_these_tests")
            && read("environ").contains(&format!("{ROLE}=worker"))
    };
    all.filter(is_worker).collect()
}

fn is_gone(id: i32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{id}/stat")).unwrap_or_default();
    stat.is_empty() || stat.contains(") Z ")
}

#[track_caller]
fn await_that(what: &str, mut is_so: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < Duration::from_secs(30), "{what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn signal(id: i32, signal: libc::c_int) {
    // SAFETY: the call takes two numbers and touches no memory.
    assert_eq!(unsafe { libc::kill(id, signal) }, 0);
}

// One test harms and counts the workers of this process, so tests that start workers here run one after the other.
static ALONE: std::sync::Mutex<()> = std::sync::Mutex::new(());

fn alone() -> std::sync::MutexGuard<'static, ()> {
    ALONE.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

#[test]
fn windows_of_several_processes_have_the_bits_of_one() {
    let _alone = alone();
    // With micro-batches of one sequence, each of eight ranks has one.
    for (optimiser, micro_batch) in [(Optimiser::AdamW, 3), (Optimiser::Muon, 1)] {
        let scene = Scene::new();
        let scene = Scene { recipe: Recipe { optimiser, micro_batch, ..scene.recipe.clone() }, ..scene };
        let mut undisturbed = scene.alone();
        let (mut trainer, mut connected) = (scene.by_children(1, SOON).unwrap(), 1);
        for (ranks, first) in [(1, 100), (2, 200), (2, 300), (4, 400), (8, 500)] {
            if ranks != connected {
                // A killed miner reads its snapshot, with another number of ranks.
                let kept = state(&trainer);
                drop(trainer);
                (trainer, connected) = (scene.by_children(ranks, SOON).unwrap(), ranks);
                trainer.read_state(&mut &kept[..]).unwrap();
            }
            for trainer in [&mut trainer, &mut undisturbed] {
                trainer.load(&scene.theta).unwrap();
            }
            let got = scene.window(&mut trainer, first, &mut ()).unwrap();
            let expected = scene.window(&mut undisturbed, first, &mut ()).unwrap();
            assert!(got == expected, "{ranks} processes, {optimiser:?}");
        }
        drop(trainer);
        await_that("the ranks end", || workers_of(std::process::id()).is_empty());
    }
}

#[test]
fn contributions_of_several_threads_have_the_bytes_of_one() {
    for optimiser in [Optimiser::AdamW, Optimiser::Muon] {
        let scene = Scene::new();
        let recipe = Recipe { optimiser, micro_batch: 1, ..scene.recipe.clone() };
        let scene = Scene { recipe, ..scene };
        let expected = scene.window(&mut scene.alone(), 100, &mut ()).unwrap();
        for ranks in [1, 2, 4, 8] {
            let got = scene.window(&mut scene.by_threads(ranks), 100, &mut ()).unwrap();
            assert!(got == expected, "{ranks} threads, {optimiser:?}");
        }
    }
}

#[test]
fn a_rank_that_is_killed_in_a_window_costs_it_and_not_the_seat() {
    let _alone = alone();
    let scene = Scene::new();
    let mut trainer = scene.by_children(3, SOON).unwrap();
    let mut kill = |_: &Trainer| signal(workers_of(std::process::id())[0], libc::SIGKILL);
    scene.check_harm(3, &mut trainer, &mut kill, "ended, or closed its connection");
}

/// A trainer's optimiser. While its moments are written, the rank with this process number is killed.
struct KillsRank<'a> {
    trainer: &'a Trainer,
    rank: i32,
}

impl contribution_store::Optimiser for KillsRank<'_> {
    fn write(&self, sink: &mut dyn Write) -> io::Result<()> {
        /// Magic, schema and steps come before the moments.
        const HEAD_BYTES: usize = 8 + 32 + 8;
        struct Counted<'a> {
            sink: &'a mut dyn Write,
            written: usize,
            rank: i32,
        }
        impl Write for Counted<'_> {
            fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
                let written = self.sink.write(bytes)?;
                self.written += written;
                if HEAD_BYTES < self.written && !is_gone(self.rank) {
                    signal(self.rank, libc::SIGKILL);
                    await_that("the rank is killed", || is_gone(self.rank));
                }
                Ok(written)
            }
            fn flush(&mut self) -> io::Result<()> {
                self.sink.flush()
            }
        }
        self.trainer.write_state(&mut Counted { sink, written: 0, rank: self.rank })
    }

    fn read(&mut self, _: &mut dyn Read) -> Result<(), StateError> {
        unreachable!("it is only written")
    }
}

#[test]
fn a_rank_that_is_killed_while_a_snapshot_is_written_costs_the_optimiser_of_the_window() {
    let _alone = alone();
    let scene = Scene::new();
    let [before, after] = scene.windows_around_a_loss(3);
    let trainer = scene.by_children(3, SOON).unwrap();
    let (mut local, found) = LocalState::load(scene.store(), trainer, Window(1)).unwrap();
    assert!(found.is_none());
    let got = scene.window(&mut local.trainer, 100, &mut ()).unwrap();
    assert!(got == before);
    local.store.save(&local.snapshot, &local.trainer).unwrap();

    local.trainer.load(&scene.theta).unwrap();
    let lost = scene.window(&mut local.trainer, 200, &mut ()).unwrap();
    assert!(lost.optimiser != before.optimiser);
    let weights = local.trainer.weights_flat().unwrap();
    let rank = workers_of(std::process::id())[0];
    let attempts = Cell::new(0);
    let made = local.change(|local| {
        attempts.set(attempts.get() + 1);
        let LocalState { trainer, snapshot, store } = local;
        let header = header(&store.codec, &store.signer);
        let source = scene.source(&weights);
        match attempts.get() {
            1 => store.make(snapshot, &header, source, &KillsRank { trainer, rank }),
            _ => store.make(snapshot, &header, source, &*trainer),
        }
    });
    let made = made.unwrap();
    assert_eq!(attempts.get(), 2);

    // The window counts: only its optimiser is lost.
    assert!(fs::read(local.store.path(&made)).unwrap() == lost.contribution);
    assert!(state(&local.trainer) == before.optimiser);
    let mut restarted = scene.alone();
    let written = local.store.open(&mut restarted).unwrap().unwrap();
    assert!(written.value == local.snapshot && !written.from_backup);
    assert!(state(&restarted) == before.optimiser);

    local.trainer.load(&scene.theta).unwrap();
    assert!(scene.window(&mut local.trainer, 300, &mut ()).unwrap() == after);
}

/// Limits the size of the files that this process writes to `bytes`: like a full disk.
fn limit_files(bytes: u64) {
    let mut limits = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the calls read and write `limits` alone, and no handler is installed.
    unsafe {
        libc::signal(libc::SIGXFSZ, libc::SIG_IGN);
        assert_eq!(libc::getrlimit(libc::RLIMIT_FSIZE, &mut limits), 0);
        limits.rlim_cur = bytes.min(limits.rlim_max);
        assert_eq!(libc::setrlimit(libc::RLIMIT_FSIZE, &limits), 0);
    }
}

/// The main of a separate process, as the limit applies to the whole process.
fn train_on_a_full_disk() {
    let scene = Scene::new();
    // Its snapshot is longer than two buffers, so that some moments are not gathered yet when the disk is full.
    let config = ModelConfig { d_model: 128, d_ff: 256, ..scene.config.clone() };
    let theta = model::init_flat(&config, 11).unwrap();
    let scene = Scene { config, theta, ..scene };
    let [before, after] = scene.windows_around_a_loss(3);
    let trainer = scene.by_children(3, SOON).unwrap();
    let (mut local, _) = LocalState::load(scene.store(), trainer, Window(1)).unwrap();
    local.store.save(&local.snapshot, &local.trainer).unwrap();
    let length = fs::metadata(local.store.directory.join("miner.snapshot")).unwrap().len();
    assert!(2 << 20 < length, "{length}");
    let make = |local: &mut LocalState| {
        let weights = local.trainer.weights_flat().unwrap();
        local.change(|local| {
            let LocalState { trainer, snapshot, store } = local;
            let header = header(&store.codec, &store.signer);
            store.make(snapshot, &header, scene.source(&weights), &*trainer)
        })
    };
    let check_refused = |local: &mut LocalState, bytes: u64| {
        let (snapshot, optimiser) = (local.snapshot.clone(), state(&local.trainer));
        limit_files(bytes);
        let full = make(local).unwrap_err();
        limit_files(u64::MAX);
        let said = error_chain(&full);
        assert!(durable::is_full(&full) && said.contains("is the disk full"), "{bytes}: {said}");
        assert!(local.snapshot == snapshot && state(&local.trainer) == optimiser, "{bytes}");
    };

    // Space is freed in time. The disk is full for the contribution, for half of the snapshot, for all but its last
    // byte.
    assert!(scene.window(&mut local.trainer, 100, &mut ()).unwrap() == before);
    [0, length / 2, length - 1].into_iter().for_each(|bytes| check_refused(&mut local, bytes));
    let made = make(&mut local).unwrap();
    assert!(fs::read(local.store.path(&made)).unwrap() == before.contribution);
    let mut restarted = scene.alone();
    local.store.open(&mut restarted).unwrap().unwrap();
    assert!(state(&restarted) == before.optimiser);

    // Space is not freed, and the window is abandoned.
    local.trainer.load(&scene.theta).unwrap();
    scene.window(&mut local.trainer, 200, &mut ()).unwrap();
    check_refused(&mut local, length / 2);
    local.store.restore(&mut local.trainer).unwrap();
    assert!(state(&local.trainer) == before.optimiser);
    local.trainer.load(&scene.theta).unwrap();
    assert!(scene.window(&mut local.trainer, 300, &mut ()).unwrap() == after);
}

#[test]
fn a_full_disk_delays_ranks_or_costs_them_the_window_and_nothing_else() {
    let _alone = alone();
    let program = this_program("full-disk");
    let mut process = Command::new(&program[0]);
    let ended = process.args(&program[1..]).stdin(Stdio::null()).output().unwrap();
    assert!(ended.status.success(), "{}", String::from_utf8_lossy(&ended.stderr));
}

#[test]
fn a_rank_that_stops_answering_costs_the_window_and_is_replaced() {
    let _alone = alone();
    let scene = Scene::new();
    let mut trainer = scene.by_children(3, Duration::from_secs(5)).unwrap();
    let mut stopped = 0;
    let mut stop = |_: &Trainer| {
        stopped = workers_of(std::process::id())[0];
        signal(stopped, libc::SIGSTOP);
    };
    scene.check_harm(3, &mut trainer, &mut stop, "did not answer within 5 s");
    await_that("it is killed", || is_gone(stopped));
}

/// Overwrites `values` by NaN wherever the process has them in its memory. Returns whether it found them.
fn spoil(id: i32, values: &[f32]) -> bool {
    let wanted: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
    let spoilt = f32::NAN.to_le_bytes().repeat(values.len());
    let memory = fs::File::options().read(true).write(true).open(format!("/proc/{id}/mem")).unwrap();
    let mut found = false;
    for line in fs::read_to_string(format!("/proc/{id}/maps")).unwrap().lines() {
        let (range, rest) = line.split_once(' ').unwrap();
        let (start, end) = range.split_once('-').unwrap();
        let [start, end] = [start, end].map(|address| u64::from_str_radix(address, 16).unwrap());
        if !rest.starts_with("rw") {
            continue;
        }
        let mut bytes = vec![0; (end - start) as usize];
        if memory.read_exact_at(&mut bytes, start).is_err() {
            continue;
        }
        let windows = bytes.windows(wanted.len()).enumerate().step_by(4);
        for (at, _) in windows.filter(|(_, window)| **window == wanted[..]) {
            memory.write_all_at(&spoilt, start + at as u64).unwrap();
            found = true;
        }
    }
    found
}

/// Memory corruption in a rank: its weights are NaN, also when the step is repeated. Always on the CPU, whose memory
/// the test can write.
#[test]
fn a_rank_whose_weights_are_no_numbers_costs_the_window_and_is_named() {
    let _alone = alone();
    let scene = Scene::on(Device::CPU);
    let mut trainer = scene.by_children(2, SOON).unwrap();
    // The rank has these when rank 0 ends a step: later tensors come from both ranks.
    let before = scene.config.shapes().into_iter().take_while(|(name, _)| !name.contains("o_proj"));
    let first: usize = before.map(|(_, [rows, columns])| rows * columns).sum();
    let mut harm = |trainer: &Trainer| {
        let weights = trainer.weights_flat().unwrap();
        assert!(spoil(workers_of(std::process::id())[0], &weights[first..first + 16]));
    };
    let says = "rank 1 computed something that is no number, twice; computed by rank 0 alone";
    scene.check_harm(2, &mut trainer, &mut harm, says);
}

#[test]
fn ranks_that_cannot_be_started_cost_the_window_with_the_reason() {
    let _alone = alone();
    let scene = Scene::new();
    let identity = || ranks::identity(0, 2, [3; 32], "settings".into(), Device::CPU);
    let deadlines = RankDeadlines { start: Duration::from_secs(20), step: SOON };
    let refused = |program: &[&str]| {
        let program = program.iter().map(OsString::from).collect();
        let group = scene.group.clone();
        let mut connect =
            ranks::children(program, identity(), Device::CPU, RankExchange::Tcp, deadlines, group);
        connect().err().unwrap().to_string()
    };
    let said = refused(&["/no/such/program"]);
    assert!(said.contains("could not start rank 1"), "{said}");
    let said = refused(&["sh", "-c", "echo out of luck; exit 3"]);
    assert!(said.contains("rank 1 ended before it was connected; its output ends: out of luck"), "{said}");
    scene.group.close();
    let said = refused(&["true"]);
    assert!(said.contains("the miner is stopping"), "{said}");
}

#[test]
fn ranks_end_with_the_miner() {
    let _alone = alone();
    let scene = Scene::new();
    let trainer = scene.by_children(3, SOON).unwrap();
    let workers = workers_of(std::process::id());
    assert_eq!(workers.len(), 2);
    scene.group.close();
    await_that("the ranks are killed", || workers.iter().all(|worker| is_gone(*worker)));
    drop(trainer);

    // Also for a miner that is killed itself.
    let program = this_program("parent");
    let mut parent = Command::new(&program[0]);
    parent.args(&program[1..]).stdin(Stdio::null()).stdout(Stdio::piped());
    let mut parent = parent.spawn().unwrap();
    let mut lines = BufReader::new(parent.stdout.take().unwrap()).lines();
    assert!(lines.any(|line| line.unwrap().contains("ranks are connected")));
    let workers = workers_of(parent.id());
    assert_eq!(workers.len(), 2);
    parent.kill().unwrap();
    parent.wait().unwrap();
    await_that("the ranks end with it", || workers.iter().all(|worker| is_gone(*worker)));
}

/// A cluster of one machine: rank 0 is this process, the others are started as by a launcher.
struct Cluster {
    scene: Scene,
    settings: PathBuf,
    port: u16,
}

const SECRET: &str = "a secret of the ranks";
/// Deadline of a rank's answer, in seconds.
const CLUSTER_STEP_SECONDS: u64 = 5;

impl Cluster {
    fn new() -> Cluster {
        let scene = Scene::new();
        let settings = scene.directory.path().join("miner.toml");
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let cluster = Cluster { scene, settings, port };
        cluster.write(&cluster.settings, "micro_batch_sequences = 3");
        cluster
    }

    fn write(&self, path: &Path, train: &str) {
        let secret = self.scene.directory.path().join("secret");
        fs::write(&secret, SECRET).unwrap();
        let text = format!(
            "key = \"//Alice\"\n[train]\n{train}\nrank_address = \"127.0.0.1:{}\"\nrank_secret_file = {secret:?}\nrank_start_seconds = 30\nrank_step_seconds = {CLUSTER_STEP_SECONDS}\n",
            self.port
        );
        fs::write(path, text).unwrap();
    }

    fn member(&self, rank: usize, ranks: usize, settings: &Path) -> Child {
        let program = this_program(settings.to_str().unwrap());
        let mut member = Command::new(&program[0]);
        member.args(&program[1..]).env("RANK", rank.to_string()).env("WORLD_SIZE", ranks.to_string());
        member.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    }

    fn leader(&self, ranks: usize) -> Leader {
        let flags = Flags { config: Some(self.settings.clone()), ..Flags::default() };
        let settings = Settings::read(&flags).unwrap();
        let variable = |name: &str| match name {
            "RANK" => Some("0".to_owned()),
            "WORLD_SIZE" => Some(ranks.to_string()),
            _ => None,
        };
        let place = ranks::place(&settings.train, None, None, variable).unwrap();
        assert!(
            matches!(&place, Place::Launched { launched, .. } if launched.launcher == launcher::Launcher::Torch)
        );
        Leader::new(&place, &settings, Device::CPU).unwrap().unwrap()
    }

    fn trainer(&self, leader: Leader) -> Result<Trainer, ModelError> {
        let Scene { config, recipe, theta, group, .. } = &self.scene;
        leader.trainer(config, recipe, theta, Device::CPU, group.clone())
    }
}

/// Returns the output of a process, and whether it succeeded.
fn end_of(mut process: Child) -> (bool, String) {
    let mut said = String::new();
    process.stderr.take().unwrap().read_to_string(&mut said).unwrap();
    (process.wait().unwrap().success(), said)
}

#[test]
fn ranks_of_a_launcher_connect_again_after_a_failure_and_end_with_rank_0() {
    let cluster = Cluster::new();
    let members = [1, 2].map(|rank| cluster.member(rank, 3, &cluster.settings));
    let leader = cluster.leader(3);
    let mut trainer = cluster.trainer(leader).unwrap();
    let hung = i32::try_from(members[0].id()).unwrap();
    let mut stop = |_: &Trainer| signal(hung, libc::SIGSTOP);
    // After rank 0 has abandoned it.
    let mut wake = || signal(hung, libc::SIGCONT);
    let says = format!("did not answer within {CLUSTER_STEP_SECONDS} s");
    cluster.scene.check_healed_harm(3, &mut trainer, &mut stop, &mut wake, &says);
    drop(trainer);
    for member in members {
        let (ended_well, said) = end_of(member);
        assert!(ended_well, "{said}");
        assert!(said.contains("connecting to rank 0 anew"), "{said}");
    }
}

#[test]
fn ranks_of_a_launcher_that_differ_are_refused_by_name() {
    let cluster = Cluster::new();
    let other = cluster.scene.directory.path().join("other.toml");
    cluster.write(&other, "micro_batch_sequences = 4");
    let check = |ranks: usize, settings: &Path, says: &str| {
        let leader = cluster.leader(2);
        let member = cluster.member(1, ranks, settings);
        let refused = cluster.trainer(leader).err().unwrap().to_string();
        assert!(refused.contains(says), "{refused}");
        let (ended_well, said) = end_of(member);
        assert!(!ended_well && said.contains("refused this rank: ") && said.contains(says), "{said}");
    };
    check(2, &other, "rank 1 has settings digest ");
    check(3, &cluster.settings, "rank 1 was started as one of 3, rank 0 as one of 2");
}

#[test]
fn nccl_without_gpus_of_nvidia_is_refused_at_the_start() {
    let cluster = Cluster::new();
    cluster.write(&cluster.settings, "rank_exchange = \"nccl\"");
    let (ended_well, said) = end_of(cluster.member(1, 2, &cluster.settings));
    assert!(!ended_well && said.contains("ranks on cpu cannot exchange by NCCL"), "{said}");
}

/// Rank 0 creates an id and sends it to the other processes. Their engine is the CPU's, which cannot use it.
#[test]
#[ignore = "needs libnccl.so.2: METTLE_NCCL or the loader names it"]
fn an_id_of_nccl_reaches_engines_that_cannot_use_it_and_ends_the_ranks() {
    let _alone = alone();
    for ranks in [2, 4] {
        let error = Scene::new().exchanging(ranks, SOON, RankExchange::Nccl).err().unwrap().to_string();
        assert!(error.contains("this engine has no exchange by NCCL"), "{error}");
        await_that("the ranks end", || workers_of(std::process::id()).is_empty());
    }
}

#[test]
fn a_rank_without_a_leader_ends_with_the_address() {
    let cluster = Cluster::new();
    let text = fs::read_to_string(&cluster.settings).unwrap();
    fs::write(&cluster.settings, text.replace("rank_start_seconds = 30", "rank_start_seconds = 1")).unwrap();
    let (ended_well, said) = end_of(cluster.member(1, 2, &cluster.settings));
    let address = format!("127.0.0.1:{}", cluster.port);
    assert!(!ended_well && said.contains(&address), "{said}");
}

/// Prints the figures of a step: bytes that a rank sends, compared with the formula, and its memory.
#[test]
#[ignore = "prints figures"]
fn figures_of_a_step() {
    let preset = std::env::var("RANKS_PRESET").unwrap_or_else(|_| "6m".into());
    let config = ModelConfig::preset(&preset).unwrap();
    let theta = model::init_flat(&config, 1).unwrap();
    for ranks in [1, 2, 4] {
        let recipe = Recipe { batch: 4, micro_batch: 1, ..Recipe::default() };
        let identity = ranks::identity(0, ranks, [3; 32], "settings".into(), Device::CPU);
        let deadlines = RankDeadlines { start: SOON, step: 10 * SOON };
        let group = Arc::<CommandGroup>::default();
        let program = this_program("worker");
        let connect = ranks::children(program, identity, Device::CPU, RankExchange::Tcp, deadlines, group);
        let open = |config: &ModelConfig, recipe: &Recipe, flat: &[f32]| {
            engines::rank(Device::CPU, ranks, config, recipe, flat)
        };
        let engine = DataParallel::open(&config, &recipe, &theta, &open, connect).unwrap();
        let mut trainer = Trainer::from_engine(&config, &recipe, Box::new(engine)).unwrap();
        let batch: Vec<Vec<u32>> = (0..4).map(|at| vec![at; config.seq_len + 1]).collect();
        trainer.step(&batch).unwrap();
        let begun = Instant::now();
        trainer.step(&batch).unwrap();
        let seconds = begun.elapsed().as_secs_f64();
        let estimate = nn::MemoryEstimate::new(&config, &recipe, Device::CPU);
        let estimate = estimate.of_rank(&config, &recipe, Device::CPU, ranks);
        let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
        let held = estimate.weights + estimate.gradients + estimate.optimiser;
        let measured: Vec<f64> = workers_of(std::process::id())
            .into_iter()
            .map(|id| {
                let status = fs::read_to_string(format!("/proc/{id}/status")).unwrap();
                let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
                line.trim().trim_end_matches(" kB").trim().parse::<f64>().unwrap() / 1024.0
            })
            .collect();
        println!(
            "{preset}, {ranks} ranks: step {seconds:.2} s; a rank by formula {:.0} MiB ({:.0} MiB of it weights, gradients and moments); ranks 1 to {}: peaks {measured:.0?} MiB",
            mib(estimate.total()),
            mib(held),
            ranks - 1
        );
    }
}
