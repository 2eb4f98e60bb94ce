//! Counts the instructions of the hot paths with valgrind: times on a shared machine are noisy, counts are not.
//!
//!     cargo run -p tests --bin instruction-counts -- --check tests/instructions.json
//!
//! Each path runs once and three times on one thread; half of the difference is one run without its preparation.
//! Valgrind offers AVX2 but not AVX-512, so the counts do not depend on the machine.

use clap::Parser as _;
use gauntlet::{Sketch, Sketches};
use kernels::{
    accumulate::accumulate,
    decode,
    encode::{self, Feedback, Source},
    merge,
    wire::{Layout, SECTION},
};
use model::{ModelConfig, Recipe, init_flat};
use network::{
    AddressLimits, Admission, Network, NetworkSettings, NodeKey, PeerFetcher, PeerUrl, PutServer, push,
    serve_blobs,
};
use nn::{Device, Evaluator, Trainer};
use protocol::{
    Digest, GenesisHash, RunId, Uid, Window,
    consensus::{ONE, ValidatorWeights, yuma},
    contribution::{Sparse, SparseTensor},
    identity::Signer,
    keys,
    peer::{PutHeader, Refusal},
};
use std::{
    collections::BTreeMap,
    convert::Infallible,
    error::Error,
    hint::black_box,
    net::SocketAddr,
    path::{Path, PathBuf},
    process::{Command, ExitCode},
    sync::Arc,
};
use store::{DirectoryStore, Fetch as _, Limits, MemoryStore, Store as _};

/// Maximum relative change of a count.
const TOLERANCE: f64 = 0.03;

/// Number of values of a contribution.
const VALUES: usize = 8 * SECTION;
/// Number of values sent of each chunk of 4096.
const SENT: u16 = 64;
/// Number of values of each chunk in the merge of [`INPUTS`] contributions.
const MERGED: u16 = 485;
const INPUTS: u32 = 8;

/// Counts the instructions of the hot paths, one per line.
#[derive(clap::Parser)]
#[command(name = "instruction-counts")]
struct Settings {
    /// Fail if a path takes 3 % more or less instructions than this file says.
    #[arg(long, value_name = "FILE", conflicts_with = "update")]
    check: Option<PathBuf>,
    /// Write the counts to this file.
    #[arg(long, value_name = "FILE", conflicts_with = "only")]
    update: Option<PathBuf>,
    /// Only these paths.
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    only: Vec<String>,
    /// Run one path this many times instead, without valgrind.
    #[arg(long, value_name = "TIMES", requires = "only")]
    run: Option<u32>,
}

type Failed = Box<dyn Error>;

/// Prepares a path and runs it the given number of times.
type Work = fn(u32) -> Result<(), Failed>;

const PATHS: &[(&str, Work)] = &[
    ("encode", encode_contributions),
    ("decode", decode_contributions),
    ("add", add_contributions),
    ("merge", merge_contributions),
    ("evaluate", evaluate),
    ("train", train),
    ("consensus", consensus),
    ("near-duplicates", near_duplicates),
    ("digest", digest),
    ("peer-read", read_from_a_peer),
    ("peer-put", put_to_a_peer),
];

fn main() -> ExitCode {
    match run(&Settings::parse()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("{}", tests::describe_error(&*error));
            ExitCode::FAILURE
        }
    }
}

fn run(settings: &Settings) -> Result<bool, Failed> {
    let names: Vec<&str> = PATHS.iter().map(|(name, _)| *name).collect();
    if let Some(unknown) = settings.only.iter().find(|only| !names.contains(&only.as_str())) {
        return Err(format!("unknown path {unknown:?}; known: {}", names.join(", ")).into());
    }
    let selected = PATHS
        .iter()
        .filter(|(name, _)| settings.only.is_empty() || settings.only.iter().any(|only| only == name));
    if let Some(times) = settings.run {
        for (_, work) in selected {
            work(times)?;
        }
        return Ok(true);
    }
    let rustc = String::from_utf8(Command::new("rustc").arg("--version").output()?.stdout)?.trim().to_owned();
    let before = match &settings.check {
        Some(file) => read(file)?,
        None => Counts::default(),
    };
    if settings.check.is_some() && before.rustc != rustc {
        return Err(format!("counted with {}, this is {rustc}: --update counts anew", before.rustc).into());
    }
    let (mut counts, mut failed) = (BTreeMap::new(), 0);
    for (name, _) in selected {
        let count = instructions(name, 3)?.saturating_sub(instructions(name, 1)?) / 2;
        let change = before.counts.get(*name).map(|before| count as f64 / *before as f64 - 1.0);
        // A path with far fewer instructions may no longer do its work.
        let is_other = settings.check.is_some() && !change.is_some_and(|change| change.abs() <= TOLERANCE);
        failed += usize::from(is_other);
        let change = change.map_or("new".to_owned(), |change| format!("{:+.2} %", 100.0 * change));
        println!("{name:16} {count:>14} {change:>9}{}", if is_other { "  FAILED" } else { "" });
        counts.insert((*name).to_owned(), count);
    }
    if let Some(file) = &settings.update {
        let counts = Counts { rustc, counts };
        std::fs::write(file, serde_json::to_string_pretty(&counts)? + "\n")?;
        return Ok(true);
    }
    if settings.check.is_some() {
        println!("{} passed, {failed} failed", counts.len() - failed);
    }
    if 0 < failed {
        eprintln!("mend what takes more, or accept it: instruction-counts --update tests/instructions.json");
    }
    Ok(failed == 0)
}

/// Instruction counts of each path, for one compiler.
#[derive(Default, serde::Serialize, serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct Counts {
    rustc: String,
    counts: BTreeMap<String, u64>,
}

fn read(file: &Path) -> Result<Counts, Failed> {
    let text = std::fs::read_to_string(file).map_err(|error| format!("{}: {error}", file.display()))?;
    Ok(serde_json::from_str(&text).map_err(|error| format!("{}: {error}", file.display()))?)
}

/// Returns the instructions of a process that runs the path this many times.
fn instructions(name: &str, times: u32) -> Result<u64, Failed> {
    let output = Command::new("valgrind")
        .args(["--tool=cachegrind", "--cache-sim=no", "--cachegrind-out-file=/dev/null"])
        .arg(std::env::current_exe()?)
        .args(["--only", name, "--run", &times.to_string()])
        .env("RAYON_NUM_THREADS", "1")
        .output()
        .map_err(|error| format!("valgrind: {error}; install it with: apt-get install valgrind"))?;
    let said = String::from_utf8_lossy(&output.stderr);
    let count = said.lines().find_map(|line| line.split_once("I   refs:").map(|(_, count)| count));
    match count.map(|count| count.trim().replace(',', "").parse()) {
        Some(Ok(count)) if output.status.success() => Ok(count),
        _ => Err(format!("valgrind says no count of {name}:\n{said}").into()),
    }
}

/// Returns roughly normal values, equal for equal seeds.
fn values(seed: u32, count: usize) -> Vec<f32> {
    let mut state = u64::from(seed) * 2 + 1;
    let mut uniform = move || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / (1u32 << 24) as f32 - 0.5
    };
    (0..count).map(|_| 1e-3 * (0..4).map(|_| uniform()).sum::<f32>()).collect()
}

fn layout(density: u16) -> Result<Layout, Failed> {
    Ok(Layout::new(&[VALUES], density)?)
}

fn contribution(seed: u32) -> Result<Vec<u8>, Failed> {
    Ok(encode::encode(&layout(SENT)?, &mut values(seed, VALUES), Source::Nothing, Feedback::Keep)?)
}

fn encode_contributions(times: u32) -> Result<(), Failed> {
    let (layout, delta, mut residual) = (layout(SENT)?, values(1, VALUES), values(2, VALUES));
    for _ in 0..times {
        let mut sink = |bytes: &[u8]| {
            black_box(bytes);
            Ok::<(), Infallible>(())
        };
        let source = Source::Delta { decay: 0.95, delta: &delta };
        encode::encode_into(&layout, &mut residual, source, Feedback::Spend, &mut sink)?;
    }
    Ok(())
}

fn decode_contributions(times: u32) -> Result<(), Failed> {
    let (layout, body) = (layout(SENT)?, contribution(1)?);
    for _ in 0..times {
        black_box(decode::decode(&layout, black_box(&body))?);
    }
    Ok(())
}

fn add_contributions(times: u32) -> Result<(), Failed> {
    let (layout, body, mut target) = (layout(SENT)?, contribution(1)?, values(2, VALUES));
    for _ in 0..times {
        accumulate(&layout, black_box(&body), &[0.5], &mut target)?;
    }
    Ok(())
}

fn merge_contributions(times: u32) -> Result<(), Failed> {
    let (sent, merged, mut buffer) = (layout(SENT)?, layout(MERGED)?, values(0, VALUES));
    let bodies: Vec<Vec<u8>> = (1..=INPUTS).map(contribution).collect::<Result<_, _>>()?;
    let bodies: Vec<&[u8]> = bodies.iter().map(Vec::as_slice).collect();
    let scales = vec![vec![1.0; bodies.len()]; sent.tensors()];
    for _ in 0..times {
        let rule = merge::Rule::MeanOverHits;
        black_box(merge::merge(&sent, rule, &merged, &bodies, &scales, &mut buffer)?);
    }
    Ok(())
}

fn model() -> ModelConfig {
    ModelConfig {
        vocab: 512,
        d_model: 64,
        layers: 2,
        heads: 4,
        kv_heads: 2,
        d_ff: 192,
        seq_len: 64,
        rope_theta: 10_000.0,
        norm_epsilon: 1e-5,
    }
}

/// Returns sequences of one token more than the model's input.
fn sequences(count: u32) -> Vec<Vec<u32>> {
    (0..count).map(|row| (0..65).map(|at| (row * 31 + at * 7 + at * at) % 512).collect()).collect()
}

fn evaluate(times: u32) -> Result<(), Failed> {
    let evaluator = Evaluator::new(&model(), Device::CPU, &init_flat(&model(), 1)?)?;
    for _ in 0..times {
        black_box(evaluator.losses(&sequences(8))?);
    }
    Ok(())
}

fn train(times: u32) -> Result<(), Failed> {
    let recipe = Recipe { batch: 8, micro_batch: 8, ..Recipe::default() };
    let mut trainer = Trainer::new(&model(), &recipe, Device::CPU, &init_flat(&model(), 1)?)?;
    for _ in 0..times {
        black_box(trainer.step(&sequences(8))?);
    }
    Ok(())
}

/// 16 validators weigh 256 miners.
fn consensus(times: u32) -> Result<(), Failed> {
    let ballot = |validator: u16| ValidatorWeights {
        validator: Uid(256 + validator),
        stake: 1_000_000_000_000 + u128::from(validator) * 7_777_777,
        weights: (0..256).map(|seat| (Uid(seat), 1 + (seat * 61 + validator * 3) % 60_000)).collect(),
        bonds: (0..256).map(|seat| (Uid(seat), 4_000 + u32::from(seat ^ validator))).collect(),
        earns: ONE,
    };
    let ballots: Vec<ValidatorWeights> = (0..16).map(ballot).collect();
    for _ in 0..times {
        black_box(yuma(black_box(&ballots)).ok_or("no majority weighs a seat")?);
    }
    Ok(())
}

/// 64 contributions in each of four windows.
fn near_duplicates(times: u32) -> Result<(), Failed> {
    let work = |seed: u32| {
        let values = values(seed, 4096);
        let square_norm = values.iter().map(|value| f64::from(*value) * f64::from(*value)).sum();
        let positions = (0..4096).map(|index| index * 64 + (seed * 17 + index * index) % 64).collect();
        Sparse { tensors: vec![SparseTensor { positions, values, square_norm }] }
    };
    let mut sketches = Sketches::default();
    for (window, uid) in (0..4).flat_map(|window| (0..64u16).map(move |uid| (window, uid))) {
        let seed = window << 16 | u32::from(uid);
        sketches.add(Window(window), Uid(uid), Digest::of(&seed.to_le_bytes()), Sketch::of(&work(seed)));
    }
    for _ in 0..times {
        black_box(measure::near_duplicates::near_duplicates(&sketches, Window(3)));
    }
    Ok(())
}

fn digest(times: u32) -> Result<(), Failed> {
    let object = vec![7; 4 << 20];
    for _ in 0..times {
        black_box(Digest::of(black_box(&object)));
    }
    Ok(())
}

/// Returns the bytes of an object of 4 MiB.
fn object() -> Vec<u8> {
    (0..4 << 20).map(|at: u32| (at % 251) as u8).collect()
}

const GENESIS: GenesisHash = GenesisHash([1; 32]);

async fn start_node(listen: Option<SocketAddr>) -> Result<Arc<Network>, Failed> {
    let (key, limits) = (NodeKey::generate()?, AddressLimits::default());
    let settings = NetworkSettings { key, genesis: GENESIS, listen, allow_private: true, limits };
    Ok(Arc::new(Network::start(settings).await?))
}

/// Returns a listening node and its TCP address.
async fn listening_node() -> Result<(Arc<Network>, PeerUrl), Failed> {
    let server = start_node(Some("127.0.0.1:0".parse()?)).await?;
    let [_, tcp] = server.listening().try_into().map_err(|_| "the node does not listen")?;
    Ok((server, tcp))
}

/// Transfers an object of 4 MiB between two nodes over TCP on one thread: encryption, framing and its digest.
fn read_from_a_peer(times: u32) -> Result<(), Failed> {
    let object = object();
    let key = keys::contribution(RunId(0), Window(0), &Digest::of(&object));
    let limits = Limits::for_bytes(object.len() as u64);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let (server, url) = listening_node().await?;
        let objects = Arc::new(MemoryStore::new());
        objects.put(&key, object.into()).await?;
        serve_blobs(&server, vec![objects])?;
        let fetch = PeerFetcher::new(start_node(None).await?);
        for _ in 0..times {
            let object = fetch.fetch(&url.to_string(), &key, &limits).await?;
            black_box(Digest::of(&object));
        }
        Ok(())
    })
}

/// Accepts every offer, because no path measures the chain's part of the rule.
struct TakeAll;

#[async_trait::async_trait]
impl Admission for TakeAll {
    async fn judge(&self, _: &PutHeader) -> Result<(), Refusal> {
        Ok(())
    }
}

/// Pushes a contribution of 4 MiB between two nodes over TCP: it is signed, sent, hashed and stored in a file.
fn put_to_a_peer(times: u32) -> Result<(), Failed> {
    let (object, home) = (object(), tempfile::tempdir()?);
    let (digest, length, file) = (Digest::of(&object), object.len() as u64, home.path().join("contribution"));
    std::fs::write(&file, &object)?;
    let signer = Signer::new(ed25519_dalek::SigningKey::from_bytes(&[1; 32]), GENESIS);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let (server, url) = listening_node().await?;
        let inbox = Arc::new(DirectoryStore::open(&home.path().join("inbox"))?);
        PutServer::new(Arc::new(TakeAll), inbox).serve(&server)?;
        let client = start_node(None).await?;
        // One window each, because a stored contribution is not sent again.
        for window in (0..times).map(Window) {
            let offer = PutHeader::sign(RunId(0), window, Uid(0), digest, length, &signer);
            push(&client, &url, &offer, &file).await?;
        }
        Ok(())
    })
}
