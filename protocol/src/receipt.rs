//! What a validator says a window's work was worth, with everything it concluded that from (PROT-27).
//!
//! One file a validator and window: what it attested and why, the salt that chose its sequences, the losses it
//! measured, what it remembered of every seat before and after, the resulting scores and weights, and what it merged.
//! The file is signed, its digest stands on the chain, and each names the one before, so that nothing can be slipped
//! in between two of them. From a receipt and public data anyone can work out the same, and see where it was not so.
//!
//! ```text
//! object = "MTLR" ‖ receipt ‖ signature, 64 bytes
//! ```
//!
//! Inside it are its validator's signatures under what it attested and voted, in the form in which the chain takes
//! evidence.
//!
//! The receipt is in SCALE: fields in order, integers little-endian, lists after their compact length, fractions as
//! the bits of an f64. The signature is over the chain's genesis hash and the receipt's digest; the digest on the
//! chain is over the whole object. There is one spelling of each: what is read is written again and compared.

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

/// What the bytes of a receipt begin with.
pub const MAGIC: [u8; 4] = *b"MTLR";

/// The version of the format: the first field of every receipt.
pub const FORMAT: u16 = 1;

/// Bytes of the longest text in a receipt. A longer one is cut by [`text`].
pub const TEXT_BYTES_MAX: usize = 256;

/// Penalties that weigh on one seat, at most: as many as there are evaluations in which one is still there, of every
/// kind.
pub const PENALTIES_MAX: usize = 64;

/// Seats of one run, at most: what the chain can hold.
pub const SEATS_MAX: usize = 2048;

const SIGNATURE_BYTES: usize = 64;

/// A finite number, to the last bit.
#[derive(Clone, Copy, PartialEq, PartialOrd, Encode, Serialize)]
#[serde(transparent)]
pub struct ExactF64(f64);

/// All that one validator says of one window.
#[derive(Clone, Debug, PartialEq, Encode, Decode, Serialize)]
pub struct Receipt {
    /// [`FORMAT`].
    pub format: u16,
    pub run: RunId,
    pub window: Window,
    /// The validator's seat, and whose time in it.
    pub validator: SeatId,
    pub hotkey: Hotkey,
    /// `lineage_w`: the model that everything was measured against.
    pub base: Digest,
    /// The validator's receipt before this one; `None` in its first.
    pub previous: Option<PreviousReceipt>,
    /// The salt of this window, whose digest is on the chain since before it opened (PROT-2).
    pub salt: [u8; 32],
    pub attestation: Attestation,
    /// What it merged and voted; `None` where it could not.
    pub merged: Option<MergeRecord>,
    /// Its signatures under both, which the chain takes as evidence (PROT-21).
    pub statements: Statements,
    /// What it remembered of every seat when it judged.
    pub before: Reputations,
    /// `None` where the window was void, or its turn did not come: then what it remembers is unchanged.
    pub judgement: Option<Judgement>,
}

/// Names a receipt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode, Serialize, Deserialize)]
pub struct PreviousReceipt {
    pub window: Window,
    /// The digest of its object.
    pub digest: Digest,
}

/// What was attested (PROT-14). Each list is in uid order, and no seat is in two of them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Encode, Decode, Serialize, Deserialize)]
pub struct Attestation {
    pub valid: Vec<Uid>,
    pub faulty: Vec<ReportedFault>,
    pub not_observed: Vec<NotObserved>,
}

/// A fault, and in what it consists.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode, Serialize, Deserialize)]
pub struct ReportedFault {
    pub uid: Uid,
    /// [`crate::submission::Fault::label`].
    pub label: String,
    pub detail: String,
}

/// A commitment that the validator could not look at: its own trouble, no fault.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode, Serialize, Deserialize)]
pub struct NotObserved {
    pub uid: Uid,
    pub reason: String,
}

/// What was merged, and voted (PROT-17 to PROT-20).
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode, Serialize, Deserialize)]
pub struct MergeRecord {
    /// In uid order.
    pub inputs: Vec<Selected>,
    pub update: Digest,
    pub state_root: Option<Digest>,
}

/// Signatures of the receipt's attestation and vote, each as a [`Statement`]: a validator that told the chain
/// something else has signed the proof of it. `None` for a call that is not on the chain.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Encode, Decode, Serialize)]
pub struct Statements {
    pub attestation: Option<Signature>,
    pub vote: Option<Signature>,
}

/// What is remembered of every seat (PROT-23 to PROT-26).
#[derive(Clone, Debug, Default, PartialEq, Encode, Decode, Serialize)]
pub struct Reputations {
    /// The last window that was judged.
    pub judged: Option<Window>,
    /// In seat order, one a uid.
    pub seats: Vec<SeatReputation>,
}

#[derive(Clone, Debug, PartialEq, Encode, Decode, Serialize)]
pub struct SeatReputation {
    pub seat: SeatId,
    pub reputation: Reputation,
}

/// What is remembered of one seat.
#[derive(Clone, Debug, PartialEq, Encode, Decode, Serialize)]
pub struct Reputation {
    pub mu: ExactF64,
    pub sigma: ExactF64,
    /// `m`.
    pub own_data_score: ExactF64,
    /// Of `m`, from the errors of what it was made of.
    pub own_data_variance: ExactF64,
    /// Oldest first.
    pub penalties: Vec<Penalty>,
    pub first_seen: Window,
    pub last_evaluated: Option<Window>,
    /// Windows of valid work since then.
    pub unmeasured: u32,
    pub evaluations: u32,
    pub faults: u32,
    /// `t/n`.
    pub share: ExactF64,
    /// What was earned in the last windows, oldest first, an epoch's worth at most.
    pub recent: Vec<WindowScore>,
}

/// What one window earned (PROT-25).
#[derive(Clone, Copy, Debug, PartialEq, Encode, Decode, Serialize)]
pub struct WindowScore {
    /// Before penalties.
    pub score: ExactF64,
    /// What penalties multiply it by.
    pub penalty: ExactF64,
}

/// Something that lowers a seat's score for a while (PROT-25).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode, Serialize, Deserialize)]
pub struct Penalty {
    pub reason: PenaltyReason,
    pub since: Window,
    /// Evaluations until it is gone.
    pub remaining: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PenaltyReason {
    /// The contribution made the model significantly worse.
    Harm,
    /// It was a near-duplicate of another, and showed nothing of its seat's own data.
    Duplicate,
    /// The very bytes that were committed to are no contribution.
    Fault,
}

/// What the window's work was worth, and why.
#[derive(Clone, Debug, PartialEq, Encode, Decode, Serialize)]
pub struct Judgement {
    /// Contributions that the validator held, in uid order: the scales of all of them come from the norms of these
    /// (PROT-17).
    pub held: Vec<Uid>,
    /// Contributions that it has time to measure in a window, at most.
    pub budget: u32,
    /// Whom it set out to measure, in this order (PROT-28). Who is not measured was not reached.
    pub order: Vec<Uid>,
    /// The common sequences, and the model's loss on each (PROT-22).
    pub common: Vec<Baseline>,
    /// Every miner's seat of the window, in seat order.
    pub seats: Vec<SeatJudgement>,
    pub after: Reputations,
    /// What it would post now: in uid order, the highest 65535 (PROT-26).
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

/// What one seat did in the window.
#[derive(Clone, Debug, PartialEq, Encode, Decode, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Observed {
    /// Committed nothing.
    Absent,
    /// Committed, and neither the active set nor this validator can say what.
    Unobserved,
    /// Two thirds of the stake say that it is faulty.
    Faulty {
        /// That of the fault which this validator saw itself, as in [`ReportedFault::label`]; or that others did.
        label: String,
        detail: String,
    },
    /// A contribution that counts.
    Valid {
        /// `t`.
        trained: u32,
        /// `None` where its turn did not come.
        measured: Option<Measured>,
        /// The contribution that this one is most like, where that is more than independent work can be.
        near_duplicate: Option<NearDuplicate>,
    },
    /// Committed, and this validator did not fetch it: it was not its turn among the seats without a consensus weight
    /// (PROT-13).
    Unfetched,
}

/// A near-duplicate (PROT-25).
#[derive(Clone, Copy, Debug, PartialEq, Encode, Decode, Serialize)]
pub struct NearDuplicate {
    pub uid: Uid,
    /// The window judged, or one before it.
    pub window: Window,
    /// Of its bytes.
    pub digest: Digest,
    /// The cosine of the two.
    pub alike: ExactF64,
}

/// Losses before and after the contribution, in nats per token.
#[derive(Clone, Debug, PartialEq, Encode, Decode, Serialize)]
pub struct Measured {
    pub own: Vec<LossPair>,
    /// After it, on each of the common sequences.
    pub common_after: Vec<ExactF64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Encode, Decode, Serialize)]
pub struct LossPair {
    pub sequence: u64,
    pub before: ExactF64,
    pub after: ExactF64,
}

/// What follows from it for the seat, to be read by people. The exact record is in [`Judgement::after`].
#[derive(Clone, Copy, Debug, PartialEq, Encode, Decode, Serialize)]
pub struct Outcome {
    /// Relative gain on the seat's own sequences (PROT-22).
    pub own_gain: Option<ExactF64>,
    /// Relative gain on the common sequences.
    pub common_gain: Option<ExactF64>,
    /// Its standard error.
    pub common_error: Option<ExactF64>,
    /// `None` where there was too little to test (PROT-24).
    pub own_data: Option<OwnData>,
    /// Place in the window's match, from 1 (PROT-23).
    pub rank: Option<u32>,
    /// `μ − 3σ` after the window.
    pub ordinal: ExactF64,
    /// The ordinal of the window's field.
    pub median_rating: ExactF64,
    /// From 0 to 1: what the one is worth beside the other (PROT-25).
    pub rating_factor: ExactF64,
    /// This window's (PROT-25).
    pub score: ExactF64,
    /// From an epoch's worth of scores (PROT-26).
    pub weight: u16,
}

/// The own-data test (PROT-24).
#[derive(Clone, Copy, Debug, PartialEq, Encode, Decode, Serialize)]
pub struct OwnData {
    pub gap: ExactF64,
    pub error: ExactF64,
    /// What counted as one whole gap in this window.
    pub scale: ExactF64,
    /// From −1 to 1.
    pub outcome: ExactF64,
}

/// A receipt that was signed, as it is published.
#[derive(Clone, Debug, PartialEq)]
pub struct SignedReceipt {
    /// Of the whole object: what is anchored.
    pub digest: Digest,
    pub bytes: Vec<u8>,
}

/// Why bytes are no receipt.
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

/// The first window in which the receipt of `window` is public: the one after the epoch in which validators may have to
/// show what they measured in it (PROT-27, PROT-30). Then the answers are drawn, and the weight votes that the receipt
/// discloses are bound.
pub fn public_from(window: Window, params: &RunParams) -> Window {
    Window(params.probe_epoch(window).saturating_add(1).saturating_mul(params.epoch_windows))
}

/// The first window whose receipt is not public yet when `now` is open. The inverse of [`public_from`].
pub fn first_sealed(now: Window, params: &RunParams) -> Window {
    Window(params.probe_windows(now.epoch(params.epoch_windows)).start)
}

impl Attestation {
    /// What the chain is told of it, in uid order.
    pub fn verdicts(&self) -> Vec<(Uid, Verdict)> {
        let valid = self.valid.iter().map(|uid| (*uid, Verdict::Valid));
        let faulty = self.faulty.iter().map(|said| (said.uid, Verdict::Faulty));
        let mut verdicts: Vec<_> = valid.chain(faulty).collect();
        verdicts.sort_unstable_by_key(|(uid, _)| *uid);
        verdicts
    }
}

impl Receipt {
    /// The exact bytes to publish, signed with the validator's hotkey. The same receipt has the same bytes whenever it
    /// is sealed.
    pub fn sign(&self, signer: &Signer) -> SignedReceipt {
        let body = self.encode();
        let signature = signer.sign(Domain::Receipt, &Digest::of(&body).0);
        let bytes = [&MAGIC[..], &body, &signature.0].concat();
        SignedReceipt { digest: Digest::of(&bytes), bytes }
    }

    /// Reads a stranger's bytes: bounded by `params`, one spelling, in order, and signed by the hotkey that they name
    /// for the chain of this genesis. Whether that key holds the seat, and whether anything in it is true, is another
    /// question.
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

    /// What the chain was told, as the receipt has it: in uid order.
    pub fn verdicts(&self) -> Vec<(Uid, Verdict)> {
        self.attestation.verdicts()
    }

    /// What was voted, as the receipt has it.
    pub fn vote(&self) -> Option<Vote> {
        self.merged.as_ref().map(|merged| Vote { update: merged.update, state_root: merged.state_root })
    }

    /// Signs what the receipt says of those matters that the chain has taken (PROT-21).
    pub fn sign_statements(&mut self, attestation: bool, vote: bool, signer: &Signer) {
        let sign = |statement: Statement| statement.sign(signer).signature;
        self.statements = Statements {
            attestation: attestation.then(|| sign(self.attestation_statement())),
            vote: self.vote_statement().filter(|_| vote).map(sign),
        };
    }

    /// The statements that it holds signatures under. Those are checked where the receipt is opened.
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

    /// What the validator remembers after this window.
    pub fn after(&self) -> &Reputations {
        self.judgement.as_ref().map_or(&self.before, |judgement| &judgement.after)
    }

    /// What it said of one seat's work.
    pub fn of(&self, uid: Uid) -> Option<&SeatJudgement> {
        self.judgement.as_ref()?.seats.iter().find(|judged| judged.seat.uid == uid)
    }

    /// Every bound and order that the types alone do not give.
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
    /// What is remembered of `uid`.
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

/// Ascending, none twice, and no more than there are seats.
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

/// The most bytes that a receipt of a run can have: a fetcher's cap, known before a byte is fetched (PROT-13).
pub fn largest_bytes(params: &RunParams) -> usize {
    // Two numbers of 32 bits at most, so that nothing overflows 64.
    let [sequences, epoch] = [params.evaluation_sequences, params.epoch_windows].map(u64::from);
    let [seats, penalties, text] = [SEATS_MAX, PENALTIES_MAX, TEXT_BYTES_MAX].map(|most| most as u64);
    // A compact length takes four bytes at most where what it counts takes memory at all.
    let list = |entries: u64, bytes: u64| entries * bytes + 5;
    let text = list(text, 1);
    let reputation = list(epoch, 16) + list(penalties, 9) + 3 * 8 + 8 + 17;
    let reputations = list(seats, reputation + 6) + 5;
    let seat = list(sequences, 24) + list(sequences, 8) + 2 * text + 6 + 7 + 47 + 3 * 9 + 33 + 5 + 4 * 8 + 2;
    // An attested seat is in one list; a text of a fault is two.
    let attested = list(seats, 2 * text + 2) + 10;
    let head = 2 + 4 + 4 + 6 + 32 + 32 + 37 + 32;
    let merged = list(seats, 34) + 1 + 32 + 33;
    let judged = 1 + 4 + 2 * list(seats, 2) + list(sequences, 16) + list(seats, seat) + list(seats, 4);
    let signatures = 3 * SIGNATURE_BYTES as u64 + 2;
    let bytes = MAGIC.len() as u64 + head + attested + merged + signatures + 2 * reputations + judged;
    usize::try_from(bytes).unwrap_or(usize::MAX)
}

/// `text` as a receipt may hold it: cut after [`TEXT_BYTES_MAX`] bytes, between two characters.
pub fn text(text: &str) -> String {
    text[..text.floor_char_boundary(TEXT_BYTES_MAX)].into()
}

impl ExactF64 {
    /// `number`, which is finite; what is not counts as 0, and does not come out of the gauntlet.
    pub fn of(number: f64) -> ExactF64 {
        ExactF64(if number.is_finite() { number } else { 0.0 })
    }

    pub fn get(self) -> f64 {
        self.0
    }

    /// Whether both have the same bits: other than `==`, it tells 0 from −0.
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
