//! Sets a network up: keys, buckets, accounts, a run, and a stake behind every seat, all by real extrinsics.

use crate::{
    defaults,
    layout::{ChainPlan, LockedDirectory, NodePlan, ORIGIN, PLAN_VERSION, Plan, SeatPlan},
    network::Network,
    nodes,
    seats::{HONEST, Seats},
};
use anyhow::Context as _;
use chain_client::{
    Amount, Balance, Call, Chain, SubxtChain,
    account::{self, SeatRequest},
    keys::{Key, KeyFile, KeyPassword, KeySource, Prompt},
};
use daemon::config::{File, PeerFile, ServeFile, StoreFile, TrainFile};
use daemon::create::{self, NewRun};
use daemon::durable::write_atomic;
use model::RunSpec;
use protocol::{Block, Role, RunId, RunParams, view::RunView};
use std::{
    net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener},
    path::{Path, PathBuf},
    sync::Arc,
};
use store::{Credentials, S3Settings, S3Store};

/// Development account with a well-known key, which the development chain endows. It owns the run.
const OWNER: &str = "//Alice";
/// Name of the file in a seat's directory with its bucket's secret.
pub(crate) const STORE_SECRET: &str = "store-secret";

/// Name of a node's directory in its seat's directory.
const DATA: &str = "data";
/// Default listen address of all processes.
pub const LOOPBACK: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

/// Blocks between the run's creation and its first window, in addition to the finality lag.
const BLOCKS_BEFORE_START: u32 = 20;
/// The same on a chain that makes blocks when its seats are idle. Its blocks are short before the seats run, and
/// shorter after that.
const BLOCKS_BEFORE_START_WHEN_IDLE: u32 = 80;

/// The network to set up.
pub struct Wanted {
    pub seats: Seats,
    /// Device of the seats' computations; by default the CPU.
    pub device: Option<nn::Device>,
    /// True if every second honest miner has neither a bucket nor an open port.
    pub nat: bool,
    /// The address of chain and store.
    pub host: IpAddr,
    pub chain: ChainWanted,
    pub finality_lag: u32,
    /// Port of the chain; `None`: any free one.
    pub chain_port: Option<u16>,
    pub store_port: Option<u16>,
    /// Size of the sample on which the held-out loss is reported.
    pub held_out_sequences: u64,
    pub work: Work,
}

/// The chain to start.
pub enum ChainWanted {
    /// The development chain, as in [`ChainPlan::Embedded`].
    Embedded { block_millis: u64, when_idle: bool },
    /// Four real nodes, run by this program.
    Nodes { binary: PathBuf },
}

/// The run of a network.
#[derive(Clone)]
pub struct Work {
    /// The directory of the prepared data.
    pub dataset: PathBuf,
    pub params: RunParams,
    pub spec: RunSpec,
}

/// Sets a network up in an empty directory. Leaves chain and store running, and the plan written.
///
/// # Errors
/// If the ports are taken, chain or store do not start, or a step of [`establish`] fails.
pub async fn set_up(
    locked: &mut LockedDirectory,
    network: &mut Network,
    wanted: &Wanted,
    say: &mut dyn FnMut(&str),
) -> anyhow::Result<(Plan, Arc<dyn Chain>)> {
    let directory = locked.path().to_owned();
    let (mut plan, ports) = plan(wanted)?;

    say("starting chain and store");
    drop(ports.chain);
    let chain = network.start_chain(&plan).await?;
    drop((ports.store, ports.store_admin));
    network.start_store(&plan).await?;

    establish(&directory, &mut plan, wanted.work.clone(), say).await?;
    drop(ports.peers);
    locked.write_plan(plan.clone())?;
    Ok((plan, chain))
}

/// Creates the run and registers every seat of a plan whose chain and store run. Skips completed steps, so an
/// interrupted set-up can be repeated.
pub async fn establish(
    directory: &Path,
    plan: &mut Plan,
    work: Work,
    say: &mut dyn FnMut(&str),
) -> anyhow::Result<()> {
    let owner = Key::dev(OWNER)?;
    let owner_chain = SubxtChain::connect(&plan.chain_url(), Some(owner)).await?;
    plan.run = match run_of(&owner_chain, &plan.bucket_url(ORIGIN)).await? {
        Some(run) => {
            say("the run exists already");
            if run.treasury == 0 {
                owner_chain.submit(Call::Fund { run: run.id, amount: defaults::TREASURY }).await?;
            }
            run.id.0
        }
        None => {
            say("publishing model and data, creating the run");
            let (access_key, secret_key) = plan.origin_keys.clone();
            let origin = S3Settings::new(plan.store_url(), ORIGIN, Credentials { access_key, secret_key });
            let origin = S3Store::open(&origin)?;
            let mut params = work.params;
            // A seat takes five extrinsics: run, treasury, coldkey, hotkey, registration. Each waits for finality.
            let steps = 5_u32.saturating_mul(plan.finality_lag);
            let now = owner_chain.heads().borrow().block.0;
            let before = match plan.chain {
                ChainPlan::Embedded { when_idle: true, .. } => BLOCKS_BEFORE_START_WHEN_IDLE,
                _ => BLOCKS_BEFORE_START,
            };
            params.schedule.start = Block(now.saturating_add(before).saturating_add(steps));
            let new = NewRun {
                weights: None,
                spec: work.spec,
                dataset: &work.dataset,
                params,
                terms: defaults::terms(),
                origin: &plan.bucket_url(ORIGIN),
                fund: defaults::TREASURY,
            };
            create::create(&owner_chain, &origin, new).await?.id.0
        }
    };

    say("making keys, moving stakes, registering seats");
    let registered = plan.seats.iter().map(|seat| add_seat(directory, plan, &owner_chain, seat));
    let uids = futures::future::try_join_all(registered).await?;
    for (seat, uid) in plan.seats.iter_mut().zip(uids) {
        seat.uid = uid;
    }
    Ok(())
}

/// Returns the run whose model and data are published at `origin`, if it exists.
async fn run_of(chain: &SubxtChain, origin: &str) -> anyhow::Result<Option<RunView>> {
    for run in chain.runs().await? {
        let run = chain.run(run).await?;
        if run.origin == origin {
            return Ok(Some(run));
        }
    }
    Ok(None)
}

/// Creates the keys and settings of a seat, funds it and registers it. Returns its uid.
pub async fn add_seat(
    directory: &Path,
    plan: &Plan,
    owner: &SubxtChain,
    seat: &SeatPlan,
) -> anyhow::Result<u16> {
    let home = directory.join(&seat.name);
    std::fs::create_dir_all(&home).with_context(|| format!("could not make {}", home.display()))?;
    let password_file = home.join("password");
    // Temporary files are created readable by this user only, so these files are too.
    if !password_file.exists() {
        write_atomic(&password_file, random_hex(16)?.as_bytes())?;
    }
    let password = KeyPassword::resolve("the seat's keys", Some(&password_file), None, Prompt::Never)?;
    let coldkey = key_at(&home.join("coldkey.json"), &password)?;
    let hotkey = key_at(&home.join("hotkey.json"), &password)?;
    let settings = toml::to_string_pretty(&settings(plan, seat, &home)?)?;
    write_atomic(&home.join(STORE_SECRET), seat.secret_key.as_bytes())?;
    write_atomic(&home.join("settings.toml"), settings.as_bytes())?;

    if owner.balance(&coldkey.account()).await? == Balance::default() {
        owner.submit(Call::Transfer { to: coldkey.account(), amount: defaults::COLDKEY_FUNDS }).await?;
    }
    let stake = match seat.role {
        Role::Miner => defaults::MINER_STAKE,
        Role::Validator => defaults::VALIDATOR_STAKE,
    };
    let endpoint = match seat.bucketless {
        true => daemon::peers::endpoint(&home.join(DATA))?,
        false => plan.bucket_url(&seat.name),
    };
    let chain = SubxtChain::connect(&plan.chain_url(), Some(coldkey)).await?;
    let wish = SeatRequest {
        run: RunId(plan.run),
        role: seat.role,
        hotkey,
        endpoint,
        stake,
        hotkey_funds: defaults::HOTKEY_FUNDS,
        // All seats register at once, and each registration raises the price of the next.
        price_max: Some(Amount(u128::MAX)),
    };
    Ok(account::register_seat(&chain, &wish).await?.id.uid.0)
}

/// Reads the key in a file, or writes a new one there.
fn key_at(file: &Path, password: &KeyPassword) -> anyhow::Result<Key> {
    if file.exists() {
        return Ok(KeySource::File(file.to_owned()).open(|_| Ok(password.clone()))?);
    }
    let key = Key::generate()?;
    KeyFile::create(file, &key, password)?;
    Ok(key)
}

fn settings(plan: &Plan, seat: &SeatPlan, home: &Path) -> anyhow::Result<File> {
    Ok(File {
        chain: Some(plan.chain_url_of(&seat.name)),
        genesis: None,
        chain_witness: None,
        allow_plain_ws: None,
        run: Some(plan.run),
        key: Some(home.join("hotkey.json").display().to_string()),
        password_file: Some(home.join("password")),
        directory: Some(home.join(DATA)),
        dataset: plan.dataset.clone(),
        device: plan.device.map(toml::Value::try_from).transpose()?,
        store: (!seat.bucketless).then(|| StoreFile {
            endpoint: plan.store_url(),
            bucket: seat.name.clone(),
            access_key: seat.access_key.clone(),
            secret_key: None,
            secret_key_file: Some(home.join(STORE_SECRET)),
        }),
        peer: seat
            .peer_port
            .map(|port| PeerFile { listen: Some(SocketAddr::from(([127, 0, 0, 1], port))), announce: None }),
        data: None,
        train: (seat.role == Role::Miner)
            .then(|| TrainFile { commit_margin_blocks: Some(2 + plan.finality_lag), ..TrainFile::default() }),
        serve: (seat.role == Role::Validator).then(|| {
            let (held_out_first, held_out_sequences) = plan.held_out_part(seat).unzip();
            ServeFile { held_out_first, held_out_sequences, ..ServeFile::default() }
        }),
    })
}

/// The ports of a network. Each stays bound until its process starts, so that no other program takes it.
struct Ports {
    /// Ports of the chain: one for each port of each node.
    chain: Vec<TcpListener>,
    store: TcpListener,
    store_admin: TcpListener,
    /// Ports for contributions, one per validator.
    peers: Vec<TcpListener>,
}

fn number(listener: &TcpListener) -> std::io::Result<u16> {
    listener.local_addr().map(|address| address.port())
}

fn plan(wanted: &Wanted) -> anyhow::Result<(Plan, Ports)> {
    let mut ports = Ports {
        chain: vec![port(wanted.host, wanted.chain_port, "chain")?],
        store: port(wanted.host, wanted.store_port, "store")?,
        store_admin: port(LOOPBACK, None, "faults of the store")?,
        peers: Vec::new(),
    };
    let mut seats = new_seats(&wanted.seats)?;
    for seat in seats.iter_mut().filter(|seat| seat.role == Role::Validator) {
        let listener = port(LOOPBACK, None, "peers")?;
        seat.peer_port = Some(number(&listener)?);
        ports.peers.push(listener);
    }
    if wanted.nat {
        let honest = seats.iter_mut().filter(|seat| seat.role == Role::Miner && seat.strategy == HONEST);
        honest.skip(1).step_by(2).for_each(|seat| seat.bucketless = true);
    }
    let chain = match &wanted.chain {
        ChainWanted::Embedded { block_millis, when_idle } => ChainPlan::Embedded {
            port: number(&ports.chain[0])?,
            block_millis: *block_millis,
            when_idle: *when_idle,
        },
        ChainWanted::Nodes { binary } => {
            ChainPlan::Nodes { binary: binary.clone(), nodes: node_plans(&mut ports.chain)? }
        }
    };
    let plan = Plan {
        version: PLAN_VERSION,
        chain,
        host: wanted.host.to_string(),
        store_port: number(&ports.store)?,
        finality_lag: wanted.finality_lag,
        run: 0,
        store_admin: Some((number(&ports.store_admin)?, random_hex(16)?)),
        origin_keys: new_origin_keys()?,
        dataset: Some(wanted.work.dataset.clone()),
        device: wanted.device,
        held_out_sequences: Some(wanted.held_out_sequences),
        buckets: Vec::new(),
        seats,
    };
    Ok((plan, ports))
}

/// Plans four nodes on free ports, which are added to `ports`. The first port is in it already.
fn node_plans(ports: &mut Vec<TcpListener>) -> anyhow::Result<Vec<NodePlan>> {
    let first_rpc = ports.first().map(number).transpose()?;
    let mut free = || -> anyhow::Result<u16> {
        let listener = port(LOOPBACK, None, "nodes")?;
        let port = number(&listener)?;
        ports.push(listener);
        Ok(port)
    };
    let mut plans = Vec::new();
    for (index, authority) in nodes::AUTHORITIES.iter().enumerate() {
        let rpc_port = match first_rpc.filter(|_| index == 0) {
            Some(first) => first,
            None => free()?,
        };
        plans.push(NodePlan {
            name: format!("{}-{index}", nodes::KIND),
            authority: (*authority).to_owned(),
            rpc_port,
            p2p_port: free()?,
            metrics_port: free()?,
            node_key: random_hex(32)?,
        });
    }
    Ok(plans)
}

/// Returns a new access key and secret key of the origin's bucket.
///
/// # Errors
/// If the operating system gives no random bytes.
pub fn new_origin_keys() -> anyhow::Result<(String, String)> {
    Ok((ORIGIN.to_owned(), random_hex(20)?))
}

/// Plans validators and miners, honest ones first, each with a key for its bucket.
///
/// # Errors
/// If the operating system gives no random bytes.
pub fn new_seats(wanted: &Seats) -> anyhow::Result<Vec<SeatPlan>> {
    let mut seats = Vec::new();
    for role in [Role::Validator, Role::Miner] {
        for (index, strategy) in (0..).zip(wanted.strategies(role)) {
            seats.push(SeatPlan { strategy: strategy.to_owned(), ..new_seat(role, index)? });
        }
    }
    Ok(seats)
}

/// Plans an honest seat, with a key for its bucket.
///
/// # Errors
/// If the operating system gives no random bytes.
pub fn new_seat(role: Role, index: u16) -> anyhow::Result<SeatPlan> {
    let name = format!("{role}-{index}");
    let strategy = HONEST.to_owned();
    Ok(SeatPlan {
        role,
        uid: 0,
        strategy,
        access_key: name.clone(),
        secret_key: random_hex(20)?,
        bucketless: false,
        peer_port: None,
        name,
    })
}

/// Checks that these ports are free.
///
/// # Errors
/// If one of them is taken.
pub fn check_ports(chain: Option<u16>, store: Option<u16>) -> anyhow::Result<()> {
    let _held = (port(LOOPBACK, chain, "chain")?, port(LOOPBACK, store, "store")?);
    Ok(())
}

/// Binds the requested port, or a free one.
fn port(host: IpAddr, asked: Option<u16>, what: &str) -> anyhow::Result<TcpListener> {
    let bound = match asked {
        Some(port) => TcpListener::bind((host, port)),
        None => free_port(host),
    };
    bound.with_context(|| {
        let asked = asked.unwrap_or(0);
        format!("port {asked} for the {what} is taken by another program; choose another port, or name none for a free one")
    })
}

/// Range of free ports to try, below Linux's default for outgoing connections.
const PORTS: std::ops::Range<u16> = 10_240..32_768;
const PORTS_TRIED: u32 = 64;

/// Binds a random free port. No outgoing connection takes it while its process is stopped, so a network keeps its
/// ports.
///
/// # Errors
/// If no free port is found.
pub fn free_port(host: IpAddr) -> std::io::Result<TcpListener> {
    for _ in 0..PORTS_TRIED {
        let random = getrandom::u32().map_err(std::io::Error::other)?;
        let port =
            PORTS.start + u16::try_from(random % u32::from(PORTS.end - PORTS.start)).expect("below a u16");
        if let Ok(listener) = TcpListener::bind((host, port)) {
            return Ok(listener);
        }
    }
    TcpListener::bind((host, 0))
}

pub(crate) fn random_hex(bytes: usize) -> anyhow::Result<String> {
    let mut random = vec![0; bytes];
    getrandom::fill(&mut random).context("the operating system gives no random numbers")?;
    Ok(hex::encode(random))
}
