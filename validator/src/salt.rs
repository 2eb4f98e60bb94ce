//! The validator's own share of an evaluation's randomness (PROT-2).
//!
//! A block author may grind the hash that seeds the evaluation; it cannot grind a salt that it does not know. Salts come from one secret, so
//! that a restarted validator reveals what it committed to before.

use protocol::{Digest, RunId, Window};

/// Derives the salts of one validator. Whoever has it knows on which sequences contributions will be judged.
pub struct Salts {
    secret: [u8; 32],
}

impl Salts {
    /// From the hotkey's seed, by a derivation that says nothing about the seed.
    pub fn new(hotkey_seed: &[u8; 32]) -> Salts {
        Salts { secret: blake3::derive_key("mettle 1 validator evaluation salts", hotkey_seed) }
    }

    pub fn salt(&self, run: RunId, window: Window) -> [u8; 32] {
        let mut hasher = blake3::Hasher::new_keyed(&self.secret);
        hasher.update(&run.0.to_le_bytes());
        hasher.update(&window.0.to_le_bytes());
        *hasher.finalize().as_bytes()
    }

    /// What is committed on the chain before the window opens.
    pub fn commitment(&self, run: RunId, window: Window) -> Digest {
        Digest::of(&self.salt(run, window))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_window_has_its_own_salt_and_a_restart_finds_it_again() {
        let salts = Salts::new(&[7; 32]);
        assert_eq!(salts.salt(RunId(0), Window(3)), Salts::new(&[7; 32]).salt(RunId(0), Window(3)));
        assert_ne!(salts.salt(RunId(0), Window(3)), salts.salt(RunId(0), Window(4)));
        assert_ne!(salts.salt(RunId(0), Window(3)), salts.salt(RunId(1), Window(3)));
        assert_ne!(salts.salt(RunId(0), Window(3)), Salts::new(&[8; 32]).salt(RunId(0), Window(3)));
        assert_eq!(salts.commitment(RunId(0), Window(3)), Digest::of(&salts.salt(RunId(0), Window(3))));
    }
}
