//! Stores the large data of a node: rows of values, and the bytes of objects.
//!
//! A small row is a vector. A large row is a file mapped into memory: the system evicts its pages whenever it needs
//! memory, so a process needs little memory of its own for any model (ADR 0003).
//!
//! ```text
//! DIRECTORY/rows/.row.unfinished-…    a row of this process, removed with its last owner
//! DIRECTORY/rows/ROOT.row             a row that a saved state names; never changed again
//! ```
//!
//! All blocks of a file are allocated before it is mapped, so that a full disk is an error here and no signal later.
//! Only the process that holds the directory's lock writes files; others read them.

use crate::durable::{FileError, with_need};
use bytes::Bytes;
use dataset::durable::{PendingFile, Readers, UNFINISHED};
use memmap2::{Mmap, MmapMut};
use protocol::{Digest, lineage};
use std::{
    fmt,
    fs::{self, File},
    io::{self, BufWriter, Write as _},
    mem,
    ops::Deref,
    path::{Path, PathBuf},
    slice,
    sync::{Arc, Mutex, OnceLock, PoisonError},
};
use store::{BufferSink, Sink as _};

/// Minimum number of values of a row in a file. 32 Mi values are 128 MiB.
pub const MAPPED_FROM: usize = 1 << 25;
/// Maximum size of an object in memory, in bytes. Larger ones are files.
const OBJECT_IN_MEMORY: usize = 8 << 20;
/// Bytes per write.
const PIECE: usize = 1 << 20;
/// Name of the directory of the files, below the node's directory.
const ROWS: &str = "rows";
/// Suffix of the name of a saved row.
const EXTENSION: &str = ".row";
/// True if rows can be mapped: the file holds `f32` values in their memory layout.
const MAPS: bool = cfg!(all(unix, target_endian = "little"));

/// The place in which rows and objects are stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Storage {
    directory: Option<PathBuf>,
    mapped_from: usize,
}

impl Default for Storage {
    fn default() -> Storage {
        Storage::memory()
    }
}

impl Storage {
    /// Keeps everything in memory.
    pub fn memory() -> Storage {
        Storage { directory: None, mapped_from: usize::MAX }
    }

    /// Keeps large data in files below a node's directory.
    pub fn on_disk(directory: impl Into<PathBuf>) -> Storage {
        Storage { directory: Some(directory.into()), mapped_from: MAPPED_FROM }
    }

    /// Uses files for rows of at least `values` values, and for objects with more than as many bytes.
    pub fn mapped_from(self, values: usize) -> Storage {
        Storage { mapped_from: values, ..self }
    }

    /// Returns the node's directory.
    pub fn directory(&self) -> Option<&Path> {
        self.directory.as_deref()
    }

    /// Creates a row of zeros.
    ///
    /// # Errors
    /// If the disk has no space for it.
    pub fn zeros(&self, values: usize) -> Result<Row, FileError> {
        match &self.directory {
            Some(directory) if MAPS && 0 < values && self.mapped_from <= values => {
                Ok(Row(Kept::Mapped(Arc::new(MappedRow::create(&directory.join(ROWS), values)?))))
            }
            _ => Ok(vec![0.0; values].into()),
        }
    }

    /// Creates an empty buffer for an object.
    pub fn object(&self) -> ObjectBuffer {
        ObjectBuffer { storage: self.clone(), kept: KeptBytes::default(), failed: None }
    }

    /// Removes the files of a killed process. Must be called before this process creates any.
    pub fn remove_unfinished(&self) {
        let Some(directory) = &self.directory else { return };
        remove_files(&directory.join(ROWS), |name| name.starts_with('.') && name.contains(UNFINISHED));
    }
}

/// Returns the directory of the rows that the state at `path` names.
pub(crate) fn rows_of(path: &Path) -> PathBuf {
    dataset::durable::directory_of(path).join(ROWS)
}

/// Removes the saved rows in `rows` whose root is not in `named`. Mapped rows stay readable.
pub(crate) fn remove_other_rows(rows: &Path, named: &[Digest]) {
    let named: Vec<String> = named.iter().map(file_name).collect();
    remove_files(rows, |name| name.ends_with(EXTENSION) && !named.iter().any(|named| named == name));
}

fn file_name(root: &Digest) -> String {
    format!("{root}{EXTENSION}")
}

fn remove_files(directory: &Path, is_old: impl Fn(&str) -> bool) {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    for path in
        entries.filter(|entry| entry.file_name().to_str().is_some_and(&is_old)).map(|entry| entry.path())
    {
        if let Err(error) = fs::remove_file(&path) {
            tracing::warn!(path = %path.display(), %error, "could not remove a row that is not needed any more");
        }
    }
}

/// One flat row of values: weights or a merge buffer. Clones share the values until one of them is changed.
#[derive(Clone)]
pub struct Row(Kept);

#[derive(Clone)]
enum Kept {
    Memory(Arc<Vec<f32>>),
    Mapped(Arc<MappedRow>),
}

impl Row {
    /// Returns the values for writing. Shared or saved values are copied first.
    ///
    /// # Errors
    /// If the disk has no space for the copy. The row is then unchanged.
    pub fn edit(&mut self) -> Result<&mut [f32], FileError> {
        if let Kept::Mapped(row) = &mut self.0
            && !Arc::get_mut(row).is_some_and(|row| row.is_unfinished())
        {
            let copy = MappedRow::copy_to(&row.directory, row.values())?;
            *row = Arc::new(copy);
        }
        match &mut self.0 {
            Kept::Memory(values) => Ok(&mut **Arc::make_mut(values)),
            Kept::Mapped(row) => Ok(Arc::get_mut(row).expect("a copy has one owner").values_mut()),
        }
    }

    /// Returns the digests of the row's pieces (PROT-20). For a file they are computed once.
    pub fn piece_digests(&self) -> Vec<Digest> {
        match &self.0 {
            Kept::Memory(values) => lineage::piece_digests(values),
            Kept::Mapped(row) => row.piece_digests().to_vec(),
        }
    }

    /// Returns the root of the row (PROT-20).
    pub fn root(&self) -> Digest {
        lineage::root_of_pieces(&self.piece_digests())
    }

    /// Returns whether the row is a file.
    pub fn is_mapped(&self) -> bool {
        matches!(self.0, Kept::Mapped(_))
    }

    /// Makes the row durable as a file in `rows`, named by its root. Returns the root.
    pub(crate) fn save_in(&self, rows: &Path) -> Result<Digest, FileError> {
        let root = self.root();
        let path = rows.join(file_name(&root));
        match &self.0 {
            Kept::Mapped(row) if row.directory == rows => row.save(&path)?,
            _ if path.exists() => {}
            _ => MappedRow::copy_to(rows, self)?.save(&path)?,
        }
        Ok(root)
    }

    /// Opens the saved row of `values` values with this root; `None` if it is missing, truncated or damaged.
    pub(crate) fn open_in(rows: &Path, root: &Digest, values: usize) -> Result<Option<Row>, FileError> {
        let path = rows.join(file_name(root));
        let failed = |source| FileError::Read { path: path.clone(), source };
        let file = match File::open(&path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(failed(error)),
        };
        if file.metadata().map_err(failed)?.len() != bytes_of(values) || !MAPS {
            return Ok(None);
        }
        // SAFETY: a saved row is never changed, only removed. The directory belongs to the node.
        let map = unsafe { Mmap::map(&file) }.map_err(failed)?;
        let (map, file) = (Map::ReadOnly(map), Mutex::new(RowFile::Named));
        let row =
            MappedRow { map, length: values, directory: rows.to_owned(), file, pieces: OnceLock::new() };
        let is_whole = lineage::root_of_pieces(row.piece_digests()) == *root;
        Ok(is_whole.then(|| Row(Kept::Mapped(Arc::new(row)))))
    }
}

impl Default for Row {
    fn default() -> Row {
        Vec::new().into()
    }
}

impl From<Vec<f32>> for Row {
    fn from(values: Vec<f32>) -> Row {
        Row(Kept::Memory(Arc::new(values)))
    }
}

impl Deref for Row {
    type Target = [f32];

    fn deref(&self) -> &[f32] {
        match &self.0 {
            Kept::Memory(values) => values,
            Kept::Mapped(row) => row.values(),
        }
    }
}

impl PartialEq for Row {
    fn eq(&self, other: &Row) -> bool {
        **self == **other
    }
}

impl fmt::Debug for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Row of {} values beginning {:?}", self.len(), &self[..self.len().min(8)])
    }
}

/// A row in a file.
struct MappedRow {
    map: Map,
    /// Number of values.
    length: usize,
    directory: PathBuf,
    file: Mutex<RowFile>,
    pieces: OnceLock<Vec<Digest>>,
}

enum Map {
    Writable(MmapMut),
    ReadOnly(Mmap),
}

enum RowFile {
    /// Removed with the row.
    Unfinished(PendingFile),
    /// Named by its root; neither changed nor removed with the row.
    Named,
}

impl MappedRow {
    /// Creates a file of zeros in `directory`.
    fn create(directory: &Path, length: usize) -> Result<MappedRow, FileError> {
        let failed = |source| {
            let source = with_need(source, bytes_of(length));
            FileError::Write { path: directory.to_owned(), source }
        };
        let prefix = format!(".row{UNFINISHED}");
        let mut file = PendingFile::create_in(directory, &prefix, Readers::Owner).map_err(failed)?;
        allocate(file.file(), bytes_of(length)).map_err(failed)?;
        // SAFETY: no other code uses the file's name, and the directory belongs to the node. All blocks are allocated,
        // so that no write to the map needs another one.
        let map = unsafe { MmapMut::map_mut(&*file.file()) }.map_err(failed)?;
        Ok(MappedRow {
            map: Map::Writable(map),
            length,
            directory: directory.to_owned(),
            file: Mutex::new(RowFile::Unfinished(file)),
            pieces: OnceLock::new(),
        })
    }

    /// Creates a file with these values.
    fn copy_to(directory: &Path, values: &[f32]) -> Result<MappedRow, FileError> {
        let mut copy = MappedRow::create(directory, values.len())?;
        copy.values_mut().copy_from_slice(values);
        Ok(copy)
    }

    fn is_unfinished(&mut self) -> bool {
        let file = self.file.get_mut().unwrap_or_else(PoisonError::into_inner);
        matches!(file, RowFile::Unfinished(_))
    }

    fn values(&self) -> &[f32] {
        let start = match &self.map {
            Map::Writable(map) => map.as_ptr(),
            Map::ReadOnly(map) => map.as_ptr(),
        };
        // SAFETY: the map begins at a page, has `4 · length` bytes, and lives as long as `self`. Any bits are a valid
        // `f32`.
        unsafe { slice::from_raw_parts(start.cast(), self.length) }
    }

    /// # Panics
    /// If the row was saved.
    fn values_mut(&mut self) -> &mut [f32] {
        self.pieces = OnceLock::new();
        let Map::Writable(map) = &mut self.map else {
            unreachable!("an opened row is named, so it is copied")
        };
        // SAFETY: as in `values`; `self` is borrowed for writing, so there is no other reference.
        unsafe { slice::from_raw_parts_mut(map.as_mut_ptr().cast(), self.length) }
    }

    fn piece_digests(&self) -> &[Digest] {
        self.pieces.get_or_init(|| lineage::piece_digests(self.values()))
    }

    /// Makes the row durable at `path`, which is in its directory.
    fn save(&self, path: &Path) -> Result<(), FileError> {
        let failed = |source| FileError::Write { path: path.to_owned(), source };
        let mut file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        match &*file {
            RowFile::Unfinished(pending) => {
                if let Map::Writable(map) = &self.map {
                    map.flush().map_err(failed)?;
                }
                pending.sync().map_err(failed)?;
            }
            RowFile::Named if path.exists() => return Ok(()),
            // The row was saved, then removed because no state named it any more.
            RowFile::Named => return MappedRow::copy_to(&self.directory, self.values())?.save(path),
        }
        match mem::replace(&mut *file, RowFile::Named) {
            RowFile::Unfinished(pending) => pending.publish(path).map_err(failed),
            RowFile::Named => Ok(()),
        }
    }
}

fn bytes_of(values: usize) -> u64 {
    (values as u64).saturating_mul(4)
}

/// Fills an empty file with `bytes` zeros and allocates all of its blocks.
fn allocate(file: &mut File, bytes: u64) -> io::Result<()> {
    #[cfg(target_os = "linux")]
    match rustix::fs::fallocate(&*file, rustix::fs::FallocateFlags::empty(), 0, bytes) {
        Ok(()) => return Ok(()),
        // The file system does not support it.
        Err(rustix::io::Errno::OPNOTSUPP | rustix::io::Errno::NOSYS) => {}
        Err(error) => return Err(error.into()),
    }
    let piece = vec![0; PIECE];
    let mut left = bytes;
    while 0 < left {
        let length = usize::try_from(left).unwrap_or(usize::MAX).min(PIECE);
        file.write_all(&piece[..length])?;
        left -= length as u64;
    }
    Ok(())
}

/// The bytes of an object in memory, or in a file without a name.
#[derive(Debug)]
pub struct ObjectBuffer {
    storage: Storage,
    kept: KeptBytes,
    /// The first failure, returned by `finish`.
    failed: Option<FileError>,
}

#[derive(Debug)]
enum KeptBytes {
    Memory(BufferSink),
    File(BufWriter<File>),
}

impl Default for KeptBytes {
    fn default() -> KeptBytes {
        KeptBytes::Memory(BufferSink::default())
    }
}

impl ObjectBuffer {
    /// Starts an object of at most `length` bytes. Drops earlier bytes.
    pub fn begin(&mut self, length: u64) {
        let mut memory = BufferSink::default();
        memory.begin(length);
        (self.kept, self.failed) = (KeptBytes::Memory(memory), None);
        let in_memory = OBJECT_IN_MEMORY.min(self.storage.mapped_from) as u64;
        let Some(directory) = self.storage.directory().filter(|_| in_memory < length) else { return };
        let rows = directory.join(ROWS);
        match fs::create_dir_all(&rows).and_then(|()| tempfile::tempfile_in(&rows)) {
            Ok(file) => self.kept = KeptBytes::File(BufWriter::with_capacity(PIECE, file)),
            Err(source) => self.failed = Some(FileError::Write { path: rows, source }),
        }
    }

    /// Appends bytes.
    pub fn push(&mut self, bytes: &[u8]) {
        if self.failed.is_some() {
            return;
        }
        match &mut self.kept {
            KeptBytes::Memory(memory) => memory.piece(bytes),
            KeptBytes::File(file) => {
                if let Err(source) = file.write_all(bytes) {
                    self.failed = Some(self.not_written(source, bytes.len() as u64));
                }
            }
        }
    }

    /// Returns all bytes.
    ///
    /// # Errors
    /// If the bytes could not be written to disk.
    pub fn finish(mut self) -> Result<Bytes, FileError> {
        if let Some(failed) = self.failed.take() {
            return Err(failed);
        }
        match mem::take(&mut self.kept) {
            KeptBytes::Memory(memory) => Ok(memory.into_bytes()),
            KeptBytes::File(file) => {
                let file = file.into_inner().map_err(io::IntoInnerError::into_error);
                // SAFETY: the file has no name and one handle, so nothing changes it.
                let map = file.and_then(|file| unsafe { map_all(&file) });
                map.map_err(|source| self.not_written(source, PIECE as u64))
            }
        }
    }

    fn not_written(&self, source: io::Error, bytes: u64) -> FileError {
        let path = self.storage.directory().unwrap_or(Path::new(ROWS)).join(ROWS);
        FileError::Write { path, source: with_need(source, bytes) }
    }
}

/// Reads a file; maps a large one.
///
/// # Safety
/// The file must not be changed while the bytes are in use. It may be removed.
pub(crate) unsafe fn read_file(path: &Path) -> io::Result<Bytes> {
    let file = File::open(path)?;
    if file.metadata()?.len() <= OBJECT_IN_MEMORY as u64 {
        return Ok(fs::read(path)?.into());
    }
    // SAFETY: guaranteed by the caller.
    unsafe { map_all(&file) }
}

/// # Safety
/// The file must not be changed while the bytes are in use.
unsafe fn map_all(file: &File) -> io::Result<Bytes> {
    if file.metadata()?.len() == 0 {
        return Ok(Bytes::new());
    }
    // SAFETY: guaranteed by the caller.
    Ok(Bytes::from_owner(unsafe { Mmap::map(file) }?))
}

#[cfg(test)]
mod tests {
    use super::*;

    const VALUES: usize = lineage::PIECE_VALUES + 5;

    struct Home {
        directory: tempfile::TempDir,
        storage: Storage,
    }

    impl Home {
        fn new() -> Home {
            let directory = tempfile::tempdir().unwrap();
            let storage = Storage::on_disk(directory.path()).mapped_from(0);
            Home { directory, storage }
        }

        fn rows(&self) -> PathBuf {
            self.directory.path().join(ROWS)
        }

        fn names(&self) -> Vec<String> {
            let entries = fs::read_dir(self.rows()).unwrap();
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
        }

        fn row(&self) -> Row {
            let mut row = self.storage.zeros(VALUES).unwrap();
            row.edit().unwrap().copy_from_slice(&values());
            row
        }
    }

    fn values() -> Vec<f32> {
        (0..VALUES).map(|index| (index as f32).sin()).collect()
    }

    #[test]
    fn only_a_large_row_in_a_directory_is_a_file() {
        let home = Home::new();
        let storage = Storage::on_disk(home.directory.path());
        assert!(
            !storage.zeros(1000).unwrap().is_mapped() && !Storage::memory().zeros(1000).unwrap().is_mapped()
        );
        let storage = storage.mapped_from(1000);
        assert!(!storage.zeros(999).unwrap().is_mapped());
        let row = storage.zeros(1000).unwrap();
        assert!(row.is_mapped() && row.iter().all(|value| *value == 0.0));
        assert!(!home.storage.zeros(0).unwrap().is_mapped(), "an empty file cannot be mapped");
    }

    #[test]
    fn a_row_in_a_file_has_the_roots_of_one_in_memory() {
        let home = Home::new();
        let mut row = home.row();
        assert_eq!(row, Row::from(values()));
        assert_eq!(row.root(), lineage::weights_root(&values()));
        row.edit().unwrap()[VALUES - 1] = -0.0;
        let mut changed = values();
        changed[VALUES - 1] = -0.0;
        assert_eq!(row.root(), lineage::weights_root(&changed), "the old root is forgotten");
    }

    #[test]
    fn a_change_is_seen_by_one_of_two_clones() {
        for mut row in [Home::new().row(), Row::from(values())] {
            let other = row.clone();
            row.edit().unwrap()[0] = 7.0;
            assert_eq!((row[0], other[0]), (7.0, values()[0]));
        }
    }

    #[test]
    fn a_row_leaves_no_file_but_what_is_saved_and_that_does_not_change() {
        let home = Home::new();
        let mut row = home.row();
        assert_eq!(home.names().len(), 1);
        let root = row.save_in(&home.rows()).unwrap();
        assert_eq!(home.names(), [format!("{root}.row")]);
        row.edit().unwrap()[3] = 9.0;
        assert_eq!(home.names().len(), 2, "it was copied");
        drop(row);
        assert_eq!(home.names(), [format!("{root}.row")]);
        let saved = Row::open_in(&home.rows(), &root, VALUES).unwrap().unwrap();
        assert_eq!(saved, Row::from(values()));

        // A row removed while in use is written again by the next save.
        remove_other_rows(&home.rows(), &[]);
        assert_eq!(home.names(), [""; 0]);
        assert_eq!(saved, Row::from(values()));
        assert_eq!(saved.save_in(&home.rows()).unwrap(), root);
        // So is a row of another directory, or one in memory.
        for row in [Home::new().row(), values().into()] {
            remove_other_rows(&home.rows(), &[]);
            assert_eq!(row.save_in(&home.rows()).unwrap(), root);
            assert_eq!(home.names(), [format!("{root}.row")]);
        }
        remove_other_rows(&home.rows(), &[root]);
        assert_eq!(home.names(), [format!("{root}.row")]);
    }

    #[test]
    fn a_saved_row_that_is_missing_cut_or_damaged_is_not_opened() {
        let home = Home::new();
        let root = home.row().save_in(&home.rows()).unwrap();
        let path = home.rows().join(file_name(&root));
        let whole = fs::read(&path).unwrap();
        let open = || Row::open_in(&home.rows(), &root, VALUES).unwrap();
        assert!(open().is_some());
        assert!(Row::open_in(&home.rows(), &root, VALUES + 1).unwrap().is_none());
        for at in [0, whole.len() / 2, whole.len() - 1] {
            let mut damaged = whole.clone();
            damaged[at] ^= 1;
            fs::write(&path, damaged).unwrap();
            assert!(open().is_none());
        }
        fs::write(&path, &whole[..whole.len() - 4]).unwrap();
        assert!(open().is_none());
        fs::remove_file(&path).unwrap();
        assert!(open().is_none());
    }

    #[test]
    fn the_files_of_a_killed_process_are_removed_at_the_next_start() {
        let home = Home::new();
        mem::forget(home.row());
        let root = home.row().save_in(&home.rows()).unwrap();
        assert_eq!(home.names().len(), 2);
        home.storage.remove_unfinished();
        assert_eq!(home.names(), [format!("{root}.row")]);
    }

    #[test]
    fn a_disk_without_room_for_a_row_is_full() {
        let home = Home::new();
        let error = home.storage.zeros(1 << 56).unwrap_err();
        let said = crate::error_chain(&error);
        assert!(crate::durable::is_full(&error) && said.contains("bytes are needed"), "{said}");
        assert_eq!(home.names(), [""; 0]);
    }

    #[test]
    fn an_object_has_the_same_bytes_in_a_file_and_in_memory() {
        let home = Home::new();
        let bytes: Vec<u8> = (0..3 * PIECE).map(|index| index as u8).collect();
        for (storage, is_file) in [(Storage::memory(), false), (home.storage.clone(), true)] {
            let mut buffer = storage.object();
            buffer.begin(5);
            buffer.push(b"drop ");
            buffer.begin(bytes.len() as u64);
            assert_eq!(matches!(buffer.kept, KeptBytes::File(_)), is_file);
            bytes.chunks(1000).for_each(|piece| buffer.push(piece));
            assert!(buffer.finish().unwrap() == bytes);
            let mut empty = storage.object();
            empty.begin(1);
            assert_eq!(empty.finish().unwrap(), Bytes::new());
        }
        assert_eq!(home.names(), [""; 0], "they have no name");
    }

    #[test]
    fn an_object_that_no_directory_takes_is_an_error_at_its_end() {
        let home = Home::new();
        fs::write(home.rows(), "in the way").unwrap();
        let mut buffer = home.storage.object();
        buffer.begin(5);
        buffer.push(b"bytes");
        assert!(matches!(buffer.finish(), Err(FileError::Write { path, .. }) if path == home.rows()));
    }
}
