//! Tests that a miner killed at any moment resumes and computes the same bits.
//!
//! The killed process is a real one, and it writes to the disk by the miner's own code: train, snapshot, compress,
//! subtract. Only the chain is left out, so that a window takes as long as its steps: commitments are accepted at
//! once, and a window's model is the previous one with the miner's own contribution applied. Its uploads are kept. At
//! the end everything on disk is compared, byte by byte, with the files of an undisturbed process.

#![cfg(unix)]

use crate::support;
use daemon::{Codec, ModelState, Storage, codec::Update, durable};
use dataset::Dataset;
use ed25519_dalek::SigningKey;
use kernels::encode::Source as Feedback;
use miner::{
    compress,
    contribution_store::{ContributionStore, Snapshot},
    progress::{self, Base, Progress, SnapshotInterval, SnapshotKey},
    train::{self, TrainObserver, Trained, WindowSteps},
};
use model::Recipe;
use nn::{Device, ModelError, Trainer};
use protocol::{
    Block, Digest, GenesisHash, RunId, RunParams, SeatId, Uid, Window,
    contribution::{CODEC, Schema},
    identity::Signer,
    params::Density,
    submission::{Header, PREFIX_BYTES, SIGNATURE_BYTES},
};
use std::{
    collections::BTreeMap,
    fs,
    io::Write as _,
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

/// Windows of an undisturbed process.
const WINDOWS: u32 = 4;
/// Sequences dealt in each.
const SEQUENCES: u32 = 40;
const BATCH: usize = 4;
/// Sequences after which a deadline comes, in every third window.
const CUT: u32 = 24;
const KILLS: u32 = 50;
const DECAY: f32 = 0.9;

/// The variable that marks a process to be killed, with its directory.
const HOME: &str = "METTLE_TEST_RESUME_HOME";
const DATA: &str = "METTLE_TEST_RESUME_DATA";
/// The window and the number of its sequences after which the process waits to be killed, if set: `1 8`.
const HOLD: &str = "METTLE_TEST_RESUME_HOLD";

/// The main of a process, run in a child process of this test program.
#[test]
#[ignore = "the child process of the other tests"]
fn the_process_that_is_killed() {
    let (Some(home), Some(data)) = (std::env::var_os(HOME), std::env::var_os(DATA)) else { return };
    if let Err(error) = mine(Path::new(&home), Path::new(&data)) {
        eprintln!("Error: {}", daemon::error_chain(&*error));
        std::process::exit(3);
    }
}

#[test]
fn a_miner_killed_at_fifty_random_points_computes_the_same_bits() {
    let scene = Scene::new();
    let started = Instant::now();
    let undisturbed = scene.home("undisturbed");
    let output = scene.run(&undisturbed, &[]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let whole_run = started.elapsed();
    let expected = left_behind(&undisturbed);
    assert_eq!(expected.len(), 3 + WINDOWS as usize, "{:?}", expected.keys());

    // Repeats the moments as closely as a machine allows: the seed is fixed.
    let mut dice = Dice(0x6d65_7474_6c65);
    let mut hits: BTreeMap<String, u32> = BTreeMap::new();
    let (mut kills, mut rounds) = (0, 0);
    // The minimum, and more on a machine that writes so quickly that no kill came during a write.
    let enough = |kills: u32, hits: &BTreeMap<String, u32>| {
        KILLS <= kills && (hits.keys().any(|moment| moment.contains("writing")) || 4 * KILLS <= kills)
    };
    while !enough(kills, &hits) {
        rounds += 1;
        let home = scene.home(&format!("round-{rounds}"));
        loop {
            // Between zero and a third of a whole run, including its start.
            let after = whole_run.mul_f64(dice.next() / 3.0);
            if !enough(kills, &hits) && !scene.run_and_kill(&home, after) {
                kills += 1;
                *hits.entry(moment(&home)).or_default() += 1;
                continue;
            }
            let output = scene.run(&home, &[]);
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
            break;
        }
        let found = left_behind(&home);
        for (name, bytes) in &expected {
            assert!(
                found.get(name) == Some(bytes),
                "round {rounds}: {name} differs from an undisturbed miner's"
            );
        }
        assert_eq!(found.len(), expected.len());
    }
    println!(
        "{kills} kills in {rounds} runs, each of them then like the undisturbed one of {whole_run:.1?}; hit:"
    );
    hits.iter().for_each(|(moment, count)| println!("{count:4}  {moment}"));
    assert!(hits.keys().any(|moment| moment.contains("writing")), "no kill came amid a write: {hits:?}");
}

/// The system refuses to write more than a limit into a file: like a full disk, at once and in the middle.
#[test]
fn a_full_disk_costs_time_and_nothing_else() {
    let scene = Scene::new();
    let undisturbed = scene.home("undisturbed");
    assert!(scene.run(&undisturbed, &[]).status.success());
    let expected = left_behind(&undisturbed);

    let home = scene.home("full");
    scene.run_and_kill_at(&home, 1, 4);
    let before = fs::read(home.join("miner.snapshot")).unwrap();
    for blocks in [0, 1, 64, 500] {
        let output =
            scene.run(&home, &["sh", "-c", &format!("trap '' XFSZ; ulimit -f {blocks}; exec \"$@\""), "sh"]);
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(3), "{said}");
        assert!(said.contains("Error: could not write") && said.contains("is the disk full"), "{said}");
        assert!(!said.contains("panicked"), "{said}");
        assert!(fs::read(home.join("miner.snapshot")).unwrap() == before, "the last good one stands");
    }
    let output = scene.run(&home, &[]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(left_behind(&home) == expected);
}

#[test]
fn with_both_snapshots_damaged_the_window_is_trained_from_its_beginning() {
    let scene = Scene::new();
    let undisturbed = scene.home("undisturbed");
    assert!(scene.run(&undisturbed, &[]).status.success());

    let home = scene.home("damaged");
    scene.run_and_kill_at(&home, 0, 8);
    for path in ["training.snapshot", "training.snapshot.before"].map(|name| home.join(name)) {
        let mut bytes = fs::read(&path).unwrap();
        let middle = bytes.len() / 2;
        bytes[middle] ^= 1;
        fs::write(path, bytes).unwrap();
    }
    let output = scene.run(&home, &[]);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    assert!(said.contains("from its beginning"), "{said}");
    assert!(
        home.join("training.snapshot.damaged").exists()
            || home.join("training.snapshot.before.damaged").exists()
    );
    let (found, expected) = (left_behind(&home), left_behind(&undisturbed));
    assert!(expected.iter().all(|(name, bytes)| found.get(name) == Some(bytes)));
}

/// Mines [`WINDOWS`] windows in `home`, from the state of a killed process.
fn mine(home: &Path, data: &Path) -> Result<(), Box<dyn std::error::Error>> {
    let dataset = Dataset::open(data, None)?;
    let config = support::config(&dataset);
    let schema = config.schema()?;
    let (run, params) = (RunId(1), RunParams::default());
    let seat = SeatId { uid: Uid(4), registered_at: Block(9) };
    let signer = Signer::new(SigningKey::from_bytes(&[7; 32]), GenesisHash([1; 32]));
    let codec = Arc::new(Codec::new(&schema, Density(256))?);
    let store = ContributionStore {
        directory: home.to_owned(),
        run,
        seat,
        signer: signer.clone(),
        codec: codec.clone(),
    };

    let model = home.join("model.state");
    let mut state = match ModelState::load(&model, run, schema.values(), &Storage::memory())? {
        Some(state) => state,
        None => {
            let theta = model::init_flat(&config, 11)?;
            let genesis = ModelState::genesis(run, &params, &dataset.digest(), theta);
            let state = ModelState { buffer: None, ..genesis };
            state.save(&model)?;
            state
        }
    };
    let recipe = Recipe { batch: BATCH, micro_batch: BATCH, warmup_steps: 20, ..Recipe::default() };
    let mut trainer = Trainer::new(&config, &recipe, Device::CPU, &state.theta)?;
    let mut snapshot = match store.open(&mut trainer)? {
        Some(found) => found.value,
        None => {
            let fresh = Snapshot::fresh(state.window, schema.values());
            store.save(&fresh, &trainer)?;
            fresh
        }
    };

    while state.window < Window(WINDOWS) {
        let window = state.window;
        let pending = match snapshot.pending.clone().filter(|pending| pending.window == window) {
            Some(pending) => {
                say("taking up a contribution");
                let header = header(&schema, &codec, &signer, &state, pending.trained);
                store.resume(&mut snapshot, pending, &header, &trainer)?
            }
            None => {
                say("training");
                let trained = train(home, &dataset, run, seat, &state, &store, &mut trainer)?;
                say("compressing");
                let away = window.0 - snapshot.residual_for.0;
                compress::decay_residual(&mut snapshot.residual, DECAY, away);
                let after = trainer.weights_flat()?;
                let source = Feedback::Difference { decay: DECAY, before: &state.theta, after: &after };
                let header = header(&schema, &codec, &signer, &state, trained.sequences);
                let pending = store.make(&mut snapshot, &header, source, &trainer)?;
                progress::file(home).remove();
                pending
            }
        };
        say("committing");
        if !pending.committed {
            store.committed(&mut snapshot, &pending, &trainer)?;
        }
        say("uploading");
        let bytes = fs::read(store.path(&pending))?;
        durable::write_atomic(&home.join("sent").join(window.0.to_string()), &bytes)?;
        say("following");
        let body = &bytes[PREFIX_BYTES..bytes.len() - SIGNATURE_BYTES];
        let update = Update::check(&codec, body, false)?;
        state.merged(1.0, &Digest::of(&bytes), Vec::new(), &update, None)?;
        state.save(&model)?;
    }
    Ok(())
}

/// Trains one window, with a snapshot after every step.
fn train(
    home: &Path,
    dataset: &Dataset,
    run: RunId,
    seat: SeatId,
    state: &ModelState,
    store: &ContributionStore,
    trainer: &mut Trainer,
) -> Result<Trained, Box<dyn std::error::Error>> {
    let first = u64::from(state.window.0 * SEQUENCES);
    let sequences: Vec<u64> =
        (first..first + u64::from(SEQUENCES)).map(|index| index * 7 % dataset.training_sequences()).collect();
    let (window, lineage, weights) = (state.window, state.lineage, state.weights_root());
    let (base, sequences_digest) = (Base::Model { lineage, weights }, progress::digest_of(&sequences));
    let of = SnapshotKey { run, seat, window, base, sequences: sequences_digest };
    let mut progress = Progress::new(home, of, SnapshotInterval::Steps(1));
    let begun = match progress.resume(trainer) {
        Ok(Some(found)) => found.value,
        Ok(None) => {
            trainer.load(&state.theta)?;
            Trained::default()
        }
        Err(error) => {
            eprintln!("training the window from its beginning: {}", daemon::error_chain(&error));
            store.restore(trainer)?;
            trainer.load(&state.theta)?;
            Trained::default()
        }
    };
    let deadline = if window.0 % 3 == 1 { CUT } else { u32::MAX };
    let stop = AtomicBool::new(deadline <= begun.sequences);
    let hold = std::env::var(HOLD).ok().filter(|at| at.starts_with(&format!("{} ", window.0)));
    let hold = hold.and_then(|at| at.split_once(' ')?.1.parse().ok());
    let mut beside = Keeping { progress, stop: &stop, deadline, hold };
    let steps = WindowSteps {
        batch: BATCH,
        run_batch: BATCH,
        windows_before: window.0 + 10,
        sequences_per_seat: SEQUENCES,
    };
    Ok(train::train(trainer, dataset, &sequences, &steps, begun, &stop, &mut beside)?)
}

struct Keeping<'a> {
    progress: Progress,
    stop: &'a AtomicBool,
    /// The number of sequences after which the deadline comes.
    deadline: u32,
    /// The number of sequences after which it waits to be killed.
    hold: Option<u32>,
}

impl TrainObserver for Keeping<'_> {
    fn stepped(&mut self, trainer: &Trainer, trained: &Trained) {
        if let Err(error) = self.progress.stepped(trainer, trained) {
            eprintln!("no snapshot inside the window: {}", daemon::error_chain(&error));
        }
        if self.deadline <= trained.sequences {
            self.stop.store(true, Ordering::Relaxed);
        }
        if self.hold.is_some_and(|hold| hold <= trained.sequences) {
            say(HOLDING);
            std::thread::sleep(Duration::from_secs(600));
            panic!("it was not killed");
        }
    }

    fn repeated(&mut self, step: u32, error: &ModelError) {
        panic!("step {step} failed: {error}");
    }
}

fn header(schema: &Schema, codec: &Codec, signer: &Signer, state: &ModelState, trained: u32) -> Header {
    Header {
        codec: CODEC,
        run: state.run,
        window: state.window,
        uid: Uid(4),
        hotkey: signer.hotkey(),
        base: state.lineage,
        schema: schema.digest(),
        density: codec.density(),
        trained,
    }
}

/// Output of a process that waits to be killed.
const HOLDING: &str = "holding";

/// Reports the next action to the parent process, which will kill this one.
fn say(what: &str) {
    println!("\nnow {what}");
    std::io::stdout().flush().expect("the parent listens");
}

/// A prepared text, and directories of miners.
struct Scene {
    directory: tempfile::TempDir,
    data: PathBuf,
}

impl Scene {
    fn new() -> Scene {
        let directory = tempfile::tempdir().unwrap();
        let data = support::prepare(directory.path());
        Scene { directory, data }
    }

    fn home(&self, name: &str) -> PathBuf {
        let home = self.directory.path().join(name);
        fs::create_dir(&home).unwrap();
        home
    }

    /// Returns the command of the process, started by `by`.
    fn command(&self, home: &Path, by: &[&str]) -> Command {
        let program = std::env::current_exe().unwrap();
        let mut command = match by {
            [] => Command::new(program),
            [first, rest @ ..] => {
                let mut command = Command::new(first);
                command.args(rest).arg(program);
                command
            }
        };
        command.args([
            "resume::the_process_that_is_killed",
            "--exact",
            "--ignored",
            "--nocapture",
            "--test-threads",
            "1",
        ]);
        command.env(HOME, home).env(DATA, &self.data).env("RAYON_NUM_THREADS", "1").stdin(Stdio::null());
        command
    }

    /// Runs the process to its end.
    fn run(&self, home: &Path, by: &[&str]) -> Output {
        self.command(home, by).output().unwrap()
    }

    /// Runs the process and kills it after `after`. Returns whether it had ended before.
    fn run_and_kill(&self, home: &Path, after: Duration) -> bool {
        let started = Instant::now();
        run_and_kill_when(self.command(home, &[]), home, || after <= started.elapsed())
    }

    /// Runs the process and kills it in this window after this many of its sequences. It does not continue, however
    /// late the kill comes.
    fn run_and_kill_at(&self, home: &Path, window: u32, sequences: u32) {
        let mut command = self.command(home, &[]);
        command.env(HOLD, format!("{window} {sequences}"));
        let holds = || fs::read_to_string(home.join("said")).unwrap().contains(HOLDING);
        assert!(!run_and_kill_when(command, home, holds), "it did not wait to be killed");
    }
}

/// Runs the process and kills it when `now` is true. Returns whether it had ended before.
fn run_and_kill_when(mut command: Command, home: &Path, now: impl Fn() -> bool) -> bool {
    let said = fs::File::create(home.join("said")).unwrap();
    let mut child = command.stdout(said).stderr(Stdio::null()).spawn().unwrap();
    loop {
        if let Some(status) = child.try_wait().unwrap() {
            assert!(status.success(), "{status}");
            return true;
        }
        if now() {
            // SIGKILL: nothing is caught, flushed or finished.
            child.kill().unwrap();
            // It may have ended just before.
            return child.wait().unwrap().success();
        }
        std::thread::sleep(Duration::from_micros(200));
    }
}

/// Returns the relevant files that a process left, by name.
fn left_behind(home: &Path) -> BTreeMap<String, Vec<u8>> {
    let mut files: BTreeMap<String, Vec<u8>> = ["model.state", "model.state.before", "miner.snapshot"]
        .map(|name| (name.into(), fs::read(home.join(name)).unwrap()))
        .into();
    for window in fs::read_dir(home.join("sent")).unwrap().flatten() {
        let name = window.file_name().to_string_lossy().into_owned();
        // Files of an upload that was killed do not count: it was sent again completely.
        if !name.starts_with('.') {
            files.insert(format!("sent/{name}"), fs::read(window.path()).unwrap());
        }
    }
    files
}

/// Returns the activity of a killed process, from its last output and its unfinished files.
fn moment(home: &Path) -> String {
    let said = fs::read_to_string(home.join("said")).unwrap_or_default();
    let at = said.lines().rev().find_map(|line| line.strip_prefix("now ")).unwrap_or("starting").to_owned();
    let names = |directory: PathBuf| -> Vec<String> {
        let entries = fs::read_dir(directory).into_iter().flatten().flatten();
        entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
    };
    let unfinished =
        |directory: PathBuf| names(directory).into_iter().find(|name| name.contains("unfinished"));
    let half = ["", "contributions", "sent"].iter().find_map(|part| unfinished(home.join(part)));
    let here = names(home.to_owned());
    let renamed = here
        .iter()
        .filter_map(|name| name.strip_suffix(".before"))
        .find(|name| !here.iter().any(|there| there == name));
    match (half, renamed) {
        (_, Some(name)) => format!("{at}, writing: between the renames of {name}"),
        (Some(half), None) => {
            let name = half.trim_start_matches('.').split(".unfinished").next().unwrap_or_default();
            let name = if name.starts_with("unfinished") { "a contribution" } else { name };
            format!("{at}, writing {name}")
        }
        (None, None) => at,
    }
}

/// Numbers from 0 to 1, the same in every run (splitmix64).
struct Dice(u64);

impl Dice {
    fn next(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) >> 11) as f64 / (1u64 << 53) as f64
    }
}
