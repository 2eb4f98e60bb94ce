//! Contributions as files, from compression to upload.
//!
//! A contribution's digest is known once its last byte is written, and no byte may be published before the commit
//! deadline (PROT-11). So it is written section by section while it is encoded, renamed to its digest, and uploaded
//! from the file. Length and digest are checked before anything depends on them.

use crate::compress::{self, CompressError, Sealed};
use daemon::Codec;
use dataset::durable::{PendingFile, Readers};
use kernels::{decode::StreamDecoder, encode::Source};
use protocol::{
    Digest,
    contribution::EncodeError,
    identity::Signer,
    submission::{Header, PREFIX_BYTES, SIGNATURE_BYTES},
};
use std::{
    fs::{self, File},
    io::{self, BufWriter, Read as _, Write as _},
    path::{Path, PathBuf},
};

/// Bytes read or written at a time.
const PIECE: usize = 1 << 20;
/// Suffix of finished files.
const EXTENSION: &str = ".contribution";
/// Prefix of unfinished files.
const UNFINISHED: &str = ".unfinished-";

/// The directory of a seat's contributions.
#[derive(Clone, Debug)]
pub struct ContributionFiles {
    directory: PathBuf,
}

#[derive(Debug, thiserror::Error)]
pub enum ContributionFileError {
    #[error("could not write {}; is the disk full, or the directory not writable?", path.display())]
    Write { path: PathBuf, source: io::Error },
    #[error("could not read {}", path.display())]
    Read { path: PathBuf, source: io::Error },
    #[error("the contribution in {} is gone", path.display())]
    Gone { path: PathBuf },
    #[error("the contribution in {} has {found} bytes, not {expected}: it was cut short or grew", path.display())]
    Length { path: PathBuf, found: u64, expected: u64 },
    #[error("the contribution in {} is damaged: its bytes have another digest", path.display())]
    Digest { path: PathBuf },
    #[error("the pseudo-gradient cannot be encoded")]
    Encode(#[source] EncodeError),
}

impl ContributionFiles {
    /// Returns the files of the seat in `directory`.
    pub fn new(directory: &Path) -> ContributionFiles {
        ContributionFiles { directory: directory.join("contributions") }
    }

    /// Returns the path of the contribution with this digest.
    pub fn path(&self, digest: &Digest) -> PathBuf {
        self.directory.join(format!("{digest}{EXTENSION}"))
    }

    /// Compresses into a file that is named by its digest, and is complete and on the disk on return. For the
    /// residual see [`compress::compress`].
    ///
    /// # Errors
    /// If values cannot be encoded, or the disk cannot be written.
    pub fn write(
        &self,
        codec: &Codec,
        header: &Header,
        signer: &Signer,
        residual: &mut [f32],
        source: Source<'_>,
    ) -> Result<Sealed, ContributionFileError> {
        let failed = |source| ContributionFileError::Write { path: self.directory.clone(), source };
        let mut file = PendingFile::create_in(&self.directory, UNFINISHED, Readers::Owner).map_err(failed)?;
        let at = file.path().to_owned();
        let sealed =
            fill(&at, file.file(), |sink| compress::compress(codec, header, signer, residual, source, sink))?;
        file.sync().map_err(|source| ContributionFileError::Write { path: at, source })?;
        let path = self.path(&sealed.digest);
        file.publish(&path).map_err(|source| ContributionFileError::Write { path, source })?;
        Ok(sealed)
    }

    /// Reads a contribution and compares its length and digest.
    ///
    /// # Errors
    /// If the file cannot be read, or has another length or digest.
    pub fn check(&self, sealed: &Sealed) -> Result<(), ContributionFileError> {
        self.read(sealed, |_, _| ())
    }

    /// Computes `e ← e − decode(body)`, section by section: a committed contribution leaves the residual, merged or
    /// not (PROT-10). Gives the same bits as encoding with feedback.
    ///
    /// # Errors
    /// If the file cannot be read or is damaged. Part of it may be subtracted already.
    pub fn subtract_sent(
        &self,
        codec: &Codec,
        sealed: &Sealed,
        residual: &mut [f32],
    ) -> Result<(), ContributionFileError> {
        let damaged = || ContributionFileError::Digest { path: self.path(&sealed.digest) };
        let starts: Vec<usize> = codec.layout().ranges().map(|range| range.start).collect();
        let mut decoder = StreamDecoder::new(codec.layout());
        let mut decoded = Ok(());
        let end = sealed.length.saturating_sub(SIGNATURE_BYTES as u64);
        self.read(sealed, |at, bytes| {
            let body = part(at, bytes, PREFIX_BYTES as u64..end);
            decoded = decoded.and_then(|()| {
                decoder.push(body, &mut |section| {
                    let start = starts[section.tensor];
                    for (position, value) in section.positions.iter().zip(section.values) {
                        residual[start + *position as usize] -= value;
                    }
                })
            });
        })?;
        decoded.and_then(|()| decoder.finish().map(|_| ())).map_err(|_| damaged())
    }

    /// Removes all contributions except the one to `keep`. A failure is logged.
    pub fn prune(&self, keep: Option<&Digest>) {
        let keep = keep.map(|digest| self.path(digest));
        let Ok(entries) = fs::read_dir(&self.directory) else { return };
        for path in entries.flatten().map(|entry| entry.path()).filter(|path| Some(path) != keep.as_ref()) {
            let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
            if (name.starts_with(UNFINISHED) || name.ends_with(EXTENSION))
                && let Err(error) = fs::remove_file(&path)
            {
                tracing::warn!(path = %path.display(), %error, "could not remove an old contribution");
            }
        }
    }

    /// Passes a file to `each`, piece by piece with its offset, and then checks length and digest.
    fn read(&self, sealed: &Sealed, mut each: impl FnMut(u64, &[u8])) -> Result<(), ContributionFileError> {
        let path = self.path(&sealed.digest);
        let failed = |source: io::Error| match source.kind() {
            io::ErrorKind::NotFound => ContributionFileError::Gone { path: path.clone() },
            _ => ContributionFileError::Read { path: path.clone(), source },
        };
        let mut file = File::open(&path).map_err(failed)?;
        let found = file.metadata().map_err(failed)?.len();
        if found != sealed.length {
            return Err(ContributionFileError::Length { path, found, expected: sealed.length });
        }
        let mut piece = vec![0; usize::try_from(found).unwrap_or(PIECE).min(PIECE)];
        let (mut hasher, mut at) = (blake3::Hasher::new(), 0u64);
        loop {
            let bytes = match file.read(&mut piece) {
                Ok(0) => break,
                Ok(count) => &piece[..count],
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(failed(error)),
            };
            hasher.update(bytes);
            each(at, bytes);
            at = at.saturating_add(bytes.len() as u64);
        }
        if Digest(*hasher.finalize().as_bytes()) == sealed.digest {
            Ok(())
        } else {
            Err(ContributionFileError::Digest { path })
        }
    }
}

/// Writes a compression to a file.
fn fill(
    path: &Path,
    file: &mut File,
    compress: impl FnOnce(&mut dyn FnMut(&[u8]) -> io::Result<()>) -> Result<Sealed, CompressError<io::Error>>,
) -> Result<Sealed, ContributionFileError> {
    let failed = |source| ContributionFileError::Write { path: path.to_owned(), source };
    let mut file = BufWriter::with_capacity(PIECE, file);
    let sealed = compress(&mut |bytes| file.write_all(bytes)).map_err(|error| match error {
        CompressError::Encode(error) => ContributionFileError::Encode(error),
        CompressError::Sink(source) => failed(source),
    })?;
    file.flush().map_err(failed)?;
    Ok(sealed)
}

/// Returns the part of `bytes` in `range`, if `bytes` begin at offset `at`.
fn part(at: u64, bytes: &[u8], range: std::ops::Range<u64>) -> &[u8] {
    let clamp = |edge: u64| usize::try_from(edge.saturating_sub(at)).unwrap_or(usize::MAX).min(bytes.len());
    &bytes[clamp(range.start)..clamp(range.end).max(clamp(range.start))]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compress::tests::{codec, header, key};
    use protocol::{contribution, submission};

    fn residual() -> Vec<f32> {
        (0..5003).map(|index| ((index * 37 % 101) as f32 - 50.0) * 1e-3).collect()
    }

    struct Written {
        directory: tempfile::TempDir,
        files: ContributionFiles,
        codec: Codec,
        sealed: Sealed,
    }

    fn written() -> Written {
        let directory = tempfile::tempdir().unwrap();
        let (files, codec) = (ContributionFiles::new(directory.path()), codec(&[5000, 3]));
        let sealed = files.write(&codec, &header(&codec), &key(), &mut residual(), Source::Nothing).unwrap();
        Written { directory, files, codec, sealed }
    }

    fn names(files: &ContributionFiles) -> Vec<String> {
        let name = |entry: io::Result<fs::DirEntry>| entry.unwrap().file_name().into_string().unwrap();
        let mut names: Vec<String> = fs::read_dir(&files.directory).unwrap().map(name).collect();
        names.sort();
        names
    }

    #[test]
    fn the_file_has_the_sealed_bytes_and_is_named_by_their_digest() {
        let Written { directory: _directory, files, codec, sealed } = written();
        let body = contribution::encode(codec.schema(), codec.density(), &residual()).unwrap();
        let expected = submission::seal(&header(&codec), &body, &key());
        assert_eq!(fs::read(files.path(&sealed.digest)).unwrap(), expected);
        assert_eq!(sealed, Sealed { digest: Digest::of(&expected), length: expected.len() as u64 });
        assert_eq!(names(&files), [format!("{}.contribution", sealed.digest)]);
        files.check(&sealed).unwrap();
    }

    #[test]
    fn subtracting_the_file_equals_encoding_with_feedback() {
        let Written { directory: _directory, files, codec, sealed } = written();
        let mut spent = residual();
        files.subtract_sent(&codec, &sealed, &mut spent).unwrap();
        let mut fed_back = residual();
        contribution::encode_with_feedback(codec.schema(), codec.density(), &mut fed_back).unwrap();
        assert!(spent.iter().map(|x| x.to_bits()).eq(fed_back.iter().map(|x| x.to_bits())));
        assert_ne!(spent, residual());
    }

    #[test]
    fn a_lost_cut_or_damaged_file_is_refused_by_every_reader() {
        let Written { directory: _directory, files, codec, sealed } = written();
        let path = files.path(&sealed.digest);
        let whole = fs::read(&path).unwrap();
        let refused = || {
            let spent = files.subtract_sent(&codec, &sealed, &mut residual()).unwrap_err();
            let checked = files.check(&sealed).unwrap_err();
            assert_eq!(spent.to_string(), checked.to_string());
            assert!(checked.to_string().contains(path.to_str().unwrap()), "it names the file");
            checked
        };

        fs::write(&path, &whole[..whole.len() - 1]).unwrap();
        let (found, expected) = (sealed.length - 1, sealed.length);
        assert!(
            matches!(refused(), ContributionFileError::Length { found: f, expected: e, .. } if (f, e) == (found, expected))
        );
        fs::write(&path, [&whole[..], &[0]].concat()).unwrap();
        assert!(matches!(refused(), ContributionFileError::Length { .. }));
        for at in [0, PREFIX_BYTES + 3, whole.len() - 1] {
            let mut damaged = whole.clone();
            damaged[at] ^= 1;
            fs::write(&path, damaged).unwrap();
            assert!(matches!(refused(), ContributionFileError::Digest { .. }));
        }
        fs::remove_file(&path).unwrap();
        assert!(matches!(refused(), ContributionFileError::Gone { .. }));
        fs::create_dir(&path).unwrap();
        assert!(matches!(
            refused(),
            ContributionFileError::Read { .. } | ContributionFileError::Length { .. }
        ));
    }

    #[test]
    fn a_file_that_is_no_contribution_is_refused_even_under_its_own_digest() {
        let Written { directory: _directory, files, codec, .. } = written();
        let bytes = vec![3; 500];
        let sealed = Sealed { digest: Digest::of(&bytes), length: 500 };
        fs::write(files.path(&sealed.digest), &bytes).unwrap();
        files.check(&sealed).unwrap();
        let spent = files.subtract_sent(&codec, &sealed, &mut residual());
        assert!(matches!(spent, Err(ContributionFileError::Digest { .. })));
    }

    #[test]
    fn a_full_disk_is_reported_with_the_path_and_leaves_no_file() {
        let codec = codec(&[5000, 3]);
        let path = Path::new("/dev/full");
        let mut full = File::options().write(true).open(path).unwrap();
        let error = fill(path, &mut full, |sink| {
            compress::compress(&codec, &header(&codec), &key(), &mut residual(), Source::Nothing, sink)
        })
        .unwrap_err();
        assert!(error.to_string().contains("/dev/full") && error.to_string().contains("full"));
        assert!(
            matches!(error, ContributionFileError::Write { source, .. } if source.kind() == io::ErrorKind::StorageFull)
        );

        // A failed encoding leaves no file either; and an error names a file that has the directory's path.
        let Written { directory, files, codec, sealed } = written();
        let write = |residual: &mut [f32]| {
            files.write(&codec, &header(&codec), &key(), residual, Source::Nothing).unwrap_err()
        };
        assert!(matches!(
            write(&mut [f32::NAN; 5003]),
            ContributionFileError::Encode(EncodeError::NotFinite { .. })
        ));
        assert_eq!(names(&files), [format!("{}.contribution", sealed.digest)]);
        fs::remove_dir_all(&files.directory).unwrap();
        fs::write(&files.directory, "in the way").unwrap();
        let error = write(&mut residual());
        assert!(matches!(error, ContributionFileError::Write { .. }));
        assert!(error.to_string().contains(directory.path().to_str().unwrap()));
    }

    #[test]
    fn pruning_removes_only_other_contributions() {
        let Written { directory: _directory, files, codec, sealed } = written();
        let mut other = residual();
        other[0] += 1.0;
        let newer = files.write(&codec, &header(&codec), &key(), &mut other, Source::Nothing).unwrap();
        // A killed process left an unfinished file, and the directory has a file of the user's.
        fs::write(files.directory.join(".unfinished-x"), "half").unwrap();
        fs::write(files.directory.join("note.txt"), "mine").unwrap();
        assert!(files.path(&sealed.digest).exists());
        files.prune(Some(&newer.digest));
        assert_eq!(names(&files), [format!("{}.contribution", newer.digest), "note.txt".into()]);
        files.prune(None);
        assert_eq!(names(&files), ["note.txt"]);
        ContributionFiles::new(Path::new("/no/such/place")).prune(None);
    }
}
