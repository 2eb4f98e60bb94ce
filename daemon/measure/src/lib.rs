#![doc = include_str!("../README.md")]

pub mod audit;
pub mod near_duplicates;

use daemon::{Codec, Follower, HeldContribution, ModelState, Row, durable::FileError};
use dataset::{Dataset, LossEstimate, ReadError};
use gauntlet::{LossPair, Measured, NearDuplicate, Seeds, Sketch, Sketches, evidence::bounded};
use nn::{Evaluator, ModelError};
use protocol::{
    Digest, RunParams, Uid, Window,
    assign::{self, Assignment},
    contribution::{DecodeError, Sparse},
    merge,
    norms::RunningNorms,
    view::WindowView,
};
use std::{
    collections::{BTreeMap, BTreeSet},
    ops::Range,
    sync::Arc,
    time::Instant,
};

/// The measurements of one window.
#[derive(Clone, Debug, PartialEq)]
pub struct Measurements {
    /// Loss of `θ_w` on a sample of the held-out split. For reporting only: it never affects a score (PROT-4).
    pub held_out: LossEstimate,
    /// The measured seats.
    pub seats: BTreeMap<Uid, Measured>,
    /// The near-duplicate of each received contribution that has one.
    pub near_duplicates: BTreeMap<Uid, NearDuplicate>,
    /// [`Job::earlier`] with this window's contributions, for the next window's job.
    pub sketches: Sketches,
    pub seconds: f64,
}

/// Number of seats whose losses without contribution are computed together: enough to fill the device, but few enough
/// to lose little work when time is up.
pub const SEATS_TOGETHER: usize = 8;
/// Number of held-out sequences between two checks of the time.
const HELD_OUT_TOGETHER: u64 = 64;

#[derive(Debug, thiserror::Error)]
pub enum EvaluateError {
    #[error("could not read the evaluation's data")]
    Data(#[from] ReadError),
    #[error("could not read a contribution that was gathered")]
    Held(#[from] FileError),
    #[error("the model could not be evaluated")]
    Model(#[from] ModelError),
    #[error("the contribution of uid {uid} was decoded when it was gathered, and cannot be decoded now")]
    Decode { uid: Uid, source: DecodeError },
}

/// The contributions to measure, their order, and the sequences.
pub struct Job {
    pub window: Window,
    pub theta: Row,
    pub params: RunParams,
    /// Decodes the contributions.
    pub codec: Arc<Codec>,
    pub contributions: BTreeMap<Uid, HeldContribution>,
    /// The norm of each tensor to which larger ones are scaled down, from `reference_norms`.
    pub reference_norms: Vec<Option<f64>>,
    /// Seats to evaluate, in this order (PROT-28).
    pub order: Vec<Uid>,
    /// Each seat's sequences of this window.
    pub assigned: BTreeMap<Uid, Vec<u64>>,
    /// Common sequences, the same for all seats.
    pub common: Vec<u64>,
    /// The validator's own seed, with its salt.
    pub seed: Digest,
    /// Positions in the dataset's sample of held-out sequences for the reported loss.
    pub held_out: Range<u64>,
    /// Sketches of earlier windows' contributions.
    pub earlier: Sketches,
}

impl Job {
    /// Draws the sequences: own ones from the prefix that each seat trained on, common ones from those that no seat
    /// was assigned. The first common ones are the same for all validators (PROT-22). The caller sets held-out
    /// sequences and earlier sketches.
    pub fn new(
        state: ModelState,
        follower: &Follower,
        view: &WindowView,
        contributions: BTreeMap<Uid, HeldContribution>,
        order: Vec<Uid>,
        assignment: &Assignment<'_>,
        seeds: Seeds,
    ) -> Job {
        let (params, codec) = (follower.run.params, follower.sent.clone());
        let count = params.evaluation_sequences;
        let common = assign::evaluation_sequences(&seeds.probe, &seeds.own, assignment, count);
        let assigned = order.iter().filter_map(|uid| Some((*uid, assignment.of(*uid)?))).collect();
        let reference_norms = reference_norms(view, &contributions, &state.norms);
        let (window, held_out, earlier) = (assignment.window, 0..0, Sketches::default());
        Job {
            window,
            theta: state.theta,
            params,
            codec,
            contributions,
            reference_norms,
            order,
            assigned,
            common,
            seed: seeds.own,
            held_out,
            earlier,
        }
    }

    /// Returns the factor of a contribution's tensor. It is the merge's, so that a contribution is judged by its
    /// effect there (PROT-17).
    fn scale(&self, held: &HeldContribution, tensor: usize) -> f32 {
        let norm = held.square_norms.get(tensor).map(|square_norm| square_norm.sqrt());
        let reference = self.reference_norms.get(tensor).copied().flatten();
        norm.zip(reference).map_or(1.0, |(norm, reference)| merge::clip_scale(norm, reference))
    }

    /// Returns the sequences on which a seat's own work is measured (PROT-22).
    fn own_sequences(&self, uid: Uid, held: &HeldContribution, assigned: &[u64]) -> Vec<u64> {
        let count = usize::try_from(self.params.evaluation_sequences).unwrap_or(usize::MAX);
        let trained = usize::try_from(held.header.trained).unwrap_or(usize::MAX);
        assign::own_sequences(&self.seed, uid, &assigned[..assigned.len().min(trained)], count)
    }
}

/// Returns the reference norm of each tensor, over the available selected contributions of seats with weight, like the
/// merge. Contributions that are not merged do not count, so that many small ones cannot hide the effect of work. If
/// no selected seat has weight, it is the running norm; without that, contributions are measured unscaled (PROT-22).
pub fn reference_norms(
    view: &WindowView,
    contributions: &BTreeMap<Uid, HeldContribution>,
    running: &RunningNorms,
) -> Vec<Option<f64>> {
    let selected = view.selection.iter().flat_map(|selection| &selection.selected);
    let (norms, weights): (Vec<&[f64]>, Vec<u16>) = selected
        .filter_map(|one| {
            let held = contributions.get(&one.uid).filter(|held| held.digest == one.digest)?;
            Some((&held.square_norms[..], view.weight_of(one.uid)))
        })
        .filter(|(_, weight)| 0 < *weight)
        .unzip();
    if !norms.is_empty() {
        return merge::reference_norms(&norms, &weights, running).into_iter().map(Some).collect();
    }
    let tensors = contributions.values().map(|held| held.square_norms.len()).max().unwrap_or(0);
    (0..tensors).map(|tensor| running.of(tensor)).collect()
}

/// Runs the job on `evaluator`. Blocks: call it on a separate thread.
///
/// `time_left` is called before each group of seats and each contribution. Once it returns false, the remaining seats
/// stay unmeasured and come earlier in the next window (PROT-28).
///
/// # Errors
/// If the data cannot be read or the evaluator fails.
pub fn measure(
    evaluator: &mut Evaluator,
    dataset: &Dataset,
    job: &Job,
    time_left: &mut dyn FnMut() -> bool,
) -> Result<Measurements, EvaluateError> {
    let started = Instant::now();
    evaluator.load(&job.theta)?;
    let rate = job.params.evaluation_rate();

    // The model without contributions.
    let common = dataset.sequences(&job.common)?;
    let common_before = evaluator.losses(&common)?;

    let mut sketches = job.earlier.clone();
    let mut sketched = BTreeSet::new();
    let mut seats = BTreeMap::new();
    'all: for together in job.order.chunks(SEATS_TOGETHER) {
        if !time_left() {
            break;
        }
        // The seats' own sequences in one batch, without contributions.
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
            // Decoded one at a time: entries take six times the memory of the bytes.
            let update = match decode(job, *uid, held) {
                Err(EvaluateError::Held(error)) => {
                    tracing::warn!(%uid, %error, "it cannot be read again, and is not measured");
                    continue;
                }
                decoded => decoded?,
            };
            sketches.add(job.window, *uid, held.digest, Sketch::of(&update));
            sketched.insert(*uid);
            let scaled = scaled(update, |tensor| job.scale(held, tensor));
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

    let held_out = held_out_loss(evaluator, dataset, job, time_left)?;

    // Unmeasured contributions too, because a copy of them may be measured now or in a later window.
    for (uid, held) in &job.contributions {
        if !sketched.contains(uid) {
            match decode(job, *uid, held) {
                Err(EvaluateError::Held(error)) => tracing::warn!(%uid, %error, "it has no sketch"),
                decoded => sketches.add(job.window, *uid, held.digest, Sketch::of(&decoded?)),
            }
        }
    }
    Ok(Measurements {
        held_out,
        seats,
        near_duplicates: near_duplicates::near_duplicates(&sketches, job.window),
        sketches,
        seconds: started.elapsed().as_secs_f64(),
    })
}

/// Returns the loss of the model without contributions, which is only reported. Covers as much of its sample as the
/// time after the scores allows.
fn held_out_loss(
    evaluator: &Evaluator,
    dataset: &Dataset,
    job: &Job,
    time_left: &mut dyn FnMut() -> bool,
) -> Result<LossEstimate, EvaluateError> {
    let (mut losses, mut first) = (Vec::new(), job.held_out.start);
    while first < job.held_out.end && (losses.is_empty() || time_left()) {
        let end = job.held_out.end.min(first.saturating_add(HELD_OUT_TOGETHER));
        let sequences = dataset.held_out_sequences_at(&dataset.held_out_sample(first..end))?;
        if sequences.is_empty() {
            break;
        }
        losses.extend(evaluator.losses(&sequences)?);
        first = end;
    }
    Ok(LossEstimate::of(&losses))
}

/// Reads and decodes one contribution.
fn decode(job: &Job, uid: Uid, held: &HeldContribution) -> Result<Sparse, EvaluateError> {
    job.codec.decode(held.read()?.body()).map_err(|source| EvaluateError::Decode { uid, source })
}

fn pairs(sequences: &[u64], before: &[f64], after: &[f64]) -> Vec<LossPair> {
    sequences
        .iter()
        .zip(before.iter().zip(after))
        .map(|(sequence, (before, after))| LossPair::new(*sequence, *before, *after))
        .collect()
}

/// Returns `fl(scale · level)` for every entry, rounded once, like the merge.
fn scaled(mut update: Sparse, scale_of: impl Fn(usize) -> f32) -> Sparse {
    for (index, tensor) in update.tensors.iter_mut().enumerate() {
        let scale = scale_of(index);
        tensor.values.iter_mut().for_each(|value| *value *= scale);
    }
    update
}

/// Returns the mean loss of a model on training sequences, in nats per token. A loss that is not finite counts as a
/// very high one. Blocks.
///
/// # Errors
/// If the data cannot be read or the evaluator fails.
pub fn mean_loss(
    evaluator: &mut Evaluator,
    dataset: &Dataset,
    theta: &[f32],
    sequences: &[u64],
) -> Result<f64, EvaluateError> {
    evaluator.load(theta)?;
    let losses = evaluator.losses(&dataset.sequences(sequences)?)?;
    Ok(mean(&losses.into_iter().map(bounded).collect::<Vec<_>>()))
}

fn mean(losses: &[f64]) -> f64 {
    losses.iter().sum::<f64>() / losses.len().max(1) as f64
}

#[cfg(test)]
mod tests {
    use super::*;
    use daemon::Contribution;
    use protocol::{Hotkey, RunId, params::Density, select::Selected, submission::Header, view::Selection};

    /// Returns a window with these consensus weights in which `selected` are merged.
    fn view(weights: &[(u16, u16)], selected: &[u16]) -> WindowView {
        WindowView {
            window: Window(3),
            opening_hash: None,
            deal_seed: None,
            evaluation_hash: None,
            slots: Vec::new(),
            cursor: 0,
            active_set: Vec::new(),
            lineage: Digest::default(),
            weights: weights.iter().map(|(uid, weight)| (Uid(*uid), *weight)).collect(),
            commitments: Vec::new(),
            salts: Vec::new(),
            attested: Vec::new(),
            selection: Some(Selection {
                selected: selected
                    .iter()
                    .map(|uid| Selected { uid: Uid(*uid), digest: Digest::default() })
                    .collect(),
                valid: Vec::new(),
                faulty: Vec::new(),
            }),
            votes: Vec::new(),
            outcome: None,
            receipts: Vec::new(),
            probe_roots: Vec::new(),
            probes: Vec::new(),
            next_deal: None,
        }
    }

    fn held(norms: &[(u16, f64)]) -> BTreeMap<Uid, HeldContribution> {
        let contribution = |(uid, norm): &(u16, f64)| {
            let (uid, digest) = (Uid(*uid), Digest::default());
            let header = Header {
                codec: protocol::PROTOCOL_VERSION,
                run: RunId(0),
                window: Window(3),
                uid,
                hotkey: Hotkey([0; 32]),
                base: digest,
                schema: digest,
                density: Density(64),
                trained: 1,
            };
            let square_norms = vec![norm * norm, 4.0 * norm * norm];
            (uid, Contribution { digest, bytes: Vec::new().into(), header, square_norms }.into())
        };
        norms.iter().map(contribution).collect()
    }

    #[test]
    fn contributions_that_are_not_merged_do_not_move_the_reference_norms() {
        let mut norms = vec![(1, 3.0), (2, 2.0), (3, 5.0)];
        let weights = [(1, 10), (2, 10), (3, 10)];
        let references = |selected: &[u16], norms: &[(u16, f64)]| {
            reference_norms(&view(&weights, selected), &held(norms), &RunningNorms::default())
        };
        let expected = [Some(3.0), Some(6.0)];
        assert_eq!(references(&[1, 2, 3], &norms), expected);
        norms.extend((10..40).map(|uid| (uid, 1e-9)));
        assert_eq!(references(&[1, 2, 3], &norms), expected);
        // Neither do merged newcomers.
        assert_eq!(references(&[1, 2, 3, 10, 11, 12, 13], &norms), expected);
    }

    fn usual() -> RunningNorms {
        let mut running = RunningNorms::default();
        (0..8).for_each(|_| running.push(vec![1.0, 2.0]));
        running
    }

    #[test]
    fn a_majority_by_weight_moves_the_reference_norms_within_a_factor_of_the_running_norms() {
        let view = view(&[(1, 10), (2, 30)], &[1, 2]);
        let references = |norm| reference_norms(&view, &held(&[(1, 1.0), (2, norm)]), &usual());
        assert_eq!(references(1e-9), [Some(0.25), Some(0.5)]);
        assert_eq!(references(7500.0), [Some(4.0), Some(8.0)]);
    }

    #[test]
    fn without_a_selected_weight_contributions_are_scaled_to_the_running_norm_or_measured_as_they_are() {
        let norms = held(&[(1, 3.0), (2, 2.0)]);
        for weights in [&[][..], &[(7, 9)]] {
            let view = view(weights, &[1, 2]);
            assert_eq!(reference_norms(&view, &norms, &RunningNorms::default()), [None, None]);
            assert_eq!(reference_norms(&view, &norms, &usual()), [Some(1.0), Some(2.0)]);
        }
    }
}
