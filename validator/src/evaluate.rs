//! Measures what each contribution does to the loss, on the seat's own sequences and on common ones (PROT-22).
//!
//! One model in memory: a contribution is applied to it as a sparse delta and taken back exactly. The losses without it are computed once
//! a window, of many seats at a time. Each contribution is also boiled down to a sketch, measured or not, to find those that are too
//! much alike.

use crate::gauntlet::{
    Evidence, LossPair, Measured, NearDuplicate, Observed, Sketch, Sketches, evidence::ATTESTED,
};
use dataset::{Dataset, ReadError};
use nn::{Evaluator, ModelError};
use node::{Codec, Contribution, Follower};
use protocol::{
    Role, RunParams, Uid, Window,
    assign::{self, Assignment},
    contribution::{DecodeError, Sparse},
    submission::Fault,
    view::{SeatView, WindowView},
};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Instant,
};

/// All of one window's measurements.
#[derive(Clone, Debug, PartialEq)]
pub struct Measurements {
    /// Mean loss of `θ_w` on the held-out split, nats per token. For reporting only: it never enters a score (PROT-4).
    pub held_out_loss: f64,
    /// Seats that were reached.
    pub seats: BTreeMap<Uid, Measured>,
    /// Who of all that were gathered has a near-duplicate, and which.
    pub near_duplicates: BTreeMap<Uid, NearDuplicate>,
    /// [`Job::earlier`] with this window's contributions: for the next window's job.
    pub sketches: Sketches,
    pub seconds: f64,
}

/// Seats whose losses without any contribution are computed together: enough to fill the device, and few enough that little is lost where
/// the time ends.
pub const SEATS_TOGETHER: usize = 8;

#[derive(Debug, thiserror::Error)]
pub enum EvaluateError {
    #[error("could not read the evaluation's data")]
    Data(#[from] ReadError),
    #[error("the model could not be evaluated")]
    Model(#[from] ModelError),
    #[error("the contribution of uid {uid} could be decoded when it was gathered, and cannot any more")]
    Decode { uid: Uid, source: DecodeError },
}

/// What to measure: the contributions in the order they are to be looked at, and where the data comes from.
pub struct Job {
    pub window: Window,
    pub theta: Vec<f32>,
    pub params: RunParams,
    /// Reads the contributions.
    pub codec: Arc<Codec>,
    pub contributions: BTreeMap<Uid, Contribution>,
    /// Seats to evaluate, in this order (PROT-28).
    pub order: Vec<Uid>,
    /// Each seat's sequences of this window.
    pub assigned: BTreeMap<Uid, Vec<u64>>,
    /// Common sequences, the same for all seats.
    pub common: Vec<u64>,
    pub seed: protocol::Digest,
    /// Held-out sequences to report on.
    pub held_out: u64,
    /// What earlier windows' contributions looked like; empty where nothing is known of them.
    pub earlier: Sketches,
}

impl Job {
    /// Draws the sequences: own ones from the prefix each seat trained on, common ones from what nobody was handed (PROT-22). Nothing is
    /// reported on held-out sequences, and nothing known of earlier windows, unless the job is told.
    pub fn new(
        theta: Vec<f32>,
        follower: &Follower,
        contributions: BTreeMap<Uid, Contribution>,
        order: Vec<Uid>,
        assignment: &Assignment<'_>,
        seed: protocol::Digest,
    ) -> Job {
        let (params, codec) = (follower.run.params, follower.sent.clone());
        let count = usize::try_from(params.evaluation_sequences).unwrap_or(usize::MAX);
        let common = assign::common_sequences(&seed, assignment, count);
        let assigned = order.iter().filter_map(|uid| Some((*uid, assignment.of(*uid)?))).collect();
        let (window, held_out, earlier) = (assignment.window, 0, Sketches::default());
        Job { window, theta, params, codec, contributions, order, assigned, common, seed, held_out, earlier }
    }
}

impl Job {
    /// The sequences on which a seat's own work is measured (PROT-22).
    fn own_sequences(&self, uid: Uid, held: &Contribution, assigned: &[u64]) -> Vec<u64> {
        let count = usize::try_from(self.params.evaluation_sequences).unwrap_or(usize::MAX);
        let trained = usize::try_from(held.header.trained).unwrap_or(usize::MAX);
        assign::own_sequences(&self.seed, uid, &assigned[..assigned.len().min(trained)], count)
    }
}

/// Runs the job on `evaluator`. Blocking: call it on a thread of its own.
///
/// `time_left` is asked before each contribution; once it says no, the seats not reached stay unmeasured, and have waited longer by the next
/// window (PROT-28).
pub fn measure(
    evaluator: &mut Evaluator,
    dataset: &Dataset,
    job: &Job,
    mut time_left: impl FnMut() -> bool,
) -> Result<Measurements, EvaluateError> {
    let started = Instant::now();
    evaluator.load(&job.theta)?;
    let rate = job.params.evaluation_rate();

    // The model as it is: on the held-out split, and on the common sequences.
    let held_out: Vec<u64> = (0..job.held_out.min(dataset.held_out_sequences())).collect();
    let held_out = dataset.held_out_sequences_at(&held_out)?;
    let held_out_losses = evaluator.losses(&held_out)?;
    let common = dataset.sequences(&job.common)?;
    let common_before = evaluator.losses(&common)?;

    // Scaled as the merge would scale them: a huge norm is judged by what it would do, not by its size (PROT-17).
    let norms: Vec<Vec<f64>> = job.contributions.values().map(|held| held.square_norms.clone()).collect();
    let scales = kernels::merge::clip_scales(&norms);
    let place: BTreeMap<Uid, usize> =
        job.contributions.keys().enumerate().map(|(place, uid)| (*uid, place)).collect();

    let mut sketches = job.earlier.clone();
    let mut sketched = BTreeSet::new();
    let mut seats = BTreeMap::new();
    'all: for together in job.order.chunks(SEATS_TOGETHER) {
        if !time_left() {
            break;
        }
        // Their own sequences, with the model as it is, in one go.
        let mut own = Vec::with_capacity(together.len());
        for uid in together {
            let Some((held, assigned)) = job.contributions.get(uid).zip(job.assigned.get(uid)) else {
                continue;
            };
            let sequences = job.own_sequences(*uid, held, assigned);
            own.push((*uid, held, dataset.sequences(&sequences)?, sequences));
        }
        let tokens: Vec<&[u32]> =
            own.iter().flat_map(|(_, _, tokens, _)| tokens.iter().map(|tokens| &tokens[..])).collect();
        let mut before = evaluator.losses(&tokens)?.into_iter();

        for (uid, held, tokens, sequences) in &own {
            let own_before: Vec<f64> = before.by_ref().take(tokens.len()).collect();
            if !time_left() {
                break 'all;
            }
            let Some(place) = place.get(uid) else { continue };
            // Decoded one at a time: the entries take six times the memory of the bytes.
            let update = decode(job, *uid, held)?;
            sketches.add(job.window, *uid, held.digest, Sketch::of(&update));
            sketched.insert(*uid);
            let scaled = scaled(update, |tensor| scales[tensor][*place]);
            let undo = evaluator.apply_sparse(&scaled, rate)?;
            let own_after = evaluator.losses(tokens);
            let common_after = evaluator.losses(&common);
            evaluator.undo(undo)?;
            seats.insert(
                *uid,
                Measured {
                    own: pairs(sequences, &own_before, &own_after?),
                    common: pairs(&job.common, &common_before, &common_after?),
                },
            );
        }
    }

    // Also those whose turn it was not: whoever copies them may be measured, now or in a later window.
    for (uid, held) in &job.contributions {
        if !sketched.contains(uid) {
            sketches.add(job.window, *uid, held.digest, Sketch::of(&decode(job, *uid, held)?));
        }
    }
    Ok(Measurements {
        held_out_loss: mean(&held_out_losses),
        seats,
        near_duplicates: sketches.near_duplicates(job.window),
        sketches,
        seconds: started.elapsed().as_secs_f64(),
    })
}

fn decode(job: &Job, uid: Uid, held: &Contribution) -> Result<Sparse, EvaluateError> {
    job.codec.decode(held.body()).map_err(|source| EvaluateError::Decode { uid, source })
}

/// What the gauntlet is told of every seat that committed or was expected to: what the chain fixed about it, what we measured, and nothing
/// where neither says anything (PROT-14). `faults` are those that we saw ourselves: they put a name to what the chain calls faulty, and alone
/// count for nothing.
pub fn evidence(
    view: &WindowView,
    seats: &[SeatView],
    contributions: &BTreeMap<Uid, u32>,
    faults: &BTreeMap<Uid, Fault>,
    measured: &Measurements,
) -> Vec<Evidence> {
    let Some(selection) = &view.selection else { return Vec::new() };
    let mut evidence = Vec::new();
    for seat in seats.iter().filter(|seat| seat.role == Role::Miner && view.slots.contains(&seat.id.uid)) {
        let uid = seat.id.uid;
        let observed = if !view.commitments.iter().any(|(committed, _)| *committed == uid) {
            Observed::Absent
        } else if selection.faulty.contains(&uid) {
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
            match contributions.get(&uid).filter(|_| selection.valid.contains(&uid)) {
                Some(trained) => {
                    let near_duplicate = measured.near_duplicates.get(&uid).copied();
                    Observed::Valid {
                        trained: *trained,
                        measured: measured.seats.get(&uid).cloned(),
                        near_duplicate,
                    }
                }
                None => Observed::Unobserved,
            }
        };
        evidence.push(Evidence { seat: seat.id, observed });
    }
    evidence
}

fn pairs(sequences: &[u64], before: &[f64], after: &[f64]) -> Vec<LossPair> {
    sequences
        .iter()
        .zip(before.iter().zip(after))
        .map(|(sequence, (before, after))| LossPair::new(*sequence, *before, *after))
        .collect()
}

/// `fl(scale · level)` for every entry, one rounding each, as the merge does it.
fn scaled(mut update: Sparse, scale_of: impl Fn(usize) -> f32) -> Sparse {
    for (index, tensor) in update.tensors.iter_mut().enumerate() {
        let scale = scale_of(index);
        tensor.values.iter_mut().for_each(|value| *value *= scale);
    }
    update
}

fn mean(losses: &[f64]) -> f64 {
    losses.iter().sum::<f64>() / losses.len().max(1) as f64
}

#[cfg(test)]
mod tests {
    use super::*;
    use protocol::{
        Block, Digest, Hotkey, RunId, SeatId, params::Density, select::Selected, submission::RMS_MAX,
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

    /// A window in which `committed` committed, and two thirds called these valid and those faulty.
    fn view(committed: &[u16], valid: &[u16], faulty: &[u16]) -> WindowView {
        let uids = |uids: &[u16]| uids.iter().copied().map(Uid).collect::<Vec<_>>();
        WindowView {
            window: Window(3),
            opening_hash: None,
            evaluation_hash: None,
            slots: (0..40).map(Uid).collect(),
            cursor: 0,
            electorate: Vec::new(),
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
        }
    }

    fn nothing_measured() -> Measurements {
        Measurements {
            held_out_loss: 0.0,
            seats: BTreeMap::new(),
            near_duplicates: BTreeMap::new(),
            sketches: Sketches::default(),
            seconds: 0.0,
        }
    }

    /// One of each. A new kind of fault has to be added here, or this does not compile.
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
                | Fault::AbnormalNorm { .. } => {}
            }
        }
        all
    }

    #[test]
    fn every_fault_that_two_thirds_saw_is_in_the_evidence_by_its_own_name() {
        let faults: BTreeMap<Uid, Fault> = (0..).map(Uid).zip(every_fault()).collect();
        let uids: Vec<u16> = faults.keys().map(|uid| uid.0).collect();
        let seats: Vec<SeatView> = uids.iter().copied().map(seat).collect();
        let evidence =
            evidence(&view(&uids, &[], &uids), &seats, &BTreeMap::new(), &faults, &nothing_measured());
        assert_eq!(evidence.len(), faults.len());
        let mut labels = BTreeSet::new();
        for (evidence, fault) in evidence.iter().zip(faults.values()) {
            let Observed::Faulty { label, detail } = &evidence.observed else {
                panic!("{fault} is not in the evidence")
            };
            assert_eq!((label.as_str(), detail.clone()), (fault.label(), fault.to_string()));
            labels.insert(label.clone());
        }
        assert_eq!(labels.len(), faults.len(), "two faults have one name");
    }

    #[test]
    fn a_fault_that_only_we_saw_is_no_fault() {
        let faults = BTreeMap::from([(Uid(1), Fault::Missing)]);
        let evidence =
            evidence(&view(&[1], &[], &[]), &[seat(1)], &BTreeMap::new(), &faults, &nothing_measured());
        assert_eq!(evidence[0].observed, Observed::Unobserved);
    }

    #[test]
    fn a_fault_that_only_others_saw_is_one_without_a_name_of_ours() {
        let none = BTreeMap::new();
        let evidence =
            evidence(&view(&[1], &[], &[1]), &[seat(1)], &none, &BTreeMap::new(), &nothing_measured());
        assert!(matches!(&evidence[0].observed, Observed::Faulty { label, .. } if label == ATTESTED));
    }

    #[test]
    fn what_we_do_not_hold_is_unobserved_though_two_thirds_hold_it_and_who_committed_nothing_is_absent() {
        let held = BTreeMap::from([(Uid(2), 5)]);
        let view = view(&[1, 2], &[1, 2], &[]);
        let seats = [seat(1), seat(2), seat(3), SeatView { role: Role::Validator, ..seat(4) }];
        let evidence = evidence(&view, &seats, &held, &BTreeMap::new(), &nothing_measured());
        let observed: Vec<_> = evidence.iter().map(|evidence| &evidence.observed).collect();
        let waiting = Observed::Valid { trained: 5, measured: None, near_duplicate: None };
        assert_eq!(observed, [&Observed::Unobserved, &waiting, &Observed::Absent]);
    }
}
