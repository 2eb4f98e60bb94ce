//! The gauntlet's input: a validator's observations of a window's seats.

use super::{exact, near_duplicates::NearDuplicate};
use protocol::{Digest, SeatId};
use serde::{Deserialize, Serialize};

/// One seat's window, as this validator observed it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Evidence {
    pub seat: SeatId,
    pub observed: Observed,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Observed {
    /// Committed nothing: not rated, unpaid for the window, but not at fault (PROT-14).
    Absent,
    /// Committed, but this validator did not observe the bytes, and two thirds of the stake did not attest them as
    /// faulty: no fault, no rank; half of the last window's pay, a quarter in the next one.
    Unobserved,
    /// Committed, and this validator did not fetch it: more seats without a consensus weight committed than it fetches
    /// in a window (PROT-13). Unpaid for the window; nothing else changes.
    Unfetched,
    /// Two thirds of the stake attested it as faulty (PROT-14): last rank, unpaid for the window.
    Faulty {
        /// One stable word, for counting: that of the fault which this validator found itself
        /// ([`protocol::submission::Fault::label`]), or [`ATTESTED`].
        label: String,
        /// The fault in a sentence, with its numbers.
        detail: String,
    },
    /// A contribution that this validator holds and has verified, and that two thirds of the stake did not attest as
    /// faulty. `measured` is `None` if it was not measured in this window (PROT-28).
    Valid {
        /// `t`: sequences that the seat declared to have trained on (PROT-6).
        trained: u32,
        measured: Option<Measured>,
        /// The most similar contribution, if it is more similar than independent work can be. It proves nothing
        /// alone: see [`near_duplicates`](super::near_duplicates).
        near_duplicate: Option<NearDuplicate>,
    },
}

/// The seeds of a window's measurements (PROT-2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seeds {
    /// Seed of the common sequences that are the same for all validators.
    pub probe: Digest,
    /// Seed of all other sequences, with the validator's salt.
    pub own: Digest,
}

/// The label of a fault that two thirds of the stake attested, and this validator did not find.
pub const ATTESTED: &str = "attested";

/// The losses of a contribution, applied at the evaluation rate (PROT-22).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Measured {
    /// Losses on sequences of the prefix that the seat trained on.
    pub own: Vec<LossPair>,
    /// Losses on the common sequences, the same for all seats of the window.
    pub common: Vec<LossPair>,
}

/// The loss on one sequence, in nats per token: `ℓ(θ_w)`, and `ℓ(θ_w − β·Δ̂_p)`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct LossPair {
    pub sequence: u64,
    #[serde(with = "exact")]
    pub before: f64,
    #[serde(with = "exact")]
    pub after: f64,
}

/// The largest loss. NaN counts as this, so that a contribution that breaks the model is very bad and not unmeasured.
pub const LOSS_MAX: f64 = 1000.0;
/// The smallest loss: it stays above zero, so that a gain relative to it is a number.
pub const LOSS_MIN: f64 = 1e-6;

impl LossPair {
    /// Creates a measurement, clamped to [`LOSS_MIN`] and [`LOSS_MAX`].
    pub fn new(sequence: u64, before: f64, after: f64) -> LossPair {
        LossPair { sequence, before: bounded(before), after: bounded(after) }
    }

    pub(super) fn baseline(&self) -> f64 {
        bounded(self.before)
    }

    /// Returns `d`: the reduction of the loss.
    pub(super) fn difference(&self) -> f64 {
        bounded(self.before) - bounded(self.after)
    }
}

/// Clamps the loss to [`LOSS_MIN`] and [`LOSS_MAX`].
pub fn bounded(loss: f64) -> f64 {
    if loss.is_finite() { loss.clamp(LOSS_MIN, LOSS_MAX) } else { LOSS_MAX }
}

/// Labels of faults that the seat's own bytes prove. The other faults may come from a failing disk or network, or a
/// late restart.
const PROVED: [&str; 11] = [
    "malformed",
    "wrong-run",
    "wrong-window",
    "wrong-seat",
    "wrong-schema",
    "wrong-density",
    "wrong-trained",
    "bad-signature",
    "undecodable",
    "abnormal-norm",
    "no-effect",
];

impl Observed {
    /// Returns whether the seat committed to bytes that an honest program never produces.
    pub(super) fn is_proved(&self) -> bool {
        matches!(self, Observed::Faulty { label, .. } if PROVED.contains(&label.as_str()))
    }

    pub(super) fn near_duplicate(&self) -> Option<&NearDuplicate> {
        match self {
            Observed::Valid { near_duplicate, .. } => near_duplicate.as_ref(),
            Observed::Absent | Observed::Unobserved | Observed::Unfetched | Observed::Faulty { .. } => None,
        }
    }

    pub fn measured(&self) -> Option<&Measured> {
        match self {
            Observed::Valid { measured, .. } => measured.as_ref(),
            Observed::Absent | Observed::Unobserved | Observed::Unfetched | Observed::Faulty { .. } => None,
        }
    }

    /// Returns `t/n`: the share of its sequences that the seat trained on and is paid for (PROT-6); `None` if
    /// unobserved.
    pub(super) fn trained_share(&self, sequences_per_seat: u32) -> Option<f64> {
        match self {
            Observed::Absent | Observed::Faulty { .. } => Some(0.0),
            Observed::Unobserved | Observed::Unfetched => None,
            Observed::Valid { trained, .. } => {
                Some((f64::from(*trained) / f64::from(sequences_per_seat.max(1))).min(1.0))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use protocol::submission::Fault;

    #[test]
    fn a_loss_that_is_not_a_number_is_a_very_bad_one() {
        for broken in [f64::NAN, f64::INFINITY, 1e300] {
            assert_eq!(LossPair::new(1, 2.0, broken).difference(), 2.0 - LOSS_MAX);
        }
        assert_eq!(LossPair::new(1, 2.0, -1.0).difference(), 2.0 - LOSS_MIN);
        // Even if the evidence was not made by `new`.
        assert_eq!(LossPair { sequence: 1, before: f64::NAN, after: f64::NAN }.difference(), 0.0);
    }

    #[test]
    fn a_fault_that_may_be_an_accident_proves_nothing() {
        let proved = |fault: Fault| {
            Observed::Faulty { label: fault.label().into(), detail: fault.to_string() }.is_proved()
        };
        assert!(proved(Fault::Malformed("short")));
        assert!(proved(Fault::WrongSeat { got: protocol::Uid(3) }));
        assert!(proved(Fault::BadSignature));
        assert!(proved(Fault::AbnormalNorm { rms: 1e9 }));
        for accident in
            [Fault::Missing, Fault::Late, Fault::WrongDigest, Fault::WrongBase, Fault::WrongHotkey]
        {
            assert!(!proved(accident));
        }
        assert!(!Observed::Faulty { label: ATTESTED.into(), detail: String::new() }.is_proved());
        assert!(!Observed::Absent.is_proved());
    }

    #[test]
    fn the_paid_share_is_the_trained_share() {
        let valid = |trained| Observed::Valid { trained, measured: None, near_duplicate: None };
        assert_eq!(valid(3).trained_share(4), Some(0.75));
        assert_eq!(valid(9).trained_share(4), Some(1.0));
        assert_eq!(valid(0).trained_share(0), Some(0.0));
        assert_eq!(Observed::Absent.trained_share(4), Some(0.0));
        assert_eq!(
            Observed::Faulty { label: "missing".into(), detail: "nothing came".into() }.trained_share(4),
            Some(0.0)
        );
        assert_eq!(Observed::Unobserved.trained_share(4), None);
    }
}
