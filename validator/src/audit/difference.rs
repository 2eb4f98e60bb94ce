//! What an audit can find, each with the rule that it breaks and in plain words.

use protocol::{
    Block, Digest, Uid,
    receipt::{Observed, PreviousReceipt},
    view::Verdict,
};
use serde::Serialize;
use std::fmt;

/// One thing that a receipt, or what the validator put on the chain, says otherwise than it is.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Difference {
    /// The receipt is about something else than what it was anchored for.
    OtherSubject { what: &'static str, said: u32, anchored: u32 },
    /// It was measured against another model than the window's.
    WrongBase { said: Digest, chain: Digest },
    /// The salt is not the one that was committed to.
    WrongSalt { revealed: Digest, committed: Digest },
    /// It does not name the validator's receipt before it.
    OtherPrevious { said: Option<PreviousReceipt>, chain: Option<PreviousReceipt> },
    /// What is remembered of a seat changed between two receipts.
    #[serde(rename = "standing-changed")]
    ReputationChanged { uid: Option<Uid>, field: &'static str, was: String, is: String },
    /// The receipt says that a seat was attested otherwise than the chain was told.
    AttestedOther { uid: Uid, said: Option<Verdict>, taken: Option<Verdict> },
    /// The chain has taken an attestation or a vote that the receipt does not sign.
    NotStated { what: &'static str },
    /// A seat was attested that committed to nothing.
    AttestedNothing { uid: Uid },
    /// A faulty contribution was attested as valid.
    SkippedFault { uid: Uid, label: String, detail: String },
    /// A contribution was attested as faulty that is not.
    InventedFault { uid: Uid, label: String },
    /// Other contributions were merged than those selected.
    MergedOthers { said: Vec<Uid>, selected: Vec<Uid> },
    /// The receipt says another update than was voted.
    VotedOther { said: Digest, voted: Digest },
    /// The update is not what the selected contributions come to.
    WrongMerge { said: Digest, ours: Digest },
    /// The vote was for another update than the one that two thirds fixed.
    Dissent { voted: Digest, fixed: Digest },
    /// A void window was judged.
    JudgedVoid,
    /// A seat of the window is not judged.
    SeatLeftOut { uid: Uid },
    /// A seat is judged that was not in the window.
    SeatPutIn { uid: Uid },
    /// A seat is judged as that of another holder.
    OtherHolder { uid: Uid, said: Block, chain: Block },
    /// A seat was seen otherwise than chain and attestation say.
    SeenOtherwise { uid: Uid, said: Kind, is: Kind },
    /// It counts another number of sequences than the seat declared.
    WrongTrained { uid: Uid, said: u32, declared: u32 },
    /// It set out to measure others than those whose turn it was, or in another order.
    WrongOrder { said: Vec<Uid>, due: Vec<Uid> },
    /// A seat was passed over for others that came after it.
    PassedOver { uid: Uid },
    /// A seat was measured whose turn it was not.
    OutOfTurn { uid: Uid },
    /// It measured on other sequences than were drawn; `None` for the common ones.
    WrongSequences { uid: Option<Uid> },
    /// Losses come out otherwise.
    WrongLosses { uid: Uid, own: bool, moment: Moment, sequences: usize, worst: u64, said: f64, ours: f64 },
    /// A near-duplicate is said to be alike to another as it is not.
    WrongTwin { uid: Uid, other: Uid, said: f64, ours: f64 },
    /// A near-duplicate was not seen as one.
    TwinPassedOver { uid: Uid, other: Uid, alike: f64 },
    /// What is concluded does not follow from the evidence.
    Misjudged { uid: Option<Uid>, field: &'static str, said: String, ours: String },
    /// A weight does not follow from the scores.
    WrongWeight { uid: Uid, said: u16, ours: u16 },
    /// A weight was posted that the scores do not come to.
    WrongBallot { epoch: u32, uid: Uid, posted: u16, earned: u16, posted_share: f64, earned_share: f64 },
}

/// Before a contribution is applied, or after.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Moment {
    Before,
    After,
}

/// How a seat was seen.
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
            | Difference::NotStated { .. }
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
            | Difference::WrongTwin { .. }
            | Difference::TwinPassedOver { .. } => "PROT-25",
            Difference::WrongWeight { .. } | Difference::WrongBallot { .. } => "PROT-26",
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
                write!(f, "the receipt is about {what} {said}, and was anchored for {what} {anchored}")
            }
            Difference::WrongBase { said, chain } => {
                write!(f, "it measured against the model of lineage {said}, and the window's is {chain}")
            }
            Difference::WrongSalt { revealed, committed } => {
                write!(
                    f,
                    "the salt it reveals has digest {revealed}; before the window it committed to {committed}"
                )
            }
            Difference::OtherPrevious { said, chain } => {
                let name = |of: &Option<PreviousReceipt>| match of {
                    Some(of) => format!("that of window {}, {}", of.window.0, of.digest),
                    None => "none".to_owned(),
                };
                write!(
                    f,
                    "it names as its receipt before this one {}; on the chain it is {}",
                    name(said),
                    name(chain)
                )
            }
            Difference::ReputationChanged { uid, field, was, is } => write!(
                f,
                "between two receipts it changed what it remembers{}: {field} was {was}, and is {is}",
                Of(uid)
            ),
            Difference::AttestedOther { uid, said, taken } => write!(
                f,
                "the receipt says that it attested uid {uid} as {}; the chain was told {}",
                name(*said),
                name(*taken)
            ),
            Difference::NotStated { what } => {
                write!(f, "the receipt has no signature under its {what}, which the chain has taken")
            }
            Difference::AttestedNothing { uid } => {
                write!(f, "it attested uid {uid}, which had committed to nothing")
            }
            Difference::SkippedFault { uid, label, detail } => {
                write!(f, "it attested uid {uid} as valid, whose contribution is faulty ({label}): {detail}")
            }
            Difference::InventedFault { uid, label } => {
                write!(f, "it attested uid {uid} as faulty ({label}), whose contribution is not")
            }
            Difference::MergedOthers { said, selected } => {
                write!(f, "it merged {}; selected were {}", Uids(said), Uids(selected))
            }
            Difference::VotedOther { said, voted } => {
                write!(f, "the receipt says it merged update {said}, and it voted {voted}")
            }
            Difference::WrongMerge { said, ours } => {
                write!(f, "its update is {said}; the selected contributions come to {ours}")
            }
            Difference::Dissent { voted, fixed } => {
                write!(f, "it voted update {voted}; two thirds fixed {fixed}")
            }
            Difference::JudgedVoid => f.write_str("it judged a window that was void"),
            Difference::SeatLeftOut { uid } => write!(f, "it left out uid {uid}, which was in the window"),
            Difference::SeatPutIn { uid } => write!(f, "it judged uid {uid}, which was not in the window"),
            Difference::OtherHolder { uid, said, chain } => write!(
                f,
                "it judged uid {uid} as the seat registered at block {}; its holder registered at block {}",
                said.0, chain.0
            ),
            Difference::SeenOtherwise { uid, said, is } => {
                write!(f, "it counts uid {uid} as {said}; by the chain and its own attestation it is {is}")
            }
            Difference::WrongTrained { uid, said, declared } => {
                write!(f, "it counts {said} sequences for uid {uid}, which declared {declared}")
            }
            Difference::WrongOrder { said, due } => {
                write!(f, "it set out to measure {}; the draw gives {}", Uids(said), Uids(due))
            }
            Difference::PassedOver { uid } => {
                write!(f, "it passed over uid {uid} and measured seats that came after it")
            }
            Difference::OutOfTurn { uid } => write!(f, "it measured uid {uid}, whose turn it was not"),
            Difference::WrongSequences { uid } => match uid {
                Some(uid) => write!(f, "it measured uid {uid} on other sequences of its own than were drawn"),
                None => f.write_str("its common sequences are not those that were drawn"),
            },
            Difference::WrongLosses { uid, own, moment, sequences, worst, said, ours } => {
                let kind = if *own { "own" } else { "common" };
                let when = match moment {
                    Moment::Before => "before",
                    Moment::After => "after",
                };
                write!(
                    f,
                    "losses {when} the contribution of uid {uid} come out otherwise on {sequences} {kind} sequences, \
                     the worst on {worst}: it says {said}, it is {ours}"
                )
            }
            Difference::WrongTwin { uid, other, said, ours } => {
                write!(f, "it says that uid {uid} is alike to uid {other} by {said}, and it is by {ours}")
            }
            Difference::TwinPassedOver { uid, other, alike } => {
                write!(f, "it did not see that uid {uid} is alike to uid {other} by {alike}")
            }
            Difference::Misjudged { uid, field, said, ours } => {
                write!(
                    f,
                    "its own evidence does not come to what it concludes{}: {field} is {ours}, it says {said}",
                    Of(uid)
                )
            }
            Difference::WrongWeight { uid, said, ours } => {
                write!(f, "its scores give uid {uid} a weight of {ours}, it says {said}")
            }
            Difference::WrongBallot { epoch, uid, posted, earned, posted_share, earned_share } => write!(
                f,
                "for epoch {epoch} it posted a weight of {posted} for uid {uid}, {:.1} % of all; its scores come to {earned}, {:.1} %",
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
struct Of<'a>(&'a Option<Uid>);

impl fmt::Display for Of<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.as_ref().map_or(Ok(()), |uid| write!(f, " of uid {uid}"))
    }
}

struct Uids<'a>(&'a [Uid]);

impl fmt::Display for Uids<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() {
            return f.write_str("nobody");
        }
        let list: Vec<String> = self.0.iter().map(Uid::to_string).collect();
        write!(f, "uid {}", list.join(", "))
    }
}
