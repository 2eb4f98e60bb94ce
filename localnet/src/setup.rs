//! How a network comes to be: keys, buckets, accounts, a run, and a stake behind every seat; all through real extrinsics.

use crate::{
    defaults,
    layout::{Claimed, ORIGIN, PLAN_VERSION, Plan, SeatPlan},
    network::Network,
};
use anyhow::Context as _;
use chain_client::{
    Amount, Call, Chain, Expectations, SubxtChain,
    account::{self, SeatWish},
    keys::{Key, KeyFile, KeyPassword, Prompt},
};
use protocol::{Role, RunId, RunParams};
use replica::{RunSpec, files::write_atomic};
use seat::{
    create::{self, NewRun},
    settings::{File, ServeFile, StoreFile, TrainFile},
};
use std::{
    net::TcpListener,
    path::{Path, PathBuf},
    sync::Arc,
};
use store::{Credentials, S3Settings, S3Store};

/// The account that everyone knows the key of, and that the development chain makes rich. It owns the run.
const OWNER: &str = "//Alice";

/// What to set up.
pub struct Wanted {
    pub miners: u16,
    pub validators: u16,
    pub block_millis: u64,
    pub finality_lag: u32,
    /// `None`: any free one.
    pub chain_port: Option<u16>,
    pub store_port: Option<u16>,
    /// Whether faults of the store can be ordered; tests do.
    pub store_admin: bool,
    pub dataset: PathBuf,
    pub params: RunParams,
    pub spec: RunSpec,
}

/// Sets a network up in an empty directory: leaves chain and store running, and the plan written.
pub async fn set_up(
    claimed: &mut Claimed,
    network: &mut Network,
    wanted: &Wanted,
    say: &mut dyn FnMut(&str),
) -> anyhow::Result<(Plan, Arc<dyn Chain>)> {
    let directory = claimed.path().to_owned();
    let (mut plan, ports) = plan(wanted)?;

    say("starting chain and store");
    drop(ports.chain);
    let chain = network.start_chain(&plan).await?;
    drop((ports.store, ports.store_admin));
    network.start_store(&plan).await?;

    say("publishing model and data, creating the run");
    let owner = Key::dev(OWNER)?;
    let owner_chain = SubxtChain::connect(&plan.chain_url(), Some(owner), Expectations::default()).await?;
    let (access_key, secret_key) = plan.origin_keys.clone();
    let origin = S3Settings::new(plan.store_url(), ORIGIN, Credentials { access_key, secret_key });
    let origin = S3Store::open(&origin)?;
    let new = NewRun {
        spec: wanted.spec.clone(),
        dataset: &wanted.dataset,
        params: wanted.params,
        terms: defaults::terms(),
        origin: &plan.bucket_url(ORIGIN),
        fund: Amount(defaults::TREASURY),
    };
    let run = create::create(&owner_chain, &origin, new).await?;
    plan.run = run.id.0;

    say("making keys, moving stakes, registering seats");
    let password_path = directory.join("owner.password");
    write_private(&password_path, random_hex(16)?.as_bytes())?;
    let password =
        KeyPassword::resolve("the keys of this network", Some(&password_path), None, Prompt::Never)?;
    let registered = plan.seats.iter().map(|seat| add_seat(&directory, &plan, &owner_chain, &password, seat));
    let uids = futures::future::try_join_all(registered).await?;
    for (seat, uid) in plan.seats.iter_mut().zip(uids) {
        seat.uid = uid;
    }
    claimed.write_plan(plan.clone())?;
    Ok((plan, chain))
}

/// One seat: keys, funds, settings, and a real registration. Returns its uid.
pub async fn add_seat(
    directory: &Path,
    plan: &Plan,
    owner: &SubxtChain,
    password: &KeyPassword,
    seat: &SeatPlan,
) -> anyhow::Result<u16> {
    let home = directory.join(&seat.name);
    std::fs::create_dir_all(&home).with_context(|| format!("could not make {}", home.display()))?;
    let (coldkey, hotkey) = (Key::generate()?, Key::generate()?);
    KeyFile::create(&home.join("coldkey.json"), &coldkey, password)?;
    KeyFile::create(&home.join("hotkey.json"), &hotkey, password)?;
    let settings = toml::to_string_pretty(&settings(directory, plan, seat, &home))?;
    write_private(&home.join("settings.toml"), settings.as_bytes())?;

    let funds = Amount(defaults::COLDKEY_FUNDS);
    owner.submit(Call::Transfer { to: coldkey.account(), amount: funds }).await?;
    let stake = match seat.role {
        Role::Miner => defaults::MINER_STAKE,
        Role::Validator => defaults::VALIDATOR_STAKE,
    };
    let chain = SubxtChain::connect(&plan.chain_url(), Some(coldkey), Expectations::default()).await?;
    let wish = SeatWish {
        run: RunId(plan.run),
        role: seat.role,
        hotkey: hotkey.hotkey(),
        endpoint: plan.bucket_url(&seat.name),
        stake: Amount(stake),
        hotkey_funds: Amount(defaults::HOTKEY_FUNDS),
        // All seats are taken at once, and each makes the next one dearer.
        price_max: Some(Amount(u128::MAX)),
    };
    let seated = account::register_seat(&chain, &wish).await?;
    Ok(seated.seat.id.uid.0)
}

fn settings(directory: &Path, plan: &Plan, seat: &SeatPlan, home: &Path) -> File {
    File {
        chain: Some(plan.chain_url()),
        run: Some(plan.run),
        key: Some(home.join("hotkey.json").display().to_string()),
        password_file: Some(directory.join("owner.password")),
        directory: Some(home.join("data")),
        dataset: Some(plan.dataset.clone()),
        device: None,
        store: Some(StoreFile {
            endpoint: plan.store_url(),
            bucket: seat.name.clone(),
            access_key: seat.access_key.clone(),
            secret_key: Some(seat.secret_key.clone()),
            secret_key_file: None,
        }),
        train: (seat.role == Role::Miner)
            .then(|| TrainFile { commit_margin_blocks: Some(2 + plan.finality_lag), ..TrainFile::default() }),
        serve: (seat.role == Role::Validator).then(ServeFile::default),
    }
}

/// The ports of a network to be. Each is held until the process that will listen there is started: so they differ, and nobody
/// else is given one meanwhile.
struct Ports {
    chain: TcpListener,
    store: TcpListener,
    store_admin: Option<TcpListener>,
}

fn plan(wanted: &Wanted) -> anyhow::Result<(Plan, Ports)> {
    let ports = Ports {
        chain: port(wanted.chain_port, "chain")?,
        store: port(wanted.store_port, "store")?,
        store_admin: wanted.store_admin.then(|| port(None, "store's orders")).transpose()?,
    };
    let number = |listener: &TcpListener| listener.local_addr().map(|address| address.port());
    let store_admin = match &ports.store_admin {
        Some(listener) => Some((number(listener)?, random_hex(16)?)),
        None => None,
    };
    let mut seats = Vec::new();
    for (role, count) in [(Role::Validator, wanted.validators), (Role::Miner, wanted.miners)] {
        for index in 0..count {
            seats.push(new_seat(role, index)?);
        }
    }
    let plan = Plan {
        version: PLAN_VERSION,
        chain_port: number(&ports.chain)?,
        store_port: number(&ports.store)?,
        block_millis: wanted.block_millis,
        finality_lag: wanted.finality_lag,
        run: 0,
        store_admin,
        origin_keys: (ORIGIN.to_owned(), random_hex(20)?),
        dataset: wanted.dataset.clone(),
        seats,
    };
    Ok((plan, ports))
}

/// A seat's plan, with keys of its own for its bucket.
pub fn new_seat(role: Role, index: u16) -> anyhow::Result<SeatPlan> {
    let name = format!("{role}-{index}");
    Ok(SeatPlan { role, uid: 0, access_key: name.clone(), secret_key: random_hex(20)?, name })
}

/// The port asked for, or a free one; a taken one is said here, before anything is written.
fn port(asked: Option<u16>, what: &str) -> anyhow::Result<TcpListener> {
    let asked = asked.unwrap_or(0);
    TcpListener::bind(("127.0.0.1", asked)).with_context(|| {
        format!("port {asked} for the {what} is taken by another program; choose another one, or leave the choice to us")
    })
}

fn random_hex(bytes: usize) -> anyhow::Result<String> {
    let mut random = vec![0; bytes];
    getrandom::fill(&mut random).context("the system gives no random numbers")?;
    Ok(hex::encode(random))
}

/// Writes a file that only this user can read.
fn write_private(path: &Path, bytes: &[u8]) -> anyhow::Result<()> {
    // Written atomically through a temporary file, which is created private.
    write_atomic(path, bytes)?;
    Ok(())
}
