//! Tests of ranks as threads: the suite of all engines, the bits of one engine for any number of ranks, and failing
//! ranks.

use mettle_nn::{
    Device, Engine, MemoryEstimate, ModelError, Trainer,
    collective::{Collective as _, CollectiveError, Link, LinkError, Mesh, Wait, channels, threads},
    conformance::{self, Suite, recipe, sequences, state, weight_bits},
    engine::{self, Connect, DataParallel, RankEngine, ReadPart, Reduce},
    nccl::UniqueId,
};
use model::{ModelConfig, Optimiser, Recipe, init_flat};
use std::{
    ops::Range,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU32, AtomicU64, Ordering::SeqCst},
    },
    thread::{self, JoinHandle},
    time::Duration,
};

const PATIENCE: Duration = Duration::from_secs(60);

type Opened = Result<Box<dyn RankEngine>, ModelError>;

fn local(config: &ModelConfig, recipe: &Recipe, flat: &[f32]) -> Opened {
    // The number of ranks makes no difference on a CPU.
    engine::open_rank(Device::CPU, 1, config, recipe, flat)
}

/// Connects rank 0 with threads that serve it. `open` opens the engine of a rank.
fn connect(
    meshes: impl Fn() -> Vec<Mesh> + Send + 'static,
    open: fn(usize, &ModelConfig, &Recipe, &[f32]) -> Opened,
) -> Connect {
    Box::new(move || {
        let mut meshes = meshes().into_iter();
        let first = meshes.next().expect("there is a rank 0");
        for (rank, mesh) in (1..).zip(meshes) {
            thread::spawn(move || {
                engine::serve(Box::new(mesh), &|config, recipe, flat| open(rank, config, recipe, flat))
            });
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
    let connect =
        connect(move || threads(ranks, PATIENCE), |_, config, recipe, flat| local(config, recipe, flat));
    DataParallel::open(config, recipe, flat, &local, connect)
}

fn suite(ranks: usize) -> Suite {
    Suite::new(move |config, recipe, flat| match recipe {
        Some(recipe) => Ok(Box::new(parallel(ranks, config, recipe, flat)?)),
        None => engine::open(Device::CPU, config, None, flat),
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

/// Returns the exact losses, norms, weights and moments of a few steps.
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

/// Engine of a rank that has a fault in some of its micro-batches, or adds them up like a GPU's.
struct Changed {
    engine: Box<dyn RankEngine>,
    /// Returns whether the gradient of the next micro-batch is NaN.
    fault: fn() -> Result<bool, ModelError>,
    adds: bool,
    /// Number of sequences of a micro-batch.
    micro_batch: usize,
}

impl RankEngine for Changed {
    fn engine(&self) -> &dyn Engine {
        self.engine.engine()
    }
    fn engine_mut(&mut self) -> &mut dyn Engine {
        self.engine.engine_mut()
    }
    fn adds_micro_batches(&self) -> bool {
        self.adds
    }
    fn micro_batches(
        &mut self,
        sequences: &[&[u32]],
        rows: usize,
        reduce: &mut Reduce<'_>,
    ) -> Result<Vec<f64>, ModelError> {
        let is_wrong = (self.fault)()?;
        if self.adds {
            let (mut losses, mut sum) = (Vec::new(), Vec::new());
            for micro_batch in sequences.chunks(self.micro_batch) {
                let mut add = |range: Range<usize>, read: &mut ReadPart<'_>| {
                    let mut values = Vec::new();
                    sum.resize(range.end.max(sum.len()), 0.0f32);
                    read(range.clone(), &mut values)?;
                    sum[range].iter_mut().zip(values).for_each(|(sum, value)| *sum += value);
                    Ok(())
                };
                losses.extend(self.engine.micro_batches(micro_batch, rows, &mut add)?);
            }
            // All tensors at once, like an engine that cannot stop in its backward pass.
            reduce(0..sum.len(), &mut |part, values| {
                values.extend_from_slice(&sum[part]);
                Ok(())
            })?;
            return Ok(losses);
        }
        self.engine.micro_batches(sequences, rows, &mut |range, read| {
            reduce(range, &mut |part, values| {
                let first = values.len();
                read(part.clone(), values)?;
                if is_wrong && part.contains(&3) {
                    values[first + 3 - part.start] = f32::NAN;
                }
                Ok(())
            })
        })
    }
    fn read_weights(&self, range: Range<usize>, values: &mut Vec<f32>) -> Result<(), ModelError> {
        self.engine.read_weights(range, values)
    }
    fn write_weights(&mut self, first: usize, values: &[f32]) -> Result<(), ModelError> {
        self.engine.write_weights(first, values)
    }
    fn finish_weights(&mut self) -> Result<(), ModelError> {
        self.engine.finish_weights()
    }
}

/// Opens rank 2 with a fault, the others without.
fn faulty(
    rank: usize,
    config: &ModelConfig,
    recipe: &Recipe,
    flat: &[f32],
    fault: fn() -> Result<bool, ModelError>,
) -> Opened {
    let engine = local(config, recipe, flat)?;
    Ok(if rank == 2 { Box::new(Changed { engine, fault, adds: false, micro_batch: 0 }) } else { engine })
}

fn adding(config: &ModelConfig, recipe: &Recipe, flat: &[f32]) -> Opened {
    let engine = local(config, recipe, flat)?;
    Ok(Box::new(Changed { engine, fault: || Ok(false), adds: true, micro_batch: recipe.micro_batch }))
}

/// Returns whether this is the last of the counted micro-batches.
fn is_last(left: &AtomicU32) -> bool {
    left.fetch_update(SeqCst, SeqCst, |left| left.checked_sub(1)) == Ok(1)
}

/// Returns a trainer of three ranks, of which rank 2 has the fault.
fn with_fault(
    config: &ModelConfig,
    recipe: &Recipe,
    flat: &[f32],
    patience: Duration,
    open: fn(usize, &ModelConfig, &Recipe, &[f32]) -> Opened,
) -> Trainer {
    let connect = connect(move || threads(3, patience), open);
    let engine = DataParallel::open(config, recipe, flat, &local, connect).unwrap();
    Trainer::from_engine(config, recipe, Box::new(engine)).unwrap()
}

/// An engine adds up its micro-batches and their sum is exchanged, as on GPUs.
#[test]
fn ranks_that_add_up_their_micro_batches_repeat_to_the_bit_and_stay_beside_one_engine() {
    let config = ModelConfig::preset("117k").unwrap();
    let flat = init_flat(&config, 1).unwrap();
    for optimiser in [Optimiser::AdamW, Optimiser::Muon] {
        // 8 sequences are three micro-batches: one of four ranks has none.
        let recipe = Recipe { micro_batch: 3, optimiser, ..recipe() };
        let mut alone = Trainer::new(&config, &recipe, Device::CPU, &flat).unwrap();
        let (_, exact, _) = train(&mut alone, &config, 0..3);
        for ranks in [1, 2, 4] {
            let run = || {
                let connect = connect(
                    move || threads(ranks, PATIENCE),
                    |_, config, recipe, flat| adding(config, recipe, flat),
                );
                let engine = DataParallel::open(&config, &recipe, &flat, &adding, connect).unwrap();
                let mut trainer = Trainer::from_engine(&config, &recipe, Box::new(engine)).unwrap();
                train(&mut trainer, &config, 0..3)
            };
            let first = run();
            let apart = first.1.iter().zip(&exact).zip(&flat).map(|((ours, exact), start)| {
                let (ours, exact) = (f32::from_bits(*ours), f32::from_bits(*exact));
                [f64::from(ours - exact).powi(2), f64::from(exact - start).powi(2)]
            });
            let [apart, moved] = apart.fold([0.0, 0.0], |[a, b], [c, d]| [a + c, b + d]);
            let share = (apart / moved).sqrt();
            println!("{ranks} ranks, {optimiser:?}: {share:.1e} of a window's change apart");
            assert!(share < 1e-3, "{ranks} ranks, {optimiser:?}: {share}");
            assert!(run() == first, "{ranks} ranks repeat");
        }
    }
}

/// Takes steps until one fails; then the trainer continues from a snapshot to the bits of one without a fault.
#[track_caller]
fn check_fault(patience: Duration, open: fn(usize, &ModelConfig, &Recipe, &[f32]) -> Opened, says: &str) {
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
    let mut steps = (0..100).map(|_| trainer.step(&batch));
    let error =
        steps.find_map(|step| step.err().filter(|error| !matches!(error, ModelError::NotFinite { .. })));
    let error = error.expect("the fault was found").to_string();
    assert!(error.contains(says), "{error}");
    // Training cannot continue from a lost state.
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
        |rank, config, recipe, flat| {
            let fault = || if is_last(&LEFT) { Err(ModelError::NotForTraining) } else { Ok(false) };
            faulty(rank, config, recipe, flat, fault)
        },
        "rank 2 gave up: this engine was opened for evaluation",
    );
}

#[test]
fn a_rank_that_hangs_is_given_up_at_the_deadline() {
    static LEFT: AtomicU32 = AtomicU32::new(6);
    check_fault(
        Duration::from_secs(2),
        |rank, config, recipe, flat| {
            let fault = || {
                if is_last(&LEFT) {
                    loop {
                        thread::park();
                    }
                }
                Ok(false)
            };
            faulty(rank, config, recipe, flat, fault)
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
    let mut trainer = with_fault(&config, &recipe, &flat, PATIENCE, |rank, config, recipe, flat| {
        faulty(rank, config, recipe, flat, || Ok(is_last(&LEFT)))
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
fn a_rank_that_computes_no_number_again_fails() {
    static COMPUTED: AtomicU32 = AtomicU32::new(0);
    check_fault(
        PATIENCE,
        |rank, config, recipe, flat| {
            // Both micro-batches of the rank in its third step, and in that step's repetition.
            faulty(rank, config, recipe, flat, || Ok((4..8).contains(&COMPUTED.fetch_add(1, SeqCst))))
        },
        "one of the ranks computed something that is no number, twice; computed by rank 0 alone",
    );
}

#[test]
fn ranks_that_do_not_connect_are_an_error_and_no_panic() {
    let config = conformance::tiny();
    let flat = init_flat(&config, 1).unwrap();
    let connect: Connect = Box::new(|| Err(ModelError::Ranks { why: "there is none".into() }));
    let refused = DataParallel::open(&config, &recipe(), &flat, &local, connect).err();
    assert_eq!(refused, Some(ModelError::Ranks { why: "there is none".into() }));

    // A rank with a missing device reports the reason.
    let absent = connect_absent();
    let refused = DataParallel::open(&config, &recipe(), &flat, &local, absent).err().unwrap().to_string();
    assert!(refused.contains("rank 1 gave up: ") && refused.contains("cuda:99"), "{refused}");
}

fn connect_absent() -> Connect {
    connect(
        || threads(2, PATIENCE),
        |_, config, recipe, flat| {
            engine::open_rank("cuda:99,fused".parse().unwrap(), 2, config, recipe, flat)
        },
    )
}

/// Link that counts its bytes.
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
    fn peek(&self) -> Result<Option<u8>, LinkError> {
        self.link.peek()
    }
}

/// Bytes of a step: a turn sends 4·P·(N−1)/N per rank, and the weights send as much once. A turn is a micro-batch per
/// rank, or all of them if engines add them up.
#[test]
fn a_step_sends_the_bytes_of_the_formula() {
    let config = ModelConfig::preset("1m").unwrap();
    let flat = init_flat(&config, 1).unwrap();
    let parameters = config.parameters() as f64;
    for (ranks, micro_batches, adds) in
        [(2, 4, false), (4, 4, false), (4, 8, false), (2, 4, true), (4, 8, true)]
    {
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
        let connect = match adds {
            true => connect(meshes, |_, config, recipe, flat| adding(config, recipe, flat)),
            false => connect(meshes, |_, config, recipe, flat| local(config, recipe, flat)),
        };
        let open: fn(&ModelConfig, &Recipe, &[f32]) -> Opened = if adds { adding } else { local };
        let engine = DataParallel::open(&config, &recipe, &flat, &open, connect);
        let mut trainer = Trainer::from_engine(&config, &recipe, Box::new(engine.unwrap())).unwrap();
        // The first step also sends the weights to all.
        trainer.step(&sequences(&config, micro_batches, 0)).unwrap();
        let before: Vec<u64> = sent.iter().map(|sent| sent.load(SeqCst)).collect();
        trainer.step(&sequences(&config, micro_batches, 1)).unwrap();
        let turns = if adds { 1.0 } else { micro_batches.div_ceil(ranks) as f64 };
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
fn a_rank_takes_the_memory_of_zero_2() {
    let config = ModelConfig::preset("1b").unwrap();
    let recipe = Recipe::default();
    let alone = MemoryEstimate::new(&config, &recipe, Device::CPU);
    let parameters = config.parameters() as u64;
    for ranks in [1, 2, 8] {
        let rank = alone.of_rank(&config, &recipe, Device::CPU, ranks);
        let expected = 4 * parameters + 12 * parameters / ranks as u64;
        assert_eq!(rank.weights + rank.gradients + rank.optimiser, expected);
        assert_eq!(rank.activations, alone.activations);
    }
}

/// A rank refuses messages of rank 0 that violate the contract.
#[test]
fn a_rank_refuses_what_is_no_command() {
    let config = conformance::tiny();
    let started = |messages: Vec<Vec<u8>>| {
        let mut meshes = threads(2, PATIENCE).into_iter();
        let (mut first, second) = (meshes.next().unwrap(), meshes.next().unwrap());
        let served: JoinHandle<_> = thread::spawn(move || engine::serve(Box::new(second), &local));
        for mut message in messages {
            // Ignored: the other rank may have disconnected.
            let _ = first.announce(&mut message);
        }
        served.join().unwrap().unwrap_err().to_string()
    };
    for message in ["", "9", "{}", "{\"Open\":{}}", "\"Weights\"", "{\"Gradients\":{\"tokens\":[-1]}}"] {
        let message = message.as_bytes().to_vec();
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
    let tokens = |tokens: &[u32]| format!("{{\"Gradients\":{{\"tokens\":{tokens:?}}}}}").into_bytes();
    assert!(started(vec![open.clone(), tokens(&[99; 13])]).contains("outside the vocabulary"));
    assert!(started(vec![open.clone(), tokens(&[1])]).contains("has 1 tokens"));
    let give = br#"{"Give":{"rank":1,"first":0,"count":1099511627776}}"#.to_vec();
    assert!(started(vec![open, give]).contains("no command of this release"));
}

/// A watch during an exchange of GPUs: frames remain to be received, and a lost rank, its reason and the deadline end
/// the wait.
#[test]
fn a_watch_ends_with_a_lost_rank_its_reason_or_the_deadline_and_reads_nothing() {
    let ended = |mesh: &Mesh| {
        let mut watch = mesh.watch("adding gradients");
        loop {
            match watch() {
                Ok(()) => std::thread::sleep(Duration::from_millis(2)),
                Err(error) => return error,
            }
        }
    };
    let pair = |patience| {
        let mut meshes = threads(2, patience).into_iter();
        (meshes.next().unwrap(), meshes.next().unwrap())
    };
    let doing = "adding gradients";
    let (mut first, mut other) = pair(Duration::from_millis(1100));
    other.send(0, &[1.0, 2.0]).unwrap();
    assert_eq!(ended(&first), CollectiveError::Stuck { doing, seconds: 1 });
    let mut values = [0.0; 2];
    first.receive(1, &mut values).unwrap();
    assert_eq!(values, [1.0, 2.0]);
    other.abort("no room");
    assert_eq!(ended(&first), CollectiveError::Failed { rank: 1, why: "no room".into() });

    let (first, other) = pair(PATIENCE);
    drop(other);
    assert_eq!(ended(&first), CollectiveError::Lost { rank: 1, doing });
    let (mut first, _other) = pair(PATIENCE);
    first.abort("enough");
    assert_eq!(ended(&first), CollectiveError::Aborted);
}

/// An engine without NVIDIA GPUs is configured to exchange by NCCL: rank 0 reports the reason, and does not step.
#[test]
fn an_engine_without_nccl_refuses_and_says_what_to_set() {
    let config = conformance::tiny();
    let flat = init_flat(&config, 1).unwrap();
    let id = UniqueId::from_bytes(&[1; UniqueId::BYTES]);
    let meshes = move || threads(2, PATIENCE).into_iter().map(|mesh| mesh.with_nccl(id)).collect();
    let connect = connect(meshes, |_, config, recipe, flat| local(config, recipe, flat));
    let error = DataParallel::open(&config, &recipe(), &flat, &local, connect).err().unwrap().to_string();
    assert!(error.contains("set rank_exchange = \"tcp\""), "{error}");
}
