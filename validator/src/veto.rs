//! Measures the merged model before the vote: a validator does not vote for a model that became worse (PROT-19).
//!
//! Its threshold is far above the rounding of machines, so validators need not agree on losses: each measures on
//! common sequences of its own draw. If validators with more than a third of the stake abstain, the window is void
//! and the model stays unchanged.

use crate::{
    evaluate::{EvaluateError, Evaluation, draw},
    salt::Salts,
    step::{RunError, SUBMIT_BLOCKS, before},
    strategy::Strategy,
};
use daemon::{Entry, Node, error_chain, follow::OwnMerge};
use gauntlet::evidence::bounded;
use protocol::{assign, view::WindowView};

/// Maximum relative rise of the loss in one window.
const RISE_MAX: f64 = 0.05;
/// Maximum number of common sequences on which the two models are measured.
const SEQUENCES_MAX: usize = 16;

/// Mean losses on common sequences, in nats per token, of the window's model and of a merged one that is worse.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LossRise {
    pub before: f64,
    pub after: f64,
}

/// Returns whether a loss rose by more than `RISE_MAX`. A loss that is not finite counts as a very high one.
pub fn is_worse(before: f64, after: f64) -> bool {
    bounded(before) * (1.0 + RISE_MAX) < bounded(after)
}

impl Evaluation {
    /// Measures the window's model and the merged one. Returns the losses if the merged one is worse; `None` as well if
    /// nothing can be measured in time. `sequences` are common sequences of the window.
    #[tracing::instrument(name = "measure", target = "profile", level = "debug", skip_all)]
    pub(crate) async fn measure_merge(
        &mut self,
        node: &mut Node,
        strategy: &mut dyn Strategy,
        sequences: Vec<u64>,
        own: OwnMerge,
    ) -> Result<(OwnMerge, Option<LossRise>), RunError> {
        let window = own.window;
        // An evaluation of the window before was told to end, and has the evaluator until then.
        let until = before(node.schedule().vote_deadline(window), SUBMIT_BLOCKS);
        self.collect(node, strategy, until).await?;
        let evaluator = if sequences.is_empty() { None } else { self.lend() };
        let Some(mut evaluator) = evaluator else {
            tracing::warn!(window = window.0, "the merged model is not measured before the vote");
            return Ok((own, None));
        };
        let measure = move |state: &mut daemon::ModelState| {
            let losses = evaluator.mean_loss(&state.theta, &sequences);
            let losses = losses.and_then(|before| Ok((before, evaluator.mean_loss(&own.theta, &sequences)?)));
            (evaluator, own, losses)
        };
        let (evaluator, own, losses) = node.blocking.with(&mut node.sync.state, measure).await;
        self.give_back(evaluator);
        let (before, after) = match losses {
            Ok(losses) => losses,
            Err(EvaluateError::Data(error)) => {
                let error = error_chain(&error);
                tracing::error!(window = window.0, error, "the merged model is not measured before the vote");
                return Ok((own, None));
            }
            Err(error) => return Err(error.into()),
        };
        if !is_worse(before, after) {
            return Ok((own, None));
        }
        node.journal.write(&Entry::Vetoed { window, loss_before: before, loss_after: after });
        Ok((own, Some(LossRise { before, after })))
    }
}

/// Common sequences of this validator's own draw on which a merged model is measured before the vote; none without a
/// hash of the window.
pub(crate) fn sequences_before_vote(node: &Node, salts: &Salts, view: &WindowView) -> Vec<u64> {
    let count = usize::try_from(node.run().params.evaluation_sequences).unwrap_or(usize::MAX);
    draw(node, salts, view).map_or_else(Vec::new, |(seeds, assignment)| {
        assign::common_sequences(&seeds.own, &assignment, count.min(SEQUENCES_MAX))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_model_is_worse_if_its_loss_rises_by_more_than_a_twentieth() {
        assert!(!is_worse(4.0, 3.9) && !is_worse(4.0, 4.0) && !is_worse(4.0, 4.19));
        assert!(is_worse(4.0, 4.21) && is_worse(4.0, f64::INFINITY) && is_worse(4.0, f64::NAN));
        assert!(!is_worse(f64::NAN, f64::NAN), "a broken model cannot become worse");
    }
}
