//! Opens all resources that a node needs before its first window.

use crate::config::{ChainConfig, ReadOnlyConfig, Settings, StoreFile};
use crate::{
    Blocking, ChainWitness, Codec, Follower, Journal, Node, SyncDriver,
    data::fetch_dataset,
    durable::{DirectoryLock, DiskStatus, FileError, retry_while_full, write_atomic},
    mirrors::Mirrors,
    peers::{PeerStore, Peers},
    storage::Storage,
    traces::TracedSeat,
};
use anyhow::{Context as _, bail};
use chain_client::{
    Amount, Chain, SubxtChain, account, is_private,
    keys::{Key, KeyPassword, KeySource, Prompt, address},
};
use dataset::Dataset;
use ed25519_dalek::SigningKey;
use futures::future::BoxFuture;
use model::RunSpec;
use network::PeerUrl;
use protocol::{
    Digest, GenesisHash, Hotkey, Role, RunId, RunParams,
    identity::{BadHex, Signer},
    keys,
    view::{RunView, SeatView},
};
use std::{
    io::ErrorKind,
    path::{Path, PathBuf},
    sync::Arc,
};
use store::{Fetch, HttpFetcher, Limits, Store, Traffic, fetch::FetchPolicy};

/// File name of the run's specification in a node's directory.
pub const SPEC_FILE: &str = "spec.json";

/// File name of the genesis hash of the chain to which a node's directory belongs.
pub const GENESIS_FILE: &str = "genesis";

pub struct NodeContext {
    /// The hotkey, for signatures that the protocol itself checks.
    pub key: SigningKey,
    pub chain: Arc<dyn Chain>,
    /// The second node of the chain, if configured.
    pub witness: Option<ChainWitness>,
    pub fetch: Arc<dyn Fetch>,
    /// Connections to peers, for a validator or a miner without a bucket.
    pub peers: Option<Arc<Peers>>,
    /// The node's own bucket or its replacement.
    pub store: Arc<dyn Store>,
    pub seat: SeatView,
    pub spec: RunSpec,
    pub dataset: Arc<Dataset>,
    pub follower: Arc<Follower>,
    pub journal: Journal,
    pub lock: DirectoryLock,
}

impl NodeContext {
    pub fn run(&self) -> &RunView {
        &self.follower.run
    }

    /// Returns a counter of transferred bytes: up to the own bucket, and down.
    pub fn traffic(&self) -> Box<dyn Fn() -> (u64, u64) + Send + Sync> {
        let (store, fetch) = (self.store.clone(), self.fetch.clone());
        Box::new(move || {
            let (own, fetched) = (store.traffic(), fetch.traffic());
            (own.up_bytes, own.down_bytes.saturating_add(fetched.down_bytes))
        })
    }

    /// Returns the seat in the form that traces use.
    pub fn traced(&self) -> TracedSeat {
        let SeatView { id, role, .. } = &self.seat;
        TracedSeat { genesis: self.chain.genesis(), run: self.run().id, role: *role, uid: id.uid }
    }

    /// Builds the node around its model.
    pub fn into_node(self, sync: SyncDriver, directory: PathBuf, windows_max: Option<u32>) -> Node {
        Node {
            heads: self.chain.heads(),
            blocking: sync.follower.blocking,
            traffic: self.traffic(),
            witness: self.witness,
            signer: Signer::new(self.key, self.chain.genesis()),
            sync,
            store: self.store,
            dataset: self.dataset,
            seat: self.seat,
            journal: self.journal,
            directory,
            windows_max,
            lock: Some(self.lock),
        }
    }
}

/// Opens the key named in the settings. Asks for its password if there is a terminal.
///
/// # Errors
/// If the key cannot be read or decrypted.
pub fn key(settings: &Settings) -> anyhow::Result<Key> {
    let password_file = settings.password_file.as_deref();
    let key = settings
        .key
        .open(|path| KeyPassword::from_environment(&path.display().to_string(), password_file, Prompt::Once));
    key.with_context(|| format!("could not open the key {}", settings.key))
}

/// Connects to the chain. With a key, calls are signed.
///
/// # Errors
/// If the URL would send signed calls unencrypted over a public network, or the chain is not the configured one.
/// Without a configured one, it must be a development chain.
pub async fn chain(config: &ChainConfig, key: Option<Key>) -> anyhow::Result<Arc<dyn Chain>> {
    chain_with_tip(config, key, Amount::ZERO).await
}

/// Connects like [`chain`], with a tip on top of each fee.
///
/// # Errors
/// As [`chain`].
pub async fn chain_with_tip(
    config: &ChainConfig,
    key: Option<Key>,
    tip: Amount,
) -> anyhow::Result<Arc<dyn Chain>> {
    let ChainConfig { url, genesis, allow_plain_ws, .. } = config;
    if !url.starts_with("wss://") && !is_private(url) && !allow_plain_ws {
        bail!(
            "{url} is not encrypted, and its host is not in a private network: any network on the way could answer for \
             the chain. Use wss://, or add `allow_plain_ws = true` to the settings file"
        );
    }
    let chain = SubxtChain::connect_to(url, key, *genesis).await?;
    if genesis.is_none() {
        check_unnamed(url, chain.genesis(), chain.is_development())?;
    }
    Ok(Arc::new(chain.with_tip(tip)))
}

/// Refuses an unconfigured chain unless it is a development chain.
fn check_unnamed(url: &str, found: GenesisHash, is_development: bool) -> anyhow::Result<()> {
    if !is_development {
        bail!(
            "the settings name no chain, and {url} is no local development chain. It says that its genesis hash is \
             {found}: compare this with what the network publishes, then add it with --genesis, or as `genesis` to the \
             settings file"
        );
    }
    Ok(())
}

/// Refuses a development key, whose secret is public, on any chain except a development chain.
///
/// # Errors
/// If the key is a development key and the chain is not a development chain.
pub fn check_key(key: &KeySource, is_development: bool) -> anyhow::Result<()> {
    if matches!(key, KeySource::Dev(_)) && !is_development {
        bail!("the secret of {key} is public, and this is no local development chain. Use a key file");
    }
    Ok(())
}

/// Error for a directory that cannot be used on a chain.
#[derive(Debug, thiserror::Error)]
pub enum PinError {
    #[error(
        "the directory {} was used on the chain with genesis {found}, and this is the chain with genesis {chain}. Give \
         the URL of the former, or use another directory",
        directory.display()
    )]
    OtherChain { directory: PathBuf, found: GenesisHash, chain: GenesisHash },
    #[error("{} holds no genesis hash: remove it if the directory is of this chain", path.display())]
    Damaged { path: PathBuf, source: BadHex },
    #[error(transparent)]
    File(#[from] FileError),
}

/// Writes the chain's genesis hash into a node's directory, or compares it with the existing one. A directory belongs
/// to one chain, because runs and windows have the same numbers on every chain.
fn pin_chain(directory: &Path, chain: GenesisHash) -> Result<(), PinError> {
    match check_pin(directory, chain)? {
        true => Ok(()),
        false => Ok(write_atomic(&directory.join(GENESIS_FILE), format!("{chain}\n").as_bytes())?),
    }
}

/// Returns whether a node's directory was used on this chain; false for an unused directory.
///
/// # Errors
/// If it was used on another chain, or its file cannot be read.
pub fn check_pin(directory: &Path, chain: GenesisHash) -> Result<bool, PinError> {
    let path = directory.join(GENESIS_FILE);
    match std::fs::read_to_string(&path) {
        Ok(text) => {
            let found = text.trim().parse().map_err(|source| PinError::Damaged { path, source })?;
            if found == chain {
                return Ok(true);
            }
            Err(PinError::OtherChain { directory: directory.to_owned(), found, chain })
        }
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
        Err(source) => Err(FileError::Read { path, source }.into()),
    }
}

/// Opens chain, seat, bucket, specification and data, in the order of the likeliest errors.
///
/// # Errors
/// If one of them cannot be opened, or they do not fit together.
pub fn open(settings: &Settings, role: Role) -> BoxFuture<'_, anyhow::Result<NodeContext>> {
    Box::pin(async move {
        let reading = &settings.reading;
        let (disk, directory) = (DiskStatus::default(), &reading.directory);
        retry_while_full(&disk, || async { std::fs::create_dir_all(directory) })
            .await
            .with_context(|| format!("could not make the directory {}", directory.display()))?;
        let lock = retry_while_full(&disk, || async { DirectoryLock::acquire(directory) }).await?;
        let key = key(settings)?;
        let (hotkey, signing_key) = (key.hotkey(), key.signing_key()?.clone());
        let chain = self::chain(&reading.chain, Some(key)).await?;
        check_key(&settings.key, chain.is_development())?;
        retry_while_full(&disk, || async { pin_chain(directory, chain.genesis()) }).await?;
        let witness = match &reading.chain.witness {
            Some(url) => Some(ChainWitness::open(&reading.chain, url.clone(), &*chain).await?),
            None => None,
        };
        let run = chain.run(reading.run).await?;

        let seat = seat(&*chain, run.id, &hotkey, role, &settings.key).await?;

        let bucket = settings.store.as_ref().map(StoreFile::open).transpose()?;
        check_kind(settings, role, &seat.endpoint)?;

        let (http, spec) = published(&*chain, &run).await?;
        let signer = Signer::new(signing_key.clone(), chain.genesis());
        let peer = settings.peer.clone().unwrap_or_default();
        // Every validator fetches the contributions of miners without a bucket.
        let any: Arc<dyn Fetch> = http.clone();
        let peers = match role == Role::Validator || bucket.is_none() {
            true => Some(Peers::open(&peer, role, directory, &chain, &run, &any).await?),
            false => None,
        };
        let (store, fetch): (Arc<dyn Store>, Arc<dyn Fetch>) = match (bucket, &peers) {
            (Some(bucket), peers) => {
                let fetch = match peers {
                    Some(peers) => peers.clone(),
                    None => any,
                };
                (Arc::new(bucket), fetch)
            }
            (None, Some(peers)) => {
                let (uid, endpoint, traffic) = (seat.id.uid, seat.endpoint.clone(), Traffic::default());
                let store =
                    PeerStore { peers: peers.clone(), uid, endpoint, signer: signer.clone(), traffic };
                (Arc::new(store), peers.clone())
            }
            (None, None) => bail!(NO_BUCKET),
        };
        if settings.store.is_some() {
            check_bucket(&*store, &http, &seat.endpoint).await?;
        }
        // Kept with the model, so that the directory can be read without a chain.
        let (spec_path, bytes) = (directory.join(SPEC_FILE), spec.to_bytes());
        if !std::fs::read(&spec_path).is_ok_and(|kept| kept == bytes) {
            retry_while_full(&disk, || async { write_atomic(&spec_path, &bytes) }).await?;
        }
        let dataset = match &reading.dataset {
            Some(dataset) => open_dataset(dataset, run.manifest).await?,
            None => {
                let data = directory.join("dataset");
                let fetched = || fetch_dataset(fetch.clone(), &run, &data, &reading.data_source, Some(&disk));
                Arc::new(retry_while_full(&disk, fetched).await?)
            }
        };
        let follower = Arc::new(Follower {
            keeps_buffer: role == Role::Validator,
            turn: usize::from(seat.id.uid.0),
            storage: Storage::on_disk(directory),
            ..follower(&chain, fetch.clone(), run, &spec)?
        });
        if let Some(peers) = &peers {
            peers.serve(&peer, follower.contribution_limits().max_bytes, &store, &signer)?;
        }
        let journal_path = directory.join("journal.jsonl");
        let journal = retry_while_full(&disk, || async { Journal::open(&journal_path) })
            .await
            .with_context(|| format!("could not open the journal {}", journal_path.display()))?;
        Ok(NodeContext {
            key: signing_key,
            chain,
            witness,
            fetch,
            peers,
            store,
            seat,
            spec,
            dataset,
            follower,
            journal,
            lock,
        })
    })
}

/// Error text for settings without a bucket.
pub const NO_BUCKET: &str =
    "no bucket was given: add a [store] section with endpoint, bucket and access_key to the settings file";

/// Returns the seat of a hotkey for a node of this role. `key` names the hotkey in errors.
///
/// # Errors
/// If the hotkey has no seat in the run or a seat of another role, or the chain cannot be read.
pub async fn seat(
    chain: &dyn Chain,
    run: RunId,
    hotkey: &Hotkey,
    role: Role,
    key: &KeySource,
) -> anyhow::Result<SeatView> {
    let Some(seat) = account::seat_of(chain, run, hotkey).await? else {
        bail!(
            "{} has no seat in run {run}. Register it first: `mettle register {role} --run {run} --key {key} …`",
            address(&hotkey.0)
        );
    };
    if seat.role != role {
        bail!("uid {} in run {run} is a {}'s seat, not a {role}'s", seat.id.uid, seat.role);
    }
    Ok(seat)
}

/// Refuses settings that do not fit the seat's endpoint.
///
/// # Errors
/// If settings and endpoint disagree on whether the seat has a bucket, or a miner has `[peer]` settings.
pub fn check_kind(settings: &Settings, role: Role, endpoint: &str) -> anyhow::Result<()> {
    if role == Role::Miner && settings.peer.is_some() {
        bail!("[peer] is for validators: a miner connects to them, and nobody connects to it. Remove it");
    }
    match (settings.store.is_some(), PeerUrl::is_one(endpoint)) {
        (false, _) if role == Role::Validator => bail!(NO_BUCKET),
        (false, false) => bail!(
            "no bucket was given, and the seat's endpoint {endpoint} is one: add a [store] section to the settings file. \
             A seat without a bucket is registered with the endpoint that `miner endpoint` prints"
        ),
        (has_bucket, true) => check_peer(role, endpoint, has_bucket),
        _ => Ok(()),
    }
}

/// Returns whether an endpoint belongs to a seat without a bucket.
pub fn is_peer(endpoint: &str) -> bool {
    PeerUrl::is_one(endpoint)
}

/// Refuses a peer's endpoint that the seat cannot use.
fn check_peer(role: Role, endpoint: &str, has_bucket: bool) -> anyhow::Result<()> {
    let url: PeerUrl = endpoint.parse().with_context(|| format!("the endpoint {endpoint} names no peer"))?;
    if url.address.is_some() {
        bail!(
            "the endpoint {endpoint} has an address, which nobody connects to: give what `miner endpoint` prints"
        );
    }
    if role == Role::Validator {
        bail!("the endpoint {endpoint} is a peer's, and a validator needs a bucket: give its public URL");
    }
    if has_bucket {
        bail!(
            "the seat's endpoint is {endpoint}, so nobody reads the bucket of [store]: remove [store] from the settings file"
        );
    }
    Ok(())
}

/// Writes an object, reads it at the seat's public URL and deletes it, so that a wrong secret or URL is found before
/// training starts. A temporary failure of the bucket does not prevent the start.
async fn check_bucket(store: &dyn Store, fetch: &HttpFetcher, endpoint: &str) -> anyhow::Result<()> {
    match store::check_bucket(store, fetch, endpoint).await {
        Ok(()) => Ok(()),
        Err(error) if error.may_pass() => {
            tracing::warn!(error = crate::error_chain(&error), "could not check the bucket; starting without");
            Ok(())
        }
        Err(error) => Err(error).context(
            "the bucket cannot be used: correct [store] in the settings file, the access rules of the bucket, or its \
             endpoint",
        ),
    }
}

/// The resources of a reader of a run: no key, no seat, no bucket.
pub struct ReadOnlyContext {
    pub chain: Arc<dyn Chain>,
    pub spec: RunSpec,
    pub dataset: Arc<Dataset>,
    /// Keeps the error-feedback buffer, so that merges can be repeated.
    pub follower: Arc<Follower>,
}

/// Opens chain, specification and data to read them.
///
/// # Errors
/// If one of them cannot be opened, or the disk is full.
pub fn open_read_only(reading: &ReadOnlyConfig) -> BoxFuture<'_, anyhow::Result<ReadOnlyContext>> {
    Box::pin(async move {
        let chain = self::chain(&reading.chain, None).await?;
        let run = chain.run(reading.run).await?;
        let (fetch, spec) = published(&*chain, &run).await?;
        let dataset = match &reading.dataset {
            Some(dataset) => open_dataset(dataset, run.manifest).await?,
            None => {
                let data = reading.directory.join("dataset");
                Arc::new(fetch_dataset(fetch.clone(), &run, &data, &reading.data_source, None).await?)
            }
        };
        let follower = Arc::new(follower(&chain, fetch, run, &spec)?);
        Ok(ReadOnlyContext { chain, spec, dataset, follower })
    })
}

/// A run and its specification, for readers of its model.
pub struct PublishedRun {
    pub chain: Arc<dyn Chain>,
    pub fetch: Arc<HttpFetcher>,
    pub run: RunView,
    pub spec: RunSpec,
}

/// Opens chain and specification. Fetches no data.
///
/// # Errors
/// If the chain cannot be read or the specification cannot be fetched.
pub fn open_published_run(chain: &ChainConfig, run: RunId) -> BoxFuture<'_, anyhow::Result<PublishedRun>> {
    Box::pin(async move {
        let chain = self::chain(chain, None).await?;
        let run = chain.run(run).await?;
        let (fetch, spec) = published(&*chain, &run).await?;
        Ok(PublishedRun { chain, fetch, run, spec })
    })
}

/// Creates a fetcher with the run's policy. A run that is marked as a localnet is fetched from private addresses only
/// on a development chain. On a public chain its creator could otherwise direct readers to addresses behind their
/// firewalls.
///
/// # Errors
/// If the HTTP client cannot be created.
pub fn fetcher(chain: &dyn Chain, params: &RunParams) -> anyhow::Result<HttpFetcher> {
    Ok(HttpFetcher::new(fetch_policy(params, chain.is_development()))?)
}

/// Checks the form of an endpoint before a seat is registered with it. Refuses buckets that nodes would not fetch
/// from.
///
/// # Errors
/// If the seat cannot use the endpoint.
pub fn check_endpoint(
    chain: &dyn Chain,
    params: &RunParams,
    role: Role,
    endpoint: &str,
    has_bucket: bool,
) -> anyhow::Result<()> {
    if PeerUrl::is_one(endpoint) {
        return check_peer(role, endpoint, has_bucket);
    }
    let checked = store::fetch::check_base_url(endpoint, &fetch_policy(params, chain.is_development()));
    checked.with_context(|| format!("`--endpoint {endpoint}` cannot be the seat's bucket"))
}

fn fetch_policy(params: &RunParams, is_development: bool) -> FetchPolicy {
    if params.localnet && is_development { FetchPolicy::localnet() } else { FetchPolicy::public() }
}

/// Returns a fetcher with the run's policy, and the run's specification.
async fn published(chain: &dyn Chain, run: &RunView) -> anyhow::Result<(Arc<HttpFetcher>, RunSpec)> {
    let fetch = Arc::new(fetcher(chain, &run.params)?);
    let spec = specification(chain, &*fetch, run).await?;
    Ok((fetch, spec))
}

/// Fetches the run's specification from its origin or a validator.
///
/// # Errors
/// If the chain cannot be read, no mirror serves the specification, or it is invalid.
pub async fn specification(chain: &dyn Chain, fetch: &dyn Fetch, run: &RunView) -> anyhow::Result<RunSpec> {
    let seats = chain.seats(run.id).await.context("could not read the run's seats from the chain")?;
    let mirrors = Mirrors::one(&run.origin).and(Mirrors::validators(&seats, &[], &run.origin, 0));
    let limits = Limits::for_bytes(model::SPEC_BYTES_MAX);
    let bytes = mirrors.get(fetch, &keys::spec(&run.spec), &run.spec, &limits).await;
    Ok(RunSpec::from_bytes(&bytes.context("could not fetch the run's specification")?)?)
}

/// Opens the user's own copy of the dataset, which is never repaired here.
async fn open_dataset(directory: &Path, manifest: Digest) -> anyhow::Result<Arc<Dataset>> {
    let path = directory.to_owned();
    let opened = tokio::task::spawn_blocking(move || Dataset::open(&path, Some(manifest))).await?;
    Ok(Arc::new(opened.with_context(|| {
        format!(
            "the dataset in {} cannot be used. Prepare it again from the same texts with the same options, copy it again from where you \
             have it, or name none (`--dataset`, or `dataset` in the settings file): then the run's own is fetched",
            directory.display()
        )
    })?))
}

/// Creates a follower that keeps the buffer, and keeps nothing on the disk.
fn follower(
    chain: &Arc<dyn Chain>,
    fetch: Arc<dyn Fetch>,
    run: RunView,
    spec: &RunSpec,
) -> anyhow::Result<Follower> {
    let schema = spec.schema()?;
    let codec =
        |density| Codec::new(&schema, density).map(Arc::new).context("the run has an impossible density");
    let (sent, merged) = (codec(run.params.density)?, codec(run.params.merge_density)?);
    Ok(Follower {
        chain: chain.clone(),
        fetch,
        run,
        spec: spec.clone(),
        sent,
        merged,
        keeps_buffer: true,
        turn: 0,
        storage: Storage::memory(),
        blocking: Blocking::Pool,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use dataset::{manifest_path, shard_path, tokenizer_path};
    use prepare::{OutputDirectory, PrepareOptions, Source, TokenizerChoice};
    use std::fs;

    #[test]
    fn a_directory_is_used_on_one_chain_only() {
        let home = tempfile::tempdir().unwrap();
        let (one, other) = (GenesisHash([1; 32]), GenesisHash([2; 32]));
        pin_chain(home.path(), one).unwrap();
        pin_chain(home.path(), one).unwrap();
        let text = pin_chain(home.path(), other).unwrap_err().to_string();
        assert!(text.contains(&one.to_string()) && text.contains(&other.to_string()), "{text}");
        fs::write(home.path().join(GENESIS_FILE), "no hash").unwrap();
        assert!(matches!(pin_chain(home.path(), one), Err(PinError::Damaged { .. })));
    }

    #[test]
    fn a_public_chain_takes_no_public_secret_no_private_endpoint_and_no_trust_on_sight() {
        let (dev, file) = ("//Alice".parse().unwrap(), "hotkey.json".parse().unwrap());
        assert!(check_key(&dev, true).is_ok() && check_key(&file, false).is_ok());
        let refused = check_key(&dev, false).unwrap_err().to_string();
        assert!(refused.contains("//Alice") && refused.contains("public"), "{refused}");

        // The run's creator marks it as a localnet.
        let params = RunParams { localnet: true, ..RunParams::default() };
        assert!(!fetch_policy(&params, false).allow_private);
        assert!(fetch_policy(&params, true).allow_private);
        assert!(!fetch_policy(&RunParams::default(), true).allow_private);

        let found = GenesisHash([7; 32]);
        assert!(check_unnamed("ws://127.0.0.1:9944", found, true).is_ok());
        let refused = check_unnamed("wss://rpc.example", found, false).unwrap_err().to_string();
        assert!(refused.contains(&found.to_string()) && refused.contains("--genesis"), "{refused}");
    }

    #[tokio::test]
    async fn an_open_url_beyond_a_private_network_is_refused() {
        let config = |url: &str| ChainConfig {
            url: url.to_owned(),
            witness: None,
            genesis: None,
            allow_plain_ws: false,
        };
        let refused = chain(&config("ws://rpc.example:9944"), None).await.err().unwrap().to_string();
        assert!(refused.contains("allow_plain_ws"), "{refused}");
    }

    #[tokio::test]
    async fn a_damaged_dataset_error_names_file_reason_and_remedy() {
        let home = tempfile::tempdir().unwrap();
        let (text, data) = (home.path().join("text.txt"), home.path().join("data"));
        fs::write(&text, (0..3000).map(|at| format!("{} lines and more\n", at * 7919)).collect::<String>())
            .unwrap();
        let options = PrepareOptions {
            tokenizer: TokenizerChoice::Train { vocab: 300 },
            seq_len: 32,
            held_out_sequences_min: 8,
            ..PrepareOptions::new(Source::directory(text), OutputDirectory::Directory(data.clone()))
        };
        let digest = prepare::prepare(options, &mut |_| {}).unwrap().digest;
        let manifest = open_dataset(&data, digest).await.unwrap().manifest().clone();
        let said = async |manifest| format!("{:#}", open_dataset(&data, manifest).await.err().unwrap());
        let what_to_do = ["Prepare it again", "copy it again", "`--dataset`"];

        let cut = |bytes: &[u8]| bytes[..bytes.len() - 1].to_vec();
        let shard = shard_path(&data, &manifest.training[0].digest);
        for (path, why) in [
            (manifest_path(&data), "no usable manifest"),
            (tokenizer_path(&data), "not the tokenizer that the manifest names"),
            (shard, "bytes instead of"),
        ] {
            let whole = fs::read(&path).unwrap();
            fs::write(&path, cut(&whole)).unwrap();
            let damaged = said(digest).await;
            fs::remove_file(&path).unwrap();
            let gone = said(digest).await;
            fs::write(&path, whole).unwrap();
            for (said, why) in [(damaged, why), (gone, "No such file")] {
                assert!(said.contains(path.to_str().unwrap()) && said.contains(why), "{said}");
                assert!(what_to_do.iter().all(|what| said.contains(what)), "{said}");
            }
        }
        let other = said(Digest([7; 32])).await;
        assert!(
            other.contains("the run uses 0707") && what_to_do.iter().all(|what| other.contains(what)),
            "{other}"
        );
        assert!(open_dataset(&data, digest).await.is_ok());
    }
}
