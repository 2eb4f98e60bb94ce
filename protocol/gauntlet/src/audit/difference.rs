//! Differences that an audit can find, each with the rule that it breaks and a text for the user.

use protocol::{
    Block, Digest, Uid,
    receipt::{Observed, PreviousReceipt},
    view::Verdict,
};
use serde::Serialize;

/// A difference between a validator's receipt and the facts. `said` is the receipt's value.
#[derive(Clone, Debug, PartialEq, Serialize, thiserror::Error)]
#[serde(rename_all = "kebab-case")]
pub enum Difference {
    #[error("the receipt is for {what} {said}, and was anchored for {what} {anchored}")]
    OtherSubject { what: &'static str, said: u32, anchored: u32 },
    #[error("the measured model has lineage {said}; the window's is {chain}")]
    WrongBase { said: Digest, chain: Digest },
    #[error("the revealed salt has digest {revealed}; the committed digest is {committed}")]
    WrongSalt { revealed: Digest, committed: Digest },
    #[error("the receipt names {} as its predecessor; the chain has {}", previous(.said), previous(.chain))]
    OtherPrevious { said: Option<PreviousReceipt>, chain: Option<PreviousReceipt> },
    #[error("its measurements have the root {ours}; the root on the chain is {anchored}")]
    OtherProbeRoot { anchored: Digest, ours: Digest },
    #[error("the reputation{} changed between two receipts: {field} {was}, then {is}", of_uid(.uid))]
    ReputationChanged { uid: Option<Uid>, field: &'static str, was: String, is: String },
    #[error("the receipt attests uid {uid} as {}; the chain has {}", verdict(.said), verdict(.taken))]
    AttestedOther { uid: Uid, said: Option<Verdict>, taken: Option<Verdict> },
    #[error("the receipt does not sign the {what} on the chain")]
    NotSigned { what: &'static str },
    #[error("uid {uid} was attested although it committed nothing")]
    AttestedNothing { uid: Uid },
    #[error("uid {uid} was attested or judged as valid; its contribution is faulty ({label}): {detail}")]
    SkippedFault { uid: Uid, label: String, detail: String },
    #[error("uid {uid} was attested as faulty ({label}); its contribution is valid")]
    InventedFault { uid: Uid, label: String },
    #[error("the receipt merges {}; the chain selected {}", uids(.said), uids(.selected))]
    MergedOthers { said: Vec<Uid>, selected: Vec<Uid> },
    #[error("the receipt's update is {said}; the vote is for {voted}")]
    VotedOther { said: Digest, voted: Digest },
    #[error("the update is {said}; the selected contributions merge to {ours}")]
    WrongMerge { said: Digest, ours: Digest },
    #[error("the vote is for update {voted}; two thirds finalised {fixed}")]
    Dissent { voted: Digest, fixed: Digest },
    #[error("a void window was judged")]
    JudgedVoid,
    #[error("uid {uid} was in the window and is not judged")]
    SeatLeftOut { uid: Uid },
    #[error("uid {uid} was not in the window and is judged")]
    SeatPutIn { uid: Uid },
    #[error("uid {uid} is judged as registered at block {}; its holder registered at block {}", .said.0, .chain.0)]
    OtherHolder { uid: Uid, said: Block, chain: Block },
    #[error("uid {uid} is judged as {said}; by chain and attestation it is {is}")]
    SeenOtherwise { uid: Uid, said: Kind, is: Kind },
    /// `declared` is the number of sequences that the seat declared.
    #[error("uid {uid} is judged for {said} sequences; it declared {declared}")]
    WrongTrained { uid: Uid, said: u32, declared: u32 },
    #[error("the receipt's measuring order is {}; the draw gives {}", uids(.said), uids(.due))]
    WrongOrder { said: Vec<Uid>, due: Vec<Uid> },
    #[error("uid {uid} was skipped although seats after it were measured")]
    PassedOver { uid: Uid },
    #[error("uid {uid} was measured although it was not due")]
    OutOfTurn { uid: Uid },
    /// `uid` is `None` for the common sequences.
    #[error("{}", match .uid {
        Some(uid) => format!("uid {uid} was not measured on the sequences that were drawn for it"),
        None => "the common sequences are not those that were drawn".to_owned(),
    })]
    WrongSequences { uid: Option<Uid> },
    /// Losses in nats per token, on `sequences` sequences; `said` and `ours` are those of `worst`.
    #[error(
        "losses {moment} the contribution of uid {uid} differ on {sequences} {} sequences, most on {worst}: \
         reported {said}, repeated {ours}",
        if *.own { "own" } else { "common" }
    )]
    WrongLosses { uid: Uid, own: bool, moment: Moment, sequences: usize, worst: u64, said: f64, ours: f64 },
    #[error("the similarity of uid {uid} and uid {other} is {ours}, reported {said}")]
    WrongNearDuplicate { uid: Uid, other: Uid, said: f64, ours: f64 },
    #[error("uid {uid} is a near-duplicate of uid {other} (similarity {alike}) and not reported")]
    MissedNearDuplicate { uid: Uid, other: Uid, alike: f64 },
    #[error(
        "the conclusion{} does not follow from the evidence: {field} is {ours}, reported {said}",
        of_uid(.uid)
    )]
    Misjudged { uid: Option<Uid>, field: &'static str, said: String, ours: String },
    #[error("the scores give uid {uid} a weight of {ours}, reported {said}")]
    WrongWeight { uid: Uid, said: u16, ours: u16 },
    #[error(
        "for epoch {epoch} the weight of uid {uid} is {posted}, {:.1} % of all; its scores give {earned}, {:.1} %",
        .posted_share * 100.0, .earned_share * 100.0
    )]
    WrongWeightVote { epoch: u32, uid: Uid, posted: u16, earned: u16, posted_share: f64, earned_share: f64 },
}

/// Time of a loss: before or after a contribution is applied.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, thiserror::Error)]
#[serde(rename_all = "kebab-case")]
pub enum Moment {
    #[error("before")]
    Before,
    #[error("after")]
    After,
}

/// The observation of a seat.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, thiserror::Error)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    #[error("absent")]
    Absent,
    #[error("not observed")]
    Unobserved,
    #[error("not fetched")]
    Unfetched,
    #[error("faulty")]
    Faulty,
    #[error("valid")]
    Valid,
}

impl Kind {
    pub fn of(observed: &Observed) -> Kind {
        match observed {
            Observed::Absent => Kind::Absent,
            Observed::Unobserved => Kind::Unobserved,
            Observed::Unfetched => Kind::Unfetched,
            Observed::Faulty { .. } => Kind::Faulty,
            Observed::Valid { .. } => Kind::Valid,
        }
    }
}

impl Difference {
    /// Returns the protocol rule that the difference breaks.
    pub fn rule(&self) -> &'static str {
        use Difference::*;
        match self {
            OtherSubject { .. } | OtherPrevious { .. } | OtherProbeRoot { .. } => "PROT-27",
            WrongSalt { .. } => "PROT-2",
            AttestedOther { .. } | NotSigned { .. } | VotedOther { .. } => "PROT-21",
            WrongTrained { .. } => "PROT-6",
            AttestedNothing { .. }
            | SkippedFault { .. }
            | InventedFault { .. }
            | SeenOtherwise { .. }
            | SeatLeftOut { .. }
            | SeatPutIn { .. }
            | OtherHolder { .. } => "PROT-14",
            MergedOthers { .. } => "PROT-16",
            WrongMerge { .. } => "PROT-17",
            WrongBase { .. } | Dissent { .. } | JudgedVoid => "PROT-19",
            WrongSequences { .. } | WrongLosses { .. } => "PROT-22",
            ReputationChanged { .. }
            | Misjudged { .. }
            | WrongNearDuplicate { .. }
            | MissedNearDuplicate { .. } => "PROT-25",
            WrongWeight { .. } | WrongWeightVote { .. } => "PROT-26",
            WrongOrder { .. } | PassedOver { .. } | OutOfTurn { .. } => "PROT-28",
        }
    }
}

fn previous(of: &Option<PreviousReceipt>) -> String {
    of.map_or("none".to_owned(), |of| format!("{} of window {}", of.digest, of.window.0))
}

fn verdict(of: &Option<Verdict>) -> &'static str {
    match of {
        Some(Verdict::Valid) => "valid",
        Some(Verdict::Faulty) => "faulty",
        None => "nothing",
    }
}

/// Returns " of uid 3", or an empty text.
fn of_uid(uid: &Option<Uid>) -> String {
    uid.map_or_else(String::new, |uid| format!(" of uid {uid}"))
}

fn uids(list: &[Uid]) -> String {
    if list.is_empty() {
        return "none".to_owned();
    }
    let list: Vec<String> = list.iter().map(Uid::to_string).collect();
    format!("uid {}", list.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use expect_test::expect;
    use protocol::Window;

    /// Returns one of each. A difference that is missing here does not compile.
    fn every_difference() -> Vec<Difference> {
        let (uid, digest) = (Uid(3), |byte| Digest([byte; 32]));
        let previous = |window, byte| Some(PreviousReceipt { window: Window(window), digest: digest(byte) });
        let all = vec![
            Difference::OtherSubject { what: "window", said: 7, anchored: 6 },
            Difference::WrongBase { said: digest(1), chain: digest(2) },
            Difference::WrongSalt { revealed: digest(1), committed: digest(2) },
            Difference::OtherPrevious { said: previous(4, 1), chain: None },
            Difference::OtherProbeRoot { anchored: digest(1), ours: digest(2) },
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
                | Difference::OtherProbeRoot { .. }
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
            PROT-2: the revealed salt has digest 0101…; the committed digest is 0202…
            PROT-27: the receipt names 0101… of window 4 as its predecessor; the chain has none
            PROT-27: its measurements have the root 0202…; the root on the chain is 0101…
            PROT-25: the reputation of uid 3 changed between two receipts: rating 25.0, then 60.0
            PROT-25: the reputation changed between two receipts: last window judged none, then 5
            PROT-21: the receipt attests uid 3 as faulty; the chain has valid
            PROT-21: the receipt does not sign the attestation on the chain
            PROT-14: uid 3 was attested although it committed nothing
            PROT-14: uid 3 was attested or judged as valid; its contribution is faulty (undecodable): a bad density
            PROT-14: uid 3 was attested as faulty (bad-signature); its contribution is valid
            PROT-16: the receipt merges uid 1, 2; the chain selected none
            PROT-21: the receipt's update is 0101…; the vote is for 0202…
            PROT-17: the update is 0101…; the selected contributions merge to 0202…
            PROT-19: the vote is for update 0101…; two thirds finalised 0202…
            PROT-19: a void window was judged
            PROT-14: uid 3 was in the window and is not judged
            PROT-14: uid 3 was not in the window and is judged
            PROT-14: uid 3 is judged as registered at block 10; its holder registered at block 20
            PROT-14: uid 3 is judged as not observed; by chain and attestation it is faulty
            PROT-6: uid 3 is judged for 20 sequences; it declared 18
            PROT-28: the receipt's measuring order is uid 2, 1; the draw gives uid 1, 2
            PROT-28: uid 3 was skipped although seats after it were measured
            PROT-28: uid 3 was measured although it was not due
            PROT-22: uid 3 was not measured on the sequences that were drawn for it
            PROT-22: the common sequences are not those that were drawn
            PROT-22: losses after the contribution of uid 3 differ on 6 own sequences, most on 41: reported 2.5, repeated 2.75
            PROT-25: the similarity of uid 3 and uid 4 is 0.1, reported 0.97
            PROT-25: uid 3 is a near-duplicate of uid 4 (similarity 0.97) and not reported
            PROT-25: the conclusion of uid 3 does not follow from the evidence: rating is 25.0, reported 60.0
            PROT-26: the scores give uid 3 a weight of 100, reported 65535
            PROT-26: for epoch 2 the weight of uid 3 is 65535, 50.0 % of all; its scores give 100, 1.0 %
        "#]].assert_eq(&text);
    }

    /// Scripts read this format.
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
            {"other-probe-root":{"anchored":"0101…","ours":"0202…"}}
            {"reputation-changed":{"uid":3,"field":"rating","was":"25.0","is":"60.0"}}
            {"reputation-changed":{"uid":null,"field":"last window judged","was":"none","is":"5"}}
            {"attested-other":{"uid":3,"said":"faulty","taken":"valid"}}
            {"not-signed":{"what":"attestation"}}
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
            {"wrong-near-duplicate":{"uid":3,"other":4,"said":0.97,"ours":0.1}}
            {"missed-near-duplicate":{"uid":3,"other":4,"alike":0.97}}
            {"misjudged":{"uid":3,"field":"rating","said":"60.0","ours":"25.0"}}
            {"wrong-weight":{"uid":3,"said":65535,"ours":100}}
            {"wrong-weight-vote":{"epoch":2,"uid":3,"posted":65535,"earned":100,"posted_share":0.5,"earned_share":0.01}}
        "#]].assert_eq(&json);
    }
}
