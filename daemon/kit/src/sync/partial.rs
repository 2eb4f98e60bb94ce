//! A partially fetched checkpoint on the disk: each piece at its offset, in any order of arrival.
//!
//! There is no list of complete pieces: a piece is complete if its bytes have the digest in the voted manifest. So a
//! killed process, or a machine after a power failure, resumes with the valid part of the file.

use crate::{
    durable::{FileError, with_need},
    pieces::PieceSink,
    storage::{Row, Storage},
};
use async_trait::async_trait;
use bytes::Bytes;
use protocol::{Digest, lineage};
use std::{
    fs,
    io::{self, Read as _, Seek as _, SeekFrom},
    path::{Path, PathBuf},
};
use tokio::io::{AsyncSeekExt as _, AsyncWriteExt as _};

/// The positions of pieces in rows of `values` values. Pieces are numbered through all rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Layout {
    pub values: usize,
}

impl Layout {
    pub fn pieces_of_row(self) -> usize {
        self.values.div_ceil(lineage::PIECE_VALUES)
    }

    /// Returns a piece's row, its start in the row, and its number of values.
    pub fn at(self, index: usize) -> (usize, usize, usize) {
        let of_row = self.pieces_of_row().max(1);
        let start = index % of_row * lineage::PIECE_VALUES;
        (index / of_row, start, lineage::PIECE_VALUES.min(self.values - start))
    }

    /// Returns a piece's offset in a file of all rows and its length, in bytes.
    fn in_file(self, index: usize) -> (u64, usize) {
        let (row, start, length) = self.at(index);
        (4 * (row as u64 * self.values as u64 + start as u64), 4 * length)
    }
}

/// A file that is filled piece by piece.
pub(crate) struct Partial {
    path: PathBuf,
    file: tokio::fs::File,
    layout: Layout,
    /// Size of the whole file.
    bytes: u64,
}

impl Partial {
    /// Opens or creates the file of `rows` rows, and keeps the pieces of a killed process.
    pub async fn open(path: &Path, layout: Layout, rows: u64) -> Result<Partial, FileError> {
        let bytes = (layout.values as u64).saturating_mul(4).saturating_mul(rows);
        let failed = |source| not_written(path, bytes, source);
        if let Some(directory) = path.parent() {
            tokio::fs::create_dir_all(directory).await.map_err(failed)?;
        }
        let mut options = tokio::fs::OpenOptions::new();
        let file = options.create(true).truncate(false).write(true).open(path).await.map_err(failed)?;
        Ok(Partial { path: path.to_owned(), file, layout, bytes })
    }

    /// Returns which of these pieces are missing in the file. Reads the whole file.
    pub async fn missing(&self, digests: Vec<Digest>) -> Result<Vec<usize>, FileError> {
        let (path, layout) = (self.path.clone(), self.layout);
        on_a_thread(self.path.clone(), move || {
            let mut file = fs::File::open(&path)?;
            let mut bytes = Vec::new();
            let mut missing = Vec::new();
            for (index, digest) in digests.iter().enumerate() {
                if !(read_piece(&mut file, layout, index, &mut bytes)? && Digest::of(&bytes) == *digest) {
                    missing.push(index);
                }
            }
            Ok(missing)
        })
        .await
    }

    /// Syncs the file to the disk.
    pub async fn sync(&mut self) -> Result<(), FileError> {
        let failed = |source| not_written(&self.path, self.bytes, source);
        self.file.flush().await.map_err(failed)?;
        self.file.sync_all().await.map_err(failed)
    }

    /// Returns the values of one row and checks each piece again while it is copied into `storage`; `None` if one has
    /// changed since it was written.
    pub async fn row(
        &self,
        row: usize,
        digests: Vec<Digest>,
        storage: &Storage,
    ) -> Result<Option<Row>, FileError> {
        let (path, layout) = (self.path.clone(), self.layout);
        let mut values = storage.zeros(layout.values)?;
        on_a_thread(self.path.clone(), move || {
            let mut file = fs::File::open(&path)?;
            let mut bytes = Vec::new();
            let pieces = values.edit().map_err(io::Error::other)?.chunks_mut(lineage::PIECE_VALUES);
            for ((index, digest), piece) in digests.iter().enumerate().zip(pieces) {
                let index = row * layout.pieces_of_row() + index;
                if !(read_piece(&mut file, layout, index, &mut bytes)? && Digest::of(&bytes) == *digest) {
                    return Ok(None);
                }
                for (value, bytes) in piece.iter_mut().zip(bytes.as_chunks::<4>().0) {
                    *value = f32::from_le_bytes(*bytes);
                }
            }
            Ok(Some(values))
        })
        .await
    }
}

#[async_trait]
impl PieceSink for Partial {
    async fn put(&mut self, index: usize, bytes: &Bytes) -> Result<(), FileError> {
        let failed = |source| not_written(&self.path, self.bytes, source);
        let (at, _) = self.layout.in_file(index);
        self.file.seek(SeekFrom::Start(at)).await.map_err(failed)?;
        self.file.write_all(bytes).await.map_err(failed)?;
        // Flushed bytes outlive this process; pieces lost by a power failure are fetched again.
        self.file.flush().await.map_err(failed)
    }
}

/// Returns the error of a failed write to a file that needs `bytes` bytes.
fn not_written(path: &Path, bytes: u64, source: io::Error) -> FileError {
    FileError::Write { path: path.to_owned(), source: with_need(source, bytes) }
}

/// Reads a piece into `bytes`; returns false if the file is too short.
fn read_piece(file: &mut fs::File, layout: Layout, index: usize, bytes: &mut Vec<u8>) -> io::Result<bool> {
    let (at, length) = layout.in_file(index);
    file.seek(SeekFrom::Start(at))?;
    bytes.resize(length, 0);
    match file.read_exact(bytes) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(false),
        Err(error) => Err(error),
    }
}

async fn on_a_thread<T: Send + 'static>(
    path: PathBuf,
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> Result<T, FileError> {
    let done = tokio::task::spawn_blocking(work).await.unwrap_or_else(|died| Err(io::Error::other(died)));
    done.map_err(|source| FileError::Read { path, source })
}

#[cfg(test)]
mod tests {
    use super::*;

    const VALUES: usize = lineage::PIECE_VALUES + 5;

    fn rows() -> (Vec<f32>, Vec<f32>) {
        ((0..VALUES).map(|i| i as f32).collect(), (0..VALUES).map(|i| -(i as f32)).collect())
    }

    fn digests() -> Vec<Digest> {
        let (one, other) = rows();
        [lineage::piece_digests(&one), lineage::piece_digests(&other)].concat()
    }

    fn piece(index: usize) -> Bytes {
        let (one, other) = rows();
        let (row, start, length) = Layout { values: VALUES }.at(index);
        let values = if row == 0 { &one } else { &other };
        values[start..start + length].iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<_>>().into()
    }

    #[tokio::test]
    async fn pieces_come_in_any_order_and_are_there_after_the_process_is_gone() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("deep").join("partial");
        let layout = Layout { values: VALUES };
        let mut partial = Partial::open(&path, layout, 2).await.unwrap();
        assert_eq!(partial.missing(digests()).await.unwrap(), [0, 1, 2, 3]);
        for index in [3, 0] {
            partial.put(index, &piece(index)).await.unwrap();
        }
        drop(partial);

        let mut partial = Partial::open(&path, layout, 2).await.unwrap();
        assert_eq!(partial.missing(digests()).await.unwrap(), [1, 2]);
        for index in [2, 1] {
            partial.put(index, &piece(index)).await.unwrap();
        }
        partial.sync().await.unwrap();
        let all = digests();
        for storage in [Storage::memory(), Storage::on_disk(directory.path()).mapped_from(0)] {
            let row = async |row, digests| partial.row(row, digests, &storage).await.unwrap().unwrap();
            assert_eq!(row(0, all[..2].to_vec()).await, rows().0.into());
            assert_eq!(row(1, all[2..].to_vec()).await, rows().1.into());
        }

        // A bit flipped by the disk is detected, and nothing else.
        let mut bytes = fs::read(&path).unwrap();
        bytes[4 * VALUES + 7] ^= 1;
        fs::write(&path, bytes).unwrap();
        assert_eq!(partial.missing(digests()).await.unwrap(), [2]);
        assert_eq!(partial.row(1, all[2..].to_vec(), &Storage::memory()).await.unwrap(), None);
    }

    #[tokio::test]
    async fn a_file_that_cannot_be_made_is_named() {
        let directory = tempfile::tempdir().unwrap();
        fs::write(directory.path().join("file"), b"").unwrap();
        let path = directory.path().join("file").join("partial");
        let refused = Partial::open(&path, Layout { values: 1 }, 1).await.err().unwrap();
        assert!(refused.to_string().contains("is the disk full"), "{refused}");
        assert!(!crate::durable::is_full(&refused), "room would not help");
    }

    /// Uses the system's own full disk.
    #[cfg(target_os = "linux")]
    #[tokio::test]
    async fn a_full_disk_is_called_full_with_what_the_whole_file_needs() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("partial");
        std::os::unix::fs::symlink("/dev/full", &path).unwrap();
        let mut partial = Partial::open(&path, Layout { values: VALUES }, 2).await.unwrap();
        let refused = partial.put(1, &piece(1)).await.unwrap_err();
        assert!(crate::durable::is_full(&refused));
        let said = crate::error_chain(&refused);
        let needs = format!("{} bytes are needed", 8 * VALUES);
        assert!(said.contains(path.to_str().unwrap()) && said.contains(&needs), "{said}");
    }
}
