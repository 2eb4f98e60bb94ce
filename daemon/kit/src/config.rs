//! Settings: defaults, a TOML file, the environment and flags. Later ones override earlier ones.

use crate::data::DataSource;
use anyhow::{Context as _, anyhow, bail};
use chain_client::keys::KeySource;
use model::Recipe;
use protocol::{GenesisHash, RunId};
use serde::{Deserialize, Deserializer, Serialize};
use std::{
    fmt,
    net::SocketAddr,
    path::{Path, PathBuf},
};
use store::{Credentials, S3Settings, S3Store};
use zeroize::Zeroizing;

/// Settings file. An unknown key is an error.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct File {
    pub chain: Option<String>,
    /// The genesis hash of the chain, as the network publishes it. Required except on a development chain.
    pub genesis: Option<GenesisHash>,
    /// URL of a second node of the chain, preferably of another operator, whose finalised blocks must be the same.
    pub chain_witness: Option<String>,
    /// Allows `ws://` to a public host. Without encryption, any network on the path can answer for the chain.
    pub allow_plain_ws: Option<bool>,
    pub run: Option<u32>,
    /// A key file, or a development key such as `//Alice`.
    pub key: Option<String>,
    pub password_file: Option<PathBuf>,
    /// Directory of the node's model, snapshot and journal.
    pub directory: Option<PathBuf>,
    /// A prepared dataset on this machine. If absent, the run's own is fetched into `directory`.
    pub dataset: Option<PathBuf>,
    /// A device's name, or a table of its settings: `mettle_nn::Device`.
    pub device: Option<toml::Value>,
    pub store: Option<StoreFile>,
    /// A validator's connections from miners without a bucket.
    pub peer: Option<PeerFile>,
    pub data: Option<DataFile>,
    pub train: Option<TrainFile>,
    pub serve: Option<ServeFile>,
}

/// The node's own bucket.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StoreFile {
    pub endpoint: String,
    pub bucket: String,
    pub access_key: String,
    /// The secret. `secret_key_file` or the variable METTLE_STORE_SECRET are safer. Never written.
    #[serde(skip_serializing)]
    pub secret_key: Option<Secret>,
    pub secret_key_file: Option<PathBuf>,
}

/// Addresses at which peers connect to a validator.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PeerFile {
    /// Address and port, for UDP and TCP. If absent, the node only connects to others.
    pub listen: Option<SocketAddr>,
    /// The public address and port, if it differs from `listen` or `listen` covers every interface.
    pub announce: Option<SocketAddr>,
}

/// A secret text: wiped on drop, and displayed as `…`.
#[derive(Clone, PartialEq)]
pub struct Secret(Zeroizing<String>);

impl Secret {
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl From<String> for Secret {
    fn from(text: String) -> Secret {
        Secret(Zeroizing::new(text))
    }
}

impl<'de> Deserialize<'de> for Secret {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Secret, D::Error> {
        String::deserialize(deserializer).map(Secret::from)
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("…")
    }
}

/// Settings for fetching the run's data if it is not on this machine.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DataFile {
    /// Size of the local cache, in bytes. A dataset that is larger is fetched in pieces on demand.
    pub cache_bytes: Option<u64>,
    /// Base URLs of other buckets with the data, tried before the run's origin.
    pub mirrors: Option<Vec<String>>,
}

/// The default of `cache_bytes`: 16 GiB.
const DATA_CACHE_BYTES: u64 = 16 << 30;

/// A miner's settings.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TrainFile {
    /// Sequences per step. Default: the run's recipe.
    pub batch_sequences: Option<usize>,
    pub learning_rate: Option<f64>,
    /// "adamw" or "muon". Default: the run's recipe.
    pub optimiser: Option<model::Optimiser>,
    /// Sequences on the device at once; a step accumulates several such batches. Default: the run's recipe.
    pub micro_batch_sequences: Option<usize>,
    /// Number of blocks before the commit deadline at which training stops.
    pub commit_margin_blocks: Option<u32>,
    /// Largest fraction of a window's sequences, 0 to 1, that is trained before the window's model is available. With
    /// 0 the miner waits for the model.
    pub ahead: Option<f64>,
    /// Fraction of the residual, 0 to 1, that is subtracted from the model at the start of a window. With 0 training
    /// starts from the window's model.
    pub residual_share: Option<f64>,
    /// Interval between snapshots within a window, in seconds: the most work that a killed miner repeats.
    pub snapshot_every_seconds: Option<u64>,
    /// Interval between snapshots in steps, instead of seconds.
    pub snapshot_every_steps: Option<u32>,
    /// Upper bound of a step's loss, in nats per token. A step above it is not applied, and the window is skipped.
    pub loss_max: Option<f64>,
    /// The engine that computes. Default: the engine of `device`.
    pub engine: Option<TrainEngine>,
    /// The program of the engine "command".
    pub command: Option<CommandFile>,
    /// Number of processes that train this seat together. Default: 1, unless a launcher started several.
    pub ranks: Option<usize>,
    /// Address of rank 0 in a cluster, as HOST:PORT. Default: the launcher's.
    pub rank_address: Option<String>,
    /// A file with the secret of a cluster's ranks. Default: METTLE_RANK_SECRET.
    pub rank_secret_file: Option<PathBuf>,
    /// Transport between ranks for gradients and weights. Default: "tcp".
    pub rank_exchange: Option<RankExchange>,
    /// Time limit until all ranks are connected, in seconds.
    pub rank_start_seconds: Option<u64>,
    /// Time limit of one exchange between ranks, including the computation it waits for, in seconds.
    pub rank_step_seconds: Option<u64>,
}

impl TrainFile {
    /// Returns the miner's recipe: the run's, with the changes of these settings.
    pub fn recipe(&self, of_run: &Recipe) -> Recipe {
        let batch = self.batch_sequences.unwrap_or(of_run.batch).max(1);
        Recipe {
            batch,
            micro_batch: self.micro_batch_sequences.unwrap_or(of_run.micro_batch).clamp(1, batch),
            learning_rate: self.learning_rate.unwrap_or(of_run.learning_rate),
            optimiser: self.optimiser.unwrap_or(of_run.optimiser),
            ..of_run.clone()
        }
    }
}

/// Maximum number of ranks of a seat.
pub const RANKS_MAX: u32 = 1024;

/// Transport between the ranks of a seat for gradients and weights.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RankExchange {
    /// The ranks' TCP connections.
    #[default]
    Tcp,
    /// NVIDIA's library NCCL, from GPU to GPU.
    Nccl,
}

/// The engine that computes a miner's steps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum TrainEngine {
    /// The engine of `device`.
    #[default]
    Device,
    /// The program under `[train.command]`.
    Command,
}

/// An external program that trains, and its deadlines.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CommandFile {
    /// The program and its arguments.
    pub program: Vec<String>,
    /// Time limit from the program's start until the model is built, in seconds.
    pub start_seconds: Option<u64>,
    /// Longest interval between signs of life during work, in seconds.
    pub heartbeat_seconds: Option<u64>,
    /// Time limit of one step, in seconds.
    pub step_seconds: Option<u64>,
    /// Time limit of a step that still runs when the window's training must stop, in seconds.
    pub stop_seconds: Option<u64>,
}

/// A validator's settings.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ServeFile {
    /// Maximum number of contributions evaluated in one window.
    pub evaluations_max: Option<usize>,
    /// Size of the sample of held-out sequences on which the model's loss is measured.
    pub held_out_sequences: Option<u64>,
    /// Position of the first of these sequences in the sample's order, for validators that divide a sample among them.
    pub held_out_first: Option<u64>,
    /// Size of a file that is deleted when the disk is full, so that the validator can still sign and record, in
    /// bytes.
    pub ballast_bytes: Option<u64>,
}

/// Maximum of `ballast_bytes`: 128 MiB. A ballast is rewritten between a signature and its call.
const BALLAST_BYTES_MAX: u64 = 128 << 20;

/// The flags that all daemon commands share. Each overrides the file's value of the same name.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct Flags {
    /// Settings file (TOML).
    #[arg(long, value_name = "FILE", env = "METTLE_CONFIG")]
    pub config: Option<PathBuf>,
    /// URL of the chain's JSON-RPC, such as ws://127.0.0.1:9944.
    #[arg(long, value_name = "URL", env = "METTLE_CHAIN")]
    pub chain: Option<String>,
    /// The hash of the chain's block 0; required except on a development chain.
    #[arg(long, value_name = "HASH", env = "METTLE_GENESIS")]
    pub genesis: Option<GenesisHash>,
    /// The run.
    #[arg(long, value_name = "ID", env = "METTLE_RUN")]
    pub run: Option<u32>,
    /// The hotkey: a key file, or a development key such as //Alice.
    #[arg(long, value_name = "KEY", env = "METTLE_KEY")]
    pub key: Option<String>,
    /// A file whose first line is the key's password. Otherwise METTLE_KEY_PASSWORD, or a prompt.
    #[arg(long, value_name = "FILE")]
    pub password_file: Option<PathBuf>,
    /// Directory of the model, the snapshot and the journal.
    #[arg(long, value_name = "DIR", env = "METTLE_DIRECTORY")]
    pub directory: Option<PathBuf>,
    /// A prepared dataset on this machine.
    #[arg(long, value_name = "DIR")]
    pub dataset: Option<PathBuf>,
    /// The device: cpu, or cuda:0 if built with it.
    #[arg(long, value_name = "DEVICE")]
    pub device: Option<String>,
}

/// The chain, the run and the key of a command.
#[derive(Clone, Debug, PartialEq)]
pub struct EndpointArgs {
    pub chain: ChainConfig,
    pub run: RunId,
    pub key: Option<KeySource>,
    pub password_file: Option<PathBuf>,
    /// The bucket of the settings file.
    pub store: Option<StoreFile>,
}

/// Flags of commands that need a chain and a run.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct ChainFlags {
    /// Settings file (TOML).
    #[arg(long, value_name = "FILE", env = "METTLE_CONFIG")]
    pub config: Option<PathBuf>,
    /// URL of the chain's JSON-RPC, such as ws://127.0.0.1:9944.
    #[arg(long, value_name = "URL", env = "METTLE_CHAIN")]
    pub chain: Option<String>,
    /// The hash of the chain's block 0; required except on a development chain.
    #[arg(long, value_name = "HASH", env = "METTLE_GENESIS")]
    pub genesis: Option<GenesisHash>,
    /// The run.
    #[arg(long, value_name = "ID", env = "METTLE_RUN")]
    pub run: Option<u32>,
}

/// Flags of commands about one seat.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct SeatFlags {
    #[command(flatten)]
    pub chain_flags: ChainFlags,
    /// The seat's hotkey: a key file, or a development key such as //Alice.
    #[arg(long, value_name = "KEY", env = "METTLE_KEY")]
    pub key: Option<String>,
    /// The seat's number, instead of its hotkey.
    #[arg(long, value_name = "UID")]
    pub uid: Option<u16>,
}

/// Flags of commands signed by an account that needs no seat.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct AccountFlags {
    #[command(flatten)]
    pub chain_flags: ChainFlags,
    /// The account that signs: a key file, or a development key such as //Alice.
    #[arg(long, value_name = "KEY", env = "METTLE_KEY")]
    pub key: Option<String>,
    /// A file whose first line is the key's password. Otherwise METTLE_KEY_PASSWORD, or a prompt.
    #[arg(long, value_name = "FILE")]
    pub password_file: Option<PathBuf>,
}

impl ChainFlags {
    /// Reads the endpoint from the flags and the settings file. `key` overrides the file's.
    ///
    /// # Errors
    /// If the settings file or the key cannot be used.
    pub fn read(&self, key: Option<&str>) -> anyhow::Result<EndpointArgs> {
        let ChainFlags { config, chain, genesis, run } = self.clone();
        let flags = Flags { config, chain, genesis, run, key: key.map(str::to_owned), ..Flags::default() };
        let file = File::layered(&flags)?;
        let key = file.key()?;
        let ReadOnlyConfig { chain, run, .. } = file.clone().read_only();
        Ok(EndpointArgs { chain, run, key, password_file: file.password_file, store: file.store })
    }
}

impl SeatFlags {
    /// Reads the endpoint, like [`ChainFlags::read`].
    ///
    /// # Errors
    /// As [`ChainFlags::read`].
    pub fn read(&self) -> anyhow::Result<EndpointArgs> {
        self.chain_flags.read(self.key.as_deref())
    }
}

impl AccountFlags {
    /// Reads the endpoint, like [`ChainFlags::read`].
    ///
    /// # Errors
    /// As [`ChainFlags::read`].
    pub fn read(&self) -> anyhow::Result<EndpointArgs> {
        let args = self.chain_flags.read(self.key.as_deref())?;
        Ok(EndpointArgs { password_file: self.password_file.clone().or(args.password_file), ..args })
    }
}

/// The settings of a daemon. `main` reads them once.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    pub reading: ReadOnlyConfig,
    pub key: KeySource,
    pub password_file: Option<PathBuf>,
    pub store: Option<StoreFile>,
    pub peer: Option<PeerFile>,
    pub train: TrainFile,
    pub serve: ServeFile,
}

/// The settings of a command that neither signs nor publishes.
#[derive(Clone, Debug, PartialEq)]
pub struct ReadOnlyConfig {
    pub chain: ChainConfig,
    pub run: RunId,
    pub directory: PathBuf,
    pub dataset: Option<PathBuf>,
    pub data_source: DataSource,
    pub device: toml::Value,
}

/// The address of the chain's node, and the expected chain.
#[derive(Clone, Debug, PartialEq)]
pub struct ChainConfig {
    pub url: String,
    /// URL of a second node that must have the same finalised blocks.
    pub witness: Option<String>,
    pub genesis: Option<GenesisHash>,
    /// Allows `ws://` to a public host.
    pub allow_plain_ws: bool,
}

/// Default address of a node on the user's own machine.
pub const DEFAULT_CHAIN: SocketAddr =
    SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 9944);

impl ReadOnlyConfig {
    /// Reads the settings file that the flags name, if any. Flags override the file.
    ///
    /// # Errors
    /// If the file cannot be read, or has an unknown key or a wrong value.
    pub fn read(flags: &Flags) -> anyhow::Result<ReadOnlyConfig> {
        Ok(File::layered(flags)?.read_only())
    }
}

impl Settings {
    /// Reads all settings, like [`ReadOnlyConfig::read`]. A key is required.
    ///
    /// # Errors
    /// As [`ReadOnlyConfig::read`], and if there is no key or `ballast_bytes` is too large.
    pub fn read(flags: &Flags) -> anyhow::Result<Settings> {
        let file = File::layered(flags)?;
        let Some(key) = file.key()? else {
            bail!("no hotkey: add --key FILE, or `key = \"FILE\"` to the settings file");
        };
        let File { password_file, store, peer, train, serve, .. } = file.clone();
        let (reading, train, serve) =
            (file.read_only(), train.unwrap_or_default(), serve.unwrap_or_default());
        if let Some(bytes) = serve.ballast_bytes.filter(|bytes| BALLAST_BYTES_MAX < *bytes) {
            bail!("`ballast_bytes` under [serve] is {bytes}, and may be at most {BALLAST_BYTES_MAX}");
        }
        Ok(Settings { reading, key, password_file, store, peer, train, serve })
    }
}

impl File {
    /// Reads the settings file of the flags and overlays the flags, which include the environment.
    fn layered(flags: &Flags) -> anyhow::Result<File> {
        let file = flags.config.as_deref().map_or_else(|| Ok(File::default()), File::parse)?;
        let Flags { config: _, chain, genesis, run, key, password_file, directory, dataset, device } =
            flags.clone();
        Ok(File {
            chain: chain.or(file.chain),
            genesis: genesis.or(file.genesis),
            run: run.or(file.run),
            key: key.or(file.key),
            password_file: password_file.or(file.password_file),
            directory: directory.or(file.directory),
            dataset: dataset.or(file.dataset),
            device: device.map(toml::Value::String).or(file.device),
            ..file
        })
    }

    fn parse(path: &Path) -> anyhow::Result<File> {
        let text = Zeroizing::new(
            std::fs::read_to_string(path)
                .with_context(|| format!("could not read the settings file {}", path.display()))?,
        );
        // The parser's error would quote the line at which it stops, which may contain a secret.
        toml::from_str(&text).map_err(|error| {
            let until = text.get(..error.span().map_or(0, |span| span.end)).unwrap_or_default();
            let (line, last) = (until.lines().count().max(1), until.lines().last().unwrap_or_default());
            let at = last.split_once('=').map_or("", |(key, _)| key).trim();
            anyhow!(
                "the settings file {} is invalid in line {line} {at}: {}",
                path.display(),
                without_value(error.message())
            )
        })
    }

    fn key(&self) -> anyhow::Result<Option<KeySource>> {
        let parse = |key: &String| key.parse().with_context(|| format!("`{key}` is not a key"));
        self.key.as_ref().map(parse).transpose()
    }

    /// Returns the settings with their defaults.
    fn read_only(self) -> ReadOnlyConfig {
        let data = self.data.unwrap_or_default();
        ReadOnlyConfig {
            chain: ChainConfig {
                url: self.chain.unwrap_or_else(|| format!("ws://{DEFAULT_CHAIN}")),
                witness: self.chain_witness,
                genesis: self.genesis,
                allow_plain_ws: self.allow_plain_ws.unwrap_or(false),
            },
            run: RunId(self.run.unwrap_or(0)),
            directory: self.directory.unwrap_or_else(|| "mettle-data".into()),
            dataset: self.dataset,
            data_source: DataSource {
                cache_bytes: data.cache_bytes.unwrap_or(DATA_CACHE_BYTES),
                mirrors: data.mirrors.unwrap_or_default(),
            },
            device: device_or_cpu(self.device),
        }
    }
}

/// Returns the device of flag or file, else the CPU. The engines' crate interprets it.
fn device_or_cpu(device: Option<toml::Value>) -> toml::Value {
    let device = device.unwrap_or_else(|| "cpu".into());
    if let Some((name, _)) = device.as_str().and_then(|text| text.split_once(',')) {
        tracing::warn!(
            %device,
            "settings behind a device's name are the older form: write [device] with name = \"{name}\" and the keys \
             engine, precision, activation_checkpointing and kernels"
        );
    }
    device
}

impl StoreFile {
    /// Opens the bucket with its key.
    ///
    /// # Errors
    /// If the secret cannot be read, or endpoint or bucket are invalid.
    pub fn open(&self) -> anyhow::Result<S3Store> {
        let credentials = Credentials { access_key: self.access_key.clone(), secret_key: self.secret()? };
        Ok(S3Store::open(&S3Settings::new(&self.endpoint, &self.bucket, credentials))?)
    }

    /// Returns the secret: from its file, the settings, or METTLE_STORE_SECRET.
    ///
    /// # Errors
    /// If the file cannot be read, or there is no secret.
    pub fn secret(&self) -> anyhow::Result<String> {
        if let Some(path) = &self.secret_key_file {
            let text = std::fs::read_to_string(path)
                .with_context(|| format!("could not read the store's secret from {}", path.display()))?;
            return Ok(text.trim().to_owned());
        }
        if let Some(secret) = &self.secret_key {
            return Ok(secret.reveal().to_owned());
        }
        std::env::var("METTLE_STORE_SECRET")
            .context("no secret for the store: set METTLE_STORE_SECRET, or `secret_key_file` under [store]")
    }
}

/// Returns an error's message without the quoted value, which may be a secret. Unknown keys are kept.
fn without_value(message: &str) -> &str {
    match message.starts_with("invalid") {
        true => message.split(['`', '"']).next().unwrap_or_default().trim_end(),
        false => message,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write as _;

    /// Returns flags that name a settings file with this text.
    fn flags(text: &str) -> (tempfile::NamedTempFile, Flags) {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(text.as_bytes()).unwrap();
        let config = Some(file.path().to_owned());
        (file, Flags { config, ..Flags::default() })
    }

    #[test]
    fn a_flag_wins_over_the_file_and_the_file_over_the_default() {
        let (_file, flags) =
            flags("chain = \"ws://a\"\nkey = \"//Alice\"\nrun = 3\n[data]\nmirrors = [\"https://a/b\"]");
        let flags = Flags { chain: Some("ws://b".into()), ..flags };
        let Settings { reading, key, .. } = Settings::read(&flags).unwrap();
        assert_eq!((reading.chain.url.as_str(), reading.run), ("ws://b", RunId(3)));
        assert_eq!((key.to_string().as_str(), reading.device.as_str()), ("//Alice", Some("cpu")));
        let mirrors = vec!["https://a/b".into()];
        assert_eq!(reading.data_source, DataSource { mirrors, cache_bytes: 16 << 30 });

        let (_other, other) = self::flags("[data]\ncache_bytes = 5\n[device]\nname = \"cuda:0\"");
        let reading = ReadOnlyConfig::read(&other).unwrap();
        assert_eq!(reading.data_source, DataSource { mirrors: Vec::new(), cache_bytes: 5 });
        assert_eq!(reading.device["name"].as_str(), Some("cuda:0"));

        let flags = ChainFlags { config: flags.config, chain: flags.chain, genesis: None, run: Some(5) };
        let args = flags.read(Some("//Bob")).unwrap();
        assert_eq!((args.chain.url.as_str(), args.run), ("ws://b", RunId(5)));
        assert_eq!(args.key, Some(KeySource::Dev("//Bob".into())));
    }

    #[test]
    fn a_device_is_a_name_or_a_table_and_the_flag_wins() {
        let (_file, flags) = flags("[device]\nname = \"cuda:0\"\nprecision = \"bf16\"");
        assert_eq!(ReadOnlyConfig::read(&flags).unwrap().device["precision"].as_str(), Some("bf16"));
        let flags = Flags { device: Some("cuda:1,f32".into()), ..flags };
        assert_eq!(ReadOnlyConfig::read(&flags).unwrap().device.as_str(), Some("cuda:1,f32"));
    }

    #[test]
    fn an_unknown_key_or_a_wrong_value_is_refused_with_file_line_and_key() {
        for (text, line, key) in [
            ("run = 3\nchian = \"ws://a\"", "line 2", "`chian`"),
            ("[train]\nbatch = 3", "line 2", "`batch`"),
            ("run = \"three\"", "line 1", "run"),
        ] {
            let (file, flags) = flags(text);
            let error = format!("{:#}", ReadOnlyConfig::read(&flags).unwrap_err());
            for part in [&file.path().display().to_string(), line, key] {
                assert!(error.contains(part), "no {part:?} in {error}");
            }
        }
    }

    #[test]
    fn a_secret_is_in_no_error_no_debug_and_no_written_settings() {
        let store = "[store]\nendpoint = \"https://a\"\nbucket = \"b\"\naccess_key = \"c\"\n";
        // The closing quotation mark is missing, or the key is misspelt.
        for broken in ["secret_key = \"hunter2", "secret_kye = \"hunter2\""] {
            let (_file, flags) = flags(&format!("{store}{broken}"));
            let error = format!("{:?}", ReadOnlyConfig::read(&flags).unwrap_err());
            assert!(error.contains("line 5") && !error.contains("hunter2"), "{error}");
        }
        let (_file, flags) = flags(&format!("key = \"//Alice\"\n{store}secret_key = \"hunter2\""));
        let settings = Settings::read(&flags).unwrap();
        assert_eq!(settings.store.as_ref().unwrap().secret().unwrap(), "hunter2");
        assert!(!format!("{settings:?}").contains("hunter2"));
        let written = toml::to_string(&File { store: settings.store, ..File::default() }).unwrap();
        assert!(written.contains("access_key") && !written.contains("hunter2"), "{written}");
    }

    #[test]
    fn a_ballast_has_a_largest_size() {
        for (bytes, is_taken) in [(0, true), (BALLAST_BYTES_MAX, true), (BALLAST_BYTES_MAX + 1, false)] {
            let (_file, flags) = flags(&format!("key = \"//Alice\"\n[serve]\nballast_bytes = {bytes}"));
            match Settings::read(&flags) {
                Ok(settings) => assert!(is_taken && settings.serve.ballast_bytes == Some(bytes)),
                Err(error) => assert!(!is_taken && error.to_string().contains("`ballast_bytes`"), "{error}"),
            }
        }
    }

    #[test]
    fn a_daemon_without_a_key_is_refused_with_the_flag_to_add() {
        let error = Settings::read(&Flags::default()).unwrap_err().to_string();
        assert!(error.contains("--key"), "{error}");
    }

    #[test]
    fn a_command_that_only_reads_needs_no_key() {
        let reading = ReadOnlyConfig::read(&Flags { run: Some(4), ..Flags::default() }).unwrap();
        assert_eq!((reading.run, reading.device.as_str()), (RunId(4), Some("cpu")));
    }

    #[test]
    fn a_missing_settings_file_is_named() {
        let flags = Flags { config: Some("/no/such/miner.toml".into()), ..Flags::default() };
        let error = Settings::read(&flags).unwrap_err().to_string();
        assert!(error.contains("/no/such/miner.toml"), "{error}");
    }
}
