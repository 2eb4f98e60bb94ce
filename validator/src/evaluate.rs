//! Measures what each contribution does to the loss, on the seat's own sequences and on common ones (PROT-22).
//!
//! One model in memory: a contribution is applied to it as a sparse delta and taken back exactly. The losses without it are computed once.

use crate::gauntlet::{Evidence, LossPair, Measured, Observed};
use dataset::{Dataset, ReadError};
use model::{Evaluator, ModelError};
use protocol::{
    Role, RunParams, Uid,
    assign::{self, Assignment},
    contribution::{DecodeError, Sparse},
    view::{SeatView, WindowView},
};
use replica::{Codec, Contribution, Follower};
use std::{collections::BTreeMap, sync::Arc, time::Instant};

/// All of one window's measurements.
#[derive(Clone, Debug, PartialEq)]
pub struct Measurements {
    /// Mean loss of `θ_w` on the held-out split, nats per token. For reporting only: it never enters a score (PROT-4).
    pub held_out_loss: f64,
    /// Seats that were reached.
    pub seats: BTreeMap<Uid, Measured>,
    pub seconds: f64,
}

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
}

impl Job {
    /// Draws the sequences: own ones from the prefix each seat trained on, common ones from what nobody was handed (PROT-22).
    pub fn new(
        theta: Vec<f32>,
        follower: &Follower,
        contributions: BTreeMap<Uid, Contribution>,
        order: Vec<Uid>,
        assignment: &Assignment<'_>,
        seed: protocol::Digest,
        held_out: u64,
    ) -> Job {
        let (params, codec) = (follower.run.params, follower.sent.clone());
        let count = usize::try_from(params.evaluation_sequences).unwrap_or(usize::MAX);
        let common = assign::common_sequences(&seed, assignment, count);
        let assigned = order.iter().filter_map(|uid| Some((*uid, assignment.of(*uid)?))).collect();
        Job { theta, params, codec, contributions, order, assigned, common, seed, held_out }
    }
}

/// Runs the job on `evaluator`. Blocking: call it on a thread of its own.
pub fn measure(
    evaluator: &mut Evaluator,
    dataset: &Dataset,
    job: &Job,
) -> Result<Measurements, EvaluateError> {
    let started = Instant::now();
    evaluator.load(&job.theta)?;
    let rate = job.params.evaluation_rate();
    let count = usize::try_from(job.params.evaluation_sequences).unwrap_or(usize::MAX);

    // The model as it is: on the held-out split, and on the common sequences.
    let held_out = (0..job.held_out.min(dataset.held_out_sequences()))
        .map(|index| dataset.held_out(index))
        .collect::<Result<Vec<_>, _>>()?;
    let held_out_losses = evaluator.losses(&held_out)?;
    let common = read(dataset, &job.common)?;
    let common_before = evaluator.losses(&common)?;

    // Scaled as the merge would scale them: a huge norm is judged by what it would do, not by its size (PROT-17).
    let norms: Vec<Vec<f64>> = job.contributions.values().map(|held| held.square_norms.clone()).collect();
    let scales = kernels::merge::clip_scales(&norms);
    let place: BTreeMap<Uid, usize> =
        job.contributions.keys().enumerate().map(|(place, uid)| (*uid, place)).collect();

    let mut seats = BTreeMap::new();
    for uid in &job.order {
        let (Some(held), Some(place), Some(assigned)) =
            (job.contributions.get(uid), place.get(uid), job.assigned.get(uid))
        else {
            continue;
        };
        let trained = usize::try_from(held.header.trained).unwrap_or(usize::MAX);
        let prefix = assigned.len().min(trained);
        let own_sequences = assign::own_sequences(&job.seed, *uid, &assigned[..prefix], count);
        let own = read(dataset, &own_sequences)?;
        let own_before = evaluator.losses(&own)?;

        // Decoded one at a time: the entries take six times the memory of the bytes.
        let update = job.codec.decode(held.body());
        let update = update.map_err(|source| EvaluateError::Decode { uid: *uid, source })?;
        let scaled = scaled(update, |tensor| scales[tensor][*place]);
        let undo = evaluator.apply_sparse(&scaled, rate)?;
        let own_after = evaluator.losses(&own);
        let common_after = evaluator.losses(&common);
        evaluator.undo(undo);

        seats.insert(
            *uid,
            Measured {
                own: pairs(&own_sequences, &own_before, &own_after?),
                common: pairs(&job.common, &common_before, &common_after?),
            },
        );
    }
    Ok(Measurements {
        held_out_loss: mean(&held_out_losses),
        seats,
        seconds: started.elapsed().as_secs_f64(),
    })
}

/// What the gauntlet is told of every seat that committed or was expected to: what the chain fixed about it, what we measured, and nothing
/// where neither says anything (PROT-14).
pub fn evidence(
    view: &WindowView,
    seats: &[SeatView],
    contributions: &BTreeMap<Uid, u32>,
    measured: &Measurements,
) -> Vec<Evidence> {
    let Some(selection) = &view.selection else { return Vec::new() };
    let mut evidence = Vec::new();
    for seat in seats.iter().filter(|seat| seat.role == Role::Miner && view.slots.contains(&seat.id.uid)) {
        let uid = seat.id.uid;
        let observed = if !view.commitments.iter().any(|(committed, _)| *committed == uid) {
            Observed::Absent
        } else if selection.faulty.contains(&uid) {
            Observed::Faulty { reason: "two thirds of the stake attested it as faulty".into() }
        } else {
            match contributions.get(&uid).filter(|_| selection.valid.contains(&uid)) {
                Some(trained) => {
                    Observed::Valid { trained: *trained, measured: measured.seats.get(&uid).cloned() }
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

fn read(dataset: &Dataset, indices: &[u64]) -> Result<Vec<Vec<u32>>, ReadError> {
    indices.iter().map(|index| dataset.sequence(*index)).collect()
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
