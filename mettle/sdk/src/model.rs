//! A run's model: a checkpoint that validators voted for, or the newest model that two thirds agreed on, verified and
//! written in Hugging Face format.

use crate::{Error, Run};
use chain_client::Chain;
use daemon::{
    Blocking, Codec, Followed, Follower, ModelState, PublishedRun, Row, Storage, checkpoint,
    follow::{first_checkpoint, genesis_of_seed},
    mirrors::Mirrors,
};
use dataset::{MAX_MANIFEST_BYTES, Manifest};
use model::RunSpec;
use nn::{
    Precision,
    hugging_face::{self, Export, ExportError, ExportedTokenizer},
};
use protocol::{
    Digest, RunId, Window, keys, lineage,
    view::{Checkpoint, Outcome, RunView},
};
use serde::Serialize;
use std::{
    collections::BTreeMap,
    fs::File,
    io::{self, BufReader, Read as _},
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};
use store::{Fetch, Limits};
use tokenizer::{TextTokenizer, TokenizerError};

/// Number of values that are read from a file at once.
const VALUES_AT_ONCE: usize = 1 << 16;
/// Maximum size of a file of weights, in bytes; a larger model is split.
const SHARD_BYTES_MAX: u64 = 5_000_000_000;
/// File name of a checkpoint in its [`Scratch`].
const CHECKPOINT: &str = "checkpoint";

/// A choice of a run's model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Which {
    /// The newest model that two thirds agreed on: the latest checkpoint with every later update.
    Newest,
    /// The latest checkpoint, or the run's initial model.
    Latest,
    /// The checkpoint that opens this window.
    Opening(Window),
}

/// A verified model.
pub struct Model {
    pub spec: RunSpec,
    pub run: RunId,
    /// The window that opens with this model.
    pub window: Window,
    /// Hash over everything that was merged, as on the chain (PROT-19).
    pub lineage: Digest,
    pub weights_root: Digest,
    /// The run's `tokenizer.json`, if it is available.
    pub tokenizer: Option<Vec<u8>>,
    values: Values,
}

/// The parameters, in memory or in a file.
enum Values {
    Held(Row),
    /// A file of little-endian f32 values, removed after it is read.
    Fetched(PathBuf),
}

/// A written model.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Saved {
    pub directory: PathBuf,
    pub run: RunId,
    /// The window that opens with this model.
    pub window: Window,
    pub lineage: Digest,
    pub weights_root: Digest,
    /// Names of the files of weights in order.
    pub files: Vec<String>,
    /// Total size of all files, in bytes.
    pub bytes: u64,
}

impl Run {
    /// Fetches a model, verifies it against the chain, and writes it to the new directory `to`, which appears
    /// completely or not at all: `config.json`, safetensors in exact f32, and the tokenizer. The download of an
    /// interrupted call stays in `.NAME.fetching` beside it, and the next call resumes it.
    ///
    /// # Errors
    /// If `to` exists, if chain or buckets fail, or if their data is not what two thirds of the stake voted for.
    ///
    /// # Cancel safety
    /// If the future is dropped, the writing thread stops and the download stays for the next call.
    pub async fn save(&self, which: Which, to: &Path) -> Result<Saved, Error> {
        if std::fs::symlink_metadata(to).is_ok() {
            return Err(ExportError::Exists { path: to.to_owned() }.into());
        }
        let scratch = Scratch::beside(to)?;
        let published = self.published().await?;
        let fetched = match which {
            Which::Newest => newest(&published, None, &scratch.directory).await?,
            Which::Latest => fetch(&published, published.run.checkpoint, None, &scratch.checkpoint()).await?,
            Which::Opening(window) => {
                let voted = voted(&*published.chain, &published.run, Some(window)).await?;
                fetch(&published, voted, None, &scratch.checkpoint()).await?
            }
        };
        // The writing thread stops when this future is dropped.
        let stop = StopOnDrop::default();
        let (stopped, path) = (stop.0.clone(), to.to_owned());
        let saved = tokio::task::spawn_blocking(move || fetched.save(&path, &stopped)).await??;
        drop(stop);
        scratch.remove()?;
        Ok(saved)
    }
}

/// Directory of a download until the model's directory is written: `.NAME.fetching` beside it, on the same disk. The
/// next download for the same directory resumes it, by this library or by `mettle model export`.
pub struct Scratch {
    directory: PathBuf,
}

impl Scratch {
    /// Creates the directory, or opens an existing one.
    ///
    /// # Errors
    /// If `to` has no name, another kind of file exists at the path, or the disk fails.
    pub fn beside(to: &Path) -> Result<Scratch, Error> {
        let name = to.file_name().ok_or_else(|| Error::Unnamed { path: to.to_owned() })?;
        let directory = to.with_file_name(format!(".{}.fetching", name.to_string_lossy()));
        let scratch = Scratch { directory };
        let (directory, checkpoint) = (&scratch.directory, scratch.checkpoint());
        // A link is not a directory: its target would be written to and removed.
        if std::fs::symlink_metadata(directory).is_ok_and(|found| !found.is_dir()) {
            return Err(Error::InTheWay { path: directory.clone(), needed: "directory" });
        }
        if std::fs::symlink_metadata(&checkpoint).is_ok_and(|found| !found.is_file()) {
            return Err(Error::InTheWay { path: checkpoint, needed: "file" });
        }
        std::fs::create_dir_all(directory)
            .map_err(|source| Error::File { path: directory.clone(), source })?;
        Ok(scratch)
    }

    /// Returns the path of a checkpoint's weights.
    pub fn checkpoint(&self) -> PathBuf {
        self.directory.join(CHECKPOINT)
    }

    /// Removes the directory after the model is written.
    ///
    /// # Errors
    /// If the disk fails.
    pub fn remove(self) -> Result<(), Error> {
        std::fs::remove_dir_all(&self.directory)
            .map_err(|source| Error::File { path: self.directory.clone(), source })
    }
}

/// Removes an empty directory, which is of no use to the next download.
impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir(&self.directory);
    }
}

#[derive(Default)]
struct StopOnDrop(Arc<AtomicBool>);

impl Drop for StopOnDrop {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Returns the checkpoint that opens `window`, or the latest; `None` stands for the run's initial model.
///
/// # Errors
/// [`Error::NoCheckpoint`], and the chain's.
pub async fn voted(
    chain: &dyn Chain,
    run: &RunView,
    window: Option<Window>,
) -> Result<Option<Checkpoint>, Error> {
    let Some(window) = window else { return Ok(run.checkpoint) };
    if let Some(latest) = run.checkpoint.filter(|latest| latest.window == window) {
        return Ok(Some(latest));
    }
    let Some(before) = window.previous() else { return Ok(None) };
    let fixed = chain.window(run.id, before).await?;
    if let Some(view) = fixed
        && let Some(Outcome::Merged(vote)) = view.outcome
        && let Some(state_root) = vote.state_root
    {
        let lineage = lineage::next(&view.lineage, &vote.update);
        return Ok(Some(Checkpoint { window, state_root, lineage }));
    }
    let latest = run.checkpoint.map(|latest| latest.window);
    Err(Error::NoCheckpoint { run: run.id, window, latest })
}

/// Fetches a checkpoint that validators voted for to a file at `path` and checks each piece; `None` stands for the
/// run's initial model. Without a `tokenizer`, it fetches the run's.
///
/// # Errors
/// If no mirror has a part, or the disk fails. The next call resumes.
pub async fn fetch(
    published: &PublishedRun,
    checkpoint: Option<Checkpoint>,
    tokenizer: Option<Vec<u8>>,
    path: &Path,
) -> Result<Model, Error> {
    let PublishedRun { chain, fetch, run, spec } = published;
    let (spec, schema) = (spec.clone(), spec.schema().map_err(|error| Error::Specification(error.into()))?);
    let mirrors = Mirrors::validators(&chain.seats(run.id).await?, &[], &run.origin, 0);
    let tokenizer = match tokenizer {
        Some(json) => json,
        None => fetch_tokenizer(&**fetch, run, &mirrors).await?,
    };
    let checkpoint = match (checkpoint, &spec.weights) {
        (None, None) => {
            let state = genesis_of_seed(run, &spec, &Storage::memory())?;
            return Ok(Model::of(spec, state, Some(tokenizer)));
        }
        (None, Some(_)) => first_checkpoint(run, &spec)?,
        (Some(checkpoint), _) => checkpoint,
    };
    let manifest = checkpoint::fetch_weights_to(path, &**fetch, &mirrors, run.id, &checkpoint, &schema)
        .await
        .map_err(|source| Error::Checkpoint { window: checkpoint.window, source })?;
    Ok(Model {
        spec,
        run: run.id,
        window: checkpoint.window,
        lineage: checkpoint.lineage,
        weights_root: manifest.weights_root(),
        tokenizer: Some(tokenizer),
        values: Values::Fetched(path.to_owned()),
    })
}

/// Follows the run from its latest checkpoint to the newest model that two thirds agreed on. Every update has the
/// digest that they voted for, and every lineage on the way is the chain's. Large rows are files in `directory`.
///
/// # Errors
/// If no mirror has a part, the disk fails, or a lineage is not the chain's.
pub async fn newest(
    published: &PublishedRun,
    tokenizer: Option<Vec<u8>>,
    directory: &Path,
) -> Result<Model, Error> {
    let follower = follower(published, Storage::on_disk(directory), false)?;
    let mut state = follower.join().await?;
    while follower.step(&mut state, None).await? != Followed::Waiting {}
    let tokenizer = match tokenizer {
        Some(json) => json,
        None => {
            let mirrors = follower.mirrors().await?;
            fetch_tokenizer(&*published.fetch, &published.run, &mirrors).await?
        }
    };
    let spec = published.spec.clone();
    Ok(tokio::task::spawn_blocking(move || Model::of(spec, state, Some(tokenizer))).await?)
}

async fn fetch_tokenizer(fetch: &dyn Fetch, run: &RunView, mirrors: &Mirrors) -> Result<Vec<u8>, Error> {
    let limits = Limits::for_bytes(MAX_MANIFEST_BYTES);
    let manifest = mirrors
        .get(fetch, &keys::manifest(&run.manifest), &run.manifest, &limits)
        .await
        .map_err(|source| Error::Fetch { what: "the manifest of the run's data", source })?;
    let digest = Manifest::from_bytes(&manifest)?.tokenizer;
    let limits = Limits::for_bytes(daemon::data::TOKENIZER_BYTES_MAX);
    let tokenizer = mirrors.get(fetch, &keys::tokenizer(&digest), &digest, &limits).await;
    let tokenizer = tokenizer.map_err(|source| Error::Fetch { what: "the run's tokenizer", source })?;
    Ok(tokenizer.to_vec())
}

/// Creates a follower of the run by chain and buckets.
pub(crate) fn follower(
    published: &PublishedRun,
    storage: Storage,
    keeps_buffer: bool,
) -> Result<Follower, Error> {
    let PublishedRun { chain, fetch, run, spec } = published;
    let schema = spec.schema().map_err(|error| Error::Specification(error.into()))?;
    let codec = |density| {
        Codec::new(&schema, density).map(Arc::new).map_err(|error| Error::Specification(error.into()))
    };
    let (sent, merged) = (codec(run.params.density)?, codec(run.params.merge_density)?);
    Ok(Follower {
        chain: chain.clone(),
        fetch: fetch.clone(),
        run: run.clone(),
        spec: spec.clone(),
        sent,
        merged,
        keeps_buffer,
        turn: 0,
        storage,
        blocking: Blocking::Pool,
    })
}

impl Model {
    /// Creates a model from a node's state.
    pub fn of(spec: RunSpec, state: ModelState, tokenizer: Option<Vec<u8>>) -> Model {
        let weights_root = state.weights_root();
        let ModelState { run, window, lineage, theta, .. } = state;
        Model { spec, run, window, lineage, weights_root, tokenizer, values: Values::Held(theta) }
    }

    /// Returns the parameters in memory. A downloaded file is checked against the weights root and removed.
    ///
    /// # Errors
    /// If the file cannot be read or has another weights root.
    pub fn into_theta(self) -> Result<Row, Error> {
        let path = match self.values {
            Values::Held(theta) => return Ok(theta),
            Values::Fetched(path) => path,
        };
        let mut flat = vec![0.0; self.spec.model.parameters()];
        let mut read = checked_blocks(&path, flat.len(), self.weights_root)?;
        read(&mut flat).map_err(|source| damaged(&path, source))?;
        remove(&path)?;
        Ok(flat.into())
    }

    /// Returns the header of each file of weights.
    pub fn metadata(&self) -> BTreeMap<String, String> {
        BTreeMap::from([
            // Required by `transformers`.
            ("format".to_owned(), "pt".to_owned()),
            ("mettle.run".to_owned(), self.run.to_string()),
            ("mettle.name".to_owned(), self.spec.name.clone()),
            ("mettle.spec".to_owned(), self.spec.digest().to_string()),
            ("mettle.window".to_owned(), self.window.0.to_string()),
            ("mettle.lineage".to_owned(), self.lineage.to_string()),
            ("mettle.weights-root".to_owned(), self.weights_root.to_string()),
        ])
    }

    /// Writes the model in f32 to the directory `to`, unless `stop` is set meanwhile.
    fn save(mut self, to: &Path, stop: &AtomicBool) -> Result<Saved, Error> {
        let json = self.tokenizer.take();
        let tokenizer = json.map(|json| OutgoingTokenizer::new(json, None)).transpose()?;
        let spec = self.spec.clone();
        let wish = Export {
            config: &spec.model,
            metadata: self.metadata(),
            dtype: Precision::F32,
            shard_bytes_max: SHARD_BYTES_MAX,
            tokenizer: tokenizer.as_ref().map(OutgoingTokenizer::exported),
            card: None,
        };
        let Model { run, window, lineage, weights_root, .. } = self;
        let written = self.export(to, &wish, stop)?;
        Ok(Saved {
            directory: to.to_owned(),
            run,
            window,
            lineage,
            weights_root,
            files: written.weights,
            bytes: written.bytes,
        })
    }

    /// Writes the model to the directory `to` as `wish` specifies, unless `stop` is set meanwhile. A downloaded file
    /// is checked against the weights root before the directory appears, and removed.
    ///
    /// # Errors
    /// If the directory exists, the file has another weights root, or the disk fails.
    pub fn export(
        self,
        to: &Path,
        wish: &Export<'_>,
        stop: &AtomicBool,
    ) -> Result<hugging_face::Exported, Error> {
        let path = match self.values {
            Values::Held(flat) => return Ok(write(to, wish, &flat, stop)?),
            Values::Fetched(path) => path,
        };
        let mut read = checked_blocks(&path, wish.config.parameters(), self.weights_root)?;
        let written = hugging_face::export(to, wish, |block| {
            if stop.load(Ordering::Relaxed) {
                return Err(stopped());
            }
            read(block)
        });
        let written = written.map_err(|error| match error {
            ExportError::Values(source) => damaged(&path, source),
            error => error.into(),
        })?;
        remove(&path)?;
        Ok(written)
    }
}

/// Writes the parameters `flat` to the directory `to` as `wish` specifies, unless `stop` is set meanwhile.
///
/// # Errors
/// If the directory exists or the disk fails. Nothing is left behind then.
pub fn write(
    to: &Path,
    wish: &Export<'_>,
    mut flat: &[f32],
    stop: &AtomicBool,
) -> Result<hugging_face::Exported, ExportError> {
    hugging_face::export(to, wish, |block| {
        if stop.load(Ordering::Relaxed) {
            return Err(stopped());
        }
        let (now, later) = flat
            .split_at_checked(block.len())
            .ok_or_else(|| io::Error::from(io::ErrorKind::UnexpectedEof))?;
        block.copy_from_slice(now);
        flat = later;
        Ok(())
    })
}

/// Returns the error of interrupted work.
pub fn stopped() -> io::Error {
    io::Error::new(io::ErrorKind::Interrupted, "stopped by a signal")
}

/// Reads `count` values of a file block by block. The last block is an error if they do not have this weights root.
fn checked_blocks(
    path: &Path,
    count: usize,
    root: Digest,
) -> Result<impl FnMut(&mut [f32]) -> io::Result<()> + use<>, Error> {
    let file = File::open(path).map_err(|source| Error::File { path: path.to_owned(), source })?;
    let (mut file, mut left) = (BufReader::new(file), count);
    let (mut seen, mut bytes) = (lineage::RootOfBlocks::default(), Vec::new());
    Ok(move |block: &mut [f32]| {
        for part in block.chunks_mut(VALUES_AT_ONCE) {
            bytes.resize(4 * part.len(), 0);
            file.read_exact(&mut bytes)?;
            for (value, bytes) in part.iter_mut().zip(bytes.as_chunks::<4>().0) {
                *value = f32::from_le_bytes(*bytes);
            }
            seen.update(part);
            left -= part.len();
        }
        if left == 0 && std::mem::take(&mut seen).finish() != root {
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                "the downloaded checkpoint has changed on this disk",
            ));
        }
        Ok(())
    })
}

fn damaged(path: &Path, source: io::Error) -> Error {
    match source.kind() {
        io::ErrorKind::InvalidData => Error::Changed { path: path.to_owned() },
        _ => ExportError::Values(source).into(),
    }
}

fn remove(path: &Path) -> Result<(), Error> {
    std::fs::remove_file(path).map_err(|source| Error::File { path: path.to_owned(), source })
}

/// A tokenizer to write beside a model.
pub struct OutgoingTokenizer {
    read: TextTokenizer,
    /// The token that ends a document.
    end_of_document: String,
}

impl OutgoingTokenizer {
    /// Reads a `tokenizer.json`. `end_of_document` is the token that ends a document, if it has none of the usual
    /// names.
    ///
    /// # Errors
    /// If the tokenizer cannot be used.
    pub fn new(json: Vec<u8>, end_of_document: Option<&str>) -> Result<OutgoingTokenizer, TokenizerError> {
        let read = TextTokenizer::from_json(json, end_of_document)?;
        let end_of_document = token_text(read.json(), read.end_of_document()).unwrap_or_default();
        Ok(OutgoingTokenizer { read, end_of_document })
    }

    pub fn exported(&self) -> ExportedTokenizer<'_> {
        let end_of_document = (self.read.end_of_document(), &*self.end_of_document);
        ExportedTokenizer { json: self.read.json(), end_of_document }
    }
}

/// Returns the name of a special token in `tokenizer.json`.
fn token_text(json: &[u8], id: u32) -> Option<String> {
    let json: serde_json::Value = serde_json::from_slice(json).ok()?;
    let added = json["added_tokens"].as_array()?;
    let token = added.iter().find(|token| token["id"].as_u64() == Some(u64::from(id)))?;
    token["content"].as_str().map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_has_the_tokenizer_s_name() {
        let json = br#"{"added_tokens":[{"id":0,"content":"<eos>"},{"id":7,"content":"<pad>"}]}"#;
        assert_eq!(token_text(json, 7).as_deref(), Some("<pad>"));
        assert_eq!(token_text(json, 8), None);
        assert_eq!(token_text(b"nothing", 0), None);
    }

    #[test]
    fn a_download_is_beside_its_model_and_nothing_else_is_taken_for_it() {
        let directory = tempfile::tempdir().unwrap();
        let (to, fetching) = (directory.path().join("model"), directory.path().join(".model.fetching"));
        let scratch = Scratch::beside(&to).unwrap();
        assert_eq!(scratch.checkpoint(), fetching.join("checkpoint"));
        std::fs::write(scratch.checkpoint(), "half").unwrap();
        // A killed process leaves it, and the next one resumes.
        let scratch = Scratch::beside(&to).unwrap();
        assert_eq!(std::fs::read(scratch.checkpoint()).unwrap(), b"half");
        scratch.remove().unwrap();
        assert!(!fetching.exists());
        // A download that is refused before its first byte leaves nothing.
        drop(Scratch::beside(&to).unwrap());
        assert!(!fetching.exists());

        let refused = |needed| match Scratch::beside(&to).err() {
            Some(error @ Error::InTheWay { needed: found, .. }) if found == needed => error.to_do(),
            error => panic!("{error:?}"),
        };
        std::fs::write(&fetching, "somebody's").unwrap();
        assert!(refused("directory").contains(".model.fetching"));
        assert_eq!(std::fs::read(&fetching).unwrap(), b"somebody's", "it is not ours to remove");
        std::fs::remove_file(&fetching).unwrap();
        std::os::unix::fs::symlink(directory.path(), &fetching).unwrap();
        refused("directory");
        std::fs::remove_file(&fetching).unwrap();
        std::fs::create_dir_all(fetching.join("checkpoint")).unwrap();
        assert!(refused("file").contains(".model.fetching/checkpoint"));
        for nameless in ["", "/", "models/.."] {
            assert!(matches!(Scratch::beside(Path::new(nameless)), Err(Error::Unnamed { .. })), "{nameless}");
        }
    }

    #[test]
    fn a_download_that_changed_on_the_disk_is_neither_loaded_nor_written() {
        let directory = tempfile::tempdir().unwrap();
        let (path, to) = (directory.path().join("download"), directory.path().join("model"));
        let config = ::model::ModelConfig::preset("117k").unwrap();
        let spec = RunSpec {
            version: 1,
            name: "a".into(),
            model: config,
            seed: 0,
            weights: None,
            recipe: Default::default(),
        };
        let flat = ::model::init_flat(&spec.model, 0).unwrap();
        let mut bytes: Vec<u8> = flat.iter().flat_map(|value| value.to_le_bytes()).collect();
        let fetched = |bytes: &[u8]| {
            std::fs::write(&path, bytes).unwrap();
            Model {
                spec: spec.clone(),
                run: RunId(0),
                window: Window(4),
                lineage: Digest::default(),
                weights_root: lineage::weights_root(&flat),
                tokenizer: None,
                values: Values::Fetched(path.clone()),
            }
        };
        let stop = AtomicBool::new(false);
        assert_eq!(*fetched(&bytes).into_theta().unwrap(), flat[..]);
        let saved = fetched(&bytes).save(&to, &stop).unwrap();
        assert_eq!((saved.window, &*saved.files), (Window(4), &["model.safetensors".to_owned()][..]));
        assert!(!path.exists() && to.join("model.safetensors").exists());
        std::fs::remove_dir_all(&to).unwrap();

        stop.store(true, Ordering::Relaxed);
        assert!(fetched(&bytes).save(&to, &stop).is_err() && !to.exists());
        stop.store(false, Ordering::Relaxed);
        bytes[40_000] ^= 1;
        assert!(matches!(fetched(&bytes).into_theta(), Err(Error::Changed { .. })));
        assert!(matches!(fetched(&bytes).save(&to, &stop), Err(Error::Changed { .. })) && !to.exists());
    }
}
