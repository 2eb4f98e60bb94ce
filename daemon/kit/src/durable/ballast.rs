//! A file that reserves space for small writes.
//!
//! A validator must save what it signs before it sends it to the chain. These writes are small: if the disk is full,
//! the ballast is deleted, and they fit. It is written again once there is space.

use std::{
    fs,
    io::{self, Write as _},
    path::{Path, PathBuf},
};

/// Default size of a ballast, in bytes.
pub const BALLAST_BYTES: u64 = 64 << 20;
/// A ballast uses at most `1 / SHARE_OF_FREE` of the free space.
const SHARE_OF_FREE: u64 = 100;
const FILE: &str = "ballast";

/// The ballast of a node's directory.
#[derive(Clone, Debug)]
pub struct Ballast {
    path: PathBuf,
    bytes: u64,
}

impl Ballast {
    /// Creates a ballast of at most `bytes` in `directory`, without writing it. With 0 there is never a ballast.
    pub fn new(directory: &Path, bytes: u64) -> Ballast {
        Ballast { path: directory.join(FILE), bytes }
    }

    /// Writes the ballast if there is space and it is missing or its size is wrong by more than half. Failures are not
    /// reported: a full disk has no ballast.
    pub fn restore(&self) {
        let directory = self.path.parent().unwrap_or(Path::new("."));
        self.restore_on(free_bytes(directory).unwrap_or(0));
    }

    /// Restores the ballast on a disk with `free` bytes.
    fn restore_on(&self, free: u64) {
        let held = fs::metadata(&self.path).map_or(0, |file| file.len());
        let bytes = self.bytes.min((free + held) / SHARE_OF_FREE);
        if 0 < held && bytes / 2 <= held && held <= self.bytes {
            return;
        }
        self.release();
        if bytes == 0 {
            return;
        }
        if let Err(error) = fill(&self.path, bytes) {
            tracing::debug!(path = %self.path.display(), %error, "no space for a ballast");
            self.release();
        }
    }

    /// Deletes the ballast. Returns whether there was one.
    pub fn release(&self) -> bool {
        fs::remove_file(&self.path).is_ok()
    }
}

/// Writes bytes that no file system can compress.
fn fill(path: &Path, bytes: u64) -> io::Result<()> {
    let mut file = fs::File::create(path)?;
    let mut noise = blake3::Hasher::new().finalize_xof();
    let (mut piece, mut left) = (vec![0; 1 << 20], bytes);
    while 0 < left {
        let length = usize::try_from(left).unwrap_or(usize::MAX).min(piece.len());
        noise.fill(&mut piece[..length]);
        file.write_all(&piece[..length])?;
        left -= length as u64;
    }
    file.sync_all()
}

/// Returns the bytes that this process can still write in `directory`; `None` if the system does not report them.
#[cfg(unix)]
pub fn free_bytes(directory: &Path) -> Option<u64> {
    let found = rustix::fs::statvfs(directory).ok()?;
    Some(found.f_bavail.saturating_mul(found.f_frsize))
}

#[cfg(not(unix))]
pub fn free_bytes(_: &Path) -> Option<u64> {
    None
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;

    #[test]
    fn a_ballast_takes_its_bytes_until_it_is_released() {
        let directory = tempfile::tempdir().unwrap();
        let ballast = Ballast::new(directory.path(), 3_000_000);
        assert!(!ballast.release());
        ballast.restore();
        let path = directory.path().join(FILE);
        assert_eq!(fs::metadata(&path).unwrap().len(), 3_000_000);
        ballast.restore();
        for bytes in [7_000_000, 1_000_000] {
            Ballast::new(directory.path(), bytes).restore();
            assert_eq!(fs::metadata(&path).unwrap().len(), bytes, "the size follows the setting");
        }
        Ballast::new(directory.path(), 0).restore();
        assert!(!path.exists());
        ballast.restore();
        assert!(ballast.release() && !path.exists());
    }

    #[test]
    fn a_ballast_takes_at_most_one_percent_of_the_free_space() {
        let directory = tempfile::tempdir().unwrap();
        assert!(0 < free_bytes(directory.path()).expect("the system tells"));
        // Simulates a small disk: one percent of a large one is too much to write in a test.
        Ballast::new(directory.path(), u64::MAX).restore_on(100_000_000);
        assert_eq!(fs::metadata(directory.path().join(FILE)).unwrap().len(), 1_000_000);
    }

    #[test]
    fn where_nothing_can_be_written_there_is_no_ballast_and_no_error() {
        let ballast = Ballast::new(Path::new("/no/such/place"), 1 << 20);
        ballast.restore();
        assert!(!ballast.release());
    }
}
