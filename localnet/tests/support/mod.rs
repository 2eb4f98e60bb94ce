//! A network whose processes a test starts and kills, and `localnet` as a user runs it: for the tests of whole
//! networks, which [`harness`] runs.

pub mod harness;

use chain_client::Chain;
use clap::Parser as _;
use localnet::{
    defaults,
    layout::{LockedDirectory, Plan},
    network::Network,
    process::last_lines,
    seats::Seats,
    setup::{ChainWanted, LOOPBACK, Wanted, Work, set_up},
};
use mettle::output::Output;
use protocol::{Block, RunParams, Schedule, Uid, Window, view::Outcome};
use s3_server::{Faults, admin};
use std::{
    ffi::OsStr,
    fmt::Write as _,
    net::SocketAddr,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};
use watch::observe::Observer;

pub const PROGRAM: &str = env!("CARGO_BIN_EXE_localnet");
/// Maximum time of a step, far above its duration even on a busy machine.
const STEP_MAX: Duration = Duration::from_secs(240);
/// Interval between reads. It is less than two of the shortest blocks, so that a phase of few blocks is not missed.
const READ_EVERY: Duration = Duration::from_millis(100);

/// A network of processes, started and killed one by one.
pub struct Net {
    pub network: Network,
    pub plan: Plan,
    pub chain: Arc<dyn Chain>,
    pub observer: Observer,
    pub locked: LockedDirectory,
    step_max: Duration,
    /// Name of the network in the output.
    name: String,
}

/// The development chain with a block every 200 ms.
pub const BY_CLOCK: ChainWanted = ChainWanted::Embedded { block_millis: 200, when_idle: false };
/// The development chain with a block as soon as all processes of the network wait for it. Some of their timers are
/// longer than the shortest time between two blocks, but none is longer than a phase of [`params`].
pub const WHEN_IDLE: ChainWanted = ChainWanted::Embedded { block_millis: 50, when_idle: true };

/// The same for `localnet up`. A phase of four blocks is longer than a validator's last attempt to fetch.
pub const UP_WHEN_IDLE: [&str; 5] = ["--when-idle", "--block-millis", "100", "--finality-lag", "1"];

pub fn merged(outcome: &Outcome) -> bool {
    matches!(outcome, Outcome::Merged(_))
}

/// Returns the last finalised window.
pub fn last_finalised(seen: &Observer) -> u32 {
    seen.outcomes.keys().next_back().map_or(0, |window| window.0)
}

/// Returns the number of windows from `from` on that were merged.
pub fn merged_since(seen: &Observer, from: u32) -> usize {
    seen.outcomes.range(Window(from)..).filter(|(_, outcome)| merged(outcome)).count()
}

/// Returns whether `name` holds the model of window `from` or of a later one.
pub fn holds_since(seen: &Observer, name: &str, from: u32) -> bool {
    seen.held.get(name).is_some_and(|held| held.range(Window(from)..).next().is_some())
}

/// Returns parameters with short windows, little work, and time for every step on a busy machine.
pub fn params(finality_lag: u32) -> RunParams {
    let (commit_by, step) = (10 + finality_lag, 5 + finality_lag);
    RunParams {
        schedule: Schedule {
            start: Block(0),
            blocks_per_window: commit_by + 4 * step,
            commit_by,
            reveal_by: commit_by + step,
            attest_by: commit_by + 2 * step,
            vote_by: commit_by + 3 * step,
        },
        epoch_windows: 1,
        sequences_per_seat: 64,
        evaluation_sequences: 8,
        checkpoint_windows: 2,
        ..defaults::params(finality_lag)
    }
}

/// Returns the same parameters, with attestations and votes hidden until their deadline.
pub fn hidden_params(finality_lag: u32) -> RunParams {
    let open = params(finality_lag);
    // As long as the other steps: reveals are sent once the deadline is final, and included a block or two later.
    let hidden_blocks = 4 + finality_lag;
    let Schedule { start, commit_by, reveal_by, attest_by, .. } = open.schedule;
    let vote_by = attest_by + 2 * hidden_blocks + 2;
    let blocks_per_window = vote_by + 2 * hidden_blocks;
    let schedule = Schedule { start, blocks_per_window, commit_by, reveal_by, attest_by, vote_by };
    RunParams { schedule, hidden_blocks, ..open }
}

/// Returns a network of these seats on free ports of this machine.
pub async fn wanted(chain: ChainWanted, seats: Seats, params: RunParams, finality_lag: u32) -> Wanted {
    Wanted {
        seats,
        device: None,
        nat: false,
        host: LOOPBACK,
        chain,
        finality_lag,
        chain_port: None,
        store_port: None,
        held_out_sequences: 64,
        work: Work {
            dataset: localnet::up::prepare(None).await.expect("the default text is there"),
            params,
            spec: defaults::spec(),
        },
    }
}

impl Net {
    /// Sets a network up in `home`, on the development chain, and starts all of it.
    pub async fn up(home: &Path, miners: u16, validators: u16) -> Net {
        Net::up_with(home, miners, validators, params).await
    }

    /// Starts the same network, with the parameters that `params` gives for a finality lag.
    pub async fn up_with(home: &Path, miners: u16, validators: u16, params: fn(u32) -> RunParams) -> Net {
        Net::start_with(home, WHEN_IDLE, Seats::honest(miners, validators), params(2), 2).await
    }

    /// Starts the same network, with every second miner as behind a home router.
    pub async fn up_with_nat(home: &Path, miners: u16, validators: u16) -> Net {
        let honest = Seats::honest(miners, validators);
        let wanted = Wanted { nat: true, ..wanted(WHEN_IDLE, honest, params(2), 2).await };
        let mut net = Net::set_up(home, &wanted).await;
        net.start_seats();
        net
    }

    /// Starts the same network, with these seats as `up --seats` parses them, on a chain whose blocks are final
    /// immediately.
    pub async fn up_of(home: &Path, seats: &str, params: RunParams) -> Net {
        let seats = seats.parse().expect("a list of seats");
        Net::start_with(home, WHEN_IDLE, seats, params, 0).await
    }

    /// Starts the same network, on four real nodes.
    pub async fn on_nodes(home: &Path, binary: PathBuf, miners: u16, validators: u16) -> Net {
        let lag = defaults::NODE_FINALITY_LAG;
        let params = RunParams { schedule: defaults::schedule(6, lag), ..params(lag) };
        let (chain, seats) = (ChainWanted::Nodes { binary }, Seats::honest(miners, validators));
        let mut net = Net::start_with(home, chain, seats, params, lag).await;
        net.step_max = STEP_MAX * 4;
        net
    }

    /// Starts the same network, on any chain with any seats and parameters.
    pub async fn start_with(
        home: &Path,
        chain: ChainWanted,
        seats: Seats,
        params: RunParams,
        finality_lag: u32,
    ) -> Net {
        let mut net = Net::set_up(home, &wanted(chain, seats, params, finality_lag).await).await;
        net.start_seats();
        net
    }

    /// Sets up chain, store, run and seats, without the processes of the seats.
    pub async fn set_up(home: &Path, wanted: &Wanted) -> Net {
        let mut locked = LockedDirectory::lock(&home.join("net")).expect("a new directory");
        let mut network = Network::new(locked.path(), PROGRAM.into());
        let name = home.file_name().expect("a directory").display().to_string();
        let (plan, chain) = set_up(&mut locked, &mut network, wanted, &mut |what| println!("{name}: {what}"))
            .await
            .expect("the network is set up");
        let observer = network.observer(&plan, &*chain).await.expect("our chain answers");
        Net { network, plan, chain, observer, locked, step_max: STEP_MAX, name }
    }

    pub fn start_seats(&mut self) {
        for seat in &self.plan.seats {
            self.network.start_seat(&self.plan, seat).expect("the seat's process starts");
        }
    }

    /// Returns other processes on the same chain, which follow `plan`.
    pub async fn with(&self, network: Network, plan: Plan) -> Net {
        let observer = network.observer(&plan, &*self.chain).await.expect("our chain answers");
        let locked = LockedDirectory::lock(&network.directory.join("net")).expect("a new directory");
        let (chain, name) = (self.chain.clone(), self.name.clone());
        Net { network, plan, chain, observer, locked, step_max: self.step_max, name }
    }

    /// Undoes the effects of a test, whether it passed or failed: restarts dead processes, ends faults, and waits
    /// until a window is merged and every node holds the model after it.
    pub async fn restore(&mut self) {
        while let Some(died) = self.network.died().expect("our children can be watched") {
            // The process has ended already; this forgets it.
            let _ = self.network.kill(&died.name).await;
        }
        if !self.network.runs("store") {
            self.network.start_store(&self.plan).await.expect("the store starts again");
        }
        let seats = self.plan.seats.iter().map(|seat| (seat.name.clone(), seat.bucketless));
        for (name, bucketless) in seats.collect::<Vec<_>>() {
            if !bucketless {
                self.inject(&name, &Faults::default()).await;
            }
            if !self.network.runs(&name) {
                self.start(&name);
            }
        }
        self.observer.look(&*self.chain).await.expect("our chain answers");
        let (from, seats) = (last_finalised(&self.observer), self.plan.seats.len());
        self.until("a window is merged and every node holds the model after it", |seen| {
            let last = seen.outcomes.range(Window(from)..).rfind(|(_, outcome)| merged(outcome));
            last.is_some_and(|(window, _)| {
                seen.held.len() == seats && seen.held.keys().all(|name| holds_since(seen, name, window.0))
            })
        })
        .await;
    }

    pub fn directory(&self) -> PathBuf {
        self.locked.path().to_owned()
    }

    pub fn uid(&self, name: &str) -> Uid {
        let seat = self.plan.seats.iter().find(|seat| seat.name == name);
        Uid(seat.expect("a seat of this network").uid)
    }

    /// Restarts a killed seat.
    pub fn start(&mut self, name: &str) {
        let seat = self.plan.seats.iter().find(|seat| seat.name == name);
        self.network.start_seat(&self.plan, seat.expect("a seat of this network")).expect("it starts");
    }

    /// Replaces the observer after a seat was added.
    pub async fn observe_again(&mut self) {
        self.observer = self.network.observer(&self.plan, &*self.chain).await.expect("our chain answers");
        self.observer.look(&*self.chain).await.expect("our chain answers");
    }

    /// Reads the state of the network until `done`. Fails if a process ends by itself.
    pub async fn until(&mut self, what: &str, done: impl Fn(&Observer) -> bool) {
        let started = Instant::now();
        loop {
            if let Some(died) = self.network.died().expect("our children can be watched") {
                panic!("while waiting until {what}: {died}");
            }
            // A busy chain answers later.
            let looked = self.observer.look(&*self.chain).await;
            if looked.is_ok() && done(&self.observer) {
                println!("{}: {:.1} s until {what}", self.name, started.elapsed().as_secs_f64());
                return;
            }
            assert!(
                started.elapsed() < self.step_max,
                "it never came that {what}.\noutcomes {:?}\nmissed {:?}\nfaults {:?}\nlast look {looked:?}{}",
                self.observer.outcomes,
                self.observer.missed,
                self.observer.faults,
                self.last_lines()
            );
            tokio::time::sleep(READ_EVERY).await;
        }
    }

    /// Returns the end of every log.
    pub fn last_lines(&self) -> String {
        let bases = ["chain", "node-0", "node-1", "node-2", "node-3", "store"];
        let names = bases.into_iter().filter(|name| self.network.log_of(name).exists());
        let names = names.chain(self.plan.seats.iter().map(|seat| &*seat.name));
        names.fold(String::new(), |mut all, name| {
            let lines = last_lines(&self.network.log_of(name), 8);
            write!(all, "\n--- {name}\n{lines}").expect("writing to a string cannot fail");
            all
        })
    }

    /// Replaces the faults of `bucket`.
    pub async fn inject(&self, bucket: &str, faults: &Faults) {
        let (port, token) = self.plan.store_admin.as_ref().expect("the store has an admin port");
        let address = SocketAddr::from(([127, 0, 0, 1], *port));
        admin::inject(address, token, bucket, faults).await.expect("the store answers");
    }

    pub async fn down(mut self) {
        self.network.stop().await;
    }
}

/// Exit code and output of a program.
pub struct Ended {
    pub success: bool,
    /// Exit code, unless a signal ended the program.
    pub code: Option<i32>,
    pub out: String,
    pub err: String,
}

impl Ended {
    pub fn all(&self) -> String {
        format!("ended well: {}\n--- output\n{}\n--- errors\n{}", self.success, self.out, self.err)
    }
}

/// Runs `localnet` to its end.
pub fn localnet(arguments: impl IntoIterator<Item = impl AsRef<OsStr>>) -> Ended {
    let output = Command::new(PROGRAM)
        .args(arguments)
        .stdin(Stdio::null())
        .output()
        .expect("the program is built and starts");
    Ended {
        success: output.status.success(),
        code: output.status.code(),
        out: String::from_utf8_lossy(&output.stdout).into_owned(),
        err: String::from_utf8_lossy(&output.stderr).into_owned(),
    }
}

/// Runs `mettle` with these arguments, in this process.
pub fn mettle(arguments: impl IntoIterator<Item = impl AsRef<OsStr>>) -> Ended {
    let words = arguments.into_iter().map(|word| word.as_ref().to_owned());
    let cli = mettle::cli::Cli::parse_from(std::iter::once("mettle".into()).chain(words));
    let (mut out, mut err) = (Vec::new(), Vec::new());
    let mut ask = || Ok(None);
    let mut output = Output::new(cli.json(), &mut out, &mut err, &mut ask);
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().expect("a runtime");
    let done = runtime.block_on(cli.execute(&mut output));
    output.finish(&done).expect("memory takes what is written");
    if let Err(error) = &done {
        err.extend(format!("Error: {error:#}").into_bytes());
    }
    let code = done.as_ref().map_or_else(daemon::exit::code, |()| 0);
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    Ended { success: done.is_ok(), code: Some(code.into()), out: text(out), err: text(err) }
}

/// A running `localnet up`.
pub struct Session {
    child: tokio::process::Child,
    said: Arc<Mutex<String>>,
    complained: Arc<Mutex<String>>,
    readers: Vec<tokio::task::JoinHandle<()>>,
}

impl Session {
    /// Starts a small, quick network in `directory`.
    pub fn up(directory: &Path, more: &[&str]) -> Session {
        let quick = ["--train-blocks", "10"];
        Session::up_as(directory, &[&UP_WHEN_IDLE[..], &quick[..], more].concat())
    }

    /// Starts a small network in `directory`, on any chain.
    pub fn up_as(directory: &Path, more: &[&str]) -> Session {
        let small = ["--plain", "--miners", "2"];
        let mut child = tokio::process::Command::new(PROGRAM)
            .args(["up", "--dir"])
            .arg(directory)
            .args(small)
            .args(more)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .expect("the program is built and starts");
        let (said, complained) = (Arc::default(), Arc::default());
        let readers = vec![
            read(child.stdout.take().expect("piped"), &said),
            read(child.stderr.take().expect("piped"), &complained),
        ];
        Session { child, said, complained, readers }
    }

    pub async fn until_said(&mut self, words: &str) {
        self.until(&format!("it says `{words}`"), |said| said.contains(words)).await;
    }

    /// Waits until `count` windows are finalised and each has its line.
    pub async fn until_finalised(&mut self, count: usize) {
        let finalised = |said: &str| said.lines().filter(|line| line.contains("held-out loss")).count();
        self.until(&format!("{count} windows are finalised"), |said| count <= finalised(said)).await;
    }

    /// Waits until its standard error has `count` lines with these words.
    pub async fn until_complained(&mut self, words: &str, count: usize) {
        let complained = self.complained.clone();
        let lines = move |_: &str| text(&complained).lines().filter(|line| line.contains(words)).count();
        self.until(&format!("it complains of `{words}`"), |said| count <= lines(said)).await;
    }

    async fn until(&mut self, what: &str, done: impl Fn(&str) -> bool) {
        let started = Instant::now();
        while !done(&text(&self.said)) {
            let ended = self.child.try_wait().expect("our child can be watched");
            let lost = ended.is_some() || STEP_MAX < started.elapsed();
            assert!(!lost, "it never came that {what}\n{}\n{}", text(&self.said), text(&self.complained));
            tokio::time::sleep(READ_EVERY).await;
        }
    }

    fn id(&self) -> u32 {
        self.child.id().expect("it runs")
    }

    /// Returns the process ids of the network's processes.
    pub fn children(&self) -> Vec<u32> {
        children_of(self.id()).into_iter().map(|(id, _)| id).collect()
    }

    /// Kills the process of this role, like a power cut.
    pub fn kill_child(&self, role: &str) {
        let wanted = format!("role {role} ");
        let found = children_of(self.id()).into_iter().find(|(_, line)| line.contains(&wanted));
        let (id, _) = found.unwrap_or_else(|| panic!("no {role} among the children"));
        signal("KILL", id);
    }

    /// Sends Ctrl-C.
    pub fn interrupt(&self) {
        signal("INT", self.id());
    }

    pub async fn ended(mut self) -> Ended {
        let status = tokio::time::timeout(STEP_MAX, self.child.wait()).await;
        let status = status
            .unwrap_or_else(|_| panic!("it does not end\n{}\n{}", text(&self.said), text(&self.complained)));
        for reader in self.readers {
            reader.await.expect("the reader does not panic");
        }
        let status = status.expect("our child can be watched");
        Ended {
            success: status.success(),
            code: status.code(),
            out: text(&self.said),
            err: text(&self.complained),
        }
    }
}

fn text(shared: &Mutex<String>) -> String {
    shared.lock().expect("no reader panics").clone()
}

fn read(
    from: impl tokio::io::AsyncRead + Send + Unpin + 'static,
    into: &Arc<Mutex<String>>,
) -> tokio::task::JoinHandle<()> {
    use tokio::io::AsyncBufReadExt as _;
    let into = into.clone();
    tokio::spawn(async move {
        let mut lines = tokio::io::BufReader::new(from).lines();
        while let Ok(Some(line)) = lines.next_line().await {
            let mut text = into.lock().expect("no reader panics");
            text.push_str(&line);
            text.push('\n');
        }
    })
}

/// Returns process ids and command lines of the children of `parent`.
fn children_of(parent: u32) -> Vec<(u32, String)> {
    let mut children = Vec::new();
    for entry in std::fs::read_dir("/proc").expect("Linux lists its processes here").flatten() {
        let Some(id) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
        // A process may have ended by now.
        if state_of(id).is_some_and(|(_, of)| of == parent) {
            let line = std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
            children.push((id, String::from_utf8_lossy(&line).replace('\0', " ")));
        }
    }
    children
}

/// Returns state and parent of a process that is listed.
fn state_of(id: u32) -> Option<(String, u32)> {
    let stat = std::fs::read_to_string(format!("/proc/{id}/stat")).ok()?;
    // After the program's name, which may contain any character.
    let mut words = stat.rsplit_once(')')?.1.split_whitespace();
    Some((words.next()?.to_owned(), words.next()?.parse().ok()?))
}

fn signal(signal: &str, id: u32) {
    let done = Command::new("sh").arg("-c").arg(format!("kill -{signal} {id}")).status();
    assert!(done.expect("sh is everywhere").success(), "{id} takes no {signal}");
}

/// Returns whether a process runs.
pub fn lives(id: u32) -> bool {
    state_of(id).is_some_and(|(state, _)| state != "Z")
}
