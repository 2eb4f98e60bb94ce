//! Everything that an audit can find, with the rule that it breaks and a text for the user.

use protocol::{
    Block, Digest, Uid,
    receipt::{Observed, PreviousReceipt},
    view::Verdict,
};
use serde::Serialize;
use std::fmt;

/// A difference between a validator's statement and the facts. `said` is the validator's statement.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Difference {
    /// The receipt is for another window or seat than it was anchored for.
    OtherSubject { what: &'static str, said: u32, anchored: u32 },
    /// Another model than the window's was measured.
    WrongBase { said: Digest, chain: Digest },
    /// The salt is not the committed one.
    WrongSalt { revealed: Digest, committed: Digest },
    /// It names another earlier receipt than the chain.
    OtherPrevious { said: Option<PreviousReceipt>, chain: Option<PreviousReceipt> },
    /// A seat's reputation changed between two receipts.
    #[serde(rename = "standing-changed")]
    ReputationChanged { uid: Option<Uid>, field: &'static str, was: String, is: String },
    /// The receipt's attestation of a seat is not the chain's.
    AttestedOther { uid: Uid, said: Option<Verdict>, taken: Option<Verdict> },
    /// The receipt does not sign an attestation or vote that the chain has.
    #[serde(rename = "not-stated")]
    NotSigned { what: &'static str },
    /// A seat without a commitment was attested.
    AttestedNothing { uid: Uid },
    /// A faulty contribution was attested as valid.
    SkippedFault { uid: Uid, label: String, detail: String },
    /// A valid contribution was attested as faulty.
    InventedFault { uid: Uid, label: String },
    /// Other contributions than the selected ones were merged.
    MergedOthers { said: Vec<Uid>, selected: Vec<Uid> },
    /// The receipt's update is not the one that was voted.
    VotedOther { said: Digest, voted: Digest },
    /// The update is not the merge of the selected contributions.
    WrongMerge { said: Digest, ours: Digest },
    /// The vote is for another update than the one that two thirds finalised.
    Dissent { voted: Digest, fixed: Digest },
    /// A void window was judged.
    JudgedVoid,
    /// A seat of the window is not judged.
    SeatLeftOut { uid: Uid },
    /// A judged seat was not in the window.
    SeatPutIn { uid: Uid },
    /// A seat is judged under another holder.
    OtherHolder { uid: Uid, said: Block, chain: Block },
    /// A seat's observation contradicts chain and attestation.
    SeenOtherwise { uid: Uid, said: Kind, is: Kind },
    /// The number of sequences is not the one that the seat declared.
    WrongTrained { uid: Uid, said: u32, declared: u32 },
    /// The seats to measure, or their order, are not those that were due.
    WrongOrder { said: Vec<Uid>, due: Vec<Uid> },
    /// A seat was passed over for seats after it.
    PassedOver { uid: Uid },
    /// A seat was measured that was not due.
    OutOfTurn { uid: Uid },
    /// The sequences are not those that were drawn; `None` for the common ones.
    WrongSequences { uid: Option<Uid> },
    /// The repeated losses differ.
    WrongLosses { uid: Uid, own: bool, moment: Moment, sequences: usize, worst: u64, said: f64, ours: f64 },
    /// A reported near-duplicate, or its similarity, is wrong.
    #[serde(rename = "wrong-twin")]
    WrongNearDuplicate { uid: Uid, other: Uid, said: f64, ours: f64 },
    /// A near-duplicate is not reported.
    #[serde(rename = "twin-passed-over")]
    MissedNearDuplicate { uid: Uid, other: Uid, alike: f64 },
    /// The conclusion does not follow from the evidence.
    Misjudged { uid: Option<Uid>, field: &'static str, said: String, ours: String },
    /// A weight does not follow from the scores.
    WrongWeight { uid: Uid, said: u16, ours: u16 },
    /// A weight of the weight vote does not follow from the scores.
    #[serde(rename = "wrong-ballot")]
    WrongWeightVote { epoch: u32, uid: Uid, posted: u16, earned: u16, posted_share: f64, earned_share: f64 },
}

/// Before or after a contribution is applied.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Moment {
    Before,
    After,
}

/// The observation of a seat.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    Absent,
    Unobserved,
    Faulty,
    Valid,
}

impl Kind {
    pub fn of(observed: &Observed) -> Kind {
        match observed {
            Observed::Absent => Kind::Absent,
            Observed::Unobserved => Kind::Unobserved,
            Observed::Faulty { .. } => Kind::Faulty,
            Observed::Valid { .. } => Kind::Valid,
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Kind::Absent => "absent",
            Kind::Unobserved => "not observed",
            Kind::Faulty => "faulty",
            Kind::Valid => "valid",
        })
    }
}

impl Difference {
    /// The number of the rule that is broken.
    pub fn rule(&self) -> &'static str {
        match self {
            Difference::OtherSubject { .. } | Difference::OtherPrevious { .. } => "PROT-27",
            Difference::WrongSalt { .. } => "PROT-2",
            Difference::AttestedOther { .. }
            | Difference::NotSigned { .. }
            | Difference::VotedOther { .. } => "PROT-21",
            Difference::WrongTrained { .. } => "PROT-6",
            Difference::AttestedNothing { .. }
            | Difference::SkippedFault { .. }
            | Difference::InventedFault { .. }
            | Difference::SeenOtherwise { .. }
            | Difference::SeatLeftOut { .. }
            | Difference::SeatPutIn { .. }
            | Difference::OtherHolder { .. } => "PROT-14",
            Difference::MergedOthers { .. } => "PROT-16",
            Difference::WrongMerge { .. } => "PROT-17",
            Difference::WrongBase { .. } | Difference::Dissent { .. } | Difference::JudgedVoid => "PROT-19",
            Difference::WrongSequences { .. } | Difference::WrongLosses { .. } => "PROT-22",
            Difference::ReputationChanged { .. }
            | Difference::Misjudged { .. }
            | Difference::WrongNearDuplicate { .. }
            | Difference::MissedNearDuplicate { .. } => "PROT-25",
            Difference::WrongWeight { .. } | Difference::WrongWeightVote { .. } => "PROT-26",
            Difference::WrongOrder { .. } | Difference::PassedOver { .. } | Difference::OutOfTurn { .. } => {
                "PROT-28"
            }
        }
    }
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Difference::OtherSubject { what, said, anchored } => {
                write!(f, "the receipt is for {what} {said}, and was anchored for {what} {anchored}")
            }
            Difference::WrongBase { said, chain } => {
                write!(f, "the measured model has lineage {said}; the window's is {chain}")
            }
            Difference::WrongSalt { revealed, committed } => {
                write!(f, "the revealed salt has digest {revealed}; committed was {committed}")
            }
            Difference::OtherPrevious { said, chain } => {
                let name = |of: &Option<PreviousReceipt>| match of {
                    Some(of) => format!("{} of window {}", of.digest, of.window.0),
                    None => "none".to_owned(),
                };
                write!(f, "the receipt before is {}; on the chain it is {}", name(said), name(chain))
            }
            Difference::ReputationChanged { uid, field, was, is } => {
                write!(
                    f,
                    "the reputation{} changed between two receipts: {field} {was}, then {is}",
                    OfUid(uid)
                )
            }
            Difference::AttestedOther { uid, said, taken } => {
                write!(f, "the receipt attests uid {uid} as {}; the chain has {}", name(*said), name(*taken))
            }
            Difference::NotSigned { what } => write!(f, "the receipt does not sign the {what} on the chain"),
            Difference::AttestedNothing { uid } => {
                write!(f, "uid {uid} was attested, and committed nothing")
            }
            Difference::SkippedFault { uid, label, detail } => {
                write!(f, "uid {uid} was attested as valid; its contribution is faulty ({label}): {detail}")
            }
            Difference::InventedFault { uid, label } => {
                write!(f, "uid {uid} was attested as faulty ({label}); its contribution is valid")
            }
            Difference::MergedOthers { said, selected } => {
                write!(f, "merged were {}; selected were {}", Uids(said), Uids(selected))
            }
            Difference::VotedOther { said, voted } => {
                write!(f, "the receipt's update is {said}; the vote is for {voted}")
            }
            Difference::WrongMerge { said, ours } => {
                write!(f, "the update is {said}; the selected contributions merge to {ours}")
            }
            Difference::Dissent { voted, fixed } => {
                write!(f, "the vote is for update {voted}; two thirds finalised {fixed}")
            }
            Difference::JudgedVoid => f.write_str("a void window was judged"),
            Difference::SeatLeftOut { uid } => write!(f, "uid {uid} was in the window and is not judged"),
            Difference::SeatPutIn { uid } => write!(f, "uid {uid} was not in the window and is judged"),
            Difference::OtherHolder { uid, said, chain } => write!(
                f,
                "uid {uid} is judged as registered at block {}; its holder registered at block {}",
                said.0, chain.0
            ),
            Difference::SeenOtherwise { uid, said, is } => {
                write!(f, "uid {uid} is judged as {said}; by chain and attestation it is {is}")
            }
            Difference::WrongTrained { uid, said, declared } => {
                write!(f, "uid {uid} is judged for {said} sequences; it declared {declared}")
            }
            Difference::WrongOrder { said, due } => {
                write!(f, "to be measured were {}; the draw gives {}", Uids(said), Uids(due))
            }
            Difference::PassedOver { uid } => {
                write!(f, "uid {uid} was passed over, and seats after it were measured")
            }
            Difference::OutOfTurn { uid } => write!(f, "uid {uid} was measured and was not due"),
            Difference::WrongSequences { uid } => match uid {
                Some(uid) => write!(f, "uid {uid} was measured on other own sequences than were drawn"),
                None => f.write_str("the common sequences are not those that were drawn"),
            },
            Difference::WrongLosses { uid, own, moment, sequences, worst, said, ours } => {
                let kind = if *own { "own" } else { "common" };
                let when = match moment {
                    Moment::Before => "before",
                    Moment::After => "after",
                };
                write!(
                    f,
                    "losses {when} the contribution of uid {uid} differ on {sequences} {kind} sequences, \
                     most on {worst}: reported {said}, repeated {ours}"
                )
            }
            Difference::WrongNearDuplicate { uid, other, said, ours } => {
                write!(f, "the similarity of uid {uid} and uid {other} is {ours}, reported {said}")
            }
            Difference::MissedNearDuplicate { uid, other, alike } => {
                write!(
                    f,
                    "uid {uid} is a near-duplicate of uid {other} (similarity {alike}) and not reported"
                )
            }
            Difference::Misjudged { uid, field, said, ours } => write!(
                f,
                "the conclusion{} does not follow from the evidence: {field} is {ours}, reported {said}",
                OfUid(uid)
            ),
            Difference::WrongWeight { uid, said, ours } => {
                write!(f, "the scores give uid {uid} a weight of {ours}, reported {said}")
            }
            Difference::WrongWeightVote { epoch, uid, posted, earned, posted_share, earned_share } => write!(
                f,
                "for epoch {epoch} the weight of uid {uid} is {posted}, {:.1} % of all; its scores give {earned}, {:.1} %",
                posted_share * 100.0,
                earned_share * 100.0
            ),
        }
    }
}

fn name(verdict: Option<Verdict>) -> &'static str {
    match verdict {
        Some(Verdict::Valid) => "valid",
        Some(Verdict::Faulty) => "faulty",
        None => "nothing",
    }
}

/// " of uid 3", or nothing.
struct OfUid<'a>(&'a Option<Uid>);

impl fmt::Display for OfUid<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.as_ref().map_or(Ok(()), |uid| write!(f, " of uid {uid}"))
    }
}

struct Uids<'a>(&'a [Uid]);

impl fmt::Display for Uids<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() {
            return f.write_str("none");
        }
        let list: Vec<String> = self.0.iter().map(Uid::to_string).collect();
        write!(f, "uid {}", list.join(", "))
    }
}
