//! The processes of a network: started in order, watched, stopped in order.

use crate::{
    layout::{ORIGIN, Plan, SeatPlan},
    observe::Observer,
    process::{Process, ProcessError, Program, last_lines},
    roles::StoreSettings,
};
use anyhow::{Context as _, bail};
use chain_client::{Chain, Expectations, SubxtChain};
use protocol::{Role, RunId, Uid};
use std::{
    ffi::OsString,
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant},
};

/// How long chain and store may take to come up.
const UP_WITHIN: Duration = Duration::from_secs(60);

pub const CHAIN: &str = "chain";
pub const STORE: &str = "store";

/// A network's processes.
pub struct Network {
    pub directory: PathBuf,
    executable: PathBuf,
    /// In the order in which they were started.
    processes: Vec<Process>,
}

/// A process that ended although nobody asked it to.
#[derive(Debug, thiserror::Error)]
#[error("{name} has ended ({status}). Its log is {}; its last lines:\n{last_lines}", log.display())]
pub struct Died {
    pub name: String,
    pub status: String,
    pub log: PathBuf,
    pub last_lines: String,
}

impl Network {
    /// No process yet. `executable` is this program.
    pub fn new(directory: &Path, executable: PathBuf) -> Network {
        Network { directory: directory.to_owned(), executable, processes: Vec::new() }
    }

    /// Starts the chain and waits until it answers.
    pub async fn start_chain(&mut self, plan: &Plan) -> anyhow::Result<Arc<dyn Chain>> {
        let dir = self.directory.join(CHAIN).join("data");
        let arguments = [
            "--dir".into(),
            dir.into_os_string(),
            "--port".into(),
            plan.chain_port.to_string().into(),
            "--block-millis".into(),
            plan.block_millis.to_string().into(),
            "--finality-lag".into(),
            plan.finality_lag.to_string().into(),
            "--with-parent".into(),
        ];
        self.start(CHAIN, arguments.into())?;
        self.wait_for_port(CHAIN, plan.chain_port).await?;
        let url = plan.chain_url();
        let chain = SubxtChain::connect(&url, None, Expectations::default());
        tokio::select! {
            connected = chain => Ok(Arc::new(connected.context("could not connect to our own chain")?)),
            died = self.until_one_dies() => bail!(died),
        }
    }

    /// Starts the store and waits until it answers.
    pub async fn start_store(&mut self, plan: &Plan) -> anyhow::Result<()> {
        let dir = self.directory.join(STORE);
        std::fs::create_dir_all(&dir)?;
        let (access_key, secret_key) = plan.origin_keys.clone();
        let mut buckets = vec![(ORIGIN.to_owned(), access_key, secret_key)];
        buckets.extend(
            plan.seats
                .iter()
                .map(|seat| (seat.name.clone(), seat.access_key.clone(), seat.secret_key.clone())),
        );
        let admin = plan.store_admin.clone();
        let settings = StoreSettings { port: plan.store_port, dir: dir.join("data"), buckets, admin };
        let config = dir.join("settings.json");
        replica::files::write_atomic(&config, &serde_json::to_vec_pretty(&settings)?)?;
        let arguments = ["--config".into(), config.into_os_string(), "--with-parent".into()];
        self.start(STORE, arguments.into())?;
        self.wait_for_port(STORE, plan.store_port).await
    }

    /// Starts a miner or validator.
    pub fn start_seat(&mut self, seat: &SeatPlan) -> anyhow::Result<()> {
        let settings = self.directory.join(&seat.name).join("settings.toml");
        let verb = match seat.role {
            Role::Miner => "start",
            Role::Validator => "serve",
        };
        let arguments = [verb.into(), "--config".into(), settings.into_os_string(), "--with-parent".into()];
        self.start(&seat.name, arguments.into())
    }

    /// Kills a process at once, as a power cut would, and forgets it.
    pub async fn kill(&mut self, name: &str) -> anyhow::Result<()> {
        let Some(place) = self.processes.iter().position(|process| process.program.name == name) else {
            bail!("{name} does not run");
        };
        let mut process = self.processes.remove(place);
        Ok(process.kill().await?)
    }

    /// The first process that has ended by itself, if one has.
    pub fn died(&mut self) -> Result<Option<Died>, ProcessError> {
        for process in &mut self.processes {
            if let Some(status) = process.ended()? {
                let log = process.program.log.clone();
                return Ok(Some(Died {
                    name: process.program.name.clone(),
                    status: status.to_string(),
                    last_lines: last_lines(&log, 12),
                    log,
                }));
            }
        }
        Ok(None)
    }

    /// Stops all processes, the ones that depend on others first.
    pub async fn stop(&mut self) {
        let mut stopping = Vec::new();
        let (base, seats): (Vec<_>, Vec<_>) = self
            .processes
            .drain(..)
            .partition(|process| [CHAIN, STORE].contains(&process.program.name.as_str()));
        for mut process in seats {
            stopping.push(tokio::spawn(async move { process.stop().await }));
        }
        for stopped in stopping {
            if let Ok(Err(error)) = stopped.await {
                tracing::warn!(%error, "a process did not stop as asked");
            }
        }
        for mut process in base {
            if let Err(error) = process.stop().await {
                tracing::warn!(%error, "a process did not stop as asked");
            }
        }
    }

    pub fn log_of(&self, name: &str) -> PathBuf {
        self.directory.join(name).join("log.txt")
    }

    /// An observer of this network's run and journals.
    pub async fn observer(&self, plan: &Plan, chain: &dyn Chain) -> anyhow::Result<Observer> {
        let journals = plan.seats.iter().map(|seat| {
            (
                seat.name.clone(),
                Uid(seat.uid),
                self.directory.join(&seat.name).join("data").join("journal.jsonl"),
            )
        });
        Ok(Observer::new(chain, RunId(plan.run), journals.collect()).await?)
    }

    fn start(&mut self, name: &str, arguments: Vec<OsString>) -> anyhow::Result<()> {
        let kind = match name.split('-').next() {
            Some("miner") => "miner",
            Some("validator") => "validator",
            Some(CHAIN) => CHAIN,
            _ => STORE,
        };
        let mut all: Vec<OsString> = vec!["role".into(), kind.into()];
        all.extend(arguments);
        let program = Program {
            name: name.to_owned(),
            executable: self.executable.clone(),
            arguments: all,
            // Several nodes share the machine: one thread each computes as much with less waiting.
            environment: vec![("RAYON_NUM_THREADS".into(), "1".into())],
            log: self.log_of(name),
        };
        self.processes.push(program.start()?);
        Ok(())
    }

    async fn wait_for_port(&mut self, name: &str, port: u16) -> anyhow::Result<()> {
        let started = Instant::now();
        loop {
            if tokio::net::TcpStream::connect(("127.0.0.1", port)).await.is_ok() {
                return Ok(());
            }
            if let Some(died) = self.died()? {
                bail!(died);
            }
            if UP_WITHIN < started.elapsed() {
                let last = last_lines(&self.log_of(name), 12);
                bail!("{name} did not come up within {} s; its last lines:\n{last}", UP_WITHIN.as_secs());
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    async fn until_one_dies(&mut self) -> Died {
        loop {
            if let Ok(Some(died)) = self.died() {
                return died;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }
}
