//! The processes of a network: started in order, watched, stopped in order.

use crate::{
    layout::{ChainPlan, Plan, SeatPlan},
    nodes,
    process::{Process, Program, last_lines},
    restart::Restarts,
    seats::HONEST,
};
use anyhow::{Context as _, bail};
use chain_client::{Chain, SubxtChain};
use protocol::{Block, Role, RunId, Uid};
use std::{
    collections::BTreeMap,
    ffi::OsString,
    path::{Path, PathBuf},
    process::ExitStatus,
    sync::Arc,
    time::{Duration, Instant},
};
use watch::observe::Observer;

/// Maximum start time of chain and store.
const UP_WITHIN: Duration = Duration::from_secs(60);
/// Maximum start time of a real node, which first compiles its runtime and then has to agree with others on a block.
const NODE_UP_WITHIN: Duration = Duration::from_secs(240);

pub const CHAIN: &str = "chain";
pub const STORE: &str = "store";

/// A network's processes.
pub struct Network {
    pub directory: PathBuf,
    executable: PathBuf,
    /// Running processes, in the order of their start.
    processes: Vec<Process>,
    /// Seats whose process has ended and not been restarted.
    down: Vec<Down>,
    restarts: BTreeMap<String, Restarts>,
    /// Linux network namespace of each process, by the process's name.
    pub namespaces: BTreeMap<String, String>,
    /// Environment variables of processes started from now on.
    pub environment: Vec<(OsString, OsString)>,
}

/// A process that has ended and will be restarted.
struct Down {
    program: Program,
    again_at: Instant,
}

/// A process that ended by itself.
#[derive(Debug, thiserror::Error)]
#[error("{name} has ended ({status}). Its log is {}; its last lines:\n{last_lines}", log.display())]
pub struct Died {
    pub name: String,
    pub status: String,
    pub log: PathBuf,
    pub last_lines: String,
}

impl Died {
    fn of(program: &Program, status: ExitStatus) -> Died {
        let log = program.log.clone();
        let last_lines = last_lines(&log, 12);
        Died { name: program.name.clone(), status: status.to_string(), log, last_lines }
    }
}

impl Network {
    /// Returns a network without a process. `executable` is this program.
    pub fn new(directory: &Path, executable: PathBuf) -> Network {
        Network {
            directory: directory.to_owned(),
            executable,
            processes: Vec::new(),
            down: Vec::new(),
            restarts: BTreeMap::new(),
            namespaces: BTreeMap::new(),
            // Several nodes share the machine: with one thread each they compute as much and wait less.
            environment: vec![("RAYON_NUM_THREADS".into(), "1".into())],
        }
    }

    /// Starts the chain and waits until it answers and finalises blocks.
    ///
    /// # Errors
    /// If a process cannot be started, ends, or does not answer in time.
    pub async fn start_chain(&mut self, plan: &Plan) -> anyhow::Result<Arc<dyn Chain>> {
        match &plan.chain {
            ChainPlan::Embedded { port, block_millis, when_idle } => {
                let dir = self.directory.join(CHAIN).join("data");
                let mut arguments: Vec<OsString> = vec![
                    "--dir".into(),
                    dir.into_os_string(),
                    "--listen".into(),
                    format!("{}:{port}", plan.host).into(),
                    "--block-millis".into(),
                    block_millis.to_string().into(),
                    "--finality-lag".into(),
                    plan.finality_lag.to_string().into(),
                    "--with-parent".into(),
                ];
                if *when_idle {
                    arguments.extend(["--when-idle".into(), self.directory.clone().into_os_string()]);
                }
                self.start(CHAIN, CHAIN, arguments)?;
                self.wait_for_port(CHAIN, (&plan.host, *port), UP_WITHIN).await?;
            }
            ChainPlan::Nodes { nodes, .. } => {
                for node in nodes {
                    self.start_node(plan, &node.name)?;
                }
                for node in nodes {
                    self.wait_for_port(&node.name, ("127.0.0.1", node.rpc_port), NODE_UP_WITHIN).await?;
                }
            }
            ChainPlan::Elsewhere { .. } => {}
        }
        tokio::select! {
            connected = finalising(plan) => connected,
            died = self.until_one_dies() => bail!(died),
        }
    }

    /// Starts one of the real nodes.
    ///
    /// # Errors
    /// If the chain has no such node, or the process cannot be started.
    pub fn start_node(&mut self, plan: &Plan, name: &str) -> anyhow::Result<()> {
        let ChainPlan::Nodes { binary, nodes } = &plan.chain else { bail!("this network has no nodes") };
        let node = nodes.iter().find(|node| node.name == name);
        let node = node.with_context(|| format!("{name} is no node of this network"))?;
        let dir = self.directory.join(name).join("data");
        let mut arguments: Vec<OsString> = vec!["--program".into(), binary.into(), "--".into()];
        arguments.extend(nodes::arguments(nodes, node, &dir)?);
        self.start(name, nodes::KIND, arguments)
    }

    /// Starts the store and waits until it answers.
    ///
    /// # Errors
    /// If the process cannot be started, ends, or does not answer in time.
    pub async fn start_store(&mut self, plan: &Plan) -> anyhow::Result<()> {
        let dir = self.directory.join(STORE);
        std::fs::create_dir_all(&dir)?;
        let file = dir.join("plan.json");
        plan.write(&file)?;
        let data = dir.join("data").into_os_string();
        let arguments =
            ["--plan".into(), file.into_os_string(), "--data".into(), data, "--with-parent".into()];
        self.start(STORE, STORE, arguments.into())?;
        self.wait_for_port(STORE, (&plan.host, plan.store_port), UP_WITHIN).await
    }

    /// Starts a miner or validator of the plan, honest or not.
    ///
    /// # Errors
    /// If the process cannot be started.
    pub fn start_seat(&mut self, plan: &Plan, seat: &SeatPlan) -> anyhow::Result<()> {
        let settings = self.directory.join(&seat.name).join("settings.toml").into_os_string();
        let options: [OsString; 3] = ["--config".into(), settings, "--with-parent".into()];
        let (kind, mut arguments): (_, Vec<OsString>) = match (seat.strategy.as_str(), seat.role) {
            (HONEST, Role::Miner) => ("miner", vec!["start".into()]),
            (HONEST, Role::Validator) => ("validator", vec!["serve".into()]),
            (strategy, role) => {
                let mailbox = self.directory.join("mailbox");
                std::fs::create_dir_all(&mailbox)?;
                let index = plan.seats_of(role).filter(|other| other.strategy == strategy);
                let index = index.take_while(|other| other.name != seat.name).count();
                let validators = plan.seats_of(Role::Validator).count();
                let arguments = vec![
                    strategy.into(),
                    "--index".into(),
                    index.to_string().into(),
                    "--validators".into(),
                    validators.to_string().into(),
                    "--mailbox".into(),
                    mailbox.into_os_string(),
                ];
                ("adversary", arguments)
            }
        };
        arguments.extend(options);
        self.start(&seat.name, kind, arguments)
    }

    /// Returns whether a process of this name was started and has not been killed.
    pub fn runs(&self, name: &str) -> bool {
        self.processes.iter().any(|process| process.program.name == name)
    }

    /// Kills a process immediately, like a power cut, and forgets it.
    ///
    /// # Errors
    /// If no process has this name, or it cannot be killed.
    pub async fn kill(&mut self, name: &str) -> anyhow::Result<()> {
        let Some(place) = self.processes.iter().position(|process| process.program.name == name) else {
            bail!("{name} does not run");
        };
        let mut process = self.processes.remove(place);
        process.kill().await
    }

    /// Returns the first process that has ended by itself, if any.
    ///
    /// # Errors
    /// If the state of a process cannot be read.
    pub fn died(&mut self) -> anyhow::Result<Option<Died>> {
        for process in &mut self.processes {
            if let Some(status) = process.ended()? {
                return Ok(Some(Died::of(&process.program, status)));
            }
        }
        Ok(None)
    }

    /// Restarts seats whose process has ended, each after a wait that grows with every end. Chain and store are not
    /// restarted: the first of them that has ended is returned.
    ///
    /// # Errors
    /// If the state of a process cannot be read. A failed start is logged and repeated later.
    pub fn restart_seats(&mut self, now: Instant) -> anyhow::Result<Option<Died>> {
        let mut at = 0;
        while let Some(process) = self.processes.get_mut(at) {
            let Some(status) = process.ended()? else {
                at += 1;
                continue;
            };
            if is_base(&process.program.name) {
                return Ok(Some(Died::of(&process.program, status)));
            }
            let Process { program, started, .. } = self.processes.remove(at);
            let restarts = self.restarts.entry(program.name.clone()).or_default();
            let wait = restarts.wait(now.saturating_duration_since(started));
            let (name, log) = (&program.name, program.log.display());
            tracing::warn!(
                "{name} has ended ({status}); starting it again in {} s. Its log: {log}",
                wait.as_secs()
            );
            self.down.push(Down { program, again_at: now + wait });
        }
        let due = self.down.extract_if(.., |down| down.again_at <= now);
        for Down { program, .. } in due.collect::<Vec<_>>() {
            let restarts = self.restarts.entry(program.name.clone()).or_default();
            match program.clone().start() {
                Ok(process) => {
                    restarts.count = restarts.count.saturating_add(1);
                    self.processes.push(process);
                }
                Err(error) => {
                    let wait = restarts.wait(Duration::ZERO);
                    tracing::warn!("{error:#}; trying again in {} s", wait.as_secs());
                    self.down.push(Down { program, again_at: now + wait });
                }
            }
        }
        Ok(None)
    }

    /// Returns the seats whose process has ended, and the time until each is restarted.
    pub fn down(&self, now: Instant) -> impl Iterator<Item = (&str, Duration)> {
        self.down.iter().map(move |down| (&*down.program.name, down.again_at.saturating_duration_since(now)))
    }

    /// Returns the number of restarts of each process.
    pub fn restarts(&self) -> BTreeMap<String, u32> {
        self.restarts.iter().map(|(name, restarts)| (name.clone(), restarts.count)).collect()
    }

    /// Stops all processes: seats first, then store and chain.
    pub async fn stop(&mut self) {
        self.down.clear();
        let (base, seats): (Vec<_>, Vec<_>) =
            self.processes.drain(..).partition(|process| is_base(&process.program.name));
        stop_all(seats).await;
        stop_all(base).await;
    }

    pub fn log_of(&self, name: &str) -> PathBuf {
        self.directory.join(name).join("log.txt")
    }

    /// Returns an observer of this network's run and journals.
    ///
    /// # Errors
    /// If the observer cannot read the run from the chain.
    pub async fn observer(&self, plan: &Plan, chain: &dyn Chain) -> anyhow::Result<Observer> {
        let journals = plan.seats.iter().map(|seat| {
            (
                seat.name.clone(),
                Uid(seat.uid),
                self.directory.join(&seat.name).join("data").join("journal.jsonl"),
            )
        });
        let strategies = plan.seats.iter().map(|seat| (seat.name.clone(), seat.strategy.clone()));
        let observer = Observer::new(chain, RunId(plan.run), journals.collect()).await?;
        Ok(observer.with_plan(strategies.collect(), plan.held_out_sequences))
    }

    /// Starts `role KIND` with these arguments, as the process `name`.
    fn start(&mut self, name: &str, kind: &str, arguments: Vec<OsString>) -> anyhow::Result<()> {
        let mut words: Vec<OsString> = match self.namespaces.get(name) {
            Some(namespace) => ["ip", "netns", "exec", namespace].map(OsString::from).into(),
            None => Vec::new(),
        };
        words.extend([self.executable.clone().into(), "role".into(), kind.into()]);
        words.extend(arguments);
        let program = Program {
            name: name.to_owned(),
            executable: words.remove(0).into(),
            arguments: words,
            environment: self.environment.clone(),
            log: self.log_of(name),
            has_children: kind == nodes::KIND,
        };
        self.processes.push(program.start()?);
        Ok(())
    }

    async fn wait_for_port(
        &mut self,
        name: &str,
        address: (&str, u16),
        within: Duration,
    ) -> anyhow::Result<()> {
        let started = Instant::now();
        loop {
            if tokio::net::TcpStream::connect(address).await.is_ok() {
                return Ok(());
            }
            if let Some(died) = self.died()? {
                bail!(died);
            }
            if within < started.elapsed() {
                let last = last_lines(&self.log_of(name), 12);
                bail!("{name} did not come up within {} s; its last lines:\n{last}", within.as_secs());
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// Waits for a process to end by itself.
    pub async fn until_one_dies(&mut self) -> Died {
        loop {
            if let Ok(Some(died)) = self.died() {
                return died;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }
}

/// Stops processes at the same time. A failure is logged.
async fn stop_all(processes: Vec<Process>) {
    let stop = async |mut process: Process| {
        if let Err(error) = process.stop().await {
            tracing::warn!(%error, "a process did not stop when told to");
        }
    };
    futures::future::join_all(processes.into_iter().map(stop)).await;
}

/// Returns whether seats depend on the process.
fn is_base(name: &str) -> bool {
    name == CHAIN || name == STORE || name.split('-').next() == Some(nodes::KIND)
}

/// Returns a client of the plan's chain once every node of it finalises blocks.
async fn finalising(plan: &Plan) -> anyhow::Result<Arc<dyn Chain>> {
    let mut first: Option<Arc<dyn Chain>> = None;
    for url in plan.chain_urls() {
        let chain = SubxtChain::connect(&url, None).await;
        let chain = chain.context("could not connect to the chain of this network")?;
        let mut heads = chain.heads();
        let final_at = heads.wait_for(|head| head.block >= Block(1));
        tokio::time::timeout(NODE_UP_WITHIN, final_at).await.with_context(|| {
            format!("no block was finalised at {url} within {} s", NODE_UP_WITHIN.as_secs())
        })??;
        first.get_or_insert_with(|| Arc::new(chain));
    }
    first.context("the plan names no chain")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn program(directory: &Path, name: &str, script: &str) -> Program {
        Program {
            name: name.into(),
            executable: "/bin/sh".into(),
            arguments: vec!["-c".into(), script.into()],
            environment: Vec::new(),
            log: directory.join(name).join("log.txt"),
            has_children: false,
        }
    }

    /// Polls the processes with the time `now`, until `done`.
    async fn until(network: &mut Network, now: Instant, done: impl Fn(&Network) -> bool) -> Option<Died> {
        loop {
            let died = network.restart_seats(now).unwrap();
            if died.is_some() || done(network) {
                return died;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    #[tokio::test]
    async fn a_seat_that_has_ended_is_started_again_after_its_wait() {
        let directory = tempfile::tempdir().unwrap();
        let mut network = Network::new(directory.path(), "/bin/sh".into());
        let began = Instant::now();
        network.processes.push(program(directory.path(), "miner-0", "echo again").start().unwrap());
        assert!(until(&mut network, began, |network| network.down(began).next().is_some()).await.is_none());
        assert_eq!(network.down(began).collect::<Vec<_>>(), [("miner-0", Duration::from_secs(1))]);
        network.restart_seats(began + Duration::from_millis(900)).unwrap();
        assert!(network.processes.is_empty());
        let later = began + Duration::from_secs(1);
        network.restart_seats(later).unwrap();
        assert_eq!(network.restarts(), BTreeMap::from([("miner-0".to_owned(), 1)]));
        until(&mut network, later, |network| network.down(later).next().is_some()).await;
        assert_eq!(network.down(later).collect::<Vec<_>>(), [("miner-0", Duration::from_secs(2))]);
        assert_eq!(last_lines(&network.log_of("miner-0"), 9), "again\nagain");
        network.stop().await;
        assert!(network.down(later).next().is_none());
    }

    #[tokio::test]
    async fn a_store_that_has_ended_is_an_error() {
        let directory = tempfile::tempdir().unwrap();
        let mut network = Network::new(directory.path(), "/bin/sh".into());
        network.processes.push(program(directory.path(), STORE, "echo no room; exit 3").start().unwrap());
        let died = until(&mut network, Instant::now(), |_| false).await.unwrap().to_string();
        assert!(died.contains("store has ended (exit status: 3)") && died.contains("no room"), "{died}");
    }
}
