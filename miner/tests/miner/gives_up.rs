//! Tests that failures of training are distinguished, and that an abandoned window leaves the state of before.

use crate::support;
use daemon::{Codec, error_chain};
use dataset::{Dataset, PieceSource, PieceSourceError, ShardRange};
use ed25519_dalek::SigningKey;
use miner::{
    contribution_store::{ContributionStore, Snapshot},
    train::{self, Cause, TrainObserver, Trained, TrainingError, WindowSteps},
};
use model::Recipe;
use nn::{Device, ModelError, Trainer};
use protocol::{Block, GenesisHash, RunId, SeatId, Uid, Window, identity::Signer, params::Density};
use std::{
    cell::Cell,
    fs,
    path::PathBuf,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst},
        mpsc,
    },
};

const BATCH: usize = 4;
const STEPS: WindowSteps =
    WindowSteps { batch: BATCH, run_batch: BATCH, windows_before: 0, sequences_per_seat: 40 };
/// The learning rate of single steps.
const RATE: f64 = 1e-2;

struct Scene {
    directory: tempfile::TempDir,
    data: PathBuf,
    dataset: Dataset,
    theta: Vec<f32>,
}

impl Scene {
    fn new() -> Scene {
        let directory = tempfile::tempdir().unwrap();
        let data = support::prepare(directory.path());
        let dataset = Dataset::open(&data, None).unwrap();
        let theta = model::init_flat(&support::config(&dataset), 11).unwrap();
        Scene { directory, data, dataset, theta }
    }

    fn trainer(&self, learning_rate: f64) -> Trainer {
        let recipe = Recipe { batch: BATCH, micro_batch: BATCH, learning_rate, ..Recipe::default() };
        let config = support::config(&self.dataset);
        Trainer::new(&config, &recipe, Device::CPU, &self.theta).unwrap()
    }

    fn train(&self, trainer: &mut Trainer, beside: &mut dyn TrainObserver) -> Result<Trained, TrainingError> {
        let sequences: Vec<u64> = (100..140).collect();
        let go = AtomicBool::new(false);
        train::train(trainer, &self.dataset, &sequences, &STEPS, Trained::default(), &go, beside)
    }
}

/// Returns the optimiser's state as bytes.
fn state(trainer: &Trainer) -> Vec<u8> {
    let mut bytes = Vec::new();
    trainer.write_state(&mut bytes).unwrap();
    bytes
}

#[test]
fn a_loss_that_explodes_twice_gives_up_the_window_and_changes_nothing() {
    let scene = Scene::new();
    let mut trainer = scene.trainer(1e3);
    let schema = support::config(&scene.dataset).schema().unwrap();
    let codec = Arc::new(Codec::new(&schema, Density(256)).unwrap());
    let signer = Signer::new(SigningKey::from_bytes(&[7; 32]), GenesisHash([1; 32]));
    let seat = SeatId { uid: Uid(4), registered_at: Block(9) };
    let store = ContributionStore {
        directory: scene.directory.path().to_owned(),
        run: RunId(1),
        seat,
        signer,
        codec,
    };
    // A window was trained well before.
    trainer.step(&scene.dataset.sequences(&[1]).unwrap()).unwrap();
    let before = state(&trainer);
    let kept =
        Snapshot { residual: vec![0.25; schema.values()], ..Snapshot::fresh(Window(3), schema.values()) };
    store.save(&kept, &trainer).unwrap();

    trainer.refuse_loss_above(2.0 * f64::from(scene.dataset.vocab()).ln());
    trainer.load(&scene.theta).unwrap();
    let error = scene.train(&mut trainer, &mut ()).unwrap_err();
    let TrainingError::GivenUp { step, first_sequence, last_sequence, cause, .. } = &error else {
        panic!("{error:?}")
    };
    assert_eq!(*cause, Cause::Data);
    let first = 100 + u64::from(step - 1) * BATCH as u64;
    assert_eq!((*first_sequence, *last_sequence), (first, first + BATCH as u64 - 1));
    let said = error_chain(&error);
    assert!(said.contains("learning rate") && said.contains(&first.to_string()), "{said}");
    assert_ne!(state(&trainer), before, "steps were taken");

    store.restore(&mut trainer).unwrap();
    assert_eq!(state(&trainer), before);
    assert_eq!(store.open(&mut trainer).unwrap().unwrap().value, kept);
}

#[test]
fn weights_that_are_not_finite_are_not_blamed_on_the_data() {
    let scene = Scene::new();
    let mut trainer = scene.trainer(1e-3);
    let mut theta = scene.theta.clone();
    theta.iter_mut().for_each(|weight| *weight = f32::NAN);
    trainer.load(&theta).unwrap();
    let error = scene.train(&mut trainer, &mut ()).unwrap_err();
    assert!(matches!(error, TrainingError::GivenUp { step: 1, cause: Cause::State, .. }), "{error:?}");
}

/// Data that ends early: a read beyond its end waits until the test is over, and notifies `asked`.
struct Withheld {
    directory: PathBuf,
    reads: AtomicUsize,
    given: usize,
    steps: Mutex<mpsc::Receiver<u32>>,
    asked: Box<dyn Fn() + Send + Sync>,
    over: Mutex<mpsc::Receiver<()>>,
}

impl PieceSource for Withheld {
    fn read(&self, wanted: &[ShardRange]) -> Result<Vec<Vec<u8>>, PieceSourceError> {
        if self.reads.fetch_add(1, SeqCst) == self.given {
            let steps = self.steps.lock().unwrap();
            while steps.recv()? < self.given as u32 {}
            (self.asked)();
            let _ = self.over.lock().unwrap().recv();
            return Err("it is over".into());
        }
        let read = |wanted: &ShardRange| {
            let shard = fs::read(dataset::shard_path(&self.directory, &wanted.shard))?;
            Ok(shard[wanted.range.start as usize..wanted.range.end as usize].to_vec())
        };
        wanted.iter().map(read).collect()
    }
}

/// Reports the number of finished steps, and leaves on request.
struct Leaves {
    steps: mpsc::SyncSender<u32>,
    leaving: Arc<AtomicBool>,
    /// Number of times that the training polled whether to leave: more than once per step only while it waits for
    /// data.
    polls: Arc<AtomicUsize>,
}

impl TrainObserver for Leaves {
    fn stepped(&mut self, _: &Trainer, trained: &Trained) {
        self.steps.send(trained.steps).unwrap();
    }
    fn repeated(&mut self, _: u32, error: &ModelError) {
        panic!("{error}");
    }
    fn is_leaving(&self) -> bool {
        self.polls.fetch_add(1, SeqCst);
        self.leaving.load(SeqCst)
    }
}

#[test]
fn a_deadline_or_stop_while_waiting_for_data_keeps_the_finished_steps() {
    let scene = Scene::new();
    let tokenizer = fs::read(dataset::tokenizer_path(&scene.data)).unwrap();
    for deadline in [true, false] {
        let told = Arc::new(AtomicBool::new(false));
        let (steps, seen) = mpsc::sync_channel(BATCH);
        let (over, until) = mpsc::sync_channel::<()>(1);
        let (tell, polls) = (told.clone(), Arc::new(AtomicUsize::new(0)));
        let polled = polls.clone();
        let waits_then_tells = move || {
            let before = polled.load(SeqCst);
            while polled.load(SeqCst) < before + 3 {
                std::thread::yield_now();
            }
            tell.store(true, SeqCst);
        };
        let withheld = Withheld {
            directory: scene.data.clone(),
            reads: 0.into(),
            given: 3,
            steps: Mutex::new(seen),
            asked: Box::new(waits_then_tells),
            over: Mutex::new(until),
        };
        let manifest = scene.dataset.manifest().clone();
        let withheld =
            Dataset::remote(scene.data.clone(), manifest, tokenizer.clone(), Arc::new(withheld)).unwrap();
        let never = Arc::new(AtomicBool::new(false));
        let (stop, leaving) = if deadline { (told, never) } else { (never, told) };
        let sequences: Vec<u64> = (100..140).collect();
        let mut trainer = scene.trainer(1e-3);
        let mut beside = Leaves { steps, leaving, polls };
        let trained =
            train::train(&mut trainer, &withheld, &sequences, &STEPS, Trained::default(), &stop, &mut beside)
                .unwrap();
        assert_eq!((trained.steps, trained.sequences), (3, 3 * BATCH as u32));
        assert!(0.0 < trained.data_seconds, "what was waited for counts");
        drop(over);

        let mut undisturbed = scene.trainer(1e-3);
        for indices in sequences.chunks(BATCH).take(3) {
            undisturbed.step(&scene.dataset.sequences(indices).unwrap()).unwrap();
        }
        assert!(trainer.weights_flat().unwrap() == undisturbed.weights_flat().unwrap());
    }
}

/// Tokens in faulty memory: the first reads of them, up to a number, give others.
struct Unsound {
    others: Vec<u32>,
    tokens: Vec<u32>,
    wrong: Cell<u32>,
    reads: Cell<u32>,
}

impl AsRef<[u32]> for Unsound {
    fn as_ref(&self) -> &[u32] {
        self.reads.set(self.reads.get() + 1);
        match self.wrong.get().checked_sub(1) {
            Some(left) => {
                self.wrong.set(left);
                &self.others
            }
            None => &self.tokens,
        }
    }
}

#[test]
fn a_step_that_fails_once_leaves_no_trace() {
    let scene = Scene::new();
    let known = scene.dataset.sequences(&[5]).unwrap().remove(0);
    // It predicts the text that it was trained on, and fails on the same text backwards.
    let trained = || {
        let mut trainer = scene.trainer(1e-2);
        for _ in 0..60 {
            trainer.step(&[&known]).unwrap();
        }
        trainer
    };
    let unsound = |wrong: u32| Unsound {
        others: known.iter().rev().copied().collect(),
        tokens: known.clone(),
        wrong: Cell::new(wrong),
        reads: Cell::new(0),
    };
    let (mut undisturbed, sound) = (trained(), unsound(0));
    let expected = train::step(&mut undisturbed, &[&sound], RATE, |error| panic!("{error}")).unwrap();
    let backwards = trained().step(&[unsound(u32::MAX)]).unwrap().loss;
    assert!(2.0 * expected.loss < backwards, "{} {backwards}", expected.loss);
    let bound = (expected.loss + backwards) / 2.0;

    let mut trainer = trained();
    trainer.refuse_loss_above(bound);
    let mut refused = Vec::new();
    let once = unsound(sound.reads.get());
    let step = train::step(&mut trainer, &[&once], RATE, |error| refused.push(error.clone())).unwrap();
    assert_eq!(step, expected);
    assert!(matches!(refused[..], [ModelError::Exploded { loss, .. }] if loss == backwards), "{refused:?}");
    assert_eq!(state(&trainer), state(&undisturbed));
    assert!(trainer.weights_flat().unwrap() == undisturbed.weights_flat().unwrap());

    // Wrong both times: the step is not taken. Wrong in another way the second time: it is the device.
    let mut trainer = trained();
    trainer.refuse_loss_above(expected.loss / 2.0);
    let (before, weights) = (state(&trainer), trainer.weights_flat().unwrap());
    for (wrong, cause) in [(u32::MAX, Cause::Data), (sound.reads.get(), Cause::Device)] {
        let taken = train::step(&mut trainer, &[&unsound(wrong)], RATE, |error| panic!("{error}"));
        assert_eq!(taken.unwrap_err().0, cause);
        assert!(state(&trainer) == before && trainer.weights_flat().unwrap() == weights);
    }
}

/// A new optimiser in the window after three, killed after its fourth step: its steps have the rates of the run's
/// steps 30 to 39, and at most as many tenths of the highest rate as it took steps.
#[test]
fn the_rates_of_a_window_are_those_of_its_place_in_the_run() {
    struct StopsAt(u32, AtomicBool);
    impl TrainObserver for &StopsAt {
        fn stepped(&mut self, _: &Trainer, trained: &Trained) {
            self.1.store(trained.steps == self.0, SeqCst);
        }
        fn repeated(&mut self, _: u32, error: &ModelError) {
            panic!("{error}");
        }
    }
    let scene = Scene::new();
    let steps = WindowSteps { windows_before: 3, ..STEPS };
    let sequences: Vec<u64> = (100..140).collect();

    let mut by_hand = scene.trainer(1e-3);
    for (step, indices) in sequences.chunks(BATCH).enumerate() {
        let rate = by_hand.recipe().learning_rate_at(30 + step as u64).min(1e-3 * (step + 1) as f64 / 10.0);
        by_hand.step_at(&scene.dataset.sequences(indices).unwrap(), rate).unwrap();
    }

    let (mut killed, stops) = (scene.trainer(1e-3), StopsAt(4, AtomicBool::new(false)));
    let begun = Trained::default();
    let trained =
        train::train(&mut killed, &scene.dataset, &sequences, &steps, begun, &stops.1, &mut &stops).unwrap();
    assert_eq!(trained.steps, 4);
    let mut resumed = scene.trainer(1e-3);
    resumed.read_state(&mut &state(&killed)[..]).unwrap();
    resumed.load(&killed.weights_flat().unwrap()).unwrap();
    let go = AtomicBool::new(false);
    let trained =
        train::train(&mut resumed, &scene.dataset, &sequences, &steps, trained, &go, &mut ()).unwrap();
    assert_eq!(trained.steps, 10);
    assert_eq!(state(&resumed), state(&by_hand));
    assert!(resumed.weights_flat().unwrap() == by_hand.weights_flat().unwrap());
}

#[test]
fn a_damaged_shard_is_named() {
    let scene = Scene::new();
    let shards: Vec<PathBuf> =
        fs::read_dir(scene.data.join("shards")).unwrap().map(|entry| entry.unwrap().path()).collect();
    for path in &shards {
        let mut bytes = fs::read(path).unwrap();
        bytes[7] ^= 1;
        fs::write(path, bytes).unwrap();
    }
    let scene = Scene { dataset: Dataset::open(&scene.data, None).unwrap(), ..scene };
    let error = scene.train(&mut scene.trainer(1e-3), &mut ()).unwrap_err();
    let said = error_chain(&error);
    assert!(matches!(error, TrainingError::Data(_)), "{said}");
    assert!(shards.iter().any(|path| said.contains(path.to_str().unwrap())), "{said}");
}

#[test]
fn the_observer_sees_each_step() {
    #[derive(Default)]
    struct Counting(Vec<u32>);
    impl TrainObserver for Counting {
        fn stepped(&mut self, trainer: &Trainer, trained: &Trained) {
            assert_eq!(trainer.steps(), u64::from(trained.steps));
            self.0.push(trained.sequences);
        }
        fn repeated(&mut self, step: u32, error: &ModelError) {
            panic!("step {step}: {error}");
        }
    }
    let scene = Scene::new();
    let mut seen = Counting::default();
    let trained = scene.train(&mut scene.trainer(1e-3), &mut seen).unwrap();
    assert_eq!(seen.0, (1..=10).map(|step| step * BATCH as u32).collect::<Vec<_>>());
    assert_eq!((trained.sequences, trained.steps), (40, 10));
}
