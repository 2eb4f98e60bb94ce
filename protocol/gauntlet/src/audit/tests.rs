//! An honest window, and every false statement about it.

use super::*;
use crate::{
    self as gauntlet, Evidence, LossPair as Pair, Measured, Reputations as Remembering,
    form::{self, Plan},
    gathering::unweighted_max,
    probes,
};
use protocol::{
    Block, Digest, GenesisHash, Hotkey, Role, RunId, RunParams, SeatId, Window,
    assign::{self, Assignment},
    identity::Signer,
    probe::{self, Answer, Leaves},
    receipt::{
        Attestation, ExactF64, FORMAT, Judgement, MergeRecord, Observed, PreviousReceipt, ReportedFault,
        Statements,
    },
    select::Selected,
    view::{Outcome, ProbeRoot, SeatView, Selection, WindowView},
};
use std::collections::BTreeMap;

const UID: Uid = Uid(90);
const NOW: Window = Window(6);
const SALT: [u8; 32] = [8; 32];

fn params() -> RunParams {
    RunParams { evaluation_sequences: 6, sequences_per_seat: 20, epoch_windows: 2, ..RunParams::default() }
}

const GENESIS: GenesisHash = GenesisHash([1; 32]);

fn key() -> Signer {
    Signer::new(ed25519_dalek::SigningKey::from_bytes(&[9; 32]), GENESIS)
}

fn digest(of: u16) -> Digest {
    Digest::of(&of.to_le_bytes())
}

fn seat(uid: Uid, role: Role) -> SeatView {
    SeatView {
        id: SeatId { uid, registered_at: Block(0) },
        role,
        hotkey: if uid == UID { key().hotkey() } else { Hotkey([uid.0 as u8; 32]) },
        coldkey: [0; 32],
        endpoint: String::new(),
        stake: 1,
        claimable: 0,
        earned: 0,
    }
}

/// Ten seats: seat 8 committed nothing, two thirds attested seat 9 as faulty.
fn view(window: Window) -> WindowView {
    let slots: Vec<Uid> = (0..10).map(Uid).collect();
    let committed = |uid: &&Uid| uid.0 != 8;
    let valid: Vec<Uid> = (0..8).map(Uid).collect();
    WindowView {
        window,
        opening_hash: Some(digest(100)),
        deal_seed: Some(digest(100)),
        evaluation_hash: Some(digest(101)),
        cursor: 40,
        active_set: vec![(UID, 1)],
        lineage: digest(102),
        weights: vec![],
        commitments: slots.iter().filter(committed).map(|uid| (*uid, digest(uid.0))).collect(),
        salts: vec![(UID, Digest::of(&SALT))],
        attested: vec![UID],
        selection: Some(Selection {
            selected: (0..4).map(|uid| Selected { uid: Uid(uid), digest: digest(uid) }).collect(),
            valid,
            faulty: vec![Uid(9)],
        }),
        votes: vec![(UID, Vote { update: digest(103), state_root: None })],
        outcome: Some(Outcome::Merged(Vote { update: digest(103), state_root: None })),
        receipts: vec![(UID, digest(104))],
        probe_roots: Vec::new(),
        probes: Vec::new(),
        next_deal: None,
        slots,
    }
}

/// Returns a contribution's effect on the loss, the same for every validator.
fn pair(uid: Uid, sequence: u64, own: bool) -> Pair {
    let before = 3.0 + (sequence % 17) as f64 / 40.0;
    let noise = ((sequence * 31 + u64::from(uid.0) * 7) % 13) as f64 / 4000.0;
    let gain = 0.02 + f64::from(uid.0) / 1000.0 + if own { 0.01 } else { 0.0 };
    Pair::new(sequence, before, before - gain + noise)
}

fn honest() -> Facts {
    honest_with(64)
}

/// The receipt of an honest validator that measures `budget` seats per window, and an auditor's facts.
fn honest_with(budget: u32) -> Facts {
    honest_by(budget, &seed_of(NOW, Some(&SALT)))
}

fn seed_of(window: Window, salt: Option<&[u8; 32]>) -> Digest {
    assign::evaluation_seed(RunId(1), window, &digest(101), salt)
}

/// Returns the receipt of a validator that measures by `seed`.
fn honest_by(budget: u32, seed: &Digest) -> Facts {
    let (params, view) = (params(), view(NOW));
    let mut before = Remembering::default();
    // In earlier windows seats earned different reputations.
    for window in 2..6 {
        let (view, window) = (super::tests::view(Window(window)), Window(window));
        let seed = seed_of(window, Some(&SALT));
        let evidence = evidence_of(&params, &view, &[0, 1, 2, 3, 4, 5, 6], window, &seed);
        before = gauntlet::judge(&params, &before, window, &evidence).reputations;
    }
    let held: Vec<Uid> = (0..8).map(Uid).collect();
    let candidates: Vec<SeatId> = held.iter().map(|uid| seat(*uid, Role::Miner).id).collect();
    let selection = view.selection.iter();
    let probe_seed = assign::probe_seed(RunId(1), NOW, &digest(101));
    let selected =
        gauntlet::in_turn(&probe_seed, selection.flat_map(|made| &made.selected).map(|one| one.uid));
    let order = gauntlet::whom_to_evaluate(
        seed,
        NOW,
        &candidates,
        &selected,
        &before,
        budget as usize,
        params.evaluation_wait_max,
    );
    let order: Vec<Uid> = order.into_iter().map(|seat| seat.uid).collect();
    let reached: Vec<u16> = order.iter().map(|uid| uid.0).collect();
    let evidence = evidence_of(&params, &view, &reached, NOW, seed);
    let verdict = gauntlet::judge(&params, &before, NOW, &evidence);
    let plan = Plan { held: held.clone(), budget, order };
    let before = form::reputations(&before);
    let previous = PreviousReceipt { window: Window(5), digest: digest(105) };
    let fault =
        ReportedFault { uid: Uid(9), label: "undecodable".into(), detail: "it cannot be decoded".into() };
    let mut receipt = Receipt {
        format: FORMAT,
        run: RunId(1),
        window: NOW,
        validator: seat(UID, Role::Validator).id,
        hotkey: seat(UID, Role::Validator).hotkey,
        base: view.lineage,
        previous: Some(previous),
        salt: SALT,
        attestation: Attestation { valid: held, faulty: vec![fault], not_observed: vec![] },
        merged: Some(MergeRecord {
            inputs: view.selection.as_ref().unwrap().selected.clone(),
            update: digest(103),
            state_root: None,
        }),
        statements: Statements::default(),
        before: before.clone(),
        judgement: Some(form::judgement(plan, &evidence, &verdict)),
    };
    receipt.sign_statements(true, true, &key());
    let measured = evidence.iter().filter_map(|evidence| match &evidence.observed {
        gauntlet::Observed::Valid { measured: Some(measured), .. } => {
            Some((evidence.seat.uid, measured.clone()))
        }
        _ => None,
    });
    let found = view.commitments.iter().map(|(uid, _)| {
        let fault = Found::Faulty { label: "undecodable".into(), detail: "it cannot be decoded".into() };
        (*uid, if uid.0 == 9 { fault } else { Found::Valid { trained: 18 } })
    });
    Facts {
        seats: view
            .slots
            .iter()
            .map(|uid| seat(*uid, Role::Miner))
            .chain([seat(UID, Role::Validator)])
            .collect(),
        training_sequences: 5000,
        uid: UID,
        attestation: Some(receipt.verdicts()),
        earlier: Some(previous),
        kept_from: Window(0),
        remembered: Some(before),
        has_model: true,
        found: found.collect(),
        alike: BTreeMap::new(),
        measured: Some(measured.collect()),
        merged: Some(digest(103)),
        weight_vote: Some(RevealedWeights {
            epoch: 3,
            posted: verdict.weights.clone(),
            earned: vec![(NOW, verdict.weights)],
        }),
        tolerance: TOLERANCE,
        params,
        view,
        receipt,
    }
}

fn evidence_of(
    params: &RunParams,
    view: &WindowView,
    reached: &[u16],
    window: Window,
    seed: &Digest,
) -> Vec<Evidence> {
    let assignment = Assignment {
        run: RunId(1),
        window,
        deal_seed: digest(100),
        slots: &view.slots,
        cursor: view.cursor,
        sequences_per_seat: params.sequences_per_seat,
        training_sequences: 5000,
    };
    let probe_seed = assign::probe_seed(RunId(1), window, &digest(101));
    let common = assign::evaluation_sequences(&probe_seed, seed, &assignment, 6);
    let of = |uid: &Uid| {
        let observed = match uid.0 {
            8 => gauntlet::Observed::Absent,
            9 => gauntlet::Observed::Faulty {
                label: "undecodable".into(),
                detail: "it cannot be decoded".into(),
            },
            _ => {
                let own = assign::own_sequences(seed, *uid, &assignment.of(*uid).unwrap()[..18], 6);
                let measured = Measured {
                    own: own.iter().map(|sequence| pair(*uid, *sequence, true)).collect(),
                    common: common.iter().map(|sequence| pair(*uid, *sequence, false)).collect(),
                };
                let measured = reached.contains(&uid.0).then_some(measured);
                gauntlet::Observed::Valid { trained: 18, measured, near_duplicate: None }
            }
        };
        Evidence { seat: seat(*uid, Role::Miner).id, observed }
    };
    view.slots.iter().map(of).collect()
}

/// Returns the honest receipt with a false statement, which is also on the chain.
fn falsified(falsify: impl FnOnce(&mut Receipt)) -> Facts {
    let mut facts = honest();
    falsify(&mut facts.receipt);
    facts.receipt.sign_statements(true, true, &key());
    facts.attestation = Some(facts.receipt.verdicts());
    facts.view.probe_roots = vec![root_of(&facts.receipt, &facts.view)];
    facts
}

/// The root as the validator of a receipt anchors it.
fn root_of(receipt: &Receipt, view: &WindowView) -> ProbeRoot {
    let root = probes::root(receipt, selected(view), &params());
    ProbeRoot { validator: UID, root, at: NOW.next() }
}

fn selected(view: &WindowView) -> &[Selected] {
    &view.selection.as_ref().unwrap().selected
}

fn judgement(receipt: &mut Receipt) -> &mut Judgement {
    receipt.judgement.as_mut().unwrap()
}

/// Makes the receipt's conclusions follow from its falsified evidence.
fn conclude(receipt: &mut Receipt) {
    let judgement = receipt.judgement.clone().unwrap();
    let verdict = form::judged_again(&params(), receipt, &judgement);
    let evidence = form::evidence(&judgement);
    let Judgement { held, budget, order, .. } = judgement;
    receipt.judgement = Some(form::judgement(Plan { held, budget, order }, &evidence, &verdict));
}

/// Checks that the expected difference is among those found, and that each has a rule and a text.
#[track_caller]
fn found(facts: &Facts, expected: impl Fn(&Difference) -> bool) {
    let differences = audit(facts);
    assert!(differences.iter().any(expected), "not found: {differences:#?}");
    for difference in &differences {
        assert!(difference.rule().starts_with("PROT-"));
        assert!(!difference.to_string().is_empty());
        serde_json::to_value(difference).unwrap();
    }
}

#[test]
fn an_honest_validator_has_no_difference() {
    for budget in [64, 3, 1, 0] {
        let facts = honest_with(budget);
        assert_eq!(audit(&facts), []);
        assert_eq!(unchecked(&facts), []);
    }
}

#[test]
fn an_evaluation_that_ran_out_of_time_is_no_difference() {
    // It planned to measure all seats and reached the first three.
    let mut facts = honest();
    let order = judgement(&mut facts.receipt).order.clone();
    for judged in &mut judgement(&mut facts.receipt).seats {
        if let Observed::Valid { measured, .. } = &mut judged.observed
            && order.iter().position(|uid| *uid == judged.seat.uid) >= Some(3)
        {
            *measured = None;
        }
    }
    conclude(&mut facts.receipt);
    facts.weight_vote = None;
    assert_eq!(audit(&facts), []);
}

#[test]
fn an_invented_score_is_found() {
    // In the result alone.
    let facts = falsified(|receipt| judgement(receipt).seats[3].result.score = ExactF64::of(99.0));
    found(&facts, |d| matches!(d, Difference::Misjudged { uid: Some(Uid(3)), field: "result", .. }));
    // In the reputations.
    let facts = falsified(|receipt| judgement(receipt).after.seats[3].reputation.mu = ExactF64::of(60.0));
    found(&facts, |d| matches!(d, Difference::Misjudged { uid: Some(Uid(3)), field: "rating", .. }));
    // In the measurements, with conclusions that follow from them.
    let facts = falsified(|receipt| {
        if let Observed::Valid { measured: Some(measured), .. } = &mut judgement(receipt).seats[3].observed {
            for after in &mut measured.common_after {
                *after = ExactF64::of(after.get() - 0.01);
            }
        }
        conclude(receipt);
    });
    found(&facts, |d| {
        matches!(
            d,
            Difference::WrongLosses { uid: Uid(3), own: false, moment: Moment::After, sequences: 6, .. }
        )
    });
    assert_eq!(audit(&facts).iter().filter(|d| d.rule() == "PROT-22").count(), 1);
}

#[test]
fn losses_may_differ_by_the_tolerance_and_no_more() {
    let shifted = |by: f64| {
        let mut facts = honest();
        for measured in facts.measured.as_mut().unwrap().values_mut() {
            for pair in measured.own.iter_mut().chain(&mut measured.common) {
                pair.before += by;
                pair.after += by;
            }
        }
        audit(&facts)
    };
    assert_eq!(shifted(TOLERANCE * 0.5), []);
    assert!(shifted(TOLERANCE * 2.0).iter().all(|d| matches!(d, Difference::WrongLosses { .. })));
    assert!(!shifted(TOLERANCE * 2.0).is_empty());
}

#[test]
fn a_skipped_fault_is_found() {
    // It attests a faulty contribution as valid.
    let facts = falsified(|receipt| {
        receipt.attestation.faulty.clear();
        receipt.attestation.valid.push(Uid(9));
    });
    found(&facts, |d| matches!(d, Difference::SkippedFault { uid: Uid(9), .. }));
    // Two thirds attested it as faulty; the receipt counts it as unobserved.
    let facts = falsified(|receipt| {
        judgement(receipt).seats[9].observed = Observed::Unobserved;
        conclude(receipt);
    });
    found(&facts, |d| {
        matches!(d, Difference::SeenOtherwise { uid: Uid(9), said: Kind::Unobserved, is: Kind::Faulty })
    });
}

#[test]
fn an_invented_fault_is_found_unless_it_cannot_be_refuted_later() {
    let with = |label: &str| {
        falsified(|receipt| {
            receipt.attestation.valid.retain(|uid| *uid != Uid(7));
            let fault = ReportedFault { uid: Uid(7), label: label.into(), detail: String::new() };
            receipt.attestation.faulty.insert(0, fault);
        })
    };
    found(&with("bad-signature"), |d| matches!(d, Difference::InventedFault { uid: Uid(7), .. }));
    assert_eq!(audit(&with("missing")), []);
    // Judged as faulty without two thirds of the stake.
    let facts = falsified(|receipt| {
        judgement(receipt).seats[2].observed =
            Observed::Faulty { label: "late".into(), detail: String::new() };
        conclude(receipt);
    });
    found(&facts, |d| matches!(d, Difference::SeenOtherwise { uid: Uid(2), is: Kind::Valid, .. }));
    let facts = falsified(|receipt| receipt.attestation.valid.push(Uid(8)));
    found(&facts, |d| matches!(d, Difference::AttestedNothing { uid: Uid(8) }));
}

#[test]
fn a_favoured_seat_is_found() {
    // In the weight vote.
    let mut facts = honest();
    facts.weight_vote.as_mut().unwrap().posted = vec![(Uid(7), u16::MAX)];
    found(&facts, |d| matches!(d, Difference::WrongWeightVote { epoch: 3, uid: Uid(7) | Uid(6), .. }));
    // In the receipt.
    let facts = falsified(|receipt| judgement(receipt).weights = vec![(Uid(7), u16::MAX)]);
    found(&facts, |d| matches!(d, Difference::WrongWeight { said: u16::MAX, uid: Uid(7), .. }));
    // In the reputations before the window.
    let facts = falsified(|receipt| {
        receipt.before.seats[7].reputation.own_data_score = ExactF64::of(0.9);
        conclude(receipt);
    });
    found(&facts, |d| {
        matches!(d, Difference::ReputationChanged { uid: Some(Uid(7)), field: "own-data score", .. })
    });
}

#[test]
fn a_weight_vote_may_follow_from_either_of_the_last_two_receipts() {
    let mut facts = honest();
    let weight_vote = facts.weight_vote.as_mut().unwrap();
    let older = vec![(Uid(1), u16::MAX)];
    weight_vote.earned.insert(0, (Window(5), older.clone()));
    weight_vote.posted = older;
    assert_eq!(audit(&facts), []);
}

#[test]
fn a_false_merge_is_found() {
    let mut facts = honest();
    facts.merged = Some(digest(200));
    found(&facts, |d| matches!(d, Difference::WrongMerge { ours, .. } if *ours == digest(200)));
    // A minority vote.
    let mut facts = honest();
    facts.view.votes = vec![(UID, Vote { update: digest(201), state_root: None })];
    found(&facts, |d| matches!(d, Difference::WrongMerge { said, .. } if *said == digest(201)));
    found(&facts, |d| matches!(d, Difference::Dissent { .. }));
    found(&facts, |d| matches!(d, Difference::VotedOther { .. }));
    // The chain shows it without a receipt.
    let fixed = Vote { update: digest(103), state_root: None };
    let merged = WindowView { outcome: Some(Outcome::Merged(fixed)), ..facts.view.clone() };
    let (voted, fixed) = (digest(201), digest(103));
    assert_eq!(dissent(&merged, UID), Some(Difference::Dissent { voted, fixed }));
    assert_eq!(dissent(&merged, Uid(1)), None);
    assert_eq!(dissent(&WindowView { outcome: None, ..merged }, UID), None);
    let facts = falsified(|receipt| receipt.merged.as_mut().unwrap().inputs.truncate(2));
    found(&facts, |d| matches!(d, Difference::MergedOthers { .. }));
}

/// Returns the kinds of statements that prove the validator's fault.
fn proven(facts: &Facts) -> Vec<StatementKind> {
    let proofs = evidence(&facts.receipt, facts.attestation.as_deref(), facts.vote());
    assert!(proofs.iter().all(|proof| proof.verify(&facts.receipt.hotkey, &GENESIS).is_ok()));
    proofs.iter().map(|proof| proof.statement.kind).collect()
}

#[test]
fn a_receipt_that_contradicts_the_chain_is_evidence() {
    assert_eq!(proven(&honest()), []);
    // The chain has the fault as valid, and the receipt as faulty.
    let mut facts = honest();
    facts.attestation.as_mut().unwrap().last_mut().unwrap().1 = Verdict::Valid;
    let (said, taken) = (Some(Verdict::Faulty), Some(Verdict::Valid));
    found(&facts, |d| *d == Difference::AttestedOther { uid: Uid(9), said, taken });
    found(&facts, |d| matches!(d, Difference::SkippedFault { uid: Uid(9), .. }));
    assert_eq!(proven(&facts), [StatementKind::Attestation]);
    let mut facts = honest();
    facts.attestation.as_mut().unwrap().pop();
    found(&facts, |d| *d == Difference::AttestedOther { uid: Uid(9), said, taken: None });
    let mut facts = honest();
    facts.view.votes = vec![(UID, Vote { update: digest(201), state_root: None })];
    assert_eq!(proven(&facts), [StatementKind::Vote]);
    // Another state root is another vote.
    facts.view.votes[0].1 = Vote { update: digest(103), state_root: Some(digest(1)) };
    assert_eq!(proven(&facts), [StatementKind::Vote]);
    // Without a vote on the chain there is no contradiction.
    facts.view.votes.clear();
    facts.attestation = None;
    assert_eq!((proven(&facts), audit(&facts)), (vec![], vec![]));
}

#[test]
fn a_receipt_without_signed_statements_is_found() {
    let mut facts = honest();
    facts.receipt.statements.attestation = None;
    assert_eq!(audit(&facts), [Difference::NotSigned { what: "attestation" }]);
    facts.receipt.statements = Statements::default();
    facts.view.votes = vec![(UID, facts.receipt.vote().unwrap())];
    assert_eq!(audit(&facts).len(), 2);
    assert_eq!(proven(&facts), []);
    // Another key than the seat's proves nothing: it may have been the seat's at that time.
    let mut facts = honest();
    facts.seats.last_mut().unwrap().hotkey = Hotkey([1; 32]);
    assert_eq!((audit(&facts).len(), unchecked(&facts).len()), (0, 1));
}

/// The validator attested nothing in the window before, so the chain has no digest of a salt. It measures all
/// sequences, then takes of 64 salts the one that draws those on which the seat of its choice looks best.
#[test]
fn a_salt_chosen_after_the_losses_are_known_is_found() {
    let favoured = |facts: &Facts| facts.receipt.of(Uid(1)).unwrap().result.common_gain.unwrap().get();
    let receipts: Vec<Facts> = (0..64)
        .map(|try_of: u8| {
            let salt = [try_of; 32];
            let mut facts = honest_by(64, &seed_of(NOW, Some(&salt)));
            facts.receipt.salt = salt;
            facts.receipt.sign_statements(true, true, &key());
            facts.view.salts.clear();
            facts
        })
        .collect();
    let gains: Vec<f64> = receipts.iter().map(favoured).collect();
    let (mean, best) = (gains.iter().sum::<f64>() / 64.0, gains.iter().copied().fold(f64::MIN, f64::max));
    assert!(mean * 1.02 < best, "the choice pays: the best gain is {best}, the mean {mean}");
    let accepted = receipts.iter().filter(|facts| audit(facts).is_empty()).count();
    assert_eq!(accepted, 0, "of 64 salts, an audit accepts {accepted}");

    // Without a committed salt the block's hash alone is the seed, whatever salt the receipt shows.
    let mut honest = honest_by(64, &seed_of(NOW, None));
    honest.view.salts.clear();
    assert_eq!(audit(&honest), []);
}

#[test]
fn another_salt_or_other_sequences_are_found() {
    let facts = falsified(|receipt| receipt.salt = [1; 32]);
    found(&facts, |d| matches!(d, Difference::WrongSalt { .. }));
    found(&facts, |d| matches!(d, Difference::WrongSequences { uid: None }));
    let facts = falsified(|receipt| {
        if let Observed::Valid { measured: Some(measured), .. } = &mut judgement(receipt).seats[1].observed {
            measured.own[0].sequence += 1;
        }
    });
    found(&facts, |d| matches!(d, Difference::WrongSequences { uid: Some(Uid(1)) }));
    let facts = falsified(|receipt| judgement(receipt).common[2].sequence += 1);
    found(&facts, |d| matches!(d, Difference::WrongSequences { uid: None }));
    let facts = falsified(|receipt| {
        if let Observed::Valid { trained, .. } = &mut judgement(receipt).seats[1].observed {
            *trained = 20;
        }
        conclude(receipt);
    });
    found(&facts, |d| matches!(d, Difference::WrongTrained { uid: Uid(1), said: 20, declared: 18 }));
}

#[test]
fn a_wrong_choice_of_seats_to_measure_is_found() {
    let facts = falsified(|receipt| judgement(receipt).order.swap(0, 1));
    found(&facts, |d| matches!(d, Difference::WrongOrder { .. }));
    // The second seat of its list was left out, all others were measured.
    let facts = falsified(|receipt| {
        let second = judgement(receipt).order[1];
        let seat = judgement(receipt).seats.iter_mut().find(|judged| judged.seat.uid == second).unwrap();
        if let Observed::Valid { measured, .. } = &mut seat.observed {
            *measured = None;
        }
        conclude(receipt);
    });
    let second = facts.receipt.judgement.as_ref().unwrap().order[1];
    found(&facts, |d| matches!(d, Difference::PassedOver { uid } if *uid == second));
    // One seat more than its list.
    let facts = {
        let mut facts = honest_with(3);
        let all = honest();
        let out = (0..8).map(Uid).find(|uid| !judgement(&mut facts.receipt).order.contains(uid)).unwrap();
        let place = usize::from(out.0);
        judgement(&mut facts.receipt).seats[place] = all.receipt.judgement.unwrap().seats[place].clone();
        facts
    };
    found(&facts, |d| matches!(d, Difference::OutOfTurn { .. }));
}

#[test]
fn a_break_in_the_chain_of_receipts_is_found() {
    let facts = falsified(|receipt| receipt.previous = None);
    found(&facts, |d| matches!(d, Difference::OtherPrevious { said: None, .. }));
    let facts = falsified(|receipt| receipt.previous.as_mut().unwrap().window = Window(4));
    found(&facts, |d| matches!(d, Difference::OtherPrevious { .. }));
    let facts = falsified(|receipt| receipt.before.judged = Some(Window(4)));
    found(&facts, |d| matches!(d, Difference::ReputationChanged { uid: None, .. }));
    let facts = falsified(|receipt| {
        receipt.before.seats.remove(2);
    });
    found(&facts, |d| matches!(d, Difference::ReputationChanged { uid: Some(Uid(2)), field: "seat", .. }));
    // The chain cannot contradict data that it no longer keeps.
    let mut facts = honest();
    (facts.earlier, facts.kept_from) = (None, Window(6));
    assert_eq!(audit(&facts), []);
    // A missing receipt cannot be compared: it is listed as unchecked.
    facts.remembered = None;
    assert_eq!(audit(&facts), []);
    assert_eq!(unchecked(&facts).len(), 1);
}

#[test]
fn a_missing_or_invented_near_duplicate_is_found() {
    let mut facts = honest();
    facts.alike.insert((Uid(1), digest(2)), 0.97);
    found(&facts, |d| matches!(d, Difference::MissedNearDuplicate { uid: Uid(1), other: Uid(2), .. }));
    facts.alike.insert((Uid(1), digest(2)), 0.1);
    assert_eq!(audit(&facts), []);
    let near_duplicate = protocol::receipt::NearDuplicate {
        uid: Uid(2),
        window: NOW,
        digest: digest(2),
        alike: ExactF64::of(0.97),
    };
    if let Observed::Valid { near_duplicate: said, .. } = &mut judgement(&mut facts.receipt).seats[1].observed
    {
        *said = Some(near_duplicate);
    }
    found(&facts, |d| matches!(d, Difference::WrongNearDuplicate { uid: Uid(1), .. }));
}

#[test]
fn a_seat_that_others_leave_out_is_judged_by_what_the_validator_holds() {
    let mut facts = honest();
    facts.view.selection.as_mut().unwrap().valid.retain(|uid| *uid != Uid(7));
    assert_eq!(audit(&facts), []);
    // Detects a validator that follows the others in leaving it out.
    let unobserved = |receipt: &mut Receipt| {
        judgement(receipt).seats[7].observed = Observed::Unobserved;
        conclude(receipt);
    };
    found(&falsified(unobserved), |d| {
        matches!(d, Difference::SeenOtherwise { uid: Uid(7), said: Kind::Unobserved, is: Kind::Valid })
    });
}

#[test]
fn a_seat_may_be_left_unfetched_only_without_a_weight_and_in_a_crowd() {
    let unfetched = |mut facts: Facts| {
        let judged = facts.receipt.judgement.as_mut().unwrap();
        judged.held.retain(|uid| *uid != Uid(7));
        judged.order.retain(|uid| *uid != Uid(7));
        judged.seats[7].observed = Observed::Unfetched;
        let is_said = |d: &Difference| {
            matches!(d, Difference::SeenOtherwise { uid: Uid(7), said: Kind::Unfetched, .. })
        };
        audit(&facts).iter().any(is_said)
    };
    assert!(unfetched(honest()), "ten seats are fewer than are fetched");
    let mut crowded = honest();
    crowded.view.commitments.extend((200..240).map(|uid| (Uid(uid), digest(uid))));
    assert!(!unfetched(crowded.clone()));
    crowded.view.weights = vec![(Uid(7), 1)];
    assert!(unfetched(crowded), "a seat with a weight is always fetched");
}

#[test]
fn faulty_bytes_that_are_judged_without_an_attestation_are_found() {
    let mut facts = falsified(|receipt| receipt.attestation.valid.retain(|uid| *uid != Uid(7)));
    facts.view.selection.as_mut().unwrap().valid.retain(|uid| *uid != Uid(7));
    assert_eq!(audit(&facts), []);
    let fault = Found::Faulty { label: "undecodable".into(), detail: "it cannot be decoded".into() };
    facts.found.insert(Uid(7), fault);
    found(&facts, |d| matches!(d, Difference::SkippedFault { uid: Uid(7), .. }));
}

#[test]
fn a_missing_or_added_seat_is_found() {
    let facts = falsified(|receipt| {
        judgement(receipt).seats.remove(4);
    });
    found(&facts, |d| matches!(d, Difference::SeatLeftOut { uid: Uid(4) }));
    let facts = falsified(|receipt| {
        let mut more = judgement(receipt).seats[8].clone();
        more.seat.uid = Uid(50);
        judgement(receipt).seats.push(more);
    });
    found(&facts, |d| matches!(d, Difference::SeatPutIn { uid: Uid(50) }));
    let facts = falsified(|receipt| judgement(receipt).seats[4].seat.registered_at = Block(77));
    found(&facts, |d| matches!(d, Difference::OtherHolder { uid: Uid(4), .. }));
}

#[test]
fn a_receipt_for_another_window_or_seat_is_found() {
    found(&falsified(|receipt| receipt.window = Window(7)), |d| {
        matches!(d, Difference::OtherSubject { what: "window", .. })
    });
    found(&falsified(|receipt| receipt.validator.uid = Uid(91)), |d| {
        matches!(d, Difference::OtherSubject { what: "seat", .. })
    });
    found(&falsified(|receipt| receipt.base = digest(0)), |d| matches!(d, Difference::WrongBase { .. }));
    let mut facts = honest();
    facts.view.outcome = Some(Outcome::Void(protocol::view::VoidReason::NoAgreement));
    found(&facts, |d| matches!(d, Difference::JudgedVoid));
    // A validator that merged and did not vote has vetoed the model.
    facts.view.votes.retain(|(uid, _)| *uid != UID);
    assert!(!audit(&facts).contains(&Difference::JudgedVoid));
}

#[test]
fn missing_facts_are_listed_and_are_no_difference() {
    let mut facts = honest();
    (facts.measured, facts.merged, facts.remembered, facts.weight_vote) = (None, None, None, None);
    facts.found.values_mut().for_each(|found| *found = Found::Gone);
    assert_eq!(audit(&facts), []);
    assert_eq!(unchecked(&facts).len(), 3);
    assert!(unchecked(&facts).iter().all(|one| !one.what.is_empty() && !one.to_do.is_empty()));
}

#[test]
fn an_audit_fetches_no_more_than_a_window_costs_a_validator() {
    let mut facts = honest();
    let fetched = |facts: &Facts| to_fetch(&facts.view, &facts.receipt, &facts.params);
    let honest = named(&facts.view, &facts.receipt).collect();
    assert!(fetched(&facts).is_superset(&honest), "all that an honest receipt names is fetched");
    let before = unchecked(&facts);
    // A receipt that calls each of a crowd of 400 commitments valid.
    let crowd: Vec<Uid> = (1000..1400).map(Uid).collect();
    facts.view.commitments.extend(crowd.iter().map(|uid| (*uid, digest(uid.0))));
    facts.receipt.attestation.valid.extend(&crowd);
    let bounded = fetched(&facts);
    assert!(selected(&facts.view).iter().all(|one| bounded.contains(&one.uid)));
    let weighted = facts.view.commitments.iter().filter(|(uid, _)| 0 < facts.view.weight_of(*uid)).count();
    let most = selected(&facts.view).len() + weighted + unweighted_max(&facts.params);
    assert!(bounded.len() <= most && most < crowd.len(), "{} of {most}", bounded.len());
    facts.found = bounded.into_iter().map(|uid| (uid, Found::Valid { trained: 18 })).collect();
    assert_eq!(unchecked(&facts).len(), before.len() + 1, "the rest is reported as not checked");
}

#[test]
fn a_root_that_does_not_follow_from_the_receipt_is_a_difference() {
    let mut facts = honest();
    facts.view.probe_roots = vec![root_of(&facts.receipt, &facts.view)];
    assert_eq!(audit(&facts), []);
    let anchored = digest(77);
    facts.view.probe_roots[0].root = anchored;
    found(&facts, |d| matches!(d, Difference::OtherProbeRoot { anchored: other, .. } if *other == anchored));
    // Another validator's root does not matter.
    facts.view.probe_roots[0].validator = Uid(91);
    assert_eq!(audit(&facts), []);
}

#[test]
fn an_answer_belongs_to_the_anchored_root_and_that_of_an_unmeasured_seat_has_no_losses() {
    let Facts { receipt, view, params, .. } = honest_with(3);
    let (root, selected) = (probes::root(&receipt, selected(&view), &params), selected(&view));
    let leaves = Leaves { run: RunId(1), window: NOW, validator: receipt.validator };
    let order = &receipt.judgement.as_ref().unwrap().order;
    let mut answered = 0;
    for (place, one) in selected.iter().enumerate() {
        let Answer { losses, proof } = probes::answer(&receipt, selected, one.uid, &params).unwrap();
        assert_eq!(losses.is_some(), order.contains(&one.uid), "uid {}", one.uid);
        let leaf = leaves.leaf(one.uid, losses.as_deref());
        assert_eq!(probe::verify(&root, selected.len(), place, leaf, &proof), Ok(()));
        let Some(losses) = losses else { continue };
        answered += 1;
        // A quarter of six sequences, rounded up.
        assert_eq!(losses.len(), 2);
        let wrong: Vec<u32> = losses.iter().map(|loss| loss + 1).collect();
        let leaf = leaves.leaf(one.uid, Some(&wrong));
        assert!(probe::verify(&root, selected.len(), place, leaf, &proof).is_err());
    }
    assert!(0 < answered && answered < selected.len());
    assert_eq!(probes::answer(&receipt, selected, Uid(7), &params), None, "it is not selected");
}

#[test]
fn a_validator_without_every_selected_contribution_shows_no_losses_of_the_window() {
    let Facts { mut receipt, view, params, .. } = honest();
    let selected = selected(&view);
    let losses = |receipt: &Receipt| probes::answer(receipt, selected, Uid(0), &params).unwrap().losses;
    assert!(losses(&receipt).is_some());
    receipt.judgement.as_mut().unwrap().held.retain(|uid| *uid != Uid(1));
    assert_eq!(losses(&receipt), None);
}
