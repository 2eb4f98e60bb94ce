//! All that the gauntlet knows of a window. Measured by `evaluate`, gathered by `serve`, judged here.

use super::{exact, near_duplicates::NearDuplicate};
use protocol::SeatId;
use serde::{Deserialize, Serialize};

/// What one seat did in the window, as far as this validator knows.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Evidence {
    pub seat: SeatId,
    pub observed: Observed,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Observed {
    /// Committed nothing: unrated, unpaid for the window, and no fault (PROT-14).
    Absent,
    /// Committed, but neither the electorate nor this validator can say what: no fault, no place and no mark; half of the last window's pay, a
    /// quarter in the next one.
    Unobserved,
    /// Two thirds of the stake say that it is faulty (PROT-14): last place in the match, unpaid for the window.
    Faulty {
        /// One word that stays the same, for counting: that of the fault which this validator saw itself
        /// ([`protocol::submission::Fault::label`]), or [`ATTESTED`].
        label: String,
        /// The same in a sentence, with its numbers.
        detail: String,
    },
    /// A contribution that counts. `measured` is `None` where its turn did not come (PROT-28).
    Valid {
        /// `t`: sequences that the seat declared to have trained on (PROT-6).
        trained: u32,
        measured: Option<Measured>,
        /// Another contribution that is more like this one than independent work can be, the most alike. It proves nothing
        /// alone: see [`near_duplicates`](super::near_duplicates).
        #[serde(rename = "twin")]
        near_duplicate: Option<NearDuplicate>,
    },
}

/// The label of a fault that two thirds of the stake saw, and this validator did not.
pub const ATTESTED: &str = "attested";

/// What a contribution, applied at the evaluation rate, does to the loss (PROT-22).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Measured {
    /// On sequences of the prefix that the seat trained on.
    pub own: Vec<LossPair>,
    /// On the common sequences, the same for all seats of the window.
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

/// Above this a loss means nothing more. What is not a number counts as this much, so that a contribution that breaks the
/// model is very bad rather than unmeasurable.
pub const LOSS_MAX: f64 = 1000.0;
/// Below this neither: a loss stays above zero, so that a gain relative to it is a number.
pub const LOSS_MIN: f64 = 1e-6;

impl LossPair {
    /// A measurement. What is not a loss from [`LOSS_MIN`] to [`LOSS_MAX`] is brought there.
    pub fn new(sequence: u64, before: f64, after: f64) -> LossPair {
        LossPair { sequence, before: bounded(before), after: bounded(after) }
    }

    pub(super) fn baseline(&self) -> f64 {
        bounded(self.before)
    }

    /// `d`: by how much the contribution lowers the loss.
    pub(super) fn difference(&self) -> f64 {
        bounded(self.before) - bounded(self.after)
    }
}

fn bounded(loss: f64) -> f64 {
    if loss.is_finite() { loss.clamp(LOSS_MIN, LOSS_MAX) } else { LOSS_MAX }
}

/// Labels of the faults that a seat's own bytes prove, and that no failing disk, network or late restart makes of honest work. The others,
/// such as bytes that never came or a model of the window before, may happen to anybody.
const PROVED: [&str; 10] = [
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
];

impl Observed {
    /// Whether the seat committed to bytes that no honest program makes.
    pub(super) fn is_proved(&self) -> bool {
        matches!(self, Observed::Faulty { label, .. } if PROVED.contains(&label.as_str()))
    }

    pub(super) fn near_duplicate(&self) -> Option<&NearDuplicate> {
        match self {
            Observed::Valid { near_duplicate, .. } => near_duplicate.as_ref(),
            Observed::Absent | Observed::Unobserved | Observed::Faulty { .. } => None,
        }
    }

    pub(super) fn measured(&self) -> Option<&Measured> {
        match self {
            Observed::Valid { measured, .. } => measured.as_ref(),
            Observed::Absent | Observed::Unobserved | Observed::Faulty { .. } => None,
        }
    }

    /// `t/n`: the share of its sequences that the seat trained on and is paid for (PROT-6); `None` where nobody knows.
    pub(super) fn trained_share(&self, sequences_per_seat: u32) -> Option<f64> {
        match self {
            Observed::Absent | Observed::Faulty { .. } => Some(0.0),
            Observed::Unobserved => None,
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
    fn a_loss_that_is_no_number_is_a_very_bad_one() {
        for broken in [f64::NAN, f64::INFINITY, 1e300] {
            assert_eq!(LossPair::new(1, 2.0, broken).difference(), 2.0 - LOSS_MAX);
        }
        assert_eq!(LossPair::new(1, 2.0, -1.0).difference(), 2.0 - LOSS_MIN);
        // Also where the evidence was not made by `new`.
        assert_eq!(LossPair { sequence: 1, before: f64::NAN, after: f64::NAN }.difference(), 0.0);
    }

    #[test]
    fn what_may_happen_to_anybody_is_a_fault_and_no_proof() {
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
    fn the_share_paid_for_is_what_was_trained() {
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
