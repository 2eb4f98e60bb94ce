//! What the tests of whole networks share: a network in this process's hands, and the program as a person runs it.

use chain_client::Chain;
use clap::Parser as _;
use localnet::{
    defaults,
    layout::{LockedDirectory, Plan},
    network::Network,
    observe::Observer,
    process::last_lines,
    seats::Seats,
    setup::{ChainWanted, Wanted, set_up},
};
use mettle::output::Output;
use protocol::{Block, RunParams, Schedule, Uid};
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

pub const PROGRAM: &str = env!("CARGO_BIN_EXE_localnet");
/// How long something may take that must happen; far longer than it does, even on a busy machine.
const AT_LAST: Duration = Duration::from_secs(240);
const LOOK_EVERY: Duration = Duration::from_millis(250);

/// A network is as much as this machine can carry.
pub async fn one_at_a_time() -> tokio::sync::MutexGuard<'static, ()> {
    static ALONE: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());
    ALONE.lock().await
}

/// A network of processes, started and killed one by one.
pub struct Net {
    // First, so that the processes are gone before their directory is.
    pub network: Network,
    pub plan: Plan,
    pub chain: Arc<dyn Chain>,
    pub observer: Observer,
    pub claimed: LockedDirectory,
    at_last: Duration,
    _home: tempfile::TempDir,
}

/// Quick windows with little work, and room for everyone's steps on a busy machine.
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

/// The same, with attestations and votes hidden until their deadline.
pub fn hidden_params(finality_lag: u32) -> RunParams {
    let open = params(finality_lag);
    // As long as the other steps: what is revealed is sent once the deadline is final, and included a block or two later.
    let hidden_blocks = 4 + finality_lag;
    let Schedule { start, commit_by, reveal_by, attest_by, .. } = open.schedule;
    let vote_by = attest_by + 2 * hidden_blocks + 2;
    let blocks_per_window = vote_by + 2 * hidden_blocks;
    let schedule = Schedule { start, blocks_per_window, commit_by, reveal_by, attest_by, vote_by };
    RunParams { schedule, hidden_blocks, ..open }
}

impl Net {
    /// Sets a network up on the development chain and starts all of it.
    pub async fn up(miners: u16, validators: u16) -> Net {
        Net::up_with(miners, validators, params).await
    }

    /// The same, in a run with these parameters for a finality lag.
    pub async fn up_with(miners: u16, validators: u16, params: fn(u32) -> RunParams) -> Net {
        Net::on(ChainWanted::Embedded { block_millis: 200 }, miners, validators, params(2), 2).await
    }

    /// The same, with these seats as `up --seats` takes them, on a chain whose blocks are final at once.
    pub async fn up_of(seats: &str, block_millis: u64, params: RunParams) -> Net {
        let seats = seats.parse().expect("a list of seats");
        Net::sit(ChainWanted::Embedded { block_millis }, seats, params, 0).await
    }

    /// The same on four real nodes.
    pub async fn on_nodes(binary: PathBuf, miners: u16, validators: u16) -> Net {
        let lag = defaults::NODE_FINALITY_LAG;
        let params = RunParams { schedule: defaults::schedule(6, lag), ..params(lag) };
        let mut net = Net::on(ChainWanted::Nodes { binary }, miners, validators, params, lag).await;
        net.at_last = AT_LAST * 4;
        net
    }

    async fn on(
        chain: ChainWanted,
        miners: u16,
        validators: u16,
        params: RunParams,
        finality_lag: u32,
    ) -> Net {
        Net::sit(chain, Seats::honest(miners, validators), params, finality_lag).await
    }

    /// The same, with all of it to be chosen.
    pub async fn sit(chain: ChainWanted, seats: Seats, params: RunParams, finality_lag: u32) -> Net {
        let home = tempfile::tempdir().expect("a directory");
        let mut claimed = LockedDirectory::lock(&home.path().join("net")).expect("a new directory");
        let mut network = Network::new(claimed.path(), PROGRAM.into());
        let wanted = Wanted {
            seats,
            chain,
            finality_lag,
            chain_port: None,
            store_port: None,
            store_admin: true,
            dataset: localnet::up::prepare(None).await.expect("the default text is there"),
            params,
            spec: defaults::spec(),
        };
        let (plan, chain) = set_up(&mut claimed, &mut network, &wanted, &mut |what| println!("{what}"))
            .await
            .expect("the network is set up");
        for seat in &plan.seats {
            network.start_seat(&plan, seat).expect("the seat's process starts");
        }
        let observer = network.observer(&plan, &*chain).await.expect("our chain answers");
        Net { network, plan, chain, observer, claimed, at_last: AT_LAST, _home: home }
    }

    pub fn directory(&self) -> PathBuf {
        self.claimed.path().to_owned()
    }

    pub fn uid(&self, name: &str) -> Uid {
        let seat = self.plan.seats.iter().find(|seat| seat.name == name);
        Uid(seat.expect("a seat of this network").uid)
    }

    /// Starts a killed seat again.
    pub fn start(&mut self, name: &str) {
        let seat = self.plan.seats.iter().find(|seat| seat.name == name);
        self.network.start_seat(&self.plan, seat.expect("a seat of this network")).expect("it starts");
    }

    /// After a seat was added.
    pub async fn observe_again(&mut self) {
        self.observer = self.network.observer(&self.plan, &*self.chain).await.expect("our chain answers");
        self.observer.look(&*self.chain).await.expect("our chain answers");
    }

    /// Looks at the network until `done`; fails if a process ends by itself meanwhile.
    pub async fn until(&mut self, what: &str, done: impl Fn(&Observer) -> bool) {
        let started = Instant::now();
        loop {
            if let Some(died) = self.network.died().expect("our children can be watched") {
                panic!("while waiting until {what}: {died}");
            }
            // A chain that is busy answers later.
            let looked = self.observer.look(&*self.chain).await;
            if looked.is_ok() && done(&self.observer) {
                println!("{:>6.1} s: {what}", started.elapsed().as_secs_f64());
                return;
            }
            assert!(
                started.elapsed() < self.at_last,
                "it never came that {what}.\noutcomes {:?}\nmissed {:?}\nfaults {:?}\nlast look {looked:?}{}",
                self.observer.outcomes,
                self.observer.missed,
                self.observer.faults,
                self.last_lines()
            );
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }

    /// The end of every log.
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

    /// Orders that `bucket` goes wrong from now on.
    pub async fn inject(&self, bucket: &str, faults: &Faults) {
        let (port, token) = self.plan.store_admin.as_ref().expect("asked for in `up`");
        let address = SocketAddr::from(([127, 0, 0, 1], *port));
        admin::inject(address, token, bucket, faults).await.expect("the store takes orders");
    }

    pub async fn down(mut self) {
        self.network.stop().await;
    }
}

/// How a program ended, and what it said.
pub struct Ended {
    pub success: bool,
    /// The exit code, unless a signal ended it.
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
    let code = done.as_ref().map_or_else(node::exit::code, |()| 0);
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    Ended { success: done.is_ok(), code: Some(code.into()), out: text(out), err: text(err) }
}

/// One `localnet up`, while it runs.
pub struct Session {
    child: tokio::process::Child,
    said: Arc<Mutex<String>>,
    complained: Arc<Mutex<String>>,
    readers: Vec<tokio::task::JoinHandle<()>>,
}

impl Session {
    /// A small, quick network in `directory`.
    pub fn up(directory: &Path, more: &[&str]) -> Session {
        let quick = ["--block-millis", "200", "--train-blocks", "10"];
        Session::up_as(directory, &[&quick[..], more].concat())
    }

    /// A small network in `directory`, whatever its chain.
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

    /// Until `count` windows are fixed: each has its line. So has whatever was missed or held against a seat in a window, which
    /// need not be fixed then.
    pub async fn until_fixed(&mut self, count: usize) {
        let fixed = |said: &str| said.lines().filter(|line| line.contains("held-out loss")).count();
        self.until(&format!("{count} windows are fixed"), |said| count <= fixed(said)).await;
    }

    async fn until(&mut self, what: &str, done: impl Fn(&str) -> bool) {
        let started = Instant::now();
        while !done(&text(&self.said)) {
            let ended = self.child.try_wait().expect("our child can be watched");
            let lost = ended.is_some() || AT_LAST < started.elapsed();
            assert!(!lost, "it never came that {what}\n{}\n{}", text(&self.said), text(&self.complained));
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }

    fn id(&self) -> u32 {
        self.child.id().expect("it runs")
    }

    /// Process ids of the network's processes.
    pub fn children(&self) -> Vec<u32> {
        children_of(self.id()).into_iter().map(|(id, _)| id).collect()
    }

    /// Kills the process of this role, as a power cut would.
    pub fn kill_child(&self, role: &str) {
        let wanted = format!("role {role} ");
        let found = children_of(self.id()).into_iter().find(|(_, line)| line.contains(&wanted));
        let (id, _) = found.unwrap_or_else(|| panic!("no {role} among the children"));
        signal("KILL", id);
    }

    /// Ctrl-C.
    pub fn interrupt(&self) {
        signal("INT", self.id());
    }

    pub async fn ended(mut self) -> Ended {
        let status = tokio::time::timeout(AT_LAST, self.child.wait()).await;
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

/// Process ids and command lines of the children of `parent`.
fn children_of(parent: u32) -> Vec<(u32, String)> {
    let mut children = Vec::new();
    for entry in std::fs::read_dir("/proc").expect("Linux lists its processes here").flatten() {
        let Some(id) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
        // A process may be gone by now.
        if state_of(id).is_some_and(|(_, of)| of == parent) {
            let line = std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
            children.push((id, String::from_utf8_lossy(&line).replace('\0', " ")));
        }
    }
    children
}

/// State and parent of a process that is listed.
fn state_of(id: u32) -> Option<(String, u32)> {
    let stat = std::fs::read_to_string(format!("/proc/{id}/stat")).ok()?;
    // Behind the program's name, which may hold anything.
    let mut words = stat.rsplit_once(')')?.1.split_whitespace();
    Some((words.next()?.to_owned(), words.next()?.parse().ok()?))
}

fn signal(signal: &str, id: u32) {
    let done = Command::new("sh").arg("-c").arg(format!("kill -{signal} {id}")).status();
    assert!(done.expect("sh is everywhere").success(), "{id} takes no {signal}");
}

/// Whether a process runs.
pub fn lives(id: u32) -> bool {
    state_of(id).is_some_and(|(state, _)| state != "Z")
}
