//! Statements that a validator signs outside the chain, and the proof of equivocation (PROT-21).
//!
//! The chain accepts one attestation and one vote per window and validator, so no validator can contradict itself
//! there. In a receipt a validator signs its attestation and vote. Two such statements about the same subject with
//! different digests prove equivocation; so does one that differs from the chain's record.

use crate::{
    Digest, GenesisHash, Hotkey, RunId, Uid, Window, ensure,
    identity::{self, Domain, Signature, SignatureError, Signer},
    view::{Verdict, Vote},
};
use alloc::vec::Vec;
use codec::{Decode, DecodeWithMemTracking, Encode, MaxEncodedLen};
use scale_info::TypeInfo;

/// Subject of a statement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[derive(Encode, Decode, DecodeWithMemTracking, MaxEncodedLen, TypeInfo)]
pub enum StatementKind {
    /// The digest of the SCALE-encoded verdicts, as the chain receives them (PROT-14).
    Attestation,
    /// The digest of the SCALE-encoded vote (PROT-19).
    Vote,
    /// The digest of the window's receipts (PROT-27).
    Receipts,
}

/// Signed claim: the validator's data on one subject and window has this digest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[derive(Encode, Decode, DecodeWithMemTracking, MaxEncodedLen, TypeInfo)]
pub struct Statement {
    pub run: RunId,
    pub window: Window,
    pub uid: Uid,
    pub kind: StatementKind,
    pub digest: Digest,
}

/// A statement with the hotkey's signature.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[derive(Encode, Decode, DecodeWithMemTracking, MaxEncodedLen, TypeInfo)]
pub struct SignedStatement {
    pub statement: Statement,
    pub signature: Signature,
}

/// Two statements of one validator that contradict each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[derive(Encode, Decode, DecodeWithMemTracking, MaxEncodedLen, TypeInfo)]
pub struct Equivocation {
    pub hotkey: Hotkey,
    pub one: SignedStatement,
    pub other: SignedStatement,
}

/// Reason why a pair of statements proves nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProofError {
    #[error("the statements are not about the same matter of the same seat, window and run")]
    DifferentSubject,
    #[error("the statements say the same")]
    SameDigest,
    #[error("a statement is not signed by the hotkey for this chain: {0}")]
    NotSigned(#[from] SignatureError),
}

impl Statement {
    /// Creates the statement of an attestation: verdicts in uid order, as the chain receives them.
    pub fn of_attestation(run: RunId, window: Window, uid: Uid, verdicts: &Vec<(Uid, Verdict)>) -> Statement {
        let digest = Digest::of(&verdicts.encode());
        Statement { run, window, uid, kind: StatementKind::Attestation, digest }
    }

    pub fn of_vote(run: RunId, window: Window, uid: Uid, vote: &Vote) -> Statement {
        Statement { run, window, uid, kind: StatementKind::Vote, digest: Digest::of(&vote.encode()) }
    }

    /// Signs the statement with the validator's hotkey, for the signer's chain.
    pub fn sign(self, signer: &Signer) -> SignedStatement {
        SignedStatement { statement: self, signature: signer.sign(Domain::Statement, &self.encode()) }
    }

    /// Returns whether both have the same subject, whatever their digests.
    pub fn same_subject(&self, other: &Statement) -> bool {
        Statement { digest: other.digest, ..*self } == *other
    }
}

impl SignedStatement {
    /// Checks that `hotkey` signed the statement for the chain of this genesis.
    ///
    /// # Errors
    /// [`SignatureError`] if it did not.
    pub fn verify(&self, hotkey: &Hotkey, genesis: &GenesisHash) -> Result<(), SignatureError> {
        identity::verify(hotkey, genesis, Domain::Statement, &self.statement.encode(), &self.signature)
    }
}

impl Equivocation {
    /// Checks that both statements have one subject, different digests, and valid signatures for the chain of this
    /// genesis. The chain must check whose hotkey it was.
    ///
    /// # Errors
    /// [`ProofError`] if one of these does not hold.
    pub fn check(&self, genesis: &GenesisHash) -> Result<Statement, ProofError> {
        let (one, other) = (self.one.statement, self.other.statement);
        ensure!(one.same_subject(&other), ProofError::DifferentSubject);
        ensure!(one.digest != other.digest, ProofError::SameDigest);
        self.one.verify(&self.hotkey, genesis)?;
        self.other.verify(&self.hotkey, genesis)?;
        Ok(one)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn statement(digest: u8) -> Statement {
        Statement {
            run: RunId(1),
            window: Window(2),
            uid: Uid(3),
            kind: StatementKind::Vote,
            digest: Digest([digest; 32]),
        }
    }

    const GENESIS: GenesisHash = GenesisHash([1; 32]);

    fn signer(secret: u8, genesis: GenesisHash) -> Signer {
        Signer::new(ed25519_dalek::SigningKey::from_bytes(&[secret; 32]), genesis)
    }

    fn key() -> (Signer, Hotkey) {
        let key = signer(7, GENESIS);
        (key.clone(), key.hotkey())
    }

    #[test]
    fn two_different_statements_on_one_matter_prove_an_equivocation() {
        let (key, hotkey) = key();
        let proof = Equivocation { hotkey, one: statement(1).sign(&key), other: statement(2).sign(&key) };
        assert_eq!(proof.check(&GENESIS), Ok(statement(1)));
    }

    #[test]
    fn statements_that_agree_or_are_about_something_else_prove_nothing() {
        let (key, hotkey) = key();
        let proof = |one: Statement, other: Statement| {
            Equivocation { hotkey, one: one.sign(&key), other: other.sign(&key) }.check(&GENESIS).unwrap_err()
        };
        assert_eq!(proof(statement(1), statement(1)), ProofError::SameDigest);
        let base = statement(1);
        for other in [
            Statement { run: RunId(9), ..statement(2) },
            Statement { window: Window(9), ..statement(2) },
            Statement { uid: Uid(9), ..statement(2) },
            Statement { kind: StatementKind::Receipts, ..statement(2) },
        ] {
            assert_eq!(proof(base, other), ProofError::DifferentSubject);
        }
    }

    #[test]
    fn nobody_is_convicted_by_a_signature_that_is_not_its_own() {
        let (key, hotkey) = key();
        let stranger = signer(8, GENESIS);
        let (one, other) = (statement(1).sign(&key), statement(2).sign(&stranger));
        let refused = ProofError::NotSigned(SignatureError::BadSignature);
        assert_eq!(Equivocation { hotkey, one, other }.check(&GENESIS), Err(refused));
        assert_eq!(Equivocation { hotkey, one: other, other: one }.check(&GENESIS), Err(refused));
    }

    #[test]
    fn an_honest_statement_of_another_chain_proves_nothing() {
        let (key, hotkey) = key();
        // The same hotkey voted on both chains, for the same run, window and uid.
        let (here, there) = (statement(1).sign(&key), statement(2).sign(&signer(7, GenesisHash([2; 32]))));
        let refused = Err(ProofError::NotSigned(SignatureError::BadSignature));
        assert_eq!(Equivocation { hotkey, one: here, other: there }.check(&GENESIS), refused);
        assert_eq!(Equivocation { hotkey, one: there, other: here }.check(&GENESIS), refused);
    }
}
