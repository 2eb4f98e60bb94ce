//! `mettle doctor`: checks settings, machine, chain, seat and bucket of a miner or validator before it loses a
//! window.
//!
//! The daemons make the same checks of chain, seat, bucket and device at their start (`daemon/kit/src/open.rs`,
//! `store::check_bucket`, `Device::check`). Here each is a line with the measured and the required value.

mod measure;

use crate::{
    help,
    output::Output,
    plan::{
        self,
        figures::{Role as RoleFigures, Value as Figure, rank_host_bytes},
        table::{value as figure, wrapped},
    },
    seat::register::role_parser,
};
use chain_client::{
    Amount, Chain,
    account::{self, HOTKEY_FUNDS_MIN},
    keys::{KeySource, PASSWORD_VARIABLE, address},
};
use daemon::{
    ChainWitness, Flags, Settings,
    config::{RANKS_MAX, RankExchange, StoreFile, TrainEngine, TrainFile},
    data::fetch_manifest,
    durable::free_bytes,
    error_chain,
    exit::ExitStatus,
    open,
    peers::Peers,
    storage::MAPPED_FROM,
};
use measure::{
    Uplink, bytes_in, check_clock, check_memory, check_open_files, check_uplink, compare_disk, mode_of,
};
use model::{ModelConfig, Recipe, RunSpec};
use nn::{Device, DeviceName, DeviceSetting, MemoryEstimate};
use protocol::{
    Hotkey, Role,
    peer::RECEIVERS_WANTED,
    view::{RunStatus, SeatView},
};
use serde::Serialize;
use serde_json::{Value, json};
use std::{
    path::Path,
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};
use store::Fetch;
use watch::text::readable;

/// Width of a check's name, in columns.
const LABEL: usize = 12;
const CLOCK_ADVICE: &str = "set the clocks of this machine and of the store by NTP (`timedatectl`): a store refuses what \
                            was signed more than 15 minutes from its own time. The key is not to blame";
const EXIT_FAILS: u8 = 1;
const EXIT_WARNS: u8 = 2;
const EXIT_CODES: &str =
    "Exit codes: 0 all is well; 1 a check failed; 2 there are only warnings, or wrong flags.";

/// Check the settings, machine, chain, seat and bucket of a node
///
/// Each check shows the measured value, the required value, and the remedy. Writes some small objects and one of 8
/// MiB into the bucket and deletes them; changes nothing else. The node may run meanwhile. Sizes are those of `mettle
/// run show`.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = format!("{}\n\n{EXIT_CODES}", help::reading(&[
    "mettle doctor --config miner.toml",
    "mettle doctor --config validator.toml --role validator --json",
])))]
pub struct Doctor {
    #[command(flatten)]
    flags: Flags,
    /// The node's role [default: that of its seat, else a miner].
    #[arg(long, value_name = "ROLE", value_parser = role_parser())]
    role: Option<Role>,
}

/// The result of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Verdict {
    Ok,
    Warning,
    Failed,
    /// An earlier check failed.
    Skipped,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Check {
    pub name: &'static str,
    pub verdict: Verdict,
    pub measured: String,
    /// Empty if there is no required value.
    pub needed: String,
    /// Empty if there is no remedy.
    pub advice: String,
}

/// The checks so far.
#[derive(Default)]
pub(crate) struct Checks(Vec<Check>);

impl Checks {
    fn add(&mut self, name: &'static str, verdict: Verdict, measured: String, needed: &str, advice: &str) {
        let (measured, needed, advice) = (readable(&measured), needed.to_owned(), advice.to_owned());
        self.0.push(Check { name, verdict, measured, needed, advice });
    }

    fn ok(&mut self, name: &'static str, measured: impl Into<String>) {
        self.add(name, Verdict::Ok, measured.into(), "", "");
    }

    fn warn(&mut self, name: &'static str, measured: impl Into<String>, advice: &str) {
        self.add(name, Verdict::Warning, measured.into(), "", advice);
    }

    fn fail(&mut self, name: &'static str, measured: impl Into<String>, advice: &str) {
        self.add(name, Verdict::Failed, measured.into(), "", advice);
    }

    /// Marks `names` as skipped: they depend on a failed check.
    fn skip(&mut self, names: &[&'static str], without: &str) {
        for name in names {
            self.add(name, Verdict::Skipped, format!("not checked without {without}"), "", "");
        }
    }

    fn count(&self, of: &[Verdict]) -> usize {
        self.0.iter().filter(|check| of.contains(&check.verdict)).count()
    }

    fn text(&self) -> String {
        let indent = " ".repeat(LABEL + 6);
        let mut text = String::new();
        for Check { name, verdict, measured, needed, advice } in &self.0 {
            let word = match verdict {
                Verdict::Ok => "ok",
                Verdict::Warning => "warn",
                Verdict::Failed => "FAIL",
                Verdict::Skipped => "-",
            };
            let line =
                if needed.is_empty() { measured.clone() } else { format!("{measured}; needs {needed}") };
            text += &wrapped(&format!("{word:4}  {name:LABEL$}"), &indent, &line);
            if !advice.is_empty() {
                text += &wrapped(&format!("{indent}to do: "), &indent, advice);
            }
        }
        text
    }

    /// Ends the command.
    ///
    /// # Errors
    /// An [`ExitStatus`] unless all checks passed.
    fn end(&self) -> anyhow::Result<()> {
        let plural = |count: usize| if count == 1 { "1 check".to_owned() } else { format!("{count} checks") };
        let failed = self.count(&[Verdict::Failed]);
        let others = self.count(&[Verdict::Warning, Verdict::Skipped]);
        let (code, text) = match (failed, others) {
            (0, 0) => return Ok(()),
            (0, others) => (EXIT_WARNS, format!("{} with a warning", plural(others))),
            (failed, _) => (EXIT_FAILS, format!("{} failed", plural(failed))),
        };
        Err(ExitStatus { code, text }.into())
    }
}

/// Runs all checks and prints them.
pub async fn doctor(command: Doctor, output: &mut Output<'_>) -> anyhow::Result<()> {
    output.bare_json();
    let mut checks = Checks::default();
    examine(&command, &mut checks, output).await?;
    let value: Value = json!({
        "checks": checks.0, "failed": checks.count(&[Verdict::Failed]),
        "warnings": checks.count(&[Verdict::Warning, Verdict::Skipped]),
    });
    output.result(&checks.text(), value)?;
    checks.end()
}

/// Returns the checks that fail before a seat is registered, as text; empty if none fails.
pub(crate) async fn failures(config: &Path, role: Role, output: &mut Output<'_>) -> anyhow::Result<String> {
    let flags = Flags { config: Some(config.to_owned()), ..Flags::default() };
    let mut checks = Checks::default();
    examine(&Doctor { flags, role: Some(role) }, &mut checks, output).await?;
    checks.0.retain(|check| check.verdict == Verdict::Failed && check.name != "seat");
    Ok(checks.text())
}

/// Makes all checks.
///
/// # Errors
/// Only those of the output.
async fn examine(command: &Doctor, checks: &mut Checks, output: &mut Output<'_>) -> anyhow::Result<()> {
    let settings = match Settings::read(&command.flags) {
        Ok(settings) => settings,
        Err(error) => {
            checks.fail(
                "settings",
                format!("{error:#}"),
                "correct the settings file or the flag, and start again",
            );
            return Ok(());
        }
    };
    check_files(command, &settings, checks);
    let training = check_device(&settings, command.role, checks);
    checks.0.push(check_open_files(std::fs::read_to_string("/proc/self/limits").ok().as_deref()));

    output.note("Reading the chain.")?;
    let Some(opened) = check_chain(&settings, checks).await else {
        checks.skip(&["run", "seat", "bucket", "uplink", "origin", "disk", "memory"], "the chain");
        return Ok(());
    };
    let chain = &*opened;
    let status = match chain.status(settings.reading.run).await {
        Ok(status) => status,
        Err(error) => {
            checks.fail("run", error_chain(&error), "give a run that exists with --run");
            checks.skip(&["seat", "bucket", "uplink", "origin", "disk", "memory"], "the run");
            return Ok(());
        }
    };
    let (role, seat) = check_seat(command, &settings, chain, &status, checks).await;
    if role == Role::Validator && training.is_some_and(|training| training.is_every_gpu) {
        fail_all_gpus(checks);
    }
    let spec = check_spec(chain, &status, checks).await;
    let figures = match &spec {
        Some(spec) => {
            let block_time = chain.block_time().await.unwrap_or(Duration::from_secs(6));
            Some((plan::of_run(spec, &status, block_time), block_time))
        }
        None => None,
    };

    output.note("Trying the bucket, or the validators that take its place.")?;
    let uplink = check_bucket(&settings, &opened, &status, (role, seat.as_ref()), checks).await;
    match (&uplink, &figures) {
        (Some(rate), Some((figures, block_time))) => {
            checks.0.push(check_uplink(role, *rate, figures, &status.run.params, *block_time));
        }
        // Otherwise that check itself failed.
        _ if settings.store.is_some() && checks.0.iter().all(|check| check.name != "uplink") => {
            checks.skip(&["uplink"], "bucket and specification");
        }
        _ => {}
    }
    let data_bytes = check_origin(&settings, chain, &status, checks).await;
    match (&spec, &figures) {
        (Some(spec), Some((figures, _))) => {
            check_disk(&settings, role, figures, data_bytes, checks);
            check_role_memory(&settings, role, spec, figures, training, checks);
        }
        _ => checks.skip(&["disk", "memory"], "the specification"),
    }
    Ok(())
}

/// Checks that settings, keys and secrets are readable by the node, and by no other user.
fn check_files(command: &Doctor, settings: &Settings, checks: &mut Checks) {
    match &command.flags.config {
        Some(path) => private_file("settings", path, has_secret(settings), checks),
        None => checks.ok("settings", "no settings file; flags and defaults"),
    }
    let public = match settings.key.hotkey() {
        Ok(public) => public,
        Err(error) => {
            checks.fail(
                "hotkey",
                error_chain(&error),
                "create it with `mettle keys new`, or name the right file",
            );
            return;
        }
    };
    match &settings.key {
        KeySource::Dev(path) => {
            checks.ok("hotkey", format!("{path}, a development key, {}", address(&public.0)))
        }
        KeySource::File(path) => private_file("hotkey", path, true, checks),
        KeySource::Elsewhere(_) => {
            checks.fail("hotkey", "an address, and no key", "name the key file");
        }
    }
    if let Some(path) = &settings.password_file {
        private_file("password", path, true, checks);
    }
    let is_dev = matches!(settings.key, KeySource::Dev(_));
    if !is_dev && (settings.password_file.is_some() || std::env::var_os(PASSWORD_VARIABLE).is_some()) {
        match open::key(settings) {
            Ok(_) => checks.ok("password", "it opens the hotkey"),
            Err(error) => checks.fail(
                "password",
                format!("{error:#}"),
                "correct the password file, or the variable METTLE_KEY_PASSWORD",
            ),
        }
    }
    match &settings.store {
        None => {}
        Some(store) => match store.secret() {
            Err(error) => checks.fail(
                "store",
                format!("{error:#}"),
                "write the secret into that file, readable by you only",
            ),
            Ok(_) => match &store.secret_key_file {
                Some(path) => private_file("store", path, true, checks),
                None => checks.ok("store", "its secret is there"),
            },
        },
    }
}

fn has_secret(settings: &Settings) -> bool {
    settings.store.as_ref().is_some_and(|store: &StoreFile| store.secret_key.is_some())
}

/// Checks a file that the node reads. Other users may have access only if it is not a secret.
fn private_file(name: &'static str, path: &Path, is_secret: bool, checks: &mut Checks) {
    let shown = path.display();
    match mode_of(path) {
        Err(error) => {
            checks.fail(name, format!("{shown} cannot be read: {error}"), "create it, or correct its path")
        }
        Ok(Some(mode)) if is_secret && mode & 0o077 != 0 => checks.warn(
            name,
            format!("{shown} has mode {mode:o}: other users may read the secret"),
            &format!("chmod 600 {shown}"),
        ),
        Ok(Some(mode)) => checks.ok(name, format!("{shown}, mode {mode:o}")),
        Ok(None) => checks.ok(name, shown.to_string()),
    }
}

/// The devices in the settings.
#[derive(Clone, Copy, Debug, PartialEq)]
struct TrainingDevice {
    /// Rank 0's device, if there are several ranks.
    device: Device,
    /// The settings name all GPUs of the machine.
    is_every_gpu: bool,
    /// The processes that train the seat; `None` for one.
    ranks: Option<Ranks>,
}

/// The processes that train one seat.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Ranks {
    all: u32,
    /// Number of processes on this machine.
    here: u32,
    /// Reason why numbers are assumed; `None` if the settings name them.
    assumed: Option<&'static str>,
}

/// `ranks` is 0 or above the limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`ranks` is {ranks}, and may be from 1 to {RANKS_MAX}")]
struct RanksOutOfRange {
    ranks: usize,
}

impl Ranks {
    /// Returns the ranks that a miner starts, or that a launcher starts if the settings have values that only a
    /// launcher needs. `gpus` is the machine's number of GPUs, if known. `None`: one process.
    fn of(
        train: &TrainFile,
        is_every_gpu: bool,
        gpus: Option<usize>,
    ) -> Result<Option<Ranks>, RanksOutOfRange> {
        let is_launched = train.rank_address.is_some() || train.rank_secret_file.is_some();
        let counted = gpus.and_then(|gpus| u32::try_from(gpus).ok());
        let all = match train.ranks {
            Some(ranks) => match u32::try_from(ranks) {
                Ok(all @ 1..=RANKS_MAX) => Some(all),
                _ => return Err(RanksOutOfRange { ranks }),
            },
            None => None,
        };
        let ranks = match (all, is_launched) {
            (None, true) => {
                let here = counted.unwrap_or(1);
                let assumed = Some("a launcher's number is not in the settings: set `ranks` under [train]");
                Ranks { all: here.max(2), here, assumed }
            }
            (Some(all), true) => {
                let here = all.min(counted.unwrap_or(1));
                let assumed = Some("the settings do not say how a launcher places them");
                Ranks { all, here, assumed }
            }
            (Some(all), false) => Ranks { all, here: all, assumed: None },
            (None, false) if is_every_gpu => {
                let all = counted.unwrap_or(2);
                let assumed = counted.is_none().then_some("this program cannot count the GPUs");
                Ranks { all, here: all, assumed }
            }
            (None, false) => return Ok(None),
        };
        Ok(Some(ranks).filter(|ranks| 1 < ranks.all))
    }

    fn text(&self) -> String {
        let Ranks { all, here, assumed } = self;
        match assumed {
            None => format!("{all}, on this machine"),
            Some(why) => format!("assumed: {all}, {here} of them on this machine; {why}"),
        }
    }
}

/// Returns the device in the settings, if it is usable, and the ranks. `role` is `None` before it is read from the
/// chain.
fn check_device(settings: &Settings, role: Option<Role>, checks: &mut Checks) -> Option<TrainingDevice> {
    if settings.train.engine == Some(TrainEngine::Command) {
        checks.ok("device", "an external program trains");
        return None;
    }
    let DeviceSetting { device, is_every_gpu } = match settings.reading.device.clone().try_into() {
        Ok(found) => found,
        Err(error) => {
            checks.fail(
                "device",
                error.to_string(),
                "correct `device` in the settings file: see docs/gpu.md",
            );
            return None;
        }
    };
    if is_every_gpu && role == Some(Role::Validator) {
        fail_all_gpus(checks);
        return None;
    }
    match device.check() {
        Ok(()) => checks.ok("device", device.to_string()),
        Err(error @ nn::DeviceError::WithoutGpu { .. }) => checks.warn(
            "device",
            format!("{error}"),
            "build `mettle` with the features of your miner or validator to check the device: --features mettle/cuda",
        ),
        Err(error) => checks.fail("device", format!("{error}"), "see docs/gpu.md"),
    }
    if settings.train.rank_exchange == Some(RankExchange::Nccl) && device.check().is_ok() {
        match nn::nccl::library_for(device) {
            Ok(library) => {
                checks.ok(
                    "ranks",
                    format!("exchange by NCCL {}, {}", library.version(), library.path().display()),
                );
            }
            Err(error) => checks.fail("ranks", format!("{error}"), "see `rank_exchange` in docs/ranks.md"),
        }
    }
    let ranks = Ranks::of(&settings.train, is_every_gpu, device.count().ok()).unwrap_or_else(|wrong| {
        checks.fail("ranks", wrong.to_string(), "correct `ranks` under [train] in the settings file");
        None
    });
    if let Some(ranks) = ranks {
        checks.ok("ranks", ranks.text());
    }
    Some(TrainingDevice { device, is_every_gpu, ranks })
}

/// Fails a validator whose settings name all GPUs: it does not start.
fn fail_all_gpus(checks: &mut Checks) {
    checks.fail(
        "device",
        "the settings name all GPUs, and a validator uses one device",
        "name one as `device`, such as cuda:0",
    );
}

/// Checks chain, genesis, age of the head, clock, second node, and that the directory belongs to this chain.
async fn check_chain(settings: &Settings, checks: &mut Checks) -> Option<Arc<dyn Chain>> {
    let config = &settings.reading.chain;
    let chain = match open::chain(config, None).await {
        Ok(chain) => chain,
        Err(error) => {
            checks.fail(
                "chain",
                format!("{error:#}"),
                "correct `chain` and `genesis`, or wait for the chain",
            );
            return None;
        }
    };
    let genesis = chain.genesis().to_string();
    let kind = if chain.is_development() { "a development chain" } else { "a public chain" };
    checks.ok("chain", format!("{}, {kind}, genesis {}…", config.url, genesis.get(..8).unwrap_or_default()));
    if let Err(error) = open::check_key(&settings.key, chain.is_development()) {
        checks.fail("hotkey", format!("{error:#}"), "create a key with `mettle keys new`");
    }

    let mut heads = chain.heads();
    let block = heads.borrow().block;
    let block_time = chain.block_time().await.unwrap_or(Duration::from_secs(6));
    let patience = (4 * block_time).clamp(Duration::from_secs(6), Duration::from_secs(60));
    match tokio::time::timeout(patience, heads.wait_for(|head| block < head.block)).await {
        Ok(Ok(head)) => checks.ok("head", format!("block {}, and new ones are finalised", head.block.0)),
        _ => checks.fail(
            "head",
            format!("no block after {} was finalised for {} s", block.0, patience.as_secs()),
            "wait until the chain finalises blocks, or give the URL of another node",
        ),
    }
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    match (chain.is_development(), chain.head_time().await) {
        (true, _) => checks.ok("clock", "not compared: a development chain's blocks run ahead of it"),
        (false, Ok(Some(time))) => checks.0.push(check_clock(now, time, block_time)),
        (false, Ok(None)) => checks.warn("clock", "the chain tells no time", ""),
        (false, Err(error)) => checks.warn("clock", error_chain(&error), ""),
    }
    if let Some(url) = &config.witness {
        match ChainWitness::open(config, url.clone(), &*chain).await {
            Ok(_) => checks.ok("witness", format!("{url}, the same chain")),
            Err(error) => checks.fail("witness", format!("{error:#}"), "correct `chain_witness`"),
        }
    }
    let directory = &settings.reading.directory;
    match open::check_pin(directory, chain.genesis()) {
        Ok(true) => checks.ok("directory", format!("{}, used on this chain", directory.display())),
        Ok(false) => checks.ok("directory", format!("{}, new", directory.display())),
        Err(error) => {
            checks.fail("directory", error_chain(&error), "name another directory, or the other chain")
        }
    }
    Some(chain)
}

/// Checks the seat, its stake and its hotkey's balance. Returns, without a seat, the role for the other checks.
async fn check_seat(
    command: &Doctor,
    settings: &Settings,
    chain: &dyn Chain,
    status: &RunStatus,
    checks: &mut Checks,
) -> (Role, Option<SeatView>) {
    let without = command.role.unwrap_or(Role::Miner);
    let Ok(hotkey) = settings.key.hotkey() else {
        checks.skip(&["seat"], "the hotkey");
        return (without, None);
    };
    let seat = match seat_of(command, settings, chain, status, &hotkey).await {
        Ok(seat) => seat,
        Err(error) => {
            checks.fail(
                "seat",
                format!("{error:#}"),
                "take a seat with `mettle register`, once all else is well",
            );
            return (without, None);
        }
    };
    let (uid, role, stake) = (seat.id.uid, seat.role, Amount(seat.stake));
    let least = Amount(status.run.terms.stake_min(role));
    if stake < least {
        checks.warn(
            "seat",
            format!("uid {uid}, {role}, stake {stake}, below the run's minimum of {least}"),
            "add to the stake with `mettle stake`",
        );
    } else {
        checks.ok("seat", format!("uid {uid}, {role}, stake {stake}"));
    }
    match chain.balance(&hotkey.0).await {
        Ok(balance) if balance.free < HOTKEY_FUNDS_MIN => checks.warn(
            "balance",
            format!("the hotkey has {}; needs {HOTKEY_FUNDS_MIN}", balance.free),
            &account::how_to_fund(chain, &address(&hotkey.0), HOTKEY_FUNDS_MIN),
        ),
        Ok(balance) => checks.ok("balance", format!("the hotkey has {}", balance.free)),
        Err(error) => checks.warn("balance", error_chain(&error), ""),
    }
    (role, Some(seat))
}

async fn seat_of(
    command: &Doctor,
    settings: &Settings,
    chain: &dyn Chain,
    status: &RunStatus,
    hotkey: &Hotkey,
) -> anyhow::Result<SeatView> {
    let found = account::seat_of(chain, status.run.id, hotkey).await?;
    let role = command.role.or(found.map(|seat| seat.role)).unwrap_or(Role::Miner);
    open::seat(chain, status.run.id, hotkey, role, &settings.key).await
}

/// Checks the specification, whose digest is on the chain.
async fn check_spec(chain: &dyn Chain, status: &RunStatus, checks: &mut Checks) -> Option<RunSpec> {
    let read =
        async { open::specification(chain, &open::fetcher(chain, &status.run.params)?, &status.run).await };
    match read.await {
        Ok(spec) => {
            let parameters = spec.model.parameters();
            checks.ok("run", format!("{}, {parameters} parameters, as the chain says", status.run.id));
            Some(spec)
        }
        Err(error) => {
            checks.fail("run", format!("{error:#}"), "ask the run's owner to serve the specification again");
            None
        }
    }
}

/// Writes an object, reads it at the seat's public URL, deletes it; then measures the uplink.
async fn check_bucket(
    settings: &Settings,
    chain: &Arc<dyn Chain>,
    status: &RunStatus,
    (role, seat): (Role, Option<&SeatView>),
    checks: &mut Checks,
) -> Option<Uplink> {
    const ADVICE: &str = "correct [store] in the settings file, the access rules of the bucket, or its public URL: see docs/store.md";
    let store = match settings.store.as_ref().map(StoreFile::open) {
        Some(Ok(store)) => store,
        Some(Err(error)) => {
            checks.fail("bucket", format!("{error:#}"), ADVICE);
            return None;
        }
        None => {
            check_receivers(settings, chain, status, (role, seat), checks).await;
            return None;
        }
    };
    match seat {
        None => checks.skip(&["bucket"], "a seat, which names its public URL; `mettle register` tries it"),
        Some(seat) => {
            let fetch = match open::fetcher(&**chain, &status.run.params) {
                Ok(fetch) => fetch,
                Err(error) => {
                    checks.fail("bucket", format!("{error:#}"), "");
                    return None;
                }
            };
            match store::check_bucket(&store, &fetch, &seat.endpoint).await {
                Ok(()) => {
                    checks.ok("bucket", format!("written, read at {} without a key, deleted", seat.endpoint))
                }
                Err(error) => {
                    let advice = if error.blames_clock() { CLOCK_ADVICE } else { ADVICE };
                    checks.fail("bucket", error_chain(&error), advice);
                    return None;
                }
            }
        }
    }
    match Uplink::measure(&store).await {
        Ok(rate) => Some(rate),
        Err(error) => {
            checks.fail("uplink", error_chain(&error), ADVICE);
            None
        }
    }
}

/// For a miner without a bucket: checks which validators receive contributions, and which of them are reachable.
async fn check_receivers(
    settings: &Settings,
    chain: &Arc<dyn Chain>,
    status: &RunStatus,
    (role, seat): (Role, Option<&SeatView>),
    checks: &mut Checks,
) {
    const NO_STORE: &str = "add a [store] to the settings file (docs/store.md), or register a miner with the endpoint \
                            that `miner endpoint` prints";
    let kind = match (role, seat) {
        (role, Some(seat)) => open::check_kind(settings, role, &seat.endpoint),
        (Role::Validator, None) => Err(anyhow::anyhow!(open::NO_BUCKET)),
        (Role::Miner, None) => Ok(()),
    };
    if let Err(error) = kind {
        return checks.fail("bucket", format!("{error:#}"), NO_STORE);
    }
    let surveyed = async {
        let http: Arc<dyn Fetch> = Arc::new(open::fetcher(&**chain, &status.run.params)?);
        anyhow::Ok(Peers::look(chain, &status.run, &http).await?.survey().await?)
    };
    let found = match surveyed.await {
        Ok(found) => found,
        Err(error) => return checks.fail("receivers", format!("{error:#}"), ""),
    };
    let reached = found.iter().filter(|(_, reached)| reached.is_ok()).count();
    let counted = format!("{reached} of {} validators take contributions and were reached", found.len());
    let failures = found
        .iter()
        .filter_map(|(uid, reached)| Some(format!("validator {uid}: {}", reached.as_ref().err()?)));
    let failures: Vec<String> = failures.collect();
    let advice = failures.join("; ");
    match reached {
        0 => checks.fail(
            "receivers",
            counted,
            &format!(
                "try again in a minute if the network has just begun; a bucket works without them (docs/store.md). {advice}"
            ),
        ),
        reached if reached < RECEIVERS_WANTED.min(found.len()) => checks.warn("receivers", counted, &advice),
        _ => checks.ok("receivers", counted),
    }
}

/// Checks that the run's data is available. Returns the size of the part that the node will keep, in bytes.
async fn check_origin(
    settings: &Settings,
    chain: &dyn Chain,
    status: &RunStatus,
    checks: &mut Checks,
) -> u64 {
    let origin = &status.run.origin;
    let has_own = settings.reading.dataset.is_some();
    let fetched = async {
        let fetch = open::fetcher(chain, &status.run.params).map_err(|error| format!("{error:#}"))?;
        fetch_manifest(&fetch, &status.run).await.map_err(|error| error_chain(&error))
    };
    match fetched.await {
        Ok(manifest) => {
            let shards = manifest.training.iter().chain(&manifest.held_out);
            let bytes: u64 = shards.map(|shard| manifest.shard_bytes(shard)).sum();
            let kept = if has_own { 0 } else { bytes.min(settings.reading.data_source.cache_bytes) };
            checks.ok("origin", format!("{origin} serves data of {}", figure(Figure::Bytes(bytes))));
            kept
        }
        Err(error) if has_own => {
            checks.warn("origin", format!("{origin}: {error}"), "nothing, while the own `dataset` is whole");
            0
        }
        Err(error) => {
            let advice = "ask the run's owner, or prepare the dataset yourself and name it as `dataset`";
            checks.fail("origin", format!("{origin}: {error}"), advice);
            0
        }
    }
}

fn role_disk(role: Role, [miner, merging, _]: &[RoleFigures; 3]) -> u64 {
    match role {
        Role::Miner => miner.bytes("disk_bytes"),
        Role::Validator => merging.bytes("disk_bytes"),
    }
}

fn check_disk(
    settings: &Settings,
    role: Role,
    figures: &[RoleFigures; 3],
    data_bytes: u64,
    checks: &mut Checks,
) {
    let directory = &settings.reading.directory;
    // The directory may not exist yet.
    let place = directory.ancestors().find(|place| place.exists()).unwrap_or(Path::new("."));
    checks.0.push(compare_disk(free_bytes(place), bytes_in(directory), role_disk(role, figures), data_bytes));
}

fn check_role_memory(
    settings: &Settings,
    role: Role,
    spec: &RunSpec,
    figures: &[RoleFigures; 3],
    training: Option<TrainingDevice>,
    checks: &mut Checks,
) {
    let [miner, merging, evaluating] = figures;
    let available = nn::available_memory();
    match role {
        Role::Miner => {
            let by_command = settings.train.engine == Some(TrainEngine::Command);
            let host = miner.bytes(if by_command { "command_host_bytes" } else { "host_bytes" });
            let recipe = settings.train.recipe(&spec.recipe);
            let free = FreeMemory {
                host: available,
                device: training.and_then(|training| training.device.free_memory()),
            };
            check_miner_memory(&spec.model, &recipe, host, training, free, checks);
        }
        Role::Validator => {
            let parameters = spec.model.parameters();
            // Smaller models are in memory, at most 20 bytes per parameter.
            let in_memory = if parameters < MAPPED_FROM { 20 * parameters as u64 } else { 0 };
            let merge = in_memory + merging.bytes("host_bytes");
            let on_cpu = training.is_some_and(|training| training.device.name == DeviceName::Cpu);
            let evaluate =
                evaluating.bytes("host_bytes") + if on_cpu { evaluating.bytes("device_bytes") } else { 0 };
            checks.0.push(check_memory(available, merge + evaluate, "use a machine with more memory"));
        }
    }
}

/// Free memory in bytes, if the system reports it.
#[derive(Clone, Copy)]
struct FreeMemory {
    host: Option<u64>,
    device: Option<u64>,
}

/// Compares the needs of a miner and the ranks on this machine with the free memory, as a miner does before it
/// starts. `host` is the miner's own memory beside its training.
fn check_miner_memory(
    model: &ModelConfig,
    recipe: &Recipe,
    host: u64,
    training: Option<TrainingDevice>,
    free: FreeMemory,
    checks: &mut Checks,
) {
    let in_host = training.map_or(0, |TrainingDevice { device, ranks, .. }| {
        match (ranks, device.name == DeviceName::Cpu) {
            (None, false) => 0,
            (Some(ranks), false) => rank_host_bytes(model.parameters() as u64, ranks.here, ranks.all),
            (None, true) => MemoryEstimate::new(model, recipe, device).total(),
            (Some(ranks), true) => {
                let alone = MemoryEstimate::new(model, recipe, device);
                let rank = alone.of_rank(model, recipe, device, ranks.all as usize);
                rank.total().saturating_mul(ranks.here.into())
            }
        }
    });
    checks.0.push(check_memory(
        free.host,
        host.saturating_add(in_host),
        "use a machine with more memory, or a smaller `micro_batch_sequences`",
    ));
    let Some(TrainingDevice { device, ranks, .. }) = training else { return };
    if device.name == DeviceName::Cpu {
        return;
    }
    let (checked, advice) = match ranks {
        None => (
            MemoryEstimate::check(model, recipe, device, free.device),
            "change that setting; if `--ranks` or a launcher starts several ranks, set `ranks` under [train]",
        ),
        Some(ranks) => (
            MemoryEstimate::check_rank(model, recipe, device, ranks.all as usize, free.device),
            "change that setting",
        ),
    };
    if let Err(error) = checked {
        checks.fail("memory", error.to_string(), advice);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use expect_test::expect;

    #[test]
    fn checks_read_well_at_eighty_columns_and_end_with_the_worst() {
        let mut checks = Checks::default();
        assert!(checks.end().is_ok());
        checks.ok("settings", "miner.toml, mode 600");
        checks.warn(
            "hotkey",
            "hotkey.json has mode 644: other users may read the secret",
            "chmod 600 hotkey.json",
        );
        let code = |checks: &Checks| daemon::exit::code(&checks.end().unwrap_err());
        assert_eq!(code(&checks), EXIT_WARNS);
        checks.add(
            "disk",
            Verdict::Failed,
            "1 GB free".into(),
            "80 GB",
            "make room on the disk, or name a `directory` on a larger disk",
        );
        checks.skip(&["uplink"], "the bucket");
        assert_eq!(code(&checks), EXIT_FAILS);
        expect![[r#"
            ok    settings    miner.toml, mode 600
            warn  hotkey      hotkey.json has mode 644: other users may read the secret
                              to do: chmod 600 hotkey.json
            FAIL  disk        1 GB free; needs 80 GB
                              to do: make room on the disk, or name a `directory` on a
                              larger disk
            -     uplink      not checked without the bucket
        "#]]
        .assert_eq(&checks.text());
    }

    const LARGE: u64 = 256_000_000_000;

    /// Returns the verdicts on the memory of a miner with these settings under [train].
    fn memory(model: &str, device: &str, train: &str, host: u64, free: [u64; 2]) -> Vec<Verdict> {
        let model = ModelConfig::preset(model).unwrap();
        let DeviceSetting { device, is_every_gpu } = device.parse().unwrap();
        let train: TrainFile = toml::from_str(train).unwrap();
        let ranks = Ranks::of(&train, is_every_gpu, Some(8)).unwrap();
        let training = Some(TrainingDevice { device, is_every_gpu, ranks });
        let (recipe, mut checks) = (train.recipe(&Recipe::default()), Checks::default());
        let free = FreeMemory { host: Some(free[0]), device: Some(free[1]) };
        check_miner_memory(&model, &recipe, host, training, free, &mut checks);
        checks.0.iter().map(|check| check.verdict).collect()
    }

    #[test]
    fn a_model_that_no_gpu_holds_fits_eight_ranks() {
        const GPU: u64 = 80_000_000_000;
        let parameters = ModelConfig::preset("8b").unwrap().parameters() as u64;
        let verdicts = |name: &str, train: &str, free| {
            let device = format!("{name},fused,recompute=layers");
            memory("8b", &device, train, 16 * parameters, [free, GPU])
        };
        let one_micro_batch = "batch_sequences = 8\nmicro_batch_sequences = 1\n";
        let by_ranks = format!("ranks = 8\n{one_micro_batch}");
        assert_eq!(verdicts("cuda:0", one_micro_batch, LARGE), [Verdict::Ok, Verdict::Failed]);
        assert_eq!(verdicts("cuda:0", &by_ranks, LARGE), [Verdict::Ok]);
        assert_eq!(verdicts("cuda:all", one_micro_batch, LARGE), [Verdict::Ok]);
        // With several micro-batches each GPU keeps a whole gradient.
        let several = "ranks = 8\nbatch_sequences = 64\nmicro_batch_sequences = 1";
        assert_eq!(verdicts("cuda:0", several, LARGE), [Verdict::Ok, Verdict::Failed]);
        // Gradients and moments of eight ranks are in the machine's memory, or those of eight of sixteen.
        let host = 28 * parameters;
        assert_eq!(verdicts("cuda:0", &by_ranks, host), [Verdict::Ok]);
        assert_eq!(verdicts("cuda:0", &by_ranks, host - 1), [Verdict::Failed]);
        let launched = format!("rank_address = \"10.0.0.1:29590\"\nranks = 16\n{one_micro_batch}");
        assert_eq!(verdicts("cuda:0", &launched, 22 * parameters), [Verdict::Ok]);
        assert_eq!(verdicts("cuda:0", &launched, 22 * parameters - 1), [Verdict::Failed]);
    }

    #[test]
    fn ranks_on_a_cpu_share_its_memory() {
        let model = ModelConfig::preset("6m").unwrap();
        let recipe = Recipe { batch: 16, micro_batch: 4, ..Recipe::default() };
        let rank = MemoryEstimate::new(&model, &recipe, Device::CPU).of_rank(&model, &recipe, Device::CPU, 4);
        let needed = 1_000 + 4 * rank.total();
        let verdict = |free| memory("6m", "cpu", "ranks = 4\nmicro_batch_sequences = 4", 1_000, [free, 0]);
        assert_eq!(verdict(needed), [Verdict::Ok]);
        assert_eq!(verdict(needed - 1), [Verdict::Failed]);
    }

    #[test]
    fn a_validator_on_all_gpus_fails_before_the_chain_is_read() {
        let flags =
            Flags { key: Some("//Alice".into()), device: Some("cuda:all".into()), ..Flags::default() };
        let settings = Settings::read(&flags).unwrap();
        let mut checks = Checks::default();
        assert_eq!(check_device(&settings, Some(Role::Validator), &mut checks), None);
        expect![[r#"
            FAIL  device      the settings name all GPUs, and a validator uses one device
                              to do: name one as `device`, such as cuda:0
        "#]]
        .assert_eq(&checks.text());
        for role in [Some(Role::Miner), None] {
            let found = check_device(&settings, role, &mut Checks::default());
            assert!(found.is_some_and(|training| training.is_every_gpu));
        }
    }

    #[test]
    fn what_the_settings_do_not_say_of_ranks_is_assumed_and_named() {
        let ranks =
            |text: &str, is_every_gpu, gpus| Ranks::of(&toml::from_str(text).unwrap(), is_every_gpu, gpus);
        let found = |text, is_every_gpu, gpus| {
            ranks(text, is_every_gpu, gpus)
                .unwrap()
                .map(|ranks| (ranks.all, ranks.here, ranks.assumed.is_some()))
        };
        let launched = "rank_secret_file = \"secret\"";
        for (text, is_every_gpu, gpus, expected) in [
            ("", false, Some(8), None),
            ("ranks = 1", true, Some(8), None),
            ("ranks = 4", false, Some(8), Some((4, 4, false))),
            ("", true, Some(8), Some((8, 8, false))),
            ("", true, Some(1), None),
            ("", true, None, Some((2, 2, true))),
            (launched, false, Some(8), Some((8, 8, true))),
            (launched, false, None, Some((2, 1, true))),
        ] {
            assert_eq!(found(text, is_every_gpu, gpus), expected, "{text} {is_every_gpu} {gpus:?}");
        }
        let assumed = ranks(launched, false, Some(8)).unwrap().unwrap().text();
        assert!(assumed.contains("assumed: 8, 8 of them") && assumed.contains("set `ranks`"), "{assumed}");
        for wrong in ["ranks = 0", "ranks = 1025", "ranks = 99999999999"] {
            assert!(ranks(wrong, false, Some(8)).unwrap_err().to_string().contains("from 1 to 1024"));
        }
    }
}
