//! Large files that a node must not lose: streamed, with a digest at the end and the previous version as a backup.
//!
//! ```text
//! write an unfinished file ── sync ── NAME becomes NAME.before ── the unfinished file becomes NAME ── sync the directory
//! ```
//!
//! A crash at any moment leaves a whole file under one of the two names. A damaged file is renamed to `NAME.damaged`
//! and logged, and the backup is read instead.

use super::file::{FileError, is_full, with_need};
use codec::{Compact, Decode as _, Encode as _, IoReader};
use dataset::durable::{PendingFile, Readers, directory_of, pending_prefix};
use protocol::Digest;
use std::{
    fs::{self, File},
    io::{self, BufWriter, Read, Write},
    path::{Path, PathBuf},
};

/// Size of reads, writes and hashed blocks, in bytes.
const PIECE: usize = 1 << 20;
/// Size of the digest at a file's end, in bytes.
const DIGEST: usize = 32;

/// A file and its backup, the previous version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DurableFile {
    path: PathBuf,
}

/// A value read from a [`DurableFile`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recovered<T> {
    pub value: T,
    /// True if the value is the backup's, because the newest file was damaged or missing.
    pub from_backup: bool,
}

impl DurableFile {
    pub fn new(path: impl Into<PathBuf>) -> DurableFile {
        DurableFile { path: path.into() }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the path of the backup.
    pub fn backup_path(&self) -> PathBuf {
        with(&self.path, ".before")
    }

    /// Writes a new file with `fill`, followed by the digest of its contents. Returns its length in bytes. If the disk
    /// is full, `fill` is called once more, to count the bytes that are needed.
    ///
    /// # Errors
    /// If `fill` or the disk fails. Existing files are then unchanged, unless only the last sync failed; that error is
    /// never [full](is_full).
    pub fn write(&self, fill: impl Fn(&mut dyn Write) -> io::Result<()>) -> Result<u64, FileError> {
        let failed = |source: io::Error| {
            let mut counted = Counter(0);
            let source = match is_full(&source) && fill(&mut counted).is_ok() {
                true => with_need(source, counted.0 + DIGEST as u64),
                false => source,
            };
            FileError::Write { path: self.path.clone(), source }
        };
        self.remove_unfinished();
        let mut file = PendingFile::create(&self.path, Readers::Owner).map_err(failed)?;
        let mut sink = Hashing::new(BufWriter::with_capacity(PIECE, file.file()));
        fill(&mut sink).map_err(failed)?;
        let digest = sink.hasher.finalize();
        sink.inner.write_all(digest.as_bytes()).and_then(|()| sink.inner.flush()).map_err(failed)?;
        let length = sink.bytes + DIGEST as u64;
        drop(sink);
        file.sync().map_err(failed)?;
        match fs::rename(&self.path, self.backup_path()) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(failed(error)),
            Err(_) | Ok(()) => {}
        }
        file.publish(&self.path).map_err(failed)?;
        Ok(length)
    }

    /// Reads the newest file with `take`, or the backup; `None` if neither exists. `take` may be called twice; its
    /// result for a damaged file is discarded.
    ///
    /// # Errors
    /// The error of `take` for a whole file; [`FileError::Damaged`] if no file is whole.
    pub fn read<T, E: From<FileError>>(
        &self,
        mut take: impl FnMut(&mut DurableReader) -> Result<T, E>,
    ) -> Result<Option<Recovered<T>>, E> {
        let mut damaged = None;
        for (path, from_backup) in [(self.path.clone(), false), (self.backup_path(), true)] {
            let Some(mut reader) = DurableReader::open(&path)? else { continue };
            let taken = take(&mut reader);
            match reader.finish() {
                Ok(()) => {
                    if from_backup {
                        tracing::warn!(path = %path.display(), "reading the backup");
                    }
                    return taken.map(|value| Some(Recovered { value, from_backup }));
                }
                Err(error) => {
                    let aside = with(&path, ".damaged");
                    tracing::error!(path = %path.display(), %error, "damaged: moved to {}", aside.display());
                    fs::rename(&path, &aside).map_err(|source| FileError::Write { path, source })?;
                    damaged.get_or_insert(aside);
                }
            }
        }
        match damaged {
            Some(path) => Err(FileError::Damaged { path }.into()),
            None => Ok(None),
        }
    }

    /// Renames the newest file as damaged, so that the next read uses the backup.
    ///
    /// # Errors
    /// If it cannot be renamed.
    pub fn set_aside(&self) -> Result<(), FileError> {
        let aside = with(&self.path, ".damaged");
        fs::rename(&self.path, aside).map_err(|source| FileError::Write { path: self.path.clone(), source })
    }

    /// Removes both files, and an unfinished file of a killed process.
    pub fn remove(&self) {
        self.remove_unfinished();
        for path in [&self.path, &self.backup_path()] {
            match fs::remove_file(path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    tracing::warn!(path = %path.display(), %error, "could not remove an old file");
                }
                Err(_) | Ok(()) => {}
            }
        }
    }

    /// Removes unfinished files, which may be as large as a whole one, to free space for the next.
    fn remove_unfinished(&self) {
        let unfinished = pending_prefix(&self.path);
        let Ok(entries) = fs::read_dir(directory_of(&self.path)) else { return };
        for entry in entries.flatten() {
            if entry.file_name().to_str().is_some_and(|name| name.starts_with(&unfinished)) {
                // Nothing reads the file if it cannot be removed.
                let _ = fs::remove_file(entry.path());
            }
        }
    }
}

fn with(path: &Path, extension: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(extension);
    PathBuf::from(name)
}

/// Counts and hashes the bytes that are written through it.
struct Hashing<W> {
    inner: W,
    hasher: blake3::Hasher,
    bytes: u64,
}

impl<W> Hashing<W> {
    fn new(inner: W) -> Hashing<W> {
        Hashing { inner, hasher: blake3::Hasher::new(), bytes: 0 }
    }
}

impl<W: Write> Write for Hashing<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let count = self.inner.write(bytes)?;
        self.hasher.update(&bytes[..count]);
        self.bytes += count as u64;
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}

/// A file being read: its contents without the digest, which is compared at the end.
#[derive(Debug)]
pub struct DurableReader {
    file: io::BufReader<File>,
    hasher: blake3::Hasher,
    /// Number of unread bytes of content.
    left: u64,
    /// True if the file is shorter than a digest.
    is_cut: bool,
}

impl DurableReader {
    fn open(path: &Path) -> Result<Option<DurableReader>, FileError> {
        let failed = |source| FileError::Read { path: path.to_owned(), source };
        let file = match File::open(path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(failed(error)),
        };
        let length = file.metadata().map_err(failed)?.len();
        Ok(Some(DurableReader {
            file: io::BufReader::with_capacity(PIECE, file),
            hasher: blake3::Hasher::new(),
            left: length.saturating_sub(DIGEST as u64),
            is_cut: length < DIGEST as u64,
        }))
    }

    /// Returns the number of unread bytes of content.
    pub fn left(&self) -> u64 {
        self.left
    }

    /// Reads the rest and compares the digest.
    fn finish(mut self) -> io::Result<()> {
        let cut = || io::Error::new(io::ErrorKind::UnexpectedEof, "it is cut short");
        if self.is_cut {
            return Err(cut());
        }
        io::copy(&mut self, &mut io::sink())?;
        if 0 < self.left {
            return Err(cut());
        }
        let mut digest = Digest::default();
        self.file.read_exact(&mut digest.0)?;
        if *self.hasher.finalize().as_bytes() == digest.0 {
            Ok(())
        } else {
            Err(io::Error::new(io::ErrorKind::InvalidData, "its contents do not match the digest at its end"))
        }
    }
}

impl Read for DurableReader {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let most = usize::try_from(self.left).unwrap_or(usize::MAX).min(bytes.len());
        let count = self.file.read(&mut bytes[..most])?;
        self.hasher.update(&bytes[..count]);
        self.left -= count as u64;
        Ok(count)
    }
}

/// Counts the bytes that are written to it.
struct Counter(u64);

impl Write for Counter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0 += bytes.len() as u64;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Writes values as a SCALE vector of their bits: the number of values, then each value.
///
/// # Errors
/// If `sink` fails.
pub fn write_vector(sink: &mut dyn Write, values: &[f32]) -> io::Result<()> {
    sink.write_all(&Compact(values.len() as u64).encode())?;
    write_values(sink, values)
}

/// Reads a vector of `expected` values. The inner `Err` is the actual number if it differs; no value is then read.
///
/// # Errors
/// If the source fails or ends early.
pub fn read_vector(
    source: &mut IoReader<&mut DurableReader>,
    expected: usize,
) -> Result<Result<Vec<f32>, usize>, codec::Error> {
    let found = read_length(source)?;
    if found != expected {
        return Ok(Err(found));
    }
    Ok(Ok(read_values(source.0, found)?))
}

/// Reads the number of values of the vector that follows.
pub(crate) fn read_length(source: &mut IoReader<&mut DurableReader>) -> Result<usize, codec::Error> {
    let Compact(count) = Compact::<u64>::decode(source)?;
    Ok(usize::try_from(count).unwrap_or(usize::MAX))
}

/// Writes the bits of values in little endian, which preserves NaN.
///
/// # Errors
/// If `sink` fails.
pub fn write_values(sink: &mut dyn Write, values: &[f32]) -> io::Result<()> {
    if cfg!(target_endian = "little") {
        return sink.write_all(bytemuck::cast_slice(values));
    }
    values.iter().try_for_each(|value| sink.write_all(&value.to_bits().to_le_bytes()))
}

/// Reads `count` values bit by bit. A caller that reads `count` from a file must first compare it with the expected
/// number.
///
/// # Errors
/// If the source fails or ends early.
pub fn read_values(source: &mut dyn Read, count: usize) -> io::Result<Vec<f32>> {
    let mut values = vec![0.0; count];
    read_values_into(source, &mut values)?;
    Ok(values)
}

/// Reads values into all of `row`, bit by bit.
pub(crate) fn read_values_into(source: &mut dyn Read, row: &mut [f32]) -> io::Result<()> {
    source.read_exact(bytemuck::cast_slice_mut(row))?;
    if cfg!(target_endian = "big") {
        row.iter_mut().for_each(|value| *value = f32::from_bits(u32::from_le(value.to_bits())));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn kept(directory: &Path) -> DurableFile {
        DurableFile::new(directory.join("deep").join("state"))
    }

    fn write(kept: &DurableFile, bytes: &[u8]) {
        let length = kept.write(|sink| sink.write_all(bytes)).unwrap();
        assert_eq!(length, fs::metadata(kept.path()).unwrap().len());
    }

    fn read(kept: &DurableFile) -> Result<Option<Recovered<Vec<u8>>>, FileError> {
        kept.read(|reader| {
            let mut bytes = Vec::new();
            reader
                .read_to_end(&mut bytes)
                .map_err(|source| FileError::Read { path: kept.path().to_owned(), source })?;
            Ok(bytes)
        })
    }

    fn newest(value: &[u8]) -> Option<Recovered<Vec<u8>>> {
        Some(Recovered { value: value.to_vec(), from_backup: false })
    }

    fn backup(value: &[u8]) -> Option<Recovered<Vec<u8>>> {
        Some(Recovered { value: value.to_vec(), from_backup: true })
    }

    fn names(kept: &DurableFile) -> Vec<String> {
        let name = |entry: io::Result<fs::DirEntry>| entry.unwrap().file_name().into_string().unwrap();
        let mut names: Vec<String> = fs::read_dir(directory_of(kept.path())).unwrap().map(name).collect();
        names.sort();
        names
    }

    #[test]
    fn the_newest_is_read_and_the_previous_is_the_backup() {
        let directory = tempfile::tempdir().unwrap();
        let kept = kept(directory.path());
        assert_eq!(read(&kept).unwrap(), None);
        for bytes in [&b"one"[..], b"two", b"three"] {
            write(&kept, bytes);
            assert_eq!(read(&kept).unwrap(), newest(bytes));
        }
        assert_eq!(names(&kept), ["state", "state.before"]);
        fs::rename(kept.backup_path(), kept.path()).unwrap();
        assert_eq!(read(&kept).unwrap(), newest(b"two"));
        kept.remove();
        assert_eq!(names(&kept), [""; 0]);
        kept.remove();
    }

    #[test]
    fn a_kill_between_the_renames_leaves_the_backup() {
        let directory = tempfile::tempdir().unwrap();
        let kept = kept(directory.path());
        write(&kept, b"one");
        fs::rename(kept.path(), kept.backup_path()).unwrap();
        fs::write(directory_of(kept.path()).join(".state.unfinished-x"), "two").unwrap();
        assert_eq!(read(&kept).unwrap(), backup(b"one"));
        write(&kept, b"two");
        assert_eq!(names(&kept), ["state", "state.before"], "what was cut off is gone");
        assert_eq!(read(&kept).unwrap(), newest(b"two"));
    }

    /// Every kind of damage to a file: cut at each length, each byte changed, one byte more, empty.
    #[test]
    fn a_damaged_file_is_set_aside_and_never_becomes_the_backup() {
        let directory = tempfile::tempdir().unwrap();
        let kept = kept(directory.path());
        write(&kept, b"one");
        write(&kept, b"two");
        let whole = fs::read(kept.path()).unwrap();
        let mut damages: Vec<Vec<u8>> = (0..whole.len()).map(|length| whole[..length].to_vec()).collect();
        damages.extend((0..whole.len()).map(|at| {
            let mut damaged = whole.clone();
            damaged[at] ^= 1;
            damaged
        }));
        damages.push([&whole[..], b"!"].concat());
        for damaged in damages {
            fs::write(kept.path(), &damaged).unwrap();
            assert_eq!(read(&kept).unwrap(), backup(b"one"), "{damaged:?}");
            assert_eq!(names(&kept), ["state.before", "state.damaged"]);
            assert_eq!(fs::read(with(kept.path(), ".damaged")).unwrap(), damaged);
            assert_eq!(read(&kept).unwrap(), backup(b"one"), "and again");
        }
        write(&kept, b"three");
        assert_eq!(read(&kept).unwrap(), newest(b"three"));
        fs::write(kept.path(), "x").unwrap();
        assert_eq!(read(&kept).unwrap(), backup(b"one"), "the damaged one never took its place");
        fs::write(kept.backup_path(), "x").unwrap();
        let error = read(&kept).unwrap_err();
        assert!(
            matches!(&error, FileError::Damaged { path } if path.ends_with("state.before.damaged")),
            "{error}"
        );
        assert_eq!(read(&kept).unwrap(), None, "after it was said");
    }

    #[test]
    fn an_error_of_the_reader_does_not_set_a_whole_file_aside() {
        let directory = tempfile::tempdir().unwrap();
        let kept = kept(directory.path());
        write(&kept, b"one");
        write(&kept, b"two");
        let refuse = |reader: &mut DurableReader| -> Result<(), FileError> {
            assert_eq!(reader.left(), 3);
            Err(FileError::Write { path: PathBuf::from("mine"), source: io::ErrorKind::Other.into() })
        };
        assert!(matches!(kept.read(refuse), Err(FileError::Write { path, .. }) if path == Path::new("mine")));
        assert_eq!(names(&kept), ["state", "state.before"], "it is not damaged");
    }

    /// The disk becomes full after any number of bytes.
    #[test]
    fn a_failed_write_leaves_both_files_and_nothing_else() {
        let directory = tempfile::tempdir().unwrap();
        let kept = kept(directory.path());
        write(&kept, b"one");
        write(&kept, b"two");
        for space in 0..100 {
            let error = kept
                .write(|sink| {
                    sink.write_all(&vec![7; space])?;
                    sink.flush()?;
                    Err(io::ErrorKind::StorageFull.into())
                })
                .unwrap_err();
            assert!(error.to_string().contains("state") && error.to_string().contains("full"), "{error}");
            assert_eq!(names(&kept), ["state", "state.before"]);
        }
        assert_eq!(read(&kept).unwrap(), newest(b"two"));
        assert_eq!(fs::read(kept.backup_path()).unwrap()[..3], *b"one");
    }

    #[test]
    fn a_failed_rename_leaves_the_old_file() {
        let directory = tempfile::tempdir().unwrap();
        let kept = kept(directory.path());
        write(&kept, b"one");
        // A directory blocks the backup's name: the first rename fails, also for root.
        fs::create_dir_all(kept.backup_path().join("child")).unwrap();
        assert!(matches!(kept.write(|sink| sink.write_all(b"two")), Err(FileError::Write { .. })));
        assert_eq!(names(&kept), ["state", "state.before"]);
        assert_eq!(read(&kept).unwrap(), newest(b"one"));
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn values_read_back_to_the_bit(mut bits in prop::collection::vec(any::<u32>(), 0..300), repeat in 1usize..2000) {
            // Quiet and signalling NaNs with payloads, −0, subnormals, infinities.
            bits.extend([0x7fc0_0001, 0xffc1_2345, 0x7f80_0001, 0xffbf_ffff, 0x8000_0000, 1, 0x807f_ffff, 0x7f80_0000]);
            let values: Vec<f32> = bits.repeat(repeat).into_iter().map(f32::from_bits).collect();
            let mut bytes = Vec::new();
            write_values(&mut bytes, &values).unwrap();
            prop_assert_eq!(bytes.len(), values.len() * 4);
            let read = read_values(&mut &bytes[..], values.len()).unwrap();
            prop_assert!(read.iter().map(|value| value.to_bits()).eq(values.iter().map(|value| value.to_bits())));
            prop_assert!(read_values(&mut &bytes[..bytes.len() - 1], values.len()).is_err());
        }
    }
}
