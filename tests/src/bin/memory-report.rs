//! Measures the costs of a large model for a validator that merges and does not evaluate: peak memory, disk and time
//! of merge, vote, save, checkpoint, join and repair.
//!
//! ```text
//! cargo run -p tests --bin memory-report -- --parameters 1900000000 --directory DIR --json
//! ```
//!
//! The chain is the real runtime. The buckets are those of the S3 server that localnet uses, in a separate process.
//! The node's part is the node's code: follower, codec, spill, checkpoint. Contributions are random; their sections
//! repeat.

use anyhow::{Context as _, ensure};
use chain_client::Chain as _;
use clap::Parser;
use daemon::{
    Blocking, Codec, Follower, HeldContribution, Journal, ModelState, Spill, Storage, SyncDriver, checkpoint,
    follow::OwnMerge, storage::MAPPED_FROM,
};
use ed25519_dalek::SigningKey;
use kernels::{
    encode::{Feedback, Source, encode},
    measure::{memory, processor},
    wire::Layout,
};
use mettle_runtime::{AccountId, RuntimeCall};
use model::{ModelConfig, Recipe, RunSpec};
use protocol::{
    Block, Digest, Hotkey, Role, RunId, RunParams, Schedule, Terms, Uid, Window,
    contribution::CODEC,
    identity::Signer,
    keys,
    params::Density,
    submission::{Header, Sealer},
    view::{SeatView, Verdict, Vote, WindowView},
};
use rayon::prelude::*;
use s3_server::{BucketConfig, S3Server, ServerConfig};
use serde::Serialize;
use sp_keyring::Sr25519Keyring;
use std::{
    collections::{BTreeMap, BTreeSet},
    fs::{self, File},
    io::{BufRead as _, BufReader, BufWriter, Write as _},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread,
    time::{Duration, Instant},
};
use store::{Credentials, Fetch, HttpFetcher, S3Settings, S3Store, Store as _, fetch::FetchPolicy};
use tests::sim::chain::{Sealing, SharedChain, SimChain};

/// Measures what merge, vote, save, checkpoint, join and repair of a large model cost in memory, disk and time.
#[derive(Debug, Parser)]
#[command(version)]
struct Options {
    /// Parameters of the model, at most: layers of the largest preset that fits.
    #[arg(long, value_name = "N", default_value_t = 300_000_000, value_parser = clap::value_parser!(u64).range(200_000..))]
    parameters: u64,
    /// Contributions to each merge.
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u16).range(1..=24))]
    contributions: u16,
    /// Windows, of which the last ends with a checkpoint.
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=20))]
    windows: u32,
    /// Rows with at least this many values are files.
    #[arg(long, value_name = "N", default_value_t = MAPPED_FROM)]
    mapped_from: usize,
    /// Begin from weights of zero instead of the seed's, for a filesystem that compresses. How the node makes its
    /// first weights is then not measured.
    #[arg(long)]
    zeros: bool,
    /// An empty directory on a disk with 26 bytes for each parameter; by default a temporary one.
    #[arg(long, value_name = "DIR")]
    directory: Option<PathBuf>,
    /// Print JSON instead of a table.
    #[arg(long)]
    json: bool,
    /// Serve buckets from this directory until standard input closes.
    #[arg(long, value_name = "DIR", hide = true)]
    serve: Option<PathBuf>,
}

/// One step and its peaks.
#[derive(Debug, Serialize)]
struct Phase {
    name: String,
    seconds: f64,
    /// Peak of the process's anonymous memory (`RssAnon`).
    anonymous_bytes: u64,
    /// Peak including the pages of mapped files that happened to be in memory (`VmHWM`).
    resident_bytes: u64,
    /// Bytes on the disk below the report's directory, at the end.
    disk_bytes: u64,
}

#[derive(Debug, Serialize)]
struct Report {
    parameters: u64,
    contributions: u16,
    contribution_bytes: u64,
    update_bytes: u64,
    state_root: Digest,
    processor: Option<String>,
    phases: Vec<Phase>,
}

const RUN: RunId = RunId(0);
const MTL: u128 = 1_000_000_000_000;
const BUCKETS: [&str; 2] = ["validator", "miners"];
const SECRET: &str = "secret";
/// Number of the validator's key; the miners' keys follow.
const VALIDATOR: u16 = 0;

fn main() -> anyhow::Result<()> {
    let options = Options::parse();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    if let Some(directory) = &options.serve {
        return runtime.block_on(serve(directory));
    }
    let temporary = tempfile::tempdir()?;
    let home = options.directory.clone().unwrap_or_else(|| temporary.path().to_owned());
    fs::create_dir_all(&home)?;
    let is_empty = fs::read_dir(&home)?.next().is_none();
    ensure!(is_empty, "{} is not empty: name an empty directory", home.display());
    let report = runtime.block_on(report(&options, &home))?;
    if options.json {
        println!("{}", serde_json::to_string_pretty(&report)?);
    } else {
        print(&report);
    }
    Ok(())
}

fn print(report: &Report) {
    let Report { parameters, contributions, contribution_bytes, update_bytes, state_root, .. } = report;
    println!("{parameters} parameters, {contributions} contributions of {contribution_bytes} bytes");
    println!("update of {update_bytes} bytes, state root {state_root}");
    println!("{:28} {:>9} {:>14} {:>13} {:>9}", "", "seconds", "anonymous MiB", "resident MiB", "disk GB");
    for Phase { name, seconds, anonymous_bytes, resident_bytes, disk_bytes } in &report.phases {
        let mib = |bytes: &u64| *bytes as f64 / f64::from(1 << 20);
        let (anonymous, resident) = (mib(anonymous_bytes), mib(resident_bytes));
        println!("{name:28} {seconds:9.1} {anonymous:14.0} {resident:13.0} {:9.2}", *disk_bytes as f64 / 1e9);
    }
}

/// Serves the buckets, in a separate process.
async fn serve(directory: &Path) -> anyhow::Result<()> {
    let buckets = BUCKETS.iter().map(|name| BucketConfig::new(*name, *name, SECRET)).collect();
    let config = ServerConfig { data_dir: Some(directory.to_owned()), ..ServerConfig::temporary(buckets) };
    let server = S3Server::start(config).await?;
    println!("{}", server.endpoint());
    tokio::task::spawn_blocking(|| std::io::copy(&mut std::io::stdin(), &mut std::io::sink())).await??;
    server.shutdown().await;
    Ok(())
}

/// The server's process. It ends with its owner, when its standard input closes.
struct Server {
    child: Child,
    endpoint: String,
}

impl Server {
    fn start(directory: &Path) -> anyhow::Result<Server> {
        let mut command = Command::new(std::env::current_exe()?);
        command.arg("--serve").arg(directory).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn()?;
        let stdout = child.stdout.take().context("the child has a standard output")?;
        let mut endpoint = String::new();
        BufReader::new(stdout).read_line(&mut endpoint)?;
        ensure!(!endpoint.is_empty(), "the server of the buckets did not start");
        Ok(Server { child, endpoint: endpoint.trim().to_owned() })
    }

    fn url(&self, bucket: &str) -> String {
        format!("{}/{bucket}", self.endpoint)
    }

    fn store(&self, bucket: &str) -> anyhow::Result<S3Store> {
        let credentials = Credentials { access_key: bucket.into(), secret_key: SECRET.into() };
        let settings = S3Settings::new(&self.endpoint, bucket, credentials);
        // Other load on the machine must not end an upload.
        Ok(S3Store::open(&S3Settings { deadline: Duration::from_secs(3600), ..settings })?)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        // It ends by itself, and its status is irrelevant.
        let _ = self.child.wait();
    }
}

/// Samples the anonymous memory of this process.
struct Meter {
    anonymous: Arc<AtomicU64>,
    stop: Arc<AtomicBool>,
    home: PathBuf,
    phases: Vec<Phase>,
    since: Instant,
}

impl Meter {
    fn start(home: &Path) -> anyhow::Result<Meter> {
        memory("RssAnon").context("the system does not tell the process's anonymous memory")?;
        let (anonymous, stop) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
        let (most, ended) = (anonymous.clone(), stop.clone());
        thread::spawn(move || {
            while !ended.load(Ordering::Relaxed) {
                most.fetch_max(memory("RssAnon").unwrap_or_default(), Ordering::Relaxed);
                thread::sleep(Duration::from_millis(5));
            }
        });
        Ok(Meter { anonymous, stop, home: home.to_owned(), phases: Vec::new(), since: Instant::now() })
    }

    /// Begins a step.
    fn begin(&mut self) -> anyhow::Result<()> {
        // "5" resets the peak to the current value.
        fs::write("/proc/self/clear_refs", "5").context("could not reset the peak of memory")?;
        self.anonymous.store(memory("RssAnon").unwrap_or_default(), Ordering::Relaxed);
        self.since = Instant::now();
        Ok(())
    }

    fn end(&mut self, name: impl Into<String>) {
        let anonymous = memory("RssAnon").unwrap_or_default();
        let phase = Phase {
            name: name.into(),
            seconds: self.since.elapsed().as_secs_f64(),
            anonymous_bytes: self.anonymous.fetch_max(anonymous, Ordering::Relaxed).max(anonymous),
            resident_bytes: memory("VmHWM").unwrap_or_default(),
            disk_bytes: disk(&self.home),
        };
        let mib = phase.anonymous_bytes >> 20;
        eprintln!("{}: {:.1} s, {mib} MiB of its own", phase.name, phase.seconds);
        self.phases.push(phase);
    }
}

impl Drop for Meter {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

/// Returns the bytes of all files below a directory.
fn disk(directory: &Path) -> u64 {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let bytes = |entry: fs::DirEntry| match entry.metadata() {
        Ok(found) if found.is_dir() => disk(&entry.path()),
        Ok(found) => found.len(),
        Err(_) => 0,
    };
    entries.map(bytes).sum()
}

/// Returns the shape of the largest preset of which at least one layer fits, with as many layers as fit.
fn shape(parameters: u64) -> anyhow::Result<ModelConfig> {
    for preset in ModelConfig::PRESETS.iter().rev() {
        let whole = ModelConfig::preset(preset)?;
        let of = |layers| ModelConfig { layers, ..whole.clone() };
        let fits = |layers: &usize| of(*layers).parameters() as u64 <= parameters;
        if let Some(layers) = (1..=1024).take_while(fits).last() {
            return Ok(of(layers));
        }
    }
    anyhow::bail!("no preset is so small")
}

fn params(windows: u32) -> RunParams {
    RunParams {
        schedule: Schedule {
            start: Block(30),
            blocks_per_window: 12,
            commit_by: 3,
            reveal_by: 5,
            attest_by: 7,
            vote_by: 10,
        },
        epoch_windows: 32,
        reveal_windows: 1,
        hidden_blocks: 0,
        min_contributions: 1,
        checkpoint_windows: windows,
        localnet: true,
        ..RunParams::default()
    }
}

fn key(index: u16) -> SigningKey {
    SigningKey::from_bytes(&Digest::of(&index.to_le_bytes()).0)
}

fn hotkey(key: &SigningKey) -> Hotkey {
    Hotkey(key.verifying_key().to_bytes())
}

/// The run on its chain, and the buckets.
struct World {
    chain: SharedChain,
    spec: RunSpec,
    server: Server,
    fetch: Arc<HttpFetcher>,
    sent: Arc<Codec>,
    merged: Arc<Codec>,
    mapped_from: usize,
}

impl World {
    fn new(options: &Options, spec: RunSpec, theta0: Digest, server: Server) -> anyhow::Result<World> {
        let params = params(options.windows);
        let mut chain = SimChain::new(Digest::of(b"memory"));
        let url = |bucket| server.url(bucket).into_bytes().try_into().ok().context("the URL is short");
        let create = pallet_registry::Call::create_run {
            params,
            terms: Terms {
                validator_stake_min: MTL,
                miner_stake_min: MTL,
                seat_price_min: 0,
                ..Terms::default()
            },
            spec: spec.digest(),
            manifest: Digest::of(b"a manifest"),
            theta0,
            published_at: url(BUCKETS[0])?,
        };
        accepted(chain.block(vec![(Sr25519Keyring::Alice.to_account_id(), create.into())]))?;
        for index in VALIDATOR..=options.contributions {
            let (role, bucket, stake) = match index {
                VALIDATOR => (Role::Validator, BUCKETS[0], 1_000 * MTL),
                _ => (Role::Miner, BUCKETS[1], MTL),
            };
            let coldkey = Sr25519Keyring::Bob.to_account_id();
            let call = chain.registration(coldkey, &key(index), RUN, role, &server.url(bucket), stake);
            accepted(chain.block(vec![call]))?;
        }
        let schema = spec.schema()?;
        let codec = |density: Density| Codec::new(&schema, density).map(Arc::new);
        Ok(World {
            chain: SharedChain::new(chain, Sealing::Instant),
            server,
            fetch: Arc::new(HttpFetcher::new(FetchPolicy::localnet())?),
            sent: codec(params.density)?,
            merged: codec(params.merge_density)?,
            spec,
            mapped_from: options.mapped_from,
        })
    }

    fn follower(&self, directory: &Path) -> anyhow::Result<Arc<Follower>> {
        Ok(Arc::new(Follower {
            chain: Arc::new(self.chain.clone()),
            fetch: self.fetch.clone() as Arc<dyn Fetch>,
            run: self.chain.run_now(RUN).context("the run was created")?,
            spec: self.spec.clone(),
            sent: self.sent.clone(),
            merged: self.merged.clone(),
            keeps_buffer: true,
            turn: 0,
            storage: self.storage(directory),
            blocking: Blocking::Pool,
        }))
    }

    fn storage(&self, directory: &Path) -> Storage {
        Storage::on_disk(directory).mapped_from(self.mapped_from)
    }

    fn schedule(&self) -> anyhow::Result<Schedule> {
        Ok(self.chain.run_now(RUN).context("the run was created")?.params.schedule)
    }

    fn window(&self, window: Window) -> anyhow::Result<WindowView> {
        self.chain.window_now(RUN, window).context("the window is open")
    }

    fn advance_to(&self, block: Block) {
        self.chain.lock().advance_to(block);
    }

    fn send(&self, index: u16, call: impl Into<RuntimeCall>) -> anyhow::Result<()> {
        let account = AccountId::from(hotkey(&key(index)).0);
        accepted(self.chain.lock().block(vec![(account, call.into())]))
    }

    /// Makes, uploads and commits a contribution of every miner. Returns the length of one.
    async fn contribute(&self, state: &ModelState, miners: &[SeatView], at: &Path) -> anyhow::Result<u64> {
        let store = self.server.store(BUCKETS[1])?;
        let (mut bytes, mut calls) = (0, Vec::new());
        for (index, miner) in (1..).zip(miners) {
            let header = Header {
                codec: CODEC,
                run: RUN,
                window: state.window,
                uid: miner.id.uid,
                hotkey: miner.hotkey,
                base: state.lineage,
                schema: self.sent.schema().digest(),
                density: self.sent.density(),
                trained: 1,
            };
            let signer = Signer::new(key(index), self.chain.genesis());
            let path = at.join("contribution");
            let digest =
                tokio::task::block_in_place(|| random_contribution(&self.sent, &header, &signer, &path))?;
            bytes = store.put_file(&keys::contribution(RUN, state.window, &digest), &path).await?;
            fs::remove_file(&path)?;
            let call = pallet_windows::Call::commit { run: RUN, window: state.window, digest };
            calls.push((AccountId::from(miner.hotkey.0), call.into()));
        }
        accepted(self.chain.lock().block(calls))?;
        Ok(bytes)
    }
}

fn accepted(results: Vec<Result<(), String>>) -> anyhow::Result<()> {
    results.into_iter().try_for_each(|result| result.map_err(|refusal| anyhow::anyhow!("refused: {refusal}")))
}

/// Number of different sections, because encoding every section of a large model takes most of an hour. Those of the
/// seat `uid` repeat after this many and `uid` more of one length. Each seat has another period, so the merged
/// sections of 20 seats do not repeat.
const DIFFERENT_SECTIONS: usize = 64;

/// Writes a signed contribution of random values.
fn random_contribution(
    codec: &Codec,
    header: &Header,
    signer: &Signer,
    path: &Path,
) -> anyhow::Result<Digest> {
    let mut file = BufWriter::with_capacity(1 << 20, File::create(path)?);
    let (mut sealer, prefix) = Sealer::new(header);
    file.write_all(&prefix)?;
    let different = DIFFERENT_SECTIONS + usize::from(header.uid.0);
    let mut made = BTreeMap::<(usize, usize), Vec<u8>>::new();
    let mut of_length = BTreeMap::<usize, usize>::new();
    let sections = codec.layout().sections().iter().map(|section| {
        let length = section.values.len();
        let count = of_length.entry(length).or_default();
        *count += 1;
        (length, (*count - 1) % different)
    });
    let sections: Vec<(usize, usize)> = sections.collect();
    for some in sections.chunks(different) {
        let new = some.iter().filter(|section| !made.contains_key(section)).collect::<BTreeSet<_>>();
        let encoded = new.into_par_iter().map(|&(length, place)| {
            let seed = u64::from(header.uid.0) << 48
                ^ u64::from(header.window.0) << 40
                ^ (length << 8 | place) as u64;
            let mut values = random(seed, length);
            let layout = Layout::new(&[length], codec.density().0)?;
            Ok(((length, place), encode(&layout, &mut values, Source::Nothing, Feedback::Keep)?))
        });
        made.extend(encoded.collect::<anyhow::Result<Vec<_>>>()?);
        for bytes in some.iter().filter_map(|section| made.get(section)) {
            sealer.push(bytes);
            file.write_all(bytes)?;
        }
    }
    let (signature, digest) = sealer.finish(signer);
    file.write_all(&signature.0)?;
    file.flush()?;
    Ok(digest)
}

/// Returns values of about 1e-3, as in pseudo-gradients, by xorshift64 (Marsaglia 2003).
fn random(seed: u64, count: usize) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        ((state >> 40) as f32 / (1 << 23) as f32 - 1.0).powi(3) * 3e-3
    };
    (0..count).map(|_| next()).collect()
}

async fn report(options: &Options, home: &Path) -> anyhow::Result<Report> {
    let model = shape(options.parameters)?;
    let name = "memory".to_owned();
    let spec = RunSpec { version: 1, name, model, seed: 7, weights: None, recipe: Recipe::default() };
    let server = Server::start(&home.join("buckets"))?;
    let (validator, joiner) = (home.join("validator"), home.join("joiner"));
    let mut meter = Meter::start(home)?;

    meter.begin()?;
    let mut theta =
        Storage::on_disk(&validator).mapped_from(options.mapped_from).zeros(spec.model.parameters())?;
    if !options.zeros {
        tokio::task::block_in_place(|| {
            model::init_into(&spec.model, spec.seed, theta.edit()?).map_err(anyhow::Error::from)
        })?;
    }
    let world = World::new(options, spec, theta.root(), server)?;
    meter.end("first weights");

    let follower = world.follower(&validator)?;
    let mut journal = Journal::open(&home.join("journal.jsonl"))?;
    let path = validator.join("model.state");
    meter.begin()?;
    if options.zeros {
        let run = &follower.run;
        let mut state = ModelState::first(run.id, &run.params, &run.manifest, theta);
        state.buffer = Some(world.storage(&validator).zeros(state.theta.len())?);
        tokio::task::block_in_place(|| state.save(&path))?;
        meter.end("save");
    } else {
        drop(theta);
        // The validator joins the run: θ_0 from the seed, saved.
        let (driver, _) = SyncDriver::open(follower.clone(), path.clone(), &mut journal).await?;
        drop(driver);
        meter.end("genesis and save");
    }
    meter.begin()?;
    let (mut driver, resumed) = SyncDriver::open(follower.clone(), path, &mut journal).await?;
    ensure!(resumed, "the saved model is read");
    meter.end("restart");

    let (mut contribution_bytes, mut update_bytes) = (0, 0);
    let store = world.server.store(BUCKETS[0])?;
    while driver.window() < Window(options.windows) {
        let window = driver.window();
        let schedule = world.schedule()?;
        world.advance_to(Block(schedule.opens_at(window).0 + 1));
        let seats = world.chain.seats_now(RUN);
        let miners: Vec<SeatView> = seats.iter().filter(|seat| seat.role == Role::Miner).cloned().collect();
        meter.begin()?;
        contribution_bytes = world.contribute(&driver.state, &miners, home).await?;
        meter.end(format!("window {}: miners", window.0));

        meter.begin()?;
        world.advance_to(schedule.reveal_deadline(window));
        let view = world.window(window)?;
        let spill = Spill::new(&validator.join("gathered"));
        let mut held = BTreeMap::<Uid, HeldContribution>::new();
        let sources = follower.contribution_sources(&view, &seats);
        for (uid, digest) in &view.commitments {
            let contribution = follower.fetch_contribution(&sources, *uid, digest).await?;
            held.insert(*uid, spill.write(&contribution)?);
        }
        let verdicts: Vec<_> = held.keys().map(|uid| (*uid, Verdict::Valid)).collect();
        let verdicts = verdicts.try_into().ok().context("the verdicts are within their bound")?;
        let next_salt = Digest::of(&window.0.to_le_bytes());
        world.send(VALIDATOR, pallet_windows::Call::attest { run: RUN, window, verdicts, next_salt })?;
        world.advance_to(Block(schedule.attest_deadline(window).0 + 1));
        meter.end(format!("window {}: gather", window.0));

        meter.begin()?;
        let view = world.window(window)?;
        let selected = view.selection.as_ref().map_or(0, |selection| selection.selected.len());
        ensure!(selected == usize::from(options.contributions), "{selected} contributions are selected");
        let contributions = held.iter().map(|(uid, held)| Ok((*uid, held.read()?)));
        let contributions = contributions.collect::<anyhow::Result<BTreeMap<_, _>>>()?;
        let merger = follower.clone();
        let merge = move |state: &mut ModelState| merger.merge(state, &view, &contributions);
        let own = follower.blocking.with(&mut driver.state, merge).await?;
        meter.end(format!("window {}: merge", window.0));

        meter.begin()?;
        let (own, vote) = vote(&world, own).await?;
        store.put(&keys::update(RUN, window, &own.digest), own.bytes.clone()).await?;
        update_bytes = own.bytes.len() as u64;
        world.send(VALIDATOR, pallet_windows::Call::vote { run: RUN, window, vote })?;
        meter.end(format!("window {}: publish and vote", window.0));

        meter.begin()?;
        world.advance_to(schedule.opens_at(window.next()));
        let mut heads = world.chain.heads();
        driver.sync_to_open_window(&mut heads, None, &mut Some(own), &mut journal).await?;
        ensure!(driver.window() == window.next(), "the window was not merged");
        meter.end(format!("window {}: follow and save", window.0));
    }

    meter.begin()?;
    let published = checkpoint::publish(Blocking::Pool, &store, &mut driver.state).await?;
    let voted = world.chain.run_now(RUN).and_then(|run| run.checkpoint);
    ensure!(voted == Some(published), "the checkpoint is the one that was voted");
    meter.end("publish checkpoint");

    // Free memory for the joiner.
    let merged = driver.state.lineage;
    drop((driver, follower));
    fs::remove_dir_all(&validator)?;
    meter.begin()?;
    let follower = world.follower(&joiner)?;
    let path = joiner.join("model.state");
    let (mut driver, _) = SyncDriver::open(follower.clone(), path.clone(), &mut journal).await?;
    ensure!(driver.state.lineage == merged, "the joiner has the validator's model");
    meter.end("join and save");

    meter.begin()?;
    let state = &mut driver.state;
    let last = state.theta.len() - 1;
    for at in [0, last / 2, last] {
        state.theta.edit()?[at] += 1.0;
    }
    state.buffer.as_mut().context("the joiner keeps a buffer")?.edit()?[last / 3] += 1.0;
    let mirrors = follower.mirrors().await?;
    let schema = follower.schema();
    let manifest = checkpoint::manifest(&*world.fetch, &mirrors, RUN, &published, schema).await?;
    let repaired = checkpoint::repair(Blocking::Pool, &*world.fetch, &mirrors, state, &manifest).await?;
    // In a small model the three values may be in one piece.
    ensure!((2..=4).contains(&repaired), "{repaired} pieces were repaired");
    state.save(&path)?;
    ensure!(state.state_root() == Some(published.state_root), "the model was repaired");
    meter.end("repair and save");

    Ok(Report {
        parameters: world.spec.model.parameters() as u64,
        contributions: options.contributions,
        contribution_bytes,
        update_bytes,
        state_root: published.state_root,
        processor: processor(),
        phases: std::mem::take(&mut meter.phases),
    })
}

async fn vote(world: &World, own: OwnMerge) -> anyhow::Result<(OwnMerge, Vote)> {
    let is_checkpoint = world.chain.run_now(RUN).is_some_and(|run| run.params.is_checkpoint(own.window));
    let hash = move || {
        let state_root = is_checkpoint.then(|| own.state_root());
        let vote = Vote { update: own.digest, state_root };
        (own, vote)
    };
    Ok(Blocking::Pool.run(hash).await)
}
