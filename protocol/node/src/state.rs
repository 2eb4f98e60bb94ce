//! The model of a node when a window opens, and the two ways it changes: by an update that the chain fixed, or not at
//! all.

use crate::{
    codec::Update,
    durable::{self, DurableFile, FileError},
};
use codec::{Decode as _, Encode as _, IoReader};
use protocol::{Digest, RunId, RunParams, Window, lineage, norms::RunningNorms};
use std::path::Path;

/// The model `θ_w` with its lineage, running norms and buffer (PROT-17 to PROT-20).
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ModelState {
    pub run: RunId,
    /// The window that opens with this model.
    pub window: Window,
    /// `lineage_w`.
    pub lineage: Digest,
    /// The running norms of the merge: each update tells what it adds to them.
    pub norms: RunningNorms,
    /// `θ_w`: all tensors of the schema, one after the other, row-major.
    pub theta: Vec<f32>,
    /// The error-feedback buffer of the merge, as long as `theta`. Validators need it to merge; miners, and validators
    /// that joined between two checkpoints, have none.
    pub buffer: Option<Vec<f32>>,
}

#[derive(Debug, thiserror::Error)]
pub enum StateError {
    #[error(transparent)]
    File(#[from] FileError),
    #[error("the saved model is not in the form this release writes; remove it to join afresh")]
    Format(#[source] codec::Error),
    #[error(
        "the saved model is of version {found}, and this release reads version {VERSION}; remove it to join afresh"
    )]
    Version { found: u16 },
    #[error("the saved model belongs to run {found}, not to run {expected}; use another directory")]
    OtherRun { found: RunId, expected: RunId },
    #[error("the saved model has {found} values, the run's has {expected}; use another directory")]
    OtherShape { found: usize, expected: usize },
}

/// The version of the format: version, run, window, lineage and running norms, then the values as a SCALE vector of
/// their bits, so that a NaN is preserved, then the buffer as an `Option` of one. Every change of the format is a new
/// version.
const VERSION: u16 = 2;

impl ModelState {
    /// `θ_0`, with an empty buffer and no norms (PROT-19).
    pub fn genesis(run: RunId, params: &RunParams, manifest: &Digest, theta: Vec<f32>) -> ModelState {
        let root = lineage::weights_root(&theta);
        ModelState {
            run,
            window: Window::FIRST,
            lineage: lineage::genesis(params, manifest, &root),
            norms: RunningNorms::default(),
            buffer: Some(vec![0.0; theta.len()]),
            theta,
        }
    }

    /// Applies a merged window: `θ ← fl(θ − fl(α·u))`, and the lineage grows by the update's digest (PROT-18,
    /// PROT-19). `norms` are those in the update's header, `buffer` is the one after the merge, if this node has it.
    pub fn merged(
        &mut self,
        rate: f32,
        digest: &Digest,
        norms: Vec<f64>,
        update: &Update<'_>,
        buffer: Option<Vec<f32>>,
    ) {
        update.apply(rate, &mut self.theta);
        self.lineage = lineage::next(&self.lineage, digest);
        self.norms.push(norms);
        self.buffer = buffer;
        self.window = self.window.next();
    }

    /// Applies a void window: model, norms, buffer and lineage stay (PROT-19).
    pub fn void(&mut self) {
        self.window = self.window.next();
    }

    pub fn weights_root(&self) -> Digest {
        lineage::weights_root(&self.theta)
    }

    /// The root that validators vote at checkpoint windows (PROT-20); `None` without the buffer.
    pub fn state_root(&self) -> Option<Digest> {
        let buffer = self.buffer.as_ref()?;
        Some(lineage::state_root(&self.weights_root(), &lineage::weights_root(buffer), &self.norms.root()))
    }

    /// A copy without the buffer: the model as miners have it.
    pub fn without_buffer(&self) -> ModelState {
        let ModelState { run, window, lineage, norms, theta, buffer: _ } = self;
        ModelState {
            run: *run,
            window: *window,
            lineage: *lineage,
            norms: norms.clone(),
            theta: theta.clone(),
            buffer: None,
        }
    }

    /// Writes the state; a crash at any moment leaves a whole file. The previous one becomes the backup.
    pub fn save(&self, path: &Path) -> Result<(), StateError> {
        DurableFile::new(path).write(|sink| {
            sink.write_all(&(VERSION, self.run, self.window, self.lineage, &self.norms).encode())?;
            durable::write_vector(sink, &self.theta)?;
            match &self.buffer {
                None => sink.write_all(&[0]),
                Some(buffer) => sink.write_all(&[1]).and_then(|()| durable::write_vector(sink, buffer)),
            }
        })?;
        Ok(())
    }

    /// Reads a saved state; `None` if there is none. If the newest is damaged, reads the backup, which is one window
    /// behind.
    pub fn load(path: &Path, run: RunId, values: usize) -> Result<Option<ModelState>, StateError> {
        let found = DurableFile::new(path).read(|reader| {
            let mut source = IoReader(reader);
            // The version first: only this one says how to read the rest.
            let found = u16::decode(&mut source).map_err(StateError::Format)?;
            if found != VERSION {
                return Err(StateError::Version { found });
            }
            let found = RunId::decode(&mut source).map_err(StateError::Format)?;
            if found != run {
                return Err(StateError::OtherRun { found, expected: run });
            }
            let window = Window::decode(&mut source).map_err(StateError::Format)?;
            let lineage = Digest::decode(&mut source).map_err(StateError::Format)?;
            let norms = RunningNorms::decode(&mut source).map_err(StateError::Format)?;
            let theta = values_of(&mut source, values)?;
            let buffer = match u8::decode(&mut source).map_err(StateError::Format)? {
                0 => None,
                1 => Some(values_of(&mut source, values)?),
                _ => return Err(StateError::Format("neither a buffer nor none".into())),
            };
            if 0 < source.0.left() {
                return Err(StateError::Format("more follows than belongs there".into()));
            }
            Ok(ModelState { run, window, lineage, norms, theta, buffer })
        })?;
        Ok(found.map(|found| found.value))
    }
}

fn values_of(
    source: &mut IoReader<&mut durable::DurableReader>,
    expected: usize,
) -> Result<Vec<f32>, StateError> {
    durable::read_vector(source, expected)
        .map_err(StateError::Format)?
        .map_err(|found| StateError::OtherShape { found, expected })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Codec;
    use protocol::contribution::{self, Schema, TensorSpec};

    fn schema() -> Schema {
        Schema::new(vec![TensorSpec { name: "w".into(), shape: vec![8, 8] }]).unwrap()
    }

    fn state() -> ModelState {
        let params = RunParams::default();
        ModelState::genesis(RunId(3), &params, &Digest::of(b"manifest"), (0..64).map(|i| i as f32).collect())
    }

    #[test]
    fn a_void_window_leaves_model_norms_buffer_and_lineage_as_they_were() {
        let mut before = state();
        before.norms.push(vec![0.5]);
        let mut after = before.clone();
        after.void();
        assert_eq!(after.window, Window(1));
        assert_eq!(ModelState { window: before.window, ..after }, before);
    }

    #[test]
    fn a_merged_window_moves_the_model_and_the_lineage() {
        let schema = schema();
        let density = protocol::params::Density(4096);
        let body = contribution::encode(&schema, density, &[0.5; 64]).unwrap();
        let codec = Codec::new(&schema, density).unwrap();
        let update = Update::check(&codec, &body, false).unwrap();
        let mut after = state();
        let digest = Digest::of(&body);
        after.merged(1.0, &digest, vec![0.5], &update, None);
        assert_ne!(after.norms, state().norms);
        assert_eq!(after.window, Window(1));
        assert_eq!(after.lineage, lineage::next(&state().lineage, &digest));
        assert_eq!(after.theta[5], 4.5);
        assert_eq!(after.state_root(), None);
    }

    #[test]
    fn a_saved_state_reads_back_bit_for_bit_and_only_for_its_run() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("state");
        assert!(ModelState::load(&path, RunId(3), 64).unwrap().is_none());
        let mut state = state();
        state.theta[0] = -0.0;
        state.norms.push(vec![0.5]);
        state.save(&path).unwrap();
        let read = ModelState::load(&path, RunId(3), 64).unwrap().unwrap();
        assert_eq!(read.theta[0].to_bits(), (-0.0f32).to_bits());
        assert_eq!(read, state);
        assert!(matches!(ModelState::load(&path, RunId(4), 64), Err(StateError::OtherRun { .. })));
        assert!(matches!(ModelState::load(&path, RunId(3), 65), Err(StateError::OtherShape { .. })));

        DurableFile::new(&path).write(|sink| sink.write_all(&(VERSION + 1).encode())).unwrap();
        let newer = ModelState::load(&path, RunId(3), 64);
        assert!(matches!(newer, Err(StateError::Version { found }) if found == VERSION + 1));
        // A window later it is damaged: the backup is one window behind.
        state.save(&path).unwrap();
        let mut later = state.clone();
        later.void();
        later.save(&path).unwrap();
        std::fs::write(&path, "damaged").unwrap();
        assert_eq!(ModelState::load(&path, RunId(3), 64).unwrap().unwrap(), state);
    }
}
