//! What this validator has committed to and must still reveal (PROT-30).
//!
//! A ballot is bound by its hash in one epoch and shown in the next; whoever cannot show it earns nothing for the epoch.
//! So it is on disk before the hash is on the chain, and stays there until the chain has it.

use node::durable::{self, FileError};
use protocol::{
    Digest, Hotkey, RunId, Uid,
    reveal::{self, Salt},
};
use serde::{Deserialize, Serialize};
use std::{
    io,
    path::{Path, PathBuf},
};

/// A ballot with the salt that hides it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WeightVote {
    pub run: RunId,
    pub epoch: u32,
    pub weights: Vec<(Uid, u16)>,
    salt: Digest,
}

impl WeightVote {
    pub fn salt(&self) -> Salt {
        self.salt.0
    }

    /// The hash that `hotkey` commits to.
    pub fn hash(&self, hotkey: &Hotkey) -> Digest {
        reveal::commitment(&self.weights, &self.salt.0, hotkey)
    }
}

/// The ballots of one validator that are not revealed yet.
pub struct WeightVotes {
    path: PathBuf,
    secret: [u8; 32],
    kept: Vec<WeightVote>,
}

#[derive(Debug, thiserror::Error)]
pub enum WeightVoteError {
    #[error(transparent)]
    File(#[from] FileError),
    #[error(
        "{} is damaged; remove it to go on: what it held cannot be revealed any more, which costs an epoch's dividends",
        path.display()
    )]
    Damaged { path: PathBuf, source: serde_json::Error },
}

impl WeightVoteError {
    /// Whether the disk took no more. What was kept before is kept, and nothing else.
    pub fn is_full(&self) -> bool {
        matches!(self, WeightVoteError::File(error) if error.is_full())
    }
}

/// What a start finds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    /// What was left, which may be nothing.
    All,
    /// No file where there must have been one.
    Lost,
}

impl WeightVotes {
    /// Reads what a predecessor left in `directory`. One that `served_before` has left a file, if only an empty one.
    pub fn load(
        directory: &Path,
        hotkey_seed: &[u8; 32],
        served_before: bool,
    ) -> Result<(WeightVotes, Found), WeightVoteError> {
        let path = directory.join("ballots.json");
        let secret = blake3::derive_key("mettle 1 validator ballot salts", hotkey_seed);
        match std::fs::read(&path) {
            Ok(bytes) => match serde_json::from_slice(&bytes) {
                Ok(kept) => Ok((WeightVotes { path, secret, kept }, Found::All)),
                Err(source) => Err(WeightVoteError::Damaged { path, source }),
            },
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let weight_votes = WeightVotes { path, secret, kept: Vec::new() };
                weight_votes.write(&weight_votes.kept)?;
                Ok((weight_votes, if served_before { Found::Lost } else { Found::All }))
            }
            Err(source) => Err(FileError::Read { path, source }.into()),
        }
    }

    /// The ballot to commit to in `epoch`, on disk when this returns. A second time it is the same one, whatever `weights`
    /// are by then: the first may be on the chain already. On an error there is none, on disk or here: nothing may be committed to.
    pub fn store(
        &mut self,
        run: RunId,
        epoch: u32,
        weights: Vec<(Uid, u16)>,
    ) -> Result<WeightVote, WeightVoteError> {
        if let Some(kept) = self.of(run, epoch) {
            return Ok(kept.clone());
        }
        let salt = self.salt(run, epoch, &weights);
        let kept = WeightVote { run, epoch, weights, salt };
        let mut with_it = self.kept.clone();
        with_it.push(kept.clone());
        self.write(&with_it)?;
        self.kept = with_it;
        Ok(kept)
    }

    /// The ballot that was sealed for `epoch` and not revealed, if there is one.
    pub fn of(&self, run: RunId, epoch: u32) -> Option<&WeightVote> {
        self.kept.iter().find(|kept| kept.run == run && kept.epoch == epoch)
    }

    /// Ballots of epochs before `epoch`, oldest first: to be revealed, or too late for it.
    pub fn before(&self, run: RunId, epoch: u32) -> Vec<WeightVote> {
        let mut due: Vec<WeightVote> =
            self.kept.iter().filter(|kept| kept.run == run && kept.epoch < epoch).cloned().collect();
        due.sort_by_key(|kept| kept.epoch);
        due
    }

    /// Forgets a ballot that the chain has, or will never take. On an error it is forgotten here, and not on disk before the next one is
    /// written: should a successor find it there, the chain tells it what became of it.
    pub fn forget(&mut self, run: RunId, epoch: u32) -> Result<(), WeightVoteError> {
        self.kept.retain(|kept| kept.run != run || kept.epoch != epoch);
        self.write(&self.kept)
    }

    /// Nobody can guess it who does not know the secret, also where the same run and epoch come again on a new chain:
    /// other weights have another salt.
    fn salt(&self, run: RunId, epoch: u32, weights: &[(Uid, u16)]) -> Digest {
        let mut hasher = blake3::Hasher::new_keyed(&self.secret);
        hasher.update(&run.0.to_le_bytes());
        hasher.update(&epoch.to_le_bytes());
        for (uid, weight) in weights {
            hasher.update(&uid.0.to_le_bytes());
            hasher.update(&weight.to_le_bytes());
        }
        Digest(*hasher.finalize().as_bytes())
    }

    fn write(&self, kept: &[WeightVote]) -> Result<(), WeightVoteError> {
        let bytes = serde_json::to_vec(kept).expect("a ballot is plain data");
        Ok(durable::write_atomic(&self.path, &bytes)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RUN: RunId = RunId(3);

    fn weights(of: &[(u16, u16)]) -> Vec<(Uid, u16)> {
        of.iter().map(|(uid, weight)| (Uid(*uid), *weight)).collect()
    }

    fn load(directory: &Path, served_before: bool) -> (WeightVotes, Found) {
        WeightVotes::load(directory, &[7; 32], served_before).unwrap()
    }

    #[test]
    fn a_ballot_survives_a_restart_until_it_is_revealed() {
        let directory = tempfile::tempdir().unwrap();
        let (mut weight_votes, found) = load(directory.path(), false);
        assert_eq!(found, Found::All);
        let sealed = weight_votes.store(RUN, 4, weights(&[(1, 65535)])).unwrap();

        let (mut weight_votes, found) = load(directory.path(), true);
        assert_eq!(found, Found::All);
        assert_eq!(weight_votes.before(RUN, 4), []);
        assert_eq!(weight_votes.before(RUN, 5), [sealed]);
        assert_eq!(weight_votes.before(RunId(9), 5), []);
        weight_votes.forget(RUN, 4).unwrap();
        assert_eq!(load(directory.path(), true).0.before(RUN, 5), []);
    }

    #[test]
    fn what_was_sealed_for_an_epoch_stays_what_it_is() {
        let directory = tempfile::tempdir().unwrap();
        let (mut weight_votes, _) = load(directory.path(), false);
        let first = weight_votes.store(RUN, 4, weights(&[(1, 65535)])).unwrap();
        assert_eq!(weight_votes.store(RUN, 4, weights(&[(2, 65535)])).unwrap(), first);
        assert_eq!(load(directory.path(), true).0.store(RUN, 4, weights(&[(9, 1)])).unwrap(), first);
        let next = weight_votes.store(RUN, 5, weights(&[(1, 65535)])).unwrap();
        assert_eq!(weight_votes.before(RUN, 6), [first, next]);
    }

    #[test]
    fn the_hash_is_the_one_that_the_chain_checks_and_no_salt_comes_twice() {
        let directory = tempfile::tempdir().unwrap();
        let (mut weight_votes, _) = load(directory.path(), false);
        let hotkey = Hotkey([5; 32]);
        let kept = weight_votes.store(RUN, 4, weights(&[(1, 65535)])).unwrap();
        assert_eq!(kept.hash(&hotkey), reveal::commitment(&kept.weights, &kept.salt(), &hotkey));
        let other = |run, epoch, of: &[(u16, u16)]| weight_votes.salt(run, epoch, &weights(of)).0;
        assert_ne!(other(RUN, 5, &[(1, 65535)]), kept.salt());
        assert_ne!(other(RunId(4), 4, &[(1, 65535)]), kept.salt());
        assert_ne!(other(RUN, 4, &[(1, 65534)]), kept.salt());
        let stranger = WeightVotes::load(tempfile::tempdir().unwrap().path(), &[8; 32], false).unwrap().0;
        assert_ne!(stranger.salt(RUN, 4, &kept.weights).0, kept.salt());
    }

    #[test]
    fn a_lost_file_is_noticed_and_a_damaged_one_refused() {
        let directory = tempfile::tempdir().unwrap();
        let (mut weight_votes, _) = load(directory.path(), false);
        weight_votes.store(RUN, 4, weights(&[(1, 65535)])).unwrap();
        let path = directory.path().join("ballots.json");
        std::fs::remove_file(&path).unwrap();
        assert_eq!(load(directory.path(), true).1, Found::Lost);
        // From then on there is one again.
        assert_eq!(load(directory.path(), true).1, Found::All);

        std::fs::write(&path, b"[{\"run\":").unwrap();
        let refused = WeightVotes::load(directory.path(), &[7; 32], true).err().unwrap();
        assert!(refused.to_string().contains("remove it to go on"), "{refused}");
    }

    #[test]
    fn a_ballot_that_cannot_be_kept_is_not_sealed() {
        let directory = tempfile::tempdir().unwrap();
        let (mut weight_votes, _) = load(directory.path(), false);
        // A directory in the way of the file.
        std::fs::remove_file(directory.path().join("ballots.json")).unwrap();
        std::fs::create_dir(directory.path().join("ballots.json")).unwrap();
        for _ in 0..2 {
            assert!(matches!(weight_votes.store(RUN, 4, weights(&[(1, 1)])), Err(WeightVoteError::File(_))));
            assert_eq!(weight_votes.of(RUN, 4), None);
        }
        // Once it can be, it is another one: nobody was told of the first.
        std::fs::remove_dir(directory.path().join("ballots.json")).unwrap();
        let sealed = weight_votes.store(RUN, 4, weights(&[(2, 1)])).unwrap();
        assert_eq!(sealed.weights, weights(&[(2, 1)]));
        assert_eq!(load(directory.path(), true).0.of(RUN, 4), Some(&sealed));
    }
}
