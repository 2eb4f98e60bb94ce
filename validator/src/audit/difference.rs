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

#[cfg(test)]
mod tests {
    use super::*;
    use expect_test::expect;
    use protocol::Window;

    /// One of each. A new difference that is not here does not compile.
    fn every_difference() -> Vec<Difference> {
        let (uid, digest) = (Uid(3), |byte| Digest([byte; 32]));
        let previous = |window, byte| Some(PreviousReceipt { window: Window(window), digest: digest(byte) });
        let all = vec![
            Difference::OtherSubject { what: "window", said: 7, anchored: 6 },
            Difference::WrongBase { said: digest(1), chain: digest(2) },
            Difference::WrongSalt { revealed: digest(1), committed: digest(2) },
            Difference::OtherPrevious { said: previous(4, 1), chain: None },
            Difference::ReputationChanged {
                uid: Some(uid),
                field: "rating",
                was: "25.0".into(),
                is: "60.0".into(),
            },
            Difference::ReputationChanged {
                uid: None,
                field: "last window judged",
                was: "none".into(),
                is: "5".into(),
            },
            Difference::AttestedOther { uid, said: Some(Verdict::Faulty), taken: Some(Verdict::Valid) },
            Difference::NotSigned { what: "attestation" },
            Difference::AttestedNothing { uid },
            Difference::SkippedFault { uid, label: "undecodable".into(), detail: "a bad density".into() },
            Difference::InventedFault { uid, label: "bad-signature".into() },
            Difference::MergedOthers { said: vec![Uid(1), Uid(2)], selected: vec![] },
            Difference::VotedOther { said: digest(1), voted: digest(2) },
            Difference::WrongMerge { said: digest(1), ours: digest(2) },
            Difference::Dissent { voted: digest(1), fixed: digest(2) },
            Difference::JudgedVoid,
            Difference::SeatLeftOut { uid },
            Difference::SeatPutIn { uid },
            Difference::OtherHolder { uid, said: Block(10), chain: Block(20) },
            Difference::SeenOtherwise { uid, said: Kind::Unobserved, is: Kind::Faulty },
            Difference::WrongTrained { uid, said: 20, declared: 18 },
            Difference::WrongOrder { said: vec![Uid(2), Uid(1)], due: vec![Uid(1), Uid(2)] },
            Difference::PassedOver { uid },
            Difference::OutOfTurn { uid },
            Difference::WrongSequences { uid: Some(uid) },
            Difference::WrongSequences { uid: None },
            Difference::WrongLosses {
                uid,
                own: true,
                moment: Moment::After,
                sequences: 6,
                worst: 41,
                said: 2.5,
                ours: 2.75,
            },
            Difference::WrongNearDuplicate { uid, other: Uid(4), said: 0.97, ours: 0.1 },
            Difference::MissedNearDuplicate { uid, other: Uid(4), alike: 0.97 },
            Difference::Misjudged {
                uid: Some(uid),
                field: "rating",
                said: "60.0".into(),
                ours: "25.0".into(),
            },
            Difference::WrongWeight { uid, said: 65535, ours: 100 },
            Difference::WrongWeightVote {
                epoch: 2,
                uid,
                posted: 65535,
                earned: 100,
                posted_share: 0.5,
                earned_share: 0.01,
            },
        ];
        for difference in &all {
            match difference {
                Difference::OtherSubject { .. }
                | Difference::WrongBase { .. }
                | Difference::WrongSalt { .. }
                | Difference::OtherPrevious { .. }
                | Difference::ReputationChanged { .. }
                | Difference::AttestedOther { .. }
                | Difference::NotSigned { .. }
                | Difference::AttestedNothing { .. }
                | Difference::SkippedFault { .. }
                | Difference::InventedFault { .. }
                | Difference::MergedOthers { .. }
                | Difference::VotedOther { .. }
                | Difference::WrongMerge { .. }
                | Difference::Dissent { .. }
                | Difference::JudgedVoid
                | Difference::SeatLeftOut { .. }
                | Difference::SeatPutIn { .. }
                | Difference::OtherHolder { .. }
                | Difference::SeenOtherwise { .. }
                | Difference::WrongTrained { .. }
                | Difference::WrongOrder { .. }
                | Difference::PassedOver { .. }
                | Difference::OutOfTurn { .. }
                | Difference::WrongSequences { .. }
                | Difference::WrongLosses { .. }
                | Difference::WrongNearDuplicate { .. }
                | Difference::MissedNearDuplicate { .. }
                | Difference::Misjudged { .. }
                | Difference::WrongWeight { .. }
                | Difference::WrongWeightVote { .. } => {}
            }
        }
        all
    }

    #[test]
    fn every_difference_has_a_rule_and_a_text() {
        let line = |difference: &Difference| format!("{}: {difference}\n", difference.rule());
        let text: String = every_difference().iter().map(line).collect();
        // Digests of one byte, shortened.
        let text = text.replace(&"01".repeat(32), "0101…").replace(&"02".repeat(32), "0202…");
        expect![[r#"
            PROT-27: the receipt is for window 7, and was anchored for window 6
            PROT-19: the measured model has lineage 0101…; the window's is 0202…
            PROT-2: the revealed salt has digest 0101…; committed was 0202…
            PROT-27: the receipt before is 0101… of window 4; on the chain it is none
            PROT-25: the reputation of uid 3 changed between two receipts: rating 25.0, then 60.0
            PROT-25: the reputation changed between two receipts: last window judged none, then 5
            PROT-21: the receipt attests uid 3 as faulty; the chain has valid
            PROT-21: the receipt does not sign the attestation on the chain
            PROT-14: uid 3 was attested, and committed nothing
            PROT-14: uid 3 was attested as valid; its contribution is faulty (undecodable): a bad density
            PROT-14: uid 3 was attested as faulty (bad-signature); its contribution is valid
            PROT-16: merged were uid 1, 2; selected were none
            PROT-21: the receipt's update is 0101…; the vote is for 0202…
            PROT-17: the update is 0101…; the selected contributions merge to 0202…
            PROT-19: the vote is for update 0101…; two thirds finalised 0202…
            PROT-19: a void window was judged
            PROT-14: uid 3 was in the window and is not judged
            PROT-14: uid 3 was not in the window and is judged
            PROT-14: uid 3 is judged as registered at block 10; its holder registered at block 20
            PROT-14: uid 3 is judged as not observed; by chain and attestation it is faulty
            PROT-6: uid 3 is judged for 20 sequences; it declared 18
            PROT-28: to be measured were uid 2, 1; the draw gives uid 1, 2
            PROT-28: uid 3 was passed over, and seats after it were measured
            PROT-28: uid 3 was measured and was not due
            PROT-22: uid 3 was measured on other own sequences than were drawn
            PROT-22: the common sequences are not those that were drawn
            PROT-22: losses after the contribution of uid 3 differ on 6 own sequences, most on 41: reported 2.5, repeated 2.75
            PROT-25: the similarity of uid 3 and uid 4 is 0.1, reported 0.97
            PROT-25: uid 3 is a near-duplicate of uid 4 (similarity 0.97) and not reported
            PROT-25: the conclusion of uid 3 does not follow from the evidence: rating is 25.0, reported 60.0
            PROT-26: the scores give uid 3 a weight of 100, reported 65535
            PROT-26: for epoch 2 the weight of uid 3 is 65535, 50.0 % of all; its scores give 100, 1.0 %
        "#]].assert_eq(&text);
    }

    /// Scripts read this.
    #[test]
    fn the_json_of_a_difference_is_stable() {
        let json: String =
            every_difference().iter().map(|one| serde_json::to_string(one).unwrap() + "\n").collect();
        let json = json.replace(&"01".repeat(32), "0101…").replace(&"02".repeat(32), "0202…");
        expect![[r#"
            {"other-subject":{"what":"window","said":7,"anchored":6}}
            {"wrong-base":{"said":"0101…","chain":"0202…"}}
            {"wrong-salt":{"revealed":"0101…","committed":"0202…"}}
            {"other-previous":{"said":{"window":4,"digest":"0101…"},"chain":null}}
            {"standing-changed":{"uid":3,"field":"rating","was":"25.0","is":"60.0"}}
            {"standing-changed":{"uid":null,"field":"last window judged","was":"none","is":"5"}}
            {"attested-other":{"uid":3,"said":"faulty","taken":"valid"}}
            {"not-stated":{"what":"attestation"}}
            {"attested-nothing":{"uid":3}}
            {"skipped-fault":{"uid":3,"label":"undecodable","detail":"a bad density"}}
            {"invented-fault":{"uid":3,"label":"bad-signature"}}
            {"merged-others":{"said":[1,2],"selected":[]}}
            {"voted-other":{"said":"0101…","voted":"0202…"}}
            {"wrong-merge":{"said":"0101…","ours":"0202…"}}
            {"dissent":{"voted":"0101…","fixed":"0202…"}}
            "judged-void"
            {"seat-left-out":{"uid":3}}
            {"seat-put-in":{"uid":3}}
            {"other-holder":{"uid":3,"said":10,"chain":20}}
            {"seen-otherwise":{"uid":3,"said":"unobserved","is":"faulty"}}
            {"wrong-trained":{"uid":3,"said":20,"declared":18}}
            {"wrong-order":{"said":[2,1],"due":[1,2]}}
            {"passed-over":{"uid":3}}
            {"out-of-turn":{"uid":3}}
            {"wrong-sequences":{"uid":3}}
            {"wrong-sequences":{"uid":null}}
            {"wrong-losses":{"uid":3,"own":true,"moment":"after","sequences":6,"worst":41,"said":2.5,"ours":2.75}}
            {"wrong-twin":{"uid":3,"other":4,"said":0.97,"ours":0.1}}
            {"twin-passed-over":{"uid":3,"other":4,"alike":0.97}}
            {"misjudged":{"uid":3,"field":"rating","said":"60.0","ours":"25.0"}}
            {"wrong-weight":{"uid":3,"said":65535,"ours":100}}
            {"wrong-ballot":{"epoch":2,"uid":3,"posted":65535,"earned":100,"posted_share":0.5,"earned_share":0.01}}
        "#]].assert_eq(&json);
    }
}
