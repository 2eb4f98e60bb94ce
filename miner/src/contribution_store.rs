//! A contribution between its making and its upload: a file of the miner's own.
//!
//! Its name on the network derives from its digest, which is known when its last byte is written, and before the commit deadline nobody
//! may see any of it (PROT-11). So it goes to disk section by section while it is encoded, is named by its digest once it is whole, and is
//! uploaded in parts from there. A file of the right name has the right bytes unless the disk lost some; what matters is checked.

use crate::compress::{self, CompressError, Sealed};
use ed25519_dalek::SigningKey;
use kernels::{decode::StreamDecoder, encode::Source};
use node::{Codec, durable::UnfinishedFile};
use protocol::{
    Digest,
    contribution::EncodeError,
    submission::{Header, PREFIX_BYTES, SIGNATURE_BYTES},
};
use std::{
    fs::{self, File},
    io::{self, BufWriter, Read as _, Write as _},
    path::{Path, PathBuf},
};

/// Bytes read or written at a time.
const PIECE: usize = 1 << 20;
/// What the names of finished files end with.
const EXTENSION: &str = ".contribution";
/// What the names of unfinished ones begin with.
const UNFINISHED: &str = ".unfinished-";

/// The directory where a seat's contributions wait.
#[derive(Clone, Debug)]
pub struct ContributionStore {
    directory: PathBuf,
}

#[derive(Debug, thiserror::Error)]
pub enum ContributionStoreError {
    #[error("could not write {}; is the disk full, or the directory not ours?", path.display())]
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

impl ContributionStoreError {
    /// Whether the disk took no more: with room on it, the same would do.
    pub fn is_full(&self) -> bool {
        matches!(self, ContributionStoreError::Write { source, .. } if node::durable::is_full(source))
    }
}

impl ContributionStore {
    /// The spool of the seat whose files are in `directory`.
    pub fn new(directory: &Path) -> ContributionStore {
        ContributionStore { directory: directory.join("contributions") }
    }

    /// Where the contribution with this digest lies.
    pub fn path(&self, digest: &Digest) -> PathBuf {
        self.directory.join(format!("{digest}{EXTENSION}"))
    }

    /// Compresses into a file of the digest's name. It is there whole and durably once this returns, or not at all. For what becomes of the
    /// residual see [`compress::compress`].
    pub fn write(
        &self,
        codec: &Codec,
        header: &Header,
        key: &SigningKey,
        residual: &mut [f32],
        source: Source<'_>,
    ) -> Result<Sealed, ContributionStoreError> {
        let failed = |source| ContributionStoreError::Write { path: self.directory.clone(), source };
        let mut file = UnfinishedFile::create(&self.directory, UNFINISHED).map_err(failed)?;
        let at = file.path().to_owned();
        let sealed = fill(&at, file.as_file_mut(), |sink| {
            compress::compress(codec, header, key, residual, source, sink)
        })?;
        file.sync().map_err(|source| ContributionStoreError::Write { path: at, source })?;
        let path = self.path(&sealed.digest);
        file.persist(&path).map_err(|source| ContributionStoreError::Write { path, source })?;
        Ok(sealed)
    }

    /// Reads a contribution to its end and compares length and digest.
    pub fn check(&self, sealed: &Sealed) -> Result<(), ContributionStoreError> {
        self.read(sealed, |_, _| ())
    }

    /// `e ← e − decode(body)`, section by section: what was committed leaves the residual, whether it is merged or not (PROT-10). The same
    /// bits as to encode with feedback. On an error part of it may have left already.
    pub fn subtract_sent(
        &self,
        codec: &Codec,
        sealed: &Sealed,
        residual: &mut [f32],
    ) -> Result<(), ContributionStoreError> {
        let damaged = || ContributionStoreError::Digest { path: self.path(&sealed.digest) };
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

    /// Removes what no longer waits: everything of ours but the contribution to `keep`. What cannot be removed stays, and is said.
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

    /// Gives a file to `each`, piece by piece with the place of each, and says at the end whether it was the right one.
    fn read(&self, sealed: &Sealed, mut each: impl FnMut(u64, &[u8])) -> Result<(), ContributionStoreError> {
        let path = self.path(&sealed.digest);
        let failed = |source: io::Error| match source.kind() {
            io::ErrorKind::NotFound => ContributionStoreError::Gone { path: path.clone() },
            _ => ContributionStoreError::Read { path: path.clone(), source },
        };
        let mut file = File::open(&path).map_err(failed)?;
        let found = file.metadata().map_err(failed)?.len();
        if found != sealed.length {
            return Err(ContributionStoreError::Length { path, found, expected: sealed.length });
        }
        let (mut hasher, mut piece, mut at) = (blake3::Hasher::new(), vec![0; PIECE], 0u64);
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
            Err(ContributionStoreError::Digest { path })
        }
    }
}

/// Fills a file by a compression.
fn fill(
    path: &Path,
    file: &mut File,
    compress: impl FnOnce(&mut dyn FnMut(&[u8]) -> io::Result<()>) -> Result<Sealed, CompressError<io::Error>>,
) -> Result<Sealed, ContributionStoreError> {
    let failed = |source| ContributionStoreError::Write { path: path.to_owned(), source };
    let mut file = BufWriter::with_capacity(PIECE, file);
    let sealed = compress(&mut |bytes| file.write_all(bytes)).map_err(|error| match error {
        CompressError::Encode(error) => ContributionStoreError::Encode(error),
        CompressError::Sink(source) => failed(source),
    })?;
    file.flush().map_err(failed)?;
    Ok(sealed)
}

/// The part of `bytes`, which begin at `at`, that lies in `range`.
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
        contribution_store: ContributionStore,
        codec: Codec,
        sealed: Sealed,
    }

    fn written() -> Written {
        let directory = tempfile::tempdir().unwrap();
        let (contribution_store, codec) = (ContributionStore::new(directory.path()), codec(&[5000, 3]));
        let sealed = contribution_store
            .write(&codec, &header(&codec), &key(), &mut residual(), Source::Nothing)
            .unwrap();
        Written { directory, contribution_store, codec, sealed }
    }

    fn names(contribution_store: &ContributionStore) -> Vec<String> {
        let name = |entry: io::Result<fs::DirEntry>| entry.unwrap().file_name().into_string().unwrap();
        let mut names: Vec<String> = fs::read_dir(&contribution_store.directory).unwrap().map(name).collect();
        names.sort();
        names
    }

    #[test]
    fn the_file_is_what_the_protocol_seals_under_the_name_of_its_digest() {
        let Written { directory: _kept, contribution_store, codec, sealed } = written();
        let body = contribution::encode(codec.schema(), codec.density(), &residual()).unwrap();
        let expected = submission::seal(&header(&codec), &body, &key());
        assert_eq!(fs::read(contribution_store.path(&sealed.digest)).unwrap(), expected);
        assert_eq!(sealed, Sealed { digest: Digest::of(&expected), length: expected.len() as u64 });
        assert_eq!(names(&contribution_store), [format!("{}.contribution", sealed.digest)]);
        contribution_store.check(&sealed).unwrap();
    }

    #[test]
    fn spending_from_the_file_is_the_same_as_encoding_with_feedback() {
        let Written { directory: _kept, contribution_store, codec, sealed } = written();
        let mut spent = residual();
        contribution_store.subtract_sent(&codec, &sealed, &mut spent).unwrap();
        let mut fed_back = residual();
        contribution::encode_with_feedback(codec.schema(), codec.density(), &mut fed_back).unwrap();
        assert!(spent.iter().map(|x| x.to_bits()).eq(fed_back.iter().map(|x| x.to_bits())));
        assert_ne!(spent, residual());
    }

    #[test]
    fn a_lost_cut_or_damaged_file_is_noticed_whoever_reads_it() {
        let Written { directory: _kept, contribution_store, codec, sealed } = written();
        let path = contribution_store.path(&sealed.digest);
        let whole = fs::read(&path).unwrap();
        let refused = || {
            let spent = contribution_store.subtract_sent(&codec, &sealed, &mut residual()).unwrap_err();
            let checked = contribution_store.check(&sealed).unwrap_err();
            assert_eq!(spent.to_string(), checked.to_string());
            assert!(checked.to_string().contains(path.to_str().unwrap()), "it names the file");
            checked
        };

        fs::write(&path, &whole[..whole.len() - 1]).unwrap();
        let (found, expected) = (sealed.length - 1, sealed.length);
        assert!(
            matches!(refused(), ContributionStoreError::Length { found: f, expected: e, .. } if (f, e) == (found, expected))
        );
        fs::write(&path, [&whole[..], &[0]].concat()).unwrap();
        assert!(matches!(refused(), ContributionStoreError::Length { .. }));
        for at in [0, PREFIX_BYTES + 3, whole.len() - 1] {
            let mut damaged = whole.clone();
            damaged[at] ^= 1;
            fs::write(&path, damaged).unwrap();
            assert!(matches!(refused(), ContributionStoreError::Digest { .. }));
        }
        fs::remove_file(&path).unwrap();
        assert!(matches!(refused(), ContributionStoreError::Gone { .. }));
        fs::create_dir(&path).unwrap();
        assert!(matches!(
            refused(),
            ContributionStoreError::Read { .. } | ContributionStoreError::Length { .. }
        ));
    }

    #[test]
    fn a_file_that_is_no_contribution_is_damaged_even_under_its_own_digest() {
        let Written { directory: _kept, contribution_store, codec, .. } = written();
        let bytes = vec![3; 500];
        let sealed = Sealed { digest: Digest::of(&bytes), length: 500 };
        fs::write(contribution_store.path(&sealed.digest), &bytes).unwrap();
        contribution_store.check(&sealed).unwrap();
        let spent = contribution_store.subtract_sent(&codec, &sealed, &mut residual());
        assert!(matches!(spent, Err(ContributionStoreError::Digest { .. })));
    }

    #[test]
    fn a_full_disk_is_told_with_the_path_and_leaves_nothing_behind() {
        let codec = codec(&[5000, 3]);
        let path = Path::new("/dev/full");
        let mut full = File::options().write(true).open(path).unwrap();
        let error = fill(path, &mut full, |sink| {
            compress::compress(&codec, &header(&codec), &key(), &mut residual(), Source::Nothing, sink)
        })
        .unwrap_err();
        assert!(error.to_string().contains("/dev/full") && error.to_string().contains("full"));
        assert!(
            matches!(error, ContributionStoreError::Write { source, .. } if source.kind() == io::ErrorKind::StorageFull)
        );

        // Nor does what cannot be encoded leave anything; and a file in the directory's place is named.
        let Written { directory, contribution_store, codec, sealed } = written();
        let write = |residual: &mut [f32]| {
            contribution_store.write(&codec, &header(&codec), &key(), residual, Source::Nothing).unwrap_err()
        };
        assert!(matches!(
            write(&mut [f32::NAN; 5003]),
            ContributionStoreError::Encode(EncodeError::NotFinite { .. })
        ));
        assert_eq!(names(&contribution_store), [format!("{}.contribution", sealed.digest)]);
        fs::remove_dir_all(&contribution_store.directory).unwrap();
        fs::write(&contribution_store.directory, "in the way").unwrap();
        let error = write(&mut residual());
        assert!(matches!(error, ContributionStoreError::Write { .. }));
        assert!(error.to_string().contains(directory.path().to_str().unwrap()));
    }

    #[test]
    fn what_no_longer_waits_is_removed_and_nothing_else() {
        let Written { directory: _kept, contribution_store, codec, sealed } = written();
        let mut other = residual();
        other[0] += 1.0;
        let newer =
            contribution_store.write(&codec, &header(&codec), &key(), &mut other, Source::Nothing).unwrap();
        // A predecessor was killed while it wrote, and its owner keeps a note here.
        fs::write(contribution_store.directory.join(".unfinished-x"), "half").unwrap();
        fs::write(contribution_store.directory.join("note.txt"), "mine").unwrap();
        assert!(contribution_store.path(&sealed.digest).exists());
        contribution_store.prune(Some(&newer.digest));
        assert_eq!(names(&contribution_store), [format!("{}.contribution", newer.digest), "note.txt".into()]);
        contribution_store.prune(None);
        assert_eq!(names(&contribution_store), ["note.txt"]);
        ContributionStore::new(Path::new("/no/such/place")).prune(None);
    }
}
