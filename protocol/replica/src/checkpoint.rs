//! Checkpoints: a state cut into pieces that are named by their digests, under a root that validators voted (PROT-20).

use crate::{mirrors::Mirrors, state::ModelState};
use bytes::Bytes;
use codec::{Decode, DecodeAll as _, Encode};
use futures::{StreamExt as _, TryStreamExt as _, stream};
use protocol::{Digest, RunId, Window, keys, lineage, view::Checkpoint};
use store::{Fetch, Limits, Store, StoreError, fetch::NobodyHadIt};

/// Pieces in flight at once.
const PIECES_AT_ONCE: usize = 4;

/// Names every piece of a state.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
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
}

#[derive(Debug, thiserror::Error)]
pub enum CheckpointError {
    #[error("could not fetch a part of the checkpoint")]
    Fetch(#[from] NobodyHadIt),
    #[error("could not fetch the checkpoint's manifest from any mirror; the last one said: {last}")]
    NoManifest { last: String },
    #[error("could not put a part of the checkpoint into our bucket")]
    Put(#[from] StoreError),
    #[error("a state without its buffer is no checkpoint")]
    NoBuffer,
}

impl CheckpointManifest {
    /// The manifest of a whole state; `None` without the buffer.
    pub fn of(state: &ModelState) -> Option<CheckpointManifest> {
        Some(CheckpointManifest {
            version: 1,
            run: state.run,
            window: state.window,
            lineage: state.lineage,
            weights: lineage::piece_digests(&state.theta),
            buffer: lineage::piece_digests(state.buffer.as_ref()?),
        })
    }

    pub fn weights_root(&self) -> Digest {
        lineage::root_of_pieces(&self.weights)
    }

    pub fn state_root(&self) -> Digest {
        lineage::state_root(&self.weights_root(), &lineage::root_of_pieces(&self.buffer))
    }

    /// The largest manifest of a model with so many values, in bytes.
    fn largest(values: usize) -> u64 {
        let pieces = values.saturating_mul(4).div_ceil(lineage::PIECE_BYTES);
        u64::try_from(pieces.saturating_mul(64).saturating_add(256)).unwrap_or(u64::MAX)
    }

    /// Reads a manifest and checks that it is the one that was voted, and as long as the model.
    fn read(bytes: &[u8], run: RunId, expected: &Checkpoint, values: usize) -> Option<CheckpointManifest> {
        let manifest = CheckpointManifest::decode_all(&mut &bytes[..]).ok()?;
        let pieces = values.saturating_mul(4).div_ceil(lineage::PIECE_BYTES);
        let as_voted = manifest.version == 1
            && manifest.run == run
            && manifest.window == expected.window
            && manifest.lineage == expected.lineage
            && manifest.weights.len() == pieces
            && manifest.buffer.len() == pieces
            && manifest.state_root() == expected.state_root;
        as_voted.then_some(manifest)
    }
}

/// Puts a state into our bucket: its pieces first, the manifest last, so that whoever finds the manifest finds the pieces.
pub async fn publish(store: &dyn Store, state: &ModelState) -> Result<Checkpoint, CheckpointError> {
    let manifest = CheckpointManifest::of(state).ok_or(CheckpointError::NoBuffer)?;
    let buffer = state.buffer.as_ref().ok_or(CheckpointError::NoBuffer)?;
    let named =
        manifest.weights.iter().zip(pieces(&state.theta)).chain(manifest.buffer.iter().zip(pieces(buffer)));
    for (digest, piece) in named {
        let key = keys::piece(digest);
        // Pieces are named by content: one that is there is right, and an unchanged one is not sent again.
        match store.head(&key).await {
            Ok(_) => {}
            Err(error) if error.is_not_found() => store.put(&key, bytes_of(piece)).await?,
            Err(error) => return Err(error.into()),
        }
    }
    let root = manifest.state_root();
    store.put(&keys::checkpoint(state.run, state.window, &root), Bytes::from(manifest.encode())).await?;
    Ok(Checkpoint { window: state.window, state_root: root, lineage: state.lineage })
}

/// The manifest of a voted checkpoint, from the first mirror that has the right one.
pub async fn manifest(
    fetch: &dyn Fetch,
    mirrors: &Mirrors,
    run: RunId,
    checkpoint: &Checkpoint,
    values: usize,
) -> Result<CheckpointManifest, CheckpointError> {
    let key = keys::checkpoint(run, checkpoint.window, &checkpoint.state_root);
    let limits = Limits::for_bytes(CheckpointManifest::largest(values));
    let mut last = "there is no mirror to ask".to_owned();
    for base in mirrors.bases() {
        match fetch.fetch(base, &key, &limits).await {
            Ok(bytes) => match CheckpointManifest::read(&bytes, run, checkpoint, values) {
                Some(manifest) => return Ok(manifest),
                None => last = format!("{base} gave a manifest that is not the one voted"),
            },
            Err(error) => last = format!("{base}: {error}"),
        }
    }
    Err(CheckpointError::NoManifest { last })
}

/// Fetches a checkpoint piece by piece, each checked as it comes. Without `with_buffer` only the weights, which is what a miner needs.
pub async fn fetch(
    fetch: &dyn Fetch,
    mirrors: &Mirrors,
    run: RunId,
    checkpoint: &Checkpoint,
    values: usize,
    with_buffer: bool,
) -> Result<ModelState, CheckpointError> {
    let manifest = manifest(fetch, mirrors, run, checkpoint, values).await?;
    let theta = assemble(fetch, mirrors, &manifest.weights, values).await?;
    let buffer = match with_buffer {
        true => Some(assemble(fetch, mirrors, &manifest.buffer, values).await?),
        false => None,
    };
    Ok(ModelState { run, window: checkpoint.window, lineage: checkpoint.lineage, theta, buffer })
}

/// Compares a state with the voted checkpoint of its window and fetches only the pieces that differ (PROT-20). Returns how many did.
pub async fn repair(
    fetch: &dyn Fetch,
    mirrors: &Mirrors,
    state: &mut ModelState,
    manifest: &CheckpointManifest,
) -> Result<usize, CheckpointError> {
    let mut repaired = repair_values(fetch, mirrors, &mut state.theta, &manifest.weights).await?;
    if let Some(buffer) = &mut state.buffer {
        repaired += repair_values(fetch, mirrors, buffer, &manifest.buffer).await?;
    }
    Ok(repaired)
}

async fn repair_values(
    fetch: &dyn Fetch,
    mirrors: &Mirrors,
    values: &mut [f32],
    expected: &[Digest],
) -> Result<usize, CheckpointError> {
    let held = lineage::piece_digests(values);
    let per_piece = lineage::PIECE_BYTES / 4;
    let mut repaired = 0;
    for (index, piece) in values.chunks_mut(per_piece).enumerate() {
        let Some(digest) = expected.get(index).filter(|digest| held.get(index) != Some(digest)) else {
            continue;
        };
        let fresh = fetch_piece(fetch, mirrors, digest, piece.len()).await?;
        piece.copy_from_slice(&fresh);
        repaired += 1;
    }
    Ok(repaired)
}

async fn assemble(
    fetch: &dyn Fetch,
    mirrors: &Mirrors,
    digests: &[Digest],
    values: usize,
) -> Result<Vec<f32>, CheckpointError> {
    let per_piece = lineage::PIECE_BYTES / 4;
    let lengths = (0..values).step_by(per_piece).map(|start| per_piece.min(values - start));
    let wanted: Vec<(Digest, usize)> = digests.iter().copied().zip(lengths).collect();
    let pieces = stream::iter(wanted)
        .map(|(digest, length)| async move { fetch_piece(fetch, mirrors, &digest, length).await })
        .buffered(PIECES_AT_ONCE);
    let mut assembled = Vec::with_capacity(values);
    let mut pieces = std::pin::pin!(pieces);
    while let Some(piece) = pieces.try_next().await? {
        assembled.extend_from_slice(&piece);
    }
    Ok(assembled)
}

async fn fetch_piece(
    fetch: &dyn Fetch,
    mirrors: &Mirrors,
    digest: &Digest,
    values: usize,
) -> Result<Vec<f32>, CheckpointError> {
    let bytes_max = u64::try_from(values.saturating_mul(4)).unwrap_or(u64::MAX);
    let bytes = mirrors.get(fetch, &keys::piece(digest), digest, &Limits::for_bytes(bytes_max)).await?;
    // The manifest's root fixes the digests, the digest fixes the bytes: what has the digest has the length.
    Ok(bytes.as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect())
}

fn pieces(values: &[f32]) -> impl Iterator<Item = &[f32]> {
    values.chunks(lineage::PIECE_BYTES / 4)
}

fn bytes_of(values: &[f32]) -> Bytes {
    values.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<u8>>().into()
}
