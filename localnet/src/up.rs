//! `localnet up`: prepares the data and a directory, starts the network, and shows its state until it ends.

use crate::{
    defaults,
    layout::{LockedDirectory, Plan},
    network::Network,
    nodes, page,
    report::{Report, SessionTime},
    seats::Seats,
    setup::{self, ChainWanted, Wanted, Work},
    table::Display,
};
use anyhow::{Context as _, bail};
use chain_client::Chain;
use daemon::program;
use dataset::Dataset;
use prepare::{OutputDirectory, PrepareOptions, Progress, Source, TokenizerChoice};
use protocol::{Role, Uid, Window};
use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant},
};
use validator::evaluate::HELD_OUT_SEQUENCES;
use watch::{
    draw::View,
    observe::{Absence, Observer, Text, TrainTime},
    server::Page,
};

/// Interval between reads of the network's state.
const READ_EVERY: Duration = Duration::from_millis(500);
/// Maximum time of one read.
const READ_WITHIN: Duration = Duration::from_secs(3);
/// Maximum silence of the chain; a longer one ends the session.
const SILENCE_MAX: Duration = Duration::from_secs(30);

#[derive(Clone, Debug, clap::Args)]
pub struct Up {
    /// Keep the network in this directory, or continue the network that is in it. Default: a temporary directory,
    /// removed at the end
    #[arg(long, value_name = "DIR")]
    pub dir: Option<PathBuf>,
    /// Stop after this many finalised windows. Default: at Ctrl-C
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub windows: Option<u32>,
    /// Train on the text in this directory. Default: the Rust source of crates that the build needs
    #[arg(long, value_name = "DIR")]
    pub text: Option<PathBuf>,
    /// Write a report of the session as JSON
    #[arg(long, value_name = "FILE")]
    pub report: Option<PathBuf>,
    /// Honest miners
    #[arg(long, value_name = "N", default_value_t = defaults::MINERS, value_parser = clap::value_parser!(u16).range(1..=64))]
    pub miners: u16,
    /// Honest validators
    #[arg(long, value_name = "N", default_value_t = defaults::VALIDATORS, value_parser = clap::value_parser!(u16).range(1..=16))]
    pub validators: u16,
    /// Seats by strategy, in place of --miners and --validators: `honest:4,copycat:1,validator:3`. `honest` is an
    /// honest miner, `validator` an honest validator (3 if no validator is named); docs/adversaries.md describes the
    /// others. A kept network keeps its seats
    #[arg(long, value_name = "LIST", conflicts_with_all = ["miners", "validators"])]
    pub seats: Option<Seats>,
    /// The device of all seats: cpu, or in a build with --features cuda or vulkan cuda:0, vulkan, with settings behind
    /// it as in docs/gpu.md. A kept network keeps its device
    #[arg(long, value_name = "DEVICE")]
    pub device: Option<nn::Device>,
    /// Every second honest miner has neither a bucket nor an open port, as behind a home router: it sends its
    /// contributions to validators. A kept network keeps its seats
    #[arg(long)]
    pub nat: bool,
    /// The chain: the development chain in one process, or four real nodes that finalise blocks among them
    #[arg(long, value_name = "KIND", value_enum, default_value_t = ChainKind::Embedded)]
    pub chain: ChainKind,
    /// The node's program, with `--chain node`. Default: `mettle-node` beside this program, in
    /// chain/node/target/release, or in PATH
    #[arg(long, value_name = "PATH", env = "METTLE_NODE")]
    pub node_binary: Option<PathBuf>,
    /// Time between two blocks, in milliseconds. Default: 500. Fixed for real nodes
    #[arg(long, value_name = "MS", value_parser = clap::value_parser!(u64).range(50..=60_000))]
    pub block_millis: Option<u64>,
    /// For tests: make a block as soon as all processes of the network wait for it, at the earliest after
    /// --block-millis
    #[arg(long, hide = true)]
    pub when_idle: bool,
    /// Blocks of a window in which miners train. Default: 28, and 14 of the longer blocks of real nodes
    #[arg(long, value_name = "BLOCKS", value_parser = clap::value_parser!(u32).range(4..=10_000))]
    pub train_blocks: Option<u32>,
    /// Sequences dealt to a miner per window, at most what it trains on. Default: 1280, which leaves two cores time
    /// for four miners; 16384 is more than one miner on two cores finishes. A kept network keeps its number
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=65_536))]
    pub sequences: Option<u32>,
    /// Blocks by which finality trails the best block. Default: 0, and 3 with real nodes, for which it is an
    /// assumption of the schedule
    #[arg(long, value_name = "BLOCKS", value_parser = clap::value_parser!(u32).range(0..=20))]
    pub finality_lag: Option<u32>,
    /// Port of the JSON-RPC of the chain, or of its first node. Default: a free one
    #[arg(long, value_name = "PORT")]
    pub chain_port: Option<u16>,
    /// Port of the S3 server. Default: a free one
    #[arg(long, value_name = "PORT")]
    pub store_port: Option<u16>,
    /// Print lines in place of the live table
    #[arg(long)]
    pub plain: bool,
    /// Action when the process of a miner or validator ends by itself: start it again, after a wait that doubles from a
    /// second to a minute, or stop the network. A chain or a store that ends always stops it
    #[arg(long, value_name = "ACTION", value_enum, default_value_t = OnExit::Restart)]
    pub on_exit: OnExit,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum OnExit {
    Restart,
    Stop,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum ChainKind {
    /// The development chain: the real runtime in one process, two blocks per second
    Embedded,
    /// Four nodes with Aura and GRANDPA: one block per two seconds
    Node,
}

impl Up {
    /// The chain to start, the blocks to train for, and the finality lag to allow for.
    fn chain_wanted(&self) -> anyhow::Result<(ChainWanted, u32, u32)> {
        match self.chain {
            ChainKind::Embedded => {
                let block_millis = self.block_millis.unwrap_or(defaults::BLOCK_MILLIS);
                let train_blocks = self.train_blocks.unwrap_or(defaults::TRAIN_BLOCKS);
                let chain = ChainWanted::Embedded { block_millis, when_idle: self.when_idle };
                Ok((chain, train_blocks, self.finality_lag.unwrap_or(0)))
            }
            ChainKind::Node => {
                if self.block_millis.is_some() {
                    bail!(
                        "--block-millis is for the development chain: the block time of real nodes is fixed in their runtime"
                    );
                }
                let binary = nodes::find(self.node_binary.as_deref())?;
                let train_blocks = self.train_blocks.unwrap_or(defaults::NODE_TRAIN_BLOCKS);
                let finality_lag = self.finality_lag.unwrap_or(defaults::NODE_FINALITY_LAG);
                Ok((ChainWanted::Nodes { binary }, train_blocks, finality_lag))
            }
        }
    }
}

/// Runs a network, new or from its directory, until its end.
pub async fn run(up: Up) -> anyhow::Result<()> {
    check(&up)?;
    // Lock the directory before the data is prepared, which may take a minute.
    up.device.map_or(Ok(()), nn::Device::check)?;
    let (directory, temporary) = match &up.dir {
        Some(directory) => (directory.clone(), None),
        None => {
            let temporary = tempfile::Builder::new().prefix("mettle-localnet-").tempdir()?;
            (temporary.path().join("network"), Some(temporary))
        }
    };
    let mut locked = LockedDirectory::lock(&directory)?;
    let executable = std::env::current_exe().context("could not find this program's own file")?;
    let mut network = Network::new(locked.path(), executable);

    let ended = session(&up, &mut locked, &mut network).await;
    network.stop().await;
    if ended.is_err()
        && let Some(temporary) = temporary
    {
        // The error names logs in that directory.
        println!("the network's files are left in {}", temporary.keep().display());
    }
    ended
}

/// Runs one session in a locked directory, and reports on it. Ctrl-C ends it at any time, without an error.
async fn session(up: &Up, locked: &mut LockedDirectory, network: &mut Network) -> anyhow::Result<()> {
    let mut stop = program::StopSignal::listen();
    let (plan, chain, text) = tokio::select! {
        started = start(up, locked, network) => started?,
        () = stop.told() => {
            println!("stopped before the network was up");
            return Ok(());
        }
    };
    let kept = match &up.dir {
        Some(_) => format!("kept in {}", locked.path().display()),
        None => "temporary: --dir DIR keeps a network".into(),
    };
    let mut observer = network.observer(&plan, &*chain).await?;
    let page = page::serve(chain.clone(), &observer.run).await?;
    println!("network up: chain {}, store {}; {kept}", plan.chain_urls().join(" "), plan.store_url());
    println!("page of the run: {}", page.url());

    let display = Display::open(up.plain)?;
    let watched =
        Watched { up, network, plan: &plan, chain: &*chain, observer: &mut observer, text, page: &page };
    let (ended, time) = watch(watched, display, stop).await;

    let report = Report::new(&observer, &text, time, &network.restarts());
    println!("{}", report.summary());
    if let Some(path) = &up.report {
        daemon::durable::write_atomic(path, &serde_json::to_vec_pretty(&report)?)?;
        println!("report: {}", path.display());
    }
    ended
}

/// Starts the network, and returns its plan, its chain, and information on its text.
async fn start(
    up: &Up,
    locked: &mut LockedDirectory,
    network: &mut Network,
) -> anyhow::Result<(Plan, Arc<dyn Chain>, Text)> {
    let (plan, chain) = match locked.plan.clone() {
        Some(plan) => resume(network, plan).await?,
        None => make(up, locked, network).await?,
    };
    let directory = plan.dataset.clone().context("this network was not made by `up`")?;
    let sample = plan.held_out_sequences.unwrap_or(HELD_OUT_SEQUENCES);
    let measure = move || -> anyhow::Result<Text> {
        let dataset = Dataset::open(&directory, None)?;
        let unigram = dataset.unigram_estimate(sample)?;
        Ok(Text { sequence_tokens: u64::try_from(dataset.seq_len())?, unigram })
    };
    let text = tokio::task::spawn_blocking(measure).await??;
    for seat in &plan.seats {
        network.start_seat(&plan, seat)?;
    }
    Ok((plan, chain, text))
}

/// A network that is up.
struct Watched<'a> {
    up: &'a Up,
    network: &'a mut Network,
    plan: &'a Plan,
    chain: &'a dyn Chain,
    observer: &'a mut Observer,
    text: Text,
    page: &'a Page,
}

/// Shows the network and restarts seats whose process ends, until enough windows are finalised, Ctrl-C, or the loss of
/// chain or store. Returns the time since the first window of this session opened.
async fn watch(
    watched: Watched<'_>,
    mut display: Display,
    mut stop: program::StopSignal,
) -> (anyhow::Result<()>, SessionTime) {
    let Watched { up, network, plan, chain, observer, text, page } = watched;
    let (began, mut first_window) = (Instant::now(), None);
    let since = |first: Option<Instant>| first.map_or(Duration::ZERO, |first| first.elapsed());
    let (mut trained, mut trained_for) = (TrainTime::default(), Duration::ZERO);
    let mut last_heard = Instant::now();
    // Windows of earlier sessions are not counted again. A chain that is busy with its start may answer later.
    let first_read = tokio::time::timeout(SILENCE_MAX, observer.look(chain)).await;
    let mut earlier_windows = matches!(first_read, Ok(Ok(()))).then(|| observer.windows());
    observer.begin_session();
    let ended = loop {
        // Check for ended processes before their consequences, such as a chain that no longer answers.
        let lost = match up.on_exit {
            OnExit::Restart => network.restart_seats(Instant::now()),
            OnExit::Stop => network.died(),
        };
        match lost {
            Ok(None) => {}
            Ok(Some(died)) => break Err(died.into()),
            Err(error) => break Err(error),
        }
        match tokio::time::timeout(READ_WITHIN, observer.look(chain)).await {
            Ok(Ok(())) => {
                last_heard = Instant::now();
                if earlier_windows.is_none() {
                    earlier_windows = Some(observer.windows());
                    observer.begin_session();
                }
            }
            Ok(Err(error)) if SILENCE_MAX < last_heard.elapsed() => break Err(error.into()),
            Err(_) if SILENCE_MAX < last_heard.elapsed() => {
                break Err(anyhow::anyhow!("the chain has not answered for {} s", SILENCE_MAX.as_secs()));
            }
            Ok(Err(_)) | Err(_) => {}
        }
        if first_window.is_none() && observer.current.is_some() {
            first_window = Some(Instant::now());
        }
        if trained != observer.train_time() {
            trained = observer.train_time();
            trained_for = since(first_window);
        }
        let view = View {
            title: "Mettle localnet",
            observer,
            text: Some(text),
            absences: absences(observer, plan, network),
            block_time: plan.chain.block_time(),
            elapsed: Some(began.elapsed()),
            silence: last_heard.elapsed(),
        };
        page.publish(page::snapshot(&view));
        if let Err(error) = display.show(&view) {
            break Err(error.into());
        }
        if let (Some(windows), Some(earlier)) = (up.windows, earlier_windows)
            && enough(observer, earlier.saturating_add(windows))
        {
            break Ok(());
        }
        tokio::select! {
            () = tokio::time::sleep(READ_EVERY) => {}
            () = stop.told() => break Ok(()),
        }
    };
    let (whole, blocks) = (since(first_window), observer.run.params.schedule.blocks_per_window);
    // Miners that train report it every window.
    let silent_max = plan.chain.block_time().saturating_mul(blocks);
    let time = SessionTime { whole, trained: trained_for.max(whole.saturating_sub(silent_max)) };
    if let Err(error) = display.close() {
        tracing::debug!(%error, "could not restore the terminal");
    }
    (ended, time)
}

/// Returns the seats that send nothing.
fn absences(observer: &Observer, plan: &Plan, network: &Network) -> BTreeMap<Uid, Absence> {
    let now = Instant::now();
    let uids = observer.seats.iter().map(|seat| seat.id.uid);
    let silent = uids.filter_map(|uid| Some((uid, observer.absence(uid, now)?)));
    let mut absences: BTreeMap<Uid, Absence> = silent.collect();
    for (name, again_in) in network.down(now) {
        let seat = plan.seats.iter().find(|seat| seat.name == name);
        absences.extend(seat.map(|seat| (Uid(seat.uid), Absence::Ended { again_in })));
    }
    absences
}

/// Returns whether `windows` are finalised and judged. Waits for the last judgement until the middle of the next
/// window.
fn enough(observer: &Observer, windows: u32) -> bool {
    if observer.windows() < windows {
        return false;
    }
    let last = Window(windows.saturating_sub(1));
    let validators = observer.seats_of(Role::Validator).count();
    let judged = observer.held_out.get(&last).map_or(0, |losses| losses.len());
    let schedule = observer.run.params.schedule;
    let give_up_at = schedule.opens_at(last.next()).0.saturating_add(schedule.blocks_per_window / 2);
    validators <= judged || give_up_at < observer.block.0
}

async fn make(
    up: &Up,
    locked: &mut LockedDirectory,
    network: &mut Network,
) -> anyhow::Result<(Plan, Arc<dyn Chain>)> {
    let dataset = prepare(up.text.clone()).await?;
    let held_out_sequences = Dataset::open(&dataset, None)?.held_out_sequences();
    let (chain, train_blocks, finality_lag) = up.chain_wanted()?;
    let mut params = defaults::params(finality_lag);
    params.schedule = defaults::schedule(train_blocks, finality_lag);
    params.sequences_per_seat = up.sequences.unwrap_or(params.sequences_per_seat);
    let wanted = Wanted {
        seats: up.seats.clone().unwrap_or_else(|| Seats::honest(up.miners, up.validators)),
        device: up.device,
        nat: up.nat,
        host: setup::LOOPBACK,
        chain,
        finality_lag,
        chain_port: up.chain_port,
        store_port: up.store_port,
        held_out_sequences: held_out_sequences.min(defaults::HELD_OUT_SEQUENCES),
        work: Work { dataset, params, spec: defaults::spec() },
    };
    setup::set_up(locked, network, &wanted, &mut |what| println!("{what} …")).await
}

/// Starts chain and store of a kept network, on their original ports.
async fn resume(network: &mut Network, plan: Plan) -> anyhow::Result<(Plan, Arc<dyn Chain>)> {
    println!("continuing the network in {} …", network.directory.display());
    let chain = network.start_chain(&plan).await?;
    network.start_store(&plan).await?;
    Ok((plan, chain))
}

/// Prepares the data once, in the user's cache. Returns its directory.
///
/// # Errors
/// If the text is missing or cannot be prepared.
pub async fn prepare(text: Option<PathBuf>) -> anyhow::Result<PathBuf> {
    let source = match text {
        Some(directory) => Source::directory(directory),
        None => Source::default_text(prepare::cargo_homes(|name| std::env::var_os(name))),
    };
    let options = PrepareOptions {
        tokenizer: TokenizerChoice::Train { vocab: u32::try_from(defaults::VOCABULARY)? },
        seq_len: u32::try_from(defaults::SEQUENCE)?,
        shard_bytes: 16 << 20,
        held_out_sequences_min: 512,
        ..PrepareOptions::new(source, OutputDirectory::CacheUnder(cache_directory()?))
    };
    let prepared = tokio::task::spawn_blocking(move || {
        let mut printed: Option<(std::mem::Discriminant<Progress>, Instant)> = None;
        prepare::prepare(options, &mut |progress| {
            // Report every new stage, and the progress of a stage every two seconds.
            let stage = std::mem::discriminant(&progress);
            if printed.is_none_or(|(last, at)| last != stage || Duration::from_secs(2) < at.elapsed()) {
                println!("data: {progress}");
                printed = Some((stage, Instant::now()));
            }
        })
    });
    Ok(prepared.await?.context("could not prepare the data")?.directory)
}

fn cache_directory() -> anyhow::Result<PathBuf> {
    let from =
        |variable: &str| std::env::var_os(variable).filter(|value| !value.is_empty()).map(PathBuf::from);
    let Some(cache) = from("XDG_CACHE_HOME").or_else(|| Some(from("HOME")?.join(".cache"))) else {
        bail!("there is no place for prepared data: set HOME or XDG_CACHE_HOME");
    };
    Ok(cache.join("mettle").join("datasets"))
}

/// Refuses invalid arguments before anything is created.
fn check(up: &Up) -> anyhow::Result<()> {
    if let Some(report) = &up.report {
        check_writable(report)?;
    }
    if let Some(text) = &up.text {
        std::fs::metadata(text).with_context(|| format!("there is no text at {}", text.display()))?;
    }
    up.chain_wanted()?;
    // A kept network has its own ports.
    if up.dir.as_ref().is_none_or(|directory| !directory.exists()) {
        setup::check_ports(up.chain_port, up.store_port)?;
    }
    Ok(())
}

/// Fails early if a report could not be written at the end.
fn check_writable(path: &Path) -> anyhow::Result<()> {
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    if !parent.is_dir() {
        bail!("the report cannot be written: {} is no directory", parent.display());
    }
    if path.is_dir() {
        bail!("the report cannot be written: {} is a directory; name a file in it", path.display());
    }
    let probe = tempfile::Builder::new().prefix(".report-").tempfile_in(parent);
    probe.with_context(|| format!("the report cannot be written to {}", parent.display()))?;
    Ok(())
}
