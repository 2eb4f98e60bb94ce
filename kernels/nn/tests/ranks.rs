//! Ranks as threads: the suite of all engines; the bits of one engine for any number of ranks; and ranks that fail.

use mettle_nn::{
    Device, Engine, Gradients, MemoryEstimate, ModelError, StepParams, Trainer,
    collective::{Link, LinkError, Mesh, Wait, channels, threads},
    conformance::{self, Suite, recipe, sequences, state, weight_bits},
    engine::{self, Blocks, Connect, DataParallel, MicroBatch},
};
use model::{ModelConfig, Optimiser, Recipe, init_flat};
use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicU32, AtomicU64, Ordering::SeqCst},
    },
    thread::{self, JoinHandle},
    time::Duration,
};

const PATIENCE: Duration = Duration::from_secs(60);

type Opened = Result<Box<dyn Engine>, ModelError>;

fn local(config: &ModelConfig, flat: &[f32]) -> Opened {
    engine::open(Device::CPU, config, None, flat)
}

/// Connects rank 0 with threads that serve it. `open` opens the engine of a rank.
fn connect(
    meshes: impl Fn() -> Vec<Mesh> + Send + 'static,
    open: fn(usize, &ModelConfig, &[f32]) -> Opened,
) -> Connect {
    Box::new(move || {
        let mut meshes = meshes().into_iter();
        let first = meshes.next().expect("there is a rank 0");
        for (rank, mesh) in (1..).zip(meshes) {
            thread::spawn(move || engine::serve(Box::new(mesh), &|config, flat| open(rank, config, flat)));
        }
        Ok(Box::new(first))
    })
}

fn parallel(
    ranks: usize,
    config: &ModelConfig,
    recipe: &Recipe,
    flat: &[f32],
) -> Result<DataParallel, ModelError> {
    let connect = connect(move || threads(ranks, PATIENCE), |_, config, flat| local(config, flat));
    DataParallel::open(config, recipe, flat, &local, connect)
}

fn suite(ranks: usize) -> Suite {
    Suite::new(move |config, recipe, flat| match recipe {
        Some(recipe) => Ok(Box::new(parallel(ranks, config, recipe, flat)?)),
        None => local(config, flat),
    })
}

macro_rules! tests {
    ($($name:ident)*) => {
        mod two_ranks {
            $(#[test] fn $name() { super::conformance::$name(&super::suite(2)); })*
        }
        mod four_ranks {
            $(#[test] fn $name() { super::conformance::$name(&super::suite(4)); })*
        }
    };
}
mettle_nn::for_each_check!(tests);

fn trainer(ranks: usize, config: &ModelConfig, recipe: &Recipe, flat: &[f32]) -> Trainer {
    let engine = parallel(ranks, config, recipe, flat).unwrap();
    Trainer::from_engine(config, recipe, Box::new(engine)).unwrap()
}

/// Losses, norms, weights and moments of a few steps, to the bit.
fn train(
    trainer: &mut Trainer,
    config: &ModelConfig,
    steps: std::ops::Range<u64>,
) -> (Vec<[u64; 2]>, Vec<u32>, Vec<u8>) {
    let measured = steps.map(|seed| {
        let step = trainer.step(&sequences(config, 8, seed)).unwrap();
        [step.loss.to_bits(), step.gradient_norm.to_bits()]
    });
    (measured.collect(), weight_bits(trainer), state(trainer))
}

#[test]
fn any_number_of_ranks_gives_the_bits_of_one_engine() {
    let config = ModelConfig::preset("117k").unwrap();
    let flat = init_flat(&config, 1).unwrap();
    for optimiser in [Optimiser::AdamW, Optimiser::Muon] {
        // 3 leaves a smaller micro-batch at the end, and ranks without one.
        for micro_batch in [1, 3, 8] {
            let recipe = Recipe { micro_batch, optimiser, clip_norm: 0.5, ..recipe() };
            let mut alone = Trainer::new(&config, &recipe, Device::CPU, &flat).unwrap();
            let expected = train(&mut alone, &config, 0..3);
            for ranks in [1, 2, 4, 8] {
                let got = train(&mut trainer(ranks, &config, &recipe, &flat), &config, 0..3);
                assert!(got == expected, "{ranks} ranks, {optimiser:?}, micro-batches of {micro_batch}");
            }
        }
    }
}

#[test]
fn a_state_of_some_ranks_is_continued_by_any_other_number_to_the_bit() {
    let config = ModelConfig::preset("117k").unwrap();
    let flat = init_flat(&config, 1).unwrap();
    for optimiser in [Optimiser::AdamW, Optimiser::Muon] {
        let recipe = Recipe { micro_batch: 2, optimiser, ..recipe() };
        let mut undisturbed = Trainer::new(&config, &recipe, Device::CPU, &flat).unwrap();
        train(&mut undisturbed, &config, 0..2);
        let expected = train(&mut undisturbed, &config, 2..4);
        let mut begun = trainer(4, &config, &recipe, &flat);
        train(&mut begun, &config, 0..2);
        let (weights, saved) = (begun.weights_flat().unwrap(), state(&begun));
        for ranks in [1, 2, 8] {
            let mut continued = trainer(ranks, &config, &recipe, &init_flat(&config, 2).unwrap());
            continued.load(&weights).unwrap();
            continued.read_state(&mut &saved[..]).unwrap();
            assert!(state(&continued) == saved, "{ranks} ranks");
            assert!(train(&mut continued, &config, 2..4) == expected, "{ranks} ranks, {optimiser:?}");
        }
    }
}

/// An engine of a rank with a fault in some of its micro-batches.
struct Faulty {
    engine: Box<dyn Engine>,
    fault: fn(&mut MicroBatch<'_>) -> Result<(), ModelError>,
}

impl Engine for Faulty {
    fn load(&mut self, flat: &[f32]) -> Result<(), ModelError> {
        self.engine.load(flat)
    }
    fn weights(&self) -> Blocks<'_> {
        self.engine.weights()
    }
    fn edit(&mut self, edit: &mut dyn FnMut(usize, &mut [f32])) -> Result<(), ModelError> {
        self.engine.edit(edit)
    }
    fn losses(&self, sequences: &[&[u32]]) -> Result<Vec<f64>, ModelError> {
        self.engine.losses(sequences)
    }
    fn logits(&self, tokens: &[u32], rows: usize) -> Result<Vec<f32>, ModelError> {
        self.engine.logits(tokens, rows)
    }
    fn gradients(&mut self, sequences: &[&[u32]]) -> Result<Gradients, ModelError> {
        self.engine.gradients(sequences)
    }
    fn step(&mut self, params: &StepParams) -> Result<(), ModelError> {
        self.engine.step(params)
    }
    fn moments(&self) -> Blocks<'_> {
        self.engine.moments()
    }
    fn load_moments(&mut self, moments: &[f32]) -> Result<(), ModelError> {
        self.engine.load_moments(moments)
    }
    fn micro_batch(&mut self, sequences: &[&[u32]], rows: usize) -> Result<MicroBatch<'_>, ModelError> {
        let mut micro_batch = self.engine.micro_batch(sequences, rows)?;
        (self.fault)(&mut micro_batch)?;
        Ok(micro_batch)
    }
}

/// A trainer of three ranks, of which rank 2 has the fault.
fn with_fault(
    config: &ModelConfig,
    recipe: &Recipe,
    flat: &[f32],
    patience: Duration,
    open: fn(usize, &ModelConfig, &[f32]) -> Opened,
) -> Trainer {
    let connect = connect(move || threads(3, patience), open);
    let engine = DataParallel::open(config, recipe, flat, &local, connect).unwrap();
    Trainer::from_engine(config, recipe, Box::new(engine)).unwrap()
}

/// Takes steps until one fails; then the trainer goes on from a snapshot to the bits of one that nothing happened to.
#[track_caller]
fn check_fault(patience: Duration, open: fn(usize, &ModelConfig, &[f32]) -> Opened, says: &str) {
    let config = conformance::tiny();
    let recipe = Recipe { micro_batch: 1, ..recipe() };
    let flat = init_flat(&config, 1).unwrap();
    let mut undisturbed = Trainer::new(&config, &recipe, Device::CPU, &flat).unwrap();
    let mut trainer = with_fault(&config, &recipe, &flat, patience, open);
    for trainer in [&mut undisturbed, &mut trainer] {
        train(trainer, &config, 0..1);
    }
    let (weights, saved) = (trainer.weights_flat().unwrap(), state(&trainer));
    let batch = sequences(&config, 8, 1);
    let error = loop {
        match trainer.step(&batch) {
            Ok(_) => {}
            Err(error) => break error.to_string(),
        }
    };
    assert!(error.contains(says), "{error}");
    // Nothing goes on from a state that is lost.
    let again = trainer.step(&batch).unwrap_err().to_string();
    assert!(again.contains("are lost: the next window"), "{again}");
    assert!(trainer.write_state(&mut Vec::new()).is_err());

    trainer.read_state(&mut &saved[..]).unwrap();
    trainer.load(&weights).unwrap();
    assert!(state(&trainer) == saved, "the state needs no ranks");
    assert!(train(&mut trainer, &config, 1..2) == train(&mut undisturbed, &config, 1..2));
}

#[test]
fn a_rank_that_gives_up_is_named_and_the_next_window_connects_anew() {
    static LEFT: AtomicU32 = AtomicU32::new(6);
    check_fault(
        PATIENCE,
        |rank, config, flat| {
            let fault = |_: &mut MicroBatch<'_>| match LEFT
                .fetch_update(SeqCst, SeqCst, |left| left.checked_sub(1))
            {
                Ok(1) => Err(ModelError::NotForTraining),
                _ => Ok(()),
            };
            let engine = local(config, flat)?;
            Ok(if rank == 2 { Box::new(Faulty { engine, fault }) } else { engine })
        },
        "rank 2 gave up: this engine was opened for evaluation",
    );
}

#[test]
fn a_rank_that_hangs_is_given_up_at_the_deadline() {
    static LEFT: AtomicU32 = AtomicU32::new(6);
    check_fault(
        Duration::from_secs(2),
        |rank, config, flat| {
            let fault = |_: &mut MicroBatch<'_>| {
                if LEFT.fetch_update(SeqCst, SeqCst, |left| left.checked_sub(1)) == Ok(1) {
                    thread::sleep(Duration::from_secs(6));
                }
                Ok(())
            };
            let engine = local(config, flat)?;
            Ok(if rank == 2 { Box::new(Faulty { engine, fault }) } else { engine })
        },
        "did not answer within 2 s while adding gradients",
    );
}

#[test]
fn a_rank_that_computes_no_number_once_costs_no_step() {
    static LEFT: AtomicU32 = AtomicU32::new(6);
    let config = conformance::tiny();
    let recipe = Recipe { micro_batch: 1, ..recipe() };
    let flat = init_flat(&config, 1).unwrap();
    let mut trainer = with_fault(&config, &recipe, &flat, PATIENCE, |rank, config, flat| {
        let fault = |micro_batch: &mut MicroBatch<'_>| {
            if LEFT.fetch_update(SeqCst, SeqCst, |left| left.checked_sub(1)) == Ok(1) {
                micro_batch.gradient.to_mut()[3] = f32::NAN;
            }
            Ok(())
        };
        let engine = local(config, flat)?;
        Ok(if rank == 2 { Box::new(Faulty { engine, fault }) } else { engine })
    });
    let mut refused = 0;
    for seed in 0..6 {
        let batch = sequences(&config, 8, seed);
        if let Err(error) = trainer.step(&batch) {
            assert!(matches!(error, ModelError::NotFinite { .. }), "{error}");
            refused += 1;
            assert!(trainer.is_finite().unwrap());
            trainer.step(&batch).unwrap();
        }
    }
    assert_eq!(refused, 1);
    let mut undisturbed = Trainer::new(&config, &recipe, Device::CPU, &flat).unwrap();
    train(&mut undisturbed, &config, 0..6);
    assert!(state(&trainer) == state(&undisturbed) && weight_bits(&trainer) == weight_bits(&undisturbed));
}

#[test]
fn ranks_that_do_not_connect_are_an_error_and_no_panic() {
    let config = conformance::tiny();
    let flat = init_flat(&config, 1).unwrap();
    let connect: Connect = Box::new(|| Err(ModelError::Ranks { why: "there is none".into() }));
    let refused = DataParallel::open(&config, &recipe(), &flat, &local, connect).err();
    assert_eq!(refused, Some(ModelError::Ranks { why: "there is none".into() }));

    // A rank whose device is not there says why.
    let absent = connect_absent();
    let refused = DataParallel::open(&config, &recipe(), &flat, &local, absent).err().unwrap().to_string();
    assert!(refused.contains("rank 1 gave up: ") && refused.contains("cuda:99"), "{refused}");
}

fn connect_absent() -> Connect {
    connect(
        || threads(2, PATIENCE),
        |_, config, flat| engine::open("cuda:99".parse().unwrap(), config, None, flat),
    )
}

/// Counts the bytes that pass it.
struct Counted {
    link: Box<dyn Link>,
    sent: Arc<AtomicU64>,
}

impl Link for Counted {
    fn send(&self, frame: &[u8], wait: &Wait<'_>) -> Result<(), LinkError> {
        self.sent.fetch_add(frame.len() as u64, SeqCst);
        self.link.send(frame, wait)
    }
    fn receive(&self, frame: &mut Vec<u8>, wait: &Wait<'_>) -> Result<(), LinkError> {
        self.link.receive(frame, wait)
    }
}

/// A step's bytes: a turn of micro-batches sends 4·P·(N−1)/N a rank, and the weights as much once.
#[test]
fn a_step_sends_the_bytes_of_the_formula() {
    let config = ModelConfig::preset("1m").unwrap();
    let flat = init_flat(&config, 1).unwrap();
    let parameters = config.parameters() as f64;
    for (ranks, micro_batches) in [(2, 4), (4, 4), (4, 8)] {
        let recipe = Recipe { batch: micro_batches, micro_batch: 1, ..recipe() };
        let sent: Vec<Arc<AtomicU64>> = (0..ranks).map(|_| Arc::default()).collect();
        let counters = sent.clone();
        let meshes = move || {
            let count =
                |sent: &Arc<AtomicU64>, link| Box::new(Counted { link, sent: sent.clone() }) as Box<dyn Link>;
            let links = channels(ranks).into_iter().zip(&counters);
            let links = links.map(|(links, sent)| {
                links.into_iter().map(|link| link.map(|link| count(sent, link))).collect()
            });
            links.enumerate().map(|(rank, links)| Mesh::new(rank, links, PATIENCE)).collect()
        };
        let engine = DataParallel::open(
            &config,
            &recipe,
            &flat,
            &local,
            connect(meshes, |_, config, flat| local(config, flat)),
        );
        let mut trainer = Trainer::from_engine(&config, &recipe, Box::new(engine.unwrap())).unwrap();
        // The first one also gives the weights to all.
        trainer.step(&sequences(&config, micro_batches, 0)).unwrap();
        let before: Vec<u64> = sent.iter().map(|sent| sent.load(SeqCst)).collect();
        trainer.step(&sequences(&config, micro_batches, 1)).unwrap();
        let turns = micro_batches.div_ceil(ranks) as f64;
        let formula = 4.0 * parameters * (ranks as f64 - 1.0) / ranks as f64 * (turns + 1.0);
        for (rank, (sent, before)) in sent.iter().zip(before).enumerate() {
            let bytes = (sent.load(SeqCst) - before) as f64;
            println!(
                "{ranks} ranks, {micro_batches} micro-batches, rank {rank}: {bytes} bytes, formula {formula:.0}"
            );
            assert!(
                (bytes / formula - 1.0).abs() < 0.05,
                "rank {rank} of {ranks}: {bytes}, formula {formula}"
            );
        }
    }
}

#[test]
fn a_rank_takes_the_memory_of_zero_1() {
    let config = ModelConfig::preset("1b").unwrap();
    let alone = MemoryEstimate::new(&config, &Recipe::default(), Device::CPU);
    let parameters = config.parameters() as u64;
    for ranks in [1, 2, 8] {
        let rank = alone.of_rank(ranks);
        let expected = 4 * parameters + 4 * parameters + 12 * parameters / ranks as u64;
        assert_eq!(rank.weights + rank.gradients + rank.optimiser, expected);
        assert_eq!(rank.activations, alone.activations);
    }
}

/// What rank 0 does not say in the contract's way is refused.
#[test]
fn a_rank_refuses_what_is_no_command() {
    use mettle_nn::collective::Collective as _;
    let config = conformance::tiny();
    let started = |messages: Vec<Vec<u8>>| {
        let mut meshes = threads(2, PATIENCE).into_iter();
        let (mut first, second) = (meshes.next().unwrap(), meshes.next().unwrap());
        let served: JoinHandle<_> = thread::spawn(move || engine::serve(Box::new(second), &local));
        for mut message in messages {
            // The other rank may have left.
            let _ = first.announce(&mut message);
        }
        served.join().unwrap().unwrap_err().to_string()
    };
    for message in [vec![], vec![9], vec![1], vec![0; 50], vec![2, 0, 0]] {
        let said = started(vec![message]);
        assert!(said.contains("no command of this release"), "{said}");
    }
    // A first command for a real model, taken from a real rank 0, then tokens outside of its vocabulary.
    let open: Arc<Mutex<Vec<u8>>> = Arc::default();
    let heard = open.clone();
    let connect: Connect = Box::new(move || {
        let mut meshes = threads(2, Duration::from_secs(5)).into_iter();
        let (first, mut second) = (meshes.next().unwrap(), meshes.next().unwrap());
        let heard = heard.clone();
        thread::spawn(move || second.announce(&mut heard.lock().unwrap()));
        Ok(Box::new(first))
    });
    let flat = init_flat(&config, 1).unwrap();
    let refused = DataParallel::open(&config, &recipe(), &flat, &local, connect).err();
    assert!(refused.unwrap().to_string().contains("rank 1 ended"));
    let open = open.lock().unwrap().clone();
    let mut tokens = vec![2];
    tokens.extend([99u32; 13].iter().flat_map(|token| token.to_le_bytes()));
    assert!(started(vec![open.clone(), tokens]).contains("outside the vocabulary"));
    assert!(started(vec![open.clone(), vec![2, 1, 0, 0, 0]]).contains("has 1 tokens"));
    let give = |numbers: [u64; 3]| {
        let numbers = numbers.iter().flat_map(|number| number.to_le_bytes());
        [4].into_iter().chain(numbers).collect::<Vec<u8>>()
    };
    assert!(started(vec![open, give([1, 0, 1 << 40])]).contains("no command of this release"));
}
