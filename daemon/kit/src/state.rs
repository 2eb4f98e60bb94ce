//! The model of a node when a window opens. It changes by an update that the chain fixed, or not at all.

use crate::{
    codec::Update,
    durable::{self, DurableFile, DurableReader, FileError},
    storage::{self, Row, Storage},
};
use codec::{Decode, Encode, IoReader};
use protocol::{Digest, RunId, RunParams, Window, lineage, norms::RunningNorms};
use std::{fs::File, io, path::Path};

/// The model `θ_w` with its lineage, running norms and buffer (PROT-17 to PROT-20).
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ModelState {
    pub run: RunId,
    /// The window that opens with this model.
    pub window: Window,
    /// `lineage_w`.
    pub lineage: Digest,
    /// The running norms of the merge, to which each update adds its norms.
    pub norms: RunningNorms,
    /// `θ_w`: all tensors of the schema, one after the other, row-major.
    pub theta: Row,
    /// The error-feedback buffer of the merge, as long as `theta`. Validators need it to merge. Miners, and validators
    /// that joined between two checkpoints, do not have it.
    pub buffer: Option<Row>,
}

#[derive(Debug, thiserror::Error)]
pub enum StateError {
    #[error(transparent)]
    File(#[from] FileError),
    #[error("the saved model is not in the form this release writes; remove it to join afresh")]
    Format(#[source] codec::Error),
    #[error(
        "the saved model is of version {found}, and this release reads versions {INLINE} and {NAMED}; remove it to join afresh"
    )]
    Version { found: u16 },
    #[error(
        "the saved model belongs to run {found}, not to run {expected}; name that run, or use another directory"
    )]
    OtherRun { found: RunId, expected: RunId },
    #[error("the saved model has {found} values, the run's has {expected}; use another directory")]
    OtherShape { found: usize, expected: usize },
    #[error("the saved model's row {root} is missing or damaged; without it the node joins afresh")]
    Row { root: Digest },
}

/// The version of the format that contains the values: version, run, window, lineage and running norms, then the
/// values as a SCALE vector of their bits, which preserves NaN, then the buffer as an `Option` of such a vector. Every
/// change of the format is a new version.
const INLINE: u16 = 2;
/// The version of the format that names rows: the same head, then [`NamedRows`]. The rows are separate files
/// (ADR 0003).
const NAMED: u16 = 3;

/// The rows of a state: the number of values in each, and the roots that name their files.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
struct NamedRows {
    values: u64,
    theta: Digest,
    buffer: Option<Digest>,
}

impl ModelState {
    /// Returns `θ_0`, with an empty buffer and no norms (PROT-19).
    pub fn genesis(run: RunId, params: &RunParams, manifest: &Digest, theta: Vec<f32>) -> ModelState {
        let buffer = Some(vec![0.0; theta.len()].into());
        ModelState { buffer, ..ModelState::first(run, params, manifest, theta.into()) }
    }

    /// Returns `θ_0` without a buffer.
    pub fn first(run: RunId, params: &RunParams, manifest: &Digest, theta: Row) -> ModelState {
        ModelState {
            run,
            window: Window::FIRST,
            lineage: lineage::genesis(params, manifest, &theta.root()),
            norms: RunningNorms::default(),
            theta,
            buffer: None,
        }
    }

    /// Applies a merged window: `θ ← fl(θ − fl(α·u))`, and extends the lineage by the update's digest (PROT-18,
    /// PROT-19). `norms` are those in the update's header; `buffer` is the one after the merge, if this node has it.
    ///
    /// # Errors
    /// If the disk has no space for the model. The state is then unchanged.
    pub fn merged(
        &mut self,
        rate: f32,
        digest: &Digest,
        norms: Vec<f64>,
        update: &Update<'_>,
        buffer: Option<Row>,
    ) -> Result<(), FileError> {
        update.apply(rate, self.theta.edit()?);
        self.lineage = lineage::next(&self.lineage, digest);
        self.norms.push(norms);
        self.buffer = buffer;
        self.window = self.window.next();
        Ok(())
    }

    /// Applies a void window, which keeps model, norms, buffer and lineage (PROT-19).
    pub fn void(&mut self) {
        self.window = self.window.next();
    }

    pub fn weights_root(&self) -> Digest {
        self.theta.root()
    }

    /// Returns the root that validators vote for at checkpoint windows (PROT-20); `None` without the buffer.
    pub fn state_root(&self) -> Option<Digest> {
        let buffer = self.buffer.as_ref()?;
        Some(lineage::state_root(&self.weights_root(), &buffer.root(), &self.norms.root()))
    }

    /// Returns the state without the buffer, as miners have it. The values are shared.
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

    /// Writes the state atomically. The previous file becomes the backup. Rows in files are named by their roots
    /// first, and are removed with the last state that names them.
    ///
    /// # Errors
    /// If the disk is full or fails.
    pub fn save(&self, path: &Path) -> Result<(), StateError> {
        let rows = storage::rows_of(path);
        let mut named = Vec::new();
        if self.theta.is_mapped() {
            let theta = self.theta.save_in(&rows)?;
            let buffer = self.buffer.as_ref().map(|buffer| buffer.save_in(&rows)).transpose()?;
            let names = NamedRows { values: self.theta.len() as u64, theta, buffer };
            DurableFile::new(path).write(|sink| sink.write_all(&(self.head(NAMED), names).encode()))?;
            named.extend(std::iter::once(theta).chain(buffer));
        } else {
            DurableFile::new(path).write(|sink| {
                sink.write_all(&self.head(INLINE).encode())?;
                durable::write_vector(sink, &self.theta)?;
                match &self.buffer {
                    None => sink.write_all(&[0]),
                    Some(buffer) => sink.write_all(&[1]).and_then(|()| durable::write_vector(sink, buffer)),
                }
            })?;
        }
        if let Some(before) = rows_named_by(&DurableFile::new(path).backup_path()) {
            named.extend(before);
            storage::remove_other_rows(&rows, &named);
        }
        Ok(())
    }

    /// Returns the head of a file.
    fn head(&self, version: u16) -> (u16, RunId, Window, Digest, &RunningNorms) {
        (version, self.run, self.window, self.lineage, &self.norms)
    }

    /// Reads a saved state; `None` if there is none. If the newest file is damaged, reads the backup, which is one
    /// window older. Values inside the file are moved into `storage`; rows that are files stay in place.
    ///
    /// # Errors
    /// If neither file can be read, or it belongs to another run or version. [`StateError::Row`] if the file is whole
    /// but a row that it names is not.
    pub fn load(
        path: &Path,
        run: RunId,
        values: usize,
        storage: &Storage,
    ) -> Result<Option<ModelState>, StateError> {
        let found = DurableFile::new(path).read(|reader| {
            let mut source = IoReader(reader);
            // The version first: it determines the format of the rest.
            let version = u16::decode(&mut source).map_err(StateError::Format)?;
            if ![INLINE, NAMED].contains(&version) {
                return Err(StateError::Version { found: version });
            }
            let found = RunId::decode(&mut source).map_err(StateError::Format)?;
            if found != run {
                return Err(StateError::OtherRun { found, expected: run });
            }
            let window = Window::decode(&mut source).map_err(StateError::Format)?;
            let lineage = Digest::decode(&mut source).map_err(StateError::Format)?;
            let norms = RunningNorms::decode(&mut source).map_err(StateError::Format)?;
            let mut state = ModelState { run, window, lineage, norms, ..ModelState::default() };
            let mut names = None;
            if version == NAMED {
                names = Some(NamedRows::decode(&mut source).map_err(StateError::Format)?);
            } else {
                state.theta = values_of(&mut source, values, storage)?;
                state.buffer = match u8::decode(&mut source).map_err(StateError::Format)? {
                    0 => None,
                    1 => Some(values_of(&mut source, values, storage)?),
                    _ => return Err(StateError::Format("neither a buffer nor none".into())),
                };
            }
            if 0 < source.0.left() {
                return Err(StateError::Format("more follows than belongs there".into()));
            }
            Ok((state, names))
        })?;
        let Some((mut state, names)) = found.map(|found| found.value) else { return Ok(None) };
        if let Some(names) = names {
            check_length(usize::try_from(names.values).unwrap_or(usize::MAX), values)?;
            let rows = storage::rows_of(path);
            let open = |root| Row::open_in(&rows, &root, values)?.ok_or(StateError::Row { root });
            state.theta = open(names.theta)?;
            state.buffer = names.buffer.map(open).transpose()?;
        }
        Ok(Some(state))
    }
}

fn values_of(
    source: &mut IoReader<&mut DurableReader>,
    expected: usize,
    storage: &Storage,
) -> Result<Row, StateError> {
    check_length(durable::read_length(source).map_err(StateError::Format)?, expected)?;
    let mut row = storage.zeros(expected)?;
    durable::read_values_into(source.0, row.edit()?).map_err(|error| StateError::Format(error.into()))?;
    Ok(row)
}

fn check_length(found: usize, expected: usize) -> Result<(), StateError> {
    if found == expected { Ok(()) } else { Err(StateError::OtherShape { found, expected }) }
}

/// Returns the rows that the state at `path` names; `None` if the file cannot be read.
fn rows_named_by(path: &Path) -> Option<Vec<Digest>> {
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Some(Vec::new()),
        Err(_) => return None,
    };
    let mut source = IoReader(io::BufReader::new(file));
    if u16::decode(&mut source).ok()? != NAMED {
        return Some(Vec::new());
    }
    <(RunId, Window, Digest, RunningNorms)>::decode(&mut source).ok()?;
    let NamedRows { theta, buffer, .. } = NamedRows::decode(&mut source).ok()?;
    Some(std::iter::once(theta).chain(buffer).collect())
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
        after.merged(1.0, &digest, vec![0.5], &update, None).unwrap();
        assert_ne!(after.norms, state().norms);
        assert_eq!(after.window, Window(1));
        assert_eq!(after.lineage, lineage::next(&state().lineage, &digest));
        assert_eq!(after.theta[5], 4.5);
        assert_eq!(after.state_root(), None);
    }

    /// The same state, in memory and in files.
    fn states(directory: &Path) -> [ModelState; 2] {
        let memory = state();
        let mut mapped = memory.clone();
        let storage = Storage::on_disk(directory).mapped_from(0);
        mapped.theta = storage.zeros(64).unwrap();
        mapped.theta.edit().unwrap().copy_from_slice(&memory.theta);
        mapped.buffer = Some(storage.zeros(64).unwrap());
        assert_eq!(mapped, memory);
        [memory, mapped]
    }

    fn load(path: &Path) -> Result<Option<ModelState>, StateError> {
        ModelState::load(path, RunId(3), 64, &Storage::memory())
    }

    #[test]
    fn a_saved_state_reads_back_bit_for_bit_and_only_for_its_run() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("state");
        assert!(load(&path).unwrap().is_none());
        for mut state in states(directory.path()) {
            state.theta.edit().unwrap()[0] = -0.0;
            state.norms.push(vec![0.5]);
            state.save(&path).unwrap();
            let read = load(&path).unwrap().unwrap();
            assert_eq!(read.theta[0].to_bits(), (-0.0f32).to_bits());
            assert_eq!(read, state);
            assert_eq!(read.theta.is_mapped(), state.theta.is_mapped());
            let load = |run, values| ModelState::load(&path, run, values, &Storage::memory());
            assert!(matches!(load(RunId(4), 64), Err(StateError::OtherRun { .. })));
            assert!(matches!(load(RunId(3), 65), Err(StateError::OtherShape { .. })));

            DurableFile::new(&path).write(|sink| sink.write_all(&(NAMED + 1).encode())).unwrap();
            let newer = self::load(&path);
            assert!(matches!(newer, Err(StateError::Version { found }) if found == NAMED + 1));
            // A window later the file is damaged: the backup is one window older.
            state.save(&path).unwrap();
            let mut later = state.clone();
            later.void();
            later.save(&path).unwrap();
            std::fs::write(&path, "damaged").unwrap();
            assert_eq!(self::load(&path).unwrap().unwrap(), state);
        }
    }

    /// A file of the previous release can still be read, also into files.
    #[test]
    fn a_state_with_values_inside_is_read_into_the_storage_of_its_node() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("state");
        state().save(&path).unwrap();
        let storage = Storage::on_disk(directory.path()).mapped_from(0);
        let read = ModelState::load(&path, RunId(3), 64, &storage).unwrap().unwrap();
        assert!(read.theta.is_mapped() && read == state());
        read.save(&path).unwrap();
        let again = load(&path).unwrap().unwrap();
        assert!(again.theta.is_mapped() && again == state());
    }

    #[test]
    fn rows_stay_while_the_state_or_its_backup_names_them() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("state");
        let [_, mut state] = states(directory.path());
        let rows = || {
            let entries = std::fs::read_dir(directory.path().join("rows")).unwrap();
            entries
                .filter(|entry| entry.as_ref().unwrap().path().extension().is_some_and(|is| is == "row"))
                .count()
        };
        let mut before = None;
        for window in 0..4 {
            state.theta.edit().unwrap()[5] = 100.0 + window as f32;
            state.save(&path).unwrap();
            // The buffer is the same in all of them.
            assert_eq!(rows(), if window == 0 { 2 } else { 3 });
            if let Some(before) = before.replace(state.clone()) {
                assert_eq!(
                    ModelState::load(
                        &DurableFile::new(&path).backup_path(),
                        RunId(3),
                        64,
                        &Storage::memory()
                    )
                    .unwrap(),
                    Some(before)
                );
            }
        }
        // Void windows: both share one θ.
        state.save(&path).unwrap();
        assert_eq!(rows(), 2);
    }

    #[test]
    fn a_lost_row_is_named_and_the_backup_has_its_own() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("state");
        let [_, mut state] = states(directory.path());
        state.save(&path).unwrap();
        let before = state.clone();
        state.theta.edit().unwrap()[5] = 100.0;
        state.save(&path).unwrap();
        let root = state.theta.root();
        std::fs::write(directory.path().join(format!("rows/{root}.row")), [0; 256]).unwrap();
        assert!(matches!(load(&path), Err(StateError::Row { root: lost }) if lost == root));
        DurableFile::new(&path).set_aside().unwrap();
        assert_eq!(load(&path).unwrap().unwrap(), before);
    }
}
