//! Checkpoints: states divided into pieces that are named by their digests, under a root that validators voted for
//! (PROT-20).

use super::{
    mirrors::Mirrors,
    partial::{Layout, Partial},
    pieces::{InMemory, PiecesError, Report, Wanted, fetch_pieces},
};
use crate::{
    blocking::Blocking,
    durable::FileError,
    error_chain,
    state::ModelState,
    storage::{Row, Storage},
};
use bytes::Bytes;
use codec::{Decode, DecodeAll as _, Encode};
use futures::{StreamExt as _, TryStreamExt as _, future::BoxFuture, stream};
use protocol::{
    Digest, RunId, Window, contribution::Schema, keys, lineage, norms::RunningNorms, view::Checkpoint,
};
use std::{collections::BTreeMap, path::Path};
use store::{Fetch, Limits, Store, StoreError};

/// Number of concurrent uploads of pieces to our bucket.
const PIECES_UP_AT_ONCE: usize = 4;

/// The digests of all pieces of a state, and its running norms.
#[derive(Clone, Debug, PartialEq, Encode, Decode)]
pub struct CheckpointManifest {
    version: u16,
    pub run: RunId,
    /// The window that opens with this state.
    pub window: Window,
    pub lineage: Digest,
    /// Digests of the weights' pieces, in order.
    pub weights: Vec<Digest>,
    /// Digests of the buffer's pieces, in order.
    pub buffer: Vec<Digest>,
    pub norms: RunningNorms,
}

/// Version of the manifest's format.
const VERSION: u16 = 2;

#[derive(Debug, thiserror::Error)]
pub enum CheckpointError {
    #[error(transparent)]
    Pieces(#[from] PiecesError),
    #[error(transparent)]
    File(#[from] FileError),
    #[error("could not fetch the checkpoint's manifest from any mirror; the last one said: {last}")]
    NoManifest { last: String },
    #[error("could not put a part of the checkpoint into our bucket")]
    Put(#[from] StoreError),
    #[error("a state without its buffer is no checkpoint")]
    NoBuffer,
}

impl CheckpointManifest {
    /// Returns the manifest of a whole state; `None` without the buffer.
    pub fn of(state: &ModelState) -> Option<CheckpointManifest> {
        Some(CheckpointManifest {
            version: VERSION,
            run: state.run,
            window: state.window,
            lineage: state.lineage,
            weights: state.theta.piece_digests(),
            buffer: state.buffer.as_ref()?.piece_digests(),
            norms: state.norms.clone(),
        })
    }

    pub fn weights_root(&self) -> Digest {
        lineage::root_of_pieces(&self.weights)
    }

    pub fn state_root(&self) -> Digest {
        let buffer = lineage::root_of_pieces(&self.buffer);
        lineage::state_root(&self.weights_root(), &buffer, &self.norms.root())
    }

    /// Returns all pieces of the weights, followed by those of the buffer if requested.
    fn wanted(&self, with_buffer: bool) -> impl Iterator<Item = Wanted> {
        let buffer = if with_buffer { &self.buffer[..] } else { &[] };
        let digests = self.weights.iter().chain(buffer).copied();
        digests.enumerate().map(|(index, digest)| Wanted { index, digest })
    }

    /// Returns the maximum size of a model's manifest, in bytes.
    fn largest(schema: &Schema) -> u64 {
        let pieces = schema.values().saturating_mul(4).div_ceil(lineage::PIECE_BYTES);
        let norms = RunningNorms::largest(schema.tensors().len());
        u64::try_from(pieces.saturating_mul(64).saturating_add(norms).saturating_add(256)).unwrap_or(u64::MAX)
    }

    /// Reads a manifest and checks that it is the voted one and has the model's length.
    fn read(bytes: &[u8], run: RunId, expected: &Checkpoint, schema: &Schema) -> Option<CheckpointManifest> {
        let manifest = CheckpointManifest::decode_all(&mut &bytes[..]).ok()?;
        let pieces = schema.values().saturating_mul(4).div_ceil(lineage::PIECE_BYTES);
        let as_voted = manifest.version == VERSION
            && manifest.run == run
            && manifest.window == expected.window
            && manifest.lineage == expected.lineage
            && manifest.weights.len() == pieces
            && manifest.buffer.len() == pieces
            && manifest.norms.fit(schema.tensors().len())
            && manifest.state_root() == expected.state_root;
        as_voted.then_some(manifest)
    }
}

/// Publishes a state: its pieces first, the manifest last, so that readers of the manifest find all pieces. A piece
/// that the bucket already has is sent again only if it is damaged or cannot be read.
///
/// # Errors
/// If the state has no buffer or the bucket does not accept an object.
pub fn publish<'a>(
    blocking: Blocking,
    store: &'a dyn Store,
    state: &'a mut ModelState,
) -> BoxFuture<'a, Result<Checkpoint, CheckpointError>> {
    Box::pin(async move {
        let manifest = blocking.with(state, |state| CheckpointManifest::of(state)).await;
        let manifest = manifest.ok_or(CheckpointError::NoBuffer)?;
        let buffer = state.buffer.as_ref().ok_or(CheckpointError::NoBuffer)?;
        let named = manifest
            .weights
            .iter()
            .zip(pieces(&state.theta))
            .chain(manifest.buffer.iter().zip(pieces(buffer)));
        // The same bytes may belong to several places.
        let named: BTreeMap<Digest, &[f32]> = named.map(|(digest, piece)| (*digest, piece)).collect();
        stream::iter(named.keys().copied())
            .map(|digest| publish_piece(store, digest, named[&digest]))
            .buffer_unordered(PIECES_UP_AT_ONCE)
            .try_for_each(|()| std::future::ready(Ok(())))
            .await?;
        let root = manifest.state_root();
        store.put(&keys::checkpoint(state.run, state.window, &root), Bytes::from(manifest.encode())).await?;
        Ok(Checkpoint { window: state.window, state_root: root, lineage: state.lineage })
    })
}

async fn publish_piece(store: &dyn Store, digest: Digest, piece: &[f32]) -> Result<(), StoreError> {
    let key = keys::piece(&digest);
    // Reads existing pieces. Most of a model changes between checkpoints, so they are few, except after void windows
    // or a join from this checkpoint.
    match store.get(&key, lineage::PIECE_BYTES as u64).await {
        Ok(bytes) if Digest::of(&bytes) == digest => return Ok(()),
        Ok(_) => {
            let store = store.describe();
            tracing::warn!(store, object = %key, "a piece of the model is damaged in our bucket, and is put there again");
        }
        Err(error) if error.is_not_found() => {}
        // If the whole bucket fails, the upload below reports it.
        Err(error) => {
            let error = error_chain(&error);
            tracing::warn!(object = %key, error, "a piece of the model cannot be read in our bucket, and is put there again");
        }
    }
    store.put(&key, bytes_of(piece)).await
}

/// Fetches the manifest of a voted checkpoint from the first mirror that has the right one.
///
/// # Errors
/// If no mirror has it.
pub async fn manifest(
    fetch: &dyn Fetch,
    mirrors: &Mirrors,
    run: RunId,
    checkpoint: &Checkpoint,
    schema: &Schema,
) -> Result<CheckpointManifest, CheckpointError> {
    let key = keys::checkpoint(run, checkpoint.window, &checkpoint.state_root);
    let limits = Limits::for_bytes(CheckpointManifest::largest(schema));
    let mut last = "there is no mirror to ask".to_owned();
    for base in mirrors.bases() {
        match fetch.fetch(base, &key, &limits).await {
            Ok(bytes) => match CheckpointManifest::read(&bytes, run, checkpoint, schema) {
                Some(manifest) => return Ok(manifest),
                None => last = format!("{base} gave a manifest that is not the one voted"),
            },
            Err(error) => last = format!("{base}: {error}"),
        }
    }
    Err(CheckpointError::NoManifest { last })
}

/// Fetches a checkpoint piece by piece into rows of `storage` and checks each piece. If the storage has a directory,
/// the pieces pass through a file there, so that a killed process resumes. The file is kept until [`forget`] is
/// called, after the state is saved. Without `with_buffer` it fetches only the weights, which suffice for a miner.
///
/// # Errors
/// If no mirror has the manifest or a piece, or the disk is full.
pub async fn fetch(
    storage: &Storage,
    fetch: &dyn Fetch,
    mirrors: &Mirrors,
    run: RunId,
    checkpoint: &Checkpoint,
    schema: &Schema,
    with_buffer: bool,
) -> Result<ModelState, CheckpointError> {
    let manifest = manifest(fetch, mirrors, run, checkpoint, schema).await?;
    let values = schema.values();
    let (theta, buffer) = match storage.directory() {
        Some(directory) => {
            let path = directory.join(format!("{PARTIAL}{}-{}", checkpoint.window.0, checkpoint.state_root));
            forget_but(directory, Some(&path));
            fetch_through(&path, storage, fetch, mirrors, &manifest, values, with_buffer).await?
        }
        None => {
            let mut theta = storage.zeros(values)?;
            let mut buffer = if with_buffer { Some(storage.zeros(values)?) } else { None };
            let mut place = InMemory { rows: vec![theta.edit()?] };
            place.rows.extend(buffer.as_mut().map(Row::edit).transpose()?);
            let wanted: Vec<Wanted> = manifest.wanted(with_buffer).collect();
            fetch_pieces(fetch, mirrors, &wanted, &mut place).await?.log();
            (theta, buffer)
        }
    };
    let (Checkpoint { window, lineage, .. }, norms) = (*checkpoint, manifest.norms);
    Ok(ModelState { run, window, lineage, norms, theta, buffer })
}

/// Fetches into the file at `path`, and reads weights and buffer from it. Pieces that were damaged on the disk are
/// fetched again.
async fn fetch_through(
    path: &Path,
    storage: &Storage,
    fetch: &dyn Fetch,
    mirrors: &Mirrors,
    manifest: &CheckpointManifest,
    values: usize,
    with_buffer: bool,
) -> Result<(Row, Option<Row>), CheckpointError> {
    loop {
        let partial = fill(path, fetch, mirrors, manifest, values, with_buffer).await?;
        let Some(theta) = partial.row(0, manifest.weights.clone(), storage).await? else { continue };
        if !with_buffer {
            return Ok((theta, None));
        }
        if let Some(buffer) = partial.row(1, manifest.buffer.clone(), storage).await? {
            return Ok((theta, Some(buffer)));
        }
    }
}

/// Fetches the weights of a checkpoint into a file: all values, four bytes each, little-endian. Resumes after a kill.
/// Keeps only a few pieces in memory.
///
/// # Errors
/// If no mirror has the manifest or a piece, or the disk is full.
pub fn fetch_weights_to<'a>(
    path: &'a Path,
    fetch: &'a dyn Fetch,
    mirrors: &'a Mirrors,
    run: RunId,
    checkpoint: &'a Checkpoint,
    schema: &'a Schema,
) -> BoxFuture<'a, Result<CheckpointManifest, CheckpointError>> {
    Box::pin(async move {
        let manifest = manifest(fetch, mirrors, run, checkpoint, schema).await?;
        fill(path, fetch, mirrors, &manifest, schema.values(), false).await?;
        Ok(manifest)
    })
}

/// Fetches every missing piece of a checkpoint into the file.
async fn fill(
    path: &Path,
    fetch: &dyn Fetch,
    mirrors: &Mirrors,
    manifest: &CheckpointManifest,
    values: usize,
    with_buffer: bool,
) -> Result<Partial, CheckpointError> {
    let all: Vec<Wanted> = manifest.wanted(with_buffer).collect();
    let rows = if with_buffer { 2 } else { 1 };
    let mut partial = Partial::open(path, Layout { values }, rows).await?;
    let missing = partial.missing(all.iter().map(|wanted| wanted.digest).collect()).await?;
    let wanted: Vec<Wanted> = missing.into_iter().map(|index| all[index]).collect();
    let (pieces, at_hand) = (wanted.len(), all.len() - wanted.len());
    tracing::info!(window = manifest.window.0, pieces, at_hand, "fetching a checkpoint");
    let report = fetch_pieces(fetch, mirrors, &wanted, &mut partial).await?;
    Report { at_hand, ..report }.log();
    partial.sync().await?;
    Ok(partial)
}

const PARTIAL: &str = "joining-";

/// Removes the files of [`fetch`](fn@fetch) in `directory`. Called after the state is saved.
pub fn forget(directory: &Path) {
    forget_but(directory, None);
}

fn forget_but(directory: &Path, but: Option<&Path>) {
    let entries = std::fs::read_dir(directory).into_iter().flatten().filter_map(Result::ok);
    for entry in entries.filter(|entry| entry.file_name().to_string_lossy().starts_with(PARTIAL)) {
        let path = entry.path();
        if but != Some(path.as_path())
            && let Err(error) = std::fs::remove_file(&path)
        {
            tracing::warn!(path = %path.display(), %error, "could not remove a checkpoint that is not needed any more");
        }
    }
}

/// Compares a state with the voted checkpoint of its window, adopts its norms, and fetches the pieces that differ
/// (PROT-20). Returns the number of differences.
///
/// # Errors
/// If no mirror has a piece, or the disk is full.
pub async fn repair(
    blocking: Blocking,
    fetch: &dyn Fetch,
    mirrors: &Mirrors,
    state: &mut ModelState,
    manifest: &CheckpointManifest,
) -> Result<usize, CheckpointError> {
    // Hashes the current values: digests computed earlier would hide damage by the disk.
    let held = blocking.with(state, |state| {
        let mut held = lineage::piece_digests(&state.theta);
        held.extend(state.buffer.iter().flat_map(|buffer| lineage::piece_digests(buffer)));
        held
    });
    let held = held.await;
    let differs = |wanted: &Wanted| held.get(wanted.index) != Some(&wanted.digest);
    let wanted: Vec<Wanted> = manifest.wanted(state.buffer.is_some()).filter(differs).collect();
    if !wanted.is_empty() {
        let mut place = InMemory { rows: vec![state.theta.edit()?] };
        place.rows.extend(state.buffer.as_mut().map(Row::edit).transpose()?);
        fetch_pieces(fetch, mirrors, &wanted, &mut place).await?.log();
    }
    let norms_differ = state.norms != manifest.norms;
    state.norms = manifest.norms.clone();
    Ok(wanted.len() + usize::from(norms_differ))
}

fn pieces(values: &[f32]) -> impl Iterator<Item = &[f32]> {
    values.chunks(lineage::PIECE_BYTES / 4)
}

fn bytes_of(values: &[f32]) -> Bytes {
    values.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<u8>>().into()
}
