//! What this validator has committed to in a window that hides attestations and votes, and must still show (PROT-30).
//!
//! Both are bound by a hash before the deadline and shown after it; what is not shown in time does not count. So they are
//! on disk before their hash is on the chain: a validator that is killed in between shows what its predecessor bound
//! itself to, and nothing else. What is signed twice is the same both times.

use codec::Encode;
use node::durable::{self, FileError};
use protocol::{
    Digest, Hotkey, RunId, Uid, Window,
    reveal::{self, Salt},
    view::{Verdict, Vote},
};
use serde::{Deserialize, Serialize};
use std::{
    io,
    path::{Path, PathBuf},
};

/// What was bound in one window. Only the window that is open is kept.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Committed {
    run: RunId,
    window: Window,
    verdicts: Option<Vec<(Uid, Verdict)>>,
    vote: Option<Vote>,
}

/// What one validator hides in the window that is open.
pub struct CommitRevealStore {
    path: PathBuf,
    secret: [u8; 32],
    kept: Committed,
}

#[derive(Debug, thiserror::Error)]
pub enum CommitRevealError {
    #[error(transparent)]
    File(#[from] FileError),
    #[error(
        "{} is damaged; remove it to go on: what it held cannot be revealed any more, and does not count",
        path.display()
    )]
    Damaged { path: PathBuf, source: serde_json::Error },
}

impl CommitRevealError {
    /// Whether the disk took no more. What was bound before is bound, and nothing else.
    pub fn is_full(&self) -> bool {
        matches!(self, CommitRevealError::File(error) if error.is_full())
    }
}

impl CommitRevealStore {
    /// Reads what a predecessor left in `directory`, which may be nothing.
    pub fn load(directory: &Path, hotkey_seed: &[u8; 32]) -> Result<CommitRevealStore, CommitRevealError> {
        let path = directory.join("hidden.json");
        let kept = match std::fs::read(&path) {
            Ok(bytes) => serde_json::from_slice(&bytes)
                .map_err(|source| CommitRevealError::Damaged { path: path.clone(), source })?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => Committed::default(),
            Err(source) => return Err(FileError::Read { path, source }.into()),
        };
        Ok(CommitRevealStore {
            path,
            secret: blake3::derive_key("mettle 1 validator hidden salts", hotkey_seed),
            kept,
        })
    }

    /// The verdicts to bind oneself to, on disk when this returns. Asked again it says the same, whatever `verdicts` are by
    /// then: the first may be on the chain already. On an error nothing is bound, on disk or here: nothing may be committed to.
    pub fn store_verdicts(
        &mut self,
        run: RunId,
        window: Window,
        verdicts: Vec<(Uid, Verdict)>,
    ) -> Result<Vec<(Uid, Verdict)>, CommitRevealError> {
        let kept = self.kept_of(run, window);
        if let Some(sealed) = kept.verdicts {
            return Ok(sealed);
        }
        self.save(Committed { verdicts: Some(verdicts.clone()), ..kept })?;
        Ok(verdicts)
    }

    /// The vote to bind oneself to. As [`CommitRevealStore::store_verdicts`].
    pub fn store_vote(&mut self, run: RunId, window: Window, vote: Vote) -> Result<Vote, CommitRevealError> {
        let kept = self.kept_of(run, window);
        if let Some(sealed) = kept.vote {
            return Ok(sealed);
        }
        self.save(Committed { vote: Some(vote), ..kept })?;
        Ok(vote)
    }

    /// The verdicts that were sealed for `window`, if they were.
    pub fn verdicts(&self, run: RunId, window: Window) -> Option<Vec<(Uid, Verdict)>> {
        self.is_at(run, window).then(|| self.kept.verdicts.clone()).flatten()
    }

    /// The vote that was sealed for `window`, if one was.
    pub fn vote(&self, run: RunId, window: Window) -> Option<Vote> {
        self.is_at(run, window).then_some(self.kept.vote).flatten()
    }

    /// Nobody can guess it who does not know the secret, also where the same window comes again on a new chain: another
    /// payload has another salt.
    pub fn salt<P: Encode + ?Sized>(&self, run: RunId, window: Window, payload: &P) -> Salt {
        let mut hasher = blake3::Hasher::new_keyed(&self.secret);
        hasher.update(&run.0.to_le_bytes());
        hasher.update(&window.0.to_le_bytes());
        hasher.update(&payload.encode());
        *hasher.finalize().as_bytes()
    }

    /// The hash that `hotkey` commits to.
    pub fn hash<P: Encode + ?Sized>(
        &self,
        run: RunId,
        window: Window,
        payload: &P,
        hotkey: &Hotkey,
    ) -> Digest {
        reveal::commitment(payload, &self.salt(run, window, payload), hotkey)
    }

    fn is_at(&self, run: RunId, window: Window) -> bool {
        (self.kept.run, self.kept.window) == (run, window)
    }

    /// What is kept of a window. What belonged to another is forgotten with the next that is kept: it was shown, or is too late.
    fn kept_of(&self, run: RunId, window: Window) -> Committed {
        if self.is_at(run, window) {
            self.kept.clone()
        } else {
            Committed { run, window, ..Committed::default() }
        }
    }

    fn save(&mut self, kept: Committed) -> Result<(), CommitRevealError> {
        let bytes = serde_json::to_vec(&kept).expect("verdicts and a vote are plain data");
        durable::write_atomic(&self.path, &bytes)?;
        self.kept = kept;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RUN: RunId = RunId(3);
    const NOW: Window = Window(8);

    fn load(directory: &Path) -> CommitRevealStore {
        CommitRevealStore::load(directory, &[7; 32]).unwrap()
    }

    fn seen(valid: &[u16]) -> Vec<(Uid, Verdict)> {
        valid.iter().map(|uid| (Uid(*uid), Verdict::Valid)).collect()
    }

    fn vote(update: u8) -> Vote {
        Vote { update: Digest([update; 32]), state_root: None }
    }

    #[test]
    fn whoever_is_killed_shows_what_it_bound_itself_to() {
        let directory = tempfile::tempdir().unwrap();
        let mut hidden = load(directory.path());
        assert_eq!((hidden.verdicts(RUN, NOW), hidden.vote(RUN, NOW)), (None, None));
        assert_eq!(hidden.store_verdicts(RUN, NOW, seen(&[1, 2])).unwrap(), seen(&[1, 2]));
        let hash = hidden.hash(RUN, NOW, &seen(&[1, 2]), &Hotkey([5; 32]));

        // A successor that saw less, and merged something else, says what the first said.
        let mut hidden = load(directory.path());
        assert_eq!(hidden.verdicts(RUN, NOW), Some(seen(&[1, 2])));
        assert_eq!(hidden.store_verdicts(RUN, NOW, seen(&[1])).unwrap(), seen(&[1, 2]));
        assert_eq!(hidden.hash(RUN, NOW, &seen(&[1, 2]), &Hotkey([5; 32])), hash);
        assert_eq!(hidden.store_vote(RUN, NOW, vote(1)).unwrap(), vote(1));
        assert_eq!(load(directory.path()).store_vote(RUN, NOW, vote(2)).unwrap(), vote(1));
        assert_eq!(load(directory.path()).verdicts(RUN, NOW), Some(seen(&[1, 2])));
    }

    #[test]
    fn each_window_and_run_has_its_own() {
        let directory = tempfile::tempdir().unwrap();
        let mut hidden = load(directory.path());
        hidden.store_verdicts(RUN, NOW, seen(&[1])).unwrap();
        hidden.store_vote(RUN, NOW, vote(1)).unwrap();
        assert_eq!((hidden.vote(RunId(4), NOW), hidden.verdicts(RUN, NOW.next())), (None, None));
        assert_eq!(hidden.store_verdicts(RUN, NOW.next(), seen(&[2])).unwrap(), seen(&[2]));
        assert_eq!((hidden.vote(RUN, NOW.next()), hidden.vote(RUN, NOW)), (None, None));
    }

    #[test]
    fn the_hash_is_the_one_that_the_chain_checks_and_no_salt_comes_twice() {
        let directory = tempfile::tempdir().unwrap();
        let hidden = load(directory.path());
        let hotkey = Hotkey([5; 32]);
        let salt = hidden.salt(RUN, NOW, &vote(1));
        assert_eq!(hidden.hash(RUN, NOW, &vote(1), &hotkey), reveal::commitment(&vote(1), &salt, &hotkey));
        assert_ne!(hidden.salt(RUN, NOW, &vote(2)), salt);
        assert_ne!(hidden.salt(RUN, NOW.next(), &vote(1)), salt);
        assert_ne!(hidden.salt(RunId(4), NOW, &vote(1)), salt);
        let stranger = CommitRevealStore::load(directory.path(), &[8; 32]).unwrap();
        assert_ne!(stranger.salt(RUN, NOW, &vote(1)), salt);
    }

    #[test]
    fn what_cannot_be_kept_binds_nobody() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("hidden.json");
        let mut hidden = load(directory.path());
        hidden.store_vote(RUN, NOW, vote(1)).unwrap();
        // A directory in the way of the file.
        std::fs::remove_file(&path).unwrap();
        std::fs::create_dir(&path).unwrap();
        for _ in 0..2 {
            assert!(hidden.store_verdicts(RUN, NOW, seen(&[1])).is_err());
            assert_eq!((hidden.verdicts(RUN, NOW), hidden.vote(RUN, NOW)), (None, Some(vote(1))));
            assert!(hidden.store_vote(RUN, NOW.next(), vote(2)).is_err());
            assert_eq!(hidden.vote(RUN, NOW.next()), None);
        }
        // Once it can be, it is what is seen by then.
        std::fs::remove_dir(&path).unwrap();
        assert_eq!(hidden.store_verdicts(RUN, NOW, seen(&[1, 2])).unwrap(), seen(&[1, 2]));
        let hidden = load(directory.path());
        assert_eq!((hidden.verdicts(RUN, NOW), hidden.vote(RUN, NOW)), (Some(seen(&[1, 2])), Some(vote(1))));
    }

    #[test]
    fn a_damaged_file_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(directory.path().join("hidden.json"), b"{").unwrap();
        assert!(matches!(
            CommitRevealStore::load(directory.path(), &[7; 32]),
            Err(CommitRevealError::Damaged { .. })
        ));
    }
}
