//! The validator's secret salts, all derived from its hotkey and the chain, so that a restarted validator can reveal
//! its commitments.
//!
//! A block author may grind the hash that seeds an evaluation, but not together with an unknown salt (PROT-2).
//! Without a salt, a hidden attestation, vote or weight vote could be guessed from its hash (PROT-30). Receipts
//! publish salts, so each chain has its own: otherwise a test network would disclose those of the next one.

use codec::Encode;
use protocol::{Digest, GenesisHash, Hotkey, RunId, Uid, Window, reveal};
use zeroize::{Zeroize, ZeroizeOnDrop, Zeroizing};

/// Derives the salts of one validator on one chain. Keep it secret: it determines the sequences on which
/// contributions will be judged. It is wiped on drop.
#[derive(Zeroize, ZeroizeOnDrop)]
pub struct Salts {
    evaluation: [u8; 32],
    commit_reveal: [u8; 32],
    weight_vote: [u8; 32],
}

impl Salts {
    /// Derives three secrets from the hotkey's seed and the chain's genesis hash, by one-way functions.
    pub fn new(hotkey_seed: &[u8; 32], genesis: &GenesisHash) -> Salts {
        let mut material = Zeroizing::new([0; 64]);
        material[..32].copy_from_slice(hotkey_seed);
        material[32..].copy_from_slice(&genesis.0);
        let derive = |context| blake3::derive_key(context, &*material);
        Salts {
            evaluation: derive("mettle 2 validator evaluation salts"),
            commit_reveal: derive("mettle 2 validator hidden salts"),
            weight_vote: derive("mettle 2 validator weight vote salts"),
        }
    }

    /// Returns the salt of a window's evaluation.
    pub fn salt(&self, run: RunId, window: Window) -> [u8; 32] {
        keyed(&self.evaluation, run, window.0, &[])
    }

    /// Returns the hash of the evaluation's salt: the chain has it before the window opens.
    pub fn commitment(&self, run: RunId, window: Window) -> Digest {
        Digest::of(&self.salt(run, window))
    }

    /// Returns the salt of a hidden attestation or vote. Another payload has another salt.
    pub fn commit_reveal<P: Encode + ?Sized>(&self, run: RunId, window: Window, payload: &P) -> reveal::Salt {
        keyed(&self.commit_reveal, run, window.0, &payload.encode())
    }

    /// Returns the hash that `hotkey` commits to in place of an attestation or vote.
    pub fn hidden_commitment<P: Encode + ?Sized>(
        &self,
        run: RunId,
        window: Window,
        payload: &P,
        hotkey: &Hotkey,
    ) -> Digest {
        reveal::commitment(payload, &self.commit_reveal(run, window, payload), hotkey)
    }

    /// Returns the salt of an epoch's weight vote. Other weights have another salt.
    pub fn weight_vote(&self, run: RunId, epoch: u32, weights: &[(Uid, u16)]) -> reveal::Salt {
        let bytes: Vec<u8> = weights
            .iter()
            .flat_map(|(uid, weight)| [uid.0.to_le_bytes(), weight.to_le_bytes()].concat())
            .collect();
        keyed(&self.weight_vote, run, epoch, &bytes)
    }
}

fn keyed(secret: &[u8; 32], run: RunId, number: u32, rest: &[u8]) -> [u8; 32] {
    let mut hasher = blake3::Hasher::new_keyed(secret);
    hasher.update(&run.0.to_le_bytes());
    hasher.update(&number.to_le_bytes());
    hasher.update(rest);
    *hasher.finalize().as_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;
    use protocol::view::Vote;

    const GENESIS: GenesisHash = GenesisHash([1; 32]);
    const RUN: RunId = RunId(3);
    const NOW: Window = Window(8);

    fn vote(update: u8) -> Vote {
        Vote { update: Digest([update; 32]), state_root: None }
    }

    #[test]
    fn each_window_has_its_own_salt_and_a_restart_derives_it_again() {
        let salts = Salts::new(&[7; 32], &GENESIS);
        assert_eq!(salts.salt(RunId(0), Window(3)), Salts::new(&[7; 32], &GENESIS).salt(RunId(0), Window(3)));
        assert_ne!(salts.salt(RunId(0), Window(3)), salts.salt(RunId(0), Window(4)));
        assert_ne!(salts.salt(RunId(0), Window(3)), salts.salt(RunId(1), Window(3)));
        assert_ne!(salts.salt(RunId(0), Window(3)), Salts::new(&[8; 32], &GENESIS).salt(RunId(0), Window(3)));
        assert_eq!(salts.commitment(RunId(0), Window(3)), Digest::of(&salts.salt(RunId(0), Window(3))));
    }

    #[test]
    fn the_hash_of_a_hidden_vote_is_the_one_the_chain_checks_and_no_salt_repeats() {
        let (salts, hotkey) = (Salts::new(&[7; 32], &GENESIS), Hotkey([5; 32]));
        let salt = salts.commit_reveal(RUN, NOW, &vote(1));
        let hash = salts.hidden_commitment(RUN, NOW, &vote(1), &hotkey);
        assert_eq!(hash, reveal::commitment(&vote(1), &salt, &hotkey));
        assert_ne!(salts.commit_reveal(RUN, NOW, &vote(2)), salt);
        assert_ne!(salts.commit_reveal(RUN, NOW.next(), &vote(1)), salt);
        assert_ne!(salts.commit_reveal(RunId(4), NOW, &vote(1)), salt);
        assert_ne!(Salts::new(&[8; 32], &GENESIS).commit_reveal(RUN, NOW, &vote(1)), salt);
    }

    #[test]
    fn two_chains_share_no_salt_of_one_hotkey() {
        let (here, there) = (Salts::new(&[7; 32], &GENESIS), Salts::new(&[7; 32], &GenesisHash([2; 32])));
        assert_ne!(here.salt(RUN, NOW), there.salt(RUN, NOW));
        assert_ne!(here.commit_reveal(RUN, NOW, &vote(1)), there.commit_reveal(RUN, NOW, &vote(1)));
        assert_ne!(here.weight_vote(RUN, 4, &[(Uid(1), 1)]), there.weight_vote(RUN, 4, &[(Uid(1), 1)]));
    }

    /// A release that derives other salts could not reveal the commitments of an earlier one.
    #[test]
    fn the_salts_of_a_hotkey_never_change() {
        let salts = Salts::new(&[7; 32], &GENESIS);
        let hex = |salt| Digest(salt).to_string();
        assert_eq!(
            hex(salts.salt(RUN, NOW)),
            "92294d7ba6381df667e39871327fa8fcd6266dbf53e787b93b0520049e7be1ad"
        );
        assert_eq!(
            hex(salts.commit_reveal(RUN, NOW, &vote(3))),
            "4e7af659420ac2c5c4c4010f8f79df4adcde71aaaaa38870d4afb071092f3385"
        );
        assert_eq!(
            hex(salts.weight_vote(RUN, 4, &[(Uid(1), 65535), (Uid(2), 300)])),
            "4d9864e86b23ed90a4ec03ba0d2ae0362e07b36003b27e6734cbdcba6772767c"
        );
    }

    #[test]
    fn no_salt_of_a_weight_vote_repeats() {
        let salts = Salts::new(&[7; 32], &GENESIS);
        let salt = salts.weight_vote(RUN, 4, &[(Uid(1), 65535)]);
        assert_ne!(salts.weight_vote(RUN, 5, &[(Uid(1), 65535)]), salt);
        assert_ne!(salts.weight_vote(RunId(4), 4, &[(Uid(1), 65535)]), salt);
        assert_ne!(salts.weight_vote(RUN, 4, &[(Uid(1), 65534)]), salt);
        assert_ne!(Salts::new(&[8; 32], &GENESIS).weight_vote(RUN, 4, &[(Uid(1), 65535)]), salt);
    }
}
