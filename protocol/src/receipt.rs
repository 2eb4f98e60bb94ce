//! Receipts: a validator's signed report of one window, with its evidence (PROT-27).
//!
//! There is one file per validator and window. It has the validator's attestation with reasons, the salt that drew
//! its sequences, and the losses that it measured. It also has the reputations before and after, the resulting scores
//! and weights, and the merge. The file is signed, its digest is on the chain, and each receipt names the previous
//! one, so that none can be inserted between two. With a receipt and public data anyone can repeat its computation,
//! and find where it differs.
//!
//! ```text
//! object = "MTLR" ‖ receipt ‖ signature, 64 bytes
//! ```
//!
//! It contains the validator's signatures under its attestation and vote, in the form that the chain accepts as
//! evidence.
//!
//! The receipt is in SCALE: fields in order, integers little-endian, lists after their compact length, fractions as
//! the bits of an f64. The signature is over the chain's genesis hash and the receipt's digest; the digest on the
//! chain is over the whole object. The encoding is canonical: a decoded receipt is encoded again and compared.

use crate::{
    Digest, GenesisHash, Hotkey, RunId, RunParams, SeatId, Uid, Window, ensure,
    identity::{self, Domain, Signature, SignatureError, Signer},
    select::Selected,
    statement::{SignedStatement, Statement},
    view::{Verdict, Vote},
};
use alloc::{collections::BTreeSet, string::String, vec::Vec};
use codec::{Decode, DecodeAll as _, Encode, Error as CodecError, Input};
use core::fmt;
use serde::{Deserialize, Serialize};

/// The first bytes of a receipt.
pub const MAGIC: [u8; 4] = *b"MTLR";

/// The version of the format: the first field of every receipt.
pub const FORMAT: u16 = 1;

/// Maximum length of a text in a receipt, in bytes. [`text`] truncates a longer one.
pub const TEXT_BYTES_MAX: usize = 256;

/// Maximum number of penalties of one seat: as many of every kind as there are evaluations for which one lasts.
pub const PENALTIES_MAX: usize = 64;

/// Maximum number of seats of one run: the chain's capacity.
pub const SEATS_MAX: usize = 2048;

const SIGNATURE_BYTES: usize = 64;

/// A finite number that keeps its exact bits.
#[derive(Clone, Copy, PartialEq, PartialOrd, Encode, Serialize)]
#[serde(transparent)]
pub struct ExactF64(f64);

/// A validator's report of one window.
#[derive(Clone, Debug, PartialEq, Encode, Decode, Serialize)]
pub struct Receipt {
    /// [`FORMAT`].
    pub format: u16,
    pub run: RunId,
    pub window: Window,
    /// The validator's seat, with its holder's registration.
    pub validator: SeatId,
    pub hotkey: Hotkey,
    /// `lineage_w`: the model of all measurements.
    pub base: Digest,
    /// The validator's previous receipt; `None` in its first.
    pub previous: Option<PreviousReceipt>,
    /// The salt of this window, whose digest was on the chain before the window opened (PROT-2).
    pub salt: [u8; 32],
    pub attestation: Attestation,
    /// Its merge and vote; `None` if it had none.
    pub merged: Option<MergeRecord>,
    /// Its signatures under both, which the chain accepts as evidence (PROT-21).
    pub statements: Statements,
    /// Every seat's reputation before the judgement.
    pub before: Reputations,
    /// `None` if the window was void, or was not evaluated: then reputations are unchanged.
    pub judgement: Option<Judgement>,
}

/// Reference to a receipt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode, Serialize, Deserialize)]
pub struct PreviousReceipt {
    pub window: Window,
    /// The digest of its object.
    pub digest: Digest,
}

/// Contents of an attestation (PROT-14). Each list is in uid order, and no seat is in two of them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Encode, Decode, Serialize, Deserialize)]
pub struct Attestation {
    pub valid: Vec<Uid>,
    pub faulty: Vec<ReportedFault>,
    pub not_observed: Vec<NotObserved>,
}

/// A fault with its details.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode, Serialize, Deserialize)]
pub struct ReportedFault {
    pub uid: Uid,
    /// [`crate::submission::Fault::label`].
    pub label: String,
    pub detail: String,
}

/// A commitment that the validator could not check, for a reason of its own: not a fault.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode, Serialize, Deserialize)]
pub struct NotObserved {
    pub uid: Uid,
    pub reason: String,
}

/// A merge and its vote (PROT-17 to PROT-20).
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode, Serialize, Deserialize)]
pub struct MergeRecord {
    /// Merged contributions, in uid order.
    pub inputs: Vec<Selected>,
    pub update: Digest,
    pub state_root: Option<Digest>,
}

/// Signatures of the receipt's attestation and vote, each as a [`Statement`]. If the validator told the chain
/// something else, they prove it. `None` for a call that is not on the chain.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Encode, Decode, Serialize)]
pub struct Statements {
    pub attestation: Option<Signature>,
    pub vote: Option<Signature>,
}

/// The gauntlet's state of every seat between windows (PROT-23 to PROT-26).
#[derive(Clone, Debug, Default, PartialEq, Encode, Decode, Serialize)]
pub struct Reputations {
    /// The last window that was judged.
    pub judged: Option<Window>,
    /// In seat order, one per uid.
    pub seats: Vec<SeatReputation>,
}

#[derive(Clone, Debug, PartialEq, Encode, Decode, Serialize)]
pub struct SeatReputation {
    pub seat: SeatId,
    pub reputation: Reputation,
}

/// The gauntlet's state of one seat between windows.
#[derive(Clone, Debug, PartialEq, Encode, Decode, Serialize)]
pub struct Reputation {
    pub mu: ExactF64,
    pub sigma: ExactF64,
    /// `m`.
    pub own_data_score: ExactF64,
    /// Variance of `m`, from the errors of its terms.
    pub own_data_variance: ExactF64,
    /// Oldest first.
    pub penalties: Vec<Penalty>,
    pub first_seen: Window,
    pub last_evaluated: Option<Window>,
    /// Windows of valid work since the last measurement.
    pub unmeasured: u32,
    pub evaluations: u32,
    pub faults: u32,
    /// `t/n`.
    pub share: ExactF64,
    /// Scores of the last windows, oldest first, an epoch's worth at most.
    pub recent: Vec<WindowScore>,
}

/// Score of one window (PROT-25).
#[derive(Clone, Copy, Debug, PartialEq, Encode, Decode, Serialize)]
pub struct WindowScore {
    /// Score before penalties.
    pub score: ExactF64,
    /// Factor of the penalties.
    pub penalty: ExactF64,
}

/// Temporary reduction of a seat's score (PROT-25).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode, Serialize, Deserialize)]
pub struct Penalty {
    pub reason: PenaltyReason,
    pub since: Window,
    /// Evaluations until the penalty ends.
    pub remaining: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PenaltyReason {
    /// The contribution made the model significantly worse.
    Harm,
    /// The contribution was a near-duplicate of another, and showed no training on its seat's own data.
    Duplicate,
    /// The committed bytes are not a valid contribution.
    Fault,
}

/// Evaluation of a window's contributions.
#[derive(Clone, Debug, PartialEq, Encode, Decode, Serialize)]
pub struct Judgement {
    /// Contributions that the validator held, in uid order. The scales of all contributions come from the norms of
    /// these (PROT-17).
    pub held: Vec<Uid>,
    /// Maximum number of contributions that it has time to measure in a window.
    pub budget: u32,
    /// Seats to measure, in this order (PROT-28). Seats without a measurement were not reached.
    pub order: Vec<Uid>,
    /// The common sequences, with the model's loss on each (PROT-22).
    pub common: Vec<Baseline>,
    /// Every miner's seat of the window, in seat order.
    pub seats: Vec<SeatJudgement>,
    pub after: Reputations,
    /// Weights that it would post now: in uid order, the highest 65535 (PROT-26).
    pub weights: Vec<(Uid, u16)>,
}

/// A loss of `θ_w`, in nats per token.
#[derive(Clone, Copy, Debug, PartialEq, Encode, Decode, Serialize)]
pub struct Baseline {
    pub sequence: u64,
    pub before: ExactF64,
}

#[derive(Clone, Debug, PartialEq, Encode, Decode, Serialize)]
pub struct SeatJudgement {
    pub seat: SeatId,
    pub observed: Observed,
    pub result: Outcome,
}

/// Observation of one seat in the window.
#[derive(Clone, Debug, PartialEq, Encode, Decode, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Observed {
    /// The seat committed nothing.
    Absent,
    /// The seat committed, but neither the active set nor this validator could check the contribution.
    Unobserved,
    /// Two thirds of the stake attested a fault.
    Faulty {
        /// Label of the fault that this validator found, as in [`ReportedFault::label`]; or that others found one.
        label: String,
        detail: String,
    },
    /// A contribution that counts.
    Valid {
        /// `t`.
        trained: u32,
        /// `None` if the validator did not reach it.
        measured: Option<Measured>,
        /// The most similar contribution, if the similarity is above that of independent work.
        near_duplicate: Option<NearDuplicate>,
    },
    /// The seat committed, but this validator did not fetch it: it was over the limit for seats without a consensus
    /// weight (PROT-13).
    Unfetched,
}

/// A near-duplicate (PROT-25).
#[derive(Clone, Copy, Debug, PartialEq, Encode, Decode, Serialize)]
pub struct NearDuplicate {
    pub uid: Uid,
    /// The judged window, or an earlier one.
    pub window: Window,
    /// Digest of the other contribution's bytes.
    pub digest: Digest,
    /// Cosine of the two contributions.
    pub alike: ExactF64,
}

/// Losses before and after the contribution, in nats per token.
#[derive(Clone, Debug, PartialEq, Encode, Decode, Serialize)]
pub struct Measured {
    pub own: Vec<LossPair>,
    /// Loss after the contribution, on each of the common sequences.
    pub common_after: Vec<ExactF64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Encode, Decode, Serialize)]
pub struct LossPair {
    pub sequence: u64,
    pub before: ExactF64,
    pub after: ExactF64,
}

/// Result for the seat, for people to read. The exact record is in [`Judgement::after`].
#[derive(Clone, Copy, Debug, PartialEq, Encode, Decode, Serialize)]
pub struct Outcome {
    /// Relative gain on the seat's own sequences (PROT-22).
    pub own_gain: Option<ExactF64>,
    /// Relative gain on the common sequences.
    pub common_gain: Option<ExactF64>,
    /// Standard error of `common_gain`.
    pub common_error: Option<ExactF64>,
    /// `None` if there was too little data to test (PROT-24).
    pub own_data: Option<OwnData>,
    /// Rank in the window's match, from 1 (PROT-23).
    pub rank: Option<u32>,
    /// `μ − 3σ` after the window.
    pub ordinal: ExactF64,
    /// Median ordinal of the window's seats.
    pub median_rating: ExactF64,
    /// Factor from 0 to 1, from the ordinal relative to the median (PROT-25).
    pub rating_factor: ExactF64,
    /// Score of this window (PROT-25).
    pub score: ExactF64,
    /// Weight from an epoch's worth of scores (PROT-26).
    pub weight: u16,
}

/// The own-data test (PROT-24).
#[derive(Clone, Copy, Debug, PartialEq, Encode, Decode, Serialize)]
pub struct OwnData {
    pub gap: ExactF64,
    pub error: ExactF64,
    /// The gap that counted as one in this window.
    pub scale: ExactF64,
    /// Result from −1 to 1.
    pub outcome: ExactF64,
}

/// A signed receipt, as it is published.
#[derive(Clone, Debug, PartialEq)]
pub struct SignedReceipt {
    /// Digest of the whole object, which is anchored on the chain.
    pub digest: Digest,
    pub bytes: Vec<u8>,
}

/// Reason why bytes are not a receipt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReceiptError {
    #[error("it has {bytes} bytes, where {largest} are the most")]
    TooLarge { bytes: usize, largest: usize },
    #[error("it does not begin as a receipt does, or ends too early")]
    NotAReceipt,
    #[error("it is written in version {got} of the format, and this release reads version {FORMAT}")]
    WrongFormat { got: u16 },
    #[error("it cannot be decoded")]
    Undecodable,
    #[error("it is not spelt the one way there is")]
    NotCanonical,
    #[error("{0}")]
    Disordered(&'static str),
    #[error("it is not signed by the hotkey that it names for this chain: {0}")]
    NotSigned(#[from] SignatureError),
}

/// Returns the first window in which the receipt of `window` is public. It is the one after the epoch in which
/// validators may have to show their measurements (PROT-27, PROT-30). By then the probes are drawn, and the weight
/// votes that the receipt discloses are committed.
pub fn public_from(window: Window, params: &RunParams) -> Window {
    Window(params.probe_epoch(window).saturating_add(1).saturating_mul(params.epoch_windows))
}

/// Returns the first window whose receipt is not public yet when `now` is open. The inverse of [`public_from`].
pub fn first_sealed(now: Window, params: &RunParams) -> Window {
    Window(params.probe_windows(now.epoch(params.epoch_windows)).start)
}

impl Attestation {
    /// Returns the verdicts for the chain, in uid order.
    pub fn verdicts(&self) -> Vec<(Uid, Verdict)> {
        let valid = self.valid.iter().map(|uid| (*uid, Verdict::Valid));
        let faulty = self.faulty.iter().map(|said| (said.uid, Verdict::Faulty));
        let mut verdicts: Vec<_> = valid.chain(faulty).collect();
        verdicts.sort_unstable_by_key(|(uid, _)| *uid);
        verdicts
    }
}

impl Receipt {
    /// Returns the exact bytes to publish, signed with the validator's hotkey. Sealing is deterministic.
    pub fn sign(&self, signer: &Signer) -> SignedReceipt {
        let body = self.encode();
        let signature = signer.sign(Domain::Receipt, &Digest::of(&body).0);
        let bytes = [&MAGIC[..], &body, &signature.0].concat();
        SignedReceipt { digest: Digest::of(&bytes), bytes }
    }

    /// Reads untrusted bytes. They must be within the bounds of `params`, canonical, in order, and signed for this
    /// chain by the hotkey that they name. The caller checks whether that key holds the seat, and whether the
    /// contents are true.
    ///
    /// # Errors
    /// [`ReceiptError`] if the bytes fail one of these checks.
    pub fn open(bytes: &[u8], params: &RunParams, genesis: &GenesisHash) -> Result<Receipt, ReceiptError> {
        let largest = largest_bytes(params);
        ensure!(bytes.len() <= largest, ReceiptError::TooLarge { bytes: bytes.len(), largest });
        let rest = bytes.strip_prefix(&MAGIC[..]).ok_or(ReceiptError::NotAReceipt)?;
        let (body, signature) =
            rest.split_last_chunk::<SIGNATURE_BYTES>().ok_or(ReceiptError::NotAReceipt)?;
        let got = u16::decode(&mut &body[..]).map_err(|_| ReceiptError::NotAReceipt)?;
        ensure!(got == FORMAT, ReceiptError::WrongFormat { got });
        let receipt = Receipt::decode_all(&mut &body[..]).map_err(|_| ReceiptError::Undecodable)?;
        ensure!(receipt.encode() == body, ReceiptError::NotCanonical);
        receipt.check(params)?;
        identity::verify(
            &receipt.hotkey,
            genesis,
            Domain::Receipt,
            &Digest::of(body).0,
            &Signature(*signature),
        )?;
        for signed in receipt.signed_statements() {
            signed.verify(&receipt.hotkey, genesis)?;
        }
        Ok(receipt)
    }

    /// Returns the verdicts sent to the chain, in uid order.
    pub fn verdicts(&self) -> Vec<(Uid, Verdict)> {
        self.attestation.verdicts()
    }

    /// Returns the vote sent to the chain.
    pub fn vote(&self) -> Option<Vote> {
        self.merged.as_ref().map(|merged| Vote { update: merged.update, state_root: merged.state_root })
    }

    /// Signs the receipt's attestation and vote, those of them that the chain has accepted (PROT-21).
    pub fn sign_statements(&mut self, attestation: bool, vote: bool, signer: &Signer) {
        let sign = |statement: Statement| statement.sign(signer).signature;
        self.statements = Statements {
            attestation: attestation.then(|| sign(self.attestation_statement())),
            vote: self.vote_statement().filter(|_| vote).map(sign),
        };
    }

    /// Returns the statements that have signatures. [`Receipt::open`] verifies them.
    pub fn signed_statements(&self) -> Vec<SignedStatement> {
        let Statements { attestation, vote } = self.statements;
        let attestation = attestation
            .map(|signature| SignedStatement { statement: self.attestation_statement(), signature });
        let vote = vote
            .zip(self.vote_statement())
            .map(|(signature, statement)| SignedStatement { statement, signature });
        attestation.into_iter().chain(vote).collect()
    }

    fn attestation_statement(&self) -> Statement {
        Statement::of_attestation(self.run, self.window, self.validator.uid, &self.verdicts())
    }

    fn vote_statement(&self) -> Option<Statement> {
        Some(Statement::of_vote(self.run, self.window, self.validator.uid, &self.vote()?))
    }

    /// Returns the reputations after this window.
    pub fn after(&self) -> &Reputations {
        self.judgement.as_ref().map_or(&self.before, |judgement| &judgement.after)
    }

    /// Returns the judgement of one seat.
    pub fn of(&self, uid: Uid) -> Option<&SeatJudgement> {
        self.judgement.as_ref()?.seats.iter().find(|judged| judged.seat.uid == uid)
    }

    /// Checks every bound and order that the types do not ensure.
    fn check(&self, params: &RunParams) -> Result<(), ReceiptError> {
        let epoch = usize::try_from(params.epoch_windows).unwrap_or(usize::MAX);
        let sequences = usize::try_from(params.evaluation_sequences).unwrap_or(usize::MAX);
        let Attestation { valid, faulty, not_observed } = &self.attestation;
        ordered(valid, |uid| *uid, "the seats attested as valid are not in order")?;
        ordered(faulty, |said| said.uid, "the faults are not in order")?;
        ordered(not_observed, |said| said.uid, "the seats not observed are not in order")?;
        let texts = faulty
            .iter()
            .flat_map(|said| [&said.label, &said.detail])
            .chain(not_observed.iter().map(|said| &said.reason));
        for text in texts {
            within(text.len(), TEXT_BYTES_MAX, "a text is too long")?;
        }
        let attested = valid.iter().copied().chain(faulty.iter().map(|said| said.uid));
        let attested: BTreeSet<Uid> = attested.chain(not_observed.iter().map(|said| said.uid)).collect();
        ensure!(
            attested.len() == valid.len() + faulty.len() + not_observed.len(),
            ReceiptError::Disordered("a seat was attested as two things")
        );
        if let Some(merged) = &self.merged {
            ordered(&merged.inputs, |input| input.uid, "what was merged is not in order")?;
        }
        let vote_is_there = self.merged.is_some() || self.statements.vote.is_none();
        ensure!(vote_is_there, ReceiptError::Disordered("a vote is signed that is not there"));
        self.before.check(epoch)?;
        let Some(judgement) = &self.judgement else { return Ok(()) };
        let Judgement { held, budget: _, order, common, seats, after, weights } = judgement;
        after.check(epoch)?;
        ordered(held, |uid| *uid, "the contributions held are not in order")?;
        ordered(seats, |judged| judged.seat.uid, "the seats judged are not in order")?;
        ordered(weights, |(uid, _)| *uid, "the weights are not in order")?;
        within(order.len(), SEATS_MAX, "more are to be measured than there are seats")?;
        within(common.len(), sequences, "there are more common sequences than the run allows")?;
        for judged in seats {
            match &judged.observed {
                Observed::Faulty { label, detail } => {
                    within(label.len(), TEXT_BYTES_MAX, "a text is too long")?;
                    within(detail.len(), TEXT_BYTES_MAX, "a text is too long")?;
                }
                Observed::Valid { measured: Some(measured), .. } => {
                    let Measured { own, common_after } = measured;
                    within(own.len(), sequences, "there are more own sequences than the run allows")?;
                    let missed = "a seat was not measured on each of the common sequences";
                    ensure!(common_after.len() == common.len(), ReceiptError::Disordered(missed));
                }
                _ => {}
            }
        }
        Ok(())
    }
}

impl Reputations {
    /// Returns the reputation of `uid`.
    pub fn of(&self, uid: Uid) -> Option<&SeatReputation> {
        self.seats.iter().find(|remembered| remembered.seat.uid == uid)
    }

    fn check(&self, epoch: usize) -> Result<(), ReceiptError> {
        ordered(&self.seats, |remembered| remembered.seat.uid, "the standings are not in order")?;
        for SeatReputation { reputation, .. } in &self.seats {
            within(reputation.recent.len(), epoch, "more scores are remembered than an epoch has windows")?;
            within(reputation.penalties.len(), PENALTIES_MAX, "there are more penalties than there can be")?;
        }
        Ok(())
    }
}

/// Checks that a list is ascending, without duplicates, and not longer than the number of seats.
fn ordered<T, K: Ord>(
    list: &[T],
    key: impl Fn(&T) -> K,
    otherwise: &'static str,
) -> Result<(), ReceiptError> {
    within(list.len(), SEATS_MAX, otherwise)?;
    let rising = list.windows(2).all(|pair| key(&pair[0]) < key(&pair[1]));
    if rising { Ok(()) } else { Err(ReceiptError::Disordered(otherwise)) }
}

fn within(length: usize, most: usize, otherwise: &'static str) -> Result<(), ReceiptError> {
    if length <= most { Ok(()) } else { Err(ReceiptError::Disordered(otherwise)) }
}

/// Returns the maximum length of a run's receipt in bytes: a fetcher's limit, known before a byte is fetched
/// (PROT-13).
pub fn largest_bytes(params: &RunParams) -> usize {
    // Two numbers of at most 32 bits, so that nothing overflows 64.
    let [sequences, epoch] = [params.evaluation_sequences, params.epoch_windows].map(u64::from);
    let [seats, penalties, text] = [SEATS_MAX, PENALTIES_MAX, TEXT_BYTES_MAX].map(|most| most as u64);
    // A compact length takes at most four bytes if its entries take memory at all.
    let list = |entries: u64, bytes: u64| entries * bytes + 5;
    let text = list(text, 1);
    let reputation = list(epoch, 16) + list(penalties, 9) + 3 * 8 + 8 + 17;
    let reputations = list(seats, reputation + 6) + 5;
    let seat = list(sequences, 24) + list(sequences, 8) + 2 * text + 6 + 7 + 47 + 3 * 9 + 33 + 5 + 4 * 8 + 2;
    // An attested seat is in one list; a fault has two texts.
    let attested = list(seats, 2 * text + 2) + 10;
    let head = 2 + 4 + 4 + 6 + 32 + 32 + 37 + 32;
    let merged = list(seats, 34) + 1 + 32 + 33;
    let judged = 1 + 4 + 2 * list(seats, 2) + list(sequences, 16) + list(seats, seat) + list(seats, 4);
    let signatures = 3 * SIGNATURE_BYTES as u64 + 2;
    let bytes = MAGIC.len() as u64 + head + attested + merged + signatures + 2 * reputations + judged;
    usize::try_from(bytes).unwrap_or(usize::MAX)
}

/// Truncates `text` for a receipt: after at most [`TEXT_BYTES_MAX`] bytes, between two characters.
pub fn text(text: &str) -> String {
    text[..text.floor_char_boundary(TEXT_BYTES_MAX)].into()
}

impl ExactF64 {
    /// Wraps `number`, which must be finite; other values become 0, and the gauntlet does not return them.
    pub fn of(number: f64) -> ExactF64 {
        ExactF64(if number.is_finite() { number } else { 0.0 })
    }

    pub fn get(self) -> f64 {
        self.0
    }

    /// Returns whether both have the same bits: unlike `==`, it distinguishes 0 from −0.
    pub fn same(self, other: ExactF64) -> bool {
        self.0.to_bits() == other.0.to_bits()
    }
}

impl fmt::Debug for ExactF64 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.0)
    }
}

impl fmt::Display for ExactF64 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl Decode for ExactF64 {
    fn decode<I: Input>(from: &mut I) -> Result<ExactF64, CodecError> {
        let number = f64::decode(from)?;
        if number.is_finite() { Ok(ExactF64(number)) } else { Err("not a finite number".into()) }
    }
}

#[cfg(test)]
mod tests;
