//! Opens everything that a node needs before its first window.

use crate::config::{ReadOnlyConfig, Settings};
use crate::{
    Blocking, Codec, Follower, Journal, Node, SyncDriver,
    data::fetch_dataset,
    durable::{DirectoryLock, DiskStatus, retry_while_full, write_atomic},
    mirrors::Mirrors,
};
use anyhow::{Context as _, bail};
use chain_client::{
    Amount, Chain, SubxtChain,
    keys::{Key, KeyPassword, Prompt},
};
use dataset::Dataset;
use futures::future::BoxFuture;
use model::RunSpec;
use protocol::{
    Digest, Role, RunId, RunParams, keys,
    view::{RunView, SeatView},
};
use std::{
    path::{Path, PathBuf},
    sync::Arc,
};
use store::{Fetch as _, HttpFetcher, Limits, Store, fetch::FetchPolicy};

/// The name of the run's specification in a node's directory.
pub const SPEC_FILE: &str = "spec.json";

pub struct NodeContext {
    pub key: Key,
    pub chain: Arc<dyn Chain>,
    pub fetch: Arc<HttpFetcher>,
    /// The node's own bucket.
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

    /// Bytes moved so far: up to the own bucket, and down.
    pub fn traffic(&self) -> Box<dyn Fn() -> (u64, u64) + Send + Sync> {
        let (store, fetch) = (self.store.clone(), self.fetch.clone());
        Box::new(move || {
            let (own, fetched) = (store.traffic(), fetch.traffic());
            (own.up_bytes, own.down_bytes.saturating_add(fetched.down_bytes))
        })
    }

    /// The node, with its model.
    pub fn into_node(self, sync: SyncDriver, directory: PathBuf, windows_max: Option<u32>) -> Node {
        Node {
            heads: self.chain.heads(),
            blocking: sync.follower.blocking,
            traffic: self.traffic(),
            key: self.key.signing_key().clone(),
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
pub fn key(settings: &Settings) -> anyhow::Result<Key> {
    let password_file = settings.password_file.as_deref();
    let key = settings
        .key
        .open(|path| KeyPassword::from_environment(&path.display().to_string(), password_file, Prompt::Once));
    key.with_context(|| format!("could not open the key {}", settings.key))
}

/// Connects to the chain; with a key, calls are signed.
pub async fn chain(url: &str, key: Option<Key>) -> anyhow::Result<Arc<dyn Chain>> {
    chain_with_tip(url, key, Amount::ZERO).await
}

/// [`chain`], with a tip on top of each fee.
pub async fn chain_with_tip(url: &str, key: Option<Key>, tip: Amount) -> anyhow::Result<Arc<dyn Chain>> {
    let chain = SubxtChain::connect(url, key).await?;
    Ok(Arc::new(chain.with_tip(tip)))
}

/// Opens chain, seat, bucket, specification and data, the most likely errors first.
pub fn open(settings: &Settings, role: Role) -> BoxFuture<'_, anyhow::Result<NodeContext>> {
    Box::pin(async move {
        let reading = &settings.reading;
        let (disk, directory) = (DiskStatus::default(), &reading.directory);
        retry_while_full(&disk, || async { std::fs::create_dir_all(directory) })
            .await
            .with_context(|| format!("could not make the directory {}", directory.display()))?;
        let lock = retry_while_full(&disk, || async { DirectoryLock::acquire(directory) }).await?;
        let key = key(settings)?;
        let hotkey = key.hotkey();
        let chain = self::chain(&reading.chain, Some(key.clone())).await?;
        let run = chain.run(reading.run).await?;

        let seats = chain.seats(run.id).await?;
        let Some(seat) = seats.into_iter().find(|seat| seat.hotkey == hotkey) else {
            bail!(
                "{} has no seat in run {}. Register it first: `{role} register --key {} …`",
                key.address(),
                run.id,
                settings.key
            );
        };
        if seat.role != role {
            bail!("uid {} in run {} is a {}'s seat, not a {role}'s", seat.id.uid, run.id, seat.role);
        }

        let Some(bucket) = &settings.store else {
            bail!(
                "no bucket was given: add a [store] section with endpoint, bucket and access_key to the settings file"
            );
        };
        let store: Arc<dyn Store> = Arc::new(bucket.open()?);

        let (fetch, spec) = published(&*chain, &run).await?;
        check_bucket(&*store, &fetch, &seat.endpoint).await?;
        // Beside the model, so that the directory can be read without a chain.
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
            directory: Some(directory.clone()),
            ..follower(&chain, &fetch, run, &spec)?
        });
        let journal_path = directory.join("journal.jsonl");
        let journal = retry_while_full(&disk, || async { Journal::open(&journal_path) })
            .await
            .with_context(|| format!("could not open the journal {}", journal_path.display()))?;
        Ok(NodeContext { key, chain, fetch, store, seat, spec, dataset, follower, journal, lock })
    })
}

/// Writes an object, reads it back at the seat's public URL, and deletes it: a wrong secret or URL must show before
/// anything is trained. A bucket that is only away does not stop the start.
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

/// The parts of a reader of a run: no key, no seat, no bucket.
pub struct ReadOnlyContext {
    pub chain: Arc<dyn Chain>,
    pub spec: RunSpec,
    pub dataset: Arc<Dataset>,
    /// Keeps the error-feedback buffer, so that merges can be repeated.
    pub follower: Arc<Follower>,
}

/// Opens chain, specification and data to read them. Fails if the disk is full.
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
        let follower = Arc::new(follower(&chain, &fetch, run, &spec)?);
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

/// Opens chain and specification. No data is fetched.
pub fn open_published_run(chain: &str, run: RunId) -> BoxFuture<'_, anyhow::Result<PublishedRun>> {
    Box::pin(async move {
        let chain = self::chain(chain, None).await?;
        let run = chain.run(run).await?;
        let (fetch, spec) = published(&*chain, &run).await?;
        Ok(PublishedRun { chain, fetch, run, spec })
    })
}

/// A fetcher with the run's policy.
pub fn fetcher(params: &RunParams) -> anyhow::Result<HttpFetcher> {
    let policy = if params.localnet { FetchPolicy::localnet() } else { FetchPolicy::public() };
    Ok(HttpFetcher::new(policy)?)
}

/// A fetcher with the run's policy, and the run's specification.
async fn published(chain: &dyn Chain, run: &RunView) -> anyhow::Result<(Arc<HttpFetcher>, RunSpec)> {
    let fetch = Arc::new(fetcher(&run.params)?);
    let seats = chain.seats(run.id).await.context("could not read the run's seats from the chain")?;
    let mirrors = Mirrors::one(&run.origin).and(Mirrors::validators(&seats, &[], &run.origin, 0));
    let limits = Limits::for_bytes(model::SPEC_BYTES_MAX);
    let bytes = mirrors.get(&*fetch, &keys::spec(&run.spec), &run.spec, &limits).await;
    let spec = RunSpec::from_bytes(&bytes.context("could not fetch the run's specification")?)?;
    Ok((fetch, spec))
}

/// The user's own copy of the dataset, which is never repaired here.
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

/// A follower that keeps the buffer, and nothing on the disk.
fn follower(
    chain: &Arc<dyn Chain>,
    fetch: &Arc<HttpFetcher>,
    run: RunView,
    spec: &RunSpec,
) -> anyhow::Result<Follower> {
    let schema = spec.schema()?;
    let codec =
        |density| Codec::new(&schema, density).map(Arc::new).context("the run has an impossible density");
    let (sent, merged) = (codec(run.params.density)?, codec(run.params.merge_density)?);
    Ok(Follower {
        chain: chain.clone(),
        fetch: fetch.clone(),
        run,
        spec: spec.clone(),
        sent,
        merged,
        keeps_buffer: true,
        turn: 0,
        directory: None,
        blocking: Blocking::Pool,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use dataset::{
        OutputDirectory, PrepareOptions, Source, TokenizerChoice, manifest_path, shard_path, tokenizer_path,
    };
    use std::fs;

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
        let digest = dataset::prepare(options, &mut |_| {}).unwrap().digest;
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
