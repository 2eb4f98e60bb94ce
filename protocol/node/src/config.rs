//! Settings, read once: a TOML file, the environment, and flags, the later ones winning.

use crate::data::DataSource;
use anyhow::{Context as _, bail};
use chain_client::keys::KeySource;
use protocol::RunId;
use serde::{Deserialize, Serialize};
use std::{
    net::SocketAddr,
    path::{Path, PathBuf},
};

/// What the file may say. A key that is not here is an error, not a typo to find later.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct File {
    pub chain: Option<String>,
    pub run: Option<u32>,
    /// A key file, or a development key such as `//Alice`.
    pub key: Option<String>,
    pub password_file: Option<PathBuf>,
    /// Where the node keeps its model, its snapshot and its journal.
    pub directory: Option<PathBuf>,
    /// A prepared dataset on this machine. Without it, the run's own is fetched into `directory`.
    pub dataset: Option<PathBuf>,
    /// A device's name, or a table of its settings: `mettle_nn::Device`.
    pub device: Option<toml::Value>,
    pub store: Option<StoreFile>,
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
    /// The secret, or better `secret_key_file`, or the variable METTLE_STORE_SECRET.
    pub secret_key: Option<String>,
    pub secret_key_file: Option<PathBuf>,
}

/// How the run's data is had, where it is not on this machine.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DataFile {
    /// Data that has more bytes than this is fetched in pieces as they are wanted, and so much of it is kept.
    pub cache_bytes: Option<u64>,
    /// Base URLs of buckets that have the data too; they are asked before the run's origin.
    pub mirrors: Option<Vec<String>>,
}

impl DataFile {
    fn checked(self) -> DataSource {
        DataSource {
            cache_bytes: self.cache_bytes.unwrap_or(DATA_CACHE_BYTES),
            mirrors: self.mirrors.unwrap_or_default(),
        }
    }
}

/// Room for data where nothing is said: 16 GiB.
const DATA_CACHE_BYTES: u64 = 16 << 30;

/// A miner's own choices.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TrainFile {
    /// Sequences in one step; the run's recipe where absent.
    pub batch_sequences: Option<usize>,
    pub learning_rate: Option<f64>,
    /// What turns gradients into steps: "adamw" or "muon". The run's recipe where absent.
    pub optimiser: Option<model::Optimiser>,
    /// Sequences on the device at once; a larger step is added up from several. The run's recipe where absent.
    pub micro_batch_sequences: Option<usize>,
    /// Blocks before the commit deadline at which training stops.
    pub commit_margin_blocks: Option<u32>,
    /// Seconds between two snapshots inside a window: what a killed miner trains again at most.
    pub snapshot_every_seconds: Option<u64>,
    /// Steps between two snapshots, instead of seconds.
    pub snapshot_every_steps: Option<u32>,
    /// A step whose loss is above so many nats per token is not taken, and the window given up.
    pub loss_max: Option<f64>,
}

/// A validator's own choices.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ServeFile {
    /// Contributions evaluated in one window, at most.
    pub evaluations_max: Option<usize>,
    /// Held-out sequences on which the model is reported.
    pub held_out_sequences: Option<u64>,
}

/// Flags that every verb shares. Each overrides the file's value of the same name.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct Flags {
    /// Settings file (TOML).
    #[arg(long, value_name = "FILE", env = "METTLE_CONFIG")]
    pub config: Option<PathBuf>,
    /// URL of the chain's JSON-RPC, such as ws://127.0.0.1:9944.
    #[arg(long, value_name = "URL", env = "METTLE_CHAIN")]
    pub chain: Option<String>,
    /// The run to take part in.
    #[arg(long, value_name = "ID", env = "METTLE_RUN")]
    pub run: Option<u32>,
    /// The hotkey: a key file, or a development key such as //Alice.
    #[arg(long, value_name = "KEY", env = "METTLE_KEY")]
    pub key: Option<String>,
    /// A file whose first line is the key's password. Otherwise METTLE_KEY_PASSWORD, or a prompt.
    #[arg(long, value_name = "FILE")]
    pub password_file: Option<PathBuf>,
    /// Where the node keeps its model, its snapshot and its journal.
    #[arg(long, value_name = "DIR", env = "METTLE_DIRECTORY")]
    pub directory: Option<PathBuf>,
    /// A prepared dataset on this machine.
    #[arg(long, value_name = "DIR")]
    pub dataset: Option<PathBuf>,
    /// The device to compute on: cpu, or cuda:0 in a build with it.
    #[arg(long, value_name = "DEVICE")]
    pub device: Option<String>,
}

/// Where the chain is, which run is meant, and which key, for verbs that need no more than that.
#[derive(Clone, Debug, PartialEq)]
pub struct EndpointArgs {
    pub chain: String,
    pub run: RunId,
    pub key: Option<KeySource>,
    pub password_file: Option<PathBuf>,
}

/// Flags of verbs that need a chain and a run.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct ChainFlags {
    /// Settings file (TOML).
    #[arg(long, value_name = "FILE", env = "METTLE_CONFIG")]
    pub config: Option<PathBuf>,
    /// URL of the chain's JSON-RPC, such as ws://127.0.0.1:9944.
    #[arg(long, value_name = "URL", env = "METTLE_CHAIN")]
    pub chain: Option<String>,
    /// The run.
    #[arg(long, value_name = "ID", env = "METTLE_RUN")]
    pub run: Option<u32>,
}

/// Flags of verbs that concern one seat.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct SeatFlags {
    #[command(flatten)]
    pub chain_flags: ChainFlags,
    /// The seat's hotkey: a key file, or a development key such as //Alice.
    #[arg(long, value_name = "KEY", env = "METTLE_KEY")]
    pub key: Option<String>,
    /// The seat, by its number instead of its hotkey.
    #[arg(long, value_name = "UID")]
    pub uid: Option<u16>,
}

/// Flags of verbs that an account signs which need not have a seat.
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
    /// Reads the file that the flags name, if any, and lays the flags over it. A key that is given wins over the file's.
    pub fn read(&self, key: Option<&str>) -> anyhow::Result<EndpointArgs> {
        let file = file(&self.config)?;
        let key = key.map(str::to_owned).or(file.key);
        let key = key.map(|key| key.parse().with_context(|| format!("`{key}` is no key"))).transpose()?;
        Ok(EndpointArgs {
            chain: self.chain.clone().or(file.chain).unwrap_or_else(|| format!("ws://{DEFAULT_CHAIN}")),
            run: RunId(self.run.or(file.run).unwrap_or(0)),
            key,
            password_file: file.password_file,
        })
    }
}

impl SeatFlags {
    pub fn read(&self) -> anyhow::Result<EndpointArgs> {
        self.chain_flags.read(self.key.as_deref())
    }
}

impl AccountFlags {
    pub fn read(&self) -> anyhow::Result<EndpointArgs> {
        let args = self.chain_flags.read(self.key.as_deref())?;
        Ok(EndpointArgs { password_file: self.password_file.clone().or(args.password_file), ..args })
    }
}

/// The same, checked. Built once in `main`.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    pub chain: String,
    pub run: RunId,
    pub key: KeySource,
    pub password_file: Option<PathBuf>,
    pub directory: PathBuf,
    pub dataset: Option<PathBuf>,
    pub device: toml::Value,
    pub store: Option<StoreFile>,
    pub data_source: DataSource,
    pub train: TrainFile,
    pub serve: ServeFile,
}

/// What a verb needs that only reads: no key, and no bucket of one's own.
#[derive(Clone, Debug, PartialEq)]
pub struct ReadOnlyConfig {
    pub chain: String,
    pub run: RunId,
    pub directory: PathBuf,
    pub dataset: Option<PathBuf>,
    pub data_source: DataSource,
    pub device: toml::Value,
}

impl ReadOnlyConfig {
    /// As [`Settings::read`], for verbs that sign nothing.
    pub fn read(flags: &Flags) -> anyhow::Result<ReadOnlyConfig> {
        let file = file(&flags.config)?;
        let directory = flags.directory.clone().or(file.directory);
        Ok(ReadOnlyConfig {
            chain: flags.chain.clone().or(file.chain).unwrap_or_else(|| format!("ws://{DEFAULT_CHAIN}")),
            run: RunId(flags.run.or(file.run).unwrap_or(0)),
            directory: directory.unwrap_or_else(|| PathBuf::from("mettle-data")),
            dataset: flags.dataset.clone().or(file.dataset),
            data_source: file.data.unwrap_or_default().checked(),
            device: device(flags, file.device),
        })
    }
}

/// Where a node listens by default when it is the user's own machine.
pub const DEFAULT_CHAIN: SocketAddr =
    SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 9944);

impl Settings {
    /// Reads the file that the flags name, if any, and lays the flags over it.
    pub fn read(flags: &Flags) -> anyhow::Result<Settings> {
        Settings::checked(file(&flags.config)?, flags)
    }

    fn checked(file: File, flags: &Flags) -> anyhow::Result<Settings> {
        let Some(key) = flags.key.clone().or(file.key) else {
            bail!("no hotkey was given: add --key FILE, or `key = \"FILE\"` to the settings file");
        };
        let key = key.parse().with_context(|| format!("`{key}` is no key"))?;
        Ok(Settings {
            chain: flags.chain.clone().or(file.chain).unwrap_or_else(|| format!("ws://{DEFAULT_CHAIN}")),
            run: RunId(flags.run.or(file.run).unwrap_or(0)),
            key,
            password_file: flags.password_file.clone().or(file.password_file),
            directory: flags
                .directory
                .clone()
                .or(file.directory)
                .unwrap_or_else(|| PathBuf::from("mettle-data")),
            dataset: flags.dataset.clone().or(file.dataset),
            device: device(flags, file.device),
            store: file.store,
            data_source: file.data.unwrap_or_default().checked(),
            train: file.train.unwrap_or_default(),
            serve: file.serve.unwrap_or_default(),
        })
    }
}

/// The flag, else the file's value, else the CPU. The device's crate knows what it means.
fn device(flags: &Flags, file: Option<toml::Value>) -> toml::Value {
    let device = flags.device.clone().map(toml::Value::String).or(file);
    let device = device.unwrap_or_else(|| toml::Value::String("cpu".into()));
    if let Some((name, _)) = device.as_str().and_then(|text| text.split_once(',')) {
        tracing::warn!(
            %device,
            "settings behind a device's name are the older form: write [device] with name = \"{name}\" and the keys engine, \
             precision and activation_checkpointing"
        );
    }
    device
}

fn file(path: &Option<PathBuf>) -> anyhow::Result<File> {
    path.as_deref().map_or_else(|| Ok(File::default()), parse)
}

fn parse(path: &Path) -> anyhow::Result<File> {
    let text = std::fs::read_to_string(path)
        .with_context(|| format!("could not read the settings file {}", path.display()))?;
    toml::from_str(&text).with_context(|| format!("{} is not a settings file of ours", path.display()))
}

impl StoreFile {
    /// The secret, from wherever the file says it is.
    pub fn secret(&self) -> anyhow::Result<String> {
        if let Some(path) = &self.secret_key_file {
            let text = std::fs::read_to_string(path)
                .with_context(|| format!("could not read the store's secret from {}", path.display()))?;
            return Ok(text.trim().to_owned());
        }
        if let Some(secret) = &self.secret_key {
            return Ok(secret.clone());
        }
        std::env::var("METTLE_STORE_SECRET")
            .context("no secret for the store: set METTLE_STORE_SECRET, or `secret_key_file` under [store]")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flag_wins_over_the_file_and_a_typo_is_refused() {
        let file: File = toml::from_str("chain = \"ws://a\"\nkey = \"//Alice\"\nrun = 3").unwrap();
        let flags = Flags { chain: Some("ws://b".into()), ..Flags::default() };
        let settings = Settings::checked(file, &flags).unwrap();
        assert_eq!((settings.chain.as_str(), settings.run), ("ws://b", RunId(3)));
        assert_eq!(settings.device.as_str(), Some("cpu"));

        assert_eq!(settings.data_source, DataSource { mirrors: Vec::new(), cache_bytes: 16 << 30 });
        let file =
            toml::from_str::<File>("key = \"//Alice\"\n[data]\ncache_bytes = 5\nmirrors = [\"https://a/b\"]")
                .unwrap();
        let settings = Settings::checked(file, &Flags::default()).unwrap();
        assert_eq!(settings.data_source, DataSource { mirrors: vec!["https://a/b".into()], cache_bytes: 5 });

        assert!(toml::from_str::<File>("chian = \"ws://a\"").is_err());
        assert!(toml::from_str::<File>("[train]\nbatch = 3").is_err());
    }

    #[test]
    fn without_a_key_the_message_says_how_to_give_one() {
        let error = Settings::checked(File::default(), &Flags::default()).unwrap_err().to_string();
        assert!(error.contains("--key"), "{error}");
    }

    #[test]
    fn whoever_only_reads_needs_no_key() {
        let flags = Flags { run: Some(4), ..Flags::default() };
        let reading = ReadOnlyConfig::read(&flags).unwrap();
        assert_eq!((reading.run, reading.device.as_str()), (RunId(4), Some("cpu")));
    }

    #[test]
    fn a_missing_settings_file_is_named() {
        let flags = Flags { config: Some("/no/such/miner.toml".into()), ..Flags::default() };
        let error = Settings::read(&flags).unwrap_err().to_string();
        assert!(error.contains("/no/such/miner.toml"), "{error}");
    }
}
