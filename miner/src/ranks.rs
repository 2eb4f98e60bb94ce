//! Several processes that train one seat together: `ranks` under `[train]` (ADR 0050).
//!
//! Rank 0 is the miner, with keys, chain, codec and files. The other ranks are processes of the same program without
//! these: they compute gradients, keep a part of the optimiser, and serve the requests of rank 0
//! ([`nn::engine::serve`]). Rank 0 starts them on its own machine, or a cluster's launcher starts all ranks alike
//! ([`launcher`]). A rank that fails costs the window; the next one reconnects all ranks.

pub mod launcher;
mod link;
mod rendezvous;

pub use rendezvous::{Identity, RankError};

use crate::command::{CommandGroup, Process};
use anyhow::{Context as _, bail, ensure};
use daemon::{
    Settings,
    config::{RANKS_MAX, RankExchange, TrainFile},
    error_chain,
    program::StopSignal,
};
use launcher::Launched;
use model::{ModelConfig, Recipe};
use nn::{
    Device, DeviceName, DeviceSetting, MemoryEstimate, ModelError, Trainer,
    collective::Collective,
    engine::{self, Connect, DataParallel},
    nccl::{self, Library, NcclError, UniqueId},
};
use serde::{Deserialize, Serialize};
use std::{
    ffi::OsString,
    io::{BufRead as _, Write as _},
    net::TcpListener,
    process::{Command, Stdio},
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

/// The variable with the shared secret of a seat's ranks.
pub const SECRET: &str = "METTLE_RANK_SECRET";
/// Minimum length of a secret, in bytes.
const SECRET_BYTES_MIN: usize = 16;
/// Time that ranks try to reconnect to rank 0 after they lost it.
const GONE_AFTER: Duration = Duration::from_secs(10);
/// Time that a stopping rank waits for rank 0, which may be writing a snapshot.
const STOP_WITHIN: Duration = Duration::from_secs(5);
/// Maximum deadline in seconds: a week.
const SECONDS_MAX: u64 = 7 * 24 * 3600;

/// Deadlines of ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RankDeadlines {
    /// Deadline from the start until all are connected.
    pub start: Duration,
    /// Deadline of one exchange, with the computation that it waits for.
    pub step: Duration,
}

/// This process's part in the training of its seat.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// A process that trains alone.
    Alone,
    /// Rank 0, which starts the others on this machine.
    Parent { ranks: usize },
    /// One of the ranks that a launcher started.
    Launched { launched: Launched, leader: (String, u16) },
}

/// Returns the device of the settings, and the number of GPUs if it is `cuda:all` or `vulkan:all`.
///
/// # Errors
/// If the setting is not a device, or GPUs cannot be counted.
pub fn device(settings: &Settings) -> anyhow::Result<(Device, Option<usize>)> {
    let DeviceSetting { device, is_every_gpu } =
        settings.reading.device.clone().try_into().context("device")?;
    Ok((device, is_every_gpu.then(|| device.count()).transpose()?))
}

/// Decides from settings, the flag `--ranks`, the number of GPUs if all are meant, and the launcher's variables.
///
/// # Errors
/// If they contradict each other.
pub fn place(
    train: &TrainFile,
    flag: Option<usize>,
    gpus: Option<usize>,
    variable: impl Fn(&str) -> Option<String>,
) -> anyhow::Result<Place> {
    let wanted = flag.or(train.ranks);
    if let Some(ranks) = wanted.filter(|ranks| !(1..=RANKS_MAX as usize).contains(ranks)) {
        bail!("`ranks` is {ranks}, and may be from 1 to {RANKS_MAX}");
    }
    if wanted == Some(1) {
        return Ok(Place::Alone);
    }
    let launched = launcher::launched(variable)?.filter(|launched| 1 < launched.ranks);
    let Some(launched) = launched else {
        let ranks = wanted.or(gpus).filter(|ranks| 1 < *ranks);
        return Ok(ranks.map_or(Place::Alone, |ranks| Place::Parent { ranks }));
    };
    if let Some(ranks) = wanted.filter(|ranks| *ranks != launched.ranks) {
        let (launcher, started) = (launched.launcher, launched.ranks);
        bail!("`ranks` is {ranks}, but {launcher} started {started}: make them equal, or leave `ranks` out");
    }
    let leader = match (&train.rank_address, &launched.leader) {
        (Some(address), _) => {
            let parsed =
                address.rsplit_once(':').and_then(|(host, port)| Some((host.to_owned(), port.parse().ok()?)));
            parsed.filter(|(host, port)| !host.is_empty() && 0 < *port).with_context(|| {
                format!("`rank_address` under [train] is {address:?}: write the address and port of rank 0, such as \"10.0.0.1:29590\"")
            })?
        }
        (None, Some(leader)) => leader.clone(),
        (None, None) => {
            let launcher = launched.launcher;
            bail!(
                "{launcher} does not say where rank 0 runs: set `rank_address = \"HOST:PORT\"` under [train]"
            )
        }
    };
    Ok(Place::Launched { launched, leader })
}

/// Returns the deadlines of the settings.
pub fn deadlines(train: &TrainFile) -> RankDeadlines {
    let seconds =
        |value: Option<u64>, default| Duration::from_secs(value.unwrap_or(default).clamp(1, SECONDS_MAX));
    RankDeadlines {
        start: seconds(train.rank_start_seconds, 300),
        step: seconds(train.rank_step_seconds, 600),
    }
}

/// Returns the exchange between the ranks of these settings on this device. Logs if it is NCCL.
///
/// # Errors
/// If the settings require NCCL, and the device does not support it, or NCCL is not installed.
pub fn exchange(train: &TrainFile, device: Device) -> Result<RankExchange, NcclError> {
    let exchange = train.rank_exchange.unwrap_or_default();
    if exchange == RankExchange::Nccl {
        let library = nccl::library_for(device)?;
        let (path, version) = (library.path().display(), library.version());
        tracing::info!(%path, %version, "ranks exchange gradients and weights by NCCL");
    }
    Ok(exchange)
}

/// Creates the id of a new communicator, if ranks exchange by NCCL.
fn communicator(exchange: RankExchange) -> Result<Option<UniqueId>, NcclError> {
    match exchange {
        RankExchange::Tcp => Ok(None),
        RankExchange::Nccl => Library::open()?.unique_id().map(Some),
    }
}

/// Returns the secret of ranks that a launcher started.
fn secret(train: &TrainFile) -> anyhow::Result<[u8; 32]> {
    let text = match &train.rank_secret_file {
        Some(path) => {
            let text = std::fs::read_to_string(path);
            text.with_context(|| format!("could not read the ranks' secret from {}", path.display()))?
        }
        None => std::env::var(SECRET).with_context(|| {
            format!(
                "no secret for the ranks: set {SECRET} for all of them, or `rank_secret_file` under [train]"
            )
        })?,
    };
    let text = text.trim();
    if text.len() < SECRET_BYTES_MIN {
        bail!("the ranks' secret has {} bytes, and needs {SECRET_BYTES_MIN} at least", text.len());
    }
    Ok(blake3::derive_key("mettle 2026 secret of the ranks of a seat", text.as_bytes()))
}

/// Returns the digest of the settings that the ranks of a seat must share before they connect. Rank 0 sends model and
/// recipe.
fn settings_digest(settings: &Settings) -> String {
    // These may differ in spelling between machines.
    let train =
        TrainFile { ranks: None, rank_address: None, rank_secret_file: None, ..settings.train.clone() };
    let agreed = (settings.reading.run.0, &train);
    let bytes = serde_json::to_vec(&agreed).expect("settings are numbers and text");
    blake3::hash(&bytes).to_hex().to_string()
}

/// Returns the digest of this program's file.
fn build() -> &'static str {
    static BUILD: OnceLock<String> = OnceLock::new();
    BUILD.get_or_init(|| {
        let mut hasher = blake3::Hasher::new();
        // If the system does not name the file, only the version is compared.
        let path =
            if cfg!(target_os = "linux") { Ok("/proc/self/exe".into()) } else { std::env::current_exe() };
        let read = path.and_then(std::fs::File::open).and_then(|file| hasher.update_reader(file).map(drop));
        if read.is_ok() { hasher.finalize().to_hex().to_string() } else { "unknown".into() }
    })
}

/// Returns the identity of rank `rank` of `ranks`, of this program. `settings` is the digest of the shared settings.
pub fn identity(rank: usize, ranks: usize, secret: [u8; 32], settings: String, device: Device) -> Identity {
    let version = env!("CARGO_PKG_VERSION").to_owned();
    // Ranks have GPUs with different numbers.
    let kind = match device.name {
        DeviceName::Cpu => "cpu",
        DeviceName::Cuda(_) => "cuda",
        DeviceName::Vulkan(_) => "vulkan",
    };
    let device = format!("{kind} ({}, {})", device.engine().name(), device.precision_for_training());
    Identity { rank, ranks, secret, version, build: build().to_owned(), settings, device }
}

/// Returns the device of a rank: the next GPU for each rank of a machine, unless the rank sees only one GPU.
fn device_of(device: Device, local_rank: usize) -> Device {
    own_device(device, local_rank, device.count().unwrap_or(usize::MAX))
}

fn own_device(device: Device, local_rank: usize, count: usize) -> Device {
    let index = |first: u16| u16::try_from(usize::from(first) + local_rank).unwrap_or(u16::MAX);
    let name = match device.name {
        DeviceName::Cuda(first) if 1 < count => DeviceName::Cuda(index(first)),
        DeviceName::Vulkan(first) if 1 < count => DeviceName::Vulkan(Some(index(first.unwrap_or(0)))),
        other => other,
    };
    Device { name, ..device }
}

/// Rank 0 before the seat is opened: ranks that a launcher started can connect from now on.
pub struct Leader {
    ranks: usize,
    local_rank: usize,
    exchange: RankExchange,
    deadlines: RankDeadlines,
    identity: Identity,
    reach: Reach,
}

enum Reach {
    Children,
    Listener(TcpListener),
}

impl Leader {
    /// # Errors
    /// If there is no secret or random number, rank 0 cannot listen, or as for [`exchange`].
    pub fn new(place: &Place, settings: &Settings, device: Device) -> anyhow::Result<Option<Leader>> {
        let digest = settings_digest(settings);
        let deadlines = deadlines(&settings.train);
        match place {
            Place::Alone => {
                if settings.train.rank_exchange == Some(RankExchange::Nccl) {
                    tracing::warn!("rank_exchange = \"nccl\" has no effect: this miner trains on one device");
                }
                Ok(None)
            }
            Place::Parent { ranks } => {
                let exchange = exchange(&settings.train, device)?;
                let gpus = device.count().unwrap_or(*ranks);
                ensure!(
                    exchange == RankExchange::Tcp || *ranks <= gpus,
                    "{ranks} ranks exchange by NCCL and this machine shows {gpus} GPUs: each rank needs its own"
                );
                let mut secret = [0; 32];
                getrandom::fill(&mut secret).map_err(RankError::Random)?;
                let (ranks, identity) = (*ranks, identity(0, *ranks, secret, digest, device));
                let reach = Reach::Children;
                Ok(Some(Leader { ranks, local_rank: 0, exchange, deadlines, identity, reach }))
            }
            Place::Launched { launched: Launched { ranks, local_rank, .. }, leader } => {
                let (ranks, local_rank) = (*ranks, *local_rank);
                let exchange = exchange(&settings.train, device)?;
                let address = format!("{}:{}", leader.0, leader.1);
                let listener = listen(&address)?;
                tracing::info!(address, ranks, "waiting for the other ranks");
                let identity = identity(0, ranks, secret(&settings.train)?, digest, device);
                let reach = Reach::Listener(listener);
                Ok(Some(Leader { ranks, local_rank, exchange, deadlines, identity, reach }))
            }
        }
    }

    /// Returns a trainer whose steps all ranks compute.
    ///
    /// # Errors
    /// As for [`DataParallel::open`], or if free memory is below the estimate.
    pub fn trainer(
        self,
        config: &ModelConfig,
        recipe: &Recipe,
        flat: &[f32],
        device: Device,
        group: Arc<CommandGroup>,
    ) -> Result<Trainer, ModelError> {
        let own = device_of(device, self.local_rank);
        config.validate()?;
        recipe.validate()?;
        // Processes share a machine's memory, and have a GPU each. The number that a launcher started here is
        // unknown.
        let here = if matches!(self.reach, Reach::Children) { self.ranks } else { 1 };
        let free = match own.name {
            DeviceName::Cpu => own.free_memory().map(|free| free / here as u64),
            _ => {
                MemoryEstimate::check_rank_slices(config, here, self.ranks, nn::available_memory())?;
                own.free_memory()
            }
        };
        MemoryEstimate::check_rank(config, recipe, own, self.ranks, free)?;
        let Leader { ranks, exchange, deadlines, identity, .. } = self;
        let connect: Connect = match self.reach {
            Reach::Children => {
                children(worker_command(std::env::args_os()), identity, device, exchange, deadlines, group)
            }
            Reach::Listener(listener) => Box::new(move || {
                let RankDeadlines { start, step } = deadlines;
                let nccl = || communicator(exchange);
                let led = rendezvous::lead(&listener, &identity, Vec::new(), start, step, nccl);
                connected(led, ranks)
            }),
        };
        let open = |config: &ModelConfig, recipe: &Recipe, flat: &[f32]| {
            engines::rank(own, ranks, config, recipe, flat)
        };
        let engine = DataParallel::open(config, recipe, flat, &open, connect)?;
        Trainer::from_engine(config, recipe, Box::new(engine))
    }
}

/// Starts the other ranks as processes of `program` on this machine, and connects them.
pub fn children(
    program: Vec<OsString>,
    identity: Identity,
    device: Device,
    exchange: RankExchange,
    deadlines: RankDeadlines,
    group: Arc<CommandGroup>,
) -> Connect {
    Box::new(move || {
        let led = lead_children(&program, &identity, device, exchange, deadlines, &group);
        connected(led, identity.ranks)
    })
}

fn connected(
    led: Result<nn::collective::Mesh, RankError>,
    ranks: usize,
) -> Result<Box<dyn Collective>, ModelError> {
    match led {
        Ok(mesh) => {
            tracing::info!(ranks, "all ranks are connected");
            Ok(Box::new(mesh))
        }
        Err(error) => Err(ModelError::Ranks { why: error_chain(&error) }),
    }
}

fn listen(address: &str) -> Result<TcpListener, RankError> {
    let listening = TcpListener::bind(address).and_then(|listener| {
        listener.set_nonblocking(true)?;
        Ok(listener)
    });
    listening.map_err(|source| RankError::Listen { address: address.into(), source })
}

/// Returns the command of a rank's process: the program, its arguments before `start`, then `worker`.
fn worker_command(arguments: impl IntoIterator<Item = OsString>) -> Vec<OsString> {
    let program = std::env::current_exe().map(OsString::from);
    let mut arguments = arguments.into_iter();
    let called = arguments.next().unwrap_or_default();
    let before = arguments.take_while(|argument| argument != "start");
    [program.unwrap_or(called)].into_iter().chain(before).chain(["worker".into()]).collect()
}

/// Input of a rank's process on standard input, which stays open as long as rank 0 lives.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Job {
    rank: usize,
    ranks: usize,
    leader: String,
    secret: [u8; 32],
    settings: String,
    device: Device,
    start_seconds: u64,
    step_seconds: u64,
}

fn lead_children(
    program: &[OsString],
    own: &Identity,
    device: Device,
    exchange: RankExchange,
    deadlines: RankDeadlines,
    group: &Arc<CommandGroup>,
) -> Result<nn::collective::Mesh, RankError> {
    let listener = listen("127.0.0.1:0")?;
    let broken = |source| RankError::Listen { address: "127.0.0.1".into(), source };
    let leader = listener.local_addr().map_err(broken)?.to_string();
    let mut processes = Vec::new();
    for rank in 1..own.ranks {
        let job = Job {
            rank,
            ranks: own.ranks,
            leader: leader.clone(),
            secret: own.secret,
            settings: own.settings.clone(),
            device: device_of(device, rank),
            start_seconds: deadlines.start.as_secs(),
            step_seconds: deadlines.step.as_secs(),
        };
        let failed = |source| RankError::Start { rank, source };
        let mut command = Command::new(&program[0]);
        command.args(&program[1..]).stdin(Stdio::piped());
        command.env("RAYON_NUM_THREADS", threads(own.ranks).to_string());
        let mut process = Process::start(command, group).map_err(failed)?;
        let line = serde_json::to_string(&job).expect("a job is numbers and text") + "\n";
        if let Some(stdin) = process.stdin() {
            // If it has ended, its output has the reason.
            let _ = stdin.write_all(line.as_bytes());
        }
        processes.push(process);
    }
    rendezvous::lead(&listener, own, processes, deadlines.start, deadlines.step, || communicator(exchange))
}

/// Returns the number of threads of a rank on this machine.
fn threads(ranks: usize) -> usize {
    std::thread::available_parallelism().map_or(1, |cores| (cores.get() / ranks).max(1))
}

/// Runs the process of a rank that rank 0 started: serves it until it stops or ends.
///
/// # Errors
/// If the input is invalid, rank 0 cannot be reached or refuses this rank, or a computation fails.
pub async fn child() -> anyhow::Result<()> {
    let mut line = String::new();
    std::io::stdin().lock().read_line(&mut line).context("could not read the rank's job")?;
    let job: Job = serde_json::from_str(&line)
        .ok()
        .context("`worker` is started by `miner start --ranks N`, or by a launcher as `miner start`")?;
    daemon::program::exit_with_parent();
    let Job { rank, ranks, leader, secret, settings, device, start_seconds, step_seconds } = job;
    let deadlines =
        RankDeadlines { start: Duration::from_secs(start_seconds), step: Duration::from_secs(step_seconds) };
    let identity = identity(rank, ranks, secret, settings, device);
    let served = tokio::task::spawn_blocking(move || {
        let mesh = rendezvous::join(&leader, &identity, deadlines.start, deadlines.start, deadlines.step)?;
        let open = |config: &ModelConfig, recipe: &Recipe, flat: &[f32]| {
            engines::rank(device, ranks, config, recipe, flat)
        };
        Ok(engine::serve(Box::new(mesh), &open)?)
    });
    served.await.context("the rank's thread died")?
}

/// Runs a rank that a launcher started: serves rank 0, and reconnects after a failure, until rank 0 stops or is
/// unreachable.
///
/// # Errors
/// If rank 0 cannot be reached or refuses this rank.
pub async fn member(
    settings: &Settings,
    launched: &Launched,
    leader: &(String, u16),
    device: Device,
) -> anyhow::Result<()> {
    exchange(&settings.train, device)?;
    let secret = secret(&settings.train)?;
    let identity = identity(launched.rank, launched.ranks, secret, settings_digest(settings), device);
    let (address, deadlines) = (format!("{}:{}", leader.0, leader.1), deadlines(&settings.train));
    let ranks = launched.ranks;
    let device = device_of(device, launched.local_rank);
    tracing::info!(rank = launched.rank, ranks = launched.ranks, address, "serving rank 0");
    let leaving = Arc::new(AtomicBool::new(false));
    let told = leaving.clone();
    let mut served = tokio::task::spawn_blocking(move || {
        let mut reach = deadlines.start;
        loop {
            let mesh = rendezvous::join(&address, &identity, reach, deadlines.start, deadlines.step);
            match mesh {
                Ok(mesh) => {
                    tracing::info!("all ranks are connected");
                    let open = |config: &ModelConfig, recipe: &Recipe, flat: &[f32]| {
                        engines::rank(device, ranks, config, recipe, flat)
                    };
                    match engine::serve(Box::new(mesh), &open) {
                        Ok(()) => return Ok(()),
                        Err(_) if told.load(Ordering::Relaxed) => return Ok(()),
                        Err(error) => tracing::warn!(%error, "connecting to rank 0 anew"),
                    }
                    reach = GONE_AFTER;
                }
                Err(error @ RankError::Broken { .. } | error @ RankError::Missing { .. }) => {
                    tracing::warn!(error = error_chain(&error), "connecting to rank 0 anew");
                    reach = GONE_AFTER;
                    std::thread::sleep(Duration::from_millis(200));
                }
                Err(_) if told.load(Ordering::Relaxed) => return Ok(()),
                Err(error) => return Err(anyhow::Error::from(error)),
            }
        }
    });
    let mut stop = StopSignal::listen();
    tokio::select! {
        done = &mut served => return done.context("the rank's thread died")?,
        () = stop.told() => {}
    }
    leaving.store(true, Ordering::Relaxed);
    match tokio::time::timeout(STOP_WITHIN, served).await {
        Ok(done) => done.context("the rank's thread died")?,
        Err(_) => Ok(()),
    }
}

/// Returns whether an error, or one of its causes, is a failure of ranks.
pub(crate) fn is_of_ranks(error: &(dyn std::error::Error + 'static)) -> bool {
    let mut next = Some(error);
    while let Some(cause) = next {
        let io = cause.downcast_ref::<std::io::Error>().and_then(std::io::Error::get_ref);
        let model = io.and_then(|inner| inner.downcast_ref()).or_else(|| cause.downcast_ref());
        if matches!(model, Some(ModelError::Ranks { .. })) {
            return true;
        }
        next = cause.source();
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    fn placed(train: &str, flag: Option<usize>, variables: &[(&str, &str)]) -> Result<Place, String> {
        let train: TrainFile = toml::from_str(train).map_err(|error| error.to_string())?;
        let variable =
            |name: &str| variables.iter().find(|(of, _)| *of == name).map(|(_, value)| value.to_string());
        place(&train, flag, None, variable).map_err(|error| error.to_string())
    }

    #[test]
    fn settings_flag_and_launcher_say_which_rank_this_is() {
        let slurm = [("SLURM_PROCID", "1"), ("SLURM_NTASKS", "4"), ("SLURM_JOB_NODELIST", "a[1-2]")];
        let alone = [("SLURM_PROCID", "0"), ("SLURM_NTASKS", "1")];
        let mpi = [("OMPI_COMM_WORLD_RANK", "1"), ("OMPI_COMM_WORLD_SIZE", "2")];
        assert_eq!(placed("", None, &[]), Ok(Place::Alone));
        assert_eq!(placed("ranks = 4", None, &[]), Ok(Place::Parent { ranks: 4 }));
        assert_eq!(placed("ranks = 4", Some(2), &[]), Ok(Place::Parent { ranks: 2 }));
        assert_eq!(placed("ranks = 4", Some(1), &slurm), Ok(Place::Alone), "the launcher is ignored");
        assert_eq!(placed("ranks = 2", None, &alone), Ok(Place::Parent { ranks: 2 }), "a job of one task");
        for train in ["", "ranks = 4"] {
            let Ok(Place::Launched { launched, leader }) = placed(train, None, &slurm) else { panic!() };
            assert_eq!((launched.rank, launched.ranks), (1, 4));
            assert_eq!(leader, ("a1".to_owned(), launcher::PORT));
        }
        let Ok(Place::Launched { leader, .. }) = placed("rank_address = \"[::1]:7\"", None, &mpi) else {
            panic!()
        };
        assert_eq!(leader, ("[::1]".to_owned(), 7));
        let job = [("JOB_COMPLETION_INDEX", "3"), ("WORLD_SIZE", "4")];
        let at = "rank_address = \"seat-0.seat:7\"";
        for flag in [None, Some(4)] {
            let Ok(Place::Launched { launched, leader }) = placed(at, flag, &job) else { panic!() };
            assert_eq!((launched.rank, launched.ranks), (3, 4));
            assert_eq!(leader, ("seat-0.seat".to_owned(), 7));
        }
        assert_eq!(placed("", None, &job[..1]), Ok(Place::Alone), "a pod is a seat of its own");
        assert_eq!(placed("", Some(8), &job[..1]), Ok(Place::Parent { ranks: 8 }));
        for (train, flag, variables, says) in [
            ("ranks = 0", None, &slurm[..], "may be from 1 to 1024"),
            ("", Some(1025), &[], "may be from 1 to 1024"),
            ("ranks = 8", None, &slurm, "`ranks` is 8, but SLURM started 4"),
            ("", None, &mpi, "set `rank_address = \"HOST:PORT\"`"),
            ("rank_address = \"a\"", None, &mpi, "\"a\": write the address and port"),
            ("rank_address = \":7\"", None, &mpi, "write the address and port"),
            ("rank_address = \"a:0\"", None, &mpi, "write the address and port"),
            ("", None, &[("RANK", "1")], "WORLD_SIZE is not"),
            (at, Some(8), &job, "`ranks` is 8, but an indexed Job of Kubernetes started 4"),
            ("", None, &job, "an indexed Job of Kubernetes does not say where rank 0 runs"),
        ] {
            let refused = placed(train, flag, variables).unwrap_err();
            assert!(refused.contains(says), "{refused}");
        }
    }

    #[test]
    fn nccl_is_refused_where_it_cannot_be_and_tcp_is_the_default() {
        let exchanged = |train: &str, device: &str| {
            let train: TrainFile = toml::from_str(train).map_err(|error| error.to_string())?;
            exchange(&train, device.parse().unwrap()).map_err(|error| error.to_string())
        };
        for device in ["cpu", "cuda:0", "vulkan,f32"] {
            assert_eq!(exchanged("", device), Ok(RankExchange::Tcp));
            assert_eq!(exchanged("rank_exchange = \"tcp\"", device), Ok(RankExchange::Tcp));
        }
        for (device, says) in [
            ("cpu", "ranks on cpu cannot exchange by NCCL: it is for GPUs of NVIDIA"),
            ("vulkan", "it is for GPUs of NVIDIA"),
            ("cuda:0,burn", "use the fused engine"),
        ] {
            let refused = exchanged("rank_exchange = \"nccl\"", device).unwrap_err();
            assert!(refused.contains(says), "{refused}");
        }
        assert!(exchanged("rank_exchange = \"mpi\"", "cpu").unwrap_err().contains("unknown variant"));
    }

    #[test]
    fn all_gpus_are_a_rank_each_unless_a_launcher_or_a_setting_says_otherwise() {
        let four = |flag, slurm: bool| {
            let variable = |name: &str| match name {
                "SLURM_PROCID" if slurm => Some("1".to_owned()),
                "SLURM_NTASKS" if slurm => Some("2".to_owned()),
                "SLURM_JOB_NODELIST" if slurm => Some("a".to_owned()),
                _ => None,
            };
            place(&TrainFile::default(), flag, Some(4), variable).unwrap()
        };
        assert_eq!(four(None, false), Place::Parent { ranks: 4 });
        assert_eq!(four(Some(2), false), Place::Parent { ranks: 2 });
        assert_eq!(four(Some(1), false), Place::Alone);
        assert!(matches!(four(None, true), Place::Launched { launched, .. } if launched.ranks == 2));
        assert_eq!(place(&TrainFile::default(), None, Some(1), |_| None).unwrap(), Place::Alone);

        let settings = |device: &str| {
            let directory = tempfile::tempdir().unwrap();
            let config = directory.path().join("miner.toml");
            std::fs::write(&config, format!("key = \"//Alice\"\ndevice = {device}\n")).unwrap();
            Settings::read(&daemon::Flags { config: Some(config), ..Default::default() }).unwrap()
        };
        let (device, gpus) = super::device(&settings("\"cuda:1,f32\"")).unwrap();
        assert_eq!((device.to_string().as_str(), gpus), ("cuda:1,f32", None));
        if cfg!(feature = "vulkan") {
            // A software Vulkan driver (lavapipe) counts as a GPU.
            for text in ["\"vulkan:all,f32\"", "{ name = \"vulkan:all\", precision = \"f32\" }"] {
                let (device, gpus) = super::device(&settings(text)).unwrap();
                assert_eq!(device.to_string(), "vulkan,f32");
                assert!(0 < gpus.unwrap());
            }
        } else {
            let refused = super::device(&settings("\"cuda:all\"")).unwrap_err().to_string();
            assert!(refused.contains("built without CUDA") || cfg!(feature = "cuda"), "{refused}");
        }
        for wrong in ["cpu:all", "gpu:all", "cuda:0:all"] {
            let refused = super::device(&settings(&format!("{wrong:?}"))).unwrap_err();
            assert!(daemon::error_chain(&*refused).contains("is no device"), "{refused}");
        }
    }

    #[test]
    fn each_rank_of_a_machine_has_the_next_gpu_unless_it_sees_one() {
        let own = |device: &str, rank, count| own_device(device.parse().unwrap(), rank, count).to_string();
        assert_eq!(own("cuda:0,fused", 3, 8), "cuda:3,fused");
        assert_eq!(own("cuda:4", 3, 8), "cuda:7");
        assert_eq!(own("cuda:0", 3, 1), "cuda:0", "CUDA_VISIBLE_DEVICES of its own");
        assert_eq!(own("vulkan", 1, 2), "vulkan:1");
        assert_eq!(own("vulkan:2", 1, 4), "vulkan:3");
        assert_eq!(own("vulkan", 3, 1), "vulkan");
        assert_eq!(own("cpu", 3, 1), "cpu");
        assert_eq!(own("cuda:65535", 3, 8), "cuda:65535", "which is not there");
    }

    #[test]
    fn a_secret_is_long_enough() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("secret");
        let train = TrainFile { rank_secret_file: Some(path.clone()), ..TrainFile::default() };
        assert!(secret(&train).unwrap_err().to_string().contains("could not read"));
        std::fs::write(&path, "short\n").unwrap();
        assert!(secret(&train).unwrap_err().to_string().contains("has 5 bytes"));
        std::fs::write(&path, "0123456789abcdef\n").unwrap();
        let one = secret(&train).unwrap();
        std::fs::write(&path, "0123456789abcdeg\n").unwrap();
        assert_ne!(one, secret(&train).unwrap());
    }

    #[test]
    fn a_rank_is_the_same_program_under_another_command() {
        let command = |arguments: &[&str]| {
            let command = worker_command(arguments.iter().map(OsString::from));
            command[1..].iter().map(|argument| argument.to_string_lossy().into_owned()).collect::<Vec<_>>()
        };
        assert_eq!(command(&["miner", "start", "--ranks", "2"]), ["worker"]);
        assert_eq!(command(&["localnet", "role", "miner", "start", "x"]), ["role", "miner", "worker"]);
    }

    #[test]
    fn failed_ranks_are_found_below_the_errors_of_files() {
        let ranks = || ModelError::Ranks { why: "x".into() };
        assert!(is_of_ranks(&ranks()));
        assert!(is_of_ranks(&crate::error::RunError::Trainer(ranks())));
        assert!(is_of_ranks(&std::io::Error::other(ranks())));
        assert!(!is_of_ranks(&std::io::Error::other("x")));
        assert!(!is_of_ranks(&ModelError::NotForTraining));
    }
}
