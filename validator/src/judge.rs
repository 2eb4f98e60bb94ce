//! Judges a measured window: converts evidence into receipt, reputations and journal entry. [`gauntlet`] decides.

use crate::{
    evaluate::{EvaluatedWindow, Measurements, Progress},
    step::{RunError, Stop, held_seat_in, wait_for_view},
    validator::Validator,
};
use daemon::{Entry, journal::SeatJudged};
use gauntlet::{
    Evidence, Observed, PenaltyReason, Reputations, evidence::ATTESTED, form, reputation::factor,
};
use protocol::{
    Block, Role, Uid,
    receipt::Judgement,
    submission::Fault,
    view::{Outcome, SeatView, WindowView},
};
use std::collections::{BTreeMap, BTreeSet};

/// Returns the gauntlet's evidence for every miner's seat of the window: the chain's finalised results, and this
/// validator's measurements (PROT-14). A contribution that this validator holds counts unless two thirds attested it
/// as faulty: a seat that other validators leave out is not starved. `faults` are those that this validator found:
/// they name faults that the chain confirms, and do not count alone. `unfetched` seats were over the limit of
/// fetches.
pub fn evidence(
    view: &WindowView,
    seats: &[SeatView],
    contributions: &BTreeMap<Uid, u32>,
    unfetched: &BTreeSet<Uid>,
    faults: &BTreeMap<Uid, Fault>,
    measured: &Measurements,
) -> Vec<Evidence> {
    let Some(selection) = &view.selection else { return Vec::new() };
    let slots: BTreeSet<Uid> = view.slots.iter().copied().collect();
    let committed: BTreeSet<Uid> = view.commitments.iter().map(|(uid, _)| *uid).collect();
    let faulty: BTreeSet<Uid> = selection.faulty.iter().copied().collect();
    let mut evidence = Vec::new();
    for seat in seats.iter().filter(|seat| seat.role == Role::Miner && slots.contains(&seat.id.uid)) {
        let uid = seat.id.uid;
        let observed = if !committed.contains(&uid) {
            Observed::Absent
        } else if faulty.contains(&uid) {
            match faults.get(&uid) {
                Some(fault) => {
                    Observed::Faulty { label: fault.label().to_owned(), detail: fault.to_string() }
                }
                None => Observed::Faulty {
                    label: ATTESTED.to_owned(),
                    detail: "two thirds of the stake attested it as faulty".to_owned(),
                },
            }
        } else {
            match contributions.get(&uid) {
                Some(trained) => {
                    let near_duplicate = measured.near_duplicates.get(&uid).copied();
                    Observed::Valid {
                        trained: *trained,
                        measured: measured.seats.get(&uid).cloned(),
                        near_duplicate,
                    }
                }
                None if unfetched.contains(&uid) => Observed::Unfetched,
                None => Observed::Unobserved,
            }
        };
        evidence.push(Evidence { seat: seat.id, observed });
    }
    evidence
}

impl Validator {
    /// Judges the evaluated window if its evaluation ends before `last_call`. Otherwise, or if the disk is full until
    /// then, it is kept for the next call.
    pub(crate) async fn judge_by(&mut self, last_call: Block) -> Result<(), RunError> {
        self.evaluation.collect(&mut self.node, &mut *self.strategy, last_call).await?;
        let Some(mut evaluated) = self.evaluation.window.take() else { return Ok(()) };
        let window = evaluated.view.window;
        let Progress::Measured(measured) = evaluated.progress else {
            tracing::debug!(window = window.0, "the evaluation continues in the next window");
            self.evaluation.window = Some(evaluated);
            return Ok(());
        };
        // With hidden votes, the window is finalised some blocks after the vote deadline.
        let over = self.node.schedule().opens_at(window.next());
        let is_over = |view: &WindowView| view.outcome.is_some();
        if let Some(view) = wait_for_view(&mut self.node, window, over, is_over).await? {
            evaluated.view = view;
        }
        evaluated.progress = Progress::Measured(measured);
        if evaluated.view.outcome.is_none() {
            tracing::debug!(window = window.0, "the window is not finalised yet");
            self.evaluation.window = Some(evaluated);
            return Ok(());
        }
        let Progress::Measured(measured) = &evaluated.progress else { return Ok(()) };
        match self.judge(&evaluated, measured, last_call).await {
            Err(Stop::Skip(skip)) => {
                tracing::warn!(window = window.0, reason = skip.reason, "not judged yet");
                self.evaluation.window = Some(evaluated);
                Ok(())
            }
            Err(Stop::Fail(error)) => Err(error),
            Ok(()) => Ok(()),
        }
    }

    /// Judges a measured window, unless it was void: no seat loses by a void window (PROT-19). A void window that this
    /// validator vetoed is judged, so that the seats that spoilt it earn no weight. Windows before it that were not
    /// measured get their receipts first. If the disk is full until `last_call`, nothing has changed, and
    /// the caller repeats it.
    #[tracing::instrument(
        name = "judge", target = "profile", level = "debug", skip_all,
        fields(
            window = evaluated.view.window.0, evaluated = measured.seats.len(),
            held_out_loss = measured.held_out.loss
        ),
        err(level = "debug")
    )]
    pub(crate) async fn judge(
        &mut self,
        evaluated: &EvaluatedWindow,
        measured: &Measurements,
        last_call: Block,
    ) -> Result<(), Stop> {
        let view = &evaluated.view;
        let window = view.window;
        for earlier in self.signed.unsigned_before(window) {
            let base = self.signed.report(earlier).map(|report| report.base).unwrap_or_default();
            self.sign_receipt(earlier, base, None, last_call).await?;
        }
        // An earlier process may have judged it.
        let is_judged = Some(window) <= self.signed.reputations().judged.max(self.signed.signed_until());
        let is_merged = matches!(view.outcome, Some(Outcome::Merged(_)));
        let counts = is_merged || self.merger.vetoed_in(window).is_some();
        let verdict = if counts && !is_judged && held_seat_in(&self.node, window) {
            Some(self.verdict(evaluated, measured).await)
        } else {
            None
        };
        let (judgement, reports) = verdict.unzip();
        self.sign_receipt(window, view.lineage, judgement, last_call).await?;
        if reports.is_some() {
            tracing::info!(
                window = window.0,
                held_out_loss = format!("{:.4}", measured.held_out.loss),
                evaluated = measured.seats.len(),
                seconds = format!("{:.1}", measured.seconds),
                "judged"
            );
        }
        self.node.journal.write(&Entry::Judged {
            window,
            held_out_loss: measured.held_out.loss,
            held_out_standard_error: measured.held_out.standard_error,
            held_out_sequences: measured.held_out.sequences,
            seats: reports.iter().flatten().map(seat_judged).collect(),
            evaluate_seconds: measured.seconds,
        });
        Ok(())
    }

    async fn verdict(
        &mut self,
        evaluated: &EvaluatedWindow,
        measured: &Measurements,
    ) -> ((Judgement, Reputations), Vec<gauntlet::SeatReport>) {
        let EvaluatedWindow { view, seats, trained, unfetched, faults, plan, .. } = evaluated;
        let evidence = evidence(view, seats, trained, unfetched, faults, measured);
        let (params, before) = (self.node.run().params, self.signed.reputations().clone());
        let window = view.window;
        let judge = move || (gauntlet::judge(&params, &before, window, &evidence), evidence);
        let (verdict, evidence) = self.node.blocking.run(judge).await;
        self.strategy.judged(view.window, &evidence, &verdict.reports);
        let judgement = form::judgement(plan.clone(), &evidence, &verdict);
        ((judgement, verdict.reputations), verdict.reports)
    }
}

fn seat_judged(report: &gauntlet::SeatReport) -> SeatJudged {
    SeatJudged {
        uid: report.seat.uid,
        common_gain: report.common_gain,
        own_gain: report.own_gain,
        rating: report.rating_after.mu,
        uncertainty: report.rating_after.sigma,
        own_data_score: report.own_data_score_after,
        score: report.score,
        weight: report.weight,
        reasons: reasons(report),
    }
}

/// Returns the reasons against a seat, as text.
fn reasons(report: &gauntlet::SeatReport) -> Vec<String> {
    let penalties = report.penalties.iter().map(|penalty| {
        let reason = match penalty.reason {
            PenaltyReason::Harm => "harm",
            PenaltyReason::Duplicate => "near-duplicate",
            PenaltyReason::Fault => "fault",
        };
        let (since, left) = (penalty.since.0, penalty.remaining);
        format!("{reason} since window {since}: times {:.2}, {left} evaluations left", factor(penalty))
    });
    let fault = match &report.observed {
        gauntlet::report::Seen::Faulty { label, detail } => Some(format!("{label}: {detail}")),
        _ => None,
    };
    fault.into_iter().chain(penalties).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use dataset::LossEstimate;
    use gauntlet::{LossPair, Measured, Sketches};
    use protocol::{
        Digest, Hotkey, RunId, RunParams, SeatId, Window,
        consensus::{ONE, ValidatorWeights, yuma},
        contribution::DecodeError,
        params::Density,
        select::Selected,
        submission::RMS_MAX,
        view::Selection,
    };

    fn seat(uid: u16) -> SeatView {
        SeatView {
            id: SeatId { uid: Uid(uid), registered_at: Block(0) },
            role: Role::Miner,
            hotkey: Hotkey([0; 32]),
            coldkey: [0; 32],
            endpoint: String::new(),
            stake: 0,
            claimable: 0,
            earned: 0,
        }
    }

    /// Returns a window in which `committed` committed, and two thirds attested `valid` and `faulty`.
    fn view(committed: &[u16], valid: &[u16], faulty: &[u16]) -> WindowView {
        let uids = |uids: &[u16]| uids.iter().copied().map(Uid).collect::<Vec<_>>();
        WindowView {
            window: Window(3),
            opening_hash: None,
            deal_seed: None,
            evaluation_hash: None,
            slots: (0..40).map(Uid).collect(),
            cursor: 0,
            active_set: Vec::new(),
            lineage: Digest::default(),
            weights: Vec::new(),
            commitments: committed.iter().map(|uid| (Uid(*uid), Digest::default())).collect(),
            salts: Vec::new(),
            attested: Vec::new(),
            selection: Some(Selection {
                selected: Vec::<Selected>::new(),
                valid: uids(valid),
                faulty: uids(faulty),
            }),
            votes: Vec::new(),
            outcome: None,
            receipts: Vec::new(),
            probe_roots: Vec::new(),
            probes: Vec::new(),
            next_deal: None,
        }
    }

    fn nothing_measured() -> Measurements {
        Measurements {
            held_out: LossEstimate::default(),
            seats: BTreeMap::new(),
            near_duplicates: BTreeMap::new(),
            sketches: Sketches::default(),
            seconds: 0.0,
        }
    }

    /// Returns one of each. A new kind of fault has to be added here, or this does not compile.
    fn every_fault() -> Vec<Fault> {
        let all = vec![
            Fault::Missing,
            Fault::Late,
            Fault::TooLarge { bytes: 9, largest: 8 },
            Fault::WrongDigest,
            Fault::Malformed("it ends inside its header"),
            Fault::WrongCodec { got: 9 },
            Fault::WrongRun { got: RunId(9) },
            Fault::WrongWindow { got: Window(9) },
            Fault::WrongSeat { got: Uid(9) },
            Fault::WrongHotkey,
            Fault::WrongBase,
            Fault::WrongSchema,
            Fault::WrongDensity { got: Density(9) },
            Fault::WrongTrained { trained: 9, assigned: 8 },
            Fault::BadSignature,
            Fault::Undecodable(DecodeError::BadDensity(9)),
            Fault::AbnormalNorm { rms: RMS_MAX * 2.0 },
            Fault::NoEffect,
        ];
        for fault in &all {
            match fault {
                Fault::Missing
                | Fault::Late
                | Fault::TooLarge { .. }
                | Fault::WrongDigest
                | Fault::Malformed(_)
                | Fault::WrongCodec { .. }
                | Fault::WrongRun { .. }
                | Fault::WrongWindow { .. }
                | Fault::WrongSeat { .. }
                | Fault::WrongHotkey
                | Fault::WrongBase
                | Fault::WrongSchema
                | Fault::WrongDensity { .. }
                | Fault::WrongTrained { .. }
                | Fault::BadSignature
                | Fault::Undecodable(_)
                | Fault::AbnormalNorm { .. }
                | Fault::NoEffect => {}
            }
        }
        all
    }

    #[test]
    fn a_fault_attested_by_two_thirds_keeps_its_label_in_the_evidence() {
        let faults: BTreeMap<Uid, Fault> = (0..).map(Uid).zip(every_fault()).collect();
        let uids: Vec<u16> = faults.keys().map(|uid| uid.0).collect();
        let seats: Vec<SeatView> = uids.iter().copied().map(seat).collect();
        let evidence = evidence(
            &view(&uids, &[], &uids),
            &seats,
            &BTreeMap::new(),
            &BTreeSet::new(),
            &faults,
            &nothing_measured(),
        );
        assert_eq!(evidence.len(), faults.len());
        let mut labels = BTreeSet::new();
        for (evidence, fault) in evidence.iter().zip(faults.values()) {
            let Observed::Faulty { label, detail } = &evidence.observed else {
                panic!("{fault} is not in the evidence")
            };
            assert_eq!((label.as_str(), detail.clone()), (fault.label(), fault.to_string()));
            labels.insert(label.clone());
        }
        assert_eq!(labels.len(), faults.len(), "two faults have one label");
    }

    #[test]
    fn a_fault_that_only_this_validator_saw_does_not_count() {
        let faults = BTreeMap::from([(Uid(1), Fault::Missing)]);
        let evidence = evidence(
            &view(&[1], &[], &[]),
            &[seat(1)],
            &BTreeMap::new(),
            &BTreeSet::new(),
            &faults,
            &nothing_measured(),
        );
        assert_eq!(evidence[0].observed, Observed::Unobserved);
    }

    #[test]
    fn a_fault_that_only_others_saw_has_the_label_attested() {
        let none = BTreeMap::new();
        let evidence = evidence(
            &view(&[1], &[], &[1]),
            &[seat(1)],
            &none,
            &BTreeSet::new(),
            &BTreeMap::new(),
            &nothing_measured(),
        );
        assert!(matches!(&evidence[0].observed, Observed::Faulty { label, .. } if label == ATTESTED));
    }

    #[test]
    fn a_contribution_not_at_hand_is_unobserved_and_a_seat_without_commitment_is_absent() {
        let held = BTreeMap::from([(Uid(2), 5)]);
        let view = view(&[1, 2], &[1, 2], &[]);
        let seats = [seat(1), seat(2), seat(3), SeatView { role: Role::Validator, ..seat(4) }];
        let evidence =
            evidence(&view, &seats, &held, &BTreeSet::new(), &BTreeMap::new(), &nothing_measured());
        let observed: Vec<_> = evidence.iter().map(|evidence| &evidence.observed).collect();
        let waiting = Observed::Valid { trained: 5, measured: None, near_duplicate: None };
        assert_eq!(observed, [&Observed::Unobserved, &waiting, &Observed::Absent]);
    }

    /// Returns the losses of honest work: it gains 1 % on common sequences and 2 % on its own, with some scatter.
    fn honest_work(uid: u16, window: u32) -> Measured {
        let pairs = |kind: u32, gain: f64| {
            (0..16u32).map(move |sequence| {
                let drawn = (u32::from(uid) * 31 + window * 17 + sequence * 7 + kind * 5) % 13;
                let scattered = gain * (1.0 + 0.02 * (f64::from(drawn) - 6.0));
                LossPair::new(sequence.into(), 3.0, 3.0 * (1.0 - scattered))
            })
        };
        Measured { own: pairs(1, 0.02).collect(), common: pairs(2, 0.01).collect() }
    }

    /// Returns the share of miner 0 of four equal ones, in parts of [`ONE`], after `windows` windows in which two
    /// thirds attested `valid` and `faulty`. Validators with 66 of 100 parts of the stake hold all four
    /// contributions; the others give miner 0 no weight.
    fn share_of_miner_0(valid: &[u16], faulty: &[u16], windows: u32) -> u64 {
        let miners = [0, 1, 2, 3];
        let params = RunParams { sequences_per_seat: 5, ..RunParams::default() };
        let held: BTreeMap<Uid, u32> = miners.iter().map(|uid| (Uid(*uid), 5)).collect();
        let mut reputations = Reputations::default();
        let mut weights = Vec::new();
        for window in 0..windows {
            let view = WindowView { window: Window(window), ..view(&miners, valid, faulty) };
            let measured = Measurements {
                seats: miners.iter().map(|uid| (Uid(*uid), honest_work(*uid, window))).collect(),
                ..nothing_measured()
            };
            let evidence =
                evidence(&view, &miners.map(seat), &held, &BTreeSet::new(), &BTreeMap::new(), &measured);
            let verdict = gauntlet::judge(&params, &reputations, view.window, &evidence);
            (reputations, weights) = (verdict.reputations, verdict.weights);
        }
        let ballot = |validator: u16, stake, weights| {
            let validator = Uid(validator);
            ValidatorWeights { validator, stake, weights, bonds: Vec::new(), earns: ONE }
        };
        let of_excluders = [1, 2, 3].map(|uid| (Uid(uid), 65535)).to_vec();
        let ballots = [ballot(10, 66, weights), ballot(11, 34, of_excluders)];
        let incentive = yuma(&ballots).expect("more than half of the stake agrees").incentive;
        incentive.iter().find(|(uid, _)| *uid == Uid(0)).map_or(0, |(_, share)| *share)
    }

    #[test]
    fn a_third_that_leaves_a_seat_out_of_its_attestations_does_not_starve_it() {
        let fair = share_of_miner_0(&[0, 1, 2, 3], &[], 20);
        let left_out = share_of_miner_0(&[1, 2, 3], &[], 20);
        assert_eq!(fair * 1000 / ONE, 250);
        assert_eq!(left_out, fair, "the third's own weights count, and not what it left out");
        assert_eq!(share_of_miner_0(&[1, 2, 3], &[0], 20), 0, "two thirds that call it faulty decide");
    }
}
